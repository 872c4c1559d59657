/* SPDX-License-Identifier: Apache-2.0 */
/* The process's listener and its admission queue. A connection without the secret receives no byte, and costs a
 * descriptor and 250 bytes for at most HELLO_SECONDS; if there are more than PENDING_MAX, the oldest is dropped. A
 * rank's hello follows its connection at once, but this thread may be late: no connection is dropped before its input
 * was read. */
#include "listener.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/iface.h" /* loopback and link-local addresses */
#include "../base/log.h"
#include "../base/param.h"
#include "../base/tcp.h"
#include "../base/wait.h"
#include "bootstrap.h"
#include "process.h"
#include "status.h"

enum { KEEP_CONTACT_NS = 1000000000, QUIET_NS = 1000000000, SPARE_NS = 200000000 };
enum { PENDING_MAX = 256, HELLO_SECONDS = 5, ACCEPTS_PER_CALL = 64, BACKLOG = 4096, IFACES = 32 };

/* If this process has a key, the handshake comes first. The hello of a peer without a key is read, so that the peer
 * gets an error. */
static hk_tls_state listener_secure(hk_connection *c) {
  char why[HK_TLS_WHY];
  if (c->ready) return HK_TLS_OPEN;
  hk_tls_state s = hk_tls_accept(c->fd, why);
  if (s == HK_TLS_REFUSED) HK_INFO(HK_SUB_BOOTSTRAP, "a connection to this process is refused: %s", why);
  c->plain = s == HK_TLS_PLAIN;
  c->ready = c->plain || s == HK_TLS_OPEN;
  return c->ready ? HK_TLS_OPEN : s;
}

/* False if it stays in the queue: it speaks TLS, and its first message, which is to get an answer, is not complete. */
static bool listener_refuse_garbage(hk_connection *c) {
  bool over = true;
  if (c->have && c->in[0] == HK_TLS_FIRST_BYTE && !hk_tls_on()) {
    if (!c->stranger.have)
      HK_INFO(HK_SUB_BOOTSTRAP,
              "a connection to this process is refused: it is encrypted, and this process has no key");
    over = hk_tls_refuse(c->fd, &c->stranger, c->in, c->stranger.have ? 0 : c->have);
  }
  if (over) hk_connection_free(c, false);
  return over;
}

/* Reads a connection's input. False if it stays in the queue because the hello is not complete. */
static bool listener_read_hello(hk_listener *l, hk_connection *c) {
  if (c->stranger.have) return listener_refuse_garbage(c);
  hk_tls_state state = listener_secure(c);
  if (state == HK_TLS_WAITS) return false;
  ssize_t n = state == HK_TLS_OPEN ? hk_tcp_recv(c->fd, c->in + c->have, sizeof c->in - c->have) : 0;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n > 0) c->have += (uint32_t)n;
  if (n <= 0 || !hk_hello_possible(c->in, c->have)) return listener_refuse_garbage(c);
  if (c->have < sizeof c->in) return false;
  hk_hello h;
  if (!hk_hello_decode(&h, c->in))
    hk_connection_free(c, false);
  else if (h.kind == HK_HELLO_JOIN || h.kind == HK_HELLO_CONTACT || h.kind == HK_HELLO_FAILED)
    hk_root_hello(l, c, &h);
  else
    hk_family_hello(l, c, &h);
  return true;
}

/* Reads the oldest connection once more, and drops it. */
static void listener_drop_oldest(hk_listener *l) {
  hk_connection *c = l->pending;
  if (!listener_read_hello(l, c)) hk_connection_free(c, false);
}

/* ---- the end of the listener ---- */

/* Under the lock: from here on this listener is not found. */
static void listener_begin_closing(hk_listener *l) {
  l->closing = true;
  hk_listener_set_current(NULL);
  hk_boot_close(l->spare);
  l->spare = -1;
  hk_boot_close(l->fd); /* at once, so that its port is free for the next listener */
}

/* Not under the lock. */
static void listener_finish_closing(hk_listener *l) {
  hk_service_free(l->service);
  hk_status_free(l->status);
  while (l->pending) {
    hk_connection *c = l->pending;
    hk_listener_remove_pending(l, c);
    hk_boot_close(c->fd);
    free(c);
  }
  free(l);
}

void hk_listener_put(hk_listener *l) {
  hk_listener_lock();
  bool last = --l->users == 0 && !l->closing;
  if (last) listener_begin_closing(l);
  hk_listener_unlock();
  if (last) listener_finish_closing(l);
}

/* The end of every callback: after hk_listener_put_inside the listener may have no user. */
static void listener_end_callback(hk_listener *l) {
  bool last = l->users == 0 && !l->closing;
  if (last) listener_begin_closing(l);
  hk_listener_unlock();
  if (last) listener_finish_closing(l);
}

