// Kernels in the ways of libraries that train and serve models: norms, rotations, caches, sampling, experts, weights of 4 bits.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/cstdint>
#define K extern "C" __global__ void
namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __nv_bfloat16 bf16;

__device__ inline float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
__device__ inline float warp_max(float v) {
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
template <class F> __device__ inline float block_all(float v, F join, float none) {
    __shared__ float parts[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = join(v);
    if (lane == 0) parts[warp] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? parts[lane] : none;
    v = join(v);
    __syncthreads();
    return v;
}

// A row for each warp, with the row kept in shared memory; streaming loads and stores.
K layernorm_rows(float* out, float* mean, float* rstd, const float* in, const float* w, const float* b, int N, int C) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= N) return;
    const float* x = in + (size_t)row * C;
    float sum = 0;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) sum += x[i];
    float m = cg::reduce(warp, sum, cg::plus<float>()) / C;
    if (warp.thread_rank() == 0 && mean) __stcs(mean + row, m);
    sum = 0;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) sum += (x[i] - m) * (x[i] - m);
    float s = rsqrtf(cg::reduce(warp, sum, cg::plus<float>()) / C + 1e-5f);
    if (warp.thread_rank() == 0 && rstd) __stcs(rstd + row, s);
    for (int c = warp.thread_rank(); c < C; c += warp.size()) __stcs(out + (size_t)row * C + c, s * (__ldcs(x + c) - m) * w[c] + b[c]);
}

// A residual is added to, and the sum normalised; the block keeps its row in dynamic shared memory.
K fused_residual(bf16* residual, bf16* normed, const bf16* a, const float* w, int C) {
    extern __shared__ float row[];
    size_t at = (size_t)blockIdx.x * C;
    float square = 0;
    for (int i = threadIdx.x; i < C; i += blockDim.x) {
        float v = __bfloat162float(residual[at + i]) + __bfloat162float(a[at + i]);
        residual[at + i] = __float2bfloat16(v);
        row[i] = v;
        square += v * v;
    }
    float s = rsqrtf(block_all(square, warp_sum, 0.f) / C + 1e-6f);
    for (int i = threadIdx.x; i < C; i += blockDim.x) normed[at + i] = __float2bfloat16(row[i] * s * w[i]);
}

// Softmax of a row below the diagonal, from its end, in vectors of four.
K softmax_causal(float* out, const float* in, float scale, int N, int T) {
    int lane = threadIdx.x % 32, row = (gridDim.x - blockIdx.x - 1) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= N * T) return;
    int own = row % T, quads = own / 4;
    const float* x = in + (size_t)row * T;
    const float4* x4 = (const float4*)x;
    float most = -3e38f, sum = 0;
    for (int i = lane; i < quads; i += 32) {
        float4 v = x4[i];
        float before = most;
        most = fmaxf(fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)), most);
        sum *= expf(scale * (before - most));
        sum += expf(scale * (v.x - most)) + expf(scale * (v.y - most)) + expf(scale * (v.z - most)) + expf(scale * (v.w - most));
    }
    if (4 * quads + lane <= own) {
        float before = most;
        most = fmaxf(most, x[4 * quads + lane]);
        sum = sum * expf(scale * (before - most)) + expf(scale * (x[4 * quads + lane] - most));
    }
    float all = warp_max(most);
    sum = warp_sum(sum * expf(scale * (most - all)));
    for (int i = lane; i <= own; i += 32) __stcs(out + (size_t)row * T + i, expf(scale * (__ldcs(x + i) - all)) / sum);
}

// Rotary embedding in place of queries and keys; cosines and sines in one table; both heads' layouts.
K rotary(const int* positions, __half* query, __half* key, const __half* table, int dim, int q_heads, int k_heads, int neox) {
    int token = blockIdx.x, half = dim / 2;
    const __half *c = table + positions[token] * dim, *s = c + half;
    auto turn = [&](__half* x, int heads) {
        for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
            __half* head = x + ((size_t)token * heads + i / half) * dim;
            int r = i % half, p = neox ? r : 2 * r, q = neox ? half + r : 2 * r + 1;
            float a = __half2float(head[p]), b = __half2float(head[q]), co = __half2float(c[r]), si = __half2float(s[r]);
            head[p] = __float2half(a * co - b * si);
            head[q] = __float2half(b * co + a * si);
        }
    };
    turn(query, q_heads);
    turn(key, k_heads);
}

