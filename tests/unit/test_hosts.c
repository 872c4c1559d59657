/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What the ranks' rows give of their hosts (src/comm/hosts.c): cores, ranks, the machine's facts, how long waits
 * spin. The communicator has no peers but in its table, and its backend keeps the facts. */
#include <sched.h>
#include "../../src/base/param.h"
#include "../../src/boot/host.h"
#include "../../src/comm/hosts.h"
#include "../../src/comm/machine.h"
#include "../../src/core/backend.h"
#include "../../src/core/comm.h"
#include "../../src/core/wiring.h"
#include "../../src/decide/machine.h"
#include "../../src/decide/outlines.h"
#include "../../src/program/layout.h"
#include "../../src/run/run.h"
#include "../../src/run/selection.h"
#include "../../src/transport/peer.h"
#include "../support/suite.h"

enum { MOST = 6 };
typedef struct row {
  uint64_t cpus[HK_CPU_WORDS], shm_off, more;
} row;

static struct ncclComm c; /* each test has a process of its own */
static row rows[MOST + 1];
static hk_peer peers[MOST + 1];
static hk_host_facts facts;
static const hk_host_rows all = {.cpus = {rows[0].cpus, sizeof(row)},
                                 .shm_off = {&rows[0].shm_off, sizeof(row)},
                                 .backend = {&rows[0].more, sizeof(row)}};

static void keep_facts(const struct ncclComm *comm, const hk_host_facts *f, const struct hk_joined *rings,
                       const struct hk_constants *constants, hk_machine *out) {
  (void)comm, (void)constants, (void)out;
  ck_assert_ptr_null(rings);
  facts = *f;
}
static const hk_backend backend = {.machine = keep_facts};

static void setup(void) {
  ck_assert_int_eq(hk_selection_new(&c), HK_OK);
  ck_assert_int_eq(hk_wire_new(&c), HK_OK);
  c.backend = &backend;
  c.settings = hk_settings_now();
  c.peers = peers;
}
static void teardown(void) {
  hk_selection_free(&c);
  free(c.selection);
  free(c.wiring);
}

/* ---- the processors of this thread, as this test invents them ---- */

static cpu_set_t may, set[2];
static int nset;
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *out) {
  ck_assert(pid == 0 && bytes >= sizeof may);
  *out = may;
  return 0;
}
int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *to) {
  ck_assert(pid == 0 && bytes >= sizeof may && nset < 2);
  set[nset++] = *to;
  return 0;
}

/* Ranks by their host, as digits; the processors of each. */
static void place(const char *hosts, const uint64_t *cpus) {
  c.nranks = (int)strlen(hosts);
  for (int r = 0; r < c.nranks; r++) {
    peers[r].host = (uint64_t)hosts[r];
    peers[r].cores = -1;
    rows[r].cpus[0] = cpus[r];
    rows[r].cpus[HK_CPU_WORDS - 1] = cpus[r] >> 32;
  }
}

/* ---- cores ---- */

TEST(counts_cores) {
  static const struct {
    const char *hosts;
    uint64_t cpus[MOST]; /* the upper half counts twice: it is the last word, too */
    int cores[MOST];
  } cases[] = {
      {"1", {0xf}, {4}},
      {"11", {1, 2}, {2, 2}}, /* each is bound to a core of its own */
      {"11", {3, 6}, {3, 3}},
      {"1212", {1, 3, 2, 3}, {2, 2, 2, 2}},
      {"112", {0x100000001, 1, 0x300000000}, {3, 3, 4}},
      {"1221", {0xff, 1, 1, 0xff00}, {16, 1, 1, 16}},
  };
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    place(cases[i].hosts, cases[i].cpus);
    for (int alone = 0; alone < 2; alone++) { /* what is beyond the ranks, as if it were on their host or on another */
      peers[c.nranks] = (hk_peer){.host = alone ? 9 : peers[0].host, .cores = -1};
      hk_hosts_count_cores(&c, &all);
      for (int r = 0; r < c.nranks; r++) ck_assert_msg(peers[r].cores == cases[i].cores[r], "case %zu rank %d", i, r);
      ck_assert_int_eq(peers[c.nranks].cores, -1);
    }
  }
}

TEST_LOOP(publishes, 2) {
  uint64_t cpus[HK_CPU_WORDS] = {0}, off = 9;
  setenv("NCCL_SHM_DISABLE", _i ? "1" : "0", 1);
  hk_param_reload();
  CPU_ZERO(&may);
  CPU_SET(5, &may);
  CPU_SET(190, &may);
  CPU_SET(191, &may);
  c.settings = hk_settings_now();
  hk_hosts_publish(&c, cpus, &off);
  ck_assert_uint_eq(off, (uint64_t)_i);
  for (int i = 0; i < HK_CPU_WORDS; i++) ck_assert_uint_eq(cpus[i], i == 0 ? 1u << 5 : i == 2 ? (uint64_t)3 << 62 : 0);
}

/* ---- the facts ---- */

