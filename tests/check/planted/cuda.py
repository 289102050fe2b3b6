"""Planted bugs in CUDA C++, as its users make them: each kernel with a bug and without, all in one image."""

from __future__ import annotations

from . import cuda_blocks, cuda_idioms, cuda_roles
from .bug import Bug
from .probe import numbers, one_of, zeros

HEAD = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <mma.h>
namespace cg = cooperative_groups;
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ inline u32 at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ inline void arm(u64 *b, u32 n) {
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;\\n fence.mbarrier_init.release.cluster;" ::"r"(at(b)), "r"(n) : "memory");
    __syncthreads();
}
__device__ inline void expect(u64 *b, u32 n) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(b)), "r"(n) : "memory"); }
__device__ inline void wait(u64 *b, u32 parity) {
    u32 done = 0;
    while (!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at(b)), "r"(parity) : "memory");
}
__device__ inline void bring(void *s, const void *g, u32 n, u64 *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(s)), "l"(g), "r"(n), "r"(at(b)) : "memory");
}
__device__ inline void take(void *g, const void *s, u32 n) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\\n cp.async.bulk.commit_group;" ::"l"(g), "r"(at(s)), "r"(n) : "memory");
}
#define TAKEN asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")
#define READ asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define FENCE asm volatile("fence.proxy.async;" ::: "memory")
#define T threadIdx.x
#define B blockIdx.x
"""


SHARED = "__shared__ alignas(128) int s[128]; __shared__ u64 bar;"
ROUND = "a[T] = s[63 - T];"
RACE = "race_shared"
BLOCKS = "race_blocks"
TWO = zeros(256, 256)
BUGS: list[Bug] = [
    Bug("a tree whose last rounds lack a barrier", RACE, "__shared__ int s[128]; s[T] = T; for (int k = 64; k; k /= 2) { <<if (k == 64)||>> __syncthreads(); if (T < k) s[T] += s[T + k]; } if (T == 0) a[0] = s[0];", block=128),
    Bug("a warp's tree without __syncwarp reads over warps", RACE, "__shared__ int s[64]; s[T] = T; <<__syncwarp()||__syncthreads()>>; a[T] = s[T ^ 32];"),
    Bug("a scan in place", RACE, "__shared__ int s[64]; s[T] = 1; for (int d = 1; d < 64; d *= 2) { __syncthreads(); int v = T >= d ? s[T - d] : 0; <<||__syncthreads();>> s[T] += v; } a[T] = s[T];"),
    Bug("a tile is filled again before all have read it", RACE, "__shared__ int s[64]; int v = 0; for (int i = 0; i < 3; i++) { s[T] = a[64 * i + T]; __syncthreads(); v += s[63 - T]; <<||__syncthreads();>> } a[T] = v;"),
    Bug("two buffers where a slow warp needs three", RACE, "__shared__ int s[3][64]; int v = 0; for (int i = 0; i < 5; i++) { s[i % <<1||2>>][T] = i; __syncthreads(); v += s[i % <<1||2>>][63 - T]; } a[T] = v;"),
    Bug("a histogram without atomics", RACE + " equal_value_race", "__shared__ int s[8]; if (T < 8) s[T] = 0; __syncthreads(); <<s[T & 7]++||atomicAdd(&s[T & 7], 1)>>; __syncthreads(); if (T < 8) a[T] = s[T];"),
    Bug("a flag in shared memory without a barrier", RACE, "__shared__ int done; if (T == 0) done = a[5]; <<||__syncthreads();>> if (done == 0) a[64 + T] = 1;"),
    Bug("a barrier that half of the block meets", "divergence deadlock barrier_count", "__shared__ int s[64]; s[T] = T; if (<<T < 48||T < 64>>) __syncthreads(); a[T] = s[T]; __syncthreads(); a[T + 64] = a[63 - T];"),
    Bug("a sum of blocks by a plain add", BLOCKS, "if (T == 0) <<*a += 1||atomicAdd(a, 1)>>;", grid=3),
    Bug("the last block reads without a fence", BLOCKS, "__shared__ int last; if (T == 0) { a[8 + B] = B; <<||__threadfence();>> last = atomicAdd(a, 1) == 2; __threadfence(); if (last) a[1] = a[8] + a[9] + a[10]; }", grid=3),
    Bug("the last block's other warps never synchronise", BLOCKS + " race_global race_shared", "__shared__ int last; a[64 + B * 64 + T] = 1; __threadfence(); <<||__syncthreads();>> if (T == 0) last = atomicAdd(a, 1) == 1; __syncthreads(); if (last) a[T + 192] = a[127 - T] + a[191 - T];", grid=2, args=zeros(512)),
    Bug("a fence of the block between blocks", BLOCKS, "if (T) return; if (B == 0) { a[1] = 5; <<__threadfence_block()||__threadfence()>>; atomicExch(a, 1); } else { while (atomicAdd(a, 0) == 0) {} __threadfence(); a[2] = a[1]; }", grid=2),
    Bug("a release of block scope between blocks", BLOCKS, "cuda::atomic_ref<int, cuda::thread_scope_<<block||device>>> f(*a); if (T) return; if (B == 0) { a[1] = 5; f.store(1, cuda::memory_order_release); } else { while (!f.load(cuda::memory_order_acquire)) {} a[2] = a[1]; }", grid=2),
    Bug("a relaxed flag", BLOCKS, "cuda::atomic_ref<int, cuda::thread_scope_device> f(*a); if (T) return; if (B == 0) { a[1] = 5; f.store(1, cuda::memory_order_<<relaxed||release>>); } else { while (!f.load(cuda::memory_order_acquire)) {} a[2] = a[1]; }", grid=2),
    Bug("a relaxed load of a flag", BLOCKS, "cuda::atomic_ref<int, cuda::thread_scope_device> f(*a); if (T) return; if (B == 0) { a[1] = 5; f.store(1, cuda::memory_order_release); } else { while (!f.load(cuda::memory_order_<<relaxed||acquire>>)) {} a[2] = a[1]; }", grid=2),
    Bug("a spin lock that is opened by a plain store", BLOCKS, "if (T) return; while (atomicCAS(a, 0, 1)) {} __threadfence(); a[1] += 1; __threadfence(); <<*a = 0||atomicExch(a, 0)>>;", grid=2),
    Bug("a lock that is opened before the write", BLOCKS, "if (T) return; while (atomicCAS(a, 0, 1)) {} __threadfence(); int v = a[1]; <<||a[1] = v + 1;>> __threadfence(); atomicExch(a, 0); <<a[1] = v + 1;||>>", grid=2),
    Bug("atomics of a block's scope from two blocks", BLOCKS, "atomicAdd<<_block||>>(a, 1);", grid=2, block=32),
    Bug("a volatile hand-over without a fence", BLOCKS, "volatile int *f = a; if (T) return; if (B == 0) { a[1] = 5; <<||__threadfence();>> *f = 1; } else { while (!*f) {} __threadfence(); a[2] = a[1]; }", grid=2),
    Bug("the read-only cache on what the kernel writes", "read_only_cache race_global", "a[T] = T; __syncthreads(); a[T + 64] = <<__ldg(a + 63 - T)||a[63 - T]>>;"),
    Bug("neighbours of a stencil in place", "race_global", "int v = a[T ? T - 1 : 0]; <<||__syncthreads();>> a[T] = v + 1;"),
    Bug("neighbours over blocks", BLOCKS, "int i = B * 64 + T; <<a||b>>[i] = a[(i + 1) % 128] + 1;", "int *a, int *b", TWO, grid=2),
    Bug("a shuffle of lanes that left", "divergence", "int v = T; if (T < 20) <<v = __shfl_down_sync(~0u, v, 1)||v = __shfl_xor_sync(0xfffffu, v, 1)>>; a[T] = v;", block=32),
    Bug("a vote whose mask misses the caller", "divergence", "a[T] = __ballot_sync(<<0xffffu||~0u>>, T & 1);", block=32),
    Bug("one past the end", "out_of_bounds", "a[T <<+ 1||>>] = 0;", args=zeros(64)),
    Bug("a negative halo", "out_of_bounds", "a[T + 64] = <<a[(int)T - 1]||T ? a[T - 1] : 0>>;"),
    Bug("int4 at 4 bytes", "misaligned", "int4 *p = (int4 *)(a + <<1||4>>); p[T % 4] = make_int4(1, 2, 3, 4);", block=4),
    Bug("shared memory that nobody has written", "uninitialised", "__shared__ int s[64]; if (T < <<32||64>>) s[T] = 1; __syncthreads(); a[T] = s[T];"),
    Bug("a local array is partly filled", "uninitialised", "volatile int p[8]; for (int i = 0; i < <<7||8>>; i++) p[i] = T; a[T] = p[T & 7] > 3 ? 1 : 2;"),
    Bug("cp.async without a wait", "read_before_wait", "__shared__ int4 s[64]; __pipeline_memcpy_async(&s[T], (int4 *)a + T, 16); __pipeline_commit(); <<||__pipeline_wait_prior(0);>> b[T] = s[T].x;", "int *a, int *b", TWO),
    Bug("cp.async read over lanes after the lane's own wait", "race_shared read_before_wait", "__shared__ int4 s[64]; __pipeline_memcpy_async(&s[T], (int4 *)a + T, 16); __pipeline_commit(); __pipeline_wait_prior(0); <<||__syncthreads();>> b[T] = s[63 - T].x;", "int *a, int *b", TWO),
    Bug("one stage too few is awaited", "read_before_wait", "__shared__ int4 s[2][64]; for (int i = 0; i < 2; i++) { __pipeline_memcpy_async(&s[i][T], (int4 *)a + T, 16); __pipeline_commit(); } __pipeline_wait_prior(1); __syncthreads(); b[T] = s[<<1||0>>][63 - T].x; __pipeline_wait_prior(0);", "int *a, int *b", zeros(256, 256)),
    Bug("a pipeline's stage is released before it is read", RACE + " reused_before_read", "__shared__ int s[2][64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> st; auto g = cg::this_thread_block(); auto p = cuda::make_pipeline(g, &st); int v = 0; for (int i = 0, n = 0; i < 6; i++) { for (; n < 6 && n < i + 2; n++) { p.producer_acquire(); cuda::memcpy_async(g, s[n & 1], a + 64 * (n % 4), 256, p); p.producer_commit(); } p.consumer_wait(); <<p.consumer_release();||>> v += s[i & 1][63 - T]; <<||p.consumer_release();>> } b[T] = v;", "int *a, int *b", TWO),
    Bug("an arrive too many", "barrier_misuse phase_overrun impossible_wait", "__shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, <<32||64>>); __syncthreads(); b.arrive_and_wait(); a[T] = 1;"),
    Bug("an arrive too few", "deadlock", "__shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, <<65||64>>); __syncthreads(); b.arrive_and_wait(); a[T] = 1;"),
    Bug("a barrier is used before it is made", "barrier_misuse " + RACE, "__shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, 64); <<||__syncthreads();>> b.arrive_and_wait(); a[T] = 1;"),
    Bug("a store, then a bulk load over it", "missing_proxy_fence", SHARED + "arm(&bar, 1); s[T] = 1; <<||FENCE;>> __syncthreads(); if (T == 0) { expect(&bar, 256); bring(s, a, 256, &bar); } wait(&bar, 0); b[T] = s[63 - T];", "int *a, int *b", TWO),
    Bug("stores, then a bulk store of them", "missing_proxy_fence", SHARED + "s[T] = T; <<||FENCE;>> __syncthreads(); if (T == 0) { take(a, s, 256); TAKEN; }"),
    Bug("a bulk load of what the kernel wrote", "missing_proxy_fence", SHARED + "arm(&bar, 1); a[T] = T; <<||FENCE;>> __syncthreads(); if (T == 0) { expect(&bar, 256); bring(s, a, 256, &bar); } wait(&bar, 0); b[T] = s[63 - T];", "int *a, int *b", TWO),
    Bug("two loads of one barrier overlap", RACE, SHARED + "arm(&bar, 1); if (T == 0) { expect(&bar, 512); bring(s, a, 256, &bar); bring(s + <<32||64>>, a + 64, 256, &bar); } wait(&bar, 0); b[T] = s[63 - T];", "int *a, int *b", numbers(256, 256)),
    Bug("fewer bytes than expected", "bytes_mismatch deadlock", SHARED + "arm(&bar, 1); if (T == 0) { expect(&bar, <<512||256>>); bring(s, a, 256, &bar); } wait(&bar, 0); b[T] = s[63 - T];", "int *a, int *b", TWO),
    Bug("nobody waits for a load", "unawaited_copy", SHARED + "arm(&bar, 1); if (T == 0) { expect(&bar, 256); bring(s, a, 256, &bar); } <<||wait(&bar, 0);>> b[T] = 1;", "int *a, int *b", TWO),
    Bug("a block leaves while a bulk store reads", "unawaited_copy", SHARED + "s[T] = T; FENCE; __syncthreads(); if (T == 0) { take(a, s, 256); <<||READ;>> }"),
    Bug("shared memory is written while a bulk store reads it", "reused_before_read", SHARED + "s[T] = T; FENCE; __syncthreads(); if (T == 0) { take(a, s, 256); <<||READ;>> } __syncthreads(); s[T] = 2; if (T == 0) TAKEN;"),
    Bug("the wrong parity", "deadlock race_shared read_before_wait unawaited_copy", SHARED + "arm(&bar, 1); if (T == 0) { expect(&bar, 256); bring(s, a, 256, &bar); } wait(&bar, <<1||0>>); b[T] = s[63 - T]; wait(&bar, 0);", "int *a, int *b", TWO),
    Bug("two bulk reductions of two operations", BLOCKS + " race_global", SHARED + "s[T] = T; FENCE; __syncthreads(); if (T == 0) { asm volatile(\"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 256;\\n cp.reduce.async.bulk.global.shared::cta.bulk_group.<<max||add>>.u32 [%0], [%1], 256;\\n cp.async.bulk.commit_group;\" ::\"l\"(a), \"r\"(at(s)) : \"memory\"); TAKEN; }"),
    Bug("a peer's memory before it has started", "peer_not_running uninitialised race_shared", "__shared__ int s[64]; auto c = cg::this_cluster(); s[T] = T; <<||c.sync();>> a[64 * B + T] = *c.map_shared_rank(&s[63 - T], 1 - B); c.sync();", grid=2, before="__cluster_dims__(2, 1, 1)"),
    Bug("a peer's memory after it has left", "peer_not_running", "__shared__ int s[64]; auto c = cg::this_cluster(); s[T] = T; c.sync(); a[64 * B + T] = *c.map_shared_rank(&s[63 - T], 1 - B); <<||c.sync();>>", grid=2, before="__cluster_dims__(2, 1, 1)"),
    Bug("a cluster's barrier that one block misses", "deadlock divergence", "auto c = cg::this_cluster(); a[64 * B + T] = 1; if (<<B == 0||true>>) c.sync(); if (<<B == 0||false>>) c.sync(); if (B == 1) { a[200 + T % 50] = 1; <<while (((volatile int *)a)[255] == 0) {}||>> }", grid=2, before="__cluster_dims__(2, 1, 1)", ignore=("equal_value_race",)),
    Bug("the grid is not one that can wait for itself", "livelock deadlock", "if (T == 0) { __threadfence(); atomicAdd(a, 1); while (atomicAdd(a, 0) < <<4||3>>) {} }", grid=3),
    Bug("wmma's tile is stored before all have read it", RACE, "using namespace nvcuda::wmma; __shared__ alignas(32) __half s[256]; fragment<matrix_a, 16, 16, 16, __half, row_major> f; fragment<accumulator, 16, 16, 16, __half> c; for (int i = T; i < 256; i += 64) s[i] = 0; __syncthreads(); load_matrix_sync(f, s, 16); fill_fragment(c, __float2half(1.f)); <<||__syncthreads();>> if (T < 32) store_matrix_sync(s, c, 16, mem_row_major); a[T] = f.num_elements;"),
    Bug("malloc is used after free", "uninitialised out_of_bounds", "int *p = (int *)malloc(64); p[0] = T; <<free(p); a[T] = p[0];||a[T] = p[0]; free(p);>>", block=32),
    Bug("a programmatic launch reads early", "race_launches", "<<||asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");>> b[T] = a[T]; asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");", "int *a, int *b", TWO, early=True),
    Bug("the turn of split-K passes before the sum is stored", BLOCKS, "cuda::atomic_ref<int, cuda::thread_scope_device> turn(a[0]); if (T == 0) while (turn.load(cuda::memory_order_acquire) != B) {} __syncthreads(); <<if (T == 0) turn.store(B + 1, cuda::memory_order_release);||>> a[64 + T] += T; <<||__syncthreads(); if (T == 0) turn.store(B + 1, cuda::memory_order_release);>>", grid=3),
    Bug("a state of the look-back and its sum in two words", BLOCKS, "if (T) return; if (B == 0) { <<a[1] = 5; ((volatile int *)a)[0] = 1;||a[1] = 5; __threadfence(); ((volatile int *)a)[0] = 1;>> } else { while (((volatile int *)a)[0] == 0) {} <<||__threadfence();>> b[0] = a[1]; }", "int *a, int *b", TWO, grid=2, block=32),
    Bug("a ticket read by all before it is there", RACE + " uninitialised", "__shared__ int tile; for (int i = 0; i < 3; i++) { if (T == 0) tile = atomicAdd(a, 1); <<||__syncthreads();>> b[64 * (tile % 4) + T] = tile; __syncthreads(); }", "int *a, int *b", TWO),
    Bug("a value beside a key that is claimed by compare-and-swap", BLOCKS, "if (T) return; if (B == 0) { <<atomicCAS(a, 0, 7); a[1] = 42;||a[1] = 42; __threadfence(); atomicCAS(a, 0, 7);>> } else { while (((volatile int *)a)[0] != 7) {} __threadfence(); b[0] = a[1]; }", "int *a, int *b", TWO, grid=2, block=32),
    Bug("wait_prior leaves a group that is read", "read_before_wait " + RACE, "__shared__ int s[2][64]; auto g = cg::this_thread_block(); cg::memcpy_async(g, s[0], a, 256); cg::memcpy_async(g, s[1], a + 64, 256); cg::wait_prior<1>(g); b[T] = s[<<1||0>>][63 - T]; cg::wait(g);", "int *a, int *b", numbers(256, 256)),
    Bug("cooperative groups' copy into what is still read", RACE + " read_before_wait", "__shared__ int s[64]; auto g = cg::this_thread_block(); int v = 0; for (int i = 0; i < 3; i++) { cg::memcpy_async(g, s, a + 64 * i, 256); cg::wait(g); v += s[63 - T]; <<||g.sync();>> } b[T] = v;", "int *a, int *b", numbers(256, 256)),
    Bug("a cluster's sums go to a block that may have left", "peer_not_running", "__shared__ int s; auto c = cg::this_cluster(); if (T == 0) s = 0; c.sync(); if (T == 0) atomicAdd(c.map_shared_rank(&s, 0), B); <<if (B == 0) { __syncthreads(); return; } ||c.sync();>> if (B == 0 && T == 0) a[0] = s; ", grid=2, before="__cluster_dims__(2, 1, 1)"),
    Bug("a histogram of the cluster without its first barrier", "peer_not_running uninitialised " + RACE, "__shared__ int s[64]; auto c = cg::this_cluster(); s[T] = 0; <<__syncthreads();||c.sync();>> atomicAdd(c.map_shared_rank(&s[T], T & 1), 1); c.sync(); a[64 * B + T] = s[T];", grid=2, before="__cluster_dims__(2, 1, 1)"),
    Bug("a block counts by a ticket of its own scope", BLOCKS, "if (T == 0) cuda::atomic_ref<int, cuda::thread_scope_<<block||device>>>(a[0]).fetch_add(1, cuda::memory_order_relaxed);", grid=3),
    Bug("a fence of the block after a flag of the grid", BLOCKS, "using R = cuda::atomic_ref<int, cuda::thread_scope_device>; if (T) return; if (B == 0) { a[1] = 3; R(a[0]).store(1, cuda::memory_order_release); } else { while (R(a[0]).load(cuda::memory_order_relaxed) == 0) {} cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_<<block||device>>); b[0] = a[1]; }", "int *a, int *b", TWO, grid=2, block=32),
    Bug("lanes of a loop vote with all lanes", "divergence deadlock", "int n = 0; for (int i = 0; i < T % 5; i++) n += __popc(__ballot_sync(<<~0u||__activemask()>>, i & 1)); a[T] = n;", block=32),
    Bug("a reduction over a tile whose lanes have left", "divergence deadlock", "auto t = cg::tiled_partition<32>(cg::this_thread_block()); <<if (T % 32 > 20) { while (((volatile int *)a)[255] == 0) {} }||>> int v = T; for (int d = 16; d; d /= 2) v += t.shfl_xor(v, d); a[T] = v;", block=32),
    Bug("an arrival by each lane where one was counted", "barrier_misuse phase_overrun", "__shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, 2); __syncthreads(); if (T % 32 == 0 <<or T == 1||>>) (void)b.arrive(); b.wait_parity(0); a[T] = 1;"),
    Bug("bytes of a libcu++ barrier that no copy brings", "bytes_mismatch deadlock", "__shared__ alignas(16) int s[64]; __shared__ cuda::barrier<cuda::thread_scope_block> bar; if (T == 0) { init(&bar, 64); FENCE; } __syncthreads(); if (T == 0) { bring(s, a, 256, (u64 *)&bar); cuda::device::barrier_expect_tx(bar, <<512||256>>); } bar.arrive_and_wait(); b[T] = s[63 - T];", "int *a, int *b", numbers(256, 256)),
    Bug("a local array that one branch fills", "uninitialised", "int v[4]; for (int i = 0; i < <<T % 4||4>>; i++) v[i] = i; a[T] = v[a[T] & 3];"),
    Bug("an early launch writes over what the first reads", "race_launches", "<<a[T] = 1; asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");||asm volatile(\"griddepcontrol.wait;\" ::: \"memory\"); a[T] = 1;>>", early=True),
]  # fmt: skip


ALL = [*BUGS, *cuda_roles.BUGS, *cuda_blocks.BUGS, *cuda_idioms.BUGS]


def source() -> str:
    """Every kernel with its bug, `bad0` and so on, and without, `good0`."""
    parts = [HEAD, "#include <cuda_pipeline.h>\n"]
    for n, bug in enumerate(ALL):
        for name in ("bad", "good"):
            parts.append(
                f'extern "C" __global__ void {bug.before} {name}{n}({bug.params}) {{ {one_of(bug.body, name == "good")} }}\n'
            )
    parts.append(
        'extern "C" __global__ void first(int *a) { asm volatile("griddepcontrol.launch_dependents;"); a[T] = T; }\n'
    )
    return "".join(parts)
