/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Roots: each gathers the ranks that join with one id, then sends to every rank the contact of the next one. With
 * several ids, root i of k has the ranks [i n / k, (i + 1) n / k) and, as the next of its last one, the contact of
 * the first rank after them.
 *
 * No rank is answered before all have joined, so that an error (missing ranks, disagreement, a rank that joins twice)
 * reaches all alike. A root belongs to the process's listener and has no thread of its own. It may end on a rank's
 * thread; the sweep, on the listener's thread, then answers and closes the connections.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "job.h"
#include "listener.h"
#include "process.h"

#define SECOND 1000000000ull
enum {
  RANKS_MAX = 1 << 20,
  FIRST_REPORT_SECONDS = 10, /* of ranks that are missing; less with a smaller HOCKET_WATCHDOG */
  REPORT_SECONDS = 30,       /* between two reports */
  COME_BACK_SECONDS = 5,     /* time for a rank whose connection broke to join again */
  GONE_MS = 500,      /* the same, if the rank itself closed it: its process has ended, or it tries again at once */
  LINGER_SECONDS = 10 /* a failed root stays so long, to send the cause to late ranks */
};

typedef struct waiter { /* a rank of the root's own process */
  pthread_cond_t cond;
  bool done;
  hk_reply reply;
} waiter;

typedef enum entry_state { ENTRY_EMPTY, ENTRY_JOINED, ENTRY_LOST } entry_state;
typedef struct entry {
  uint8_t state;    /* entry_state */
  uint64_t lost_ns; /* with ENTRY_LOST: when */
  uint64_t back_ns; /* with ENTRY_LOST: for how long the rank may join again */
  /* At most one of the two is set. A rank that waits long for an ack tries another address with the same nonce, and
   * keeps one of the connections: it gets the answer over all of them. */
  hk_connection *connection; /* linked by `next` */
  waiter *waiter;
  uint8_t nonce[HK_NONCE_BYTES];
  uint8_t contact[HK_CONTACT_BYTES];
} entry;

typedef enum root_state { ROOT_GATHERING, ROOT_DONE, ROOT_FAILED } root_state;
typedef struct hk_root {
  struct hk_root *next;
  hk_listener *listener;
  root_state state;
  uint8_t secret[HK_SECRET_BYTES];
  uint64_t key, salt;
  hk_boot_job job; /* of an NCCL_COMM_ID; else the token is 0 */
  int socket_fd;   /* its own listening socket, for NCCL_COMM_ID; -1: none */
  uint64_t born_ns, first_ns, ended_ns, reported_ns;
  int nranks, nroots, index; /* as the first rank says; nranks 0: no rank has joined */
  int low, share, entries;   /* ranks [low, low + share); entries: one more if the next rank belongs to another root */
  int joined;
  entry *entry;
  bool sweep; /* ended, and connections wait for the answer */
  hk_status status;
  char text[HK_REPLY_TEXT];
} hk_root;

static int rank_of(const hk_root *r, int at) { return (r->low + at) % r->nranks; }

/* ---- the end ---- */

static void reply_of(const hk_root *r, int at, hk_reply *reply) {
  *reply = (hk_reply){.status = r->status, .salt = r->salt};
  snprintf(reply->text, sizeof reply->text, "%s", r->text);
  if (r->state == ROOT_DONE) memcpy(reply->next, r->entry[(at + 1) % r->entries].contact, HK_CONTACT_BYTES);
}

static void end_root(hk_root *r, root_state state) {
  r->state = state;
  r->ended_ns = hk_now_ns();
  /* Before any rank is answered: a rank that has the answer may start the next communicator with the same
   * NCCL_COMM_ID, and must not find this root. (The sweep closes the socket: only the listener's thread may.) */
  if (state == ROOT_DONE && r->socket_fd >= 0) shutdown(r->socket_fd, SHUT_RDWR);
  for (int i = 0; i < r->entries; i++) {
    waiter *w = r->entry[i].waiter;
    if (!w) continue;
    reply_of(r, i, &w->reply);
    w->done = true;
    r->entry[i].waiter = NULL;
    pthread_cond_signal(&w->cond);
  }
  r->sweep = true;
  hk_service_post(r->listener->service, &r->listener->sweep);
  hk_listener_tick(r->listener);
}

