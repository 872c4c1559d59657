/* SPDX-License-Identifier: Apache-2.0 */
/* A space of addresses without memory, into which memory of this and of other processes is mapped at offsets that the
 * caller chooses. */
#include <string.h>
#include <unistd.h>
#include "cuda.h"

hk_status hk_cuda_space_new(hk_device *base, size_t bytes, void **out) {
  CUdeviceptr at = 0;
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemAddressReserve(&at, bytes, ((hk_cuda *)base)->granule, 0, 0),
                    "device %d: %zu bytes of addresses", base->limits.ordinal, bytes);
  *out = (void *)(uintptr_t)at;
  return HK_OK;
}

hk_status hk_cuda_space_free(hk_device *base, void *at, size_t bytes) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemAddressFree((CUdeviceptr)(uintptr_t)at, bytes), "device %d: addresses at %p",
                    base->limits.ordinal, at);
  return HK_OK;
}

hk_status hk_cuda_place(hk_device *base, void *at, size_t bytes, const void *p, int fd, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_cuda *d = (hk_cuda *)base;
  CUmemGenericAllocationHandle handle;
  memset(out, 0, sizeof *out);
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(
      p ? hk_cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)p)
        : hk_cu.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "device %d: a rank's window of %zu bytes", base->limits.ordinal, bytes);
  HK_TRY(hk_cuda_map_at(d, (CUdeviceptr)(uintptr_t)at, handle, bytes, false), undo);
  *out = (hk_memory){.base = at, .bytes = bytes, .handle = handle, .kind = HK_MEMORY_PLACED};
  return HK_OK;
undo:
  hk_cu.MemRelease(handle);
  return rc;
}

hk_status hk_cuda_multicast_map(hk_device *base, uint64_t object, size_t bytes, hk_memory *all) {
  CUdeviceptr at;
  HK_CUDA_ENTER_RELAXED(base);
  HK_OR_RETURN(hk_cuda_map((hk_cuda *)base, object, bytes, false, &at));
  *all = (hk_memory){.base = (void *)(uintptr_t)at, .bytes = bytes, .handle = object, .kind = HK_MEMORY_MAPPED};
  return HK_OK;
}

hk_status hk_cuda_multicast_attach(hk_device *base, uint64_t object, size_t at, const hk_memory *m) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastBindMem(object, at, m->handle, 0, m->bytes, 0),
                    "device %d: binding a window of %zu bytes to a multicast object", base->limits.ordinal, m->bytes);
  return HK_OK;
}

hk_status hk_cuda_multicast_detach(hk_device *base, uint64_t object, size_t at, size_t bytes) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MulticastUnbind(object, ((hk_cuda *)base)->device, at, bytes),
                    "device %d: %zu bytes of a multicast object", base->limits.ordinal, bytes);
  return HK_OK;
}
