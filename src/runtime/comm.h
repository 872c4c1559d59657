/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator: one rank's view. */
#ifndef HK_RUNTIME_COMM_H
#define HK_RUNTIME_COMM_H
#include <pthread.h>
#include "../boot/bootstrap.h"
#include "../collectives/overrides.h"
#include "../kernels/exec.h"
#include "../transport/transport.h"
#include "backend.h"
#include "call.h"

enum { HK_COMM_LIVE = 0x686f636b, HK_COMM_FREED = 0x64656164 };

/* What ncclConfig_t asked for, with defaults filled in. */
typedef struct hk_comm_options {
  bool blocking;
  bool no_ctas; /* NCCL_CTA_POLICY_ZERO */
  int cluster;  /* blocks of a kernel; 0: none */
  int min_ctas, max_ctas, split_share, shrink_share, traffic_class;
  int batch_invariant; /* a parent's setting; -1: as HOCKET_BATCH_INVARIANT says */
  char name[64], net_name[32];
} hk_comm_options;

/* The end of a communicator has begun: what enters it from now on leaves again. */
typedef enum hk_closing { HK_CLOSING_NO, HK_CLOSING_DESTROY, HK_CLOSING_ABORT } hk_closing;

/* Who called ncclCommRevoke, or ncclCommShrink with NCCL_SHRINK_ABORT. */
enum { HK_REVOKED_HERE = 1, HK_REVOKED_ELSEWHERE = 2 };

/* Life and failures.  Written by any thread. */
typedef struct hk_health {
  _Atomic(int) failure;  /* hk_status: what ended the communicator; waits look at it */
  _Atomic(int) progress; /* hk_status of the call under way: HK_IN_PROGRESS, HK_OK or what it failed with */
  _Atomic(int) inside;   /* batches of groups and streams, and jobs, that use this communicator */
  _Atomic(bool) calling; /* the application's thread is in a call outside of groups and streams */
  _Atomic(int) queued;   /* calls and children that wait in open groups, of any thread: its memory stays until then */
  _Atomic(int) closing;  /* hk_closing */
  _Atomic(int) revoked;  /* bits; waits have ended with `failure`, and children may still be made */
  _Atomic(int) revoker;  /* the rank that did it, if it was another one */
  _Atomic(bool) finalized;
  pthread_mutex_t lock;   /* of the story, and of what failures tell others by */
  uint32_t *stop_kernels; /* set to 1 with a failure: ends the communicator's kernels; NULL: it has none */
  /* What the communicator ends with (story.h): the strongest event so far, until it is settled; `failure` may change until then. */
  hk_event story;
  uint64_t settle_ns;             /* when it is settled; 0: no event yet */
  _Atomic(bool) settled;          /* `failure` and `text` stay as they are */
  char text[HK_ERROR_TEXT - 256]; /* the failure in words, once settled */
} hk_health;

typedef struct hk_transfer_run hk_transfer_run;
/* A link with the queue of sends or receives that use it in turn. */
typedef struct hk_wired_link {
  hk_link link;
  uint64_t issued, served;
  hk_transfer_run *transfer; /* runs them (transfer.h); NULL: none has used the link */
} hk_wired_link;
typedef struct hk_peer_links {
  hk_wired_link *at[HK_CHANNEL_COUNT][4]; /* [channel][hk_link_kind] */
} hk_peer_links;

/* How this rank reaches the others. */
typedef struct hk_wiring {
  hk_transport_env env;
  hk_transport_state *states[HK_TRANSPORT_COUNT];
  bool pumps[HK_TRANSPORT_COUNT]; /* has links that progress must move */
  bool any_pump;
  uint8_t *via;          /* [nranks] index into states */
  int sleeper;           /* index of the one transport that reaches all other ranks and can sleep, or -1 */
  hk_peer_links **links; /* [nranks], made at first use */
  int multicast;         /* index of the transport with multicast to all, or -1 */
  int lost;              /* a rank that could not be reached when a link to it was opened, plus 1; 0: none */
} hk_wiring;

/* What decisions rest on; equal on all ranks, fixed at init. */
typedef struct hk_selection {
  hk_machine machine;
  hk_layout *layout; /* NULL: one host */
  hk_overrides overrides;
  struct hk_tuner *tuner; /* NULL: none */
  unsigned overruled;     /* bit set of 1u << hk_coll: the warning of hk_decision.overruled was given */
} hk_selection;

/* The newest decision for a collective, so that a call like the last one decides nothing. */
typedef struct hk_choice {
  size_t count;
  int root;
  uint8_t dtype, redop;
  bool valid;
  hk_plan *plan;
  hk_launch launch;
} hk_choice;

