/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The verbs provider: InfiniBand and RoCE.
 *
 * A connection serves both directions of a channel between two ranks. It has a control socket (TCP, through the
 * bootstrap) and one or more reliable queue pairs (RC) on each of its *paths*. A path joins one port of each rank. If
 * both ranks have cards with several ports, there are several paths, and messages take turns.
 *
 * Data. Each side knows from the start the addresses of the other's slots: no addresses are exchanged for messages.
 *   - Up to HK_IB_SMALL bytes: header and payload are adjacent in the sender's ring, and one RDMA write with immediate
 *     (inline if they fit) copies them into the receiver's ring. From there the payload is copied to its place.
 *   - Larger messages are written straight into the receiver's FIFO, or into memory that the user has registered there
 *     (ib_place.c), from the sender's FIFO or from memory that the user has registered. The header follows in a write
 *     with immediate. Writes of a queue pair arrive in order. Parts on other queue pairs have immediates of their own,
 *     which are counted.
 *   - The immediate is the slot's number: a message that is lost or comes twice is an error, not wrong data.
 *   - A request reports its completion only if a lane waits for it: large messages, whose memory belongs to the lane.
 *     Of the others, one in a quarter of the queue does, and, once nothing follows them, an empty write after them (a
 *     *fence*).
 *   - Credits are sent in the headers of the other direction, or written into the sender's memory once half of the
 *     slots are owed. If they are to have a traffic class of their own, these writes have a queue pair of their own.
 *
 * Faults. When a queue pair fails, both sides take in what has arrived, exchange over the control socket how many
 * messages they have, and make new queue pairs (an *epoch*), on another pair of ports if necessary. The sender then
 * sends again what the receiver does not have: small messages stay in the sender's ring, and large ones in the FIFO,
 * until they are known to have arrived. If a rank is outside of the library meanwhile, its service thread does this,
 * every HK_IB_TICK_MS.
 *
 * GPUs. The FIFO's payloads may be in a GPU's memory, which the card then reads and writes (GPUDirect RDMA), at either
 * end independently. Data there is sent like large messages, whatever its size, and so is all data to a receiver whose
 * payloads are there. Data that has arrived is made visible to the GPU before it is delivered (ib_flush.c).
 *
 * If memory cannot be registered, as a rule because too little may be locked, the direction *falls back* to another
 * network before its first message: both ends open it again with the next network that they share (TCP). If GPU memory
 * cannot be registered, this end alone falls back to host memory; the peer learns of the place and its kind with the
 * FIFO's address.
 *
 * Threads. Everything that is not atomic or set once is under hk_ib_ctx.lock: the lanes' thread and the service thread
 * use it. The functions below are called with the lock held, except those with a `ctx` argument and
 * hk_ib_gpu_find_ports.
 */
#ifndef HK_TRANSPORT_NET_IB_H
#define HK_TRANSPORT_NET_IB_H
#include <poll.h>
#include "../../../base/silence.h"
#include "../net.h"
#include "ib_verbs.h"
#include "ib_wire.h"

/* ---- devices ---- */
typedef struct hk_ib_cq {
  hk_ibv_cq *cq;
  uint32_t room, used;
  bool armed; /* the next completion is reported on the device's channel */
} hk_ib_cq;

typedef struct hk_ib_device {
  char name[HK_IB_NAME];
  hk_ibv_context *context; /* NULL: it has failed, and is closed */
  hk_ibv_pd *pd;
  hk_ibv_channel *channel; /* of completions, for threads that sleep; NULL: not available */
  hk_ib_cq cqs[HK_IB_CQS];
  int ncqs;
  uint32_t max_wr, max_cqe;
  bool gone;         /* failed or removed */
  uint32_t falls;    /* times that it has failed */
  uint64_t retry_ns; /* when to try to open it again */
} hk_ib_device;

/* ---- connections ---- */
/* A port of this rank and one of the peer, and the registrations of the connection's memory with the port's device. */
typedef struct hk_ib_path {
  int pair; /* index in the connection's pairs */
  bool bad; /* a request has failed on it in this epoch */
  hk_ib_device *device;
  hk_ibv_mr *arena_mr, *send_mr, *recv_mr;
  hk_ib_memory peer_arena, peer_ring;
} hk_ib_path;

typedef struct hk_ib_qp {
  hk_ibv_qp *qp;
  hk_ib_path *path;
  hk_ib_cq *cq;
  uint32_t posted, done;     /* send requests: posted, and known to be complete */
  uint32_t signaled, looked; /* value of `posted` at the last request that reports its completion; at the last fence */
  uint32_t depth, recv_depth, recv_owed, inline_bytes;
  /* Requests that report their completion: their position, and the slot (its index in the ring) that waits for it. */
  struct {
    uint32_t position, slot;
  } * signals;
  uint32_t first, last; /* of `signals`, [first, last) modulo depth */
} hk_ib_qp;