// New keys and values go to the blocks of a cache; the key's layout is [block, head, dim / 8, slot, 8].
K cache_write(const __half* key, const __half* value, __half* k_cache, __half* v_cache, const long long* slots, int heads, int dim, int size) {
    long long slot = slots[blockIdx.x];
    if (slot < 0) return;
    long long block = slot / size, at = slot % size;
    for (int i = threadIdx.x; i < heads * dim; i += blockDim.x) {
        int head = i / dim, d = i % dim;
        k_cache[((block * heads + head) * (dim / 8) + d / 8) * size * 8 + at * 8 + d % 8] = key[(size_t)blockIdx.x * heads * dim + i];
        v_cache[((block * heads + head) * dim + d) * size + at] = value[(size_t)blockIdx.x * heads * dim + i];
    }
}

// Attention of one query over pages: logits in dynamic shared memory, groups of lanes per key, warps join by halves.
template <int D, int SIZE> __device__ void paged(float* out, const float* q, const float* kc, const float* vc, const int* tables, const int* lengths, int pages) {
    extern __shared__ float logits[];
    __shared__ float red[2 * 4];
    __shared__ float qs[D];
    int head = blockIdx.x, seq = blockIdx.y, heads = gridDim.x, length = lengths[seq], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < D; i += blockDim.x) qs[i] = q[(seq * heads + head) * D + i];
    __syncthreads();
    float most = -3e38f;
    for (int page = warp; page * SIZE < length; page += 4) {
        const float* k = kc + ((size_t)tables[seq * pages + page] * heads + head) * SIZE * D;
        for (int key = lane / 4; key < SIZE; key += 8) {
            float part = 0;
            for (int d = lane % 4; d < D; d += 4) part += qs[d] * k[key * D + d];
            part += __shfl_xor_sync(~0u, part, 2);
            part += __shfl_xor_sync(~0u, part, 1);
            int at = page * SIZE + key;
            if (lane % 4 == 0) logits[at] = at < length ? part * rsqrtf(D) : 0.f;
            if (at < length) most = fmaxf(most, part * rsqrtf(D));
        }
    }
    for (int o = 16; o >= 4; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (lane == 0) red[warp] = most;
    __syncthreads();
    most = lane < 4 ? red[lane] : -3e38f;
    for (int o = 2; o >= 1; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    most = __shfl_sync(~0u, most, 0);
    float sum = 0;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        float e = __expf(logits[i] - most);
        logits[i] = e;
        sum += e;
    }
    sum = warp_sum(sum);
    if (lane == 0) red[4 + warp] = sum;
    __syncthreads();
    sum = red[4] + red[5] + red[6] + red[7];
    float acc[D / 32] = {};
    for (int page = warp; page * SIZE < length; page += 4) {
        const float* v = vc + ((size_t)tables[seq * pages + page] * heads + head) * SIZE * D;
        for (int key = 0; key < SIZE && page * SIZE + key < length; key++)
            for (int j = 0; j < D / 32; j++) acc[j] += logits[page * SIZE + key] / sum * v[key * D + j * 32 + lane];
    }
    __syncthreads();
    float* sums = logits;
    for (int i = 4; i > 1; i /= 2) {
        int mid = i / 2;
        if (warp >= mid && warp < i) for (int j = 0; j < D / 32; j++) sums[(warp - mid) * D + j * 32 + lane] = acc[j];
        __syncthreads();
        if (warp < mid) for (int j = 0; j < D / 32; j++) acc[j] += sums[warp * D + j * 32 + lane];
        __syncthreads();
    }
    if (warp == 0) for (int j = 0; j < D / 32; j++) out[(seq * heads + head) * D + j * 32 + lane] = acc[j];
}
K paged_attention(float* out, const float* q, const float* kc, const float* vc, const int* tables, const int* lengths, int pages) {
    paged<64, 16>(out, q, kc, vc, tables, lengths, pages);
}

