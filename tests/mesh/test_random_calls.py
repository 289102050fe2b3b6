"""Random calls of the collectives: meshes of one and two axes and of several hosts, dtypes, odd sizes, ways to give arrays, schedules.

`seed` makes a call, so a failed one is run again by its number.
"""

from __future__ import annotations

import random
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgumentType

BF16 = ml_dtypes.bfloat16
FLOATS = [np.float16, BF16, np.float32, np.float64, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
DTYPES = [*FLOATS, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
MOVED = [*DTYPES, np.bool_, np.complex64, ml_dtypes.float8_e8m0fnu]  # by functions that add nothing
PLAIN = [
    kd.Mesh(("x",), (1,)),
    kd.Mesh(("x",), (2,)),
    kd.Mesh(("x",), (3,)),
    kd.Mesh(("x",), (4,)),
    kd.Mesh(("a", "b"), (2, 2)),
]
HOSTS = [
    kd.Mesh(("host", "x"), (2, 2), hosts="host"),
    kd.Mesh(("x", "host"), (2, 2), hosts="host"),
    kd.Mesh(("host",), (2,), hosts="host"),
    kd.Mesh(("host", "x"), (1, 2), hosts="host"),
    kd.Mesh(("host", "x"), (3, 1), hosts="host"),
]
ENDS = [(), (0,), (1,), (3,), (7, 5), (301,)]
SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 4 else ()) for seed in range(160)]


def schedule(pick: random.Random, mesh: kd.Mesh) -> kd.InterpretParams:
    how: dict[str, Any] = pick.choice([{"seed": pick.randrange(99)}, {"schedule": "late"}, {"schedule": "eager"}])
    if mesh.hosts and pick.random() < 0.7:  # devices of other hosts are not mapped
        host = np.unravel_index(np.arange(mesh.size), mesh.sizes)[mesh.names.index(mesh.hosts[0])]
        how["mapped"] = tuple(tuple(np.flatnonzero(host == h).tolist()) for h in np.unique(host))
    return kd.InterpretParams(**how)


def arrays(rng: np.random.Generator, n: int, shape: tuple[int, ...], dtype: Any, shifted: bool) -> list[np.ndarray]:
    """One array a device; `shifted` ones begin an element after an aligned address."""
    made: list[np.ndarray] = []
    for _ in range(n):
        room = np.empty(prod(shape) + 1, dtype)
        x = room[1:] if shifted else room[:-1]
        x[...] = np.abs(rng.standard_normal(x.size) * 4).astype(np.float32).astype(dtype)
        if np.dtype(dtype).kind not in "ub" and dtype is not ml_dtypes.float8_e8m0fnu:
            x[::3] = -x[::3]
        made.append(x.reshape(shape))
    return made


def given(pick: random.Random, rows: list[np.ndarray], mesh: kd.Mesh) -> Any:
    kind = pick.choice(["list", "tuple", "symmetric"])
    if kind != "symmetric":
        return rows if kind == "list" else tuple(rows)
    made = kd.symmetric.empty(rows[0].shape, rows[0].dtype, mesh, interpret=True)
    for rank, row in enumerate(rows):
        made.local(rank)[...] = row
    return made


def close(got: np.ndarray, want: np.ndarray, terms: int) -> None:
    """Integers wrap; floats are within one rounding of the result, and those of the sums."""
    if got.dtype not in FLOATS:
        assert np.array_equal(got, np.asarray(want).astype(np.int64).astype(got.dtype))
        return
    info: Any = ml_dtypes.finfo(got.dtype)
    inner = 2.0**-53 if got.dtype == np.float64 else 2.0**-24
    bound = float(info.eps) / 2 * np.abs(want) + float(info.smallest_subnormal) / 2 + 64 * terms * inner
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound)


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_and_gathers(seed: int) -> None:
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    mesh: kd.Mesh = pick.choice(HOSTS if seed % 2 else PLAIN)
    n, name = mesh.size, pick.choice(["all_reduce", "all_gather", "reduce_scatter"])
    dtype = pick.choice(MOVED if name == "all_gather" else DTYPES)
    lead, end = pick.choice([0, 1, 2, 7]), pick.choice(ENDS)
    shape = {"all_reduce": end, "all_gather": (lead, *end), "reduce_scatter": (lead * n, *end)}[name]
    result = {"all_reduce": end, "all_gather": (lead * n, *end), "reduce_scatter": (lead, *end)}[name]
    how: dict[str, Any] = {"interpret": schedule(pick, mesh), "timeout": pick.choice([None, 50])}
    if name != "all_gather":
        how["deterministic"] = pick.random() < 0.6
    into = pick.choice(["new", "given", "x"])
    if name == "all_reduce":
        how["algorithm"] = pick.choice([None, "words", "two-shot", *(["one-shot"] if into != "x" else [])])
    x = given(pick, arrays(rng, n, shape, dtype, pick.random() < 0.4), mesh)
    terms = [np.array(a) for a in x]
    if into == "given" or (into == "x" and name != "all_reduce"):
        how["out"] = given(pick, arrays(rng, n, result, dtype, pick.random() < 0.4), mesh)
    elif into == "x":
        how["out"] = x
    got = getattr(library, name)(x, mesh, **how)
    total = 0 if name == "all_gather" else np.sum([term.astype(np.float64) for term in terms], axis=0)
    assert len(got) == n and all(g.shape == result and g.dtype == dtype for g in got)
    for rank, g in enumerate(got):
        if name == "all_gather":
            assert g.tobytes() == np.concatenate(terms).tobytes()
        else:
            close(g, total if name == "all_reduce" else np.reshape(total, (n, *result))[rank], n)
        assert "out" not in how or g is how["out"][rank]
        assert name != "all_reduce" or g.tobytes() == got[0].tobytes(), "the same bits on all devices"
        assert how.get("out") is x or x[rank].tobytes() == terms[rank].tobytes()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.sampled(2)
