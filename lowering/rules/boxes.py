"""How a copy is cut into TMA boxes: each a dense block of SMEM and a box of the array (PTX ISA 5.5.2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from kernel_dsl.compiled import OobFill, Swizzle, TensorMapParam
from kernel_dsl.errors_hopper import TmaRule
from kernel_dsl.extents import factor_of, is_fixed
from kernel_dsl.ir import RefType, Value
from kernel_dsl.refs import View, strides_of
from kernel_dsl.source import Loc
from kernel_dsl.storage import storage_of
from kernel_dsl.tma import COORDINATE_END, MARGIN, MAX_BOX, MAX_RANK, SMEM_UNIT, UNIT, period

MANY = 8  # with more boxes than this, one bulk copy is better if it is possible


@dataclass(frozen=True)
class CopyBox:
    """One TMA instruction: its tensor map, its start along each array axis, and its offset in SMEM in bytes."""

    extents: tuple[int, ...]  # along the array's axes in `order`
    start: tuple[int, ...]  # along the array's axes, added to the view's start
    smem: int


@dataclass(frozen=True)
class Cut:
    """A copy as boxes. `order`: the array's axes in the order of the tensor map, outermost first."""

    order: tuple[int, ...]
    boxes: tuple[CopyBox, ...]
    bytes: int


@dataclass(frozen=True)
class CopyDim:
    """A dimension of the copied block: the array's axis, the buffer's axis, its extent."""

    array: int
    buffer: int
    size: int


class Refuse:
    """Raises `TmaRule` for one copy."""

    def __init__(self, op: str, loc: Loc) -> None:
        self.op: str = op
        self.loc: Loc = loc

    def __call__(self, what: str, why: str, hint: str) -> TmaRule:
        return TmaRule(op=self.op, loc=self.loc, what=what, why=why, hint=hint)


def pair_dims(gmem: View, smem: View, refuse: Refuse) -> list[CopyDim]:
    """The block's dimensions, outermost in SMEM first. Raises `TmaRule` for strided slices."""
    for view, word in ((gmem, "source or destination in GMEM"), (smem, "SMEM side")):
        if any(d.step != 1 or d.axis < 0 for d in view.dims):
            raise refuse(f"the {word} is a strided slice", "TMA copies neighbours", "slice with stride 1")
        axes = [d.axis for d in view.dims]
        if len(set(axes)) != len(axes):
            raise refuse(f"the {word} splits an axis", "a reshaped Ref is not a box", "copy before reshaping")
    dims = [CopyDim(g.axis, s.axis, g.size) for g, s in zip(gmem.dims, smem.dims, strict=True)]
    return sorted(dims, key=lambda d: d.buffer)


def check_alignment(type: RefType, view: View, offsets: Sequence[Value], refuse: Refuse) -> None:
    """Raise `TmaRule` unless the start of the SMEM side is provably aligned for TMA; also for a single element."""
    if not view.dims:
        raise _no_inner((), type, refuse)
    storage, item = storage_of(type), type.dtype.itemsize
    unit = max(period(type.swizzle), SMEM_UNIT)
    dynamic = view.moving(offsets)
    for axis, static in enumerate(view.start):
        facts = dynamic[axis].facts if axis in dynamic else None
        divisors = [static] + ([facts.divisor if facts is not None else 1] if axis in dynamic else [])
        for start in divisors:
            if axis == len(view.start) - 1 and storage.paneled:
                bad = start % storage.panel
            else:
                bad = start * storage.strides[axis] * item % unit
            if bad:
                why = f"this slice of axis {axis} starts at a multiple of {start} elements"
                hint = "slice whole tiles, or promise with `kd.multiple_of` what the start is a multiple of"
                raise refuse(f"the SMEM slice must start at a multiple of {unit} bytes", why, hint)


