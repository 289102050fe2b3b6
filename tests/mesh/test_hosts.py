"""Several hosts: devices whose memory is not mapped, reached by NVSHMEM's functions, which the interpreter answers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument
from kernel_dsl.errors_mesh import MeshArgument, Unreachable
from kernel_dsl.library.collectives import two_level
from kernel_dsl.ops import nvshmem
from kernel_dsl.ops.nvshmem import FUNCTIONS, MORE
from kernel_dsl.ops.remote_copy import signal_wait
from kernel_dsl.runtime.assemble import find_ptxas

HOSTS = kd.Mesh(("host", "x"), (2, 2), hosts="host")
N = 256
SPEC = kd.ShapeDtypeStruct((4, N), kd.float32, init=0)
APART = ((0, 1), (2, 3))
MAPPED = [None, APART, ((0,), (1,), (2,), (3,))]
SCHEDULES = [{"seed": 0}, {"seed": 4}, {"schedule": "eager"}, {"schedule": "late"}]


def everybody(waits: bool = True, mesh: kd.Mesh = HOSTS) -> Any:
    """Each device sends its row to all others."""

    @kd.kernel(out_type=SPEC, mesh=mesh, scratch_types=[kd.SemaphoreType.REGULAR((4,))])
    def kernel(x: Any, out: Any, arrived: Any) -> None:
        me = kd.axis_index(mesh.names)
        out[me] = x[...]
        for rank in range(4):

            @kd.when(me != rank)
            def _(rank: int = rank) -> None:
                kd.async_copy(out.at[me], out.at[me], None, arrived.at[me], rank)

        def wait() -> None:
            for rank in range(4):

                @kd.when(me != rank)
                def _(rank: int = rank) -> None:
                    kd.semaphore_wait(arrived.at[rank])

        if waits:
            wait()
        out[me] = out[me] + out[(me + 2) % 4]
        if not waits:
            wait()

    return kernel


@pytest.mark.parametrize("mapped", MAPPED, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.sampled(8)
def test_copies_and_signals_reach_devices_that_are_not_mapped(mapped: Any, schedule: dict[str, Any]) -> None:
    xs = [np.full(N, rank + 1, np.float32) for rank in range(4)]
    out = everybody()(xs, interpret=kd.InterpretParams(devices=4, mapped=mapped, **schedule))
    for rank in range(4):
        want = [1, 2, 3, 4]
        want[rank] += want[(rank + 2) % 4]
        assert out[rank][:, 7].tolist() == want


UNMAPPED: dict[str, Any] = {
    "all_to_all": lambda x, how: kd.library.all_to_all(x, [np.full(4, 2, np.int32) for _ in x], HOSTS, **how),
    "ring_attention": lambda x, how: kd.library.ring_attention(
        *([a.reshape(1, 1, 8, 8) for a in x],) * 3, HOSTS, **how
    ),
    "expert": lambda x, how: kd.library.expert_dispatch(
        x, [np.zeros((8, 1), np.int32) for _ in x], HOSTS, num_experts=4, **how
    ),
}


@pytest.mark.parametrize("name", UNMAPPED)
@pytest.mark.sampled(3)
def test_functions_of_one_host_say_which_rank_is_out_of_reach(name: str) -> None:
    xs = [np.zeros((8, 8), np.float32) for _ in range(4)]
    with pytest.raises(
        Unreachable, match=rf"rank 0 can't reach the memory of rank 2: kernel '{name}.* needs it mapped"
    ):
        UNMAPPED[name](xs, {"interpret": kd.InterpretParams(mapped=APART)})
    UNMAPPED[name](xs, {"interpret": True})


def test_products_of_several_hosts_are_two_steps() -> None:
    xs, w = [np.full((128, 8), r, ml_dtypes.bfloat16) for r in range(4)], np.ones((8, 8), ml_dtypes.bfloat16)
    got = kd.library.all_gather_matmul(xs, [w.copy() for _ in xs], HOSTS, interpret=kd.InterpretParams(mapped=APART))
    assert all((g[128 * r] == 8 * r).all() for g in got for r in range(4))


def test_a_reader_that_does_not_wait_is_found() -> None:
    xs = [np.full(N, rank + 1, np.float32) for rank in range(4)]
    with pytest.raises(kd.HazardError) as caught:
        for seed in range(8):
            everybody(waits=False)(xs, interpret=kd.InterpretParams(seed=seed, mapped=APART))
    assert caught.value.kind == "race_blocks" and "device" in str(caught.value)


def test_a_plain_load_from_a_device_that_is_not_mapped_is_found() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), mesh=HOSTS)
    def load(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, {"host": 1 - kd.axis_index("host")})[...]

    xs = [np.zeros(N, np.float32) for _ in range(4)]
    assert load(xs, interpret=True)[0].shape == (N,)
    with pytest.raises(kd.HazardError, match=r"the address 0 is that of .* a peer that is not mapped") as caught:
        load(xs, interpret=kd.InterpretParams(mapped=APART))
    assert caught.value.kind == "out_of_bounds"


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("mesh", [HOSTS, kd.Mesh(("x", "host"), (2, 2), hosts=("host",))], ids=["hosts first", "last"])
@pytest.mark.sampled(6)
def test_collectives_of_two_levels(dtype: Any, mesh: kd.Mesh) -> None:
    rng = np.random.default_rng(1)
    xs = [(rng.standard_normal((8, 70)) * 50).astype(dtype) for _ in range(4)]
    groups = APART if mesh.names[0] == "host" else ((0, 2), (1, 3))
    how: dict[str, Any] = {"interpret": kd.InterpretParams(mapped=groups, schedule="late"), "timeout": 100.0}
    wide = np.float32 if dtype != np.int32 else np.int32
    a, b = ([xs[d].astype(wide) for d in group] for group in groups)
    total = ((a[0] + a[1]) + (b[0] + b[1])).astype(dtype)
    assert all(np.array_equal(got, np.concatenate(xs)) for got in kd.library.all_gather(xs, mesh, **how))
    for rank, got in enumerate(kd.library.reduce_scatter(xs, mesh, **how)):
        assert np.array_equal(got, total[2 * rank : 2 * rank + 2])
    out = kd.symmetric.empty((8, 70), xs[0].dtype, mesh, interpret=True)
    assert all(np.array_equal(got, total) for got in kd.library.all_reduce(xs, mesh, out=out, **how))


@pytest.mark.parametrize(("size", "cut"), [(1 << 20, 0), (1 << 20, 5), (100_003, 0)])
@pytest.mark.sampled(3)
def test_sums_of_hosts_of_eight_devices_do_not_spill(size: int, cut: int) -> None:
    """Terms that are not aligned, and those that end early (`cut`), are loaded one element at a time."""
    if find_ptxas() is None:
        pytest.skip("needs ptxas")
    mesh = kd.Mesh(("host", "x"), (2, 8), hosts="host")
    kernel = two_level.scatter.__wrapped__(size, (size,), kd.bfloat16, mesh, 60.0)
    ref = kd.ShapeDtypeStruct((16 * size - cut,), kd.bfloat16)
    inputs = tuple(kernel._lower_input(x) for x in (ref,))
    stages = kernel._trace(inputs, (0,), (), None, "sm_90a", mapped=True)  # else it calls NVSHMEM's library
    assert stages.compile().resources.spills == 0


def test_the_ptx_declares_the_functions_and_assembles(tmp_path: Path) -> None:
    text = everybody().lower([np.zeros(N, np.float32)] * 4, target="sm_90a").ptx
    names = set(re.findall(r"\b(nvshmem\w*?)(?:_param_\d+)?\b", text))
    assert names == set(FUNCTIONS) and len(FUNCTIONS) <= 12
    source = tmp_path / "hosts.ptx"
    source.write_text(text)
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("needs ptxas")
    command = [str(ptxas), "-c", "-arch=sm_90a", str(source), "-o", str(tmp_path / "hosts.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain = kd.Mesh(("host", "x"), (2, 2))
    assert "nvshmem" not in everybody(mesh=plain).lower([np.zeros(N, np.float32)] * 4, target="sm_90a").ptx


def fetching() -> Any:
    """Each device copies from one of the other host, and says what NVSHMEM tells it of both."""

    @kd.kernel(
        out_type=(SPEC, kd.ShapeDtypeStruct((4,), kd.int32)), mesh=HOSTS, scratch_types=[kd.SemaphoreType.REGULAR] * 3
    )
    def kernel(x: Any, out: Any, said: Any, begin: Any, came: Any, end: Any) -> None:
        me = kd.axis_index(HOSTS.names)
        other = kd.rem(me + 2, 4)
        kd.semaphore_signal_multicast(begin, collective_axes=HOSTS.names)
        kd.semaphore_wait(begin, 4)
        kd.async_copy(kd.remote_ref(x, other), out.at[me], None, came).wait_recv()
        said[0], said[1] = nvshmem.my_pe(), nvshmem.n_pes()
        said[2], said[3] = ((nvshmem.mapped_at(x, rank) != 0).astype(kd.int32) for rank in (other, me))
        kd.semaphore_signal_multicast(end, collective_axes=HOSTS.names)
        kd.semaphore_wait(end, 4)

    return kernel


@pytest.mark.parametrize("mapped", MAPPED, ids=str)
def test_copies_from_devices_that_are_not_mapped(mapped: Any) -> None:
    xs = [np.full(N, rank + 1, np.float32) for rank in range(4)]
    out, said = fetching()(xs, interpret=kd.InterpretParams(mapped=mapped, seed=3))
    for rank in range(4):
        assert (out[rank][rank] == (rank + 2) % 4 + 1).all()
        assert said[rank].tolist() == [rank, 4, mapped is None, 1]


def test_a_copy_from_a_device_that_is_not_ready_is_found() -> None:
    @kd.kernel(out_type=(kd.ShapeDtypeStruct((N,), kd.float32, init=0),) * 2, mesh=HOSTS)
    def early(x: Any, out: Any, got: Any) -> None:
        out[...] = x[...] + 1
        kd.async_copy(kd.remote_ref(out, kd.rem(kd.axis_index(HOSTS.names) + 2, 4)), got)

    with pytest.raises(kd.HazardError) as caught:
        early([np.zeros(N, np.float32) for _ in range(4)], interpret=kd.InterpretParams(mapped=APART))
    assert caught.value.kind == "race_blocks"


@pytest.mark.parametrize("signals", [True, False])
def test_a_signal_of_64_bits(signals: bool) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int64, init=0), mesh=HOSTS)
    def kernel(x: Any, out: Any) -> None:
        me = kd.axis_index(HOSTS.names)
        if signals:
            kd.atomic_add(kd.remote_ref(out, kd.rem(me + 1, 4)).at[me], x[0], order="release", scope="sys")
        signal_wait(out.at[kd.rem(me + 3, 4)], 7, timeout=0.01)

    xs = [np.full(1, 7, np.int64) for _ in range(4)]
    if not signals:
        with pytest.raises(kd.HazardError, match=r"waited for 0.01 s for a signal of another host; it was 0"):
            kernel(xs, interpret=True)
        return
    assert [out.tolist() for out in kernel(xs, interpret=True)] == [
        [0, 0, 0, 7],
        [7, 0, 0, 0],
        [0, 7, 0, 0],
        [0, 0, 7, 0],
    ]
    text = kernel.lower(xs, target="sm_90a").ptx + fetching().lower([np.zeros(N, np.float32)] * 4, target="sm_90a").ptx
    assert all(f"nvshmem_{name}" in text for name in ("getmem_nbi", "ptr", "my_pe", "n_pes", "signal_fetch"))
    assert len(FUNCTIONS | MORE) <= 12


def test_what_is_refused() -> None:
    with pytest.raises(MeshArgument, match="hosts=\\('z',\\)"):
        kd.Mesh(("x",), (2,), hosts=("z",))
    xs = [np.zeros((4, 6), np.float32) for _ in range(4)]
    with pytest.raises(BadArgument, match="give the hosts one axis"):
        kd.library.all_gather(xs, kd.Mesh(("a", "b"), (2, 2), hosts=("a", "b")), interpret=True)

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4, 6), kd.float32), mesh=HOSTS, scratch_types=[kd.SemaphoreType.REGULAR])
    def column(x: Any, out: Any, sem: Any) -> None:
        kd.async_copy(x.at[:, 0], out.at[:, 0], None, sem, {"host": 1 - kd.axis_index("host")}).wait_recv()

    with pytest.raises(BadArgument, match="which has gaps or may end early"):
        column(xs, interpret=True)
    with pytest.raises(BadArgument, match="mapped="):
        kd.InterpretParams(mapped=((0, 1), (1, 2)))
