/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on status pages, from a struct instead of words. */
#pragma once
#include "../../src/transport/status_page.h"
#include <string.h>

static inline void status_page_publish(hk_status_page *b, const hk_status_page_op *op) {
  uint64_t words[4];
  memcpy(words, op, sizeof words);
  hk_status_page_put(b, words[0], words[1], words[2], words[3]);
}
