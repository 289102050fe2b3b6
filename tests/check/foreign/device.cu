// Kernels of CUB's device-wide algorithms: radix and merge sorts in their steps, reductions, transforms by bulk copies.
#if __CUDA_ARCH__ >= 900  // functions of CUDA's device runtime, which NVRTC lacks
__device__ inline void cudaGridDependencySynchronize() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void cudaTriggerProgrammaticLaunchCompletion() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#endif
#include <cub/agent/agent_rle.cuh>
#include <cub/agent/agent_select_if.cuh>
#include <cub/agent/agent_three_way_partition.cuh>
#include <cub/agent/agent_unique_by_key.cuh>
#include <cub/device/dispatch/kernels/merge_sort.cuh>
#include <cub/device/dispatch/kernels/radix_sort.cuh>
#include <cub/device/dispatch/kernels/reduce.cuh>
#include <cub/device/dispatch/kernels/transform.cuh>
#define K extern "C" __global__ void
typedef unsigned int u32;
using namespace cub;

K radix_histogram(u32* bins, const u32* keys, int n, int begin, int end) {
    using Agent = detail::radix_sort::AgentRadixSortHistogram<AgentRadixSortHistogramPolicy<128, 4, 2, u32, 8>, false, u32, u32>;
    __shared__ typename Agent::TempStorage s;
    Agent(s, bins, keys, n, begin, end).Process();
}
K radix_starts(u32* bins) {
    using Scan = BlockScan<u32, 256>;
    __shared__ typename Scan::TempStorage s;
    u32 v = bins[blockIdx.x * 256 + threadIdx.x];
    Scan(s).ExclusiveSum(v, v);
    bins[blockIdx.x * 256 + threadIdx.x] = v;
}
K radix_onesweep(int* lookback, int* counters, u32* bins_out, const u32* bins, u32* keys_out, const u32* keys, u32* values_out, const u32* values, int n, int bit, int bits, int /*end*/) {
    using Policy = AgentRadixSortOnesweepPolicy<128, 4, u32, 1, RADIX_RANK_MATCH_EARLY_COUNTS_ANY, BLOCK_SCAN_RAKING_MEMOIZE, RADIX_SORT_STORE_DIRECT, 8>;
    using Agent = detail::radix_sort::AgentRadixSortOnesweep<Policy, false, u32, u32, u32, int>;
    __shared__ typename Agent::TempStorage s;
    Agent(s, lookback, counters, bins_out, bins, keys_out, keys, values_out, values, n, bit, bits).Process();
}

K radix_upsweep(const u32* keys, u32* spine, int n, int bit) {
    using Agent = detail::radix_sort::AgentRadixSortUpsweep<AgentRadixSortUpsweepPolicy<128, 4, u32, LOAD_DEFAULT, 5>, u32, u32>;
    __shared__ typename Agent::TempStorage s;
    GridEvenShare<int> share;
    share.DispatchInit(n, gridDim.x, 512);
    share.BlockInit<512, GRID_MAPPING_RAKE>();
    Agent agent(s, keys, bit, 5);
    agent.ProcessRegion(share.block_offset, share.block_end);
    __syncthreads();
    agent.template ExtractCounts<false>(spine, gridDim.x, blockIdx.x);
}
K radix_spine(u32* spine) {
    using Scan = BlockScan<u32, 96>;
    __shared__ typename Scan::TempStorage s;
    u32 v = spine[threadIdx.x];
    Scan(s).ExclusiveSum(v, v);
    spine[threadIdx.x] = v;
}
K radix_downsweep(u32* keys_out, const u32* keys, u32* values_out, const u32* values, u32* spine, int n, int bit) {
    using Policy = AgentRadixSortDownsweepPolicy<128, 4, u32, BLOCK_LOAD_WARP_TRANSPOSE, LOAD_DEFAULT, RADIX_RANK_MATCH, BLOCK_SCAN_WARP_SCANS, 5>;
    using Agent = detail::radix_sort::AgentRadixSortDownsweep<Policy, false, u32, u32, u32>;
    __shared__ typename Agent::TempStorage s;
    GridEvenShare<int> share;
    share.DispatchInit(n, gridDim.x, 512);
    share.BlockInit<512, GRID_MAPPING_RAKE>();
    Agent(s, n, spine, keys, keys_out, values, values_out, bit, 5).ProcessRegion(share.block_offset, share.block_end);
}

