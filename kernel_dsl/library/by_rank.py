"""Calls with one process a GPU: the library's functions on a mesh, given this rank's arrays alone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from kernel_dsl.boundary import checks_itself
from kernel_dsl.mesh import Mesh, has_ranks, is_group
from kernel_dsl.symmetric import OfRank

_T = TypeVar("_T", bound=Callable[..., Any])

TIMEOUT = 600.0  # seconds, where the caller says none: a rank that died leaves the others with an error


def by_rank(function: _T) -> _T:
    """The function, which takes and gives one array where it has a list of one a device: then the call is this rank's.

    `mesh` may be the group of the ranks. The arrays are the parameters before it, and `out` or `grads`.
    """
    names = list(inspect.signature(function).parameters)
    first = names.index("mesh")
    arrays = (*names[:first], *({"out", "grads"} & set(names[first:])))

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        mesh = given.get("mesh", keywords.get("mesh"))
        alone = not isinstance(mesh, Mesh) and is_group(mesh)
        if not alone and not (isinstance(mesh, Mesh) and has_ranks(mesh) and any(_is_array(x) for x in args[:first])):
            return function(*args, **keywords)
        if len(args) > len(names) or given.keys() & keywords.keys():
            return function(*args, **keywords)  # which says what is wrong
        whole = given | keywords
        if alone:
            whole["mesh"] = mesh = _mesh_of(mesh)
        for name in arrays:
            if name in whole:
                whole[name] = _wrapped(whole[name], mesh)
        if "timeout" in names and whole.get("timeout") is None:
            whole["timeout"] = TIMEOUT
        return _unwrapped(function(**whole))

    return checks_itself("mesh")(call)  # type: ignore[return-value]


@functools.lru_cache(maxsize=64)
def _mesh_of(group: Any) -> Mesh:
    return Mesh(("rank",), (group.size(),), group)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, list)


def _wrapped(x: Any, mesh: Any) -> Any:
    if isinstance(x, (tuple, list)) and not isinstance(x, OfRank):
        return type(x)(_wrapped(one, mesh) for one in x)  # pyright: ignore[reportUnknownVariableType]
    return OfRank([x], mesh) if _is_array(x) else x


def _unwrapped(x: Any) -> Any:
    if isinstance(x, OfRank):
        return x[0]
    return tuple(map(_unwrapped, x)) if isinstance(x, tuple) else x  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
