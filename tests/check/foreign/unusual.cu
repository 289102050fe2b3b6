// Kernels of the kinds that CUDA's guides and samples teach with, by features that the other files use less.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/complex>
#include <cuda/std/span>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>
namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" {

__global__ void int128_math(const u64 *a, const u64 *b, u64 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned __int128 p = (unsigned __int128)a[i] * b[i] + (((unsigned __int128)b[i] << 64) | a[i]);
    __int128 s = (__int128)p >> 7;
    out[3 * i] = (u64)s;
    out[3 * i + 1] = (u64)(p >> 64);
    out[3 * i + 2] = (u64)(p / (b[i] | 1));
}

__global__ void bit_tricks(const u32 *x, u32 *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 v = x[i], w = x[(i + 1) % n], r;
        asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(v), "r"(w), "r"(0x0f0f0f0fu));
        u32 f = __funnelshift_l(v, w, i & 31) ^ __funnelshift_r(v, w, i & 31) ^ __byte_perm(v, w, 0x6240);
        u32 e, g;
        asm("bfe.u32 %0, %1, %2, 7;" : "=r"(e) : "r"(v), "r"(i & 31));
        asm("bfi.b32 %0, %1, %2, %3, 9;" : "=r"(g) : "r"(v), "r"(w), "r"(i & 15));
        out[i] = r ^ f ^ e ^ g ^ __brev(v) ^ (__popc(v) << 8) ^ (__clz(v) << 16) ^ (__ffs(w) << 24);
    }
}

__global__ void dot4(const int *a, const int *b, const u32 *c, int *out, int n) {
    int i = threadIdx.x;
    if (i < n) {
        int s = __dp4a(a[i], b[i], 17);
        s = __dp2a_lo(a[i], b[i], s);
        out[i] = s + (int)__vabsdiffu4((u32)a[i], c[i]) + (int)__vadd2((u32)b[i], c[i]) + (int)__vmaxs4(a[i], b[i]);
    }
}

// wavefront: a dynamic program over antidiagonals (edit distance)
__global__ void edit_distance(const char *a, const char *b, int n, int *out) {
    __shared__ int d[3][130];
    int i = threadIdx.x;
    for (int k = 0; k <= 2 * n; k++) {
        int *now = d[k % 3], *one = d[(k + 2) % 3], *two = d[(k + 1) % 3];
        int j = k - i;
        if (i <= n && j >= 0 && j <= n) {
            if (i == 0 || j == 0) now[i] = i + j;
            else now[i] = min(min(one[i] + 1, one[i - 1] + 1), two[i - 1] + (a[i - 1] != b[j - 1]));
            if (i == n && j == n) *out = now[i];
        }
        __syncthreads();
    }
}

__global__ void odd_even_sort(int *x, int n) {
    extern __shared__ int s[];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * n + t];
    __syncthreads();
    for (int k = 0; k < n; k++) {
        int i = 2 * (t % (n / 2)) + (k & 1);
        if (t < n / 2 && i + 1 < n && s[i] > s[i + 1]) { int v = s[i]; s[i] = s[i + 1]; s[i + 1] = v; }
        __syncthreads();
    }
    x[blockIdx.x * n + t] = s[t];
}

// Lamport-free list: push nodes on a stack by compare and swap, then one block counts them
__device__ int head;
__global__ void push_stack(int *next, const int *value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int old = atomicAdd(&head, 0);
    for (;;) {
        next[i] = old;
        __threadfence();
        int seen = atomicCAS(&head, old, i + 1);
        if (seen == old) break;
        old = seen;
    }
}

__global__ void last_block_sum(const float *x, float *partial, u32 *count, float *out, int n) {
    __shared__ float s[256];
    __shared__ bool last;
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    s[threadIdx.x] = v;
    for (int k = blockDim.x / 2; k > 0; k /= 2) { __syncthreads(); if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float t = 0;
        for (int b = 0; b < gridDim.x; b++) t += ((volatile float *)partial)[b];
        *out = t;
    }
}

