"""Reshaped views: dimensions split and merged where memory order allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .dataclass import dataclass
from .view import ViewDim

if TYPE_CHECKING:
    from .ends import End


def splits(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether every dimension of `shape` is one or several of `to`: then the buffer can stay unchanged."""
    left = [n for n in to if n != 1]
    for extent in shape:
        while extent > 1:
            if not left or extent % left[0]:
                return False
            extent //= left.pop(0)
    return not left


class NotAffine(Exception):
    """A shape in which a view would not walk its buffer in even steps."""


@dataclass(frozen=True)
class _Run:
    """A dimension being regrouped: its extent, the root axis, and its steps along that axis and along each end."""

    size: int
    axis: int
    steps: tuple[int, ...]

    def times(self, n: int, size: int) -> _Run:
        return _Run(size, self.axis, tuple(s * n for s in self.steps))


def regroup(
    dims: Sequence[ViewDim], ends: Sequence[End], to: tuple[int, ...]
) -> tuple[tuple[ViewDim, ...], tuple[End, ...]]:
    """The dimensions and ends of a view of another shape. Raises `NotAffine`."""
    pool = [_Run(d.size, d.axis, (d.step, *(e.steps[i] for e in ends))) for i, d in enumerate(dims) if d.size != 1]
    out: list[_Run] = []
    pool.reverse()
    for extent in to:
        need, taken = extent, list[_Run]()
        while need > 1:
            run = pool.pop()
            if run.size <= need:
                if need % run.size:
                    raise NotAffine
                taken.append(run)
                need //= run.size
            else:
                if run.size % need:
                    raise NotAffine
                rest = run.size // need
                taken.append(run.times(rest, need))
                pool.append(replace(run, size=rest))
                need = 1
        out.append(_merged(taken) if taken else _Run(1, -1, (1, *(0 for _ in ends))))
    new = tuple(replace(e, steps=tuple(r.steps[1 + n] for r in out)) for n, e in enumerate(ends))
    return tuple(ViewDim(r.size, r.axis, r.steps[0]) for r in out), new


def _merged(parts: list[_Run]) -> _Run:
    merged = parts[-1]
    for major in reversed(parts[:-1]):
        if major != merged.times(merged.size, major.size):
            raise NotAffine
        merged = replace(merged, size=major.size * merged.size)
    return merged
