/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided messages as their receiver sees them: headers and data that come in pieces, windows that are too small or
 * gone, and answers. The test is the peer, with a bare socket. */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include "../../src/base/service.h"
#include "../../src/transport/messages.h"
#include "../../src/transport/transport.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { BYTES = 50000, GUARD = 64, ASK = 0, PUT, JOIN };
typedef struct header {
  uint32_t verb, signal;
  uint64_t window, offset, bytes;
} header;
typedef hk_window_answer answer;

static char memory[GUARD + BYTES + GUARD];
static char *const base = memory + GUARD;
static _Atomic(int) signals, refusals, window_gone;
static char refusal[320];

static hk_window_state window(void *arg, uint64_t number, hk_window *out) {
  (void)arg;
  if (number != 7 || window_gone) return number == 8 ? HK_WINDOW_LATER : HK_WINDOW_GONE;
  *out = (hk_window){base, BYTES};
  return HK_WINDOW_OPEN;
}
static bool signal_of(void *arg, int from, uint32_t signal) {
  (void)arg;
  if (from != 1 || signal >= 4) return false;
  signals++;
  return true;
}
static hk_window_state joins(void *arg, int from) {
  (void)arg;
  return from == 1 ? HK_WINDOW_OPEN : HK_WINDOW_GONE;
}
static void refused(void *arg, int from, const char *text) {
  (void)arg, (void)from;
  snprintf(refusal, sizeof refusal, "%s", text);
  refusals++;
}

static void (*on_connection)(void *arg, int from, int fd);
static void *receiver;
static void serve(void *arg, uint64_t tag, void (*call)(void *arg, int from, int fd), void *with) {
  (void)arg, (void)tag;
  on_connection = call;
  receiver = with;
}

typedef struct bench {
  hk_transport_env env;
  hk_messages *m;
  int fd, fds; /* fds: that were open before */
} bench;

