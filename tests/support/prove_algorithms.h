/* SPDX-License-Identifier: Apache-2.0 */
/* For test_algorithms*.c: the verifier over an algorithm's programs of all ranks. */
#ifndef HK_TESTS_PROVE_ALGORITHMS_H
#define HK_TESTS_PROVE_ALGORITHMS_H
#include "../../src/collectives/algorithm.h"
#include "../../src/decide/machine.h"
#include "../../src/program/builder.h"
#include "../../src/program/verify.h"
#include "suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PROVE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define PROVE_SANITIZED 1
#endif
#endif
#ifndef PROVE_SANITIZED
#define PROVE_SANITIZED 0 /* a sanitizer's build looks for other faults: it needs no large numbers of ranks */
#endif

/* HOCKET_TEST_FULL=1: every root and every number of slots for every number of ranks; about an hour. */
static inline bool prove_full(void) {
  const char *full = getenv("HOCKET_TEST_FULL");
  return full && *full == '1';
}

/* A machine on which every algorithm is supported that can do `nranks` at all. */
static inline hk_machine prove_machine(int nranks) {
  return (hk_machine){.team.nranks = nranks,
                      .team.nhosts = 1,
                      .team.ranks_per_host = nranks,
                      .team.least_per_host = nranks,
                      .cores_per_host = 2,
                      .team.multicast = true,
                      .inside.alpha_us = 0.3,
                      .between = {.alpha_us = 12, .ring_us_per_b = 1.0 / 3000, .mesh_us_per_b = 1.0 / 3000},
                      .gamma_us_per_b = 1.0 / 30000,
                      .copy_us_per_b = 1.0 / 16000,
                      .switch_us = 1.5,
                      .channels = 1,
                      .max_channels = 1,
                      .protocols = 1u << HK_PROTO_SIMPLE,
                      .slot_bytes = 131072,
                      .nslots = 8};
}

static inline hk_program **prove_build(const hk_algorithm *a, hk_coll coll, int nranks, int root) {
  hk_program **p = calloc((size_t)nranks, sizeof *p);
  ck_assert_ptr_nonnull(p);
  for (int r = 0; r < nranks; r++)
    ck_assert_int_eq(hk_algorithm_build(a, &(hk_build){.coll = coll, .rank = r, .nranks = nranks, .root = root}, &p[r]),
                     HK_OK);
  return p;
}
static inline void prove_free(hk_program **p, int nranks) {
  for (int r = 0; r < nranks; r++) hk_program_free(p[r]);
  free(p);
}

typedef struct prove_range {
  unsigned first_slots, last_slots, waves; /* waves 0: one more than slots, so that every credit is waited for */
  bool out_of_place;                       /* too; in place there is more to go wrong */
} prove_range;

static inline void prove(const hk_algorithm *a, hk_coll coll, int nranks, int root, prove_range range) {
  hk_program **p = prove_build(a, coll, nranks, root);
  for (int r = 1; r < nranks; r++) /* copies of the lanes use channels from k * span on: the same on all ranks */
    ck_assert_msg(p[r]->traits.span == p[0]->traits.span,
                  "%s %s, %d ranks, root %d: rank %d uses %u channels, rank 0 %u", a->name, hk_coll_name(coll), nranks,
                  root, r, p[r]->traits.span, p[0]->traits.span);
  for (unsigned slots = range.first_slots; slots <= range.last_slots; slots++) {
    int runs = hk_coll_uneven(coll) ? 8 : 2; /* with equal lengths, then with random ones */
    for (int k = 0; k < runs; k++) {
      int in_place = k % 2;
      if (!in_place && !range.out_of_place) continue;
      hk_verify_options o = {.slots = slots,
                             .waves = range.waves ? range.waves : slots + 1,
                             .in_place = in_place,
                             .lengths = (uint64_t)(k / 2 * (nranks + 1))};
      hk_verify_report report;
      hk_status rc = hk_verify((const hk_program *const *)p, nranks, &o, &report);
      ck_assert_msg(rc == HK_OK, "%s %s, %d ranks, root %d, %u slots, %u waves, %s place: %s", a->name,
                    hk_coll_name(coll), nranks, root, slots, o.waves, in_place ? "in" : "out of", report.message);
    }
  }
  prove_free(p, nranks);
}

/* Every `root_step`th root, and the last. */
static inline void prove_roots(const hk_algorithm *a, int nranks, int root_step, prove_range range) {
  hk_machine m = prove_machine(nranks);
  for (int c = 0; c < HK_COLL_COUNT; c++) {
    if (!hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
    int roots = hk_coll_has_root((hk_coll)c) ? nranks : 1;
    for (int root = 0; root < roots; root += root_step) prove(a, (hk_coll)c, nranks, root, range);
    if (roots > 1 && (roots - 1) % root_step) prove(a, (hk_coll)c, nranks, roots - 1, range);
  }
}

static inline int prove_count(void) {
  int n = 0;
  while (hk_algorithms[n]) n++;
  return n;
}
#endif
