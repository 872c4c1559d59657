/* SPDX-License-Identifier: Apache-2.0 */
/* Sinks and the copy pattern; the reductions' patterns are in data_reduce.c. */
#include "data.h"
#include <math.h>
#include <string.h>
#include "data_reduce.h"

/* Counts elements whose bits differ, in a loop that vectorises: equal data, the usual case, runs at memory speed. */
static uint64_t data_differing(const void *got, const void *want, size_t count, size_t size) {
  uint64_t n = 0;
#define COUNT(T)                                                                                                       \
  do {                                                                                                                 \
    const T *a = got, *b = want;                                                                                       \
    unsigned sum = 0;                                                                                                  \
    for (size_t i = 0; i < count; i++) sum += a[i] != b[i];                                                            \
    n = sum;                                                                                                           \
  } while (0)
  if (size == 1)
    COUNT(uint8_t);
  else if (size == 2)
    COUNT(uint16_t);
  else if (size == 4)
    COUNT(uint32_t);
  else
    COUNT(uint64_t);
#undef COUNT
  return n;
}

/* Counts wrong elements. +0 equals -0, and a difference up to `slack` (may be NULL) is allowed. */
static uint64_t data_beyond(const perf_data *d, const void *got, const void *want, const double *exact,
                            const double *slack, size_t count) {
  uint64_t n = 0;
  size_t size = perf_type_size(d->type);
  for (size_t i = 0; i < count; i++) {
    double g = perf_type_decode(d->type, got, i);
    if (slack)
      n += !(fabs(g - exact[i]) <= slack[i]); /* in this form a NaN counts */
    else if (memcmp((const char *)got + i * size, (const char *)want + i * size, size))
      n += !(g == 0 && perf_type_decode(d->type, want, i) == 0);
  }
  return n;
}

/* Writes or compares one chunk. It is ready in `chunk`; a result that rounds has exact and slack in its place. */
static void data_sink(perf_data *d, size_t at, const void *chunk, const double *exact, const double *slack,
                      size_t count, bool bits_only) {
  size_t size = perf_type_size(d->type);
  char *place = d->base + at * size;
  if (!d->compare) {
    if (d->mem->direct)
      memcpy(place, chunk, count * size);
    else if (d->mem->put(place, chunk, count * size))
      perf_fail(PERF_INTERNAL, "cannot copy test data to the device");
    return;
  }
  static _Thread_local _Alignas(64) char fetched[PERF_CHUNK * 8];
  const void *got = place;
  if (!d->mem->direct || (uintptr_t)place % size) {
    if (d->mem->get(fetched, place, count * size)) perf_fail(PERF_INTERNAL, "cannot copy results from the device");
    got = fetched;
  }
  uint64_t n = slack ? 1 : data_differing(got, chunk, count, size);
  if (n && !bits_only) n = data_beyond(d, got, chunk, exact, slack, count);
  d->wrong += n;
}

static uint32_t data_key_of(const perf_data *d, unsigned a, unsigned b, uint64_t chunk_index) {
  uint32_t k = perf_hash(d->seed * 0x9e3779b9u + 1);
  k = perf_hash(k ^ (a * 0x85ebca6bu + 0x1234567u));
  k = perf_hash(k ^ (b * 0xc2b2ae35u + 0x7654321u));
  return perf_hash(k ^ (uint32_t)chunk_index ^ perf_hash((uint32_t)(chunk_index >> 32)));
}

void perf_emit_block(perf_data *d, size_t at, size_t count, unsigned from, unsigned to) {
  static _Thread_local _Alignas(64) uint32_t words[PERF_CHUNK * 2];
  size_t size = perf_type_size(d->type);
  for (size_t done = 0; done < count; done += PERF_CHUNK) {
    size_t n = count - done < PERF_CHUNK ? count - done : PERF_CHUNK;
    uint32_t key = data_key_of(d, from, to, done / PERF_CHUNK);
    for (uint32_t i = 0; i < (n * size + 3) / 4; i++) words[i] = perf_hash(key + i * 0x9e3779b9u);
    data_sink(d, at + done, words, NULL, NULL, n, true);
  }
}

/* The index space of reductions is divided into aligned chunks, so that any part of the vector can be made
 * separately. */
static void data_emit_reduction(perf_data *d, size_t at, size_t count, size_t first, bool result) {
  static _Thread_local perf_reduce_chunk c;
  size_t size = perf_type_size(d->type);
  perf_reduce_plan plan;
  perf_reduce_prepare(&plan, d->type, d->op, d->nranks, d->rank);
  for (size_t done = 0; done < count;) {
    size_t skip = (first + done) % PERF_CHUNK, n = PERF_CHUNK - skip;
    if (n > count - done) n = count - done;
    uint32_t key = data_key_of(d, 0xffffffffu, 0, (first + done) / PERF_CHUNK);
    if (result)
      perf_reduce_result(&plan, key, &c);
    else
      perf_reduce_part(&plan, key, &c);
    bool rounds = result && plan.rounds;
    data_sink(d, at + done, (const char *)c.bits + skip * size, rounds ? c.exact + skip : NULL,
              rounds ? c.slack + skip : NULL, n, false);
    done += n;
  }
}

void perf_emit_part(perf_data *d, size_t at, size_t count, size_t first) {
  data_emit_reduction(d, at, count, first, false);
}

void perf_emit_result(perf_data *d, size_t at, size_t count, size_t first) {
  data_emit_reduction(d, at, count, first, true);
}

void perf_emit_zero(perf_data *d, size_t at, size_t count) {
  static const _Alignas(64) char zeros[PERF_CHUNK * 8];
  for (size_t done = 0; done < count; done += PERF_CHUNK) {
    size_t n = count - done < PERF_CHUNK ? count - done : PERF_CHUNK;
    data_sink(d, at + done, zeros, NULL, NULL, n, true);
  }
}
