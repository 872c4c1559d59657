/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that do not match: which rank differs from most, and both calls in words. */
#include "mismatch.h"
#include <stdarg.h>
#include <stdlib.h>
#include "../boot/inquiry.h" /* hk_ranks_describe */
#include "../core/call.h"
#include "../kernels/exec.h"
#include "../program/cursor.h"
#include "../transport/status_page.h"
#include "failure.h"
#include "watch.h"

enum {
  REPORTS = 64, /* ranks that are asked at most */
  ROOTS = 1024  /* roots that are tried at most to read a signature */
};
static const uint64_t mismatch_ask_ns = 250 * 1000000u, mismatch_asking_ns = 1000 * 1000000u; /* one rank; all */
static const uint64_t mismatch_compare_ns = 100 * 1000000u; /* the same, if nothing is wrong yet */
static const uint64_t mismatch_coming_ns = 300 * 1000000u;  /* for ranks that have not made the call yet */

#define ADVICE                                                                                                         \
  "make the same call with the same count (or counts), type, operator and root on all ranks, in the same order"

static int mismatch_count(const hk_call_report *v, int n, uint32_t signature) {
  int count = 0;
  for (int i = 0; i < n; i++) count += v[i].signature == signature;
  return count;
}

int hk_mismatch_outlier(const hk_call_report *v, int n, int *right) {
  int lowest = 0, most = 0, outlier = -1;
  for (int i = 1; i < n; i++)
    if (v[i].rank < v[lowest].rank) lowest = i;
  *right = lowest;
  for (int i = 0; i < n; i++) {
    int count = mismatch_count(v, n, v[i].signature);
    if (count > most) *right = i;
    if (count > most) most = count;
  }
  for (int i = 0; i < n; i++) /* as many ranks made another call */
    if (v[i].signature != v[*right].signature && mismatch_count(v, n, v[i].signature) == most) *right = lowest;
  for (int i = 0; i < n; i++)
    if (v[i].signature != v[*right].signature && (outlier < 0 || v[i].rank < v[outlier].rank)) outlier = i;
  return outlier;
}

static void mismatch_list(const hk_call_report *v, int n, uint32_t signature, char *text, size_t bytes) {
  int ranks[REPORTS + 1] = {0}, count = 0;
  for (int i = 0; i < n && i <= REPORTS; i++)
    if (v[i].signature == signature) ranks[count++] = v[i].rank;
  hk_ranks_describe(ranks, count, text, bytes);
}

void hk_mismatch_text(const hk_call_report *v, int n, int outlier, int right, uint64_t operation, char *text,
                      size_t bytes) {
  char wrong[96], others[96];
  mismatch_list(v, n, v[outlier].signature, wrong, sizeof wrong);
  mismatch_list(v, n, v[right].signature, others, sizeof others);
  bool all = mismatch_count(v, n, v[outlier].signature) + mismatch_count(v, n, v[right].signature) == n;
  snprintf(text, bytes, "the ranks disagree about operation %llu: %s called %s, but %s called %s%s: " ADVICE,
           (unsigned long long)operation, wrong, v[outlier].call, others, v[right].call,
           all ? "" : ", and others called something else again");
}

/* ---- what the ranks called ---- */

/* True if another rank has raised a verdict, or there is another failure. */
static bool mismatch_too_late(ncclComm_t c) { return atomic_load(&c->health.failure) != 0; }

/* Raises a verdict about the rank, unless another one was raised before. */
__attribute__((format(printf, 4, 5))) static void mismatch_raise(ncclComm_t c, int rank, hk_status code,
                                                                 const char *format, ...) {
  char text[HK_EVENT_TEXT];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (!mismatch_too_late(c)) hk_failure_raise(c, HK_EVENT_VERDICT, rank, code, text);
}

/* This rank's operation k, from its status page: the calling thread may be in the next call. */
static bool mismatch_own(ncclComm_t c, uint64_t k, hk_activity *a) {
  return hk_watch_call_of(c, c->rank, k, 0, a) && a->sequence == k;
}

