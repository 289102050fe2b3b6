// Patterns of libraries: blocks that hand over work, sums and messages through memory, in CUDA C++ with libcu++, CUB and groups.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#define K extern "C" __global__ void
#define T threadIdx.x
#define B blockIdx.x
namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef unsigned long long u64;
template <class X> using device_ref = cuda::atomic_ref<X, cuda::thread_scope_device>;
template <class X> using block_ref = cuda::atomic_ref<X, cuda::thread_scope_block>;

// Parts of K add to one tile in turn: a semaphore says whose turn it is, so the sum has one order.
K split_k_in_turn(const float* a, const float* b, float* c, int* turn, int n, int k) {
    int part = blockIdx.z, parts = gridDim.z, tile = blockIdx.y * gridDim.x + B;
    int row = blockIdx.y * 8 + T / 16, col = B * 16 + T % 16;
    float sum = 0;
    for (int i = part * (k / parts); i < (part + 1) * (k / parts); i++) sum += a[row * k + i] * b[i * n + col];
    if (T == 0) while (device_ref<int>(turn[tile]).load(cuda::memory_order_acquire) != part) {}
    __syncthreads();
    c[row * n + col] = part == 0 ? sum : c[row * n + col] + sum;
    __syncthreads();
    if (T == 0) device_ref<int>(turn[tile]).store(part + 1 == parts ? 0 : part + 1, cuda::memory_order_release);
}

// Each block takes an equal share of all tiles' steps; who ends a tile adds the parts that others began.
K stream_k(const float* a, const float* b, float* c, float* part, int* ready, int tiles, int steps) {
    int total = tiles * steps, share = (total + gridDim.x - 1) / gridDim.x;
    int at = B * share, end = min(total, at + share);
    while (at < end) {
        int tile = at / steps, first = at % steps, last = min(steps, first + end - at);
        float sum = 0;
        for (int s = first; s < last; s++) sum += a[(tile * steps + s) * 64 + T] * b[s * 64 + T];
        if (last < steps) {
            part[B * 64 + T] = sum;
            __syncthreads();
            if (T == 0) {
                __threadfence();
                device_ref<int>(ready[B]).store(1, cuda::memory_order_relaxed);
            }
        } else {
            for (int other = B - 1; first > 0; other--) {
                if (T == 0) {
                    while (device_ref<int>(ready[other]).load(cuda::memory_order_relaxed) == 0) {}
                    __threadfence();
                }
                __syncthreads();
                sum += part[other * 64 + T];
                first -= min(first, share);
            }
            c[tile * 64 + T] = sum;
        }
        at += last - at % steps;
    }
}

// Blocks take tiles from a counter, one ahead, through two places in shared memory.
K queue_of_tiles(const int* in, int* out, int* next, int tiles) {
    __shared__ int mine[2];
    if (T == 0) mine[0] = atomicAdd(next, 1);
    __syncthreads();
    for (int turn = 0;; turn ^= 1) {
        int tile = mine[turn];
        if (tile >= tiles) break;
        if (T == 0) mine[turn ^ 1] = atomicAdd(next, 1);
        out[tile * 64 + T] = 3 * in[tile * 64 + T] + tile;
        __syncthreads();
    }
}

// A warp looks back over 32 states at a time; a state is a flag and a sum in one word.
K look_back_by_warps(const u32* in, u32* out, u64* state, u32* ticket) {
    typedef cub::BlockScan<u32, 128> Scan;
    __shared__ typename Scan::TempStorage memory;
    __shared__ u32 number, before;
    if (T == 0) number = atomicAdd(ticket, 1);
    __syncthreads();
    u32 tile = number, v = in[tile * 128 + T], sum, all;
    Scan(memory).InclusiveSum(v, sum, all);
    if (T < 32) {
        u32 prefix = 0;
        if (T == 0) device_ref<u64>(state[tile]).store((tile ? 1ull : 2ull) << 32 | all, cuda::memory_order_relaxed);
        for (int at = int(tile) - 1; at >= 0; at -= 32) {
            int i = at - int(T);
            u64 word = 2ull << 32;
            if (i >= 0) do word = device_ref<u64>(state[i]).load(cuda::memory_order_relaxed); while (word >> 32 == 0);
            u32 done = __ballot_sync(~0u, word >> 32 == 2);
            u32 stop = done ? __ffs(done) - 1 : 31;
            u32 part = int(T) <= int(stop) ? u32(word) : 0;
            prefix += __reduce_add_sync(~0u, part);
            if (done) break;
        }
        if (T == 0) {
            if (tile) device_ref<u64>(state[tile]).store(2ull << 32 | (prefix + all), cuda::memory_order_relaxed);
            before = prefix;
        }
    }
    __syncthreads();
    out[tile * 128 + T] = before + sum;
}

