/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a communicator's decisions. */
#pragma once
#include "../decide/machine.h"

/* A decision that holds for all plain calls of a collective and size class (hk_size_class). */
typedef struct hk_class_decision {
  uint8_t known; /* 1 + the kind of call (choose.c); 0: not yet decided */
  uint8_t algorithm, protocol;
  uint16_t channels;
} hk_class_decision;

/* Equal on all ranks, fixed at init. */
typedef struct hk_selection {
  hk_machine machine;
  struct hk_layout *layout;       /* NULL: one host */
  struct hk_overrides *overrides; /* decide/overrides.h */
  struct hk_tuner *tuner;         /* NULL: none */
  uint64_t sums;                  /* the reductions of the network, if machine.in_network: hk_collnet_sum bits */
  int network_calls;              /* HK_COLLNET_GATHERS, HK_COLLNET_SCATTERS */
  unsigned overruled;             /* bits 1u << hk_coll: the warning of hk_decision.overruled has been logged */
  hk_class_decision *classes;     /* HK_COLL_COUNT x HK_SIZE_CLASSES */
} hk_selection;