typedef enum hk_ib_phase {
  HK_IB_DIALING, /* no control socket */
  HK_IB_GREETING,
  HK_IB_PAIRING, /* lower rank: the epoch is sent, the peer's answer is awaited; higher rank: the peer begins */
  HK_IB_READYING,
  HK_IB_UP,
  HK_IB_BACKING_OFF, /* the lower rank: until a new epoch */
  HK_IB_RESTING,     /* no queue pairs, nothing is registered, and messages are not read */
  HK_IB_FAILED
} hk_ib_phase;

enum { HK_IB_UPWARD = 1, HK_IB_DOWNWARD = 2, HK_IB_BOTH = 3 }; /* from the lower rank to the higher, and back */

/* A lane's offer of a place for a slot that has not come yet. */
typedef struct hk_ib_offered {
  uint64_t slot; /* its number, from 1; 0: no offer */
  char *to;
  uint32_t bytes;
  bool announced; /* the peer may write there */
} hk_ib_offered;

/* What reads from a GPU's memory by the device of a path. */
typedef struct hk_ib_reader {
  hk_ibv_qp *qp; /* connected to itself; NULL: not made yet, or not needed */
  hk_ib_cq *cq;
  bool dirty;   /* the peer has written over this path, or may have, since the last read was posted */
  bool reading; /* a read is under way */
} hk_ib_reader;

/* A receiver whose payloads are in a GPU's memory: which of the peer's slots are visible to the GPU. */
typedef struct hk_ib_flush {
  uint64_t seen, asked; /* number of visible slots; the number after the reads under way, 0: none is under way */
  uint32_t reads;       /* that are complete */
  hk_ib_reader readers[HK_IB_PATHS];
} hk_ib_flush;

/* One-sided operations of one rank on another: ib_remote.c. */
typedef struct hk_ib_remote {
  size_t n;                                            /* signals; 0: this is a connection of links */
  bool busy, begun, again, asked, answered, signalled; /* of the put under way; again: parts of it may have arrived */
  bool denied;                                         /* a window was no longer registered */
  uint32_t epoch;                                      /* in which the put was begun, and the keys are valid */
  uint32_t piece;
  uint64_t target, value; /* of the signal: after the put; as the target's answer has it */
  size_t sent;            /* bytes that were posted */
  struct {
    uint32_t qp, position;
  } staged[HK_IB_STAGES];
  hk_ib_keys keys[HK_IB_WINDOWS];
  uint32_t nkeys;
} hk_ib_remote;

typedef struct hk_ib_region hk_ib_region; /* ib_memory.c */
struct hk_ib_ctx;
typedef struct hk_ib_conn {
  struct hk_ib_ctx *ctx;
  int peer;
  uint16_t channel;
  uint8_t phase;    /* hk_ib_phase */
  bool dials;       /* this rank opens the control connection and begins epochs: of links, the lower one */
  bool eof;         /* the peer has closed the control socket */
  bool greeted;     /* the peer's HELLO has come */
  bool bye;         /* the peer has closed its connection in order, and said how much it has received */
  bool rested;      /* it was up until it was to rest; this epoch begins after that */
  bool ending;      /* this rank has stopped the queue pairs: what is flushed has not failed */
  bool gone;        /* no process listens where the peer's did, or it has left the communicator or the connection */
  bool came;        /* a request has completed in this epoch */
  bool wanted;      /* the peer has messages for the FIFO: it is registered */
  bool asked;       /* this rank has sent HK_IB_WANTS_RING in this epoch */
  bool apart;       /* the last queue pair, on the first path, carries credits and places and nothing else */
  uint8_t looks;    /* checks of the completions since the control socket's end */
  uint8_t ceded;    /* directions that another network carries: HK_IB_UPWARD, HK_IB_DOWNWARD */
  uint8_t on_cards; /* directions whose GPU memory is registered with a card: it cannot move to host memory */
  uint32_t index, serial;
  uint32_t place; /* in the context's active ones, counted from 1; 0: it is not there */
  hk_net_end *send, *recv;
  hk_status failed;
  /* control */
  int fd;
  hk_ib_msg in;
  uint32_t in_got, epoch, attempts;
  uint64_t broken_ns, up_ns, retry_ns, next_look_ns, stepped_ns;
  uint64_t repairing_ns; /* time since broken_ns, without the time in which one of the two processes took no part */
  uint64_t silent_ns;    /* when to check the peer's host again */
  uint64_t back_ns;      /* when to use a port again that came back; 0: none has */
  uint64_t lost_ns;      /* when the control connection was found lost; 0: it is there */
  hk_silence silence;    /* the state of these checks */
  uint64_t mark;         /* completions at the last check of progress */
  uint64_t looked_ns;    /* when that was */
  uint64_t stalled_ns;   /* for how long requests have been under way and none has completed */
  char cause[200];       /* of the last failure */
  /* ports and paths */
  hk_ib_port mine[HK_IB_OFFERED], theirs[HK_IB_OFFERED];
  int nmine, ntheirs, npairs;
  hk_ib_pair pairs[HK_IB_PAIRS];
  uint32_t npaths;
  hk_ib_path paths[HK_IB_PATHS];
  hk_ib_epoch ours;        /* this rank's part of the current epoch */
  char route[HK_IB_ROUTE]; /* the first path, as text */
  hk_ib_qp *qps;           /* [nqps] */
  uint32_t nqps, peer_nqps;
  uint32_t round_trip_us; /* of the control connection */
  unsigned timeout;       /* of the queue pairs, as verbs encodes it: hk_ib_timeout_for */
  /* memory */
  char *arena;
  size_t arena_bytes;
  /* Numbers of slots that this rank sends: posted to the queue pairs; given back to the lane; arrived, as the peer
   * reported; consumed by the peer. */
  uint64_t posted, given, arrived, credit;
  uint8_t *pending; /* [nslots] completions that a large slot, or the first of a run, still waits for */
  uint8_t *sizes;   /* [nslots] 1: small; 2: large, its memory belongs to the lane until it has arrived; 0: not sent */
  /* Numbers of slots that the peer sends: returned as credit; arrived (valid while the end is closed). */
  uint64_t returned, received;
  uint8_t *headers, *parts; /* [nslots] */
  hk_ib_offered offers[HK_IB_PLACES];
  uint64_t offered, announced; /* slots up to the last one offered by a lane; announced to the peer in this epoch */
  hk_ib_flush flush;
  hk_ib_remote remote;
} hk_ib_conn;

