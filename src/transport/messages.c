/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations as messages: see messages.h. */
#include "messages.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "../base/service.h"
#include "../base/tcp.h"
#include "../base/thread.h"
#include "../device/host.h"
#include "transport.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers are sent as they are in memory");

/* TAG: of these connections. BUDGET: most bytes in one callback, so that other users of the service get their turn. */
enum { TAG = 0x726d61, BUDGET = 4 << 20, DISCARD = 4096 };

typedef enum verb { ASK, PUT, JOIN } verb;
typedef struct hk_message_header {
  uint32_t verb, signal;
  uint64_t window, offset, bytes;
} hk_message_header;
_Static_assert(sizeof(hk_message_header) == 32 && sizeof(hk_window_answer) == 64, "the wire format");

typedef struct incoming {
  struct incoming *next;
  hk_messages *owner;
  int fd, from;
  hk_message_header header;
  size_t got;  /* bytes of the header */
  size_t left; /* bytes of the data that have not arrived yet */
  bool wrong;  /* the data is dropped */
} incoming;

struct hk_messages {
  const hk_transport_env *env;
  hk_messages_options o;
  uint8_t proof[16];  /* other processes read it to test whether they can access this process's memory */
  int *fds;           /* [nranks] to each peer; -1: none yet */
  incoming *incoming; /* changed by `serve`'s callback */
};

/* ---- receiver: on the service thread ---- */

static void messages_refuse(incoming *in, const char *why, size_t has) {
  const hk_transport_env *env = in->owner->env;
  const hk_message_header *h = &in->header;
  char text[320];
  snprintf(text, sizeof text,
           "rank %d put %llu bytes at %llu of window %llu of rank %d, %s (%zu bytes): a window must stay registered "
           "until all puts to it have arrived",
           in->from, (unsigned long long)h->bytes, (unsigned long long)h->offset, (unsigned long long)h->window,
           env->rank, why, has);
  in->wrong = true;
  in->owner->o.refused(in->owner->o.arg, in->from, text);
}

/* The address of the next byte of the data; NULL: none, because the window may have been deregistered since the last
 * check. */
static char *messages_place(incoming *in) {
  const hk_message_header *h = &in->header;
  hk_window w = {NULL, 0};
  if (in->wrong) return NULL;
  hk_window_state state = in->owner->o.window(in->owner->o.arg, h->window, &w);
  if (state == HK_WINDOW_OPEN && h->offset <= w.bytes && h->bytes <= w.bytes - h->offset)
    return w.base + h->offset + (h->bytes - in->left);
  messages_refuse(in, state == HK_WINDOW_OPEN ? "which is smaller" : "which is not registered (any more)", w.bytes);
  return NULL;
}

/* An answer always fits into the send buffer: the peer waits for it before it sends more. */
static bool messages_reply(incoming *in, const hk_window_answer *a) {
  return hk_tcp_send(in->fd, a, sizeof *a) == (ssize_t)sizeof *a;
}

hk_window_answer hk_messages_describe(const hk_messages *m, uint64_t window) {
  hk_window w = {NULL, 0};
  hk_window_answer a = {.state = m->o.window(m->o.arg, window, &w)};
  if (a.state != HK_WINDOW_OPEN) return a;
  hk_host_span span = hk_host_find(w.base);
  a.address = (uint64_t)(uintptr_t)w.base;
  a.bytes = w.bytes;
  if (span.region && a.address + w.bytes <= span.end) {
    a.region = span.region;
    a.offset = a.address - span.begin;
  }
  a.proof_at = (uint64_t)(uintptr_t)m->proof;
  memcpy(a.proof, m->proof, sizeof a.proof);
  return a;
}

/* Carries out a complete message. False: the connection cannot be used any more. */
static bool messages_carry_out(incoming *in) {
  const hk_messages_options *o = &in->owner->o;
  const hk_message_header *h = &in->header;
  hk_window_answer a = {0};
  in->got = 0;
  if (h->verb == ASK) a = hk_messages_describe(in->owner, h->window);
  if (h->verb == JOIN) a.state = o->join(o->arg, in->from);
  if (h->verb != PUT) return messages_reply(in, &a);
  if (h->signal != HK_NO_SIGNAL && !in->wrong && !o->signal(o->arg, in->from, h->signal))
    messages_refuse(in, "which has fewer contexts or signals", 0);
  return true;
}

/* Reads once. Returns the number of bytes, 0 if there are none now, -1 if the connection has ended. */
static ssize_t messages_read_some(incoming *in) {
  char dropped[DISCARD];
  ssize_t n;
  if (in->got < sizeof in->header) {
    n = hk_tcp_recv(in->fd, (char *)&in->header + in->got, sizeof in->header - in->got);
  } else {
    char *to = messages_place(in);
    size_t most = to ? in->left : in->left < DISCARD ? in->left : DISCARD;
    n = hk_tcp_recv(in->fd, to ? to : dropped, most);
  }
  if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  return n > 0 ? n : -1;
}

static void messages_on_data(void *arg, int fd, uint32_t events) {
  incoming *in = arg;
  (void)events;
  for (size_t budget = BUDGET; budget || hk_tcp_unread(fd);) {
    bool in_header = in->got < sizeof in->header;
    ssize_t n = messages_read_some(in);
    if (n == 0) return;
    if (n < 0) goto ended; /* the peer has left or died: if that matters, the control connections report it */
    budget -= (size_t)n < budget ? (size_t)n : budget;
    if (in_header) {
      in->got += (size_t)n;
      if (in->got < sizeof in->header) continue;
      in->left = in->header.bytes;
      in->wrong = false;
    } else {
      in->left -= (size_t)n;
    }
    if (in->left == 0 && !messages_carry_out(in)) goto ended;
  }
  return;
ended:
  hk_service_remove(in->owner->env->service, in->fd);
  (void)shutdown(in->fd, SHUT_RDWR); /* it is closed with the communicator */
}

