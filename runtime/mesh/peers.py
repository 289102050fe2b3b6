"""The addresses of peers' arrays in a mesh call. All other parts of a launch use the arrays of the rank.

In one process every rank's arrays are at hand, and peer access maps them at the addresses that their owners use. With one
process a GPU, a call has this rank's arrays, and their allocator says where it mapped those of the peers: whatever knows that
gives `PeerAddresses` the same table, and needs nothing else of this folder changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..arrays.array_view import ArrayView


@dataclass(frozen=True)
class PeerAddresses:
    """`addresses[a][r]`: where array `a` of rank `r` lies, as this rank's GPU reaches it.

    Arrays are the inputs, the outputs, and the semaphores, in the order of the table that the kernel reads. A last row says where
    each rank writes why it ends.
    """

    addresses: tuple[tuple[int, ...], ...]

    def and_then(self, row: Sequence[int]) -> PeerAddresses:
        """The table with one more row."""
        return PeerAddresses((*self.addresses, tuple(row)))

    def of(self, array: int, own: ArrayView) -> list[ArrayView]:
        """An array on every rank, given this rank's, whose like the others are."""
        return [replace(own, address=address) for address in self.addresses[array]]


def in_one_process(rows: Sequence[Sequence[ArrayView]]) -> PeerAddresses:
    """The table of a call that has every rank's arrays: `rows[r]` are rank r's."""
    return PeerAddresses(tuple(tuple(view.address for view in array) for array in zip(*rows, strict=True)))
