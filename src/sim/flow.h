/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Flows that share resources, and the clock.
 *
 * A resource is anything with a capacity in bytes a microsecond: a link in one direction, a memory, a switch's uplink,
 * a host's cores. A flow moves bytes at one rate x and uses w * x of each of its resources. Rates are max-min fair: no
 * flow can get more unless a flow with less loses. Between events rates are constant. So the end of a flow is an event
 * whose time is known until a rate changes.
 *
 * After a change only the affected flows are computed again: the flows of the resources that changed, with all others
 * kept at their rates. If a flow's rate is then unfair, too low or too high, compared with a kept flow on a resource,
 * the other flows of that resource are computed too, and so on. A resource cannot be short if all its flows fit at
 * their own limits; most resources are like that, and are skipped.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

/* In the heap of the clock. Structs whose end is an event have it as their first member. */
typedef struct hk_sim_event {
  double at;
  uint32_t place; /* position in the heap + 1; 0: not in it */
  uint32_t id;    /* events of equal time are ordered by id */
} hk_sim_event;

typedef struct hk_use {
  uint32_t resource;
  float weight;
} hk_use;

struct hk_flow;
/* A flow's entry in a resource's list. */
typedef struct hk_flow_entry {
  struct hk_flow_entry *next, **link;
  struct hk_flow *flow;
  uint32_t resource;
  float weight;
} hk_flow_entry;

typedef struct hk_flow {
  hk_sim_event end;
  double left, rate, since; /* left: bytes at time `since`; rate: bytes/us */
  double limit;             /* its own maximum rate, bytes/us */
  double next;              /* its rate in the computation under way */
  uint32_t held;            /* the full resource that limits it, or UINT32_MAX: its own limit */
  uint32_t n, capacity;
  bool fixed;
  uint64_t stamp;
  hk_flow_entry *entries;
} hk_flow;

typedef struct hk_resource {
  double capacity;
  double wanted;  /* sum of its active flows' uses at their limits */
  double carried; /* bytes so far, those of active flows in full */
  hk_flow_entry *flows;
  double left, weight;   /* while rates are computed: capacity and weights of the flows that are computed */
  uint64_t stamp, whole; /* whole: all its flows are computed */
  bool dirty;
} hk_resource;

typedef struct hk_net {
  double now;
  hk_resource *resources;
  uint32_t nresources, capacity;
  hk_sim_event **heap;
  uint32_t nheap, heap_capacity;
  uint32_t *dirty; /* resources whose flows changed since the latest flow_settle */
  uint32_t ndirty;
  /* Temporary data of one computation. */
  hk_flow **found;
  uint32_t *tight;
  uint32_t nfound, found_capacity, ntight;
  uint64_t stamp;
  uint64_t solved; /* flows whose rates were computed, for tests of the engine's cost */
} hk_net;

void hk_net_free(hk_net *n);
hk_status hk_net_add(hk_net *n, double capacity, uint32_t *out);

void hk_flow_clear(hk_flow *f);
/* Adds a use to an inactive flow; a resource added twice counts twice. */
hk_status hk_flow_use(hk_net *n, hk_flow *f, uint32_t resource, double weight);
static inline void hk_flow_reset(hk_flow *f) { f->n = 0; }
/* Starts the flow now; `limit` is its own maximum rate. Its end is the event f->end. */
hk_status hk_flow_start(hk_net *n, hk_flow *f, double bytes, double limit);
/* To be called after hk_net_next has returned the flow's end. */
void hk_flow_stop(hk_net *n, hk_flow *f);

/* An event of another kind, at a time not before now. If it is in the heap already, it is moved. */
hk_status hk_net_at(hk_net *n, hk_sim_event *e, double at);
/* Computes the rates that changed, then takes the next event out of the heap and sets the clock; NULL: there are no
 * more events. */
hk_status hk_net_next(hk_net *n, hk_sim_event **out);
