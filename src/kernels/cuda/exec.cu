/* SPDX-License-Identifier: Apache-2.0 */
/* The executor of programs on a GPU: the counterpart of kernels/exec.c, which describes what both do. A block of
 * threads runs a lane from its first wave to its last. Its first warp waits and signals, a thread for each operand; all
 * threads move the data. */
#include <stdbool.h>
#include "../../program/cursor.h"
#include "in_switch.h"
#include "reduce.h"

typedef struct hk_gpu_shared {
  hk_instr window[HK_GPU_WINDOW]; /* instructions from `first` of the lane on */
  uint64_t done[HK_GPU_LINKS];    /* the links' counters */
  hk_gpu_move move;
  hk_gpu_move own;  /* of what the switch adds up: this rank's part on its way into its slot */
  const char *sum;  /* that slot's multicast address */
  hk_gpu_work work; /* of a transfer: a copy, because the table is far */
  uint32_t whole;   /* of a receive: the slot refers to all of the message */
  hk_sizes sizes;   /* of an uneven collective, with its table here, if there is room: the host's memory is far */
  hk_extent extents[HK_GPU_EXTENTS];
} hk_gpu_shared;

/* Where a lane is: the same in every thread of the block. */
typedef struct hk_gpu_lane {
  const hk_gpu_work *work;
  const hk_program *program;
  hk_gpu_link *links; /* of the channel */
  char *scratch;
  const hk_sizes *sizes;
  hk_cursor at;
  uint32_t window; /* the first instruction in shared memory */
  uint32_t lane;
  uint32_t signature; /* in slots of the current instruction */
  bool any;           /* it has something to do */
  bool owed;          /* references were given out */
} hk_gpu_lane;

enum { NO_WINDOW = 0x7fffffff };

