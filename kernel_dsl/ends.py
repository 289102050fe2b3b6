"""The ends of views: they tell the trace which part of an index may be outside its view.

A view has, for each axis of its root, the range of its accesses. If a range can't express the end (a row within an axis, or a
view that starts at a traced value), the view has an `End`: a separate index with an extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .dataclass import dataclass
from .extents import DimExtent, Extent, is_declared, now
from .view import ViewDim

if TYPE_CHECKING:
    from .extents import Top
    from .ir import Value

Start = tuple[int, "Value | None"]  # a static part, and a traced one
Part = tuple[int, Any, "int | None", int]  # of an index: the dimension, start, size or None for an int, stride
Held = tuple[int, "int | Extent"] | None  # the indices [low, high) along an axis; None: other ends bound them


class Bounds(NamedTuple):
    """The least and the greatest value of an index; `top` is a bound by an extent that only the launch knows."""

    low: int
    high: int
    top: Top | None = None

    def below(self, end: int | Extent) -> bool:
        """Whether the index is known to stay below `end`."""
        size = now(end)
        if isinstance(size, int):
            return self.high < size
        size.assume()
        return (self.top is not None and self.top.below(size)) or size.exceeds(self.high)


def hull(start: Start, steps: Sequence[tuple[int, int]]) -> Bounds:
    """The least and the greatest of start + sum of step * index, for (step, size) of each index."""
    static, value = start
    low = high = static
    top = None
    if value is not None:
        assert value.facts is not None
        low, high = low + value.facts.lo, high + value.facts.hi
        top = None if value.facts.top is None else value.facts.top.plus(static)
    for step, size in steps:
        reach = step * (size - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
        top = None if top is None else top.plus(max(reach, 0))
    return Bounds(low, high, top)


def within(bounds: Bounds, held: Held) -> bool:
    """Whether all indices from the least to the greatest are in `held`."""
    return held is None or (held[0] <= bounds.low <= bounds.high and bounds.below(held[1]))


def open_ends(bounds: Bounds, held: tuple[int, int | Extent]) -> tuple[int | None, int | Extent | None]:
    """The ends of an interval that an index may leave, None for one that it can't."""
    return held[0] if bounds.low < held[0] else None, None if bounds.below(held[1]) else now(held[1])


def advance(start: Start, by: Any, step: int) -> Start:
    """The start moved by `by` steps, an int or a rank-0 integer value."""
    static, value = start
    if isinstance(by, int):
        return static + by * step, value
    if by.facts is not None and by.facts.constant is not None:
        return static + by.facts.constant * step, value
    moved: Any = by * step if step != 1 else by
    return static, moved if value is None else cast("Any", value) + moved


@dataclass(frozen=True, eq=False)
class End:
    """The end of a view that this Ref is a part of: start + sum of steps * index must be in [0, extent)."""

    extent: int | Extent
    start: Start
    steps: tuple[int, ...]

    def bounds(self, dims: Sequence[ViewDim]) -> Bounds:
        """The least and the greatest value of the index."""
        return hull(self.start, [(step, d.size) for step, d in zip(self.steps, dims, strict=True) if step])

    def moved(self, parts: Sequence[Part], places: dict[int, int], rank: int) -> End:
        """The same for a slice of the view; `places`: which dimensions of the slice its dimensions become."""
        start, steps = self.start, [0] * rank
        for dim, by, _, stride in parts:
            if self.steps[dim]:
                start = advance(start, by, self.steps[dim])
                if dim in places:
                    steps[places[dim]] = self.steps[dim] * stride
        return End(self.extent, start, tuple(steps))


def limited(
    dims: Sequence[ViewDim], starts: Sequence[Start], held: Sequence[Held], parts: Sequence[Part]
) -> tuple[list[Held], list[End]]:
    """The bounds of a slice of a view: ranges along the root's axes, and ends that no range can express."""
    ranges, ends = list(held), list[End]()
    relied: set[int] = set()  # axes whose range stands for the end of a dimension
    at = [(static, value is not None) for static, value in starts]
    sizes = [(d.step, d.size) for d in dims]
    # indices that stay in their dimension come first: then perhaps one dimension alone is left on its axis
    for dim, start, size, stride in sorted(parts, key=lambda part: _leaves(dims, part)):
        own = dims[dim]
        leaves = _leaves(dims, (dim, start, size, stride))
        static, moves = at[own.axis] if own.axis >= 0 else (0, False)
        if leaves:
            low, high, _ = hull(
                (static, None), [sizes[i] for i, d in enumerate(dims) if i != dim and d.axis == own.axis]
            )
            if (
                own.axis >= 0
                and not moves
                and high - low < abs(own.step)
                and _can_meet(own, ranges[own.axis], low, high)
            ):
                # an index leaves the dimension exactly when it leaves an interval of the axis
                new = _interval(own, low, high)
                before = ranges[own.axis] or new
                ranges[own.axis] = new if new == before else (max(before[0], new[0]), min(int(before[1]), int(new[1])))
                relied.add(own.axis)
            else:
                ends.append(End(own.size, (0, None), tuple(int(i == dim) for i in range(len(dims)))))
                if own.axis >= 0 and own.axis not in relied and within(_along(own.axis, dims, starts), held[own.axis]):
                    ranges[own.axis] = None
        if own.axis >= 0:
            known = start if isinstance(start, int) else start.facts.constant if start.facts is not None else None
            at[own.axis] = static + (known or 0) * own.step, moves or leaves or known is None
        sizes[dim] = own.step * stride, 1 if size is None else size
    return ranges, ends


def _can_meet(own: ViewDim, held: Held, low: int, high: int) -> bool:
    """Whether the intersection of `own`, the dimension's part of its axis, and `held` is known before the launch."""
    if is_declared(own.size):
        alone = own.step == 1 and not low and not high
        return alone and (held is None or (held[0] == 0 and is_declared(held[1]) and held[1] == own.size))
    return held is None or not is_declared(held[1])


def _interval(own: ViewDim, low: int, high: int) -> tuple[int, int | Extent]:
    """The part [first, end) of the axis that a dimension covers, if the other dimensions begin from `low` to `high`."""
    if isinstance(now(own.size), Extent) and own.step == 1 and not low and not high:
        return 0, own.size
    reach = own.step * (own.size - 1)
    return (low + min(reach, 0), high + max(reach, 0) + 1) if own.size else (low, low)


def _along(axis: int, dims: Sequence[ViewDim], starts: Sequence[Start]) -> Bounds:
    return hull(starts[axis], [(d.step, d.size) for d in dims if d.axis == axis])


def _leaves(dims: Sequence[ViewDim], part: Part) -> bool:
    """Whether part of an index may leave its dimension."""
    dim, start, size, stride = part
    if isinstance(size, DimExtent) and start == 0 and stride == 1 and size == dims[dim].size:  # all of it
        return False
    first: Start = (start, None) if isinstance(start, int) else (0, start)
    bounds = hull(first, [(stride, 1 if size is None else size)])
    extent = dims[dim].size
    if isinstance(start, int) and not isinstance(extent, DimExtent):  # an extent that is not known yet
        extent = int(extent)
    return size != 0 and not within(bounds, (0, extent))
