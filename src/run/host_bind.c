/* SPDX-License-Identifier: Apache-2.0 */
/* Plans on host memory: their links, and the core on which their thread begins. */
#include <sched.h>
#include "../core/call.h"
#include "../core/comm.h"
#include "../core/links.h"
#include "../device/device.h" /* hk_cuda_owns */
#include "../kernels/steps.h"
#include "../transport/peer.h"
#include "host_backend.h"
#include "run.h"

unsigned hk_host_most_channels(const struct ncclComm *c, const hk_program *p, unsigned span) {
  (void)c;
  /* all ranks of a group must request the network's sums in the same order */
  return p->traits.in_groups ? 1 : HK_CHANNELS / span;
}

hk_status hk_host_refuse_gpu_memory(const hk_call *call) {
  const void *buffers[] = {call->in, call->out};
  int device;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(buffers); i++)
    if (buffers[i] && hk_cuda_owns(buffers[i], &device))
      return HK_FAIL(
          HK_ERR_USAGE,
          "%s: %p is memory of GPU %d, but this communicator works on host memory (HOCKET_DEVICE=host, or a library "
          "without GPU kernels: make NVCC=/path/to/nvcc): copy the data to the host and call with that",
          call->p2p ? hk_p2p_name((hk_p2p)call->p2p) : hk_coll_name((hk_coll)call->coll), buffers[i], device);
  return HK_OK;
}

void hk_run_spread(ncclComm_t c) {
  const hk_peer *own = &c->peers[c->rank];
  cpu_set_t may, one;
  int before = 0, cpu = -1;
  if (hk_wire_host_ranks(c, c->rank) < own->cores || own->cores < 2) return;
  if (sched_getaffinity(0, sizeof may, &may) != 0 || CPU_COUNT(&may) != own->cores) return; /* a launcher binds ranks */
  for (int r = 0; r < c->rank; r++) before += c->peers[r].host == own->host;
  for (int left = before % own->cores; left >= 0;) left -= CPU_ISSET(++cpu, &may) != 0;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0) (void)sched_setaffinity(0, sizeof may, &may);
}

/* The call's memory is checked here, when a plan is bound, so that repeated calls need no check. */
hk_status hk_host_bind(ncclComm_t c, hk_plan *plan, unsigned span, const hk_call *call) {
  const hk_link_need *needs = hk_program_links(plan->program);
  HK_OR_RETURN(hk_host_refuse_gpu_memory(call));
  if (span * plan->channels > HK_CHANNELS)
    return HK_FAIL(HK_ERR_INTERNAL, "%s needs %u channels, %d is the most", plan->program->algorithm,
                   span * plan->channels, HK_CHANNELS);
  for (unsigned ch = 0; ch < plan->channels; ch++) {
    for (unsigned i = 0; i < plan->program->nlinks; i++) {
      hk_link_key key = {
          .peer = needs[i].peer, .kind = needs[i].kind, .channel = (uint8_t)(needs[i].channel + ch * span)};
      hk_wired_link *l;
      HK_OR_RETURN(hk_wire_link(c, key, &l));
      plan->links[ch * plan->program->nlinks + i] = &l->link;
      plan->proxied = plan->proxied || l->link.proxied;
    }
  }
  plan->steps = hk_steps_make(plan);
  hk_run_spread(c);
  return HK_OK;
}
