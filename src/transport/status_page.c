/* SPDX-License-Identifier: Apache-2.0 */
/* Reading operations on status pages, and call checks: status_page.h. */
#include "status_page.h"
#include <string.h>

bool hk_status_page_read_at(const hk_status_page *b, uint64_t sequence, hk_status_page_op *out) {
  uint64_t words[4] = {sequence}, k = sequence % HK_STATUS_PAGE_ENTRIES;
  /* acquire: pairs with the number's release in hk_status_page_put */
  if (sequence == 0 || atomic_load_explicit(&b->entry[k].sequence, memory_order_acquire) != sequence) return false;
  for (int i = 0; i < 3; i++)
    /* acquire: pairs with the words' release, so that the number read below is not older than these */
    words[i + 1] = atomic_load_explicit(&b->entry[k].words[i], memory_order_acquire);
  /* relaxed: ordered by the words' acquire */
  uint64_t before = atomic_load_explicit(&b->entry[(k + HK_STATUS_PAGE_ENTRIES - 1) % HK_STATUS_PAGE_ENTRIES].sequence,
                                         memory_order_relaxed);
  if (before > sequence) return false;
  memcpy(out, words, sizeof words);
  return true;
}

bool hk_status_page_read(const hk_status_page *b, hk_status_page_op *out) {
  enum { TRIES = 16 };
  for (int t = 0; t < TRIES; t++) {
    uint64_t newest = 0;
    for (int k = 0; k < HK_STATUS_PAGE_ENTRIES; k++) {
      /* relaxed: hk_status_page_read_at reads it again */
      uint64_t sequence = atomic_load_explicit(&b->entry[k].sequence, memory_order_relaxed);
      if (sequence > newest) newest = sequence;
    }
    if (newest == 0) return false;
    if (hk_status_page_read_at(b, newest, out)) return true;
  }
  return false;
}

bool hk_claim(hk_call_checks *c, uint64_t sequence, uint32_t signature) {
  _Atomic uint64_t *at = &c->word[sequence % HK_CALL_CHECKS];
  uint64_t mine = (uint64_t)(uint32_t)sequence << 32 | signature;
  /* acquire: a rank that finds another's check will read that rank's status page, published before */
  uint64_t seen = atomic_load_explicit(at, memory_order_acquire);
  for (;;) {
    int32_t ahead = (int32_t)((uint32_t)(seen >> 32) - (uint32_t)sequence);
    if (ahead == 0) return seen == mine;
    if (ahead > 0 && seen) return true; /* a later operation uses the word already */
    /* release: this rank's status page, for ranks that find its check; acquire: as above */
    if (atomic_compare_exchange_weak_explicit(at, &seen, mine, memory_order_acq_rel, memory_order_acquire)) return true;
  }
}
