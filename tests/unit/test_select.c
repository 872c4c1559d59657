/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Selection and chunks: deterministic, equal for all ranks, always supported, without cliffs. */
#include <math.h>
#include "../../src/decide/constants.h"
#include "../../src/decide/gpu.h"
#include "../../src/decide/machine.h"
#include "../../src/decide/protocol.h"
#include "../../src/sim/sim.h"
#include "../../src/sim/simulator.h"
#include "../../src/topo/synth.h"
#include "../../src/topo/topo.h"
#include "../support/outlines.h"
#include "../support/suite.h"

/* Machines as init describes them: shared memory, a loopback or a network, with or without enough cores. */
static hk_machine machine(int hosts, int ranks_per_host, int cores, bool memory) {
  hk_host_facts f = {.team.nranks = hosts * ranks_per_host,
                     .team.nhosts = hosts,
                     .team.ranks_per_host = ranks_per_host,
                     .team.least_per_host = ranks_per_host,
                     .cores_per_host = cores,
                     .memory = memory || hosts > 1,
                     .team.multicast = memory,
                     .slot_bytes = 131072};
  return with_outlines(hk_machine_of_hosts(&f, NULL));
}

enum { MACHINES = 64 };
static int machines(hk_machine *out) {
  static const int ranks[] = {1, 2, 3, 4, 7, 8, 16, 31, 64, 256};
  int n = 0;
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(ranks); k++) {
    out[n++] = machine(1, ranks[k], 2, true);
    out[n++] = machine(1, ranks[k], 64, true);
    out[n++] = machine(1, ranks[k], 2, false);
    out[n++] = machine(ranks[k], 1, 2, false);
    out[n++] = machine(ranks[k], 8, 8, false);
  }
  ck_assert_int_le(n, MACHINES);
  return n;
}

static const hk_algorithm *choose(const hk_machine *m, hk_coll coll, size_t bytes) {
  hk_decision d;
  ck_assert_int_eq(hk_select(m, NULL, coll, bytes, &d), HK_OK);
  ck_assert_ptr_null(d.note);
  ck_assert_int_eq(d.protocol, HK_PROTO_SIMPLE);
  ck_assert_int_eq(d.channels, 1);
  return d.algorithm;
}

/* Classes follow each other without gaps, have at most an eighth of an octave, and end at each power of two. */
TEST(size_classes) {
  for (size_t bytes = 0; bytes < 1 << 16; bytes++) {
    const size_t last = hk_size_class_last(bytes);
    ck_assert_uint_ge(last, bytes);
    ck_assert_int_eq(hk_size_class(last), hk_size_class(bytes));
    ck_assert_int_eq(hk_size_class(last + 1), hk_size_class(bytes) + 1);
    ck_assert(bytes <= 16 || 8 * last <= 9 * bytes);
  }
  for (int power = 0; power < 64; power++)
    ck_assert_uint_eq(hk_size_class_last((size_t)1 << power), (size_t)1 << power);
  ck_assert_int_lt(hk_size_class(SIZE_MAX), HK_SIZE_CLASSES);
}

/* All sizes of a class get its decision, each with its own price. */
TEST(class_decides) {
  const hk_machine m = machine(1, 8, 2, true);
  hk_decision first, last;
  for (size_t bytes = 9; bytes < (size_t)1 << 30; bytes = hk_size_class_last(bytes) + 1) {
    ck_assert_int_eq(hk_select(&m, NULL, HK_ALLREDUCE, bytes, &first), HK_OK);
    ck_assert_int_eq(hk_select(&m, NULL, HK_ALLREDUCE, hk_size_class_last(bytes), &last), HK_OK);
    ck_assert_ptr_eq(first.algorithm, last.algorithm);
    ck_assert_double_eq(first.us, price_of(first.algorithm, &m, HK_ALLREDUCE, bytes));
  }
}

