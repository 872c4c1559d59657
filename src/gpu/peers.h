/* SPDX-License-Identifier: Apache-2.0 */
/* The other ranks of a communicator on GPUs. */
#ifndef HK_GPU_PEERS_H
#define HK_GPU_PEERS_H
#include "../core/comm.h"

bool hk_gpu_is_remote(ncclComm_t c, int peer); /* in another process */
/* An allgather of all ranks of the communicator `c`; with 0 bytes a barrier. */
hk_status hk_gpu_exchange(void *c, void *rows, size_t row_bytes);
int hk_gpu_most_equal(uint64_t *ids, int n); /* the count of the most frequent id; sorts them */
#endif
