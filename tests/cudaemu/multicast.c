/* SPDX-License-Identifier: Apache-2.0 */
/* Multicast objects: an address means the same place of memory on each of several devices.  Kernels get at those
 * places one by one (shim.h); the address itself is no memory, so that a plain access to it is a crash.
 *
 * What is bound where lies in a memory file, so that an object can go to other processes by its descriptor.  A binding
 * names its process and that one's descriptor of the memory; each process maps it for itself when a kernel first uses
 * the object. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "memory.h"

enum { BINDINGS = 16 * EMU_DEVICES };
enum state { FREE, CHANGING, THERE };
typedef struct binding {
  unsigned state; /* released with all that is below */
  int device, pid, fd;
  uint64_t serial;  /* another one's never */
  size_t at, bytes; /* in the object */
  size_t from;      /* in the memory */
} binding;
typedef struct object {     /* in the file */
  unsigned wanted, devices; /* how many; bit d: device d is there */
  size_t bytes;
  uint64_t serials;
  binding bindings[BINDINGS];
} object;
struct emu_multicast {
  object *o;
  emu_phys *memory[BINDINGS]; /* what this process has bound */
  struct {
    uint64_t serial; /* of the binding; 0: none */
    char *base;
    size_t bytes;
  } view[BINDINGS];
};

static bool multiple(uint64_t x) { return x % EMU_GRANULE == 0; }
static emu_phys *object_of(CUmemGenericAllocationHandle handle) {
  emu_phys *p = (emu_phys *)(uintptr_t)handle;
  return p && p->multicast ? p : NULL;
}
static unsigned devices_of(const object *o) { return __atomic_load_n(&o->devices, __ATOMIC_ACQUIRE); }
static bool is_whole(const object *o) { return (unsigned)__builtin_popcount(devices_of(o)) == o->wanted; }
static bool is_there(const binding *b) { return __atomic_load_n(&b->state, __ATOMIC_ACQUIRE) == THERE; }

static void close_view(emu_multicast *m, unsigned i) {
  if (m->view[i].serial) munmap(m->view[i].base, m->view[i].bytes);
  m->view[i].serial = 0;
}
static void unbind(emu_multicast *m, unsigned i) {
  __atomic_store_n(&m->o->bindings[i].state, FREE, __ATOMIC_RELEASE);
  close_view(m, i);
  emu_phys_unref(m->memory[i]);
  m->memory[i] = NULL;
}
/* This process's part of it. */
void emu_multicast_drop(emu_multicast *m) {
  for (unsigned i = 0; i < BINDINGS; i++) {
    if (m->memory[i]) unbind(m, i);
    close_view(m, i);
  }
  munmap(m->o, sizeof *m->o);
  free(m);
}
bool emu_multicast_has(const emu_multicast *m, int device) { return devices_of(m->o) >> device & 1; }

emu_multicast *emu_multicast_open(int fd, size_t *bytes) {
  emu_multicast *m = calloc(1, sizeof *m);
  if (!m) abort();
  m->o = mmap(NULL, sizeof *m->o, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m->o == MAP_FAILED) {
    free(m);
    return NULL;
  }
  *bytes = m->o->bytes;
  return m;
}

CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop, int option) {
  if (!bytes || !prop || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
  if (!emu.multicast) return CUDA_ERROR_NOT_SUPPORTED;
  *bytes = option == CU_MULTICAST_GRANULARITY_MINIMUM ? EMU_GRANULE : emu.multicast_granule;
  return CUDA_SUCCESS;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
  if (!handle || !prop || !prop->numDevices || !prop->size || !multiple(prop->size) || prop->flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (!emu.multicast || prop->numDevices > (unsigned)emu.ndevices ||
      prop->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (emu_fails(&emu.fail_alloc)) return CUDA_ERROR_OUT_OF_MEMORY;
  int fd = memfd_create("cudaemu-multicast", MFD_CLOEXEC);
  size_t bytes;
  emu_multicast *m = fd >= 0 && ftruncate(fd, sizeof(object)) == 0 ? emu_multicast_open(fd, &bytes) : NULL;
  emu_phys *p = calloc(1, sizeof *p);
  if (!p) abort();
  if (!m) {
    if (fd >= 0) close(fd);
    free(p);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  emu_hold(CUDAEMU_PHYSICAL, 1);
  m->o->wanted = prop->numDevices;
  m->o->bytes = prop->size;
  *p = (emu_phys){
      .refs = 1, .fd = fd, .device = -1, .types = (int)prop->handleTypes, .bytes = prop->size, .multicast = m};
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return CUDA_SUCCESS;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  emu_phys *p = object_of(handle);
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= emu.ndevices) return CUDA_ERROR_INVALID_DEVICE;
  object *o = p->multicast->o;
  unsigned before = devices_of(o), after;
  do {
    after = before | 1u << device;
    if (after == before || (unsigned)__builtin_popcount(before) == o->wanted) return CUDA_ERROR_INVALID_VALUE;
  } while (!__atomic_compare_exchange_n(&o->devices, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  return CUDA_SUCCESS;
}

/* An entry of the table for this process to fill. */
static binding *take_entry(object *o) {
  for (unsigned i = 0; i < BINDINGS; i++) {
    unsigned state = FREE;
    if (__atomic_compare_exchange_n(&o->bindings[i].state, &state, CHANGING, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      return &o->bindings[i];
  }
  return NULL;
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
  object *o = p->multicast->o;
  if (!is_whole(o) || !emu_multicast_has(p->multicast, from->device)) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  for (const binding *b = o->bindings; b < o->bindings + BINDINGS; b++)
    if (is_there(b) && b->device == from->device && offset < b->at + b->bytes && b->at < offset + bytes)
      return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  binding *b = take_entry(o);
  if (!b) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  b->device = from->device;
  b->pid = getpid();
  b->fd = from->fd;
  b->serial = __atomic_add_fetch(&o->serials, 1, __ATOMIC_RELAXED);
  b->at = offset;
  b->bytes = bytes;
  b->from = at;
  p->multicast->memory[b - o->bindings] = from;
  from->refs++;
  __atomic_store_n(&b->state, THERE, __ATOMIC_RELEASE);
  return emu_unlock(CUDA_SUCCESS);
}
/* By the process that has bound it. */
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes) {
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  emu_phys *p = object_of(handle);
  if (!p) return code;
  pthread_mutex_lock(&emu_lock);
  for (unsigned i = 0; i < BINDINGS; i++) {
    const binding *b = &p->multicast->o->bindings[i];
    if (!p->multicast->memory[i] || b->device != device || b->at < offset || b->at + b->bytes > offset + bytes)
      continue;
    unbind(p->multicast, i);
    code = CUDA_SUCCESS;
  }
  return emu_unlock(code);
}

/* The binding's memory, mapped here; NULL: its process has gone. */
static char *view_of(emu_multicast *m, unsigned i) {
  const binding *b = &m->o->bindings[i];
  char path[64];
  if (m->view[i].serial == b->serial) return m->view[i].base;
  close_view(m, i);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", b->pid, b->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  void *base = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)b->from);
  close(fd);
  if (base == MAP_FAILED) return NULL;
  m->view[i].serial = b->serial;
  m->view[i].base = base;
  m->view[i].bytes = b->bytes;
  return base;
}
/* Where `bytes` at a multicast address lie, on each device; all of them must have memory there. */
unsigned emu_multicast_views(const void *address, size_t bytes, char *views[EMU_DEVICES]) {
  uint64_t at = (uint64_t)(uintptr_t)address;
  unsigned n = 0;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_memory_is_device(at) ? emu_area_of(at) : NULL;
  emu_multicast *m = a && a->kind == EMU_MAP && a->accessible ? a->phys->multicast : NULL;
  for (unsigned i = 0; m && i < BINDINGS; i++) {
    const binding *b = &m->o->bindings[i];
    if (!is_there(b) || at - a->at < b->at || at - a->at + bytes > b->at + b->bytes) continue;
    char *base = view_of(m, i);
    if (base) views[n++] = base + (at - a->at - b->at);
  }
  bool whole = m && n == m->o->wanted;
  pthread_mutex_unlock(&emu_lock);
  return whole ? n : 0;
}
