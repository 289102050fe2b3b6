"""What passes between the two rules of `kd.jax.call(...).defvjp`: residuals that stay numbers, and gradients of nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from .diagnostics import of_kind
from .errors import BadCallArgument
from .tree import Record, flatten, pictured

_NUMBERS = (bool, int, float, np.generic)


class StaticNumber:
    """A number among the residuals: a part of their structure, so that JAX makes no array of it."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = (type(value), repr(value))  # equal for two NaNs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticNumber) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def hidden(tree: Any, residuals: Any) -> Any:
    """The residuals with `StaticNumber`s in place of numbers. `tree`: the module `jax.tree`."""
    return tree.map(lambda x: StaticNumber(x) if isinstance(x, _NUMBERS) else x, residuals)


def shown_again(tree: Any, residuals: Any) -> Any:
    """The residuals as the forward rule returned them."""
    return tree.map(
        lambda x: x.value if isinstance(x, StaticNumber) else x,
        residuals,
        is_leaf=lambda x: isinstance(x, StaticNumber),
    )


def plain(x: Any) -> Any:
    """A number of Python in place of one with a dtype, as JAX gives constants to the rules of its own `custom_vjp`."""
    if type(x).__module__.startswith("jax.") and isinstance(x, (int, float)):
        return float(x) if isinstance(x, float) else int(x)
    return x


def by_leaf(name: str, structures: Sequence[Any], made: Any) -> dict[int, Any]:
    """The gradients of leaves, by number. `made`: those of the arguments, whose structures these are.

    Raises `BadCallArgument` for another number of gradients, and for one in another nest than its argument.
    """
    if not isinstance(made, (tuple, list)) or len(cast("Sequence[Any]", made)) != len(structures):
        count = len(cast("Sequence[Any]", made)) if isinstance(made, (tuple, list)) else 1
        what = f"bwd gave {count} gradient{'s' * (count != 1)} for {len(structures)} argument{'s' * (len(structures) != 1)}"
        raise BadCallArgument(kernel=name, what=what, hint="a tuple, with None for an argument without a gradient")
    found: dict[int, Any] = {}
    for number, (structure, gradient) in enumerate(zip(structures, cast("Sequence[Any]", made), strict=True)):
        if not _enter(structure, gradient, found):
            nest = flatten(gradient)[1]
            given = of_kind(gradient) if isinstance(nest, int) else pictured(nest)
            wanted = "an array" if isinstance(structure, int) else pictured(structure)
            what = f"bwd gave {given} for argument {number}, which is {wanted}"
            raise BadCallArgument(kernel=name, what=what, hint="a nest as the argument is, with None for no gradient")
    return found


def _enter(structure: Any, gradient: Any, found: dict[int, Any]) -> bool:
    """Enter the gradients of leaves by number; False for another nest. The gradient of a whole nest may be None."""
    if structure is None or gradient is None:
        return True
    if isinstance(structure, int):
        found[structure] = gradient
        return hasattr(gradient, "dtype") or isinstance(gradient, _NUMBERS)
    if isinstance(structure, Record):
        parts = structure.parts.items()
        return isinstance(gradient, structure.cls) and all(_enter(p, getattr(gradient, n), found) for n, p in parts)
    if isinstance(structure, Mapping):
        named, given = cast("Mapping[Any, Any]", structure), cast("Mapping[Any, Any]", gradient)
        if not isinstance(gradient, Mapping) or given.keys() != named.keys():
            return False
        return all(_enter(part, given[key], found) for key, part in named.items())
    listed, items = cast("Sequence[Any]", structure), cast("Sequence[Any]", gradient)
    if not isinstance(gradient, (tuple, list)) or len(items) != len(listed):
        return False
    return all(_enter(part, item, found) for part, item in zip(listed, items, strict=True))