/* ---- callbacks on the listener's thread ---- */

static void listener_on_connection(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_connection *c = arg;
  hk_listener *l = c->listener;
  hk_listener_lock();
  if (!l->closing) {
    if (c->root) /* a rank that waits for its answer sends nothing: this is the end of its connection */
      hk_root_connection_ended(c);
    else
      (void)listener_read_hello(l, c);
  }
  listener_end_callback(l);
}

static bool listener_admit(hk_listener *l, int fd, bool on_spare) {
  hk_connection *c = calloc(1, sizeof *c);
  hk_tcp_new(fd);
  if (!c) {
    hk_boot_close(fd);
    return false;
  }
  if (l->npending >= PENDING_MAX) listener_drop_oldest(l);
  *c = (hk_connection){.listener = l, .fd = fd, .since_ns = hk_now_ns(), .on_spare = on_spare};
  hk_listener_add_pending(l, c);
  bool added = hk_service_add(l->service, fd, EPOLLIN, listener_on_connection, c) == HK_OK;
  if (!added) hk_connection_free(c, false);
  hk_listener_tick(l);
  return added;
}

/* There is no descriptor for one more connection. */
static bool listener_make_room(hk_listener *l) {
  if (hk_more_files()) return true;
  /* A rank's hello follows its connection, but not at once. */
  if (!l->pending || (l->pending->on_spare && hk_ago_ns(hk_now_ns(), l->pending->since_ns) < SPARE_NS)) return false;
  listener_drop_oldest(l);
  return true;
}

/* Frees the spare descriptor for one more connection. */
static bool listener_use_spare(hk_listener *l) {
  if (l->spare < 0) return false;
  hk_boot_close(l->spare);
  l->spare = -1;
  return true;
}

/* Stops accepting until the next tick, so that the thread does not spin. */
static void listener_pause_accepting(hk_listener *l, int socket_fd, int why) {
  l->paused = true;
  hk_listener_note_refusal(l, why);
  hk_service_modify(l->service, socket_fd, 0);
  hk_listener_tick(l);
}

static void listener_on_accept(void *arg, int socket_fd, uint32_t events) {
  hk_listener *l = arg;
  bool on_spare = false;
  hk_listener_lock();
  for (int i = 0; i < ACCEPTS_PER_CALL && !l->closing; i++) {
    int fd = hk_boot_accept(socket_fd);
    if (fd >= 0) {
      if (!listener_admit(l, fd, on_spare))
        hk_listener_note_refusal(l, ENOMEM);
      else if (!on_spare)
        l->refusing_since_ns = 0;
      on_spare = false;
      continue;
    }
    int why = errno;
    if (why == ECONNABORTED || why == EINTR) continue;
    if ((why == EMFILE || why == ENFILE) && listener_make_room(l)) continue;
    if (why == EMFILE && listener_use_spare(l)) {
      on_spare = true;
      continue;
    }
    /* A root that has ended has shut down its own socket; the sweep closes it. */
    if (events & EPOLLHUP)
      hk_service_modify(l->service, socket_fd, EPOLLET);
    else if (why != EAGAIN)
      listener_pause_accepting(l, socket_fd, why);
    break;
  }
  if (on_spare) hk_listener_keep_spare(l); /* the peer that connected has gone */
  listener_end_callback(l);
}

static void listener_on_tick(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_listener *l = arg;
  hk_listener_lock();
  uint64_t now = hk_now_ns();
  if (!l->closing) {
    while (l->pending && hk_ago_ns(now, l->pending->since_ns) > HELLO_SECONDS * 1000000000ull) listener_drop_oldest(l);
    if (l->paused) {
      hk_service_modify(l->service, l->fd, EPOLLIN);
      hk_roots_accept_again(l);
      l->paused = false;
    } else if (hk_ago_ns(now, l->refused_last_ns) > QUIET_NS) {
      l->refusing_since_ns = 0; /* for a while no rank was refused; the refused ones may have left */
    }
    hk_listener_keep_spare(l);
    bool roots = hk_roots_expire(l, now), early = hk_families_expire(l, now);
    if (!l->pending && !roots && !early && !l->refusing_since_ns) hk_service_tick(l->service, &l->timer, 0, NULL, NULL);
  }
  listener_end_callback(l);
}

static void listener_on_sweep(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_listener *l = arg;
  hk_listener_lock();
  if (!l->closing) hk_roots_sweep(l);
  listener_end_callback(l);
}

/* ---- where to listen ---- */