typedef struct hk_plans {
  hk_choice last[HK_COLL_COUNT];
  hk_plan *all;
  char *scratch;
  size_t scratch_bytes;
} hk_plans;

typedef struct hk_inquiry hk_inquiry;
/* What runs, in which order. */
typedef struct hk_comm_order {
  uint64_t sequence;         /* collectives begun; equal on all ranks */
  _Atomic(uint64_t) issued;  /* turns handed out to batches */
  _Atomic(uint64_t) served;  /* turns over */
  uint64_t children, splits; /* begun; of the latter all ranks have as many */
  _Atomic(uint64_t) children_over;
  struct hk_notice *notices;         /* what ranks exclude in shrinks under way, */
  struct hk_attempts *attempts;      /* how often each list came, */
  struct hk_child_failure *failures; /* and what children failed with; all under health.lock: children.c */
  uint32_t announced;
  const void *looked_at[2]; /* the last buffers received into and sent from: they are the host's */
  const hk_call *current;   /* for reports; NULL between operations */
  const hk_exec *exec;
  struct hk_board *board; /* where other ranks see what we do: in shared memory, or `own_board` */
  struct hk_board *own_board;
  struct hk_claims *claims; /* of this host's ranks; NULL: none */
  hk_inquiry *inquiry;      /* a question about peers that are waited for, under way; NULL: none */
  uint64_t asked_in;        /* the last operation in which one was asked */
  uint64_t reported_ns;     /* how long the present wait was when the watchdog last spoke */
  uint64_t left_seen_ns;    /* when a wait for a rank that has left was last seen */
} hk_comm_order;

enum { HK_REDOP_LIMIT = 64 };
typedef struct hk_user_redop {
  uint64_t scalar;
  uint8_t dtype;
  bool used, on_device; /* on_device: `scalar` is its address, read when a call runs */
} hk_user_redop;

typedef struct hk_registration hk_registration;

struct ncclComm {
  uint32_t magic; /* HK_COMM_LIVE, HK_COMM_FREED */
  int rank, nranks, device;
  unsigned forks;      /* hk_forks at its making */
  uint8_t redop_flags; /* of its reductions: HK_REDOP_INVARIANT or 0 */
  hk_comm_options options;
  hk_health health;
  hk_service *service;
  hk_bootstrap *bootstrap;
  hk_peer *peers; /* [nranks] */
  hk_wait_env wait;
  hk_wiring wiring;
  hk_selection selection;
  hk_plans plans;
  hk_comm_order order;
  const hk_backend *backend;    /* what it works on */
  void *backend_state;          /* its, between attach and detach; NULL if it needs none */
  struct hk_profiler *profiler; /* NULL: none */
  hk_user_redop *redops;        /* [HK_REDOP_LIMIT], made at first use */
  hk_registration *registrations;
  ncclUniqueId *grow_id; /* of ncclCommGetUniqueId, until ncclCommGrow uses it; NULL: none */
  struct ncclComm *quarantine_next;
};
_Static_assert(HK_TRANSPORT_COUNT <= UINT8_MAX, "hk_wiring.via holds an index of a transport");
_Static_assert(sizeof(struct ncclComm) <= 8192, "a communicator is small");

/* comm.c */
hk_status hk_comm_new(ncclComm_t *out, int rank, int nranks, const ncclConfig_t *config);
/* The object itself, after everything in it is gone.  Its memory stays readable for a while, so that the use of a freed
 * communicator is an error message and not a crash. */
void hk_comm_release(ncclComm_t c);
/* Ends the communicator here and now, for a reason of this rank alone: the first failure wins, waits see it, its text is kept
 * for ncclGetLastError.  True for the first. */
bool hk_comm_fail(ncclComm_t c, hk_status code, const char *text);
/* Ends the communicator with a fault that other ranks may report better: waits end at once, the story is settled a little
 * later.  From any thread; never blocks. */
void hk_comm_hear(ncclComm_t c, const hk_event *e);
/* The same for an event of this rank's, which the other ranks get too.  `text` may be as long as an event's. */
void hk_comm_blame(ncclComm_t c, hk_event_kind kind, int rank, hk_status code, const char *text);
/* What the communicator ended with; HK_OK while it works, or while its story is not settled. */
hk_status hk_comm_verdict(ncclComm_t c);
/* Has this rank failed or heard of a failure, or another rank of this host whose news is on its way? */
static inline bool hk_comm_failing(ncclComm_t c) {
  return atomic_load(&c->health.failure) || (c->wait.shared_failure && atomic_load(c->wait.shared_failure));
}
/* After a wait ended with a failure: waits until the story is settled, and fails with it.  `where` (may be NULL): the call. */
hk_status hk_comm_settle(ncclComm_t c, const char *where);
/* What a failure of an operation does: unless the communicator has failed already, this rank reports the thread's error to all
 * as its own failure (HK_ERR_REMOTE: as trouble with others).  Gives the code that the caller returns; HK_OK for HK_OK. */
