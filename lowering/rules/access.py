"""Memory access: addresses, masks and vector widths for the elements of a view in a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_dsl import dtypes as dt
from kernel_dsl import facts
from kernel_dsl.dtypes import DType
from kernel_dsl.extents import Extent
from kernel_dsl.ir import MemorySpace, RefType, Value
from kernel_dsl.layout import Layout
from kernel_dsl.refs import Access, View
from kernel_dsl.view import Limit

from ..context import Context
from ..llvm_types import llvm_type
from ..lowered import SmemBuffer
from ..value import Regs, V
from ..writer import address

# Types of LLVM and of PTX by the bytes of an access's parts
_WORD = {1: ("i16", "b8"), 2: ("i16", "b16"), 4: ("i32", "b32"), 8: ("i64", "b64")}

Address = tuple[V, int]  # a byte address, the sum of both: i32 in SMEM, i64 in GMEM


@dataclass
class AccessPlace:
    """A view in a layout, lowered: the lane's own address, each register's constant, and predicates."""

    ctx: Context
    type: RefType
    buffer: SmemBuffer
    view: View
    layout: Layout
    offsets: Sequence[Value]

    def __post_init__(self) -> None:
        self._cache: dict[object, V | None] = {}
        # by a limit's number: steps of its index along dimensions, and for bits of the lane number
        self._moves: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
        self.limits: list[tuple[Limit, Value | None]] = self.view.limits(self.offsets)
        dynamic = self._dynamic = self.view.moving(self.offsets)
        self._starts: list[V] = []
        for axis, static in enumerate(self.view.start):
            moving = dynamic.get(axis)
            self._starts.append(self.ctx.e.i64(static) if moving is None else self.ctx.index(moving, "i64") + static)
        self._address = self._make_address()

    # --- addresses --------------------------------------------------------------------------------

    def _dim_strides(self) -> list[int | V]:
        """Bytes that one step along each dimension of the view moves."""
        out: list[int | V] = []
        for d in self.view.dims:
            stride, step = self.buffer.strides[d.axis] if d.axis >= 0 else 0, d.step * self.type.dtype.itemsize
            out.append(stride * step if isinstance(stride, int) else stride.times(step))
        return out

    def _make_address(self) -> V:
        """The byte address of the lane's first element."""
        e = self.ctx.e
        item = self.type.dtype.itemsize
        self.strides: list[int | V] = self._dim_strides()
        total, constant = e.i64(0), 0
        for axis, start in enumerate(self._starts):
            stride = self.buffer.strides[axis]
            if isinstance(stride, int) and start.constant is not None:
                constant += start.constant * stride * item
            elif isinstance(stride, int):
                total += start * (stride * item)
            elif start != "0":
                total += start.times(item) * stride
        terms: list[tuple[int, int]] = []
        reach = 0
        for dim, stride in enumerate(self.strides):
            bits = [(i, b[1]) for i, b in enumerate(self.layout.bits) if b is not None and b[0] == dim]
            if isinstance(stride, int):
                terms += [(i, weight * stride) for i, weight in bits]
                reach += sum(weight * abs(stride) for _, weight in bits)
            elif bits:
                total += self.ctx.lane_coord(self.layout, dim).zext("i64") * stride
        total += constant
        base, lane = self.buffer.address, self._lane_bytes(terms, reach)
        if self.type.space is MemorySpace.SMEM:
            if total != "0":
                base = base.plus(total.trunc("i32"))
            return base if lane == "0" else base.plus(lane)
        return base + total + lane

    def _lane_bytes(self, terms: list[tuple[int, int]], reach: int) -> V:
        """The part of the address that depends on the lane: i32 in SMEM, i64 in GMEM."""
        if self.type.space is MemorySpace.SMEM:
            return self.ctx.lane_sum(terms)
        if not any(weight for _, weight in terms):
            return self.ctx.e.i64(0)
        if reach >= 1 << 31:  # 64-bit extents
            return self.ctx.wide_lane_sum(terms)
        return self.ctx.lane_sum(terms).once.sext("i64")

    def address(self, coord: tuple[int, ...]) -> Address:
        """(register, constant) whose sum is the byte address of the element at this register's coordinate."""
        constant = 0
        name = self._address
        for dim, stride in enumerate(self.strides):
            if isinstance(stride, int):
                constant += coord[dim] * stride
            elif coord[dim]:
                name += stride.times(coord[dim])
        if not -(1 << 23) < constant < 1 << 23:  # the immediate of a SASS access has 24 bits
            return name + constant, 0
        return name, constant

    def forget(self) -> None:
        """Drop predicates computed in a block that does not dominate what follows."""
        self._cache.clear()

    # --- predicates -------------------------------------------------------------------------------

    def padding(self, coord: tuple[int, ...]) -> V | None:
        """Whether the element lies inside the value's shape; None: always."""
        return inside_shape(self.ctx, self.layout, self.view.shape, coord)

    def bounds(self, coord: tuple[int, ...]) -> V | None:
        """Whether the element lies inside the view and its array; None: proved."""
        result: V | None = None
        for number in range(len(self.limits)):
            result = self.ctx.e.both(result, self.inside(number, coord))
        return result

    def inside(self, number: int, coord: tuple[int, ...]) -> V | None:
        """Whether the element is inside a limit, by its number."""
        found = self._moves.get(number)
        if found is None:
            steps = self.view.steps(self.limits[number][0])
            bits = [(i, b[1] * steps[b[0]]) for i, b in enumerate(self.layout.bits) if b is not None]
            found = [(dim, step) for dim, step in enumerate(steps) if step], [(i, w) for i, w in bits if w]
            self._moves[number] = found
        steps, terms = found
        share = 0
        for dim, step in steps:
            share += coord[dim] * step
        key = (number, share)
        if key not in self._cache:
            self._cache[key] = self._predicate(number, terms, share)
        return self._cache[key]

    def _predicate(self, number: int, terms: list[tuple[int, int]], share: int) -> V | None:
        limit = self.limits[number][0]
        wide = sum(abs(w) for _, w in terms) + abs(share) >= 1 << 31
        lane = self.ctx.wide_lane_sum(terms) if wide else self.ctx.lane_sum(terms)
        here = lane.plus(share) if share else lane
        result: V | None = None
        if limit.high is not None:
            result = here.lt(self._room(number, limit.high, wide))
        if limit.low is not None:
            result = self.ctx.e.both(result, here.ge(self._room(number, limit.low, wide)))
        return result

    def _room(self, number: int, end: int | Extent, wide: bool) -> V:
        """end - start, the bound of a lane's index, clamped to i32 unless `wide` or if it surely is in i32."""
        key = ("room", number, end, wide)
        found = self._cache.get(key)
        if found is None:
            start, fits = self.limit_start(number), False
            if isinstance(end, int):
                found = end - start  # LLVM finds out whether it is in i32
            else:
                found = self.ctx.extent(end) - start
                fits = not wide and end.most < 1 << 32 and self._room_fits(number, end)
            if not wide:
                found = (found if fits else found.clamp(-(1 << 31), (1 << 31) - 1)).trunc("i32")
            self._cache[key] = found
        return found

    def _room_fits(self, number: int, end: Extent) -> bool:
        """Whether end - start surely is in i32."""
        limit, value = self.limits[number]
        start = limit.start
        if limit.axis >= 0:
            start, value = self.view.start[limit.axis], self._dynamic.get(limit.axis)
        dtype = dt.int64 if value is None else value.type.dtype
        known = facts.of(0) if value is None else facts.certain(value.facts, dtype) or facts.any_of(dtype)
        assert known is not None, "an index is an integer"
        return end.least - known.hi - start >= -(1 << 31) and end.most - known.lo - start < 1 << 31

    def limit_start(self, number: int) -> V:
        """The start of a limit's index, i64."""
        limit, value = self.limits[number]
        if limit.axis >= 0:
            return self._starts[limit.axis]
        if value is None:
            return self.ctx.e.i64(limit.start)
        return self.ctx.index(value, "i64") + limit.start

    def all_inside(self) -> V | None:
        """A uniform predicate: the whole view is inside all of its limits."""
        both = self.ctx.e.both
        result: V | None = None
        for number, (limit, _) in enumerate(self.limits):
            steps = [s * (d.size - 1) for s, d in zip(self.view.steps(limit), self.view.dims, strict=False)]
            start = self.limit_start(number)
            if limit.high is not None:
                end = limit.high if isinstance(limit.high, int) else self.ctx.extent(limit.high)
                result = both(result, start.plus(sum(max(s, 0) for s in steps)).lt(end))
            if limit.low is not None:
                result = both(result, start.plus(sum(min(s, 0) for s in steps)).ge(limit.low))
        return result

    def width(self, access: Access) -> int:
        """Elements that one access moves."""
        if access.minor is None:
            return 1
        run = self.layout.vector_length(access.minor)
        width = 1
        while width * 2 <= access.vector and run % (width * 2) == 0:
            width *= 2
        return width

    def groups(self, width: int, minor: int | None) -> list[list[int]]:
        """Register numbers, in groups that one access moves."""
        if width == 1 or minor is None:
            return [[i] for i in range(self.layout.registers)]
        out: list[list[int]] = []
        for index, coord in enumerate(self.layout.register_coords):
            if coord[minor] % width == 0:
                run = [index]
                for k in range(1, width):
                    moved = tuple(c + k if d == minor else c for d, c in enumerate(coord))
                    run.append(self.layout.register_of[moved])
                out.append(run)
        return out


