"""mma.sync, mma.sp and wgmma against the GPU, by the distance from the exact sum.

Distances are relative to the sum of |a b| and |c|.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernel_dsl.runtime.interpreter.isa.semantics import descriptor, distances, fragments, matrix, sparse, wgmma
from kernel_dsl.runtime.interpreter.isa.semantics.formats import FORMATS, encode
from kernel_dsl.runtime.interpreter.isa.semantics.matrix import MmaSemantics
from kernel_dsl.runtime.interpreter.isa.semantics.sparse import SparseSemantics
from kernel_dsl.runtime.interpreter.isa.semantics.wgmma import WgmmaSemantics

from .launcher import Gpu

WARPS = 4
IMAGE_BYTES = 40960
B_START = 8192


@dataclass
class Distance:
    """The worst case of one operand and accumulator type."""

    hardware: float = 0.0
    interpreter: float = 0.0
    cases: int = 0
    unequal: int = 0


Table = dict[tuple[str, str, str], Distance]


# --- random operands -----------------------------------------------------------------------------


def codes(type_: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random normal numbers (any bits, for integers) as codes of a type."""
    if type_ in ("s8", "u8"):
        return rng.integers(0, 256, shape).astype(np.uint8)
    if type_ in ("s4", "u4", "b1"):
        return rng.integers(0, 2 if type_ == "b1" else 16, shape).astype(np.uint8)
    if type_ == "s32":
        return rng.integers(-(2**20), 2**20, shape).astype(np.int32).view(np.uint32)
    x = rng.standard_normal(shape)
    if type_ == "f64":
        return x.view(np.uint64)
    if type_ in ("f32", "tf32"):  # the low 13 bits of tf32 stay: they must not matter
        return x.astype(np.float32).view(np.uint32)
    unsigned = np.uint8 if FORMATS[type_].bits == 8 else np.uint16
    return encode(x, FORMATS[type_]).astype(unsigned)


def record(table: Table, kind: str, types: tuple[str, str], have: np.ndarray, want: np.ndarray,
           exact: np.ndarray, scale: np.ndarray) -> None:  # fmt: skip
    entry = table.setdefault((kind, *types), Distance())
    entry.cases += have.size
    entry.unequal += int(np.count_nonzero(have != want))
    scale = np.maximum(scale, 1e-300)
    entry.hardware = max(entry.hardware, float(np.max(np.abs(have - exact) / scale)))
    entry.interpreter = max(entry.interpreter, float(np.max(np.abs(want - exact) / scale)))


# --- mma.sync ------------------------------------------------------------------------------------

_CLASS = {
    "b32": ("%r", "b32", 4),
    "s32": ("%r", "b32", 4),
    "f32": ("%f", "f32", 4),
    "f64": ("%x", "f64", 8),
}


def _vector(held: tuple[str, int], base: int) -> str:
    prefix = _CLASS[held[0]][0]
    return "{" + ", ".join(f"{prefix}{base + i}" for i in range(held[1])) + "}"


def mma_kernel(name: str, op: MmaSemantics | SparseSemantics, selector: int = 0) -> str:
    """Each thread loads its registers from 8-byte slots, one a register, and stores D likewise."""
    threads = WARPS * 32
    lines = [
        f".visible .entry {name}(.param .u64 inputs, .param .u64 outputs) {{",
        ".reg .b64 %in, %out, %offset; .reg .b32 %t, %r<80>; .reg .f32 %f<80>; .reg .f64 %x<80>;",
        "ld.param.u64 %in, [inputs]; ld.param.u64 %out, [outputs];",
        "mov.u32 %t, %tid.x; mul.wide.u32 %offset, %t, 8;",
        "add.u64 %in, %in, %offset; add.u64 %out, %out, %offset;",
    ]
    slot = 0
    for held, base in ((op.a, 16), (op.b, 32), (op.c, 48)):
        prefix, type_, _ = _CLASS[held[0]]
        for i in range(held[1]):
            lines.append(f"ld.global.{type_} {prefix}{base + i}, [%in+{slot * threads * 8}];")
            slot += 1
    vectors = ", ".join(_vector(h, b) for h, b in ((op.d, 0), (op.a, 16), (op.b, 32), (op.c, 48)))
    if isinstance(op, SparseSemantics):
        lines.append(f"ld.global.b32 %r70, [%in+{slot * threads * 8}];")
        vectors += f", %r70, {selector}"
    lines.append(f"{'.'.join(op.opcode)} {vectors};")
    prefix, type_, _ = _CLASS[op.d[0]]
    for i in range(op.d[1]):
        lines.append(f"st.global.{type_} [%out+{i * threads * 8}], {prefix}{i};")
    return "\n".join([*lines, "ret; }"])


