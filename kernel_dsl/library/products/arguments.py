"""Turns the arguments of a matmul call into a `Problem`: checks shapes, finds batch axes, and orders the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.definition import is_leaf
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.errors import BadCallArgument, LibraryDType
from kernel_dsl.refs import strides_of

from ..product_routes.families import Family, default_out, family
from .checks import axes_of, broadcasts, check_array, refuse, refuse_shape, scale_axes, shapes_together
from .int4 import widened_dtype
from .matmul_options import MatmulOptions, mixed_forms
from .operands import Operand, array_address, element_strides, is_transposed, operand, why_not_tma
from .problem import Axes, EpilogueStep, Problem, is_full


@dataclass(frozen=True)
class Request:
    """A product in the form that kernels take.

    `left`, `right`: the operands of `problem`; `turns`: whether kernels get a and b with their last axes exchanged;
    `flipped`: the transposed product is computed, because `out` is stored by columns; `folded`: the result's shape, if
    a's batch became rows of one matrix; `own`: for each right side, the numbers of the steps' operands that are scales
    by blocks of K, which the multiplying kernel takes; `turned`: the operands of steps whose last axes are exchanged,
    like those of the result.
    """

    problem: Problem
    left: Operand
    right: Operand
    family: Family
    turns: tuple[bool, bool]
    flipped: bool
    folded: tuple[int, ...]
    own: tuple[tuple[int, ...], ...]
    turned: tuple[int, ...] = ()


def request(a: Any, b: Any, o: MatmulOptions, out: Any) -> Request:
    """The product of a call. Raises `BadCallArgument`, `BadCallValue`, `NoCommonDType`."""
    rights = o.rights(b)
    for name, x in (("a", a), *(("b", x) for x in rights)):
        check_array(x, name, "a is (..., M, K) and b is (..., K, N)")
    batch = shapes_together(tuple(a.shape), tuple(rights[0].shape))
    left, right = operand(a, rows_last=False), alike([operand(x, rows_last=True) for x in rights])
    group = getattr(rights[0], "group", 0)
    # bytes beside 4-bit numbers become bfloat16, which holds them exactly
    dtype = widened_dtype(left.dtype) if group else left.dtype
    how = family(dtype, right.dtype, o.precision)
    shape = (*batch, left.rows, right.rows)
    out_dtype = out_dtype_of(o, dtype, right.dtype)
    check_result(out, shape, out_dtype)
    made = _steps(o, shape, left.depth)
    own, steps = made.own, made.steps
    if any(made.blocks.values()) and how.a.itemsize + how.b.itemsize > 2:
        left, right, how = _scaled_while_packed(left, right, how, made, bool(group))
    turns = (not left.along_k, right.along_k)
    folded: tuple[int, ...] = ()
    if batch and _folds(a, left, right, batch, made.arrays, out):
        folded, batch = shape, ()
        left, right = replace(left, batch=(), rows=math.prod(left.batch) * left.rows), replace(right, batch=())
        own = [_folded(s) for s in own]
        steps = _folded(steps)
        made.leading.clear()
        left = replace(left, scaled_batch=())
    sparse = hasattr(a, "meta")
    lying: tuple[int, ...] = ()
    flipped = o.gated is None and not any(made.blocks.values()) and not sparse and _by_columns(out)
    if flipped:
        operands = [axes for s in (*own[0], *steps) for axes in s.operands]
        lying = tuple(i for i, axes in enumerate(operands) if is_full(axes))
        left, right, how = right, left, replace(how, a=how.b, b=how.a)
        own, steps = [[s.turned for s in own[0]]], [s.turned for s in steps]
    by_steps = not left.scaled and not right.scaled
    p = Problem(
        left.rows, right.rows, left.depth, how.a, how.b, out_dtype,
        batch=batch, a_batch=left.batch, b_batch=right.batch, thrice=how.thrice,
        a_scaled=by_steps and made.blocks["a_scale"] == "rows", b_scaled=made.blocks["b_scale"] if by_steps else "",
        a_scale_batch=made.leading.get("a_scale", ()) if by_steps else (),
        b_scale_batch=made.leading.get("b_scale", ()) if by_steps else (),
        promoted=how.promoted and not any(made.blocks.values()),
        int4=group, int4_zeros=getattr(rights[0], "zeros", None) is not None, sparse=sparse,
    )  # fmt: skip
    if o.gated is None:
        p = replace(p, steps=(*own[0], *steps))
    else:
        function = o.gated if callable(o.gated) else None
        gate = EpilogueStep("gate", function=function, word="" if function else str(o.gated))
        p = replace(p, gate=gate, gated=(tuple(own[0]), tuple(own[1])), steps=tuple(steps))
    return Request(stored(p, out, flipped), left, right, how, turns, flipped, folded, made.moved, lying)


def _scaled_while_packed(
    left: Operand, right: Operand, how: Family, made: _Steps, packed: bool
) -> tuple[Operand, Operand, Family]:
    """Operands of 8 bits that are multiplied by their scales when they are widened, and their family.

    Raises `BadCallValue`, `LibraryShape`. `packed`: b has numbers of 4 bits.
    """
    wide = max((how.a, how.b), key=lambda dtype: dtype.itemsize)
    sides: list[Operand] = []
    for name, o in (("a_scale", left), ("b_scale", right)):
        form = made.blocks[name]
        if not form:
            sides.append(o)
            continue
        own = "numbers of 4 bits" if packed and o is right else str(o.dtype)
        if o.dtype.itemsize > 1 or (packed and o is right) or not wide.is_float:
            raise refuse(f"{name} by blocks of K for {own}", "such scales are for operands of 8 bits")
        outer = made.leading[name]
        if outer is None or len(outer) > len(o.batch) or not broadcasts(outer, o.batch):
            what = f"{name} has leading axes {outer or 'of two kinds'}, and its matrix {o.batch}"
            raise refuse_shape(what, "give the matrix these axes, too")
        sides.append(replace(o, scaled=form, scaled_batch=tuple(n != 1 for n in outer)))
    a, b = (wide if o.scaled else dtype for o, dtype in zip(sides, (how.a, how.b), strict=True))
    return sides[0], sides[1], replace(how, a=a, b=b)


def check_result(out: Any, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise `LibraryShape`, `LibraryDType` for an array `out` with another shape or dtype than the result."""
    if not hasattr(out, "dtype") or not isinstance(getattr(out, "shape", None), tuple):
        return  # the launch refuses what is no array
    if tuple(out.shape) != shape:
        raise refuse_shape(f"out is {tuple(out.shape)}", f"its shape is {shape}")
    if as_dtype(out.dtype) != dtype:
        raise LibraryDType(
            kernel="matmul", what=f"out is {as_dtype(out.dtype)}", hint=f"it is {dtype}; or say out_dtype="
        )


