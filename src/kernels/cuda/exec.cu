/* SPDX-License-Identifier: Apache-2.0 */
/* The executor of programs on a GPU, the counterpart of kernels/exec.c, which describes the common behaviour. A block
 * of threads runs a lane from its first wave to its last. Its first warp waits and signals, a thread for each operand;
 * all threads move the data. */
#include <stdbool.h>
#include "../../program/cursor.h"
#include "in_switch.h"
#include "reduce.h"
#include "wait.h"

/* Data that a block reads often. It is in shared memory because device memory is slow, and an acquire empties the
 * cache. */
typedef struct hk_gpu_shared {
  hk_gpu_work work; /* the call; the members below replace some of its fields */
  /* the whole program, or only its hk_program if it is longer; then `window` and `operands` are used */
  uint64_t program[HK_GPU_PROGRAM / 8];
  hk_instr window[HK_GPU_WINDOW];       /* instructions from hk_gpu_lane.window on */
  hk_operand operands[HK_GPU_OPERANDS]; /* operands of an instruction that has them in the side table */
  /* the channel's links; if those are too many, the links of an instruction's operands */
  hk_gpu_link links[HK_GPU_LINKS];
  uint64_t done[HK_GPU_LINKS]; /* the counters of these links */
  uint64_t seen[HK_GPU_LINKS]; /* sending links: the head that was last read by an acquire */
  /* destinations: address at which the receiver reads the data itself; 0: it gets a copy */
  uint64_t refers[HK_GPU_OPERANDS];
  hk_gpu_move move;
  hk_gpu_move own;                   /* sum in the switch: the copy of this rank's part into its slot */
  const char *sum;                   /* that slot's multicast address */
  uint32_t whole;                    /* receive: the slot refers to the whole message */
  uint32_t found;                    /* hk_gpu_found bits of all operands of the instruction */
  hk_extent extents[HK_GPU_EXTENTS]; /* the table of work.sizes, if there is room */
} hk_gpu_shared;

/* The state of a lane, equal in every thread of the block. */
typedef struct hk_gpu_lane {
  const hk_program *program; /* in device memory, for the parts that are not in shared memory */
  hk_gpu_link *links;        /* the channel's links in device memory */
  char *scratch;
  hk_cursor at;
  uint32_t window; /* the first instruction in shared memory */
  uint32_t lane;
  uint32_t signature; /* in slots of the current instruction */
  bool any;           /* it has something to do */
  bool owed;          /* references were given out */
  bool whole;         /* the program is in shared memory */
  bool fits;          /* the channel's links are in shared memory */
} hk_gpu_lane;

enum { NO_WINDOW = 0x7fffffff };

/* Copies to shared memory: a multiple of 4 bytes, both sides 16-aligned. All loads are in flight at once if there is at
 * most one vector for each thread. */
HK_DEVICE void bring(void *to, const void *from, uint32_t bytes) {
  HK_NO_UNROLL
  for (uint32_t i = 16 * hk_thread(); i < bytes; i += 16 * hk_threads()) {
    uint32_t *w = (uint32_t *)((char *)to + i);
    if (bytes - i >= 16) {
      const hk_vec v = hk_load((const char *)from + i);
      for (unsigned k = 0; k < 4; k++) w[k] = v.w[k];
    } else {
      for (unsigned k = 0; k < (bytes - i) / 4; k++) w[k] = ((const uint32_t *)from)[i / 4 + k];
    }
  }
}

/* The accessors of lanes, links and so on work on it only if the lane has `whole`. */
HK_DEVICE const hk_program *program_of(const hk_gpu_shared *s) { return (const hk_program *)(const void *)s->program; }

