/* SPDX-License-Identifier: Apache-2.0 */
/* check: waits */
/* Connections of the bootstrap: what listeners of all kinds come to, in a dial and in a question; what forks close. */
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "../../src/base/fork.h"
#include "../../src/base/tcp.h"
#include "../../src/boot/dial.h"
#include "../../src/boot/process.h"
#include "../support/boot_ranks.h"
#include "../support/leftovers.h"

/* What the process at an address does. */
typedef enum manner {
  ABSENT,   /* it does not listen */
  SILENT,   /* it does not accept */
  CLOSES,   /* after the hello */
  RESETS,   /* the same, with a reset */
  STRANGER, /* it does not know the secret */
  GONE,     /* the rank has left */
  FULL,     /* it has no descriptor left */
  ENDS,     /* it accepts, and closes the connection */
  HALF,     /* it gives half of the answer */
  ANSWERS
} manner;

static const uint8_t secret[HK_SECRET_BYTES], other_secret[HK_SECRET_BYTES] = {1};
static const char answer[8] = "answers";
enum { MORE_MS = 300 }; /* the deadline of those that never answer */

typedef struct process {
  manner manner;
  const manner *first; /* of the first connections, SILENT after the last one; NULL: all are alike */
  uint64_t takes_ns;   /* for each connection, on the clock of this test */
  size_t text;         /* bytes that follow the hello */
  char heard[16];
  int listener;
  hk_addr at;
  _Atomic(int) hellos;
} process;

/* The library's clock. Ten seconds pass at once if a process takes that long. */
static _Atomic(uint64_t) passed_ns;
int clock_gettime(clockid_t clock, struct timespec *ts) {
  long rc = syscall(SYS_clock_gettime, clock, ts);
  uint64_t ns = (uint64_t)ts->tv_nsec + atomic_load(&passed_ns);
  ts->tv_sec += (time_t)(ns / 1000000000);
  ts->tv_nsec = (long)(ns % 1000000000);
  return (int)rc;
}

static void *serve(void *arg) {
  process *p = arg;
  leftovers_own_thread();
  for (;;) {
    struct pollfd caller = {.fd = p->listener, .events = POLLIN};
    uint8_t in[HK_HELLO_BYTES], ack[HK_ACK_BYTES];
    hk_hello h;
    poll(&caller, 1, -1);
    int fd = accept(p->listener, NULL, NULL);
    if (recv(fd, in, sizeof in, MSG_WAITALL) != HK_HELLO_BYTES || !hk_hello_decode(&h, in)) abort();
    manner m = p->first && *p->first != SILENT ? *p->first++ : p->manner;
    if (p->text && recv(fd, p->heard, p->text, MSG_WAITALL) != (ssize_t)p->text) abort();
    atomic_fetch_add(&p->hellos, 1);
    atomic_fetch_add(&passed_ns, p->takes_ns);
    if (m == RESETS) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    if (m > RESETS) {
      hk_ack_encode(ack,
                    m == GONE   ? HK_ACK_GONE
                    : m == FULL ? HK_ACK_NO_ROOM
                                : HK_ACK_OK,
                    h.nonce, m == STRANGER ? other_secret : secret);
      send(fd, ack, 10, MSG_NOSIGNAL);
      if (m == ANSWERS) poll(NULL, 0, 20); /* it may come in two pieces */
      send(fd, ack + 10, sizeof ack - 10, MSG_NOSIGNAL);
      if (m >= HALF) send(fd, answer, m == HALF ? 4 : sizeof answer, MSG_NOSIGNAL);
    }
    if (m != HALF)
      close(fd);
    else
      leftovers_own(fd);
  }
  return NULL;
}

static void start_as(process *p, manner m) {
  pthread_t thread;
  p->manner = m;
  p->at.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  ck_assert_int_eq(hk_listen(hk_settings_now(), &p->at, 16, &p->listener), HK_OK);
  if (m == ABSENT)
    close(p->listener);
  else
    leftovers_own(p->listener);
  if (m == ABSENT || m == SILENT) return;
  ck_assert_int_eq(pthread_create(&thread, NULL, serve, p), 0);
  pthread_detach(thread); /* it ends with the test's process */
}

static process processes[2];
static hk_wait_env wait_env;
static const hk_hello hello = {.kind = HK_HELLO_DATA, .to = 1};

static hk_dialing dialing_of(uint32_t n) {
  hk_dialing d = {.settings = hk_settings_now(),
                  .hello = &hello,
                  .secret = secret,
                  .whom = "it",
                  .advice = "look there",
                  .n = n,
                  .wait = &wait_env};
  d.patience_ns = 600000000;
  for (uint32_t i = 0; i < n; i++) d.at[i] = processes[i].at;
  return d;
}

