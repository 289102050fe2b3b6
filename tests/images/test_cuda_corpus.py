"""What CUDA C++ compiles to, family by family: each kernel with its exact result, on both devices.

For the interpreter this is a corpus of the compiler's own PTX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.custom.source import cuda_kernel

pytestmark = pytest.mark.usefixtures("compiler")

RNG = np.random.default_rng(0)
X = RNG.standard_normal(64).astype(np.float32)
D = X.astype(np.float64)
N = RNG.integers(-(2**31), 2**31 - 1, 64).astype(np.int32)
W = N.astype(np.int64)
U = N.view(np.uint32).astype(np.int64)
INDEX = np.arange(64)


@dataclass
class Case:
    """A body with `i`, the thread's number; `want` is the result in float64 or int64."""

    body: str
    inputs: list[Any]
    want: Any
    dtype: Any = np.int32
    header: str = ""
    rtol: float = 0.0
    threads: tuple[int, int] = (64, 64)


def each(f: Callable[..., Any], *arrays: Any) -> np.ndarray:
    return np.array([f(*values) for values in zip(*arrays, strict=True)])


def halving(x: int, depth: int) -> int:
    if depth == 0:
        return x
    return halving(int(x / 2), depth - 1) + halving(int(x / 3), depth - 1)


def collatz(v: int) -> int:
    count = 0
    while v != 1 and count < 50:
        v = 3 * v + 1 if v & 1 else v // 2
        count += 1
    return count


def table_sum(i: int, n: int) -> float:
    t = [float(D[(i + j) % 64]) for j in range(16)]
    k = n & 15
    t[k] += 1
    return sum(t[(j * k) & 15] * j for j in range(16))


SWITCH = [5, lambda n: n * 3, 1, lambda n: n ^ 77, lambda n: -n, 9, lambda n: int(n / 3), 0]
CG = "#include <cooperative_groups/"

