"""Symbols, in the trace and the IR, for extents that a kernel's code need not depend on.

An `Extent` is an axis of an array whose size the launch passes, a `GridSize` an axis of the grid. Conversion to an int reads it:
it gives the value, and the code is then only for this value. Masks, strides and copies use it without reading it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from .attributes import attribute_type
from .dataclass import dataclass
from .errors import ValueFromOtherTrace
from .errors_dims import unknown

_F = TypeVar("_F")
LARGEST = 2**48  # elements along an axis: more than a GPU can address
WIDE = 2**31  # beyond 32 bits
GRID = -1  # stands for an array's number


class Reads:
    """What a trace asked about extents whose values its code may not need."""

    def __init__(self) -> None:
        self.values: set[tuple[int, int]] = set()  # (array, axis) that were read
        self.divisors: dict[tuple[int, int], int] = {}  # the power of two that is known to divide each of these extents
        self.leasts: dict[tuple[int, int], int] = {}  # lower bounds of extents, on which the code relies
        self.assumed: set[tuple[int, int]] = set()  # extents that some code takes from the launch
        self.mapped: set[tuple[int, int]] = set()  # extents that tensor maps take
        self.points: dict[tuple[int, ...], int] = {}  # the most points along these axes of the grid
        self.widths: set[tuple[int, int]] = set()  # extents whose traced integers have 32 bits, or 64 where they must

    @property
    def late(self) -> bool:
        """Whether an extent was read after code that takes it from the launch had been made."""
        return bool(self.values & self.assumed)


class Unread:
    """An integer that is known at each launch. Every use as a Python int reads it."""

    if TYPE_CHECKING:
        place: tuple[int, int]  # its array, or `GRID`, and the axis

    value: ClassVar[int]
    reads: ClassVar[Reads | None] = None

    def traced(self, value: int, reads: Reads) -> Any:
        """The same extent with its value in this trace."""
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "reads", reads)
        return self

    @property
    def known(self) -> int | None:
        """The value, if it was read before."""
        reads = self.reads
        return self.value if reads is not None and reads.values and self.place in reads.values else None

    def forget(self) -> None:
        """Drop the value: the trace is over."""
        object.__setattr__(self, "reads", None)

    def assume(self) -> None:
        """Record that code takes it from the launch."""
        if self.reads is not None:
            self.reads.assumed.add(self.place)

    def __index__(self) -> int:
        if self.reads is None:
            raise ValueFromOtherTrace(what="after the body ended", hint="pass its array to the kernel that uses it")
        self.reads.values.add(self.place)
        return self.value

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(operator.index(self))


def _reading(name: str) -> Callable[..., Any]:
    function = getattr(operator, name) if hasattr(operator, name) else divmod
    return lambda self, other: function(operator.index(self), other)


def _reflected(name: str) -> Callable[..., Any]:
    function = getattr(operator, name) if hasattr(operator, name) else divmod
    return lambda self, other: function(other, operator.index(self))


def _beside(name: str, reflected: bool = False) -> Callable[..., Any]:
    """A comparison, or a sum or difference of integers: beside a traced value it does not read an extent."""
    function = getattr(operator, name)

    def compute(self: Unread, other: Any) -> Any:
        traced: Any = isinstance(other, tuple(_VALUES)) and isinstance(self, Taken)
        own = (
            compared(self)
            if traced and (name not in ("add", "sub") or other.dtype.is_integer)
            else operator.index(self)
        )
        return function(other, own) if reflected else function(own, other)

    return compute


for _name in (
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "truediv",
    "pow",
    "divmod",
    "lshift",
    "rshift",
    "and_",
    "or_",
    "xor",
):
    setattr(Unread, f"__{_name.rstrip('_')}__", _reading(_name))
    setattr(Unread, f"__r{_name.rstrip('_')}__", _reflected(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Unread, f"__{_name}__", _beside(_name))
for _name in ("add", "sub"):
    setattr(Unread, f"__{_name}__", _beside(_name))
    setattr(Unread, f"__r{_name}__", _beside(_name, reflected=True))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(
        Unread, f"__{_name}__", cast("Any", lambda f: lambda self: f(operator.index(self)))(getattr(operator, _name))
    )


@attribute_type
@dataclass(frozen=True, eq=False)
class Extent(Unread):
    """An axis of an array: `array` counts inputs and then outputs. At least `least`, and a multiple of `divisor`."""

    array: int
    axis: int
    least: int = 0
    most: int = LARGEST
    divisor: int = 1

    declared: ClassVar[bool] = False  # whether it is a `Dim`, which is not in the key

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", (self.array, self.axis))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Unread):
            return self is other or (isinstance(other, Extent) and self.place == other.place)
        return self.reads is not None and operator.index(self) == other  # after the trace it has no value

    def __hash__(self) -> int:
        return hash(self.place)

    def __repr__(self) -> str:
        return f"extent {self.axis} of array {self.array}"

    def unit(self, width: int) -> int:
        """The greatest divisor of `width`, a power of two, that divides the extent.

        If the declaration does not say it, the key contains it from now on.
        """
        if self.known is not None:
            return gcd(self.value, width)
        if self.reads is None or self.declared:
            return gcd(self.divisor, width)
        self.assume()
        width = max(width, self.reads.divisors.get(self.place, 1))
        self.reads.divisors[self.place] = width
        return gcd(self.value, width)

    def exceeds(self, index: int) -> bool:
        """Whether it is above `index`: as declared, else the key contains the answer from now on."""
        if index < self.least:
            return True
        if self.reads is None or self.declared or index >= self.value:
            return False
        self.reads.leasts[self.place] = max(index + 1, self.reads.leasts.get(self.place, 0))
        return True

    def map(self, unit: int) -> None:
        """Let each launch pass it to a tensor map: from now on, the key says that it is no 0 and fits 32 bits. `unit`: the
        power of two whose common divisor with it the code needs.
        """
        assert self.reads is not None
        self.assume()
        self.exceeds(0)
        if unit > 1:
            self.unit(unit)
        self.reads.widths.add(self.place)
        self.reads.mapped.add(self.place)

    def keep(self, reads: Reads) -> None:
        """Keep the facts that the key has: a lowered tensor map needs them."""
        object.__setattr__(self, "least", max(self.least, reads.leasts.get(self.place, 0)))
        object.__setattr__(self, "divisor", gcd(self.value, reads.divisors.get(self.place, 1)))

    def narrowed(self) -> Extent:
        """The extent for a traced integer: of a declared one as it is, else the key says whether it fits 32 bits."""
        if self.declared or self.reads is None:
            return self
        self.reads.widths.add(self.place)
        most = WIDE - 1 if self.value < WIDE else self.most
        return Extent(self.array, self.axis, self.least, most, self.divisor).traced(self.value, self.reads)

    @property
    def factor(self) -> int:
        """A number that is known to divide it. The key stays as it is."""
        if self.reads is not None and self.place in self.reads.divisors:
            return gcd(self.value, self.reads.divisors[self.place])
        return self.divisor


@attribute_type
class DimExtent(Extent):
    """An extent that the user declared as a `kd.Dim`: only `kd.specialise` reads it."""

    declared: ClassVar[bool] = True

    def __init__(
        self, array: int, axis: int, least: int = 0, most: int = LARGEST, divisor: int = 1, name: str = ""
    ) -> None:
        super().__init__(array, axis, least, most, divisor)
        object.__setattr__(self, "name", name)  # for messages: no part of the text

    if TYPE_CHECKING:
        name: str

    def __index__(self) -> int:
        if self.known is not None:
            return self.value
        raise unknown(self.name)

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        known = self.known
        return super().__eq__(other) if isinstance(other, Unread) else known is not None and known == other

    def __hash__(self) -> int:
        return hash(self.place)

    def __repr__(self) -> str:
        return self.name


class Taken(Unread):
    """An extent in a shape that the user's code sees. Any use as an int reads it. Comparisons with traced
    values, and sums and differences with traced integers, do not.
    """

    def __init__(self, extent: Extent) -> None:
        assert extent.reads is not None
        self.place: tuple[int, int] = extent.place
        self.extent: Extent = extent
        self.traced(extent.value, extent.reads)

    @property
    def open(self) -> bool:
        """Whether its trace goes on, and has not read it."""
        return self.known is None and self.extent.reads is self.reads is not None

    def __round__(self, *digits: Any) -> int:
        return round(operator.index(self), *digits)

    def __format__(self, spec: str) -> str:
        return format(operator.index(self), spec)

    def __float__(self) -> float:
        return float(operator.index(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(operator.index(self), name)

    __eq__ = _beside("eq")
    __ne__ = _beside("ne")

    def __hash__(self) -> int:
        return hash(operator.index(self))

    def __repr__(self) -> str:
        return repr(operator.index(self))


@attribute_type
@dataclass(frozen=True)
class Top:
    """value * den <= num * extent + const."""

    extent: Extent
    num: int
    den: int
    const: int

    def plus(self, by: int) -> Top:
        return Top(self.extent, self.num, self.den, self.const + by * self.den)

    def times(self, by: int) -> Top:
        """The bound of the value times `by`, which is above 0."""
        return Top(self.extent, self.num * by, self.den, self.const * by)

    def over(self, by: int) -> Top:
        """The bound of the value divided by `by`, which is above 0, rounded down."""
        return Top(self.extent, self.num, self.den * by, self.const)

    @property
    def most(self) -> int:
        """The largest value, for the largest extent."""
        return (self.num * self.extent.most + self.const) // self.den

    def below(self, extent: Extent) -> bool:
        """Whether it proves that the value is below `extent` for every size of the extent."""
        if self.extent != extent:
            return False
        ends = extent.least, extent.most
        return all((self.num - self.den) * n + self.const < 0 for n in ends)


@attribute_type
@dataclass(frozen=True, eq=False)
class GridSize(Unread):
    """An axis of the grid, and the facts known about its size."""

    axis: int
    top: Top | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", (GRID, self.axis))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Unread):
            return self is other or (isinstance(other, GridSize) and (self.axis, self.top) == (other.axis, other.top))
        return operator.index(self) == other

    def __hash__(self) -> int:
        return hash((GRID, self.axis))

    def __repr__(self) -> str:
        return f"grid axis {self.axis}"


_OP: list[Callable[[Extent], Any]] = []  # makes a traced value of an extent; ops/index.py enters it
_VALUES: list[type] = []  # the class of traced values


def traces_extents(values: type) -> Callable[[_F], _F]:
    """Enter the function that makes a traced integer of an extent, and the class of traced values."""

    def enter(function: _F) -> _F:
        _OP.append(cast("Any", function))
        _VALUES.append(values)
        return function

    return enter


def traced_extent(extent: Any) -> Any:
    """An extent as a traced integer."""
    return _OP[0](extent)


def compared(size: Any) -> Any:
    """An operand beside a traced value: an extent that nothing has read is taken from the launch."""
    if not isinstance(size, Taken):
        return size
    return traced_extent(size.extent) if size.open else operator.index(size)


def factor_of(size: Any) -> int:
    """A number that is known to divide an extent: an int itself."""
    return size.factor if isinstance(size, Extent) else size


def is_fixed(size: Any) -> bool:
    """Whether a size is known while compiling."""
    return isinstance(size, int)


def is_declared(size: Any) -> bool:
    """Whether an extent is a Dim that this trace has not read."""
    return isinstance(size, DimExtent) and size.known is None


def now(size: Any) -> Any:
    """A size's value if it is an int or was read in this trace, else its symbol."""
    if isinstance(size, Unread):
        known = size.known
        return size if known is None else known
    return size


def seen(size: Any) -> Any:
    """A size as messages show it: an extent that no code reads has its value in the traced call."""
    return size.value if isinstance(size, Extent) and size.reads is not None and not size.declared else now(size)
