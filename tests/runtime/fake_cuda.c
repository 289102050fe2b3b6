// A CUDA driver without a GPU: device memory is host memory, kernels are parsed for their parameters only, and a launch
// calls back into the test, which plays the kernel. Built and loaded as libcuda.so.1 by the tests.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef uint64_t P;
#define MAX_PARAMS 64

typedef struct {
  char name[256];
  int count, offset[MAX_PARAMS], size[MAX_PARAMS];
  int dynamic_smem, non_portable;
} Function;
typedef struct {
  char *image;
  Function *functions[16];
  int count, any;
} Module;
typedef struct { unsigned gx, gy, gz, bx, by, bz, smem; void *stream, *attrs; unsigned n; } Config;

typedef int (*Callback)(const char *name, void **params, int count, const int *sizes, unsigned *dims, unsigned smem,
                        void *stream, int cluster, int pdl);
static Callback callback;
static _Atomic long live_blocks, live_modules, launches, encodes, sticky;
static char blob[1];
static __thread void *contexts[64];  // each thread has a stack of its own
static __thread int depth;

static long device_waits, host_side[2];
long fake_host_side(int back) { return host_side[back]; }  // the host's address in the last copy to the GPU, or back
void fake_callback(Callback f) { callback = f; }
void fake_fail(long code) { sticky = code; }
long fake_count(int which) { long c[] = {live_blocks, live_modules, launches, encodes, depth, device_waits}; return c[which]; }
#define GUARD if (sticky) return (R)sticky
#define HERE GUARD; if (!depth) return 201  // what the driver says where no context is current

R cuInit(unsigned f) { return 0; }
R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
R cuDeviceGetCount(int *n) { *n = 2; return 0; }
R cuDeviceGet(int *d, int i) { *d = i; return 0; }
R cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Fake GPU"); return 0; }
R cuDeviceGetAttribute(int *v, int attr, int d) {
  switch (attr) {
  case 75: *v = 9; break;
  case 76: *v = 0; break;
  case 97: *v = 227 * 1024; break;
  case 81: *v = 228 * 1024; break;
  case 82: *v = 65536; break;
  case 1: *v = 1024; break;
  case 106: *v = 32; break;
  case 39: *v = 2048; break;
  case 16: *v = 132; break;
  case 5: *v = 2147483647; break;
  case 6: case 7: *v = 65535; break;
  default: *v = 1;
  }
  return 0;
}
R cuDevicePrimaryCtxRetain(void **c, int d) { *c = blob + 0x1000 * (d + 1); return 0; }
R cuCtxPushCurrent(void *c) { GUARD; contexts[depth++] = c; return 0; }
R cuCtxPopCurrent(void **c) { if (depth) *c = contexts[--depth]; return 0; }
R cuCtxSetCurrent(void *c) { if (!depth) depth = 1; contexts[depth - 1] = c; return 0; }
R cuCtxGetCurrent(void **c) { *c = depth ? contexts[depth - 1] : 0; return 0; }
R cuCtxGetDevice(int *d) { if (!depth) return 201; *d = contexts[depth - 1] == blob + 0x1000 ? 0 : 1; return 0; }
R cuCtxGetId(void *c, unsigned long long *id) {
  if (!c && !depth) return 201;
  *id = 1 + (unsigned long long)((char *)(c ? c : contexts[depth - 1]) - (char *)blob);
  return 0;
}
R cuCtxSynchronize(void) { HERE; device_waits++; return 0; }
R cuStreamSynchronize(void *s) { if (!s) { HERE; } GUARD; return 0; }
R cuThreadExchangeStreamCaptureMode(int *m) { return 0; }
R cuGetErrorString(R e, const char **s) { *s = "a made-up failure"; return 0; }

