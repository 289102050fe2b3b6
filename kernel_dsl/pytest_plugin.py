"""A plugin of pytest: `pytest --kd-hazards=random:8` interprets every launch of a test, and fails the test for hazards.

Without the option, the plugin only declares its option and its marker.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_DEFAULT = "eager,late,random:8"


class PlainModules:
    """A finder that leaves the assertions of this package as they are.

    pytest rewrites those of every package that has a plugin, for its messages about failed tests. Ours are no tests: their
    messages are not asked for, and hundreds of modules would take seconds to rewrite, and longer to run.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if path is not None and name.startswith("kernel_dsl.") else None
        return found if found is not None and found.origin else None  # see rooms.py for folders without files


sys.meta_path.insert(0, PlainModules())  # before pytest's finder


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("kernel-dsl", "kernel_dsl: hazards of kernels")
    group.addoption(
        "--kd-hazards", metavar="SCHEDULES", default=None, nargs="?", const=_DEFAULT,
        help=f"interpret every launch under these schedules, and fail a test that has hazards; by default {_DEFAULT}",
    )  # fmt: skip
    group.addoption(
        "--kd-ignore",
        metavar="KINDS",
        default="",
        help="kinds of hazard that --kd-hazards leaves out, divided by commas",
    )
    group.addoption(
        "--kd-step-budget", metavar="N", type=int, default=None,
        help="instructions after which a launch under --kd-hazards ends, with a hazard; see `kd.check`",
    )  # fmt: skip


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU; `kernel_dsl.testing.both_devices` marks its half so")
    schedules = config.getoption("--kd-hazards", None)
    if schedules is not None:
        watch = import_module("kernel_dsl.runtime.check.plugin").plugin
        options = config.getoption("--kd-ignore"), config.getoption("--kd-step-budget")
        config.pluginmanager.register(watch(schedules, *options), "kernel_dsl hazards")
