/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of child communicators (split, shrink, grow): their members, and the events that end the waits for them. */
#pragma once
#include "../boot/bootstrap.h"
#include "../core/comm.h"

/* Kinds of calls that notices name by a letter and a number. */
typedef enum hk_call_kind { HK_CALL_SHRINK = 'n', HK_CALL_TASK = 'a', HK_CALL_WINDOW = 'w' } hk_call_kind;
enum { HK_CALL_NAME = 24 };

/* State while a communicator is created. Its waits also check for the end of the parent, and for shrinks whose exclude
 * lists differ. */
typedef struct hk_children_watch {
  ncclComm_t c;
  const hk_init *how;
  /* For a shrink: */
  char hash[17];               /* hash of its list */
  uint32_t attempt;            /* number of the attempt with this list; 0: not begun */
  uint64_t differ_ns;          /* since when another member's list differs; 0: none does */
  uint64_t behind_ns;          /* since when another member is in a later attempt; 0: none is */
  char verdict[HK_EVENT_TEXT]; /* the verdict that the lists differ; empty: none */
  /* For failures of other ranks: */
  char key[40];            /* names the child in notices; empty: it has none */
  char call[HK_CALL_NAME]; /* for a shrink: its name by number, in notices of ranks that have no list */
  int *members;            /* parent ranks of this child's members; NULL: not known yet */
  bool exchanging;         /* the parent's allgather has begun on this rank */
  bool anew;               /* for a split: the parent had ended, so a new overlay carried the exchange */
  uint64_t heard_ns;       /* when the first notice of a failure was seen; 0: none was */
  bool settled;            /* the error text is the one that all members report */
} hk_children_watch;
void hk_children_watch_begin(hk_children_watch *w, ncclComm_t c, const hk_init *how);
/* Returns rc, or its cause if this rank knows that. Reports this rank's failure to the members that wait for it. */
hk_status hk_children_watch_end(hk_children_watch *w, hk_status rc);

/* Gives a child its turn among the parent's children, in the order of the calls. `how` may belong to an init without a
 * parent. */
void hk_children_enter(hk_init *how);
/* Ends the child's turn: it is complete or has failed. */
void hk_children_leave(ncclComm_t parent);
/* Called instead of creating the communicator if this rank cannot, for the cause in the thread's error. The other ranks
 * get that as this rank's failure. Counts the child as the other ranks do, and leaves the parent. */
void hk_children_refuse(const hk_init *how);

/* The parent has failed, on this rank or another one of this host, and was not revoked. */
bool hk_children_parent_failed(ncclComm_t parent);
/* Waits until the parent's earlier children are complete or have failed, because all ranks create them in the same
 * order. */
hk_status hk_children_turn(const hk_init *how);
/* Finds the members and joins them; sets the new rank and size. A rank without a color gets size 0. */
hk_status hk_children_join(ncclComm_t c, const hk_init *how, hk_bootstrap_options *o);
/* The allgather among the parent's ranks with which a split or growth begins. It ends early if another rank fails to
 * create the child. */
hk_status hk_children_exchange(hk_children_watch *w, void *rows, size_t row_bytes);
/* grow.c: joins on a rank of the parent.  HK_ERR_USAGE if the ranks give different sizes, or if not exactly one has an
 * id. */
hk_status hk_children_grow(ncclComm_t c, const hk_init *how, hk_bootstrap_options *o);
/* For a collective call that creates no child and that this rank refuses: sends the cause, which is in the thread's
 * error, to the other ranks. The error stays set. `number` is equal on all ranks. */
void hk_children_refuse_call(ncclComm_t c, hk_call_kind kind, uint64_t number);
/* True if another rank has refused that call: `words` says which rank and why. */
bool hk_children_refused_call(ncclComm_t c, hk_call_kind kind, uint64_t number, char words[HK_EVENT_TEXT]);
/* On the service thread: takes a notice that another rank is in a shrink, or has failed to create a child. */
void hk_children_heard(ncclComm_t parent, const hk_event *e);
void hk_children_free(ncclComm_t parent);
