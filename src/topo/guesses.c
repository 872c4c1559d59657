/* SPDX-License-Identifier: Apache-2.0 */
/* Remarks about missing data of a described machine: estimates then use defaults, or lack links. */
#include <string.h>
#include "facts.h"

typedef struct tally {
  uint32_t unknown_model;  /* GPUs of an unknown kind */
  uint32_t slow;           /* GPUs of an unknown memory rate */
  uint32_t guessed_memory; /* GPUs that are recognised only as like another part */
  uint32_t ports;          /* NICs with ports */
  uint32_t nvlinks;        /* GPUs that have some */
  const hk_gpu_part *part; /* of the last GPU */
} tally;

static void guesses_count_gpu(const hk_topo *t, const hk_node *n, tally *c) {
  float memory;
  bool linked = false;
  c->part = hk_gpu_part_like(n, &memory);
  c->unknown_model += !n->gpu.sm;
  c->slow += !(n->gpu.memory_gbps > 0);
  c->guessed_memory += c->part && !n->name[0] && n->gpu.memory_gbps == memory;
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++) linked |= t->edges[e].kind == HK_EDGE_NVLINK;
  c->nvlinks += linked;
}

static hk_status guesses_remark_gpus(hk_topo *t, uint32_t gpus, const tally *c, bool file) {
  if (c->unknown_model)
    HK_OR_RETURN(hk_topo_remark(t,
                                "%u of %u GPUs are of an unknown kind: their lanes and links count as 20 GB/s each, "
                                "a default",
                                c->unknown_model, gpus));
  if (c->slow)
    HK_OR_RETURN(hk_topo_remark(t, "the memory of %u of %u GPUs counts as %g GB/s, a default", c->slow, gpus,
                                HK_GPU_MEMORY_GBPS));
  if (c->guessed_memory)
    HK_OR_RETURN(hk_topo_remark(t, "%u of %u GPUs are a model that is not known: their memory counts as that of %s",
                                c->guessed_memory, gpus, c->part ? c->part->name : "another one"));
  if (!file || gpus < 2 || c->nvlinks || (c->part && !c->part->links)) return HK_OK;
  return hk_topo_remark(t,
                        "no links between the %u GPUs are described, so PCIe counts. If they have NVLinks: "
                        "--machine 'FILE as %ux%s:nvswitch', or :cube, :mesh, :pairs, links=",
                        gpus, gpus, c->part ? c->part->name : "a100");
}

hk_status hk_topo_remark_guesses(hk_topo *t, bool file) {
  tally c = {0};
  uint32_t gpus = hk_topo_count(t, HK_NODE_GPU), nics = hk_topo_count(t, HK_NODE_NIC), leaves = 0, cpus = 0;
  for (uint32_t i = 0; i < t->nnodes; i++) {
    const hk_node *n = &t->nodes[i];
    if (n->kind == HK_NODE_GPU) guesses_count_gpu(t, n, &c);
    leaves += n->kind == HK_NODE_PCI && n->nedges == 1;
    cpus += n->kind == HK_NODE_CPU && !(n->cpu.memory_gbps > 0);
  }
  for (uint32_t e = 0; e < t->nedges; e++) c.ports += t->edges[e].kind == HK_EDGE_PORT;
  HK_OR_RETURN(guesses_remark_gpus(t, gpus, &c, file));
  if (nics && !c.ports)
    HK_OR_RETURN(hk_topo_remark(t, "NICs without ports: %u. --machine 'FILE as MACHINE nic=%ux200' gives them some",
                                nics, nics));
  if (!gpus && leaves)
    HK_OR_RETURN(hk_topo_remark(t,
                                "no GPU is described, but %u PCI addresses without a class: the file needs detection "
                                "on its machine",
                                leaves));
  if (cpus)
    HK_OR_RETURN(
        hk_topo_remark(t, "the memory of %u NUMA nodes counts as %g GB/s, a default", cpus, HK_CPU_MEMORY_GBPS));
  return HK_OK;
}
