"""The primitive of JAX that stands for a call of a kernel. JAX is imported at first use.

Its abstract evaluation needs only `out_type`. On a CPU it lowers to a callback of the interpreter, on a GPU to a foreign
function call of host code, without Python.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import forking
from .call_inputs import scalar_input, struct_of
from .definition import ArrayInput, Definition, Input, output_structs
from .dtypes import as_dtype
from .errors import BadCallArgument
from .kernel import Kernel
from .lazy import once
from .memory import ShapeDtypeStruct
from .residuals import StaticNumber
from .source import of_function
from .target import DEFAULT
from .tree import flatten, unflatten

_NUMBER = (
    "{name!r} is a number that JAX traces, so it is an array of rank 0: load it in the body, `{name}[...]`; "
    "or make it static, as an argument of jax.jit by `jax.jit(..., static_argnames={name!r})`."
)
# the function of the library whose kernels are called, within its forward and backward passes
inside_rule: ContextVar[str] = ContextVar("kernel_dsl_rule", default="")
_keep: list[Any] = []  # machine code whose address host code holds


@once
def jax_modules() -> Any:
    """The modules of JAX that are used here. Raises `BadCallArgument` where it is not installed."""
    from importlib import import_module

    try:
        names = (
            "",
            ".ffi",
            ".core",
            ".extend.core",
            ".interpreters.ad",
            ".interpreters.batching",
            ".interpreters.mlir",
        )
        modules = {n.rpartition(".")[2] or "jax": import_module(f"jax{n}") for n in names if n != ".extend.core"}
        primitive = import_module("jax.extend.core").Primitive
        callback = import_module("jax.experimental.buffer_callback").buffer_callback
    except ImportError as error:
        what = f"JAX can't be imported ({error})"
        raise BadCallArgument(kernel="jax.call", what=what, hint="python -m pip install 'jax>=0.8.3'") from None
    modules["jax"].tree_util.register_pytree_node(StaticNumber, lambda x: ((), x), lambda x, _: x)
    return SimpleNamespace(**modules, Primitive=primitive, buffer_callback=callback)


@dataclass(frozen=True, eq=False)
class Spec:
    """A call of a kernel without its arrays. `scalars`: by leaf, None for arrays. `interpret`: options of the interpreter,
    if the call has any. `rule`: the library's function around it.
    """

    kernel: Kernel
    structure: Any
    scalars: tuple[Any, ...]
    vmap: str
    interpret: Any = None
    rule: str = field(default_factory=inside_rule.get)
    key: Any = field(init=False)

    def __post_init__(self) -> None:
        kinds = tuple((type(x), x) if x is not None else None for x in self.scalars)
        object.__setattr__(
            self, "key", (self.kernel, repr(self.structure), kinds, self.vmap, self.interpret, self.rule)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def definition(self) -> Definition:
        return self.kernel._definition  # pyright: ignore[reportPrivateUsage]

    def leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """The arguments, leaf by leaf."""
        rest = iter(arrays)
        return [next(rest) if x is None else x for x in self.scalars]

    def structs(self, arrays: Sequence[Any]) -> list[Any]:
        made = [struct_of(x, self.kernel.name) for x in self.leaves(arrays)]
        return unflatten(self.structure, made)

    def outputs(self, arrays: Sequence[Any]) -> tuple[list[ShapeDtypeStruct], Any]:
        made, tree = output_structs(self.definition, self.structs(arrays))
        return [o for o in made if o is not None], tree

    @property
    def aliases(self) -> dict[int, int]:
        """Pairs of array numbers, inputs and outputs each counted from 0."""
        before = np.cumsum([0, *(x is None for x in self.scalars)])
        return {int(before[i]): o for i, o in self.definition.aliases}


@contextmanager
def numbers_told(spec: Spec, avals: Sequence[Any]) -> Generator[None]:
    """Add to an error about a Ref or a struct a note on each number among the arguments that JAX traces."""
    try:
        yield
    except Exception as error:
        if "Ref" in str(error) or "ShapeDtypeStruct" in str(error):
            names = dict(enumerate(inspect.signature(spec.definition.body).parameters))
            for aval, top in zip(avals, _tops(spec), strict=True):
                if top in names and not aval.shape and isinstance(spec.structure[top], int):
                    error.add_note(_NUMBER.format(name=names[top]))
        raise


@once
def primitive() -> Any:
    """The primitive, registered with its rules. It takes arrays and a `Spec`."""
    j = jax_modules()
    p = j.Primitive("kernel_dsl")
    p.multiple_results = True
    p.def_impl(_eager)
    p.def_abstract_eval(_shapes)
    j.batching.primitive_batchers[p] = _batched
    j.ad.primitive_jvps[p] = _no_derivative
    j.ad.primitive_transposes[p] = _no_transpose
    j.mlir.register_lowering(p, _lowered(_on_cpu), platform="cpu")
    j.mlir.register_lowering(p, _lowered(_on_gpu), platform="cuda")
    return p


def _eager(*arrays: Any, spec: Spec) -> Any:
    """A call outside of jit. It is a program of its own, also where the user has disabled jit to debug."""
    with jax_modules().jax.disable_jit(False):
        return _jitted(spec)(*arrays)


@functools.lru_cache(maxsize=1024)
def _jitted(spec: Spec) -> Any:
    return jax_modules().jax.jit(lambda *arrays: primitive().bind(*arrays, spec=spec))


def _shapes(*avals: Any, spec: Spec) -> list[Any]:
    """Abstract evaluation: the outputs of `out_type`, which vary over each axis of a mesh that an input varies over."""
    made, _ = spec.outputs(avals)
    j = jax_modules()
    like: Any = next((a for a in avals if getattr(a, "manual_axis_type", None) or getattr(a, "vma", None)), None)
    if like is None:  # outside of `shard_map`
        return [j.core.ShapedArray(o.shape, o.dtype.numpy) for o in made]
    mesh, spec_of = like.sharding.mesh, j.jax.sharding.PartitionSpec
    places = [j.jax.sharding.NamedSharding(mesh, spec_of(*[None] * len(o.shape))) for o in made]
    pairs = zip(made, places, strict=True)
    return [like.update(shape=o.shape, dtype=o.dtype.numpy, weak_type=False, sharding=place) for o, place in pairs]


def _no_derivative(primals: Any, tangents: Any, *, spec: Spec) -> Any:
    if spec.rule:
        what = "it has no second derivative: its gradient is made of kernels"
        raise BadCallArgument(kernel=spec.rule, what=what, hint="differentiate it once")
    if spec.definition.body.__module__.startswith(f"{__package__}.library."):
        hint = (
            "of the library's functions, attention, conv2d, grouped_matmul, layer_norm, linear_cross_entropy, matmul, rms_norm "
            "and rope have gradients, but not for factors such as scales"
        )
        raise BadCallArgument(kernel=spec.kernel.name, what="it has no derivative", hint=hint)
    hint = (
        "give the gradients: `f = kd.jax.call(kernel)`, `f.defvjp(fwd, bwd)`, and call `f`, "
        "also in `fwd` and `bwd` for second derivatives"
    )
    raise _refusal(spec, "it has no derivative", hint)


def _no_transpose(gradients: Any, *arrays: Any, spec: Spec) -> Any:
    hint = "give the gradients of the function around it by `jax.custom_vjp`, or of the kernel by `kd.jax.call(...).defvjp`"
    raise _refusal(spec, "it is differentiated backwards as if it were linear", hint)


def _refusal(spec: Spec, what: str, hint: str) -> BadCallArgument:
    """An error while JAX calls this module: it ends at the kernel's own line."""
    return BadCallArgument(kernel=spec.kernel.name, what=what, hint=hint, loc=of_function(spec.definition.body))


