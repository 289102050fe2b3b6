"""kd.library.mla_decode against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.hopper.helpers import assemble, random, relative

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16 = kd.bfloat16
Spec = kd.ShapeDtypeStruct
SCALE = 0.06


def case(
    rng: Any, lengths: tuple[int, ...], queries: int, heads: int, page: int, keys: int = 0, scale: float = SCALE
) -> tuple[Any, Any]:
    """((q, cache, lengths, table), (out, lse)); what lies beyond a length is NaN, and pages beyond it are none."""
    batch, most = len(lengths), -(-(keys or max(*lengths, 1) + 5) // page)
    q = random(rng, (batch, queries, heads, 576), bf16)
    cache = np.full((batch * most + 2, page, 576), np.nan, np.float32).astype(bf16.numpy)
    table = rng.permutation(len(cache))[: batch * most].reshape(batch, most).astype(np.int32)
    out, lse = np.zeros((batch, queries, heads, 512)), np.full((batch, heads, queries), -np.inf)
    for b, length in enumerate(lengths):
        rows = random(rng, (length, 576), bf16)
        for start in range(0, length, page):
            part = rows[start : start + page]
            cache[table[b, start // page], : len(part)] = part
        table[b, -(-length // page) :] = 2**30
        wide = rows.astype(np.float64)
        for i in range(queries):
            seen = max(length - queries + 1 + i, 0)
            if not seen:
                continue
            scores = q[b, i].astype(np.float64) @ wide[:seen].T * scale
            lse[b, :, i] = np.logaddexp.reduce(scores, axis=1)
            out[b, i] = np.exp(scores - lse[b, :, i, None]) @ wide[:seen, :512]
    return (q, cache, np.array(lengths, np.int32), table), (out, lse)


def check(got: Any, wanted: Any) -> None:
    out, lse = (np.asarray(x) for x in got)
    assert out.shape == wanted[0].shape and out.dtype == bf16.numpy and lse.dtype == np.float32
    assert relative(out, wanted[0]) < 8e-3
    none = np.isneginf(wanted[1])
    assert np.array_equal(np.isneginf(lse), none) and not np.asarray(out.swapaxes(1, 2)[none], np.float64).any()
    assert np.abs(lse[~none] - wanted[1][~none]).max(initial=0) < 4e-3


@pytest.mark.parametrize(
    "what", [((150, 0), 1, 16, 64), ((70,), 2, 130, 16), ((200, 3), 4, 64, 40), ((40,), 2, 3, 5)], ids=str
)
@pytest.mark.sampled(30)
def test_mla(what: Any, interpret: Any, rng: Any) -> None:
    """Under each schedule: tails, heads of part of a tile, several tiles, and pages that TMA can't take."""
    arrays, wanted = case(rng, *what)
    check(kd.library.mla_decode(*arrays, scale=SCALE, return_lse=True, interpret=interpret), wanted)


def test_splits_and_out(rng: Any) -> None:
    """A long sequence is shared by blocks, and results go where they are wanted."""
    arrays, wanted = case(rng, (300,), 1, 8, 32)
    for lse in (True, False):
        out = np.full((1, 1, 8, 512), np.nan, np.float32).astype(bf16.numpy)
        sums = np.full((1, 8, 1), np.nan, np.float32)
        given = (out, sums) if lse else out
        kd.library.mla_decode(*arrays, scale=SCALE, return_lse=lse, out=given, interpret=True)
        check((out, sums if lse else wanted[1].astype(np.float32)), wanted)


@pytest.mark.parametrize("page", [16, 5])
def test_page_out_of_range(page: int, rng: Any) -> None:
    arrays, _ = case(rng, (60,), 1, 4, page)
    arrays[3][0, 1] = 10**6
    with pytest.raises(kd.HazardError) as caught:
        kd.library.mla_decode(*arrays, scale=SCALE, interpret=True)
    assert caught.value.kind == kd.HazardKind.OUT_OF_BOUNDS


@pytest.mark.parametrize("bad", [-1, 65, -(2**31)])
@pytest.mark.parametrize("page", [16, 5])
@pytest.mark.sampled(3)
def test_length_out_of_range(page: int, bad: int, rng: Any) -> None:
    arrays, _ = case(rng, (60,), 2, 4, page)
    arrays[2][0] = bad if bad < 0 else arrays[3].shape[1] * page + 1
    with pytest.raises(kd.HazardError, match="lengths of sequences are from 0 to the keys of their cache") as caught:
        kd.library.mla_decode(*arrays, scale=SCALE, interpret=True)
    assert caught.value.kind == kd.HazardKind.ASSERTION


Q, CACHE = np.ones((1, 1, 4, 576), bf16.numpy), np.ones((2, 16, 576), bf16.numpy)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": Q[0]}, "q is an ndarray of shape"),
    ({"q": Q[..., :512]}, r"q is \(1, 1, 4, 512\)"),
    ({"q": Q.astype(np.float16)}, "q is float16"),
    ({"q": np.ones((1, 9, 4, 576), bf16.numpy)}, "q has 9 queries"),
    ({"cache": CACHE[0]}, "cache is an ndarray of shape"),
    ({"cache": np.ones((1, 257, 576), bf16.numpy)}, "pages of 257 keys"),
    ({"lengths": np.ones(2, np.int32)}, r"lengths is \(2,\)"),
    ({"page_table": np.ones((1, 2), np.int64)}, "page_table is int64"),
    ({"page_table": np.ones((2, 2), np.int32)}, r"page_table is \(2, 2\)"),
    ({"scale": 0}, "scale=0"),
    ({"scale": None}, "scale=None"),
    ({"scale": "x"}, "scale='x'"),
    ({"scale": 1e-50}, "scale=1e-50"),
    ({"out": CACHE}, "out"),
]


@pytest.mark.parametrize("given", REFUSED, ids=lambda c: c[-1])
def test_refused(given: Any) -> None:
    usual = {
        "q": Q,
        "cache": CACHE,
        "lengths": np.ones(1, np.int32),
        "page_table": np.ones((1, 2), np.int32),
        "scale": 1.0,
    }
    with pytest.raises(kd.Error, match=given[1]):
        kd.library.mla_decode(**usual | given[0], interpret=True)


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("batch", [128, 1])
@pytest.mark.sampled(60, "machine code")
def test_machine_code(page: int, batch: int) -> None:
    """No spills, and products that are not serialised; a small batch is split."""
    table = 4096 // page
    specs = [Spec((batch, 1, 128, 576), bf16), Spec((batch * table, page, 576), bf16)]
    specs += [Spec((batch,), kd.int32), Spec((batch, table), kd.int32)]
    plan = kd.library.mla_decode._plan(specs, SCALE, False, "sm_90a", False)
    assert (plan.combine is None) == (batch == 128)
    assemble(plan.kernel, *specs)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "what", [((4096, 1, 777), 1, 128, 64), ((9000,), 2, 16, 16), ((3000, 2000), 4, 64, 256)], ids=str
)
def test_real_sizes(what: Any, rng: Any) -> None:
    """Twice the same bits."""
    arrays, wanted = case(rng, *what)
    both = [kd.library.mla_decode(*arrays, scale=SCALE, return_lse=True, interpret=False) for _ in range(2)]
    check(both[0], wanted)
    assert np.array_equal(np.asarray(both[0][0]).view(np.uint16), np.asarray(both[1][0]).view(np.uint16))
