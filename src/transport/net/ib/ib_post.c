/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the queue pairs: receives, writes, and empty writes. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include "ib_data.h"

static hk_status post_failed(hk_ib_conn *c, const char *what, int err) {
  char cause[120];
  snprintf(cause, sizeof cause, "cannot post a %s request: %s", what, strerror(err));
  return hk_ib_fail(c, cause, "is the device still there? See the kernel's log");
}

hk_status hk_ib_post_recv(hk_ib_conn *c, uint32_t qp, uint32_t n) {
  hk_ib_qp *q = &c->qps[qp];
  while (n > 0) {
    hk_ibv_recv_wr wr[HK_IB_RECV_BATCH], *bad;
    uint32_t batch = n < HK_IB_RECV_BATCH ? n : HK_IB_RECV_BATCH;
    for (uint32_t i = 0; i < batch; i++)
      wr[i] =
          (hk_ibv_recv_wr){.wr_id = hk_ib_request_id(c, qp, HK_IB_RECEIVED), .next = i + 1 < batch ? &wr[i + 1] : NULL};
    int err = q->qp->context->ops.post_recv(q->qp, wr, &bad);
    if (err) return post_failed(c, "receive", err);
    n -= batch;
  }
  return HK_OK;
}

/* Returns true if a request must report its completion, so that the queue gets room again. Every report costs the card
 * a write and the CPU a poll; one for a quarter of the queue is enough. */
static bool post_signal_due(const hk_ib_qp *q) { return q->posted - q->signaled >= q->depth / 4; }

static void post_note_signal(hk_ib_qp *q, uint32_t slot) {
  q->signaled = q->posted;
  q->signals[q->last].position = q->posted;
  q->signals[q->last].slot = slot;
  q->last = (q->last + 1) % (q->depth + 1);
}

hk_ibv_send_wr hk_ib_write_with_imm(const hk_ib_conn *c, uint32_t qp, hk_ibv_sge *sge, uint64_t to, uint32_t rkey,
                                    uint32_t imm) {
  hk_ibv_send_wr wr = {.wr_id = hk_ib_request_id(c, qp, HK_IB_SENT),
                       .sg_list = sge,
                       .num_sge = 1,
                       .opcode = HK_IBV_WR_RDMA_WRITE_WITH_IMM,
                       .imm_data = htonl(imm)};
  if (sge->length <= c->qps[qp].inline_bytes) wr.send_flags |= HK_IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = rkey;
  return wr;
}

hk_ibv_send_wr hk_ib_plain_write(const hk_ib_conn *c, uint32_t qp, hk_ibv_sge *sge, const hk_ib_target *to,
                                 hk_ibv_send_wr *next) {
  hk_ibv_send_wr wr = {.wr_id = hk_ib_request_id(c, qp, HK_IB_SENT),
                       .next = next,
                       .sg_list = sge,
                       .num_sge = 1,
                       .opcode = HK_IBV_WR_RDMA_WRITE};
  wr.wr.rdma.remote_addr = to->addr;
  wr.wr.rdma.rkey = to->rkeys[qp % c->npaths];
  return wr;
}

hk_status hk_ib_post(hk_ib_conn *c, uint32_t qp, hk_ibv_send_wr *wr, hk_ibv_send_wr *last, uint32_t n, uint32_t slot) {
  hk_ib_qp *q = &c->qps[qp];
  hk_ibv_send_wr *bad;
  bool signaled = slot != HK_IB_NO_SLOT || last->send_flags & HK_IBV_SEND_SIGNALED || post_signal_due(q);
  if (signaled) last->send_flags |= HK_IBV_SEND_SIGNALED;
  int err = q->qp->context->ops.post_send(q->qp, wr, &bad);
  if (err) return post_failed(c, "send", err);
  q->posted += n;
  if (signaled) post_note_signal(q, slot);
  return HK_OK;
}

hk_status hk_ib_post_write(hk_ib_conn *c, uint32_t qp, const hk_ib_source *s, uint64_t to, uint32_t rkey, bool report,
                           bool *posted) {
  hk_ibv_sge sge = {(uint64_t)(uintptr_t)s->from, s->bytes, s->lkey};
  hk_ibv_send_wr wr = {
      .wr_id = hk_ib_request_id(c, qp, HK_IB_SENT), .sg_list = &sge, .num_sge = 1, .opcode = HK_IBV_WR_RDMA_WRITE};
  *posted = hk_ib_has_room(&c->qps[qp], 1);
  if (!*posted) return HK_OK;
  if (s->readable && s->bytes <= c->qps[qp].inline_bytes) wr.send_flags = HK_IBV_SEND_INLINE;
  if (report) wr.send_flags |= HK_IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = rkey;
  return hk_ib_post(c, qp, &wr, &wr, 1, HK_IB_NO_SLOT);
}

hk_status hk_ib_write(hk_ib_conn *c, const void *from, uint32_t bytes, size_t at, bool *posted) {
  const uint32_t qp = c->apart ? c->nqps - 1 : 0;
  const hk_ib_path *w = c->qps[qp].path;
  hk_ib_source s = {from, bytes, w->arena_mr->lkey, true};
  return hk_ib_post_write(c, qp, &s, w->peer_arena.addr + at, w->peer_arena.rkey, false, posted);
}

static hk_status post_empty(hk_ib_conn *c, uint32_t qp) {
  hk_ib_qp *q = &c->qps[qp];
  hk_ibv_send_wr wr = {
      .wr_id = hk_ib_request_id(c, qp, HK_IB_SENT), .opcode = HK_IBV_WR_RDMA_WRITE, .send_flags = HK_IBV_SEND_SIGNALED};
  wr.wr.rdma.remote_addr = q->path->peer_arena.addr;
  wr.wr.rdma.rkey = q->path->peer_arena.rkey;
  hk_ibv_send_wr *bad;
  int err = q->qp->context->ops.post_send(q->qp, &wr, &bad);
  if (err) return post_failed(c, "send", err);
  q->looked = ++q->posted;
  post_note_signal(q, HK_IB_NO_SLOT);
  return HK_OK;
}

hk_status hk_ib_fence(hk_ib_conn *c, bool all) {
  for (uint32_t i = 0; i < c->nqps; i++) {
    hk_ib_qp *q = &c->qps[i];
    bool still = q->looked == q->posted;
    q->looked = q->posted;
    if (q->signaled == q->posted || !(all || still) || !hk_ib_has_room(q, 1)) continue;
    HK_OR_RETURN(post_empty(c, i));
  }
  return HK_OK;
}

hk_status hk_ib_ask_card(hk_ib_conn *c) {
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].first == c->qps[i].last && hk_ib_has_room(&c->qps[i], 1)) HK_OR_RETURN(post_empty(c, i));
  return HK_OK;
}
