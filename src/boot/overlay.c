/* SPDX-License-Identifier: Apache-2.0 */
/* The overlay's links: frames over sockets, which the service thread reads, or messages passed in memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "../base/tcp.h"
#include "internal.h"

/* For the peers' answers to our goodbye. While ranks still join, a peer's process may have accepted the connection for
 * a rank that has failed, and does not answer. */
enum { GOODBYE_NS = 2000 * 1000 * 1000, GOODBYE_JOINING_NS = 300 * 1000 * 1000 };

typedef struct hk_unsent {
  struct hk_unsent *next;
  size_t bytes, sent;
  uint8_t data[];
} hk_unsent;

hk_status hk_overlay_init(hk_bootstrap *b) {
  if (!b->rounds) return HK_OK;
  b->links = calloc(2 * (size_t)b->rounds, sizeof *b->links);
  if (!b->links) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the overlay's links");
  for (int k = 0; k < b->rounds; k++)
    for (int next = 0; next < 2; next++) {
      hk_overlay_link *l = hk_link_to(b, next, k);
      int64_t distance = (int64_t)1 << k, n = b->nranks;
      *l = (hk_overlay_link){.b = b, .round = (uint8_t)k, .next = next, .fd = -1};
      l->rank = (int32_t)((b->rank + (next ? distance : n - distance)) % n);
    }
  return HK_OK;
}

static void overlay_free_unsent(hk_overlay_link *l) {
  for (hk_unsent *u = l->unsent, *next; u; u = next) {
    next = u->next;
    free(u);
  }
  l->unsent = NULL;
}

/* ---- receiving, on the service thread ---- */

/* Under the lock: gives an event of a rank of this process, or of this rank, to the service thread. */
static void overlay_queue_event(hk_bootstrap *b, hk_message *m) {
  *b->events_end = m;
  b->events_end = &m->next;
  hk_service_post(b->o.service, &b->event_work);
}

static void overlay_put_in_inbox(hk_bootstrap *b, hk_message *m) {
  *b->inbox_end = m;
  b->inbox_end = &m->next;
  pthread_cond_broadcast(&b->change);
}

/* The descriptor stays open until the bootstrap leaves, so that its number cannot come to mean another connection
 * while some thread still uses it. */
static void overlay_end_link(hk_overlay_link *l, hk_link_end end) {
  hk_bootstrap *b = l->b;
  pthread_mutex_lock(&b->lock);
  hk_service_remove(b->o.service, l->fd); /* under the lock: senders ask the service to watch an open link */
  l->end = end;
  overlay_free_unsent(l);
  pthread_cond_broadcast(&b->change);
  pthread_mutex_unlock(&b->lock);
  free(l->incoming);
  l->incoming = NULL;
}

void hk_overlay_died(hk_overlay_link *l, int error, const char *how) {
  hk_event e = {.kind = HK_EVENT_DEAD, .rank = l->rank, .from = l->b->rank, .code = HK_ERR_REMOTE};
  bool closed = !error || error == ECONNRESET || error == EPIPE || error == ENOTCONN;
  pthread_mutex_lock(&l->b->lock);
  bool leaving = l->b->leaving;
  pthread_mutex_unlock(&l->b->lock);
  overlay_end_link(l, leaving ? HK_END_LEFT : HK_END_DEAD);
  if (leaving) return; /* the answer to our goodbye, or an end that no longer matters */
  if (how)
    snprintf(e.text, sizeof e.text, "%s", how);
  else if (closed)
    snprintf(
        e.text, sizeof e.text,
        "its control connection ended without ncclCommDestroy: its process exited, crashed or was killed, or something "
        "between the hosts closed it; see its output first");
  else
    snprintf(e.text, sizeof e.text, "its host or the network to it became silent (%s)", strerror(error));
  if (!how && closed && l->reported) e.code = HK_OK;
  if (!how && closed && hk_lost_begin(l, &e)) return;
  hk_event_received(l->b, &e, l);
}