static double seconds_since(uint64_t begin) { return (double)(hk_now_ns() - begin) * 1e-9; }

/* ---- dials ---- */

typedef struct dial_row {
  manner manner;
  bool deadline;
  int hellos;  /* at least */
  double took; /* at least, seconds */
  const char *text[2];
} dial_row;
static const dial_row dials[] = {
    {ABSENT, false, 0, 0.6, {"cannot reach it after ", ": Connection refused); look there"}},
    {SILENT, true, 0, 0.3, {"cannot reach it after ", ": connected, but no answer); look there"}},
    {CLOSES, false, 6, 0.6, {"cannot reach it after ", ": closed the connection without an answer); look there"}},
    {RESETS, false, 6, 0.6, {"cannot reach it after ", ": Connection reset by peer); look there"}},
    {STRANGER, false, 6, 0.6, {"cannot reach it after ", ": another process listens there); look there"}},
    {GONE, false, 1, 0, {"it has left the communicator; look there", ""}},
};

TEST_LOOP(fails, HK_ARRAY_LENGTH(dials)) {
  const dial_row *row = &dials[_i];
  int fd = 5, before = open_fds();
  start_as(&processes[0], row->manner);
  hk_dialing d = dialing_of(1);
  uint64_t begin = hk_now_ns();
  if (row->deadline) wait_env.deadline_ns = begin + MORE_MS * 1000000u;
  ck_assert_int_eq(hk_boot_dial(&d, &fd), HK_ERR_REMOTE);
  ck_assert_int_eq(fd, -1);
  ck_assert_msg(seconds_since(begin) >= row->took, "after %.3f s", seconds_since(begin));
  for (int i = 0; i < 2; i++) ck_assert_msg(strstr(hk_last_error(), row->text[i]), "%s", hk_last_error());
  ck_assert_int_ge(atomic_load(&processes[0].hellos), row->hellos);
  if (row->manner == SILENT) ck_assert_int_eq(open_fds(), before + 1); /* the listener */
}

/* NCCL_SOCKET_RETRY_*: the n-th pause is n times the first one; the patience does not count. */
TEST(retries_as_the_user_says) {
  int fd;
  setenv("NCCL_SOCKET_RETRY_CNT", "4", 1);
  setenv("NCCL_SOCKET_RETRY_SLEEP_MSEC", "20", 1);
  hk_param_reload();
  start_as(&processes[0], CLOSES);
  hk_dialing d = dialing_of(1);
  d.patience_ns = 3600000000000u;
  uint64_t begin = hk_now_ns();
  ck_assert_int_eq(hk_boot_dial(&d, &fd), HK_ERR_REMOTE);
  ck_assert_msg(seconds_since(begin) >= 0.02 * (1 + 2 + 3 + 4), "after %.3f s", seconds_since(begin));
  ck_assert_int_eq(atomic_load(&processes[0].hellos), 5);
}

/* The second address is tried as soon as the first one fails, or after two seconds without an answer there. */
TEST_LOOP(second_address, 3) {
  static const manner firsts[] = {ABSENT, STRANGER, SILENT};
  int fd;
  start_as(&processes[0], firsts[_i]);
  start_as(&processes[1], ENDS);
  hk_dialing d = dialing_of(2);
  uint64_t begin = hk_now_ns();
  ck_assert_msg(hk_boot_dial(&d, &fd) == HK_OK, "%s", hk_last_error());
  ck_assert_int_eq(seconds_since(begin) >= 1.9, firsts[_i] == SILENT);
  ck_assert_int_eq(atomic_load(&processes[1].hellos), 1);
  hk_addr peer;
  socklen_t size = sizeof peer;
  ck_assert_int_eq(getpeername(fd, &peer.sa, &size), 0);
  ck_assert_int_eq(hk_addr_port(&peer), hk_addr_port(&processes[1].at));
  hk_boot_close(fd);
}

/* A process without a descriptor is waited for, but not for long, and other trouble between ends that time. One that is
 * slow is called again, though each answer takes longer than the patience. */
static const struct {
  manner first[5];
  hk_status status;
} fulls[] = {{{FULL, ENDS}, HK_OK},
             {{FULL, CLOSES, FULL, ENDS}, HK_OK},
             {{FULL, FULL, ENDS}, HK_ERR_REMOTE},
             {{CLOSES, CLOSES, CLOSES, ENDS}, HK_OK}};

