"""Rearrangements through SMEM: lanes write every element once, meet, and read the elements of the new layout.

If the exchange space can't hold all elements, they pass through it in windows: in each, lanes write and read only the
elements whose place is in the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, Value, layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.refs import View, strides_of

from ..context import Context
from ..lowered import SmemBuffer
from ..value import Regs, V
from .access import AccessPlace, Address, emit_load, emit_store, inside_shape


@dataclass(frozen=True)
class Window:
    """A part of SMEM: `size` bytes at `base` (i32), which hold the places from `low` on. `whole`: they hold all places."""

    base: V
    low: int
    size: int
    whole: bool

    def at(self, ctx: Context, offset: V, constant: int) -> tuple[Address, V | None]:
        """The address of place `offset + constant`, and whether it lies in the window (None: always)."""
        if self.whole:
            return (self.base + offset, constant), None
        moved = offset.plus(constant - self.low)
        return (self.base + moved, 0), moved.below(self.size)


def windows(ctx: Context, total: int, unit: int = 16) -> Iterator[Window]:
    """Windows over `total` bytes, each a number of whole units. No barrier is needed between two windows."""
    room = ctx.exchange_room() // unit * unit
    if total <= room or room == 0:
        yield Window(ctx.exchange(total), 0, total, True)
        return
    for low in range(0, total, room):
        size = min(room, total - low)
        yield Window(ctx.exchange(size), low, size, False)


def pass_through(
    ctx: Context, total: int, write: Callable[[Window], None], read: Callable[[Window], list[Read]]
) -> Regs:
    """Write and read one window at a time. A register keeps its element from the one window that held it."""
    out: Regs = []
    for window in windows(ctx, total):
        write(window)
        ctx.sync()
        found = read(window)
        out = [r.onto(old) for r, old in zip(found, out or [None] * len(found), strict=True)]
    return out


@dataclass(frozen=True)
class Read:
    """A register read from a window; it holds its element if `within` holds (None: always)."""

    name: V
    within: V | None

    def onto(self, old: V | None) -> V:
        """This register if the window held its element, else the earlier one."""
        return self.name if self.within is None or old is None else self.within.where(self.name, old)


def write_elements(
    ctx: Context, window: Window, names: Regs, layout: Layout, dtype: DType, shape: tuple[int, ...],
    strides: Sequence[int], offset: int = 0,
) -> None:  # fmt: skip
    """Write every element of a value once, at place `offset + sum of index * stride` (bytes)."""
    lane = ctx.lane_sum([(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None])
    owner = ctx.owner(layout)
    for name, coord in zip(names, layout.register_coords, strict=True):
        predicate = inside_shape(ctx, layout, shape, coord, owner)
        if predicate != "false":
            constant = offset + sum(c * s for c, s in zip(coord, strides, strict=True))
            where, within = window.at(ctx, lane, constant)
            emit_store(ctx, "shared", where, dtype, [name], ctx.e.both(predicate, within))


def write_value(ctx: Context, window: Window, value: Value, strides: Sequence[int], offset: int = 0) -> None:
    """`write_elements` of a lowered value."""
    write_elements(
        ctx, window, ctx.regs(value), layout_of(value), value.type.dtype, value.type.shape, strides, offset
    )  # fmt: skip


def read_view(
    ctx: Context, window: Window, dtype: DType, root: tuple[int, ...], view: View, offsets: Sequence[Value],
    layout: Layout, fill: Regs | None = None, strides: Sequence[int] | None = None,
) -> list[Read]:  # fmt: skip
    """Read the elements of a view of data of shape `root`; `strides` in elements, by default row-major."""
    type = RefType(MemorySpace.SMEM, root, dtype)
    start = window.base if window.whole else ctx.e.i32(0)
    place = AccessPlace(ctx, type, SmemBuffer(start, tuple(strides or strides_of(root))), view, layout, offsets)
    out: list[Read] = []
    for index, coord in enumerate(layout.register_coords):
        predicate = ctx.e.both(place.padding(coord), place.bounds(coord))
        other = fill[index] if fill is not None else ctx.e.literal(0, dtype)
        if predicate == "false":
            out.append(Read(other, None))
            continue
        where, within = place.address(coord), None
        if not window.whole:
            where, within = window.at(ctx, *where)
        (name,) = emit_load(ctx, "shared", where, dtype, 1, ctx.e.both(predicate, within), pure=False)
        if fill is not None and predicate is not None:
            name = predicate.where(name, other)  # elements outside the view are the fill in every window
        out.append(Read(name, within))
    return out


def through_smem(ctx: Context, names: Regs, dtype: DType, shape: tuple[int, ...], old: Layout, new: Layout) -> Regs:
    """Registers of one layout as registers of another."""
    from kernel_dsl.refs import ViewDim

    item = dtype.itemsize
    stored = shape
    if len(shape) > 1 and shape[-1] * item % 128 == 0:  # padding: else all rows start in the first bank
        stored = (*shape[:-1], shape[-1] + max(4 // item, 1))
    strides = strides_of(stored)
    view = View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))
    return pass_through(
        ctx,
        prod(stored) * item,
        lambda w: write_elements(ctx, w, names, old, dtype, shape, [s * item for s in strides]),
        lambda w: read_view(ctx, w, dtype, shape, view, (), new, strides=strides),
    )
