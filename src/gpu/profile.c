/* SPDX-License-Identifier: Apache-2.0 */
#include "../core/call.h"
#include "../decide/protocol.h"
#include "../kernels/plan.h"
#include "../program/program.h"
#include "../run/profiler.h"
#include "../run/run.h"
#include "launch.h"

void *hk_gpu_profile(const hk_call *call, bool by_copies) {
  const hk_plan *plan;
  const hk_launch *l;
  ncclComm_t c = call->comm;
  if (!c->profiler) return NULL;
  if (call->coll == HK_SENDRECV) return hk_profile_transfer(c->profiler, call, NULL);
  if (by_copies) return hk_profile_copies(c->profiler, call);
  if (hk_choose(c, call, &plan, &l) != HK_OK) return NULL; /* it was chosen before, so this is a cache lookup */
  return hk_profile_enqueued(c->profiler, call, plan->program->algorithm, hk_protocols[l->protocol].name,
                             plan->channels);
}
