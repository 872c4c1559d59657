/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator, as one rank sees it. */
#ifndef HK_CORE_COMM_H
#define HK_CORE_COMM_H
#include <nccl.h>
#include <pthread.h>
#include "../base/wait.h"
#include "../boot/event.h"
#include "backend.h"

struct hk_activity;          /* boot/activity.h */
struct hk_bootstrap_options; /* boot/bootstrap.h */
struct hk_call;              /* call.h */
struct hk_peer;              /* transport/transport.h */

enum { HK_COMM_LIVE = 0x686f636b, HK_COMM_FREED = 0x64656164 };

/* What ncclConfig_t asked for, with defaults filled in. */
typedef struct hk_comm_options {
  bool blocking;
  int policy;           /* NCCL_CTA_POLICY_ bits */
  int cluster;          /* blocks of a kernel; 0: none */
  int nvls_ctas;        /* channels of what a switch adds up; 0: as many as are best */
  int net_channels;     /* channels of a send or receive over the network; 0: as many as are best */
  int nvls_mode;        /* ncclNvlsHostMode_t bits */
  bool nvlink_first;    /* sends and receives inside of a host come before the others */
  bool in_launch_order; /* calls of such communicators run on a GPU in the order of the calls */
  bool loose_captures;  /* captured calls are ordered by the user's streams alone */
  bool no_captures;     /* the user has promised not to capture any */
  bool mixes_graphs;    /* replays of graphs are ordered with each other and with calls that are not captured */
  int min_ctas, max_ctas, traffic_class;
  bool collnet;                   /* the network may add up */
  int batch_invariant;            /* a parent's setting; -1: as HOCKET_BATCH_INVARIANT says */
  int rma_contexts, rma_signals;  /* of one-sided operations */
  bool rma_eager;                 /* they are there without a window */
  bool split_share, shrink_share; /* children of ncclCommSplit, of ncclCommShrink use what `lender` lends */
  int p2p_peers;                  /* the user's promise, how many peers a rank sends to or receives from; 0: none */
  char name[64], net_name[32];
} hk_comm_options;

/* What kernels of users can do (windows.h).  Equal on all ranks. */
typedef struct hk_lsa {
  int ranks;     /* consecutive ones that reach each other's memory by loads and stores: a team */
  bool kernels;  /* they can communicate: the device API is there */
  bool multimem; /* over multicast memory, too */
} hk_lsa;

/* Whether the end of a communicator has begun: then calls return an error when they enter it. */
typedef enum hk_closing { HK_CLOSING_NO, HK_CLOSING_DESTROY, HK_CLOSING_ABORT } hk_closing;

/* Which rank called ncclCommRevoke, or ncclCommShrink with NCCL_SHRINK_ABORT. */
enum { HK_REVOKED_HERE = 1, HK_REVOKED_ELSEWHERE = 2 };

/* State and failures. Written by any thread. */
typedef struct hk_health {
  _Atomic(int) failure;  /* hk_status: what ended the communicator; every wait reads it */
  _Atomic(int) progress; /* hk_status of the call under way: HK_IN_PROGRESS, HK_OK or what it failed with */
  _Atomic(int) inside;   /* batches of groups and streams, and jobs, that use this communicator now */
  _Atomic(bool) calling; /* the application's thread is in a call, or ends a group of this communicator's */
  /* runs of calls, and children, that wait in open groups of any thread: the memory is kept until then */
  _Atomic(int) queued;
  _Atomic(int) closing; /* hk_closing */
  _Atomic(int) revoked; /* HK_REVOKED_ bits; waits have ended with `failure`, and children may still be made */
  _Atomic(int) revoker; /* the rank that revoked it, if it was another one */
  _Atomic(bool) finalized;
  _Atomic(bool) suspended; /* ncclCommSuspend: no operation until ncclCommResume */
  pthread_mutex_t lock;    /* protects the cause, and what is needed to report failures */
  uint32_t *stop_kernels;  /* set to 1 with a failure, which ends the communicator's kernels; NULL: it has none */
  /* The event that the communicator ends with (precedence.h): the strongest one so far, until it is settled. `failure`
   * may change until then. */
  hk_event cause;
  uint64_t settle_ns;             /* when it is settled; 0: no event yet */
  _Atomic(bool) settled;          /* `failure` and `text` do not change any more */
  char text[HK_ERROR_TEXT - 256]; /* the error message of the failure, once settled */
} hk_health;

