"""Every integer and bit instruction against Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import STORAGE, compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries

from . import integer_reference as ref
from .operands import operands

COUNT = 700
FORMS = [
    e
    for e in entries()
    if e.family in ("integer", "carry", "bits") and "b128" not in e.operands and e.operands[0] not in ("f32", "f64")
]


def reference(entry: Entry) -> ref.Reference:
    op = entry.opcode
    if entry.family == "carry":
        found = ref.carries(op)
    elif op[0] in ("dp4a", "dp2a"):
        found = ref.dot(op)
    else:
        found = ref.arithmetic(op) if entry.family == "integer" else ref.bits(op)
    assert found is not None, entry.mnemonic
    return found


@pytest.mark.parametrize("entry", FORMS, ids=lambda e: e.mnemonic + ("|p" if e.pair else ""))
def test_integer_form(entry: Entry) -> None:
    arrays = operands(entry.operands, COUNT, seed=len(entry.mnemonic))
    scalar = reference(entry)
    luts = range(0, 256, 5) if entry.opcode[0] == "lop3" else [0]
    for lut in luts:
        if entry.opcode[0] == "lop3":
            arrays = [a[-8:] for a in arrays]
            arrays[3] = np.full(8, lut, np.uint32)
        results = compile_alu(entry.opcode, entry.pair)(*arrays)
        rows = list(zip(*(a.tolist() for a in arrays), strict=True))
        want = [scalar(*(int(x) for x in row)) for row in rows]
        for index, (result, type_) in enumerate(zip(results, entry.results, strict=True)):
            expected = np.array([w[index] for w in want], dtype=np.uint64).astype(STORAGE[type_])
            bad = np.flatnonzero(expected != result)
            assert not len(bad), (
                entry.mnemonic,
                [hex(x) for x in rows[bad[0]]],
                hex(result[bad[0]]),
                hex(expected[bad[0]]),
            )
