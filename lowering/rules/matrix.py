"""wgmma: accumulators as named PTX registers, matrix descriptors, and one asm block for each product."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_dsl.accumulator import AccType
from kernel_dsl.compiled import AccumulatorNames, Swizzle
from kernel_dsl.dtypes import DType
from kernel_dsl.errors_hopper import WgmmaShape
from kernel_dsl.ir import RefType, Region, Value, layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.ops.matrix import (
    AccRead,
    AccScale,
    AccWrite,
    AllocAcc,
    SetMaxRegisters,
    SparseWgmma,
    Wgmma,
    WgmmaWait,
    k_step,
    meta_step,
)
from kernel_dsl.refs import View
from kernel_dsl.source import Loc
from kernel_dsl.storage import storage_of

from ..context import Context, Rules
from ..llvm_types import llvm_type
from ..lowered import Accumulator
from ..value import Regs, V
from .access import pack
from .starts import smem_start

PTX_TYPES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
}
_ACC = {"float32": "f32", "float16": "f16", "int32": "s32"}
_PLACE = 0x3FFFF  # PTX ISA 9.7.15.5.1: matrix-descriptor-encode(x) = (x & 0x3FFFF) >> 4
# PTX ISA 9.7.15.5.1: bits 62-63 of a descriptor
_SWIZZLE = {Swizzle.NONE: 0, Swizzle.B128: 1, Swizzle.B64: 2, Swizzle.B32: 3}
ROWS = 64  # rows of one instruction
MAX_N = 256
INTEGER_TAIL = 24


# --- accumulators --------------------------------------------------------------------------------


def lower_alloc(ctx: Context, op: AllocAcc) -> None:
    type: AccType = op.type
    words = type.shape[0] // ROWS * type.shape[1] // 2 * type.dtype.itemsize // 4
    prefix = f"acc{len(ctx.accumulators)}_"
    sliced = any(
        (isinstance(o, Wgmma) and o.shape != type.shape) or (isinstance(o, AccWrite) and o.x.type.shape != type.shape)
        for o in ctx.ops
        if isinstance(o, (Wgmma, AccWrite)) and o.acc is op.result
    )
    ctx.e.pre_do(f'call void asm sideeffect ".reg .b32 {prefix}<{words}>;", ""() #0')
    live = ctx.e.variable("i1")
    made = Accumulator(prefix, words, (type.shape[0], type.shape[1]), live)
    ctx.accumulators[op.result] = made
    name = type.name or f"accumulator {len(ctx.accumulators) - 1}"
    ctx.accumulator_names.append(AccumulatorNames(name, prefix, words, type.shape, type.dtype))
    if sliced:  # slices of the accumulator start at different times, so all registers begin with zeros
        text = " ".join(f"mov.b32 {prefix}{i}, 0;" for i in range(words))
        ctx.e.ptx(text)
    ctx.e.store(ctx.e.value("true" if sliced else "false", "i1"), live)


def _word(acc: Accumulator, dtype: DType, row: int, column: int) -> tuple[int, int]:
    """(register, number of its half) of the element at this row and column of lane 0 of warp 0."""
    columns = acc.shape[1]
    element = row // ROWS * (columns // 2) + column // 8 * 4 + row % ROWS // 8 * 2 + column % 2
    per = 4 // dtype.itemsize
    return element // per, element % per


def lower_read(ctx: Context, op: AccRead) -> None:
    e = ctx.e
    acc = ctx.accumulators[op.acc]
    dtype: DType = op.acc.type.dtype
    layout: Layout = op.layout
    t = llvm_type(dtype)
    words: dict[int, Regs] = {}
    out: Regs = []
    live = e.load("i1", acc.live)
    for row, column in layout.register_coords:
        word, half = _word(acc, dtype, row + op.start[0], column + op.start[1])
        if word not in words:
            whole = "float" if t == "float" else "i32"
            names = e.ptx(f"mov.b32 $0, {acc.prefix}{word};", results=[whole], memory=False)
            if dtype.itemsize == 2:
                pair = names[0].bitcast(f"<2 x {t}>")
                names = [pair.part(0), pair.part(1)]
            words[word] = [live.where(n, "0" if t == "i32" else "0.0") for n in names]
        out.append(words[word][half])
    ctx.values[op.result] = out


def lower_write(ctx: Context, op: AccWrite) -> None:
    acc = ctx.accumulators[op.acc]
    dtype: DType = op.acc.type.dtype
    words: dict[int, dict[int, V]] = {}
    for name, (row, column) in zip(ctx.regs(op.x), layout_of(op.x).register_coords, strict=True):
        word, half = _word(acc, dtype, row + op.start[0], column + op.start[1])
        words.setdefault(word, {})[half] = name
    for word, names in words.items():
        value = pack(ctx, [names[i] for i in sorted(names)], dtype, 4)
        ctx.e.ptx(f"mov.b32 {acc.prefix}{word}, $0;", value)
    ctx.e.store(ctx.e.value("true", "i1"), acc.live)


def lower_scale(ctx: Context, op: AccScale) -> None:
    """One block of PTX, so that the assembler sees its branch and no value crosses it."""
    acc = ctx.accumulators[op.acc]
    # an accumulator that has not started holds nothing to multiply
    live = ctx.e.load("i1", acc.live)
    names = [live.where(n, "1.0") for n in ctx.regs(op.factors)]
    lines = [".reg .pred some, more;", "setp.neu.f32 some, $0, 0f3F800000;"]
    lines += [f"setp.neu.or.f32 some, ${i}, 0f3F800000, some;" for i in range(1, len(names))]
    # all lanes of a warp take the same branch, as wgmma requires
    lines += ["vote.sync.any.pred more, some, 0xffffffff;", "@!more bra done;"]
    for i, (row,) in enumerate(layout_of(op.factors).register_coords):
        for column in range(acc.shape[1] // 4):
            word, _ = _word(acc, op.acc.type.dtype, row, column // 2 * 8 + column % 2)
            lines.append(f"mul.f32 {acc.prefix}{word}, {acc.prefix}{word}, ${i};")
    ctx.e.ptx("{ " + " ".join(lines) + " done: }", *names)


# --- operands ------------------------------------------------------------------------------------


@dataclass
class MatrixOperand:
    """An SMEM operand: the descriptor of its start, and the numbers that steps along M or N and along K add to it."""

    descriptor: V
    transposed: bool
    type: RefType
    mn_start: int
    k_start: int

    def offset(self, mn: int, k: int) -> int:
        """The number to add to the descriptor for element (mn, k), in units of 16 bytes."""
        storage, item = storage_of(self.type), self.type.dtype.itemsize

        def minor(index: int) -> int:
            if not storage.paneled:
                return index * item
            return (index // storage.panel * storage.panel_stride + index % storage.panel) * item

        major, along = (k, mn) if self.transposed else (mn, k)
        start = self.mn_start if self.transposed else self.k_start
        return (minor(start + along) - minor(start) + major * storage.panel * item) // 16


def _operand(ctx: Context, ref: Value, view: View, offsets: tuple[Value, ...], mn: int, loc: Loc) -> MatrixOperand:
    """The descriptor of an operand (PTX ISA 9.7.15.5.1). `mn`: the dimension of the view other than K."""
    type: RefType = ref.type
    storage, item = storage_of(type), type.dtype.itemsize
    span = type.swizzle.value
    last = len(type.shape) - 1
    transposed = view.dims[mn].axis == last
    k_axis, mn_axis = view.dims[1 - mn].axis, view.dims[mn].axis
    _check_start(ref, view, offsets, transposed, loc)
    start = smem_start(ctx, ref, view, offsets)
    inside = view.start[last] % storage.panel * item
    if not storage.paneled:
        inside = 0  # smem_start includes it
    # the 18 bits of an offset in the block's SMEM: in a cluster, the bits above have the block's rank
    field = (start + inside & _PLACE) >> 4
    panels = storage.panel_stride * item >> 4 if transposed and storage.paneled else 1
    # the offsets of the next panel and of the next 8 rows; without a swizzle they are exchanged
    leading, stride = (panels, span * 8 >> 4) if span else (8, panels)
    high = (_SWIZZLE[type.swizzle] << 62) | stride << 32 | leading << 16
    signed = high - (1 << 64) if high >> 63 else high
    return MatrixOperand(field.zext("i64") | signed, transposed, type, view.start[mn_axis], view.start[k_axis])


def _check_start(ref: Value, view: View, offsets: tuple[Value, ...], transposed: bool, loc: Loc) -> None:
    """Raise `WgmmaShape` unless the operand's start is provably aligned for a descriptor."""
    type: RefType = ref.type
    storage, item = storage_of(type), type.dtype.itemsize
    last = len(type.shape) - 1
    dynamic = view.moving(offsets)
    for axis, static in enumerate(view.start):
        facts = dynamic[axis].facts if axis in dynamic else None
        moving = [] if axis not in dynamic else [facts.divisor if facts is not None else 1]
        for start, fixed in [(static, True), *((m, False) for m in moving)]:
            if axis == last:
                # within a row the hardware steps by 32 bytes along K, else by whole panels
                unit = storage.panel if transposed or (storage.paneled and not fixed) else 32 // item
                bad = start % unit
            else:
                bad = start * storage.strides[axis] * item % (max(type.swizzle.value, 16) * 8)
            if bad:
                what = f"an operand starts at a multiple of {start} along axis {axis} of {ref.type}"
                why = "it must start at a whole tile of 8 rows" if axis != last else "it must start at a whole step"
                hint = "slice at multiples of the tile, or promise with `kd.multiple_of`"
                raise WgmmaShape(op="wgmma", loc=loc, what=what, why=why, hint=hint)


