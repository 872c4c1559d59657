/* SPDX-License-Identifier: Apache-2.0 */
/* Moving slots: posting requests for filled slots, and delivering messages from completions. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include "../../../base/param.h"
#include "ib.h"

enum { POLLED = 16, RECV_BATCH = 8, NO_SLOT = UINT32_MAX };

static inline uint32_t ring(const hk_ib_conn *c, uint64_t k) { return (uint32_t)k & (c->ctx->env->nslots - 1); }

static hk_status cannot_post(hk_ib_conn *c, const char *what, int err) {
  char cause[120];
  snprintf(cause, sizeof cause, "cannot post a %s request: %s", what, strerror(err));
  return hk_ib_fail(c, cause, "is the device still there? See the kernel's log");
}

/* ---- receiving requests ---- */

hk_status hk_ib_post_recv(hk_ib_conn *c, uint32_t qp, uint32_t n) {
  hk_ib_qp *q = &c->qps[qp];
  while (n > 0) {
    hk_ibv_recv_wr wr[RECV_BATCH], *bad;
    uint32_t batch = n < RECV_BATCH ? n : RECV_BATCH;
    for (uint32_t i = 0; i < batch; i++)
      wr[i] =
          (hk_ibv_recv_wr){.wr_id = hk_ib_request_id(c, qp, HK_IB_RECEIVED), .next = i + 1 < batch ? &wr[i + 1] : NULL};
    int err = q->qp->context->ops.post_recv(q->qp, wr, &bad);
    if (err) return cannot_post(c, "receive", err);
    n -= batch;
  }
  return HK_OK;
}

/* ---- sending ---- */

/* Returns true if the queue has room for n requests. */
static bool has_room(const hk_ib_qp *q, uint32_t n) { return q->posted - q->done + n <= q->depth; }

/* Returns true if a request must report its completion, so that the queue gets room again. Every report costs the card
 * a write and the CPU a poll; one for a quarter of the queue is enough. */
static bool signal_due(const hk_ib_qp *q) { return q->posted - q->signaled >= q->depth / 4; }

static void note_signal(hk_ib_qp *q, uint32_t slot) {
  q->signaled = q->posted;
  q->signals[q->last].position = q->posted;
  q->signals[q->last].slot = slot;
  q->last = (q->last + 1) % (q->depth + 1);
}

/* Fills the header of slot k, with the current credit. */
static void fill_header(hk_ib_conn *c, uint64_t k, hk_ib_header *h) {
  const hk_slot *s = hk_net_slot(c->send, k);
  *h = (hk_ib_header){.seq = (uint32_t)(k + 1), .bytes = s->bytes, .signature = s->signature};
  if (c->recv) {
    /* acquire: what the lane read from the slots is read before they are given back */
    h->consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
    c->returned = h->consumed;
  }
}

