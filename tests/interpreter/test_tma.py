"""Tensor and bulk copies: every rank, swizzle, fill and reduction, against loops over elements."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.compiled import OobFill, Swizzle
from kernel_dsl.runtime.interpreter import HazardError
from kernel_dsl.runtime.interpreter.machine.tensor_map import TensorMapError, encode_tensor_map

from .launching import SCHEDULES, kernel, launch

COMPLETE = "mbarrier::complete_tx::bytes"


def load_kernel(rank: int, coords, size: int) -> str:
    """Loads one box, then writes the `size` bytes of shared memory out as they lie."""
    registers = "".join(f" mov.s32 r{10 + i}, {c};\n" for i, c in enumerate(coords))
    where = ", ".join(f"r{10 + i}" for i in range(rank))
    return kernel(
        ".param .align 64 .b8 m[128], .param .u64 out",
        f""" .reg .pred p<4>; .reg .b32 r<20>; .reg .b64 d<6>;
 .shared .align 1024 .b8 t[{size}]; .shared .align 8 .b64 bar;
 mov.u32 r1, %tid.x; mov.u32 r2, t; mov.u32 r3, bar; mov.b64 d1, m; cvta.param.u64 d1, d1; ld.param.u64 d2, [out];
{registers}
 setp.ne.u32 p1, r1, 0;
 @p1 bra READY;
 mbarrier.init.shared::cta.b64 [r3], 1;
 fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], {size};
 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.{COMPLETE} [r2], [d1, {{{where}}}], [r3];
READY: bar.sync 0;
W: mbarrier.try_wait.parity.shared::cta.b64 p2, [r3], 0; @!p2 bra W;
 shl.b32 r4, r1, 2;
L: setp.ge.u32 p3, r4, {size}; @p3 bra END;
 add.u32 r5, r2, r4; ld.shared.u32 r6, [r5]; cvt.u64.u32 d3, r4; add.s64 d4, d2, d3; st.global.u32 [d4], r6;
 add.u32 r4, r4, 512; bra L;
END: ret;""",
    )


def store_kernel(rank: int, coords, size: int, operation: str = "") -> str:
    """Copies `size` bytes from `src` to shared memory, then stores or reduces them as one box."""
    registers = "".join(f" mov.s32 r{10 + i}, {c};\n" for i, c in enumerate(coords))
    where = ", ".join(f"r{10 + i}" for i in range(rank))
    name = "cp.reduce.async.bulk.tensor" if operation else "cp.async.bulk.tensor"
    suffix = f".{operation}" if operation else ""
    return kernel(
        ".param .align 64 .b8 m[128], .param .u64 src",
        f""" .reg .pred p<4>; .reg .b32 r<20>; .reg .b64 d<6>; .shared .align 1024 .b8 t[{size}];
 mov.u32 r1, %tid.x; mov.u32 r2, t; mov.b64 d1, m; cvta.param.u64 d1, d1; ld.param.u64 d2, [src];
{registers}
 shl.b32 r4, r1, 2;
L: setp.ge.u32 p3, r4, {size}; @p3 bra READY;
 add.u32 r5, r2, r4; cvt.u64.u32 d3, r4; add.s64 d4, d2, d3; ld.global.u32 r6, [d4]; st.shared.u32 [r5], r6;
 add.u32 r4, r4, 512; bra L;
