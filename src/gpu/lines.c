/* SPDX-License-Identifier: Apache-2.0 */
/* LL lines, the CPU's side (lines.h). */
#include "lines.h"
#include <string.h>

enum { PAIR = 8 }; /* bytes of data in 16 of lines */

/* Relaxed, both: data and flag are one access of 8 aligned bytes, on the CPU and over PCI. So the data is valid if its
 * flag is, and lines need no order among each other. A line is written again only after its slot's credit, which the
 * reader stores after it has read the line. litmus: proxied_lines_send, proxied_lines_receive */
static uint64_t lines_get(const uint64_t *line) { return __atomic_load_n(line, __ATOMIC_RELAXED); }
static void lines_put(uint64_t *line, uint32_t flag, uint32_t data) {
  __atomic_store_n(line, (uint64_t)flag << 32 | data, __ATOMIC_RELAXED);
}

/* Kernels write and poll words in pairs, so data is padded to a multiple of 8 bytes. */
/* The data of a pair of lines. `wrong` keeps a bit if a line does not have the flag. */
static uint64_t lines_take_pair(const uint64_t *from, uint32_t flag, uint64_t *wrong) {
  const uint64_t a = lines_get(&from[0]), b = lines_get(&from[1]);
  *wrong |= (a >> 32 ^ flag) | (b >> 32 ^ flag);
  return (uint32_t)a | b << 32;
}

bool hk_gpu_lines_take(const void *lines, uint32_t flag, void *to, uint32_t bytes) {
  const uint64_t *from = lines;
  const uint32_t pairs = bytes / PAIR, left = bytes % PAIR;
  uint64_t wrong = 0, data;
  for (uint32_t i = 0; i < pairs; i++) {
    data = lines_take_pair(&from[2 * i], flag, &wrong);
    memcpy((char *)to + (size_t)i * PAIR, &data, PAIR);
  }
  if (left) {
    data = lines_take_pair(&from[2 * pairs], flag, &wrong);
    memcpy((char *)to + (size_t)pairs * PAIR, &data, left);
  }
  return !wrong;
}

static void lines_put_pair(uint64_t *to, uint32_t flag, uint64_t data) {
  lines_put(&to[0], flag, (uint32_t)data);
  lines_put(&to[1], flag, (uint32_t)(data >> 32));
}

void hk_gpu_lines_give(void *lines, uint32_t flag, const void *from, uint32_t bytes) {
  uint64_t *to = lines, data;
  const uint32_t pairs = bytes / PAIR, left = bytes % PAIR;
  for (uint32_t i = 0; i < pairs; i++) {
    memcpy(&data, (const char *)from + (size_t)i * PAIR, PAIR);
    lines_put_pair(&to[2 * i], flag, data);
  }
  if (!left) return;
  data = 0;
  memcpy(&data, (const char *)from + (size_t)pairs * PAIR, left);
  lines_put_pair(&to[2 * pairs], flag, data);
}

void hk_gpu_lines_refresh(void *lines, uint32_t flag, uint32_t most) {
  uint64_t *to = lines;
  for (uint32_t i = 0; i < (most + PAIR - 1) / PAIR; i++) lines_put_pair(&to[2 * i], flag, 0);
}
