/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan timeout=300 */
/* The cost model against the simulator, which runs the programs: prices within 40%, and no choice by price more than
 * 20% slower than the best algorithm of all, on 1 to 32 hosts. */
#include <math.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/decide/protocol.h"
#include "../../src/sim/accuracy.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/suite.h"

enum { PERCENT = 20, KIB = 1 << 10, MIB = 1 << 20 };

typedef struct setting {
  const char *machine;
  unsigned colls;
  size_t largest;
  bool exact;
} setting;

#define BIT(c) (1u << HK_##c)
enum { ALL = BIT(ALLREDUCE) | BIT(BROADCAST) | BIT(REDUCE) | BIT(ALLGATHER) | BIT(REDUCE_SCATTER) | BIT(ALLTOALL) };

/* Where there are several hosts the flow level is what prices are held against: it is quick. */
static const setting settings[] = {
    {"dgx-v100", ALL | BIT(GATHER) | BIT(SCATTER), 256 * MIB, false}, /* ways over other GPUs, links of two widths */
    {"4xv100:mesh", ALL | BIT(GATHER) | BIT(SCATTER), 4 * MIB, false},
    {"dgx-a100", ALL, 64 * MIB, false},
    {"dgx-h100", ALL, 256 * MIB, false},
    {"nodes=2 of dgx-a100", ALL, 256 * MIB, false},
    /* Several ports near each GPU; the flow level puts channels with equal programs on one of them. */
    {"nodes=2 of dgx-a100 nic=16x100 net=eth", BIT(ALLREDUCE), 4 * MIB, true},
    {"nodes=4 of dgx-h100", ALL, 64 * MIB, false},
    {"nodes=16 of dgx-h100 fabric=rail,fattree", BIT(ALLREDUCE), 256 * MIB, false},
    {"nodes=32 of dgx-b200 fabric=rail,fattree", BIT(ALLREDUCE), 256 * MIB, false},
};

typedef struct tally {
  int prices, far_off;
  double sum, worst; /* percent */
} tally;

static double ratio_of(const hk_simulator *x, const setting *s, hk_coll coll, size_t bytes, tally *t) {
  double best = INFINITY, chosen = 0;
  hk_sim_options o = {.protocol = -1, .folded = !s->exact && !strncmp(s->machine, "nodes", 5)};
  hk_sim_result r;
  for (int i = -1; i < 0 || hk_algorithms[i]; i++) {
    if (i >= 0 && hk_simulator_cannot(x, hk_algorithms[i], coll)) continue;
    o.algorithm = i < 0 ? NULL : hk_algorithms[i]->name;
    ck_assert_msg(hk_sim_run(&r, x, coll, bytes, &o) == HK_OK, "%s: %s", s->machine, hk_last_error());
    double error = 100 * (r.priced_us / r.us - 1);
    if (i < 0) {
      chosen = r.us;
    } else {
      t->prices++;
      t->sum += fabs(error);
      t->worst = fmax(t->worst, fabs(error));
    }
    if (i >= 0 && fabs(error) > HK_PRICE_PERCENT) {
      printf("  %s: %s of %zu bytes by %s: %.1f us, priced at %.1f us\n", s->machine, hk_coll_name(coll), bytes,
             r.algorithm, r.us, r.priced_us);
      t->far_off++;
    }
    if (r.us < best) best = r.us;
    hk_sim_result_clear(&r);
  }
  return chosen / best;
}

TEST_LOOP(agrees, HK_ARRAY_LENGTH(settings)) {
  const setting *s = &settings[_i];
  hk_cluster *c;
  hk_simulator *x;
  tally t = {.prices = 0};
  double worst = 1;
  ck_assert_msg(hk_cluster_from_string(&c, s->machine) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
  for (int coll = 0; coll < HK_COLL_COUNT; coll++) {
    for (size_t bytes = KIB; s->colls >> coll & 1u && bytes <= s->largest; bytes *= 64) {
      double ratio = ratio_of(x, s, (hk_coll)coll, bytes, &t);
      if (ratio > 1 + PERCENT / 100.0)
        printf("  %s: %s of %zu bytes: the choice takes %.2f times the best\n", s->machine, hk_coll_name((hk_coll)coll),
               bytes, ratio);
      if (ratio > worst) worst = ratio;
    }
  }
  hk_simulator_free(x);
  hk_cluster_free(c);
  printf("  %s: %d prices are %.1f%% off on average, at most %.0f%%; the worst choice takes %.2f times the best\n",
         s->machine, t.prices, t.sum / t.prices, t.worst, worst);
  fflush(stdout);
  ck_assert_int_eq(t.far_off, 0);
  ck_assert_double_le(worst, 1 + PERCENT / 100.0);
}

int main(void) { return suite_main("model", .timeout = 300); }
