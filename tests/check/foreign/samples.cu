// Kernels of the kinds that CUDA's samples teach with.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define K extern "C" __global__ void
#define TID (blockIdx.x * blockDim.x + threadIdx.x)

K saxpy4(const float4* x, float4* y, float a, int n) {
    for (int i = TID; i < n; i += gridDim.x * blockDim.x) {
        float4 u = x[i], v = y[i];
        y[i] = make_float4(a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w);
    }
}
template <int B> __device__ void tile_product(float* c, const float* a, const float* b, int wa, int wb) {
    __shared__ float as[B][B], bs[B][B];
    int tx = threadIdx.x, ty = threadIdx.y, first = wa * B * blockIdx.y;
    float sum = 0;
    for (int i = first, j = B * blockIdx.x; i < first + wa; i += B, j += B * wb) {
        as[ty][tx] = a[i + wa * ty + tx];
        bs[ty][tx] = b[j + wb * ty + tx];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < B; k++) sum += as[ty][k] * bs[k][tx];
        __syncthreads();
    }
    c[wb * B * blockIdx.y + B * blockIdx.x + wb * ty + tx] = sum;
}
K matmul16(float* c, const float* a, const float* b, int wa, int wb) { tile_product<16>(c, a, b, wa, wb); }
K matmul32(float* c, const float* a, const float* b, int wa, int wb) { tile_product<32>(c, a, b, wa, wb); }
K transpose_diagonal(float* out, const float* in, int w, int h) {
    __shared__ float tile[32][33];
    int by = blockIdx.x, bx = (blockIdx.x + blockIdx.y) % gridDim.x;
    int x = bx * 32 + threadIdx.x, y = by * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8) tile[threadIdx.y + i][threadIdx.x] = in[x + (y + i) * w];
    __syncthreads();
    x = by * 32 + threadIdx.x, y = bx * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8) out[x + (y + i) * h] = tile[threadIdx.x][threadIdx.y + i];
}
K reduce_interleaved(const int* in, int* out, int n) {
    extern __shared__ int s[];
    int t = threadIdx.x, i = TID;
    s[t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int d = 1; d < blockDim.x; d *= 2) {
        if (t % (2 * d) == 0) s[t] += s[t + d];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
K reduce_sequential(const int* in, int* out, int n) {
    extern __shared__ int s[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x * 2 + t;
    int sum = i < n ? in[i] : 0;
    if (i + blockDim.x < n) sum += in[i + blockDim.x];
    s[t] = sum;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 32; d >>= 1) {
        if (t < d) s[t] = sum = sum + s[t + d];
        __syncthreads();
    }
    if (t < 32) {
        sum += s[t + 32];
        for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(~0u, sum, d);
    }
    if (t == 0) out[blockIdx.x] = sum;
}
K reduce_volatile(const int* in, int* out, int n) {
    extern __shared__ int s[];
    int t = threadIdx.x;
    s[t] = TID < n ? in[TID] : 0;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 32; d >>= 1) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
    if (t < 32) {
        volatile int* v = s;
        int x = v[t];
        for (int d = 32; d; d >>= 1) { x += v[t + d]; __syncwarp(); v[t] = x; __syncwarp(); }
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
__device__ unsigned retired = 0;
K reduce_threadfence(const float* in, float* out, volatile float* parts, unsigned n) {
    __shared__ float s[128];
    __shared__ bool last;
    unsigned t = threadIdx.x;
    float sum = 0;
    for (unsigned i = TID; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    s[t] = sum;
    __syncthreads();
    for (int d = 64; d; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
    if (t == 0) {
        parts[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(&retired, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        float x = 0;
        for (int i = t; i < gridDim.x; i += blockDim.x) x += parts[i];
        s[t] = x;
        __syncthreads();
        for (int d = 64; d; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
        if (t == 0) { out[0] = s[0]; retired = 0; }
    }
}
K scan_hillis(const float* in, float* out, int n) {
    extern __shared__ float f[];
    int t = threadIdx.x, a = 0, b = 1;
    f[t] = t > 0 ? in[t - 1] : 0;
    __syncthreads();
    for (int d = 1; d < n; d *= 2) {
        a = 1 - a, b = 1 - a;
        f[a * n + t] = f[b * n + t] + (t >= d ? f[b * n + t - d] : 0);
        __syncthreads();
    }
    out[t] = f[a * n + t];
}
K scan_blelloch(const float* in, float* out, int n) {
    extern __shared__ float f[];
    int t = threadIdx.x, step = 1;
    f[2 * t] = in[2 * t], f[2 * t + 1] = in[2 * t + 1];
    for (int d = n >> 1; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) f[step * (2 * t + 2) - 1] += f[step * (2 * t + 1) - 1];
        step *= 2;
    }
    if (t == 0) f[n - 1] = 0;
    for (int d = 1; d < n; d *= 2) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            int x = step * (2 * t + 1) - 1, y = step * (2 * t + 2) - 1;
            float u = f[x];
            f[x] = f[y], f[y] += u;
        }
    }
    __syncthreads();
    out[2 * t] = f[2 * t], out[2 * t + 1] = f[2 * t + 1];
}
K scan_shuffle(int* data, int* sums, int width) {
    extern __shared__ int s[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, v = data[TID];
    for (int d = 1; d < width; d *= 2) {
        int n = __shfl_up_sync(~0u, v, d, width);
        if (lane >= d) v += n;
    }
    if (lane == 31) s[warp] = v;
    __syncthreads();
    if (warp == 0 && lane < blockDim.x / 32) {
        unsigned mask = (1u << (blockDim.x / 32)) - 1;
        int x = s[lane];
        for (int d = 1; d < width; d *= 2) {
            int n = __shfl_up_sync(mask, x, d, width);
            if (lane >= d) x += n;
        }
        s[lane] = x;
    }
    __syncthreads();
    if (warp) v += s[warp - 1];
    data[TID] = v;
    if (sums && threadIdx.x == blockDim.x - 1) sums[blockIdx.x] = v;
}
K add_block_sums(int* data, const int* sums) {
    __shared__ int add;
    if (blockIdx.x == 0) return;
    if (threadIdx.x == 0) add = sums[blockIdx.x - 1];
    __syncthreads();
    data[TID] += add;
}
K histogram64(unsigned* part, const uchar4* in, int n) {
    __shared__ unsigned char h[64 * 64];
    int t = threadIdx.x;
    for (int i = 0; i < 16; i++) ((unsigned*)h)[t + i * 64] = 0;
    __syncthreads();
    for (int i = TID; i < n; i += gridDim.x * blockDim.x) {
        uchar4 v = in[i];
        h[t + (v.x >> 2) * 64]++; h[t + (v.y >> 2) * 64]++; h[t + (v.z >> 2) * 64]++; h[t + (v.w >> 2) * 64]++;
    }
    __syncthreads();
    unsigned sum = 0;
    for (int i = 0; i < 64; i++) sum += h[t * 64 + ((i + t) & 63)];
    part[blockIdx.x * 64 + t] = sum;
}
K histogram256(unsigned* out, const unsigned* in, int n) {
    __shared__ unsigned h[4][256];
    unsigned* mine = h[threadIdx.x / 32];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) h[0][i] = 0;
    __syncthreads();
    for (int i = TID; i < n; i += gridDim.x * blockDim.x) {
        unsigned v = in[i];
        atomicAdd(mine + (v & 255), 1); atomicAdd(mine + (v >> 8 & 255), 1);
        atomicAdd(mine + (v >> 16 & 255), 1); atomicAdd(mine + (v >> 24), 1);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) atomicAdd(out + b, h[0][b] + h[1][b] + h[2][b] + h[3][b]);
}
__device__ void swap_if(unsigned& ka, unsigned& va, unsigned& kb, unsigned& vb, unsigned dir) {
    if ((ka > kb) == dir) { unsigned t = ka; ka = kb; kb = t; t = va; va = vb; vb = t; }
}
K bitonic(unsigned* ok, unsigned* ov, const unsigned* ik, const unsigned* iv, unsigned n, unsigned dir) {
    __shared__ unsigned k[256], v[256];
    unsigned t = threadIdx.x;
    k[t] = ik[t], v[t] = iv[t], k[t + 128] = ik[t + 128], v[t + 128] = iv[t + 128];
    for (unsigned size = 2; size <= n; size <<= 1) {
        unsigned d = size < n ? dir ^ ((t & (size / 2)) != 0) : dir;
        for (unsigned stride = size / 2; stride; stride >>= 1) {
            __syncthreads();
            unsigned p = 2 * t - (t & (stride - 1));
            swap_if(k[p], v[p], k[p + stride], v[p + stride], d);
        }
    }
    __syncthreads();
    ok[t] = k[t], ov[t] = v[t], ok[t + 128] = k[t + 128], ov[t + 128] = v[t + 128];
}
K odd_even_merge(unsigned* out, const unsigned* in, unsigned n) {
    __shared__ unsigned k[256], v[256];
    unsigned t = threadIdx.x;
    k[t] = in[t], k[t + 128] = in[t + 128], v[t] = v[t + 128] = 0;
    for (unsigned size = 2; size <= n; size <<= 1) {
        unsigned stride = size / 2, offset = t & (stride - 1);
        __syncthreads();
        unsigned p = 2 * t - (t & (stride - 1));
        swap_if(k[p], v[p], k[p + stride], v[p + stride], 1);
        for (stride >>= 1; stride; stride >>= 1) {
            __syncthreads();
            unsigned p = 2 * t - (t & (stride - 1));
            if (offset >= stride) swap_if(k[p - stride], v[p - stride], k[p], v[p], 1);
        }
    }
    __syncthreads();
    out[t] = k[t], out[t + 128] = k[t + 128];
}
K rank_merge(const int* a, int na, const int* b, int nb, int* out) {
    int i = TID;
    if (i < na) {
        int lo = 0, hi = nb;
        while (lo < hi) { int m = (lo + hi) / 2; if (b[m] < a[i]) lo = m + 1; else hi = m; }
        out[i + lo] = a[i];
    }
    if (i < nb) {
        int lo = 0, hi = na;
        while (lo < hi) { int m = (lo + hi) / 2; if (a[m] <= b[i]) lo = m + 1; else hi = m; }
        out[i + lo] = b[i];
    }
}
__constant__ float taps[17];
K convolve_rows(float* dst, const float* src, int w, int pitch) {
    __shared__ float s[4][16 * 10];
    int x0 = (blockIdx.x * 8 - 1) * 16 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
    for (int i = 0; i < 10; i++) {
        int x = x0 + i * 16;
        s[threadIdx.y][threadIdx.x + i * 16] = x >= 0 && x < w ? src[y * pitch + x] : 0;
    }
    __syncthreads();
    for (int i = 1; i < 9; i++) {
        float sum = 0;
#pragma unroll
        for (int j = -8; j <= 8; j++) sum += taps[8 - j] * s[threadIdx.y][threadIdx.x + i * 16 + j];
        dst[y * pitch + x0 + i * 16] = sum;
    }
}
__device__ float normal_cdf(float d) {
    float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
    float c = 0.39894228f * __expf(-0.5f * d * d) *
        (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1.0f - c : c;
}
K black_scholes(float2* call, float2* put, const float2* s, const float2* x, const float2* t, float r, float v, int n) {
    int i = TID;
    if (i >= n) return;
    float cs[2], ps[2], ss[2] = {s[i].x, s[i].y}, xs[2] = {x[i].x, x[i].y}, ts[2] = {t[i].x, t[i].y};
    for (int j = 0; j < 2; j++) {
        float root = sqrtf(ts[j]), d1 = (__logf(ss[j] / xs[j]) + (r + 0.5f * v * v) * ts[j]) / (v * root), d2 = d1 - v * root;
        float a = normal_cdf(d1), b = normal_cdf(d2), e = __expf(-r * ts[j]);
        cs[j] = ss[j] * a - xs[j] * e * b, ps[j] = xs[j] * e * (1.0f - b) - ss[j] * (1.0f - a);
    }
    call[i] = make_float2(cs[0], cs[1]), put[i] = make_float2(ps[0], ps[1]);
}
K mandelbrot(unsigned char* out, int w, int h, double x0, double y0, double scale, int limit) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x >= w || y >= h) return;
    double cx = x0 + x * scale, cy = y0 + y * scale, a = 0, b = 0;
    int i = 0;
    while (i < limit && a * a + b * b < 4.0) { double t = a * a - b * b + cx; b = 2 * a * b + cy; a = t; i++; }
    out[y * w + x] = i;
}
K nbody(float4* acc, const float4* pos, int n, float eps) {
    extern __shared__ float4 sp[];
    int i = TID;
    float4 p = pos[i];
    float3 a = {0, 0, 0};
    for (int tile = 0; tile < n / blockDim.x; tile++) {
        sp[threadIdx.x] = pos[tile * blockDim.x + threadIdx.x];
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < blockDim.x; j++) {
            float dx = sp[j].x - p.x, dy = sp[j].y - p.y, dz = sp[j].z - p.z;
            float r = rsqrtf(dx * dx + dy * dy + dz * dz + eps), s = sp[j].w * r * r * r;
            a.x += dx * s, a.y += dy * s, a.z += dz * s;
        }
        __syncthreads();
    }
    acc[i] = make_float4(a.x, a.y, a.z, 0);
}
K walsh(float* out, const float* in, int logn) {
    extern __shared__ float f[];
    int n = 1 << logn;
    for (int i = threadIdx.x; i < n; i += blockDim.x) f[i] = in[blockIdx.x * n + i];
    for (int stride = n / 2; stride; stride >>= 1) {
        __syncthreads();
        for (int p = threadIdx.x; p < n / 2; p += blockDim.x) {
            int lo = p & (stride - 1), i = ((p - lo) << 1) + lo;
            float a = f[i], b = f[i + stride];
            f[i] = a + b, f[i + stride] = a - b;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = f[i];
}
K haar(const float* in, float* approx, float* detail) {
    __shared__ float s[128];
    int t = threadIdx.x;
    float2 v = ((const float2*)in)[TID];
    s[t] = (v.x + v.y) * 0.70710678f;
    detail[TID] = (v.x - v.y) * 0.70710678f;
    __syncthreads();
    if (t < 64) approx[blockIdx.x * 64 + t] = (s[2 * t] + s[2 * t + 1]) * 0.70710678f;
}
K line_of_sight(const float* height, unsigned char* seen, int n) {
    float best = -1e30f, mine = 0;
    int i = TID;
    if (i >= n) return;
    mine = atanf((height[i] - height[0]) / (i + 1));
    for (int j = 0; j < i; j++) best = fmaxf(best, atanf((height[j] - height[0]) / (j + 1)));
    seen[i] = mine > best;
}
K sobel(unsigned char* out, const unsigned char* in, int w, int h) {
    __shared__ unsigned char t[18][18];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) {
        int u = min(max((int)blockIdx.x * 16 + i % 18 - 1, 0), w - 1), v = min(max((int)blockIdx.y * 16 + i / 18 - 1, 0), h - 1);
        t[i / 18][i % 18] = in[v * w + u];
    }
    __syncthreads();
    unsigned char(*c)[18] = (unsigned char(*)[18])&t[threadIdx.y][threadIdx.x];
    int gx = c[0][2] + 2 * c[1][2] + c[2][2] - c[0][0] - 2 * c[1][0] - c[2][0];
    int gy = c[0][0] + 2 * c[0][1] + c[0][2] - c[2][0] - 2 * c[2][1] - c[2][2];
    if (x < w && y < h) out[y * w + x] = min(abs(gx) + abs(gy), 255);
}
K stereo_difference(unsigned* out, const unsigned* a, const unsigned* b, int n) {
    if (TID < n) out[TID] = __vsadu4(a[TID], b[TID]) + (__vabsdiffu4(a[TID], b[TID]) & 0xff) + __dp4a((int)a[TID], (int)b[TID], 7);
}
K vote(const int* in, unsigned* out) {
    int v = in[threadIdx.x];
    out[threadIdx.x] = __ballot_sync(~0u, v > 0) ^ (__any_sync(~0u, v > 90) << 1) ^ __all_sync(~0u, v >= 0);
    out[blockDim.x + threadIdx.x] = __match_any_sync(~0u, v % 4) + __popc(__activemask());
}
K atomics(int* g) {
    unsigned t = TID;
    atomicAdd(g, 10), atomicSub(g + 1, 10), atomicMax(g + 3, t), atomicMin(g + 4, t), atomicInc((unsigned*)g + 5, 17);
    atomicDec((unsigned*)g + 6, 137), atomicCAS(g + 7, t - 1, t), atomicAnd(g + 8, 2 * t + 7), atomicOr(g + 9, 1 << (t & 15));
    atomicXor(g + 10, t);
    atomicExch(g + 2, 77);
}
K atomics_wide(double* d, unsigned long long* u, __half2* h, __nv_bfloat162* b, float* f) {
    atomicAdd(d, 0.5), atomicAdd(u, 3ull), atomicMax(u + 1, (unsigned long long)TID << 33), atomicAdd(h, __floats2half2_rn(1, 2));
    atomicAdd(b, __floats2bfloat162_rn(1, 0.5f)), atomicAdd_block(f + blockIdx.x, 1.0f), atomicAdd_system(f + 2, 1.0f);
    atomicCAS(u + 2, 0ull, 5ull);
}
__device__ float plus(float a, float b) { return a + b; }
__device__ float times(float a, float b) { return a * b; }
__device__ float (*const table[2])(float, float) = {plus, times};
K function_pointers(const float* a, float* out, const int* which) {
    out[TID] = table[which[TID] & 1](a[TID], 3.0f);
}
struct Shape { int kind; __device__ virtual float area(float r) { return r; } };
struct Square : Shape { __device__ float area(float r) override { return r * r; } };
struct Disc : Shape { __device__ float area(float r) override { return 3.0f * r * r; } };
K virtual_calls(const float* r, float* out) {
    Square s; Disc d;
    Shape* p = TID % 2 ? (Shape*)&s : (Shape*)&d;
    out[TID] = p->area(r[TID]);
}
K new_delete(int* out, int n) {
    __shared__ int* data;
    if (threadIdx.x == 0) data = new int[blockDim.x * n];
    __syncthreads();
    if (!data) return;
    for (int i = 0; i < n; i++) data[i * blockDim.x + threadIdx.x] = i * threadIdx.x;
    __syncthreads();
    int s = 0;
    for (int i = 0; i < n; i++) s += data[i * blockDim.x + (threadIdx.x + 1) % blockDim.x];
    out[TID] = s;
    __syncthreads();
    if (threadIdx.x == 0) delete[] data;
}
struct Large { int v[1500]; };
K large_parameters(const __grid_constant__ Large p, int* out) {
    for (int i = TID; i < 1500; i += blockDim.x * gridDim.x) out[i] = p.v[i] * 2;
}
K clocks(const float* in, float* out, long long* timer) {
    extern __shared__ float f[];
    long long start = clock64();
    f[threadIdx.x] = in[TID];
    __syncthreads();
    out[TID] = f[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) timer[blockIdx.x] = clock64() - start >= 0;
}
K inline_ptx(unsigned* out) {
    unsigned lane, mask;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 16; selp.u32 %0, 7, 9, p; }" : "=r"(mask) : "r"(lane));
    out[TID] = lane * mask;
}
K jacobi(const float* a, const double* b, double* x, double* xn, double* sum, int n) {
    __shared__ double part[8];
    int row = blockIdx.x;
    double s = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) s += (double)a[row * n + j] * x[j];
    for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x / 32; w++) s += part[w];
        double d = (b[row] - s) / a[row * n + row];
        xn[row] = x[row] + d;
        atomicAdd(sum, fabs(d));
    }
}
K fdtd(float* out, const float* in, int nx, int ny, int nz) {
    __shared__ float tile[10][18];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, plane = nx * ny, tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    float before = 0, here = in[y * nx + x], after = in[plane + y * nx + x];
    for (int z = 0; z < nz; z++) {
        tile[ty][tx] = here;
        if (threadIdx.y == 0) tile[0][tx] = y > 0 ? in[z * plane + (y - 1) * nx + x] : 0;
        if (threadIdx.y == 7) tile[9][tx] = y + 1 < ny ? in[z * plane + (y + 1) * nx + x] : 0;
        if (threadIdx.x == 0) tile[ty][0] = x > 0 ? in[z * plane + y * nx + x - 1] : 0;
        if (threadIdx.x == 15) tile[ty][17] = x + 1 < nx ? in[z * plane + y * nx + x + 1] : 0;
        __syncthreads();
        out[z * plane + y * nx + x] = tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx] + before + after - 6 * here;
        __syncthreads();
        before = here, here = after, after = z + 2 < nz ? in[(z + 2) * plane + y * nx + x] : 0;
    }
}
K dct8(float* out, const float* in, int w) {
    __shared__ float s[8][9];
    int u = threadIdx.x, v = threadIdx.y, at = (blockIdx.y * 8 + v) * w + blockIdx.x * 8 + u;
    s[v][u] = in[at];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 8; k++) sum += s[v][k] * cosf((2 * k + 1) * u * 0.19634954f);
    __syncthreads();
    s[v][u] = sum * (u ? 0.5f : 0.35355339f);
    __syncthreads();
    sum = 0;
    for (int k = 0; k < 8; k++) sum += s[k][u] * cospif((2 * k + 1) * v / 16.0f);
    out[at] = sum * (v ? 0.5f : 0.35355339f);
}
K sobol(unsigned* out, const unsigned* directions, int n) {
    __shared__ unsigned v[32];
    if (threadIdx.x < 32) v[threadIdx.x] = directions[threadIdx.x];
    __syncthreads();
    for (unsigned i = TID; i < n; i += blockDim.x * gridDim.x) {
        unsigned g = i ^ (i >> 1), x = 0;
        for (int k = 0; k < __ffs(n - 1) + 10; k++) x ^= (g >> k & 1) * v[k];
        out[i] = x;
    }
}
K twister(unsigned* out, unsigned seed, int n) {
    unsigned mt[17], s = seed + TID;
    for (int i = 0; i < 17; i++) mt[i] = s = 1812433253u * (s ^ (s >> 30)) + i;
    for (int i = 0, at = 0; i < n; i++, at = (at + 1) % 17) {
        unsigned y = (mt[at] & 0xfffffffeu) | (mt[(at + 1) % 17] & 1);
        mt[at] = mt[(at + 8) % 17] ^ (y >> 1) ^ (y & 1 ? 0xed9093e1u : 0);
        y = mt[at]; y ^= y >> 11; y ^= (y << 7) & 0x655e5280u; y ^= (y << 15) & 0xffd58000u;
        out[TID * n + i] = y ^ (y >> 18);
    }
}
K half_dot(const half2* a, const half2* b, float* out, int n) {
    __shared__ half2 s[128];
    half2 v = __float2half2_rn(0);
    for (int i = TID; i < n; i += blockDim.x * gridDim.x) v = __hfma2(a[i], b[i], v);
    s[threadIdx.x] = v;
    __syncthreads();
    for (int d = 64; d; d >>= 1) {
        if (threadIdx.x < d) s[threadIdx.x] = __hadd2(s[threadIdx.x], s[threadIdx.x + d]);
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = __low2float(s[0]) + __high2float(s[0]);
}
K integral_rows(const uint4* in, uint4* out) {
    __shared__ int sums[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 v = in[TID];
    v.y += v.x, v.z += v.y, v.w += v.z;
    int sum = v.w;
    for (int d = 1; d < 32; d *= 2) { int n = __shfl_up_sync(~0u, sum, d); if (lane >= d) sum += n; }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int base = sum - (int)v.w;
    for (int w = 0; w < warp; w++) base += sums[w];
    out[TID] = make_uint4(v.x + base, v.y + base, v.z + base, v.w + base);
}
K spmv_vector(const int* rows, const int* columns, const float* values, const float* x, float* y, int n) {
    int row = TID / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    float s = 0;
    for (int j = rows[row] + lane; j < rows[row + 1]; j += 32) s += values[j] * __ldg(x + columns[j]);
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
    if (lane == 0) y[row] = s;
}
K bfs_level(const int* rows, const int* columns, int* depth, int level, int* changed, int n) {
    int v = TID;
    if (v >= n || *(volatile int*)(depth + v) != level) return;
    for (int j = rows[v]; j < rows[v + 1]; j++)
        if (atomicCAS(depth + columns[j], -1, level + 1) == -1) atomicExch(changed, 1);
}
K spin_lock(int* lock, int* counter) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
        __threadfence();
        *(volatile int*)counter = *(volatile int*)counter + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}
K lookback_scan(const int* in, int* out, volatile int* state, volatile int* prefix, int* ticket) {
    __shared__ int s[128], before, number;
    int t = threadIdx.x;
    if (t == 0) number = atomicAdd(ticket, 1);
    __syncthreads();
    int b = number;
    s[t] = in[b * 128 + t];
    for (int d = 1; d < 128; d *= 2) {
        __syncthreads();
        int x = t >= d ? s[t - d] : 0;
        __syncthreads();
        s[t] += x;
    }
    __syncthreads();
    if (t == 0) {
        int p = 0;
        if (b) { while (atomicAdd((int*)state + b - 1, 0) == 0) {} __threadfence(); p = prefix[b - 1]; }
        prefix[b] = p + s[127];
        __threadfence();
        atomicExch((int*)state + b, 1);
        before = p;
    }
    __syncthreads();
    out[b * 128 + t] = s[t] + before;
}
K bilateral(const float* in, float* out, int w, int h) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x >= w || y >= h) return;
    float sum = 0, total = 0, c = in[y * w + x];
    for (int dy = -2; dy <= 2; dy++) for (int dx = -2; dx <= 2; dx++) {
        int u = min(max(x + dx, 0), w - 1), v = min(max(y + dy, 0), h - 1);
        float p = in[v * w + u], f = expf(-(dx * dx + dy * dy) * 0.125f) * expf(-(p - c) * (p - c) * 2);
        sum += f * p, total += f;
    }
    out[y * w + x] = sum / total;
}
K recursive_gaussian(const float* in, float* out, int w, int h, float a) {
    int x = TID;
    if (x >= w) return;
    float y = in[x];
    for (int i = 0; i < h; i++) out[i * w + x] = y = y + a * (in[i * w + x] - y);
    for (int i = h - 1; i >= 0; i--) out[i * w + x] = y = y + a * (out[i * w + x] - y);
}
K layer_norm(const float* x, const float* g, const float* b, float* y, int n) {
    __shared__ float part[2][4];
    const float4* row = (const float4*)(x + blockIdx.x * n);
    float s = 0, q = 0;
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        float4 v = row[i];
        s += v.x + v.y + v.z + v.w, q += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d), q += __shfl_xor_sync(~0u, q, d);
    if (threadIdx.x % 32 == 0) part[0][threadIdx.x / 32] = s, part[1][threadIdx.x / 32] = q;
    __syncthreads();
    s = part[0][0] + part[0][1] + part[0][2] + part[0][3], q = part[1][0] + part[1][1] + part[1][2] + part[1][3];
    float mean = s / n, inv = rsqrtf(q / n - mean * mean + 1e-5f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - mean) * inv * g[i] + b[i];
}
K online_softmax(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
    const __nv_bfloat16* row = x + blockIdx.x * n;
    float m = -1e30f, s = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        float v = __bfloat162float(row[i]), t = fmaxf(m, v);
        s = s * __expf(m - t) + __expf(v - t), m = t;
    }
    for (int d = 16; d; d /= 2) {
        float m2 = __shfl_xor_sync(~0u, m, d), s2 = __shfl_xor_sync(~0u, s, d), t = fmaxf(m, m2);
        s = s * __expf(m - t) + s2 * __expf(m2 - t), m = t;
    }
    for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = __float2bfloat16(__expf(__bfloat162float(row[i]) - m) / s);
}
__device__ int ackermann(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
K recursion(int* out) { out[TID] = ackermann(TID % 3, TID % 4); }
__device__ void quicksort(int* a, int lo, int hi) {
    if (lo >= hi) return;
    int p = a[(lo + hi) / 2], i = lo, j = hi;
    while (i <= j) {
        while (a[i] < p) i++;
        while (a[j] > p) j--;
        if (i <= j) { int t = a[i]; a[i++] = a[j]; a[j--] = t; }
    }
    quicksort(a, lo, j), quicksort(a, i, hi);
}
K quicksorts(int* data, int n) { quicksort(data + TID * n, 0, n - 1); }
K barrier_subset(const int* in, int* out) {
    __shared__ int s[128];
    if (threadIdx.x < 64) { s[threadIdx.x] = in[threadIdx.x]; asm volatile("bar.arrive 1, 128;"); }
    else { asm volatile("bar.sync 1, 128;"); out[threadIdx.x - 64] = s[127 - threadIdx.x]; }
}
K block_votes(const int* in, int* out) {
    int v = in[threadIdx.x];
    out[threadIdx.x] = __syncthreads_count(v > 50) + 1000 * __syncthreads_and(v >= 0) + 2000 * __syncthreads_or(v > 99);
}
K warp_reduce_ops(const unsigned* in, unsigned* out) {
    unsigned v = in[TID];
    out[TID] = __reduce_add_sync(~0u, v & 0xffff) ^ __reduce_max_sync(~0u, v) ^ __reduce_xor_sync(~0u, v) ^ __reduce_or_sync(~0u, v & 0x0f0f);
}
K strided_smem_int8(const char4* in, int* out) {
    __shared__ char s[512];
    ((char4*)s)[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    int x = 0;
    for (int i = 0; i < 4; i++) x += s[threadIdx.x + 128 * i] << (i * 4);
    out[threadIdx.x] = x;
}
K prefetch_sum(const float* in, float* out, int n) {
    float s = 0, next = in[TID];
    for (int i = TID; i < n; i += blockDim.x * gridDim.x) {
        float now = next;
        int j = i + blockDim.x * gridDim.x;
        if (j < n) { asm volatile("prefetch.global.L2 [%0];" ::"l"(in + j)); next = __ldcs(in + j); }
        s += now;
    }
    __stcg(out + TID, s);
}
K producer_consumer(const int* in, int* out, int n) {
    __shared__ int buffer[2][32];
    if (threadIdx.x < 32)
        for (int i = 0; i < n; i++) {
            if (i >= 2) asm volatile("bar.sync %0, 64;" ::"r"(3 + i % 2) : "memory");
            buffer[i % 2][threadIdx.x] = in[i * 32 + threadIdx.x];
            asm volatile("bar.arrive %0, 64;" ::"r"(1 + i % 2) : "memory");
        }
    else
        for (int i = 0; i < n; i++) {
            asm volatile("bar.sync %0, 64;" ::"r"(1 + i % 2) : "memory");
            out[i * 32 + threadIdx.x - 32] = buffer[i % 2][63 - threadIdx.x] * 2;
            if (i + 2 < n) asm volatile("bar.arrive %0, 64;" ::"r"(3 + i % 2) : "memory");
        }
}
