/* SPDX-License-Identifier: Apache-2.0 */
/* One schedule: each ready thread runs until it blocks on a FIFO.  Lanes share nothing but FIFOs and (checked by
 * verify_hazard.c) properly ordered output blocks, so the result for this schedule holds for all schedules. */
#include "verify_internal.h"

/* The output block that is the same memory as an input block in place; -1: none. */
static int verify_run_alias(const hk_verifier *v, int rank, unsigned block) {
  const hk_program *p = v->programs[rank];
  return v->options.in_place ? hk_program_alias(p, rank, (int)block) : -1;
}

static void verify_run_make_ready(hk_verifier *v, uint32_t thread) {
  v->threads[thread].state = HK_THREAD_READY;
  v->queue[(v->queue_head + v->queue_count++) % v->nthreads] = thread;
}

/* ---- one instruction ---- */

typedef struct step {
  hk_verifier *v;
  hk_thread *t;
  const hk_instr *i;
  const hk_operand *dst, *src;
} step;

static unsigned verify_run_block_of(const step *s, const hk_operand *o) {
  return hk_cursor_block(&s->t->at, s->t->program, o);
}
static uint32_t verify_run_end_of(const step *s, const hk_operand *o) {
  return s->t->ends[hk_cursor_link(&s->t->at, o)];
}

static bool verify_run_can_send(const hk_verifier *v, const hk_channel *c) {
  if (hk_channel_in_rounds(c)) return c->sent - c->summed * c->in_each < c->capacity;
  if (c->sent < c->capacity) return true;
  if (c->nreaders == 1) return c->sent - v->readers[c->first_reader].consumed < c->capacity;
  return v->readers_left[c->slot_at + c->sent % c->capacity] == 0;
}

/* True if all link operands are ready; a thread that resumes does not check again the operands that it found ready. */
static bool verify_run_all_ready(const step *s) {
  hk_thread *t = s->t;
  unsigned n = (unsigned)s->i->ndst + s->i->nsrc;
  for (; t->scan < n; t->scan++) {
    const hk_operand *o = &s->dst[t->scan];
    if (o->space != HK_LINK) continue;
    uint32_t end = verify_run_end_of(s, o);
    t->waits_to_send = t->scan < s->i->ndst;
    const hk_reader *r = t->waits_to_send ? NULL : &s->v->readers[end];
    if (r ? hk_channel_readable(&s->v->channels[r->channel]) > r->consumed
          : verify_run_can_send(s->v, &s->v->channels[end]))
      continue;
    t->waits_for = end;
    t->state = HK_THREAD_BLOCKED;
    return false;
  }
  return true;
}

static void verify_run_wake_readers(hk_verifier *v, const hk_channel *c) {
  for (uint32_t r = c->first_reader; r < c->first_reader + c->nreaders; r++) {
    const hk_thread *t = &v->threads[v->readers[r].thread];
    if (t->state == HK_THREAD_BLOCKED && !t->waits_to_send && t->waits_for == r)
      verify_run_make_ready(v, v->readers[r].thread);
  }
}

static hk_status verify_run_add_source(const step *s, hk_value *sum, hk_value x) {
  hk_verifier *v = s->v;
  char text[HK_VALUE_TEXT];
  if (hk_value_is_final(*sum) || hk_value_is_final(x))
    return hk_fault_here(v, s->t, "it reduces a value that is final already: %s",
                         hk_value_text(v, hk_value_is_final(x) ? x : *sum, text));
  if (hk_value_block(*sum) != hk_value_block(x))
    return hk_fault_here(v, s->t, "it reduces block %u with block %u", hk_value_block(*sum), hk_value_block(x));
  int twice;
  *sum = hk_value_add(&v->sets, *sum, x, &twice);
  if (twice >= 0)
    return hk_fault_here(v, s->t, "rank %d's contribution to block %u comes in twice", twice, hk_value_block(x));
  return hk_value_kind(*sum) == HK_VALUE_NONE ? hk_fault_memory(v) : HK_OK;
}

/* True if all ranks of the group have sent their parts of the next round and read the last round. */
static bool verify_run_round_is_due(const hk_verifier *v, const hk_channel *first) {
  const hk_channel *c = first;
  do {
    if (c->sent < (first->summed + 1) * c->in_each) return false;
    if (v->readers[c->first_reader].consumed < first->summed * c->out_each) return false;
    c = &v->channels[c->next];
  } while (c != first);
  return true;
}

