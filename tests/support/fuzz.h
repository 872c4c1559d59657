/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzz tests share: numbers from a seed, and for how long.  HOCKET_TEST_SECONDS and HOCKET_TEST_SEED: see
 * scripts/fuzz.sh. */
#ifndef HK_TEST_FUZZ_H
#define HK_TEST_FUZZ_H
#include "../../src/base/wait.h" /* hk_now_ns */
#include "suite.h"

static uint64_t fuzz_state, fuzz_seed, fuzz_deadline_ns;

static inline void fuzz_begin(void) {
  const char *seconds = getenv("HOCKET_TEST_SECONDS"), *seed = getenv("HOCKET_TEST_SEED");
  fuzz_seed = seed ? strtoull(seed, NULL, 10) : 1;
  fuzz_state = fuzz_seed * 0x9e3779b97f4a7c15u + 1;
  printf("seed %llu\n", (unsigned long long)fuzz_seed);
  fuzz_deadline_ns = hk_now_ns() + (uint64_t)((seconds ? atof(seconds) : 1.0) * 1e9);
}
/* The same numbers in each run, for cases whose results a golden file keeps. */
static inline void fuzz_begin_at(uint64_t seed) { fuzz_state = seed * 0x9e3779b97f4a7c15u + 1; }
static inline int fuzz_goes_on(void) { return hk_now_ns() < fuzz_deadline_ns; }

static inline uint64_t rnd64(void) { /* xorshift64* */
  fuzz_state ^= fuzz_state >> 12;
  fuzz_state ^= fuzz_state << 25;
  fuzz_state ^= fuzz_state >> 27;
  return fuzz_state * 0x2545f4914f6cdd1du;
}
static inline uint32_t rnd(uint32_t below) { return (uint32_t)(rnd64() >> 33) % below; }
static inline void any_bytes(void *out, size_t n) {
  for (size_t i = 0; i < n; i++) ((uint8_t *)out)[i] = (uint8_t)rnd(256);
}
#endif