typedef struct hk_ib_ctx {
  const hk_transport_env *env;
  const hk_ibv *api;
  hk_ib_port ports[HK_IB_PORTS];
  int nports, nnear, local;
  const char *facts;
  size_t stride;
  hk_ib_device devices[HK_IB_PORTS];
  int ndevices;
  hk_ib_conn **conns; /* [room]; by index, NULL: free */
  uint32_t room, nconns, serial;
  /* The connections that may have something to move. Progress looks at these alone, and now and then at a few others
   * (ib.c). */
  hk_ib_conn **active;     /* [room] */
  uint32_t nactive, swept; /* swept: the index with which the next look at others begins */
  uint64_t next_sweep_ns;
  uint32_t idle;
  pthread_mutex_t lock; /* for everything that is not atomic or set once, and for the connections */
  uint64_t steps, seen; /* calls of progress; at the last tick */
  bool ceding;          /* there may be ends that wait for another network */
  bool scarce;          /* hk_ib_memory_is_scarce() at init */
  bool scarce_reported, asked_kernel;
  bool serving;                  /* the service thread holds the lock */
  pthread_t redialer;            /* ib_control.c */
  bool redialer_made, redialing; /* redialing: the thread will take the lock again */
  _Atomic(int) stop;             /* an hk_status: ends what that thread waits for */
  hk_ib_region *regions;         /* memory that the user has registered */
  _Atomic(bool) any_region;      /* there is one */
  uint64_t pinned, pinned_most;  /* bytes registered with devices */
  uint64_t placed, copied;       /* large messages that came straight to their places; that were copied from a FIFO */
  int timer;
  uint64_t timeout_ns; /* limit of hk_ib_conn.repairing_ns */
  uint64_t next_events_ns;
  hk_ib_gid_wish wish;
  int fifo_class; /* NCCL_IB_FIFO_TC */
  struct {
    bool known, direct; /* the ports were examined; cards can register its memory */
    uint8_t flushing;   /* hk_ib_flushing */
  } gpu;
} hk_ib_ctx;

/* For short waits under the lock, with a limit of their own. Any thread may wait so, and the watchdog reports
 * operations of the user's thread, so it does not check them. */
static inline hk_wait_env hk_ib_wait_env(const hk_ib_ctx *x) {
  return (hk_wait_env){.failure = x->env->wait ? x->env->wait->failure : NULL, .spins = 50};
}

