/* SPDX-License-Identifier: Apache-2.0 */
/* check: waits */
/* The end of communicators: inside groups, from other threads, during inits, in forked children; and that it always
 * comes. */
#include <hocket.h>
#include <pthread.h>
#include <sys/wait.h>
#include "../../src/core/comm.h"
#include "../support/leftovers.h"
#include "../support/ranks.h"
#include "../support/suite.h"

#define OK(call) ck_assert_int_eq(rank_check_at((call), #call, __FILE__, __LINE__), 0)
#define FAILS(call, code, words)                                                                                       \
  do {                                                                                                                 \
    ncclResult_t got_ = (call);                                                                                        \
    ck_assert_msg(got_ == (code) && strstr(ncclGetLastError(NULL), words), "%s gave %d (%s), not %d (...%s...)",       \
                  #call, got_, ncclGetLastError(NULL), code, words);                                                   \
  } while (0)

enum { N = 2 };

static void queue(ncclComm_t c, float *b) { OK(ncclAllReduce(b, b, 4, ncclFloat32, ncclSum, c, NULL)); }

static void destroy(ncclComm_t *c, int n) {
  for (int r = 0; r < n; r++) OK(ncclCommDestroy(c[r]));
}

/* Waits for the asynchronous error of a communicator. */
static ncclResult_t async_error(ncclComm_t c) {
  ncclResult_t state = ncclSuccess;
  while (ncclCommGetAsyncError(c, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
    usleep(200);
  return state;
}

/* Children and operations of their parent share a group; the parent stays until the group has ended. */
TEST(children_in_group) {
  ncclComm_t c[N], child[N];
  float b[N][4] = {{0}};
  OK(ncclCommInitAll(c, N, NULL));
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    queue(c[r], b[r]);
    OK(ncclCommSplit(c[r], 0, r, &child[r], NULL));
    queue(c[r], b[r]);
  }
  OK(ncclGroupEnd());
  ck_assert_int_eq(ranks_work(child, N), 0);
  destroy(child, N);
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclCommSplit(c[r], 0, r, &child[r], NULL));
  FAILS(ncclCommDestroy(c[1]), ncclInvalidUsage, "1 inits");
  FAILS(ncclCommDestroy(child[0]), ncclInvalidUsage, "1 inits");
  FAILS(ncclGroupEnd(), ncclInvalidUsage, "wait for ncclGroupEnd");
  ck_assert_ptr_null(child[0]);
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclCommSplit(c[r], 0, r, &child[r], NULL));
  OK(ncclCommAbort(child[1])); /* it is not there yet: its init is dropped */
  FAILS(ncclGroupEnd(), ncclInvalidUsage, "are dropped");
  ck_assert_int_eq(ranks_work(c, N), 0);
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclCommSplit(c[r], 0, r, &child[r], NULL));
  OK(ncclCommAbort(c[0]));
  FAILS(ncclGroupEnd(), ncclInvalidUsage, "are dropped");
  ck_assert_ptr_null(child[0]);
  ck_assert_ptr_null(child[1]);
  OK(ncclCommAbort(c[1]));
}

/* Operators and registrations may go before the group's end: calls carry what they need. */
TEST(parts_in_group) {
  ncclComm_t c[N];
  float *b[N], two = 2;
  void *handle[N];
  OK(ncclCommInitAll(c, N, NULL));
  for (int r = 0; r < N; r++) {
    OK(ncclMemAlloc((void **)&b[r], 4096));
    OK(ncclCommRegister(c[r], b[r], 4096, &handle[r]));
    b[r][0] = 1;
  }
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ncclRedOp_t op;
    OK(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, c[r]));
    OK(ncclAllReduce(b[r], b[r], 1, ncclFloat32, op, c[r], NULL));
    OK(ncclRedOpDestroy(op, c[r]));
    OK(ncclCommDeregister(c[r], handle[r]));
  }
  OK(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    ck_assert_float_eq(b[r][0], 2 * N);
    OK(ncclMemFree(b[r]));
  }
  destroy(c, N);
}

