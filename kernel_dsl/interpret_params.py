"""Options of the interpreter. Standard library only, so that the language can name them without a runtime."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_STEP_BUDGET = 10_000_000


@dataclass(frozen=True)
class InterpretParams:
    """How the interpreter runs a kernel and what it does about hazards.

    `detect_hazards`: look for races, missing fences, uninitialised reads and the like (out-of-bounds accesses,
    deadlocks and malformed instructions are errors always). `on_hazard`: "raise" or "warn". `schedule`: when
    asynchronous operations take effect and which warps run first: "eager", "late" or "random". `seed` replays a
    random schedule. `step_budget`: instructions, each counted once for all warps that execute it together, after
    which the run ends with the hazard kind `step_budget`. `report_unwritten`: also report elements of outputs that
    no store has reached.

    Raises ValueError for a value that is none of these.
    """

    detect_hazards: bool = True
    on_hazard: str = "raise"
    schedule: str = "random"
    seed: int = 0
    step_budget: int = DEFAULT_STEP_BUDGET
    report_unwritten: bool = False

    def __post_init__(self) -> None:
        if self.on_hazard not in ("raise", "warn"):
            raise ValueError(f"on_hazard must be 'raise' or 'warn', not {self.on_hazard!r}")
        if self.schedule not in ("eager", "late", "random"):
            raise ValueError(f"schedule must be 'eager', 'late' or 'random', not {self.schedule!r}")
        if self.step_budget < 1:
            raise ValueError(f"step_budget must be at least 1, not {self.step_budget}")
