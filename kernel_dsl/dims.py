"""`kd.Dim`: an extent that comes from each launch, with its range and divisor; and `shapes=`, which declares extents."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, cast

from .arguments import dims_of, static_int
from .boundary import checks_itself
from .diagnostics import Error, shown
from .errors import BadArgumentType, VariableValue
from .errors_dims import (
    DimMismatch,
    DimOutOfRange,
    DimType,
    DimValue,
    ShapesType,
    ShapesValue,
    apart_from_array,
    without_value,
)
from .extents import LARGEST
from .memory import ShapeDtypeStruct, is_leaf
from .source import parameters_of
from .tree import flatten
from .values import Array
from .variables import Symbol, Variable, substituted

Place = tuple[int, int]  # an array, inputs and then outputs, and its axis


class Dim(Variable):
    """An extent that a kernel takes from each launch: `kd.kernel(..., shapes={"a": (M, 512)})` with `M = kd.Dim("M")`.

    It is from `min` to `max` (None: as large as arrays are) and a multiple of `multiple_of`; a call with another extent
    is an error. In the body `a.shape[0]` is a traced integer with these facts; in `grid` and `out_type` it is an int at
    a call. In a graph it is a `kd.Variable`. Raises `DimType`, `DimValue`, and `VariableValue` for a name that is no
    identifier.
    """

    @checks_itself("name", "min", "max", "multiple_of")
    def __init__(self, name: str, min: int = 1, max: int | None = None, multiple_of: int = 1) -> None:
        words = {"min": min, "multiple_of": multiple_of, **({} if max is None else {"max": max})}
        numbers = {word: static_int(n) for word, n in words.items()}
        wrong = next((word for word, n in numbers.items() if n is None), None)
        if wrong is not None:
            raise DimType(what=f"dim {shown(name)}: {wrong}={shown(words[wrong])}", hint="extents are ints")
        low, by = cast("int", numbers["min"]), cast("int", numbers["multiple_of"])
        high = numbers.get("max", LARGEST)
        if low < 0 or by < 1:
            what = f"dim {shown(name)} is at least {shown(low)} and a multiple of {shown(by)}"
            raise DimValue(what=what, hint="extents are 0 or more, and multiples of 1 or more")
        first, last = -(-low // by) * by, cast("int", high) // by * by
        if first > last or last > LARGEST:
            what = (
                f"dim {shown(name)} has no value from {shown(low)} to {shown(high)} that is a multiple of {shown(by)}"
            )
            raise DimValue(what=what, hint="give the smallest and largest value, at most 2**48; or leave `max` out")
        super().__init__(name, first, last)
        self.multiple_of: int = by
        self.min: int = low
        self.max: int | None = max

    def check(self, value: Any) -> int:
        number = super().check(value)
        if number % self.multiple_of:
            what = f"variable {self.name!r} is a multiple of {self.multiple_of}, and got {number}"
            raise VariableValue(what=what, hint="give a value that is such a multiple")
        return number

    def __index__(self) -> int:
        if self.max is None or tracing_dims():
            raise self._without_value(self)
        return super().__index__()

    __int__ = __index__

    def _without_value(self, symbol: Symbol) -> Error:
        return apart_from_array(self.name) if tracing_dims() else without_value(self.name)

    def __repr__(self) -> str:
        most = "" if self.max is None else f", max={self.max}"
        factor = "" if self.multiple_of == 1 else f", multiple_of={self.multiple_of}"
        return f"Dim({self.name!r}, min={self.lo}{most}{factor})"


def factor_of(variable: Variable) -> int:
    """The number that a variable is a multiple of."""
    return variable.multiple_of if isinstance(variable, Dim) else 1


def facts_of(variable: Variable) -> tuple[int, int, int]:
    """(least, most, divisor)."""
    return variable.lo, variable.hi, factor_of(variable)


# --- `kd.specialise` ------------------------------------------------------------------------------


class Again(BaseException):
    """Ends a trace that starts again with known extents.

    It is no `Exception`, so that a body's `except` lets it pass.
    """


_reading: ContextVar[Callable[[set[str]], dict[str, int]] | None] = ContextVar("reading", default=None)


def tracing_dims() -> bool:
    """Whether a kernel with Dims is being traced."""
    return _reading.get() is not None


def reading(by: Callable[[set[str]], dict[str, int]] | None) -> Any:
    """Report to `by` each Dim that is read by name from now on. Returns the token that `done` takes."""
    return _reading.set(by)


def done(token: Any) -> None:
    _reading.reset(token)


def specialise(extent: Any) -> int:
    """The value of an extent as an int: of a `kd.Dim`, of `a.shape[i]`, or of arithmetic on them.

    The kernel is then compiled for this value: a call with another compiles again. An int is returned unchanged. Raises
    `BadArgumentType` for an object that is no extent, and `DimRead` if it has no value: in `lower` of specs with Dims.

    >>> kd.specialise(3)
    3
    """
    number = static_int(extent) if not isinstance(extent, (Symbol, Array)) else None
    if number is not None:
        return number
    names = set(dims_of(extent)) if isinstance(extent, Array) else set[str]()
    if isinstance(extent, Symbol):
        names = set(extent.variables())
    by = _reading.get()
    values = by(names) if names and by is not None else {}
    if isinstance(extent, Symbol):
        return operator.index(settle_dims(extent, values))
    hint = "give a `kd.Dim`, an extent of a Ref such as `a.shape[0]`, or arithmetic on them"
    raise BadArgumentType(op="specialise", what=f"{shown(extent)} is no extent", hint=hint)


# --- `shapes=` ------------------------------------------------------------------------------------


class Shapes:
    """The extents that `shapes=` declares, by the number of the body's parameter: ints, Dims, or None."""

    def __init__(self, by_parameter: Sequence[tuple[int, tuple[Any, ...]]], names: tuple[str, ...]) -> None:
        self.by_parameter: tuple[tuple[int, tuple[Any, ...]], ...] = tuple(by_parameter)
        self.names = names  # of the body's parameters

    @property
    def dims(self) -> dict[str, Variable]:
        """All Dims, by name."""
        return {n.name: n for _, extents in self.by_parameter for n in extents if isinstance(n, Variable)}

    def name(self, parameter: int) -> str:
        return self.names[parameter] if parameter < len(self.names) else f"parameter {parameter}"

    def _checked(self, tree: Sequence[Any], first: int) -> list[tuple[int, Any, tuple[Any, ...]]]:
        """(parameter, struct, extents) of the parameters from `first` on. Raises `ShapesValue`."""
        out: list[tuple[int, Any, tuple[Any, ...]]] = []
        for parameter, extents in self.by_parameter:
            if not first <= parameter < first + len(tree):
                continue
            leaves, _ = flatten(tree[parameter - first], is_leaf)
            if len(leaves) != 1 or leaves[0] is None or getattr(leaves[0], "scalar", False):
                got = "a scalar" if len(leaves) == 1 else f"{len(leaves)} arrays"
                what = f"shapes: {self.name(parameter)!r} is {got} in this call"
                raise ShapesValue(what=what, hint="declare the extents of parameters that are one array")
            if len(leaves[0].shape) != len(extents):
                count = f"{len(extents)} extent{'s' if len(extents) != 1 else ''}"
                what = (
                    f"shapes: {self.name(parameter)!r} is declared with {count}, and this call's has "
                    f"{len(leaves[0].shape)}: {_words(leaves[0].shape)}"
                )
                raise ShapesValue(what=what, hint="give one extent an axis, None for an extent without a declaration")
            if extents and isinstance(extents[-1], Variable) and leaves[0].dtype.is_packed:
                what = f"shapes: the last axis of {self.name(parameter)!r} is {extents[-1].name}, of 4-bit elements"
                raise ShapesValue(what=what, hint="two elements share a byte along it: give an int or None for it")
            out.append((parameter, leaves[0], extents))
        return out

    def values(self, structs: Sequence[Any]) -> dict[str, int]:
        """The values of the Dims in a call with these inputs. Raises `DimMismatch`, `DimOutOfRange`, `ShapesValue`."""
        values: dict[str, int] = {}
        bearers: dict[str, str] = {}
        for parameter, struct, extents in self._checked(structs, 0):
            self._match(parameter, struct.shape, extents, values, bearers)
        return values

    def check_outputs(self, outs: Sequence[Any], inputs: int, values: Mapping[str, int]) -> None:
        """Compare outputs with their declaration. `outs`: the body's parameters after the `inputs` inputs."""
        known, bearers = dict(values), dict.fromkeys(values, "the inputs")
        for parameter, struct, extents in self._checked(outs, inputs):
            self._match(parameter, struct.shape, extents, known, bearers)

    def _match(
        self,
        parameter: int,
        shape: Sequence[Any],
        extents: Sequence[Any],
        values: dict[str, int],
        bearers: dict[str, str],
    ) -> None:
        for axis, (size, extent) in enumerate(zip(shape, extents, strict=True)):
            here = f"axis {axis} of {self.name(parameter)!r}"
            if isinstance(size, Symbol) or extent is None:
                continue
            if not isinstance(extent, Variable):
                if size != extent:
                    what = f"{here} is {size}, and `shapes` says {extent}"
                    raise DimMismatch(what=what, hint="pass an array of that extent, or declare it as a `kd.Dim`")
                continue
            known = values.setdefault(extent.name, size)
            if known != size:
                what = f"{extent.name} is {known} by {bearers[extent.name]}, and {size} by {here}"
                raise DimMismatch(what=what, hint=f"all extents that are {extent.name!r} are equal in a call")
            bearers.setdefault(extent.name, here)
            least, most, factor = facts_of(extent)
            if not least <= size <= most:
                reach = f"at least {least}" if most == LARGEST else f"from {least} to {most}"
                what = f"{extent.name} is {reach}, and {here} is {size}"
                raise DimOutOfRange(what=what, hint="pass an array within, or give the `kd.Dim` a wider range")
            if size % factor:
                what = f"{extent.name} is a multiple of {factor}, and {here} is {size}"
                raise DimOutOfRange(what=what, hint="pad the array, or give the `kd.Dim` a smaller `multiple_of`")

    def check_dims(self, structs: Sequence[Any]) -> None:
        """Compare Dims in the inputs' structs with those that are declared. Raises `DimMismatch`, `ShapesValue`."""
        for parameter, struct, extents in self._checked(structs, 0):
            for axis, (size, extent) in enumerate(zip(struct.shape, extents, strict=True)):
                if isinstance(size, Variable) and isinstance(extent, Variable) and size.name != extent.name:
                    what = f"axis {axis} of {self.name(parameter)!r} is {size.name}, and `shapes` says {extent.name}"
                    raise DimMismatch(what=what, hint=f"give {extent.name} there, or an int")

    def told(self, structs: Sequence[Any]) -> list[Any]:
        """The inputs' structs with Dims for extents."""
        out = list(structs)
        for parameter, struct, extents in self._checked(structs, 0):
            whole = (n if isinstance(n, Variable) else size for n, size in zip(extents, struct.shape, strict=True))
            out[parameter] = ShapeDtypeStruct(tuple(whole), struct.dtype)
        return out

    def places(self, counts: Sequence[int | None]) -> dict[Place, Any]:
        """The declared extents by (array, axis); `counts`: the number of arrays of each parameter."""
        found: dict[Place, Any] = {}
        for parameter, extents in self.by_parameter:
            number = counts[parameter] if parameter < len(counts) else None
            if number is not None:
                found |= {(number, axis): n for axis, n in enumerate(extents) if n is not None}
        return found


