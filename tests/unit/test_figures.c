/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan */
/* The figures of the simulator and of the cost model are those of tests/golden/figures.txt: other tests compare them
 * with each other and with published ones, with tolerances that hide small faults. After a change of the model
 * HOCKET_TEST_UPDATE=1 writes the file again; look at the difference before you commit it. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
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
enum { FIGURES = 6 };

/* Writes a line for each algorithm, or compares it with the file's next line. */
static void look(FILE *golden, bool update, const hk_simulator *x, int s, hk_coll coll, size_t bytes) {
  for (int a = 0; hk_algorithms[a]; a++) {
    if (hk_simulator_cannot(x, hk_algorithms[a], coll)) continue;
    hk_sim_options o = {.algorithm = hk_algorithms[a]->name,
                        .protocol = -1,
                        .exact = settings[s].exact,
                        .folded = settings[s].folded || settings[s].shifted,
                        .shifted = settings[s].shifted};
    hk_sim_result r;
    char name[200], text[400] = "";
    double used = 0;
    hk_status rc = hk_sim_run(&r, x, coll, bytes, &o);
    if (rc != HK_OK && settings[s].shifted && strstr(hk_last_error(), "more than the simulator can hold")) continue;
    ck_assert_msg(rc == HK_OK, "%s: %s", settings[s].machine, hk_last_error());
    for (uint32_t i = 0; i < r.nloads; i++) used += r.loads[i].used * (1 + i % 3);
    double is[FIGURES] = {r.us, r.priced_us, r.busbw, used, (double)r.steps, r.channels}, was[FIGURES] = {0};
    snprintf(name, sizeof name, "%s|%d|%s|%zu|%s", settings[s].machine, s, hk_coll_name(coll), bytes, r.algorithm);
    hk_sim_result_clear(&r);
    if (update) {
      fprintf(golden, "%s|%.8g %.8g %.8g %.8g %.8g %.8g\n", name, is[0], is[1], is[2], is[3], is[4], is[5]);
      continue;
    }
    ck_assert_msg(fgets(text, sizeof text, golden) && !strncmp(text, name, strlen(name)), "%s, not %s", text, name);
    char *at = text + strlen(name) + 1;
    for (int i = 0; i < FIGURES; i++) {
      was[i] = strtod(at, &at);
      ck_assert_msg(fabs(is[i] - was[i]) <= 1e-6 * fabs(was[i]), "%s: figure %d is %.8g, was %.8g", name, i, is[i],
                    was[i]);
    }
  }
}

START_TEST(as_before) {
  bool update = getenv("HOCKET_TEST_UPDATE");
  FILE *golden = fopen(GOLDEN, update ? "w" : "r");
  ck_assert_msg(golden, "%s cannot be opened: run this in the repository's root", GOLDEN);
  for (int s = 0; s < (int)HK_ARRAY_LENGTH(settings); s++) {
    hk_cluster *c;
    hk_simulator *x;
    ck_assert_msg(hk_cluster_from_string(&c, settings[s].machine) == HK_OK, "%s", hk_last_error());
    ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
    for (int coll = 0; coll < HK_COLL_COUNT; coll++)
      for (size_t bytes = 1000; bytes <= 40000000; bytes *= 200) look(golden, update, x, s, (hk_coll)coll, bytes);
    hk_simulator_free(x);
    hk_cluster_free(c);
  }
  fclose(golden);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("figures");
  tcase_add_test(t, as_before);
  return suite_run_one("figures", t);
}
