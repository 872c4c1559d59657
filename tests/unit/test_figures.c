/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan */
/* The figures of the simulator and of the cost model are those of tests/golden/figures.txt: other tests compare them
 * with each other and with published ones, with tolerances that hide small faults. A line has those of an algorithm on
 * a machine, for each collective and size. */
#include "../../src/collectives/algorithm.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/golden.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/figures.txt"

static const struct {
  const char *machine;
  bool exact, folded, shifted;
} settings[] = {
    {"nodes=2 of 3xa100:nvswitch6 nic=2x200", .exact = true},
    {"nodes=3 of 2xa100:nvswitch6 nic=2x200", .folded = true},
    {"dgx-v100", .folded = true},
    {"8xh100:nvswitch4", .exact = true},
    {"nodes=2 of 1xcpu cores=3 nic=1x100", .exact = true},
    {"nodes=2 of 1xcpu cores=3 nic=1x100", .folded = true},
    {"nodes=6 of 2xh100:nvswitch4 nic=2x400 fabric=rail,fattree,leaf=2,spines=3", .folded = true},
    {"nodes=6 of 2xh100:nvswitch4 nic=2x400 fabric=rail,fattree,leaf=2,spines=3", .shifted = true},
};
/* The figures of an algorithm. */
static void check_figures(golden *g, const hk_simulator *x, int s, const hk_algorithm *a) {
  char group[200];
  snprintf(group, sizeof group, "%s|%d|%s", settings[s].machine, s, a->name);
  for (int coll = 0; coll < HK_COLL_COUNT; coll++)
    for (size_t bytes = 1000; bytes <= 40000000 && !hk_simulator_cannot(x, a, (hk_coll)coll); bytes *= 200) {
      hk_sim_options o = {.algorithm = a->name,
                          .protocol = -1,
                          .exact = settings[s].exact,
                          .folded = settings[s].folded || settings[s].shifted,
                          .shifted = settings[s].shifted};
      hk_sim_result r;
      char member[100];
      double used = 0;
      hk_status rc = hk_sim_run(&r, x, (hk_coll)coll, bytes, &o);
      if (rc != HK_OK && settings[s].shifted && strstr(hk_last_error(), "more than the simulator can hold")) continue;
      ck_assert_msg(rc == HK_OK, "%s: %s", settings[s].machine, hk_last_error());
      for (uint32_t i = 0; i < r.nloads; i++) used += r.loads[i].used * (1 + i % 3);
      /* algbw is bytes / us; busbw is that times a factor of the collective. */
      ck_assert_double_le(fabs(r.algbw * r.us - (double)bytes * 1e-3), 1e-6 * (double)bytes);
      snprintf(member, sizeof member, "%s of %zu: time, price, bus, use, steps, channels", hk_coll_name((hk_coll)coll),
               bytes);
      golden_figures(g, group, member, 6,
                     (double[]){r.us, r.priced_us, r.busbw * r.us / (double)bytes, used, (double)r.steps, r.channels});
      hk_sim_result_clear(&r);
    }
}

TEST(as_before) {
  golden g = golden_open(GOLDEN, "");
  for (int s = 0; s < (int)HK_ARRAY_LENGTH(settings); s++) {
    hk_cluster *c;
    hk_simulator *x;
    ck_assert_msg(hk_cluster_from_string(&c, settings[s].machine) == HK_OK, "%s", hk_last_error());
    ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
    for (int a = 0; hk_algorithms[a]; a++) check_figures(&g, x, s, hk_algorithms[a]);
    hk_simulator_free(x);
    hk_cluster_free(c);
  }
  golden_close(&g);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("figures");
}
