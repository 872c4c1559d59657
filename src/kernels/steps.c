/* SPDX-License-Identifier: Apache-2.0 */
/* Short messages on CPU threads (steps.h). */
#include "steps.h"
#include <stdlib.h>
#include "../program/cursor.h"
#include "../transport/link.h"

enum { STEPS = 64, OPERANDS = 20 }; /* the most steps of a plan; the most operands of a step */

/* Counts the steps and their operands, repeats unrolled. False if there are too many. */
static bool steps_count(const hk_program *p, unsigned *steps, unsigned *operands) {
  *steps = *operands = 0;
  for (unsigned k = 0; k < p->nlanes; k++) {
    const hk_lane *lane = &hk_program_lanes(p)[k];
    hk_scan scan = {.next = lane->first, .end = lane->first + lane->count};
    for (const hk_instr *i; (i = hk_scan_next(&scan, hk_program_instrs(p)));) {
      if (i->ndst + i->nsrc > OPERANDS || scan.times > STEPS - *steps) return false;
      *steps += scan.times;
      *operands += scan.times * (i->ndst + i->nsrc);
    }
  }
  return true;
}

/* Scratch buffers are numbered through all lanes. */
static hk_step steps_make_step(const hk_plan *plan, unsigned lane, const hk_cursor *at, const hk_instr *i,
                               hk_step_operand *to) {
  const hk_program *p = plan->program;
  const bool uneven = hk_coll_uneven((hk_coll)p->coll);
  const hk_operand *o = hk_instr_operands(p, i);
  hk_step s = {.operands = to,
               .ndst = (uint8_t)i->ndst,
               .nsrc = (uint8_t)i->nsrc,
               .flags = i->flags & HK_INSTR_FINAL ? HK_MOVE_FINAL : 0,
               .fresh = -1,
               .moves = i->ndst && i->nsrc,
               .from = to + i->ndst};
  int links = 0;
  for (int k = 0; k < i->ndst + i->nsrc; k++) {
    to[k] = (hk_step_operand){.space = o[k].space, .block = hk_cursor_block(at, p, &o[k])};
    if (o[k].space == HK_SCRATCH) to[k].block = to[k].block + lane * p->scratch_blocks;
    if (o[k].space != HK_SCRATCH && uneven) to[k].block = hk_cursor_entry(at, p, &o[k]);
    if (o[k].space == HK_LINK) to[k].link = plan->links[hk_cursor_link(at, &o[k])];
    if (o[k].space == HK_IN && k >= i->ndst) s.fresh = (int8_t)(k - i->ndst);
    if (k < i->ndst && to[k].link) s.to_link = &to[k], links++;
    if (k < i->ndst && !to[k].link) s.to_memory = &to[k];
  }
  if (links && i->ndst == 1) s.flags |= HK_MOVE_SLOT;
  s.copies = i->nsrc == 1 && links <= 1 && i->ndst - links <= 1 && !hk_coll_reduces((hk_coll)p->coll);
  if (uneven) s.length = to[hk_uneven_operand(i, o) - o].block;
  s.skips_empty = uneven && hk_cursor_skips_empty(at, p, i);
  return s;
}

hk_steps *hk_steps_make(const hk_plan *plan) {
  const hk_program *p = plan->program;
  const hk_sizes one_wave = {.total = 1, .block_bytes = 1, .longest = 1, .chunk = 1};
  unsigned nsteps, noperands, n = 0;
  if (plan->proxied || plan->sums || plan->channels != 1 || p->nlanes > HK_STEP_LANES ||
      !steps_count(p, &nsteps, &noperands))
    return NULL;
  hk_steps *s = malloc(sizeof *s + nsteps * sizeof *s->step + noperands * sizeof(hk_step_operand));
  if (!s) return NULL;
  hk_step_operand *operands = (hk_step_operand *)(s->step + nsteps);
  s->reduces = hk_coll_reduces((hk_coll)p->coll);
  s->nlanes = (uint8_t)p->nlanes;
  s->live = 0;
  s->runs_ahead = s->lags = true;
  for (unsigned k = 0; k < p->nlanes; k++) {
    hk_cursor at;
    s->begin[k] = (uint16_t)n;
    bool more = hk_cursor_begin(&at, &hk_program_lanes(p)[k], 0, &one_wave);
    while (more) {
      const hk_instr *i = hk_cursor_move(&at, hk_program_instrs(p));
      s->step[n++] = steps_make_step(plan, k, &at, i, operands);
      for (int j = 0; j < i->nsrc; j++) s->runs_ahead = s->runs_ahead && !operands[i->ndst + j].link;
      for (int j = 0; j < i->ndst; j++) s->lags = s->lags && !operands[j].link;
      operands += i->ndst + i->nsrc;
      more = hk_cursor_next(&at, &one_wave, 1);
    }
    s->end[k] = (uint16_t)n;
    s->live += s->end[k] > s->begin[k];
  }
  return s;
}

