/* SPDX-License-Identifier: Apache-2.0 */
/* Access of devices to virtual memory. For classic memory a context gets access once; for virtual memory each mapping
 * lists the devices with access. Here these are the devices that this process has opened, which are those of its ranks.
 * Other devices would cost a mapping each, and the driver may refuse a device that another process uses exclusively. A
 * device that is opened later gets access to the existing mappings. */
#include <pthread.h>
#include <stdlib.h>
#include "../base/fork.h"
#include "cuda.h"

enum { MOST_DEVICES = 64, OF_HOST = -1 };
typedef struct mapping {
  CUdeviceptr at;
  size_t bytes;
  CUdevice owner; /* OF_HOST: the host */
  struct mapping *next;
} mapping;

/* Global, because contexts and addresses belong to the process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static unsigned users[MOST_DEVICES]; /* open hk_cudas of each device */
static mapping *mappings;

static bool cuda_access_reaches(CUdevice device, CUdevice owner) {
  int can = 0;
  if (owner == OF_HOST || device == owner) return true;
  return hk_cu.DeviceCanAccessPeer(&can, device, owner) == CUDA_SUCCESS && can;
}
static CUmemAccessDesc cuda_access_for_device(CUdevice device) {
  return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

hk_status hk_cuda_access_begin(const hk_cuda *d) {
  hk_status rc = HK_OK;
  const CUmemAccessDesc access = cuda_access_for_device(d->device);
  if (d->device < 0 || d->device >= MOST_DEVICES) return HK_OK; /* it gets access to its own memory only */
  pthread_mutex_lock(&lock);
  for (const mapping *m = users[d->device] ? NULL : mappings; m; m = m->next)
    if (cuda_access_reaches(d->device, m->owner))
      HK_CUDA_TRY(hk_cu.MemSetAccess(m->at, m->bytes, &access, 1), out,
                  "device %d: access to %zu bytes that are mapped already", d->base.limits.ordinal, m->bytes);
  users[d->device]++;
out:
  pthread_mutex_unlock(&lock);
  return rc;
}

void hk_cuda_access_end(const hk_cuda *d) {
  if (d->device < 0 || d->device >= MOST_DEVICES) return;
  pthread_mutex_lock(&lock);
  users[d->device]--;
  pthread_mutex_unlock(&lock);
}

/* Gives access to `own`, then to the used devices that reach the owner's memory. Remembers the mapping for devices that
 * are opened later. Under the lock. */
static CUresult cuda_access_let_in(CUmemAccessDesc own, CUdevice owner, CUdeviceptr at, size_t bytes) {
  CUmemAccessDesc access[MOST_DEVICES + 1] = {own};
  size_t n = 1;
  mapping *m = malloc(sizeof *m);
  if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
  for (CUdevice i = 0; i < MOST_DEVICES; i++)
    if (users[i] && i != owner && cuda_access_reaches(i, owner)) access[n++] = cuda_access_for_device(i);
  CUresult code = hk_cu.MemSetAccess(at, bytes, access, n);
  if (code != CUDA_SUCCESS) {
    free(m);
    return code;
  }
  *m = (mapping){at, bytes, owner, mappings};
  mappings = m;
  return CUDA_SUCCESS;
}

static CUresult cuda_access_map(CUmemAccessDesc own, CUdevice owner, CUdeviceptr at,
                                CUmemGenericAllocationHandle handle, size_t bytes, bool for_peers) {
  CUresult code = hk_cu.MemMap(at, bytes, 0, handle, 0);
  if (code != CUDA_SUCCESS) return code;
  pthread_mutex_lock(&lock);
  code = for_peers ? cuda_access_let_in(own, owner, at, bytes) : hk_cu.MemSetAccess(at, bytes, &own, 1);
  pthread_mutex_unlock(&lock);
  if (code != CUDA_SUCCESS) hk_cu.MemUnmap(at, bytes);
  return code;
}

hk_status hk_cuda_map_at(const hk_cuda *d, CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes,
                         bool for_peers) {
  HK_CUDA_OR_RETURN(cuda_access_map(cuda_access_for_device(d->device), d->device, at, handle, bytes, for_peers),
                    "device %d: mapping %zu bytes for %s", d->base.limits.ordinal, bytes,
                    for_peers ? "the devices of this process" : "itself");
  return HK_OK;
}

CUresult hk_cuda_map_host_at(const hk_cuda *d, CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes) {
  const CUmemAccessDesc own = {hk_cuda_host_properties(d).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return cuda_access_map(own, OF_HOST, at, handle, bytes, true);
}

CUresult hk_cuda_unmap(CUdeviceptr at, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (mapping **m = &mappings; *m; m = &(*m)->next)
    if ((*m)->at == at) {
      mapping *gone = *m;
      *m = gone->next;
      free(gone);
      break;
    }
  CUresult code = hk_cu.MemUnmap(at, bytes);
  pthread_mutex_unlock(&lock);
  return code;
}