/* The parts of a connection's arena: the credit word, the sender's ring, the receiver's ring. */
static inline char *hk_ib_tx_entry(const hk_ib_conn *c, uint64_t k) {
  return c->arena + HK_IB_ENTRY + (k & (c->ctx->env->nslots - 1)) * HK_IB_ENTRY;
}
static inline size_t hk_ib_rx_offset(const hk_ib_conn *c, uint64_t k) {
  return HK_IB_ENTRY + (c->ctx->env->nslots + (k & (c->ctx->env->nslots - 1))) * HK_IB_ENTRY;
}
/* The queue pairs for messages: the first ones. */
static inline uint32_t hk_ib_data_qps(const hk_ib_conn *c) { return c->nqps - c->apart; }
/* The place of slot k in the ring. */
static inline uint32_t hk_ib_slot_at(const hk_ib_conn *c, uint64_t k) {
  return (uint32_t)k & (c->ctx->env->nslots - 1);
}
/* At the arena's start: the peer writes there how many slots it has read. */
static inline _Atomic uint64_t *hk_ib_credit_word(const hk_ib_conn *c) { return (_Atomic uint64_t *)(void *)c->arena; }

/* ---- ib_conn.c: a connection ---- */
/* A connection that is not connected yet. `arena`: memory of the caller's that stays the caller's; NULL: it is made. */
hk_status hk_ib_conn_new(hk_ib_ctx *x, int peer, int channel, void *arena, size_t arena_bytes, hk_ib_conn **out);
/* Progress looks at the connection: something may be there to move. */
void hk_ib_stir(hk_ib_conn *c);
void hk_ib_leave_active(hk_ib_conn *c); /* progress does not look at it any more */
/* Fails the connection with HK_ERR_REMOTE. */
hk_status hk_ib_fail(hk_ib_conn *c, const char *cause, const char *advice);
void hk_ib_mark_failed(hk_ib_conn *c); /* the same without an error message */
/* The peer sent a message that is not valid: the same. */
hk_status hk_ib_bad_message(hk_ib_conn *c, const char *what);
/* Sends a control message; fills its common fields. A connection that the peer has closed is no error (c->eof). */
hk_status hk_ib_send_message(hk_ib_conn *c, hk_ib_msg *m);
/* The direction of one of the connection's ends. */
static inline uint8_t hk_ib_direction(const hk_ib_conn *c, bool sends) {
  return c->dials == sends ? HK_IB_UPWARD : HK_IB_DOWNWARD;
}

/* ---- ib_device.c: devices, completion queues, registrations ---- */
/* Opens a device, once; *out stays valid until the context ends. */
hk_status hk_ib_device_open(hk_ib_ctx *x, const char *name, hk_ib_device **out);
/* Opens a device that was closed; false with errno. */
bool hk_ib_device_open_again(hk_ib_ctx *x, hk_ib_device *d);
void hk_ib_device_close(hk_ib_ctx *x, hk_ib_device *d);
/* Takes room for `entries` in a completion queue, which is made if necessary; NULL with errno. */
hk_ib_cq *hk_ib_cq_take(hk_ib_ctx *x, hk_ib_device *d, uint32_t entries);
void hk_ib_cq_give(hk_ib_cq **q, uint32_t entries); /* gives it back, unless *q is NULL, which it is then */
/* Registers memory for remote writes. `data`: payloads, which may be written in any order. Returns NULL with errno, and
 * the cause and the process's limit in `why`. */
hk_ibv_mr *hk_ib_try_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, char why[160]);
/* Returns true if the memory that this process may lock is limited, so that registering may fail: by RLIMIT_MEMLOCK,
 * which does not apply to a process with CAP_IPC_LOCK. */
bool hk_ib_memory_is_scarce(void);
#define HK_IB_MORE_MEMORY "raise it (ulimit -l unlimited; LimitMEMLOCK=infinity; docker --ulimit memlock=-1)"
/* The same as an error that says what to do. */
hk_status hk_ib_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, hk_ibv_mr **out);
static inline size_t hk_ib_ring_bytes(const hk_ib_conn *c) {
  return (size_t)c->ctx->env->nslots * c->ctx->env->slot_bytes;
}
/* Deregisters memory and sets *mr to NULL; does nothing if it is NULL. */
void hk_ib_unregister(hk_ib_ctx *x, hk_ibv_mr **mr);
static inline void hk_ib_count_pinned(hk_ib_ctx *x, const hk_ibv_mr *mr) {
  x->pinned += mr->length;
  if (x->pinned > x->pinned_most) x->pinned_most = x->pinned;
}
/* For sleeping until a request completes: arms the completion queues and fills `fds`, one for each device. Returns
 * false if a device has no channel. Completions before that are not reported, so poll once more; after the sleep, read
 * the notifications. */
bool hk_ib_arm(hk_ib_ctx *x, struct pollfd fds[HK_IB_PORTS]);
void hk_ib_read_notifications(hk_ib_ctx *x, const struct pollfd fds[HK_IB_PORTS]);
/* The state of a port as text: "DOWN", "ACTIVE", ... */
const char *hk_ib_port_state(hk_ib_ctx *x, const hk_ib_device *d, int port);

