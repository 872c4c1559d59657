/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of a group. */
#ifndef HK_GPU_TRANSFERS_H
#define HK_GPU_TRANSFERS_H
#include "gpu.h"

struct hk_gpu_work; /* kernels/cuda/work.h */

/* How the links of large sends and receives, and their blocks, are chosen. */
typedef struct hk_gpu_split {
  unsigned parts, net_parts; /* channels that a large send or receive may use; equal on all ranks */
  size_t part_bytes;         /* the least that each of these channels carries */
  struct {
    unsigned links;
    struct hk_gpu_work *last[HK_GPU_BLOCKS]; /* [block] the newest work of each block */
  } turn;                                    /* while a table of transfers is filled */
} hk_gpu_split;
#endif
