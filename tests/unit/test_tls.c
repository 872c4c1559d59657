/* SPDX-License-Identifier: Apache-2.0 */
/* TLS between two sockets of one process: the handshake step by step, data in all pieces, damaged data, keys. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include "../../src/base/addr.h"
#include "../../src/base/openssl_abi.h"
#include "../../src/base/param.h"
#include "../../src/base/tcp.h"
#include "../../src/base/tls.h"
#include "../support/suite.h"
#if __has_include(<openssl/ssl.h>)
#include <openssl/err.h>
#include <openssl/ssl.h>
#define X(name, value) _Static_assert((long long)(name) == (value), #name);
HK_OPENSSL_NUMBERS(X)
#undef X
#endif

#define KEY "a key of enough bytes for everyone"
enum { MANY = 1 << 20 };

static bool have_openssl(void) {
  char why[256] = "";
  bool have = hk_tls_library(why, sizeof why) != NULL;
  if (!have) printf("SKIP: no OpenSSL 3 here: %s\n", why);
  return have;
}

/* A new TCP connection of this process with itself. */
static void connect_pair(int fd[2]) {
  hk_addr a;
  int listener, small = 8192;
  memset(&a, 0, sizeof a);
  a.v4.sin_family = AF_INET;
  a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ck_assert_int_eq(hk_listen(hk_settings_now(), &a, 1, &listener), HK_OK);
  ck_assert_int_eq(hk_connect_start(&a, &fd[0]), HK_OK);
  struct pollfd p = {.fd = listener, .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 5000), 1);
  fd[1] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
  ck_assert_int_ge(fd[1], 0);
  for (int i = 0; i < 2; i++) {
    setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small); /* so that sends often find no room */
    hk_tcp_new(fd[i]);
  }
  close(listener);
}

static void shake(const int fd[2]) {
  char why[HK_TLS_WHY] = "";
  hk_tls_state a = HK_TLS_WAITS, b = HK_TLS_WAITS;
  while (a == HK_TLS_WAITS || b == HK_TLS_WAITS) {
    if (a == HK_TLS_WAITS) a = hk_tls_connect(fd[0], why);
    if (b == HK_TLS_WAITS) b = hk_tls_accept(fd[1], why);
  }
  ck_assert_msg(a == HK_TLS_OPEN && b == HK_TLS_OPEN, "%s", why);
}

static void open_pair(int fd[2]) {
  ck_assert_int_eq(hk_tls_set_key(KEY, false), HK_OK);
  ck_assert_int_eq(hk_tls_prepare(hk_settings_now()), HK_OK);
  connect_pair(fd);
  shake(fd);
}

static void close_pair(const int fd[2]) {
  hk_tcp_close(fd[0]);
  hk_tcp_close(fd[1]);
}

static unsigned next_random(unsigned *state) { return (*state = *state * 1103515245u + 12345u) >> 8; }

/* A vector over the next bytes of `data`, in up to five pieces, some of them empty. */
static int cut(char *data, size_t bytes, unsigned *seed, struct iovec *v) {
  int n = 1 + (int)(next_random(seed) % 5);
  for (int i = 0; i < n; i++) {
    size_t most = next_random(seed) % 3 == 0 ? 40000 : 100, piece = next_random(seed) % most;
    if (piece > bytes) piece = bytes;
    v[i] = (struct iovec){data, piece};
    data += piece;
    bytes -= piece;
  }
  return n;
}

typedef struct stream {
  int fd;
  char *data;
  unsigned seed;
  size_t done;
} stream;

/* One call, which mostly does not fit. */
static void send_some(stream *s) {
  struct iovec v[5];
  int n = cut(s->data + s->done, MANY - s->done, &s->seed, v);
  ssize_t sent = hk_tcp_sendv(s->fd, v, n);
  if (sent > 0) s->done += (size_t)sent;
  ck_assert(sent >= 0 || errno == EAGAIN);
}

static void receive_some(stream *s) {
  struct iovec v[5];
  int n = cut(s->data + s->done, MANY - s->done, &s->seed, v);
  ssize_t got = hk_tcp_readv(s->fd, v, n);
  if (got > 0) s->done += (size_t)got;
  ck_assert(got >= 0 || errno == EAGAIN);
}

