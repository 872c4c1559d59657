/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A transport that only tests/suites/extend.sh adds: links between ranks that are threads of one process. The receiver
 * owns the memory of a FIFO for each sender and channel; the sender finds it through the receiver's state, whose
 * address is the fact.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../base/facts.h"
#include "../program/program.h"
#include "peer.h"
#include "registry.h"

typedef struct threads_state {
  hk_transport_state base;   /* first: the caller holds a pointer to it */
  struct threads_state **of; /* [rank]: the states of this process's ranks */
  char *memory;              /* [sender][channel], `fifo_bytes` each, zeroed: empty FIFOs */
  size_t payload_at, fifo_bytes, bytes;
} threads_state;

static hk_status threads_attach(const hk_transport_env *env, hk_transport_state **out, void *fact) {
  threads_state *s = calloc(1, sizeof *s);
  if (!s || !(s->of = calloc((size_t)env->nranks, sizeof *s->of))) {
    free(s);
    return HK_FAIL_ERRNO("no memory for the threads transport of rank %d", env->rank);
  }
  s->base = (hk_transport_state){&hk_transport_threads, env};
  s->payload_at = ((size_t)env->nslots * sizeof(hk_slot) + sizeof(hk_head) + 4095) & ~(size_t)4095;
  s->fifo_bytes = s->payload_at + env->nslots * env->slot_bytes;
  s->bytes = s->fifo_bytes * HK_CHANNEL_COUNT * (size_t)env->nranks;
  void *m = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) {
    hk_status rc = HK_FAIL_ERRNO("rank %d cannot map %zu bytes for its threads transport", env->rank, s->bytes);
    free(s->of);
    free(s);
    return rc;
  }
  s->memory = m;
  memcpy(fact, &s, sizeof s);
  *out = &s->base;
  return HK_OK;
}

static bool threads_reachable(hk_transport_state *state, int peer, char *why, size_t why_bytes) {
  const hk_transport_env *env = state->env;
  if (peer != env->rank && env->peers[peer].process == env->peers[env->rank].process) return true;
  snprintf(why, why_bytes, "rank %d is no other thread of this process", peer);
  return false;
}

static hk_status threads_join(hk_transport_state *state, const hk_facts *facts) {
  threads_state *s = (threads_state *)state;
  char why[160];
  for (int r = 0; r < state->env->nranks; r++)
    if (threads_reachable(state, r, why, sizeof why)) memcpy(&s->of[r], hk_fact_of(facts, r), sizeof s->of[r]);
  return HK_OK;
}

static hk_status threads_open(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  threads_state *s = (threads_state *)state;
  const hk_transport_env *env = state->env;
  bool sends = hk_link_sends((hk_link_kind)key->kind);
  const threads_state *receiver = sends ? s->of[key->peer] : s;
  size_t sender = (size_t)(sends ? env->rank : key->peer);
  char *memory = receiver->memory + (sender * HK_CHANNEL_COUNT + key->channel) * s->fifo_bytes;
  *link = (hk_link){
      .slots = (hk_slot *)memory,
      .heads = (hk_head *)(memory + (size_t)env->nslots * sizeof(hk_slot)),
      .payload = memory + s->payload_at,
      .mask = env->nslots - 1,
      .area_mask = env->nslots - 1,
      .limit = sends ? env->nslots : 0, /* an empty FIFO: all slots may be filled */
      .slot_bytes = (uint32_t)env->slot_bytes,
      .nheads = 1,
      .peer = key->peer,
      .kind = key->kind,
      .owner = state,
  };
  atomic_init(&link->state, HK_LINK_READY);
  return HK_OK;
}

static void threads_detach(hk_transport_state *state) {
  threads_state *s = (threads_state *)state;
  munmap(s->memory, s->bytes);
  free(s->of);
  free(s);
}

const hk_transport hk_transport_threads = {
    .name = "threads",
    .fact_bytes = sizeof(threads_state *),
    .attach = threads_attach,
    .join = threads_join,
    .reachable = threads_reachable,
    .open = threads_open,
    .detach = threads_detach,
};
