/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan */
/* What the simulator says of each link and each step, on machines of all kinds, is what tests/golden/loads.txt says:
 * names, speeds and use of the links, and a hash of the timeline. Sums of them, as in test_figures, hide which link it
 * is. HOCKET_TEST_UPDATE=1 writes the file again. */
#include "../../src/base/log.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../support/golden.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/loads.txt"

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

static void look(const golden *g, const char *what, const hk_simulator *x, hk_coll coll, size_t bytes, bool folded) {
  hk_sim_options o = {.protocol = -1, .exact = !folded, .folded = folded, .timeline = !folded};
  hk_sim_result r;
  char name[240];
  ck_assert_msg(hk_sim_run(&r, x, coll, bytes, &o) == HK_OK, "%s: %s", what, hk_last_error());
  snprintf(name, sizeof name, "%s|%s|%zu|%d", what, hk_coll_name(coll), bytes, folded);
  golden_line(g, name, (double[]){r.us, r.nspans, hash_of(&r), r.priced_us});
  const double last = r.nloads == MOST ? r.loads[MOST - 1].used * (1 + 1e-9)
                                       : 0;           /* its equals may not be in the list */
  qsort(r.loads, r.nloads, sizeof *r.loads, by_name); /* rounding decides about equals */
  for (uint32_t i = 0; i < r.nloads; i++) {
    if (r.loads[i].used <= last) continue;
    snprintf(name, sizeof name, "  %s", r.loads[i].name);
    golden_line(g, name, (double[]){r.loads[i].gbps, r.loads[i].used, 0, 0});
  }
  hk_sim_result_clear(&r);
}

START_TEST(as_before) {
  golden g = golden_open(GOLDEN, machines[_i].machine);
  hk_cluster *c;
  hk_simulator *x;
  ck_assert_msg(hk_cluster_from_string(&c, machines[_i].machine) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, machines[_i].per_host) == HK_OK, "%s", hk_last_error());
  for (int folded = 0; folded < 2; folded++) {
    look(&g, machines[_i].machine, x, HK_ALLREDUCE, 3000000, folded);
    look(&g, machines[_i].machine, x, HK_ALLTOALL, 70000, folded);
    look(&g, machines[_i].machine, x, HK_BROADCAST, 5000, folded);
  }
  hk_simulator_free(x);
  hk_cluster_free(c);
  fclose(g.file);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("sim_golden");
  golden_clear(GOLDEN);
  tcase_set_timeout(t, 60);
  tcase_add_loop_test(t, as_before, 0, sizeof machines / sizeof *machines);
  return suite_run_one("sim_golden", t);
}