READY: fence.proxy.async.shared::cta; bar.sync 0;
 setp.ne.u32 p1, r1, 0; @p1 bra END;
 {name}.{rank}d.global.shared::cta{suffix}.tile.bulk_group [d1, {{{where}}}], [r2];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END: ret;""",
    )


def reference_box(x: np.ndarray, coords, box, fill) -> np.ndarray:
    """The box at `coords` (innermost first) of `x`, outermost first, `fill` outside."""
    out = np.full(box[::-1], fill, x.dtype)
    for index in itertools.product(*(range(n) for n in box[::-1])):
        at = tuple(i + c for i, c in zip(index, coords[::-1], strict=True))
        if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
            out[index] = x[at]
    return out


def swizzle_bytes(data: np.ndarray, span: int) -> np.ndarray:
    """Row-major bytes as TMA lays them out: 16-byte chunks XORed within rows of `span` bytes, 8 rows of 128 bytes."""
    raw = data.reshape(-1).view(np.uint8)
    out = np.zeros_like(raw)
    for i in range(0, len(raw), 16):
        line = (i // 128) % 8
        chunk = (i // 16) % 8
        mask = {0: 0, 32: 1, 64: 3, 128: 7}[span]
        # The pattern of 32 and 64 bytes repeats every 2 and 4 lines.
        moved = (i & ~127) + ((chunk ^ (line & mask)) * 16)
        out[moved : moved + 16] = raw[i : i + 16]
    return out


def tensor(x: np.ndarray, box, swizzle=Swizzle.NONE, fill=OobFill.ZEROS, name="x", steps=None):
    shape, strides = x.shape[::-1], x.strides[::-1]
    return lambda memory: encode_tensor_map(
        memory.allocate(x, name), x.dtype, shape, strides[1:], box, steps, swizzle, fill
    )


CASES = [
    ((64,), (32,), (8,), np.float32),
    ((100,), (32,), (80,), np.float32),
    ((16, 64), (32, 8), (0, 4), np.float32),
    ((16, 64), (32, 8), (-4, 12), np.float32),
    ((10, 24), (64, 16), (-8, -3), np.float16),
    ((4, 6, 32), (16, 4, 2), (20, 3, -1), np.int32),
    ((3, 4, 5, 16), (16, 3, 2, 2), (0, 3, 1, 2), np.uint8),
    ((2, 3, 4, 5, 8), (8, 2, 3, 2, 2), (4, 4, -1, 1, 0), np.int32),
    ((16, 64), (16, 8), (60, 14), np.float64),
    ((16, 64), (64, 8), (0, 0), ml_dtypes.bfloat16),
]


@pytest.mark.parametrize("shape,box,coords,dtype", CASES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_load_a_box(shape, box, coords, dtype, schedule):
    rng = np.random.default_rng(1)
    x = rng.integers(1, 100, shape).astype(dtype)
    size = int(np.prod(box)) * x.itemsize
    out = np.zeros(size, np.uint8)
    launch(load_kernel(len(box), coords, size), "k", [tensor(x, box), out], block=128, schedule=schedule)
    expected = reference_box(x, coords, box, 0)
    np.testing.assert_array_equal(out, expected.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("swizzle", list(Swizzle))
def test_swizzles_of_loads_and_stores(swizzle):
    rng = np.random.default_rng(2)
    columns = (swizzle.value or 64) // 2
    x = rng.integers(0, 1000, (32, columns)).astype(np.uint16)
    size = x.nbytes
    out = np.zeros(size, np.uint8)
    launch(load_kernel(2, (0, 0), size), "k", [tensor(x, (columns, 32), swizzle), out], block=128)
    expected = swizzle_bytes(x, swizzle.value)
    np.testing.assert_array_equal(out, expected)
    back = np.zeros_like(x)
    text = store_kernel(2, (0, 0), size)
    launch(text, "k", [tensor(back, (columns, 32), swizzle), expected], block=128)
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_nan_fill(dtype):
    x = np.ones((8, 32), dtype)
    out = np.zeros(16 * 8, dtype)
    text = load_kernel(2, (24, 4), out.nbytes)
    launch(text, "k", [tensor(x, (16, 8), fill=OobFill.NAN), out], block=128)
    inside = ~np.isnan(out.astype(np.float32)).reshape(8, 16)
    expected = np.zeros((8, 16), bool)
    expected[:4, :8] = True
    np.testing.assert_array_equal(inside, expected)


def test_element_strides():
    x = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)
    out = np.zeros(32 * 4, np.float32)
    text = load_kernel(2, (4, 1), out.nbytes)
    # the innermost one is ignored, as the driver says
    launch(text, "k", [tensor(x, (32, 12), steps=(2, 3)), out], block=128)
    np.testing.assert_array_equal(out.reshape(4, 32), x[1:13:3, 4:36])


@pytest.mark.parametrize("text", [load_kernel, store_kernel], ids=["load", "store"])
@pytest.mark.parametrize(("dtype", "start"), [(np.float32, 1), (np.float32, 3), (np.float16, 4), (np.uint8, 5)])
def test_an_innermost_start_between_16_bytes_is_a_hazard(text, dtype, start):
    x = np.zeros((16, 128), dtype)
    box = (64, 8)
    size = 64 * 8 * x.itemsize
    other = np.zeros(size, np.uint8)
    with pytest.raises(HazardError, match=f"innermost coordinate {start} is at byte"):
        launch(text(2, (start, 0), size), "k", [tensor(x, box), other], block=128)
    launch(text(2, (16, 0), size), "k", [tensor(x, box), other], block=128)


def test_stores_drop_what_lies_outside():
    x = np.zeros((8, 32), np.float32)
    source = np.arange(1, 16 * 8 + 1, dtype=np.float32)
    launch(store_kernel(2, (24, 4), 512), "k", [tensor(x, (16, 8)), source], block=128)
    expected = np.zeros_like(x)
    expected[4:, 24:] = source.reshape(8, 16)[:4, :8]
    np.testing.assert_array_equal(x, expected)


REDUCTIONS = [
    ("add", np.int32), ("min", np.int32), ("max", np.uint32), ("and", np.uint32), ("or", np.uint32),
    ("xor", np.uint32), ("inc", np.uint32), ("dec", np.uint32), ("add", np.float32), ("add", np.float16),
    ("min", np.float16), ("max", ml_dtypes.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("operation,dtype", REDUCTIONS, ids=str)
def test_reductions(operation, dtype):
    rng = np.random.default_rng(3)
    x = rng.integers(0, 50, (8, 32)).astype(dtype)
    y = rng.integers(0, 50, (8, 32)).astype(dtype)
    table = {
        "add": lambda: x + y, "min": lambda: np.minimum(x, y), "max": lambda: np.maximum(x, y),
        "and": lambda: x & y, "or": lambda: x | y, "xor": lambda: x ^ y,
        "inc": lambda: np.where(x >= y, 0, x + 1), "dec": lambda: np.where((x == 0) | (x > y), y, x - 1),
    }  # fmt: skip
    expected = table[operation]().astype(dtype)
    launch(store_kernel(2, (0, 0), x.nbytes, operation), "k", [tensor(x, (32, 8)), y], block=128)
    np.testing.assert_array_equal(x.view(np.uint8), expected.view(np.uint8))


def bulk_kernel(body: str) -> str:
    return kernel(
        ".param .u64 a, .param .u64 b",
        """ .reg .pred p<4>; .reg .b32 r<20>; .reg .b64 d<6>; .shared .align 128 .b8 t[2048]; .shared .align 8 .b64 bar;
 mov.u32 r1, %tid.x; mov.u32 r2, t; mov.u32 r3, bar; ld.param.u64 d1, [a]; ld.param.u64 d2, [b];
 setp.ne.u32 p1, r1, 0; @p1 bra READY; mbarrier.init.shared::cta.b64 [r3], 1;
 fence.mbarrier_init.release.cluster; READY: bar.sync 0; @p1 bra END;
