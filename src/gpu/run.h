/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_RUN_H
#define HK_GPU_RUN_H
#include "../base/status.h"

struct hk_call;
struct hk_gpu_launch_item; /* launch.h */

/* The stages of a communicator's collectives in the current group. */
typedef struct hk_gpu_stage {
  struct hk_gpu_launch_item *last; /* the newest collective; NULL: none */
  unsigned stages;                 /* stages so far */
  unsigned length;                 /* collectives in the newest stage */
  size_t scratch;                  /* bytes of scratch that the newest stage uses */
} hk_gpu_stage;

/* Enqueues calls, all of communicators on GPUs. */
hk_status hk_gpu_run(const struct hk_call *calls, size_t n);
#endif