static void fail_root(hk_root *r, hk_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fail_root(hk_root *r, hk_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(r->text, sizeof r->text, format, args);
  va_end(args);
  r->status = status;
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "Bootstrap root: %s", r->text);
  end_root(r, ROOT_FAILED);
}

/* Writes "3, 5-7, 9", the ranks whose entries are in `state`; as many as fit. Returns how many there are. */
static int list_ranks(const hk_root *r, entry_state state, char *text, size_t room) {
  int count = 0, listed = 0;
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < r->entries; i++) {
    if (r->entry[i].state != state) continue;
    int first = i;
    /* Ranges stop where the numbering wraps. */
    while (i + 1 < r->entries && r->entry[i + 1].state == state && rank_of(r, i + 1) > rank_of(r, i)) i++;
    count += i - first + 1;
    char one[48];
    int n =
        snprintf(one, sizeof one, i > first ? "%s%d-%d" : "%s%d", used ? ", " : "", rank_of(r, first), rank_of(r, i));
    if (used + (size_t)n + 24 > room) continue; /* room for the "and" below */
    memcpy(text + used, one, (size_t)n + 1);
    used += (size_t)n;
    listed += i - first + 1;
  }
  if (listed < count) snprintf(text + used, room - used, " and %d more", count - listed);
  return count;
}

static int only_rank(const hk_root *r) {
  int at = 0;
  while (at + 1 < r->entries && r->entry[at].state != ENTRY_JOINED) at++;
  return rank_of(r, at);
}

/* Roots of this process that exactly one rank has joined. */
static int roots_with_one_rank(const hk_listener *l) {
  int n = 0;
  for (const hk_root *r = l->roots; r; r = r->next) n += r->state == ROOT_GATHERING && r->joined == 1;
  return n;
}

/* What to check if ranks do not join. */
static void advise(const hk_root *r, char *text, size_t room) {
  char at[HK_ADDR_TEXT];
  int single = roots_with_one_rank(r->listener);
  if (r->socket_fd >= 0)
    snprintf(text, room, "each must be started with the same NCCL_COMM_ID and reach this host");
  else if (r->joined == 1 && single > 1)
    snprintf(text, room,
             "%d unique ids of this process have one rank each: one rank calls ncclGetUniqueId and gives the 128 bytes "
             "to all others",
             single);
  else if (r->joined == 1)
    snprintf(
        text, room,
        "only rank %d has come: if each rank calls ncclGetUniqueId, each has an id of its own and waits alone; one "
        "rank calls it and gives the 128 bytes to all others",
        only_rank(r));
  else
    snprintf(text, room, "each must be started with this unique id and reach this host at %s",
             hk_addr_format(&r->listener->contact.at[0], at));
}

/* Ranks may be slow to start, so this is no error yet; but only the root knows which ones are missing. */
static void report_missing(hk_root *r, uint64_t now) {
  char list[512], advice[320];
  uint64_t watchdog = (uint64_t)hk_param_int(HK_P_WATCHDOG), first = FIRST_REPORT_SECONDS;
  if (watchdog < first) first = watchdog;
  if (!watchdog || hk_ago_ns(now, r->first_ns) < first * SECOND) return;
  if (r->reported_ns && hk_ago_ns(now, r->reported_ns) < REPORT_SECONDS * SECOND) return;
  r->reported_ns = now;
  int missing = list_ranks(r, ENTRY_EMPTY, list, sizeof list);
  if (!missing) return;
  advise(r, advice, sizeof advice);
  HK_WARN("after %llu s %d of %d ranks have joined%s, and rank%s %s %s missing: %s (it gives up after %lld s, "
          "HOCKET_BOOTSTRAP_TIMEOUT)",
          (unsigned long long)(hk_ago_ns(now, r->first_ns) / SECOND), r->joined, r->entries,
          r->nroots > 1 ? " at this one of several roots" : "", missing > 1 ? "s" : "", list,
          missing > 1 ? "are" : "is", advice, (long long)hk_param_int(HK_P_BOOTSTRAP_TIMEOUT));
}

