// Kernels on odd sizes and few elements, most of which change their arrays in place.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/std/array>
#include <cuda/std/complex>
#include <cuda/std/utility>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
typedef unsigned u32;
#define T ((int)threadIdx.x)
#define K extern "C" __global__ void

K wrapped(float* x, int n) {  // more lanes than elements: all load, the first store
  float v = x[T % n];
  float r = v * v + 1;
  if (T < n) x[T] = r;
}
K wrapped_rows(float* x, const float* w, int n) {  // a row in each block, rotated like RoPE
  float* row = x + blockIdx.x * 2 * n;
  int i = T % n;
  float a = row[i], b = row[i + n], c = w[i];
  float low = a * c - b, high = b * c + a;
  if (T < n) { row[i] = low; row[i + n] = high; }
}
K wrapped_shared(const float* x, float* out, int n) {
  __shared__ float s[64];
  if (T < n) s[T] = x[T];
  __syncthreads();
  for (int step = 0; step < 3; ++step) {
    float r = s[T % n] * 0.5f + step;
    if (T < n) s[T] = r;
  }
  if (T < n) out[T] = s[T];
}
K reversed(int* x, int n) {
  int i = blockIdx.x * blockDim.x + T;
  if (i < n / 2) { int a = x[i], b = x[n - 1 - i]; x[i] = b; x[n - 1 - i] = a; }
}
K rotated(int* x, int n, int by) {
  int v = T < n ? x[T] : 0;
  __syncthreads();
  if (T < n) x[(T + by) % n] = v;
}
K transposed(float* x, int n) {
  __shared__ float s[17][18];
  for (int i = T; i < n * n; i += blockDim.x) s[i / n][i % n] = x[i];
  __syncthreads();
  for (int i = T; i < n * n; i += blockDim.x) x[i] = s[i % n][i / n];
}
K swapped_pairs(float* x, int n) {  // the transposition of a square, element pairs by one lane each
  for (int i = T; i < n * n; i += blockDim.x)
    if (i / n < i % n) { int j = i % n * n + i / n; float a = x[i]; x[i] = x[j]; x[j] = a; }
}
K smoothed(float* x, int n) {
  float v = 0;
  if (T < n) v = 0.25f * x[T ? T - 1 : 0] + 0.5f * x[T] + 0.25f * x[T < n - 1 ? T + 1 : n - 1];
  __syncthreads();
  if (T < n) x[T] = v;
}
K red_black(float* x, int n, int rounds) {
  for (int r = 0; r < 2 * rounds; ++r) {
    int i = 2 * T + 1 + (r & 1);
    if (i < n - 1) x[i] = 0.5f * (x[i - 1] + x[i + 1]);
    __syncthreads();
  }
}
K tree_sum(float* x, int n) {
  for (int m = n; m > 1; m = (m + 1) / 2) {
    int h = (m + 1) / 2;
    if (T < m / 2) x[T] += x[T + h];
    __syncthreads();
  }
}
K scan_shuffles(int* x, int n) {
  __shared__ int sums[32];
  int v = T < n ? x[T] : 0, lane = T & 31;
  for (int d = 1; d < 32; d *= 2) { int o = __shfl_up_sync(~0u, v, d); if (lane >= d) v += o; }
  if (lane == 31) sums[T / 32] = v;
  __syncthreads();
  if (T < 32) {
    int s = T < (blockDim.x + 31) / 32 ? sums[T] : 0;
    for (int d = 1; d < 32; d *= 2) { int o = __shfl_up_sync(~0u, s, d); if (lane >= d) s += o; }
    sums[T] = s;
  }
  __syncthreads();
  if (T >= 32) v += sums[T / 32 - 1];
  if (T < n) x[T] = v;
}
K compacted(int* x, int* count, int n) {  // those that are odd, kept in order
  __shared__ int base[8];
  int v = T < n ? x[T] : 0;
  bool keep = v & 1;
  u32 ballot = __ballot_sync(~0u, keep);
  if ((T & 31) == 0) base[T / 32] = __popc(ballot);
  __syncthreads();
  int at = __popc(ballot & ((1u << (T & 31)) - 1));
  for (int w = 0; w < T / 32; ++w) at += base[w];
  if (keep) x[at] = v;
  int all = __syncthreads_count(keep);
  if (T == 0) *count = all;
}
K lu(float* a, int n) {
  for (int k = 0; k < n; ++k) {
    if (T > k && T < n) a[T * n + k] /= a[k * n + k];
    __syncthreads();
    for (int i = T; i < n * n; i += blockDim.x)
      if (i / n > k && i % n > k) a[i] -= a[i / n * n + k] * a[k * n + i % n];
    __syncthreads();
  }
}
K cholesky(float* a, int n) {  // one warp
  for (int k = 0; k < n; ++k) {
    if (T == 0) a[k * n + k] = sqrtf(a[k * n + k]);
    __syncwarp();
    if (T > k && T < n) a[T * n + k] /= a[k * n + k];
    __syncwarp();
    if (T > k && T < n) for (int j = k + 1; j <= T; ++j) a[T * n + j] -= a[T * n + k] * a[j * n + k];
    __syncwarp();
  }
}
K shortest_paths(int* d, int n) {
  for (int k = 0; k < n; ++k) {
    for (int i = T; i < n * n; i += blockDim.x) {
      int through = d[i / n * n + k] + d[k * n + i % n];
      if (through < d[i]) d[i] = through;
    }
    __syncthreads();
  }
}
K fft_in_place(float2* x, int bits) {
  int n = 1 << bits;
  extern __shared__ float2 s[];
  for (int i = T; i < n; i += blockDim.x) s[__brev(i) >> (32 - bits)] = x[i];
  __syncthreads();
  for (int h = 1; h < n; h *= 2) {
    for (int i = T; i < n / 2; i += blockDim.x) {
      int j = i % h, at = i / h * 2 * h + j;
      float c, sn;
      sincospif(-(float)j / h, &sn, &c);
      float2 a = s[at], b = s[at + h], t = make_float2(b.x * c - b.y * sn, b.x * sn + b.y * c);
      s[at] = make_float2(a.x + t.x, a.y + t.y);
      s[at + h] = make_float2(a.x - t.x, a.y - t.y);
    }
    __syncthreads();
  }
  for (int i = T; i < n; i += blockDim.x) x[i] = s[i];
}
K life(unsigned char* x, int rows, int columns, int steps) {
  int i = T / columns, j = T % columns;
  for (int t = 0; t < steps; ++t) {
    int live = 0;
    if (i < rows)
      for (int k = 0; k < 9; ++k)
        if (k != 4) live += x[(i + k / 3 + rows - 1) % rows * columns + (j + k % 3 + columns - 1) % columns];
    bool now = i < rows && (live == 3 || (live == 2 && x[T]));
    __syncthreads();
    if (i < rows) x[T] = now;
    __syncthreads();
  }
}
K softmax_warps(float* x, int rows, int n) {
  int row = (blockIdx.x * blockDim.x + T) / 32, lane = T & 31;
  if (row >= rows) return;
  float most = -INFINITY, total = 0;
  for (int i = lane; i < n; i += 32) most = fmaxf(most, x[row * n + i]);
  for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  for (int i = lane; i < n; i += 32) total += expf(x[row * n + i] - most);
  for (int d = 16; d; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  for (int i = lane; i < n; i += 32) x[row * n + i] = expf(x[row * n + i] - most) / total;
}
K axpby_halves(__half* x, const __half* y, int n) {  // pairs, and a tail of one
  __half2* p = (__half2*)x;
  const __half2* q = (const __half2*)y;
  for (int i = T; i < n / 2; i += blockDim.x) p[i] = __hfma2(p[i], __float2half2_rn(2.0f), q[i]);
  if (T == 0 && n & 1) x[n - 1] = __hfma(x[n - 1], __float2half(2.0f), y[n - 1]);
}
K vector_tail(float* x, int n) {
  float4* p = (float4*)x;
  for (int i = T; i < n / 4; i += blockDim.x) { float4 v = p[i]; v.x += 1; v.y *= 2; v.z = -v.z; v.w -= 3; p[i] = v; }
  int i = n / 4 * 4 + T;
  if (i < n) x[i] = x[i] * 10;
}
K labels(const int* a, const int* b, int* parent, int edges) {  // union-find
  if (T >= edges) return;
  int u = a[T], v = b[T];
  while (true) {
    int p = atomicAdd(&parent[u], 0), q = atomicAdd(&parent[v], 0);
    if (p != u) { u = p; continue; }
    if (q != v) { v = q; continue; }
    if (u == v) break;
    if (u < v) { int t = u; u = v; v = t; }
    if (atomicCAS(&parent[u], u, v) == u) break;
  }
}
K flattened(int* parent, int n, const int* a, const int* b, int edges) {
  if (T >= n) return;
  int r = T;
  while (true) { int p = atomicAdd(&parent[r], 0); if (p == r) break; r = p; }
  atomicExch(&parent[T], r);
}
K cub_scan(int* x, int n) {
  typedef cub::BlockScan<int, 96> Scan;
  __shared__ typename Scan::TempStorage s;
  int v = T < n ? x[T] : 0, total;
  Scan(s).ExclusiveSum(v, v, total);
  if (T < n) x[T] = v + total;
}
K cub_sort(int* x, int n) {
  typedef cub::BlockRadixSort<int, 64, 3> Sort;
  typedef cub::BlockLoad<int, 64, 3, cub::BLOCK_LOAD_TRANSPOSE> Load;
  typedef cub::BlockStore<int, 64, 3, cub::BLOCK_STORE_TRANSPOSE> Store;
  __shared__ union { typename Sort::TempStorage a; typename Load::TempStorage b; typename Store::TempStorage c; } s;
  int v[3];
  Load(s.b).Load(x, v, n, 0x7fffffff);
  __syncthreads();
  Sort(s.a).Sort(v);
  __syncthreads();
  Store(s.c).Store(x, v, n);
}
K cub_sums(float* x, int n) {
  typedef cub::BlockReduce<float, 128, cub::BLOCK_REDUCE_WARP_REDUCTIONS> Reduce;
  __shared__ typename Reduce::TempStorage s;
  __shared__ float mean;
  float v = T < n ? x[T] : 0, total = Reduce(s).Sum(v, n);
  if (T == 0) mean = total / n;
  __syncthreads();
  if (T < n) x[T] = v - mean;
}
K cub_warps(int* x) {
  typedef cub::WarpReduce<int, 16> Reduce;
  typedef cub::WarpScan<int, 8> Scan;
  typedef cub::WarpMergeSort<int, 2, 8> Sort;
  __shared__ typename Reduce::TempStorage r[4];
  __shared__ typename Scan::TempStorage c[8];
  __shared__ typename Sort::TempStorage o[8];
  int v = x[T], most = Reduce(r[T / 16]).Reduce(v, [](int a, int b) { return a > b ? a : b; });
  most = __shfl_sync(~0u, most, T & 16);
  int sum;
  Scan(c[T / 8]).InclusiveSum(v, sum);
  int two[2] = {sum, most - v};
  Sort(o[T / 8]).Sort(two, [](int a, int b) { return a < b; });
  __syncthreads();
  x[2 * T] = two[0]; x[2 * T + 1] = two[1];
}
K cub_runs(int* x, int* heads, int n) {
  typedef cub::BlockAdjacentDifference<int, 64> Difference;
  typedef cub::BlockDiscontinuity<int, 64> Runs;
  __shared__ union { typename Difference::TempStorage a; typename Runs::TempStorage b; } s;
  int v[1] = {T < n ? x[T] : 0}, d[1], h[1];
  Difference(s.a).SubtractLeft(v, d, [](int a, int b) { return a - b; });
  __syncthreads();
  Runs(s.b).FlagHeads(h, v, [](int a, int b) { return a != b; });
  if (T < n) { x[T] = d[0]; heads[T] = h[0]; }
}
K tiles_of_eight(float* x, int n) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  float v = T < n ? x[T] : 0, total = cg::reduce(tile, v, cg::plus<float>());
  if (T < n) x[T] = v / total;
}
K some_lanes(int* x, int n) {
  if (T >= n || x[T] % 3 == 0) return;
  auto group = cg::coalesced_threads();
  int sum = cg::inclusive_scan(group, x[T]);
  x[T] = sum * 100 + (int)group.thread_rank();
}
K copied(const int* x, int* out, int n) {
  __shared__ int s[96];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, s, x, sizeof(int) * n);
  cg::wait(block);
  if (T < n) out[T] = s[n - 1 - T] * 2;
}
K barrier_of_some(int* x, int n, int rounds) {  // three warps of four
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  if (T == 0) init(&bar, 96);
  __syncthreads();
  if (T >= 96) return;
  for (int r = 0; r < rounds; ++r) {
    int v = T < n ? x[(T + 1) % n] : 0;
    bar.arrive_and_wait();
    if (T < n) x[T] = v + r;
    bar.arrive_and_wait();
  }
}
K largest(int* best, const int* x, int n) {
  cuda::atomic_ref<int, cuda::thread_scope_device> all(*best);
  int i = blockIdx.x * blockDim.x + T;
  if (i < n) all.fetch_max(x[i], cuda::memory_order_relaxed);
}
K standard_types(float* x, int n) {
  if (T >= n) return;
  cuda::std::array<float, 3> a{x[3 * T], x[3 * T + 1], x[3 * T + 2]};
  if (a[0] > a[1]) cuda::std::swap(a[0], a[1]);
  if (a[1] > a[2]) cuda::std::swap(a[1], a[2]);
  if (a[0] > a[1]) cuda::std::swap(a[0], a[1]);
  cuda::std::complex<float> z(a[0], a[1]);
  z *= z;
  x[3 * T] = z.real(); x[3 * T + 1] = z.imag(); x[3 * T + 2] = a[2];
}
