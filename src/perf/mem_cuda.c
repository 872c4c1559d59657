/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's memory, through the CUDA driver only: building and running need no toolkit. If there are more ranks than
 * GPUs, they share GPUs in turn. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/cuda_abi.h" /* types and names only */
#include "mem.h"

static hk_cuda_calls cu;
static int devices;

#define LOAD(member, symbol, params) cu.member = (CUresult(*) params)dlsym(driver, #symbol);
static void mem_cuda_load(void) {
  const char *wanted = getenv("HOCKET_DEVICE");
  void *driver = wanted && !strcmp(wanted, "host") ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) return;
  HK_CUDA_CALLS(LOAD, LOAD)
  /* Before the driver starts: ranks that are threads and share a GPU have streams that must not share a hardware queue,
   * and 8 is the default. A value that the user sets is kept. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (!cu.Init || cu.Init(0) != CUDA_SUCCESS || cu.DeviceGetCount(&devices) != CUDA_SUCCESS) devices = 0;
  /* Any NCCL works on GPUs; Hocket reports whether it can. */
  int (*usable)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "hocketDeviceCount");
  if (devices && usable && usable() == 0) {
    devices = 0;
    printf("# there are GPUs, but this libnccl.so.2 was built without kernels for them (make NVCC=/path/to/nvcc): host "
           "memory is used\n");
  }
}

static int cuda_device_count(void) { return devices; }

static int cuda_use(int device) {
  CUdevice d;
  CUcontext c;
  static __thread int now = -1; /* retained once for each thread and device, for the life of the process */
  device %= devices;
  if (now == device) return 0;
  if (cu.DeviceGet(&d, device) != CUDA_SUCCESS || cu.DevicePrimaryCtxRetain(&c, d) != CUDA_SUCCESS ||
      cu.CtxSetCurrent(c) != CUDA_SUCCESS)
    return -1;
  now = device;
  return 0;
}

static void cuda_describe(int device, char *text, size_t capacity) {
  CUdevice d;
  char bus[32] = "?", name[96] = "a GPU";
  if (cu.DeviceGet(&d, device % devices) == CUDA_SUCCESS) {
    cu.DeviceGetPCIBusId(bus, sizeof bus, d);
    cu.DeviceGetName(name, sizeof name, d);
  }
  snprintf(text, capacity, "[%s] %s", bus, name);
}

static size_t cuda_memory(int device, bool used) {
  size_t left = 0, all = 0;
  if (cuda_use(device) || cu.MemGetInfo(&left, &all) != CUDA_SUCCESS) return 0;
  return used ? all - left : left;
}
static size_t cuda_capacity(int device) { return cuda_memory(device, false); }
static size_t cuda_used(int device) { return cuda_memory(device, true); }

static void *cuda_alloc(size_t bytes) {
  CUdeviceptr p = 0;
  return cu.MemAlloc(&p, bytes ? bytes : 1) == CUDA_SUCCESS ? (void *)(uintptr_t)p : NULL;
}
static void cuda_free(void *p) { cu.MemFree((CUdeviceptr)(uintptr_t)p); }

static int cuda_copy(void *to, const void *from, size_t bytes, cudaStream_t s) {
  return cu.MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, (CUstream)(void *)s) ? -1 : 0;
}
static int cuda_sync(int rc) { return rc || cu.StreamSynchronize(CU_STREAM_PER_THREAD) != CUDA_SUCCESS ? -1 : 0; }
static int cuda_move(void *to, const void *from, size_t bytes) {
  return cuda_sync(bytes ? cuda_copy(to, from, bytes, (cudaStream_t)(void *)CU_STREAM_PER_THREAD) : 0);
}
static int cuda_zero(void *p, size_t bytes) {
  return cuda_sync(bytes ? cu.MemsetD8Async((CUdeviceptr)(uintptr_t)p, 0, bytes, CU_STREAM_PER_THREAD) : 0);
}

static int cuda_stream_create(cudaStream_t *s) {
  CUstream stream;
  if (cu.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) return -1;
  *s = (cudaStream_t)(void *)stream;
  return 0;
}
static int cuda_stream_done(cudaStream_t s) {
  CUresult code = cu.StreamQuery((CUstream)(void *)s);
  return code == CUDA_SUCCESS ? 1 : code == CUDA_ERROR_NOT_READY ? 0 : -1;
}
static void cuda_stream_destroy(cudaStream_t s) {
  if (s) cu.StreamDestroy((CUstream)(void *)s);
}

static int cuda_capture_begin(cudaStream_t s) {
  return cu.StreamBeginCapture((CUstream)(void *)s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ? -1 : 0;
}
static void *cuda_capture_end(cudaStream_t s) {
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  if (cu.StreamEndCapture((CUstream)(void *)s, &graph) != CUDA_SUCCESS || !graph || !cu.GraphInstantiateWithFlags)
    return NULL;
  if (cu.GraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS) exec = NULL;
  cu.GraphDestroy(graph);
  return exec;
}
static int cuda_graph_launch(void *graph, cudaStream_t s) {
  return cu.GraphLaunch((CUgraphExec)graph, (CUstream)(void *)s) ? -1 : 0;
}
static void cuda_graph_free(void *graph) { cu.GraphExecDestroy((CUgraphExec)graph); }

static const perf_mem perf_mem_cuda = {
    .name = "CUDA",
    .usage_title = "GPU memory usage",
    .device_count = cuda_device_count,
    .use = cuda_use,
    .describe = cuda_describe,
    .capacity = cuda_capacity,
    .used = cuda_used,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .zero = cuda_zero,
    .put = cuda_move,
    .get = cuda_move,
    .copy = cuda_copy,
    .stream_create = cuda_stream_create,
    .stream_done = cuda_stream_done,
    .stream_destroy = cuda_stream_destroy,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
};

const perf_mem *perf_mem_select(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, mem_cuda_load);
  return devices > 0 ? &perf_mem_cuda : &perf_mem_host;
}
