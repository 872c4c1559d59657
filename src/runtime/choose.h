/* SPDX-License-Identifier: Apache-2.0 */
/* The plans of a communicator, and which of them runs a call. */
#ifndef HK_RUNTIME_CHOOSE_H
#define HK_RUNTIME_CHOOSE_H
#include "../kernels/exec.h"
#include "call.h"

/* The newest decision for a collective, so that an equal call needs no new one. */
typedef struct hk_choice {
  size_t count;
  int root;
  uint8_t dtype, redop;
  bool valid;
  hk_call_options options;
  hk_plan *plan;
  hk_launch launch;
} hk_choice;

typedef struct hk_plans {
  hk_choice last[HK_COLL_COUNT];
  hk_plan *all;
  char *scratch;
  size_t scratch_bytes;
} hk_plans;

/* Writes the plan and the launch arguments of a collective; both are valid until the next call of the same
 * collective. */
hk_status hk_choose(ncclComm_t c, const hk_call *op, const hk_plan **plan, const hk_launch **launch);
/* HK_ERR_ARGUMENT if none of the algorithms and protocols of op->options.only can run the call. */
hk_status hk_choose_check(ncclComm_t c, const hk_call *op, const char *who);
/* Equal calls have equal signatures on all ranks; never 0. */
uint32_t hk_choose_signature(const hk_call *op);
double hk_choose_price(ncclComm_t c, const hk_call *op); /* microseconds, by the cost model */
hk_status hk_choose_scratch(ncclComm_t c, size_t bytes, void **out);
void hk_plans_free(ncclComm_t c);
#endif
