// Kernels of whole workloads, as users of CUDA write them: hashing, coding, graphs, linear algebra, games and queues.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/chrono>
#include <cuda/std/limits>
#include <cuda/std/mdspan>
#include <cuda/std/span>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#define K extern "C" __global__ void
#define TID (blockIdx.x * blockDim.x + threadIdx.x)
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
typedef unsigned int u32;
typedef unsigned long long u64;

__constant__ u32 sha_k[64];
__device__ u32 rotr(u32 x, int n) { return __funnelshift_r(x, x, n); }
K sha256(const u32* in, u32* out) {
    u32 w[64], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, s[8];
    for (int i = 0; i < 16; i++) w[i] = __byte_perm(in[16 * TID + i], 0, 0x0123);
    for (int i = 16; i < 64; i++) {
        u32 a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
    }
    for (int i = 0; i < 8; i++) s[i] = h[i];
    for (int i = 0; i < 64; i++) {
        u32 t = s[7] + (rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha_k[i] + w[i];
        u32 m = (rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int j = 7; j > 0; j--) s[j] = s[j - 1];
        s[4] += t;
        s[0] = t + m;
    }
    for (int i = 0; i < 8; i++) out[8 * TID + i] = __byte_perm(h[i] + s[i], 0, 0x0123);
}

K interval_add(const float* a, const float* b, float* low, float* high) {
    low[TID] = __fadd_rd(a[TID], b[TID]);
    high[TID] = __fadd_ru(a[TID], b[TID]);
    low[TID + 128] = __fmul_rz(a[TID], b[TID]);
    high[TID + 128] = __fmaf_rn(a[TID], b[TID], 1.0f);
}

K segmented(const int* in, const unsigned char* head, int* out) {
    __shared__ int sum[4], any[4];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, v = in[threadIdx.x], f = head[threadIdx.x];
    u32 heads = __ballot_sync(~0u, f);
    int first = 31 - __clz(heads & (~0u >> (31 - lane)));
    if (first < 0) first = 0;
    for (int d = 1; d < 32; d *= 2) {
        int o = __shfl_up_sync(~0u, v, d);
        if (lane - d >= first) v += o;
    }
    if (lane == 31) sum[warp] = v, any[warp] = heads != 0;
    __syncthreads();
    if ((heads & (~0u >> (31 - lane))) == 0)
        for (int w = warp - 1; w >= 0; w--) {
            v += sum[w];
            if (any[w]) break;
        }
    out[threadIdx.x] = v;
}

K stencil3d(const float* in, float* out, int nz) {
    __shared__ float tile[10][18];
    int x = threadIdx.x, y = threadIdx.y, at = (y + 1) * 18 + x + 1;
    float behind = 0, here = in[at], front = in[180 + at];
    for (int z = 1; z < nz - 1; z++) {
        behind = here;
        here = front;
        front = in[(z + 1) * 180 + at];
        __syncthreads();
        tile[y + 1][x + 1] = here;
        if (x == 0) tile[y + 1][0] = in[z * 180 + at - 1];
        if (x == 15) tile[y + 1][17] = in[z * 180 + at + 1];
        if (y == 0) tile[0][x + 1] = in[z * 180 + at - 18];
        if (y == 7) tile[9][x + 1] = in[z * 180 + at + 18];
        __syncthreads();
        out[z * 180 + at] = (behind + front) + (tile[y][x + 1] + tile[y + 2][x + 1]) + (tile[y + 1][x] + tile[y + 1][x + 2]) - 6 * here;
    }
}

__device__ int find(int* parent, int i) {
    int p = ((volatile int*)parent)[i];
    while (p != i) {
        int q = ((volatile int*)parent)[p];
        if (p != q) atomicCAS(parent + i, p, q);
        i = p, p = ((volatile int*)parent)[i];
    }
    return i;
}
K union_find(const int* from, const int* to, int* parent, int edges, int nodes) {
    auto g = cg::this_grid();
    for (int e = g.thread_rank(); e < edges; e += g.num_threads()) {
        int a = find(parent, from[e]), b = find(parent, to[e]);
        while (a != b) {
            if (a < b) { int t = a; a = b; b = t; }
            int seen = atomicCAS(parent + a, a, b);
            if (seen == a) break;
            a = find(parent, seen), b = find(parent, b);
        }
    }
    g.sync();
    for (int i = g.thread_rank(); i < nodes; i += g.num_threads()) {
        int r = i;
        while (true) {
            int p = atomicAdd(parent + r, 0);
            if (p == r) break;
            r = p;
        }
        atomicExch(parent + i, r);
    }
}

K shortest(const int* row, const int* col, const int* weight, int* dist, int* changed, int nodes) {
    auto g = cg::this_grid();
    for (int round = 0; round < nodes; round++) {
        if (g.thread_rank() == 0) changed[(round + 1) % 3] = 0;
        g.sync();
        for (int u = g.thread_rank(); u < nodes; u += g.num_threads()) {
            int d = cuda::atomic_ref<int, cuda::thread_scope_device>(dist[u]).load(cuda::memory_order_relaxed);
            if (d == INT_MAX) continue;
            for (int e = row[u]; e < row[u + 1]; e++)
                if (atomicMin(dist + col[e], d + weight[e]) > d + weight[e]) atomicExch(changed + round % 3, 1);
        }
        g.sync();
        if (changed[round % 3] == 0) return;
    }
}

K cholesky(double* a, int n) {
    extern __shared__ double s[];
    int x = threadIdx.x, y = threadIdx.y;
    s[y * n + x] = a[y * n + x];
    for (int k = 0; k < n; k++) {
        __syncthreads();
        if (x == k && y == k) s[k * n + k] = sqrt(s[k * n + k]);
        __syncthreads();
        if (x == k && y > k) s[y * n + k] /= s[k * n + k];
        __syncthreads();
        if (x > k && y >= x) s[y * n + x] -= s[y * n + k] * s[x * n + k];
    }
    a[y * n + x] = x <= y ? s[y * n + x] : 0;
}

K gauss_jordan(float* a, float* b, int n) {
    __shared__ float m[32][34];
    __shared__ int pivot;
    int x = threadIdx.x, y = threadIdx.y;
    m[y][x] = a[y * n + x];
    if (x == 0) m[y][n] = b[y];
    __syncthreads();
    for (int k = 0; k < n; k++) {
        if (y == 0) {
            float v = x >= k ? fabsf(m[x][k]) : -1.f;
            u64 best = (u64)__float_as_uint(v < 0 ? 0.f : v) << 32 | x;
            for (int d = 16; d; d /= 2) { u64 o = __shfl_xor_sync(~0u, best, d); if (o > best) best = o; }
            if (x == 0) pivot = (int)(best & 31);
        }
        __syncthreads();
        int p = pivot;
        if (p != k && y == 0) {
            float t = m[k][x]; m[k][x] = m[p][x]; m[p][x] = t;
            if (x == 0) { t = m[k][n]; m[k][n] = m[p][n]; m[p][n] = t; }
        }
        __syncthreads();
        float f = y == k ? 0 : m[y][k] / m[k][k], g = m[k][x], h = m[k][n];
        __syncthreads();
        m[y][x] -= f * g;
        if (x == 0) m[y][n] -= f * h;
        __syncthreads();
    }
    if (x == 0) b[y] = m[y][n] / m[y][y];
}

__device__ u32 mix(u32 h) { h ^= h >> 16; h *= 0x85ebca6b; h ^= h >> 13; h *= 0xc2b2ae35; return h ^ h >> 16; }
K bloom(const u32* keys, const u32* asked, u32* bits, int* found) {
    __shared__ u32 filter[64];
    if (threadIdx.x < 64) filter[threadIdx.x] = 0;
    __syncthreads();
    for (u32 seed = 0; seed < 3; seed++) { u32 h = mix(keys[threadIdx.x] + seed * 0x9e3779b9) & 2047; atomicOr(&filter[h >> 5], 1u << (h & 31)); }
    __syncthreads();
    int all = 1;
    for (u32 seed = 0; seed < 3; seed++) { u32 h = mix(asked[threadIdx.x] + seed * 0x9e3779b9) & 2047; all &= filter[h >> 5] >> (h & 31); }
    found[threadIdx.x] = all & 1;
    if (threadIdx.x < 64) bits[threadIdx.x] = filter[threadIdx.x];
}

K life(const u32* in, u32* out, int rows) {
    int lane = threadIdx.x, y = blockIdx.x * blockDim.y + threadIdx.y;
    int n = 0;
    for (int d = -1; d <= 1; d++) {
        u32 r = in[(y + d + rows) % rows];
        n += (r >> ((lane + 31) & 31) & 1) + (r >> lane & 1) * (d != 0) + (r >> ((lane + 1) & 31) & 1);
    }
    u32 alive = in[y] >> lane & 1;
    u32 next = __ballot_sync(~0u, n == 3 || (alive && n == 2));
    if (lane == 0) out[y] = next;
}

struct Automaton { short next[4][4]; unsigned char accept[4]; };
__constant__ Automaton automaton;
K match(const unsigned char* text, int* hits, int n) {
    int state = 0, count = 0;
    int chunk = n / (gridDim.x * blockDim.x), from = TID * chunk;
    for (int i = max(from - 3, 0); i < from + chunk; i++) {
        state = automaton.next[state][text[i] & 3];
        if (automaton.accept[state] && i >= from) count++;
    }
    count = __reduce_add_sync(~0u, count);
    if ((threadIdx.x & 31) == 0) atomicAdd(hits, count);
}

K pack_bits(const u32* code, const unsigned char* length, u32* out, int* total) {
    __shared__ u32 words[256];
    __shared__ int sums[4];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    words[threadIdx.x] = words[threadIdx.x + 128] = 0;
    int n = length[threadIdx.x];
    int at = cg::exclusive_scan(warp, n);
    if (warp.thread_rank() == 31) sums[warp.meta_group_rank()] = at + n;
    block.sync();
    for (int w = 0; w < warp.meta_group_rank(); w++) at += sums[w];
    u64 bits = (u64)code[threadIdx.x] << (at & 31);
    atomicOr(words + at / 32, (u32)bits);
    if (bits >> 32) atomicOr(words + at / 32 + 1, (u32)(bits >> 32));
    block.sync();
    out[threadIdx.x] = words[threadIdx.x];
    out[threadIdx.x + 128] = words[threadIdx.x + 128];
    if (threadIdx.x == 127) *total = at + n;
}

K split_sort(u32* keys, int bits) {
    __shared__ u32 s[256];
    __shared__ int sums[8], zeros;
    int t = threadIdx.x, lane = t & 31;
    u32 v = keys[t];
    for (int b = 0; b < bits; b++) {
        int zero = !(v >> b & 1);
        u32 vote = __ballot_sync(~0u, zero);
        int before = __popc(vote & ((1u << lane) - 1));
        if (lane == 0) sums[t >> 5] = __popc(vote);
        __syncthreads();
        int base = 0, all = 0;
        for (int w = 0; w < 8; w++) { if (w == t >> 5) base = all; all += sums[w]; }
        int rank = base + before;
        s[zero ? rank : all + t - rank] = v;
        __syncthreads();
        v = s[t];
        if (t == 0) zeros = all;
        __syncthreads();
    }
    keys[t] = v;
}

K top_k(const float* in, float* value, int* index, int n, int k) {
    __shared__ u64 best[4];
    u64 last = ~0ull;
    for (int i = 0; i < k; i++) {
        u64 mine = 0;
        for (int j = threadIdx.x; j < n; j += blockDim.x) {
            u32 f = __float_as_uint(in[j]);
            f = f >> 31 ? ~f : f | 0x80000000u;
            u64 key = (u64)f << 32 | (u32)~j;
            if (key < last && key > mine) mine = key;
        }
        for (int d = 16; d; d >>= 1) mine = max(mine, __shfl_down_sync(~0u, mine, d));
        if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = mine;
        __syncthreads();
        last = max(max(best[0], best[1]), max(best[2], best[3]));
        if (threadIdx.x == 0) {
            int j = ~(u32)last;
            index[i] = j;
            value[i] = in[j];
        }
        __syncthreads();
    }
}

K philox(uint4* out, u32 seed) {
    uint4 c = make_uint4(TID, 0, 0, 0);
    u32 k0 = seed, k1 = 0;
#pragma unroll
    for (int r = 0; r < 10; r++) {
        u32 h0 = __umulhi(0xD2511F53, c.x), l0 = 0xD2511F53 * c.x, h1 = __umulhi(0xCD9E8D57, c.z), l1 = 0xCD9E8D57 * c.z;
        c = make_uint4(h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0);
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    out[TID] = c;
}

K simd_video(const u32* a, const u32* b, u32* out) {
    u32 x = a[TID], y = b[TID];
    out[8 * TID] = __vadd4(x, y);
    out[8 * TID + 1] = __vsub2(x, y);
    out[8 * TID + 2] = __vabsdiffu4(x, y);
    out[8 * TID + 3] = __vmaxs4(x, y);
    out[8 * TID + 4] = __vcmpgtu4(x, y);
    out[8 * TID + 5] = __vavgu4(x, y);
    out[8 * TID + 6] = __vaddus4(x, y);
    out[8 * TID + 7] = __vsadu4(x, y);
}

K half_functions(const __half2* a, const __half2* b, __half2* out, __nv_bfloat162* wide) {
    __half2 x = a[TID], y = b[TID];
    out[4 * TID] = __hfma2_relu(x, y, __float2half2_rn(-0.5f));
    out[4 * TID + 1] = __hmax2(x, __hneg2(y));
    out[4 * TID + 2] = h2sqrt(__habs2(x));
    out[4 * TID + 3] = __hadd2_sat(x, y);
    __nv_bfloat162 u = __float22bfloat162_rn(__half22float2(x)), v = __float22bfloat162_rn(__half22float2(y));
    wide[2 * TID] = __hmul2(u, v);
    wide[2 * TID + 1] = __hmin2(u, v);
}

K waited_counter(int* turn, int* order) {
    cuda::atomic_ref<int, cuda::thread_scope_device> t(*turn);
    if (threadIdx.x == 0) {
        int me = gridDim.x - 1 - blockIdx.x;
        for (int seen = t.load(cuda::memory_order_acquire); seen != me; seen = t.load(cuda::memory_order_acquire)) t.wait(seen, cuda::memory_order_relaxed);
        order[gridDim.x] = order[gridDim.x] * 3 + blockIdx.x;
        order[me] = blockIdx.x;
        t.store(me + 1, cuda::memory_order_release);
        t.notify_all();
    }
}

K float_atomics(const float* in, float* least, float* most, double* sum) {
    cuda::atomic_ref<float, cuda::thread_scope_device> a(*least), b(*most);
    a.fetch_min(in[TID], cuda::memory_order_relaxed);
    b.fetch_max(in[TID], cuda::memory_order_relaxed);
    cuda::atomic_ref<double, cuda::thread_scope_device>(*sum).fetch_add((double)(int)(in[TID] * 8), cuda::memory_order_relaxed);
}

K reduce_async_groups(const int* in, int* out) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    cuda::atomic<int, cuda::thread_scope_device>* sums = (cuda::atomic<int, cuda::thread_scope_device>*)out;
    cg::reduce_update_async(tile, sums[0], in[TID], cg::plus<int>());
    cg::reduce_update_async(tile, sums[1], in[TID], cg::greater<int>());
    cg::reduce_store_async(tile, sums[2 + blockIdx.x * 8 + tile.meta_group_rank()], in[TID], cg::less<int>());
}

K scan_update(const int* in, int* out, int* free_slot) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    cuda::atomic<int, cuda::thread_scope_device>* next = (cuda::atomic<int, cuda::thread_scope_device>*)free_slot;
    int n = in[TID] & 3;
    int at = cg::exclusive_scan_update(warp, *next, n, cg::plus<int>());
    for (int i = 0; i < n; i++) out[at + i] = TID;
}

