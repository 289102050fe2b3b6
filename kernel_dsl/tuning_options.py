"""The options of `kd.tune`, checked: configurations, counts, seconds and budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np

from .diagnostics import of_kind, shown
from .errors_tuning import TuneType, TuneValue, TuningSpace
from .tuning_file import written

LARGEST = 100_000  # configurations of a space
_WORDS = ("none", "cached")


def listed(space: Any, op: str) -> list[Any]:
    """The configurations of a space, each once. Raises `TuningSpace`, `TuneValue`."""
    try:
        if isinstance(space, (str, bytes)):
            raise TypeError
        items: Iterator[Any] = iter(space)
    except TypeError:
        raise TuningSpace(name=op, what=f"the space is {shown(space)}", hint="give a list of configurations") from None
    found: dict[str, Any] = {}
    for config in islice(items, LARGEST + 1):
        if not is_dataclass(config) or isinstance(config, type):
            what = f"the space holds {shown(config)}"
            raise TuningSpace(
                name=op, what=what, hint="make configurations instances of a class with `@dataclass(frozen=True)`"
            )
        try:
            found.setdefault(written(config), config)
        except ValueError as error:
            hint = "fields are numbers, texts, enumerations, dtypes, and nests of them"
            raise TuningSpace(
                name=op, what=f"{of_kind(config)} can't be written to a file: {error}", hint=hint
            ) from None
        if len(found) > LARGEST:
            break
    if not found or len(found) > LARGEST:
        what = f"the space has over {LARGEST} configurations" if found else "the space has no configuration"
        raise TuneValue(name=op, what=what, hint=f"give from 1 to {LARGEST} configurations")
    return list(found.values())


def number_of(value: Any, word: str, op: str, kind: type = Real) -> Any:
    """A number of this kind, checked. Raises `TuneType`, `TuneValue`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer) if kind is int else kind):
        raise TuneType(name=op, what=f"{word}={shown(value)}", hint="an int" if kind is int else "a number")
    try:
        return int(value) if kind is int else float(value)
    except (OverflowError, ValueError):
        raise TuneValue(name=op, what=f"{word}={shown(value)}", hint="a number that a float can hold") from None


def seconds_of(value: Any, word: str, op: str) -> float:
    """A number of seconds above 0, checked. Raises `TuneType`, `TuneValue`."""
    number = number_of(value, word, op)
    if not (math.isfinite(number) and number > 0):
        raise TuneValue(name=op, what=f"{word}={shown(value)}", hint="a number of seconds above 0")
    return number


def budget_of(value: Any, op: str) -> str | float:
    """A budget, checked: a word, or seconds."""
    hint = '"none", "cached", or a number of seconds to measure for'
    if isinstance(value, str):
        if value not in _WORDS:
            raise TuneValue(name=op, what=f"budget={shown(value)}", hint=hint)
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TuneType(name=op, what=f"budget={shown(value)}", hint=hint)
    return seconds_of(value, "budget", op)
