/* SPDX-License-Identifier: Apache-2.0 */
/* Programs, prices, chunks, choices and machines are those of tests/golden/algorithms.txt, for layouts and machines of
 * random numbers, and for clusters in words.  Other tests prove that programs are right, and compare prices with
 * measured ones: neither sees that a right program moves blocks in another order, or that one term of a price has
 * changed. After a change of an algorithm or of the model HOCKET_TEST_UPDATE=1 writes the file again: its diff shows
 * which algorithms the change reaches.
 * check: notsan noasan */
#include "../../src/base/param.h"
#include "../../src/decide/constants.h"
#include "../../src/topo/paths.h"
#include "../../src/topo/search.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/fuzz.h"
#include "../support/golden.h"
#include "../support/outlines.h"
#include "../support/prove_algorithms.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/algorithms.txt"
enum { MACHINES = 200 };

enum { FIGURES = 4 };
static void check_figures(golden *g, const char *what, const char *algorithm, int coll, const double is[FIGURES]) {
  char group[100];
  snprintf(group, sizeof group, "%s|%s", what, algorithm);
  golden_figures(g, group, hk_coll_name((hk_coll)coll), FIGURES, is);
}

/* ---- programs ---- */

enum { LAYOUTS = 7 };
/* The hosts of the ranks: one, host after host, in turn, unevenly, or the last ranks first; one has channels. */
static hk_layout *layout_of(int which, int n) {
  uint64_t host[64];
  int local[64];
  int32_t order[2 * 64];
  hk_layout *l = NULL;
  for (int r = 0; r < n; r++) {
    int hosts = which == 3 ? 3 : 2;
    host[r] = (uint64_t)(which == 1 || which == 3 ? r * hosts / n : which == 2 ? r % hosts : which == 4 ? r > 0 : r);
    if (which == 5) host[r] = (uint64_t)((n - r) / 2);
    if (which == 6) host[r] = 0;
    local[r] = n - r;
    order[r] = (n - 1 - r);
    order[n + r] = r;
  }
  if (which == 0) return NULL;
  bool channels = which == 6;
  hk_status rc = hk_layout_new(&l, n, host, which % 2 ? local : NULL, channels ? order : NULL, channels ? 2 : 1);
  ck_assert_msg(rc == HK_OK, "%s", hk_last_error());
  return l;
}

static hk_machine machine_of(const hk_layout *l, int n) {
  hk_machine m = prove_machine(n);
  m.team.nhosts = hk_layout_hosts(l);
  m.team.ranks_per_host = l ? l->most : n;
  m.team.least_per_host = l ? l->least : n;
  m.team.multicast = m.team.nhosts == 1;
  m.team.in_switch = m.team.in_network = true;
  return m;
}

static void add_program(const hk_algorithm *a, const hk_build *what, double is[FIGURES]) {
  hk_program *p;
  char *text = NULL;
  size_t size;
  ck_assert_msg(hk_algorithm_build(a, what, &p) == HK_OK, "%s", hk_last_error());
  FILE *f = open_memstream(&text, &size);
  hk_program_dump(p, f);
  hk_program_json(p, f);
  fprintf(f, "%d %.6f %.6f", p->traits.one_shot, (double)p->traits.moves / p->blocks,
          (double)p->traits.moves_by_reference / p->blocks);
  fclose(f);
  is[0]++;
  is[1] += p->nlanes;
  is[2] += p->ninstrs;
  is[3] = golden_hash((uint32_t)is[3], text, size);
  free(text);
  hk_program_free(p);
}

TEST(programs) {
  static const int counts[] = {2, 3, 4, 6, 7, 12, 40};
  golden g = golden_open(GOLDEN, "program");
  for (int k = 0; hk_algorithms[k]; k++) {
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      const hk_algorithm *a = hk_algorithms[k];
      double is[FIGURES] = {0};
      for (int i = 0; i < (int)HK_ARRAY_LENGTH(counts) * LAYOUTS; i++) {
        int n = counts[i / LAYOUTS];
        hk_layout *l = layout_of(i % LAYOUTS, n);
        hk_machine m = machine_of(l, n);
        for (int r = 0; r < n && hk_algorithm_supports(a, &m.team, (hk_coll)c); r++)
          add_program(a,
                      &(hk_build){.coll = (hk_coll)c,
                                  .rank = r,
                                  .nranks = n,
                                  .root = hk_coll_has_root((hk_coll)c) ? i % n : 0,
                                  .layout = l,
                                  .channel = i % 3},
                      is);
        hk_layout_free(l);
      }
      if (is[0] > 0) check_figures(&g, "program", a->name, c, is);
    }
  }
  golden_close(&g);
}

