"""TMA: tensor and bulk copies, their reductions and prefetches (PTX ISA 9.7.9.25 to 9.7.9.27)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.compiled import Swizzle

from .atomics import combiner
from .engine import Pending
from .group import Group
from .kinds import HazardKind
from .loads import address_of
from .memory import PARAM_WINDOW, WINDOW_BITS, WINDOW_MASK
from .program import Compiler, Op, builds
from .ptx import TYPE_BYTES, Imm, Instruction, Mem
from .tensor_map import TensorMap, decode_tensor_map
from .transfers import (
    Issuer,
    Tile,
    complete,
    get_tile,
    note_global,
    note_shared,
    note_tile,
    put_tile,
    shared_span,
)

Array = npt.NDArray[Any]
Reader = Callable[[Group], Array]

_REDUCTIONS = {"add", "min", "max", "inc", "dec", "and", "or", "xor"}
_HINTS = {"L2::cache_hint", "tile", "bulk_group", "mbarrier::complete_tx::bytes", "multicast::cluster",
          "cta_group::1", "noftz"}  # fmt: skip


class Lanes:
    """Operands of the active lanes, one value a lane."""

    def __init__(self, c: Group) -> None:
        self.c = c
        self.row, self.lane = np.nonzero(c.active)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, value: Array) -> Array:
        return np.broadcast_to(value, (self.c.n, 32))[self.row, self.lane]

    def shared(self, address: Array) -> tuple[Array, Array]:
        """(block, offset) of shared addresses."""
        cta, offset = self.c.batch.shared.place(self.c, address & np.uint64(WINDOW_MASK))
        return self.take(cta), self.take(offset)


@builds("cp")
def build_cp(k: Compiler, ins: Instruction) -> Op:
    """cp.async.bulk.tensor 1d to 5d, tiled, to and from shared memory, with multicast and out-of-bounds fill;
    cp.reduce.async.bulk.tensor; cp.async.bulk between global, shared and peers' shared memory; cp.reduce.async.bulk;
    prefetches; bulk commit and wait groups; cp.async.ca and .cg with source sizes, commit_group, wait_group, wait_all
    and mbarrier.arrive."""
    from . import cp_async

    words = ins.opcode[1:]
    if words[:2] == ("reduce", "async"):
        rest = words[3:]
        if words[2] != "bulk":
            raise k.error("only cp.reduce.async.bulk is known")
        return _tensor(k, ins, rest[1:]) if rest[0] == "tensor" else _bulk(k, ins, rest)
    if words[0] != "async":
        raise k.error("unknown copy")
    if len(words) < 2 or words[1] != "bulk":
        return cp_async.build(k, ins)
    rest = words[2:]
    if rest[0] == "commit_group":
        return cp_async.build_commit(k, ins, "bulk")
    if rest[0] == "wait_group":
        return cp_async.build_wait(k, ins, "bulk", "read" in rest)
    if rest[0] == "prefetch":
        return _prefetch(k, ins, rest)
    return _tensor(k, ins, rest[1:]) if rest[0] == "tensor" else _bulk(k, ins, rest)


def _prefetch(k: Compiler, ins: Instruction, rest: tuple[str, ...]) -> Op:
    """Prefetches into L2 have no effect that a kernel can see; a tensor map's rules are still checked."""
    if "tensor" not in rest:
        return lambda c: None
    source = _tensor_operand(k, ins, ins.operands[0], rest[2])

    def run(c: Group) -> None:
        lanes = Lanes(c)
        for n, (m, _) in enumerate(source(lanes)):
            if m is None:
                i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
                i.hazard(HazardKind.DESCRIPTOR, "the operand is no tensor map")

    return run


# --- tensors ------------------------------------------------------------------------------------------


def _tensor_operand(k: Compiler, ins: Instruction, operand: Any, dims: str) -> Any:
    """A function of the lanes that gives [(tensor map or None, coordinates)]."""
    if not isinstance(operand, Mem) or operand.coords is None:
        raise k.error("a tensor map with coordinates is wanted")
    rank = int(dims[0]) if dims[1:] == "d" and dims[0] in "12345" else 0
    if len(operand.coords) != rank:
        raise k.error(f"{dims} wants {dims[0]} coordinates, {len(operand.coords)} given")
    address = address_of(k, Mem(operand.base, operand.offset))
    coords = [k.reader(o, "b32") for o in operand.coords]

    def read(lanes: Lanes) -> list[tuple[TensorMap | None, list[int]]]:
        where = lanes.take(address(lanes.c))
        at = [lanes.take(r(lanes.c)).astype(np.uint32).view(np.int32) for r in coords]
        maps = {int(a): _map_at(lanes.c, int(a), rank) for a in np.unique(where)}
        return [(maps[int(a)], [int(x[n]) for x in at]) for n, a in enumerate(where)]

    return read