/* This rank has no memory for what its peer sends: this rank fails, not the peer. */
static void overlay_out_of_memory(hk_overlay_link *l, size_t bytes) {
  hk_event e = {.kind = HK_EVENT_ERROR, .rank = l->b->rank, .from = l->b->rank, .code = HK_ERR_SYSTEM};
  snprintf(e.text, sizeof e.text, "rank %d has no memory for a message of %zu bytes from rank %d", l->b->rank, bytes,
           l->rank);
  hk_event_received(l->b, &e, NULL);
  overlay_end_link(l, HK_END_DEAD);
}

static void overlay_dispatch(hk_overlay_link *l, hk_message *m) {
  hk_bootstrap *b = l->b;
  hk_event e;
  if (m->frame.type == HK_FRAME_EVENT) {
    if (hk_event_decode(&e, m->data, m->frame.bytes, b->nranks)) {
      l->reported |= !hk_event_is_notice(&e);
      hk_event_received(b, &e, l);
    }
    free(m);
    return;
  }
  pthread_mutex_lock(&b->lock);
  overlay_put_in_inbox(b, m);
  pthread_mutex_unlock(&b->lock);
}

/* Reads once.  True: there may be more. */
static bool overlay_receive(hk_overlay_link *l) {
  hk_message *m = l->incoming;
  uint8_t *to = m ? m->data : l->header;
  size_t want = m ? m->frame.bytes : sizeof l->header;
  ssize_t n = hk_tcp_recv(l->fd, to + l->have, want - l->have);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    hk_overlay_died(l, n < 0 ? errno : 0, NULL);
    return false;
  }
  l->have += (uint32_t)n;
  if (l->have < want) return true;
  l->have = 0;
  if (!m) {
    hk_frame f;
    if (!hk_frame_decode(&f, l->header, l->round)) {
      hk_overlay_died(
          l, 0, "it sent a message that this version of the library does not know; load the same library on all ranks");
      return false;
    }
    if (f.type == HK_FRAME_GOODBYE) { /* needs no memory: a peer that leaves must not become this rank's failure */
      overlay_end_link(l, HK_END_LEFT);
      shutdown(l->fd, SHUT_WR); /* the answer: the peer still reads, and learns that no more will come from us */
      return false;
    }
    m = malloc(sizeof *m + f.bytes);
    if (!m) {
      overlay_out_of_memory(l, sizeof *m + f.bytes);
      return false;
    }
    *m = (hk_message){.frame = f, .from = l->rank, .towards_next = !l->next};
    l->incoming = m;
    if (f.bytes) return true;
  }
  l->incoming = NULL;
  overlay_dispatch(l, m);
  return true;
}

/* Sends what is left over. Under the lock. False: the connection is broken; receiving finds that out. */
static bool overlay_flush(hk_overlay_link *l) {
  while (l->unsent) {
    hk_unsent *u = l->unsent;
    ssize_t n = hk_tcp_send(l->fd, u->data + u->sent, u->bytes - u->sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    u->sent += (size_t)n;
    if (u->sent < u->bytes) continue;
    l->unsent = u->next;
    free(u);
  }
  return true;
}

static void overlay_on_link(void *arg, int fd, uint32_t events) {
  hk_overlay_link *l = arg;
  hk_bootstrap *b = l->b;
  if (events & EPOLLOUT) {
    pthread_mutex_lock(&b->lock);
    if (!overlay_flush(l)) overlay_free_unsent(l);
    if (!l->unsent) {
      hk_service_modify(b->o.service, fd, EPOLLIN);
      pthread_cond_broadcast(&b->change);
    }
    pthread_mutex_unlock(&b->lock);
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP))
    while (overlay_receive(l)) {}
}

/* ---- opening links ---- */

