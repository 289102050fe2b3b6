"""Descriptors that a kernel makes: parts of arrays whose base and extents are traced, against NumPy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.lowering.writer import Writer

from .helpers import assemble, random, run_random, tiles

pytestmark = pytest.mark.wgmma  # tensormap.replace is of sm_90a

f32, bf16, i32, u8 = kd.float32, kd.bfloat16, kd.int32, kd.uint8
Spec = kd.ShapeDtypeStruct
T = 32  # rows of a tile


def scaled_groups(columns: int, transforms: Any = (), **options: Any) -> Any:
    """Each block takes a group of rows, in tiles, and stores them times its number plus one."""

    def body(x: Any, offsets: Any, out: Any, tile: Any, done: Any) -> None:
        group = kd.program_id(0)
        first, end = offsets[group], offsets[group + 1]
        rows = kd.make_tensor_descriptor(x, (end - first, None), (first, 0))
        own = kd.make_tensor_descriptor(out, (end - first, None), (first, 0))

        @kd.loop(0, kd.cdiv(end - first, T))
        def _(i: Any) -> None:
            kd.copy_gmem_to_smem(rows.at[kd.ds(i * T, T)], tile, done)
            kd.barrier_wait(done)
            tile[...] = tile[...] * kd.astype(group + 1, f32)
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, own.at[kd.ds(i * T, T)])
            kd.wait_smem_to_gmem(0)

    return kd.kernel(
        body,
        out_type=lambda x, offsets: Spec(x.shape, x.dtype, init=-1),
        grid=lambda x, offsets: (offsets.shape[0] - 1,),
        scratch_types=[kd.SMEM((T, columns), f32, transforms=transforms), kd.Barrier()],
        **options,
    )


@pytest.mark.parametrize("transforms", [(), tiles(f32)], ids=["plain", "swizzled"])
def test_rows_of_groups(transforms: Any, interpret: Any, rng: Any) -> None:
    """Ragged groups, an empty one, one beyond the array: the last tile of each stores its own rows only."""
    x = random(rng, (150, 64), f32)
    offsets = np.array([0, 45, 45, 46, 140, 170], np.int32)
    want = np.full_like(x, -1)
    for group, (first, end) in enumerate(itertools.pairwise(offsets)):
        want[first:end] = x[first:end] * np.float32(group + 1)
    kernel = scaled_groups(64, transforms)
    assert np.array_equal(kernel(x, offsets, interpret=interpret), want)


def test_it_assembles() -> None:
    ptx = scaled_groups(64).lower(Spec((150, 64), f32), Spec((6,), i32)).ptx
    # an address and two extents of each of both descriptors
    for text, count in (("tensormap.replace", 6), ("cp_fenceproxy", 2), ("tensormap::generic.acquire", 2)):
        assert ptx.count(text) == count, text
    assemble(scaled_groups(64, tiles(f32)), Spec((150, 64), f32), Spec((6,), i32))


# --- random parts ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A box of `block` elements from `at` on of the part of an array from `start` on, of `sizes` elements."""

    shape: tuple[int, ...]
    dtype: Any
    picked: tuple[int, ...]  # ints that index the first axes, before the descriptor is made
    start: tuple[int, ...]
    sizes: tuple[int, ...]
    at: tuple[int, ...]
    block: tuple[int, ...]
    traced: bool
    reduction: bool