static void fill(char *data, unsigned seed) {
  for (size_t i = 0; i < MANY; i++) data[i] = (char)next_random(&seed);
}

/* From _i 2 on with a new key every few records. */
TEST_LOOP(pieces, 4) {
  int fd[2];
  if (!have_openssl()) return;
  if (_i >= 2) hk_tls_records = 3;
  open_pair(fd);
  char *from = malloc(MANY), *to = calloc(1, MANY);
  fill(from, 7);
  stream out = {.fd = fd[_i % 2], .data = from, .seed = 1}, in = {.fd = fd[1 - _i % 2], .data = to, .seed = 2};
  unsigned turns = 3;
  while (in.done < MANY) {
    if (out.done < MANY) send_some(&out);
    if (next_random(&turns) % 4) receive_some(&in); /* the sender is ahead, until there is no room */
  }
  ck_assert_int_eq(memcmp(from, to, MANY), 0);
  free(from);
  free(to);
  close_pair(fd);
}

static void *receive_all(void *arg) {
  stream *s = arg;
  while (s->done < MANY) receive_some(s);
  return NULL;
}

/* Each end is read by one thread and written by another at the same time. */
TEST(threads) {
  hk_tls_records = 100;
  int fd[2];
  pthread_t t[2];
  if (!have_openssl()) return;
  open_pair(fd);
  char *from = malloc(MANY), *to[2] = {calloc(1, MANY), calloc(1, MANY)};
  fill(from, 9);
  stream in[2] = {{.fd = fd[0], .data = to[0], .seed = 4}, {.fd = fd[1], .data = to[1], .seed = 5}};
  stream out[2] = {{.fd = fd[0], .data = from, .seed = 6}, {.fd = fd[1], .data = from, .seed = 8}};
  for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, receive_all, &in[i]), 0);
  while (out[0].done < MANY || out[1].done < MANY)
    for (int i = 0; i < 2; i++)
      if (out[i].done < MANY) send_some(&out[i]);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  ck_assert(memcmp(from, to[0], MANY) == 0 && memcmp(from, to[1], MANY) == 0);
  free(from);
  free(to[0]);
  free(to[1]);
  close_pair(fd);
}

static void receive_plain(int fd, unsigned char *to, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 5000), 1);
    ssize_t n = recv(fd, to + got, bytes - got, 0);
    ck_assert_int_gt(n, 0);
    got += (size_t)n;
  }
}

/* What is sent at once goes in as few records as can be, however it is cut: each costs bytes and calls of its own. */
TEST(records) {
  enum { HEADER = 5, MOST = 16384, TAIL = 17 };
  static const size_t cuts[][3] = {{1},           {100, 200, 300},  {16384},       {16385},       {16383, 1},
                                   {16383, 2, 5}, {20000, 0, 5000}, {5, 16384, 7}, {1, 1, 32766}, {0, 40000, 0}};
  int fd[2], large = 1 << 20;
  if (!have_openssl()) return;
  open_pair(fd);
  setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
  char *data = malloc(MANY);
  fill(data, 3);
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    unsigned char wire[MOST + 256];
    struct iovec v[3];
    size_t total = 0, n = 0;
    for (int k = 0; k < 3; k++) {
      v[k] = (struct iovec){data + total, cuts[i][k]};
      total += cuts[i][k];
    }
    ck_assert_int_eq(hk_tcp_sendv(fd[0], v, 3), (ssize_t)total);
    for (size_t got = 0; got < total; n++) {
      receive_plain(fd[1], wire, HEADER);
      size_t bytes = (size_t)wire[3] << 8 | wire[4];
      ck_assert(bytes > TAIL && bytes <= MOST + TAIL);
      receive_plain(fd[1], wire, bytes);
      got += bytes - TAIL;
    }
    ck_assert_msg(n == (total + MOST - 1) / MOST, "case %zu: %zu bytes in %zu records", i, total, n);
  }
  free(data);
  close_pair(fd);
}