/* This rank's failure to use a connection, for the cause in the thread's error. */
static hk_event overlay_refusal(const hk_bootstrap *b, int peer) {
  hk_event e = {.kind = HK_EVENT_ERROR, .rank = b->rank, .from = b->rank, .code = HK_ERR_SYSTEM};
  snprintf(e.text, sizeof e.text, "rank %d cannot use its connection with rank %d: %.300s", b->rank, peer,
           hk_last_error());
  return e;
}

void hk_overlay_decline(const hk_overlay_link *l, int fd) {
  hk_event e = overlay_refusal(l->b, l->rank);
  size_t text = strlen(e.text);
  hk_frame event = {.type = HK_FRAME_EVENT, .round = l->round, .bytes = (uint32_t)(HK_EVENT_BYTES + text)};
  hk_frame goodbye = {.type = HK_FRAME_GOODBYE, .round = l->round};
  uint8_t first[HK_FRAME_BYTES + HK_EVENT_BYTES], last[HK_FRAME_BYTES];
  hk_frame_encode(first, &event);
  hk_event_encode(first + HK_FRAME_BYTES, &e);
  hk_frame_encode(last, &goodbye);
  struct iovec piece[] = {{first, sizeof first}, {e.text, text}, {last, sizeof last}};
  (void)hk_tcp_sendv(fd, piece, 3); /* a new connection has room; if it has ended, no peer needs this */
}