/* The best addresses of this host. Link-local ones, which mean nothing to other hosts, only if there are no others. */
static hk_status listener_own_addresses(const hk_settings *settings, hk_contact *c, const hk_addr *toward) {
  hk_status rc = HK_OK;
  hk_iface list[IFACES];
  int n = IFACES;
  HK_OR_RETURN(hk_control_ifaces(settings, list, &n, toward));
  c->n = 0;
  for (int pass = 0; pass < 2 && !c->n; pass++)
    for (int i = 0; i < n && c->n < HK_BOOT_ADDRS; i++)
      if (pass || !hk_addr_is_link_local(&list[i].addr)) c->at[c->n++] = list[i].addr;
  if (!c->n) rc = HK_FAIL(HK_ERR_SYSTEM, "this host has no network address, not even loopback's");
  return rc;
}

/* Binds to the address if there is only one, else to all. */
static hk_status listener_listen_for(const hk_settings *settings, const hk_contact *c, hk_addr *at, int *fd) {
  bool v6 = false;
  for (uint32_t i = 0; i < c->n; i++) v6 |= c->at[i].sa.sa_family == AF_INET6;
  if (c->n == 1) {
    *at = c->at[0];
  } else {
    memset(at, 0, sizeof *at);
    at->sa.sa_family = v6 ? AF_INET6 : AF_INET;
    if (v6) at->v6.sin6_addr = in6addr_any; /* IPv4 too, unless the system keeps them apart */
  }
  hk_addr_set_port(at, 0);
  HK_OR_RETURN(hk_listen(settings, at, BACKLOG, fd));
  hk_tcp_unpaced(*fd); /* accepted sockets inherit it */
  return HK_OK;
}

hk_status hk_listener_contact(hk_listener *l, hk_contact *out, const hk_addr *toward) {
  hk_status rc = HK_OK;
  *out = l->contact;
  if (!toward) return HK_OK;
  hk_listener_lock();
  if (!l->recent.since_ns || hk_now_ns() - l->recent.since_ns > KEEP_CONTACT_NS ||
      !hk_addr_equal(&l->recent.toward, toward)) {
    l->recent.since_ns = 0;
    HK_TRY(listener_own_addresses(l->settings, &l->recent.contact, toward), out);
    for (uint32_t i = 0; i < l->recent.contact.n; i++)
      hk_addr_set_port(&l->recent.contact.at[i], hk_addr_port(&l->contact.at[0]));
    l->recent.contact.process = l->contact.process;
    l->recent.contact.pid = l->contact.pid;
    l->recent.toward = *toward;
    l->recent.since_ns = hk_now_ns();
  }
  *out = l->recent.contact;
out:
  hk_listener_unlock();
  return rc;
}

static hk_status listener_new_listener(const hk_settings *settings, hk_listener **out) {
  hk_status rc = HK_OK;
  hk_addr at;
  char text[HK_ADDR_TEXT];
  hk_listener *l = calloc(1, sizeof *l);
  if (!l) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the bootstrap's listener");
  l->settings = settings;
  l->fd = l->spare = -1;
  l->on_accept = listener_on_accept;
  l->on_tick = listener_on_tick;
  l->sweep = (hk_service_work){.fn = listener_on_sweep, .arg = l};
  l->contact.process = hk_process_nonce();
  l->contact.pid = (uint32_t)getpid();
  HK_TRY(hk_tls_prepare(settings), out);
  HK_TRY(listener_own_addresses(l->settings, &l->contact, NULL), out);
  HK_TRY(listener_listen_for(l->settings, &l->contact, &at, &l->fd), out);
  hk_fork_closes(l->fd);
  for (uint32_t i = 0; i < l->contact.n; i++) hk_addr_set_port(&l->contact.at[i], hk_addr_port(&at));
  HK_TRY(hk_service_new(&l->service, "hk-listener"), out);
  HK_TRY(hk_listener_add_socket(l, l->fd), out);
  hk_listener_keep_spare(l);
  if (l->settings->STATUS) l->status = hk_status_serve(l);
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "Bootstrap: listening on %s", hk_addr_format(&at, text));
out:
  if (rc != HK_OK) {
    hk_boot_close(l->fd);
    hk_service_free(l->service);
    free(l);
  } else {
    *out = l;
  }
  return rc;
}

hk_status hk_bootstrap_encrypt(const char *key) {
  hk_listener_lock();
  hk_status rc = hk_tls_set_key(key, hk_listener_current() != NULL);
  hk_listener_unlock();
  return rc;
}

/* In a forked child the listener's thread does not exist, and its descriptors are closed: the child makes its own
 * listener. */
static void listener_forget_listener(void) { hk_listener_set_current(NULL); }

hk_status hk_listener_get(hk_listener **out) {
  hk_status rc = HK_OK;
  hk_on_fork(listener_forget_listener);
  hk_listener_lock();
  *out = hk_listener_current();
  const hk_settings *settings = hk_settings_now();
  if (!*out) HK_TRY(listener_new_listener(settings, out), out);
  (*out)->settings = settings;
  hk_listener_set_current(*out);
  (*out)->users++;
out:
  hk_listener_unlock();
  return rc;
}
