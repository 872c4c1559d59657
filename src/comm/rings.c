/* SPDX-License-Identifier: Apache-2.0 */
/* Ring orders: exchanged between hosts, logged and dumped. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../boot/host.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../run/selection.h"
#include "../topo/join.h"
#include "../topo/paths.h"
#include "../topo/topo.h"
#include "../topo/xml.h"
#include "hosts.h"
#include "machine.h"

/* The ranks of this host and their positions in its topology. */
typedef struct home {
  struct ncclComm *c;
  const hk_topo *t; /* NULL: not known */
  uint32_t nodes[HK_SEARCH_RANKS];
  int n, local; /* number of ranks; this rank's position among them */
  bool network;
} home;

/* False, and n is 0, if there are more ranks than the search takes, or GPUs that are not in the topology. */
static bool rings_place_ranks(ncclComm_t c, const hk_host_rows *rows, home *h) {
  for (int r = 0; r < c->nranks; r++) h->network = h->network || !hk_wire_near(c, r);
  for (int r = 0; r < c->nranks; r++) {
    if (!hk_wire_near(c, r)) continue;
    if (h->n == HK_SEARCH_RANKS) {
      HK_WARN("more than %d ranks on this host: rings go in the order of ranks", HK_SEARCH_RANKS);
      h->n = 0;
      return false;
    }
    if (r == c->rank) h->local = h->n;
    uint32_t node = c->backend->node_of(h->t, hk_fact_of(&rows->backend, r), hk_fact_of(&rows->cpus, r));
    if (node == UINT32_MAX) {
      HK_INFO(HK_SUB_GRAPH, "rank %d: rings go in the order of ranks: rank %d's GPU cannot be seen", c->rank, r);
      h->n = 0;
      return false;
    }
    h->nodes[h->n++] = node;
  }
  return true;
}

static hk_search rings_search_for(const home *h, hk_pattern pattern) {
  hk_search what = {.pattern = pattern,
                    .nodes = h->nodes,
                    .nranks = h->n,
                    .network = h->network && h->t && hk_topo_count(h->t, HK_NODE_NET) > 0,
                    .cross_nic = (hk_cross_nic)h->c->settings->CROSS_NIC};
  hk_selection_channels(h->c, &what.min_channels, &what.max_channels);
  return what;
}

static hk_status rings_find(hk_channels **out, const home *h, hk_pattern pattern) {
  hk_status rc;
  hk_paths *paths = NULL;
  hk_search what = rings_search_for(h, pattern);
  HK_TRY(hk_paths_new(&paths, h->t, hk_selection_paths(h->c)), out);
  rc = hk_search_channels(out, paths, &what);
out:
  hk_paths_free(paths);
  return rc;
}

/* A dump that fails is no reason to stop a job. */
static void rings_dump(int rank, const home *h, const char *path) {
  hk_channels *found[2] = {NULL, NULL};
  hk_search what = rings_search_for(h, HK_PATTERN_RING);
  int n = 0;
  if (rings_find(&found[n], h, HK_PATTERN_RING) == HK_OK) n++;
  if (rings_find(&found[n], h, HK_PATTERN_TREE) == HK_OK) n++;
  FILE *f = n ? fopen(path, "we") : NULL;
  bool bad = !f || hk_channels_write_xml((const hk_channels *const *)found, n, h->t, &what, f) != HK_OK;
  if (f && fclose(f) != 0) bad = true;
  if (bad)
    HK_WARN("NCCL_GRAPH_DUMP_FILE: cannot write %s: %s", path, n ? strerror(errno) : hk_last_error());
  else
    HK_INFO(HK_SUB_GRAPH, "the channels of rank %d's host are in %s", rank, path);
  for (int i = 0; i < 2; i++) hk_channels_free(found[i]);
}