/* ---- ib_event.c: events of the devices ---- */
/* Logs events of the devices. Connections that an event ends get new queue pairs, on another device if there is one. */
hk_status hk_ib_handle_events(hk_ib_ctx *x);
/* Closes devices that have failed once nothing of theirs is used, and opens them again when that is possible: after a
 * second, and after twice as long each time that they fail. */
void hk_ib_devices_return(hk_ib_ctx *x, uint64_t now);

/* ---- ib_memory.c: memory that the user has registered ---- */
/* The provider's `memory` and `refer`. */
void hk_ib_user_memory(void *ctx, void *base, size_t bytes, bool there);
bool hk_ib_refer(void *ctx, const void *data, size_t bytes);
bool hk_ib_is_registered(hk_ib_ctx *x, const void *data, size_t bytes);
/* The registration with the device of the user's memory that contains the data. NULL if the device refuses it, or the
 * user has not registered it. `writes`: it must allow writes of the peer's card. */
hk_ibv_mr *hk_ib_user_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes, bool writes);
void hk_ib_user_leave(hk_ib_ctx *x, const hk_ib_device *d); /* deregisters all of it from the device */
void hk_ib_user_free(hk_ib_ctx *x);
void hk_ib_place_min(hk_ib_ctx *x, hk_link *link); /* sets link->place_min */

/* ---- ib_place.c: memory that the user has registered, for the peer to write to ---- */
/* The provider's `offer` and `withdraw`. */
void hk_ib_place_offer(void *ctx, hk_net_end *e, uint64_t k, void *to, uint32_t bytes);
void hk_ib_place_withdraw(void *ctx);
/* Announces offers to the peer: those since the last call, or all of them in a new epoch. */
hk_status hk_ib_place_announce(hk_ib_conn *c);
/* Sender: fills `to` with the place of slot k, which has `bytes`. Returns false if none of that size is known. */
bool hk_ib_place_find(hk_ib_conn *c, uint64_t k, uint32_t bytes, hk_ib_target *to);
/* Receiver: the place to which the peer has written slot k; NULL if no such place was announced. */
void *hk_ib_place_used(hk_ib_conn *c, uint64_t k, uint32_t bytes);

/* ---- ib_remote.c: one-sided operations ---- */
struct hk_remote;
extern const struct hk_remote hk_ib_remote_table;

/* ---- ib_gpu.c: payloads in a GPU's memory ---- */
/* Finds which ports are near the rank's GPU, and which can register its memory. Sorts x->ports and removes those that
 * do not fit. Before the first connection; takes the lock. */
void hk_ib_gpu_find_ports(hk_ib_ctx *x);
bool hk_ib_takes_gpu(void *ctx, const hk_net_end *e); /* the provider's takes_gpu */
/* Registers the end's payloads in a GPU's memory. Returns NULL with the cause if the card refuses, although it accepted
 * such memory in the trial: if none of the end's payloads is registered yet, they move to host memory, and link->gpu is
 * NULL. */
hk_ibv_mr *hk_ib_gpu_mr(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, char why[160]);
/* Returns true if an end's payloads in GPU memory are not registered yet. Only the lane's thread may do that. */
bool hk_ib_gpu_unsettled(const hk_ib_conn *c);

/* ---- ib_flush.c: when a GPU sees what has arrived ---- */
/* Sets *yes if the GPU sees the payload of slot k, which has arrived. Otherwise a flush has been started: call
 * again. */
hk_status hk_ib_flush_visible(hk_ib_conn *c, uint64_t k, bool *yes);
hk_status hk_ib_flush_done(hk_ib_conn *c, uint32_t path, const hk_ibv_wc *wc); /* a read has completed */
void hk_ib_flush_drop(hk_ib_conn *c); /* frees the flush's queue pairs, with the connection's queue pairs */

/* ---- ib_rings.c: the FIFOs of a connection's ends ---- */
/* Registers and announces an end that was opened on a connection that exists already. */
hk_status hk_ib_add_end(hk_ib_conn *c, const hk_net_end *e);
/* An end has got its FIFO for large messages after small ones: registers and announces what must be by now. */
hk_status hk_ib_grown(hk_ib_conn *c, const hk_net_end *e);
bool hk_ib_starves(hk_ib_conn *c); /* The receiver has no such FIFO yet: notes that it needs one. */
/* The peer wants the FIFO: registers and announces it. */
hk_status hk_ib_provide_ring(hk_ib_conn *c);
void hk_ib_fill_rings(const hk_ib_conn *c, hk_ib_msg *m); /* fills in the FIFO's registrations */
static inline hk_ib_memory hk_ib_memory_of(const hk_ibv_mr *mr) {
  return mr ? (hk_ib_memory){.addr = (uint64_t)(uintptr_t)mr->addr, .rkey = mr->rkey} : (hk_ib_memory){0};
}
/* Handles memory that cannot be registered. The connection does without the path; if it is the first path, another
 * network carries these directions, if there is one. */