def _words(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def as_shapes(given: Any, body: Any) -> Shapes | None:
    """`shapes=` of `kd.kernel`, checked for `body` (None: the body is not known yet).

    Raises `ShapesType`, `ShapesValue`.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ShapesType(what=f"shapes={shown(given)}", hint='a dict, such as {"a": (M, 512)}')
    names = _parameters(body) if body is not None else tuple(k for k in cast("Any", given) if isinstance(k, str))
    found: dict[int, tuple[Any, ...]] = {}
    for key, extents in cast("Mapping[Any, Any]", given).items():
        parameter = _parameter(key, names, body is not None)
        if parameter in found and body is not None:
            what = f"shapes: {shown(key)} names parameter {parameter} once more"
            raise ShapesValue(what=what, hint="declare a parameter by its name or by its position")
        found[parameter] = _extents(key, extents)
    dims: dict[str, Variable] = {}
    for extent in (n for extents in found.values() for n in extents if isinstance(n, Variable)):
        other = dims.setdefault(extent.name, extent)
        if facts_of(other) != facts_of(extent):
            what = f"shapes: two extents are named {extent.name!r}: {other!r} and {extent!r}"
            raise ShapesValue(what=what, hint="use one `kd.Dim`, or other names")
    return Shapes(sorted(found.items()), names) if found else None


def _parameter(key: Any, names: tuple[str, ...], known: bool) -> int:
    listed = ", ".join(names) or "none that can be seen"
    if isinstance(key, str):
        if key not in names:
            what = f"shapes: the body has no parameter {shown(key)}"
            raise ShapesValue(what=what, hint=f"its parameters are {listed}")
        return names.index(key)
    number = static_int(key)
    if number is None:
        raise ShapesType(what=f"shapes: the key {shown(key)}", hint="a parameter's name or position")
    if number < 0 or (known and names and number >= len(names)):
        raise ShapesValue(what=f"shapes: the body has no parameter {number}", hint=f"its parameters are {listed}")
    return number


def _extents(key: Any, given: Any) -> tuple[Any, ...]:
    extents: Sequence[Any] = given if isinstance(given, (tuple, list)) else (given,)
    out: list[Any] = []
    for n in extents:
        number = None if isinstance(n, Symbol) else static_int(n)
        if n is None or isinstance(n, Variable):
            out.append(n)
        elif number is None:
            what = f"shapes: {shown(key)} has the extent {shown(n)}"
            raise ShapesType(what=what, hint="extents are ints, `kd.Dim`s or None")
        elif number < 0:
            raise ShapesValue(what=f"shapes: {shown(key)} has the extent {number}", hint="extents are 0 or more")
        else:
            out.append(number)
    return tuple(out)


def _parameters(body: Any) -> tuple[str, ...]:
    """The names of the parameters, if each takes one argument."""
    found = parameters_of(body)
    several = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in found)
    return () if several else tuple(p.name for p in found)


# --- Dims in functions of shapes ------------------------------------------------------------------


def settle_dims(value: Any, values: Mapping[str, int]) -> Any:
    """`value`, a nest of extents, with the values of Dims in their place."""
    if isinstance(value, Symbol):
        return substituted(value, lambda v: values.get(v.name, v))
    if isinstance(value, (tuple, list)):
        items = [settle_dims(n, values) for n in cast("Sequence[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def sample(shape: Sequence[Any], dims: Mapping[str, Variable]) -> tuple[Any, ...]:
    """A shape in which each Dim is replaced by a value that it can have."""
    return tuple(settle_dims(n, {name: a_value(d) for name, d in dims.items()}) for n in shape)


def a_value(variable: Variable) -> int:
    """A value that a Dim can have: its smallest above 0."""
    least, most, factor = facts_of(variable)
    return min(max(least, factor), most)
