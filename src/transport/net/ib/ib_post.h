/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the queue pairs. */
#ifndef HK_TRANSPORT_NET_IB_POST_H
#define HK_TRANSPORT_NET_IB_POST_H
#include "ib_conn.h"

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
#endif
