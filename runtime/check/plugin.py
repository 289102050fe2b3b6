"""The hooks of `pytest --kd-hazards`: a device checks the launches of a test."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from kernel_dsl.diagnostics import Error
from kernel_dsl.errors import BadArgument

from ..devices.devices import watched_everywhere
from ..devices.interpreter_device import InterpreterDevice, Launch
from ..interpreter import HazardKind
from .report import Report, file_of
from .run import explore
from .schedules import as_kinds, as_schedules, settings, spelled


class Watcher(InterpreterDevice):
    """A device that runs each launch under several schedules, and keeps what they find."""

    def __init__(self, runs: Sequence[tuple[str, int]], ignore: frozenset[HazardKind], step_budget: int | None) -> None:
        super().__init__()
        self.owner: object = object()
        self.runs = runs
        self.ignore = ignore
        self.step_budget = step_budget
        self.reports: list[Report] = []

    def run(self, launch: Launch) -> None:
        found = explore([launch], launch.space, self.runs, self.ignore, [""], self.step_budget)
        if found.printed:
            print(found.printed, end="", flush=True)
        if found.hazards:
            texts = {file_of(launch, ""): launch.ptx}
            names = tuple(map(spelled, self.runs))
            self.reports.append(Report(found.hazards, schedules=names, launches=(launch.name,), texts=texts))

    def take(self) -> str:
        """Texts of the hazards found since the last call; empty for none."""
        reports, self.reports = self.reports, []
        return "\n\n".join(map(str, reports))


class HazardPlugin:
    """Hooks around each phase of a test."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def _phase(self, item: Any, when: str) -> Generator[None, Any, Any]:
        try:
            with watched_everywhere(self.watcher):
                result = yield
        except BaseException:
            text = self.watcher.take()
            if text:
                item.add_report_section(when, "kernel hazards", text)
            raise
        text = self.watcher.take()
        if text:
            pytest.fail(text, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: Any) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: Any) -> Generator[None, Any, Any]:
        return (yield from self._phase(item, "teardown"))

    def pytest_report_header(self) -> str:
        return f"kernel hazards: every launch under {', '.join(map(spelled, self.watcher.runs))}"


def plugin(schedules: str, ignore: str, step_budget: int | None = None) -> HazardPlugin:
    """The plugin for the texts of the options. Raises pytest.UsageError for wrong texts."""
    try:
        kinds = as_kinds([k for k in ignore.split(",") if k])
        settings(("eager", 0), step_budget, kinds)
        return HazardPlugin(Watcher(as_schedules(schedules), kinds, step_budget))
    except BadArgument as error:
        raise pytest.UsageError(f"--kd-step-budget: {error.fields['hint']}") from None
    except Error as error:
        raise pytest.UsageError(f"--kd-hazards: {error.fields['message']}") from None
