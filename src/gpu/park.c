/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a communicator's GPU memory back and gets it again (ncclCommSuspend, ncclCommResume).
 *
 * The addresses stay reserved, so plans, links and captured graphs stay valid.  A rank gives back its own memory: the
 * links on which it receives, its credits, its scratch.  Only counters and words have a meaning between calls; they are
 * copied to the host.  Data and lines begin anew, as in a new link.  Mappings of other processes' memory are removed,
 * and made again at the same addresses. */
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../core/backend.h"
#include "../transport/cuda/multicast.h"
#include "endpoints.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "peers.h"
#include "process_group.h"
#include "proxy.h"
#include "window.h"

/* Memory that a communicator gives back. */
typedef struct hk_gpu_parked {
  hk_memory *memory;
  /* keep: bytes at its beginning that are saved on the host; zeroed: bytes at its beginning that are zeros on resume,
   * before the saved bytes are copied back */
  size_t keep, zeroed;
  void *copy;
  hk_gpu_endpoint *end; /* the end to which the memory belongs, between processes; NULL: none */
  int peer;             /* rank whose memory this rank has opened; -1: own memory */
} hk_gpu_parked;

struct hk_gpu_suspended {
  size_t n;
  hk_gpu_parked *memory; /* [n] */
};

typedef struct visitor {
  hk_gpu_parked *at; /* NULL: the memory is only counted */
  size_t n;
  uint64_t may, stays; /* bytes of own memory that can be given back; that cannot */
} visitor;

static void park_visit(visitor *v, hk_memory *m, size_t keep, size_t zeroed, hk_gpu_endpoint *end, int peer) {
  const bool opened = m->kind == HK_MEMORY_MAPPED;
  if (!m->base || m->kind == HK_MEMORY_NONE) return; /* part of other memory (pool.c, arena.c) */
  if (m->kind == HK_MEMORY_VMM && !m->host) v->may += m->bytes;
  if (m->kind == HK_MEMORY_CLASSIC) v->stays += m->bytes;
  /* Memory shared by a driver's handle: it cannot be mapped at its old address. */
  if (m->kind == HK_MEMORY_CLASSIC || m->kind == HK_MEMORY_OPENED) return;
  if (v->at) v->at[v->n] = (hk_gpu_parked){m, keep, zeroed, NULL, end, opened ? peer : -1};
  v->n++;
}

static void park_visit_payload(void *v, hk_memory *m) { park_visit(v, m, 0, 0, NULL, -1); }

/* Visits all GPU memory that this rank has for the communicator. */
static void park_visit_all(ncclComm_t c, visitor *v) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_process_group *w = g->group;
  const size_t credits = hk_gpu_credit_bytes(c->nranks), used = g->memory->first_chunk->used;
  /* The first chunk of the arena, with plans, lies after the credits and must be kept, too. */
  const size_t keep = used ? (size_t)(g->memory->first_chunk->at - (char *)w->credits[c->rank].base) + used : credits;
  pthread_mutex_lock(&w->lock);
  for (int r = 0; r < c->nranks; r++)
    for (hk_gpu_fifo *f = w->fifos[r]; f; f = f->next)
      if (f->to == c->rank) park_visit(v, &f->data, hk_gpu_link_counters(), hk_gpu_link_zeros(g->links, r), NULL, -1);
  pthread_mutex_unlock(&w->lock);
  park_visit(v, &w->credits[c->rank], keep, credits, NULL, -1);
  for (hk_gpu_chunk *k = g->memory->arena; k; k = k->next) park_visit(v, &k->memory, k->used, 0, NULL, -1);
  for (int r = 0; r < c->nranks; r++) {
    park_visit(v, &g->links->opened[r], 0, 0, NULL, r);
    for (int s = 0; s < 2; s++)
      for (hk_gpu_endpoint *x = g->links->ends[s][r]; x; x = x->next)
        park_visit(v, &x->shared.memory, s ? 0 : hk_gpu_link_counters(), hk_gpu_link_zeros(g->links, r), x, r);
  }
  park_visit(v, &g->memory->scratch, 0, 0, NULL, -1);
  for (size_t i = 0; i < g->memory->nold; i++) park_visit(v, &g->memory->old[i], 0, 0, NULL, -1);
  hk_gpu_proxy_payloads(g->links->proxy, v->at != NULL, park_visit_payload, v);
  for (hk_gpu_chunk *k = g->memory->pinned[HK_GPU_PINNED_PAYLOADS];
       k && (!v->at || hk_gpu_proxy_rests(g->links->proxy)); k = k->next)
    park_visit(v, &k->memory, 0, 0, NULL, -1);
  v->stays += g->memory->pooled.bytes + g->links->page.bytes + hk_gpu_windows_held(g->windows);
  if (g->in_switch) {
    hk_multicast *m = w->multicast;
    const int place = hk_multicast_place(&m->team, c->rank);
    park_visit(v, &m->own[place], hk_multicast_signals(m), hk_multicast_zeroed(m), NULL, -1);
    park_visit(v, &m->all[place], 0, 0, NULL, -1);
  }
}

