/* SPDX-License-Identifier: Apache-2.0 */
/* Makes layouts: numbers hosts and local ranks, and inverts ring orders (layout.h). */
#include "layout.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "program.h"

typedef struct layout_key {
  uint64_t host;
  int local, rank;
} layout_key;

static int layout_by_place(const void *a, const void *b) {
  const layout_key *x = a, *y = b;
  if (x->host != y->host) return x->host < y->host ? -1 : 1; /* here a host's number */
  if (x->local != y->local) return x->local < y->local ? -1 : 1;
  return x->rank - y->rank;
}

typedef struct first_seen {
  uint64_t host;
  int rank;
} first_seen;
static int layout_by_host(const void *a, const void *b) {
  const first_seen *x = a, *y = b;
  if (x->host != y->host) return x->host < y->host ? -1 : 1;
  return x->rank - y->rank;
}
static int layout_by_rank(const void *a, const void *b) {
  const first_seen *x = a, *y = b;
  return x->rank - y->rank;
}

/* Numbers the hosts in the order of their first ranks: keys[r].host becomes that number. */
static hk_status layout_number_hosts(layout_key *keys, const uint64_t *host, int n, int *nhosts) {
  first_seen *seen = malloc(((size_t)n ? (size_t)n : 1) * sizeof *seen);
  if (!seen) return HK_FAIL_ERRNO("no memory for the hosts of %d ranks", n);
  for (int r = 0; r < n; r++) seen[r] = (first_seen){host[r], r};
  qsort(seen, (size_t)n, sizeof *seen, layout_by_host);
  /* Each rank gets its host's first rank; then the first ranks are counted. */
  int first = 0;
  for (int i = 0; i < n; i++) {
    if (i == 0 || host[seen[i].rank] != host[seen[i - 1].rank]) first = seen[i].rank;
    keys[seen[i].rank].host = (uint64_t)first;
    seen[i].host = (uint64_t)first;
  }
  qsort(seen, (size_t)n, sizeof *seen, layout_by_rank);
  int count = 0;
  for (int r = 0; r < n; r++) {
    int f = (int)seen[r].host;
    if (f == r)
      seen[r].host = (uint64_t)count++;
    else
      seen[r].host = seen[f].host; /* f < r: numbered already */
    keys[r].host = seen[r].host;
  }
  *nhosts = count;
  free(seen);
  return HK_OK;
}

static hk_status layout_make_room(hk_layout *l, int channels) {
  size_t n = (size_t)l->nranks, c = (size_t)channels;
  l->host = calloc(n, sizeof *l->host);
  l->local = calloc(n, sizeof *l->local);
  l->first = calloc(n + 1, sizeof *l->first);
  l->ranks = calloc(n, sizeof *l->ranks);
  l->order = calloc(n * c, sizeof *l->order);
  l->places = calloc(n * c, sizeof *l->places);
  if (!l->host || !l->local || !l->first || !l->ranks || !l->order || !l->places)
    return HK_FAIL_ERRNO("no memory for the layout of %d ranks", l->nranks);
  l->nchannels = channels;
  return HK_OK;
}

static void layout_place_hosts(hk_layout *l, const layout_key *keys) {
  l->least = l->nranks;
  for (int i = 0; i < l->nranks; i++) {
    int h = (int)keys[i].host, r = keys[i].rank;
    if (i == 0 || keys[i - 1].host != keys[i].host) l->first[h] = i;
    l->ranks[i] = r;
    l->host[r] = h;
    l->local[r] = i - l->first[h];
  }
  l->first[l->nhosts] = l->nranks;
  for (int h = 0; h < l->nhosts; h++) {
    const int size = l->first[h + 1] - l->first[h];
    if (size > l->most) l->most = size;
    if (size < l->least) l->least = size;
  }
}

/* Copies the orders and inverts them; every rank must be in each order once. */
static hk_status layout_place_order(hk_layout *l, const int32_t *order) {
  size_t n = (size_t)l->nranks;
  for (int c = 0; c < l->nchannels; c++) {
    int32_t *to = l->order + (size_t)c * n, *places = l->places + (size_t)c * n;
    memcpy(to, order ? order + (size_t)c * n : l->ranks, n * sizeof *to);
    memset(places, 0xff, n * sizeof *places);
    for (size_t i = 0; i < n; i++) {
      if (to[i] < 0 || to[i] >= l->nranks || places[to[i]] >= 0)
        return HK_FAIL(HK_ERR_ARGUMENT, "ring order %d names rank %d at place %zu, which %s", c, to[i], i,
                       to[i] < 0 || to[i] >= l->nranks ? "does not exist" : "it names before");
      places[to[i]] = (int32_t)i;
    }
  }
  return HK_OK;
}

static bool layout_has_period(const hk_layout *l, int period) {
  for (int c = -1; c < l->nchannels; c++) {
    const int32_t *ranks = c < 0 ? l->ranks : l->order + (size_t)c * (size_t)l->nranks;
    for (int i = 0, n = l->nranks; i < n; i++)
      if (ranks[(i + period) % n] != (ranks[i] + period) % n) return false;
  }
  return true;
}

hk_status hk_layout_new(hk_layout **out, int nranks, const uint64_t *host, const int *local, const int32_t *order,
                        int nchannels) {
  hk_status rc = HK_OK;
  layout_key *keys = NULL;
  hk_layout *l = NULL;
  *out = NULL;
  if (nranks < 1 || nranks > HK_RANKS_MOST)
    return HK_FAIL(HK_ERR_ARGUMENT, "A layout has 1 to %d ranks, not %d", HK_RANKS_MOST, nranks);
  l = calloc(1, sizeof *l);
  keys = calloc((size_t)nranks, sizeof *keys);
  if (!l || !keys) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the layout of %d ranks", nranks), out);
  l->nranks = nranks;
  HK_TRY(layout_make_room(l, order && nchannels > 0 ? nchannels : 1), out);
  HK_TRY(layout_number_hosts(keys, host, nranks, &l->nhosts), out);
  for (int r = 0; r < nranks; r++) {
    keys[r].rank = r;
    keys[r].local = local ? local[r] : r;
  }
  qsort(keys, (size_t)nranks, sizeof *keys, layout_by_place);
  layout_place_hosts(l, keys);
  HK_TRY(layout_place_order(l, order), out);
  l->period = layout_has_period(l, 1) ? 1 : l->most == l->least && layout_has_period(l, l->most) ? l->most : nranks;
  *out = l;
  l = NULL;
out:
  hk_layout_free(l);
  free(keys);
  return rc;
}

hk_status hk_layout_even(hk_layout **out, int nranks, int nhosts) {
  uint64_t *host = calloc((size_t)nranks, sizeof *host);
  *out = NULL;
  if (!host) return HK_FAIL_ERRNO("no memory for %d ranks", nranks);
  for (int r = 0; r < nranks; r++) host[r] = (uint64_t)r * (uint64_t)nhosts / (uint64_t)nranks;
  const hk_status rc = nhosts > 1 ? hk_layout_new(out, nranks, host, NULL, NULL, 1) : HK_OK;
  free(host);
  return rc;
}

void hk_layout_free(hk_layout *l) {
  if (!l) return;
  free(l->host);
  free(l->local);
  free(l->first);
  free(l->ranks);
  free(l->order);
  free(l->places);
  free(l);
}
