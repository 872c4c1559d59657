/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: requests for slots that the lane has filled, and credits for those that it has read. */
#include <string.h>
#include "../../../base/param.h"
#include "ib_data.h"
#include "ib_device.h"
#include "ib_memory.h"

/* Fills the header of slot k, with the current credit. */
static void send_fill_header(hk_ib_conn *c, uint64_t k, hk_ib_header *h) {
  const hk_slot *s = hk_net_slot(c->send, k);
  *h = (hk_ib_header){.seq = (uint32_t)(k + 1), .bytes = s->bytes, .signature = s->signature};
  if (c->recv) {
    /* acquire: what the lane read from the slots is read before they are given back */
    h->consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
    c->rx.returned = h->consumed;
  }
}

/* Slot k's place in the peer's FIFO. */
static hk_ib_target send_in_fifo(const hk_ib_conn *c, uint64_t k) {
  hk_ib_target to = {.addr = c->paths[0].peer_ring.addr + (uint64_t)hk_ib_slot_at(c, k) * c->send->link->slot_bytes};
  for (uint32_t i = 0; i < c->npaths; i++) to.rkeys[i] = c->paths[i].peer_ring.rkey;
  return to;
}

/* Posts a small message from its entry of the ring, which is kept until the peer has read it. */
static hk_status send_small(hk_ib_conn *c, uint64_t k, uint32_t qp) {
  char *entry = hk_ib_tx_entry(c, k);
  hk_ib_header *h = (hk_ib_header *)(void *)entry;
  if (!c->tx.sizes[hk_ib_slot_at(c, k)]) { /* not sent before */
    uint32_t bytes = hk_net_slot(c->send, k)->bytes;
    send_fill_header(c, k, h);
    if (bytes) memcpy(entry + HK_IB_HEADER, hk_net_slot_data(c->send, k), bytes);
    h->where = bytes && c->paths[0].peer_ring.flags & HK_IB_ON_GPU ? HK_IB_IN_FIFO : HK_IB_BEHIND;
  }
  const hk_ib_path *w = c->qps[qp].path;
  hk_ibv_sge sge = {(uint64_t)(uintptr_t)entry, HK_IB_HEADER + h->bytes, w->arena_mr->lkey};
  hk_ibv_send_wr wr = hk_ib_write_with_imm(c, qp, &sge, w->peer_arena.addr + hk_ib_rx_offset(c, k), w->peer_arena.rkey,
                                           ((uint32_t)k & ~HK_IB_HAS_HEADER) | HK_IB_HAS_HEADER);
  if (h->where == HK_IB_BEHIND) return hk_ib_post(c, qp, &wr, &wr, 1, HK_IB_NO_SLOT);
  /* The peer's payloads are in a GPU's memory, to which its CPU cannot copy from the ring. */
  hk_ibv_sge data = {(uint64_t)(uintptr_t)entry + HK_IB_HEADER, h->bytes, w->arena_mr->lkey};
  hk_ib_target to = send_in_fifo(c, k);
  hk_ibv_send_wr first = hk_ib_plain_write(c, qp, &data, &to, &wr);
  if (h->bytes <= c->qps[qp].inline_bytes) first.send_flags = HK_IBV_SEND_INLINE;
  sge.length = HK_IB_HEADER;
  if (sge.length <= c->qps[qp].inline_bytes) wr.send_flags |= HK_IBV_SEND_INLINE;
  return hk_ib_post(c, qp, &first, &wr, 2, HK_IB_NO_SLOT);
}

/* Gets the keys of the user's registered memory for all paths. Returns false if a device refuses it. */
static bool send_user_keys(hk_ib_conn *c, const char *data, uint32_t bytes, uint32_t lkeys[HK_IB_PATHS]) {
  for (uint32_t i = 0; i < c->npaths; i++) {
    const hk_ibv_mr *mr = hk_ib_user_mr(c->ctx, c->paths[i].device, data, bytes, false);
    if (!mr) return false;
    lkeys[i] = mr->lkey;
  }
  return true;
}

/* Finds the address of a large message and its keys for all paths. */
static hk_status send_source_of(hk_ib_conn *c, uint64_t k, const char **from, uint32_t lkeys[HK_IB_PATHS]) {
  hk_slot *s = hk_net_slot(c->send, k);
  hk_link *l = c->send->link;
  if (l->gpu) { /* hk_ib_register_rings has registered it */
    *from = hk_net_payload(c->send, k);
    for (uint32_t i = 0; i < c->npaths; i++) lkeys[i] = c->paths[i].send_mr->lkey;
    return HK_OK;
  }
  *from = hk_net_slot_data(c->send, k);
  if (s->flags & HK_SLOT_REF) {
    if (send_user_keys(c, *from, s->bytes, lkeys)) return HK_OK;
    /* A device refuses it: copies it into the slot, as the lane would have done; the provider still owns the slot. */
    void *place = hk_link_place(l, k, s->bytes);
    memcpy(place, *from, s->bytes);
    s->flags &= ~(uint32_t)HK_SLOT_REF;
    *from = place;
  }
  for (uint32_t i = 0; i < c->npaths; i++) {
    hk_ib_path *w = &c->paths[i];
    if (!w->send_mr)
      HK_OR_RETURN(hk_ib_register(c->ctx, w->device, l->payload, (size_t)c->ctx->env->nslots * l->slot_bytes, true,
                                  &w->send_mr));
    lkeys[i] = w->send_mr->lkey;
  }
  return HK_OK;
}

