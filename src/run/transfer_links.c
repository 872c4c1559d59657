/* SPDX-License-Identifier: Apache-2.0 */
/* Binds the programs of sends and receives to links. */
#include <stdlib.h>
#include "../collectives/transfer.h"
#include "../core/call.h"
#include "../core/links.h"
#include "../failure/mismatch.h"
#include "../kernels/steps.h"
#include "run.h"
#include "transfer.h"

static hk_status transfer_links_make(ncclComm_t c, const hk_call *call, hk_link *l, hk_transfer_run **out) {
  hk_program *program;
  hk_status rc = hk_transfer_build(c->rank, c->nranks, call->root, call->p2p == HK_P2P_SEND, &program);
  if (rc != HK_OK) return rc;
  hk_plan plan = {.program = program, .channels = 1, .orders = 1, .max_operands = 1, .proxied = l->proxied};
  hk_transfer_run *r = malloc(sizeof *r + hk_exec_bytes(&plan));
  if (!r) {
    hk_program_free(program);
    return HK_FAIL_ERRNO("no memory for transfers with rank %d", call->root);
  }
  *r = (hk_transfer_run){.plan = plan, .link = l, .launch.unit = 1};
  r->plan.links = &r->link;
  r->plan.steps = hk_steps_make(&r->plan);
  hk_run_spread(c);
  *out = r;
  return HK_OK;
}

void hk_transfers_free(ncclComm_t c) {
  hk_link_walk walk = {0};
  for (hk_wired_link *l; (l = hk_wire_next(c, &walk));) {
    hk_transfer_run *run = l->transfer;
    l->transfer = NULL;
    if (!run) continue;
    hk_program_free((hk_program *)(uintptr_t)run->plan.program);
    free(run->plan.steps);
    free(run);
  }
}

hk_status hk_transfer_first(const hk_call *call, hk_link_kind kind, hk_wired_link **out) {
  hk_link_key key = {.peer = call->root, .kind = (uint8_t)kind, .channel = HK_CHANNEL_P2P};
  hk_status rc = hk_wire_link(call->comm, key, out);
  if (rc == HK_OK && !(*out)->transfer) rc = transfer_links_make(call->comm, call, &(*out)->link, &(*out)->transfer);
  return rc;
}

void hk_transfer_differs(const hk_transfer *t) {
  const hk_transfer_run *r = t->wired->transfer;
  hk_mismatch_transfer(t->call->comm, t->call, r->launch.total, r->exec.bad_bytes);
}
