/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of programs: exactly what the simulator counts, and the chains of messages that textbooks give. */
#include "../../src/collectives/algorithm.h"
#include "../../src/decide/machine.h"
#include "../../src/program/builder.h"
#include "../../src/program/layout.h"
#include "../../src/program/summary.h"
#include "../../src/sim/simulator.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/suite.h"

enum { CHUNK = 4096, MOST = 16 };

static const struct {
  const char *words;
  int per_host;
} machines[] = {{"1xcpu cores=5", 5},
                {"1xcpu cores=2", 8},
                {"nodes=3 of 1xcpu cores=4 nic=1x10", 3},
                {"dgx-h100", 0},
                {"nodes=2 of dgx-h100", 0},
                {"nodes=4 of 4xa100:nvswitch6 nic=2x200", 0},
                {"8xh100:nvswitch4", 0},
                {"nodes=5 of 1xcpu cores=2 nic=1x10", 2}};

/* One wave of one channel, in which each instruction moves CHUNK bytes: a message is one block of so many bytes. */
static void check_counts(const hk_simulator *x, const char *machine, const hk_algorithm *a, hk_coll coll) {
  hk_summary s;
  hk_sim_result r;
  bool barred;
  const hk_build what = {.coll = coll, .nranks = x->nranks, .layout = x->layout};
  ck_assert_msg(hk_algorithm_summarize(&s, a, &what, x->machine.nslots, false, SIZE_MAX, &barred) == HK_OK, "%s",
                hk_last_error());
  hk_sim_options o = {.algorithm = a->name, .protocol = -1, .channels = 1, .chunk = CHUNK, .exact = true};
  ck_assert_msg(hk_sim_run(&r, x, coll, (size_t)s.blocks * CHUNK, &o) == HK_OK, "%s", hk_last_error());
  uint64_t is[] = {r.steps,
                   r.counts.messages[HK_INSIDE],
                   r.counts.messages[HK_BETWEEN],
                   r.counts.bytes[HK_INSIDE],
                   r.counts.bytes[HK_BETWEEN],
                   r.counts.written,
                   r.counts.reduced};
  uint64_t want[] = {s.all.instrs,
                     s.all.sent[HK_INSIDE],
                     s.all.sent[HK_BETWEEN],
                     CHUNK * s.all.carried[HK_INSIDE],
                     CHUNK * s.all.carried[HK_BETWEEN],
                     CHUNK * s.all.written,
                     CHUNK * s.all.reduced};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(is); k++)
    ck_assert_msg(is[k] == want[k], "%s: %s by %s: number %zu is %llu in the simulator and %llu in the summary",
                  machine, hk_coll_name(coll), a->name, k, (unsigned long long)is[k], (unsigned long long)want[k]);
  hk_sim_result_clear(&r);
  hk_summary_clear(&s);
}

TEST_LOOP(counts_of_the_simulator, HK_ARRAY_LENGTH(machines)) {
  hk_cluster *c;
  hk_simulator *x;
  int runs = 0;
  ck_assert_msg(hk_cluster_from_string(&c, machines[_i].words) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, machines[_i].per_host) == HK_OK, "%s", hk_last_error());
  for (int k = 0; hk_algorithms[k]; k++)
    for (int coll = 0; coll < HK_COLL_COUNT; coll++) {
      if (hk_simulator_cannot(x, hk_algorithms[k], (hk_coll)coll)) continue;
      check_counts(x, machines[_i].words, hk_algorithms[k], (hk_coll)coll);
      runs++;
    }
  ck_assert_int_gt(runs, 20);
  hk_simulator_free(x);
  hk_cluster_free(c);
}

/* ---- chains and maps ---- */

enum { RANKS = 32 };
typedef struct built {
  hk_program *programs[RANKS];
  hk_layout *layout;
  hk_summary s;
} built;

