"""The report of a check: hazards as data, and its text forms."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from kernel_dsl.boundary import public
from kernel_dsl.compiled import SourceLine
from kernel_dsl.diagnostics import shown

from ..devices.interpreter_device import Launch
from ..errors import ArgumentTypeError, ArgumentValueError
from ..interpreter import Finding, HazardError, Place
from .hazards import Found, Hazard, Side

_NAMED = re.compile(r"'([^']*)'(?:\[([-\d, ]*)\])?(?: \+ (\d+) bytes)?")
_COLUMN = re.compile(r"tensor memory, column (\d+) of lanes (\d+)")
_SPACE = re.compile(r"\b(?:shared|local) (?:memory|address)\b")
_WHO = re.compile(r"^(?:written|read) by ")


@public
class Report(Found):
    """The results of a check.

    `hazards`: each once, in the order in which they were found. `verdict`: "found", "none", or "none up to N schedules"
    if other schedules could still find some. `outputs`: the arrays of the call after the first schedule; for several
    calls, a list of these. `schedules`: the runs; `printed`: what the kernels printed; `steps` of the first run.
    """

    def __repr__(self) -> str:
        return f"<Report of {', '.join(self.launches) or 'no launch'}: {self.verdict}, {len(self.hazards)} hazards>"

    def __str__(self) -> str:
        of = ", ".join(self.launches) or "no launch"
        head = f"{of}: {self.verdict}" if not self.hazards else f"{of}: {_count(len(self.hazards), 'hazard')} found"
        parts = [f"{h.message}\n  found by: {_some(h.schedules)}" for h in self.hazards]
        return "\n\n".join([head, *parts])

    def raise_for_hazards(self) -> None:
        """Raise `HazardError` for the first hazard, naming the others. Does nothing if there is none."""
        if not self.hazards:
            return
        first, *rest = self.hazards
        more = [f"and {h.kind} at {h.file}:{h.line}" for h in rest[:20]]
        line = SourceLine(first.file, first.line, first.side.function) if first.line else None
        raise HazardError(first.kind, "\n".join([first.message, *more]), line)

    def to_json(self, path: Any = None) -> str:
        """The report as JSON text, also written to `path` if one is given."""
        return _kept(json.dumps(self.as_dict(), indent=2, allow_nan=False), path)

    def to_sarif(self, path: Any = None) -> str:
        """The report in SARIF 2.1.0, as text, also written to `path` if one is given."""
        from .sarif import sarif

        return _kept(sarif(self), path)

    def to_html(self, path: Any = None) -> str:
        """The report as one complete HTML page, also written to `path` if one is given."""
        from .html import page

        return _kept(page(self), path)

    def _repr_html_(self) -> str:
        """The page in a frame, so that its style does not change the notebook and nothing in it runs."""
        return f'<iframe sandbox="" srcdoc="{escape(self.to_html())}" width="100%" height="600"></iframe>'


def _kept(text: str, path: Any) -> str:
    if path is None:
        return text
    try:
        Path(path).write_text(text, encoding="utf-8")
    except TypeError:
        raise ArgumentTypeError(f"path={shown(path)} is no path") from None
    except (OSError, ValueError) as error:
        raise ArgumentValueError(f"{shown(path)} can't be written: {error}") from None
    return text


def file_of(launch: Launch, file: str) -> str:
    """The name of a launch's PTX."""
    return file or f"<PTX of {launch.name}>"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# --- from findings --------------------------------------------------------------------------------


def hazard_of(finding: Finding, launch: Launch, file: str) -> Hazard:
    """A finding of the interpreter as a hazard of a launch, whose PTX has the name `file`."""
    text = launch.ptx.splitlines()
    buffer, index = _element(finding.what)
    return Hazard(
        kind=finding.kind,
        launch=launch.name,
        side=_side(finding.at, file, text),
        other=None if finding.other is None else _side(finding.other, file, text),
        buffer=buffer,
        index=index,
        why=finding.what,
        fix=finding.fix,
        details=finding.details,
        message=finding.message,
    )


def _side(place: Place, file: str, ptx: Sequence[str]) -> Side:
    line, at = place.line, place.ptx_line
    code = ptx[at - 1].strip() if 0 < at <= len(ptx) else ""
    who = _WHO.sub("", place.who)
    if line is None:
        return Side(file, at, "", at, place.instruction, who, code)
    return Side(line.file, line.line, line.function, at, place.instruction, who, _line_of(line) or code)


def _line_of(line: SourceLine) -> str:
    import linecache

    return linecache.getline(line.file, line.line).strip()


def _element(what: str) -> tuple[str, tuple[int, ...] | None]:
    """The buffer and index that a sentence names: `'x'[0, 3]`, `'s' + 12 bytes`, or a lane and column of tensor memory."""
    found = _NAMED.search(what)
    if found is None:
        column, space = _COLUMN.search(what), _SPACE.search(what)
        if column is not None:
            return "tensor memory", (int(column[2]), int(column[1]))
        return "" if space is None else f"{space[0].split()[0]} memory", None
    name, index, offset = found.groups()
    if index is not None:
        return name, tuple(int(i) for i in index.split(",") if i.strip())
    return name, None if offset is None else (int(offset),)