/* The instruction at the lane's pc, from shared memory; the block fetches ahead when it leaves the window. */
HK_DEVICE const hk_instr *fetch(hk_gpu_lane *l, hk_gpu_shared *s) {
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

HK_DEVICE uint64_t *counter(const hk_gpu_lane *l, hk_gpu_shared *s, unsigned link) {
  return l->program->nlinks <= HK_GPU_LINKS ? &s->done[link] : l->links[link].done;
}

HK_DEVICE char *user_address(const hk_gpu_lane *l, const hk_operand *o) {
  uint64_t at = hk_cursor_at(&l->at, l->program, o, l->sizes);
  switch (o->space) {
    case HK_IN: return (char *)l->work->in + at;
    case HK_OUT: return l->work->out + at;
    default: return l->scratch + at;
  }
}

/* ---- links ---- */

/* The lower half of a slot's word, beside its number. */
HK_DEVICE uint32_t tag_of(uint32_t signature, uint64_t bytes) { return signature ^ (uint32_t)bytes * 0x9e3779b1u; }
HK_DEVICE uint64_t *word_of(const hk_gpu_link *k, uint64_t done) {
  return k->word + (done & (k->nslots - 1)) * HK_GPU_WORD_STRIDE;
}
HK_DEVICE uint32_t *note_of(const hk_gpu_link *k, uint64_t done) { return (uint32_t *)(word_of(k, done) + 1); }
HK_DEVICE void post_signal(const hk_gpu_link *k, uint64_t *at, uint64_t value) {
  if (k->multi & HK_GPU_MULTI_SIGNAL)
    hk_multi_store_release(at, value); /* release: as the caller needs it */
  else
    hk_store_release(at, value); /* release: the same */
}
HK_DEVICE void publish(const hk_gpu_link *k, uint64_t done, uint32_t tag, uint64_t bytes) {
  if (k->proxied) hk_store_relaxed(note_of(k, done), (uint32_t)bytes); /* relaxed: the release below is after it */
  post_signal(k, word_of(k, done), (done + 1) << 32 | tag);            /* release: the data is there before the word */
}
/* Both ends get the same answer. */
HK_DEVICE unsigned lines_for(const hk_gpu_link *k, uint32_t proto, uint64_t bytes) {
  if (proto == HK_GPU_LL && k->lines && bytes > 0 && bytes <= HK_GPU_LL_MAX) return LL_LINES;
  if (proto == HK_GPU_LL128 && k->wide && bytes > 0 && bytes <= HK_GPU_LL128_CARRIES(k->wide_bytes)) return WIDE_LINES;
  return PLAIN;
}

HK_DEVICE bool wait_credit(const hk_gpu_link *k, uint64_t done, hk_gpu_state *state) {
  uint32_t polls = 0;
  for (uint32_t i = 0; i <= k->others; i++)
    while (done >= hk_load_acquire(k->head + i * HK_GPU_HEAD_STRIDE) + k->nslots)
      if (give_up(state, &polls)) return false;
  return true;
}

/* Of a tag: the slot holds an address. */
enum { BY_REFERENCE = 0x5bd1e995 };

/* Has the peer sent the slot in lines, although this call expects a word? Checked now and then during a wait. */
HK_DEVICE_CALL bool came_in_lines(const hk_gpu_link *k, uint64_t done, uint32_t *found) {
  const uint64_t slot = done & (k->nslots - 1);
  const uint32_t number = (uint32_t)(done + 1);
  hk_vec v;
  if (k->lines) {
    v = hk_load_line(k->lines + slot * 2 * HK_GPU_LL_MAX);
    *found = v.w[1];
    if (line_flag(number, 0) == (v.w[1] & line_flag(~0u, 0))) return true;
  }
  if (!k->wide) return false;
  v = hk_load_line(k->wide + slot * k->wide_bytes + 112);
  *found = v.w[3];
  return v.w[2] == number;
}

/* Waits for the slot; *data becomes the address of its data. `whole`: the tag of a reference of another length. */
HK_DEVICE bool wait_slot(const hk_gpu_link *k, uint64_t done, uint32_t tag, uint32_t whole, hk_gpu_state *state,
                         char **data) {
  uint32_t polls = 0, found;
  const uint64_t *at = word_of(k, done);
  uint64_t word = hk_load_acquire(at);
  if (k->proxied && (uint32_t)(word >> 32) != (uint32_t)(done + 1))
    hk_store_relaxed(note_of(k, done), (uint32_t)(done + 1)); /* relaxed: it orders nothing */
  while ((uint32_t)(word >> 32) != (uint32_t)(done + 1)) {
    if (give_up(state, &polls)) return false;
    if (polls % POLLS_BETWEEN_LOOKS == 0 && came_in_lines(k, done, &found)) {
      report(state, k->peer, found, tag);
      return false;
    }
    word = hk_load_acquire(at);
  }
  *data = k->data + (done & (k->nslots - 1)) * k->slot_bytes;
  if ((uint32_t)word == tag) return true;
  if ((uint32_t)word == (whole ^ BY_REFERENCE)) {
    hk_vec v = hk_load(*data);
    *data = (char *)(uintptr_t)(v.w[0] | (uint64_t)v.w[1] << 32);
    return true;
  }
  report(state, k->peer, (uint32_t)word, tag);
  return false;
}

/* Before the numbers in flags wrap round, every line gets a new one, so that an old flag never matches. LL's flags have
 * fewer bits; each is written anew four times in a round. */
enum { LL_NUMBER_BITS = 32 - HK_GPU_LL_TAG_BITS };
HK_DEVICE void refresh_lines(const hk_gpu_link *k, uint64_t done) {
  const uint64_t slot = done & (k->nslots - 1), number = done + 1;
  if (k->lines && (number & ((1u << (LL_NUMBER_BITS - 2)) - 1)) < k->nslots) {
    uint32_t old = line_flag(done, 0); /* the number before this slot's: not waited for any more */
    hk_vec v = {{old, old, old, old}};
    for (uint32_t i = 0; i < 2 * HK_GPU_LL_MAX; i += 16) hk_store_line(k->lines + slot * 2 * HK_GPU_LL_MAX + i, v);
  }
  if (k->wide && (number & 0x3fffffffu) < k->nslots) {
    uint32_t old = (uint32_t)done;
    hk_vec v = {{old, old, old, old}};
    for (uint32_t i = 112; i < k->wide_bytes; i += 128) hk_store_line(k->wide + slot * k->wide_bytes + i, v);
  }
}

/* After the wait for the credit, before the word. */
HK_DEVICE void put_reference(const hk_gpu_link *k, uint64_t done, uint64_t at) {
  hk_vec v = {{(uint32_t)at, (uint32_t)(at >> 32), 0, 0}};
  hk_store(k->data + (done & (k->nslots - 1)) * k->slot_bytes, v);
}

/* Memory that links may point to instead of getting copies, and how others see it. */
typedef struct hk_gpu_stable {
  const char *at; /* NULL: none */
  const int64_t *seen;
} hk_gpu_stable;

/* As in the host's executor: the user's memory that holds the same bytes and does not change until the operation
 * ends. */
HK_DEVICE hk_gpu_stable stable_copy(const hk_gpu_lane *l, const hk_instr *i, const hk_operand *o, uint64_t bytes) {
  const hk_gpu_work *w = l->work;
  hk_gpu_stable s = {0, 0};
  if (w->proto != HK_GPU_SIMPLE || bytes == 0 || (i->flags & HK_INSTR_COPY)) return s;
  const hk_operand *from = &o[i->ndst];
  const hk_gpu_reducer *r = &w->reducer;
  bool changed = r->reduces && ((from->space == HK_IN && r->pre) || (r->post && (i->flags & HK_INSTR_FINAL)));
  if (i->nsrc != 1 || changed || (from->space != HK_IN && from->space != HK_OUT)) {
    from = 0;
    for (unsigned k = 0; k < i->ndst && !from; k++)
      if (o[k].space == HK_OUT) from = &o[k];
    if (!from) return s;
  }
  s.at = user_address(l, from);
  s.seen = from->space == HK_IN ? w->seen_in : w->seen_out;
  return s;
}
/* The address at which the receiver of link operand `o` reads the memory itself; 0: it gets a copy. */
HK_DEVICE uint64_t reference(const hk_gpu_lane *l, const hk_operand *o, hk_gpu_stable stable, uint64_t bytes) {
  if (!stable.at || o->space != HK_LINK) return 0;
  const hk_gpu_link *k = &l->links[hk_cursor_link(&l->at, o)];
  uint64_t at = (uint64_t)(uintptr_t)stable.at;
  if (k->refs) return bytes >= k->refs ? at : 0;
  if (!stable.seen || bytes < HK_GPU_REF_MIN || stable.seen[k->peer] == HK_GPU_UNSEEN) return 0;
  return at + (uint64_t)stable.seen[k->peer];
}
HK_DEVICE bool by_reference(const hk_gpu_lane *l, const hk_operand *o, hk_gpu_stable stable, uint64_t bytes) {
  return reference(l, o, stable, bytes) != 0;
}

/* Waits for operand k of the instruction and sets the address of its data; the caller's thread does it alone.
 * `transfer`: a receive's first slot may refer to all of the message, whose size the sender chooses. */
HK_DEVICE bool prepare(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_operand *o, unsigned k, bool sends,
                       uint64_t bytes, hk_gpu_stable stable, const bool transfer) {
  hk_gpu_move *m = &s->move;
  const hk_operand *first = o - k;
  if (sends && stable.at) { /* those that go by reference get no data: the others close up */
    unsigned place = 0;
    for (unsigned j = 0; j < k; j++) place += !by_reference(l, &first[j], stable, bytes);
    k = place;
  }
  if (o->space != HK_LINK) {
    m->lines[k] = PLAIN;
    m->at[k] = user_address(l, o);
    return true;
  }
  unsigned index = hk_cursor_link(&l->at, o);
  const hk_gpu_link *link = &l->links[index];
  const hk_gpu_work *w = l->work;
  uint64_t done = *counter(l, s, index), slot = done & (link->nslots - 1);
  uint32_t tag = tag_of(l->signature, bytes);
  if (sends && by_reference(l, o, stable, bytes)) {
    if (!wait_credit(link, done, w->state)) return false;
    refresh_lines(link, done);
    put_reference(link, done, reference(l, o, stable, bytes));
    return true; /* place k is another's */
  }
  unsigned lines = lines_for(link, w->proto, bytes);
  m->lines[k] = sends && (link->multi & HK_GPU_MULTI_DATA) ? (uint8_t)EVERYWHERE : (uint8_t)lines;
  m->flag[k] = lines == LL_LINES ? line_flag(done + 1, tag) : (uint32_t)(done + 1);
  m->peer[k] = link->peer;
  m->at[k] = lines == LL_LINES     ? link->lines + slot * 2 * HK_GPU_LL_MAX
             : lines == WIDE_LINES ? link->wide + slot * link->wide_bytes
                                   : link->data + slot * link->slot_bytes;
  if (!sends && transfer) {
    const char *staged = m->at[k];
    const uint32_t whole = l->at.offset ? tag : tag_of(w->signature, w->sizes.longest);
    if (!wait_slot(link, done, tag, whole, w->state, &m->at[k])) return false;
    s->whole = m->at[k] != staged;
    return true;
  }
  if (!sends) return lines != PLAIN || wait_slot(link, done, tag, tag, w->state, &m->at[k]);
  if (transfer && bytes > link->slot_bytes) { /* the registration that it counts on is gone */
    report(w->state, link->peer, 0, tag);
    return false;
  }
  if (!wait_credit(link, done, w->state)) return false;
  refresh_lines(link, done);
  return true;
}

/* Signals operand k after the data has moved. */
HK_DEVICE void finish(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_operand *o, bool sends, uint64_t bytes,
                      hk_gpu_stable stable) {
  if (o->space != HK_LINK) return;
  unsigned index = hk_cursor_link(&l->at, o);
  const hk_gpu_link *link = &l->links[index];
  uint64_t *done = counter(l, s, index);
  uint32_t tag = tag_of(l->signature, bytes) ^ (by_reference(l, o, stable, bytes) ? BY_REFERENCE : 0);
  if (!sends && link->head)
    post_signal(link, link->head, *done + 1); /* release: our reads of the slot are over */
  else if (sends && lines_for(link, l->work->proto, bytes) == PLAIN)
    publish(link, *done, tag, bytes);
  *done += 1;
}

/* ---- instructions ---- */

/* What the data movement needs to know of the instruction. */
HK_DEVICE hk_gpu_shape shape_of(const hk_gpu_lane *l, const hk_gpu_shared *s, const hk_instr *i, const hk_operand *o,
                                uint64_t bytes, hk_gpu_stable stable) {
  hk_gpu_shape shape = {0, i->ndst, i->nsrc, -1, false, true, false, false, bytes};
  uintptr_t low = 0;
  unsigned lines = 0;
  for (unsigned k = 0; k < i->ndst; k++) shape.ndst += !by_reference(l, &o[k], stable, bytes);
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (k >= shape.ndst && k < i->ndst) continue;
    low |= (uintptr_t)s->move.at[k];
    lines |= s->move.lines[k];
    if (k >= i->ndst && o[k].space == HK_IN) shape.fresh = (int)(k - i->ndst);
  }
  shape.simple = !lines && (low & 15) == 0;
  shape.wide = (lines & WIDE_LINES) != 0;
  shape.switched = (lines & EVERYWHERE) != 0;
  const hk_gpu_reducer *r = &l->work->reducer;
  if (!r->pre) shape.fresh = -1;
  shape.divided = r->post && (i->flags & HK_INSTR_FINAL);
  return shape;
}

