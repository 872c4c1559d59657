/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to the one of several addresses that proves to belong to the right process. The addresses are tried in
 * order; the next attempt starts when the last one fails or is slow (as in RFC 8305). So an address that cannot be
 * reached from here, or that belongs to another process on this network, costs only a moment. */
#include "dial.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "../base/iface.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/tcp.h"
#include "../base/tls.h"
#include "process.h"

enum {
  CONNECT_HEAD_START_MS = 250, /* for an address that does not answer at all */
  ACK_HEAD_START_MS = 2000,    /* for one that is connected: its process may only be busy */
  ACK_PATIENCE_MS = 10000,     /* after this a connection counts as lost and is made again */
  /* the same if the process may be slow: each connection that it has not accepted stays in its queue */
  ACK_PATIENCE_MOST_MS = 300000,
  NAP_NS = 20 * 1000 * 1000,
  REFUSALS = 6, /* after this many refusals in a row, and after the caller's patience, the address counts as unused */
  BACKOFF_FIRST_MS = 5,
  BACKOFF_LAST_MS = 250,
  REPORT_SECONDS = 10
};

/* Patience with a process that lacks descriptors. If it is in a call of the library, it reports the cause itself before
 * that. */
#define NO_ROOM_NS 8000000000ull
/* The kernel's search for a duplicate takes 1 to 2 s. */
#define SOURCE_NS 4000000000ull

typedef struct attempt {
  int fd;                  /* -1: not begun, or failed */
  bool connected, greeted; /* greeted: the hello is sent; with encryption that is after the handshake */
  uint64_t since_ns;
  uint32_t have;
  uint8_t ack[HK_ACK_BYTES];
} attempt;

typedef struct race {
  const hk_dialing *d;
  uint64_t since_ns;
  hk_waiter w;
  attempt tries[HK_DIAL_ADDRS];
  uint32_t begun;
  int winner;
  unsigned patience_ms;         /* for an ack on a connection */
  uint64_t host_seen_ns;        /* when some address last had an open connection; 0: never */
  bool gone;                    /* the rank has left */
  hk_ack ack;                   /* of the winner */
  bool no_room;                 /* its process has no descriptor for the connection */
  bool no_key;                  /* its process has no encryption key, or another one */
  bool probing;                 /* any ack wins */
  bool hard;                    /* some address failed, but not by refusing or closing */
  int own;                      /* errno if this process cannot make a socket, else 0 */
  bool silent, closed, refused; /* what happened at some address */
  char why[320];                /* what went wrong with each address */
} race;

static void dial_note(race *r, uint32_t i, const char *what) {
  char text[HK_ADDR_TEXT];
  size_t used = strlen(r->why);
  snprintf(r->why + used, sizeof r->why - used, "%s%s: %s", used ? "; " : "", hk_addr_format(&r->d->at[i], text), what);
}

static void dial_lose(race *r, uint32_t i, const char *what) {
  dial_note(r, i, what);
  hk_boot_close(r->tries[i].fd);
  r->tries[i].fd = -1;
}

static void dial_lose_errno(race *r, uint32_t i, int error) {
  if (error != ECONNREFUSED && error != ECONNRESET && error != EPIPE) r->hard = true;
  r->refused |= error == ECONNREFUSED;
  r->closed |= error == ECONNRESET || error == EPIPE;
  dial_lose(r, i, strerror(error));
}

/* While the kernel still looks for a duplicate of this host's only address of the family, it sends from loopback or
 * from a link-local address, perhaps of another interface. Such a connection is never established. A host may have only
 * link-local addresses, so they are refused only during that search. */
static bool dial_has_no_source(const race *r, int fd, const hk_addr *to) {
  hk_addr from;
  socklen_t len = sizeof from;
  if (getsockname(fd, &from.sa, &len)) return false;
  if (hk_addr_is_loopback(&from)) return !hk_addr_is_loopback(to);
  return to->sa.sa_family == AF_INET6 && hk_addr_is_link_local(&from) && !hk_addr_is_link_local(to) &&
         hk_ago_ns(hk_now_ns(), r->since_ns) < SOURCE_NS;
}