/* True if `signature` is that of one of our last calls with any root. *theirs: that call. */
static bool mismatch_read_signature(ncclComm_t c, uint32_t signature, hk_call *theirs, uint64_t *operation) {
  uint64_t now = c->order.sequence;
  for (uint64_t k = now; k > 0 && now - k < HK_STATUS_PAGE_ENTRIES; k--) {
    hk_activity a;
    if (!mismatch_own(c, k, &a)) continue;
    *theirs = hk_watch_call(&a);
    *operation = k;
    for (theirs->root = 0; theirs->root < c->nranks && theirs->root < ROOTS; theirs->root++)
      if (hk_signature_at(hk_call_signature(theirs), k) == signature) return true;
  }
  return false;
}

/* Fills *v with the call that the rank made as that operation, from its activity; false if it is not known (yet). */
static bool mismatch_take(ncclComm_t c, hk_call_report *v, int rank, uint64_t operation, const hk_activity *a) {
  hk_call call = hk_watch_call(a);
  uint64_t k;
  *v = (hk_call_report){.rank = rank, .signature = hk_watch_signature(a, operation), .call = "something else"};
  if (!v->signature) return false;
  bool known = hk_call_signature(&call) == v->signature;
  for (uint8_t inplace = HK_INPLACE_YES; inplace <= HK_INPLACE_NO && !known; inplace++) {
    call.options.inplace = inplace;
    known = hk_call_signature(&call) == v->signature;
  }
  if (!known) known = mismatch_read_signature(c, hk_signature_at(v->signature, operation), &call, &k) && k == operation;
  if (known) hk_watch_describe(&call, v->call, sizeof v->call);
  return true;
}

/* Asks all ranks in order, and asks again those that have not made the call yet. Returns the number of ranks that have
 * made a call as this operation. */
static int mismatch_gather(ncclComm_t c, uint64_t operation, const hk_call *call, int peer, hk_call_report *v) {
  uint64_t now = hk_now_ns(), until = now + mismatch_asking_ns, late = now + mismatch_coming_ns;
  int n = 0, coming, asked = c->nranks < REPORTS ? c->nranks : REPORTS;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  do {
    n = coming = 0;
    for (int i = 0; i <= asked && !mismatch_too_late(c); i++) {
      int r = i < asked ? i : peer; /* the peer last, if there are more ranks than are asked */
      hk_activity a;
      if (i == asked && peer < asked) break;
      if (r == c->rank) {
        v[n] = (hk_call_report){.rank = r, .signature = hk_call_signature(call)};
        hk_watch_describe(call, v[n++].call, sizeof v->call);
      } else if (hk_watch_call_of(c, r, operation, hk_now_ns() < until ? mismatch_ask_ns : 0, &a)) {
        if (mismatch_take(c, &v[n], r, operation, &a))
          n++;
        else if (a.sequence < operation)
          coming++;
      }
    }
    (void)hk_wait_pause(&w);
  } while (coming && hk_now_ns() < late && !mismatch_too_late(c));
  return n;
}

/* Raises the verdict if the reports show a mismatch; false if not. `call` is this rank's operation number
 * `operation`. */
static bool mismatch_find_outlier(ncclComm_t c, uint64_t operation, const hk_call *call, int peer) {
  hk_call_report *v = malloc((REPORTS + 1) * sizeof *v);
  char text[HK_EVENT_TEXT];
  int n = v ? mismatch_gather(c, operation, call, peer, v) : 0, right,
      outlier = n ? hk_mismatch_outlier(v, n, &right) : -1;
  if (outlier >= 0) {
    hk_mismatch_text(v, n, outlier, right, operation, text, sizeof text);
    mismatch_raise(c, v[outlier].rank, HK_ERR_USAGE, "%s", text);
  }
  free(v);
  return outlier >= 0;
}

hk_status hk_mismatch_found(ncclComm_t c, const hk_call *call, int peer) {
  char mine[160];
  if (mismatch_too_late(c) || mismatch_find_outlier(c, c->order.sequence, call, peer)) return HK_ERR_USAGE;
  hk_watch_describe(call, mine, sizeof mine);
  mismatch_raise(c, peer >= 0 ? peer : c->rank, HK_ERR_USAGE,
                 "rank %d is in %s, operation %llu, but another rank called something else there: " ADVICE, c->rank,
                 mine, (unsigned long long)c->order.sequence);
  return HK_ERR_USAGE;
}

