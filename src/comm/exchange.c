/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange at init: all ranks' facts and settings, and the set-up that depends on them. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h> /* getpid */
#include "../boot/bootstrap.h"
#include "../boot/host.h"
#include "../core/backend.h"
#include "../failure/failure.h"
#include "../rma/rma.h"
#include "../run/collnet.h"
#include "../run/profiler.h"
#include "../transport/peer.h"
#include "consistency.h"
#include "diagnose.h"
#include "hosts.h"
#include "machine.h"
#include "topology.h"

/* What each rank sends to all others, once. */
typedef struct hk_row {
  hk_peer peer;
  uint64_t cpus[HK_CPU_WORDS];
  uint64_t agree[HK_AGREE_FACT_BYTES / sizeof(uint64_t)];     /* hk_consistency_publish */
  uint64_t shm_off;                                           /* NCCL_SHM_DISABLE */
  uint64_t diagnose;                                          /* hk_diagnose_wanted */
  uint64_t backend[HK_BACKEND_FACT_BYTES / sizeof(uint64_t)]; /* from its attach */
  hk_topology_fact topology;
  unsigned char facts[]; /* of the transports: hk_wire_fact_bytes */
} hk_row;
_Static_assert(sizeof(hk_row) % 8 == 0, "rows and facts are aligned");

static size_t exchange_row_bytes(void) { return sizeof(hk_row) + hk_wire_fact_bytes(); }

static hk_facts exchange_column(const void *rows, size_t at) {
  return (hk_facts){.first = (const char *)rows + at, .stride = exchange_row_bytes()};
}

static void exchange_fill_row(ncclComm_t c, hk_row *row) {
  row->peer = (hk_peer){.host = hk_host_id(c->settings),
                        .process = hk_process_id(),
                        .pid = (int32_t)getpid(),
                        .pid_space = hk_process_space(),
                        .device = c->device};
  hk_hosts_publish(c, row->cpus, &row->shm_off);
  row->diagnose = hk_diagnose_wanted(c->settings);
  c->peers[c->rank] = row->peer;
}

/* HK_ERR_USAGE unless all ranks are on GPUs, or none. */
static hk_status exchange_check_devices(ncclComm_t c) {
  for (int r = 0; r < c->nranks; r++) {
    if ((c->peers[r].device < 0) == (c->peers[0].device < 0)) continue;
    int gpu = c->peers[r].device >= 0 ? r : 0, host = gpu == r ? 0 : r;
    char text[400];
    snprintf(
        text, sizeof text,
        "rank %d works on GPU %d and rank %d on host memory: all must do the same (rank %d sees no CUDA driver, no "
        "GPU, no kernels in its library, or HOCKET_DEVICE=host)",
        gpu, c->peers[gpu].device, host, host);
    hk_failure_raise(c, HK_EVENT_VERDICT, r, HK_ERR_USAGE, text);
    return HK_ERR_USAGE;
  }
  return HK_OK;
}

static void exchange_announce(void *arg, hk_status rc, const char *text) {
  ncclComm_t c = arg;
  hk_failure_raise(c, HK_EVENT_ERROR, c->rank, rc, text);
}

hk_status hk_comm_exchange(ncclComm_t c, bool child) {
  hk_status rc = HK_OK;
  int nhosts;
  const size_t row_bytes = exchange_row_bytes();
  unsigned char *rows = calloc((size_t)c->nranks, row_bytes);
  c->peers = calloc((size_t)c->nranks, sizeof *c->peers);
  if (!rows || !c->peers) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the table of %d ranks", c->nranks), out);
  hk_row *own = (hk_row *)(void *)(rows + (size_t)c->rank * row_bytes);
  HK_TRY(hk_consistency_publish(c, own->agree), out);
  HK_TRY(hk_profiler_load(c), out);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (exchange of facts)");
  exchange_fill_row(c, own);
  if (c->backend->attach) HK_TRY(c->backend->attach(c, own->backend), out);
  HK_TRY(hk_topology_publish(c, child, &own->topology), out);
  HK_TRY(hk_wire_attach(c, own->facts, exchange_announce), out);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, rows, row_bytes), out);
  const hk_facts peers = exchange_column(rows, offsetof(hk_row, peer)),
                 agree = exchange_column(rows, offsetof(hk_row, agree)),
                 topology = exchange_column(rows, offsetof(hk_row, topology)),
                 transports = exchange_column(rows, offsetof(hk_row, facts));
  const hk_host_rows hosts = {.cpus = exchange_column(rows, offsetof(hk_row, cpus)),
                              .shm_off = exchange_column(rows, offsetof(hk_row, shm_off)),
                              .backend = exchange_column(rows, offsetof(hk_row, backend))};
  for (int r = 0; r < c->nranks; r++) c->peers[r] = *(const hk_peer *)hk_fact_of(&peers, r);
  HK_TRY(hk_consistency_compare(c, &agree), out);
  HK_TRY(exchange_check_devices(c), out);
  HK_TRY(hk_programs_load(c), out);
  HK_TRY(hk_topology_agree(c, &topology), out);
  hk_hosts_count_cores(c, &hosts);
  HK_TRY(hk_wire_join(c, &transports), out);
  if (c->backend->join) HK_TRY(c->backend->join(c, &hosts.backend), out);
  HK_TRY(hk_machine_agree(c, &hosts, child, &nhosts), out);
  HK_TRY(hk_collnet_agree(c, nhosts), out);
  if (c->profiler) hk_profiler_begin(c, hk_bootstrap_comm_id(c->bootstrap), nhosts);
  HK_TRY(hk_rma_meet(c), out);
  /* No rank may use a link before every rank can be reached by it. */
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (last barrier)");
  HK_TRY(hk_bootstrap_barrier(c->bootstrap), out);
  hk_wire_share_failures(c);
  hk_machine_joined(c);
  /* Rank 0 reports, and all ranks take part, so rank 0's variables decide. */
  const uint64_t diagnose = ((const hk_row *)(const void *)rows)->diagnose;
  if (diagnose & HK_DIAGNOSE_SETTINGS) HK_TRY(hk_diagnose_settings(c), out);
  if (diagnose & HK_DIAGNOSE_LINKS) HK_TRY(hk_diagnose_links(c), out);
out:
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_IDLE, NULL);
  free(rows);
  return rc;
}
