"""Tensor copies that gather and scatter four rows (.tile::gather4, .tile::scatter4), against indexing in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.compiled import OobFill, Swizzle
from kernel_dsl.runtime.interpreter import HazardError, HazardKind

from .launching import SCHEDULES, launch
from .test_tma import load_kernel, store_kernel, swizzle_bytes, tensor

RNG = np.random.default_rng(5)
ROWS = ((7, 2, 11, 4), (0, 0, 0, 0), (11, -1, 12, 3), (-5, 40, -2147483648, 2147483647))


def gather(column: int, rows: tuple[int, ...], size: int) -> str:
    return _of_rows(load_kernel(5, (column, *rows), size), "gather4")


def scatter(column: int, rows: tuple[int, ...], size: int) -> str:
    return _of_rows(store_kernel(5, (column, *rows), size), "scatter4")


def _of_rows(text: str, mode: str) -> str:
    return text.replace("sm_90a", "sm_100a").replace(".5d.", ".2d.").replace(".tile.", f".tile::{mode}.")


def fetched(x: np.ndarray, column: int, rows: tuple[int, ...], width: int, fill: float = 0) -> np.ndarray:
    """Four rows from a column on, with `fill` outside."""
    out = np.full((4, width), fill, x.dtype)
    for n, row in enumerate(rows):
        for i in range(width):
            if 0 <= row < x.shape[0] and 0 <= column + i < x.shape[1]:
                out[n, i] = x[row, column + i]
    return out


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_gather(span: int, schedule: str) -> None:
    for dtype, rows, column in zip((np.float32, np.float16, np.uint8, np.float64), ROWS, (0, 8, 48, -2), strict=True):
        x = (100 * RNG.standard_normal((12, 64))).astype(dtype)
        width = (span or 64) // x.itemsize
        out = np.zeros((4, width), dtype)
        m = tensor(x, (width, 1), Swizzle(span))
        launch(gather(column, rows, out.nbytes), "k", [m, out], block=128, schedule=schedule, target="sm_100a")
        want = swizzle_bytes(fetched(x, column, rows, width), span)
        np.testing.assert_array_equal(out.reshape(-1).view(np.uint8), want)


def test_gather_fills_with_nan() -> None:
    x = RNG.standard_normal((12, 64)).astype(np.float16)
    out = np.zeros((4, 32), np.float16)
    m = tensor(x, (32, 1), fill=OobFill.NAN)
    launch(gather(48, (3, -1, 12, 11), out.nbytes), "k", [m, out], block=128, target="sm_100a")
    want = fetched(x, 48, (3, -1, 12, 11), 32, np.nan)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_scatter(span: int, schedule: str) -> None:
    for dtype, rows, column in (
        (np.float32, (7, 2, 11, 4), 0),
        (np.float16, (5, 12, 40, 1), 48),
        (np.uint8, (12, 13, 14, 15), 0),
    ):
        x = (100 * RNG.standard_normal((12, 64))).astype(dtype)
        width = (span or 64) // x.itemsize
        tile = (100 * RNG.standard_normal((4, width))).astype(dtype)
        want = x.copy()
        for n, row in enumerate(rows):
            if row < 12:
                want[row, column : column + width] = tile[n, : 64 - column]
        source = swizzle_bytes(tile, span)
        text = scatter(column, rows, tile.nbytes)
        launch(
            text, "k", [tensor(x, (width, 1), Swizzle(span)), source], block=128, schedule=schedule, target="sm_100a"
        )
        np.testing.assert_array_equal(x, want)


def test_gather_to_all_blocks_of_a_cluster() -> None:
    x, out = RNG.standard_normal((12, 32)).astype(np.float32), np.zeros((2, 4, 32), np.float32)
    text = gather(0, (9, 1, 5, 3), out[0].nbytes)
    text = text.replace(
        "READY: bar.sync 0;", "READY: bar.sync 0; mov.u32 r7, %ctaid.x; mul.wide.u32 d5, r7, 512; add.s64 d2, d2, d5;"
    )
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    text = text.replace(" setp.ne.u32 p1, r1, 0;\n @p1 bra READY;", f" setp.ne.u32 p1, r1, 0; mov.u32 r8, %cluster_ctarank; .reg .b16 h1; mov.u16 h1, 3;\n"
                        f" @!p1 mbarrier.init.shared::cta.b64 [r3], 1; {meet} @p1 bra READY;")  # fmt: skip
    text = text.replace(" mbarrier.init.shared::cta.b64 [r3], 1;\n fence", " fence")
    text = text.replace(" cp.async", " setp.ne.u32 p1, r8, 0; @p1 bra READY;\n cp.async").replace(
        "[r3];\nREADY", "[r3], h1;\nREADY"
    )
    text = text.replace("complete_tx::bytes [", "complete_tx::bytes.multicast::cluster [").replace(
        "END: ret", f"END: {meet} ret"
    )
    launch(text, "k", [tensor(x, (32, 1)), out], grid=2, cluster=(2, 1, 1), block=128, target="sm_100a")
    np.testing.assert_array_equal(out, np.stack([x[[9, 1, 5, 3]]] * 2))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hazards(schedule: str) -> None:
    x, tile = np.zeros((12, 32), np.float32), np.ones((4, 32), np.float32)
    text = scatter(0, (7, 2, 11, 4), tile.nbytes)
    load = gather(0, (7, 2, 11, 4), tile.nbytes)
    cases = [
        (scatter(0, (7, 2, 7, 4), tile.nbytes), (32, 1), HazardKind.RACE_GLOBAL, "row 7"),
        (scatter(0, (7, 2, -1, 4), tile.nbytes), (32, 1), HazardKind.OUT_OF_BOUNDS, "negative"),
        (text, (32, 4), HazardKind.DESCRIPTOR, "4 rows"),
        (text.replace("fence.proxy.async.shared::cta; ", ""), (32, 1), HazardKind.MISSING_PROXY_FENCE, "proxy"),
        (text.replace("cp.async.bulk.wait_group 0;", ""), (32, 1), HazardKind.UNAWAITED_COPY, "ends while"),
        (load, (32, 2), HazardKind.DESCRIPTOR, "2 rows"),
        (
            load.replace("bytes [r2], ", "bytes [r2+64], ").replace("t[512]", "t[1024]"),
            (32, 1),
            HazardKind.MISALIGNED,
            "128",
        ),
        (load.replace("[r3], 512;", "[r3], 128;"), (32, 1), HazardKind.BYTES_MISMATCH, "384 bytes"),
        (
            load.replace("W: mbar", "W: bra V; mbar").replace(" shl.b32 r4", "V: shl.b32 r4"),
            (32, 1),
            HazardKind.READ_BEFORE_WAIT,
            "'t' is read",
        ),
    ]
    for bad, box, kind, words in cases:
        with pytest.raises(HazardError, match=words) as caught:
            launch(bad, "k", [tensor(x, box), tile.copy()], block=128, schedule=schedule, target="sm_100a")
        assert caught.value.kind is kind, str(caught.value)
    for good in (text, load):
        launch(good, "k", [tensor(x, (32, 1)), tile.copy()], block=128, schedule=schedule, target="sm_100a")


def test_scatters_of_two_blocks_race_at_a_row_that_both_have() -> None:
    x, tile = np.zeros((24, 32), np.float32), np.ones((4, 32), np.float32)
    for step, races in ((12, False), (4, True)):
        text = scatter(0, (7, 2, 11, 4), tile.nbytes)
        moved = "".join(f" mov.u32 r6, %ctaid.x; mad.lo.s32 r{n}, r6, {step}, r{n};" for n in range(11, 15))
        text = text.replace("READY: fence", f"READY:{moved} fence").replace("mov.b64 d1, m;", "mov.b64 d1, m;")
        if races:
            with pytest.raises(HazardError) as caught:
                launch(text, "k", [tensor(x, (32, 1)), tile], grid=2, block=128, target="sm_100a")
            assert caught.value.kind in (HazardKind.RACE_BLOCKS, HazardKind.EQUAL_VALUE_RACE)
        else:
            launch(text, "k", [tensor(x, (32, 1)), tile], grid=2, block=128, target="sm_100a")
