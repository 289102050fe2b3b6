// Calls the kernel of softmax.h without Python, and compares its result.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "softmax.h"

// What this program itself needs of the driver: with the CUDA toolkit, include <cuda.h>.
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
int cuMemcpyDtoH_v2(void *, uint64_t, size_t);

enum { ROWS = 64, COLUMNS = 1000, COUNT = ROWS * COLUMNS };

static void check(int code, const char *what) {
  if (code) {
    fprintf(stderr, "%s: CUDA error %d\n", what, code);
    exit(1);
  }
}

int main(void) {
  static float x[COUNT], y[COUNT];
  for (int i = 0; i < COUNT; i++) x[i] = (float)(rand() % 1000) / 250;

  int device;
  void *context;
  uint64_t in, out;
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  check(cuMemAlloc_v2(&in, sizeof x), "cuMemAlloc");
  check(cuMemAlloc_v2(&out, sizeof y), "cuMemAlloc");
  check(cuMemcpyHtoD_v2(in, x, sizeof x), "cuMemcpyHtoD");

  int64_t shape[] = {ROWS, COLUMNS};
  DLTensor given = {(void *)in, {2, 0}, 2, {2, 32, 1}, shape, NULL, 0};
  DLTensor made = {(void *)out, {2, 0}, 2, {2, 32, 1}, shape, NULL, 0};
  if (softmax(NULL, &given, &made)) {
    fprintf(stderr, "%s\n", softmax_error());
    return 1;
  }
  check(cuMemcpyDtoH_v2(y, out, sizeof y), "cuMemcpyDtoH");  // waits for the kernel

  double worst = 0;
  for (int row = 0; row < ROWS; row++) {
    double whole = 0;
    for (int i = 0; i < COLUMNS; i++) whole += exp(x[row * COLUMNS + i]);
    for (int i = 0; i < COLUMNS; i++) {
      double wanted = exp(x[row * COLUMNS + i]) / whole;
      worst = fmax(worst, fabs(wanted - y[row * COLUMNS + i]));
    }
  }
  printf("largest error %.1e\n", worst);

  shape[0] = 65;
  if (softmax(NULL, &given, &made)) printf("refused: %s\n", softmax_error());
  return worst < 1e-6 ? 0 : 1;
}
