"""Conversions of users' arguments: one strict conversion for each kind of parameter.

An `ArgumentPlan` converts all arguments of a call by the annotations of its function, so the declaration of a new function is
enough for its checks. Functions convert parameters of type `Any`, such as operands, shapes and axes, with functions of this file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from .argument_kinds import INT, NONE, ArgumentKind, OtherKind, either, int_of, is_traced, kind_of
from .dataclass import evaluated
from .diagnostics import shown
from .errors import BadArgument, BadArgumentType

_T = TypeVar("_T")


def refuse(value: Any, op: str, name: str, hint: str) -> NoReturn:
    """Raise `BadArgumentType` for an argument of the wrong kind."""
    items: Sequence[Any] = cast("Sequence[Any]", value) if isinstance(value, (tuple, list)) else (value,)
    for traced in filter(is_traced, items):
        hint = of_dims(traced, f"{hint}; a traced value is not known while tracing")
        break
    raise BadArgumentType(op=op, what=f"{name}={shown(value)}", hint=hint)


def convert(value: Any, kind: ArgumentKind, op: str, name: str, hint: str = "") -> Any:
    """`value`, converted by `kind`. Raises `BadArgumentType`, and `BadArgument` for an int over 64 bits."""
    try:
        found = kind.accept(value)
    except OtherKind:
        refuse(value, op, name, hint or kind.words)
    if type(found) is int and not -(2**63) <= found < 2**63:
        raise BadArgument(op=op, what=f"{name}={shown(found)}", hint=hint or "it has at most 64 bits")
    return found


def an_int(value: Any, op: str, name: str, *, low: int | None = None, high: int | None = None, hint: str = "") -> int:
    """A static int from `low` to `high`. Raises `BadArgumentType`, `BadArgument`."""
    words = "an int" if low is None and high is None else _range_words(low, high)
    number: int = convert(value, INT, op, name, hint or words)
    if (low is not None and number < low) or (high is not None and number > high):
        raise BadArgument(op=op, what=f"{name}={number}", hint=hint or words)
    return number


def _range_words(low: int | None, high: int | None) -> str:
    if high is None:
        return f"an int, {low} or more"
    return f"an int, at most {high}" if low is None else f"an int from {low} to {high}"


def static_int(value: Any) -> int | None:
    """`value` as an int; None for bools, traced values and all else."""
    try:
        return int_of(value)
    except OtherKind:
        return None


def static_ints(values: Any, op: str, name: str, hint: str) -> tuple[int, ...]:
    """The ints of a tuple or list. Raises `BadArgumentType`."""
    out: list[int] = []
    for value in values if isinstance(values, (tuple, list)) else (None,):
        number = static_int(value)
        if number is None:
            refuse(values, op, name, hint)
        out.append(number)
    return tuple(out)


def strings(value: Any, op: str, name: str) -> tuple[str, ...]:
    """One string, or a tuple or list of them. Raises `BadArgumentType`."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, (tuple, list)) or not all(isinstance(s, str) for s in given):
        refuse(value, op, name, "a string, or a tuple of strings")
    return tuple([str.__str__(s) for s in given])


def a_function(value: Any, op: str, name: str, hint: str = "a function") -> Callable[..., Any]:
    """Something that can be called. Raises `BadArgumentType`."""
    if not callable(value):
        refuse(value, op, name, hint)
    return value


# --- all arguments of a call ---------------------------------------------------------------------


