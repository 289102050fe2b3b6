"""TMA: tensor and bulk copies, their reductions and prefetches (PTX ISA 9.7.9.25 to 9.7.9.27)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.tma import SMEM_UNIT

from ...checks import tensor_proxy
from ...checks.kinds import HazardKind
from ...ptx.module import Instruction, Mem, Vec
from ..compiler import Compiler
from ..group import Group
from ..im2col import Im2colMap, decode_im2col_map, wrong_copy
from ..memory import PARAM_WINDOW, WINDOW_BITS, WINDOW_MASK
from ..program import Op, builds
from ..shared_space import own_only
from ..tensor_map import TensorMap, decode_tensor_map, rule_broken
from .accesses import address_of
from .columns import ColumnTile
from .gathered import RowsTile
from .lanes import BulkStore, Lanes, check_running, multicast
from .tensor_tiles import BoxTile, TensorTile, note_tile
from .transfers import Issuer, complete, copy_broken, get_tile, note_shared, put_tile, shared_span
from .waves import load_wave

Array = npt.NDArray[Any]


@builds("cp.async.bulk.prefetch.tensor")
def build_tensor_prefetch(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.bulk.prefetch.tensor: it has no effect that a kernel can see, but the tensor map's rules are checked."""
    source = _TensorOperand(k, ins, 0)

    def run(c: Group) -> None:
        lanes = Lanes(c)
        for n, place in enumerate(source(lanes)):
            source.tile(Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins), place, False)

    return run


# --- tensors ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """The operands of one lane: a tensor map or None, coordinates innermost first, and the offsets of im2col mode."""

    m: TensorMap | Im2colMap | None
    address: int  # the address of the map
    coords: list[int]
    offsets: list[int]


class _TensorOperand:
    """A tensor map with coordinates, operand number `at`, and the offsets of im2col mode behind it."""

    def __init__(self, k: Compiler, ins: Instruction, at: int) -> None:
        self.ins = ins
        self.rank = int(k.form["dim"][0])
        self.mode: str = k.form.words.get("mode") or "tile"
        operand = ins.operands[at]
        assert isinstance(operand, Mem) and operand.coords is not None
        self.address = address_of(k, Mem(operand.base, operand.offset))
        self.coords = [k.reader(o, "b32") for o in operand.coords]
        given = next((o for o in ins.operands if isinstance(o, Vec)), None)
        self.offsets = [] if given is None else [k.reader(o, "b16") for o in given.items]

    def __call__(self, lanes: Lanes) -> list[_Place]:
        c = lanes.c
        where = lanes.take(self.address(c))
        at = [lanes.take(r(c)).astype(np.uint32).view(np.int32) for r in self.coords]
        offsets = [lanes.take(r(c)).astype(np.uint16) for r in self.offsets]
        maps = {int(a): _map_at(c, int(a), self.rank, self.ins) for a in np.unique(where)}
        if c.batch.run.detect:
            for a, row in {(int(a), int(row)) for a, row in zip(where, lanes.row, strict=True)}:
                tensor_proxy.check(c, row, a, self.ins)
        return [
            _Place(maps[int(a)], int(a), [int(x[n]) for x in at], [int(x[n]) for x in offsets])
            for n, a in enumerate(where)
        ]

    def tile(self, i: Issuer, place: _Place, store: bool) -> TensorTile | None:
        """Return the tile that a lane's copy accesses; None, after a report, if it may not."""
        m = place.m
        if m is None:
            i.hazard(HazardKind.DESCRIPTOR, f"the operand is no tensor map of rank {self.rank}")
            return None
        if isinstance(m, Im2colMap) != self.mode.startswith("im2col"):
            theirs = "im2col" if isinstance(m, Im2colMap) else "tiled"
            i.hazard(HazardKind.DESCRIPTOR, f"a copy of .{self.mode} mode by a tensor map of {theirs} mode")
            return None
        if isinstance(m, TensorMap) and self.mode in ("tile::gather4", "tile::scatter4"):
            return self._rows(i, m, place.coords, store)
        if isinstance(m, TensorMap):
            return BoxTile(i, m, place.coords, store) if _allowed(i, m, place.coords, store) else None
        wrong = wrong_copy(m, place.coords, place.offsets)
        if wrong is not None:
            i.hazard(HazardKind.DESCRIPTOR, wrong)
            return None
        channel = [place.coords[0], *(0 for _ in place.coords[1:])]
        return ColumnTile(i, m, place.coords, place.offsets) if _allowed(i, m, channel, store) else None

    def _rows(self, i: Issuer, m: TensorMap, coords: list[int], store: bool) -> TensorTile | None:
        """Return a tile of rows of a matrix, from one column on; None, after a report, if it breaks a rule."""
        if m.box[1] != 1:
            fix = "make the map with a box of one row"
            i.hazard(HazardKind.DESCRIPTOR, f".{self.mode} by a tensor map whose box has {m.box[1]} rows", fix)
            return None
        column, rows = coords[0], coords[1:]
        return RowsTile(i, m, column, rows, store) if all(_allowed(i, m, [column, r], store) for r in rows) else None


