/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator, as one rank sees it. */
#pragma once
#include <nccl.h>
#include <pthread.h>
#include "../base/wait.h"

struct hk_settings; /* base/param.h */

struct hk_backend;           /* backend.h */
struct hk_bootstrap_options; /* boot/bootstrap.h */
struct hk_call;              /* call.h */
struct hk_event;             /* boot/activity.h */
struct hk_facts;             /* base/facts.h */
struct hk_peer;              /* transport/peer.h */

enum { HK_COMM_LIVE = 0x686f636b, HK_COMM_FREED = 0x64656164 };

/* What ncclConfig_t asked for, with defaults filled in. */
typedef struct hk_comm_options {
  bool blocking;
  int policy;           /* NCCL_CTA_POLICY_ bits */
  int cluster;          /* blocks of a kernel; 0: none */
  int nvls_ctas;        /* channels of operations that a switch reduces; 0: as many as are best */
  int net_channels;     /* channels of a send or receive over the network; 0: as many as are best */
  int nvls_mode;        /* ncclNvlsHostMode_t bits */
  bool nvlink_first;    /* sends and receives within a host run before the others */
  bool in_launch_order; /* calls of such communicators run on a GPU in the order of the calls */
  bool loose_captures;  /* captured calls are ordered by the user's streams alone */
  bool no_captures;     /* the user has promised not to capture any */
  bool mixes_graphs;    /* replays of graphs are ordered with each other and with calls that are not captured */
  int min_ctas, max_ctas, traffic_class;
  bool collnet;                   /* the network may reduce (CollNet) */
  int batch_invariant;            /* a parent's setting; -1: as HOCKET_BATCH_INVARIANT says */
  bool by_place;                  /* calls say whether they are in place (hk_call_options.place) */
  int rma_contexts, rma_signals;  /* numbers for one-sided operations */
  bool rma_eager;                 /* one-sided operations are set up at init, before the first window */
  bool split_share, shrink_share; /* children of ncclCommSplit, of ncclCommShrink share the resources of `lender` */
  /* the most peers that a rank sends to or receives from, as the user promises; 0: no promise */
  int p2p_peers;
  char name[64], net_name[32];
} hk_comm_options;

/* Device API features of the communicator (windows.h). Equal on all ranks. */
typedef struct hk_lsa {
  int ranks;     /* size of an LSA team: consecutive ranks that access each other's memory by loads and stores */
  bool kernels;  /* users' kernels can communicate (device API) */
  bool multimem; /* also over multicast memory */
} hk_lsa;

/* How a communicator is being closed. Once it is not NO, new calls on the communicator return an error. */
typedef enum hk_closing { HK_CLOSING_NO, HK_CLOSING_DESTROY, HK_CLOSING_ABORT } hk_closing;

/* Which rank called ncclCommRevoke, or ncclCommShrink with NCCL_SHRINK_ABORT. */
enum { HK_REVOKED_HERE = 1, HK_REVOKED_ELSEWHERE = 2 };

/* State and failures. Written by any thread. */
typedef struct hk_health {
  _Atomic(int) failure;  /* hk_status: what ended the communicator; every wait reads it */
  _Atomic(int) progress; /* hk_status of the call under way: HK_IN_PROGRESS, HK_OK or what it failed with */
  _Atomic(int) inside;   /* number of group and stream batches, and of jobs, that use this communicator now */
  _Atomic(bool) calling; /* the application's thread is in a call on this communicator, or ends a group that uses it */
  /* number of call sequences and children of this communicator in open groups of any thread; its memory is kept until
   * it is 0 */
  _Atomic(int) queued;
  _Atomic(int) closing; /* hk_closing */
  _Atomic(int) revoked; /* HK_REVOKED_ bits; waits have ended with `failure`, and children may still be made */
  _Atomic(int) revoker; /* the rank that revoked it, if it was another one */
  _Atomic(bool) finalized;
  _Atomic(bool) suspended;            /* ncclCommSuspend: no operation until ncclCommResume */
  _Atomic(uint64_t) crowded_until_ns; /* hk_wait_env */
  pthread_mutex_t lock;               /* protects `cause` and the other data for failure reports */
  uint32_t *stop_kernels; /* set to 1 at a failure, to end the communicator's kernels; NULL: it has no kernels */
  /* The event that the communicator ends with (precedence.h): the strongest one so far, until it is settled. `failure`
   * may change until then. */
  struct hk_event *cause;
  uint64_t settle_ns;             /* when it is settled; 0: no event yet */
  _Atomic(bool) settled;          /* `failure` and `text` do not change any more */
  char text[HK_ERROR_TEXT - 256]; /* the error message of the failure, once settled */
} hk_health;