/* What a step moves. Functions that take `uneven` are in line in two loops, with a constant for each. */
typedef struct steps_size {
  size_t bytes;
  uint32_t signature; /* of its slots */
} steps_size;

static inline __attribute__((always_inline)) steps_size steps_size_of(const hk_exec *x, const hk_step *s, bool uneven) {
  if (!uneven) return (steps_size){s->moves ? x->launch->block_bytes : 0, x->signature};
  const uint64_t length = x->launch->table[s->length].bytes;
  const bool pairs = hk_coll_pairs((hk_coll)x->plan->program->coll);
  return (steps_size){s->moves ? length : 0, pairs ? x->signature ^ hk_length_mark(length) : x->signature};
}

/* The first operand whose link is not ready; NULL if all are. */
static inline const hk_step_operand *steps_first_unready(const hk_step *s, size_t bytes) {
  const hk_step_operand *o = s->operands, *src = o + s->ndst, *end = src + s->nsrc;
  for (; o < src; o++)
    if (o->link && !hk_link_can_send(o->link, bytes)) return o;
  for (; o < end; o++)
    if (o->link && !hk_link_can_recv(o->link)) return o;
  return NULL;
}

static inline __attribute__((always_inline)) char *steps_address(const hk_exec *x, const hk_step_operand *o,
                                                                 bool uneven) {
  char *base = x->bases[o->space];
  if (uneven && o->space != HK_SCRATCH) return base + x->launch->table[o->block].at;
  if (__builtin_expect(o->block == 0, 1)) return base;
  size_t stride = o->space == HK_SCRATCH ? hk_scratch_stride(x->launch->chunk) : x->launch->block_bytes;
  return base + o->block * stride;
}

static __attribute__((noinline)) hk_status steps_bad_slot(hk_exec *x, const hk_step *s, const hk_step_operand *o,
                                                          size_t bytes) {
  if (x->launch->table) x->expected_length = x->launch->table[s->length].bytes;
  return hk_exec_bad_slot(x, o->link, hk_link_recv_slot(o->link), bytes);
}

/* The data of a source; NULL: see *rc. */
static inline __attribute__((always_inline)) const void *steps_source(hk_exec *x, const hk_step *s,
                                                                      const hk_step_operand *o, steps_size size,
                                                                      bool uneven, hk_status *rc) {
  if (!o->link) return steps_address(x, o, uneven);
  const hk_slot *slot = hk_link_recv_slot(o->link);
  if (__builtin_expect(slot->signature != size.signature || slot->bytes != size.bytes, 0)) {
    *rc = steps_bad_slot(x, s, o, size.bytes);
    return NULL;
  }
  const void *data = hk_link_recv_data(o->link);
  if (__builtin_expect(!data, 0)) {
    x->bad_peer = o->link->peer;
    *rc = HK_ERR_REMOTE;
  }
  return data;
}

static inline void steps_signal_all(const hk_step *s, steps_size size) {
  const hk_step_operand *o = s->operands, *src = o + s->ndst, *end = src + s->nsrc;
  for (; o < src; o++)
    if (o->link) hk_link_publish(o->link, (uint32_t)size.bytes, size.signature, 0);
  for (; o < end; o++)
    if (o->link) hk_link_release(o->link);
}

static inline __attribute__((always_inline)) bool steps_copy_ready(const hk_step *s, size_t bytes) {
  if (s->to_link && !hk_link_can_send(s->to_link->link, bytes)) return false;
  return !s->from->link || hk_link_can_recv(s->from->link);
}

static inline __attribute__((always_inline)) void steps_copy(void *dst, const void *src, size_t bytes, unsigned flags) {
  if (bytes <= HK_MOVE_TINY)
    hk_copy_tiny(dst, src, bytes);
  else
    hk_copy(dst, src, bytes, flags);
}

/* Copies one source unchanged, first to the peer, which may be waiting. Inlined where its size is known to be small,
 * because it shrinks to little code then. */