__global__ void decoupled_lookback(const int *x, int *out, volatile u64 *state, u32 *ticket, int n) {
    __shared__ int tile, before;
    if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
    __syncthreads();
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ int sums[4];
    int i = tile * blockDim.x + threadIdx.x;
    int v = i < n ? x[i] : 0;
    int inside = cg::inclusive_scan(warp, v);
    if (warp.thread_rank() == 31) sums[warp.meta_group_rank()] = inside;
    __syncthreads();
    for (int w = 0; w < warp.meta_group_rank(); w++) inside += sums[w];
    if (threadIdx.x == blockDim.x - 1) {
        cuda::atomic_ref<u64, cuda::thread_scope_device> mine(*(u64 *)&state[tile]);
        mine.store(((tile ? 1ull : 2ull) << 32) | (u32)inside, cuda::memory_order_release);
        int sum = 0;
        for (int k = tile - 1; k >= 0;) {
            cuda::atomic_ref<u64, cuda::thread_scope_device> other(*(u64 *)&state[k]);
            u64 s = other.load(cuda::memory_order_acquire);
            if (s >> 32 == 0) continue;
            sum += (int)(u32)s;
            if (s >> 32 == 2) break;
            k--;
        }
        if (tile) mine.store((2ull << 32) | (u32)(inside + sum), cuda::memory_order_release);
        before = sum;
    }
    __syncthreads();
    if (i < n) out[i] = before + inside;
}

__global__ void ticket_lock(u32 *next, u32 *serving, int *total, int rounds) {
    if (threadIdx.x == 0)
        for (int r = 0; r < rounds; r++) {
            cuda::atomic_ref<u32, cuda::thread_scope_device> n(*next), s(*serving);
            u32 mine = n.fetch_add(1, cuda::memory_order_relaxed);
            while (s.load(cuda::memory_order_acquire) != mine) __nanosleep(20);
            *total += 1 + blockIdx.x;
            s.store(mine + 1, cuda::memory_order_release);
        }
}

// Dekker's flags, sequentially consistent
__global__ void dekker(int *flags, int *counter) {
    if (threadIdx.x) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> mine(flags[blockIdx.x]), other(flags[1 - blockIdx.x]);
    for (int r = 0; r < 3; r++) {
        for (;;) {
            mine.store(1);
            if (other.load() == 0) break;
            mine.store(0);
            for (int k = 0; k < 7 * (int)blockIdx.x + 1; k++) __nanosleep(10);
        }
        *counter += 1;
        mine.store(0);
    }
}

__global__ void semaphore_pool(cuda::counting_semaphore<cuda::thread_scope_device, 2> *s, int *in_use, int *most, u32 *done) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) { new (s) cuda::counting_semaphore<cuda::thread_scope_device, 2>(2); __threadfence(); atomicExch(done + 1, 1); }
    while (atomicAdd(done + 1, 0) == 0) {}
    __threadfence();
    s->acquire();
    int now = atomicAdd(in_use, 1) + 1;
    atomicMax(most, now);
    atomicSub(in_use, 1);
    s->release();
    atomicAdd(done, 1);
}

__global__ void latch_start(const int *x, int *out) {
    using Latch = cuda::latch<cuda::thread_scope_block>;
    __shared__ alignas(16) char raw[sizeof(Latch)];
    __shared__ int s[64];
    Latch &ready = *(Latch *)raw;
    if (threadIdx.x == 0) new (raw) Latch(64);
    __syncthreads();
    if (threadIdx.x < 64) { s[threadIdx.x] = x[threadIdx.x] * 2; ready.count_down(); }
    else { ready.wait(); out[threadIdx.x - 64] = s[threadIdx.x - 64] + s[127 - threadIdx.x]; }
}

