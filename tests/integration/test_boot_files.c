/* SPDX-License-Identifier: Apache-2.0 */
/* A rank without descriptors, at any point of an init or in the first operation: all ranks end soon, with that cause.
 * And a root that cannot listen.
 * check: notsan */
#include <errno.h>
#include <nccl.h>
#include <sys/resource.h>
#include "../support/boot_ranks.h"

enum { RANKS = 3, POOR = 1, CASES = 8 };

/* Where exactly the descriptors run out is the library's matter: from hardly any to enough, counted from those in
 * use. */
static const struct {
  int more;
  bool sockets; /* no shared memory */
} cases[CASES] = {{8, true}, {9, true}, {11, true}, {12, true}, {13, true}, {12, false}, {13, false}, {40, true}};

static struct board {
  ncclUniqueId id;
  _Atomic(int) id_made, over;
  int code[RANKS];
  uint64_t took_ns[RANKS];
  char text[RANKS][2048];
} * boards;

typedef struct part {
  int rank, at;
} part;

static int one_rank(void *arg) {
  const part *p = arg;
  struct board *b = &boards[p->at];
  ncclComm_t c = NULL;
  float data[1000] = {0};
  set_param("NCCL_SHM_DISABLE", cases[p->at].sockets ? "1" : "0");
  if (p->rank == 0 && ncclGetUniqueId(&b->id) != ncclSuccess) return 1;
  if (p->rank == 0) atomic_store(&b->id_made, 1);
  await_count(&b->id_made, 1);
  if (p->rank == POOR) {
    rlim_t limit = (rlim_t)(open_fds() - 3 + cases[p->at].more); /* not ".", "..", nor the folder's own */
    struct rlimit few = {limit, limit};
    if (setrlimit(RLIMIT_NOFILE, &few)) return 1;
  }
  uint64_t begin = hk_now_ns();
  int code = ncclCommInitRank(&c, RANKS, b->id, p->rank);
  if (code == ncclSuccess) code = ncclAllReduce(data, data, 1000, ncclFloat32, ncclSum, c, NULL);
  b->took_ns[p->rank] = hk_now_ns() - begin;
  b->code[p->rank] = code;
  if (code) snprintf(b->text[p->rank], sizeof b->text[0], "%s", ncclGetLastError(NULL));
  atomic_fetch_add(&b->over, 1);
  await_count(&b->over, RANKS); /* else an abort could come before the others' success */
  if (c) ncclCommAbort(c);
  return 0;
}

static void expect_one_story(const struct board *b) {
  bool worked = b->code[POOR] == ncclSuccess;
  for (int i = 0; i < RANKS; i++) {
    ck_assert_uint_lt(b->took_ns[i], 25000000000ull);
    ck_assert_msg((b->code[i] == ncclSuccess) == worked, "rank %d: %s", i, b->text[i]);
    if (worked) continue;
    ck_assert_msg(b->code[i] == (i == POOR ? ncclSystemError : ncclRemoteError), "rank %d: %s", i, b->text[i]);
    ck_assert_msg(strstr(b->text[i], "Too many open files") != NULL, "rank %d: %s", i, b->text[i]);
    ck_assert_msg(i == POOR || strstr(b->text[i], "rank 1 failed") != NULL, "rank %d: %s", i, b->text[i]);
  }
}

START_TEST(few_descriptors) {
  pid_t pids[CASES][RANKS];
  for (int at = 0; at < CASES; at++)
    for (int i = 0; i < RANKS; i++) {
      part p = {.rank = i, .at = at};
      pids[at][i] = start_process(one_rank, &p);
    }
  for (int at = 0; at < CASES; at++)
    for (int i = 0; i < RANKS; i++) ck_assert_int_eq(end_process(pids[at][i]), 0);
  for (int at = 0; at < CASES; at++) expect_one_story(&boards[at]);
  ck_assert_int_ne(boards[0].code[POOR], ncclSuccess);
  ck_assert_int_eq(boards[CASES - 1].code[POOR], ncclSuccess);
}
END_TEST

/* NCCL_COMM_ID's root: with no descriptor left, no listener can be made. */
static int root_without(void *arg) {
  ncclUniqueId id;
  rlim_t in_use = (rlim_t)(open_fds() - 3);
  (void)arg;
  set_param("NCCL_COMM_ID", "127.0.0.1:1");
  struct rlimit few = {in_use, in_use};
  if (setrlimit(RLIMIT_NOFILE, &few)) return 1;
  hk_status code = hk_bootstrap_env_id(&id, 0);
  return code == HK_ERR_SYSTEM && strstr(hk_last_error(), "Too many open files") ? 0 : 2;
}

START_TEST(root_without_descriptors) { ck_assert_int_eq(end_process(start_process(root_without, NULL)), 0); }
END_TEST

static void setup(void) { boards = shared_memory(CASES * sizeof *boards); }

int main(void) {
  TCase *t = tcase_create("descriptors");
  tcase_add_checked_fixture(t, setup, NULL);
  tcase_set_timeout(t, 120);
  tcase_add_test(t, few_descriptors);
  tcase_add_test(t, root_without_descriptors);
  return suite_run_one("descriptors", t);
}
