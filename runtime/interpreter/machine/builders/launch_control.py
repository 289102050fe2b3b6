"""clusterlaunchcontrol: a block takes the place of a cluster that has not started (PTX ISA 9.7.13.17 and 9.7.13.18).

The response is opaque to kernels. Here it is three coordinates and a word that says whether a launch was cancelled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...checks.poison import fresh
from ...ptx.module import Instruction, Vec
from ..compiler import Compiler
from ..group import Group
from ..program import Op, builds
from ..shared_space import own_only
from .accesses import address_of
from .lanes import Lanes, check_running
from .transfers import Issuer, complete, note_shared, shared_span

Array = npt.NDArray[Any]
BYTES = 16
_FAILED, _CANCELLED = 0x4B444C00, 0x4B444C01  # the last word of a response
_AXES = "xyz"
_NO_BLOCK = "the first block of a cancelled cluster is asked of a response that cancelled none"


@builds("clusterlaunchcontrol.try_cancel.async")
def build_request(k: Compiler, ins: Instruction) -> Op:
    """Build clusterlaunchcontrol.try_cancel: its response goes to the shared memory of the block, or of all blocks of its
    cluster.
    """
    address, barrier = (own_only(address_of(k, operand), ins) for operand in ins.operands)
    to_all = bool(k.form["multicast"])

    def run(c: Group) -> None:
        lanes = Lanes(c)
        (_, at), (_, bar) = lanes.shared(address(c)), lanes.shared(barrier(c))
        for n in range(len(lanes)):
            _request(Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins), int(at[n]), int(bar[n]), to_all)

    return run


def _request(i: Issuer, at: int, barrier: int, to_all: bool) -> None:
    batch = i.batch
    _check_earlier(i)
    if not shared_span(i, at, BYTES, BYTES, "the response of try_cancel"):
        return
    first = i.cta - i.cta % batch.cluster
    targets = range(first, first + batch.cluster) if to_all else range(i.cta, i.cta + 1)
    ops: list[tuple[int, int, int]] = []
    for cta in targets:
        check_running(i, cta)
        queue, clock = i.issue(("copy", cta % batch.cluster, barrier))
        if i.clocks is not None:
            note_shared(i, cta, at, BYTES, queue, clock, True)
        ops.append((cta, queue, clock))

    def perform() -> None:
        found = i.run.cancel(batch.device)
        words = np.array([*([-1] * 3 if found is None else found), _FAILED if found is None else _CANCELLED], np.int64)
        for cta, queue, clock in ops:
            if found is None:
                batch.refused.setdefault(cta, []).append((queue, clock))
            start = cta * batch.shared.stride + at
            batch.shared.data[start : start + BYTES] = words.astype(np.uint32).view(np.uint8)
            complete(batch, cta, barrier, BYTES, queue, clock, i.ins)

    batch.engine.issue(perform, "response of try_cancel", (i.ins, i.cta))


def _check_earlier(i: Issuer) -> None:
    """Report a request of a block whose warp knows that an earlier one has failed."""
    if i.clocks is None:
        return
    known = i.clocks.known[i.team, i.agent, 0]
    if any(int(known[queue]) >= clock for queue, clock in i.batch.refused.get(i.cta, ())):
        what = "a block asks for a further cluster after it has seen that an earlier request failed"
        i.hazard(
            HazardKind.LAUNCH_CONTROL, what, "leave the loop when query_cancel.is_canceled says that none was cancelled"
        )


def _words(c: Group, response: Array, ins: Instruction) -> tuple[Array, Array]:
    """Return the words (rows, 32, 4) of responses, and which lanes' response cancelled a launch. Report other values."""
    wide = np.ascontiguousarray(np.broadcast_to(response, (c.n, 32, 2)))
    words = wide.view(np.uint32)
    cancelled: Array = words[..., 3] == _CANCELLED
    other = c.active & ~cancelled & (words[..., 3] != _FAILED)
    if other.any():
        _, _, who = c.batch.run.reporter.group(c, other)
        what = "query_cancel of a value that is no response of try_cancel"
        fix = "load the 16 bytes that try_cancel wrote, after its mbarrier"
        c.batch.run.reporter.hazard(HazardKind.LAUNCH_CONTROL, what, ins, (who,), fix)
    return words, cancelled


@builds("clusterlaunchcontrol.query_cancel.is_canceled.pred")
def build_success(k: Compiler, ins: Instruction) -> Op:
    """Build clusterlaunchcontrol.query_cancel.is_canceled."""
    write, read = k.writer(ins.operands[0], "pred"), k.reader(ins.operands[1], "b128")
    assert write is not None
    return lambda c: write(c, _words(c, read(c), ins)[1])


@builds("clusterlaunchcontrol.query_cancel.get_first_ctaid " + " ".join(
    f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}" for axis in _AXES))  # fmt: skip
def build_first(k: Compiler, ins: Instruction) -> Op:
    """Build clusterlaunchcontrol.query_cancel.get_first_ctaid. Its result is undefined for a response that cancelled no
    launch.
    """
    dest, read = ins.operands[0], k.reader(ins.operands[1], "b128")
    items = dest.items if isinstance(dest, Vec) else (dest,)
    writers = [None if item is None else k.writer(item, "b32") for item in items]
    first = 0 if isinstance(dest, Vec) else _AXES.index(k.form.row.name[2][-1])

    def run(c: Group) -> None:
        words, cancelled = _words(c, read(c), ins)
        missing = c.active & ~cancelled
        if c.batch.run.detect and missing.any():
            fresh(c, missing, _NO_BLOCK)
        for n, write in enumerate(writers):
            if write is not None:
                write(c, words[..., first + n].copy())

    return run