/* The instruction at the lane's pc, from shared memory; the block fetches ahead when it leaves the window. */
HK_DEVICE const hk_instr *fetch(hk_gpu_lane *l, hk_gpu_shared *s) {
  if (l->whole) return hk_program_instrs(program_of(s)) + l->at.pc;
  if (l->at.pc - l->window >= HK_GPU_WINDOW) {
    hk_barrier(); /* no thread reads the old ones any more */
    l->window = l->at.pc;
    uint32_t n = l->at.end - l->at.pc < HK_GPU_WINDOW ? l->at.end - l->at.pc : HK_GPU_WINDOW;
    /* By words: a program's instructions are not aligned to more. */
    for (uint32_t i = hk_thread(); i < n * (sizeof(hk_instr) / 4); i += hk_threads())
      ((uint32_t *)s->window)[i] = ((const uint32_t *)(hk_program_instrs(l->program) + l->at.pc))[i];
    hk_barrier();
  }
  return &s->window[l->at.pc - l->window];
}
HK_DEVICE const hk_operand *operands_of(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_instr *i) {
  if (l->whole || !(i->flags & HK_INSTR_TABLE)) return hk_instr_operands(program_of(s), i);
  const hk_operand *from = hk_instr_operands(l->program, i);
  hk_barrier(); /* no thread reads the last instruction's operands any more */
  for (uint32_t k = hk_thread(); k < (uint32_t)i->ndst + i->nsrc; k += hk_threads()) s->operands[k] = from[k];
  hk_barrier();
  return s->operands;
}
HK_DEVICE unsigned lane_of_link(const hk_gpu_lane *l, const hk_gpu_shared *s, unsigned i) {
  if (l->whole) return hk_program_links(program_of(s))[i].lane;
  return hk_program_links(l->program)[i].lane;
}

/* Where a link of operand k is in shared memory. */
HK_DEVICE unsigned place_of(const hk_gpu_lane *l, const hk_operand *o, unsigned k) {
  return l->fits ? hk_cursor_link(&l->at, o) : k;
}
/* Loads an instruction's links if the channel's links do not fit. The first warp does it; each thread loads the link
 * for which it waits and signals. */
HK_DEVICE void bring_links(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_operand *o, unsigned n) {
  for (unsigned k = hk_thread(); k < n; k += HK_WARP) {
    if (o[k].space != HK_LINK) continue;
    s->links[k] = l->links[hk_cursor_link(&l->at, &o[k])];
    s->done[k] = *s->links[k].done;
    s->seen[k] = 0;
  }
  hk_warp_barrier();
}

HK_DEVICE_CALL char *user_address(const hk_gpu_lane *l, const hk_gpu_shared *s, const hk_operand *o) {
  uint64_t at = hk_cursor_at(&l->at, program_of(s), o, &s->work.sizes);
  switch (o->space) {
    case HK_IN: return (char *)s->work.in + at;
    case HK_OUT: return s->work.out + at;
    default: return l->scratch + at;
  }
}

/* ---- links ---- */

/* Memory to which slots may refer instead of holding copies. `seen`: the table of its addresses for other ranks. */
typedef struct hk_gpu_stable {
  const char *at; /* NULL: none */
  const int64_t *seen;
} hk_gpu_stable;

/* As stable_copy of exec.c: the user's memory with the same bytes, which does not change until the operation ends. */
HK_DEVICE hk_gpu_stable stable_copy(const hk_gpu_lane *l, const hk_gpu_shared *s, const hk_instr *i,
                                    const hk_operand *o, uint64_t bytes) {
  const hk_gpu_work *w = &s->work;
  hk_gpu_stable stable = {0, 0};
  if (w->proto != HK_PROTO_SIMPLE || bytes == 0 || (i->flags & HK_INSTR_COPY)) return stable;
  const hk_operand *from = &o[i->ndst];
  const hk_gpu_reducer *r = &w->reducer;
  bool changed = r->reduces && ((from->space == HK_IN && r->pre) || (r->post && (i->flags & HK_INSTR_FINAL)));
  if (i->nsrc != 1 || changed || (from->space != HK_IN && from->space != HK_OUT)) {
    from = 0;
    for (unsigned k = 0; k < i->ndst && !from; k++)
      if (o[k].space == HK_OUT) from = &o[k];
    if (!from) return stable;
  }
  stable.at = user_address(l, s, from);
  stable.seen = from->space == HK_IN ? w->seen_in : w->seen_out;
  return stable;
}
/* The value for `refers` of operand k. */
HK_DEVICE uint64_t reference(const hk_gpu_lane *l, const hk_gpu_shared *s, const hk_operand *o, unsigned k,
                             hk_gpu_stable stable, uint64_t bytes) {
  if (!stable.at || o->space != HK_LINK) return 0;
  const hk_gpu_link *link = &s->links[place_of(l, o, k)];
  uint64_t at = (uint64_t)(uintptr_t)stable.at;
  if (link->refs) return bytes >= link->refs ? at : 0;
  if (!stable.seen || bytes < HK_GPU_REF_MIN || stable.seen[link->peer] == HK_GPU_UNSEEN) return 0;
  return at + (uint64_t)stable.seen[link->peer];
}

