"""Planted bugs in kernels of the language, each beside its fixed twin: found under every schedule, with line and name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.lowering.rules import matrix
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import SCHEDULES

rng = np.random.default_rng(4)
X = rng.standard_normal((64, 64)).astype(np.float32)
H = rng.standard_normal((64, 64)).astype(np.float16)
TILE = kd.SMEM((64, 64), kd.float32)


def copy_in(bug: bool) -> Any:
    @kd.kernel(out_type=lambda x: x, scratch_types=[TILE, kd.Barrier()])
    def kernel(x, out, tile, ready):
        kd.copy_gmem_to_smem(x, tile, ready)
        if not bug:
            kd.barrier_wait(ready)
        out[...] = tile[...] * 2

    return kernel


def copy_out(bug: bool) -> Any:
    @kd.kernel(out_type=lambda x: x, scratch_types=[TILE])
    def kernel(x, out, tile):
        tile[...] = x[...] * 2
        if not bug:
            kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out)
        kd.wait_smem_to_gmem(0)

    return kernel


def source_reused(bug: bool) -> Any:
    @kd.kernel(out_type=lambda x: (x, x), scratch_types=[TILE])
    def kernel(x, out, other, tile):
        tile[...] = x[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out)
        if not bug:
            kd.wait_smem_to_gmem(0, wait_read_only=True)
        tile[...] = x[...] * 2
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, other)
        kd.wait_smem_to_gmem(0)

    return kernel


def operands_uncommitted(bug: bool) -> Any:
    half = kd.SMEM((64, 64), kd.float16)

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[half, half, kd.ACC((64, 64))])
    def kernel(a, b, out, left, right, acc):
        left[...] = a[...]
        right[...] = b[...]
        if not bug:
            kd.commit_smem()
        kd.wgmma(acc, left, right)
        kd.wgmma_wait(0)
        out[...] = acc[...]

    return kernel


def operand_reused(bug: bool) -> Any:
    half = kd.SMEM((64, 64), kd.float16)

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), kd.float32),
        scratch_types=[half, half, kd.ACC((64, 64)), kd.Barrier(num_arrivals=2)],
    )
    def kernel(a, b, out, left, right, acc, ready):
        kd.copy_gmem_to_smem(a, left, ready)
        kd.copy_gmem_to_smem(b, right, ready)
        kd.barrier_wait(ready)
        kd.wgmma(acc, left, right)
        if not bug:
            kd.wgmma_wait(0)
        left[...] = kd.zeros((64, 64), kd.float16)
        kd.wgmma_wait(0)
        out[...] = acc[...]

    return kernel


def exchange(bug: bool) -> Any:
    @kd.kernel(
        out_type=lambda x: x,
        num_threads=2,
        thread_name="wg",
        scratch_types=[kd.SMEM((2, 64), kd.float32), kd.Barrier(num_arrivals=2)],
    )
    def kernel(x, out, tile, ready):
        wg = kd.axis_index("wg")
        tile[wg] = x[wg]
        if not bug:
            kd.barrier_arrive_and_wait(ready)
        out[wg] = tile[1 - wg]

    return kernel


def crossed(bug: bool) -> Any:
    @kd.kernel(
        out_type=lambda x: x,
        num_threads=2,
        thread_name="wg",
        scratch_types={"first": kd.Barrier(), "second": kd.Barrier()},
    )
    def kernel(x, out, *, first, second):
        wg = kd.axis_index("wg")

        @kd.when(wg == 0)
        def _():
            if bug:
                kd.barrier_wait(second)
            kd.barrier_arrive(first)
            if not bug:
                kd.barrier_wait(second)

        @kd.when(wg == 1)
        def _():
            kd.barrier_wait(first)
            kd.barrier_arrive(second)

        out[wg] = x[wg]

    return kernel


def never_written(bug: bool) -> Any:
    @kd.kernel(out_type=lambda x: x, scratch_types=[TILE])
    def kernel(x, out, tile):
        if not bug:
            tile[...] = x[...]
        out[...] = tile[...]

    return kernel


def output_read(bug: bool) -> Any:
    @kd.kernel(out_type=lambda x: x)
    def kernel(x, out):
        if not bug:
            out[...] = x[...]
        out[...] = out[...] + 1

    return kernel


def one_row(bug: bool) -> Any:
    @kd.kernel(out_type=lambda x: x, grid=(4,), grid_names=("block",))
    def kernel(x, out):
        block = kd.axis_index("block")
        out[0 if bug else block] = x[block]

    return kernel


def ring(bug: bool) -> Any:
    @kd.kernel(
        out_type=lambda x: x,
        num_threads=2,
        thread_name="wg",
        scratch_types={"tile": TILE, "full": kd.Barrier(), "empty": kd.Barrier()},
    )
    def kernel(x, out, *, tile, full, empty):
        wg = kd.axis_index("wg")

        @kd.when(wg == 0)
        def _():
            @kd.loop(0, 3)
            def _(i):
                kd.copy_gmem_to_smem(x, tile, full)
                kd.barrier_wait(empty)

        @kd.when(wg == 1)
        def _():
            @kd.loop(0, 3)
            def _(i):
                kd.barrier_wait(full)
                if bug:
                    kd.barrier_arrive(empty)
                out[...] = tile[...]
                if not bug:
                    kd.barrier_arrive(empty)

    return kernel


CASES: list[tuple[Callable[[bool], Any], tuple[Any, ...], K, str]] = [
    (copy_in, (X,), K.READ_BEFORE_WAIT, "'tile'[0, 0]"),
    (copy_out, (X,), K.MISSING_PROXY_FENCE, "'tile'"),
    (source_reused, (X,), K.REUSED_BEFORE_READ, "'tile'"),
    (operands_uncommitted, (H, H), K.MISSING_PROXY_FENCE, "'left'"),
    (operand_reused, (H, H), K.REUSED_BEFORE_WGMMA, "'left'"),
    (exchange, (X[:2],), K.RACE_SHARED, "wg="),
    (crossed, (X[:2],), K.DEADLOCK, "'second'"),
    (never_written, (X,), K.UNINITIALISED, "'tile'[0, 0]"),
    (output_read, (X,), K.UNINITIALISED, "'out'[0, 0]"),
    (one_row, (X[:4],), K.RACE_BLOCKS, "'out'[0, 0]"),
    (ring, (X,), K.RACE_SHARED, "'tile'"),
]


@pytest.mark.parametrize("make,args,kind,words", CASES, ids=[c[0].__name__ for c in CASES])
def test_planted_bug(make, args, kind, words):
    bad, good = make(True), make(False)
    for schedule in SCHEDULES:
        params = kd.InterpretParams(schedule=schedule)
        with pytest.raises(kd.HazardError) as caught:
            bad(*args, interpret=params)
        assert caught.value.kind is kind, str(caught.value)
        assert words in str(caught.value)
        assert caught.value.line is not None and caught.value.line.file == __file__
        good(*args, interpret=params)


def product_in_a_pair(b_last: bool) -> Any:
    """Both blocks of a cluster multiply by a B of 128 columns, K by N: two panels, the leading offset apart."""
    left, right = kd.SMEM((64, 64), kd.float16), kd.SMEM((64, 128), kd.float16)
    operands = {"left": left, "right": right} if b_last else {"right": right, "left": left}

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 64, 128), kd.float32),
        scratch_types={**operands, "acc": kd.ACC((64, 128)), "ready": kd.Barrier(num_arrivals=2)},
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(a, b, out, *, left, right, acc, ready):
        kd.copy_gmem_to_smem(a, left, ready)
        kd.copy_gmem_to_smem(b, right, ready)
        kd.barrier_wait(ready)
        kd.wgmma(acc, left, right)
        kd.wgmma_wait(0)
        out[kd.axis_index("c")] = acc[...]

    return kernel


@pytest.mark.parametrize("b_last", [True, False])
def test_descriptors_with_the_rank_in_them(b_last, monkeypatch, request):
    """A lowering that does not cut addresses to 18 bits: rank 1's leading offset is wrong, here as on a GPU."""
    b = rng.standard_normal((64, 128)).astype(np.float16)
    expected = H.astype(np.float32) @ b.astype(np.float32)
    assert np.abs(product_in_a_pair(b_last)(H, b, interpret=True) - expected).max() < 1e-4

    request.getfixturevalue("kernels_apart")
    monkeypatch.setattr(matrix, "_PLACE", 0xFFFFFFFF)
    bad = product_in_a_pair(b_last)
    if b_last:  # what lies behind B is no memory
        with pytest.raises(kd.HazardError, match="0x3FFFF") as caught:
            bad(H, b, interpret=True)
        assert caught.value.kind is K.DESCRIPTOR
        assert "block (1, 0, 0)" in str(caught.value)
        return
    errors = np.abs(bad(H, b, interpret=True) - expected).max(axis=(1, 2))
    assert errors[0] < 1e-4
    assert errors[1] > 1
