"""Integers that a graph gets anew at each replay: `Variable`, and arithmetic on it."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NoReturn, cast

from .boundary import checks_itself, public
from .diagnostics import Error, shown
from .errors import VariableType, VariableUse, VariableValue
from .no_arithmetic import without


class _Binding:
    """Values of variables while a call is recorded or repeated, and the names that it asked for."""

    def __init__(self, values: Mapping[str, int], discover: Callable[[dict[str, Variable]], None] | None) -> None:
        self.values = values
        self.discover = discover
        self.used: set[str] = set()


_binding: ContextVar[_Binding | None] = ContextVar("binding", default=None)


@contextmanager
def bound(
    values: Mapping[str, int], discover: Callable[[dict[str, Variable]], None] | None = None
) -> Generator[set[str]]:
    """Give variables values in the context.

    Yields the set of names that are asked for. `discover` is called with each variable before its value is looked up.
    """
    binding = _Binding(values, discover)
    token = _binding.set(binding)
    try:
        yield binding.used
    finally:
        _binding.reset(token)


@contextmanager
def unbound() -> Generator[None]:
    """Take values from variables in the context: a graph that records takes none of a kernel's Dims for its own."""
    token = _binding.set(None)
    try:
        yield
    finally:
        _binding.reset(token)


def _floor_divide(left: int, right: int) -> int:
    return left // right


def binding_is_active() -> bool:
    """Whether a call is being recorded or repeated, so that variables have values."""
    return _binding.get() is not None


def repeating() -> bool:
    """Whether a recorded call is being made again, with other values of its variables."""
    binding = _binding.get()
    return binding is not None and binding.discover is None


@contextmanager
def noting() -> Generator[set[str]]:
    """Yields the set of names that are asked for in the context."""
    binding, asked = _binding.get(), set[str]()
    if binding is None:
        yield asked
        return
    before, binding.used = binding.used, asked
    try:
        yield asked
    finally:
        before |= asked
        binding.used = before


def ask(names: Iterable[str]) -> tuple[int, ...]:
    """The values of variables that were asked for before. It counts as asking for them."""
    binding = _binding.get()
    assert binding is not None  # without one there is no caller
    binding.used.update(names)
    return tuple(binding.values[name] for name in names)


def _refuse(symbol: Symbol, sign: str) -> NoReturn:
    hint = (
        "a graph can compute sums, differences, products, `//` and `%` of variables, and `kd.maximum` and `kd.minimum`"
    )
    raise VariableType(variable=", ".join(symbol.variables()), got=f"`{sign}`", hint=hint)


_REFUSED = (
    "truediv", "pow", "matmul", "and", "or", "xor", "lshift", "rshift", "divmod", "round", "contains", "abs", "invert",
)  # fmt: skip


