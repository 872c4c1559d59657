/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What the listener's thread does at each tick. */
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "../../src/base/addr.h"
#include "../../src/boot/bootstrap.h"
#include "../../src/boot/listener.h"
#include "../../src/boot/process.h"
#include "../../src/boot/root.h"
#include "../support/process.h"
#include "../support/suite.h"

#define S UINT64_C(1000000000)
static hk_listener *l;

/* Descriptors are counted here, and the `hocket ps` of another job would be one more. */
static void setup(void) {
  set_param("HOCKET_STATUS", "0");
  ck_assert_int_eq(hk_listener_get(&l), HK_OK);
}
static void teardown(void) { hk_listener_put(l); }

/* Under the lock, which the listener's thread needs. */
static void await_listener(bool (*done)(void)) {
  uint64_t end = hk_now_ns() + 20 * S;
  do {
    hk_listener_unlock();
    usleep(1000);
    hk_listener_lock();
  } while (!done() && hk_now_ns() < end);
  ck_assert(done());
}

static bool has_spare(void) { return l->spare >= 0; }

/* The spare descriptor, for a connection if there is no other one, comes back with the next tick. */
TEST(spare_descriptor) {
  int fds = open_fds();
  hk_listener_lock();
  ck_assert(has_spare());
  hk_boot_close(l->spare);
  l->spare = -1;
  hk_listener_tick(l);
  await_listener(has_spare);
  hk_listener_unlock();
  ck_assert_int_eq(open_fds(), fds);
}

/* ASan's allocator may be locked by the listener's thread at a fork, and then the child never gets memory. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FORKS false
#endif
#endif
#if !defined(FORKS) && defined(__SANITIZE_ADDRESS__)
#define FORKS false
#elif !defined(FORKS)
#define FORKS true
#endif

/* A child of fork has no listener's thread: it makes a listener of its own. */
TEST(forked) {
  int status;
  if (!FORKS) {
    printf("SKIP: a fork with the listener's thread: not under ASan\n");
    return;
  }
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    hk_listener *own = NULL;
    bool none = !hk_listener_current();
    if (none && hk_listener_get(&own) == HK_OK) hk_listener_put(own);
    _exit(!none || !own);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ck_assert_ptr_eq(hk_listener_current(), l);
}

/* It listens at its address if it has only one, else at all of the families that it has. */
TEST_LOOP(own_addresses, 4) {
  hk_addr at;
  socklen_t size = sizeof at;
  bool v6 = false;
  hk_listener_put(l); /* and one with these settings */
  set_param("NCCL_SOCKET_IFNAME", _i < 2 ? "lo" : "lo,e");
  set_param("NCCL_SOCKET_FAMILY", _i % 2 ? "AF_INET" : NULL);
  ck_assert_int_eq(hk_listener_get(&l), HK_OK);
  if (_i == 1) ck_assert_uint_eq(l->contact.n, 1);
  for (uint32_t i = 0; i < l->contact.n; i++) v6 = v6 || l->contact.at[i].sa.sa_family == AF_INET6;
  memset(&at, 0, sizeof at);
  ck_assert_int_eq(getsockname(l->fd, &at.sa, &size), 0);
  ck_assert_int_eq(at.sa.sa_family, v6 ? AF_INET6 : AF_INET);
  ck_assert_int_eq(hk_addr_equal(&at, &l->contact.at[0]), l->contact.n == 1);
  ck_assert_uint_gt(l->contact.n, 0);
  for (uint32_t i = 0; i < l->contact.n; i++) ck_assert_uint_eq(hk_addr_port(&l->contact.at[i]), hk_addr_port(&at));
}

/* A connection to the listener; under the lock. */
static int come(void) {
  int fd;
  hk_addr at = l->contact.at[0];
  ck_assert_int_eq(hk_connect_start(&at, &fd), HK_OK);
  return fd;
}
static bool has_one(void) { return l->npending == 1; }
static bool has_none(void) { return !l->npending; }