def _pack(elements: np.ndarray, type_: str) -> list[np.ndarray]:
    """(warps, 32, elements) codes to registers."""
    elements = np.ascontiguousarray(elements)
    if type_ in ("s4", "u4"):
        elements = np.ascontiguousarray(elements[..., ::2] | (elements[..., 1::2] << 4))
    elif type_ == "b1":
        elements = np.packbits(elements, axis=-1, bitorder="little")
    words = elements if elements.dtype.itemsize == 8 else elements.view(np.uint32)
    return [np.ascontiguousarray(words[..., i]) for i in range(words.shape[-1])]


def _mma_operands(op: MmaSemantics | SparseSemantics, rng: np.random.Generator) -> list[list[np.ndarray]]:
    counts = [held[1] for held in (op.a, op.b, op.c)]
    packed: list[list[np.ndarray]] = []
    for type_, count in zip(op.types[:3], counts, strict=True):
        width = matrix.WIDTH[type_]
        elements = count * 32 // width if width < 64 else count
        packed.append(_pack(codes(type_, (WARPS, 32, elements), rng), type_))
    return packed


def _exact_mma(op: MmaSemantics, operands: list[list[np.ndarray]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The sum and the sum of magnitudes, as float64 registers of an f64-accumulated twin of the
    form.
    """
    sums = _float_result(op, operands, lambda x: x)
    magnitudes = _float_result(op, operands, np.abs)
    return sums, magnitudes


def _float_result(op: MmaSemantics, operands: list[list[np.ndarray]], change: object) -> list[np.ndarray]:
    a_type, b_type, c_type, _ = op.types
    elements = matrix.elements
    m, n, k = op.m, op.n, op.k
    per = [max(32 // matrix.WIDTH[t], 1) for t in (a_type, b_type)]
    x = matrix.values(fragments.gather(elements(operands[0], a_type), ("a", m, k, per[0]), (m, k)), a_type)
    y = matrix.values(fragments.gather(elements(operands[1], b_type), ("b", n, k, per[1]), (k, n)), b_type)
    z = matrix.values(fragments.gather(elements(operands[2], c_type), ("c", m, n, 0), (m, n)), c_type)
    total = np.matmul(change(x), change(y)) + change(z)  # type: ignore[operator]
    return [fragments.scatter(total, fragments.accumulator_positions(m, n))]


def mma_module() -> tuple[str, list[MmaSemantics]]:
    """A module of every form, its entries mma0, mma1, ..., and the forms."""
    ops = [matrix.compile_mma(opcode) for opcode in matrix.forms()]
    text = ".version 8.7\n.target sm_90a\n.address_size 64\n"
    return text + "\n".join(mma_kernel(f"mma{i}", op) for i, op in enumerate(ops)) + "\n", ops


def run_mma(gpu: Gpu, table: Table) -> None:
    text, ops = mma_module()
    module = gpu.load(text.encode())
    for i, op in enumerate(ops):
        compare_mma(gpu, module, f"mma{i}", op, table)
    gpu.unload(module)


def compare_mma(gpu: Gpu, module: object, name: str, op: MmaSemantics, table: Table) -> None:
    rng = np.random.default_rng(11)
    operands = _mma_operands(op, rng)
    slots = np.stack([r.reshape(-1).astype(np.uint64) for group in operands for r in group])
    output = np.zeros((op.d[1], WARPS * 32), np.uint64)
    output = gpu.run(module, name, [slots], output, 1, WARPS * 32)
    d_type = op.types[3]
    want = [np.asarray(r) for r in op(*operands)]
    have = [row.reshape(WARPS, 32).astype(want[0].dtype) for row in output]
    elements = matrix.elements
    got, ours = (matrix.values(elements(r, d_type), d_type) for r in (have, want))
    kind = "mma.sync m8n8k4" if op.opcode[3] == "m8n8k4" and op.types[0] == "f16" else "mma.sync"
    if kind != "mma.sync" or op.types[0] == "b1":  # no float twin: the interpreter's own result is the measure
        exact, scale = ours, np.abs(ours) + 16.0
    else:
        (exact,), (scale,) = _exact_mma(op, operands)
    record(table, kind, (op.types[0], d_type), got, ours, exact, scale)


# --- mma.sp --------------------------------------------------------------------------------------


def sparse_cases() -> list[tuple[SparseSemantics, int]]:
    """Every form with every selector."""
    ops = [sparse.compile_sparse(opcode) for opcode in sparse.forms()]
    return [(op, selector) for op in ops for selector in range(op.selectors)]


def metadata_words(op: SparseSemantics, rng: np.random.Generator) -> np.ndarray:
    """Random valid metadata in all lanes, (warps, 32); without order where none is wanted."""
    choices = [0b0100, 0b1110] if op.chunk == 2 else [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110]
    if op.chunk != 2 and not op.ordered:
        choices += [0b0001, 0b0010, 0b0011, 0b0110, 0b0111, 0b1011]
    nibbles = rng.choice(choices, (WARPS, 32, 8)).astype(np.uint32)
    return np.bitwise_or.reduce(nibbles << np.arange(0, 32, 4, dtype=np.uint32), axis=-1)


def run_sparse(gpu: Gpu, table: Table) -> None:
    text, some = ".version 8.7\n.target sm_90a\n.address_size 64\n", sparse_cases()
    text += "\n".join(mma_kernel(f"sp{i}", op, selector) for i, (op, selector) in enumerate(some)) + "\n"
    module = gpu.load(text.encode())
    for i, (op, selector) in enumerate(some):
        compare_sparse(gpu, module, f"sp{i}", op, selector, table)
    gpu.unload(module)


def compare_sparse(gpu: Gpu, module: object, name: str, op: SparseSemantics, selector: int, table: Table) -> None:
    rng = np.random.default_rng(17)
    operands, words = _mma_operands(op, rng), metadata_words(op, rng)
    slots = np.stack([r.reshape(-1).astype(np.uint64) for group in (*operands, [words]) for r in group])
    output = gpu.run(module, name, [slots], np.zeros((op.d[1], WARPS * 32), np.uint64), 1, WARPS * 32)
    places = op.places(words, selector)
    assert (places >= 0).all()
    a, b, c = operands
    want = op(a, b, c, places)
    have = [row.reshape(WARPS, 32).astype(want[0].dtype) for row in output]
    got, ours = (matrix.values(matrix.elements(r, op.types[3]), op.types[3]) for r in (have, want))
    exact, scale = (_exact_sparse(op, operands, places, sign) for sign in (False, True))
    record(table, "mma.sp", (op.types[0], op.types[3]), got, ours, exact, scale)


def _exact_sparse(op: SparseSemantics, operands: list[list[np.ndarray]], places: np.ndarray, sizes: bool) -> np.ndarray:
    """The float64 sum of products, or of their magnitudes."""
    keys = (("a", op.m, op.k // 2), ("b", op.n, op.k), ("c", op.m, op.n))
    shapes = ((op.m, op.k // 2), (op.k, op.n), (op.m, op.n))
    stored, y, z = (
        matrix.values(fragments.gather(matrix.elements(o, t), (*key, max(32 // matrix.WIDTH[t], 1)), shape), t)
        for o, t, key, shape in zip(operands, op.types[:3], keys, shapes, strict=True)
    )
    x = np.zeros((WARPS, op.m, op.k))
    np.put_along_axis(x, places, stored, 2)
    if sizes:
        x, y, z = abs(x), abs(y), abs(z)
    return fragments.scatter(np.matmul(x, y) + z, fragments.accumulator_positions(op.m, op.n))


# --- wgmma ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a tile lies in SMEM; `leading` and `stride` may depend on the rows."""

    name: str
    swizzle: int
    mn_major: bool

    def descriptor(self, start: int, rows: int) -> int:
        span = self.swizzle
        if self.mn_major:
            leading, stride = (16 * span, 8 * span) if span else (128, 256)
        else:
            leading, stride = (16, 8 * span) if span else (rows * 16, 128)
        mode = {0: 0, 128: 1, 64: 2, 32: 3}[span]
        return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62


LAYOUTS = [Layout(f"{'MN' if mn else 'K'}-major, {span or 'no'} swizzle", span, mn)
           for mn in (False, True) for span in (0, 32, 64, 128)]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One wgmma to run."""

    op: WgmmaSemantics
    a_layout: Layout
    b_layout: Layout
    a_in_registers: bool = False
    scale_d: int = 1
    scale_a: int = 1


def wgmma_ops() -> Iterator[WgmmaSemantics]:
    return (wgmma.compile_wgmma(opcode) for opcode in wgmma.forms())


def cases() -> Iterator[Case]:
    """Every operand type with a few widths, and every layout where the type allows it."""
    plain = LAYOUTS[3]
    for op in wgmma_ops():
        if op.n in (8, 24, 64, 128, 256):
            yield Case(op, plain, plain)
        if op.n == 64 and not op.satfinite:
            yield Case(op, plain, plain, a_in_registers=True)
            yield Case(op, plain, plain, scale_d=0)
            if op.negatable:
                yield Case(op, plain, plain, scale_a=-1)
        if op.n == 128 and op.a_type == op.b_type and not op.satfinite:
            for layout in LAYOUTS:
                if op.transposable or not layout.mn_major:
                    yield Case(op, layout, layout)


def wgmma_kernel(name: str, case: Case) -> str:
    """Copies the image to SMEM, loads accumulators (4-byte slots), multiplies once and stores
    them.
    """
    op = case.op
    count = op.accumulator_registers
    prefix, type_ = ("%f", "f32") if op.d_type == "f32" else ("%r", "b32")
    accumulators = "{" + ", ".join(f"{prefix}{i}" for i in range(count)) + "}"
    a = "{%a0, %a1, %a2, %a3}" if case.a_in_registers else "%da"
    flags = f", {case.scale_a}, 1" if op.negatable else ""
    if op.transposable:
        a_major, b_major = int(case.a_layout.mn_major), int(case.b_layout.mn_major)
        flags += f", {b_major}" if case.a_in_registers else f", {a_major}, {b_major}"
    lines = [
        f".visible .entry {name}(.param .u64 image, .param .u64 accumulators,",
        ".param .u64 registers, .param .u64 outputs, .param .u64 desc_a, .param .u64 desc_b) {",
        f".shared .align 1024 .b8 tile[{IMAGE_BYTES}];",
        ".reg .b64 %in, %acc, %areg, %out, %offset, %da, %db, %base;",
        ".reg .f32 %f<130>; .reg .pred %p;",
        ".reg .b32 %t, %s, %a<4>, %v<4>, %r<130>;",
        "ld.param.u64 %in, [image]; ld.param.u64 %acc, [accumulators];",
        "ld.param.u64 %areg, [registers]; ld.param.u64 %out, [outputs];",
        "ld.param.u64 %da, [desc_a]; ld.param.u64 %db, [desc_b];",
        "mov.u32 %t, %tid.x; mul.wide.u32 %offset, %t, 16; add.u64 %in, %in, %offset;",
        "mov.u32 %s, tile; mad.lo.u32 %s, %t, 16, %s;",
    ]
    for chunk in range(0, IMAGE_BYTES, 2048):
        lines.append(f"ld.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%in+{chunk}];")
        lines.append(f"st.shared.v4.u32 [%s+{chunk}], {{%v0, %v1, %v2, %v3}};")
    lines += [
        "mul.wide.u32 %offset, %t, 4; add.u64 %acc, %acc, %offset; add.u64 %out, %out, %offset;",
        "add.u64 %areg, %areg, %offset;",
        "mov.u32 %s, tile; shr.u32 %s, %s, 4; cvt.u64.u32 %base, %s;",
        "add.u64 %da, %da, %base; add.u64 %db, %db, %base;",
        *(f"ld.global.b32 %a{i}, [%areg+{i * 512}];" for i in range(4)),
        *(f"ld.global.{type_} {prefix}{i}, [%acc+{i * 512}];" for i in range(count)),
        "fence.proxy.async; bar.sync 0;",
        f"setp.ne.u32 %p, {case.scale_d}, 0;",
        "wgmma.fence.sync.aligned;",
        f"{'.'.join(op.opcode)} {accumulators}, {a}, %db, %p{flags};",
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        *(f"st.global.{type_} [%out+{i * 512}], {prefix}{i};" for i in range(count)),
        "ret; }",
    ]
    return "\n".join(lines)


def compare_wgmma(gpu: Gpu, module: object, name: str, case: Case, table: Table) -> None:
    op = case.op
    rng = np.random.default_rng(13)
    size = op.element_bytes
    image = np.concatenate([
        np.ascontiguousarray(codes(t, (length // size,), rng)).view(np.uint8)
        for t, length in ((op.a_type, B_START), (op.b_type, IMAGE_BYTES - B_START))
    ])  # fmt: skip
    registers = np.ascontiguousarray(codes(op.a_type, (4, 4, 32, 4 // size), rng)).view(np.uint32)[..., 0]
    count = op.accumulator_registers
    start = codes(op.d_type, (count, 4, 32, 2 if op.d_type == "f16" else 1), rng)
    start = np.ascontiguousarray(start).view(np.uint32)[..., 0]
    desc_a, desc_b = case.a_layout.descriptor(0, 64), case.b_layout.descriptor(B_START, op.n)
    output = np.zeros((count, 128), np.uint32)
    inputs = [image, start.reshape(count, 128), registers.reshape(4, 128)]
    output = gpu.run(module, name, inputs, output, 1, 128, (desc_a, desc_b))

    elements = image.view(op.element)
    at_b = descriptor.operand_addresses(desc_b, op.n, size, case.b_layout.mn_major) // size
    b = op.operand(elements[at_b].T, "b")
    if case.a_in_registers:
        a = op.operand(fragments.a_matrix(registers, op.element)[0], "a")
    else:
        at_a = descriptor.operand_addresses(desc_a, 64, size, case.a_layout.mn_major) // size
        a = op.operand(elements[at_a], "a")
    values = op.accumulator_values(start)
    c = fragments.accumulator_matrix(values, op.n)[0]
    product = op.multiply(a, b, c if case.scale_d else None, case.scale_a, 1)
    want = product.astype(np.float64)
    have = fragments.accumulator_matrix(op.accumulator_values(output.reshape(count, 4, 32)), op.n)[0]
    wide_a, wide_b, wide_c = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    exact = case.scale_a * (wide_a @ wide_b) + case.scale_d * wide_c
    scale = np.abs(wide_a) @ np.abs(wide_b) + case.scale_d * np.abs(wide_c)
    kind = "wgmma" if not case.a_in_registers else "wgmma, A in registers"
    if case.a_layout is not LAYOUTS[3]:
        kind = f"wgmma {case.a_layout.name}"
    record(table, kind, (op.a_type, op.d_type), have.astype(np.float64), want, exact, scale)


def run_wgmma(gpu: Gpu, table: Table, chosen: list[Case]) -> None:
    for begin in range(0, len(chosen), 40):
        members = chosen[begin : begin + 40]
        module = gpu.load(wgmma_module(members).encode())
        for i, case in enumerate(members):
            compare_wgmma(gpu, module, f"wgmma{i}", case, table)
        gpu.unload(module)


def wgmma_module(members: list[Case]) -> str:
    text = ".version 8.7\n.target sm_90a\n.address_size 64\n"
    return text + "\n".join(wgmma_kernel(f"wgmma{i}", case) for i, case in enumerate(members)) + "\n"


def run(gpu: Gpu) -> Table:
    table: Table = {}
    run_mma(gpu, table)
    run_sparse(gpu, table)
    run_wgmma(gpu, table, list(cases()))
    return table


def bound(kind: str, a_type: str, d_type: str) -> float:
    """What the interpreter documents for a row of the table."""
    return distances.bound("wgmma" if kind.startswith("wgmma") else "mma.sync", a_type, d_type)


def report(table: Table) -> str:
    lines = [
        "| form | operands | accumulator | elements | hardware | interpreter | bound | unequal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (kind, a_type, d_type), entry in sorted(table.items()):
        limit = bound(kind, a_type, d_type)
        lines.append(
            f"| {kind} | {a_type} | {d_type} | {entry.cases} | {entry.hardware:.2e} "
            f"| {entry.interpreter:.2e} | {limit:.2e} | {entry.unequal} |"
        )
    return "\n".join(lines)
