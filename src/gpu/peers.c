/* SPDX-License-Identifier: Apache-2.0 */
/* The other ranks of a communicator on GPUs: and exchanges (peers.h). */
#include "peers.h"
#include <stdlib.h>
#include "../base/facts.h"
#include "../boot/bootstrap.h"
#include "../core/comm.h"
#include "../rma/windows.h"
#include "../transport/device_links.h"
#include "../transport/peer.h"
#include "../transport/transport.h"
#include "links.h"

const hk_gpu_fact *hk_gpu_fact_of(const hk_facts *facts, int rank) { return hk_fact_of(facts, rank); }

bool hk_gpu_is_remote(ncclComm_t c, int peer) { return c->peers[peer].process != c->peers[c->rank].process; }
bool hk_gpu_can_read(const hk_gpu_links *l, int peer) { return (l->routes[peer].can & HK_DEVICE_READS) != 0; }
bool hk_gpu_is_local(const hk_gpu_links *l, int peer) { return (l->routes[peer].can & HK_DEVICE_LOCAL) != 0; }
bool hk_gpu_is_proxied(const hk_gpu_links *l, int peer) { return (l->routes[peer].can & HK_DEVICE_PROXIED) != 0; }
bool hk_gpu_by_file(const hk_gpu_links *l) { return l->env->by_file; }
bool hk_gpu_processes(const hk_gpu_links *l) { return l->env->processes; }

hk_status hk_gpu_exchange(void *c, void *rows, size_t row_bytes) {
  return hk_bootstrap_allgather(((ncclComm_t)c)->bootstrap, rows, row_bytes);
}

static int peers_by_id(const void *a, const void *b) {
  const uint64_t *x = a, *y = b;
  return *x < *y ? -1 : *x > *y;
}

int hk_gpu_most_equal(uint64_t *ids, int n) {
  int most = 0;
  qsort(ids, (size_t)n, sizeof *ids, peers_by_id);
  for (int r = 0, run = 0; r < n; r++) {
    run = r > 0 && ids[r] == ids[r - 1] ? run + 1 : 1;
    if (run > most) most = run;
  }
  return most;
}

bool hk_gpu_is_far(const struct ncclComm *c, int peer) { return hk_lsa_rank(c, peer) < 0; }
