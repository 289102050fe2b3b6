// Compiled to cuda.ptx and cuda.fatbin by nvcc 13.0:
//   nvcc -arch=sm_90a -ptx cuda.cu
//   nvcc -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=compute_90a --no-compress -fatbin cuda.cu
struct Block {
  int a;
  float b;
  double c;
  char d[5];
};

__constant__ float coefficients[4] = {1.f, 2.f, 3.f, 4.f};
__device__ int counter;

extern "C" __global__ void heap(int *out, int n) {
  int *p = (int *)malloc(n * sizeof(int));
  for (int i = 0; i < n; i++) p[i] = i + threadIdx.x;
  int s = 0;
  for (int i = 0; i < n; i++) s += p[i];
  free(p);
  out[threadIdx.x] = s;
}

extern "C" __global__ void use_after_free(int *out) {
  int *p = (int *)malloc(16);
  p[0] = 1;
  free(p);
  out[threadIdx.x] = *(volatile int *)p;
}

extern "C" __global__ void by_value(Block p, float *out, unsigned long long k) {
  out[threadIdx.x] = p.a + p.b + p.c + p.d[4] + (float)k + coefficients[threadIdx.x & 3];
}

extern "C" __global__ void nothing() {
  if (threadIdx.x == 0) atomicAdd(&counter, 1);
}