/* One slot that a gather or a scatter makes for the reader of channel `to`: slot j of its round. */
static hk_status verify_run_make_slot(const step *s, const hk_channel *to, uint32_t j, hk_value *out) {
  hk_verifier *v = s->v;
  const hk_channel *c = to;
  const bool scatters = to->in_each > 1;
  const uint32_t n = scatters ? to->in_each : to->out_each; /* ranks of the group */
  *out = HK_VALUE_NONE;
  do {
    uint32_t number = (c->number + n - 1) % n; /* the sender's number: its reader has the next number */
    size_t from = c->slot_at + (scatters ? to->number : c->summed % c->capacity);
    hk_value x = v->slots[from];
    if (hk_value_kind(x) < HK_VALUE_LEAF)
      return hk_fault_here(v, s->t, "the network moves an empty slot in round %u of its links", c->summed);
    if (scatters || number == j) {
      hk_value_keep(&v->sets, x);
      if (hk_value_kind(*out) == HK_VALUE_NONE) {
        *out = x;
      } else if (hk_value_link_block(x) != hk_value_link_block(*out)) {
        return hk_fault_here(v, s->t, "the network adds block %u to block %u: round %u of its links",
                             hk_value_link_block(x), hk_value_link_block(*out), c->summed);
      } else {
        unsigned block = hk_value_link_block(x);
        HK_OR_RETURN(verify_run_add_source(s, out, x));
        *out = hk_value_sent_as(*out, block);
      }
    }
    c = &v->channels[c->next];
  } while (c != to);
  return HK_OK;
}

/* Makes the next round of the group's gathers or scatters, if it is due. */
static hk_status verify_run_make_round(const step *s, uint32_t at) {
  hk_verifier *v = s->v;
  hk_channel *first = &v->channels[at], *c = first;
  if (!verify_run_round_is_due(v, first)) return HK_OK;
  do {
    for (uint32_t j = 0; j < c->out_each; j++) HK_OR_RETURN(verify_run_make_slot(s, c, j, &v->slots[c->made_at + j]));
    c = &v->channels[c->next];
  } while (c != first);
  do {
    for (uint32_t k = 0; k < c->in_each; k++) {
      hk_value *slot = &v->slots[c->slot_at + (c->in_each > 1 ? k : c->summed % c->capacity)];
      hk_value_drop(&v->sets, *slot);
      *slot = HK_VALUE_NONE;
    }
    c->summed++;
    verify_run_wake_readers(v, c);
    const hk_thread *t = &v->threads[c->thread];
    if (t->state == HK_THREAD_BLOCKED && t->waits_to_send && t->waits_for == (uint32_t)(c - v->channels))
      verify_run_make_ready(v, c->thread);
    c = &v->channels[c->next];
  } while (c != first);
  return HK_OK;
}

static hk_status verify_run_receive(const step *s, const hk_operand *o, hk_value *out) {
  hk_verifier *v = s->v;
  hk_reader *r = &v->readers[verify_run_end_of(s, o)];
  hk_channel *c = &v->channels[r->channel];
  uint32_t *times = v->times + r->times_at;
  if (r->consumed && times[r->consumed - 1] == s->t->event)
    return hk_fault_here(v, s->t, "it receives twice from rank %u", v->threads[c->thread].rank);
  size_t at = hk_channel_in_rounds(c) ? c->made_at + r->consumed % c->out_each : c->slot_at + r->consumed % c->capacity;
  hk_value x = v->slots[at];
  times[r->consumed++] = s->t->event;
  if (c->nreaders == 1) {
    v->slots[at] = HK_VALUE_NONE;
  } else if (--v->readers_left[at] == 0) {
    v->slots[at] = HK_VALUE_NONE;
  } else {
    hk_value_keep(&v->sets, x);
  }
  const hk_thread *sender = &v->threads[c->thread];
  if (sender->state == HK_THREAD_BLOCKED && sender->waits_to_send && sender->waits_for == r->channel)
    verify_run_make_ready(v, c->thread);
  *out = x;
  if (hk_channel_in_rounds(c)) HK_OR_RETURN(verify_run_make_round(s, r->channel));
  char text[HK_EVENT_TEXT];
  uint32_t sent_at = v->times[c->times_at + hk_channel_sent_for(c, r->consumed - 1)];
  if (hk_value_link_block(x) != verify_run_block_of(s, o))
    return hk_fault_here(v, s->t, "it receives block %u, but %s sends block %u", verify_run_block_of(s, o),
                         hk_event_text(sender, sent_at, text), hk_value_link_block(x));
  bool in_switch = s->i->flags & HK_INSTR_IN_SWITCH;
  if (c->in_switch != in_switch)
    return hk_fault_here(v, s->t, "it receives %s the switch what %s sends %s it", in_switch ? "in" : "outside",
                         hk_event_text(sender, sent_at, text), in_switch ? "outside" : "in");
  if (s->i->ndst && hk_value_kind(x) == HK_VALUE_EMPTY)
    return hk_fault_here(v, s->t, "it wants data from rank %u, but %s sends an empty slot", sender->rank,
                         hk_event_text(sender, sent_at, text));
  if (!s->i->ndst && hk_value_kind(x) != HK_VALUE_EMPTY)
    return hk_fault_here(v, s->t, "it throws away the data that %s sends", hk_event_text(sender, sent_at, text));
  return HK_OK;
}