TEST(registry) {
  for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
    ck_assert_ptr_eq(hk_algorithm_by_name((*a)->name), *a);
    ck_assert_ptr_nonnull((*a)->about);
    int colls = 0;
    for (int c = 0; c < HK_COLL_COUNT; c++) colls += hk_algorithm_has(*a, (hk_coll)c);
    ck_assert_int_gt(colls, 0);
    for (const char *c = (*a)->name; *c; c++) ck_assert(*c >= 'a' && *c <= 'z');
  }
  ck_assert_ptr_null(hk_algorithm_by_name("no such"));
}

/* Waves of what is read where it is may be long; a price does not depend on that. */
TEST(chunks_of_what_is_read) {
  static const struct {
    const char *algorithm;
    hk_coll coll;
    bool refers;
  } rows[] = {{"pairwise", HK_ALLTOALL, true},      {"direct", HK_ALLGATHER, true},   {"direct", HK_SCATTER, true},
              {"direct", HK_GATHER, false},         {"oneshot", HK_BROADCAST, false}, {"oneshot", HK_ALLGATHER, false},
              {"direct", HK_REDUCE_SCATTER, false}, {"direct", HK_ALLREDUCE, false},  {"oneshot", HK_ALLREDUCE, false},
              {"ring", HK_ALLGATHER, false}};
  enum { BLOCK = 32 << 20, LONG = 16 << 20 };
  for (size_t k = 0; k < HK_ARRAY_LENGTH(rows); k++) {
    const hk_algorithm *a = hk_algorithm_by_name(rows[k].algorithm);
    hk_machine m = machine(1, 4, 2, true);
    const double us = price_of(a, &m, rows[k].coll, BLOCK);
    for (int reads = 0; reads < 2; reads++) {
      m.reads = reads;
      bool longer = rows[k].refers && m.reads;
      size_t chunk = chunk_of(a, &m, rows[k].coll, BLOCK);
      if (longer)
        ck_assert_uint_eq(chunk, LONG);
      else
        ck_assert_uint_le(chunk, m.slot_bytes);
      ck_assert_double_eq(price_of(a, &m, rows[k].coll, BLOCK), us);
    }
    m.reads = true;
    ck_assert_uint_le(chunk_of(a, &m, rows[k].coll, 1000), 1024);
    m.reads = false;
    m.long_waves = true; /* a slot at a time */
    ck_assert_uint_eq(chunk_of(a, &m, rows[k].coll, BLOCK), m.slot_bytes);
  }
}

/* Each pair of ranks has its own length, which the decision does not know. */
TEST(chunks_of_pairs) {
  hk_machine m = machine(1, 2, 2, true);
  for (int reads = 0; reads < 2; reads++) {
    hk_decision d = {.algorithm = hk_algorithm_by_name("pairwise")};
    const hk_request r = {.coll = HK_ALLTOALLV, .bytes = 2 << 20, .unit = 1, .uneven = true};
    m.reads = reads;
    ck_assert_int_eq(hk_decide_execution(&m, &r, &d), HK_OK);
    ck_assert_uint_eq(d.chunk, reads ? 16u << 20 : m.slot_bytes);
  }
}

/* What the kernel copies of private memory, for two ranks: not long blocks that one rank would have to fetch while the
 * other is idle. */
