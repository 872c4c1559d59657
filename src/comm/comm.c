/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, checks and frees communicators (comm.h). */
#include "../core/comm.h"
#include <stdio.h>
#include <stdlib.h>
#include "../base/fork.h"
#include "../base/meter.h"
#include "../base/param.h"
#include "../boot/process.h" /* hk_forks */
#include "../core/backend.h"
#include "../failure/failure.h"
#include "../failure/flight.h"
#include "../failure/watch.h"
#include "../rma/rma.h"
#include "../run/selection.h"

/* Freed communicators are kept here before their memory is freed, so that a use after free finds HK_COMM_FREED. This
 * is state of the process, because a freed communicator has no other owner. */
enum { QUARANTINE = 64 };
static struct {
  pthread_mutex_t lock;
  ncclComm_t first, last;
  int count;
} quarantine = {.lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(quarantine.lock);

static void comm_free_parts(ncclComm_t c) {
  hk_flight_free(c);
  free(c->order.own_page);
  hk_meter_free(c->order.meter);
  c->order.meter = NULL;
  free(c->wiring);
  free(c->plans);
  free(c->selection);
  c->order.own_page = c->order.page = NULL;
  c->wiring = NULL;
  c->links = NULL;
  c->plans = NULL;
  c->selection = NULL;
}

hk_status hk_comm_new(ncclComm_t *out, int rank, int nranks, const ncclConfig_t *config) {
  hk_status rc = HK_OK;
  ncclComm_t c = calloc(1, sizeof *c + sizeof(hk_event));
  if (!c) return HK_FAIL_ERRNO("no memory for a communicator");
  c->health.cause = (hk_event *)(c + 1);
  hk_param_renew();
  c->settings = hk_settings_now();
  HK_TRY(hk_options_read(c->settings, config, &c->options), undo);
  HK_TRY(hk_watch_new(c), undo);
  HK_TRY(hk_flight_new(c, hk_watch_report), undo);
  HK_TRY(hk_wire_new(c), undo);
  HK_TRY(hk_plans_new(c), undo);
  HK_TRY(hk_selection_new(c), undo);
  atomic_store(&c->magic, HK_COMM_LIVE);
  c->rank = rank;
  c->nranks = nranks;
  c->forks = hk_forks;
  c->backend = hk_backend_choose(&c->device);
  c->lsa.ranks = 1;
  pthread_mutex_init(&c->health.lock, NULL);
  pthread_mutex_init(&c->order.announcing, NULL);
  atomic_store(&c->health.progress, HK_IN_PROGRESS);
  c->wait = (hk_wait_env){.failure = &c->health.failure, .check = hk_watch, .arg = c, .spins = 30};
  *out = c;
  return HK_OK;
undo:
  comm_free_parts(c);
  free(c);
  return rc;
}

/* Removes and returns the oldest one that no open group refers to, or NULL. Under the quarantine's lock. */
static ncclComm_t comm_leave_quarantine(void) {
  ncclComm_t before = NULL, old = quarantine.first;
  while (old && atomic_load(&old->health.queued)) {
    before = old;
    old = old->quarantine_next;
  }
  if (!old) return NULL;
  *(before ? &before->quarantine_next : &quarantine.first) = old->quarantine_next;
  if (quarantine.last == old) quarantine.last = before;
  quarantine.count--;
  return old;
}

void hk_comm_release(ncclComm_t c) {
  ncclComm_t old = NULL;
  comm_free_parts(c);
  atomic_store(&c->magic, HK_COMM_FREED);
  c->quarantine_next = NULL;
  pthread_mutex_lock(&quarantine.lock);
  if (quarantine.last)
    quarantine.last->quarantine_next = c;
  else
    quarantine.first = c;
  quarantine.last = c;
  if (++quarantine.count > QUARANTINE) old = comm_leave_quarantine();
  pthread_mutex_unlock(&quarantine.lock);
  if (!old) return;
  /* A call of another thread, overtaken by the abort, may have used the lock until now. */
  pthread_mutex_destroy(&old->health.lock);
  pthread_mutex_destroy(&old->order.announcing);
  hk_rma_free(old->rma);
  free(old);
}

bool hk_comm_inherited(ncclComm_t c) { return c && atomic_load(&c->magic) == HK_COMM_LIVE && c->forks != hk_forks; }

hk_status hk_comm_check(ncclComm_t c, const char *who) {
  if (!c) return HK_FAIL(HK_ERR_ARGUMENT, "%s: the communicator is NULL: create one with ncclCommInitRank first", who);
  if (__builtin_expect(atomic_load(&c->magic) == HK_COMM_LIVE && c->forks == hk_forks, 1)) return HK_OK;
  if (atomic_load(&c->magic) == HK_COMM_LIVE)
    return HK_FAIL(
        HK_ERR_USAGE,
        "%s: the communicator is of the process that forked this one (rank %d of %d): make one here, after the "
        "fork, or start child processes with spawn instead of fork",
        who, c->rank, c->nranks);
  if (atomic_load(&c->magic) == HK_COMM_FREED)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: the communicator %p was freed already (ncclCommDestroy or ncclCommAbort)", who,
                   (void *)c);
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: %p is not a communicator", who, (void *)c);
}

