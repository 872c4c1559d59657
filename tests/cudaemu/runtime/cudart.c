/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of CUDA's runtime that the examples use, each by the driver's; a device's primary context is the runtime's,
 * too.  libcudart.c has the rest of what frameworks need. */
#include "cudart.h"

static _Thread_local cudaError_t last;

cudaError_t cudart_note(CUresult code) {
  if (code != CUDA_SUCCESS) last = (cudaError_t)code;
  return (cudaError_t)code; /* the runtime's numbers are the driver's */
}
cudaError_t cudaPeekAtLastError(void) { return last; }
cudaError_t cudaGetLastError(void) {
  cudaError_t code = last;
  last = cudaSuccess;
  return code;
}

/* The reference to the context is kept to the process's end, as the runtime keeps its own. */
static CUresult use(int ordinal) {
  CUdevice device;
  CUcontext context;
  CUresult rc = cuInit(0);
  if (rc == CUDA_SUCCESS) rc = cuDeviceGet(&device, ordinal);
  if (rc == CUDA_SUCCESS) rc = cuDevicePrimaryCtxRetain(&context, device);
  return rc == CUDA_SUCCESS ? cuCtxSetCurrent(context) : rc;
}
CUresult cudart_ready(void) {
  CUcontext now = NULL;
  CUresult rc = cuInit(0);
  if (rc == CUDA_SUCCESS) rc = cuCtxGetCurrent(&now);
  return rc != CUDA_SUCCESS || now ? rc : use(0);
}
cudaError_t cudaSetDevice(int ordinal) { return cudart_note(use(ordinal)); }

cudaError_t cudaGetDeviceCount(int *count) {
  CUresult rc = cuInit(0);
  *count = 0;
  return cudart_note(rc == CUDA_SUCCESS ? cuDeviceGetCount(count) : rc);
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
  CUdeviceptr p = 0;
  CUresult rc = cudart_ready();
  if (rc == CUDA_SUCCESS && bytes) rc = cuMemAlloc_v2(&p, bytes);
  *ptr = (void *)(uintptr_t)p;
  return cudart_note(rc);
}

cudaError_t cudaFree(void *ptr) { CUDART_CALL(ptr ? cuMemFree_v2((CUdeviceptr)(uintptr_t)ptr) : CUDA_SUCCESS); }

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)kind; /* with unified addressing the pointers say it */
  CUDART_CALL(cuMemcpyAsync((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, bytes, stream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  CUDART_CALL(cuStreamCreateWithPriority(stream, flags, 0));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { CUDART_CALL(cuStreamDestroy_v2(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { CUDART_CALL(cuStreamSynchronize(stream)); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  CUDART_CALL(cuStreamBeginCapture_v2(stream, (int)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  CUDART_CALL(cuStreamEndCapture(stream, graph));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  CUDART_CALL(cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { CUDART_CALL(cuGraphLaunch(exec, stream)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { CUDART_CALL(cuGraphExecDestroy(exec)); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { CUDART_CALL(cuGraphDestroy(graph)); }

const char *cudaGetErrorString(cudaError_t code) {
  const char *text = NULL;
  return cuGetErrorString((CUresult)code, &text) == CUDA_SUCCESS && text ? text : "an unknown error";
}