TEST(cma_or_slots) {
  enum { ALL = HK_CMA_MOVES | HK_CMA_PLACED };
  static const struct {
    const char *algorithm;
    hk_coll coll;
    size_t bytes;
    unsigned by_cma;
  } rows[] = {{"direct", HK_GATHER, 128 << 10, ALL},
              {"direct", HK_GATHER, 64 << 20, 0},
              {"direct", HK_SCATTER, 256 << 10, ALL},
              {"direct", HK_SCATTER, 64 << 20, ALL},
              {"oneshot", HK_BROADCAST, 128 << 10, ALL},
              {"oneshot", HK_BROADCAST, 4 << 20, HK_CMA_MOVES},
              {"doubling", HK_ALLGATHER, 128 << 10, ALL},
              {"pairwise", HK_ALLTOALL, 2 << 20, ALL},
              {"pairwise", HK_ALLTOALL, 64 << 20, ALL},
              {"pairwise", HK_ALLTOALL, 16 << 10, 0},
              {"ring", HK_ALLREDUCE, 1 << 20, ALL | HK_CMA_SUMS},
              {"ring", HK_ALLREDUCE, 64 << 20, ALL}};
  hk_machine m = machine(1, 2, 2, true);
  m.reads = 1;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(rows); k++) {
    hk_decision d = {.algorithm = hk_algorithm_by_name(rows[k].algorithm)};
    const hk_request r = {.coll = rows[k].coll, .bytes = rows[k].bytes, .unit = 1};
    const unsigned sums = hk_coll_reduces(rows[k].coll) ? ALL | HK_CMA_SUMS : ALL;
    ck_assert_int_eq(hk_decide_execution(&m, &r, &d), HK_OK);
    ck_assert_msg((d.payload.by_cma & sums) == rows[k].by_cma, "row %zu: %x", k, d.payload.by_cma);
    ck_assert(d.chunk <= m.slot_bytes || rows[k].by_cma & HK_CMA_MOVES);
  }
}

TEST(always_supported) {
  hk_machine all[MACHINES];
  int n = machines(all);
  for (int k = 0; k < n; k++) {
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      for (size_t bytes = 0; bytes < (size_t)1 << 40; bytes = bytes * 3 + 1) {
        const hk_algorithm *a = choose(&all[k], (hk_coll)c, bytes);
        ck_assert_ptr_nonnull(a);
        ck_assert(hk_algorithm_supports(a, &all[k].team, (hk_coll)c));
        hk_machine copy = all[k];
        ck_assert_ptr_eq(choose(&copy, (hk_coll)c, bytes), a);
      }
    }
  }
}

static hk_decision choose_by(const hk_machine *m, const char *algo, const char *proto, hk_coll coll, size_t bytes) {
  hk_filter w = {.max_channels = 0};
  hk_decision d;
  ck_assert_int_eq(hk_filter_parse(&w, algo, proto), HK_OK);
  ck_assert_int_eq(hk_select(m, &w, coll, bytes, &d), HK_OK);
  return d;
}

TEST(filters) {
  hk_machine m = machine(1, 8, 2, true);
  static const char *const names[] = {"ring", "tree", "oneshot", "twoshot", "direct", "doubling", "halving", "flat"};
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(names); k++) {
    char not [16];
    snprintf(not, sizeof not, "^%s", names[k]);
    hk_decision d = choose_by(&m, names[k], NULL, HK_ALLREDUCE, 1 << 20);
    ck_assert_str_eq(d.algorithm->name, names[k]);
    ck_assert_ptr_null(d.note);
    d = choose_by(&m, not, NULL, HK_ALLREDUCE, 1 << 20);
    ck_assert_str_ne(d.algorithm->name, names[k]);
    ck_assert_ptr_null(d.note);
  }
  /* A filter that cannot be granted is dropped, and it is said. */
  m.team.multicast = false;
  hk_decision d = choose_by(&m, "OneShot", NULL, HK_ALLREDUCE, 64);
  ck_assert_ptr_eq(d.algorithm, choose(&m, HK_ALLREDUCE, 64));
  ck_assert_ptr_nonnull(d.note);
  d = choose_by(&m, "ring", "LL", HK_ALLREDUCE, 64);
  ck_assert_str_eq(d.algorithm->name, "ring");
  ck_assert_int_eq(d.protocol, HK_PROTO_SIMPLE);
  ck_assert_ptr_nonnull(d.note);
}

