"""The body of a kernel on a mesh, with the hidden arguments: the rank, the peers' addresses and the semaphores."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import dtypes as dt
from .body_trace import run_body
from .definition import ArrayInput, Definition, Input, axes, output_structs
from .errors import BadCallArgument, KernelValue
from .memory import ShapeDtypeStruct
from .mesh import Mesh, Meshed, Reach
from .ops.scope import is_spec
from .refs import Ref
from .source import of_function
from .trace import current
from .tree import flatten, unflatten

HIDDEN = 2  # inputs in front of the author's: the rank, and the peers' addresses


class MeshBody:
    """The author's body, as the trace calls it: with the hidden arguments."""

    def __init__(self, definition: Definition, mesh: Mesh, inputs: int, structure: Any) -> None:
        body = definition.body
        self._definition = definition
        self._mesh: Mesh = mesh
        self._inputs = inputs
        self._structure = structure
        self.reach = Reach()
        self.__name__: str = getattr(body, "__name__", definition.name)
        self.__code__: Any = getattr(inspect.unwrap(body), "__code__", None)  # messages show its line
        names = [p.name for p in definition.parameters]
        kind = inspect.Parameter.POSITIONAL_ONLY
        count = inputs + (len(structure) if isinstance(structure, (tuple, list)) else 1)
        shown_names = [names[i] if i < len(names) else f"argument_{i}" for i in range(count)]
        every = dict.fromkeys(["rank", "peers", *shown_names, "semaphores"])
        every = (
            list(every) if len(every) == count + HIDDEN + 1 else [f"argument_{i}" for i in range(count + HIDDEN + 1)]
        )
        self.__signature__: inspect.Signature = inspect.Signature([inspect.Parameter(n, kind) for n in every])

    def __call__(self, rank: Any, peers: Ref, *refs: Any) -> None:
        trace, definition = current(), self._definition
        args, outs, semaphores = refs[: self._inputs], refs[self._inputs : -1], refs[-1]
        arrays = [x for x in flatten((args, outs), lambda x: isinstance(x, Ref))[0] if isinstance(x, Ref)]
        numbers = {ref.root: number for number, ref in enumerate((*arrays, semaphores))}
        structs = [_struct(x) for x in args]
        cluster = axes(definition.cluster, definition.cluster_names, "cluster", structs)
        blocks = [("grid", i, n) for i, n in enumerate(trace.grid)]
        blocks += [("cluster", i, axis.size) for i, axis in enumerate(cluster)]
        trace.mesh = Meshed(self._mesh, rank, peers, numbers, semaphores, blocks, definition.name)
        self.reach: Reach = trace.mesh.reach
        for position, (name, size) in enumerate(zip(self._mesh.names, self._mesh.sizes, strict=True)):
            if name in trace.axes:
                what = f"{name!r} names an axis of the kernel and one of the mesh"
                raise KernelValue(loc=of_function(self), what=what, hint="give every axis its own name")
            trace.axes[name] = ("device", position, size)
        outputs = outs if isinstance(self._structure, (tuple, list)) else outs[0]
        scratch: Any = definition.scratch_types
        if callable(scratch) and not is_spec(scratch):
            scratch = scratch(*structs)
        run_body(definition, args, outputs, self._structure, scratch)


def _struct(x: Any) -> Any:
    leaves, structure = flatten(x, lambda leaf: hasattr(leaf, "shape"))
    return unflatten(structure, [ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves])


def with_mesh(
    definition: Definition, mesh: Mesh, inputs: Sequence[Input], nest: Any, room: int
) -> tuple[Definition, int]:
    """The definition with the hidden arguments (`room` words of semaphores), and the number of arrays in the table.

    Raises `BadCallArgument` for arrays of 4-bit elements.
    """
    structs = unflatten(nest, [i.struct() for i in inputs])
    outs, structure = output_structs(definition, structs)
    for word, specs in (("argument", [i.struct() for i in inputs]), ("output", outs)):
        for number, spec in enumerate(specs):
            if spec is not None and spec.dtype.is_packed:  # nothing packs arrays on a mesh
                hint = f"pass two elements a byte as uint8, and use `ref.bitcast(kd.{spec.dtype})` in the body"
                raise BadCallArgument(
                    kernel=definition.name, what=f"{word} {number} is {spec.dtype}, on {mesh}", hint=hint
                )
    semaphores = ShapeDtypeStruct((room,), dt.int32)
    plain = [None if o is None else ShapeDtypeStruct(o.shape, o.dtype) for o in outs]
    given = unflatten(structure, plain)
    out_type = (*given, semaphores) if isinstance(structure, (tuple, list)) else (given, semaphores)
    arrays = sum(isinstance(i, ArrayInput) for i in inputs) + sum(o is not None for o in outs) + 1
    dims = definition.shapes.values(structs) if definition.shapes else {}
    grid = axes(definition.grid, definition.grid_names, "grid", structs, dims)
    cluster = axes(definition.cluster, definition.cluster_names, "cluster", structs)
    body: Any = MeshBody(definition, mesh, len(structs), structure)
    made = replace(
        definition,
        every_size=True,
        body=body,
        out_type=out_type,
        grid=tuple(a.size for a in grid),
        cluster=tuple(a.size for a in cluster),
        scratch_types=(),
        aliases=(),
        identity="",
        shapes=None,  # each device's arrays are checked, and their extents are known
    )
    return made, arrays


def after(structure: Any, count: int) -> Any:
    """A nest of leaf numbers after `count` single leaves."""
    leaves, again = flatten(structure)
    return (*range(count), *unflatten(again, [n + count for n in leaves]))
