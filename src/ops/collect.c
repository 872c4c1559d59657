/* SPDX-License-Identifier: Apache-2.0 */
/* Collects what `hocket ps` shows (collect.h). */
#include "collect.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/param.h"
#include "../base/thread.h"
#include "../base/wait.h"
#include "../boot/inquiry.h"
#include "../program/operation.h"

enum { ASKERS = 32 };
static const hk_ps_patience collect_patience = {
    .process_ns = 300000000u, .others_ns = 1200000000u, .rank_ns = 1000000000u};

static hk_ps_comm *collect_comm_of(hk_ps *p, const hk_status_process *q, const hk_status_member *m) {
  for (int i = 0; i < p->ncomms; i++)
    if (p->comms[i].id == m->comm) return p->comms[i].nranks == m->nranks ? &p->comms[i] : NULL;
  if (!HK_RESERVE_NEXT(p->comms, p->ncomms)) return NULL;
  hk_ps_comm *c = &p->comms[p->ncomms];
  *c = (hk_ps_comm){.id = m->comm, .nranks = m->nranks, .job = q->job};
  memcpy(c->name, m->name, sizeof c->name);
  c->ranks = calloc((size_t)m->nranks, sizeof *c->ranks);
  if (!c->ranks) return NULL;
  for (int r = 0; r < c->nranks; r++) c->ranks[r].presence = HK_PRESENCE_UNKNOWN;
  p->ncomms++;
  return c;
}

static hk_status collect_take_answers(hk_ps *p) {
  char host[64] = "";
  (void)gethostname(host, sizeof host - 1);
  for (int i = 0; i < p->nprocesses; i++) {
    const hk_status_process *q = &p->processes[i];
    p->refused += q->refused;
    bool again = false; /* a process has a socket for each copy of the library that is linked into it */
    for (int k = 0; k < i; k++) again |= p->processes[k].pid == q->pid && !p->processes[k].answers;
    p->silent += !q->answers && !q->refused && !q->strange && !again;
    p->strange += q->strange;
    for (int k = 0; k < q->nmembers; k++) {
      const hk_status_member *m = &q->members[k];
      hk_ps_comm *c = collect_comm_of(p, q, m);
      if (!c) return HK_FAIL_ERRNO("no memory for a communicator of %d ranks", m->nranks);
      hk_ps_rank *r = &c->ranks[m->rank];
      *r = (hk_ps_rank){.here = true, .pid = q->pid, .presence = HK_PRESENCE_ANSWERS, .activity = m->activity};
      memcpy(r->host, host, sizeof r->host);
      if (m->contacts) c->source = m;
    }
  }
  return HK_OK;
}

/* ---- the other ranks: asked over the network, several at a time ---- */

typedef struct collect_round {
  hk_ps *p;
  _Atomic(int) next; /* of all ranks of all communicators, one after another */
  uint64_t deadline_ns;
  const hk_settings *settings;
  const hk_ps_patience *patience;
} collect_round;

static hk_ps_rank *collect_nth(hk_ps *p, int n, hk_ps_comm **comm, int *rank) {
  for (int i = 0; i < p->ncomms; i++) {
    *comm = &p->comms[i];
    if (n < p->comms[i].nranks) return &p->comms[i].ranks[*rank = n];
    n -= p->comms[i].nranks;
  }
  return NULL;
}

static bool collect_same_host(const hk_contact *a, const hk_contact *b) {
  hk_addr x = a->at[0], y = b->at[0];
  hk_addr_set_port(&x, 0);
  hk_addr_set_port(&y, 0);
  return hk_addr_equal(&x, &y);
}

/* Fills in what the contact of a rank tells. True: its process is here, and stopped. */
static bool collect_place(const hk_ps *p, const hk_ps_comm *c, int rank, hk_ps_rank *r) {
  const hk_ps_rank *teller = &c->ranks[c->source->rank];
  hk_contact at, here;
  char text[HK_ADDR_TEXT];
  if (!hk_contact_decode(&at, c->source->contacts + (size_t)rank * HK_CONTACT_BYTES)) return false;
  r->pid = (int)at.pid;
  if (!hk_contact_decode(&here, c->source->contacts + (size_t)c->source->rank * HK_CONTACT_BYTES) ||
      !collect_same_host(&at, &here)) {
    snprintf(r->host, sizeof r->host, "%s", hk_addr_format(&at.at[0], text));
    r->host[strcspn(r->host, "<")] = 0; /* its port */
    return false;
  }
  memcpy(r->host, teller->host, sizeof r->host);
  for (int i = 0; i < p->nprocesses; i++)
    if (p->processes[i].stopped && p->processes[i].pid == r->pid) return true;
  return false;
}

