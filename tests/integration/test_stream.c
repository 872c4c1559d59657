/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams: which thread runs a batch, in which order, and what is seen of it from other threads. And
 * hocketCommProbe. */
#include <fenv.h>
#include <hocket.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include "../../src/base/wait.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { WAITERS = 3 };

#define OK(call) ck_assert_int_eq((call), ncclSuccess)

/* What the functions of one stream note. No two of them may run at a time, so that plain counters are enough. */
typedef struct notes {
  int ran, elsewhere; /* not on the thread that made this */
  pthread_t maker;
  _Atomic(int) seen, held;
} notes;

static void note(void *arg) {
  notes *n = arg;
  n->ran++;
  n->elsewhere += !pthread_equal(pthread_self(), n->maker);
  atomic_store(&n->seen, n->ran);
}

/* Waits until the flag is the value; the deadline only ends a broken test. */
static bool await(_Atomic(int) *flag, int value) {
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 30000000000u};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (atomic_load(flag) != value)
    if (hk_wait_pause(&w) != HK_OK) return false;
  return true;
}

static void hold(void *arg) {
  notes *n = arg;
  note(arg);
  ck_assert(await(&n->held, 0));
}

TEST(waiters_run) {
  notes n = {.maker = pthread_self()};
  hocketStream_t s;
  uint64_t position = 9;
  int rounds = 4000;
  OK(hocketStreamCreate(&s));
  OK(hocketStreamPosition(s, &position));
  ck_assert_uint_eq(position, 0);
  for (int i = 1; i <= rounds; i++) {
    OK(hocketStreamLaunch(s, note, &n));
    OK(hocketStreamPosition(s, &position));
    ck_assert_uint_eq(position, (uint64_t)i);
    OK(i % 2 ? hocketStreamWait(s, position, -1) : hocketStreamSynchronize(s));
    ck_assert_int_eq(n.ran, i);
  }
  /* Each may be begun by the stream's thread, but not all. */
  ck_assert_int_lt(n.elsewhere, rounds);
  /* The stream expects to be waited for now, and still runs what no thread waits for. */
  for (int i = 1; i <= 3; i++) {
    OK(hocketStreamLaunch(s, note, &n));
    ck_assert(await(&n.seen, rounds + i));
  }
  OK(hocketStreamWait(s, position + 3, -1));
  ck_assert_int_eq(hocketStreamWait(s, position + 4, -1), ncclInvalidArgument);
  ck_assert_int_eq(hocketStreamPosition(s, NULL), ncclInvalidArgument);
  ck_assert_int_eq(hocketStreamWait(NULL, 0, 0), ncclInvalidArgument);
  OK(hocketStreamDestroy(s));
}

/* Launches and waits for 20 ms, and computes between. The changes of threads in each 20 ms. */
static long changes(hocketStream_t s, notes *n) {
  struct rusage before, after;
  uint64_t begin, now, position;
  ck_assert_int_eq(getrusage(RUSAGE_SELF, &before), 0);
  for (now = begin = hk_now_ns(); now - begin < 20000000;) {
    OK(hocketStreamLaunch(s, note, n));
    OK(hocketStreamPosition(s, &position));
    OK(hocketStreamWait(s, position, -1));
    for (uint64_t from = now; now - from < 10000;) now = hk_now_ns();
  }
  ck_assert_int_eq(getrusage(RUSAGE_SELF, &after), 0);
  return (after.ru_nvcsw - before.ru_nvcsw) * 20000000 / (long)(now - begin);
}

/* The stream's thread looks ever less often at a stream whose batches are waited for. A machine that does much else
 * breaks the habit now and then, so that one time in many is enough. */
TEST(long_habit) {
  notes n = {.maker = pthread_self()};
  hocketStream_t s;
  long least = LONG_MAX;
  OK(hocketStreamCreate(&s));
  for (int i = 0; i < 200 && least > 13; i++) {
    long now = changes(s, &n);
    if (now < least) least = now;
  }
  ck_assert_int_le(least, 13); /* a look each 1.6 ms; one each 100 us makes 15 to 110, by the machine's load */
  OK(hocketStreamDestroy(s));
}

TEST(limited_waits) {
  notes n = {.maker = pthread_self(), .held = 1};
  hocketStream_t s;
  OK(hocketStreamCreate(&s));
  OK(hocketStreamLaunch(s, hold, &n));
  OK(hocketStreamWait(s, 0, 0));
  ck_assert_int_eq(hocketStreamWait(s, 1, 0), ncclInProgress);
  uint64_t begin = hk_now_ns();
  ck_assert_int_eq(hocketStreamWait(s, 1, 3000000), ncclInProgress);
  ck_assert_uint_ge(hk_now_ns() - begin, 3000000);
  ck_assert_int_eq(hocketStreamQuery(s), ncclInProgress);
  atomic_store(&n.held, 0);
  OK(hocketStreamWait(s, 1, 30000000000));
  OK(hocketStreamWait(s, 1, 0));
  ck_assert_int_eq(n.elsewhere, 1); /* who has a limit runs nothing */
  OK(hocketStreamDestroy(s));
}

/* ---- several threads ---- */

typedef struct shared {
  hocketStream_t s;
  notes n;
  int rounds;
} shared;

