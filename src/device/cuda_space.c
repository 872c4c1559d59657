/* SPDX-License-Identifier: Apache-2.0 */
/* A space of addresses without memory, into which memory of this and of other processes is mapped at offsets that the
 * caller chooses. */
#include <string.h>
#include "cuda.h"

static hk_status space_create(hk_device *base, size_t bytes, void **out) {
  CUdeviceptr at = 0;
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemAddressReserve(&at, bytes, ((hk_cuda *)base)->granule, 0, 0),
                    "device %d: %zu bytes of addresses", base->limits.ordinal, bytes);
  *out = (void *)(uintptr_t)at;
  return HK_OK;
}

static hk_status space_free(hk_device *base, void *at, size_t bytes) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemAddressFree((CUdeviceptr)(uintptr_t)at, bytes), "device %d: addresses at %p",
                    base->limits.ordinal, at);
  return HK_OK;
}

static hk_status space_place(hk_device *base, void *at, size_t bytes, const void *p, int fd, hk_memory *out) {
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

const hk_device_space_ops hk_cuda_space = {.create = space_create, .free = space_free, .place = space_place};
