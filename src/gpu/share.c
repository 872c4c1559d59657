/* SPDX-License-Identifier: Apache-2.0 */
/* Resources of a GPU that ranks and communicators share: multiprocessors and hardware queues. */
#include <stdlib.h>
#include "../base/log.h"
#include "code.h"
#include "gpu.h"

/* A kernel of a communicator waits for the kernels of its other ranks, so all of its blocks must run at once. If the
 * kernels of several communicators overlap, two GPUs may start different ones first, and each waits for kernels that do
 * not fit any more. So the blocks of all must fit. Four communicators fit in any order: 4 * 32 of the 132
 * multiprocessors of an H100, 4 * 24 of the 108 of an A100. The limit leaves three quarters of a GPU to the user's
 * kernels, as with NCCL. */
enum { COMMUNICATORS_AT_ONCE = 4, BLOCKS_BEFORE_90 = 24 };

unsigned hk_gpu_share(const hk_gpu_share_facts *capacity) {
  uint64_t each = capacity->resident / COMMUNICATORS_AT_ONCE / capacity->ranks;
  uint64_t most = capacity->sm < 90 ? BLOCKS_BEFORE_90 : HK_GPU_BLOCKS;
  if (capacity->limit && capacity->limit < most) most = capacity->limit;
  if (each > most) each = most;
  return each ? (unsigned)each : 1;
}

unsigned hk_gpu_overlap(const hk_gpu_share_facts *capacity) {
  return (unsigned)(capacity->resident / capacity->ranks / hk_gpu_share(capacity));
}

/* Streams of one process and GPU share the hardware queues: 8, unless CUDA_DEVICE_MAX_CONNECTIONS sets another number,
 * at most 32. A queue is in order. If the streams of ranks A and B share one, A's second kernel waits for A's first and
 * blocks B's first behind it. A's first kernel waits for B's first: a deadlock. */
enum {
  QUEUES_BY_DEFAULT = 8,
  QUEUES_AT_MOST = 32,
  STREAMS_OF_A_RANK = 3 /* the call's, the library's, and one more of the user's */
};

void hk_gpu_check_queues(int ranks, int device) {
  const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int queues = set && atoi(set) > 0 ? atoi(set) : QUEUES_BY_DEFAULT;
  if (queues > QUEUES_AT_MOST) queues = QUEUES_AT_MOST;
  if (ranks < 2 || ranks * STREAMS_OF_A_RANK <= queues) return;
  HK_WARN_ONCE(
      "%d ranks of this process share GPU %d, which has %d hardware queues for their streams "
      "(CUDA_DEVICE_MAX_CONNECTIONS%s%s): if ranks' streams share a queue, their kernels may wait for each other for "
      "ever. %s",
      ranks, device, queues, set ? "=" : " is not set", set ? set : "",
      queues < QUEUES_AT_MOST ? "Set CUDA_DEVICE_MAX_CONNECTIONS=32 before the program starts CUDA"
                              : "32 is the most: let fewer ranks share a GPU, or make them processes");
}
