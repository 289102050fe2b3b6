"""Conversions of users' arguments: one strict conversion for each kind of parameter.

An `ArgumentPlan` converts all arguments of a call by the annotations of its function, so the declaration of a new function is
enough for its checks. Functions convert parameters of type `Any`, such as operands, shapes and axes, with functions of this file.
"""

from __future__ import annotations

import inspect
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, cast

import numpy as np

from .dataclass import dataclass, evaluated
from .diagnostics import Error, shown
from .errors import BadArgument, BadArgumentType

_T = TypeVar("_T")


class _Other(Exception):
    """A kind raises this for a value of another kind."""


@dataclass(frozen=True)
class ArgumentKind:
    """What a parameter takes: `words` for messages, and a function that converts the value or raises `_Other`."""

    words: str
    accept: Callable[[Any], Any]


# --- the kinds -----------------------------------------------------------------------------------


def _bool(value: Any) -> bool:
    # an int is 0 or 1, as NumPy has it
    if isinstance(value, (bool, np.bool_)) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise _Other


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise _Other


def _int(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise _Other
    if isinstance(value, int):
        return int.__int__(value)
    if getattr(type(value), "__index__", None) is None or _is_traced(value):
        raise _Other
    try:
        return int.__int__(operator.index(value))
    except TypeError as error:
        if isinstance(error, Error):  # a variable without a value raises an error of its own
            raise
        raise _Other from None


def _float(value: Any) -> float:
    if isinstance(value, (float, np.floating)):
        return float(value)
    try:
        return float(_int(value))
    except OverflowError:
        raise _Other from None


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise _Other
    return str.__str__(value)


def _function(value: Any) -> Any:
    if not callable(value):
        raise _Other
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        raise _Other
    return value


TRACED: list[type[Any]] = []  # the classes of values that are unknown while tracing; values.py adds its own


def _is_traced(value: Any) -> bool:
    return isinstance(value, tuple(TRACED))


def _instance(cls: type[Any]) -> ArgumentKind:
    def accept(value: Any) -> Any:
        if not isinstance(value, cls):
            raise _Other
        return value

    name = cls.__name__
    if issubclass(cls, Enum):
        return ArgumentKind(f"one of {', '.join(f'`{name}.{member.name}`' for member in cls)}", accept)
    article = "an" if name[0] in "AEIOU" else "a"
    return ArgumentKind(f"{article} `{name}`", accept)


def _choice(options: tuple[Any, ...]) -> ArgumentKind:
    def accept(value: Any) -> Any:
        for option in options:
            if type(value) is type(option) and value == option:
                return option
        raise _Other

    return ArgumentKind(f"one of {', '.join(map(repr, options))}", accept)


def _several(item: ArgumentKind | None) -> ArgumentKind:
    def accept(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _Other
        return value if item is None else tuple([item.accept(x) for x in value])

    return ArgumentKind("a list or tuple" + ("" if item is None else f", each item {item.words}"), accept)


def _mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _Other
    return value


def _either(kinds: Sequence[ArgumentKind]) -> ArgumentKind:
    def accept(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.accept(value)
            except _Other:
                pass
        raise _Other

    return ArgumentKind(" or ".join(kind.words for kind in kinds), accept)


def _none(value: Any) -> None:
    if value is not None:
        raise _Other


INT, BOOL, FLOAT, STR = (
    ArgumentKind("an int", _int),
    ArgumentKind("True or False", _bool),
    ArgumentKind("a number", _float),
    ArgumentKind("a string", _str),
)
_TRUTH = ArgumentKind("True or False", _truth)  # for parameters where a number has another meaning
_PLAIN: dict[Any, ArgumentKind] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STR,
    bytes: _instance(bytes),
    None: ArgumentKind("None", _none),
    types.NoneType: ArgumentKind("None", _none),
    Callable: ArgumentKind("a function", _function),
    os.PathLike: ArgumentKind("a path", _path),
}
_UNIONS = (typing.Union, types.UnionType)
_LISTS = (list, Sequence)


def kind_of(annotation: Any) -> ArgumentKind | None:
    """The kind that an annotation asks for; None if it allows anything."""
    if annotation is Any or annotation is object:
        return None
    origin = typing.get_origin(annotation) or annotation
    args = typing.get_args(annotation)
    try:
        plain = _PLAIN.get(origin)
    except TypeError:  # not hashable
        return None
    if plain is not None:
        return plain
    if origin in _UNIONS:
        numbers = int in args or float in args
        kinds = [_TRUTH if a is bool and numbers else kind_of(a) for a in args]
        known = [k for k in kinds if k is not None]
        return _either(known) if len(known) == len(kinds) else None
    if origin is Literal:
        return _choice(args)
    if origin in _LISTS or (origin is tuple and args[1:] == (...,)):
        return _several(kind_of(args[0]) if args else None)
    if origin is tuple:
        return _several(None)
    if origin is Mapping or origin is dict:
        return ArgumentKind("a dict", _mapping)
    return _instance(origin) if isinstance(origin, type) else None


NUMBER = _either([INT, FLOAT])

# --- conversions by name -------------------------------------------------------------------------


def refuse(value: Any, op: str, name: str, hint: str) -> NoReturn:
    """Raise `BadArgumentType` for an argument of the wrong kind."""
    items: Sequence[Any] = cast("Sequence[Any]", value) if isinstance(value, (tuple, list)) else (value,)
    for traced in filter(_is_traced, items):
        hint = of_dims(traced, f"{hint}; a traced value is not known while tracing")
        break
    raise BadArgumentType(op=op, what=f"{name}={shown(value)}", hint=hint)


def convert(value: Any, kind: ArgumentKind, op: str, name: str, hint: str = "") -> Any:
    """`value`, converted by `kind`. Raises `BadArgumentType`, and `BadArgument` for an int over 64 bits."""
    try:
        found = kind.accept(value)
    except _Other:
        refuse(value, op, name, hint or kind.words)
    if type(found) is int and not -(2**63) <= found < 2**63:
        raise BadArgument(op=op, what=f"{name}={shown(found)}", hint=hint or "it has at most 64 bits")
    return found


def an_int(
    value: Any, op: str, name: str, *, low: int | None = None, high: int | None = None, hint: str = "", part: str = ""
) -> int:
    """A static int from `low` to `high`. Raises `BadArgumentType`, `BadArgument`."""
    words = "an int" if low is None and high is None else _range_words(low, high)
    number: int = convert(value, INT, op, name, hint or words)
    if (low is not None and number < low) or (high is not None and number > high):
        raise BadArgument(op=op, what=f"{part or name}={number}", hint=hint or words)
    return number


def _range_words(low: int | None, high: int | None) -> str:
    if high is None:
        return f"an int, {low} or more"
    return f"an int, at most {high}" if low is None else f"an int from {low} to {high}"


def static_int(value: Any) -> int | None:
    """`value` as an int; None for bools, traced values and all else."""
    try:
        return _int(value)
    except _Other:
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
                kind = _either([kind, _PLAIN[None]])
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
    return f"`kd.specialise(...)` of it is an int, which {listed} of the call decide, at a compile for each; or {otherwise}"
