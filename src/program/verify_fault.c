/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of the verifier's findings: the instruction, its wave and iteration, and the values. */
#include <stdarg.h>
#include <string.h>
#include "verify_internal.h"

/* An instruction as text, shortened if it is long. */
static const char *verify_fault_instr_text(const hk_program *p, int instr, char *text, size_t size) {
  text[0] = '\0';
  FILE *f = fmemopen(text, size, "w");
  if (!f) return text;
  hk_program_dump_instr(p, (uint32_t)instr, f);
  fclose(f);
  text[size - 1] = '\0';
  if (strlen(text) == size - 1) memcpy(text + size - 4, "...", 3);
  return text;
}

static hk_status verify_fault_report(hk_verifier *v, int rank, int lane, int instr, const char *where,
                                     const char *format, va_list args) {
  hk_verify_report *r = v->report;
  r->rank = rank;
  r->lane = lane;
  r->instr = instr;
  const hk_program *p = v->programs[rank];
  size_t capacity = sizeof r->message, n;
  n = (size_t)snprintf(r->message, capacity, "%s %s, %d ranks: rank %d", hk_coll_name((hk_coll)p->coll), p->algorithm,
                       v->nranks, rank);
  if (lane >= 0 && n < capacity) n += (size_t)snprintf(r->message + n, capacity - n, " lane %d", lane);
  if (instr >= 0 && n < capacity) {
    char text[100];
    n += (size_t)snprintf(r->message + n, capacity - n, " instruction %d (%s)%s", instr,
                          verify_fault_instr_text(p, instr, text, sizeof text), where);
  }
  if (n < capacity) n += (size_t)snprintf(r->message + n, capacity - n, ": ");
  if (n < capacity) vsnprintf(r->message + n, capacity - n, format, args);
  return HK_ERR_INTERNAL;
}

hk_status hk_fault(hk_verifier *v, int rank, int lane, int instr, const char *format, ...) {
  va_list args;
  va_start(args, format);
  hk_status rc = verify_fault_report(v, rank, lane, instr, "", format, args);
  va_end(args);
  return rc;
}

/* The time of an instruction: ", wave 1 iteration 3". */
static const char *verify_fault_time_text(unsigned wave, bool in_body, unsigned iteration, char *text, size_t size) {
  if (in_body)
    snprintf(text, size, ", wave %u iteration %u", wave, iteration);
  else
    snprintf(text, size, ", wave %u", wave);
  return text;
}

hk_status hk_fault_here(hk_verifier *v, const hk_thread *t, const char *format, ...) {
  char where[48];
  va_list args;
  va_start(args, format);
  hk_status rc = verify_fault_report(
      v, t->rank, t->lane, (int)t->at.pc,
      verify_fault_time_text((unsigned)t->at.offset, t->at.body_end != 0, t->at.iteration, where, sizeof where), format,
      args);
  va_end(args);
  return rc;
}

typedef struct position {
  uint32_t instr, wave, iteration;
  bool in_body;
} position;

/* Finds the `left`-th (from 0) instruction run in a wave; false, with the wave's length, if the wave has fewer. */
static bool verify_fault_find_event(const hk_thread *t, uint32_t left, position *at, uint32_t *length) {
  uint32_t seen = 0;
  for (uint32_t k = t->at.first; k < t->at.end; k++) {
    const hk_instr *i = &t->instrs[k];
    at->in_body = i->op == HK_OP_REPEAT;
    uint32_t body = at->in_body ? i->repeat.body : 1, runs = at->in_body ? i->repeat.count * body : 1;
    if (left - seen < runs) {
      at->iteration = at->in_body ? (left - seen) / body : 0;
      at->instr = at->in_body ? k + 1 + (left - seen) % body : k;
      return true;
    }
    seen += runs;
    if (at->in_body) k += body;
  }
  *length = seen;
  return false;
}

static position verify_fault_position_of(const hk_thread *t, uint32_t event) {
  position at = {0};
  uint32_t length = 1, left = event - 1;
  if (!verify_fault_find_event(t, left, &at, &length) && length) {
    at.wave = left / length;
    verify_fault_find_event(t, left % length, &at, &length);
  }
  return at;
}

const char *hk_event_text(const hk_thread *t, uint32_t event, char *text) {
  position at = verify_fault_position_of(t, event);
  char when[48];
  snprintf(text, HK_EVENT_TEXT, "rank %u lane %u instruction %u%s", t->rank, t->lane, at.instr,
           at.wave || at.in_body ? verify_fault_time_text(at.wave, at.in_body, at.iteration, when, sizeof when) : "");
  return text;
}

hk_status hk_fault_event(hk_verifier *v, const hk_thread *t, uint32_t event, const char *format, ...) {
  position at = verify_fault_position_of(t, event);
  char where[48];
  va_list args;
  va_start(args, format);
  hk_status rc = verify_fault_report(v, t->rank, t->lane, (int)at.instr,
                                     verify_fault_time_text(at.wave, at.in_body, at.iteration, where, sizeof where),
                                     format, args);
  va_end(args);
  return rc;
}

