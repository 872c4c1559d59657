/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The verbs provider: InfiniBand and RoCE.
 *
 * A connection serves both directions of a channel between two ranks.  It has a control socket (TCP, through the bootstrap)
 * and one or more reliable queue pairs (RC) on each of its *ways*.  A way joins one port of each rank; where both have cards of
 * several ports, there are several ways, and messages take turns.
 *
 * Data.  Each side knows from the start where the other's slots lie: no addresses are exchanged for messages.
 *   - Up to HK_IB_SMALL bytes: header and payload lie together in the sender's ring and are written with one RDMA write with
 *     immediate (inline where they fit) into the receiver's ring, from where the payload is copied to its place.
 *   - Larger ones are written straight into the receiver's FIFO, from the sender's or from memory that the user has registered,
 *     or into memory that he has registered there (ib_place.c); the header follows in a write with immediate.  Writes of a
 *     queue pair arrive in order.  Parts that go over other queue pairs have immediates of their own, which are counted.
 *   - The immediate is the slot's number: a message that is lost or comes twice is an error, not wrong data.
 *   - Only what somebody waits for reports its completion: large messages, whose memory is the lane's.  Of the others one in a
 *     while does, and, once nothing follows them, an empty write behind them (a *fence*).
 *   - Credits ride on the headers of the other direction, or are written into the sender's memory when half of the slots
 *     are owed.
 *
 * Faults.  When a queue pair fails, both sides drain what has arrived, tell each other over the control socket how far they
 * are, make new queue pairs (an *epoch*), on another port pair if need be, and the sender sends again what the receiver does
 * not have: small messages stay in the sender's ring, and large ones in the FIFO, until they are known to have arrived.  A rank that is
 * outside of the library meanwhile takes part through its service thread, which looks every HK_IB_TICK_MS.
 *
 * GPUs.  The FIFO's payloads may lie in a GPU's memory, which the card reads and writes then (GPUDirect RDMA), at either end
 * alone.  What lies there is sent as large messages are, whatever its size; and to a receiver whose payloads lie there all
 * is sent so.  What has arrived is made visible to the GPU before it is delivered (ib_gpu.c).
 *
 * Memory that cannot be registered, as a rule because too little may be locked, makes a direction *give way* before its first
 * message: both ends open it anew with the next network that they share (TCP).  A GPU's that cannot gives way to the host's,
 * at that end alone: the other one is told of the place and what it is with the FIFO's address.
 */
#ifndef HK_TRANSPORT_NET_IB_H
#define HK_TRANSPORT_NET_IB_H
#include <poll.h>
#include "../../base/silence.h"
#include "ib_cm.h"
#include "ib_gdr.h"
#include "ib_port.h"
#include "net.h"

enum {
  HK_IB_QPS = 8,
  HK_IB_PATHS = HK_IB_OFFERED,
  HK_IB_ENTRY = 4096, /* of the rings for small messages: header and payload */
  HK_IB_HEADER = 32,
  HK_IB_SMALL = HK_IB_ENTRY - HK_IB_HEADER,
  HK_IB_SPLIT_MIN = 65536, /* smaller messages go over one queue pair */
  HK_IB_INLINE = 256,      /* wanted */
  HK_IB_CQ_DEPTH = 8192,
  HK_IB_CQS = 64,
  HK_IB_PLACES = HK_LINK_AHEAD,
  HK_IB_TICK_MS = 100,
  HK_IB_MAGIC = 0x686b6962
};
#define HK_IB_HAS_HEADER 0x80000000u /* of an immediate */

/* ---- what goes over the control socket ---- */
typedef enum hk_ib_kind {
  HK_IB_HELLO = 1,
  HK_IB_EPOCH,
  HK_IB_READY,
  HK_IB_RING,
  HK_IB_BROKEN,
  HK_IB_BYE,
  HK_IB_CEDE
} hk_ib_kind;

enum { HK_IB_ON_GPU = 1 }; /* no CPU gets at it: payloads of every size are to be written there */
typedef struct hk_ib_memory {
  uint64_t addr; /* 0: not there yet */
  uint32_t rkey, flags;
} hk_ib_memory;

