// Kernels on CUB's primitives of warps and blocks, and on the agents of its device-wide ones.
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_rank.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_store.cuh>
#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/iterator/cache_modified_input_iterator.cuh>
#include <cub/iterator/cache_modified_output_iterator.cuh>
#include <cub/thread/thread_sort.cuh>
#include <cub/thread/thread_search.cuh>
#define K extern "C" __global__ void
#define TID (blockIdx.x * blockDim.x + threadIdx.x)
using namespace cub;

template <BlockReduceAlgorithm A, int T> __device__ void block_sum(const float* in, float* out) {
    using R = BlockReduce<float, T, A>;
    __shared__ typename R::TempStorage s;
    float4 v = ((const float4*)in)[TID];
    float items[4] = {v.x, v.y, v.z, v.w};
    float sum = R(s).Sum(items);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
K reduce_raking(const float* in, float* out) { block_sum<BLOCK_REDUCE_RAKING, 128>(in, out); }
K reduce_commutative(const float* in, float* out) { block_sum<BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, 128>(in, out); }
K reduce_warps(const float* in, float* out) { block_sum<BLOCK_REDUCE_WARP_REDUCTIONS, 128>(in, out); }
K reduce_odd(const float* in, float* out) { block_sum<BLOCK_REDUCE_WARP_REDUCTIONS, 96>(in, out); }
K reduce_partial(const int* in, int* out, int n) {
    using R = BlockReduce<int, 128>;
    __shared__ typename R::TempStorage s;
    int v = threadIdx.x < n ? in[threadIdx.x] : 0;
    int m = R(s).Reduce(v, [](int a, int b) { return a > b ? a : b; }, n);
    __syncthreads();
    int sum = R(s).Sum(v, n);
    if (threadIdx.x == 0) out[0] = m, out[1] = sum;
}
struct Pair { int key; float value; };
K reduce_argmax(const float* in, int* out) {
    using R = BlockReduce<KeyValuePair<int, float>, 128>;
    __shared__ typename R::TempStorage s;
    KeyValuePair<int, float> p((int)threadIdx.x, in[TID]);
    auto best = R(s).Reduce(p, ArgMax());
    if (threadIdx.x == 0) out[blockIdx.x] = best.key;
}
K reduce_2d(const int* in, int* out) {
    using R = BlockReduce<int, 16, BLOCK_REDUCE_WARP_REDUCTIONS, 4, 2>;
    __shared__ typename R::TempStorage s;
    int t = threadIdx.x + 16 * (threadIdx.y + 4 * threadIdx.z), sum = R(s).Sum(in[t]);
    if (t == 0) *out = sum;
}
template <BlockScanAlgorithm A> __device__ void block_scan(const int* in, int* out, int* total) {
    using S = BlockScan<int, 128, A>;
    __shared__ typename S::TempStorage s;
    int v[4], sum;
    for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x * 4 + i];
    S(s).ExclusiveSum(v, v, sum);
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = v[i];
    if (threadIdx.x == 5) *total = sum;
}
K scan_raking(const int* in, int* out, int* total) { block_scan<BLOCK_SCAN_RAKING>(in, out, total); }
K scan_memoize(const int* in, int* out, int* total) { block_scan<BLOCK_SCAN_RAKING_MEMOIZE>(in, out, total); }
K scan_warps(const int* in, int* out, int* total) { block_scan<BLOCK_SCAN_WARP_SCANS>(in, out, total); }
struct Running {
    int total;
    __device__ int operator()(int sum) { int old = total; total += sum; return old; }
};
K scan_prefix(const int* in, int* out, int n) {
    using S = BlockScan<int, 128>;
    __shared__ typename S::TempStorage s;
    Running running{0};
    for (int at = threadIdx.x; at < n; at += 128) {
        int v = in[at];
        S(s).InclusiveSum(v, v, running);
        __syncthreads();
        out[at] = v;
    }
}
K scan_max(const int* in, int* out) {
    using S = BlockScan<int, 64>;
    __shared__ typename S::TempStorage s;
    int v = in[threadIdx.x];
    S(s).InclusiveScan(v, v, [](int a, int b) { return a > b ? a : b; });
    out[threadIdx.x] = v;
}
template <BlockLoadAlgorithm L, BlockStoreAlgorithm S> __device__ void load_store(const int* in, int* out, int n) {
    using BL = BlockLoad<int, 64, 5, L>;
    using BS = BlockStore<int, 64, 5, S>;
    __shared__ union { typename BL::TempStorage l; typename BS::TempStorage s; } t;
    int v[5], valid = min(320, n - (int)blockIdx.x * 320);
    BL(t.l).Load(in + blockIdx.x * 320, v, valid, -7);
    __syncthreads();
    for (int i = 0; i < 5; i++) v[i] = v[i] * 10 + i;
    BS(t.s).Store(out + blockIdx.x * 320, v, valid);
}
K load_direct(const int* in, int* out, int n) { load_store<BLOCK_LOAD_DIRECT, BLOCK_STORE_DIRECT>(in, out, n); }
K load_vectorize(const int* in, int* out, int n) { load_store<BLOCK_LOAD_VECTORIZE, BLOCK_STORE_VECTORIZE>(in, out, n); }
K load_transpose(const int* in, int* out, int n) { load_store<BLOCK_LOAD_TRANSPOSE, BLOCK_STORE_TRANSPOSE>(in, out, n); }
K load_warp_transpose(const int* in, int* out, int n) { load_store<BLOCK_LOAD_WARP_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE>(in, out, n); }
K load_timesliced(const int* in, int* out, int n) { load_store<BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED, BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED>(in, out, n); }
K load_striped(const int* in, int* out, int n) { load_store<BLOCK_LOAD_STRIPED, BLOCK_STORE_STRIPED>(in, out, n); }
K exchange(const int* in, int* out) {
    using E = BlockExchange<int, 64, 4>;
    __shared__ typename E::TempStorage s;
    int v[4], rank[4];
    for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x + 64 * i];
    E(s).StripedToBlocked(v, v);
    for (int i = 0; i < 4; i++) rank[i] = 255 - (threadIdx.x * 4 + i);
    __syncthreads();
    E(s).ScatterToStriped(v, rank);
    for (int i = 0; i < 4; i++) out[threadIdx.x + 64 * i] = v[i];
}
K radix_sort(unsigned* keys, int* values, float* floats) {
    using S = BlockRadixSort<unsigned, 128, 4, int>;
    using F = BlockRadixSort<float, 128, 4>;
    __shared__ union { typename S::TempStorage s; typename F::TempStorage f; } t;
    unsigned k[4]; int v[4]; float f[4];
    for (int i = 0; i < 4; i++) k[i] = keys[threadIdx.x * 4 + i], v[i] = values[threadIdx.x * 4 + i], f[i] = floats[threadIdx.x * 4 + i];
    S(t.s).Sort(k, v);
    __syncthreads();
    F(t.f).SortDescendingBlockedToStriped(f);
    for (int i = 0; i < 4; i++) keys[threadIdx.x * 4 + i] = k[i], values[threadIdx.x * 4 + i] = v[i], floats[threadIdx.x + 128 * i] = f[i];
}
K radix_sort_bits(unsigned long long* keys) {
    using S = BlockRadixSort<unsigned long long, 64, 3, NullType, 5>;
    __shared__ typename S::TempStorage s;
    unsigned long long k[3];
    for (int i = 0; i < 3; i++) k[i] = keys[threadIdx.x * 3 + i];
    S(s).Sort(k, 8, 24);
    for (int i = 0; i < 3; i++) keys[threadIdx.x * 3 + i] = k[i];
}
K merge_sort(int* keys, int* values) {
    using S = BlockMergeSort<int, 64, 5, int>;
    __shared__ typename S::TempStorage s;
    int k[5], v[5];
    for (int i = 0; i < 5; i++) k[i] = keys[threadIdx.x * 5 + i], v[i] = values[threadIdx.x * 5 + i];
    S(s).StableSort(k, v, [](int a, int b) { return a < b; });
    for (int i = 0; i < 5; i++) keys[threadIdx.x * 5 + i] = k[i], values[threadIdx.x * 5 + i] = v[i];
}
template <BlockHistogramAlgorithm A> __device__ void histogram(const unsigned char* in, unsigned* out) {
    using H = BlockHistogram<unsigned char, 128, 4, 256, A>;
    __shared__ typename H::TempStorage s;
    __shared__ unsigned h[256];
    unsigned char v[4];
    for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x + 128 * i];
    H(s).Histogram(v, h);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 128) out[i] = h[i];
}
K histogram_atomic(const unsigned char* in, unsigned* out) { histogram<BLOCK_HISTO_ATOMIC>(in, out); }
K histogram_sort(const unsigned char* in, unsigned* out) { histogram<BLOCK_HISTO_SORT>(in, out); }
K discontinuity(const int* in, int* heads, int* tails) {
    using D = BlockDiscontinuity<int, 64>;
    __shared__ typename D::TempStorage s;
    int v[4], h[4], t[4];
    for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x * 4 + i];
    D(s).FlagHeadsAndTails(h, t, v, ::cuda::std::not_equal_to<>{});
    for (int i = 0; i < 4; i++) heads[threadIdx.x * 4 + i] = h[i], tails[threadIdx.x * 4 + i] = t[i];
}
K adjacent(const int* in, int* out) {
    using A = BlockAdjacentDifference<int, 64>;
    __shared__ typename A::TempStorage s;
    int v[4], d[4];
    for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x * 4 + i];
    A(s).SubtractLeft(v, d, [](int a, int b) { return a - b; });
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i];
}
K shuffle(const int* in, int* up, int* rotated) {
    using S = BlockShuffle<int, 128>;
    __shared__ typename S::TempStorage s;
    int v = in[threadIdx.x], u = -1, r;
    S(s).Offset(v, u, -1);
    __syncthreads();
    S(s).Rotate(v, r, 7);
    up[threadIdx.x] = u, rotated[threadIdx.x] = r;
}
K run_length(const int* values, const int* lengths, int* out, unsigned* total) {
    using R = BlockRunLengthDecode<int, 32, 2, 4>;
    __shared__ typename R::TempStorage s;
    int v[2], l[2];
    for (int i = 0; i < 2; i++) v[i] = values[threadIdx.x * 2 + i], l[i] = lengths[threadIdx.x * 2 + i];
    unsigned size;
    R decode(s, v, l, size);
    for (unsigned at = 0; at < size; at += 128) {
        int items[4];
        decode.RunLengthDecode(items, at);
        for (int i = 0; i < 4; i++) if (at + threadIdx.x * 4 + i < size) out[at + threadIdx.x * 4 + i] = items[i];
    }
    if (threadIdx.x == 0) *total = size;
}
K radix_rank(const unsigned* in, int* out) {
    using R = BlockRadixRankMatch<128, 5, false>;
    using D = BFEDigitExtractor<unsigned>;
    __shared__ typename R::TempStorage s;
    unsigned k[4]; int rank[4], prefix[R::BINS_TRACKED_PER_THREAD];
    int w = threadIdx.x / 32, l = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) k[i] = in[w * 128 + i * 32 + l];
    R(s).RankKeys(k, rank, D(3, 5), prefix);
    for (int i = 0; i < 4; i++) out[w * 128 + i * 32 + l] = rank[i];
}
template <int W> __device__ void warp_ops(const int* in, int* out) {
    using R = WarpReduce<int, W>;
    using S = WarpScan<int, W>;
    __shared__ typename R::TempStorage r[128 / W];
    __shared__ typename S::TempStorage s[128 / W];
    int v = in[threadIdx.x], w = threadIdx.x / W, inclusive, exclusive;
    int sum = R(r[w]).Sum(v);
    S(s[w]).Scan(v, inclusive, exclusive, 0, [](int a, int b) { return a + b; });
    if (threadIdx.x % W == 0) out[threadIdx.x] = sum;
    else out[threadIdx.x] = inclusive * 1000 + exclusive;
}
K warp_ops_32(const int* in, int* out) { warp_ops<32>(in, out); }
K warp_ops_8(const int* in, int* out) { warp_ops<8>(in, out); }
K warp_ops_12(const int* in, int* out) {
    using R = WarpReduce<float, 12>;
    using S = WarpScan<float, 12>;
    __shared__ typename R::TempStorage r[4];
    __shared__ typename S::TempStorage s[4];
    int w = threadIdx.x / 32, l = threadIdx.x % 32;
    float v = in[threadIdx.x], inclusive = 0;
    if (l < 12) {
        float sum = R(r[w]).Sum(v);
        S(s[w]).InclusiveSum(v, inclusive);
        out[threadIdx.x] = l == 0 ? (int)sum : (int)inclusive;
    }
}
K warp_segments(const int* in, const int* flags, int* out) {
    using R = WarpReduce<int>;
    __shared__ typename R::TempStorage r[4];
    int h = R(r[threadIdx.x / 32]).HeadSegmentedSum(in[threadIdx.x], flags[threadIdx.x]);
    __syncwarp();
    int t = R(r[threadIdx.x / 32]).TailSegmentedReduce(in[threadIdx.x], flags[threadIdx.x], [](int a, int b) { return a > b ? a : b; });
    out[threadIdx.x] = flags[threadIdx.x] ? h : 0;
    out[128 + threadIdx.x] = threadIdx.x % 32 == 0 || flags[threadIdx.x - 1] ? t : 0;
}
K warp_exchange(const int* in, int* out) {
    using L = WarpLoad<int, 4, WARP_LOAD_TRANSPOSE, 16>;
    using E = WarpExchange<int, 4, 16>;
    using S = WarpStore<int, 4, WARP_STORE_STRIPED, 16>;
    __shared__ typename L::TempStorage l[4];
    __shared__ typename E::TempStorage e[4];
    __shared__ typename S::TempStorage s[4];
    int v[4], w = threadIdx.x / 16;
    L(l[w]).Load(in + w * 64, v);
    E(e[w]).BlockedToStriped(v, v);
    for (int i = 0; i < 4; i++) v[i] += 1000 * i;
    S(s[w]).Store(out + w * 64, v);
}
K warp_merge_sort(int* keys) {
    using S = WarpMergeSort<int, 4, 32>;
    __shared__ typename S::TempStorage s[2];
    int k[4], w = threadIdx.x / 32, at = threadIdx.x * 4;
    for (int i = 0; i < 4; i++) k[i] = keys[at + i];
    S(s[w]).Sort(k, [](int a, int b) { return a < b; });
    for (int i = 0; i < 4; i++) keys[at + i] = k[i];
}
K cache_iterators(const int* in, int* out, int n) {
    CacheModifiedInputIterator<LOAD_LDG, int> a(in);
    CacheModifiedInputIterator<LOAD_CG, int> b(in);
    CacheModifiedOutputIterator<STORE_CS, int> o(out);
    for (int i = TID; i < n; i += gridDim.x * blockDim.x) o[i] = a[i] + b[n - 1 - i] + ThreadLoad<LOAD_CA>(in + i) + ThreadLoad<LOAD_VOLATILE>(in + i);
}
K thread_ops(const int* in, int* out) {
    int v[8];
    LoadDirectBlockedVectorized(threadIdx.x, (int*)in, v);
    int sum = ThreadReduce(v, [](int a, int b) { return a + b; });
    int other[8] = {};
    StableOddEvenSort(v, other, [](int a, int b) { return a < b; });
    out[threadIdx.x] = v[0] + v[7] * 1000 + sum * 100000 + (UpperBound(v, 8, 50) << 1) + BFE((unsigned)sum, 2u, 3u);
}
// Decoupled look-back, as DeviceScan does it.
template <class T> __device__ void device_scan(const T* in, T* out, void* states, int n) {
    using Tiles = ScanTileState<T>;
    using Load = BlockLoad<T, 128, 4, BLOCK_LOAD_WARP_TRANSPOSE>;
    using Store = BlockStore<T, 128, 4, BLOCK_STORE_WARP_TRANSPOSE>;
    using Scan = BlockScan<T, 128, BLOCK_SCAN_WARP_SCANS>;
    using Prefix = TilePrefixCallbackOp<T, ::cuda::std::plus<>, Tiles>;
    __shared__ union S {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        struct { typename Prefix::TempStorage prefix; typename Scan::TempStorage scan; } s;
        __device__ S() {}
    } t;
    Tiles tiles;
    size_t total;
    Tiles::AllocationSize(gridDim.x, total);
    tiles.Init(gridDim.x, states, total);
    int tile = blockIdx.x, valid = min(512, n - tile * 512);
    T v[4];
    Load(t.load).Load(in + tile * 512, v, valid, T(0));
    __syncthreads();
    if (tile == 0) {
        T sum;
        Scan(t.s.scan).InclusiveScan(v, v, ::cuda::std::plus<>{}, sum);
        if (threadIdx.x == 0) tiles.SetInclusive(0, sum);
    } else {
        Prefix prefix(tiles, t.s.prefix, ::cuda::std::plus<>{}, tile);
        Scan(t.s.scan).InclusiveScan(v, v, ::cuda::std::plus<>{}, prefix);
    }
    __syncthreads();
    Store(t.store).Store(out + tile * 512, v, valid);
}
K device_scan_init(void* states, int tiles) {
    ScanTileState<int> s;
    size_t total;
    ScanTileState<int>::AllocationSize(tiles, total);
    s.Init(tiles, states, total);
    s.InitializeStatus(tiles);
}
K device_scan_int(const int* in, int* out, void* states, int n) { device_scan<int>(in, out, states, n); }
K device_scan_init_wide(void* states, int tiles) {
    ScanTileState<double> s;
    size_t total;
    ScanTileState<double>::AllocationSize(tiles, total);
    s.Init(tiles, states, total);
    s.InitializeStatus(tiles);
}
K device_scan_double(const double* in, double* out, void* states, int n) { device_scan<double>(in, out, states, n); }
K select_if(const int* in, int* out, int* count, int n) {
    using S = BlockScan<int, 128>;
    __shared__ typename S::TempStorage s;
    __shared__ int base;
    int v = TID < n ? in[TID] : -1, keep = v >= 50, at, total;
    S(s).ExclusiveSum(keep, at, total);
    if (threadIdx.x == 0) base = atomicAdd(count, total);
    __syncthreads();
    if (keep) out[base + at] = v;
}
K reduce_by_key(const int* keys, const int* values, int* unique, int* sums, int* count) {
    struct KV { int flag, value; };
    using S = BlockScan<KV, 128>;
    using D = BlockDiscontinuity<int, 128>;
    __shared__ union U { typename S::TempStorage s; typename D::TempStorage d; __device__ U() {} } t;
    int k[1] = {keys[threadIdx.x]}, tail[1], head[1];
    D(t.d).FlagHeadsAndTails(head, tail, k, ::cuda::std::not_equal_to<>{});
    __syncthreads();
    KV v{head[0], values[threadIdx.x]}, r, total;
    S(t.s).InclusiveScan(v, r, [](KV a, KV b) { return KV{a.flag + b.flag, b.flag ? b.value : a.value + b.value}; }, total);
    if (tail[0]) unique[r.flag - 1] = k[0], sums[r.flag - 1] = r.value;
    if (threadIdx.x == 0) *count = total.flag;
}