def _chunks(size: int, stride: int) -> list[tuple[int, int]]:
    """(start, extent) of boxes of at most 256 elements, of equal size if possible.

    `stride`: bytes of SMEM from one element to the next; every box starts at an address that TMA may write.
    """
    count = -(-size // MAX_BOX)
    step = size // count if size % count == 0 else MAX_BOX
    if step * stride % SMEM_UNIT:
        step = MAX_BOX
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def cut(array: RefType, type: RefType, dims: Sequence[CopyDim], refuse: Refuse) -> Cut:
    """Boxes for copying a block of `array` to or from a view of a buffer of `type`."""
    item = array.dtype.itemsize
    storage = storage_of(type)
    rank = len(array.shape)
    if not 1 <= rank <= MAX_RANK:
        hint = "pass a reshaped array, or slice fewer axes"
        raise refuse(f"an array of rank {rank}", f"TMA takes 1 to {MAX_RANK} dimensions", hint)
    last = len(type.shape) - 1
    inner = next((d for d in dims if d.buffer == last), None)
    unit_axis = rank - 1 if array.contiguous else None
    if inner is None:
        raise _no_inner(dims, array, refuse)
    if unit_axis is not None and inner.array != unit_axis and array.shape[unit_axis] != 1:
        why = (
            "the buffer's last axis would walk an array axis whose elements are not neighbours; TMA does not transpose"
        )
        raise refuse("the copy would transpose the array", why, "keep the array's last axis last, and read `buffer.T`")
    inner_chunks = _inner_chunks(inner, type, refuse)
    joined, looped = _joined(inner, len(inner_chunks), type, dims)
    order = _order(rank, [d.array for d in looped], [d.array for d in joined])
    # (dim, start, extent) choices of each dimension, loops outermost
    choices: list[list[tuple[CopyDim, int, int]]] = [[(d, i, 1) for i in range(d.size)] for d in looped]
    # panels are farther apart than rows: they loop outside
    choices += [
        [(d, s, n) for s, n in (inner_chunks if d is inner else _chunks(d.size, storage.strides[d.buffer] * item))]
        for d in joined
    ]
    boxes: list[CopyBox] = []
    for picked in itertools.product(*choices):
        start = [0] * rank
        extents = [1] * rank
        offset = 0
        for d, s, n in picked:
            start[d.array], extents[d.array] = s, n
            if d is inner and storage.paneled:
                offset += s // storage.panel * storage.panel_stride + s % storage.panel
            else:
                offset += s * storage.strides[d.buffer]
        if offset * item % SMEM_UNIT:
            what = f"parts of this copy would start at byte {offset * item} of the buffer"
            why = f"TMA writes SMEM at multiples of {SMEM_UNIT} bytes"
            raise refuse(what, why, f"make rows of the buffer a multiple of {SMEM_UNIT} bytes, or copy whole rows")
        boxes.append(CopyBox(tuple(extents[a] for a in order), tuple(start), offset * item))
    return Cut(order, tuple(boxes), prod(d.size for d in dims) * item)


def _inner_chunks(inner: CopyDim, type: RefType, refuse: Refuse) -> list[tuple[int, int]]:
    """(start, extent) of boxes along the last axis of a buffer of `type`: whole panels, or parts of a row."""
    storage, item = storage_of(type), type.dtype.itemsize
    chunks = _chunks(inner.size, item)
    if storage.paneled:
        width = storage.panel
        if inner.size % width:
            what = f"the slice has {inner.size} columns of a buffer tiled by {width}"
            raise refuse(what, "a copy moves whole tiles", f"slice a multiple of {width} columns")
        chunks = [(s + a, n) for s in range(0, inner.size, width) for a, n in _chunks(width, item)]
    elif type.swizzle is not Swizzle.NONE and inner.size != storage.panel:
        what = f"the slice has {inner.size} of {storage.panel} swizzled columns"
        raise refuse(what, "a swizzled row is copied whole", "slice whole rows")
    if any(n * item % UNIT for _, n in chunks):
        what = f"rows of {inner.size} {type.dtype} elements"
        raise refuse(what, f"TMA moves multiples of {UNIT} bytes along the last axis", "pad the block's last dimension")
    return chunks


def _joined(inner: CopyDim, chunks: int, type: RefType, dims: Sequence[CopyDim]) -> tuple[list[CopyDim], list[CopyDim]]:
    """The dimensions that a box covers, and those that are looped over: a box's elements are neighbours in the buffer."""
    storage, last = storage_of(type), len(type.shape) - 1
    whole = chunks == 1 or (storage.paneled and storage.panel <= MAX_BOX)
    whole = whole and (storage.paneled or inner.size == type.shape[last])
    joined, looped = [inner], list[CopyDim]()
    by_axis = {d.buffer: d for d in dims}
    for axis in reversed(range(last)):
        d = by_axis.get(axis)
        if d is None:
            whole = whole and type.shape[axis] == 1
            continue
        (joined if whole and len(joined) < MAX_RANK else looped).insert(0, d)
        whole = whole and d.size == type.shape[axis] and d.size <= MAX_BOX
        # rows of several panels: the next axis lies beyond the last panel
        whole = whole and not (storage.paneled and axis == last - 1)
    return joined, looped


def _no_inner(dims: Sequence[CopyDim], type: RefType, refuse: Refuse) -> TmaRule:
    what = f"one {type.dtype} element a row" if dims else "a single element"
    return refuse(what, f"TMA moves multiples of {UNIT} bytes along the last axis", "use a load and a store")


def _order(rank: int, looped: list[int], joined: list[int]) -> tuple[int, ...]:
    rest = [a for a in range(rank) if a not in looped and a not in joined]
    return (*rest, *looped, *joined)


def check_array(array: RefType, refuse: Refuse) -> None:
    """Raise `TmaRule` for a contiguous array that can't have a tensor map."""
    item = array.dtype.itemsize
    if array.alignment % UNIT:
        why = f"the array is aligned to {array.alignment} bytes here"
        raise refuse(f"TMA needs an array aligned to {UNIT} bytes", why, "pass an array that starts at such an address")
    if not array.contiguous:
        return  # the launch passes the strides, and checks them
    factors = [factor_of(n) for n in array.shape]
    for extent, stride in zip(array.shape[:-1], strides_of(factors)[:-1], strict=True):
        if (not is_fixed(extent) or extent > 1) and stride * item % UNIT:
            why = f"rows of {array.dtype}{list(array.shape)} are {stride * item} bytes apart"
            hint = f"pad the last axis to a multiple of {UNIT // item} elements, or copy with a load and a store"
            if not all(map(is_fixed, array.shape[1:])):
                why = f"rows of {array.dtype}{list(array.shape)} are known to be a multiple of {stride * item} bytes apart"
                hint = f"declare a `kd.Dim(..., multiple_of={max(UNIT // item, 1)})`, or copy with a load and a store"
            raise refuse(f"TMA needs strides that are multiples of {UNIT} bytes", why, hint)


def window_ends(array: RefType, view: View) -> dict[int, tuple[int, int]]:
    """The limits (first, past the last) of a view along the axes of its array, where a copy may exceed them."""
    return {
        limit.axis: (limit.low or 0, cast("int", array.shape[limit.axis] if limit.high is None else limit.high))
        for limit in view.masked
        if limit.axis >= 0
    }


def window(array: RefType, view: View, unit_axis: int | None, refuse: Refuse) -> dict[int, tuple[int, int]]:
    """The part of the array that the tensor covers, along axes on which a copy of this view ends before the array.
    `unit_axis`: the innermost axis, along which a tensor must start at multiples of 16 bytes. Raises `TmaRule` for ends
    that no tensor can have.
    """
    if any(limit.axis < 0 for limit in view.masked):
        what = "it may leave a view that is no box of the array, or whose end is known only at run time"
        mode = "by `oob_mode=kd.OOBFillMode.PROMISE_IN_BOUNDS`, or " if refuse.op == "copy_gmem_to_smem" else ""
        hint = (
            "state a multiple of its start by `kd.multiple_of`, or promise that it stays inside: "
            f'{mode}for the kernel by `kd.CompilerParams(bounds="promise")`'
        )
        raise refuse(what, "TMA masks only at the ends of a box of the array", hint)
    out: dict[int, tuple[int, int]] = {}
    for axis, (low, high) in window_ends(array, view).items():
        if axis == unit_axis and low * array.dtype.itemsize % UNIT:
            low = 0  # see `Start.least`
        if (low, high) != (0, array.shape[axis]):
            if not is_fixed(high):
                what, why = f"a view that begins at {low} of axis {axis}", "its end is known at the launch only"
                raise refuse(what, why, "copy from the array as it is, or read the extent by `kd.specialise`")
            out[axis] = low, high
    return out


def far_start(array: RefType, axis: int, window: tuple[int, int], bounds: tuple[int, int], refuse: Refuse) -> bool:
    """Whether a start may exceed 32 signed bits, so that it must be clamped to a near one. Raises `TmaRule`."""
    low, high = (b - window[0] for b in bounds)
    if low >= -COORDINATE_END and high < COORDINATE_END:
        return False
    if not is_fixed(window[1]):  # `settle` refuses longer axes
        return True
    if window[1] - window[0] > COORDINATE_END - MARGIN:
        what = f"axis {axis} of the array has {array.shape[axis]} elements, and the copy may start beyond 2**31"
        raise refuse(
            what, "the coordinates of TMA are signed 32-bit integers", "give the launch an array of shorter axes"
        )
    return True


def tensor_map(
    number: int,
    array: RefType,
    pieces: Cut,
    box: CopyBox,
    swizzle: Swizzle,
    fill: OobFill,
    window: dict[int, tuple[int, int]],
) -> TensorMapParam:
    """The descriptor's recipe for a box."""
    parts = tuple((axis, *ends) for axis, ends in sorted(window.items()))
    return TensorMapParam(number, array.dtype, box.extents, swizzle, fill, pieces.order, window=parts, l2_promotion=256)


def contiguous_run(array: RefType, type: RefType, gmem: View, smem: View) -> bool:
    """Whether both sides are one run of bytes in the same order, so that one bulk copy is enough."""
    if not array.contiguous or type.swizzle is not Swizzle.NONE or storage_of(type).paneled:
        return False
    return _one_run(array.shape, gmem) and _one_run(type.shape, smem)


def _one_run(shape: tuple[int, ...], view: View) -> bool:
    axes = [d.axis for d in view.dims]
    if axes != sorted(axes) or len(set(axes)) != len(axes) or any(d.step != 1 for d in view.dims):
        return False
    sizes = {d.axis: d.size for d in view.dims}
    partial = False
    for axis in range(len(shape)):
        size = sizes.get(axis, 1)
        if partial and size != shape[axis]:
            return False
        partial = partial or size != 1
    return True
