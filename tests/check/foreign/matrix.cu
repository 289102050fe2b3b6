// Tensor cores by wmma and by mma, ldmatrix, cp.async and wgmma as their headers and inline PTX make them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>
#define K extern "C" __global__ void
#define TID (blockIdx.x * blockDim.x + threadIdx.x)
using namespace nvcuda;
template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

template <class T, class F, class C, int M, int N, int D, class LA, class LB>
__device__ void product(const T* a, const T* b, C* c, int m, int n, int k, int lda, int ldb) {
    int row = blockIdx.x * M, column = blockIdx.y * N;
    wmma::fragment<wmma::matrix_a, M, N, D, F, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, D, F, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, D, C> fc;
    wmma::fill_fragment(fc, C(0));
    constexpr bool ra = Same<LA, wmma::row_major>::value, rb = Same<LB, wmma::row_major>::value;
    for (int i = 0; i < k; i += D) {
        wmma::load_matrix_sync(fa, ra ? a + row * lda + i : a + i * lda + row, lda);
        wmma::load_matrix_sync(fb, rb ? b + i * ldb + column : b + column * ldb + i, ldb);
        if constexpr (Same<F, wmma::precision::tf32>::value) {
            for (int e = 0; e < fa.num_elements; e++) fa.x[e] = wmma::__float_to_tf32(fa.x[e]);
            for (int e = 0; e < fb.num_elements; e++) fb.x[e] = wmma::__float_to_tf32(fb.x[e]);
        }
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}
K wmma_f16(const half* a, const half* b, float* c, int m, int n, int k) { product<half, half, float, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, m, n, k, k, k); }
K wmma_f16_rows(const half* a, const half* b, float* c, int m, int n, int k) { product<half, half, float, 32, 8, 16, wmma::row_major, wmma::row_major>(a, b, c, m, n, k, k, n); }
K wmma_f16_sums(const half* a, const half* b, half* c, int m, int n, int k) { product<half, half, half, 8, 32, 16, wmma::col_major, wmma::row_major>(a, b, c, m, n, k, m, n); }
K wmma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int m, int n, int k) { product<__nv_bfloat16, __nv_bfloat16, float, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, m, n, k, k, k); }
K wmma_tf32(const float* a, const float* b, float* c, int m, int n, int k) { product<float, wmma::precision::tf32, float, 16, 16, 8, wmma::row_major, wmma::col_major>(a, b, c, m, n, k, k, k); }
K wmma_f64(const double* a, const double* b, double* c, int m, int n, int k) { product<double, double, double, 8, 8, 4, wmma::row_major, wmma::col_major>(a, b, c, m, n, k, k, k); }
K wmma_s8(const signed char* a, const signed char* b, int* c, int m, int n, int k) { product<signed char, signed char, int, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, m, n, k, k, k); }
K wmma_u8(const unsigned char* a, const unsigned char* b, int* c, int m, int n, int k) { product<unsigned char, unsigned char, int, 16, 16, 16, wmma::row_major, wmma::col_major>(a, b, c, m, n, k, k, k); }
K wmma_s4(const int* a, const int* b, int* c, int k) {
    wmma::fragment<wmma::matrix_a, 8, 8, 32, wmma::experimental::precision::s4, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 8, 32, wmma::experimental::precision::s4, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 8, 8, 32, int> fc;
    wmma::fill_fragment(fc, 0);
    for (int i = 0; i < k; i += 32) {
        wmma::load_matrix_sync(fa, a + i / 8, k);
        wmma::load_matrix_sync(fb, b + i / 8, k);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c, fc, 8, wmma::mem_row_major);
}
// A block of four warps, stages by cp.async, fragments by ldmatrix, m16n8k16.
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void copy16(void* to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from)); }
K mma_stages(const half* a, const half* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) half as[3][32][40], bs[3][32][72];
    int row = blockIdx.x * 32, column = blockIdx.y * 64, lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp % 2 * 16, wn = warp / 2 * 32;
    float acc[4][4] = {};
    auto load = [&](int stage, int i) {
        copy16(&as[stage][threadIdx.x / 4][threadIdx.x % 4 * 8], a + (row + threadIdx.x / 4) * k + i + threadIdx.x % 4 * 8);
        for (int j = 0; j < 2; j++) { int t = threadIdx.x + j * 128; copy16(&bs[stage][t / 8][t % 8 * 8], b + (i + t / 8) * n + column + t % 8 * 8); }
    };
    for (int s = 0; s < 2; s++) { load(s, s * 32); asm volatile("cp.async.commit_group;"); }
    for (int i = 0; i < k / 32; i++) {
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        if (i + 2 < k / 32) load((i + 2) % 3, (i + 2) * 32);
        asm volatile("cp.async.commit_group;");
        for (int kk = 0; kk < 32; kk += 16) {
            unsigned fa[4], fb[8];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(at(&as[i % 3][wm + lane % 16][kk + lane / 16 * 8])));
            for (int j = 0; j < 2; j++)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(fb[4 * j]), "=r"(fb[4 * j + 1]), "=r"(fb[4 * j + 2]), "=r"(fb[4 * j + 3]) : "r"(at(&bs[i % 3][kk + lane % 16][wn + j * 16 + lane / 16 * 8])));
            for (int j = 0; j < 4; j++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[2 * j]), "r"(fb[2 * j + 1]));
        }
    }
    for (int j = 0; j < 4; j++) for (int e = 0; e < 4; e++) c[(row + wm + lane / 4 + e / 2 * 8) * n + column + wn + j * 8 + lane % 4 * 2 + e % 2] = acc[j][e];
}
K mma_s8(const int* a, const int* b, int* c) {
    int l = threadIdx.x, fa[4], fb[2], d[4] = {};
    for (int i = 0; i < 4; i++) fa[i] = a[(l / 4 + i % 2 * 8) * 8 + l % 4 + i / 2 * 4];
    for (int i = 0; i < 2; i++) fb[i] = b[l / 4 * 8 + l % 4 + i * 4];
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    for (int e = 0; e < 4; e++) c[(l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2] = d[e];
}
K mma_tf32(const float* a, const float* b, float* c) {
    int l = threadIdx.x; unsigned fa[4], fb[2]; float d[4] = {};
    for (int i = 0; i < 4; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(fa[i]) : "f"(a[(l / 4 + i % 2 * 8) * 8 + l % 4 + i / 2 * 4]));
    for (int i = 0; i < 2; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(fb[i]) : "f"(b[l / 4 * 8 + l % 4 + i * 4]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    for (int e = 0; e < 4; e++) c[(l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2] = d[e];
}
K pipeline_primitives(const float4* in, float4* out, int n) {
    __shared__ float4 s[2][128];
    __pipeline_memcpy_async(&s[0][threadIdx.x], in + threadIdx.x, 16);
    __pipeline_commit();
    for (int i = 0; i < n; i++) {
        if (i + 1 < n) __pipeline_memcpy_async(&s[(i + 1) & 1][threadIdx.x], in + (i + 1) * 128 + threadIdx.x, 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        float4 v = s[i & 1][127 - threadIdx.x];
        out[i * 128 + threadIdx.x] = v;
        __syncthreads();
    }
}
K copy_zero_fill(const float* in, float* out, int n) {
    __shared__ float4 s[32];
    int valid = max(0, min(16, (n - (int)threadIdx.x * 4) * 4));
    __pipeline_memcpy_async(&s[threadIdx.x], in + (valid ? threadIdx.x * 4 : 0), 16, 16 - valid);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    ((float4*)out)[threadIdx.x] = s[31 - threadIdx.x];
}
K stage_epilogue(const half* a, const half* b, half* c, const half* bias) {
    __shared__ __align__(32) half s[4][16 * 16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> fc;
    int w = threadIdx.x / 32, l = threadIdx.x % 32;
    wmma::load_matrix_sync(fa, a, 16), wmma::load_matrix_sync(fb, b + w * 16, 64);
    wmma::fill_fragment(fc, __float2half(0.f)), wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(s[w], fc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = l; i < 256; i += 32) c[i / 16 * 64 + w * 16 + i % 16] = __hmax(__hadd(s[w][i], bias[w * 16 + i % 16]), __float2half(0.f));
}
K conversions(const float* in, float* out) {
    float v = in[TID];
    __nv_fp8_e4m3 a(v); __nv_fp8_e5m2 b(v); __half h = __float2half_rz(v); __nv_bfloat162 p = __floats2bfloat162_rn(v, -v);
    out[TID * 4] = float(a), out[TID * 4 + 1] = float(b), out[TID * 4 + 2] = __half2float(h), out[TID * 4 + 3] = __high2float(p);
}
K attention(const half* q, const half* k, const half* v, float* o, int n, float scale) {
    __shared__ __align__(32) float s[16][64 + 4]; __shared__ __align__(32) half p[16][64 + 8]; __shared__ __align__(32) float acc[16][36]; __shared__ float m[16], l[16];
    int t = threadIdx.x, row = blockIdx.x * 16;
    if (t < 16) m[t] = -1e30f, l[t] = 0;
    for (int i = t; i < 16 * 32; i += 128) acc[i / 32][i % 32] = 0;
    for (int j = 0; j < n; j += 64) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
        int w = t / 32;
        {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
            wmma::fill_fragment(f, 0.f);
            for (int d = 0; d < 32; d += 16) { wmma::load_matrix_sync(fa, q + row * 32 + d, 32); wmma::load_matrix_sync(fb, k + (j + w * 16) * 32 + d, 32); wmma::mma_sync(f, fa, fb, f); }
            wmma::store_matrix_sync(&s[0][w * 16], f, 68, wmma::mem_row_major);
        }
        __syncthreads();
        if (t < 16) {
            float top = m[t];
            for (int i = 0; i < 64; i++) top = fmaxf(top, s[t][i] * scale);
            float shrink = __expf(m[t] - top), sum = l[t] * shrink;
            for (int i = 0; i < 64; i++) { float e = __expf(s[t][i] * scale - top); sum += e; p[t][i] = __float2half(e); }
            for (int i = 0; i < 32; i++) acc[t][i] *= shrink;
            m[t] = top, l[t] = sum;
        }
        __syncthreads();
        if (w < 2) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
            wmma::load_matrix_sync(f, &acc[0][w * 16], 36, wmma::mem_row_major);
            for (int i = 0; i < 64; i += 16) { wmma::load_matrix_sync(fa, &p[0][i], 72); wmma::load_matrix_sync(fb, v + (j + i) * 32 + w * 16, 32); wmma::mma_sync(f, fa, fb, f); }
            wmma::store_matrix_sync(&acc[0][w * 16], f, 36, wmma::mem_row_major);
        }
        __syncthreads();
    }
    for (int i = t; i < 16 * 32; i += 128) o[(row + i / 32) * 32 + i % 32] = acc[i / 32][i % 32] / l[i / 32];
}
