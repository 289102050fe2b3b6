"""Runs planted bugs: a kernel with one defect must be reported as its kind, its fixed twin must run clean."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardKind

from .launching import SCHEDULES, kernel, launch

# Registers that every body may use, and the thread's number in r1.
REGISTERS = """
 .reg .pred p<10>; .reg .b16 h<10>; .reg .b32 r<60>; .reg .b64 d<30>; .reg .f32 f<80>;
 mov.u32 r1, %tid.x;
"""


@dataclass(frozen=True)
class Planted:
    """`bad` and `good` are bodies; `args()` makes fresh arguments, `options` go to both launches."""

    name: str
    kind: HazardKind
    bad: str
    good: str
    params: str = ""
    args: Callable[[], list[Any]] = list
    options: dict[str, Any] = field(default_factory=dict)
    bad_options: dict[str, Any] = field(default_factory=dict)
    before: str = ""
    mentions: tuple[str, ...] = ()
    also: tuple[HazardKind, ...] = ()  # where the schedule decides what is seen first
    found: tuple[str, ...] = SCHEDULES  # the schedules that surely find it


def swap(name: str, kind: HazardKind, body: str, line: str, instead: str = "", **rest: Any) -> Planted:
    """A bug made from a good body by replacing one piece of it."""
    assert body.count(line) == 1, (name, body.count(line))
    return Planted(name, kind, body.replace(line, instead), body, **rest)


def _run(case: Planted, body: str, schedule: str, extra: dict[str, Any]) -> None:
    text = kernel(case.params, REGISTERS + body, before=case.before)
    options = {"block": 64, **case.options, **extra}
    launch(text, "k", case.args(), schedule=schedule, **options)


def _reported(case: Planted, schedule: str, seed: int) -> None:
    with pytest.raises(HazardError) as caught:
        _run(case, case.bad, schedule, {**case.bad_options, "seed": seed})
    assert caught.value.kind in (case.kind, *case.also), (schedule, str(caught.value))
    for word in case.mentions:
        assert word in str(caught.value), (word, str(caught.value))


def check(case: Planted) -> None:
    for schedule in SCHEDULES:
        for seed in (0, 1) if schedule == "random" else (0,):
            if schedule in case.found:
                _reported(case, schedule, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                _run(case, case.good, schedule, {"seed": seed})
