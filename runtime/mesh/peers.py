"""The addresses of peers' arrays in a mesh call. All other parts of a launch use the arrays of the rank.

In one process, a call has the arrays of every rank, and peer access maps them at their owners' addresses. With one
process a GPU, `rank_cuda.py` makes the same table of the addresses that the allocator's handles have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kernel_dsl.mesh import table_rows

from ..arrays.array_view import ArrayView


@dataclass(frozen=True)
class PeerAddresses:
    """`addresses[a][r]`: the address of rank `r`'s array `a` on this rank's GPU, or 0 if it is not mapped.

    Arrays are the inputs, the outputs and the semaphores, in the order of the kernel's table. `texts`: the address
    where each rank writes its report. `multicast`: each array's multicast address, or 0.
    """

    addresses: tuple[tuple[int, ...], ...]
    texts: tuple[int, ...] = ()
    multicast: tuple[int, ...] = ()

    def and_then(self, texts: Sequence[int], multicast: Sequence[int] = ()) -> PeerAddresses:
        """Return the table with the addresses of texts, and with multicast addresses."""
        return replace(self, texts=tuple(texts), multicast=tuple(multicast))

    def table(self) -> npt.NDArray[np.int64]:
        """Return the table that the kernel reads (`kernel_dsl.mesh`)."""
        size, count = len(self.texts), len(self.addresses)
        made = np.zeros((table_rows(count, size), size), np.int64)
        made[:count] = self.addresses
        made[count] = self.texts
        made[count + 1 :].reshape(-1)[: len(self.multicast)] = self.multicast
        return made

    def of(self, array: int, own: ArrayView) -> list[ArrayView]:
        """Return an array on every rank; the other ranks' arrays are like this rank's."""
        return [replace(own, address=address) for address in self.addresses[array]]


def in_one_process(rows: Sequence[Sequence[ArrayView]]) -> PeerAddresses:
    """Return the table of a call that has every rank's arrays: `rows[r]` are rank r's."""
    return PeerAddresses(tuple(tuple(view.address for view in array) for array in zip(*rows, strict=True)))
