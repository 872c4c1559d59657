/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the init of a communicator on GPUs, once the ranks' facts are known. */
#include <stdlib.h>
#include "../base/log.h"
#include "../program/limits.h"
#include "../run/selection.h"
#include "buffer.h"
#include "code.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "multicast.h"
#include "order.h"
#include "peers.h"
#include "process_group.h"
#include "run.h"
#include "window.h"

hk_status hk_gpu_join(ncclComm_t c, const struct hk_facts *facts) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_share_facts capacity = {.resident = UINT64_MAX, .sm = UINT64_MAX};
  bool hosts = false, copies = true;
  int least, most, here = 0; /* here: ranks of this process on this GPU */
  for (int s = 0; s < 2; s++) {
    g->links->ends[s] = calloc((size_t)c->nranks, sizeof *g->links->ends[s]);
    if (!g->links->ends[s]) return HK_FAIL_ERRNO("no memory for the links of %d ranks", c->nranks);
  }
  HK_OR_RETURN(hk_gpu_count_sharers(facts, c->nranks, &g->sharers));
  for (int r = 0; r < c->nranks; r++) {
    const hk_gpu_fact *f = hk_gpu_fact_of(facts, r);
    if (f->blocks < capacity.resident) capacity.resident = f->blocks;
    if (f->sm < capacity.sm) capacity.sm = f->sm;
    copies = copies && f->copies;
    hosts = hosts || !hk_wire_near(c, r);
    here += !hk_gpu_is_remote(c, r) && f->id == hk_gpu_fact_of(facts, c->rank)->id;
  }
  hk_gpu_check_queues(here, c->device);
  g->order->ahead.bounded = here > 1;
  g->sm = (int)capacity.sm;
  capacity.ranks = (uint64_t)g->sharers;
  hk_selection_channels(c, &least, &most);
  capacity.limit = (uint64_t)most; /* equal on all ranks: init compares it */
  if (hosts && (!capacity.limit || capacity.limit > HK_GPU_NET_CHANNELS)) capacity.limit = HK_GPU_NET_CHANNELS;
  g->blocks = hk_gpu_share(&capacity);
  HK_INFO(HK_SUB_INIT,
          "rank %d: %u blocks at most on GPU %d, where %u communicators like this one run at the same time", c->rank,
          g->blocks, c->device, hk_gpu_overlap(&capacity));
  g->split->parts = g->blocks / 2 / hk_gpu_p2p_peers(facts, c->nranks);
  if (g->split->parts < 1) g->split->parts = 1;
  if (g->split->parts > HK_GPU_P2P_CHANNELS) g->split->parts = HK_GPU_P2P_CHANNELS;
  /* A send or receive over the network may use more links than the blocks would ask for, but no more than there are. */
  g->split->net_parts = c->options.net_channels ? (unsigned)c->options.net_channels : g->split->parts;
  if (g->split->net_parts > HK_GPU_P2P_CHANNELS) g->split->net_parts = HK_GPU_P2P_CHANNELS;
  g->cluster = g->device->limits.clusters ? (unsigned)c->options.cluster : 0;
  HK_OR_RETURN(hk_gpu_topology_read(c, facts));
  g->links->sends_direct = hk_gpu_sends_direct(c);
  HK_OR_RETURN(hk_gpu_reach(c, facts));
  HK_OR_RETURN(hk_gpu_proxied_begin(c));
  HK_OR_RETURN(hk_gpu_arena_begin(g->memory, &g->group->credits[c->rank], hk_gpu_credit_bytes(c->nranks)));
  hk_gpu_buffers_begin(c);
  HK_OR_RETURN(
      hk_gpu_copy_choose(c, (c->options.policy & NCCL_CTA_POLICY_ZERO) != 0, copies && !hosts, g->sharers == 1));
  HK_OR_RETURN(hk_gpu_multicast_join(c, facts));
  hk_gpu_windows_begin(c, facts);
  c->one_sided = g->windows->usable && g->device->limits.stream_words;
  return HK_OK;
}