// The last block to finish takes the best of all blocks' candidates.
K last_block_best(const float* in, float* best, int* at, float* parts, int* places, u32* count, int n) {
    __shared__ float s[128];
    __shared__ int w[128];
    __shared__ bool last;
    float m = -1e30f;
    int p = -1;
    for (int i = B * 128 + T; i < n; i += 128 * gridDim.x) if (in[i] > m) { m = in[i]; p = i; }
    for (int round = 0; round < 2; round++) {
        s[T] = m;
        w[T] = p;
        __syncthreads();
        for (int d = 64; d > 0; d /= 2) {
            if (T < d && (s[T + d] > s[T] || (s[T + d] == s[T] && w[T + d] < w[T]))) { s[T] = s[T + d]; w[T] = w[T + d]; }
            __syncthreads();
        }
        if (round == 1) break;
        if (T == 0) {
            parts[B] = s[0];
            places[B] = w[0];
            last = device_ref<u32>(*count).fetch_add(1, cuda::memory_order_acq_rel) == gridDim.x - 1;
        }
        __syncthreads();
        if (!last) return;
        m = T < gridDim.x ? parts[T] : -1e30f;
        p = T < gridDim.x ? places[T] : n;
    }
    if (T == 0) { *best = s[0]; *at = w[0]; *count = 0; }
}

// Keys take their place by compare-and-swap; sums of one key gather there.
K hash_sums(const u32* keys, const int* values, u32* table, int* sums, int n, u32 size) {
    for (int i = B * blockDim.x + T; i < n; i += gridDim.x * blockDim.x) {
        u32 key = keys[i], at = key * 2654435761u % size;
        for (;; at = (at + 1) % size) {
            u32 held = atomicCAS(&table[at], 0u, key);
            if (held == 0 || held == key) break;
        }
        atomicAdd(&sums[at], values[i]);
    }
}

K hash_found(const u32* keys, const int* values, const u32* table, const int* sums, int n, u32 size, int* out) {
    u32 key = T + 1, at = key * 2654435761u % size;
    while (table[at] != 0 && table[at] != key) at = (at + 1) % size;
    out[T] = table[at] == key ? sums[at] : 0;
}

// An inserted key's value is written before the key is released; readers acquire the key.
K hash_join(u64* keys, int* values, const int* probes, int* out, int n) {
    if (B == 0) {
        values[T * 3 % 64] = 100 + T;
        device_ref<u64>(keys[T * 3 % 64]).store(T + 1, cuda::memory_order_release);
    } else {
        u64 want = probes[T];
        int at = (want - 1) * 3 % 64;
        while (device_ref<u64>(keys[at]).load(cuda::memory_order_acquire) != want) {}
        out[T] = values[at];
    }
}

// Ranks (blocks) write into each other's buffers; a word that still holds the mark has not come.
K lamport_sum(const float* in, float* boxes, float* out) {
    const u32 mark = 0x80000000u;
    float v = in[B * 64 + T];
    for (int r = 0; r < gridDim.x; r++) device_ref<u32>(((u32*)boxes)[(r * gridDim.x + B) * 64 + T]).store(__float_as_uint(v), cuda::memory_order_relaxed);
    float sum = 0;
    for (int r = 0; r < gridDim.x; r++) {
        u32 word;
        do word = device_ref<u32>(((u32*)boxes)[(B * gridDim.x + r) * 64 + T]).load(cuda::memory_order_relaxed); while (word == mark);
        sum += __uint_as_float(word);
    }
    out[B * 64 + T] = sum;
}