/* If the switch adds: the first link among the sources, whose slot represents those of all ranks; else NULL. */
HK_DEVICE const hk_gpu_link *summed(const hk_gpu_lane *l, const hk_instr *i, const hk_operand *o) {
  if (!(i->flags & HK_INSTR_IN_SWITCH) || i->nsrc < 2 || !i->ndst) return 0;
  const unsigned k = i->ndst + (o[i->ndst].space != HK_LINK);
  return &l->links[hk_cursor_link(&l->at, &o[k])];
}
/* By a thread of the first warp, which has the counters: this rank's part goes into its own slot first. */
HK_DEVICE void prepare_own(const hk_gpu_lane *l, hk_gpu_shared *s, const hk_instr *i, const hk_operand *o,
                           const hk_gpu_link *link) {
  const uint64_t slot = *counter(l, s, (unsigned)(link - l->links)) & (link->nslots - 1);
  unsigned k = i->ndst;
  while (o[k].space == HK_LINK) k++;
  s->sum = link->data + slot * link->slot_bytes;
  s->own.lines[0] = s->own.lines[1] = PLAIN;
  s->own.at[0] = link->own + slot * link->slot_bytes;
  s->own.at[1] = user_address(l, &o[k]);
  s->own.reducer = s->move.reducer;
  s->own.state = s->move.state;
}
HK_DEVICE void reduce_in_switch(const hk_gpu_shared *s, const hk_gpu_shape *shape) {
  const uintptr_t low = (uintptr_t)s->own.at[0] | (uintptr_t)s->own.at[1];
  const hk_gpu_shape own = {1, 1, 1, s->own.reducer.pre ? 0 : -1, false, (low & 15) == 0, false, false, shape->bytes};
  if (own.fresh == 0)
    (void)reduce_any(&s->own, &own); /* plain memory: nothing is waited for */
  else
    (void)copy_move(&s->own, &own);
  hk_barrier();     /* all of our part is there ... */
  hk_multi_fence(); /* ... by its other address, too; what the others have sent was acquired ahead of the barrier */
  add_in_switch(&s->move, shape, s->sum);
}

