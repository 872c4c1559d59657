/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of one communicator in a group, on host memory. */
#pragma once
#include <nccl.h>
#include "../base/wait.h"
#include "../kernels/exec.h"

typedef struct hk_collectives {
  const struct hk_call **calls;
  size_t n, next;
  uint64_t waited; /* in the one that runs, before the group's current wait */
  bool fresh;      /* it began after that wait */
  bool running;
  void *memory;   /* free() it */
  uint64_t began; /* the one that runs */
  hk_exec exec;   /* of that; the last member, because it is begun before it is used */
} hk_collectives;

/* Runs them in turn until one must wait in `w`, the group's wait. */
hk_status hk_collectives_step(ncclComm_t c, hk_collectives *l, const hk_waiter *w, bool *moved);
