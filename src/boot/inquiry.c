/* SPDX-License-Identifier: Apache-2.0 */
/* Asks ranks what they wait for, and makes the sentence of a report from the answers (inquiry.h). */
#include "inquiry.h"
#include <stdio.h>
#include "../base/log.h"
#include "../base/param.h"

enum {
  BUDGET = 4, /* patience with all ranks, in patiences with one */
  NAMED = 6,  /* ranks that are described; the others are counted */
  MORE = 24   /* bytes of "; and 31 more ranks" */
};

static bool inquiry_interrupted(const hk_wait_env *w) {
  /* acquire, both: as in wait.c */
  return w && ((w->failure && atomic_load_explicit(w->failure, memory_order_acquire)) ||
               (w->shared_failure && atomic_load_explicit(w->shared_failure, memory_order_acquire)));
}

/* In an init, a rank that has completed it does not block. A rank in an operation may wait in any call. */
static bool inquiry_blocks(const hk_inquiry *q, const hk_found *f) {
  const hk_activity *a = &f->activity;
  if (f->presence != HK_PRESENCE_ANSWERS) return true;
  bool same = q->phase == HK_PHASE_OPERATION || a->phase == q->phase || a->phase == HK_PHASE_INIT;
  if (a->waits_for >= 0 && same) return false;
  return q->phase != HK_PHASE_INIT || a->phase == HK_PHASE_INIT;
}

/* False if the time is over. */
static bool inquiry_ask(hk_inquiry *q, hk_found *f) {
  uint64_t now = hk_now_ns();
  if (!q->until_ns) q->until_ns = now + BUDGET * q->patience_ns;
  if (now >= q->until_ns || inquiry_interrupted(q->wait)) {
    q->cut = true;
    return false;
  }
  uint64_t left = q->until_ns - now;
  f->presence = q->ask(q->arg, f->rank, left < q->patience_ns ? left : q->patience_ns, &f->activity);
  f->blocks = q->blocks ? q->blocks(q, f) : inquiry_blocks(q, f);
  return true;
}

/* Ranks that answer may wait for those that do not, so these come first. */
enum { SILENT, BLOCKS, WAITS };
static int inquiry_order(const hk_found *f) {
  return f->presence != HK_PRESENCE_ANSWERS ? SILENT : f->blocks ? BLOCKS : WAITS;
}

static void inquiry_sort(hk_inquiry *q) {
  for (int i = 1; i < q->n; i++)
    for (int k = i; k > 0 && inquiry_order(&q->at[k - 1]) > inquiry_order(&q->at[k]); k--) {
      hk_found f = q->at[k];
      q->at[k] = q->at[k - 1];
      q->at[k - 1] = f;
    }
}

void hk_inquiry_ask_all(hk_inquiry *q, int most) {
  for (int r = 0; r < q->nranks && r < most && q->n < HK_FOUND_MOST; r++) {
    hk_found *f = &q->at[q->n];
    if (r == q->rank) continue;
    *f = (hk_found){.rank = r};
    if (!inquiry_ask(q, f)) break;
    q->n += f->blocks && f->presence != HK_PRESENCE_UNKNOWN;
  }
  inquiry_sort(q);
}

void hk_inquiry_add(hk_inquiry *q, int rank) {
  if (rank < 0 || rank >= q->nranks || rank == q->rank) return;
  for (int i = 0; i < q->n; i++)
    if (q->at[i].rank == rank) return;
  q->cut = q->n == HK_FOUND_MOST;
  if (!q->cut) q->at[q->n++] = (hk_found){.rank = rank};
}

void hk_inquiry_follow(hk_inquiry *q) {
  for (int i = 0; i < q->n; i++) {
    if (!inquiry_ask(q, &q->at[i]))
      q->n = i;
    else if (q->chain && !q->at[i].blocks)
      hk_inquiry_add(q, q->at[i].activity.waits_for);
  }
  if (q->cut && q->n && hk_inquiry_blocker(q) < 0) q->at[q->n - 1].blocks = true;
  inquiry_sort(q);
}

int hk_inquiry_blocker(const hk_inquiry *q) {
  int lowest = -1;
  for (int i = 0; i < q->n; i++)
    if (q->at[i].blocks && (lowest < 0 || q->at[i].rank < lowest)) lowest = q->at[i].rank;
  return lowest;
}

/* ---- in words ---- */

static int inquiry_name(const hk_inquiry *q, int rank) {
  return q->names && rank >= 0 && rank < q->nranks ? q->names[rank] : rank;
}

void hk_inquiry_describe(const hk_inquiry *q, char *text, size_t bytes) {
  size_t used = 0;
  int named = 0;
  for (int i = 0; i < q->n && named < NAMED; i++) {
    char does[480];
    hk_activity a = q->at[i].activity;
    a.waits_for = inquiry_name(q, a.waits_for);
    hk_activity_describe(&a, q->at[i].presence, does, sizeof does);
    int n = snprintf(text + used, bytes - used, "; rank %d %s", inquiry_name(q, q->at[i].rank), does);
    if (used + (size_t)n + MORE > bytes) break;
    used += (size_t)n;
    named++;
  }
  text[used] = 0;
  if (named < q->n) snprintf(text + used, bytes - used, "; and %d more ranks", q->n - named);
}

void hk_ranks_describe(const int *ranks, int n, char *text, size_t bytes) {
  int listed = n > HK_RANKS_LISTED ? HK_RANKS_LISTED : n;
  size_t used = (size_t)snprintf(text, bytes, "rank%s ", n > 1 ? "s" : "");
  for (int i = 0; i < listed && used < bytes; i++)
    used += (size_t)snprintf(text + used, bytes - used, "%s%d", i == 0 ? "" : i + 1 == n ? " and " : ", ", ranks[i]);
  if (listed < n && used < bytes) snprintf(text + used, bytes - used, " and %d more", n - listed);
}

void hk_inquiry_report(const hk_inquiry *q, const hk_long_wait *w, char *text, size_t bytes) {
  const char *name = w->name ? w->name : "", *quote = name[0] ? "\"" : "";
  int ranks[HK_FOUND_MOST], n = 0, waiting = 0;
  char list[96];
  for (int i = 0; i < q->n; i++) {
    waiting += q->at[i].activity.waits_for >= 0;
    if (inquiry_order(&q->at[i]) != WAITS) ranks[n++] = inquiry_name(q, q->at[i].rank);
  }
  snprintf(list, sizeof list, "other ranks%s", q->n && waiting == q->n ? ", which wait in a circle" : "");
  if (n) hk_ranks_describe(ranks, n, list, sizeof list);
  int used = snprintf(text, bytes, "rank %d of %d has waited %llu s in %s of communicator %s%s%s%s0x%llx for %s",
                      w->rank, w->nranks, (unsigned long long)(w->waited_ns / 1000000000u), w->call, quote, name, quote,
                      name[0] ? " " : "", (unsigned long long)w->comm, list);
  if ((size_t)used < bytes) hk_inquiry_describe(q, text + used, bytes - (size_t)used);
}

hk_status hk_inquiry_give(const hk_settings *settings, const char *text, const char *advice) {
  if (settings->WATCHDOG_ABORT) return HK_FAIL(HK_ERR_REMOTE, "%s: it gave up (HOCKET_WATCHDOG_ABORT=1)", text);
  HK_WARN("%s%s (HOCKET_WATCHDOG_ABORT=1 makes this an error, HOCKET_WATCHDOG=0 silences it)", text, advice);
  return HK_OK;
}