typedef struct hk_inquiry hk_inquiry;
/* What runs, and in which order. */
typedef struct hk_comm_order {
  uint64_t sequence;         /* collectives begun; equal on all ranks */
  _Atomic(uint64_t) issued;  /* turns given to batches */
  _Atomic(uint64_t) served;  /* turns that have ended */
  uint64_t children, splits; /* number of children and of splits begun; all ranks have the same number of splits */
  uint64_t shrinks;          /* the same of shrinks; a rank that others excluded from one has a lower number */
  uint32_t unlisted;         /* shrinks refused here since the last one with a list */
  _Atomic(uint64_t) children_over;
  struct hk_notice *notices;         /* under health.lock, children_lists.c: what ranks exclude in shrinks under way */
  struct hk_attempts *attempts;      /* the same: how often each list was received */
  struct hk_child_failure *failures; /* the same: the errors that children failed with */
  pthread_mutex_t announcing;        /* others drop a notice with a lower number than the one before */
  uint32_t announced;
  uint64_t tasks;                /* number of tasks begun (tasks.h); all ranks have the same */
  const void *looked_at[2];      /* the last buffers received into and sent from: known to be host memory */
  const struct hk_call *current; /* for reports; NULL between operations */
  const struct hk_exec *exec;
  struct hk_status_page
      *page; /* where other ranks of the host see what this one does: in shared memory, or `own_page` */
  struct hk_status_page *own_page;
  struct hk_call_checks *call_checks; /* of the ranks of this host; NULL: none */
  hk_inquiry *inquiry;                /* the question about awaited peers that is under way; NULL: none */
  uint64_t direct;                    /* groups that ran without members (run.c): for tests */
  uint64_t asked_in;                  /* the last operation in which a question was asked */
  uint64_t reported_ns;               /* length of the present wait at the watchdog's last report */
  uint64_t left_seen_ns;              /* when a wait for a rank that has left was last seen */
} hk_comm_order;

enum { HK_REDOP_LIMIT = 64 };
typedef struct hk_user_redop {
  uint64_t scalar;
  uint8_t dtype;
  bool used, on_device; /* on_device: `scalar` is an address, which is read when a call runs */
} hk_user_redop;

typedef struct hk_registration hk_registration;
typedef struct hk_rma hk_rma;

struct ncclComm {
  /* HK_COMM_LIVE, HK_COMM_FREED.  A group that keeps the memory asks while another thread frees the communicator. */
  _Atomic(uint32_t) magic;
  int rank, nranks, device;
  unsigned forks;      /* hk_forks when it was made */
  uint8_t redop_flags; /* added to the operators of its reductions: HK_REDOP_INVARIANT or 0 */
  hk_comm_options options;
  hk_health health;
  struct hk_service *service;
  struct hk_bootstrap *bootstrap;
  struct hk_peer *peers; /* [nranks]; transport/transport.h */
  hk_wait_env wait;
  struct hk_wiring *wiring;       /* wiring.h */
  struct hk_selection *selection; /* selection.h */
  struct hk_plans *plans;         /* plans.h */
  hk_comm_order order;
  const hk_backend *backend;    /* host memory or GPUs */
  void *backend_state;          /* the backend's own, between attach and detach; NULL if it needs none */
  struct hk_profiler *profiler; /* NULL: none */
  hk_user_redop *redops;        /* [HK_REDOP_LIMIT], made at first use */
  hk_lsa lsa;
  bool one_sided; /* the ranks can write to each other's windows (rma.h); equal on all ranks */
  hk_registration *registrations;
  struct hk_device_comm *device_comms; /* device_comm.c; under health.lock */
  uint64_t windows;                    /* symmetric ones registered so far, equal on all ranks; under health.lock */
  hk_rma *rma;                         /* one-sided operations (rma.h), from the first window on */
  struct ncclComm *lender;             /* while it is made: the parent that lends memory and threads; NULL: none */
  ncclUniqueId *grow_id;               /* of ncclCommGetUniqueId, until ncclCommGrow uses it; NULL: none */
  struct ncclComm *quarantine_next;
};
_Static_assert(sizeof(struct ncclComm) <= 8192, "a communicator is small");

