/* SPDX-License-Identifier: Apache-2.0 */
/* The executor on CPU threads (exec.h): steps the lanes of one rank's program. */
#include <string.h>
#include "../program/quantised.h"
#include "../transport/places.h"
#include "exec_lanes.h"
#include "quantised.h"
#include "steps.h"

static size_t exec_lane_scratch_bytes(const hk_plan *plan, size_t chunk) {
  return plan->program->scratch_blocks * hk_scratch_stride(chunk);
}

size_t hk_exec_bytes(const hk_plan *plan) {
  return plan->program->nlanes * plan->channels * sizeof(hk_lane_run) * (plan->proxied ? 2 : 1) +
         2 * plan->max_operands * sizeof(void *);
}

size_t hk_exec_scratch_bytes(const hk_plan *plan, size_t chunk) {
  return plan->program->nlanes * plan->channels * exec_lane_scratch_bytes(plan, chunk);
}

/* Each block has sizes.longest bytes, and the first wave moves all of them. */
static inline bool exec_is_whole(const hk_program *p, const hk_launch *launch) {
  return launch->block_bytes <= launch->chunk && !launch->table &&
         hk_program_parts(p) * launch->block_bytes == launch->total;
}

bool hk_exec_has_steps(const hk_plan *plan, const hk_launch *launch) {
  if (!launch->table) return plan->steps && exec_is_whole(plan->program, launch);
  return plan->steps && launch->block_bytes <= launch->chunk && launch->block_bytes < HK_REF_MIN_BYTES;
}

static inline __attribute__((always_inline)) void *exec_user_address(const hk_exec *x, const hk_lane_run *l,
                                                                     const hk_operand *o) {
  size_t at = hk_cursor_at(&l->at, x->plan->program, o, &x->sizes);
  switch (o->space) {
    case HK_IN: return (void *)(uintptr_t)(x->in + at);
    case HK_OUT: return x->out + at;
    default: return l->scratch + at;
  }
}

static inline hk_link *exec_link_of(const hk_lane_run *l, const hk_operand *o) {
  return l->links[hk_cursor_link(&l->at, o)];
}

/* Offers the outputs that the lane receives multicasts into, for all waves, to their senders (places.h). */
static void exec_offer_places(const hk_exec *x, const hk_lane_run *lane) {
  const hk_program *p = x->plan->program;
  const hk_sizes *s = &x->sizes;
  const uint32_t waves = (uint32_t)((s->longest + s->chunk - 1) / s->chunk);
  hk_lane_run l = *lane;
  if (l.done) return;
  do {
    const hk_instr *i = hk_cursor_move(&l.at, l.instrs);
    const hk_operand *o = hk_instr_operands(p, i);
    if (i->nsrc != 1 || o[i->ndst].space != HK_LINK) continue;
    hk_link *link = exec_link_of(&l, &o[i->ndst]);
    if (link->kind != HK_LINK_MCAST_RECV) continue;
    hk_places_post(link, exec_user_address(x, &l, o), hk_cursor_length(&l.at, p, i, o, s), waves, s->chunk,
                   x->signature);
  } while (hk_cursor_next(&l.at, s, 1) && !l.at.offset);
}

/* The rest of hk_exec_init, for messages that do not run as steps. */
static __attribute__((noinline)) void exec_begin_lanes(hk_exec *x, void *memory, char *scratch) {
  const hk_plan *plan = x->plan;
  const hk_program *p = plan->program;
  const hk_launch *launch = x->launch;
  size_t each = exec_lane_scratch_bytes(plan, launch->chunk);
  x->nlanes = x->live = p->nlanes * plan->channels;
  x->whole = exec_is_whole(p, launch);
  x->sizes = hk_sizes_for(p, launch->total, launch->block_bytes, launch->chunk);
  x->sizes.table = launch->table;
  x->pairs = hk_coll_pairs((hk_coll)p->coll);
  x->lanes = memory;
  x->ahead = plan->proxied && !launch->quantised ? x->lanes + x->nlanes : NULL;
  x->pointers = (const void **)(x->lanes + x->nlanes * (plan->proxied ? 2 : 1));
  for (unsigned c = 0, k = 0; c < plan->channels; c++) {
    for (unsigned i = 0; i < p->nlanes; i++, k++) {
      hk_lane_run *l = &x->lanes[k];
      *l = (hk_lane_run){
          .instrs = hk_program_instrs(p), .links = plan->links + (size_t)c * p->nlinks, .scratch = scratch + k * each};
      l->done = !hk_cursor_begin(&l->at, &hk_program_lanes(p)[i], c, &x->sizes);
      if (l->done) x->live--;
      if (x->ahead) x->ahead[k].links = NULL; /* not begun */
    }
  }
  x->offers = launch->places;
}

