/* SPDX-License-Identifier: Apache-2.0 */
/* Sending and receiving slots on one connection of the socket provider. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include "../../../base/tcp.h"
#include "socket.h"

enum { IOV_MAX_USED = 16, HEADER = sizeof(hk_wire_header) };

/* Socket s's part of the payload of slot k. */
static uint32_t socket_io_part(const hk_socket_conn *c, uint64_t k, uint32_t bytes, unsigned s, uint32_t *at) {
  *at = 0;
  if (c->nsockets == 1 || bytes < HK_STRIPE_MIN) return s == 0 ? bytes : 0;
  uint32_t parts = bytes / HK_PART_MIN, index = s, others = c->nsockets - 1u;
  if (parts >= c->nsockets) {
    parts = c->nsockets;
  } else { /* the sockets but the first take turns, so that all of them are used */
    if (parts > others) parts = others;
    if (s == 0) return 0;
    index = (uint32_t)((s - 1 + others - k * parts % others) % others);
    if (index >= parts) return 0;
  }
  uint32_t each = ((bytes + parts - 1) / parts + 4095) & ~4095u; /* whole pages: copies stay aligned */
  uint64_t begin = (uint64_t)each * index, end = begin + each;
  if (begin > bytes) begin = bytes;
  if (end > bytes) end = bytes;
  *at = (uint32_t)begin;
  return (uint32_t)(end - begin);
}

/* ---- faults ---- */

static const char *socket_io_advice(int err) {
  switch (err) {
    case 0: return "its process has ended, or its communicator was destroyed or aborted: look at that rank's output";
    case ECONNRESET:
    case EPIPE:
      return "its process has ended or was killed, or something between the two reset the connection: look at that "
             "rank's output first, and its host's kernel log";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN: return "its host does not answer: check that it is up, the cable, the switch and the routes";
    case EBADMSG: return "TLS found the data forged or damaged on the way";
    default: return "check the network between the two hosts";
  }
}

static void socket_io_mark_failed(hk_socket_conn *c, hk_status rc) {
  c->failed = rc;
  hk_socket_settle(c);
  /* relaxed: the state says nothing about other memory */
  if (c->send) atomic_store_explicit(&c->send->link->state, HK_LINK_FAILED, memory_order_relaxed);
  if (c->recv) atomic_store_explicit(&c->recv->link->state, HK_LINK_FAILED, memory_order_relaxed);
}

/* The kernel cannot read or write the user's memory: nothing is wrong with the network or the peer. */
static hk_status socket_io_bad_buffer(hk_socket_conn *c, bool sends, const void *at, size_t bytes) {
  socket_io_mark_failed(c, HK_ERR_ARGUMENT);
  return HK_FAIL(
      HK_ERR_ARGUMENT,
      "rank %d gave a bad buffer: %zu bytes at %p, to be %s rank %d, are not all memory that this process may %s "
      "(EFAULT); is the buffer as large as the call's count says, was it freed, and is it memory of the host?",
      c->env->rank, bytes, at, sends ? "sent to" : "received from", c->peer, sends ? "read" : "write");
}

/* Returns true for errors that mean a lack of resources on this host. */
static bool socket_io_is_local(int err) { return err == ENOMEM || err == ENOBUFS || err == EMFILE || err == ENFILE; }

static hk_status socket_io_lacks_resources(const hk_socket_wire *w, const char *doing, int err) {
  hk_socket_conn *c = w->conn;
  socket_io_mark_failed(c, HK_ERR_SYSTEM);
  return HK_FAIL(HK_ERR_SYSTEM,
                 "rank %d fails while %s, over its connection to rank %d (%s): %s (%s); its host is short of it",
                 c->env->rank, doing, c->peer, w->route, strerror(err), strerrorname_np(err));
}

/* Fails the connection, and returns the error: it names peer, route, cause and what to check. `err`: errno, or 0 if the
 * peer has closed it. */
