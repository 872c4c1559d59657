/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that do not match: which rank differs from most, and both calls in words. */
#include "mismatch.h"
#include <stdlib.h>
#include <string.h>
#include "../core/call.h"
#include "../kernels/exec.h"
#include "../transport/status_page.h"
#include "watch.h"

enum {
  VOICES = 64,     /* ranks that are asked at most */
  ROOTS = 1024,    /* roots that are tried at most to read a signature */
  RANKS_LISTED = 8 /* in a text */
};
static const uint64_t ask_ns = 250 * 1000000u, asking_ns = 1000 * 1000000u; /* one rank; all */
static const uint64_t compare_ns = 100 * 1000000u;                          /* the same, if nothing is wrong yet */
static const uint64_t coming_ns = 300 * 1000000u; /* for ranks that have not made the call yet */

#define ADVICE                                                                                                         \
  "make the same call with the same count (or counts), type, operator and root on all ranks, in the same order"

static int voices_for(const hk_call_report *v, int n, uint32_t signature) {
  int count = 0;
  for (int i = 0; i < n; i++) count += v[i].signature == signature;
  return count;
}

int hk_mismatch_odd(const hk_call_report *v, int n, int *right) {
  int lowest = 0, most = 0;
  bool shared = false;
  for (int i = 1; i < n; i++)
    if (v[i].rank < v[lowest].rank) lowest = i;
  *right = lowest;
  for (int i = 0; i < n; i++) {
    int count = voices_for(v, n, v[i].signature);
    if (count > most) {
      most = count;
      *right = i;
      shared = false;
    } else if (count == most && v[i].signature != v[*right].signature) {
      shared = true;
    }
  }
  if (shared) *right = lowest;
  int odd = -1;
  for (int i = 0; i < n; i++)
    if (v[i].signature != v[*right].signature && (odd < 0 || v[i].rank < v[odd].rank)) odd = i;
  return odd;
}

/* "rank 3", "ranks 0, 2 and 4", "ranks 0, 1, 2 and 12 more". */
static void list_ranks(const hk_call_report *v, int n, uint32_t signature, char *text, size_t bytes) {
  int total = voices_for(v, n, signature), done = 0, shown = total > RANKS_LISTED ? RANKS_LISTED : total;
  size_t used = (size_t)snprintf(text, bytes, "rank%s ", total > 1 ? "s" : "");
  for (int i = 0; i < n && done < shown && used < bytes; i++) {
    if (v[i].signature != signature) continue;
    const char *sep = done == 0 ? "" : done + 1 == total ? " and " : ", ";
    used += (size_t)snprintf(text + used, bytes - used, "%s%d", sep, v[i].rank);
    done++;
  }
  if (shown < total && used < bytes) snprintf(text + used, bytes - used, " and %d more", total - shown);
}

void hk_mismatch_text(const hk_call_report *v, int n, int odd, int right, uint64_t operation, char *text,
                      size_t bytes) {
  char wrong[96], others[96];
  bool all = true;
  list_ranks(v, n, v[odd].signature, wrong, sizeof wrong);
  list_ranks(v, n, v[right].signature, others, sizeof others);
  for (int i = 0; i < n; i++) all = all && (v[i].signature == v[odd].signature || v[i].signature == v[right].signature);
  snprintf(text, bytes, "the ranks disagree about operation %llu: %s called %s, but %s called %s%s: " ADVICE,
           (unsigned long long)operation, wrong, v[odd].call, others, v[right].call,
           all ? "" : ", and others called something else again");
}

/* ---- what the ranks called ---- */

/* True if another rank has raised a verdict, or there is another failure. */
static bool too_late(ncclComm_t c) { return atomic_load(&c->health.failure) != 0; }

