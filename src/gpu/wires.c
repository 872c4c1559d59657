/* SPDX-License-Identifier: Apache-2.0 */
#include "../core/comm.h"
#include "../decide/outlines.h"
#include "../run/selection.h"
#include "../topo/topo.h"
#include "gpu.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"

hk_status hk_gpu_topology_wire(const struct ncclComm *c, hk_outlines *o) {
  const hk_gpu *g = hk_gpu_of(c);
  /* Data that goes through host memory, or stays inside a GPU, does not use these links. */
  if (g->topology->nnodes == 0 || g->links->staged || g->sharers > 1) return HK_OK;
  /* A topology ends at the host's ports: no rank knows whether the fabric has rails. */
  return hk_outlines_wire(o, g->group->machine->kinds[0], g->topology->nodes, g->topology->nnodes, false,
                          c->selection->rings, hk_selection_paths(c));
}
