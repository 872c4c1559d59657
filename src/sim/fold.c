/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of all ranks, and which hosts are equal.
 *
 * Hosts are coloured by their machine. Then they are coloured again and again by the form of their ranks' programs and
 * the colours of the hosts that they communicate with, until no colour splits any more. If the fabric treats them
 * equally, hosts of one colour do the same at the same time, so one of them represents all. If there are too many links
 * to examine all hosts, see "shifted hosts". */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/hash.h"
#include "../collectives/algorithm.h"
#include "run.h"

/* ---- programs ---- */

hk_status hk_programs_init(hk_programs *p, const hk_algorithm *a, const hk_build *what, int norders) {
  *p = (hk_programs){.algorithm = a, .what = *what, .norders = norders > 0 ? norders : 1};
  p->at = calloc((size_t)p->norders * (size_t)what->nranks, sizeof(hk_program *));
  return p->at ? HK_OK : HK_FAIL_ERRNO("no memory for the programs of %d ranks", what->nranks);
}

void hk_programs_free(hk_programs *p) {
  for (size_t i = 0; p->at && i < (size_t)p->norders * (size_t)p->what.nranks; i++) hk_program_free(p->at[i]);
  free(p->at);
  *p = (hk_programs){0};
}

void hk_programs_drop(hk_programs *p, int rank) {
  for (int order = 0; order < p->norders; order++) {
    hk_program **at = &p->at[(size_t)order * (size_t)p->what.nranks + (size_t)rank];
    hk_program_free(*at);
    *at = NULL;
  }
}

hk_status hk_programs_get(hk_programs *p, int rank, int channel, const hk_program **out) {
  int order = channel % p->norders;
  hk_program **at = &p->at[(size_t)order * (size_t)p->what.nranks + (size_t)rank];
  if (!*at) {
    hk_build what = p->what;
    what.rank = rank;
    what.channel = order;
    HK_OR_RETURN(hk_algorithm_build(p->algorithm, &what, at));
  }
  *out = *at;
  return HK_OK;
}

/* ---- colours ---- */

/* A connection of a host to another one: the link and rank here, and the local rank and host there. */
typedef struct joint {
  uint32_t host;
  uint64_t what;
} joint;

typedef struct folding {
  hk_sim_cluster *w;
  uint64_t *colour, *next;
  joint *joints;
  size_t *first; /* [nhosts + 1] */
  size_t n, capacity;
} folding;

static hk_status fold_add_joint(folding *f, uint32_t host, uint64_t what) {
  if (!HK_RESERVE(f->joints, f->capacity, f->n + 1)) return HK_FAIL_ERRNO("no memory for %zu links", f->n + 1);
  f->joints[f->n++] = (joint){.host = host, .what = what};
  return HK_OK;
}

/* Computes the host's own colour and its joints. */
static hk_status fold_look_at_host(folding *f, hk_programs *programs, int host) {
  hk_sim_cluster *w = f->w;
  uint64_t h = hk_hash_mix(hk_sim_cluster_topo(w, host)->hash, w->first_rank[host + 1] - w->first_rank[host]);
  f->first[host] = f->n;
  for (uint32_t r = w->first_rank[host]; r < w->first_rank[host + 1]; r++) {
    const hk_program *p, *other;
    HK_OR_RETURN(hk_programs_get(programs, (int)r, 0, &p));
    h = hk_hash_mix(h, hk_program_shape(p));
    const hk_link_need *l = hk_program_links(p);
    for (uint32_t i = 0; i < p->nlinks; i++) {
      uint32_t peer = l[i].peer, at = (uint32_t)w->placements[peer].host;
      if (l[i].kind == HK_LINK_MCAST_SEND) continue;
      HK_OR_RETURN(hk_programs_get(programs, (int)peer, 0, &other));
      uint32_t back = hk_link_find(other, hk_link_other_end((hk_link_kind)l[i].kind), (int)r, l[i].channel, 0);
      uint64_t what =
          hk_hash_mix(hk_hash_mix((uint64_t)(r - w->first_rank[host]) << 32 | i, peer - w->first_rank[at]), back);
      if (at == (uint32_t)host)
        h = hk_hash_mix(h, what);
      else
        HK_OR_RETURN(fold_add_joint(f, at, what));
    }
  }
  f->colour[host] = h;
  return HK_OK;
}

static int fold_by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static int fold_count_colours(const uint64_t *colours, uint64_t *sorted, int n) {
  int count = 0;
  memcpy(sorted, colours, (size_t)n * sizeof *sorted);
  qsort(sorted, (size_t)n, sizeof *sorted, fold_by_value);
  for (int i = 0; i < n; i++) count += !i || sorted[i] != sorted[i - 1];
  return count;
}