void hk_exec_init(hk_exec *x, const hk_plan *plan, const hk_launch *launch, const void *in, void *out, void *memory,
                  void *scratch) {
  x->plan = plan;
  x->launch = launch;
  x->in = in;
  x->out = out;
  x->signature = launch->signature;
  x->bad_peer = -1;
  x->brief = launch->brief;
  if (!x->brief) {
    exec_begin_lanes(x, memory, scratch);
    return;
  }
  hk_steps_again(x, in, out);
  x->bases[HK_SCRATCH] = scratch;
}

/* Tells a proxied link that this lane waits for its next slot, and the destination of its data, so that the transport
 * can write the data there. */
static void exec_announce_wait(const hk_exec *x, const hk_lane_run *l, const hk_operand *o, unsigned ndst,
                               unsigned nsrc, size_t bytes, hk_link *link) {
  hk_link_set_waiting(link, HK_LINK_WAITS);
  if (ndst != 1 || nsrc != 1 || o[0].space == HK_LINK || x->launch->quantised) return;
  link->recv_target_bytes = (uint32_t)bytes;
  link->recv_target = exec_user_address(x, l, &o[0]);
}

/* What a slot carries for `bytes` of the message. */
static inline size_t exec_carried(const hk_exec *x, size_t bytes) {
  return __builtin_expect(x->launch->quantised, 0) ? hk_quantised_bytes(bytes / x->launch->unit) : bytes;
}

/* Checks the links of the instruction, whose slots carry `bytes`, from operand l->ready on; true if all are ready. */
static bool exec_all_ready(const hk_exec *x, hk_lane_run *l, const hk_operand *o, unsigned ndst, unsigned nsrc,
                           size_t bytes) {
  for (unsigned k = l->ready; k < ndst + nsrc; k++) {
    if (o[k].space != HK_LINK) continue;
    hk_link *link = exec_link_of(l, &o[k]);
    bool ok = k < ndst ? hk_link_can_send(link, bytes) : hk_link_can_recv(link);
    if (__builtin_expect(!ok, 0)) {
      l->ready = k;
      if (link->proxied && k >= ndst) exec_announce_wait(x, l, o, ndst, nsrc, bytes, link);
      return false;
    }
  }
  l->ready = 0;
  return true;
}

hk_status hk_exec_bad_slot(hk_exec *x, const hk_link *link, const hk_slot *s, size_t expected) {
  x->bad_peer = link->peer;
  x->bad_bytes = s->bytes;
  x->expected_bytes = (uint32_t)expected;
  x->bad_signature = s->signature;
  return HK_ERR_USAGE;
}

/* The addresses of the sources; *fresh is the index of the user's input among them, or -1. `to` is an output that gets
 * the one source unchanged, or NULL. */
static hk_status exec_gather_sources(hk_exec *x, const hk_lane_run *l, const hk_operand *o, unsigned n, size_t bytes,
                                     uint32_t signature, const void **src, int *fresh, void *to) {
  *fresh = -1;
  for (unsigned k = 0; k < n; k++) {
    if (o[k].space != HK_LINK) {
      if (o[k].space == HK_IN) *fresh = (int)k;
      src[k] = exec_user_address(x, l, &o[k]);
      continue;
    }
    hk_link *link = exec_link_of(l, &o[k]);
    const hk_slot *s = hk_link_recv_slot(link);
    if (__builtin_expect(s->signature != signature || s->bytes != bytes, 0)) return hk_exec_bad_slot(x, link, s, bytes);
    if (__builtin_expect(s->flags & HK_SLOT_PLACED, 0)) {
      src[k] = to;
      if (to && hk_places_offered(link)) continue; /* the data is at its place already */
      x->bad_peer = link->peer;
      return HK_FAIL(HK_ERR_INTERNAL, "rank %u says that it has written data to a place which was not offered",
                     link->peer);
    }
    /* Data that only the kernel can read is copied directly into the output, if there is one. */
    if (to && hk_slot_private(s)) {
      hk_status rc = hk_link_fetch(link, s, to);
      if (rc == HK_ERR_REMOTE) x->bad_peer = link->peer;
      if (rc != HK_OK) return rc; /* the peer has failed, or `to` is not valid memory */
      src[k] = to;
      continue;
    }
    src[k] = hk_link_recv_data(link);
    if (src[k]) continue;
    x->bad_peer = link->peer;
    return HK_ERR_REMOTE;
  }
  return HK_OK;
}

