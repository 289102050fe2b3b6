"""Bulk copies without a tensor map (PTX ISA 9.7.9.25.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.compiled import Swizzle

from ...checks.kinds import HazardKind
from ...ptx.module import TYPE_BYTES, Instruction
from ..compiler import Compiler
from ..group import Group
from ..program import Op, builds
from ..shared_space import own_only
from .accesses import address_of
from .atomics import combiner
from .lanes import BulkStore, Lanes, Reader, check_running, multicast
from .transfers import Issuer, complete, note_global, note_shared, put_tile, shared_span

Array = npt.NDArray[Any]


@builds("cp.async.bulk cp.reduce.async.bulk")
def build_bulk(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.bulk between global, shared and peers' shared memory, with multicast, and cp.reduce.async.bulk."""
    form, operands = k.form, ins.operands
    to, source = form["to"], form["from"]
    operation, type_ = form.words.get("op", ""), form.words.get("type", "")
    dst, src, size = address_of(k, operands[0]), address_of(k, operands[1]), k.reader(operands[2], "b32")
    if source == "shared::cta":
        src = own_only(src, ins)
    if to == "global":
        return _bulk_out(ins, dst, src, size, operation, type_)
    barrier = address_of(k, operands[3])
    if to == "shared::cta":
        dst, barrier = own_only(dst, ins), own_only(barrier, ins)
    mask = k.reader(operands[4], "b16") if form.words.get("multicast") else None
    return _bulk_in(ins, dst, src, size, barrier, mask, source == "global", operation, type_)


def _check_size(i: Issuer, size: int) -> bool:
    if size % 16 or size <= 0:
        i.hazard(HazardKind.MISALIGNED, f"a bulk copy of {size} bytes; it must be a positive multiple of 16")
        return False
    return True


def _global_span(i: Issuer, address: int, size: int, write: bool, action: str = "a bulk copy") -> Array | None:
    """Check and return the bytes of the global side of a bulk copy, or of another `action`."""
    found = i.run.memory.find(address)
    data = i.run.memory.bytes_at(address, size)
    name = f"'{found.name}'" if found is not None else "no array"
    if data is None or found is None:
        start = address - found.address - found.origin if found is not None else address
        i.hazard(HazardKind.OUT_OF_BOUNDS, f"{action} of {size} bytes at byte {start} of {name}")
        return None
    if address % 16:
        i.hazard(HazardKind.MISALIGNED, f"a bulk copy at {name}, not at a multiple of 16 bytes")
        return None
    if write and not found.writable:
        i.hazard(HazardKind.READ_ONLY, f"a bulk copy to {name}, which the kernel may only read")
        return None
    return data


def _note_global_span(
    i: Issuer, address: int, size: int, queue: int, clock: int, write: bool, data: Callable[[], Array] | None = None
) -> None:
    """Record a bulk copy's global side in shadow memory. `data()`: the bytes that a store brings; None for a reduction."""
    found = i.run.memory.find(address)
    if found is None or found.shadow is None:
        return
    found.shadow.fit(16)
    unit = found.shadow.granule
    start = (address - found.address) // unit
    granules: Array = np.arange(start, start + size // unit, dtype=np.int64)

    def same() -> Array:
        held = i.run.memory.bytes_at(address, size)
        assert held is not None and data is not None
        return (held == data()).reshape(1, -1, unit).all(axis=2)

    note_global(i, found.shadow, np.expand_dims(granules, 0), queue, clock, write, None if data is None else same)


def _bulk_in(
    ins: Instruction, dst: Reader, src: Reader, size: Reader, barrier: Reader, mask: Reader | None,
    from_global: bool, operation: str, type_: str,
) -> Op:  # fmt: skip
    """Build a bulk copy into shared memory, of this block or a peer, that completes on a barrier."""

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
                targets = multicast(i, int(masks[n]))
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

        def bring(data: Array, cta: int) -> None:
            put_tile(batch, cta, at, data.copy(), Swizzle.NONE)

        for cta, bar_cta in targets:
            check_running(i, cta)
            queue, clock = i.issue(("copy", bar_cta % batch.cluster, barrier))
            if i.clocks is not None:
                put = None if operation else partial(bring, data, cta)
                note_shared(i, cta, at, total, queue, clock, True, put, atomic=bool(operation))
            ops.append((cta, bar_cta, queue, clock))
        if i.clocks is not None:
            if place is None:
                _note_global_span(i, source, total, *ops[0][2:], False)
            else:
                note_shared(i, *place, total, *ops[0][2:], False)
                if place[0] != ops[0][1]:
                    batch.engine.reads_source(i.team, place[0] % batch.cluster, *ops[0][2:])

        def perform() -> None:
            copied = data.copy()
            for cta, bar_cta, queue, clock in ops:
                new = copied
                if operation:
                    start = cta * batch.shared.stride + at
                    new = _reduced(batch.shared.data[start : start + total], copied, operation, type_)
                put_tile(batch, cta, at, new, Swizzle.NONE)
                complete(batch, bar_cta, barrier, total, queue, clock, i.ins)

        batch.engine.issue(perform, "bulk copy", (i.ins, i.cta))

    return run


def _reduced(old: Array, new: Array, operation: str, type_: str) -> Array:
    word = f"u{TYPE_BYTES[type_]}"
    return combiner(operation, type_)(old.view(word), new.view(word)).view(np.uint8)


def _bulk_out(ins: Instruction, dst: Reader, src: Reader, size: Reader, operation: str, type_: str) -> Op:
    """Build a bulk copy out of shared memory to global, in the lane's bulk group."""

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
        start = i.cta * batch.shared.stride + at

        def source() -> Array:
            return batch.shared.data[start : start + total].copy()

        if i.clocks is not None:
            note_shared(i, i.cta, at, total, *track.reads, False)
            _note_global_span(i, address, total, *track.writes, True, None if operation else source)
        held: list[Array] = []

        def write() -> None:
            target[...] = _reduced(target, held[0], operation, type_) if operation else held[0]

        track.put(lambda: held.append(source()), write)

    return run


@builds("cp.async.bulk.prefetch")
def build_prefetch(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.bulk.prefetch: it has no effect that a kernel can see, but its operands are checked."""
    source, size = address_of(k, ins.operands[0], "global"), k.reader(ins.operands[1], "b32")

    def run(c: Group) -> None:
        lanes = Lanes(c)
        sizes, places = lanes.take(size(c)), lanes.take(source(c))
        for n in range(len(lanes)):
            i, total, at = Issuer(c, int(lanes.row[n]), int(lanes.lane[n]), ins), int(sizes[n]), int(places[n])
            if total % 16 or at % 16:
                what = f"a prefetch of {total} bytes at address {at}; both must be multiples of 16"
                i.hazard(HazardKind.MISALIGNED, what)
            elif total:
                _global_span(i, at, total, False, "a prefetch")

    return run
