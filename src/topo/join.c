/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the channels that each host found into channels of all ranks (join.h). */
#include "join.h"
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "topo.h"

static const uint8_t no_channel = 0xff;

void hk_join_fill(hk_join_fact *out, uint64_t host, const hk_topo *t, const hk_channels *const channels[HK_PATTERNS],
                  int local) {
  memset(out, 0, sizeof *out);
  out->host = host;
  out->topo = t ? t->hash : 0;
  for (int k = 0; k < HK_PATTERNS; k++) {
    const hk_channels *c = channels[k];
    hk_join_part *part = &out->part[k];
    memset(part->rail, -1, sizeof part->rail);
    if (!c) continue;
    out->size = (uint16_t)c->nranks;
    part->hash = c->hash;
    part->intra_gbps = c->intra_gbps;
    part->inter_gbps = c->inter_gbps;
    part->intra_cls = c->intra_cls;
    part->inter_cls = c->inter_cls;
    part->nchannels = (uint8_t)(c->nchannels < HK_CHANNEL_LIMIT ? c->nchannels : HK_CHANNEL_LIMIT);
    for (int i = 0; i < part->nchannels; i++) {
      for (int r = 0; r < c->nranks; r++)
        if (c->at[i].order[r] == local) part->place[i] = (uint8_t)r;
      uint32_t net = c->at[i].net_in;
      if (t && net < t->nnodes && t->nodes[net].net.rail >= 0 && t->nodes[net].net.rail <= INT8_MAX)
        part->rail[i] = (int8_t)t->nodes[net].net.rail;
    }
  }
}

/* A host, while hosts are joined. */
typedef struct group {
  int first, size;               /* its ranks: joiner.ranks[first .. first + size - 1], rising */
  int at;                        /* position of its first rank in each order */
  bool split;                    /* its ranks disagree, or their facts are incomplete: they keep their own order */
  uint8_t use[HK_CHANNEL_LIMIT]; /* which of its channels becomes channel i of the result */
} group;

typedef struct joiner {
  hk_joined *j;
  const hk_join_fact *facts;
  int32_t *ranks; /* [nranks] host after host */
  group *homes;   /* [nhosts] */
} joiner;

static const hk_join_part *join_part_of(const joiner *w, int rank) { return &w->facts[rank].part[w->j->pattern]; }

/* --- Who shares a host --- */

static int join_by_host(const void *a, const void *b, void *facts) {
  const hk_join_fact *f = facts;
  const int x = *(const int32_t *)a, y = *(const int32_t *)b;
  if (f[x].host != f[y].host) return f[x].host < f[y].host ? -1 : 1;
  return x - y;
}

static int join_by_first_rank(const void *a, const void *b, void *ranks) {
  const int32_t *r = ranks;
  return r[((const group *)a)->first] - r[((const group *)b)->first];
}

static hk_status join_find_homes(joiner *w) {
  hk_joined *j = w->j;
  for (int r = 0; r < j->nranks; r++) w->ranks[r] = r;
  qsort_r(w->ranks, (size_t)j->nranks, sizeof *w->ranks, join_by_host, (void *)(uintptr_t)w->facts);
  for (int i = 0; i < j->nranks; i++) j->nhosts += !i || w->facts[w->ranks[i]].host != w->facts[w->ranks[i - 1]].host;
  w->homes = calloc((size_t)j->nhosts, sizeof *w->homes);
  if (!w->homes) return HK_FAIL_ERRNO("no memory to join %d hosts", j->nhosts);
  for (int i = 0, h = -1; i < j->nranks; i++) {
    if (!i || w->facts[w->ranks[i]].host != w->facts[w->ranks[i - 1]].host) w->homes[++h].first = i;
    w->homes[h].size++;
  }
  qsort_r(w->homes, (size_t)j->nhosts, sizeof *w->homes, join_by_first_rank, w->ranks);
  for (int h = 0; h < j->nhosts; h++) {
    w->homes[h].at = h ? w->homes[h - 1].at + w->homes[h - 1].size : 0;
    for (int i = 0; i < w->homes[h].size; i++) j->host[w->ranks[w->homes[h].first + i]] = h;
  }
  return HK_OK;
}

/* True if every position of every channel is taken exactly once. */
static bool join_places_fit(const joiner *w, const group *home) {
  int nchannels = join_part_of(w, w->ranks[home->first])->nchannels;
  if (home->size > HK_SEARCH_RANKS || nchannels > HK_CHANNEL_LIMIT) return false;
  for (int c = 0; c < nchannels; c++) {
    bool taken[HK_SEARCH_RANKS] = {false};
    for (int i = 0; i < home->size; i++) {
      int place = join_part_of(w, w->ranks[home->first + i])->place[c];
      if (place >= home->size || taken[place]) return false;
      taken[place] = true;
    }
  }
  return true;
}

