/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan noasan */
/* The simulator: fair rates, sense and determinism, the flow level against the event level, size.  Under ASan
 * test_sim_published runs the same code in less time. */
#include <math.h>
#include <sys/resource.h>
#include <time.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/decide/machine.h"
#include "../../src/decide/outlines.h"
#include "../../src/decide/protocol.h"
#include "../../src/decide/select.h"
#include "../../src/program/builder.h"
#include "../../src/program/layout.h"
#include "../../src/program/summary.h"
#include "../../src/sim/flow.h"
#include "../../src/sim/sim.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/suite.h"

enum { MIB = 1 << 20, GIB = 1 << 30 };

static hk_cluster *cluster;
static hk_simulator *last;
static void forget(void) {
  hk_simulator_free(last);
  hk_cluster_free(cluster);
  last = NULL;
  cluster = NULL;
}

/* It goes with the next one, or when the test ends. */
static hk_simulator *simulator(const char *machine, int per_host) {
  forget();
  ck_assert_msg(hk_cluster_from_string(&cluster, machine) == HK_OK, "%s: %s", machine, hk_last_error());
  ck_assert_msg(hk_simulator_new(&last, cluster, per_host) == HK_OK, "%s: %s", machine, hk_last_error());
  return last;
}

static hk_sim_result run(const char *machine, int per_host, hk_coll coll, size_t bytes, const hk_sim_options *o) {
  hk_simulator *x = simulator(machine, per_host);
  hk_sim_result r;
  ck_assert_msg(hk_sim_run(&r, x, coll, bytes, o) == HK_OK, "%s: %s", machine, hk_last_error());
  return r;
}

static double time_of(const char *machine, hk_coll coll, size_t bytes, const hk_sim_options *o) {
  hk_sim_result r = run(machine, 0, coll, bytes, o);
  double us = r.us;
  hk_sim_result_clear(&r);
  return us;
}

/* ---- rates ---- */

enum { RESOURCES = 12, FLOWS = 40 };

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u, *state >> 8; }

/* Max-min fair: nothing is over its capacity, and who goes slower than it could alone is held by a full resource on
 * which nobody goes faster. */
static void check_fair(const hk_net *n, hk_flow *const *flows, int count) {
  double used[RESOURCES] = {0};
  for (int i = 0; i < count; i++)
    for (uint32_t k = 0; k < flows[i]->n; k++)
      used[flows[i]->entries[k].resource] += flows[i]->entries[k].weight * flows[i]->rate;
  for (int r = 0; r < RESOURCES; r++) ck_assert_double_le(used[r], n->resources[r].capacity * 1.000001);
  for (int i = 0; i < count; i++) {
    bool held = flows[i]->rate >= flows[i]->limit * 0.999999;
    for (uint32_t k = 0; k < flows[i]->n && !held; k++) {
      uint32_t r = flows[i]->entries[k].resource;
      bool fastest = used[r] >= n->resources[r].capacity * 0.999999;
      for (int j = 0; j < count && fastest; j++)
        for (uint32_t m = 0; m < flows[j]->n; m++)
          if (flows[j]->entries[m].resource == r && flows[j]->rate > flows[i]->rate * 1.000001) fastest = false;
      held = fastest;
    }
    ck_assert_msg(held, "flow %d could go faster than %g", i, flows[i]->rate);
  }
}

TEST_LOOP(fair, 30) {
  uint32_t random = (uint32_t)_i + 1;
  hk_net n = {.now = 0};
  hk_flow flows[FLOWS] = {{.left = 0}}, *active[FLOWS];
  bool going[FLOWS] = {false};
  uint32_t r;
  for (int i = 0; i < RESOURCES; i++) ck_assert(hk_net_add(&n, 100 + next_random(&random) % 900, &r) == HK_OK);
  int count = 0;
  for (int step = 0; step < 400; step++) {
    hk_flow *f = &flows[next_random(&random) % FLOWS];
    if (!going[f - flows]) {
      going[f - flows] = true;
      hk_flow_reset(f);
      f->end.id = (uint32_t)(f - flows);
      for (uint32_t k = 0; k < 1 + next_random(&random) % 4; k++)
        ck_assert(hk_flow_use(&n, f, next_random(&random) % RESOURCES, 1 + next_random(&random) % 3) == HK_OK);
      ck_assert(hk_flow_start(&n, f, 1000 + next_random(&random) % 100000, 20 + next_random(&random) % 500) == HK_OK);
      active[count++] = f;
    }
    hk_sim_event *e;
    if (next_random(&random) % 3 && step < 300) continue; /* several start at one moment */
    ck_assert(hk_net_next(&n, &e) == HK_OK);
    ck_assert_ptr_nonnull(e);
    hk_flow *ended = (hk_flow *)e;
    check_fair(&n, active, count);
    hk_flow_stop(&n, ended);
    going[ended - flows] = false;
    for (int i = 0; i < count; i++)
      if (active[i] == ended) active[i--] = active[--count];
  }
  for (int i = 0; i < FLOWS; i++) hk_flow_clear(&flows[i]);
  hk_net_free(&n);
}