static const struct {
  const char *hosts;
  uint64_t cpus[MOST];
  int nhosts, most, least, cores; /* ranks of the hosts with the most and the fewest; the fewest cores */
  bool shm_off, multicasts, memory;
} machines[] = {
    {"1", {3}, 1, 1, 1, 2, false, false, true},
    {"1", {3}, 1, 1, 1, 2, true, false, true}, /* it is alone */
    {"11", {3, 3}, 1, 2, 2, 2, false, true, true},
    {"11", {3, 3}, 1, 2, 2, 2, false, false, false}, /* they see different memory: containers */
    {"12", {3, 7}, 2, 1, 1, 2, false, false, true},
    {"21", {7, 3}, 2, 1, 1, 2, false, false, true},
    {"12", {3, 3}, 2, 1, 1, 2, true, false, false},
    {"112", {15, 15, 1}, 2, 2, 1, 1, false, false, true},
    {"122", {15, 7, 7}, 2, 2, 1, 3, false, false, true},
    {"112", {15, 15, 255}, 2, 2, 1, 4, false, false, true},
    {"121212", {1, 2, 1, 2, 1, 2}, 2, 3, 3, 1, false, false, true},
};

static void agree(size_t i) {
  int nhosts = -1;
  place(machines[i].hosts, machines[i].cpus);
  for (int r = 0; r < c.nranks; r++) rows[r].shm_off = machines[i].shm_off && r == c.nranks - 1;
  c.wiring->multicast = machines[i].multicasts ? 0 : -1;
  hk_hosts_count_cores(&c, &all);
  ck_assert_int_eq(hk_machine_agree(&c, &all, false, &nhosts), HK_OK);
  ck_assert_int_eq(nhosts, machines[i].nhosts);
}

TEST_LOOP(counts, HK_ARRAY_LENGTH(machines)) {
  agree((size_t)_i);
  ck_assert_int_eq(facts.team.nranks, c.nranks);
  ck_assert_int_eq(facts.team.nhosts, machines[_i].nhosts);
  ck_assert_int_eq(facts.team.ranks_per_host, machines[_i].most);
  ck_assert_int_eq(facts.team.least_per_host, machines[_i].least);
  ck_assert_int_eq(facts.cores_per_host, machines[_i].cores);
  ck_assert_int_eq(facts.memory, machines[_i].memory);
  ck_assert_int_eq(facts.team.multicast, machines[_i].multicasts);
  ck_assert_uint_eq(facts.slot_bytes, (size_t)hk_param_int(HK_P_SLOT_BYTES));
  const hk_layout *l = c.selection->layout;
  ck_assert_int_eq(l != NULL, machines[_i].nhosts > 1);
  if (!l) return;
  ck_assert_int_eq(l->nhosts, machines[_i].nhosts);
  for (int r = 0; r < c.nranks; r++) /* hosts are numbered in the order of their first ranks */
    ck_assert_int_eq(l->host[r], machines[_i].hosts[r] != machines[_i].hosts[0]);
}

/* Waits spin if this rank's host has a core for each of its ranks. */
TEST(spins) {
  static const struct {
    const char *hosts;
    uint64_t cpus[MOST];
    int rank;
    uint32_t spins;
  } cases[] = {{"1", {1}, 0, 30},
               {"11", {3, 3}, 1, 30},
               {"11", {1, 1}, 0, 0},
               {"1121", {7, 7, 1, 7}, 0, 30},
               {"1121", {3, 3, 1, 3}, 0, 0},
               {"1121", {3, 3, 1, 3}, 2, 30},
               {"122", {1, 1, 1}, 0, 30},
               {"122", {1, 1, 1}, 2, 0}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    int nhosts;
    hk_outlines_free(c.selection->machine->outlines);
    c.selection->machine->outlines = NULL;
    hk_layout_free(c.selection->layout);
    c.selection->layout = NULL;
    place(cases[i].hosts, cases[i].cpus);
    c.rank = cases[i].rank;
    hk_hosts_count_cores(&c, &all);
    ck_assert_int_eq(hk_machine_agree(&c, &all, false, &nhosts), HK_OK);
    ck_assert_msg(c.wait.spins == cases[i].spins, "case %zu: %u", i, c.wait.spins);
    ck_assert_uint_eq(c.wait.patience_ns > 0, cases[i].spins > 0);
    ck_assert_uint_eq(c.wait.crowded_until_ns != NULL, cases[i].spins > 0);
  }
}

TEST_LOOP(spins_as_set, 2) {
  static const char *const values[] = {"0", "7"};
  setenv("HOCKET_SPIN", values[_i], 1);
  hk_param_reload();
  c.settings = hk_settings_now();
  agree(_i ? 2 : 0);
  ck_assert(c.wait.spins == (_i ? 7 : 0) && !c.wait.patience_ns);
}

/* If no core is left over, a thread goes to its rank's core, and may use all of them again afterwards. It stays where
 * it is if a launcher has bound it, or if there are more cores than ranks. */
TEST(spreads) {
  static const int cpus[] = {1, 4, 5, 9};
  c.nranks = MOST;
  for (int cores = 1; cores <= 4; cores++)
    for (int bound = 0; bound < 2; bound++)
      for (c.rank = 0; c.rank < MOST; c.rank++)
        for (int hosts = 1; hosts <= 2; hosts++) {
          const bool moves = !bound && cores > 1 && MOST / hosts >= cores;
          CPU_ZERO(&may);
          for (int i = 0; i < cores - bound; i++) CPU_SET(cpus[i], &may);
          for (int r = 0; r < MOST; r++) peers[r] = (hk_peer){.host = (uint64_t)r % (uint64_t)hosts, .cores = cores};
          nset = 0;
          hk_run_spread(&c);
          ck_assert_int_eq(nset, moves ? 2 : 0);
          if (!moves) continue;
          ck_assert(CPU_COUNT(&set[0]) == 1 && CPU_ISSET(cpus[c.rank / hosts % cores], &set[0]));
          ck_assert(CPU_EQUAL(&set[1], &may));
        }
}

int main(void) { return suite_main("hosts", .setup = setup, .teardown = teardown); }