static hk_status verify_run_read_input(const step *s, unsigned block, hk_value *out) {
  hk_verifier *v = s->v;
  int alias = verify_run_alias(v, s->t->rank, block);
  if (alias >= 0) {
    hk_place *place = hk_place_at(v, s->t, (unsigned)alias);
    char text[HK_EVENT_TEXT];
    if (place->writer_event)
      return hk_fault_here(
          v, s->t, "it reads in[b%u], which in place is out[b%d] and was overwritten by %s", block, alias,
          hk_event_text(&v->threads[v->first_thread[s->t->rank] + place->writer_lane], place->writer_event, text));
  }
  *out = hk_value_make(HK_VALUE_LEAF, s->t->rank, block);
  return HK_OK;
}

static hk_status verify_run_read_output(const step *s, unsigned block, hk_value *out) {
  hk_place *place = hk_place_at(s->v, s->t, block);
  if (hk_value_kind(place->value) == HK_VALUE_NONE)
    return hk_fault_here(s->v, s->t, "it reads out[b%u], which nothing has written yet", block);
  *out = place->value;
  hk_value_keep(&s->v->sets, *out);
  return hk_hazard_read(s->v, s->t, place, "out", block);
}

/* A read that a write precedes in wave 0 has that write before it in every wave: nothing can go stale. */
static hk_status verify_run_read_scratch(const step *s, unsigned which, hk_value *out) {
  hk_value x = s->v->scratch[s->t->scratch_at + which];
  if (hk_value_kind(x) == HK_VALUE_NONE)
    return hk_fault_here(s->v, s->t, "it reads scratch[b%u], which nothing has written yet", which);
  hk_value_keep(&s->v->sets, x);
  *out = x;
  return HK_OK;
}

/* The value of one source, with a reference for the caller. */
static hk_status verify_run_read_source(const step *s, const hk_operand *o, hk_value *out) {
  hk_status rc = HK_OK;
  unsigned block = verify_run_block_of(s, o);
  *out = HK_VALUE_NONE;
  switch (o->space) {
    case HK_IN: rc = verify_run_read_input(s, block, out); break;
    case HK_OUT: rc = verify_run_read_output(s, block, out); break;
    case HK_SCRATCH: rc = verify_run_read_scratch(s, block, out); break;
    default: rc = verify_run_receive(s, o, out); break;
  }
  if (rc || hk_value_kind(*out) < HK_VALUE_LEAF) return rc;
  if (s->v->uneven) return hk_length_check_value(s->v, s->t, hk_length_of_move(s->t, s->i, s->dst), *out);
  if (!s->v->split) return HK_OK;
  /* Blocks differ in length, so data of one block cannot pass for another's. */
  const hk_operand *named = s->dst; /* at least one operand is not scratch: verify_static.c */
  while (named->space == HK_SCRATCH) named++;
  block = verify_run_block_of(s, named);
  const unsigned parts = hk_program_parts(s->v->programs[s->t->rank]);
  if (hk_value_block(*out) % parts == block % parts) return HK_OK;
  char text[HK_VALUE_TEXT];
  return hk_fault_here(s->v, s->t, "its operands name block %u, but a source holds %s", block,
                       hk_value_text(s->v, *out, text));
}

