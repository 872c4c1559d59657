/* SPDX-License-Identifier: Apache-2.0 */
/* Links of a GPU. Makes each end as the kernels see it (kernels/cuda/work.h), in memory from the pair's device links
 * (transport/device_links.h). */
#include "endpoints.h"
#include <stdlib.h>
#include <string.h>
#include "../transport/cuda/share.h"
#include "../transport/device_links.h"
#include "../transport/transport.h"
#include "gpu.h"
#include "links.h"
#include "process_group.h"
#include "proxy.h"

/* The layout of a link's memory: words, the receiver's counter, LL lines, LL128 lines, then data.  With
 * HK_DEVICE_CREDITS it also contains the sender's head and counter. */
enum { COUNTER_AT = 64 * 8 * HK_GPU_WORD_STRIDE, CREDIT_AT = COUNTER_AT + 128, LINES_AT = COUNTER_AT + 1024 };

static size_t endpoints_lines_bytes(const hk_transport_env *e) { return e->nslots * HK_GPU_LL_LINES(HK_GPU_LL_MAX); }
static size_t endpoints_wide_bytes(const hk_transport_env *e, unsigned can) {
  return can & HK_DEVICE_LINES ? (size_t)e->nslots * HK_GPU_WIDE_BYTES : 0;
}
/* The offset of the data. All memory before it begins as zeros. */
static size_t endpoints_data_at(const hk_transport_env *e, unsigned can) {
  return LINES_AT + endpoints_lines_bytes(e) + endpoints_wide_bytes(e, can);
}
static size_t endpoints_link_bytes(const hk_transport_env *e, unsigned can) {
  return endpoints_data_at(e, can) + (size_t)e->nslots * e->slot_bytes;
}

size_t hk_gpu_link_counters(void) { return LINES_AT; }
size_t hk_gpu_link_zeros(const hk_gpu_links *l, int peer) {
  return endpoints_data_at(l->env->env, l->routes[peer].can);
}

/* ---- between ranks of one process ---- */

static hk_status endpoints_make_fifo(ncclComm_t c, int from, int to, unsigned channel, hk_gpu_fifo **out) {
  hk_gpu_process_group *w = hk_gpu_of(c)->group;
  hk_gpu_fifo *f = calloc(1, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory for a link");
  *f = (hk_gpu_fifo){.from = from, .to = to, .channel = (uint16_t)channel};
  const hk_transport_env *e = hk_wire_env(c);
  const hk_gpu_route *route = &hk_gpu_of(c)->links->routes[from == c->rank ? to : from];
  hk_status rc =
      route->by->alloc(w->devices[to], endpoints_link_bytes(e, route->can), endpoints_data_at(e, route->can), &f->data);
  if (rc != HK_OK) {
    free(f);
    return rc;
  }
  f->next = w->fifos[from];
  w->fifos[from] = f;
  *out = f;
  return HK_OK;
}

/* The FIFO of the link; the first of the two ends that asks makes it. */
static hk_status endpoints_get_fifo(ncclComm_t c, int from, int to, unsigned channel, hk_gpu_fifo **out) {
  hk_status rc = HK_OK;
  hk_gpu_process_group *w = hk_gpu_of(c)->group;
  pthread_mutex_lock(&w->lock);
  hk_gpu_fifo *f = w->fifos[from];
  while (f && (f->to != to || f->channel != channel)) f = f->next;
  if (!f) rc = endpoints_make_fifo(c, from, to, channel, &f);
  pthread_mutex_unlock(&w->lock);
  *out = f;
  return rc;
}

/* ---- ends ---- */

static hk_gpu_endpoint *endpoints_find_end(ncclComm_t c, int peer, bool sends, unsigned channel) {
  hk_gpu_endpoint *x = hk_gpu_of(c)->links->ends[sends][peer];
  while (x && x->channel != channel) x = x->next;
  return x;
}

/* The new end owns `shared`, if that is not NULL. */
static hk_status endpoints_add_end(ncclComm_t c, int peer, bool sends, unsigned channel, void *base,
                                   const hk_shared *shared, hk_gpu_endpoint **out) {
  const hk_transport_env *e = hk_wire_env(c);
  hk_gpu_endpoint **list = &hk_gpu_of(c)->links->ends[sends][peer], *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for a link");
  const unsigned can = hk_gpu_of(c)->links->routes[peer].can;
  char *at = base, *credit = can & HK_DEVICE_CREDITS ? at + CREDIT_AT
                             : sends                 ? hk_gpu_credit(c, c->rank, peer, channel)
                                                     : hk_gpu_credit(c, peer, c->rank, channel);
  if (shared) x->shared = *shared;
  x->channel = (uint16_t)channel;
  x->link = (hk_gpu_link){.done = (uint64_t *)(void *)(sends ? credit + HK_GPU_SENT_AT : at + COUNTER_AT),
                          .head = (uint64_t *)(void *)credit,
                          .word = (uint64_t *)(void *)at,
                          .data = at + endpoints_data_at(e, can),
                          .lines = at + LINES_AT,
                          .slot_bytes = (uint32_t)e->slot_bytes,
                          .nslots = e->nslots,
                          .peer = peer,
                          .sends = sends};
  if (can & HK_DEVICE_LINES) {
    x->link.wide = at + LINES_AT + endpoints_lines_bytes(e);
    x->link.wide_bytes = HK_GPU_WIDE_BYTES;
  }
  /* A device can read all of its own memory, which has one address in a process.  Another device's memory it can read
   * only if CUDA has mapped it, and not all user memory is mapped. */
  if (can & HK_DEVICE_LOCAL && sends && !hk_gpu_is_remote(c, peer)) x->link.refs = HK_GPU_REF_MIN;
  x->next = *list;
  *list = x;
  *out = x;
  return HK_OK;
}

/* ---- proxied links: this end has memory of its own, and the proxy moves its slots ---- */

static hk_status endpoints_open_proxied(ncclComm_t c, const hk_link_key *key, hk_gpu_link *link) {
  HK_OR_RETURN(hk_gpu_proxy_make(c));
  return hk_gpu_proxy_add(hk_gpu_of(c)->links->proxy, hk_wire_state(c, key->peer), key, link);
}

static hk_status endpoints_add_proxied_end(ncclComm_t c, int peer, bool sends, unsigned channel,
                                           hk_gpu_endpoint **out) {
  hk_status rc = HK_OK;
  const hk_transport_env *e = hk_wire_env(c);
  hk_gpu_endpoint **list = &hk_gpu_of(c)->links->ends[sends][peer], *x = calloc(1, sizeof *x);
  hk_link_key key = {.peer = peer, .kind = sends ? HK_LINK_SEND : HK_LINK_RECV, .channel = (uint8_t)channel};
  if (!x) return HK_FAIL_ERRNO("no memory for a link");
  x->channel = (uint16_t)channel;
  x->link = (hk_gpu_link){.done = (uint64_t *)(void *)(hk_gpu_credit(c, c->rank, peer, channel) +
                                                       (sends ? HK_GPU_SENT_AT : HK_GPU_RECEIVED_AT)),
                          .slot_bytes = (uint32_t)e->slot_bytes,
                          .nslots = e->nslots,
                          .peer = peer,
                          .sends = sends,
                          .proxied = 1};
  HK_TRY(endpoints_open_proxied(c, &key, &x->link), undo);
  x->next = *list;
  *list = *out = x;
  return HK_OK;
undo:
  free(x);
  return rc;
}

/* Between processes.  The receiver makes the memory and sends an offer; the sender waits for it. */
static hk_status endpoints_add_shared_end(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_endpoint **out) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  const hk_transport_env *e = hk_wire_env(c);
  const hk_gpu_route *route = &g->links->routes[peer];
  hk_shared shared = {.region = 0};
  hk_share_offer offer = {.region = 0};
  if (sends) {
    HK_TRY(hk_share_receive(g->links->env, peer, channel, &offer), undo);
    HK_TRY(route->by->open(g->links->env, peer, &offer, &shared), undo);
  } else {
    HK_TRY(route->by->make(g->links->env, endpoints_link_bytes(e, route->can), endpoints_data_at(e, route->can),
                           &shared, &offer),
           undo);
    HK_TRY(hk_share_send(g->links->env, peer, channel, &offer), undo);
  }
  HK_TRY(endpoints_add_end(c, peer, sends, channel, shared.memory.base, &shared, out), undo);
  return HK_OK;
undo:
  hk_share_drop(g->device, &shared);
  return rc;
}

