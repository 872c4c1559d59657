/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a communicator counts for operators (`hocket metrics`): the calls, bytes and time of each kind of operation and
 * class of message sizes, and what happened to its network connections. One thread at a time counts operations, as
 * calls run; any thread reads.
 *
 * To read the clock twice would cost a short call more than everything else here. So of short calls only samples are
 * timed, and each stands for the calls since the one before. A call that waits for long is timed in any case, from the
 * begin of its wait: one such call may take longer than all others together.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HK_METER_KINDS = 16, HK_METER_CLASSES = 14 };
enum { HK_METER_SAMPLE = 64 };              /* calls from one sample to the next; less at the beginning */
enum { HK_METER_TIMED_BYTES = 256 * 1024 }; /* a message from this length on is timed */

typedef struct hk_meter_cell {
  _Alignas(64) _Atomic(uint64_t) calls;
  _Atomic(uint64_t) bytes;
  _Atomic(uint64_t) ns; /* an estimate of the time of all calls up to the newest sample */
  uint64_t timed, next; /* the counting thread's: how many calls `ns` is for; the number of the next sample */
} hk_meter_cell;
_Static_assert(sizeof(hk_meter_cell) == 64, "one cache line");

typedef struct hk_meter {
  _Atomic(hk_meter_cell *) rows[HK_METER_KINDS]; /* [HK_METER_CLASSES], made at first use */
  hk_meter_cell unused;                          /* for calls that cannot be counted: there is no memory */
  _Atomic(uint64_t) last_ns;                     /* when an operation was last seen to begin or end; 0: never */
  _Atomic(uint64_t) repairs, failovers;          /* of network connections; any thread counts */
  uint64_t seen, seen_ns;                        /* hk_meter_idle_ns: calls at the last question; when they changed */
} hk_meter;

/* The class of a message: 0 up to 64 bytes, 1 up to 256, each up to four times more, the last one without an end. */
static inline unsigned hk_meter_class(uint64_t bytes) {
  if (bytes <= 64) return 0;
  const unsigned k = (63 - (unsigned)__builtin_clzll(bytes - 1) - 6) / 2 + 1;
  return k < HK_METER_CLASSES ? k : HK_METER_CLASSES - 1;
}

hk_meter *hk_meter_new(void); /* NULL: no memory */
void hk_meter_free(hk_meter *m);
hk_meter_cell *hk_meter_make_row(hk_meter *m, unsigned kind);

/* The cell of an operation. */
static inline hk_meter_cell *hk_meter_at(hk_meter *m, unsigned kind, uint64_t bytes) {
  /* relaxed: this thread, or the one that counted before, has made it */
  hk_meter_cell *row = atomic_load_explicit(&m->rows[kind], memory_order_relaxed);
  if (__builtin_expect(!row, 0) && !(row = hk_meter_make_row(m, kind))) return &m->unused;
  return &row[hk_meter_class(bytes)];
}

/* An operation begins. Returns whether it is a sample. */
static inline bool hk_meter_count(hk_meter_cell *c, uint64_t bytes) {
  /* relaxed, all: one thread at a time writes them, and a reader takes each alone */
  const uint64_t calls = atomic_load_explicit(&c->calls, memory_order_relaxed) + 1;
  atomic_store_explicit(&c->calls, calls, memory_order_relaxed);
  atomic_store_explicit(&c->bytes, atomic_load_explicit(&c->bytes, memory_order_relaxed) + bytes, memory_order_relaxed);
  return __builtin_expect(calls >= c->next, 0);
}
/* The newest operation of that cell, a sample, took that long and is over now. */
void hk_meter_sampled(hk_meter *m, hk_meter_cell *c, uint64_t ns, uint64_t now_ns);
/* The same for an operation that is timed for its own sake. */
void hk_meter_timed(hk_meter *m, hk_meter_cell *c, uint64_t ns, uint64_t now_ns);
/* An operation begins now whose end is not known. */
void hk_meter_note(hk_meter *m, hk_meter_cell *c, uint64_t now_ns);
/* relaxed: a statistic */
static inline void hk_meter_event(_Atomic(uint64_t) *n) { atomic_fetch_add_explicit(n, 1, memory_order_relaxed); }

/* ---- for who reads ---- */
typedef struct hk_meter_value {
  uint8_t kind, size_class;
  uint64_t calls, bytes, ns; /* ns 0: not known */
} hk_meter_value;
enum { HK_METER_VALUES = HK_METER_KINDS * HK_METER_CLASSES };
/* All cells with calls. Returns their number. */
int hk_meter_read(const hk_meter *m, hk_meter_value out[HK_METER_VALUES]);
uint64_t hk_meter_calls(const hk_meter *m, unsigned kind);
/* The time since the last operation began or ended; UINT64_MAX: there was none. Most short operations have no time.
 * So it is too short by at most the time since the question before, and the first answer is too long by the time since
 * the last sample. One thread at a time asks. */
uint64_t hk_meter_idle_ns(hk_meter *m, uint64_t now_ns);
