"""Whole algorithms in CUDA C++, with CUB, pipelines and tensor cores, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.custom.source import cuda_kernel

from .conftest import one_block

pytestmark = pytest.mark.usefixtures("compiler")

RNG = np.random.default_rng(4)
X = RNG.standard_normal(256).astype(np.float32)
N = RNG.integers(0, 1000, 256).astype(np.int32)
ONE_BLOCK = ((256, 1, 1), (256, 1, 1))


def run(
    body: str,
    inputs: list[Any],
    shape: tuple[int, ...],
    dtype: Any,
    interpret: bool,
    dims: tuple[tuple[int, int, int], tuple[int, int, int]] = ONE_BLOCK,
    header: str = "",
) -> np.ndarray[Any, Any]:
    kernel = cuda_kernel("algorithm", [f"a{n}" for n in range(len(inputs))], ["out"], body, header=header)
    (out,) = kernel(
        inputs=inputs,
        output_shapes=[shape],
        output_dtypes=[dtype],
        grid=dims[0],
        threadgroup=dims[1],
        interpret=interpret,
    )
    return out


def test_block_reduce(interpret):
    body = """
    using Reduce = cub::BlockReduce<float, 256>;
    __shared__ typename Reduce::TempStorage storage;
    float sum = Reduce(storage).Sum(a0[threadIdx.x]);
    if (threadIdx.x == 0) out[0] = sum;
    """
    out = run(body, [X], (1,), np.float32, interpret, header="#include <cub/block/block_reduce.cuh>")
    np.testing.assert_allclose(out[0], X.astype(np.float64).sum(), rtol=1e-4, atol=1e-4)


def test_block_scan(interpret):
    body = """
    using Scan = cub::BlockScan<int, 256>;
    __shared__ typename Scan::TempStorage storage;
    int sum;
    Scan(storage).InclusiveSum(a0[threadIdx.x], sum);
    out[threadIdx.x] = sum;
    """
    out = run(body, [N], (256,), np.int32, interpret, header="#include <cub/block/block_scan.cuh>")
    np.testing.assert_array_equal(out, N.cumsum())


def test_radix_sort(interpret):
    body = """
    using Sort = cub::BlockRadixSort<int, 256, 1>;
    __shared__ typename Sort::TempStorage storage;
    int key[1] = {a0[threadIdx.x]};
    Sort(storage).Sort(key);
    out[threadIdx.x] = key[0];
    """
    out = run(body, [N], (256,), np.int32, interpret, header="#include <cub/block/block_radix_sort.cuh>")
    np.testing.assert_array_equal(out, np.sort(N))


def test_bitonic_sort(interpret):
    body = """
    __shared__ int s[256];
    int i = threadIdx.x;
    s[i] = a0[i];
    __syncthreads();
    for (int k = 2; k <= 256; k *= 2) {
      for (int j = k / 2; j > 0; j /= 2) {
        int partner = i ^ j;
        if (partner > i && (s[i] > s[partner]) == ((i & k) == 0)) {
          int t = s[i];
          s[i] = s[partner];
          s[partner] = t;
        }
        __syncthreads();
      }
    }
    out[i] = s[i];
    """
    np.testing.assert_array_equal(run(body, [N], (256,), np.int32, interpret), np.sort(N))


def test_tiled_matmul(interpret):
    a, b = (RNG.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    body = """
    __shared__ float sa[16][16], sb[16][17];
    int tx = threadIdx.x, ty = threadIdx.y, r = blockIdx.y * 16 + ty, c = blockIdx.x * 16 + tx;
    float sum = 0;
    for (int t = 0; t < 2; t++) {
      sa[ty][tx] = a0[r * 32 + t * 16 + tx];
      sb[ty][tx] = a1[(t * 16 + ty) * 32 + c];
      __syncthreads();
      for (int k = 0; k < 16; k++) sum += sa[ty][k] * sb[k][tx];
      __syncthreads();
    }
    out[r * 32 + c] = sum;
    """
    out = run(body, [a, b], (32, 32), np.float32, interpret, ((32, 32, 1), (16, 16, 1)))
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


def _has_tensor_core_headers() -> bool:
    """mma.h needs headers of the compiler itself (crt/), which NVRTC's packages alone don't bring."""
    return any((Path(folder) / "crt" / "mma.h").exists() for folder in nvrtc.toolchain().include_dirs)


def test_wmma(interpret):
    if not _has_tensor_core_headers():
        pytest.skip("crt/mma.h is not beside NVRTC's headers")
    a, b = (RNG.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    body = """
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.f);
    wmma::load_matrix_sync(a, a0, 16);
    wmma::load_matrix_sync(b, a1, 16);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
    """
    dims = ((32, 1, 1), (32, 1, 1))
    out = run(body, [a, b], (16, 16), np.float32, interpret, dims, "#include <mma.h>")
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-3, atol=1e-4)


def test_inline_assembly(interpret):
    """mma.sync and ldmatrix, written as PTX in the body."""
    a, b = RNG.standard_normal((16, 16)).astype(np.float16), RNG.standard_normal((8, 16)).astype(np.float16)
    body = """
    __shared__ __align__(16) half tile[256];
    int i = threadIdx.x, g = i >> 2, t = i & 3;
    for (int k = i; k < 256; k += 32) tile[k] = a0[k];
    __syncwarp();
    unsigned a[4], b[2];
    unsigned row = (unsigned)__cvta_generic_to_shared(tile + (i & 15) * 16 + (i >> 4) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(row));
    b[0] = reinterpret_cast<const unsigned*>(a1)[g * 8 + t];
    b[1] = reinterpret_cast<const unsigned*>(a1)[g * 8 + t + 4];
    float c[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int k = 0; k < 4; k++) out[(g + k / 2 * 8) * 8 + t * 2 + k % 2] = c[k];
    """
    out = run(body, [a, b], (16, 8), np.float32, interpret, ((32, 1, 1), (32, 1, 1)))
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-3, atol=1e-4)


def test_pipeline(interpret):
    body = """
    __shared__ float s[2][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    for (int k = 0; k < 2; k++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, s[k], a0 + k * 128, 512, pipe);
      pipe.producer_commit();
    }
    for (int k = 0; k < 2; k++) {
      pipe.consumer_wait();
      block.sync();
      out[k * 128 + threadIdx.x] = s[k][127 - threadIdx.x];
      pipe.consumer_release();
    }
    """
    dims = ((128, 1, 1), (128, 1, 1))
    out = run(body, [X], (256,), np.float32, interpret, dims, "#include <cuda/pipeline>")
    np.testing.assert_array_equal(out, X.reshape(2, 128)[:, ::-1].ravel())


def test_spin_lock(interpret):
    body = """
    __shared__ int lock, total;
    if (threadIdx.x == 0) lock = 0, total = 0;
    __syncthreads();
    for (bool done = false; !done;) {
      if (atomicCAS(&lock, 0, 1) == 0) {
        atomicAdd(&total, a0[threadIdx.x]);
        __threadfence_block();
        atomicExch(&lock, 0);
        done = true;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total;
    """
    out = run(body, [N[:64]], (1,), np.int32, interpret, ((64, 1, 1), (64, 1, 1)))
    assert out[0] == N[:64].sum()


def test_virtual_functions_and_named_barriers(interpret):
    header = """
    struct Base { __device__ virtual int apply(int x) { return x; } };
    struct Scaled : Base { int k; __device__ int apply(int x) override { return k * x; } };
    """
    body = """
    __shared__ int s;
    if (threadIdx.x < 128) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      if (threadIdx.x == 0) s = 3;
      asm volatile("bar.sync 1, 128;" ::: "memory");
    }
    __syncthreads();
    Scaled object;
    object.k = a0[threadIdx.x];
    Base* base = &object;
    out[threadIdx.x] = base->apply(s);
    """
    np.testing.assert_array_equal(run(body, [N], (256,), np.int32, interpret, header=header), N * 3)


def test_division_of_128_bits(rng, interpret):
    """The compiler's own long division reads the borrow of a subtraction by an addition."""
    words = rng.integers(0, 2**64, (64, 3), np.uint64)
    words[::3, 1] >>= np.uint64(40)
    words[::5, 2] >>= np.uint64(30)
    source = """
    auto i = threadIdx.x;
    unsigned __int128 p = (unsigned __int128)x[3 * i + 1] << 64 | x[3 * i];
    unsigned __int128 q = p / x[3 * i + 2];
    out[3 * i] = (uint64_t)q;
    out[3 * i + 1] = (uint64_t)(q >> 64);
    out[3 * i + 2] = (uint64_t)(p % x[3 * i + 2]);
    """
    kernel = cuda_kernel("divide", ["x"], ["out"], source)
    out = one_block(kernel, words, shape=words.shape, dtype=words.dtype, threads=64, interpret=interpret)
    for (low, high, by), row in zip(words.tolist(), out.tolist(), strict=True):
        quotient, rest = divmod(high << 64 | low, by)
        assert row == [quotient % 2**64, quotient >> 64, rest]