K split_grid_barrier(int* a, int* b) {
    auto g = cg::this_grid();
    int n = g.num_threads(), t = g.thread_rank();
    for (int i = 0; i < 3; i++) {
        int* x = i & 1 ? b : a;
        int* y = i & 1 ? a : b;
        y[t] = x[(t + 1) % n] + i;
        auto token = g.barrier_arrive();
        int busy = t * t;
        g.barrier_wait(cuda::std::move(token));
        if (busy < 0) y[t] = busy;
    }
}

K mdspan_tiles(const float* in, float* out, int rows, int cols) {
    using namespace cuda::std;
    mdspan<const float, dextents<int, 2>, layout_right> x(in, rows, cols);
    mdspan<float, dextents<int, 2>, layout_left> y(out, rows, cols);
    __shared__ float s[16 * 17];
    mdspan<float, extents<int, 16, 16>, layout_stride> tile(s, layout_stride::mapping<extents<int, 16, 16>>(extents<int, 16, 16>(), array<int, 2>{17, 1}));
    int r = blockIdx.y * 16, c = blockIdx.x * 16;
    if (r + threadIdx.y < rows && c + threadIdx.x < cols) tile(threadIdx.y, threadIdx.x) = x(r + threadIdx.y, c + threadIdx.x);
    __syncthreads();
    if (r + threadIdx.x < rows && c + threadIdx.y < cols) y(r + threadIdx.x, c + threadIdx.y) = tile(threadIdx.x, threadIdx.y);
}

