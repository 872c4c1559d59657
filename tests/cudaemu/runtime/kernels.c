/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of CUDA's runtime: what nvcc's code registers, and their launches.  A kernel runs if its fatbin has PTX for
 * the emulated GPUs (tests/ptxemu); else its launch is an error that names it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cudart.h"

CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name);
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);

enum { DEVICES = 16 };
typedef struct program {
  const void *image;
  CUmodule module[DEVICES]; /* made when it is first needed there */
} program;
typedef struct symbol { /* a kernel or a variable */
  const void *host;
  const char *name;
  program *of;
  CUfunction *function; /* a kernel's, on each device */
} symbol;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct symbols {
  symbol *all;
  size_t n, capacity;
} kernels, variables;

/* ---- registration, by constructors of libraries and programs ---- */

void **__cudaRegisterFatBinary(void *image);
void **__cudaRegisterFatBinary(void *image) {
  program *p = calloc(1, sizeof *p);
  if (!p) abort();
  p->image = image;
  return (void **)p;
}
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle);
void __cudaUnregisterFatBinary(void **handle) { (void)handle; } /* at the process's end, when others may still run */
static void add(struct symbols *s, const void *host, const char *name, void **handle) {
  pthread_mutex_lock(&lock);
  if (s->n == s->capacity) {
    s->capacity = s->capacity ? 2 * s->capacity : 4096;
    s->all = realloc(s->all, s->capacity * sizeof *s->all);
    if (!s->all) abort();
  }
  s->all[s->n++] = (symbol){host, name, (program *)(void *)handle, NULL};
  pthread_mutex_unlock(&lock);
}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp) {
  (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
  add(&kernels, host, name, handle);
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes, int constant,
                       int global);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes, int constant,
                       int global) {
  (void)device, (void)ext, (void)bytes, (void)constant, (void)global;
  add(&variables, host, name, handle);
}

/* ---- modules ---- */

/* With the lock held. */
static symbol *find(const struct symbols *s, const void *host) {
  for (size_t i = 0; i < s->n; i++)
    if (s->all[i].host == host) return &s->all[i];
  return NULL;
}
static CUresult load(program *p, int device) {
  return p->module[device] ? CUDA_SUCCESS : cuModuleLoadData(&p->module[device], p->image);
}
static CUresult load_function(symbol *k, int device) {
  if (!k->function && !(k->function = calloc(DEVICES, sizeof(CUfunction)))) abort();
  if (k->function[device]) return CUDA_SUCCESS;
  const CUresult rc = load(k->of, device);
  return rc == CUDA_SUCCESS ? cuModuleGetFunction(&k->function[device], k->of->module[device], k->name) : rc;
}
static CUresult function_of(const void *host, CUfunction *f) {
  int device = 0;
  CUresult rc = cudart_ready();
  if (rc == CUDA_SUCCESS) rc = cuCtxGetDevice(&device);
  if (rc != CUDA_SUCCESS) return rc;
  pthread_mutex_lock(&lock);
  symbol *k = find(&kernels, host);
  rc = k ? load_function(k, device) : CUDA_ERROR_INVALID_HANDLE;
  if (rc == CUDA_SUCCESS) *f = k->function[device];
  pthread_mutex_unlock(&lock);
  if (rc == CUDA_SUCCESS) return rc;
  fprintf(stderr, "cudaemu: kernel %s cannot run here: its fatbin has no PTX for these GPUs\n",
          k ? k->name : "of unknown name");
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
static CUresult variable_of(const void *host, CUdeviceptr *at, size_t *bytes) {
  int device = 0;
  CUresult rc = cudart_ready();
  if (rc == CUDA_SUCCESS) rc = cuCtxGetDevice(&device);
  if (rc != CUDA_SUCCESS) return rc;
  pthread_mutex_lock(&lock);
  const symbol *v = find(&variables, host);
  rc = v ? load(v->of, device) : CUDA_ERROR_NOT_FOUND;
  if (rc == CUDA_SUCCESS) rc = cuModuleGetGlobal_v2(at, bytes, v->of->module[device], v->name);
  pthread_mutex_unlock(&lock);
  return rc;
}

/* ---- launches ---- */

static _Thread_local struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} configured;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  configured.grid = grid;
  configured.block = block;
  configured.shared = shared;
  configured.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configured.grid;
  *block = configured.block;
  *shared = configured.shared;
  memcpy(stream, &configured.stream, sizeof configured.stream);
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *handle, const void *host);
cudaError_t __cudaGetKernel(cudaKernel_t *handle, const void *host) {
  *handle = (cudaKernel_t)(uintptr_t)host;
  return cudaSuccess;
}
_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute), "the driver's attributes");
static cudaError_t launch(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s,
                          cudaLaunchAttribute *attrs, unsigned nattrs) {
  CUfunction f;
  CUlaunchConfig c = {.gridDimX = grid.x,
                      .gridDimY = grid.y,
                      .gridDimZ = grid.z,
                      .blockDimX = block.x,
                      .blockDimY = block.y,
                      .blockDimZ = block.z,
                      .sharedMemBytes = (unsigned)shared,
                      .hStream = s,
                      .attrs = (CUlaunchAttribute *)(void *)attrs,
                      .numAttrs = nattrs};
  const CUresult rc = function_of(host, &f);
  return cudart_note(rc == CUDA_SUCCESS ? cuLaunchKernelEx(&c, f, args, NULL) : rc);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s);
cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
  return launch(handle, grid, block, args, shared, s, NULL, 0);
}
cudaError_t cudaLaunchKernel(const void *fn, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
  return launch(fn, grid, block, args, shared, s, NULL, 0);
}
cudaError_t cudaLaunchCooperativeKernel(const void *fn, dim3 grid, dim3 block, void **args, size_t shared,
                                        cudaStream_t s) {
  cudaLaunchAttribute a = {.id = cudaLaunchAttributeCooperative, .val.cooperative = 1};
  return launch(fn, grid, block, args, shared, s, &a, 1);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *fn, void **args) {
  return launch(fn, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream, config->attrs,
                config->numAttrs);
}

/* ---- questions ---- */

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute which, int value) {
  CUfunction f;
  const CUresult rc = function_of(fn, &f);
  return cudart_note(rc == CUDA_SUCCESS ? cuFuncSetAttribute(f, (int)which, value) : rc);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *fn) {
  CUfunction f;
  const CUresult rc = function_of(fn, &f);
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 64;
  a->ptxVersion = a->binaryVersion = 90;
  return cudart_note(rc);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *fn, int threads, size_t shared) {
  CUfunction f;
  const CUresult rc = function_of(fn, &f);
  return cudart_note(rc == CUDA_SUCCESS ? cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared) : rc);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *fn, int threads,
                                                                   size_t shared, unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, fn, threads, shared);
}

/* ---- variables ---- */

cudaError_t cudaGetSymbolAddress(void **ptr, const void *host) {
  CUdeviceptr at = 0;
  size_t bytes;
  const CUresult rc = variable_of(host, &at, &bytes);
  *ptr = (void *)(uintptr_t)at;
  return cudart_note(rc);
}
cudaError_t cudaMemcpyToSymbol(const void *host, const void *src, size_t count, size_t offset,
                               enum cudaMemcpyKind kind) {
  CUdeviceptr at;
  size_t bytes;
  (void)kind;
  CUresult rc = variable_of(host, &at, &bytes);
  if (rc == CUDA_SUCCESS && (offset > bytes || count > bytes - offset)) rc = CUDA_ERROR_INVALID_VALUE;
  return cudart_note(rc == CUDA_SUCCESS ? cuMemcpy(at + offset, (CUdeviceptr)(uintptr_t)src, count) : rc);
}
cudaError_t cudaMemcpyFromSymbol(void *dst, const void *host, size_t count, size_t offset, enum cudaMemcpyKind kind) {
  CUdeviceptr at;
  size_t bytes;
  (void)kind;
  CUresult rc = variable_of(host, &at, &bytes);
  if (rc == CUDA_SUCCESS && (offset > bytes || count > bytes - offset)) rc = CUDA_ERROR_INVALID_VALUE;
  return cudart_note(rc == CUDA_SUCCESS ? cuMemcpy((CUdeviceptr)(uintptr_t)dst, at + offset, count) : rc);
}