/* The first output that the instruction writes, or NULL. */
static void *exec_output_of(const hk_exec *x, const hk_lane_run *l, const hk_operand *o, unsigned ndst) {
  for (unsigned k = 0; k < ndst; k++)
    if (o[k].space == HK_OUT) return exec_user_address(x, l, &o[k]);
  return NULL;
}

/* Memory to which a link's slot may refer in place of a copy: the user's memory with the same bytes, which does not
 * change until the operation ends. That is the one source of a plain copy, or an output that is written here. */
static const void *exec_stable_copy(const hk_exec *x, const hk_lane_run *l, const hk_operand *o, unsigned ndst,
                                    unsigned nsrc, const void *const *src, bool plain) {
  if (plain && nsrc == 1 && (o[ndst].space == HK_IN || o[ndst].space == HK_OUT)) return src[0];
  return exec_output_of(x, l, o, ndst);
}

/* avg and premulsum are sums in the network: ranks multiply what they send, and divide the result. */
static uint32_t exec_network_sum(const hk_reducer *r) {
  return HK_SLOT_SUM(r->dtype, r->op == HK_AVG || r->op == HK_PREMULSUM ? HK_SUM : r->op);
}

/* True if private memory that the instruction sends may be referred to. */
static bool exec_by_cma(const hk_exec *x, const hk_instr *i, const hk_operand *o, bool plain) {
  const bool adds = i->nsrc && !(i->flags & HK_INSTR_FINAL) && o[i->ndst].space == HK_IN;
  if (adds && hk_coll_reduces((hk_coll)x->plan->program->coll)) return false;
  return x->launch->by_cma & (!plain ? HK_CMA_SUMS : x->in == x->out ? HK_CMA_PLACED : HK_CMA_MOVES);
}

/* Collects the addresses to write to, those of links first. A link that carries a reference gets it in its slot and
 * adds no address. A multicast to places adds all places and sets *placed. *staged: the number of links' slots among
 * the addresses. `by_cma`: private memory may be referred to (exec_by_cma). */
static unsigned exec_gather_destinations(hk_exec *x, hk_lane_run *l, const hk_operand *o, unsigned n, size_t bytes,
                                         const void *stable, bool by_cma, void **dst, unsigned *staged, bool *placed,
                                         hk_status *rc) {
  unsigned count = 0;
  *staged = 0;
  *placed = false;
  for (unsigned k = 0; k < n; k++) {
    if (o[k].space != HK_LINK) continue;
    hk_link *link = exec_link_of(l, &o[k]);
    hk_slot *s = &link->slots[(uint32_t)link->done & link->mask];
    bool summed = link->kind == HK_LINK_SUM_SEND || link->kind == HK_LINK_SCATTER_SEND;
    s->flags = summed ? exec_network_sum(&x->launch->reducer) : 0;
    if (link->proxied) l->must_drain = true;
    if (x->launch->places && link->kind == HK_LINK_MCAST_SEND && bytes) {
      const hk_placing what = {bytes, x->sizes.chunk, x->signature};
      unsigned readers;
      if ((*rc = hk_places_claim(link, &what, dst + count, &readers, &x->bad_peer)) != HK_OK) return 0;
      if (readers) {
        s->flags = HK_SLOT_PLACED;
        count += readers;
        *placed = true;
        continue;
      }
    }
    if (stable && link->by_ref && bytes > (link->proxied ? (size_t)HK_SLOT_INLINE : (size_t)HK_REF_MIN_BYTES - 1) &&
        hk_link_refer(link, stable, bytes, &s->ref) && (by_cma || s->ref.region != HK_REGION_PRIVATE)) {
      s->flags = HK_SLOT_REF;
      l->must_drain = true;
      continue;
    }
    if (__builtin_expect(bytes > link->slot_bytes, 0)) {
      *rc = HK_FAIL(HK_ERR_INTERNAL, "%zu bytes for rank %u do not fit a slot of %u, and no reference can be sent",
                    bytes, link->peer, link->slot_bytes);
      return 0;
    }
    ++*staged;
    dst[count++] = hk_link_send_buffer(link, bytes);
  }
  for (unsigned k = 0; k < n; k++)
    if (o[k].space != HK_LINK) dst[count++] = exec_user_address(x, l, &o[k]);
  return count;
}

