/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory and its mappings, and what other processes open: by descriptor, and by IPC handle. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "memory.h"

enum { DEVICE_UNAVAILABLE = 46 }; /* CUresult */

static bool multiple(uint64_t x) { return x && x % EMU_GRANULE == 0; }

void emu_phys_unref(emu_phys *p) {
  if (--p->refs) return;
  if (p->multicast)
    emu_multicast_drop(p->multicast);
  else if (!p->host)
    emu_give(p->device, p->bytes);
  close(p->fd);
  free(p);
  emu_hold(CUDAEMU_PHYSICAL, -1);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option) {
  if (!bytes || !prop || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!emu.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  *bytes = EMU_GRANULE;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  if (!handle || !prop || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !multiple(bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (!emu.vmm || prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  const bool host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  int device = host ? -1 : prop->location.id;
  if (host && (!emu.late_host || prop->location.id != 0)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!host && (device < 0 || device >= emu.ndevices)) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&emu_lock);
  if (!emu_started()) return emu_unlock(CUDA_ERROR_NOT_INITIALIZED);
  if (host ? emu_fails(&emu.fail_alloc) : !emu_take(device, bytes)) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  char name[32];
  snprintf(name, sizeof name, "cudaemu-%d", device); /* the importer reads the device from it */
  emu_phys *p = calloc(1, sizeof *p);
  if (!p) abort();
  emu_hold(CUDAEMU_PHYSICAL, 1);
  *p = (emu_phys){1, memfd_create(name, MFD_CLOEXEC), device, prop->requestedHandleTypes, bytes, NULL, host};
  if (p->fd < 0 || ftruncate(p->fd, (off_t)bytes) != 0) {
    emu_phys_unref(p);
    return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  emu_phys_unref((emu_phys *)(uintptr_t)handle);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr) {
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_of((uint64_t)(uintptr_t)ptr);
  if (!a || !a->phys) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  a->phys->refs++;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)a->phys;
  return emu_unlock(CUDA_SUCCESS);
}
EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
  const emu_phys *p = (const emu_phys *)(uintptr_t)handle;
  if (!prop || !p) return CUDA_ERROR_INVALID_VALUE;
  *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = p->types};
  prop->location.type = p->host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = p->host ? 0 : p->device;
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
  emu_phys *p = (emu_phys *)(uintptr_t)handle;
  if (!shareable || !p || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(p->types & type))
    return CUDA_ERROR_INVALID_VALUE;
  int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *(int *)shareable = fd;
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
  char link[64], name[64] = "";
  struct stat st;
  int fd = (int)(intptr_t)shareable, device = -1;
  if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  if (!emu.import) return CUDA_ERROR_NOT_SUPPORTED;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (fstat(fd, &st) != 0 || readlink(link, name, sizeof name - 1) < 0) return CUDA_ERROR_INVALID_VALUE;
  bool multicast = strncmp(name, "/memfd:cudaemu-multicast", 24) == 0;
  if (!multicast && (sscanf(name, "/memfd:cudaemu-%d", &device) != 1 || device >= emu.ndevices))
    return CUDA_ERROR_INVALID_VALUE;
  emu_phys *p = calloc(1, sizeof *p);
  if (!p) abort();
  *p = (emu_phys){1, fcntl(fd, F_DUPFD_CLOEXEC, 0), device, type, (size_t)st.st_size, NULL, false};
  if (multicast) p->multicast = emu_multicast_open(p->fd, &p->bytes);
  if (p->fd < 0 || (multicast && !p->multicast)) {
    if (p->fd >= 0) close(p->fd);
    free(p);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  emu_hold(CUDAEMU_PHYSICAL, 1);
  pthread_mutex_lock(&emu_lock);
  if (!multicast)
    emu_give(device, 0 - p->bytes); /* it counts here too, as long as it is held; giving it back evens that out */
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return emu_unlock(CUDA_SUCCESS);
}

/* ---- addresses ---- */

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t align, CUdeviceptr at, unsigned long long flags) {
  if (!ptr || !multiple(bytes) || flags || (align & (align - 1))) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  if (!emu_started()) return emu_unlock(CUDA_ERROR_NOT_INITIALIZED);
  uint64_t place = emu_find_room(bytes, align > EMU_GRANULE ? align : EMU_GRANULE, at);
  if (!place) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  emu_area *a = emu_area_add(EMU_SPACE, place, bytes);
  a->page = place;
  a->pages = bytes;
  *ptr = place;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes) {
  pthread_mutex_lock(&emu_lock);
  emu_area *space = emu_area_at(ptr, EMU_SPACE);
  if (!space || space->bytes != bytes) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  for (emu_area *a = emu_areas; a; a = a->next)
    if (a->kind == EMU_MAP && a->at - ptr < bytes) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  emu_area_drop(space);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  emu_phys *p = (emu_phys *)(uintptr_t)handle;
  if (!p || flags || offset || !multiple(bytes) || bytes > p->bytes) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  emu_area *space = emu_area_of(ptr);
  if (!space || space->kind != EMU_SPACE || ptr + bytes > space->at + space->bytes || ptr % EMU_GRANULE)
    return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  emu_area *a = emu_area_add(EMU_MAP, ptr, bytes);
  a->page = ptr;
  a->pages = bytes;
  a->phys = p;
  a->device = p->device;
  p->refs++;
  if (!p->multicast && !emu_area_map(a, p->fd)) {
    emu_phys_unref(p);
    emu_area_drop(a);
    return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  }
  return emu_unlock(CUDA_SUCCESS);
}
/* The mappings of [at, at + bytes), which end where that ends. */
static CUresult each_map(CUdeviceptr at, size_t bytes, void (*what)(emu_area *, const CUmemAccessDesc *),
                         const CUmemAccessDesc *desc) {
  size_t covered = 0;
  for (emu_area *a = emu_areas; a; a = a->next)
    if (a->kind == EMU_MAP && a->at - at < bytes && a->at + a->bytes <= at + bytes) covered += a->bytes;
  if (covered != bytes) return CUDA_ERROR_INVALID_VALUE;
  for (emu_area *a = emu_areas, *next; a; a = next) {
    next = a->next;
    if (a->kind == EMU_MAP && a->at - at < bytes) what(a, desc);
  }
  return CUDA_SUCCESS;
}
static void unmap(emu_area *a, const CUmemAccessDesc *desc) {
  (void)desc;
  emu_area_unmap(a);
  emu_phys_unref(a->phys);
  emu_area_drop(a);
}
static void set_access(emu_area *a, const CUmemAccessDesc *desc) {
  const bool may = desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    a->by_host = may;
  else
    a->access = may ? a->access | 1u << desc->location.id : a->access & ~(1u << desc->location.id);
  a->accessible = desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE || (a->accessible && desc->location.id != a->device);
  emu_area_protect(a);
}
CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes) {
  pthread_mutex_lock(&emu_lock);
  return emu_unlock(each_map(ptr, bytes, unmap, NULL));
}
EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr);
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
  pthread_mutex_lock(&emu_lock);
  const emu_area *a = emu_area_of(ptr);
  if (!flags || !location || !a || a->kind != EMU_MAP) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  const bool may = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id >= 0 && a->access >> location->id & 1
                                                                 : a->by_host;
  *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count) {
  CUresult code = CUDA_SUCCESS;
  if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  for (size_t i = 0; i < count && !code; i++) {
    int d = desc[i].location.id;
    emu_area *a = emu_area_of(ptr);
    bool device = desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && (d < 0 || d >= emu.ndevices))
      code = CUDA_ERROR_INVALID_DEVICE;
    else if (device && d == emu.busy)
      code = DEVICE_UNAVAILABLE;
    else if (device && a && a->phys && a->phys->multicast && !emu_multicast_has(a->phys->multicast, d))
      code = CUDA_ERROR_INVALID_VALUE;
    else if (!device && a && a->phys && !a->phys->host)
      code = CUDA_ERROR_NOT_SUPPORTED; /* the host reaches no device's memory */
    else if (device && a && a->phys && a->device >= 0 && d != a->device && !emu.peer[d][a->device])
      code = CUDA_ERROR_NOT_SUPPORTED;
    else
      code = each_map(ptr, bytes, set_access, &desc[i]);
  }
  return emu_unlock(code);
}

