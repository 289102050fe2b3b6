"""Gathers and scatters: every element has a separate address."""

from __future__ import annotations

from collections.abc import Callable

from kernel_dsl.dtypes import DType
from kernel_dsl.extents import Extent
from kernel_dsl.ir import MemorySpace, RefType, layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.ops.atomic import AtomicCas, AtomicRmw
from kernel_dsl.ops.dense import Dense
from kernel_dsl.ops.gather import Gather, Scatter
from kernel_dsl.refs import Access, View, ViewDim, strides_of

from ..context import Context, Rules
from ..lowered import SmemBuffer
from ..value import Regs, V
from .access import AccessPlace, Address, emit_load, emit_store
from .ref import space_of
from .tiled import TiledPlace, make_place


class GatheredElements:
    """Addresses and predicates of a view plus index values along some dimensions."""

    def __init__(self, ctx: Context, op: Gather | Scatter | AtomicRmw | AtomicCas, layout: Layout) -> None:
        self.ctx = ctx
        self.type: RefType = op.ref.type
        self.buffer: SmemBuffer = ctx.buffers[op.ref]
        self.place: AccessPlace = make_place(ctx, self.type, self.buffer, op.view, layout, op.offsets)
        self.op = op
        self.layout = layout
        checked = getattr(op, "checked", None)
        self.checked: bool = self.type.space is MemorySpace.GMEM if checked is None else checked
        self.columns: list[Regs] = [ctx.regs(i) for i in op.indices]

    def groups(self, access: Access, mask: Regs | None) -> list[list[int]]:
        """Registers that one access fills: neighbours along a slice, whose index values and mask are the same."""
        columns = [*self.columns, *([] if mask is None else [mask])]
        width = self.place.width(access)
        while width > 1:
            found = self.place.groups(width, access.minor)
            if all(len({column[i] for i in group}) == 1 for group in found for column in columns):
                return found
            width //= 2
        return [[register] for register in range(self.layout.registers)]

    def at(self, register: int) -> tuple[Address, V | None]:
        """(address, predicate) of one register's element."""
        e, op = self.ctx.e, self.op
        coord = self.layout.register_coords[register]
        known: dict[int, V] = {}

        def index(number: int) -> V:
            if number not in known:
                signed = op.indices[number].type.dtype.is_signed
                known[number] = self.columns[number][register].resized("i64", signed)
            return known[number]

        predicate = self.place.padding(coord)
        for number in range(len(self.place.limits)):
            predicate = e.both(predicate, self._inside(number, coord, index))
        tiled = isinstance(self.place, TiledPlace)
        name, constant = (e.i32(0), 0) if tiled else self.place.address(coord)
        extra: dict[int, V] = {}
        item = self.type.dtype.itemsize
        for number, walk in enumerate(op.walks):
            here = index(number)
            if self.checked:
                predicate = e.both(predicate, here.below(self._end(walk.size)))
            if walk.axis < 0:
                continue
            if tiled:
                moved = here.trunc("i32") * walk.step
                extra[walk.axis] = extra[walk.axis] + moved if walk.axis in extra else moved
                continue
            stride = self.buffer.strides[walk.axis]
            step = walk.step * item
            moved = here.times(stride * step) if isinstance(stride, int) else here.times(stride).times(step)
            name += moved.trunc(name.type)
        if isinstance(self.place, TiledPlace):
            name = self.place.indexed(coord, extra)
        return (name, constant), predicate

    def _end(self, extent: int | Extent) -> int | V:
        return self.ctx.extent(extent) if isinstance(extent, Extent) else extent

    def _inside(self, number: int, coord: tuple[int, ...], index: Callable[[int], V]) -> V | None:
        """Whether an element is inside a limit of the view. Index values may also step along the limit."""
        limit, _ = self.place.limits[number]
        dims, walks = self.op.view.dims, self.op.walks
        own = limit.steps[len(dims) :] if limit.axis < 0 else [w.step if w.axis == limit.axis else 0 for w in walks]
        if not any(own):
            return self.place.inside(number, coord)
        here = self.place.limit_start(number)
        for walk, step in enumerate(own):
            if step:
                here = here.plus(index(walk) * step)
        for dim, step in enumerate(self.op.view.steps(limit)[: len(dims)]):
            if step and dims[dim].size > 1:
                lane = self.ctx.lane_coord(self.layout, dim).plus(coord[dim])
                here = here.plus(lane.sext("i64").times(step))
        result = here.lt(self._end(limit.high)) if limit.high is not None else None
        return result if limit.low is None else self.ctx.e.both(result, here.ge(limit.low))


def lower_gather(ctx: Context, op: Gather) -> None:
    layout = layout_of(op.result)
    elements = GatheredElements(ctx, op, layout)
    type: RefType = op.ref.type
    dtype = type.dtype
    pure = type.space is MemorySpace.GMEM and not type.written
    space = space_of(ctx, op.ref, loading=True)
    mask = ctx.regs(op.mask) if op.mask is not None else None
    fill = ctx.regs(op.fill) if op.fill is not None else None
    names: dict[int, V] = {}
    for group in elements.groups(op.access, mask):
        address, predicate = elements.at(group[0])
        if mask is not None:
            predicate = ctx.e.both(predicate, mask[group[0]])
        if predicate == "false":
            loaded = [ctx.e.literal(0, dtype)] * len(group)
        else:
            loaded = emit_load(ctx, space, address, dtype, len(group), predicate, pure)
        for register, name in zip(group, loaded, strict=True):
            if fill is not None and predicate is not None:
                name = predicate.where(name, fill[register])
            names[register] = name
    ctx.values[op.result] = [names[register] for register in range(layout.registers)]


def lower_scatter(ctx: Context, op: Scatter) -> None:
    layout = layout_of(op.x)
    elements = GatheredElements(ctx, op, layout)
    space = space_of(ctx, op.ref, loading=False)
    mask = ctx.regs(op.mask) if op.mask is not None else None
    owner = ctx.owner(layout)
    for register, name in enumerate(ctx.regs(op.x)):
        address, predicate = elements.at(register)
        predicate = ctx.e.both(owner, predicate)
        if mask is not None:
            predicate = ctx.e.both(predicate, mask[register])
        if predicate != "false":
            emit_store(ctx, space, address, op.ref.type.dtype, [name], predicate)


def lower_dense(ctx: Context, op: Dense) -> None:
    """The data becomes a constant array in global memory; each lane reads its elements."""
    layout = layout_of(op.result)
    dtype: DType = op.result.type.dtype
    shape: tuple[int, ...] = op.result.type.shape
    name = ctx.text(op.data.tobytes(), alignment=16)
    address = ctx.e.pre(f"ptrtoint ptr addrspace(1) {name} to i64", "i64")
    type = RefType(MemorySpace.GMEM, shape, dtype, written=False)
    view = View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))
    place = AccessPlace(ctx, type, SmemBuffer(address, strides_of(shape)), view, layout, ())
    out: Regs = []
    for coord in layout.register_coords:
        predicate = place.padding(coord)
        if predicate == "false":
            out.append(ctx.e.literal(0, dtype))
        else:
            out += emit_load(ctx, "global", place.address(coord), dtype, 1, predicate, pure=True)
    ctx.values[op.result] = out


RULES: Rules = {Gather: lower_gather, Scatter: lower_scatter, Dense: lower_dense}