/* The switch reads the same slot of all ranks: the links of its sources must have consumed equally many. */
static hk_status verify_run_check_same_slot(const step *s) {
  const hk_reader *first = NULL;
  if (!(s->i->flags & HK_INSTR_IN_SWITCH) || s->i->nsrc < 2 || !s->i->ndst) return HK_OK;
  for (unsigned k = 0; k < s->i->nsrc; k++) {
    if (s->src[k].space != HK_LINK) continue;
    const hk_reader *r = &s->v->readers[verify_run_end_of(s, &s->src[k])];
    if (!first) first = r;
    if (r->consumed != first->consumed)
      return hk_fault_here(s->v, s->t, "it adds in the switch slot %u from rank %u and slot %u from rank %u",
                           first->consumed, s->v->threads[s->v->channels[first->channel].thread].rank, r->consumed,
                           s->v->threads[s->v->channels[r->channel].thread].rank);
  }
  return HK_OK;
}

static hk_status verify_run_reduce(const step *s, hk_value *result) {
  hk_verifier *v = s->v;
  hk_status rc = HK_OK;
  hk_value sum = hk_value_make(HK_VALUE_EMPTY, 0, 0);
  rc = verify_run_check_same_slot(s);
  bool orders = v->options.orders && s->i->nsrc > 1 && s->i->ndst;
  for (unsigned k = 0; k < s->i->nsrc && !rc; k++) {
    hk_value x;
    rc = verify_run_read_source(s, &s->src[k], &x);
    if (!rc && orders) hk_orders_part(&v->orders, hk_value_order(&v->sets, x));
    if (!rc && k && s->i->ndst)
      rc = verify_run_add_source(s, &sum, x);
    else
      sum = x;
  }
  if (rc) return rc;
  if (orders) hk_set_at(&v->sets, hk_value_index(sum))->order = hk_orders_sum(&v->orders);
  *result = sum;
  if (!(s->i->flags & HK_INSTR_FINAL)) return HK_OK;
  char text[HK_VALUE_TEXT];
  if (hk_value_is_final(sum)) return hk_fault_here(v, s->t, "it makes a value final that is final already");
  if (hk_value_count(&v->sets, sum) != (uint32_t)v->nranks)
    return hk_fault_here(v, s->t, "it makes an incomplete value final: %s", hk_value_text(v, sum, text));
  *result = hk_value_final(sum);
  return HK_OK;
}

/* True for out[..] <- in[..] if both are the same place and the collective does not reduce: the instruction does
 * nothing. */
static bool verify_run_is_self_copy(const step *s, unsigned block) {
  if (s->v->reduces || s->i->nsrc != 1 || s->src->space != HK_IN) return false;
  return verify_run_alias(s->v, s->t->rank, verify_run_block_of(s, s->src)) == (int)block;
}

static hk_status verify_run_write_output(const step *s, unsigned block, hk_value x) {
  hk_verifier *v = s->v;
  hk_place *place = hk_place_at(v, s->t, block);
  hk_value_drop(&v->sets, place->value);
  place->value = x;
  hk_value_keep(&v->sets, x);
  if (hk_instr_lands(s->i, s->dst)) {
    const hk_channel *c = &v->channels[v->readers[verify_run_end_of(s, s->src)].channel];
    if (c->next == HK_NOWHERE) return hk_hazard_land(v, s->t, place, block, verify_run_end_of(s, s->src));
  }
  if (!verify_run_is_self_copy(s, block)) return hk_hazard_write(v, s->t, place, block);
  place->writes++;
  return HK_OK;
}

static void verify_run_write_scratch(const step *s, unsigned which, hk_value x) {
  hk_value *cell = &s->v->scratch[s->t->scratch_at + which];
  hk_value_drop(&s->v->sets, *cell);
  hk_value_keep(&s->v->sets, x);
  *cell = x;
}