static void join_check_home(joiner *w, int h) {
  hk_joined *j = w->j;
  group *home = &w->homes[h];
  int first = w->ranks[home->first], other = first;
  const hk_join_part *a = join_part_of(w, first);
  for (int i = 0; i < home->size && other == first; i++) {
    int r = w->ranks[home->first + i];
    const hk_join_part *b = join_part_of(w, r);
    if (b->hash != a->hash || b->nchannels != a->nchannels || w->facts[r].size != w->facts[first].size) other = r;
  }
  home->split = other != first || w->facts[first].size != home->size || !join_places_fit(w, home);
  /* A rank without facts (hosts with more ranks than the search takes) does not count as disagreeing. */
  bool nothing = other == first && !w->facts[first].size;
  if (!home->split || nothing || j->split_host >= 0) return;
  j->split_host = h;
  j->split_rank[0] = first;
  j->split_rank[1] = other;
}

static float join_slower(float a, float b) { return a > 0 && (b <= 0 || a < b) ? a : b; }

/* The smallest number of channels of any host. A host whose ranks disagree does not limit it. */
static int join_fewest(const joiner *w, int *host) {
  int least = HK_CHANNEL_LIMIT + 1;
  *host = 0;
  for (int h = 0; h < w->j->nhosts; h++) {
    int n = join_part_of(w, w->ranks[w->homes[h].first])->nchannels;
    if (w->homes[h].split || n >= least) continue;
    least = n;
    *host = h;
  }
  return least <= HK_CHANNEL_LIMIT ? least : w->j->pattern != HK_PATTERN_STAR;
}

static void join_rate(joiner *w) {
  hk_joined *j = w->j;
  for (int r = 0; r < j->nranks; r++) {
    const hk_join_part *part = join_part_of(w, r);
    j->intra_gbps = join_slower(part->intra_gbps, j->intra_gbps);
    j->inter_gbps = join_slower(part->inter_gbps, j->inter_gbps);
    if (part->intra_cls > j->intra_cls) j->intra_cls = part->intra_cls;
    if (part->inter_cls > j->inter_cls) j->inter_cls = part->inter_cls;
  }
}

/* Channel i uses the rail that it has on the host with the fewest channels, if the other hosts have that rail. */
static void join_choose_channels(joiner *w, int leader) {
  const hk_join_part *lead = join_part_of(w, w->ranks[w->homes[leader].first]);
  for (int h = 0; h < w->j->nhosts; h++) {
    group *home = &w->homes[h];
    const hk_join_part *part = join_part_of(w, w->ranks[home->first]);
    bool used[HK_CHANNEL_LIMIT] = {false};
    if (home->split) continue;
    for (int i = 0; i < w->j->nchannels; i++) {
      home->use[i] = no_channel;
      for (int c = 0; c < part->nchannels && home->use[i] == no_channel && lead->rail[i] >= 0; c++)
        if (!used[c] && part->rail[c] == lead->rail[i]) home->use[i] = (uint8_t)c;
      if (home->use[i] != no_channel) used[home->use[i]] = true;
    }
    for (int i = 0, c = 0; i < w->j->nchannels; i++) {
      if (home->use[i] != no_channel) continue;
      while (used[c]) c++;
      used[c] = true;
      home->use[i] = (uint8_t)c;
    }
  }
}

static void join_write_orders(joiner *w) {
  hk_joined *j = w->j;
  for (int c = 0; c < j->nchannels; c++) {
    int32_t *order = j->order + (size_t)c * (size_t)j->nranks;
    for (int h = 0; h < j->nhosts; h++) {
      const group *home = &w->homes[h];
      for (int i = 0; i < home->size; i++) {
        int32_t rank = w->ranks[home->first + i];
        order[home->at + (home->split ? i : join_part_of(w, rank)->place[home->use[c]])] = rank;
      }
    }
  }
}

/* The parent in the in-order binary tree of 1..n, 0 above its root. The lowest one bit of i is its height. The parent
 * is at that distance on one side, one level higher; if that is beyond n, it is the next higher node on the near
 * side. */
static int join_tree_parent(int i, int n) {
  int bit = i & -i, up = (i & ~bit) | bit << 1;
  return up <= n ? up : i & ~bit;
}

/* The host above in the first or the second tree, -1: none. Odd labels are leaves. The second tree is the mirror image;
 * if a leaf would be a leaf in both, it is rotated by one. */
