/* SPDX-License-Identifier: Apache-2.0 */
/* The TLS of tcp.h; only this file uses OpenSSL. If the kernel has TLS, OpenSSL gives it the keys after the handshake,
 * and bytes go straight to the descriptor; else OpenSSL makes the records, of at most RECORD bytes. */
#include "tls.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "dl.h"
#include "log.h"
#include "openssl_abi.h"
#include "param.h"
#include "tcp.h"

enum { RECORD = 16384, PSK = 32, ROW = 1024, ROWS = 1024 };
static const unsigned char identity[] = "nccl-psk-v1";

/* ---- OpenSSL ---- */

typedef struct openssl {
  HK_CRYPTO_CALLS(HK_DL_MEMBER) HK_SSL_CALLS(HK_DL_MEMBER)
} openssl;
static openssl lib;
#define CALL(type, name, arguments) HK_DL_SYMBOL(openssl, name, #name),
static const hk_dl_symbol crypto_symbols[] = {HK_CRYPTO_CALLS(CALL)}, ssl_symbols[] = {HK_SSL_CALLS(CALL)};
#undef CALL
#define LIBRARY(file, calls)                                                                                           \
  HK_DL_LIBRARY(lib, calls, HK_SUB_INIT | HK_SUB_NET, "connections cannot be encrypted", file)
static hk_dl crypto = LIBRARY("libcrypto.so.3", crypto_symbols), ssl = LIBRARY("libssl.so.3", ssl_symbols);

const char *hk_tls_library(char *why, size_t bytes) {
  if (hk_dl_load(&crypto) && hk_dl_load(&ssl)) return lib.OpenSSL_version(HK_OPENSSL_VERSION);
  snprintf(why, bytes, "%s", crypto.state < 0 ? crypto.why : ssl.why);
  return NULL;
}

static const char *tls_explain(unsigned long error) {
  switch ((int)(error & HK_ERR_REASON_MASK)) {
    case HK_SSL_AD_REASON_OFFSET + HK_SSL_AD_UNKNOWN_PSK_IDENTITY: return "its process has no encryption key";
    case HK_SSL_AD_REASON_OFFSET + HK_SSL_AD_HANDSHAKE_FAILURE:
    case HK_SSL_AD_REASON_OFFSET + HK_SSL_AD_ILLEGAL_PARAMETER:
    case HK_SSL_AD_REASON_OFFSET + HK_SSL_AD_DECRYPT_ERROR:
    case HK_SSL_R_BINDER_DOES_NOT_VERIFY: return "its process has another encryption key";
    case HK_SSL_R_WRONG_VERSION_NUMBER: return "its process does not speak TLS";
    default: break;
  }
  const char *text = lib.ERR_reason_error_string(error);
  return text ? text : "unknown";
}

/* ---- the key ---- */

_Atomic(bool) hk_tls_used;
/* Changed by hk_tls_set_key and hk_tls_prepare only, while there is no connection or under their caller's lock. */
static struct {
  bool given;                /* by hk_tls_set_key */
  hk_ssl_bio_method *socket; /* OpenSSL's, but a closed connection raises no SIGPIPE */
  hk_ssl_ctx *ctx;           /* NULL: no key */
} process;

/* On separate pages that are excluded from core dumps. */
enum { PAGE = 4096 };
static struct {
  char key[HK_TLS_KEY_MOST + 1]; /* from hk_tls_set_key, or from the last hk_tls_prepare; empty: none */
  unsigned char psk[PSK];
  char rest[PAGE - (HK_TLS_KEY_MOST + 1) - PSK];
} secret __attribute__((aligned(PAGE)));

static void tls_hide_secret(void) { (void)madvise(&secret, sizeof secret, MADV_DONTDUMP); }

