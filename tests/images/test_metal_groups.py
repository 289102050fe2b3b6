"""Metal's SIMD-group operations, threadgroup memory and atomics behind `metal_kernel`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.custom.metal.metal import metal_kernel

from .test_metal_library import rng as rng
from .test_metal_library import run

pytestmark = pytest.mark.usefixtures("compiler")
LANES = 40  # a full SIMD-group and one of 8 lanes


@pytest.mark.parametrize(
    "dtype", [np.int32, np.float32, np.float16, np.uint8, np.int64], ids=lambda d: np.dtype(d).name
)
def test_simd_reductions(rng, interpret, dtype):
    x = rng.integers(1, 4, LANES).astype(dtype)
    names = {"sum": np.sum, "max": np.max, "min": np.min}
    if np.dtype(dtype).kind != "f":
        names |= {
            "and": np.bitwise_and.reduce,
            "or": np.bitwise_or.reduce,
            "xor": np.bitwise_xor.reduce,
        }
    lines = [f"out[{n} * {LANES} + i] = simd_{name}(x[i]);" for n, name in enumerate(names)]
    lines += [f"out[{len(names) + n} * {LANES} + i] = quad_{name}(x[i]);" for n, name in enumerate(names)]
    (out,) = metal_kernel("reduce", ["x"], ["out"], "uint i = thread_position_in_grid.x;" + "\n".join(lines))(
        inputs=[x],
        output_shapes=[(2, len(names), LANES)],
        output_dtypes=[dtype],
        grid=(LANES, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
    for group, width in enumerate((32, 4)):
        for n, (name, exact) in enumerate(names.items()):
            expected = np.concatenate(
                [np.full(len(part), exact(part)) for part in np.split(x, range(width, LANES, width))]
            ).astype(dtype)
            np.testing.assert_array_equal(out[group, n], expected, err_msg=f"{name} of {width}")


def test_simd_products_and_prefixes(interpret):
    x = np.tile(np.array([1, 2, 1, 3, 1, 1, 2, 1], np.int32), 5)
    names = [
        f"{group}_{name}"
        for group in ("simd", "quad")
        for name in (
            "product",
            "prefix_inclusive_sum",
            "prefix_exclusive_sum",
            "prefix_inclusive_product",
            "prefix_exclusive_product",
        )
    ]
    lines = "\n".join(f"out[{n} * {LANES} + i] = {name}(x[i]);" for n, name in enumerate(names))
    (out,) = metal_kernel("prefix", ["x"], ["out"], f"uint i = thread_position_in_grid.x; {lines}")(
        inputs=[x],
        output_shapes=[(len(names), LANES)],
        output_dtypes=[np.int32],
        grid=(LANES, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
    for row, name in zip(out, names, strict=True):
        width = 32 if name.startswith("simd") else 4
        for start in range(0, LANES, width):
            part = x[start : start + width]
            expected = {
                "product": np.full(len(part), np.prod(part)),
                "prefix_inclusive_sum": np.cumsum(part),
                "prefix_exclusive_sum": np.cumsum(part) - part,
                "prefix_inclusive_product": np.cumprod(part),
                "prefix_exclusive_product": np.cumprod(np.concatenate([[1], part[:-1]])),
            }[name.split("_", 1)[1]]
            np.testing.assert_array_equal(row[start : start + width], expected.astype(np.int32), err_msg=name)


def test_simd_moves(interpret):
    x = np.arange(100, 164, dtype=np.int32)
    lane = np.arange(64) % 32
    base = np.arange(64) - lane
    quad, quad_base = np.arange(64) % 4, np.arange(64) // 4 * 4
    cases = {
        "simd_shuffle(v, 5)": base + 5,
        "simd_shuffle(v, 31 - thread_index_in_simdgroup)": base + 31 - lane,
        "simd_shuffle_up(v, 3)": np.where(lane >= 3, base + lane - 3, -1),
        "simd_shuffle_down(v, 3)": np.where(lane < 29, base + lane + 3, -1),
        "simd_shuffle_xor(v, 6)": base + (lane ^ 6),
        "simd_shuffle_rotate_up(v, 3)": base + (lane - 3) % 32,
        "simd_shuffle_rotate_down(v, 3)": base + (lane + 3) % 32,
        "simd_broadcast(v, 9)": base + 9,
        "simd_broadcast_first(v)": base,
        "quad_shuffle(v, 2)": quad_base + 2,
        "quad_shuffle_xor(v, 1)": quad_base + (quad ^ 1),
        "quad_shuffle_rotate_down(v, 1)": quad_base + (quad + 1) % 4,
        "quad_broadcast(v, 3)": quad_base + 3,
        "quad_broadcast_first(v)": quad_base,
    }
    lines = "\n".join(f"out[{n} * 64 + i] = {text};" for n, text in enumerate(cases))
    (out,) = metal_kernel("moves", ["x"], ["out"], f"uint i = thread_position_in_grid.x; int v = x[i]; {lines}")(
        inputs=[x],
        output_shapes=[(len(cases), 64)],
        output_dtypes=[np.int32],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
    for row, (text, source) in zip(out, cases.items(), strict=True):
        known = source >= 0  # what comes from outside the group is not defined
        np.testing.assert_array_equal(row[known], x[source[known]], err_msg=text)


def test_simd_moves_of_any_type(rng, interpret):
    x = rng.standard_normal(96).astype(np.float32)
    source = """
    float3 v = simd_shuffle(float3(x[3 * i], x[3 * i + 1], x[3 * i + 2]), 31 - i);
    float filled = simd_shuffle_and_fill_up(x[i], -x[i], 2);
    float down = simd_shuffle_and_fill_down(x[i], -x[i], 2);
    half h = simd_shuffle_xor(half(x[i]), 1);
    out[6 * i] = v.x; out[6 * i + 1] = v.y; out[6 * i + 2] = v.z;
    out[6 * i + 3] = filled; out[6 * i + 4] = down; out[6 * i + 5] = h;
    """
    (out,) = metal_kernel("any", ["x"], ["out"], "uint i = thread_position_in_grid.x;" + source)(
        inputs=[x],
        output_shapes=[(32, 6)],
        output_dtypes=[np.float32],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_array_equal(out[:, :3], x.reshape(32, 3)[::-1])
    first = x[:32]
    np.testing.assert_array_equal(out[:, 3], np.concatenate([-first[30:], first[:30]]))
    np.testing.assert_array_equal(out[:, 4], np.concatenate([first[2:], -first[:2]]))
    np.testing.assert_array_equal(out[:, 5], first.astype(np.float16)[np.arange(32) ^ 1])


def test_votes(interpret):
    source = """
    bool even = i % 2 == 0;
    out[i] = (ulong)simd_ballot(even) + (simd_all(i < 99) ? 1ul << 40 : 0) + (simd_any(i == 2) ? 1ul << 41 : 0)
           + (simd_is_first() ? 1ul << 42 : 0) + (quad_any(i == 5) ? 1ul << 43 : 0)
           + (quad_all(i < 4) ? 1ul << 44 : 0) + ((ulong)quad_vote::vote_t(quad_ballot(even)) << 50)
           + (((simd_vote::vote_t)simd_active_threads_mask() == 0xff) ? 1ul << 45 : 0);
    """
    out = run(source, {}, np.uint64, 8, interpret)
    for i in range(8):
        expected = 0x55 + (1 << 40) + (1 << 41) + ((i == 0) << 42) + ((i // 4 == 1) << 43) + ((i < 4) << 44)
        assert int(out[i]) == expected + (5 << 50) + (1 << 45), i


def test_simd_sum_in_a_branch(interpret):
    """Threads that are not there do not count, whether they left or went another way."""
    source = """
    out[i] = 0;
    if (i % 3 == 0) {
      out[i] = simd_sum(int(i));
    }
    """
    out = run(source, {}, np.int32, 20, interpret, threadgroup=(32, 1, 1))
    assert out.tolist() == [63 if i % 3 == 0 else 0 for i in range(20)]


def test_threadgroup_memory(rng, interpret):
    """A reduction through SMEM, with barriers, a pointer into SMEM and a counter in SMEM."""
    x = rng.integers(-100, 100, 256, np.int32)
    source = """
    threadgroup int tile[64];
    threadgroup atomic_uint arrived;
    uint t = thread_index_in_threadgroup;
    if (t == 0) atomic_store_explicit(&arrived, 0, memory_order_relaxed);
    tile[t] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&arrived, 1, memory_order_relaxed);
    for (uint half_size = 32; half_size > 0; half_size /= 2) {
      if (t < half_size) fold(tile, t, half_size);
      threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    }
    if (t == 0) out[threadgroup_position_in_grid.x] = tile[0] + 1000 * int(atomic_load_explicit(&arrived, memory_order_relaxed));
    """
    header = "inline void fold(threadgroup int* tile, uint t, uint n) { tile[t] += tile[t + n]; }"
    k = metal_kernel("smem", ["x"], ["out"], "uint i = thread_position_in_grid.x;" + source, header=header)
    (out,) = k(
        inputs=[x],
        output_shapes=[(4,)],
        output_dtypes=[np.int32],
        grid=(256, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_array_equal(out, x.reshape(4, 64).sum(axis=1) + 64000)


@pytest.mark.parametrize(
    "dtype",
    [
        np.int32,
        np.uint32,
        np.float32,
        np.uint64,
        np.int64,
        np.float16,
        ml_dtypes.bfloat16,
        np.int16,
        np.uint8,
    ],
    ids=lambda d: np.dtype(d).name,
)
def test_atomics(interpret, dtype):
    integral = np.dtype(dtype).kind in "iu"
    source = """
    atomic_fetch_add_explicit(&out[0], x[i], memory_order_relaxed);
    atomic_fetch_sub_explicit(&out[1], x[i], memory_order_relaxed);
    atomic_fetch_max_explicit(&out[2], x[i], memory_order_relaxed);
    atomic_fetch_min_explicit(&out[3], x[i], memory_order_relaxed);
    T seen = atomic_load_explicit(&out[4], memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&out[4], &seen, T(seen + 2), memory_order_relaxed, memory_order_relaxed)) {}
    if (i == 0) atomic_store_explicit(&out[5], T(9), memory_order_relaxed);
    if (i == 1) atomic_exchange_explicit(&out[6], T(7), memory_order_relaxed);
    """
    bits = """
    atomic_fetch_or_explicit(&out[7], x[i], memory_order_relaxed);
    atomic_fetch_and_explicit(&out[8], x[i], memory_order_relaxed);
    atomic_fetch_xor_explicit(&out[9], x[i], memory_order_relaxed);
    """
    x = np.array([3, 1, 5, 3, 1, 1, 7, 3], dtype)
    k = metal_kernel(
        "atomics",
        ["x"],
        ["out"],
        "uint i = thread_position_in_grid.x;" + source + (bits if integral else ""),
        atomic_outputs=True,
    )
    (out,) = k(
        inputs=[x],
        output_shapes=[(10,)],
        output_dtypes=[dtype],
        grid=(8, 1, 1),
        threadgroup=(8, 1, 1),
        template=[("T", dtype)],
        init_value=32,
        interpret=interpret,
    )
    expected = [56, 8, 32, 1, 48, 9, 7] + ([39, 0, 32] if integral else [32, 32, 32])
    assert [int(v) for v in out] == expected
