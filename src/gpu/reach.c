/* SPDX-License-Identifier: Apache-2.0 */
/* Finds which ranks' GPU memory each rank can access.  Every rank opens the credits of the others and reads a pattern
 * there. Then both ranks of each pair agree on the first kind of device links (transport/device_links.h) that works. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../transport/cuda/share.h"
#include "../transport/device_links.h"
#include "../transport/peer.h"
#include "../transport/transport.h"
#include "gpu.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"

/* True if only a network connects the two ranks.  Both ranks get the same result. */
static bool reach_by_net(ncclComm_t c, int peer) { return hk_wire_proxied(c, peer); }

/* Reads the pattern: some machines report peer access but deliver wrong data. */
static hk_status reach_probe(ncclComm_t c, int peer, uint64_t *got, char *why, size_t why_bytes) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_device_ops *ops = g->device->ops;
  char *mine = hk_gpu_credits_of(c, c->rank) + hk_gpu_probe_at(c->nranks) + HK_GPU_PROBE_BYTES;
  HK_OR_RETURN(ops->copy(g->device, mine, hk_gpu_credits_of(c, peer) + hk_gpu_probe_at(c->nranks), HK_GPU_PROBE_BYTES,
                         g->queue));
  HK_OR_RETURN(hk_device_copy(g->device, got, mine, HK_GPU_PROBE_BYTES, g->queue));
  for (unsigned i = 0; i < HK_GPU_PROBE_BYTES / 8 && !why[0]; i++)
    if (got[i] != hk_gpu_probe_word(g->group->comm_id, peer, i))
      snprintf(why, why_bytes,
               "it reads wrong data from there: PCI access control (ACS) or an IOMMU is the usual cause");
  if (why[0])
    HK_WARN("rank %d on GPU %d: the driver says that rank %d's GPU can be reached, but %s. What they send goes through "
            "host memory instead",
            c->rank, c->device, peer, why);
  return HK_OK;
}

/* `why` gets the reason why the peer's memory cannot be reached; empty: it can. */
static hk_status reach_open_peer(ncclComm_t c, int peer, const hk_share_offer *credits, char *why, size_t why_bytes) {
  hk_device *d = hk_gpu_of(c)->device;
  if (peer == c->rank) return HK_OK;
  if (!hk_wire_near(c, peer))
    snprintf(why, why_bytes, "it is on another host");
  else if (hk_gpu_too_far(c, peer, why, why_bytes))
    ; /* the settings forbid it */
  else if (!hk_gpu_is_remote(c, peer)) {
    if (d->ops->share->peer(d, c->peers[peer].device, why, why_bytes) != HK_OK && !why[0])
      snprintf(why, why_bytes, "%s", hk_last_error());
  } else if (credits->share.kind == HK_MEMORY_NONE)
    snprintf(why, why_bytes, "its driver does not share memory between processes");
  else if (hk_share_open(hk_gpu_of(c)->links->env, peer, credits, &hk_gpu_of(c)->links->opened[peer]) != HK_OK)
    snprintf(why, why_bytes, "%s", hk_last_error());
  hk_gpu_of(c)->links->opened_at[peer] = credits->at;
  return HK_OK;
}

static bool reach_share_gpu(const struct hk_facts *facts, int a, int b) {
  return hk_gpu_fact_of(facts, a)->id == hk_gpu_fact_of(facts, b)->id;
}

/* Flags in the first byte of each rank's row: true for some rank.  After them the row has a hk_device_reach for each
 * rank of the host. */
enum { SOME_STAGED = 1, SOME_NARROW = 2, SOME_AGAIN = 4 };

static unsigned char reach_sum_up(ncclComm_t c, const struct hk_facts *facts, const unsigned char *found) {
  unsigned char some = 0;
  for (int r = 0; r < c->nranks; r++) {
    const bool near = hk_wire_near(c, r);
    if (near && found[r] < HK_REACH_MEMORY) some |= SOME_STAGED;
    if (near && found[r] < (reach_share_gpu(facts, c->rank, r) ? HK_REACH_MEMORY : HK_REACH_NVLINK))
      some |= SOME_NARROW;
    if (found[r] == HK_REACH_NO_FILE) some |= SOME_AGAIN;
  }
  return some;
}