/* ---- prices ---- */

static double any(double most) { return most * rnd(1000) / 1000; }

/* Each number in a statement of its own: their order is the same with every compiler. */
static hk_level any_level(void) {
  hk_level l = {.alpha_us = any(10)};
  l.message_us = any(2);
  l.link_us = any(1) * rnd(2);
  l.ring_us_per_b = any(1e-3) * (rnd(4) > 0);
  l.mesh_us_per_b = any(1e-3);
  l.one_us_per_b = any(1e-3) * rnd(2);
  return l;
}

static hk_machine of_hosts(int hosts, int per, int least) {
  hk_host_facts f = {.team.nranks = (hosts - 1) * per + least,
                     .team.nhosts = hosts,
                     .team.ranks_per_host = per,
                     .team.least_per_host = least};
  f.cores_per_host = 1 + (int)rnd(16);
  f.memory = rnd(2);
  f.team.multicast = rnd(2) && hosts == 1;
  f.slot_bytes = (size_t)1024 << rnd(10);
  return hk_machine_of_hosts(&f, NULL);
}

static hk_machine of_gpus(int hosts, int per, int least) {
  hk_gpu_facts f = {.team.nranks = (hosts - 1) * per + least,
                    .team.nhosts = hosts,
                    .team.ranks_per_host = per,
                    .team.least_per_host = least};
  f.ranks_per_gpu = 1 + (int)rnd(2);
  f.sm = 70 + 10 * (int)rnd(4);
  f.max_channels = 1 << rnd(6);
  f.wide = rnd(2);
  f.staged = rnd(2);
  f.team.in_switch = rnd(2);
  f.slot_bytes = (size_t)1024 << rnd(10);
  f.nslots = 8;
  f.prices.inside = any_level();
  f.prices.gamma_us_per_b = any(1e-5);
  f.prices.copy_us_per_b = any(1e-5);
  f.prices.known = rnd(2);
  return hk_machine_of_gpus(&f, &hk_constants_default);
}

static hk_machine any_machine(void) {
  int hosts = rnd(3) ? 1 + (int)rnd(5) : 1;
  uint32_t most = rnd(4) ? 9 : 40;
  int per = 1 + (int)rnd(most);
  int least = hosts > 1 && rnd(3) == 0 ? 1 + (int)rnd((uint32_t)per) : per;
  hk_machine m = rnd(2) ? of_hosts(hosts, per, least) : of_gpus(hosts, per, least);
  m.team.in_network = rnd(2);
  if (rnd(2)) m.between = any_level();
  if (rnd(4) == 0) m.rings = (int)rnd(5);
  if (rnd(4) == 0) m.channel_us_per_b = any(1e-3);
  return with_outlines(m);
}

TEST(prices) {
  static hk_machine machines[MACHINES];
  static size_t bytes[MACHINES];
  fuzz_state = 1;
  for (int i = 0; i < MACHINES; i++) {
    machines[i] = any_machine();
    bytes[i] = rnd64();
    bytes[i] >>= 20 + rnd(44);
  }
  golden g = golden_open(GOLDEN, "price");
  for (int k = 0; hk_algorithms[k]; k++) {
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      const hk_algorithm *a = hk_algorithms[k];
      double is[FIGURES] = {0};
      for (int i = 0; i < MACHINES; i++) {
        hk_machine m = machines[i];
        if (m.team.nranks < 2 || !hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
        is[0]++;
        is[1] += log1p(price_of(a, &m, (hk_coll)c, bytes[i])) * (1 + i % 7);
        is[2] += (double)chunk_of(a, &m, (hk_coll)c, bytes[i]) * (1 + i % 7);
        m = hk_machine_as(&m, (hk_protocol)(i % HK_PROTO_COUNT), 1 + i % 32);
        is[3] += log1p(price_of(a, &m, (hk_coll)c, bytes[i])) * (1 + i % 7);
      }
      if (is[0] > 0) check_figures(&g, "price", a->name, c, is);
    }
  }
  golden_close(&g);
}