// One block sends messages of 64 words to another through a ring of three places.
K ring_of_messages(const int* in, int* ring, u32* head, u32* tail, int* out, int messages) {
    for (u32 m = 0; m < messages; m++) {
        if (B == 0) {
            if (T == 0) while (m - device_ref<u32>(*tail).load(cuda::memory_order_acquire) >= 3) {}
            __syncthreads();
            ring[m % 3 * 64 + T] = in[m * 64 + T] + 1;
            __syncthreads();
            if (T == 0) device_ref<u32>(*head).store(m + 1, cuda::memory_order_release);
        } else {
            if (T == 0) while (device_ref<u32>(*head).load(cuda::memory_order_acquire) <= m) {}
            __syncthreads();
            out[m * 64 + T] = 2 * ring[m % 3 * 64 + T];
            __syncthreads();
            if (T == 0) device_ref<u32>(*tail).store(m + 1, cuda::memory_order_release);
        }
    }
}

// A writer makes the count odd, changes the words and makes it even; readers try again.
K sequence_lock(u32* count, u32* words, u32* out) {
    if (T != 0) return;
    if (B == 0) {
        for (u32 i = 1; i <= 3; i++) {
            device_ref<u32>(*count).store(2 * i - 1, cuda::memory_order_relaxed);
            cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
            for (int w = 0; w < 4; w++) device_ref<u32>(words[w]).store(10 * i + w, cuda::memory_order_relaxed);
            device_ref<u32>(*count).store(2 * i, cuda::memory_order_release);
        }
        return;
    }
    u32 seen[4], first, second;
    do {
        first = device_ref<u32>(*count).load(cuda::memory_order_acquire);
        for (int w = 0; w < 4; w++) seen[w] = device_ref<u32>(words[w]).load(cuda::memory_order_relaxed);
        cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device);
        second = device_ref<u32>(*count).load(cuda::memory_order_relaxed);
    } while (first != second || first % 2 || first == 0);
    for (int w = 0; w < 4; w++) out[w] = seen[w] - seen[0];
}

// The grid meets twice a step, as conjugate gradients and power iterations do.
K power_iteration(const float* m, float* x, float* y, float* norm, int n, int steps) {
    auto grid = cg::this_grid();
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    for (int s = 0; s < steps; s++) {
        for (int r = B * 2 + T / 32; r < n; r += gridDim.x * 2) {
            float sum = 0;
            for (int c = warp.thread_rank(); c < n; c += 32) sum += m[r * n + c] * x[c];
            sum = cg::reduce(warp, sum, cg::plus<float>());
            if (warp.thread_rank() == 0) { y[r] = sum; atomicAdd(&norm[s], sum * sum); }
        }
        grid.sync();
        for (int r = B * 64 + T; r < n; r += gridDim.x * 64) x[r] = y[r] * rsqrtf(norm[s]);
        grid.sync();
    }
}

// Warps of a block are producers or consumers of a pipeline of libcu++.
K pipeline_of_roles(const int* in, int* out, int tiles) {
    __shared__ int s[3][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
    auto block = cg::this_thread_block();
    auto role = T < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    for (int i = 0; i < tiles; i++) {
        if (T < 32) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[i % 3][2 * T], &in[i * 64 + 2 * T], cuda::aligned_size_t<8>(8), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            out[i * 64 + T - 32] = s[i % 3][95 - T] + i;
            pipe.consumer_release();
        }
    }
    pipe.quit();
}

// Two barriers for each of two buffers: one says filled, one says free.
K barriers_of_buffers(const int* in, int* out, int rounds) {
    typedef cuda::barrier<cuda::thread_scope_block> Barrier;
    __shared__ int s[2][32];
    __shared__ Barrier full[2], free_[2];
    if (T < 2) { init(&full[T], 64); init(&free_[T], 64); }
    __syncthreads();
    if (T < 32) {
        for (int i = 0; i < rounds; i++) {
            if (i > 1) free_[i % 2].arrive_and_wait();
            s[i % 2][T] = in[i * 32 + T];
            (void)full[i % 2].arrive();
        }
    } else {
        for (int i = 0; i < rounds; i++) {
            full[i % 2].arrive_and_wait();
            out[i * 32 + T - 32] = s[i % 2][63 - T] * 2;
            if (i + 2 < rounds) (void)free_[i % 2].arrive();
        }
    }
}

// Tiles come in by memcpy_async of the block's group, one ahead.
K staged_groups(const float* in, float* out, int tiles) {
    __shared__ float s[2][128];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], in, 512);
    float sum = 0;
    for (int i = 0; i < tiles; i++) {
        if (i + 1 < tiles) {
            cg::memcpy_async(block, s[(i + 1) % 2], in + (i + 1) * 128, 512);
            cg::wait_prior<1>(block);
        } else {
            cg::wait(block);
        }
        sum += s[i % 2][127 - T];
        block.sync();
    }
    out[T] = sum;
}