/* The kind of links to each peer, once hk_device_env.peers is known. */
static hk_status reach_choose_links(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  for (int r = 0; r < c->nranks; r++) {
    char why[480];
    const hk_device_links *by = hk_device_links_to(g->links->env, r, why, sizeof why);
    if (!by) return HK_FAIL(HK_ERR_SYSTEM, "rank %d's GPU cannot reach rank %d's by any links: %s", c->rank, r, why);
    g->links->routes[r] = (hk_gpu_route){.by = by, .can = by->properties(g->links->env, r)};
    g->links->proxied = g->links->proxied || g->links->routes[r].can & HK_DEVICE_PROXIED;
  }
  return HK_OK;
}

/* Both ranks of a pair use the weaker of their results.  *again: a file descriptor did not work for some rank. */
static hk_status reach_agree(ncclComm_t c, const struct hk_facts *facts, const unsigned char *found, bool *again) {
  hk_status rc = HK_OK;
  const size_t n = (size_t)c->nranks;
  size_t each = 0, place = 0, k = 0;
  unsigned char some = 0, *rows = NULL;
  uint64_t *hosts = malloc(n * sizeof *hosts);
  for (size_t r = 0; hosts && r < n; r++) hosts[r] = c->peers[r].host;
  if (hosts) each = 1 + (size_t)hk_gpu_most_equal(hosts, c->nranks);
  if (hosts) rows = calloc(n, each);
  if (!rows) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks), out);
  unsigned char *mine = rows + (size_t)c->rank * each;
  mine[0] = reach_sum_up(c, facts, found);
  for (int r = 0; r < c->nranks; r++) {
    if (!hk_wire_near(c, r)) continue;
    if (r == c->rank) place = k;
    mine[1 + k++] = found[r];
  }
  HK_TRY(hk_gpu_exchange(c, rows, each), out);
  for (int r = 0; r < c->nranks; r++) {
    const unsigned char *theirs = rows + (size_t)r * each;
    const bool near = hk_wire_near(c, r);
    const unsigned char back = near ? theirs[1 + place] : HK_REACH_NONE;
    some |= theirs[0];
    hk_gpu_of(c)->links->peers[r] = (hk_device_peer){.reach = found[r] < back ? found[r] : back,
                                                     .same_device = reach_share_gpu(facts, c->rank, r),
                                                     .shares_memory = !reach_by_net(c, r),
                                                     .process = !hk_gpu_is_remote(c, r)};
  }
  hk_gpu_of(c)->links->staged = some & SOME_STAGED;
  hk_gpu_of(c)->links->wide = !(some & SOME_NARROW);
  *again = some & SOME_AGAIN;
  rc = reach_choose_links(c);
out:
  free(hosts);
  free(rows);
  return rc;
}

/* Why the processes of this host cannot share memory by file descriptor; NULL: they can.  Equal on all ranks of the
 * host. */
static const char *reach_no_fds(ncclComm_t c, const struct hk_facts *facts) {
  for (int r = 0; r < c->nranks; r++)
    if (hk_wire_near(c, r) && !hk_gpu_fact_of(facts, r)->by_fd) return "NCCL_CUMEM_ENABLE is 0, or a driver gives none";
  return hk_wire_no_files(c);
}

/* From now on memory is shared by handles.  No rank of this process uses the old credits at this time. */
static hk_status reach_use_handles(ncclComm_t c, const char *why) {
  hk_gpu *g = hk_gpu_of(c);
  HK_INFO(HK_SUB_INIT | HK_SUB_P2P,
          "rank %d: GPU memory goes to other processes by CUDA IPC handles, not by file descriptors: %s", c->rank, why);
  for (int r = 0; r < c->nranks; r++) HK_OR_RETURN(g->device->ops->memory->release(g->device, &g->links->opened[r]));
  if (!g->links->env->by_file) return HK_OK;
  g->links->env->by_file = false;
  return hk_gpu_credits_again(c);
}

