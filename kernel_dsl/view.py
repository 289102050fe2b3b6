"""Views as the IR has them: an affine map from an access's index to the root's, and where it must not go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .attributes import attribute_type
from .dataclass import dataclass

if TYPE_CHECKING:
    from .extents import Extent
    from .ir import Value


@attribute_type
@dataclass(frozen=True)
class ViewDim:
    """A dimension of a view: its extent, its root axis (-1: none) and its step along that."""

    size: int
    axis: int
    step: int = 1


@attribute_type
@dataclass(frozen=True)
class Limit:
    """An index that must be in [low, high) for an element to be accessed; None: proved on that side.

    `high` may be an extent that the launch passes. With an `axis` it is the root's index along it. With axis -1 it is a
    separate index: `start`, an offset operand if it is `dynamic`, and the sum of steps * index over the dimensions.
    Such a limit ends a view within a view, or a row within an axis.
    """

    axis: int
    low: int | None
    high: int | Extent | None
    start: int = 0
    dynamic: bool = False
    steps: tuple[int, ...] = ()


@attribute_type
@dataclass(frozen=True)
class View:
    """The elements of the root that a view holds. Root index along axis a = start[a] + sum of step * index.

    `dynamic`: root axes with a dynamic part of the start, in the order of the op's offset operands; those of the limits
    follow. `masked`: limits that an access may exceed: of the view, its array, or a view in between.
    """

    dims: tuple[ViewDim, ...]
    start: tuple[int, ...]
    dynamic: tuple[int, ...] = ()
    masked: tuple[Limit, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)

    def moving(self, offsets: Sequence[Value]) -> dict[int, Value]:
        """The dynamic part of the start along each root axis that has one."""
        return dict(zip(self.dynamic, offsets, strict=False))

    def limits(self, offsets: Sequence[Value]) -> list[tuple[Limit, Value | None]]:
        """The limits, each with the operand of its own start."""
        rest = iter(offsets[len(self.dynamic) :])
        return [(limit, next(rest) if limit.dynamic else None) for limit in self.masked]

    def steps(self, limit: Limit) -> tuple[int, ...]:
        """The number that a step along each dimension adds to the index of a limit."""
        return limit.steps if limit.axis < 0 else tuple(d.step if d.axis == limit.axis else 0 for d in self.dims)

    def kept(self, dims: Sequence[int]) -> View:
        """The view with only some of its dimensions; the others have extent 1."""
        masked = tuple(replace(m, steps=tuple(m.steps[d] for d in dims) if m.steps else ()) for m in self.masked)
        return View(tuple(self.dims[d] for d in dims), self.start, self.dynamic, masked)

    def squeezed(self) -> View:
        """The view without dimensions of extent 1."""
        return self.kept([i for i, d in enumerate(self.dims) if d.size != 1])

    def cuts(self, offsets: Sequence[Value], vector: int, minor: int) -> bool:
        """Whether a limit may cut through `vector` neighbours along the dimension `minor`, from a multiple of it on."""
        moving = self.moving(offsets)
        for limit, own in self.limits(offsets):
            steps = self.steps(limit)
            if not steps[minor]:
                continue
            static, value = (limit.start, own) if limit.axis < 0 else (self.start[limit.axis], moving.get(limit.axis))
            divisor = 0 if value is None else value.facts.divisor if value.facts is not None else 1
            others = [s for i, (s, d) in enumerate(zip(steps, self.dims, strict=False)) if i != minor and d.size > 1]
            places = [static, divisor, limit.low or 0, _factor(limit.high), *others]
            if steps[minor] != 1 or any(n % vector for n in places):
                return True
        return False


def _factor(end: int | Extent | None) -> int:
    """A number with the same divisors as an end, as far as these matter."""
    return end or 0 if end is None or isinstance(end, int) else end.factor


@attribute_type
@dataclass(frozen=True)
class Access:
    """The width of accesses of a view: `vector` aligned elements along the view's dimension `minor`.

    `whole`: a mask never cuts through such a vector.
    """

    vector: int = 1
    minor: int | None = None
    whole: bool = True


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        out[i] = out[i + 1] * shape[i + 1]
    return tuple(out)
