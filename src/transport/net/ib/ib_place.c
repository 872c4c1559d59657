/* SPDX-License-Identifier: Apache-2.0 */
/* Places: memory that the user has registered, into which the peer's card writes.
 *
 * A lane offers them before the messages come. This rank announces them by writing to a small table in the peer's
 * memory. The peer does not wait for them: a message whose place is not known when it is sent goes to the FIFO. An
 * entry is valid for one slot, and in the epoch in which it was announced. A check word covers all of it, because a
 * card's write may be seen in pieces.
 *
 * A slot's place is no longer in use once its message has arrived: a queue pair's writes come in order, and all parts
 * are waited for. Messages that are sent again on new queue pairs go to places that were announced again, or to the
 * FIFO. If an operation ends in an error while places are announced, the queue pairs that could write to them end first
 * (hk_ib_place_withdraw). */
#include "../../../base/log.h"
#include "ib_data.h"
#include "ib_memory.h"
#include "ib_state.h"

enum {
  TABLE_IN = 128, /* after the credits */
  TABLE_BYTES = HK_IB_PLACES * sizeof(hk_ib_place),
  TABLE_OUT = TABLE_IN + TABLE_BYTES,
  ONCE = HK_IB_INLINE / sizeof(hk_ib_place) /* entries in one write */
};
_Static_assert((int)TABLE_OUT + (int)TABLE_BYTES <= (int)HK_IB_ENTRY, "both tables fit next to the credits");

static size_t ib_place_entry_at(uint64_t k) { return k % HK_IB_PLACES * sizeof(hk_ib_place); }
static hk_ib_place *ib_place_entry(const hk_ib_conn *c, size_t table, uint64_t k) {
  return (hk_ib_place *)(void *)(c->arena + table + ib_place_entry_at(k));
}

static uint64_t ib_place_check_of(const hk_ib_conn *c, uint64_t k, uint64_t addr, uint64_t bytes,
                                  const uint64_t keys[HK_IB_PATHS / 2]) {
  uint64_t h = (addr ^ (uint64_t)c->epoch << 32) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 29 ^ bytes) * 0xbf58476d1ce4e5b9u;
  h = (h ^ h >> 31 ^ keys[0]) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 30 ^ keys[1]) * 0xbf58476d1ce4e5b9u;
  h = (h ^ h >> 32 ^ (k + 1)) * 0x94d049bb133111ebu;
  return h ^ h >> 31;
}

/* ---- the sender ---- */

/* An entry that is not complete counts as none. */
bool hk_ib_place_find(hk_ib_conn *c, uint64_t k, uint32_t bytes, hk_ib_target *to) {
  const hk_ib_place *p = ib_place_entry(c, TABLE_IN, k);
  /* relaxed: the check word shows whether the words read belong together */
  uint64_t addr = atomic_load_explicit(&p->addr, memory_order_relaxed);
  uint64_t capacity = atomic_load_explicit(&p->bytes, memory_order_relaxed);
  uint64_t keys[HK_IB_PATHS / 2];
  for (int i = 0; i < HK_IB_PATHS / 2; i++) keys[i] = atomic_load_explicit(&p->keys[i], memory_order_relaxed);
  uint64_t check = atomic_load_explicit(&p->check, memory_order_relaxed);
  if (capacity != bytes || check != ib_place_check_of(c, k, addr, capacity, keys)) return false;
  to->addr = addr;
  for (int i = 0; i < HK_IB_PATHS; i++) to->rkeys[i] = (uint32_t)(keys[i / 2] >> 32 * (i % 2));
  return true;
}

/* ---- the receiver ---- */

void hk_ib_place_post(void *ctx, hk_net_end *e, uint64_t k, void *to, uint32_t bytes) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  hk_ib_conn *c = e->priv;
  if (k >= e->next && k < e->next + HK_IB_PLACES && hk_ib_is_registered(x, to, bytes)) {
    c->places.offers[k % HK_IB_PLACES] = (hk_ib_offered){.slot = k + 1, .to = to, .bytes = bytes};
    if (k >= c->places.offered) c->places.offered = k + 1;
    hk_ib_stir(c);
  }
  pthread_mutex_unlock(&x->lock);
}

