"""The interpreter's instructions against the GPU's: every form of the table, on specials and random
bits.

`python -m tests.gpu.differential [FILE]` writes the table of results as Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from kernel_dsl.runtime.interpreter.isa.semantics import STORAGE, compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries
from tests.interpreter.semantics import ptx_batches
from tests.interpreter.semantics.operands import operands
from tests.interpreter.semantics.ptx_batches import Batch

from .bounds import is_approximate, unspecified, within_bound
from .launcher import Gpu

COUNT = 4096
BLOCK = 128


@dataclass
class Row:
    """What a family of instructions came to."""

    family: str
    forms: int = 0
    compared: int = 0
    mismatches: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def line(self) -> str:
        counts = (self.forms, self.compared, len(self.wrong), self.mismatches)
        return f"| {self.family} | {' | '.join(map(str, counts))} |"


def to_slots(arrays: list[np.ndarray]) -> np.ndarray:
    return np.stack([a.astype(np.uint64) for a in arrays])


def from_slot(slot: np.ndarray, type_: str) -> np.ndarray:
    return (slot & 1).astype(bool) if type_ in ("pred", "cc") else slot.astype(STORAGE[type_])


def describe(entry: Entry, inputs: list[np.ndarray], index: int, have: object, want: object) -> str:
    sources = ", ".join(f"{int(a[index]):#x}" for a in inputs)
    return f"{entry.mnemonic}({sources}) is {int(have):#x} on the GPU, {int(want):#x} here"  # type: ignore[call-overload]


def compare_entry(entry: Entry, inputs: list[np.ndarray], outputs: list[np.ndarray], row: Row) -> None:
    """Count one form's elements and keep its first disagreements."""
    arrays = list(inputs)
    if entry.opcode[0] == "lop3":
        arrays[3] = np.full(COUNT, ptx_batches.LOP3_LUT, np.uint32)
    results = compile_alu(entry.opcode, entry.pair)(*arrays)
    open_ = unspecified(entry.opcode, arrays)
    row.forms += 1
    for slot, type_, want in zip(outputs, entry.results, results, strict=True):
        have, want = from_slot(slot, type_), np.asarray(want)
        same = have == want
        if is_approximate(entry.opcode):
            same |= within_bound(entry.opcode, arrays, have, want)
        if open_ is not None:
            same |= open_
        row.compared += COUNT
        bad = np.flatnonzero(~same)
        if len(bad):
            row.mismatches += len(bad)
            examples = row.wrong.setdefault(entry.mnemonic, [])
            examples += [describe(entry, arrays, i, have[i], want[i]) for i in bad[:4]]


def modules(members: Iterable[Batch], size: int = 24) -> Iterator[list[Batch]]:
    pending: list[Batch] = []
    for batch in members:
        pending.append(batch)
        if len(pending) == size:
            yield pending
            pending = []
    if pending:
        yield pending


def is_comparable(entry: Entry) -> bool:
    return entry.since <= 90 and "b128" not in entry.operands


def run(gpu: Gpu, chosen: Iterable[Entry] | None = None) -> dict[str, Row]:
    """All elementwise forms; a row a family."""
    rows: dict[str, Row] = {}
    table = [e for e in (entries() if chosen is None else chosen) if is_comparable(e)]
    for members in modules(ptx_batches.batches(table)):
        module = gpu.load(ptx_batches.module(members, COUNT).encode())
        for batch in members:
            inputs = operands(batch.operands, COUNT, seed=len(batch.entries))
            output = np.zeros((batch.result_slots, COUNT), np.uint64)
            output = gpu.run(module, batch.name, [to_slots(inputs)], output, COUNT // BLOCK, BLOCK)
            slot = 0
            for entry in batch.entries:
                row = rows.setdefault(entry.family, Row(entry.family))
                compare_entry(entry, inputs, list(output[slot : slot + len(entry.results)]), row)
                slot += len(entry.results)
        gpu.unload(module)
    return rows


def report(rows: dict[str, Row]) -> str:
    """The Markdown table, and examples of what disagrees."""
    lines = [
        "| family | forms | elements | forms that differ | elements that differ |",
        "|---|---|---|---|---|",
    ]
    lines += [row.line() for row in rows.values()]
    for row in rows.values():
        for examples in row.wrong.values():
            lines += ["", *(f"    {example}" for example in examples)]
    return "\n".join(lines)


def main() -> None:
    from . import tensor_differential, warp_differential

    with Gpu() as gpu:
        parts = [
            f"# Instructions against the hardware\n\nMeasured on one {gpu.name}.",
            report(run(gpu)),
        ]
        parts.append(warp_differential.report(warp_differential.run(gpu)))
        parts.append(tensor_differential.report(tensor_differential.run(gpu)))
    text = "\n\n".join(parts) + "\n"
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