static void build(built *b, const char *algorithm, hk_coll coll, int n, int hosts) {
  const hk_algorithm *a = hk_algorithm_by_name(algorithm);
  uint64_t host[RANKS];
  *b = (built){.layout = NULL};
  for (int r = 0; r < n; r++) host[r] = (uint64_t)(r * hosts / n);
  ck_assert(hk_layout_new(&b->layout, n, host, NULL, NULL, 1) == HK_OK);
  for (int r = 0; r < n; r++) {
    hk_build what = {.coll = coll, .rank = r, .nranks = n, .layout = b->layout};
    ck_assert(hk_algorithm_build(a, &what, &b->programs[r]) == HK_OK);
  }
  ck_assert_msg(hk_summarize(&b->s, (const hk_program *const *)b->programs, n, n, HK_MAP_SHIFT, b->layout->host, 8,
                             false) == HK_OK,
                "%s: %s", algorithm, hk_last_error());
}

static void drop(built *b) {
  for (int r = 0; r < RANKS; r++) hk_program_free(b->programs[r]);
  hk_layout_free(b->layout);
  hk_summary_clear(&b->s);
}

static const struct {
  const char *algorithm;
  hk_coll coll;
  int n, hosts;
  struct {
    int rounds, far;
  } wave[2]; /* the first, and each further one */
} chains[] = {
    /* 2 (n - 1) steps; on two hosts, a block goes between them twice on its way around */
    {"ring", HK_ALLREDUCE, 8, 1, {{14, 0}, {14, 0}}},
    {"ring", HK_ALLREDUCE, 8, 2, {{14, 4}, {14, 4}}},
    {"ring", HK_REDUCE_SCATTER, 8, 1, {{7, 0}, {7, 0}}},
    /* a pipeline: the root sends wave after wave without waiting */
    {"chain", HK_BROADCAST, 8, 1, {{7, 0}, {0, 0}}},
    {"chain", HK_BROADCAST, 8, 2, {{7, 1}, {0, 0}}},
    {"binomial", HK_BROADCAST, 8, 1, {{3, 0}, {0, 0}}},
    {"binomial", HK_REDUCE, 16, 1, {{4, 0}, {0, 0}}},
    {"doubling", HK_ALLREDUCE, 8, 1, {{3, 0}, {3, 0}}},
    {"doubling", HK_ALLREDUCE, 16, 4, {{4, 2}, {4, 2}}},
    /* three steps and back; after each, all of it has come: a message from the rank to itself */
    {"halving", HK_ALLREDUCE, 8, 1, {{12, 0}, {12, 0}}},
    /* blocks in pairs: 1, 1, 2 */
    {"pat", HK_ALLGATHER, 8, 1, {{4, 0}, {4, 0}}},
    /* ten steps, of which two have 16 blocks, eight at a time */
    {"halving", HK_ALLREDUCE, 32, 1, {{24, 0}, {24, 0}}},
    {"flat", HK_ALLREDUCE, 8, 1, {{1, 0}, {1, 0}}},
};

TEST_LOOP(chains_of_messages, HK_ARRAY_LENGTH(chains)) {
  built b;
  build(&b, chains[_i].algorithm, chains[_i].coll, chains[_i].n, chains[_i].hosts);
  const hk_chain is[] = {b.s.first, b.s.again};
  for (int k = 0; k < 2; k++)
    ck_assert_msg(is[k].rounds == chains[_i].wave[k].rounds && is[k].far == chains[_i].wave[k].far,
                  "%s of %d on %d hosts: the %s wave has %d rounds, %d between hosts, and not %d, %d",
                  chains[_i].algorithm, chains[_i].n, chains[_i].hosts, k ? "further" : "first", is[k].rounds,
                  is[k].far, chains[_i].wave[k].rounds, chains[_i].wave[k].far);
  drop(&b);
}

