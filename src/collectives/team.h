/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdbool.h>

/* The ranks of a communicator, and what can connect them. Equal on all ranks, because it is computed from facts that
 * all ranks exchanged at init. */
typedef struct hk_team {
  int nranks;
  int nhosts;         /* 1: all ranks share a host */
  int ranks_per_host; /* the largest number */
  int least_per_host; /* the smallest */
  bool multicast;     /* links of kind HK_LINK_MCAST_* exist (all ranks share memory, or a switch copies) */
  bool in_switch;     /* a switch inside the host reduces what all ranks send to one (NVLS) */
  bool in_network;    /* the network reduces what hosts send (CollNet) */
  bool overlap;       /* links move bytes while a rank works (GPUs); otherwise the rank's core does both */
} hk_team;
