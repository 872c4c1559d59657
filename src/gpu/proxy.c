/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy: a thread of the communicator that moves the slots of its GPU's links over the network (net.h).
 *
 * A GPU cannot wake a thread, so that the proxy has to look.  While slots move it spins; without one for YIELDING_NS it takes
 * naps of NAP_NS, which is how late the first slot may be then, and behind LONG_NS naps of LONG_NAP_NS.  When all launches
 * are over it sleeps until the next one; but a captured launch is replayed without a word, so that a communicator with such
 * ones goes on taking long naps: some thousandths of a core. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/thread.h"
#include "net.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define YIELDING_NS (100 * US)
#define NAP_NS (50 * US)
#define LONG_NS (1000 * MS)
#define LONG_NAP_NS (1 * MS)
#define ASK_NS (10 * MS) /* between two questions to the driver whether all is over */
#define SLEEP_NS (50 * MS)

typedef struct hk_gpu_proxy {
  ncclComm_t comm;
  pthread_t thread;
  bool running;
  pthread_mutex_t lock; /* of the links, and of all that the transports do */
  _Atomic(int) guests;  /* threads that want the lock: the proxy lets them go first */
  _Atomic(bool) stop;
  _Atomic(uint64_t) launches;
  _Atomic(bool) asleep, replays;
  int wake; /* eventfd */
  hk_gpu_far *links;
  uint64_t asked_ns;
  hk_wait_env env;
} hk_gpu_proxy;

/* ---- the thread ---- */

static hk_status pump(hk_gpu_proxy *p, bool *moved) {
  hk_status rc = HK_OK;
  const hk_wiring *w = &p->comm->wiring;
  bool served[HK_TRANSPORT_COUNT] = {false};
  for (hk_gpu_far *f = p->links; f; f = f->next) HK_TRY(hk_gpu_far_before(f, moved), out);
  for (hk_gpu_far *f = p->links; f; f = f->next) {
    int via = w->via[f->link.peer];
    if (served[via]) continue;
    served[via] = true;
    HK_TRY(f->link.owner->transport->progress(f->link.owner, moved), out);
  }
  for (hk_gpu_far *f = p->links; f; f = f->next) HK_TRY(hk_gpu_far_after(f, moved), out);
out:
  return rc;
}

static bool all_quiet(hk_gpu_proxy *p) {
  bool quiet = true;
  pthread_mutex_lock(&p->lock);
  for (hk_gpu_far *f = p->links; f && quiet; f = f->next) quiet = hk_gpu_far_quiet(f);
  pthread_mutex_unlock(&p->lock);
  return quiet;
}

/* Is there nothing to do before the next launch? */
static hk_status idle(hk_gpu_proxy *p, uint64_t now, bool *yes) {
  hk_status rc = HK_OK;
  *yes = false;
  if (atomic_load(&p->replays) || now - p->asked_ns < ASK_NS) return HK_OK;
  p->asked_ns = now;
  HK_TRY(hk_gpu_over(hk_gpu_of(p->comm), yes), out);
  *yes = *yes && all_quiet(p);
out:
  return hk_comm_failed(p->comm, rc); /* a kernel that failed */
}

/* Until a launch, or for `ns`. */
static hk_status nap(hk_gpu_proxy *p, hk_waiter *w, uint64_t launches, uint64_t ns) {
  hk_status rc = HK_OK;
  uint64_t count;
  /* Sequentially consistent, as in hk_gpu_proxy_wake: either we see its launch, or it sees that we are asleep. */
  atomic_store(&p->asleep, true);
  if (atomic_load(&p->launches) == launches && !atomic_load(&p->stop)) rc = hk_wait_nap(w, p->wake, ns);
  atomic_store(&p->asleep, false);
  if (read(p->wake, &count, sizeof count) == (ssize_t)sizeof count) hk_wait_progress(w);
  return rc;
}

static hk_status rest(hk_gpu_proxy *p, hk_waiter *w, uint64_t launches) {
  hk_status rc = HK_OK;
  uint64_t now = w->begin_ns ? hk_now_ns() : 0, waited = now - w->begin_ns;
  bool over = false;
  if (!w->begin_ns || waited < YIELDING_NS || atomic_load(&p->stop)) return hk_wait_pause(w);
  if (waited >= ASK_NS) HK_TRY(idle(p, now, &over), out);
  if (!over) return nap(p, w, launches, waited < LONG_NS ? NAP_NS : LONG_NAP_NS);
  while (rc == HK_OK && atomic_load(&p->launches) == launches) rc = nap(p, w, launches, SLEEP_NS);
out:
  return rc;
}

static void *proxy_main(void *arg) {
  hk_gpu_proxy *p = arg;
  hk_waiter w;
  hk_status rc = HK_OK;
  prctl(PR_SET_NAME, "hocket-proxy");
  (void)prctl(PR_SET_TIMERSLACK, 1000UL); /* naps end in time, and not when it suits the kernel, 50 us later */
  hk_wait_begin(&w, &p->env);
  while (rc == HK_OK && !(atomic_load(&p->stop) && all_quiet(p))) {
    bool moved = false;
    uint64_t launches = atomic_load(&p->launches);
    if (!atomic_load(&p->guests)) {
      pthread_mutex_lock(&p->lock);
      rc = pump(p, &moved);
      pthread_mutex_unlock(&p->lock);
      if (rc != HK_OK) hk_comm_failed(p->comm, rc); /* frees the kernels, and tells the other ranks */
    }
    if (rc != HK_OK) break;
    if (moved)
      hk_wait_progress(&w);
    else
      rc = rest(p, &w, launches);
  }
  return NULL;
}

