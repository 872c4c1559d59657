/* SPDX-License-Identifier: Apache-2.0 */
/* Finds in the flight records of a communicator what went wrong, and on which rank (flight.h). */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../../boot/inquiry.h" /* ranks in words */
#include "../tools.h"
#include "flight.h"

/* Files of a healthy job are not written at one moment. A rank that is behind by less is not late. */
static const long long judge_late_ns = 1000000000;

const hk_flight_op *hk_flight_collective(const hk_flight_file *f, long long number) {
  for (size_t i = f->nops; i-- > 0;)
    if (f->ops[i].collective && f->ops[i].collective <= number)
      return f->ops[i].collective == number ? &f->ops[i] : NULL;
  return NULL;
}

__attribute__((format(printf, 2, 3))) static void judge_say(hk_flight_comm *c, const char *format, ...) {
  va_list args;
  const size_t used = strlen(c->verdict);
  va_start(args, format);
  if (used) snprintf(c->verdict + used, sizeof c->verdict - used, "\n");
  vsnprintf(c->verdict + used + !!used, sizeof c->verdict - used - !!used, format, args);
  va_end(args);
}

static void judge_progress(hk_flight_comm *c) {
  c->ended = INT64_MAX;
  for (int i = 0; i < c->nfiles; i++) {
    hk_flight_file *f = c->files[i];
    for (size_t k = 0; k < f->nops; k++) {
      const hk_flight_op *o = &f->ops[k];
      const bool done = o->state == HK_FLIGHT_OVER || o->state == HK_FLIGHT_ON_STREAM;
      if (o->collective) f->begun = o->collective;
      if (o->collective && done) f->ended = o->collective;
    }
    if (f->ended < c->ended) c->ended = f->ended;
    if (f->begun > c->newest) c->newest = f->begun;
  }
}

/* ---- calls that differ ---- */

typedef struct judge_item {
  const hk_flight_op *op;
  int rank;
} judge_item;

static int judge_compare(const void *a, const void *b) {
  const judge_item *x = a, *y = b;
  if (x->op->collective != y->op->collective) return x->op->collective < y->op->collective ? -1 : 1;
  return x->rank - y->rank;
}

/* How many of the n items have the call. */
static int judge_count(const judge_item *at, size_t n, const char *call, bool equal, int *ranks) {
  int found = 0;
  for (size_t i = 0; i < n; i++)
    if (!strcmp(at[i].op->call, call) == equal) ranks[found++] = at[i].rank;
  return found;
}

/* The n items are one collective's, and at least two of their calls differ. */
static void judge_differ(hk_flight_comm *c, const judge_item *at, size_t n, int *ranks) {
  char some[120], others[120];
  int most = 0;
  c->differs = at[0].op->collective;
  for (size_t i = 0; i < n; i++) { /* the call that most ranks make, of the lowest rank */
    if (i && !strcmp(at[i].op->call, at[i - 1].op->call)) continue;
    const int k = judge_count(at, n, at[i].op->call, true, ranks);
    if (k > most) most = k, c->usual = at[i].op->call;
    if (2 * k > (int)n) break;
  }
  for (size_t i = 0; i < n && !c->other; i++)
    if (strcmp(at[i].op->call, c->usual)) c->other = at[i].op->call;
  hk_ranks_describe(ranks, judge_count(at, n, c->other, true, ranks), some, sizeof some);
  hk_ranks_describe(ranks, judge_count(at, n, c->usual, true, ranks), others, sizeof others);
  judge_say(c, "the calls differ at operation %lld: %s: %s; %s: %s", c->differs, some, c->other, others, c->usual);
  const int third = judge_count(at, n, c->usual, false, ranks) - judge_count(at, n, c->other, true, ranks);
  if (third > 0) judge_say(c, "%d more ranks make still other calls there", third);
}

static hk_status judge_calls(hk_flight_comm *c) {
  hk_status rc = HK_OK;
  size_t n = 0, capacity = 1;
  for (int i = 0; i < c->nfiles; i++) capacity += c->files[i]->nops;
  judge_item *items = malloc(capacity * sizeof *items);
  int *ranks = malloc(((size_t)c->nfiles + 1) * sizeof *ranks);
  if (!items || !ranks) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to compare %zu operations", capacity), out);
  for (int i = 0; i < c->nfiles; i++)
    for (size_t k = 0; k < c->files[i]->nops; k++)
      if (c->files[i]->ops[k].collective) items[n++] = (judge_item){&c->files[i]->ops[k], c->files[i]->rank};
  qsort(items, n, sizeof *items, judge_compare);
  for (size_t first = 0, i = 1; i < n && !c->differs; i++) {
    if (items[i].op->collective != items[first].op->collective) {
      first = i;
      continue;
    }
    if (!strcmp(items[i].op->call, items[first].op->call)) continue;
    size_t end = i;
    while (end < n && items[end].op->collective == items[first].op->collective) end++;
    judge_differ(c, &items[first], end - first, ranks);
  }
out:
  free(items);
  free(ranks);
  return rc;
}