TEST_LOOP(full, HK_ARRAY_LENGTH(fulls)) {
  int fd;
  processes[0].first = fulls[_i].first;
  processes[0].takes_ns = 9000000000u;
  start_as(&processes[0], ENDS);
  hk_dialing d = dialing_of(1);
  ck_assert_msg(hk_boot_dial(&d, &fd) == fulls[_i].status, "%s", hk_last_error());
  if (fulls[_i].status != HK_OK)
    ck_assert_ptr_nonnull(strstr(hk_last_error(), "it accepts no connection: its process"));
  if (fulls[_i].status == HK_OK) hk_boot_close(fd);
}

TEST(text_follows) {
  int fd;
  processes[0].text = 5;
  start_as(&processes[0], ENDS);
  hk_dialing d = dialing_of(1);
  d.text = "words";
  ck_assert_msg(hk_boot_dial(&d, &fd) == HK_OK, "%s", hk_last_error());
  ck_assert_str_eq(processes[0].heard, "words");
  hk_boot_close(fd);
}

/* This process has no descriptor left: that is its own failure. */
TEST(no_descriptor) {
  int fd;
  start_as(&processes[0], SILENT);
  hk_dialing d = dialing_of(1);
  int spare[8]; /* the leak check at the end of a process opens files */
  for (int i = 0; i < 8; i++) spare[i] = dup(processes[0].listener);
  struct rlimit none = {.rlim_cur = (rlim_t)spare[7] + 1, .rlim_max = (rlim_t)spare[7] + 1};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  hk_status status = hk_boot_dial(&d, &fd);
  for (int i = 0; i < 8; i++) close(spare[i]);
  ck_assert_int_eq(status, HK_ERR_SYSTEM);
  ck_assert_msg(strstr(hk_last_error(), "rank 0 cannot open a connection to it: Too many open files (EMFILE); raise"),
                "%s", hk_last_error());
}

/* An address that this host has no protocol for is no failure of this process. */
TEST(no_protocol) {
  int fd;
  hk_dialing d = dialing_of(1);
  d.at[0].sa.sa_family = AF_MAX;
  wait_env.deadline_ns = hk_now_ns() + MORE_MS * 1000000u;
  ck_assert_int_eq(hk_boot_dial(&d, &fd), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), ": Address family not supported by protocol); look there"), "%s",
                hk_last_error());
}

/* A rank that ends the wait by its failure word gets that error. */
TEST(failure_ends_it) {
  static _Atomic(int) failure = HK_ERR_REMOTE;
  int fd;
  start_as(&processes[0], SILENT);
  hk_dialing d = dialing_of(1);
  wait_env.failure = &failure;
  ck_assert_int_eq(hk_boot_dial(&d, &fd), HK_ERR_REMOTE);
  ck_assert_ptr_null(strstr(hk_last_error(), "cannot reach it"));
}

/* ---- questions ---- */

static const struct {
  manner manner;
  hk_probe probe;
  hk_ack ack;
} probes[] = {
    {ABSENT, HK_PROBE_REFUSED, 99},     {SILENT, HK_PROBE_SILENT, 99},
    {CLOSES, HK_PROBE_CLOSED, 99},      {RESETS, HK_PROBE_CLOSED, 99},
    {STRANGER, HK_PROBE_CLOSED, 99},    {GONE, HK_PROBE_CLOSED, HK_ACK_GONE},
    {FULL, HK_PROBE_SILENT, 99},        {ENDS, HK_PROBE_CLOSED, HK_ACK_OK},
    {HALF, HK_PROBE_SILENT, HK_ACK_OK}, {ANSWERS, HK_PROBE_ANSWERED, HK_ACK_OK},
};

TEST_LOOP(asks, HK_ARRAY_LENGTH(probes)) {
  char got[sizeof answer] = "";
  hk_ack ack = 99;
  start_as(&processes[0], probes[_i].manner);
  hk_dialing d = dialing_of(1);
  int before = open_fds();
  wait_env.deadline_ns = hk_now_ns() + MORE_MS * 1000000u;
  ck_assert_int_eq(hk_boot_probe(&d, &ack, got, sizeof got), probes[_i].probe);
  ck_assert_int_eq(ack, probes[_i].ack);
  if (probes[_i].probe == HK_PROBE_ANSWERED) ck_assert_str_eq(got, answer);
  if (probes[_i].manner == SILENT) ck_assert_int_eq(open_fds(), before);
}

TEST(asks_no_address) {
  hk_dialing d = dialing_of(0);
  hk_ack ack;
  ck_assert_int_eq(hk_boot_probe(&d, &ack, NULL, 0), HK_PROBE_UNREACHABLE);
}

/* ---- the limit of open files ---- */