static ssize_t receive_when_there(int fd, void *to, size_t bytes) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 5000), 1);
  return hk_tcp_recv(fd, to, bytes);
}

/* What is read of a record in part is not lost, and hk_tcp_unread knows of it: poll(2) does not. */
TEST(unread) {
  int fd[2];
  char to[32] = "";
  if (!have_openssl()) return;
  open_pair(fd);
  ck_assert_int_eq(hk_tcp_send(fd[0], "first second", 12), 12);
  ck_assert_int_eq(receive_when_there(fd[1], to, 5), 5);
  ck_assert(hk_tcp_unread(fd[1]) && !hk_tcp_unread(fd[0]));
  struct pollfd p = {.fd = fd[1], .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 0), 0);
  ck_assert_int_eq(hk_tcp_recv(fd[1], to, sizeof to), 7);
  ck_assert_mem_eq(to, " second", 7);
  ck_assert(!hk_tcp_unread(fd[1]));
  ck_assert(hk_tcp_recv(fd[1], to, sizeof to) == -1 && errno == EAGAIN);
  hk_tcp_close(fd[0]);
  ck_assert_int_eq(receive_when_there(fd[1], to, sizeof to), 0); /* the end, as without TLS */
  ck_assert(hk_tcp_send(fd[1], "x", 1) >= 0 || errno == EPIPE || errno == ECONNRESET);
  ck_assert(hk_tcp_send(fd[1], "x", 1) == -1 && (errno == EPIPE || errno == ECONNRESET)); /* and no SIGPIPE */
  hk_tcp_close(fd[1]);
}

/* Bytes that something between the two changed, and bytes that were never encrypted. */
TEST_LOOP(forged, 2) {
  int fd[2];
  char layer[16] = "";
  socklen_t capacity = sizeof layer;
  char record[64] = {0x17, 3, 3, 0, 40}, to[64];
  if (!have_openssl()) return;
  open_pair(fd);
  if (getsockopt(fd[0], IPPROTO_TCP, TCP_ULP, layer, &capacity) == 0 && strcmp(layer, "tls") == 0) {
    printf("SKIP: the kernel encrypts whatever this test writes\n");
    close_pair(fd);
    return;
  }
  if (_i) memcpy(record, "GET / HTTP/1.0\r\n", 16);
  ck_assert_int_eq(send(fd[0], record, 45, 0), 45);
  ck_assert_int_eq(receive_when_there(fd[1], to, sizeof to), -1);
  ck_assert_int_eq(errno, EBADMSG);
  ck_assert_int_eq(hk_tcp_recv(fd[1], to, sizeof to), -1); /* and it stays so */
  close_pair(fd);
}

static hk_tls_state connect_when_there(int fd, char *why) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 5000), 1);
  return hk_tls_connect(fd, why);
}

TEST(plain_peers) {
  int fd[2];
  char why[HK_TLS_WHY] = "", to[8];
  if (!have_openssl()) return;
  ck_assert_int_eq(hk_tls_set_key(KEY, false), HK_OK);
  ck_assert_int_eq(hk_tls_prepare(hk_settings_now()), HK_OK);
  connect_pair(fd); /* it connects and speaks plain text */
  ck_assert_int_eq(hk_tls_accept(fd[1], why), HK_TLS_WAITS);
  ck_assert_int_eq(send(fd[0], "hello", 5, 0), 5);
  struct pollfd p = {.fd = fd[1], .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 5000), 1);
  ck_assert_int_eq(hk_tls_accept(fd[1], why), HK_TLS_PLAIN);
  ck_assert_int_eq(hk_tcp_recv(fd[1], to, sizeof to), 5);
  close_pair(fd);
  connect_pair(fd); /* it accepts and has no key */
  ck_assert_int_eq(hk_tls_connect(fd[0], why), HK_TLS_WAITS);
  ck_assert_int_eq(receive_when_there(fd[1], to, sizeof to), sizeof to); /* as the first bytes of a hello */
  ck_assert_int_eq(to[0], HK_TLS_FIRST_BYTE);
  hk_tls_stranger s = {0};
  ck_assert(hk_tls_refuse(fd[1], &s, to, sizeof to));
  ck_assert_int_eq(connect_when_there(fd[0], why), HK_TLS_REFUSED);
  ck_assert_msg(strstr(why, "no encryption key"), "%s", why);
  close_pair(fd);
  connect_pair(fd); /* it accepts and answers in plain text */
  ck_assert_int_eq(hk_tls_connect(fd[0], why), HK_TLS_WAITS);
  ck_assert_int_eq(send(fd[1], "not TLS at all", 14, 0), 14);
  ck_assert_int_eq(connect_when_there(fd[0], why), HK_TLS_REFUSED);
  ck_assert_msg(strstr(why, "does not speak TLS"), "%s", why);
  close_pair(fd);
  connect_pair(fd); /* it closes */
  ck_assert_int_eq(hk_tls_connect(fd[0], why), HK_TLS_WAITS);
  hk_tcp_close(fd[1]);
  ck_assert_int_eq(connect_when_there(fd[0], why), HK_TLS_CLOSED);
  hk_tcp_close(fd[0]);
}