/* One round. The joints are in the programs' order, so equal hosts have equal hashes. */
static void fold_recolour(folding *f) {
  for (int h = 0; h < f->w->c->nhosts; h++) {
    uint64_t x = f->colour[h];
    for (size_t i = f->first[h]; i < f->first[h + 1]; i++)
      x = hk_hash_mix(x, hk_hash_mix(f->joints[i].what, f->colour[f->joints[i].host]));
    f->next[h] = x;
  }
  uint64_t *swap = f->colour;
  f->colour = f->next;
  f->next = swap;
}

/* The first host of each colour represents the others. */
static hk_status fold_represent(const folding *f) {
  hk_sim_cluster *w = f->w;
  int n = w->c->nhosts;
  size_t capacity = 1;
  while (capacity < 2 * (size_t)n) capacity *= 2;
  uint32_t *table = malloc(capacity * sizeof *table);
  if (!table) return HK_FAIL_ERRNO("no memory to fold %d hosts", n);
  memset(table, 0xff, capacity * sizeof *table);
  for (int h = 0; h < n; h++) {
    size_t at = hk_hash_mix(f->colour[h], 7) & (capacity - 1);
    while (table[at] != HK_SIM_NONE && f->colour[table[at]] != f->colour[h]) at = (at + 1) & (capacity - 1);
    if (table[at] == HK_SIM_NONE) {
      table[at] = (uint32_t)h;
      w->size[h] = 0;
    }
    w->rep[h] = table[at];
    w->size[table[at]]++;
  }
  free(table);
  return HK_OK;
}

/* ---- shifted hosts ---- If every rank has a link to every other one, the programs of many thousand ranks are too
 * large to be built. They need not be built if hosts are equal and each host's programs are the first host's with all
 * ranks shifted. This is checked for the first hosts (a pattern that grows with distance would differ there first), for
 * the middle host and for the last one. */

/* Checks one host; its programs are not kept. */
static hk_status fold_look_shifted(const hk_sim_cluster *w, hk_programs *programs, int host, bool *same) {
  const hk_program *first, *p;
  for (uint32_t r = w->first_rank[host]; r < w->first_rank[host + 1] && *same; r++) {
    HK_OR_RETURN(hk_programs_get(programs, hk_sim_cluster_rep(w, (int)r), 0, &first));
    HK_OR_RETURN(hk_programs_get(programs, (int)r, 0, &p));
    *same = hk_program_is_shifted(first, p, (int)r - first->rank);
    hk_programs_drop(programs, (int)r);
  }
  return HK_OK;
}

static hk_status fold_shifted(hk_sim_cluster *w, hk_programs *programs, bool *same) {
  int n = w->c->nhosts, looked[] = {1, 2, 3, n / 2, n - 1};
  *same = true;
  for (int h = 0; h < n; h++) {
    *same = *same && hk_sim_cluster_topo(w, h)->hash == hk_sim_cluster_topo(w, 0)->hash &&
            w->first_rank[h] == (uint32_t)h * w->first_rank[1];
    w->rep[h] = 0;
  }
  *same = *same && w->first_rank[n] == (uint32_t)n * w->first_rank[1];
  w->size[0] = (uint32_t)n;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(looked) && *same; i++)
    if (looked[i] > 0 && looked[i] < n) HK_OR_RETURN(fold_look_shifted(w, programs, looked[i], same));
  w->folded = w->shifted = *same;
  return HK_OK;
}

hk_status hk_fold(hk_sim_cluster *w, hk_programs *programs, bool shifted) {
  hk_status rc = HK_OK;
  int n = w->c->nhosts, colours, before = 0;
  folding f = {.w = w};
  uint64_t *sorted = malloc((size_t)n * sizeof *sorted);
  f.colour = malloc((size_t)n * sizeof *f.colour);
  f.next = malloc((size_t)n * sizeof *f.next);
  f.first = malloc(((size_t)n + 1) * sizeof *f.first);
  const hk_program *one;
  HK_TRY(hk_programs_get(programs, 0, 0, &one), out);
  if (shifted || (uint64_t)one->nlinks * (uint64_t)w->nranks > HK_SIM_SIDES) {
    bool same;
    HK_TRY(fold_shifted(w, programs, &same), out);
    if (!same)
      rc = HK_FAIL(
          HK_ERR_ARGUMENT,
          "%s of %d ranks has %u links a rank, more than the simulator can hold if hosts differ; simulate fewer "
          "hosts, or an algorithm with fewer links",
          one->algorithm, w->nranks, one->nlinks);
    goto out;
  }
  if (!sorted || !f.colour || !f.next || !f.first) {
    rc = HK_FAIL_ERRNO("no memory to fold %d hosts", n);
    goto out;
  }
  for (int h = 0; h < n; h++) HK_TRY(fold_look_at_host(&f, programs, h), out);
  f.first[n] = f.n;
  while ((colours = fold_count_colours(f.colour, sorted, n)) > before) {
    before = colours;
    fold_recolour(&f);
  }
  HK_TRY(fold_represent(&f), out);
  w->folded = true;
out:
  free(sorted);
  free(f.colour);
  free(f.next);
  free(f.first);
  free(f.joints);
  return rc;
}
