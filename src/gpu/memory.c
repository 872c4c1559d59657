/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of ncclMemAlloc, and the check of users' pointers. */
#include "memory.h"
#include <pthread.h>
#include <stdlib.h>
#include "../base/fork.h"
#include "buffer.h"
#include "gpu.h"

typedef struct allocation {
  hk_memory memory;
  hk_device *device;
  struct allocation *next;
} allocation;

/* Global: ncclMemFree gets only an address. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static allocation *all;

hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out) {
  hk_status rc = HK_OK;
  allocation *a = calloc(1, sizeof *a);
  if (!a) return HK_FAIL_ERRNO("no memory for an allocation");
  HK_TRY(hk_cuda_open(device, &a->device), undo);
  /* Memory of any size may become a window, which other processes map. So not `alloc`, which gives small pieces of a
   * page. */
  if (bytes && bytes <= SIZE_MAX / 2)
    HK_TRY(a->device->ops->memory->alloc_shared(a->device, bytes, bytes, true, &a->memory), undo);
  else
    HK_TRY(a->device->ops->memory->alloc(a->device, bytes, &a->memory), undo);
  *out = a->memory.base;
  pthread_mutex_lock(&lock);
  a->next = all;
  all = a;
  pthread_mutex_unlock(&lock);
  return HK_OK;
undo:
  if (a->device) a->device->ops->close(a->device);
  free(a);
  return rc;
}

bool hk_gpu_mem_free(void *p, hk_status *rc) {
  pthread_mutex_lock(&lock);
  allocation **at = &all;
  while (*at && (*at)->memory.base != p) at = &(*at)->next;
  allocation *a = *at;
  if (a) *at = a->next;
  pthread_mutex_unlock(&lock);
  if (!a) return false;
  hk_gpu_buffers_forget(p, a->memory.bytes);
  *rc = a->device->ops->memory->release(a->device, &a->memory);
  a->device->ops->close(a->device);
  free(a);
  return true;
}

/* ---- whose memory a pointer is ---- */

hk_status hk_gpu_check_pointer(ncclComm_t c, const char *what, const void *p, size_t bytes) {
  const hk_gpu *g = hk_gpu_of(c);
  hk_gpu_checked *k = g->checked;
  uintptr_t begin = (uintptr_t)p, end = begin + bytes;
  hk_pointer whose;
  for (int i = 0; i < HK_GPU_RANGES; i++)
    if (begin >= k->good[i].begin && end <= k->good[i].end) return HK_OK;
  HK_OR_RETURN(g->device->ops->memory->pointer(g->device, p, &whose));
  if (whose.kind == HK_POINTER_HOST) {
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s %p is host memory, but this communicator works on GPU %d: give memory of that GPU, or set "
                   "HOCKET_DEVICE=host for communicators on host memory",
                   what, p, c->device);
  }
  if (whose.kind == HK_POINTER_DEVICE && whose.device != c->device) {
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s %p is memory of GPU %d, but this communicator works on GPU %d: give memory of that GPU, or make "
                   "the communicator with GPU %d current",
                   what, p, whose.device, c->device, whose.device);
  }
  /* Some allocators map physical allocations next to each other, so a buffer may span several. */
  if (whose.base && whose.bytes && end > whose.base + whose.bytes) {
    hk_pointer last;
    HK_OR_RETURN(g->device->ops->memory->pointer(g->device, (const void *)(end - 1), &last));
    if (last.kind == HK_POINTER_HOST)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s %p: the call's %zu bytes do not fit its allocation, which ends after %zu",
                     what, p, bytes, (size_t)(whose.base + whose.bytes - begin));
    return HK_OK;
  }
  if (whose.base && whose.bytes) {
    k->good[k->next].begin = whose.base;
    k->good[k->next].end = whose.base + whose.bytes;
    k->next = (k->next + 1) % HK_GPU_RANGES;
  }
  return HK_OK;
}