def a_part(rng: Any) -> Part:
    dtype = (f32, bf16, i32, u8)[rng.integers(4)]
    rank = int(rng.integers(1, 5))
    unit = 16 // dtype.itemsize
    shape = (*(int(n) for n in rng.integers(1, 9, rank - 1)), unit * int(rng.integers(1, 6)))
    picked = tuple(int(rng.integers(n)) for n in shape[: int(rng.integers(rank))])
    left = shape[len(picked) :]

    def some(high: int, n: int, step: int = 1) -> int:
        return int(rng.integers(0, high)) * step if n else 0

    last = len(left) - 1
    units = [unit if i == last else 1 for i in range(len(left))]
    start = tuple(some(n // u + 2, 1, u) for n, u in zip(left, units, strict=True))
    sizes = tuple(some(n // u + 3, 1, u) for n, u in zip(left, units, strict=True))
    at = tuple(some(n // u + 1, 1, u) for n, u in zip(left, units, strict=True))
    block = (*(int(b) for b in rng.integers(1, 5, last)), unit * int(rng.integers(1, 4)))
    return Part(
        shape, dtype, picked, start, sizes, at, block, bool(rng.integers(2)), dtype is not u8 and bool(rng.integers(2))
    )


def run_part(p: Part, seed: int, interpret: Any) -> None:
    """Load a box and store it times two, or add it, to another array at the same place."""
    rng = np.random.default_rng(seed)
    unit = 16 // p.dtype.itemsize

    def numbers(ref: Any, values: tuple[int, ...], row: int) -> list[Any]:
        if not p.traced:
            return list(values)
        units = [*([1] * (len(values) - 1)), unit]
        return [kd.multiple_of(ref[row, i], u) for i, u in enumerate(units)]

    def body(x: Any, given: Any, out: Any, copied: Any, tile: Any, done: Any) -> None:
        start, sizes = numbers(given, p.start, 0), numbers(given, p.sizes, 1)
        index = tuple(kd.ds(n, b) for n, b in zip(numbers(given, p.at, 2), p.block, strict=True))
        source = kd.make_tensor_descriptor(x.at[p.picked] if p.picked else x, sizes, start)
        target = kd.make_tensor_descriptor(out.at[p.picked] if p.picked else out, sizes, start, slots=1)
        kd.async_prefetch(source.at[index])
        kd.copy_gmem_to_smem(source.at[index], tile, done)
        kd.barrier_wait(done)
        copied[...] = tile[...]
        kd.copy_smem_to_gmem(tile, target.at[index], reduction_op="add" if p.reduction else None)
        kd.wait_smem_to_gmem(0)

    kernel = kd.kernel(
        body,
        out_type=(Spec(p.shape, p.dtype, init=3), Spec(p.block, p.dtype)),
        scratch_types=[kd.SMEM(p.block, p.dtype), kd.Barrier()],
    )
    x = random(rng, p.shape, p.dtype)
    given = np.array([p.start, p.sizes, p.at], np.int32)
    out, copied = kernel(x, given, interpret=interpret)
    inner, want = np.zeros(p.block, p.dtype.numpy), np.full(p.shape, 3, p.dtype.numpy)
    taken = tuple(slice(s, s + n) for s, n in zip(p.start, p.sizes, strict=True))
    seen = x[p.picked][taken][tuple(slice(n, n + b) for n, b in zip(p.at, p.block, strict=True))]
    inner[tuple(map(slice, seen.shape))] = seen
    part = want[p.picked][taken][tuple(slice(n, n + b) for n, b in zip(p.at, p.block, strict=True))]
    part[...] = seen + part if p.reduction else seen
    assert np.array_equal(np.asarray(copied), inner), "loaded"
    assert np.array_equal(np.asarray(out), want), "stored"


def test_random_parts(interpret: Any) -> None:
    rng = np.random.default_rng(5)
    for seed in range(4):
        run_part(a_part(rng), seed, interpret)


@pytest.mark.slow
def test_more_random_parts() -> None:
    rng = np.random.default_rng(6)
    for seed in range(400):
        run_part(a_part(rng), seed, kd.InterpretParams(seed=seed))


# --- loops, pipelines, warps ----------------------------------------------------------------------


def one_after_another(slots: int, wait: bool) -> Any:
    """A descriptor a group, in a loop; with `wait` each load is over before the next descriptor is made."""

    def body(x: Any, offsets: Any, out: Any, each: Any, done: Any) -> None:
        @kd.loop(0, 4)
        def _(g: Any) -> None:
            part = kd.make_tensor_descriptor(x, (offsets[g + 1] - offsets[g], None), (offsets[g], 0), slots=slots)
            kd.copy_gmem_to_smem(part.at[kd.ds(0, T)], each.at[g], done.at[g])
            if wait:
                kd.barrier_wait(done.at[g])

        for g in range(4):
            if not wait:
                kd.barrier_wait(done.at[g])
            out[g] = each[g]

    scratch = [kd.SMEM((4, T, 32), f32), kd.Barrier(num_barriers=4)]
    return kd.kernel(body, out_type=Spec((4, T, 32), f32), scratch_types=scratch)


@pytest.mark.parametrize(("slots", "wait"), [(1, True), (2, True), (4, False), (5, False)])
def test_descriptors_take_turns(slots: int, wait: bool, interpret: Any, rng: Any) -> None:
    x = random(rng, (80, 32), f32)
    offsets = np.array([0, 10, 30, 31, 60], np.int32)
    want = np.zeros((4, T, 32), np.float32)
    for g in range(4):
        rows = x[offsets[g] : offsets[g + 1]]
        want[g, : len(rows)] = rows
    assert np.array_equal(one_after_another(slots, wait)(x, offsets, interpret=interpret), want)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("schedule", ["eager", "late"])
def test_a_descriptor_that_a_copy_still_reads_is_told(slots: int, schedule: str, rng: Any) -> None:
    x, offsets = random(rng, (80, 32), f32), np.array([0, 10, 30, 31, 60], np.int32)
    with pytest.raises(kd.HazardError, match=r"race_global[^$]*make_tensor_descriptor"):
        one_after_another(slots, False)(x, offsets, interpret=kd.InterpretParams(schedule=schedule))


@pytest.mark.parametrize("fence", ["tensormap.cp_fenceproxy", "fence.proxy.tensormap"])
@pytest.mark.usefixtures("kernels_apart")
def test_a_missing_fence_is_told(fence: str, rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler that forgot one would make: an ordinary copy of the map, or none of the acquire."""
    plain = Writer.ptx

    def without(self: Any, text: str, *args: Any, **options: Any) -> Any:
        if text.startswith(fence) and "cp_fenceproxy" in text:
            words = range(0, 128, 8)
            copied = "; ".join(f"@$2 ld.shared.b64 word, [$1+{n}]; @$2 st.global.b64 [$0+{n}], word" for n in words)
            return plain(self, f"{{ .reg .b64 word; {copied}; }}", *args, options["when"])
        return [] if text.startswith(fence) else plain(self, text, *args, **options)

    monkeypatch.setattr(Writer, "ptx", without)
    with pytest.raises(kd.HazardError, match="missing_proxy_fence"):
        scaled_groups(36)(random(rng, (70, 36), f32), np.array([0, 33], np.int32), interpret=True)


def test_a_pipeline_over_a_part(interpret: Any, rng: Any) -> None:
    """Sums of each group's rows by `emit_pipeline`, whose last block ends with the group."""
    x, offsets = random(rng, (90, 64), f32), np.array([0, 33, 90, 90], np.int32)

    def body(x: Any, offsets: Any, out: Any) -> None:
        group = kd.program_id(0)
        first, end = offsets[group], offsets[group + 1]
        rows = kd.make_tensor_descriptor(x, (end - first, None), (first, 0))

        def step(_: Any, block: Any, total: Any) -> Any:
            return total + kd.sum(block[...], axis=0)

        spec = kd.BlockSpec((T, 64), lambda i: (i, 0))
        run = kd.emit_pipeline(
            step,
            grid=(kd.cdiv(end - first, T),),
            in_specs=[spec],
            max_concurrent_steps=2,
            init_carry=kd.zeros((64,), f32),
        )
        out[group] = run(rows)

    kernel = kd.kernel(body, out_type=Spec((3, 64), f32), grid=(3,))
    want = np.stack([x[a:b].astype(np.float64).sum(0) for a, b in itertools.pairwise(offsets)])
    np.testing.assert_allclose(kernel(x, offsets, interpret=interpret), want, rtol=1e-4, atol=1e-4)


def test_copies_of_single_warps_and_of_dims(interpret: Any, rng: Any) -> None:
    """A descriptor made by a warpgroup serves its warps; the array's extents may be the launch's."""
    M = kd.Dim("M")

    def body(x: Any, count: Any, out: Any, each: Any, done: Any) -> None:
        part = kd.make_tensor_descriptor(x, (count, None), (x.shape[0] - count, 0))

        @kd.warp_map
        def _(warp: Any) -> None:
            kd.copy_gmem_to_smem(part.at[kd.ds(warp * 8, 8)], each.at[warp], done.at[warp])
            kd.barrier_wait(done.at[warp])

        out[...] = each[...]

    kernel = kd.kernel(
        body,
        out_type=Spec((4, 8, 32), f32),
        scratch_types=[kd.SMEM((4, 8, 32), f32), kd.Barrier(num_barriers=4)],
        shapes={"x": (M, 32)},
    )
    for rows, count in ((50, 20), (31, 31), (5, 3)):
        x = random(rng, (rows, 32), f32)
        want = np.zeros((32, 32), np.float32)
        want[:count] = x[rows - count :]
        assert np.array_equal(kernel(x, count, interpret=interpret), want.reshape(4, 8, 32))
    assert len(kernel.specialisations()) == 1


if __name__ == "__main__":
    run_random(__doc__, a_part, run_part)