/* ---- sense ---- */

TEST(deterministic) {
  hk_sim_options o = {.protocol = -1, .timeline = true};
  hk_sim_result a = run("nodes=2 of dgx-h100", 0, HK_ALLREDUCE, 8 * MIB, &o);
  hk_sim_result b = run("nodes=2 of dgx-h100", 0, HK_ALLREDUCE, 8 * MIB, &o);
  ck_assert(a.us == b.us && a.steps == b.steps && a.nspans == b.nspans && a.nspans == a.steps);
  for (uint32_t i = 0; i < a.nspans; i++)
    ck_assert(a.spans[i].begin_us == b.spans[i].begin_us && a.spans[i].instr == b.spans[i].instr);
  ck_assert_str_eq(a.loads[0].name, b.loads[0].name);
  hk_sim_result_clear(&a);
  hk_sim_result_clear(&b);
}

/* Every algorithm of the registry runs to its end on GPUs and CPUs, at sizes with and without rests, and no link is
 * busy for more than the whole time. */
TEST(all_algorithms) {
  static const char *const machines[] = {"nodes=2 of 3xa100:nvswitch6 nic=2x200", "8xh100:nvswitch4", "1xcpu cores=5"};
  for (unsigned m = 0; m < HK_ARRAY_LENGTH(machines); m++) {
    hk_simulator *x = simulator(machines[m], 0);
    for (int coll = 0; coll < HK_COLL_COUNT; coll++) {
      for (int a = 0; hk_algorithms[a]; a++) {
        if (hk_simulator_cannot(x, hk_algorithms[a], (hk_coll)coll)) continue;
        for (size_t bytes = 1; bytes < 4 * MIB; bytes = bytes * 37 + 1) {
          for (int flow = 0; flow < 2; flow++) {
            hk_sim_options o = {.algorithm = hk_algorithms[a]->name, .protocol = -1, .folded = flow};
            hk_sim_result r;
            ck_assert_msg(hk_sim_run(&r, x, (hk_coll)coll, bytes, &o) == HK_OK, "%s: %s", machines[m], hk_last_error());
            ck_assert(r.us > 0 && isfinite(r.us));
            for (uint32_t i = 0; i < r.nloads; i++) ck_assert_double_le(r.loads[i].used, 1.001);
            hk_sim_result_clear(&r);
          }
        }
      }
    }
  }
}

/* More bytes take longer, by at least what the narrowest link needs for the difference. */
TEST(grows) {
  double before = 0;
  for (size_t bytes = 1024; bytes <= 256 * MIB; bytes *= 4) {
    hk_sim_options o = {.algorithm = "ring", .protocol = HK_PROTO_SIMPLE, .channels = 8};
    double us = time_of("dgx-a100", HK_ALLREDUCE, bytes, &o);
    ck_assert_double_ge(us, before * 0.999);
    ck_assert_double_ge(us, 2.0 * 7 / 8 * (double)bytes / 240e3);
    before = us;
  }
}

/* The protocols are there for a reason. */
TEST(protocols) {
  hk_sim_options ll = {.algorithm = "ring", .protocol = HK_PROTO_LL, .channels = 8};
  hk_sim_options simple = {.algorithm = "ring", .protocol = HK_PROTO_SIMPLE, .channels = 8};
  ck_assert_double_lt(time_of("dgx-h100", HK_ALLREDUCE, 8192, &ll), time_of("dgx-h100", HK_ALLREDUCE, 8192, &simple));
  ll.channels = simple.channels = 32; /* the links are the limit */
  ck_assert_double_gt(time_of("dgx-h100", HK_ALLREDUCE, 256 * MIB, &ll),
                      1.5 * time_of("dgx-h100", HK_ALLREDUCE, 256 * MIB, &simple));
}

