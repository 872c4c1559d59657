/* SPDX-License-Identifier: Apache-2.0 */
/* Counts hosts and cores, from what the ranks published (hosts.h). */
#include "hosts.h"
#include <stdlib.h>
#include "../base/param.h"
#include "../boot/host.h"
#include "../core/comm.h"
#include "../decide/machine.h"
#include "../transport/peer.h"

/* The patience is longer than a moment's sleep (wait.c), so that two ranks do not sleep in turns. */
enum { HOSTS_SPINS = 30, HOSTS_PATIENCE_NS = 100 * 1000 };

void hk_hosts_publish(ncclComm_t c, uint64_t *cpus, uint64_t *shm_off) {
  hk_host_cpus(cpus);
  *shm_off = (uint64_t)c->settings->SHM_DISABLE;
}

static uint64_t hosts_word_of(const hk_facts *facts, int rank, int word) {
  return ((const uint64_t *)hk_fact_of(facts, rank))[word];
}

int hk_hosts_first(const struct ncclComm *c, int rank) {
  int r = 0;
  while (c->peers[r].host != c->peers[rank].host) r++;
  return r;
}

void hk_hosts_count_cores(ncclComm_t c, const hk_host_rows *rows) {
  for (int r = 0; r < c->nranks; r++) {
    uint64_t cpus[HK_CPU_WORDS] = {0};
    int cores = 0;
    if (hk_hosts_first(c, r) != r) continue;
    for (int i = r; i < c->nranks; i++)
      for (int k = 0; k < HK_CPU_WORDS && c->peers[i].host == c->peers[r].host; k++)
        cpus[k] |= hosts_word_of(&rows->cpus, i, k);
    for (int k = 0; k < HK_CPU_WORDS; k++) cores += __builtin_popcountll(cpus[k]);
    for (int i = r; i < c->nranks; i++)
      if (c->peers[i].host == c->peers[r].host) c->peers[i].cores = cores;
  }
}

hk_host_facts hk_hosts_count(ncclComm_t c, const hk_host_rows *rows, hk_wait_env *wait) {
  hk_team t = {.nranks = c->nranks, .multicast = hk_wire_multicasts(c), .least_per_host = c->nranks};
  hk_host_facts f = {
      .slot_bytes = (size_t)c->settings->SLOT_BYTES, .nslots = (uint32_t)c->settings->SLOTS, .cores_per_host = 1 << 20};
  int my_ranks = 1, my_cores = 1;
  bool shm_off = false;
  for (int r = 0; r < c->nranks; r++) {
    shm_off = shm_off || hosts_word_of(&rows->shm_off, r, 0);
    if (hk_hosts_first(c, r) != r) continue;
    const int ranks = hk_wire_host_ranks(c, r), cores = c->peers[r].cores;
    t.nhosts++;
    if (ranks > t.ranks_per_host) t.ranks_per_host = ranks;
    if (ranks < t.least_per_host) t.least_per_host = ranks;
    if (cores < f.cores_per_host) f.cores_per_host = cores;
    if (hk_wire_near(c, r)) {
      my_ranks = ranks;
      my_cores = cores;
    }
  }
  f.team = t;
  f.memory = t.multicast || c->nranks == 1 || (t.nhosts > 1 && !shm_off);
  /* If there are more ranks than cores, spinning only keeps the awaited rank from running, and a yield lets it run. If
   * not, the awaited rank usually runs on another core; if other programs have taken that, it may wait for this one. */
  const int64_t set = c->settings->SPIN;
  const bool shared = my_ranks > my_cores;
  wait->spins = set >= 0 ? (uint32_t)set : shared ? 0 : HOSTS_SPINS;
  wait->patience_ns = set >= 0 || shared ? 0 : HOSTS_PATIENCE_NS;
  wait->crowded_until_ns = shared ? NULL : &c->health.crowded_until_ns;
  return f;
}