static hk_status socket_io_broken(const hk_socket_wire *w, const char *doing, int err) {
  hk_socket_conn *c = w->conn;
  if (socket_io_is_local(err)) return socket_io_lacks_resources(w, doing, err);
  socket_io_mark_failed(c, HK_ERR_REMOTE);
  return HK_FAIL(HK_ERR_REMOTE, "rank %d lost the connection to rank %d (%s, channel %d) while %s: %s%s%s%s; %s",
                 c->env->rank, c->peer, w->route, c->channel, doing, err ? strerror(err) : "the other side closed it",
                 err ? " (" : "", err ? strerrorname_np(err) : "", err ? ")" : "", socket_io_advice(err));
}

hk_status hk_socket_check_silence(hk_socket_conn *c, unsigned limit_s, uint64_t now_ns) {
  for (unsigned s = 0; s < c->nconnected; s++) {
    unsigned quiet_s;
    hk_socket_wire *w = &c->wires[s];
    if (!hk_silence_broken(&w->silence, w->fd, limit_s, now_ns, &quiet_s)) continue;
    socket_io_mark_failed(c, HK_ERR_REMOTE);
    return HK_FAIL(
        HK_ERR_REMOTE,
        "rank %d has heard nothing from the host of rank %d (%s) for %u s, though it asks it every few seconds; "
        "%s, or wait longer with HOCKET_PEER_TIMEOUT",
        c->env->rank, c->peer, w->route, quiet_s, socket_io_advice(ETIMEDOUT));
  }
  return HK_OK;
}

static hk_status socket_io_garbage(hk_socket_conn *c) {
  const hk_wire_header *h = &c->rx.head;
  socket_io_mark_failed(c, HK_ERR_REMOTE);
  return HK_FAIL(
      HK_ERR_REMOTE,
      "rank %d got a message from rank %d (%s, channel %d) that makes no sense: number %u where %u was due, %u "
      "bytes, flags %#x; do all ranks run the same version of this library, with the same settings?",
      c->env->rank, c->peer, c->wires[0].route, c->channel, h->seq, (uint32_t)(c->recv->next + 1), h->bytes, h->flags);
}

/* ---- sending ---- */

bool hk_socket_waited_for(const hk_socket_conn *c) { return c->recv && hk_link_waits(c->recv->link) == HK_LINK_WAITS; }

bool hk_socket_send_pending(const hk_socket_conn *c) {
  const uint64_t first = c->wires[0].slot;
  return c->send && (hk_net_filled(c->send, first) || c->send->next != first);
}

bool hk_socket_send_blocked(const hk_socket_conn *c) {
  bool blocked = false;
  for (unsigned s = 0; s < c->nsockets; s++) blocked |= c->wires[s].blocked;
  return blocked;
}

/* Two ranks that send to each other are fastest if they take turns. Data that is sent far ahead of the received data
 * fills the kernel's buffers, and is then read from memory instead of the cache. So a connection whose receiver waits
 * sends no more than `lead_max` bytes ahead of what it receives. If nothing arrives for HELD_MAX rounds, it continues
 * to send: the peer waits for something else, or the network is slow. */
enum { HELD_MAX = 16 };

uint32_t hk_socket_lead_of(long l2_bytes) {
  enum { LEAST = 131072, MOST = 524288 };
  return l2_bytes / 4 < LEAST ? LEAST : l2_bytes / 4 > MOST ? MOST : (uint32_t)(l2_bytes / 4);
}

bool hk_socket_send_held(const hk_socket_conn *c) { return c->lead >= c->lead_max && hk_socket_waited_for(c); }

/* The bytes of `lead_max` that one socket sends at a time. */
static uint32_t socket_io_lead_of_one(const hk_socket_conn *c) {
  const uint32_t share = c->lead_max / c->nsockets;
  return share > HK_PART_MIN ? share : HK_PART_MIN;
}

static bool socket_io_hold_back(hk_socket_conn *c) {
  if (!hk_socket_send_held(c)) return false;
  if (++c->held < HELD_MAX) return true;
  c->lead = c->held = 0;
  return false;
}

/* Inside a host a small message spends most of its time on its own segment and that segment's acknowledgement. So after
 * STREAM_MIN small messages in one direction and none in the other, the sender's kernel may gather them (Nagle's
 * algorithm): it keeps written data while a segment is not acknowledged, and sends it when the receiver has read that
 * segment. The receiver's kernel acknowledges at once when a read empties the socket's queue, unless it regards the
 * connection as interactive and waits up to 40 ms for data in the other direction. A flag in gathered messages lets the
 * receiver force the acknowledgement. */