static void dial_begin(race *r) {
  uint32_t i = r->begun++;
  attempt *t = &r->tries[i];
  const hk_addr *to = &r->d->at[i];
  *t = (attempt){.since_ns = hk_now_ns()};
  do {
    t->fd = hk_boot_socket(to->sa.sa_family);
  } while (t->fd < 0 && errno == EMFILE && hk_more_files());
  if (t->fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) r->own = errno;
    dial_lose_errno(r, i, errno);
    return;
  }
  hk_tcp_new(t->fd);
  hk_tcp_unpaced(t->fd);
  hk_watch_silence(r->d->settings,
                   t->fd); /* a host that disappears while we wait for its process ends the connection */
  if (connect(t->fd, &to->sa, hk_addr_len(to)) && errno != EINPROGRESS && errno != EINTR) {
    dial_lose_errno(r, i, errno);
  } else if (dial_has_no_source(r, t->fd, to)) {
    r->hard = true; /* it is tried again without a limit on the number of tries */
    dial_lose(r, i, "this host has no address to reach it from");
  }
}

/* A rank that cannot join reports that in plain text: the cause may be that the processes have no common key. */
static hk_tls_state dial_secure(race *r, uint32_t i) {
  char why[HK_TLS_WHY];
  hk_tls_state s = r->d->hello->kind == HK_HELLO_FAILED ? HK_TLS_OPEN : hk_tls_connect(r->tries[i].fd, why);
  if (s == HK_TLS_OPEN || s == HK_TLS_WAITS) return s;
  r->closed = true;
  r->no_key |= s == HK_TLS_REFUSED;
  dial_lose(r, i, why);
  return s;
}

static void dial_send_hello(race *r, uint32_t i) {
  attempt *t = &r->tries[i];
  if (dial_secure(r, i) != HK_TLS_OPEN) return;
  uint8_t out[HK_HELLO_BYTES + HK_REPLY_TEXT];
  size_t text = r->d->text ? strnlen(r->d->text, HK_REPLY_TEXT) : 0;
  hk_hello_encode(out, r->d->hello, r->d->secret);
  if (text) memcpy(out + HK_HELLO_BYTES, r->d->text, text);
  /* The send buffer of a new connection always has room for this. */
  if (hk_tcp_send(t->fd, out, HK_HELLO_BYTES + text) != (ssize_t)(HK_HELLO_BYTES + text)) dial_lose_errno(r, i, errno);
  t->greeted = true;
}

static void dial_end_connect(race *r, uint32_t i) {
  attempt *t = &r->tries[i];
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &size)) error = errno;
  if (error) {
    dial_lose_errno(r, i, error);
    return;
  }
  t->connected = true;
  t->since_ns = hk_now_ns();
  dial_send_hello(r, i);
}

static void dial_read_ack(race *r, uint32_t i) {
  attempt *t = &r->tries[i];
  ssize_t n = hk_tcp_recv(t->fd, t->ack + t->have, sizeof t->ack - t->have);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) {
    dial_lose_errno(r, i, errno);
    return;
  }
  if (n == 0) {
    r->closed = true;
    dial_lose(r, i, "closed the connection without an answer");
    return;
  }
  t->have += (uint32_t)n;
  if (t->have < sizeof t->ack) return;
  if (!hk_ack_decode(&r->ack, t->ack, r->d->hello->nonce, r->d->secret)) {
    r->closed = true;
    dial_lose(r, i, "another process listens there");
    return;
  }
  if (r->ack == HK_ACK_GONE && !r->probing) {
    r->gone = true;
    return;
  }
  if (r->ack == HK_ACK_NO_ROOM) {
    r->no_room = r->hard = r->silent = true; /* silent: a question is answered even without a descriptor */
    dial_lose(r, i, "its process has no descriptor or no memory left");
    return;
  }
  r->winner = (int)i;
}

/* True if it is time to try one more address. */
static bool dial_overdue(const race *r) {
  if (r->begun == r->d->n) return false;
  for (uint32_t i = 0; i < r->begun; i++) {
    const attempt *t = &r->tries[i];
    if (t->fd < 0) continue;
    uint64_t head_start = t->connected ? ACK_HEAD_START_MS : CONNECT_HEAD_START_MS;
    if (hk_now_ns() - t->since_ns < head_start * 1000000u) return false;
  }
  return true;
}

/* A slow process is no error. With slow_ns the deadline moves as long as an open connection shows that the host is
 * up. */
static bool dial_is_late(const race *r, uint64_t now) {
  uint64_t deadline = r->d->wait->deadline_ns, seen = r->host_seen_ns + r->d->slow_ns;
  if (r->host_seen_ns && seen > deadline) deadline = seen;
  return r->d->wait->deadline_ns && now >= deadline;
}

