/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a communicator's decisions. */
#pragma once
#include "../decide/machine.h"

/* Equal on all ranks, fixed at init. */
typedef struct hk_selection {
  hk_machine machine;
  struct hk_layout *layout;       /* NULL: one host */
  struct hk_overrides *overrides; /* decide/overrides.h */
  struct hk_tuner *tuner;         /* NULL: none */
  uint64_t sums;                  /* the reductions of the network, if machine.in_network: hk_collnet_sum bits */
  int network_calls;              /* HK_COLLNET_GATHERS, HK_COLLNET_SCATTERS */
  unsigned overruled;             /* bits 1u << hk_coll: the warning of hk_decision.overruled has been logged */
} hk_selection;
