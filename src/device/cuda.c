/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device: loading the driver, and the device's limits. */
#include "cuda.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/dl.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/sysfs.h"

#define NEED(member, symbol, params) HK_DL_SYMBOL(hk_cuda_calls, member, #symbol),
#define MAY(member, symbol, params) HK_DL_OPTIONAL(hk_cuda_calls, member, #symbol),
static const hk_dl_symbol symbols[] = {HK_CUDA_CALLS(NEED, MAY)};
#undef NEED
#undef MAY
static hk_dl driver = HK_DL_LIBRARY(hk_cu, symbols, HK_SUB_INIT, "no GPU can be used", "libcuda.so.1", "libcuda.so");

bool hk_cuda_here(int *devices) {
  const char *wanted = hk_param_str(HK_P_DEVICE);
  int n = 0;
  *devices = 0;
  if (wanted && strcmp(wanted, "host") == 0) return false;
  if (!hk_dl_load(&driver)) return false;
  CUresult code = hk_cu.Init(0);
  if (code == CUDA_SUCCESS) code = hk_cu.DeviceGetCount(&n);
  if (code != CUDA_SUCCESS) {
    const char *name = NULL;
    if (hk_cu.GetErrorName(code, &name) != CUDA_SUCCESS || !name) name = "an error";
    HK_INFO(HK_SUB_INIT, "the CUDA driver does not start: %s (%d)", name, code);
    return false;
  }
  *devices = n;
  return n > 0;
}

static void cuda_close_device(hk_device *base) {
  hk_cuda *d = (hk_cuda *)base;
  hk_cuda_access_end(d);
  hk_cu.DevicePrimaryCtxRelease(d->device); /* fails harmlessly at the process's end, if the driver has been unloaded */
  free(d);
}

static const hk_device_ops ops = {.name = "cuda",
                                  .close = cuda_close_device,
                                  .copy = hk_cuda_copy,
                                  .wait = hk_cuda_wait,
                                  .finish = hk_cuda_finish,
                                  .memory = &hk_cuda_memory,
                                  .share = &hk_cuda_share,
                                  .card = &hk_cuda_card,
                                  .multicast = &hk_cuda_multicast,
                                  .space = &hk_cuda_space,
                                  .stream = &hk_cuda_stream,
                                  .order = &hk_cuda_order,
                                  .time = &hk_cuda_time,
                                  .graph = &hk_cuda_graph,
                                  .word = &hk_cuda_word,
                                  .kernel = &hk_cuda_kernel};

/* Older drivers do not know the attribute, and 0 is a valid node. */
static int cuda_numa_of(CUdevice g, const char *bus_id) {
  int node = -1;
  uint64_t domain, bus, device, function;
  char lower[40];
  long long value;
  if (hk_cu.DeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, g) == CUDA_SUCCESS) return node;
  if (sscanf(bus_id, "%" SCNx64 ":%" SCNx64 ":%" SCNx64 ".%" SCNx64, &domain, &bus, &device, &function) != 4) return -1;
  snprintf(lower, sizeof lower, "%04x:%02x:%02x.%x", (unsigned)domain, (unsigned)bus & 255, (unsigned)device & 31,
           (unsigned)function & 7);
  return hk_sysfs_number("", &value, "/sys/bus/pci/devices/%s/numa_node", lower) ? (int)value : -1;
}

