"""A kernel as declared: the arguments of `kd.kernel`, and the grid and outputs that they give for the inputs of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, cast

import numpy as np

from .arguments import static_int
from .dataclass import dataclass
from .diagnostics import counted, shown
from .dims import Shapes, settle_dims
from .dtypes import DType, as_dtype
from .errors import KernelArgument, KernelValue
from .ir import Axis
from .lazy import lazy
from .memory import ShapeDtypeStruct, is_leaf, settled
from .options import CompilerParams
from .packed import elements_shape
from .scalar_struct import ScalarStruct
from .source import misfit, parameters_of
from .tree import flatten, holds_record, unflatten


@dataclass(frozen=True)
class ArrayInput:
    """What a compiled kernel depends on of an array argument."""

    shape: tuple[int, ...]
    dtype: DType
    contiguous: bool = True
    alignment: int = 16
    packed: DType | None = None  # the dtype of 4-bit elements; `shape` and `dtype` are then those of the bytes

    def struct(self) -> ShapeDtypeStruct:
        if self.packed is not None:
            return ShapeDtypeStruct(elements_shape(self.shape), self.packed)
        return ShapeDtypeStruct(self.shape, self.dtype)


@dataclass(frozen=True)
class ScalarInput:
    """What a compiled kernel depends on of a scalar argument: never its value."""

    dtype: DType
    weak: bool

    def struct(self) -> ShapeDtypeStruct:
        return ScalarStruct(self.dtype)


Input = ArrayInput | ScalarInput


@dataclass(frozen=True)
class Definition:
    """The arguments of `kd.kernel`, checked."""

    body: Callable[..., None]
    name: str
    out_type: Any
    scratch_types: Any
    grid: Any
    grid_names: tuple[str, ...]
    cluster: Any
    cluster_names: tuple[str, ...]
    num_threads: int | None
    thread_name: str | None
    params: CompilerParams
    aliases: tuple[tuple[int, int], ...]  # (input leaf, output leaf)
    # This, the signature and our own sources decide the trace. Empty where that is unknown: a body can close over
    # anything.
    identity: str = ""
    batches: tuple[Any, ...] = ()  # of `vmap`, outermost first; each is an axis of the grid before the kernel's own
    shapes: Shapes | None = None  # extents that are declared
    every_size: bool = False  # whether each size is compiled separately, as for arrays on many devices

    @lazy
    def parameters(self) -> list[Parameter]:
        """The body's parameters in order; none for a body without a signature."""
        return parameters_of(self.body)


def named_axes(
    grid: tuple[Axis, ...], cluster: tuple[Axis, ...], thread_name: str | None, threads: int
) -> dict[str, tuple[str, int, int]]:
    """For every axis name: its kind ("grid", "cluster" or "thread"), its position, its size.

    Raises `KernelValue` for a name used twice.
    """
    out: dict[str, tuple[str, int, int]] = {}
    rows = [("grid", i, a) for i, a in enumerate(grid)] + [("cluster", i, a) for i, a in enumerate(cluster)]
    if thread_name is not None:
        rows.append(("thread", 0, Axis(thread_name, threads)))
    for kind, position, axis in rows:
        if not axis.name:
            continue
        if axis.name in out:
            raise KernelValue(what=f"{axis.name!r} names two axes", hint="give every axis its own name")
        out[axis.name] = (kind, position, axis.size)
    return out


