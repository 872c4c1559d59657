/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of a communicator, beyond what each call does (meter.h). */
#include "meter.h"
#include <stdlib.h>
#include <string.h>

hk_meter *hk_meter_new(void) {
  hk_meter *m = aligned_alloc(_Alignof(hk_meter), sizeof *m);
  if (m) memset(m, 0, sizeof *m);
  return m;
}

void hk_meter_free(hk_meter *m) {
  if (!m) return;
  for (int k = 0; k < HK_METER_KINDS; k++) free(atomic_load(&m->rows[k]));
  free(m);
}

hk_meter_cell *hk_meter_make_row(hk_meter *m, unsigned kind) {
  hk_meter_cell *row = aligned_alloc(sizeof *row, HK_METER_CLASSES * sizeof *row);
  if (!row) return NULL;
  memset(row, 0, HK_METER_CLASSES * sizeof *row);
  for (int i = 0; i < HK_METER_CLASSES; i++) row[i].next = 2; /* the first call may do what the others do not */
  /* release: a reader that sees the row sees its zeros */
  atomic_store_explicit(&m->rows[kind], row, memory_order_release);
  return row;
}

/* relaxed, all: as hk_meter_count */
static uint64_t meter_get(const _Atomic(uint64_t) *n) { return atomic_load_explicit(n, memory_order_relaxed); }
static void meter_set(_Atomic(uint64_t) *n, uint64_t value) { atomic_store_explicit(n, value, memory_order_relaxed); }

void hk_meter_note(hk_meter *m, hk_meter_cell *c, uint64_t now_ns) {
  const uint64_t calls = meter_get(&c->calls);
  c->next = calls + (calls < HK_METER_SAMPLE ? calls : HK_METER_SAMPLE);
  meter_set(&m->last_ns, now_ns);
}

void hk_meter_sampled(hk_meter *m, hk_meter_cell *c, uint64_t ns, uint64_t now_ns) {
  const uint64_t calls = meter_get(&c->calls);
  meter_set(&c->ns, meter_get(&c->ns) + ns * (calls - c->timed));
  c->timed = calls;
  hk_meter_note(m, c, now_ns);
}

void hk_meter_timed(hk_meter *m, hk_meter_cell *c, uint64_t ns, uint64_t now_ns) {
  meter_set(&c->ns, meter_get(&c->ns) + ns);
  c->timed++;
  meter_set(&m->last_ns, now_ns);
}

/* ---- for who reads ---- */

static const hk_meter_cell *meter_row(const hk_meter *m, unsigned kind) {
  return atomic_load_explicit(&m->rows[kind], memory_order_acquire); /* acquire: with hk_meter_make_row */
}

int hk_meter_read(const hk_meter *m, hk_meter_value out[HK_METER_VALUES]) {
  int n = 0;
  for (unsigned k = 0; k < HK_METER_KINDS; k++) {
    const hk_meter_cell *row = meter_row(m, k);
    for (unsigned i = 0; row && i < HK_METER_CLASSES; i++) {
      const uint64_t calls = meter_get(&row[i].calls);
      if (calls)
        out[n++] = (hk_meter_value){.kind = (uint8_t)k,
                                    .size_class = (uint8_t)i,
                                    .calls = calls,
                                    .bytes = meter_get(&row[i].bytes),
                                    .ns = meter_get(&row[i].ns)};
    }
  }
  return n;
}

uint64_t hk_meter_calls(const hk_meter *m, unsigned kind) {
  const hk_meter_cell *row = meter_row(m, kind);
  uint64_t calls = 0;
  for (int i = 0; row && i < HK_METER_CLASSES; i++) calls += meter_get(&row[i].calls);
  return calls;
}

uint64_t hk_meter_idle_ns(hk_meter *m, uint64_t now_ns) {
  const uint64_t last = meter_get(&m->last_ns);
  uint64_t calls = 0;
  for (unsigned k = 0; k < HK_METER_KINDS; k++) calls += hk_meter_calls(m, k);
  if (!calls) return UINT64_MAX;
  if (calls != m->seen) m->seen_ns = m->seen || !last ? now_ns : last;
  m->seen = calls;
  if (last > m->seen_ns) m->seen_ns = last;
  return now_ns > m->seen_ns ? now_ns - m->seen_ns : 0;
}
