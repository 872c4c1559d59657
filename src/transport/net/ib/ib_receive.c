/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: completions of requests, and messages that have arrived and go to the lane. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include "ib_data.h"
#include "ib_state.h"

enum { POLLED = 16 };

/* ---- completions ---- */

static void ib_receive_sent(hk_ib_conn *c, hk_ib_qp *q) {
  if (q->first == q->last) return;
  uint32_t slot = q->signals[q->first].slot;
  q->done = q->signals[q->first].position;
  q->first = (q->first + 1) % (q->depth + 1);
  if (slot != HK_IB_NO_SLOT && c->tx.pending[slot]) c->tx.pending[slot]--;
}

static hk_status ib_receive_out_of_order(hk_ib_conn *c, uint32_t number) {
  char cause[120];
  snprintf(cause, sizeof cause, "message %u came where %u was due: one was lost or came twice", number,
           (uint32_t)c->recv->next & ~HK_IB_HAS_HEADER);
  return hk_ib_fail(c, cause, "do all ranks run the same version of this library?");
}

static hk_status ib_receive_arrived(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc) {
  hk_ib_qp *q = &c->qps[qp];
  uint32_t imm = ntohl(wc->imm_data), number = imm & ~HK_IB_HAS_HEADER;
  if (++q->recv_owed >= HK_IB_RECV_BATCH) {
    HK_OR_RETURN(hk_ib_post_recv(c, qp, q->recv_owed));
    q->recv_owed = 0;
  }
  if (imm == HK_IB_WANTS_RING && wc->byte_len == 0) { /* parts of messages are not empty */
    c->rx.wanted = true;
    return hk_ib_provide_ring(c);
  }
  if (!c->recv) return HK_OK; /* its receiver has ended, and reads no more messages */
  c->gpu.flush.readers[qp % c->npaths].dirty = true;
  uint32_t ahead = (number - (uint32_t)c->recv->next) & ~HK_IB_HAS_HEADER, i = hk_ib_slot_at(c, number);
  if (ahead >= c->ctx->env->nslots) return ib_receive_out_of_order(c, number);
  /* A queue pair delivers in order: the message before this one on it must have arrived. */
  const uint32_t n = hk_ib_data_qps(c);
  if (imm & HK_IB_HAS_HEADER && ahead >= n && !c->rx.headers[hk_ib_slot_at(c, number - n)])
    return ib_receive_out_of_order(c, number);
  if (!(imm & HK_IB_HAS_HEADER)) {
    c->rx.parts[i]++;
    return HK_OK;
  }
  hk_ib_header h;
  memcpy(&h, c->arena + hk_ib_rx_offset(c, number), sizeof h);
  for (uint32_t left = h.more;; left--) {
    if (c->rx.headers[i]++) return ib_receive_out_of_order(c, number);
    if (!left) return HK_OK;
    h.seq++;
    i = hk_ib_slot_at(c, ++number);
    memcpy(c->arena + hk_ib_rx_offset(c, number), &h, sizeof h);
  }
}

hk_status hk_ib_poll(hk_ib_ctx *x, bool *moved) {
  hk_ibv_wc wc[POLLED];
  for (int d = 0; d < x->ndevices; d++) {
    for (int q = 0; q < x->devices[d].ncqs; q++) {
      int n;
      do {
        hk_ibv_cq *cq = x->devices[d].cqs[q].cq;
        n = cq->context->ops.poll_cq(cq, POLLED, wc);
        for (int i = 0; i < n; i++) {
          uint32_t index = hk_ib_request_conn(wc[i].wr_id), qp = hk_ib_request_qp(wc[i].wr_id);
          const unsigned kind = hk_ib_request_kind(wc[i].wr_id);
          hk_ib_conn *c = index < x->capacity ? x->conns[index] : NULL;
          if (!c || c->serial != (uint32_t)(wc[i].wr_id >> 32) || c->failed) continue;
          if (kind == HK_IB_FLUSHED) { /* also for messages of queue pairs that have ended since */
            hk_ib_stir(c);
            *moved = true;
            HK_OR_RETURN(hk_ib_flush_done(c, qp, &wc[i]));
          }
          if (kind == HK_IB_FLUSHED || qp >= c->nqps) continue;
          *moved = true;
          hk_ib_stir(c);
          if (wc[i].status == HK_IBV_WC_SUCCESS) c->repair.came = c->ports.pairs[c->qps[qp].path->pair].worked = true;
          if (wc[i].status != HK_IBV_WC_SUCCESS)
            HK_OR_RETURN(hk_ib_broken(c, qp, &wc[i], kind == HK_IB_SENT ? "sending" : "receiving"));
          else if (kind == HK_IB_SENT)
            ib_receive_sent(c, &c->qps[qp]);
          else
            HK_OR_RETURN(ib_receive_arrived(c, qp, &wc[i]));
        }
      } while (n == POLLED);
      if (n < 0 && !x->devices[d].gone)
        return HK_FAIL(HK_ERR_SYSTEM,
                       "rank %d cannot poll RDMA device %s: is it still there? See the kernel's log (dmesg)",
                       x->env->rank, x->devices[d].name);
    }
  }
  return HK_OK;
}

