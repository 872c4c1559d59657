/* SPDX-License-Identifier: Apache-2.0 */
/* The other ranks of a communicator on GPUs: how they are reached, and exchanges with them (peers.h, links.h). */
#include "peers.h"
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../rma/windows.h"
#include "../transport/device_links.h"
#include "../transport/peer.h"
#include "../transport/transport.h"
#include "gpu.h"
#include "links.h"

bool hk_gpu_is_remote(ncclComm_t c, int peer) { return c->peers[peer].process != c->peers[c->rank].process; }
bool hk_gpu_can_read(const hk_gpu_links *l, int peer) { return (l->routes[peer].can & HK_DEVICE_READS) != 0; }
bool hk_gpu_is_local(const hk_gpu_links *l, int peer) { return (l->routes[peer].can & HK_DEVICE_LOCAL) != 0; }
bool hk_gpu_is_proxied(const hk_gpu_links *l, int peer) { return (l->routes[peer].can & HK_DEVICE_PROXIED) != 0; }
bool hk_gpu_by_file(const hk_gpu_links *l) { return l->env->by_file; }
size_t hk_gpu_links_slot_bytes(const hk_gpu_links *l) { return l->env->env->slot_bytes; }
bool hk_gpu_processes(const hk_gpu_links *l) { return l->env->processes; }

hk_status hk_gpu_exchange(void *c, void *rows, size_t row_bytes) {
  return hk_bootstrap_allgather(((ncclComm_t)c)->bootstrap, rows, row_bytes);
}

bool hk_gpu_is_far(const struct ncclComm *c, int peer) { return hk_lsa_rank(c, peer) < 0; }

static hk_status peers_file(void *arg, int peer, uint64_t region, int *fd, size_t *bytes) {
  return hk_wire_file(arg, peer, region, fd, bytes);
}

void hk_gpu_links_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  *g->links->env = (hk_device_env){.env = hk_wire_env(c),
                                   .device = g->device,
                                   .by_file = g->device->limits.fd_handles && c->settings->CUMEM_ENABLE != 0,
                                   .file = peers_file,
                                   .exchange = hk_gpu_exchange,
                                   .arg = c};
  hk_wire_env(c)->gpu = g->device;
}
