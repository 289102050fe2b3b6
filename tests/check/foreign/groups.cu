// Cooperative groups: tiles, partitions, collectives, blocks of a cluster and of a grid.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#define K extern "C" __global__ void
#define TID (blockIdx.x * blockDim.x + threadIdx.x)
namespace cg = cooperative_groups;

template <int T> __device__ void tile_sums(const int* in, int* out) {
    auto tile = cg::tiled_partition<T>(cg::this_thread_block());
    int v = in[TID];
    for (int d = tile.size() / 2; d > 0; d /= 2) v += tile.shfl_down(v, d);
    if (tile.thread_rank() == 0) out[TID / T] = v;
}
K tiles_32(const int* in, int* out) { tile_sums<32>(in, out); }
K tiles_16(const int* in, int* out) { tile_sums<16>(in, out); }
K tiles_4(const int* in, int* out) { tile_sums<4>(in, out); }
K tiles_1(const int* in, int* out) { tile_sums<1>(in, out); }
K tile_votes(const int* in, int* out) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int v = in[TID];
    out[TID] = tile.any(v > 90) + 2 * tile.all(v > 5) + 4 * tile.ballot(v > 50) + 4096 * tile.match_any(v & 1) + tile.meta_group_rank() * 1000000;
}
K tile_reduces(const int* in, const float* f, int* out, float* g) {
    auto block = cg::this_thread_block();
    auto t32 = cg::tiled_partition<32>(block);
    auto t8 = cg::tiled_partition<8>(t32);
    int v = in[TID];
    out[TID] = cg::reduce(t32, v, cg::plus<int>()) + 10000 * cg::reduce(t8, v, cg::greater<int>()) + cg::reduce(t8, v, cg::bit_xor<int>());
    g[TID] = cg::reduce(t8, f[TID], cg::plus<float>()) + cg::reduce(t32, f[TID], cg::less<float>());
}
K tile_scans(const int* in, int* out) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int v = in[TID];
    out[TID] = cg::inclusive_scan(tile, v) + 10000 * cg::exclusive_scan(tile, v, [](int a, int b) { return a + b; });
}
K coalesced(const int* in, int* out, int* count, int n) {
    int v = TID < n ? in[TID] : 0;
    if (v > 50) {
        auto g = cg::coalesced_threads();
        int base = 0;
        if (g.thread_rank() == 0) base = atomicAdd(count, (int)g.size());
        out[g.shfl(base, 0) + g.thread_rank()] = v;
    }
}
K coalesced_reduce(const int* in, int* out) {
    int v = in[TID];
    out[TID] = -1;
    if (v % 3 == 0) {
        auto g = cg::coalesced_threads();
        out[TID] = cg::reduce(g, v, cg::plus<int>()) + 100000 * g.thread_rank();
    }
}
K labelled(const int* in, int* out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int v = in[TID];
    auto g = cg::labeled_partition(warp, v % 4);
    auto b = cg::binary_partition(warp, v > 40);
    out[TID] = cg::reduce(g, v, cg::plus<int>()) * 100 + g.size() + 1000000 * b.size() + b.thread_rank() % 2;
}
K big_tile(const int* in, int* out) {
    __shared__ cg::block_tile_memory<256> memory;
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<64>(block);
    int v = in[TID];
    int sum = cg::reduce(tile, v, cg::plus<int>());
    tile.sync();
    out[TID] = sum + tile.shfl(v, 3) * 100000 + 10000000 * tile.any(v > 98);
}
K block_group(const int* in, int* out) {
    auto block = cg::this_thread_block();
    extern __shared__ int s[];
    s[block.thread_rank()] = in[block.group_index().x * block.size() + block.thread_rank()];
    block.sync();
    auto token = block.barrier_arrive();
    int mine = block.thread_index().x;
    block.barrier_wait(std::move(token));
    out[TID] = s[block.size() - 1 - mine];
}
K invoked(int* out) {
    auto block = cg::this_thread_block();
    __shared__ int x;
    cg::invoke_one(block, [&] { x = 42; });
    block.sync();
    auto warp = cg::tiled_partition<32>(block);
    int y = cg::invoke_one_broadcast(warp, [&] { return x + (int)warp.meta_group_rank(); });
    out[TID] = y;
}
K copied(const int* in, int* out) {
    extern __shared__ int s[];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, in + blockIdx.x * block.size(), sizeof(int) * block.size());
    cg::wait(block);
    out[TID] = s[block.size() - 1 - threadIdx.x];
}
K copied_stages(const float4* in, float4* out, int n) {
    __shared__ float4 s[2][64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], in, sizeof(float4) * 64);
    for (int i = 0; i < n; i++) {
        if (i + 1 < n) { cg::memcpy_async(block, s[(i + 1) % 2], in + (i + 1) * 64, sizeof(float4) * 64); cg::wait_prior<1>(block); }
        else cg::wait(block);
        float4 v = s[i % 2][63 - threadIdx.x];
        out[i * 64 + threadIdx.x] = make_float4(v.y, v.x, v.w, v.z);
        block.sync();
    }
}
K grid_sum(const float* in, float* parts, float* out, int n) {
    auto grid = cg::this_grid();
    auto block = cg::this_thread_block();
    __shared__ float s[4];
    float v = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) v += in[i];
    auto warp = cg::tiled_partition<32>(block);
    v = cg::reduce(warp, v, cg::plus<float>());
    if (warp.thread_rank() == 0) s[warp.meta_group_rank()] = v;
    cg::sync(block);
    if (block.thread_rank() == 0) parts[blockIdx.x] = s[0] + s[1] + s[2] + s[3];
    cg::sync(grid);
    if (grid.thread_rank() == 0) { float x = 0; for (int i = 0; i < gridDim.x; i++) x += parts[i]; *out = x; }
}
K grid_stencil(float* a, float* b, int n, int steps) {
    auto grid = cg::this_grid();
    for (int s = 0; s < steps; s++) {
        int i = grid.thread_rank();
        if (i > 0 && i < n - 1) b[i] = 0.5f * a[i] + 0.25f * (a[i - 1] + a[i + 1]);
        grid.sync();
        float* t = a; a = b; b = t;
    }
}
K grid_gradient(const float* m, float* x, float* r, float* p, float* ap, double* dots, int n, int steps) {
    auto grid = cg::this_grid();
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = grid.thread_rank();
    for (int s = 0; s < steps; s++) {
        float q = 0;
        if (i < n) { for (int j = 0; j < n; j++) q += m[i * n + j] * p[j]; ap[i] = q; }
        double d = i < n ? (double)p[i] * q : 0, e = i < n ? (double)r[i] * r[i] : 0;
        d = cg::reduce(warp, d, cg::plus<double>()), e = cg::reduce(warp, e, cg::plus<double>());
        if (warp.thread_rank() == 0) atomicAdd(dots + 3 * s, d), atomicAdd(dots + 3 * s + 1, e);
        grid.sync();
        double alpha = dots[3 * s + 1] / dots[3 * s], f = 0;
        if (i < n) { x[i] += alpha * p[i], r[i] -= alpha * ap[i], f = (double)r[i] * r[i]; }
        f = cg::reduce(warp, f, cg::plus<double>());
        if (warp.thread_rank() == 0) atomicAdd(dots + 3 * s + 2, f);
        grid.sync();
        if (i < n) p[i] = r[i] + dots[3 * s + 2] / dots[3 * s + 1] * p[i];
        grid.sync();
    }
}
K updates(int* g, const int* in) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    cuda::atomic_ref<int, cuda::thread_scope_device> sum(g[0]), most(g[1]);
    cg::reduce_update_async(warp, sum, in[TID], cg::plus<int>());
    cg::reduce_update_async(warp, most, in[TID], cg::greater<int>());
}
#if __CUDA_ARCH__ >= 900
K cluster_histogram(const int* in, unsigned* out, int n, int bins) {
    extern __shared__ int s[];
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), each = bins / cluster.num_blocks();
    for (int i = threadIdx.x; i < each; i += blockDim.x) s[i] = 0;
    cluster.sync();
    for (int i = TID; i < n; i += blockDim.x * gridDim.x) {
        int b = in[i] % bins;
        atomicAdd(cluster.map_shared_rank(s, b / each) + b % each, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < each; i += blockDim.x) atomicAdd(out + rank * each + i, s[i]);
}
K cluster_exchange(const float* in, float* out) {
    __shared__ float s[64];
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[TID];
    cluster.sync();
    float* other = cluster.map_shared_rank(s, (cluster.block_rank() + 1) % cluster.num_blocks());
    out[TID] = other[63 - threadIdx.x];
    cluster.sync();
}
K cluster_reduce(const float* in, float* out) {
    __shared__ float part, parts[8];
    auto cluster = cg::this_cluster();
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    float v = cg::reduce(warp, in[TID], cg::plus<float>());
    if (threadIdx.x == 0) part = 0;
    cluster.sync();
    if (warp.thread_rank() == 0) atomicAdd(&part, v);
    __syncthreads();
    if (threadIdx.x == 0) *cluster.map_shared_rank(&parts[cluster.block_rank()], 0) = part;
    auto token = cluster.barrier_arrive();
    cluster.barrier_wait(std::move(token));
    if (cluster.block_rank() == 0 && threadIdx.x == 0) { float x = 0; for (int i = 0; i < cluster.num_blocks(); i++) x += parts[i]; out[blockIdx.x / cluster.num_blocks()] = x; }
}
#endif