/* What the fabric does to an alltoall: oversubscription costs, so do collisions of flows; adaptive routing avoids
 * them. */
TEST(fabric) {
  hk_sim_options o = {.algorithm = "pairwise", .protocol = HK_PROTO_SIMPLE, .channels = 2};
  double full = time_of("nodes=4 of 4xh100:nvswitch4 nic=4x400 fabric=fattree,leaf=2,spines=8,adaptive", HK_ALLTOALL,
                        32 * MIB, &o);
  double ecmp =
      time_of("nodes=4 of 4xh100:nvswitch4 nic=4x400 fabric=fattree,leaf=2,spines=8,ecmp", HK_ALLTOALL, 32 * MIB, &o);
  double half = time_of("nodes=4 of 4xh100:nvswitch4 nic=4x400 fabric=fattree,leaf=2,spines=4,oversub=4,adaptive",
                        HK_ALLTOALL, 32 * MIB, &o);
  ck_assert_double_gt(ecmp, full * 1.02);
  ck_assert_double_gt(half, full * 1.5);
  o.seed = 1;
  double other =
      time_of("nodes=4 of 4xh100:nvswitch4 nic=4x400 fabric=fattree,leaf=2,spines=8,ecmp", HK_ALLTOALL, 32 * MIB, &o);
  ck_assert(other != ecmp);
}

/* Rails spare the spines what is local to a rail. */
TEST(rails) {
  hk_sim_options o = {.algorithm = "ring", .protocol = HK_PROTO_SIMPLE};
  double rail = time_of("nodes=4 of dgx-h100 fabric=rail,leaf=4", HK_ALLREDUCE, 64 * MIB, &o);
  double narrow = time_of("nodes=4 of dgx-h100 fabric=fattree,leaf=1,spines=1,oversub=4", HK_ALLREDUCE, 64 * MIB, &o);
  ck_assert_double_gt(narrow, 2 * rail);
}

/* Ranks on CPUs: two cores do more than one, a third rank on two cores waits, sockets are slower than memory. */
TEST(cpus) {
  hk_sim_options o = {.protocol = -1};
  hk_sim_result two = run("1xcpu cores=2", 2, HK_ALLREDUCE, 64 * MIB, &o);
  hk_sim_result eight = run("1xcpu cores=2", 8, HK_ALLREDUCE, 64 * MIB, &o);
  hk_sim_result hosts = run("nodes=2 of 1xcpu cores=2 nic=1x10", 1, HK_ALLREDUCE, 64 * MIB, &o);
  ck_assert_double_gt(eight.us, 2 * two.us);
  ck_assert_double_gt(hosts.us, two.us);
  ck_assert_double_ge(hosts.us, 64 * MIB / 1.25e3); /* 10 Gb/s */
  hk_sim_result_clear(&two);
  hk_sim_result_clear(&eight);
  hk_sim_result_clear(&hosts);
}

TEST(refuses) {
  hk_simulator *x = simulator("dgx-a100", 0);
  hk_sim_result r;
  hk_sim_options o = {.algorithm = "rign", .protocol = -1};
  ck_assert(hk_sim_run(&r, x, HK_ALLREDUCE, MIB, &o) == HK_ERR_ARGUMENT && strstr(hk_last_error(), "rign"));
  o.algorithm = "pairwise";
  ck_assert(hk_sim_run(&r, x, HK_ALLREDUCE, MIB, &o) == HK_ERR_ARGUMENT && strstr(hk_last_error(), "pairwise"));
  o.algorithm = "nvls";
  ck_assert(hk_sim_run(&r, x, HK_ALLREDUCE, MIB, &o) == HK_ERR_ARGUMENT && strstr(hk_last_error(), "needs"));
}

TEST(timeline) {
  hk_sim_options o = {.algorithm = "ring", .protocol = -1, .channels = 1, .timeline = true};
  hk_sim_result r = run("4xh100:nvswitch4", 0, HK_ALLREDUCE, MIB, &o);
  char *text;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  ck_assert(r.nspans > 0 && hk_sim_trace(&r, f) == HK_OK);
  fclose(f);
  ck_assert_ptr_nonnull(strstr(text, "\"traceEvents\""));
  size_t events = 0;
  for (const char *p = text; (p = strstr(p, "\"ph\":\"X\"")); p++) events++;
  ck_assert_uint_eq(events, r.nspans);
  for (uint32_t i = 0; i < r.nspans; i++) ck_assert(r.spans[i].end_us >= r.spans[i].begin_us && r.spans[i].rank < 4);
  free(text);
  hk_sim_result_clear(&r);
}

