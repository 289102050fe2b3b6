"""SIMD video instructions against Python integers, and the short cuts for immediates."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries

from . import integer_reference as ref
from .operands import operands

FORMS = [e for e in entries() if e.family == "video"]
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def field_result(op: tuple[str, ...], a: int, b: int, width: int) -> int:
    name = op[0][:-1]
    if name == "vset":
        return int(getattr(operator, next(w for w in op if w in COMPARE))(a, b))
    result = {
        "vadd": a + b,
        "vsub": a - b,
        "vavrg": (a + b + 1) >> 1 if a + b >= 0 else (a + b) >> 1,
        "vabsdiff": abs(a - b),
        "vmin": min(a, b),
        "vmax": max(a, b),
    }[name]
    return ref.clamp(result, f"{op[1][0]}{width}") if "sat" in op else result


@pytest.mark.parametrize("name", sorted({e.opcode[0] for e in FORMS}))
def test_simd_video(name: str) -> None:
    width = 32 // int(name[-1])
    for entry in FORMS:
        if entry.opcode[0] == name:
            check(entry, width)


def check(entry: Entry, width: int) -> None:
    op = entry.opcode
    a_type, b_type = [w for w in op if w in ("u32", "s32")][-2:]
    arrays = operands(entry.operands, 120)
    got = compile_alu(op)(*arrays)[0]
    for index, (a, b, c) in enumerate(zip(*(x.tolist() for x in arrays), strict=True)):
        parts = [
            field_result(
                op,
                ref.value(a >> shift, f"{a_type[0]}{width}"),
                ref.value(b >> shift, f"{b_type[0]}{width}"),
                width,
            )
            for shift in range(0, 32, width)
        ]
        if "add" in op:
            want = c + sum(parts)
        else:
            want = sum((p & ((1 << width) - 1)) << (i * width) for i, p in enumerate(parts))
        assert int(got[index]) == want & 0xFFFFFFFF, (entry.mnemonic, hex(a), hex(b), hex(c))


def test_permute_by_an_immediate() -> None:
    a, b, _ = operands(("b32", "b32", "b32"), 64)
    alu = compile_alu(("prmt", "b32"))
    for selector in (
        0x3210,
        0x7654,
        0x5410,
        0x7632,
        0x0123,
        0x1111,
        0x6240,
        0x7777,
        0x9BA8,
        0x4321,
    ):
        got = alu(a, b, np.full((1,), selector, np.uint32))[0]
        want = [ref.permute(x, y, selector, "") for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert got.tolist() == want, hex(selector)


@pytest.mark.parametrize("type_", ["u32", "u64", "s32", "s64"])
def test_extract_by_immediates(type_: str) -> None:
    (a,) = operands((type_,), 64)
    alu = compile_alu(("bfe", type_))
    for pos, length in ((0, 8), (8, 8), (24, 16), (31, 1), (0, 0), (5, 255), (40, 30), (200, 8)):
        position, count = (np.full((1,), x, np.uint32) for x in (pos, length))
        want = [ref.extract(x, pos, length, type_) for x in a.tolist()]
        assert alu(a, position, count)[0].tolist() == want, (pos, length)


def test_large_arrays_go_in_pieces() -> None:
    """More elements than a piece, with an immediate beside them."""
    a, b, c = operands(("f32", "f32", "f32"), 30000)
    alu = compile_alu(("fma", "rn", "f32"))
    whole = alu(a.reshape(-1, 2), b.reshape(-1, 2), c[:1].reshape(1, 1))[0]
    assert whole.shape == (15000, 2)
    small = [alu(x, y, c[:1])[0] for x, y in zip(np.split(a, 10), np.split(b, 10), strict=True)]
    assert np.array_equal(whole.reshape(-1), np.concatenate(small))
    p = np.resize([True, False, False], 30000)
    assert np.array_equal(compile_alu(("selp", "b32"))(a, b, p)[0], np.where(p, a, b))
    assert np.array_equal(compile_alu(("selp", "b32"))(a[:1], b[:1], p)[0], np.where(p, a[0], b[0]))
