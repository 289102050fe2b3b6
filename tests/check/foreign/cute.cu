// Kernels on CuTe: layouts, tiled copies and products of sm_80, TMA and wgmma of sm_90.
#include <cute/tensor.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/arch/barrier.h>
#define KERNEL extern "C" __global__ void
using namespace cute;

KERNEL layouts(const float* in, float* out) {
    auto a = make_tensor(make_gmem_ptr(in), make_layout(make_shape(Int<16>{}, Int<24>{}), make_stride(Int<24>{}, Int<1>{})));
    auto b = make_tensor(make_gmem_ptr(out), make_layout(make_shape(Int<16>{}, Int<24>{})));
    for (int i = threadIdx.x; i < size(a); i += blockDim.x) b(i) = a(i);
}
KERNEL tiles(const float* in, float* out, int m, int n) {
    auto whole = make_tensor(make_gmem_ptr(in), make_shape(m, n), make_stride(n, Int<1>{}));
    auto result = make_tensor(make_gmem_ptr(out), make_shape(m, n), make_stride(n, Int<1>{}));
    auto tile = Shape<_32, _32>{};
    auto a = local_tile(whole, tile, make_coord(blockIdx.x, blockIdx.y)); auto b = local_tile(result, tile, make_coord(blockIdx.x, blockIdx.y));
    auto t = make_layout(Shape<_4, _32>{}, Stride<_32, _1>{});
    auto ta = local_partition(a, t, threadIdx.x); auto tb = local_partition(b, t, threadIdx.x);
    auto r = make_fragment_like(ta);
    copy(ta, r);
    for (int i = 0; i < size(r); i++) r(i) = r(i) * 2 + 1;
    copy(r, tb);
}
KERNEL tiled_copy(const float* in, float* out) {
    auto a = make_tensor(make_gmem_ptr(in), make_layout(Shape<_64, _32>{}, LayoutRight{})); auto b = make_tensor(make_gmem_ptr(out), make_layout(Shape<_64, _32>{}, LayoutRight{}));
    auto c = make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, float>{}, make_layout(Shape<_16, _8>{}, LayoutRight{}), make_layout(Shape<_1, _4>{}));
    auto mine = c.get_slice(threadIdx.x);
    auto s = mine.partition_S(a); auto d = mine.partition_D(b);
    auto r = make_fragment_like(d);
    copy(c, s, r);
    copy(c, r, d);
}
KERNEL swizzled_transpose(const half_t* in, half_t* out) {
    __shared__ alignas(128) half_t memory[64 * 64];
    auto s = make_tensor(make_smem_ptr(memory), composition(Swizzle<3, 3, 3>{}, make_layout(Shape<_64, _64>{}, LayoutRight{})));
    auto a = make_tensor(make_gmem_ptr(in), make_layout(Shape<_64, _64>{}, LayoutRight{})); auto b = make_tensor(make_gmem_ptr(out), make_layout(Shape<_64, _64>{}, LayoutRight{}));
    auto c = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>{}, make_layout(Shape<_16, _8>{}, LayoutRight{}), make_layout(Shape<_1, _8>{}));
    auto mine = c.get_slice(threadIdx.x);
    copy(c, mine.partition_S(a), mine.partition_D(s));
    cp_async_fence();
    cp_async_wait<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < 4096; i += 128) b(i / 64, i % 64) = s(i % 64, i / 64);
}
KERNEL sgemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float sa_[32 * 8], sb_[32 * 8];
    auto A = make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(Int<1>{}, m)); auto B = make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(Int<1>{}, n));
    auto C = make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(Int<1>{}, m));
    auto shape = Shape<_32, _32, _8>{}; auto at = make_coord(blockIdx.x, blockIdx.y, _);
    auto gA = local_tile(A, shape, at, Step<_1, X, _1>{}); auto gB = local_tile(B, shape, at, Step<X, _1, _1>{}); auto gC = local_tile(C, shape, at, Step<_1, _1, X>{});
    auto sA = make_tensor(make_smem_ptr(sa_), make_layout(Shape<_32, _8>{})); auto sB = make_tensor(make_smem_ptr(sb_), make_layout(Shape<_32, _8>{}));
    auto ta = make_layout(Shape<_32, _2>{}); auto tc = make_layout(Shape<_8, _8>{});
    auto tAgA = local_partition(gA, ta, threadIdx.x); auto tBgB = local_partition(gB, ta, threadIdx.x);
    auto tAsA = local_partition(sA, ta, threadIdx.x); auto tBsB = local_partition(sB, ta, threadIdx.x);
    auto tCsA = local_partition(sA, tc, threadIdx.x, Step<_1, X>{}); auto tCsB = local_partition(sB, tc, threadIdx.x, Step<X, _1>{}); auto tCgC = local_partition(gC, tc, threadIdx.x, Step<_1, _1>{});
    auto acc = make_tensor_like(tCgC);
    clear(acc);
    for (int i = 0; i < size<2>(tAgA); i++) {
        copy(tAgA(_, _, i), tAsA), copy(tBgB(_, _, i), tBsB);
        cp_async_fence(); cp_async_wait<0>();
        __syncthreads();
        gemm(tCsA, tCsB, acc);
        __syncthreads();
    }
    axpby(1.0f, acc, 0.0f, tCgC);
}
KERNEL hgemm_sm80(const half_t* a, const half_t* b, float* c, int m, int n, int k) {
    __shared__ alignas(128) half_t sa_[3 * 64 * 64], sb_[3 * 64 * 64];
    auto A = make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(k, Int<1>{})); auto B = make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(k, Int<1>{}));
    auto C = make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(n, Int<1>{}));
    auto shape = Shape<_64, _64, _64>{}; auto at = make_coord(blockIdx.x, blockIdx.y, _);
    auto gA = local_tile(A, shape, at, Step<_1, X, _1>{}); auto gB = local_tile(B, shape, at, Step<X, _1, _1>{}); auto gC = local_tile(C, shape, at, Step<_1, _1, X>{});
    auto atom = composition(Swizzle<3, 3, 3>{}, make_layout(Shape<_8, _64>{}, LayoutRight{}));
    auto layout = tile_to_shape(atom, Shape<_64, _64, _3>{});
    auto sA = make_tensor(make_smem_ptr(sa_), layout); auto sB = make_tensor(make_smem_ptr(sb_), layout);
    auto copier = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>{}, make_layout(Shape<_16, _8>{}, LayoutRight{}), make_layout(Shape<_1, _8>{}));
    auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{});
    auto mine = copier.get_slice(threadIdx.x);
    auto tAgA = mine.partition_S(gA); auto tAsA = mine.partition_D(sA); auto tBgB = mine.partition_S(gB); auto tBsB = mine.partition_D(sB);
    auto part = mma.get_slice(threadIdx.x);
    auto tCgC = part.partition_C(gC);
    auto rA = part.partition_fragment_A(sA(_, _, 0)); auto rB = part.partition_fragment_B(sB(_, _, 0)); auto rC = part.make_fragment_C(tCgC);
    clear(rC);
    auto ca = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma); auto cb = make_tiled_copy_B(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
    auto la = ca.get_slice(threadIdx.x); auto lb = cb.get_slice(threadIdx.x);
    auto tXsA = la.partition_S(sA); auto tXrA = la.retile_D(rA); auto tXsB = lb.partition_S(sB); auto tXrB = lb.retile_D(rB);
    int count = size<3>(tAgA);
    for (int s = 0; s < 2; s++) { if (s < count) copy(copier, tAgA(_, _, _, s), tAsA(_, _, _, s)), copy(copier, tBgB(_, _, _, s), tBsB(_, _, _, s)); cp_async_fence(); }
    for (int i = 0; i < count; i++) {
        cp_async_wait<1>();
        __syncthreads();
        if (i + 2 < count) copy(copier, tAgA(_, _, _, i + 2), tAsA(_, _, _, (i + 2) % 3)), copy(copier, tBgB(_, _, _, i + 2), tBsB(_, _, _, (i + 2) % 3));
        cp_async_fence();
        CUTE_UNROLL
        for (int kk = 0; kk < size<2>(rA); kk++) {
            copy(ca, tXsA(_, _, kk, i % 3), tXrA(_, _, kk)), copy(cb, tXsB(_, _, kk, i % 3), tXrB(_, _, kk));
            gemm(mma, rA(_, _, kk), rB(_, _, kk), rC);
        }
    }
    copy(rC, tCgC);
}
#if __CUDA_ARCH__ == 900
using KAtom = GMMA::Layout_K_SW128_Atom<half_t>;
KERNEL wgmma_plain(const half_t* a, const half_t* b, float* c, int k) {
    __shared__ alignas(1024) half_t sa_[64 * 64], sb_[64 * 64];
    auto A = make_tensor(make_gmem_ptr(a), make_shape(Int<64>{}, k), make_stride(k, Int<1>{})); auto B = make_tensor(make_gmem_ptr(b), make_shape(Int<64>{}, k), make_stride(k, Int<1>{}));
    auto C = make_tensor(make_gmem_ptr(c), make_layout(Shape<_64, _64>{}, LayoutRight{}));
    auto layout = tile_to_shape(KAtom{}, Shape<_64, _64>{});
    auto sA = make_tensor(make_smem_ptr(sa_), layout); auto sB = make_tensor(make_smem_ptr(sb_), layout);
    auto mma = make_tiled_mma(SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
    auto part = mma.get_slice(threadIdx.x);
    auto rA = part.make_fragment_A(part.partition_A(sA)); auto rB = part.make_fragment_B(part.partition_B(sB));
    auto tC = part.partition_C(C); auto rC = part.make_fragment_C(tC);
    clear(rC);
    for (int i = 0; i < k / 64; i++) {
        for (int e = threadIdx.x; e < 4096; e += 128) sA(e / 64, e % 64) = A(e / 64, i * 64 + e % 64), sB(e / 64, e % 64) = B(e / 64, i * 64 + e % 64);
        cutlass::arch::fence_view_async_shared();
        __syncthreads();
        warpgroup_fence_operand(rC);
        warpgroup_arrive();
        gemm(mma, rA, rB, rC);
        warpgroup_commit_batch();
        warpgroup_wait<0>();
        warpgroup_fence_operand(rC);
        __syncthreads();
    }
    copy(rC, tC);
}
KERNEL wgmma_tma(const __grid_constant__ TmaDescriptor a, const __grid_constant__ TmaDescriptor b, float* c, int n, int k) {
    constexpr int P = 3;
    __shared__ alignas(1024) half_t sa_[P * 64 * 64], sb_[P * 64 * 64];
    __shared__ uint64_t full[P], empty[P];
    using Full = cutlass::arch::ClusterTransactionBarrier; using Empty = cutlass::arch::ClusterBarrier;
    auto layout = tile_to_shape(KAtom{}, Shape<_64, _64, Int<P>>{});
    auto sA = make_tensor(make_smem_ptr(sa_), layout); auto sB = make_tensor(make_smem_ptr(sb_), layout);
    if (threadIdx.x == 0) { prefetch_tma_descriptor(&a); prefetch_tma_descriptor(&b); for (int i = 0; i < P; i++) Full::init(&full[i], 1), Empty::init(&empty[i], 128); }
    cutlass::arch::fence_barrier_init();
    __syncthreads();
    int row = blockIdx.x * 64, column = blockIdx.y * 64, count = k / 64;
    auto load = [&](int i) {
        Full::arrive_and_expect_tx(&full[i % P], 2 * 8192);
        SM90_TMA_LOAD_2D::copy(&a, &full[i % P], 0, &sA(0, 0, i % P), i * 64, row);
        SM90_TMA_LOAD_2D::copy(&b, &full[i % P], 0, &sB(0, 0, i % P), i * 64, column);
    };
    if (threadIdx.x == 0) for (int i = 0; i < P && i < count; i++) load(i);
    auto mma = make_tiled_mma(SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
    auto part = mma.get_slice(threadIdx.x);
    auto rA = part.make_fragment_A(part.partition_A(sA)); auto rB = part.make_fragment_B(part.partition_B(sB));
    auto C = make_tensor(make_gmem_ptr(c) + row * n + column, make_shape(Int<64>{}, Int<64>{}), make_stride(n, Int<1>{}));
    auto tC = part.partition_C(C); auto rC = part.make_fragment_C(tC);
    clear(rC);
    for (int i = 0; i < count; i++) {
        Full::wait(&full[i % P], i / P & 1);
        warpgroup_arrive();
        gemm(mma, rA(_, _, _, i % P), rB(_, _, _, i % P), rC);
        warpgroup_commit_batch();
        warpgroup_wait<0>();
        Empty::arrive(&empty[i % P]);
        if (threadIdx.x == 0 && i + P < count) { Empty::wait(&empty[i % P], i / P & 1); load(i + P); }
    }
    copy(rC, tC);
}
KERNEL tma_store(const __grid_constant__ TmaDescriptor in, const __grid_constant__ TmaDescriptor out) {
    __shared__ alignas(1024) float s[32 * 32];
    __shared__ uint64_t full;
    using Full = cutlass::arch::ClusterTransactionBarrier;
    if (threadIdx.x == 0) Full::init(&full, 1);
    cutlass::arch::fence_barrier_init();
    __syncthreads();
    if (threadIdx.x == 0) { Full::arrive_and_expect_tx(&full, 4096); SM90_TMA_LOAD_2D::copy(&in, &full, 0, s, blockIdx.x * 32, 0); }
    Full::wait(&full, 0);
    for (int i = threadIdx.x; i < 1024; i += 128) s[i] += 1;
    tma_store_fence();
    __syncthreads();
    if (threadIdx.x == 0) { SM90_TMA_STORE_2D::copy(&out, s, blockIdx.x * 32, 0); tma_store_arrive(); tma_store_wait<0>(); }
}
KERNEL tma_multicast(const __grid_constant__ TmaDescriptor in, float* out) {
    __shared__ alignas(128) float s[32 * 32];
    __shared__ uint64_t full;
    using Full = cutlass::arch::ClusterTransactionBarrier;
    if (threadIdx.x == 0) Full::init(&full, 1);
    cutlass::arch::fence_barrier_init();
    cluster_sync();
    if (threadIdx.x == 0) {
        Full::arrive_and_expect_tx(&full, 4096);
        unsigned rank = block_rank_in_cluster();
        SM90_TMA_LOAD_MULTICAST_2D::copy(&in, &full, (uint16_t)3, 0, s + rank * 512, 0, rank * 16);
    }
    Full::wait(&full, 0);
    for (int i = threadIdx.x; i < 1024; i += 128) out[blockIdx.x * 1024 + i] = s[i] * 2;
    cluster_sync();
}
#endif