def _map_at(c: Group, address: int, rank: int) -> TensorMap | None:
    """The tensor map at a generic or parameter address, or None."""
    run = c.batch.run
    window = address >> WINDOW_BITS
    if window == PARAM_WINDOW >> WINDOW_BITS or address < 1 << 32:
        at = address & WINDOW_MASK
        data = run.parameters.data[at : at + 128].tobytes()
    else:
        found = run.memory.bytes_at(address, 128)
        data = found.tobytes() if found is not None else b""
    m = run.maps.get(data)
    if m is None:
        m = run.maps[data] = decode_tensor_map(data)
    return m if m is not None and len(m.shape) == rank else None


def _tensor(k: Compiler, ins: Instruction, rest: tuple[str, ...]) -> Op:
    words = list(rest)
    dims = words.pop(0)
    if "im2col" in rest or any(w.startswith("im2col") for w in rest):
        raise k.error("im2col is not supported")
    operation = next((w for w in words if w in _REDUCTIONS), "")
    if words[:2] == ["global", "shared::cta"]:
        unknown = set(words[2:]) - _HINTS - {operation}
        if unknown or "bulk_group" not in words:
            raise k.error(f"'.{(sorted(unknown) or ['bulk_group missing'])[0]}' is not possible here")
        return _tensor_store(k, ins, dims, operation)
    if words[:2] in (["shared::cluster", "global"], ["shared::cta", "global"]):
        unknown = set(words[2:]) - _HINTS
        if unknown or "mbarrier::complete_tx::bytes" not in words:
            raise k.error(f"'.{(sorted(unknown) or ['a completion missing'])[0]}' is not possible here")
        return _tensor_load(k, ins, dims, "multicast::cluster" in words)
    raise k.error("unknown direction")


def _tensor_load(k: Compiler, ins: Instruction, dims: str, multicast: bool) -> Op:
    dst, source, barrier = ins.operands[:3]
    dst_address, barrier_address = address_of(k, dst), address_of(k, barrier)
    maps = _tensor_operand(k, ins, source, dims)
    mask = k.reader(ins.operands[3], "b16") if multicast else None

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
                targets = _multicast(i, int(masks[n]))
            tile = Tile(i, m, coords)
            _load(i, tile, targets, int(dst_at[n]), int(bar_at[n]))

    return run


def _multicast(i: Issuer, mask: int) -> list[tuple[int, int]]:
    """The blocks of the cluster that a multicast mask names."""
    size = i.batch.cluster
    first = i.cta - i.cta % size
    if mask >> size or not mask:
        i.hazard(HazardKind.DESCRIPTOR, f"multicast mask {mask:#x} for a cluster of {size} blocks")
    return [(first + r, first + r) for r in range(size) if mask >> r & 1]


def _load(i: Issuer, tile: Tile, targets: list[tuple[int, int]], at: int, barrier: int) -> None:
    m, batch = tile.m, i.batch
    size = m.bytes
    align = 128
    if not shared_span(i, at, size, align, "a TMA load"):
        return
    ops: list[tuple[int, int, int, int]] = []
    for cta, bar_cta in targets:
        _check_running(i, cta)
        queue, clock = i.issue(("copy", bar_cta % batch.cluster, barrier))
        if i.clocks is not None:
            note_shared(i, cta, at, size, queue, clock, True)
        ops.append((cta, bar_cta, queue, clock))
    if i.clocks is not None:
        note_tile(i, tile, ops[0][2], ops[0][3], False)

    def perform() -> None:
        data = tile.load()
        for cta, bar_cta, queue, clock in ops:
            put_tile(batch, cta, at, data, m.swizzle)
            complete(batch, bar_cta, barrier, size, queue, clock, i.ins)

    batch.engine.issue(perform, "TMA load")


def _check_running(i: Issuer, cta: int) -> None:
    """A peer that a copy writes to must run: started, and not exited."""
    batch = i.batch
    if cta == i.cta or not i.run.detect:
        return
    rows = np.flatnonzero(batch.row_cta == cta)
    gone = not batch.live[rows].any()
    if gone or not i.run.peers_run(batch, np.array([i.warp]))[0]:
        x, y, z = (int(v) for v in batch.coordinates[cta])
        state = "which has exited" if gone else "which is not known to run yet"
        i.hazard(
            HazardKind.PEER_NOT_RUNNING,
            f"a copy into shared memory of block ({x}, {y}, {z}), {state}",
            "put a cluster barrier before the first such access and one before exit",
        )


