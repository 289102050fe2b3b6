"""`kd.library.pack_int4`: weights of 4 bits, two a byte. Each column of each group of rows has a scale.

`int4_numbers` has their order: the bytes that a lane loads are the operands of its registers for wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.definition import is_leaf
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape
from kernel_dsl.kernel import identified

from ..first_sizes import FirstSizes, declared_outputs, dim_of, is_open
from ..jax_trees import known_to_jax
from ..refusals import check_parts, kind_and_shape, on_host
from .int4_numbers import BLOCK, HALF, HALF_BYTES, HIGHEST, MIDDLE, UNIT, numbers
from .operands import array_address, signature

NAME = "pack_int4"
COLUMNS = 64  # columns of a block of the kernels here
DTYPES = (kd.float16, kd.bfloat16, kd.float32)
MOST = 2**24  # rows and columns of matrices that share a kernel

_first = FirstSizes()


@dataclass(frozen=True, eq=False)
class PackedInt4:
    """A matrix (K, N) of 4-bit integers that `pack_int4` made.

    `matmul` takes it as b beside an a of float16, bfloat16 or 8 bits.

    Element (k, n) is (q - zero) * scale, q from 0 to 15. `data`: int8 (N, ceil(K/64) * 32), q of rows 32 i + 16 u + j and 32 i +
    16 u + j + 8 in the low and the high half of byte 16 i + 2 j + u, for j from 0 to 7 and u 0 or 1. `scales`: float32
    (ceil(K/group), N); `zeros`: float32 of the same shape, or None for 8.
    """

    data: Any
    scales: Any
    zeros: Any
    shape: tuple[int, int]
    group: int

    def __post_init__(self) -> None:
        known_to_jax(type(self))

    @property
    def dtype(self) -> Any:
        """The dtype of the bytes."""
        return as_dtype(self.data.dtype)

    @property
    def arrays(self) -> list[Any]:
        """The arguments of kernels: bytes, scales, and zeros if there are any."""
        return [self.data, self.scales, *([] if self.zeros is None else [self.zeros])]

    @property
    def described(self) -> tuple[Any, ...]:
        """The properties that a plan depends on."""
        return (NAME, self.shape, self.group, *(signature(x, "matmul") for x in self.arrays))

    @property
    def form(self) -> tuple[Any, ...]:
        """The properties that its arrays do not show."""
        return self.shape, self.group, self.zeros is None

    @property
    def fast(self) -> bool:
        """Whether TMA can read all of it in place."""
        return self.shape[1] % 4 == 0 and not any(array_address(x) % 16 for x in self.arrays)

    def unpacked(self, dtype: Any, **how: Any) -> Any:
        """The matrix (K, N) in a floating dtype, stored by columns. `how`: `stream`, `interpret`, as for kernels."""
        K, N = self.shape
        kind = "unpack", self.group, self.zeros is not None, as_dtype(dtype)
        made = unpack_kernel(*_first.sizes(kind, MOST, K=(K, 1), N=(N, 1)), *kind[1:])(*self.arrays, **how)
        return made[:, :K].T


def check_int4(x: PackedInt4, kernel: str) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a matrix whose arrays don't have its form."""
    if not isinstance(x.group, Integral) or x.group < BLOCK or x.group % BLOCK:
        raise BadCallValue(kernel=kernel, what=f"group={shown(x.group)}", hint="a multiple of 64")
    K, N = x.shape
    scales = (kd.float32, (kd.cdiv(K, x.group), N))
    parts = {"data": (x.data, kd.int8, (N, kd.cdiv(K, BLOCK) * HALF)), "scales": (x.scales, *scales)}
    check_parts(kernel, parts if x.zeros is None else parts | {"zeros": (x.zeros, *scales)}, NAME)


def widened_dtype(dtype: Any) -> Any:
    """The dtype that 4-bit numbers are widened to, for an a of this dtype."""
    found = as_dtype(dtype)
    return kd.bfloat16 if found.itemsize == 1 else found


