"""The kinds of users' arguments: what each annotation takes, in words and as a strict conversion."""

from __future__ import annotations

import operator
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import numpy as np

from .dataclass import dataclass
from .diagnostics import Error


class OtherKind(Exception):
    """A kind raises this for a value of another kind."""


@dataclass(frozen=True)
class ArgumentKind:
    """What a parameter takes: `words` for messages, and a function that converts the value or raises `OtherKind`."""

    words: str
    accept: Callable[[Any], Any]


def _bool(value: Any) -> bool:
    # an int is 0 or 1, as NumPy has it
    if isinstance(value, (bool, np.bool_)) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise OtherKind


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise OtherKind


def int_of(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise OtherKind
    if isinstance(value, int):
        return int.__int__(value)
    if getattr(type(value), "__index__", None) is None or is_traced(value):
        raise OtherKind
    try:
        return int.__int__(operator.index(value))
    except TypeError as error:
        if isinstance(error, Error):  # a variable without a value raises an error of its own
            raise
        raise OtherKind from None


def _float(value: Any) -> float:
    if isinstance(value, (float, np.floating)):
        return float(value)
    try:
        return float(int_of(value))
    except OverflowError:
        raise OtherKind from None


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise OtherKind
    return str.__str__(value)


def _function(value: Any) -> Any:
    if not callable(value):
        raise OtherKind
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        raise OtherKind
    return value


TRACED: list[type[Any]] = []  # the classes of values that are unknown while tracing; values.py adds its own


def is_traced(value: Any) -> bool:
    return isinstance(value, tuple(TRACED))


def _instance(cls: type[Any]) -> ArgumentKind:
    def accept(value: Any) -> Any:
        if not isinstance(value, cls):
            raise OtherKind
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
        raise OtherKind

    return ArgumentKind(f"one of {', '.join(map(repr, options))}", accept)


def _several(item: ArgumentKind | None) -> ArgumentKind:
    def accept(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise OtherKind
        return value if item is None else tuple([item.accept(x) for x in value])

    return ArgumentKind("a list or tuple" + ("" if item is None else f", each item {item.words}"), accept)


def _mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise OtherKind
    return value


def either(kinds: Sequence[ArgumentKind]) -> ArgumentKind:
    def accept(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.accept(value)
            except OtherKind:
                pass
        raise OtherKind

    return ArgumentKind(" or ".join(kind.words for kind in kinds), accept)


def _none(value: Any) -> None:
    if value is not None:
        raise OtherKind


INT, BOOL, FLOAT, STR = (
    ArgumentKind("an int", int_of),
    ArgumentKind("True or False", _bool),
    ArgumentKind("a number", _float),
    ArgumentKind("a string", _str),
)
NONE = ArgumentKind("None", _none)
_TRUTH = ArgumentKind("True or False", _truth)  # where a number has another meaning, or None is a third choice
_PLAIN: dict[Any, ArgumentKind] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STR,
    bytes: _instance(bytes),
    None: NONE,
    types.NoneType: NONE,
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
        strict = any(a in args for a in (int, float, types.NoneType))  # 1 of three choices is no switch, but a mistake
        kinds = [_TRUTH if a is bool and strict else kind_of(a) for a in args]
        known = [k for k in kinds if k is not None]
        return either(known) if len(known) == len(kinds) else None
    if origin is Literal:
        return _choice(args)
    if origin in _LISTS or (origin is tuple and args[1:] == (...,)):
        return _several(kind_of(args[0]) if args else None)
    if origin is tuple:
        return _several(None)
    if origin is Mapping or origin is dict:
        return ArgumentKind("a dict", _mapping)
    return _instance(origin) if isinstance(origin, type) else None


NUMBER = either([INT, FLOAT])
