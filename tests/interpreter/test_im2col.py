"""Tensor copies of im2col mode, against the columns of a padded array (PTX ISA 5.5.4, cuTensorMapEncodeIm2col)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
COPY = """.shared .align 1024 .b8 tile[SIZE];
.shared .align 8 .b64 full;
.visible .entry k(.param .align 64 .b8 m[128], .param .u64 out) {
 .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b16 %h<4>; .reg .b64 %d<4>;
 mov.b64 %d1, m; cvta.param.u64 %d1, %d1; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, full; mov.u32 %r3, tile; setp.ne.u32 %p1, %r1, 0;
 @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY: bar.sync 0; @%p1 bra WAIT;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], SIZE;
 cp.async.bulk.tensor.RANKd.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r3], [%d1, {COORDS}], [%r2], {OFFSETS};
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
NEXT: setp.ge.u32 %p3, %r1, SIZE; @%p3 ret; add.u32 %r4, %r3, %r1; ld.shared.u32 %r5, [%r4]; cvt.u64.u32 %d3, %r1; add.s64 %d3, %d3, %d2;
 st.global.u32 [%d3], %r5; add.u32 %r1, %r1, 4; bra NEXT;
}
"""  # fmt: skip
COPY = COPY.replace("mov.u32 %r1, %tid.x;", "mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 2;").replace(
    "add.u32 %r1, %r1, 4;", "add.u32 %r1, %r1, 128;"
)


def text(m: Any, coords: Any, offsets: Any) -> str:
    """The copy of one column, `coords` and `offsets` innermost first."""
    size = m.columns.pixels * m.columns.channels * m.array.dtype.itemsize
    places = {
        "SIZE": size,
        "RANK": len(coords),
        "COORDS": ", ".join(map(str, coords)),
        "OFFSETS": ", ".join(map(str, offsets)),
    }
    body = COPY
    for name, value in places.items():
        body = body.replace(name, str(value))
    return HEAD + body


def brought(m: Any, coords: Any, offsets: Any, **options: Any) -> tuple[Any, Any]:
    """(what the copy brings, (pixels, channels); the report)."""
    out = np.zeros((m.columns.pixels, m.columns.channels), m.array.dtype)
    report = kd.check(text(m, coords, offsets), m, out, grid=1, block=32, **{"schedules": ("eager", "late")} | options)
    return out, report


def columns(
    x: Any, lower: Any, upper: Any, strides: Any, start: Any, offsets: Any, pixels: int, channels: int, c: int
) -> Any:
    """The same from the padded array; `start` and the others outermost first: N and the axes between."""
    spatial = x.shape[1:-1]
    places = [range(low, n + up, s) for low, n, up, s in zip(lower, spatial, upper, strides, strict=True)]
    order = list(itertools.product(range(x.shape[0] + pixels), *places))
    first = order.index(tuple(start))
    padded = np.pad(x, [(0, 2), *[(8, 8)] * len(spatial), (0, 32)])
    at = [(n, *(8 + p + o for p, o in zip(place, offsets, strict=True))) for n, *place in order[first : first + pixels]]
    return np.stack([padded[place][c : c + channels] for place in at])


CASES = [
    # shape, lower, upper, strides, start, offsets, pixels, channels, first channel, dtype
    ((2, 9, 7, 16), (-1, -1), (-1, -1), (1, 1), (0, -1, -1), (0, 0), 64, 16, 0, np.float16),
    ((2, 9, 7, 16), (-1, -1), (-1, -1), (1, 1), (0, 3, 2), (2, 1), 64, 8, 8, np.float16),
    ((3, 8, 8, 4), (-1, -1), (-1, -1), (2, 2), (0, -1, -1), (1, 2), 40, 4, 0, np.float32),
    (
        (1, 6, 5, 24),
        (0, 0),
        (0, 0),
        (1, 1),
        (0, 2, 3),
        (0, 0),
        33,
        32,
        0,
        np.float16,
    ),  # past the channels, and the batch
    ((2, 30, 16), (-3,), (1,), (1,), (0, -3), (5,), 50, 16, 0, np.uint8),
    ((2, 4, 5, 6, 8), (-1, 0, -1), (0, 0, -1), (1, 2, 1), (1, 0, 2, 3), (1, 0, 2), 60, 8, 0, np.float32),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c[0]))
def test_columns_of_pixels(case: Any) -> None:
    shape, lower, upper, strides, start, offsets, pixels, channels, c, dtype = case
    x = (np.random.default_rng(3).integers(1, 200, shape)).astype(dtype)
    m = kd.check.im2col_map(x, pixels, channels, lower=lower, upper=upper, strides=strides)
    out, report = brought(m, (c, *reversed(start)), tuple(reversed(offsets)))
    assert not report.hazards, str(report)
    np.testing.assert_array_equal(out, columns(x, lower, upper, strides, start, offsets, pixels, channels, c))


def test_swizzle_and_nan() -> None:
    x = np.ones((1, 4, 4, 64), np.float16)
    m = kd.check.im2col_map(x, 16, 64, lower=-1, upper=-1, swizzle=128, fill_nan=True)
    out, report = brought(m, (0, -1, -1, 0), (0, 0))
    assert not report.hazards
    assert np.isnan(out[0]).all() and (out[5] == 1).all()  # rows are whole chunks of one value: a swizzle keeps them


BAD = [
    ("outside of the bounding box", {}, (0, 3, 0, 0), (0, 0), "begins at"),
    ("offsets of too many bits", {}, (0, 0, 0, 0), (256, 0), "below 256"),
]


@pytest.mark.parametrize("name,options,coords,offsets,words", BAD, ids=[b[0] for b in BAD])
def test_copies_that_may_not_be(name: str, options: Any, coords: Any, offsets: Any, words: str) -> None:
    m = kd.check.im2col_map(np.ones((1, 4, 4, 8), np.float16), 4, 8, lower=-1, upper=-1)
    _, report = brought(m, coords, offsets, **options)
    assert report.hazards[0].kind == "descriptor" and words in report.hazards[0].message


def test_a_map_of_the_other_mode() -> None:
    m = kd.check.im2col_map(np.ones((1, 4, 4, 8), np.float16), 4, 8)
    tiled = kd.check.tensor_map(m.array, (1, 1, 4, 8))
    out = np.zeros((4, 8), np.float16)
    report = kd.check(text(m, (0, 0, 0, 0), (0, 0)), tiled, out, grid=1, block=32)
    assert report.hazards[0].kind == "descriptor" and "tiled" in report.hazards[0].message
    plain = text(m, (0, 0, 0, 0), (0, 0)).replace(".im2col", "").replace(", {0, 0};", ";")
    report = kd.check(plain, m, out, grid=1, block=32)
    assert report.hazards[0].kind == "descriptor" and "im2col" in report.hazards[0].message


def test_a_launch_takes_the_drivers_bytes() -> None:
    m = kd.check.im2col_map(np.ones((1, 4, 4, 8), np.float16), 4, 8)
    out = np.zeros((4, 8), np.float16)
    with pytest.raises(kd.Error, match="cuTensorMapEncodeIm2col"):
        kd.precompiled_cuda_kernel(text(m, (0, 0, 0, 0), (0, 0)), m, out, grid=1, block=32, interpret=True)


STORE = """.shared .align 128 .b8 tile[512];
.visible .entry k(.param .align 64 .b8 m[128]) {
 .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %d<4>;
 mov.b64 %d1, m; cvta.param.u64 %d1, %d1; mov.u32 %r1, %tid.x; mov.u32 %r3, tile; setp.ne.u32 %p1, %r1, 0; shl.b32 %r2, %r1, 4; add.u32 %r2, %r2, %r3;
 st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1}; FENCE bar.sync 0; @%p1 ret;
 cp.HOW.global.shared::cta.OPim2col_no_offs.bulk_group [%d1, {0, -1, 0, 0}], [%r3]; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0; ret; }
