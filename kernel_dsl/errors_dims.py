"""Errors of declared extents: `kd.Dim`, `shapes=`, and `kd.specialise`."""

from __future__ import annotations

from .diagnostics import Error


class DimValue(Error, ValueError):
    """A `kd.Dim` with impossible facts."""

    code = "dim-value"
    title = "{what}"
    help = "{hint}"


class DimType(Error, TypeError):
    """A `kd.Dim` with facts that are not ints."""

    code = "dim-type"
    title = "{what}"
    help = "{hint}"


class ShapesType(Error, TypeError):
    """`shapes=` that is not a mapping of parameters to extents."""

    code = "shapes-type"
    title = "{what}"
    note = "`shapes` has the extents of parameters by name or position: an int, a `kd.Dim`, or None"
    help = "{hint}"


class ShapesValue(Error, ValueError):
    """`shapes=` that the body's parameters can't have."""

    code = "shapes-value"
    title = "{what}"
    help = "{hint}"


class DimMismatch(Error, ValueError):
    """Arrays of a call that do not have the extents that `shapes=` declares."""

    code = "dim-mismatch"
    title = "{what}"
    help = "{hint}"


class DimOutOfRange(Error, ValueError):
    """An extent of a call that contradicts the facts of its `kd.Dim`."""

    code = "dim-out-of-range"
    title = "{what}"
    help = "{hint}"


class DimRead(Error, TypeError):
    """Python asked for the value of an extent that is declared as a `kd.Dim`."""

    code = "dim-read"
    title = "{what}"
    note = "one kernel serves all values of a `kd.Dim`, so the body has it as a traced integer"
    help = "{hint}"


class EscapedExtent(Error, RuntimeError):
    """An extent from a function of shapes, such as `grid=lambda x: ...`, was used after the function had returned."""

    code = "escaped-extent"
    title = "an extent was used after the function of shapes that received it had returned"
    note = "functions as `grid` and `out_type` also run with symbols as extents, which have no values"
    help = "take the extent from the array: `x.shape[0]`"


def unknown(name: str) -> DimRead:
    """The error for asking for the value of an extent while tracing."""
    hint = f"use it in traced arithmetic, loops and `kd.when`; {_specialise(name)}"
    return DimRead(what=f"the extent {name!r} has no value while tracing", hint=hint)


def cut_along(name: str) -> DimRead:
    """The error for a part of an array whose size the extent would decide."""
    hint = f"`kd.ds(start, size)` along it has a static size, and what lies past the end is masked; {_specialise(name)}"
    return DimRead(what=f"the extent {name!r} has no value while tracing", hint=hint)


def regrouped(name: str) -> DimRead:
    """The error for a reshape of a Ref, which needs all its extents."""
    hint = f"index with what the flat index means, `x[i // n, i % n]`, or pass the array reshaped; {_specialise(name)}"
    return DimRead(what=f"a reshape needs the extent {name!r}, which has no value while tracing", hint=hint)


def apart_from_array(name: str) -> DimRead:
    """The error for a `kd.Dim` itself in a body, in place of an array's extent."""
    return DimRead(what=f"the Dim {name!r} has no value while tracing", hint=f"{FROM_ARRAY}; {_specialise(name)}")


def without_value(name: str) -> DimRead:
    """The error for a `kd.Dim` that no input of a call has, and for one outside of calls."""
    hint = "a call gives it a value by an input for which `shapes=` declares it"
    return DimRead(what=f"the Dim {name!r} has no value here", hint=hint)


def of_scratch(names: str, memory: str, output: str | None) -> DimRead:
    """The error for scratch whose shape has Dims, `names`. `output`: a struct that may take its place in `out_type`."""
    hint = "take an int from `kd.specialise(x.shape[0])` in `scratch_types=lambda x: ...`, at a compile for each value"
    if output is not None:
        hint = f"make it one more output, `{output}` in `out_type`: each call allocates it, by one compiled kernel; or {hint}"
    return DimRead(what=f"the shape of scratch in {memory} needs {names}, without a value while tracing", hint=hint)


FROM_ARRAY = "take the extent from an array that has it: `x.shape[0]` is a traced integer"


def _specialise(name: str) -> str:
    return f"`kd.specialise({name})` in the body gives its int, at a compile for each value"


class WarmFailed(Error, RuntimeError):
    """A child process of `kd.warm` that ended without an error message."""

    code = "warm-failed"
    title = "compiling ahead failed: {what}"
    help = "run `kernel.lower(*specs).compile()`: it does the same in this process and shows the error"