/* comm.c */
hk_status hk_comm_new(ncclComm_t *out, int rank, int nranks, const ncclConfig_t *config);
/* Frees the object; all that it owns is freed before. Its memory stays readable for a while, so that the use of a
 * freed communicator is an error message and not a crash. */
void hk_comm_release(ncclComm_t c);
/* HK_OK, or an argument error if c is no live communicator. `who`: the API call. */
hk_status hk_comm_check(ncclComm_t c, const char *who);
/* As above, but also an error if the communicator has failed or its init is not complete. */
hk_status hk_comm_check_usable(ncclComm_t c, const char *who);
/* As above, but a communicator that was revoked, on this rank or another one, can be the parent of new ones. */
hk_status hk_comm_check_parent(ncclComm_t c, const char *who);
/* True for the copy of a parent process's communicator in a forked child. Its shared memory belongs to the parent:
 * nothing may be done with it. */
bool hk_comm_inherited(ncclComm_t c);

/* ---- failure.c ---- */
/* True if this rank lacks something; a wrong argument is for the caller to correct, while the others wait. */
static inline bool hk_lacks(hk_status rc) { return rc == HK_ERR_SYSTEM || rc == HK_ERR_CUDA || rc == HK_ERR_INTERNAL; }
/* Ends the communicator at once, for a reason of this rank alone. The first failure counts: waits end with `code`,
 * and `text` is kept for ncclGetLastError. True for the first one. */
bool hk_comm_fail(ncclComm_t c, hk_status code, const char *text);
/* Ends the communicator for an event that other ranks may report better: waits end at once, the event to report is
 * settled a little later. From any thread; never blocks. */
void hk_failure_record(ncclComm_t c, const hk_event *e);
/* The same for an event of this rank, which is also sent to the other ranks. `text` may be as long as an event's. */
void hk_failure_raise(ncclComm_t c, hk_event_kind kind, int rank, hk_status code, const char *text);
/* The settled failure; HK_OK if there is none, or if it is not settled. */
hk_status hk_failure_settled(ncclComm_t c);
/* True if this rank has failed or knows of a failure, or if another rank of this host does whose event is under way. */
static inline bool hk_comm_failing(ncclComm_t c) {
  return atomic_load(&c->health.failure) || (c->wait.shared_failure && atomic_load(c->wait.shared_failure));
}
/* Call it after a wait ended with a failure: waits until the failure is settled, and fails with it. `where` (may be
 * NULL): the API call. */
hk_status hk_failure_resolve(ncclComm_t c, const char *where);
/* Handles the failure `rc` of an operation: unless the communicator has failed already, this rank sends the thread's
 * error to all ranks as its own failure (HK_ERR_REMOTE: as trouble with others). Returns the code that the caller
 * returns; HK_OK for HK_OK. */
hk_status hk_comm_failed(ncclComm_t c, hk_status rc);

/* config.c */
hk_status hk_config_read(const ncclConfig_t *given, ncclConfig_t *full);
hk_status hk_options_read(const ncclConfig_t *given, hk_comm_options *out);

/* wire.c; the rest is in links.h and wiring.h */
struct hk_transport_env *hk_wire_env(ncclComm_t c);
struct hk_transport_state *hk_wire_state(ncclComm_t c, int peer); /* of the transport that reaches it */
hk_status hk_wire_new(ncclComm_t c);                              /* c->wiring */
hk_status hk_wire_attach(ncclComm_t c, void *facts /* HK_TRANSPORT_COUNT * HK_FACT_BYTES */);
hk_status hk_wire_join(ncclComm_t c, const void *facts, size_t row_bytes, size_t fact_offset);
/* From here on waits see the failures that other ranks of this host meet, without a message. Not before the last wait
 * of the init: a rank that is through it may revoke the communicator at once, and that is no failure of another's
 * init. */
