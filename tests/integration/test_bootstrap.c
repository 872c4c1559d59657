/* SPDX-License-Identifier: Apache-2.0 */
/* Joining and the collectives, ranks as threads: the in-memory paths, ids, children, leaks. */
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "../../src/boot/listener.h"
#include "../../src/boot/process.h"
#include "../../src/boot/status.h"
#include "../../src/boot/wire.h"
#include "../support/boot_ranks.h"

static const int counts[] = {1, 2, 3, 4, 5, 7, 8, 16, 33, 64};

/* Most are equal on all ranks, a whole stretch of 512 bytes, too, and some are zero, as facts are. */
static uint32_t value_of(int rank, int i, int salt) {
  return i % 5 == 4 ? 0 : (uint32_t)((i % 3 || i / 128 == 1 ? 0 : rank) * 1000003 + i * 7919 + salt);
}

/* Rows of `words` words; every rank's must arrive everywhere. */
static bool gathers(hk_bootstrap *b, int rank, int n, int words, int salt) {
  size_t bytes = (size_t)words * 4;
  uint32_t *table = calloc((size_t)n, bytes + 1);
  for (int i = 0; i < words; i++) table[rank * words + i] = value_of(rank, i, salt);
  bool ok = hk_bootstrap_allgather(b, table, bytes) == HK_OK;
  for (int r = 0; ok && r < n; r++)
    for (int i = 0; i < words; i++) ok &= table[r * words + i] == value_of(r, i, salt);
  free(table);
  return ok;
}

static void join_and_gather(rank_state *r) {
  if (join_rank(r) != HK_OK) goto out;
  for (int round = 0; round < 3; round++)
    if (!gathers(r->b, r->rank, r->nranks, 1 + 149 * round, round)) r->status = HK_ERR_INTERNAL;
  if (hk_bootstrap_allgather(r->b, NULL, 0) != HK_OK) r->status = HK_ERR_INTERNAL;
  if (hk_bootstrap_barrier(r->b) != HK_OK) r->status = HK_ERR_INTERNAL;
out:
  leave_rank(r);
}

static void expect_all(rank_state *r, hk_status status) {
  for (int i = 0; i < r[0].nranks; i++)
    ck_assert_msg(r[i].status == status, "rank %d of %d: %d, %s", i, r[0].nranks, r[i].status, hk_last_error());
  free(r);
}

static ncclUniqueId new_id(void) {
  ncclUniqueId id;
  ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
  return id;
}

TEST_LOOP(thread_ranks, HK_ARRAY_LENGTH(counts)) {
  ncclUniqueId id = new_id();
  expect_all(run_threads(counts[_i], &id, 1, join_and_gather, NULL), HK_OK);
}

TEST_LOOP(several_ids, 6) {
  static const int cases[][2] = {{2, 2}, {3, 2}, {5, 5}, {8, 3}, {16, 4}, {33, 7}};
  int n = cases[_i][0], nids = cases[_i][1];
  ncclUniqueId ids[8];
  for (int i = 0; i < nids; i++) ck_assert_int_eq(hk_bootstrap_new_id(&ids[i]), HK_OK);
  expect_all(run_threads(n, ids, nids, join_and_gather, NULL), HK_OK);
}

/* Slow ranks at every step: a barrier lets no rank through before all have entered. */
static void count_and_cross(rank_state *r) {
  _Atomic(int) *come = r->arg;
  if (join_rank(r) != HK_OK) goto out;
  for (int round = 1; round <= 20; round++) {
    if ((r->rank + round) % 5 == 0) poll(NULL, 0, 1);
    atomic_fetch_add(come, 1);
    if (hk_bootstrap_barrier(r->b) != HK_OK || atomic_load(come) < round * r->nranks) r->status = HK_ERR_INTERNAL;
    if (hk_bootstrap_barrier(r->b) != HK_OK) r->status = HK_ERR_INTERNAL;
  }
out:
  leave_rank(r);
}

TEST_LOOP(barrier, HK_ARRAY_LENGTH(counts)) {
  _Atomic(int) come = 0;
  ncclUniqueId id = new_id();
  expect_all(run_threads(counts[_i], &id, 1, count_and_cross, &come), HK_OK);
}

static void join_and_leave(rank_state *r) {
  join_rank(r);
  leave_rank(r);
}

/* 256 ranks under the usual limit of files; the limit is not even reached. */
TEST(many_ranks_in_one_process) {
  struct rlimit limit = {1024, 1024};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ncclUniqueId id = new_id();
  uint64_t begin = hk_now_ns();
  expect_all(run_threads(256, &id, 1, join_and_leave, NULL), HK_OK);
  printf("256 ranks in one process joined and left in %.1f ms\n", (double)(hk_now_ns() - begin) * 1e-6);
}

