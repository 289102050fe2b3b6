"""Packed and sparse matrices as structures of arrays that JAX knows: arguments and results of `jax.jit`."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import cache
from typing import Any

FIXED = ("shape", "group")  # fields that are no arrays


@cache
def _register(kind: Any, tree: Any) -> None:
    names = [f.name for f in fields(kind)]
    arrays, fixed = [n for n in names if n not in FIXED], [n for n in names if n in FIXED]

    def flatten(x: Any) -> Any:
        return tuple(getattr(x, n) for n in arrays), tuple(getattr(x, n) for n in fixed)

    def unflatten(constants: Any, children: Any) -> Any:
        return kind(*children, *constants)

    tree.register_pytree_node(kind, flatten, unflatten)


def known_to_jax(kind: Any) -> None:
    """Register a dataclass of arrays, once JAX is imported. Its fields `FIXED` are part of a call's key."""
    tree = getattr(sys.modules.get("jax"), "tree_util", None)  # None while JAX is being imported
    if tree is not None:
        _register(kind, tree)