static int join_host_above(int h, int n, bool second) {
  if (!second) return join_tree_parent(h + 1, n) - 1;
  if (n % 2) {
    int up = join_tree_parent((h + 1) % n + 1, n);
    return up ? (up + n - 2) % n : -1;
  }
  int up = join_tree_parent(n - h, n);
  return up ? n - up : -1;
}

/* Chains inside hosts; each head is attached to the head of the host above. */
static void join_write_trees(joiner *w) {
  hk_joined *j = w->j;
  for (int c = 0; c < j->nchannels; c++) {
    const int32_t *order = j->order + (size_t)c * (size_t)j->nranks;
    int32_t *up = j->up + (size_t)c * (size_t)j->nranks;
    for (int h = 0; h < j->nhosts; h++) {
      const group *home = &w->homes[h];
      int above = join_host_above(h, j->nhosts, c % 2);
      up[order[home->at]] = above < 0 ? -1 : order[w->homes[above].at];
      for (int i = 1; i < home->size; i++) up[order[home->at + i]] = order[home->at + i - 1];
    }
  }
}

/* --- All together --- */

static uint64_t join_mix_bytes(uint64_t hash, const void *data, size_t n) {
  const unsigned char *p = data;
  for (size_t i = 0; i < n; i++) hash = hk_hash_mix(hash, p[i]);
  return hash;
}

static uint64_t join_hash_of(const joiner *w) {
  const hk_joined *j = w->j;
  uint64_t h = hk_hash_mix((uint64_t)j->nranks, (uint64_t)j->nchannels << 8 | j->pattern);
  for (int r = 0; r < j->nranks; r++) {
    h = hk_hash_mix(h, w->facts[r].topo);
    h = hk_hash_mix(h, join_part_of(w, r)->hash);
    h = hk_hash_mix(h, j->host[r]);
  }
  h = join_mix_bytes(h, &j->intra_gbps, sizeof j->intra_gbps);
  h = join_mix_bytes(h, &j->inter_gbps, sizeof j->inter_gbps);
  size_t n = (size_t)j->nchannels * (size_t)j->nranks;
  for (size_t i = 0; i < n; i++) h = hk_hash_mix(h, j->order[i]);
  for (size_t i = 0; i < n && j->up; i++) h = hk_hash_mix(h, (uint64_t)(int64_t)j->up[i]);
  return h;
}

static hk_status join_all(joiner *w) {
  hk_joined *j = w->j;
  int leader;
  HK_OR_RETURN(join_find_homes(w));
  for (int h = 0; h < j->nhosts; h++) join_check_home(w, h);
  j->nchannels = join_fewest(w, &leader);
  join_rate(w);
  join_choose_channels(w, leader);
  size_t n = (size_t)j->nchannels * (size_t)j->nranks + 1;
  j->order = malloc(n * sizeof *j->order);
  j->up = j->pattern == HK_PATTERN_TREE ? malloc(n * sizeof *j->up) : NULL;
  if (!j->order || (j->pattern == HK_PATTERN_TREE && !j->up))
    return HK_FAIL_ERRNO("no memory for %d channels of %d ranks", j->nchannels, j->nranks);
  join_write_orders(w);
  if (j->up) join_write_trees(w);
  j->hash = join_hash_of(w);
  return HK_OK;
}

hk_status hk_join(hk_joined **out, hk_pattern pattern, const hk_join_fact *facts, int nranks) {
  hk_status rc;
  joiner w = {.facts = facts};
  *out = NULL;
  if (nranks < 1 || nranks > HK_JOIN_RANKS || (unsigned)pattern >= HK_PATTERNS)
    return HK_FAIL(HK_ERR_ARGUMENT, "channels of %d ranks in pattern %d cannot be joined; 1 to %d ranks are possible",
                   nranks, (int)pattern, HK_JOIN_RANKS);
  w.j = calloc(1, sizeof *w.j);
  w.ranks = malloc((size_t)nranks * sizeof *w.ranks);
  if (w.j) w.j->host = malloc((size_t)nranks * sizeof *w.j->host);
  if (!w.j || !w.ranks || !w.j->host)
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory to join the channels of %d ranks", nranks), out);
  w.j->nranks = nranks;
  w.j->pattern = (uint8_t)pattern;
  w.j->split_host = w.j->split_rank[0] = w.j->split_rank[1] = -1;
  HK_TRY(join_all(&w), out);
out:
  free(w.ranks);
  free(w.homes);
  if (rc != HK_OK) {
    hk_joined_free(w.j);
    w.j = NULL;
  }
  *out = w.j;
  return rc;
}

void hk_joined_free(hk_joined *j) {
  if (!j) return;
  free(j->host);
  free(j->order);
  free(j->up);
  free(j);
}