/* An empty slot between two lanes of a rank is a message, and no link to another rank. On CPUs it is no round. */
TEST(lanes_of_one_rank) {
  built b;
  hk_summary cpu;
  build(&b, "halving", HK_ALLREDUCE, 8, 1);
  ck_assert(hk_summarize(&cpu, (const hk_program *const *)b.programs, 8, 8, HK_MAP_SHIFT, NULL, 0, false) == HK_OK);
  ck_assert_int_eq(cpu.first.rounds, 6);
  ck_assert_int_eq(cpu.again.rounds, 6);
  hk_summary_clear(&cpu);
  ck_assert_uint_eq(b.s.most.links, 3);
  ck_assert_uint_eq(b.s.most.bursts[HK_INSIDE], 12);
  ck_assert_uint_eq(b.s.most.sent[HK_INSIDE], 14 + 6);
  ck_assert_uint_eq(b.s.most.taken[HK_INSIDE], 14);
  drop(&b);
}

/* Two hosts of eight ranks: a lane sends 14 blocks to its host's ranks, and one sums up and exchanges the second host's
 * half after all of them; then one collects 14. A ring's step follows the one before. */
TEST(instructions_one_after_another) {
  built b;
  build(&b, "hier", HK_ALLREDUCE, 16, 2);
  ck_assert_uint_eq(b.s.most.longest, 14);
  ck_assert_uint_eq(b.s.busy, 14 + 1 + 14);
  drop(&b);
  build(&b, "ring", HK_ALLREDUCE, 8, 1);
  ck_assert_uint_eq(b.s.busy, 15);
  drop(&b);
}

/* A link of eight slots: the sender of more blocks waits for the answer to the first ones. */
TEST(senders_wait_for_slots) {
  static const struct {
    const char *algorithm;
    hk_coll coll;
    int n, hosts, rounds, far;
  } waits[] = {
      {"ring", HK_ALLREDUCE, 32, 1, 62, 0}, /* each block waits for the one before it: slots are free */
      {"binomial", HK_GATHER, 16, 1, 4, 0}, /* eight blocks over the last link */
      {"binomial", HK_GATHER, 32, 1, 6, 0}, /* sixteen */
      {"rail", HK_ALLTOALL, 16, 2, 2, 1},   /* eight blocks to each other host */
      {"rail", HK_ALLTOALL, 32, 2, 4, 3},   /* sixteen */
      {"rail", HK_ALLTOALL, 27, 3, 5, 5},   /* nine over each of two links, one after the other */
  };
  for (size_t k = 0; k < HK_ARRAY_LENGTH(waits); k++) {
    built b;
    build(&b, waits[k].algorithm, waits[k].coll, waits[k].n, waits[k].hosts);
    ck_assert_msg(b.s.held.rounds == waits[k].rounds && b.s.held.far == waits[k].far,
                  "%s of %d on %d hosts: with eight slots %d rounds, %d between hosts", waits[k].algorithm, waits[k].n,
                  waits[k].hosts, b.s.held.rounds, b.s.held.far);
    drop(&b);
  }
}