TEST(stream_in_group) {
  ncclComm_t c[N];
  hocketStream_t s[N];
  float b[N][4] = {{1}, {1}};
  OK(ncclCommInitAll(c, N, NULL));
  for (int r = 0; r < N; r++) OK(hocketStreamCreate(&s[r]));
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclAllReduce(b[r], b[r], 4, ncclFloat32, ncclSum, c[r], hocketStreamAsCuda(s[r])));
  FAILS(hocketStreamDestroy(s[1]), ncclInvalidUsage, "wait in a group");
  FAILS(ncclGroupEnd(), ncclInvalidUsage, "wait in a group");
  /* Work that was handed over is waited for, by the stream's end and by the communicator's. */
  for (int round = 0; round < 2; round++) {
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++)
      OK(ncclAllReduce(b[r], b[r], 4, ncclFloat32, ncclSum, c[r], hocketStreamAsCuda(s[round * r])));
    OK(ncclGroupEnd());
  }
  OK(hocketStreamDestroy(s[0]));
  OK(hocketStreamDestroy(s[1]));
  ck_assert_float_eq(b[0][0], 4);
  destroy(c, N);
}

typedef struct other_thread {
  ncclComm_t c;
  ncclResult_t (*fn)(ncclComm_t);
  ncclResult_t result;
  char text[512];
} other_thread;

static void *run_other(void *arg) {
  other_thread *t = arg;
  t->result = t->fn(t->c);
  snprintf(t->text, sizeof t->text, "%s", ncclGetLastError(NULL));
  return NULL;
}

static ncclResult_t elsewhere(ncclResult_t (*fn)(ncclComm_t), ncclComm_t c, const char *words) {
  other_thread t = {.c = c, .fn = fn};
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, run_other, &t), 0);
  pthread_join(thread, NULL);
  ck_assert_msg(!words || strstr(t.text, words), "%s", t.text);
  return t.result;
}

/* More communicators than the library keeps the memory of. */
static void *many(void *arg) {
  for (int i = 0; i < 70; i++) {
    ncclComm_t one;
    OK(ncclCommInitAll(&one, 1, NULL));
    OK(ncclCommDestroy(one));
  }
  return arg;
}

/* A thread that ends inside a group. */
static void *abandon_group(void *arg) {
  static float b[4];
  ncclComm_t c = arg;
  ncclComm_t child;
  OK(ncclGroupStart());
  queue(c, b);
  OK(ncclCommSplit(c, 0, 0, &child, NULL));
  queue(c, b);
  return NULL;
}

TEST(abandoned_groups) {
  ncclComm_t c[N];
  pthread_t thread;
  OK(ncclCommInitAll(c, N, NULL));
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(pthread_create(&thread, NULL, abandon_group, c[r]), 0);
    pthread_join(thread, NULL);
  }
  ck_assert_int_eq(ranks_work(c, N), 0);
  destroy(c, N); /* nothing waits any more that would refuse it */
}

TEST(other_threads) {
  ncclComm_t c[N];
  float b[N][4] = {{0}};
  pthread_t thread;
  OK(ncclCommInitAll(c, N, NULL));
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) queue(c[r], b[r]);
  ck_assert_int_eq(elsewhere(ncclCommDestroy, c[0], "another thread has calls"), ncclInvalidUsage);
  OK(ncclGroupEnd());
  /* Abort works, and the group's end, long after, finds no freed memory. */
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) queue(c[r], b[r]);
  for (int r = 0; r < N; r++) ck_assert_int_eq(elsewhere(ncclCommAbort, c[r], NULL), ncclSuccess);
  ck_assert_int_eq(pthread_create(&thread, NULL, many, NULL), 0);
  pthread_join(thread, NULL);
  FAILS(ncclGroupEnd(), ncclInvalidUsage, "by another thread");
}

static void *init_alone(void *arg) {
  ncclComm_t *c = arg;
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  return (void *)(intptr_t)ncclCommInitRank(c, 2, id, 0); /* rank 1 never comes */
}

