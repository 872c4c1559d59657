/* SPDX-License-Identifier: Apache-2.0 */
/* Posting operations on boards, reading them, and claims: board.h. */
#include "board.h"
#include <string.h>

void hk_board_post(hk_board *b, const hk_board_op *op) {
  uint64_t words[4];
  memcpy(words, op, sizeof words);
  hk_board_put(b, words[0], words[1], words[2], words[3]);
}

bool hk_board_read_at(const hk_board *b, uint64_t sequence, hk_board_op *out) {
  uint64_t words[4] = {sequence}, k = sequence % HK_BOARD_ENTRIES;
  /* acquire: pairs with the number's release in hk_board_put */
  if (sequence == 0 || atomic_load_explicit(&b->entry[k].sequence, memory_order_acquire) != sequence) return false;
  for (int i = 0; i < 3; i++)
    /* acquire: pairs with the words' release, so that the number read below is not older than these */
    words[i + 1] = atomic_load_explicit(&b->entry[k].words[i], memory_order_acquire);
  /* relaxed: ordered by the words' acquire */
  uint64_t before =
      atomic_load_explicit(&b->entry[(k + HK_BOARD_ENTRIES - 1) % HK_BOARD_ENTRIES].sequence, memory_order_relaxed);
  if (before > sequence) return false;
  memcpy(out, words, sizeof words);
  return true;
}

bool hk_board_read(const hk_board *b, hk_board_op *out) {
  enum { TRIES = 16 };
  for (int t = 0; t < TRIES; t++) {
    uint64_t newest = 0;
    for (int k = 0; k < HK_BOARD_ENTRIES; k++) {
      /* relaxed: hk_board_read_at reads it again */
      uint64_t sequence = atomic_load_explicit(&b->entry[k].sequence, memory_order_relaxed);
      if (sequence > newest) newest = sequence;
    }
    if (newest == 0) return false;
    if (hk_board_read_at(b, newest, out)) return true;
  }
  return false;
}

bool hk_claim(hk_claims *c, uint64_t sequence, uint32_t signature) {
  _Atomic uint64_t *at = &c->word[sequence % HK_CLAIMS];
  uint64_t mine = (uint64_t)(uint32_t)sequence << 32 | signature;
  /* acquire: a rank that finds another's claim will read that rank's board, posted before */
  uint64_t seen = atomic_load_explicit(at, memory_order_acquire);
  for (;;) {
    int32_t ahead = (int32_t)((uint32_t)(seen >> 32) - (uint32_t)sequence);
    if (ahead == 0) return seen == mine;
    if (ahead > 0 && seen) return true; /* a later operation uses the word already */
    /* release: this rank's board, for ranks that find its claim; acquire: as above */
    if (atomic_compare_exchange_weak_explicit(at, &seen, mine, memory_order_acq_rel, memory_order_acquire)) return true;
  }
}
