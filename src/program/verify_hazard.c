/* SPDX-License-Identifier: Apache-2.0 */
/* Ordering of accesses to output blocks.
 *
 * Two accesses to a place, at least one a write, must be ordered in every schedule. Within a lane they are. Between
 * lanes, and between a slot that refers to a place and a later write to it, the FIFOs must order them: event a happens
 * before event b when b is later in the same thread, or b receives a slot that a sent, or b sends a slot for which a
 * gave the credit back, or through a chain of such steps.
 *
 * Vector clocks would say this at a cost of one word for each thread in each event; few algorithms have more than a
 * handful of questions. So the run only records when each slot was sent and consumed. A question is answered by a
 * backward search from the current event, for the latest event of each thread that happens before it. For data that
 * lands before its turn, the current event is the one that sent it. */
#include "../base/array.h"
#include "verify_internal.h"

static bool verify_hazard_take_read(hk_verifier *v, uint32_t *index) {
  if (v->free_read) {
    *index = v->free_read - 1;
    v->free_read = v->reads[*index].next;
    return true;
  }
  if (!HK_RESERVE(v->reads, v->reads_capacity, v->nreads + 1)) return false;
  *index = v->nreads++;
  return true;
}

/* How many of the n ascending event numbers are at most `event`. */
static uint32_t verify_hazard_count_until(const uint32_t *times, uint32_t n, uint32_t event) {
  uint32_t low = 0;
  if (n && times[n - 1] <= event) return n; /* usual case: all of them */
  while (low < n) {
    uint32_t middle = low + (n - low) / 2;
    if (times[middle] <= event)
      low = middle + 1;
    else
      n = middle;
  }
  return low;
}

typedef struct search {
  hk_verifier *v;
  uint32_t head, count; /* in v->search, a ring of nthreads entries */
} search;

/* Records that `event` of `thread` happens before the current event. */
static void verify_hazard_learn(search *s, uint32_t thread, uint32_t event) {
  hk_verifier *v = s->v;
  if (v->known_stamp[thread] == v->stamp && v->known[thread] >= event) return;
  v->known_stamp[thread] = v->stamp;
  v->known[thread] = event;
  if (v->queued_stamp[thread] == v->stamp) return;
  v->queued_stamp[thread] = v->stamp;
  v->search[(s->head + s->count++) % v->nthreads] = thread;
}

/* Adds the events of other threads that happen before `event` of thread t. */
static void verify_hazard_expand(search *s, const hk_thread *t, uint32_t event) {
  hk_verifier *v = s->v;
  const hk_link_need *l = hk_program_links(t->program);
  for (uint32_t k = t->first_link; k < t->end_link; k++) {
    if (l[k].lane != t->lane) continue;
    if (hk_link_sends((hk_link_kind)l[k].kind)) {
      const hk_channel *c = &v->channels[t->ends[k]];
      uint32_t sent = verify_hazard_count_until(v->times + c->times_at, c->sent, event);
      if (sent <= v->options.slots || hk_channel_in_rounds(c)) continue; /* rounds give slots back early */
      for (uint32_t r = c->first_reader; r < c->first_reader + c->nreaders; r++)
        verify_hazard_learn(s, v->readers[r].thread, v->times[v->readers[r].times_at + sent - v->options.slots - 1]);
    } else {
      const hk_reader *r = &v->readers[t->ends[k]];
      const hk_channel *c = &v->channels[r->channel];
      uint32_t got = verify_hazard_count_until(v->times + r->times_at, r->consumed, event);
      for (const hk_channel *first = c; got; c = &v->channels[c->next]) { /* all ranks whose data is in the sum */
        verify_hazard_learn(s, c->thread, v->times[c->times_at + hk_channel_sent_for(c, got - 1)]);
        if (c->next == HK_NOWHERE || &v->channels[c->next] == first) break;
      }
    }
  }
}

/* True if t's current instruction receives a slot that thread `from` sent in event `event` or later. A fast test: in
 * many algorithms the rank that has read a place also sends the data that overwrites it. */
static bool verify_hazard_answers_now(const hk_verifier *v, uint32_t from, uint32_t event, const hk_thread *t) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *src = hk_instr_operands(t->program, i) + i->ndst;
  for (unsigned k = 0; k < i->nsrc; k++) {
    if (src[k].space != HK_LINK) continue;
    const hk_reader *r = &v->readers[t->ends[hk_cursor_link(&t->at, &src[k])]];
    const hk_channel *c = &v->channels[r->channel];
    if (c->thread == from && v->times[c->times_at + hk_channel_sent_for(c, r->consumed - 1)] >= event) return true;
  }
  return false;
}