@functools.lru_cache(maxsize=1024)
def _check(spec: Spec, avals: tuple[tuple[tuple[int, ...], Any], ...]) -> None:
    """Trace and lower the kernel, so that its errors are raised while JAX lowers, before the program runs."""
    trace = spec.kernel._trace  # pyright: ignore[reportPrivateUsage]
    assert trace(_inputs(spec, avals), spec.structure, (), None, spec.kernel.target or DEFAULT.name).llvm


def _lowered(function: Callable[..., Any]) -> Any:
    """A lowering rule from a function of JAX's operations."""
    rule: Any = jax_modules().mlir.lower_fun(function, multiple_results=True)

    def lower(ctx: Any, *operands: Any, spec: Spec) -> Any:
        if getattr(ctx.module_context.lowering_parameters, "for_export", False):
            what = "jax.export can't save it: its code exists only in this process"
            hint = "export the kernel itself: `kernel.lower(...).export(name, c=True)`"
            raise _refusal(spec, what, hint)
        with numbers_told(spec, ctx.avals_in):
            _check(spec, tuple((tuple(a.shape), as_dtype(a.dtype)) for a in ctx.avals_in))
        return rule(ctx, *operands, spec=spec)

    return lower


def _on_cpu(*arrays: Any, spec: Spec) -> Any:
    outputs, tree = spec.outputs(arrays)
    own = spec.interpret or spec.kernel._interpret  # pyright: ignore[reportPrivateUsage]

    def run(_: Any, outs: Any, *given: Any) -> None:
        args = unflatten(spec.structure, spec.leaves([np.asarray(x) for x in given]))
        out = [np.asarray(x) for x in outs]
        spec.kernel(*args, out=unflatten(tree, out) if out else None, interpret=own or True)

    structs = [jax_modules().jax.ShapeDtypeStruct(o.shape, o.dtype.numpy) for o in outputs]
    return jax_modules().buffer_callback(run, structs, input_output_aliases=spec.aliases, has_side_effect=not structs)(
        *arrays
    )