typedef struct hk_ib_epoch {
  uint8_t npaths, nqps; /* queue pair q goes way q % npaths */
  uint8_t reserved[2];
  uint32_t psn;
  struct {
    uint8_t port[2], gid[2]; /* the lower rank's and the higher one's, as offered */
    uint8_t mtu;
    uint8_t reserved[3];
  } paths[HK_IB_PATHS];
  uint32_t qp[HK_IB_QPS];
  uint64_t received, consumed;     /* slots of the direction towards the sender of this */
  hk_ib_memory arena[HK_IB_PATHS]; /* for each way: its device's key */
  hk_ibv_ece ece[HK_IB_QPS];       /* hk_ib_fill_ece; all 0: none */
} hk_ib_epoch;

typedef struct hk_ib_msg {
  uint32_t magic, kind;
  uint32_t epoch;
  uint32_t nslots, slot_bytes;
  hk_ib_memory ring[HK_IB_PATHS]; /* the FIFO's payloads, for each way: HK_IB_EPOCH, HK_IB_RING */
  union {
    struct {
      uint32_t nports, nqps;
      hk_ib_port ports[HK_IB_OFFERED];
    } hello;
    hk_ib_epoch epoch_info;
    uint64_t received; /* HK_IB_BYE */
    struct {
      uint32_t bad; /* ways, a bit each */
      char text[156];
    } broken; /* HK_IB_BROKEN */
    struct {
      uint32_t directions;
      char cause[156];
    } cede; /* HK_IB_CEDE */
  };
} hk_ib_msg;

/* Where a message's payload lies: behind its header, in the FIFO, or in the place that the receiver has told. */
typedef enum hk_ib_where { HK_IB_BEHIND, HK_IB_IN_FIFO, HK_IB_IN_PLACE } hk_ib_where;

/* A place for one slot, as the receiver writes it into the sender's memory. */
typedef struct hk_ib_place {
  _Atomic uint64_t addr, bytes, keys[HK_IB_PATHS / 2], check; /* two ways' keys in a word, the first one below */
} hk_ib_place;
_Static_assert(HK_IB_PATHS == 4, "check_of() covers two words of keys");

/* Where a large message goes. */
typedef struct hk_ib_target {
  uint64_t addr;
  uint32_t rkeys[HK_IB_PATHS];
} hk_ib_target;

/* What stands before a payload in a ring, and is all of a large message's write with immediate. */
typedef struct hk_ib_header {
  uint32_t seq, bytes, signature;
  uint16_t parts, where; /* immediates without a header that belong to it; hk_ib_where */
  uint64_t consumed;     /* slots of the other direction */
  uint64_t reserved;
} hk_ib_header;
_Static_assert(sizeof(hk_ib_header) == HK_IB_HEADER, "the payload behind it is aligned");

/* ---- devices ---- */
typedef struct hk_ib_cq {
  hk_ibv_cq *cq;
  uint32_t room, used;
  bool armed; /* the next completion will be told on the device's channel */
} hk_ib_cq;

typedef struct hk_ib_device {
  char name[HK_IB_NAME];
  hk_ibv_context *context;
  hk_ibv_pd *pd;
  hk_ibv_channel *channel; /* of completions, for those who sleep; NULL: not to be had */
  hk_ib_cq cqs[HK_IB_CQS];
  int ncqs;
  uint32_t max_wr;
  bool gone; /* failed or removed */
} hk_ib_device;

/* ---- connections ---- */
/* A port of ours and one of the peer's, and what our memory is called there. */
typedef struct hk_ib_path {
  int pair; /* of the connection's */
  bool bad; /* something has failed here in this epoch */
  hk_ib_device *device;
  hk_ibv_mr *arena_mr, *send_mr, *recv_mr;
  hk_ib_memory peer_arena, peer_ring;
} hk_ib_path;

typedef struct hk_ib_qp {
  hk_ibv_qp *qp;
  hk_ib_path *path;
  hk_ib_cq *cq;
  uint32_t posted, done;     /* send requests; done as far as is known */
  uint32_t signaled, looked; /* of `posted`: up to the last one that reports its completion; at the last look */
  uint32_t depth, recv_depth, recv_owed, inline_bytes;
  /* Requests that report their completion: their position, and the slot (its place in the ring) that waits for it. */
  struct {
    uint32_t position, slot;
  } * signals;
  uint32_t first, last; /* of `signals`, [first, last) modulo depth */
} hk_ib_qp;

