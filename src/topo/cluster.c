/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters: topologies joined by a fabric, and where ranks sit in them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "topo.h"

hk_status hk_cluster_of(hk_cluster **out, hk_topo *t, int nhosts) {
  hk_cluster *c = NULL;
  hk_status rc = HK_OK;
  if (nhosts < 1) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "a cluster of %d hosts; it needs at least one", nhosts);
    goto out;
  }
  c = calloc(1, sizeof *c);
  if (c) c->kinds = malloc(sizeof *c->kinds);
  if (!c || !c->kinds) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a cluster"), out);
  snprintf(c->name, sizeof c->name, "%s", t->name);
  c->nhosts = nhosts;
  c->nkinds = 1;
  c->kinds[0] = t;
  c->fabric = (hk_fabric){.spines = 1, .oversub = 1, .hop_us = 0.3f, .base_us = 2.0f};
out:
  if (rc != HK_OK) {
    hk_topo_free(t);
    if (c) free(c->kinds);
    free(c);
    c = NULL;
  }
  *out = c;
  return rc;
}

void hk_cluster_free(hk_cluster *c) {
  if (!c) return;
  for (int i = 0; i < c->nkinds; i++) hk_topo_free(c->kinds[i]);
  free(c->kinds);
  free(c->kind_of);
  free(c);
}

static int cluster_by_device(const void *a, const void *b, void *topo) {
  const hk_topo *t = topo;
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  int p = t->nodes[x].gpu.dev, q = t->nodes[y].gpu.dev;
  return p != q ? (p > q) - (p < q) : (x > y) - (x < y);
}

/* Without a request: one rank for each core, or one for each CPU if the number of cores is unknown. */
static long cluster_ranks_on_cpus(const hk_topo *t, int per_host) {
  long cores = 0;
  if (per_host > 0) return per_host;
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++)
    cores += t->nodes[i].cpu.cores > 0 ? t->nodes[i].cpu.cores : 1;
  return cores;
}

/* Neighbouring ranks get the same CPU, as launchers place them. */
static void cluster_placement_on_cpus(const hk_topo *t, long n, bool by_core, uint32_t *nodes) {
  uint32_t first = t->first_of[HK_NODE_CPU], ncpus = hk_topo_count(t, HK_NODE_CPU);
  if (!by_core) {
    for (long i = 0; i < n; i++) nodes[i] = first + (uint32_t)(i * (long)ncpus / n);
    return;
  }
  long at = 0;
  for (uint32_t i = first; i < first + ncpus; i++)
    for (int k = 0; k < (t->nodes[i].cpu.cores > 0 ? t->nodes[i].cpu.cores : 1); k++) nodes[at++] = i;
}

/* The placements of one kind of host. */
static hk_status cluster_placements_of(const hk_topo *t, int per_host, uint32_t **out, long *n) {
  uint32_t ngpus = hk_topo_count(t, HK_NODE_GPU);
  *out = NULL;
  *n = ngpus ? (long)ngpus : cluster_ranks_on_cpus(t, per_host);
  if (*n < 1 || *n > INT_MAX)
    return HK_FAIL(HK_ERR_ARGUMENT, "topology %s has no place for ranks: neither a GPU nor a CPU", t->name);
  *out = malloc((size_t)*n * sizeof **out);
  if (!*out) return HK_FAIL_ERRNO("no memory for %ld placements", *n);
  if (ngpus) {
    for (uint32_t i = 0; i < ngpus; i++) (*out)[i] = t->first_of[HK_NODE_GPU] + i;
    qsort_r(*out, ngpus, sizeof **out, cluster_by_device, (void *)(uintptr_t)t);
  } else {
    cluster_placement_on_cpus(t, *n, per_host <= 0, *out);
  }
  return HK_OK;
}

hk_status hk_cluster_placements(const hk_cluster *c, int per_host, hk_placement **out, int *n) {
  hk_status rc = HK_OK;
  hk_placement *placements = NULL;
  long total = 0, at = 0;
  uint32_t **nodes = calloc((size_t)c->nkinds, sizeof *nodes);
  long *count = calloc((size_t)c->nkinds, sizeof *count);
  if (!nodes || !count) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for placements"), out);
  for (int k = 0; k < c->nkinds; k++) HK_TRY(cluster_placements_of(c->kinds[k], per_host, &nodes[k], &count[k]), out);
  for (int h = 0; h < c->nhosts; h++) total += count[hk_cluster_kind(c, h)];
  if (total > INT_MAX / 2) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "cluster %s would have %ld ranks; that is too many", c->name, total);
    goto out;
  }
  placements = malloc((size_t)total * sizeof *placements);
  if (!placements) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for %ld placements", total), out);
  for (int h = 0; h < c->nhosts; h++) {
    int k = hk_cluster_kind(c, h);
    for (long i = 0; i < count[k]; i++) placements[at++] = (hk_placement){.host = h, .node = nodes[k][i]};
  }
out:
  for (int k = 0; nodes && k < c->nkinds; k++) free(nodes[k]);
  free(nodes);
  free(count);
  *out = placements;
  *n = rc == HK_OK ? (int)total : 0;
  return rc;
}