hk_status hk_ib_cannot_register(hk_ib_conn *c, hk_ib_path *path, uint8_t directions, const char *why);
hk_status hk_ib_ceded(hk_ib_conn *c, const hk_ib_msg *m); /* the peer cannot register: HK_IB_CEDE has come */

/* ---- ib_epoch.c: epochs of queue pairs ---- */
hk_status hk_ib_epoch_begin(hk_ib_conn *c);                    /* the lower rank begins an epoch */
hk_status hk_ib_epoch_came(hk_ib_conn *c, const hk_ib_msg *m); /* HK_IB_EPOCH has come */
void hk_ib_epoch_up(hk_ib_conn *c);                            /* the peer can receive: HK_IB_READY has come */
/* As hk_net_provider's: a connection that is up rests, both ends together. */
hk_status hk_ib_rest(void *ctx, hk_net_end *e, bool *rests);
void hk_ib_send_bye(hk_ib_conn *c); /* ends the connection in order: reports how much has been received */

/* ---- ib_step.c: steps of a connection ---- */
/* Goes on with connecting and repairing, and reads the control socket; `now` is hk_now_ns(). Never blocks on the peer,
 * except to open the control connection. */
hk_status hk_ib_conn_step(hk_ib_conn *c, uint64_t now);

/* ---- ib_tick.c: the service thread's part ---- */
/* From here on the service thread does what connections need; not under the lock. */
hk_status hk_ib_start_ticking(hk_ib_ctx *x);

/* ---- ib_keys.c: keys of windows for one-sided operations ---- */
/* At the arena's start: the counters of a connection for one-sided operations. */
static inline _Atomic uint64_t *hk_ib_counters(const hk_ib_conn *c) { return (_Atomic uint64_t *)(void *)c->arena; }
struct hk_remote_put;
hk_status hk_ib_keys_ask(hk_ib_conn *c, const struct hk_remote_put *p);    /* the keys of the put's window */
hk_status hk_ib_keys_asked(hk_ib_conn *c, const hk_ib_msg *m);             /* HK_IB_ASK has come */
hk_status hk_ib_keys_came(hk_ib_conn *c, const hk_ib_msg *m);              /* HK_IB_KEYS has come */
const hk_ib_keys *hk_ib_keys_find(const hk_ib_remote *r, uint64_t window); /* NULL: they are not known */

/* ---- ib_control.c: a control connection that is lost or silent ---- */
uint64_t hk_ib_control_tag(const hk_ib_conn *c);
void hk_ib_control_begin(hk_ib_conn *c); /* sets the options of a new control socket */
/* Returns true if the control connection is lost, and its end does not show that the peer has gone. */
bool hk_ib_control_may_return(const hk_ib_conn *c);
/* A lost control connection: the dialling rank has a thread make a new one, the other one takes it. An error if RDMA
 * fails for too long, too. */
hk_status hk_ib_control_check(hk_ib_conn *c, uint64_t now);
/* Once a second: takes a new control connection for one that only the peer has lost. If a lane `waits` and the control
 * connection is silent, asks the peer's card whether its host is there. */
hk_status hk_ib_control_ask(hk_ib_conn *c, uint64_t now, bool waits);
void hk_ib_control_end(hk_ib_ctx *x); /* ends the thread; not under the lock */

/* ---- ib_repair.c: failures ---- */
/* A request on a queue pair has failed: begins a new epoch, or fails the connection. */
hk_status hk_ib_broken(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc, const char *doing);
/* The device or completion queue of the connection's queue pairs has failed: the same. */
hk_status hk_ib_lost(hk_ib_conn *c, const char *what, bool repairable);
/* Begins a new epoch, or fails the connection if that was tried for too long. c->cause is the reason: a rank that does
 * not begin epochs sends it to the other one. */
hk_status hk_ib_repair(hk_ib_conn *c, const char *advice);
/* Repairs the connection if requests have neither completed nor failed for longer than their retries take. */
hk_status hk_ib_check_progress(hk_ib_conn *c, uint64_t now);
/* Starts to count the time of repairs, and counts it: only while this process takes part, and the peer's answer is not
 * waited for. */