// Parts of keys, each with its sum and maximum; the last block of a head joins them.
K split_decode(const float* q, const float* k, const float* v, float* parts, float2* stats, u32* arrived, float* out, int T, int splits) {
    __shared__ float p[64];
    __shared__ bool last;
    int head = blockIdx.y, begin = blockIdx.x * 64, d = threadIdx.x;
    float score = 0;
    for (int i = 0; i < 64; i++) score += q[head * 64 + i] * k[((size_t)head * T + begin + d) * 64 + i];
    auto top = [](float x) { return warp_max(x); };
    float most = block_all(score, top, -3e38f);
    p[d] = expf(score - most);
    float sum = block_all(p[d], warp_sum, 0.f);
    float acc = 0;
    for (int j = 0; j < 64; j++) acc += p[j] * v[((size_t)head * T + begin + j) * 64 + d];
    parts[(head * splits + blockIdx.x) * 64 + d] = acc;
    if (d == 0) stats[head * splits + blockIdx.x] = make_float2(most, sum);
    __threadfence();
    __syncthreads();
    if (d == 0) last = atomicInc(arrived + head, splits - 1) == splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    float all = -3e38f, total = 0, result = 0;
    for (int s = 0; s < splits; s++) all = fmaxf(all, __ldcg(&stats[head * splits + s]).x);
    for (int s = 0; s < splits; s++) {
        float2 one = __ldcg(&stats[head * splits + s]);
        float scale = expf(one.x - all);
        total += one.y * scale;
        result += scale * __ldcg(&parts[(head * splits + s) * 64 + d]);
    }
    out[head * 64 + d] = result / total;
}

// Tokens are counted per expert by each lane's share, the counts summed and padded, and places given out.
K align_experts(const int* ids, int* sorted, int* expert_of, int* total, int n, int E, int size) {
    extern __shared__ int counts[];
    int *starts = counts + (blockDim.x + 1) * E, t = threadIdx.x, share = (n + blockDim.x - 1) / blockDim.x, first = t * share;
    for (int e = 0; e < E; e++) counts[(t + 1) * E + e] = 0;
    for (int i = first; i < n && i < first + share; i++) ++counts[(t + 1) * E + ids[i]];
    __syncthreads();
    if (t < E) {
        counts[t] = 0;
        for (int i = 1; i <= blockDim.x; i++) counts[i * E + t] += counts[(i - 1) * E + t];
    }
    __syncthreads();
    if (t == 0) {
        starts[0] = 0;
        for (int e = 1; e <= E; e++) starts[e] = starts[e - 1] + (counts[blockDim.x * E + e - 1] + size - 1) / size * size;
        *total = starts[E];
    }
    __syncthreads();
    if (t < E) for (int i = starts[t]; i < starts[t + 1]; i += size) expert_of[i / size] = t;
    for (int i = first; i < n && i < first + share; i++) {
        int e = ids[i], place = counts[t * E + e] + starts[e];
        sorted[place] = i;
        ++counts[t * E + e];
    }
}

// Softmax over experts and the best k of each token, within parts of a warp.
K route_topk(const float* logits, float* weights, int* picks, int tokens, int k) {
    int part = threadIdx.x % 8, token = (blockIdx.x * blockDim.x + threadIdx.x) / 8;
    if (token >= tokens) return;
    float x[4];
    for (int i = 0; i < 4; i++) x[i] = logits[token * 32 + i * 8 + part];
    float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), sum = 0;
    for (int o = 4; o; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o, 8));
    for (int i = 0; i < 4; i++) sum += x[i] = expf(x[i] - most);
    for (int o = 4; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o, 8);
    for (int n = 0; n < k; n++) {
        float best = x[0];
        int at = part;
        for (int i = 1; i < 4; i++) if (x[i] > best) best = x[i], at = i * 8 + part;
        for (int o = 4; o; o /= 2) {
            float other = __shfl_xor_sync(~0u, best, o, 8);
            int its = __shfl_xor_sync(~0u, at, o, 8);
            if (other > best || (other == best && its < at)) best = other, at = its;
        }
        if (part == 0) weights[token * k + n] = best / sum, picks[token * k + n] = at;
        if (at % 8 == part) x[at / 8] = -1.f;
    }
}