TEST(filter_syntax) {
  hk_machine m = machine(1, 8, 2, true);
  const char *spec = "flat,NVLS;AllReduce: ring ;reduce:^tree,binomial";
  ck_assert_str_eq(choose_by(&m, spec, NULL, HK_ALLREDUCE, 64).algorithm->name, "ring");
  const char *reduce = choose_by(&m, spec, NULL, HK_REDUCE, 64).algorithm->name;
  ck_assert(strcmp(reduce, "tree") && strcmp(reduce, "binomial"));
  ck_assert_ptr_nonnull(choose_by(&m, spec, NULL, HK_ALLGATHER, 64).note); /* flat gathers nothing */
  ck_assert_str_eq(choose_by(&m, "allreduce:tree;ring", NULL, HK_ALLREDUCE, 64).algorithm->name, "tree");
  static const struct {
    const char *algo, *proto, *said;
  } wrong[] = {{"rnig", NULL, "\"rnig\" is no algorithm"},
               {"ring,tre", NULL, "\"tre\""},
               {"alreduce:ring", NULL, "\"alreduce\" is no collective"},
               {NULL, "LL256", "\"LL256\" is no protocol; there are Simple, LL, LL128"},
               {NULL, "allreduce:^simple;broadcast:Complex", "\"Complex\""}};
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(wrong); k++) {
    hk_filter w = {.max_channels = 0};
    ck_assert_int_eq(hk_filter_parse(&w, wrong[k].algo, wrong[k].proto), HK_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(hk_last_error(), wrong[k].said));
  }
}

/* The table: sorted, the first row is the choice, what is left out says why. */
TEST(alternatives) {
  hk_alternative rows[HK_ALTERNATIVES];
  hk_machine m = machine(4, 8, 8, false);
  hk_filter w = {.max_channels = 0};
  ck_assert_int_eq(hk_filter_parse(&w, "^tree", NULL), HK_OK);
  int n;
  ck_assert_int_eq(hk_select_all(&m, &w, HK_ALLREDUCE, 1 << 20, rows, &n), HK_OK);
  hk_decision d;
  ck_assert_int_eq(hk_select(&m, &w, HK_ALLREDUCE, 1 << 20, &d), HK_OK);
  ck_assert_int_gt(n, 5);
  ck_assert_ptr_eq(rows[0].what.algorithm, d.algorithm);
  ck_assert_double_eq(rows[0].what.us, d.us);
  bool excluded = false, tree = false, oneshot = false;
  for (int i = 0; i < n; i++) {
    if (i && !excluded && !rows[i].why) ck_assert_double_le(rows[i - 1].what.us, rows[i].what.us);
    ck_assert(!(excluded && !rows[i].why));
    excluded = rows[i].why != NULL;
    if (!strcmp(rows[i].what.algorithm->name, "tree")) tree = rows[i].why && strstr(rows[i].why, "NCCL_ALGO");
    if (!strcmp(rows[i].what.algorithm->name, "oneshot")) oneshot = rows[i].why && strstr(rows[i].why, "multicast");
  }
  ck_assert(tree && oneshot);
}

/* What the model must find, whatever its details. */
TEST(sensible) {
  for (int n = 2; n <= 8; n *= 2) {
    hk_machine m = machine(1, n, 2, true);
    ck_assert_str_eq(choose(&m, HK_ALLREDUCE, 8)->name, "oneshot");
    if (n > 2) ck_assert_str_eq(choose(&m, HK_ALLREDUCE, 128 << 20)->name, "twoshot");
    ck_assert_str_eq(choose(&m, HK_ALLGATHER, 8)->name, "oneshot");
    if (n > 2) ck_assert_str_eq(choose(&m, HK_ALLGATHER, 128 << 20)->name, "oneshot");
    ck_assert_str_eq(choose(&m, HK_BROADCAST, 8)->name, "oneshot");
    if (n > 2) ck_assert_str_eq(choose(&m, HK_BROADCAST, 128 << 20)->name, "oneshot");
  }
  /* Sockets of one host: few system calls for short messages, few steps for large ones. */
  hk_machine crowded = machine(1, 8, 2, false);
  ck_assert_str_eq(choose(&crowded, HK_ALLGATHER, 8192)->name, "doubling");
  ck_assert_str_eq(choose(&crowded, HK_REDUCE_SCATTER, 8192)->name, "doubling");
  ck_assert_str_ne(choose(&crowded, HK_ALLGATHER, 32 << 20)->name, "ring");
  ck_assert_str_ne(choose(&crowded, HK_REDUCE_SCATTER, 32 << 20)->name, "doubling");
  hk_machine few = machine(4, 1, 8, false), many = machine(513, 8, 8, false);
  ck_assert_str_ne(choose(&few, HK_ALLREDUCE, 256 << 20)->name, "flat");
  ck_assert_str_ne(choose(&few, HK_ALLREDUCE, 256 << 20)->name, "doubling");
  ck_assert_str_ne(choose(&few, HK_BROADCAST, 256 << 20)->name, "binomial");
  /* Thousands of ranks: few steps for short messages, and not a link to everybody. */
  ck_assert_str_eq(choose(&many, HK_ALLREDUCE, 8)->name, "doubling");
  ck_assert_str_ne(choose(&many, HK_ALLGATHER, 8 * 8 * 513)->name, "direct");
  ck_assert_str_ne(choose(&many, HK_ALLGATHER, 8 * 8 * 513)->name, "ring");
  ck_assert_str_ne(choose(&many, HK_BROADCAST, 8)->name, "direct");
  ck_assert_str_ne(choose(&many, HK_BROADCAST, 8)->name, "chain");
}

