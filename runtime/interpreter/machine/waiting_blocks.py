"""The blocks of a launch: their numbers, their coordinates, and which of them wait to be admitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Dims = tuple[int, int, int]


class WaitingBlocks:
    """Blocks of a grid in clusters, on each of `devices` GPUs. They are numbered GPU after GPU."""

    teams: int = 0  # clusters of all GPUs
    blocks: int = 0  # of all GPUs
    next_block: int = 0  # the block after the last admitted one

    def __init__(self, grid: Dims, cluster: Dims, devices: int) -> None:
        self.grid: Dims = grid
        self.cluster: Dims = cluster
        self.devices: int = devices
        self.cluster_size: int = cluster[0] * cluster[1] * cluster[2]
        self._further: list[int] = []  # as `next_block`, for further GPUs

    def count_blocks(self) -> None:
        """Number the blocks of a grid that was found right."""
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        self.teams = x * y * z * self.devices
        self.blocks = self.teams * self.cluster_size
        self._further = [self.blocks // self.devices * d for d in range(1, self.devices)]

    def device_of(self, block: int) -> int:
        """Return the GPU that runs a block, by the block's number."""
        return block // (self.blocks // self.devices) if self.devices > 1 else 0

    def _waiting(self) -> list[int]:
        """Return the number of blocks of each GPU that were not admitted yet."""
        each = self.blocks // self.devices
        return [each * (d + 1) - at for d, at in enumerate((self.next_block, *self._further))]

    def _take(self, device: int, count: int) -> int:
        """Take the next `count` blocks of a GPU, which wait no longer, and return the first one."""
        if device:
            self._further[device - 1] += count
            return self._further[device - 1] - count
        self.next_block += count
        return self.next_block - count

    def cancel(self, device: int) -> Array | None:
        """Cancel the launch of a GPU's next cluster. Returns its first block's coordinates, (3,); None if all have started."""
        if not self._waiting()[device]:
            return None
        return self.coordinates(self._take(device, self.cluster_size), 1)[0, :3]

    def coordinates(self, first: int, count: int) -> Array:
        """Return the coordinates of blocks, (count, 3), cluster after cluster, with x fastest in both.

        With several GPUs they are (count, 4), and the last one is the GPU.
        """
        device = self.device_of(first)
        i = first - self.blocks // self.devices * device + np.arange(count)
        if self.cluster_size == 1:
            where = _unfolded(i, self.grid)
        else:
            outer = (self.grid[0] // self.cluster[0], self.grid[1] // self.cluster[1], self.grid[2] // self.cluster[2])
            base, rank = _unfolded(i // self.cluster_size, outer), _unfolded(i % self.cluster_size, self.cluster)
            where = base * np.array(self.cluster) + rank
        return where if self.devices == 1 else np.append(where, np.full((count, 1), device), axis=1)


def _unfolded(i: Array, extents: Dims) -> Array:
    """Return numbers (n,) as coordinates (n, 3), x fastest."""
    x, y, _ = extents
    return np.stack([i % x, i // x % y, i // (x * y)], axis=1)
