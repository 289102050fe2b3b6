"""Memory access: addresses, masks and vector widths for the elements of a view in a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, Value
from kernel_dsl.layout import Layout
from kernel_dsl.refs import Access, View
from kernel_dsl.view import Limit

from ..context import Buffer, Context
from ..emit import Regs, llvm_type

# Constraint letters and types by bytes of an access's part (LLVM: NVPTX inline assembly constraints)
_WORD = {1: ("h", "i16", "b8"), 2: ("h", "i16", "b16"), 4: ("r", "i32", "b32"), 8: ("l", "i64", "b64")}


def index64(ctx: Context, value: Value) -> str:
    """A rank-0 integer as i64."""
    dtype: DType = value.type.dtype
    name = ctx.scalar(value)
    if dtype.bits == 64:
        return name
    return ctx.e.v(f"{'sext' if dtype.is_signed else 'zext'} i{dtype.bits} {name} to i64")


@dataclass
class Place:
    """A view in a layout, lowered: the lane's own address, each register's constant, and predicates."""

    ctx: Context
    type: RefType
    buffer: Buffer
    view: View
    layout: Layout
    offsets: Sequence[Value]

    def __post_init__(self) -> None:
        self._cache: dict[object, str | None] = {}
        self._uniform: dict[int, str] = {}
        self.limits: list[tuple[Limit, Value | None]] = self.view.limits(self.offsets)
        dynamic = self.view.moving(self.offsets)
        for axis in range(len(self.view.start)):
            static = self.view.start[axis]
            if axis in dynamic:
                name = index64(self.ctx, dynamic[axis])
                self._uniform[axis] = self.ctx.e.v(f"add i64 {name}, {static}") if static else name
            else:
                self._uniform[axis] = str(static)
        self._address = self._make_address()

    # --- addresses --------------------------------------------------------------------------------

    def _dim_strides(self) -> list[int | str]:
        """Bytes that one step along each dimension of the view moves."""
        e = self.ctx.e
        item = self.type.dtype.itemsize
        out: list[int | str] = []
        for d in self.view.dims:
            if d.axis < 0:
                out.append(0)
                continue
            stride = self.buffer.strides[d.axis]
            if isinstance(stride, int):
                out.append(stride * d.step * item)
            else:
                out.append(e.v(f"mul i64 {stride}, {d.step * item}"))
        return out

    def _make_address(self) -> str:
        """The byte address of the lane's first element."""
        e = self.ctx.e
        item = self.type.dtype.itemsize
        self.strides: list[int | str] = self._dim_strides()
        total = "0"

        def plus(a: str, b: str) -> str:
            if "0" in (a, b):
                return b if a == "0" else a
            return e.v(f"add i64 {a}, {b}")

        constant = 0
        for axis, start in self._uniform.items():
            stride = self.buffer.strides[axis]
            if isinstance(stride, int):
                if start.lstrip("-").isdigit():
                    constant += int(start) * stride * item
                    continue
                total = plus(total, e.v(f"mul i64 {start}, {stride * item}") if stride * item != 1 else start)
            elif start != "0":
                total = plus(total, e.v(f"mul i64 {e.v(f'mul i64 {start}, {item}')}, {stride}"))
        terms: list[tuple[int, int]] = []
        reach = 0
        for dim, stride in enumerate(self.strides):
            bits = [(i, b[1]) for i, b in enumerate(self.layout.bits) if b is not None and b[0] == dim]
            if isinstance(stride, int):
                terms += [(i, weight * stride) for i, weight in bits]
                reach += sum(weight * abs(stride) for _, weight in bits)
            elif bits:
                lane = e.v(f"zext i32 {self.ctx.lane_coord(self.layout, dim)} to i64")
                total = plus(total, e.v(f"mul i64 {lane}, {stride}"))
        if constant:
            total = plus(total, str(constant))
        lane_part = self._lane_bytes(terms, reach)
        if self.type.space is MemorySpace.SMEM:
            base = self.buffer.address
            if total != "0":
                base = e.v(f"add i32 {base}, {e.v(f'trunc i64 {total} to i32')}")
            return base if lane_part == "0" else e.v(f"add i32 {base}, {lane_part}")
        address = plus(self.buffer.address, total)
        return address if lane_part == "0" else plus(address, lane_part)

    def _lane_bytes(self, terms: list[tuple[int, int]], reach: int) -> str:
        """The lane's share of the address: i32 in SMEM, i64 in GMEM."""
        if not any(weight for _, weight in terms):
            return "0"
        e = self.ctx.e
        if reach >= 1 << 31:  # 64-bit extents: each bit's weight on its own
            total = "0"
            for bit, weight in terms:
                lane = e.pre(f"zext i32 {self.ctx.bit_field(bit, 1)} to i64")
                part = e.pre(f"mul i64 {lane}, {weight}")
                total = part if total == "0" else e.pre(f"add i64 {total}, {part}")
            return total
        name = self.ctx.lane_sum(terms)
        return name if self.type.space is MemorySpace.SMEM else e.pre(f"sext i32 {name} to i64")

    def address(self, coord: tuple[int, ...]) -> tuple[str, int]:
        """(register, constant) whose sum is the byte address of the element with this register share."""
        constant = 0
        name = self._address
        for dim, stride in enumerate(self.strides):
            if isinstance(stride, int):
                constant += coord[dim] * stride
            elif coord[dim]:
                name = self.ctx.e.v(f"add i64 {name}, {self.ctx.e.v(f'mul i64 {stride}, {coord[dim]}')}")
        if not -(1 << 23) < constant < 1 << 23:  # the immediate of a SASS access has 24 bits
            wide = "i32" if self.type.space is MemorySpace.SMEM else "i64"
            return self.ctx.e.v(f"add {wide} {name}, {constant}"), 0
        return name, constant

    def start(self, axis: int) -> str:
        """Where the view starts along a root axis, i64."""
        return self._uniform[axis]

    def forget(self) -> None:
        """Drop predicates computed in a block that does not dominate what follows."""
        self._cache.clear()

    # --- predicates -------------------------------------------------------------------------------

    def padding(self, coord: tuple[int, ...]) -> str | None:
        """Whether the element lies inside the value's shape; None: always."""
        result: str | None = None
        for dim, size in enumerate(self.view.shape):
            result = self.ctx.e.both(result, inside(self.ctx, self.layout, dim, size, coord[dim]))
        return result

    def bounds(self, coord: tuple[int, ...]) -> str | None:
        """Whether the element lies inside the view and its array; None: proved."""
        result: str | None = None
        for number in range(len(self.limits)):
            result = self.ctx.e.both(result, self.inside(number, coord))
        return result

    def inside(self, number: int, coord: tuple[int, ...]) -> str | None:
        """Whether the element keeps a limit, by its number."""
        limit, _ = self.limits[number]
        steps = self.view.steps(limit)
        share = sum(c * s for c, s in zip(coord, steps, strict=False))
        key = (number, share)
        if key not in self._cache:
            terms = [(i, b[1] * steps[b[0]]) for i, b in enumerate(self.layout.bits) if b is not None]
            self._cache[key] = self._predicate(number, [(i, w) for i, w in terms if w], share)
        return self._cache[key]

    def _predicate(self, number: int, terms: list[tuple[int, int]], share: int) -> str | None:
        e, limit = self.ctx.e, self.limits[number][0]
        result: str | None = None
        wide = sum(abs(w) for _, w in terms) + abs(share) >= 1 << 31
        if wide:
            lane = "0"
            for bit, weight in terms:
                one = e.pre(f"mul i64 {e.pre(f'zext i32 {self.ctx.bit_field(bit, 1)} to i64')}, {weight}")
                lane = one if lane == "0" else e.pre(f"add i64 {lane}, {one}")
        else:
            lane = self.ctx.lane_sum(terms)
        t = "i64" if wide else "i32"
        here = e.v(f"add {t} {lane}, {share}") if share else lane
        if limit.high is not None:
            result = e.v(f"icmp slt {t} {here}, {self._room(number, limit.high, wide)}")
        if limit.low is not None:
            result = e.both(result, e.v(f"icmp sge {t} {here}, {self._room(number, limit.low, wide)}"))
        return result

    def _room(self, number: int, end: int, wide: bool) -> str:
        """end - start: what a lane's index must stay below, or not be below; clamped to i32 unless `wide`."""
        key = ("room", number, end, wide)
        if key not in self._cache:
            room = self.ctx.e.v(f"sub i64 {end}, {self.limit_start(number)}")
            self._cache[key] = room if wide else self._clamped(room)
        return self._cache[key] or ""

    def limit_start(self, number: int) -> str:
        """Where the index of a limit starts, i64."""
        limit, value = self.limits[number]
        if limit.axis >= 0:
            return self._uniform[limit.axis]
        if value is None:
            return str(limit.start)
        name = index64(self.ctx, value)
        return self.ctx.e.v(f"add i64 {name}, {limit.start}") if limit.start else name

    def _clamped(self, wide: str) -> str:
        e = self.ctx.e
        low = e.v(f"call i64 @llvm.smax.i64(i64 {wide}, i64 -2147483648)")
        both = e.v(f"call i64 @llvm.smin.i64(i64 {low}, i64 2147483647)")
        return e.v(f"trunc i64 {both} to i32")

    def all_inside(self) -> str | None:
        """A uniform predicate: the whole view lies inside of what it is a view of."""
        e = self.ctx.e
        result: str | None = None
        for number, (limit, _) in enumerate(self.limits):
            steps = [s * (d.size - 1) for s, d in zip(self.view.steps(limit), self.view.dims, strict=False)]
            least, most = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
            start = self.limit_start(number)
            if limit.high is not None:
                last = e.v(f"add i64 {start}, {most}")
                result = e.both(result, e.v(f"icmp slt i64 {last}, {limit.high}"))
            if limit.low is not None:
                first = e.v(f"add i64 {start}, {least}")
                result = e.both(result, e.v(f"icmp sge i64 {first}, {limit.low}"))
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
        """Register numbers, in runs that one access moves."""
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


