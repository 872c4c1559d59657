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
 *   - The immediate is the slot's number: a message that is lost or arrives twice is an error, not wrong data.
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
 * use it. Functions of several files are called with the lock held, except those with a `ctx` argument,
 * hk_ib_gpu_find_ports, hk_ib_start_ticking and hk_ib_control_end.
 *
 * Files. Each one calls only those before it: ib_device (devices, registrations), ib_memory (the user's memory),
 * ib_gpu (cards and GPUs), ib_conn (a connection), ib_slots, ib_timeout, ib_post (requests), ib_path, ib_repair
 * (failures), ib_flush, ib_qp, ib_rings (FIFOs, fallback), ib_place, ib_send, ib_receive, ib_epoch, ib_control,
 * ib_keys, ib_step (steps of a connection), ib_event, ib_tick (the service thread), ib_remote (one-sided operations),
 * ib (the provider's table).
 */
#pragma once
#include "../../../base/silence.h"
#include "ib_context.h"
#include "ib_wire.h"

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

/* A lane's offer of a place for a slot that has not arrived yet. */
typedef struct hk_ib_offered {
  uint64_t slot; /* its number, from 1; 0: no offer */
  char *to;
  uint32_t bytes;
  bool announced; /* the peer may write there */
} hk_ib_offered;

/* Reads of a GPU's memory through the device of a path. */
typedef struct hk_ib_reader {
  hk_ibv_qp *qp; /* connected to itself; NULL: not made yet, or not needed */
  hk_ib_cq *cq;
  bool dirty;   /* the peer has written over this path, or may have, since the last read was posted */
  bool reading; /* a read is under way */
} hk_ib_reader;

/* A receiver whose payloads are in a GPU's memory: which of the peer's slots are visible to the GPU. */
typedef struct hk_ib_flush {
  uint64_t seen, asked; /* number of visible slots; the number after the reads under way, 0: none is under way */
  uint32_t reads;       /* number of complete reads */
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

/* The control socket. */
typedef struct hk_ib_socket {
  int fd;
  bool eof;        /* the peer has closed it */
  bool greeted;    /* the peer's HELLO has arrived */
  bool bye;        /* the peer has closed its connection in order, and said how much it has received */
  bool gone;       /* no process listens where the peer's did, or it has left the communicator or the connection */
  uint8_t looks;   /* checks of the completions since its end */
  uint32_t in_got; /* bytes of `in` */
  uint64_t next_look_ns; /* when to read it again */
  uint64_t silent_ns;    /* when to check the peer's host again */
  uint64_t lost_ns;      /* when it was found lost; 0: it is not lost */
  hk_silence silence;    /* the state of these checks */
  hk_ib_msg in;
} hk_ib_socket;

/* Failures and their repair: ib_repair.c. */
typedef struct hk_ib_repairs {
  bool came;         /* a request has completed in this epoch */
  bool rested;       /* the connection was up until it was to rest; this epoch begins after that */
  bool ending;       /* this rank has stopped the queue pairs: what is flushed has not failed */
  uint32_t attempts; /* epochs since broken_ns */
  uint64_t up_ns, broken_ns, retry_ns, stepped_ns;
  uint64_t spent_ns;   /* time since broken_ns, without the time in which one of the two processes took no part */
  uint64_t back_ns;    /* when to use a port again that came back; 0: none has */
  uint64_t mark;       /* completions at the last check of progress */
  uint64_t looked_ns;  /* when that was */
  uint64_t stalled_ns; /* for how long requests have been under way and none has completed */
  char cause[200];     /* of the last failure */
} hk_ib_repairs;

/* Ports of both ranks, and pairs of them. */
typedef struct hk_ib_choice {
  hk_ib_port mine[HK_IB_OFFERED], theirs[HK_IB_OFFERED];
  int nmine, ntheirs, npairs;
  uint32_t nqps; /* queue pairs that both ranks want on a path */
  hk_ib_pair pairs[HK_IB_PAIRS];
  char route[HK_IB_ROUTE]; /* the first path, as text */
} hk_ib_choice;

/* Slots that this rank sends. The numbers: posted to the queue pairs; given back to the lane; arrived, as the peer
 * reported; consumed by the peer. */
typedef struct hk_ib_tx {
  uint64_t posted, given, arrived, credit;
  uint8_t *pending; /* [nslots] completions that a large slot, or the first of a run, still waits for */
  uint8_t *sizes;   /* [nslots] 1: small; 2: large, its memory belongs to the lane until it has arrived; 0: not sent */
  bool asked;       /* this rank has sent HK_IB_WANTS_RING in this epoch */
} hk_ib_tx;

/* Slots that the peer sends. The numbers: returned as credit; arrived (valid while the end is closed). */
typedef struct hk_ib_rx {
  uint64_t returned, received;
  uint8_t *headers, *parts; /* [nslots] */
  bool wanted;              /* the peer has messages for the FIFO: it is registered */
} hk_ib_rx;

/* ib_place.c: offers of the lanes. */
typedef struct hk_ib_places {
  uint64_t offered, announced; /* slots up to the last one offered by a lane; announced to the peer in this epoch */
  hk_ib_offered offers[HK_IB_PLACES];
} hk_ib_places;

struct hk_ib_conn {
  hk_ib_ctx *ctx;
  int peer;
  uint16_t channel;
  uint8_t phase; /* hk_ib_phase */
  uint8_t ceded; /* directions that another network carries: HK_IB_UPWARD, HK_IB_DOWNWARD */
  bool dials;    /* this rank opens the control connection and begins epochs: of links, the lower one */
  bool apart;    /* the last queue pair, on the first path, carries credits and places and nothing else */
  uint32_t index, serial, epoch;
  uint32_t place; /* in the context's active ones, counted from 1; 0: it is not there */
  hk_status failed;
  hk_net_end *send, *recv;
  char *arena;
  size_t arena_bytes;
  hk_ib_tx tx;
  hk_ib_rx rx;
  hk_ib_qp *qps; /* [nqps] */
  uint32_t nqps, npaths;
  hk_ib_path paths[HK_IB_PATHS];
  uint32_t round_trip_us; /* of the control connection */
  unsigned timeout;       /* of the queue pairs, as verbs encodes it: hk_ib_timeout_for */
  hk_ib_places places;
  struct {
    uint8_t on_cards; /* directions whose GPU memory is registered with a card: it cannot move to host memory */
    hk_ib_flush flush;
  } gpu;
  hk_ib_repairs repair;
  hk_ib_socket control;
  hk_ib_choice ports;
  hk_ib_epoch ours; /* this rank's part of the current epoch */
  hk_ib_remote remote;
};

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
static inline size_t hk_ib_ring_bytes(const hk_ib_conn *c) {
  return (size_t)c->ctx->env->nslots * c->ctx->env->slot_bytes;
}

/* A connection that is not connected yet. `arena`: memory of the caller's that stays the caller's; NULL: it is made. */
hk_status hk_ib_conn_new(hk_ib_ctx *x, int peer, int channel, void *arena, size_t arena_bytes, hk_ib_conn **out);
void hk_ib_conn_free(hk_ib_conn *c); /* ib.c */
/* Progress looks at the connection: something may be there to move. */
void hk_ib_stir(hk_ib_conn *c);
void hk_ib_leave_active(hk_ib_conn *c); /* progress does not look at it any more */
/* Fails the connection with HK_ERR_REMOTE. */
hk_status hk_ib_fail(hk_ib_conn *c, const char *cause, const char *advice);
void hk_ib_mark_failed(hk_ib_conn *c); /* the same without an error message */
/* The peer sent a message that is not valid: the same. */
hk_status hk_ib_bad_message(hk_ib_conn *c, const char *what);
/* Sends a control message; fills its common fields. A connection that the peer has closed is no
 * error (c->control.eof). */
hk_status hk_ib_send_message(hk_ib_conn *c, hk_ib_msg *m);
/* The direction of one of the connection's ends. */
static inline uint8_t hk_ib_direction(const hk_ib_conn *c, bool sends) {
  return c->dials == sends ? HK_IB_UPWARD : HK_IB_DOWNWARD;
}
