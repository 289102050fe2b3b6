"""The recorded steps that a graph needs when its outputs are named."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from ..arrays.array_view import ArrayView
from .record import Recording
from .steps import Event

Span = tuple[int, int]


class _Spans:
    """A set of bytes, as ranges that do not touch, by their ends."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for span in spans:
            self.add(span)

    def add(self, span: Span) -> None:
        start, stop = span
        first = bisect_left(self._stops, start)  # it is merged with ranges that it touches
        last = bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last], self._stops[first:last] = [start], [stop]

    def meets(self, span: Span) -> bool:
        at = bisect_right(self._stops, span[0])
        return at < len(self._starts) and self._starts[at] < span[1]

    def holds(self, span: Span) -> bool:
        at = bisect_right(self._starts, span[0]) - 1
        return at >= 0 and span[1] <= self._stops[at]


def without_dead(made: Recording, outputs: Sequence[ArrayView]) -> Recording:
    """The recording without steps that its outputs, `outputs`, do not need.

    A step stays if it does more than write arrays, writes to the user's memory (arrays in `out=`, inputs that a kernel
    writes, targets of copies), or writes to bytes that an output has or a later kept step reads. Such a step may write
    only some of these bytes, so earlier writers of them stay, too. The steps of a call with variables stay or go
    together.
    """
    own = _Spans(result.view.span() for result in made.results if not result.given and result.view.size)
    for low, size in made.reserved:
        own.add((low, low + size))
    live = _Spans(there.span() for there in outputs if there.size)
    kept: list[Event] = []
    for group in reversed([list(group) for _, group in groupby(made.events, lambda event: id(event.repeat or event))]):
        if any(_is_needed(event, own, live) for event in group):
            for event in group:
                for there in event.views:
                    if there.size:
                        live.add(there.span())
            kept += reversed(group)
    kept.reverse()
    staying = {id(event.repeat) for event in kept}
    gone = {id(event.repeat) for event in made.events} - staying
    return replace(made, events=kept, repeats=[repeat for repeat in made.repeats if id(repeat) not in gone])


def _is_needed(event: Event, own: _Spans, live: _Spans) -> bool:
    if event.effects:
        return True
    spans = [there.span() for there, written in zip(event.views, event.written, strict=True) if written and there.size]
    return any(not own.holds(span) or live.meets(span) for span in spans)