enum { STREAM_MIN = 16, STREAM_MOST = 16384, EMPTY_MAX = 2 };

static void socket_io_gather_in_kernel(hk_socket_conn *c, bool on) {
  int nodelay = !on;
  if (c->gathers == on) return;
  c->gathers = on; /* if the call fails, messages are slower, and nothing else changes */
  (void)setsockopt(c->wires[0].fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay); /* off: sends what was kept */
}

/* Chooses how the first socket sends slot k, and marks the slots that may be gathered. The mark begins one message
 * earlier, so that the receiver acknowledges all those before. */
static void socket_io_choose_gathering(hk_socket_conn *c, uint64_t k) {
  if (!c->near || !hk_net_filled(c->send, k)) return;
  if (hk_net_slot(c->send, k)->bytes > STREAM_MOST) c->unanswered = 0;
  socket_io_gather_in_kernel(c, c->unanswered >= STREAM_MIN);
}

static void socket_io_mark(const hk_socket_conn *c, hk_slot *slot, uint32_t ahead) {
  if (c->near && c->unanswered + ahead + 1 >= STREAM_MIN) slot->flags |= HK_WIRE_GATHERED;
}

void hk_socket_polled(hk_socket_conn *c, bool came) {
  int one = 1;
  if (came || !c->rx.gathered)
    c->empty = 0;
  else if (++c->empty == EMPTY_MAX) /* acknowledges received data now, and later data as soon as it is read */
    (void)setsockopt(c->wires[0].fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
}

/* Collects the bytes that socket s sends next: as many slots as fit into the vector, about `most` bytes. */
static int socket_io_gather(const hk_socket_conn *c, unsigned s, size_t most, struct iovec *iov, int capacity,
                            size_t *total) {
  const hk_net_end *e = c->send;
  uint64_t k = c->wires[s].slot, offset = c->wires[s].offset;
  int n = 0;
  *total = 0;
  for (; n + 2 <= capacity && *total < most && hk_net_filled(e, k); k++, offset = 0) {
    hk_slot *slot = hk_net_slot(e, k);
    uint32_t at, bytes = socket_io_part(c, k, slot->bytes, s, &at), head = s == 0 ? HEADER : 0;
    char *data = (char *)(uintptr_t)hk_net_slot_data(e, k) + at;
    size_t left = head + bytes - offset;
    if (left == 0) continue;
    *total += left;
    if (offset < head) {
      if (offset == 0) socket_io_mark(c, slot, (uint32_t)(k - c->wires[s].slot));
      bool joined = data == (char *)slot + HEADER; /* a small payload follows its header in memory */
      iov[n++] = (struct iovec){(char *)slot + offset, joined ? left : head - offset};
      if (!joined && bytes) iov[n++] = (struct iovec){data, bytes};
    } else {
      iov[n++] = (struct iovec){data + (offset - head), left};
    }
  }
  return n;
}

/* The kernel has taken `sent` more bytes of socket s. */
static void socket_io_advance(hk_socket_conn *c, unsigned s, size_t sent) {
  hk_socket_wire *t = &c->wires[s];
  while (hk_net_filled(c->send, t->slot)) {
    uint32_t at, bytes = socket_io_part(c, t->slot, hk_net_slot(c->send, t->slot)->bytes, s, &at);
    uint64_t left = (s == 0 ? HEADER : 0) + (uint64_t)bytes - t->offset;
    if (sent < left) {
      t->offset += sent;
      return;
    }
    sent -= left;
    t->slot++;
    t->offset = 0;
    if (s == 0 && c->unanswered < STREAM_MIN) c->unanswered++;
  }
}

/* The kernel has taken `sent` of `total` bytes, or refused: an errno, or 0. */
static hk_status socket_io_sent_some(hk_socket_conn *c, unsigned s, size_t sent, size_t total, int err, bool *moved) {
  hk_socket_wire *t = &c->wires[s];
  if (err == EFAULT)
    return socket_io_bad_buffer(c, true, hk_net_slot_data(c->send, t->slot), hk_net_slot(c->send, t->slot)->bytes);
  if (err && err != EAGAIN && err != EWOULDBLOCK) return socket_io_broken(t, "sending", err);
  if (sent > 0) *moved = true;
  t->blocked = sent < total;
  socket_io_advance(c, s, sent);
  return HK_OK;
}

/* The state of a socket's job. HK_JOB_DONE: takes its results, and the next one may be posted. */
static int socket_io_state_of(hk_socket_conn *c, hk_socket_job *j) {
  /* acquire: pairs with the end of the job; its results are read after it */
  const int state = atomic_load_explicit(&j->state, memory_order_acquire);
  if (state != HK_JOB_DONE) return state;
  atomic_store_explicit(&j->state, HK_JOB_NONE, memory_order_relaxed); /* relaxed: this thread alone posts it */
  c->njobs--;
  return state;
}
static void socket_io_post(hk_socket_conn *c, unsigned s, hk_socket_job *j) {
  j->fd = c->wires[s].fd;
  c->njobs++;
  hk_socket_threads_post(c->threads, s, j);
}

/* As push, by another thread, and not held back: threads are for networks that are faster than a core. An epoll event
 * during the job may be newer than the job's system call, and is not repeated: then the socket is tried once more. */
static hk_status socket_io_push_beside(hk_socket_conn *c, unsigned s, bool *moved) {
  hk_socket_job *j = &c->jobs[s];
  const int state = socket_io_state_of(c, j);
  if (state == HK_JOB_DONE) {
    HK_OR_RETURN(socket_io_sent_some(c, s, j->moved, j->bytes, j->err, moved));
    if (c->wires[s].news_out) c->wires[s].blocked = false;
  }
  if (state == HK_JOB_ASKED || c->wires[s].blocked) return HK_OK;
  j->n = socket_io_gather(c, s, SIZE_MAX, j->iov, HK_JOB_PIECES, &j->bytes);
  j->sends = true;
  c->wires[s].news_out = false;
  if (j->n)
    socket_io_post(c, s, j);
  else
    socket_io_advance(c, s, 0); /* skips slots without a part for this socket */
  return HK_OK;
}

static hk_status socket_io_push(hk_socket_conn *c, unsigned s, bool *moved) {
  hk_socket_wire *t = &c->wires[s];
  bool paced = hk_socket_waited_for(c);
  while (!t->blocked) {
    struct iovec iov[IOV_MAX_USED];
    size_t total;
    if (s == 0) socket_io_choose_gathering(c, t->slot);
    int n = socket_io_gather(c, s, paced ? socket_io_lead_of_one(c) : SIZE_MAX, iov, IOV_MAX_USED, &total);
    if (n == 0) {
      socket_io_advance(c, s, 0); /* skips slots without a part for this socket */
      return HK_OK;
    }
    ssize_t sent = n == 1 ? hk_tcp_send(t->fd, iov[0].iov_base, iov[0].iov_len) : hk_tcp_sendv(t->fd, iov, n);
    if (sent < 0 && errno == EINTR) continue;
    HK_OR_RETURN(socket_io_sent_some(c, s, sent < 0 ? 0 : (size_t)sent, total, sent < 0 ? errno : 0, moved));
    if (!paced) continue;
    if (sent > 0) c->lead += (uint32_t)sent;
    if (c->lead >= socket_io_lead_of_one(c)) break;
  }
  return HK_OK;
}

hk_status hk_socket_send(hk_socket_conn *c, bool *moved) {
  if (socket_io_hold_back(c)) return HK_OK;
  for (unsigned s = 0; s < c->nsockets; s++)
    HK_OR_RETURN(hk_socket_threads_have(c->threads, s) ? socket_io_push_beside(c, s, moved)
                                                       : socket_io_push(c, s, moved));
  uint64_t all = c->wires[0].slot;
  for (unsigned s = 1; s < c->nsockets; s++)
    if (c->wires[s].slot < all) all = c->wires[s].slot;
  if (all != c->send->next) {
    c->send->next = all;
    hk_net_give_credit(c->send, all);
  }
  return HK_OK;
}

/* ---- receiving ---- */

/* Socket s's part of the message that is being received, or that is guessed to be the next. */
static uint32_t socket_io_rx_part(const hk_socket_conn *c, uint32_t bytes, unsigned s, uint32_t *at) {
  return socket_io_part(c, c->recv->next, bytes, s, at);
}

bool hk_socket_readable(const hk_socket_conn *c) {
  uint32_t at;
  if (c->wires[0].readable || !c->rx.begun) return c->wires[0].readable;
  for (unsigned s = 1; s < c->nsockets; s++)
    if (c->wires[s].readable && c->wires[s].got < socket_io_rx_part(c, c->rx.head.bytes, s, &at)) return true;
  return false;
}

/* Once the header is complete: checks it, and finds the payload's place. The message is not begun until that is
 * known. */
static hk_status socket_io_begin(hk_socket_conn *c) {
  hk_socket_rx *r = &c->rx;
  const hk_wire_header *h = &r->head;
  if (r->head_got < HEADER) return HK_OK;
  if (h->seq != (uint32_t)(c->recv->next + 1) || h->bytes > HK_NET_MESSAGE_MAX ||
      (h->flags & ~(uint32_t)(HK_SLOT_REF | HK_WIRE_GATHERED)))
    return socket_io_garbage(c);
  r->place = hk_net_place(c->recv, h->bytes, &r->direct);
  if (!r->place) return c->recv->link->recv_target ? socket_io_garbage(c) : HK_OK;
  for (unsigned s = 0; s < c->nsockets; s++) c->wires[s].got = 0;
  r->begun = true;
  return HK_OK;
}

/* Puts n bytes in front of those that were read ahead. */
static hk_status socket_io_unread(hk_socket_conn *c, const char *from, uint32_t n) {
  hk_socket_rx *r = &c->rx;
  if (n == 0) return HK_OK;
  if (r->ahead_end + n > r->ahead_capacity) {
    char *more = realloc(r->ahead, r->ahead_end + n);
    if (!more) return HK_FAIL_ERRNO("no memory for %u bytes from rank %d", r->ahead_end + n, c->peer);
    r->ahead = more;
    r->ahead_capacity = r->ahead_end + n;
  }
  memmove(r->ahead + n, r->ahead, r->ahead_end);
  memcpy(r->ahead, from, n);
  r->ahead_end += n;
  return HK_OK;
}

static uint32_t socket_io_take_ahead(hk_socket_rx *r, void *to, uint32_t capacity) {
  uint32_t n = r->ahead_end - r->ahead_at;
  if (n > capacity) n = capacity;
  memcpy(to, r->ahead + r->ahead_at, n);
  r->ahead_at += n;
  if (r->ahead_at == r->ahead_end) r->ahead_at = r->ahead_end = 0;
  return n;
}

/* Moves bytes that were read ahead into the message. */
static hk_status socket_io_use_ahead(hk_socket_conn *c) {
  hk_socket_rx *r = &c->rx;
  if (!r->begun) {
    if (r->ahead_end) r->head_got += socket_io_take_ahead(r, (char *)&r->head + r->head_got, HEADER - r->head_got);
    HK_OR_RETURN(socket_io_begin(c));
  }
  if (r->begun && r->ahead_end) {
    uint32_t at, bytes = socket_io_rx_part(c, r->head.bytes, 0, &at), *got = &c->wires[0].got;
    *got += socket_io_take_ahead(r, r->place + *got, bytes - *got);
  }
  return HK_OK;
}

/* The probable place of the next payload, before its header has arrived: successive messages mostly have the same
 * size. */
static char *socket_io_guess(const hk_socket_conn *c, uint32_t *capacity) {
  const hk_link *l = c->recv->link;
  uint32_t at, bytes = c->rx.last, most = l->recv_target ? l->recv_target_bytes : l->slot_bytes;
  bool direct;
  if (bytes > most) bytes = most;
  *capacity = socket_io_rx_part(c, bytes, 0, &at);
  char *place = *capacity ? hk_net_place(c->recv, bytes, &direct) : NULL;
  if (!place) *capacity = 0;
  return place;
}

/* Moves n bytes, which were read to the header, the guessed place and the read-ahead buffer, to their right places. */
static hk_status socket_io_sort_guessed(hk_socket_conn *c, size_t n, char *guessed, uint32_t capacity) {
  hk_socket_rx *r = &c->rx;
  uint32_t head = HEADER - r->head_got, keep = 0, at;
  if (n < head) head = (uint32_t)n;
  r->head_got += head;
  uint32_t rest = (uint32_t)(n - head), in_guess = rest < capacity ? rest : capacity;
  r->ahead_end = rest - in_guess;
  HK_OR_RETURN(socket_io_begin(c));
  if (r->begun) {
    uint32_t bytes = socket_io_rx_part(c, r->head.bytes, 0, &at);
    keep = in_guess < bytes ? in_guess : bytes;
    if (keep && r->place != guessed) memmove(r->place, guessed, keep);
    c->wires[0].got = keep;
  }
  return socket_io_unread(c, guessed + keep, in_guess - keep);
}

/* One read from the first socket; the read-ahead buffer is empty. *more: the socket may have more bytes. */
static hk_status socket_io_read_first(hk_socket_conn *c, bool *moved, bool *more) {
  hk_socket_rx *r = &c->rx;
  hk_socket_wire *w = &c->wires[0];
  struct iovec iov[3];
  int n = 0;
  uint32_t capacity = 0, at, left = 0;
  char *guessed = NULL;
  size_t asked = HK_AHEAD_BYTES;
  if (r->begun) {
    left = socket_io_rx_part(c, r->head.bytes, 0, &at) - w->got;
    iov[n++] = (struct iovec){r->place + w->got, left};
    asked += left;
  } else {
    iov[n++] = (struct iovec){(char *)&r->head + r->head_got, HEADER - r->head_got};
    guessed = socket_io_guess(c, &capacity);
    if (guessed) iov[n++] = (struct iovec){guessed, capacity};
    asked += HEADER - r->head_got + capacity;
  }
  iov[n++] = (struct iovec){r->ahead, HK_AHEAD_BYTES};
  *more = false;
  ssize_t got = hk_tcp_readv(w->fd, iov, n);
  if (got < 0 && errno == EFAULT)
    return r->begun ? socket_io_bad_buffer(c, false, r->place, r->head.bytes)
                    : socket_io_bad_buffer(c, false, guessed, capacity);
  if (got < 0) {
    if (errno == EINTR) *more = true;
    if (errno == EAGAIN || errno == EWOULDBLOCK) w->readable = false;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? HK_OK : socket_io_broken(w, "receiving", errno);
  }
  if (got == 0) {
    bool between = !r->begun && r->head_got == 0;
    if (!between) return socket_io_broken(w, "receiving a message", 0);
    r->eof = true; /* an error only if a lane waits for more */
    return HK_OK;
  }
  *moved = w->readable = true;
  *more = (size_t)got == asked;
  if (!r->begun) return socket_io_sort_guessed(c, (size_t)got, guessed, capacity);
  uint32_t mine = (size_t)got < left ? (uint32_t)got : left;
  w->got += mine;
  r->ahead_end = (uint32_t)got - mine;
  return HK_OK;
}

/* Processes the result of a read of a socket other than the first. */
static hk_status socket_io_got_some(hk_socket_conn *c, hk_socket_wire *w, size_t got, int err, bool *moved) {
  if (err == HK_JOB_CLOSED) return socket_io_broken(w, "receiving a message", 0);
  if (err == EFAULT) return socket_io_bad_buffer(c, false, c->rx.place, c->rx.head.bytes);
  if (err && err != EAGAIN && err != EWOULDBLOCK) return socket_io_broken(w, "receiving a message", err);
  w->readable = !err;
  w->got += (uint32_t)got;
  if (got) *moved = true;
  return HK_OK;
}

/* Another thread reads the rest of a socket's part; epoll events are handled as in push_beside. */
static hk_status socket_io_read_beside(hk_socket_conn *c, unsigned s, uint32_t at, uint32_t bytes, bool *moved) {
  hk_socket_wire *w = &c->wires[s];
  hk_socket_job *j = &c->jobs[c->nsockets + s];
  const int state = socket_io_state_of(c, j);
  if (state == HK_JOB_DONE) {
    HK_OR_RETURN(socket_io_got_some(c, w, j->moved, j->err, moved));
    if (w->news_in) w->readable = true;
  }
  if (state == HK_JOB_ASKED || !w->readable || w->got == bytes) return HK_OK;
  j->bytes = bytes - w->got;
  j->iov[0] = (struct iovec){c->rx.place + at + w->got, j->bytes};
  j->n = 1;
  j->sends = w->news_in = false;
  socket_io_post(c, s, j);
  return HK_OK;
}

/* Reads the parts of the message that the other sockets carry. */
static hk_status socket_io_read_others(hk_socket_conn *c, bool *moved) {
  hk_socket_rx *r = &c->rx;
  for (unsigned s = 1; s < c->nsockets; s++) {
    hk_socket_wire *w = &c->wires[s];
    uint32_t at, bytes = socket_io_rx_part(c, r->head.bytes, s, &at);
    if (hk_socket_threads_have(c->threads, s)) {
      HK_OR_RETURN(socket_io_read_beside(c, s, at, bytes, moved));
      continue;
    }
    while (w->readable && w->got < bytes) {
      ssize_t got = hk_tcp_recv(w->fd, r->place + at + w->got, bytes - w->got);
      if (got < 0 && errno == EINTR) continue;
      HK_OR_RETURN(socket_io_got_some(c, w, got < 0 ? 0 : (size_t)got,
                                      got < 0    ? errno
                                      : got == 0 ? HK_JOB_CLOSED
                                                 : 0,
                                      moved));
    }
  }
  return HK_OK;
}

static bool socket_io_complete(const hk_socket_conn *c) {
  const hk_socket_rx *r = &c->rx;
  uint32_t sum = 0;
  if (!r->begun) return false;
  for (unsigned s = 0; s < c->nsockets; s++) sum += c->wires[s].got;
  return sum == r->head.bytes;
}

static void socket_io_deliver(hk_socket_conn *c) {
  hk_socket_rx *r = &c->rx;
  r->last = r->head.bytes;
  c->lead = c->lead > r->last ? c->lead - r->last : 0;
  c->held = 0;
  c->unanswered = 0;
  socket_io_gather_in_kernel(c, false);
  r->gathered = r->head.flags & HK_WIRE_GATHERED;
  r->begun = false;
  r->head_got = 0;
  hk_net_deliver(c->recv, r->head.bytes, r->head.signature, r->place, r->direct);
}

/* Returns true if the read-ahead buffer has a complete message. A part of one stays there until a lane waits for it:
 * then it may go straight to the place that the lane wants. */
static bool socket_io_whole_ahead(const hk_socket_rx *r) {
  hk_wire_header h;
  uint32_t n = r->ahead_end - r->ahead_at;
  if (n < HEADER) return false;
  memcpy(&h, r->ahead + r->ahead_at, HEADER);
  return h.bytes <= n - HEADER;
}

hk_status hk_socket_receive(hk_socket_conn *c, bool *moved) {
  hk_status rc = HK_OK;
  hk_socket_rx *r = &c->rx;
  uint32_t at;
  bool more = true;
  while (hk_net_has_room(c->recv)) {
    HK_OR_RETURN(socket_io_use_ahead(c));
    if (r->begun && r->head.bytes >= HK_STRIPE_MIN) HK_OR_RETURN(socket_io_read_others(c, moved));
    if (socket_io_complete(c)) {
      socket_io_deliver(c);
      *moved = true;
      if (!socket_io_whole_ahead(r)) break;
      continue;
    }
    if (!more) break;
    if (r->begun ? c->wires[0].got == socket_io_rx_part(c, r->head.bytes, 0, &at) : r->head_got == HEADER) break;
    if (r->eof) {
      if (hk_socket_waited_for(c)) rc = socket_io_broken(&c->wires[0], "waiting for a message", 0);
      break;
    }
    HK_OR_RETURN(socket_io_read_first(c, moved, &more));
    if (r->eof) more = true; /* the next round reports it */
  }
  return rc;
}