TEST(nothing_is_left_over) {
  int alone = threads_alone();
  ncclUniqueId id = new_id();
  free(run_threads(3, &id, 1, join_and_leave, NULL));
  ck_assert(settles_at(threads, alone));
  int fds = open_fds();
  for (int i = 0; i < 1000; i++) {
    ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
    expect_all(run_threads(1 + i % 3, &id, 1, join_and_leave, NULL), HK_OK);
  }
  ck_assert(settles_at(threads, alone));
  ck_assert(settles_at(open_fds, fds));
}

/* Ids that no rank used, and their root, end with the process that made them; a lifetime ends them sooner. */
TEST(unused_ids_expire) {
  ncclUniqueId id;
  int fds = open_fds(), alone = threads_alone();
  set_param("HOCKET_ID_LIFETIME", "1");
  set_param("HOCKET_STATUS", "0"); /* the `hocket ps` of another job would be one more descriptor */
  for (int i = 0; i < 10; i++) ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
  ck_assert_int_le(open_fds(), fds + 4); /* one listener, one thread, one spare for all of them */
  ck_assert(settles_at(threads, alone));
  ck_assert(settles_at(open_fds, fds));
}

/* What the process answers to `hocket ps` has all ranks, though none of them counts calls. */
static void join_and_list(rank_state *r) {
  hk_status_process *list = NULL;
  int n = 0, seen = 0;
  if (join_rank(r) != HK_OK || hk_bootstrap_barrier(r->b) != HK_OK) goto out;
  if (r->rank == 0 && hk_status_list(&list, &n, 2000000000, NULL) != HK_OK) r->status = HK_ERR_INTERNAL;
  for (int i = 0; i < n; i++)
    for (int k = 0; k < list[i].nmembers && list[i].pid == (int)getpid(); k++)
      seen += list[i].members[k].contacts && list[i].members[k].nranks == r->nranks && !list[i].members[k].ncounters;
  if (r->rank == 0 && seen != r->nranks) r->status = HK_ERR_INTERNAL;
  hk_status_list_free(list, n);
  if (hk_bootstrap_barrier(r->b) != HK_OK) r->status = HK_ERR_INTERNAL;
out:
  leave_rank(r);
}

TEST(status_without_counters) {
  ncclUniqueId id = new_id();
  expect_all(run_threads(3, &id, 1, join_and_list, NULL), HK_OK);
}

static void join_only(rank_state *r) { join_rank(r); }

TEST(wrong_ids) {
  ncclUniqueId id;
  uint32_t x = 12345;
  for (int i = 0; i < 200; i++) {
    for (size_t k = 0; k < sizeof id.internal; k++) id.internal[k] = (char)((x = x * 1664525u + 1013904223u) >> 24);
    if (i == 1) memset(&id, 0, sizeof id);
    rank_state *r = run_threads(1, &id, 1, join_only, NULL);
    ck_assert_int_eq(r->status, HK_ERR_ARGUMENT);
    leave_rank(r);
    free(r);
  }
  /* One bit wrong, anywhere. */
  ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
  for (size_t bit = 0; bit < 8 * sizeof id.internal; bit += 13) {
    ncclUniqueId bad = id;
    bad.internal[bit / 8] = (char)(bad.internal[bit / 8] ^ (1 << bit % 8));
    rank_state *r = run_threads(1, &bad, 1, join_only, NULL);
    ck_assert_int_eq(r->status, HK_ERR_ARGUMENT);
    leave_rank(r);
    free(r);
  }
  hk_boot_id decoded;
  ck_assert_int_eq(hk_boot_id_decode(&decoded, &id), HK_OK);
}

TEST(wrong_arguments) {
  ncclUniqueId id = new_id();
  static const int cases[][3] = {{0, 0, 1}, {-1, 2, 1}, {2, 2, 1}, {0, -5, 1}, {0, 1, 2}, {0, 2, 0}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    rank_state r = {.rank = cases[i][0], .nranks = cases[i][1], .nids = cases[i][2], .ids = &id};
    ck_assert_int_eq(join_rank(&r), HK_ERR_ARGUMENT);
    leave_rank(&r);
  }
  rank_state *r = run_threads(2, &id, 1, join_and_gather, NULL); /* the id is as good as before */
  expect_all(r, HK_OK);
}

/* ---- children ---- */

typedef struct child_case {
  int parts; /* ranks r with r % parts equal are together, in falling order */
} child_case;

static hk_status join_part(rank_state *r, int parts, uint64_t child, hk_bootstrap **b, int *my, int *n, int *members) {
  *n = 0;
  for (int i = r->nranks - 1; i >= 0; i--)
    if (i % parts == r->rank % parts) {
      if (i == r->rank) *my = *n;
      members[(*n)++] = i;
    }
  hk_bootstrap_options o = options_of(r);
  o.rank = *my;
  o.nranks = *n;
  return hk_bootstrap_join_child(b, r->b, members, child, &o);
}

