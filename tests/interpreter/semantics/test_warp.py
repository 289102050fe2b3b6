"""Warp-wide instructions against loops over the lanes, from the ISA's pseudocode."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import BadModifier, UnknownInstruction
from kernel_dsl.runtime.interpreter.isa.semantics.warp import compile_warp

RNG = np.random.default_rng(8)
WARPS = 6
FULL = np.full((1, 1), 0xFFFFFFFF, np.uint32)


def shuffle_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    bval, cval, mask = b & 31, c & 31, c >> 8 & 31
    max_lane = (lane & mask) | (cval & ~mask)
    min_lane = lane & mask
    if mode == "up":
        j = lane - bval
        valid = j >= max_lane
    elif mode == "down":
        j = lane + bval
        valid = j <= max_lane
    elif mode == "bfly":
        j = lane ^ bval
        valid = j <= max_lane
    else:
        j = min_lane | (bval & ~mask)
        valid = j <= max_lane
    return (j if valid else lane), valid


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(mode: str, uniform: bool) -> None:
    op = compile_warp(("shfl", "sync", mode, "b32"), pair=True)
    a = RNG.integers(0, 2**32, (WARPS, 32), np.uint32)
    active = np.ones((WARPS, 32), bool)
    for clamp in (31, 0, 0x101F, 0x1C1F, 0x1800, 0x1000, 0x1E1F):
        for delta in (0, 1, 5, 16, 31, 33):
            shape = (1, 1) if uniform else (WARPS, 32)
            b, c = np.full(shape, delta, np.uint32), np.full(shape, clamp, np.uint32)
            if not uniform:
                b = b ^ RNG.integers(0, 4, b.shape).astype(np.uint32)
            value, inside = op(active, a, b, c, FULL)
            for warp in range(WARPS):
                for lane in range(32):
                    own = int(b.reshape(-1)[0] if uniform else b[warp, lane])
                    source, valid = shuffle_lane(mode, lane, own, clamp)
                    assert value[warp, lane] == a[warp, source]
                    assert inside[warp, lane] == valid


def groups(masks: np.ndarray, active: np.ndarray, warp: int, lane: int) -> list[int]:
    mask = int(masks.reshape(-1)[0] if masks.size == 1 else masks[warp, lane])
    return [j for j in range(32) if mask >> j & 1 and active[warp, j]]


def mask_cases() -> list[tuple[np.ndarray, np.ndarray]]:
    everyone = np.ones((WARPS, 32), bool)
    some = np.broadcast_to(np.arange(32) < 20, (WARPS, 32))
    split = np.where(np.arange(32) < 12, 0xFFF, 0xFFFFF000).astype(np.uint32)
    return [
        (everyone, FULL),
        (some, np.full((1, 1), 0xFFFFF, np.uint32)),
        (everyone, np.broadcast_to(split, (WARPS, 32))),
        (some, np.full((WARPS, 32), 0xFFFFF, np.uint32)),
    ]


@pytest.mark.parametrize("case", range(4))
def test_votes(case: int) -> None:
    active, masks = mask_cases()[case]
    a = RNG.random((WARPS, 32)) < 0.9
    a[0], a[1] = True, False
    results = {m: compile_warp(("vote", "sync", m, "pred"))(active, a, masks)[0] for m in ("all", "any", "uni")}
    ballot = compile_warp(("vote", "sync", "ballot", "b32"))(active, a, masks)[0]
    for warp, lane in zip(*np.nonzero(active), strict=True):
        votes = {j: bool(a[warp, j]) for j in groups(masks, active, warp, lane)}
        assert results["all"][warp, lane] == all(votes.values())
        assert results["any"][warp, lane] == any(votes.values())
        assert results["uni"][warp, lane] == (len(set(votes.values())) == 1)
        assert ballot[warp, lane] == sum(1 << j for j, v in votes.items() if v)


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("type_", ["b32", "b64"])
def test_match(type_: str, case: int) -> None:
    active, masks = mask_cases()[case]
    a = RNG.integers(0, 3, (WARPS, 32)).astype(np.uint32 if type_ == "b32" else np.uint64)
    a[0] = 5
    some = compile_warp(("match", "any", "sync", type_))(active, a, masks)[0]
    every, alike = compile_warp(("match", "all", "sync", type_), pair=True)(active, a, masks)
    for warp, lane in zip(*np.nonzero(active), strict=True):
        members = groups(masks, active, warp, lane)
        assert some[warp, lane] == sum(1 << j for j in members if a[warp, j] == a[warp, lane])
        same = all(a[warp, j] == a[warp, lane] for j in members)
        assert alike[warp, lane] == same
        assert every[warp, lane] == (sum(1 << j for j in members) if same else 0)


@pytest.mark.parametrize("case", range(4))
def test_redux(case: int) -> None:
    active, masks = mask_cases()[case]
    a = RNG.integers(0, 2**32, (WARPS, 32), np.uint32)
    signed = a.view(np.int32)
    references = {
        ("add", "u32"): (a, sum),
        ("add", "s32"): (a, sum),
        ("min", "u32"): (a, min), ("max", "u32"): (a, max), ("min", "s32"): (signed, min),
        ("max", "s32"): (signed, max),
        ("and", "b32"): (a, lambda v: functools.reduce(operator.and_, v)),
        ("or", "b32"): (a, lambda v: functools.reduce(operator.or_, v)),
        ("xor", "b32"): (a, lambda v: functools.reduce(operator.xor, v)),
    }  # fmt: skip
    for (name, type_), (source, reduce_) in references.items():
        got = compile_warp(("redux", "sync", name, type_))(active, a, masks)[0]
        for warp, lane in zip(*np.nonzero(active), strict=True):
            values = [int(source[warp, j]) for j in groups(masks, active, warp, lane)]
            assert int(got[warp, lane]) == reduce_(values) & 0xFFFFFFFF, (name, type_)


def test_elect_and_activemask() -> None:
    active = np.broadcast_to((np.arange(32) > 4) & (np.arange(32) < 20), (WARPS, 32))
    mask = np.full((1, 1), 0xFFFFE0, np.uint32)
    lane, leader = compile_warp(("elect", "sync"), pair=True)(active, mask)
    assert (lane == 5).all()
    assert np.array_equal(leader, np.broadcast_to(np.arange(32) == 5, (WARPS, 32)))
    assert (compile_warp(("activemask", "b32"))(active)[0] == 0x000FFFE0).all()


def test_strangers_are_named() -> None:
    with pytest.raises(UnknownInstruction):
        compile_warp(("add", "f32"))
    with pytest.raises(BadModifier):
        compile_warp(("shfl", "idx", "b32"))
    with pytest.raises(BadModifier, match="and, or and xor"):
        compile_warp(("redux", "sync", "and", "u32"))
    with pytest.raises(BadModifier, match="one destination"):
        compile_warp(("vote", "sync", "all", "pred"), pair=True)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_redux_of_floats(operation: str, magnitude: bool, nan: bool) -> None:
    """A NaN loses to numbers, or wins with .NaN; only the lanes of the mask count."""
    words = ("redux", "sync", operation, *(("abs",) if magnitude else ()), *(("NaN",) if nan else ()), "f32")
    op = compile_warp(words)
    rng = np.random.default_rng(5)
    for with_nan in (0, 1, 32):
        x = rng.standard_normal((1, 32)).astype(np.float32)
        x[0, :with_nan] = np.nan
        for mask in (0xFFFFFFFF, 0x00FF0FF1, 0xFFFF0000):
            members = np.array([bool(mask >> lane & 1) for lane in range(32)])
            masks = np.full((1, 32), mask, np.uint32)
            (found,) = op.function(members[None], x.view(np.uint32), masks)
            given = np.abs(x[0, members]) if magnitude else x[0, members]
            whole, numbers = {"min": (np.min, np.fmin.reduce), "max": (np.max, np.fmax.reduce)}[operation]
            wanted = whole(given) if nan else numbers(given)
            got = np.broadcast_to(found, (1, 32))[0, members].view(np.float32)
            assert np.array_equal(got, np.full(len(got), wanted, np.float32), equal_nan=True)
            assert not np.isnan(wanted) or (got.view(np.uint32) == 0x7FFFFFFF).all()
