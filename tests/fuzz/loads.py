"""Inputs of random kernels and the ways to load from them: slices, dynamic and strided, in and out of bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.choose import Choices
from tests.fuzz.numbers import contents
from tests.fuzz.operations import Step, literal, wide


@dataclass(frozen=True)
class Input:
    """An array argument; `shape` is one instance's part."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def data(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Random contents (`tests/fuzz/numbers.py`)."""
        return contents(self.dtype, shape, np.random.default_rng(seed))


def draw_inputs(c: Choices) -> list[Input]:
    count = c.between(1, 3)
    first = c.shape(), c.dtype()
    made = [Input("x0", *first)]
    for n in range(1, count):
        # often the same shape or dtype as before, so that operands meet
        shape = first[0] if c.chance(0.6) else c.shape()
        dtype = first[1] if c.chance(0.6) else c.dtype()
        made.append(Input(f"x{n}", shape, dtype))
    return made


def draw_load(c: Choices, source: Input, has_axis: bool) -> Step:
    """A load of part of an input, with what NumPy finds there."""
    rank = len(source.shape)
    items: list[str] = []
    starts: list[Any] = []  # a NumPy index array for each kept axis, or an int
    for extent in source.shape:
        text, indices = _index(c, extent)
        items.append(text)
        starts.append(indices)
    new = c.below(rank + 1) if c.chance(0.15) and rank < 5 else None
    shape = [len(s) for s in starts if not isinstance(s, int)]
    if new is not None:
        items.insert(new, "None")
        shape.insert(sum(not isinstance(s, int) for s in starts[:new]), 1)
    index = ", ".join((["me"] if has_axis else []) + items)
    text = f"{source.name}[{index or '...'}]"
    fill_text, fill = literal(c, source.dtype)
    if c.chance(0.3):
        text = f"kd.load({source.name}, np.s_[{index or '...'}], fill={fill_text})"
    else:
        fill = 0

    def reference(a: np.ndarray) -> Any:
        where = [np.asarray([s]) if isinstance(s, int) else s for s in starts]
        result = wide(a)
        inside = np.ones((), bool)
        for axis, indices in enumerate(where):
            ok = (indices >= 0) & (indices < source.shape[axis])
            inside = inside[..., None] & ok
            result = (
                np.take(result, np.where(ok, indices, 0), axis=axis)
                if source.shape[axis]
                else (np.zeros((*result.shape[:axis], len(indices), *result.shape[axis + 1 :]), result.dtype))
            )
        result = np.where(inside, result, np.asarray(fill).astype(result.dtype))
        return result.reshape(shape), 0, 0

    return Step("load", text, (source.name,), tuple(shape), source.dtype, reference)


def _index(c: Choices, extent: int) -> tuple[str, Any]:
    """(text, the indices it means) for one axis."""
    kind = c.weighted((("all", 8), ("int", 2), ("slice", 3), ("ds", 3), ("beyond", 2), ("dynamic", 2)))
    if extent == 0 or kind == "all":
        return ":", np.arange(extent)
    if kind == "int":
        at = c.between(-extent, extent - 1)
        return str(at), at % extent
    if kind == "slice":
        a, b, step = c.between(-extent, extent), c.between(-extent, extent), c.one([1, 1, 2, -1, 3])
        return f"{a}:{b}:{step}", np.arange(extent)[a:b:step]
    size, step = c.between(1, extent), c.one([1, 1, 1, 2, -1])
    start = c.between(0, extent - 1) if kind == "ds" else c.between(-extent, extent + 2)
    indices = start + step * np.arange(size)
    if kind == "dynamic":
        # a start that the trace can't know
        return f"kd.ds(kd.sum(kd.iota(kd.int32, 3)) + {start - 3}, {size}, {step})", indices
    return f"kd.ds({start}, {size}, {step})", indices