static void parse(Module *m) {
  char *at = m->image;
  while ((at = strstr(at, ".entry "))) {
    Function *f = calloc(1, sizeof *f);
    sscanf(at + 7, "%255[A-Za-z0-9_$]", f->name);
    char *open = strchr(at, '('), *close = strchr(at, ')'), *brace = strchr(at, '{');
    int end = 0;
    for (char *p = open; p && open < brace && (p = strstr(p, ".param")) && p < close; p += 6) {
      int align = 0, bits = 0, n = 1;
      char *stop = strpbrk(p, ",)"), *a = strstr(p, ".align"), *dim = strchr(p, '[');
      if (a && a < stop) sscanf(a + 6, "%d", &align);
      for (char *t = p + 6; t < stop && !bits; t++)
        if (*t == '.' && strchr("usbf", t[1])) sscanf(t + 2, "%d", &bits);
      if (dim && dim < stop) sscanf(dim + 1, "%d", &n);
      if (!align) align = bits / 8;
      end = (end + align - 1) / align * align;
      f->offset[f->count] = end, f->size[f->count++] = bits / 8 * n, end += bits / 8 * n;
    }
    m->functions[m->count++] = f;
    at += 7;
  }
}
R cuModuleLoadDataEx(void **out, const void *image, unsigned n, int *options, void **values) {
  HERE;
  int cubin = !memcmp(image, "\x7f" "ELF", 4);  // taken on trust: any entry, no parameters
  if (!cubin && !strstr(image, ".entry")) {
    for (unsigned i = 0; i < n; i++)
      if (options[i] == 5) snprintf(values[i], 100, "ptxas fatal: not PTX");
    return 218;
  }
  Module *m = calloc(1, sizeof *m);
  m->image = cubin ? strdup("") : strdup(image);
  m->any = cubin;
  parse(m);
  live_modules++;
  *out = m;
  return 0;
}
R cuModuleUnload(Module *m) {
  for (int i = 0; i < m->count; i++) free(m->functions[i]);
  free(m->image), free(m), live_modules--;
  return 0;
}
R cuModuleGetFunction(void **f, Module *m, const char *name) {
  for (int i = 0; i < m->count; i++)
    if (!strcmp(m->functions[i]->name, name)) { *f = m->functions[i]; return 0; }
  if (m->any && m->count < 16) {
    Function *made = m->functions[m->count++] = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    *f = made;
    return 0;
  }
  return 500;
}
R cuFuncGetAttribute(int *v, int a, Function *f) {
  *v = a == 0 ? 1024 : a == 8 ? f->dynamic_smem : a == 14 ? f->non_portable : 0;
  return 0;
}
R cuFuncSetAttribute(Function *f, int a, int v) {
  if (a == 8) f->dynamic_smem = v;
  if (a == 14) f->non_portable = v;
  return 0;
}
R cuFuncGetParamInfo(Function *f, size_t i, size_t *offset, size_t *size) {
  if (i >= (size_t)f->count) return 1;
  *offset = f->offset[i], *size = f->size[i];
  return 0;
}
static R run(Function *f, unsigned *dims, unsigned smem, void *stream, void **params, int cluster, int pdl) {
  GUARD;
  if (!depth) return 201;
  if (smem > 49152 && (int)smem > f->dynamic_smem) return 1;
  if (cluster > 8 && !f->non_portable) return 1;
  launches++;
  return callback ? callback(f->name, params, f->count, f->size, dims, smem, stream, cluster, pdl) : 0;
}
R cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                 unsigned smem, void *stream, void **params, void **extra) {
  unsigned d[] = {gx, gy, gz, bx, by, bz};
  return run(f, d, smem, stream, params, 1, 0);
}
typedef struct { int id; char pad[4]; union { char raw[64]; unsigned dim[3]; int flag; } v; } Attr;
R cuLaunchKernelEx(const Config *c, Function *f, void **params, void **extra) {
  unsigned d[] = {c->gx, c->gy, c->gz, c->bx, c->by, c->bz};
  int cluster = 1, pdl = 0;
  for (unsigned i = 0; i < c->n; i++) {
    Attr *a = (Attr *)c->attrs + i;
    if (a->id == 4) cluster = a->v.dim[0] * a->v.dim[1] * a->v.dim[2];
    if (a->id == 6) pdl = a->v.flag;
  }
  return run(f, d, c->smem, c->stream, params, cluster, pdl);
}
#define HELD 1024
typedef struct { P p; size_t n; int device; } Held;
static Held held[HELD];  // the last that were given, with the GPU that was current
static long next_held;
R cuMemAllocAsync(P *p, size_t n, void *s) {
  HERE;
  if (n > (1ull << 40)) return 2;
  *p = (P)aligned_alloc(256, (n + 255) / 256 * 256);
  memset((void *)*p, 0xcd, n);
  held[next_held++ % HELD] = (Held){*p, n, depth && contexts[depth - 1] == blob + 0x2000};
  live_blocks++;
  return 0;
}
R cuMemFreeAsync(P p, void *s) { HERE; free((void *)p); live_blocks--; return 0; }
R cuMemHostAlloc(void **p, size_t n, unsigned flags) { HERE; *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096); return *p ? 0 : 2; }
R cuMemAlloc(P *p, size_t n) { return cuMemAllocAsync(p, n, 0); }
R cuMemFree(P p) { return cuMemFreeAsync(p, 0); }
R cuMemcpyHtoDAsync(P d, const void *h, size_t n, void *s) { HERE; host_side[0] = (long)h; memcpy((void *)d, h, n); return 0; }
R cuMemcpyDtoHAsync(void *h, P d, size_t n, void *s) { HERE; host_side[1] = (long)h; memcpy(h, (void *)d, n); return 0; }
R cuMemcpyDtoDAsync(P d, P e, size_t n, void *s) { HERE; memmove((void *)d, (void *)e, n); return 0; }
typedef struct {
  size_t sx, sy; int st; const void *sh; P sd; void *sa; size_t sp;
  size_t dx, dy; int dt; void *dh; P dd; void *da; size_t dp;
  size_t width, height;
} Copy2D;
R cuMemcpy2DAsync(const Copy2D *c, void *s) {
  HERE;
  if (c->sp < c->width || c->dp < c->width) return 1;
  const char *from = c->st == 1 ? c->sh : (void *)c->sd;
  char *to = c->dt == 1 ? c->dh : (void *)c->dd;
  for (size_t i = 0; i < c->height; i++) memcpy(to + i * c->dp, from + i * c->sp, c->width);
  return 0;
}
#define SET(bits, type)                                                                     \
  R cuMemsetD##bits##Async(P d, type v, size_t n, void *s) {                                \
    HERE; for (size_t i = 0; i < n; i++) ((type *)d)[i] = v; return 0; }                   \
  R cuMemsetD2D##bits##Async(P d, size_t pitch, type v, size_t w, size_t h, void *s) {      \
    HERE; if (h > 1 && pitch < w * sizeof v) return 1;                                     \
    for (size_t j = 0; j < h; j++)                                                          \
      for (size_t i = 0; i < w; i++) ((type *)(d + j * pitch))[i] = v;                      \
    return 0; }
