"""Descriptions of a call's arguments: arrays, scalars, outputs, overlaps, and the arguments of functions of shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import dtypes as dt
from .definition import ArrayInput, Definition, Input, ScalarInput, output_structs
from .diagnostics import counted, of_kind, shown
from .dtypes import as_dtype
from .errors import BadCallArgument, BadCallValue, LiteralOutOfRange, VariableType, VariableUse
from .errors_dims import DimRead
from .ir import Value
from .loading import first_of
from .memory import ShapeDtypeStruct, is_array_leaf, is_leaf
from .no_arithmetic import NoArithmetic
from .packed import pack, packed_dtype, refuse_packed
from .scalar_struct import ScalarStruct
from .sizes import Geometry, geometry
from .source import here
from .tree import flatten, other_keys, pictured, unflatten
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
        if sampled:
            pairs = zip(inputs, leaves, strict=True)
            given = [x if isinstance(x, ShapeDtypeStruct) else struct(i, x) for i, x in pairs]
            definition.shapes.check_dims(unflatten(structure, given))
        try:
            made = geometry(definition, structs, definition.shapes.told(structs))
        except (DimRead, VariableUse, VariableType):  # the functions need values
            if sampled:
                raise
    made = made or geometry(definition, structs)
    return replace(made, by_value=bool(valued), sampled=sampled)


def struct_of(x: Any, kernel: str) -> ShapeDtypeStruct:
    """The shape and dtype of an argument, for functions of shapes. Raises the errors of `dtype_of` and `scalar_input`."""
    if isinstance(x, ShapeDtypeStruct):
        return x
    if is_array_leaf(x):
        return ShapeDtypeStruct(tuple(x.shape), dtype_of(x, kernel))
    return ScalarStruct(scalar_input(x, kernel).dtype, x)


def dtype_of(x: Any, kernel: str, array: str = "an array") -> dt.DType:
    """The dtype of an array. Raises `BadCallArgument` for one that no argument can have."""
    try:
        return as_dtype(x.dtype)
    except TypeError:
        names = ", ".join(d.name for d in dt.ALL)
        what = f"{array} of dtype {x.dtype} can't be an argument"
        raise BadCallArgument(kernel=kernel, what=what, hint=f"dtypes are {names}") from None


def scalar_input(x: Any, kernel: str) -> ScalarInput:
    """A scalar argument. Raises `LiteralOutOfRange`, `BadCallArgument`, `VariableUse`."""
    if isinstance(x, np.generic):
        return ScalarInput(dtype_of(x, kernel), weak=False)
    if isinstance(x, int) and not -(2**31) <= x < 2**31:
        wide = "np.int64" if -(2**63) <= x < 2**63 else "np.uint64"
        hint = f"Python ints are int32; pass `{wide}({shown(x)})`"
        raise LiteralOutOfRange(value=x, dtype=dt.int32, hint=hint)
    dtype = dt.of_python(x)
    if dtype is not None:
        return ScalarInput(dtype, weak=True)
    if isinstance(x, Symbol):
        operator.index(x)  # a graph's variable without a value raises its own error
    hint = "pass arrays, numbers, or nests of them"
    if isinstance(x, (Value, NoArithmetic)):
        hint = "a body can't call a kernel; it calls plain functions, and the trace inlines them"
    raise BadCallArgument(kernel=kernel, what=f"an input of type {type(x).__name__}", hint=hint)


def given_outputs(d: Definition, out: Any, leaves: Sequence[Any], structure: Any) -> list[Any] | None:
    """The leaves of `out=`. Raises `BadCallArgument`, `BadCallValue` if they don't match `out_type`."""
    if out is None:
        return None
    given, shape = flatten(out)
    structs = unflatten(structure, [struct_of(x, d.name) for x in leaves])
    expected, wanted = output_structs(d, structs)
    if other_keys(shape, wanted):
        what = f"out= is {pictured(shape)}, and the outputs are {pictured(wanted)}"
        raise BadCallArgument(kernel=d.name, what=what, hint="give each output under its key", loc=here())
    if len(given) != len(expected):
        what = f"out= holds {counted(len(given), 'array')} for {counted(len(expected), 'output')}"
        raise BadCallArgument(kernel=d.name, what=what, hint="give one array for each output", loc=here())
    for number, (array, struct) in enumerate(zip(given, expected, strict=True)):
        if struct is None:
            continue
        if not is_leaf(array):
            what = f"output {number} of out= is {of_kind(array)}, not an array"
            raise BadCallArgument(kernel=d.name, what=what, hint="pass preallocated arrays")
        shape = tuple(array.shape)
        if shape != struct.shape and repeating():  # it has room for the output at the variables' largest values
            array = given[number] = first_of(array, struct.shape)
            shape = tuple(array.shape)
        dtype = dtype_of(array, d.name, f"output {number} of out=")
        if shape != struct.shape or dtype != struct.dtype:
            wanted = f"{struct.dtype}{list(struct.shape)}"
            what = f"output {number} of out= is {dtype}{list(shape)} in place of {wanted}"
            raise BadCallValue(kernel=d.name, what=what, hint="allocate it with the output's shape and dtype")
    return given


def array_input(view: Any, kernel: str) -> ArrayInput:
    """The description of an array. Raises `BadCallArgument` for 4-bit elements, which a call packs only from NumPy."""
    if view.dtype.is_packed:
        refuse_packed(kernel, f"a call on {view.framework} arrays", view.dtype)
    # a kernel is compiled for the alignment of an address, up to 16 bytes, the widest access
    alignment = 16
    while view.address % alignment and alignment > 1:
        alignment //= 2
    return ArrayInput(tuple(view.shape), view.dtype, view.contiguous, alignment)


def lower_input(x: Any, view: Callable[[Any], Any], kernel: str) -> ArrayInput:
    """The description of an array for compiling without a call. `view`: the runtime's, which finds its memory."""
    kind = packed_dtype(x)
    made = array_input(view(x if kind is None else pack(x, kind)), kernel)
    return made if kind is None else replace(made, packed=kind)


def overlaps_of(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """(input, output) pairs, by array number, that are the same memory."""
    return tuple(
        (i, len(inputs) + j) for i, a in enumerate(inputs) for j, b in enumerate(outputs) if a.size and a.same_memory(b)
    )


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