/* In place of libc's: the limits of the test, and what was set. */
static struct rlimit limits, *was_set;
static bool is_refused;
int getrlimit(__rlimit_resource_t resource, struct rlimit *limit) {
  if (!limits.rlim_max) return prlimit(0, resource, NULL, limit);
  *limit = limits;
  return 0;
}
int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
  static struct rlimit copy;
  if (!limits.rlim_max) return prlimit(0, resource, limit, NULL);
  was_set = &copy;
  copy = *limit;
  errno = EPERM;
  return is_refused ? -1 : 0;
}

TEST_LOOP(raises_the_limit, 10) {
  static const struct {
    rlim_t soft, hard;
    unsigned wanted; /* 0: as many as can be had, because there are none left */
    bool refused;
    rlim_t set; /* 0: nothing */
    bool more;
  } rows[] = {{1024, 4096, 1024, false, 0, false},    {1024, 4096, 1025, false, 2048, false},
              {1024, 4096, 2048, false, 2048, false}, {1024, 4096, 2049, false, 2049, false},
              {1024, 4096, 9000, false, 4096, false}, {4096, 4096, 9000, false, 0, false},
              {1024, 4096, 0, false, 2048, true},     {3000, 4096, 0, false, 4096, true},
              {4096, 4096, 0, false, 0, false},       {1024, 4096, 0, true, 2048, false}};
  bool more = false;
  limits = (struct rlimit){rows[_i].soft, rows[_i].hard};
  is_refused = rows[_i].refused;
  if (rows[_i].wanted)
    hk_want_files(rows[_i].wanted);
  else
    more = hk_more_files();
  limits.rlim_max = 0;
  ck_assert_int_eq(more, rows[_i].more);
  ck_assert_int_eq(was_set != NULL, rows[_i].set != 0);
  if (was_set) ck_assert(was_set->rlim_cur == rows[_i].set && was_set->rlim_max == rows[_i].hard);
}

/* ---- forks ---- */

static int hooks_run;
static void hook_child(void) { hooks_run++; }

/* What a forked child finds: descriptors of the bootstrap are closed, and it is another process. The first fork is one
 * without any. */
TEST(forks) {
  uint64_t nonce = hk_process_nonce();
  int kept = dup(0), watched[2] = {dup(0), fcntl(0, F_DUPFD, 100)}, status;
  hk_on_fork(hook_child);
  for (int round = 0; round < 3; round++) {
    pid_t child = fork();
    if (!child) {
      bool open = fcntl(kept, F_GETFD) >= 0 && fcntl(watched[0], F_GETFD) >= 0;
      bool closed = fcntl(watched[0], F_GETFD) < 0 && fcntl(watched[1], F_GETFD) < 0;
      _exit((round == 1 ? closed : open) && hk_forks == 1 && hooks_run == 1 && hk_process_nonce() != nonce ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status == 0, "fork %d: %#x", round, (unsigned)status);
    ck_assert_int_eq(hooks_run, 0);
    for (int i = 0; i < 2; i++) (round ? hk_fork_forget : hk_fork_closes)(watched[i]);
  }
  ck_assert(hk_forks == 0 && hk_process_nonce() == nonce);
  close(kept);
  close(watched[0]);
  close(watched[1]);
}

/* Two global locks, which another thread takes one inside the other, in the other order than they are listed in. */
static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(inner);
HK_FORK_GUARD(outer);
static _Atomic(int) guard_rounds, guard_stop;
static int guarded[2]; /* equal unless one finds it half done */

static void *takes_both(void *arg) {
  const bool keeps = arg != NULL;
  while (!guard_stop) {
    pthread_mutex_lock(&outer);
    pthread_mutex_lock(&inner);
    guarded[0]++;
    guard_rounds++;
    while (keeps && !guard_stop) usleep(1000); /* a plugin is loaded: nothing that fork could wait for */
    guarded[1]++;
    pthread_mutex_unlock(&inner);
    pthread_mutex_unlock(&outer);
    usleep(20);
  }
  return NULL;
}

/* The child of a fork at any moment finds all global locks free, and what they protect whole. */
TEST_LOOP(locks, 2) {
  pthread_t other;
  const bool keeps = _i == 1;
  guard_stop = guard_rounds = 0;
  ck_assert_int_eq(pthread_create(&other, NULL, takes_both, keeps ? &other : NULL), 0);
  while (!guard_rounds) usleep(100);
  for (int k = 0; k < (keeps ? 1 : 200); k++) {
    int status;
    pid_t child = fork();
    if (!child) {
      alarm(10);
      pthread_mutex_lock(&inner);
      pthread_mutex_lock(&outer);
      _exit(!keeps && guarded[0] != guarded[1]);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status == 0, "fork %d: %#x", k, (unsigned)status);
  }
  guard_stop = 1;
  pthread_join(other, NULL);
}

int main(void) { return suite_main("dial"); }
