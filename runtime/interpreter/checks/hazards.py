"""Hazards as errors or warnings, in the kernel author's terms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_dsl.compiled import ReportNames, SmemRegion, SourceLine, Swizzle
from kernel_dsl.diagnostics import Error
from kernel_dsl.source import UNKNOWN, Loc

from ..ptx.module import Instruction
from .fixes import FIXES
from .kinds import ALWAYS, HazardKind

if TYPE_CHECKING:
    from ..machine.group import Group


class HazardError(Error, RuntimeError):
    """A defect of a kernel. `kind` is a `HazardKind`; `line` is its line, if known."""

    code = "hazard"
    title = "{message}"

    def __init__(self, kind: HazardKind, message: str, line: SourceLine | None = None) -> None:
        loc = Loc(line.file, line.line, function=line.function) if line else UNKNOWN
        super().__init__(loc=loc, message=message)
        self.kind = kind
        self.line = line

    def __reduce__(self) -> tuple[Any, ...]:
        return HazardError, (self.kind, self.fields["message"], self.line)


class HazardWarning(UserWarning):
    """The warning of a defect of a kernel, in place of `HazardError`, with `on_hazard="warn"`."""

    def __init__(self, kind: HazardKind, message: str, line: SourceLine | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.line = line


_RACES = {
    HazardKind.RACE_SHARED,
    HazardKind.RACE_GLOBAL,
    HazardKind.RACE_BLOCKS,
    HazardKind.RACE_TMEM,
    HazardKind.EQUAL_VALUE_RACE,
    HazardKind.READ_BEFORE_WAIT,
    HazardKind.MISSING_PROXY_FENCE,
}


@dataclass(frozen=True)
class Place:
    """One side of a hazard: the agent, the author's line if known, the PTX line (0: none) and its instruction."""

    who: str
    line: SourceLine | None
    ptx_line: int
    instruction: str


@dataclass(frozen=True)
class Finding:
    """A hazard as data. `message` is the text of the error or warning, and `what` its first sentence. `when`: the number of
    accesses before it.
    """

    kind: HazardKind
    what: str
    at: Place
    other: Place | None
    details: tuple[str, ...]
    fix: str
    message: str
    when: float = 0


@dataclass
class RunReport:
    """The report of a run: executed `steps`, `hazards` that became warnings, and the kernel's printed `output`.
    `findings`: all hazards as data, also the one that ended the run. `quiet`: give no warnings.
    """

    steps: int = 0
    quiet: bool = False
    findings: list[Finding] = field(default_factory=list[Finding])
    hazards: list[tuple[HazardKind, str]] = field(default_factory=list[tuple[HazardKind, str]])
    output: str = ""
    unwritten: dict[str, int] = field(default_factory=dict[str, int])


