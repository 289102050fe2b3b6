"""The schedules of a check: "eager", "late", and "random:N" for the seeds 0 to N - 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_dsl.diagnostics import shown
from kernel_dsl.interpret_params import DEFAULT_STEP_BUDGET, InterpretParams

from ..errors import ArgumentTypeError, ArgumentValueError
from ..interpreter import HazardKind

DEFAULT = ("eager", "late", "random:8")
_MOST = 100_000


def as_schedules(given: Any) -> list[tuple[str, int]]:
    """(schedule, seed) of each run. `given` is a sequence of names, or names divided by commas.

    Raises ArgumentTypeError and ArgumentValueError.
    """
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise ArgumentTypeError(f'schedules={shown(given)} must be names such as ("eager", "late", "random:8")')
    found: list[tuple[str, int]] = []
    for name in names:
        found += _runs(name.strip())
    if not found:
        raise ArgumentValueError("schedules= is empty: give at least one, such as 'eager'")
    return list(dict.fromkeys(found))


def _runs(name: str) -> list[tuple[str, int]]:
    kind, colon, count = name.partition(":")
    if kind in ("eager", "late") and not colon:
        return [(kind, 0)]
    if kind == "random" and (not colon or (count.isascii() and count.isdigit() and len(count) < 7)):
        seeds = int(count) if colon else 1
        if 1 <= seeds <= _MOST:
            return [("random", seed) for seed in range(seeds)]
    raise ArgumentValueError(
        f"there is no schedule {shown(name)}: 'eager', 'late', 'random', or 'random:8' for eight seeds"
    )


def as_kinds(given: Any) -> frozenset[HazardKind]:
    """The kinds of hazard in `ignore=`. Raises ArgumentTypeError and ArgumentValueError."""
    one: Any = (given,)
    names = one if isinstance(given, (str, bytes, bytearray, memoryview)) else given
    if not isinstance(names, (Sequence, set, frozenset)) or not all(isinstance(n, str) for n in names):
        raise ArgumentTypeError(f'ignore={shown(given)} must be kinds of hazard, such as ("uninitialised",)')
    known = {str(kind): kind for kind in HazardKind}
    wrong = next((n for n in names if n not in known), None)
    if wrong is not None:
        raise ArgumentValueError(f"there is no hazard {wrong!r}; the kinds are {', '.join(known)}")
    return frozenset(known[n] for n in names)


def settings(run: tuple[str, int], step_budget: int | None, ignore: frozenset[HazardKind]) -> InterpretParams:
    """The options of one run of a check."""
    budget = DEFAULT_STEP_BUDGET if step_budget is None else step_budget
    return InterpretParams(
        on_hazard="warn", schedule=run[0], seed=run[1], step_budget=budget, ignore=tuple(sorted(ignore))
    )


def spelled(run: tuple[str, int]) -> str:
    """`eager`, or `random` with its seed."""
    return run[0] if run[0] != "random" else f"random seed {run[1]}"
