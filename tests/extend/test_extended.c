/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/suites/extend.sh runs in its copy of the tree: the verifier over the added programs, and three ranks that
 * use the added algorithm, transport and collective. */
#include <math.h>
#include <nccl.h>
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/prove_algorithms.h"
#include "../support/ranks.h"
#include "../support/suite.h"

ncclResult_t ncclMirrorGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                              ncclComm_t comm, cudaStream_t stream);

enum { RANKS = 3, COUNT = 100000 };

TEST(proved) {
  const char *const added[] = {"crossed", "mirror"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(added); i++) {
    const hk_algorithm *a = hk_algorithm_by_name(added[i]);
    ck_assert_ptr_nonnull(a);
    for (int n = 2; n <= 12; n++)
      prove_roots(a, n, 1, (prove_range){.first_slots = 2, .last_slots = 3, .out_of_place = true});
  }
}

/* ---- the choice, without any tuning ---- */

enum { KIB = 1 << 10 };
static const char *const machines[] = {
    "dgx-h100",
    "dgx-a100",
    "dgx-v100",
    "mi300x",
    "pcie-1s",
    "16xh100:nvswitch",
    "1xcpu cores=8",
    "2xcpu cores=16",
    "nodes=2 of dgx-h100",
    "nodes=3 of dgx-h100",
    "nodes=4 of dgx-h100",
    "nodes=8 of dgx-h100",
    "nodes=16 of dgx-h100 fabric=rail,fattree",
    "nodes=2 of dgx-a100",
    "nodes=6 of dgx-a100",
    "nodes=12 of dgx-a100",
    "nodes=2 of dgx-v100",
    "nodes=8 of dgx-v100",
    "nodes=4 of dgx-b200",
    "nodes=16 of dgx-b200 fabric=rail,fattree",
    "nodes=4 of mi300x",
    "nodes=8 of mi300x",
    "nodes=4 of pcie-2s",
    "nodes=8 of 2xh100:nvswitch nic=2x400",
    "nodes=16 of 2xa100:nvswitch nic=1x200",
    "nodes=8 of 4xh100:nvswitch4 nic=4x400",
    "nodes=8 of 4xh100:nvswitch4 nic=8x200",
    "nodes=32 of 4xgb200:nvswitch18 nic=4x400",
    "nodes=4 of p4d",
    "nodes=8 of dgx-2",
};

/* The simulator's times of the added algorithm and of the best other one, and whether the selector takes it. */
static void compare(const hk_simulator *x, size_t bytes, bool far, double *ours, double *others, bool *chosen) {
  hk_sim_options o = {.protocol = -1, .folded = far};
  hk_sim_result r;
  *ours = *others = INFINITY;
  for (int i = -1; i < 0 || hk_algorithms[i]; i++) {
    if (i >= 0 && hk_simulator_cannot(x, hk_algorithms[i], HK_ALLREDUCE)) continue;
    o.algorithm = i < 0 ? NULL : hk_algorithms[i]->name;
    ck_assert_msg(hk_sim_run(&r, x, HK_ALLREDUCE, bytes, &o) == HK_OK, "%s", hk_last_error());
    const bool added = !strcmp(r.algorithm, "crossed");
    if (i < 0) *chosen = added;
    double *best = added ? ours : others;
    if (i >= 0 && r.us < *best) *best = r.us;
    hk_sim_result_clear(&r);
  }
}

/* Where the simulator says that it is the best by more than a tenth, it is chosen; where it takes over 1.15 times as
 * long as the best, it is not. (Of the choices beyond 1.1 three are left: 1.13, 1.13, 1.11.) */
TEST(chosen) {
  int wins = 0, losses = 0, wrong = 0;
  for (size_t m = 0; m < HK_ARRAY_LENGTH(machines); m++) {
    hk_cluster *c;
    hk_simulator *x;
    ck_assert_msg(hk_cluster_from_string(&c, machines[m]) == HK_OK, "%s", hk_last_error());
    ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
    for (size_t bytes = 512; bytes <= 128 * KIB; bytes *= 16) {
      double ours, others;
      bool is;
      compare(x, bytes, c->nhosts > 1, &ours, &others, &is);
      const bool must = ours<0.9 * others, must_not = ours> 1.15 * others;
      wins += must;
      losses += must_not;
      if (!(must && !is) && !(must_not && is)) continue;
      printf("  %s, %zu bytes: %.1f us, the best other algorithm %.1f, and it is %schosen\n", machines[m], bytes, ours,
             others, is ? "" : "not ");
      wrong++;
    }
    hk_simulator_free(x);
    hk_cluster_free(c);
  }
  printf("  of %zu machines with 3 sizes, it is the best by a tenth in %d cases, and takes 1.15 times the best in %d\n",
         HK_ARRAY_LENGTH(machines), wins, losses);
  fflush(stdout);
  ck_assert_int_eq(wrong, 0);
}

static int sum_and_gather(ncclComm_t comm, int rank, int nranks, void *arg) {
  float *in = malloc(COUNT * sizeof *in), *out = malloc((size_t)nranks * COUNT * sizeof *out);
  int faults = 0;
  (void)arg;
  for (int i = 0; i < COUNT; i++) in[i] = (float)(1000 * rank + i % 997);
  faults += RANK_CHECK(ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) faults += out[i] != (float)(1000 * nranks * (nranks - 1) / 2 + nranks * (i % 997));
  for (int place = 0; place < 2; place++) { /* out of place, then in place */
    float *from = place ? out + (size_t)(nranks - 1 - rank) * COUNT : in;
    memset(out, 0, (size_t)nranks * COUNT * sizeof *out);
    if (place) memcpy(from, in, COUNT * sizeof *in);
    faults += RANK_CHECK(ncclMirrorGather(from, out, COUNT, ncclFloat, comm, NULL));
    for (int b = 0; b < nranks; b++)
      for (int i = 0; i < COUNT; i++)
        faults += out[(size_t)b * COUNT + (size_t)i] != (float)(1000 * (nranks - 1 - b) + i % 997);
  }
  free(in);
  free(out);
  return faults;
}

TEST(three_ranks) { ck_assert_int_eq(ranks_as_threads(RANKS, sum_and_gather, NULL), 0); }

int main(void) { return suite_main("extended", .timeout = 100); }
