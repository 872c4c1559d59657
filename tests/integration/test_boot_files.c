/* SPDX-License-Identifier: Apache-2.0 */
/* A rank without descriptors, at any point of an init or in the first operation: all ranks end soon, with that cause.
 * And a root that cannot listen.
 * check: notsan */
#include <nccl.h>
#include <sys/resource.h>
#include "../support/boot_ranks.h"

enum { RANKS = 3, POOR = 1, CASES = 10 };

/* Where exactly the descriptors run out is the library's matter: from hardly any to enough, counted from those in
 * use. */
static const struct {
  int more;
  bool sockets; /* no shared memory */
} cases[CASES] = {{1, true}, {2, true},  {5, true},  {7, true},   {8, true},
                  {9, true}, {11, true}, {13, true}, {12, false}, {40, true}};

static struct board {
  ncclUniqueId id;
  _Atomic(int) id_made, over;
  int code[RANKS];
  uint64_t took_ns[RANKS];
  char text[RANKS][2048];
} * boards;

/* Leaves the process so many descriptors. Those that it was started with may have any number, so an amount counted from
 * the open ones would depend on who starts the test. */
static int leave_descriptors(int n) {
  rlim_t limit = 0;
  for (int left = n; left > 0 || fcntl((int)limit, F_GETFD) >= 0; limit++) left -= fcntl((int)limit, F_GETFD) < 0;
  return setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit});
}

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
  if (p->rank == POOR && leave_descriptors(cases[p->at].more)) return 1;
  uint64_t begin = hk_now_ns();
  int code = ncclCommInitRank(&c, RANKS, b->id, p->rank);
  if (code == ncclSuccess) code = ncclAllReduce(data, data, 1000, ncclFloat32, ncclSum, c, NULL);
  b->took_ns[p->rank] = hk_now_ns() - begin;
  b->code[p->rank] = code;
  if (code) snprintf(b->text[p->rank], sizeof b->text[0], "%s", ncclGetLastError(NULL));
  atomic_fetch_add(&b->over, 1);
  await_count(&b->over, RANKS); /* else an abort could come before the others' success */
  if (c) ncclCommAbort(c);
  _exit(0); /* with the descriptors that it has taken */
}

static void expect_one_story(const struct board *b) {
  bool worked = b->code[POOR] == ncclSuccess;
  for (int i = 0; i < RANKS; i++) {
    ck_assert_uint_lt(b->took_ns[i], 25000000000ull);
    ck_assert_msg((b->code[i] == ncclSuccess) == worked, "rank %d: %s", i, b->text[i]);
    if (worked) continue;
    ck_assert_msg(b->code[i] == (i == POOR ? ncclSystemError : ncclRemoteError), "rank %d: %s", i, b->text[i]);
    ck_assert_msg(strstr(b->text[i], "Too many open files") != NULL, "rank %d: %s", i, b->text[i]);
    bool named = strstr(b->text[i], "rank 1 failed") || strstr(b->text[i], "rank 1 of 3 failed"); /* by the root */
    ck_assert_msg(i == POOR || named, "rank %d: %s", i, b->text[i]);
  }
}

TEST(few_descriptors) {
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

/* NCCL_COMM_ID's root, with hardly any descriptor: whichever it lacks, the error says so. */
static int root_without(void *arg) {
  ncclUniqueId id;
  set_param("NCCL_COMM_ID", "127.0.0.1:1");
  if (leave_descriptors(*(const int *)arg)) _exit(1);
  hk_status code = hk_bootstrap_env_id(hk_settings_now(), &id, 0);
  bool listens = code == HK_OK || strstr(hk_last_error(), "EACCES"); /* the port is root's */
  if (listens) _exit(3);
  _exit(code == HK_ERR_SYSTEM && strstr(hk_last_error(), "Too many open files") ? 0 : 2);
}

TEST(root_without_descriptors) {
  for (int left = 0, code = 0; left < 10 && code != 3; left++) {
    code = WEXITSTATUS(end_process(start_process(root_without, &left)));
    ck_assert_msg(code == 0 || (code == 3 && left > 2), "with %d descriptors: %d", left, code);
  }
}

static void setup(void) { boards = shared_memory(CASES * sizeof *boards); }

int main(void) { return suite_main("descriptors", .setup = setup, .timeout = 120); }
