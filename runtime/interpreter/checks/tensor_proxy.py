"""The proxy of tensor maps (PTX ISA 9.7.13.4, 'membar / fence': fence.proxy.tensormap; 8.9.5).

A map that the kernel writes in memory is read by tensor copies through a proxy of its own. Between the two there must be, in
causality order, a release to that proxy (`fence.proxy.tensormap::generic.release`, or `tensormap.cp_fenceproxy`), and an
acquire that names the map (`fence.proxy.tensormap::generic.acquire [map], 128`) by a warp of the copying block's cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .clocks import TENSOR_MAP
from .kinds import HazardKind
from .shadow import CLOCK, agent_of
from .shadow_access import generic_access

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run
    from ..ptx.module import Instruction
    from .shadow_access import ShadowAccess

Array = npt.NDArray[Any]
MAP_BYTES = 128
_FIX = "release it (fence.proxy.tensormap::generic.release, or tensormap.cp_fenceproxy), then acquire [map], 128"


class MapProxy:
    """The acquires of tensor maps, by the map's address: (cluster, agent, its clock, epochs of the map's granules)."""

    def __init__(self) -> None:
        self.acquired: dict[int, list[tuple[int, int, int, Array]]] = {}


def release(c: Group, reach: int) -> None:
    """Release all that the warps know, both to the proxy of tensor maps and by a fence of that reach."""
    clocks = c.batch.clocks
    if clocks is not None:
        clocks.proxy_fence(c, (TENSOR_MAP,))
        clocks.fence(c, reach)
        c.batch.run.sync.fence(c, reach)


def acquire(c: Group, addresses: Array, ins: Instruction, reach: int) -> None:
    """Record that warps of `c` acquire the maps at `addresses` (rows, 32)."""
    run, clocks = c.batch.run, c.batch.clocks
    if clocks is None:
        return
    run.sync.fence(c, reach)
    access = generic_access(c, ins, False)
    for row in range(c.n):
        for address in np.unique(addresses[row][c.active[row]]).tolist():
            found = _epochs(run, address)
            if found is None:
                continue
            shadow, epochs = found
            at: Array = np.full(len(epochs), row)
            released = shadow.ordered(access, at, agent_of(epochs), epochs & CLOCK, TENSOR_MAP)
            team = int(access.team[row]) + c.batch.first // c.batch.cluster
            entry = (team, int(access.agent[row]), int(access.clock[row]), np.where(released, epochs, 0))
            run.maps_acquired.acquired.setdefault(address, []).append(entry)


def check(c: Group, row: int, address: int, ins: Instruction) -> None:
    """Report a tensor copy by warp `row` of `c` through a map that the kernel wrote and did not acquire since."""
    run, batch = c.batch.run, c.batch
    found = _epochs(run, address)
    if found is None or batch.clocks is None:
        return
    shadow, epochs = found
    team, agent = int(batch.row_team[c.rows[row]]), int(batch.row_agent[c.rows[row]])
    seen: Array = np.zeros(len(epochs), np.bool_)
    for cluster, who, clock, held in run.maps_acquired.acquired.get(address, ()):
        if cluster == team + batch.first // batch.cluster and len(held) == len(epochs):
            known = who == agent or int(batch.clocks.known[team, agent, 0, who]) >= clock
            seen |= known & (held == epochs)
    missing = (epochs != 0) & ~seen
    if not missing.any():
        return
    buffer = run.memory.find(address)
    assert buffer is not None
    at = (address - buffer.address) // shadow.granule + int(missing.argmax())
    site = int(shadow.written(at, 1)[1][0])
    what = f"a tensor copy reads the tensor map in '{buffer.name}' that the kernel wrote, and no fence of its proxy is between"
    cta = batch.coordinates[int(batch.row_cta[c.rows[row]])]
    details = (
        f"read by {run.reporter.who(cta, int(batch.row_warp[c.rows[row]]))}",
        f"written at {run.reporter.place(run.sites[site])}",
    )
    run.reporter.hazard(HazardKind.MISSING_PROXY_FENCE, what, ins, details, _FIX)


def note_use(run: Run, access: ShadowAccess, address: int) -> None:
    """Record that a copy reads the map at `address` until it completes: a later write of the map must be ordered after it."""
    found = _granules(run, address)
    if found is None:
        return
    shadow, first, count = found
    granules = np.arange(first, first + count)[None]
    for part, rows in shadow.each(access, granules, np.zeros((1, 1), np.int64)):
        shadow.note_read(access, part, rows)


def _epochs(run: Any, address: int) -> tuple[Any, Array] | None:
    """Return (shadow, epochs of the last writes) of a map in global memory that the kernel may write."""
    found = _granules(run, address)
    if found is None:
        return None
    shadow, first, count = found
    return shadow, shadow.written(first, count)[0]


def _granules(run: Any, address: int) -> tuple[Any, int, int] | None:
    """Return (shadow, first granule, number of granules) of a map in global memory that the kernel may write."""
    buffer = run.memory.find(address)
    if buffer is None or buffer.shadow is None or not buffer.writable:
        return None
    shadow = buffer.shadow
    shadow.fit(16)
    return shadow, (address - buffer.address) // shadow.granule, MAP_BYTES // shadow.granule