static void check_deadlines(hk_root *r, uint64_t now) {
  uint64_t limit = (uint64_t)hk_param_int(HK_P_BOOTSTRAP_TIMEOUT);
  char list[512], advice[320];
  if (hk_ago_ns(now, r->first_ns) >= limit * SECOND) {
    int missing = list_ranks(r, ENTRY_EMPTY, list, sizeof list);
    if (!missing) missing = list_ranks(r, ENTRY_LOST, list, sizeof list);
    advise(r, advice, sizeof advice);
    fail_root(r, HK_ERR_REMOTE, "rank%s %s of %d %s not joined after %llu s, %d %s; %s", missing > 1 ? "s" : "", list,
              r->nranks, missing > 1 ? "have" : "has", (unsigned long long)limit, r->joined,
              r->joined == 1 ? "has" : "have", advice);
    return;
  }
  report_missing(r, now);
  for (int i = 0; i < r->entries; i++) {
    if (r->entry[i].state != ENTRY_LOST || hk_ago_ns(now, r->entry[i].lost_ns) < r->entry[i].back_ns) continue;
    int lost = list_ranks(r, ENTRY_LOST, list, sizeof list);
    fail_root(r, HK_ERR_REMOTE,
              "rank%s %s of %d joined and then died (connection closed) while other ranks had yet to come; "
              "see the output of that process",
              lost > 1 ? "s" : "", list, r->nranks);
    return;
  }
}

static void free_root(hk_root *r) {
  hk_listener *l = r->listener;
  hk_root **at = &l->roots;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  if (r->socket_fd >= 0) {
    hk_service_remove(l->service, r->socket_fd);
    hk_boot_close(r->socket_fd);
  }
  free(r->entry);
  free(r);
  hk_listener_put_inside(l);
}

static void free_connections(entry *s) {
  for (hk_connection *c = s->connection, *next; c; c = next) {
    next = c->next;
    hk_connection_free(c, false);
  }
  s->connection = NULL;
}

/* For another process: what this one lacks is not that rank's own failure. */
static void encode_reply(const hk_root *r, hk_reply *reply, const uint8_t nonce[HK_NONCE_BYTES],
                         uint8_t out[HK_REPLY_BYTES]) {
  if (reply->status == HK_ERR_SYSTEM) reply->status = HK_ERR_REMOTE;
  hk_reply_encode(out, reply, nonce, r->secret);
}

static void send_reply(hk_root *r, int at) {
  entry *s = &r->entry[at];
  uint8_t bytes[HK_REPLY_BYTES];
  hk_reply reply;
  reply_of(r, at, &reply);
  encode_reply(r, &reply, s->nonce, bytes);
  for (hk_connection *c = s->connection; c; c = c->next)
    (void)hk_connection_send(c, bytes, sizeof bytes); /* a rank that has closed in the meantime needs no answer */
  free_connections(s);
}

void hk_roots_sweep(hk_listener *l) {
  for (hk_root *r = l->roots, *next; r; r = next) {
    next = r->next;
    if (!r->sweep) continue;
    r->sweep = false;
    for (int i = 0; i < r->entries; i++)
      if (r->entry[i].connection) send_reply(r, i);
    if (r->state == ROOT_DONE) free_root(r);
  }
}

bool hk_roots_expire(hk_listener *l, uint64_t now) {
  for (hk_root *r = l->roots, *next; r; r = next) {
    next = r->next;
    if (r->state == ROOT_GATHERING && r->nranks)
      check_deadlines(r, now);
    else if (r->state == ROOT_GATHERING &&
             hk_ago_ns(now, r->born_ns) >= (uint64_t)hk_param_int(HK_P_ID_LIFETIME) * SECOND)
      free_root(r);
    else if (r->state == ROOT_FAILED && !r->sweep && hk_ago_ns(now, r->ended_ns) >= LINGER_SECONDS * SECOND)
      free_root(r);
  }
  return l->roots;
}

void hk_roots_accept_again(hk_listener *l) {
  for (hk_root *r = l->roots; r; r = r->next)
    if (r->socket_fd >= 0 && r->state != ROOT_DONE) hk_service_modify(l->service, r->socket_fd, EPOLLIN);
}

/* ---- ranks join ---- */

static bool set_shape(hk_root *r, const hk_hello *h) {
  int n = h->to, k = (int)h->round, index = (int)h->tag;
  int low = (int)((int64_t)index * n / k), high = (int)((int64_t)(index + 1) * n / k);
  entry *s = calloc((size_t)(high - low) + 1, sizeof *s);
  if (!s) return false;
  r->nranks = n;
  r->nroots = k;
  r->index = index;
  r->low = low;
  r->share = high - low;
  r->entries = r->share + (k > 1);
  r->entry = s;
  r->first_ns = hk_now_ns();
  return true;
}

