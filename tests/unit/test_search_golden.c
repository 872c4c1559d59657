/* SPDX-License-Identifier: Apache-2.0 */
/* The channels of many machines, and the steps of the search that finds them, are those of tests/golden/searches.txt.
 * A bound that cuts off too little, or an order in which the search tries, changes the steps alone; of two channels
 * that are equally good the search takes one.
 * check: notsan noasan */
#include "../../src/topo/paths.h"
#include "../../src/topo/search.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/golden.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/searches.txt"

static const char *const machines[] = {
    "dgx-v100",
    "dgx-a100",
    "dgx-h100",
    "nvl72",
    "pcie-1s",
    "4xv100:mesh nic=2x100",
    "4xa100:pairs nic=1x200",
    "8xa100:pcie2 nic=2x200",
    "8xa100:pcie2 nic=3x100",
    "6xh100:nvswitch4 nic=4x400",
    "5xh100:nvswitch4 nic=2x400",
    "2xa100:nvswitch6",
    "3xa100:pairs",
    "2xcpu cores=32 nic=1x100",
    "4xcpu cores=8 nic=2x100",
    "nodes=2 of tests/topologies/ndv4-topo.xml as 8xa100:nvswitch6 nic=8x200",
    "nodes=2 of tests/topologies/ndv2-topo.xml as 8xv100:cube nic=1x100",
};

enum { FIGURES = 4 };
static void check_links(golden *g, const char *machine, const hk_topo *t) {
  double is[FIGURES] = {t->nnodes, t->nedges};
  for (uint32_t i = 0; i < t->nedges; i++) {
    is[2] += (double)t->edges[i].gbps * t->edges[i].count * (1 + t->edges[i].from % 7);
    is[3] += (double)t->edges[i].us * (1 + t->edges[i].to % 7) + t->edges[i].kind;
  }
  for (int i = 2; i < 4; i++) is[i] = rint(is[i] * 100); /* floats, which compilers round in their own ways */
  golden_figures(g, machine, "links", FIGURES, is);
}

static void check_channels(golden *g, const char *machine, const hk_paths *p, hk_search what) {
  hk_channels *c;
  char group[200], name[40];
  ck_assert_msg(hk_search_channels(&c, p, &what) == HK_OK, "%s: %s", machine, hk_last_error());
  uint32_t hash = golden_hash(c->intra_cls, &c->inter_cls, sizeof c->inter_cls);
  for (int i = 0; i < c->nchannels; i++) {
    hash = golden_hash(hash, c->at[i].order, (size_t)c->nranks * sizeof *c->at[i].order);
    hash = golden_hash(hash, &c->at[i].net_in, 2 * sizeof c->at[i].net_in);
  }
  double is[FIGURES] = {c->nchannels, rint((double)c->intra_gbps * 10) + 1e6 * rint((double)c->inter_gbps * 10),
                        c->steps, hash};
  snprintf(group, sizeof group, "%s|%d", machine, what.nranks);
  snprintf(name, sizeof name, "%d %d %d %d %d", what.pattern, what.network, what.cross_nic, what.min_channels,
           what.max_channels);
  golden_figures(g, group, name, FIGURES, is);
  hk_channels_free(c);
}

/* All ranks of the host, then all but the first. */
TEST(as_before) {
  golden g = golden_open(GOLDEN, "");
  for (size_t k = 0; k < HK_ARRAY_LENGTH(machines); k++) {
    hk_cluster *c;
    hk_paths *p;
    hk_placement *placements;
    uint32_t nodes[HK_SEARCH_RANKS];
    int n;
    ck_assert_msg(hk_cluster_from_string(&c, machines[k]) == HK_OK, "%s: %s", machines[k], hk_last_error());
    ck_assert_int_eq(hk_cluster_placements(c, 5, &placements, &n), HK_OK);
    n /= c->nhosts;
    for (int i = 0; i < n; i++) nodes[i] = placements[i].node;
    check_links(&g, machines[k], hk_cluster_host(c, 0));
    ck_assert_int_eq(hk_paths_new(&p, hk_cluster_host(c, 0), NULL), HK_OK);
    for (int i = 0; i < 2 * 3 * 4; i++) {
      hk_search what = {.pattern = (hk_pattern)(i % 3),
                        .nodes = nodes + (i >= 12),
                        .nranks = n - (i >= 12),
                        .network = i / 3 % 4 != 0,
                        .cross_nic = i / 3 % 4 == 0 ? HK_CROSS_NIC_NO : (hk_cross_nic)(i / 3 % 4 - 1),
                        .min_channels = i == 1 ? 3 : 0,
                        .max_channels = i >= 12 && i % 2 ? 2 : 0};
      check_channels(&g, machines[k], p, what);
    }
    hk_paths_free(p);
    hk_cluster_free(c);
    free(placements);
  }
  golden_close(&g);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("channels as before");
}
