"""What goes wrong between devices, each beside a twin that is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import HazardKind as K

N = 256
PAIR = kd.Mesh(("x",), (2,))
SPEC = kd.ShapeDtypeStruct((N,), kd.float32)
SEEDS = range(24)


def found(body: Callable[..., None], seeds: Any = SEEDS) -> kd.HazardError | None:
    """What the interpreter finds, under the first schedule that shows it."""
    kernel = kd.kernel(body, out_type=SPEC, mesh=PAIR, scratch_types=[kd.SemaphoreType.REGULAR((2,))])
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal(N).astype(np.float32) for _ in range(2)]
    for seed in seeds:
        try:
            kernel(xs, interpret=kd.InterpretParams(seed=seed))
        except kd.HazardError as error:
            return error
    return None


def peer() -> Any:
    return 1 - kd.axis_index("x")


def exchange(x: Any, out: Any, sem: Any, scope: str | None = None) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    kd.semaphore_signal(sem.at[0], device_id=peer(), memory_scope=scope)
    kd.semaphore_wait(sem.at[0], memory_scope=scope)
    out[...] = out[...] * 2


def test_the_twin_is_clean() -> None:
    assert found(exchange) is None


def test_a_signal_too_few() -> None:
    def short(x: Any, out: Any, sem: Any) -> None:
        out[...] = x[...]

        @kd.when(kd.axis_index("x") == 0)
        def _() -> None:
            kd.semaphore_signal(sem.at[0], device_id=1)

        kd.semaphore_wait(sem.at[0])

    error = found(short, [0])
    assert error is not None and error.kind in (K.DEADLOCK, K.LIVELOCK)
    assert "device 0, block (0, 0, 0)" in str(error) and "device 1" not in str(error)
    assert error.line is not None and error.line.file == __file__


def test_a_signal_too_many() -> None:
    def many(x: Any, out: Any, sem: Any) -> None:
        exchange(x, out, sem)
        kd.semaphore_signal(sem.at[1], device_id=1)

    error = found(many, [0])
    assert error is not None and error.kind == K.SEMAPHORE_LEFT and "device 1 at 2" in str(error)


def test_a_buffer_used_again_before_the_peer_has_read_it() -> None:
    def again(x: Any, out: Any, sem: Any, wait: bool) -> None:
        kd.remote_ref(out, peer())[...] = x[...]
        kd.semaphore_signal(sem.at[0], device_id=peer())
        kd.semaphore_wait(sem.at[0])
        value = out[...]
        if wait:
            kd.semaphore_signal(sem.at[1], device_id=peer())
            kd.semaphore_wait(sem.at[1])
        kd.remote_ref(out, peer())[...] = value + 1
        kd.semaphore_signal(sem.at[0], device_id=peer())
        kd.semaphore_wait(sem.at[0])

    def early(x: Any, out: Any, sem: Any) -> None:
        again(x, out, sem, False)

    def right(x: Any, out: Any, sem: Any) -> None:
        again(x, out, sem, True)

    error = found(early)
    assert error is not None and error.kind == K.RACE_BLOCKS
    assert "'out on device" in str(error) and "device 0, block" in str(error) and "device 1, block" in str(error)
    assert found(right) is None


@pytest.mark.parametrize("scope", ["gpu", "cluster", "cta"])
def test_flags_of_one_gpus_scope(scope: str) -> None:
    """They order a GPU's own blocks alone: the other one may never see them, or see them before the data."""

    def narrow(x: Any, out: Any, sem: Any) -> None:
        exchange(x, out, sem, scope)

    error = found(narrow, [0])
    assert error is not None and error.kind == K.RACE_BLOCKS and 'memory_scope="sys"' in str(error)


def test_a_gpus_scope_is_enough_within_it() -> None:
    """The twin: two blocks of one GPU."""

    @kd.kernel(out_type=SPEC, mesh=PAIR, grid=(2,), grid_names=("i",))
    def own(x: Any, out: Any) -> None:
        flag = kd.get_global(kd.SemaphoreType.REGULAR)
        half = kd.ds(0, N // 2)

        @kd.when(kd.axis_index("i") == 0)
        def _() -> None:
            out[half] = x[half]
            kd.semaphore_signal(flag, memory_scope="gpu")

        @kd.when(kd.axis_index("i") == 1)
        def _() -> None:
            kd.semaphore_wait(flag, memory_scope="gpu")
            out[kd.ds(N // 2, N // 2)] = out[half]

    xs = [np.arange(N, dtype=np.float32)] * 1 + [np.ones(N, np.float32)]
    for seed in range(6):
        out = own(xs, interpret=kd.InterpretParams(seed=seed))
        assert np.array_equal(out[0], np.tile(np.arange(N // 2, dtype=np.float32), 2))


def test_a_plain_store_and_a_plain_load() -> None:
    def unordered(x: Any, out: Any, sem: Any) -> None:
        out[...] = x[...]
        out[...] = kd.remote_ref(out, peer())[...]

    error = found(unordered)
    assert error is not None and error.kind == K.RACE_BLOCKS


def test_a_wait_that_lasts_too_long_says_for_what() -> None:
    @kd.kernel(out_type=SPEC, mesh=PAIR, scratch_types={"arrived": kd.SemaphoreType.REGULAR}, interpret=True)
    def alone(x: Any, out: Any, arrived: Any) -> None:
        @kd.when(kd.axis_index("x") == 1)
        def _() -> None:
            kd.semaphore_wait(arrived, timeout=0.5)

        out[...] = x[...]

    with pytest.raises(kd.HazardError, match=r"waited for 0.5 s for 'arrived' to reach 1; it was 0") as caught:
        alone([np.ones(N, np.float32), np.ones(N, np.float32)])
    assert caught.value.kind == K.ASSERTION and "device 1" in str(caught.value)


@pytest.mark.parametrize("block", range(6))
def test_a_semaphore_that_is_left_has_its_name_its_index_and_its_block(block: int) -> None:
    @kd.kernel(
        out_type=SPEC,
        mesh=PAIR,
        scratch_types={"first": kd.SemaphoreType.REGULAR((3,)), "second": kd.SemaphoreType.REGULAR((2, 4))},
        grid=(2, 3),
        grid_names=("a", "b"),
        interpret=True,
    )
    def late(x: Any, out: Any, first: Any, second: Any) -> None:
        mine = (kd.axis_index("a") == block // 3) & (kd.axis_index("b") == block % 3)

        @kd.when(mine & (kd.axis_index("x") == 0))
        def _() -> None:
            kd.semaphore_signal(second.at[1, block % 4], 5, device_id=1)

        kd.when(mine)(lambda: out.__setitem__(..., x[...]))

    with pytest.raises(kd.HazardError) as caught:
        late([np.ones(N, np.float32), np.ones(N, np.float32)])
    where = f"'second'[1, {block % 4}] of block ({block % 3}, {block // 3}, 0) on device 1"
    assert caught.value.kind == K.SEMAPHORE_LEFT and f"the kernel ends with {where} at 5" in str(caught.value)


def test_a_wait_that_ends_in_time_says_nothing() -> None:
    def timely(x: Any, out: Any, sem: Any) -> None:
        out[...] = x[...]
        kd.semaphore_signal(sem.at[0], device_id=peer())
        kd.semaphore_wait(sem.at[0], timeout=1)

    assert found(timely, range(3)) is None
