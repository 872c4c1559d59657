/* SPDX-License-Identifier: Apache-2.0 */
/* Links of a CollNet group in rounds: gathers, and scatters of sums (HK_LINK_GATHER_SEND). The plugin needs the blocks
 * of a round one after another, so a round has its own memory outside the FIFOs. A gather's blocks arrive there, and
 * slots refer to them. Data for a scatter is copied there, and its slots are given back at once. */
#include <string.h>
#include "collnet_plugin.h"

static char *collnet_rounds_place_of(const collnet_rounds *r, uint64_t round) {
  return r->places + round % COLLNET_ROUNDS * HK_COLLNET_ROUND_BYTES;
}

static hk_status collnet_rounds_register_memory(collnet_state *s, collnet_rounds *r, size_t payload) {
  const hk_net_end *slots = r->scatters ? &r->from : &r->to;
  int code = s->calls->reg(s->comm, slots->link->payload, payload, NET_PLUGIN_HOST_MEMORY, &r->registrations[0]);
  if (!code)
    code = s->calls->reg(s->comm, r->places, COLLNET_ROUNDS * HK_COLLNET_ROUND_BYTES, NET_PLUGIN_HOST_MEMORY,
                         &r->registrations[1]);
  return code ? hk_collnet_ended(s, "regMr", code) : HK_OK;
}

hk_status hk_collnet_open_rounds(collnet_state *s, const hk_link_key *key, hk_link *link) {
  const bool sends = hk_link_sends((hk_link_kind)key->kind), scatters = key->kind >= HK_LINK_SCATTER_SEND;
  collnet_rounds *r = &s->rounds[scatters];
  hk_net_end *e = sends ? &r->to : &r->from;
  const collnet_sizes sizes = hk_collnet_sizes(s);
  const size_t fifo = sizes.control + sizes.payload, places = COLLNET_ROUNDS * HK_COLLNET_ROUND_BYTES;
  HK_OR_RETURN(hk_collnet_check_key(s, key, e));
  r->scatters = scatters;
  if (!r->memory) HK_OR_RETURN(hk_collnet_map(s, 2 * fifo + places, &r->memory));
  r->bytes = 2 * fifo + places;
  r->places = r->memory + 2 * fifo;
  hk_collnet_make_link(s, key, r->memory + (sends ? 0 : fifo), e, link);
  return r->to.link && r->from.link ? collnet_rounds_register_memory(s, r, sizes.payload) : HK_OK;
}

/* ---- rounds ---- */

static collnet_round *collnet_rounds_round_at(collnet_rounds *r, uint64_t number) {
  return &r->at[number % COLLNET_ROUNDS];
}

/* Copies data for a scatter to its round's memory. */
static void collnet_rounds_take(const collnet_state *s, collnet_rounds *r, bool *moved) {
  while (hk_net_filled(&r->to, r->to.next) && r->to.next / s->n < r->done + COLLNET_ROUNDS) {
    const hk_slot *slot = hk_net_slot(&r->to, r->to.next);
    const uint64_t number = r->to.next / s->n;
    *collnet_rounds_round_at(r, number) =
        (collnet_round){.bytes = slot->bytes, .flags = slot->flags, .signature = slot->signature, .request = NULL};
    memcpy(collnet_rounds_place_of(r, number) + r->to.next % s->n * slot->bytes, hk_net_slot_data(&r->to, r->to.next),
           slot->bytes);
    hk_net_give_credit(&r->to, ++r->to.next);
    *moved = true;
  }
}

/* True if all input of the next round is available. */
static bool collnet_rounds_can_post(const collnet_state *s, const collnet_rounds *r) {
  /* acquire: pairs with hk_link_release; the lane's reads of the memory are over before it is written */
  const uint64_t freed = atomic_load_explicit(&r->from.link->heads->value, memory_order_acquire);
  if (r->posted - r->done >= COLLNET_ROUNDS) return false;
  if (r->scatters) return r->posted < r->to.next / s->n && r->posted - freed <= r->from.link->mask;
  return hk_net_filled(&r->to, r->posted) &&
         (r->posted < COLLNET_ROUNDS || freed >= (r->posted - COLLNET_ROUNDS + 1) * s->n);
}