# --- products ------------------------------------------------------------------------------------


def _n_parts(n: int, integer: bool, panel: int) -> list[tuple[int, int]]:
    """(start, columns) of the instructions for N columns; each starts at a whole panel of a transposed B.

    PTX ISA 9.7.15.2: integer products have N of 8, 16, 24, and multiples of 16: the odd 24 columns come last.
    """
    if integer and n > INTEGER_TAIL and n % 16:
        return [*_n_parts(n - INTEGER_TAIL, integer, panel), (n - INTEGER_TAIL, INTEGER_TAIL)]
    count = -(-n // MAX_N)
    unit = max(16 if integer and n > 24 else 8, panel)
    size = -(-n // (count * unit)) * unit
    return [(s, min(size, n - s)) for s in range(0, n, size)]


def lower_wgmma(ctx: Context, op: Wgmma) -> None:
    e = ctx.e
    acc = ctx.accumulators[op.acc]
    dtype: DType = op.b.type.dtype
    a_dtype: DType = op.a.type.dtype
    d_dtype: DType = op.acc.type.dtype
    b = _operand(ctx, op.b, op.b_view, op.b_offsets, 1, op.loc)
    depth = op.b_view.dims[0].size
    sparse = isinstance(op, SparseWgmma)
    halved = 2 if sparse else 1  # elements of K in b for one in a
    step = k_step(dtype) * halved
    args = [b.descriptor]
    a: MatrixOperand | None = None
    fragments: Regs = []
    if op.a_view is not None:
        a = _operand(ctx, op.a, op.a_view, op.a_offsets, 0, op.loc)
        args.append(a.descriptor)
    else:
        fragments = _fragment_words(ctx, op.a, a_dtype)
        args += fragments
    marks, form, mark = "", "wgmma.mma_async", len(args)
    words = ctx.regs(op.meta) if isinstance(op, SparseWgmma) else []
    if words:
        form = "wgmma.mma_async.sp"
        args += words
    first = len(args)
    known = _known_live(ctx, op) if op.accumulate else False
    if known is None:
        args.append(e.load("i1", acc.live))
    lines = [".reg .b64 da, db;"]
    kind = f"{_ACC[d_dtype.name]}.{PTX_TYPES[a_dtype.name]}.{PTX_TYPES[dtype.name]}"
    per = 4 // d_dtype.itemsize
    parts = _n_parts(op.shape[1], d_dtype.name == "int32", storage_of(op.b.type).panel if b.transposed else 0)
    scales = ", 1, 1" if d_dtype.name != "int32" else ""
    registers: dict[tuple[int, int], str] = {}  # registers of a part, shared by all steps along K
    for k in range(0, depth, step):
        scale = {None: f"${first}", True: "1", False: "0"}[known] if k == 0 else "1"
        for m in range(0, op.shape[0], ROWS):
            for n, width in parts:
                base = (op.start[0] + m) // ROWS * (acc.shape[1] // 2) + (op.start[1] + n) // 2
                span = base // per, (base + width // 2) // per
                regs = registers.get(span)
                if regs is None:
                    regs = registers[span] = ", ".join([f"{acc.prefix}{i}" for i in range(*span)])
                lines.append(f"add.s64 db, $0, {b.offset(n, k)};")
                flips = ""
                if a is not None:
                    lines.append(f"add.s64 da, $1, {a.offset(m, k // halved)};")
                    left = "da"
                    if dtype.itemsize == 2:
                        flips = f", {int(a.transposed)}, {int(b.transposed)}"
                else:
                    place = ((m // ROWS) * (depth // step) + k // step) * 4 + 1
                    left = "{" + ", ".join(f"${place + i}" for i in range(4)) + "}"
                    if dtype.itemsize == 2:
                        flips = f", {int(b.transposed)}"
                if isinstance(op, SparseWgmma):
                    word = layout_of(op.meta).register_of[k // meta_step(dtype), m * 2]
                    marks = f"${mark + word}, {k // step % 2 if dtype.itemsize > 1 else 0}, "
                shape = f"m64n{width}k{step}"
                lines.append(
                    f"{form}.sync.aligned.{shape}.{kind} {{{regs}}}, {left}, db, {marks}{scale}{scales}{flips};"
                )
    e.ptx("wgmma.fence.sync.aligned;")
    e.ptx("{ " + " ".join(lines) + " }", *args)
    e.ptx("wgmma.commit_group.sync.aligned;")
    e.store(e.value("true", "i1"), acc.live)
    if fragments:
        ctx.fragments[op.a] = fragments
    if isinstance(op, SparseWgmma):
        ctx.fragments[op.meta] = words


def _fragment_words(ctx: Context, value: Value, dtype: DType) -> Regs:
    """The 32-bit registers of A, four for each instruction: rows m and K steps in order.

    PTX ISA 9.7.15.5.2: registers are (row half 0, row half 1) for the first half of K, then for the second.
    """
    layout = layout_of(value)
    step = k_step(dtype)
    per = 4 // dtype.itemsize
    names = ctx.regs(value)
    rows, depth = value.type.shape
    out: Regs = []
    for m in range(0, rows, ROWS):
        for k in range(0, depth, step):
            for half in range(2):
                for row in (0, 8):
                    coords = [(m + row, k + half * (step // 2) + i) for i in range(per)]
                    out.append(pack(ctx, [names[layout.register_of[c]] for c in coords], dtype, 4))
    return out


def _known_live(ctx: Context, op: Wgmma) -> bool | None:
    """Whether the accumulator holds a value before this op; None if that is only known at run time."""
    region: Region | None = ctx.region_stack[-1] if ctx.region_stack else None
    if region is None:
        return None
    seen: bool | None = None
    for other in region.ops:
        if other is op:
            return seen
        if isinstance(other, AllocAcc) and other.result is op.acc:
            sliced = any(isinstance(o, Wgmma) and o.acc is op.acc and o.shape != op.acc.type.shape for o in ctx.ops)
            seen = bool(sliced)
        elif isinstance(other, (Wgmma, AccWrite)) and other.acc is op.acc:
            seen = True
        elif seen is False and other.region_list():
            seen = None  # an op inside may have started it
    return None


def lower_wait(ctx: Context, op: WgmmaWait) -> None:
    words = [w for v in op.fragments for w in ctx.fragments.get(v, [])]
    ctx.e.ptx(f"wgmma.wait_group.sync.aligned {op.pending};", *words)


def lower_set_max_registers(ctx: Context, op: SetMaxRegisters) -> None:
    word = "inc" if op.increase else "dec"
    ctx.e.ptx(f"setmaxnreg.{word}.sync.aligned.u32 {op.count};")


RULES: Rules = {
    AllocAcc: lower_alloc,
    AccRead: lower_read,
    AccScale: lower_scale,
    AccWrite: lower_write,
    SparseWgmma: lower_wgmma,
    Wgmma: lower_wgmma,
    WgmmaWait: lower_wait,
    SetMaxRegisters: lower_set_max_registers,
}
