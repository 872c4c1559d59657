/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to the listener of a rank of the communicator. */
#include <stdio.h>
#include "../base/iface.h" /* link-local addresses */
#include "../base/param.h"
#include "internal.h"

hk_hello hk_overlay_hello(const hk_bootstrap *b, hk_hello_kind kind, int to) {
  return (hk_hello){.kind = kind,
                    .from = b->rank,
                    .to = to,
                    .key = b->family->key,
                    .comm = b->comm,
                    .process = hk_contact_process(hk_contact_of(b, to))};
}

/* A link-local address needs an interface of this host, and nothing says which one leads to the peer: each that has
 * such an address is tried. */
static void overlay_dial_scopes(const hk_bootstrap *b, hk_addr a, hk_dialing *d) {
  hk_contact own;
  const uint32_t before = d->n;
  if (!hk_contact_decode(&own, hk_contact_of(b, b->rank))) own.n = 0;
  for (uint32_t i = 0; i < own.n; i++) {
    if (own.at[i].sa.sa_family != AF_INET6 || !hk_addr_is_link_local(&own.at[i])) continue;
    a.v6.sin6_scope_id = own.at[i].v6.sin6_scope_id;
    bool known = false;
    for (uint32_t k = before; k < d->n; k++) known |= d->at[k].v6.sin6_scope_id == a.v6.sin6_scope_id;
    if (!known) d->at[d->n++] = a;
  }
  if (d->n == before) d->at[d->n++] = a; /* the peer may be on this host */
}

/* Adds the contact's addresses to those of `d`. */
static void overlay_dial_add(const hk_bootstrap *b, const hk_contact *c, hk_dialing *d) {
  for (uint32_t i = 0; i < c->n; i++) {
    if (d->n && hk_addr_equal(&c->at[i], &d->at[0])) continue;
    if (c->at[i].sa.sa_family == AF_INET6 && hk_addr_is_link_local(&c->at[i]))
      overlay_dial_scopes(b, c->at[i], d);
    else
      d->at[d->n++] = c->at[i];
  }
}

hk_status hk_overlay_dial(hk_bootstrap *b, hk_hello *h, const hk_addr *at, const hk_wait_env *env, const char *advice,
                          int *fd) {
  hk_contact c;
  char whom[48];
  snprintf(whom, sizeof whom, "rank %d of %d", h->to, b->nranks);
  *fd = -1;
  if (!hk_contact_decode(&c, hk_contact_of(b, h->to)))
    return HK_FAIL(HK_ERR_INTERNAL, "no usable address of %s is known", whom);
  HK_OR_RETURN(hk_random(h->nonce, sizeof h->nonce));
  hk_dialing d = {.settings = b->o.settings,
                  .hello = h,
                  .secret = b->family->secret,
                  .whom = whom,
                  .wait = env,
                  .advice = advice,
                  .patience_ns = 1000000000};
  if (h->kind == HK_HELLO_DATA) d.slow_ns = (uint64_t)b->o.settings->PEER_TIMEOUT * 1000000000u;
  if (at) {
    d.at[d.n] = *at;
    hk_addr_set_port(&d.at[d.n++], hk_addr_port(&c.at[0]));
  }
  overlay_dial_add(b, &c, &d);
  return hk_boot_dial(&d, fd);
}

hk_probe hk_overlay_probe(hk_bootstrap *b, const hk_contact *c, const hk_hello *h, uint32_t most, uint64_t deadline_ns,
                          hk_ack *ack, uint8_t activity[HK_ACTIVITY_BYTES]) {
  hk_wait_env env = {.deadline_ns = deadline_ns};
  hk_dialing d = {.settings = b->o.settings,
                  .hello = h,
                  .secret = b->family->secret,
                  .whom = "the rank",
                  .advice = "",
                  .wait = &env};
  overlay_dial_add(b, c, &d);
  if (d.n > most) d.n = most;
  return hk_boot_probe(&d, ack, activity, HK_ACTIVITY_BYTES);
}