def _map_at(c: Group, address: int, rank: int, ins: Instruction) -> TensorMap | Im2colMap | None:
    """Return the tensor map at a generic address, or None."""
    run = c.batch.run
    window = address >> WINDOW_BITS
    if address < 1 << 32:  # an H200 faults, because an address in parameter space is a different generic address
        _, _, who = run.reporter.group(c, c.active)
        what = "the tensor map's address is one of parameter space, where a generic one is wanted"
        run.reporter.hazard(HazardKind.DESCRIPTOR, what, ins, (who,), "convert it by cvta.param.u64")
    if window == PARAM_WINDOW >> WINDOW_BITS or address < 1 << 32:
        at = address & WINDOW_MASK
        data = c.batch.parameters.data[at : at + 128].tobytes()
    else:
        found = run.memory.bytes_at(address, 128)
        data = found.tobytes() if found is not None else b""
    m = run.maps.get(data)
    if data == bytes(128):
        _, _, who = run.reporter.group(c, c.active)
        what = "the tensor map is one of an array without elements"
        fix = "copy only where no extent is 0, or give a `kd.Dim` with `min=0` another minimum"
        run.reporter.hazard(HazardKind.DESCRIPTOR, what, ins, (who,), fix)
    elif data not in run.maps:
        m = run.maps[data] = decode_tensor_map(data) or decode_im2col_map(data)
        wrong = rule_broken(m) if isinstance(m, TensorMap) else m.broken() if m is not None else None
        if wrong is not None:
            _, _, who = run.reporter.group(c, c.active)
            what = f"the tensor map is none that a driver would make: {wrong}"
            run.reporter.hazard(HazardKind.DESCRIPTOR, what, ins, (who,))
            m = run.maps[data] = None
    return m if m is not None and len(m.shape) == rank else None


_KINDS = {"negative store": HazardKind.OUT_OF_BOUNDS, "shared memory": HazardKind.MISALIGNED}


def _allowed(i: Issuer, m: TensorMap | Im2colMap, coords: list[int], store: bool) -> bool:
    """Return whether a copy keeps the rules of TMA, and report the one that it breaks."""
    broken = copy_broken(m.dtype.itemsize, tuple(coords), store)
    if broken is None:
        return True
    rule, wrong = broken
    i.hazard(_KINDS.get(rule.name, HazardKind.MISALIGNED), wrong, rule.fix)
    return False


@builds("cp.async.bulk.tensor cp.reduce.async.bulk.tensor")
def build_tensor(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.bulk.tensor 1d to 5d, tiled and of im2col mode, to and from shared memory, with multicast and
    out-of-bounds fill, and cp.reduce.async.bulk.tensor.
    """
    form = k.form
    if form["to"] == "global":
        return _tensor_store(k, ins, form.words.get("op", ""))
    return _tensor_load(k, ins, bool(form["multicast"]))


def _tensor_load(k: Compiler, ins: Instruction, to_many: bool) -> Op:
    dst, _, barrier = ins.operands[:3]
    dst_address, barrier_address = address_of(k, dst), address_of(k, barrier)
    if k.form["to"] == "shared::cta":
        dst_address, barrier_address = own_only(dst_address, ins), own_only(barrier_address, ins)
    source = _TensorOperand(k, ins, 1)
    mask = k.reader(ins.operands[3 + (source.mode == "im2col")], "b16") if to_many else None
    paired = k.form["group"] == "cta_group::2"  # the barrier may be in either block of a pair

    def run(c: Group) -> None:
        lanes = Lanes(c)
        dst_cta, dst_at = lanes.shared(dst_address(c))
        bar_cta, bar_at = lanes.shared(barrier_address(c))
        masks = lanes.take(mask(c)) if mask else None
        places = source(lanes)
        boxes = [(p.m, p.coords) for p in places]
        alone = mask is None or not paired
        if (
            source.mode == "tile"
            and alone
            and load_wave(lanes, ins, boxes, (dst_cta, dst_at), (bar_cta, bar_at), masks)
        ):
            return
        for n, place in enumerate(places):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            tile = source.tile(i, place, False)
            if tile is None:
                continue
            if masks is None:
                targets = [(int(dst_cta[n]), int(bar_cta[n]))]
            else:
                targets = multicast(i, int(masks[n]))
            if paired and masks is not None:
                targets = [(cta, cta & ~1 | int(bar_cta[n]) & 1) for cta, _ in targets]
            _load(i, tile, place.address, targets, int(dst_at[n]), int(bar_at[n]))

    return run


def _load(i: Issuer, tile: TensorTile, place: int, targets: list[tuple[int, int]], at: int, barrier: int) -> None:
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
        own = next((op for op in ops if op[0] == i.cta), ops[0])
        tensor_proxy.note_use(i.run, i.access(own[2], own[3]), place)

    def perform() -> None:
        data = tile.load()
        for cta, bar_cta, queue, clock in ops:
            put_tile(batch, cta, at, data, m.swizzle)
            complete(batch, bar_cta, barrier, size, queue, clock, i.ins)

    batch.engine.issue(perform, "TMA load", (i.ins, i.cta))


def _tensor_store(k: Compiler, ins: Instruction, operation: str) -> Op:
    target = _TensorOperand(k, ins, 0)
    source = own_only(address_of(k, ins.operands[1]), ins)

    def run(c: Group) -> None:
        lanes = Lanes(c)
        _, src_at = lanes.shared(source(c))
        for n, place in enumerate(target(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            tile = target.tile(i, place, True)
            if tile is not None:
                _store(i, tile, place.address, int(src_at[n]), operation)

    return run


def _store(i: Issuer, tile: TensorTile, place: int, at: int, operation: str) -> None:
    m, batch = tile.m, i.batch
    if not shared_span(i, at, m.bytes, SMEM_UNIT, "a TMA store"):
        return
    track = BulkStore(i)
    if i.clocks is not None:
        note_shared(i, i.cta, at, m.bytes, *track.reads, False)
        tensor_proxy.note_use(i.run, i.access(*track.reads), place)
        data = None if operation else lambda: get_tile(batch, i.cta, at, m)
        if not note_tile(i, tile, *track.writes, True, data):
            return
    held: list[Array] = []
    track.put(lambda: held.append(get_tile(batch, i.cta, at, m)), lambda: tile.store(held[0], operation))