/* ---- machines ---- */

static const char *const clusters[] = {
    "dgx-h100",
    "dgx-v100",
    "pcie-1s",
    "pcie-2s",
    "nvl72",
    "mi300x",
    "4xv100:mesh nvlink=3 nic=2x100 switch=2",
    "nodes=2 of 3xa100:nvswitch6 nic=2x200",
    "nodes=5 of 8xa10g:pcie cpu=2xrome nic=1x100 net=eth gdr=0",
    "nodes=2 of dgx-h100 and nodes=2 of dgx-v100",
    "nodes=2 of dgx-a100 and nodes=1 of pcie-2s",
    "nodes=8 of 2xh100:nvswitch4 nic=2x400 fabric=rail,fattree,leaf=2,spines=3",
    "nodes=6 of 4xh100:nvswitch2 nic=4x400 fabric=fattree,leaf=2,oversub=4",
    "nodes=4 of 4xh100:nvswitch2 nic=4x400 fabric=rail,fattree,oversub=8",
    "1xcpu cores=5",
    "nodes=9 of 1xcpu cores=3 nic=1x100 fabric=fattree,leaf=4,oversub=2",
};

static void check_machine(golden *g, const char *name, const hk_machine *m) {
  const hk_level *l[] = {&m->inside, &m->between};
  golden_figures(
      g, name, "ranks, hosts, ranks of the largest and the smallest, cores", 5,
      (double[]){m->team.nranks, m->team.nhosts, m->team.ranks_per_host, m->team.least_per_host, m->cores_per_host});
  golden_figures(g, name, "capabilities, channels, rings, bytes of a slot", 5,
                 (double[]){m->team.multicast + 2 * m->team.in_switch + 4 * m->team.in_network + 8 * m->team.overlap +
                                16 * m->protocols,
                            m->channels, m->max_channels, m->rings, (double)m->slot_bytes});
  golden_figures(g, name, "memory, switch and launch", 4,
                 (double[]){m->gamma_us_per_b, m->copy_us_per_b, m->switch_us, m->launch_us});
  golden_figures(g, name, "synchronisation and channels", 4,
                 (double[]){m->sync_us, m->far_sync_us, m->channel_us, m->channel_us_per_b});
  for (int i = 0; i < 2; i++)
    golden_figures(g, name, i ? "between hosts" : "inside", 6,
                   (double[]){l[i]->alpha_us, l[i]->message_us, l[i]->link_us, l[i]->ring_us_per_b, l[i]->mesh_us_per_b,
                              l[i]->one_us_per_b});
}

/* The load of all programs on the links inside a host, and between hosts. */
static void check_traffic(golden *g, const char *name, const hk_cluster *c, const hk_placement *placements,
                          const hk_layout *l, const hk_machine *m) {
  hk_outlines *o;
  double is[6] = {0};
  ck_assert_msg(hk_outlines_of(&o, c, placements, m, l, NULL, NULL) == HK_OK, "%s: %s", name, hk_last_error());
  for (int k = 0; hk_algorithms[k]; k++)
    for (int coll = 0; coll <= HK_SCATTER; coll++) {
      const hk_outline *x;
      if (!hk_algorithm_supports(hk_algorithms[k], &m->team, (hk_coll)coll)) continue;
      ck_assert_int_eq(hk_outlines_get(o, hk_algorithms[k], (hk_coll)coll, &x), HK_OK);
      if (!x) continue;
      const hk_traffic *t = &x->traffic;
      const double add[] = {t->alpha_us, t->turns_us, t->all_us, t->one_us, t->far[0], t->far[HK_TRAFFIC_ORDERS]};
      for (int i = 0; i < 6; i++) is[i] += add[i] * (1 + k);
    }
  golden_figures(g, name, "traffic", 6, is);
  hk_outlines_free(o);
}

static void check_layout(golden *g, const char *name, const hk_layout *l) {
  double is[FIGURES] = {hk_layout_hosts(l), l->most, l->least, 0};
  for (int r = 0; r < l->nranks; r++) {
    hk_program *p;
    const hk_build what = {.coll = HK_ALLGATHER, .rank = r, .nranks = l->nranks, .layout = l, .channel = r % 3};
    ck_assert_int_eq(hk_algorithm_build(hk_algorithm_by_name("ring"), &what, &p), HK_OK);
    is[3] = golden_hash((uint32_t)is[3], hk_program_links(p), p->nlinks * sizeof *hk_program_links(p));
    hk_program_free(p);
  }
  golden_figures(g, name, "layout", 4, is);
}