/* Ends attempts that have waited too long. */
static void dial_expire(race *r) {
  uint64_t now = hk_now_ns();
  for (uint32_t i = 0; i < r->begun; i++)
    if (r->tries[i].fd >= 0 && r->tries[i].connected) r->host_seen_ns = now;
  bool late = dial_is_late(r, now);
  for (uint32_t i = 0; i < r->begun; i++) {
    const attempt *t = &r->tries[i];
    if (t->fd < 0) continue;
    if (!late && !(t->connected && now - t->since_ns > r->patience_ms * (uint64_t)1000000)) continue;
    r->hard = true;
    r->silent |= t->connected;
    dial_lose(r, i, t->connected ? "connected, but no answer" : "no answer");
  }
}

static hk_status dial_poll_tries(race *r) {
  struct pollfd p[HK_DIAL_ADDRS];
  uint32_t which[HK_DIAL_ADDRS], n = 0;
  for (uint32_t i = 0; i < r->begun; i++) {
    if (r->tries[i].fd < 0) continue;
    p[n] = (struct pollfd){.fd = r->tries[i].fd, .events = r->tries[i].connected ? POLLIN : POLLOUT};
    which[n++] = i;
  }
  hk_status rc = hk_wait_poll(&r->w, p, n);
  if (rc != HK_OK) return rc;
  for (uint32_t k = 0; k < n && r->winner < 0 && !r->gone; k++) {
    if (!p[k].revents) continue;
    const attempt *t = &r->tries[which[k]];
    (t->greeted ? dial_read_ack : t->connected ? dial_send_hello : dial_end_connect)(r, which[k]);
  }
  return HK_OK;
}

/* One race through all addresses. HK_OK without a winner: all have failed. */
static hk_status dial_run_race(race *r) {
  hk_status rc = HK_OK;
  r->begun = 0;
  r->winner = -1;
  r->hard = r->silent = r->closed = r->refused = false;
  r->own = 0;
  r->no_room = r->no_key = false;
  r->why[0] = 0;
  for (;;) {
    while (dial_overdue(r) && !(r->probing && hk_now_ns() >= r->d->wait->deadline_ns)) dial_begin(r);
    bool alive = false;
    for (uint32_t i = 0; i < r->begun; i++) alive |= r->tries[i].fd >= 0;
    if (!alive) break;
    HK_TRY(dial_poll_tries(r), out);
    if (r->winner >= 0 || r->gone) break;
    dial_expire(r);
  }
out:
  for (uint32_t i = 0; i < r->begun; i++) {
    if ((int)i == r->winner) continue;
    hk_boot_close(r->tries[i].fd);
  }
  return rc;
}

/* NCCL_SOCKET_RETRY_CNT; else refusals count for the caller's patience, too. */
static bool dial_is_refused(const race *r, unsigned refusals, uint64_t refused_for_ns) {
  const int64_t most = r->d->settings->SOCKET_RETRY_CNT;
  return most >= 0 ? refusals > most : refusals >= REFUSALS && refused_for_ns >= r->d->patience_ns;
}

/* NCCL_SOCKET_RETRY_SLEEP_MSEC; else the caller's backoff. */
static uint64_t dial_pause_ns(const race *r, unsigned refusals, unsigned backoff_ms) {
  const int64_t first = r->d->settings->SOCKET_RETRY_SLEEP;
  return (first < 0 ? backoff_ms : (uint64_t)first * (refusals ? refusals : 1)) * 1000000u;
}

uint64_t hk_boot_report_ns(const hk_settings *settings) {
  int64_t watchdog = settings->WATCHDOG;
  return (uint64_t)(!watchdog ? INT32_MAX : watchdog < REPORT_SECONDS ? watchdog : REPORT_SECONDS) * 1000000000u;
}