/* The operations of the communicator and their order. */
typedef struct hk_comm_order {
  uint64_t sequence;         /* collectives begun; equal on all ranks */
  _Atomic(uint64_t) issued;  /* turns given to batches */
  _Atomic(uint64_t) served;  /* turns that have ended */
  uint64_t children, splits; /* numbers of children and of splits begun; `splits` is equal on all ranks */
  uint64_t shrinks;          /* number of shrinks begun; lower on a rank that was excluded from one */
  uint32_t unlisted;         /* shrinks refused here since the last one with a list */
  _Atomic(uint64_t) children_over;
  struct hk_notice *notices;         /* under health.lock; children_lists.c: the exclude lists of shrinks under way */
  struct hk_attempts *attempts;      /* the same: how often each list was received */
  struct hk_child_failure *failures; /* the same: the errors of children that failed */
  /* keeps notices in order: receivers drop a notice whose number is lower than the last one's */
  pthread_mutex_t announcing;
  uint32_t announced;
  uint64_t tasks;                /* number of tasks begun (tasks.h); all ranks have the same */
  const void *looked_at[2];      /* the last buffers received into and sent from: known to be host memory */
  const struct hk_call *current; /* for reports; NULL between operations */
  const struct hk_exec *exec;
  struct hk_status_page
      *page; /* shows this rank's activity to other ranks of the host: in shared memory, or `own_page` */
  struct hk_status_page *own_page;
  struct hk_meter *meter;             /* what operators count (base/meter.h) */
  struct hk_call_checks *call_checks; /* shared by the ranks of this host; NULL: none */
  struct hk_watch_inquiry *inquiry;   /* about awaited peers, under way; NULL: none (watch.c) */
  uint64_t direct;                    /* groups that ran without members (members.c): for tests */
  uint64_t asked_in;                  /* the last operation in which a question was asked */
  uint64_t reported_ns;               /* duration of the current wait at the watchdog's last report */
  uint64_t left_seen_ns;              /* when a wait for a rank that has left was last seen */
} hk_comm_order;

enum { HK_REDOP_LIMIT = 64 };
typedef struct hk_user_redop {
  uint64_t scalar;
  uint8_t dtype;
  bool used, on_device; /* on_device: `scalar` is an address, which is read when a call runs */
} hk_user_redop;

/* The user's operators, and how the communicator's reductions round. */
typedef struct hk_numerics {
  uint8_t redop_flags;   /* ORed into their operators: HK_REDOP_INVARIANT or 0 */
  uint8_t quantises;     /* 1 + what hocketCommSetQuantised was given; 0: HOCKET_QUANTISED decides at the first call */
  hk_user_redop *redops; /* [HK_REDOP_LIMIT], made at first use */
} hk_numerics;

/* The open links. */
typedef struct hk_links {
  struct hk_peer_links **to; /* [nranks], made at first use */
  bool any_pump;             /* some have slots that only hk_wire_progress moves */
} hk_links;

typedef struct hk_registration hk_registration;
typedef struct hk_rma hk_rma;

struct ncclComm {
  /* HK_COMM_LIVE, HK_COMM_FREED. Atomic, because a group that holds the memory reads it while another thread frees the
   * communicator. */
  _Atomic(uint32_t) magic;
  int rank, nranks, device;
  unsigned forks; /* hk_forks when it was made */
  hk_numerics numerics;
  const struct hk_settings *settings; /* the parameters, as they were when it was made */
  hk_comm_options options;
  hk_health health;
  struct hk_service *service;
  struct hk_ras_part *ras; /* comm/ras_part.c; NULL: none */
  struct hk_bootstrap *bootstrap;
  struct hk_peer *peers; /* [nranks]; transport/peer.h */
  hk_wait_env wait;
  struct hk_wiring *wiring;       /* wiring.h */
  hk_links *links;                /* a part of `wiring` */
  struct hk_selection *selection; /* selection.h */
  struct hk_plans *plans;         /* plans.h */
  hk_comm_order order;
  const struct hk_backend *backend; /* host memory or GPUs */
  void *backend_state;              /* the backend's own, between attach and detach; NULL if it needs none */
  struct hk_profiler *profiler;     /* NULL: none */
  struct hk_flight *flight;         /* failure/flight.h; NULL: none */
  hk_lsa lsa;
  bool one_sided; /* the ranks can write to each other's windows (rma.h); equal on all ranks */
  hk_registration *registrations;
  struct hk_device_comm *device_comms; /* device_comm.c; under health.lock */
  uint64_t windows;                    /* symmetric ones registered so far, equal on all ranks; under health.lock */
  hk_rma *rma;                         /* one-sided operations (rma.h), from the first window on */
  struct ncclComm *lender;             /* during creation: the parent whose memory and threads it shares; NULL: none */
  ncclUniqueId *grow_id;               /* of ncclCommGetUniqueId, until ncclCommGrow uses it; NULL: none */
  struct ncclComm *quarantine_next;
};
_Static_assert(sizeof(struct ncclComm) <= 8192, "a communicator is small");

