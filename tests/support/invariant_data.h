/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers whose sum depends on the order in which they are added: of very different sizes and both signs. */
#ifndef HK_TESTS_INVARIANT_DATA_H
#define HK_TESTS_INVARIANT_DATA_H
#include <math.h>
#include "ranks.h"

static inline uint64_t invariant_hash(uint64_t x) {
  x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
  x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
  return x ^ x >> 33;
}

/* Rank's element i.  Of some elements all ranks have a zero, of either sign: max and min keep the first. */
static inline double invariant_value(ncclDataType_t type, int rank, size_t i) {
  uint64_t h = invariant_hash((uint64_t)rank << 32 | (uint64_t)i);
  double sign = h & 1 ? -1 : 1;
  if (i % 13 == 5) return 0 * sign;
  int range = type == ncclFloat64 ? 40 : type == ncclFloat32 ? 12 : 4;
  return sign * ldexp(1 + (double)(h >> 12) * 0x1p-52, (int)(h >> 1 & 0xff) % (2 * range + 1) - range);
}
static inline void invariant_fill(ncclDataType_t type, int rank, void *to, size_t count) {
  for (size_t i = 0; i < count; i++) test_store(type, to, i, invariant_value(type, rank, i));
}

/* In the order of ranks. */
static inline float invariant_sum_f32(int nranks, size_t i) {
  float sum = (float)invariant_value(ncclFloat32, 0, i);
  for (int r = 1; r < nranks; r++) sum += (float)invariant_value(ncclFloat32, r, i);
  return sum;
}
static inline double invariant_sum_f64(int nranks, size_t i) {
  double sum = invariant_value(ncclFloat64, 0, i);
  for (int r = 1; r < nranks; r++) sum += invariant_value(ncclFloat64, r, i);
  return sum;
}
#endif
