/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan */
/* What the simulator says of links and steps, on machines of all kinds, is what tests/golden/loads.txt says: speeds and
 * use of the links, the one that is used most, and a hash of the timeline. HOCKET_TEST_UPDATE=1 writes the file again.
 * Runs of any collective with any options are in tests/golden/simulated.txt. */
#include "../../src/base/log.h"
#include "../../src/collectives/algorithm.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../../src/topo/xml.h"
#include "../support/fuzz.h"
#include "../support/golden.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/loads.txt"
#define ANY "tests/golden/simulated.txt"

/* With and without peer to peer, NVLinks in three forms, sockets, and fabrics with and without rails. */
static const struct {
  const char *machine;
  int per_host;
} machines[] = {
    {"4xa100:nvswitch2 nic=2x100", 0},
    {"8xv100:cube", 0},
    {"4xa100:mesh", 0},
    {"8xt4:pcie numa=2 switch=2", 0},
    {"4xrtx4090:pcie numa=2", 0},
    {"nodes=2 of 4xrtx4090:pcie numa=2 nic=1x100", 0},
    {"2xcpu cores=4", 6},
    {"nodes=3 of 2xcpu cores=2 nic=1x25", 3},
    {"nodes=4 of 2xh100:nvswitch4 nic=2x400 fabric=rail,fattree,leaf=2,spines=2", 0},
    {"nodes=4 of 2xh100:nvswitch4 nic=1x400 fabric=fattree,leaf=2,spines=2,oversub=2", 0},
    {"nodes=4 of 2xh100:nvswitch4 nic=2x400 fabric=rail,oversub=4", 0},
    {"nodes=4 of 2xh100:nvswitch4 nic=1x400 fabric=oversub=4", 0},
    {"nodes=4 of 2xh100:nvswitch4 nic=1x400 fabric=fattree,leaf=4,spines=2,oversub=4", 0},
};

/* To a few digits: another compiler may round in another way. */
static uint32_t hash_of(const hk_sim_result *r) {
  uint32_t hash = 2166136261u;
  for (uint32_t i = 0; i < r->nspans; i++) {
    const hk_sim_span *s = &r->spans[i];
    const uint32_t parts[] = {s->rank, s->lane, s->instr, s->wave, (uint32_t)(s->end_us - s->begin_us + 0.01)};
    hash = golden_hash(hash, parts, sizeof parts);
  }
  return hash;
}

enum { MOST = 32 }; /* links in a result */
static int by_name(const void *a, const void *b) {
  return strcmp(((const hk_sim_load *)a)->name, ((const hk_sim_load *)b)->name);
}

/* The busiest come first; equals, which rounding may make different, by name. */
static void check_order(const hk_sim_result *r) {
  for (uint32_t i = 1; i < r->nloads; i++) {
    const hk_sim_load *a = &r->loads[i - 1], *b = &r->loads[i];
    ck_assert(a->used > b->used || (a->used == b->used && strcmp(a->name, b->name) < 0));
  }
}

/* The links by name, each with a weight, so that the sums tell which one it is; then the busiest one. */
static void check_loads(golden *g, const char *machine, const hk_simulator *x, hk_coll coll, size_t bytes,
                        bool folded) {
  hk_sim_options o = {.protocol = -1, .exact = !folded, .folded = folded, .timeline = !folded};
  hk_sim_result r;
  char group[240], busiest[sizeof r.loads[0].name] = "";
  double n = 0, gbps = 0, used = 0;
  ck_assert_msg(hk_sim_run(&r, x, coll, bytes, &o) == HK_OK, "%s: %s", machine, hk_last_error());
  snprintf(group, sizeof group, "%s|%s|%zu%s", machine, hk_coll_name(coll), bytes, folded ? "|folded" : "");
  golden_figures(g, group, "time, spans, their hash, price", 4, (double[]){r.us, r.nspans, hash_of(&r), r.priced_us});
  check_order(&r);
  const double last = r.nloads == MOST ? r.loads[MOST - 1].used * (1 + 1e-9)
                                       : 0; /* its equals may not be in the list */
  const double most = r.nloads ? r.loads[0].used * (1 - 1e-9) : 0;
  qsort(r.loads, r.nloads, sizeof *r.loads, by_name); /* rounding decides about equals */
  for (uint32_t i = 0; i < r.nloads; i++) {
    const hk_sim_load *l = &r.loads[i];
    if (l->used <= last) continue;
    const double weight = 1 + golden_hash(0, l->name, strlen(l->name)) % 97;
    n++, gbps += l->gbps * weight, used += l->used * weight;
    if (!*busiest && l->used >= most) snprintf(busiest, sizeof busiest, "%s", l->name);
  }
  golden_figures(g, group, "links, their speeds, their use, the most used one's", 4, (double[]){n, gbps, used, most});
  for (char *c = busiest; *c; c++) *c = *c == ' ' ? '_' : *c;
  golden_word(g, group, "the most used link", *busiest ? busiest : "none", "");
  hk_sim_result_clear(&r);
}

