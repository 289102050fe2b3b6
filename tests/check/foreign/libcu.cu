// libcu++: barriers, pipelines, semaphores, latches, atomics, copies, and what std:: has.
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda/semaphore>
#include <cuda/annotated_ptr>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/mdspan>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/variant>
#include <cuda/functional>
#include <cuda/std/chrono>
#include <cuda/warp>
#include <cuda/cmath>
#include <cooperative_groups.h>
#define K extern "C" __global__ void
#define TID (blockIdx.x * blockDim.x + threadIdx.x)
using block_barrier = cuda::barrier<cuda::thread_scope_block>;
namespace cg = cooperative_groups;
using namespace cuda::std::chrono_literals;

K barrier_phases(const int* in, int* out, int n) {
    __shared__ block_barrier bar;
    __shared__ int s[64];
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    int x = in[threadIdx.x];
    for (int i = 0; i < n; i++) {
        s[threadIdx.x] = x;
        auto token = bar.arrive();
        int y = x * 3;
        bar.wait(std::move(token));
        x = y + s[(threadIdx.x + 1) % 64];
        bar.arrive_and_wait();
    }
    out[threadIdx.x] = x;
}
K barrier_drop(int* out) {
    __shared__ block_barrier bar;
    __shared__ int sum;
    if (threadIdx.x == 0) init(&bar, blockDim.x), sum = 0;
    __syncthreads();
    for (int i = 0; i < 4; i++) {
        if (threadIdx.x / 32 == i) { bar.arrive_and_drop(); return; }
        atomicAdd(&sum, 1);
        bar.arrive_and_wait();
    }
    if (threadIdx.x == 128) *out = sum;
}
K barrier_completion(int* out) {
    struct Done { int* p; __device__ void operator()() noexcept { *p += 1; } };
    using B = cuda::barrier<cuda::thread_scope_block, Done>;
    __shared__ cuda::std::aligned_storage<sizeof(B), alignof(B)>::type raw;
    __shared__ int count;
    B* bar = (B*)&raw;
    if (threadIdx.x == 0) { count = 0; new (bar) B(blockDim.x, Done{&count}); }
    __syncthreads();
    for (int i = 0; i < 3; i++) bar->arrive_and_wait();
    out[threadIdx.x] = count;
}
K barrier_parity(const int* in, int* out) {
    __shared__ block_barrier ready, filled;
    __shared__ int s[32];
    if (threadIdx.x == 0) init(&ready, 32), init(&filled, 32);
    __syncthreads();
    bool parity = false;
    for (int i = 0; i < 4; i++) {
        if (threadIdx.x < 32) {
            if (i) ready.wait_parity((i - 1) & 1);
            s[threadIdx.x] = in[i * 32 + threadIdx.x];
            (void)filled.arrive();
        } else {
            filled.wait_parity(parity);
            out[i * 32 + threadIdx.x - 32] = s[63 - threadIdx.x];
            (void)ready.arrive();
            parity = !parity;
        }
    }
}
K barrier_copy(const int* in, int* out) {
    __shared__ block_barrier bar;
    __shared__ alignas(16) int s[256];
    auto group = cg::this_thread_block();
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(group, s, in + blockIdx.x * 256, cuda::aligned_size_t<16>(1024), bar);
    bar.arrive_and_wait();
    out[blockIdx.x * 256 + threadIdx.x] = s[255 - threadIdx.x], out[blockIdx.x * 256 + threadIdx.x + 128] = s[127 - threadIdx.x];
}
K barrier_copy_bytes(const char* in, char* out) {
    __shared__ block_barrier bar;
    __shared__ char s[96];
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(s + threadIdx.x * 3, in + threadIdx.x * 3, 3, bar);
    bar.arrive_and_wait();
    for (int i = 0; i < 3; i++) out[threadIdx.x * 3 + i] = s[95 - threadIdx.x * 3 - i];
}
K pipeline_shared(const int4* in, int4* out, int n) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
    __shared__ int4 s[3][64];
    auto group = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(group, &state);
    for (int fetch = 0, i = 0; i < n; i++) {
        for (; fetch < n && fetch < i + 3; fetch++) {
            pipe.producer_acquire();
            cuda::memcpy_async(group, s[fetch % 3], in + fetch * 64, cuda::aligned_size_t<16>(1024), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        int4 v = s[i % 3][63 - threadIdx.x];
        out[i * 64 + threadIdx.x] = make_int4(v.w, v.z, v.y, v.x);
        pipe.consumer_release();
    }
}
K pipeline_roles(const int* in, int* out, int n) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int s[2][32];
    auto group = cg::this_thread_block();
    auto role = threadIdx.x < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(group, &state, role);
    if (threadIdx.x < 32) for (int i = 0; i < n; i++) {
        pipe.producer_acquire();
        cuda::memcpy_async(s[i % 2] + threadIdx.x, in + i * 32 + threadIdx.x, sizeof(int), pipe);
        pipe.producer_commit();
    } else for (int i = 0; i < n; i++) {
        pipe.consumer_wait();
        out[i * 32 + threadIdx.x - 32] = s[i % 2][63 - threadIdx.x] + 1;
        pipe.consumer_release();
    }
}
K pipeline_thread(const float* in, float* out, int n) {
    __shared__ float s[4][64];
    auto pipe = cuda::make_pipeline();
    for (int i = 0; i < 3; i++) { pipe.producer_acquire(); cuda::memcpy_async(&s[i][threadIdx.x], in + i * 64 + threadIdx.x, cuda::aligned_size_t<4>(4), pipe); pipe.producer_commit(); }
    for (int i = 0; i < n; i++) {
        pipe.producer_acquire();
        if (i + 3 < n) cuda::memcpy_async(&s[(i + 3) % 4][threadIdx.x], in + (i + 3) * 64 + threadIdx.x, cuda::aligned_size_t<4>(4), pipe);
        pipe.producer_commit();
        cuda::pipeline_consumer_wait_prior<3>(pipe);
        out[i * 64 + threadIdx.x] = s[i % 4][threadIdx.x] * 2;
        pipe.consumer_release();
    }
}
K semaphores(int* out, int rounds) {
    __shared__ cuda::std::aligned_storage<sizeof(cuda::binary_semaphore<cuda::thread_scope_block>), 8>::type raw;
    auto* sem = (cuda::binary_semaphore<cuda::thread_scope_block>*)&raw;
    __shared__ int x;
    if (threadIdx.x == 0) { new (sem) cuda::binary_semaphore<cuda::thread_scope_block>(1); x = 0; }
    __syncthreads();
    if (threadIdx.x % 32 == 0) for (int i = 0; i < rounds; i++) { sem->acquire(); x = x + 1; sem->release(); }
    __syncthreads();
    if (threadIdx.x == 0) *out = x;
}
K counting_semaphore(int* out, int* most) {
    using S = cuda::counting_semaphore<cuda::thread_scope_device, 4>;
    __shared__ cuda::std::aligned_storage<sizeof(S), 8>::type raw;
    S* sem = (S*)&raw;
    if (threadIdx.x == 0) new (sem) S(2);
    __syncthreads();
    if (threadIdx.x % 32 == 0) { sem->acquire(); atomicMax(most, atomicAdd(out, 1) + 1); atomicSub(out, 1); sem->release(); }
}
K latches(const int* in, int* out) {
    using L = cuda::latch<cuda::thread_scope_block>;
    __shared__ cuda::std::aligned_storage<sizeof(L), 8>::type raw;
    __shared__ int s[64];
    L* latch = (L*)&raw;
    if (threadIdx.x == 0) new (latch) L(blockDim.x);
    __syncthreads();
    s[threadIdx.x] = in[threadIdx.x];
    latch->arrive_and_wait();
    out[threadIdx.x] = s[63 - threadIdx.x];
}
K message(int* data, int* flag, int* out) {
    cuda::atomic_ref<int, cuda::thread_scope_device> f(*flag);
    if (threadIdx.x) return;
    if (blockIdx.x == 0) { data[0] = 42; f.store(1, cuda::memory_order_release); f.notify_all(); }
    else { f.wait(0, cuda::memory_order_acquire); out[blockIdx.x] = data[0]; }
}
K message_fences(int* data, int* flag, int* out) {
    cuda::atomic_ref<int, cuda::thread_scope_device> f(*flag);
    if (threadIdx.x) return;
    if (blockIdx.x == 0) { data[0] = 42; cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device); f.store(1, cuda::memory_order_relaxed); }
    else { while (f.load(cuda::memory_order_relaxed) == 0) {} cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device); out[blockIdx.x] = data[0]; }
}
K spin_atomic(cuda::atomic<int, cuda::thread_scope_device>* lock, int* x) {
    if (threadIdx.x) return;
    int free = 0;
    while (!lock->compare_exchange_weak(free, 1, cuda::std::memory_order_acquire)) free = 0;
    *x += 1;
    lock->store(0, cuda::std::memory_order_release);
}
K ticket_lock(int* next, int* serving, int* x) {
    if (threadIdx.x) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> n(*next), s(*serving);
    int mine = n.fetch_add(1, cuda::memory_order_relaxed);
    while (s.load(cuda::memory_order_acquire) != mine) __nanosleep(10);
    x[0] = x[0] * 3 + 1;
    s.fetch_add(1, cuda::memory_order_release);
}
K atomic_kinds(int* i, unsigned long long* u, float* f, double* d, short* h, unsigned char* b) {
    cuda::atomic_ref<int, cuda::thread_scope_device>(i[0]).fetch_add(2);
    cuda::atomic_ref<int, cuda::thread_scope_device>(i[1]).fetch_max((int)TID);
    cuda::atomic_ref<int, cuda::thread_scope_system>(i[2]).fetch_xor((int)TID, cuda::memory_order_relaxed);
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>(*u).fetch_or(1ull << (TID % 60), cuda::memory_order_acq_rel);
    cuda::atomic_ref<float, cuda::thread_scope_device>(*f).fetch_add(0.5f);
    cuda::atomic_ref<double, cuda::thread_scope_device>(*d).fetch_add(0.25);
    cuda::atomic_ref<short, cuda::thread_scope_device>(h[1]).fetch_add(3);
    cuda::atomic_ref<unsigned char, cuda::thread_scope_device>(b[2]).fetch_add(1);
}
K atomic_multiply(float* x, long long* y) {
    cuda::atomic_ref<float, cuda::thread_scope_device> r(*x);
    float old = r.load(cuda::memory_order_relaxed);
    while (!r.compare_exchange_weak(old, old * 2.0f, cuda::memory_order_relaxed)) {}
    cuda::atomic_ref<long long, cuda::thread_scope_device>(*y).fetch_min(-(long long)TID * 5);
}
K sequentially(int* x, int* y, int* out) {
    using A = cuda::atomic_ref<int, cuda::thread_scope_device>;
    if (threadIdx.x) return;
    if (blockIdx.x == 0) { A(*x).store(1); out[0] = A(*y).load(); } else { A(*y).store(1); out[1] = A(*x).load(); }
}
K mdspans(const float* a, float* out, int m, int n) {
    cuda::std::mdspan<const float, cuda::std::dextents<int, 2>> x(a, m, n);
    cuda::std::mdspan<float, cuda::std::dextents<int, 2>, cuda::std::layout_left> y(out, m, n);
    for (int i = threadIdx.x; i < m; i += blockDim.x) for (int j = 0; j < n; j++) y(i, j) = x(i, j) + i;
}
K complexes(const cuda::std::complex<float>* a, cuda::std::complex<float>* b) {
    auto z = a[TID];
    b[TID] = z * z / (z + cuda::std::complex<float>(3, 1)) + cuda::std::conj(z);
}
K vocabulary(const unsigned* in, unsigned* out) {
    unsigned v = in[TID];
    cuda::std::optional<unsigned> o;
    if (v & 1) o = v >> 3;
    auto t = cuda::std::make_tuple(v, cuda::std::popcount(v), cuda::std::countl_zero(v | 1));
    cuda::std::variant<int, float> w;
    if (v & 2) w = 2.5f; else w = 3;
    cuda::std::array<unsigned, 4> a{1, 2, 3, 4};
    float f = cuda::std::visit([](auto x) { return (float)x; }, w);
    out[TID] = o.value_or(7) + cuda::std::get<1>(t) + cuda::std::get<2>(t) * a[v & 3] + (unsigned)(f * 2) + cuda::std::rotl(v, 5) + cuda::ceil_div(v & 255, 7u);
}
K annotated(const int* in, int* out, int n) {
    cuda::annotated_ptr<const int, cuda::access_property::streaming> a(in);
    cuda::annotated_ptr<int, cuda::access_property::normal> b(out);
    for (int i = TID; i < n; i += blockDim.x * gridDim.x) b[i] = a[i] * 2;
}
K grid_barrier(cuda::barrier<cuda::thread_scope_device>* bar, int* x, int* out) {
    x[TID] = TID;
    bar->arrive_and_wait();
    out[TID] = x[(TID + 40) % (gridDim.x * blockDim.x)];
}
K grid_barrier_init(cuda::barrier<cuda::thread_scope_device>* bar, int n) { if (threadIdx.x == 0) init(bar, n * 32); }
// Waits that may give up, and sleeps between tries.
K barrier_try_for(int* out) {
    __shared__ block_barrier bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x + 1);
    __syncthreads();
    bool done = bar.try_wait_for(bar.arrive(), 2us);
    __syncthreads();
    if (threadIdx.x == 0) (void)bar.arrive();
    out[threadIdx.x] = done ? 1 : 2;
    __syncthreads();
}
K atomic_wait(int* out, cuda::atomic<int, cuda::thread_scope_device>* a) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        out[0] = 5;
        a->store(1, cuda::memory_order_release);
        a->notify_all();
    } else {
        a->wait(0, cuda::memory_order_acquire);
        out[blockIdx.x] = out[0] + blockIdx.x;
    }
}
K semaphore_for(int* out, cuda::binary_semaphore<cuda::thread_scope_device>* s) {
    if (threadIdx.x) return;
    while (!s->try_acquire_for(5us)) {}
    out[0] = out[0] * 2 + 1;
    s->release();
}
K lock_with_sleeps(int* lock, int* count, int rounds) {
    if (threadIdx.x) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> l(*lock);
    for (int r = 0; r < rounds; r++) {
        unsigned ns = 8;
        while (l.exchange(1, cuda::memory_order_acquire)) {
            __nanosleep(ns);
            if (ns < 256) ns *= 2;
        }
        *count += 1;
        l.store(0, cuda::memory_order_release);
    }
}
K time_out(volatile int* flag, int* out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        for (int i = 0; i < 2000; i++) ((volatile int*)out)[1] = i;
        __threadfence();
        *flag = 1;
    } else {
        long long start = clock64();
        bool late = false;
        while (*flag == 0 && !late) {
            __nanosleep(64);
            late = clock64() - start > 20000000;
        }
        out[0] = late ? 2 : 1;
    }
}
struct alignas(8) Pair { int a; float b; };
K shuffled_pairs(const Pair* x, Pair* y) { y[threadIdx.x] = cuda::device::warp_shuffle_xor(x[threadIdx.x], 5).data; }
K interleaved(const int* x, int* y, int n) {
    cuda::access_property p{cuda::access_property::persisting{}, 0.5f};
    cuda::annotated_ptr<const int, cuda::access_property> a{x, p};
    cuda::apply_access_property(x, n * 4, cuda::access_property::persisting{});
    if (TID < n) y[TID] = a[TID] + cuda::associate_access_property(x, cuda::access_property::streaming{})[TID];
}
#if __CUDA_ARCH__ >= 900
K bulk_copy(const int* in, int* out) {
    __shared__ alignas(128) int s[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ block_barrier bar;
    namespace ptx = cuda::ptx;
    if (threadIdx.x == 0) { init(&bar, blockDim.x); ptx::fence_proxy_async(ptx::space_shared); }
    __syncthreads();
    block_barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::memcpy_async(s, in + blockIdx.x * 256, cuda::aligned_size_t<16>(1024), bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, 0);
    } else token = bar.arrive();
    bar.wait(std::move(token));
    for (int i = threadIdx.x; i < 256; i += 64) s[i] += 1;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * 256, s, 1024);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
}
K bulk_reduce(const int* in, int* out) {
    __shared__ alignas(16) int s[64];
    namespace ptx = cuda::ptx;
    s[threadIdx.x] = in[TID];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, out, s, 256u);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}
