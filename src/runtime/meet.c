/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' exchange at init: facts and settings of all, and what follows from them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h> /* getpid */
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../boot/host.h"
#include "../collectives/rules.h"
#include "../program/layout.h"
#include "../program/operation.h"
#include "../topo/join.h"
#include "profiler.h"
#include "rings.h"
#include "rma.h"
#include "selection.h"
#include "topology.h"
#include "tuner.h"
#include "wiring.h"

/* What each rank sends to all others, once. */
typedef struct hk_row {
  hk_peer peer;
  uint64_t cpus[HK_CPU_WORDS];
  uint64_t slot_bytes, nslots;
  uint64_t agreement[HK_AGREE_COUNT];
  uint64_t tuner; /* hk_tuner_hash */
  hk_constants constants;
  uint64_t choices;                                           /* hash of the measured ones */
  uint64_t shm_off;                                           /* NCCL_SHM_DISABLE */
  uint64_t backend[HK_BACKEND_FACT_BYTES / sizeof(uint64_t)]; /* from its attach */
  hk_topology_fact topology;
  unsigned char facts[HK_TRANSPORT_COUNT][HK_FACT_BYTES];
} hk_row;

static void fill_row(ncclComm_t c, hk_row *row) {
  hk_host_cpus(row->cpus);
  int cores = 0;
  for (int i = 0; i < HK_CPU_WORDS; i++) cores += __builtin_popcountll(row->cpus[i]);
  row->peer = (hk_peer){
      .host = hk_host_id(), .process = hk_process_id(), .pid = (int32_t)getpid(), .device = c->device, .cores = cores};
  row->slot_bytes = (uint64_t)hk_param_int(HK_P_SLOT_BYTES);
  row->nslots = (uint64_t)hk_param_int(HK_P_SLOTS);
  row->shm_off = (uint64_t)hk_param_int(HK_P_SHM_DISABLE);
  memcpy(row->agreement, c->selection->overrides.agreement, sizeof row->agreement);
  row->agreement[HK_AGREE_BATCH_INVARIANT] = c->redop_flags;
  const hk_comm_options *o = &c->options;
  const int settings[] = {o->nvls_ctas, o->net_channels, o->nvlink_first, o->policy & NCCL_CTA_POLICY_EFFICIENCY};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(settings); i++)
    row->agreement[HK_AGREE_CONFIG] = hk_topo_mix(row->agreement[HK_AGREE_CONFIG], (uint64_t)settings[i]);
  row->tuner = hk_tuner_hash(c->selection->tuner);
  row->choices = hk_rules_hash(c->selection->overrides.choices);
  row->constants = c->selection->overrides.constants;
  c->peers[c->rank] = row->peer;
}

/* All ranks must decide alike, or they hang: this compares what decisions depend on. */
static hk_status check_agreement(ncclComm_t c, const hk_row *rows) {
  const hk_row *first = &rows[0]; /* so that all ranks name the same pair */
  for (int r = 0; r < c->nranks; r++) {
    const hk_row *o = &rows[r];
    const char *what = o->slot_bytes != first->slot_bytes ? "HOCKET_SLOT_BYTES"
                       : o->nslots != first->nslots       ? "HOCKET_SLOTS"
                                                          : NULL;
    for (int k = 0; k < HK_AGREE_COUNT && !what; k++)
      if (o->agreement[k] != first->agreement[k]) what = hk_agreement_names[k];
    if (o->tuner != first->tuner && !what) what = "NCCL_TUNER_PLUGIN (or the plugin is not found on all hosts)";
    if (!what) continue;
    char text[256];
    snprintf(text, sizeof text, "rank 0 and rank %d have different values of %s: set it equally on all ranks", r, what);
    hk_comm_blame(c, HK_EVENT_VERDICT, r, HK_ERR_USAGE, text);
    return HK_ERR_USAGE;
  }
  return HK_OK;
}

/* Counts ranks and cores of rank r's host. */
static void count_host(const hk_row *rows, int n, int r, int *ranks, int *cores) {
  uint64_t cpus[HK_CPU_WORDS] = {0};
  *ranks = *cores = 0;
  for (int i = 0; i < n; i++) {
    if (rows[i].peer.host != rows[r].peer.host) continue;
    (*ranks)++;
    for (int k = 0; k < HK_CPU_WORDS; k++) cpus[k] |= rows[i].cpus[k];
  }
  for (int k = 0; k < HK_CPU_WORDS; k++) *cores += __builtin_popcountll(cpus[k]);
}

/* All ranks are on GPUs, or none. */
static hk_status check_devices(ncclComm_t c, const hk_row *rows) {
  for (int r = 0; r < c->nranks; r++) {
    if ((rows[r].peer.device < 0) == (rows[0].peer.device < 0)) continue;
    int gpu = rows[r].peer.device >= 0 ? r : 0, host = gpu == r ? 0 : r;
    char text[400];
    snprintf(
        text, sizeof text,
        "rank %d works on GPU %d and rank %d on host memory: all must do the same (rank %d sees no CUDA driver, no "
        "GPU, no kernels in its library, or HOCKET_DEVICE=host)",
        gpu, rows[gpu].peer.device, host, host);
    hk_comm_blame(c, HK_EVENT_VERDICT, r, HK_ERR_USAGE, text);
    return HK_ERR_USAGE;
  }
  return HK_OK;
}

/* Makes the cost model's machine and the layout. They are the same on all ranks, because they depend only on what all
 * ranks have exchanged. */
