/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of a connection's slots: sent, arrived, and given back. */
#include "ib_slots.h"
#include <string.h>

void hk_ib_give_back(hk_ib_conn *c) {
  uint64_t k = c->given;
  while (k < c->posted && !(c->sizes[hk_ib_slot_at(c, k)] == 2 && c->pending[hk_ib_slot_at(c, k)])) k++;
  if (k == c->given) return;
  c->given = c->send->next = k;
  hk_net_give_credit(c->send, k);
}

uint64_t hk_ib_credit(hk_ib_conn *c) {
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

bool hk_ib_can_rewind(const hk_ib_conn *c, uint64_t received) {
  for (uint64_t k = received; k < c->given; k++)
    if (c->sizes[hk_ib_slot_at(c, k)] == 2) return false;
  return true;
}

void hk_ib_rewind(hk_ib_conn *c, uint64_t received, uint64_t consumed) {
  if (consumed > c->credit) c->credit = consumed;
  if (received > c->arrived) c->arrived = received;
  memset(c->pending, 0, c->ctx->env->nslots);
  if (received < c->posted) c->posted = received; /* the sequence check finds a number larger than what was sent */
  if (c->send) hk_ib_give_back(c);
}

uint64_t hk_ib_arrived_to(const hk_ib_conn *c) {
  uint64_t k = c->recv->next, end = k + c->ctx->env->nslots;
  for (; k < end && c->headers[hk_ib_slot_at(c, k)]; k++) {
    hk_ib_header h;
    memcpy(&h, c->arena + hk_ib_rx_offset(c, k), sizeof h);
    if (c->parts[hk_ib_slot_at(c, k)] < h.parts) break;
  }
  return k;
}

uint64_t hk_ib_received(hk_ib_conn *c) {
  if (!c->recv) return c->received;
  uint64_t k = hk_ib_arrived_to(c), end = c->recv->next + c->ctx->env->nslots;
  for (uint64_t other = k; other < end; other++)
    c->headers[hk_ib_slot_at(c, other)] = c->parts[hk_ib_slot_at(c, other)] = 0;
  return c->received = k;
}