/* True if the rank is known to have made another call than `signature` as that operation. *a: its answer. */
static bool mismatch_differs(ncclComm_t c, int rank, uint64_t operation, uint32_t signature, uint64_t patience_ns,
                             hk_activity *a) {
  uint32_t theirs = hk_watch_call_of(c, rank, operation, patience_ns, a) ? hk_watch_signature(a, operation) : 0;
  return theirs && theirs != signature;
}

/* ---- a message that does not fit ---- */

/* Both ranks are in the same call now, so the message is left over from an earlier call. */
static void mismatch_left_over(ncclComm_t c, const hk_exec *x, const char *mine) {
  hk_call theirs;
  hk_activity ours;
  uint64_t k;
  char a[160], b[160];
  if (mismatch_read_signature(c, x->bad_signature, &theirs, &k) && mismatch_own(c, k, &ours) &&
      ours.root != theirs.root) {
    hk_watch_describe(&theirs, a, sizeof a);
    theirs.root = ours.root;
    hk_watch_describe(&theirs, b, sizeof b);
    mismatch_raise(c, x->bad_peer, HK_ERR_USAGE,
                   "the ranks disagree about operation %llu: rank %d called %s, but rank %d called %s: " ADVICE,
                   (unsigned long long)k, x->bad_peer, a, c->rank, b);
  } else {
    mismatch_raise(c, x->bad_peer, HK_ERR_USAGE,
                   "rank %d, in %s (operation %llu), found a message of rank %d with %u bytes that belongs to another "
                   "operation, where these ranks made different calls: " ADVICE,
                   c->rank, mine, (unsigned long long)c->order.sequence, x->bad_peer, x->bad_bytes);
  }
}

/* True if both ranks made the same call, but their counts for each other differ. The verdict names both counts. */
static bool mismatch_pair(ncclComm_t c, const hk_call *call, const hk_exec *x) {
  hk_activity a;
  uint64_t operation = c->order.sequence;
  size_t unit = hk_dtype_size((hk_dtype)call->dtype), sent = hk_length_of_mark(x->bad_signature ^ x->signature);
  if (!hk_coll_pairs((hk_coll)call->coll) || sent % unit) return false;
  if (mismatch_differs(c, x->bad_peer, operation, hk_call_signature(call), mismatch_ask_ns, &a)) return false;
  mismatch_raise(c, x->bad_peer, HK_ERR_USAGE,
                 "in %s, operation %llu, rank %d sends rank %d %zu elements of %s, but rank %d expects %zu: make "
                 "sendcounts[%d] of rank %d and recvcounts[%d] of rank %d equal",
                 hk_coll_name((hk_coll)call->coll), (unsigned long long)operation, x->bad_peer, c->rank, sent / unit,
                 hk_dtype_name((hk_dtype)call->dtype), c->rank, (size_t)x->expected_length / unit, c->rank, x->bad_peer,
                 x->bad_peer, c->rank);
  return true;
}

void hk_mismatch_slot(ncclComm_t c, const hk_call *call, const hk_exec *x) {
  char mine[160], now[400];
  hk_activity a;
  if (mismatch_too_late(c) || mismatch_find_outlier(c, c->order.sequence, call, x->bad_peer)) return;
  if (mismatch_pair(c, call, x)) return;
  hk_watch_describe(call, mine, sizeof mine);
  if (x->bad_signature == x->signature) {
    mismatch_raise(c, x->bad_peer, HK_ERR_INTERNAL, "rank %d in %s: rank %d sent %u bytes where %u were expected",
                   c->rank, mine, x->bad_peer, x->bad_bytes, x->expected_bytes);
    return;
  }
  hk_presence p = hk_watch_ask(c, x->bad_peer, mismatch_ask_ns, &a);
  if (p != HK_PRESENCE_ANSWERS || a.sequence == c->order.sequence) {
    mismatch_left_over(c, x, mine);
    return;
  }
  hk_activity_describe(&a, p, now, sizeof now);
  mismatch_raise(c, x->bad_peer, HK_ERR_USAGE,
                 "rank %d is in %s, operation %llu, but rank %d called something else there (its message has %u bytes, "
                 "%u were expected); rank %d %s: " ADVICE,
                 c->rank, mine, (unsigned long long)c->order.sequence, x->bad_peer, x->bad_bytes, x->expected_bytes,
                 x->bad_peer, now);
}