static hk_status describe_machine(ncclComm_t c, const hk_row *rows, const hk_joined *rings) {
  hk_status rc = HK_OK;
  hk_host_facts f = {.nranks = c->nranks, .slot_bytes = rows[0].slot_bytes, .multicast = c->wiring->multicast >= 0};
  int my_ranks = 1, my_cores = 1;
  bool shm_off = false;
  f.cores_per_host = 1 << 20;
  f.least_per_host = c->nranks;
  for (int r = 0; r < c->nranks; r++) {
    int first = 1, ranks, cores;
    if (rows[r].choices != rows[0].choices) c->selection->overrides.wish.choices = NULL;
    shm_off = shm_off || rows[r].shm_off;
    for (int i = 0; i < r && first; i++) first = rows[i].peer.host != rows[r].peer.host;
    if (!first) continue;
    count_host(rows, c->nranks, r, &ranks, &cores);
    f.nhosts++;
    if (ranks > f.ranks_per_host) f.ranks_per_host = ranks;
    if (ranks < f.least_per_host) f.least_per_host = ranks;
    if (cores < f.cores_per_host) f.cores_per_host = cores;
    if (rows[r].peer.host == rows[c->rank].peer.host) {
      my_ranks = ranks;
      my_cores = cores;
    }
  }
  f.memory = f.multicast || c->nranks == 1 || (f.nhosts > 1 && !shm_off);
  /* Hosts may have different measurements or none: rank 0's constants count for all, and measured choices count if
   * all hosts have the same. */
  c->backend->machine(c, &f, rings, &rows[0].constants, &c->selection->machine);
  int64_t spins = hk_param_int(HK_P_SPIN);
  /* If there are more ranks than cores, spinning only keeps the awaited rank from running. If not, the scheduler may
   * still have put two ranks on one core, because something else runs: a microsecond is long enough for a peer that
   * runs, and a yield costs less than that if no other thread is ready. */
  c->wait.spins = spins >= 0 ? (uint32_t)spins : my_ranks > my_cores ? 0 : 30;
  if (f.nhosts == 1 && !rings) return HK_OK;
  uint64_t *hosts = malloc((size_t)c->nranks * sizeof *hosts);
  if (!hosts) return HK_FAIL_ERRNO("no memory for the hosts of %d ranks", c->nranks);
  for (int r = 0; r < c->nranks; r++) hosts[r] = rows[r].peer.host;
  rc = hk_layout_new(&c->selection->layout, c->nranks, hosts, NULL, rings ? rings->order : NULL,
                     rings ? rings->nchannels : 1);
  free(hosts);
  return rc;
}

/* A plugin that refuses on one rank is used on none. */
static hk_status begin_tuner(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_selection *s = c->selection;
  unsigned char *ready = calloc((size_t)c->nranks, 1);
  bool all = true;
  if (!ready) return HK_FAIL_ERRNO("no memory to agree on a tuner plugin");
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (agreement on a tuner plugin)");
  ready[c->rank] = hk_tuner_begin(s->tuner, &s->machine, hk_bootstrap_comm_id(c->bootstrap));
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, ready, 1), out);
  for (int r = 0; r < c->nranks; r++) all = all && ready[r];
  if (!all) {
    hk_tuner_free(s->tuner);
    s->tuner = NULL;
  }
out:
  free(ready);
  return rc;
}

hk_status hk_comm_meet(ncclComm_t c, bool child) {
  hk_status rc = HK_OK;
  hk_joined *rings = NULL;
  hk_row *rows = calloc((size_t)c->nranks, sizeof *rows);
  c->peers = calloc((size_t)c->nranks, sizeof *c->peers);
  if (!rows || !c->peers) {
    rc = HK_FAIL_ERRNO("no memory for the table of %d ranks", c->nranks);
    goto out;
  }
  HK_TRY(hk_overrides_read(&c->selection->overrides, c->options.min_ctas, c->options.max_ctas), out);
  if (c->options.batch_invariant >= 0 ? c->options.batch_invariant : c->selection->overrides.wish.batch_invariant)
    c->redop_flags = HK_REDOP_INVARIANT;
  HK_TRY(hk_tuner_load(&c->selection->tuner), out);
  HK_TRY(hk_profiler_load(c), out);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (exchange of facts)");
  fill_row(c, &rows[c->rank]);
  if (c->backend->attach) HK_TRY(c->backend->attach(c, rows[c->rank].backend), out);
  HK_TRY(hk_topology_publish(c, child, &rows[c->rank].topology), out);
  HK_TRY(hk_wire_attach(c, rows[c->rank].facts), out);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, rows, sizeof *rows), out);
  for (int r = 0; r < c->nranks; r++) c->peers[r] = rows[r].peer;
  HK_TRY(check_agreement(c, rows), out);
  HK_TRY(check_devices(c, rows), out);
  HK_TRY(hk_topology_agree(c, &rows[0].topology, sizeof *rows), out);
  HK_TRY(hk_wire_join(c, rows, sizeof *rows, offsetof(hk_row, facts)), out);
  if (c->backend->join) HK_TRY(c->backend->join(c, rows[0].backend, sizeof *rows), out);
  HK_TRY(hk_rings_agree(c, rows[0].cpus, rows[0].backend, sizeof *rows, child, &rings), out);
  HK_TRY(describe_machine(c, rows, rings), out);
  if (c->selection->tuner) HK_TRY(begin_tuner(c), out); /* all ranks have it, or none */
  if (c->profiler) hk_profiler_begin(c);
  HK_TRY(hk_rma_meet(c), out);
  /* No rank may use a link before every rank can be reached by it. */
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "the init (last barrier)");
  HK_TRY(hk_bootstrap_barrier(c->bootstrap), out);
out:
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_IDLE, NULL);
  hk_joined_free(rings);
  free(rows);
  return rc;
}