K bits_of_std(const u32* in, int* out) {
    u32 v = in[TID];
    out[8 * TID] = cuda::std::popcount(v);
    out[8 * TID + 1] = cuda::std::countl_zero(v);
    out[8 * TID + 2] = cuda::std::countr_one(v);
    out[8 * TID + 3] = cuda::std::bit_ceil(v & 0xffff);
    out[8 * TID + 4] = cuda::std::rotl(v, 7);
    out[8 * TID + 5] = cuda::std::bit_width(v);
    out[8 * TID + 6] = cuda::std::has_single_bit(v);
    out[8 * TID + 7] = cuda::std::bit_cast<int>(cuda::std::bit_cast<float>(v & 0x7fffff) + 0.f);
}

K merge_path(const int* a, const int* b, int* out, int na, int nb) {
    __shared__ int sa[128], sb[128];
    for (int i = threadIdx.x; i < na; i += blockDim.x) sa[i] = a[i];
    for (int i = threadIdx.x; i < nb; i += blockDim.x) sb[i] = b[i];
    __syncthreads();
    int each = (na + nb + blockDim.x - 1) / blockDim.x, diag = min((int)(threadIdx.x * each), na + nb), low = max(0, diag - nb), high = min(diag, na);
    while (low < high) {
        int mid = (low + high) / 2;
        if (sa[mid] <= sb[diag - 1 - mid]) low = mid + 1;
        else high = mid;
    }
    int i = low, j = diag - low;
    for (int k = 0; k < each && diag + k < na + nb; k++) out[diag + k] = j >= nb || (i < na && sa[i] <= sb[j]) ? sa[i++] : sb[j++];
}

