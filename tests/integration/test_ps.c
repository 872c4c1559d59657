/* SPDX-License-Identifier: Apache-2.0 */
/* What `hocket ps` collects: all ranks of a communicator, and the one that keeps the others waiting. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include "../../src/base/wait.h"
#include "../../src/boot/bootstrap.h"
#include "../../src/core/comm.h"
#include "../../src/ops/collect.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { RANKS = 4, LATE_MS = 300, TRIES = 100 };

static bool guilty(const hk_ps_comm *m, int first, int n) {
  for (int r = 0; r < m->nranks; r++)
    if (m->ranks[r].guilty != (r >= first && r < first + n)) return false;
  return true;
}

/* Collects until the verdict on the communicator of `c` is that these ranks alone are guilty; NULL: it never is. On a
 * busy machine another rank may not answer in time, and a signal takes a moment to stop a process. */
static const hk_ps_comm *verdict(ncclComm_t c, int first, int n, hk_ps *p) {
  const uint64_t id = hk_bootstrap_comm_id(c->bootstrap);
  const hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (int k = 0; k < TRIES; k++) {
    if (hk_ps_collect(p, LATE_MS, NULL) != HK_OK) return NULL;
    for (int i = 0; i < p->ncomms; i++)
      if (p->comms[i].id == id && p->comms[i].verdict[0] && guilty(&p->comms[i], first, n)) return &p->comms[i];
    hk_ps_free(p);
    (void)hk_wait_nap(&w, -1, 50000000);
  }
  *p = (hk_ps){.ncomms = 0};
  return NULL;
}

/* The last rank looks, while it keeps the others waiting. */
static int late(ncclComm_t c, int rank, int nranks, void *arg) {
  float x = 1;
  int bad = 0;
  (void)arg;
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  if (rank == nranks - 1) {
    hk_ps p;
    const hk_ps_comm *m = verdict(c, nranks - 1, 1, &p);
    bad += RANK_IS(m != NULL);
    if (m) {
      bad += RANK_IS(strstr(m->verdict, "rank 3 runs outside of this communicator's calls") != NULL);
      bad += RANK_IS(m->newest == 2 && m->waited_ms >= LATE_MS && m->nranks == nranks);
      bad += RANK_IS(m->ranks[0].activity.waits_for >= 0 && m->ranks[0].activity.sequence == 2);
    }
    hk_ps_free(&p);
  }
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  return bad;
}

/* The last two ranks keep the others waiting, until the last one has looked. */
static int two_late(ncclComm_t c, int rank, int nranks, void *arg) {
  static _Atomic(bool) looked;
  const hk_wait_env env = {.spins = 0};
  float x = 1;
  int bad = 0;
  hk_waiter w;
  (void)arg;
  hk_wait_begin(&w, &env);
  while (rank == nranks - 2 && !atomic_load(&looked)) (void)hk_wait_nap(&w, -1, 1000000);
  if (rank == nranks - 1) {
    hk_ps p;
    const hk_ps_comm *m = verdict(c, nranks - 2, 2, &p);
    bad += RANK_IS(m && strstr(m->verdict, "ranks 2 and 3 are late; rank 2 runs outside of") == m->verdict);
    hk_ps_free(&p);
    atomic_store(&looked, true);
  }
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  return bad;
}

/* Rank 2 is stopped by the last rank. */
static int stopped(ncclComm_t c, int rank, int nranks, void *arg) {
  float x = 1;
  int bad = 0, pids[RANKS], own = (int)getpid();
  (void)arg;
  bad += RANK_CHECK(ncclAllGather(&own, pids, 1, ncclInt32, c, NULL));
  if (rank == nranks - 1) {
    hk_ps p;
    bad += RANK_IS(!kill(pids[2], SIGSTOP));
    const hk_ps_comm *m = verdict(c, 2, 1, &p);
    bad += RANK_IS(m != NULL);
    if (m) {
      bad += RANK_IS(m->ranks[2].presence == HK_PRESENCE_STOPPED && m->ranks[2].pid == pids[2]);
    }
    hk_ps_free(&p);
    bad += RANK_IS(!kill(pids[2], SIGCONT));
  }
  bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  return bad;
}

TEST(names_the_late_rank) { ck_assert_int_eq(ranks_as_processes(RANKS, late, NULL), 0); }
TEST(names_it_among_threads) { ck_assert_int_eq(ranks_as_threads(RANKS, late, NULL), 0); }
TEST(names_two_late_ranks) { ck_assert_int_eq(ranks_as_threads(RANKS, two_late, NULL), 0); }
TEST(names_the_stopped_rank) { ck_assert_int_eq(ranks_as_processes(RANKS, stopped, NULL), 0); }

/* Rank 2 comes a millisecond late each time: it is named with that. The last rank looks between two rounds, each longer
 * than what ranks remember; on a busy machine another one may be later in a round. */
enum { ROUND = 40, ROUNDS = 20 };
static int slow(ncclComm_t c, int rank, int nranks, void *arg) {
  const hk_wait_env env = {.spins = 0};
  float x = 1, found = 0;
  int bad = 0;
  hk_waiter w;
  (void)arg;
  hk_wait_begin(&w, &env);
  for (int k = 0; k < ROUNDS && !found; k++) {
    for (int i = 0; i < ROUND; i++) {
      if (rank == 2) (void)hk_wait_nap(&w, -1, 1000000);
      bad += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclMax, c, NULL));
    }
    if (rank == nranks - 1) {
      hk_ps p;
      const char *text = "";
      bad += RANK_IS(hk_ps_collect(&p, LATE_MS, NULL) == HK_OK);
      for (int i = 0; i < p.ncomms; i++) {
        const hk_ps_rank *late = &p.comms[i].ranks[2];
        if (p.comms[i].id != hk_bootstrap_comm_id(c->bootstrap)) continue;
        text = p.comms[i].late.text;
        const double ms = 1e-6 * (double)late->recent.ns / p.comms[i].late.collectives;
        found = !strncmp(text, "rank 2 is late, by ", 19) && ms > 0.8 && ms < 2.5 && late->late.count >= ROUND / 2;
      }
      if (!found) printf("round %d: '%s'\n", k, text);
      hk_ps_free(&p);
    }
    bad += RANK_CHECK(ncclAllReduce(&found, &found, 1, ncclFloat32, ncclMax, c, NULL));
  }
  return bad + RANK_IS(found > 0);
}
TEST(names_the_slow_rank) {
  setenv("HOCKET_SPIN", "0", 1); /* each wait reads the clock */
  ck_assert_int_eq(ranks_as_processes(RANKS, slow, NULL), 0);
  unsetenv("HOCKET_SPIN");
}

/* HOCKET_STATUS=0: nobody is told. */
static int unseen(ncclComm_t c, int rank, int nranks, void *arg) {
  hk_ps p;
  int bad = 0;
  (void)rank, (void)nranks, (void)arg;
  bad += RANK_IS(hk_ps_collect(&p, LATE_MS, NULL) == HK_OK);
  for (int i = 0; i < p.ncomms; i++) bad += RANK_IS(p.comms[i].id != hk_bootstrap_comm_id(c->bootstrap));
  hk_ps_free(&p);
  return bad;
}
TEST(can_be_off) {
  setenv("HOCKET_STATUS", "0", 1);
  ck_assert_int_eq(ranks_as_processes(2, unseen, NULL), 0);
  unsetenv("HOCKET_STATUS");
}

int main(void) { return suite_main("ps", .timeout = 60); }