static hk_ibv_send_wr write_with_imm(const hk_ib_conn *c, uint32_t qp, hk_ibv_sge *sge, uint64_t to, uint32_t rkey,
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

/* Posts n requests, the last of which is `last`. It reports its completion if `slot` waits for that (otherwise
 * NO_SLOT), or if a report is due. */
static hk_status post(hk_ib_conn *c, uint32_t qp, hk_ibv_send_wr *wr, hk_ibv_send_wr *last, uint32_t n, uint32_t slot) {
  hk_ib_qp *q = &c->qps[qp];
  hk_ibv_send_wr *bad;
  bool signaled = slot != NO_SLOT || last->send_flags & HK_IBV_SEND_SIGNALED || signal_due(q);
  if (signaled) last->send_flags |= HK_IBV_SEND_SIGNALED;
  int err = q->qp->context->ops.post_send(q->qp, wr, &bad);
  if (err) return cannot_post(c, "send", err);
  q->posted += n;
  if (signaled) note_signal(q, slot);
  return HK_OK;
}

/* Slot k's place in the peer's FIFO. */
static hk_ib_target in_fifo(const hk_ib_conn *c, uint64_t k) {
  hk_ib_target to = {.addr = c->paths[0].peer_ring.addr + (uint64_t)ring(c, k) * c->send->link->slot_bytes};
  for (uint32_t i = 0; i < c->npaths; i++) to.rkeys[i] = c->paths[i].peer_ring.rkey;
  return to;
}

static hk_ibv_send_wr plain_write(const hk_ib_conn *c, uint32_t qp, hk_ibv_sge *sge, const hk_ib_target *to,
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

/* Posts a small message from its entry of the ring, which is kept until the peer has read it. */
static hk_status post_small(hk_ib_conn *c, uint64_t k, uint32_t qp) {
  char *entry = hk_ib_tx_entry(c, k);
  hk_ib_header *h = (hk_ib_header *)(void *)entry;
  if (!c->sizes[ring(c, k)]) { /* not sent before */
    uint32_t bytes = hk_net_slot(c->send, k)->bytes;
    fill_header(c, k, h);
    if (bytes) memcpy(entry + HK_IB_HEADER, hk_net_slot_data(c->send, k), bytes);
    h->where = bytes && c->paths[0].peer_ring.flags & HK_IB_ON_GPU ? HK_IB_IN_FIFO : HK_IB_BEHIND;
  }
  const hk_ib_path *w = c->qps[qp].path;
  hk_ibv_sge sge = {(uint64_t)(uintptr_t)entry, HK_IB_HEADER + h->bytes, w->arena_mr->lkey};
  hk_ibv_send_wr wr = write_with_imm(c, qp, &sge, w->peer_arena.addr + hk_ib_rx_offset(c, k), w->peer_arena.rkey,
                                     ((uint32_t)k & ~HK_IB_HAS_HEADER) | HK_IB_HAS_HEADER);
  if (h->where == HK_IB_BEHIND) return post(c, qp, &wr, &wr, 1, NO_SLOT);
  /* The peer's payloads are in a GPU's memory, to which its CPU cannot copy from the ring. */
  hk_ibv_sge data = {(uint64_t)(uintptr_t)entry + HK_IB_HEADER, h->bytes, w->arena_mr->lkey};
  hk_ib_target to = in_fifo(c, k);
  hk_ibv_send_wr first = plain_write(c, qp, &data, &to, &wr);
  if (h->bytes <= c->qps[qp].inline_bytes) first.send_flags = HK_IBV_SEND_INLINE;
  sge.length = HK_IB_HEADER;
  if (sge.length <= c->qps[qp].inline_bytes) wr.send_flags |= HK_IBV_SEND_INLINE;
  return post(c, qp, &first, &wr, 2, NO_SLOT);
}

/* Gets the keys of the user's registered memory for all paths. Returns false if a device refuses it. */
static bool user_keys(hk_ib_conn *c, const char *data, uint32_t bytes, uint32_t lkeys[HK_IB_PATHS]) {
  for (uint32_t i = 0; i < c->npaths; i++) {
    const hk_ibv_mr *mr = hk_ib_user_mr(c->ctx, c->paths[i].device, data, bytes, false);
    if (!mr) return false;
    lkeys[i] = mr->lkey;
  }
  return true;
}

/* Finds the address of a large message and its keys for all paths. */
static hk_status source_of(hk_ib_conn *c, uint64_t k, const char **from, uint32_t lkeys[HK_IB_PATHS]) {
  hk_slot *s = hk_net_slot(c->send, k);
  hk_link *l = c->send->link;
  if (l->gpu) { /* register_rings has registered it */
    *from = hk_net_payload(c->send, k);
    for (uint32_t i = 0; i < c->npaths; i++) lkeys[i] = c->paths[i].send_mr->lkey;
    return HK_OK;
  }
  *from = hk_net_slot_data(c->send, k);
  if (s->flags & HK_SLOT_REF) {
    if (user_keys(c, *from, s->bytes, lkeys)) return HK_OK;
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
static hk_status post_parts(hk_ib_conn *c, uint64_t k, uint32_t qp, const char *from, uint32_t bytes,
                            const uint32_t lkeys[HK_IB_PATHS], const hk_ib_target *to, uint32_t each) {
  const uint32_t n = hk_ib_data_qps(c);
  for (uint32_t i = 1; i < n && i * each < bytes; i++) {
    uint32_t other = (qp + i) % n, path = other % c->npaths, at = i * each, left = bytes - at;
    hk_ibv_sge sge = {(uint64_t)(uintptr_t)from + at, left < each ? left : each, lkeys[path]};
    hk_ibv_send_wr wr = write_with_imm(c, other, &sge, to->addr + at, to->rkeys[path], (uint32_t)k & ~HK_IB_HAS_HEADER);
    if (c->send->link->gpu)
      wr.send_flags &= ~(unsigned)HK_IBV_SEND_INLINE; /* for inline data the CPU would have to read it */
    c->pending[ring(c, k)]++;
    HK_OR_RETURN(post(c, other, &wr, &wr, 1, ring(c, k)));
  }
  return HK_OK;
}

/* Slot k and `run - 1` slots after it. */
static hk_status post_large(hk_ib_conn *c, uint64_t k, uint32_t qp, uint32_t run) {
  hk_slot *s = hk_net_slot(c->send, k);
  const char *from;
  const hk_ib_path *w = c->qps[qp].path;
  uint32_t lkeys[HK_IB_PATHS];
  char *entry = hk_ib_tx_entry(c, k);
  hk_ib_header *h = (hk_ib_header *)(void *)entry;
  const uint32_t n = hk_ib_data_qps(c);
  bool split = n > 1 && s->bytes >= HK_IB_SPLIT_MIN && hk_param_int(HK_P_IB_SPLIT_DATA_ON_QPS);
  uint32_t each = split ? ((s->bytes + n - 1) / n + 4095) & ~4095u : s->bytes;
  hk_ib_target to = in_fifo(c, k);
  bool placed = hk_ib_place_find(c, k, s->bytes, &to);
  HK_OR_RETURN(source_of(c, k, &from, lkeys));
  fill_header(c, k, h);
  h->where = placed ? HK_IB_IN_PLACE : HK_IB_IN_FIFO;
  h->parts = (uint16_t)((s->bytes + each - 1) / each - 1);
  h->more = run - 1;
  c->pending[ring(c, k)] = 1;
  HK_OR_RETURN(post_parts(c, k, qp, from, s->bytes, lkeys, &to, each));
  hk_ibv_sge head = {(uint64_t)(uintptr_t)entry, HK_IB_HEADER, w->arena_mr->lkey};
  hk_ibv_send_wr last = write_with_imm(c, qp, &head, w->peer_arena.addr + hk_ib_rx_offset(c, k), w->peer_arena.rkey,
                                       ((uint32_t)k & ~HK_IB_HAS_HEADER) | HK_IB_HAS_HEADER);
  const uint32_t stride = c->send->link->slot_bytes, writes = s->bytes == stride ? 1 : run; /* full slots: one piece */
  hk_ibv_sge data[HK_IB_RUN];
  hk_ibv_send_wr wr[HK_IB_RUN];
  for (uint32_t i = 0; i < writes; i++, from += stride, to.addr += stride) {
    data[i] = (hk_ibv_sge){(uint64_t)(uintptr_t)from, (s->bytes < each ? s->bytes : each) * (run / writes),
                           lkeys[qp % c->npaths]};
    wr[i] = plain_write(c, qp, &data[i], &to, i + 1 < writes ? &wr[i + 1] : &last);
  }
  return post(c, qp, wr, &last, writes + 1, ring(c, k));
}

/* Gives slots back to the lane: small ones once they are in the ring, large ones once they have arrived. */
static void give_back(hk_ib_conn *c) {
  uint64_t k = c->given;
  while (k < c->posted && !(c->sizes[ring(c, k)] == 2 && c->pending[ring(c, k)])) k++;
  if (k == c->given) return;
  c->given = c->send->next = k;
  hk_net_give_credit(c->send, k);
}

static uint64_t credit(hk_ib_conn *c) {
  /* acquire: writes to the peer's slots must come after its report that it has read them */
  uint64_t word = atomic_load_explicit(hk_ib_credit_word(c), memory_order_acquire);
  if (word > c->credit) c->credit = word;
  return c->credit;
}

bool hk_ib_unfinished(const hk_ib_conn *c) {
  if (c->posted < c->given) return true;
  if (c->credit >= c->posted || c->arrived >= c->posted) return false;
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].done != c->qps[i].posted) return true;
  return false;
}

/* Returns true if slot k is copied into the ring: it is not large. */
static bool is_small(const hk_ib_conn *c, uint64_t k) {
  uint32_t bytes = hk_net_slot(c->send, k)->bytes;
  return bytes <= HK_IB_SMALL && !hk_link_on_gpu(c->send->link, bytes);
}

static bool filled(const hk_ib_conn *c, uint64_t k) { return k < c->given || hk_net_filled(c->send, k); }

static bool is_placed(hk_ib_conn *c, uint64_t k) {
  hk_ib_target to;
  return hk_ib_place_find(c, k, hk_net_slot(c->send, k)->bytes, &to);
}

/* Slots from k on that go as one message. If a GPU's proxy finds several, it is slower than kernels and card are: then
 * one header, doorbell and completion at each end serve for all. They arrive and are given back together, so they are
 * at most half of the FIFO; and if the peer has not read the other half, it is slow itself, and gets each one as soon
 * as possible. With more queue pairs, a receiver expects the next slot on the next one. */
static uint32_t run_of(hk_ib_conn *c, uint64_t k, uint32_t qp) {
  const hk_slot *first = hk_net_slot(c->send, k);
  const uint32_t nslots = c->ctx->env->nslots;
  uint32_t n = 1;
  if (!c->ctx->env->gpu || hk_ib_data_qps(c) > 1 || first->flags & HK_SLOT_REF || is_placed(c, k)) return 1;
  if (k >= credit(c) + nslots / 2) return 1;
  while (n < HK_IB_RUN && n < nslots / 2 && (n + 1) * first->bytes <= HK_IB_RUN_BYTES && ring(c, k + n) &&
         has_room(&c->qps[qp], n + 2) && filled(c, k + n)) {
    const hk_slot *s = hk_net_slot(c->send, k + n);
    if (s->bytes != first->bytes || s->signature != first->signature || s->flags & HK_SLOT_REF || is_placed(c, k + n))
      break;
    n++;
  }
  return n;
}

/* The receiver registers its FIFO for the first message that goes there. */
static hk_status ask_for_ring(hk_ib_conn *c) {
  hk_ibv_sge none = {0};
  const hk_ib_path *w = c->qps[0].path;
  if (c->asked) return HK_OK;
  hk_ibv_send_wr wr = write_with_imm(c, 0, &none, w->peer_arena.addr, w->peer_arena.rkey, HK_IB_WANTS_RING);
  wr.num_sge = 0;
  c->asked = true;
  return post(c, 0, &wr, &wr, 1, NO_SLOT);
}

hk_status hk_ib_send(hk_ib_conn *c, bool *moved) {
  uint32_t n = c->ctx->env->nslots;
  const bool splits = hk_param_int(HK_P_IB_SPLIT_DATA_ON_QPS) != 0;
  if (!c->send || !(c->paths[0].peer_ring.flags & HK_IB_OPEN) || c->ceded & hk_ib_direction(c, true)) return HK_OK;
  while (filled(c, c->posted) && (c->posted - c->credit < n || c->posted - credit(c) < n)) {
    uint64_t k = c->posted;
    uint32_t qp = (uint32_t)(k % hk_ib_data_qps(c)), i = ring(c, k);
    /* Below c->given it was sent in an earlier epoch: a small message is in the ring, and the lane may have filled its
     * slot again. */
    bool small = k < c->given ? c->sizes[i] == 1 : is_small(c, k);
    if (!has_room(&c->qps[qp], 3) || !has_room(&c->qps[0], 3)) return HK_OK;
    for (uint32_t q = 0; q < c->nqps && splits && !small; q++)
      if (!has_room(&c->qps[q], 3)) return HK_OK;
    if (!small && !c->paths[0].peer_ring.addr && !is_placed(c, k)) {
      HK_OR_RETURN(ask_for_ring(c));
      break;
    }
    if (k >= c->given) c->sizes[i] = 0;
    const uint32_t run = small ? 1 : run_of(c, k, qp);
    HK_OR_RETURN(small ? post_small(c, k, qp) : post_large(c, k, qp, run));
    memset(&c->sizes[i], small ? 1 : 2, run);
    c->posted += run;
    *moved = true;
  }
  give_back(c);
  return HK_OK;
}

hk_status hk_ib_post_write(hk_ib_conn *c, uint32_t qp, const hk_ib_source *s, uint64_t to, uint32_t rkey, bool report,
                           bool *posted) {
  hk_ibv_sge sge = {(uint64_t)(uintptr_t)s->from, s->bytes, s->lkey};
  hk_ibv_send_wr wr = {
      .wr_id = hk_ib_request_id(c, qp, HK_IB_SENT), .sg_list = &sge, .num_sge = 1, .opcode = HK_IBV_WR_RDMA_WRITE};
  *posted = has_room(&c->qps[qp], 1);
  if (!*posted) return HK_OK;
  if (s->readable && s->bytes <= c->qps[qp].inline_bytes) wr.send_flags = HK_IBV_SEND_INLINE;
  if (report) wr.send_flags |= HK_IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = rkey;
  return post(c, qp, &wr, &wr, 1, NO_SLOT);
}

hk_status hk_ib_write(hk_ib_conn *c, const void *from, uint32_t bytes, size_t at, bool *posted) {
  const uint32_t qp = c->apart ? c->nqps - 1 : 0;
  const hk_ib_path *w = c->qps[qp].path;
  hk_ib_source s = {from, bytes, w->arena_mr->lkey, true};
  return hk_ib_post_write(c, qp, &s, w->peer_arena.addr + at, w->peer_arena.rkey, false, posted);
}

hk_status hk_ib_return_credit(hk_ib_conn *c) {
  bool posted;
  /* acquire: as in fill_header */
  uint64_t consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
  if (consumed - c->returned < (c->ctx->env->nslots + 1) / 2) return HK_OK;
  uint64_t *word = (uint64_t *)(void *)(c->arena + 64);
  *word = consumed;
  HK_OR_RETURN(hk_ib_write(c, word, sizeof *word, 0, &posted));
  if (posted) c->returned = consumed;
  return HK_OK;
}

static hk_status post_empty(hk_ib_conn *c, uint32_t qp) {
  hk_ib_qp *q = &c->qps[qp];
  hk_ibv_send_wr wr = {
      .wr_id = hk_ib_request_id(c, qp, HK_IB_SENT), .opcode = HK_IBV_WR_RDMA_WRITE, .send_flags = HK_IBV_SEND_SIGNALED};
  wr.wr.rdma.remote_addr = q->path->peer_arena.addr;
  wr.wr.rdma.rkey = q->path->peer_arena.rkey;
  hk_ibv_send_wr *bad;
  int err = q->qp->context->ops.post_send(q->qp, &wr, &bad);
  if (err) return cannot_post(c, "send", err);
  q->looked = ++q->posted;
  note_signal(q, NO_SLOT);
  return HK_OK;
}

hk_status hk_ib_fence(hk_ib_conn *c, bool all) {
  for (uint32_t i = 0; i < c->nqps; i++) {
    hk_ib_qp *q = &c->qps[i];
    bool still = q->looked == q->posted;
    q->looked = q->posted;
    if (q->signaled == q->posted || !(all || still) || !has_room(q, 1)) continue;
    HK_OR_RETURN(post_empty(c, i));
  }
  return HK_OK;
}

hk_status hk_ib_ask_card(hk_ib_conn *c) {
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].first == c->qps[i].last && has_room(&c->qps[i], 1)) HK_OR_RETURN(post_empty(c, i));
  return HK_OK;
}