@cache
def pack_kernel(K: Any, N: Any, group: int, dtype: Any, zeros: str) -> Any:
    """The kernel `(w[, zeros]) -> (data, scales[, zeros])`. `zeros`: "given", "found" or "".

    Each call gives the sizes that are Dims.
    """
    groups, blocks = kd.cdiv(K, group), kd.cdiv(K, BLOCK)

    def body(w: Any, *refs: Any) -> None:
        given, outs = (list(refs[:1]), refs[1:]) if zeros == "given" else ([], refs)
        data, scales, *rest = outs
        number, columns = kd.program_id(0), kd.ds(kd.program_id(1) * COLUMNS, COLUMNS)
        steps = group // HALF

        def load(step: Any) -> Any:
            return w[kd.ds(number * group + step * HALF, HALF), columns].astype(kd.float32)

        def widen(step: Any, carry: Any) -> Any:
            x = load(step)
            return kd.minimum(carry[0], kd.min(x, axis=0)), kd.maximum(carry[1], kd.max(x, axis=0))

        nothing = kd.zeros((COLUMNS,), kd.float32)
        low, high = kd.fori_loop(0, steps, widen, (nothing, nothing))
        if zeros == "given":
            zero = given[0][number, columns].astype(kd.float32)
            below, above = (
                kd.maximum(zero, 0.5),
                kd.maximum(HIGHEST - zero, 0.5),
            )  # an empty side holds no number
            scale = kd.maximum(-low / below, high / above)
        elif zeros:
            scale = (high - low) * (1.0 / HIGHEST)
            zero = kd.rint(-low / kd.where(scale > 0, scale, 1.0))
        else:
            scale = kd.maximum(high, -low) * (1.0 / (MIDDLE - 1))
            zero = kd.full((COLUMNS,), float(MIDDLE), kd.float32)
        scale = kd.where(scale > 0, scale, 1.0)
        scales[number, columns] = scale
        if rest:
            rest[0][number, columns] = zero

        def quantised(unit: Any) -> Any:
            x = w[kd.ds(number * group + unit * UNIT, UNIT), columns].astype(kd.float32)
            q = kd.rint(x / scale[None]) + zero[None]
            return kd.minimum(kd.maximum(q, 0.0), float(HIGHEST)).astype(kd.int32)

        @kd.loop(0, steps)
        def _(step: Any) -> None:
            both = [quantised(4 * step + 2 * u) | (quantised(4 * step + 2 * u + 1) << 4) for u in range(2)]
            made = kd.stack([x.T.astype(kd.uint8).astype(kd.int8) for x in both], axis=2)
            data[columns, kd.ds((number * steps + step) * HALF_BYTES, HALF_BYTES)] = made.reshape(COLUMNS, HALF_BYTES)

    outs = (
        kd.ShapeDtypeStruct((N, blocks * HALF), kd.int8),
        *[kd.ShapeDtypeStruct((groups, N), kd.float32)] * (2 if zeros else 1),
    )
    given = {1: (dim_of("groups"), N)} if zeros == "given" else {}
    made = kd.kernel(
        body,
        out_type=outs,
        grid=(groups, kd.cdiv(N, COLUMNS)),
        shapes={0: (K, N)} | given | declared_outputs(outs, 1 + len(given)) if is_open(K, N) else None,
        name="int4_pack",
    )
    return identified(made, K, N, group, dtype, zeros)


