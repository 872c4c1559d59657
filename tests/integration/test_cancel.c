/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that is cancelled inside the library ends after its call, not within it: the communicator can be aborted,
 * the other ranks learn of it, and nothing is left over. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "../support/process.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { COUNT = 3000000 };

typedef struct scene {
  ncclUniqueId id;
  ncclComm_t comm[2];
  _Atomic(int) joined, entered, go;
  _Atomic(int) result[2]; /* -1: the call has not returned */
  pthread_t thread[2];
} scene;

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

/* Threads that have been joined may show for a moment more. */
static void expect_count(const char *folder, int n) {
  int now = 0;
  for (int i = 0; i < 2000 && (now = count_entries(folder)) != n; i++) nap();
  ck_assert_msg(now == n, "%d in %s, there were %d", now, folder, n);
}

static void await_set(_Atomic(int) *word, int at_least) {
  while (atomic_load(word) < at_least) sched_yield(); /* no cancellation point */
}

static void call(scene *s, int rank) {
  float one = 1, *b = calloc(COUNT, sizeof *b);
  ck_assert_int_eq(ncclCommInitRank(&s->comm[rank], 2, s->id, rank), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, s->comm[rank], NULL), ncclSuccess);
  atomic_fetch_add(&s->joined, 1);
  if (rank == 1) await_set(&s->go, 1);
  if (rank == 0) atomic_store(&s->entered, 1);
  int rc = (int)ncclAllReduce(b, b, COUNT, ncclFloat32, ncclSum, s->comm[rank], NULL);
  free(b);
  atomic_store(&s->result[rank], rc);
}

static void *cancelled(void *arg) {
  call(arg, 0);
  pthread_testcancel();
  return NULL;
}

static void *other(void *arg) {
  call(arg, 1);
  return NULL;
}

static void cancel_in_collective(void) {
  scene s = {.result = {-1, -1}};
  void *end;
  ck_assert_int_eq(ncclGetUniqueId(&s.id), ncclSuccess);
  pthread_create(&s.thread[0], NULL, cancelled, &s);
  pthread_create(&s.thread[1], NULL, other, &s);
  await_set(&s.joined, 2);
  await_set(&s.entered, 1);
  for (int i = 0; i < 50; i++) nap(); /* it may be anywhere in the call; mostly it waits for the other rank */
  ck_assert_int_eq(pthread_cancel(s.thread[0]), 0);
  for (int i = 0; i < 20; i++) nap();
  ck_assert_int_eq(ncclCommAbort(s.comm[0]), ncclSuccess);
  ck_assert_int_eq(pthread_join(s.thread[0], &end), 0);
  ck_assert_ptr_eq(end, PTHREAD_CANCELED);
  ck_assert_int_gt(atomic_load(&s.result[0]), ncclSuccess);
  atomic_store(&s.go, 1);
  pthread_join(s.thread[1], NULL);
  ck_assert_int_gt(atomic_load(&s.result[1]), ncclSuccess);
  ck_assert_int_eq(ncclCommAbort(s.comm[1]), ncclSuccess);
}

static void *init_alone(void *arg) {
  scene *s = arg;
  int rc = (int)ncclCommInitRank(&s->comm[0], 2, s->id, 0);
  atomic_store(&s->result[0], rc);
  pthread_testcancel();
  return NULL;
}

static void cancel_in_init(void) {
  scene s = {.result = {-1, -1}};
  ncclComm_t c;
  void *end;
  ck_assert_int_eq(ncclGetUniqueId(&s.id), ncclSuccess);
  pthread_create(&s.thread[0], NULL, init_alone, &s);
  while (!(c = __atomic_load_n(&s.comm[0], __ATOMIC_ACQUIRE))) sched_yield();
  for (int i = 0; i < 50; i++) nap();
  ck_assert_int_eq(pthread_cancel(s.thread[0]), 0);
  for (int i = 0; i < 20; i++) nap();
  ck_assert_int_eq(ncclCommAbort(c), ncclSuccess);
  ck_assert_int_eq(pthread_join(s.thread[0], &end), 0);
  ck_assert_ptr_eq(end, PTHREAD_CANCELED);
  ck_assert_int_gt(atomic_load(&s.result[0]), ncclSuccess);
}

static void prepare(const char *no_shm) {
  setenv("NCCL_SHM_DISABLE", no_shm, 1);
  setenv("NCCL_P2P_DISABLE", no_shm, 1);
  hk_param_reload();
}

TEST_LOOP(in_a_collective, 2) {
  prepare(_i ? "1" : "0");
  cancel_in_collective(); /* what a process keeps for its life is there after this */
  int files = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
  cancel_in_collective();
  expect_count("/proc/self/fd", files);
  expect_count("/proc/self/task", threads);
}

/* The root of an id that no job used lives for its lifetime: a descriptor each. */
TEST(in_init) {
  prepare("1");
  cancel_in_init();
  int threads = count_entries("/proc/self/task");
  cancel_in_init();
  expect_count("/proc/self/task", threads);
}

int main(void) { return suite_main("cancelled threads", .timeout = 40); }