/* True if `signature` is that of one of our last calls with any root. *theirs: that call. */
static bool read_signature(ncclComm_t c, uint32_t signature, hk_call *theirs, uint64_t *operation) {
  uint64_t now = c->order.sequence;
  for (uint64_t k = now; k > 0 && now - k < HK_STATUS_PAGE_ENTRIES; k--) {
    hk_status_page_op o;
    if (!hk_status_page_read_at(c->order.page, k, &o)) continue;
    *theirs = (hk_call){.count = (size_t)o.count, .coll = o.coll, .dtype = o.dtype, .redop = o.op};
    *operation = k;
    for (; theirs->root < c->nranks && theirs->root < ROOTS; theirs->root++)
      if (hk_signature_at(hk_call_signature(theirs), k) == signature) return true;
  }
  return false;
}

/* Fills *v with the call that the rank made as that operation, from its activity; false if it is not known (yet). */
static bool take_voice(ncclComm_t c, hk_call_report *v, int rank, uint64_t operation, const hk_activity *a) {
  hk_call call = {.count = (size_t)a->count, .coll = a->coll, .dtype = a->dtype, .redop = a->redop, .root = a->root};
  uint64_t k;
  *v = (hk_call_report){.rank = rank, .signature = hk_watch_signature(a, operation)};
  if (!v->signature) return false;
  bool known = hk_call_signature(&call) == v->signature;
  if (!known) known = read_signature(c, hk_signature_at(v->signature, operation), &call, &k) && k == operation;
  if (known)
    hk_watch_describe(&call, v->call, sizeof v->call);
  else
    snprintf(v->call, sizeof v->call, "something else");
  return true;
}

/* Asks all ranks in order, and asks again those that have not made the call yet. Returns the number of ranks that have
 * made a call as this operation. */
static int gather(ncclComm_t c, uint64_t operation, const hk_call *call, int peer, hk_call_report *v) {
  uint64_t now = hk_now_ns(), until = now + asking_ns, late = now + coming_ns;
  int n = 0, coming, asked = c->nranks < VOICES ? c->nranks : VOICES;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  do {
    n = coming = 0;
    for (int i = 0; i <= asked && !too_late(c); i++) {
      int r = i < asked ? i : peer; /* the peer last, if there are more ranks than are asked */
      hk_activity a;
      if (i == asked && peer < asked) break;
      if (r == c->rank) {
        v[n] = (hk_call_report){.rank = r, .signature = hk_call_signature(call)};
        hk_watch_describe(call, v[n++].call, sizeof v->call);
      } else if (hk_watch_call_of(c, r, operation, hk_now_ns() < until ? ask_ns : 0, &a)) {
        if (take_voice(c, &v[n], r, operation, &a))
          n++;
        else if (a.sequence < operation)
          coming++;
      }
    }
    (void)hk_wait_pause(&w);
  } while (coming && hk_now_ns() < late && !too_late(c));
  return n;
}

static void give(ncclComm_t c, int rank, const char *text) {
  if (!too_late(c)) hk_failure_raise(c, HK_EVENT_VERDICT, rank, HK_ERR_USAGE, text);
}

/* Raises the verdict if the reports show a mismatch; false if not. `call` is this rank's operation number
 * `operation`. */
static bool judge(ncclComm_t c, uint64_t operation, const hk_call *call, int peer) {
  hk_call_report *v = malloc((VOICES + 1) * sizeof *v);
  char text[sizeof c->health.cause.text];
  int n = v ? gather(c, operation, call, peer, v) : 0, right, odd = n ? hk_mismatch_odd(v, n, &right) : -1;
  if (odd >= 0) {
    hk_mismatch_text(v, n, odd, right, operation, text, sizeof text);
    give(c, v[odd].rank, text);
  }
  free(v);
  return odd >= 0;
}

void hk_mismatch_found(ncclComm_t c, const hk_call *call, int peer) {
  char text[sizeof c->health.cause.text], mine[160];
  if (too_late(c) || judge(c, c->order.sequence, call, peer)) return;
  hk_watch_describe(call, mine, sizeof mine);
  snprintf(text, sizeof text, "rank %d is in %s, operation %llu, but another rank called something else there: " ADVICE,
           c->rank, mine, (unsigned long long)c->order.sequence);
  give(c, peer >= 0 ? peer : c->rank, text);
}

