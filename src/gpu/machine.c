/* SPDX-License-Identifier: Apache-2.0 */
/* What decisions know of the GPUs and of the machine. */
#include "../decide/machine.h"
#include "../topo/join.h"
#include "../topo/topo.h"
#include "gpu.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"
#include "run.h"

hk_status hk_gpu_machine_topology(ncclComm_t c, hk_topo **own, const hk_topo **out) {
  const hk_gpu_process_group *w = hk_gpu_of(c)->group;
  (void)own; /* the ranks of the process share what they see */
  *out = w->machine ? w->machine->kinds[0] : NULL;
  return HK_OK;
}

uint32_t hk_gpu_machine_node(const hk_topo *t, const void *fact, const uint64_t *cpus) {
  (void)cpus;
  return hk_topo_find(t, HK_NODE_GPU, ((const hk_gpu_fact *)fact)->bus);
}

void hk_gpu_machine(const struct ncclComm *c, const hk_host_facts *hosts, const hk_joined *rings,
                    const struct hk_constants *constants, hk_machine *out) {
  const hk_gpu *g = hk_gpu_of(c);
  hk_gpu_facts f = {.team = hosts->team,
                    .ranks_per_gpu = g->sharers,
                    .max_channels = (int)g->blocks,
                    .sm = g->sm,
                    .wide = g->links->wide,
                    .staged = g->links->staged,
                    .slot_bytes = hosts->slot_bytes,
                    .nslots = hosts->nslots,
                    .prices = *g->topology->prices};
  f.team.in_switch = g->in_switch;
  if (rings) {
    hk_level_use_rings(&f.prices.inside, rings->nchannels, (double)rings->intra_gbps);
    hk_level_use_rings(&f.prices.between, rings->nchannels, (double)rings->inter_gbps);
  }
  *out = hk_machine_of_gpus(&f, constants);
  out->engines = g->copies->usable;
  if (rings) out->rings = rings->nchannels;
}
