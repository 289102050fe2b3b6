"""Kernels: calls of decorated bodies. Like stages.py it joins the layers."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dtypes as dt
from .boundary import checks_itself, opaque, public, unguarded
from .call_inputs import (
    PreparedCall,
    array_input,
    dtype_of,
    given_outputs,
    lower_geometry,
    lower_input,
    overlaps_of,
    scalar_input,
    struct_of,
)
from .dataclass import changed, dataclass
from .definition import ArrayInput, Definition, Input, output_structs
from .dims import sample
from .errors import BadCallArgument
from .finding import DescribedCall, KernelFinder
from .kernel_arguments import by_position, check_interpret
from .memory import ShapeDtypeStruct, as_shape, is_array_leaf, settled
from .mesh import Mesh
from .named import object_named
from .packed import stored, stored_shape, unpacked
from .sizes import Geometry
from .source import of_function
from .specialisations import Specialisation
from .stages import Stages, print_stages, target_named
from .target import DEFAULT
from .tree import flatten, unflatten

if TYPE_CHECKING:
    from .profile import Profile

# `FastCalls.miss` and `FastCalls.recording`, from the first fast call on: a call reads globals faster than attributes
_miss: Any = None
_recorder: Any = None


@dataclass(frozen=True)
class Kinds:
    """Functions of modules that import this one, for kernels to call; kinds.py enters them."""

    vmap: Callable[[Any, Any], Kernel]
    on_mesh: Callable[[Definition, Any, bool, Mesh], Kernel]
    with_axis: Callable[[Kernel, tuple[bool, ...], Sequence[Any]], Kernel | None]  # see vmapped.py
    profile: Callable[..., Profile]  # see profiling.py
    tracing: Callable[[tuple[Any, ...]], Any]  # for a call with values that JAX traces; None for other calls


_kinds: list[Kinds] = []


def enter(kinds: Kinds) -> None:
    """Enter the functions of the modules that import this one."""
    _kinds[:] = [kinds]


def kinds() -> Kinds:
    return _kinds[0]


@public
class Kernel:
    """A decorated body. Call it with arrays; it is traced and compiled once for each signature.

    `k(*inputs, out=None, stream=None, interpret=None)` returns the outputs, in the structure of `out_type`. Inputs may be
    given by the names of the body's parameters.
    """

    def __init__(self, definition: Definition, interpret: Any, debug: bool) -> None:
        self._definition = definition
        self._interpret = interpret
        self._debug = debug
        self._finder = KernelFinder(debug)
        self._fast: Any = None
        self._values: Any = None  # the scalars of the latest call whose grid or outputs they decide
        functools.update_wrapper(self, definition.body)

    def __repr__(self) -> str:
        return f"<kd.kernel {self._definition.name} of {of_function(self._definition.body)}>"

    @property
    def name(self) -> str:
        return self._definition.name

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = getattr(self, "__qualname__", self.name)
        if not self._definition.batches:
            return name  # the kernel that the body's module has by this name
        base = object_named(self.__module__, name)
        if not isinstance(base, Kernel) or base._definition.body is not self._definition.body:
            raise PicklingError(f"Can't pickle {self!r}: {self.__module__}.{name} is not the kernel that it maps")
        return _mapped, (base, tuple(batch.in_axes for batch in reversed(self._definition.batches)))

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    # --- calling ----------------------------------------------------------------------------------

    @opaque
    def __call__(self, *args: Any, out: Any = None, stream: Any = None, interpret: Any = None, **named: Any) -> Any:
        """Run the kernel. `out`: preallocated outputs; `stream`: a CUDA stream; `interpret`: see `kd.kernel`.

        `named`: inputs by the names of the body's parameters. Raises `BadCallArgument`, `BadCallValue`, and the errors of
        tracing and compiling.
        """
        fast = self._fast
        if fast is not None and interpret is None and not named:
            if stream is None and not _recorder.active:
                result = fast.latest(args, out, None)
                if result is not _miss:
                    return result
            result = fast(args, out, stream)
            if result is not _miss:
                return result
        if named:
            return self(*by_position(self._definition, args, named), out=out, stream=stream, interpret=interpret)
        if "jax" in sys.modules and (on_tracers := kinds().tracing(args)) is not None:
            return on_tracers(self, args, out, stream, interpret)
        return self._call(args, out, stream, interpret)

    @public
    def _call(self, args: tuple[Any, ...], out: Any, stream: Any, interpret: Any) -> Any:
        from kernel_dsl.runtime.plan.recording import made

        return made(self._slow_call, args, out, stream, interpret)

    @unguarded
    def _check_call(self, args: tuple[Any, ...], out: Any) -> list[Any]:
        """Call the kernel on the checking device, for `kd.check`. Returns the outputs, leaf by leaf."""
        from kernel_dsl.runtime import call

        prepared = self._prepare(args, out, True)
        return list(call(prepared.loaded, prepared.arrays, prepared.scalars, prepared.outs))

    @unguarded
    def _zeros_for(self, args: tuple[Any, ...]) -> Any:
        """The outputs of a call, of zeros. Nothing is traced. Raises the errors of a call's arguments."""
        leaves, structure = flatten(args)
        structs = unflatten(structure, [struct_of(x, self.name) for x in leaves])
        made, tree = output_structs(self._definition, structs)
        return unflatten(tree, [np.zeros(o.shape, o.dtype.numpy) for o in made if o is not None])

    @unguarded
    def _compile_for(self, calls: Sequence[tuple[tuple[Any, ...], Any]]) -> int:
        """Compile what calls with these (arguments, `out=`) need, without a launch; see `compiling`.

        Returns the number of signatures.
        """
        before = len(self._finder.table.all)
        for args, out in calls:
            self._prepare(args, out, None)
        return len(self._finder.table.all) - before

    def _slow_call(self, args: tuple[Any, ...], out: Any, stream: Any, interpret: Any) -> Any:
        from kernel_dsl.runtime import call

        interpret = self._interpret if interpret is None else interpret
        if self._definition.params.profile_space and not _recording():
            return kinds().profile(self, args, None, out, stream, interpret).result
        prepared = self._prepare(args, out, interpret)
        results = call(prepared.loaded, prepared.arrays, prepared.scalars, prepared.outs, stream)
        if prepared.packed:
            return unflatten(prepared.kernel.output_tree, unpacked(results, prepared, _nibbles()))
        if interpret is None and prepared.device.kind == "cuda" and self._comes_again(prepared) and not _recording():
            self._learn(args, out, prepared)
        return unflatten(prepared.kernel.output_tree, list(results))

    def _comes_again(self, prepared: PreparedCall) -> bool:
        """Whether a call is worth a fast path. The one that loads a kernel is long, so a later one makes it; where the
        values of scalars decide outputs or grid, one with the values of the call before.
        """
        if not prepared.by_value:
            return not prepared.fresh
        before, self._values = self._values, tuple(prepared.scalars)
        return before == self._values

    def _learn(self, args: tuple[Any, ...], out: Any, prepared: PreparedCall) -> None:
        from kernel_dsl.runtime.plan.dispatch import FastCalls, first

        global _miss, _recorder
        _miss, _recorder = FastCalls.miss, FastCalls.recording
        if self._fast is None:
            self._fast = FastCalls()
        tree = prepared.kernel.output_tree
        flat = type(tree) is tuple and tree == tuple(range(len(tree)))  # a tuple of arrays
        structure = first if tree == 0 else tuple if flat else functools.partial(unflatten, tree)
        fixed: list[tuple[int, Any]] = []
        if prepared.by_value:
            fixed = [(i, x) for i, x in enumerate(args) if any(x is s for s in prepared.scalars)]
            if len(fixed) < len(prepared.scalars):  # scalars in structures stay on the slow path
                return
        self._fast.learn(args, out, prepared.loaded, structure, fixed)

    def _prepare(self, args: tuple[Any, ...], out: Any, interpret: Any) -> PreparedCall:
        """Do everything before the launch: describe the arguments, compile and load the kernel."""
        from kernel_dsl.runtime.arrays.array_view import is_array, view
        from kernel_dsl.runtime.devices.devices import pick_device

        check_interpret(interpret, self.name)
        leaves, structure = flatten(args)
        logical = [x for x in leaves if is_array(x)]
        given_outs = given_outputs(self._definition, out, leaves, structure)
        arrays, packing = stored(logical, _nibbles())
        outs = None if given_outs is None else stored(given_outs, _nibbles(), written=True)[0]
        views = [view(a) for a in arrays]
        out_views = [view(a) for a in outs or ()]
        device = pick_device(interpret, [*views, *out_views])
        seen = zip(views, packing, strict=True)
        inputs = tuple(self._describe(x, seen, is_array) for x in leaves)
        given = None if outs is None else tuple(array_input(v, self.name) for v in out_views)
        target = target_named(self._definition.params.target or device.target.name)
        overlaps = overlaps_of(views, out_views)
        described = DescribedCall(self._definition, leaves, structure, inputs, given, overlaps, target.name)
        loaded, fresh, by_value = self._finder.find(described, self._trace_call, device)
        scalars = [x for x in leaves if not is_array(x)]
        made = PreparedCall(loaded.kernel, loaded, device, arrays, scalars, outs, fresh, by_value)
        made.packed = any(packing) or any(o.packed is not None for o in loaded.kernel.outputs)
        made.given, made.logical = given_outs, logical
        return made

    def specialisations(self) -> list[Specialisation]:
        """The compiled forms of this kernel in this process: one entry for each signature."""
        return list(self._finder.table.all)

    def warm(self, *specs: Any, jobs: int | None = None) -> int:
        """Compile ahead, as `kd.warm` does. Each of `specs` is a tuple of a call's arguments; or they are one call's.

        Raises the errors of `kd.warm`.
        """
        from .ahead import warm

        calls = specs if specs and all(isinstance(s, (tuple, list)) for s in specs) else (specs,)
        return warm([(self, call) for call in calls], jobs)

    @property
    def target(self) -> str | None:
        """The target that `CompilerParams` names; None for the GPU's own."""
        return self._definition.params.target

    def _has_host_code(self) -> bool:
        """Whether calls can be made without Python: one had a fast path, and none asked for scalars' values."""
        return self._fast is not None and not self._finder.decides_by_values()

    def _describe(self, x: Any, views: Any, is_array: Callable[[Any], bool]) -> Input:
        if not is_array(x):
            return scalar_input(x, self.name)
        seen, packed = next(views)
        made = array_input(seen, self.name)
        return made if packed is None else replace(made, packed=packed)

    # --- tracing and compiling --------------------------------------------------------------------

    def _trace(
        self,
        inputs: tuple[Input, ...],
        structure: Any,
        overlaps: tuple[tuple[int, int], ...],
        given: tuple[ArrayInput, ...] | None,
        target: str,
        made: Geometry | None = None,
    ) -> Stages:
        from .body_trace import trace_kernel

        traced = trace_kernel(self._definition, inputs, structure, overlaps, given, target_named(target), made)
        stages = Stages(traced, target_named(target), self._definition.params, overlaps)
        if self._debug:
            print_stages(stages)
        return stages

    def _trace_call(self, call: DescribedCall, made: Geometry | None) -> Stages:
        return self._trace(call.inputs, call.structure, call.overlaps, call.given, call.target, made)

    @checks_itself("target")
    def lower(self, *args: Any, target: str | None = None, **named: Any) -> Stages:
        """Trace for arguments like these (arrays, `ShapeDtypeStruct`s, scalars) and a target; nothing runs.

        Raises `BadCallArgument`, `UnknownTarget`, and the errors of tracing.
        """
        args = by_position(self._definition, args, named)
        leaves, structure = flatten(args)
        inputs = tuple(self._lower_input(x) for x in leaves)
        name = target if target is not None else self._definition.params.target or DEFAULT.name
        made = lower_geometry(self._definition, inputs, leaves, structure)
        return self._trace(inputs, structure, (), None, name, made)

    def _lower_input(self, x: Any) -> Input:
        if isinstance(x, ArrayInput):
            return x
        if isinstance(x, ShapeDtypeStruct):
            shapes = self._definition.shapes
            shape = settled(x.shape, "lower") if shapes is None else settled(sample(x.shape, shapes.dims), "lower")
            if x.dtype.is_packed:
                return ArrayInput(stored_shape(shape, x.dtype, "an array"), dt.uint8, packed=x.dtype)
            return ArrayInput(shape, x.dtype)
        if is_array_leaf(x):
            from kernel_dsl.runtime.arrays.array_view import is_array, view

            if is_array(x):
                return lower_input(x, view, self.name)
            return self._lower_input(ShapeDtypeStruct(as_shape(x.shape, "lower"), dtype_of(x, self.name)))
        return scalar_input(x, self.name)

    def profile(
        self,
        *args: Any,
        space: int = 1024,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
        **named: Any,
    ) -> Profile:
        """Call the kernel, and time each `kd.named_scope` and wait (docs/profiling.md). `space`: events of a warp.

        The `result` of the `Profile` is that of the call. Raises the errors of a call, and `BadArgument` for `space`.
        """
        args = by_position(self._definition, args, named)
        return kinds().profile(self, args, space, out, stream, interpret)

    def bind(self, *args: Any, out: Any = None, stream: Any = None, interpret: Any = None, **named: Any) -> Any:
        """Fix the arguments: after `bound = k.bind(x, y)`, `bound()` launches on the same arrays, the fastest way.

        Raises the errors of a call.
        """
        from kernel_dsl.runtime import bind, bind_packed

        args = by_position(self._definition, args, named)
        prepared = self._prepare(args, out, self._interpret if interpret is None else interpret)
        tree = prepared.kernel.output_tree
        structure = operator.itemgetter(0) if tree == 0 else functools.partial(unflatten, tree)
        if prepared.packed:
            return bind_packed(
                prepared, stream, structure, functools.partial(self, *args, stream=stream, interpret=interpret)
            )
        return bind(prepared.loaded, prepared.arrays, prepared.scalars, prepared.outs, stream, structure)

    @checks_itself("name", "inputs", "backward", "setup_context", "mutates_args")
    def as_torch_op(
        self,
        name: str,
        *,
        inputs: Sequence[str] | int | None = None,
        backward: Callable[..., Any] | None = None,
        setup_context: Callable[..., Any] | None = None,
        mutates_args: Sequence[str] = (),
    ) -> Any:
        """Register this kernel as the `torch.library` op `name` ("namespace::op"), and return the op.

        It runs whole under `torch.compile(fullgraph=True)`. Raises `BadCallValue` for the name of another kernel's op.
        Inputs are tensors, except for parameters that the body annotates as float, int or bool. `inputs` names them if
        the body's signature does not. `backward(ctx, *gradients)` makes the op differentiable: `ctx.saved_tensors` are
        the tensor inputs and the outputs, or the tensors that `setup_context(ctx, inputs, output)` saved.
        `mutates_args` names inputs that are written in place. They need an output in `input_output_aliases`, which is
        then no result of the op. Under `torch.vmap` the grid gets one more axis in front if the blocks do not wait for
        one another and the op has no `backward`; else the kernel is called for each part.
        """
        from kernel_dsl.runtime.torch_op import as_torch_op

        return as_torch_op(
            self, self._definition, name, inputs=inputs, backward=backward, setup_context=setup_context,
            mutates_args=mutates_args, with_axis=functools.partial(kinds().with_axis, self),
        )  # fmt: skip