def alike(rights: list[Operand]) -> Operand:
    """The common description of all right sides. Raises `BadCallValue` if they differ in shape or dtype."""
    one, other = rights[0], rights[-1]
    if (one.dtype, one.rows, one.depth, one.batch) != (other.dtype, other.rows, other.depth, other.batch):
        what = f"b is {one.dtype} of {(one.depth, one.rows)} and {other.dtype} of {(other.depth, other.rows)}"
        raise refuse_shape(what, "the gate's matrix and the gated matrix must have one shape and one dtype")
    if one.along_k != other.along_k:  # no kernel but a packing one takes both in one form, element by element
        return replace(one, tma=False, contiguous=False, piece=one.dtype.itemsize)
    both = {"tma": one.tma and other.tma, "contiguous": one.contiguous and other.contiguous}
    return replace(one, **both, piece=min(one.piece, other.piece), pitch=min(one.pitch, other.pitch))


def out_dtype_of(o: MatmulOptions, a: DType, b: DType) -> DType:
    if o.out_dtype is None:
        found = default_out(a, b)
        scaled = o.a_scale is not None or o.b_scale is not None
        if found.is_float:
            return kd.bfloat16 if scaled and found.itemsize == 2 else found
        real = scaled or o.scale is not None or o.gated is not None
        return kd.bfloat16 if real and found == kd.int32 and a.itemsize == b.itemsize == 1 else found
    found = as_dtype(o.out_dtype)
    if found.name.startswith("complex"):
        raise LibraryDType(kernel="matmul", what=f"out_dtype is {found}", hint="complex values are only copied")
    return found


@dataclass
class _Steps:
    """The steps of each product and of the result, and all their arrays with their axes.

    `blocks`: the forms of scales by blocks of K, "" for others; `leading`: the extents of their leading axes,
    None where those of a pair differ; `moved`: the numbers of such scales among all operands.
    """

    own: list[list[EpilogueStep]]
    steps: list[EpilogueStep]
    arrays: list[tuple[Any, Axes | None]]
    blocks: dict[str, str]
    leading: dict[str, Any]
    moved: tuple[tuple[int, ...], ...]