struct Vec3 { float x, y, z; };
K soa_aos(const Vec3* in, float* x, float* y, float* z, Vec3* back) {
    __shared__ float s[3 * 128];
    const float* flat = (const float*)(in + blockIdx.x * 128);
    for (int i = threadIdx.x; i < 384; i += 128) s[i] = flat[i];
    __syncthreads();
    Vec3 v = ((Vec3*)s)[threadIdx.x];
    x[TID] = v.x, y[TID] = v.y, z[TID] = v.z;
    v.x = -v.x;
    __syncthreads();
    ((Vec3*)s)[threadIdx.x] = v;
    __syncthreads();
    for (int i = threadIdx.x; i < 384; i += 128) ((float*)(back + blockIdx.x * 128))[i] = s[i];
}

struct Queue { int head, tail; int items[1024]; };
K tree_walk(const int* left, const int* right, Queue* q, int* depth, int nodes) {
    // Blocks take nodes from a queue until all have been seen; `depth[n]` is written before n is published.
    __shared__ int node;
    for (;;) {
        if (threadIdx.x == 0) {
            int at = atomicAdd(&q->head, 1);
            node = -1;
            if (at < nodes) {
                cuda::atomic_ref<int, cuda::thread_scope_device> item(q->items[at]);
                while ((node = item.load(cuda::memory_order_acquire)) < 0) __nanosleep(20);
            }
        }
        __syncthreads();
        int n = node;
        __syncthreads();
        if (n < 0) return;
        if (threadIdx.x < 2) {
            int child = threadIdx.x ? right[n] : left[n];
            if (child >= 0) {
                depth[child] = depth[n] + 1;
                int at = atomicAdd(&q->tail, 1);
                cuda::atomic_ref<int, cuda::thread_scope_device>(q->items[at]).store(child, cuda::memory_order_release);
            }
        }
    }
}

