/* SPDX-License-Identifier: Apache-2.0 */
/* What memory held before its last stores, for loads that may still see that: a table of places of 16 bytes, by what
 * memory they are, so that all addresses of one place find it.  An old entry that another place needs is forgotten. */
#include "history.h"
#include <stdlib.h>
#include <string.h>
#include "../cudaemu/emu.h"

enum { BUCKETS = 1 << 15, DEPTH = 4 };
typedef struct past {
  uint64_t key, time, released; /* released: the time for its own device */
  uint32_t block;               /* that stored; a number of its own */
  uint16_t mask;                /* of the bytes that were stored */
  int16_t device;
  unsigned char old[16];
} past;
typedef struct bucket {
  uint8_t busy, next;
  past entry[DEPTH];
} bucket;
static bucket *table;
static uint64_t clock_now;

void ptx_history_begin(void) {
  static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&once);
  if (!table && !(table = calloc(BUCKETS, sizeof *table))) abort();
  pthread_mutex_unlock(&once);
}
uint64_t ptx_history_now(void) {
  return __atomic_load_n(&clock_now, __ATOMIC_ACQUIRE);
} /* acquire: after what is read */

uint64_t ptx_history_tick(void) {
  return __atomic_add_fetch(&clock_now, 1, __ATOMIC_ACQ_REL); /* release: what was stored comes first */
}

static uint64_t key_of(ptx_warp *w, uint64_t at) {
  for (int k = 0; k < 4; k++)
    if (at - w->area[k].at < w->area[k].bytes) return (at - w->area[k].at + w->area[k].key) >> 4;
  const unsigned k = w->next_area++ % 4;
  emu_memory_area(at, &w->area[k].at, &w->area[k].bytes, &w->area[k].key);
  return (at - w->area[k].at + w->area[k].key) >> 4;
}
static bucket *take(uint64_t key) {
  bucket *b = &table[(key ^ key >> 25) % BUCKETS];
  while (__atomic_exchange_n(&b->busy, 1, __ATOMIC_ACQUIRE)) /* acquire: what the last one left */
    ;
  return b;
}
static void give(bucket *b) { __atomic_store_n(&b->busy, 0, __ATOMIC_RELEASE); /* release: to the next one */ }

void ptx_history_store(ptx_warp *w, uint64_t at, const void *data, unsigned bytes, bool strong, uint64_t released) {
  const uint64_t key = key_of(w, at);
  const unsigned from = (unsigned)(at & 15);
  bucket *b = take(key);
  past *p = &b->entry[b->next++ % DEPTH];
  p->key = key;
  p->block = w->block->id;
  p->device = (int16_t)w->grid->l.device;
  p->mask = (uint16_t)(((1u << bytes) - 1) << from);
  memcpy(p->old + from, (const void *)(uintptr_t)at, bytes);
  ptx_write_piece(data, at, bytes, strong);
  p->time = ptx_history_tick();
  p->released = released ? released : p->time;
  give(b);
}

void ptx_history_load(ptx_warp *w, uint64_t at, unsigned char *data, unsigned bytes, uint64_t seen_gpu,
                      uint64_t seen_sys) {
  const uint64_t key = key_of(w, at);
  const unsigned from = (unsigned)(at & 15);
  bucket *b = &table[(key ^ key >> 25) % BUCKETS];
  bool some = false;
  for (int k = 0; k < DEPTH; k++) some |= b->entry[k].key == key; /* a hint: a miss in a race is a newer value */
  if (!some) return;
  b = take(key);
  for (int k = 0; k < DEPTH; k++) { /* from the newest */
    const past *p = &b->entry[(unsigned)(b->next - 1 - k) % DEPTH];
    if (p->key != key) continue;
    if (p->block == w->block->id) break;
    if (p->device == w->grid->l.device ? p->released <= seen_gpu : p->time <= seen_sys) break;
    for (unsigned i = 0; i < bytes; i++)
      if (p->mask >> (from + i) & 1) data[i] = p->old[from + i];
  }
  give(b);
}

/* ---- the host's memory ---- */

enum { KEPT = 64 };
struct ptx_kept { /* 16 bytes as a block has read them */
  uint64_t place;
  uint32_t age;
  uint16_t mask;
  unsigned char data[16];
};
void ptx_history_load_host(ptx_block *b, uint64_t at, unsigned char *data, unsigned bytes) {
  if (!b->kept && !(b->kept = calloc(KEPT, sizeof *b->kept))) abort();
  struct ptx_kept *k = &b->kept[(at >> 4) % KEPT];
  const unsigned from = (unsigned)(at & 15);
  if (k->place != at >> 4 || k->age != b->age) *k = (struct ptx_kept){.place = at >> 4, .age = b->age};
  for (unsigned i = from; i < from + bytes; i++)
    if (k->mask >> i & 1)
      data[i - from] = k->data[i];
    else
      k->data[i] = data[i - from];
  k->mask |= (uint16_t)(((1u << bytes) - 1) << from);
}
void ptx_history_store_host(ptx_block *b, uint64_t at) {
  struct ptx_kept *k = b->kept ? &b->kept[(at >> 4) % KEPT] : NULL;
  if (k && k->place == at >> 4) k->mask = 0;
}
