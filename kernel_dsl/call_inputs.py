"""Descriptions of a call's arguments: arrays, overlaps, and the arguments of functions of shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from .definition import ArrayInput, Definition, Input, ScalarInput, output_structs
from .dtypes import as_dtype
from .errors import BadCallArgument, BadCallValue, VariableType, VariableUse
from .errors_dims import DimRead
from .loading import first_of
from .memory import ShapeDtypeStruct
from .scalar_struct import ScalarStruct
from .sizes import Geometry, geometry
from .source import here
from .tree import flatten, unflatten
from .variables import Symbol, repeating


def lower_geometry(definition: Definition, inputs: Sequence[Input], leaves: Sequence[Any], structure: Any) -> Geometry:
    """Outputs and grid for `lower`. Functions of shapes get Dims first, and numbers if they need the values."""
    valued: list[bool] = []

    def struct(i: Input, x: Any) -> ShapeDtypeStruct:
        return ScalarStruct(i.dtype, x, lambda: valued.append(True)) if isinstance(i, ScalarInput) else i.struct()

    structs = unflatten(structure, [struct(i, x) for i, x in zip(inputs, leaves, strict=True)])
    sampled = any(isinstance(x, ShapeDtypeStruct) and any(isinstance(n, Symbol) for n in x.shape) for x in leaves)
    made = None
    if definition.shapes is not None:
        try:
            made = geometry(definition, structs, definition.shapes.told(structs))
        except (DimRead, VariableUse, VariableType):  # the functions need values
            if sampled:
                raise
    made = made or geometry(definition, structs)
    return replace(made, by_value=bool(valued), sampled=sampled)


def array_input(view: Any) -> ArrayInput:
    # a kernel is compiled for the alignment of an address, up to 16 bytes, the widest access
    alignment = 16
    while view.address % alignment and alignment > 1:
        alignment //= 2
    return ArrayInput(tuple(view.shape), view.dtype, view.contiguous, alignment)


def overlaps_of(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """(input, output) pairs, by array number, that are the same memory."""
    return tuple(
        (i, len(inputs) + j) for i, a in enumerate(inputs) for j, b in enumerate(outputs) if a.size and a.same_memory(b)
    )


def given_outputs(definition: Definition, out: Any, structs: Iterable[ShapeDtypeStruct], structure: Any) -> list[Any]:
    """The leaves of `out=`. `structs`: those of the inputs. Raises `BadCallArgument`, `BadCallValue` for a wrong `out=`."""
    given, name = flatten(out)[0], definition.name
    expected, _ = output_structs(definition, unflatten(structure, list(structs)))
    if len(given) != len(expected):
        what = f"out= holds {len(given)} arrays, and out_type has {len(expected)}"
        raise BadCallArgument(kernel=name, what=what, hint="give one array for each output", loc=here())
    for number, (array, struct) in enumerate(zip(given, expected, strict=True)):
        if struct is None:
            continue
        shape = tuple(getattr(array, "shape", ()))
        if shape != struct.shape and repeating():  # it has room for the output at the variables' largest values
            array = given[number] = first_of(array, struct.shape)
            shape = tuple(array.shape)
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            what = f"output {number} of out= is a {type(array).__name__}, not an array"
            raise BadCallArgument(kernel=name, what=what, hint="pass preallocated arrays")
        if shape != struct.shape or as_dtype(array.dtype) != struct.dtype:
            what = f"output {number} of out= is {as_dtype(array.dtype)}{list(shape)}, and out_type says {struct}"
            raise BadCallValue(kernel=name, what=what, hint="allocate it with the output's shape and dtype")
    return given


class PreparedCall:
    """A call up to its launch."""

    __slots__ = (
        "arrays",
        "by_value",
        "device",
        "fresh",
        "given",
        "kernel",
        "loaded",
        "logical",
        "outs",
        "packed",
        "scalars",
    )

    def __init__(
        self,
        kernel: Any,
        loaded: Any,
        device: Any,
        arrays: list[Any],
        scalars: list[Any],
        outs: list[Any] | None,
        fresh: bool,
        by_value: bool,
    ) -> None:
        self.kernel: Any = kernel
        self.loaded: Any = loaded
        self.device: Any = device
        self.arrays: list[Any] = arrays
        self.scalars: list[Any] = scalars
        self.outs: list[Any] | None = outs
        self.fresh: bool = fresh  # loaded for this call
        self.by_value: bool = by_value  # its sizes depend on the values of this call's scalars
        self.packed: bool = False  # some arrays have 4-bit elements: `arrays` and `outs` hold their bytes
        self.logical: list[Any] = []  # the arrays as they were passed
        self.given: list[Any] | None = None  # `out=` as it was passed