"""


@pytest.mark.parametrize("how,op", [("async.bulk.tensor.4d", ""), ("reduce.async.bulk.tensor.4d", "add.")])
def test_stores(how: str, op: str) -> None:
    """32 pixels of four words, from column -1 on: what lies outside is not stored."""
    x = np.full((2, 3, 4, 4), 100, np.int32)
    body = HEAD + STORE.replace("HOW", how).replace("OP", op)
    m = kd.check.im2col_map(x, 32, 4, lower=(0, -1), upper=(0, 1))
    report = kd.check(body.replace("FENCE", "fence.proxy.async.shared::cta;"), m, grid=1, block=32)
    assert not report.hazards, str(report)
    want = np.full((2, 3, 4, 4), 100, np.int32)
    for pixel, (n, h, w) in enumerate(itertools.product(range(2), range(3), range(-1, 5))):
        if pixel < 32 and 0 <= w < 4:
            want[n, h, w] = pixel + (100 if op else 0)
    np.testing.assert_array_equal(x, want)
    report = kd.check(body.replace("FENCE", ""), m, grid=1, block=32)
    assert report.hazards[0].kind == "missing_proxy_fence"


@pytest.mark.parametrize(
    "options",
    [
        {"lower": -129}, {"upper": (1, 200)}, {"lower": (0, 0, 0)}, {"pixels": 1025}, {"channels": 257}, {"channels": 3},
        {"strides": 9}, {"strides": 0}, {"swizzle": 16}, {"lower": "a"}, {"pixels": 2.5}, {"upper": -4}, {"array": 3},
        {"array": np.zeros((4, 8), np.float16)}, {"array": np.zeros((1, 4, 4, 8), np.float16)[..., ::2]},
    ],
    ids=str,
)  # fmt: skip
def test_maps_that_are_none(options: dict[str, Any]) -> None:
    given = {"array": np.zeros((1, 4, 4, 8), np.float16), "pixels": 4, "channels": 8} | options
    array, pixels, channels = (given.pop(name) for name in ("array", "pixels", "channels"))
    with pytest.raises(kd.Error):
        kd.check.im2col_map(array, pixels, channels, **given)
