/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Roots: each gathers the ranks that join with one id, then sends to every rank the contact of the next one. With
 * several ids, root i of k has the ranks [i n / k, (i + 1) n / k) and, as the next of its last one, the contact of
 * the first rank after them.
 *
 * No rank is answered before all have joined, so that an error (missing ranks, disagreement, a rank that joins twice)
 * reaches all alike. A root belongs to the process's listener and has no thread of its own. It may end on a rank's
 * thread, which answers; the sweep, on the listener's thread, closes the connections (root_end.c).
 */
#include "root.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/tcp.h"

enum {
  RANKS_MAX = 1 << 20,
  CONNECTIONS_MOST = 4,  /* of one attempt of a rank: it needs one, and a stranger may repeat a hello that it saw */
  COME_BACK_SECONDS = 5, /* time in which a rank may join again after its connection broke */
  GONE_MS = 500          /* the same, if the rank itself closed it: its process has ended, or it tries again at once */
};

/* ---- ranks join ---- */

static bool root_set_shape(hk_root *r, const hk_hello *h) {
  int n = h->to, k = (int)h->round, index = (int)h->tag;
  int low = (int)((int64_t)index * n / k), high = (int)((int64_t)(index + 1) * n / k);
  hk_root_entry *s = calloc((size_t)(high - low) + 1, sizeof *s);
  if (!s) return false;
  r->nranks = n;
  r->nroots = k;
  r->index = index;
  r->first = h->from;
  r->low = low;
  r->share = high - low;
  r->entries = r->share + (k > 1);
  r->entry = s;
  r->first_ns = hk_now_ns();
  return true;
}

static bool root_is_valid(const hk_hello *h) {
  hk_contact c;
  return h->to >= 1 && h->to <= RANKS_MAX && h->round >= 1 && h->round <= (uint32_t)h->to && h->tag < h->round &&
         h->from >= 0 && (h->kind == HK_HELLO_FAILED || hk_contact_decode(&c, h->contact));
}

/* True if the rank of this entry has closed its connection, though that is not handled yet. The rank may have
 * connected again. */