class ArgumentPlan:
    """The conversions of one function's parameters."""

    def __init__(self, function: Callable[..., Any], op: str) -> None:
        self._op = op
        self._by_place: list[tuple[int, str, ArgumentKind]] = []
        self._by_name: dict[str, ArgumentKind] = {}
        self._rest: tuple[int, str, ArgumentKind] | None = None  # *args
        self._others: tuple[str, ArgumentKind] | None = None  # **kwargs
        for place, parameter in enumerate(parameters_of(function)):
            if parameter.annotation is inspect.Parameter.empty or parameter.name in getattr(
                function, "__checks_itself__", ()
            ):
                continue
            kind = kind_of(annotation_of(function, parameter))
            if kind is None:
                continue
            if parameter.default is None and not kind.words.endswith("None"):
                kind = either([kind, NONE])
            if parameter.kind is _REST:
                self._rest = place, parameter.name, kind
            elif parameter.kind is _OTHERS:
                self._others = parameter.name, kind
            else:
                if parameter.kind is not _NAMED:
                    self._by_place.append((place, parameter.name, kind))
                if parameter.kind is not _POSITIONAL_ONLY:
                    self._by_name[parameter.name] = kind
        self.empty: bool = not (self._by_place or self._by_name or self._rest or self._others)

    def converted(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments, each converted for its parameter. Raises `BadArgumentType`, `BadArgument`."""
        given = list(args)
        for place, name, kind in self._by_place:
            if place >= len(given):
                break
            given[place] = convert(given[place], kind, self._op, name)
        if self._rest is not None:
            place, name, kind = self._rest
            for i in range(place, len(given)):
                given[i] = convert(given[i], kind, self._op, f"{name}[{i - place}]")
        for key in keywords:
            kind = self._by_name.get(key)
            if kind is None and self._others is not None:
                kind = self._others[1]
            if kind is not None:
                keywords[key] = convert(keywords[key], kind, self._op, key)
        return given, keywords


_POSITIONAL_ONLY, _POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_REST, _NAMED, _OTHERS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD


def parameters_of(function: Any) -> Sequence[inspect.Parameter | _Parameter]:
    """What `inspect.signature` says of a function; of a plain one by its code alone, at a tenth of the time."""
    first = ""
    if not isinstance(function, FunctionType) and "__signature__" in vars(
        type(function)
    ):  # a method as its callers see it
        function, first = function.__wrapped__, "self"
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return list(inspect.signature(function).parameters.values())
    code = function.__code__
    count, only, named = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    kinds = [_POSITIONAL_ONLY] * only + [_POSITIONAL] * (count - only) + [_NAMED] * named
    names = list(code.co_varnames[: count + named])
    at = count + named
    if code.co_flags & inspect.CO_VARARGS:
        names.insert(count, code.co_varnames[at])
        kinds.insert(count, _REST)
        at += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        names.append(code.co_varnames[at])
        kinds.append(_OTHERS)
    defaults = dict(
        zip(
            code.co_varnames[count - len(function.__defaults__ or ()) : count], function.__defaults__ or (), strict=True
        )
    )
    defaults |= function.__kwdefaults__ or {}
    annotations, empty = function.__annotations__, inspect.Parameter.empty
    return [
        _Parameter(
            first if first and not place else name, kind, defaults.get(name, empty), annotations.get(name, empty)
        )
        for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]


class _Parameter(NamedTuple):
    """As `inspect.Parameter`, which checks what it is given."""

    name: str
    kind: Any
    default: Any
    annotation: Any


def annotation_of(function: Callable[..., Any], parameter: inspect.Parameter | _Parameter) -> Any:
    """What a parameter is annotated with, evaluated; `Any` for names that only a type checker knows."""
    said: Any = parameter.annotation
    if not isinstance(said, str):
        return Any if said is inspect.Parameter.empty else said
    known: dict[str, Any] = inspect.unwrap(function).__globals__
    try:
        return evaluated(said, known)
    except (NameError, AttributeError):
        return Any


# --- values that are computed of Dims ------------------------------------------------------------


def dims_of(value: Any) -> tuple[str, ...]:
    """The names of the Dims that a traced value is computed from; none if anything else is in it, too."""
    names: dict[str, None] = {}
    pending, seen = [value], set[int]()
    while pending:
        op = getattr(pending.pop(), "op", None)
        if op is None or op.effect or op.region_list():
            return ()
        if id(op) in seen:
            continue
        seen.add(id(op))
        name = op.dim_name
        if name:
            names[name] = None
        pending += op.values()
    return tuple(sorted(names))


def of_dims(value: Any, otherwise: str) -> str:
    """An error's help where Python needs the number in a traced value: `kd.specialise`, if it is made of Dims."""
    names = dims_of(value)
    if not names:
        return otherwise
    listed = " and ".join(names)
    source = f"an int that comes from {listed} of the call, at a compile for each value"
    return f"`kd.specialise(...)` of it is {source}; or {otherwise}"