// Top-p sampling by rejection: a pivot rises until the kept mass holds the draw.
K sample_top_p(const float* probs, const float* draws, int* out, float p, int V, int rounds) {
    typedef cub::BlockReduce<float, 128> Reduce;
    typedef cub::BlockScan<float, 128> Scan;
    __shared__ union { typename Reduce::TempStorage r; typename Scan::TempStorage s; } temp;
    __shared__ float shared_value;
    __shared__ int picked;
    const float* mine = probs + (size_t)blockIdx.x * V;
    float pivot = -1, q = 1;
    int token = V - 1;
    for (int round = 0; round < rounds; round++) {
        float u = draws[round * gridDim.x + blockIdx.x] * q, before = 0;
        if (threadIdx.x == 0) picked = V;
        __syncthreads();
        for (int i = threadIdx.x; i - (int)threadIdx.x < V; i += 128) {
            float v = i < V && mine[i] > pivot ? mine[i] : 0, upto, all;
            Scan(temp.s).InclusiveSum(v, upto, all);
            if (v > 0 && before + upto > u && before + upto - v <= u) atomicMin(&picked, i);
            before += all;
            __syncthreads();
            if (before > u) break;
        }
        token = picked < V ? picked : V - 1;
        __syncthreads();
        pivot = fmaxf(pivot, mine[token]);
        float kept = 0;
        for (int i = threadIdx.x; i < V; i += 128) if (mine[i] > pivot) kept += mine[i];
        float sum = Reduce(temp.r).Sum(kept);
        if (threadIdx.x == 0) shared_value = sum;
        __syncthreads();
        q = shared_value;
        __syncthreads();
        if (q < p) break;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = token;
}

// Weights of 4 bits, eight in a word, become halves by lop3 and are multiplied.
K dequant_gemv(const u32* w, const __half2* scale, const __half2* x, float* y, int words) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int i = lane; i < words; i += 32) {
        u32 q = w[row * words + i];
        __half2 s = __half2half2(__low2half(scale[row])), magic = __halves2half2(__ushort_as_half(0x6408), __ushort_as_half(0x6408));
        for (int j = 0; j < 4; j++) {
            u32 bits;
            asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(bits) : "r"(q >> (4 * j)));
            __half2 v = __hmul2(__hsub2(*(__half2*)&bits, magic), s);
            float2 f = __half22float2(__hmul2(v, x[i * 4 + j]));
            sum += f.x + f.y;
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = sum;
}

__device__ inline u32 at(const void* p) { return __cvta_generic_to_shared(p); }
// A striped product: stages of cp.async, ldmatrix, mma, and blocks that add their parts in order behind a lock.
K striped_product(const __half* A, const __half* B, float* C, int* locks, int Kdim, int parts) {
    __shared__ __align__(16) __half a[3][16 * 24], b[3][16 * 72];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = blockIdx.x, steps = Kdim / parts / 16, k0 = part * steps * 16;
    auto load = [&](int s, int i) {
        if (i < steps) {
            int k = k0 + i * 16;
            if (threadIdx.x < 32) {
                int r = threadIdx.x / 2, c = threadIdx.x % 2 * 8;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(&a[s][r * 24 + c])), "l"(A + r * Kdim + k + c) : "memory");
            }
            int r = threadIdx.x / 8, c = threadIdx.x % 8 * 8;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(&b[s][r * 72 + c])), "l"(B + (k + r) * 64 + c) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float acc[2][4] = {};
    load(0, 0);
    load(1, 1);
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        load((i + 2) % 3, i + 2);
        u32 x[4], y[4];
        const __half* as = a[i % 3];
        const __half* bs = b[i % 3];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at(as + lane % 16 * 24 + lane / 16 * 8)) : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(at(bs + lane % 16 * 72 + warp * 16 + lane / 16 * 8)) : "memory");
        for (int n = 0; n < 2; n++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * n]), "r"(y[2 * n + 1]));
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (threadIdx.x == 0) {
        int state = -1;
        do asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(state) : "l"(locks) : "memory"); while (state != part);
    }
    __syncthreads();
    for (int n = 0; n < 2; n++)
        for (int h = 0; h < 2; h++) {
            float2* c = (float2*)&C[(lane / 4 + 8 * h) * 64 + warp * 16 + n * 8 + lane % 4 * 2];
            float2 v = part ? *c : make_float2(0, 0);
            *c = make_float2(v.x + acc[n][2 * h], v.y + acc[n][2 * h + 1]);
        }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (part == parts - 1) { locks[0] = 0; return; }
        int one = 1;
        asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(locks), "r"(one) : "memory");
    }
}