/* Exchanges the offers of all ranks' credits; does nothing if there is only one process. */
static hk_status reach_share_credits(ncclComm_t c, hk_share_offer *all) {
  hk_gpu *g = hk_gpu_of(c);
  if (!g->links->env->processes) return HK_OK;
  if (hk_gpu_credits_offer(c, &all[c->rank]) != HK_OK)
    HK_INFO(HK_SUB_INIT | HK_SUB_P2P, "rank %d cannot share its GPU's memory: %s", c->rank, hk_last_error());
  return hk_gpu_exchange(c, all, sizeof *all);
}

static hk_status reach_try_peers(ncclComm_t c, const hk_share_offer *credits, uint64_t *got, unsigned char *mine) {
  for (int r = 0; r < c->nranks; r++) {
    char why[200] = "";
    HK_OR_RETURN(reach_open_peer(c, r, &credits[r], why, sizeof why));
    char again[200];
    bool by_fd = hk_gpu_is_remote(c, r) && hk_wire_near(c, r) && credits[r].share.kind == HK_MEMORY_VMM;
    const bool nvlink = hk_gpu_of(c)->topology->nvlink[r];
    mine[r] = !why[0] && nvlink                                     ? HK_REACH_NVLINK
              : !why[0]                                             ? HK_REACH_MEMORY
              : by_fd && !hk_gpu_too_far(c, r, again, sizeof again) ? HK_REACH_NO_FILE
                                                                    : HK_REACH_NONE;
    if (!why[0]) {
      HK_OR_RETURN(reach_probe(c, r, got, why, sizeof why));
      if (why[0]) mine[r] = HK_REACH_NONE;
    }
    if (r == c->rank) continue;
    HK_INFO(HK_SUB_INIT | HK_SUB_P2P, "rank %d reaches rank %d via %s%s%s", c->rank, r,
            why[0] && reach_by_net(c, r) ? "the network; not directly: "
            : why[0]                     ? "pinned host memory; not directly: "
            : !hk_gpu_is_remote(c, r)    ? "P2P/direct pointer"
            : by_fd                      ? "P2P/CUMEM"
                                         : "P2P/IPC",
            why, nvlink && !why[0] ? " over NVLink" : "");
  }
  return HK_OK;
}

/* Opens, probes and agrees; *again: a file descriptor did not work for some rank. */
static hk_status reach_once(ncclComm_t c, const struct hk_facts *facts, bool *again) {
  hk_status rc = HK_OK;
  size_t n = (size_t)c->nranks;
  uint64_t *got = malloc(HK_GPU_PROBE_BYTES);
  unsigned char *found = calloc(n, 1);
  hk_share_offer *credits = calloc(n, sizeof *credits);
  *again = false;
  if (!got || !found || !credits) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks), out);
  HK_TRY(reach_share_credits(c, credits), out);
  HK_TRY(reach_try_peers(c, credits, got, found), out);
  rc = reach_agree(c, facts, found, again);
out:
  if (credits) hk_share_withdraw(credits[c->rank].region);
  free(got);
  free(found);
  free(credits);
  return rc;
}

hk_status hk_gpu_reach(ncclComm_t c, const struct hk_facts *facts) {
  hk_gpu *g = hk_gpu_of(c);
  size_t n = (size_t)c->nranks;
  bool again;
  g->links->opened = calloc(n, sizeof(hk_memory));
  g->links->opened_at = calloc(n, sizeof *g->links->opened_at);
  g->links->peers = calloc(n, sizeof *g->links->peers);
  g->links->routes = calloc(n, sizeof *g->links->routes);
  if (!g->links->opened || !g->links->opened_at || !g->links->peers || !g->links->routes) {
    return HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
  }
  g->links->env->peers = g->links->peers;
  for (int r = 0; r < c->nranks; r++) g->links->env->processes = g->links->env->processes || hk_gpu_is_remote(c, r);
  HK_OR_RETURN(hk_gpu_distances(c, facts));
  const char *why = g->links->env->processes ? reach_no_fds(c, facts) : NULL;
  if (why) HK_OR_RETURN(reach_use_handles(c, why));
  HK_OR_RETURN(reach_once(c, facts, &again));
  if (!again) return HK_OK;
  HK_OR_RETURN(reach_use_handles(c, "a rank could not open another one's"));
  return reach_once(c, facts, &again);
}