/* Publishes the next slot of each link that the instruction sends on. */
static void exec_publish_all(const hk_lane_run *l, const hk_operand *o, unsigned ndst, size_t bytes,
                             uint32_t signature) {
  for (unsigned k = 0; k < ndst; k++) {
    if (o[k].space != HK_LINK) continue;
    hk_link *link = exec_link_of(l, &o[k]);
    hk_link_publish(link, (uint32_t)bytes, signature, link->slots[(uint32_t)link->done & link->mask].flags);
  }
}

/* A sum for this rank's memory and for slots, in pieces: each goes to memory, and from the first cache to the slots,
 * whose lines hk_copy does not fetch. Of `dst` the first `staged` are slots. Changes dst and src. */
static void exec_sum_and_send(const hk_reducer *r, void **dst, unsigned n, unsigned staged, const void **src,
                              unsigned nsrc, int fresh, size_t bytes, unsigned flags) {
  enum { PIECE = 16384 };
  for (size_t piece; bytes; bytes -= piece) {
    piece = bytes < PIECE ? bytes : PIECE;
    hk_move(r, dst + staged, n - staged, src, nsrc, fresh, piece, flags);
    for (unsigned k = 0; k < staged; k++) hk_copy(dst[k], dst[staged], piece, HK_MOVE_SLOT);
    for (unsigned k = 0; k < n; k++) dst[k] = (char *)dst[k] + piece;
    for (unsigned k = 0; k < nsrc; k++) src[k] = (const char *)src[k] + piece;
  }
}

static hk_status exec_run_move(hk_exec *x, hk_lane_run *l, const hk_instr *i, const hk_operand *o, size_t bytes) {
  hk_status rc = HK_OK;
  unsigned ndst = i->ndst, nsrc = i->nsrc;
  const void **src = x->pointers;
  void **dst = (void **)(x->pointers + x->plan->max_operands);
  int fresh;
  unsigned staged;
  bool placed, reduces = hk_coll_reduces((hk_coll)x->plan->program->coll);
  uint32_t signature = x->signature;
  if (__builtin_expect(x->pairs, 0)) {
    x->expected_length = hk_cursor_length(&l->at, x->plan->program, i, o, &x->sizes);
    signature ^= hk_length_mark(x->expected_length);
  }
  void *to = nsrc == 1 && o[ndst].space == HK_LINK ? exec_output_of(x, l, o, ndst) : NULL;
  HK_TRY(exec_gather_sources(x, l, o + ndst, nsrc, bytes, signature, src, &fresh, to), out);
  const hk_reducer *r = &x->launch->reducer;
  bool final = i->flags & HK_INSTR_FINAL;
  bool plain = !reduces || (nsrc <= 1 && !(fresh >= 0 && r->pre) && !(final && r->post));
  bool copy = i->flags & HK_INSTR_COPY;
  const void *stable = nsrc && !copy ? exec_stable_copy(x, l, o, ndst, nsrc, src, plain) : NULL;
  unsigned n =
      exec_gather_destinations(x, l, o, ndst, bytes, stable, exec_by_cma(x, i, o, plain), dst, &staged, &placed, &rc);
  if (__builtin_expect(rc != HK_OK, 0)) return rc;
  /* Links with the source's data are published first: peers read it while this rank copies it to its own output. */
  const bool refers = n < ndst, single = plain && nsrc == 1 && !placed, early = single && (!refers || stable == src[0]);
  if (single && bytes) {
    for (unsigned k = 0; k < staged; k++) hk_copy(dst[k], src[0], bytes, HK_MOVE_SLOT);
    dst += staged;
    n -= staged;
    staged = 0;
  }
  if (early) exec_publish_all(l, o, ndst, bytes, signature);
  if (plain && n && nsrc == 1 && dst[n - 1] == src[0]) n--; /* in place: the output has the data */
  if (n && nsrc && bytes) {
    bool shared = staged || (refers && !early); /* peers will read the result, so it should stay in the cache */
    unsigned flags = (final ? HK_MOVE_FINAL : 0) | (x->launch->move_flags & (shared ? HK_MOVE_AHEAD : ~0u));
    if (plain && n == 1)
      hk_copy(dst[0], src[0], bytes, flags);
    else if (!plain && staged && staged < n && !placed)
      exec_sum_and_send(r, dst, n, staged, src, nsrc, fresh, bytes, flags);
    else
      hk_move(plain ? NULL : r, dst, n, src, nsrc, fresh, bytes, flags);
  }
  if (!early) exec_publish_all(l, o, ndst, bytes, signature);
  for (unsigned k = ndst; k < ndst + nsrc; k++)
    if (o[k].space == HK_LINK) hk_link_release(exec_link_of(l, &o[k]));
out:
  return rc;
}

