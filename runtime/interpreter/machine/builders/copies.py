"""TMA: tensor and bulk copies, their reductions and prefetches (PTX ISA 9.7.9.25 to 9.7.9.27)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.tma import COPY_RULES, SMEM_UNIT, BoxCopy, CopyRule

from ...checks import tensor_proxy
from ...checks.kinds import HazardKind
from ...ptx.module import Instruction, Mem
from ..compiler import Compiler
from ..group import Group
from ..memory import PARAM_WINDOW, WINDOW_BITS, WINDOW_MASK
from ..program import Op, builds
from ..spaces import own_only
from ..tensor_map import TensorMap, decode_tensor_map, rule_broken
from .lanes import BulkStore, Lanes, check_running, multicast
from .loads import address_of
from .transfers import (
    BoxTile,
    Issuer,
    complete,
    get_tile,
    note_shared,
    note_tile,
    put_tile,
    shared_span,
)

Array = npt.NDArray[Any]


@builds("cp.async.bulk.prefetch")
def build_prefetch(k: Compiler, ins: Instruction) -> Op:
    """cp.async.bulk.prefetch: without an effect that a kernel can see."""
    address_of(k, ins.operands[0], "global")
    k.reader(ins.operands[1], "b32")
    return lambda c: None


@builds("cp.async.bulk.prefetch.tensor")
def build_tensor_prefetch(k: Compiler, ins: Instruction) -> Op:
    """cp.async.bulk.prefetch.tensor: no effect that a kernel can see; the tensor map's rules are still checked."""
    source = _tensor_operand(k, ins.operands[0], k.form["dim"])

    def run(c: Group) -> None:
        lanes = Lanes(c)
        for n, (m, coords) in enumerate(source(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            if m is None:
                i.hazard(HazardKind.DESCRIPTOR, "the operand is no tensor map")
            else:
                _allowed(i, m, coords, False)

    return run


# --- tensors ------------------------------------------------------------------------------------------


def _tensor_operand(k: Compiler, operand: Any, dims: str) -> Any:
    """A function of the lanes that gives [(tensor map or None, coordinates)]."""
    assert isinstance(operand, Mem) and operand.coords is not None
    rank = int(dims[0])
    address = address_of(k, Mem(operand.base, operand.offset))
    coords = [k.reader(o, "b32") for o in operand.coords]
    assert k.ins is not None
    ins = k.ins

    def read(lanes: Lanes) -> list[tuple[TensorMap | None, list[int]]]:
        where = lanes.take(address(lanes.c))
        at = [lanes.take(r(lanes.c)).astype(np.uint32).view(np.int32) for r in coords]
        maps = {int(a): _map_at(lanes.c, int(a), rank, ins) for a in np.unique(where)}
        if lanes.c.batch.run.detect:
            for a, row in {(int(a), int(row)) for a, row in zip(where, lanes.row, strict=True)}:
                tensor_proxy.check(lanes.c, row, a, ins)
        return [(maps[int(a)], [int(x[n]) for x in at]) for n, a in enumerate(where)]

    return read


def _map_at(c: Group, address: int, rank: int, ins: Instruction) -> TensorMap | None:
    """The tensor map at a generic or parameter address, or None."""
    run = c.batch.run
    window = address >> WINDOW_BITS
    if window == PARAM_WINDOW >> WINDOW_BITS or address < 1 << 32:
        at = address & WINDOW_MASK
        data = c.batch.parameters.data[at : at + 128].tobytes()
    else:
        found = run.memory.bytes_at(address, 128)
        data = found.tobytes() if found is not None else b""
    m = run.maps.get(data)
    if data not in run.maps:
        m = run.maps[data] = decode_tensor_map(data)
        wrong = rule_broken(m) if m is not None else None
        if wrong is not None:
            _, _, who = run.reporter.group(c, c.active)
            what = f"the tensor map is none that a driver would make: {wrong}"
            run.reporter.hazard(HazardKind.DESCRIPTOR, what, ins, (who,))
            m = run.maps[data] = None
    return m if m is not None and len(m.shape) == rank else None


_KINDS = {"negative store": HazardKind.OUT_OF_BOUNDS, "shared memory": HazardKind.MISALIGNED}


def _allowed(i: Issuer, m: TensorMap, coords: list[int], store: bool) -> bool:
    """Whether a copy keeps the rules of TMA; reports the one that it breaks."""
    broken = _broken(m.dtype.itemsize, tuple(coords), store)
    if broken is None:
        return True
    rule, wrong = broken
    i.hazard(_KINDS.get(rule.name, HazardKind.MISALIGNED), wrong, rule.fix)
    return False


@lru_cache(1 << 14)
def _broken(itemsize: int, coords: tuple[int, ...], store: bool) -> tuple[CopyRule, str] | None:
    """The rule that a copy breaks, and how."""
    copy = BoxCopy(itemsize, coords, store=store)  # SMEM: see `shared_span`, which names it
    return next(((rule, wrong) for rule in COPY_RULES if (wrong := rule.broken(copy)) is not None), None)


@builds("cp.async.bulk.tensor cp.reduce.async.bulk.tensor")
def build_tensor(k: Compiler, ins: Instruction) -> Op:
    """cp.async.bulk.tensor 1d to 5d, tiled, to and from shared memory, with multicast and out-of-bounds fill, and
    cp.reduce.async.bulk.tensor."""
    form = k.form
    if form["to"] == "global":
        return _tensor_store(k, ins, form["dim"], form.words.get("op", ""))
    return _tensor_load(k, ins, form["dim"], bool(form["multicast"]))


def _tensor_load(k: Compiler, ins: Instruction, dims: str, to_many: bool) -> Op:
    dst, source, barrier = ins.operands[:3]
    dst_address, barrier_address = address_of(k, dst), address_of(k, barrier)
    if k.form["to"] == "shared::cta":
        dst_address, barrier_address = own_only(dst_address, ins), own_only(barrier_address, ins)
    maps = _tensor_operand(k, source, dims)
    mask = k.reader(ins.operands[3], "b16") if to_many else None

    def run(c: Group) -> None:
        lanes = Lanes(c)
        dst_cta, dst_at = lanes.shared(dst_address(c))
        bar_cta, bar_at = lanes.shared(barrier_address(c))
        masks = lanes.take(mask(c)) if mask else None
        for n, (m, coords) in enumerate(maps(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            if m is None:
                i.hazard(HazardKind.DESCRIPTOR, f"the operand is no tensor map of rank {dims[0]}")
                continue
            if masks is None:
                targets = [(int(dst_cta[n]), int(bar_cta[n]))]
            else:
                targets = multicast(i, int(masks[n]))
            if _allowed(i, m, coords, False):
                _load(i, BoxTile(i, m, coords), targets, int(dst_at[n]), int(bar_at[n]))

    return run


def _load(i: Issuer, tile: BoxTile, targets: list[tuple[int, int]], at: int, barrier: int) -> None:
    m, batch = tile.m, i.batch
    size = m.bytes
    if not shared_span(i, at, size, SMEM_UNIT, "a TMA load"):
        return
    ops: list[tuple[int, int, int, int]] = []

    def bring(cta: int) -> None:
        put_tile(batch, cta, at, tile.load(), m.swizzle)

    for cta, bar_cta in targets:
        check_running(i, cta)
        queue, clock = i.issue(("copy", bar_cta % batch.cluster, barrier))
        if i.clocks is not None:
            note_shared(i, cta, at, size, queue, clock, True, partial(bring, cta))
        ops.append((cta, bar_cta, queue, clock))
    if i.clocks is not None:
        note_tile(i, tile, ops[0][2], ops[0][3], False)

    def perform() -> None:
        data = tile.load()
        for cta, bar_cta, queue, clock in ops:
            put_tile(batch, cta, at, data, m.swizzle)
            complete(batch, bar_cta, barrier, size, queue, clock, i.ins)

    batch.engine.issue(perform, "TMA load", (i.ins, i.cta))


def _tensor_store(k: Compiler, ins: Instruction, dims: str, operation: str) -> Op:
    maps = _tensor_operand(k, ins.operands[0], dims)
    source = own_only(address_of(k, ins.operands[1]), ins)

    def run(c: Group) -> None:
        lanes = Lanes(c)
        _, src_at = lanes.shared(source(c))
        for n, (m, coords) in enumerate(maps(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            if m is None:
                i.hazard(HazardKind.DESCRIPTOR, f"the operand is no tensor map of rank {dims[0]}")
                continue
            if _allowed(i, m, coords, True):
                _store(i, BoxTile(i, m, coords, store=True), int(src_at[n]), operation)

    return run


def _store(i: Issuer, tile: BoxTile, at: int, operation: str) -> None:
    m, batch = tile.m, i.batch
    if not shared_span(i, at, m.bytes, SMEM_UNIT, "a TMA store"):
        return
    track = BulkStore(i)
    if i.clocks is not None:
        note_shared(i, i.cta, at, m.bytes, *track.reads, False)
        data = None if operation else lambda: get_tile(batch, i.cta, at, m)
        if not note_tile(i, tile, *track.writes, True, data):
            return
    held: list[Array] = []
    track.put(lambda: held.append(get_tile(batch, i.cta, at, m)), lambda: tile.store(held[0], operation))