typedef enum hk_ib_phase {
  HK_IB_DIALING, /* no control socket */
  HK_IB_GREETING,
  HK_IB_PAIRING, /* an epoch has been told, the peer's answer is awaited; or (higher rank) it is the peer's turn */
  HK_IB_READYING,
  HK_IB_UP,
  HK_IB_BACKING_OFF, /* the lower rank: until a new epoch */
  HK_IB_FAILED
} hk_ib_phase;

enum { HK_IB_UPWARD = 1, HK_IB_DOWNWARD = 2, HK_IB_BOTH = 3 }; /* from the lower rank to the higher, and back */

/* What a lane has said of a slot to come. */
typedef struct hk_ib_offered {
  uint64_t slot; /* its number, from 1; 0: nothing */
  char *to;
  uint32_t bytes;
  bool announced; /* the peer may write there */
} hk_ib_offered;

/* Of a receiver whose payloads lie in a GPU's memory: slots of the peer's, counted from 0, that the GPU sees. */
typedef struct hk_ib_flush {
  uint64_t seen, asked; /* so many; as the read under way will make it, 0: none is */
  uint32_t reads;       /* that are over */
  hk_ibv_qp *qp;        /* joined with itself, for reads; NULL: not made yet, or not needed */
  hk_ib_cq *cq;
} hk_ib_flush;

typedef struct hk_ib_region hk_ib_region; /* ib_memory.c */
struct hk_ib_ctx;
typedef struct hk_ib_conn {
  struct hk_ib_ctx *ctx;
  int peer;
  uint8_t channel;
  uint8_t phase; /* hk_ib_phase */
  bool eof, greeted, bye,
      came;         /* the peer has closed: what it had until then is known; `came`: something, in this epoch */
  uint8_t looks;    /* since the control socket's end */
  uint8_t ceded;    /* directions that another network carries: HK_IB_UPWARD, HK_IB_DOWNWARD */
  uint8_t on_cards; /* directions whose end's GPU memory a card has been given: it stays there */
  uint32_t index, serial;
  hk_net_end *send, *recv;
  hk_status failed;
  /* control */
  int fd;
  hk_ib_msg in;
  uint32_t in_got, epoch, attempts;
  uint64_t broken_ns, up_ns, retry_ns, next_look_ns, stalled_ns, stepped_ns;
  uint64_t mending_ns; /* since broken_ns, without the time in which one of the two processes took no part */
  uint64_t silent_ns;  /* when the next look at the peer's host is due, */
  hk_silence silence;  /* and what was seen, while the peer's answer is waited for */
  uint64_t mark;       /* completions when it was last looked */
  char cause[200];     /* of the last failure */
  /* the way */
  hk_ib_port mine[HK_IB_OFFERED], theirs[HK_IB_OFFERED];
  int nmine, ntheirs, npairs;
  hk_ib_pair pairs[HK_IB_PAIRS];
  uint32_t npaths;
  hk_ib_path paths[HK_IB_PATHS];
  hk_ib_epoch ours;        /* ours, this epoch's */
  char route[HK_IB_ROUTE]; /* the first way, in words */
  hk_ib_qp qps[HK_IB_QPS];
  uint32_t nqps, peer_nqps;
  uint32_t round_trip_us; /* of the control connection */
  unsigned timeout;       /* of the queue pairs: hk_ib_timeout_for */
  /* memory */
  char *arena;
  size_t arena_bytes;
  /* Slots of ours, counted from 0: handed to the queue pairs; given back to the lane; arrived, as the peer said; consumed
   * by it. */
  uint64_t posted, given, arrived, credit;
  uint8_t *pending; /* [nslots] completions that a large slot still waits for */
  uint8_t *sizes;   /* [nslots] 1: large, its memory is the lane's until it has arrived */
  /* Slots of the peer's: consumed and told so; which parts have come. */
  uint64_t returned, received; /* `received` counts when the end is closed */
  uint8_t *headers, *parts;    /* [nslots] */
  hk_ib_offered offers[HK_IB_PLACES];
  uint64_t offered, announced; /* slots of which a lane has spoken; of which the peer has been told in this epoch */
  hk_ib_flush flush;
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
  uint32_t idle;
  pthread_mutex_t
      lock; /* all that is not atomic or set once, and the connections: the lanes' thread and the service's */
  uint64_t steps, seen; /* of progress; at the last tick */
  bool ceding;          /* there may be ends that wait to be given to another network */
  bool scarce_reported, asked_kernel;
  bool serving;          /* on the service thread */
  hk_ib_region *regions; /* that the user has registered */
  _Atomic(bool) any_region;
  uint64_t pinned, pinned_most; /* bytes given to devices */
  uint64_t placed, copied;      /* large messages that came straight to their places, and that lay in a FIFO */
  int timer;
  uint64_t timeout_ns; /* bound for mending: of hk_ib_conn.mending_ns */
  uint64_t next_events_ns;
  hk_ib_gid_wish wish;
  struct {
    bool known, direct; /* looked at; cards are given its memory */
    hk_ib_flushing flushing;
  } gpu;
} hk_ib_ctx;