/* In libc's place: the caller is late after it. */
static atomic_bool is_late, has_accepted;
int accept4(int socket_fd, struct sockaddr *from, socklen_t *size, int flags) {
  const int fd = (int)syscall(SYS_accept4, socket_fd, from, size, flags);
  if (fd < 0 || !is_late) return fd;
  has_accepted = true;
  usleep(20 * 1000); /* only makes a fork that does not wait for the caller fail the test */
  return fd;
}

static void *accept_late(void *arg) {
  int *fd = arg;
  *fd = hk_boot_accept(*fd);
  return NULL;
}

/* A child of fork keeps no connection that has just come in. */
TEST(children_keep_no_new_connection) {
  hk_addr at = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  int socket_fd, fd;
  pthread_t thread;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &at, 5, &socket_fd), HK_OK);
  ck_assert_int_eq(hk_connect_start(&at, &fd), HK_OK);
  const int before = sockets_of_a_child();
  is_late = true;
  int accepted = socket_fd;
  ck_assert_int_eq(pthread_create(&thread, NULL, accept_late, &accepted), 0);
  while (!has_accepted) usleep(100);
  ck_assert_int_eq(sockets_of_a_child(), before);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_int_ge(accepted, 0);
  hk_boot_close(accepted);
  close(fd);
  close(socket_fd);
}

/* A child of fork keeps no socket of the bootstrap: else an end here would not show at the other end. */
TEST(children_keep_nothing) {
  hk_addr at = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  char text[HK_ADDR_TEXT];
  ncclUniqueId id;
  int before = sockets_of_a_child(), fd;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &at, 5, &fd), HK_OK);
  ck_assert_int_eq(sockets_of_a_child(), before + 1);
  close(fd); /* its port is free now */
  snprintf(text, sizeof text, "127.0.0.1:%d", hk_addr_port(&at));
  set_param("NCCL_COMM_ID", text);
  ck_assert_int_eq(hk_bootstrap_env_id(hk_settings_now(), &id, 0), HK_OK);
  hk_listener_lock();
  ck_assert(l->roots && l->roots->socket_fd >= 0);
  fd = come();
  await_listener(has_one);
  hk_listener_unlock();
  ck_assert_int_eq(sockets_of_a_child(), before + 1);
  hk_listener_lock();
  (void)hk_roots_expire(l, hk_now_ns() + 100000 * S);
  ck_assert_ptr_null(l->roots);
  hk_listener_unlock();
  close(fd);
}

static bool hears(void) { return l->pending->stranger.have > HK_HELLO_BYTES; }

/* An encrypted hello longer than one of ours, in two parts: it stays in the queue until it is complete, and then gets
 * the answer that there is no key. */
TEST(encrypted_connection) {
  enum { BYTES = 5 + 3000, FIRST = 1000 };
  static char hello[BYTES] = {HK_TLS_FIRST_BYTE, 3, 1, 3000 >> 8, (char)3000};
  char answer[8];
  memcpy(hello + BYTES - 11, "nccl-psk-v1", 11);
  hk_listener_lock();
  int fd = come();
  await_listener(has_one);
  ck_assert_int_eq(send(fd, hello, FIRST, 0), FIRST);
  await_listener(hears);
  ck_assert(has_one());
  ck_assert_int_eq(send(fd, hello + FIRST, BYTES - FIRST, 0), BYTES - FIRST);
  await_listener(has_none);
  hk_listener_unlock();
  struct pollfd end = {.fd = fd, .events = POLLIN};
  ck_assert_int_eq(poll(&end, 1, 5000), 1);
  ck_assert_int_eq(recv(fd, answer, sizeof answer, 0), 7);
  ck_assert_mem_eq(answer, "\x15\x03\x03\x00\x02\x02\x73", 7);
  ck_assert_int_eq(recv(fd, answer, sizeof answer, 0), 0);
  close(fd);
}