void hk_ib_begin_repairs(hk_ib_conn *c, uint64_t now);
/* A failure of a connection that has been up for long is a new one: the time and the attempts are counted anew. */
void hk_ib_note_failure(hk_ib_conn *c, uint64_t now);
void hk_ib_count_repairs(hk_ib_conn *c, uint64_t now);
/* Returns true if the peer's answer is waited for and its host does not answer the kernel's questions. */
bool hk_ib_host_is_silent(hk_ib_conn *c, uint64_t now);
/* A port is up again: after BACK_MS without another change, connections that had left it begin an epoch over it. */
void hk_ib_port_came_back(hk_ib_ctx *x, const hk_ib_device *d, int port, uint64_t now);
hk_status hk_ib_go_back(hk_ib_conn *c, uint64_t now);

/* ---- ib_path.c: the paths of a connection ---- */
/* The ports of a path, as the two ranks offered them. */
static inline const hk_ib_port *hk_ib_my_port(const hk_ib_conn *c, const hk_ib_path *w) {
  return &c->mine[c->pairs[w->pair].mine];
}
static inline const hk_ib_port *hk_ib_their_port(const hk_ib_conn *c, const hk_ib_path *w) {
  return &c->theirs[c->pairs[w->pair].theirs];
}
/* Writes "; the kernel says: ..." about the best GIDs of the first path's ports to `text`, or "". May wait for half a
 * second, so it asks once for each communicator. */
const char *hk_ib_kernel_reason(hk_ib_conn *c, char text[HK_IB_KERNEL_TEXT]);
/* The lower rank chooses the paths, and the higher one takes those of its message; false: they are not valid. */
void hk_ib_choose_paths(hk_ib_conn *c);
bool hk_ib_take_paths(hk_ib_conn *c, const hk_ib_epoch *theirs);
void hk_ib_fill_paths(hk_ib_conn *c); /* writes them to c->ours */
/* Opens the paths' devices and registers the connection's memory with them. *refused: a path whose device accepts no
 * more memory, with the cause in `why`; NULL: none. */
hk_status hk_ib_open_paths(hk_ib_conn *c, hk_ib_path **refused, char why[160]);
/* Registers the FIFOs that must be registered by now. The one that receives large messages is registered when the first
 * one wants to come; but if memory may run out, or is a GPU's, both are before the first message, because a fallback is
 * not possible later. Returns the path whose device refuses, or NULL. */
hk_ib_path *hk_ib_register_rings(hk_ib_conn *c, char why[160]);
void hk_ib_free_memory(hk_ib_conn *c);
void hk_ib_leave_devices(hk_ib_conn *c); /* the same with failed devices alone; there are no queue pairs */
bool hk_ib_has_memory_of(const hk_ib_conn *c, const hk_ib_device *d); /* registered with the device */
void hk_ib_unregister_end(hk_ib_conn *c, bool sends);                 /* the FIFO of one direction */
void hk_ib_describe_path(const hk_ib_conn *c, const hk_ib_path *w, char text[HK_IB_ROUTE]);

/* ---- ib_timeout.c: times of the cards ---- */
void hk_ib_measure(hk_ib_conn *c); /* sets round_trip_us and timeout */
/* The time for which a queue pair waits for an answer, as n in 4.096 us * 2^n, for this round trip. With so many
 * retries the card gives up within `bound_ns`. */
unsigned hk_ib_timeout_for(uint32_t round_trip_us, unsigned retries, uint64_t bound_ns);
uint64_t hk_ib_gives_up_ns(unsigned timeout, unsigned retries); /* the longest time that a card may take to give up */

/* ---- ib_qp.c: queue pairs ---- */
hk_status hk_ib_make_qps(hk_ib_conn *c, uint32_t n); /* makes n queue pairs on the paths and posts their receives */
void hk_ib_drop_qps(hk_ib_conn *c);
bool hk_ib_wants_apart(const hk_ib_conn *c); /* this rank's part of c->apart */
/* Connects the queue pairs to the peer's. On failure errno is set, and no error text: the caller may try another
 * path. */
hk_status hk_ib_join_qps(hk_ib_conn *c, const hk_ib_epoch *theirs);
/* Writes the queue pairs' vendor options (ECE) to c->ours: before they are joined those of this rank's card, then those
 * agreed on. */
void hk_ib_fill_ece(hk_ib_conn *c);

/* ---- ib_post.c: requests of the queue pairs ---- */
/* A request's id names its connection and the epoch of its queue pairs, so that late completions of earlier ones are
 * ignored. */
enum { HK_IB_SENT = 1, HK_IB_RECEIVED, HK_IB_FLUSHED };
_Static_assert(HK_IB_QPS <= 128 && HK_IB_FLUSHED < 4,
               "a request's id has seven bits for the queue pair, two for these");
