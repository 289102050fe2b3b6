"""kd.library.attention of float8 inputs, with weights in float8 and in bfloat16, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig, attention_scored_tiles
from kernel_dsl.library.attention_fine import by_lane, by_row, in_lanes, lanes_parts
from kernel_dsl.library.attention_scored_config import SUMS
from kernel_dsl.library.attention_turned import KEYS, turned_kernel
from tests.hopper.helpers import random, relative

from . import attention_reference as reference
from .test_attention_options import made

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
e4m3, bf16, f32 = kd.float8_e4m3fn, kd.bfloat16, kd.float32
BOUNDS = {"float8": 2**-4, "bfloat16": 8e-3}  # of the norm; 2 ** -4 of a weight is lost in float8 if it is alone
LSE_BOUNDS = {"float8": 2**-4, "bfloat16": 4e-3}


def inputs(rng: Any, B: int, H: int, G: int, Q: int, K: int, D: int, DV: int) -> tuple[Any, Any, Any]:
    return random(rng, (B, H, Q, D), e4m3), random(rng, (B, G, K, D), e4m3), random(rng, (B, G, K, DV), e4m3)


def check(got: Any, expected: reference.Reference, weights: str) -> None:
    """Compare outputs and logarithms; rows that see nothing are exact."""
    out, lse = (np.asarray(x) for x in got)
    assert out.shape == expected.out.shape and out.dtype == bf16 and lse.dtype == np.float32
    assert relative(out, expected.out) < BOUNDS[weights]
    none = np.isneginf(expected.lse)
    assert np.array_equal(np.isneginf(lse), none) and not np.asarray(out[none], np.float64).any()
    assert np.abs(lse[~none] - expected.lse[~none]).max(initial=0) < LSE_BOUNDS[weights]


FLOAT8 = AttentionConfig(2, 64, 2, weights="float8")


@pytest.mark.parametrize("weights", ["float8", "bfloat16", None])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (48, 24), (256, 256), (12, 12)], ids=str)
@pytest.mark.sampled(5)
def test_scales(dims: tuple[int, int], weights: str | None, rng: Any) -> None:
    """Scales of heads, and numbers. Rows of 12 bytes are widened."""
    if weights == "float8" and dims[0] % 16:
        pytest.skip("TMA loads no such rows")
    config = None if weights is None else AttentionConfig(2, 32, 2, weights=weights)
    q, k, v = inputs(rng, 2, 4, 2, 70, 90, *dims)
    scales = {name: np.abs(random(rng, (2, 2), f32)) + 0.5 for name in ("k_scale", "v_scale")}
    more: dict[str, Any] = {"config": config, "interpret": True}
    got = kd.library.attention(q, k, v, q_scale=0.5, **scales, softcap=9.0, return_lse=True, **more)
    wide = [x.astype(np.float64) for x in (q * np.float32(1), k, v)]
    wide = [wide[0] * 0.5, *(x * s[:, :, None, None] for x, s in zip(wide[1:], scales.values(), strict=True))]
    check(got, reference.attention(*wide, softcap=9.0), weights or "bfloat16")
    plain = kd.library.attention(q, k, v, **more)
    assert relative(plain, reference.attention(q, k, v).out) < BOUNDS[weights or "bfloat16"]


OPTIONS: list[tuple[str, ...]] = [
    (),
    ("top_left",),
    ("bottom_right", "window"),
    ("softcap", "sinks"),
    ("bias",),
    ("alibi", "top_left"),
    ("squashed",),
    ("documents",),
    ("by_head", "sinks"),
]
SIZES: list[Any] = [
    AttentionConfig(1, 32, 2, weights="float8"),
    AttentionConfig(3, 96, 4, turns=True, weights="float8"),
    AttentionConfig(2, 160, 2, polynomial=5, weights="float8"),
    AttentionConfig(2, 64, 3, weights="float8"),
]


@pytest.mark.parametrize("names", OPTIONS, ids="-".join)
@pytest.mark.parametrize("config", SIZES, ids=str)
@pytest.mark.sampled(9)
def test_options(names: tuple[str, ...], config: Any, rng: Any, interpret: Any, monkeypatch: Any) -> None:
    """With several runs and steps, a last step that is not full, heads that share keys, and both orders of axes."""
    monkeypatch.setattr(attention_scored_tiles, "RUN", 100)
    n = OPTIONS.index(names) + len(OPTIONS) * SIZES.index(config)
    B, H, G, Q, K = (1, 2)[n % 2], 2, (1, 2)[n % 3 % 2], 70 + 13 * (n % 7), 130 + 57 * (n % 6)
    q, k, v = inputs(rng, B, H, G, Q, K, *[(64, 64), (128, 128), (80, 48), (32, 96)][n % 4])
    options = made(names, rng, (B, H, Q, K))
    swapped = n % 4 == 1
    arrays = [x.swapaxes(1, 2) if swapped else x for x in (q, k, v)]
    more = {"layout": "bshd"} if swapped else {}
    out, lse = kd.library.attention(*arrays, **options, **more, config=config, return_lse=True, interpret=interpret)
    out = np.asarray(out).swapaxes(1, 2) if swapped else out
    check((out, lse), reference.attention(q, k, v, **options), "float8")


@pytest.mark.parametrize("width", [0.1, 4.0, 12.0], ids=["diffuse", "peaked", "one key"])
@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.sampled(2)
def test_sums_are_those_of_rounded_weights(width: float, mean: float, rng: Any) -> None:
    """A row with one heavy key gives this key's value, and equal values give themselves, whatever the rounding."""
    q, k = (random(rng, (1, 1, n, 64), f32) for n in (100, 600))
    v = (random(rng, (1, 1, 600, 64), f32) + mean).astype(e4m3.numpy)
    q, k = (q * width).astype(e4m3.numpy), k.astype(e4m3.numpy)
    got = kd.library.attention(q, k, v, config=FLOAT8, interpret=True)
    bound = 8e-3 if mean and width < 1 else 3e-2 if mean else 6e-2
    assert relative(got, reference.attention(q, k, v).out) < bound
    same = kd.library.attention(q, k, np.full_like(v, 1.75), config=FLOAT8, interpret=True)
    assert (np.asarray(same) == 1.75).all()


