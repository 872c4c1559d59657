/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The end of a communicator waits for what is inside of it (src/comm/leave.h). The communicator has nothing but its
 * state, and the clock is the test's: each look at it takes half a second, and something may leave then. */
#include <time.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/comm/leave.h"
#include "../../src/core/backend.h"
#include "../../src/failure/failure.h"
#include "../support/scratch.h"
#include "../support/suite.h"

static struct ncclComm c; /* each test has a process of its own */
static hk_event cause;
static long looks, leaves_at = -1;
static bool left, runs; /* the backend's thread; the clock */

int clock_gettime(clockid_t clock, struct timespec *ts) {
  (void)clock;
  if (runs) looks++;
  *ts = (struct timespec){.tv_sec = 1000 + looks / 2, .tv_nsec = looks % 2 * 500000000};
  if (looks == leaves_at) {
    atomic_store(&c.health.inside, 0);
    atomic_store(&c.health.calling, false);
    left = true;
  }
  return 0;
}

static bool has_left(struct ncclComm *comm) { return comm == &c && left; }
static const hk_backend with_thread = {.has_left = has_left}, without = {.has_left = NULL};

static void setup(void) {
  scratch_make();
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_param_reload();
  hk_log_reset();
  pthread_mutex_init(&c.health.lock, NULL);
  c.health.cause = &cause;
  c.backend = &without;
  c.rank = 2;
  c.nranks = 5;
  runs = true;
}

/* What is inside, and what the message says of it; NULL: the wait is over at once. */
static const struct {
  int inside, failure;
  bool calling, thread;
  const char *words;
} rows[] = {
    {0, 0, false, false, NULL},
    {0, HK_ERR_REMOTE, false, false, NULL},
    {0, 0, false, true, NULL}, /* it works on, and is not waited for before a failure */
    {0, HK_ERR_REMOTE, false, true, "threads that move data over the network"},
    {3, 0, false, false, "3 calls of groups or streams, or inits of children"},
    {0, 0, true, false, "a call of another thread"},
    {1, 0, true, false, "a call of another thread and 1 calls of groups or streams, or inits of children"},
    {1, HK_ERR_REMOTE, false, true, "1 calls of groups or streams, or inits of children"},
};

static void enter(size_t i) {
  atomic_store(&c.health.inside, rows[i].inside);
  atomic_store(&c.health.calling, rows[i].calling);
  atomic_store(&c.health.failure, rows[i].failure);
  c.backend = rows[i].thread ? &with_thread : &without;
  left = false;
  looks = 0; /* Check looks at the clock, too: also after each question that a test asks */
}

TEST_LOOP(gives_up, HK_ARRAY_LENGTH(rows)) {
  char text[400];
  enter((size_t)_i);
  const hk_status rc = hk_leave_wait(&c, "someCall", 7);
  const long took = looks;
  if (!rows[_i].words) {
    ck_assert(rc == HK_OK && took == 0);
    return;
  }
  ck_assert_int_eq(rc, HK_ERR_SYSTEM);
  ck_assert(took >= 14 && took <= 18); /* it does not wait longer than it may */
  snprintf(text, sizeof text, "someCall: rank 2 of 5 has waited 7 s, and %s are still inside", rows[_i].words);
  ck_assert_msg(strncmp(hk_last_error(), text, strlen(text)) == 0, "%s", hk_last_error());
  ck_assert_int_eq(hk_leave_wait(&c, "someCall", 0), HK_ERR_SYSTEM);
}

TEST_LOOP(leaves, HK_ARRAY_LENGTH(rows)) {
  enter((size_t)_i);
  leaves_at = 9;
  const hk_status rc = hk_leave_wait(&c, "someCall", 7);
  const long took = looks;
  ck_assert_int_eq(rc, HK_OK);
  ck_assert_msg(took == (rows[_i].words ? 9 : 0), "%ld", took);
}

