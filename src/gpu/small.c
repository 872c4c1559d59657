/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the kernel of small messages. */
#include "../kernels/gpu_small.h"
#include "code.h"
#include "launch.h"

/* One thread for each 8 bytes. */
static unsigned small_threads_for(const hk_gpu_code *k, uint64_t bytes) {
  const uint64_t wanted = hk_round_up(bytes, 256) / 8;
  return wanted < k->small_threads ? (unsigned)wanted : k->small_threads;
}

hk_status hk_gpu_small_launch(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q, bool *done) {
  hk_gpu_small_batch batch; /* not initialised: unset parts are not passed to the kernel */
  hk_kernel_launch l = {.function = g->code->small, .here = at[0]->state.here, .param = &batch};
  *done = false;
  for (size_t i = 0; i < n; i++) {
    if (!at[i]->small || at[i]->chained || at[i]->then) return HK_OK;
    l.blocks += hk_gpu_small_blocks(&at[i]->work);
  }
  if (l.blocks > HK_GPU_SMALL_BATCH) return HK_OK;
  hk_gpu_small *to = batch.block;
  for (size_t i = 0; i < n; i++) {
    hk_gpu_small *first = to;
    to = hk_gpu_small_fill(to, at[i]->small, &at[i]->work);
    const unsigned threads = small_threads_for(g->code, first->bytes); /* the first channel has the most bytes */
    if (threads > l.threads) l.threads = threads;
  }
  l.param_bytes = l.blocks * sizeof *to;
  *done = true;
  return hk_gpu_launch(g, at[0]->call, &l, q);
}