hk_status hk_overlay_open(hk_overlay_link *l, int fd) {
  hk_bootstrap *b = l->b;
  hk_watch_silence(b->o.settings, fd);
  hk_fork_closes(fd);
  pthread_mutex_lock(&b->lock);
  l->fd = fd;
  l->end = HK_END_OPEN;
  /* Under the lock, so that a thread that sees the link open may ask the service to wait until it is writable. */
  hk_status rc = hk_service_add(b->o.service, fd, EPOLLIN, overlay_on_link, l);
  if (rc != HK_OK) {
    l->fd = -1;
    l->end = HK_END_CLOSED;
    hk_fork_forget(fd);
  }
  pthread_cond_broadcast(&b->change);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

static hk_message *overlay_new_message(const hk_overlay_link *l, const hk_frame *f, const void *p1, size_t n1,
                                       const void *p2, size_t n2) {
  hk_message *m = malloc(sizeof *m + n1 + n2);
  if (!m) return NULL;
  *m = (hk_message){.frame = *f, .from = l->b->rank, .towards_next = l->next};
  if (n1) memcpy(m->data, p1, n1);
  if (n2) memcpy(m->data + n1, p2, n2);
  return m;
}

/* Under the listener's lock: a connection that a peer has made is closed again, for the cause in the thread's error.
 * This rank knows that at once: what the peer does then is no cause. */
static void overlay_report_refusal(hk_bootstrap *b, int peer) {
  hk_event e = overlay_refusal(b, peer);
  if (!hk_event_note(b, &e)) return;
  const hk_frame f = {.type = HK_FRAME_EVENT, .bytes = (uint32_t)(HK_EVENT_BYTES + strlen(e.text))};
  uint8_t bytes[HK_EVENT_BYTES];
  hk_event_encode(bytes, &e);
  hk_message *m =
      b->rounds ? overlay_new_message(hk_link_to(b, true, 0), &f, bytes, sizeof bytes, e.text, strlen(e.text)) : NULL;
  if (!m) return; /* without memory the peer alone gets it, or a lost connection */
  pthread_mutex_lock(&b->lock);
  overlay_queue_event(b, m);
  pthread_mutex_unlock(&b->lock);
}

bool hk_overlay_accept(hk_bootstrap *b, const hk_hello *h, int fd) {
  if (h->kind != HK_HELLO_OVERLAY || h->round >= (uint32_t)b->rounds) return false;
  hk_overlay_link *l = hk_link_to(b, false, (int)h->round);
  pthread_mutex_lock(&b->lock);
  bool fits = h->from == l->rank && l->end == HK_END_CLOSED;
  pthread_mutex_unlock(&b->lock);
  if (!fits) return false;
  if (hk_overlay_open(l, fd) == HK_OK) return true;
  overlay_report_refusal(b, l->rank);
  hk_overlay_decline(l, fd);
  return false;
}

void hk_overlay_keep(hk_bootstrap *b, int from, uint64_t tag, int fd) {
  bool member = from >= 0 && from < b->nranks;
  hk_delivery *v = member ? malloc(sizeof *v) : NULL;
  hk_fork_forget(fd); /* owned by a transport from here on */
  if (!v) {
    if (member) {
      (void)HK_FAIL_ERRNO("no memory for a data connection");
      overlay_report_refusal(b, from);
    }
    hk_tcp_close(fd);
    return;
  }
  *v = (hk_delivery){.from = from, .tag = tag, .fd = fd};
  pthread_mutex_lock(&b->lock);
  const struct hk_served *s = hk_delivery_served(b, tag);
  if (s) {
    s->fn(s->arg, from, fd);
    free(v);
  } else {
    *b->deliveries_end = v;
    b->deliveries_end = &v->next;
  }
  pthread_mutex_unlock(&b->lock);
}

void hk_overlay_deliver(hk_bootstrap *b, hk_message *m) {
  hk_overlay_link *l = hk_link_to(b, !m->towards_next, m->frame.round);
  bool used = true;
  pthread_mutex_lock(&b->lock);
  switch (m->frame.type) {
    case HK_FRAME_OPEN:
      l->local = true;
      l->end = HK_END_OPEN;
      pthread_cond_broadcast(&b->change);
      break;
    case HK_FRAME_GOODBYE:
      l->end = HK_END_LEFT;
      pthread_cond_broadcast(&b->change);
      break;
    case HK_FRAME_EVENT:
      m->next = NULL;
      overlay_queue_event(b, m);
      used = false;
      break;
    default: overlay_put_in_inbox(b, m); used = false;
  }
  pthread_mutex_unlock(&b->lock);
  if (used) free(m);
}

/* ---- sending ---- */

/* Keeps what follows the first `sent` bytes of the pieces. Under the lock. */
static hk_status overlay_keep_unsent(hk_overlay_link *l, const struct iovec *piece, int pieces, size_t sent) {
  size_t total = 0, at = 0;
  for (int i = 0; i < pieces; i++) total += piece[i].iov_len;
  hk_unsent *u = malloc(sizeof *u + total - sent);
  if (!u) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for %zu bytes to rank %d", total - sent, l->rank);
  *u = (hk_unsent){.bytes = total - sent};
  for (int i = 0; i < pieces; i++) {
    size_t skip = sent < piece[i].iov_len ? sent : piece[i].iov_len, rest = piece[i].iov_len - skip;
    if (rest) memcpy(u->data + at, (const uint8_t *)piece[i].iov_base + skip, rest); /* an empty piece may be NULL */
    at += rest;
    sent -= skip;
  }
  hk_unsent **end = &l->unsent;
  while (*end) end = &(*end)->next;
  *end = u;
  return end == &l->unsent ? hk_service_modify(l->b->o.service, l->fd, EPOLLIN | EPOLLOUT) : HK_OK;
}

static hk_status overlay_send_on_socket(hk_overlay_link *l, struct iovec *piece, int pieces) {
  hk_status rc = HK_OK;
  pthread_mutex_lock(&l->b->lock);
  if (l->end != HK_END_OPEN) goto out; /* the peer has left or died: a wait for it returns the cause */
  ssize_t n = 0;
  if (!l->unsent) {
    do {
      n = hk_tcp_sendv(l->fd, piece, pieces);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN) goto out; /* broken: the service thread reads the cause */
    if (n < 0) n = 0;
  }
  size_t total = 0;
  for (int i = 0; i < pieces; i++) total += piece[i].iov_len;
  if ((size_t)n < total) rc = overlay_keep_unsent(l, piece, pieces, (size_t)n);
  hk_silence_begin(l->b);
out:
  pthread_mutex_unlock(&l->b->lock);
  return rc;
}

hk_status hk_overlay_send(hk_overlay_link *l, hk_frame_type type, uint64_t seq, const void *p1, size_t n1,
                          const void *p2, size_t n2) {
  hk_frame f = {.type = (uint16_t)type, .round = l->round, .bytes = (uint32_t)(n1 + n2), .seq = seq};
  if (n1 + n2 > HK_FRAME_MAX)
    return HK_FAIL(HK_ERR_ARGUMENT, "%zu bytes are too many for one message of the bootstrap (at most %d)", n1 + n2,
                   HK_FRAME_MAX);
  if (!l->local) {
    uint8_t header[HK_FRAME_BYTES];
    hk_frame_encode(header, &f);
    struct iovec piece[] = {{header, sizeof header}, {(void *)(uintptr_t)p1, n1}, {(void *)(uintptr_t)p2, n2}};
    return overlay_send_on_socket(l, piece, 3);
  }
  pthread_mutex_lock(&l->b->lock);
  bool open = l->end == HK_END_OPEN;
  pthread_mutex_unlock(&l->b->lock);
  if (!open) return HK_OK;
  hk_message *m = overlay_new_message(l, &f, p1, n1, p2, n2);
  if (!m) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for %zu bytes to rank %d", n1 + n2, l->rank);
  if (!hk_member_send(l->b, l->rank, m)) {
    pthread_mutex_lock(&l->b->lock);
    l->end = HK_END_LEFT;
    pthread_mutex_unlock(&l->b->lock);
  }
  return HK_OK;
}

/* ---- leaving ---- */

/* If a connection is closed while input still arrives, the kernel resets it and drops unsent data, including our
 * goodbye. So a rank that leaves reads on until each peer has said goodbye, too, or has answered ours by ending its
 * side. The peer's service thread does so at once; for one that is stopped or unreachable the wait is short. */
static void overlay_await_goodbyes(hk_bootstrap *b) {
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  pthread_mutex_lock(&b->lock);
  uint64_t deadline_ns = hk_now_ns() + (uint64_t)(b->known ? GOODBYE_NS : GOODBYE_JOINING_NS);
  for (int i = 0; i < 2 * b->rounds; i++)
    while (!b->links[i].local && b->links[i].end == HK_END_OPEN && hk_now_ns() < deadline_ns)
      if (hk_wait_cond(&w, &b->change, &b->lock) != HK_OK) break;
  pthread_mutex_unlock(&b->lock);
}

void hk_overlay_leave(hk_bootstrap *b) {
  pthread_mutex_lock(&b->lock);
  b->leaving = true;
  pthread_mutex_unlock(&b->lock);
  for (int i = 0; i < 2 * b->rounds; i++) (void)hk_overlay_send(&b->links[i], HK_FRAME_GOODBYE, 0, NULL, 0, NULL, 0);
  overlay_await_goodbyes(b);
  hk_silence_end(b);
  for (int i = 0; i < 2 * b->rounds; i++)
    if (b->links[i].fd >= 0) hk_service_remove(b->o.service, b->links[i].fd);
  hk_lost_end(b); /* from here on no link can begin to ask */
  if (b->o.service) hk_service_cancel(b->o.service, &b->event_work);
}

static void overlay_free_messages(hk_message *m) {
  for (hk_message *next; m; m = next) {
    next = m->next;
    free(m);
  }
}

void hk_overlay_free(hk_bootstrap *b) {
  for (int i = 0; b->links && i < 2 * b->rounds; i++) {
    hk_overlay_link *l = &b->links[i];
    hk_boot_close(l->fd);
    overlay_free_unsent(l);
    free(l->incoming);
  }
  overlay_free_messages(b->inbox);
  overlay_free_messages(b->events);
  for (hk_delivery *v = b->deliveries, *next; v; v = next) {
    next = v->next;
    hk_tcp_close(v->fd);
    free(v);
  }
  free(b->links);
}