/* Every ten seconds. */
TEST(reports) {
  enter(6);
  leaves_at = 2 * 35;
  ck_assert_int_eq(hk_leave_wait(&c, "someCall", 60), HK_OK);
  const char *at = scratch_read("log");
  for (int n = 1; n <= 3; n++) {
    char text[240];
    snprintf(text, sizeof text, "someCall: rank 2 of 5 has waited %d s until %s leave the communicator (at most 60 s)",
             10 * n, rows[6].words);
    at = strstr(at, text);
    ck_assert_msg(at != NULL, "%s in %s", text, scratch_read("log"));
    at += strlen(text);
  }
  ck_assert_ptr_null(strstr(at, "someCall"));
}

/* Who ends it: the first thread, and an abort may follow a destroy. */
TEST(begins_once) {
  static const struct {
    hk_closing before, how;
    const char *words; /* NULL: it is the first */
    bool fails;
  } calls[] = {{HK_CLOSING_NO, HK_CLOSING_DESTROY, NULL, false},
               {HK_CLOSING_NO, HK_CLOSING_ABORT, NULL, false},
               {HK_CLOSING_DESTROY, HK_CLOSING_DESTROY, "another thread is in ncclCommDestroy of", false},
               {HK_CLOSING_DESTROY, HK_CLOSING_ABORT, "another thread is in ncclCommDestroy of", true},
               {HK_CLOSING_ABORT, HK_CLOSING_DESTROY, "another thread is in ncclCommAbort of", false},
               {HK_CLOSING_ABORT, HK_CLOSING_ABORT, "another thread is in ncclCommAbort of", false}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(calls); i++) {
    atomic_store(&c.health.closing, calls[i].before);
    atomic_store(&c.health.failure, 0);
    const hk_status rc = hk_leave_begin(&c, "someCall", calls[i].how);
    ck_assert_int_eq(rc, calls[i].words ? HK_ERR_USAGE : HK_OK);
    if (rc != HK_OK) ck_assert_ptr_nonnull(strstr(hk_last_error(), calls[i].words));
    ck_assert_int_eq(atomic_load(&c.health.failure) != 0, calls[i].fails);
    const hk_closing most = calls[i].how > calls[i].before ? calls[i].how : calls[i].before;
    ck_assert_int_eq(atomic_load(&c.health.closing), (int)most);
  }
}

TEST(in_peace) {
  setenv("HOCKET_DESTROY_TIMEOUT", "7", 1);
  hk_param_reload();
  c.settings = hk_settings_now();
  ck_assert_int_eq(hk_leave_in_peace(&c, "someCall"), HK_OK);
  enter(4);
  const hk_status rc = hk_leave_in_peace(&c, "someCall");
  const long took = looks;
  ck_assert_int_eq(rc, HK_ERR_REMOTE);
  ck_assert(took >= 14 && took <= 20);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "someCall: operations of rank 2 of 5 were not complete after 7 s"));
}

/* A communicator that a thread does not leave is not freed. */
TEST(stays) {
  setenv("HOCKET_LEAVE_TIMEOUT", "7", 1);
  hk_param_reload();
  c.settings = hk_settings_now();
  enter(5);
  const hk_status rc = hk_leave_end(&c, "someCall", HK_OK);
  const long took = looks;
  ck_assert_int_eq(rc, HK_ERR_SYSTEM);
  ck_assert(took >= 14 && took <= 20);
  ck_assert_uint_eq(atomic_load(&c.magic), HK_COMM_FREED);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "someCall: rank 2 of 5 gave up after 7 s (HOCKET_LEAVE_TIMEOUT)"));
}

/* The cause of a failure is settled when the time for other reports is over: after a suspicion a second. */
TEST(settles) {
  enter(0);
  hk_failure_raise(&c, HK_EVENT_SUSPECT, 1, HK_ERR_REMOTE, "no answer");
  const hk_status soon = hk_failure_settled(&c), later = (hk_failure_settled(&c), hk_failure_settled(&c));
  ck_assert_int_eq(soon, HK_OK);
  ck_assert_int_eq(later, HK_ERR_REMOTE);
  ck_assert_str_eq(c.health.text, "no answer");
}

int main(void) { return suite_main("leave", .setup = setup, .teardown = scratch_remove); }
