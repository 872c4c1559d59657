/* SPDX-License-Identifier: Apache-2.0 */
/* ncclSetEncryption between processes over TCP: what works, what the wire shows, who is refused, and how waits end.
 * check: timeout=300 notsan */
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include "../../src/base/addr.h"
#include "../../src/base/param.h"
#include "../../src/base/tls.h"
#include "../../src/boot/wire.h"
#include "../support/leftovers.h"
#include "../support/ranks.h"
#include "../support/suite.h"

static const char *const key = "the key that all ranks of this test have";
static const char *const other_key = "and this is the key of quite another job";
static const char mark[] = "plain text that everyone can read"; /* in the data */
enum { RANKS = 3, BYTES = 300000 };

/* What the processes of a test share. */
typedef struct scene {
  ncclUniqueId id, grow_id;
  _Atomic(int) made, grown, ready, leave;
} scene;
static scene *s;

static int set_key(const char *psk) {
  ncclEncryptionConfig_t e = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  e.mode = psk ? NCCL_ENCRYPTION_MODE_PSK : NCCL_ENCRYPTION_MODE_NONE;
  e.psk = psk;
  return RANK_CHECK(ncclSetEncryption(&e));
}

static void wait_for(_Atomic(int) *flag, int value) {
  while (atomic_load(flag) < value) usleep(100);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ncclResult_t join(int rank, int n, ncclComm_t *c) {
  if (rank == 0) {
    ncclResult_t made = ncclGetUniqueId(&s->id);
    atomic_store(&s->made, 1);
    if (made != ncclSuccess) return made;
  }
  wait_for(&s->made, 1);
  return ncclCommInitRank(c, n, s->id, rank);
}

/* Process p of n runs body(p), after the fork. Returns the number of faults. */
static int processes(int n, int (*body)(int p)) {
  int faults = 0;
  pid_t pid[8];
  fflush(NULL);
  for (int p = 0; p < n; p++)
    if ((pid[p] = fork()) == 0) _exit(body(p));
  for (int p = 0; p < n; p++) {
    int status;
    waitpid(pid[p], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    fprintf(stderr, "process %d ended with status 0x%x\n", p, status);
    faults++;
  }
  return faults;
}

static void begin(void) {
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(s != MAP_FAILED);
}

static bool have_openssl(void) {
  char why[256];
  if (hk_tls_library(why, sizeof why)) return true;
  printf("SKIP: no OpenSSL 3 here: %s\n", why);
  return false;
}

/* ---- what works ---- */

static int exchange(ncclComm_t c, int rank, int n) {
  int faults = 0;
  float *a = calloc((size_t)n, BYTES), *b = malloc(BYTES * (size_t)n);
  size_t each = BYTES / sizeof *a;
  for (size_t i = 0; i < each * (size_t)n; i++) a[i] = (float)(rank + 1 + (int)(i % 7));
  faults += RANK_CHECK(ncclAllReduce(a, b, each, ncclFloat, ncclSum, c, NULL));
  for (size_t i = 0; i < each && !faults; i++) faults += b[i] != (float)(n * (n + 1) / 2 + n * (int)(i % 7));
  faults += RANK_CHECK(ncclAllGather(a, b, each, ncclFloat, c, NULL));
  for (size_t i = 0; i < each * (size_t)n && !faults; i++)
    faults += b[i] != (float)((int)(i / each) + 1 + (int)(i % each % 7));
  faults += RANK_CHECK(ncclAlltoAll(a, b, each, ncclFloat, c, NULL));
  for (size_t i = 0; i < each * (size_t)n && !faults; i++)
    faults += b[i] != (float)((int)(i / each) + 1 + (int)(((size_t)rank * each + i % each) % 7));
  faults += RANK_CHECK(ncclReduceScatter(a, b, each, ncclFloat, ncclMax, c, NULL));
  for (size_t i = 0; i < each && !faults; i++) faults += b[i] != (float)(n + (int)(((size_t)rank * each + i) % 7));
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclSend(a, each, ncclFloat, (rank + 1) % n, c, NULL));
  faults += RANK_CHECK(ncclRecv(b, each, ncclFloat, (rank + n - 1) % n, c, NULL));
  faults += RANK_CHECK(ncclGroupEnd());
  for (size_t i = 0; i < each && !faults; i++) faults += b[i] != (float)((rank + n - 1) % n + 1 + (int)(i % 7));
  if (faults) fprintf(stderr, "rank %d of %d: wrong data\n", rank, n);
  free(a);
  free(b);
  return faults;
}

/* Puts and signals go in messages of their own. */
static int put(ncclComm_t c, int rank, int n) {
  ncclWindow_t win;
  char *w, x[20000];
  int faults = RANK_CHECK(ncclMemAlloc((void **)&w, 1 << 16));
  memset(x, 'a' + rank, sizeof x);
  faults += RANK_CHECK(ncclCommWindowRegister(c, w, 1 << 16, &win, NCCL_WIN_COLL_SYMMETRIC));
  faults += RANK_CHECK(ncclPutSignal(x, sizeof x, ncclChar, (rank + 1) % n, win, 100, 0, 0, 0, c, NULL));
  ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = (rank + n - 1) % n};
  faults += RANK_CHECK(ncclWaitSignal(1, &d, c, NULL));
  for (size_t i = 0; i < sizeof x && !faults; i++) faults += w[100 + i] != 'a' + (rank + n - 1) % n;
  float f = 1;
  faults += RANK_CHECK(ncclAllReduce(&f, &f, 1, ncclFloat, ncclSum, c, NULL)); /* all have arrived */
  faults += RANK_CHECK(ncclCommWindowDeregister(c, win));
  return faults + RANK_CHECK(ncclMemFree(w));
}