/* ---- failures, ranks that are behind, waits ---- */

static void judge_failures(hk_flight_comm *c) {
  c->blamed = -1;
  for (int i = 0; i < c->nfiles; i++) {
    int by = 0;
    const hk_flight_file *f = c->files[i];
    if (!f->text) continue;
    for (int k = 0; k < c->nfiles; k++) by += c->files[k]->text && c->files[k]->blamed == f->blamed;
    if (by <= c->blamers) continue;
    c->blamers = by;
    c->blamed = f->blamed;
    c->why = f->text;
  }
  if (!c->why) return;
  if (c->blamed < 0)
    judge_say(c, "the communicator has failed on %d rank%s: %s", c->blamers, c->blamers == 1 ? "" : "s", c->why);
  else
    judge_say(c, "the failure%s of %d rank%s name%s rank %d: %s", c->blamers == 1 ? "" : "s", c->blamers,
              c->blamers == 1 ? "" : "s", c->blamers == 1 ? "s" : "", c->blamed, c->why);
}

/* When the first rank began that collective; INT64_MAX: no file has it. */
static long long judge_first_begin(const hk_flight_comm *c, long long number) {
  long long first = INT64_MAX;
  for (int i = 0; i < c->nfiles; i++) {
    const hk_flight_op *o = hk_flight_collective(c->files[i], number);
    if (o && o->timed && o->begin_ns < first) first = o->begin_ns;
  }
  return first;
}

static hk_status judge_late(hk_flight_comm *c) {
  char ranks[120], time[32];
  long long longest = 0, oldest = INT64_MAX;
  int *late = malloc(((size_t)c->nfiles + 1) * sizeof *late);
  const hk_flight_file *example = NULL;
  if (!late) return HK_FAIL_ERRNO("no memory for the ranks of a communicator");
  for (int i = 0; i < c->nfiles; i++) {
    hk_flight_file *f = c->files[i];
    if (f->begun >= c->newest) continue;
    const long long first = judge_first_begin(c, f->begun + 1);
    if (first > f->written_ns || f->written_ns - first < judge_late_ns) continue;
    f->late = true;
    late[c->nlate++] = f->rank;
    if (f->written_ns - first > longest) longest = f->written_ns - first;
    if (f->begun < oldest) oldest = f->begun, example = f;
  }
  if (example) {
    hk_ranks_describe(late, c->nlate, ranks, sizeof ranks);
    judge_say(c, "%s had not begun operation %lld, %s after the first rank; rank %d %s", ranks, oldest + 1,
              hk_tool_time(time, (double)longest / 1e3), example->rank, example->does);
  }
  free(late);
  return HK_OK;
}

static void judge_waits(hk_flight_comm *c) {
  long long longest = judge_late_ns - 1;
  char time[32];
  for (int i = 0; i < c->nfiles; i++)
    for (size_t k = 0; k < c->files[i]->nops; k++) {
      const hk_flight_file *f = c->files[i];
      const hk_flight_op *o = &f->ops[k];
      if ((o->state != HK_FLIGHT_BEGUN && o->state != HK_FLIGHT_FAILED) || o->begin_ns > f->written_ns) continue;
      if (f->written_ns - o->begin_ns <= longest) continue;
      longest = f->written_ns - o->begin_ns;
      c->waits = o;
      c->waiter = f;
    }
  if (c->waits && !c->verdict[0])
    judge_say(c, "rank %d was in %s for %s, and no rank with a file keeps it waiting", c->waiter->rank, c->waits->call,
              hk_tool_time(time, (double)longest / 1e3));
}

static hk_status judge_missing(hk_flight_comm *c) {
  char ranks[120];
  int next = 0;
  c->missing = malloc(((size_t)c->nranks + 1) * sizeof *c->missing);
  if (!c->missing) return HK_FAIL_ERRNO("no memory for %d ranks", c->nranks);
  for (int r = 0; r < c->nranks; r++) {
    if (next < c->nfiles && c->files[next]->rank == r)
      next++;
    else
      c->missing[c->nmissing++] = r;
  }
  if (!c->nmissing || !c->verdict[0]) return HK_OK;
  hk_ranks_describe(c->missing, c->nmissing, ranks, sizeof ranks);
  judge_say(c, "there is no file of %s: its process ended before it could write one, or the file was not given", ranks);
  return HK_OK;
}

hk_status hk_flight_judge(hk_flight_comm *c) {
  c->nranks = c->files[0]->nranks;
  judge_progress(c);
  HK_OR_RETURN(judge_calls(c));
  judge_failures(c);
  HK_OR_RETURN(judge_late(c));
  judge_waits(c);
  return judge_missing(c);
}
