/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How ranks find each other, and how they learn of failures afterwards.
 *
 * A unique id names a root (its addresses) and carries a secret. Each rank listens, sends its address to the root
 *  and receives the address of the next rank: all that the root does is to close this ring. Pointer doubling follows:
 *  in round k a rank that knows the address of rank + 2^k connects to it and learns the address of rank + 2^(k+1).
 * These O(log n) connections stay open. They are the overlay, which carries allgathers (Bruck's algorithm, ceil(log2
 *  n) rounds), barriers and events (a rank died, aborted), which flood to all ranks.
 *
 * An accepted connection must send a hello that proves the secret before any other byte of it means anything. The
 *  hello has a deadline, and the number of connections without a complete hello is bounded. Anything else is dropped
 *  and changes nothing.
 *
 * Ranks of one process are connected through memory, not sockets.
 */
#pragma once
#include <nccl.h> /* ncclUniqueId */
#include <stdbool.h>
#include "../base/wait.h"
#include "activity.h"

struct hk_settings; /* base/param.h */

union hk_addr;     /* base/addr.h */
struct hk_service; /* base/service.h */
typedef struct hk_bootstrap hk_bootstrap;

/* Makes an id and starts its root in this process. The root needs no call: it ends when every rank has its answer,
 * with an error after HOCKET_BOOTSTRAP_TIMEOUT, or after HOCKET_ID_LIFETIME if no rank joins. */
hk_status hk_bootstrap_new_id(ncclUniqueId *id);
/* With NCCL_COMM_ID set: the id made from that address. On rank 0 this starts the root, too. */
hk_status hk_bootstrap_env_id(const struct hk_settings *settings, ncclUniqueId *id, int rank);
/* The same from the address `text`, "host:port", which `named` has in messages. `anywhere`: rank 0 need not have that
 * address, and listens at all of its own, unless it is loopback's. */
hk_status hk_bootstrap_address_id(const struct hk_settings *settings, ncclUniqueId *id, int rank, const char *named,
                                  const char *text, bool anywhere);

typedef struct hk_bootstrap_options {
  int rank, nranks;
  bool of_living;   /* of a child: a failure of the parent before the call ends the join, too */
  const char *name; /* of the communicator, for reports; NULL or empty: it has none.  Outlives the bootstrap */
  const struct hk_settings *settings;
  const hk_wait_env *wait; /* for the blocking calls below; outlives the bootstrap */
  struct hk_service *service;
  /* Runs on the service thread, or on one that asked for a lost link, once for each kind of event and rank that it is
   * about (verdicts: for each rank that reports one; lost links: for each that takes precedence over those before).
   * Threads may run it at once, and the stronger of two lost links first. The event is also passed on to the
   * neighbours. */
  void (*on_event)(void *arg, const hk_event *event);
  /* The same after `on_event`, but only for failures: the bootstrap's collectives cannot complete any more. */
  void (*on_failure)(void *arg, const hk_event *event);
  /* Fills in what this rank does, for ranks that ask. Runs on the listener's thread, or on another rank's thread of
   * this process: it reads atomics and never blocks. What it does not set stays zero (waits_for: -1). NULL:
   * HK_PHASE_IDLE. */
  void (*report)(void *arg, hk_activity *out);
  void *arg;
  struct hk_meter *meter; /* base/meter.h, for operators; outlives the bootstrap. NULL: none */
  /* A descriptor that a failed join closes and sets to -1: the report to the other ranks needs one. NULL: none */
  int *spare;
} hk_bootstrap_options;

/* Returns a descriptor for hk_bootstrap_options.spare; -1 if the process has none left. */
int hk_bootstrap_spare(void);
void hk_bootstrap_end_spare(int *spare); /* NULL or -1: does nothing */

/* The key of ncclSetEncryption; NULL: none. HK_ERR_USAGE if the process already has a listener with another key. */
hk_status hk_bootstrap_encrypt(const char *key);
/* Joins the communicator of `ids`. Collective over nranks. On an error *out is NULL, the thread has the message, and
 * the ranks that this one is connected to are notified. */
hk_status hk_bootstrap_join(hk_bootstrap **out, const ncclUniqueId *ids, int nids, const hk_bootstrap_options *o);
/* This rank fails before hk_bootstrap_join, for the cause in the thread's error, which stays: the ranks that wait for
 * it at the roots of `ids` get the cause. Takes a second at most; five if the root is at a given address, where it may
 * start later. Without an effect if no root can be reached. */
void hk_bootstrap_report_abort(const struct hk_settings *settings, const ncclUniqueId *ids, int nids, int rank,
                               int nranks);
/* Joins a communicator made from another one's ranks: new rank i is the parent's rank members[i]. `child`
 * distinguishes the children of one parent and is equal on all members. Works while other ranks of the parent are
 * dead. `members` must stay valid during the call. */
