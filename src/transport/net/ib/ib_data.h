/* SPDX-License-Identifier: Apache-2.0 */
/* What moves the messages of a connection, file by file; ib_conn.h has the order of the files. */
#pragma once
#include "ib_conn.h"

struct hk_remote;     /* transport/remote.h */
struct hk_remote_put; /* the same */

/* ---- ib_slots.c: numbers of a connection's slots: sent, arrived, and given back ---- */
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
/* Posts n requests; `last` is the last one. It reports its completion if `slot` waits for that (otherwise
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

/* ---- ib_flush.c: when a GPU sees what cards have written into its memory ---- */
/* Sets *yes if the GPU sees the payload of slot k, which has arrived. Otherwise a flush has been started: call
 * again. */
hk_status hk_ib_flush_visible(hk_ib_conn *c, uint64_t k, bool *yes);
hk_status hk_ib_flush_done(hk_ib_conn *c, uint32_t path, const hk_ibv_wc *wc); /* a read has completed */
void hk_ib_flush_drop(hk_ib_conn *c); /* frees the flush's queue pairs, with the connection's queue pairs */

/* ---- ib_rings.c ----
 * The FIFOs of a connection's ends: registering and announcing them, and the fallback to another network. */
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

/* ---- ib_place.c: places: memory that the user has registered, into which the peer writes ---- */
/* The provider's `offer` and `withdraw`. */
void hk_ib_place_post(void *ctx, hk_net_end *e, uint64_t k, void *to, uint32_t bytes);
void hk_ib_place_withdraw(void *ctx);
/* Announces offers to the peer: those since the last call, or all of them in a new epoch. */
hk_status hk_ib_place_announce(hk_ib_conn *c);
/* Sender: fills `to` with the place of slot k, which has `bytes`. Returns false if none of that size is known. */
bool hk_ib_place_find(hk_ib_conn *c, uint64_t k, uint32_t bytes, hk_ib_target *to);
/* Receiver: the place to which the peer has written slot k; NULL if no such place was announced. */
void *hk_ib_place_used(hk_ib_conn *c, uint64_t k, uint32_t bytes);

/* ---- ib_send.c: sending: requests for slots that the lane has filled, and credits ---- */
hk_status hk_ib_send(hk_ib_conn *c, bool *moved); /* posts what the lane has filled; sets *moved if there was any */
hk_status hk_ib_return_credit(hk_ib_conn *c);     /* writes the credit to the peer once half of the slots are owed */

/* ---- ib_receive.c: receiving: completions of requests, and messages that have arrived ---- */
hk_status hk_ib_poll(hk_ib_ctx *x, bool *moved);     /* takes completions of all devices */
hk_status hk_ib_deliver(hk_ib_conn *c, bool *moved); /* hands messages that have arrived to the lane */

/* ---- ib_progress.c: of the provider's table (net.h) ---- */
hk_status hk_ib_make_progress(void *ctx, bool *moved);
void hk_ib_ring(void *ctx, hk_net_end *e);
void hk_ib_sleep(void *ctx);

/* ---- ib_keys.c: keys of windows for one-sided operations ---- */
/* At the arena's start: the counters of a connection for one-sided operations. */
static inline _Atomic uint64_t *hk_ib_counters(const hk_ib_conn *c) { return (_Atomic uint64_t *)(void *)c->arena; }
hk_status hk_ib_keys_ask(hk_ib_conn *c, const struct hk_remote_put *p);    /* the keys of the put's window */
hk_status hk_ib_keys_asked(hk_ib_conn *c, const hk_ib_msg *m);             /* HK_IB_ASK has come */
hk_status hk_ib_keys_came(hk_ib_conn *c, const hk_ib_msg *m);              /* HK_IB_KEYS has come */
const hk_ib_keys *hk_ib_keys_find(const hk_ib_remote *r, uint64_t window); /* NULL: they are not known */

/* ---- ib_remote.c: one-sided operations ---- */
extern const struct hk_remote hk_ib_remote_table;