/* ---- the flow level ---- */

/* docs/simulator.md states this. */
static const struct {
  const char *algorithm;
  double percent;
  size_t to; /* bytes; a tree's many waves take long event by event */
} stated[] = {{"ring", 11, 64 * MIB},
              {"hier", 16, 64 * MIB},
              {"hiertree", 22, 64 * MIB},
              {"halving", 20, 64 * MIB},
              {"tree", 20, 2 * MIB}};

TEST(flow_level) {
  static const char *const machines[] = {"nodes=8 of dgx-h100",
                                         "nodes=8 of 4xa100:nvswitch6 nic=8x100 fabric=rail,leaf=4,spines=4,adaptive"};
  double worst = 0;
  for (unsigned m = 0; m < HK_ARRAY_LENGTH(machines); m++) {
    hk_simulator *x = simulator(machines[m], 0);
    for (unsigned a = 0; a < HK_ARRAY_LENGTH(stated); a++) {
      for (size_t bytes = 64 << 10; bytes <= stated[a].to; bytes *= 32) {
        double us[2];
        for (int flow = 0; flow < 2; flow++) {
          hk_sim_options o = {.algorithm = stated[a].algorithm, .protocol = -1, .exact = !flow, .folded = flow};
          hk_sim_result r;
          ck_assert_msg(hk_sim_run(&r, x, HK_ALLREDUCE, bytes, &o) == HK_OK, "%s", hk_last_error());
          us[flow] = r.us;
          hk_sim_result_clear(&r);
        }
        double error = us[1] / us[0] - 1;
        printf("  %-30.30s %-9s %9zu B: %9.1f us event by event, %+5.1f%% at flow level\n", machines[m],
               stated[a].algorithm, bytes, us[0], 100 * error);
        if (100 * fabs(error) / stated[a].percent > worst) worst = 100 * fabs(error) / stated[a].percent;
      }
    }
  }
  ck_assert_msg(worst <= 1, "the flow level is %.2f times as far off as docs/simulator.md states", worst);
}

/* Meshes, in which lanes use links in turn, and channels meet on them: docs/simulator.md states this. */
TEST(flow_level_mesh) {
  static const struct {
    hk_coll coll;
    const char *algorithm;
  } rows[] = {{HK_ALLREDUCE, "ring"},      {HK_ALLREDUCE, "hier"},      {HK_ALLREDUCE, "hiertree"},
              {HK_ALLREDUCE, "halving"},   {HK_ALLREDUCE, "tree"},      {HK_ALLGATHER, "rail"},
              {HK_REDUCE_SCATTER, "rail"}, {HK_REDUCE_SCATTER, "ring"}, {HK_ALLTOALL, "rail"}};
  static const struct {
    const char *machine;
    double percent;
  } machines[] = {{"nodes=4 of mi300x", 18}, {"nodes=4 of 4xv100:mesh nic=2x100", 10}, {"nodes=2 of dgx-v100", 25}};
  for (unsigned m = 0; m < HK_ARRAY_LENGTH(machines); m++) {
    hk_simulator *x = simulator(machines[m].machine, 0);
    double worst = 0;
    for (unsigned a = 0; a < HK_ARRAY_LENGTH(rows); a++) {
      double us[2];
      for (int flow = 0; flow < 2; flow++) {
        hk_sim_options o = {.algorithm = rows[a].algorithm, .protocol = -1, .exact = !flow, .folded = true};
        hk_sim_result r;
        ck_assert_msg(hk_sim_run(&r, x, rows[a].coll, 64 * MIB, &o) == HK_OK, "%s", hk_last_error());
        us[flow] = r.us;
        hk_sim_result_clear(&r);
      }
      if (fabs(us[1] / us[0] - 1) > fabs(worst)) worst = us[1] / us[0] - 1;
    }
    printf("  64 MiB on %s: at most %+.1f%% off at flow level\n", machines[m].machine, 100 * worst);
    ck_assert_double_le(100 * fabs(worst), machines[m].percent);
  }
}