void hk_wire_share_failures(ncclComm_t c);
hk_status hk_wire_progress(ncclComm_t c, bool *moved);
int hk_wire_broken(ncclComm_t c);                           /* the lowest rank to which a link has failed, or -1 */
bool hk_wire_near(ncclComm_t c, int peer);                  /* on this rank's host */
int hk_wire_host_ranks(const struct ncclComm *c, int rank); /* how many ranks are on the host of `rank` */
bool hk_wire_proxied(ncclComm_t c, int peer);               /* its slots move over a network */
bool hk_wire_multicasts(ncclComm_t c);                      /* a rank can write to all others at once */
/* One pause of a wait. It sleeps if only the network can end the wait and has been silent for a while. */
hk_status hk_wire_pause(ncclComm_t c, hk_waiter *w);
/* Informs the transports that the user has registered this host memory (there), or that the registration ends. */
void hk_wire_memory(ncclComm_t c, void *base, size_t bytes, bool there);
/* An operation has ended with an error: from here on no peer writes to its memory, and no other rank of this process
 * reads it. */
void hk_wire_withdraw(ncclComm_t c);
/* How the network that reaches `peer` writes into its memory (transport/remote.h), and what goes first to each
 * function. NULL: it does not. From any thread. */
const struct hk_remote *hk_wire_remote(ncclComm_t c, int peer, void **ctx);
/* before the end: warns of messages that no call received; undelivered.c */
void hk_wire_report_undelivered(ncclComm_t c);
void hk_wire_free(ncclComm_t c);
/* Services of transports for ranks of this host, apart from links (transport.h), by the first transport that has
 * them. NULL: the rank has no status page here. */
struct hk_status_page *hk_wire_status_page(ncclComm_t c, int rank);
/* Passes files and questions between processes; NULL: there is none. */
struct hk_transport_state *hk_wire_files(ncclComm_t c);
const char *hk_wire_no_files(ncclComm_t c);
hk_status hk_wire_file(ncclComm_t c, int peer, uint64_t region, int *fd, size_t *bytes);
hk_status hk_wire_ask(ncclComm_t c, int peer, int fd, void *payload);
hk_status hk_wire_notify(ncclComm_t c, int peer, int fd, void *payload);
void hk_wire_answer_with(ncclComm_t c, bool (*answer)(void *arg, void *payload, int fd, char *reason), void *arg);

/* init.c */
typedef struct hk_init {
  ncclUniqueId *ids; /* a copy that the job owns */
  int nids;
  int rank, nranks;  /* of the new communicator, without a parent */
  ncclComm_t parent; /* split, shrink */
  uint64_t turn;     /* number of the child among the parent's on this rank, from 1 */
  uint64_t split;    /* number of the split among the parent's, from 1, on all ranks */
  uint64_t shrink;   /* the same of a shrink, on all ranks that took part in the same ones */
  int color, key;
  int *exclude;
  int nexclude;
  bool no_list; /* a shrink that is refused: `exclude` is NULL */
  /* ncclCommGrow: with a parent, `ids` is this rank's own id or NULL; without a parent, this is a new rank */
  bool grows;
} hk_init;
hk_status hk_comm_init(ncclComm_t c, const hk_init *how);
/* join.c: makes c->bootstrap, without a parent. */
hk_status hk_comm_join(ncclComm_t c, const hk_init *how, const struct hk_bootstrap_options *o);
/* A communicator without a parent: the other ranks get the thread's error as the cause why this rank does not join. */
void hk_comm_report_abort(const hk_init *how);
/* exchange.c: exchanges facts with all ranks, and sets up what depends on them. */
hk_status hk_comm_exchange(ncclComm_t c, bool child);
/* Leaves the communicator, detaches the backend, frees. Not collective. */
void hk_comm_destroy(ncclComm_t c);

/* registration.c: when the backend has freed its windows */
void hk_registrations_free(ncclComm_t c);
void hk_device_comms_free(ncclComm_t c);

/* watch.c; the rest of it is in watch.h */
hk_status hk_watch_new(ncclComm_t c); /* c->order.page */
/* The hk_wait_env.check of this communicator's waits. */
hk_status hk_watch(void *comm, uint64_t waited_ns);
/* Before the communicator's parts go: other ranks see that it ends, and no question is under way after it. */
void hk_watch_end(ncclComm_t c);
void hk_watch_report(void *comm, struct hk_activity *out); /* hk_bootstrap_options.report */
void hk_watch_describe(const struct hk_call *op, char *text, size_t bytes);
#endif
