"""Records the asynchronous operations of a profiled run, each from its issue to its effect."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .special import EPOCH, STEP

if TYPE_CHECKING:
    from ..ptx.module import Instruction
    from .batch import Batch


@dataclass(slots=True)
class Span:
    """An operation in flight, of one block. Times are steps of the run."""

    what: str
    block: int
    warpgroup: int | None
    file: str
    line: int
    begin: int
    end: int = -1
    barrier: str = ""
    device: int = 0


class FlightRecorder:
    """The spans of a run."""

    def __init__(self) -> None:
        self.ran = False
        self._spans: list[Span] = []
        self._ended: list[Span] = []  # the spans that the present operation ended

    def forget(self, count: int) -> None:
        """Forget the spans after the first `count`, those of a run that is repeated."""
        del self._spans[count:]

    @property
    def count(self) -> int:
        """Return the number of spans so far."""
        return len(self._spans)

    def issued(self, batch: Batch, what: str, ins: Instruction, at: Iterable[tuple[int, int | None]]) -> Any:
        """Begin spans of (block of the batch, warpgroup or None). Returns the function that ends them."""
        run = batch.run
        source = run.reporter.source_line(ins)
        file, line = ("", 0) if source is None else (source.file, source.line)
        made: list[Span] = []
        for cta, warpgroup in at:
            x, y, z = (int(i) for i in batch.coordinates[cta][:3])
            block = x + run.grid[0] * (y + run.grid[1] * z)
            made.append(Span(what, block, warpgroup, file, line, run.steps - run.program.left.get(id(ins), 0)))
            made[-1].device = batch.device
        self._spans += made

        def end() -> None:
            for span in made:
                span.end = run.steps
            self._ended = made

        return end

    def completed(self, batch: Batch, offset: int) -> None:
        """Record that the present operation completes on a barrier, for the spans' text."""
        for span in self._ended:
            span.barrier = batch.mbarriers.name(offset).replace("'", "")

    def step(self, time: int) -> int:
        """Return the step of a run at which `%globaltimer` was `time`."""
        return (time - EPOCH) // STEP

    def spans(self) -> list[tuple[Any, ...]]:
        """Return a tuple for each operation that took effect.

        It is (kind, what, begin, end, block, warpgroup, None, file, line, 0, barrier, device).
        """
        rows: list[tuple[Any, ...]] = []
        for s in self._spans:
            kind = "wgmma" if s.what == "wgmma" else "copy"
            if s.end >= 0:
                rows.append(
                    (kind, s.what, s.begin, s.end, s.block, s.warpgroup, None, s.file, s.line, 0, s.barrier, s.device)
                )
        return rows


RECORDER: ContextVar[FlightRecorder | None] = ContextVar("kernel_dsl_recorder", default=None)


@contextmanager
def recorded() -> Generator[FlightRecorder]:
    """Record the runs of this thread inside the `with` block."""
    recorder = FlightRecorder()
    token = RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        RECORDER.reset(token)