def axes(
    sizes: Any, names: tuple[str, ...], word: str, structs: Sequence[Any], dims: Mapping[str, int] | None = None
) -> tuple[Axis, ...]:
    """Axes from sizes (or a function of the inputs' structs) and names; `dims`: the values of Dims in this call.

    Raises `KernelValue`, `KernelArgument`.
    """
    given: Any = of_inputs(sizes, word, structs) if callable(sizes) else sizes
    given = settle_dims(given, dims) if dims else given
    items: Sequence[Any] = given if isinstance(given, (tuple, list)) else (given,)
    out: list[int] = []
    for n in items:
        extent = static_int(n)
        if extent is None:
            hint = f"`{word}` is a tuple of ints, or a function of the inputs' shapes that gives one"
            raise KernelArgument(what=f"{word}={shown(given)} is not made of ints", hint=hint)
        out.append(extent)
    if any(n < 0 for n in out):
        raise KernelValue(what=f"{word}={tuple(out)} has a negative extent", hint="extents are 0 or more")
    if word == "cluster" and (len(out) > 3 or any(n < 1 for n in out)):
        raise KernelValue(what=f"cluster={tuple(out)}", hint="a cluster has at most 3 axes, of 1 or more blocks")
    if names and len(names) != len(out):
        raise KernelValue(
            what=f"{len(names)} names ({', '.join(names)}) for {len(out)} axes of {word}={tuple(out)}",
            hint=f"give `{word}_names` one name an axis",
        )
    return tuple(Axis(names[i] if names else "", n) for i, n in enumerate(out))


def output_structs(
    definition: Definition, structs: Sequence[Any], told: Sequence[Any] | None = None
) -> tuple[list[ShapeDtypeStruct | None], Any]:
    """The leaves of `out_type`, as structs, and its structure; `told`: the inputs' structs with Dims, if there are any.
    Raises `KernelArgument`, and the errors of `Shapes.values`.
    """
    dims = definition.shapes.values(structs) if definition.shapes else {}
    declared, structure = declared_outputs(definition, structs if told is None else told)
    made: list[ShapeDtypeStruct | None] = []
    for struct in declared:
        shape = settled(settle_dims(struct.shape, dims) if dims else struct.shape, "out_type")
        made.append(struct if shape is struct.shape else ShapeDtypeStruct(shape, struct.dtype, struct.init))
    if definition.shapes:
        whole = unflatten(structure, made)
        outs = whole if isinstance(structure, (tuple, list)) else (whole,)
        definition.shapes.check_outputs(cast("Sequence[Any]", outs), len(structs), dims)
    return made, structure


def declared_outputs(definition: Definition, given: Sequence[Any]) -> tuple[list[ShapeDtypeStruct], Any]:
    """The outputs that `out_type` gives for `given` structs, whose extents may be symbols, and their structure.

    Raises `KernelArgument`.
    """
    out_type: Any = definition.out_type
    if isinstance(out_type, type) and issubclass(out_type, (np.generic, np.ndarray, int, float, complex)):
        hint = "outputs have a shape and a dtype: `kd.ShapeDtypeStruct(shape, dtype)`"
        raise KernelArgument(what=f"out_type is the type {out_type.__name__}", hint=hint)
    if callable(out_type) and not is_leaf(out_type):
        out_type = of_inputs(out_type, f"out_type of kernel {definition.name!r}", given)
    leaves, structure = flatten(out_type, is_leaf)
    if holds_record(structure):
        hint = "give tuples, lists or dicts of structs; inputs and scratch may be dataclasses"
        raise KernelArgument(what="out_type holds a dataclass", hint=hint)
    made: list[ShapeDtypeStruct] = []
    for leaf in leaves:
        if not is_leaf(leaf):
            hint = "outputs are `kd.ShapeDtypeStruct(shape, dtype)` or anything with shape and dtype"
            raise KernelArgument(what=f"{shown(leaf)} in out_type is not an output", hint=hint)
        whole = isinstance(leaf, ShapeDtypeStruct)
        made.append(leaf if whole else ShapeDtypeStruct(leaf.shape, as_dtype(leaf.dtype), getattr(leaf, "init", None)))
    return made, structure


def of_inputs(function: Callable[..., Any], word: str, structs: Sequence[Any]) -> Any:
    """The result of `function` for the inputs' structs. Raises `KernelArgument` if it takes another number of them."""
    try:
        return function(*structs)
    except TypeError:
        why = misfit(function, *structs)
        if why:
            hint = "it is a function of one struct for each input of the call"
            raise KernelArgument(
                what=f"{word} does not fit {counted(len(structs), 'input')}: {why}", hint=hint
            ) from None
        raise
