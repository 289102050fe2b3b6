"""The addresses of peers' arrays in a mesh call. All other parts of a launch use the arrays of the rank.

In one process, a call has the arrays of every rank, and peer access maps them at their owners' addresses. With one
process per GPU, a call would have only its own rank's arrays, and an allocator would know the addresses of the peers'
arrays. It would give `PeerAddresses` the same table; no other file of this folder would change.
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
    """`addresses[a][r]`: where array `a` of rank `r` lies, as this rank's GPU reaches it; 0 where it is not mapped.

    Arrays are the inputs, the outputs, and the semaphores, in the order of the table that the kernel reads. `texts`: where each
    rank writes why it ends. `multicast`: of each array the address that reaches it on all ranks, 0 without one.
    """

    addresses: tuple[tuple[int, ...], ...]
    texts: tuple[int, ...] = ()
    multicast: tuple[int, ...] = ()

    def and_then(self, texts: Sequence[int], multicast: Sequence[int] = ()) -> PeerAddresses:
        """The table with the addresses of texts, and those that reach all ranks."""
        return replace(self, texts=tuple(texts), multicast=tuple(multicast))

    def table(self) -> npt.NDArray[np.int64]:
        """What the kernel reads (`kernel_dsl.mesh`)."""
        size, count = len(self.texts), len(self.addresses)
        made = np.zeros((table_rows(count, size), size), np.int64)
        made[:count] = self.addresses
        made[count] = self.texts
        made[count + 1 :].reshape(-1)[: len(self.multicast)] = self.multicast
        return made

    def of(self, array: int, own: ArrayView) -> list[ArrayView]:
        """An array on every rank, given this rank's, whose like the others are."""
        return [replace(own, address=address) for address in self.addresses[array]]


def in_one_process(rows: Sequence[Sequence[ArrayView]]) -> PeerAddresses:
    """The table of a call that has every rank's arrays: `rows[r]` are rank r's."""
    return PeerAddresses(tuple(tuple(view.address for view in array) for array in zip(*rows, strict=True)))
