"""Operands of the library: their memory layout, and whether they fit together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kernel_dsl.definition import is_leaf
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.jax import is_traced
from kernel_dsl.refs import strides_of
from kernel_dsl.variables import Symbol, binding_is_active

UNIT = 16  # bytes: TMA needs addresses and strides that are multiples of it
_INT = frozenset((int,))
LINE = 128  # bytes of a line of the caches
MAX_RANK = 5  # the highest rank of a tensor that TMA copies


@dataclass(frozen=True)
class Operand:
    """Matrices (*batch, rows, depth) and their layout in memory: `rows` is the product's rows or columns, `depth` is K.
    `along_k`: neighbours in memory lie along K, otherwise along rows. `tma`: TMA can read them in place. `contiguous`:
    they have no gaps, and rows are multiples of 16 bytes. `piece`: neighbouring bytes that a lane can copy at once.
    `scaled`, `scaled_batch`: scales that a packing multiplies it by, as in `Packing`. `pitch`: the greatest power of two up to
    `LINE` that divides all strides but that of neighbours, in bytes.
    """

    dtype: DType
    batch: tuple[int, ...]
    rows: int
    depth: int
    along_k: bool
    tma: bool
    contiguous: bool
    piece: int = 16
    scaled: str = ""
    scaled_batch: tuple[bool, ...] = ()
    pitch: int = LINE

    @property
    def bytes(self) -> int:
        return math.prod(self.batch) * self.rows * self.depth * self.dtype.itemsize


def operand(x: Any, rows_last: bool) -> Operand:
    """An array as an operand: a is (*batch, rows, depth), and b, with `rows_last`, (*batch, depth, rows)."""
    shape = tuple(x.shape)
    dtype = as_dtype(x.dtype)
    if hasattr(x, "described"):  # 4-bit numbers, (K, N), or a sparse matrix, (M, K), both contiguous along K
        rows, depth = shape[::-1] if rows_last else shape
        return Operand(dtype, (), rows, depth, along_k=True, tma=True, contiguous=True)
    strides = element_strides(x) or strides_of(shape)
    rows, depth = (-1, -2) if rows_last else (-2, -1)
    along_k = _runs_along(shape, strides, depth, rows)
    order = (*range(len(shape) - 2), *((rows, depth) if along_k else (depth, rows)))
    laid = [(shape[i], strides[i]) for i in order]
    item, address = dtype.itemsize, array_address(x)
    whole = [s == expected or n == 1 for (n, s), expected in zip(laid, strides_of([n for n, _ in laid]), strict=True)]
    tma = not why_not_tma([n for n, _ in laid], [s for _, s in laid], item, address)
    gapless = all(whole)
    piece = math.gcd(laid[-1][0] * item, address, UNIT) if gapless else item
    pitch = math.gcd(LINE, *(s * item for n, s in laid[:-1] if n > 1))
    return Operand(
        dtype, shape[:-2], shape[rows], shape[depth], along_k, tma, gapless and piece == UNIT, piece, pitch=pitch
    )


def _runs_along(shape: tuple[int, ...], strides: tuple[int, ...], axis: int, other: int) -> bool:
    """Whether neighbours lie along `axis` rather than along `other`. If both are possible, the longer one counts."""
    near, far = (strides[i] == 1 or shape[i] == 1 for i in (axis, other))
    if near != far:
        return near
    if near:
        return shape[axis] > 1 or shape[other] == 1
    return abs(strides[axis]) <= abs(strides[other])


def why_not_tma(shape: Any, strides: Any, item: int, address: int) -> str:
    """The reason why TMA can't copy an array, outermost axis first; empty if it can."""
    if 0 in shape:
        return "it has no elements"
    if len(shape) > MAX_RANK:
        return f"it has {len(shape)} axes, and TMA copies {MAX_RANK}"
    if strides[-1] != 1 and shape[-1] > 1:
        return "its rows are not contiguous"
    for n, s in zip(shape[:-1], strides[:-1], strict=True):
        if n > 1 and (s < 0 or s * item % UNIT):
            return f"its strides are {tuple(strides)}, and TMA needs rows at multiples of {UNIT} bytes"
    return f"it is not aligned to {UNIT} bytes" if address % UNIT else ""


def is_transposed(x: Any) -> bool:
    """Whether memory has the last two axes in the reverse order."""
    strides = element_strides(x)
    return strides is not None and not _runs_along(tuple(x.shape), strides, -1, -2)


