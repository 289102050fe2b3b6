"""Classes that the IR's text form prints by name, as attributes."""

from __future__ import annotations

from typing import Any, TypeVar

from .compiled import Swizzle

ATTRIBUTE_TYPES: dict[str, type[Any]] = {}
_C = TypeVar("_C", bound=type[Any])


def attribute_type(cls: _C) -> _C:
    """Let values of this frozen dataclass or Enum stand as attributes in the text form."""
    ATTRIBUTE_TYPES[cls.__name__] = cls
    return cls


attribute_type(Swizzle)
