"""Nested tuples, lists, dicts and dataclasses of leaves ("pytrees"), flattened in a fixed order. `None` holds no leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from .dataclass import dataclass
from .diagnostics import shown
from .errors import BadTree

MAX_DEPTH = 64  # levels of a nest; a deeper one probably contains itself


@dataclass(frozen=True)
class Record:
    """The structure of an instance of a user's dataclass: the structures of its fields, and the values of static ones."""

    cls: type[Any]
    parts: dict[str, Any]
    static: dict[str, Any]

    def __repr__(self) -> str:  # a part of keys, so it distinguishes classes of one name
        return f"{self.cls.__qualname__}@{id(self.cls)}({self.parts}, {self.static})"

    def of(self, leaves: list[Any]) -> Any:
        """An instance whose fields are trees of these leaves, made without `__init__`, which may require arrays."""
        made = object.__new__(self.cls)
        for name, part in self.parts.items():
            object.__setattr__(made, name, unflatten(part, leaves))
        for name, value in self.static.items():
            object.__setattr__(made, name, value)
        return made


def _is_record(cls: type[Any]) -> bool:
    """Whether instances are nodes: the class is a dataclass, neither ours nor an array of a framework."""
    own = cls.__module__.partition(".")[0] == "kernel_dsl"
    arrays = ("shape", "__dlpack__", "__array_interface__", "__cuda_array_interface__")
    return is_dataclass(cls) and not own and not any(hasattr(cls, name) for name in arrays)


def holds_record(structure: Any) -> bool:
    """Whether some node of a structure is a dataclass."""
    if isinstance(structure, Mapping):
        return any(map(holds_record, structure.values()))
    return isinstance(structure, Record) or (isinstance(structure, (tuple, list)) and any(map(holds_record, structure)))


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Leaves in order, and the structure with leaf numbers in their place. Dicts go in sorted key order.

    Fields of dataclasses go in the order of the class; those of `field(metadata={"static": True})` belong to the structure.

    Raises `BadTree` for a nest that holds itself, keys that have no order, and classes that are not made from their items.
    """
    leaves: list[Any] = []

    def walk(node: Any, depth: int) -> Any:
        if node is None:
            return None
        cls: type[Any] = type(node)
        if is_leaf is not None and is_leaf(node):
            pass
        elif issubclass(cls, (tuple, list)):
            if depth == MAX_DEPTH:
                raise BadTree(what=f"it is over {MAX_DEPTH} deep, or holds itself")
            items = [walk(child, depth + 1) for child in node]
            return items if cls is list else tuple(items) if cls is tuple else _made(cls, items)
        elif issubclass(cls, Mapping):
            if depth == MAX_DEPTH:
                raise BadTree(what=f"it is over {MAX_DEPTH} deep, or holds itself")
            return {key: walk(node[key], depth + 1) for key in _keys(node)}
        elif cls is Record:
            return Record(node.cls, {name: walk(part, depth + 1) for name, part in node.parts.items()}, node.static)
        elif _is_record(cls):
            if depth == MAX_DEPTH:
                raise BadTree(what=f"it is over {MAX_DEPTH} deep, or holds itself")
            static = {f.name: getattr(node, f.name) for f in fields(cls) if f.metadata.get("static")}
            named = [f.name for f in fields(cls) if f.name not in static]
            return Record(cls, {name: walk(getattr(node, name), depth + 1) for name in named}, static)
        leaves.append(node)
        return len(leaves) - 1

    return leaves, walk(tree, 0)


def _made(cls: type[Any], items: list[Any]) -> Any:
    """An instance of a subclass of tuple or list, or of the class that its `nest` names."""
    cls = getattr(cls, "nest", cls)
    try:
        return cls(*items) if hasattr(cls, "_fields") else cls(items)
    except Exception as error:
        raise BadTree(what=f"a {cls.__name__} is not made from its items: {error}") from None


def _keys(node: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(node)
    except TypeError:
        raise BadTree(what="the keys of a dict have no order") from None


def pictured(structure: Any) -> str:
    """A structure for messages: `(value, {'a': value})`."""
    if isinstance(structure, Record):
        static = [f"{name}={shown(value)}" for name, value in structure.static.items()]
        return f"{structure.cls.__name__}({', '.join([*_fields(structure.parts), *static])})"
    if isinstance(structure, dict):
        parts = cast("dict[Any, Any]", structure)
        return "{" + ", ".join(f"{key!r}: {pictured(part)}" for key, part in parts.items()) + "}"
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return f"{type(structure).__name__}({', '.join(_fields(cast('Any', structure)._asdict()))})"
    if isinstance(structure, (tuple, list)):
        items = [pictured(part) for part in cast("list[Any]", structure)]
        if isinstance(structure, list):
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return "None" if structure is None else "value"


def other_keys(given: Any, wanted: Any) -> bool:
    """Whether a structure has dicts where the wanted one has none, or with other keys. Tuples and lists are alike."""
    if isinstance(given, dict):
        pairs = cast("dict[Any, Any]", given)
        if not isinstance(wanted, dict) or pairs.keys() != cast("dict[Any, Any]", wanted).keys():
            return True
        return any(other_keys(part, wanted[key]) for key, part in pairs.items())
    if isinstance(given, (tuple, list)) and isinstance(wanted, (tuple, list)):
        return any(map(other_keys, cast("Sequence[Any]", given), cast("Sequence[Any]", wanted)))
    return False


def _fields(parts: Mapping[str, Any]) -> list[str]:
    return [f"{name}={pictured(part)}" for name, part in parts.items()]


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    """The tree again, with `leaves[i]` where the structure holds the number i."""
    if structure is None:
        return None
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(unflatten(child, leaves) for child in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(unflatten(child, leaves) for child in structure)
    if isinstance(structure, Record):
        return structure.of(leaves)
    if isinstance(structure, dict):
        return {key: unflatten(child, leaves) for key, child in structure.items()}
    return leaves[structure]
