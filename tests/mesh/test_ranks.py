"""Calls with one process a GPU: each rank passes its own arrays. The ranks are threads here, in the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgumentType
from kernel_dsl.errors_mesh import MeshArgument, MeshMismatch, MeshValue, RanksApart, RanksDiffer

from .groups import ThreadGroup, on_ranks

PAIR = kd.Mesh(("x",), (2,))
BF16 = ml_dtypes.bfloat16


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(2)]


EXPERTS = [np.array([[0, 3], [1, 2], [3, 1], [2, 0]], np.int32), np.array([[1, 0], [2, 3], [0, 2], [3, 1]], np.int32)]
SIZES = [np.array([2, 1], np.int32), np.array([0, 3], np.int32)]
CAME = {"all_to_all": (2, 4), "expert_dispatch": (8, 8)}  # rows that each rank receives; those after them are not set
# Each function of the library on a mesh: what it is called with, of which each rank has its own.
CALLS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "all_reduce": (kd.library.all_reduce, [random(1000)]),
    "all_reduce two-shot": (lambda x, m, **o: kd.library.all_reduce(x, m, algorithm="two-shot", **o), [random(1000)]),
    "all_gather": (kd.library.all_gather, [random(3, 50)]),
    "reduce_scatter": (kd.library.reduce_scatter, [random(4, 50)]),
    "all_to_all": (kd.library.all_to_all, [random(3, 10), SIZES]),
    "all_gather_matmul": (kd.library.all_gather_matmul, [random(128, 16, dtype=BF16), random(16, 16, dtype=BF16)]),
    "all_gather_matmul slow": (kd.library.all_gather_matmul, [random(5, 8), random(8, 7)]),
    "matmul_reduce_scatter slow": (kd.library.matmul_reduce_scatter, [random(4, 8), random(8, 7)]),
    "matmul_all_reduce slow": (kd.library.matmul_all_reduce, [random(4, 8), random(8, 7)]),
    "ring_attention": (kd.library.ring_attention, [random(1, 2, 16, 8, seed=s) for s in range(3)]),
    "ring_attention_backward": (
        kd.library.ring_attention_backward,
        [*[random(1, 1, 4, 8, seed=s) for s in range(5)], random(1, 1, 4)],
    ),
    "expert_dispatch": (
        lambda x, e, m, **o: kd.library.expert_dispatch(x, e, m, num_experts=4, **o), [random(4, 16), EXPERTS],
    ),
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    return [leaf for one in x for leaf in leaves(one)] if isinstance(x, tuple) else [x]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.sampled(4)
def test_ranks_get_what_one_process_gets(name: str) -> None:
    function, given = CALLS[name]
    want = leaves(function(*given, PAIR, interpret=True))

    def call(rank: int, group: ThreadGroup) -> Any:
        return function(*(row[rank] for row in given), group, interpret=True)

    for rank, found in enumerate(on_ranks(2, call)):
        assert not isinstance(found, Exception), found
        for got, row in zip(leaves(found), want, strict=True):
            wanted = row[rank]
            if name in CAME and got.dtype == np.float32:
                got, wanted = got[: CAME[name][rank]], wanted[: CAME[name][rank]]
            assert got.shape == wanted.shape and np.array_equal(got, wanted), rank


def exchange(mesh: kd.Mesh) -> Any:
    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), scratch_types=[kd.SemaphoreType.REGULAR], mesh=mesh
    )
    def kernel(x: Any, out: Any, arrived: Any) -> None:
        peer = 1 - kd.axis_index("x")
        kd.remote_ref(out, peer)[...] = x[...]
        kd.semaphore_signal(arrived, device_id=peer)
        kd.semaphore_wait(arrived)

    return kernel


def test_a_kernel_of_the_users_writes_to_its_peer() -> None:
    xs = random(256)

    def call(rank: int, group: ThreadGroup) -> Any:
        mesh = kd.Mesh(("x",), (2,), group)
        out = kd.symmetric.empty((256,), kd.float32, mesh)
        assert exchange(mesh)(xs[rank], out=out, interpret=True) is out
        return out

    first, second = on_ranks(2, call)
    assert np.array_equal(first, xs[1]) and np.array_equal(second, xs[0])


def test_strided_arrays_in_place_and_scalars() -> None:
    xs = [x[::2] for x in random(64)]
    before = [x.copy() for x in xs]

    def call(rank: int, group: ThreadGroup) -> Any:
        mesh = kd.Mesh(("x",), (2,), group)
        spec = [kd.SemaphoreType.REGULAR((2,))]

        @kd.kernel(out_type=lambda x, factor: kd.ShapeDtypeStruct(x.shape, x.dtype), scratch_types=spec, mesh=mesh)
        def scaled(x: Any, factor: Any, out: Any, sems: Any) -> None:
            theirs = kd.remote_ref(x, 1 - kd.axis_index("x"))[...] * factor
            kd.semaphore_signal_multicast(sems.at[0], collective_axes="x")
            kd.semaphore_wait(sems.at[0], 2)
            out[...] = theirs

        return scaled(xs[rank], 2.0, out=xs[rank], interpret=True)

    found = on_ranks(2, call)
    for rank in range(2):
        assert found[rank] is xs[rank] and np.array_equal(xs[rank], before[1 - rank] * np.float32(2))


def test_shapes_that_differ_are_told_on_all_ranks() -> None:
    def call(rank: int, group: ThreadGroup) -> Any:
        return kd.library.all_reduce(np.ones(10 + rank, np.float32), group)

    for error in on_ranks(2, call):
        assert isinstance(error, RanksDiffer)
        assert "rank 0 has float32[10], rank 1 float32[11]" in str(error)


def test_kernels_that_differ_are_told() -> None:
    def call(rank: int, group: ThreadGroup) -> Any:
        x = np.ones(64, np.float32)
        return kd.library.all_gather(x, group) if rank else kd.library.reduce_scatter(x, group)

    for error in on_ranks(2, call):
        assert isinstance(error, RanksDiffer) and "the name of kernel" in str(error)


def test_outputs_that_one_rank_gives_are_told() -> None:
    def call(rank: int, group: ThreadGroup) -> Any:
        x = np.ones(64, np.float32)
        return kd.library.all_reduce(x, group, out=np.ones(64, np.float32) if rank else None)

    for error in on_ranks(2, call):
        assert isinstance(error, RanksDiffer)
        assert "out= of kernel 'all_reduce_words_2' differs from rank to rank: rank 0 has none, rank 1 arrays" in str(
            error
        )


def test_lists_and_groups_that_are_none() -> None:
    x = np.ones(8, np.float32)
    for error in on_ranks(2, lambda rank, group: kd.library.all_gather([x, x], group)):
        assert isinstance(error, BadArgumentType) and "x is a list of 2 for a process group" in str(error)

    class Odd:
        exchange: Any

        def rank(self) -> int:
            return 5

        def size(self) -> int:
            return 2

    odd: Any = Odd()
    if "torch.distributed" not in sys.modules:
        with pytest.raises(MeshArgument, match="has no exchange"):
            kd.library.all_reduce(x, odd)
    odd.exchange = lambda value: [value, value]
    with pytest.raises(MeshMismatch, match="says that this is rank 5 of 2"):
        kd.library.all_reduce(x, odd)


def test_a_rank_that_ends_is_told() -> None:
    def call(rank: int, group: ThreadGroup) -> Any:
        if rank == 1:
            raise ValueError("this rank ends")
        return kd.library.all_reduce(np.ones(10, np.float32), group)

    error, _ = on_ranks(2, call)
    assert isinstance(error, RanksApart) and "on rank 0 of 2: the exchange with the other ranks failed" in str(error)


def test_what_is_refused() -> None:
    def small(rank: int, group: ThreadGroup) -> Any:
        return kd.Mesh(("x",), (3,), group)

    assert all(isinstance(error, MeshValue) for error in on_ranks(2, small))
    with pytest.raises(MeshArgument, match="group=5"):
        kd.Mesh(("x",), (2,), 5)