def unpacked_form(K: Any, N: Any, factors: int, dtype: Any) -> tuple[Any, Any, Any]:
    """(blocks along K, `shapes=`, the result) of a kernel that unpacks. For any sizes, the extent of the bytes gives
    the blocks.
    """
    bytes_ = dim_of("bytes", MOST // 2, HALF) if is_open(K, N) else kd.cdiv(K, BLOCK) * HALF
    out = kd.ShapeDtypeStruct((N, 2 * bytes_), dtype)
    if not is_open(K, N):
        return bytes_ // HALF, None, out
    shapes = {0: (N, bytes_)} | dict.fromkeys(range(1, 1 + factors), (dim_of("groups"), N))
    return bytes_ // HALF, shapes | declared_outputs([out], 1 + factors), out


@cache
def unpack_kernel(K: Any, N: Any, group: int, zeros: bool, dtype: Any) -> Any:
    """The kernel `(data, scales[, zeros]) -> w`, (N, K rounded up to whole blocks). Each call gives Dims."""
    blocks, shapes, out = unpacked_form(K, N, 2 if zeros else 1, dtype)

    def body(data: Any, scales: Any, *refs: Any) -> None:
        *given, out = refs
        block, rows = kd.program_id(0), kd.ds(kd.program_id(1) * COLUMNS, COLUMNS)
        number = kd.div(block, group // BLOCK)
        scale = scales[number, rows][:, None]
        zero = given[0][number, rows][:, None] if given else None
        bytes_ = data[rows, kd.ds(block * HALF, HALF)].reshape(COLUMNS, 2, UNIT, 2)
        for unit in range(BLOCK // UNIT):
            x = numbers(bytes_[:, unit // 4, :, unit % 4 // 2], unit % 2, scale, zero)
            out[rows, kd.ds(block * BLOCK + unit * UNIT, UNIT)] = x.astype(dtype)

    made = kd.kernel(
        body,
        out_type=out,
        grid=(blocks, kd.cdiv(N, COLUMNS)),
        shapes=shapes,
        name="int4_unpack",
    )
    return identified(made, K, N, group, zeros, dtype)


@partial(public, name=NAME)
@checks_itself("group")
def pack_int4(w: Any, group: int = 128, zeros: Any = None, *, stream: Any = None, interpret: Any = None) -> PackedInt4:
    """Weights (K, N), float16, bfloat16 or float32 in any strides, rounded to 4 bits, as an operand b of `matmul`.

    `group` rows, a multiple of 64, share a scale in each column. Without `zeros` numbers are symmetric: scale = max |w|
    / 7. `zeros=True` finds, for each group and column, the number from 0 to 15 that means zero; an array
    (ceil(K/group), N) of float32 gives it. Raises `BadCallArgument` for wrong arrays, `BadCallValue` for a group or
    zeros that don't fit, and for zeros below 0 or over 15 if the host can read them. `stream`, `interpret`: as for
    kernels. Bytes have the order of wgmma's registers (PTX ISA 9.7.15.5.1).
    """
    shape = getattr(w, "shape", None)
    hint = "w is (K, N), float16, bfloat16 or float32"
    if not isinstance(shape, tuple) or not hasattr(w, "dtype") or len(shape) != 2:
        raise BadCallArgument(kernel=NAME, what=f"w is {kind_and_shape(w)}", hint=hint)
    if as_dtype(w.dtype) not in DTYPES:
        raise LibraryDType(kernel=NAME, what=f"w is {as_dtype(w.dtype)}", hint=hint)
    if isinstance(group, bool) or not isinstance(group, Integral):
        raise BadCallArgument(kernel=NAME, what=f"group={shown(group)}", hint="a multiple of 64")
    if not BLOCK <= group < 1 << 31 or group % BLOCK:
        raise BadCallValue(kernel=NAME, what=f"group={shown(group)}", hint="a multiple of 64")
    K, N = int(w.shape[0]), int(w.shape[1])
    if not K or not N:
        raise BadCallValue(kernel=NAME, what=f"w is {(K, N)}", hint="give it a row and a column or more")
    how, given = "", []
    if zeros is True:
        how = "found"
    elif zeros is not None:
        wanted = (kd.cdiv(K, group), N)
        if not is_leaf(zeros):
            raise BadCallArgument(kernel=NAME, what=f"zeros is {of_kind(zeros)}", hint=f"True, or float32 {wanted}")
        if as_dtype(zeros.dtype) != kd.float32:
            what = f"zeros is {as_dtype(zeros.dtype)}"
            raise LibraryDType(kernel=NAME, what=what, hint=f"True, or float32 {wanted}")
        if tuple(zeros.shape) != wanted:
            raise LibraryShape(kernel=NAME, what=f"zeros is {tuple(zeros.shape)}", hint=f"True, or float32 {wanted}")
        held = on_host(zeros)
        if held is not None and (odd := ~((held >= 0) & (held <= HIGHEST))).any():
            raise BadCallValue(kernel=NAME, what=f"zeros has {held[odd][0]}", hint=f"numbers from 0 to {HIGHEST}")
        how, given = "given", [zeros]
    kind = int(group), as_dtype(w.dtype), how
    sizes = _first.sizes((NAME, *kind), MOST, K=(K, 1), N=(N, 1))
    data, scales, *rest = pack_kernel(*sizes, *kind)(w, *given, stream=stream, interpret=interpret)
    return PackedInt4(data, scales, rest[0] if rest else None, (K, N), int(group))
