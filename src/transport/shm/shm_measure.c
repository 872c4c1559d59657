/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Measures from which size process_vm_readv is faster than two copies through a slot, and how long it takes. That
 * depends on the processor (docs/results/cpu.md), so one rank of each host times both ways at init, while no other rank
 * takes part: it fills slots on its own core, and reads them, by itself or by the kernel, on another rank's. There the
 * data comes from another core's cache, as in a collective. The least of several times is used, so other work on the
 * machine has little effect.
 *
 * Each repetition uses another place of a payload area: lines that are still in the reader's cache are slower to write
 * than the lines of a long message.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h> /* getpid */
#include "../../base/log.h"
#include "shm_state.h"

enum { MOST = HK_SHM_CMA_MIN_BYTES, REPEATS = 8, PAGE = 4096, ENOUGH_NS = 8000000 };
static const uint32_t sizes[] = {HK_SHM_CMA_LEAST_BYTES, MOST}; /* the first one that is faster counts */

typedef struct bench {
  char *from, *to, *payload; /* MOST bytes each, payload for each of the places */
  size_t places;
  int writer, reader; /* processors */
} bench;

typedef struct times {
  uint64_t write, read, cma, again; /* in ns; again: a second copy by CMA, which finds the data in its cache */
} times;

/* False if the kernel refuses it. */
static bool shm_measure_go(int cpu) {
  cpu_set_t one;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

static void shm_measure_note(uint64_t *best, uint64_t begin) {
  const uint64_t ns = hk_now_ns() - begin;
  if (ns < *best) *best = ns;
}

/* The place of a payload area that repetition `i` writes. */
static char *shm_measure_place(const bench *b, size_t i) { return b->payload + i % b->places * MOST; }

/* The time of a copy to the place. */
static void shm_measure_write(const bench *b, char *place, size_t bytes, uint64_t *best) {
  for (size_t at = 0; at < bytes; at += PAGE) ((volatile char *)place)[at] = 0; /* no page faults later */
  const uint64_t begin = hk_now_ns();
  memcpy(place, b->from, bytes);
  shm_measure_note(best, begin);
}

/* The least times for so many bytes. Both ways read what the writer has just written, each from another place. */
static times shm_measure_size(const bench *b, size_t bytes) {
  times best = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
  const uint64_t first = hk_now_ns();
  for (size_t i = 0; i < REPEATS && (!i || hk_ago_ns(hk_now_ns(), first) < ENOUGH_NS); i++) {
    char *slot = shm_measure_place(b, 2 * i), *source = shm_measure_place(b, 2 * i + 1);
    (void)shm_measure_go(b->writer);
    shm_measure_write(b, slot, bytes, &best.write);
    shm_measure_write(b, source, bytes, &best.write);
    (void)shm_measure_go(b->reader);
    uint64_t begin = hk_now_ns();
    memcpy(b->to, slot, bytes);
    shm_measure_note(&best.read, begin);
    for (int k = 0; k < 2; k++) {
      begin = hk_now_ns();
      if (hk_shm_cma_read(getpid(), (uint64_t)(uintptr_t)source, b->to, bytes) == 0)
        shm_measure_note(k ? &best.again : &best.cma, begin);
    }
  }
  return best;
}

/* Finds two processors: the rank's, and the peer's or another that the rank may use. */
static bool shm_measure_places(bench *b, const cpu_set_t *may, int peers) {
  b->writer = sched_getcpu();
  b->reader = peers;
  if (peers != b->writer && shm_measure_go(peers)) return b->writer >= 0;
  for (b->reader = 0; b->reader < CPU_SETSIZE; b->reader++)
    if (b->reader != b->writer && CPU_ISSET(b->reader, may)) return b->writer >= 0;
  return false;
}

/* *from, *time: as in hk_shm_cma_times. */
static void shm_measure_all(const bench *b, uint32_t *from, uint32_t *time) {
  *from = UINT32_MAX;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(sizes); i++) {
    const times t = shm_measure_size(b, sizes[i]);
    /* Some programs write their data between calls, others do not. */
    const uint64_t slot = t.write + t.read, cma = (t.cma + t.again) / 2;
    if (*from == UINT32_MAX && cma < slot) *from = sizes[i];
    *time = (uint32_t)(2000 * cma / (slot + 1)) + 1;
    HK_INFO(HK_SUB_SHM,
            "%u KiB take %.1f us through a slot and %.1f us by process_vm_readv, %.1f us from the reader's cache",
            sizes[i] >> 10, (double)slot / 1e3, (double)t.cma / 1e3, (double)t.again / 1e3);
  }
}

static void shm_measure_put(hk_shm_cma_times *k, uint32_t from, uint32_t time) {
  atomic_store_explicit(&k->from, from, memory_order_relaxed); /* ordered by `time` */
  /* release: pairs with the acquire in hk_shm_process_measured */
  atomic_store_explicit(&k->time, time, memory_order_release);
}

void hk_shm_cma_measure(const hk_shm_state *s, int peer, int cpu) {
  const hk_shm_process *p = s->process;
  const hk_shm_arena *a = &p->arena;
  const hk_link_key key = {.peer = peer, .kind = HK_LINK_SEND, .channel = HK_CHANNEL_P2P};
  bench b = {.places = a->large / MOST}; /* 0 or 1 with very small slots */
  uint32_t from = MOST, time;
  cpu_set_t may;
  hk_link link;
  hk_shm_process_measured(p, &from, &time);
  /* sched_getaffinity fails with more processors than the set holds */
  const bool pins = !time && b.places > 1 && sched_getaffinity(0, sizeof may, &may) == 0;
  if (pins && shm_measure_places(&b, &may, cpu) && (b.from = aligned_alloc(PAGE, 2 * MOST))) {
    b.to = b.from + MOST;
    memset(b.from, 1, 2 * MOST); /* no page faults later */
    hk_shm_arena_link(a, &key, (uint32_t)p->index[s->base.env->rank], (uint32_t)p->index[peer], &link);
    b.payload = link.payload;
    shm_measure_all(&b, &from, &time);
  }
  if (pins) (void)sched_setaffinity(0, sizeof may, &may);
  if (!time) from = MOST;
  shm_measure_put(hk_shm_arena_cma(a), from, time);
  if (from == UINT32_MAX)
    HK_INFO(HK_SUB_SHM, "private memory goes through slots (HOCKET_CMA=0 or 1 decides)");
  else
    HK_INFO(HK_SUB_SHM, "private memory of %u KiB and more goes by process_vm_readv%s (HOCKET_CMA=0 or 1 decides)",
            from >> 10, time ? "" : ": a default, because nothing can be measured with one processor or such slots");
  free(b.from);
}