def _recording() -> bool:
    from kernel_dsl.runtime.plan import recording

    return recording.current() is not None


def _nibbles() -> Any:
    """The arrays of 4-bit elements of the graph that is recording; None if no graph records."""
    from kernel_dsl.runtime.plan import recording

    return getattr(recording.current(), "nibbles", None)


def _mapped(kernel: Kernel, maps: Sequence[Any]) -> Kernel:
    """Unpickle a kernel with `vmap`s, the innermost first."""
    for in_axes in maps:
        kernel = kinds().vmap(kernel, in_axes)
    return kernel


def identified(made: Kernel, *what: Any) -> Kernel:
    """A kernel whose body closes only over values that `what` decides.

    The caches find its machine code without a trace. The repr of each item of `what` must be complete.
    """
    made._definition = changed(made._definition, identity=repr((made.name, *what)))  # pyright: ignore[reportPrivateUsage]
    return made


def remade(kernel: Kernel, change: Callable[[Definition], Definition]) -> Kernel:
    """A kernel with a changed definition, with this one's options. Raises `BadCallArgument` for one on a mesh."""
    if type(kernel) is not Kernel:
        raise BadCallArgument(
            kernel=kernel.name, what="a map of a kernel on a mesh", hint="give its grid another axis instead"
        )
    return Kernel(change(kernel._definition), kernel._interpret, kernel._debug)  # pyright: ignore[reportPrivateUsage]
