"""Hazards as data, from which every form of a report is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.boundary import public

from ..interpreter import HazardKind


@dataclass(frozen=True)
class Side:
    """One access of a hazard: its line, its instruction, and who made it.

    `line` and `ptx_line` count from 1; 0 is unknown. `file` and `line` are the author's if the PTX has them (`.loc`),
    else those of the PTX. `code` is the text of that line.
    """

    file: str
    line: int
    function: str
    ptx_line: int
    instruction: str
    who: str
    code: str


@public
@dataclass(frozen=True, eq=False)
class Hazard:
    """A defect of a kernel.

    `side` is the access that showed it, `other` the access before, or None. `buffer` and `index` name the element: an
    array, a shared variable or a Ref, and its index (bytes for a variable of PTX; lane and column of tensor memory), else
    the memory, such as "local memory", or "" without one. `why` says
    what is wrong in a sentence, `fix` what to do, `details` the rest. `schedules`: the runs that found it. `message` is
    the whole text.
    """

    kind: HazardKind
    launch: str
    side: Side
    other: Side | None
    buffer: str
    index: tuple[int, ...] | None
    why: str
    fix: str
    details: tuple[str, ...]
    message: str
    schedules: list[str] = field(default_factory=list[str])

    @property
    def file(self) -> str:
        return self.side.file

    @property
    def line(self) -> int:
        return self.side.line

    @property
    def who(self) -> str:
        return self.side.who

    @property
    def source(self) -> str:
        """The text of the line."""
        return self.side.code

    @property
    def other_file(self) -> str:
        return self.other.file if self.other else ""

    @property
    def other_line(self) -> int:
        return self.other.line if self.other else 0

    @property
    def other_who(self) -> str:
        return self.other.who if self.other else ""

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of a defect: equal for its reports under several schedules."""
        sides = frozenset((s.file, s.line, s.ptx_line) for s in (self.side, self.other) if s is not None)
        return self.launch, self.kind, sides

    def __str__(self) -> str:
        return self.message

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in `Report.to_json`."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        found |= {"kind": str(self.kind), "index": None if self.index is None else list(self.index)}
        names = ("file", "line", "source", "who", "other_file", "other_line", "other_who")
        found |= {name: getattr(self, name) for name in names}
        for name in ("side", "other"):
            found[name] = None if found[name] is None else dataclasses.asdict(found[name])
        return found | {"details": list(self.details), "schedules": list(self.schedules)}


class Found:
    """The results of a check. `Report` describes each attribute."""

    def __init__(
        self, hazards: Sequence[Hazard], outputs: Any = (), schedules: Sequence[str] = (), launches: Sequence[str] = (),
        decided: bool = False, printed: str = "", steps: int = 0, texts: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.hazards: list[Hazard] = list(hazards)
        self.outputs = outputs
        self.schedules: tuple[str, ...] = tuple(schedules)
        self.launches: tuple[str, ...] = tuple(launches)
        self.printed = printed
        self.steps = steps
        self._decided = decided
        self._texts = dict(texts or {})  # PTX by the name of its file

    def lines(self, file: str) -> list[str]:
        """The lines of a PTX text that hazards point into; none for other files."""
        return self._texts.get(file, "").splitlines()

    @property
    def verdict(self) -> str:
        if self.hazards:
            return "found"
        return "none" if self._decided else f"none up to {len(self.schedules)} schedules"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in `to_json`."""
        return {
            "verdict": self.verdict,
            "launches": list(self.launches),
            "schedules": list(self.schedules),
            "steps": self.steps,
            "hazards": [h.as_dict() for h in self.hazards],
            "printed": self.printed,
        }