static int family(int p) {
  ncclComm_t c, half = NULL, rest = NULL, all = NULL;
  bool fresh = p == RANKS;
  int faults = set_key(key), dead = 1;
  if (!fresh) {
    if (RANK_CHECK(join(p, RANKS, &c))) return 1;
    faults += exchange(c, p, RANKS) + put(c, p, RANKS);
    faults += RANK_CHECK(ncclCommSplit(c, p % 2, p, &half, NULL));
    faults += exchange(half, p / 2, p % 2 ? 1 : 2) + RANK_CHECK(ncclCommDestroy(half));
    if (p == dead) { /* it leaves without a word; the others go on without it, and a new one comes */
      atomic_fetch_add(&s->ready, 1);
      wait_for(&s->leave, 1);
      _exit(faults);
    }
    wait_for(&s->ready, 1);
    atomic_store(&s->leave, 1);
    float x = 1;
    if (ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL) == ncclSuccess) faults++;
    faults += RANK_CHECK(ncclCommShrink(c, &dead, 1, &rest, NULL, NCCL_SHRINK_ABORT));
    faults += exchange(rest, p / 2, 2);
    if (p == 0) {
      faults += RANK_CHECK(ncclCommGetUniqueId(rest, &s->grow_id));
      atomic_store(&s->grown, 1);
    }
  }
  wait_for(&s->grown, 1);
  int rank = fresh ? 2 : -1;
  faults += RANK_CHECK(ncclCommGrow(rest, 3, fresh || p == 0 ? &s->grow_id : NULL, rank, &all, NULL));
  if (!faults) faults += exchange(all, fresh ? 2 : p / 2, 3);
  if (!faults) faults += RANK_CHECK(ncclCommDestroy(all));
  if (!faults && !fresh) faults += RANK_CHECK(ncclCommDestroy(rest)) + RANK_CHECK(ncclCommAbort(c));
  return faults;
}

TEST(works) {
  if (!have_openssl()) return;
  begin();
  ck_assert_int_eq(processes(RANKS + 1, family), 0);
}

/* ---- what the wire shows ---- */

static const char *wire_key;

static int send_marks(int p) {
  ncclComm_t c;
  enum { PART = 1 << 14 };
  char *a = malloc(PART), *b = malloc(2 * PART);
  if (wire_key && set_key(wire_key)) return 1;
  for (size_t i = 0; i < PART; i++) a[i] = mark[i % (sizeof mark - 1)];
  if (RANK_CHECK(join(p, 2, &c))) return 1;
  int faults = 0;
  for (int i = 0; i < 20; i++) faults += RANK_CHECK(ncclAllGather(a, b, PART, ncclChar, c, NULL));
  faults += memcmp(b + PART, a, PART) != 0 || memcmp(b, a, PART) != 0;
  free(a);
  free(b);
  return faults + RANK_CHECK(ncclCommDestroy(c));
}