/* Logs the channels in NCCL's form. */
static void rings_log_rings(const hk_joined *j) {
  for (int i = 0; i < j->nchannels; i++) {
    char text[256] = "";
    size_t used = 0;
    for (int k = 0; k < j->nranks && used + 8 < sizeof text; k++)
      used +=
          (size_t)snprintf(text + used, sizeof text - used, " %d", j->order[(size_t)i * (size_t)j->nranks + (size_t)k]);
    HK_INFO(HK_SUB_GRAPH, "Channel %02d/%02d :%s", i, j->nchannels, text);
  }
}

/* All hosts have the same channels, so that they are joined as they are. */
static bool rings_equal(const hk_join_fact *facts, const hk_joined *j) {
  for (int r = 1; r < j->nranks; r++)
    if (facts[r].part[HK_PATTERN_RING].hash != facts[0].part[HK_PATTERN_RING].hash) return false;
  return j->split_host < 0;
}

/* Exchanges the rings of this host, from its file or from the search, and joins the hosts' orders. */
static hk_status rings_join_hosts(ncclComm_t c, const home *h, const char *path, hk_joined **out, hk_channels **each) {
  hk_status rc = HK_OK;
  hk_channels *rings = NULL;
  hk_search what = rings_search_for(h, HK_PATTERN_RING);
  hk_join_fact *facts = calloc((size_t)c->nranks, sizeof *facts);
  if (!facts) return HK_FAIL_ERRNO("no memory for the channels of %d ranks", c->nranks);
  /* A rank without channels takes part, too: the others wait for its row. */
  if (h->n && path) HK_TRY(hk_channels_read_xml(&rings, path, HK_PATTERN_RING, h->t, &what), out);
  if (h->n && !rings) HK_TRY(rings_find(&rings, h, HK_PATTERN_RING), out);
  const hk_channels *const orders[HK_PATTERNS] = {[HK_PATTERN_RING] = rings};
  hk_join_fill(&facts[c->rank], hk_host_id(c->settings), h->t, orders, h->local);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, facts, sizeof *facts), out);
  HK_TRY(hk_join(out, HK_PATTERN_RING, facts, c->nranks), out);
  if ((*out)->split_host >= 0 && c->rank == 0)
    HK_LOG_AT(path ? HK_LOG_WARN : HK_LOG_INFO, HK_SUB_GRAPH,
              "ranks %d and %d are on one host and %s different channels: their host's ranks go in their own order",
              (*out)->split_rank[0], (*out)->split_rank[1], path ? "read from NCCL_GRAPH_FILE" : "see");
  if (c->rank == 0) rings_log_rings(*out);
  if (rings_equal(facts, *out)) {
    *each = rings;
    rings = NULL;
  }
  if ((*out)->nchannels == 0) {
    hk_joined_free(*out);
    *out = NULL;
  }
out:
  hk_channels_free(rings);
  free(facts);
  return rc;
}

hk_status hk_rings_agree(ncclComm_t c, const hk_host_rows *rows, bool child, hk_joined **out, hk_channels **each) {
  hk_status rc = HK_OK;
  const hk_settings *s = c->settings;
  const char *file = s->GRAPH_FILE && *s->GRAPH_FILE ? s->GRAPH_FILE : NULL, *dump = s->GRAPH_DUMP_FILE;
  bool dumps = dump && *dump && c->rank == s->GRAPH_DUMP_FILE_RANK && !child;
  bool reads = file && c->nranks > 1;
  bool joins = reads || (c->backend->ring_orders && c->nranks > 1);
  hk_topo *seen = NULL;
  home h = {.c = c};
  *out = NULL;
  if (c->nranks == 1 && file && access(file, R_OK) != 0)
    return HK_FAIL(HK_ERR_ARGUMENT, "NCCL_GRAPH_FILE=%s cannot be read: %s; correct the path, or unset the variable",
                   file, strerror(errno));
  if (!dumps && !joins) return HK_OK;
  HK_TRY(c->backend->topology(c, &seen, &h.t), out);
  bool fits = h.t && rings_place_ranks(c, rows, &h);
  if (dumps && fits) rings_dump(c->rank, &h, dump);
  if (joins) HK_TRY(rings_join_hosts(c, &h, reads ? file : NULL, out, each), out);
out:
  hk_topo_free(seen);
  return rc;
}