/* Bits that `prepare` returns in addition to hk_gpu_lines. */
enum hk_gpu_found { FOUND_ODD = 8, FOUND_STOP = 16 }; /* the address is no multiple of 16; the block must end */
HK_DEVICE unsigned found_at(const hk_gpu_move *m, unsigned k) {
  const unsigned lines = m->lines[k] & LL_LINES ? (unsigned)LL_LINES
                                                : m->lines[k]; /* LL lines to a multicast address count as LL lines */
  return lines | ((uintptr_t)m->at[k] & 15 ? FOUND_ODD : 0);
}

/* Waits for operand k of the instruction and sets the address of its data. One thread calls it for an operand.
 * `transfer`: the first slot of a receive may refer to the whole message. */
HK_DEVICE_CALL unsigned prepare(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_operand *o, unsigned k, bool sends,
                                uint64_t bytes, bool stable, bool transfer) {
  hk_gpu_move *m = &s->move;
  const unsigned at = place_of(l, o, k);
  const uint64_t refers = sends && stable ? s->refers[k] : 0;
  if (sends && stable) { /* destinations by reference get no data, so the others move up */
    unsigned place = 0;
    for (unsigned j = 0; j < k; j++) place += !s->refers[j];
    k = place;
  }
  if (o->space != HK_LINK) {
    m->lines[k] = PLAIN;
    m->at[k] = user_address(l, s, o);
    return found_at(m, k);
  }
  const hk_gpu_link *link = &s->links[at];
  const hk_gpu_work *w = &s->work;
  uint64_t done = s->done[at], slot = done & (link->nslots - 1);
  uint32_t tag = tag_of(l->signature, bytes);
  if (refers) {
    if (!wait_credit(link, done, false, w->state, &s->seen[at])) return FOUND_STOP;
    refresh_lines(link, done);
    put_reference(link, done, refers);
    return PLAIN; /* another operand has place k */
  }
  unsigned lines = lines_for(link, w->proto, bytes);
  m->lines[k] = (uint8_t)(lines | (sends && (link->multi & HK_GPU_MULTI_DATA) ? EVERYWHERE : 0));
  m->flag[k] = lines == LL_LINES ? hk_gpu_line_flag(done + 1, tag) : (uint32_t)(done + 1);
  m->peer[k] = link->peer;
  m->at[k] = lines == LL_LINES     ? lines_of(link, slot)
             : lines == WIDE_LINES ? link->wide + slot * link->wide_bytes
                                   : data_of(link, slot, bytes);
  if (!sends && transfer) {
    const char *staged = m->at[k];
    const uint32_t whole = l->at.offset ? tag : tag_of(w->signature, w->sizes.longest);
    if (!wait_slot(link, done, tag, whole, w->state, &m->at[k])) return FOUND_STOP;
    s->whole = m->at[k] != staged;
    return found_at(m, k);
  }
  if (!sends) {
    if (lines != PLAIN && link->proxied) note_wait(link, done); /* before the first poll, which takes a round trip */
    /* for links of many ranks, prepare_together has waited */
    const bool waits = lines == PLAIN && !(link->multi & HK_GPU_MULTI_SUM);
    const bool here = !waits || wait_slot(link, done, tag, tag, w->state, &m->at[k]);
    return here ? found_at(m, k) : (unsigned)FOUND_STOP;
  }
  if (transfer && bytes > link->slot_bytes) { /* the program was built for a registration that no longer exists */
    report(w->state, link->peer, 0, tag);
    return FOUND_STOP;
  }
  if (!wait_credit(link, done, lines != PLAIN, w->state, &s->seen[at])) return FOUND_STOP;
  refresh_lines(link, done);
  return found_at(m, k);
}

/* The whole first warp waits for links that have many ranks at the other end. */
HK_DEVICE_CALL unsigned prepare_together(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_operand *o, unsigned ndst,
                                         unsigned n, uint64_t bytes) {
  bool good = true;
  for (unsigned k = 0; k < n; k++) {
    if (o[k].space != HK_LINK) continue;
    const unsigned at = place_of(l, &o[k], k);
    const hk_gpu_link *link = &s->links[at];
    const uint64_t done = s->done[at];
    if (!link->others) continue;
    if (k >= ndst) {
      good = good && wait_parts(link, done, tag_of(l->signature, bytes), s->work.state);
    } else if (done >= s->seen[at] + link->nslots) {
      good = good && wait_credits(link, done, s->work.state);
      hk_warp_barrier();                                           /* all threads have read `seen` */
      if (hk_thread() == 0) s->seen[at] = done + 1 - link->nslots; /* the value that every head has reached */
    }
  }
  const bool all = !hk_warp_any(!good);
  hk_warp_barrier(); /* passes what each thread has acquired to the thread that prepares the operand */
  return all ? 0 : FOUND_STOP;
}

