/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives by copy engines. */
#ifndef HK_GPU_COPY_H
#define HK_GPU_COPY_H
#include "../core/comm.h"

struct hk_shared; /* transport/cuda/share.h */

typedef struct hk_gpu_copies {
  bool usable;             /* copy engines are requested and can be used */
  struct hk_shared *words; /* [nranks]: words of a rank; of one in another process: the mapping */
  char **words_at;         /* [nranks]: addresses of these words for the GPU */
  _Atomic(bool) used;      /* a call has used copy engines */
} hk_gpu_copies;

/* Decides whether copy engines are used; by all ranks.  asked: this rank requests them; all: all ranks request them and
 * can use them; alone: no two ranks share a GPU. */
hk_status hk_gpu_copy_choose(ncclComm_t c, bool asked, bool all, bool alone);
/* Releases the streams of a failed communicator that wait for other ranks.  Repeat it until they have ended. */
void hk_gpu_copy_free(ncclComm_t c);
void hk_gpu_copy_end(ncclComm_t c); /* after its streams have ended */
#endif