/* A peer has connected; the peer sees it if this is refused, and reports it. On the listener's thread, or in
 * hk_messages_serve. */
static void messages_on_connection(void *arg, int from, int fd) {
  hk_messages *m = arg;
  incoming *in = malloc(sizeof *in);
  if (!in) {
    hk_tcp_close(fd);
    return;
  }
  *in = (incoming){.owner = m, .fd = fd, .from = from};
  if (hk_service_add(m->env->service, fd, EPOLLIN, messages_on_data, in) != HK_OK) {
    hk_tcp_close(fd);
    free(in);
    return;
  }
  in->next = m->incoming;
  m->incoming = in;
}

/* ---- sender: on the rank's thread ---- */

static hk_status messages_lost(hk_messages *m, int peer, int error) {
  return HK_FAIL(HK_ERR_REMOTE, "rank %d lost its connection to rank %d for one-sided operations (%s)", m->env->rank,
                 peer, error ? strerror(error) : "the peer closed it");
}

static hk_status messages_connect_to(hk_messages *m, int peer) {
  if (m->fds[peer] >= 0) return HK_OK;
  hk_cancel_hold();
  return m->env->dial(m->env->arg, peer, NULL, TAG, &m->fds[peer]);
}

static hk_status messages_send_all(hk_messages *m, int peer, struct iovec *piece, int pieces) {
  char what[64];
  snprintf(what, sizeof what, "rank %d to take a put", peer);
  const hk_status rc = hk_wait_send(m->env->wait, m->fds[peer], piece, pieces, what);
  return rc == HK_IN_PROGRESS ? messages_lost(m, peer, errno) : rc;
}

static hk_status messages_await_answer(hk_messages *m, int peer, hk_window_answer *a) {
  char what[64];
  snprintf(what, sizeof what, "rank %d to answer for a window", peer);
  const hk_status rc = hk_wait_recv(m->env->wait, m->fds[peer], a, sizeof *a, what);
  return rc == HK_IN_PROGRESS ? messages_lost(m, peer, errno) : rc;
}

static hk_status messages_ask(hk_messages *m, int peer, verb v, uint64_t window, hk_window_answer *out) {
  hk_message_header h = {.verb = v, .signal = HK_NO_SIGNAL, .window = window};
  HK_OR_RETURN(messages_connect_to(m, peer));
  HK_OR_RETURN(messages_send_all(m, peer, &(struct iovec){&h, sizeof h}, 1));
  return messages_await_answer(m, peer, out);
}

hk_status hk_messages_ask(hk_messages *m, int peer, uint64_t window, hk_window_answer *out) {
  return messages_ask(m, peer, ASK, window, out);
}

hk_status hk_messages_join(hk_messages *m, int peer, hk_window_state *state) {
  hk_window_answer a;
  hk_status rc = messages_ask(m, peer, JOIN, 0, &a);
  if (rc == HK_OK) *state = (hk_window_state)a.state;
  return rc;
}

hk_status hk_messages_put(hk_messages *m, int peer, const hk_put *put) {
  hk_message_header h = {
      .verb = PUT, .signal = put->signal, .window = put->window, .offset = put->offset, .bytes = put->bytes};
  struct iovec piece[] = {{&h, sizeof h}, {(void *)(uintptr_t)put->data, put->bytes}};
  HK_OR_RETURN(messages_connect_to(m, peer));
  return messages_send_all(m, peer, piece, put->bytes ? 2 : 1);
}

/* ---- both ---- */

hk_status hk_messages_new(hk_messages **out, const hk_transport_env *env, const hk_messages_options *o) {
  hk_status rc = HK_OK;
  hk_messages *m = calloc(1, sizeof *m);
  int *fds = malloc((size_t)env->nranks * sizeof *fds);
  if (!m || !fds) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for one-sided operations of %d ranks", env->nranks), out);
  *m = (hk_messages){.env = env, .o = *o, .fds = fds};
  for (int r = 0; r < env->nranks; r++) fds[r] = -1;
  if (getrandom(m->proof, sizeof m->proof, 0) != (ssize_t)sizeof m->proof)
    rc = HK_FAIL_ERRNO("no random bytes for one-sided operations");
out:
  if (rc != HK_OK) {
    free(m);
    free(fds);
  }
  *out = rc == HK_OK ? m : NULL;
  return rc;
}

void hk_messages_serve(hk_messages *m) { m->env->serve(m->env->arg, TAG, messages_on_connection, m); }

void hk_messages_free(hk_messages *m) {
  if (!m) return;
  m->env->serve(m->env->arg, TAG, NULL, NULL); /* no connection arrives after this */
  for (incoming *in = m->incoming, *next; in; in = next) {
    next = in->next;
    hk_service_remove(m->env->service, in->fd);
    hk_tcp_close(in->fd);
    free(in);
  }
  for (int r = 0; r < m->env->nranks; r++)
    if (m->fds[r] >= 0) hk_tcp_close(m->fds[r]);
  free(m->fds);
  free(m);
}