/* True if the operand signals after plain accesses to the slot's data.  Lines need no order: see wait_credit. */
HK_DEVICE bool orders(const hk_gpu_shared *s, const hk_gpu_link *link, bool sends, uint64_t bytes) {
  return (sends || link->head) && lines_for(link, s->work.proto, bytes) == PLAIN;
}
/* Posts lines to the proxy; the length is in one more line. It orders nothing: each line has its flag, and the proxy
 * polls the others. litmus: proxied_lines_send, proxied_lines_late */
HK_DEVICE void post_lines(const hk_gpu_link *k, uint64_t done, uint32_t tag, uint64_t bytes) {
  const uint32_t number = (uint32_t)(done + 1);
  const hk_vec v = {{tag, number ^ HK_GPU_IN_LINES, (uint32_t)bytes, number}};
  hk_store_line(word_of(k, done), v);
}
/* Signals all operands after the data has moved; the first warp does it. One fence serves all of them, and words go
 * before heads, because a peer waits for them. litmus: step, reference, proxied_send, switch_sums, slot_before_line */
HK_DEVICE_CALL void finish(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_operand *o, unsigned ndst, unsigned n,
                           uint64_t bytes, bool stable, bool switched) {
  int plain = 0;
  for (unsigned k = hk_thread(); k < n; k += HK_WARP) {
    if (o[k].space != HK_LINK) continue;
    const unsigned at = place_of(l, &o[k], k);
    const hk_gpu_link *link = &s->links[at];
    const bool slot = orders(s, link, k < ndst, bytes);
    plain |= slot;
    if (k < ndst && link->proxied && slot)
      hk_store_relaxed(note_of(link, s->done[at]), (uint32_t)bytes); /* relaxed: the fence is after it */
  }
  if (switched) hk_multi_fence();     /* readers read multicast data by their own addresses */
  if (hk_warp_any(plain)) hk_fence(); /* data is stored before the words, and was read before the heads */
  for (unsigned k = hk_thread(); k < ndst; k += HK_WARP) {
    if (o[k].space != HK_LINK) continue;
    const unsigned at = place_of(l, &o[k], k);
    const hk_gpu_link *link = &s->links[at];
    uint64_t *done = &s->done[at];
    const uint32_t tag = tag_of(l->signature, bytes) ^ (stable && s->refers[k] ? BY_REFERENCE : 0);
    if (orders(s, link, true, bytes))
      post_signal(link, word_of(link, *done), (*done + 1) << 32 | tag);
    else if (link->proxied)
      post_lines(link, *done, tag, bytes);
    *done += 1;
  }
  for (unsigned k = hk_thread(); k < n; k += HK_WARP) {
    if (k < ndst || o[k].space != HK_LINK) continue;
    const unsigned at = place_of(l, &o[k], k);
    const hk_gpu_link *link = &s->links[at];
    uint64_t *done = &s->done[at];
    *done += 1;
    if (link->head) post_signal(link, link->head, *done);
  }
  for (unsigned k = hk_thread(); !l->fits && k < n; k += HK_WARP)
    if (o[k].space == HK_LINK) *s->links[k].done = s->done[k];
  hk_warp_barrier(); /* passes the counters to the thread that uses the link next */
}

/* ---- instructions ---- */

/* Parameters of the instruction's data movement. Every thread computes them. There may be many operands, so the first
 * warp has collected their properties in s->found, a thread for each. */
