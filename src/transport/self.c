/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The transport of a rank to itself: one FIFO for each channel, in private memory. It is also the template for a new
 * transport, and describes what each function must do.
 *
 * A transport is a table of functions (transport.h) over a state of its own.  The life of a state:
 *
 *   attach    before ranks know anything of each other: makes the state, and fills `fact` with what peers will need
 *   join      all facts are known: agrees with the peers (NULL here: this transport has no peers)
 *   reachable called for each peer, often; a pure function of what was exchanged, so that both ends return the same
 *   open      fills one end of a link. The peer opens the other end at another time: neither may wait for the other
 *             here, and links that cannot be ready at once are left CONNECTING
 *   close     frees what `open` allocated for this end
 *   detach    frees the state; every link has been closed before
 *
 * What only some transports do is in groups, each with a struct of its own: references to memory that the receiver must
 * map first (zero_copy), slots that must be moved because the ends share no memory (proxied), and others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "../base/param.h"
#include "registry.h"
#include "transport.h"

/* Both ends of a channel's FIFO belong to this rank, so they share one allocation. */
typedef struct self_fifo {
  char *memory; /* slot headers, head, payload; NULL until the first end is opened */
  size_t bytes;
} self_fifo;

typedef struct self_state {
  hk_transport_state base; /* first: the caller holds a pointer to it */
  bool by_ref;
  self_fifo fifos[HK_CHANNEL_COUNT];
} self_state;

static hk_status self_attach(const hk_transport_env *env, hk_transport_state **out, void *fact) {
  (void)fact; /* peers need nothing of this transport */
  self_state *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL_ERRNO("no memory for the self transport of rank %d", env->rank);
  s->base = (hk_transport_state){&hk_transport_self, env};
  s->by_ref = !env->settings->P2P_DISABLE;
  *out = &s->base;
  return HK_OK;
}

static bool self_reachable(hk_transport_state *state, int peer, char *why, size_t why_bytes) {
  if (peer == state->env->rank) return true;
  snprintf(why, why_bytes, "rank %d is another rank", peer);
  return false;
}

/* Allocates the channel's FIFO if it does not exist. Mapped, not malloc'ed: only pages that are used cost memory, and
 * they are zeroed, which is an empty FIFO. */
static hk_status self_fifo_memory(self_state *s, unsigned channel, size_t *payload_at) {
  const hk_transport_env *env = s->base.env;
  self_fifo *f = &s->fifos[channel];
  size_t control = (size_t)env->nslots * sizeof(hk_slot) + sizeof(hk_head);
  *payload_at = hk_round_up(control, 4096);
  if (f->memory) return HK_OK;
  size_t bytes = *payload_at + env->nslots * env->slot_bytes;
  void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return HK_FAIL_ERRNO("rank %d cannot map %zu bytes for sends to itself", env->rank, bytes);
  f->memory = m;
  f->bytes = bytes;
  return HK_OK;
}

static hk_status self_open(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  self_state *s = (self_state *)state;
  size_t payload_at;
  HK_OR_RETURN(self_fifo_memory(s, key->channel, &payload_at));
  char *memory = s->fifos[key->channel].memory;
  *link = hk_link_in_memory(state->env, key, (hk_slot *)(void *)memory, memory + payload_at);
  link->by_ref = s->by_ref ? 2 : 0; /* one address space: any address is good */
  link->owner = state;
  return HK_OK;
}

static void self_detach(hk_transport_state *state) {
  self_state *s = (self_state *)state;
  for (unsigned c = 0; c < HK_CHANNEL_COUNT; c++)
    if (s->fifos[c].memory) munmap(s->fifos[c].memory, s->fifos[c].bytes);
  free(s);
}

/* Functions that are NULL: join (no peers), multicast (no other rank would read it), close (`open` allocates nothing
 * for an end). Groups that are NULL: zero_copy (by_ref == 2: addresses are passed as they are), payload, proxied (the
 * ends share memory), host. */
const hk_transport hk_transport_self = {
    .name = "self",
    .attach = self_attach,
    .reachable = self_reachable,
    .open = self_open,
    .detach = self_detach,
};