/* True if event `event` of thread `from` happens before event `at` of thread `to`. */
static bool verify_hazard_is_known(hk_verifier *v, uint32_t from, uint32_t event, uint32_t to, uint32_t at) {
  if (from == to) return event <= at;
  search s = {.v = v};
  v->stamp++;
  verify_hazard_learn(&s, to, at);
  while (s.count) {
    uint32_t thread = v->search[s.head];
    s.head = (s.head + 1) % v->nthreads;
    s.count--;
    v->queued_stamp[thread] = 0;
    verify_hazard_expand(&s, &v->threads[thread], v->known[thread]);
    if (v->known_stamp[from] == v->stamp && v->known[from] >= event) return true;
  }
  return false;
}

/* True if event `event` of thread `from` happens before the current event of thread t. */
static bool verify_hazard_happens_before(hk_verifier *v, uint32_t from, uint32_t event, const hk_thread *t) {
  uint32_t to = (uint32_t)(t - v->threads);
  return (from != to && verify_hazard_answers_now(v, from, event, t)) ||
         verify_hazard_is_known(v, from, event, to, t->event);
}

/* True if reader r consumed slot `number` of channel c before the current event of t, a thread of the sender's rank. */
static bool verify_hazard_consumed_before(hk_verifier *v, const hk_channel *c, uint32_t number, uint32_t r,
                                          const hk_thread *t) {
  const hk_reader *reader = &v->readers[r];
  if (reader->consumed <= number) return false;
  uint32_t event = v->times[reader->times_at + number];
  if (c->thread == (uint32_t)(t - v->threads)) {
    /* Two fast tests: the credit has returned, or the reader has sent a later slot to this rank. */
    if (c->sent > v->options.slots && c->sent - v->options.slots > number) return true;
    if (c->reverse != HK_NOWHERE) {
      const hk_reader *back = &v->readers[c->reverse];
      const hk_channel *from = &v->channels[back->channel];
      if (back->thread == c->thread && from->thread == reader->thread && back->consumed &&
          v->times[from->times_at + back->consumed - 1] >= event)
        return true;
    }
  }
  return verify_hazard_happens_before(v, reader->thread, event, t);
}

static hk_status verify_hazard_check_writer(hk_verifier *v, const hk_thread *t, const hk_place *place, const char *verb,
                                            const char *what, unsigned block) {
  if (!place->writer_event || place->writer_lane == t->lane) return HK_OK;
  uint32_t writer = v->first_thread[t->rank] + place->writer_lane;
  if (verify_hazard_happens_before(v, writer, place->writer_event, t)) return HK_OK;
  char text[HK_EVENT_TEXT];
  return hk_fault_here(v, t, "%s %s[b%u], which %s wrote: no chain of slots orders the two lanes", verb, what, block,
                       hk_event_text(&v->threads[writer], place->writer_event, text));
}

hk_status hk_hazard_read(hk_verifier *v, const hk_thread *t, hk_place *place, const char *what, unsigned block) {
  return verify_hazard_check_writer(v, t, place, "it reads", what, block);
}

static hk_status verify_hazard_check_read(hk_verifier *v, const hk_thread *t, const hk_read *read, unsigned block) {
  const char *is_input = v->options.in_place ? " (in place, the input may be the same memory)" : "";
  char text[HK_EVENT_TEXT];
  if (read->channel == HK_NOWHERE) {
    uint32_t reader = v->first_thread[t->rank] + read->lane;
    if (reader == (uint32_t)(t - v->threads) || verify_hazard_happens_before(v, reader, read->number, t)) return HK_OK;
    return hk_fault_here(v, t, "it writes out[b%u], which %s reads%s: no chain of slots orders the two lanes", block,
                         hk_event_text(&v->threads[reader], read->number, text), is_input);
  }
  const hk_channel *c = &v->channels[read->channel];
  for (uint32_t r = c->first_reader; r < c->first_reader + c->nreaders; r++) {
    if (verify_hazard_consumed_before(v, c, read->number, r, t)) continue;
    const hk_thread *sender = &v->threads[c->thread];
    hk_event_text(sender, v->times[c->times_at + read->number], text);
    return hk_fault_here(
        v, t,
        "it writes out[b%u] while the slot that %s sent to rank %u may still refer to it%s: nothing shows "
        "that rank %u has consumed the slot",
        block, text, v->threads[v->readers[r].thread].rank, is_input, v->threads[v->readers[r].thread].rank);
  }
  return HK_OK;
}