hk_status hk_boot_dial(const hk_dialing *d, int *fd) {
  /* The deadline is checked here, so that its error can say what went wrong with each address. */
  hk_wait_env env = *d->wait;
  env.deadline_ns = 0;
  race r = {.d = d, .since_ns = hk_now_ns(), .patience_ms = ACK_PATIENCE_MS};
  uint64_t refused_ns = 0, full_ns = 0;
  unsigned backoff = BACKOFF_FIRST_MS, refusals = 0;
  bool reported = false;
  *fd = -1;
  hk_wait_begin(&r.w, &env);
  for (;;) {
    HK_OR_RETURN(dial_run_race(&r));
    if (r.winner >= 0) {
      *fd = r.tries[r.winner].fd;
      return HK_OK;
    }
    if (r.own)
      return HK_FAIL(HK_ERR_SYSTEM, "rank %d cannot open a connection to %s: %s (%s)%s", d->hello->from, d->whom,
                     strerror(r.own), strerrorname_np(r.own),
                     r.own == EMFILE ? "; raise its limit of open files (ulimit -n)" : "");
    if (r.no_key)
      return HK_FAIL(HK_ERR_USAGE,
                     "no encrypted connection to %s (%s): give all processes of the job the same key "
                     "(ncclSetEncryption before ncclGetUniqueId, or HOCKET_ENCRYPTION_KEY_FILE)",
                     d->whom, r.why);
    if (!r.no_room)
      full_ns = 0;
    else if (!full_ns)
      full_ns = hk_now_ns();
    else if (hk_ago_ns(hk_now_ns(), full_ns) > NO_ROOM_NS)
      return HK_FAIL(HK_ERR_REMOTE,
                     "%s accepts no connection: its process has no descriptor or no memory left; see its output, and "
                     "raise its limit of open files (ulimit -n)",
                     d->whom);
    if (r.gone) return HK_FAIL(HK_ERR_REMOTE, "%s has left the communicator; %s", d->whom, d->advice);
    uint64_t now = hk_now_ns();
    bool late = dial_is_late(&r, now);
    if (d->slow_ns && r.patience_ms < ACK_PATIENCE_MOST_MS) r.patience_ms *= 2;
    /* Counts refusals and not time: a connection, or an address that may only be slow, does not show that no process
     * listens, and a slow machine gets as many tries as a fast one. */
    refusals = r.hard ? 0 : refusals + 1;
    if (refusals == 1) refused_ns = now;
    if (late || dial_is_refused(&r, refusals, now - refused_ns))
      return HK_FAIL(HK_ERR_REMOTE, "cannot reach %s after %.1f s (%s); %s", d->whom, (double)(now - r.since_ns) * 1e-9,
                     r.why, d->advice);
    if (d->reports && !reported && now - r.since_ns > hk_boot_report_ns(d->settings)) {
      HK_WARN("rank %d looks for %s, so far without success (%s)", d->hello->from, d->whom, r.why);
      reported = true;
    }
    HK_TRACE(HK_SUB_BOOTSTRAP, "%s not reached (%s), trying again", d->whom, r.why);
    HK_OR_RETURN(hk_wait_nap(&r.w, -1, dial_pause_ns(&r, refusals, backoff)));
    backoff = backoff < BACKOFF_LAST_MS ? 2 * backoff : BACKOFF_LAST_MS;
  }
  return HK_OK;
}

/* Reads the data after the ack. False: it did not arrive. */
static bool dial_read_answer(int fd, hk_waiter *w, uint64_t deadline_ns, uint8_t *answer, size_t bytes, bool *closed) {
  for (size_t have = 0; have < bytes;) {
    ssize_t n = hk_tcp_recv(fd, answer + have, bytes - have);
    if (n > 0) {
      have += (size_t)n;
      continue;
    }
    *closed = n == 0 || (errno != EAGAIN && errno != EINTR);
    uint64_t now = hk_now_ns();
    if (*closed || now >= deadline_ns) return false;
    if (hk_wait_nap(w, fd, NAP_NS) != HK_OK) return false; /* the asker has ended */
  }
  return true;
}

hk_probe hk_boot_probe(const hk_dialing *d, hk_ack *ack, void *answer, size_t bytes) {
  hk_wait_env env = {.failure = d->wait->failure}; /* the race checks the deadline itself, without an error */
  race r = {.d = d, .since_ns = hk_now_ns(), .probing = true, .patience_ms = ACK_PATIENCE_MS};
  bool closed = false;
  hk_wait_begin(&r.w, &env);
  if (dial_run_race(&r) != HK_OK) return HK_PROBE_UNREACHABLE; /* the asker has ended */
  if (r.winner >= 0) {
    bool complete = dial_read_answer(r.tries[r.winner].fd, &r.w, d->wait->deadline_ns, answer, bytes, &closed);
    hk_boot_close(r.tries[r.winner].fd);
    *ack = r.ack;
    return complete ? HK_PROBE_ANSWERED : closed ? HK_PROBE_CLOSED : HK_PROBE_SILENT;
  }
  return r.silent ? HK_PROBE_SILENT : r.closed ? HK_PROBE_CLOSED : r.refused ? HK_PROBE_REFUSED : HK_PROBE_UNREACHABLE;
}
