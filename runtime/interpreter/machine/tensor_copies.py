"""tcgen05.cp: copies from shared to tensor memory, in the order of products (PTX ISA 9.7.16.9.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks import tensor_shadow
from ..checks.tensor_shadow import granules
from ..isa.semantics.tensor_core import COLUMNS
from ..ptx.module import Instruction
from .group import Group
from .tensor_memory import TensorMemory
from .wgmma_operands import TileOperand, TileShape

Array = npt.NDArray[Any]
# By shape and multicast: bytes of a row, and the row of shared memory that each lane gets.
COPIES: dict[tuple[str, str], tuple[int, Array]] = {
    ("128x256b", ""): (32, np.arange(128)),
    ("128x128b", ""): (16, np.arange(128)),
    ("64x128b", "warpx2::02_13"): (16, np.arange(128) % 64),
    ("64x128b", "warpx2::01_23"): (16, np.arange(128) // 64 * 32 + np.arange(128) % 32),
    ("32x128b", "warpx4"): (16, np.arange(128) % 32),
}


def copy(
    memory: TensorMemory, c: Group, address: Array, source: Array, key: tuple[str, str], pair: bool, ins: Instruction
) -> None:  # fmt: skip
    """Issue the copy of each active lane."""
    batch = memory.batch
    row, lane = np.nonzero(c.active)
    rows = c.rows[row]
    where = np.broadcast_to(address, (c.n, 32))[row, lane].astype(np.int64)
    words = np.broadcast_to(source, (c.n, 32))[row, lane]
    size, lanes = COPIES[key]
    blocks = memory.unit.blocks(rows, pair, "a copy", ins)
    if blocks is None:
        return
    if (where >> 16).any():
        memory.hazard(int(rows[0]), "a copy to tensor memory that does not begin at lane 0", ins)
    shape = TileShape(int(lanes.max()) + 1, 1, False, size, True)
    tiles = [memory.unit.tile(rows, words, shape, blocks[:, i], "a copy", ins) for i in range(blocks.shape[1])]
    columns = (where & 0xFFFF)[:, None] + np.arange(size // 4)
    _note(memory, c, rows, blocks, columns, tiles, ins)
    inside = np.minimum(columns, COLUMNS - 1)

    def perform() -> None:
        for i, tile in enumerate(tiles):
            held = tile.gather(batch.shared.data, np.uint8)
            data = np.ascontiguousarray(held[:, lanes]).view(np.uint32)
            memory.data[blocks[:, i, None, None], np.arange(128)[None, :, None], inside[:, None, :]] = data

    memory.unit.issue(rows, perform, "tcgen05.cp", ins)


def _note(
    memory: TensorMemory, c: Group, rows: Array, blocks: Array, columns: Array, tiles: list[TileOperand], ins: Instruction
) -> None:  # fmt: skip
    for i in range(blocks.shape[1]):
        memory.check(rows, blocks[:, i], columns, ins)
    if memory.shadow is None:
        return
    queues, when = tensor_shadow.issue(memory.batch, rows, "tcgen05")
    shared = memory.batch.shared.shadow
    shared.fit(16)
    outside = tensor_shadow.access(c, rows, queues, when, ins, True, True)
    for tile in tiles:
        shared.on_read(outside, tile.granules(shared.granule), np.arange(len(rows))[:, None])
    inside = tensor_shadow.access(c, rows, queues, when, ins, True, False)
    for i in range(blocks.shape[1]):
        memory.noted(inside, granules(blocks[:, i], np.arange(8), np.minimum(columns, COLUMNS - 1)), True)
