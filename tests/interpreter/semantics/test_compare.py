"""setp, set, selp and slct against Python's own comparisons."""

from __future__ import annotations

import math
import operator
from functools import cache

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import STORAGE, compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries

from . import integer_reference as integers
from . import reference as ref
from .operands import operands

COUNT = 60
FORMS = [e for e in entries() if e.family == "compare"]
_OPS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
_BOOL = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def number(bits: int, type_: str, ftz: bool) -> float | int:
    """Something Python compares as PTX does."""
    if type_ not in ref.FORMATS:
        return integers.value(bits, type_)
    fmt = ref.FORMATS[type_]
    magnitude = bits & ((1 << (fmt.bits - 1)) - 1)
    if ftz and magnitude < 1 << fmt.mantissa:
        return 0
    x = ref.decode(bits, type_)
    if x.kind != "finite":
        return float(x.kind)
    return x.number  # type: ignore[return-value]


def holds(op: str, a: float | int, b: float | int) -> bool:
    unordered = any(isinstance(x, float) and math.isnan(x) for x in (a, b))
    if op in ("num", "nan"):
        return unordered == (op == "nan")
    if op in _OPS:
        return not unordered and _OPS[op](a, b)
    return unordered or _OPS[op[:-1]](a, b)


@cache
def compared(op: str, a: int, b: int, type_: str, ftz: bool) -> bool:
    """`holds` of two registers; forms differ in what becomes of it far more than in this."""
    return holds(op, number(a, type_, ftz), number(b, type_, ftz))


def columns(entry: Entry, arrays: list[np.ndarray], type_: str) -> list[tuple[int, ...]]:
    """Rows of scalar operands: for packed types the low halves, then the high ones."""
    if not type_.endswith("x2"):
        return [tuple(int(x) for x in row) for row in zip(*(a.tolist() for a in arrays), strict=True)]
    rows: list[tuple[int, ...]] = []
    for shift in (0, 16):
        parts = [(a >> shift & 0xFFFF) if i < 2 else a for i, a in enumerate(arrays)]
        rows += [tuple(int(x) for x in row) for row in zip(*(p.tolist() for p in parts), strict=True)]
    return rows


def test_comparisons() -> None:
    for entry in FORMS:
        op = entry.opcode
        if op[0] not in ("setp", "set"):
            continue
        type_, bool_op = op[-1], next((w for w in op if w in _BOOL), None)
        arrays = operands(entry.operands, COUNT, seed=7)
        results = compile_alu(op, entry.pair)(*arrays)
        scalar_type = type_.removesuffix("x2")
        truth: list[bool] = []
        flipped: list[bool] = []
        for a, b, *c in columns(entry, arrays, type_):
            t = compared(op[1], a, b, scalar_type, "ftz" in op)
            truth.append(_BOOL[bool_op](t, bool(c[0])) if bool_op else t)
            flipped.append(_BOOL[bool_op](not t, bool(c[0])) if bool_op else not t)
        check(entry, results, truth, flipped)


def check(entry: Entry, results: tuple[np.ndarray, ...], truth: list[bool], flipped: list[bool]) -> None:
    type_ = entry.opcode[-1]
    t = np.array(truth)
    if entry.opcode[0] == "setp":
        if type_.endswith("x2"):
            assert np.array_equal(np.concatenate(results), t), entry.mnemonic
            return
        assert np.array_equal(results[0], t), entry.mnemonic
        if entry.pair:
            assert np.array_equal(results[1], np.array(flipped)), entry.mnemonic
        return
    result = entry.results[0]
    if type_.endswith("x2"):
        halves = np.concatenate([results[0] & 0xFFFF, results[0] >> 16])
        true = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result, 0xFFFF)
        assert np.array_equal(halves, np.where(t, true, 0)), entry.mnemonic
        return
    ones = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
    true = ones.get(result, np.iinfo(STORAGE[result]).max)
    assert np.array_equal(results[0], np.where(t, true, 0).astype(STORAGE[result])), entry.mnemonic


@pytest.mark.parametrize("entry", [e for e in FORMS if e.opcode[0] in ("selp", "slct")], ids=lambda e: e.mnemonic)
def test_selection(entry: Entry) -> None:
    a, b, c = operands(entry.operands, 300)
    got = compile_alu(entry.opcode)(a, b, c)[0]
    control = entry.operands[2]
    if control == "pred":
        first = c
    else:
        values = [number(int(x), control, "ftz" in entry.opcode) for x in c]
        first = np.array([x >= 0 for x in values])
    assert np.array_equal(got, np.where(first, a, b))
