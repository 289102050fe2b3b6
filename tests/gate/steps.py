"""What the checker says: the steps of each run under each schedule, and its reports of planted bugs, word for word.

It may change with the checker, apart from the outputs.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import linecache
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kernel_dsl as kd
from tests.interpreter import launching, planted

from .entries import Gate
from .runs import SCHEDULES, Result, counted, results, runs, sampled_results, sampled_schedules

_EXCERPT = re.compile(r"\n *--> .*", re.DOTALL)  # the user's line: told at the report's places
_PLACE = re.compile(r"((?:/[^\s:]*)?[\w.]+\.py):(\d+)")
_PTX_LINE = re.compile(r"\(PTX line \d+: ")
_WORD = "|".join(SCHEDULES)
_SCHEDULES_LINE = re.compile(rf"\n((?:{_WORD})(?:, (?:{_WORD}))*):\n")
Attempt = Callable[[dict[str, Any]], int]
Bug = tuple[str, Attempt, Attempt]  # its name, what has it, and the same without it


def entries() -> dict[str, str]:
    """By what is told, and the run or the bug."""
    return _entries(results(), _planted())


def _entries(seen: Mapping[str, Mapping[str, Result]], bugs: Iterable[Bug]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, by_schedule in seen.items():
        steps = {word: result.steps for word, result in by_schedule.items() if not result.hazard}
        if steps:
            found[f"steps {name}"] = _in_a_line(steps)
        reports = {word: result.hazard for word, result in by_schedule.items() if result.hazard}
        found |= _reports(name, reports)
    for name, bad, good in bugs:
        found |= _reports(name, {word: _caught(bad, schedule) for word, schedule in SCHEDULES.items()})
        found[f"steps {name}, fixed"] = _in_a_line({word: good(schedule) for word, schedule in SCHEDULES.items()})
    return found


def sample(old: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Each run under its sampled schedules, and a fourth of the planted bugs under all."""
    kept, bugs = dict(old), list[Bug]()
    for bug in _planted():
        if zlib.crc32(bug[0].encode()) % 4:
            kept.pop(f"report {bug[0]}", None)
            kept.pop(f"steps {bug[0]}, fixed", None)
        else:
            bugs.append(bug)
    for name in runs():
        words = sampled_schedules(name)
        reports = dict(_by_schedule(kept.pop(f"report {name}", "")))
        steps = _steps(kept.pop(f"steps {name}", ""), reports)
        if some := {word: steps[word] for word in words if word in steps}:
            kept[f"steps {name}"] = _in_a_line(some)
        kept |= _reports(name, {word: reports[word] for word in words if word in reports})
    return kept, _entries(sampled_results(), bugs)


def _by_schedule(told: str) -> Iterator[tuple[str, str]]:
    """The report of each schedule, of what `_reports` wrote."""
    _, *parts = _SCHEDULES_LINE.split(f"\n{told}")
    for words, text in zip(parts[::2], parts[1::2], strict=True):
        for word in words.split(", "):
            yield word, text


def _steps(told: str, reports: Mapping[str, str]) -> dict[str, int]:
    """The steps of each schedule, of what `_in_a_line` wrote."""
    if told.isdecimal():
        return {word: int(told) for word in SCHEDULES if word not in reports}
    return {word: int(count) for word, count in map(str.split, filter(None, told.split(", ")))}


def _in_a_line(steps: dict[str, int]) -> str:
    """The steps under each schedule; once where they are the same under all."""
    counts = set(steps.values())
    return str(counts.pop()) if len(counts) == 1 else ", ".join(f"{word} {count}" for word, count in steps.items())


def _reports(name: str, by_schedule: dict[str, str]) -> dict[str, str]:
    """Reports of several schedules, one below the other; equal ones once."""
    groups: dict[str, list[str]] = {}
    for word, text in by_schedule.items():
        groups.setdefault(plain(text), []).append(word)
    told = "\n".join(f"{', '.join(words)}:\n{text}" for text, words in groups.items())
    return {f"report {name}": told} if told else {}


def plain(report: str) -> str:
    """A report with the source text of each place for its folder and line, and without lines of generated PTX."""

    def source(match: re.Match[str]) -> str:
        return f"{Path(match[1]).name} `{linecache.getline(match[1], int(match[2])).strip()}`"

    return _PTX_LINE.sub("(", _PLACE.sub(source, _EXCERPT.sub("", report)))


# --- planted bugs ----------------------------------------------------------------------------------


def _caught(attempt: Attempt, schedule: dict[str, Any]) -> str:
    try:
        attempt(schedule)
    except kd.HazardError as error:
        return str(error)
    return "nothing was reported"


def _planted() -> Iterator[tuple[str, Attempt, Attempt]]:
    """Name, bug and fixed twin of every planted bug of the interpreter's tests."""
    folder = Path(planted.__file__).parent
    for path in sorted(folder.glob("test_hazards_*.py")):
        module, area = importlib.import_module(f"tests.interpreter.{path.stem}"), path.stem.rpartition("_")[2]
        for case in module.CASES:
            if isinstance(case, planted.Planted):
                attempts = (functools.partial(_launch, case, bug) for bug in (True, False))
                yield f"{area}: {case.name}", *attempts
            else:  # (a function that makes the kernel, arguments, ...)
                attempts = (functools.partial(_call, case[0](bug), case[1]) for bug in (True, False))
                yield f"{area}: {case[0].__name__}", *attempts


def _launch(case: planted.Planted, bug: bool, schedule: dict[str, Any]) -> int:
    text = launching.kernel(case.params, planted.REGISTERS + (case.bad if bug else case.good), before=case.before)
    options = {"block": 64, **case.options, **(case.bad_options if bug else {}), **schedule}
    return launching.launch(text, "k", case.args(), **options).steps


def _call(kernel: Any, args: tuple[Any, ...], schedule: dict[str, Any]) -> int:
    with counted() as steps:
        kernel(*args, interpret=kd.InterpretParams(**schedule))
    return sum(steps)


def difference(old: str, new: str) -> str:
    """The lines that are not the same."""
    if old == new:
        return ""
    if "\n" not in old + new:
        return f"{old} became {new}"
    return "\n" + "\n".join(line for line in difflib.ndiff(old.split("\n"), new.split("\n")) if line[0] in "+-")


GATE = Gate(
    "steps",
    "Steps of each run under each schedule, and what the checker reports of kernels with a bug.\n"
    "`python -m tests.gate --renew steps` writes this file, and a commit that does says why.",
    entries,
    difference,
    sample=sample,
)
