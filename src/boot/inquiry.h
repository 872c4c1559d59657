/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which ranks keep this one waiting: asks some ranks, follows the ranks that they wait for, and describes what was
 * found. One inquiry for all waits: those of the bootstrap (report.c), of operations and of launches on GPUs
 * (failure/watch.c). The caller says how a rank is asked and, for waits of another kind, which ranks block.
 */
#pragma once
#include "../base/wait.h"
#include "activity.h"

struct hk_settings; /* base/param.h */

typedef struct hk_found {
  int rank;
  hk_presence presence;
  bool blocks; /* it keeps others waiting, and does not wait itself */
  hk_activity activity;
} hk_found;

enum { HK_FOUND_MOST = 32 };
typedef struct hk_inquiry {
  hk_presence (*ask)(void *arg, int rank, uint64_t patience_ns, hk_activity *out); /* as hk_bootstrap_ask */
  bool (*blocks)(const struct hk_inquiry *q, const hk_found *f);                   /* NULL: by `phase` */
  void *arg;
  const hk_wait_env *wait; /* a failure ends the inquiry; NULL: it does not look */
  int rank, nranks;        /* of the rank that waits; it is not asked */
  const int *names;        /* the numbers of all ranks in messages; NULL: their own */
  hk_phase phase;          /* of the rank that waits */
  uint64_t sequence;       /* its newest operation */
  uint64_t patience_ns;    /* for one rank; the inquiry takes four times as long at most */
  bool chain;              /* hk_inquiry_follow also asks the ranks for which the asked ranks wait */
  uint64_t until_ns;       /* 0: not begun */
  bool cut;                /* not all ranks were asked */
  int n;
  /* after the inquiry: first ranks that do not answer, then other ranks that block, then ranks that wait themselves */
  hk_found at[HK_FOUND_MOST];
} hk_inquiry;

/* Asks ranks 0 to most - 1, and keeps those that block. */
void hk_inquiry_ask_all(hk_inquiry *q, int most);
/* Adds a rank that hk_inquiry_follow will ask, if there is room. */
void hk_inquiry_add(hk_inquiry *q, int rank);
/* Asks the ranks that were added, and keeps all answers. If the chain of waits is cut before its end, the last rank
 * that answered counts as the one that blocks. */
void hk_inquiry_follow(hk_inquiry *q);
int hk_inquiry_blocker(const hk_inquiry *q); /* the lowest rank that blocks; -1: none */

/* "rank 3", "ranks 0, 2 and 4", "ranks 0, 1, 2 and 12 more". `ranks` has the first HK_RANKS_LISTED of n. */
enum { HK_RANKS_LISTED = 8 };
void hk_ranks_describe(const int *ranks, int n, char *text, size_t bytes);
/* "; rank 2 is in ...; rank 3 ...; and 4 more ranks". */
void hk_inquiry_describe(const hk_inquiry *q, char *text, size_t bytes);

/* The facts of a wait that is too long. */
typedef struct hk_long_wait {
  int rank, nranks; /* as users know them */
  uint64_t waited_ns, comm;
  const char *name; /* of the communicator; NULL or empty: none */
  const char *call; /* "ncclCommSplit number 3" */
} hk_long_wait;
/* "rank 2 of 8 has waited 20 s in ncclCommSplit number 3 of communicator "dp" 0x12ab for rank 5; rank 5 is in ...". */
void hk_inquiry_report(const hk_inquiry *q, const hk_long_wait *w, char *text, size_t bytes);
/* Gives a report to the user: a warning that ends with `advice`, or an error if HOCKET_WATCHDOG_ABORT is set. */
hk_status hk_inquiry_give(const struct hk_settings *settings, const char *text, const char *advice);

/* True if a wait must be reported: when it has lasted `limit_ns` (0: never), and again after twice the time, at most
 * `between_ns` later (0: no such limit). *reported_ns: the length of the wait at its last report; 0 at first. */
static inline bool hk_inquiry_due(uint64_t *reported_ns, uint64_t waited_ns, uint64_t limit_ns, uint64_t between_ns) {
  if (waited_ns < *reported_ns) *reported_ns = 0; /* another wait than the one that was reported */
  uint64_t more = between_ns && *reported_ns > between_ns ? between_ns : *reported_ns;
  if (!limit_ns || waited_ns < limit_ns || waited_ns < *reported_ns + more) return false;
  *reported_ns = waited_ns;
  return true;
}
