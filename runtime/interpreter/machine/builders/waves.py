"""Tensor loads of many lanes by one instruction, as arrays, because blocks that stay together load in the same way.

A wave is for the usual case: boxes inside one tensor that nobody writes, into places of their own, with nothing to report.
Anything else is started lane by lane (`copies.py`), with the same effects, clocks and words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.tma import SMEM_UNIT

from ...checks.clocks import earlier
from ...checks.shadow_access import ShadowAccess
from ...ptx.module import Instruction
from ..engine import Wave
from ..memory import SHARED_RESERVED, Buffer
from ..tensor_map import TensorMap
from .lanes import Lanes
from .transfers import complete_all, copy_broken, tile_chunks

if TYPE_CHECKING:
    from ..batch import Batch
    from ..group import Group

Array = npt.NDArray[Any]
_FEWEST = 4  # a wave of fewer lanes saves no time
_CHUNK = 16  # bytes


class TileWave(Wave):
    """Loads of boxes of one tensor map: lane n brings the box at `source[n]` bytes to its targets.

    Targets (t,) are sorted by `lane`: block `cta`, offset `at`. They complete on the barriers at `barrier` of those blocks.
    """

    def __init__(
        self, batch: Batch, m: TensorMap, buffer: Buffer, source: Array, barrier: int, ins: Instruction
    ) -> None:
        self.batch = batch
        self.m = m
        self.buffer = buffer
        self.source = source
        self.barrier = barrier
        self.ins = ins
        self.lane: Array
        self.cta: Array
        self.at: Array
        self.queue: Array
        self.clock: Array

    def land(self, some: list[int]) -> None:
        """Make the loads of these lanes take effect, in this order."""
        batch, m = self.batch, self.m
        first, end = (np.searchsorted(self.lane, np.array(some) + n).tolist() for n in (0, 1))
        mine = np.concatenate([np.arange(a, b) for a, b in zip(first, end, strict=True)])
        data = _chunk_view(self.buffer)
        source = (self.source[self.lane[mine]] // _CHUNK)[:, None] + _box_chunks(m)
        target = batch.shared.data.view(np.complex128)
        at, base = self.at[mine], (self.cta[mine] * batch.shared.stride + (self.at[mine] & ~1023)) // _CHUNK
        for low in np.unique(at & 1023).tolist():
            here = (at & 1023) == low
            target[base[here][:, None] + tile_chunks(low, m.bytes, m.swizzle)] = data[source[here]]
        complete_all(batch, self.cta[mine], self.barrier, m.bytes, self.queue[mine], self.clock[mine], self.ins)


@lru_cache(256)
def _box_chunks(m: TensorMap) -> Array:
    """Return the 16-byte chunks of a box in memory, counted from its first, in the tile's order."""
    at = np.arange(0, m.tile[0] * m.dtype.itemsize, _CHUNK)
    for count, stride in zip(m.tile[1:], m.strides[1:], strict=True):
        at = (np.arange(count)[:, None] * stride + at).reshape(-1)
    return at // _CHUNK


def _chunk_view(buffer: Buffer) -> Array:
    found = buffer.views.get(_CHUNK)
    if found is None:
        usable = len(buffer.bytes) // _CHUNK * _CHUNK
        found = buffer.views[_CHUNK] = buffer.bytes[:usable].view(np.complex128)
    return found


def _source(c: Group, m: TensorMap, coords: Array) -> tuple[Buffer, Array] | None:
    """Return the buffer of a map, and the byte where the box at each lane's coordinates (lanes, rank) starts.

    None if the loads must be started lane by lane.
    """
    run, size = c.batch.run, m.dtype.itemsize
    buffer = run.memory.find(m.address)
    if buffer is None or any(step != 1 for step in m.element_strides):
        return None
    if not _only_read(c, buffer) or any(n % _CHUNK for n in (m.tile[0] * size, *m.strides[1:])):
        return None
    if (coords < 0).any() or (coords + np.array(m.tile) > np.array(m.shape)).any():
        return None
    origin = m.address - buffer.address
    last = sum((n - 1) * s for n, s in zip(m.shape, m.strides, strict=True)) + size
    source = origin + coords @ np.array(m.strides)
    if origin < 0 or origin + last > len(buffer.bytes) or (source % _CHUNK).any():
        return None
    if any(copy_broken(size, tuple(at), False) is not None for at in coords.tolist()):
        return None
    return buffer, source