K unaligned_copy(const unsigned char* in, unsigned char* out, int n, int from) {
    // Head and tail by bytes, the middle by 16 bytes, as memcpy kernels do.
    out += from;
    int head = (int)(-(long long)(size_t)out & 15), words = (n - head) / 16;
    for (int i = TID; i < head; i += gridDim.x * blockDim.x) out[i] = in[i];
    for (int i = TID; i < words; i += gridDim.x * blockDim.x) {
        uint4 v;
        memcpy(&v, in + head + 16 * i, 16);
        *(uint4*)(out + head + 16 * i) = v;
    }
    for (int i = head + 16 * words + TID; i < n; i += gridDim.x * blockDim.x) out[i] = in[i];
}

K timed(u64* out, const int* in, int* sum) {
    auto from = cuda::std::chrono::high_resolution_clock::now();
    long long c = clock64();
    int v = 0;
    for (int i = 0; i < 8; i++) v += in[8 * threadIdx.x + i];
    sum[threadIdx.x] = v;
    out[threadIdx.x] = (clock64() - c > 0) + 2 * (cuda::std::chrono::high_resolution_clock::now() >= from);
}

template <class T, int N> struct Poly { T c[N]; __device__ T operator()(T x) const { T r = c[N - 1]; for (int i = N - 2; i >= 0; i--) r = r * x + c[i]; return r; } };
struct Shape { __device__ virtual float area() const = 0; };
struct Square : Shape { float a; __device__ Square(float a) : a(a) {} __device__ float area() const override { return a * a; } };
struct Rect : Shape { float a, b; __device__ Rect(float a, float b) : a(a), b(b) {} __device__ float area() const override { return a * b; } };
K shapes(const float* in, float* out, Poly<float, 4> p) {
    Shape* s = threadIdx.x % 3 ? (Shape*)new Square(in[threadIdx.x]) : (Shape*)new Rect(in[threadIdx.x], 2.f);
    out[threadIdx.x] = s->area() + p(in[threadIdx.x]);
    if (threadIdx.x % 3) delete (Square*)s;
    else delete (Rect*)s;
}