static void *wait_for_all(void *arg) {
  shared *a = arg;
  uint64_t position;
  long wrong = 0;
  for (int i = 0; i < a->rounds; i++) {
    wrong += hocketStreamLaunch(a->s, note, &a->n) != ncclSuccess;
    if (i % 7 == 3) continue;
    wrong += hocketStreamPosition(a->s, &position) != ncclSuccess;
    wrong += hocketStreamWait(a->s, position, i % 5 ? -1 : 30000000000) != ncclSuccess;
    wrong += atomic_load(&a->n.seen) < (int)position;
  }
  return (void *)wrong;
}

TEST(many_threads) {
  shared a = {.rounds = 1500};
  pthread_t t[WAITERS];
  OK(hocketStreamCreate(&a.s));
  for (int i = 0; i < WAITERS; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, wait_for_all, &a), 0);
  for (int i = 0; i < WAITERS; i++) {
    void *wrong;
    pthread_join(t[i], &wrong);
    ck_assert_ptr_null(wrong);
  }
  OK(hocketStreamSynchronize(a.s));
  ck_assert_int_eq(a.n.ran, WAITERS * a.rounds);
  OK(hocketStreamDestroy(a.s));
}

/* Streams that take turns on one communicator, waited for in the other order, and calls without a stream between. */
static int turns(ncclComm_t c, int rank, int n, void *arg) {
  (void)rank;
  (void)arg;
  int faults = 0;
  float sum;
  hocketStream_t s[2];
  for (int i = 0; i < 2; i++) faults += RANK_CHECK(hocketStreamCreate(&s[i]));
  for (int k = 0; k < 150 && !faults; k++) {
    uint64_t position[2];
    sum = 1;
    for (int i = 0; i < 2; i++) {
      faults += RANK_CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat32, ncclSum, c, hocketStreamAsCuda(s[i])));
      faults += RANK_CHECK(hocketStreamPosition(s[i], &position[i]));
      if (k % 3 == 0) faults += RANK_CHECK(hocketStreamWait(s[i], position[i], -1));
    }
    if (k % 3 == 1) faults += RANK_CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat32, ncclSum, c, NULL));
    for (int i = 1; i >= 0; i--) faults += RANK_CHECK(hocketStreamWait(s[i], position[i], -1));
    float want = (float)(n * n * (k % 3 == 1 ? n : 1));
    if (sum != want) faults++;
  }
  for (int i = 0; i < 2; i++) faults += RANK_CHECK(hocketStreamDestroy(s[i]));
  return faults;
}

TEST(streams_in_turn) { ck_assert_int_eq(ranks_as_threads(3, turns, NULL), 0); }

/* ---- modes of arithmetic ---- */

static void add_a_little(void *arg) {
  volatile float one = 1, little = 1e-10f;
  *(float *)arg = one + little;
}

TEST(modes) {
  float sum;
  hocketStream_t s;
  OK(hocketStreamCreate(&s));
  for (int i = 0; i < 2000; i++) { /* whichever thread runs it */
    fesetround(FE_UPWARD);
    OK(hocketStreamLaunch(s, add_a_little, &sum));
    OK(hocketStreamSynchronize(s));
    ck_assert_float_eq(sum, 1);
    add_a_little(&sum);
    fesetround(FE_TONEAREST);
    ck_assert_float_gt(sum, 1);
  }
  OK(hocketStreamDestroy(s));
}

/* ---- hocketCommProbe ---- */

enum { LONG = 300000 };

/* Rank 0 receives two messages of each other rank, in the order in which they come. */
static int receive_all(ncclComm_t c, int n) {
  int faults = 0, left = 2 * (n - 1), waits = 1;
  float *x = calloc(LONG, sizeof *x);
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 60000000000u};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (left && !faults) {
    for (int p = 1; p < n; p++) {
      faults += RANK_CHECK(hocketCommProbe(c, p, &waits));
      if (!waits) continue;
      faults += RANK_CHECK(ncclRecv(x, p % 2 ? 3 : LONG, ncclFloat32, p, c, NULL));
      faults += x[0] != (float)p;
      left--;
    }
    if (hk_wait_pause(&w) != HK_OK) faults++;
  }
  for (int p = 1; p < n; p++) faults += RANK_CHECK(hocketCommProbe(c, p, &waits)) + waits;
  free(x);
  return faults;
}

static int probes(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int faults = 0, waits = 1;
  float *x = calloc(LONG, sizeof *x);
  faults += RANK_CHECK(hocketCommProbe(c, (rank + 1) % n, &waits)) + (waits && rank); /* only rank 0 gets messages */
  faults += hocketCommProbe(c, rank, &waits) != ncclInvalidArgument;
  faults += hocketCommProbe(c, n, &waits) != ncclInvalidArgument;
  faults += hocketCommProbe(c, (rank + 1) % n, NULL) != ncclInvalidArgument;
  x[0] = (float)rank;
  for (int k = 0; k < 2 && rank; k++) faults += RANK_CHECK(ncclSend(x, rank % 2 ? 3 : LONG, ncclFloat32, 0, c, NULL));
  if (rank == 0) faults += receive_all(c, n);
  free(x);
  return faults + rank_works(c, n);
}

TEST_LOOP(probe, 2) {
  if (_i) { /* over TCP */
    setenv("NCCL_SHM_DISABLE", "1", 1);
    setenv("NCCL_P2P_DISABLE", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  }
  ck_assert_int_eq(ranks_as_processes(3, probes, NULL), 0);
}

int main(void) { return suite_main("host streams", .timeout = 120); }