// Boxes that overlap better ones: 64 lanes make a mask of 64 bits for each box and column of boxes.
K suppress_masks(const float4* boxes, u64* masks, int n, float most) {
    int row = blockIdx.y, column = blockIdx.x, rows = min(n - row * 64, 64), columns = min(n - column * 64, 64);
    if (row > column) return;
    __shared__ float4 s[64];
    if (threadIdx.x < columns) s[threadIdx.x] = boxes[column * 64 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= rows) return;
    float4 a = boxes[row * 64 + threadIdx.x];
    u64 t = 0;
    for (int i = row == column ? threadIdx.x + 1 : 0; i < columns; i++) {
        float w = fmaxf(fminf(a.z, s[i].z) - fmaxf(a.x, s[i].x), 0.f), h = fmaxf(fminf(a.w, s[i].w) - fmaxf(a.y, s[i].y), 0.f);
        float both = w * h, A = (a.z - a.x) * (a.w - a.y), B = (s[i].z - s[i].x) * (s[i].w - s[i].y);
        if (both > most * (A + B - both)) t |= 1ull << i;
    }
    masks[(row * 64 + threadIdx.x) * gridDim.x + column] = t;
}
K suppress_gather(const u64* masks, bool* keep, int n) {
    extern __shared__ u64 removed[];
    int columns = (n + 63) / 64;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) removed[i] = 0;
    __syncthreads();
    for (int b = 0; b < columns; b++) {
        u64 own = removed[b];
        __syncthreads();
        int most = min(n - b * 64, 64);
        for (int i = 0; i < most; i++) {
            if (!(own & (1ull << i))) {
                if (threadIdx.x == 0) keep[b * 64 + i] = true;
                const u64* p = masks + (b * 64 + i) * columns;
                for (int j = threadIdx.x; j < columns; j += blockDim.x) if (j >= b) removed[j] |= p[j];
                __syncthreads();
                own = removed[b];
                __syncthreads();  // before the next box's bits come
            }
        }
    }
}

// Gradients of a table's rows by atomics on vectors of halves.
K embedding_grad(const int* ids, const __half2* grads, __half2* table, int pairs, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * pairs; i += gridDim.x * blockDim.x)
        atomicAdd(table + ids[i / pairs] * pairs + i % pairs, grads[i]);
}

// Rows of a column sum: blocks add sums of their rows to one array, the last clears the scratch.
K bias_grad(float* bias, const float* dout, float* scratch, u32* flag, int rows, int C) {
    __shared__ float parts[8][32];
    __shared__ u32 arrived;
    int x = threadIdx.x, y = threadIdx.y, c = blockIdx.x * 32 + x;
    float sum = 0;
    for (int r = blockIdx.y * 8 + y; r < rows; r += gridDim.y * 8) sum += dout[(size_t)r * C + c];
    parts[y][x] = sum;
    __syncthreads();
    for (int s = 4; s; s /= 2) {
        if (y < s) parts[y][x] += parts[y + s][x];
        __syncthreads();
    }
    if (y == 0) atomicAdd(scratch + c, parts[0][x]);
    __threadfence();
    __syncthreads();
    if (x == 0 && y == 0) arrived = atomicAdd(flag + blockIdx.x, 1u);
    __syncthreads();
    if (arrived != gridDim.y - 1) return;
    if (y == 0) {
        bias[c] += __ldcg(scratch + c);
        scratch[c] = 0;
    }
    if (x == 0 && y == 0) flag[blockIdx.x] = 0;
}