EXPORT extern int cudaemu_pci_dmabufs; /* dma-bufs for access over PCI past the CPU, until now */
int cudaemu_pci_dmabufs;
/* What a network card would get: the file itself, whose position is where the memory begins in it. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t bytes, int type,
                                       unsigned long long flags) {
  char path[64];
  if (flags && (flags != CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE || !emu.dmabuf_pci))
    return CUDA_ERROR_INVALID_VALUE;
  if (!handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || ptr % EMU_PAGE || bytes % EMU_PAGE)
    return CUDA_ERROR_INVALID_VALUE;
  if (!emu.dmabuf) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_of(ptr);
  bool whole = a && a->at <= ptr && ptr + bytes <= a->page + a->pages;
  int file = !whole ? -1 : a->phys ? a->phys->fd : a->kind == EMU_BLOCK ? emu_heap_fd() : -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  int fd = file < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC); /* with a position of its own */
  if (fd >= 0 && lseek(fd, (off_t)(a->offset + (ptr - a->page)), SEEK_SET) >= 0) {
    *(int *)handle = fd;
    cudaemu_pci_dmabufs += flags != 0;
    return emu_unlock(CUDA_SUCCESS);
  }
  if (fd >= 0) close(fd);
  return emu_unlock(CUDA_ERROR_INVALID_VALUE);
}

