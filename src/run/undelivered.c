/* SPDX-License-Identifier: Apache-2.0 */
/* Finds messages that were delivered but never received. At destroy it reports them, because they show that ranks made
 * different calls. hocketCommProbe uses it for receives from whichever rank sends first. */
#include <hocket.h>
#include <string.h>
#include "../base/log.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../core/api.h"
#include "../core/comm.h"
#include "../core/wiring.h"
#include "../failure/failure.h"

enum {
  RANKS_SEARCHED = 64, /* with more, only the links that this rank has used */
  LOOKS = 4            /* calls of progress, to get data that has already arrived over a network */
};

/* The number of slots that are filled and not received, and their bytes. */
static unsigned undelivered_unread(const hk_link *l, size_t *bytes) {
  unsigned n = 0;
  *bytes = 0;
  for (uint64_t k = l->done; n <= l->mask; k++, n++) {
    const hk_slot *s = &l->slots[(uint32_t)k & l->mask];
    /* acquire: the fields below were written before the number */
    if (atomic_load_explicit(&s->seq, memory_order_acquire) != (uint32_t)(k + 1)) break;
    *bytes += s->bytes;
  }
  return n;
}

static void undelivered_look_at(ncclComm_t c, const hk_link *l, int peer, bool p2p) {
  size_t bytes;
  unsigned n = undelivered_unread(l, &bytes);
  if (n && p2p)
    HK_WARN(
        "communicator %016llx%s%s: rank %d of %d destroys it with %zu bytes (%u messages or pieces) that rank %d sent "
        "and no ncclRecv here took: give each ncclSend its ncclRecv",
        (unsigned long long)hk_bootstrap_comm_id(c->bootstrap), c->options.name[0] ? " " : "", c->options.name, c->rank,
        c->nranks, bytes, n, peer);
  else if (n)
    HK_WARN("communicator %016llx%s%s: rank %d of %d destroys it with %zu bytes (%u messages) that rank %d sent in a "
            "collective operation and that none here took: the last of %llu operations, or one before it, was called "
            "differently on the two ranks (another root?)",
            (unsigned long long)hk_bootstrap_comm_id(c->bootstrap), c->options.name[0] ? " " : "", c->options.name,
            c->rank, c->nranks, bytes, n, peer, (unsigned long long)c->order.sequence);
}

/* Looks at a link in shared memory that this rank never opened: its peer may have written to it. */
static void undelivered_search(ncclComm_t c, const hk_link_key *key, int transport) {
  hk_link l = {0};
  hk_transport_state *s = c->wiring->states[transport];
  l.peer = key->peer;
  l.kind = key->kind;
  l.owner = s;
  if (s->transport->open(s, key, &l) != HK_OK) return;
  undelivered_look_at(c, &l, key->peer, key->channel == HK_CHANNEL_P2P);
  if (s->transport->close) s->transport->close(&l);
}

/* A connection carries both directions. So opens receiving ends for connections on which this rank only sent, or that
 * it never took: they may contain messages. */
static void undelivered_open_receivers(ncclComm_t c) {
  hk_wired_link *l;
  hk_link_walk walk = {0};
  for (const hk_wired_link *sends; (sends = hk_wire_next(c, &walk));) {
    hk_link_key key = {.peer = sends->link.peer, .kind = HK_LINK_RECV, .channel = (uint8_t)walk.channel};
    /* relaxed: a connection that is not complete yet has delivered nothing */
    if (sends->link.kind == HK_LINK_SEND && sends->link.proxied &&
        !hk_transports[c->wiring->via[sends->link.peer]]->proxied->one_way &&
        atomic_load_explicit(&sends->link.state, memory_order_relaxed) == HK_LINK_READY)
      (void)hk_wire_link(c, key, &l); /* without memory nothing is reported */
  }
  for (int r = -1; (r = hk_bootstrap_untaken(c->bootstrap, r)) >= 0;) {
    hk_link_key key = {.peer = r, .kind = HK_LINK_RECV, .channel = HK_CHANNEL_P2P};
    if (hk_wire_proxied(c, r)) (void)hk_wire_link(c, key, &l); /* as above */
  }
}