def test_experts(seed: int) -> None:
    """Some choices have no expert, and some rows do not fit."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    mesh: kd.Mesh = pick.choice(PLAIN)
    n, dtype = mesh.size, pick.choice(FLOATS)
    tokens, width, experts = pick.choice([0, 1, 9]), pick.choice([0, 1, 17, 40]), n * pick.choice([1, 3])
    k = min(pick.choice([0, 1, 2, 3]), experts)
    x = given(pick, arrays(rng, n, (tokens, width), dtype, pick.random() < 0.3), mesh)
    odd = pick.choice([0, 2])
    ids = [rng.integers(-odd, experts + odd, (tokens, k)).astype(np.int32) for _ in range(n)]
    weights = [rng.random((tokens, k)).astype(np.float32) for _ in range(n)]
    rows = pick.choice([None, None, 0, 3])
    fit, mine = n * tokens * k if rows is None else rows, experts // n
    how: dict[str, Any] = {"num_experts": experts, "interpret": schedule(pick, mesh)}
    received, counts, places = library.expert_dispatch(x, ids, mesh, rows=rows, **how)
    for device in range(n):
        own = range(device * mine, (device + 1) * mine)
        came = [[x[r][t] for r in range(n) for t, _ in np.argwhere(ids[r] == expert)] for expert in own]
        assert counts[device].tolist() == [len(row) for row in came]
        flat = [row.tobytes() for one in came for row in one][:fit]
        assert received[device].shape == (fit, width)
        assert [row.tobytes() for row in received[device][: len(flat)]] == flat
    back = library.expert_combine(received, ids, places, weights, mesh, **how)
    for rank in range(n):
        known = (places[rank] < fit) & (ids[rank] >= 0) & (ids[rank] < experts)
        share = np.where(known, weights[rank].astype(np.float64), 0).sum(1)
        assert back[rank].shape == (tokens, width) and back[rank].dtype == dtype
        close(back[rank], x[rank].astype(np.float64) * share[:, None], k + 1)


@pytest.mark.parametrize("seed", [*SEEDS[:2], *SEEDS[4:40]])
def test_rows(seed: int) -> None:
    """Sizes count more rows than there are, which are sent as zeros, and some rows do not fit."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    mesh: kd.Mesh = pick.choice([*PLAIN, kd.Mesh(("x",), (8,))])
    n, dtype, m, end = mesh.size, pick.choice(MOVED), pick.choice([0, 1, 2, 7]), pick.choice(ENDS)
    xs = arrays(rng, n, (m, *end), dtype, pick.random() < 0.4)
    sizes = [rng.multinomial(max(m + pick.choice([-1, 0, 0, 3]), 0), np.ones(n) / n).astype(np.int32) for _ in range(n)]
    rows = pick.choice([None, 0, 3])
    received, counts = library.all_to_all(
        given(pick, xs, mesh), sizes, mesh, rows=rows, interpret=schedule(pick, mesh), timeout=pick.choice([None, 50])
    )
    for me in range(n):
        sent = [
            np.concatenate([x, np.zeros((3, *end), dtype)])[sum(s[:me]) :][: s[me]]
            for x, s in zip(xs, sizes, strict=True)
        ]
        want = np.concatenate(sent)[: n * m if rows is None else rows]
        assert counts[me].tolist() == [s[me] for s in sizes]
        assert received[me].shape == (n * m if rows is None else rows, *end) and received[me].dtype == dtype
        assert received[me][: len(want)].tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "expert_dispatch"])
def test_dtypes_that_are_refused(name: str) -> None:
    """Each by its name at the user's line, before anything is traced."""
    mesh, sizes = PLAIN[1], [np.zeros((2, 1) if name == "expert_dispatch" else 2, np.int32) for _ in range(2)]
    how: dict[str, Any] = {"num_experts": 2} if name == "expert_dispatch" else {}
    moves = name in ("all_gather", "all_to_all")
    for dtype in [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn, *([] if moves else MOVED[-3:])]:
        xs = [np.ones((2, 4)).astype(dtype) for _ in range(2)]
        with pytest.raises(BadArgumentType, match=rf"`{name}`: x is {np.dtype(dtype).name}\b"):
            getattr(library, name)(xs, *([sizes] if name in ("all_to_all", "expert_dispatch") else []), mesh, **how)