__global__ void pipelined_copy(const float *x, float *out, int tiles) {
    constexpr int N = 128;
    __shared__ alignas(16) float s[3][N];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int ahead = 0;
    float sum = 0;
    for (int t = 0; t < tiles; t++) {
        for (; ahead < tiles && ahead < t + 3; ahead++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[ahead % 3], x + ahead * N, cuda::aligned_size_t<16>(N * sizeof(float)), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += s[t % 3][(threadIdx.x * 5 + t) % N];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

// half of the block produces, the other consumes
__global__ void pipelined_roles(const int *x, int *out, int tiles) {
    __shared__ int s[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto role = threadIdx.x < 64 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    if (threadIdx.x < 64) {
        for (int t = 0; t < tiles; t++) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[t & 1][threadIdx.x], &x[t * 64 + threadIdx.x], sizeof(int), pipe);
            pipe.producer_commit();
        }
    } else {
        int sum = 0, i = threadIdx.x - 64;
        for (int t = 0; t < tiles; t++) { pipe.consumer_wait(); sum += s[t & 1][63 - i] * (t + 1); pipe.consumer_release(); }
        out[i] = sum;
    }
}

__global__ void barrier_drop(const int *x, int *out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int s[96];
    if (threadIdx.x == 0) init(&bar, 96);
    __syncthreads();
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x >= 64) { bar.arrive_and_drop(); return; }
    bar.arrive_and_wait();
    int v = s[threadIdx.x + 32];
    bar.arrive_and_wait();
    s[threadIdx.x] = v;
    bar.arrive_and_wait();
    out[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void barrier_parity(const int *x, int *out, int rounds) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int s[128];
    if (threadIdx.x == 0) init(&bar, 128);
    __syncthreads();
    int v = x[threadIdx.x];
    for (int r = 0; r < rounds; r++) {
        s[threadIdx.x] = v;
        (void)bar.arrive();
        bar.wait_parity(0);
        v += s[threadIdx.x ^ (1 << r)];
        (void)bar.arrive();
        bar.wait_parity(1);
    }
    out[threadIdx.x] = v;
}

__global__ void aggregated(const int *x, int *out, int *count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] % 3 == 0) {
        auto g = cg::coalesced_threads();
        int at = 0;
        if (g.thread_rank() == 0) at = atomicAdd(count, g.size());
        at = g.shfl(at, 0) + g.thread_rank();
        out[at] = x[i];
    }
}

__global__ void labeled(const int *x, int *out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto g = cg::labeled_partition(warp, x[threadIdx.x] & 3);
    int s = cg::reduce(g, x[threadIdx.x], cg::plus<int>());
    auto h = cg::binary_partition(warp, x[threadIdx.x] > 50);
    out[threadIdx.x] = s * 64 + (int)h.size() + cg::exclusive_scan(h, 1);
}

__global__ void grid_jacobi(float *a, float *b, int n, int rounds) {
    auto grid = cg::this_grid();
    for (int r = 0; r < rounds; r++) {
        for (int i = grid.thread_rank(); i < n; i += grid.size())
            b[i] = 0.25f * a[(i + n - 1) % n] + 0.5f * a[i] + 0.25f * a[(i + 1) % n];
        grid.sync();
        float *t = a; a = b; b = t;
    }
}

__global__ void named_ring(const int *x, int *out, int rounds) {
    __shared__ int s[2][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
    for (int r = 0; r < rounds; r++) {
        int k = r & 1;
        if (warp == 0) {
            if (r >= 2) asm volatile("bar.sync %0, 64;" ::"r"(3 + k) : "memory");
            s[k][lane] = x[r * 32 + lane];
            asm volatile("bar.arrive %0, 64;" ::"r"(1 + k) : "memory");
        } else {
            asm volatile("bar.sync %0, 64;" ::"r"(1 + k) : "memory");
            sum += s[k][31 - lane];
            if (r + 2 < rounds) asm volatile("bar.arrive %0, 64;" ::"r"(3 + k) : "memory");
        }
    }
    if (warp == 1) out[lane] = sum;
}

__global__ void votes(const int *x, int *out) {
    int v = x[threadIdx.x];
    int all = __syncthreads_and(v >= 0), any = __syncthreads_or(v > 98), n = __syncthreads_count(v & 1);
    u32 same = __match_any_sync(~0u, v & 7);
    int whole;
    u32 everyone = __match_all_sync(~0u, v >= 0, &whole);
    out[threadIdx.x] = all + 2 * any + 4 * n + 1024 * __popc(same) + 65536 * whole + (everyone == ~0u ? 1 << 20 : 0)
        + (__reduce_max_sync(same, v) << 21);
}

__global__ void transpose_lanes(const int *x, int *out) {
    int lane = threadIdx.x, v[4];
    for (int i = 0; i < 4; i++) v[i] = x[i * 32 + lane];
    for (int k = 1; k < 4; k *= 2)
        for (int i = 0; i < 4; i++)
            if (!(i & k)) {
                int mine = lane & k ? v[i] : v[i ^ k];
                int got = __shfl_xor_sync(~0u, mine, k);
                if (lane & k) v[i] = got; else v[i ^ k] = got;
            }
    ((int4 *)out)[lane] = make_int4(v[0], v[1], v[2], v[3]);
}

__global__ void half_math(const __half2 *a, const __half2 *b, __half2 *out, const __nv_bfloat162 *c, float *other) {
    int i = threadIdx.x;
    __half2 r = __hfma2(a[i], b[i], __half2half2(__float2half(0.5f)));
    out[i] = __hmax2(r, __hadd2(a[i], b[i]));
    other[i] = __bfloat162float(__hmul(c[i].x, c[i].y)) + (__hgt(a[i].x, b[i].x) ? 1.f : 0.f);
}

__global__ void fp8_trip(const float *x, unsigned char *out, float *back, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) { __nv_fp8_e4m3 v(x[i]); out[i] = v.__x; __nv_fp8_e5m2 w(x[i]); back[i] = (float)v + (float)w; }
}

