"""The library's collectives, against float64: shapes, dtypes, meshes, both algorithms, in place, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgument, BadArgumentType, BadCallArgument, BadCallValue
from kernel_dsl.errors_mesh import MeshMismatch, RanksDiffer, Unreachable
from kernel_dsl.library.collectives import all_reduce_two_shot
from kernel_dsl.mesh import meshed

BF16 = ml_dtypes.bfloat16
# mesh, shape, dtype, schedule
CASES = [
    ((2,), (3, 1000), np.float32, {"seed": 0}),
    ((2,), (5,), np.float32, {"seed": 1}),
    ((3,), (6, 4097), BF16, {"schedule": "late"}),
    ((2, 2), (4, 77, 3), np.float16, {"schedule": "eager"}),
    ((2,), (2, 9000), np.int32, {"seed": 2}),
    ((4,), (4, 3), np.float64, {"seed": 3}),
    ((1,), (2, 300), np.float32, {"seed": 0}),
]


def mesh_of(sizes: tuple[int, ...]) -> kd.Mesh:
    return kd.Mesh(tuple("xy"[: len(sizes)]), sizes)


def inputs(size: int, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(shape) * 8).astype(dtype) for _ in range(size)]


def total(xs: list[np.ndarray]) -> np.ndarray:
    return np.sum([x.astype(np.float64) for x in xs], axis=0)


def close(got: Any, want: np.ndarray, dtype: Any, terms: int) -> None:
    """Within one rounding of the result, and those of a sum in float32 or wider."""
    step = {BF16: 2.0**-8, np.float16: 2.0**-11, np.float32: 2.0**-24, np.float64: 2.0**-53}.get(dtype, 0)
    inner = 2.0**-53 if dtype is np.float64 else 2.0**-24
    bound = step * np.abs(want) + (0 if dtype is np.int32 else terms * inner * 64)
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound)


@pytest.mark.parametrize(("sizes", "shape", "dtype", "schedule"), CASES, ids=str)
@pytest.mark.sampled(8)
def test_each(sizes: tuple[int, ...], shape: tuple[int, ...], dtype: Any, schedule: dict[str, Any]) -> None:
    mesh, interpret = mesh_of(sizes), kd.InterpretParams(**schedule)
    n = mesh.size
    xs = inputs(n, shape, dtype)
    want = total(xs)
    for algorithm in ("words", "one-shot", "two-shot"):
        out = library.all_reduce(xs, mesh, algorithm=algorithm, interpret=interpret)
        close(out[0], want, dtype, n)
        assert all(o.dtype == dtype and o.tobytes() == out[0].tobytes() for o in out), "the same bits on all devices"
    gathered = library.all_gather(xs, mesh, interpret=interpret)
    assert all(g.tobytes() == np.concatenate(xs).tobytes() for g in gathered)
    if shape[0] % n == 0:
        parts = library.reduce_scatter(xs, mesh, interpret=interpret)
        for rank, part in enumerate(parts):
            close(part, want.reshape(n, shape[0] // n, *shape[1:])[rank], dtype, n)


def test_any_order_gives_the_sum() -> None:
    mesh = mesh_of((3,))
    xs = inputs(3, (3, 500), np.float32)
    for algorithm in ("one-shot", "two-shot"):
        out = library.all_reduce(xs, mesh, algorithm=algorithm, deterministic=False, interpret=True)
        for o in out:
            close(o, total(xs), np.float32, 3)
    for rank, part in enumerate(library.reduce_scatter(xs, mesh, deterministic=False, interpret=True)):
        close(part, total(xs)[rank : rank + 1], np.float32, 3)


def test_in_place_and_into_arrays_given() -> None:
    mesh = mesh_of((2,))
    xs = inputs(2, (700,), np.float32)
    want = total(xs)
    outs = [np.empty_like(x) for x in xs]
    assert library.all_reduce(xs, mesh, out=outs, interpret=True)[1] is outs[1]
    close(outs[1], want, np.float32, 2)
    for algorithm in ("words", "two-shot"):
        ys = [x.copy() for x in xs]
        library.all_reduce(ys, mesh, out=ys, algorithm=algorithm, interpret=True)
        for y in ys:
            close(y, want, np.float32, 2)
    with pytest.raises(BadArgument, match="one-shot in place"):
        library.all_reduce(xs, mesh, out=xs, algorithm="one-shot", interpret=True)


def test_a_call_after_another_one() -> None:
    mesh = mesh_of((2,))
    xs = inputs(2, (900,), np.float32)
    out: Any = xs
    for seed in range(4):
        out = library.all_reduce(out, mesh, interpret=kd.InterpretParams(seed=seed), timeout=5)
    close(out[0], total(xs) * 8, np.float32, 2)


def test_what_is_refused() -> None:
    mesh = mesh_of((2,))
    xs = inputs(2, (3, 4), np.float32)
    with pytest.raises(BadArgument, match="3 elements, for 2 devices"):
        library.reduce_scatter(xs, mesh)
    with pytest.raises(BadArgumentType, match="mesh=2"):
        library.all_gather(xs, 2)  # type: ignore[arg-type]
    with pytest.raises(BadArgumentType, match="list of 2 arrays"):
        library.all_reduce(xs[0], mesh)
    with pytest.raises(BadArgument, match="algorithm"):
        library.all_reduce(xs, mesh, algorithm="ring")
    with pytest.raises(BadArgumentType, match="bool"):
        library.all_reduce([x > 0 for x in xs], mesh)
    for collective in (library.all_reduce, library.all_gather, library.reduce_scatter):
        name = collective.__name__
        with pytest.raises(BadArgument, match=f"`{name}`: x has gaps"):
            collective([np.zeros((4, 6), np.float32)[:, ::2] for _ in range(2)], mesh)
        with pytest.raises(BadArgument, match=f"`{name}`: timeout=0"):
            collective(inputs(2, (4,), np.float32), mesh, timeout=0)
        with pytest.raises(BadArgumentType, match=f"`{name}`: missing a required argument: 'mesh'"):
            collective(xs)  # type: ignore[call-arg]
        with pytest.raises(BadArgumentType, match="unexpected keyword argument 'to'"):
            collective(xs, mesh, to=1)  # type: ignore[call-arg]
    with pytest.raises(BadCallArgument, match="output 0 of out= is 3, which is no array"):
        library.all_reduce(xs, mesh, out=3)
    with pytest.raises(MeshMismatch, match="output 0 has None on rank 1, which is no array"):
        library.all_reduce(xs, mesh, out=[xs[0], None])
    with pytest.raises(MeshMismatch, match="output 0 is one array"):
        library.all_reduce(xs, mesh, out=xs[0])
    with pytest.raises(MeshMismatch, match="output 0 is a list of 3 arrays"):
        library.all_reduce(xs, mesh, out=[*xs, xs[0]])
    with pytest.raises(BadCallValue, match=r"output 0 of out= is float32\[4\] on rank 0"):
        library.all_reduce(xs, mesh, out=inputs(2, (4,), np.float32))
    with pytest.raises(RanksDiffer, match=r"rank 0 has float32\[3\], rank 1 float32\[4\]"):
        library.all_reduce([np.zeros(3, np.float32), np.zeros(4, np.float32)], mesh)
    with pytest.raises(Unreachable, match="the interpreter has 1"):
        library.all_reduce(xs, mesh, interpret=kd.InterpretParams(devices=1))
    with pytest.raises(BadArgument, match="bytes in words"):
        library.all_reduce(inputs(2, (1 << 18,), np.float32), mesh, algorithm="words")


def test_arrays_without_elements_or_axes() -> None:
    mesh = mesh_of((2,))
    none, one = inputs(2, (0,), np.float32), [np.full((), 3, np.float32) for _ in range(2)]
    for algorithm in ("words", "one-shot", "two-shot"):
        how: dict[str, Any] = {"algorithm": algorithm, "interpret": True}
        assert library.all_reduce(none, mesh, **how)[1].shape == (0,)
        assert library.all_reduce(one, mesh, **how)[0] == 6
    with pytest.raises(BadArgumentType, match="x is a list"):
        library.all_reduce([np.float32(1), np.float32(2)], mesh)
    with pytest.raises(BadArgumentType, match="on rank 1 None, which is no array"):
        library.all_reduce([one[0], None], mesh)
    with pytest.raises(BadArgument, match="x has gaps between its elements on rank 1"):
        library.all_reduce([np.zeros(4), np.zeros(8)[::2]], mesh)
    assert library.all_gather(inputs(2, (0, 3), np.float32), mesh, interpret=True)[0].shape == (0, 3)
    assert library.reduce_scatter(inputs(2, (0, 3), np.float32), mesh, interpret=True)[0].shape == (0, 3)
    sizes = [np.zeros(2, np.int32) for _ in range(2)]
    received, counts = library.all_to_all(inputs(2, (0, 3), np.float32), sizes, mesh, interpret=True)
    assert received[0].shape == (0, 3) and counts[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("n", "shape", "dtype"), [(2, (12, 40), np.float32), (3, (9, 5000), BF16), (2, (4, 3, 2), np.int32)]
)
@pytest.mark.parametrize("schedule", [{"seed": 0}, {"schedule": "late"}], ids=str)
@pytest.mark.sampled(4)
def test_all_to_all_and_back(n: int, shape: tuple[int, ...], dtype: Any, schedule: dict[str, Any]) -> None:
    mesh, interpret = mesh_of((n,)), kd.InterpretParams(**schedule)
    rng = np.random.default_rng(4)
    xs = inputs(n, shape, dtype)
    sizes = [rng.multinomial(shape[0] - rank, np.ones(n) / n).astype(np.int32) for rank in range(n)]
    starts = [np.concatenate([[0], np.cumsum(s)]) for s in sizes]
    received, counts = library.all_to_all(xs, sizes, mesh, interpret=interpret)
    for me in range(n):
        want = np.concatenate([xs[r][starts[r][me] : starts[r][me + 1]] for r in range(n)])
        assert counts[me].tolist() == [sizes[r][me] for r in range(n)]
        assert received[me].shape == (n * shape[0], *shape[1:])
        assert received[me][: len(want)].tobytes() == want.tobytes()
    back, again = library.all_to_all(received, counts, mesh, rows=shape[0], interpret=interpret)
    for me in range(n):
        assert again[me].tolist() == sizes[me].tolist()
        assert back[me][: starts[me][-1]].tobytes() == xs[me][: starts[me][-1]].tobytes()


def test_all_to_all_that_does_not_fit_or_is_refused() -> None:
    mesh = mesh_of((2,))
    xs = inputs(2, (4, 8), np.float32)
    sizes = [np.array([1, 3], np.int32), np.array([0, 4], np.int32)]
    received, counts = library.all_to_all(xs, sizes, mesh, rows=5, interpret=True)
    assert counts[1].tolist() == [3, 4] and received[1].tobytes() == np.concatenate([xs[0][1:], xs[1][:2]]).tobytes()
    with pytest.raises(BadArgument, match="shares memory"):
        library.all_to_all(xs, sizes, mesh, rows=4, out=(xs, counts))
    with pytest.raises(BadArgument, match=r"sizes is int64\[2\]"):
        library.all_to_all(xs, [s.astype(np.int64) for s in sizes], mesh)
    with pytest.raises(BadArgument, match=r"sizes is int32\[3\]"):
        library.all_to_all(xs, [np.zeros(3, np.int32)] * 2, mesh)


FEW = {"BLOCKS": 2, "EACH": 8, "PLACES": 2}  # chunks of 1,024 elements


@pytest.mark.parametrize(
    ("n", "schedule"),
    [(2, {"schedule": "late"}), *(pytest.param(n, {"seed": n}, marks=pytest.mark.slow) for n in (3, 4))],
)
def test_parts_that_pass_few_places(n: int, schedule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks use each place again, one of them once more than the other; also in place."""
    for name, value in FEW.items():
        monkeypatch.setattr(all_reduce_two_shot, name, value)
    xs = [np.random.default_rng(r).integers(-8, 8, n * 4500).astype(BF16) for r in range(n)]
    want = sum(x.astype(np.float32) for x in xs).astype(BF16)
    kernel = all_reduce_two_shot.two_shot_kernel.__wrapped__(xs[0].shape, kd.bfloat16, kd.Mesh(("x",), (n,)), None)
    for out in (None, xs):
        assert all(np.array_equal(got, want) for got in kernel(xs, out=out, interpret=kd.InterpretParams(**schedule)))


@pytest.mark.parametrize("waits", [True, False])
def test_a_place_that_is_used_again_too_early_is_found(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(sem: Any, value: Any = 1, **how: Any) -> None:
        if waits or meshed("wait").name_of(sem) != "summed":
            kd.semaphore_wait(sem, value, **how)

    for name, value in {**FEW, "kd": SimpleNamespace(**{**vars(kd), "semaphore_wait": wait})}.items():
        monkeypatch.setattr(all_reduce_two_shot, name, value)
    kernel = all_reduce_two_shot.two_shot_kernel.__wrapped__((13_000,), kd.bfloat16, kd.Mesh(("x",), (2,)), None)
    xs = [np.ones(13_000, BF16) for _ in range(2)]
    if waits:
        assert all((got == 2).all() for got in kernel(xs, interpret=kd.InterpretParams(seed=3)))
        return
    told: list[str] = []
    for seed in range(3):  # in some orders another signal orders the two uses, and a count is left
        with pytest.raises(kd.HazardError) as caught:
            kernel(xs, interpret=kd.InterpretParams(seed=seed))
        assert caught.value.kind in ("race_blocks", "semaphore_left")
        told.append(str(caught.value))
    assert any("race_blocks" in text and "kept data on device" in text for text in told)
