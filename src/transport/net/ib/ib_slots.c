/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of a connection's slots: sent, arrived, and given back. */
#include <string.h>
#include "ib_data.h"

void hk_ib_give_back(hk_ib_conn *c) {
  uint64_t k = c->tx.given;
  while (k < c->tx.posted && !(c->tx.sizes[hk_ib_slot_at(c, k)] == 2 && c->tx.pending[hk_ib_slot_at(c, k)])) k++;
  if (k == c->tx.given) return;
  c->tx.given = c->send->next = k;
  hk_net_give_credit(c->send, k);
}

uint64_t hk_ib_credit(hk_ib_conn *c) {
  /* acquire: writes to the peer's slots must come after its report that it has read them */
  uint64_t word = atomic_load_explicit(hk_ib_credit_word(c), memory_order_acquire);
  if (word > c->tx.credit) c->tx.credit = word;
  return c->tx.credit;
}

bool hk_ib_unfinished(const hk_ib_conn *c) {
  if (c->tx.posted < c->tx.given) return true;
  if (c->tx.credit >= c->tx.posted || c->tx.arrived >= c->tx.posted) return false;
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].done != c->qps[i].posted) return true;
  return false;
}

bool hk_ib_can_rewind(const hk_ib_conn *c, uint64_t received) {
  for (uint64_t k = received; k < c->tx.given; k++)
    if (c->tx.sizes[hk_ib_slot_at(c, k)] == 2) return false;
  return true;
}

void hk_ib_rewind(hk_ib_conn *c, uint64_t received, uint64_t consumed) {
  if (consumed > c->tx.credit) c->tx.credit = consumed;
  if (received > c->tx.arrived) c->tx.arrived = received;
  memset(c->tx.pending, 0, c->ctx->env->nslots);
  if (received < c->tx.posted)
    c->tx.posted = received; /* the sequence check finds a number larger than what was sent */
  if (c->send) hk_ib_give_back(c);
}

uint64_t hk_ib_arrived_to(const hk_ib_conn *c) {
  uint64_t k = c->recv->next, end = k + c->ctx->env->nslots;
  for (; k < end && c->rx.headers[hk_ib_slot_at(c, k)]; k++) {
    hk_ib_header h;
    memcpy(&h, c->arena + hk_ib_rx_offset(c, k), sizeof h);
    if (c->rx.parts[hk_ib_slot_at(c, k)] < h.parts) break;
  }
  return k;
}

uint64_t hk_ib_received(hk_ib_conn *c) {
  if (!c->recv) return c->rx.received;
  uint64_t k = hk_ib_arrived_to(c), end = c->recv->next + c->ctx->env->nslots;
  for (uint64_t other = k; other < end; other++)
    c->rx.headers[hk_ib_slot_at(c, other)] = c->rx.parts[hk_ib_slot_at(c, other)] = 0;
  return c->rx.received = k;
}