/* ---- calls on a GPU ----
 * Messages between GPUs carry no operation number, because a captured graph may be replayed.
 * So the mismatch is the first of the last operations in which the two ranks made different calls. */

static bool mismatch_find_in_history(ncclComm_t c, int peer, uint64_t newest) {
  hk_activity a, ours;
  uint64_t first = newest > HK_ACTIVITY_PAST ? newest - HK_ACTIVITY_PAST : 1;
  /* a page has the calls; an answer has only signatures of past calls */
  bool page = hk_wire_status_page(c, peer) != NULL;
  if (!page && !hk_watch_call_of(c, peer, newest, mismatch_ask_ns, &a)) return false;
  for (uint64_t k = first; k <= newest; k++) {
    if (!mismatch_own(c, k, &ours) || (page && !hk_watch_call_of(c, peer, k, 0, &a))) continue;
    hk_call call = hk_watch_call(&ours);
    uint32_t theirs = hk_watch_signature(&a, k);
    if (!theirs || hk_call_signature(&call) != ours.signature) continue; /* not known, on one of the two sides */
    if (theirs != ours.signature) return mismatch_find_outlier(c, k, &call, peer);
  }
  return false;
}

hk_status hk_mismatch_look_back(ncclComm_t c) {
  hk_activity here;
  uint64_t until = hk_now_ns() + mismatch_asking_ns;
  hk_watch_report(c, &here);
  for (int r = 0; r < c->nranks && r < REPORTS && !mismatch_too_late(c) && hk_now_ns() < until; r++)
    if (r != c->rank && mismatch_find_in_history(c, r, here.sequence)) return HK_ERR_USAGE;
  return HK_OK;
}

hk_status hk_mismatch_message(ncclComm_t c, int peer) {
  char mine[400], theirs[400];
  hk_activity here, there;
  if (mismatch_too_late(c)) return HK_ERR_USAGE;
  hk_watch_report(c, &here);
  bool known = peer >= 0 && peer < c->nranks;
  if (known && mismatch_find_in_history(c, peer, here.sequence)) return HK_ERR_USAGE;
  hk_presence p = known ? hk_watch_ask(c, peer, mismatch_ask_ns, &there) : HK_PRESENCE_UNKNOWN;
  if (p == HK_PRESENCE_ANSWERS && hk_coll_pairs((hk_coll)here.coll) && here.sequence == there.sequence) {
    mismatch_raise(c, peer, HK_ERR_USAGE,
                   "in %s, rank %d sends rank %d another number of elements than that one expects: make sendcounts[%d] "
                   "of rank %d and recvcounts[%d] of rank %d equal",
                   hk_coll_name((hk_coll)here.coll), peer, c->rank, c->rank, peer, peer, c->rank);
    return HK_ERR_USAGE;
  }
  hk_activity_describe(&here, HK_PRESENCE_ANSWERS, mine, sizeof mine);
  hk_activity_describe(&there, p, theirs, sizeof theirs);
  mismatch_raise(c, known ? peer : c->rank, HK_ERR_USAGE,
                 "rank %d got a message of rank %d that belongs to another call than its own; rank %d %s; rank %d "
                 "%s: " ADVICE,
                 c->rank, peer, c->rank, mine, peer, theirs);
  return HK_ERR_USAGE;
}

/* ---- a send and a receive ---- */