/* ---- a message that does not fit ---- */

/* Both ranks are in the same call now, so the message is left over from an earlier call. */
static void describe_left_over(ncclComm_t c, const hk_exec *x, const char *mine, char *text, size_t bytes) {
  hk_call theirs;
  hk_status_page_op o;
  uint64_t k;
  char a[160], b[160];
  if (read_signature(c, x->bad_signature, &theirs, &k) && hk_status_page_read_at(c->order.page, k, &o) &&
      o.root != theirs.root) {
    hk_watch_describe(&theirs, a, sizeof a);
    theirs.root = o.root;
    hk_watch_describe(&theirs, b, sizeof b);
    snprintf(text, bytes, "the ranks disagree about operation %llu: rank %d called %s, but rank %d called %s: " ADVICE,
             (unsigned long long)k, x->bad_peer, a, c->rank, b);
    return;
  }
  snprintf(text, bytes,
           "rank %d, in %s (operation %llu), found a message of rank %d with %u bytes that belongs to another "
           "operation, where these ranks made different calls: " ADVICE,
           c->rank, mine, (unsigned long long)c->order.sequence, x->bad_peer, x->bad_bytes);
}

/* True if both ranks made the same call, but their counts for each other differ. The text names both counts. */
static bool describe_pair(ncclComm_t c, const hk_call *call, const hk_exec *x, char *text, size_t bytes) {
  hk_activity a;
  uint64_t operation = c->order.sequence;
  size_t unit = hk_dtype_size((hk_dtype)call->dtype), sent = hk_length_of_mark(x->bad_signature ^ x->signature);
  if (!hk_coll_pairs((hk_coll)call->coll) || sent % unit) return false;
  if (hk_watch_call_of(c, x->bad_peer, operation, ask_ns, &a)) { /* or it has left */
    uint32_t theirs = hk_watch_signature(&a, operation);
    if (theirs && theirs != hk_call_signature(call)) return false;
  }
  snprintf(text, bytes,
           "in %s, operation %llu, rank %d sends rank %d %zu elements of %s, but rank %d expects %zu: make "
           "sendcounts[%d] of rank %d and recvcounts[%d] of rank %d equal",
           hk_coll_name((hk_coll)call->coll), (unsigned long long)operation, x->bad_peer, c->rank, sent / unit,
           hk_dtype_name((hk_dtype)call->dtype), c->rank, (size_t)x->expected_length / unit, c->rank, x->bad_peer,
           x->bad_peer, c->rank);
  return true;
}

void hk_mismatch_slot(ncclComm_t c, const hk_call *call, const hk_exec *x) {
  char text[sizeof c->health.cause.text], mine[160], now[400];
  hk_activity a;
  if (too_late(c) || judge(c, c->order.sequence, call, x->bad_peer)) return;
  if (describe_pair(c, call, x, text, sizeof text)) {
    give(c, x->bad_peer, text);
    return;
  }
  hk_watch_describe(call, mine, sizeof mine);
  if (x->bad_signature == x->signature) {
    snprintf(text, sizeof text, "rank %d in %s: rank %d sent %u bytes where %u were expected", c->rank, mine,
             x->bad_peer, x->bad_bytes, x->expected_bytes);
    if (!too_late(c)) hk_failure_raise(c, HK_EVENT_VERDICT, x->bad_peer, HK_ERR_INTERNAL, text);
    return;
  }
  hk_presence p = hk_watch_ask(c, x->bad_peer, ask_ns, &a);
  if (p == HK_PRESENCE_ANSWERS && a.sequence != c->order.sequence) {
    hk_activity_describe(&a, p, now, sizeof now);
    snprintf(text, sizeof text,
             "rank %d is in %s, operation %llu, but rank %d called something else there (its message has %u bytes, %u "
             "were expected); rank %d %s: " ADVICE,
             c->rank, mine, (unsigned long long)c->order.sequence, x->bad_peer, x->bad_bytes, x->expected_bytes,
             x->bad_peer, now);
  } else {
    describe_left_over(c, x, mine, text, sizeof text);
  }
  give(c, x->bad_peer, text);
}