static void park_held(ncclComm_t c, uint64_t *may, uint64_t *stays) {
  visitor v = {0};
  park_visit_all(c, &v);
  *may = v.may;
  *stays = v.stays;
}

void hk_gpu_suspended_free(struct hk_gpu_suspended **suspended) {
  struct hk_gpu_suspended *s = *suspended;
  *suspended = NULL;
  for (size_t i = 0; s && i < s->n; i++) free(s->memory[i].copy);
  if (s) free(s->memory);
  free(s);
}

static hk_status park_save(hk_gpu *g, hk_gpu_parked *p) {
  if (!p->keep) return HK_OK;
  p->copy = malloc(p->keep);
  if (!p->copy) return HK_FAIL_ERRNO("no memory for the counters of a link");
  return g->device->ops->copy(g->device, p->copy, p->memory->base, p->keep, g->queue);
}

static hk_status park_suspend(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_device_ops *ops = g->device->ops;
  visitor v = {0};
  HK_OR_RETURN(ops->finish(g->device)); /* replays of captured graphs, too */
  HK_OR_RETURN(hk_gpu_proxy_settle(g->links->proxy));
  HK_OR_RETURN(hk_gpu_exchange(c, NULL, 0));
  hk_gpu_proxy_pause(g->links->proxy);
  HK_OR_RETURN(hk_gpu_exchange(c, NULL, 0));
  HK_OR_RETURN(hk_gpu_proxy_rest(g->links->proxy, true));
  park_visit_all(c, &v);
  struct hk_gpu_suspended *s = calloc(1, sizeof *s);
  if (s) s->memory = calloc(v.n ? v.n : 1, sizeof *s->memory);
  if (!s || !s->memory) {
    free(s);
    return HK_FAIL_ERRNO("no memory to suspend a communicator");
  }
  g->suspended = s;
  v = (visitor){.at = s->memory};
  park_visit_all(c, &v);
  s->n = v.n;
  for (size_t i = 0; i < v.n; i++) HK_OR_RETURN(park_save(g, &v.at[i]));
  HK_OR_RETURN(ops->wait(g->device, g->queue));
  HK_OR_RETURN(hk_gpu_exchange(c, NULL, 0)); /* after all ranks have saved the credits, which peers write */
  for (size_t i = v.n; i-- > 0;)
    HK_OR_RETURN(ops->memory->park(g->device, v.at[i].memory)); /* leaves the switch first */
  for (size_t i = 0; i < v.n; i++) {
    if (!v.at[i].end || v.at[i].peer >= 0 || v.at[i].memory->kind == HK_MEMORY_REGISTERED) continue;
    hk_share_withdraw(v.at[i].end->shared.region);
    v.at[i].end->shared.region = 0;
  }
  HK_INFO(HK_SUB_ALLOC, "rank %d of %d: %.1f MB of GPU memory are given back, %.1f MB stay", c->rank, c->nranks,
          (double)v.may / 1e6, (double)v.stays / 1e6);
  return HK_OK;
}

/* Gets this rank's own memory again, and restores its counters. */
static hk_status park_get_again(ncclComm_t c, hk_gpu_parked *p) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_device_ops *ops = g->device->ops;
  hk_multicast *m = g->group->multicast;
  if (p->memory->kind == HK_MEMORY_MULTICAST)
    return ops->multicast->again(g->device, &m->own[hk_multicast_place(&m->team, c->rank)], p->memory);
  HK_OR_RETURN(ops->memory->unpark(g->device, p->memory, NULL, p->zeroed, g->queue));
  if (p->keep) HK_OR_RETURN(ops->copy(g->device, p->memory->base, p->copy, p->keep, g->queue));
  return HK_OK;
}

/* ---- what other processes open again ---- */