/* ---- beginning and end ---- */

static hk_status start_thread(hk_gpu_proxy *p) {
  int error = hk_thread_start(&p->thread, 0, proxy_main, p);
  p->running = error == 0;
  return error ? HK_FAIL(HK_ERR_SYSTEM, "cannot start rank %d's proxy: %s; check the limit of threads (ulimit -u)",
                         p->comm->rank, strerror(error))
               : HK_OK;
}

static hk_status proxy_new(ncclComm_t c, hk_gpu_proxy **out) {
  hk_gpu_proxy *p = calloc(1, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for rank %d's proxy", c->rank);
  p->comm = c;
  p->env = (hk_wait_env){.failure = &c->health.failure, .spins = c->wait.spins};
  p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (p->wake < 0) {
    free(p);
    return HK_FAIL_ERRNO("cannot make the wake-up of rank %d's proxy; raise the limit of open files (ulimit -n)",
                         c->rank);
  }
  pthread_mutex_init(&p->lock, NULL);
  *out = p;
  return HK_OK;
}

static void enter(hk_gpu_proxy *p) {
  atomic_fetch_add(&p->guests, 1);
  pthread_mutex_lock(&p->lock);
}
static void leave(hk_gpu_proxy *p) {
  pthread_mutex_unlock(&p->lock);
  atomic_fetch_sub(&p->guests, 1);
}

/* What networks may try before the first link. */
static hk_status lend_page(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  HK_TRY(g->device->ops->alloc_open(g->device, 2 * HK_DEVICE_PAGE, 0, &g->page), out);
  c->wiring.env.gpu_page = (void *)(((uintptr_t)g->page.base + HK_DEVICE_PAGE - 1) & ~(uintptr_t)(HK_DEVICE_PAGE - 1));
  c->wiring.env.gpu_queue = g->queue;
out:
  return rc;
}

hk_status hk_gpu_proxy_open(ncclComm_t c, const hk_link_key *key, hk_gpu_link *out) {
  hk_status rc = HK_OK;
  hk_gpu_far *f;
  hk_gpu_proxy *p = hk_gpu_of(c)->proxy;
  if (!hk_gpu_of(c)->page.base) HK_TRY(lend_page(c), out);
  if (!p) HK_TRY(proxy_new(c, &p), out);
  hk_gpu_of(c)->proxy = p;
  enter(p);
  rc = hk_gpu_far_new(c, key, out, &f);
  if (rc == HK_OK) {
    f->next = p->links;
    p->links = f;
  }
  leave(p);
  if (rc == HK_OK && !p->running) rc = start_thread(p);
  hk_gpu_proxy_wake(hk_gpu_of(c), false); /* a connection may have to be answered */
out:
  return rc;
}

void hk_gpu_proxy_waits_for(hk_gpu *g, char *text, size_t bytes) {
  hk_gpu_proxy *p = g->proxy;
  size_t used = 0;
  text[0] = 0;
  if (!p) return;
  enter(p);
  for (hk_gpu_far *f = p->links; f && used < bytes; f = f->next) {
    bool seen = f->link.waiting != HK_LINK_WAITS;
    for (hk_gpu_far *k = p->links; k != f && !seen; k = k->next)
      seen = k->link.peer == f->link.peer && k->link.waiting == HK_LINK_WAITS;
    if (!seen) used += (size_t)snprintf(text + used, bytes - used, "%s%u", used ? ", " : "", f->link.peer);
  }
  leave(p);
}

void hk_gpu_proxy_wake(hk_gpu *g, bool captured) {
  uint64_t one = 1;
  hk_gpu_proxy *p = g->proxy;
  if (!p) return;
  if (captured) atomic_store(&p->replays, true);
  atomic_fetch_add(&p->launches, 1);
  if (!atomic_load(&p->asleep)) return;
  /* It can only fail where the counter is full, and then the thread is awake anyway. */
  if (write(p->wake, &one, sizeof one) < 0) return;
}

void hk_gpu_proxy_stop(ncclComm_t c) {
  hk_gpu_proxy *p = hk_gpu_of(c) ? hk_gpu_of(c)->proxy : NULL;
  if (!p) return;
  atomic_store(&p->stop, true);
  hk_gpu_proxy_wake(hk_gpu_of(c), false);
  if (p->running) pthread_join(p->thread, NULL);
  hk_gpu_of(c)->proxy = NULL;
  if (hk_gpu_of(c)->lost) return; /* kernels may still use the links' memory */
  while (p->links) {
    hk_gpu_far *f = p->links;
    p->links = f->next;
    hk_gpu_far_free(c, f);
  }
  close(p->wake);
  pthread_mutex_destroy(&p->lock);
  free(p);
}
