/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_RUN_PLANS_H
#define HK_RUN_PLANS_H
#include "../core/call.h"
#include "../kernels/plan.h"

/* The newest decision for a collective, so that an equal call needs no new one. */
typedef struct hk_choice {
  size_t count;  /* of a block, for which it was made */
  uint64_t kind; /* of the call, with its data type and operator; as in hk_call */
  uint8_t dtype, redop;
  bool valid, asks;
  hk_call_options options;
  hk_plan *plan;
  hk_launch launch;
} hk_choice;

/* Decisions for earlier calls, found by a hash: programs that use some sizes in turn decide once for each. */
enum { HK_CHOICES_KEPT = 64 };

typedef struct hk_plans {
  hk_choice last[HK_COLL_COUNT];
  hk_choice kept[HK_CHOICES_KEPT];
  hk_plan *all;
  char *scratch;
  size_t scratch_bytes;
} hk_plans;
#endif