static hk_ib_offered *ib_place_offer_of(hk_ib_conn *c, uint64_t k) {
  hk_ib_offered *o = &c->places.offers[k % HK_IB_PLACES];
  return o->slot == k + 1 ? o : NULL;
}

void *hk_ib_place_used(hk_ib_conn *c, uint64_t k, uint32_t bytes) {
  const hk_ib_offered *o = ib_place_offer_of(c, k);
  return o && o->announced && o->bytes == bytes ? o->to : NULL;
}

/* Fills the local copy of slot k's entry. Returns false if nothing was offered, or a device refuses the memory. */
static bool ib_place_fill_entry(hk_ib_conn *c, uint64_t k) {
  hk_ib_offered *o = ib_place_offer_of(c, k);
  uint64_t keys[HK_IB_PATHS / 2] = {0};
  if (!o) return false;
  for (uint32_t i = 0; i < c->npaths; i++) {
    const hk_ibv_mr *mr = hk_ib_user_mr(c->ctx, c->paths[i].device, o->to, o->bytes, true);
    if (!mr) return false;
    keys[i / 2] |= (uint64_t)mr->rkey << 32 * (i % 2);
  }
  uint64_t addr = (uint64_t)(uintptr_t)o->to;
  hk_ib_place *p = ib_place_entry(c, TABLE_OUT, k);
  /* relaxed: only this rank's card reads them, after the request is posted */
  atomic_store_explicit(&p->addr, addr, memory_order_relaxed);
  atomic_store_explicit(&p->bytes, o->bytes, memory_order_relaxed);
  for (int i = 0; i < HK_IB_PATHS / 2; i++) atomic_store_explicit(&p->keys[i], keys[i], memory_order_relaxed);
  atomic_store_explicit(&p->check, ib_place_check_of(c, k, addr, o->bytes, keys), memory_order_relaxed);
  o->announced = true;
  return true;
}

hk_status hk_ib_place_announce(hk_ib_conn *c) {
  bool posted = true;
  if (c->places.announced < c->recv->next) c->places.announced = c->recv->next; /* slots that have come need no place */
  while (c->places.announced < c->places.offered && posted) {
    uint64_t first = c->places.announced, end = first;
    while (end < c->places.offered && end < first + ONCE && (end == first || end % HK_IB_PLACES) &&
           ib_place_fill_entry(c, end))
      end++;
    uint32_t bytes = (uint32_t)((end - first) * sizeof(hk_ib_place));
    if (bytes)
      HK_OR_RETURN(
          hk_ib_write(c, ib_place_entry(c, TABLE_OUT, first), bytes, TABLE_IN + ib_place_entry_at(first), &posted));
    if (posted) c->places.announced = bytes ? end : first + 1;
  }
  return HK_OK;
}

/* Returns true if the peer may still write to an announced place. */
static bool ib_place_is_open(hk_ib_conn *c) {
  if (!c->recv) return false;
  for (uint64_t k = c->recv->next; k < c->places.offered; k++) {
    const hk_ib_offered *o = ib_place_offer_of(c, k);
    if (o && o->announced) return true;
  }
  return false;
}

void hk_ib_place_withdraw(void *ctx) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  for (uint32_t i = 0; i < x->capacity; i++) {
    hk_ib_conn *c = x->conns[i];
    if (!c) continue;
    bool open = c->nqps && ib_place_is_open(c);
    c->places.offered = 0; /* nothing more is announced */
    if (!open) continue;
    HK_INFO(
        HK_SUB_NET,
        "rank %d: the connection to rank %d (channel %d) ends: an operation has failed, and what is still on its way "
        "must not be written to memory that may be used for something else by then",
        x->env->rank, c->peer, c->channel);
    hk_ib_drop_qps(c);
    hk_ib_mark_failed(c);
  }
  pthread_mutex_unlock(&x->lock);
}
