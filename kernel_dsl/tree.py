"""Nested tuples, lists and dicts of leaves ("pytrees"), flattened in a fixed order. `None` holds no leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import BadTree

MAX_DEPTH = 64  # of a nest: beyond it is one that holds itself


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Leaves in order, and the structure with leaf numbers in their place. Dicts go in sorted key order.

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
        leaves.append(node)
        return len(leaves) - 1

    return leaves, walk(tree, 0)


def _made(cls: type[Any], items: list[Any]) -> Any:
    """An instance of a subclass of tuple or list."""
    try:
        return cls(*items) if hasattr(cls, "_fields") else cls(items)
    except Exception as error:
        raise BadTree(what=f"a {cls.__name__} is not made from its items: {error}") from None


def _keys(node: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(node)
    except TypeError:
        raise BadTree(what="the keys of a dict have no order") from None


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    """The tree again, with `leaves[i]` where the structure holds the number i."""
    if structure is None:
        return None
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(unflatten(child, leaves) for child in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(unflatten(child, leaves) for child in structure)
    if isinstance(structure, dict):
        return {key: unflatten(child, leaves) for key, child in structure.items()}
    return leaves[structure]
