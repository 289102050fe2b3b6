"""The memory of earlier calls: the first sizes have their own kernel, and later sizes share kernels for any sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, partial, wraps
from inspect import signature
from math import inf
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import kernel_dsl as kd
from kernel_dsl import forking
from kernel_dsl.ahead_calls import finals
from kernel_dsl.dims import settle_dims
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.tuning_file import when_tuned
from kernel_dsl.variables import Symbol

MANY = 1024  # the most kinds of calls to keep
TYPICAL = 1024  # the size by which a kernel for any sizes is chosen where no call gives one
# The part of the best configuration's speed, by the cost model, that is enough to use a kernel again. The model is off by
# more than it says: with 0.94 and 0.90 after some kernels, products of new sizes ran at 0.75 to 0.88 now and then.
ENOUGH = 0.97
WARM = 0.95  # the same after `kd.warm` has tried sizes of all orders, so that others seldom need a kernel

Choice = TypeVar("Choice")
P = ParamSpec("P")
R = TypeVar("R")


@cache
def dim_of(name: str, most: int | None = None, unit: int = 1, least: int = 1) -> Any:
    """The Dim of an extent from `least` to `most`, a multiple of `unit`. Calls return the same object, because kernels
    are kept by it.
    """
    return kd.Dim(name, min=least, max=most, multiple_of=unit)


def is_open(*extents: Any) -> bool:
    """Whether some extents are Dims, whose values each call gives."""
    return not all(isinstance(n, int) for n in extents)


def most_of(extent: Any) -> int:
    """The greatest value of an extent: an int, or a Dim."""
    return extent if isinstance(extent, int) else extent.hi


def declared_outputs(structs: Any, first: int) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of outputs, the kernel's parameters from number `first` on, whose extents may be computed from Dims."""

    def extent(n: Any, *place: int) -> Any:
        return n if isinstance(n, (int, kd.Dim)) else dim_of("out_{}_{}".format(*place), least=0)

    return {
        first + i: tuple(extent(n, i, axis) for axis, n in enumerate(struct.shape)) for i, struct in enumerate(structs)
    }


# Whether a call counts as one of other sizes than those before, which leaves the memory as it is.
_later: ContextVar[bool] = ContextVar("later", default=False)


def is_later() -> bool:
    """Whether kernels for any sizes are wanted, whatever came before: in a `lower` with Dims."""
    return _later.get()


def is_closed(target: str | None) -> bool:
    """Whether a kernel must not depend on earlier calls: in a `lower` of given sizes, which names a target."""
    return target is not None and not is_later()


def takes_dims(
    kernel: str, fixed: Callable[[dict[str, Any]], dict[str, tuple[int, ...]]]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for the `lower` of the function `kernel`. Of structs with Dims it gives the stages of the kernel for
    any sizes, chosen by a typical size. `fixed(arguments)`: by argument, the axes whose extents are compiled in.

    Raises `BadCallArgument` for Dims along these.
    """

    def made(lower: Callable[P, R]) -> Callable[P, R]:
        @wraps(lower)
        def lowered(*args: P.args, **keywords: P.kwargs) -> R:
            if not any(has_dims(x) for x in (*args, *keywords.values())):
                return lower(*args, **keywords)
            given = signature(lower).bind(*args, **keywords).arguments
            for name, axes in fixed(given).items():
                _check_fixed(kernel, name, given.get(name), axes)
            token = _later.set(True)
            try:
                sampled: Any = [_sampled(x) for x in args], {name: _sampled(x) for name, x in keywords.items()}
                return cast("Any", lower)(*sampled[0], **sampled[1])
            finally:
                _later.reset(token)

        return lowered

    return made


def _check_fixed(kernel: str, name: str, x: Any, axes: tuple[int, ...]) -> None:
    for part in cast("Sequence[Any]", x) if isinstance(x, (tuple, list)) else (x,):
        shape = part.shape if has_dims(part) else ()
        found = [n for axis in axes if -len(shape) <= axis < len(shape) and isinstance(n := shape[axis], Symbol)]
        if found:
            what = f"{name} is {tuple(shape)}, and its extent {found[0]} is compiled in"
            raise BadCallArgument(
                kernel=kernel, what=what, hint="give an int for it; docs/extents.md says what may be a Dim"
            )


def has_dims(x: Any) -> bool:
    """Whether a struct, or one of a list, has Dims as extents."""
    parts = cast("Sequence[Any]", x) if isinstance(x, (tuple, list)) else (x,)  # no deeper, as a list may hold itself
    return any(isinstance(s, kd.ShapeDtypeStruct) and any(isinstance(n, Symbol) for n in s.shape) for s in parts)


def _sampled(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return tuple(_sampled(part) for part in cast("Sequence[Any]", x))
    if not has_dims(x):
        return x
    values = {v.name: _typical(v) for n in x.shape if isinstance(n, Symbol) for v in n.variables().values()}
    return kd.ShapeDtypeStruct(settle_dims(tuple(x.shape), values), x.dtype)


def _typical(dim: Any) -> int:
    by = getattr(dim, "multiple_of", 1)
    return max(min(dim.hi, TYPICAL) // by * by, dim.lo)


class Memory:
    """The memory of each kind of call of one library function. Tuning a kernel clears it."""

    all: ClassVar[list[Memory]] = []

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}  # by kind of call
        self._lock = forking.lock()
        when_tuned(self._forget)
        self.all.append(self)

    def _forget(self) -> None:
        with self._lock:
            self.known.clear()

    def _of(self, kind: Any, new: Any) -> Any:
        """The entry of a kind of call, `new` if there was none. The caller holds the lock."""
        if len(self.known) >= MANY:
            self.known.clear()
        return self.known.setdefault(kind, new)


class FirstSizes(Memory):
    """The first sizes of each kind of call."""

    def comes_again(self, kind: Any, sizes: Any) -> bool:
        """Whether calls of this kind came with other sizes before, or `is_later`."""
        if is_later():
            return True
        with self._lock:
            return self._of(kind, sizes) != sizes

    def sizes(self, kind: Any, most: int, **sizes: tuple[int, int]) -> list[Any]:
        """Sizes, or Dims of these names if calls of this kind came with others before and these are from 1 to `most`.

        `sizes`: for each name, the size and a number that divides it in all calls.
        """
        given = [n for n, _ in sizes.values()]
        if not 0 < min(given) <= max(given) <= most or not self.comes_again(kind, given):
            return given
        return [dim_of(name, most, unit) for name, (_, unit) in sizes.items()]


class KeptConfigs(Memory):
    """The configurations of the kernels for any sizes that each kind of call has."""

    def __init__(self) -> None:
        super().__init__()
        self._warm: set[Any] = set()  # kinds of calls that `kd.warm` tried with sizes of all orders

    def _forget(self) -> None:
        super()._forget()
        self._warm.clear()

    def choose(self, kind: Any, best: Choice, cost: Callable[[Choice], float]) -> Choice:
        """The fastest one that calls of this kind had before, if it has `ENOUGH` of the speed of `best`; else `best`.

        `cost`: the time of a call with a configuration, in any unit.
        """
        if is_later():
            return best
        made_final = finals.get()
        if made_final is not None:
            made_final.append(partial(self._warm.add, kind))
        with self._lock:
            kept = self._of(kind, [])
            least = cost(best) / (WARM if kind in self._warm and made_final is None else ENOUGH)
            time, found = min(((cost(c), number) for number, c in enumerate(kept)), default=(inf, 0))
            if time <= least:
                return kept[found]
            kept.append(best)
            return best