@pytest.mark.parametrize("dims", [(16, 16), (80, 80), (64, 64), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("weights", ["float8", "bfloat16"])
@pytest.mark.sampled(6)
def test_machine_code(dims: tuple[int, int], weights: str) -> None:
    """Products of float8, without spills and without remarks."""
    q, k, v = (kd.ShapeDtypeStruct((1, h, 4090, n), e4m3) for h, n in ((16, dims[0]), (4, dims[0]), (4, dims[1])))
    fine = weights == "float8"
    sizes = (3, 96, 4) if max(dims) <= 128 else (2, 64, 2)
    config = AttentionConfig(*sizes, turns=dims == (64, 64), weights="float8") if fine else None
    every: list[dict[str, Any]] = [{"causal": True, "softcap": 9.0}, {"causal": True}, {}]
    for options in every:
        compiled = kd.library.attention.lower(q, k, v, **options, config=config, target="sm_90a").compile()
        assert compiled.resources.spills == 0 and not compiled.remarks
        assert "f32.e4m3.e4m3" in compiled.ptx and ("f32.bf16.bf16" in compiled.ptx) != fine


FUNCTIONS: list[dict[str, Any]] = [
    {"bias": kd.ShapeDtypeStruct((1, 1, 4096, 4096), bf16)},
    {"softcap": 30.0, "bias": kd.ShapeDtypeStruct((1, 16, 1, 4096), f32)},
    {"score_mod": reference.alibi, "causal": True},
    {"score_mod": reference.squashed},
    {"mask_mod": reference.documents},
    {"mask_mod": reference.by_head, "softcap": 9.0},
    {"window": 1024, "causal": "bottom_right", "sinks": kd.ShapeDtypeStruct((16,), f32)},
]


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("options", FUNCTIONS, ids="-".join)
@pytest.mark.sampled(7)
def test_machine_code_of_options(dims: tuple[int, int], options: dict[str, Any]) -> None:
    q, k, v = (kd.ShapeDtypeStruct((1, h, 4096, n), e4m3) for h, n in ((16, dims[0]), (4, dims[0]), (4, dims[1])))
    config = AttentionConfig(2, 128 if dims[1] <= 128 and dims[0] <= 128 else 64, 2, weights="float8")
    compiled = kd.library.attention.lower(q, k, v, **options, config=config, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stride", [64, 72], ids=["rows as they are", "rows that TMA can't load"])
def test_rows(stride: int, rng: Any) -> None:
    """Rows of q and k that TMA can't load are widened; by both ways nothing that lies between rows matters."""
    q, k, v = inputs(rng, 1, 2, 1, 70, 90, 64, 64)
    padded = [np.full((*x.shape[:3], stride), np.nan, np.float32).astype(e4m3.numpy) for x in (q, k)]
    for wide, x in zip(padded, (q, k), strict=True):
        wide[..., :64] = x
    got = kd.library.attention(*(x[..., :64] for x in padded), v, causal=True, interpret=True)
    assert relative(got, reference.attention(q, k, v, causal=True).out) < BOUNDS["bfloat16"]


def test_one_kernel_for_any_lengths(rng: Any) -> None:
    """Calls after the first one share kernels, whatever their sizes."""
    for batch, queries, keys in ((1, 90, 200), (2, 70, 130), (3, 130, 333)):
        q, k, v = inputs(rng, batch, 2, 1, queries, keys, 64, 64)
        got = kd.library.attention(q, k, v, causal=True, config=FLOAT8, return_lse=True, interpret=True)
        check(got, reference.attention(q, k, v, causal=True), "float8")


# --- values, transposed -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dim", [16, 24, 64, 128, 136, 256])
@pytest.mark.sampled(4)
def test_turned_values(layout: str, dim: int, rng: Any) -> None:
    """Each 16 keys in their order, zeros beyond the last key and dim, and a row of ones."""
    x = random(rng, (2, 3, 150, dim), e4m3)
    given = x if layout == "bhsd" else np.ascontiguousarray(x.swapaxes(1, 2))
    turned: Any = turned_kernel(layout, 3, dim, e4m3)
    got = np.asarray(turned(given, interpret=True)).astype(np.float32)
    dims, keys = -(-dim // 16) * 16, 160
    wide = np.zeros((2, 3, keys, dims), np.float32)
    wide[:, :, :150, :dim] = x.astype(np.float32)
    order = [8 * a + 2 * t + i for t in range(4) for a in range(2) for i in range(2)]
    places = [start + n for start in range(0, keys, KEYS) for n in order]
    assert np.array_equal(got[:, :, :dims], wide[:, :, places].swapaxes(2, 3))
    assert (got[:, :, dims] == 1).all() and not got[:, :, dims + 1 :].any() and got.shape[2] == dims + SUMS


def test_weights_stay_in_their_lanes() -> None:
    """A lane's scores are its part of the left side of an 8-bit product, and its sums are next to one another."""

    def kernel(x: Any, out: Any, sums: Any) -> None:
        scores = kd.load(x, layout=kd.Layout.WGMMA)
        kd.store(out, ..., kd.layout_cast(in_lanes(scores), kd.Layout.WGMMA_8BIT))
        parts = kd.layout_cast(by_lane(scores), lanes_parts(64))
        kd.store(sums, ..., kd.layout_cast(by_row(parts + 1.0), kd.Layout.WGMMA))

    struct = kd.ShapeDtypeStruct((64, 64), f32)
    made: Any = kd.kernel(kernel, out_type=(struct, struct), name="in_lanes")
    ptx = made.lower(struct, target="sm_90a").compile().ptx
    assert "shfl" not in ptx and ".shared" not in ptx
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    assert np.array_equal(made(x, interpret=True)[1], x + 1)