def inside(ctx: Context, layout: Layout, dim: int, size: int, share: int) -> str | None:
    """Whether a lane's index along a dimension, plus a register's share, is below `size`; None: always."""
    reach = ctx.lane_reach(layout, dim)
    if share + reach < size:
        return None
    if share >= size:
        return "false"
    lane = ctx.lane_coord(layout, dim)
    return ctx.e.pre(f"icmp slt i32 {lane}, {size - share}")


# --- moving registers to and from memory ---------------------------------------------------------


def split_access(item: int, width: int) -> tuple[int, int]:
    """(bytes of a part, parts) of an access of `width` elements of `item` bytes."""
    total = item * width
    part = min(total, 8 if item == 8 else 4)
    return part, total // part


def pack(ctx: Context, names: Sequence[str], dtype: DType, part: int) -> str:
    """The integer of `part` bytes that holds these elements, first element lowest."""
    e = ctx.e
    t = llvm_type(dtype)
    bits = dtype.itemsize * 8
    if t == "i1":
        names, t = [e.v(f"zext i1 {n} to i8") for n in names], "i8"
    if len(names) == 2 and part == 4 and all(n in ctx.words for n in names):
        (a, i), (b, j) = ctx.words[names[0]], ctx.words[names[1]]
        if a == b and (i, j) == (0, 1):
            return a
    if len(names) == 1:
        name = names[0]
        if part == 1:
            return e.v(f"zext i8 {name} to i16")
        return name if t == f"i{bits}" else e.v(f"bitcast {t} {name} to i{bits}")
    vector = "undef"
    for i, name in enumerate(names):
        vector = e.v(f"insertelement <{len(names)} x {t}> {vector}, {t} {name}, i32 {i}")
    return e.v(f"bitcast <{len(names)} x {t}> {vector} to i{part * 8}")