/* ---- calls on a GPU ----
 * Messages between GPUs carry no operation number, because a captured graph may be replayed.
 * So the mismatch is the first of the last operations in which the two ranks made different calls. */

/* This rank's operation k, from its status page: the calling thread may be in the next call. */
static bool own_call(ncclComm_t c, uint64_t k, hk_call *call) {
  hk_status_page_op o;
  if (!hk_status_page_read_at(c->order.page, k, &o) || !o.signature) return false;
  *call = (hk_call){.count = (size_t)o.count, .coll = o.coll, .dtype = o.dtype, .redop = o.op, .root = o.root};
  return hk_call_signature(call) == o.signature;
}

static bool judge_history(ncclComm_t c, int peer, uint64_t newest) {
  hk_call call;
  hk_activity a;
  uint64_t first = newest > HK_ACTIVITY_PAST ? newest - HK_ACTIVITY_PAST : 1;
  bool page = hk_wire_status_page(c, peer) !=
              NULL; /* a page has the calls; an answer has only signatures of past calls */
  if (!page && !hk_watch_call_of(c, peer, newest, ask_ns, &a)) return false;
  for (uint64_t k = first; k <= newest; k++) {
    if (!own_call(c, k, &call) || (page && !hk_watch_call_of(c, peer, k, 0, &a))) continue;
    uint32_t theirs = hk_watch_signature(&a, k);
    if (theirs && theirs != hk_call_signature(&call)) return judge(c, k, &call, peer);
  }
  return false;
}

bool hk_mismatch_look_back(ncclComm_t c) {
  hk_activity here;
  uint64_t until = hk_now_ns() + asking_ns;
  hk_watch_report(c, &here);
  for (int r = 0; r < c->nranks && r < VOICES && !too_late(c) && hk_now_ns() < until; r++)
    if (r != c->rank && judge_history(c, r, here.sequence)) return true;
  return false;
}

void hk_mismatch_message(ncclComm_t c, int peer) {
  char text[sizeof c->health.cause.text], mine[400], theirs[400];
  hk_activity here, there;
  if (too_late(c)) return;
  hk_watch_report(c, &here);
  bool known = peer >= 0 && peer < c->nranks;
  if (known && judge_history(c, peer, here.sequence)) return;
  hk_presence p = known ? hk_watch_ask(c, peer, ask_ns, &there) : HK_PRESENCE_UNKNOWN;
  hk_activity_describe(&here, HK_PRESENCE_ANSWERS, mine, sizeof mine);
  hk_activity_describe(&there, p, theirs, sizeof theirs);
  if (p == HK_PRESENCE_ANSWERS && hk_coll_pairs((hk_coll)here.coll) && here.sequence == there.sequence) {
    snprintf(text, sizeof text,
             "in %s, rank %d sends rank %d another number of elements than that one expects: make sendcounts[%d] of "
             "rank %d and recvcounts[%d] of rank %d equal",
             hk_coll_name((hk_coll)here.coll), peer, c->rank, c->rank, peer, peer, c->rank);
    give(c, peer, text);
    return;
  }
  snprintf(
      text, sizeof text,
      "rank %d got a message of rank %d that belongs to another call than its own; rank %d %s; rank %d %s: " ADVICE,
      c->rank, peer, c->rank, mine, peer, theirs);
  give(c, known ? peer : c->rank, text);
}

/* ---- a send and a receive ---- */