@public
@without(*_REFUSED, refuse=_refuse)
class Symbol:
    """An integer that is known at replay: a `Variable`, or arithmetic on some.

    `operator.index` gives its value while a graph records or repeats the call that it is in.
    """

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value, given those of the variables."""
        raise AssertionError("each kind of symbol has its own")

    def variables(self) -> dict[str, Variable]:
        """The variables in it, by name."""
        raise AssertionError("each kind of symbol has its own")

    def _without_value(self, symbol: Symbol) -> Error:
        """The error for asking for the value of `symbol`, in which it is, where there is none."""
        hint = "pass an int, or make the call inside `with kd.Graph() as g:`"
        return VariableUse(variable=repr(symbol), hint=hint)

    def __index__(self) -> int:
        binding = _binding.get()
        names = self.variables()
        for variable in names.values():
            variable.now()
        if binding is not None and binding.discover is not None:
            binding.discover(names)
        if binding is None or not names.keys() <= binding.values.keys():
            raise next(iter(names.values()))._without_value(self)
        binding.used.update(names)
        return self.evaluate(binding.values)

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(operator.index(self))

    # Raises as the others do: outside a recording, `if n == 3` would silently take one branch.
    @public
    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, Symbol) else operator.index(self) == other

    __hash__: ClassVar[Callable[[object], int]] = object.__hash__

    def __lt__(self, other: Any) -> bool:
        return operator.index(self) < other

    def __le__(self, other: Any) -> bool:
        return operator.index(self) <= other

    def __gt__(self, other: Any) -> bool:
        return operator.index(self) > other

    def __ge__(self, other: Any) -> bool:
        return operator.index(self) >= other

    def __add__(self, other: Any) -> Symbol:
        return Expression("+", operator.add, self, other)

    def __radd__(self, other: Any) -> Symbol:
        return Expression("+", operator.add, other, self)

    def __sub__(self, other: Any) -> Symbol:
        return Expression("-", operator.sub, self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return Expression("-", operator.sub, other, self)

    def __mul__(self, other: Any) -> Symbol:
        return Expression("*", operator.mul, self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return Expression("*", operator.mul, other, self)

    def __floordiv__(self, other: Any) -> Symbol:
        return Expression("//", _floor_divide, self, other)

    def __rfloordiv__(self, other: Any) -> Symbol:
        return Expression("//", _floor_divide, other, self)

    def __mod__(self, other: Any) -> Symbol:
        return Expression("%", operator.mod, self, other)

    def __rmod__(self, other: Any) -> Symbol:
        return Expression("%", operator.mod, other, self)

    def __neg__(self) -> Symbol:
        return Expression("-", operator.sub, 0, self)


class Variable(Symbol):
    """An integer from `lo` to `hi` (both included) that each replay of a graph receives by `name`.

    Raises VariableValue for a name that is no identifier, or an empty range.
    """

    @checks_itself("name", "lo", "hi")
    def __init__(self, name: str, lo: int, hi: int) -> None:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise VariableValue(what=f"{shown(name)} is no name", hint="name it by an identifier")
        if name in ("out", "wait", "stream"):
            what = f"{name!r} is an argument of every replay"
            raise VariableValue(what=what, hint="give it another name")
        self.name = name
        try:
            self.lo: int = operator.index(lo)
            self.hi: int = operator.index(hi)
        except TypeError:
            what = f"variable {name!r} stands for an integer, but its range is {shown(lo)} to {shown(hi)}"
            raise VariableValue(what=what, hint="give ints, its smallest value and its largest") from None
        if self.lo > self.hi:
            what = f"variable {name!r} has no value from {shown(self.lo)} to {shown(self.hi)}"
            raise VariableValue(what=what, hint="give the smallest and then the largest value")

    def now(self) -> int | None:
        """The value, if it is known without a graph."""
        return None

    def evaluate(self, values: Mapping[str, int]) -> int:
        if self.name not in values:
            raise VariableValue(what=f"variable {self.name!r} has no value here", hint="give a value by its name")
        return values[self.name]

    def variables(self) -> dict[str, Variable]:
        return {self.name: self}

    def check(self, value: Any) -> int:
        """`value` as an int. Raises VariableType if it is no int, VariableValue outside the range."""
        try:
            number = operator.index(value)
        except TypeError:
            hint = f"give an int when the graph is called: g({self.name}=3)"
            raise VariableType(variable=self.name, got=shown(value), hint=hint) from None
        if not self.lo <= number <= self.hi:
            what = f"variable {self.name!r} is from {self.lo} to {self.hi}, and got {shown(number)}"
            raise VariableValue(what=what, hint="give a value within, or record with a wider range")
        return number

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.lo}, {self.hi})"


def _operand_hint(names: str, other: Any) -> str:
    """A hint for arithmetic of symbols and `other`, which is no int."""
    if isinstance(other, str):
        return f'write an f-string, such as `f"{{{names.partition(",")[0]}}} rows"`'
    if type(other).__module__ == f"{__package__}.values":
        return "in a body, take the extent from an array that has it: `x.shape[0]` is a traced integer"
    return "give an int; a quotient of ints is `//`"


@public
class Expression(Symbol):
    """Arithmetic on symbols and ints."""

    def __init__(self, sign: str, apply: Callable[[int, int], int], left: Any, right: Any) -> None:
        self.sign = sign
        self.apply = apply
        try:
            operands = (o if isinstance(o, Symbol) else operator.index(o) for o in (left, right))
            self.operands: tuple[Symbol | int, ...] = tuple(operands)
        except TypeError:
            symbol, other = (left, right) if isinstance(left, Symbol) else (right, left)
            names = ", ".join(symbol.variables())
            got = f"{shown(other)} on the other side of {sign}"
            raise VariableType(variable=names, got=got, hint=_operand_hint(names, other)) from None

    def evaluate(self, values: Mapping[str, int]) -> int:
        left, right = (evaluate(o, values) for o in self.operands)
        try:
            return self.apply(left, right)
        except ZeroDivisionError:
            known = ", ".join(f"{name} = {values[name]}" for name in self.variables())
            where, hint = f" where {known}" if known else "", "keep the divisor from 0 by the variable's range"
            raise VariableValue(what=f"{self!r} divides by 0{where}", hint=hint) from None

    def variables(self) -> dict[str, Variable]:
        return variables(self.operands)

    def __repr__(self) -> str:
        if self.sign.isalpha():
            return f"{self.sign}({self.operands[0]!r}, {self.operands[1]!r})"
        left, right = (f"({o!r})" if isinstance(o, Expression) else repr(o) for o in self.operands)
        return f"{left} {self.sign} {right}"


class Within(Symbol):
    """The value of a nested graph's variable, computed by the outer graph and checked against the variable's range."""

    def __init__(self, variable: Variable, value: Symbol) -> None:
        self.variable = variable
        self.value = value

    def evaluate(self, values: Mapping[str, int]) -> int:
        return self.variable.check(self.value.evaluate(values))

    def variables(self) -> dict[str, Variable]:
        return self.value.variables()

    def __repr__(self) -> str:
        return repr(self.value)


def substituted(symbol: Any, outer: Callable[[Variable], Any]) -> Any:
    """A symbol, or an int, with `outer(variable)` in place of each variable."""
    if isinstance(symbol, Variable):
        return outer(symbol)
    if isinstance(symbol, Within):
        value = substituted(symbol.value, outer)
        return Within(symbol.variable, value) if isinstance(value, Symbol) else symbol.variable.check(value)
    if isinstance(symbol, Expression):
        operands = [substituted(operand, outer) for operand in symbol.operands]
        made = Expression(symbol.sign, symbol.apply, *operands)
        return made if any(isinstance(operand, Symbol) for operand in operands) else made.evaluate({})
    return symbol


def evaluate(value: Any, values: Mapping[str, int]) -> Any:
    """`value` with its symbols replaced by ints, in nested tuples, lists and dicts."""
    if isinstance(value, Symbol):
        return value.evaluate(values)
    if type(value) in (tuple, list):
        return type(value)(evaluate(item, values) for item in value)
    if type(value) is dict:
        return {k: evaluate(v, values) for k, v in cast("dict[Any, Any]", value).items()}
    return value


def variables(value: Any) -> dict[str, Variable]:
    """The variables in nested tuples, lists and dicts, by name."""
    found: dict[str, Variable] = {}
    if isinstance(value, Symbol):
        return value.variables()
    if isinstance(value, (tuple, list)):
        for item in cast("tuple[Any, ...]", value):
            found.update(variables(item))
    elif isinstance(value, dict):
        for item in cast("dict[Any, Any]", value).values():
            found.update(variables(item))
    return found
