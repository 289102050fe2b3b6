"""One call that is in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.launch_plan import LaunchPlan

from ..arrays.array_view import ArrayView, Interop
from ..devices.device import Loaded
from ..devices.memory import DeviceMemory


@dataclass
class PendingCall:
    """A call: its arrays, where they lie, and what is left to do after the launch."""

    loaded: Loaded
    scalars: Sequence[Any]
    interop: Interop
    place: tuple[str, int]  # where outputs are allocated
    handle: int  # the stream's
    views: list[ArrayView]
    given: list[ArrayView]
    out: Sequence[Any] | None  # the arrays of `given`, as they came
    results: list[Any] = field(default_factory=list[Any])
    blocks: list[DeviceMemory] = field(default_factory=list[DeviceMemory])
    back: list[tuple[ArrayView, ArrayView]] = field(default_factory=list[tuple[ArrayView, ArrayView]])
    keep: list[Any] = field(default_factory=list[Any])

    @property
    def plan(self) -> LaunchPlan:
        return self.loaded.plan

    @property
    def fresh(self) -> Sequence[int]:
        """The arrays that hold nothing yet, once the plan's first steps are taken."""
        return () if self.given else self.plan.unset