hk_status hk_tls_set_key(const char *key, bool in_use) {
  if (!key) key = "";
  if (strlen(key) > HK_TLS_KEY_MOST || (*key && strlen(key) < HK_TLS_KEY_LEAST))
    return HK_FAIL(HK_ERR_ARGUMENT, "the encryption key has %zu bytes: it must have %d to %d", strlen(key),
                   HK_TLS_KEY_LEAST, HK_TLS_KEY_MOST);
  if (in_use && strcmp(key, secret.key) != 0)
    return HK_FAIL(HK_ERR_USAGE, "the encryption key cannot change while the process has communicators or unique ids: "
                                 "call ncclSetEncryption before ncclGetUniqueId");
  process.given = true;
  tls_hide_secret();
  snprintf(secret.key, sizeof secret.key, "%s", key);
  return HK_OK;
}

hk_status hk_tls_key_file(const hk_settings *settings, char key[HK_TLS_KEY_MOST + 1]) {
  hk_status rc = HK_OK;
  struct stat st;
  const char *path = settings->ENCRYPTION_KEY_FILE;
  memset(key, 0, HK_TLS_KEY_MOST + 1);
  if (!path || !*path) return HK_OK;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ssize_t n = fd < 0 || fstat(fd, &st) != 0 ? -1 : read(fd, key, HK_TLS_KEY_MOST + 1);
  if (n < 0)
    HK_GIVE_UP(HK_FAIL(HK_ERR_USAGE, "HOCKET_ENCRYPTION_KEY_FILE=%s cannot be read: %s", path, strerror(errno)), out);
  while (n > 0 && (key[n - 1] == '\n' || key[n - 1] == '\r')) key[--n] = 0;
  if (st.st_uid != 0 && st.st_uid != geteuid())
    rc = HK_FAIL(HK_ERR_USAGE,
                 "HOCKET_ENCRYPTION_KEY_FILE=%s belongs to user id %u, who can change it: it must belong to this "
                 "process's user (%u) or to root",
                 path, (unsigned)st.st_uid, (unsigned)geteuid());
  else if (st.st_mode & 077)
    rc = HK_FAIL(HK_ERR_USAGE,
                 "HOCKET_ENCRYPTION_KEY_FILE=%s can be used by others than its owner (mode %o): chmod 600", path,
                 (unsigned)(st.st_mode & 0777));
  else if (n < HK_TLS_KEY_LEAST || n > HK_TLS_KEY_MOST || memchr(key, 0, (size_t)n))
    rc = HK_FAIL(HK_ERR_USAGE, "HOCKET_ENCRYPTION_KEY_FILE=%s: the key must be a line of text of %d to %d bytes", path,
                 HK_TLS_KEY_LEAST, HK_TLS_KEY_MOST);
out:
  if (fd >= 0) close(fd);
  if (rc != HK_OK) explicit_bzero(key, HK_TLS_KEY_MOST + 1);
  return rc;
}