__global__ void wmma_chain(const __half *a, const __half *b, float *out) {
    using namespace nvcuda::wmma;
    __shared__ alignas(32) __half middle[16 * 16];
    fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
    fragment<accumulator, 16, 16, 16, __half> h;
    fragment<accumulator, 16, 16, 16, float> f;
    load_matrix_sync(fa, a, 16); load_matrix_sync(fb, b, 16); fill_fragment(h, __float2half(0.f));
    mma_sync(h, fa, fb, h);
    for (int i = 0; i < h.num_elements; i++) h.x[i] = h.x[i] * __float2half(0.5f);
    store_matrix_sync(middle, h, 16, mem_row_major);
    __syncwarp();
    load_matrix_sync(fa, middle, 16); fill_fragment(f, 0.f);
    mma_sync(f, fa, fb, f);
    store_matrix_sync(out, f, 16, mem_col_major);
}

__global__ void mma_inline(const u32 *a, const u32 *b, float *out) {
    __shared__ alignas(16) u32 s[16 * 8];
    int lane = threadIdx.x;
    for (int i = lane; i < 128; i += 32) s[i] = a[i];
    __syncwarp();
    u32 r[4], at = (u32)__cvta_generic_to_shared(s + (lane % 16) * 8 + (lane / 16) * 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    float c[4] = {};
    u32 b0 = b[(lane / 4) * 8 + lane % 4], b1 = b[(lane / 4) * 8 + lane % 4 + 4];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(b0), "r"(b1));
    int g = lane / 4, t = lane % 4;
    out[g * 8 + 2 * t] = c[0]; out[g * 8 + 2 * t + 1] = c[1];
    out[(g + 8) * 8 + 2 * t] = c[2]; out[(g + 8) * 8 + 2 * t + 1] = c[3];
}

__constant__ double coefficient[4];
__global__ void horner(const double *x, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        double v = coefficient[0];
        #pragma unroll
        for (int k = 1; k < 4; k++) v = fma(v, x[i], coefficient[k]);
        out[i] = sqrt(fabs(v)) / (1.0 + x[i] * x[i]) + rint(x[i]);
    }
}

__global__ void complex_fft8(const float2 *x, float2 *out) {
    cuda::std::array<cuda::std::complex<float>, 8> v;
    int t = threadIdx.x;
    for (int i = 0; i < 8; i++) v[i] = {x[t * 8 + i].x, x[t * 8 + i].y};
    for (int half = 4; half; half /= 2)
        for (int i = 0; i < 8; i++)
            if (!(i & half)) {
                float angle = -3.14159265358979f * (i % half) / half;
                auto s = v[i] + v[i + half], d = v[i] - v[i + half];
                v[i] = s;
                v[i + half] = d * cuda::std::complex<float>(cosf(angle), sinf(angle));
            }
    for (int i = 0; i < 8; i++) {
        int r = (i & 1) * 4 + (i & 2) + (i >> 2);
        out[t * 8 + r] = make_float2(v[i].real(), v[i].imag());
    }
}

struct Node { int value; Node *next; };
__global__ void linked_lists(const int *x, int *out, int n) {
    Node *first = nullptr;
    for (int i = 0; i < n; i++) { Node *p = (Node *)malloc(sizeof(Node)); p->value = x[threadIdx.x * n + i]; p->next = first; first = p; }
    int sum = 0, k = 1;
    while (first) { sum += k++ * first->value; Node *p = first->next; free(first); first = p; }
    out[threadIdx.x] = sum;
}

typedef int (*Fn)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int minus(int a, int b) { return a - b; }
__device__ int power(int a, int b) { return b <= 0 ? 1 : a * power(a, b - 1); }
__device__ Fn table[3] = {plus, minus, power};
__global__ void dispatch(const int *a, const int *b, int *out) { out[threadIdx.x] = table[threadIdx.x % 3](a[threadIdx.x], b[threadIdx.x]); }

