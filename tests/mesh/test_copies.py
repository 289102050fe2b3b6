"""Asynchronous copies from and to other devices: TMA by tensor maps and in bulk, sums, and copies with semaphores; each hazard
beside a twin that is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import HazardKind as K
from kernel_dsl.errors import BadArgument
from kernel_dsl.errors_hopper import CopyMismatch, CopySpaces

ROWS, COLUMNS, TM, TN = 64, 128, 32, 64
TRIO = kd.Mesh(("x",), (3,))
SCRATCH = {"tile": kd.SMEM((TM, TN), kd.float32), "bar": kd.Barrier(), "sem": kd.SemaphoreType.REGULAR((2,))}


def made(body: Callable[..., None], mesh: kd.Mesh = TRIO) -> Any:
    spec = kd.ShapeDtypeStruct((ROWS, COLUMNS), kd.float32, init=0)
    return kd.kernel(
        body, out_type=spec, mesh=mesh, grid=(ROWS // TM, COLUMNS // TN), grid_names=("i", "j"), scratch_types=SCRATCH
    )


def inputs(n: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-50, 50, (ROWS, COLUMNS)).astype(np.float32) for _ in range(n)]


def mine(ref: Any) -> Any:
    """This block's tile."""
    return ref.at[kd.ds(kd.axis_index("i") * TM, TM), kd.ds(kd.axis_index("j") * TN, TN)]


def following() -> Any:
    return (kd.axis_index("x") + 1) % kd.axis_size("x")


def found(body: Callable[..., None], seeds: Any = range(6)) -> kd.HazardError | None:
    kernel = made(body)
    for seed in seeds:
        try:
            kernel(inputs(), interpret=kd.InterpretParams(seed=seed))
        except kd.HazardError as error:
            return error
    return None


DEVICES = [
    (lambda: 2, lambda rank: 2),
    (following, lambda rank: (rank + 1) % 3),
    (lambda: {"x": following()}, lambda rank: (rank + 1) % 3),
]


