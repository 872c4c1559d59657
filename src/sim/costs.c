/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include "../decide/gpu.h"
#include "../decide/machine.h"
#include "../decide/protocol.h"
#include "model.h"
#include "run.h"
#include "simulator.h"

void hk_sim_take_constants(hk_sim *s, const hk_simulator *x, hk_protocol protocol) {
  const hk_protocol_info *proto = &hk_protocols[protocol];
  s->gpu = hk_sim_cluster_gpu(&s->cluster, 0);
  s->wire = x->machine.wire;
  if (s->gpu) {
    s->wire = 1 / proto->efficiency;
    s->sync_us = HK_GPU_SYNC_US * proto->sync;
    s->lane_us = HK_GPU_INSTR_US + s->sync_us * HK_GPU_SYNC_LANE;
    const hk_machine as = hk_machine_as(&x->machine, protocol, s->channels);
    s->far_sync_us = hk_far_sync_us(&as, fmin((double)s->sizes.chunk, (double)s->sizes.longest));
    s->lane_rate = hk_gpu_lane_gbps(hk_sim_cluster_node(&s->cluster, 0)->gpu.sm) * 1000 * proto->copy;
    if (s->options->block_part > 0) s->lane_rate *= s->options->block_part;
    return;
  }
  s->lane_us = HK_SIM_CORE_US;
  s->core_copy = x->machine.copy_us_per_b;
  s->core_add = x->machine.gamma_us_per_b;
  s->cached = 2.0 * (double)s->sizes.total * x->machine.team.ranks_per_host < HK_SIM_CACHE;
  int cores = x->machine.cores_per_host;
  if (cores > 0 && x->machine.team.ranks_per_host > cores)
    s->wake_us = x->machine.switch_us * ceil((double)x->machine.team.ranks_per_host / cores);
}