/* Runs the MOVE at the lane's pc; false if the block is to end. */
HK_DEVICE bool run_move(hk_gpu_lane *l, hk_gpu_shared *s, const hk_instr *i, const bool transfer) {
  const hk_operand *o = hk_instr_operands(l->program, i);
  unsigned ndst = i->ndst, nsrc = i->nsrc, n = ndst + nsrc;
  uint64_t bytes = hk_cursor_bytes(&l->at, l->program, i, o, l->sizes);
  if (!transfer && hk_cursor_skips(&l->at, l->sizes, bytes)) return true;
  if (!transfer && l->sizes->table && hk_coll_pairs((hk_coll)l->program->coll))
    l->signature = l->work->signature ^ hk_length_mark(hk_cursor_length(&l->at, l->program, i, o, l->sizes));
  hk_gpu_stable stable = stable_copy(l, i, o, bytes);
  int stop = 0;
  if (hk_thread() == 0) s->move.tag = tag_of(l->signature, bytes);
  const hk_gpu_link *sum = transfer ? 0 : summed(l, i, o);
  if (sum && hk_thread() == 0) prepare_own(l, s, i, o, sum);
  if (hk_thread() < HK_WARP)
    for (unsigned k = hk_thread(); k < n; k += HK_WARP)
      stop |= !prepare(l, s, &o[k], k, k < ndst, bytes, stable, transfer);
  if (hk_barrier_or(stop)) return false;
  if (transfer && s->whole) l->at.offset = bytes = l->work->sizes.longest; /* the last wave */
  bool here = true;                                                        /* all that this thread waited for */
  if (bytes) {
    hk_gpu_shape shape = shape_of(l, s, i, o, bytes, stable);
    l->owed |= shape.ndst < ndst;
    if (shape.ndst == 0)
      ; /* all by reference */
    else if (transfer)
      here = copy_move(&s->move, &shape);
    else if (sum)
      reduce_in_switch(s, &shape);
    else if (l->work->reducer.reduces && (nsrc > 1 || shape.fresh >= 0 || shape.divided))
      here = reduce_any(&s->move, &shape);
    else if (shape.wide)
      here = copy_wide(&s->move, &shape);
    else if (shape.switched)
      copy_in_switch(&s->move, &shape);
    else
      here = copy_move(&s->move, &shape);
  }
  if (hk_barrier_or(!here)) return false; /* the data is not whole: nothing is signalled, and the lane ends */
  if (hk_thread() < HK_WARP) {
    for (unsigned k = hk_thread(); k < n; k += HK_WARP) finish(l, s, &o[k], k < ndst, bytes, stable);
    hk_warp_barrier(); /* the counters, for whichever thread has the link next */
  }
  return true;
}