/* comm.c */
hk_status hk_comm_new(ncclComm_t *out, int rank, int nranks, const ncclConfig_t *config);
/* Frees the object after everything that it owns. The memory stays readable for a while, so that a use of the freed
 * communicator gives an error message and no crash. */
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

/* failure.c; the rest is in failure/failure.h */
/* Handles the failure `rc` of an operation: unless the communicator has failed already, this rank sends the thread's
 * error to all ranks as its own failure (HK_ERR_REMOTE: as a suspicion about other ranks). Returns the code that the
 * caller returns; HK_OK for HK_OK. */
hk_status hk_comm_failed(ncclComm_t c, hk_status rc);

/* config.c */
hk_status hk_config_read(const ncclConfig_t *given, ncclConfig_t *full);
hk_status hk_options_read(const struct hk_settings *settings, const ncclConfig_t *given, hk_comm_options *out);

/* wire.c; the rest is in links.h and wiring.h */
struct hk_transport_env *hk_wire_env(ncclComm_t c);
struct hk_transport_state *hk_wire_state(ncclComm_t c, int peer); /* the transport that reaches `peer` */
hk_status hk_wire_new(ncclComm_t c);                              /* c->wiring */
size_t hk_wire_fact_bytes(void);                                  /* of all transports' facts of a rank */
/* `announce`: tells all ranks of a failure of this one that none of its calls has met. */
hk_status hk_wire_attach(ncclComm_t c, void *facts, void (*announce)(void *comm, hk_status rc, const char *text));
hk_status hk_wire_join(ncclComm_t c, const struct hk_facts *facts);
/* From here on waits see failures of other ranks of this host through shared memory, without a message. Must follow the
 * last wait of the init: a rank that has finished its init may revoke the communicator at once, and that must not fail
 * the init of another rank. */
void hk_wire_share_failures(ncclComm_t c);
hk_status hk_wire_progress(ncclComm_t c, bool *moved);
int hk_wire_broken(ncclComm_t c); /* the lowest rank to which a link has failed, or -1 */
/* The transport of links on which the network reduces (transport/collnet.h), at the end of init. It is detached with
 * the others. */
void hk_wire_use_collnet(ncclComm_t c, struct hk_transport_state *s);
bool hk_wire_near(ncclComm_t c, int peer);                  /* on this rank's host */
int hk_wire_host_ranks(const struct ncclComm *c, int rank); /* how many ranks are on the host of `rank` */
bool hk_wire_proxied(ncclComm_t c, int peer);               /* true if a transport moves the slots between the ends */
bool hk_wire_multicasts(ncclComm_t c);                      /* a rank can write to all others at once */
double hk_wire_reads(ncclComm_t c); /* hk_transport_zero_copy.reads of the transport that reaches all ranks */
/* One pause of a wait. It sleeps if only the network can end the wait and has been silent for a while. */
hk_status hk_wire_pause(ncclComm_t c, hk_waiter *w);
/* `there`: the user has registered this host memory; false: the registration ends. Informs the transports. */
void hk_wire_memory(ncclComm_t c, void *base, size_t bytes, bool there);
/* An operation has ended with an error: from here on no peer writes to its memory, and no other rank of this process
 * reads it. */
void hk_wire_withdraw(ncclComm_t c);
/* The functions by which the network writes into the memory of `peer` (transport/remote.h); *ctx: their first argument.
 * NULL: the network cannot. From any thread. */
const struct hk_remote *hk_wire_remote(ncclComm_t c, int peer, void **ctx);
/* undelivered.c, before the end: warns of messages that no call received */
void hk_wire_report_undelivered(ncclComm_t c);
void hk_wire_free(ncclComm_t c);
/* Services other than links that the first transport with them offers to ranks of this host (transport.h). NULL: this
 * process cannot read the rank's status page. */
struct hk_status_page *hk_wire_status_page(ncclComm_t c, int rank);
/* The transport with services for this host's ranks (hk_transport_host); NULL: none. */
struct hk_transport_state *hk_wire_host(ncclComm_t c);
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
  /* number of the shrink among the parent's, from 1; equal on all ranks that took part in the same shrinks */
  uint64_t shrink;
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
void hk_comm_report_abort(const struct hk_settings *settings, const hk_init *how);
/* exchange.c: exchanges facts with all ranks, and sets up transports, backend and selection from them. */
hk_status hk_comm_exchange(ncclComm_t c, bool child);
/* Leaves the communicator, detaches the backend, frees. Not collective. */
void hk_comm_destroy(ncclComm_t c);

/* run/choose.c: c->plans */
hk_status hk_plans_new(ncclComm_t c);
void hk_plans_free(ncclComm_t c);
/* run/transfer_links.c: what ran the sends and receives of all links; none is under way */
void hk_transfers_free(ncclComm_t c);
/* registration.c: when the backend has freed its windows */
void hk_registrations_free(ncclComm_t c);
void hk_device_comms_free(ncclComm_t c);
