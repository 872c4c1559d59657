/* SPDX-License-Identifier: Apache-2.0 */
/* The placement of ranks on which programs depend: which ranks share a host, and the order of ranks in rings.
 * Immutable, equal on all ranks. A NULL layout means one host and rings in the order of ranks. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

typedef struct hk_layout {
  int nranks, nhosts;
  int most, least; /* ranks of the largest and the smallest host */
  int32_t *host;   /* [nranks] numbered in the order of their first ranks */
  /* [nranks] the position among its host's ranks; equal positions of different hosts are on one rail */
  int32_t *local;
  int32_t *first;  /* [nhosts + 1] host h has ranks[first[h]] to ranks[first[h + 1] - 1] */
  int32_t *ranks;  /* [nranks] host after host, in the order of positions */
  int nchannels;   /* the number of ring orders, at least 1 */
  int32_t *order;  /* [nchannels][nranks] the rank at each position of the ring; hosts are contiguous */
  int32_t *places; /* [nchannels][nranks] the inverse: each rank's position */
  /* In every order and in `ranks`, the rank at place i + period is the rank at place i plus the period, modulo nranks.
   * It is 1, the number of a host's ranks, or nranks. */
  int period;
} hk_layout;

/* `host` [nranks]: any number for each rank, equal on one host (values are only compared). `local` (may be NULL: in the
 * order of ranks) sorts the ranks of a host. `order` [nchannels][nranks] (may be NULL: one channel, host after
 * host). */
hk_status hk_layout_new(hk_layout **out, int nranks, const uint64_t *host, const int *local, const int32_t *order,
                        int nchannels);
/* Ranks divided among hosts as evenly as possible, neighbours together. *out is NULL with one host. */
hk_status hk_layout_even(hk_layout **out, int nranks, int nhosts);
void hk_layout_free(hk_layout *l); /* NULL is fine */

static inline int hk_layout_hosts(const hk_layout *l) { return l ? l->nhosts : 1; }
static inline int hk_layout_rank(const hk_layout *l, int host, int local) {
  return l ? l->ranks[l->first[host] + local] : local;
}
/* The host of the lowest of all ranks with this local number: groups of the network count from it on
 * (HK_LINK_GATHER_SEND). All hosts have such a rank. */
static inline int hk_layout_first_host(const hk_layout *l, int local) {
  int first = 0;
  for (int h = 1; h < hk_layout_hosts(l); h++)
    if (hk_layout_rank(l, h, local) < hk_layout_rank(l, first, local)) first = h;
  return first;
}
static inline int hk_layout_host_of(const hk_layout *l, int rank) { return l ? l->host[rank] : 0; }
static inline int hk_layout_local_of(const hk_layout *l, int rank) { return l ? l->local[rank] : rank; }
static inline int hk_layout_size(const hk_layout *l, int host, int nranks) {
  return l ? l->first[host + 1] - l->first[host] : nranks;
}
static inline int hk_layout_period(const hk_layout *l) { return l ? l->period : 1; }
/* Ring orders; any channel number. */
static inline int hk_layout_place(const hk_layout *l, int channel, int rank) {
  return l ? l->places[(size_t)(channel % l->nchannels) * (size_t)l->nranks + (size_t)rank] : rank;
}
static inline int hk_layout_at(const hk_layout *l, int channel, int place) {
  return l ? l->order[(size_t)(channel % l->nchannels) * (size_t)l->nranks + (size_t)place] : place;
}
/* The rank that is on ring order `to` where this one is on `from`: as far from the root, or (root -1) at its place. */
static inline int hk_layout_moved(const hk_layout *l, int from, int to, int root, int rank) {
  int place = hk_layout_place(l, from, rank);
  if (root >= 0) place += hk_layout_place(l, to, root) + l->nranks - hk_layout_place(l, from, root);
  return hk_layout_at(l, to, place % l->nranks);
}
