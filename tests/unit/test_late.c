/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks come last to collectives, from what each of them waited. */
#include "../../src/ops/collect.h"
#include "../support/suite.h"

enum { RANKS = 4, CALLS = 20 };
static hk_ps_rank ranks[RANKS];
static hk_ps_comm comm;

/* All have ended `sequence` collectives. */
static void begin(uint64_t sequence) {
  memset(ranks, 0, sizeof ranks);
  comm = (hk_ps_comm){.nranks = RANKS, .ranks = ranks};
  for (int r = 0; r < RANKS; r++) ranks[r].activity.sequence = sequence;
}

static void waits(int rank, uint64_t collective, uint64_t us) {
  hk_activity *a = &ranks[rank].activity;
  a->recent_waits[a->long_waits++ % HK_ACTIVITY_WAITS] = collective << 32 | us;
  a->long_wait_ns += us * 1000;
}

/* In each of CALLS collectives up to `newest`, the rank late(i) comes a millisecond late. */
static void late_ones(uint64_t newest, int (*late)(int i)) {
  for (int i = 0; i < CALLS; i++)
    for (int r = 0; r < RANKS; r++)
      if (r != late(i)) waits(r, newest - CALLS + 1 + (uint64_t)i, 1000);
}
static int second(int i) { return (void)i, 2; }
static int in_turn(int i) { return i % RANKS; }
static int two(int i) { return 1 + i % 2; }

static void expect(const char *text) {
  hk_ps_find_late(&comm);
  ck_assert_msg(!strncmp(comm.late.text, text, strlen(text)) && (*text || !comm.late.text[0]), "%s", comm.late.text);
}

/* Numbers beyond 32 bits, too: a wait has the lower half. */
TEST_LOOP(one_rank, 3) {
  const uint64_t newest = (uint64_t[]){100, ((uint64_t)1 << 32) + 5, ((uint64_t)7 << 32) + 100}[_i];
  begin(newest);
  late_ones(newest, second);
  expect("rank 2 is late, by 1.00 ms on average in the last 20 collectives in which ranks waited (");
  ck_assert(comm.late.last == newest && comm.late.first == newest - CALLS + 1);
  ck_assert(ranks[2].late.count == CALLS && ranks[2].late.ns == CALLS * 1000000u && ranks[2].recent.count == CALLS);
  ck_assert(ranks[0].late.count == 0 && ranks[0].late.ns == 0 && ranks[0].recent.ns == 0);
}

TEST(two_ranks) {
  begin(100);
  late_ones(100, two);
  expect("ranks 1 and 2 are late, rank 1 by 0.50 ms on average");
}

/* No rank is later than the others, or too few collectives are known. */
TEST(none) {
  begin(100);
  expect("");
  late_ones(100, in_turn);
  expect("");
  begin(100);
  for (uint64_t k = 1; k < 8; k++) waits(0, k, 1000);
  expect("");
}

/* All wait alike for a slow network, and one of them a little less. */
TEST(a_slow_network) {
  begin(100);
  for (int r = 0; r < RANKS; r++)
    for (uint64_t k = 1; k <= CALLS; k++) waits(r, k, r == 1 ? 970 : 1000);
  expect("");
  ck_assert_int_eq(comm.late.collectives, 0);
}

/* Rank 0 was asked later: what the others had not ended does not count. */
TEST(asked_later) {
  begin(100);
  late_ones(100, second);
  ranks[0].activity.sequence = 105;
  for (uint64_t k = 101; k <= 105; k++) waits(0, k, 1000);
  expect("rank 2 is late");
  ck_assert(ranks[1].late.count == 0 && ranks[1].late.ns == 0 && ranks[2].late.count == CALLS);
  ck_assert_uint_eq(comm.late.last, 100);
}

/* Rank 0 is in an operation that the others have not begun; rank 3 is gone, and counts as no late one. */
TEST(absent) {
  begin(100);
  late_ones(100, second);
  ranks[0].activity.sequence = 101;
  ranks[0].activity.phase = HK_PHASE_OPERATION;
  memset(&ranks[3], 0, sizeof ranks[3]);
  ranks[3].presence = HK_PRESENCE_GONE;
  expect("rank 2 is late, by 1.00 ms");
  ck_assert(ranks[3].late.count == 0 && ranks[3].recent.ns == 0);
}

/* What a rank of another user may send. */
TEST(nonsense) {
  begin(0);
  for (int r = 0; r < RANKS; r++)
    memset(&ranks[r].activity.recent_waits, 0xff - r, sizeof ranks[r].activity.recent_waits);
  hk_ps_find_late(&comm);
  begin(UINT64_MAX);
  for (int r = 0; r < RANKS; r++)
    memset(&ranks[r].activity.recent_waits, 0xff - r, sizeof ranks[r].activity.recent_waits);
  hk_ps_find_late(&comm);
}

int main(void) { return suite_main("late", .timeout = 10); }