"""
        + body
        + "\nEND: ret;",
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bulk_copies_in_and_out(schedule):
    a = np.arange(512, dtype=np.int32)
    b = np.zeros(512, np.int32)
    text = bulk_kernel(f""" mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 2048;
 cp.async.bulk.shared::cluster.global.{COMPLETE} [r2], [d1], 2048, [r3];
W: mbarrier.try_wait.parity.shared::cta.b64 p2, [r3], 0; @!p2 bra W;
 cp.async.bulk.global.shared::cta.bulk_group [d2], [r2], 1024;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [d2+1024], [r2], 1024;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;""")
    launch(text, "k", [a, b], schedule=schedule)
    np.testing.assert_array_equal(b, np.concatenate([a[:256], a[:256]]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_multicast_and_peer_copies(schedule):
    """Rank 0 multicasts to both blocks; then each sends its half to its peer; all of it comes back out."""
    x = np.arange(256, dtype=np.float32).reshape(8, 32)
    out = np.zeros((2, 512), np.float32)
    text = kernel(
        ".param .align 64 .b8 m[128], .param .u64 out",
        f""" .reg .pred p<6>; .reg .b16 h<3>; .reg .b32 r<20>; .reg .b64 d<8>;
 .shared .align 1024 .b8 t[2048]; .shared .align 8 .b64 bar; .shared .align 8 .b64 bar2;
 mov.u32 r1, %tid.x; mov.u32 r2, t; mov.u32 r3, bar; mov.u32 r4, bar2; mov.b64 d1, m; cvta.param.u64 d1, d1; ld.param.u64 d2, [out];
 mov.u32 r5, %cluster_ctarank; xor.b32 r6, r5, 1; mov.u32 r7, 0; mov.b16 h1, 3;
 setp.ne.u32 p1, r1, 0; @p1 bra READY;
 mbarrier.init.shared::cta.b64 [r3], 1; mbarrier.init.shared::cta.b64 [r4], 1;
 fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 1024;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r4], 1024;
READY: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
 setp.ne.u32 p2, r5, 0; or.pred p3, p1, p2; @p3 bra W1;
 cp.async.bulk.tensor.2d.shared::cluster.global.{COMPLETE}.multicast::cluster [r2], [d1, {{r7, r7}}], [r3], h1;