/* A peer's hello of any length that a record may have, in pieces: OpenSSL's own grows with each version. */
TEST_LOOP(refused_in_pieces, 7) {
  enum { HEADER = 5, RECORD = 16384 };
  static const struct {
    const char *name;
    int bytes, at; /* of the record, and where in it the name is */
    bool asks;
  } cases[] = {{"nccl-psk-v1", 250, 200, true},
               {"nccl-psk-v1", 1500, 1400, true},
               {"nccl-psk-v1", RECORD, RECORD - 11, true},
               {"nccl-psk-v1", RECORD, 0, true},
               {"nccnccl-psk-v1", 3000, 1017, true},
               {"nccl-psk-v2", 3000, 2000, false},
               {"nccl-psk-v1", RECORD + 1, 100, false}};
  static unsigned char hello[HEADER + RECORD + 1];
  const int bytes = cases[_i].bytes;
  static const int cuts[] = {3, 1, 1, 7, 192, 1017, 4096, RECORD + 1};
  int fd[2], sent = 0;
  char got[16];
  hk_tls_stranger s = {0};
  bool over = false;
  memset(hello, 'n', sizeof hello);
  memcpy(hello, (const char[]){HK_TLS_FIRST_BYTE, 3, 1, (char)(bytes >> 8), (char)bytes}, HEADER);
  memcpy(hello + HEADER + cases[_i].at, cases[_i].name, strlen(cases[_i].name));
  connect_pair(fd);
  for (int i = 0, n; !over && sent < HEADER + bytes; sent += n, i++) {
    n = cuts[i] < HEADER + bytes - sent ? cuts[i] : HEADER + bytes - sent;
    ck_assert_int_eq(recv(fd[0], got, sizeof got, MSG_DONTWAIT), -1); /* it reads the record to its end */
    for (int done = 0; done < n || (sent + n == HEADER + bytes && !over);) {
      struct pollfd p = {.fd = fd[1], .events = POLLIN};
      ssize_t more = send(fd[0], hello + sent + done, (size_t)(n - done), MSG_DONTWAIT);
      if (more > 0) done += (int)more;
      ck_assert_int_eq(poll(&p, 1, 5000), 1);
      ck_assert(!over);
      over = hk_tls_refuse(fd[1], &s, NULL, 0);
    }
  }
  ck_assert(over);
  ck_assert_int_eq(sent == HEADER + bytes, bytes <= RECORD);
  struct pollfd p = {.fd = fd[0], .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, cases[_i].asks ? 5000 : 0), cases[_i].asks);
  if (cases[_i].asks) ck_assert_int_eq(recv(fd[0], got, sizeof got, 0), 7);
  if (cases[_i].asks) ck_assert_mem_eq(got, "\x15\x03\x03\x00\x02\x02\x73", 7);
  close_pair(fd);
}

