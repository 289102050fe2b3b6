// Products of sm_100 on CuTe: operands in shared memory, sums in tensor memory.
#include <cute/tensor.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/algorithm/cooperative_copy.hpp>
#include <cute/arch/tmem_allocator_sm100.hpp>
#include <cutlass/arch/barrier.h>
#define KERNEL extern "C" __global__ void
using namespace cute;

// C (m, n) = A (m, k) B (n, k), with tiles of one instruction's M and N and four of its K.
template <class Mma, class Atom, class T, class Load>
__device__ void tile(Mma mma, Atom atom, Load load, const T* a, const T* b, float* c, int m, int n, int k) {
    auto shape = make_shape(tile_size<0>(mma), tile_size<1>(mma), tile_size<2>(mma) * Int<4>{});
    auto layout_a = UMMA::tile_to_mma_shape(atom, partition_shape_A(mma, select<0, 2>(shape)));
    auto layout_b = UMMA::tile_to_mma_shape(atom, partition_shape_B(mma, select<1, 2>(shape)));
    __shared__ alignas(1024) T room_a[cosize_v<decltype(layout_a)>], room_b[cosize_v<decltype(layout_b)>];
    __shared__ alignas(16) uint64_t done;
    __shared__ alignas(16) uint32_t base;
    auto at = make_coord(blockIdx.x, blockIdx.y, _);
    auto ga = local_tile(make_tensor(make_gmem_ptr(a), make_layout(make_shape(m, k), make_stride(k, Int<1>{}))), shape, at, Step<_1, X, _1>{});
    auto gb = local_tile(make_tensor(make_gmem_ptr(b), make_layout(make_shape(n, k), make_stride(k, Int<1>{}))), shape, at, Step<X, _1, _1>{});
    auto gc = local_tile(make_tensor(make_gmem_ptr(c), make_layout(make_shape(m, n), make_stride(n, Int<1>{}))), shape, at, Step<_1, _1, X>{});
    auto sa = make_tensor(make_smem_ptr(room_a), layout_a); auto sb = make_tensor(make_smem_ptr(room_b), layout_b);
    auto mine = mma.get_slice(0);
    auto pa = mine.partition_A(ga); auto pb = mine.partition_B(gb); auto pc = mine.partition_C(gc);
    auto da = mine.make_fragment_A(sa); auto db = mine.make_fragment_B(sb);
    auto sum = mine.make_fragment_C(pc);
    TMEM::Allocator1Sm allocator{};
    bool first = threadIdx.x / 32 == 0, one = elect_one_sync();
    if (first) allocator.allocate(256, &base);
    if (first && one) initialize_barrier(done, 1);
    __syncthreads();
    sum.data() = base;
    mma.accumulate_ = UMMA::ScaleOut::Zero;
    for (int step = 0; step < size<3>(pa); step++) {
        cooperative_copy<128>(threadIdx.x, pa(_, _, _, step), sa);
        cooperative_copy<128>(threadIdx.x, pb(_, _, _, step), sb);
        tma_store_fence();  // fence.proxy.async
        __syncthreads();
        if (first) {
            for (int block = 0; block < size<2>(da); block++) {
                gemm(mma, da(_, _, block), db(_, _, block), sum);
                mma.accumulate_ = UMMA::ScaleOut::One;
            }
            cutlass::arch::umma_arrive(&done);
        }
        wait_barrier(done, step & 1);
    }
    auto copier = make_tmem_copy(load, sum);
    auto thread = copier.get_slice(threadIdx.x);
    auto from = thread.partition_S(sum); auto to = thread.partition_D(pc);
    auto values = make_tensor<float>(shape_div(cute::shape(to), Int<1>{}));
    copy(copier, from, values);
    cutlass::arch::fence_view_async_tmem_load();
    copy(values, to);
    __syncthreads();
    if (first) { allocator.release_allocation_lock(); allocator.free(base, 256); }
}
KERNEL sm100_f16(const half_t* a, const half_t* b, float* c, int m, int n, int k) {
    auto mma = make_tiled_mma(SM100_MMA_F16BF16_SS<half_t, half_t, float, 128, 64, UMMA::Major::K, UMMA::Major::K>{});
    tile(mma, UMMA::Layout_K_SW128_Atom<half_t>{}, SM100_TMEM_LOAD_32dp32b1x{}, a, b, c, m, n, k);
}
KERNEL sm100_narrow(const half_t* a, const half_t* b, float* c, int m, int n, int k) {
    auto mma = make_tiled_mma(SM100_MMA_F16BF16_SS<half_t, half_t, float, 64, 32, UMMA::Major::K, UMMA::Major::K>{});
    tile(mma, UMMA::Layout_K_SW64_Atom<half_t>{}, SM100_TMEM_LOAD_16dp256b1x{}, a, b, c, m, n, k);
}
KERNEL sm100_tf32(const tfloat32_t* a, const tfloat32_t* b, float* c, int m, int n, int k) {
    auto mma = make_tiled_mma(SM100_MMA_TF32_SS<tfloat32_t, tfloat32_t, float, 128, 64, UMMA::Major::K, UMMA::Major::K>{});
    tile(mma, UMMA::Layout_K_SW128_Atom<tfloat32_t>{}, SM100_TMEM_LOAD_32dp32b8x{}, a, b, c, m, n, k);
}
KERNEL sm100_plain(const half_t* a, const half_t* b, float* c, int m, int n, int k) {
    auto mma = make_tiled_mma(SM100_MMA_F16BF16_SS<half_t, half_t, float, 128, 32, UMMA::Major::K, UMMA::Major::K>{});
    tile(mma, UMMA::Layout_K_INTER_Atom<half_t>{}, SM100_TMEM_LOAD_32dp32b1x{}, a, b, c, m, n, k);
}