static void cuda_read_limits(hk_cuda *d, int ordinal) {
  hk_device_limits *l = &d->base.limits;
  CUdevice g = d->device;
  CUuuid uuid = {{0}};
  int version = 0;
  const hk_settings *settings = hk_settings_now();
  l->ordinal = ordinal;
  l->sm = 10 * hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
          hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  l->multiprocessors = hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  l->threads_per_multiprocessor = hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  l->shared_bytes = (size_t)hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  l->vmm = hk_cu.MemCreate && hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  l->fd_handles = hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  l->stream_words = hk_cu.StreamWriteValue32 && hk_cu.StreamWaitValue32;
  l->clusters = hk_cu.LaunchKernelEx && hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  l->dmabuf = hk_cu.MemGetHandleForAddressRange && hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  l->gdr = hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  l->rdma_ordered = hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
                    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
  l->rdma_flush = hk_cu.FlushGPUDirectRDMAWrites &&
                  hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
                      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
  l->integrated = hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_INTEGRATED);
  l->priority = -5; /* the highest of all known GPUs; the driver uses the nearest that it supports */
  if (hk_cu.DeviceTotalMem(&l->memory_bytes, g) != CUDA_SUCCESS) l->memory_bytes = 0;
  if (hk_cu.DeviceGetName(l->name, (int)sizeof l->name, g) != CUDA_SUCCESS) l->name[0] = 0;
  if (hk_cu.DeviceGetPCIBusId(l->bus_id, (int)sizeof l->bus_id, g) != CUDA_SUCCESS) l->bus_id[0] = 0;
  l->host_numa = cuda_numa_of(g, l->bus_id);
  /* The older call gives all slices of a GPU (MIG) the id of the GPU. */
  if ((hk_cu.DeviceGetUuidOfSlice ? hk_cu.DeviceGetUuidOfSlice : hk_cu.DeviceGetUuid)(&uuid, g) == CUDA_SUCCESS)
    memcpy(l->uuid, uuid.bytes, sizeof l->uuid);
  if (hk_cu.DriverGetVersion(&version) != CUDA_SUCCESS) version = 0;
  l->driver = version;
  d->granule = l->vmm && l->fd_handles ? hk_cuda_granule(d) : 0;
  l->fd_handles = d->granule != 0;
  l->late_host = d->granule && settings->CUMEM_ENABLE != 0 && settings->CUMEM_HOST_ENABLE != 0 &&
                 hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  l->multicast = d->granule && hk_cu.MulticastCreate && hk_cuda_attribute(g, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
  HK_INFO(HK_SUB_INIT, "device %d is %s, sm_%d, %s, %d multiprocessors; driver for CUDA %d.%d", ordinal, l->name, l->sm,
          l->bus_id, l->multiprocessors, version / 1000, version % 1000 / 10);
}

hk_status hk_cuda_open(int ordinal, hk_device **out) {
  hk_status rc = HK_OK;
  int devices;
  hk_cuda *d = NULL;
  *out = NULL;
  if (!hk_cuda_here(&devices))
    HK_GIVE_UP(
        HK_FAIL(HK_ERR_CUDA, "device %d: there is no CUDA driver, it shows no device, or HOCKET_DEVICE=host", ordinal),
        undo);
  if (ordinal < 0 || ordinal >= devices)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "there is no device %d: CUDA shows %d (CUDA_VISIBLE_DEVICES chooses)", ordinal,
                       devices),
               undo);
  d = calloc(1, sizeof *d);
  if (!d) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for device %d", ordinal), undo);
  d->base.ops = &ops;
  HK_CUDA_TRY(hk_cu.DeviceGet(&d->device, ordinal), undo, "device %d", ordinal);
  HK_CUDA_TRY(hk_cu.DevicePrimaryCtxRetain(&d->context, d->device), undo, "the primary context of device %d", ordinal);
  cuda_read_limits(d, ordinal);
  HK_TRY(hk_cuda_access_begin(d), undo_context);
  *out = &d->base;
  return HK_OK;
undo_context:
  hk_cu.DevicePrimaryCtxRelease(d->device);
undo:
  free(d);
  return rc;
}

int hk_cuda_current(void) {
  int devices = 0;
  CUcontext current = NULL;
  CUdevice device, candidate;
  if (hk_cu.CtxGetCurrent(&current) != CUDA_SUCCESS || !current || hk_cu.CtxGetDevice(&device) != CUDA_SUCCESS)
    return 0;
  if (hk_cu.DeviceGetCount(&devices) != CUDA_SUCCESS) return 0;
  for (int i = 0; i < devices; i++)
    if (hk_cu.DeviceGet(&candidate, i) == CUDA_SUCCESS && candidate == device) return i;
  return 0;
}

bool hk_cuda_owns(const void *p, int *device) {
  /* Only a driver that is already loaded can own memory of the process. Another library may have loaded it. */
  static hk_dl_seen cuda = {.file = "libcuda.so.1", .symbol = "cuPointerGetAttribute"};
  CUresult (*attribute)(void *, int, CUdeviceptr) = NULL;
  int type = 0, managed = 0;
  void *found = hk_dl_look(&cuda);
  *device = -1;
  if (!found) return false;
  memcpy(&attribute, &found, sizeof attribute);
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
  bool owns = attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
  if (owns && attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at) == CUDA_SUCCESS && managed) owns = false;
  if (owns && attribute(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) != CUDA_SUCCESS) *device = -1;
  return owns;
}
