// Threads of a C program that call the same exported functions at once, on the driver of fake_cuda.c. Each has arrays of its own,
// every third call is wrong in a way of its own, and the error must be that call's.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "added.h"
#include "copied.h"

enum { THREADS = 16, CALLS = 600 };
static pthread_barrier_t gate;
static int failures;
static __thread void *mine[3];
static __thread int launched;
#define CHECK(condition, ...) \
  if (!(condition)) { fprintf(stderr, __VA_ARGS__); __sync_fetch_and_add(&failures, 1); }

static int play(const char *name, void **params, int count, const int *sizes, unsigned *dims, unsigned smem, void *stream,
                int cluster, int pdl) {
  launched++;
  if (sizes[0] == 8)  // `added`, whose parameters are addresses
    for (int i = 0; i < 3; i++) CHECK(*(void **)params[i] == mine[i], "another thread's array %d\n", i);
  CHECK(stream == &mine, "another thread's stream\n");
  return 0;
}

static void *work(void *given) {
  long me = (long)given;
  int64_t shape[] = {1024}, square[] = {64, 64}, wrong[] = {2000 + me};
  DLTensor a[3], c[2], bad;
  for (int i = 0; i < 3; i++) {
    mine[i] = aligned_alloc(256, 64 * 64 * 4);
    a[i] = (DLTensor){mine[i], {2, 0}, 1, {2, 32, 1}, shape, 0, 0};
    if (i < 2) c[i] = (DLTensor){mine[i], {2, 0}, 2, {2, 32, 1}, square, 0, 0};
  }
  bad = a[1], bad.shape = wrong;
  char words[64];
  sprintf(words, "axis 0 of y has %ld elements", 2000 + me);
  pthread_barrier_wait(&gate);
  for (int i = 0; i < CALLS; i++) {
    launched = 0;
    if ((i + me) % 3 == 0) {
      CHECK(added((CUstream)&mine, a, &bad, a + 2) == -1 && !launched, "a wrong call was launched\n");
      CHECK(strstr(added_error(), words), "another error: %s\n", added_error());
    } else {
      int code = i % 2 ? added((CUstream)&mine, a, a + 1, a + 2) : copied((CUstream)&mine, c, c + 1);
      CHECK(!code && launched == 1, "code %d, %d launches: %s%s\n", code, launched, added_error(), copied_error());
      CHECK(!*(i % 2 ? added_error() : copied_error()), "an error after a right call\n");
    }
  }
  return 0;
}

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  ((void (*)(void *))dlsym(driver, "fake_callback"))((void *)play);
  pthread_t threads[THREADS];
  pthread_barrier_init(&gate, 0, THREADS);
  for (long i = 0; i < THREADS; i++) pthread_create(threads + i, 0, work, (void *)i);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
  long (*count)(int) = (long (*)(int))dlsym(driver, "fake_count");
  CHECK(count(1) == 2, "%ld modules are loaded, of 2 kernels\n", count(1));
  CHECK(count(0) == 0, "%ld blocks of memory are left\n", count(0));
  printf("%d threads made %d calls each\n", THREADS, CALLS);
  return failures != 0;
}