/* ---- arrived messages ---- */

static hk_status ib_receive_garbage(hk_ib_conn *c, const hk_ib_header *h) {
  char cause[160];
  snprintf(cause, sizeof cause, "a message makes no sense: number %u where %u was due, %u bytes in %u parts", h->seq,
           (uint32_t)c->recv->next + 1, h->bytes, h->parts + 1u);
  return hk_ib_fail(c, cause, "do all ranks run the same version of this library, with the same settings?");
}

/* Finds the final place of the payload, and copies it there if it is in the ring. *place is NULL if there is no place
 * yet. The CPU does not touch payloads in a GPU's memory. */
static void ib_receive_settle(hk_ib_conn *c, uint64_t k, const hk_ib_header *h, void **place, bool *direct) {
  const char *entry = c->arena + hk_ib_rx_offset(c, k) + HK_IB_HEADER;
  *direct = false;
  if (hk_link_on_gpu(c->recv->link, h->bytes)) {
    *place = hk_net_payload(c->recv, k);
    return;
  }
  if (h->where == HK_IB_IN_PLACE) {
    *direct = true;
    *place = hk_ib_place_used(c, k, h->bytes);
    return;
  }
  if (h->where == HK_IB_IN_FIFO) {
    *place = hk_link_place(c->recv->link, k, h->bytes);
    if (h->bytes <= HK_SLOT_INLINE) /* a small payload from a GPU: it belongs into the slot's header */
      memcpy(*place, hk_net_payload(c->recv, k), h->bytes);
    return;
  }
  *place = hk_net_place(c->recv, h->bytes, direct);
  if (*place && h->bytes) memcpy(*place, entry, h->bytes);
}

hk_status hk_ib_deliver(hk_ib_conn *c, bool *moved) {
  while (c->recv && c->rx.headers[hk_ib_slot_at(c, c->recv->next)]) {
    uint64_t k = c->recv->next;
    uint32_t i = hk_ib_slot_at(c, k);
    hk_ib_header h;
    memcpy(&h, c->arena + hk_ib_rx_offset(c, k), sizeof h);
    bool large = h.where != HK_IB_BEHIND, direct;
    const bool on_gpu = hk_link_on_gpu(c->recv->link, h.bytes);
    uint32_t most = large ? c->recv->link->slot_bytes : HK_IB_SMALL;
    if (h.seq != (uint32_t)(k + 1) || h.bytes > most || (on_gpu && h.where != HK_IB_IN_FIFO) ||
        (h.where == HK_IB_IN_FIFO && !c->recv->link->payload) || h.parts >= HK_IB_QPS || h.where > HK_IB_IN_PLACE ||
        (h.where == HK_IB_IN_PLACE && !hk_ib_place_used(c, k, h.bytes)))
      return ib_receive_garbage(c, &h);
    if (c->rx.parts[i] < h.parts || !hk_net_has_room(c->recv)) return HK_OK;
    if (on_gpu) {
      bool seen;
      hk_status rc = hk_ib_flush_visible(c, k, &seen);
      if (rc != HK_OK || !seen) return rc;
    }
    void *place;
    ib_receive_settle(c, k, &h, &place, &direct);
    if (!place) return HK_OK; /* the lane does not want it yet; its size was checked above */
    if (large) (*(direct ? &c->ctx->counts.placed : &c->ctx->counts.copied))++;
    if (h.consumed > c->tx.credit) c->tx.credit = h.consumed;
    c->rx.headers[i] = c->rx.parts[i] = 0;
    hk_net_deliver(c->recv, h.bytes, h.signature, place, direct);
    *moved = true;
  }
  return HK_OK;
}