/* Receives the data that has already arrived over networks; does not wait. */
static void undelivered_take_in(ncclComm_t c) {
  undelivered_open_receivers(c);
  hk_link_walk walk = {0};
  for (hk_wired_link *l; (l = hk_wire_next(c, &walk));)
    if (l->link.kind == HK_LINK_RECV && l->link.proxied && !hk_link_waits(&l->link))
      hk_link_set_waiting(&l->link, HK_LINK_TAKES);
  for (int i = 0; i < LOOKS; i++) {
    bool moved = false;
    if (hk_wire_progress(c, &moved) != HK_OK) return;
  }
}

void hk_wire_report_undelivered(ncclComm_t c) {
  const hk_wiring *w = c->wiring;
  if (!w->links.to || !c->bootstrap || c->nranks == 1) return;
  if (atomic_load(&c->health.failure) || atomic_load(&c->health.progress) != HK_OK) return;
  if (w->links.any_pump || hk_bootstrap_untaken(c->bootstrap, -1) >= 0) undelivered_take_in(c);
  for (int r = 0; r < c->nranks; r++) {
    if (r == c->rank) continue;
    bool memory = !hk_wire_proxied(c, r) && c->nranks <= RANKS_SEARCHED;
    for (int ch = 0; ch < HK_CHANNEL_COUNT; ch++) {
      static const uint8_t kinds[] = {HK_LINK_RECV, HK_LINK_MCAST_RECV};
      for (size_t k = 0; k < HK_ARRAY_LENGTH(kinds); k++) {
        hk_link_key key = {.peer = r, .kind = kinds[k], .channel = (uint8_t)ch};
        const hk_wired_link *l = w->links.to[r] ? w->links.to[r]->at[ch][kinds[k]] : NULL;
        bool shared = memory && (kinds[k] == HK_LINK_RECV || w->multicast >= 0);
        if (l)
          undelivered_look_at(c, &l->link, r, ch == HK_CHANNEL_P2P);
        else if (shared)
          undelivered_search(c, &key, kinds[k] == HK_LINK_RECV ? w->via[r] : w->multicast);
      }
    }
  }
}

/* No operation of the communicator is under way, so this thread may access its links. */
static hk_status undelivered_probe(ncclComm_t c, int peer, bool *waits) {
  hk_status rc = HK_OK;
  hk_wired_link *w;
  bool moved = false;
  hk_link_key key = {.peer = peer, .kind = HK_LINK_RECV, .channel = HK_CHANNEL_P2P};
  HK_TRY(hk_wire_link(c, key, &w), out);
  if (w->link.proxied && !hk_link_can_recv(&w->link)) {
    if (!hk_link_waits(&w->link)) hk_link_set_waiting(&w->link, HK_LINK_TAKES);
    HK_TRY(hk_wire_progress(c, &moved), out);
  }
  *waits = hk_link_can_recv(&w->link);
out:
  return hk_comm_failed(c, rc);
}

HK_EXPORT ncclResult_t hocketCommProbe(ncclComm_t comm, int peer, int *waits) {
  HK_UNCANCELLED;
  bool found = false;
  hk_status rc = hk_comm_check_usable(comm, "hocketCommProbe");
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (!waits || peer < 0 || peer >= comm->nranks || peer == comm->rank || comm->device >= 0)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "hocketCommProbe: peer %d, waits %p: it wants another one of %d ranks and host memory",
                                 peer, (void *)waits, comm->nranks);
  /* acquire: pairs with stream_turn_over; what the last batch on a stream did to the links is complete */
  if (atomic_load_explicit(&comm->order.served, memory_order_acquire) == atomic_load(&comm->order.issued))
    rc = undelivered_probe(comm, peer, &found);
  *waits = found;
  return (ncclResult_t)rc;
}
