/* SPDX-License-Identifier: Apache-2.0 */
/* Reports on waits in the bootstrap's collectives, names the ranks that keep others waiting, and ends waits with a
 * limit.
 *
 * Once all ranks have begun a call, no long wait is justified: it ends after HOCKET_BOOTSTRAP_TIMEOUT. A rank may
 * begin a split or a shrink at any time: such a wait is reported repeatedly and has no end of its own. */
#include <stdio.h>
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "internal.h"

enum {
  /* in a communicator of at most so many ranks all are asked; in a larger one the chain of waits is followed */
  ASK_ALL = 32,
  HOPS = 32, /* of the chain, at most */
  NAMED = 3  /* ranks that are described; the others are counted */
};
#define SECOND 1000000000ull
#define FIRST_REPORT_NS (10 * SECOND) /* if the wait will end in an error */
#define BETWEEN_NS (30 * SECOND)      /* between two reports, at most */
#define PATIENCE_NS (SECOND / 2)      /* with each rank that is asked */
#define BUDGET_NS (2 * SECOND)        /* for all questions of a report */

static void begin_wait(hk_bootstrap *b, bool bounded) {
  uint64_t watchdog = (uint64_t)b->o.settings->WATCHDOG * SECOND, now = hk_now_ns();
  uint64_t first = bounded && watchdog > FIRST_REPORT_NS ? FIRST_REPORT_NS : watchdog;
  b->call.wait_begin_ns = now;
  b->call.deadline_ns = bounded ? now + (uint64_t)b->o.settings->BOOTSTRAP_TIMEOUT * SECOND : 0;
  if (b->o.wait->deadline_ns && (!b->call.deadline_ns || b->o.wait->deadline_ns < b->call.deadline_ns))
    b->call.deadline_ns = b->o.wait->deadline_ns;
  b->call.next_report_ns = watchdog ? now + first : 0;
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
  begin_wait(b, phase == HK_PHASE_INIT);
}

static hk_phase phase_of(const hk_bootstrap *b) {
  return (hk_phase)atomic_load_explicit(&b->call.phase, memory_order_relaxed); /* the value is independent */
}

/* ---- which ranks are missing ---- */

typedef struct missing {
  int count, silent; /* silent: the number of ranks, in front, that did not answer */
  int ranks[ASK_ALL];
  hk_presence presence[ASK_ALL];
  hk_activity activity[ASK_ALL];
} missing;

/* True if the rank keeps others waiting. False if it waits in the same call for another rank, or has completed its
 * init. */
static bool holds_up(const hk_bootstrap *b, hk_presence p, const hk_activity *a) {
  if (p != HK_PRESENCE_ANSWERS) return true;
  if (a->phase == (uint8_t)phase_of(b) || a->phase == HK_PHASE_INIT) return a->waits_for < 0;
  return phase_of(b) != HK_PHASE_INIT;
}

/* Ranks that do not answer come first: those that answer may wait for them outside of the bootstrap. */
static void add(missing *m, int rank, hk_presence p, const hk_activity *a) {
  int i = m->count++;
  if (p != HK_PRESENCE_ANSWERS) {
    int first = m->silent++;
    m->ranks[i] = m->ranks[first];
    m->presence[i] = m->presence[first];
    m->activity[i] = m->activity[first];
    i = first;
  }
  m->ranks[i] = rank;
  m->presence[i] = p;
  m->activity[i] = *a;
}

static bool interrupted(const hk_bootstrap *b) {
  const hk_wait_env *w = b->o.wait;
  /* acquire: as in wait.c */
  return (w->failure && atomic_load_explicit(w->failure, memory_order_acquire)) ||
         (w->shared_failure && atomic_load_explicit(w->shared_failure, memory_order_acquire));
}

static void ask_all(hk_bootstrap *b, missing *m) {
  uint64_t until = hk_now_ns() + BUDGET_NS;
  hk_activity a;
  for (int r = 0; r < b->nranks && hk_now_ns() < until && !interrupted(b); r++) {
    if (r == b->rank) continue;
    hk_presence p = hk_bootstrap_ask(b, r, PATIENCE_NS, &a);
    if (p != HK_PRESENCE_UNKNOWN && holds_up(b, p, &a)) add(m, r, p, &a);
  }
}

/* Goes from the awaited rank to the rank that it waits for, and so on. */
static void follow_chain(hk_bootstrap *b, int rank, missing *m) {
  uint64_t until = hk_now_ns() + BUDGET_NS;
  hk_activity a;
  for (int hop = 0; hop < HOPS; hop++) {
    hk_presence p = hk_bootstrap_ask(b, rank, PATIENCE_NS, &a);
    int next = a.waits_for;
    bool on = !holds_up(b, p, &a) && next >= 0 && next < b->nranks && next != rank && next != b->rank;
    if (!on || hk_now_ns() >= until || interrupted(b)) break;
    rank = next;
  }
  add(m, rank, hk_bootstrap_ask(b, rank, PATIENCE_NS, &a), &a);
}

