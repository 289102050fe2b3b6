"""Two accesses that conflict, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ptx.module import Instruction
from .fixes import FIXES
from .flags import missing_fence
from .hazards import Place
from .kinds import HazardKind

if TYPE_CHECKING:
    from .shadow_access import ShadowAccess


@dataclass(frozen=True)
class AccessSide:
    """One side of a conflict. `queue`: "" for a warp, otherwise the kind of asynchronous queue. `rank`: its block's rank
    in the cluster, or None where it is not known."""

    who: str
    place: str
    queue: str
    same_team: bool
    rank: int | None = None


_LOADS = (
    "put fence.proxy.async (commit_smem) between the reads and the barrier or arrival: neither bar.sync nor mbarrier.arrive "
    "waits for loads, which may still be on their way"
)
_GLOBAL_LOADS = (
    "put fence.proxy.async.global (commit_gmem) between the reads and the barrier, or store what depends on them before it: "
    "when the barrier completes, loads may still be on their way"
)
_ORDER = "put tcgen05.fence::before_thread_sync before the synchronisation of the two threads, or wait for a commit"
_COMMIT = "wait for the mbarrier of a tcgen05.commit after it"
_OF_PRODUCTS = (HazardKind.READ_BEFORE_WAIT, HazardKind.REUSED_BEFORE_WGMMA)

# Asynchronous queues, by the first words of their keys.
QUEUES = {
    "copy": "a copy into shared memory that a barrier tracks",
    "bulk": "a bulk or tensor copy out of shared memory",
    "cp.async": "a cp.async copy",
    "wgmma": "a wgmma",
    "tcgen05": "an operation of tcgen05 that a commit tracks",
    "tcgen05.ld": "a load of tensor memory",
    "tcgen05.st": "a store to tensor memory",
    "tcgen05.alloc": "an allocation of tensor memory",
}


def kind_of(
    side: AccessSide, shared: bool, earlier_reads: bool, writes: bool, fence: bool, tensor: bool, rank: int
) -> HazardKind:
    """Return the kind of hazard of two unordered accesses. `rank`: that of the later access's block."""
    if fence:
        return HazardKind.MISSING_PROXY_FENCE
    if tensor:
        waits = side.queue == "tcgen05" and not earlier_reads and not writes
        return HazardKind.READ_BEFORE_WAIT if waits else HazardKind.RACE_TMEM
    if side.queue == "tcgen05.alloc":
        return HazardKind.RACE_SHARED
    if side.queue in ("wgmma", "tcgen05") and earlier_reads:
        return HazardKind.REUSED_BEFORE_WGMMA
    if side.queue and earlier_reads and shared:
        return HazardKind.REUSED_BEFORE_READ
    if side.queue and side.same_team and not earlier_reads and not writes:
        return HazardKind.READ_BEFORE_WAIT
    if shared:
        return HazardKind.RACE_SHARED
    return HazardKind.RACE_GLOBAL if side.same_team and side.rank in (None, rank) else HazardKind.RACE_BLOCKS


def conflict(
    shadow: Any, a: ShadowAccess, row: int, granule: int, epoch: int, site: int, writes: bool, earlier_reads: bool,
    fence: bool = False, fix: str = "", equal: bool = False,
) -> None:  # fmt: skip
    """Report that `a` is not ordered after an earlier access; `equal`: both write the same value."""
    kind, what, details, fix, other = described(
        shadow, a, row, granule, epoch, site, writes, earlier_reads, fence, fix, equal
    )
    a.c.batch.run.reporter.hazard(kind, what, a.ins, details, fix, other)


def described(
    shadow: Any, a: ShadowAccess, row: int, granule: int, epoch: int, site: int, writes: bool, earlier_reads: bool,
    fence: bool = False, fix: str = "", equal: bool = False,
) -> tuple[HazardKind, str, tuple[str, ...], str, Place]:  # fmt: skip
    """Return the hazard of two unordered accesses: kind, what happens, details, fix, and the earlier side."""
    run = a.c.batch.run
    side: AccessSide = shadow.side(a, row, epoch, site, writes)
    shared = type(shadow).__name__ == "SharedShadow"
    if shared and a.proxy and not writes and not side.queue:
        # Neither fenced nor ordered: the author forgot the fence (commit_smem does both).
        fence = fence or shadow.never_fenced(a, row, epoch)
    tensor = type(shadow).__name__ == "TensorShadow"
    pipelined = tensor and side.queue == "tcgen05" and a.ins.opcode[1] in ("mma", "cp")
    rank = int(a.c.batch.row_cta[a.c.rows[row]]) % a.c.batch.cluster
    kind = HazardKind.EQUAL_VALUE_RACE if equal else kind_of(side, shared, earlier_reads, writes, fence, tensor, rank)
    if pipelined:  # products and copies run in order if a fence orders the threads that issue them
        kind, fix = HazardKind.RACE_TMEM, _ORDER
    now = "written" if writes else "read"
    before = "read" if earlier_reads else "written"
    later, earlier = "write" if writes else "read", "read" if earlier_reads else "write"
    what = f"{shadow.name(a, row, granule)} is {now}, and nothing orders this {later} after an earlier {earlier}"
    if fence:
        how = "read by ordinary loads" if earlier_reads else "written by ordinary stores"
        what = (
            f"{shadow.name(a, row, granule)} is {now} through the async proxy, with no proxy fence after it was {how}"
        )
    if equal:
        what += "; both write the same value"
    details = (
        f"{now} by {shadow.who(a, row)}",
        f"{before} by {side.who}",
        f"{before} at {side.place}",
    )
    other = run.reporter.side(details[1], run.sites[site])
    fix = fix or (_COMMIT if side.queue == "tcgen05" and kind in _OF_PRODUCTS else FIXES[kind])
    if kind is HazardKind.MISSING_PROXY_FENCE and earlier_reads:
        fix = _LOADS if shared else _GLOBAL_LOADS
    elif kind is HazardKind.MISSING_PROXY_FENCE and not shared:
        fix = fix.replace("commit_smem", "commit_gmem")
    elif kind is HazardKind.RACE_BLOCKS and fix is FIXES[kind]:
        code = [
            i for f in (run.program.entry, *run.program.module.called) for i in f.body if isinstance(i, Instruction)
        ]
        scope = "sys" if run.program.several else "gpu"
        first, second = run.sites[site], a.ins
        fix = missing_fence(code, first, second, scope) or missing_fence(code, second, first, scope) or fix
    return kind, what, details, fix, other
