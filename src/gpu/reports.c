/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels report to the host. */
#include "../kernels/cuda/work.h"
#include "memory.h"
#include "run.h"

bool hk_gpu_kernels_began(const hk_gpu *g) {
  hk_gpu_state *s = g->state.host;
  /* relaxed: nothing else depends on it */
  return __atomic_exchange_n(&s->begun, 0, __ATOMIC_RELAXED) != 0;
}

int hk_gpu_kernels_mismatch(const hk_gpu *g) {
  hk_gpu_state *s = g->state.host;
  /* acquire: the kernel wrote the peer before it wrote the error; relaxed: read after that */
  if (__atomic_load_n(&s->error, __ATOMIC_ACQUIRE) != HK_GPU_MISMATCH) return -1;
  return (int)__atomic_load_n(&s->peer, __ATOMIC_RELAXED);
}

hk_status hk_gpu_reports_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  HK_OR_RETURN(g->device->ops->memory->alloc_host(g->device, sizeof(hk_gpu_state) + HK_GPU_TABLES_BYTES, &g->state));
  HK_OR_RETURN(hk_gpu_tables_begin(g->memory, &g->state, sizeof(hk_gpu_state)));
  pthread_mutex_lock(&c->health.lock); /* from now on hk_comm_fail ends kernels too */
  c->health.stop_kernels = &((hk_gpu_state *)g->state.host)->abort;
  if (atomic_load(&c->health.failure)) *c->health.stop_kernels = 1;
  pthread_mutex_unlock(&c->health.lock);
  return HK_OK;
}