/* The network makes the next sum if all of the group have sent their parts of it. */
static hk_status verify_run_add_up(const step *s, uint32_t first) {
  hk_verifier *v = s->v;
  hk_channel *c = &v->channels[first];
  const uint32_t k = c->summed;
  hk_value *slot = &v->slots[c->slot_at + k % c->capacity], sum = *slot;
  const unsigned block = hk_value_link_block(sum);
  for (uint32_t at = c->next; at != first; at = v->channels[at].next)
    if (v->channels[at].sent <= k) return HK_OK;
  for (uint32_t at = c->next; at != first; at = c->next) {
    c = &v->channels[at];
    slot = &v->slots[c->slot_at + k % c->capacity];
    if (hk_value_kind(sum) < HK_VALUE_LEAF || hk_value_kind(*slot) < HK_VALUE_LEAF)
      return hk_fault_here(v, s->t, "the network adds up an empty slot: slot %u of its links", k);
    if (hk_value_link_block(*slot) != block)
      return hk_fault_here(v, s->t, "the network adds block %u to block %u: slot %u of its links",
                           hk_value_link_block(*slot), block, k);
    HK_OR_RETURN(verify_run_add_source(s, &sum, *slot));
    *slot = HK_VALUE_NONE;
  }
  c = &v->channels[first];
  do {
    c = &v->channels[c->next];
    hk_value_keep(&v->sets, sum);
    v->slots[c->slot_at + k % c->capacity] = hk_value_sent_as(sum, block);
    c->summed++;
    verify_run_wake_readers(v, c);
  } while (c != &v->channels[first]);
  hk_value_drop(&v->sets, sum);
  return HK_OK;
}

static hk_status verify_run_send(const step *s, const hk_operand *o, hk_value x) {
  hk_verifier *v = s->v;
  uint32_t at = verify_run_end_of(s, o);
  hk_channel *c = &v->channels[at];
  uint32_t *times = v->times + c->times_at;
  if (c->sent && times[c->sent - 1] == s->t->event)
    return hk_fault_here(v, s->t, "it sends twice on the link to rank %u",
                         c->nreaders ? v->threads[v->readers[c->first_reader].thread].rank : s->t->rank);
  size_t slot = c->slot_at + c->sent % c->capacity;
  times[c->sent++] = s->t->event;
  bool in_switch = s->i->flags & HK_INSTR_IN_SWITCH;
  if (c->sent > 1 && c->in_switch != in_switch)
    return hk_fault_here(v, s->t, "it sends %s the switch on a link that earlier sent %s it",
                         in_switch ? "in" : "outside", in_switch ? "outside" : "in");
  c->in_switch = in_switch;
  if (c->nreaders == 0) return HK_OK;
  hk_value_keep(&v->sets, x);
  v->slots[slot] = hk_value_sent_as(x, verify_run_block_of(s, o));
  if (c->nreaders > 1) v->readers_left[slot] = c->nreaders;
  if (hk_channel_in_rounds(c)) {
    if (!(s->i->flags & HK_INSTR_COPY)) return hk_fault_here(v, s->t, "what the network moves in rounds is no copy");
    return verify_run_make_round(s, at);
  }
  if (c->next != HK_NOWHERE) return verify_run_add_up(s, at);
  verify_run_wake_readers(v, c);
  return HK_OK;
}

/* The place that a user operand names; NULL for input that no instruction writes. */
static hk_place *verify_run_place_of(const step *s, const hk_operand *o, unsigned *block) {
  *block = verify_run_block_of(s, o);
  if (o->space == HK_IN) {
    int alias = verify_run_alias(s->v, s->t->rank, *block);
    if (alias < 0) return NULL;
    *block = (unsigned)alias;
  }
  return hk_place_at(s->v, s->t, *block);
}

/* Slots sent by this instruction may refer to its only source, or to an output that it writes. */
static hk_status verify_run_note_references(const step *s, hk_place *place, unsigned block, bool *noted) {
  hk_status rc = HK_OK;
  *noted = false;
  if (s->i->flags & HK_INSTR_COPY) return HK_OK;
  for (unsigned k = 0; k < s->i->ndst && !rc; k++) {
    if (s->dst[k].space != HK_LINK) continue;
    uint32_t c = verify_run_end_of(s, &s->dst[k]);
    rc = hk_hazard_note_reference(s->v, s->t, place, block, c, s->v->channels[c].sent - 1);
    *noted = *noted || s->v->channels[c].nreaders > 0;
  }
  return rc;
}