hk_status hk_hazard_write(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block) {
  hk_status rc = verify_hazard_check_writer(v, t, place, "it writes", "out", block);
  while (place->reads && !rc) {
    uint32_t index = place->reads - 1;
    rc = verify_hazard_check_read(v, t, &v->reads[index], block);
    place->reads = v->reads[index].next;
    v->reads[index].next = v->free_read;
    v->free_read = index + 1;
  }
  place->writer_event = t->event;
  place->writer_lane = t->lane;
  place->writes++;
  return rc;
}

/* A fault unless the read has ended before `sender` sent the data that arrives in t. */
static hk_status verify_hazard_check_landing(hk_verifier *v, const hk_thread *t, const hk_read *read, unsigned block,
                                             uint32_t sender, uint32_t sent) {
  char text[HK_EVENT_TEXT];
  if (read->channel == HK_NOWHERE) {
    uint32_t reader = v->first_thread[t->rank] + read->lane;
    if (verify_hazard_is_known(v, reader, read->number, sender, sent)) return HK_OK;
    hk_event_text(&v->threads[reader], read->number, text);
  } else {
    const hk_channel *c = &v->channels[read->channel];
    bool over = true;
    for (uint32_t r = c->first_reader; r < c->first_reader + c->nreaders && over; r++) {
      const hk_reader *reader = &v->readers[r];
      over = reader->consumed > read->number &&
             verify_hazard_is_known(v, reader->thread, v->times[reader->times_at + read->number], sender, sent);
    }
    if (over) return HK_OK;
    hk_event_text(&v->threads[c->thread], v->times[c->times_at + read->number], text);
  }
  return hk_fault_here(
      v, t,
      "what it receives into out[b%u] may land there while %s, or a slot that it sent, still reads it: "
      "rank %u does not know better when it sends",
      block, text, v->threads[sender].rank);
}

hk_status hk_hazard_land(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block, uint32_t r) {
  hk_status rc = HK_OK;
  const hk_reader *reader = &v->readers[r];
  const hk_channel *c = &v->channels[reader->channel];
  uint32_t sent = v->times[c->times_at + reader->consumed - 1];
  char text[HK_EVENT_TEXT];
  uint32_t writer = v->first_thread[t->rank] + place->writer_lane;
  if (place->writer_event && !verify_hazard_is_known(v, writer, place->writer_event, c->thread, sent))
    rc = hk_fault_here(v, t, "what it receives into out[b%u] may land there before %s writes it", block,
                       hk_event_text(&v->threads[writer], place->writer_event, text));
  for (uint32_t k = place->reads; k && !rc; k = v->reads[k - 1].next)
    rc = verify_hazard_check_landing(v, t, &v->reads[k - 1], block, c->thread, sent);
  return rc ? rc : hk_hazard_write(v, t, place, block);
}

static uint32_t verify_hazard_writes_of(const hk_verifier *v, const hk_thread *t, unsigned block) {
  return v->place_writes[v->first_place[t->rank] / v->options.waves + block];
}

/* The last write to the place in this wave: its readers need not be recorded. */
static bool verify_hazard_is_last(const hk_verifier *v, const hk_thread *t, const hk_place *place, unsigned block) {
  return place->writes >= (verify_hazard_writes_of(v, t, block) & ~HK_LANDS);
}

static hk_status verify_hazard_note(hk_verifier *v, const hk_thread *t, hk_place *place, uint32_t channel,
                                    uint32_t number) {
  uint32_t index;
  if (!verify_hazard_take_read(v, &index)) return hk_fault_memory(v);
  v->reads[index] = (hk_read){.next = place->reads, .channel = channel, .number = number, .lane = t->lane};
  place->reads = index + 1;
  return HK_OK;
}

hk_status hk_hazard_note_read(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block) {
  if (verify_hazard_is_last(v, t, place, block)) return HK_OK;
  if (t->program->nlanes == 1 && !(verify_hazard_writes_of(v, t, block) & HK_LANDS))
    return HK_OK; /* a single lane runs in order */
  for (uint32_t k = place->reads; k; k = v->reads[k - 1].next)
    if (v->reads[k - 1].channel == HK_NOWHERE && v->reads[k - 1].lane == t->lane) {
      v->reads[k - 1].number = t->event; /* the later read implies the earlier */
      return HK_OK;
    }
  return verify_hazard_note(v, t, place, HK_NOWHERE, t->event);
}

hk_status hk_hazard_note_reference(hk_verifier *v, const hk_thread *t, hk_place *place, unsigned block,
                                   uint32_t channel, uint32_t number) {
  if (verify_hazard_is_last(v, t, place, block)) return HK_OK;
  return verify_hazard_note(v, t, place, channel, number);
}