def inside(ctx: Context, layout: Layout, dim: int, size: int, share: int) -> V | None:
    """Whether a lane's index along a dimension, plus the register's `share`, is below `size`; None: always."""
    reach = sum(b[1] for b in layout.bits if b is not None and b[0] == dim)
    if share + reach < size:
        return None
    if share >= size:
        return ctx.e.value("false", "i1")
    return ctx.lane_coord(layout, dim).once.lt(size - share)


def inside_shape(
    ctx: Context, layout: Layout, shape: Sequence[int], coord: tuple[int, ...], also: V | None = None
) -> V | None:
    """Whether the element at this register's coordinate is inside a value's shape, and `also` holds; None: always."""
    for dim, size in enumerate(shape):
        also = ctx.e.both(also, inside(ctx, layout, dim, size, coord[dim]))
    return also


# --- moving registers to and from memory ---------------------------------------------------------


def split_access(item: int, width: int) -> tuple[int, int]:
    """(bytes of a part, parts) of an access of `width` elements of `item` bytes."""
    total = item * width
    part = min(total, 8 if item == 8 else 4)
    return part, total // part


def together(dtype: DType, count: int) -> int:
    """How many of `count` elements share a register where they stay together: two of 16 bits, four of 8 bits, else one."""
    per = 1 if dtype.is_bool or dtype.bits not in (8, 16) else 32 // dtype.bits
    return per if count % per == 0 else 1