static void *collect_ask(void *arg) {
  collect_round *x = arg;
  hk_ps_comm *c;
  hk_ps_rank *r;
  int rank;
  /* relaxed: each number is taken once; what it stands for was written before the threads began */
  while ((r = collect_nth(x->p, atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed), &c, &rank))) {
    const uint64_t now = hk_now_ns();
    if (r->here || !c->source || now >= x->deadline_ns) continue;
    bool member;
    const uint64_t own = now + x->patience->rank_ns, until = own < x->deadline_ns ? own : x->deadline_ns;
    if (collect_place(x->p, c, rank, r)) {
      r->presence = HK_PRESENCE_STOPPED;
      continue;
    }
    r->presence = hk_status_ask(c->source, x->settings, rank, until, x->patience->stop, &r->activity, &member);
    r->joins = r->presence == HK_PRESENCE_ANSWERS && !member;
  }
  return NULL;
}

static void collect_ask_others(hk_ps *p, const hk_ps_patience *patience) {
  pthread_t threads[ASKERS];
  int n = 0, missing = 0;
  collect_round x = {
      .p = p, .deadline_ns = hk_now_ns() + patience->others_ns, .settings = hk_settings_now(), .patience = patience};
  for (int i = 0; i < p->ncomms; i++)
    for (int r = 0; r < p->comms[i].nranks; r++) missing += !p->comms[i].ranks[r].here;
  while (n < missing && n < ASKERS && !hk_thread_start(&threads[n], 0, collect_ask, &x)) n++;
  if (missing && !n) collect_ask(&x);
  while (n > 0) pthread_join(threads[--n], NULL);
}

/* ---- the verdict ---- */

/* The newest call of a rank that answers. */
static const char *collect_call(const hk_ps_rank *r, char *text, size_t bytes) {
  const hk_activity *a = &r->activity;
  const hk_operation o = {
      .count = a->count, .root = a->root, .coll = a->coll, .p2p = a->p2p, .dtype = a->dtype, .redop = a->redop};
  hk_operation_describe(&o, text, bytes);
  return text;
}

static bool collect_waits(const hk_ps_rank *r) {
  return r->presence == HK_PRESENCE_ANSWERS && r->activity.phase != HK_PHASE_IDLE && r->activity.waits_for >= 0;
}

/* What most ranks that have begun operation `newest` call it; 0: not known. */
static uint32_t collect_signature(const hk_ps_comm *c) {
  uint32_t best = 0;
  int most = 0;
  for (int i = 0; i < c->nranks; i++) {
    const hk_activity *a = &c->ranks[i].activity;
    int n = 0;
    if (a->sequence != c->newest || !a->signature) continue;
    for (int k = 0; k < c->nranks; k++)
      n += c->ranks[k].activity.sequence == c->newest && c->ranks[k].activity.signature == a->signature;
    if (n > most) most = n, best = a->signature;
  }
  return best;
}

typedef enum collect_guilt { PS_SILENT, PS_LATE, PS_DIFFERS, PS_BLOCKS, PS_NONE } collect_guilt;

static bool collect_is(const hk_ps_comm *c, const hk_ps_rank *r, collect_guilt g, uint32_t signature) {
  const hk_activity *a = &r->activity;
  const bool answers = r->presence == HK_PRESENCE_ANSWERS;
  switch (g) {
    case PS_SILENT: return !answers && r->presence != HK_PRESENCE_UNKNOWN && r->presence != HK_PRESENCE_LEFT;
    case PS_LATE: return answers && (r->joins || (a->sequence < c->newest && !collect_waits(r)));
    case PS_DIFFERS:
      return answers && a->sequence == c->newest && signature && a->signature && a->signature != signature;
    case PS_BLOCKS: {
      bool awaited = false;
      for (int k = 0; k < c->nranks; k++)
        awaited |= collect_waits(&c->ranks[k]) && &c->ranks[c->ranks[k].activity.waits_for % c->nranks] == r;
      return answers && awaited && !collect_waits(r);
    }
    case PS_NONE:
    default: return false;
  }
}

/* The guilty rank in words, to follow "rank 3 ". */
static void collect_describe(const hk_ps_comm *c, int rank, collect_guilt g, uint32_t signature, char *text,
                             size_t bytes) {
  const hk_ps_rank *r = &c->ranks[rank];
  char own[160], other[160];
  int k = 0;
  while (g == PS_DIFFERS && k < c->nranks &&
         (c->ranks[k].activity.sequence != c->newest || c->ranks[k].activity.signature != signature))
    k++;
  if (r->joins)
    snprintf(text, bytes, "has not joined the communicator yet");
  else if (g == PS_DIFFERS && k < c->nranks)
    snprintf(text, bytes, "made another call as operation %llu: %s, and rank %d %s", (unsigned long long)c->newest,
             collect_call(r, own, sizeof own), k, collect_call(&c->ranks[k], other, sizeof other));
  else
    hk_activity_describe(&r->activity, r->presence, text, bytes);
}

