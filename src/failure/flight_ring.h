/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ring of the flight recorder (flight.h).
 *
 * A call costs a store of one cache line. The dearest part of a record would be to read the processor's counter, so a
 * short operation does that only if it waits for so long that it yields its core. Of the others one in
 * HK_FLIGHT_SAMPLE has the time of its begin, and none has that of its end.
 */
#pragma once
#include <stdatomic.h>
#include "../base/wait.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../kernels/plan.h"
#include "../program/operation.h"

struct hk_activity; /* boot/activity.h */

enum { HK_FLIGHT_NAMES = 64, HK_FLIGHT_NAME = 24 };
enum { HK_FLIGHT_SAMPLE = 16 };
enum { HK_FLIGHT_OPEN = 0, HK_FLIGHT_UNTIMED = 1 }; /* values of `end` that are no time */
enum { HK_FLIGHT_ENQUEUED = 1 };                    /* a flag: the entry's time is that of its place on a stream */

/* 0 while the entry is being replaced. */
typedef struct hk_flight_entry {
  _Alignas(64) _Atomic(uint64_t) number; /* counts the rank's operations, sends and receives included, from 1 */
  _Atomic(uint64_t) sequence;            /* of a collective: its number on all ranks; 0: a send or receive */
  _Atomic(uint64_t) count, kind;         /* as in hk_call */
  _Atomic(uint64_t) apart;               /* output minus input, in bytes */
  _Atomic(uint64_t) begin, end;          /* ticks; begin 0: not known */
  _Atomic(uint64_t) extra;               /* flags, and from bit 8 on: 1 + the algorithm's index in `names` */
} hk_flight_entry;
_Static_assert(sizeof(hk_flight_entry) == 64, "one cache line");

typedef struct hk_flight {
  hk_flight_entry *ring;
  uint64_t mask;                 /* entries of the ring, less 1 */
  uint64_t records;              /* how many of them the user wants */
  uint64_t number;               /* of the newest entry; the writer's own */
  uint64_t sequence, collective; /* of the newest collective: its number among collectives, and its entry's */
  _Atomic(uint32_t) nnames;
  char names[HK_FLIGHT_NAMES][HK_FLIGHT_NAME];
  uint64_t ticks0, now0;                               /* the two clocks when it was made */
  void (*report)(void *comm, struct hk_activity *out); /* hk_flight_report */
} hk_flight;                                           /* flight.c has more after it */

/* The processor's counter, which is the cheapest clock; its rate is found when a file is written. */
static inline uint64_t hk_flight_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t t;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
  return hk_now_ns();
#endif
}

/* 1 + the index of the name of a program's algorithm; HK_FLIGHT_NAMES + 1: there are too many. */
uint8_t hk_flight_name(hk_flight *f, const struct hk_program *p);

/* Begins an entry. `name`: of hk_flight_name; 0: none. `timed`: its begin has a time in any case. Returns its
 * number. */
static inline uint64_t hk_flight_put(hk_flight *f, const hk_call *call, uint64_t sequence, unsigned name,
                                     unsigned flags, bool timed) {
  const uint64_t number = ++f->number;
  hk_flight_entry *e = &f->ring[number & f->mask];
  uint64_t begin = 0;
  if (timed || number % HK_FLIGHT_SAMPLE == 0) begin = hk_flight_ticks();
  /* relaxed: the release stores below keep their order after it */
  atomic_store_explicit(&e->number, 0, memory_order_relaxed);
  /* release, for all seven: a reader that sees one of these words also sees that the number is not the earlier one */
  atomic_store_explicit(&e->sequence, sequence, memory_order_release);
  atomic_store_explicit(&e->count, call->count, memory_order_release);
  atomic_store_explicit(&e->kind, call->kind, memory_order_release);
  atomic_store_explicit(&e->apart, (uint64_t)((uintptr_t)call->out - (uintptr_t)call->in), memory_order_release);
  atomic_store_explicit(&e->begin, begin, memory_order_release);
  atomic_store_explicit(&e->end, HK_FLIGHT_OPEN, memory_order_release);
  atomic_store_explicit(&e->extra, flags | (uint64_t)name << 8, memory_order_release);
  /* release: a reader that sees the number sees the words */
  atomic_store_explicit(&e->number, number, memory_order_release);
  return number;
}

/* The communicator's collective has begun. A second call for the same collective does nothing. */
static inline void hk_flight_begin(ncclComm_t c, const hk_call *call, const hk_plan *plan, bool timed) {
  hk_flight *f = c->flight;
  if (!f || f->sequence == c->order.sequence) return;
  hk_plan *own = (hk_plan *)(uintptr_t)plan; /* the communicator's */
  if (__builtin_expect(!own->flight_name, 0)) own->flight_name = hk_flight_name(f, plan->program);
  f->sequence = c->order.sequence;
  f->collective = hk_flight_put(f, call, f->sequence, own->flight_name, 0, timed);
}
/* A send or receive has begun. Returns its number; 0: there is no recorder. */
static inline uint64_t hk_flight_transfer(ncclComm_t c, const hk_call *call, bool timed) {
  return c->flight ? hk_flight_put(c->flight, call, 0, 0, 0, timed) : 0;
}
/* The operation of that entry waits: its begin gets a time, unless it has one. */
static inline void hk_flight_waits(ncclComm_t c, uint64_t number) {
  hk_flight *f = c->flight;
  if (!f) return;
  hk_flight_entry *e = &f->ring[number & f->mask];
  /* relaxed, all: this thread has written them, and the time is meaningful alone */
  if (atomic_load_explicit(&e->number, memory_order_relaxed) != number) return;
  if (atomic_load_explicit(&e->begin, memory_order_relaxed)) return;
  atomic_store_explicit(&e->begin, hk_flight_ticks(), memory_order_relaxed);
}
/* The operation of that entry is over. `timed`: it took long enough that its end is worth a read of the clock. */
static inline void hk_flight_over(ncclComm_t c, uint64_t number, bool timed) {
  hk_flight *f = c->flight;
  if (!f) return;
  hk_flight_entry *e = &f->ring[number & f->mask];
  /* relaxed: this thread has written it. Another number: later operations have replaced the entry */
  if (atomic_load_explicit(&e->number, memory_order_relaxed) != number) return;
  /* relaxed: meaningful alone */
  atomic_store_explicit(&e->end, timed ? hk_flight_ticks() : HK_FLIGHT_UNTIMED, memory_order_relaxed);
}
static inline void hk_flight_collective_over(ncclComm_t c, bool timed) {
  if (c->flight) hk_flight_over(c, c->flight->collective, timed);
}
static inline void hk_flight_collective_waits(ncclComm_t c) {
  if (c->flight) hk_flight_waits(c, c->flight->collective);
}
/* An operation is on its stream. */
static inline void hk_flight_enqueued(ncclComm_t c, const hk_call *call) {
  hk_flight *f = c->flight;
  if (f) (void)hk_flight_put(f, call, call->coll == HK_SENDRECV ? 0 : c->order.sequence, 0, HK_FLIGHT_ENQUEUED, true);
}
