/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the listener that families and roots use: its lock, its admission queue, and its record of refused
 * ranks. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include "../base/fork.h"
#include "../base/tcp.h"
#include "../base/wait.h"
#include "listener.h"
#include "process.h"

enum { REFUSING_SECONDS = 5, TICK_MS = 250 };

static struct {
  pthread_mutex_t lock;
  hk_listener *listener;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(process.lock);

void hk_listener_lock(void) { pthread_mutex_lock(&process.lock); }
void hk_listener_unlock(void) { pthread_mutex_unlock(&process.lock); }
pthread_mutex_t *hk_listener_mutex(void) { return &process.lock; }
hk_listener *hk_listener_current(void) { return process.listener; }
void hk_listener_set_current(hk_listener *l) { process.listener = l; }

void hk_listener_add_pending(hk_listener *l, hk_connection *c) {
  c->prev = l->pending_last;
  if (l->pending_last)
    l->pending_last->next = c;
  else
    l->pending = c;
  l->pending_last = c;
  l->npending++;
}

void hk_listener_remove_pending(hk_listener *l, hk_connection *c) {
  if (c->prev)
    c->prev->next = c->next;
  else
    l->pending = c->next;
  if (c->next)
    c->next->prev = c->prev;
  else
    l->pending_last = c->prev;
  l->npending--;
}

/* If the kernel has no descriptor left, the end of the next connection tries again. */
void hk_listener_keep_spare(hk_listener *l) {
  if (l->spare >= 0 || l->closing) return;
  l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (l->spare >= 0) hk_fork_closes(l->spare);
}

void hk_connection_free(hk_connection *c, bool keep_fd) {
  if (!c->root) hk_listener_remove_pending(c->listener, c);
  hk_service_remove(c->listener->service, c->fd);
  if (!keep_fd) hk_boot_close(c->fd);
  if (c->on_spare) hk_listener_keep_spare(c->listener);
  free(c);
}

void hk_connection_joined(hk_connection *c, struct hk_root *root, int at) {
  hk_listener_remove_pending(c->listener, c);
  c->root = root;
  c->entry = at;
}

bool hk_connection_send(hk_connection *c, const void *bytes, size_t n) {
  return hk_tcp_send(c->fd, bytes, n) == (ssize_t)n;
}

void hk_listener_put_inside(hk_listener *l) { l->users--; }

void hk_listener_tick(hk_listener *l) { hk_service_tick(l->service, &l->timer, TICK_MS, l->on_tick, l); }

hk_status hk_listener_add_socket(hk_listener *l, int socket_fd) {
  return hk_service_add(l->service, socket_fd, EPOLLIN, l->on_accept, l);
}

/* ---- ranks that are refused ---- */

static bool admission_refuses_for_long(const hk_listener *l) {
  return l->refusing_since_ns && hk_ago_ns(hk_now_ns(), l->refusing_since_ns) > REFUSING_SECONDS * 1000000000ull;
}

void hk_listener_note_refusal(hk_listener *l, int why) {
  l->refused_errno = why;
  l->refused_last_ns = hk_now_ns();
  if (!l->refusing_since_ns) l->refusing_since_ns = l->refused_last_ns;
  hk_listener_tick(l);
}

bool hk_listener_refused(hk_listener *l, int why) {
  hk_listener_note_refusal(l, why);
  return admission_refuses_for_long(l);
}

hk_status hk_listener_check(hk_listener *l) {
  hk_listener_lock();
  bool shut = admission_refuses_for_long(l);
  int why = l->refused_errno;
  hk_listener_unlock();
  if (!shut) return HK_OK;
  return HK_FAIL(HK_ERR_SYSTEM, "other ranks' connections to this process cannot be accepted: %s%s", strerror(why),
                 why == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
}