static inline uint64_t hk_ib_request_id(const hk_ib_conn *c, uint32_t qp, unsigned kind) {
  return (uint64_t)c->serial << 32 | (uint64_t)c->index << 9 | (uint64_t)qp << 2 | kind;
}
/* Its parts. */
static inline uint32_t hk_ib_request_conn(uint64_t id) { return (uint32_t)id >> 9; }
static inline uint32_t hk_ib_request_qp(uint64_t id) { return (uint32_t)id >> 2 & 127; }
static inline unsigned hk_ib_request_kind(uint64_t id) { return (unsigned)id & 3; }
/* RECV_BATCH: receives that are posted again at once. NO_SLOT: no slot waits for a request's completion. */
enum { HK_IB_RECV_BATCH = 8, HK_IB_NO_SLOT = UINT32_MAX };
hk_status hk_ib_post_recv(hk_ib_conn *c, uint32_t q, uint32_t n); /* posts n receive requests on queue pair q */
/* Returns true if the queue has room for n requests. */
static inline bool hk_ib_has_room(const hk_ib_qp *q, uint32_t n) { return q->posted - q->done + n <= q->depth; }
/* A write to an address of the peer's, with an immediate. It goes inline if it is short enough. */
hk_ibv_send_wr hk_ib_write_with_imm(const hk_ib_conn *c, uint32_t qp, hk_ibv_sge *sge, uint64_t to, uint32_t rkey,
                                    uint32_t imm);
/* A write without an immediate, and the request after it. */
hk_ibv_send_wr hk_ib_plain_write(const hk_ib_conn *c, uint32_t qp, hk_ibv_sge *sge, const hk_ib_target *to,
                                 hk_ibv_send_wr *next);
/* Posts n requests, the last of which is `last`. It reports its completion if `slot` waits for that (otherwise
 * HK_IB_NO_SLOT), or if a report is due. */
hk_status hk_ib_post(hk_ib_conn *c, uint32_t qp, hk_ibv_send_wr *wr, hk_ibv_send_wr *last, uint32_t n, uint32_t slot);
typedef struct hk_ib_source {
  const void *from;
  uint32_t bytes, lkey;
  bool readable; /* by the CPU: it goes with the request if it is short enough */
} hk_ib_source;
/* Posts a write to an address of the peer's. `report`: its completion counts in the queue pair's `done`. *posted is
 * false if the queue has no room. */
hk_status hk_ib_post_write(hk_ib_conn *c, uint32_t qp, const hk_ib_source *s, uint64_t to, uint32_t rkey, bool report,
                           bool *posted);
/* Writes a few bytes of this rank's arena into the peer's, at offset `at`. *posted is false if the queue has no
 * room. */
hk_status hk_ib_write(hk_ib_conn *c, const void *from, uint32_t bytes, size_t at, bool *posted);
/* Posts an empty write that reports its completion after requests that do not: after all of them, or after those that
 * were there at the last call. */
hk_status hk_ib_fence(hk_ib_conn *c, bool all);
/* Posts an empty write on each queue pair on which nothing is under way: its completion, or its failure, says whether
 * the peer's card is there. */
hk_status hk_ib_ask_card(hk_ib_conn *c);

/* ---- ib_slots.c: numbers of slots ---- */
/* Gives slots back to the lane: small ones once they are in the ring, large ones once they have arrived. */
void hk_ib_give_back(hk_ib_conn *c);
uint64_t hk_ib_credit(hk_ib_conn *c); /* slots that the peer has read, of those that this rank sends */
/* Returns true if slots were taken from the lane that are not known to have arrived. */
bool hk_ib_unfinished(const hk_ib_conn *c);
/* Returns true if all slots after the first `received` can be sent again. A large message cannot, once its arrival was
 * acknowledged: its memory belongs to the lane again. */
bool hk_ib_can_rewind(const hk_ib_conn *c, uint64_t received);
/* Resets the sender to what the peer has: everything after its first `received` slots is sent again. */
void hk_ib_rewind(hk_ib_conn *c, uint64_t received, uint64_t consumed);
/* The number of the peer's slots that have arrived completely, delivered or not. */
uint64_t hk_ib_arrived_to(const hk_ib_conn *c);
/* The same number as hk_ib_arrived_to; forgets parts of later slots. For the end of an epoch. */
uint64_t hk_ib_received(hk_ib_conn *c);

/* ---- ib_send.c: sending ---- */
hk_status hk_ib_send(hk_ib_conn *c, bool *moved); /* posts what the lane has filled; sets *moved if there was any */
hk_status hk_ib_return_credit(hk_ib_conn *c);     /* writes the credit to the peer once half of the slots are owed */

/* ---- ib_receive.c: completions, and messages that have arrived ---- */
hk_status hk_ib_poll(hk_ib_ctx *x, bool *moved);     /* takes completions of all devices */
hk_status hk_ib_deliver(hk_ib_conn *c, bool *moved); /* hands messages that have arrived to the lane */
#endif