/* The same if links carry quantised values. */
static hk_status exec_run_quantised(hk_exec *x, hk_lane_run *l, const hk_instr *i, const hk_operand *o, size_t bytes) {
  const size_t carried = exec_carried(x, bytes);
  const unsigned ndst = i->ndst, n = ndst + i->nsrc;
  int fresh = -1;
  hk_quantised_operand *all = (hk_quantised_operand *)(void *)x->pointers;
  for (unsigned k = 0; k < n; k++) {
    all[k] = (hk_quantised_operand){.link = o[k].space == HK_LINK};
    if (!all[k].link) {
      if (k >= ndst && o[k].space == HK_IN) fresh = (int)(k - ndst);
      all[k].at = exec_user_address(x, l, &o[k]);
      continue;
    }
    hk_link *link = exec_link_of(l, &o[k]);
    if (k < ndst) {
      if (link->proxied) l->must_drain = true;
      all[k].at = hk_link_send_buffer(link, carried);
      link->slots[(uint32_t)link->done & link->mask].flags = 0;
      if (carried <= link->slot_bytes) continue;
      return HK_FAIL(HK_ERR_INTERNAL, "%zu quantised bytes for rank %u do not fit a slot of %u", carried, link->peer,
                     link->slot_bytes);
    }
    const hk_slot *s = hk_link_recv_slot(link);
    if (s->signature != x->signature || s->bytes != carried) return hk_exec_bad_slot(x, link, s, carried);
    all[k].at = (void *)(uintptr_t)hk_link_recv_data(link);
    if (all[k].at) continue;
    x->bad_peer = link->peer;
    return HK_ERR_REMOTE;
  }
  if (bytes)
    hk_move_quantised(&x->launch->reducer, all, ndst, all + ndst, i->nsrc, fresh, bytes / x->launch->unit,
                      i->flags & HK_INSTR_FINAL);
  exec_publish_all(l, o, ndst, carried, x->signature);
  for (unsigned k = ndst; k < n; k++)
    if (o[k].space == HK_LINK) hk_link_release(exec_link_of(l, &o[k]));
  return HK_OK;
}

/* To the next instruction of the lane; false if there is none. */
static inline bool exec_step_on(const hk_exec *x, hk_lane_run *l) {
  return hk_cursor_next(&l->at, &x->sizes, x->plan->channels);
}

static inline void exec_advance(hk_exec *x, hk_lane_run *l) {
  if (exec_step_on(x, l)) return;
  if (l->must_drain) {
    l->draining = true;
  } else {
    l->done = true;
    x->live--;
  }
}