/* A new session: OpenSSL takes the caller's reference. */
static hk_ssl_session *tls_session(hk_ssl *s) {
  static const unsigned char suite[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
  hk_ssl_session *e = lib.SSL_SESSION_new();
  if (e && lib.SSL_SESSION_set1_master_key(e, secret.psk, PSK) &&
      lib.SSL_SESSION_set_cipher(e, lib.SSL_CIPHER_find(s, suite)) &&
      lib.SSL_SESSION_set_protocol_version(e, HK_TLS1_3_VERSION))
    return e;
  if (e) lib.SSL_SESSION_free(e);
  return NULL;
}

static int tls_use_key(hk_ssl *s, const void *md, const unsigned char **id, size_t *bytes, hk_ssl_session **out) {
  (void)md;
  *id = identity;
  *bytes = sizeof identity - 1;
  return (*out = tls_session(s)) != NULL;
}

static int tls_find_key(hk_ssl *s, const unsigned char *id, size_t bytes, hk_ssl_session **out) {
  bool ours = bytes == sizeof identity - 1 && memcmp(id, identity, bytes) == 0;
  *out = ours ? tls_session(s) : NULL;
  return !ours || *out;
}

/* Once the kernel encrypts, nothing may pass through OpenSSL: it could only be an alert, and the connection ends. */
static int tls_write_quietly(hk_ssl_bio *b, const char *data, int bytes) {
  lib.BIO_clear_flags(b, HK_BIO_FLAGS_RWS | HK_BIO_FLAGS_SHOULD_RETRY);
  errno = EPIPE;
  if (lib.BIO_ctrl(b, HK_BIO_CTRL_GET_KTLS_SEND, 0, NULL) > 0) return -1;
  int fd = (int)lib.BIO_ctrl(b, HK_BIO_C_GET_FD, 0, NULL);
  int n = (int)send(fd, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    lib.BIO_set_flags(b, HK_BIO_FLAGS_WRITE | HK_BIO_FLAGS_SHOULD_RETRY);
  return n;
}

/* OpenSSL receives: the kernel cannot go on when the peer changes its key. */
static long tls_control(hk_ssl_bio *b, int command, long is_send, void *arg) {
  if (command == HK_BIO_CTRL_SET_KTLS && !is_send) return 0;
  return lib.BIO_meth_get_ctrl(lib.BIO_s_socket())(b, command, is_send, arg);
}

static bool tls_make_socket_method(void) {
  if (process.socket) return true;
  const hk_ssl_bio_method *from = lib.BIO_s_socket();
  hk_ssl_bio_method *m = lib.BIO_meth_new(HK_BIO_TYPE_SOCKET, "hocket");
  process.socket = m;
  return m && lib.BIO_meth_set_write(m, tls_write_quietly) && lib.BIO_meth_set_read(m, lib.BIO_meth_get_read(from)) &&
         lib.BIO_meth_set_ctrl(m, tls_control) && lib.BIO_meth_set_create(m, lib.BIO_meth_get_create(from)) &&
         lib.BIO_meth_set_destroy(m, lib.BIO_meth_get_destroy(from));
}

/* The key of the handshake is HKDF-Extract of the user's key, which may have any length. No session tickets: they would
 * be the only records after the handshake that carry no data. */
static bool tls_make_context(void) {
  unsigned bytes = PSK;
  hk_ssl_ctx *c = lib.SSL_CTX_new(lib.TLS_method());
  bool made = c && tls_make_socket_method() &&
              lib.HMAC(lib.EVP_sha256(), identity, sizeof identity - 1, (const unsigned char *)secret.key,
                       strlen(secret.key), secret.psk, &bytes) &&
              lib.SSL_CTX_ctrl(c, HK_SSL_CTRL_SET_MIN_PROTO_VERSION, HK_TLS1_3_VERSION, NULL) &&
              lib.SSL_CTX_ctrl(c, HK_SSL_CTRL_SET_MAX_PROTO_VERSION, HK_TLS1_3_VERSION, NULL) &&
              lib.SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") && lib.SSL_CTX_set_num_tickets(c, 0);
  if (!made) {
    if (c) lib.SSL_CTX_free(c);
    return false;
  }
  lib.SSL_CTX_ctrl(
      c, HK_SSL_CTRL_MODE,
      HK_SSL_MODE_ENABLE_PARTIAL_WRITE | HK_SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | HK_SSL_MODE_RELEASE_BUFFERS, NULL);
  lib.SSL_CTX_set_options(c, HK_SSL_OP_ENABLE_KTLS | HK_SSL_OP_IGNORE_UNEXPECTED_EOF);
  lib.SSL_CTX_set_psk_use_session_callback(c, tls_use_key);
  lib.SSL_CTX_set_psk_find_session_callback(c, tls_find_key);
  process.ctx = c;
  return true;
}

hk_status hk_tls_prepare(const hk_settings *settings) {
  char why[256];
  if (process.ctx) lib.SSL_CTX_free(process.ctx);
  process.ctx = NULL;
  tls_hide_secret();
  if (!process.given) HK_OR_RETURN(hk_tls_key_file(settings, secret.key));
  if (!*secret.key) return HK_OK;
  /* relaxed: see hk_tcp_is_plain */
  atomic_store_explicit(&hk_tls_used, true, memory_order_relaxed);
  const char *version = hk_tls_library(why, sizeof why);
  if (version) {
    /* Threads of the library may run until the process ends: OpenSSL must not free its memory before. */
    (void)lib.OPENSSL_init_crypto(HK_OPENSSL_INIT_NO_ATEXIT, NULL);
    if (tls_make_context()) {
      HK_INFO(HK_SUB_INIT | HK_SUB_NET, "TCP connections are encrypted: TLS 1.3 by %s", version);
      return HK_OK;
    }
    snprintf(why, sizeof why, "%s gives no context for TLS 1.3 with AES-128-GCM (%s)", version,
             tls_explain(lib.ERR_peek_error()));
  }
  return HK_FAIL(HK_ERR_USAGE,
                 "this process has an encryption key and cannot encrypt: %s; install OpenSSL 3 (libssl3), or give no "
                 "process a key",
                 why);
}

bool hk_tls_on(void) { return !hk_tcp_is_plain() && process.ctx; }

/* ---- connections ---- */

typedef struct connection {
  pthread_mutex_t lock; /* a connection may be read by one thread and written by another */
  hk_ssl *ssl;
  /* bytes of a record that the kernel has not taken yet; they were reported to the caller as not sent */
  size_t held;
  unsigned records; /* records sent with the current key */
  bool renews;      /* the KeyUpdate message is not completely sent yet */
  size_t ahead;     /* bytes of such a record that were sent meanwhile; the caller passes them again */
  int error;        /* that ended reading */
  bool kernel_sends, kernel_receives;
} connection;

/* By descriptor. A row is made once and stays. */
static _Atomic(_Atomic(connection *) *) rows[ROWS];

static _Atomic(connection *) *tls_slot_of(int fd, bool make) {
  if (fd < 0 || fd >= ROW * ROWS) return NULL;
  _Atomic(_Atomic(connection *) *) *row = &rows[fd / ROW];
  /* acquire: the row's zeros */
  _Atomic(connection *) *at = atomic_load_explicit(row, memory_order_acquire);
  if (!at && make) {
    _Atomic(connection *) *fresh = calloc(ROW, sizeof *fresh);
    /* release: as above; acquire: another thread's row */
    if (fresh && !atomic_compare_exchange_strong_explicit(row, &at, fresh, memory_order_acq_rel, memory_order_acquire))
      free(fresh);
    else
      at = fresh;
  }
  return at ? &at[fd % ROW] : NULL;
}

static connection *tls_find(int fd) {
  _Atomic(connection *) *slot = tls_slot_of(fd, false);
  /* acquire: pairs with tls_attach(), whose writes are read */
  return slot ? atomic_load_explicit(slot, memory_order_acquire) : NULL;
}

static void tls_destroy(connection *c) {
  lib.SSL_free(c->ssl);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

static connection *tls_attach(int fd, bool accepts) {
  _Atomic(connection *) *slot = tls_slot_of(fd, true);
  connection *c = slot ? calloc(1, sizeof *c) : NULL;
  if (!c) return NULL;
  pthread_mutex_init(&c->lock, NULL);
  c->ssl = lib.SSL_new(process.ctx);
  hk_ssl_bio *b = c->ssl ? lib.BIO_new(process.socket) : NULL;
  if (!b) {
    tls_destroy(c);
    return NULL;
  }
  lib.BIO_int_ctrl(b, HK_BIO_C_SET_FD, HK_BIO_NOCLOSE, fd);
  lib.SSL_set_bio(c->ssl, b, b);
  (accepts ? lib.SSL_set_accept_state : lib.SSL_set_connect_state)(c->ssl);
  if (!accepts) lib.SSL_set_verify(c->ssl, HK_SSL_VERIFY_PEER, NULL); /* no certificate is trusted */
  /* release: for tls_find() */
  atomic_store_explicit(slot, c, memory_order_release);
  return c;
}

/* Not freed: in a forked child another thread of the parent may have been inside it. */
void hk_tcp_new(int fd) {
  _Atomic(connection *) *slot = hk_tcp_is_plain() ? NULL : tls_slot_of(fd, false);
  if (slot) atomic_store_explicit(slot, NULL, memory_order_relaxed); /* relaxed: no other thread has the descriptor */
}

void hk_tcp_close(int fd) {
  connection *c = hk_tcp_is_plain() ? NULL : tls_find(fd);
  hk_tcp_new(fd);
  if (c) tls_destroy(c);
  close(fd);
}

/* ---- the handshake ---- */

static hk_tls_state tls_shake(connection *c, char why[HK_TLS_WHY]) {
  hk_tls_state state = HK_TLS_OPEN;
  pthread_mutex_lock(&c->lock);
  lib.ERR_clear_error();
  errno = 0;
  int done = lib.SSL_do_handshake(c->ssl), cause = done == 1 ? 0 : lib.SSL_get_error(c->ssl, done);
  if (cause == HK_SSL_ERROR_WANT_READ || cause == HK_SSL_ERROR_WANT_WRITE) {
    state = HK_TLS_WAITS;
  } else if (cause == HK_SSL_ERROR_SSL) {
    state = HK_TLS_REFUSED;
    snprintf(why, HK_TLS_WHY, "the TLS handshake failed: %s", tls_explain(lib.ERR_peek_error()));
  } else if (cause) {
    state = HK_TLS_CLOSED;
    snprintf(why, HK_TLS_WHY, "closed the connection in the TLS handshake%s%s", errno ? ": " : "",
             errno ? strerror(errno) : "");
  } else if (!lib.SSL_session_reused(c->ssl)) { /* impossible: only the key lets a handshake succeed */
    state = HK_TLS_REFUSED;
    snprintf(why, HK_TLS_WHY, "the TLS handshake did not use the encryption key");
  } else {
    hk_ssl_bio *b = lib.SSL_get_wbio(c->ssl);
    c->kernel_sends = lib.BIO_ctrl(b, HK_BIO_CTRL_GET_KTLS_SEND, 0, NULL) > 0;
    c->kernel_receives = lib.BIO_ctrl(b, HK_BIO_CTRL_GET_KTLS_RECV, 0, NULL) > 0;
  }
  pthread_mutex_unlock(&c->lock);
  return state;
}

static hk_tls_state tls_step(int fd, bool accepts, char why[HK_TLS_WHY]) {
  connection *c = tls_find(fd);
  if (!c && !(c = tls_attach(fd, accepts))) {
    snprintf(why, HK_TLS_WHY, "this process has no memory for TLS");
    return HK_TLS_CLOSED;
  }
  return tls_shake(c, why);
}

hk_tls_state hk_tls_connect(int fd, char why[HK_TLS_WHY]) {
  return hk_tls_on() ? tls_step(fd, false, why) : HK_TLS_OPEN;
}

hk_tls_state hk_tls_accept(int fd, char why[HK_TLS_WHY]) {
  unsigned char first;
  if (!hk_tls_on()) return HK_TLS_OPEN;
  if (tls_find(fd)) return tls_step(fd, true, why);
  ssize_t n = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return HK_TLS_WAITS;
  snprintf(why, HK_TLS_WHY, "closed the connection");
  if (n <= 0) return HK_TLS_CLOSED;
  return first == HK_TLS_FIRST_BYTE ? tls_step(fd, true, why) : HK_TLS_PLAIN;
}

/* Takes the next bytes of the record. True: it is complete, or it is no TLS record. The name may arrive in pieces. Its
 * first letter occurs only once in it, so after a mismatch the search continues with that byte as a possible first
 * letter. */
static bool tls_hear(hk_tls_stranger *s, const unsigned char *bytes, size_t n) {
  enum { HEADER = 5, NAME = sizeof identity - 1 };
  for (size_t i = 0; i < n; i++) {
    if (s->have == HEADER - 2) s->bytes = (uint16_t)(bytes[i] << 8);
    if (s->have == HEADER - 1) s->bytes |= bytes[i];
    if (++s->have == HEADER && s->bytes > RECORD) return true;
    if (s->key_bytes < NAME)
      s->key_bytes = bytes[i] == identity[s->key_bytes] ? s->key_bytes + 1 : bytes[i] == *identity;
    if (s->have >= HEADER && s->have - HEADER == s->bytes) return true;
  }
  return false;
}

bool hk_tls_refuse(int fd, hk_tls_stranger *s, const void *begin, size_t n) {
  static const unsigned char alert[] = {21, 3, 3, 0, 2, 2, HK_SSL_AD_UNKNOWN_PSK_IDENTITY}; /* fatal */
  unsigned char part[1024];
  /* reads the whole record: unread data at the close would reset the connection and lose the alert */
  while (!tls_hear(s, begin, n)) {
    ssize_t got = recv(fd, part, sizeof part, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    begin = part, n = (size_t)got;
  }
  if (s->key_bytes == sizeof identity - 1) /* if it is lost, the peer sees only the end of the connection */
    (void)send(fd, alert, sizeof alert, MSG_NOSIGNAL | MSG_DONTWAIT);
  return true;
}

/* ---- data ---- */

/* After an OpenSSL call that moved nothing: returns the result of send(2) or recv(2), 0 or -1 with errno. */
static ssize_t tls_outcome(connection *c, int result) {
  int err = errno;
  switch (lib.SSL_get_error(c->ssl, result)) {
    case HK_SSL_ERROR_WANT_READ:
    case HK_SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case HK_SSL_ERROR_ZERO_RETURN: return 0;
    case HK_SSL_ERROR_SYSCALL: errno = err; return err ? -1 : 0;
    default:
      HK_WARN("an encrypted connection fails: %s", tls_explain(lib.ERR_peek_error()));
      errno = EBADMSG;
      return -1;
  }
}

unsigned hk_tls_records = 1u << 23; /* for the tests */

/* An AES-GCM key may protect 2^24.5 records (RFC 8446, 5.5); the key is changed earlier. The KeyUpdate message must be
 * sent completely before the next record, because SSL_write could not tell which of the two the socket did not take.
 * -1: see tls_outcome(). */
static int tls_renew_key(connection *c) {
  struct pollfd capacity = {.fd = (int)lib.BIO_ctrl(lib.SSL_get_wbio(c->ssl), HK_BIO_C_GET_FD, 0, NULL),
                            .events = POLLOUT};
  if (c->records < hk_tls_records) return 0;
  /* Only if the socket has room: OpenSSL reads nothing until the message is sent, and the peer may be in the same
   * state. */
  if (!c->renews && (poll(&capacity, 1, 0) != 1 || !(capacity.revents & POLLOUT))) return 0;
  lib.ERR_clear_error();
  errno = 0;
  if (!c->renews && lib.SSL_key_update(c->ssl, HK_SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return 0;
  c->renews = true;
  int done = lib.SSL_do_handshake(c->ssl);
  if (done != 1) {
    if (tls_outcome(c, done) == 0) errno = EPIPE;
    return -1;
  }
  c->renews = false;
  c->records = 0;
  return 0;
}

/* Sends one record; 0 or less: see tls_outcome(). OpenSSL keeps a record that the kernel does not take. It must then be
 * called again with the same number of bytes, whose content it ignores. */
static ssize_t tls_write_record(connection *c, const void *data, size_t bytes, bool holds) {
  if (!holds && tls_renew_key(c) < 0) return -1;
  lib.ERR_clear_error();
  errno = 0;
  int n = lib.SSL_write(c->ssl, data, (int)bytes);
  if (n > 0) {
    c->records++;
    return n;
  }
  ssize_t result = tls_outcome(c, n);
  if (result < 0 && errno == EAGAIN) c->held = bytes;
  if (result == 0) errno = EPIPE;
  return -1;
}

/* The next bytes of the vector from `at` on, for one record: in place if they are in one piece, else in `stage`. */
static const char *tls_next_record(const struct iovec *v, int n, size_t at, char *stage, size_t *bytes) {
  *bytes = 0;
  for (int i = 0; i < n && *bytes < RECORD; i++) {
    if (at >= v[i].iov_len) {
      at -= v[i].iov_len;
      continue;
    }
    const char *from = (const char *)v[i].iov_base + at;
    size_t left = v[i].iov_len - at, capacity = RECORD - *bytes;
    at = 0;
    if (left > capacity) left = capacity;
    if (*bytes == 0 && (left == RECORD || i + 1 == n)) {
      *bytes = left;
      return from;
    }
    memcpy(stage + *bytes, from, left);
    *bytes += left;
  }
  return stage;
}

static size_t tls_total_of(const struct iovec *v, int n) {
  size_t total = 0;
  for (int i = 0; i < n; i++) total += v[i].iov_len;
  return total;
}

static ssize_t tls_send_records(connection *c, const struct iovec *v, int n) {
  static const char not_read[RECORD];
  char stage[RECORD];
  size_t total = tls_total_of(v, n), done, bytes;
  if (c->held) {
    size_t held = c->held;
    c->held = 0;
    if (tls_write_record(c, not_read, held, true) < 0) return -1;
    c->ahead = held;
  }
  done = c->ahead < total ? c->ahead : total;
  c->ahead -= done;
  while (done < total) {
    const char *from = tls_next_record(v, n, done, stage, &bytes);
    if (tls_write_record(c, from, bytes, false) < 0) return done ? (ssize_t)done : -1;
    done += bytes;
  }
  return (ssize_t)done;
}

ssize_t hk_tls_sendv(int fd, const struct iovec *v, int n) {
  connection *c = tls_find(fd);
  struct msghdr m = {.msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)n};
  if (!c || c->kernel_sends) return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  pthread_mutex_lock(&c->lock);
  ssize_t sent = tls_send_records(c, v, n);
  pthread_mutex_unlock(&c->lock);
  return sent;
}

/* Fills the vector until no data is available. A short record usually ends a burst of the peer, so another read of the
 * socket would mostly find nothing. */
static ssize_t tls_receive_records(connection *c, const struct iovec *v, int n) {
  size_t got = 0;
  if (c->error) {
    errno = c->error;
    return -1;
  }
  for (int i = 0; i < n; i++)
    for (size_t at = 0; at < v[i].iov_len;) {
      size_t left = v[i].iov_len - at;
      lib.ERR_clear_error();
      errno = 0;
      int m = lib.SSL_read(c->ssl, (char *)v[i].iov_base + at, (int)(left < (1 << 30) ? left : 1 << 30));
      if (m <= 0) {
        ssize_t result = tls_outcome(c, m);
        if (result < 0 && errno != EAGAIN) c->error = errno;
        return got ? (ssize_t)got : result;
      }
      at += (size_t)m;
      got += (size_t)m;
      if ((size_t)m < left && m < RECORD && lib.SSL_pending(c->ssl) == 0) return (ssize_t)got;
    }
  return (ssize_t)got;
}

ssize_t hk_tls_readv(int fd, const struct iovec *v, int n) {
  connection *c = tls_find(fd);
  struct msghdr m = {.msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)n};
  if (!c || c->kernel_receives) return recvmsg(fd, &m, MSG_DONTWAIT);
  pthread_mutex_lock(&c->lock);
  ssize_t got = tls_receive_records(c, v, n);
  pthread_mutex_unlock(&c->lock);
  return got;
}

bool hk_tcp_unread(int fd) {
  connection *c = hk_tcp_is_plain() ? NULL : tls_find(fd);
  if (!c || c->kernel_receives) return false;
  pthread_mutex_lock(&c->lock);
  bool unread = c->error || lib.SSL_pending(c->ssl) > 0;
  pthread_mutex_unlock(&c->lock);
  return unread;
}