// AdamW on weights of bfloat16 with rounding by noise from a counter.
__device__ inline u32 noise(u32 x, u32 seed) {
    u32 z = seed + x * 198491317u + 1;
    z ^= z >> 17, z *= 0xed5ad4bbu, z ^= z >> 11, z *= 0xac4c1b51u, z ^= z >> 15, z *= 0x31848babu, z ^= z >> 14;
    return z;
}
K adamw(bf16* w, float* master, const bf16* g, float* m, float* v, int n, float lr, float b1, float b2, float c1, float c2, u32 seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float grad = __bfloat162float(g[i]), mi = __fmaf_rn(b1, m[i] - grad, grad), vi = __fmaf_rn(b2, v[i] - grad * grad, grad * grad);
    m[i] = mi, v[i] = vi;
    float old = master ? master[i] : __bfloat162float(w[i]), made = old - lr * (mi / c1 / (sqrtf(vi / c2) + 1e-8f) + 0.1f * old);
    u32 bits = __float_as_uint(made), cut = bits & 0xffff, up = (noise(i, seed) & 0xffff) > cut ? 0 : 0x10000;
    w[i] = __float2bfloat16_rn(__uint_as_float((bits & ~0xffffu) + up));
    if (master) master[i] = made;
}

// Cells of particles: where each cell's run begins and ends, by the neighbour's hash in shared memory.
K cell_bounds(const u32* hashes, u32* begin, u32* end, int n) {
    extern __shared__ u32 own[];
    u32 i = blockIdx.x * blockDim.x + threadIdx.x, hash;
    if (i < n) {
        hash = hashes[i];
        own[threadIdx.x + 1] = hash;
        if (i > 0 && threadIdx.x == 0) own[0] = hashes[i - 1];
    }
    cg::sync(cg::this_thread_block());
    if (i < n) {
        if (i == 0 || hash != own[threadIdx.x]) {
            begin[hash] = i;
            if (i > 0) end[own[threadIdx.x]] = i;
        }
        if (i == n - 1) end[hash] = i + 1;
    }
}

// Conjugate gradients on a tridiagonal system, by one cooperative launch.
__device__ void dot(const float* a, const float* b, double* sum, int n, const cg::grid_group& grid, const cg::thread_block& block) {
    __shared__ double parts[32];
    double v = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) v += (double)a[i] * b[i];
    auto tile = cg::tiled_partition<32>(block);
    v = cg::reduce(tile, v, cg::plus<double>());
    if (tile.thread_rank() == 0) parts[tile.meta_group_rank()] = v;
    cg::sync(block);
    if (tile.meta_group_rank() == 0) {
        v = tile.thread_rank() < tile.meta_group_size() ? parts[tile.thread_rank()] : 0.0;
        v = cg::reduce(tile, v, cg::plus<double>());
        if (tile.thread_rank() == 0) atomicAdd(sum, v);
    }
}
K conjugate_gradients(float* x, float* r, float* p, float* Ap, double* dots, int n, int steps) {
    cg::thread_block block = cg::this_thread_block();
    cg::grid_group grid = cg::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.size()) p[i] = r[i];
    dot(r, r, dots, n, grid, block);
    cg::sync(grid);
    for (int k = 0; k < steps; k++) {
        for (int i = grid.thread_rank(); i < n; i += grid.size()) Ap[i] = 2.5f * p[i] - (i ? p[i - 1] : 0) - (i + 1 < n ? p[i + 1] : 0);
        cg::sync(grid);
        dot(p, Ap, dots + 2 * k + 1, n, grid, block);
        cg::sync(grid);
        float alpha = dots[2 * k] / dots[2 * k + 1];
        for (int i = grid.thread_rank(); i < n; i += grid.size()) x[i] += alpha * p[i], r[i] -= alpha * Ap[i];
        cg::sync(grid);
        dot(r, r, dots + 2 * k + 2, n, grid, block);
        cg::sync(grid);
        float beta = dots[2 * k + 2] / dots[2 * k];
        for (int i = grid.thread_rank(); i < n; i += grid.size()) p[i] = r[i] + beta * p[i];
        cg::sync(grid);
    }
}

