/* SPDX-License-Identifier: Apache-2.0 */
/* The board: see shm.h. */
#include <string.h>
#include "shm.h"

void hk_board_post(hk_board *b, const hk_board_op *op) {
  uint64_t words[4];
  memcpy(words, op, sizeof words);
  for (int i = 0; i < 3; i++)
    /* release: a reader that sees one of these words also sees that the other entry, posted before, is the newest now,
     * and by that knows that what it is reading is being replaced */
    atomic_store_explicit(&b->entry[op->sequence & 1].words[i], words[i + 1], memory_order_release);
  /* release: who sees the number sees the words */
  atomic_store_explicit(&b->entry[op->sequence & 1].sequence, op->sequence, memory_order_release);
}

static uint64_t newest(const hk_board *b) {
  /* acquire: pairs with the number's release in hk_board_post */
  uint64_t even = atomic_load_explicit(&b->entry[0].sequence, memory_order_acquire);
  uint64_t odd = atomic_load_explicit(&b->entry[1].sequence, memory_order_acquire);
  return even > odd ? even : odd;
}

bool hk_board_read(const hk_board *b, hk_board_op *out) {
  enum { TRIES = 16 };
  for (int t = 0; t < TRIES; t++) {
    uint64_t words[4] = {newest(b)};
    if (words[0] == 0) return false;
    for (int i = 0; i < 3; i++)
      /* acquire: pairs with the words' release, so that the look at the numbers below is not older than these */
      words[i + 1] = atomic_load_explicit(&b->entry[words[0] & 1].words[i], memory_order_acquire);
    if (newest(b) != words[0]) continue;
    memcpy(out, words, sizeof words);
    return true;
  }
  return false;
}
