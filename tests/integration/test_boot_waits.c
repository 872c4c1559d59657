/* SPDX-License-Identifier: Apache-2.0 */
/* Waits inside the bootstrap: each ends, or is reported, with the ranks that are missing and what they do.
 * check: waits notsan */
#include <nccl.h>
#include "../support/boot_ranks.h"

enum { RANKS = 4, STOPS = 1, COMPUTES = 2 };

static struct board {
  ncclUniqueId id;
  _Atomic(int) joined, ready, reported, over;
  int code[RANKS];
  char text[RANKS][2048];
} * shared;

static void start_ranks(int (*body)(void *), pid_t *pids) {
  hold_id(&shared->id);
  for (int i = 0; i < RANKS; i++) pids[i] = start_process(body, &i);
}

static int init(ncclComm_t *c, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "pipeline";
  int code = ncclCommInitRankConfig(c, RANKS, shared->id, rank, &config);
  atomic_fetch_add(&shared->joined, 1);
  return code;
}

static void keep(int rank, int code) {
  shared->code[rank] = code;
  snprintf(shared->text[rank], sizeof shared->text[0], "%s", ncclGetLastError(NULL));
}

static void expect_in(int rank, const char *words) {
  ck_assert_msg(strstr(shared->text[rank], words) != NULL, "rank %d: no \"%s\" in: %s", rank, words,
                shared->text[rank]);
}

/* ---- split and shrink ---- */

/* Ranks 0 and 3 split, rank 1 is stopped, rank 2 computes.  The report becomes an error here, so that the test can
 * read it. */
static int split_without_some(void *arg) {
  int rank = *(int *)arg;
  ncclComm_t c, child;
  set_param("HOCKET_WATCHDOG", "1");
  set_param("HOCKET_WATCHDOG_ABORT", "1");
  if (init(&c, rank)) return 1;
  await_count(&shared->ready, 1);
  if (rank == STOPS || rank == COMPUTES) await_count(&shared->over, 1);
  if (rank == 0 || rank == 3) {
    keep(rank, ncclCommSplit(c, 0, rank, &child, NULL));
    atomic_fetch_add(&shared->reported, 1);
  }
  await_count(&shared->over, 1);
  _exit(0); /* with its communicator */
}

TEST(split_names_who_is_missing) {
  pid_t pids[RANKS];
  start_ranks(split_without_some, pids);
  ck_assert(await_count(&shared->joined, RANKS));
  kill(pids[STOPS], SIGSTOP);
  atomic_store(&shared->ready, 1);
  ck_assert(await_count(&shared->reported, 2));
  for (int i = 0; i < RANKS; i += 3) {
    ck_assert_int_eq(shared->code[i], ncclRemoteError);
    expect_in(i, "in ncclCommSplit, child number 1 of communicator \"pipeline\" 0x");
  }
  for (int i = 0; i < RANKS; i += 3) {
    expect_in(i, "rank 1 does not answer");
    expect_in(i, "rank 2 runs outside of this communicator's calls");
    ck_assert_ptr_eq(strstr(shared->text[i], "rank 3, which"), NULL);
    ck_assert_ptr_eq(strstr(shared->text[i], "rank 0, which"), NULL);
  }
  kill(pids[STOPS], SIGKILL);
  atomic_store(&shared->over, 1);
  for (int i = 0; i < RANKS; i++) end_process(pids[i]);
}

/* Nothing is wrong with a rank that comes to a split or a shrink late, however late that is. */
static int come_late(void *arg) {
  int rank = *(int *)arg, last = RANKS - 1;
  ncclComm_t c, child;
  set_param("HOCKET_WATCHDOG", "1");
  set_param("HOCKET_WATCHDOG_ABORT", "0");
  set_param("HOCKET_BOOTSTRAP_TIMEOUT", "2");
  if (init(&c, rank)) return 1;
  for (int shrink = 0; shrink < 2; shrink++) {
    if (rank == last && shrink) break;
    if (rank == COMPUTES) sleep(4);
    int code = shrink ? ncclCommShrink(c, &last, 1, &child, NULL, 0) : ncclCommSplit(c, 0, rank, &child, NULL);
    keep(rank, code);
    if (code || ncclCommDestroy(child)) return 2;
  }
  atomic_fetch_add(&shared->over, 1);
  await_count(&shared->over, RANKS);
  return ncclCommDestroy(c);
}

TEST(late_to_a_split) {
  pid_t pids[RANKS];
  start_ranks(come_late, pids);
  for (int i = 0; i < RANKS; i++) ck_assert_msg(end_process(pids[i]) == 0, "rank %d: %s", i, shared->text[i]);
}

/* ---- the last error after a failed init ---- */

static void make_another_error(void) {
  int count;
  ck_assert_int_eq(ncclCommCount(NULL, &count), ncclInvalidArgument);
  ck_assert_ptr_ne(strstr(ncclGetLastError(NULL), "is NULL"), NULL);
}

/* Inits run in threads of their own; the caller gets their cause all the same, also after an older error of its own. */
TEST(last_error_of_an_init) {
  ncclUniqueId id;
  ncclComm_t c[2], alone;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t state = ncclInProgress;
  memset(&id, 0, sizeof id);
  ck_assert_int_eq(ncclCommInitRank(&alone, 1, id, 0), ncclInvalidArgument);
  ck_assert_ptr_ne(strstr(ncclGetLastError(NULL), "unique id is all zeros"), NULL);

  make_another_error();
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(ncclCommInitRank(&c[i], 2, id, i), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
  ck_assert_ptr_ne(strstr(ncclGetLastError(NULL), "unique id is all zeros"), NULL);

  make_another_error();
  config.blocking = 0;
  ck_assert_int_eq(ncclCommInitRankConfig(&alone, 1, id, 0, &config), ncclInProgress);
  for (int i = 0; i < 5000 && state == ncclInProgress; i++) {
    ck_assert_int_eq(ncclCommGetAsyncError(alone, &state), ncclSuccess);
    usleep(2000);
  }
  ck_assert_int_eq(state, ncclInvalidArgument);
  ck_assert_ptr_ne(strstr(ncclGetLastError(NULL), "unique id is all zeros"), NULL);
  ck_assert_ptr_ne(strstr(ncclGetLastError(alone), "unique id is all zeros"), NULL);
  ck_assert_int_eq(ncclCommAbort(alone), ncclSuccess);
}

static void setup(void) { shared = shared_memory(sizeof *shared); }

int main(void) { return suite_main("waits of the bootstrap", .setup = setup, .timeout = 120); }