HK_DEVICE hk_gpu_shape shape_of(const hk_gpu_shared *s, const hk_instr *i, const hk_operand *o, uint64_t bytes,
                                bool stable) {
  hk_gpu_shape shape = {i->ndst, i->ndst, i->nsrc, -1, false, true, false, false, bytes};
  const hk_gpu_reducer *r = &s->work.reducer;
  for (unsigned k = 0; stable && k < i->ndst; k++) shape.ndst -= s->refers[k] != 0;
  for (unsigned k = 0; r->pre && k < i->nsrc; k++)
    if (o[i->ndst + k].space == HK_IN) shape.fresh = (int)k;
  shape.simple = !(s->found & (LL_LINES | WIDE_LINES | EVERYWHERE | FOUND_ODD));
  shape.wide = (s->found & WIDE_LINES) != 0;
  shape.switched = (s->found & EVERYWHERE) != 0;
  shape.divided = r->post && (i->flags & HK_INSTR_FINAL);
  return shape;
}
/* The first warp combines the bits that its threads have found. */
HK_DEVICE void publish_found(hk_gpu_shared *s, unsigned found) {
  unsigned all = 0;
  HK_UNROLL
  for (unsigned bit = LL_LINES; bit <= FOUND_ODD; bit *= 2)
    if (hk_warp_any((found & bit) != 0)) all |= bit;
  if (hk_thread() == 0) s->found = all;
}

/* If the switch makes the sum: the first link among the sources, whose slot represents the slots of all ranks; else
 * NULL. */
HK_DEVICE const hk_gpu_link *summed(const hk_gpu_lane *l, const hk_gpu_shared *s, const hk_instr *i,
                                    const hk_operand *o) {
  if (!(i->flags & HK_INSTR_IN_SWITCH) || !i->nsrc || !i->ndst) return 0;
  const unsigned k = i->ndst + (i->nsrc > 1 && o[i->ndst].space != HK_LINK);
  if (o[k].space != HK_LINK) return 0;
  const hk_gpu_link *link = &s->links[place_of(l, &o[k], k)];
  return i->nsrc > 1 || (link->multi & HK_GPU_MULTI_SUM) ? link : 0;
}
/* A thread of the first warp, which has the counters, prepares the copy of this rank's part into its own slot, unless
 * an earlier instruction has put it there. */
HK_DEVICE void prepare_own(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_instr *i, const hk_operand *o,
                           const hk_gpu_link *link) {
  const uint64_t slot = s->done[link - s->links] & (link->nslots - 1);
  unsigned k = i->ndst;
  s->sum = link->data + slot * link->slot_bytes;
  s->own.at[0] = 0;
  if (!link->own) return;
  while (o[k].space == HK_LINK) k++;
  s->own.lines[0] = s->own.lines[1] = PLAIN;
  s->own.at[0] = link->own + slot * link->slot_bytes;
  s->own.at[1] = user_address(l, s, &o[k]);
  s->own.reducer = s->move.reducer;
  s->own.state = s->move.state;
}
/* litmus: switch_given, switch_sums_again */
HK_DEVICE void reduce_in_switch(const hk_gpu_shared *s, const hk_gpu_shape *shape) {
  const uintptr_t low = (uintptr_t)s->own.at[0] | (uintptr_t)s->own.at[1];
  const hk_gpu_shape own = {1, 1, 1, s->own.reducer.pre ? 0 : -1, false, (low & 15) == 0, false, false, shape->bytes};
  if (!s->own.at[0])
    ; /* the part is in the slot already */
  else if (own.fresh == 0)
    (void)reduce_any(&s->own, &own); /* plain memory: nothing is waited for */
  else
    (void)copy_move(&s->own, &own);
  /* Makes this rank's part visible by its multicast address, and the others' parts, which were acquired before the
   * barrier. A fence by one warp between the two barriers is enough: it lies between every store and every load. */
  hk_barrier();
  if (hk_thread() < HK_WARP) hk_multi_fence();
  hk_barrier();
  add_in_switch(&s->move, shape, s->sum);
}

