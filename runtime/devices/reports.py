"""Reports that kernels on a mesh write before they end at a wait with a time-out (`kernel_dsl.mesh.Meshed.end`).

A trap ends the context, and the GPUs' memory can't be read after it. So the reports go to host memory that the GPUs
access, one part for each rank, for the life of the process. Errors of later calls quote them. Reports that no error has
quoted go to stderr when the process ends.
"""

from __future__ import annotations

import atexit
import re
import sys
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.dtypes import uint8
from kernel_dsl.forking import in_child, lock
from kernel_dsl.mesh import BLOCK, COUNT, NUMBERS_BYTES, TEXT_BYTES, TEXTS, VALUE, unravelled

from ..arrays.array_view import CPU, ArrayView
from . import driver, memory

NBYTES = TEXTS * TEXT_BYTES

_lock = lock()
_written: dict[int, npt.NDArray[np.uint8]] = {}  # by rank
_shown: set[str] = set()


def address_of(rank: int, context: Any) -> int:
    """The address to which a rank's kernels write; all GPUs and the host can access it. `context`: of any of the GPUs."""
    with _lock:
        if rank not in _written:
            cu = driver.api()
            flags = int(cu.CU_MEMHOSTALLOC_PORTABLE) | int(cu.CU_MEMHOSTALLOC_DEVICEMAP)
            with driver.current(context):  # the caller's thread may have none
                address = int(driver.check(cu.cuMemHostAlloc(NBYTES, flags)))
            whole = memory.host_array(ArrayView(address, (NBYTES,), (1,), uint8, CPU, ""))
            whole[...] = 0
            _written[rank] = whole
        return int(_written[rank].ctypes.data)


def texts(data: npt.NDArray[np.uint8], rank: int) -> list[str]:
    """The texts that a rank's kernels wrote, with their numbers."""
    found: list[str] = []
    for part in data.reshape(TEXTS, TEXT_BYTES):
        text = part[:-NUMBERS_BYTES].tobytes().partition(b"\0")[0].decode("utf-8", "replace")
        if text:
            found.append(f"rank {rank}: {_with_numbers(text, part[-NUMBERS_BYTES:].view(np.int32).tolist())}")
    return found


def _with_numbers(text: str, numbers: list[int]) -> str:
    nx, ny, _, _, count, value, semaphore, block = numbers
    nx, ny = max(nx, 1), max(ny, 1)

    def place(found: re.Match[str]) -> str:
        shape = [int(size) for size in found[2].split("x")]
        return str(unravelled((semaphore - int(found[1])) % prod(shape), shape))

    named = re.sub(r"\{\[(\d+):([\dx]+)\]\}", place, text)
    named = named.replace(BLOCK, str((block % nx, block // nx % ny, block // nx // ny))).replace(VALUE, str(value))
    return named.replace(COUNT, str(count)) if COUNT in named else f"{named}; it was {count}"


def told() -> list[str]:
    """The texts that all ranks' kernels wrote, for an error's message."""
    found = [text for rank, data in sorted(_written.items()) for text in texts(data, rank)]
    _shown.update(found)
    return found


@atexit.register
def _at_the_end() -> None:
    before = set(_shown)
    for text in told():
        if text not in before:
            print(text, file=sys.stderr)


in_child(_written.clear)
driver.tell_by(told)