/* One host stands for all that do the same, event by event, too. */
TEST(folded_events) {
  static const char *const algorithms[] = {"ring", "hier", "hiertree", "tree"};
  hk_simulator *x = simulator("nodes=4 of mi300x", 0);
  for (unsigned a = 0; a < HK_ARRAY_LENGTH(algorithms); a++) {
    double us[2];
    for (int folded = 0; folded < 2; folded++) {
      hk_sim_options o = {.algorithm = algorithms[a], .protocol = -1, .exact = true, .folded = folded};
      hk_sim_result r;
      ck_assert_msg(hk_sim_run(&r, x, HK_ALLREDUCE, 4 * MIB, &o) == HK_OK, "%s", hk_last_error());
      us[folded] = r.us;
      hk_sim_result_clear(&r);
    }
    ck_assert_double_le(fabs(us[1] / us[0] - 1), 1e-6);
  }
}

/* An alltoall, where messages meet at ports: docs/simulator.md states 20%. */
TEST_LOOP(flow_level_alltoall, 3) {
  static const char *const machines[] = {"nodes=2 of dgx-a100", "nodes=2 of dgx-h100",
                                         "nodes=4 of 4xa100:nvswitch6 nic=2x200"};
  static const char *const algorithms[] = {"rail", "pairwise"};
  double worst = 0;
  hk_simulator *x = simulator(machines[_i], 0);
  for (unsigned a = 0; a < HK_ARRAY_LENGTH(algorithms); a++)
    for (int channels = 1; channels <= 16; channels *= 4)
      for (size_t bytes = 128 << 10; bytes <= 8 * MIB; bytes *= 8) {
        double us[2];
        for (int flow = 0; flow < 2; flow++) {
          hk_sim_options o = {
              .algorithm = algorithms[a], .protocol = -1, .channels = channels, .exact = !flow, .folded = flow};
          hk_sim_result r;
          ck_assert_msg(hk_sim_run(&r, x, HK_ALLTOALL, bytes, &o) == HK_OK, "%s", hk_last_error());
          us[flow] = r.us;
          hk_sim_result_clear(&r);
        }
        if (fabs(us[1] / us[0] - 1) > fabs(worst)) worst = us[1] / us[0] - 1;
      }
  printf("  alltoall of %s: at most %+.1f%% off at flow level\n", machines[_i], 100 * worst);
  ck_assert_double_le(fabs(worst), 0.2);
}

/* Hosts that are the first one's shifted copies: few programs are built, and the times are those of all programs;
 * where flows choose spines by a hash, whose collisions shifted hosts do not see, nearly. */
TEST(shifted) {
  static const struct {
    const char *machine;
    double within;
  } rows[] = {{"nodes=8 of dgx-h100 fabric=rail,leaf=4,adaptive", 1e-9},
              {"nodes=8 of 4xh100:nvswitch4 nic=4x400 fabric=fattree,leaf=2,oversub=2,adaptive", 1e-9},
              {"nodes=16 of 4xh100:nvswitch4 nic=4x400 fabric=fattree,leaf=4,spines=2,ecmp", 0.1}};
  static const char *const algorithms[] = {"pairwise", "rail"};
  for (unsigned m = 0; m < HK_ARRAY_LENGTH(rows); m++) {
    for (unsigned a = 0; a < HK_ARRAY_LENGTH(algorithms); a++) {
      hk_sim_options o = {.algorithm = algorithms[a], .protocol = -1, .folded = true};
      double us = time_of(rows[m].machine, HK_ALLTOALL, 16 * MIB, &o);
      o.shifted = true;
      double few = time_of(rows[m].machine, HK_ALLTOALL, 16 * MIB, &o);
      printf("  %-60s %-9s %.1f us, %.1f us from one host's programs\n", rows[m].machine, algorithms[a], us, few);
      ck_assert_double_le(fabs(few / us - 1), rows[m].within);
    }
  }
}

TEST(not_shifted) {
  hk_simulator *x = simulator("nodes=8 of dgx-h100", 0);
  hk_sim_options o = {.algorithm = "hiertree", .protocol = -1, .folded = true, .shifted = true};
  hk_sim_result r;
  ck_assert(hk_sim_run(&r, x, HK_ALLREDUCE, MIB, &o) == HK_ERR_ARGUMENT && strstr(hk_last_error(), "hosts differ"));
}