TEST_LOOP(as_before, HK_ARRAY_LENGTH(machines)) {
  golden g = golden_open(GOLDEN, machines[_i].machine);
  hk_cluster *c;
  hk_simulator *x;
  ck_assert_msg(hk_cluster_from_string(&c, machines[_i].machine) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, machines[_i].per_host) == HK_OK, "%s", hk_last_error());
  for (int folded = 0; folded < 2; folded++) {
    check_loads(&g, machines[_i].machine, x, HK_ALLREDUCE, 3000000, folded);
    check_loads(&g, machines[_i].machine, x, HK_ALLTOALL, 70000, folded);
    check_loads(&g, machines[_i].machine, x, HK_BROADCAST, 5000, folded);
  }
  hk_simulator_free(x);
  hk_cluster_free(c);
  golden_close(&g);
}

/* Small ones, so that there is time for many runs. */
static const struct {
  const char *machine;
  int per_host;
} small[] = {
    {"1xcpu cores=3", 3},
    {"2xcpu cores=2", 7},
    {"nodes=2 of 1xcpu cores=2 nic=1x25 net=eth", 2},
    {"nodes=3 of 1xcpu cores=4 nic=2x100", 5},
    {"nodes=2 of 1xcpu cores=1 nic=1x100 fabric=base=5", 1},
    {"1xh100", 0},
    {"2xh100:nvswitch4", 0},
    {"4xh100:nvswitch4 nic=2x400", 0},
    {"6xb200:nvswitch2", 0},
    {"3xa100:mesh", 0},
    {"4xa100:pairs nic=1x200", 0},
    {"4xl40s:pcie2 nic=1x100", 0},
    {"3xrtx4090:pcie numa=2", 0},
    {"5xmi300x:mesh", 0},
    {"4xgb200", 0},
    {"4xgb200 trays=2", 0},
    {"nodes=2 of 2xh100:nvswitch4 nic=2x400", 0},
    {"nodes=2 of 3xa100:nvswitch6 nic=3x200 gdr=0", 0},
    {"nodes=3 of 2xa100:pcie1 nic=1x100 net=eth", 0},
    {"nodes=4 of 1xh100 nic=1x400 fabric=fattree,leaf=1,spines=2", 0},
    {"nodes=6 of 1xh100 nic=2x200 fabric=rail,fattree,leaf=2,spines=2,oversub=2", 0},
    {"nodes=5 of 2xh100:nvswitch4 nic=2x400 fabric=fattree,leaf=2,adaptive,hop=1,base=4", 0},
    {"nodes=9 of 1xl4 nic=1x100 fabric=fattree,leaf=4,spines=2", 0},
    {"nodes=8 of 2xa100:nvswitch6 nic=2x200 fabric=rail,fattree,leaf=3,spines=2", 0},
    {"nodes=3 of 2xh100:nvswitch4 nic=2x400 fabric=rail,fattree,leaf=3,oversub=4", 0},
    {"nodes=3 of 1xl40s nic=1x400 fabric=fattree,leaf=3,hop=2", 0},
    {"nodes=2 of 2xl4 nic=1x100 and nodes=2 of 3xa100:mesh nic=1x200", 0},
    {"nodes=2 of 4xv100:pairs nic=2x100 and 1xh100 nic=1x400 fabric=rail,fattree,leaf=1", 0},
};

/* What a run says, or why it cannot be. */
static void print_run(FILE *out, const hk_simulator *x, hk_coll coll, size_t bytes, const hk_sim_options *o) {
  hk_sim_result r;
  fprintf(out, "%s %zu, %s, protocol %d, %d channels, chunk %zu, %d%d%d%d%d %d:\n", hk_coll_name(coll), bytes,
          o->algorithm ? o->algorithm : "any", o->protocol, o->channels, o->chunk, o->exact, o->folded, o->shifted,
          o->graph, o->timeline, (int)o->seed);
  if (hk_sim_run(&r, x, coll, bytes, o) != HK_OK) {
    fprintf(out, "  %s\n", hk_last_error());
    return;
  }
  fprintf(out, "  %.8g us, priced %.8g, %.8g %.8g GB/s, %s %d, %d of %d, chunk %zu, %llu steps, %d, %u spans: %08x\n",
          r.us, r.priced_us, r.algbw, r.busbw, r.algorithm, r.protocol, r.channels, r.nranks, r.chunk,
          (unsigned long long)r.steps, r.folded, r.nspans, hash_of(&r));
  check_order(&r);
  qsort(r.loads, r.nloads, sizeof *r.loads, by_name);
  for (uint32_t i = 0; i < r.nloads && r.nloads < MOST; i++)
    fprintf(out, "  %s: %.6g %.6g\n", r.loads[i].name, r.loads[i].gbps, r.loads[i].used);
  hk_sim_result_clear(&r);
}