/* Ranks with an H100 each, equally many on each host. */
static hk_gpu_facts gpus(int nranks, int nhosts, int max_channels) {
  return (hk_gpu_facts){.team.nranks = nranks,
                        .team.nhosts = nhosts,
                        .team.ranks_per_host = nranks / nhosts,
                        .team.least_per_host = nranks / nhosts,
                        .ranks_per_gpu = 1,
                        .sm = 90,
                        .max_channels = max_channels,
                        .slot_bytes = 131072,
                        .nslots = 8};
}

/* GPUs of several hosts: what was measured between them counts, also if it is what the built-in constants say; else
 * their ports do. */
TEST(measured_between_hosts) {
  hk_gpu_facts f = gpus(4, 4, 16);
  f.prices = (hk_gpu_prices){.known = 1, .ports_us_per_b = 1e-6, .between.ring_us_per_b = 2e-6};
  hk_constants k = hk_constants_default;
  for (k.net_measured = 0; k.net_measured < 2; k.net_measured++)
    for (int ports = 0; ports < 2; ports++) {
      f.prices.ports_us_per_b = ports * 1e-6;
      const hk_machine m = hk_machine_of_gpus(&f, &k);
      const bool constants = k.net_measured || !ports;
      ck_assert_double_eq(m.between.ring_us_per_b, constants ? k.net_us_per_b : 2e-6);
      ck_assert_double_eq(m.ports_us_per_b, constants ? k.net_us_per_b : 1e-6);
    }
}

/* GPUs of several hosts: LL for short messages, which go over the network in lines; what is longer than these has the
 * fence whatever the protocol. */
TEST(lines_between_hosts) {
  const hk_gpu_facts f = gpus(4, 4, 16);
  const hk_machine m = with_outlines(hk_machine_of_gpus(&f, &hk_constants_default)), cpus = machine(4, 1, 2, false);
  const hk_machine simple = hk_machine_as(&m, HK_PROTO_SIMPLE, 1), ll = hk_machine_as(&m, HK_PROTO_LL, 1);
  const hk_machine wide = hk_machine_as(&m, HK_PROTO_LL128, 1);
  hk_decision d;
  for (size_t bytes = 8; bytes <= 512; bytes *= 4) {
    ck_assert_int_eq(hk_select(&m, NULL, HK_ALLREDUCE, bytes, &d), HK_OK);
    ck_assert_int_eq(d.protocol, HK_PROTO_LL);
    const double longer = price_of(d.algorithm, &simple, HK_ALLREDUCE, bytes) -
                          price_of(d.algorithm, &ll, HK_ALLREDUCE, bytes);
    ck_assert_double_gt(longer, HK_GPU_SYNC_US / 2);
  }
  ck_assert_int_eq(hk_select(&m, NULL, HK_ALLREDUCE, 256 << 20, &d), HK_OK);
  ck_assert_int_eq(d.protocol, HK_PROTO_SIMPLE);
  ck_assert_double_lt(hk_far_sync_us(&ll, HK_GPU_LL_NET_MAX), HK_GPU_SYNC_US / 2);
  ck_assert_double_eq(hk_far_sync_us(&ll, HK_GPU_LL_NET_MAX + 1), HK_GPU_SYNC_US);
  ck_assert_double_eq(hk_far_sync_us(&simple, 0), HK_GPU_SYNC_US); /* an empty part of a message */
  ck_assert_double_eq(hk_far_sync_us(&wide, 8), HK_GPU_SYNC_US);
  ck_assert_double_eq(hk_far_sync_us(&cpus, 8), 0);
}