/* After its init, before ncclCommFinalize. */
static inline hk_status comm_check_stage(ncclComm_t c, const char *who) {
  int state = atomic_load_explicit(&c->health.progress, memory_order_relaxed);
  if (__builtin_expect(state == HK_IN_PROGRESS, 0))
    return HK_FAIL(HK_ERR_USAGE,
                   "%s: the communicator's init is not finished: poll ncclCommGetAsyncError until it is ncclSuccess",
                   who);
  if (__builtin_expect(atomic_load_explicit(&c->health.finalized, memory_order_relaxed), 0))
    return HK_FAIL(HK_ERR_USAGE, "%s: ncclCommFinalize was called on this communicator", who);
  return HK_OK;
}

hk_status hk_comm_check_usable(ncclComm_t c, const char *who) {
  hk_status rc = hk_comm_check(c, who);
  if (rc != HK_OK) return rc;
  int failure = atomic_load_explicit(&c->health.failure, memory_order_relaxed); /* only a hint: waits check again */
  if (__builtin_expect(failure != 0, 0)) {
    if (atomic_load(&c->health.revoked) & HK_REVOKED_HERE)
      return HK_FAIL(
          HK_ERR_USAGE,
          "%s: ncclCommRevoke (or ncclCommShrink with NCCL_SHRINK_ABORT) ended this communicator (rank %d of %d): "
          "only ncclCommSplit, ncclCommShrink, ncclCommDestroy and ncclCommAbort are left",
          who, c->rank, c->nranks);
    /* what other ranks do does not matter to it any more */
    if (atomic_load(&c->health.finalized)) return comm_check_stage(c, who);
    hk_waiter w;
    hk_wait_begin(&w, &(hk_wait_env){.spins = 0});
    while (hk_failure_settled(c) == HK_OK)
      (void)hk_wait_pause(&w); /* at most a second; then all ranks report the same */
    /* The recorder may be used unless another thread's abort has begun, which waits until nothing is inside. */
    atomic_fetch_add(&c->health.inside, 1);
    if (atomic_load(&c->health.closing) == HK_CLOSING_NO) hk_flight_failed(c);
    atomic_fetch_sub(&c->health.inside, 1);
    return HK_FAIL(hk_failure_settled(c),
                   "%s: the communicator failed before (rank %d of %d): %s. Abort it and create another", who, c->rank,
                   c->nranks, c->health.text);
  }
  return comm_check_stage(c, who);
}

hk_status hk_comm_check_parent(ncclComm_t c, const char *who) {
  hk_status rc = hk_comm_check(c, who);
  if (rc != HK_OK) return rc;
  return atomic_load(&c->health.revoked) ? comm_check_stage(c, who) : hk_comm_check_usable(c, who);
}