TEST_LOOP(any_as_before, HK_ARRAY_LENGTH(small)) {
  golden g = golden_open(ANY, small[_i].machine);
  hk_cluster *c;
  hk_simulator *x;
  fuzz_begin_at(3);
  ck_assert_msg(hk_cluster_from_string(&c, small[_i].machine) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, small[_i].per_host) == HK_OK, "%s", hk_last_error());
  for (int part = 0; part < 10; part++) {
    char name[20], *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (int k = 0; k < 6; k++) {
      static const size_t sizes[] = {0, 8, 1000, 70000, 300000, 2000000, 9000000};
      hk_coll coll = (hk_coll)rnd(HK_COLL_COUNT);
      hk_sim_options o = {.protocol = rnd(3) ? -1 : (int)rnd(3)};
      o.channels = rnd(2) ? 0 : (int)rnd(4);
      o.chunk = rnd(2) ? 0 : 1 + rnd(300000);
      o.exact = rnd(2);
      o.folded = rnd(2);
      o.shifted = !rnd(4);
      if (o.shifted) o.exact = false;
      if (o.shifted) o.folded = true;
      o.graph = rnd(2);
      o.timeline = rnd(2);
      o.seed = rnd(3);
      const hk_algorithm *can[40];
      uint32_t n = 0;
      for (int i = 0; hk_algorithms[i]; i++)
        if (!rnd(12) || !hk_simulator_cannot(x, hk_algorithms[i], coll)) can[n++] = hk_algorithms[i];
      if (rnd(4) && n) o.algorithm = can[rnd(n)]->name;
      print_run(out, x, coll, sizes[rnd(HK_ARRAY_LENGTH(sizes))], &o);
    }
    fclose(out);
    snprintf(name, sizeof name, "part %d", part);
    golden_text(&g, small[_i].machine, name, text, size);
  }
  hk_simulator_free(x);
  hk_cluster_free(c);
  golden_close(&g);
}

/* A CPU whose cores are not known counts as one core. */
TEST(unknown_cores) {
  static const char *const files[] = {
      "<system version='1'><cpu numaid='0'/><cpu numaid='1'/></system>",
      "<system version='1'><cpu numaid='0' hk_cores='1'/><cpu numaid='1' hk_cores='1'/></system>"};
  double us[2];
  if (!hk_xml_available()) return;
  for (int i = 0; i < 2; i++) {
    hk_topo *t;
    hk_cluster *c;
    hk_simulator *x;
    hk_sim_result r;
    ck_assert_int_eq(hk_topo_parse_xml(&t, "cpus", files[i], strlen(files[i]), NULL, NULL), HK_OK);
    ck_assert_int_eq(hk_cluster_of(&c, t, 1), HK_OK);
    ck_assert_int_eq(hk_simulator_new(&x, c, 0), HK_OK);
    ck_assert_int_eq(hk_sim_run(&r, x, HK_ALLREDUCE, 1000000, NULL), HK_OK);
    us[i] = r.us;
    hk_sim_result_clear(&r);
    hk_simulator_free(x);
    hk_cluster_free(c);
  }
  ck_assert(us[0] > 0 && us[0] < 1e6);
  ck_assert_double_eq(us[0], us[1]);
}

TEST(too_many_ranks) {
  hk_cluster *c;
  hk_simulator *x;
  ck_assert_int_eq(hk_cluster_from_string(&c, "1xcpu cores=2"), HK_OK);
  ck_assert_int_eq(hk_simulator_new(&x, c, HK_RANKS_MOST + 1), HK_ERR_ARGUMENT);
  ck_assert_ptr_null(x);
  hk_cluster_free(c);
}

int main(void) {
  golden_clear(GOLDEN);
  golden_clear(ANY);
  setenv("NCCL_DEBUG", "NONE", 0);
  return suite_main("sim_golden", .timeout = 60);
}