/* 16384 GPUs; docs/simulator.md says how long it takes. */
static const struct {
  hk_coll coll;
  double least, most; /* GB/s of bus bandwidth: of the order of the hosts' NICs */
} large[] = {{HK_ALLREDUCE, 50, 400}, {HK_ALLTOALL, 10, 50}, {HK_ALLGATHER, 25, 200}, {HK_REDUCE_SCATTER, 25, 200}};

TEST_LOOP(thousands, HK_ARRAY_LENGTH(large)) {
  hk_sim_options o = {.protocol = -1};
  hk_coll coll = large[_i].coll;
  struct timespec a, b;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
  hk_sim_result r = run("nodes=2048 of dgx-h100 fabric=rail,fattree", 0, coll, GIB, &o);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  double s = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
  printf("  16384 GPUs, %s of 1 GiB by %s: %.0f us, %.1f GB/s, in %.2f s of a core\n", hk_coll_name(coll), r.algorithm,
         r.us, r.busbw, s);
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  ck_assert(r.folded && r.nranks == 16384);
  ck_assert_int_lt(used.ru_maxrss, 2 << 20); /* KiB */
  ck_assert_double_gt(r.busbw, large[_i].least);
  ck_assert_double_lt(r.busbw, large[_i].most);
  hk_sim_result_clear(&r);
}

/* 131072 GPUs: programs are built, summarised and priced; those that are too large are left out. */
TEST(hundred_thousand) {
  static const struct {
    const char *algorithm;
    hk_coll coll;
    int period, rounds, far;
  } rows[] = {{"ring", HK_ALLREDUCE, 8, 262142, 32768},      {"ring", HK_ALLGATHER, 8, 131071, 16384},
              {"doubling", HK_ALLREDUCE, 8, 17, 14},         {"tree", HK_ALLREDUCE, 131072, 34, 32},
              {"ring", HK_REDUCE_SCATTER, 8, 131071, 16384}, {"rail", HK_ALLGATHER, 8, 16384, 16383},
              {"rail", HK_REDUCE_SCATTER, 8, 16384, 16383}};
  static const struct {
    const char *algorithm;
    hk_coll coll;
  } chosen[] = {{"rail", HK_ALLGATHER}, {"nvlstree", HK_ALLREDUCE}};
  hk_cluster *c;
  hk_placement *placements;
  hk_layout *l;
  hk_machine m;
  int n;
  ck_assert_int_eq(hk_cluster_from_string(&c, "nodes=16384 of dgx-h100 fabric=rail,fattree"), HK_OK);
  ck_assert_int_eq(hk_cluster_placements(c, 0, &placements, &n), HK_OK);
  ck_assert_int_eq(n, 131072);
  ck_assert_int_eq(hk_machine_of(&m, c, placements, n, NULL, NULL), HK_OK);
  ck_assert_int_eq(hk_layout_of(&l, c, placements, n, NULL), HK_OK);
  ck_assert_int_eq(hk_outlines_of(&m.outlines, c, placements, &m, l, NULL, NULL), HK_OK);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(rows); k++) {
    const hk_build what = {.coll = rows[k].coll, .nranks = n, .layout = l};
    hk_summary s;
    bool barred;
    ck_assert_msg(hk_algorithm_summarize(&s, hk_algorithm_by_name(rows[k].algorithm), &what, m.nslots, false, SIZE_MAX,
                                         &barred) == HK_OK,
                  "%s", hk_last_error());
    ck_assert_msg(s.period == rows[k].period && s.first.rounds == rows[k].rounds && s.first.far == rows[k].far,
                  "%s of %s: %d rounds, %d between hosts, period %d", hk_coll_name(rows[k].coll), rows[k].algorithm,
                  s.first.rounds, s.first.far, s.period);
    hk_summary_clear(&s);
  }
  for (size_t k = 0; k < HK_ARRAY_LENGTH(chosen); k++) {
    hk_decision d;
    ck_assert_int_eq(hk_select(&m, NULL, chosen[k].coll, GIB, &d), HK_OK);
    ck_assert_msg(!strcmp(d.algorithm->name, chosen[k].algorithm) && d.us > 0, "%s by %s", hk_coll_name(chosen[k].coll),
                  d.algorithm->name);
  }
  hk_outlines_free(m.outlines);
  hk_layout_free(l);
  free(placements);
  hk_cluster_free(c);
}

int main(void) { return suite_main("sim", .timeout = 120, .teardown = forget); }
