/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of what ranks of a bootstrap ask and report: all ranks are bootstraps of this process without threads of
 * their own, on a clock of the test. */
#ifndef HK_TESTS_BOOT_BENCH_H
#define HK_TESTS_BOOT_BENCH_H
#include <sys/syscall.h>
#include "../../src/base/log.h"
#include "../../src/boot/internal.h"
#include "process.h"
#include "scratch.h"
#include "suite.h"

#define S UINT64_C(1000000000)
enum { MOST = 40, ME = 1, PROCESS = 77 };

static uint64_t clock_ns; /* not 0: the library's clock. It is ahead, because Check's clock is this one, too */
int clock_gettime(clockid_t clock, struct timespec *ts) {
  if (!clock_ns) return (int)syscall(SYS_clock_gettime, clock, ts);
  *ts = (struct timespec){.tv_sec = (time_t)(clock_ns / S), .tv_nsec = (long)(clock_ns % S)};
  return 0;
}

static struct hk_bootstrap ranks[MOST], parent;
static hk_activity does[MOST];
static hk_listener listener = {.contact = {.process = PROCESS}};
static hk_family family;
static _Atomic(int) failure;
static hk_wait_env wait_env = {.failure = &failure};
static hk_bootstrap *const me = &ranks[ME];

static inline void give(void *arg, hk_activity *out) { *out = *(hk_activity *)arg; }

static inline void make(hk_bootstrap *b, int rank, int n) {
  *b = (struct hk_bootstrap){.rank = rank, .nranks = n, .comm = 0xc0, .listener = &listener, .family = &family};
  b->o = (hk_bootstrap_options){.settings = hk_settings_now(), .wait = &wait_env, .report = give, .arg = &does[rank]};
  b->known = true;
  while (1 << b->rounds < n) b->rounds++;
  atomic_init(&b->call.awaited, -1);
  pthread_mutex_init(&b->lock, NULL);
  hk_cond_init(&b->change);
  b->inbox_end = &b->inbox;
  b->contacts = calloc((size_t)n, HK_CONTACT_BYTES);
  b->failures.dead = calloc((size_t)n / 64 + 1, sizeof *b->failures.dead);
  b->failures.seen = calloc(((size_t)n / 64 + 1) * HK_EVENT_KINDS, sizeof *b->failures.seen);
  for (int r = 0; r < n; r++) {
    hk_contact c = {.process = PROCESS, .n = 1, .at[0].sa.sa_family = AF_INET};
    hk_contact_encode(hk_contact_of(b, r), &c);
  }
  ck_assert_int_eq(hk_overlay_init(b), HK_OK);
  hk_bootstrap_begin(b, HK_PHASE_IDLE, NULL);
}

static inline void make_ranks(int n) {
  for (int r = 0; r < n; r++) {
    does[r] = (hk_activity){.waits_for = -1};
    make(&ranks[r], r, n);
    hk_member_join(&ranks[r]);
  }
}

static inline void setup(void) {
  scratch_make();
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  hk_log_reset();
}

static inline void teardown(void) {
  clock_ns = 0;
  scratch_remove();
}

static inline void expect_error(const char *words) {
  ck_assert_msg(strstr(hk_last_error(), words), "%s", hk_last_error());
}
#endif