/* The rank's number as users know it: while a child is being made, in the parent. */
static int known_as(const hk_bootstrap *b, int rank) { return b->parent && rank >= 0 ? b->members[rank] : rank; }

/* "rank 3, which ...; and rank 7, which ...". */
static void describe(const hk_bootstrap *b, const missing *m, char *text, size_t bytes) {
  size_t used = 0;
  for (int i = 0; i < m->count && i < NAMED && used < bytes; i++) {
    char does[400];
    hk_activity a = m->activity[i];
    a.waits_for = known_as(b, a.waits_for);
    hk_activity_describe(&a, m->presence[i], does, sizeof does);
    used += (size_t)snprintf(text + used, bytes - used, "%srank %d, which %s", i ? "; and " : "",
                             known_as(b, m->ranks[i]), does);
  }
  if (m->count > NAMED && used < bytes) snprintf(text + used, bytes - used, "; and %d more ranks", m->count - NAMED);
}

/* Writes "rank 2 of 8 has waited 20 s in ncclCommSplit number 3 of communicator "dp" (0x12ab) for rank 5, which ...".
 * True if some rank has left or is gone. */
static bool describe_wait(hk_bootstrap *b, uint64_t waited_ns, char *text, size_t bytes) {
  char who[1300];
  missing m = {.count = 0};
  const hk_bootstrap *of = b->parent ? b->parent : b;
  const char *name = of->o.name ? of->o.name : "";
  /* relaxed: only this thread writes it */
  int awaited = atomic_load_explicit(&b->call.awaited, memory_order_relaxed);
  if (b->nranks <= ASK_ALL) ask_all(b, &m);
  if (m.silent && phase_of(b) == HK_PHASE_INIT) m.count = m.silent;
  if (!m.count && awaited >= 0) follow_chain(b, awaited, &m);
  describe(b, &m, who, sizeof who);
  snprintf(text, bytes, "rank %d of %d has waited %llu s in %s of communicator %s%s%s0x%llx for %s", of->rank,
           of->nranks, (unsigned long long)(waited_ns / SECOND), b->call.what, name[0] ? "\"" : "", name,
           name[0] ? "\" " : "", (unsigned long long)of->comm, m.count ? who : "other ranks");
  for (int i = 0; i < m.silent; i++)
    if (m.presence[i] == HK_PRESENCE_LEFT || m.presence[i] == HK_PRESENCE_GONE) return true;
  return false;
}

/* ---- the wait ---- */

static hk_status look(hk_bootstrap *b) {
  char text[HK_ERROR_TEXT - 256];
  uint64_t now = hk_now_ns(), waited = hk_ago_ns(now, b->call.wait_begin_ns);
  if (b->call.deadline_ns && now >= b->call.deadline_ns && !b->call.dialing) {
    (void)describe_wait(b, waited, text, sizeof text);
    return HK_FAIL(HK_ERR_REMOTE, "%s; it gave up (HOCKET_BOOTSTRAP_TIMEOUT)", text);
  }
  if (!b->call.next_report_ns || now < b->call.next_report_ns) return HK_OK;
  /* In the init, a failure that this rank was not informed of has ended it for all. */
  if (describe_wait(b, waited, text, sizeof text) && b->call.deadline_ns) return HK_FAIL(HK_ERR_REMOTE, "%s", text);
  if (!b->call.deadline_ns && b->o.settings->WATCHDOG_ABORT)
    return HK_FAIL(HK_ERR_REMOTE, "%s: it gave up (HOCKET_WATCHDOG_ABORT=1)", text);
  if (b->call.deadline_ns)
    HK_WARN("%s (it gives up in %llu s, HOCKET_BOOTSTRAP_TIMEOUT)", text,
            (unsigned long long)((b->call.deadline_ns - now) / SECOND));
  else
    HK_WARN("%s: all ranks of the communicator must make this call (HOCKET_WATCHDOG_ABORT=1 makes this an error, "
            "HOCKET_WATCHDOG=0 silences it)",
            text);
  now = hk_now_ns();
  b->call.next_report_ns = now + (waited < BETWEEN_NS ? waited : BETWEEN_NS);
  return HK_OK;
}

hk_status hk_bootstrap_check(hk_bootstrap *b) {
  hk_status rc = hk_listener_check(b->listener);
  return rc == HK_OK && phase_of(b) == HK_PHASE_INIT ? look(b) : rc;
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
  return look(b);
}

hk_wait_env hk_report_begin(hk_bootstrap *b, bool bounded) {
  hk_wait_env env = *b->o.wait;
  begin_wait(b, bounded);
  env.check = hk_report_check;
  env.arg = b;
  env.deadline_ns = 0; /* hk_report_check checks it, and reports more */
  return env;
}

bool hk_report_bounded(const hk_bootstrap *b) {
  /* The members of a split meet in the parent before they make the child. */
  return phase_of(b) == HK_PHASE_INIT || (b->parent && phase_of(b) == HK_PHASE_SPLIT);
}
