/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the emulated CUDA driver: it is loaded from beside the test, after the environment is set. */
#ifndef HK_TESTS_CUDAEMU_H
#define HK_TESTS_CUDAEMU_H
#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../src/base/cuda_abi.h"

typedef struct hk_vec {
  uint32_t w[4];
} hk_vec;
#include "../cudaemu/held.h"
#include "../cudaemu/test_kernels.h"

static hk_cuda_calls cu;
#define OK(call) ck_assert_int_eq(cu.call, CUDA_SUCCESS)
#define FAILS(code, call) ck_assert_int_eq(cu.call, code)

static inline const char *emu_file(const char *name) {
  static char path[4200];
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  snprintf(path, sizeof path, "%s/../cudaemu/%s", dirname(self), name);
  return path;
}
static inline void emu_load(void) {
  unsetenv("HOCKET_DEVICE"); /* scripts/check.sh sets it */
  void *library = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
#define FIND(member, symbol, params)                                                                                   \
  *(void **)&cu.member = dlsym(library, #symbol);                                                                      \
  ck_assert_msg(cu.member != NULL, "no %s", #symbol);
  HK_CUDA_CALLS(FIND, FIND)
#undef FIND
}
/* Descriptors of files in memory. */
static inline long emu_memory_files(void) {
  char path[300], name[64];
  long n = 0;
  DIR *d = opendir("/proc/self/fd");
  for (const struct dirent *e; d && (e = readdir(d));) {
    snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
    ssize_t length = readlink(path, name, sizeof name);
    n += length > 7 && strncmp(name, "/memfd:", 7) == 0;
  }
  if (d) closedir(d);
  return n;
}
/* What this process holds of the driver (held.h), and descriptors of memory: others may lend it. */
enum { EMU_FILES = CUDAEMU_HELD, EMU_HELD };
static inline void emu_count_held(long held[EMU_HELD]) {
  void (*count)(long *) = NULL;
  void *library = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD);
  if (library) *(void **)&count = dlsym(library, "cudaemu_held");
  ck_assert_ptr_nonnull(count);
  count(held);
  held[EMU_FILES] = emu_memory_files();
  dlclose(library);
}
/* Asserts that it holds as much as before. */
static inline void emu_check_held(const long before[EMU_HELD]) {
  static const char *const names[] = {"streams", "events",   "modules",     "physical",   "classic",        "reserved",
                                      "mapped",  "imported", "of the host", "registered", "files of memory"};
  _Static_assert(sizeof names / sizeof *names == EMU_HELD, "a name for each kind");
  long now[EMU_HELD];
  emu_count_held(now);
  for (int i = 0; i < EMU_HELD; i++)
    ck_assert_msg(now[i] == before[i], "%s: %ld are held, %ld before", names[i], now[i], before[i]);
}
/* With `devices` devices, the first one's context current. */
static inline void emu_start(int devices) {
  char text[16];
  CUcontext ctx;
  snprintf(text, sizeof text, "%d", devices);
  setenv("CUDAEMU_DEVICES", text, 1);
  emu_load();
  OK(Init(0));
  for (int d = devices - 1; d >= 0; d--) OK(DevicePrimaryCtxRetain(&ctx, d));
  OK(CtxSetCurrent(ctx));
}
static inline CUcontext emu_use(int device) {
  CUcontext ctx;
  OK(DevicePrimaryCtxRetain(&ctx, device));
  OK(CtxSetCurrent(ctx));
  return ctx;
}
static inline CUdeviceptr emu_alloc(size_t bytes) {
  CUdeviceptr p = 0;
  OK(MemAlloc(&p, bytes));
  OK(MemsetD8Async(p, 0, bytes, NULL));
  OK(StreamSynchronize(NULL));
  return p;
}
static inline CUstream emu_new_stream(unsigned flags) {
  CUstream s;
  OK(StreamCreateWithPriority(&s, flags, 0));
  return s;
}
/* Tests look at device memory through copies. */
static inline void emu_read(void *to, CUdeviceptr from, size_t bytes) {
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)to, from, bytes, NULL));
  OK(StreamSynchronize(NULL));
}
static inline uint32_t emu_word(CUdeviceptr at) {
  uint32_t x;
  emu_read(&x, at, 4);
  return x;
}
/* Without a C++ compiler there are none. */
static inline int emu_has_kernels(void) {
  if (access(emu_file("test_kernels.so"), R_OK) == 0) return 1;
  printf("SKIP: kernels on the emulated driver: they were not compiled, which takes g++\n");
  return 0;
}
static inline CUfunction emu_kernel(const char *name) {
  static CUmodule module;
  char image[4300];
  CUfunction f;
  snprintf(image, sizeof image, "cudaemu:%s", emu_file("test_kernels.so"));
  if (!module) OK(ModuleLoadData(&module, image));
  OK(ModuleGetFunction(&f, module, name));
  return f;
}
static inline void emu_launch(CUfunction f, unsigned blocks, unsigned threads, void *params, CUstream s) {
  void *list[] = {params};
  OK(LaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, list, NULL));
}
#endif