/* To the next instruction; false at the lane's end.  A call, so that the lane lies in memory: what it would have of
 * registers, all data movement would lack. */
HK_DEVICE_CALL bool advance(hk_gpu_lane *l) { return hk_cursor_next(&l->at, l->sizes, l->work->channels); }

/* The scalar of premulsum as the host would have given it. */
HK_DEVICE uint64_t read_scalar(const hk_gpu_reducer *r) {
  const uint8_t *from = (const uint8_t *)(uintptr_t)r->scalar;
  uint64_t bits = 0;
  for (unsigned i = 0; i < r->elem_bytes; i++) bits |= (uint64_t)from[i] << 8 * i;
  switch (r->dtype) {
    case T_I8: return widen(T_I8, (uint32_t)bits);
    case T_F16: return widen(T_F16, (uint32_t)bits);
    case T_BF16: return widen(T_BF16, (uint32_t)bits);
    case T_E4M3: return widen(T_E4M3, (uint32_t)bits);
    case T_E5M2: return widen(T_E5M2, (uint32_t)bits);
    default: return bits;
  }
}

/* `block`: of the work's blocks. */
HK_DEVICE hk_gpu_lane begin(const hk_gpu_work *w, unsigned block, hk_gpu_shared *s) {
  hk_gpu_lane l = {0};
  unsigned channel = block / w->lanes;
  const hk_program *p =
      (const hk_program *)((const char *)w->program + (uint64_t)(channel % w->orders) * w->program_bytes);
  l.work = w;
  l.program = p;
  l.lane = block % w->lanes;
  l.any = l.lane < p->nlanes && hk_cursor_begin(&l.at, &hk_program_lanes(p)[l.lane], channel, &w->sizes);
  l.links = w->links + (uint64_t)channel * w->nlinks;
  l.scratch = w->scratch + (uint64_t)block * w->scratch_bytes;
  l.window = NO_WINDOW;
  l.signature = w->signature;
  l.sizes = &w->sizes;
  const uint32_t blocks = (uint32_t)p->in_blocks + p->out_blocks;
  if (w->sizes.table && blocks <= HK_GPU_EXTENTS) {
    for (unsigned i = hk_thread(); i < blocks; i += hk_threads()) s->extents[i] = w->sizes.table[i];
    if (hk_thread() == 0) {
      s->sizes = w->sizes;
      s->sizes.table = s->extents;
    }
    l.sizes = &s->sizes;
  }
  const hk_link_need *needs = hk_program_links(p);
  if (p->nlinks <= HK_GPU_LINKS) /* the other lanes' links are theirs: they may be writing their counters back */
    for (unsigned i = hk_thread(); i < p->nlinks; i += hk_threads())
      if (needs[i].lane == l.lane) s->done[i] = *l.links[i].done;
  if (hk_thread() == 0) {
    s->move.reducer = w->reducer;
    if (w->reducer.by_address) s->move.reducer.scalar = read_scalar(&w->reducer);
    s->move.state = w->state;
  }
  hk_barrier();
  return l;
}