/* The chains on each ring order, from the events on the first one, are those of that order's programs. */
TEST(chains_on_ring_orders) {
  static const char *const names[] = {"chain", "tree"}, *const words[] = {"nodes=3 of dgx-h100", "nodes=4 of dgx-v100"};
  for (size_t i = 0; i < 8; i++) {
    const hk_algorithm *a = hk_algorithm_by_name(names[i & 1]);
    hk_cluster *c;
    hk_simulator *x;
    hk_summary first, own;
    hk_chain moved;
    bool barred;
    ck_assert(hk_cluster_from_string(&c, words[i >> 1 & 1]) == HK_OK && hk_simulator_new(&x, c, 0) == HK_OK);
    const hk_layout *l = x->layout;
    hk_build what = {.coll = i >> 2 ? HK_REDUCE : HK_BROADCAST, .root = 2, .nranks = x->nranks, .layout = l};
    ck_assert(hk_algorithm_summarize(&first, a, &what, 8, false, SIZE_MAX, &barred) == HK_OK);
    ck_assert_int_gt(l->nchannels, 3);
    for (what.channel = 0; what.channel < l->nchannels; what.channel++) {
      int32_t host[MOST * 2];
      for (int r = 0; r < x->nranks; r++) host[r] = l->host[hk_layout_moved(l, 0, what.channel, what.root, r)];
      ck_assert(hk_summary_first_on(&moved, &first, host) == HK_OK);
      ck_assert(hk_algorithm_summarize(&own, a, &what, 8, false, SIZE_MAX, &barred) == HK_OK);
      ck_assert_msg(!memcmp(&moved, &own.first, sizeof moved), "%s on order %d of %s: %d rounds, %d far, not %d, %d",
                    a->name, what.channel, words[i >> 1 & 1], moved.rounds, moved.far, own.first.rounds, own.first.far);
      hk_summary_clear(&own);
    }
    hk_summary_clear(&first);
    hk_simulator_free(x);
    hk_cluster_free(c);
  }
}

/* How many messages each rank sends to each other one. */
static void count_messages(const hk_summary *s, uint32_t times[MOST * MOST]) {
  const uint32_t n = (uint32_t)s->nranks;
  memset(times, 0, MOST * MOST * sizeof *times);
  for (const hk_map *m = s->maps; m < s->maps + s->nmaps; m++)
    for (uint32_t k = 0; k < n; k += m->kind == HK_MAP_PAIR ? (uint32_t)s->period : 1) {
      const uint32_t to = m->kind == HK_MAP_FLIP ? k ^ m->by : (m->by + k) % n;
      times[(m->from + k) % n * MOST + to] += m->times;
    }
}

/* The summary from as few programs as possible is that of all programs. */
static void check_fewer(const hk_algorithm *a, hk_coll coll, int n, int hosts, int *fewer) {
  built b;
  hk_summary few;
  bool barred;
  build(&b, a->name, coll, n, hosts);
  const hk_build what = {.coll = coll, .nranks = n, .layout = b.layout};
  ck_assert_msg(hk_algorithm_summarize(&few, a, &what, 8, false, SIZE_MAX, &barred) == HK_OK, "%s: %s", a->name,
                hk_last_error());
  *fewer += few.period < n;
  ck_assert_msg(!memcmp(&few.first, &b.s.first, sizeof few.first) &&
                    !memcmp(&few.again, &b.s.again, sizeof few.again) &&
                    !memcmp(&few.held, &b.s.held, sizeof few.held) &&
                    !memcmp(&few.held_again, &b.s.held_again, sizeof few.held_again) &&
                    !memcmp(&few.most, &b.s.most, sizeof few.most) && !memcmp(&few.all, &b.s.all, sizeof few.all) &&
                    few.leaving == b.s.leaving && few.entering == b.s.entering && few.busy == b.s.busy,
                "%s by %s, %d ranks on %d hosts: %d programs have another summary than all", hk_coll_name(coll),
                a->name, n, hosts, few.period);
  uint32_t sent[2][MOST * MOST];
  count_messages(&few, sent[0]);
  count_messages(&b.s, sent[1]);
  ck_assert_msg(!memcmp(sent[0], sent[1], sizeof sent[0]), "%s by %s, %d ranks on %d hosts: other messages than all",
                hk_coll_name(coll), a->name, n, hosts);
  hk_summary_clear(&few);
  drop(&b);
}