static inline size_t exec_bytes_of(const hk_exec *x, const hk_lane_run *l, const hk_instr *i, const hk_operand *o) {
  if (x->whole) return i->ndst && i->nsrc ? x->sizes.longest : 0; /* the same, without reading the operands */
  return hk_cursor_bytes(&l->at, x->plan->program, i, o, &x->sizes);
}

/* ---- places offered ahead ----
 * A card that writes directly into the user's memory must know the place before the sender sends. So a second cursor
 * runs ahead of the lane while its links have slots, and offers them the outputs that receive data unchanged. The
 * verifier has proved that no instruction still needs these places then (hk_instr_lands). */

static void exec_begin_ahead(const hk_exec *x, const hk_lane_run *l, hk_lane_run *a) {
  const hk_program *p = x->plan->program;
  const hk_link_need *needs = hk_program_links(p);
  unsigned lane = (unsigned)(l - x->lanes) % p->nlanes;
  bool any = false;
  *a = *l;
  for (unsigned i = 0; i < p->nlinks; i++) {
    hk_link *link = l->links[i];
    if (needs[i].lane != lane || hk_link_sends((hk_link_kind)needs[i].kind) || !link->proxied) continue;
    link->offered = link->done;
    any = any || hk_link_places(link, x->sizes.chunk);
  }
  a->done = !any;
}

static void exec_offer_place(const hk_exec *x, const hk_lane_run *a, const hk_instr *i, const hk_operand *o,
                             hk_link *link) {
  size_t bytes = exec_bytes_of(x, a, i, o);
  bool last_step = i->flags & HK_INSTR_FINAL && hk_coll_reduces((hk_coll)x->plan->program->coll);
  if (!hk_link_places(link, bytes) || last_step || !hk_instr_lands(i, o)) return;
  while (o->space != HK_OUT) o++;
  hk_link_post_target(link, link->offered, exec_user_address(x, a, o), (uint32_t)bytes);
}

static void exec_look_ahead(const hk_exec *x, const hk_lane_run *l) {
  hk_lane_run *a = &x->ahead[l - x->lanes];
  if (!a->links) exec_begin_ahead(x, l, a);
  while (!a->done) {
    const hk_instr *i = hk_cursor_move(&a->at, a->instrs);
    const hk_operand *o = hk_instr_operands(x->plan->program, i), *end = o + i->ndst + i->nsrc;
    if (hk_cursor_skips(&a->at, x->plan->program, i, &x->sizes, exec_bytes_of(x, a, i, o))) {
      a->done = !exec_step_on(x, a);
      continue;
    }
    for (const hk_operand *src = o + i->ndst; src < end; src++) {
      if (src->space != HK_LINK) continue;
      const hk_link *link = exec_link_of(a, src);
      if (link->proxied && !hk_link_may_post_target(link)) return;
    }
    for (const hk_operand *src = o + i->ndst; src < end; src++) {
      if (src->space != HK_LINK) continue;
      hk_link *link = exec_link_of(a, src);
      if (!link->proxied) continue;
      exec_offer_place(x, a, i, o, link);
      link->offered++;
    }
    a->done = !exec_step_on(x, a);
  }
}

/* True once all references of the lane are returned, and all its data has left for the network. */
static bool exec_lane_drained(const hk_exec *x, const hk_lane_run *l) {
  const hk_program *p = x->plan->program;
  const hk_link_need *needs = hk_program_links(p);
  unsigned lane = (unsigned)(l - x->lanes) % p->nlanes;
  for (unsigned i = 0; i < p->nlinks; i++)
    if (needs[i].lane == lane && hk_link_sends((hk_link_kind)needs[i].kind) && !hk_link_drained(l->links[i]))
      return false;
  return true;
}

