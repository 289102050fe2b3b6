"""mma.sync, wgmma, ldmatrix and SMEM descriptors against the figures and formulas of the PTX
ISA, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import BadModifier, descriptor, fragments, matrix, wgmma
from kernel_dsl.runtime.interpreter.isa.semantics.formats import FORMATS, decode
from kernel_dsl.runtime.interpreter.isa.semantics.matrix import MmaSemantics

WARPS = 3
Position = Callable[[int, int, int], tuple[int, int]]  # (g, t, i) to (row, column)

#: A's and B's element positions, by shape class: (k, operand bits); from the fragment figures.
A_LAYOUTS: dict[tuple[int, int, int], Position] = {
    (8, 4, 64): lambda g, t, i: (g, t),
    (16, 4, 64): lambda g, t, i: (g + 8 * i, t),
    (16, 8, 64): lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i // 2)),
    (16, 16, 64): lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i // 2)),
    (16, 4, 32): lambda g, t, i: (g + 8 * i, t),
    (16, 8, 32): lambda g, t, i: (g + 8 * (i in (1, 3)), t + 4 * (i >= 2)),
    (16, 8, 16): lambda g, t, i: (g if i < 2 else g + 8, 2 * t + (i & 1)),
    (16, 16, 16): lambda g, t, i: (
        g if i < 2 or 4 <= i < 6 else g + 8,
        2 * t + (i & 1) + 8 * (i >= 4),
    ),
    (8, 16, 8): lambda g, t, i: (g, 4 * t + i),
    (16, 16, 8): lambda g, t, i: (g if i < 4 else g + 8, 4 * t + (i & 3)),
    (16, 32, 8): lambda g, t, i: (
        g if i < 4 or 8 <= i < 12 else g + 8,
        4 * t + (i & 3) + 16 * (i >= 8),
    ),
    (8, 32, 4): lambda g, t, i: (g, 8 * t + i),
    (16, 32, 4): lambda g, t, i: (g if i < 8 else g + 8, 8 * t + (i & 7)),
    (16, 64, 4): lambda g, t, i: (
        g if i < 8 or 16 <= i < 24 else g + 8,
        8 * t + (i & 7) + 32 * (i >= 16),
    ),
    (8, 128, 1): lambda g, t, i: (g, 32 * t + i),
    (16, 128, 1): lambda g, t, i: (g if i < 32 else g + 8, 32 * t + (i & 31)),
    (16, 256, 1): lambda g, t, i: (
        g if i < 32 or 64 <= i < 96 else g + 8,
        32 * t + (i & 31) + 128 * (i >= 64),
    ),
}
B_LAYOUTS: dict[tuple[int, int], Position] = {
    (4, 64): lambda g, t, i: (t, g),
    (8, 64): lambda g, t, i: (t + 4 * i, g),
    (16, 64): lambda g, t, i: (t + 4 * i, g),
    (4, 32): lambda g, t, i: (t, g),
    (8, 32): lambda g, t, i: (t + 4 * i, g),
    (8, 16): lambda g, t, i: (2 * t + i, g),
    (16, 16): lambda g, t, i: (2 * t + (i & 1) + 8 * (i >= 2), g),
    (16, 8): lambda g, t, i: (4 * t + i, g),
    (32, 8): lambda g, t, i: (4 * t + (i & 3) + 16 * (i >= 4), g),
    (32, 4): lambda g, t, i: (8 * t + i, g),
    (64, 4): lambda g, t, i: (8 * t + (i & 7) + 32 * (i >= 8), g),
    (128, 1): lambda g, t, i: (32 * t + i, g),
    (256, 1): lambda g, t, i: (32 * t + (i & 31) + 128 * (i >= 32), g),
}
_BITS = {
    "f64": 64,
    "f32": 32,
    "s32": 32,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
}


def c_position(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, 2 * t + (i & 1))


def element(registers: list[np.ndarray], warp: int, lane: int, i: int, type_: str) -> int:
    """The i-th element of a lane's fragment, counted from the low end of the first register."""
    bits = _BITS[type_]
    per = max(32 // bits, 1)
    return int(registers[i // per][warp, lane]) >> (bits * (i % per)) & ((1 << bits) - 1)


def number(code: int, type_: str) -> float:
    bits = _BITS[type_]
    if type_[0] == "s":
        return code - (1 << bits) if code >> (bits - 1) else code
    if type_[0] == "u" or type_ == "b1":
        return code
    if type_ == "tf32":
        return float(np.uint32(code & 0xFFFFE000).view(np.float32))
    storage = {64: np.uint64, 32: np.uint32, 16: np.uint16, 8: np.uint8}[bits]
    return float(decode(np.array([code], storage), type_)[0])


def random_registers(held: tuple[str, int], type_: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Finite random elements in registers."""
    registers = []
    for _ in range(held[1]):
        if type_ == "f64":
            registers.append(rng.standard_normal((WARPS, 32)).view(np.uint64))
        elif type_ in ("f32", "tf32"):
            registers.append(rng.standard_normal((WARPS, 32)).astype(np.float32).view(np.uint32))
        elif type_ == "f16":
            halves = rng.standard_normal((WARPS, 32, 2)).astype(np.float16)
            registers.append(halves.view(np.uint32)[..., 0])
        elif type_ == "bf16":
            wide = rng.standard_normal((2, WARPS, 32)).astype(np.float32).view(np.uint32) >> 16
            registers.append(wide[0] | wide[1] << 16)
        elif type_ in ("e4m3", "e5m2"):
            codes = rng.integers(0x20, 0x48, (WARPS, 32, 4)).astype(np.uint8) | rng.choice([0, 128], (WARPS, 32, 4))
            registers.append(codes.astype(np.uint8).view(np.uint32)[..., 0])
        elif type_ == "s32":
            registers.append(rng.integers(-1000, 1000, (WARPS, 32)).astype(np.int32).view(np.uint32))
        else:
            registers.append(rng.integers(0, 2**32, (WARPS, 32), np.uint32))
    return registers


def matrices(op: MmaSemantics, a: list[np.ndarray], b: list[np.ndarray], c: list[np.ndarray], warp: int):
    m, n, k = op.m, op.n, op.k
    A, B, C = np.zeros((m, k)), np.zeros((k, n)), np.zeros((m, n))
    a_type, b_type, c_type, _ = op.types
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for i in range(m * k // 32):
            A[A_LAYOUTS[m, k, _BITS[a_type]](g, t, i)] = number(element(a, warp, lane, i, a_type), a_type)
        for i in range(n * k // 32):
            B[B_LAYOUTS[k, _BITS[b_type]](g, t, i)] = number(element(b, warp, lane, i, b_type), b_type)
        for i in range(m * n // 32):
            C[c_position(g, t, i)] = number(element(c, warp, lane, i, c_type), c_type)
    return A, B, C


REGULAR = [o for o in matrix.forms() if not (o[3] == "m8n8k4" and "f16" in o)]


@pytest.mark.parametrize("opcode", REGULAR, ids=".".join)
def test_mma(opcode: tuple[str, ...]) -> None:
    op = matrix.compile_mma(opcode)
    rng = np.random.default_rng(len(opcode))
    a, b, c = (random_registers(h, t, rng) for h, t in zip((op.a, op.b, op.c), op.types[:3], strict=True))
    d = op(a, b, c)
    assert len(d) == op.d[1]
    for warp in range(WARPS):
        A, B, C = matrices(op, a, b, c, warp)
        exact = (
            np.array([[sum(x != y for x, y in zip(r, col, strict=True)) for col in B.T] for r in A])
            if ("xor" in opcode)
            else A @ B
        )
        exact = exact + C
        scale = np.abs(A) @ np.abs(B) + np.abs(C)
        for lane in range(32):
            for i in range(op.m * op.n // 32):
                row, column = c_position(lane >> 2, lane & 3, i)
                got = number(element(d, warp, lane, i, op.types[3]), op.types[3])
                bound = {"f32": 2.0**-24, "f16": 2.0**-11, "f64": 2.0**-50, "s32": 0}[op.types[3]]
                assert abs(got - exact[row, column]) <= bound * scale[row, column], (row, column)


def test_mma_saturates_and_wraps() -> None:
    head = ("mma", "sync", "aligned", "m8n8k16", "row", "col")
    ones = [np.full((WARPS, 32), 0x00000001, np.uint32)]
    full = [np.full((WARPS, 32), 2**31 - 3, np.uint32)] * 2
    for how, expected in (("satfinite",), 2**31 - 1), ((), 2**31 - 3 + 4 - 2**32):
        op = matrix.compile_mma((*head, *how, "s32", "s8", "s8", "s32"))
        assert (op(ones, ones, full)[0].view(np.int32) == expected).all()


@pytest.mark.parametrize("layouts", [("row", "col"), ("row", "row"), ("col", "col"), ("col", "row")])
@pytest.mark.parametrize("types", [("f16", "f16"), ("f32", "f32"), ("f32", "f16")])
def test_mma_of_quad_pairs(layouts: tuple[str, str], types: tuple[str, str]) -> None:
    """m8n8k4: lanes 4q..4q+3 and 16+4q.. make product q."""
    d_type, c_type = types
    op = matrix.compile_mma(("mma", "sync", "aligned", "m8n8k4", *layouts, d_type, "f16", "f16", c_type))
    rng = np.random.default_rng(4)
    a, b = (random_registers(("b32", 2), "f16", rng) for _ in range(2))
    c = random_registers(op.c, c_type, rng)
    d = op(a, b, c)

    def place(kind: str, lane: int, i: int) -> tuple[int, int]:
        upper = 4 if lane >= 16 else 0
        if kind == "a":
            return (lane % 4 + upper, i) if layouts[0] == "row" else (i + upper, lane % 4)
        if kind == "b":
            return (i, lane % 4 + upper) if layouts[1] == "col" else (lane % 4, i + upper)
        if kind == "f16":
            return lane % 4 + upper, i
        return (lane & 1) + (i & 2) + upper, (i & 4) + (lane & 2) + (i & 1)

    for q in range(4):
        lanes = [*range(4 * q, 4 * q + 4), *range(16 + 4 * q, 20 + 4 * q)]
        A, B, C = np.zeros((8, 4)), np.zeros((4, 8)), np.zeros((8, 8))
        for lane in lanes:
            for i in range(4):
                A[place("a", lane, i)] = number(element(a, 1, lane, i, "f16"), "f16")
                B[place("b", lane, i)] = number(element(b, 1, lane, i, "f16"), "f16")
            for i in range(8):
                C[place(c_type, lane, i)] = number(element(c, 1, lane, i, c_type), c_type)
        D = A @ B + C
        for lane in lanes:
            for i in range(8):
                got = number(element(d, 1, lane, i, d_type), d_type)
                assert got == pytest.approx(D[place(d_type, lane, i)], rel=2e-3, abs=2e-3)


def test_mma_strangers() -> None:
    with pytest.raises(BadModifier):
        matrix.compile_mma(("mma", "sync", "aligned", "m16n8k8", "row", "col", "f32", "f16", "f16", "f16"))
    with pytest.raises(BadModifier):
        wgmma.compile_wgmma(("wgmma", "mma_async", "sync", "aligned", "m64n40k32", "s32", "s8", "s8"))


# --- ldmatrix, movmatrix -------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_map(count: int, transposed: bool) -> None:
    lanes, offsets = fragments.matrix_row_map(count, transposed)
    for r in range(count):
        for lane in range(32):
            for half in range(2):
                row, column = lane // 4, 2 * (lane % 4) + half
                if transposed:
                    row, column = column, row
                assert lanes[r, lane, half] == 8 * r + row
                assert offsets[r, lane, half] == 2 * column


def test_movmatrix() -> None:
    halves = np.arange(2 * 64, dtype=np.uint16).reshape(2, 8, 8)
    moved = fragments.movmatrix(halves.reshape(2, 64).view(np.uint32))
    assert np.array_equal(moved.view(np.uint16).reshape(2, 8, 8), halves.transpose(0, 2, 1))


# --- wgmma ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_wgmma_accumulator_layout(n: int) -> None:
    groups = 2
    registers = np.arange(n // 2 * groups * 128).reshape(n // 2, 4 * groups, 32)
    tile = fragments.accumulator_matrix(registers, n)
    for lane in range(groups * 128):
        group, warp, g, t = lane // 128, lane // 32 % 4, lane % 32 // 4, lane % 4
        for i in range(n // 2):
            row, column = 16 * warp + g + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2
            assert tile[group, row, column] == registers[i, lane // 32, lane % 32]
    assert np.array_equal(fragments.accumulator_registers(tile), registers)


@pytest.mark.parametrize(("dtype", "bits"), [(np.uint8, 8), (np.uint16, 16), (np.uint32, 32)])
def test_wgmma_a_fragment(dtype: type[np.generic], bits: int) -> None:
    k = 256 // bits
    registers = np.random.default_rng(2).integers(0, 2**32, (4, 8, 32), np.uint32)
    tile = fragments.a_matrix(registers, dtype)
    per = 32 // bits
    for lane in range(256):
        for i in range(4 * per):
            row, column = A_LAYOUTS[16, k, bits](lane % 32 // 4, lane % 4, i)
            want = int(registers[i // per, lane // 32, lane % 32]) >> (bits * (i % per)) & ((1 << bits) - 1)
            assert tile[lane // 128, 16 * (lane // 32 % 4) + row, column] == want


def cute_swizzle(address: int, bits: int) -> int:
    """Swizzle<bits, 4, 3> of byte addresses."""
    return address ^ (address >> 3 & ((1 << bits) - 1) << 4)


@pytest.mark.parametrize("start", [0, 1024, 3 * 1024, 0x4000, 32, 64])
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_descriptor_addresses(span: int, mn_major: bool, start: int) -> None:
    """The canonical layouts, in 16-byte units, T = 8 elements of 16 bits."""
    if start % 1024 and (span != 128 or mn_major):
        return  # a step along k inside the pattern, as kernels take it
    leading, stride = 4096, 2048
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    bits = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62
    got = descriptor.operand_addresses(bits, 64, 2, mn_major)
    width = max(span, 16)  # bytes of a contiguous run
    for row in range(64):
        for k in range(16):
            if mn_major:
                run, inside = divmod(2 * row, width)
                outer = run * (leading if span else stride) + k // 8 * (stride if span else leading)
                linear = outer + k % 8 * width + inside
            else:
                run, inside = divmod(2 * k, width)
                linear = row // 8 * stride + row % 8 * width + run * leading + inside
            assert got[row, k] == cute_swizzle(start + linear, {0: 0, 32: 1, 64: 2, 128: 3}[span])


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
@pytest.mark.parametrize("d_type", ["f32", "f16"])
def test_wgmma_product(name: str, d_type: str) -> None:
    if d_type == "f16" and name in ("bf16", "tf32"):
        return
    bits = {"tf32": 32}.get(name, FORMATS[name].bits)
    k = 256 // bits
    op = wgmma.compile_wgmma(("wgmma", "mma_async", "sync", "aligned", f"m64n32k{k}", d_type, name, name))
    assert (op.n, op.k, op.element_bytes) == (32, k, bits // 8)
    rng = np.random.default_rng(1)
    codes = random_registers(("b32", 1), name, rng)[0].reshape(-1).view(op.element)
    values = [number(int(code), name) for code in codes[:50]]
    assert op.operand(codes, "a")[:50].tolist() == values
    x = rng.standard_normal((2, 64, k)).astype(np.float32)
    y = rng.standard_normal((2, k, 32)).astype(np.float32)
    c = rng.standard_normal((2, 64, 32)).astype(np.float16 if d_type == "f16" else np.float32)
    for scale_a, scale_b, start in ((1, 1, c), (-1, 1, c), (-1, -1, c), (1, -1, None)):
        got = op.multiply(x, y, start, scale_a, scale_b)
        assert got.dtype == c.dtype
        want = scale_a * scale_b * np.matmul(x.astype(float), y.astype(float))
        want = want if start is None else want + start
        assert np.allclose(got, want, rtol=0, atol=2e-5 if d_type == "f32" else 2e-2)


def test_wgmma_integers() -> None:
    for how in ((), ("satfinite",)):
        op = wgmma.compile_wgmma(("wgmma", "mma_async", "sync", "aligned", "m64n8k32", *how, "s32", "s8", "u8"))
        a = op.operand(np.full((64, 32), 0x7F, np.uint8), "a")
        b = op.operand(np.full((32, 8), 0xFF, np.uint8), "b")
        c = np.full((64, 8), 2**31 - 1, np.int32)
        total = 127 * 255 * 32 + 2**31 - 1
        assert (op.multiply(a, b, c) == (2**31 - 1 if how else total - 2**32)).all()
        assert (op.multiply(a, b, None) == 127 * 255 * 32).all()


def test_wgmma_f16_accumulators_come_in_pairs() -> None:
    op = wgmma.compile_wgmma(("wgmma", "mma_async", "sync", "aligned", "m64n16k16", "f16", "f16", "f16"))
    assert op.accumulator_registers == 4
    registers = np.random.default_rng(6).integers(0, 0x7C00, (4, 4, 32, 2)).astype(np.uint16)
    registers = registers.view(np.uint32)[..., 0]
    values = op.accumulator_values(registers)
    assert values.shape == (8, 4, 32)
    assert values[3, 1, 2].view(np.uint16) == registers[1, 1, 2] >> 16
    assert np.array_equal(op.accumulator_bits(values), registers)
