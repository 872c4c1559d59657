/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA device says of itself, if the driver lacks a function or an attribute: what depends on it is off, and
 * nothing else. All operations then do without, or report it.
 * check: timeout=60 notsan */
#include <dirent.h>
#include <dlfcn.h>
#include "../../src/device/cuda.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static CUresult (*attribute_of)(int *, int, CUdevice);
static int lacking; /* an attribute */
static CUresult attribute(int *value, int which, CUdevice device) {
  return which == lacking ? CUDA_ERROR_INVALID_VALUE : attribute_of(value, which, device);
}
static char bus[40];
static CUresult bus_id(char *text, int bytes, CUdevice device) {
  (void)device;
  if (bytes <= (int)strlen(bus)) return CUDA_ERROR_INVALID_VALUE; /* as the driver: it cuts nothing off */
  snprintf(text, (size_t)bytes, "%s", bus);
  return CUDA_SUCCESS;
}

static hk_device *open_device(void) {
  hk_device *d;
  ck_assert_msg(hk_cuda_open(0, &d) == HK_OK, "%s", hk_last_error());
  return d;
}
static void use_driver(void) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  setenv("CUDAEMU_DMABUF", "2", 1);
  emu_start(1);
  hk_device *d = open_device();
  d->ops->close(d);
  attribute_of = hk_cu.DeviceGetAttribute;
  hk_cu.DeviceGetAttribute = attribute;
}

/* The capabilities of a device that is opened now. */
static const char *can(void) {
  static char text[200];
  hk_device *d = open_device();
  const hk_device_limits *l = &d->limits;
  snprintf(text, sizeof text, "%s%s%s%s%s%s%s%s%s%s%s", l->vmm ? " vmm" : "", l->fd_handles ? " fd" : "",
           l->late_host ? " late" : "", l->multicast ? " multicast" : "", l->clusters ? " clusters" : "",
           l->dmabuf ? " dmabuf" : "", l->gdr ? " gdr" : "", l->rdma_ordered ? " ordered" : "",
           l->rdma_flush ? " flush" : "", l->stream_words ? " words" : "", l->integrated ? " integrated" : "");
  ck_assert_int_eq(l->fd_handles, ((hk_cuda *)d)->granule != 0);
  d->ops->close(d);
  return text;
}

static const struct {
  int call, attribute; /* one of them; -1: none of the driver's calls */
  const char *can;
} rows[] = {
#define LACKS(member) offsetof(hk_cuda_calls, member)
    {-1, 0, " vmm fd late multicast clusters dmabuf gdr ordered flush words"},
    {LACKS(MemCreate), 0, " clusters dmabuf gdr ordered flush words"},
    {LACKS(MemGetAllocationGranularity), 0, " vmm clusters dmabuf gdr ordered flush words"},
    {LACKS(MemExportToShareableHandle), 0, " vmm clusters dmabuf gdr ordered flush words"},
    {LACKS(MulticastCreate), 0, " vmm fd late clusters dmabuf gdr ordered flush words"},
    {LACKS(LaunchKernelEx), 0, " vmm fd late multicast dmabuf gdr ordered flush words"},
    {LACKS(MemGetHandleForAddressRange), 0, " vmm fd late multicast clusters gdr ordered flush words"},
    {LACKS(FlushGPUDirectRDMAWrites), 0, " vmm fd late multicast clusters dmabuf gdr ordered words"},
    {LACKS(StreamWriteValue32), 0, " vmm fd late multicast clusters dmabuf gdr ordered flush"},
    {LACKS(StreamWaitValue32), 0, " vmm fd late multicast clusters dmabuf gdr ordered flush"},
#undef LACKS
#define LACKS(name) -1, CU_DEVICE_ATTRIBUTE_##name
    {LACKS(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), " clusters dmabuf gdr ordered flush words"},
    {LACKS(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), " vmm clusters dmabuf gdr ordered flush words"},
    {LACKS(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), " vmm fd multicast clusters dmabuf gdr ordered flush words"},
    {LACKS(MULTICAST_SUPPORTED), " vmm fd late clusters dmabuf gdr ordered flush words"},
    {LACKS(CLUSTER_LAUNCH), " vmm fd late multicast dmabuf gdr ordered flush words"},
    {LACKS(DMA_BUF_SUPPORTED), " vmm fd late multicast clusters gdr ordered flush words"},
    {LACKS(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED), " vmm fd late multicast clusters dmabuf ordered flush words"},
    {LACKS(GPU_DIRECT_RDMA_WRITES_ORDERING), " vmm fd late multicast clusters dmabuf gdr flush words"},
    {LACKS(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS), " vmm fd late multicast clusters dmabuf gdr ordered words"},
#undef LACKS
};
TEST(capabilities) {
  use_driver();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    const hk_cuda_calls whole = hk_cu;
    if (rows[i].call >= 0) memset((char *)&hk_cu + rows[i].call, 0, sizeof(void *));
    lacking = rows[i].attribute;
    ck_assert_msg(strcmp(can(), rows[i].can) == 0, "row %zu:%s", i, can());
    hk_cu = whole;
  }
}