/* For short waits under the lock, with a bound of their own.  They may be any thread's, so the watchdog, which looks at what the
 * user's works on, has no part in them. */
static inline hk_wait_env hk_ib_wait_env(const hk_ib_ctx *x) {
  return (hk_wait_env){.failure = x->env->wait ? x->env->wait->failure : NULL, .spins = 50};
}

/* The rings of a connection. */
static inline char *hk_ib_tx_entry(const hk_ib_conn *c, uint64_t k) {
  return c->arena + HK_IB_ENTRY + (k & (c->ctx->env->nslots - 1)) * HK_IB_ENTRY;
}
static inline size_t hk_ib_rx_offset(const hk_ib_conn *c, uint64_t k) {
  return HK_IB_ENTRY + (c->ctx->env->nslots + (k & (c->ctx->env->nslots - 1))) * HK_IB_ENTRY;
}
/* The first entry's place: the peer writes how far it has read. */
static inline _Atomic uint64_t *hk_ib_credit_word(const hk_ib_conn *c) { return (_Atomic uint64_t *)(void *)c->arena; }

/* ib_device.c */
hk_status hk_ib_device_open(hk_ib_ctx *x, const char *name, hk_ib_device **out);
void hk_ib_device_close(hk_ib_ctx *x, hk_ib_device *d);
hk_ib_cq *hk_ib_cq_with_room(hk_ib_ctx *x, hk_ib_device *d, uint32_t entries);
/* Registers memory for remote writes; NULL with errno and the cause, which names limits, in `why`. */
hk_ibv_mr *hk_ib_try_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, char why[160]);
/* May this process lock so little memory that registering may fail? */
bool hk_ib_memory_is_scarce(void);
#define HK_IB_MORE_MEMORY "raise it (ulimit -l unlimited; LimitMEMLOCK=infinity; docker --ulimit memlock=-1)"
/* The same as an error that says what to do. */
hk_status hk_ib_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, hk_ibv_mr **out);
static inline size_t hk_ib_ring_bytes(const hk_ib_conn *c) {
  return (size_t)c->ctx->env->nslots * c->ctx->env->slot_bytes;
}
/* Events of the devices: told, and what they end gets new queue pairs elsewhere. */
hk_status hk_ib_handle_events(hk_ib_ctx *x);
/* Takes memory back from its device; nothing where *mr is NULL. */
void hk_ib_unregister(hk_ib_ctx *x, hk_ibv_mr **mr);
static inline void hk_ib_count_pinned(hk_ib_ctx *x, const hk_ibv_mr *mr) {
  x->pinned += mr->length;
  if (x->pinned > x->pinned_most) x->pinned_most = x->pinned;
}
/* For sleeping until something completes: arms the completion queues and fills `fds`, one a device; false where a device has
 * no channel.  What completed before they were armed is told to nobody: poll once more.  Then hear what has been told. */
bool hk_ib_arm(hk_ib_ctx *x, struct pollfd fds[HK_IB_PORTS]);
void hk_ib_read_notifications(hk_ib_ctx *x, const struct pollfd fds[HK_IB_PORTS]);
/* "DOWN", "ACTIVE", ... */
const char *hk_ib_port_state(hk_ib_ctx *x, const hk_ib_device *d, int port);

/* ib_memory.c: memory that the user has registered */
void hk_ib_user_memory(void *ctx, void *base, size_t bytes, bool there);
/* The same of a GPU's memory, for a placed link's end: registered at once, with its devices. */
hk_status hk_ib_user_gpu_memory(void *ctx, hk_net_end *e, void *base, size_t bytes, int fd, uint64_t offset);
bool hk_ib_refer(void *ctx, const void *data, size_t bytes);
bool hk_ib_is_registered(const hk_ib_ctx *x, const void *data, size_t bytes); /* by the user; the lock is held */
/* Registered with the device; NULL: it does not take it, or the user has not registered it.  `writes`: for the peer's card. */
hk_ibv_mr *hk_ib_user_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes, bool writes);
void hk_ib_user_free(hk_ib_ctx *x);