TEST(chunks) {
  hk_machine all[MACHINES];
  int n = machines(all);
  for (int k = 0; k < n; k++) {
    if (all[k].team.nranks > 64) continue;
    hk_machine m = all[k];
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
        if (!hk_algorithm_supports(*a, &m.team, (hk_coll)c)) continue;
        for (double block = 0; block < 1e9; block = block * 1.7 + 1) {
          size_t bytes = (size_t)block, chunk = chunk_of(*a, &m, (hk_coll)c, bytes);
          ck_assert_uint_gt(chunk, 0);
          ck_assert_uint_eq(chunk % 64, 0);
          ck_assert_uint_le(chunk, m.slot_bytes);
          size_t waves = (bytes + chunk - 1) / chunk;
          ck_assert_uint_le(waves * chunk - bytes, waves * 64); /* the last wave is nearly as long as the others */
        }
      }
    }
  }
}

/* No step of 1.1 in size makes the time, as the model sees it, jump by more than 1.3; where a second wave doubles the
 * messages and a message is dear (between hosts) or there are many (31 ranks), by more than 1.45; where calls follow
 * one another without a wait (those with a root), by more than 1.5.  Left out: hundreds of ranks, for the same reason,
 * and several hosts of several ranks, where the ring wins, whose second wave doubles its rounds. */
TEST(no_cliffs) {
  hk_machine all[MACHINES];
  int n = machines(all);
  for (int k = 0; k < n; k++) {
    if (all[k].team.nranks < 2 || all[k].team.nranks > 64 || (all[k].team.nhosts > 1 && all[k].team.ranks_per_host > 1))
      continue;
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      const bool few = all[k].team.multicast && all[k].team.nranks < 31;
      const double most = hk_coll_has_root((hk_coll)c) ? 1.5 : few ? 1.3 : 1.45;
      double last = 0;
      for (double size = 1024; size < 64 << 20; size *= 1.1) {
        const hk_algorithm *a = choose(&all[k], (hk_coll)c, (size_t)size);
        double us = price_of(a, &all[k], (hk_coll)c, (size_t)size);
        ck_assert_double_gt(us, 0);
        ck_assert_msg(last == 0 || us < last * most,
                      "%s of %.0f bytes, %d ranks on %d hosts: %s takes %.1f us after %.1f", hk_coll_name((hk_coll)c),
                      size, all[k].team.nranks, all[k].team.nhosts, a->name, us, last);
        last = us;
      }
    }
  }
}

/* ---- names of algorithms and protocols as NCCL writes them ---- */