CASES = {
    "tile_reduce": Case(
        "auto w = cg::tiled_partition<32>(cg::this_thread_block()); out[i] = cg::reduce(w, a0[i], cg::plus<float>());",
        [X], np.repeat(D.reshape(2, 32).sum(1), 32), np.float32, CG + "reduce.h>", 1e-5,
    ),
    "tile_max": Case(
        "auto w = cg::tiled_partition<16>(cg::this_thread_block()); out[i] = cg::reduce(w, a0[i], cg::greater<int>());",
        [N], np.repeat(W.reshape(4, 16).max(1), 16), header=CG + "reduce.h>",
    ),
    "tile_scan": Case(
        "auto w = cg::tiled_partition<32>(cg::this_thread_block()); out[i] = cg::inclusive_scan(w, a0[i] >> 8);",
        [N], (W >> 8).reshape(2, 32).cumsum(1).ravel(), header=CG + "scan.h>",
    ),
    "coalesced": Case(
        "if (i % 3 == 0) { auto g = cg::coalesced_threads(); out[i] = g.size() * 100 + g.thread_rank(); } else out[i] = -1;",
        [], np.where(INDEX % 3 == 0, (np.where(INDEX < 32, 11, 11) * 100) + np.where(INDEX < 32, INDEX // 3, (INDEX - 33) // 3), -1),
    ),
    "double_functions": Case(
        "double v = a0[i]; out[i] = sin(v) * exp(v) + pow(fabs(v), 1.5) + log(fabs(v)) + cbrt(v) + erf(v) + atan2(v, 2.0) + fmod(v, 0.3) + tgamma(fabs(v) + 1);",
        [D],
        np.sin(D) * np.exp(D) + np.abs(D) ** 1.5 + np.log(np.abs(D)) + np.cbrt(D) + each(math.erf, D) + np.arctan2(D, 2) + np.fmod(D, 0.3) + each(lambda v: math.gamma(abs(v) + 1), D),
        np.float64, rtol=1e-12,
    ),
    "float_functions": Case(
        "float v = a0[i]; out[i] = powf(fabsf(v), 1.5f) + erfcf(v) + sinhf(v) + log1pf(fabsf(v)) + expm1f(v) + cbrtf(v) + hypotf(v, 2);",
        [X],
        np.abs(D) ** 1.5 + each(math.erfc, D) + np.sinh(D) + np.log1p(np.abs(D)) + np.expm1(D) + np.cbrt(D) + np.hypot(D, 2),
        np.float32, rtol=4e-6,
    ),
    "large_angles": Case("out[i] = sinf(a0[i] * 1e6f);", [X], np.sin((X * np.float32(1e6)).astype(np.float64)), np.float32, rtol=2e-6),
    "division": Case(
        "long long v = a0[i]; out[i] = v * 1000003ll / (v % 77 + 100) + (unsigned)v % 13u;",
        [N], each(lambda v, u: math.trunc(v * 1000003 / (math.fmod(v, 77) + 100)) + u % 13, W, U), np.int64, rtol=1e-15,
    ),
    "bits": Case(
        "int v = a0[i]; out[i] = __clz(v) + 100 * __popc(v) + 10000 * __ffs(v) + (long long)(__brev(v) >> 20) * 1000000;",
        [N],
        each(lambda u: (32 - int(u).bit_length()) + 100 * int(u).bit_count() + 10000 * ((int(u) & -int(u)).bit_length()) + (int(f"{int(u):032b}"[::-1], 2) >> 20) * 1000000, U),
        np.int64,
    ),
    "wide_products": Case("out[i] = __mulhi(a0[i], 1234567);", [N], W * 1234567 >> 32),
    "funnel": Case("out[i] = __funnelshift_l(a0[i], a0[i], 7) >> 4;", [N], (((U << 7) | (U >> 25)) & 0xFFFFFFFF) >> 4, np.int64),
    "bytes": Case("out[i] = __byte_perm(a0[i], 3, 0x0123) & 0xffffff;", [N], each(lambda u: int.from_bytes(int(u).to_bytes(4, "big"), "little") & 0xFFFFFF, U)),
    "dot_of_bytes": Case(
        "out[i] = __dp4a(a0[i], a0[i], 1);", [N], (N.view(np.int8).reshape(-1, 4).astype(np.int64) ** 2).sum(1) + 1
    ),
    "int128": Case(
        "unsigned __int128 v = (unsigned __int128)(unsigned)a0[i] * 0x123456789abcdefull; v *= 977; out[i] = (long long)(v >> 64);",
        [N], each(lambda u: int(u) * 0x123456789ABCDEF * 977 >> 64, U), np.int64,
    ),
    "half2": Case(
        "__half2 h = __floats2half2_rn(a0[i], 1); h = __hfma2(h, h, h); out[i] = __low2float(h) + 0 * __high2float(h2exp(h));",
        [X.astype(np.float16).astype(np.float32)], each(lambda v: float(v) ** 2 + float(v), X.astype(np.float16)), np.float32, rtol=2e-3,
    ),
    "bfloat162": Case(
        "__nv_bfloat162 h = __floats2bfloat162_rn(a0[i], 1); h = __hmul2(h, h); out[i] = __low2float(__hmax2(h, h));",
        [X], (X.astype(ml_dtypes.bfloat16).astype(np.float64) ** 2).astype(ml_dtypes.bfloat16).astype(np.float64), np.float32,
    ),
    "local_array": Case(
        "float t[16]; for (int j = 0; j < 16; j++) t[j] = a0[(i + j) % 64]; int k = a1[i] & 15; t[k] += 1; float s = 0; for (int j = 0; j < 16; j++) s += t[(j * k) & 15] * j; out[i] = s;",
        [X, N], each(table_sum, INDEX, N), np.float32, rtol=1e-4,
    ),
    "switch": Case(
        "switch (a0[i] & 7) { case 0: out[i] = 5; break; case 1: out[i] = a0[i] * 3; break; case 2: out[i] = 1; break; case 3: out[i] = a0[i] ^ 77; break; case 4: out[i] = -a0[i]; break; case 5: out[i] = 9; break; case 6: out[i] = a0[i] / 3; break; default: out[i] = 0; }",
        [N >> 4], each(lambda n: (lambda c: c(int(n)) if callable(c) else c)(SWITCH[int(n) & 7]), N >> 4),
    ),
    "recursion": Case(
        "out[i] = f(a0[i] >> 20, 3);", [N], each(lambda n: halving(int(n) >> 20, 3), N),
        header="__noinline__ __device__ int f(int x, int d) { if (d == 0) return x; return f(x / 2, d - 1) + f(x / 3, d - 1); }",
    ),
    "function_pointers": Case(
        "F t[2] = {g, h}; out[i] = t[a0[i] & 1](i);", [N], np.where(N & 1, INDEX * 2, INDEX + 1),
        header="__noinline__ int g(int x) { return x + 1; } __noinline__ int h(int x) { return x * 2; } typedef int (*F)(int);",
    ),
    "loops": Case(
        "int s = 0; for (int j = 0; j < a0[i] % 7 + 7; ++j) s += a0[(i * j) & 63] >> 8; out[i] = s;",
        [N], each(lambda i, n: sum(int(N[(i * j) & 63]) >> 8 for j in range(int(math.fmod(n, 7)) + 7)), INDEX, W),
    ),
    "breaks": Case(
        "int v = a0[i], c = 0; while (v != 1 && c < 50) { v = v & 1 ? 3 * v + 1 : v / 2; ++c; if (v <= 0) break; } out[i] = c;",
        [np.abs(N) % 1000 + 1], each(lambda v: collatz(int(v)), np.abs(N) % 1000 + 1),
    ),
    "histogram": Case(
        "__shared__ int h[16]; if (i < 16) h[i] = 0; __syncthreads(); atomicAdd(&h[a0[i] & 15], 1); __syncthreads(); out[i] = h[i & 15];",
        [N], np.tile(np.bincount(N & 15, minlength=16), 4),
    ),
    "votes": Case(
        "unsigned m = __ballot_sync(~0u, a0[i] > 0); out[i] = __popc(m) + 100 * __reduce_add_sync(~0u, a0[i] & 7) + 1000000 * __popc(__match_any_sync(~0u, a0[i] & 3));",
        [N],
        np.concatenate([(p > 0).sum() + 100 * (p & 7).sum() + 1000000 * np.bincount(p & 3, minlength=4)[p & 3] for p in np.split(N, 2)]),
    ),
    "cuda_atomic_ref": Case(
        "__shared__ int s; if (i == 0) s = 0; __syncthreads(); cuda::atomic_ref<int, cuda::thread_scope_block> r(s); r.fetch_add(i); __syncthreads(); out[i] = r.load();",
        [], np.full(64, 2016), header="#include <cuda/atomic>",
    ),
    "cuda_barrier": Case(
        "__shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ float s[64]; if (threadIdx.x == 0) init(&b, 64); __syncthreads(); s[i] = a0[i]; b.arrive_and_wait(); out[i] = s[63 - i];",
        [X], D[::-1], np.float32, "#include <cuda/barrier>",
    ),
    "async_copy": Case(
        "__shared__ float s[64]; __pipeline_memcpy_async(&s[i], &a0[i], 4); __pipeline_commit(); __pipeline_wait_prior(0); __syncthreads(); out[i] = s[63 - i];",
        [X], D[::-1], np.float32, "#include <cuda_pipeline.h>",
    ),
    "block_copy": Case(
        "__shared__ float s[64]; auto b = cg::this_thread_block(); cg::memcpy_async(b, s, a0, 256); cg::wait(b); out[i] = s[63 - i];",
        [X], D[::-1], np.float32, CG + "memcpy_async.h>",
    ),
    "fp8": Case(
        "__nv_fp8_e4m3 v(a0[i]); __nv_fp8x2_e5m2 w(make_float2(a0[i], 1)); out[i] = float(v) + float2(w).x;",
        [X], X.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) + X.astype(ml_dtypes.float8_e5m2).astype(np.float64), np.float32,
        "#include <cuda_fp8.h>", 1e-6,
    ),
    "constant_memory": Case(
        "out[i] = T[a0[i] & 7];", [N], (N & 7) + 1.5, np.float32, "__constant__ float T[8] = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5};"
    ),
    "vector_loads": Case(
        "float4 v = reinterpret_cast<const float4*>(a0)[i % 16]; int4 w = __ldg(reinterpret_cast<const int4*>(a1) + i % 16); out[i] = v.x + v.w + w.y % 100 + __ldcs(a0 + i);",
        [X, N], D.reshape(16, 4)[INDEX % 16, 0] + D.reshape(16, 4)[INDEX % 16, 3] + np.fmod(W.reshape(16, 4)[INDEX % 16, 1], 100) + D, np.float32, rtol=1e-5,
    ),
    "std_library": Case(
        "cuda::std::array<float, 4> t{1, 2, 3, 4}; auto p = cuda::std::make_tuple(a0[i], t[a1[i] & 3]); cuda::std::complex<float> z(cuda::std::get<0>(p), 1); out[i] = cuda::std::get<1>(p) + cuda::std::abs(z) + (z * z).imag();",
        [X, N], (N & 3) + 1 + np.hypot(D, 1) + 2 * D, np.float32, rtol=1e-5,
    ),
    "roundings": Case(
        "double v = a0[i]; out[i] = __double2int_rd(v * 1e5) + 3 * (long long)__double2int_ru(v * 1e5) + 7 * __double2int_rn(v * 1e5) + 11 * __double2int_rz(v * 1e5);",
        [D], np.floor(D * 1e5) + 3 * np.ceil(D * 1e5) + 7 * np.rint(D * 1e5) + 11 * np.trunc(D * 1e5), np.int64,
    ),
    "half_functions": Case(
        "__half v = __hadd(__habs(a0[i]), __half(1)); out[i] = float(hlog(v)) + float(hsqrt(v)) + float(hrcp(v));",
        [X.astype(np.float16)],
        each(lambda v: math.log(v) + math.sqrt(v) + 1 / v, (np.abs(X.astype(np.float16)) + np.float16(1)).astype(np.float64)), np.float32, rtol=3e-3,
    ),
    "time": Case("long long t = clock64(); __nanosleep(10); out[i] = clock64() >= t;", [], np.ones(64)),
    "grid": Case(
        "auto g = cg::this_grid(); out[i] = g.num_threads() + 1000 * g.block_rank() + 10000 * g.thread_rank();",
        [], 64 + 1000 * (INDEX // 16) + 10000 * INDEX, threads=(64, 16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str, interpret: bool):
    case = CASES[name]
    kernel = cuda_kernel(
        name,
        [f"a{n}" for n in range(len(case.inputs))],
        ["out"],
        "int i = blockIdx.x * blockDim.x + threadIdx.x;\n" + case.body,
        header=case.header,
    )
    grid, block = case.threads
    (out,) = kernel(
        inputs=case.inputs,
        output_shapes=[(64,)],
        output_dtypes=[case.dtype],
        grid=(grid, 1, 1),
        threadgroup=(block, 1, 1),
        interpret=interpret,
    )
    if np.dtype(case.dtype).kind == "i" and not case.rtol:
        want = np.asarray(case.want).astype(np.int64).astype(case.dtype)
        np.testing.assert_array_equal(out, want)
    else:
        np.testing.assert_allclose(out.astype(np.float64), case.want, rtol=case.rtol, atol=case.rtol)


def test_printf(capsys: pytest.CaptureFixture[str]):
    kernel = cuda_kernel(
        "prints", ["x"], ["out"], 'printf("%d: %.2f %s\\n", (int)threadIdx.x, x[0], "text"); out[0] = 1;'
    )
    kernel(
        inputs=[2.5],
        output_shapes=[()],
        output_dtypes=[np.float32],
        grid=(2, 1, 1),
        threadgroup=(2, 1, 1),
        interpret=True,
    )
    assert capsys.readouterr().out == "0: 2.50 text\n1: 2.50 text\n"