/* NCCL's variables turn virtual memory of the host off. */
TEST_LOOP(variables, 2) {
  setenv(_i ? "NCCL_CUMEM_ENABLE" : "NCCL_CUMEM_HOST_ENABLE", "0", 1);
  use_driver();
  ck_assert_str_eq(can(), " vmm fd multicast clusters dmabuf gdr ordered flush words");
}

TEST(figures) {
  use_driver();
  hk_device *d = open_device();
  const hk_device_limits *l = &d->limits;
  ck_assert(l->ordinal == 0 && l->sm == 90 && l->threads_per_multiprocessor == 2048 && l->shared_bytes == 48 << 10);
  ck_assert(l->multiprocessors > 0 && l->memory_bytes > 0 && l->priority < 0 && l->name[0]);
  ck_assert_str_eq(l->bus_id, "0000:10:00.0");
  d->ops->close(d);
}

/* Memory that cannot be had is none. */
TEST(too_much_memory) {
  static const hk_memory none;
  hk_memory m;
  use_driver();
  hk_device *d = open_device();
  const hk_device_memory_ops *o = d->ops->memory;
  const size_t bytes = (size_t)1 << 50;
  for (int how = 0; how < 6; how++) {
    memset(&m, 0xa5, sizeof m);
    const hk_status rc = how == 0   ? o->alloc(d, SIZE_MAX, &m)
                         : how == 1 ? o->alloc(d, bytes, &m)
                         : how == 2 ? o->alloc_open(d, bytes, 0, &m)
                         : how == 3 ? o->alloc_shared(d, bytes, 0, true, &m)
                         : how == 4 ? o->alloc_host(d, bytes, &m)
                                    : o->alloc_host_late(d, bytes, &m);
    ck_assert_int_ne(rc, HK_OK);
    ck_assert_mem_eq(&m, &none, sizeof m);
  }
  d->ops->close(d);
}

/* Without the driver's word the kernel says on which node a GPU is. */
TEST(near_node) {
  char path[100];
  int node = -1;
  use_driver();
  hk_device *d = open_device();
  ck_assert_int_eq(d->limits.host_numa, 0);
  d->ops->close(d);
  lacking = CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
  hk_cu.DeviceGetPCIBusId = bus_id;
  static const char *const wrong[] = {"", "0000:01:00", "FFFF:FE:1F.7"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(wrong); i++) {
    snprintf(bus, sizeof bus, "%s", wrong[i]);
    d = open_device();
    ck_assert_int_eq(d->limits.host_numa, -1);
    d->ops->close(d);
  }
  strcpy(bus, "0A1B2C3D:81:00.0");
  d = open_device();
  ck_assert_str_eq(d->limits.bus_id, bus);
  d->ops->close(d);
  DIR *all = opendir("/sys/bus/pci/devices");
  for (const struct dirent *e; all && (e = readdir(all));) {
    if (e->d_name[0] == '.' || strlen(e->d_name) != 12) continue;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.12s/numa_node", e->d_name);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%d", &node) != 1) node = -1;
    if (f) fclose(f);
    snprintf(bus, sizeof bus, "%.12s", e->d_name);
    for (char *c = bus; *c; c++) *c = (char)(*c >= 'a' ? *c - 32 : *c); /* as the driver writes it */
    d = open_device();
    ck_assert_int_eq(d->limits.host_numa, node < 0 ? -1 : node);
    d->ops->close(d);
  }
  if (all) closedir(all);
}

/* Without a driver, or if the user wants none, there is no device, and opening one says so. */
TEST_LOOP(no_driver, 2) {
  int devices = 5;
  hk_device *d = (hk_device *)&devices;
  void *driver = _i ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
  if (driver) return; /* this machine has one */
  if (_i) emu_load();
  if (_i)
    setenv("HOCKET_DEVICE", "host", 1);
  else
    unsetenv("HOCKET_DEVICE");
  ck_assert(!hk_cuda_here(&devices));
  ck_assert_int_eq(devices, 0);
  ck_assert_int_eq(hk_cuda_open(0, &d), HK_ERR_CUDA);
  ck_assert_ptr_null(d);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "device 0: there is no CUDA driver"));
}

TEST(ordinals) {
  hk_device *d;
  int devices;
  emu_start(2);
  ck_assert(hk_cuda_here(&devices) && devices == 2);
  ck_assert_int_eq(hk_cuda_open(2, &d), HK_ERR_ARGUMENT);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "there is no device 2: CUDA shows 2"));
  ck_assert_int_eq(hk_cuda_open(-1, &d), HK_ERR_ARGUMENT);
  for (int i = 1; i >= 0; i--) {
    ck_assert_int_eq(hk_cuda_open(i, &d), HK_OK);
    ck_assert_int_eq(d->limits.ordinal, i);
    d->ops->close(d);
    emu_use(i);
    ck_assert_int_eq(hk_cuda_current(), i);
  }
}

int main(void) { return suite_main("device_limits"); }
