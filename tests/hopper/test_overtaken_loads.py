"""Loads of GMEM by lanes, then a bulk copy over it: the compiler puts a proxy fence between them (PTX ISA 8.9.5).

On a GPU, the copy overtakes loads that still wait in a queue, though all lanes have met at a barrier since.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

FENCE = "fence.proxy.async.global"
TILE = kd.SMEM((8, 128), kd.float32)
SCHEDULES = ("eager", "late", "random:1")


class Program:
    """A kernel of random steps over four stripes of 8 rows of `out`, and what they must leave.

    A step loads a stripe by lanes, keeps a loaded stripe in `kept`, or copies a tile of one number over a stripe.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.roles: bool = rng.random() < 0.4
        self.turns: int = rng.choice((1, 1, 3))
        kinds = ["load", "copy", "load", *rng.choices(("load", "copy", "keep"), k=4)]
        self.steps = [(kind, rng.randrange(4)) for kind in kinds]

    def kernel(self) -> Any:
        program = self

        @kd.kernel(
            out_type=lambda x: (x, x), input_output_aliases={0: 0}, num_threads=2 if self.roles else 1, thread_name="wg",
            scratch_types={"tile": TILE, "loaded": kd.Barrier(), "copied": kd.Barrier()},
        )  # fmt: skip
        def kernel(x, out, kept, *, tile, loaded, copied):
            def copy(stripe):
                kd.copy_smem_to_gmem(tile, out.at[stripe * 8 : stripe * 8 + 8])
                kd.wait_smem_to_gmem(0)

            def fill():
                tile[...] = kd.full((8, 128), 7.0)
                kd.commit_smem()

            def turn(copies):
                value, sums = None, None
                for kind, stripe in program.steps:
                    if kind == "load":
                        if value is not None:  # used late, behind copies
                            sums = value if sums is None else sums + value
                        value = out[stripe * 8 : stripe * 8 + 8, :]
                    elif kind == "copy":
                        copies(stripe)
                    elif value is not None:
                        kept[stripe * 8 : stripe * 8 + 8, :] = value
                if value is not None:
                    kept[0:8, :] = value if sums is None else sums + value

            def repeated(body):
                for _ in range(program.turns):
                    body()

            if not program.roles:
                fill()

                def meet_and_copy(stripe):
                    kd.commit_smem()
                    copy(stripe)
                    kd.commit_gmem()

                repeated(lambda: turn(meet_and_copy))
                return
            wg = kd.axis_index("wg")

            @kd.when(wg == 0)
            def _():
                def tell(stripe):
                    kd.barrier_arrive(loaded)
                    kd.barrier_wait(copied)

                repeated(lambda: turn(tell))

            @kd.when(wg == 1)
            def _():
                fill()

                def body():
                    for kind, stripe in program.steps:
                        if kind == "copy":
                            kd.barrier_wait(loaded)
                            copy(stripe)
                            kd.barrier_arrive(copied)

                repeated(body)

        return kernel

    def want(self, x: Any) -> tuple[Any, Any]:
        out, kept = x.copy(), np.full_like(x, np.nan)
        for _ in range(self.turns):
            value, sums = None, None
            for kind, stripe in self.steps:
                part = slice(stripe * 8, stripe * 8 + 8)
                if kind == "load":
                    if value is not None:
                        sums = value if sums is None else sums + value
                    value = out[part].copy()
                elif kind == "copy":
                    out[part] = 7
                elif value is not None:
                    kept[part] = value
            if value is not None:
                kept[:8] = value if sums is None else sums + value
        return out, kept


def array(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(32, 128)).astype(np.float32)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))])
def test_random_programs(seed: int) -> None:
    program, x = Program(seed), array(seed)
    report = kd.check(program.kernel(), x, schedules=SCHEDULES, ignore=("unwritten",))
    assert not report.hazards, str(report)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 60))])
def test_random_programs_give_what_they_say(seed: int) -> None:
    program, x = Program(seed), array(seed)
    out, kept = program.kernel()(x, interpret=kd.InterpretParams(ignore=("unwritten",)))
    wanted, keeps = program.want(x)
    np.testing.assert_array_equal(out, wanted)
    known = ~np.isnan(keeps)
    np.testing.assert_array_equal(kept[known], keeps[known])


def late_use(stored: bool) -> Any:
    @kd.kernel(
        out_type=lambda x: (x, x), input_output_aliases={0: 0}, scratch_types={"tile": kd.SMEM((32, 128), kd.float32)}
    )
    def kernel(x, out, kept, *, tile):
        value = out[...]
        tile[...] = value * 2 if stored else kd.full((32, 128), 7.0)
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out)
        kd.wait_smem_to_gmem(0)
        kept[...] = value

    return kernel


def test_the_fence_stands_before_the_copy() -> None:
    ptx = late_use(False).lower(array(0), target="sm_90a").compile().ptx
    assert ptx.index("ld.global") < ptx.index(FENCE) < ptx.index("cp.async.bulk.global")


def test_no_fence_without_a_load_of_what_is_copied() -> None:
    @kd.kernel(out_type=lambda x: x, scratch_types={"tile": kd.SMEM((32, 128), kd.float32)})
    def kernel(x, out, *, tile):
        tile[...] = x[...] + 1
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out)

    assert FENCE not in kernel.lower(array(0), target="sm_90a").compile().ptx


@pytest.mark.gpu
@pytest.mark.wgmma
@pytest.mark.parametrize("stored", [False, True])
def test_no_load_brings_what_the_copy_writes(stored: bool) -> None:
    @kd.kernel(
        out_type=lambda x: (x, x), input_output_aliases={0: 0}, grid=(256,), grid_names=("b",),
        scratch_types={"tile": kd.SMEM((64, 128), kd.float32)},
    )  # fmt: skip
    def kernel(x, out, kept, *, tile):
        part = kd.ds(kd.axis_index("b") * 64, 64)
        tile[...] = kd.full((64, 128), 7.0)
        value = out[part, :]
        if stored:
            tile[...] = value * 2
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out.at[part])
        kd.wait_smem_to_gmem(0)
        kept[part, :] = value

    x = np.random.default_rng(1).normal(size=(256 * 64, 128)).astype(np.float32)
    for _ in range(5):
        out, kept = kernel(x)
        np.testing.assert_array_equal(kept, x)
        np.testing.assert_array_equal(out, x * 2 if stored else np.full_like(x, 7))