static bool is_valid(const hk_hello *h) {
  hk_contact c;
  return h->to >= 1 && h->to <= RANKS_MAX && h->round >= 1 && h->round <= (uint32_t)h->to && h->tag < h->round &&
         h->from >= 0 && (h->kind == HK_HELLO_FAILED || hk_contact_decode(&c, h->contact));
}

/* True if the rank of this entry has closed its connection, though that is not handled yet. The rank may have
 * connected again. */
static bool has_closed(const entry *s) {
  char byte;
  ssize_t n = s->connection ? recv(s->connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 1;
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void describe_process(const uint8_t contact[HK_CONTACT_BYTES], char *text, size_t room) {
  hk_contact c;
  char at[HK_ADDR_TEXT] = "?";
  if (hk_contact_decode(&c, contact)) hk_addr_format(&c.at[0], at);
  snprintf(text, room, "process %u at %s", c.pid, at);
}

/* If two ranks have one number, neither is the right one, and the job cannot start as it was meant: all ranks get the
 * error at once. This happens only while the root gathers: a complete communicator accepts no late rank. */
static void fail_with_duplicate(hk_root *r, const entry *s, const hk_hello *h) {
  char first[96], second[96];
  describe_process(s->contact, first, sizeof first);
  describe_process(h->contact, second, sizeof second);
  if (hk_contact_process(s->contact) == hk_contact_process(h->contact))
    fail_root(r, HK_ERR_ARGUMENT,
              "rank %d of %d has joined twice, both times from %s: give each rank a number of its own, and each "
              "communicator a unique id of its own",
              h->from, h->to, first);
  else
    fail_root(r, HK_ERR_ARGUMENT,
              "rank %d of %d has joined twice, from %s and from %s: start each rank once, and give each communicator a "
              "unique id of its own",
              h->from, h->to, first, second);
}

/* Returns the rank's entry, or -1 with an error for that rank in `reply` (or, by the root's end, for all). */
static int find_entry(hk_root *r, const hk_hello *h, hk_reply *reply) {
  int n = h->to;
  *reply = (hk_reply){.status = HK_ERR_ARGUMENT};
  if (r->job.token && h->job != r->job.token) { /* first of all: nothing else from another job matters */
    *reply = (hk_reply){.status = HK_ERR_USAGE, .other_job = true};
    snprintf(reply->text, sizeof reply->text, "%s", r->job.text);
    return -1;
  }
  if (h->from >= n) {
    snprintf(reply->text, sizeof reply->text, "rank %d is out of range: there are %d ranks", h->from, n);
    return -1;
  }
  if (r->state == ROOT_GATHERING && !r->nranks && !set_shape(r, h))
    fail_root(r, HK_ERR_SYSTEM, "the process of the root (process %d) has no memory for %d ranks", (int)getpid(), n);
  if (r->state == ROOT_GATHERING && (n != r->nranks || (int)h->round != r->nroots)) {
    int other = 0;
    while (other + 1 < r->entries && r->entry[other].state == ENTRY_EMPTY) other++;
    fail_root(r, HK_ERR_ARGUMENT,
              "ranks disagree: rank %d was started with %d ranks and %d id%s, rank %d with %d ranks and %d "
              "id%s; all must give the same numbers",
              h->from, n, (int)h->round, h->round > 1 ? "s" : "", rank_of(r, other), r->nranks, r->nroots,
              r->nroots > 1 ? "s" : "");
  }
  if (r->state != ROOT_GATHERING) {
    reply->status = r->status;
    snprintf(reply->text, sizeof reply->text, "%s", r->text);
    return -1;
  }
  int at = h->kind == HK_HELLO_CONTACT ? r->share : h->from - r->low;
  bool right = (int)h->tag == r->index &&
               (h->kind == HK_HELLO_CONTACT ? r->entries > r->share && rank_of(r, r->share) == h->from
                                            : at >= 0 && at < r->share);
  if (!right) {
    snprintf(reply->text, sizeof reply->text,
             "rank %d joined root %d of %d with the id of another root: all ranks "
             "must pass the ids in the same order",
             h->from, (int)h->tag, r->nroots);
    return -1;
  }
  entry *s = &r->entry[at];
  /* A contact alone keeps no connection; the process that sent it may send it again. */
  bool again = hk_bytes_equal(s->nonce, h->nonce, HK_NONCE_BYTES) || has_closed(s) ||
               (h->kind == HK_HELLO_CONTACT && hk_contact_process(s->contact) == hk_contact_process(h->contact));
  if (s->state == ENTRY_JOINED && !again) {
    fail_with_duplicate(r, s, h);
    reply->status = r->status;
    snprintf(reply->text, sizeof reply->text, "%s", r->text);
    return -1;
  }
  return at;
}

/* An earlier connection in this entry is of an earlier attempt of the same rank, and is closed. */
static void fill_entry(hk_root *r, int at, const hk_hello *h) {
  entry *s = &r->entry[at];
  if (!hk_bytes_equal(s->nonce, h->nonce, HK_NONCE_BYTES)) free_connections(s);
  if (s->state != ENTRY_JOINED) r->joined++;
  s->state = ENTRY_JOINED;
  memcpy(s->nonce, h->nonce, HK_NONCE_BYTES);
  memcpy(s->contact, h->contact, HK_CONTACT_BYTES);
}

static void lose_entry(hk_root *r, int at) {
  entry *s = &r->entry[at];
  char byte;
  bool closed = s->connection && recv(s->connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  s->back_ns = closed ? GONE_MS * (SECOND / 1000) : COME_BACK_SECONDS * SECOND;
  s->connection = NULL;
  s->waiter = NULL;
  s->state = ENTRY_LOST;
  s->lost_ns = hk_now_ns();
  r->joined--;
}

static void end_where_complete(hk_root *r) {
  if (r->state == ROOT_GATHERING && r->joined == r->entries) end_root(r, ROOT_DONE);
}

static hk_root *find_root(hk_listener *l, uint64_t key) {
  for (hk_root *r = l->roots; r; r = r->next)
    if (r->key == key && r->state != ROOT_DONE) return r;
  return NULL;
}

/* A rank has connected for which there is no descriptor. True if that has lasted for long: then all ranks get the
 * cause. */
static bool no_room(hk_root *r, hk_listener *l) {
  char at[HK_ADDR_TEXT];
  if (r->state != ROOT_GATHERING) return true; /* it gets the root's error */
  if (!hk_listener_refused(l, EMFILE)) return false;
  fail_root(r, HK_ERR_SYSTEM,
            "the process of the root (process %d at %s) has no descriptors left for more than %d connections of ranks: "
            "raise its limit of open files (ulimit -n)",
            (int)getpid(), hk_addr_format(&l->contact.at[0], at), r->joined);
  return true;
}

static void fail_for_rank(hk_root *r, const hk_hello *h, const char *cause) {
  if (r->state != ROOT_GATHERING || h->from >= h->to || (r->job.token && h->job != r->job.token)) return;
  if (!r->nranks) (void)set_shape(r, h); /* for ranks that come later; without memory they get the text alone */
  fail_root(r, HK_ERR_REMOTE, "rank %d of %d failed: %s", h->from, h->to, cause);
}

bool hk_root_excuse(const hk_hello *h, const char *cause) {
  hk_listener_lock();
  hk_listener *l = hk_listener_current();
  hk_root *r = l ? find_root(l, h->key) : NULL;
  if (r) fail_for_rank(r, h, cause);
  hk_listener_unlock();
  return r != NULL;
}

/* The cause came with the hello, in one segment. */
static void read_excuse(hk_root *r, hk_connection *c, const hk_hello *h) {
  uint8_t ack[HK_ACK_BYTES];
  char cause[HK_REPLY_TEXT - 64];
  ssize_t n = recv(c->fd, cause, sizeof cause - 1, MSG_DONTWAIT);
  cause[n > 0 ? n : 0] = 0;
  hk_ack_encode(ack, HK_ACK_OK, h->nonce, r->secret);
  (void)hk_connection_send(c, ack, sizeof ack);
  hk_connection_free(c, false);
  fail_for_rank(r, h, n > 0 ? cause : "see its output");
}

void hk_root_hello(hk_listener *l, hk_connection *c, const hk_hello *h) {
  hk_root *r = find_root(l, h->key);
  uint8_t bytes[HK_REPLY_BYTES];
  hk_reply reply;
  if (!r || !hk_hello_proved(c->in, r->secret) || !is_valid(h)) {
    hk_connection_free(c, false);
    return;
  }
  if (h->kind == HK_HELLO_FAILED) {
    read_excuse(r, c, h);
    return;
  }
  if (c->on_spare && !no_room(r, l)) {
    hk_ack_encode(bytes, HK_ACK_NO_ROOM, h->nonce, r->secret);
    (void)hk_connection_send(c, bytes, HK_ACK_BYTES);
    hk_connection_free(c, false);
    return;
  }
  hk_ack_encode(bytes, HK_ACK_OK, h->nonce, r->secret);
  bool acknowledged = hk_connection_send(c, bytes, HK_ACK_BYTES);
  int at = acknowledged ? find_entry(r, h, &reply) : -1;
  if (acknowledged && at < 0) {
    encode_reply(r, &reply, h->nonce, bytes);
    (void)hk_connection_send(c, bytes, sizeof bytes);
  }
  if (at >= 0) fill_entry(r, at, h);
  if (at < 0 || h->kind == HK_HELLO_CONTACT) {
    hk_connection_free(c, false);
  } else {
    hk_watch_silence(c->fd);
    hk_connection_joined(c, r, at);
    c->next = r->entry[at].connection;
    r->entry[at].connection = c;
  }
  end_where_complete(r);
}

void hk_root_connection_ended(hk_connection *c) {
  hk_root *r = c->root;
  hk_connection **at = &r->entry[c->entry].connection;
  bool only = *at == c && !c->next;
  while (*at != c) at = &(*at)->next;
  if (only && r->state == ROOT_GATHERING)
    lose_entry(r, c->entry);
  else
    *at = c->next;
  hk_connection_free(c, false);
}

/* Waits for the answer, on the thread of a rank of the root's own process. */
static hk_status await_reply(hk_root *r, int at, hk_reply *reply, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  hk_waiter w;
  waiter me = {.done = false};
  hk_cond_init(&me.cond);
  r->entry[at].waiter = &me;
  end_where_complete(r);
  hk_wait_begin(&w, env);
  while (!me.done && rc == HK_OK) rc = hk_wait_cond(&w, &me.cond, hk_listener_mutex());
  if (me.done) {
    *reply = me.reply;
    rc = HK_OK;
  } else {
    lose_entry(r, at); /* the root still exists: its end would have set `done` */
  }
  pthread_cond_destroy(&me.cond);
  return rc;
}

hk_status hk_root_join(hk_hello *h, hk_reply *reply, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  hk_listener_lock();
  hk_listener *l = hk_listener_current();
  hk_root *r = l ? find_root(l, h->key) : NULL;
  if (!r) {
    rc = HK_IN_PROGRESS;
    goto out;
  }
  int at = find_entry(r, h, reply);
  if (at < 0) goto out;
  reply->status = HK_OK;
  fill_entry(r, at, h);
  if (h->kind == HK_HELLO_CONTACT) {
    end_where_complete(r);
    goto out;
  }
  rc = await_reply(r, at, reply, env);
out:
  hk_listener_unlock();
  return rc;
}

/* ---- starting roots ---- */

bool hk_root_gathers(hk_listener *l, uint64_t key) {
  hk_listener_lock();
  hk_root *r = find_root(l, key);
  bool gathers = r && r->state == ROOT_GATHERING;
  if (r && !gathers) {
    r->ended_ns = 0; /* the next tick frees it */
    if (r->socket_fd >= 0) shutdown(r->socket_fd, SHUT_RDWR);
  }
  hk_listener_unlock();
  return gathers;
}

hk_status hk_root_new(hk_listener *l, const hk_boot_id *id, int socket_fd) {
  hk_status rc = HK_OK;
  hk_root *r = calloc(1, sizeof *r);
  if (!r) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for a unique id's root");
  r->listener = l;
  r->key = hk_boot_id_key(id);
  r->socket_fd = socket_fd;
  r->born_ns = hk_now_ns();
  memcpy(r->secret, id->secret, sizeof r->secret);
  if (id->from_env) hk_boot_job_here(&r->job);
  hk_listener_lock();
  HK_TRY(hk_random(&r->salt, sizeof r->salt), out);
  if (socket_fd >= 0) HK_TRY(hk_listener_add_socket(l, socket_fd), out);
  r->next = l->roots; /* in front, so that it is found before an older one of the same key */
  l->roots = r;
  l->users++;
  hk_listener_tick(l);
out:
  hk_listener_unlock();
  if (rc != HK_OK) free(r);
  return rc;
}
