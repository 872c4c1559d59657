/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGN = 256 };
/* Of addresses: spaces for the windows of eight ranks.  Under TSan there is less room. */
static size_t span = (size_t)1 << 40;
static uint64_t base;
static int heap = -1;
static size_t used[EMU_DEVICES];
static uint64_t ids;
static int opened; /* kernels and copies that run */
static bool shut;  /* CUDAEMU_STRICT: the host cannot reach the devices' memory now */
emu_area *emu_areas;

void emu_memory_start(void) {
  if (base) return;
  shut = emu.strict;
  enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
  void *p = mmap(NULL, span, PROT_NONE, FLAGS, -1, 0);
  if (p == MAP_FAILED) p = mmap(NULL, span /= 4, PROT_NONE, FLAGS, -1, 0);
  heap = memfd_create("cudaemu-heap", MFD_CLOEXEC);
  if (p == MAP_FAILED || heap < 0 || ftruncate(heap, (off_t)span) != 0) {
    perror("cudaemu: no room for the devices' memory");
    abort();
  }
  base = (uint64_t)(uintptr_t)p;
}
bool emu_memory_is_device(uint64_t at) { return base && at - base < span; }
int emu_heap_fd(void) { return heap; }

/* ---- areas ---- */

emu_area *emu_area_of(uint64_t at) {
  emu_area *space = NULL;
  for (emu_area *a = emu_areas; a; a = a->next) {
    if (at - a->at >= a->bytes) continue;
    if (a->kind != EMU_SPACE) return a;
    space = a;
  }
  return space;
}
emu_area *emu_area_at(uint64_t at, emu_kind kind) {
  for (emu_area *a = emu_areas; a; a = a->next)
    if (a->at == at && a->kind == kind) return a;
  return NULL;
}
emu_area *emu_area_add(emu_kind kind, uint64_t at, size_t bytes) {
  emu_area *a = calloc(1, sizeof *a);
  if (!a) abort();
  *a = (emu_area){.kind = kind, .at = at, .bytes = bytes, .id = ++ids, .refs = 1, .device = -1, .next = emu_areas};
  emu_areas = a;
  emu_hold(CUDAEMU_AREAS + (int)kind, 1);
  return a;
}
void emu_area_drop(emu_area *a) {
  for (emu_area **at = &emu_areas; *at; at = &(*at)->next)
    if (*at == a) {
      *at = a->next;
      break;
    }
  emu_hold(CUDAEMU_AREAS + (int)a->kind, -1);
  free(a);
}

static const emu_area *in_the_way(uint64_t at, size_t bytes) {
  for (const emu_area *a = emu_areas; a; a = a->next)
    if (a->pages && a->kind != EMU_MAP && at < a->page + a->pages && a->page < at + bytes) return a;
  return NULL;
}
uint64_t emu_find_room(size_t bytes, size_t align, uint64_t wish) {
  static uint64_t last; /* addresses are not used again soon: stale ones are found */
  if (!last) last = base;
  if (wish && wish % align == 0 && wish - base < span && !in_the_way(wish, bytes + EMU_PAGE)) return wish;
  for (int round = 0; round < 2; round++) {
    uint64_t at = (last + align - 1) / align * align;
    while (at + bytes + EMU_PAGE <= base + span) {
      const emu_area *a = in_the_way(at, bytes + EMU_PAGE);
      if (!a) {
        last = at + bytes + EMU_PAGE;
        return at;
      }
      at = (a->page + a->pages + align - 1) / align * align;
    }
    last = base;
  }
  return 0;
}