/* ib_place.c: memory that the user has registered, for the peer to write to */
void hk_ib_place_min(hk_ib_ctx *x, hk_link *link); /* sets link->place_min */
void hk_ib_place_offer(void *ctx, hk_net_end *e, uint64_t k, void *to, uint32_t bytes);
void hk_ib_place_withdraw(void *ctx);
/* Tells the peer what has been offered meanwhile; in a new epoch all anew. */
hk_status hk_ib_place_announce(hk_ib_conn *c);
/* Sender: the place of slot k; false where none is known. */
bool hk_ib_place_find(hk_ib_conn *c, uint64_t k, uint32_t bytes, hk_ib_target *to);
/* Sender on a link whose slots are placed: may slot k go?  An error where its place is too small. */
hk_status hk_ib_place_is_known(hk_ib_conn *c, uint64_t k, uint32_t bytes, bool *yes);
/* Receiver: where the peer has written slot k; NULL: he was not told of such a place. */
void *hk_ib_place_used(hk_ib_conn *c, uint64_t k, uint32_t bytes);

/* ib_gpu.c: payloads in a GPU's memory */
/* Which ports the rank's GPU is near, and which are given its memory: puts x->ports in order, and leaves those out that do not
 * fit.  Before the first connection; takes the lock. */
void hk_ib_gpu_find_ports(hk_ib_ctx *x);
bool hk_ib_takes_gpu(void *ctx, const hk_net_end *e);
/* Registers the end's payloads in a GPU's memory.  A card that takes none though it did when it was tried: they move to the
 * host's where nothing has come to them yet, which link->gpu then says.  NULL: not registered. */
hk_ibv_mr *hk_ib_gpu_mr(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, char why[160]);
/* Is there such an end of which that is not settled?  The lane's thread alone may do it. */
bool hk_ib_gpu_unsettled(const hk_ib_conn *c);
/* Does the GPU see the payload of slot k, which has arrived?  If not yet, what is to be done for that is under way. */
hk_status hk_ib_gpu_visible(hk_ib_conn *c, uint64_t k, bool *yes);
/* The same of the first `slots` of a placed link, of which one has come to `at`. */
hk_status hk_ib_user_gpu_visible(void *ctx, hk_net_end *e, const void *at, uint64_t slots, bool *yes);
hk_status hk_ib_gpu_flushed(hk_ib_conn *c, const hk_ibv_wc *wc);
void hk_ib_gpu_drop(hk_ib_conn *c); /* with the connection's queue pairs */

/* ib_conn.c: connecting, breaking, mending */
hk_status hk_ib_conn_step(hk_ib_conn *c, uint64_t now);
/* An end was opened on a connection that is there already. */
hk_status hk_ib_add_end(hk_ib_conn *c, const hk_net_end *e);
/* The direction of one of the connection's ends. */
static inline uint8_t hk_ib_direction(const hk_ib_conn *c, bool sends) {
  return (c->ctx->env->rank < c->peer) == sends ? HK_IB_UPWARD : HK_IB_DOWNWARD;
}
/* A request on a queue pair failed: what follows is a new epoch, or the connection's end. */
hk_status hk_ib_broken(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc, const char *doing);
/* What the connection's queue pairs run on has ended. */
hk_status hk_ib_lost(hk_ib_conn *c, const char *what, bool repairable);
hk_status hk_ib_fail(hk_ib_conn *c, const char *cause, const char *advice);
void hk_ib_mark_failed(hk_ib_conn *c); /* the same without a word */
void hk_ib_send_bye(hk_ib_conn *c);
void hk_ib_drop_qps(hk_ib_conn *c);

/* ib_path.c: which ways a connection has */
/* Of ours and the peer's, as the connection offers them. */
static inline const hk_ib_port *hk_ib_my_port(const hk_ib_conn *c, const hk_ib_path *w) {
  return &c->mine[c->pairs[w->pair].mine];
}
static inline const hk_ib_port *hk_ib_their_port(const hk_ib_conn *c, const hk_ib_path *w) {
  return &c->theirs[c->pairs[w->pair].theirs];
}
/* "; the kernel says: ..." of the best GIDs of the first way's ports, or nothing.  May wait for half a second, so it is asked
 * once a communicator. */
