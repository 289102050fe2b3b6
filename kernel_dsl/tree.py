"""Nested tuples, lists and dicts of leaves ("pytrees"), flattened in a fixed order. `None` holds no leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Leaves in order, and the structure with leaf numbers in their place. Dicts go in sorted key order."""
    leaves: list[Any] = []

    def walk(node: Any) -> Any:
        if node is None:
            return None
        if is_leaf is not None and is_leaf(node):
            pass
        elif isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*(walk(child) for child in node))
        elif isinstance(node, (tuple, list)):
            return type(node)(walk(child) for child in node)
        elif isinstance(node, Mapping):
            return {key: walk(node[key]) for key in sorted(node)}
        leaves.append(node)
        return len(leaves) - 1

    return leaves, walk(tree)


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
