/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How ranks find each other, and what keeps them informed afterwards.
 *
 * A unique id names a root (its addresses) and carries a secret.  Each rank listens, tells the root its address, and learns
 * the next rank's: the root only closes this ring.  Then pointer doubling: in round k a rank that knows the address of
 * rank + 2^k connects to it and learns the address of rank + 2^(k+1).  These O(log n) connections stay open as the
 * overlay: allgather (Bruck's algorithm, ceil(log2 n) rounds), barrier, and flooding of events (a rank died, aborted).
 *
 * Every accepted connection must send a hello with the secret before its bytes mean anything; it has a deadline, and the
 * number of connections without one is bounded.  Anything else is dropped and changes nothing.
 *
 * Ranks of one process are connected through memory, not sockets.
 */
#ifndef HK_BOOT_BOOTSTRAP_H
#define HK_BOOT_BOOTSTRAP_H
#include <nccl.h> /* ncclUniqueId */
#include <stdbool.h>
#include "../base/addr.h"
#include "../base/service.h"
#include "../base/wait.h"
#include "activity.h"

typedef struct hk_bootstrap hk_bootstrap;

typedef enum hk_event_kind {
  HK_EVENT_DEAD,    /* the rank's process ended or its host fell silent, without a goodbye */
  HK_EVENT_ABORT,   /* the rank called abort; `code` is what had failed before, or HK_OK */
  HK_EVENT_ERROR,   /* the rank failed; code and text say how */
  HK_EVENT_VERDICT, /* the ranks' calls do not go together; code and text say how, and the rank is the one that differs */
  HK_EVENT_SUSPECT, /* there is trouble with the rank, which may have a reason that is not known yet */
  HK_EVENT_REVOKE,  /* the rank revoked the communicator; the text says by which call */
  HK_EVENT_SHRINK, /* a notice about a child: the rank begins or ends a shrink, or fails in making a child.  `code` counts the
                    * rank's notices, children.c reads the text.  The bootstrap's collectives go on */
  HK_EVENT_LINK, /* the control connection of `rank` and `from`, the higher one, is lost; both processes are there */
  HK_EVENT_KINDS
} hk_event_kind;
enum { HK_EVENT_TEXT = 1536 };
typedef struct hk_event {
  int32_t kind; /* hk_event_kind */
  int32_t rank; /* the rank that it is about */
  int32_t from; /* the rank that reports it; hk_bootstrap_announce fills it in */
  int32_t code; /* hk_status, where the kind says so */
  char text[HK_EVENT_TEXT];
} hk_event;

/* Makes an id and starts its root: a thread that ends when every rank has its answer, or after BOOTSTRAP_TIMEOUT. */
hk_status hk_bootstrap_new_id(ncclUniqueId *id);
/* With NCCL_COMM_ID set: the id that stands for that address; on rank 0 the root is started too. */
hk_status hk_bootstrap_env_id(ncclUniqueId *id, int rank);

typedef struct hk_bootstrap_options {
  int rank, nranks;
  const char *name;        /* of the communicator, for reports; NULL or empty: it has none.  Outlives the bootstrap */
  const hk_wait_env *wait; /* for the blocking calls below; outlives the bootstrap */
  hk_service *service;
  /* On the service thread, once per kind of event and rank it is about (of verdicts: the rank that gives it; of lost links:
   * each that wins over those before).  The event is also passed on to the neighbours. */
  void (*on_event)(void *arg, const hk_event *event);
  /* What this rank does, for others who ask.  On the listener's thread, or another rank's of this process: reads atomics and
   * never blocks.  What it does not set stays zero (waits_for: -1).  NULL: HK_PHASE_IDLE. */
  void (*report)(void *arg, hk_activity *out);
  void *arg;
} hk_bootstrap_options;

/* Collective over nranks. */
hk_status hk_bootstrap_join(hk_bootstrap **out, const ncclUniqueId *ids, int nids, const hk_bootstrap_options *o);
/* A communicator made from another one's ranks: new rank i is the parent's rank members[i].  `child` tells apart the
 * children of one parent and is equal on all members.  Works while other ranks of the parent are dead. */
hk_status hk_bootstrap_join_child(hk_bootstrap **out, hk_bootstrap *parent, const int *members, uint64_t child,
                                  const hk_bootstrap_options *o);
/* What this rank's collectives are for from here on, in reports and for ranks that ask: "ncclCommSplit number 3".
 * HK_PHASE_INIT: all ranks are in it, and a wait ends with an error after BOOTSTRAP_TIMEOUT.  Otherwise a rank may come when it
 * likes, and waits are reported only, unless HOCKET_WATCHDOG_ABORT=1.  HK_PHASE_IDLE ends the call.  b may be NULL. */
void hk_bootstrap_begin(hk_bootstrap *b, hk_phase phase, const char *what);
/* For waits outside of the bootstrap, from their hk_wait_env.check: an error if other ranks cannot connect to this process; in the
 * init, reports and ends waits (for shared memory, networks) as it does its own. */
hk_status hk_bootstrap_check(hk_bootstrap *b);
/* table holds nranks rows of `bytes`; row [rank] is given, all are filled.  Collective. */
hk_status hk_bootstrap_allgather(hk_bootstrap *b, void *table, size_t bytes);
hk_status hk_bootstrap_barrier(hk_bootstrap *b);
/* This rank takes no part in the next allgather, which it was to make: the numbers of later ones stay equal on all ranks. */
void hk_bootstrap_skip(hk_bootstrap *b);
/* `check` is asked in the waits of the collectives, too; NULL: no more.  On the thread that makes the collectives. */
void hk_bootstrap_also(hk_bootstrap *b, hk_status (*check)(void *arg), void *arg);
/* Tells all ranks.  From any thread; never blocks long. */
void hk_bootstrap_announce(hk_bootstrap *b, const hk_event *event);

/* HK_ERR_SYSTEM where connections to this process have not been accepted for a while: it has no descriptor left. */
hk_status hk_bootstrap_hears(hk_bootstrap *b);

/* Has the rank said goodbye?  Only the 2 log2 n ranks that this one has links with tell it. */
bool hk_bootstrap_left(hk_bootstrap *b, int rank);

/* Asks `rank` what it does, by a connection to its process's listener, whatever the rank's own threads do (ranks of this
 * process: in memory).  Blocks for at most patience_ns, whatever happens to the communicator, and reports no error.  From any
 * thread once the communicator is joined.  `out` is set in any case; it means something with HK_PRESENCE_ANSWERS. */
hk_presence hk_bootstrap_ask(hk_bootstrap *b, int rank, uint64_t patience_ns, hk_activity *out);

uint64_t hk_bootstrap_comm_id(const hk_bootstrap *b);
const uint8_t *hk_bootstrap_secret(const hk_bootstrap *b); /* 16 bytes */
/* Data connections, for transport_env: see transport.h. */
hk_status hk_bootstrap_dial(hk_bootstrap *b, int peer, const union hk_addr *at, uint64_t tag, int *fd);
int hk_bootstrap_take(hk_bootstrap *b, int peer, uint64_t tag);
/* Says goodbye to the neighbours, so that the end of the connection is not taken for a death, and frees. */
void hk_bootstrap_leave(hk_bootstrap *b);
#endif