def _steps(o: MatmulOptions, shape: tuple[int, ...], depth: int) -> _Steps:
    """The steps of a call. Raises `BadCallArgument`, `BadCallValue`."""
    arrays: list[tuple[Any, Axes | None]] = []
    blocks = {"a_scale": "", "b_scale": ""}
    outer: dict[str, Any] = {}

    def axes(name: str, x: Any) -> Axes | None:
        found = _axes(name, x, shape, depth)
        assert not isinstance(found, str)
        arrays.append((x, found))
        return found

    first, rest = o.items()
    own: list[list[EpilogueStep]] = []
    moved: list[tuple[int, ...]] = []
    forms: list[dict[str, str]] = []
    place = 0
    for items in first:
        mine, places = list[EpilogueStep](), list[int]()
        forms.append({})
        for name, x in items:
            found = _axes(name, x, shape, depth)
            if isinstance(found, str):
                blocks[name], forms[-1][name], own_outer = found, found, tuple(x.shape[:-2])
                outer[name] = own_outer if outer.setdefault(name, own_outer) == own_outer else None
                places.append(place)
                leading = tuple(map(str, range(len(shape) - len(x.shape), len(shape) - 2)))
                arrays.append((x, (*leading, "m", "-") if found == "rows" else (*leading, "-", "n")))
            else:
                arrays.append((x, found))
                mine.append(EpilogueStep("add" if name == "bias" else "multiply", (found,)))
            place += 1
        own.append(mine)
        moved.append(tuple(places))
    if forms[0] != forms[-1]:
        raise refuse_shape(*mixed_forms(o.b_scale))
    steps: list[EpilogueStep] = []
    taken = iter(rest)
    if o.c is not None:
        steps.append(EpilogueStep("add", (axes(*next(taken)),)))
    if o.epilogue is not None:
        steps.append(EpilogueStep("function", tuple(axes(*next(taken)) for _ in o.listed), o.epilogue))
    if o.activation is not None:
        steps.append(EpilogueStep("activation", function=o.activation))
    if o.dropout is not None:
        steps.append(EpilogueStep("dropout", tuple(axes(*next(taken)) for _ in range(4))))
    if o.residual is not None:
        steps.append(EpilogueStep("add", (axes(*next(taken)),)))
    if o.absmax:
        steps.append(EpilogueStep("absmax"))
    if o.out_scale is not None:
        steps.append(EpilogueStep("multiply", (axes(*next(taken)),)))
    return _Steps(own, steps, arrays, blocks, outer, tuple(moved))


def _axes(name: str, x: Any, shape: tuple[int, ...], depth: int) -> Axes | str | None:
    """The axes of an operand of a step; None for a number, a word for scales by blocks of K. Raises `BadCallArgument`,
    `BadCallValue`.
    """
    number = "a number, or " if "scale" in name else ""
    if isinstance(x, (int, float, np.generic)):
        if name in ("dropout", "operands") or (number and not isinstance(x, (bool, np.bool_))):
            return None
        raise BadCallArgument(kernel="matmul", what=f"{name} is {of_kind(x)}", hint=f"it is {number}an array")
    check_array(x, name, f"it is {number}an array that broadcasts to {shape[-1:] if name == 'bias' else shape}")
    own = tuple(x.shape)
    if name == "bias" and own != shape[-1:]:
        raise refuse_shape(f"bias is {own}", f"its shape is {shape[-1:]}")
    if "scale" in name and as_dtype(x.dtype) != kd.float32:
        raise LibraryDType(kernel="matmul", what=f"{name} is {as_dtype(x.dtype)}", hint="scales are float32")
    return scale_axes(name, own, shape, depth) if name in ("a_scale", "b_scale") else axes_of(own, shape, name)


def stored(p: Problem, out: Any, flipped: bool) -> Problem:
    """The problem, with facts about the storage of its result."""
    item = p.out_dtype.itemsize
    shape = (*p.batch, p.M, p.N)
    strides, address, given = strides_of(shape), 0, False
    if is_leaf(out):
        own = element_strides(out)
        given = own is not None
        if own is not None:
            strides, address = own[len(own) - len(shape) :], array_address(out)
            strides = (*strides[:-2], strides[-1], strides[-2]) if flipped else strides
    if not why_not_tma(shape, strides, item, address):
        return p
    gapless = not given or strides == strides_of(shape)
    width = math.gcd(p.N * item, address or 16, 16) // item if gapless else 1
    return replace(p, lanes=max(width, 1))


def _by_columns(out: Any) -> bool:
    """Whether the columns of `out` lie one after the other; a single one is as well a column of rows."""
    return is_leaf(out) and len(out.shape) >= 2 and out.shape[-1] != 1 and is_transposed(out)


def _folded(steps: Sequence[EpilogueStep]) -> list[EpilogueStep]:
    """The steps after batch axes became rows."""

    def fold(axes: Axes | None) -> Axes | None:
        return axes if axes is None or "m" not in axes else axes[axes.index("m") :]

    return [replace(s, operands=tuple(fold(axes) for axes in s.operands)) for s in steps]


def _folds(
    a: Any, left: Operand, right: Operand, batch: tuple[int, ...], arrays: list[tuple[Any, Axes | None]], out: Any
) -> bool:
    """Whether all of a is one matrix times one b. Then batch axes become rows, also those of added arrays."""
    if math.prod(right.batch) != 1 or left.batch != batch or not left.along_k or 0 in a.shape:
        return False
    strides = element_strides(a) or strides_of(tuple(a.shape))
    if any(strides[i] != strides[i + 1] * a.shape[i + 1] for i in range(len(a.shape) - 2)):
        return False
    full = (*batch, left.rows)
    for x, axes in arrays:
        if axes is None or set(axes) <= {"n", "-"}:
            if axes is not None and len(axes) > 2:
                return False
            continue
        if tuple(x.shape[:-1]) != full or not _gapless(x):
            return False
    return out is None or (is_leaf(out) and _gapless(out))


def _gapless(x: Any) -> bool:
    strides = element_strides(x)
    return strides is None or strides == strides_of(tuple(x.shape))