const char *hk_ib_kernel_reason(hk_ib_conn *c, char text[HK_IB_CM_WORDS + 20]);
/* The lower rank chooses them, and the higher one takes over what it was told; false: that makes no sense. */
void hk_ib_choose_paths(hk_ib_conn *c);
bool hk_ib_take_paths(hk_ib_conn *c, const hk_ib_epoch *theirs);
void hk_ib_fill_paths(hk_ib_conn *c); /* in c->ours */
/* Opens the ways' devices and registers our memory there; `refused`: a way whose device takes no more, and `why`. */
hk_status hk_ib_open_paths(hk_ib_conn *c, hk_ib_path **refused, char why[160]);
/* What must be registered before the directions' first messages: the place where large ones arrive, and where memory may run
 * out, or is a GPU's, also the one from where they are sent, as there is no way back later.  Gives the way whose device
 * refuses it. */
hk_ib_path *hk_ib_register_rings(hk_ib_conn *c, char why[160]);
void hk_ib_free_memory(hk_ib_conn *c);
void hk_ib_unregister_end(hk_ib_conn *c, bool sends); /* the FIFO of one direction */
void hk_ib_describe_path(const hk_ib_conn *c, const hk_ib_path *w, char text[HK_IB_ROUTE]);

/* ib_qp.c */
hk_status hk_ib_make_qps(hk_ib_conn *c, uint32_t n);
void hk_ib_measure(hk_ib_conn *c); /* the round trip, and what follows from it */
/* How long a queue pair waits for an answer, 4.096 us * 2^this, on a path whose round trip takes so long; gives up within
 * `bound_ns` after so many retries. */
unsigned hk_ib_timeout_for(uint32_t round_trip_us, unsigned retries, uint64_t bound_ns);
uint64_t hk_ib_gives_up_ns(unsigned timeout, unsigned retries); /* the longest that a card may take to do so */
hk_status hk_ib_join_qps(hk_ib_conn *c, const hk_ib_epoch *theirs);
/* Into what is told of the epoch: the vendor's own options of this rank's queue pairs, those agreed on where they are joined. */
void hk_ib_fill_ece(hk_ib_conn *c);

/* ib_io.c: slots */
/* A request's id tells its connection, in this life of its queue pairs: what comes late from an earlier one is nobody's. */
enum { HK_IB_SENT = 1, HK_IB_RECEIVED, HK_IB_FLUSHED };
static inline uint64_t hk_ib_request_id(const hk_ib_conn *c, uint32_t qp, unsigned kind) {
  return (uint64_t)c->serial << 32 | (uint64_t)c->index << 8 | (uint64_t)qp << 4 | kind;
}
/* How many slots of the peer's are here in whole, delivered or not. */
uint64_t hk_ib_arrived_to(const hk_ib_conn *c);
hk_status hk_ib_send(hk_ib_conn *c, bool *moved);
hk_status hk_ib_deliver(hk_ib_conn *c, bool *moved);
/* How many of the peer's slots are here, delivered or not; forgets what came beyond them. */
uint64_t hk_ib_received(hk_ib_conn *c);
hk_status hk_ib_return_credit(hk_ib_conn *c);
/* Writes a few bytes of our arena into the peer's, `at` bytes from its begin; *posted is false where there was no room. */
hk_status hk_ib_write(hk_ib_conn *c, const void *from, uint32_t bytes, size_t at, bool *posted);
hk_status hk_ib_poll(hk_ib_ctx *x, bool *moved);
/* Goes back to what the peer has: everything after its first `received` slots is sent again. */
void hk_ib_rewind(hk_ib_conn *c, uint64_t received, uint64_t consumed);
/* Empty writes with a completion behind requests that have none: of all, or of those that were there at the last look. */
hk_status hk_ib_fence(hk_ib_conn *c, bool all);
/* Is all behind the first `received` slots still here?  A large message is not, once its arrival was acknowledged. */
bool hk_ib_can_rewind(const hk_ib_conn *c, uint64_t received);
/* Has something been taken from the lane of which it is not known that it has arrived? */
bool hk_ib_unfinished(const hk_ib_conn *c);
hk_status hk_ib_post_recv(hk_ib_conn *c, uint32_t q, uint32_t n);
#endif
