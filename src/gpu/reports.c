/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels report to the host. */
#include "../kernels/cuda/work.h"
#include "gpu.h"
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
