"""Runs launches under each schedule, from the same memory, and collects the hazards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..devices.interpreter_device import Launch, Space
from ..interpreter import GlobalMemory, HazardError, HazardKind, Launches, OrderSearch, RunReport, explored
from .launches import Call, prepare
from .report import Hazard, Report, file_of, hazard_of
from .schedules import as_kinds, as_schedules, settings, spelled

PATIENCE = 64_000  # steps without a sign of an end after which a run is ended, if no budget is given
_ENDLESS = (
    HazardKind.STEP_BUDGET,
    HazardKind.LIVELOCK,
)  # tried under no other schedule, like runs that a hazard ends late
Bytes = npt.NDArray[np.uint8]


def check_calls(
    calls: Sequence[Call], schedules: Any, ignore: Any, step_budget: int | None = None, several: bool = False
) -> Report:
    """Run calls that follow one another under each schedule. `several`: outputs are a list, an entry for each call.

    Hazards are in the report and raise nothing. Before anything runs it raises PtxError, EntryArgumentError, LoadError
    and the errors of arguments.
    """
    runs, kinds = as_schedules(schedules), as_kinds(ignore)
    made = prepare(calls)
    found = explore(made.launches, made.space, runs, kinds, made.files, step_budget)
    return Report(
        hazards=found.hazards,
        outputs=[tuple(o) for o in made.outputs] if several else tuple(made.outputs[0]),
        schedules=tuple(map(spelled, runs)),
        launches=tuple(launch.name for launch in made.launches),
        decided=found.decided,
        printed=found.printed,
        steps=found.steps,
        texts={file_of(launch, f): launch.ptx for launch, f in zip(made.launches, made.files, strict=True)},
    )


@dataclass
class CheckExploration:
    """The results of runs. `decided`: no other schedule could find more. `steps` and `printed` are the first run's."""

    hazards: list[Hazard] = field(default_factory=list[Hazard])
    decided: bool = False
    printed: str = ""
    steps: int = 0


def explore(
    launches: Sequence[Launch], space: Space, runs: Sequence[tuple[str, int]], ignore: frozenset[HazardKind],
    files: Sequence[str], step_budget: int | None = None,
) -> CheckExploration:  # fmt: skip
    """Run the launches one after another under each of `runs`. Memory then has the contents after the first run."""
    found = CheckExploration(decided=all(launch.is_ordered() for launch in launches))
    known: dict[Any, Hazard] = {}
    before = _snapshot(space.memory)
    first: list[tuple[Bytes, Bytes]] = []
    for number, run in enumerate(runs):
        if number:
            _restore(before)
        endless = _run(launches, run, ignore, files, step_budget, known, found, not number)
        if not number:
            first = _snapshot(space.memory)
        if endless:
            break
    if not known and not found.decided and len(runs) > 1:
        found.decided = _every_order(launches, before, ignore, files, step_budget, known, found, max(len(runs), 4))
    _restore(first)
    space.copy_back()
    found.hazards = list(known.values())
    return found


def _every_order(
    launches: Sequence[Launch], before: list[tuple[Bytes, Bytes]], ignore: frozenset[HazardKind], files: Sequence[str],
    step_budget: int | None, known: dict[Any, Hazard], found: CheckExploration, limit: int,
) -> bool:  # fmt: skip
    """Whether up to `limit` runs cover all orders of synchronisation, and find nothing in any of them.

    A run with synchronisation that can't be followed (blocks that synchronise through global memory) is the last.
    """
    search = OrderSearch(limit)
    for order in search:
        _restore(before)
        run = ("eager", 0)
        with explored(order):
            _run(launches, run, ignore, files, step_budget, known, found, False, f"order {search.count}")
        if known or order.is_open():
            return False
    return search.complete


def _run(
    launches: Sequence[Launch], run: tuple[str, int], ignore: frozenset[HazardKind], files: Sequence[str],
    step_budget: int | None, known: dict[Any, Hazard], found: CheckExploration, first: bool, name: str = "",
) -> bool:  # fmt: skip
    """One run. Returns whether it failed to end by itself. `name`: its name in hazards, by default the schedule."""
    endless, order = False, Launches()
    for launch, file in zip(launches, files, strict=True):
        report = RunReport(quiet=True)
        ended = False
        try:
            launch.run(settings(run, step_budget, ignore), report, 0 if step_budget else PATIENCE, order)
        except HazardError as error:
            ended = True
            endless = endless or error.kind in _ENDLESS or report.steps > PATIENCE
        for finding in report.findings:
            hazard = hazard_of(finding, launch, file_of(launch, file))
            if finding.kind not in ignore:
                known.setdefault(hazard.key, hazard).schedules.append(name or spelled(run))
        if first:
            found.printed += report.output
            found.steps += report.steps
        if ended:
            return endless
    return endless


def _snapshot(memory: GlobalMemory) -> list[tuple[Bytes, Bytes]]:
    """Each buffer that may be written, and a copy of it."""
    return [(b.bytes, b.bytes.copy()) for b in memory.buffers.values() if b.writable]


def _restore(kept: Sequence[tuple[Bytes, Bytes]]) -> None:
    for now, then in kept:
        now[...] = then
