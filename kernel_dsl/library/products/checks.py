"""Checks of matmul's arguments before compilation, with errors at the caller's line."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

import kernel_dsl as kd
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape

from ..activations import GATES
from ..product_kernels.scaled_product import DEPTH
from ..product_routes.families import BYTES, FP8, PRECISIONS
from ..refusals import kind_and_shape, shape_of
from .int4_numbers import BLOCK
from .matmul_config import MatmulConfig, check_counts, check_tiles
from .problem import Axes


def refuse(what: str, hint: str) -> BadCallValue:
    """The error for a value that does not fit."""
    return BadCallValue(kernel="matmul", what=what, hint=hint)


def refuse_shape(what: str, hint: str) -> LibraryShape:
    """The error for a shape that doesn't fit the other arrays."""
    return LibraryShape(kernel="matmul", what=what, hint=hint)


def shapes_together(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes of the product. Raises `BadCallValue`."""
    if a[-1] != b[-2]:
        raise refuse_shape(f"a is {a} and b is {b}", "a must have as many columns as b has rows; transpose with `.T`")
    out: list[int] = []
    for i in range(max(len(a), len(b)) - 2, 0, -1):
        extents = {s[-2 - i] for s in (a, b) if len(s) >= 2 + i} - {1}
        if len(extents) > 1:
            raise refuse_shape(f"a is {a} and b is {b}", "leading axes are the same, or 1, as in NumPy")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def axes_of(shape: tuple[int, ...], result: tuple[int, ...], name: str) -> Axes:
    """For each dimension of an operand, its axis in the result that it broadcasts to. Raises `BadCallValue`."""
    names = [*map(str, range(len(result) - 2)), "m", "n"]
    first = len(result) - len(shape)
    if first < 0 or any(n not in (1, r) for n, r in zip(shape, result[first:], strict=True)):
        raise refuse_shape(f"{name} is {shape}", f"it broadcasts to {result}")
    named = zip(shape, result[first:], names[first:], strict=True)
    return tuple("-" if n == 1 and r != 1 else axis for n, r, axis in named)


def scale_axes(name: str, shape: tuple[int, ...], result: tuple[int, ...], depth: int) -> Axes | str:
    """The axes of a scale that has one number for all, for each row of a, or for each column of b.

    For other scales, the form of a scale by blocks of K: "rows" of a, "columns" of b, or "blocks" of 128 columns.
    Raises `BadCallValue`.
    """
    M, N = result[-2:]
    side, extent = ("m", M) if name == "a_scale" else ("n", N)
    if all(n == 1 for n in shape):
        return ("-",) * len(shape)
    if shape == (extent,):
        return (side,)
    wanted = (extent, 1) if name == "a_scale" else (1, extent)
    if len(shape) >= 2 and shape[-2:] == wanted:
        return axes_of(shape, result, name)
    blocks = -(-depth // DEPTH)
    forms = {"rows": (M, blocks)} if name == "a_scale" else {"blocks": (blocks, -(-N // DEPTH)), "columns": (blocks, N)}
    found = next((form for form, last in forms.items() if shape[-2:] == last), None)
    if found is not None and broadcasts(shape[:-2], result[:-2]):
        return found
    said = [(), (extent,), wanted, *forms.values()]
    raise refuse_shape(f"{name} is {shape}", f"its shape is one of {', '.join(dict.fromkeys(map(str, said)))}")


def has_blocks(name: str, scale: Any, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether a scale of the product of these shapes has a number for each 128 of K. Raises `BadCallValue`."""
    shape = shape_of(scale)
    if not shape:
        return False
    return isinstance(scale_axes(name, shape, (*shapes_together(a, b), a[-2], b[-1]), a[-1]), str)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether leading axes broadcast to others."""
    return len(shape) <= len(to) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(to), strict=False))


def check_array(x: Any, name: str, hint: str, real: bool = True) -> None:
    """Raise `BadCallArgument` for an object that is no array of real numbers; a and b need two dimensions or more."""
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(x, "dtype") or (name in ("a", "b") and len(shape) < 2):
        what = f"{name} is {kind_and_shape(x)}"
        raise BadCallArgument(kernel="matmul", what=what, hint=hint)
    if real and as_dtype(x.dtype).name.startswith("complex"):
        what = f"{name} is {as_dtype(x.dtype)}"
        raise LibraryDType(kernel="matmul", what=what, hint="make a and b both complex64, or both real")


def check_options(o: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for wrong options."""
    for name, x in (("activation", o.activation), ("epilogue", o.epilogue)):
        if x is not None and not callable(x):
            what = f"{name} is {of_kind(x)}"
            raise BadCallArgument(kernel="matmul", what=what, hint="a function of traced values, such as `kd.relu`")
    check_precision(o.precision)
    if o.config is not None and not isinstance(o.config, MatmulConfig):
        what = f"config is {of_kind(o.config)}"
        raise BadCallArgument(kernel="matmul", what=what, hint="a `MatmulConfig`, or None to have one chosen")
    if o.config is not None:
        check_counts(o.config, "matmul")
        check_tiles(o.config, "matmul")
    if not isinstance(o.operands, (tuple, list, int, float)) and not hasattr(o.operands, "dtype"):
        what = f"operands is {of_kind(o.operands)}"
        raise BadCallArgument(
            kernel="matmul", what=what, hint="a tuple of numbers and arrays, for the function `epilogue`"
        )
    if o.listed and o.epilogue is None:
        raise refuse("operands without an epilogue", "they are arguments of the function `epilogue`")
    if o.gated is not None and not callable(o.gated) and (not isinstance(o.gated, str) or o.gated not in GATES):
        hint = f"a function of the two products, or one of {', '.join(map(repr, GATES))}"
        raise refuse(f"gated={shown(o.gated)}", hint)
    if o.gated is not None and o.c is not None:
        raise refuse("c beside gated", "it could be added to either product; use `bias`, `residual` or `epilogue`")
    _check_dropout(o.dropout)


def check_precision(precision: Any) -> None:
    """Raise `BadCallValue` for what is no precision. An array would compare with each word by elements."""
    if precision is not None and (not isinstance(precision, str) or precision not in PRECISIONS):
        raise refuse(f"precision={shown(precision)}", "one of " + ", ".join(map(repr, PRECISIONS)))


def check_packed(a: Any, b: Any, o: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for arguments that a b of 4-bit numbers, or a pair of such, excludes."""
    check_array(a, "a", "a is (..., M, K)")
    if as_dtype(a.dtype) not in (kd.float16, kd.bfloat16, *BYTES, *FP8):
        what = f"a is {as_dtype(a.dtype)} beside integers of 4 bits"
        raise LibraryDType(kernel="matmul", what=what, hint="it is float16, bfloat16, int8, uint8 or float8")
    if o.gated is not None:
        b = _packed_pair(b)
    elif isinstance(b, (tuple, list)):
        raise BadCallArgument(kernel="matmul", what=f"b is {of_kind(cast('Any', b))}", hint="a pair is for `gated`")
    check_precision(o.precision)
    if o.precision not in (None, "highest"):
        raise refuse(f"precision={shown(o.precision)} beside integers of 4 bits", "leave it out")
    depths = (BLOCK, 2 * BLOCK) if b.group % (2 * BLOCK) == 0 else (BLOCK,)
    if isinstance(o.config, MatmulConfig) and (o.config.tile_k not in depths or o.config.ping_pong):
        what = f"config.tile_k={o.config.tile_k}, config.ping_pong={o.config.ping_pong} beside integers of 4 bits"
        raise refuse(what, f"tile_k={BLOCK}, or {2 * BLOCK} that share scales, and nothing in turns")
    if a.shape[-1] != b.shape[0]:
        raise refuse_shape(f"a is {tuple(a.shape)} and b is {b.shape}", "the columns of a are the rows of b")


def _packed_pair(b: Any) -> Any:
    """The second of two matrices of 4-bit numbers. Raises `BadCallArgument`, `LibraryShape`."""
    hint = "a pair of packed matrices: the gate's, and the gated one"
    pair: Any = b if isinstance(b, (tuple, list)) else (b,)
    if len(pair) != 2 or type(pair[0]) is not type(pair[1]):
        words = "a pair" if len(pair) == 2 else of_kind(b)
        kinds = " of " + " and ".join(type(x).__name__ for x in pair) if len(pair) == 2 else ""
        raise BadCallArgument(kernel="matmul", what=f"gated, and b is {words}{kinds}", hint=hint)
    one, other = pair
    if one.form != other.form:
        what = f"b is a pair of {one.shape} in groups of {one.group} and {other.shape} in groups of {other.group}"
        raise refuse_shape(what, "pack both in the same way: one shape, one group, zeros for both or for none")
    return one


def check_sparse(b: Any, o: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for arguments that a sparse a excludes."""
    check_precision(o.precision)
    for x in o.rights(b) if o.gated is None or isinstance(b, (tuple, list)) or hasattr(b, "dtype") else (b,):
        check_array(x, "b", "b is (..., K, N)", real=False)
        if hasattr(x, "described"):
            what = f"b is {of_kind(x)} beside a sparse a"
            raise BadCallArgument(kernel="matmul", what=what, hint="unpack it first")
    if isinstance(o.config, MatmulConfig) and (o.config.swapped or o.config.tile_k % BLOCK):
        what = f"config.tile_k={o.config.tile_k}, config.swapped={o.config.swapped} beside a sparse a"
        raise refuse(what, f"tile_k is a multiple of {BLOCK}, and the sparse side is the left one: not swapped")


def check_pairs(b: Any, o: Any) -> None:
    """Raise `BadCallArgument` for a pair in place of a single argument, or the reverse."""
    split = isinstance(b, (tuple, list))
    width = 0 if split else (*shape_of(b), 0)[-2 if shape_of(b) else -1]
    for name, x in (("b", b), ("bias", o.bias), ("b_scale", o.b_scale)):
        parts = len(cast("tuple[Any, ...]", x)) if isinstance(x, (tuple, list)) else 0
        shape = () if parts else shape_of(x)
        last = shape[-1] if shape else 1
        if o.gated is None:
            bad, what, hint = parts and name != "bias", f"{name} is {of_kind(x)}", "a pair is for `gated`"
        elif parts:
            bad, what, hint = parts != 2, f"{name} has {parts} parts", "give a pair: the gate, and the gated values"
        elif name == "b":
            what, hint = f"b has {last} columns", "columns that gate and columns that are gated, in turn"
            bad = bool(shape) and last % 2  # what is no array is told of later
        else:
            bad = last not in (1, width)
            what, hint = (
                f"{name} is {shape}",
                "a pair, as b is" if split else f"one for each of the {width} columns, or a pair",
            )
        if bad:
            raise BadCallArgument(kernel="matmul", what=what, hint=hint)


def _check_dropout(dropout: Any) -> None:
    if dropout is None:
        return
    hint = "a pair (rate, seed): 0 <= rate < 1, and an int of 64 bits"
    if not isinstance(dropout, (tuple, list)) or len(cast("tuple[Any, ...]", dropout)) != 2:
        raise BadCallArgument(kernel="matmul", what=f"dropout={shown(dropout)}", hint=hint)
    rate, seed = cast("tuple[Any, Any]", dropout)
    if (
        isinstance(rate, bool)
        or not isinstance(rate, (int, float, np.integer, np.floating))
        or isinstance(seed, bool)
        or not isinstance(seed, (int, np.integer))
    ):
        raise BadCallArgument(kernel="matmul", what=f"dropout={shown(dropout)}", hint=hint)
    if not 0 <= rate < 1 or not 0 <= seed < 1 << 64:
        raise refuse(f"dropout={shown(dropout)}", hint)
