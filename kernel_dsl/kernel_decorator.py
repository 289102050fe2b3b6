"""`kd.kernel`: the decorator, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, overload

from .boundary import PLAIN, checks_itself
from .definition import Definition
from .diagnostics import shown
from .dims import as_shapes
from .errors import KernelArgument
from .kernel import Kernel, kinds
from .kernel_arguments import as_aliases, axis_names, check_interpret, check_static, check_threads, either
from .mesh import Mesh
from .options import CompilerParams
from .source import runs_later
from .variables import Variable


@overload
def kernel(
    body: Callable[..., None],
    out_shape: Any = None,
    *,
    out_type: Any = (),
    scratch_types: Any = (),
    scratch_shapes: Any = None,
    compiler_params: CompilerParams | None = None,
    grid: Any = (),
    grid_names: Sequence[str] = (),
    cluster: Any = (),
    cluster_names: Sequence[str] = (),
    num_threads: int | None = None,
    thread_name: str | None = None,
    interpret: Any = None,
    debug: bool = False,
    input_output_aliases: Mapping[int, int] | None = None,
    shapes: Mapping[Any, Sequence[int | Variable | None]] | None = None,
    mesh: Mesh | None = None,
    name: str | None = None,
    kernel_name: str | None = None,
) -> Kernel: ...
@overload
def kernel(
    body: None = None,
    out_shape: Any = None,
    *,
    out_type: Any = (),
    scratch_types: Any = (),
    scratch_shapes: Any = None,
    compiler_params: CompilerParams | None = None,
    grid: Any = (),
    grid_names: Sequence[str] = (),
    cluster: Any = (),
    cluster_names: Sequence[str] = (),
    num_threads: int | None = None,
    thread_name: str | None = None,
    interpret: Any = None,
    debug: bool = False,
    input_output_aliases: Mapping[int, int] | None = None,
    shapes: Mapping[Any, Sequence[int | Variable | None]] | None = None,
    mesh: Mesh | None = None,
    name: str | None = None,
    kernel_name: str | None = None,
) -> Callable[[Callable[..., None]], Kernel]: ...
@checks_itself(
    "body", "num_threads", "thread_name", "compiler_params", "grid_names", "cluster_names", "input_output_aliases", "shapes",
    "mesh",
)  # fmt: skip
def kernel(
    body: Callable[..., None] | None = None,
    out_shape: Any = None,
    *,
    out_type: Any = (),
    scratch_types: Any = (),
    scratch_shapes: Any = None,
    compiler_params: CompilerParams | None = None,
    grid: Any = (),
    grid_names: Sequence[str] = (),
    cluster: Any = (),
    cluster_names: Sequence[str] = (),
    num_threads: int | None = None,
    thread_name: str | None = None,
    interpret: Any = None,
    debug: bool = False,
    input_output_aliases: Mapping[int, int] | None = None,
    shapes: Mapping[Any, Sequence[int | Variable | None]] | None = None,
    mesh: Mesh | None = None,
    name: str | None = None,
    kernel_name: str | None = None,
) -> Kernel | Callable[[Callable[..., None]], Kernel]:
    """Make a kernel of `body(*inputs, *outputs, *scratch)`, or a decorator if `body` is left out.

    `out_type`: the outputs' shapes and dtypes, any nest of `ShapeDtypeStruct`s; `out_type`, `grid`, `cluster` and
    `scratch_types` may be functions of the inputs' structs. `grid` counts clusters, `cluster` the blocks of one,
    `num_threads` the warpgroups of a block (128 lanes each). `interpret`: None runs on a GPU if there is one and else
    in the PTX interpreter, True or `kd.InterpretParams(...)` forces the interpreter, False forbids it. `debug` prints
    the stages. `input_output_aliases`: {input: output} that share their contents. `mesh`: devices on which a launch
    runs at the same time; each array of a call is a list of one a device, and so is each result. `shapes`: the extents
    of arrays, by the name or position of the body's parameter (an input or an output). An extent is an int, a `kd.Dim`,
    which the body gets as a traced integer, or None if it is not declared. `out_shape`, `scratch_shapes` and
    `kernel_name` are older names of `out_type`, `scratch_types` and `name`.

    Inputs are arrays, numbers, and tuples, lists, dicts and dataclasses of them; the body gets a dataclass with Refs in
    its fields, and can call its methods. Fields of `field(metadata={"static": True})` stay Python values; each value
    has its own kernel. A function that the body calls is plain Python and is inlined: it needs no decorator.

    Raises `KernelArgument`, `KernelValue`, `ShapesType` and `ShapesValue` for wrong arguments; a call raises
    `DimMismatch` and `DimOutOfRange` if its arrays do not have the extents of `shapes`.
    """
    out_type = either("out_type", out_type, "out_shape", out_shape)
    scratch_types = either("scratch_types", scratch_types, "scratch_shapes", scratch_shapes)
    if name is not None and kernel_name is not None:
        raise KernelArgument(what="both `name` and `kernel_name` are given", hint="`kernel_name` is the old name")
    params = CompilerParams() if compiler_params is None else compiler_params
    if not isinstance(params, CompilerParams):  # pyright: ignore[reportUnnecessaryIsInstance]
        what = f"compiler_params={shown(params)}"
        raise KernelArgument(what=what, hint="use `kd.CompilerParams(...)`")
    names = {"grid_names": axis_names(grid_names, "grid_names")}
    names["cluster_names"] = axis_names(cluster_names, "cluster_names")
    check_threads(num_threads, thread_name)
    aliases = as_aliases(input_output_aliases)

    def decorate(function: Any) -> Kernel:
        if not callable(function):
            hint = "decorate a function, and pass `out_type` by name"
            raise KernelArgument(what=f"the body is {shown(function)}", hint=hint)
        if runs_later(function):
            what = "the body is a generator or an async function, whose call runs nothing"
            raise KernelArgument(what=what, hint=PLAIN)
        definition = Definition(
            cast("Callable[..., None]", function),
            name or kernel_name or getattr(function, "__name__", "kernel"),
            out_type,
            scratch_types,
            grid,
            names["grid_names"],
            cluster,
            names["cluster_names"],
            num_threads,
            thread_name,
            params,
            aliases,
            shapes=as_shapes(shapes, function if function is not _no_body else None),
        )
        check_static(definition)
        if mesh is None:
            return Kernel(definition, interpret, debug)
        return kinds().on_mesh(definition, interpret, debug, mesh)

    own = name or kernel_name
    check_interpret(interpret, getattr(body, "__name__", "kernel") if own is None else own)
    if body is None:  # raises errors now, before a function is decorated
        decorate(_no_body)
        return decorate
    return decorate(body)


def _no_body(*refs: Any) -> None:
    """A placeholder for the function that will be decorated."""