/* Posts the parts of a large message that go over other queue pairs than its header. */
static hk_status send_parts(hk_ib_conn *c, uint64_t k, uint32_t qp, const char *from, uint32_t bytes,
                            const uint32_t lkeys[HK_IB_PATHS], const hk_ib_target *to, uint32_t each) {
  const uint32_t n = hk_ib_data_qps(c);
  for (uint32_t i = 1; i < n && i * each < bytes; i++) {
    uint32_t other = (qp + i) % n, path = other % c->npaths, at = i * each, left = bytes - at;
    hk_ibv_sge sge = {(uint64_t)(uintptr_t)from + at, left < each ? left : each, lkeys[path]};
    hk_ibv_send_wr wr =
        hk_ib_write_with_imm(c, other, &sge, to->addr + at, to->rkeys[path], (uint32_t)k & ~HK_IB_HAS_HEADER);
    if (c->send->link->gpu)
      wr.send_flags &= ~(unsigned)HK_IBV_SEND_INLINE; /* for inline data the CPU would have to read it */
    c->tx.pending[hk_ib_slot_at(c, k)]++;
    HK_OR_RETURN(hk_ib_post(c, other, &wr, &wr, 1, hk_ib_slot_at(c, k)));
  }
  return HK_OK;
}

/* Slot k and `run - 1` slots after it. */
static hk_status send_large(hk_ib_conn *c, uint64_t k, uint32_t qp, uint32_t run) {
  hk_slot *s = hk_net_slot(c->send, k);
  const char *from;
  const hk_ib_path *w = c->qps[qp].path;
  uint32_t lkeys[HK_IB_PATHS];
  char *entry = hk_ib_tx_entry(c, k);
  hk_ib_header *h = (hk_ib_header *)(void *)entry;
  const uint32_t n = hk_ib_data_qps(c);
  bool split = n > 1 && s->bytes >= HK_IB_SPLIT_MIN && c->ctx->env->settings->IB_SPLIT_DATA_ON_QPS;
  uint32_t each = split ? ((s->bytes + n - 1) / n + 4095) & ~4095u : s->bytes;
  hk_ib_target to = send_in_fifo(c, k);
  bool placed = hk_ib_place_find(c, k, s->bytes, &to);
  HK_OR_RETURN(send_source_of(c, k, &from, lkeys));
  send_fill_header(c, k, h);
  h->where = placed ? HK_IB_IN_PLACE : HK_IB_IN_FIFO;
  h->parts = (uint16_t)((s->bytes + each - 1) / each - 1);
  h->more = run - 1;
  c->tx.pending[hk_ib_slot_at(c, k)] = 1;
  HK_OR_RETURN(send_parts(c, k, qp, from, s->bytes, lkeys, &to, each));
  hk_ibv_sge head = {(uint64_t)(uintptr_t)entry, HK_IB_HEADER, w->arena_mr->lkey};
  hk_ibv_send_wr last = hk_ib_write_with_imm(c, qp, &head, w->peer_arena.addr + hk_ib_rx_offset(c, k),
                                             w->peer_arena.rkey, ((uint32_t)k & ~HK_IB_HAS_HEADER) | HK_IB_HAS_HEADER);
  const uint32_t stride = c->send->link->slot_bytes, writes = s->bytes == stride ? 1 : run; /* full slots: one piece */
  hk_ibv_sge data[HK_IB_RUN];
  hk_ibv_send_wr wr[HK_IB_RUN];
  for (uint32_t i = 0; i < writes; i++, from += stride, to.addr += stride) {
    data[i] = (hk_ibv_sge){(uint64_t)(uintptr_t)from, (s->bytes < each ? s->bytes : each) * (run / writes),
                           lkeys[qp % c->npaths]};
    wr[i] = hk_ib_plain_write(c, qp, &data[i], &to, i + 1 < writes ? &wr[i + 1] : &last);
  }
  return hk_ib_post(c, qp, wr, &last, writes + 1, hk_ib_slot_at(c, k));
}

/* Returns true if slot k is copied into the ring: it is not large. */
static bool send_is_small(const hk_ib_conn *c, uint64_t k) {
  uint32_t bytes = hk_net_slot(c->send, k)->bytes;
  return bytes <= HK_IB_SMALL && !hk_link_on_gpu(c->send->link, bytes);
}

