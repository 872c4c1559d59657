/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators made from others: who the members are, and what may end the wait for them. */
#ifndef HK_COMM_CHILDREN_H
#define HK_COMM_CHILDREN_H
#include "../boot/bootstrap.h"
#include "../core/comm.h"

/* While a communicator comes about: its waits see the end of its parent too, and shrinks whose lists differ. */
typedef struct hk_children_watch {
  ncclComm_t c;
  const hk_init *how;
  /* Of a shrink: */
  char hash[17];               /* of its list */
  uint32_t attempt;            /* with this list; 0: not begun */
  uint64_t differ_ns;          /* since when another member's list differs; 0: none does */
  uint64_t behind_ns;          /* since when another member is in a later attempt; 0: none is */
  char verdict[HK_EVENT_TEXT]; /* that they differ; empty: there is none */
  /* Of the failures of others: */
  char key[40];      /* names the child in notices; empty: it has none */
  char call[24];     /* of a shrink: names it by its number, for notices of ranks that have no list */
  int *members;      /* the ranks that make this child; NULL: not known yet */
  bool exchanging;   /* the parent's allgather has begun on this rank */
  bool anew;         /* of a split: the parent had ended, and the exchange was made without it */
  uint64_t heard_ns; /* when the first notice of a failure was seen; 0: none was */
  bool settled;      /* the error text is the one that all members report */
} hk_children_watch;
void hk_children_watch_begin(hk_children_watch *w, ncclComm_t c, const hk_init *how);
/* Gives rc, or the cause of it if that is known here.  Reports this rank's failure to the members that wait for it. */
hk_status hk_children_watch_end(hk_children_watch *w, hk_status rc);

/* For each child of a parent, in the order of the calls: gives it its turn. `how` may be of an init without a
 * parent. */
void hk_children_enter(hk_init *how);
/* The child is there, or has failed. */
void hk_children_leave(ncclComm_t parent);
/* Instead of making the communicator, for which this rank lacks something: the thread's error says what. The others get
 * it as this rank's failure. A child's number is used up here as it is there; leaves the parent. */
void hk_children_refuse(const hk_init *how);

/* The parent has failed, on this rank or another one of this host, and was not revoked. */
bool hk_children_parent_failed(ncclComm_t parent);
/* Waits until the parent's earlier children are there or have failed: ranks make them in the same order. */
hk_status hk_children_turn(const hk_init *how);
/* Finds the members and joins them; sets the new rank and size.  A rank without color has size 0. */
hk_status hk_children_join(ncclComm_t c, const hk_init *how, hk_bootstrap_options *o);
/* The allgather among the parent's ranks with which a split or growth begins.  It ends early if another rank fails in
 * making the child. */
hk_status hk_children_exchange(hk_children_watch *w, void *rows, size_t row_bytes);
/* grow.c: joins on a rank of the parent.  HK_ERR_USAGE if the ranks give different sizes, or if not exactly one has an
 * id. */
hk_status hk_children_grow(ncclComm_t c, const hk_init *how, hk_bootstrap_options *o);
/* A call that all ranks make, but no child, was refused on this rank for the cause in the thread's error, which stays:
 * the others get it.  `call`: a letter of its kind, and a number that is the same on all ranks. */
void hk_children_refuse_call(ncclComm_t c, const char *call);
/* True if that was refused on another rank: the words say where and why. */
bool hk_children_refused_call(ncclComm_t c, const char *call, char words[HK_EVENT_TEXT]);
/* On the service thread: another rank is in a shrink, or has failed in making a child. */
void hk_children_heard(ncclComm_t parent, const hk_event *e);
void hk_children_free(ncclComm_t parent);
#endif