// Rows are compacted: warps count, one lane of each block takes room, and all write.
K compacted(const int* in, int* out, int* room, int n) {
    typedef cub::WarpScan<int> Scan;
    __shared__ typename Scan::TempStorage memory[4];
    __shared__ int starts[5];
    int i = B * 128 + T, keep = i < n && in[i] % 3 == 0, at, all;
    Scan(memory[T / 32]).ExclusiveSum(keep, at, all);
    if (T % 32 == 0) starts[1 + T / 32] = all;
    __syncthreads();
    if (T == 0) {
        for (int w = 1; w < 5; w++) starts[w] += w > 1 ? starts[w - 1] : 0;
        starts[0] = atomicAdd(room, starts[4]);
    }
    __syncthreads();
    if (keep) out[starts[0] + (T >= 32 ? starts[T / 32] : 0) + at] = in[i];
}

K compacted_sum(const int* in, const int* out, const int* room, int n, int* total) {
    typedef cub::BlockReduce<int, 128> Reduce;
    __shared__ typename Reduce::TempStorage memory;
    int sum = 0;
    for (int i = T; i < *room; i += 128) sum += out[i];
    sum = Reduce(memory).Sum(sum);
    if (T == 0) *total = sum;
}

// A sum of squares by CUB, shared by the block, then the row is divided: RMS norm with a residual that is stored, too.
K rms_norm(const float* x, float* residual, const float* w, float* y, int n) {
    typedef cub::BlockReduce<float, 128> Reduce;
    __shared__ typename Reduce::TempStorage memory;
    __shared__ float scale;
    float sum = 0;
    for (int i = T; i < n; i += 128) {
        float v = x[B * n + i] + residual[B * n + i];
        residual[B * n + i] = v;
        sum += v * v;
    }
    sum = Reduce(memory).Sum(sum);
    if (T == 0) scale = rsqrtf(sum / n + 1e-6f);
    __syncthreads();
    for (int i = T; i < n; i += 128) y[B * n + i] = residual[B * n + i] * scale * w[i];
}

// Tokens are sorted by expert: counts, their scan, and places by atomics, in one block.
K experts_in_order(const int* expert, int* place, int* offsets, int tokens, int experts) {
    __shared__ int count[64], start[64];
    if (T < 64) count[T] = 0;
    __syncthreads();
    for (int i = T; i < tokens; i += 128) atomicAdd(&count[expert[i]], 1);
    __syncthreads();
    if (T < 32) {
        int low = count[T], high = count[T + 32], a = low, b = high;
        for (int d = 1; d < 32; d *= 2) {
            int p = __shfl_up_sync(~0u, a, d), q = __shfl_up_sync(~0u, b, d);
            if (T >= d) { a += p; b += q; }
        }
        b += __shfl_sync(~0u, a, 31);
        start[T] = a - low;
        start[T + 32] = b - high;
    }
    __syncthreads();
    if (T <= experts) offsets[T] = T < experts ? start[T] : tokens;
    __syncthreads();
    for (int i = T; i < tokens; i += 128) place[block_ref<int>(start[expert[i]]).fetch_add(1, cuda::memory_order_relaxed)] = expert[i];
}

// Threads push their nodes onto a list by compare-and-swap of its head.
K stacks(u32* head, u32* next, u32* out, int n) {
    u32 node = 1 + B * blockDim.x + T;
    if (node > n) return;
    device_ref<u32> top(*head);
    u32 old = top.load(cuda::memory_order_relaxed);
    do next[node] = old; while (!top.compare_exchange_weak(old, node, cuda::memory_order_release, cuda::memory_order_relaxed));
}
K stacked(const u32* head, const u32* next, u32* out, int n) {
    for (u32 node = *head; node != 0; node = next[node]) out[node]++;
}