/* Collects the sizes of all ranks' transfers; returns their number. */
static int mismatch_gather_sizes(ncclComm_t c, size_t bytes, uint64_t until, hk_call_report *v) {
  int n = 0;
  for (int r = 0; r < c->nranks && r < REPORTS && !mismatch_too_late(c); r++) {
    hk_activity a = {.moves = bytes};
    if (r != c->rank && (hk_now_ns() > until || hk_watch_ask(c, r, mismatch_ask_ns, &a) != HK_PRESENCE_ANSWERS))
      continue;
    if (a.moves) v[n++] = (hk_call_report){.rank = r, .signature = (uint32_t)(a.moves ^ a.moves >> 32)};
  }
  return n;
}

/* Returns the one of the two ranks whose transfer differs in size from most ranks' transfers. Waits a little for ranks
 * that have not begun theirs. The sender if there is no majority. */
static int mismatch_outlying_transfer(ncclComm_t c, int sender, size_t bytes) {
  hk_call_report *v = malloc(REPORTS * sizeof *v);
  uint64_t now = hk_now_ns(), late = now + mismatch_coming_ns;
  int outlier = -1, right;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (v && outlier < 0 && c->nranks > 2 && hk_now_ns() < late && !mismatch_too_late(c)) {
    int n = mismatch_gather_sizes(c, bytes, now + mismatch_asking_ns, v), at = hk_mismatch_outlier(v, n, &right);
    (void)hk_wait_pause(&w);
    if (at < 0 || mismatch_count(v, n, v[right].signature) * 2 <= n) continue;
    for (int i = 0; i < n; i++)
      if (v[i].signature != v[right].signature && (v[i].rank == c->rank || v[i].rank == sender)) outlier = v[i].rank;
  }
  free(v);
  return outlier >= 0 ? outlier : sender;
}

void hk_mismatch_transfer(ncclComm_t c, const hk_call *call, size_t bytes, uint32_t piece) {
  char what[160];
  int outlier = mismatch_outlying_transfer(c, call->root, bytes);
  hk_watch_describe(call, what, sizeof what);
  if (outlier == c->rank)
    mismatch_raise(c, outlier, HK_ERR_USAGE,
                   "rank %d, in %s, receives %zu bytes from rank %d, which sends a message of another size (a piece of "
                   "%u bytes came): make count and type of the ncclSend and the ncclRecv equal",
                   c->rank, what, bytes, call->root, piece);
  else
    mismatch_raise(c, outlier, HK_ERR_USAGE,
                   "rank %d sends a message of another size (a piece of %u bytes came) than the %zu bytes that rank %d "
                   "receives in %s: make count and type of the ncclSend and the ncclRecv equal",
                   call->root, piece, bytes, c->rank, what);
}

/* ---- ranks that only send ---- */

hk_status hk_mismatch_compare(ncclComm_t c, const hk_call *call) {
  /* If ranks disagree, some two neighbours disagree. The other ranks in the list help if large groups disagree. */
  const int some[] = {c->rank + 1, c->rank + c->nranks - 1, 0, c->nranks - 1, c->nranks / 2};
  uint64_t operation = c->order.sequence, until = hk_now_ns() + mismatch_compare_ns;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(some); i++) {
    hk_activity a;
    int r = some[i] % c->nranks;
    if (r == c->rank) continue;
    while (!mismatch_too_late(c) && hk_watch_call_of(c, r, operation, mismatch_ask_ns, &a) && a.sequence < operation &&
           hk_now_ns() < until)
      (void)hk_wait_pause(&w);
    if (mismatch_too_late(c)) return HK_ERR_USAGE;
    uint32_t theirs = hk_watch_signature(&a, operation);
    if (theirs == 0 || theirs == hk_call_signature(call)) continue;
    return hk_mismatch_found(c, call, r);
  }
  return HK_OK;
}

hk_status hk_mismatch_look(ncclComm_t c) {
  const hk_call *call = c->order.current;
  hk_activity a;
  if (!c->order.exec || !call) return HK_OK;
  for (int r = 0; r < c->nranks; r++) {
    uint32_t signature = c->order.exec->launch->signature;
    if (r == c->rank || !mismatch_differs(c, r, c->order.sequence, signature, 0, &a)) continue;
    return hk_mismatch_found(c, call, r);
  }
  return HK_OK;
}