static int rights(const emu_area *a) {
  if (a->phys && a->phys->multicast) return PROT_NONE; /* only multimem instructions go there */
  if (a->phys && a->phys->host) return a->by_host ? PROT_READ | PROT_WRITE : PROT_NONE;
  return a->accessible && !shut ? PROT_READ | PROT_WRITE : PROT_NONE;
}
bool emu_area_map(emu_area *a, int fd) {
  void *p = mmap((void *)(uintptr_t)a->page, a->pages, rights(a), MAP_SHARED | MAP_FIXED, fd, (off_t)a->offset);
  return p != MAP_FAILED;
}
void emu_area_unmap(emu_area *a) {
  void *p = mmap((void *)(uintptr_t)a->page, a->pages, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (p == MAP_FAILED) abort();
}
void emu_area_protect(emu_area *a) { mprotect((void *)(uintptr_t)a->page, a->pages, rights(a)); }

static void protect_all(void) {
  for (emu_area *a = emu_areas; a; a = a->next)
    if (a->kind == EMU_BLOCK || a->kind == EMU_MAP || a->kind == EMU_IMPORT) emu_area_protect(a);
}
/* To change the rights of all memory takes half of the time of some tests, and a host that reaches for it does so again
 * and again. */
enum { SHUT_ALWAYS = 16, SHUT_EVERY = 32 };
void emu_memory_open(void) {
  if (!emu.strict) return;
  pthread_mutex_lock(&emu_lock);
  opened++;
  if (shut) {
    shut = false;
    protect_all();
  }
  pthread_mutex_unlock(&emu_lock);
}
void emu_memory_close(void) {
  if (!emu.strict) return;
  static unsigned closed;
  pthread_mutex_lock(&emu_lock);
  if (--opened == 0 && (++closed <= SHUT_ALWAYS || closed % SHUT_EVERY == 0)) {
    shut = true;
    protect_all();
  }
  pthread_mutex_unlock(&emu_lock);
}
int emu_memory_device(uint64_t at) {
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_memory_is_device(at) ? emu_area_of(at) : NULL;
  int device = a ? a->device : -1;
  pthread_mutex_unlock(&emu_lock);
  return device;
}
void emu_memory_area(uint64_t at, uint64_t *begin, uint64_t *bytes, uint64_t *key) {
  struct stat s;
  *begin = *key = at & ~(uint64_t)(EMU_PAGE - 1);
  *bytes = EMU_PAGE;
  if (!emu_memory_is_device(at)) return;
  pthread_mutex_lock(&emu_lock);
  const emu_area *a = emu_area_of(at);
  if (a && a->kind != EMU_SPACE) {
    *begin = *key = a->at;
    *bytes = a->bytes;
    if (a->kind == EMU_MAP && a->phys && fstat(a->phys->fd, &s) == 0) *key = ((uint64_t)s.st_ino << 44) + a->offset;
  }
  pthread_mutex_unlock(&emu_lock);
}

/* Virtual memory of the host lies among that of devices: for tests whose cards take one and not the other. */
EXPORT extern int cudaemu_of_host(const void *at);
int cudaemu_of_host(const void *at) { return emu_memory_device((uint64_t)(uintptr_t)at) < 0; }

bool emu_take(int device, size_t bytes) {
  if (emu_fails(&emu.fail_alloc) || bytes > emu.memory - used[device]) return false;
  used[device] += bytes;
  return true;
}
void emu_give(int device, size_t bytes) { used[device] -= bytes; }

CUresult emu_await_all(void) {
  CUresult code = CUDA_SUCCESS;
  if (!emu_context(&code)) return code;
  if ((code = emu_capture_forbids()) != CUDA_SUCCESS) return code;
  for (int d = 0; d < emu.ndevices; d++) emu_await(emu_primary(d));
  return code;
}
/* CUDAEMU_SYNC_ALLOC: what is allocated or pinned outside of virtual memory comes after all work on the device. */
static void sync_alloc(CUcontext ctx) {
  if (emu.sync_alloc) emu_await(ctx);
}

/* ---- device memory ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes) {
  CUresult code = CUDA_SUCCESS;
  if (!ptr || !bytes) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (ctx) code = emu_capture_forbids();
  if (!ctx || code) return emu_unlock(code);
  sync_alloc(ctx);
  size_t rounded = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1), pages = (bytes + EMU_PAGE - 1) & ~(size_t)(EMU_PAGE - 1);
  if (!emu_take(ctx->device, pages)) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  uint64_t at = emu_find_room(pages, EMU_PAGE, 0);
  if (!at) {
    emu_give(ctx->device, pages);
    return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  }
  /* Strictly, it ends at a page's end: the next byte belongs to no allocation. */
  emu_area *a = emu_area_add(EMU_BLOCK, emu.strict ? at + pages - rounded : at, bytes);
  a->page = at;
  a->pages = pages;
  a->device = ctx->device;
  a->offset = at - base;
  a->accessible = true;
  if (!emu_area_map(a, heap)) {
    emu_give(a->device, pages);
    emu_area_drop(a);
    return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *ptr = a->at;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemFree_v2(CUdeviceptr ptr) {
  if (!ptr) return CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_at(ptr, EMU_BLOCK);
  if (!a) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  CUresult code = emu_await_all();
  if (code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return emu_unlock(code);
  emu_area_unmap(a);
  fallocate(heap, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)a->offset, (off_t)a->pages);
  emu_give(a->device, a->pages);
  emu_area_drop(a);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (ctx && free_bytes) *free_bytes = emu.memory - used[ctx->device];
  if (ctx && total_bytes) *total_bytes = emu.memory;
  return emu_unlock(code);
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr ptr) {
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_of(ptr);
  if (!a || a->kind == EMU_REGISTERED) return emu_unlock(CUDA_ERROR_NOT_FOUND);
  if (start) *start = a->at;
  if (bytes) *bytes = a->bytes;
  return emu_unlock(CUDA_SUCCESS);
}

/* ---- the host's ---- */

CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  if (!ptr || !bytes || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (ctx) code = emu_capture_forbids();
  if (!ctx || code) return emu_unlock(code);
  sync_alloc(ctx);
  if (emu_fails(&emu.fail_alloc)) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return emu_unlock(CUDA_ERROR_OUT_OF_MEMORY);
  emu_area_add(EMU_HOST, (uint64_t)(uintptr_t)p, bytes)->device = ctx->device;
  *ptr = p;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemFreeHost(void *ptr) {
  if (!ptr) return CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_at((uint64_t)(uintptr_t)ptr, EMU_HOST);
  if (!a) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  CUresult code = emu_await_all();
  if (code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return emu_unlock(code);
  munmap(ptr, a->bytes);
  emu_area_drop(a);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  uint64_t at = (uint64_t)(uintptr_t)ptr;
  if (!ptr || !bytes || flags & ~15u || emu_memory_is_device(at)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (!ctx) return emu_unlock(code);
  sync_alloc(ctx);
  for (emu_area *a = emu_areas; a; a = a->next)
    if (at < a->at + a->bytes && a->at < at + bytes) return emu_unlock(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  emu_area_add(EMU_REGISTERED, at, bytes)->device = ctx->device;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuMemHostUnregister(void *ptr) {
  CUresult code;
  pthread_mutex_lock(&emu_lock);
  sync_alloc(emu_context(&code));
  emu_area *a = emu_area_at((uint64_t)(uintptr_t)ptr, EMU_REGISTERED);
  if (a) emu_area_drop(a);
  return emu_unlock(a ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ptr, void *host, unsigned flags) {
  if (!ptr || flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_area_of((uint64_t)(uintptr_t)host);
  if (!a || (a->kind != EMU_HOST && a->kind != EMU_REGISTERED)) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
  *ptr = (CUdeviceptr)(uintptr_t)host;
  return emu_unlock(CUDA_SUCCESS);
}

/* ---- what a pointer is ---- */

static bool of_host(const emu_area *a) {
  return a->kind == EMU_HOST || a->kind == EMU_REGISTERED || (a->phys && a->phys->host);
}
static bool pointer_number(const emu_area *a, int which, CUdeviceptr ptr, uint64_t *x) {
  enum { RDMA_CAPABLE = 15, ACCESS_FLAGS = 16, MAPPING_SIZE = 18, MAPPING_BASE = 19, MEMORY_BLOCK_ID = 20 };
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *x = (uint64_t)(uintptr_t)emu_primary(a->device); return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *x = ptr; return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *x = of_host(a) ? ptr : 0; return of_host(a);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *x = a->id; return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *x = a->at; return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *x = a->bytes; return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *x = a->phys ? (uint64_t)a->phys->types : 0; return true;
    case ACCESS_FLAGS: *x = a->accessible || of_host(a) ? 3 : 0; return true;
    case MAPPING_SIZE: *x = a->bytes; return true;
    case MAPPING_BASE: *x = a->at; return true;
    case MEMORY_BLOCK_ID: *x = a->id; return true;
    case RDMA_CAPABLE: *x = !of_host(a); return true;
    default: return false;
  }
}
/* Attributes have 8, 4 or 1 bytes. */
static CUresult pointer_get(const emu_area *a, void *value, int which, CUdeviceptr ptr) {
  uint64_t x = 0;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = !a ? 0 : of_host(a) ? 1 : 2; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = a ? a->device : -2; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned char *)value = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *(unsigned char *)value = a && a->kind == EMU_BLOCK && emu.ipc;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned char *)value = a && a->kind != EMU_SPACE; return CUDA_SUCCESS;
    default: break;
  }
  bool have = a && pointer_number(a, which, ptr, &x);
  if (a && !have && which != CU_POINTER_ATTRIBUTE_HOST_POINTER) return CUDA_ERROR_INVALID_VALUE;
  if (which == 15)
    *(unsigned char *)value = (unsigned char)x;
  else
    memcpy(value, &x, 8);
  return have || !a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuPointerGetAttribute(void *value, int which, CUdeviceptr ptr) {
  CUresult code = CUDA_SUCCESS;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  if (!emu_context(&code)) return emu_unlock(code);
  emu_area *a = emu_area_of(ptr);
  return emu_unlock(a ? pointer_get(a, value, which, ptr) : CUDA_ERROR_INVALID_VALUE);
}
/* Memory that the driver does not know is no error here: its attributes are 0. */
CUresult cuPointerGetAttributes(unsigned n, int *which, void **values, CUdeviceptr ptr) {
  CUresult code = CUDA_SUCCESS;
  if (!n || !which || !values) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  if (!emu_context(&code)) return emu_unlock(code);
  emu_area *a = emu_area_of(ptr);
  for (unsigned i = 0; i < n; i++) {
    code = pointer_get(a, values[i], which[i], ptr);
    if (code && which[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) code = CUDA_SUCCESS;
    if (code) return emu_unlock(code);
  }
  return emu_unlock(CUDA_SUCCESS);
}