/* Packets of all interfaces; -1: this needs CAP_NET_RAW. */
static int listen_on_wire(void) {
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL)), capacity = 64 << 20;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &capacity, sizeof capacity);
  return fd;
}

static int packets_with(int fd, const char *text, size_t bytes, int *packets) {
  static char packet[1 << 17];
  int found = 0;
  ssize_t n;
  *packets = 0;
  while ((n = recv(fd, packet, sizeof packet, 0)) > 0) {
    ++*packets;
    found += memmem(packet, (size_t)n, text, bytes) != NULL;
  }
  return found;
}

TEST_LOOP(wire, 2) {
  int packets, wires = listen_on_wire();
  if (!have_openssl()) return;
  if (wires < 0) {
    printf("SKIP: packets cannot be seen: %s\n", strerror(errno));
    return;
  }
  begin();
  wire_key = _i ? key : NULL;
  ck_assert_int_eq(processes(2, send_marks), 0);
  int found = packets_with(wires, mark, sizeof mark - 1, &packets);
  ck_assert_int_gt(packets, 20);
  if (_i)
    ck_assert_int_eq(found, 0);
  else
    ck_assert_int_gt(found, 0); /* so that the test sees what it looks for */
  close(wires);
}

/* ---- who is refused ---- */

static const char *keys_of[RANKS];
static const char *says;

/* All ranks fail, soon, with the same cause. */
static int refused(int p) {
  ncclComm_t c;
  double begun = now();
  if (keys_of[p] && set_key(keys_of[p])) return 1;
  ncclResult_t result = join(p, RANKS, &c);
  const char *text = ncclGetLastError(NULL);
  atomic_fetch_add(&s->ready, 1);
  wait_for(&s->ready, RANKS); /* the root sends the cause to late ranks, if its process still runs */
  if (result != ncclInvalidUsage && result != ncclRemoteError) return 1;
  if (!strstr(text, says) || !strstr(text, "ncclSetEncryption")) {
    fprintf(stderr, "rank %d says '%s' and not '%s'\n", p, text, says);
    return 1;
  }
  return now() - begun > 10;
}

TEST_LOOP(keys_differ, 5) {
  static const struct {
    const char *says;
    int odd;
    bool odd_has, others_have;
  } cases[] = {
      {"another encryption key", 2, true, true}, {"another encryption key", 0, true, true},
      {"no encryption key", 1, false, true},     {"no encryption key", 0, false, true},
      {"no encryption key", 2, true, false},
  };
  if (!have_openssl()) return;
  begin();
  says = cases[_i].says;
  for (int p = 0; p < RANKS; p++)
    keys_of[p] = p != cases[_i].odd ? cases[_i].others_have ? key : NULL : cases[_i].odd_has ? other_key : NULL;
  ck_assert_int_eq(processes(RANKS, refused), 0);
}

static int port_of_root(void) {
  hk_boot_id id;
  return hk_boot_id_decode(&id, &s->id) == HK_OK ? (int)hk_addr_port(&id.at[0]) : 0;
}

static int connect_to_root(void) {
  hk_boot_id id;
  int fd;
  if (hk_boot_id_decode(&id, &s->id) != HK_OK || hk_connect_start(&id.at[0], &fd) != HK_OK) return -1;
  struct pollfd w = {.fd = fd, .events = POLLOUT};
  return poll(&w, 1, 5000) == 1 ? fd : -1;
}

