/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks know of each other's GPUs. */
#include "../base/facts.h"
#include <stdlib.h>
#include "../base/hash.h"
#include "../base/param.h"
#include "../topo/topo.h"
#include "code.h"
#include "gpu.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"

const hk_gpu_fact *hk_gpu_fact_of(const hk_facts *facts, int rank) { return hk_fact_of(facts, rank); }

void hk_gpu_fact_fill(ncclComm_t c, hk_gpu_fact *fact) {
  const hk_gpu *g = hk_gpu_of(c);
  const hk_device_limits *l = &g->device->limits;
  fact->blocks = g->code->resident;
  fact->sm = (uint64_t)l->sm;
  if (!hk_bus_id_parse(l->bus_id, &fact->bus)) fact->bus = UINT64_MAX;
  fact->by_fd = hk_gpu_by_file(g->links);
  fact->p2p_peers = (uint32_t)c->options.p2p_peers;
  const bool no_ctas = (c->options.policy & NCCL_CTA_POLICY_ZERO) != 0;
  fact->copies = no_ctas && l->stream_words &&
                 g->device->ops->word->check(g->device, g->group->credits[c->rank].base, g->queue) == HK_OK;
  if (l->multicast && c->settings->NVLS_ENABLE != 0)
    fact->multicast = (c->options.nvls_mode & ncclNvlsHostModeDisableTransport ? 0 : HK_GPU_MULTICAST_SUMS) |
                      (c->options.nvls_mode & ncclNvlsHostModeDisableSymmetricMultimem ? 0 : HK_GPU_MULTICAST_WINDOWS);
  fact->window_stride = (uint64_t)c->settings->WIN_STRIDE;
  if (!fact->window_stride) fact->window_stride = l->memory_bytes;
  fact->id = hk_hash(0, l->uuid, sizeof l->uuid) | 1;
}

static int facts_by_id(const void *a, const void *b) {
  const uint64_t *x = a, *y = b;
  return *x < *y ? -1 : *x > *y;
}

int hk_gpu_most_equal(uint64_t *ids, int n) {
  int most = 0;
  qsort(ids, (size_t)n, sizeof *ids, facts_by_id);
  for (int r = 0, run = 0; r < n; r++) {
    run = r > 0 && ids[r] == ids[r - 1] ? run + 1 : 1;
    if (run > most) most = run;
  }
  return most;
}

hk_status hk_gpu_count_sharers(const struct hk_facts *facts, int nranks, int *most) {
  uint64_t *ids = malloc((size_t)nranks * sizeof *ids);
  if (!ids) return HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", nranks);
  for (int r = 0; r < nranks; r++) ids[r] = hk_gpu_fact_of(facts, r)->id;
  *most = hk_gpu_most_equal(ids, nranks);
  free(ids);
  return HK_OK;
}

unsigned hk_gpu_p2p_peers(const struct hk_facts *facts, int nranks) {
  unsigned most = 1;
  for (int r = 0; r < nranks; r++) {
    const unsigned n = hk_gpu_fact_of(facts, r)->p2p_peers;
    if (!n || n > (unsigned)nranks) return (unsigned)nranks;
    if (n > most) most = n;
  }
  return most;
}