hk_status hk_comm_failed(ncclComm_t c, hk_status rc);
/* HK_OK, or an argument error where c is no live communicator. `who` is the API call. */
hk_status hk_comm_check(ncclComm_t c, const char *who);
/* As above, and a failed or unfinished communicator is refused too. */
hk_status hk_comm_check_usable(ncclComm_t c, const char *who);
/* As above, but a communicator that was revoked, on this rank or another one, may be the parent of new ones. */
hk_status hk_comm_check_parent(ncclComm_t c, const char *who);
/* Is it the copy of a parent's that a forked child got?  Its shared memory is the parent's: nothing may be done with it. */
bool hk_comm_inherited(ncclComm_t c);
hk_status hk_config_read(const ncclConfig_t *given, ncclConfig_t *full);

/* wire.c */
hk_status hk_wire_attach(ncclComm_t c, void *facts /* HK_TRANSPORT_COUNT * HK_FACT_BYTES */);
hk_status hk_wire_join(ncclComm_t c, const void *facts, size_t row_bytes, size_t fact_offset);
hk_status hk_wire_link(ncclComm_t c, hk_link_key key, hk_wired_link **out);
hk_status hk_wire_progress(ncclComm_t c, bool *moved);
void hk_wire_report_unread(ncclComm_t c); /* before the end: messages that no call received, at WARN; unread.c */
int hk_wire_broken(ncclComm_t c);         /* the lowest rank to which a link has failed, or -1 */
/* One pause of a wait; sleeps where only the network can end it and has been silent for a while. */
hk_status hk_wire_pause(ncclComm_t c, hk_waiter *w);
/* Tells the transports of host memory that the user has registered, or of the end of that. */
void hk_wire_memory(ncclComm_t c, void *base, size_t bytes, bool there);
/* An operation has ended in an error: from here on no peer writes to its memory. */
void hk_wire_withdraw(ncclComm_t c);
void hk_wire_free(ncclComm_t c);
/* What transports offer to ranks of this host beside links (transport.h), by the first that does.  NULL: it has no board here. */
struct hk_board *hk_wire_board(ncclComm_t c, int rank);
hk_transport_state *hk_wire_files(ncclComm_t c); /* passes files and questions between processes; NULL: none does */
const char *hk_wire_no_files(ncclComm_t c);
hk_status hk_wire_file(ncclComm_t c, int peer, uint64_t region, int *fd, size_t *bytes);
hk_status hk_wire_ask(ncclComm_t c, int peer, int fd, void *payload);
hk_status hk_wire_notify(ncclComm_t c, int peer, int fd, void *payload);
void hk_wire_answer_with(ncclComm_t c, hk_answer *answer, void *arg);

/* choose.c: the plan and launch arguments for a collective; both stay until the next call of the same collective. */
hk_status hk_choose(ncclComm_t c, const hk_call *op, const hk_plan **plan, const hk_launch **launch);
/* Equal calls have equal signatures on all ranks; never 0. */
uint32_t hk_choose_signature(const hk_call *op);
double hk_choose_price(ncclComm_t c, const hk_call *op); /* microseconds, by the model */
hk_status hk_choose_scratch(ncclComm_t c, size_t bytes, void **out);
void hk_plans_free(ncclComm_t c);

/* init.c */
typedef struct hk_init {
  ncclUniqueId *ids; /* the job's own copy */
  int nids;
  ncclComm_t parent; /* split, shrink */
  uint64_t turn;     /* of the parent's children on this rank, from 1 */
  uint64_t split;    /* of the parent's splits, from 1, on all ranks */
  int color, key;
  int *exclude;
  int nexclude;
  bool grows; /* ncclCommGrow: with a parent `ids` is this rank's own id, or NULL; without one this is a new rank */
} hk_init;
hk_status hk_comm_init(ncclComm_t c, const hk_init *how);
/* Leaves, detaches, frees.  Not collective. */
void hk_comm_destroy(ncclComm_t c);

/* api_misc.c */
void hk_registrations_free(ncclComm_t c);

/* watch.c; more of it in watch.h */
/* hk_wait_env.check of this communicator's waits. */
hk_status hk_watch(void *comm, uint64_t waited_ns);
void hk_watch_describe(const hk_call *op, char *text, size_t bytes);
#endif