static int collnet_rounds_post_gather(collnet_state *s, collnet_rounds *r, collnet_round *round) {
  const hk_slot *slot = hk_net_slot(&r->to, r->posted);
  char *data = hk_net_payload(&r->to, r->posted);
  *round = (collnet_round){.bytes = slot->bytes, .signature = slot->signature};
  if (slot->bytes <= HK_SLOT_INLINE) memcpy(data, slot->small, slot->bytes); /* a header is not registered */
  collnet_part part = {.registration = r->registrations[1],
                       .address = collnet_rounds_place_of(r, r->posted),
                       .size = s->n * slot->bytes};
  if (!slot->bytes) return 0;
  return s->calls->iallgather(s->comm, data, 1, &part, slot->bytes, 0, part.size, r->registrations[0], &round->request);
}

static int collnet_rounds_post_scatter(collnet_state *s, collnet_rounds *r, collnet_round *round) {
  collnet_part part = {.registration = r->registrations[1],
                       .address = collnet_rounds_place_of(r, r->posted),
                       .size = s->n * round->bytes};
  round->request = NULL;
  if (!round->bytes) return 0;
  return s->calls->ireducescatter(s->comm, 1, &part, hk_net_payload(&r->from, r->posted), round->bytes, 0, part.size,
                                  (int)(round->flags >> 8 & 0xff), (int)(round->flags >> 16 & 0xff),
                                  r->registrations[0], &round->request);
}

static hk_status collnet_rounds_post(collnet_state *s, collnet_rounds *r, bool *begun) {
  collnet_round *round = collnet_rounds_round_at(r, r->posted);
  const hk_slot *slot = hk_net_slot(&r->to, r->posted);
  if (s->n * (size_t)(r->scatters ? round->bytes : slot->bytes) > HK_COLLNET_ROUND_BYTES)
    return HK_FAIL(HK_ERR_INTERNAL, "rank %d: a round of CollNet blocks has no room", s->base.env->rank);
  int code = r->scatters ? collnet_rounds_post_scatter(s, r, round) : collnet_rounds_post_gather(s, r, round);
  if (code) return hk_collnet_ended(s, r->scatters ? "ireducescatter" : "iallgather", code);
  *begun = !round->bytes || round->request;
  r->posted += *begun;
  return HK_OK;
}

/* Gives a slot to the lane that waits for it; `at`: its data, in registered memory. */
static void collnet_rounds_deliver(collnet_rounds *r, const collnet_round *round, char *at, bool refers) {
  const bool small = round->bytes <= HK_SLOT_INLINE;
  if (small) memcpy(hk_net_slot(&r->from, r->from.next)->small, at, round->bytes);
  hk_net_deliver(&r->from, round->bytes, round->signature, at, refers && !small);
}

static hk_status collnet_rounds_finish(collnet_state *s, collnet_rounds *r, bool *moved) {
  while (r->done < r->posted) {
    const collnet_round *round = collnet_rounds_round_at(r, r->done);
    int done = !round->request, bytes = 0;
    int code = round->request ? s->calls->test(round->request, &done, &bytes) : 0;
    if (code) return hk_collnet_ended(s, "test", code);
    if (!done) break;
    if (r->scatters)
      collnet_rounds_deliver(r, round, hk_net_payload(&r->from, r->done), false);
    else
      hk_net_give_credit(&r->to, r->done + 1);
    r->done++;
    *moved = true;
  }
  return HK_OK;
}

/* Delivers the blocks of complete gathers while there are slots for them. */
static void collnet_rounds_give(const collnet_state *s, collnet_rounds *r, bool *moved) {
  while (!r->scatters && r->from.next < r->done * s->n && hk_net_has_room(&r->from)) {
    const uint64_t number = r->from.next / s->n;
    const collnet_round *round = collnet_rounds_round_at(r, number);
    collnet_rounds_deliver(r, round, collnet_rounds_place_of(r, number) + r->from.next % s->n * round->bytes, true);
    *moved = true;
  }
}

hk_status hk_collnet_progress_rounds(collnet_state *s, bool *moved) {
  for (int i = 0; i < 2; i++) {
    collnet_rounds *r = &s->rounds[i];
    bool begun = r->to.link && r->from.link;
    if (!begun) continue;
    if (r->scatters) collnet_rounds_take(s, r, moved);
    while (begun && collnet_rounds_can_post(s, r)) {
      HK_OR_RETURN(collnet_rounds_post(s, r, &begun));
      *moved = *moved || begun;
    }
    HK_OR_RETURN(collnet_rounds_finish(s, r, moved));
    collnet_rounds_give(s, r, moved);
  }
  return HK_OK;
}
