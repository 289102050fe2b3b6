"""Scratch in GMEM: memory of the launch, for all blocks or for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

Spec = kd.ShapeDtypeStruct
f32 = kd.float32


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.gpu)], ids=["interpreter", "gpu"])
def interpret(request: pytest.FixtureRequest) -> Any:
    return request.param


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
