/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Inquiries about ranks that keep others waiting (src/boot/inquiry.c), whose answers the test gives: when a wait is
 * reported, whom an inquiry asks, when it is cut, and what it says. */
#include "../../src/boot/inquiry.h"
#include "../support/suite.h"

#define S UINT64_C(1000000000)
enum { RANKS = 100 };
static hk_activity does[RANKS];
static int asked;

static hk_presence ask(void *failure, int rank, uint64_t patience_ns, hk_activity *out) {
  ck_assert_uint_le(patience_ns, S);
  *out = does[rank];
  if (++asked == 3 && failure) atomic_store((_Atomic(int) *)failure, 1);
  return out->phase == HK_PHASE_COUNT ? HK_PRESENCE_STOPPED : HK_PRESENCE_ANSWERS;
}

static hk_inquiry inquiry(void) {
  for (int r = 0; r < RANKS; r++) does[r] = (hk_activity){.phase = HK_PHASE_OPERATION, .waits_for = -1};
  asked = 0;
  return (hk_inquiry){
      .ask = ask, .rank = 1, .nranks = RANKS, .phase = HK_PHASE_OPERATION, .patience_ns = S, .chain = true};
}

/* At the limit, then after twice the time, or after the longest time between two reports. */
TEST(due) {
  static const struct {
    uint64_t limit, between, at[5];
  } rows[] = {{5, 0, {5, 10, 20, 40, 80}}, {5, 12, {5, 10, 20, 32, 44}}, {50, 12, {50, 62, 74, 86, 98}}, {0, 12, {0}}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    uint64_t reported = 0;
    for (uint64_t s = 1, n = 0; s < 100 && n < 5; s++) {
      bool due = rows[i].at[n] == s;
      ck_assert_msg(hk_inquiry_due(&reported, s, rows[i].limit, rows[i].between) == due, "%d: %d s", (int)i, (int)s);
      n += due;
    }
    if (rows[i].limit) ck_assert(!hk_inquiry_due(&reported, 1, 2, 0) && hk_inquiry_due(&reported, 2, 2, 0));
  }
}

/* The ranks of a chain come after the rank that blocks; a rank is asked once. */
TEST(chain) {
  char text[300];
  hk_inquiry q = inquiry();
  does[4].waits_for = 7;
  does[5].waits_for = 7;
  does[7].waits_for = 9;
  hk_inquiry_add(&q, 4);
  hk_inquiry_add(&q, 5);
  hk_inquiry_add(&q, 4);
  hk_inquiry_add(&q, 1); /* itself */
  hk_inquiry_add(&q, RANKS);
  hk_inquiry_follow(&q);
  ck_assert(asked == 4 && q.n == 4 && !q.cut && q.at[0].rank == 9 && hk_inquiry_blocker(&q) == 9);
  hk_long_wait w = {.rank = 1, .nranks = RANKS, .waited_ns = 7 * S, .comm = 0xc0, .call = "a call"};
  hk_inquiry_report(&q, &w, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "rank 1 of 100 has waited 7 s in a call of communicator 0xc0 for rank 9; rank 9"));
  q = inquiry();
  q.chain = false;
  does[4].waits_for = 7;
  hk_inquiry_add(&q, 4);
  hk_inquiry_follow(&q);
  ck_assert(asked == 1 && hk_inquiry_blocker(&q) == -1);
}

/* A chain that is too long, a failure, no time left: the last rank that answered is named. */
TEST_LOOP(cut, 3) {
  _Atomic(int) failure = 0;
  const hk_wait_env wait = {.failure = &failure};
  hk_inquiry q = inquiry();
  for (int r = 2; r < RANKS; r++) does[r].waits_for = r + 1;
  if (_i == 1) q.wait = &wait, q.arg = &failure;
  if (_i == 2) q.until_ns = 1;
  hk_inquiry_add(&q, 2);
  hk_inquiry_follow(&q);
  const int names[] = {HK_FOUND_MOST + 1, 4, -1}, count[] = {HK_FOUND_MOST, 3, 0};
  ck_assert(q.cut && hk_inquiry_blocker(&q) == names[_i] && asked == count[_i]);
}

/* Of all ranks those are kept that block, silent ones first. */
TEST(all) {
  hk_inquiry q = inquiry();
  for (int r = 0; r < RANKS; r++) does[r].waits_for = r % 2 ? 0 : -1;
  does[11].phase = does[13].phase = HK_PHASE_COUNT;
  hk_inquiry_ask_all(&q, 16);
  ck_assert(asked == 15 && q.n == 10 && q.at[0].rank == 11 && q.at[1].rank == 13 && hk_inquiry_blocker(&q) == 0);
  q = inquiry();
  hk_inquiry_ask_all(&q, RANKS);
  ck_assert(asked == HK_FOUND_MOST && q.n == HK_FOUND_MOST);
}

TEST(lists) {
  static const struct {
    int n;
    const char *words;
  } rows[] = {{1, "rank 3"},
              {2, "ranks 3 and 4"},
              {4, "ranks 3, 4, 5 and 6"},
              {8, "ranks 3, 4, 5, 6, 7, 8, 9 and 10"},
              {9, "ranks 3, 4, 5, 6, 7, 8, 9, 10 and 1 more"}};
  const int ranks[] = {3, 4, 5, 6, 7, 8, 9, 10, 11};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    char text[96];
    hk_ranks_describe(ranks, rows[i].n, text, sizeof text);
    ck_assert_str_eq(text, rows[i].words);
  }
}

int main(void) { return suite_main("inquiries"); }
