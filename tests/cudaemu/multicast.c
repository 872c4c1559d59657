/* SPDX-License-Identifier: Apache-2.0 */
/* Multicast objects: an address means the same place of memory on each of several devices.  Kernels get at those places one
 * by one (shim.h); the address itself is nobody's memory, so that a plain access to it is a crash.  Of one process only. */
#include <stdlib.h>
#include <sys/mman.h>
#include "memory.h"

typedef struct binding {
  int device;
  size_t at, bytes; /* in the object */
  emu_phys *memory;
  char *view; /* the memory, for the driver's own use */
  struct binding *next;
} binding;
struct emu_multicast {
  unsigned wanted, devices; /* how many; bit d: device d is there */
  binding *bindings;
};

static bool multiple(uint64_t x) { return x % EMU_GRANULE == 0; }
static emu_phys *object_of(CUmemGenericAllocationHandle handle) {
  emu_phys *p = (emu_phys *)(uintptr_t)handle;
  return p && p->multicast ? p : NULL;
}
static void unbind(binding **at) {
  binding *b = *at;
  *at = b->next;
  munmap(b->view, b->bytes);
  emu_phys_unref(b->memory);
  free(b);
}
void emu_multicast_drop(emu_multicast *m) {
  while (m->bindings) unbind(&m->bindings);
  free(m);
}
bool emu_multicast_has(const emu_multicast *m, int device) { return m->devices >> device & 1; }

CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop, int option) {
  if (!bytes || !prop || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!emu.multicast) return CUDA_ERROR_NOT_SUPPORTED;
  *bytes = EMU_GRANULE;
  return CUDA_SUCCESS;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
  if (!handle || !prop || !prop->numDevices || !prop->size || !multiple(prop->size) || prop->flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (!emu.multicast || prop->numDevices > (unsigned)emu.ndevices) return CUDA_ERROR_NOT_SUPPORTED;
  if (emu_fails(&emu.fail_alloc)) return CUDA_ERROR_OUT_OF_MEMORY;
  emu_phys *p = calloc(1, sizeof *p);
  emu_multicast *m = calloc(1, sizeof *m);
  if (!p || !m) abort();
  m->wanted = prop->numDevices;
  *p = (emu_phys){.refs = 1, .fd = -1, .device = -1, .bytes = prop->size, .multicast = m};
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return CUDA_SUCCESS;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  CUresult code = CUDA_SUCCESS;
  emu_phys *p = object_of(handle);
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= emu.ndevices) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&emu_lock);
  emu_multicast *m = p->multicast;
  if (emu_multicast_has(m, device) || (unsigned)__builtin_popcount(m->devices) == m->wanted)
    code = CUDA_ERROR_INVALID_VALUE;
  else
    m->devices |= 1u << device;
  return emu_unlock(code);
}
/* Only when all devices are there. */
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t at, size_t bytes, unsigned long long flags) {
  emu_phys *p = object_of(handle), *from = (emu_phys *)(uintptr_t)memory;
  if (emu_fails(&emu.fail_multicast)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!p || !from || from->multicast || flags || !bytes || !multiple(offset | at | bytes) ||
      offset + bytes > p->bytes || at + bytes > from->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  emu_multicast *m = p->multicast;
  bool whole = (unsigned)__builtin_popcount(m->devices) == m->wanted;
  if (!whole || !emu_multicast_has(m, from->device)) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  for (const binding *b = m->bindings; b; b = b->next)
    if (b->device == from->device && offset < b->at + b->bytes && b->at < offset + bytes)
      return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  void *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, from->fd, (off_t)at);
  if (view == MAP_FAILED) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  binding *b = calloc(1, sizeof *b);
  if (!b) abort();
  *b = (binding){from->device, offset, bytes, from, view, m->bindings};
  m->bindings = b;
  from->refs++;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes) {
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  emu_phys *p = object_of(handle);
  if (!p) return code;
  pthread_mutex_lock(&emu_lock);
  for (binding **at = &p->multicast->bindings; *at;) {
    if ((*at)->device == device && (*at)->at >= offset && (*at)->at + (*at)->bytes <= offset + bytes) {
      unbind(at);
      code = CUDA_SUCCESS;
    } else {
      at = &(*at)->next;
    }
  }
  return emu_unlock(code);
}

/* Where `bytes` at a multicast address lie, on each device; all of them must have memory there. */
unsigned emu_multicast_views(const void *address, size_t bytes, char *views[EMU_DEVICES]) {
  uint64_t at = (uint64_t)(uintptr_t)address;
  unsigned n = 0;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_memory_is_device(at) ? emu_area_of(at) : NULL;
  emu_multicast *m = a && a->kind == EMU_MAP && a->accessible ? a->phys->multicast : NULL;
  for (binding *b = m ? m->bindings : NULL; b; b = b->next)
    if (at - a->at >= b->at && at - a->at + bytes <= b->at + b->bytes) views[n++] = b->view + (at - a->at - b->at);
  bool whole = m && n == m->wanted;
  pthread_mutex_unlock(&emu_lock);
  return whole ? n : 0;
}