static bool root_has_closed(const hk_root_entry *s) {
  char byte;
  ssize_t n = s->connection ? recv(s->connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 1;
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void root_describe_process(const uint8_t contact[HK_CONTACT_BYTES], char *text, size_t capacity) {
  hk_contact c;
  char at[HK_ADDR_TEXT] = "?";
  if (hk_contact_decode(&c, contact)) hk_addr_format(&c.at[0], at);
  snprintf(text, capacity, "process %u at %s", c.pid, at);
}

/* If two ranks have one number, neither is the right one, and the job cannot start as it was meant: all ranks get the
 * error at once. This happens only while the root gathers: a complete communicator accepts no late rank. */
static void root_fail_with_duplicate(hk_root *r, const hk_root_entry *s, const hk_hello *h) {
  char first[96], second[96];
  root_describe_process(s->contact, first, sizeof first);
  root_describe_process(h->contact, second, sizeof second);
  if (hk_contact_process(s->contact) == hk_contact_process(h->contact))
    hk_root_fail(r, HK_ERR_ARGUMENT,
                 "rank %d of %d has joined twice, both times from %s: give each rank a number of its own, and each "
                 "communicator a unique id of its own",
                 h->from, h->to, first);
  else
    hk_root_fail(
        r, HK_ERR_ARGUMENT,
        "rank %d of %d has joined twice, from %s and from %s: start each rank once, and give each communicator a "
        "unique id of its own",
        h->from, h->to, first, second);
}

/* Returns the rank's entry, or -1 with an error for that rank in `reply` (or, by the root's end, for all). */
static int root_find_entry(hk_root *r, const hk_hello *h, hk_reply *reply) {
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
  if (r->state == HK_ROOT_GATHERING && !r->nranks && !root_set_shape(r, h))
    hk_root_fail(r, HK_ERR_SYSTEM, "the process of the root (process %d) has no memory for %d ranks", (int)getpid(), n);
  if (r->state == HK_ROOT_GATHERING && (n != r->nranks || (int)h->round != r->nroots))
    hk_root_fail(r, HK_ERR_ARGUMENT,
                 "ranks disagree on the number of ranks and that of unique ids: rank %d gives %d and %d, rank %d gives "
                 "%d and %d; all must give the same numbers",
                 h->from, n, (int)h->round, r->first, r->nranks, r->nroots);
  if (r->state != HK_ROOT_GATHERING) {
    reply->status = r->status;
    snprintf(reply->text, sizeof reply->text, "%s", r->text);
    return -1;
  }
  int at = h->kind == HK_HELLO_CONTACT ? r->share : h->from - r->low;
  bool right = (int)h->tag == r->index &&
               (h->kind == HK_HELLO_CONTACT ? r->entries > r->share && hk_root_rank(r, r->share) == h->from
                                            : at >= 0 && at < r->share);
  if (!right) {
    snprintf(reply->text, sizeof reply->text,
             "rank %d joined root %d of %d with the id of another root: all ranks "
             "must pass the ids in the same order",
             h->from, (int)h->tag, r->nroots);
    return -1;
  }
  hk_root_entry *s = &r->entry[at];
  /* A contact alone keeps no connection; the process that sent it may send it again. */
  bool again = hk_bytes_equal(s->nonce, h->nonce, HK_NONCE_BYTES) || root_has_closed(s) ||
               (h->kind == HK_HELLO_CONTACT && hk_contact_process(s->contact) == hk_contact_process(h->contact));
  if (s->state == HK_ROOT_ENTRY_JOINED && !again) {
    root_fail_with_duplicate(r, s, h);
    reply->status = r->status;
    snprintf(reply->text, sizeof reply->text, "%s", r->text);
    return -1;
  }
  return at;
}

/* An earlier connection in this entry is of an earlier attempt of the same rank, and is closed. */
static void root_fill_entry(hk_root *r, int at, const hk_hello *h) {
  hk_root_entry *s = &r->entry[at];
  if (!hk_bytes_equal(s->nonce, h->nonce, HK_NONCE_BYTES)) hk_root_drop(s);
  if (s->state != HK_ROOT_ENTRY_JOINED) r->joined++;
  s->state = HK_ROOT_ENTRY_JOINED;
  memcpy(s->nonce, h->nonce, HK_NONCE_BYTES);
  memcpy(s->contact, h->contact, HK_CONTACT_BYTES);
}

static bool root_has_enough(const hk_root_entry *s) {
  int n = 0;
  for (const hk_connection *c = s->connection; c; c = c->next) n++;
  return n >= CONNECTIONS_MOST;
}

static void root_lose_entry(hk_root *r, int at) {
  hk_root_entry *s = &r->entry[at];
  char byte;
  bool closed = s->connection && recv(s->connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  s->back_ns = closed ? GONE_MS * (HK_SECOND_NS / 1000) : COME_BACK_SECONDS * HK_SECOND_NS;
  s->connection = NULL;
  s->waiter = NULL;
  s->state = HK_ROOT_ENTRY_LOST;
  s->lost_ns = hk_now_ns();
  r->joined--;
}

/* Without a shape no rank has joined yet: only ranks of other jobs, or with wrong numbers, have come. */
static void root_end_if_complete(hk_root *r) {
  if (r->state == HK_ROOT_GATHERING && r->nranks && r->joined == r->entries) hk_root_end(r, HK_ROOT_DONE);
}

static hk_root *root_find_root(hk_listener *l, uint64_t key) {
  for (hk_root *r = l->roots; r; r = r->next)
    if (r->key == key && r->state != HK_ROOT_DONE) return r;
  return NULL;
}

/* There is no descriptor for a rank that has connected. True if that has lasted for long: then all ranks get the
 * cause. */
static bool root_no_room(hk_root *r, hk_listener *l) {
  char at[HK_ADDR_TEXT];
  if (r->state != HK_ROOT_GATHERING) return true; /* it gets the root's error */
  if (!hk_listener_refused(l, EMFILE)) return false;
  hk_root_fail(
      r, HK_ERR_SYSTEM,
      "the process of the root (process %d at %s) has no descriptors left for more than %d connections of ranks: "
      "raise its limit of open files (ulimit -n)",
      (int)getpid(), hk_addr_format(&l->contact.at[0], at), r->joined);
  return true;
}

static void root_fail_for_rank(hk_root *r, const hk_hello *h, hk_status status, const char *cause) {
  if (r->state != HK_ROOT_GATHERING || h->from >= h->to || (r->job.token && h->job != r->job.token)) return;
  if (!r->nranks) (void)root_set_shape(r, h); /* for ranks that come later; without memory they get the text alone */
  hk_root_fail(r, status, "rank %d of %d failed: %s", h->from, h->to, cause);
}

bool hk_root_report_abort(const hk_hello *h, const char *cause) {
  hk_listener_lock();
  hk_listener *l = hk_listener_current();
  hk_root *r = l ? root_find_root(l, h->key) : NULL;
  if (r) root_fail_for_rank(r, h, HK_ERR_REMOTE, cause);
  hk_listener_unlock();
  return r != NULL;
}

/* The cause arrives with the hello, in one segment. */
static void root_read_excuse(hk_root *r, hk_connection *c, const hk_hello *h) {
  uint8_t ack[HK_ACK_BYTES];
  char cause[HK_REPLY_TEXT - 64];
  ssize_t n = hk_tcp_recv(c->fd, cause, sizeof cause - 1);
  cause[n > 0 ? n : 0] = 0;
  hk_ack_encode(ack, HK_ACK_OK, h->nonce, r->secret);
  (void)hk_connection_send(c, ack, sizeof ack);
  hk_connection_free(c, false);
  root_fail_for_rank(r, h, HK_ERR_REMOTE, n > 0 ? cause : "see its output");
}

void hk_root_hello(hk_listener *l, hk_connection *c, const hk_hello *h) {
  hk_root *r = root_find_root(l, h->key);
  uint8_t bytes[HK_REPLY_BYTES];
  hk_reply reply;
  if (!r || !hk_hello_proved(c->in, r->secret) || !root_is_valid(h)) {
    hk_connection_free(c, false);
    return;
  }
  if (h->kind == HK_HELLO_FAILED) {
    root_read_excuse(r, c, h);
    return;
  }
  if (c->on_spare && !root_no_room(r, l)) {
    hk_ack_encode(bytes, HK_ACK_NO_ROOM, h->nonce, r->secret);
    (void)hk_connection_send(c, bytes, HK_ACK_BYTES);
    hk_connection_free(c, false);
    return;
  }
  if (c->plain)
    root_fail_for_rank(
        r, h, HK_ERR_USAGE,
        "its process has no encryption key, and the root's has one: give all processes of the job the same key "
        "(ncclSetEncryption before ncclGetUniqueId, or HOCKET_ENCRYPTION_KEY_FILE)");
  hk_ack_encode(bytes, HK_ACK_OK, h->nonce, r->secret);
  bool acknowledged = hk_connection_send(c, bytes, HK_ACK_BYTES);
  int at = acknowledged ? root_find_entry(r, h, &reply) : -1;
  if (acknowledged && at < 0) {
    hk_root_encode(r, &reply, h->nonce, bytes);
    (void)hk_connection_send(c, bytes, sizeof bytes);
  }
  if (at >= 0) root_fill_entry(r, at, h);
  if (at < 0 || h->kind == HK_HELLO_CONTACT || root_has_enough(&r->entry[at])) {
    hk_connection_free(c, false);
  } else {
    hk_watch_silence(r->settings, c->fd);
    hk_connection_joined(c, r, at);
    c->next = r->entry[at].connection;
    r->entry[at].connection = c;
  }
  root_end_if_complete(r);
}

void hk_root_connection_ended(hk_connection *c) {
  hk_root *r = c->root;
  hk_connection **at = &r->entry[c->entry].connection;
  bool only = *at == c && !c->next;
  while (*at != c) at = &(*at)->next;
  if (only && r->state == HK_ROOT_GATHERING)
    root_lose_entry(r, c->entry);
  else
    *at = c->next;
  hk_connection_free(c, false);
}

/* Waits for the answer, on the thread of a rank of the root's own process. */
static hk_status root_await_reply(hk_root *r, int at, hk_reply *reply, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  hk_waiter w;
  hk_root_waiter me = {.done = false};
  hk_cond_init(&me.cond);
  r->entry[at].waiter = &me;
  root_end_if_complete(r);
  hk_wait_begin(&w, env);
  while (!me.done && rc == HK_OK) rc = hk_wait_cond(&w, &me.cond, hk_listener_mutex());
  if (me.done) {
    *reply = me.reply;
    rc = HK_OK;
  } else {
    root_lose_entry(r, at); /* the root still exists: its end would have set `done` */
  }
  pthread_cond_destroy(&me.cond);
  return rc;
}

hk_status hk_root_join(hk_hello *h, hk_reply *reply, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  hk_listener_lock();
  hk_listener *l = hk_listener_current();
  hk_root *r = l ? root_find_root(l, h->key) : NULL;
  if (!r) {
    rc = HK_IN_PROGRESS;
    goto out;
  }
  int at = root_find_entry(r, h, reply);
  if (at < 0) goto out;
  reply->status = HK_OK;
  root_fill_entry(r, at, h);
  if (h->kind == HK_HELLO_CONTACT) {
    root_end_if_complete(r);
    goto out;
  }
  rc = root_await_reply(r, at, reply, env);
out:
  hk_listener_unlock();
  return rc;
}

/* ---- starting roots ---- */

bool hk_root_gathers(hk_listener *l, uint64_t key) {
  hk_listener_lock();
  hk_root *r = root_find_root(l, key);
  bool gathers = r && r->state == HK_ROOT_GATHERING;
  if (r && !gathers) {
    r->ended_ns = 0; /* the next tick frees it */
    if (r->socket_fd >= 0) shutdown(r->socket_fd, SHUT_RDWR);
  }
  hk_listener_unlock();
  return gathers;
}

hk_status hk_root_own_file(const hk_boot_id *id, const char *path) {
  char *copy = strdup(path);
  hk_listener_lock();
  hk_root *r = root_find_root(hk_listener_current(), hk_boot_id_key(id));
  if (r && r->state == HK_ROOT_GATHERING && copy) r->file = copy, copy = NULL;
  hk_listener_unlock();
  if (!copy) return HK_OK;
  free(copy);
  return HK_FAIL(HK_ERR_SYSTEM, "the root of the id in %s has ended or has no memory", path);
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
  hk_listener_lock();
  r->settings = l->settings;
  if (id->from_env) hk_boot_job_here(r->settings, &r->job);
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