class Reporter:
    """Writes the texts of hazards, and raises or warns."""

    def __init__(
        self,
        warn: bool,
        kernel_name: str,
        names: ReportNames | None,
        lines: Mapping[int, SourceLine] | None,
        report: RunReport,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.warn = warn
        self.ignored: frozenset[str] = frozenset(ignored)
        self.kernel_name = kernel_name
        self.names: ReportNames = names or ReportNames()
        self.lines: Mapping[int, SourceLine] = lines or {}
        self.report = report
        self.files: dict[int, str] = {}
        self.locations: dict[int, tuple[int, int]] = {}
        self.clock: Callable[[], float] = lambda: 0  # the accesses of the run so far
        self._warnings: list[HazardWarning] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._deferred: dict[tuple[Any, ...], tuple[HazardKind, str, Instruction | None, tuple[str, ...]]] = {}

    def defer(self, kind: HazardKind, what: str, ins: Instruction | None, details: tuple[str, ...] = ()) -> None:
        """Report this hazard later, unless it turns out to be a race.

        If a read finds unwritten memory, another warp may write it later in the run. Then the bug is a race, in any
        schedule.
        """
        key = (kind, ins.line if ins else 0, ins.column if ins else 0)
        self._deferred.setdefault(key, (kind, what, ins, details))

    def flush(self) -> None:
        """Report the deferred hazards."""
        deferred, self._deferred = self._deferred, {}
        for kind, what, ins, details in deferred.values():
            self.hazard(kind, what, ins, details)

    def hazard(
        self,
        kind: HazardKind,
        what: str,
        ins: Instruction | None,
        details: tuple[str, ...] = (),
        fix: str = "",
        other: Place | None = None,
        ends: bool = False,
        when: float | None = None,
    ) -> None:
        """Raise `HazardError`, or warn once for each place and kind.

        Ignored kinds give nothing, unless they end the run. `other` is the earlier side. `fix`: by default that of the kind.
        """
        fix = fix or FIXES[kind]
        if kind in self.ignored and not ends:
            return
        if self._deferred and kind not in _RACES:
            self.flush()
        line = self.source_line(ins)
        place = self.place(ins)
        text = [f"{kind.value}: {what}"]
        if place:
            text.append(f"  at {place}")
        text += [f"  {d}" for d in details if d]
        text.append(f"  fix: {fix}")
        text.append(f"  in kernel '{self.kernel_name}'")
        message = "\n".join(text)
        at = self.side(details[0] if details else "", ins)
        when = self.clock() if when is None else when
        finding = Finding(kind, what, at, other, tuple(d for d in details if d), fix, message, when)
        if not self.warn or ends or kind in ALWAYS:
            self.report.findings.append(finding)
            raise HazardError(kind, message, line)
        key = (kind, ins.line if ins else 0, ins.column if ins else 0)
        if key in self._seen:
            return
        self._seen.add(key)
        self.report.findings.append(finding)
        self.report.hazards.append((kind, message))
        self._warnings.append(HazardWarning(kind, message, line))

    def give_warnings(self) -> None:
        """Give the warnings of the run, unless the report is quiet."""
        for warning in () if self.report.quiet else self._warnings:
            warnings.warn(warning, stacklevel=2)

    def side(self, who: str, ins: Instruction | None) -> Place:
        """Return one side of a hazard as data."""
        return Place(who, self.source_line(ins), ins.line if ins else 0, ins.name if ins else "")

    def source_line(self, ins: Instruction | None) -> SourceLine | None:
        if ins is None:
            return None
        found = self.lines.get(ins.line)
        if found is not None:
            return found
        return self._from_location(ins.line)

    def _from_location(self, ptx_line: int) -> SourceLine | None:
        before = [at for at in self.locations if at <= ptx_line]
        if not before:
            return None
        file, line = self.locations[max(before)]
        return SourceLine(self.files.get(file, "?"), line)

    def place(self, ins: Instruction | None) -> str:
        if ins is None:
            return ""
        line = self.source_line(ins)
        ptx = f"PTX line {ins.line}: {ins.name}"
        return f"{line} ({ptx})" if line else ptx

    # --- who -----------------------------------------------------------------------------------

    def who(self, cta: Any, warp: int, lane: int | None = None) -> str:
        """Return `block (1, 0, 0), warpgroup 0, warp 2, lane 5`, with the kernel's axis names if it has some."""
        text = f"{self.block(cta)}, "
        axis = self.names.thread_axis
        text += f"warpgroup {warp // 4}" + (f" ({axis[0]}={warp // 4})" if axis else "")
        text += f", warp {warp}"
        return text if lane is None else f"{text}, lane {lane}"

    @staticmethod
    def block(cta: Any) -> str:
        """Return the text of a block's coordinates x, y and z. With several GPUs, a fourth coordinate is the GPU."""
        x, y, z, *device = (int(i) for i in cta)
        return f"{f'device {device[0]}, ' if device else ''}block ({x}, {y}, {z})"

    def group(self, c: Group, bad: Any) -> tuple[int, int, str]:
        """Return (row, lane, agent) of the first lane that is True in `bad` (rows, 32)."""
        row, lane = (int(i) for i in np.argwhere(bad)[0])
        warp = int(c.rows[row])
        batch = c.batch
        cta = batch.coordinates[int(batch.row_cta[warp])]
        return row, lane, self.who(cta, int(batch.row_warp[warp]), lane)

    # --- where in shared memory ----------------------------------------------------------------

    def shared_name(self, offset: int, dynamic_offset: int, symbols: dict[str, int]) -> str:
        """Return the name of byte `offset` of shared memory: a Ref's name and logical index, or a PTX symbol."""
        at = offset - dynamic_offset
        for region in self.names.smem:
            if region.offset <= at < region.offset + region.bytes:
                return f"'{region.name}'{region_index(region, at - region.offset)}"
        below = [(start, name) for name, start in symbols.items() if start <= offset]
        if below:
            start, name = max(below)
            after = f" + {offset - start} bytes" if offset > start else ""
            return f"'{name.partition('@')[0]}'{after}"
        return f"shared address {offset}"


def region_index(region: SmemRegion, byte: int) -> str:
    """Return the logical index of a byte of an SMEM Ref, through its swizzle and tiling."""
    if region.dtype is None or not region.shape or region.kind == "barrier":
        return f"[{byte // 8}]" if region.kind == "barrier" and region.bytes > 8 else ""
    bits = {Swizzle.B128: 0x70, Swizzle.B64: 0x30, Swizzle.B32: 0x10}.get(region.swizzle, 0)
    if bits:
        byte ^= (byte >> 3) & bits
    element = byte // region.dtype.itemsize
    tiling = region.tiling
    if not tiling:
        index = np.unravel_index(min(element, _count(region.shape) - 1), region.shape)
        return "[" + ", ".join(str(int(i)) for i in index) + "]"
    if len(tiling) == 1:  # the tiles of a row make up the row
        index = [int(i) for i in np.unravel_index(min(element, _count(region.shape) - 1), region.shape)]
        return "[" + ", ".join(map(str, index)) + "]"
    # panels of the tile's columns, each with all rows (kernel_dsl/transforms.py)
    lead, (rows, columns), width = region.shape[:-2], region.shape[-2:], tiling[-1]
    full = (*lead, -(-columns // width), rows, width)
    parts = [int(i) for i in np.unravel_index(min(element, _count(full) - 1), full)]
    panel, row, column = parts[len(lead) :]
    index = [*parts[: len(lead)], row, panel * width + column]
    return "[" + ", ".join(map(str, index)) + "]"


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) if shape else 1
