/* SPDX-License-Identifier: Apache-2.0 */
/* Waits until nothing is inside a communicator, and ends it (leave.h). */
#include "leave.h"
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../core/backend.h"
#include "../failure/failure.h"

enum { REPORT_S = 10 };

hk_status hk_leave_begin(ncclComm_t c, const char *who, hk_closing how) {
  int was = atomic_load(&c->health.closing);
  while (was < (int)how)
    if (atomic_compare_exchange_weak(&c->health.closing, &was, (int)how)) break;
  if (was == HK_CLOSING_NO) return HK_OK;
  /* The first thread frees the communicator. Its wait sees the failure that an abort sets. */
  if (was < (int)how) hk_comm_fail(c, HK_ERR_REMOTE, "ncclCommAbort was called on this rank");
  return HK_FAIL(HK_ERR_USAGE, "%s: another thread is in %s of this communicator (rank %d of %d), which frees it", who,
                 was == HK_CLOSING_ABORT ? "ncclCommAbort" : "ncclCommDestroy", c->rank, c->nranks);
}

/* Returns true if a thread of the backend does not leave a failed communicator. */
static bool leave_is_held(ncclComm_t c) {
  return atomic_load(&c->health.failure) && c->backend->has_left && !c->backend->has_left(c);
}

static bool leave_is_empty(ncclComm_t c) {
  return !atomic_load(&c->health.inside) && !atomic_load(&c->health.calling) && !leave_is_held(c);
}

/* Describes what is inside. */
static void leave_describe(ncclComm_t c, char *text, size_t bytes) {
  int inside = atomic_load(&c->health.inside);
  bool calling = atomic_load(&c->health.calling);
  snprintf(text, bytes, "%s%s", calling ? "a call of another thread" : "", calling && inside ? " and " : "");
  size_t used = strlen(text);
  if (inside) snprintf(text + used, bytes - used, "%d calls of groups or streams, or inits of children", inside);
  if (!text[0]) snprintf(text, bytes, "threads that move data over the network");
}

hk_status hk_leave_wait(ncclComm_t c, const char *who, int64_t seconds) {
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  char text[128];
  if (leave_is_empty(c)) return HK_OK;
  uint64_t begin = hk_now_ns(), reported = 0;
  hk_wait_begin(&w, &env);
  for (;;) {
    uint64_t waited = hk_now_ns() - begin;
    (void)hk_wait_pause(&w); /* nothing ends it early */
    if (leave_is_empty(c)) return HK_OK;
    leave_describe(c, text, sizeof text);
    if (waited >= (uint64_t)seconds * 1000000000u)
      return HK_FAIL(
          HK_ERR_SYSTEM,
          "%s: rank %d of %d has waited %lld s, and %s are still inside of the communicator: was that thread "
          "cancelled or stopped inside of a call?",
          who, c->rank, c->nranks, (long long)seconds, text);
    if (waited / 1000000000u / REPORT_S == reported) continue;
    reported = waited / 1000000000u / REPORT_S;
    HK_WARN("%s: rank %d of %d has waited %lld s until %s leave the communicator (at most %lld s)", who, c->rank,
            c->nranks, (long long)(waited / 1000000000u), text, (long long)seconds);
  }
}

hk_status hk_leave_in_peace(ncclComm_t c, const char *who) {
  int64_t limit = c->settings->DESTROY_TIMEOUT;
  hk_status rc = hk_leave_wait(c, who, limit);
  if (rc == HK_OK) return HK_OK;
  rc = HK_FAIL(
      HK_ERR_REMOTE,
      "%s: operations of rank %d of %d were not complete after %lld s (HOCKET_DESTROY_TIMEOUT) and are ended: do all "
      "ranks make the same calls?",
      who, c->rank, c->nranks, (long long)limit);
  return c->bootstrap ? hk_comm_failed(c, rc) : rc;
}

hk_status hk_leave_end(ncclComm_t c, const char *who, hk_status rc) {
  hk_status left = hk_leave_wait(c, who, c->settings->LEAVE_TIMEOUT);
  if (left == HK_OK) {
    hk_comm_destroy(c);
    return rc;
  }
  atomic_store(&c->magic, HK_COMM_FREED); /* for later calls; what is inside goes on using the rest */
  return HK_FAIL(
      left,
      "%s: rank %d of %d gave up after %lld s (HOCKET_LEAVE_TIMEOUT): a thread does not leave the communicator, so "
      "its memory, connections and threads are not freed. The process can go on without it",
      who, c->rank, c->nranks, (long long)c->settings->LEAVE_TIMEOUT);
}