SET(8, uint8_t)
SET(16, uint16_t)
SET(32, uint32_t)
R cuTensorMapEncodeTiled(P *map, int type, unsigned rank, void *address, const uint64_t *dim, const uint64_t *strides,
                         const unsigned *box, const unsigned *steps, int interleave, int swizzle, int l2, int fill) {
  P words[16] = {type, rank, (P)address, dim[0], rank > 1 ? dim[1] : 0, rank > 1 ? strides[0] : 0, box[0],
                 rank > 1 ? box[1] : 0, steps[0], swizzle, l2, fill};
  memcpy(map, words, sizeof words);
  encodes++;
  return 0;
}
R cuEventCreate(void **e, unsigned f) { HERE; *e = calloc(1, 8); *(void **)*e = contexts[depth - 1]; return 0; }
R cuEventDestroy(void *e) { free(e); return 0; }
R cuEventRecord(void *e, void *s) {  // the stream without a handle is the current context's, and so must the event be
  if (!s) { HERE; if (*(void **)e != contexts[depth - 1]) return 400; }
  return 0;
}
R cuEventSynchronize(void *e) { return 0; }
R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 1.0f; return 0; }
R cuEventQuery(void *e) { return 600; }  // not ready: the host is always ahead of this GPU
R cuStreamWaitEvent(void *s, void *e, unsigned f) { return 0; }
R cuStreamIsCapturing(void *s, int *status) { *status = 0; return 0; }
R cuPointerGetAttribute(void *out, int attr, P p) {
  *(int *)out = 0;
  for (long i = next_held; i-- > 0 && i >= next_held - HELD;)
    if (held[i % HELD].p <= p && p < held[i % HELD].p + held[i % HELD].n) { *(int *)out = held[i % HELD].device; break; }
  return 0;
}
R cuMemGetInfo(size_t *f, size_t *t) { *f = *t = 1ull << 36; return 0; }