hk_status hk_bootstrap_join_child(hk_bootstrap **out, hk_bootstrap *parent, const int *members, uint64_t child,
                                  const hk_bootstrap_options *o);
/* Names the call that this rank's collectives belong to from here on, for reports and for ranks that ask:
 * "ncclCommSplit number 3". HK_PHASE_INIT: all ranks are in the call, and a wait ends with an error after
 * HOCKET_BOOTSTRAP_TIMEOUT. Otherwise a rank may begin the call at any time, and waits are only reported, unless
 * HOCKET_WATCHDOG_ABORT=1. HK_PHASE_IDLE ends the call. b may be NULL. */
void hk_bootstrap_begin(hk_bootstrap *b, hk_phase phase, const char *what);
/* For waits outside of the bootstrap, from their hk_wait_env.check: an error if other ranks cannot connect to this
 * process. During the init it also reports and ends waits (for shared memory, networks) as the bootstrap's own. */
hk_status hk_bootstrap_check(hk_bootstrap *b);
/* `table` has nranks rows of `bytes`. Row [rank] is given, all rows are filled. Collective; with 0 bytes a barrier. */
hk_status hk_bootstrap_allgather(hk_bootstrap *b, void *table, size_t bytes);
hk_status hk_bootstrap_barrier(hk_bootstrap *b);
/* Counts an allgather in which this rank does not take part, though the others make it: the numbers of later ones
 * stay equal on all ranks. */
void hk_bootstrap_skip(hk_bootstrap *b);
/* `check` also runs in the waits of the collectives; NULL: none. Call it on the thread that makes the collectives. */
void hk_bootstrap_also(hk_bootstrap *b, hk_status (*check)(void *arg), void *arg);
/* Sends an event to all ranks. From any thread; never blocks long. */
void hk_bootstrap_announce(hk_bootstrap *b, const hk_event *event);

/* HK_ERR_SYSTEM if this process has accepted no connection of a rank for some seconds, for lack of descriptors. */
hk_status hk_bootstrap_check_listener(hk_bootstrap *b);

/* True if the rank has said goodbye. Only the 2 log2 n ranks that this one has links with send it a goodbye. */
bool hk_bootstrap_left(hk_bootstrap *b, int rank);

/* Asks `rank` what it does, by a connection to its process's listener, which answers whatever the rank's own threads
 * do (ranks of this process: in memory). Blocks for at most patience_ns, even if the communicator fails, and reports
 * no error. From any thread once the communicator is joined. `out` is always set; it is valid with
 * HK_PRESENCE_ANSWERS. */
hk_presence hk_bootstrap_ask(hk_bootstrap *b, int rank, uint64_t patience_ns, hk_activity *out);

uint64_t hk_bootstrap_comm_id(const hk_bootstrap *b);
const uint8_t *hk_bootstrap_secret(const hk_bootstrap *b); /* 16 bytes */
/* Connections for transports (hk_transport_env in transport.h). hk_bootstrap_dial connects to the peer: `at` (may be
 * NULL) is tried before the peer's own addresses. hk_bootstrap_take returns the connection that the peer made with
 * that tag, or -1 if it has not arrived yet. The caller closes the descriptor. */
hk_status hk_bootstrap_dial(hk_bootstrap *b, int peer, const union hk_addr *at, uint64_t tag, int *fd);
int hk_bootstrap_take(hk_bootstrap *b, int peer, uint64_t tag);
/* The same from any thread, without the checks of the rank's waits, until *stop is not 0. *gone: no process listens
 * there any more, or the rank has left. */
hk_status hk_bootstrap_redial(hk_bootstrap *b, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone);
/* Called once that rank's facts are known: a control connection to it may be silent for `seconds` before the rank
 * counts as dead. For ranks whose data uses another network, which itself detects hosts that are gone. */
void hk_bootstrap_tolerate(hk_bootstrap *b, int rank, unsigned seconds);
enum { HK_SERVED = 2 }; /* tags of hk_bootstrap_serve: one-sided operations, links through this rank */
/* Gives each connection with that tag to fn(arg, rank, fd), which owns it, as soon as it arrives; connections that have
 * already arrived are given before this returns. fn runs on the listener's thread and must not block. HK_SERVED tags
 * for each bootstrap; fn NULL ends it, and after that fn does not run. */
void hk_bootstrap_serve(hk_bootstrap *b, uint64_t tag, void (*fn)(void *arg, int rank, int fd), void *arg);
/* The lowest rank above `after` from which a data connection has arrived and was not taken; -1: none. */
int hk_bootstrap_untaken(hk_bootstrap *b, int after);
/* Sends a goodbye to the neighbours, so that they do not take the end of the connection for a death, and frees. Not
 * collective. */
void hk_bootstrap_leave(hk_bootstrap *b);