static hk_status exec_run_lane(hk_exec *x, hk_lane_run *l, bool *moved) {
  while (!l->done) {
    if (l->draining) {
      if (!exec_lane_drained(x, l)) return HK_OK;
      l->done = true;
      x->live--;
      *moved = true;
      return HK_OK;
    }
    const hk_instr *i = hk_cursor_move(&l->at, l->instrs);
    if (__builtin_expect(x->ahead != NULL, 0)) exec_look_ahead(x, l);
    const hk_operand *o = hk_instr_operands(x->plan->program, i);
    size_t bytes = exec_bytes_of(x, l, i, o);
    if (__builtin_expect(hk_cursor_skips(&l->at, x->plan->program, i, &x->sizes, bytes), 0)) {
      exec_advance(x, l);
      continue;
    }
    if (!exec_all_ready(x, l, o, i->ndst, i->nsrc, exec_carried(x, bytes))) return HK_OK;
    hk_status rc = __builtin_expect(x->launch->quantised, 0) ? exec_run_quantised(x, l, i, o, bytes)
                                                             : exec_run_move(x, l, i, o, bytes);
    if (__builtin_expect(rc != HK_OK, 0)) return rc;
    *moved = true;
    exec_advance(x, l);
  }
  return HK_OK;
}

hk_status hk_exec_step_lanes(hk_exec *x, bool *moved) {
  if (__builtin_expect(x->offers, 0)) { /* not in hk_exec_init: the caller sets the signature after it */
    x->offers = false;
    for (unsigned k = 0; k < x->nlanes; k++) exec_offer_places(x, &x->lanes[k]);
  }
  for (unsigned k = 0; k < x->nlanes; k++) {
    if (x->lanes[k].done) continue;
    hk_status rc = exec_run_lane(x, &x->lanes[k], moved);
    if (__builtin_expect(rc != HK_OK, 0)) return rc;
  }
  return HK_OK;
}

static void exec_add_peer(int peer, int *peers, int *n, int capacity) {
  for (int i = 0; i < *n; i++)
    if (peers[i] == peer) return;
  if (*n < capacity) peers[(*n)++] = peer;
}

/* Adds the readers of a link that have not given back `least` slots. */
static void exec_add_readers(const hk_link *link, uint64_t least, int *peers, int *n, int capacity) {
  int lagging[64], found = hk_link_lagging(link, least, lagging, (int)HK_ARRAY_LENGTH(lagging));
  for (int i = 0; i < found; i++) exec_add_peer(lagging[i], peers, n, capacity);
}

/* Adds the readers that have not given the lane's slots back. */
static void exec_add_undrained(const hk_exec *x, const hk_lane_run *l, int *peers, int *n, int capacity) {
  const hk_program *p = x->plan->program;
  const hk_link_need *needs = hk_program_links(p);
  unsigned lane = (unsigned)(l - x->lanes) % p->nlanes;
  for (unsigned i = 0; i < p->nlinks; i++)
    if (needs[i].lane == lane && hk_link_sends((hk_link_kind)needs[i].kind))
      exec_add_readers(l->links[i], l->links[i]->done, peers, n, capacity);
}

void hk_exec_add_awaited(const hk_link *link, size_t bytes, int *peers, int *n, int capacity) {
  if (link->kind != HK_LINK_MCAST_SEND) {
    exec_add_peer(link->peer, peers, n, capacity);
    return;
  }
  /* The readers whose heads deny the next slot: see hk_link_refresh_credit. */
  uint64_t slots = link->done + hk_link_held(link, bytes);
  if (slots > link->mask) exec_add_readers(link, slots - link->mask, peers, n, capacity);
}

int hk_exec_waits_for(const hk_exec *x, int *peers, int capacity) {
  int n = 0;
  if (x->brief) return hk_steps_wait_for(x, peers, capacity);
  for (unsigned k = 0; k < x->nlanes && n < capacity; k++) {
    const hk_lane_run *l = &x->lanes[k];
    if (l->draining && !l->done) exec_add_undrained(x, l, peers, &n, capacity);
    if (l->done || l->draining) continue;
    const hk_instr *i = &l->instrs[l->at.pc];
    if (i->op != HK_OP_MOVE) continue;
    const hk_operand *all = hk_instr_operands(x->plan->program, i), *o = &all[l->ready];
    if (o->space != HK_LINK) continue;
    hk_exec_add_awaited(exec_link_of(l, o), exec_carried(x, exec_bytes_of(x, l, i, all)), peers, &n, capacity);
  }
  return n;
}

bool hk_exec_computed(const hk_exec *x) {
  for (unsigned i = 0; i < x->nlanes && !x->brief; i++)
    if (!x->lanes[i].done && !x->lanes[i].draining) return false;
  return !x->brief || x->live == 0;
}