def _only_read(c: Group, buffer: Buffer) -> bool:
    """Return whether shadow memory need not record reads of a buffer (`transfers.note_tile`)."""
    run = c.batch.run
    alone = not run.program.triggers and not run.overlap.at_start
    return buffer.shadow is None or (not buffer.writable and buffer.initialised and alone)


def load_wave(
    lanes: Lanes, ins: Instruction, boxes: list[tuple[Any, list[int]]],
    place: tuple[Array, Array], barrier: tuple[Array, Array], masks: Array | None,
) -> bool:  # fmt: skip
    """Start a tensor load of each lane. Return False, and do nothing, if the loads must be started one by one.

    `place` and `barrier`: block and offset, of each lane; `masks`: the blocks of a multicast.
    """
    c, (_, at), (_, bar_at) = lanes.c, place, barrier
    batch = c.batch
    run = batch.run
    m = boxes[0][0] if len(boxes) >= _FEWEST else None
    if not isinstance(m, TensorMap) or run.order is not None or run.recorder is not None:
        return False
    if any(other is not m for other, _ in boxes) or (bar_at != bar_at[0]).any() or (at % SMEM_UNIT).any():
        return False
    if at.min() < SHARED_RESERVED or at.max() + m.bytes > batch.shared.limit:
        return False
    source = _source(c, m, np.array([coords for _, coords in boxes], np.int64))
    if source is None:
        return False
    wave = TileWave(batch, m, *source, int(bar_at[0]), ins)
    warps = c.rows[lanes.row]
    if not _aim(wave, batch.row_cta[warps], place, barrier, masks) or not _note(wave, lanes, warps):
        return False
    batch.engine.issue_wave(wave, "TMA load", ins, batch.row_cta[warps].tolist())
    return True


def _aim(
    wave: TileWave, own: Array, place: tuple[Array, Array], barrier: tuple[Array, Array], masks: Array | None
) -> bool:
    """Find the targets of lanes of blocks `own`. Return False if two overlap or a mask is wrong."""
    size = wave.batch.cluster
    if masks is None:
        wave.lane = np.arange(len(own))
        wave.cta = place[0]
        told = barrier[0]
    else:
        masks = masks.astype(np.int64)
        if (masks >> size).any() or not masks.all():
            return False
        wave.lane, rank = np.nonzero(masks[:, None] >> np.arange(size) & 1)
        wave.cta = told = (own - own % size)[wave.lane] + rank
    if (told != wave.cta).any():
        return False
    wave.at = place[1][wave.lane]
    starts = np.sort(wave.cta * wave.batch.shared.stride + wave.at)
    return not (np.diff(starts) < wave.m.bytes).any()


def _note(wave: TileWave, lanes: Lanes, warps: Array) -> bool:
    """Give the loads their clocks, and record them in shadow memory. Return False if there may be something to report."""
    batch, cta = wave.batch, wave.cta
    clocks, own = batch.clocks, warps[wave.lane]
    if clocks is None:
        wave.queue = wave.clock = np.zeros(len(cta), np.int64)
        return True
    other = cta != batch.row_cta[own]
    if batch.peers is not None and other.any() and not batch.peers.all_run(own[other], cta[other]):
        return False
    team, rank = batch.row_team[own], cta % batch.cluster
    queues = {r: clocks.queue(("copy", r, wave.barrier)) for r in dict.fromkeys(rank.tolist())}
    wave.queue = np.array([queues[r] for r in rank.tolist()])
    wave.clock = clocks.issued[team, wave.queue].astype(np.int64) + 1 + earlier(team * clocks.columns + wave.queue)
    clocks.performed(own)
    known = clocks.known[team, batch.row_agent[own]]
    access = ShadowAccess(lanes.c, known, team, wave.queue, wave.clock, wave.ins, False, True)
    shadow = batch.shared.shadow
    shadow.fit(16)
    unit = shadow.granule
    if not shadow.write_spans(access, (cta * batch.shared.stride + wave.at) // unit, -(-wave.m.bytes // unit)):
        return False
    np.maximum.at(clocks.issued, (team, wave.queue), wave.clock.astype(np.uint32))
    clocks.last |= dict.fromkeys(queues.values(), wave.ins)
    return True
