/* SPDX-License-Identifier: Apache-2.0 */
/* The shm transport: links between ranks that share memory, as threads of a process or as processes of a host. This
 * file is the table of functions. shm_arena.h describes the memory, shm_join.c how ranks agree to share it. */
#include "shm.h"
#include <stdio.h>
#include <stdlib.h>
#include "../../base/param.h"
#include "../peer.h"
#include "../registry.h"
#include "../status_page.h"
#include "shm_state.h"

static hk_status shm_attach(const hk_transport_env *env, hk_transport_state **out, void *fact) {
  hk_status rc;
  hk_shm_state *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the shm transport of rank %d", env->rank);
  s->base = (hk_transport_state){&hk_transport_shm, env};
  if (env->settings->SHM_DISABLE) s->fact.flags |= HK_SHM_FACT_SHM_OFF;
  if (env->settings->P2P_DISABLE) s->fact.flags |= HK_SHM_FACT_P2P_OFF;
  s->fact.nslots = env->nslots;
  s->fact.slot_bytes = env->slot_bytes;
  hk_shm_cma_prepare(s);
  HK_TRY(hk_shm_process_enter(s), out);
  *(hk_shm_fact *)fact = s->fact;
  *out = &s->base;
out:
  if (rc != HK_OK) free(s);
  return rc;
}

static const hk_shm_process *shm_process_of(hk_transport_state *state) { return ((hk_shm_state *)state)->process; }

static bool shm_reachable(hk_transport_state *state, int peer, char *why, size_t why_bytes) {
  const hk_transport_env *env = state->env;
  const hk_shm_process *p = shm_process_of(state);
  if (peer == env->rank)
    snprintf(why, why_bytes, "rank %d is this rank", peer);
  else if (env->peers[peer].host != env->peers[env->rank].host)
    snprintf(why, why_bytes, "rank %d is on another host", peer);
  else if (p->arena.base && p->index[peer] >= 0)
    return true;
  else
    snprintf(why, why_bytes, "no shared memory with rank %d: %s", peer, p->reason);
  return false;
}

static bool shm_multicast(hk_transport_state *state) {
  const hk_shm_process *p = shm_process_of(state);
  return p->arena.base && p->ngroup == (uint32_t)state->env->nranks;
}

/* Returns true if both ends, or all ends of a multicast, share an address space. */
static bool shm_one_process(const hk_shm_state *s, const hk_link_key *key) {
  const hk_peer *peers = s->base.env->peers;
  if (key->kind == HK_LINK_MCAST_SEND || key->kind == HK_LINK_MCAST_RECV) return s->process->one_process;
  return peers[key->peer].process == peers[s->base.env->rank].process;
}

static hk_status shm_open(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  hk_shm_state *s = (hk_shm_state *)state;
  const hk_shm_process *p = s->process;
  bool pair = key->kind == HK_LINK_SEND || key->kind == HK_LINK_RECV;
  if (!p->arena.base || p->index[key->peer] < 0 || key->channel >= HK_CHANNEL_COUNT ||
      (pair && key->peer == state->env->rank))
    return HK_FAIL(HK_ERR_INTERNAL, "rank %d shares no memory with rank %u (channel %u)", state->env->rank, key->peer,
                   key->channel);
  *link = (hk_link){.owner = state};
  if (!(s->fact.flags & HK_SHM_FACT_P2P_OFF)) link->by_ref = shm_one_process(s, key) ? 2 : 1;
  hk_shm_arena_link(&p->arena, key, (uint32_t)p->index[state->env->rank], (uint32_t)p->index[key->peer], link);
  /* relaxed: the link is this rank's own */
  atomic_store_explicit(&link->state, HK_LINK_READY, memory_order_relaxed);
  return shm_one_process(s, key) ? HK_OK : hk_shm_region_open(link);
}

static hk_status shm_join(hk_transport_state *state, const hk_facts *facts) {
  HK_OR_RETURN(hk_shm_join(state, facts));
  hk_shm_cma_try((hk_shm_state *)state, facts);
  return HK_OK;
}

static void shm_detach(hk_transport_state *state) {
  hk_shm_state *s = (hk_shm_state *)state;
  hk_shm_process_leave(s);
  free(s);
}

static _Atomic(int) *shm_failure_word(hk_transport_state *state) {
  return hk_shm_arena_failure(&shm_process_of(state)->arena);
}

static hk_status_page *shm_status_page(hk_transport_state *state, int rank) {
  const hk_shm_process *p = shm_process_of(state);
  if (!p->arena.base || p->index[rank] < 0) return NULL;
  return hk_shm_arena_status_page(&p->arena, (uint32_t)p->index[rank]);
}

static hk_call_checks *shm_call_checks(hk_transport_state *state) {
  const hk_shm_process *p = shm_process_of(state);
  return p->arena.base ? hk_shm_arena_call_checks(&p->arena) : NULL;
}

static const hk_transport_host shm_host = {
    .failure_word = shm_failure_word,
    .status_page = shm_status_page,
    .call_checks = shm_call_checks,
    .no_files = hk_shm_no_files,
    .file = hk_shm_region_file,
    .map = hk_shm_region_map,
    .ask = hk_shm_question,
    .notify = hk_shm_notice,
    .answer_with = hk_shm_answer_with,
    .writable = hk_shm_writable,
    .write = hk_shm_write,
};

static const hk_transport_zero_copy shm_zero_copy = {
    .reads = hk_shm_reads,
    .resolve = hk_shm_resolve,
    .refer = hk_shm_refer,
    .export_target = hk_shm_export_target,
    .map_target = hk_shm_map_target,
    .fetch = hk_shm_fetch,
};

/* NULL: progress (the ends share memory). */
const hk_transport hk_transport_shm = {
    .name = "shm",
    .fact_bytes = sizeof(hk_shm_fact),
    .attach = shm_attach,
    .join = shm_join,
    .reachable = shm_reachable,
    .multicast = shm_multicast,
    .open = shm_open,
    .close = hk_shm_region_close,
    .detach = shm_detach,
    .zero_copy = &shm_zero_copy,
    .host = &shm_host,
};
