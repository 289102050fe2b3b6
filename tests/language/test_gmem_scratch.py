"""Scratch in GMEM: memory of the launch, for all blocks or for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.compiled import ScratchMapParam
from kernel_dsl.serialize import pack, unpack

Spec = kd.ShapeDtypeStruct
f32 = kd.float32


def run(body: Any, x: Any, scratch: Any, interpret: Any, **options: Any) -> Any:
    made = kd.kernel(body, out_type=Spec(x.shape, f32), scratch_types=scratch, interpret=interpret, **options)
    return made(x)


def test_one_for_all_blocks(interpret: Any) -> None:
    """The first block stores what the others read once it has said so."""
    x = np.arange(256, dtype=np.float32).reshape(4, 64)

    def body(x: Any, out: Any, scratch: Any) -> None:
        block = kd.program_id(0)
        ready = kd.get_global(kd.SemaphoreType.REGULAR)

        @kd.when(block == 0)
        def _() -> None:
            scratch[...] = x[0] * 2
            kd.semaphore_signal(ready)

        kd.semaphore_wait(ready, decrement=False)
        out[block] = scratch[...] + x[block]

    same = run(body, x, [kd.GMEM((64,), f32)], interpret, grid=(4,))
    assert (same == x + 2 * x[0]).all()


def test_one_for_each_block(interpret: Any) -> None:
    x = np.arange(24 * 33, dtype=np.float32).reshape(24, 33)

    def body(x: Any, out: Any, scratch: Any, nibbles: Any) -> None:
        block = kd.program_id(0) * 4 + kd.program_id(1)
        scratch[...] = x[block]
        nibbles[...] = (kd.arange(34) % 8).astype(kd.int4)
        out[block] = kd.flip(scratch[...]) + nibbles[...].astype(f32)[:33]

    scratch = [kd.GMEM((33,), f32, per_block=True), kd.GMEM((34,), kd.int4, per_block=True)]
    got = run(body, x, scratch, interpret, grid=(6, 4))
    assert (got == x[:, ::-1] + np.arange(33) % 8).all()


def test_in_a_scope_and_a_batch(interpret: Any) -> None:
    x = np.arange(256, dtype=np.float32).reshape(4, 64)

    def body(x: Any, out: Any) -> None:
        def inner(scratch: Any) -> None:
            scratch[...] = x[...] + 1
            out[...] = scratch[...] * 2

        kd.run_scoped(inner, kd.GMEM((64,), f32))

    made = kd.vmap(kd.kernel(body, out_type=Spec((64,), f32), interpret=interpret), 0)
    assert (made(x) == (x + 1) * 2).all()


def test_it_holds_nothing_at_first() -> None:
    x = np.zeros((4, 64), np.float32)

    def body(x: Any, out: Any, scratch: Any) -> None:
        out[...] = scratch[...] + x[...]

    with pytest.raises(kd.HazardError) as caught:
        run(body, x, [kd.GMEM((4, 64), f32)], True)
    assert caught.value.kind == kd.HazardKind.UNINITIALISED


def test_blocks_race_for_it() -> None:
    x = np.arange(256, dtype=np.float32).reshape(4, 64)

    def body(x: Any, out: Any, scratch: Any) -> None:
        scratch[...] = x[kd.program_id(0)]
        out[kd.program_id(0)] = scratch[...]

    with pytest.raises(kd.HazardError) as caught:
        run(body, x, [kd.GMEM((64,), f32)], True, grid=(4,))
    assert caught.value.kind == kd.HazardKind.RACE_BLOCKS


SWIZZLED = kd.SMEM((8, 64), f32, transforms=(kd.TilingTransform((8, 32)), kd.SwizzleTransform(128)))


@pytest.mark.parametrize("grid", [(1,), (2, 2)], ids=["one", "four"])
@pytest.mark.parametrize("per_block", [True, False])
def test_tma_moves_it_both_ways(per_block: bool, grid: tuple[int, ...], interpret: Any) -> None:
    """Rows beyond the scratch, which are the next block's, come as zeros and are not stored."""
    blocks = int(np.prod(grid))
    x = np.random.default_rng(0).standard_normal((blocks, 8, 64)).astype(np.float32)

    def body(x: Any, out: Any, scratch: Any, tile: Any, ready: Any) -> None:
        i = kd.program_id(0) * grid[-1] + kd.program_id(1) if len(grid) > 1 else 0
        own = scratch if per_block else scratch.at[i]
        tile[...] = x[i] * 2
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, own.at[kd.ds(0, 8)])
        kd.wait_smem_to_gmem(0)
        kd.async_prefetch(own)
        kd.copy_gmem_to_smem(own.at[kd.ds(2, 8)], tile, ready)
        kd.barrier_wait(ready)
        out[i] = tile[...] + 1

    shape = (6, 64) if per_block else (blocks, 6, 64)
    scratch = [kd.GMEM(shape, f32, per_block=per_block), SWIZZLED, kd.Barrier()]
    want = np.concatenate([2 * x[:, 2:6], np.zeros((blocks, 4, 64), np.float32)], axis=1) + 1
    assert (run(body, x, scratch, interpret, grid=grid) == want).all()


@pytest.mark.parametrize(("fence", "word"), [("of SMEM", "missing_proxy_fence"), ("commit", "")])
def test_what_lanes_stored_needs_a_fence(fence: str, word: str) -> None:
    x = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)

    def body(x: Any, out: Any, scratch: Any, tile: Any, ready: Any) -> None:
        scratch[...] = x[...]
        if fence == "commit":
            kd.commit_gmem()
        else:
            kd.commit_smem()
        kd.copy_gmem_to_smem(scratch, tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[...]

    scratch = [kd.GMEM((8, 64), f32), SWIZZLED, kd.Barrier()]
    if not word:
        assert (run(body, x, scratch, True) == x).all()
        return
    with pytest.raises(kd.HazardError, match="commit_gmem") as caught:
        run(body, x, scratch, True)
    assert caught.value.kind == kd.HazardKind.MISSING_PROXY_FENCE


def test_its_descriptors_say_what_it_is(tmp_path: Path) -> None:
    """No array of the call has its shape and strides; host code makes descriptors of it, too."""

    def body(x: Any, out: Any, scratch: Any, tile: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(scratch, tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[...]

    scratch = [kd.GMEM((8, 64), f32, per_block=True), SWIZZLED, kd.Barrier()]
    made = kd.kernel(body, out_type=Spec((8, 64), f32), grid=(4,), scratch_types=scratch)
    stages = made.lower(Spec((8, 64), f32), target="sm_90a")
    compiled = stages.kernel
    maps = [p for p in compiled.params if isinstance(p, ScratchMapParam)]
    assert [p.sizes for p in maps] == [((4, 512), (8, 64), (64, 1))]
    assert {(p.box, p.axes) for p in maps} == {((1, 8, 32), (0, 1, 2))}
    assert unpack(pack(compiled))[0] == compiled
    assert stages.compile().export("scratch_by_tma", folder=tmp_path, c=True)
