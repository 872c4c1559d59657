/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's calls of cuda_runtime.h, each by the driver's; a device's primary context is the runtime's, too. */
#include "../../../src/base/cuda_abi.h"
#include "cuda_runtime.h"

#define DECLARE(member, symbol, params) CUresult symbol params;
HK_CUDA_CALLS(DECLARE, DECLARE)

/* A thread's first call makes device 0 its own, as the runtime does. */
static CUresult ready(void) {
  CUcontext now = NULL;
  CUresult rc = cuInit(0);
  if (rc == CUDA_SUCCESS) rc = cuCtxGetCurrent(&now);
  return rc != CUDA_SUCCESS || now ? rc : cudaSetDevice(0);
}

cudaError_t cudaGetDeviceCount(int *count) {
  CUresult rc = cuInit(0);
  return rc == CUDA_SUCCESS ? cuDeviceGetCount(count) : rc;
}

/* The reference to the context is kept to the process's end, as the runtime keeps its own. */
cudaError_t cudaSetDevice(int ordinal) {
  CUdevice device;
  CUcontext context;
  CUresult rc = cuInit(0);
  if (rc == CUDA_SUCCESS) rc = cuDeviceGet(&device, ordinal);
  if (rc == CUDA_SUCCESS) rc = cuDevicePrimaryCtxRetain(&context, device);
  return rc == CUDA_SUCCESS ? cuCtxSetCurrent(context) : rc;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
  CUdeviceptr p = 0;
  CUresult rc = ready();
  if (rc == CUDA_SUCCESS) rc = cuMemAlloc_v2(&p, bytes);
  *ptr = (void *)(uintptr_t)p;
  return rc;
}

cudaError_t cudaFree(void *ptr) {
  CUresult rc = ready();
  return rc == CUDA_SUCCESS && ptr ? cuMemFree_v2((CUdeviceptr)(uintptr_t)ptr) : rc;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CUresult rc = ready();
  (void)kind; /* with unified addressing the pointers say it */
  return rc == CUDA_SUCCESS ? cuMemcpyAsync((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, bytes, stream)
                            : rc;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  CUresult rc = ready();
  return rc == CUDA_SUCCESS ? cuStreamCreateWithPriority(stream, flags, 0) : rc;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cuStreamDestroy_v2(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cuStreamSynchronize(stream); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return cuStreamBeginCapture_v2(stream, (int)mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) { return cuStreamEndCapture(stream, graph); }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return cuGraphInstantiateWithFlags(exec, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { return cuGraphLaunch(exec, stream); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cuGraphExecDestroy(exec); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cuGraphDestroy(graph); }

const char *cudaGetErrorString(cudaError_t code) {
  const char *text = NULL;
  return cuGetErrorString(code, &text) == CUDA_SUCCESS && text ? text : "an unknown error";
}