/* Sends the text to the root: gives what came back until the root closed the connection, or -1. */
static ssize_t call_root(const void *text, size_t bytes) {
  char answer[4096];
  ssize_t got = 0, n = -1;
  int fd = connect_to_root();
  if (fd < 0 || send(fd, text, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) return -1;
  struct pollfd r = {.fd = fd, .events = POLLIN};
  while (poll(&r, 1, 8000) == 1 && (n = recv(fd, answer, sizeof answer, 0)) > 0) got += n;
  close(fd);
  return n == 0 || errno == ECONNRESET ? got : -1;
}

/* Strangers connect while the ranks join: text, a hello without the secret, garbage that looks like TLS. */
static int among_strangers(int p) {
  ncclComm_t c;
  if (p < 2) {
    if (set_key(key)) return 1;
    if (p == 1) wait_for(&s->ready, 1);
    if (RANK_CHECK(join(p, 2, &c))) return 1;
    int faults = exchange(c, p, 2);
    return faults + RANK_CHECK(ncclCommDestroy(c));
  }
  unsigned char hello[HK_HELLO_BYTES] = {0}, record[300] = {0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3};
  hk_hello h = {.kind = HK_HELLO_JOIN, .from = 1, .to = 2, .round = 1};
  uint8_t secret[HK_SECRET_BYTES] = "not the secret";
  wait_for(&s->made, 1);
  hk_hello_encode(hello, &h, secret);
  int faults = call_root("GET / HTTP/1.0\r\n\r\n", 18) != 0;
  faults += call_root(hello, sizeof hello) != 0;
  faults += call_root(record, sizeof record) < 0; /* an alert may come back */
  atomic_store(&s->ready, 1);
  return faults + (port_of_root() == 0);
}

TEST(strangers) {
  if (!have_openssl()) return;
  begin();
  ck_assert_int_eq(processes(3, among_strangers), 0);
}

/* ---- waits in the handshake ---- */

/* An id whose root accepts connections in its kernel and never answers: as a process that is stopped. */
static int silent_root(ncclUniqueId *out) {
  hk_boot_id id = {.n = 1};
  int fd;
  memset(id.secret, 7, sizeof id.secret);
  id.at[0].v4.sin_family = AF_INET;
  id.at[0].v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (hk_listen(hk_settings_now(), &id.at[0], 4, &fd) != HK_OK) return -1;
  hk_boot_id_encode(out, &id);
  leftovers_own(fd);
  return fd;
}

TEST(silence) {
  ncclComm_t c;
  ncclUniqueId id;
  if (!have_openssl()) return;
  setenv("HOCKET_BOOTSTRAP_TIMEOUT", "2", 1);
  ck_assert_int_eq(set_key(key), 0);
  ck_assert_int_ge(silent_root(&id), 0);
  double begun = now();
  ck_assert_int_eq(ncclCommInitRank(&c, 2, id, 1), ncclRemoteError);
  ck_assert_msg(strstr(ncclGetLastError(NULL), "no answer"), "%s", ncclGetLastError(NULL));
  ck_assert(now() - begun < 15);
}

TEST(abort_in_handshake) {
  ncclComm_t c = NULL;
  ncclUniqueId id;
  ncclResult_t state;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (!have_openssl()) return;
  config.blocking = 0;
  ck_assert_int_eq(set_key(key), 0);
  int fd = silent_root(&id);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(ncclCommInitRankConfig(&c, 2, id, 1, &config), ncclInProgress);
  struct pollfd p = {.fd = fd, .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 10000), 1); /* it has connected */
  int peer = accept(fd, NULL, NULL);
  p.fd = peer;
  ck_assert_int_eq(poll(&p, 1, 10000), 1); /* and begun the handshake */
  ck_assert_int_eq(ncclCommGetAsyncError(c, &state), ncclSuccess);
  ck_assert_int_eq(state, ncclInProgress);
  double begun = now();
  ck_assert_int_eq(ncclCommAbort(c), ncclSuccess);
  ck_assert(now() - begun < 5);
  close(peer);
}

/* ---- the call ---- */

TEST(arguments) {
  ncclEncryptionConfig_t e = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  ncclUniqueId id;
  e.mode = NCCL_ENCRYPTION_MODE_PSK;
  ck_assert_int_eq(ncclSetEncryption(&e), ncclInvalidArgument); /* no key */
  e.psk = "0123456789abcdef0123456789abcde";
  ck_assert_int_eq(ncclSetEncryption(&e), ncclInvalidArgument); /* 31 bytes */
  if (!have_openssl()) return;
  e.psk = key;
  ck_assert_int_eq(ncclSetEncryption(&e), ncclSuccess);
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclSetEncryption(&e), ncclSuccess); /* the same key again */
  e.psk = other_key;
  ck_assert_int_eq(ncclSetEncryption(&e), ncclInvalidUsage); /* the first one is in use */
  ck_assert_int_eq(ncclSetEncryption(NULL), ncclInvalidUsage);
}

int main(void) { return suite_main("encryption", .timeout = 120); }
