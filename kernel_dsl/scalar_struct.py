"""The scalar argument of functions of shapes: its dtype, and in a call its value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .dtypes import DType
from .memory import ShapeDtypeStruct


class ScalarStruct(ShapeDtypeStruct):
    """A scalar input of rank 0. In a call it acts as its number in Python's arithmetic."""

    __slots__ = ("_note", "_value")
    scalar = True

    def __init__(self, dtype: DType, value: Any = None, note: Callable[[], None] | None = None) -> None:
        super().__init__((), dtype)
        self._value = value
        self._note = note

    @property
    def value(self) -> Any:
        """The number of this call. Raises `TypeError` if it is not known: in `lower` of a struct."""
        if self._value is None:
            raise TypeError(f"the value of this {self.dtype} scalar is not known here")
        if self._note is not None:
            self._note()
        return self._value

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __neg__(self) -> Any:
        return -self.value

    def __repr__(self) -> str:
        return f"ScalarStruct({self.dtype})" if self._value is None else str(self._value)


def _computing(name: str, reflected: bool) -> Callable[..., Any]:
    function = getattr(operator, name)

    def compute(self: ScalarStruct, other: Any) -> Any:
        other = other.value if isinstance(other, ScalarStruct) else other
        mine = self.value
        mine = mine.item() if isinstance(mine, np.generic) else mine
        return function(other, mine) if reflected else function(mine, other)

    return compute


for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow"):
    setattr(ScalarStruct, f"__{_name}__", _computing(_name, False))
    setattr(ScalarStruct, f"__r{_name}__", _computing(_name, True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(ScalarStruct, f"__{_name}__", _computing(_name, False))
ScalarStruct.__neg__ = lambda self: -self.value
