/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks and communicators have together of a GPU: its multiprocessors and hardware queues. */
#include <stdlib.h>
#include "../base/log.h"
#include "gpu.h"

/* A kernel of a communicator waits for those of its other ranks, so all of its blocks must run at once.  If the kernels of several
 * communicators overlap, a GPU may have begun those of some, another GPU those of others, and each waits for what has no room:
 * the blocks of all must fit.  Four communicators do, whatever the order: 4 * 32 of the 132 multiprocessors of an H100,
 * 4 * 24 of the 108 of an A100.  The cap leaves the user's kernels three quarters of a GPU, as with NCCL. */
enum { COMMUNICATORS_AT_ONCE = 4, BLOCKS_BEFORE_90 = 24 };

unsigned hk_gpu_share(const hk_gpu_room *room) {
  uint64_t each = room->resident / COMMUNICATORS_AT_ONCE / room->ranks;
  uint64_t most = room->sm < 90 ? BLOCKS_BEFORE_90 : HK_GPU_BLOCKS;
  if (room->wished && room->wished < most) most = room->wished;
  if (each > most) each = most;
  return each ? (unsigned)each : 1;
}

unsigned hk_gpu_overlap(const hk_gpu_room *room) {
  return (unsigned)(room->resident / room->ranks / hk_gpu_share(room));
}

/* Streams of one process and GPU share the hardware queues: 8, if CUDA_DEVICE_MAX_CONNECTIONS does not say another number, and 32
 * at most.  A queue is in order.  If two ranks' streams share one, a rank's second kernel, which waits for its first, holds up
 * the other rank's first, for which that one waits: no kernel of the two ever ends. */
enum {
  QUEUES_BY_DEFAULT = 8,
  QUEUES_AT_MOST = 32,
  STREAMS_OF_A_RANK = 3 /* the call's, ours, one more of the user's */
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
