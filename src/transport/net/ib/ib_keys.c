/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of windows for one-sided operations: the origin asks for them over the control socket, the target answers. */
#include "../../remote.h"
#include "ib_data.h"
#include "ib_memory.h"

hk_status hk_ib_keys_asked(hk_ib_conn *c, const hk_ib_msg *m) {
  hk_ib_msg reply = {.kind = HK_IB_KEYS, .keys = m->keys};
  hk_ib_keys *k = &reply.keys;
  if (m->epoch != c->epoch || c->dials || k->signal >= c->remote.n) return HK_OK;
  /* acquire: the queue pair has written it, or another one before this epoch */
  k->value = atomic_load_explicit(&hk_ib_counters(c)[k->signal], memory_order_acquire);
  k->registered = 1;
  for (uint32_t i = 0; i < c->npaths && k->bytes; i++) {
    const hk_ibv_mr *mr = hk_ib_user_mr(c->ctx, c->paths[i].device, (void *)(uintptr_t)k->addr, (size_t)k->bytes, true);
    k->rkeys[i] = mr ? mr->rkey : 0;
    k->registered = k->registered && mr;
  }
  return hk_ib_send_message(c, &reply);
}

hk_status hk_ib_keys_came(hk_ib_conn *c, const hk_ib_msg *m) {
  hk_ib_remote *r = &c->remote;
  if (m->epoch != c->epoch || !c->dials) return HK_OK;
  r->value = m->keys.value;
  r->answered = true;
  if (!m->keys.bytes) return HK_OK;
  r->keys[r->nkeys++ % HK_IB_WINDOWS] = m->keys;
  return HK_OK;
}

const hk_ib_keys *hk_ib_keys_find(const hk_ib_remote *r, uint64_t window) {
  uint32_t n = r->nkeys < HK_IB_WINDOWS ? r->nkeys : HK_IB_WINDOWS;
  for (uint32_t i = 0; i < n; i++)
    if (r->keys[i].window == window) return &r->keys[i];
  return NULL;
}

hk_status hk_ib_keys_ask(hk_ib_conn *c, const hk_remote_put *p) {
  hk_ib_msg m = {.kind = HK_IB_ASK, .keys = {.window = p->window.number, .signal = p->signal}};
  if (p->bytes) m.keys.addr = p->window.at, m.keys.bytes = p->window.bytes;
  c->remote.asked = true;
  c->remote.answered = false;
  return hk_ib_send_message(c, &m);
}