static inline __attribute__((always_inline)) hk_status steps_copy_step(hk_exec *x, const hk_step *s, steps_size size,
                                                                       bool uneven, bool *ran) {
  hk_status rc = HK_OK;
  *ran = steps_copy_ready(s, size.bytes);
  if (__builtin_expect(!*ran, 0)) return HK_OK;
  const void *src = steps_source(x, s, s->from, size, uneven, &rc);
  if (__builtin_expect(rc != HK_OK, 0)) return rc;
  if (s->to_link) {
    hk_link *l = s->to_link->link;
    steps_copy(hk_link_send_buffer(l, size.bytes), src, size.bytes, HK_MOVE_SLOT);
    hk_link_publish(l, (uint32_t)size.bytes, size.signature, 0);
    if (x->plan->steps->runs_ahead && size.bytes <= HK_SLOT_INLINE) hk_link_warm_early(l);
  }
  if (s->to_memory) steps_copy(steps_address(x, s->to_memory, uneven), src, size.bytes, 0);
  if (s->from->link) {
    hk_link_release(s->from->link);
    if (x->plan->steps->lags && size.bytes > HK_SLOT_INLINE) hk_link_expect(s->from->link, size.bytes);
  }
  return HK_OK;
}

static __attribute__((noinline)) hk_status steps_run_copy(hk_exec *x, const hk_step *s, steps_size size, bool *ran) {
  return steps_copy_step(x, s, size, false, ran);
}

/* As exec_run_move of the general executor. */
static inline __attribute__((always_inline)) hk_status steps_move_step(hk_exec *x, const hk_step *s, steps_size size,
                                                                       bool uneven, bool *ran) {
  const void *src[OPERANDS];
  void *dst[OPERANDS];
  hk_status rc = HK_OK;
  *ran = !steps_first_unready(s, size.bytes);
  if (!*ran) return HK_OK;
  for (unsigned k = 0; k < s->nsrc; k++) {
    src[k] = steps_source(x, s, &s->operands[s->ndst + k], size, uneven, &rc);
    if (__builtin_expect(rc != HK_OK, 0)) return rc;
  }
  for (unsigned k = 0; k < s->ndst; k++) {
    const hk_step_operand *o = &s->operands[k];
    dst[k] = o->link ? hk_link_send_buffer(o->link, size.bytes) : steps_address(x, o, uneven);
  }
  if (size.bytes)
    hk_move(x->plan->steps->reduces ? &x->launch->reducer : NULL, dst, s->ndst, src, s->nsrc, s->fresh, size.bytes,
            s->flags);
  steps_signal_all(s, size);
  return HK_OK;
}

static __attribute__((noinline)) hk_status steps_run_step(hk_exec *x, const hk_step *s, steps_size size, bool *ran) {
  return steps_move_step(x, s, size, false, ran);
}

static __attribute__((noinline)) hk_status steps_run_uneven(hk_exec *x, const hk_step *s, steps_size size, bool *ran) {
  return s->copies ? steps_copy_step(x, s, size, true, ran) : steps_move_step(x, s, size, true, ran);
}

static inline __attribute__((always_inline)) hk_status steps_run(hk_exec *x, bool uneven, bool *moved) {
  const hk_steps *s = x->plan->steps;
  for (unsigned k = 0; k < s->nlanes; k++) {
    unsigned at = x->at[k];
    const unsigned end = s->end[k];
    while (at != end) {
      const hk_step *step = &s->step[at];
      const steps_size size = steps_size_of(x, step, uneven);
      hk_status rc = HK_OK;
      bool ran = true;
      if (uneven)
        rc = step->skips_empty && !size.bytes ? HK_OK : steps_run_uneven(x, step, size, &ran);
      else if (!step->copies)
        rc = steps_run_step(x, step, size, &ran);
      else if (__builtin_expect(size.bytes <= HK_SLOT_INLINE, 1))
        rc = steps_copy_step(x, step, size, false, &ran);
      else
        rc = steps_run_copy(x, step, size, &ran);
      if (__builtin_expect(rc != HK_OK, 0)) return rc;
      if (!ran) break;
      *moved = true;
      x->at[k] = (uint16_t)++at;
      if (at == end) x->live--;
    }
  }
  return HK_OK;
}

hk_status hk_steps_run(hk_exec *x, bool *moved) { return steps_run(x, false, moved); }

hk_status hk_steps_run_uneven(hk_exec *x, bool *moved) { return steps_run(x, true, moved); }

int hk_steps_wait_for(const hk_exec *x, int *peers, int capacity) {
  const hk_steps *s = x->plan->steps;
  int n = 0;
  for (unsigned k = 0; k < s->nlanes && n < capacity; k++) {
    if (x->at[k] == s->end[k]) continue;
    const hk_step *step = &s->step[x->at[k]];
    const size_t bytes = steps_size_of(x, step, x->launch->table != NULL).bytes;
    const hk_step_operand *o = steps_first_unready(step, bytes);
    if (o) hk_exec_add_awaited(o->link, bytes, peers, &n, capacity);
  }
  return n;
}
