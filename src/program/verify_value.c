/* SPDX-License-Identifier: Apache-2.0 */
/* Symbolic values: which ranks' inputs a value contains, as sets that are shared until they change. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "verify_internal.h"

void hk_set_pool_init(hk_set_pool *p, int nranks) {
  memset(p, 0, sizeof *p);
  p->words = ((unsigned)nranks + 63) / 64;
  p->set_bytes = sizeof(hk_rank_set) + p->words * sizeof(uint64_t);
  p->free = HK_NO_SET;
}

void hk_set_pool_free(hk_set_pool *p) {
  for (size_t i = 0; i < p->nchunks; i++) free(p->chunks[i]);
  free(p->chunks);
  memset(p, 0, sizeof *p);
}

static bool verify_value_add_chunk(hk_set_pool *p) {
  if (!HK_RESERVE(p->chunks, p->capacity, p->nchunks + 1)) return false;
  char *c = malloc(p->set_bytes * HK_SETS_PER_CHUNK);
  if (!c) return false;
  p->chunks[p->nchunks++] = c;
  return true;
}

/* A set with one reference and undefined content; HK_NO_SET when memory is out. */
static uint32_t verify_value_take_set(hk_set_pool *p) {
  uint32_t i = p->free;
  if (i != HK_NO_SET) {
    p->free = hk_set_at(p, i)->count;
  } else {
    if (p->used == p->nchunks * HK_SETS_PER_CHUNK && (p->used == HK_NO_SET || !verify_value_add_chunk(p)))
      return HK_NO_SET;
    i = p->used++;
  }
  hk_set_at(p, i)->refs = 1;
  return i;
}

void hk_value_release_set(hk_set_pool *p, uint32_t set) {
  hk_set_at(p, set)->count = p->free;
  p->free = set;
}

static inline bool verify_value_set_has(const hk_rank_set *s, unsigned rank) {
  return s->words[rank / 64] >> rank % 64 & 1;
}

bool hk_value_has(const hk_set_pool *p, hk_value x, unsigned rank) {
  if (hk_value_kind(x) == HK_VALUE_LEAF) return hk_value_index(x) == rank;
  return hk_value_kind(x) == HK_VALUE_SUM && verify_value_set_has(hk_set_at(p, hk_value_index(x)), rank);
}

/* A sum with the content of x and a single reference; consumes x. NONE if out of memory. */
static hk_value verify_value_own(hk_set_pool *p, hk_value x) {
  bool sum = hk_value_kind(x) == HK_VALUE_SUM;
  if (sum && hk_set_at(p, hk_value_index(x))->refs == 1) return x;
  uint32_t fresh = verify_value_take_set(p);
  if (fresh == HK_NO_SET) return HK_VALUE_NONE;
  hk_rank_set *s = hk_set_at(p, fresh);
  if (sum) {
    const hk_rank_set *old = hk_set_at(p, hk_value_index(x));
    s->count = old->count;
    memcpy(s->words, old->words, p->words * sizeof *s->words);
  } else {
    s->count = 1;
    memset(s->words, 0, p->words * sizeof *s->words);
    s->words[hk_value_index(x) / 64] = (uint64_t)1 << hk_value_index(x) % 64;
  }
  hk_value_drop(p, x);
  return hk_value_make(HK_VALUE_SUM, fresh, hk_value_block(x));
}

/* Adds the ranks of b to the set `to`; returns the first rank that was in it already, or -1. */
static int verify_value_merge(hk_rank_set *to, const hk_set_pool *p, hk_value b) {
  if (hk_value_kind(b) == HK_VALUE_LEAF) {
    unsigned rank = hk_value_index(b);
    if (verify_value_set_has(to, rank)) return (int)rank;
    to->words[rank / 64] |= (uint64_t)1 << rank % 64;
    to->count++;
    return -1;
  }
  const hk_rank_set *s = hk_set_at(p, hk_value_index(b));
  for (unsigned w = 0; w < p->words; w++) {
    uint64_t both = to->words[w] & s->words[w];
    if (both) return (int)(w * 64) + __builtin_ctzll(both);
    to->words[w] |= s->words[w];
  }
  to->count += s->count;
  return -1;
}

hk_value hk_value_add(hk_set_pool *p, hk_value a, hk_value b, int *twice) {
  *twice = -1;
  /* Let `a` be the one whose set can be changed in place. */
  if (hk_value_kind(b) == HK_VALUE_SUM && hk_set_at(p, hk_value_index(b))->refs == 1) {
    hk_value swap = a;
    a = b;
    b = swap;
  }
  a = verify_value_own(p, a);
  if (hk_value_kind(a) == HK_VALUE_NONE) return a;
  *twice = verify_value_merge(hk_set_at(p, hk_value_index(a)), p, b);
  hk_value_drop(p, b);
  if (*twice < 0) return a;
  hk_value_drop(p, a);
  return HK_VALUE_NONE;
}
