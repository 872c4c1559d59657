/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzz tests share: numbers from a seed, and how many cases there are. Without HOCKET_TEST_SECONDS a test has a
 * fixed number of cases, the same ones on every machine; with it, as many as fit into that time, from HOCKET_TEST_SEED
 * on (scripts/fuzz.sh). */
#ifndef HK_TEST_FUZZ_H
#define HK_TEST_FUZZ_H
#include "../../src/base/wait.h" /* hk_now_ns */
#include "suite.h"

#ifdef __SANITIZE_THREAD__ /* a case takes ten times as long, and few cases show the races of all */
enum { FUZZ_PART = 10 };
#else
enum { FUZZ_PART = 1 };
#endif

static uint64_t fuzz_state, fuzz_seed, fuzz_deadline_ns;
static unsigned fuzz_case, fuzz_cases; /* the number of this one, and of all */

/* The same numbers in each run, also for cases whose results a golden file keeps. */
static inline void fuzz_begin_at(uint64_t seed) { fuzz_state = seed * 0x9e3779b97f4a7c15u + 1; }
/* Begins a test: do { a case } while (fuzz_goes_on()). `cases` take about a second under ASan. */
static inline void fuzz_begin(unsigned cases) {
  const char *seconds = getenv("HOCKET_TEST_SECONDS"), *seed = getenv("HOCKET_TEST_SEED");
  fuzz_seed = seed ? strtoull(seed, NULL, 10) : 1;
  fuzz_begin_at(fuzz_seed);
  printf("seed %llu\n", (unsigned long long)fuzz_seed);
  fuzz_case = 0;
  fuzz_cases = cases / FUZZ_PART;
  fuzz_deadline_ns = seconds ? hk_now_ns() + (uint64_t)(atof(seconds) * 1e9) : 0;
}
static inline bool fuzz_goes_on(void) {
  fuzz_case++;
  if (fuzz_deadline_ns ? hk_now_ns() < fuzz_deadline_ns : fuzz_case < fuzz_cases) return true;
  printf("%u cases\n", fuzz_case);
  return false;
}

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
