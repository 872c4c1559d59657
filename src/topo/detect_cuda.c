/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs as the CUDA driver reports them. */
#include <stdio.h>
#include <string.h>
#include "../base/cuda_abi.h"
#include "../base/dl.h"
#include "../base/log.h"
#include "detect_scan.h"

#define CUDA_CALLS(NEED, MAY)                                                                                          \
  NEED(CUresult, init, (unsigned), "cuInit")                                                                           \
  NEED(int, count, (int *), "cuDeviceGetCount")                                                                        \
  NEED(int, get, (int *device, int ordinal), "cuDeviceGet")                                                            \
  NEED(int, name, (char *, int bytes, int device), "cuDeviceGetName")                                                  \
  NEED(int, attribute, (int *value, int which, int device), "cuDeviceGetAttribute")                                    \
  NEED(int, bus_id, (char *, int bytes, int device), "cuDeviceGetPCIBusId")                                            \
  MAY(int, error_name, (int code, const char **), "cuGetErrorName")
typedef struct api {
  CUDA_CALLS(HK_DL_MEMBER, HK_DL_MEMBER)
} api;
static const hk_dl_symbol symbols[] = {CUDA_CALLS(HK_DL_NEED, HK_DL_MAY)};
/* Global because the loaded library belongs to the process. */
static api cuda;
static hk_dl library = HK_DL_LIBRARY(cuda, symbols, HK_SUB_GRAPH, "no GPU can be asked", "libcuda.so.1", "libcuda.so");

/* An attribute that an older driver does not know is 0. */
static int detect_cuda_attribute(int device, int which) {
  int value = 0;
  return cuda.attribute(&value, which, device) == 0 ? value : 0;
}

static void detect_cuda_describe(hk_gpu_seen *g, int device, int ordinal) {
  g->dev = ordinal;
  if (cuda.name(g->name, (int)sizeof g->name, device) != 0) g->name[0] = '\0';
  g->name[sizeof g->name - 1] = '\0';
  g->sm = 10 * detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
          detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  /* Two transfers in each clock. */
  g->memory_gbps = 2.0f * (float)detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) *
                   (float)detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8e6f;
  g->gdr = detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0;
  g->dmabuf = detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  g->mcast = detect_cuda_attribute(device, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) != 0;
}

bool hk_scan_cuda(hk_detect_scan *s, int *n) {
  *n = 0;
  if (!hk_dl_load(&library)) return false;
  int code = cuda.init(0), device;
  const char *name = NULL;
  if (code == 0) code = cuda.count(n);
  if (code != 0) {
    if (cuda.error_name && cuda.error_name(code, &name) != 0) name = NULL;
    HK_INFO(HK_SUB_GRAPH, "the CUDA driver does not start: error %d%s%s", code, name ? " " : "", name ? name : "");
    *n = 0;
    return false;
  }
  for (int i = 0; i < *n; i++) {
    char bus[32] = "";
    uint64_t id;
    if (cuda.get(&device, i) != 0 || cuda.bus_id(bus, (int)sizeof bus, device) != 0 || !hk_bus_id_parse(bus, &id))
      continue;
    hk_gpu_seen *g = hk_scan_gpu_add(s, id);
    if (g) detect_cuda_describe(g, device, i);
  }
  return true;
}