struct Coefficients { float c[5]; int stride; char flag; };
__global__ void by_value(Coefficients k, const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float s = 0; for (int j = 0; j < 5; j++) s += k.c[j] * x[(i + j * k.stride) % n]; out[i] = k.flag ? s : -s; }
}

__global__ void __launch_bounds__(128, 4) block_cyclic_reduction(float *x, int n) {
    __shared__ float s[2][128];
    int t = threadIdx.x, k = 0;
    s[0][t] = x[t];
    for (int d = 1; d < n; d *= 2, k ^= 1) { __syncthreads(); s[k ^ 1][t] = t >= d ? s[k][t] + s[k][t - d] : s[k][t]; }
    x[t] = s[k][t];
}

__global__ void lane_private_copies(const int4 *x, int4 *out, int rounds) {
    __shared__ int4 s[2][64];
    u32 a[2] = {(u32)__cvta_generic_to_shared(&s[0][threadIdx.x]), (u32)__cvta_generic_to_shared(&s[1][threadIdx.x])};
    int4 sum = make_int4(0, 0, 0, 0);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n cp.async.commit_group;" ::"r"(a[0]), "l"(x + threadIdx.x) : "memory");
    for (int r = 0; r < rounds; r++) {
        if (r + 1 < rounds) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(a[(r + 1) & 1]), "l"(x + (r + 1) * 64 + threadIdx.x) : "memory");
        asm volatile("cp.async.commit_group;\n cp.async.wait_group 1;" ::: "memory");
        int4 v = s[r & 1][threadIdx.x];
        sum.x += v.x; sum.y ^= v.y; sum.z = max(sum.z, v.z); sum.w += r * v.w;
    }
    out[threadIdx.x] = sum;
}

__global__ void unequal_widths(const unsigned char *x, u64 *out, short *small) {
    __shared__ alignas(8) unsigned char s[256];
    int t = threadIdx.x;
    s[t] = x[t]; s[t + 128] = x[t + 128];
    __syncthreads();
    if (t < 32) out[t] = ((u64 *)s)[t];
    __syncthreads();
    if (t < 64) ((int *)s)[t] = t * 0x01010101;
    __syncthreads();
    small[t] = ((short *)s)[127 - t];
}

__global__ void monte_carlo_pi(u64 *hits, u32 seed, int each) {
    u32 s = seed ^ (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;
    u32 inside = 0;
    for (int i = 0; i < each; i++) {
        s = s * 1664525u + 1013904223u; u64 a = s >> 16;
        s = s * 1664525u + 1013904223u; u64 b = s >> 16;
        inside += a * a + b * b < (1ull << 32);
    }
    inside = __reduce_add_sync(~0u, inside);
    if (threadIdx.x % 32 == 0) atomicAdd(hits, (u64)inside);
}

__global__ void min_max_floats(const float *x, int *low, int *high, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int v = __float_as_int(x[i]);
        v = v >= 0 ? v : v ^ 0x7fffffff;
        atomicMin(low, v);
        atomicMax(high, v);
    }
}

__global__ void double_add_cas(double *sum, const double *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 *at = (u64 *)sum, old = *at, seen;
    do { seen = old; old = atomicCAS(at, seen, __double_as_longlong(x[i] + __longlong_as_double(seen))); } while (seen != old);
}

__global__ void half_add_atomics(__half2 *sums, const int *keys, __nv_bfloat16 *other, float2 *pairs) {
    atomicAdd(&sums[keys[threadIdx.x]], __floats2half2_rn(1.f, 2.f));
    atomicAdd(&other[keys[threadIdx.x]], __float2bfloat16(0.5f));
    atomicAdd(&pairs[keys[threadIdx.x] & 1].x, 1.f);
}

__global__ void strided_views(const float *x, float *out) {
    __shared__ float tile[32][33];
    cuda::std::span<const float> all(x, 1024);
    for (int r = threadIdx.y; r < 32; r += blockDim.y) tile[r][threadIdx.x] = all[r * 32 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += blockDim.y) out[r * 32 + threadIdx.x] = tile[threadIdx.x][r] + tile[r][r];
}

