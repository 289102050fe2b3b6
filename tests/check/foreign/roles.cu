// Roles, rings, clusters, counters and locks.
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/atomic>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_fp16.h>
#include <cuda/ptx>

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
typedef unsigned u32;
typedef unsigned long long u64;

// Sums and scans of cooperative groups.
extern "C" __global__ void cg_stats(const float* x, float* out, int n) {
    auto b=cg::this_thread_block();
    auto w=cg::tiled_partition<32>(b);
    __shared__ float part[8];
    float v=0;
    for (int i=b.thread_rank();i<n;i+=b.size()) v+=x[i];
    v=cg::reduce(w,v,cg::plus<float>());
    if (w.thread_rank()==0) part[w.meta_group_rank()]=v;
    b.sync();
    if (w.meta_group_rank()==0) {
        float p=w.thread_rank()<w.meta_group_size()?part[w.thread_rank()]:0;
        p=cg::reduce(w,p,cg::plus<float>());
        if (w.thread_rank()==0) out[0]=p;
    }
    auto t=cg::tiled_partition<8>(b);
    out[1+b.thread_rank()]=cg::inclusive_scan(t, x[b.thread_rank()]);
}

// Four stages of cuda::pipeline, filled and read by the whole block.
extern "C" __global__ void pipe_unified(const int* x, int* y, int n) {
    constexpr int S=4;
    __shared__ alignas(16) int s[S][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block,S> st;
    auto b=cg::this_thread_block();
    auto p=cuda::make_pipeline(b,&st);
    int v=0;
    for (int c=0,f=0;c<n;c++) {
        for (;f<n&&f<c+S;f++) {
            p.producer_acquire();
            cuda::memcpy_async(b,s[f%S],x+128*f,cuda::aligned_size_t<16>(512),p);
            p.producer_commit();
        }
        p.consumer_wait();
        v+=s[c%S][(threadIdx.x*7+c)%128];
        p.consumer_release();
    }
    y[threadIdx.x]=v;
}

// The block that counts last adds the parts, and its counter returns to 0.
extern "C" __global__ void splitk(const float* a, const float* b, float* part, u32* count, float* o, int M, int K) {
    __shared__ bool last;
    int row=blockIdx.x, z=blockIdx.y, Z=gridDim.y;
    float v=0;
    for (int k=z*(K/Z)+threadIdx.x;k<(z+1)*(K/Z);k+=32) v+=a[row*K+k]*b[k];
    for (int d=16;d;d/=2) v+=__shfl_xor_sync(~0u,v,d);
    if (threadIdx.x==0) {
        part[row*Z+z]=v;
        __threadfence();
        u32 t=atomicInc(&count[row],Z-1);
        last=t==Z-1;
    }
    __syncwarp();
    if (last) {
        __threadfence();
        float s=threadIdx.x<Z?__ldcg(&part[row*Z+threadIdx.x]):0;
        for (int d=16;d;d/=2) s+=__shfl_xor_sync(~0u,s,d);
        if (threadIdx.x==0) o[row]=s;
    }
}

// A state and its sum in one word.
extern "C" __global__ void lookback(const int* x, int* y, u64* st, u32* tick, int n) {
    __shared__ u32 tile;
    __shared__ int pre;
    __shared__ int ws[4];
    if (threadIdx.x==0) tile=atomicAdd(tick,1);
    __syncthreads();
    int i=tile*128+threadIdx.x;
    int v=i<n?x[i]:0;
    auto w=cg::tiled_partition<32>(cg::this_thread_block());
    int s=cg::inclusive_scan(w,v);
    if (w.thread_rank()==31) ws[w.meta_group_rank()]=s;
    __syncthreads();
    for (int k=0;k<(int)w.meta_group_rank();k++) s+=ws[k];
    if (threadIdx.x==0) {
        int agg=ws[0]+ws[1]+ws[2]+ws[3];
        cuda::atomic_ref<u64,cuda::thread_scope_device> me(st[tile]);
        int p=0;
        if (tile==0) me.store((2ull<<32)|(u32)agg,cuda::memory_order_relaxed);
        else {
            me.store((1ull<<32)|(u32)agg,cuda::memory_order_relaxed);
            for (int j=tile-1;;) {
                u64 q;
                do q=cuda::atomic_ref<u64,cuda::thread_scope_device>(st[j]).load(cuda::memory_order_relaxed);
                while (!(q>>32));
                p+=(int)(u32)q;
                if ((q>>32)==2) break;
                j--;
            }
            me.store((2ull<<32)|(u32)(p+agg),cuda::memory_order_relaxed);
        }
        pre=p;
    }
    __syncthreads();
    if (i<n) y[i]=pre+s;
}

// Blocks take tiles from a counter.
extern "C" __global__ void persistent(const float* x, float* y, u32* next, int tiles) {
    __shared__ u32 t;
    while (true) {
        if (threadIdx.x==0) t=atomicAdd(next,1);
        __syncthreads();
        u32 k=t;
        __syncthreads();
        if (k>=tiles) return;
        y[k*64+threadIdx.x]=x[k*64+threadIdx.x]*k;
    }
}

// A lock with a back-off.
extern "C" __global__ void mutex_list(int* lock, int* size, int* items) {
    if (threadIdx.x%32==0) {
        cuda::atomic_ref<int,cuda::thread_scope_device> l(*lock);
        int e=0;
        while (!l.compare_exchange_weak(e,1,cuda::memory_order_acquire)) {
            e=0;
            __nanosleep(20);
        }
        items[*size]=blockIdx.x*100+threadIdx.x;
        *size+=1;
        l.store(0,cuda::memory_order_release);
    }
}

// A ring of four slots between two blocks.
extern "C" __global__ void spsc(int* head, int* tail, int* q, int* out, int n) {
    using R=cuda::atomic_ref<int,cuda::thread_scope_device>;
    if (threadIdx.x) return;
    if (blockIdx.x==0) {
        for (int i=0;i<n;i++) {
            while (i-R(*head).load(cuda::memory_order_acquire)>=4);
            q[i%4]=i*i;
            R(*tail).store(i+1,cuda::memory_order_release);
        }
    } else {
        int s=0;
        for (int i=0;i<n;i++) {
            while (R(*tail).load(cuda::memory_order_acquire)<=i);
            s=s*3+q[i%4];
            R(*head).store(i+1,cuda::memory_order_release);
        }
        *out=s;
    }
}

// Readers share a lock that writers take alone.
extern "C" __global__ void rwlock(int* st, int* data, int* out) {
    using R=cuda::atomic_ref<int,cuda::thread_scope_device>;
    if (threadIdx.x) return;
    R s(*st);
    if (blockIdx.x<2) {
        int e=0;
        while (!s.compare_exchange_strong(e,-1,cuda::memory_order_acquire)) e=0;
        data[0]++;
        data[1]++;
        s.store(0,cuda::memory_order_release);
    } else {
        int e;
        do {
            e=s.load(cuda::memory_order_relaxed);
        } while (e<0||!s.compare_exchange_weak(e,e+1,cuda::memory_order_acquire));
        out[blockIdx.x-2]=data[0]-data[1];
        s.fetch_sub(1,cuda::memory_order_release);
    }
}

// cp.async in two stages, ldmatrix and mma.
extern "C" __global__ void mma_gemm(const __half* a, const __half* b, float* c) {
    __shared__ alignas(16) __half sa[2][16*16], sb[2][8*16];
    int l=threadIdx.x;
    float d[4]={0,0,0,0};
    auto load=[&](int k,int s) {
        u32 pa=(u32)__cvta_generic_to_shared(&sa[s][(l/2)*16+(l%2)*8]);
        asm volatile("cp.async.cg.shared.global [%0],[%1],16;"::"r"(pa),"l"(a+(l/2)*64+k*16+(l%2)*8));
        if (l<16) {
            u32 pb=(u32)__cvta_generic_to_shared(&sb[s][(l/2)*16+(l%2)*8]);
            asm volatile("cp.async.cg.shared.global [%0],[%1],16;"::"r"(pb),"l"(b+(l/2)*64+k*16+(l%2)*8));
        }
        asm volatile("cp.async.commit_group;");
    };
    load(0,0);
    for (int k=0;k<4;k++) {
        if (k<3) load(k+1,(k+1)&1);
        else asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;":::"memory");
        __syncwarp();
        u32 ra[4],rb[2];
        u32 p=(u32)__cvta_generic_to_shared(&sa[k&1][(l%16)*16+(l/16)*8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];":"=r"(ra[0]),"=r"(ra[1]),"=r"(ra[2]),"=r"(ra[3]):"r"(p));
        u32 qv=(u32)__cvta_generic_to_shared(&sb[k&1][(l%8)*16+((l/8)&1)*8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1},[%2];":"=r"(rb[0]),"=r"(rb[1]):"r"(qv));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};":"+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]):"r"(ra[0]),"r"(ra[1]),"r"(ra[2]),"r"(ra[3]),"r"(rb[0]),"r"(rb[1]));
        __syncwarp();
    }
    int g=l/4,t=l%4;
    c[g*8+2*t]=d[0];
    c[g*8+2*t+1]=d[1];
    c[(g+8)*8+2*t]=d[2];
    c[(g+8)*8+2*t+1]=d[3];
}

// Steps of a grid that synchronises.
extern "C" __global__ void cg_grid(float* a, float* b, int n) {
    auto g=cg::this_grid();
    for (int k=0;k<4;k++) {
        for (int i=g.thread_rank();i<n;i+=g.size()) b[i]=(a[i]+a[(i+1)%n])*0.5f;
        g.sync();
        float* t=a;
        a=b;
        b=t;
    }
}

#if __CUDA_ARCH__ >= 900
// A ring of bulk loads through cuda::ptx, with one producer lane.
extern "C" __global__ void ptx_ring(const float* x, float* y, int n) {
    __shared__ alignas(128) float s[3][128];
    __shared__ u64 full[3], empty[3];
    if (threadIdx.x == 0) {
        for (int i=0;i<3;i++) {
            ptx::mbarrier_init(&full[i],1);
            ptx::mbarrier_init(&empty[i],128);
        }
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        if (threadIdx.x==128) for (int i=0;i<n;i++) {
            int st=i%3;
            if (i>=3) while (!ptx::mbarrier_try_wait_parity(&empty[st], (i/3-1)&1));
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[st], 512);
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, s[st], x+128*i, 512, &full[st]);
        }
    }
    else {
        float v=0;
        for (int i=0;i<n;i++) {
            int st=i%3;
            while (!ptx::mbarrier_try_wait_parity(&full[st], (i/3)&1));
            v+=s[st][127-threadIdx.x];
            ptx::fence_proxy_async(ptx::space_shared);
            ptx::mbarrier_arrive(&empty[st]);
        }
        y[threadIdx.x]=v;
    }
}

// Bulk stores of a tile that is written again.
extern "C" __global__ void ptx_store(const float* x, float* y) {
    __shared__ alignas(128) float s[256];
    for (int i=0;i<2;i++) {
        s[threadIdx.x]=x[256*i+threadIdx.x]*2;
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (threadIdx.x==0) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y+256*i, s, 1024);
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
        }
        __syncthreads();
    }
    if (threadIdx.x==0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

// Rows over four blocks of a cluster.
extern "C" __global__ void __cluster_dims__(4,1,1) dsmem_softmax(const float* x, float* y, int n) {
    __shared__ float m[2];
    __shared__ float red[4];
    auto c=cg::this_cluster();
    int r=c.block_rank();
    const float* row=x+(blockIdx.x/4)*n;
    int per=n/4;
    float v=row[r*per+threadIdx.x];
    auto w=cg::tiled_partition<32>(cg::this_thread_block());
    float mx=cg::reduce(w,v,cg::greater<float>());
    if (w.thread_rank()==0) red[w.meta_group_rank()]=mx;
    __syncthreads();
    if (threadIdx.x==0) {
        m[0]=fmaxf(fmaxf(red[0],red[1]),fmaxf(red[2],red[3]));
    }
    c.sync();
    float all=-1e30f;
    for (int k=0;k<4;k++) all=fmaxf(all,*c.map_shared_rank(&m[0],k));
    float e=__expf(v-all);
    float su=cg::reduce(w,e,cg::plus<float>());
    if (w.thread_rank()==0) red[w.meta_group_rank()]=su;
    __syncthreads();
    if (threadIdx.x==0) m[1]=red[0]+red[1]+red[2]+red[3];
    c.sync();
    float tot=0;
    for (int k=0;k<4;k++) tot+=*c.map_shared_rank(&m[1],k);
    y[(blockIdx.x/4)*n+r*per+threadIdx.x]=e/tot;
    c.sync();
}
#endif