/* An init that waits for ranks that do not come ends with an abort. */
TEST(abort_of_init) {
  ncclComm_t c = NULL;
  pthread_t thread;
  void *result;
  ck_assert_int_eq(pthread_create(&thread, NULL, init_alone, &c), 0);
  while (!__atomic_load_n(&c, __ATOMIC_ACQUIRE)) usleep(100);
  OK(ncclCommAbort(c));
  pthread_join(thread, &result);
  ck_assert_int_ne((int)(intptr_t)result, ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclComm_t slow;
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  ck_assert_int_eq(ncclCommInitRankConfig(&slow, 2, id, 0, &config), ncclInProgress);
  OK(ncclCommAbort(slow));
}

/* A thread that never leaves (cancelled inside a call, say) cannot make an end of a communicator hang. */
TEST(bounded_ends) {
  ncclComm_t c[N], d[N];
  leftovers_ignore(); /* a communicator is not freed while a call is inside */
  setenv("HOCKET_LEAVE_TIMEOUT", "1", 1);
  setenv("HOCKET_DESTROY_TIMEOUT", "1", 1);
  OK(ncclCommInitAll(c, N, NULL));
  OK(ncclCommInitAll(d, N, NULL));
  c[0]->health.inside++;
  FAILS(ncclCommAbort(c[0]), ncclSystemError, "not freed");
  FAILS(ncclCommAbort(c[0]), ncclInvalidArgument, "freed already");
  ck_assert_int_eq(async_error(c[1]), ncclRemoteError);
  OK(ncclCommAbort(c[1]));
  /* An operation whose peer never comes ends with the destroy's patience, on the peer too. */
  hocketStream_t s;
  float b[4] = {0};
  OK(hocketStreamCreate(&s));
  OK(ncclAllReduce(b, b, 4, ncclFloat32, ncclSum, d[0], hocketStreamAsCuda(s)));
  FAILS(ncclCommDestroy(d[0]), ncclRemoteError, "HOCKET_DESTROY_TIMEOUT");
  ck_assert_int_eq(async_error(d[1]), ncclRemoteError);
  ck_assert_int_eq(hocketStreamSynchronize(s), ncclRemoteError);
  OK(hocketStreamDestroy(s));
  OK(ncclCommAbort(d[1]));
}

/* ---- revoke ---- */

static int code_is(const char *what, ncclResult_t got, ncclResult_t want, const char *words) {
  if (got == want && (!words || strstr(ncclGetLastError(NULL), words))) return 0;
  fprintf(stderr, "%s gave %d, not %d (...%s...): %s\n", what, got, want, words ? words : "", ncclGetLastError(NULL));
  return 1;
}

static int child_works(ncclComm_t c, int n) { return rank_works(c, n) + RANK_CHECK(ncclCommDestroy(c)); }

/* One rank revokes while the others wait for it; then all make children, without a revoke of their own. */
static int revoke_and_split(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  float b[8] = {0};
  int faults = 0, last = n - 1;
  ncclComm_t child;
  ncclResult_t state;
  if (rank == 1) {
    faults += RANK_CHECK(ncclCommRevoke(c, NCCL_REVOKE_DEFAULT)) + RANK_CHECK(ncclCommRevoke(c, NCCL_REVOKE_DEFAULT));
    faults += RANK_CHECK(ncclCommGetAsyncError(c, &state)) + (state != ncclSuccess);
    faults +=
        code_is("operation", ncclAllReduce(b, b, 8, ncclFloat32, ncclSum, c, NULL), ncclInvalidUsage, "ncclCommRevoke");
    faults += code_is("finalize", ncclCommFinalize(c), ncclInvalidUsage, "ncclCommRevoke");
  } else {
    faults += code_is("operation", ncclAllReduce(b, b, 8, ncclFloat32, ncclSum, c, NULL), ncclRemoteError,
                      "rank 1 revoked the communicator");
    faults += code_is("asynchronous error", (ncclResult_t)async_error(c), ncclRemoteError, NULL);
  }
  for (int i = 0; i < 2; i++) {
    faults += RANK_CHECK(ncclCommSplit(c, 0, rank, &child, NULL));
    if (!faults) faults += child_works(child, n);
    if (rank == last) continue;
    faults += RANK_CHECK(ncclCommShrink(c, &last, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
    if (!faults) faults += child_works(child, n - 1);
  }
  return faults;
}

/* One rank is through the init before the others, and revokes: their inits end well all the same. */
static int revoke_at_once(ncclComm_t c, int rank, int n, void *arg) {
  (void)n, (void)arg;
  return rank == 1 ? RANK_CHECK(ncclCommRevoke(c, NCCL_REVOKE_DEFAULT)) : 0;
}
TEST(revoking_at_once) {
  for (int i = 0; i < SUITE_FEW(40); i++) ck_assert_int_eq(ranks_as_processes(6, revoke_at_once, NULL), 0);
}

TEST(revoking) {
  ck_assert_int_eq(ranks_as_threads(3, revoke_and_split, NULL), 0);
  ck_assert_int_eq(ranks_as_processes(4, revoke_and_split, NULL), 0);
}

/* Ranks that are to make a communicator without others must name the same ones. */
static int differing_lists(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int wrong = rank == 0 ? n - 2 : n - 1, right = n - 1;
  ncclComm_t child;
  if (rank == n - 1) return 0;
  int faults = 0;
  for (int i = 0; i < 2; i++) { /* what they give is compared each time, not the first time only */
    ncclResult_t rc = ncclCommShrink(c, &wrong, 1, &child, NULL, NCCL_SHRINK_DEFAULT);
    faults += code_is("shrink", rc, ncclInvalidUsage, "rank 0 excludes");
    faults += code_is("shrink", rc, ncclInvalidUsage, "rank 1 excludes");
  }
  faults += RANK_CHECK(ncclCommShrink(c, &right, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  return faults ? faults : child_works(child, n - 1);
}

TEST(shrinks_that_differ) {
#ifdef __SANITIZE_THREAD__ /* it takes seconds: once */
  ck_assert_int_eq(ranks_as_threads(4, differing_lists, NULL), 0);
#else
  ck_assert_int_eq(ranks_as_processes(4, differing_lists, NULL), 0);
#endif
}

/* A wrong argument of one rank is its error at once, and the others', who would wait for it: with its text. Afterwards
 * all may call again. */
enum { COLOR, CONFIG, NO_HANDLE, INIT, WRONGS };
static int wrong_on_one(ncclComm_t c, int rank, int n, void *arg) {
  const int what = *(int *)arg;
  static const char *const words[WRONGS] = {"color -7", "minCTAs is -3", "newcomm is NULL", "minCTAs is -3"};
  ncclComm_t child = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id = {0};
  int faults = 0;
  if (what == INIT) {
    if (rank == 0) faults += RANK_CHECK(ncclGetUniqueId(&id));
    faults += RANK_CHECK(ncclBroadcast(&id, &id, sizeof id, ncclInt8, 0, c, NULL));
  }
  if (rank == 1 && (what == CONFIG || what == INIT)) config.minCTAs = -3;
  ncclResult_t rc = what == INIT ? ncclCommInitRankConfig(&child, n, id, rank, &config)
                                 : ncclCommSplit(c, rank == 1 && what == COLOR ? -7 : 0, 0,
                                                 rank == 1 && what == NO_HANDLE ? NULL : &child, &config);
  faults += rc != (rank == 1 ? ncclInvalidArgument : ncclRemoteError);
  faults += !strstr(ncclGetLastError(NULL), words[what]) || (rank != 1 && !strstr(ncclGetLastError(NULL), "rank 1"));
  if (faults) fprintf(stderr, "rank %d, %s: %d, %s\n", rank, words[what], rc, ncclGetLastError(NULL));
  faults += RANK_CHECK(ncclCommSplit(c, 0, 0, &child, NULL));
  return faults ? faults : child_works(child, n);
}

TEST_LOOP(wrong_arguments, WRONGS) { ck_assert_int_eq(ranks_as_threads(3, wrong_on_one, &_i), 0); }

/* The same for a shrink: a rank without a right list names its call by its number alone. */
static int wrong_list(ncclComm_t c, int rank, int n, void *arg) {
  enum { OUTSIDE, TWICE, ALL, ITSELF, NO_LIST, NO_HANDLE_GIVEN, GROUPED, SOME, ALL_RANKS, OVER_AND_OVER, CASES };
  static const char *const words[CASES] = {
      "99 is not a rank", "3 is named twice", "4 ranks to exclude", "rank 1 is to be excluded", "1 ranks to exclude",
      "newcomm is NULL",  "99 is not a rank", "99 is not a rank",   "99 is not a rank",         "99 is not a rank"};
  int right[] = {n - 1, 99}, twice[] = {n - 1, n - 1}, all[] = {0, 1, 2, 3}, itself[] = {1}, faults = 0;
  ncclComm_t child = NULL;
  (void)arg;
  if (rank == n - 1) return 0;
  for (int what = 0; what < CASES && !faults; what++) {
    const bool wrong = rank == 1 || (what == SOME && rank == 2) || what == ALL_RANKS;
    int *list = !wrong ? right : what == TWICE ? twice : what == ALL ? all : what == ITSELF ? itself : right;
    int count = !wrong || what == ITSELF || what >= NO_LIST ? 1 : what == ALL ? n : 2;
    if (wrong && what >= GROUPED) count = 2;
    if (wrong && what == NO_LIST) list = NULL;
    for (int i = 0; i < (what == OVER_AND_OVER ? 3 : 1); i++) {
      if (what == GROUPED) faults += RANK_CHECK(ncclGroupStart());
      ncclResult_t rc =
          ncclCommShrink(c, list, count, wrong && what == NO_HANDLE_GIVEN ? NULL : &child, NULL, NCCL_SHRINK_DEFAULT);
      if (what == GROUPED) rc = ncclGroupEnd();
      faults += code_is(words[what], rc, wrong ? ncclInvalidArgument : ncclRemoteError, words[what]);
      if (!wrong) faults += code_is(words[what], rc, ncclRemoteError, "rank 1 failed: ncclCommShrink: ");
    }
    faults += RANK_CHECK(ncclCommShrink(c, right, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
    if (!faults) faults += child_works(child, n - 1);
  }
  return faults;
}

/* Ranks that were refused at different times meet the others all the same. */
static int late_lists(ncclComm_t c, int rank, int n, void *arg) {
  int right[] = {n - 1, 99}, faults = 0;
  ncclComm_t child = NULL;
  (void)arg;
  if (rank == n - 1) return 0;
  for (int i = 0; i < 4 && !faults; i++) {
    if (rank == 0) usleep(400 * 1000); /* the others are in their next call by then */
    ncclResult_t rc = ncclCommShrink(c, right, rank ? 2 : 1, &child, NULL, NCCL_SHRINK_DEFAULT);
    faults += code_is("late", rc, rank ? ncclInvalidArgument : ncclRemoteError, "99 is not a rank");
    faults += RANK_CHECK(ncclCommShrink(c, right, 1, &child, NULL, i == 3 ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT));
    if (!faults) faults += child_works(child, n - 1);
  }
  return faults;
}

TEST(wrong_lists) {
  ck_assert_int_eq(ranks_as_threads(4, wrong_list, NULL), 0);
  ck_assert_int_eq(ranks_as_threads(5, late_lists, NULL), 0);
#ifndef __SANITIZE_THREAD__
  ck_assert_int_eq(ranks_as_processes(4, wrong_list, NULL), 0);
  ck_assert_int_eq(ranks_as_processes(5, late_lists, NULL), 0);
#endif
}

/* A rank gives up a split that others come to later: they learn of it, and the parent makes the next child. */
static int split_given_up(ncclComm_t c, int rank, int n, void *arg) {
  ncclComm_t child;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  float one = 1;
  int faults = 0;
  config.blocking = 0;
  for (int i = 0; i < 3; i++) {
    if (rank == 1) {
      faults += code_is("split", ncclCommSplit(c, 0, 0, &child, &config), ncclInProgress, NULL);
      faults += RANK_CHECK(ncclCommAbort(child));
    }
    faults += RANK_CHECK(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclMax, c, NULL)); /* after the abort */
    if (rank != 1)
      faults += code_is("split", ncclCommSplit(c, 0, 0, &child, NULL), ncclRemoteError,
                        "rank 1 aborted the new communicator");
    if (faults) return faults;
  }
  (void)arg;
  faults += RANK_CHECK(ncclCommSplit(c, 0, 0, &child, NULL));
  return faults ? faults : child_works(child, n);
}

/* A rank destroys the parent: of those that wait for it in a split not all have a link with it that they look at. */
static int split_left(ncclComm_t c, int rank, int n, void *arg) {
  (void)n, (void)arg;
  ncclComm_t child;
  if (rank == 1) return 0; /* the caller destroys it */
  return code_is("split", ncclCommSplit(c, 0, 0, &child, NULL), ncclRemoteError,
                 "rank 1 of 6 has left the communicator");
}

TEST(splits_that_fail) {
  ck_assert_int_eq(ranks_as_threads(5, split_given_up, NULL), 0);
  ck_assert_int_eq(ranks_as_threads(6, split_left, NULL), 0);
#ifndef __SANITIZE_THREAD__
  ck_assert_int_eq(ranks_as_processes(5, split_given_up, NULL), 0);
  ck_assert_int_eq(ranks_as_processes(6, split_left, NULL), 0);
#endif
}

/* Parent and children may be destroyed while the children's inits are under way. */
TEST(destroy_of_init) {
  ncclComm_t c[N], child[N];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int abort = 0; abort < 2; abort++) {
    OK(ncclCommInitAll(c, N, NULL));
    for (int r = 0; r < N; r++) ck_assert_int_eq(ncclCommSplit(c[r], 0, r, &child[r], &config), ncclInProgress);
    for (int r = 0; r < N; r++) OK(abort ? ncclCommAbort(c[r]) : ncclCommDestroy(c[r]));
    for (int r = 0; r < N; r++) OK(abort ? ncclCommAbort(child[r]) : ncclCommDestroy(child[r]));
  }
}

/* The parent ends before it is the turn of a child's init: the child has failed for that reason. */
TEST(abort_before_the_turn) {
  ncclComm_t c[N], child[2];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  float b[4] = {0};
  config.blocking = 0;
  OK(ncclCommInitAll(c, N, NULL));
  for (int i = 0; i < 2; i++) ck_assert_int_eq(ncclCommSplit(c[0], 0, 0, &child[i], &config), ncclInProgress);
  for (int r = 0; r < N; r++) OK(ncclCommAbort(c[r]));
  const ncclResult_t why = async_error(child[1]);
  ck_assert(why == ncclRemoteError || why == ncclInvalidUsage); /* its init waited for its turn, or came later */
  FAILS(ncclAllReduce(b, b, 4, ncclFloat32, ncclSum, child[1], NULL), why, "failed before");
  for (int i = 0; i < 2; i++) OK(ncclCommAbort(child[i]));
}

/* One rank aborts its init: the others do not wait for it without end. */
TEST(abort_of_one_init) {
  ncclComm_t c[3];
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  setenv("HOCKET_BOOTSTRAP_TIMEOUT", "1", 1);
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommInitRankConfig(&c[r], 3, id, r, &config), ncclInProgress);
  OK(ncclCommAbort(c[1]));
  ck_assert_int_eq(ncclCommInitRankConfig(&c[2], 3, id, 2, &config), ncclInProgress);
  for (int r = 0; r < 3; r += 2) {
    ck_assert_int_eq(async_error(c[r]), ncclRemoteError);
    OK(ncclCommAbort(c[r]));
  }
}

/* Several children of one parent in a group come about in the order of the calls. */
static int two_at_once(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  ncclComm_t child[3];
  int faults = RANK_CHECK(ncclGroupStart());
  for (int i = 0; i < 3; i++) faults += RANK_CHECK(ncclCommSplit(c, rank % (i + 1), 0, &child[i], NULL));
  faults += RANK_CHECK(ncclGroupEnd());
  for (int i = 0; i < 3 && !faults; i++) faults += child_works(child[i], (n + i - rank % (i + 1)) / (i + 1));
  return faults;
}

TEST(children_at_once) {
  ck_assert_int_eq(ranks_as_threads(3, two_at_once, NULL), 0);
  ck_assert_int_eq(ranks_as_processes(3, two_at_once, NULL), 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they do not survive such a fork */
/* What a forked child has of an open group and of streams is of no use to it, and says so. */
TEST(forked_child) {
  ncclComm_t c[N];
  hocketStream_t s;
  float b[N][4] = {{0}};
  int status;
  OK(ncclCommInitAll(c, N, NULL));
  OK(hocketStreamCreate(&s));
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) queue(c[r], b[r]);
  pid_t pid = fork();
  if (pid == 0) {
    int wrong = ncclGroupEnd() != ncclInvalidUsage || !strstr(ncclGetLastError(NULL), "forked this one");
    wrong += hocketStreamSynchronize(s) != ncclInvalidUsage;
    wrong += ncclAllReduce(b[0], b[0], 1, ncclFloat32, ncclSum, c[0], hocketStreamAsCuda(s)) != ncclInvalidUsage;
    wrong += hocketStreamDestroy(s) != ncclSuccess || ncclCommDestroy(c[0]) != ncclSuccess;
    ncclComm_t own;
    wrong += ncclCommInitAll(&own, 1, NULL) != ncclSuccess || ncclCommDestroy(own) != ncclSuccess;
    _exit(wrong);
  }
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  OK(ncclGroupEnd());
  OK(hocketStreamDestroy(s));
  destroy(c, N);
}
#endif

int main(void) { return suite_main("life", .timeout = 120); }