// What host code calls (lowering/host.py), which looks symbols up by the names in the library.
R cuCtxPushCurrent_v2(void *c) { return cuCtxPushCurrent(c); }
R cuCtxPopCurrent_v2(void **c) { return cuCtxPopCurrent(c); }
R cuMemAlloc_v2(P *p, size_t n) { return cuMemAlloc(p, n); }
R cuMemcpyHtoD_v2(P d, const void *h, size_t n) { return cuMemcpyHtoDAsync(d, h, n, 0); }
R cuMemcpyDtoH_v2(void *h, P d, size_t n) { return cuMemcpyDtoHAsync(h, d, n, 0); }
R cuMemcpyDtoDAsync_v2(P d, P e, size_t n, void *s) { return cuMemcpyDtoDAsync(d, e, n, s); }
R cuStreamGetCtx(void *s, void **c) { *c = blob + 0x1000; return 0; }
R cuLibraryLoadData(void **l, const void *code, int *o, void **v, unsigned n, int *p, void **w, unsigned m) {
  GUARD;
  if (getenv("FAKE_CUDA_FOREIGN")) return 209;
  return cuModuleLoadDataEx(l, code, 0, 0, 0);
}
R cuLibraryUnload(Module *m) { return cuModuleUnload(m); }
R cuLibraryGetKernel(void **k, Module *m, const char *name) { return cuModuleGetFunction(k, m, name); }
R cuKernelGetFunction(void **f, Function *k) { *f = k; return 0; }
R cuKernelSetAttribute(int a, int v, Function *k, int d) { return cuFuncSetAttribute(k, a, v); }

R cuGetProcAddress_v2(const char *symbol, void **f, int version, uint64_t flags, int *status) {
  *f = dlsym(RTLD_DEFAULT, symbol);
  Dl_info info;
  if (!*f) {
    static void *self;
    if (!self && dladdr((void *)cuInit, &info)) self = dlopen(info.dli_fname, RTLD_LAZY);
    *f = dlsym(self, symbol);
  }
  if (status) *status = *f ? 0 : 1;
  return 0;
}
R cuGetProcAddress(const char *symbol, void **f, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, f, version, flags, 0);
}
// Two GPUs that reach each other, unless the test says that they don't.
static long apart, reached;
void fake_apart(long yes) { apart = yes; }
long fake_reached(void) { return reached; }
R cuDeviceCanAccessPeer(int *yes, int d, int peer) { *yes = !apart; return 0; }
R cuCtxEnablePeerAccess(void *peer, unsigned flags) { GUARD; reached++; return peer == contexts[depth - 1] ? 1 : 0; }
R cuMemPoolSetAccess(void *pool, const void *access, size_t n) { return 0; }
R cuFuncLoad(void *f) { return 0; }
R cuDeviceGetDefaultMemPool(void **pool, int d) { *pool = blob; return 0; }