/* Which allreduces may have quantised links: sums that are whole, and rounded by one rank for all. */
TEST(quantised_links) {
  static const struct {
    const char *name;
    int least, most; /* the numbers of ranks for which it may */
  } may[] = {{"direct", 2, 40}, {"twoshot", 2, 40}, {"oneshot", 0, 0}, {"doubling", 0, 0},
             {"ring", 2, 2},    {"tree", 2, 2},     {"flat", 0, 0}};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(may); k++)
    for (int n = 2; n <= 40; n += n < 20 ? 1 : 7) {
      const hk_build what = {.coll = HK_ALLREDUCE, .nranks = n};
      hk_summary s;
      bool barred;
      ck_assert(hk_algorithm_summarize(&s, hk_algorithm_by_name(may[k].name), &what, 8, false, SIZE_MAX, &barred) ==
                HK_OK);
      ck_assert_msg(s.quantises == (n >= may[k].least && n <= may[k].most), "%s of %d ranks", may[k].name, n);
      hk_summary_clear(&s);
    }
}

TEST(fewer_programs) {
  static const int cases[][2] = {{2, 1}, {7, 1}, {8, 1}, {8, 2}, {12, 4}, {16, 4}, {16, 16}, {9, 2}};
  int fewer = 0;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(cases); k++) {
    const hk_host_facts facts = {.team.nranks = cases[k][0],
                                 .team.nhosts = cases[k][1],
                                 .team.ranks_per_host = (cases[k][0] + cases[k][1] - 1) / cases[k][1],
                                 .team.least_per_host = cases[k][0] / cases[k][1],
                                 .cores_per_host = 4,
                                 .memory = true,
                                 .team.multicast = cases[k][1] == 1,
                                 .slot_bytes = 1 << 20,
                                 .nslots = 8};
    const hk_machine m = hk_machine_of_hosts(&facts, NULL);
    for (int i = 0; hk_algorithms[i]; i++)
      for (int coll = 0; coll < HK_COLL_COUNT; coll++)
        if (hk_algorithm_supports(hk_algorithms[i], &m.team, (hk_coll)coll))
          check_fewer(hk_algorithms[i], (hk_coll)coll, cases[k][0], cases[k][1], &fewer);
  }
  ck_assert_int_gt(fewer, 20);
}

/* One rank of each host sends to the next host on a ring; all blocks but its own leave a host of an all-to-all. */
TEST(blocks_that_leave_a_host) {
  built b;
  build(&b, "ring", HK_ALLREDUCE, 8, 2);
  ck_assert_uint_eq(b.s.leaving, 14);
  ck_assert_uint_eq(b.s.most.carried[HK_ANYWHERE], 14);
  drop(&b);
  build(&b, "pairwise", HK_ALLTOALL, 8, 2);
  ck_assert_uint_eq(b.s.leaving, 4 * 4);
  drop(&b);
}

/* A ring sends to the next rank after each chain; doubling to the rank whose number differs in one bit. */
TEST(maps_of_messages) {
  built b;
  build(&b, "ring", HK_ALLREDUCE, 8, 1);
  ck_assert_uint_eq(b.s.nmaps, 14);
  for (uint32_t k = 0; k < b.s.nmaps; k++) {
    const hk_map *m = &b.s.maps[k];
    ck_assert(m->kind == HK_MAP_SHIFT && m->by == 1 && m->times == 1 && m->after.rounds == (int32_t)k);
  }
  drop(&b);
  build(&b, "doubling", HK_ALLREDUCE, 8, 1);
  ck_assert_uint_eq(b.s.nmaps, 3);
  uint32_t bits = 0;
  for (uint32_t k = 0; k < b.s.nmaps; k++) {
    const hk_map *m = &b.s.maps[k];
    ck_assert(m->by == 4 || m->kind == HK_MAP_FLIP); /* a half way round is a shift */
    bits |= m->by;
  }
  ck_assert_uint_eq(bits, 7);
  drop(&b);
  build(&b, "binomial", HK_BROADCAST, 8, 1);
  ck_assert_uint_eq(b.s.nmaps, 7);
  for (uint32_t k = 0; k < b.s.nmaps; k++) ck_assert(b.s.maps[k].kind == HK_MAP_PAIR);
  drop(&b);
}

int main(void) { return suite_main("summary"); }