hk_status hk_fault_memory(hk_verifier *v) {
  hk_fault(v, 0, -1, -1, "out of memory; nothing was proved");
  return HK_ERR_SYSTEM;
}

const char *hk_value_text(const hk_verifier *v, hk_value x, char *text) {
  const char *final = hk_value_is_final(x) ? ", final" : "";
  unsigned block = hk_value_block(x);
  switch (hk_value_kind(x)) {
    case HK_VALUE_NONE: snprintf(text, HK_VALUE_TEXT, "nothing"); return text;
    case HK_VALUE_EMPTY: snprintf(text, HK_VALUE_TEXT, "an empty slot"); return text;
    case HK_VALUE_LEAF:
      snprintf(text, HK_VALUE_TEXT, "rank %u's block %u%s", hk_value_index(x), block, final);
      return text;
    default: break;
  }
  uint32_t count = hk_value_count(&v->sets, x);
  bool few_missing = count > (uint32_t)v->nranks / 2;
  int n = few_missing ? snprintf(text, HK_VALUE_TEXT, "the sum of block %u over %u of %d ranks%s, without", block,
                                 count, v->nranks, final)
                      : snprintf(text, HK_VALUE_TEXT, "the sum of block %u over %u of %d ranks%s,", block, count,
                                 v->nranks, final);
  if (count == (uint32_t)v->nranks) {
    snprintf(text, HK_VALUE_TEXT, "the sum of block %u over all ranks%s", block, final);
    return text;
  }
  unsigned listed = 0;
  for (int r = 0; r < v->nranks; r++) {
    if (hk_value_has(&v->sets, x, (unsigned)r) == few_missing) continue;
    if (++listed > 8) {
      snprintf(text + n, (size_t)(HK_VALUE_TEXT - n), " ...");
      break;
    }
    n += snprintf(text + n, (size_t)(HK_VALUE_TEXT - n), " %d", r);
  }
  return text;
}

/* ---- deadlock ---- */

/* The thread that a blocked thread waits for. */
static uint32_t verify_fault_awaited(const hk_verifier *v, const hk_thread *t) {
  const hk_channel *c = &v->channels[t->waits_to_send ? t->waits_for : v->readers[t->waits_for].channel];
  if (!t->waits_to_send) {
    for (const hk_channel *first = c;
         c->next != HK_NOWHERE && c->sent >= (c->summed + 1) * c->in_each;) { /* finds the rank whose part is missing */
      c = &v->channels[c->next];
      if (c == first) break;
    }
    return c->thread;
  }
  const hk_reader *last = &v->readers[c->first_reader];
  for (uint32_t r = 1; r < c->nreaders; r++)
    if (last[0].consumed > v->readers[c->first_reader + r].consumed) last = &v->readers[c->first_reader + r];
  return last->thread;
}

static int verify_fault_wait_text(const hk_verifier *v, const hk_thread *t, char *text, size_t size) {
  const hk_thread *other = &v->threads[verify_fault_awaited(v, t)];
  const char *ended = other->state == HK_THREAD_DONE ? ", which has ended" : "";
  if (t->waits_to_send)
    return snprintf(text, size, "waits for rank %u lane %u%s to take one of the %u slots sent to it", other->rank,
                    other->lane, *ended ? ", which has ended," : "", v->options.slots);
  return snprintf(text, size, "waits for a slot from rank %u lane %u%s", other->rank, other->lane, ended);
}

hk_status hk_fault_deadlock(hk_verifier *v) {
  enum { SHOWN = 4 };
  char text[400];
  uint32_t k = 0, length = 0;
  while (v->threads[k].state != HK_THREAD_BLOCKED) k++;
  /* Follow the waits until they close a cycle or end at a thread that has finished. */
  v->stamp++;
  while (v->threads[k].state == HK_THREAD_BLOCKED && v->known_stamp[k] != v->stamp) {
    v->known_stamp[k] = v->stamp;
    uint32_t next = verify_fault_awaited(v, &v->threads[k]);
    if (v->threads[next].state == HK_THREAD_DONE) {
      verify_fault_wait_text(v, &v->threads[k], text, sizeof text);
      return hk_fault_here(
          v, &v->threads[k], "it %s%s", text,
          v->threads[k].waits_to_send ? ": a send that no rank receives" : ": a receive that no rank sends to");
    }
    k = next;
  }
  uint32_t start = k;
  do {
    length++;
    k = verify_fault_awaited(v, &v->threads[k]);
  } while (k != start);
  int n = verify_fault_wait_text(v, &v->threads[k], text, sizeof text);
  k = verify_fault_awaited(v, &v->threads[k]);
  for (uint32_t shown = 1; shown < length && shown < SHOWN; shown++, k = verify_fault_awaited(v, &v->threads[k])) {
    const hk_thread *t = &v->threads[k];
    n += snprintf(text + n, sizeof text - (size_t)n, "; rank %u lane %u instruction %u ", t->rank, t->lane, t->at.pc);
    n += verify_fault_wait_text(v, t, text + n, sizeof text - (size_t)n);
  }
  return hk_fault_here(v, &v->threads[start], "deadlock, a cycle of %u: it %s%s", length, text,
                       length > SHOWN ? "; ..." : "");
}
