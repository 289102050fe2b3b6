"""The kernels that a function calls, found without a launch: `kd.warm` of functions, such as those of the library.

The function runs in this process on arrays of zeros. A kernel that it calls is noted and gives zeros. So what the library
remembers of earlier sizes is what the noted calls would have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import numpy as np

from .diagnostics import shown
from .dims import facts_of, settle_dims
from .dtypes import as_dtype
from .errors import BadArgumentType
from .loading import noting
from .memory import ShapeDtypeStruct
from .tree import flatten, unflatten
from .variables import Symbol, Variable

# Where a function runs for many values of its Dims: takes functions that make a choice among kernels final.
finals: ContextVar[list[Callable[[], object]] | None] = ContextVar("finals", default=None)
Noted = tuple[Any, list[tuple[tuple[Any, ...], Any]]]  # (a kernel, (arguments, `out=`) of its calls)


class Notes:
    """Takes the calls of kernels in place of a graph."""

    nibbles: Any = None

    def __init__(self) -> None:
        self.calls: dict[int, Noted] = {}  # by the kernel's identity

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Note a call of a kernel. Its outputs are zeros, or `out=`."""
        kernel = getattr(function, "__self__", None)
        if not hasattr(kernel, "_zeros_for"):
            what = f"a call of {shown(kernel if kernel is not None else function)}, which is no kernel of Python"
            raise BadArgumentType(op="warm", what=what, hint="list the kernels and functions around it one by one")
        given, out, *_ = args
        self.calls.setdefault(id(kernel), (kernel, []))[1].append((given, out))
        return cast("Any", kernel)._zeros_for(given) if out is None else out

    def launch(self, pending: Any) -> list[Any]:
        raise AssertionError("no call comes as far as a launch")


def noted(calls: Iterable[Callable[[], Any]]) -> list[Noted]:
    """The kernels that functions call, each with its calls. Raises the functions' errors."""
    notes = Notes()
    with noting(notes):
        for call in calls:
            call()
    return list(notes.calls.values())


def calls_of(function: Any, args: tuple[Any, ...]) -> list[Callable[[], Any]]:
    """The calls of a function with zeros for arrays and structs. With Dims there is a call for many of their values; then
    choices that the library made are final (`finals`).

    `functools.partial` gives keywords. Raises `BadArgumentType` for a Dim without a `max`.
    """
    keywords: dict[str, Any] = {}
    while isinstance(function, partial):
        inner = cast("partial[Any]", function)
        function, args, keywords = inner.func, (*inner.args, *args), {**inner.keywords, **keywords}
    leaves, structure = flatten((args, keywords))
    dims: dict[str, Variable] = {}
    for n in (n for x in leaves if isinstance(x, ShapeDtypeStruct) for n in x.shape if isinstance(n, Symbol)):
        for name, dim in n.variables().items():
            if facts_of(dims.setdefault(name, dim)) != facts_of(dim):
                what = f"two extents are named {name!r}: {dims[name]!r} and {dim!r}"
                raise BadArgumentType(op="warm", what=what, hint="use one `kd.Dim`, or other names")

    made: list[Callable[[], object]] = []

    def call(values: Mapping[str, int]) -> Any:
        own_args, own_keywords = unflatten(structure, [_zeros(x, values) for x in leaves])
        token = finals.set(made if dims else None)
        try:
            return function(*own_args, **own_keywords)
        finally:
            finals.reset(token)

    def end() -> None:
        for make_final in made:
            make_final()

    tried = cases(dims)
    greatest = {name: dim.hi for name, dim in dims.items()}
    for x in leaves if dims else ():
        _zeros(x, greatest)  # tell at once of sizes without room
    return [partial(call, values) for values in tried] + ([end] if dims else [])


def cases(dims: Mapping[str, Variable]) -> list[dict[str, int]]:
    """Values of Dims that call for all configurations: each takes many, beside the least and the greatest of others."""
    ends = [{name: steps(dim)[end] for name, dim in dims.items()} for end in (0, -1)]
    found = [{**others, name: n} for name, dim in dims.items() for others in ends for n in steps(dim)]
    return list({tuple(values.items()): values for values in found}.values()) or [{}]


def steps(dim: Variable) -> list[int]:
    """Values of a Dim: its ends, powers of two and seven between each two of them, and the values after these."""
    least, most, by = dim.lo, dim.hi, getattr(dim, "multiple_of", 1)
    if getattr(dim, "max", most) is None:
        what = f"the Dim {dim.name!r} has no max"
        raise BadArgumentType(op="warm", what=what, hint=f"give the greatest value: `kd.Dim({dim.name!r}, max=8192)`")
    marks = {m << k >> 3 for k in range(most.bit_length()) for m in range(8, 16)}
    found = {n for mark in marks for n in (-(-mark // by) * by, (mark // by + 1) * by)}
    return sorted({least, most, *(n for n in found if least <= n <= most)})


def _zeros(x: Any, values: Mapping[str, int]) -> Any:
    """Zeros in place of a struct, or of an array of another framework, with its strides. Memory is taken when it is
    written, so they cost none.
    """
    if isinstance(x, ShapeDtypeStruct):
        shape = settle_dims(tuple(x.shape), values)
        try:
            return np.zeros(shape, x.dtype.numpy)
        except (MemoryError, ValueError):
            what = f"there is no room for zeros of shape {shape} and dtype {x.dtype}"
            raise BadArgumentType(op="warm", what=what, hint="give the Dims a smaller `max`") from None
    if isinstance(x, (np.ndarray, np.generic)) or not (hasattr(x, "shape") and hasattr(x, "dtype")):
        return x
    dtype = as_dtype(x.dtype).numpy
    shape, item = tuple(x.shape), dtype.itemsize
    strides = x.stride() if callable(getattr(x, "stride", None)) else None
    bytes_ = [n * item for n in strides] if strides is not None else getattr(x, "strides", None)
    if bytes_ is None or 0 in shape or any(n < 0 for n in bytes_):
        return np.zeros(shape, dtype)
    length = 1 + sum((n - 1) * s for n, s in zip(shape, bytes_, strict=True)) // item
    return np.lib.stride_tricks.as_strided(np.zeros(length, dtype), shape, bytes_)
