"""`kd.jax`: kernels inside JAX's transformations. JAX is imported at first use."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .boundary import public, unguarded
from .call_inputs import struct_of
from .diagnostics import of_kind, shown
from .errors import BadCallArgument
from .interpret_params import InterpretParams
from .jax_primitive import Spec, jax_modules, numbers_told, primitive
from .kernel import Kernel
from .kernel_arguments import by_position
from .memory import is_array_leaf
from .packed import refuse_packed
from .residuals import by_leaf, hidden, plain, shown_again
from .torch_ops import no_forward_mode
from .tree import flatten, unflatten

__all__ = ["JaxCall", "call"]

_PLAIN = {"float": float, "int": int, "bool": bool}


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether one of these is a value that JAX traces."""
    jax: Any = sys.modules.get("jax")
    tracer = getattr(getattr(jax, "core", None), "Tracer", None)
    return tracer is not None and any(isinstance(x, tracer) or _is_literal(x, jax.Array) for x in leaves)


def _is_literal(x: Any, array: Any) -> bool:
    """Whether this is one of the constants that JAX's `custom_vjp` passes to rules in place of arrays."""
    return type(x).__module__.startswith("jax.") and hasattr(x, "dtype") and not isinstance(x, array)


def varying_axes(x: Any) -> frozenset[Any]:
    """The axes of a mesh over which a value varies inside `shard_map`, as its type says."""
    aval = getattr(x, "aval", None)
    kind = getattr(aval, "manual_axis_type", None)  # JAX before 0.9 has the axes themselves
    return getattr(aval, "vma", frozenset()) if kind is None else kind.varying


