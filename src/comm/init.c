/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a working communicator from a unique id or a parent. */
#include <hocket.h> /* HOCKET_MAJOR */
#include <stdlib.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../base/service.h"
#include "../boot/bootstrap.h"
#include "../core/comm.h"
#include "../failure/failure.h"
#include "../failure/flight.h"
#include "../failure/watch.h"
#include "children.h"
#include "ras_part.h"

/* Another rank revoked the communicator. False if this rank already knows of a failure, which it handles itself, or if
 * its init is not complete: all ranks have then sent the init's last messages, so it ends by itself. */
static bool init_revoked_by(ncclComm_t c, int rank) {
  if (atomic_load(&c->health.failure)) return false;
  atomic_store(&c->health.revoker, rank);
  atomic_fetch_or(&c->health.revoked, HK_REVOKED_ELSEWHERE);
  return atomic_load(&c->health.progress) != HK_IN_PROGRESS;
}

/* On a thread of the bootstrap: what an event means in addition to a failure (hk_failure_received). */
static void init_on_event(void *arg, const hk_event *e) {
  ncclComm_t c = arg;
  if (e->kind == HK_EVENT_SHRINK) hk_children_heard(c, e);
  if (e->kind == HK_EVENT_DEAD) hk_ras_part_heard_death();
  if (e->kind == HK_EVENT_REVOKE && init_revoked_by(c, e->rank)) hk_failure_received(c, e);
}

/* Pairs with init_revoked_by: at least one of the two threads sees what the other has set. */
static void init_revoked_in_init(ncclComm_t c) {
  char text[96];
  snprintf(text, sizeof text, "rank %d revoked the communicator (ncclCommRevoke)", atomic_load(&c->health.revoker));
  hk_comm_fail(c, HK_ERR_REMOTE, text);
}

/* The init is over: returns the status that all ranks agree on, and tells the other ranks of a failure of this one. */
static hk_status init_over(ncclComm_t c, const hk_init *how, hk_children_watch *watch, hk_status rc) {
  rc = hk_children_watch_end(watch, rc);
  const bool explained = watch->verdict[0] || watch->settled;
  if (explained) { /* all members report it in these words, whichever of them saw it first */
    hk_event e = {.kind = HK_EVENT_ERROR, .rank = c->rank, .from = c->rank, .code = (int32_t)rc};
    snprintf(e.text, sizeof e.text, "%s", hk_last_error());
    hk_failure_record(c, &e);
  }
  if (rc == HK_OK) return rc;
  const int failure = atomic_load(&c->health.failure);
  /* An error of this rank's own is its cause, whatever the others have done since. */
  const bool own = hk_lacks(rc) && (!failure || failure == HK_ERR_REMOTE);
  if (c->bootstrap && atomic_load(&c->health.closing) == HK_CLOSING_ABORT)
    hk_bootstrap_announce(c->bootstrap, &(hk_event){.kind = HK_EVENT_ABORT, .rank = c->rank});
  else if (c->bootstrap)
    rc = hk_comm_failed(c, rc); /* the others wait for this rank */
  else if (!explained && !own && how->parent && hk_children_parent_failed(how->parent))
    rc = hk_failure_resolve(how->parent, NULL); /* that failure ended the exchange */
  else if (!explained && !own && failure)
    rc = hk_failure_resolve(c, NULL); /* its event has the text */
  if (rc != HK_OK) hk_comm_fail(c, rc, hk_last_error());
  return rc;
}

hk_status hk_comm_init(ncclComm_t c, const hk_init *how) {
  hk_status rc = HK_OK;
  uint64_t begin = hk_now_ns(), joined;
  hk_children_watch watch = {0};
  /* Members of a parent report over the parent, which needs no descriptor more. */
  int spare = how->parent && !how->grows ? -1 : hk_bootstrap_spare();
  hk_bootstrap_options o = {.rank = c->rank,
                            .nranks = c->nranks,
                            .name = c->options.name,
                            .settings = c->settings,
                            .wait = &c->wait,
                            .on_event = init_on_event,
                            .on_failure = hk_failure_received,
                            .report = hk_watch_report,
                            .meter = c->order.meter,
                            .spare = &spare,
                            .arg = c};
  if (c->rank == 0) hk_param_report_names(true);
  hk_children_watch_begin(&watch, c, how); /* first: members learn of a failure from here on */
  rc = hk_ras_part_begin(c);
  if (c->lender)
    c->service = hk_service_share(c->lender->service);
  else if (rc == HK_OK)
    rc = hk_service_new(&c->service, "hocket-service");
  if (rc != HK_OK) hk_bootstrap_end_spare(&spare);
  if (rc != HK_OK && !how->parent) hk_comm_report_abort(c->settings, how);
  HK_TRY(rc, out);
  hk_ras_part_watch(c);
  o.service = c->service;
  hk_flight_watch(c);
  if (how->parent && how->grows)
    HK_TRY(hk_children_grow(c, how, &o), out);
  else
    HK_TRY(how->parent ? hk_children_join(c, how, &o) : hk_comm_join(c, how, &o), out);
  if (c->nranks == 0) goto out;
  joined = hk_now_ns();
  if (c->rank == 0 && hk_log_version_due())
    HK_LOG_AT(HK_LOG_VERSION, ~0u, "NCCL version %d.%d.%d+hocket%d.%d.%d", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
              HOCKET_MAJOR, HOCKET_MINOR, HOCKET_PATCH);
  HK_TRY(hk_comm_exchange(c, how->parent && !how->grows), out);
  hk_param_report_names(false); /* if rank 0 is a thread of this process, it has logged them by now */
  HK_INFO(HK_SUB_INIT,
          "comm %p rank %d nranks %d cudaDev %d commId 0x%llx%s%s - Init COMPLETE in %.1f ms (bootstrap %.1f ms)",
          (void *)c, c->rank, c->nranks, c->device, (unsigned long long)hk_bootstrap_comm_id(c->bootstrap),
          c->options.name[0] ? " name " : "", c->options.name, (double)(hk_now_ns() - begin) / 1e6,
          (double)(joined - begin) / 1e6);
out:
  hk_bootstrap_end_spare(&spare);
  c->lender = NULL;
  rc = init_over(c, how, &watch, rc);
  atomic_store(&c->health.progress, (int)rc);
  if (rc == HK_OK && atomic_load(&c->health.revoked) & HK_REVOKED_ELSEWHERE) init_revoked_in_init(c);
  return rc;
}