def unpack(ctx: Context, word: str, dtype: DType, count: int, part: int) -> Regs:
    """The elements that an integer of `part` bytes holds."""
    e = ctx.e
    t = llvm_type(dtype)
    boolean = t == "i1"
    t = "i8" if boolean else t
    bits = dtype.itemsize * 8
    if count == 1:
        name = e.v(f"trunc i16 {word} to i8") if part == 1 else word
        names = [name if t == f"i{bits}" else e.v(f"bitcast i{bits} {name} to {t}")]
    else:
        vector = e.v(f"bitcast i{part * 8} {word} to <{count} x {t}>")
        names = [e.v(f"extractelement <{count} x {t}> {vector}, i32 {i}") for i in range(count)]
        if not boolean:
            whole = word if part == 4 else e.v(f"zext i16 {word} to i32")
            for i, name in enumerate(names):
                ctx.words[name] = (whole, i)
    return [e.v(f"icmp ne i8 {n}, 0") for n in names] if boolean else names


def emit_load(
    ctx: Context, space: str, address: tuple[str, int], dtype: DType, width: int, predicate: str | None, pure: bool
) -> Regs:
    """One access: `width` elements, zero where the predicate does not hold."""
    part, parts = split_access(dtype.itemsize, width)
    letter, word, suffix = _WORD[part]
    names = ", ".join(f"${i}" for i in range(parts))
    into = f"{{{names}}}" if parts > 1 else names
    vec = f".v{parts}" if parts > 1 else ""
    base, constant = address
    wide, c = ("i32", "r") if "shared" in space else ("i64", "l")
    where = f"[${parts}+{constant}]" if constant else f"[${parts}]"
    instruction = f"ld.{space}{vec}.{suffix} {into}, {where};"
    args = [(wide, base)]
    if predicate is None:
        constraints = ",".join([f"={letter}"] * parts + [c])
    else:
        move = "b16" if part == 1 else suffix
        zeros = " ".join(f"mov.{move} ${i}, 0;" for i in range(parts))
        instruction = f"{zeros} @${parts + 1} {instruction}"
        constraints = ",".join([f"=&{letter}"] * parts + [c, "b"])
        args.append(("i1", predicate))
    if not pure:
        constraints += ",~{memory}"
    words = ctx.e.asm(instruction, constraints, args, [word] * parts, sideeffect=not pure)
    per = max(part // dtype.itemsize, 1)
    return [name for w in words for name in unpack(ctx, w, dtype, per, part)]


def emit_store(
    ctx: Context, space: str, address: tuple[str, int], dtype: DType, names: Sequence[str], predicate: str | None
) -> None:
    """One access: store elements where the predicate holds."""
    part, parts = split_access(dtype.itemsize, len(names))
    letter, word, suffix = _WORD[part]
    per = max(part // dtype.itemsize, 1)
    words = [pack(ctx, names[i : i + per], dtype, part) for i in range(0, len(names), per)]
    operands = ", ".join(f"${i + 1}" for i in range(parts))
    value = f"{{{operands}}}" if parts > 1 else operands
    vec = f".v{parts}" if parts > 1 else ""
    base, constant = address
    wide, c = ("i32", "r") if "shared" in space else ("i64", "l")
    where = f"[$0+{constant}]" if constant else "[$0]"
    guard = "" if predicate is None else f"@${parts + 1} "
    args = [(wide, base)] + [(word, w) for w in words]
    constraints = [c] + [letter] * parts
    if predicate is not None:
        args.append(("i1", predicate))
        constraints.append("b")
    constraints.append("~{memory}")
    ctx.e.asm(f"{guard}st.{space}{vec}.{suffix} {where}, {value};", ",".join(constraints), args)