K dynamic_two_arrays(const short* in, double* out, int n) {
    extern __shared__ __align__(16) char raw[];
    double* sum = (double*)raw;
    short* s = (short*)(sum + blockDim.x);
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = in[i];
    __syncthreads();
    double v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += (double)s[i] * s[n - 1 - i];
    sum[threadIdx.x] = v;
    for (int d = blockDim.x / 2; d; d >>= 1) {
        __syncthreads();
        if (threadIdx.x < d) sum[threadIdx.x] += sum[threadIdx.x + d];
    }
    if (threadIdx.x == 0) *out = sum[0];
}

__device__ int global_count;
__device__ u32 pool[256];
K device_symbols(int* out) {
    int at = atomicAdd(&global_count, 1);
    pool[at] = TID * 3;
    out[TID] = at >= 0 && at < 256;
    __threadfence();
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) { static __device__ u32 done; last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1; }
    __syncthreads();
    if (last) {
        __threadfence();
        u32 sum = 0;
        for (int i = threadIdx.x; i < 256; i += blockDim.x) sum += pool[i];
        sum = __reduce_add_sync(~0u, sum);
        if (threadIdx.x % 32 == 0) atomicAdd(out + 256, sum);
    }
}

#if __CUDA_ARCH__ >= 900
K ptx_wrappers(const int* in, int* out) {
    __shared__ alignas(128) int s[2][128];
    __shared__ u64 bar[2];
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&bar[0], 1);
        ptx::mbarrier_init(&bar[1], 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    int v = 0;
    for (int i = 0; i < 5; i++) {
        if (threadIdx.x == 0)
            for (int j = i ? i + 1 : 0; j < min(i + 2, 5); j++) {
                ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, s[j & 1], in + 128 * j, 512, &bar[j & 1]);
                ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar[j & 1], 512);
            }
        while (!ptx::mbarrier_try_wait_parity(&bar[i & 1], i >> 1 & 1)) {}
        v += s[i & 1][127 - threadIdx.x];
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
    }
    s[0][threadIdx.x] = v;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, out, s[0], 512);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) ring_of_cluster(const int* in, int* out) {
    __shared__ int s[2][64];
    __shared__ u64 bar[2];
    auto c = cg::this_cluster();
    u32 rank = ptx::get_sreg_cluster_ctarank();
    if (threadIdx.x < 2) ptx::mbarrier_init(&bar[threadIdx.x], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    c.sync();
    int v = in[TID], sum = v;
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar[i & 1], 256);
        int* there = c.map_shared_rank(&s[i & 1][threadIdx.x], (rank + 1) % 4);
        u64* far = c.map_shared_rank(&bar[i & 1], (rank + 1) % 4);
        ptx::st_async(there, v, far);
        while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &bar[i & 1], i >> 1 & 1)) {}
        v = s[i & 1][threadIdx.x];
        sum = sum * 3 + v;
        c.sync();
    }
    out[TID] = sum;
}

extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster_transpose(const float* in, float* out, int n) {
    __shared__ float s[8][8];
    auto c = cg::this_cluster();
    dim3 at = c.block_index();
    int x = threadIdx.x, y = threadIdx.y;
    s[y][x] = in[(blockIdx.y * 8 + y) * n + blockIdx.x * 8 + x];
    auto token = c.barrier_arrive();
    u32 peer = at.x * 2 + at.y;
    c.barrier_wait(cuda::std::move(token));
    out[(blockIdx.y * 8 + y) * n + blockIdx.x * 8 + x] = *c.map_shared_rank(&s[x][y], peer);
    c.sync();
}

K reduce_128(const u32* in, u32* out) {
    // A 16-byte pair is changed as one by compare-and-swap.
    u64 lo = 0, hi = 0;
    u32 v = in[TID];
    for (bool done = false; !done;) {
        u64 nl = lo + v, nh = max(hi, (u64)v), ol, oh;
        asm volatile("{.reg .b128 e, n, o; mov.b128 e, {%2, %3}; mov.b128 n, {%4, %5}; atom.acq_rel.gpu.global.cas.b128 o, [%6], e, n; mov.b128 {%0, %1}, o;}"
                     : "=l"(ol), "=l"(oh) : "l"(lo), "l"(hi), "l"(nl), "l"(nh), "l"(out) : "memory");
        done = ol == lo && oh == hi;
        lo = ol, hi = oh;
    }
}
#endif

K moved_matrix(const __half* a, float* out) {
    // D = A^T A for one 16x8 tile, with movmatrix for the transposed fragment.
    __shared__ alignas(16) __half s[16 * 8];
    int lane = threadIdx.x;
    for (int i = lane; i < 128; i += 32) s[i] = a[i];
    __syncwarp();
    u32 p = (u32)__cvta_generic_to_shared(s + (lane & 15) * 8), b0, b1, a0, a1;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(a0), "=r"(a1) : "r"(p));
    u32 t0, t1, z = 0;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t0) : "r"(a0));
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t1) : "r"(a1));
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(t0), "r"(z), "r"(t1), "r"(z), "r"(b0), "r"(b1));
    int r = lane / 4, c = lane % 4 * 2;
    out[r * 8 + c] = d[0];
    out[r * 8 + c + 1] = d[1];
}

K wmma_tf32(const float* a, const float* b, float* out, int k) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 8, precision::tf32, row_major> fa;
    fragment<matrix_b, 16, 16, 8, precision::tf32, col_major> fb;
    fragment<accumulator, 16, 16, 8, float> c;
    fill_fragment(c, 0.f);
    for (int i = 0; i < k; i += 8) {
        load_matrix_sync(fa, a + i, k);
        load_matrix_sync(fb, b + i, k);
        for (int j = 0; j < fa.num_elements; j++) fa.x[j] = __float_to_tf32(fa.x[j]);
        for (int j = 0; j < fb.num_elements; j++) fb.x[j] = __float_to_tf32(fb.x[j]);
        mma_sync(c, fa, fb, c);
    }
    for (int j = 0; j < c.num_elements; j++) c.x[j] *= 2;
    store_matrix_sync(out, c, 16, mem_col_major);
}

K wmma_double(const double* a, const double* b, double* out) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 8, 8, 4, double, row_major> fa;
    fragment<matrix_b, 8, 8, 4, double, row_major> fb;
    fragment<accumulator, 8, 8, 4, double> c;
    load_matrix_sync(c, out, 8, mem_row_major);
    for (int i = 0; i < 16; i += 4) {
        load_matrix_sync(fa, a + i, 16);
        load_matrix_sync(fb, b + 8 * i, 8);
        mma_sync(c, fa, fb, c);
    }
    store_matrix_sync(out, c, 8, mem_row_major);
}
