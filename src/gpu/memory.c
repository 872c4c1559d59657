/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of ncclMemAlloc. */
#include <pthread.h>
#include <stdlib.h>
#include "gpu.h"
#include "view.h"

typedef struct allocation {
  hk_memory memory;
  hk_device *device;
  struct allocation *next;
} allocation;

/* State of the process: ncclMemFree gets only an address. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation *all;

hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out) {
  hk_status rc = HK_OK;
  allocation *a = calloc(1, sizeof *a);
  if (!a) return HK_FAIL_ERRNO("no memory for an allocation");
  HK_TRY(hk_cuda_open(device, &a->device), undo);
  HK_TRY(a->device->ops->alloc(a->device, bytes, &a->memory), undo);
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
  hk_gpu_views_forget(p, a->memory.bytes);
  *rc = a->device->ops->release(a->device, &a->memory);
  a->device->ops->close(a->device);
  free(a);
  return true;
}