@pytest.mark.parametrize(("device", "of"), DEVICES, ids=["int", "traced", "axes"])
def test_a_load_by_a_tensor_map_of_the_peers_array(device: Callable[[], Any], of: Callable[[int], int]) -> None:
    def pull(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        kd.copy_gmem_to_smem(mine(kd.remote_ref(x, device())), tile, bar)
        kd.barrier_wait(bar)
        mine(out)[...] = tile[...]

    xs, kernel = inputs(), made(pull)
    out = kernel(xs, interpret=kd.InterpretParams(seed=1))
    assert all(np.array_equal(out[rank], xs[of(rank)]) for rank in range(3))
    ptx = kernel.lower(xs).ptx
    assert "cp.async.bulk.tensor.2d.shared::cluster.global" in ptx and "[384]" in ptx, "a map of each device's array"


def pushed(x: Any, out: Any, tile: Any, sem: Any, fence: bool = True, wait: bool = True, signal: bool = True) -> None:
    tile[...] = mine(x)[...] * 2
    if fence:
        kd.commit_smem()
    kd.copy_smem_to_gmem(tile, mine(kd.remote_ref(out, following())))
    if wait:
        kd.wait_smem_to_gmem(0)
    if signal:
        kd.semaphore_signal(sem.at[0], device_id=following())
        kd.semaphore_wait(sem.at[0])
    mine(out)[...] = mine(out)[...] + 1


def test_a_store_to_the_peer() -> None:
    def push(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        pushed(x, out, tile, sem)

    xs, kernel = inputs(), made(push)
    for seed in range(2):
        out = kernel(xs, interpret=kd.InterpretParams(seed=seed))
        assert all(np.array_equal(out[rank], xs[(rank + 2) % 3] * 2 + 1) for rank in range(3))
    assert "fence.proxy.async.global" in kernel.lower(xs).ptx, "copies after the wait see what came"


@pytest.mark.parametrize(
    ("left_out", "kinds"),
    [
        ("fence", (K.MISSING_PROXY_FENCE,)),
        ("wait", (K.RACE_BLOCKS, K.READ_BEFORE_WAIT)),
        ("signal", (K.RACE_BLOCKS, K.READ_BEFORE_WAIT)),
    ],
)
def test_a_store_to_the_peer_without_what_it_needs(left_out: str, kinds: tuple[K, ...]) -> None:
    def push(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        pushed(x, out, tile, sem, **{left_out: False})

    error = found(push)
    assert error is not None and error.kind in kinds and "device" in str(error)


def test_sums_that_the_copies_make() -> None:
    def add(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        tile[...] = mine(x)[...]
        kd.commit_smem()
        for k in range(3):
            kd.copy_smem_to_gmem(tile, mine(kd.remote_ref(out, (kd.axis_index("x") + k) % 3)), reduction_op="add")
        kd.wait_smem_to_gmem(0)
        kd.semaphore_signal_multicast(sem.at[0], collective_axes="x")
        kd.semaphore_wait(sem.at[0], 3)

    xs = inputs()
    out = made(add)(xs, interpret=kd.InterpretParams(seed=3))
    assert all(np.array_equal(o, sum(xs)) for o in out)


def read_and_written(x: Any, out: Any, tile: Any, bar: Any, sem: Any, wait: bool) -> None:
    """Each device loads its peer's output by TMA, and then writes its own anew."""
    mine(out)[...] = mine(x)[...]
    kd.semaphore_signal(sem.at[0], device_id=(kd.axis_index("x") + 2) % 3)
    kd.semaphore_wait(sem.at[0])
    kd.copy_gmem_to_smem(mine(kd.remote_ref(out, following())), tile, bar)
    kd.barrier_wait(bar)
    kd.semaphore_signal(sem.at[1], device_id=following())
    if wait:
        kd.semaphore_wait(sem.at[1])
    mine(out)[...] = tile[...] + 1
    if not wait:
        kd.semaphore_wait(sem.at[1])


def test_a_buffer_used_again_before_the_peers_copy_has_read_it() -> None:
    def early(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        read_and_written(x, out, tile, bar, sem, False)

    def right(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        read_and_written(x, out, tile, bar, sem, True)

    error = found(early)
    assert error is not None and error.kind == K.RACE_BLOCKS and "'out on device" in str(error)
    assert found(right, range(2)) is None


@pytest.mark.parametrize("from_smem", [False, True], ids=["gmem", "smem"])
def test_a_copy_with_semaphores(from_smem: bool) -> None:
    def send(x: Any, out: Any, tile: Any, bar: Any, sem: Any) -> None:
        source = tile if from_smem else mine(x)
        if from_smem:
            tile[...] = mine(x)[...]
        copy = kd.make_async_remote_copy(source, mine(out), sem.at[0], sem.at[1], following())
        copy.start()
        copy.wait_send()
        if from_smem:
            tile[...] = kd.zeros((TM, TN), kd.float32)
        copy.wait_recv(timeout=1)
        mine(out)[...] = mine(out)[...] + 1

    for seed in range(1):
        out = made(send)(inputs(), interpret=kd.InterpretParams(seed=seed))
        assert all(np.array_equal(out[rank], inputs()[(rank + 2) % 3] + 1) for rank in range(3))


def test_a_copy_of_more_than_registers_hold_started_at_once() -> None:
    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=TRIO,
        scratch_types=[kd.SemaphoreType.REGULAR],
        interpret=True,
    )
    def send(x: Any, out: Any, came: Any) -> None:
        kd.async_copy(x, out, recv_sem=came, device_id=following()).wait()

    for shape in ((9001,), (3, 5000), (2, 3, 1500)):
        xs = [
            np.full(shape, rank, np.float32) + np.arange(np.prod(shape, dtype=int)).reshape(shape) for rank in range(3)
        ]
        assert all(np.array_equal(o, xs[(rank + 2) % 3]) for rank, o in enumerate(send(xs)))


def test_copies_that_are_refused() -> None:
    def refused(error: type[Exception], match: str, body: Callable[..., None]) -> None:
        with pytest.raises(error, match=match):
            made(lambda x, out, tile, bar, sem: body(x, out, tile, sem)).lower(inputs())

    refused(CopyMismatch, "tile", lambda x, out, tile, sem: kd.async_copy(tile, out, device_id=1))
    refused(CopySpaces, "GMEM", lambda x, out, tile, sem: kd.async_copy(mine(x), tile, device_id=1))
    refused(kd.Error, "device_id is None", lambda x, out, tile, sem: kd.async_copy(tile, mine(out)))
    refused(BadArgument, "send_sem", lambda x, out, tile, sem: kd.async_copy(tile, mine(out), device_id=1).wait_send())