@dataclass(frozen=True)
class TurnedStruct:
    """The transpose of a struct (rows, columns), with strides."""

    T: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.T.shape)[::-1]

    @property
    def dtype(self) -> Any:
        return self.T.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in bytes, as in NumPy."""
        item = as_dtype(self.dtype).itemsize
        return item, self.T.shape[1] * item


def turned(x: Any) -> Any:
    """The array with its last two axes exchanged."""
    if len(x.shape) == 2:
        return x.T if hasattr(x, "T") else TurnedStruct(x)
    return x.swapaxes(-1, -2)


def element_strides(x: Any) -> tuple[int, ...] | None:
    """Strides in elements; None for a struct, which is row-major."""
    if callable(getattr(x, "stride", None)):
        return tuple(x.stride())
    strides = getattr(x, "strides", None)
    if strides is None:
        return None
    return tuple(s // as_dtype(x.dtype).itemsize for s in strides)


def outer_strides(x: Any) -> tuple[int, ...]:
    """Strides in elements of all axes but the last. Those of axes with one element are not used, and left out."""
    return tuple(s for n, s in zip(tuple(x.shape)[:-1], element_strides(x) or (), strict=False) if n != 1)


def is_gapless(x: Any) -> bool:
    """Whether an array is row-major without gaps, as structs are."""
    strides, shape = element_strides(x), tuple(x.shape)
    if strides is None or 0 in shape:
        return True
    return all(s == e or n == 1 for n, s, e in zip(shape, strides, strides_of(shape), strict=True))


def array_address(x: Any) -> int:
    """The address of an array on its device; 0 for a struct, and for what is no array, which the launch refuses."""
    if hasattr(x, "data_ptr"):
        return int(x.data_ptr())
    interface = getattr(x, "__array_interface__", None)
    if interface is not None:
        return _address_in(interface)
    address = getattr(getattr(x, "data", None), "ptr", 0)  # a CuPy array
    return address if isinstance(address, int) else 0


def _address_in(interface: Any) -> int:
    """The address that an `__array_interface__` says; 0 if it is none of NumPy's form."""
    data: Any = cast("Any", interface).get("data") if isinstance(interface, dict) else None
    return data[0] if isinstance(data, tuple) and isinstance(data[0], int) else 0


def out_refusal(out: Any) -> str:
    """The reason why TMA can't store into `out=`; empty if it can, and for objects that are no arrays."""
    if not is_leaf(out) or len(out.shape) < 2 or 0 in out.shape:
        return ""
    strides = element_strides(out)
    why = (
        ""
        if strides is None
        else why_not_tma(tuple(out.shape), strides, as_dtype(out.dtype).itemsize, array_address(out))
    )
    return f"out can't be stored by TMA: {why}" if why else ""


def check_apart(out: Any, inputs: Mapping[str, Any], kernel: str) -> None:
    """Raise `BadCallValue` if `out` is one of the inputs, which other blocks still read."""
    address = array_address(out)
    for name, x in inputs.items():
        if address and array_address(x) == address and math.prod(x.shape):
            what, hint = f"out= is the memory of {name}", f"{name} is read until the end; pass another array"
            raise BadCallValue(kernel=kernel, what=what, hint=hint)


def known_plan(plans: Mapping[Any, Any], key: Hashable, name: str, options: Mapping[str, Any]) -> Any:
    """The plan under `key`, or None. Raises `BadCallArgument` if an option can't be part of a key."""
    try:
        return plans.get(key)
    except TypeError:
        odd = next(option for option, value in options.items() if not _hashes(value))
        if is_traced([options[odd]]):
            what, hint = f"{odd} is a value that JAX traces", f"make it static: `jax.jit(..., static_argnames={odd!r})`"
            raise BadCallArgument(kernel=name, what=what, hint=hint) from None
        what = f"{odd} is {of_kind(options[odd])}, which can't be hashed"
        hint = "options are part of the cache's key: use `@dataclass(frozen=True)`, whose instances can be hashed"
        if hasattr(options[odd], "shape"):
            hint = "it is no array: kernels are kept by options, and an array's elements may change"
            if odd.endswith("_mod"):
                use = "b, h, i, j: mask[i, j]" if odd == "mask_mod" else "score, b, h, i, j: score + bias[i, j]"
                hint = f"a function of traced values, which may read the array: `lambda {use}`"
        raise BadCallArgument(kernel=name, what=what, hint=hint) from None


def _hashes(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _has_symbols(shape: tuple[Any, ...]) -> bool:
    """Whether an extent is a Dim or the like, and no recording gives it a value."""
    return any(isinstance(n, Symbol) for n in shape) and not binding_is_active()


def signature(x: Any, kernel: str) -> tuple[Any, ...]:
    """The properties of an array that a plan depends on: shape, dtype, strides, alignment.

    Raises `BadCallArgument` for a sparse tensor.
    """
    if isinstance(x, (int, float, np.generic)):
        return (type(x),)  # the launch gets its value
    described = getattr(x, "described", None)
    if described is not None:
        return described
    stride = getattr(x, "stride", None)
    if callable(stride):
        try:
            return x.shape, x.dtype, stride(), x.data_ptr() & 15
        except RuntimeError:
            from ..differentiable import check_no_transform

            check_no_transform(kernel, [x])
            what = f"an argument of shape {tuple(x.shape)} is a {str(x.layout).removeprefix('torch.')} tensor"
            raise BadCallArgument(kernel=kernel, what=what, hint="pass `.to_dense()`") from None
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple):
        return (type(x),)
    if not _INT.issuperset(map(type, cast("tuple[Any, ...]", shape))) and _has_symbols(shape):
        hint = f"for all values: `kd.warm([(kd.library.{kernel}, ...)])` with these arguments; calls and `lower` take ints here"
        raise BadCallArgument(
            kernel=kernel, what=f"an argument of shape {shape}, whose extents have no values", hint=hint
        )
    return shape, str(getattr(x, "dtype", None)), getattr(x, "strides", None), array_address(x) & 15