/* No cards are emulated here: a test says what a flush does. */
EXPORT extern void (*cudaemu_rdma_flush)(void);
void (*cudaemu_rdma_flush)(void);
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
  CUresult code = CUDA_SUCCESS;
  if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX || scope < CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
    return CUDA_ERROR_INVALID_VALUE;
  if (!(emu.rdma_flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST)) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  emu_unlock(code);
  if (ctx && cudaemu_rdma_flush) cudaemu_rdma_flush();
  return code;
}

/* ---- IPC handles: where the exporter's heap file is ---- */

typedef struct ipc {
  char magic[8];
  int pid, fd, device, skip; /* skip: where the allocation begins in its pages */
  uint64_t offset, bytes, pages, id;
} ipc;
_Static_assert(sizeof(ipc) <= sizeof(CUipcMemHandle), "it fits the handle");

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (!emu.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_of(ptr);
  if (!a || a->kind != EMU_BLOCK) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  ipc h = {"cudaemu", getpid(), emu_heap_fd(), a->device, (int)(a->at - a->page), a->offset, a->bytes, a->pages, a->id};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &h, sizeof h);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  ipc h;
  char path[64];
  memcpy(&h, &handle, sizeof h);
  if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memcmp(h.magic, "cudaemu", 8) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!emu.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (!ctx) return emu_unlock(code);
  if (h.pid == getpid()) return emu_unlock(CUDA_ERROR_INVALID_CONTEXT);
  if (h.device != ctx->device && !emu.peer[ctx->device][h.device])
    return emu_unlock(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  for (emu_area *a = emu_areas; a; a = a->next)
    if (a->kind == EMU_IMPORT && memcmp(a->key, &handle, sizeof handle) == 0) {
      a->refs++;
      *ptr = a->at;
      return emu_unlock(CUDA_SUCCESS);
    }
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  uint64_t place = fd >= 0 ? emu_find_room(h.pages, EMU_PAGE, 0) : 0;
  if (!place) {
    if (fd >= 0) close(fd);
    return emu_unlock(CUDA_ERROR_INVALID_HANDLE);
  }
  emu_area *a = emu_area_add(EMU_IMPORT, place + (uint64_t)h.skip, h.bytes);
  a->page = place;
  a->pages = h.pages;
  a->device = h.device;
  a->offset = h.offset;
  a->accessible = true;
  memcpy(a->key, &handle, sizeof handle);
  if (!emu_area_map(a, fd)) {
    emu_area_drop(a);
    code = CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    *ptr = a->at;
  }
  close(fd);
  return emu_unlock(code);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_at(ptr, EMU_IMPORT);
  if (!a) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  if (--a->refs) return emu_unlock(CUDA_SUCCESS);
  emu_area_unmap(a);
  emu_area_drop(a);
  return emu_unlock(CUDA_SUCCESS);
}
