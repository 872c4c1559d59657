/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of CUDA 13's runtime that PyTorch's libraries import, over the emulated driver; with cudart.c and kernels.c
 * it makes a libcudart.so.13.  It is compiled with CUDA's headers (the wheel nvidia-cuda-runtime has them), whose
 * layouts it so has.  What needs memory pools, managed memory or events of other processes is refused as not
 * supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cudart.h"

#define AT(p) ((CUdeviceptr)(uintptr_t)(p))
/* The driver's calls that Hocket does not use and the emulated driver has. */
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult cuMemsetD8_v2(CUdeviceptr ptr, unsigned char value, size_t count);
CUresult cuStreamIsCapturing(CUstream stream, int *status);

/* ---- devices ---- */

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { return cudart_note(cuDriverGetVersion(version)); }
const char *cudaGetErrorName(cudaError_t code) {
  const char *name = NULL;
  return cuGetErrorName((CUresult)code, &name) == CUDA_SUCCESS && name ? name : "cudaErrorUnknown";
}
cudaError_t cudaGetDevice(int *device) { CUDART_CALL(cuCtxGetDevice(device)); }
cudaError_t cudaDeviceSynchronize(void) { CUDART_CALL(cuCtxSynchronize()); }
/* Programs call it when they end: the driver gives all back with the process. */
cudaError_t cudaDeviceReset(void) { CUDART_CALL(cuCtxSynchronize()); }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
  CUDART_CALL(cuDeviceGetAttribute(value, (int)which, device));
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  CUDART_CALL(cuDeviceGetPCIBusId(text, bytes, device));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  CUDART_CALL(cuCtxGetStreamPriorityRange(least, greatest));
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  CUDART_CALL(cuDeviceCanAccessPeer(can, device, peer));
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CUcontext context;
  CUDART_CALL(cuDevicePrimaryCtxRetain(&context, peer) ? CUDA_ERROR_INVALID_DEVICE
                                                       : cuCtxEnablePeerAccess(context, flags));
}
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void);
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

static int attribute(int which, int device) {
  int value = 0;
  return cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  CUuuid uuid;
  memset(p, 0, sizeof *p);
  CUresult rc = cuInit(0);
  if (rc == CUDA_SUCCESS) rc = cuDeviceGetName(p->name, sizeof p->name, device);
  if (rc == CUDA_SUCCESS) rc = cuDeviceTotalMem_v2(&p->totalGlobalMem, device);
  if (rc == CUDA_SUCCESS) rc = cuDeviceGetUuid(&uuid, device);
  if (rc != CUDA_SUCCESS) return cudart_note(rc);
  memcpy(p->uuid.bytes, uuid.bytes, sizeof p->uuid.bytes);
  p->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  p->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  p->multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  p->warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  p->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
  p->maxThreadsPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
  p->sharedMemPerBlock = (size_t)attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device);
  p->sharedMemPerBlockOptin = (size_t)attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin;
  p->memoryBusWidth = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
  p->asyncEngineCount = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device);
  p->pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
  p->pciDeviceID = attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
  p->pciDomainID = attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
  p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = p->hostRegisterSupported = 1;
  p->cooperativeLaunch = attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, device);
  p->clusterLaunch = attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device);
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  for (int i = 0; i < 3; i++) {
    p->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    p->maxGridSize[i] = i ? 65535 : 0x7fffffff;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
  int missing = 0;
  (void)cuGetProcAddress_v2(symbol, fn, (int)version, flags, &missing);
  if (status) *status = missing ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) { CUDART_CALL(cuMemGetInfo_v2(free_bytes, total)); }
cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags) { CUDART_CALL(cuMemHostAlloc(ptr, bytes, flags)); }
cudaError_t cudaMallocHost(void **ptr, size_t bytes) { CUDART_CALL(cuMemHostAlloc(ptr, bytes, 0)); }
cudaError_t cudaFreeHost(void *ptr) { CUDART_CALL(cuMemFreeHost(ptr)); }
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags) {
  CUDART_CALL(cuMemHostRegister_v2(ptr, bytes, flags));
}
cudaError_t cudaHostUnregister(void *ptr) { CUDART_CALL(cuMemHostUnregister(ptr)); }
cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
  (void)kind;
  CUDART_CALL(cuMemcpy(AT(dst), AT(src), bytes));
}
cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t bytes, cudaStream_t s) {
  (void)to, (void)from;
  CUDART_CALL(cuMemcpyAsync(AT(dst), AT(src), bytes, s));
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s) {
  (void)kind;
  CUresult rc = cudart_ready();
  for (size_t i = 0; i < height && rc == CUDA_SUCCESS; i++)
    rc = cuMemcpyAsync(AT(dst) + i * dpitch, AT(src) + i * spitch, width, s);
  return cudart_note(rc);
}
cudaError_t cudaMemset(void *ptr, int value, size_t bytes) {
  CUDART_CALL(cuMemsetD8_v2(AT(ptr), (unsigned char)value, bytes));
}
cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t s) {
  CUDART_CALL(cuMemsetD8Async(AT(ptr), (unsigned char)value, bytes, s));
}
/* Memory that the driver does not know is no error. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *ptr) {
  int which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  unsigned type = 0;
  int device = -1;
  void *values[] = {&type, &device};
  memset(a, 0, sizeof *a);
  CUresult rc = cudart_ready();
  if (rc == CUDA_SUCCESS) rc = cuPointerGetAttributes(2, which, values, AT(ptr));
  a->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
            : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                         : cudaMemoryTypeUnregistered;
  a->device = type ? device : -1;
  a->devicePointer = type ? (void *)(uintptr_t)ptr : NULL;
  a->hostPointer = type == CU_MEMORYTYPE_DEVICE ? NULL : (void *)(uintptr_t)ptr;
  return cudart_note(rc);
}
_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle), "the driver's handle");
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr) {
  CUDART_CALL(cuIpcGetMemHandle((CUipcMemHandle *)handle, AT(ptr)));
}
cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle h;
  CUdeviceptr at = 0;
  memcpy(&h, &handle, sizeof h);
  CUresult rc = cudart_ready();
  if (rc == CUDA_SUCCESS) rc = cuIpcOpenMemHandle_v2(&at, h, flags);
  *ptr = (void *)(uintptr_t)at;
  return cudart_note(rc);
}
cudaError_t cudaIpcCloseMemHandle(void *ptr) { CUDART_CALL(cuIpcCloseMemHandle(AT(ptr))); }

/* ---- streams ---- */

cudaError_t cudaStreamCreate(cudaStream_t *s) { CUDART_CALL(cuStreamCreateWithPriority(s, 0, 0)); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  CUDART_CALL(cuStreamCreateWithPriority(s, flags, priority));
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { CUDART_CALL(cuStreamGetPriority(s, priority)); }
cudaError_t cudaStreamQuery(cudaStream_t s) { CUDART_CALL(cuStreamQuery(s)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags) {
  CUDART_CALL(cuStreamWaitEvent(s, event, flags));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *data) {
  CUDART_CALL(cuLaunchHostFunc(s, fn, data));
}
typedef struct callback {
  cudaStreamCallback_t fn;
  cudaStream_t stream;
  void *data;
} callback;
static void call_back(void *data) {
  callback c = *(callback *)data;
  free(data);
  c.fn(c.stream, cudaSuccess, c.data);
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t fn, void *data, unsigned flags) {
  callback *c = malloc(sizeof *c);
  (void)flags;
  if (!c) abort();
  *c = (callback){fn, s, data};
  return cudaLaunchHostFunc(s, call_back, c);
}

/* ---- events ---- */

cudaError_t cudaEventCreate(cudaEvent_t *event) { CUDART_CALL(cuEventCreate(event, 0)); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { CUDART_CALL(cuEventCreate(event, flags)); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { CUDART_CALL(cuEventDestroy_v2(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) { CUDART_CALL(cuEventRecord(event, s)); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t s, unsigned flags) {
  CUDART_CALL(flags ? CUDA_ERROR_NOT_SUPPORTED : cuEventRecord(event, s));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { CUDART_CALL(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { CUDART_CALL(cuEventSynchronize(event)); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  CUDART_CALL(cuEventElapsedTime(ms, begin, end));
}

/* ---- captures and graphs ---- */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  CUDART_CALL(cuThreadExchangeStreamCaptureMode((int *)mode));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  CUDART_CALL(cuStreamIsCapturing(s, (int *)status));
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **deps, const cudaGraphEdgeData **edges,
                                     size_t *n) {
  if (edges) *edges = NULL; /* all edges are plain ones */
  CUDART_CALL(cuStreamGetCaptureInfo_v2(s, (int *)status, (uint64_t *)id, graph, deps, n));
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *deps, const cudaGraphEdgeData *edges,
                                                size_t n, unsigned flags) {
  CUDART_CALL(edges ? CUDA_ERROR_NOT_SUPPORTED : cuStreamUpdateCaptureDependencies(s, deps, n, flags));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
  CUDART_CALL(cuGraphGetNodes(graph, nodes, n));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  CUDART_CALL(cuGraphInstantiateWithFlags(exec, graph, flags));
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *ptr, cudaHostFn_t destroy, unsigned refs,
                                 unsigned flags) {
  CUDART_CALL(cuUserObjectCreate(object, ptr, destroy, refs, flags));
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  CUDART_CALL(cuUserObjectRelease(object, count));
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
  CUDART_CALL(cuGraphRetainUserObject(graph, object, count, flags));
}