bool hk_ib_can_rewind(const hk_ib_conn *c, uint64_t received) {
  for (uint64_t k = received; k < c->given; k++)
    if (c->sizes[ring(c, k)] == 2) return false;
  return true;
}

void hk_ib_rewind(hk_ib_conn *c, uint64_t received, uint64_t consumed) {
  if (consumed > c->credit) c->credit = consumed;
  if (received > c->arrived) c->arrived = received;
  memset(c->pending, 0, c->ctx->env->nslots);
  if (received < c->posted) c->posted = received; /* the sequence check finds a number larger than what was sent */
  if (c->send) give_back(c);
}

/* ---- completions ---- */

static void sent(hk_ib_conn *c, hk_ib_qp *q) {
  if (q->first == q->last) return;
  uint32_t slot = q->signals[q->first].slot;
  q->done = q->signals[q->first].position;
  q->first = (q->first + 1) % (q->depth + 1);
  if (slot != NO_SLOT && c->pending[slot]) c->pending[slot]--;
}

static hk_status out_of_order(hk_ib_conn *c, uint32_t number) {
  char cause[120];
  snprintf(cause, sizeof cause, "message %u came where %u was due: one was lost or came twice", number,
           (uint32_t)c->recv->next & ~HK_IB_HAS_HEADER);
  return hk_ib_fail(c, cause, "do all ranks run the same version of this library?");
}