/* Collects the sizes of all ranks' transfers; returns their number. */
static int gather_sizes(ncclComm_t c, size_t bytes, uint64_t until, hk_call_report *v) {
  int n = 0;
  for (int r = 0; r < c->nranks && r < VOICES && !too_late(c); r++) {
    hk_activity a = {.moves = bytes};
    if (r != c->rank && (hk_now_ns() > until || hk_watch_ask(c, r, ask_ns, &a) != HK_PRESENCE_ANSWERS)) continue;
    if (a.moves) v[n++] = (hk_call_report){.rank = r, .signature = (uint32_t)(a.moves ^ a.moves >> 32)};
  }
  return n;
}

/* Returns the one of the two ranks whose transfer differs in size from most ranks' transfers. Waits a little for ranks
 * that have not begun theirs. The sender if there is no majority. */
static int odd_transfer(ncclComm_t c, int sender, size_t bytes) {
  hk_call_report *v = malloc(VOICES * sizeof *v);
  uint64_t now = hk_now_ns(), late = now + coming_ns;
  int odd = -1, right;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (v && odd < 0 && c->nranks > 2 && hk_now_ns() < late && !too_late(c)) {
    int n = gather_sizes(c, bytes, now + asking_ns, v), at = hk_mismatch_odd(v, n, &right);
    (void)hk_wait_pause(&w);
    if (at < 0 || voices_for(v, n, v[right].signature) * 2 <= n) continue;
    for (int i = 0; i < n; i++)
      if (v[i].signature != v[right].signature && (v[i].rank == c->rank || v[i].rank == sender)) odd = v[i].rank;
  }
  free(v);
  return odd >= 0 ? odd : sender;
}

void hk_mismatch_transfer(ncclComm_t c, const hk_call *call, size_t bytes, uint32_t piece) {
  char text[sizeof c->health.cause.text], what[160];
  int odd = odd_transfer(c, call->root, bytes);
  if (too_late(c)) return;
  hk_watch_describe(call, what, sizeof what);
  if (odd == c->rank)
    snprintf(
        text, sizeof text,
        "rank %d, in %s, receives %zu bytes from rank %d, which sends a message of another size (a piece of %u bytes "
        "came): make count and type of the ncclSend and the ncclRecv equal",
        c->rank, what, bytes, call->root, piece);
  else
    snprintf(
        text, sizeof text,
        "rank %d sends a message of another size (a piece of %u bytes came) than the %zu bytes that rank %d receives "
        "in %s: make count and type of the ncclSend and the ncclRecv equal",
        call->root, piece, bytes, c->rank, what);
  hk_failure_raise(c, HK_EVENT_VERDICT, odd, HK_ERR_USAGE, text);
}

/* ---- ranks that only send ---- */

bool hk_mismatch_compare(ncclComm_t c, const hk_call *call) {
  /* If ranks disagree, some two neighbours disagree. The other ranks in the list help if large groups disagree. */
  const int some[] = {c->rank + 1, c->rank + c->nranks - 1, 0, c->nranks - 1, c->nranks / 2};
  uint64_t operation = c->order.sequence, until = hk_now_ns() + compare_ns;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(some); i++) {
    hk_activity a;
    int r = some[i] % c->nranks;
    uint32_t theirs = 0;
    if (r == c->rank) continue;
    while (!too_late(c) && hk_watch_call_of(c, r, operation, ask_ns, &a) && a.sequence < operation &&
           hk_now_ns() < until)
      (void)hk_wait_pause(&w);
    if (too_late(c)) return false;
    theirs = hk_watch_signature(&a, operation);
    if (theirs == 0 || theirs == hk_call_signature(call)) continue;
    hk_mismatch_found(c, call, r);
    return false;
  }
  return true;
}

bool hk_mismatch_look(ncclComm_t c) {
  const hk_call *call = c->order.current;
  if (!c->order.exec || !call) return false;
  for (int r = 0; r < c->nranks; r++) {
    hk_status_page *page = r == c->rank ? NULL : hk_wire_status_page(c, r);
    hk_status_page_op o;
    if (!page || !hk_status_page_read_at(page, c->order.sequence, &o)) continue;
    if (o.signature == c->order.exec->launch->signature) continue;
    hk_mismatch_found(c, call, r);
    return true;
  }
  return false;
}