static void split(rank_state *r) {
  const child_case *c = r->arg;
  if (join_rank(r) != HK_OK) goto out;
  for (uint64_t child = 1; child <= 3; child++) {
    hk_bootstrap *b;
    int my, n, members[64];
    r->status = join_part(r, c->parts, child, &b, &my, &n, members);
    if (r->status != HK_OK) goto out;
    if (!gathers(b, my, n, 5, (int)child) || hk_bootstrap_comm_id(b) == hk_bootstrap_comm_id(r->b))
      r->status = HK_ERR_INTERNAL;
    if (!gathers(r->b, r->rank, r->nranks, 5, (int)child)) r->status = HK_ERR_INTERNAL;
    hk_bootstrap_leave(b);
  }
out:
  leave_rank(r);
}

TEST_LOOP(children, 7) {
  static const int cases[][2] = {{1, 1}, {2, 1}, {5, 2}, {8, 2}, {8, 3}, {16, 16}, {33, 4}};
  child_case c = {.parts = cases[_i][1]};
  ncclUniqueId id = new_id();
  expect_all(run_threads(cases[_i][0], &id, 1, split, &c), HK_OK);
}

/* The parent may go first. */
static void outlive(rank_state *r) {
  hk_bootstrap *b;
  int my, n, members[64];
  if (join_rank(r) != HK_OK) goto out;
  r->status = join_part(r, 1, 1, &b, &my, &n, members);
  if (r->status != HK_OK) goto out;
  hk_bootstrap_leave(r->b);
  r->b = NULL;
  if (!gathers(b, my, n, 9, 1)) r->status = HK_ERR_INTERNAL;
  hk_bootstrap_leave(b);
out:
  leave_rank(r);
}

TEST(child_outlives_parent) {
  ncclUniqueId id = new_id();
  expect_all(run_threads(6, &id, 1, outlive, NULL), HK_OK);
}

/* ---- events ---- */

/* As long as an event's text may be: it arrives whole. */
static void fill_text(hk_event *e) {
  for (size_t i = 0; i + 1 < sizeof e->text; i++) e->text[i] = (char)('a' + i % 26);
}

static bool text_is_whole(const hk_event *e) {
  hk_event whole = {.kind = 0};
  fill_text(&whole);
  return !strcmp(e->text, whole.text);
}

static void announce(rank_state *r) {
  _Atomic(int) *joined = r->arg, *done = joined + 1;
  if (join_rank(r) != HK_OK) goto out;
  atomic_fetch_add(joined, 1);
  if (!await_count(joined, r->nranks)) r->status = HK_ERR_INTERNAL; /* an abort would fail who has not joined yet */
  if (r->rank == 1) {
    hk_event e = {.kind = HK_EVENT_ABORT, .rank = 1};
    fill_text(&e);
    hk_bootstrap_announce(r->b, &e);
    hk_bootstrap_announce(r->b, &e);
  } else if (!await_count(&r->nevents, 1) || !was_reported(r, HK_EVENT_ABORT, 1) || r->events[0].from != 1 ||
             !text_is_whole(&r->events[0])) {
    r->status = HK_ERR_INTERNAL;
  }
  if (r->rank == 0) {
    hk_event e = {.kind = 0};
    fill_text(&e);
    if (hk_bootstrap_barrier(r->b) != HK_ERR_REMOTE || !strstr(hk_last_error(), e.text)) r->status = HK_ERR_INTERNAL;
  }
  atomic_fetch_add(done, 1);
  if (!await_count(done, r->nranks)) r->status = HK_ERR_INTERNAL; /* goodbyes must not hide a wrong second event */
  if (atomic_load(&r->nevents) != (r->rank != 1)) r->status = HK_ERR_INTERNAL;
out:
  leave_rank(r);
}

TEST_LOOP(abort_reaches_all, HK_ARRAY_LENGTH(counts) - 1) {
  _Atomic(int) joined_and_done[2] = {0, 0};
  ncclUniqueId id = new_id();
  expect_all(run_threads(counts[_i + 1], &id, 1, announce, joined_and_done), HK_OK);
}

/* Ranks that leave one after the other: no event is reported. */
static void leave_in_turn(rank_state *r) {
  _Atomic(int) *turn = r->arg;
  if (join_rank(r) != HK_OK) goto out;
  if (hk_bootstrap_barrier(r->b) != HK_OK || !await_count(turn, r->rank)) r->status = HK_ERR_INTERNAL;
  if (atomic_load(&r->nevents)) r->status = HK_ERR_INTERNAL;
out:
  leave_rank(r);
  atomic_fetch_add(turn, 1);
}

TEST(leaving_is_no_death) {
  _Atomic(int) turn = 0;
  ncclUniqueId id = new_id();
  expect_all(run_threads(9, &id, 1, leave_in_turn, &turn), HK_OK);
}

int main(void) { return suite_main("bootstrap", .timeout = 120); }
