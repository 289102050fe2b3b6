"""Rearrangements through SMEM: every element is written once, all lanes meet, and each reads what it is to hold.

Where the elements are more than the exchange space can hold, they go through it a window at a time: in each, only the
elements whose place lies in the window are written and read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, Value, layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.refs import View, strides_of

from ..context import Buffer, Context
from ..emit import Regs, literal, llvm_type
from .access import Place, emit_load, emit_store, inside


@dataclass(frozen=True)
class Window:
    """`size` bytes at `base` (i32), which hold the places from `low` on. `whole`: that is all of them."""

    base: str
    low: int
    size: int
    whole: bool

    def at(self, ctx: Context, offset: str, constant: int) -> tuple[tuple[str, int], str | None]:
        """The address of place `offset + constant`, and whether it lies in the window (None: always)."""
        e = ctx.e
        if self.whole:
            return (self.base if offset == "0" else e.v(f"add i32 {self.base}, {offset}"), constant), None
        moved = e.v(f"add i32 {offset}, {constant - self.low}")
        return (e.v(f"add i32 {self.base}, {moved}"), 0), e.v(f"icmp ult i32 {moved}, {self.size}")


def windows(ctx: Context, total: int, unit: int = 16) -> Iterator[Window]:
    """Windows over `total` bytes, each a number of whole units. Between two of them the lanes need not meet."""
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
    """Write and read a window at a time; a register keeps what it read in the one window where it found it."""
    out: Regs = []
    for window in windows(ctx, total):
        write(window)
        ctx.sync()
        found = read(window)
        out = [r.onto(ctx, old) for r, old in zip(found, out or [""] * len(found), strict=True)]
    return out


@dataclass(frozen=True)
class Read:
    """A register read from a window where `within` holds (None: for certain)."""

    name: str
    within: str | None
    dtype: DType

    def onto(self, ctx: Context, old: str) -> str:
        """This register where it was in the window, else what there was before."""
        if self.within is None or not old:
            return self.name
        t = llvm_type(self.dtype)
        return ctx.e.v(f"select i1 {self.within}, {t} {self.name}, {t} {old}")


def write_elements(
    ctx: Context, window: Window, names: Regs, layout: Layout, dtype: DType, shape: tuple[int, ...],
    strides: Sequence[int], offset: int = 0,
) -> None:  # fmt: skip
    """Every element of a value once, at place `offset + sum of index * stride` (bytes)."""
    lane = ctx.lane_sum([(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None])
    owner = ctx.owner(layout)
    for name, coord in zip(names, layout.register_coords, strict=True):
        predicate = owner
        for dim, size in enumerate(shape):
            predicate = ctx.e.both(predicate, inside(ctx, layout, dim, size, coord[dim]))
        if predicate != "false":
            constant = offset + sum(c * s for c, s in zip(coord, strides, strict=True))
            address, within = window.at(ctx, lane, constant)
            emit_store(ctx, "shared", address, dtype, [name], ctx.e.both(predicate, within))


def write_value(ctx: Context, window: Window, value: Value, strides: Sequence[int], offset: int = 0) -> None:
    """`write_elements` of a lowered value."""
    write_elements(
        ctx, window, ctx.regs(value), layout_of(value), value.type.dtype, value.type.shape, strides, offset
    )  # fmt: skip


def read_view(
    ctx: Context, window: Window, dtype: DType, root: tuple[int, ...], view: View, offsets: Sequence[Value],
    layout: Layout, fill: Regs | None = None, strides: Sequence[int] | None = None,
) -> list[Read]:  # fmt: skip
    """The elements of a view of what lies with shape `root`; `strides` in elements, row-major where not given."""
    type = RefType(MemorySpace.SMEM, root, dtype)
    start = window.base if window.whole else "0"
    place = Place(ctx, type, Buffer(start, tuple(strides or strides_of(root))), view, layout, offsets)
    t = llvm_type(dtype)
    out: list[Read] = []
    for index, coord in enumerate(layout.register_coords):
        predicate = ctx.e.both(place.padding(coord), place.bounds(coord))
        other = fill[index] if fill is not None else literal(0, dtype)
        if predicate == "false":
            out.append(Read(other, None, dtype))
            continue
        address, within = place.address(coord), None
        if not window.whole:
            address, within = window.at(ctx, *address)
        (name,) = emit_load(ctx, "shared", address, dtype, 1, ctx.e.both(predicate, within), pure=False)
        if fill is not None and predicate is not None:
            name = ctx.e.v(f"select i1 {predicate}, {t} {name}, {t} {other}")
            # what lies outside the view is the fill in every window
        out.append(Read(name, within, dtype))
    return out


def through_smem(ctx: Context, names: Regs, dtype: DType, shape: tuple[int, ...], old: Layout, new: Layout) -> Regs:
    """Registers of one layout as registers of another."""
    from kernel_dsl.refs import ViewDim

    item = dtype.itemsize
    stored = shape
    if len(shape) > 1 and shape[-1] * item % 128 == 0:  # rows start in neighbouring banks, not all in the first
        stored = (*shape[:-1], shape[-1] + max(4 // item, 1))
    strides = strides_of(stored)
    view = View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))
    return pass_through(
        ctx,
        prod(stored) * item,
        lambda w: write_elements(ctx, w, names, old, dtype, shape, [s * item for s in strides]),
        lambda w: read_view(ctx, w, dtype, shape, view, (), new, strides=strides),
    )
