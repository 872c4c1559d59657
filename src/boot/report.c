/* SPDX-License-Identifier: Apache-2.0 */
/* Reports on waits in the bootstrap's collectives, names the ranks that keep others waiting, and ends waits with a
 * limit.
 *
 * Once all ranks have begun a call, no long wait is justified: it ends after HOCKET_BOOTSTRAP_TIMEOUT. A rank may
 * begin a split or a shrink at any time: such a wait is reported repeatedly and has no end of its own. */
#include <stdio.h>
#include "../base/log.h"
#include "../base/param.h"
#include "inquiry.h"
#include "internal.h"

/* In a communicator of at most so many ranks all are asked; in a larger one the chain of waits is followed. */
enum { ASK_ALL = 32 };
#define SECOND 1000000000ull
#define FIRST_REPORT_NS (10 * SECOND) /* if the wait will end in an error */
#define BETWEEN_NS (30 * SECOND)      /* between two reports, at most */
#define PATIENCE_NS (SECOND / 2)      /* with each rank that is asked */

static void report_begin_wait(hk_bootstrap *b, bool bounded) {
  uint64_t watchdog = (uint64_t)b->o.settings->WATCHDOG * SECOND, now = hk_now_ns();
  b->call.wait_begin_ns = now;
  b->call.deadline_ns = bounded ? now + (uint64_t)b->o.settings->BOOTSTRAP_TIMEOUT * SECOND : 0;
  if (b->o.wait->deadline_ns && (!b->call.deadline_ns || b->o.wait->deadline_ns < b->call.deadline_ns))
    b->call.deadline_ns = b->o.wait->deadline_ns;
  b->call.report_after_ns = bounded && watchdog > FIRST_REPORT_NS ? FIRST_REPORT_NS : watchdog;
  b->call.reported_ns = 0;
}

void hk_bootstrap_begin(hk_bootstrap *b, hk_phase phase, const char *what) {
  if (!b) return;
  snprintf(b->call.what, sizeof b->call.what, "%s", what ? what : "a call of the bootstrap");
  /* relaxed, both: each value is independent */
  if (atomic_load_explicit(&b->call.phase, memory_order_relaxed) != (int)phase)
    atomic_store_explicit(&b->call.phase_since_ns, hk_now_ns(), memory_order_relaxed);
  atomic_store_explicit(&b->call.phase, (int)phase, memory_order_relaxed);
  pthread_mutex_lock(&b->lock);
  b->call.failed_before = b->failures.broken;
  pthread_mutex_unlock(&b->lock);
  report_begin_wait(b, phase == HK_PHASE_INIT);
}

static hk_phase report_phase(const hk_bootstrap *b) {
  return (hk_phase)atomic_load_explicit(&b->call.phase, memory_order_relaxed); /* the value is independent */
}

static hk_presence report_ask(void *b, int rank, uint64_t patience_ns, hk_activity *out) {
  return hk_bootstrap_ask(b, rank, patience_ns, out);
}

/* Writes the report of the wait. True if some rank has left or is gone. */
static bool report_describe(hk_bootstrap *b, uint64_t waited_ns, char *text, size_t bytes) {
  const hk_bootstrap *of = b->parent ? b->parent : b; /* users know the numbers in the parent */
  hk_long_wait w = {of->rank, of->nranks, waited_ns, of->comm, of->o.name, b->call.what};
  hk_inquiry q = {.ask = report_ask,
                  .arg = b,
                  .wait = b->o.wait,
                  .rank = b->rank,
                  .nranks = b->nranks,
                  .names = b->parent ? b->members : NULL,
                  .phase = report_phase(b),
                  .patience_ns = PATIENCE_NS,
                  .chain = true};
  /* relaxed: only this thread writes it */
  int awaited = atomic_load_explicit(&b->call.awaited, memory_order_relaxed), silent = 0;
  bool gone = false;
  if (b->nranks <= ASK_ALL) hk_inquiry_ask_all(&q, b->nranks);
  while (silent < q.n && q.at[silent].presence != HK_PRESENCE_ANSWERS) silent++;
  if (silent && q.phase == HK_PHASE_INIT) q.n = silent; /* the others may wait for these outside of the bootstrap */
  if (!q.n) {
    hk_inquiry_add(&q, awaited);
    hk_inquiry_follow(&q);
  }
  for (int i = 0; i < q.n; i++)
    gone = gone || q.at[i].presence == HK_PRESENCE_LEFT || q.at[i].presence == HK_PRESENCE_GONE;
  hk_inquiry_report(&q, &w, text, bytes);
  return gone;
}

static hk_status report_look(hk_bootstrap *b) {
  char text[HK_ERROR_TEXT - 256];
  uint64_t now = hk_now_ns(), waited = hk_ago_ns(now, b->call.wait_begin_ns), deadline = b->call.deadline_ns;
  if (deadline && now >= deadline && !b->call.dialing) {
    (void)report_describe(b, waited, text, sizeof text);
    return HK_FAIL(HK_ERR_REMOTE, "%s; it gave up (HOCKET_BOOTSTRAP_TIMEOUT)", text);
  }
  if (!hk_inquiry_due(&b->call.reported_ns, waited, b->call.report_after_ns, BETWEEN_NS)) return HK_OK;
  bool gone = report_describe(b, waited, text, sizeof text);
  if (!deadline) return hk_inquiry_give(b->o.settings, text, ": all ranks of the communicator must make this call");
  /* In the init, a failure that this rank was not informed of has ended it for all. */
  if (gone) return HK_FAIL(HK_ERR_REMOTE, "%s", text);
  HK_WARN("%s (it gives up in %llu s, HOCKET_BOOTSTRAP_TIMEOUT)", text,
          (unsigned long long)((deadline - now) / SECOND));
  return HK_OK;
}

hk_status hk_bootstrap_check(hk_bootstrap *b) {
  hk_status rc = hk_listener_check(b->listener);
  return rc == HK_OK && report_phase(b) == HK_PHASE_INIT ? report_look(b) : rc;
}

hk_status hk_report_check(void *arg, uint64_t waited_ns) {
  hk_bootstrap *b = arg;
  const hk_wait_env *base = b->o.wait;
  /* relaxed: only this thread writes it */
  int awaited = atomic_load_explicit(&b->call.awaited, memory_order_relaxed);
  /* a rank that waits for others must be able to accept their connections */
  HK_OR_RETURN(hk_listener_check(b->listener));
  if (base->check) HK_OR_RETURN(base->check(base->arg, waited_ns));
  if (b->call.also) HK_OR_RETURN(b->call.also(b->call.also_arg));
  if (b->parent && awaited >= 0 && hk_event_dead(b->parent, b->members[awaited]))
    return HK_FAIL(HK_ERR_REMOTE, "rank %d of %d, which is rank %d of the parent communicator, has died", awaited,
                   b->nranks, b->members[awaited]);
  return report_look(b);
}

hk_wait_env hk_report_begin(hk_bootstrap *b, bool bounded) {
  hk_wait_env env = *b->o.wait;
  report_begin_wait(b, bounded);
  env.check = hk_report_check;
  env.arg = b;
  env.deadline_ns = 0; /* hk_report_check checks it, and reports more */
  return env;
}

bool hk_report_bounded(const hk_bootstrap *b) {
  /* The members of a split meet in the parent before they make the child. */
  return report_phase(b) == HK_PHASE_INIT || (b->parent && report_phase(b) == HK_PHASE_SPLIT);
}
