/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The part of the CUDA driver's binary interface that Hocket uses: types, numbers and functions, so that no CUDA
 * header is needed. The names are the driver's. Do not include it together with NVIDIA's own header.
 *
 * HK_CUDA_CALLS lists the functions once. The table of pointers, the names to look up and the driver of the tests
 * (tests/cudaemu) are made from it, so they cannot differ.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_UNKNOWN = 999
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUuserObject_st *CUuserObject;
typedef void (*CUhostFn)(void *);
typedef struct CUuuid {
  unsigned char bytes[16];
} CUuuid;

/* Streams that are numbers and not objects. With the functions listed below, 0 means the legacy one too. */
#define CU_STREAM_LEGACY ((CUstream)(uintptr_t)1)
#define CU_STREAM_PER_THREAD ((CUstream)(uintptr_t)2)
enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0, CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_EQ = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };

enum { /* CUdevice_attribute */
       CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
       CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
       CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
       CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
       CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
       CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
       CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
       CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
       CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
       CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
       CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
       CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
       CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
       CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
       CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
       CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
       CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
       CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
       CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
       CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
       CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
       CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH = 120,
       CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
       CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132,
       CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
       CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141
};

enum { /* CUpointer_attribute */
       CU_POINTER_ATTRIBUTE_CONTEXT = 1,
       CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
       CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
       CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
       CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
       CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
       CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
       CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
       CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
       CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
       CU_POINTER_ATTRIBUTE_MAPPED = 13,
       CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14
};
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };

enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2, CU_MEMHOSTALLOC_WRITECOMBINED = 4 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2, CU_MEMHOSTREGISTER_READ_ONLY = 8 };

typedef struct CUipcMemHandle {
  char reserved[64];
} CUipcMemHandle;
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };

/* ---- virtual memory ---- */
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { CU_MEM_HANDLE_TYPE_NONE = 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_FABRIC = 8 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST = 2, CU_MEM_LOCATION_TYPE_HOST_NUMA = 3 };
enum { CU_MEM_ACCESS_FLAGS_PROT_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum { CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
enum { CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE = 1 };
/* A bit of ..._FLUSH_WRITES_OPTIONS; the scopes of a flush, which are also the values of ..._WRITES_ORDERING. */
enum { CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0 };
enum { CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES = 200 };
typedef struct CUmemLocation {
  int type, id;
} CUmemLocation;
typedef struct CUmemAllocationProp {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
} CUmemAccessDesc;
typedef struct CUmulticastObjectProp {
  unsigned numDevices;
  size_t size;
  unsigned long long handleTypes, flags;
} CUmulticastObjectProp;
enum { CU_MULTICAST_GRANULARITY_MINIMUM = 0, CU_MULTICAST_GRANULARITY_RECOMMENDED = 1 };

/* ---- launches ---- */
enum { /* CUlaunchAttributeID */
       CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
       CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
       CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
       CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
       CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10
};
enum { CU_EVENT_RECORD_EXTERNAL = 1, CU_EVENT_WAIT_EXTERNAL = 1 };
/* `extra` of a launch: the parameters as bytes. */
#define CU_LAUNCH_PARAM_END ((void *)(uintptr_t)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)(uintptr_t)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)(uintptr_t)2)
enum { CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT = 0, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE = 1 };
typedef union CUlaunchAttributeValue {
  char pad[64];
  int cooperative;
  struct {
    unsigned x, y, z;
  } clusterDim;
  int clusterSchedulingPolicyPreference;
  int priority;
  int memSyncDomain;
} CUlaunchAttributeValue;
typedef struct CUlaunchAttribute {
  int id;
  char pad[4];
  CUlaunchAttributeValue value;
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute *attrs;
  unsigned numAttrs;
} CUlaunchConfig;
enum { /* CUfunction_attribute */
       CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
       CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
       CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
       CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
       CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
};

/* ---- capture and graphs ---- */
enum {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
};
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1 };
enum { CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1, CU_GRAPH_USER_OBJECT_MOVE = 1 };

#ifdef __cplusplus
#define HK_ABI_ASSERT(x, text) static_assert(x, text)
#else
#define HK_ABI_ASSERT(x, text) _Static_assert(x, text)
#endif
HK_ABI_ASSERT(sizeof(CUdeviceptr) == 8 && sizeof(void *) == 8, "addresses are 64 bits on both sides");
HK_ABI_ASSERT(sizeof(CUipcMemHandle) == 64 && sizeof(CUuuid) == 16, "the driver's size");
HK_ABI_ASSERT(sizeof(CUmemLocation) == 8 && sizeof(CUmemAccessDesc) == 12, "the driver's size");
HK_ABI_ASSERT(sizeof(CUmemAllocationProp) == 32, "the driver's size");
HK_ABI_ASSERT(sizeof(CUmulticastObjectProp) == 32, "the driver's size");
HK_ABI_ASSERT(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8, "the driver's size");
HK_ABI_ASSERT(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, hStream) == 32, "the driver's size");