/* Runs the MOVE at the lane's pc; false if the block must end. */
HK_DEVICE bool run_move(hk_gpu_lane *l, hk_gpu_shared *s, const hk_instr *i, const bool transfer) {
  const hk_program *p = program_of(s);
  const hk_sizes *sizes = &s->work.sizes;
  const hk_operand *o = operands_of(l, s, i);
  unsigned ndst = i->ndst, nsrc = i->nsrc, n = ndst + nsrc;
  uint64_t bytes = hk_cursor_bytes(&l->at, p, i, o, sizes);
  if (!transfer && hk_cursor_skips(&l->at, p, i, sizes, bytes)) return true;
  if (!transfer && sizes->table && hk_coll_pairs((hk_coll)p->coll))
    l->signature = s->work.signature ^ hk_length_mark(hk_cursor_length(&l->at, p, i, o, sizes));
  if (!l->fits && hk_thread() < HK_WARP) bring_links(l, s, o, n);
  const hk_gpu_stable copy = stable_copy(l, s, i, o, bytes);
  const bool stable = copy.at != 0;
  if (stable && hk_thread() < HK_WARP) {
    for (unsigned k = hk_thread(); k < ndst; k += HK_WARP) s->refers[k] = reference(l, s, &o[k], k, copy, bytes);
    hk_warp_barrier();
  }
  unsigned found = 0;
  if (hk_thread() == 0) s->move.tag = tag_of(l->signature, bytes);
  const hk_gpu_link *sum = transfer ? 0 : summed(l, s, i, o);
  if (sum && hk_thread() == 0) prepare_own(l, s, i, o, sum);
  if (s->work.many && hk_thread() < HK_WARP) found = prepare_together(l, s, o, ndst, n, bytes);
  HK_NO_UNROLL
  for (unsigned k = hk_thread() < HK_WARP && !found ? hk_thread() : n; k < n; k += HK_WARP)
    found |= prepare(l, s, &o[k], k, k < ndst, bytes, stable, transfer);
  if (hk_thread() < HK_WARP) publish_found(s, found);
  if (hk_barrier_or((found & FOUND_STOP) != 0)) return false;
  if (transfer && s->whole) l->at.offset = bytes = sizes->longest; /* the last wave */
  /* `here`: this thread has received all that it waited for */
  bool here = true, switched = false;
  if (bytes) {
    hk_gpu_shape shape = shape_of(s, i, o, bytes, stable);
    l->owed |= shape.ndst < ndst;
    switched = shape.switched;
    if (shape.ndst == 0)
      ; /* all destinations are by reference */
    else if (transfer)
      here = copy_move(&s->move, &shape);
    else if (sum)
      reduce_in_switch(s, &shape);
    else if (s->work.reducer.reduces && (nsrc > 1 || shape.fresh >= 0 || shape.divided))
      here = reduce_any(&s->move, &shape);
    else if (shape.wide)
      here = copy_wide(&s->move, &shape);
    else if (shape.switched)
      copy_in_switch(&s->move, &shape);
    else
      here = copy_move(&s->move, &shape);
  }
  if (hk_barrier_or(!here)) return false; /* the data is incomplete: no signal, and the lane ends */
  if (hk_thread() < HK_WARP) finish(l, s, o, ndst, n, bytes, stable, sum || switched);
  return true;
}

/* Goes to the next instruction; false at the lane's end.  Not inlined, so that the lane lies in memory and leaves the
 * registers to the data movement. */
HK_DEVICE_CALL bool advance(hk_gpu_lane *l, const hk_gpu_work *w) {
  return hk_cursor_next(&l->at, &w->sizes, w->channels);
}

/* Begins block number `block` of the work s->work. Two round trips to memory: the data that is equal for all calls of
 * the plan, then the links' counters. */
HK_DEVICE hk_gpu_lane begin(unsigned block, hk_gpu_shared *s) {
  hk_gpu_lane l = {0};
  hk_gpu_work *w = &s->work;
  const unsigned channel = block / w->lanes;
  l.program = (const hk_program *)((const char *)w->program + (uint64_t)(channel % w->orders) * w->program_bytes);
  l.links = w->links + (uint64_t)channel * w->nlinks;
  l.whole = w->program_bytes && w->program_bytes <= HK_GPU_PROGRAM;
  l.fits = w->nlinks <= HK_GPU_LINKS;
  bring(s->program, l.program, l.whole ? w->program_bytes : (uint32_t)sizeof *l.program);
  if (l.fits) bring(s->links, l.links, w->nlinks * (uint32_t)sizeof *l.links);
  if (block == 0 && hk_thread() + 1 == hk_threads()) note_begin(w->state); /* this thread waits for no fence */
  if (hk_thread() == 0) {
    s->move.reducer = w->reducer;
    if (w->reducer.by_address) s->move.reducer.scalar = read_scalar(&w->reducer);
    s->move.state = w->state;
  }
  hk_barrier();
  const hk_program *p = program_of(s);
  l.lane = block % w->lanes;
  if (l.lane < p->nlanes) {
    const hk_lane lane = l.whole ? hk_program_lanes(p)[l.lane] : hk_program_lanes(l.program)[l.lane];
    l.any = hk_cursor_begin(&l.at, &lane, channel, &w->sizes);
  }
  l.scratch = w->scratch + (uint64_t)block * w->scratch_bytes;
  l.window = NO_WINDOW;
  l.signature = w->signature;
  const hk_extent *table = w->sizes.table;
  const uint32_t blocks = (uint32_t)p->in_blocks + p->out_blocks;
  const bool here = table && blocks <= HK_GPU_EXTENTS;
  for (unsigned i = hk_thread(); here && i < blocks; i += hk_threads()) s->extents[i] = table[i];
  for (unsigned i = hk_thread(); l.fits && i < p->nlinks; i += hk_threads()) {
    if (lane_of_link(&l, s, i) != l.lane) continue; /* other lanes own their links and may be writing counters back */
    const hk_gpu_link *k = &s->links[i];
    /* the link has one head; reading it by an acquire is valid for every protocol */
    const bool counts = k->sends && !k->others;
    /* litmus: credit_seen */
    const uint64_t seen = counts ? hk_load_acquire(k->head) : 0;
    s->done[i] = *k->done;
    s->seen[i] = seen;
  }
  if (here) {
    hk_barrier();
    if (hk_thread() == 0) w->sizes.table = s->extents;
  }
  hk_barrier();
  return l;
}