// American options by a lattice of prices in shared memory, two steps a pass.
K lattice(const float* spot, float* out, int steps, float up, float rate, float strike) {
    __shared__ float a[2][257];
    int t = threadIdx.x;
    auto price = [&](int i, int n) { return spot[blockIdx.x] * powf(up, 2.f * i - n); };
    for (int i = t; i <= steps; i += blockDim.x) a[0][i] = fmaxf(strike - price(i, steps), 0.f);
    __syncthreads();
    float p = (expf(rate) - 1 / up) / (up - 1 / up), d = expf(-rate);
    for (int n = steps; n > 0; n--) {
        int from = (steps - n) & 1;
        for (int i = t; i < n; i += blockDim.x)
            a[from ^ 1][i] = fmaxf(d * (p * a[from][i + 1] + (1 - p) * a[from][i]), strike - price(i, n - 1));
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = a[steps & 1][0];
}

// A radix sort's pass whose blocks learn the digits' places from those before: ballots rank the keys of each warp.
K onesweep(const u32* keys, u32* out, const u32* starts, volatile u32* state, u32* ticket, int shift) {
    __shared__ u32 tile, counts[4][16], base[16];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
    if (threadIdx.x < 64) (&counts[0][0])[threadIdx.x] = 0;
    __syncthreads();
    u32 key = keys[tile * 128 + threadIdx.x], digit = key >> shift & 15, peers = ~0u;
    for (int b = 0; b < 4; b++) {
        u32 vote = __ballot_sync(~0u, digit >> b & 1);
        peers &= digit >> b & 1 ? vote : ~vote;
    }
    u32 rank = __popc(peers & ((1u << lane) - 1));
    if (rank == 0) counts[warp][digit] = __popc(peers);
    __syncthreads();
    if (threadIdx.x < 16) {
        u32 sum = 0, d = threadIdx.x;
        for (int w = 0; w < 4; w++) { u32 c = counts[w][d]; counts[w][d] = sum; sum += c; }
        u32 before = 0;
        if (tile == 0) {
            __threadfence();
            state[d] = sum << 2 | 2;
        } else {
            state[tile * 16 + d] = sum << 2 | 1;
            for (int look = tile - 1;;) {
                u32 v = state[look * 16 + d];
                if ((v & 3) == 0) continue;
                before += v >> 2;
                if ((v & 3) == 2) break;
                look--;
            }
            state[tile * 16 + d] = (before + sum) << 2 | 2;
        }
        base[d] = starts[d] + before;
    }
    __syncthreads();
    out[base[digit] + counts[warp][digit] + rank] = key;
}

// Scores of two sequences along diagonals, three of them in shared memory.
K smith_waterman(const char* a, const char* b, int* best, int n) {
    extern __shared__ int h[];
    int *now = h, *last = h + n + 1, *older = h + 2 * (n + 1), i = threadIdx.x, most = 0;
    for (int j = i; j < 3 * (n + 1); j += blockDim.x) h[j] = 0;
    __syncthreads();
    for (int d = 0; d < 2 * n - 1; d++) {
        int j = d - i;
        if (i < n && j >= 0 && j < n) {
            int v = max(0, older[i] + (a[i] == b[j] ? 3 : -2));
            v = max(v, max(last[i], last[i + 1]) - 1);
            now[i + 1] = v;
            most = max(most, v);
        }
        __syncthreads();
        int* t = older;
        older = last, last = now, now = t;
    }
    most = __reduce_max_sync(~0u, most);
    if (i % 32 == 0) atomicMax(best, most);
}
