"""Registry of the other kinds of kernels: mapped ones, those on a mesh, and those in JAX. `Kernel` looks them up here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .batching import vmap
from .definition import Definition
from .errors import BadTree
from .kernel import Kernel, Kinds, enter
from .mesh import Mesh
from .tree import flatten

if TYPE_CHECKING:
    from .profile import Profile


def _on_mesh(definition: Definition, interpret: Any, debug: bool, mesh: Mesh) -> Kernel:
    from .mesh_kernel import MeshKernel

    return MeshKernel(definition, interpret, debug, mesh)


def _with_axis(kernel: Kernel, mapped: tuple[bool, ...], args: Sequence[Any]) -> Kernel | None:
    from .vmapped import with_axis_for

    return with_axis_for(kernel, mapped, args)


def _profile(*args: Any) -> Profile:
    from .profiling import profile

    return profile(*args)


def _tracing(args: tuple[Any, ...]) -> Any:
    from .jax import is_traced, on_tracers

    try:
        leaves = flatten(args)[0]
    except BadTree:  # the call itself raises it, at the user's line
        return None
    return on_tracers if is_traced(leaves) else None


enter(Kinds(vmap, _on_mesh, _with_axis, _profile, _tracing))
