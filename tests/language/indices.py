"""Random indices of Refs and values, and what NumPy makes of them where out-of-range elements are masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd

LOW = -20  # the least dynamic start; those are read from an array that holds LOW, LOW + 1, ...
STARTS = np.arange(LOW, 400, dtype=np.int32)


@dataclass(frozen=True)
class Item:
    """The index of one dimension: an int, a slice, or a `ds`; `dynamic` ones are traced values."""

    kind: str
    start: int = 0
    size: int = 0
    step: int = 1
    plain: slice | None = None
    dynamic: bool = False

    def traced(self, starts: Any) -> Any:
        """As the kernel writes it."""
        if self.kind == "slice":
            return slice(None) if self.plain is None else self.plain
        start = starts[self.start - LOW] if self.dynamic else self.start
        return start if self.kind == "int" else kd.ds(start, self.size, self.step)

    def numbers(self, extent: int) -> np.ndarray:
        """The indices along a dimension of this extent, out-of-range ones too."""
        if self.kind == "slice":
            return np.arange(extent)[self.traced(None)]
        if self.kind == "int":
            return np.array([self.start if self.dynamic else self.start % extent])
        return self.start + self.step * np.arange(self.size)


def item(rng: np.random.Generator, extent: int, *, static: bool = False) -> Item:
    """A random index of one dimension."""
    kind = int(rng.integers(4 if static else 7))
    if kind == 0:
        return Item("int", int(rng.integers(-extent, extent)))
    if kind == 1:
        return Item("slice")
    if kind == 2:
        ends = [None if rng.integers(3) == 0 else int(rng.integers(-extent - 2, extent + 3)) for _ in range(2)]
        step = (None, 1, 2, -1, -2, 3)[int(rng.integers(6))]
        return Item("slice", plain=slice(ends[0], ends[1], step))
    if kind == 3:
        return Item("slice", plain=slice(0, max(1, extent // 2)))
    if kind == 4:
        return Item("int", int(rng.integers(-2, extent + 2)), dynamic=True)
    size, step = int(rng.integers(extent + 3)), (1, 1, 2, -1, 3)[int(rng.integers(5))]
    return Item("ds", int(rng.integers(-3, extent + 3)), size, step, dynamic=kind == 5)


def places(items: tuple[Item, ...], shape: tuple[int, ...]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """(an index array a dimension, clipped into the array; which elements are inside), in the result's shape."""
    numbers = [i.numbers(n) for i, n in zip(items, shape, strict=True)]
    grid = np.ix_(*numbers)
    inside = np.ones([len(n) for n in numbers], bool)
    for index, extent in zip(grid, shape, strict=True):
        inside &= (index >= 0) & (index < extent)
    kept = tuple(len(n) for n, i in zip(numbers, items, strict=True) if i.kind != "int")
    clipped = np.broadcast_arrays(*(np.clip(i, 0, n - 1) for i, n in zip(grid, shape, strict=True)), inside)[:-1]
    return tuple(np.asarray(c).reshape(kept) for c in clipped), inside.reshape(kept)


def loaded(x: np.ndarray, items: tuple[Item, ...], fill: Any = 0) -> np.ndarray:
    """What a load gives."""
    index, inside = places(items, x.shape)
    return np.where(inside, x[index], np.asarray(fill, x.dtype))


def stored(out: np.ndarray, items: tuple[Item, ...], value: np.ndarray) -> None:
    """What a store leaves in `out`."""
    index, inside = places(items, out.shape)
    out[tuple(i[inside] for i in index)] = value[inside]