static void setup(bench *b) {
  int pair[2];
  *b = (bench){.fds = open_fds()};
  b->env = (hk_transport_env){.settings = hk_settings_now(), .rank = 0, .nranks = 2, .serve = serve};
  ck_assert_int_eq(hk_service_new(&b->env.service, "test"), HK_OK);
  const hk_messages_options o = {.window = window, .signal = signal_of, .join = joins, .refused = refused};
  ck_assert_int_eq(hk_messages_new(&b->m, &b->env, &o), HK_OK);
  hk_messages_serve(b->m);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  ck_assert_int_eq(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
  b->fd = pair[0];
  on_connection(receiver, 1, pair[1]);
  memset(memory, 'm', sizeof memory);
}
static void teardown(bench *b) {
  hk_messages_free(b->m);
  ck_assert_ptr_null((void *)(uintptr_t)on_connection); /* none comes any more */
  hk_service_free(b->env.service);
  close(b->fd);
  ck_assert_int_eq(open_fds(), b->fds);
}

static void write_all(int fd, const void *data, size_t bytes) {
  for (const char *p = data; bytes;) {
    const ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
    ck_assert_int_gt(n, 0);
    p += n;
    bytes -= (size_t)n;
  }
}
static answer read_answer(int fd) {
  answer a;
  ck_assert_int_eq(recv(fd, &a, sizeof a, MSG_WAITALL), (ssize_t)sizeof a);
  return a;
}
/* An answer means that all that was sent before has been carried out. */
static answer ask(const bench *b, uint32_t verb, uint64_t number) {
  const header h = {.verb = verb, .signal = HK_NO_SIGNAL, .window = number};
  write_all(b->fd, &h, sizeof h);
  return read_answer(b->fd);
}
static void put(const bench *b, uint32_t verb, uint32_t signal, uint64_t number, uint64_t offset, uint64_t bytes) {
  static char data[2 * BYTES];
  const header h = {.verb = verb, .signal = signal, .window = number, .offset = offset, .bytes = bytes};
  for (size_t i = 0; i < bytes; i++) data[i] = (char)(i * 7 + i / 256);
  write_all(b->fd, &h, sizeof h);
  write_all(b->fd, data, bytes);
}

TEST(answers_questions) {
  bench b;
  setup(&b);
  answer a = ask(&b, ASK, 7);
  ck_assert(a.state == HK_WINDOW_OPEN && a.address == (uint64_t)(uintptr_t)base && a.bytes == BYTES && !a.region);
  ck_assert_mem_eq((const void *)(uintptr_t)a.proof_at, a.proof, sizeof a.proof);
  ck_assert_uint_eq(ask(&b, ASK, 8).state, HK_WINDOW_LATER);
  ck_assert_uint_eq(ask(&b, ASK, 9).state, HK_WINDOW_GONE);
  a = ask(&b, JOIN, 0);
  ck_assert(a.state == HK_WINDOW_OPEN && !a.address && !a.bytes);
  /* A header that comes byte by byte. */
  const header h = {.verb = ASK, .window = 7};
  for (size_t i = 0; i < sizeof h; i++) {
    write_all(b.fd, (const char *)&h + i, 1);
    for (int left = 1; left;) ck_assert_int_eq(ioctl(b.fd, TIOCOUTQ, &left), 0); /* until it was read */
  }
  ck_assert_uint_eq(read_answer(b.fd).state, HK_WINDOW_OPEN);
  teardown(&b);
}

/* Where data belongs, at the window's ends; what does not fit is dropped, and the next message is taken. */
static const struct {
  uint64_t window, offset, bytes;
  uint32_t signal;
  bool taken, counted;
  const char *words; /* of the refusal */
} cases[] = {{7, 0, BYTES, 0, true, true, NULL},
             {7, BYTES - 1, 1, 3, true, true, NULL},
             {7, BYTES, 0, HK_NO_SIGNAL, true, false, NULL},
             {7, 100, BYTES - 100, HK_NO_SIGNAL, true, false, NULL},
             {7, 0, BYTES + 1, 0, false, false, "which is smaller"},
             {7, BYTES, 1, 0, false, false, "which is smaller"},
             {7, UINT64_MAX - 1, 3, 0, false, false, "which is smaller"},
             {7, BYTES + 1, 1, 0, false, false, "which is smaller"},
             {9, 0, 30000, 0, false, false, "not registered"},
             {7, 5, 6, 4, true, false, "fewer contexts or signals"}};

TEST_LOOP(puts_data_in_its_place, HK_ARRAY_LENGTH(cases)) {
  bench b;
  const uint64_t offset = cases[_i].offset, bytes = cases[_i].bytes;
  setup(&b);
  put(&b, PUT, cases[_i].signal, cases[_i].window, offset, bytes);
  ck_assert_uint_eq(ask(&b, ASK, 7).state, HK_WINDOW_OPEN);
  ck_assert_int_eq(signals, cases[_i].counted);
  ck_assert_int_eq(refusals, cases[_i].words != NULL);
  if (cases[_i].words) ck_assert_msg(strstr(refusal, cases[_i].words) && strstr(refusal, "rank 1 put"), "%s", refusal);
  for (size_t i = 0; i < sizeof memory; i++) {
    const bool inside = cases[_i].taken && i >= GUARD + offset && i < GUARD + offset + bytes;
    const size_t k = i - GUARD - (size_t)offset;
    if (memory[i] != (inside ? (char)(k * 7 + k / 256) : 'm')) ck_abort_msg("byte %zd is wrong", (ssize_t)i - GUARD);
  }
  put(&b, PUT, 1, cases[_i].window, offset, bytes);
  ck_assert_uint_eq(ask(&b, ASK, 7).state, HK_WINDOW_OPEN);
  ck_assert_int_eq(signals, cases[_i].counted + (cases[_i].taken && bytes + (cases[_i].signal != HK_NO_SIGNAL) > 0) +
                                (cases[_i].taken && !bytes && cases[_i].signal == HK_NO_SIGNAL));
  put(&b, PUT, 0, 7, 10, 4); /* the connection is of use after a refusal */
  ck_assert_uint_eq(ask(&b, ASK, 7).state, HK_WINDOW_OPEN);
  ck_assert_mem_eq(base + 10, "\0\7\16\25", 4);
  teardown(&b);
}

/* A window that goes while its data comes: the rest is dropped. */
TEST(drops_what_comes_too_late) {
  bench b;
  char data[8192];
  setup(&b);
  memset(data, 'd', sizeof data);
  const header h = {.verb = PUT, .signal = 0, .window = 7, .bytes = 2 * sizeof data};
  write_all(b.fd, &h, sizeof h);
  write_all(b.fd, data, sizeof data);
  for (int left = 1; left;) { /* all of that has been read */
    sched_yield();
    ck_assert_int_eq(ioctl(b.fd, TIOCOUTQ, &left), 0);
  }
  window_gone = 1;
  write_all(b.fd, data, sizeof data);
  ck_assert_uint_eq(ask(&b, ASK, 7).state, HK_WINDOW_GONE);
  ck_assert_int_eq(refusals, 1);
  ck_assert_int_eq(signals, 0);
  ck_assert(base[sizeof data - 1] == 'd' && base[sizeof data] == 'm');
  window_gone = 0;
  ck_assert_uint_eq(ask(&b, ASK, 7).state, HK_WINDOW_OPEN);
  teardown(&b);
}

int main(void) { return suite_main("messages", .timeout = 60); }