/* The user may write what was given out as soon as the kernel has ended: all must have come back. */
HK_DEVICE void await_owed(const hk_gpu_lane *l, hk_gpu_shared *s) {
  const hk_link_need *needs = hk_program_links(l->program);
  for (unsigned i = hk_thread(); i < l->program->nlinks; i += hk_threads()) {
    const hk_gpu_link *k = &l->links[i];
    if (needs[i].lane != l->lane || !k->sends || *counter(l, s, i) == 0) continue;
    wait_credit(k, *counter(l, s, i) - 1 + k->nslots, l->work->state); /* head = done: nothing is on its way */
  }
}

/* False if the kernel is to end. `transfer` is a constant: sends and receives need no data movement but a copy. */
HK_DEVICE bool run_block(const hk_gpu_work *work, unsigned block, hk_gpu_shared *s, const bool transfer) {
  hk_gpu_lane l = begin(work, block, s);
  bool going = l.any, failed = false;
  while (going) {
    const hk_instr *i = fetch(&l, s);
    if (i->op == HK_OP_REPEAT) {
      hk_cursor_enter(&l.at, i);
      continue;
    }
    failed = !run_move(&l, s, i, transfer);
    going = !failed && advance(&l);
  }
  hk_barrier();
  if (l.owed && !failed) await_owed(&l, s);
  if (hk_thread() == 0 && block == 0) hk_store_relaxed(&work->state->ended, 1); /* relaxed: it orders nothing */
  if (l.program->nlinks > HK_GPU_LINKS || !l.any) return !failed;
  const hk_link_need *needs = hk_program_links(l.program);
  for (unsigned i = hk_thread(); i < l.program->nlinks; i += hk_threads())
    if (needs[i].lane == l.lane) *l.links[i].done = s->done[i];
  return !failed;
}

/* The only kernel that runs collectives: each would have its own copy of all data movement. */
HK_KERNEL void hk_run_batch(HK_PARAMS(hk_gpu_batch) batch) {
  HK_SHARED(hk_gpu_shared, s);
  uint32_t i = 0;
  while (hk_block() >= batch.end[i]) i++;
  const unsigned block = hk_block() - (i ? batch.end[i - 1] : 0);
  while (run_block(&batch.work[i], block, s, false) && (i = batch.work[i].next) != 0)
    hk_barrier(); /* no thread uses what the last one left in shared memory */
}

/* Sends and receives: programs of one instruction.  A group may have any number of them: those that do not fit the
 * parameters are in a table in host memory. */
HK_KERNEL void hk_run_transfers(HK_PARAMS(hk_gpu_transfers) table) {
  HK_SHARED(hk_gpu_shared, s);
  const hk_gpu_work *works = table.work ? table.work : table.own;
  uint32_t i = hk_block();
  do {
    hk_barrier(); /* no thread uses what the last one left in shared memory */
    for (uint32_t k = hk_thread(); k < sizeof s->work / 4; k += hk_threads())
      ((uint32_t *)&s->work)[k] = ((const uint32_t *)&works[i])[k];
    if (hk_thread() == 0) s->whole = 0;
    hk_barrier();
    if (!run_block(&s->work, 0, s, true)) return;
    i = s->work.next;
  } while (i);
}