hk_status hk_gpu_endpoint_get(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_endpoint **out) {
  hk_gpu_fifo *f;
  if ((*out = endpoints_find_end(c, peer, sends, channel))) return HK_OK;
  if (hk_gpu_is_proxied(hk_gpu_of(c)->links, peer)) return endpoints_add_proxied_end(c, peer, sends, channel, out);
  if (hk_gpu_is_remote(c, peer)) return endpoints_add_shared_end(c, peer, sends, channel, out);
  HK_OR_RETURN(endpoints_get_fifo(c, sends ? c->rank : peer, sends ? peer : c->rank, channel, &f));
  return endpoints_add_end(c, peer, sends, channel, f->data.base, NULL, out);
}

hk_status hk_gpu_endpoint_grow(ncclComm_t c, hk_gpu_endpoint *x, uint64_t bytes) {
  const hk_link_key key = {
      .peer = x->link.peer, .kind = x->link.sends ? HK_LINK_SEND : HK_LINK_RECV, .channel = (uint8_t)x->channel};
  if (x->link.data || bytes <= HK_LINK_SMALL) return HK_OK;
  x->device = NULL; /* the old copy stays valid for earlier launches */
  return hk_gpu_proxy_grow(hk_gpu_of(c)->links->proxy, &key, &x->link);
}

hk_status hk_gpu_endpoint_offer(ncclComm_t c, int peer, bool sends, unsigned channel) {
  hk_gpu_endpoint *x;
  return sends || !hk_gpu_is_remote(c, peer) ? HK_OK : hk_gpu_endpoint_get(c, peer, sends, channel, &x);
}

void hk_gpu_endpoints_free(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  for (int s = 0; s < 2; s++) {
    for (int r = 0; g->links->ends[s] && r < c->nranks; r++) {
      while (g->links->ends[s][r]) {
        hk_gpu_endpoint *x = g->links->ends[s][r];
        g->links->ends[s][r] = x->next;
        hk_share_drop(g->device, &x->shared);
        free(x);
      }
    }
    free(g->links->ends[s]);
  }
  for (int r = 0; g->links->opened && r < c->nranks; r++)
    (void)g->device->ops->memory->release(g->device, &g->links->opened[r]);
  free(g->links->opened);
  free(g->links->opened_at);
  free(g->links->peers);
  free(g->links->routes);
}