def pack(ctx: Context, names: Sequence[V], dtype: DType, part: int) -> V:
    """The integer of `part` bytes that holds these elements, first element lowest."""
    if len(names) * dtype.bits == 32 and part == 4 and all(n in ctx.words for n in names):
        words = [ctx.words[n] for n in names]
        if all(word == (words[0][0], i) for i, word in enumerate(words)):
            return words[0][0]
    if dtype.is_bool:
        names = [n.zext("i8") for n in names]
    if len(names) > 1:
        return ctx.e.vector(names).bitcast(f"i{part * 8}")
    return names[0].zext("i16") if part == 1 else names[0].bitcast(f"i{dtype.itemsize * 8}")


def unpack(ctx: Context, word: V, dtype: DType, count: int, part: int) -> Regs:
    """The elements that an integer of `part` bytes holds."""
    t = "i8" if dtype.is_bool else llvm_type(dtype)
    if count == 1:
        names = [(word.trunc("i8") if part == 1 else word).bitcast(t)]
    else:
        vector = word.bitcast(f"<{count} x {t}>")
        names = [vector.part(i) for i in range(count)]
        if not dtype.is_bool:
            whole = word.zext("i32") if part < 4 else word
            for i, name in enumerate(names):
                ctx.words[name] = (whole, i)
    return [n.differs(0) for n in names] if dtype.is_bool else names


def listed(first: int, count: int) -> str:
    """Operands of inline PTX from number `first` on; several are a vector."""
    names = ", ".join(f"${first + i}" for i in range(count))
    return names if count == 1 else f"{{{names}}}"


def emit_load(
    ctx: Context, space: str, where: Address, dtype: DType, width: int, predicate: V | None, pure: bool
) -> Regs:
    """One access: `width` elements, or zeros if the predicate does not hold."""
    part, parts = split_access(dtype.itemsize, width)
    word, suffix = _WORD[part]
    vec = f".v{parts}" if parts > 1 else ""
    move = "b16" if part == 1 else suffix
    zeros = " ".join(f"mov.{move} ${i}, 0;" for i in range(parts)) if predicate is not None else ""
    text = f"ld.{space}{vec}.{suffix} {listed(0, parts)}, {address(parts, where[1])};"
    words = ctx.e.ptx(text, where[0], results=[word] * parts, when=predicate, first=zeros, pure=pure)
    per = max(part // dtype.itemsize, 1)
    return [name for w in words for name in unpack(ctx, w, dtype, per, part)]


def emit_store(ctx: Context, space: str, where: Address, dtype: DType, names: Sequence[V], predicate: V | None) -> None:
    """One access: store elements if the predicate holds."""
    words, suffix = words_of(ctx, names, dtype)
    vec = f".v{len(words)}" if len(words) > 1 else ""
    text = f"st.{space}{vec}.{suffix} {address(0, where[1])}, {listed(1, len(words))};"
    ctx.e.ptx(text, where[0], *words, when=predicate)


def words_of(ctx: Context, names: Sequence[V], dtype: DType) -> tuple[Regs, str]:
    """Elements as the words that one access moves, and their type in PTX."""
    part, _ = split_access(dtype.itemsize, len(names))
    per = max(part // dtype.itemsize, 1)
    return [pack(ctx, names[i : i + per], dtype, part) for i in range(0, len(names), per)], _WORD[part][1]