static bool send_is_filled(const hk_ib_conn *c, uint64_t k) { return k < c->tx.given || hk_net_filled(c->send, k); }

static bool send_is_placed(hk_ib_conn *c, uint64_t k) {
  hk_ib_target to;
  return hk_ib_place_find(c, k, hk_net_slot(c->send, k)->bytes, &to);
}

/* Slots from k on that go as one message. If a GPU's proxy finds several, it is slower than kernels and card are: then
 * one header, doorbell and completion at each end serve for all. They arrive and are given back together, so they are
 * at most half of the FIFO; and if the peer has not read the other half, it is slow itself, and gets each one as soon
 * as possible. With more queue pairs, a receiver expects the next slot on the next one. */
static uint32_t send_run_of(hk_ib_conn *c, uint64_t k, uint32_t qp) {
  const hk_slot *first = hk_net_slot(c->send, k);
  const uint32_t nslots = c->ctx->env->nslots;
  uint32_t n = 1;
  if (!c->ctx->env->gpu || hk_ib_data_qps(c) > 1 || first->flags & HK_SLOT_REF || send_is_placed(c, k)) return 1;
  if (k >= hk_ib_credit(c) + nslots / 2) return 1;
  while (n < HK_IB_RUN && n < nslots / 2 && (n + 1) * first->bytes <= HK_IB_RUN_BYTES && hk_ib_slot_at(c, k + n) &&
         hk_ib_has_room(&c->qps[qp], n + 2) && send_is_filled(c, k + n)) {
    const hk_slot *s = hk_net_slot(c->send, k + n);
    if (s->bytes != first->bytes || s->signature != first->signature || s->flags & HK_SLOT_REF ||
        send_is_placed(c, k + n))
      break;
    n++;
  }
  return n;
}

/* The receiver registers its FIFO for the first message that goes there. */
static hk_status send_ask_for_ring(hk_ib_conn *c) {
  hk_ibv_sge none = {0};
  const hk_ib_path *w = c->qps[0].path;
  if (c->tx.asked) return HK_OK;
  hk_ibv_send_wr wr = hk_ib_write_with_imm(c, 0, &none, w->peer_arena.addr, w->peer_arena.rkey, HK_IB_WANTS_RING);
  wr.num_sge = 0;
  c->tx.asked = true;
  return hk_ib_post(c, 0, &wr, &wr, 1, HK_IB_NO_SLOT);
}

hk_status hk_ib_send(hk_ib_conn *c, bool *moved) {
  uint32_t n = c->ctx->env->nslots;
  const bool splits = c->ctx->env->settings->IB_SPLIT_DATA_ON_QPS != 0;
  if (!c->send || !(c->paths[0].peer_ring.flags & HK_IB_OPEN) || c->ceded & hk_ib_direction(c, true)) return HK_OK;
  while (send_is_filled(c, c->tx.posted) && (c->tx.posted - c->tx.credit < n || c->tx.posted - hk_ib_credit(c) < n)) {
    uint64_t k = c->tx.posted;
    uint32_t qp = (uint32_t)(k % hk_ib_data_qps(c)), i = hk_ib_slot_at(c, k);
    /* Below c->tx.given it was sent in an earlier epoch: a small message is in the ring, and the lane may have filled
     * its slot again. */
    bool small = k < c->tx.given ? c->tx.sizes[i] == 1 : send_is_small(c, k);
    if (!hk_ib_has_room(&c->qps[qp], 3) || !hk_ib_has_room(&c->qps[0], 3)) return HK_OK;
    for (uint32_t q = 0; q < c->nqps && splits && !small; q++)
      if (!hk_ib_has_room(&c->qps[q], 3)) return HK_OK;
    if (!small && !c->paths[0].peer_ring.addr && !send_is_placed(c, k)) {
      HK_OR_RETURN(send_ask_for_ring(c));
      break;
    }
    if (k >= c->tx.given) c->tx.sizes[i] = 0;
    const uint32_t run = small ? 1 : send_run_of(c, k, qp);
    HK_OR_RETURN(small ? send_small(c, k, qp) : send_large(c, k, qp, run));
    memset(&c->tx.sizes[i], small ? 1 : 2, run);
    c->tx.posted += run;
    *moved = true;
  }
  hk_ib_give_back(c);
  return HK_OK;
}

hk_status hk_ib_return_credit(hk_ib_conn *c) {
  bool posted;
  /* acquire: as in send_fill_header */
  uint64_t consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
  if (consumed - c->rx.returned < (c->ctx->env->nslots + 1) / 2) return HK_OK;
  uint64_t *word = (uint64_t *)(void *)(c->arena + 64);
  *word = consumed;
  HK_OR_RETURN(hk_ib_write(c, word, sizeof *word, 0, &posted));
  if (posted) c->rx.returned = consumed;
  return HK_OK;
}