/* NEED(member, symbol, parameters): every driver since CUDA 11.4 has it.  MAY: missing in some; the pointer is then
 * NULL. All give CUresult. */
#define HK_CUDA_CALLS(NEED, MAY)                                                                                       \
  NEED(Init, cuInit, (unsigned flags))                                                                                 \
  NEED(DriverGetVersion, cuDriverGetVersion, (int *version))                                                           \
  NEED(GetErrorName, cuGetErrorName, (CUresult code, const char **name))                                               \
  NEED(GetErrorString, cuGetErrorString, (CUresult code, const char **text))                                           \
  NEED(DeviceGetCount, cuDeviceGetCount, (int *count))                                                                 \
  NEED(DeviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                                                       \
  NEED(DeviceGetName, cuDeviceGetName, (char *name, int bytes, CUdevice device))                                       \
  NEED(DeviceGetUuid, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                                               \
  MAY(DeviceGetUuidOfSlice, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                      \
  NEED(DeviceGetAttribute, cuDeviceGetAttribute, (int *value, int which, CUdevice device))                             \
  NEED(DeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *text, int bytes, CUdevice device))                               \
  NEED(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                         \
  NEED(DeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                         \
  NEED(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * ctx, CUdevice device))                           \
  NEED(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                       \
  NEED(CtxGetCurrent, cuCtxGetCurrent, (CUcontext * ctx))                                                              \
  NEED(CtxSetCurrent, cuCtxSetCurrent, (CUcontext ctx))                                                                \
  NEED(CtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext ctx))                                                           \
  NEED(CtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext * ctx))                                                           \
  NEED(CtxGetDevice, cuCtxGetDevice, (CUdevice * device))                                                              \
  NEED(CtxSynchronize, cuCtxSynchronize, (void))                                                                       \
  NEED(CtxEnablePeerAccess, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                                   \
  NEED(ModuleLoadData, cuModuleLoadData, (CUmodule * module, const void *image))                                       \
  NEED(ModuleUnload, cuModuleUnload, (CUmodule module))                                                                \
  NEED(ModuleGetFunction, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))             \
  NEED(FuncGetAttribute, cuFuncGetAttribute, (int *value, int which, CUfunction function))                             \
  NEED(FuncSetAttribute, cuFuncSetAttribute, (CUfunction function, int which, int value))                              \
  NEED(OccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,                         \
       (int *blocks, CUfunction function, int threads, size_t shared_bytes))                                           \
  NEED(LaunchKernel, cuLaunchKernel,                                                                                   \
       (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,             \
        unsigned shared_bytes, CUstream stream, void **params, void **extra))                                          \
  MAY(LaunchKernelEx, cuLaunchKernelEx,                                                                                \
      (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))                                \
  NEED(LaunchHostFunc, cuLaunchHostFunc, (CUstream stream, CUhostFn fn, void *arg))                                    \
  NEED(MemGetInfo, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                       \
  NEED(MemAlloc, cuMemAlloc_v2, (CUdeviceptr * ptr, size_t bytes))                                                     \
  NEED(MemFree, cuMemFree_v2, (CUdeviceptr ptr))                                                                       \
  NEED(MemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * bytes, CUdeviceptr ptr))             \
  NEED(MemHostAlloc, cuMemHostAlloc, (void **ptr, size_t bytes, unsigned flags))                                       \
  NEED(MemFreeHost, cuMemFreeHost, (void *ptr))                                                                        \
  NEED(MemHostRegister, cuMemHostRegister_v2, (void *ptr, size_t bytes, unsigned flags))                               \
  NEED(MemHostUnregister, cuMemHostUnregister, (void *ptr))                                                            \
  NEED(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, (CUdeviceptr * ptr, void *host, unsigned flags))         \
  NEED(MemsetD8Async, cuMemsetD8Async, (CUdeviceptr ptr, unsigned char value, size_t bytes, CUstream stream))          \
  NEED(MemcpyAsync, cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))                  \
  NEED(IpcGetMemHandle, cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr ptr))                                 \
  NEED(IpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr * ptr, CUipcMemHandle handle, unsigned flags))            \
  NEED(IpcCloseMemHandle, cuIpcCloseMemHandle, (CUdeviceptr ptr))                                                      \
  NEED(PointerGetAttribute, cuPointerGetAttribute, (void *value, int which, CUdeviceptr ptr))                          \
  NEED(PointerGetAttributes, cuPointerGetAttributes, (unsigned n, int *which, void **values, CUdeviceptr ptr))         \
  NEED(StreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))        \
  NEED(StreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                                           \
  NEED(StreamQuery, cuStreamQuery, (CUstream stream))                                                                  \
  NEED(StreamSynchronize, cuStreamSynchronize, (CUstream stream))                                                      \
  NEED(StreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                           \
  MAY(StreamWriteValue32, cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags))  \
  MAY(StreamWaitValue32, cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags))    \
  NEED(StreamGetFlags, cuStreamGetFlags, (CUstream stream, unsigned *flags))                                           \
  NEED(StreamGetPriority, cuStreamGetPriority, (CUstream stream, int *priority))                                       \
  NEED(StreamGetCtx, cuStreamGetCtx, (CUstream stream, CUcontext * ctx))                                               \
  MAY(StreamGetId, cuStreamGetId, (CUstream stream, unsigned long long *id))                                           \
  NEED(StreamGetCaptureInfo, cuStreamGetCaptureInfo_v2,                                                                \
       (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps, size_t *ndeps))          \
  NEED(StreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies,                                             \
       (CUstream stream, CUgraphNode * deps, size_t ndeps, unsigned flags))                                            \
  NEED(StreamBeginCapture, cuStreamBeginCapture_v2, (CUstream stream, int mode))                                       \
  NEED(StreamEndCapture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                       \
  NEED(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *mode))                                \
  MAY(GraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                                                          \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                                                   \
  NEED(GraphLaunch, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                \
  NEED(GraphExecDestroy, cuGraphExecDestroy, (CUgraphExec exec))                                                       \
  NEED(GraphDestroy, cuGraphDestroy, (CUgraph graph))                                                                  \
  MAY(GraphAddEventRecordNode, cuGraphAddEventRecordNode,                                                              \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUevent event))                       \
  MAY(GraphAddDependencies, cuGraphAddDependencies,                                                                    \
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count))                                   \
  MAY(UserObjectCreate, cuUserObjectCreate,                                                                            \
      (CUuserObject * object, void *ptr, CUhostFn destroy, unsigned refs, unsigned flags))                             \
  MAY(UserObjectRelease, cuUserObjectRelease, (CUuserObject object, unsigned count))                                   \
  MAY(GraphRetainUserObject, cuGraphRetainUserObject,                                                                  \
      (CUgraph graph, CUuserObject object, unsigned count, unsigned flags))                                            \
  NEED(EventCreate, cuEventCreate, (CUevent * event, unsigned flags))                                                  \
  NEED(EventDestroy, cuEventDestroy_v2, (CUevent event))                                                               \
  NEED(EventRecord, cuEventRecord, (CUevent event, CUstream stream))                                                   \
  MAY(EventRecordWithFlags, cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags))                  \
  NEED(EventQuery, cuEventQuery, (CUevent event))                                                                      \
  NEED(EventSynchronize, cuEventSynchronize, (CUevent event))                                                          \
  NEED(EventElapsedTime, cuEventElapsedTime, (float *ms, CUevent begin, CUevent end))                                  \
  MAY(MemAddressReserve, cuMemAddressReserve,                                                                          \
      (CUdeviceptr * ptr, size_t bytes, size_t align, CUdeviceptr at, unsigned long long flags))                       \
  MAY(MemAddressFree, cuMemAddressFree, (CUdeviceptr ptr, size_t bytes))                                               \
  MAY(MemCreate, cuMemCreate,                                                                                          \
      (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,                           \
       unsigned long long flags))                                                                                      \
  MAY(MemRelease, cuMemRelease, (CUmemGenericAllocationHandle handle))                                                 \
  MAY(MemMap, cuMemMap,                                                                                                \
      (CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))   \
  MAY(MemUnmap, cuMemUnmap, (CUdeviceptr ptr, size_t bytes))                                                           \
  MAY(MemSetAccess, cuMemSetAccess, (CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count))        \
  MAY(MemGetAllocationGranularity, cuMemGetAllocationGranularity,                                                      \
      (size_t * bytes, const CUmemAllocationProp *prop, int option))                                                   \
  MAY(MemRetainAllocationHandle, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *ptr))      \
  MAY(MemExportToShareableHandle, cuMemExportToShareableHandle,                                                        \
      (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))                      \
  MAY(MemImportFromShareableHandle, cuMemImportFromShareableHandle,                                                    \
      (CUmemGenericAllocationHandle * handle, void *shareable, int type))                                              \
  MAY(MemGetHandleForAddressRange, cuMemGetHandleForAddressRange,                                                      \
      (void *handle, CUdeviceptr ptr, size_t bytes, int type, unsigned long long flags))                               \
  MAY(FlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites, (int target, int scope))                                   \
  MAY(MulticastCreate, cuMulticastCreate, (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *prop))  \
  MAY(MulticastAddDevice, cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device))                \
  MAY(MulticastBindMem, cuMulticastBindMem,                                                                            \
      (CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory, size_t at,             \
       size_t bytes, unsigned long long flags))                                                                        \
  MAY(MulticastUnbind, cuMulticastUnbind,                                                                              \
      (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes))                             \
  MAY(MulticastGetGranularity, cuMulticastGetGranularity,                                                              \
      (size_t * bytes, const CUmulticastObjectProp *prop, int option))

#define HK_CUDA_MEMBER(member, symbol, params) CUresult(*member) params;
typedef struct hk_cuda_calls {
  HK_CUDA_CALLS(HK_CUDA_MEMBER, HK_CUDA_MEMBER)
} hk_cuda_calls;
#undef HK_CUDA_MEMBER