/* A listener that could accept no connection does so again from the next tick on. */
TEST(accepts_again) {
  hk_listener_lock();
  hk_service_modify(l->service, l->fd, 0);
  int fd = come();
  l->paused = true;
  hk_listener_tick(l);
  await_listener(has_one);
  ck_assert(!l->paused);
  close(fd);
  await_listener(has_none);
  hk_listener_unlock();
}

static bool has_forgotten(void) { return !l->refusing_since_ns; }
static bool has_ticked(void) { return has_spare(); }

/* It refuses no rank any more if it has refused none for a second, or has accepted one. */
TEST_LOOP(refusals_end, 2) {
  hk_listener_lock();
  l->refusing_since_ns = 1;
  l->refused_last_ns = hk_now_ns() + 60 * S; /* a moment ago, whenever the tick comes */
  hk_boot_close(l->spare);
  l->spare = -1;
  hk_listener_tick(l);
  await_listener(has_ticked);
  ck_assert(!has_forgotten());
  if (_i == 0) l->refused_last_ns = hk_now_ns() - 2 * S;
  int fd = _i ? come() : -1;
  await_listener(has_forgotten);
  hk_listener_unlock();
  close(fd);
}

/* How often the heap has the second half of a secret, which `masked` has inverted: the allocator may have overwritten
 * the first half of what was freed. -1: there is no heap. Takes no memory itself. */
static int found_in_heap(const uint8_t masked[HK_SECRET_BYTES]) {
  enum { HALF = HK_SECRET_BYTES / 2 };
  static char maps[1 << 16];
  unsigned long from, to;
  int n = 0, fd = open("/proc/self/maps", O_RDONLY);
  size_t have = 0;
  for (ssize_t got; (got = read(fd, maps + have, sizeof maps - 1 - have)) > 0;) have += (size_t)got;
  close(fd);
  char *line = strstr(maps, "[heap]");
  if (!line) return -1;
  while (line > maps && line[-1] != '\n') line--;
  ck_assert_int_eq(sscanf(line, "%lx-%lx", &from, &to), 2);
  for (const uint8_t *p = (const uint8_t *)from; p + HALF <= (const uint8_t *)to; p++) {
    int same = 0;
    while (same < HALF && (p[same] ^ masked[HALF + same]) == 0xff) same++;
    n += same == HALF;
  }
  return n;
}

/* Core dumps and reused memory have no secret of an id or a communicator that has ended. */
TEST(secrets_are_cleared) {
  ncclUniqueId id;
  hk_boot_id parts;
  hk_bootstrap *b;
  hk_wait_env env = {.spins = 0};
  uint8_t of_id[HK_SECRET_BYTES], of_family[HK_SECRET_BYTES];
  mallopt(M_TRIM_THRESHOLD, 1 << 30); /* what is freed stays in sight */
  ck_assert_int_eq(hk_bootstrap_new_id(&id), HK_OK);
  ck_assert_int_eq(hk_boot_id_decode(&parts, &id), HK_OK);
  for (int i = 0; i < HK_SECRET_BYTES; i++) of_id[i] = (uint8_t)~parts.secret[i];
  int found = found_in_heap(of_id); /* the root's */
  if (found < 0) {
    printf("SKIP: secrets of ended ids in memory: a sanitizer's allocator has no heap to look at\n");
    return;
  }
  ck_assert_int_gt(found, 0);
  hk_bootstrap_options o = {.settings = hk_settings_now(), .rank = 0, .nranks = 1, .wait = &env};
  ck_assert_int_eq(hk_bootstrap_join(&b, &id, 1, &o), HK_OK);
  for (int i = 0; i < HK_SECRET_BYTES; i++) of_family[i] = (uint8_t)~hk_bootstrap_secret(b)[i];
  hk_bootstrap_leave(b);
  for (uint64_t end = hk_now_ns() + 20 * S; found_in_heap(of_id) && hk_now_ns() < end;) usleep(1000); /* its sweep */
  ck_assert_int_eq(found_in_heap(of_id), 0);
  ck_assert_int_eq(found_in_heap(of_family), 0);
}

int main(void) { return suite_main("listener", .setup = setup, .teardown = teardown); }
