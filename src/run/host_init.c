/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator on host memory is at init: its topology, its place in it, the machine of its prices. */
#include "../boot/host.h" /* HK_CPU_WORDS */
#include "../core/comm.h"
#include "../decide/constants.h"
#include "../decide/machine.h"
#include "../topo/detect.h"
#include "../topo/topo.h"
#include "host_backend.h"

hk_status hk_host_topology(ncclComm_t c, hk_topo **own, const hk_topo **out) {
  hk_status rc = hk_topo_detect_with_file(c->settings, own, HK_DETECT_NO_GPU);
  *out = *own;
  return rc;
}

uint32_t hk_host_node_of(const hk_topo *t, const void *fact, const uint64_t *cpus) {
  uint32_t best = 0;
  int most = -1;
  (void)fact;
  _Static_assert((int)HK_CPU_WORDS == (int)HK_CPU_MASK_WORDS, "masks of one length");
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++) {
    int common = 0;
    for (int k = 0; k < HK_CPU_WORDS; k++) common += __builtin_popcountll(t->nodes[i].cpu.mask[k] & cpus[k]);
    if (common > most) most = common, best = i;
  }
  return best;
}

void hk_host_machine(const struct ncclComm *c, const hk_host_facts *hosts, const struct hk_joined *rings,
                     const hk_constants *constants, hk_machine *out) {
  (void)c;
  (void)rings;
  *out = hk_machine_of_hosts(hosts, constants);
}
