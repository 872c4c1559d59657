/* SPDX-License-Identifier: Apache-2.0 */
/* Multicast objects (NVLS): one address for the same offset in the memory of several devices. The switch copies stores
 * to all of them and reduces loads from all of them. Order of calls: make an object, add all devices to it, then bind
 * each device's memory. */
#include <string.h>
#include "cuda.h"

static size_t cuda_multicast_whole(size_t bytes, size_t granule) { return (bytes + granule - 1) / granule * granule; }

/* Rounds the size up to the recommended granularity, unless that adds more than half of the size, because memory is
 * bound for the whole object. In that case, or if the driver then refuses, rounds up to the least granularity. */
static hk_status multicast_create(hk_device *base, unsigned devices, size_t *bytes, uint64_t *object) {
  hk_cuda *d = (hk_cuda *)base;
  size_t least = 0, better = 0;
  CUmulticastObjectProp prop = {
      .numDevices = devices, .size = *bytes, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  CUmemGenericAllocationHandle handle;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastGetGranularity(&least, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
                    "device %d: the granularity of multicast objects", base->limits.ordinal);
  if (hk_cu.MulticastGetGranularity(&better, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS) better = 0;
  least = cuda_multicast_whole(*bytes, least > d->granule ? least : d->granule);
  better = better > d->granule ? cuda_multicast_whole(*bytes, better) : least;
  prop.size = better;
  if (better == least || better - *bytes > *bytes / 2 || hk_cu.MulticastCreate(&handle, &prop) != CUDA_SUCCESS) {
    prop.size = least;
    HK_CUDA_OR_RETURN(hk_cu.MulticastCreate(&handle, &prop),
                      "device %d: a multicast object of %zu bytes over %u devices (is nvidia-fabricmanager running?)",
                      base->limits.ordinal, least, devices);
  }
  *bytes = prop.size;
  *object = handle;
  return HK_OK;
}

static hk_status multicast_share(hk_device *base, uint64_t object, int *fd) {
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.MemExportToShareableHandle(fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    "device %d: a file descriptor of a multicast object", base->limits.ordinal);
  return HK_OK;
}

static hk_status multicast_open(hk_device *base, int fd, uint64_t *object) {
  CUmemGenericAllocationHandle handle;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(
      hk_cu.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "device %d: a multicast object of another process", base->limits.ordinal);
  *object = handle;
  return HK_OK;
}

static hk_status multicast_add(hk_device *base, uint64_t object) {
  hk_cuda *d = (hk_cuda *)base;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastAddDevice(object, d->device), "device %d: joining a multicast object",
                    base->limits.ordinal);
  return HK_OK;
}

static hk_status multicast_bind(hk_device *base, uint64_t object, size_t bytes, size_t zeroed, hk_memory *own,
                                hk_memory *all) {
  hk_status rc = HK_OK;
  hk_cuda *d = (hk_cuda *)base;
  CUdeviceptr at;
  memset(own, 0, sizeof *own);
  memset(all, 0, sizeof *all);
  HK_CUDA_ENTER_RELAXED(base);
  HK_OR_RETURN(hk_cuda_alloc_mapped(d, bytes, zeroed, own));
  HK_CUDA_TRY(hk_cu.MulticastBindMem(object, 0, own->handle, 0, bytes, 0), undo_own,
              "device %d: binding %zu bytes to a multicast object", base->limits.ordinal, bytes);
  HK_TRY(hk_cuda_map(d, object, bytes, false, &at), undo_bind);
  *all = (hk_memory){.base = (void *)(uintptr_t)at, .bytes = bytes, .handle = object, .kind = HK_MEMORY_MULTICAST};
  return HK_OK;
undo_bind:
  hk_cu.MulticastUnbind(object, d->device, 0, bytes);
undo_own:
  (void)hk_cuda_release(base, own); /* the first failure is reported */
  return rc;
}

static hk_status multicast_again(hk_device *base, const hk_memory *own, hk_memory *all) {
  hk_status rc = HK_OK;
  hk_cuda *d = (hk_cuda *)base;
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastBindMem(all->handle, 0, own->handle, 0, all->bytes, 0),
                    "device %d: binding %zu bytes to a multicast object again", base->limits.ordinal, all->bytes);
  HK_TRY(hk_cuda_map_at(d, (CUdeviceptr)(uintptr_t)all->base, all->handle, all->bytes, false), undo);
  all->parked = false;
  return HK_OK;
undo:
  hk_cu.MulticastUnbind(all->handle, d->device, 0, all->bytes);
  return rc;
}

CUresult hk_cuda_multicast_park(const hk_cuda *d, hk_memory *all) {
  CUresult code = hk_cu.MemUnmap((CUdeviceptr)(uintptr_t)all->base, all->bytes),
           next = hk_cu.MulticastUnbind(all->handle, d->device, 0, all->bytes);
  all->parked = true;
  return code == CUDA_SUCCESS ? next : code;
}

CUresult hk_cuda_multicast_leave(const hk_cuda *d, hk_memory *all) {
  CUresult code = all->parked ? CUDA_SUCCESS : hk_cuda_multicast_park(d, all),
           next = hk_cu.MemAddressFree((CUdeviceptr)(uintptr_t)all->base, all->bytes);
  return code == CUDA_SUCCESS ? next : code;
}

static hk_status multicast_free(hk_device *base, uint64_t object) {
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.MemRelease(object), "device %d: freeing a multicast object", base->limits.ordinal);
  return HK_OK;
}

static hk_status multicast_map(hk_device *base, uint64_t object, size_t bytes, hk_memory *all) {
  CUdeviceptr at;
  HK_CUDA_ENTER_RELAXED(base);
  HK_OR_RETURN(hk_cuda_map((hk_cuda *)base, object, bytes, false, &at));
  *all = (hk_memory){.base = (void *)(uintptr_t)at, .bytes = bytes, .handle = object, .kind = HK_MEMORY_MAPPED};
  return HK_OK;
}

static hk_status multicast_attach(hk_device *base, uint64_t object, size_t at, const hk_memory *m) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastBindMem(object, at, m->handle, 0, m->bytes, 0),
                    "device %d: binding a window of %zu bytes to a multicast object", base->limits.ordinal, m->bytes);
  return HK_OK;
}

static hk_status multicast_detach(hk_device *base, uint64_t object, size_t at, size_t bytes) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastUnbind(object, ((hk_cuda *)base)->device, at, bytes),
                    "device %d: %zu bytes of a multicast object", base->limits.ordinal, bytes);
  return HK_OK;
}

const hk_device_multicast_ops hk_cuda_multicast = {.create = multicast_create,
                                                   .share = multicast_share,
                                                   .open = multicast_open,
                                                   .add = multicast_add,
                                                   .bind = multicast_bind,
                                                   .again = multicast_again,
                                                   .free = multicast_free,
                                                   .map = multicast_map,
                                                   .attach = multicast_attach,
                                                   .detach = multicast_detach};
