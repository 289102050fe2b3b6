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
    """A call: its arrays, their place, and the work after the launch."""

    loaded: Loaded
    scalars: Sequence[Any]
    interop: Interop
    place: tuple[str, int]  # where outputs are allocated
    handle: int  # the stream's
    views: list[ArrayView]
    given: list[ArrayView]
    out: Sequence[Any] | None  # the caller's arrays of `given`
    results: list[Any] = field(default_factory=list[Any])
    blocks: list[DeviceMemory] = field(default_factory=list[DeviceMemory])
    back: list[tuple[ArrayView, ArrayView]] = field(default_factory=list[tuple[ArrayView, ArrayView]])
    keep: list[Any] = field(default_factory=list[Any])

    @property
    def plan(self) -> LaunchPlan:
        return self.loaded.plan

    @property
    def fresh(self) -> Sequence[int]:
        """The arrays that are still uninitialised after the plan's first steps."""
        return () if self.given else self.plan.unset