static hk_status arrived(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc) {
  hk_ib_qp *q = &c->qps[qp];
  uint32_t imm = ntohl(wc->imm_data), number = imm & ~HK_IB_HAS_HEADER;
  if (++q->recv_owed >= RECV_BATCH) {
    HK_OR_RETURN(hk_ib_post_recv(c, qp, q->recv_owed));
    q->recv_owed = 0;
  }
  if (imm == HK_IB_WANTS_RING && wc->byte_len == 0) { /* parts of messages are not empty */
    c->wanted = true;
    return hk_ib_provide_ring(c);
  }
  if (!c->recv) return HK_OK; /* its receiver has ended, and reads no more messages */
  c->flush.readers[qp % c->npaths].dirty = true;
  uint32_t ahead = (number - (uint32_t)c->recv->next) & ~HK_IB_HAS_HEADER, i = ring(c, number);
  if (ahead >= c->ctx->env->nslots) return out_of_order(c, number);
  /* A queue pair delivers in order: the message before this one on it must have arrived. */
  const uint32_t n = hk_ib_data_qps(c);
  if (imm & HK_IB_HAS_HEADER && ahead >= n && !c->headers[ring(c, number - n)]) return out_of_order(c, number);
  if (!(imm & HK_IB_HAS_HEADER)) {
    c->parts[i]++;
    return HK_OK;
  }
  hk_ib_header h;
  memcpy(&h, c->arena + hk_ib_rx_offset(c, number), sizeof h);
  for (uint32_t left = h.more;; left--) {
    if (c->headers[i]++) return out_of_order(c, number);
    if (!left) return HK_OK;
    h.seq++;
    i = ring(c, ++number);
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
          hk_ib_conn *c = index < x->room ? x->conns[index] : NULL;
          if (!c || c->serial != (uint32_t)(wc[i].wr_id >> 32) || c->failed) continue;
          if (kind == HK_IB_FLUSHED) { /* also for messages of queue pairs that have ended since */
            hk_ib_stir(c);
            *moved = true;
            HK_OR_RETURN(hk_ib_gpu_flushed(c, qp, &wc[i]));
          }
          if (kind == HK_IB_FLUSHED || qp >= c->nqps) continue;
          *moved = true;
          hk_ib_stir(c);
          if (wc[i].status == HK_IBV_WC_SUCCESS) c->came = c->pairs[c->qps[qp].path->pair].worked = true;
          if (wc[i].status != HK_IBV_WC_SUCCESS)
            HK_OR_RETURN(hk_ib_broken(c, qp, &wc[i], kind == HK_IB_SENT ? "sending" : "receiving"));
          else if (kind == HK_IB_SENT)
            sent(c, &c->qps[qp]);
          else
            HK_OR_RETURN(arrived(c, qp, &wc[i]));
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

static hk_status garbage(hk_ib_conn *c, const hk_ib_header *h) {
  char cause[160];
  snprintf(cause, sizeof cause, "a message makes no sense: number %u where %u was due, %u bytes in %u parts", h->seq,
           (uint32_t)c->recv->next + 1, h->bytes, h->parts + 1u);
  return hk_ib_fail(c, cause, "do all ranks run the same version of this library, with the same settings?");
}

uint64_t hk_ib_arrived_to(const hk_ib_conn *c) {
  uint64_t k = c->recv->next, end = k + c->ctx->env->nslots;
  for (; k < end && c->headers[ring(c, k)]; k++) {
    hk_ib_header h;
    memcpy(&h, c->arena + hk_ib_rx_offset(c, k), sizeof h);
    if (c->parts[ring(c, k)] < h.parts) break;
  }
  return k;
}

uint64_t hk_ib_received(hk_ib_conn *c) {
  if (!c->recv) return c->received;
  uint64_t k = hk_ib_arrived_to(c), end = c->recv->next + c->ctx->env->nslots;
  for (uint64_t other = k; other < end; other++) c->headers[ring(c, other)] = c->parts[ring(c, other)] = 0;
  return c->received = k;
}

/* Finds the final place of the payload, and copies it there if it is in the ring. *place is NULL if there is no place
 * yet. The CPU does not touch payloads in a GPU's memory. */
static void settle(hk_ib_conn *c, uint64_t k, const hk_ib_header *h, void **place, bool *direct) {
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
  while (c->recv && c->headers[ring(c, c->recv->next)]) {
    uint64_t k = c->recv->next;
    uint32_t i = ring(c, k);
    hk_ib_header h;
    memcpy(&h, c->arena + hk_ib_rx_offset(c, k), sizeof h);
    bool large = h.where != HK_IB_BEHIND, direct;
    const bool on_gpu = hk_link_on_gpu(c->recv->link, h.bytes);
    uint32_t most = large ? c->recv->link->slot_bytes : HK_IB_SMALL;
    if (h.seq != (uint32_t)(k + 1) || h.bytes > most || (on_gpu && h.where != HK_IB_IN_FIFO) ||
        (h.where == HK_IB_IN_FIFO && !c->recv->link->payload) || h.parts >= HK_IB_QPS || h.where > HK_IB_IN_PLACE ||
        (h.where == HK_IB_IN_PLACE && !hk_ib_place_used(c, k, h.bytes)))
      return garbage(c, &h);
    if (c->parts[i] < h.parts || !hk_net_has_room(c->recv)) return HK_OK;
    if (on_gpu) {
      bool seen;
      hk_status rc = hk_ib_gpu_visible(c, k, &seen);
      if (rc != HK_OK || !seen) return rc;
    }
    void *place;
    settle(c, k, &h, &place, &direct);
    if (!place) return HK_OK; /* the lane does not want it yet; its size was checked above */
    if (large) (*(direct ? &c->ctx->placed : &c->ctx->copied))++;
    if (h.consumed > c->credit) c->credit = h.consumed;
    c->headers[i] = c->parts[i] = 0;
    hk_net_deliver(c->recv, h.bytes, h.signature, place, direct);
    *moved = true;
  }
  return HK_OK;
}