def _tensor_store(k: Compiler, ins: Instruction, dims: str, operation: str) -> Op:
    maps = _tensor_operand(k, ins, ins.operands[0], dims)
    source = address_of(k, ins.operands[1])

    def run(c: Group) -> None:
        lanes = Lanes(c)
        _, src_at = lanes.shared(source(c))
        for n, (m, coords) in enumerate(maps(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            if m is None:
                i.hazard(HazardKind.DESCRIPTOR, f"the operand is no tensor map of rank {dims[0]}")
                continue
            _store(i, Tile(i, m, coords), int(src_at[n]), operation)

    return run


def _store(i: Issuer, tile: Tile, at: int, operation: str) -> None:
    m, batch = tile.m, i.batch
    if not shared_span(i, at, m.bytes, 128, "a TMA store"):
        return
    track = BulkStore(i)
    if i.clocks is not None:
        note_shared(i, i.cta, at, m.bytes, *track.reads, False)
        # reductions are relaxed atomics, element by element (PTX ISA 9.7.9.27.3)
        if not note_tile(i, tile, *track.writes, True, bool(operation)):
            return
    held: list[Array] = []
    track.put(lambda: held.append(get_tile(batch, i.cta, at, m)), lambda: tile.store(held[0], operation))


class BulkStore:
    """A copy out of shared memory in the lane's bulk group: reading its source and writing are two events."""

    def __init__(self, i: Issuer) -> None:
        self.i = i
        self.reads = i.issue(("bulk", i.agent, i.lane))
        self.writes = i.issue(("bulkw", i.agent, i.lane))

    def put(self, read: Callable[[], None], write: Callable[[], None]) -> None:
        engine = self.i.batch.engine
        first = engine.issue(read, "read of a bulk copy's source")

        def both() -> None:
            first.now()
            write()

        second: Pending = engine.issue(both, "bulk copy to global memory")
        engine.groups.add(("bulk", self.i.warp, self.i.lane), (first, second, self.reads, self.writes))


# --- bulk copies --------------------------------------------------------------------------------------


def _bulk(k: Compiler, ins: Instruction, rest: tuple[str, ...]) -> Op:
    words = list(rest)
    to, source = words.pop(0), words.pop(0)
    operation = next((w for w in words if w in _REDUCTIONS), "")
    type_ = words[-1] if words and words[-1] in TYPE_BYTES else ""
    unknown = set(words) - _HINTS - {operation, type_}
    if unknown or bool(operation) != bool(type_):
        raise k.error(f"'.{(sorted(unknown) or ['operation or type'])[0]}' is not possible here")
    if source not in ("global", "shared::cta") or to not in ("global", "shared::cta", "shared::cluster"):
        raise k.error("unknown direction")
    operands = ins.operands
    dst, src, size = address_of(k, operands[0]), address_of(k, operands[1]), k.reader(operands[2], "b32")
    if ("bulk_group" if to == "global" else "mbarrier::complete_tx::bytes") not in words:
        raise k.error("a completion mechanism is missing")
    if to == "global":
        return _bulk_out(ins, dst, src, size, operation, type_)
    barrier = address_of(k, operands[3])
    mask = k.reader(operands[4], "b16") if "multicast::cluster" in words else None
    return _bulk_in(ins, dst, src, size, barrier, mask, source == "global", operation, type_)


def _check_size(i: Issuer, size: int) -> bool:
    if size % 16 or size <= 0:
        i.hazard(HazardKind.MISALIGNED, f"a bulk copy of {size} bytes; it must be a positive multiple of 16")
        return False
    return True


def _global_span(i: Issuer, address: int, size: int, write: bool) -> Array | None:
    """The bytes of a bulk copy's global side, checked."""
    found = i.run.memory.find(address)
    data = i.run.memory.bytes_at(address, size)
    name = f"'{found.name}'" if found is not None else "no array"
    if data is None or found is None:
        start = address - found.address - found.origin if found is not None else address
        i.hazard(HazardKind.OUT_OF_BOUNDS, f"a bulk copy of {size} bytes at byte {start} of {name}")
        return None
    if address % 16:
        i.hazard(HazardKind.MISALIGNED, f"a bulk copy at {name}, not at a multiple of 16 bytes")
        return None
    if write and not found.writable:
        i.hazard(HazardKind.READ_ONLY, f"a bulk copy to {name}, which the kernel may only read")
        return None
    return data


def _note_global_span(
    i: Issuer, address: int, size: int, queue: int, clock: int, write: bool, strong: bool = False
) -> None:
    found = i.run.memory.find(address)
    if found is None or found.shadow is None:
        return
    found.shadow.fit(16)
    unit = found.shadow.granule
    start = (address - found.address) // unit
    granules: Array = np.arange(start, start + size // unit, dtype=np.int64)
    note_global(i, found.shadow, np.expand_dims(granules, 0), queue, clock, write, strong)


def _bulk_in(
    ins: Instruction, dst: Reader, src: Reader, size: Reader, barrier: Reader, mask: Reader | None,
    from_global: bool, operation: str, type_: str,
) -> Op:  # fmt: skip
    """Into shared memory, of this block or a peer, with completion on a barrier."""

    def run(c: Group) -> None:
        lanes = Lanes(c)
        dst_cta, dst_at = lanes.shared(dst(c))
        bar_cta, bar_at = lanes.shared(barrier(c))
        sources, sizes = lanes.take(src(c)), lanes.take(size(c))
        src_cta, src_at = lanes.shared(src(c))
        masks = lanes.take(mask(c)) if mask else None
        for n in range(len(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            total, at = int(sizes[n]), int(dst_at[n])
            if not _check_size(i, total) or not shared_span(i, at, total, 16, "a bulk copy"):
                continue
            targets = [(int(dst_cta[n]), int(bar_cta[n]))]
            if masks is not None:
                targets = _multicast(i, int(masks[n]))
            if from_global:
                one(i, at, total, targets, int(bar_at[n]), int(sources[n]), None)
            else:
                place = (int(src_cta[n]), int(src_at[n]))
                one(i, at, total, targets, int(bar_at[n]), 0, place)

    def one(
        i: Issuer, at: int, total: int, targets: list[tuple[int, int]], barrier: int, source: int,
        place: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        batch = i.batch
        data: Array | None
        if place is None:
            data = _global_span(i, source, total, False)
        else:
            start = place[0] * batch.shared.stride + place[1]
            ok = shared_span(i, place[1], total, 16, "a bulk copy")
            data = batch.shared.data[start : start + total] if ok else None
        if data is None:
            return
        ops: list[tuple[int, int, int, int]] = []
        for cta, bar_cta in targets:
            _check_running(i, cta)
            queue, clock = i.issue(("copy", bar_cta % batch.cluster, barrier))
            if i.clocks is not None:
                note_shared(i, cta, at, total, queue, clock, True)
            ops.append((cta, bar_cta, queue, clock))
        if i.clocks is not None:
            if place is None:
                _note_global_span(i, source, total, *ops[0][2:], False)
            else:
                note_shared(i, *place, total, *ops[0][2:], False)

        def perform() -> None:
            copied = data.copy()
            for cta, bar_cta, queue, clock in ops:
                new = copied
                if operation:
                    start = cta * batch.shared.stride + at
                    new = _reduced(batch.shared.data[start : start + total], copied, operation, type_)
                put_tile(batch, cta, at, new, Swizzle.NONE)
                complete(batch, bar_cta, barrier, total, queue, clock, i.ins)

        batch.engine.issue(perform, "bulk copy")

    return run


def _reduced(old: Array, new: Array, operation: str, type_: str) -> Array:
    word = f"u{TYPE_BYTES[type_]}"
    return combiner(operation, type_)(old.view(word), new.view(word)).view(np.uint8)


def _bulk_out(ins: Instruction, dst: Reader, src: Reader, size: Reader, operation: str, type_: str) -> Op:
    """Out of shared memory to global, in the lane's bulk group."""

    def run(c: Group) -> None:
        lanes = Lanes(c)
        targets, sizes = lanes.take(dst(c)), lanes.take(size(c))
        _, src_at = lanes.shared(src(c))
        for n in range(len(lanes)):
            i = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins)
            total, at = int(sizes[n]), int(src_at[n])
            if not _check_size(i, total) or not shared_span(i, at, total, 16, "a bulk copy"):
                continue
            target = _global_span(i, int(targets[n]), total, True)
            if target is not None:
                one(i, at, total, int(targets[n]), target)

    def one(i: Issuer, at: int, total: int, address: int, target: Array) -> None:
        batch = i.batch
        track = BulkStore(i)
        if i.clocks is not None:
            note_shared(i, i.cta, at, total, *track.reads, False)
            _note_global_span(i, address, total, *track.writes, True, bool(operation))
        start = i.cta * batch.shared.stride + at
        held: list[Array] = []

        def write() -> None:
            target[...] = _reduced(target, held[0], operation, type_) if operation else held[0]

        track.put(lambda: held.append(batch.shared.data[start : start + total].copy()), write)

    return run


def constant_operand(k: Compiler, operand: Any) -> int:
    if not isinstance(operand, Imm):
        raise k.error("an integer constant is wanted")
    return int(operand.value)