def same_axes(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, with types that vary over the same axes of a mesh, as JAX's own operations make them.

    The transpose of such a cast sums the gradients of an array that all devices share.
    """
    own = [varying_axes(x) for x in arrays]
    axes = frozenset[Any]().union(*own)
    if not axes:
        return list(arrays)
    lax = jax_modules().jax.lax
    cast = functools.partial(lax.pcast, to="varying") if hasattr(lax, "pcast") else lax.pvary
    return [cast(x, tuple(axes - has)) if axes - has else x for x, has in zip(arrays, own, strict=True)]


@public
class JaxCall:
    """A kernel as a function of JAX arrays. `f(*args)` in `jit`, `vmap`, `scan`, `shard_map`, and `grad` after `defvjp`."""

    def __init__(self, kernel: Kernel, vmap: str) -> None:
        self.kernel = kernel
        self._vmap = vmap
        self._way: Any = None  # `interpret` of a call; `_interpret` is the kernel's, whose attributes are copied here
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        functools.update_wrapper(self, kernel)

    def __repr__(self) -> str:
        return f"<kd.jax.call of {self.kernel!r}>"

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> JaxCall:
        """Define the derivative, as `jax.custom_vjp.defvjp` does.

        `fwd(*args)` returns (result, residuals); `bwd(residuals, gradients)` returns one gradient for each argument, or
        None. Returns this function.
        """
        self._rules = (fwd, bwd)
        return self

    @unguarded
    def __call__(self, *args: Any, **named: Any) -> Any:
        args = by_position(self.kernel._definition, args, named)  # pyright: ignore[reportPrivateUsage]
        given, structure = flatten(args)
        leaves = [plain(x) for x in given]
        _check_scalars(self.kernel, unflatten(structure, leaves))
        arrays = [x for x in leaves if is_array_leaf(x)]
        scalars = tuple(None if is_array_leaf(x) else x for x in leaves)
        spec = Spec(self.kernel, structure, scalars, self._vmap, self._way)
        for x in arrays:
            if any(type(n).__module__.startswith("jax.") for n in x.shape):
                what = f"an array of the shape {tuple(x.shape)}, with sizes that are symbols"
                raise BadCallArgument(kernel=self.kernel.name, what=what, hint="trace it for sizes that are ints")
        for x in leaves:
            struct = struct_of(x, self.kernel.name)  # raises for anything that can't be an argument
            if struct.dtype.is_packed:
                refuse_packed(self.kernel.name, "a call that JAX traces", struct.dtype)
        if self._rules is None:
            return _bind(spec, arrays)
        return reverse_mode_only(self.kernel.name, self._differentiable(spec), same_axes(arrays))

    def _differentiable(self, spec: Spec) -> Any:
        """The function of the arrays alone. Other arguments have no gradient."""
        assert self._rules is not None
        given_fwd, given_bwd = self._rules
        name = self.kernel.name

        def arguments(arrays: Sequence[Any]) -> list[Any]:
            return list(unflatten(spec.structure, spec.leaves(arrays)))

        tree = jax_modules().jax.tree

        def fwd(*arrays: Any) -> Any:
            made = given_fwd(*arguments(arrays))
            if not isinstance(made, (tuple, list)) or len(made) != 2:
                return made  # JAX says so
            return made[0], hidden(tree, made[1])

        def bwd(residuals: Any, gradients: Any) -> tuple[Any, ...]:
            found = by_leaf(name, spec.structure, given_bwd(shown_again(tree, residuals), gradients))
            return tuple(found.get(i) for i, x in enumerate(spec.scalars) if x is None)

        function = jax_modules().jax.custom_vjp(lambda *arrays: _bind(spec, arrays))
        function.defvjp(fwd, bwd)
        return function


def call(kernel: Kernel, *, vmap: str | None = None) -> JaxCall:
    """A kernel as a function of JAX arrays, for `jit` and the other transformations; a call with tracers does the same.

    Arrays may be in nests of tuples, lists and dicts; the result has the structure of `out_type`. Python and NumPy
    scalars are static. On a CPU the interpreter runs it, on a GPU code without Python. `input_output_aliases` of the
    kernel are given to XLA. `vmap`: "grid" adds an axis before the grid, "loop" repeats the call; by default "grid", if
    the kernel allows it. Differentiable after `.defvjp(fwd, bwd)`. Raises `BadCallArgument` for an object that is no
    kernel, a kernel on a mesh, and another `vmap`.
    """
    if not isinstance(kernel, Kernel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadCallArgument(kernel="jax.call", what=of_kind(kernel), hint="pass a `@kd.kernel`")
    from .mesh_kernel import MeshKernel

    if isinstance(kernel, MeshKernel):
        what, hint = f"a kernel on {kernel.mesh}", "call it outside of JAX's transformations, with lists of arrays"
        raise BadCallArgument(kernel=kernel.name, what=what, hint=hint)
    if vmap not in (None, "grid", "loop"):
        raise BadCallArgument(kernel=kernel.name, what=f"vmap={shown(vmap)}", hint='None, "grid" or "loop"')
    jax_modules()
    return JaxCall(kernel, vmap or "")


def on_tracers(kernel: Kernel, args: tuple[Any, ...], out: Any, stream: Any, interpret: Any) -> Any:
    """A call of a kernel with tracers among its arguments. `interpret`: True or `InterpretParams`, for programs on a CPU."""
    given = [name for name, x in (("out", out), ("stream", stream)) if x is not None]
    hint = "JAX chooses the memory of results and the stream: use `input_output_aliases` and donation"
    if not (interpret is None or interpret is True or isinstance(interpret, InterpretParams)):
        given.append("interpret")
        hint = "JAX chooses the device: give True or `kd.InterpretParams(...)` for a program on a CPU, or leave it out"
    if given:
        raise BadCallArgument(kernel=kernel.name, what=f"{given[0]}= in a call that JAX traces", hint=hint)
    made = call(kernel)
    made._way = interpret  # pyright: ignore[reportPrivateUsage]
    return made(*args)


def _check_scalars(kernel: Kernel, args: tuple[Any, ...]) -> None:
    """Raise `BadCallArgument` for a traced value in a parameter that the body annotates as a number."""
    body = kernel._definition.body  # pyright: ignore[reportPrivateUsage]
    notes: Any = getattr(body, "__annotations__", {})
    if not notes:
        return
    for name, x in zip(inspect.signature(body).parameters, args, strict=False):
        note = notes.get(name)
        plain = _PLAIN.get(note, note) if isinstance(note, str) else note
        if plain in (float, int, bool) and is_traced([x]):
            what = f"{name!r} is a static number ({plain.__name__}), but got a value that JAX traces"
            hint = (
                f"make it static, `jax.jit(..., static_argnames={name!r})`, or have the kernel take an array of rank 0"
            )
            raise BadCallArgument(kernel=kernel.name, what=what, hint=hint)


def _bind(spec: Spec, arrays: Sequence[Any]) -> Any:
    with numbers_told(spec, arrays):
        _, tree = spec.outputs(arrays)
    return unflatten(tree, primitive().bind(*same_axes(arrays), spec=spec))


def reverse_mode_only(name: str, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """A call of JAX's `custom_vjp`. Raises `BadCallArgument` where it is differentiated forwards."""
    try:
        return function(*arrays)
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise no_forward_mode(name, "jax.vjp, jax.grad or jax.jacrev") from None