__global__ void fdtd_1d(float *e, float *h, int n, int steps) {
    for (int s = 0; s < steps; s++) {
        for (int i = threadIdx.x; i < n - 1; i += blockDim.x) h[i] += 0.5f * (e[i + 1] - e[i]);
        __syncthreads();
        for (int i = threadIdx.x + 1; i < n - 1; i += blockDim.x) e[i] += 0.5f * (h[i] - h[i - 1]);
        __syncthreads();
    }
}

__global__ void haar(float *x, int n) {
    extern __shared__ float w[];
    int t = threadIdx.x;
    for (int m = n; m > 1; m /= 2) {
        float a = 0, d = 0;
        if (t < m / 2) { a = (x[2 * t] + x[2 * t + 1]) * 0.5f; d = (x[2 * t] - x[2 * t + 1]) * 0.5f; }
        __syncthreads();
        if (t < m / 2) { x[t] = a; x[m / 2 + t] = d; }
        __syncthreads();
    }
}

__global__ void printing(const int *x) {
    if (threadIdx.x < 2) printf("%d: %5.2f %s %llx\n", threadIdx.x, x[threadIdx.x] * 0.5, "x", 255ull + x[threadIdx.x]);
}

#if __CUDA_ARCH__ >= 900
__global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const int *x, int *out, int n) {
    __shared__ int bins[16];
    auto cluster = cg::this_cluster();
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    cluster.sync();
    for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) {
        int b = x[i] & 63;
        atomicAdd(cluster.map_shared_rank(bins, b / 16) + b % 16, 1);
    }
    cluster.sync();
    if (threadIdx.x < 16) out[cluster.block_rank() * 16 + threadIdx.x] = bins[threadIdx.x];
}

__global__ void __cluster_dims__(2, 1, 1) cluster_exchange(const int *x, int *out) {
    __shared__ int s[64];
    auto cluster = cg::this_cluster();
    int t = threadIdx.x, r = cluster.block_rank();
    auto token = cluster.barrier_arrive();
    int v = x[r * 64 + t];
    cluster.barrier_wait(cuda::std::move(token));
    cluster.map_shared_rank(s, 1 - r)[63 - t] = v;
    cluster.sync();
    out[r * 64 + t] = s[t];
}

__global__ void bulk_round_trip(const int *x, int *out, int tiles) {
    __shared__ alignas(128) int s[2][256];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar[2];
    if (threadIdx.x == 0) { init(&bar[0], blockDim.x); init(&bar[1], blockDim.x); cuda::device::experimental::fence_proxy_async_shared_cta(); }
    __syncthreads();
    for (int t = 0; t < tiles; t++) {
        int k = t & 1;
        cuda::barrier<cuda::thread_scope_block>::arrival_token token;
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            cuda::device::memcpy_async_tx(s[k], x + t * 256, cuda::aligned_size_t<16>(1024), bar[k]);
            token = cuda::device::barrier_arrive_tx(bar[k], 1, 1024);
        } else token = bar[k].arrive();
        bar[k].wait(cuda::std::move(token));
        for (int i = threadIdx.x; i < 256; i += blockDim.x) s[k][i] = s[k][i] * 3 + t;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;\n cp.async.bulk.commit_group;"
                ::"l"(out + t * 256), "r"((u32)__cvta_generic_to_shared(s[k])) : "memory");
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void bulk_reduce(const float *x, float *sum) {
    __shared__ alignas(16) float s[64];
    s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;\n cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;"
            ::"l"(sum), "r"((u32)__cvta_generic_to_shared(s)) : "memory");
    }
}

__global__ void __cluster_dims__(2, 1, 1) remote_async_store(const int *x, int *out) {
    __shared__ alignas(16) int s[32];
    __shared__ alignas(8) u64 bar;
    auto cluster = cg::this_cluster();
    u32 b = (u32)__cvta_generic_to_shared(&bar), r = cluster.block_rank();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(b) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" ::"r"(b) : "memory");
    }
    cluster.sync();
    u32 far_b, far_s;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_b) : "r"(b), "r"(1 - r));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_s) : "r"((u32)__cvta_generic_to_shared(&s[threadIdx.x])), "r"(1 - r));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(far_s), "r"(x[r * 32 + threadIdx.x]), "r"(far_b) : "memory");
    u32 done = 0;
    while (!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(b) : "memory");
    out[r * 32 + threadIdx.x] = s[threadIdx.x];
    cluster.sync();
}

__global__ void elected(const int *x, int *out) {
    u32 one;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(one));
    if (one) out[threadIdx.x / 32] = x[threadIdx.x / 32] * 2;
}
#endif
}