enum { LL = 1 << HK_PROTO_LL, LL128 = 1 << HK_PROTO_LL128, SIMPLE = 1 << HK_PROTO_SIMPLE };
static const struct {
  const char *selection, *algorithms; /* those that it means, each with a blank before and after it */
  int protocols;
  const char *says; /* it is refused in these words */
} selections[] = {
    {"RING", " ring chain ", LL | LL128 | SIMPLE, NULL},
    {"ring_ll", " ring chain ", LL | LL128, NULL},
    {" RING_LL128 ", " ring chain ", LL128, NULL},
    {"RING_S", " ring chain ", SIMPLE, NULL},
    {"TREE_LL", " tree ", LL | LL128, NULL},
    {"NVLS", " nvls nvlstree ", SIMPLE, NULL},
    {"PAT", " pat ", SIMPLE, NULL},
    {"COLLNET_DIRECT", " collnet ", SIMPLE, NULL},
    {"COLLNET_CHAIN", " collnet ", SIMPLE, NULL},
    {"TREE_SIMPLE,RING_SIMPLE", " tree ring chain ", SIMPLE, NULL},
    {"RING + ^RING_LL", " ring chain ", SIMPLE, NULL},
    {"doubling_LL128", " doubling ", LL128, NULL},
    {"NVLSTREE", " nvlstree ", SIMPLE, NULL},
    {"NVLSTREES", NULL, 0, "\"NVLSTREES\" begins no name"},
    {"SYMK_LL", NULL, 0, "selects nothing"},
    {"SYMK_", NULL, 0, "selects nothing"},
    {"SYMK_anything", NULL, 0, "selects nothing"},
    {"RING,RIGN", NULL, 0, "\"RIGN\""},
    {"RING,", NULL, 0, "\"\""},
};

TEST_LOOP(selected, HK_ARRAY_LENGTH(selections)) {
  uint32_t only[HK_PROTO_COUNT];
  char why[200] = "", name[40];
  const bool there = hk_filter_only(selections[_i].selection, hk_algorithms, only, why, sizeof why);
  ck_assert_msg(there == !selections[_i].says, "%s: %s", selections[_i].selection, why);
  if (!there) ck_assert_msg(strstr(why, selections[_i].says) != NULL, "%s: %s", selections[_i].selection, why);
  for (int a = 0; there && hk_algorithms[a]; a++) {
    snprintf(name, sizeof name, " %s ", hk_algorithms[a]->name);
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      bool meant = strstr(selections[_i].algorithms, name) && selections[_i].protocols >> p & 1;
      ck_assert_msg((only[p] >> a & 1) == meant, "%s:%s by %s", selections[_i].selection, name, hk_protocols[p].name);
    }
  }
}

/* Fewer slots keep a lane closer to its receiver, so that each further wave costs more. */
TEST(by_slots) {
  hk_gpu_facts f = gpus(8, 1, 32);
  f.slot_bytes = 1 << 10;
  double us[3];
  for (int i = 0; i < 3; i++) {
    f.nslots = 2u << i;
    const hk_machine m = with_outlines(hk_machine_of_gpus(&f, &hk_constants_default));
    const hk_machine one = hk_machine_as(&m, HK_PROTO_SIMPLE, 1);
    us[i] = price_of(hk_algorithm_by_name("chain"), &one, HK_BROADCAST, 1 << 20);
  }
  ck_assert_double_gt(us[0], us[1] * 1.1);
  ck_assert_double_ge(us[1], us[2]);
}

/* Larger slots of other links, and more channels than a switch has slots for, change nothing for what goes through a
 * switch. */
TEST(in_a_switch) {
  static const char *const names[] = {"nvls", "sumshot", "oneshot"};
  hk_gpu_facts f = gpus(8, 1, 32);
  f.team.in_switch = true;
  f.slot_bytes = 1 << 15;
  const hk_machine small = with_outlines(hk_machine_of_gpus(&f, &hk_constants_default));
  f.slot_bytes = 1 << 19;
  const hk_machine large = with_outlines(hk_machine_of_gpus(&f, &hk_constants_default));
  ck_assert_uint_eq(hk_gpu_switch_slot(1 << 19, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS, 8), 1 << 15);
  ck_assert_uint_eq(hk_gpu_switch_slot(1 << 19, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS, 7), 1 << 16);
  ck_assert_uint_eq(hk_gpu_switch_slot(4096, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS, 2), 4096);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(names); k++) {
    const hk_algorithm *a = hk_algorithm_by_name(names[k]);
    for (size_t bytes = 1024; bytes <= 1u << 30; bytes *= 32) {
      const hk_machine one = hk_machine_as(&small, HK_PROTO_SIMPLE, 16),
                       other = hk_machine_as(&large, HK_PROTO_SIMPLE, 16);
      const hk_machine more = hk_machine_as(&large, HK_PROTO_SIMPLE, 32);
      const double us = price_of(a, &one, HK_ALLREDUCE, bytes);
      ck_assert_double_eq(price_of(a, &other, HK_ALLREDUCE, bytes), us);
      ck_assert_double_eq(price_of(a, &more, HK_ALLREDUCE, bytes), us);
    }
  }
  const hk_algorithm *twoshot = hk_algorithm_by_name("twoshot");
  ck_assert(!hk_algorithm_supports(twoshot, &large.team, HK_ALLREDUCE)); /* GPUs have no links for it */
}

