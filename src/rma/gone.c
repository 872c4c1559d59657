/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/thread.h"
#include "../comm/children.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "rma_internal.h"

static const uint64_t NEWS_NS = 200000000u; /* time for the notice of a refused window */

hk_status hk_rma_is_gone(const hk_call *call, uint64_t number) {
  char words[HK_EVENT_TEXT];
  const uint64_t until = hk_now_ns() + NEWS_NS;
  hk_wait_env env = {.spins = 0};
  bool refused_there;
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (!(refused_there = hk_children_refused_call(call->comm, HK_CALL_WINDOW, number, words)) && hk_now_ns() < until)
    (void)hk_wait_nap(&w, -1, HK_RMA_NAP_NS);
  if (refused_there)
    return HK_FAIL(HK_ERR_USAGE, "rank %d puts to window %llu, which rank %d does not have: %s", call->comm->rank,
                   (unsigned long long)number, call->root, words);
  return HK_FAIL(HK_ERR_USAGE,
                 "rank %d puts to window %llu of rank %d, which has deregistered it: a window must stay registered "
                 "until all puts to it have arrived",
                 call->comm->rank, (unsigned long long)number, call->root);
}