static void collect_judge(hk_ps_comm *c, unsigned late_ms) {
  static const char *const words[] = {[PS_SILENT] = "do not answer",
                                      [PS_LATE] = "are late",
                                      [PS_DIFFERS] = "are in another call",
                                      [PS_BLOCKS] = "are awaited"};
  int ranks[HK_RANKS_LISTED], n = 0, waiting = 0;
  bool failed = false;
  char list[160], does[480];
  for (int r = 0; r < c->nranks; r++) {
    const hk_activity *a = &c->ranks[r].activity;
    failed |= c->ranks[r].presence == HK_PRESENCE_ANSWERS && a->failure;
    if (c->ranks[r].presence == HK_PRESENCE_ANSWERS && a->sequence > c->newest) c->newest = a->sequence;
    if (!collect_waits(&c->ranks[r])) continue;
    waiting++;
    if (a->phase_ms > c->waited_ms) c->waited_ms = a->phase_ms;
  }
  const uint32_t signature = collect_signature(c);
  for (collect_guilt g = PS_SILENT; g < PS_NONE && !n; g++) {
    /* calls that differ have ended the communicator by now */
    if (g != PS_SILENT && !(g == PS_DIFFERS && failed) && (!waiting || c->waited_ms < late_ms)) continue;
    for (int r = 0; r < c->nranks; r++) {
      if (!collect_is(c, &c->ranks[r], g, signature)) continue;
      c->ranks[r].guilty = true;
      if (n < HK_RANKS_LISTED) ranks[n] = r;
      n++;
    }
    if (!n) continue;
    hk_ranks_describe(ranks, n, list, sizeof list);
    collect_describe(c, ranks[0], g, signature, does, sizeof does);
    int used = 0;
    if (n > 1) used = snprintf(c->verdict, sizeof c->verdict, "%s %s; ", list, words[g]);
    used += snprintf(c->verdict + used, sizeof c->verdict - (size_t)used, "rank %d %s", ranks[0], does);
    if (waiting && used > 0 && (size_t)used < sizeof c->verdict)
      snprintf(c->verdict + used, sizeof c->verdict - (size_t)used, "; %d ranks wait, for %.1f s", waiting,
               (double)c->waited_ms * 1e-3);
  }
}

hk_status hk_ps_collect(hk_ps *out, unsigned late_ms, const hk_ps_patience *p) {
  if (!p) p = &collect_patience;
  *out = (hk_ps){.ncomms = 0};
  HK_OR_RETURN(hk_status_list(&out->processes, &out->nprocesses, p->process_ns, p->stop));
  HK_OR_RETURN(collect_take_answers(out));
  collect_ask_others(out, p);
  for (int i = 0; i < out->ncomms; i++) {
    collect_judge(&out->comms[i], late_ms);
    hk_ps_find_late(&out->comms[i]);
  }
  return HK_OK;
}

void hk_ps_free(hk_ps *p) {
  for (int i = 0; i < p->ncomms; i++) free(p->comms[i].ranks);
  free(p->comms);
  hk_status_list_free(p->processes, p->nprocesses);
}

/* ---- in words ---- */

const char *hk_ps_state(const hk_ps_rank *r) {
  static const char *const words[] = {[HK_PRESENCE_ANSWERS] = "runs",
                                      [HK_PRESENCE_STOPPED] = "does not answer",
                                      [HK_PRESENCE_LEFT] = "has left",
                                      [HK_PRESENCE_GONE] = "is gone",
                                      [HK_PRESENCE_UNREACHABLE] = "cannot be reached",
                                      [HK_PRESENCE_UNKNOWN] = "was not asked"};
  return r->joins ? "has not joined yet" : words[r->presence];
}

const char *hk_ps_does(const hk_ps_rank *r, char *text, size_t bytes) {
  static const char *const phases[HK_PHASE_COUNT] = {
      [HK_PHASE_IDLE] = "outside of calls", [HK_PHASE_INIT] = "init",        [HK_PHASE_SPLIT] = "ncclCommSplit",
      [HK_PHASE_SHRINK] = "ncclCommShrink", [HK_PHASE_OPERATION] = "",       [HK_PHASE_FINALIZE] = "ncclCommFinalize",
      [HK_PHASE_DESTROY] = "destroy",       [HK_PHASE_GROW] = "ncclCommGrow"};
  const hk_activity *a = &r->activity;
  if (r->does[0]) return r->does;
  if (r->presence != HK_PRESENCE_ANSWERS || r->joins) return hk_ps_state(r);
  if (a->phase < HK_PHASE_COUNT && a->phase != HK_PHASE_OPERATION) return phases[a->phase];
  return collect_call(r, text, bytes);
}