static hk_status verify_run_note_accesses(const step *s) {
  hk_status rc = HK_OK;
  bool noted;
  unsigned block;
  for (unsigned k = 0; k < s->i->ndst && !rc; k++) {
    if (s->dst[k].space != HK_OUT) continue;
    hk_place *place = verify_run_place_of(s, &s->dst[k], &block);
    rc = verify_run_note_references(s, place, block, &noted);
  }
  for (unsigned k = 0; k < s->i->nsrc && !rc; k++) {
    if (s->src[k].space != HK_IN && s->src[k].space != HK_OUT) continue;
    hk_place *place = verify_run_place_of(s, &s->src[k], &block);
    if (!place || (place->writer_event == s->t->event && place->writer_lane == s->t->lane)) continue;
    noted = false;
    if (s->i->nsrc == 1) rc = verify_run_note_references(s, place, block, &noted);
    /* A write that waits for the end of a reference also waits for this event, so the read need not be recorded. */
    if (!rc && !noted) rc = hk_hazard_note_read(s->v, s->t, place, block);
  }
  return rc;
}

static hk_status verify_run_execute(const step *s) {
  hk_status rc;
  hk_value x = HK_VALUE_NONE;
  s->t->event++;
  if (s->v->uneven) HK_TRY(hk_length_check_operands(s->v, s->t, s->i, s->dst), out);
  HK_TRY(verify_run_reduce(s, &x), out);
  for (unsigned k = 0; k < s->i->ndst; k++) {
    const hk_operand *o = &s->dst[k];
    switch (o->space) {
      case HK_OUT: HK_TRY(verify_run_write_output(s, verify_run_block_of(s, o), x), out); break;
      case HK_SCRATCH: verify_run_write_scratch(s, verify_run_block_of(s, o), x); break;
      default: HK_TRY(verify_run_send(s, o, x), out); break;
    }
  }
  hk_value_drop(&s->v->sets, x);
  rc = verify_run_note_accesses(s);
out:
  return rc; /* a fault ends the run: references are not counted any more */
}

/* ---- threads ---- */

/* A wave is a chunk of one byte here: the cursor's offset is the wave's number. */
static hk_sizes verify_run_sizes_of(const hk_verifier *v) {
  return (hk_sizes){.longest = v->options.waves, .chunk = 1};
}

static hk_status run_thread(hk_verifier *v, hk_thread *t) {
  const hk_sizes waves = verify_run_sizes_of(v);
  for (;;) {
    const hk_instr *i = hk_cursor_move(&t->at, t->instrs);
    const hk_operand *o = hk_instr_operands(t->program, i);
    step s = {.v = v, .t = t, .i = i, .dst = o, .src = o + i->ndst};
    if (!v->uneven || hk_length_reaches(v, hk_length_of_move(t, i, o), t->at.offset)) {
      if (!verify_run_all_ready(&s)) return HK_OK;
      hk_status rc = verify_run_execute(&s);
      if (rc) return rc;
      v->report->steps++;
      t->scan = 0;
    }
    if (!hk_cursor_next(&t->at, &waves, 1)) {
      t->state = HK_THREAD_DONE;
      return HK_OK;
    }
  }
}

static hk_status verify_run_check_all_consumed(hk_verifier *v) {
  for (uint32_t k = 0; k < v->nchannels; k++) {
    const hk_channel *c = &v->channels[k];
    for (uint32_t r = c->first_reader; r < c->first_reader + c->nreaders; r++) {
      uint32_t left = c->sent / c->in_each * c->out_each + c->sent % c->in_each - v->readers[r].consumed;
      if (left)
        return hk_fault_event(v, &v->threads[c->thread], v->times[c->times_at + c->sent - left],
                              "rank %u never receives what it sends: %u slots are left at the end",
                              v->threads[v->readers[r].thread].rank, left);
    }
  }
  return HK_OK;
}

hk_status hk_verify_run(hk_verifier *v) {
  const hk_sizes waves = verify_run_sizes_of(v);
  for (uint32_t k = 0; k < v->nthreads; k++) {
    hk_thread *t = &v->threads[k];
    t->state = HK_THREAD_DONE;
    if (hk_cursor_begin(&t->at, &hk_program_lanes(t->program)[t->lane], 0, &waves)) verify_run_make_ready(v, k);
  }
  while (v->queue_count) {
    uint32_t k = v->queue[v->queue_head];
    v->queue_head = (v->queue_head + 1) % v->nthreads;
    v->queue_count--;
    hk_status rc = run_thread(v, &v->threads[k]);
    if (rc) return rc;
  }
  for (uint32_t k = 0; k < v->nthreads; k++)
    if (v->threads[k].state != HK_THREAD_DONE) return hk_fault_deadlock(v);
  return verify_run_check_all_consumed(v);
}