TEST(no_key) {
  int fd[2];
  char why[HK_TLS_WHY];
  ck_assert_int_eq(hk_tls_prepare(hk_settings_now()), HK_OK);
  ck_assert(!hk_tls_on() && hk_tcp_is_plain());
  connect_pair(fd);
  ck_assert_int_eq(hk_tls_connect(fd[0], why), HK_TLS_OPEN);
  ck_assert_int_eq(hk_tls_accept(fd[1], why), HK_TLS_OPEN);
  ck_assert_int_eq(hk_tcp_send(fd[0], "hello", 5), 5);
  ck_assert(!hk_tcp_unread(fd[1]));
  close_pair(fd);
}

TEST(keys) {
  char longest[HK_TLS_KEY_MOST + 2];
  memset(longest, 'k', sizeof longest);
  longest[HK_TLS_KEY_MOST + 1] = 0;
  ck_assert_int_eq(hk_tls_set_key(longest, false), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_tls_set_key(longest + 1, false), HK_OK);
  ck_assert_int_eq(hk_tls_set_key("0123456789abcdef0123456789abcde", false), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_tls_set_key(longest + 1, true), HK_OK);
  ck_assert_int_eq(hk_tls_set_key(KEY, true), HK_ERR_USAGE);
  ck_assert_int_eq(hk_tls_set_key(NULL, true), HK_ERR_USAGE);
  ck_assert_int_eq(hk_tls_set_key(NULL, false), HK_OK);
  ck_assert_int_eq(hk_tls_prepare(hk_settings_now()), HK_OK);
  ck_assert(!hk_tls_on());
}

TEST_LOOP(files, 9) {
  static const struct {
    const char *text;
    mode_t mode;
    int status;
    const char *says;
  } cases[] = {
      {KEY "\n", 0600, HK_OK, ""},
      {KEY, 0400, HK_OK, ""},
      {KEY, 0640, HK_ERR_USAGE, "chmod 600"},
      {KEY, 0604, HK_ERR_USAGE, "chmod 600"},
      {KEY, 0600, HK_ERR_USAGE, "belongs to user id 65534"}, /* of another user */
      {"short\n", 0600, HK_ERR_USAGE, "32 to 512"},
      {"", 0600, HK_ERR_USAGE, "32 to 512"},
      {KEY, 0600, HK_ERR_USAGE, "32 to 512"}, /* with as many more as are one too many */
      {KEY, 0600, HK_OK, ""},                 /* with as many as fit */
  };
  enum { OTHER_USER = 4 };
  char path[] = "/tmp/hocket-key-XXXXXX", key[HK_TLS_KEY_MOST + 1], wanted[HK_TLS_KEY_MOST + 2] = "";
  const int length = _i < 7 ? (int)strlen(cases[_i].text) : _i == 7 ? HK_TLS_KEY_MOST + 1 : HK_TLS_KEY_MOST;
  memset(key, 'x', sizeof key);
  memset(wanted, 'k', (size_t)length);
  memcpy(wanted, cases[_i].text, strlen(cases[_i].text));
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(write(fd, wanted, (size_t)length), length);
  ck_assert_int_eq(fchmod(fd, cases[_i].mode), 0);
  if (_i == OTHER_USER && fchown(fd, 65534, (gid_t)-1) != 0) {
    printf("SKIP: a file of another user needs root to make one\n");
    close(fd);
    unlink(path);
    return;
  }
  close(fd);
  setenv("HOCKET_ENCRYPTION_KEY_FILE", path, 1);
  hk_param_reload();
  int status = hk_tls_key_file(hk_settings_now(), key);
  unlink(path);
  ck_assert_int_eq(status, cases[_i].status);
  wanted[strcspn(wanted, "\n")] = 0;
  if (status == HK_OK)
    ck_assert_str_eq(key, wanted);
  else
    ck_assert_msg(strstr(hk_last_error(), cases[_i].says), "%s", hk_last_error());
  ck_assert_int_eq(hk_tls_key_file(hk_settings_now(), key), HK_ERR_USAGE); /* it does not exist any more */
  ck_assert_int_eq(hk_tls_prepare(hk_settings_now()), HK_ERR_USAGE);       /* and that is not the same as no key */
}

int main(void) { return suite_main("tls", .timeout = 60); }
