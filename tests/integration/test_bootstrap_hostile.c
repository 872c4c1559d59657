/* SPDX-License-Identifier: Apache-2.0 */
/* check: timeout=180 */
/* Communicators form while strangers knock at every port of theirs: port scanners, web browsers, slow and silent ones,
 * floods, and people who know everything but the secret.  None of them gets a byte of an answer. */
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "../../src/base/addr.h"
#include "../../src/boot/process.h"
#include "../../src/boot/wire.h"
#include "../support/boot_ranks.h"
#include "../support/fuzz.h"

enum { PORTS = 24, HELD = 600, RANKS = 5 };

typedef struct board {
  ncclUniqueId id;
  _Atomic(int) id_made, joined, stop, answered, knocks, failed;
  unsigned first_port;
  char text[256];
} board;
static board *shared;

/* ---- the strangers ---- */

static int knock(unsigned port) {
  struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to)) {
    close(fd);
    return -1;
  }
  if (fd >= 0) atomic_fetch_add(&shared->knocks, 1);
  return fd;
}

/* A hello that is right in all but the secret. */
static void forged_hello(uint8_t out[HK_HELLO_BYTES]) {
  hk_boot_id id;
  uint8_t secret[HK_SECRET_BYTES];
  hk_hello h = {.kind = (hk_hello_kind)(1 + rnd(5)), .from = (int)rnd(RANKS), .to = RANKS, .round = 1};
  any_bytes(secret, sizeof secret);
  any_bytes(h.nonce, sizeof h.nonce);
  if (hk_boot_id_decode(&id, &shared->id) == HK_OK) {
    hk_contact c = {.process = rnd(1000), .n = 1, .at = {id.at[0]}};
    h.key = hk_boot_id_key(&id);
    hk_contact_encode(h.contact, &c);
  }
  hk_hello_encode(out, &h, secret);
}

static size_t say(int fd, const void *bytes, size_t n) {
  ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent > 0 ? (size_t)sent : 0;
}

/* True where the connection is over; what strangers may send is nothing, or a forged hello. */
static void misbehave(int fd) {
  static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n";
  static const uint8_t tls[] = {0x16, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3};
  uint8_t junk[4096];
  switch (rnd(8)) {
    case 0: break; /* connects and waits */
    case 1: say(fd, http, sizeof http - 1); break;
    case 2: say(fd, tls, sizeof tls); break;
    case 3:
      any_bytes(junk, sizeof junk);
      say(fd, junk, 1 + rnd(sizeof junk - 1));
      break;
    case 4:
      forged_hello(junk);
      say(fd, junk, HK_HELLO_BYTES);
      break;
    case 5: /* half of it */
      forged_hello(junk);
      say(fd, junk, rnd(HK_HELLO_BYTES));
      break;
    case 6: /* more of it than there should be */
      forged_hello(junk);
      say(fd, junk, sizeof junk);
      break;
    case 7: shutdown(fd, SHUT_WR); break;
  }
}

