/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdint.h>

/* What every rank knows about every rank after init's exchange. */
typedef struct hk_peer {
  uint64_t host;    /* equal: the ranks can share memory */
  uint64_t process; /* equal: the ranks are threads of one process, addresses mean the same */
  int32_t pid;
  uint32_t pid_space; /* the namespace of `pid`; 0: unknown */
  int32_t device;     /* -1: host memory */
  int32_t cores;      /* number of cores on which the ranks of its host may run together; valid from `join` on */
} hk_peer;
