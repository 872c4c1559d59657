/* SPDX-License-Identifier: Apache-2.0 */
/* The process's listener and its lobby.  A stranger gets no byte of an answer, and costs a descriptor and 250 bytes for at
 * most HELLO_SECONDS; when there are more strangers than LOBBY_MAX, the oldest goes.  A rank's hello follows its connection at
 * once, but this thread may be late: nobody is sent away before what he has said was read. */
#include "listener.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/iface.h" /* loopback and link-local addresses */
#include "../base/log.h"
#include "../base/wait.h"
#include "process.h"

enum { KEEP_CONTACT_NS = 1000000000, QUIET_NS = 1000000000, SQUEEZED_NS = 200000000 };
enum {
  LOBBY_MAX = 256,
  HELLO_SECONDS = 5,
  DEAF_SECONDS = 5,
  TICK_MS = 250,
  ACCEPTS_PER_CALL = 64,
  BACKLOG = 4096,
  IFACES = 32
};

static struct {
  pthread_mutex_t lock;
  hk_door *door;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

void hk_door_lock(void) { pthread_mutex_lock(&process.lock); }
void hk_door_unlock(void) { pthread_mutex_unlock(&process.lock); }
pthread_mutex_t *hk_door_mutex(void) { return &process.lock; }
hk_door *hk_door_here(void) { return process.door; }

/* In a forked child the door's thread does not exist and its descriptors are closed: the child makes its own. */
static void forget_door(void) {
  process.door = NULL;
  pthread_mutex_unlock(&process.lock);
}

/* ---- the lobby ---- */

static void lobby_add(hk_door *d, hk_guest *g) {
  g->prev = d->lobby_last;
  if (d->lobby_last)
    d->lobby_last->next = g;
  else
    d->lobby = g;
  d->lobby_last = g;
  d->in_lobby++;
}

static void lobby_remove(hk_door *d, hk_guest *g) {
  if (g->prev)
    g->prev->next = g->next;
  else
    d->lobby = g->next;
  if (g->next)
    g->next->prev = g->prev;
  else
    d->lobby_last = g->prev;
  g->next = g->prev = NULL;
  d->in_lobby--;
}

/* Where the kernel has none left, the next end of a connection tries again. */
static void keep_spare(hk_door *d) {
  if (d->spare >= 0 || d->closing) return;
  d->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (d->spare >= 0) hk_fork_closes(d->spare);
}

void hk_guest_free(hk_guest *g, bool keep_fd) {
  if (!g->root) lobby_remove(g->door, g);
  hk_service_remove(g->door->service, g->fd);
  if (keep_fd)
    hk_fork_forget(g->fd);
  else
    hk_boot_close(g->fd);
  if (g->squeezed) keep_spare(g->door);
  free(g);
}

void hk_guest_seated(hk_guest *g, struct hk_root *root, int at) {
  lobby_remove(g->door, g);
  g->root = root;
  g->seat = at;
}

bool hk_guest_send(hk_guest *g, const void *bytes, size_t n) {
  return send(g->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* Reads what the guest has said; false where he stays in the lobby, as he has not said all of it. */
static bool hear(hk_door *d, hk_guest *g) {
  ssize_t n = recv(g->fd, g->in + g->have, sizeof g->in - g->have, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n > 0) g->have += (uint32_t)n;
  if (n <= 0 || !hk_hello_possible(g->in, g->have)) {
    hk_guest_free(g, false);
    return true;
  }
  if (g->have < sizeof g->in) return false;
  hk_hello h;
  if (!hk_hello_decode(&h, g->in))
    hk_guest_free(g, false);
  else if (h.kind == HK_HELLO_JOIN || h.kind == HK_HELLO_CONTACT)
    hk_root_hello(d, g, &h);
  else
    hk_family_hello(d, g, &h);
  return true;
}

/* The guest who came first is heard once more, and goes. */
static void dismiss_oldest(hk_door *d) {
  hk_guest *g = d->lobby;
  if (!hear(d, g)) hk_guest_free(g, false);
}

/* ---- the end of the door ---- */

/* Under the lock: from here on nobody finds this door. */
static void begin_closing(hk_door *d) {
  d->closing = true;
  process.door = NULL;
  hk_boot_close(d->spare);
  d->spare = -1;
  hk_boot_close(d->listener); /* at once, so that its port is free for the next door */
}

/* Not under the lock. */
static void finish_closing(hk_door *d) {
  hk_service_free(d->service);
  while (d->lobby) {
    hk_guest *g = d->lobby;
    lobby_remove(d, g);
    hk_boot_close(g->fd);
    free(g);
  }
  free(d);
}

void hk_door_leave(hk_door *d) {
  hk_door_lock();
  bool last = --d->users == 0 && !d->closing;
  if (last) begin_closing(d);
  hk_door_unlock();
  if (last) finish_closing(d);
}

void hk_door_leave_inside(hk_door *d) { d->users--; }

/* The end of every callback: nobody may be left after hk_door_leave_inside. */
static void end_callback(hk_door *d) {
  bool last = d->users == 0 && !d->closing;
  if (last) begin_closing(d);
  hk_door_unlock();
  if (last) finish_closing(d);
}

/* ---- callbacks on the door's thread ---- */

static void on_guest(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_guest *g = arg;
  hk_door *d = g->door;
  hk_door_lock();
  if (!d->closing) {
    if (g->root)
      hk_root_guest_gone(g); /* a rank that waits for its answer has nothing to say: this is its end */
    else
      (void)hear(d, g);
  }
  end_callback(d);
}

static void welcome(hk_door *d, int fd, bool squeezed) {
  hk_guest *g = calloc(1, sizeof *g);
  if (!g) {
    close(fd);
    return;
  }
  if (d->in_lobby >= LOBBY_MAX) dismiss_oldest(d);
  *g = (hk_guest){.door = d, .fd = fd, .since_ns = hk_now_ns(), .squeezed = squeezed};
  lobby_add(d, g);
  hk_fork_closes(fd);
  if (hk_service_add(d->service, fd, EPOLLIN, on_guest, g) != HK_OK) hk_guest_free(g, false);
  hk_door_tick(d);
}

/* No descriptor for one more connection. */
static bool make_room(hk_door *d) {
  if (hk_more_files()) return true;
  /* A rank's hello follows its connection, though not at once. */
  if (!d->lobby || (d->lobby->squeezed && hk_ago_ns(hk_now_ns(), d->lobby->since_ns) < SQUEEZED_NS)) return false;
  dismiss_oldest(d);
  return true;
}

static bool shut_for_long(const hk_door *d) {
  return d->deaf_since_ns && hk_ago_ns(hk_now_ns(), d->deaf_since_ns) > DEAF_SECONDS * 1000000000ull;
}

static void note_deaf(hk_door *d, int why) {
  d->deaf_why = why;
  d->deaf_last_ns = hk_now_ns();
  if (!d->deaf_since_ns) d->deaf_since_ns = d->deaf_last_ns;
  hk_door_tick(d);
}

bool hk_door_turned_away(hk_door *d) {
  note_deaf(d, EMFILE);
  return shut_for_long(d);
}

/* Gives the spare descriptor up for one more connection. */
static bool use_spare(hk_door *d) {
  if (d->spare < 0) return false;
  hk_boot_close(d->spare);
  d->spare = -1;
  return true;
}

/* Stops listening for a moment rather than spin. */
static void turn_deaf(hk_door *d, int listener, int why) {
  d->deaf = true;
  note_deaf(d, why);
  hk_service_modify(d->service, listener, 0);
  hk_door_tick(d);
}

hk_status hk_door_hears(hk_door *d) {
  hk_door_lock();
  bool shut = shut_for_long(d);
  int why = d->deaf_why;
  hk_door_unlock();
  if (!shut) return HK_OK;
  return HK_FAIL(HK_ERR_SYSTEM, "other ranks' connections to this process cannot be accepted: %s%s", strerror(why),
                 why == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
}

static void on_caller(void *arg, int listener, uint32_t events) {
  hk_door *d = arg;
  bool squeezed = false;
  hk_door_lock();
  for (int i = 0; i < ACCEPTS_PER_CALL && !d->closing; i++) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (!squeezed) d->deaf_since_ns = 0;
      welcome(d, fd, squeezed);
      squeezed = false;
      continue;
    }
    int why = errno;
    if (why == ECONNABORTED || why == EINTR) continue;
    if ((why == EMFILE || why == ENFILE) && make_room(d)) continue;
    if (why == EMFILE && use_spare(d)) {
      squeezed = true;
      continue;
    }
    /* A root that has ended has shut its own listener down; the sweep will close it. */
    if (events & EPOLLHUP)
      hk_service_modify(d->service, listener, EPOLLET);
    else if (why != EAGAIN)
      turn_deaf(d, listener, why);
    break;
  }
  if (squeezed) keep_spare(d); /* who called is gone already */
  end_callback(d);
}

static void on_tick(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_door *d = arg;
  hk_door_lock();
  uint64_t now = hk_now_ns();
  if (!d->closing) {
    while (d->lobby && hk_ago_ns(now, d->lobby->since_ns) > HELLO_SECONDS * 1000000000ull) dismiss_oldest(d);
    if (d->deaf) {
      hk_service_modify(d->service, d->listener, EPOLLIN);
      hk_roots_hear_again(d);
      d->deaf = false;
    } else if (hk_ago_ns(now, d->deaf_last_ns) > QUIET_NS) {
      d->deaf_since_ns =
          0; /* listened for a while, and turned no rank away: those that could not come in may have left */
    }
    keep_spare(d);
    bool roots = hk_roots_expire(d, now), parcels = hk_families_expire(d, now);
    d->ticking = d->lobby || roots || parcels || d->deaf_since_ns;
    if (!d->ticking) hk_service_tick(d->service, 0, NULL, NULL);
  }
  end_callback(d);
}

static void on_sweep(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_door *d = arg;
  hk_door_lock();
  if (!d->closing) hk_roots_sweep(d);
  end_callback(d);
}

void hk_door_tick(hk_door *d) {
  if (!d->ticking && hk_service_tick(d->service, TICK_MS, on_tick, d) == HK_OK) d->ticking = true;
}

hk_status hk_door_listen(hk_door *d, int listener) {
  return hk_service_add(d->service, listener, EPOLLIN, on_caller, d);
}

/* ---- where to listen ---- */

/* The best addresses of this host; link-local ones, which mean nothing to other hosts, only where there are no others. */
static hk_status own_addresses(hk_contact *c, const hk_addr *toward) {
  hk_status rc;
  hk_iface list[IFACES];
  int n = IFACES;
  HK_TRY(hk_ifaces(list, &n, toward), out);
  c->n = 0;
  for (int pass = 0; pass < 2 && !c->n; pass++)
    for (int i = 0; i < n && c->n < HK_BOOT_ADDRS; i++)
      if (pass || !hk_addr_is_link_local(&list[i].addr)) c->at[c->n++] = list[i].addr;
  if (!c->n) rc = HK_FAIL(HK_ERR_SYSTEM, "this host has no network address, not even loopback's");
out:
  return rc;
}

/* Binds to the address where there is only one to be reached at, else to all of them. */
static hk_status listen_for(const hk_contact *c, hk_addr *at, int *fd) {
  bool v6 = false;
  for (uint32_t i = 0; i < c->n; i++) v6 |= c->at[i].sa.sa_family == AF_INET6;
  if (c->n == 1) {
    *at = c->at[0];
  } else {
    memset(at, 0, sizeof *at);
    at->sa.sa_family = v6 ? AF_INET6 : AF_INET;
    if (v6) at->v6.sin6_addr = in6addr_any; /* IPv4 too, unless the system is set to keep them apart */
  }
  hk_addr_set_port(at, 0);
  return hk_listen(at, BACKLOG, fd);
}

hk_status hk_door_contact(hk_door *d, hk_contact *out, const hk_addr *toward) {
  hk_status rc = HK_OK;
  *out = d->contact;
  if (!toward) return HK_OK;
  hk_door_lock();
  if (!d->lately.since_ns || hk_now_ns() - d->lately.since_ns > KEEP_CONTACT_NS ||
      !hk_addr_equal(&d->lately.toward, toward)) {
    d->lately.since_ns = 0;
    HK_TRY(own_addresses(&d->lately.contact, toward), out);
    for (uint32_t i = 0; i < d->lately.contact.n; i++)
      hk_addr_set_port(&d->lately.contact.at[i], hk_addr_port(&d->contact.at[0]));
    d->lately.contact.process = d->contact.process;
    d->lately.contact.pid = d->contact.pid;
    d->lately.toward = *toward;
    d->lately.since_ns = hk_now_ns();
  }
  *out = d->lately.contact;
out:
  hk_door_unlock();
  return rc;
}

static hk_status new_door(hk_door **out) {
  hk_status rc = HK_OK;
  hk_addr at;
  char text[HK_ADDR_TEXT];
  hk_door *d = calloc(1, sizeof *d);
  if (!d) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the bootstrap's listener");
  d->listener = d->spare = -1;
  d->sweep = (hk_service_work){.fn = on_sweep, .arg = d};
  d->contact.process = hk_process_nonce();
  d->contact.pid = (uint32_t)getpid();
  HK_TRY(own_addresses(&d->contact, NULL), out);
  HK_TRY(listen_for(&d->contact, &at, &d->listener), out);
  hk_fork_closes(d->listener);
  for (uint32_t i = 0; i < d->contact.n; i++) hk_addr_set_port(&d->contact.at[i], hk_addr_port(&at));
  HK_TRY(hk_service_new(&d->service, "hk-door"), out);
  HK_TRY(hk_door_listen(d, d->listener), out);
  keep_spare(d);
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "Bootstrap: listening on %s", hk_addr_format(&at, text));
out:
  if (rc != HK_OK) {
    hk_boot_close(d->listener);
    hk_service_free(d->service);
    free(d);
  } else {
    *out = d;
  }
  return rc;
}

hk_status hk_door_enter(hk_door **out) {
  static const hk_fork_hooks hooks = {hk_door_lock, hk_door_unlock, forget_door};
  hk_status rc = HK_OK;
  hk_on_fork(&hooks);
  hk_door_lock();
  if (!process.door) HK_TRY(new_door(&process.door), out);
  process.door->users++;
  *out = process.door;
out:
  hk_door_unlock();
  return rc;
}