def _on_gpu(*arrays: Any, spec: Spec) -> Any:
    if spec.interpret is not None:
        hint = "leave interpret= out, or place the arrays on a CPU: `jax.device_put(x, jax.devices('cpu')[0])`"
        raise _refusal(spec, "interpret= in a program that JAX compiles for a GPU", hint)
    avals = tuple((tuple(x.shape), as_dtype(x.dtype)) for x in arrays)
    name, kernel = _handler(spec, avals)
    j = jax_modules().jax
    results = [j.ShapeDtypeStruct(o.shape, o.dtype.numpy) for o in kernel.outputs]
    spaces = () if kernel.launch.empty else kernel.workspaces
    hidden = [j.ShapeDtypeStruct((-(-s.bytes // 4) * 4 + s.alignment,), np.uint8) for s in spaces]
    from kernel_dsl.runtime.devices.params import scalar_bytes

    dtypes = [i.dtype for i in _inputs(spec, avals) if not isinstance(i, ArrayInput)]
    values = [x for x in spec.scalars if x is not None]
    data = b"".join(scalar_bytes(x, t).ljust(16, b"\0") for x, t in zip(values, dtypes, strict=True))
    attributes = {"scalars": np.frombuffer(data, np.uint8)} if data else {}
    made = j.ffi.ffi_call(
        name, [*results, *hidden], input_output_aliases=spec.aliases, has_side_effect=kernel.effects or not results
    )(*arrays, **attributes)
    return list(made)[: len(results)]


def _inputs(spec: Spec, avals: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[Input, ...]:
    """The kernel's inputs: XLA's arrays are row-major, at multiples of 16 bytes."""
    rest, name = iter(avals), spec.kernel.name
    return tuple(ArrayInput(*next(rest)) if x is None else scalar_input(x, name) for x in spec.scalars)


_handlers: dict[Any, tuple[str, Any]] = {}
_guard = forking.lock()


def _handler(spec: Spec, avals: tuple[tuple[tuple[int, ...], Any], ...]) -> tuple[str, Any]:
    """The name of the registered handler, and the `CompiledKernel`. Calls with other values of scalars share them."""
    from .hosting import ffi_handler
    from .loading import assembled

    inputs = _inputs(spec, avals)
    key = (spec.kernel, repr(spec.structure), inputs)
    with _guard:
        found = _handlers.get(key)
        if found is None:
            pairs = tuple((i, len(avals) + o) for i, o in spec.aliases.items())
            target = spec.kernel.target or _gpu_target()
            trace = spec.kernel._trace  # pyright: ignore[reportPrivateUsage]
            made = assembled(trace(inputs, spec.structure, pairs, None, target))
            code = ctypes.create_string_buffer(made.cubin + b"\0")
            _keep.append(code)
            scalars = sum(not isinstance(i, ArrayInput) for i in inputs)
            address = ffi_handler(made.kernel, ctypes.addressof(code), scalars)
            name = f"kernel_dsl.{spec.kernel.name}.{len(_handlers)}"
            ffi = jax_modules().ffi
            ffi.register_ffi_target(name, ffi.pycapsule(ctypes.c_void_p(address)), platform="CUDA")
            found = _handlers[key] = (name, made.kernel)
    return found


def _gpu_target() -> str:
    from kernel_dsl.runtime.devices.devices import cuda_device

    return cuda_device().target.name


# --- vmap -----------------------------------------------------------------------------------------


def _batched(arrays: Sequence[Any], dims: Sequence[Any], *, spec: Spec) -> Any:
    """Add a leading axis to the grid if the kernel allows it, else loop. All outputs get a first axis."""
    j = jax_modules()
    size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
    mapped = _mapped(spec, tuple(d is not None for d in dims))
    flags = tuple(mapped[top] for top in _tops(spec))
    moved = [
        x if not flag else j.jax.numpy.broadcast_to(x, (size, *x.shape)) if d is None else j.jax.numpy.moveaxis(x, d, 0)
        for x, d, flag in zip(arrays, dims, flags, strict=True)
    ]
    if spec.vmap != "loop":
        from .vmapped import with_axis  # operations, imported for the first trace

        wider = replace(spec, kernel=with_axis(spec.kernel, mapped))
        avals = tuple((tuple(x.shape), as_dtype(x.dtype)) for x in moved)
        if spec.vmap == "grid" or _allows(wider, avals):
            made = primitive().bind(*moved, spec=wider)
            return made, [0] * len(made)
    lone = [x for x, flag in zip(moved, flags, strict=True) if not flag]

    def one(parts: Any) -> Any:
        rows, rest = iter(parts), iter(lone)
        return primitive().bind(*(next(rows if flag else rest) for flag in flags), spec=spec)

    made = j.jax.lax.map(one, tuple(x for x, flag in zip(moved, flags, strict=True) if flag))
    return made, [0] * len(made)


def _tops(spec: Spec) -> list[int]:
    """For each array, the argument that it is part of."""
    owner = [number for number, top in enumerate(spec.structure) for _ in flatten(top)[0]]
    return [number for number, x in zip(owner, spec.scalars, strict=True) if x is None]


def _mapped(spec: Spec, flags: Sequence[bool]) -> tuple[bool, ...]:
    """For each argument, whether its arrays have the axis of the batch: one has it, or is the alias of an output."""
    starts = set(spec.aliases)
    have = {top for i, (top, flag) in enumerate(zip(_tops(spec), flags, strict=True)) if flag or i in starts}
    return tuple(number in have for number in range(len(spec.structure)))


def _allows(wider: Spec, avals: tuple[tuple[tuple[int, ...], Any], ...]) -> bool:
    """Whether a kernel can have another axis."""
    from .vmapped import may_run

    trace, inputs = wider.kernel._trace, _inputs(wider, avals)  # pyright: ignore[reportPrivateUsage]
    return may_run(wider.kernel, inputs, wider.structure, lambda to: trace(inputs, wider.structure, (), None, to))