/* Memory of a link that the receiver offers to its sender. */
typedef struct link_offer {
  uint64_t region, bytes;
  uint32_t kind, peer, channel, unused;
} link_offer;
/* First exchange: one row for each rank. */
typedef struct row {
  hk_share_offer credits;
  uint64_t links; /* number of links that the rank offers */
} row;

/* Links in pinned memory stay mapped in both processes. */
static bool park_is_offered(const hk_gpu_parked *p) {
  return p->end && p->peer < 0 && p->memory->kind != HK_MEMORY_REGISTERED;
}

static hk_status park_offer_links(ncclComm_t c, link_offer *mine) {
  const hk_gpu *g = hk_gpu_of(c);
  hk_share_offer offer;
  for (size_t i = 0; i < g->suspended->n; i++) {
    const hk_gpu_parked *p = &g->suspended->memory[i];
    if (!park_is_offered(p)) continue;
    HK_OR_RETURN(hk_share_offer_memory(g->links->env, p->memory, true, &offer));
    p->end->shared.region = offer.region;
    *mine++ = (link_offer){
        offer.region, offer.share.bytes, offer.share.kind, (uint32_t)p->end->link.peer, p->end->channel, 0};
  }
  return HK_OK;
}

static hk_status park_reopen_link(ncclComm_t c, const hk_gpu_parked *p, const link_offer *theirs, size_t n) {
  const link_offer *o = theirs;
  while (o < theirs + n && !(o->region && (int)o->peer == c->rank && o->channel == p->end->channel)) o++;
  if (o == theirs + n)
    return HK_FAIL(HK_ERR_INTERNAL, "rank %d does not offer its link from rank %d on channel %u again", p->peer,
                   c->rank, p->end->channel);
  const hk_share_offer offer = {.region = o->region, .share = {.bytes = o->bytes, .kind = o->kind, .fd = -1}};
  return hk_share_reopen(hk_gpu_of(c)->links->env, p->peer, &offer, p->memory);
}

/* All offers go in two exchanges: a connection for each offer took most of the time. */
static hk_status park_open_again(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  link_offer *links = NULL;
  size_t most = 0;
  row *rows = calloc((size_t)c->nranks, sizeof *rows);
  if (!rows) return HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
  HK_TRY(hk_gpu_credits_offer(c, &rows[c->rank].credits), out);
  for (size_t i = 0; i < g->suspended->n; i++) rows[c->rank].links += park_is_offered(&g->suspended->memory[i]);
  HK_TRY(hk_gpu_exchange(c, rows, sizeof *rows), out);
  for (int r = 0; r < c->nranks; r++)
    if (rows[r].links > most) most = rows[r].links;
  links = calloc((size_t)c->nranks * most + 1, sizeof *links);
  if (!links) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for %zu links of %d ranks", most, c->nranks), out);
  HK_TRY(park_offer_links(c, links + (size_t)c->rank * most), out);
  if (most) HK_TRY(hk_gpu_exchange(c, links, most * sizeof *links), out);
  for (size_t i = 0; i < g->suspended->n; i++) {
    const hk_gpu_parked *p = &g->suspended->memory[i];
    if (p->peer < 0) continue;
    if (p->end)
      HK_TRY(park_reopen_link(c, p, links + (size_t)p->peer * most, rows[p->peer].links), out);
    else
      HK_TRY(hk_share_reopen(g->links->env, p->peer, &rows[p->peer].credits, p->memory), out);
  }
  HK_TRY(hk_gpu_exchange(c, NULL, 0), out); /* all have opened the credits */
out:
  hk_share_withdraw(rows[c->rank].credits.region);
  free(links);
  free(rows);
  return rc;
}

static hk_status park_resume(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  for (size_t i = 0; i < g->suspended->n; i++)
    if (g->suspended->memory[i].peer < 0) HK_OR_RETURN(park_get_again(c, &g->suspended->memory[i]));
  HK_OR_RETURN(g->device->ops->wait(g->device, g->queue));
  HK_OR_RETURN(hk_gpu_proxy_rest(g->links->proxy, false));
  hk_gpu_proxy_go_on(g->links->proxy);
  if (hk_gpu_processes(g->links) && hk_gpu_by_file(g->links)) HK_OR_RETURN(park_open_again(c));
  hk_gpu_suspended_free(&g->suspended);
  return HK_OK;
}

const hk_suspension_ops hk_gpu_suspension = {.suspend = park_suspend, .resume = park_resume, .held = park_held};
