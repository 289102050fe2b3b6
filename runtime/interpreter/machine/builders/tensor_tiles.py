"""Tiles of tensors in global memory, which tensor copies read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.tma import UNIT

from ...checks.kinds import HazardKind
from ..memory import Buffer
from ..tensor_map import Box, TensorMap, box_view, fill_bits, locate_box
from .atomics import combiner
from .transfers import Issuer, note_global

Array = npt.NDArray[Any]


class TensorTile:
    """The part of global memory that one tensor copy accesses. `buffer` is None if the map does not fit an array."""

    def __init__(self, i: Issuer, m: Any) -> None:
        self.m: Any = m
        found = i.run.memory.find(m.address)
        if found is None:
            i.hazard(HazardKind.DESCRIPTOR, "the tensor map's address lies in no array")
        self.buffer: Buffer | None = found
        self.origin: int = m.address - found.address if found is not None else 0
        if found is not None:
            self._check(i, found)

    def _check(self, i: Issuer, found: Buffer) -> None:
        m = self.m
        last = sum((n - 1) * s for n, s in zip(m.shape, m.strides, strict=True)) + m.dtype.itemsize
        if self.origin < 0 or self.origin + last > len(found.bytes):
            what = f"the tensor map of '{found.name}' spans {last} bytes, the array {len(found.bytes) - self.origin}"
            i.hazard(HazardKind.DESCRIPTOR, what)
            self.buffer = None

    def combined(self, old: Array, new: Array, operation: str) -> Array:
        """Return elements after a reduction."""
        return _combine(old, new, operation, self.m.dtype.name)

    @property
    def empty(self) -> bool:
        """Return whether the whole tile is outside of the tensor."""
        raise AssertionError("each kind of tile says so")

    def load(self) -> Array:
        """Return the tile, with elements outside filled."""
        raise AssertionError("each kind of tile says so")

    def store(self, tile: Array, operation: str) -> None:
        """Write `tile`, or reduce with it."""
        raise AssertionError("each kind of tile says so")

    def unchanged(self, tile: Array, unit: int) -> Array:
        """Return which of `granules` of `unit` bytes, (1, k), a store of `tile` does not change."""
        raise AssertionError("each kind of tile says so")

    def granules(self, shadow: Any) -> Array:
        """Return the granules (1, k) of the elements inside."""
        raise AssertionError("each kind of tile says so")


class BoxTile(TensorTile):
    """One box of a tensor map."""

    def __init__(self, i: Issuer, m: TensorMap, coords: list[int], store: bool = False) -> None:
        super().__init__(i, m)
        self.m: TensorMap = m
        self.box: Box = locate_box(m, coords, store)
        if store and self.buffer is not None and self._end() > len(self.buffer.bytes):
            what = f"a TMA store past the end of rows of {m.shape[0] * m.dtype.itemsize} bytes of '{self.buffer.name}'"
            i.hazard(HazardKind.OUT_OF_BOUNDS, f"{what}: the GPU writes on to a multiple of {UNIT} bytes")
            self.box = locate_box(m, coords)

    @property
    def empty(self) -> bool:
        return self.box.empty

    def _end(self) -> int:
        """Return the byte of the buffer after the last element inside."""
        m, box = self.m, self.box
        counts = [b - a for a, b in box.inside]
        steps = (s * e for s, e in zip(m.strides, m.element_strides, strict=True))
        last = sum((n - 1) * s for n, s in zip(counts, steps, strict=True))
        return 0 if box.empty else self.origin + box.offset + last + m.dtype.itemsize

    def view(self) -> Array:
        assert self.buffer is not None
        return box_view(self.m, self.box, self.buffer.view(self.m.dtype.itemsize), self.origin)

    def inside(self) -> tuple[slice, ...]:
        """Return the slices of the tile, outermost dimension first, that lie in the tensor."""
        return tuple(slice(a, b) for a, b in reversed(self.box.inside))

    def load(self) -> Array:
        m = self.m
        if self.buffer is not None and self.box.inside == m.whole:
            return np.ascontiguousarray(self.view())
        out = np.full(m.tile[::-1], fill_bits(m), f"u{m.dtype.itemsize}")
        if self.buffer is not None and not self.box.empty:
            out[self.inside()] = self.view()
        return out

    def store(self, tile: Array, operation: str) -> None:
        if self.buffer is None or self.box.empty:
            return
        target, value = self.view(), tile[self.inside()]
        if operation:
            value = self.combined(target, value, operation)
        target[...] = value

    def unchanged(self, tile: Array, unit: int) -> Array:
        equal = np.ascontiguousarray(self.view() == tile[self.inside()]).reshape(-1)
        return np.all(np.repeat(equal, self.m.dtype.itemsize).reshape(1, -1, unit), axis=2)

    def granules(self, shadow: Any) -> Array:
        m = self.m
        size = m.dtype.itemsize
        counts = [b - a for a, b in self.box.inside]
        dense = m.element_strides[0] == 1
        run = counts[0] * size if dense else size
        unit = unit_of(self.origin + self.box.offset, run, m.strides[1:], shadow)
        rows = np.array([self.origin + self.box.offset])
        for axis in range(0 if not dense else 1, len(counts)):
            step = np.arange(counts[axis]) * m.strides[axis] * m.element_strides[axis]
            rows = (step[:, None] + rows).reshape(-1)
        return (rows[:, None] // unit + np.arange(run // unit)).reshape(1, -1)


def unit_of(start: int, run: int, strides: tuple[int, ...], shadow: Any) -> int:
    """Fit the shadow's granules to runs of `run` bytes from `start` at `strides`, and return the granules' size."""
    unit = 16
    for number in (start, run, *strides):
        while number % unit:
            unit //= 2
    shadow.fit(unit)
    return shadow.granule


_TYPES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int32": "s32",
    "uint32": "u32", "int64": "s64", "uint64": "u64",
}  # fmt: skip


def _combine(old: Array, new: Array, operation: str, dtype: str) -> Array:
    type_ = _TYPES.get(dtype, f"b{8 * old.dtype.itemsize}")
    return combiner(operation, type_)(np.ascontiguousarray(old), np.ascontiguousarray(new))


def note_tile(
    i: Issuer, tile: TensorTile, queue: int, clock: int, write: bool, data: Callable[[], Array] | None = None
) -> bool:
    """Record a tile that an operation reads or writes in the buffer's shadow.

    Returns False if the access is not allowed. `data()`: the tile of a store, or None for a reduction.
    """
    buffer = tile.buffer
    if buffer is None:
        return False
    if write and not buffer.writable:
        i.hazard(HazardKind.READ_ONLY, f"a TMA store to '{buffer.name}', which the kernel may only read")
        return False
    shadow = buffer.shadow
    if shadow is None or tile.empty:
        return True
    alone = not i.run.program.triggers and not i.run.overlap.at_start
    if not write and not buffer.writable and buffer.initialised and alone:
        return True
    g = tile.granules(shadow)
    same = None if data is None else lambda: tile.unchanged(data(), shadow.granule)
    note_global(i, shadow, g, queue, clock, write, same)
    return True
