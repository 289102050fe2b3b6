"""Each collective many times, with devices that come at random times: right each time.

A random schedule lets a device run far ahead of the others or stay far behind, and each call has another one. The data is new in each
call, in the same arrays. So a call that still reads what the one before has left gives a wrong result. Sums are of small integers, and
therefore exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library

BF16 = ml_dtypes.bfloat16
PAIR, TRIO, HOSTS = kd.Mesh(("x",), (2,)), kd.Mesh(("x",), (3,)), kd.Mesh(("host", "x"), (2, 2), hosts="host")
PARTS, EACH = 20, 50  # of a thousand calls
Rows = list[np.ndarray]


def schedules(seed: int, mapped: Any = None) -> Iterator[kd.InterpretParams]:
    """Random ones, and now and then the two extreme ones."""
    rng = np.random.default_rng(seed)
    while True:
        kind = rng.integers(20)
        how: dict[str, Any] = (
            {"schedule": ("late", "eager")[kind]} if kind < 2 else {"seed": int(rng.integers(1 << 30))}
        )
        yield kd.InterpretParams(mapped=mapped, **how)


class Data:
    """Arrays that every call gets anew: one a device, of small integers."""

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self._held: dict[Any, Rows] = {}

    def of(self, name: str, *shape: int, dtype: Any = np.float32) -> Rows:
        rows = self._held.setdefault(name, [np.empty(shape, dtype) for _ in range(self.n)])
        for row in rows:
            row[...] = self.rng.integers(-4, 5, shape)
        return rows

    def poisoned(self, name: str, *shape: int, dtype: Any = np.float32) -> Rows:
        rows = self._held.setdefault(name, [np.empty(shape, dtype) for _ in range(self.n)])
        for row in rows:
            row[...] = 77
        return rows


def same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        assert np.array_equal(np.asarray(g, np.float64), np.asarray(w, np.float64))


def total(xs: Rows) -> np.ndarray:
    return np.sum([x.astype(np.float64) for x in xs], axis=0)


def reduced(d: Data, mesh: kd.Mesh, how: Any, *, size: int = 300, **options: Any) -> None:
    xs = d.of("x", size)
    want = [total(xs)] * d.n
    same(library.all_reduce(xs, mesh, out=d.poisoned("out", size), **options, **how), want)


def reduced_in_place(d: Data, mesh: kd.Mesh, how: Any, *, algorithm: str) -> None:
    xs = d.of("x", 300)
    want = [total(xs)] * d.n
    same(library.all_reduce(xs, mesh, out=xs, algorithm=algorithm, **how), want)


def gathered(d: Data, mesh: kd.Mesh, how: Any) -> None:
    xs = d.of("x", 3, 50)
    same(library.all_gather(xs, mesh, out=d.poisoned("out", 3 * d.n, 50), **how), [np.concatenate(xs)] * d.n)


def scattered(d: Data, mesh: kd.Mesh, how: Any, **options: Any) -> None:
    xs = d.of("x", 2 * d.n, 50)
    want = np.split(total(xs), d.n)
    same(library.reduce_scatter(xs, mesh, out=d.poisoned("out", 2, 50), **options, **how), want)


def exchanged(d: Data, mesh: kd.Mesh, how: Any) -> None:
    xs, n = d.of("x", 4, 20), d.n
    sizes = [d.rng.multinomial(4 - rank, np.ones(n) / n).astype(np.int32) for rank in range(n)]
    at = [np.concatenate([[0], np.cumsum(s)]) for s in sizes]
    received, counts = library.all_to_all(xs, sizes, mesh, **how)
    for me in range(n):
        want = np.concatenate([xs[r][at[r][me] : at[r][me + 1]] for r in range(n)])
        same([received[me][: len(want)], counts[me]], [want, [s[me] for s in sizes]])


def to_experts_and_back(d: Data, mesh: kd.Mesh, how: Any) -> None:
    n, tokens, k, experts = d.n, 5, 2, 2 * d.n
    xs = d.of("x", tokens, 24)
    ids = [np.argsort(d.rng.random((tokens, experts)), axis=1)[:, :k].astype(np.int32) for _ in range(n)]
    weights = [d.rng.integers(1, 4, (tokens, k)).astype(np.float32) for _ in range(n)]
    received, counts, places = library.expert_dispatch(xs, ids, mesh, num_experts=experts, **how)
    for device in range(n):
        own = range(device * experts // n, (device + 1) * experts // n)
        came = [[xs[r][t] for r in range(n) for t, _ in np.argwhere(ids[r] == expert)] for expert in own]
        same([counts[device]], [[len(rows) for rows in came]])
        rows = [row for one in came for row in one]
        same(received[device][: len(rows)], rows)
        received[device][len(rows) :] = 0
    back = library.expert_combine(received, ids, places, weights, mesh, num_experts=experts, **how)
    same(back, [x * w.sum(1)[:, None] for x, w in zip(xs, weights, strict=True)])


def multiplied(d: Data, mesh: kd.Mesh, how: Any, *, name: str) -> None:
    rows = 128 if name == "all_gather_matmul" else 128 * d.n
    xs, ws = d.of("x", rows, 64, dtype=BF16), d.of("w", 64, 64, dtype=BF16)
    for w in ws:
        w[...] = np.sign(w.astype(np.float32)) * (d.rng.random(w.shape) < 0.2)  # sums that bfloat16 holds
    X, W = [[a.astype(np.float64) for a in arrays] for arrays in (xs, ws)]
    if name == "all_gather_matmul":
        want = [np.concatenate(X) @ w for w in W]
    else:
        added = np.sum([x @ w for x, w in zip(X, W, strict=True)], axis=0)
        want = np.split(added, d.n) if name == "matmul_reduce_scatter" else [added] * d.n
    same(getattr(library, name)(xs, ws, mesh, **how), want)


def attended(d: Data, mesh: kd.Mesh, how: Any, *, causal: bool, shape: tuple[int, ...], dtype: Any) -> None:
    """With the gradients, against float64."""
    q, k, v, dout = (d.of(name, *shape, dtype=dtype) for name in ("q", "k", "v", "dout"))
    out, lse = library.ring_attention(q, k, v, mesh, causal=causal, return_lse=True, **how)
    grads = library.ring_attention_backward(dout, q, k, v, out, lse, mesh, causal=causal, **how)
    Q, K, V, dO = (np.concatenate([a.astype(np.float64) for a in x], axis=2) for x in (q, k, v, dout))
    scale = shape[3] ** -0.5
    scores = Q @ K.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    P = np.exp(scores - scores.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    weighted, dP = P @ V, dO @ V.swapaxes(-1, -2)
    dS = P * (dP - (dO * weighted).sum(-1, keepdims=True)) * scale
    bound = 2e-2 if dtype is BF16 else 1e-5
    for got, want in zip(
        (out, *grads), (weighted, dS @ K, dS.swapaxes(-1, -2) @ Q, P.swapaxes(-1, -2) @ dO), strict=True
    ):
        for g, w in zip(got, np.split(want, d.n, axis=2), strict=True):
            assert np.abs(g.astype(np.float64) - w).max() <= bound * max(np.abs(want).max(), 1)


Case = tuple[Callable[..., None], kd.Mesh, dict[str, Any]]
CASES: dict[str, Case] = {
    "all_reduce by words": (reduced, TRIO, {"algorithm": "words"}),
    "all_reduce by words in place": (reduced_in_place, PAIR, {"algorithm": "words"}),
    "all_reduce one-shot": (reduced, TRIO, {"algorithm": "one-shot"}),
    "all_reduce one-shot in any order": (reduced, TRIO, {"algorithm": "one-shot", "deterministic": False}),
    "all_reduce two-shot": (reduced, TRIO, {"algorithm": "two-shot"}),
    "all_reduce two-shot in place": (reduced_in_place, PAIR, {"algorithm": "two-shot"}),
    "all_reduce of hosts": (reduced, HOSTS, {}),
    "all_gather": (gathered, TRIO, {}),
    "all_gather of hosts": (gathered, HOSTS, {}),
    "reduce_scatter": (scattered, TRIO, {}),
    "reduce_scatter in any order": (scattered, TRIO, {"deterministic": False}),
    "reduce_scatter of hosts": (scattered, HOSTS, {}),
    "all_to_all": (exchanged, TRIO, {}),
    "experts": (to_experts_and_back, PAIR, {}),
    "all_gather_matmul": (multiplied, PAIR, {"name": "all_gather_matmul"}),
    "matmul_reduce_scatter": (multiplied, PAIR, {"name": "matmul_reduce_scatter"}),
    "matmul_all_reduce": (multiplied, PAIR, {"name": "matmul_all_reduce"}),
    "ring_attention of any input": (attended, TRIO, {"causal": True, "shape": (1, 1, 5, 3), "dtype": np.float32}),
    "ring_attention": (attended, PAIR, {"causal": True, "shape": (1, 1, 128, 64), "dtype": BF16}),
}


def repeat(name: str, count: int, seed: int = 0) -> None:
    work, mesh, options = CASES[name]
    data = Data(mesh.size, seed)
    mapped = ((0, 1), (2, 3)) if mesh is HOSTS else None
    for interpret in islice(schedules(seed, mapped), count):
        work(data, mesh, {"interpret": interpret}, **options)


QUICK = [name for name, (work, mesh, _) in CASES.items() if work in (reduced, gathered, scattered) and mesh is TRIO]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.sampled(2)
def test_some_times(name: str) -> None:
    repeat(name, 4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", CASES)
def test_a_thousand_times(name: str, part: int) -> None:
    """In parts, so that no process works on one case alone when all others have ended."""
    repeat(name, EACH, 1 + part)
