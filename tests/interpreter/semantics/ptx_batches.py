"""PTX kernels that run instruction forms on arrays: many forms a kernel, many kernels a module.

Forms with the same operand types share a kernel: thread t loads operand i from slot i*N + t, runs
each form, and stores result j of the kernel to slot j*N + t. Slots are 8 bytes whatever the type,
so a batch is two arrays of uint64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kernel_dsl.runtime.interpreter.isa.semantics import BITS
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry

THREADS = 128
LOP3_LUT = 0x57

_HEADER = """.version 8.7
.target {target}
.address_size 64
"""


@dataclass
class Batch:
    """One kernel: its forms, in order, share `operands`."""

    name: str
    operands: tuple[str, ...]
    entries: list[Entry] = field(default_factory=list)

    @property
    def result_slots(self) -> int:
        return sum(len(entry.results) for entry in self.entries)


def batches(entries: Iterable[Entry], size: int = 48) -> Iterator[Batch]:
    """Groups of at most `size` forms with equal operand types."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.operands, []).append(entry)
    index = 0
    for operands, members in groups.items():
        for start in range(0, len(members), size):
            yield Batch(f"batch{index}", operands, members[start : start + size])
            index += 1


def _width(type_: str) -> int:
    return 1 if type_ in ("pred", "cc") else max(16, BITS[type_])


def _register(kind: str, type_: str, index: int) -> str:
    return f"%{kind}{_width(type_)}_{index}"


def _declare(kind: str, types: list[str]) -> Iterator[str]:
    for index, type_ in enumerate(types):
        register_type = "pred" if type_ in ("pred", "cc") else f"b{_width(type_)}"
        yield f".reg .{register_type} {_register(kind, type_, index)};"


def _load(type_: str, register: str, slot: int, count: int) -> list[str]:
    address = f"[%in+{slot * count * 8}]"
    if type_ in ("pred", "cc"):
        return [f"ld.global.u32 %t32, {address};", f"setp.ne.u32 {register}, %t32, 0;"]
    if type_ == "b128":
        return [f"ld.global.b64 %t64, {address};", f"mov.b128 {register}, {{%t64, %t64}};"]
    return [f"ld.global.b{_width(type_)} {register}, {address};"]


def _store(type_: str, register: str, slot: int, count: int) -> list[str]:
    address = f"[%out+{slot * count * 8}]"
    if type_ in ("pred", "cc"):
        return [f"selp.u32 %t32, 1, 0, {register};", f"st.global.u32 {address}, %t32;"]
    if type_ == "b128":
        return [f"mov.b128 {{%t64, %u64}}, {register};", f"st.global.b64 {address}, %u64;"]
    return [f"st.global.b{_width(type_)} {address}, {register};"]


def _convert_byte(entry: Entry, source: str, target: str) -> str:
    """Between bf16 and 8-bit integers, and for pairs of 4 bits, the assembler asks for 8-bit registers."""
    to = entry.opcode[-2]
    if to == "e2m1x2":
        body = f"{entry.mnemonic} %q, {source}; mov.b16 {target}, {{%q, 0}};"
    elif to in ("bf16", "f16x2"):
        body = f"mov.b16 {{%q, %high}}, {source}; {entry.mnemonic} {target}, %q;"
    else:
        body = f"{entry.mnemonic} %q, {source}; cvt.{to[0]}16.{to} {target}, %q;"
    return f"{{ .reg .b8 %q, %high; {body} }}"


def instruction(entry: Entry, sources: list[str], targets: list[str]) -> str:
    """One line of PTX.

    The truth table of lop3 is an immediate; the carry flag goes through predicates.
    """
    if entry.opcode[0] == "lop3":
        sources = [*sources[:3], str(LOP3_LUT), *sources[4:]]
    before = after = ""
    if entry.opcode[0] == "cvt" and "bf16" in entry.opcode and {"u8", "s8"} & {*entry.opcode}:
        return _convert_byte(entry, sources[0], targets[0])
    if "e2m1x2" in entry.opcode:
        return _convert_byte(entry, ", ".join(sources), targets[0])
    if entry.operands[-1] == "cc":
        # the flag is set from the predicate by a sum that overflows where it is true
        before = f"selp.u32 %t32, 1, 0, {sources[-1]}; add.cc.u32 %t32, 0xffffffff, %t32; "
        sources = sources[:-1]
    if entry.results[-1] == "cc":
        after = f" addc.u32 %t32, 0, 0; setp.ne.u32 {targets[-1]}, %t32, 0;"
        targets = targets[:-1]
    return before + f"{entry.mnemonic} {'|'.join(targets)}, {', '.join(sources)};" + after


def kernel(batch: Batch, count: int) -> Iterator[str]:
    """The lines of a batch's kernel over `count` elements."""
    yield f".visible .entry {batch.name}(.param .u64 inputs, .param .u64 outputs) {{"
    yield ".reg .b64 %in, %out, %offset, %t64, %u64; .reg .b32 %t32, %t, %cta, %threads;"
    operands = list(batch.operands)
    results = [type_ for entry in batch.entries for type_ in entry.results]
    yield from _declare("a", operands)
    yield from _declare("r", results)
    yield "ld.param.u64 %in, [inputs]; ld.param.u64 %out, [outputs];"
    yield "mov.u32 %t, %tid.x; mov.u32 %cta, %ctaid.x; mov.u32 %threads, %ntid.x;"
    yield "mad.lo.u32 %t, %cta, %threads, %t; mul.wide.u32 %offset, %t, 8;"
    yield "add.u64 %in, %in, %offset; add.u64 %out, %out, %offset;"
    sources = [_register("a", type_, index) for index, type_ in enumerate(operands)]
    for index, type_ in enumerate(operands):
        yield from _load(type_, sources[index], index, count)
    slot = 0
    for entry in batch.entries:
        targets = [_register("r", t, slot + at) for at, t in enumerate(entry.results)]
        yield instruction(entry, sources, targets)
        for at, type_ in enumerate(entry.results):
            yield from _store(type_, targets[at], slot + at, count)
        slot += len(targets)
    yield "ret; }"


def module(members: Iterable[Batch], count: int, target: str = "sm_90a") -> str:
    """A PTX module of several kernels."""
    lines: list[str] = []
    for batch in members:
        lines.extend(kernel(batch, count))
    return _HEADER.format(target=target) + "\n".join(lines) + "\n"