// Algorithms in one pass, whose tiles look back.
template <class Tiles> __device__ Tiles tiles_of(void* states, int tiles) {
    Tiles s;
    size_t total;
    Tiles::AllocationSize(tiles, total);
    s.Init(tiles, states, total);
    return s;
}
K states_init(void* states, int tiles) { tiles_of<ScanTileState<int>>(states, tiles).InitializeStatus(tiles); }
K unique_by_key(const int* keys, const float* values, int* keys_out, float* values_out, int* count, void* states, int n, int tiles) {
    using Policy = AgentUniqueByKeyPolicy<128, 4, BLOCK_LOAD_WARP_TRANSPOSE, LOAD_LDG, BLOCK_SCAN_WARP_SCANS, detail::no_delay_constructor_t<0>>;
    using Agent = detail::unique_by_key::AgentUniqueByKey<Policy, const int*, const float*, int*, float*, ::cuda::std::equal_to<>, int>;
    __shared__ typename Agent::TempStorage s;
    auto state = tiles_of<ScanTileState<int>>(states, tiles);
    Agent(s, keys, values, keys_out, values_out, ::cuda::std::equal_to<>{}, n).ConsumeRange(tiles, state, count);
}
struct Small { __device__ bool operator()(int v) const { return v < 30; } };
struct Large { __device__ bool operator()(int v) const { return v >= 70; } };
struct OnePart {
    __device__ int input_offset() const { return 0; }
    __device__ int num_previously_selected() const { return 0; }
    __device__ int num_previously_selected_first() const { return 0; }
    __device__ int num_previously_selected_second() const { return 0; }
    __device__ int num_previously_rejected() const { return 0; }
    template <class C> __device__ void update_num_selected(C out, int n) const { *out = n; }
    template <class C> __device__ void update_num_selected(C out, int a, int b, int) const { out[0] = a, out[1] = b; }
};
K partition_three(const int* x, int* small, int* large, int* others, int* counts, void* states, int n, int tiles) {
    using Policy = AgentThreeWayPartitionPolicy<128, 4, BLOCK_LOAD_DIRECT, LOAD_DEFAULT, BLOCK_SCAN_WARP_SCANS, detail::no_delay_constructor_t<0>>;
    using Agent = detail::three_way_partition::AgentThreeWayPartition<Policy, const int*, int*, int*, int*, Small, Large, int, OnePart>;
    __shared__ typename Agent::TempStorage s;
    auto state = tiles_of<typename Agent::ScanTileStateT>(states, tiles);
    Agent(s, x, small, large, others, Small{}, Large{}, n, OnePart{}).ConsumeRange(tiles, state, counts);
}
K partition_init(void* states, int tiles) {
    using State = ScanTileState<typename detail::three_way_partition::accumulator_pack_t<int>::pack_t>;
    tiles_of<State>(states, tiles).InitializeStatus(tiles);
}
K run_lengths(const int* x, int* offsets, int* lengths, int* count, void* states, int n, int tiles) {
    using Policy = AgentRlePolicy<96, 4, BLOCK_LOAD_DIRECT, LOAD_LDG, true, BLOCK_SCAN_WARP_SCANS, detail::no_delay_constructor_t<0>>;
    using Agent = detail::rle::AgentRle<Policy, const int*, int*, int*, ::cuda::std::equal_to<>, int>;
    __shared__ typename Agent::TempStorage s;
    auto state = tiles_of<ReduceByKeyScanTileState<int, int>>(states, tiles);
    Agent(s, x, offsets, lengths, ::cuda::std::equal_to<>{}, n).ConsumeRange(tiles, state, count);
}
K runs_init(void* states, int tiles) { tiles_of<ReduceByKeyScanTileState<int, int>>(states, tiles).InitializeStatus(tiles); }

typedef AgentMergeSortPolicy<128, 4, BLOCK_LOAD_WARP_TRANSPOSE, LOAD_DEFAULT, BLOCK_STORE_WARP_TRANSPOSE> Merging;
typedef ::cuda::std::less<> Less;
K merge_blocks(const float* keys, const int* items, float* keys_out, int* items_out, int n, float* keys_tmp, int* items_tmp) {
    using Agent = detail::merge_sort::AgentBlockSort<Merging, const float*, const int*, float*, int*, int, Less, float, int>;
    __shared__ typename Agent::TempStorage s;
    Agent(true, s, keys, items, n, keys_out, items_out, keys_tmp, items_tmp, Less{}).Process();
}
K merge_partition(float* keys, float* pong, int n, int parts, int* partitions, int merged, int ping) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i >= parts) return;
    detail::merge_sort::AgentPartition<float*, int, Less, float>(ping, keys, pong, n, i, partitions, Less{}, merged, 512, parts).Process();
}
K merge_merge(float* keys, int* items, int n, float* pong, int* items_pong, int* partitions, int merged, int ping, const float* /*first*/, const int* /*items of it*/, int /*parts*/) {
    using Agent = detail::merge_sort::AgentMerge<Merging, float*, int*, int, Less, float, int>;
    __shared__ typename Agent::TempStorage s;
    Agent(ping, s, keys, items, pong, items_pong, n, pong, items_pong, keys, items, Less{}, partitions, merged).Process();
}

K reduce_tiles(const float* x, float* out, int n) {
    using Policy = AgentReducePolicy<128, 8, float, 4, BLOCK_REDUCE_WARP_REDUCTIONS, LOAD_LDG>;
    using Agent = detail::reduce::AgentReduce<Policy, const float*, float*, int, ::cuda::std::plus<>, float>;
    __shared__ typename Agent::TempStorage s;
    GridEvenShare<int> share;
    share.DispatchInit(n, gridDim.x, 1024);
    float v = Agent(s, x, ::cuda::std::plus<>{}).ConsumeTiles(share);
    if (threadIdx.x == 0) out[blockIdx.x] = v;
}

struct Axpy { __device__ float operator()(float a, float b) const { return 2 * a + b; } };
struct Threads { static constexpr int block_threads = 128; };
struct Items : Threads { static constexpr int items_per_thread_no_input = 2, min_items_per_thread = 1, max_items_per_thread = 32; };
K transform_plain(const float* a, const float* b, float* out, int n) {
    detail::transform::transform_kernel_impl<Items>(::cuda::std::integral_constant<detail::transform::Algorithm, detail::transform::Algorithm::prefetch>{}, n, 4, Axpy{}, out, a, b);
}
#if __CUDA_ARCH__ >= 900
K transform_bulk(const float* a, const float* b, float* out, int n) {
    detail::transform::transform_kernel_ublkcp<Threads>(n, 4, Axpy{}, out, detail::transform::make_aligned_base_ptr(a, 128), detail::transform::make_aligned_base_ptr(b + 1, 128));
}
#endif
