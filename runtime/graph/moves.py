"""Moves that come again: replays with new inputs move the same slots each time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..devices import driver
from .nodes import MemorySlot

Update: TypeAlias = "Callable[[], tuple[Any, ...]]"  # a call of the driver that updates a kernel in an executable


class Move:
    """What a move of certain slots does: it writes addresses into parameters, and updates the kernels that have them.

    A replay spends most of its time here, so all that stays the same between moves is looked up once.
    """

    def __init__(self, uses: Sequence[tuple[ctypes.c_uint64, MemorySlot, int]], updates: Sequence[Update]) -> None:
        """`uses`: parameters, each with its slot and the offset in bytes from the slot's base. `updates`: of kernels."""
        self._uses = uses
        self._updates = updates
        self._success: Any = driver.success()

    def run(self) -> None:
        """Give the kernels the slots' present addresses. Raises CudaError for what the driver refuses."""
        for address, slot, offset in self._uses:
            address.value = slot.base + offset
        success = self._success
        for update in self._updates:
            result = update()
            if result[0] is not success:
                driver.check(result)