// A block's rows of a sparse matrix, long ones by the block and short ones by warps.
K rows_by_length(const int* starts, const int* columns, const float* values, const float* x, float* y, int rows) {
    __shared__ float s[4];
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    for (int r = B; r < rows; r += gridDim.x) {
        int from = starts[r], to = starts[r + 1];
        bool all = to - from > 32;
        float sum = 0;
        if (all || T < 32) for (int i = from + T; i < to; i += all ? 128 : 32) sum += values[i] * x[columns[i]];
        sum = cg::reduce(warp, sum, cg::plus<float>());
        if (T % 32 == 0) s[T / 32] = sum;
        __syncthreads();
        if (T == 0) y[r] = s[0] + s[1] + s[2] + s[3];
        __syncthreads();
    }
}

#if __CUDA_ARCH__ >= 900
// Four blocks of a cluster share a row: a softmax whose maximum and sum cross the cluster.
K __cluster_dims__(4, 1, 1) cluster_softmax(const float* in, float* out) {
    __shared__ float part[2][4], own[4];
    auto cluster = cg::this_cluster();
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    float v = in[B * 128 + T], m = cg::reduce(warp, v, cg::greater<float>());
    cluster.sync();
    for (int step = 0; step < 2; step++) {
        float mine = step == 0 ? m : cg::reduce(warp, v, cg::plus<float>());
        if (T % 32 == 0) own[T / 32] = mine;
        __syncthreads();
        if (T < 4) {
            float all = step == 0 ? fmaxf(fmaxf(own[0], own[1]), fmaxf(own[2], own[3])) : own[0] + own[1] + own[2] + own[3];
            *cluster.map_shared_rank(&part[step][cluster.block_rank()], T) = all;
        }
        cluster.sync();
        float all = part[step][0];
        for (int r = 1; r < 4; r++) all = step == 0 ? fmaxf(all, part[step][r]) : all + part[step][r];
        v = step == 0 ? __expf(v - all) : v / all;
    }
    out[B * 128 + T] = v;
}

// Bulk copies in and out with a barrier of libcu++, and the block's stage in between.
K bulk_scale(const int* in, int* out, int tiles) {
    typedef cuda::barrier<cuda::thread_scope_block> Barrier;
    __shared__ alignas(128) int s[2][64];
    __shared__ Barrier full[2];
    if (T == 0) { init(&full[0], 64); init(&full[1], 64); asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
    __syncthreads();
    for (int i = 0; i < tiles; i++) {
        Barrier::arrival_token token;
        if (T == 0) {
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            cuda::memcpy_async(s[i % 2], in + i * 64, cuda::aligned_size_t<16>(256), full[i % 2]);
        }
        full[i % 2].arrive_and_wait();
        s[i % 2][T] *= 5;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (T == 0) {
            u32 at = (u32)__cvta_generic_to_shared(s[i % 2]);
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group;" ::"l"(out + i * 64), "r"(at) : "memory");
        }
    }
    if (T == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Tiles come by tensor copies into a ring, are summed by rows, and leave by a tensor store: the epilogue of a product.
struct alignas(64) Map { char bytes[128]; };
K tensor_ring(const __grid_constant__ Map source, const __grid_constant__ Map target, int steps) {
    __shared__ alignas(1024) float tile[2][8][32];
    __shared__ alignas(1024) float result[8][32];
    __shared__ u64 full[2], empty[2];
    auto at = [](const void* p) { return (u32)__cvta_generic_to_shared(p); };
    auto wait = [&](u64* bar, u32 parity) {
        u32 done = 0;
        while (!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory");
    };
    if (T == 0) {
        for (int i = 0; i < 2; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;" ::"r"(at(&empty[i])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (T >= 256) {
        if (T > 256) return;
        for (int s = 0; s < steps; s++) {
            if (s > 1) wait(&empty[s % 2], (s / 2 - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(at(&full[s % 2])) : "memory");
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(at(tile[s % 2])), "l"(&source), "r"(s * 32), "r"(B * 8), "r"(at(&full[s % 2])) : "memory");
        }
        return;
    }
    float sum = 0;
    for (int s = 0; s < steps; s++) {
        wait(&full[s % 2], (s / 2) & 1);
        sum += tile[s % 2][T / 32][T % 32] * (s + 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (T % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(&empty[s % 2])) : "memory");
    }
    result[T / 32][T % 32] = sum;
    asm volatile("fence.proxy.async.shared::cta; bar.sync 1, 256;" ::: "memory");
    if (T == 0) asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3]; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::"l"(&target), "r"(0), "r"(B * 8), "r"(at(result)) : "memory");
}
#endif
