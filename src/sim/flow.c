/* SPDX-License-Identifier: Apache-2.0 */
/* Max-min fair sharing of resources by flows, and the heap of events (flow.h). */
#include "flow.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"

/* Relative: capacities within it are equal. */
#define SAME 1e-9
#define LEAST 1e-6 /* bytes/us: a rate that rounding made 0 */

/* ---- the heap ---- */

static inline bool flow_earlier(const hk_sim_event *a, const hk_sim_event *b) {
  return a->at < b->at || (a->at == b->at && a->id < b->id);
}

static void flow_put(hk_net *n, uint32_t i, hk_sim_event *e) {
  n->heap[i] = e;
  e->place = i + 1;
}

static void flow_rise(hk_net *n, uint32_t i, hk_sim_event *e) {
  while (i && flow_earlier(e, n->heap[(i - 1) / 2])) {
    flow_put(n, i, n->heap[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  flow_put(n, i, e);
}

static void flow_sink(hk_net *n, uint32_t i, hk_sim_event *e) {
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= n->nheap) break;
    if (child + 1 < n->nheap && flow_earlier(n->heap[child + 1], n->heap[child])) child++;
    if (!flow_earlier(n->heap[child], e)) break;
    flow_put(n, i, n->heap[child]);
    i = child;
  }
  flow_put(n, i, e);
}

hk_status hk_net_at(hk_net *n, hk_sim_event *e, double at) {
  if (!e->place) {
    if (!HK_RESERVE(n->heap, n->heap_capacity, n->nheap + 1))
      return HK_FAIL_ERRNO("no memory for %u events", n->nheap + 1);
    e->at = at;
    flow_rise(n, n->nheap++, e);
    return HK_OK;
  }
  uint32_t i = e->place - 1;
  bool sooner = at < e->at;
  e->at = at;
  if (sooner)
    flow_rise(n, i, e);
  else
    flow_sink(n, i, e);
  return HK_OK;
}

static void flow_cancel(hk_net *n, hk_sim_event *e) {
  if (!e->place) return;
  uint32_t i = e->place - 1;
  hk_sim_event *last = n->heap[--n->nheap];
  e->place = 0;
  if (last == e) return;
  if (i && flow_earlier(last, n->heap[(i - 1) / 2]))
    flow_rise(n, i, last);
  else
    flow_sink(n, i, last);
}

/* ---- resources and flows ---- */

void hk_net_free(hk_net *n) {
  free(n->resources);
  free(n->heap);
  free(n->dirty);
  free(n->found);
  free(n->tight);
  *n = (hk_net){0};
}

hk_status hk_net_add(hk_net *n, double capacity, uint32_t *out) {
  if (n->nresources == n->capacity) {
    uint32_t most = n->capacity ? 2 * n->capacity : 256;
    hk_resource *grown = realloc(n->resources, most * sizeof *grown);
    if (grown) n->resources = grown;
    uint32_t *dirty = grown ? realloc(n->dirty, most * sizeof *dirty) : NULL;
    if (dirty) n->dirty = dirty;
    uint32_t *tight = dirty ? realloc(n->tight, most * sizeof *tight) : NULL;
    if (!tight) return HK_FAIL_ERRNO("no memory for %u resources of the simulator", most);
    n->tight = tight;
    n->capacity = most;
  }
  n->resources[n->nresources] = (hk_resource){.capacity = capacity};
  *out = n->nresources++;
  return HK_OK;
}

void hk_flow_clear(hk_flow *f) {
  free(f->entries);
  *f = (hk_flow){0};
}

hk_status hk_flow_use(hk_net *n, hk_flow *f, uint32_t resource, double weight) {
  (void)n;
  for (uint32_t i = 0; i < f->n; i++) {
    if (f->entries[i].resource != resource) continue;
    f->entries[i].weight += (float)weight;
    return HK_OK;
  }
  if (!HK_RESERVE(f->entries, f->capacity, f->n + 1))
    return HK_FAIL_ERRNO("no memory for a flow over %u links", f->n + 1);
  f->entries[f->n++] = (hk_flow_entry){.flow = f, .resource = resource, .weight = (float)weight};
  return HK_OK;
}

static inline bool flow_is_tight(const hk_resource *r) { return r->wanted > r->capacity * (1 + SAME); }

static void flow_touch(hk_net *n, uint32_t resource) {
  hk_resource *r = &n->resources[resource];
  if (r->dirty) return;
  r->dirty = true;
  n->dirty[n->ndirty++] = resource;
}

static hk_status flow_set_rate(hk_net *n, hk_flow *f, double rate) {
  if (rate < LEAST) rate = LEAST;
  if (fabs(rate - f->rate) <= f->rate * SAME && f->end.place) return HK_OK;
  f->left -= f->rate * (n->now - f->since);
  if (f->left < 0) f->left = 0;
  f->since = n->now;
  f->rate = rate;
  return hk_net_at(n, &f->end, n->now + f->left / rate);
}

hk_status hk_flow_start(hk_net *n, hk_flow *f, double bytes, double limit) {
  bool alone = true;
  for (uint32_t i = 0; i < f->n; i++) {
    const hk_flow_entry *e = &f->entries[i];
    double most = n->resources[e->resource].capacity / e->weight;
    if (most < limit) limit = most;
  }
  f->left = bytes;
  f->since = n->now;
  f->rate = 0;
  f->limit = limit;
  for (uint32_t i = 0; i < f->n; i++) {
    hk_flow_entry *e = &f->entries[i];
    hk_resource *r = &n->resources[e->resource];
    e->next = r->flows;
    e->link = &r->flows;
    if (e->next) e->next->link = &e->next;
    r->flows = e;
    r->wanted += e->weight * limit;
    r->carried += e->weight * bytes;
    if (!flow_is_tight(r)) continue;
    flow_touch(n, e->resource);
    alone = false;
  }
  f->held = UINT32_MAX;
  return alone ? flow_set_rate(n, f, limit) : HK_OK;
}

void hk_flow_stop(hk_net *n, hk_flow *f) {
  flow_cancel(n, &f->end);
  for (uint32_t i = 0; i < f->n; i++) {
    hk_flow_entry *e = &f->entries[i];
    hk_resource *r = &n->resources[e->resource];
    if (flow_is_tight(r)) flow_touch(n, e->resource);
    *e->link = e->next;
    if (e->next) e->next->link = e->link;
    r->wanted = r->flows ? r->wanted - e->weight * f->limit : 0;
  }
}

/* ---- rates ---- */

static hk_status flow_find_flow(hk_net *n, hk_flow *f) {
  if (f->stamp == n->stamp) return HK_OK;
  if (!HK_RESERVE(n->found, n->found_capacity, n->nfound + 1))
    return HK_FAIL_ERRNO("no memory for %u flows", n->nfound + 1);
  f->stamp = n->stamp;
  n->found[n->nfound++] = f;
  return HK_OK;
}

/* All flows of a resource are computed from here on. */
static hk_status flow_take_whole(hk_net *n, uint32_t resource) {
  hk_resource *r = &n->resources[resource];
  r->whole = n->stamp;
  r->dirty = false;
  if (r->stamp != n->stamp) {
    r->stamp = n->stamp;
    n->tight[n->ntight++] = resource;
  }
  for (hk_flow_entry *e = r->flows; e; e = e->next) {
    hk_flow *f = e->flow;
    if (f->stamp == n->stamp) continue;
    HK_OR_RETURN(flow_find_flow(n, f));
    for (uint32_t i = 0; i < f->n; i++) {
      hk_resource *other = &n->resources[f->entries[i].resource];
      if (other->stamp == n->stamp || !(other->dirty || flow_is_tight(other))) continue;
      other->stamp = n->stamp;
      n->tight[n->ntight++] = f->entries[i].resource;
    }
  }
  return HK_OK;
}

/* Computes which part of each resource is left for the flows that are computed. */
static void flow_share_out(hk_net *n) {
  for (uint32_t t = 0; t < n->ntight; t++) {
    hk_resource *r = &n->resources[n->tight[t]];
    r->left = r->capacity;
    r->weight = 0;
    for (hk_flow_entry *e = r->flows; e; e = e->next) {
      if (e->flow->stamp == n->stamp)
        r->weight += e->weight;
      else
        r->left -= e->weight * e->flow->rate;
    }
    if (r->left < 0) r->left = 0;
  }
  for (uint32_t i = 0; i < n->nfound; i++) n->found[i]->fixed = false;
}

static void flow_fix(hk_net *n, hk_flow *f, double rate, uint32_t held) {
  f->fixed = true;
  f->next = rate;
  f->held = held;
  for (uint32_t i = 0; i < f->n; i++) {
    hk_resource *r = &n->resources[f->entries[i].resource];
    if (r->stamp != n->stamp) continue;
    r->left -= f->entries[i].weight * rate;
    r->weight -= f->entries[i].weight;
    if (r->left < 0) r->left = 0;
  }
}

enum { WEIGHTLESS = 1000000 }; /* one part in so many of a weight is rounding */

/* The rate to which all loose flows can rise before a resource is full. Moves resources without loose flows to the end
 * of the list; the first *live resources of the list remain. */
static double flow_next_level(hk_net *n, uint32_t *live) {
  double level = HUGE_VAL;
  for (uint32_t t = 0; t < *live;) {
    uint32_t resource = n->tight[t];
    const hk_resource *r = &n->resources[resource];
    if (r->weight <= 1.0 / WEIGHTLESS) {
      n->tight[t] = n->tight[--*live];
      n->tight[*live] = resource;
      continue;
    }
    if (r->left < level * r->weight) level = r->left / r->weight;
    t++;
  }
  return level;
}

/* Raises all rates together. A flow that meets its own limit or a full resource keeps its rate. */
static void flow_fill(hk_net *n) {
  uint32_t live = n->ntight, fixed = 0;
  double least = 0; /* a lower bound of the loose flows' limits */
  n->solved += n->nfound;
  flow_share_out(n);
  while (fixed < n->nfound) {
    double level = flow_next_level(n, &live);
    uint32_t before = fixed;
    if (least <= level * (1 + SAME)) {
      least = HUGE_VAL;
      for (uint32_t i = 0; i < n->nfound; i++) {
        hk_flow *f = n->found[i];
        if (f->fixed) continue;
        if (f->limit <= level * (1 + SAME))
          flow_fix(n, f, f->limit, UINT32_MAX), fixed++;
        else if (f->limit < least)
          least = f->limit;
      }
    }
    if (fixed > before) continue;
    for (uint32_t t = 0; t < live; t++) {
      const hk_resource *r = &n->resources[n->tight[t]];
      if (r->left > level * r->weight * (1 + SAME)) continue;
      for (hk_flow_entry *e = r->flows; e; e = e->next)
        if (e->flow->stamp == n->stamp && !e->flow->fixed) flow_fix(n, e->flow, level, n->tight[t]), fixed++;
    }
  }
}

/* True if the result is fair on a resource for which only some flows were computed. */
static bool flow_is_fair(const hk_net *n, uint32_t resource) {
  const hk_resource *r = &n->resources[resource];
  bool full = r->left <= r->capacity * SAME * 10;
  /* least: of the flows that this resource limits */
  double most_in = 0, most_out = 0, least_in = HUGE_VAL, least_out = HUGE_VAL;
  for (const hk_flow_entry *e = r->flows; e; e = e->next) {
    const hk_flow *f = e->flow;
    bool in = f->stamp == n->stamp, held = f->held == resource;
    double rate = in ? f->next : f->rate;
    double *most = in ? &most_in : &most_out, *least = in ? &least_in : &least_out;
    if (rate > *most) *most = rate;
    if (held && rate < *least) *least = rate;
  }
  if (!full) return least_out == HUGE_VAL; /* a resource that is not full must not limit any flow */
  return least_in >= most_out * (1 - SAME * 10) && least_out >= most_in * (1 - SAME * 10);
}

enum { ROUNDS = 3 }; /* after that, all reachable flows are computed at once */

static hk_status flow_settle(hk_net *n) {
  n->stamp++;
  n->nfound = n->ntight = 0;
  for (uint32_t i = 0; i < n->ndirty; i++)
    if (n->resources[n->dirty[i]].dirty) HK_OR_RETURN(flow_take_whole(n, n->dirty[i]));
  for (int round = 0;; round++) {
    bool fair = true;
    flow_fill(n);
    for (uint32_t t = 0; t < n->ntight; t++) {
      if (n->resources[n->tight[t]].whole == n->stamp || (round < ROUNDS && flow_is_fair(n, n->tight[t]))) continue;
      HK_OR_RETURN(flow_take_whole(n, n->tight[t]));
      fair = false;
    }
    if (fair) break;
  }
  for (uint32_t i = 0; i < n->nfound; i++) HK_OR_RETURN(flow_set_rate(n, n->found[i], n->found[i]->next));
  n->ndirty = 0;
  return HK_OK;
}

hk_status hk_net_next(hk_net *n, hk_sim_event **out) {
  *out = NULL;
  /* Changes at the same time change rates only once. */
  if (n->ndirty && (!n->nheap || n->heap[0]->at > n->now)) HK_OR_RETURN(flow_settle(n));
  if (!n->nheap) return HK_OK;
  *out = n->heap[0];
  if ((*out)->at > n->now) n->now = (*out)->at;
  flow_cancel(n, *out);
  return HK_OK;
}