K remote_arrive(const int* in, int* out) {
    namespace ptx = cuda::ptx;
    __shared__ uint64_t bar;
    __shared__ int receive[2];
    auto cluster = cg::this_cluster();
    unsigned me = cluster.block_rank(), other = me ^ 1;
    if (threadIdx.x == 0) { ptx::mbarrier_init(&bar, 1); }
    cluster.sync();
    uint64_t* theirs = cluster.map_shared_rank(&bar, other);
    int* there = cluster.map_shared_rank(receive, other);
    if (threadIdx.x == 0) {
        (void)ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cluster, ptx::space_shared, &bar, 8);
        ptx::st_async(there, {in[2 * blockIdx.x], in[2 * blockIdx.x + 1]}, theirs);
    }
    while (!ptx::mbarrier_try_wait_parity(&bar, 0)) {}
    if (threadIdx.x < 2) out[2 * blockIdx.x + threadIdx.x] = receive[threadIdx.x];
    cluster.sync();
}
K multicast_reduce(const int* in, int* out) {
    namespace ptx = cuda::ptx;
    __shared__ alignas(16) int s[64], sum[64];
    __shared__ uint64_t bar;
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[TID], sum[threadIdx.x] = 0;
    if (threadIdx.x == 0) { ptx::mbarrier_init(&bar, 1); (void)0; }
    ptx::fence_proxy_async(ptx::space_shared);
    cluster.sync();
    if (threadIdx.x == 0) {
        if (cluster.block_rank() == 0) (void)ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, 256 * cluster.num_blocks());
        ptx::cp_reduce_async_bulk(ptx::space_cluster, ptx::space_shared, ptx::op_add, cluster.map_shared_rank(sum, 0), s, 256u, cluster.map_shared_rank(&bar, 0));
    }
    if (cluster.block_rank() == 0) { while (!ptx::mbarrier_try_wait_parity(&bar, 0)) {} out[blockIdx.x / 4 * 64 + threadIdx.x] = sum[threadIdx.x]; }
    cluster.sync();
}
#endif
