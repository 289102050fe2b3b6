"""A pipeline as data: steps, each with its reason and where it runs; and those of a kernel that was just traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, TypeVar

from .dataclass import dataclass
from .in_flight import check_accumulators
from .ir import KernelIR
from .pressure import warn_of_large_values
from .registers import check_registers
from .trace import settle

S = TypeVar("S")


class Where(Enum):
    """When a step runs."""

    TRACE = "once the body has run"
    GPU = "before code goes to a GPU; the interpreter shows what happens instead"
    PASS = "from kernel to kernel"
    MODULE = "from kernel to LLVM text"
    CODE = "from LLVM text to a compiled kernel"


@dataclass(frozen=True)
class Step(Generic[S]):
    """A step of the pipeline. `run` changes the state of its part of the pipeline in place."""

    where: Where
    name: str
    run: Callable[[S], None]
    why: str


def walk(
    steps: Sequence[Step[S]], where: Where, state: S, after: Callable[[Step[S]], None] = lambda step: None
) -> None:
    """Run the steps of one part in order, and call `after` for each."""
    for step in steps:
        if step.where is where:
            step.run(state)
            after(step)


TRACED: tuple[Step[KernelIR], ...] = (
    Step(Where.TRACE, "check registers", check_registers, "no warpgroup waits for registers that others never give up"),
    Step(Where.TRACE, "settle layouts", lambda ir: settle(ir.body), "from here on every value has a layout"),
    Step(Where.TRACE, "check accumulators", check_accumulators, "registers of a wgmma in flight must not be accessed"),
    Step(
        Where.TRACE,
        "warn of large values",
        warn_of_large_values,
        "a value that exceeds a lane's registers gives right results, but slowly",
    ),
)
