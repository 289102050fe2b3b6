"""The names of ops that kernels have in PyTorch: one kernel each, so that a model never gets another kernel's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import CellType, FunctionType
from typing import Any, cast

import numpy as np

from .definition import Definition
from .errors import BadCallValue
from .source import of_function

_named: dict[str, Definition] = {}  # the kernels of ops, by name


def take_name(torch: Any, name: str, definition: Definition) -> None:
    """Note that the op `name`, "namespace::op", is this kernel's. Raises `BadCallValue` where it is another's.

    A kernel that is made again may take its name again, as when a cell of a notebook runs again or a factory gets equal
    arguments. Then its new op replaces the old one.
    """
    other = _named.get(name)
    space, _, word = name.partition("::")
    if other is None:
        if space == __package__ or hasattr(getattr(torch.ops, space), word):
            what = f"{name!r} is a name that PyTorch or a library has taken"
            raise BadCallValue(kernel=definition.name, what=what, hint="choose another name")
    elif not _made_again(other, definition):
        what = f"{name!r} is already the op of `{other.name}` at {of_function(other.body)}"
        same = _place(other.body) == _place(definition.body)
        hint = "choose another name" + ", for example one with the values that the body captures" * same
        raise BadCallValue(kernel=definition.name, what=what, hint=hint)
    _named[name] = definition


def _made_again(other: Definition, definition: Definition) -> bool:
    code = getattr(definition.body, "__code__", None)
    if code is None or getattr(other.body, "__code__", None) is code:
        return _alike(other, definition, [])
    return _place(other.body) == _place(definition.body)  # the source ran again, and may have changed


def _place(function: Any) -> tuple[Any, Any]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", function)


def _alike(a: Any, b: Any, open: list[tuple[int, int]]) -> bool:
    """Whether two values of definitions mean the same. `open`: pairs that are being compared."""
    if a is b or (id(a), id(b)) in open:
        return True
    if type(a) is not type(b):
        return False
    open = [*open, (id(a), id(b))]
    if isinstance(a, FunctionType):
        if a.__code__ is not b.__code__:  # made from source that ran again
            return _place(a) == _place(b)
        parts = ("__defaults__", "__kwdefaults__", "__closure__")
        return all(_alike(getattr(a, part), getattr(b, part), open) for part in parts)
    if isinstance(a, CellType):
        return _alike(_content(a), _content(b), open)
    if isinstance(a, Mapping):
        parts, others = cast("Mapping[Any, Any]", a), cast("Mapping[Any, Any]", b)
        return list(parts) == list(others) and _alike(list(parts.values()), list(others.values()), open)
    if isinstance(a, (tuple, list)):
        listed = cast("Sequence[Any]", a)
        return len(listed) == len(b) and all(_alike(x, y, open) for x, y in zip(listed, b, strict=True))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if dataclasses.is_dataclass(a):
        names = [f.name for f in dataclasses.fields(a)]
        return all(_alike(getattr(a, n), getattr(b, n), open) for n in names)
    inner = getattr(a, "_definition", None)  # a kernel that the body calls
    if isinstance(inner, Definition):
        return _alike(inner, b._definition, open)
    try:
        return bool(a == b)
    except Exception:  # an object of the user's, which compares in its own way
        return False


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
