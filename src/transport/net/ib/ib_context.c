/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider of a rank has, from init to fini (ib_context.h). */
#include "ib_context.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../peer.h"
#include "ib_conn.h"
#include "ib_verbs.h"

/* What a rank publishes about itself. */
typedef struct ib_fact {
  uint8_t nspots;
  uint8_t reserved[7];
  hk_ib_spot spots[HK_IB_SPOTS]; /* its ports, the best first; more are not needed to find a way */
} ib_fact;
_Static_assert(sizeof(ib_fact) <= HK_NET_FACT_BYTES, "the fact fits");

/* One device that opens is enough here: init tries all. Without ports libibverbs is not loaded. */
typedef struct trial {
  const hk_ibv *api;
  bool asked, opened;
} trial;
static bool context_one_opens(void *arg, const char *device, char *why, size_t why_bytes) {
  trial *t = arg;
  t->asked = true;
  if (!t->api && !(t->api = hk_ibv_load(why, why_bytes))) return false;
  return t->opened = t->opened || hk_ibv_opens((void *)(uintptr_t)t->api, device, why, why_bytes);
}

bool hk_ib_usable(const hk_settings *set, char *why, size_t why_bytes) {
  hk_ib_port ports[HK_IB_PORTS];
  int nnear;
  trial t = {0};
  if (set->IB_DISABLE) {
    snprintf(why, why_bytes, "NCCL_IB_DISABLE=1");
    return false;
  }
  if (hk_ib_ports(set, ports, &nnear, context_one_opens, &t, why, why_bytes)) return true;
  if (t.asked) (void)hk_ibv_load(why, why_bytes); /* without it no device opens: that is the reason */
  return false;
}

hk_status hk_ib_init(const hk_transport_env *env, void **out, void *fact) {
  hk_status rc = HK_OK;
  char why[160];
  ib_fact f = {.nspots = 0}; /* `fact` has no alignment */
  hk_ib_ctx *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for the RDMA ports of rank %d", env->rank);
  x->env = env;
  x->tick.timer = -1;
  x->api = hk_ibv_load(why, sizeof why);
  x->timeout_ns = (uint64_t)env->settings->PEER_TIMEOUT * 1000000000u;
  x->scarce = hk_ib_memory_is_scarce();
  x->fifo_class = (int)env->settings->IB_FIFO_TC;
  HK_TRY(hk_ib_gid_filter_of(env->settings, &x->filter), out);
  HK_TRY(hk_ib_cards_of(env->settings, &x->most_cards), out);
  x->nports = hk_ib_ports(env->settings, x->ports, &x->nnear, hk_ibv_opens, (void *)(uintptr_t)x->api, why, sizeof why);
  for (int i = 0; i < x->nports; i++) {
    const hk_ib_port *p = &x->ports[i];
    bool ethernet = p->layer == HK_IBV_LAYER_ETHERNET;
    char text[48] = "no GID";
    if (i < HK_IB_SPOTS) f.spots[f.nspots++] = hk_ib_spot_of(p);
    if (p->ngids) hk_ib_gid_text(&p->gids[0].gid, text);
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "RDMA port %d: %s:%d, %s, best of %d GIDs: %s%s", i, p->device, p->number,
            ethernet ? "RoCE" : "InfiniBand", p->ngids, text, i < x->nnear ? ", near" : "");
  }
  memcpy(fact, &f, sizeof f);
  pthread_mutex_init(&x->lock, NULL);
  *out = x;
out:
  if (rc != HK_OK) free(x);
  return rc;
}

void hk_ib_join(void *ctx, const char *facts, size_t stride) {
  hk_ib_ctx *x = ctx;
  x->facts = facts;
  x->stride = stride;
  for (int r = 0; r < x->env->rank; r++) x->local += x->env->peers[r].host == x->env->peers[x->env->rank].host;
}

bool hk_ib_reachable(void *ctx, int a, int b, char *why, size_t why_bytes) {
  const hk_ib_ctx *x = ctx;
  ib_fact facts[2];
  memcpy(&facts[0], x->facts + (size_t)a * x->stride, sizeof facts[0]);
  memcpy(&facts[1], x->facts + (size_t)b * x->stride, sizeof facts[1]);
  for (int i = 0; i < 2; i++)
    if (facts[i].nspots > HK_IB_SPOTS) facts[i].nspots = HK_IB_SPOTS;
  return hk_ib_spots_meet(x->env->settings, facts[0].spots, facts[0].nspots, facts[1].spots, facts[1].nspots, why,
                          why_bytes);
}

void hk_ib_fini(void *ctx) {
  hk_ib_ctx *x = ctx;
  hk_ib_stop_ticking(x);
  hk_ib_control_end(x);
  for (uint32_t i = 0; i < x->capacity; i++) /* connections whose ends another network carries */
    if (x->conns[i]) hk_ib_conn_free(x->conns[i]);
  hk_ib_user_free(x);
  if (x->ndevices)
    HK_INFO(
        HK_SUB_NET,
        "rank %d: RDMA devices held at most %llu KiB of memory, and %llu KiB now; %llu large messages were written to "
        "their places, %llu copied there",
        x->env->rank, (unsigned long long)x->counts.pinned_most / 1024, (unsigned long long)x->counts.pinned / 1024,
        (unsigned long long)x->counts.placed, (unsigned long long)x->counts.copied);
  for (int i = 0; i < x->ndevices; i++) hk_ib_device_close(x, &x->devices[i]);
  pthread_mutex_destroy(&x->lock);
  free(x->conns);
  free(x->progress.active);
  free(x);
}