/* With all placements and with some, with the rings that a search finds and without. */
TEST(machines) {
  golden g = golden_open(GOLDEN, "machine");
  for (size_t i = 0; i < HK_ARRAY_LENGTH(clusters); i++) {
    hk_cluster *c;
    ck_assert_msg(hk_cluster_from_string(&c, clusters[i]) == HK_OK, "%s", hk_last_error());
    for (int per = 0; per < 4; per += 3)
      for (int searched = 0; searched < 2; searched++) {
        hk_placement *placements;
        hk_paths *paths;
        hk_channels *rings = NULL;
        hk_machine m;
        hk_layout *l = NULL;
        char name[200];
        int n, first = 0;
        uint32_t nodes[128];
        setenv("NCCL_COLLNET_ENABLE", searched ? "1" : "0", 1);
        hk_param_refresh(HK_P_COLLNET_ENABLE);
        ck_assert_int_eq(hk_cluster_placements(c, per, &placements, &n), HK_OK);
        n -= per > 0 && n > per + 1; /* the last host has a rank less */
        while (first < n && placements[first].host == 0) nodes[first] = placements[first].node, first++;
        const hk_topo *t = hk_cluster_host(c, 0);
        hk_search what = {.pattern = HK_PATTERN_RING, .nodes = nodes, .nranks = first, .network = c->nhosts > 1};
        ck_assert_int_eq(hk_paths_new(&paths, t, NULL), HK_OK);
        if (searched && first > 1 && first <= HK_SEARCH_RANKS && t->nodes[nodes[0]].kind == HK_NODE_GPU)
          ck_assert_int_eq(hk_search_channels(&rings, paths, &what), HK_OK);
        snprintf(name, sizeof name, "machine|%s|%d%s", clusters[i], n, rings ? " searched" : "");
        ck_assert_msg(hk_machine_of(&m, c, placements, n, rings, NULL) == HK_OK, "%s: %s", name, hk_last_error());
        check_machine(&g, name, &m);
        ck_assert_msg(hk_layout_of(&l, c, placements, n, rings) == HK_OK, "%s: %s", name, hk_last_error());
        check_layout(&g, name, l);
        check_traffic(&g, name, c, placements, l, &m);
        hk_layout_free(l);
        hk_channels_free(rings);
        hk_paths_free(paths);
        free(placements);
      }
    hk_cluster_free(c);
  }
  golden_close(&g);
}

/* Choices by their prices: of two equal ones either may be taken. */
TEST(choices) {
  static hk_alternative all[HK_ALTERNATIVES];
  fuzz_state = 2;
  golden g = golden_open(GOLDEN, "choice");
  for (int c = 0; c < HK_COLL_COUNT; c++) {
    double is[FIGURES] = {0};
    for (int i = 0; i < MACHINES / 4; i++) {
      hk_machine m = any_machine();
      hk_filter w = {.min_channels = (int)rnd(9)};
      w.max_channels = (int)rnd(33);
      w.efficient = rnd(4) == 0;
      w.batch_invariant = rnd(4) == 0;
      w.barred[c] = rnd(2) ? (uint32_t)rnd64() & 0x1ffff : 0;
      w.barred_protocols[c] = rnd(2) ? (uint8_t)rnd(8) : 0;
      size_t bytes = rnd64();
      bytes >>= 24 + rnd(40);
      hk_decision d;
      ck_assert_int_eq(hk_select(&m, &w, (hk_coll)c, bytes, &d), HK_OK);
      is[0] += log1p(d.us) * (1 + i % 7);
      is[1] += (d.note != NULL) * (1 + i % 7) + d.overruled * 10;
      int n;
      ck_assert_int_eq(hk_select_all(&m, &w, (hk_coll)c, bytes, all, &n), HK_OK);
      is[2] += n;
      for (int k = 0; k < n; k++)
        is[3] += log1p(all[k].what.us) * (1 + k) + (double)(all[k].why ? strlen(all[k].why) : 0);
    }
    check_figures(&g, "choice", "all", c, is);
  }
  golden_close(&g);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("programs and prices as before");
}
