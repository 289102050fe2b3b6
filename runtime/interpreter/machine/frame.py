"""The registers, parameters and local variables of one function at one call depth, for all warps of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.semantics.types import STORAGE as TYPES

if TYPE_CHECKING:
    from .batch import Batch
    from .group import Group
    from .program import Code

Array = npt.NDArray[Any]

# The dtype of a register array of each PTX type.
STORAGE: dict[str, Any] = {**TYPES, "tf32": np.uint32, "e4m3": np.uint16, "e5m2": np.uint16}


class _Views(dict[int, Array]):
    """Slots of a frame for one selection of rows, made at their first use."""

    def __init__(self, frame: Frame, select: Any) -> None:
        super().__init__()
        self.frame = frame
        self.select = select
        self.keep = type(select) is slice

    def __missing__(self, slot: int) -> Array:
        value = self.frame.read(slot, self.select)
        if self.keep:
            self[slot] = value
        return value


class Pool:
    """Register arrays of finished batches, for new batches: fresh memory costs more than most instructions."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Array]] = {}

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        free = self._free.get((shape, dtype))
        return free.pop() if free else np.zeros(shape, dtype)

    def give(self, array: Array) -> None:
        self._free.setdefault((array.shape, array.dtype.type), []).append(array)


class Frame:
    """Slots 0 .. len(registers)-1 are registers; those above are constants and special registers (`Code.slots`)."""

    def __init__(self, batch: Batch, code: Code, depth: int) -> None:
        self.batch = batch
        self.code = code
        self.depth = depth
        self.registers: dict[int, Array] = {}
        self.params: dict[str, Array] = {}
        self._views: dict[tuple[int, int, int], _Views] = {}
        self.blocks: dict[tuple[int, int], Array] = {}
        self.poison: dict[int, Array] = {}  # see `checks/poison.py`
        self.origins: dict[int, str] = {}  # the origin of the poison, by register
        self.fresh: Array | None = None  # which poison the last load has brought to lanes
        self.origin = ""
        self.hollow: tuple[Array, str] | None = None  # what a store brings of registers that nobody has written
        self.allocations: Any = None  # what lanes have allocated on the stack, see `builders/stack.py`
        self.local_base: int = batch.local.reserve(code.local_bytes, code.local_align)

    def base(self, slot: int) -> Array:
        """Return a register of all warps, (warps, 32) or (warps, 32, 2) for .b128. Its first value is undefined."""
        found = self.registers.get(slot)
        if found is None:
            block = self.code.block_of.get(slot)
            if block is not None:
                return self._block(*block)[slot - block[0]]
            type_ = self.code.fn.registers[slot].type
            shape = (self.batch.warps, 32, 2) if type_ == "b128" else (self.batch.warps, 32)
            found = self.registers[slot] = self.batch.run.pool.take(shape, STORAGE[type_])
        return found

    def _block(self, first: int, count: int) -> Array:
        """Return registers `first` .. `first + count - 1` as one array (count, warps, 32)."""
        found = self.blocks.get((first, count))
        if found is None:
            dtype = STORAGE[self.code.fn.registers[first].type]
            found = self.blocks[first, count] = np.zeros((count, self.batch.warps, 32), dtype)
            for i in range(count):
                self.registers[first + i] = found[i]
        return found

    def block(self, first: int, count: int) -> Array:
        """Return the block of these registers that `Code.block_of` promises."""
        return self._block(first, count)

    def read(self, slot: int, select: Any) -> Array:
        if slot < len(self.code.fn.registers):
            return self.base(slot)[select]
        kind, what, dtype = self.code.slots[slot - len(self.code.fn.registers)]
        if kind == "const":
            return what
        if kind == "shared":
            return self.batch.shared_address(what, dtype, select)
        if kind == "special":
            value = self.batch.special(what)
            return value[select] if len(value) > 1 else value
        if kind == "local":
            address = self.local_base + self.code.local_offsets[what[0]] + what[1]
            return np.full((1, 1), address, dtype)
        return np.full((1, 1), self.batch.run.resolve(kind, what, self.batch.device), dtype)

    def views(self, select: Any) -> dict[int, Array]:
        if type(select) is not slice:
            return _Views(self, select)
        key = (select.start, select.stop, select.step or 1)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = _Views(self, select)
        return found

    def enter(self, c: Group) -> None:
        """Begin a call by the lanes of a group: they have allocated nothing."""
        if self.allocations is not None:
            self.allocations.top[c.rows] = np.where(c.active, 0, self.allocations.top[c.rows])

    def release(self) -> None:
        """Give the registers of a finished batch to the pool."""
        in_blocks = {first + i for first, count in self.blocks for i in range(count)}
        for slot, array in self.registers.items():
            if slot not in in_blocks:
                self.batch.run.pool.give(array)
        self.registers.clear()
        self._views.clear()

    def digest(self, select: Any, chosen: int | None = None) -> int:
        """Return a hash of these rows' registers, or of the `chosen` ones (a bit set). It is equal when their values are
        equal.
        """
        held = self.registers.items()
        return hash(tuple(r[select].tobytes() for slot, r in held if chosen is None or chosen >> slot & 1))

    def param(self, name: str, size: int) -> Array:
        """Return a call parameter or return value of all lanes: (warps, 32, size) bytes."""
        found = self.params.get(name)
        if found is None:
            found = self.params[name] = np.zeros((self.batch.warps, 32, size), np.uint8)
        return found