/* ---- programs that cannot win are not priced ---- */

/* The cheapest of all, each priced; checks that no price is below its bound. */
static hk_decision cheapest_of_all(const hk_machine *m, hk_coll coll, size_t bytes, int *pruned) {
  hk_decision best = {.us = INFINITY}, d;
  double least[HK_ALTERNATIVES], us;
  uint64_t work;
  int n = 0;
  for (int i = 0; hk_algorithms[i]; i++)
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      bool can;
      const hk_algorithm *a = hk_algorithms[i];
      ck_assert_int_eq(hk_select_one(m, NULL, coll, bytes, a, (hk_protocol)p, &d, &can), HK_OK);
      if (!can) continue;
      const hk_machine as = hk_machine_as(m, (hk_protocol)p, m->max_channels);
      ck_assert_int_eq(hk_algorithm_least(&as, a, coll, bytes, &us, &work), HK_OK);
      ck_assert_msg(us <= d.us * (1 + 1e-9), "%s by %s with %s, %zu bytes: priced at %f us, and at least %f",
                    hk_coll_name(coll), a->name, hk_protocols[p].name, bytes, d.us, us);
      least[n++] = us;
      if (d.us < best.us) best = d;
    }
  for (int i = 0; i < n; i++) *pruned += least[i] > best.us;
  return best;
}

static const char *const clusters[] = {"dgx-h100",
                                       "dgx-v100",
                                       "mi300x",
                                       "nodes=2 of dgx-a100",
                                       "nodes=3 of dgx-h100",
                                       "nodes=4 of mi300x",
                                       "nodes=16 of dgx-h100 fabric=rail,fattree",
                                       "nodes=7 of 4xa100:nvswitch6 nic=2x200"};

TEST_LOOP(bounds_change_no_choice, HK_ARRAY_LENGTH(clusters)) {
  hk_cluster *c;
  hk_simulator *x;
  int pruned = 0;
  ck_assert_msg(hk_cluster_from_string(&c, clusters[_i]) == HK_OK, "%s", hk_last_error());
  ck_assert_msg(hk_simulator_new(&x, c, 0) == HK_OK, "%s", hk_last_error());
  for (int coll = 0; coll < HK_COLL_COUNT; coll++)
    for (size_t bytes = 8; bytes <= (size_t)1 << 34; bytes *= 4) {
      hk_decision d;
      const hk_decision best = cheapest_of_all(&x->machine, (hk_coll)coll, bytes, &pruned);
      ck_assert_int_eq(hk_select(&x->machine, NULL, (hk_coll)coll, bytes, &d), HK_OK);
      ck_assert_msg(d.algorithm == best.algorithm && d.protocol == best.protocol && d.channels == best.channels,
                    "%s: %s of %zu bytes: %s is chosen, and %s is the cheapest", clusters[_i],
                    hk_coll_name((hk_coll)coll), bytes, d.algorithm->name, best.algorithm->name);
      ck_assert_double_eq(d.us, best.us);
    }
  ck_assert_int_gt(pruned, 50);
  hk_simulator_free(x);
  hk_cluster_free(c);
}

int main(void) { return suite_main("select", .timeout = 120); }