/* Knocks everywhere, without end; keeps as many connections open as it can. */
static int attack(void *arg) {
  (void)arg;
  int held[HELD];
  for (int i = 0; i < HELD; i++) held[i] = -1;
  fuzz_state = (uint64_t)getpid() * 0x9e3779b97f4a7c15u + 1;
  while (!atomic_load(&shared->stop)) {
    int i = (int)rnd(HELD);
    if (held[i] >= 0) {
      char byte[64];
      if (recv(held[i], byte, sizeof byte, MSG_DONTWAIT) > 0) atomic_fetch_add(&shared->answered, 1);
      if (rnd(2)) {
        struct linger reset = {1, 0};
        setsockopt(held[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      }
      close(held[i]);
    }
    held[i] = knock(shared->first_port + rnd(PORTS));
    if (held[i] >= 0) misbehave(held[i]);
  }
  _exit(0); /* with what it holds */
}

/* ---- the ranks ---- */

static int make_id(void *arg) {
  (void)arg;
  if (hk_bootstrap_new_id(&shared->id) != HK_OK) return 1;
  atomic_store(&shared->id_made, 1);
  for (;;) pause();
}

static int one_rank(void *arg) {
  rank_state r = {.rank = *(int *)arg, .nranks = RANKS, .nids = 1, .ids = &shared->id};
  uint32_t table[RANKS];
  if (join_rank(&r) != HK_OK) goto out;
  for (int k = 0; k < 10 && r.status == HK_OK; k++) {
    table[r.rank] = (uint32_t)(r.rank + k);
    r.status = hk_bootstrap_allgather(r.b, table, sizeof table[0]);
    for (int i = 0; i < RANKS; i++)
      if (table[i] != (uint32_t)(i + k)) r.status = HK_ERR_INTERNAL;
  }
  if (atomic_load(&r.nevents)) r.status = HK_ERR_INTERNAL;
  if (r.status == HK_OK) r.status = hk_bootstrap_barrier(r.b);
out:
  if (r.status != HK_OK) snprintf(shared->text, sizeof shared->text, "rank %d: %s", r.rank, hk_last_error());
  leave_rank(&r);
  return r.status != HK_OK;
}

static void one_communicator(void) {
  pid_t pids[RANKS];
  atomic_store(&shared->id_made, 0);
  pid_t maker = start_process(make_id, NULL);
  ck_assert(await_count(&shared->id_made, 1));
  for (int i = 0; i < RANKS; i++) pids[i] = start_process(one_rank, &i);
  for (int i = 0; i < RANKS; i++) ck_assert_msg(end_process(pids[i]) == 0, "%s", shared->text);
  kill(maker, SIGKILL);
  end_process(maker);
}

/* Below the ports that the system gives to outgoing connections: there a knock can meet its own socket, and be
 * answered by itself. */
static void choose_ports(void) {
  char range[32];
  shared->first_port = 20000 + (unsigned)getpid() % 10000;
  snprintf(range, sizeof range, "%u-%u", shared->first_port, shared->first_port + PORTS - 1);
  set_param("HOCKET_PORT_RANGE", range);
}

TEST(init_under_attack) {
  enum { ATTACKERS = 3 };
  pid_t attackers[ATTACKERS];
  uint64_t slowest = 0;
  choose_ports();
  for (int i = 0; i < ATTACKERS; i++) attackers[i] = start_process(attack, NULL);
  for (int i = 0; i < 20; i++) {
    uint64_t begin = hk_now_ns();
    one_communicator();
    if (hk_now_ns() - begin > slowest) slowest = hk_now_ns() - begin;
  }
  atomic_store(&shared->stop, 1);
  for (int i = 0; i < ATTACKERS; i++) ck_assert_int_eq(end_process(attackers[i]), 0);
  ck_assert_int_eq(atomic_load(&shared->answered), 0);
  ck_assert_int_gt(atomic_load(&shared->knocks), 100);
  printf("20 communicators of %d processes while strangers knocked %d times: slowest %.0f ms\n", RANKS,
         atomic_load(&shared->knocks), (double)slowest * 1e-6);
}

/* A process with hardly any descriptors left. */
static int make_id_in_narrow_room(void *arg) {
  struct rlimit limit = {40, 40};
  return setrlimit(RLIMIT_NOFILE, &limit) ? 1 : make_id(arg);
}

TEST_LOOP(flood, 2) {
  int held[500];
  pid_t pids[RANKS];
  choose_ports();
  pid_t maker = start_process(_i ? make_id_in_narrow_room : make_id, NULL);
  ck_assert(await_count(&shared->id_made, 1));
  hk_boot_id id;
  ck_assert_int_eq(hk_boot_id_decode(&id, &shared->id), HK_OK);
  for (int i = 0; i < 500; i++) held[i] = knock(hk_addr_port(&id.at[0]));
  char folder[64];
  snprintf(folder, sizeof folder, "/proc/%d/fd", (int)maker);
  for (int i = 0; i < RANKS; i++) pids[i] = start_process(one_rank, &i);
  for (int i = 0; i < RANKS; i++) ck_assert_msg(end_process(pids[i]) == 0, "%s", shared->text);
  ck_assert_int_lt(count_entries(folder), 300); /* the admission queue is bounded */
  for (int i = 0; i < 500; i++)
    if (held[i] >= 0) close(held[i]);
  kill(maker, SIGKILL);
  end_process(maker);
}

/* Called when the rank waits. */
static hk_status take_all_descriptors(void *arg, uint64_t waited_ns) {
  (void)arg, (void)waited_ns;
  while (dup(STDIN_FILENO) >= 0) continue;
  atomic_store(&shared->id_made, 1);
  return HK_OK;
}

/* A rank that can let no other in reports why after some seconds, long before it would miss the others. */
static int rank_without_descriptors(void *arg) {
  (void)arg;
  rank_state r = {.rank = 0, .nranks = 2, .nids = 1, .ids = &shared->id};
  hk_bootstrap_options o = options_of(&r);
  if (hk_service_new(&r.service, "test") != HK_OK || hk_bootstrap_new_id(&shared->id) != HK_OK) return 1;
  o.service = r.service;
  r.wait.check = take_all_descriptors;
  struct rlimit few = {64, 64};
  if (setrlimit(RLIMIT_NOFILE, &few)) return 2;
  hk_status rc = hk_bootstrap_join(&r.b, &shared->id, 1, &o);
  snprintf(shared->text, sizeof shared->text, "%s", hk_last_error());
  _exit(rc != HK_ERR_SYSTEM || !strstr(shared->text, "limit of open files (ulimit -n)")); /* with all it has taken */
}

static int other_rank(void *arg) {
  (void)arg;
  rank_state r = {.rank = 1, .nranks = 2, .nids = 1, .ids = &shared->id};
  hk_status rc = join_rank(&r);
  leave_rank(&r);
  return rc != HK_ERR_REMOTE || !strstr(hk_last_error(), "limit of open files (ulimit -n)");
}

TEST(no_descriptor_left) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return; /* five seconds of waiting, in which nothing runs */
#endif
  hk_boot_id id;
  uint64_t begin = hk_now_ns();
  pid_t pid = start_process(rank_without_descriptors, NULL);
  ck_assert(await_count(&shared->id_made, 1));
  ck_assert_int_eq(hk_boot_id_decode(&id, &shared->id), HK_OK);
  ck_assert(!id.from_env);                 /* a rank that finds no root asks the user for other things then */
  int fd = knock(hk_addr_port(&id.at[0])); /* a stranger, who does not count */
  ck_assert_int_ge(fd, 0);
  pid_t other = start_process(other_rank, NULL);
  ck_assert_msg(end_process(pid) == 0, "%s", shared->text);
  ck_assert_int_eq(end_process(other), 0);
  ck_assert_uint_lt(hk_now_ns() - begin, 60000000000ull);
  close(fd);
}

/* Far more ranks connect at once than the admission queue holds, while the listener gets no CPU time: all are
 * answered. */
TEST(crowd) {
  enum { CROWD = 700 };
  int fds[CROWD];
  uint8_t hello[HK_HELLO_BYTES], ack[HK_ACK_BYTES];
  hk_boot_id id;
  hk_want_files(CROWD + 64);
  pid_t maker = start_process(make_id, NULL);
  ck_assert(await_count(&shared->id_made, 1));
  ck_assert_int_eq(hk_boot_id_decode(&id, &shared->id), HK_OK);
  kill(maker, SIGSTOP);
  hk_contact c = {.process = 1, .n = 1, .at = {id.at[0]}};
  hk_hello h = {.kind = HK_HELLO_JOIN, .to = CROWD + 1, .round = 1, .key = hk_boot_id_key(&id)};
  hk_contact_encode(h.contact, &c);
  for (int i = 0; i < CROWD; i++) {
    h.from = i;
    h.nonce[0] = (uint8_t)i, h.nonce[1] = (uint8_t)(i >> 8);
    hk_hello_encode(hello, &h, id.secret);
    fds[i] = knock(hk_addr_port(&id.at[0]));
    ck_assert_int_ge(fds[i], 0);
    ck_assert_uint_eq(say(fds[i], hello, sizeof hello), sizeof hello);
  }
  kill(maker, SIGCONT);
  for (int i = 0; i < CROWD; i++) {
    ck_assert_msg(recv(fds[i], ack, sizeof ack, MSG_WAITALL) == sizeof ack, "rank %d was sent away", i);
    close(fds[i]);
  }
  kill(maker, SIGKILL);
  end_process(maker);
}

static void setup(void) { shared = shared_memory(sizeof *shared); }

int main(void) { return suite_main("hostile", .timeout = 120, .setup = setup); }
