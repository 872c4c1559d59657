/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <nccl.h>
#include "../core/call.h"
#include "../kernels/plan.h"

/* The newest decision for a collective, so that an equal call needs no new one. */
typedef struct hk_choice {
  size_t count;  /* elements of a block; the decision was made for it */
  uint64_t kind; /* hk_call.kind, with data type and operator */
  uint8_t dtype, redop;
  bool valid, asks;
  hk_call_options options;
  hk_plan *plan;
  hk_launch launch;
} hk_choice;

/* Number of cached decisions for earlier calls, found by a hash. An application that alternates between some sizes
 * decides once for each. */
enum { HK_CHOICES_KEPT = 64 };

typedef struct hk_plans {
  hk_choice last[HK_COLL_COUNT];
  hk_choice kept[HK_CHOICES_KEPT];
  hk_plan *all;
  char *scratch;
  size_t scratch_bytes;
} hk_plans;

void hk_plan_free(ncclComm_t c, hk_plan *plan); /* NULL is fine */