W1: mbarrier.try_wait.parity.shared::cta.b64 p4, [r3], 0; @!p4 bra W1;
 @p1 bra W2;
 add.u32 r8, r2, 1024; mapa.shared::cluster.u32 r9, r8, r6; mapa.shared::cluster.u32 r10, r4, r6;
 cp.async.bulk.shared::cluster.shared::cta.{COMPLETE} [r9], [r2], 1024, [r10];
W2: mbarrier.try_wait.parity.shared::cta.b64 p4, [r4], 0; @!p4 bra W2;
 shl.b32 r11, r1, 4; add.u32 r12, r2, r11; ld.shared.v4.u32 {{r13, r14, r15, r16}}, [r12];
 mul.wide.u32 d3, r5, 2048; add.s64 d4, d2, d3; cvt.u64.u32 d5, r11; add.s64 d4, d4, d5;
 st.global.v4.u32 [d4], {{r13, r14, r15, r16}};
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 ret;""",
    )
    args = [tensor(x, (32, 8)), out]
    launch(text, "k", args, grid=2, block=128, cluster=(2, 1, 1), schedule=schedule)
    np.testing.assert_array_equal(out, np.tile(x.reshape(-1), (2, 2)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_remote_stores_and_arrivals(schedule):
    """Each lane st.asyncs to the peer block, and the peer is also told by remote arrivals."""
    out = np.zeros((2, 32), np.int32)
    text = kernel(
        ".param .u64 out",
        f""" .reg .pred p<6>; .reg .b32 r<20>; .reg .b64 d<8>;
 .shared .align 16 .b32 t[32]; .shared .align 8 .b64 bar; .shared .align 8 .b64 bar2;
 mov.u32 r1, %tid.x; mov.u32 r2, t; mov.u32 r3, bar; mov.u32 r4, bar2; ld.param.u64 d2, [out];
 mov.u32 r5, %cluster_ctarank; xor.b32 r6, r5, 1; shl.b32 r7, r1, 2;
 setp.ne.u32 p1, r1, 0; @p1 bra READY;
 mbarrier.init.shared::cta.b64 [r3], 1; mbarrier.init.shared::cta.b64 [r4], 32;
 fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 128;
READY: barrier.cluster.arrive; barrier.cluster.wait;
 add.u32 r8, r2, r7; mapa.shared::cluster.u32 r9, r8, r6; mapa.shared::cluster.u32 r10, r3, r6;
 mad.lo.u32 r11, r5, 100, r1;
 st.async.shared::cluster.{COMPLETE}.u32 [r9], r11, [r10];
 mapa.shared::cluster.u32 r12, r4, r6;
 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r12];
W1: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p4, [r3], 0; @!p4 bra W1;
W2: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p4, [r4], 0; @!p4 bra W2;
 ld.shared.u32 r13, [r8];
 mad.lo.u32 r14, r5, 32, r1; mul.wide.u32 d3, r14, 4; add.s64 d4, d2, d3; st.global.u32 [d4], r13;
 barrier.cluster.arrive; barrier.cluster.wait;
 ret;""",
    )
    launch(text, "k", [out], grid=2, cluster=(2, 1, 1), schedule=schedule)
    np.testing.assert_array_equal(out, [100 + np.arange(32), np.arange(32)])


REFUSED = [
    ({"box": (300, 8)}, "1 to 256"),
    ({"box": (2, 8)}, "multiple of 16"),
    ({"box": (64, 8), "swizzle": Swizzle.B128}, "128-byte swizzle"),
    ({"box": (32, 8), "element_strides": (9, 1)}, "1 to 8"),
    ({"global_strides_bytes": (130,)}, "multiple of 16"),
    ({"global_strides_bytes": ()}, "rank 2"),
    ({"global_shape": (0, 8)}, "0 elements"),
    ({"global_shape": (1,) * 6}, "1 to 5"),
    ({"address": 8}, "multiple of 16"),
    ({"dtype": np.int32, "oob_fill": OobFill.NAN}, "float"),
    ({"interleave": 1}, "interleaved"),
]


@pytest.mark.parametrize("change,words", REFUSED, ids=str)
def test_tensor_map_rules(change, words):
    good = {
        "address": 1 << 36, "dtype": np.float32, "global_shape": (64, 16), "global_strides_bytes": (256,),
        "box": (32, 8),
    }  # fmt: skip
    assert len(encode_tensor_map(**good)) == 128
    with pytest.raises(TensorMapError, match=words):
        encode_tensor_map(**{**good, **change})