/* Waits until all references are returned: after the kernel's end the user may overwrite the memory. */
HK_DEVICE void await_owed(const hk_gpu_lane *l, hk_gpu_shared *s) {
  for (unsigned i = hk_thread(); i < program_of(s)->nlinks; i += hk_threads()) {
    const hk_gpu_link *k = l->fits ? &s->links[i] : &l->links[i];
    if (lane_of_link(l, s, i) != l->lane || !k->sends) continue;
    const uint64_t done = l->fits ? s->done[i] : *k->done;
    uint64_t seen = 0;
    /* waits for head = done: no slot is outstanding */
    if (done) wait_credit(k, done - 1 + k->nslots, false, s->work.state, &seen);
  }
}

/* Runs s->work. False if the kernel must end. `transfer` is a constant: sends and receives need only copies. */
HK_DEVICE bool run_block(unsigned block, hk_gpu_shared *s, const bool transfer) {
  hk_gpu_lane l = begin(block, s);
  bool going = l.any, failed = false;
  while (going) {
    const hk_instr *i = fetch(&l, s);
    if (i->op == HK_OP_REPEAT) {
      hk_cursor_enter(&l.at, i);
      continue;
    }
    failed = !run_move(&l, s, i, transfer);
    going = !failed && advance(&l, &s->work);
  }
  hk_barrier();
  if (l.owed && !failed) await_owed(&l, s);
  if (!l.fits || !l.any) return !failed;
  for (unsigned i = hk_thread(); i < program_of(s)->nlinks; i += hk_threads())
    if (lane_of_link(&l, s, i) == l.lane) *s->links[i].done = s->done[i];
  return !failed;
}

/* The one kernel for all collectives: each further kernel would contain its own copy of all data movement. */
HK_KERNEL void hk_run_batch(HK_PARAMS(hk_gpu_batch) batch) {
  HK_SHARED(hk_gpu_shared, s);
  uint32_t i = 0;
  if (!batch.works) return; /* here and below: an empty launch makes the driver load the kernel (gpu/code.c) */
  while (hk_block() >= batch.end[i]) i++;
  const unsigned block = hk_block() - (i ? batch.end[i - 1] : 0);
  do {
    hk_barrier(); /* no thread uses the last work in shared memory any more */
    if (hk_thread() == 0) s->work = batch.work[i];
    hk_barrier();
    if (!run_block(block, s, false)) return;
    i = s->work.next;
  } while (i);
}

/* Sends and receives: programs of one instruction.  A group may have any number of them: those that do not fit the
 * parameters are in a table in host memory. */
HK_KERNEL void hk_run_transfers(HK_PARAMS(hk_gpu_transfers) table) {
  HK_SHARED(hk_gpu_shared, s);
  const hk_gpu_work *works = table.work ? table.work : table.own;
  uint32_t i = hk_block();
  do {
    hk_barrier(); /* no thread uses the last work in shared memory any more */
    for (uint32_t k = hk_thread(); k < sizeof s->work / 4; k += hk_threads())
      ((uint32_t *)&s->work)[k] = ((const uint32_t *)&works[i])[k];
    if (hk_thread() == 0) s->whole = 0;
    hk_barrier();
    if (!s->work.program || !run_block(0, s, true)) return;
    i = s->work.next;
  } while (i);
}

#include "small.h"
