/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy: the thread that moves the slots of a communicator's proxied links (proxy.h).
 *
 * A GPU cannot wake a thread, so the proxy polls. While slots move or a kernel may post one soon, it only yields. After
 * all launches have ended it sleeps until the next launch, for SLEEP_NS at most.  If a launch runs but no slot moves
 * for a while, it naps: compared with that wait, the delay is small.  A captured launch is replayed without a call of
 * the host, and so is other work of the thread (hk_gpu_proxy_work): with either it keeps polling. Its long naps take a
 * hundredth of a core. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "../base/thread.h"
#include "../kernels/cuda/work.h"
#include "proxied.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define ASK_NS (10 * MS) /* interval at which it asks the driver whether all launches have ended */
#define SLEEP_NS (50 * MS)
#define REPORT_NS (1000 * MS) /* the longest time that a report waits for the lock */

static const hk_backoff proxy_launched = {.yield_ns = 100 * MS, .nap_ns = 20 * US},
                        proxy_replayed = {.yield_ns = 100 * MS,
                                          .nap_ns = 20 * US,
                                          .long_after_ns = 1000 * MS,
                                          .long_nap_ns = 250 * US};

struct hk_gpu_proxy {
  hk_gpu_proxy_env env;
  pthread_t thread;
  bool running;
  _Atomic(bool) ended;  /* the thread's last store */
  pthread_mutex_t lock; /* protects the links and all calls of the transports */
  _Atomic(int) callers; /* threads that wait for the lock: the proxy yields it to them */
  /* The transport whose progress function the thread is in, with the lock held, and since when; NULL: none. */
  _Atomic(const char *) inside;
  _Atomic(uint64_t) inside_since_ns;
  _Atomic(bool) stop;
  _Atomic(uint64_t) launches;
  _Atomic(bool) asleep;
  _Atomic(bool) polls; /* there may be work without a call of the host */
  int wake;            /* eventfd */
  hk_gpu_proxied *links;
  const hk_gpu_proxy_work *_Atomic work; /* NULL: none */
  uint64_t asked_ns;
  bool idle; /* the thread sleeps until the next launch */
  bool paused;
  hk_wait_env wait;
};

/* ---- the thread ---- */

static hk_status proxy_call_progress(hk_gpu_proxy *p, hk_transport_state *s, bool *moved) {
  /* release: a thread that reads the name also reads its time */
  atomic_store_explicit(&p->inside_since_ns, hk_now_ns(), memory_order_relaxed);
  atomic_store_explicit(&p->inside, s->transport->name, memory_order_release);
  hk_status rc = s->transport->proxied->progress(s, moved);
  atomic_store_explicit(&p->inside, NULL, memory_order_relaxed); /* the lock orders the rest */
  return rc;
}

/* Calls the progress function of each transport once. */
static hk_status proxy_progress(hk_gpu_proxy *p, bool *moved) {
  for (hk_gpu_proxied *f = p->links; f; f = f->next) {
    bool served = false;
    for (hk_gpu_proxied *k = p->links; k != f && !served; k = k->next) served = k->link.owner == f->link.owner;
    if (!served) HK_OR_RETURN(proxy_call_progress(p, f->link.owner, moved));
  }
  return HK_OK;
}

/* Allocates memory for large slots although no call of this rank needs it: the peer's call does not match, and the
 * kernel finds that out when it gets the slot.  Not GPU memory: that allocation may wait for the kernel. */
static hk_status proxy_feed(hk_gpu_proxy *p, hk_gpu_proxied *f) {
  hk_memory m;
  HK_OR_RETURN(p->env.pinned(p->env.arg, true, hk_gpu_proxied_bytes(p->env.env), &m));
  return hk_gpu_proxied_grow(f, NULL, &m);
}

static hk_status proxy_pump(hk_gpu_proxy *p, bool *moved) {
  if (p->paused) return HK_OK;
  for (hk_gpu_proxied *f = p->links; f; f = f->next) HK_OR_RETURN(hk_gpu_proxied_before(&p->env, f, moved));
  HK_OR_RETURN(proxy_progress(p, moved));
  for (hk_gpu_proxied *f = p->links; f; f = f->next) {
    HK_OR_RETURN(hk_gpu_proxied_after(&p->env, f, moved));
    if (hk_gpu_proxied_needs_buffer(f)) HK_OR_RETURN(proxy_feed(p, f));
  }
  return HK_OK;
}

/* True if the transports have taken all slots; false also if another thread has the lock. Callers ask again. */
static bool proxy_all_quiet(hk_gpu_proxy *p) {
  bool quiet = true;
  if (pthread_mutex_trylock(&p->lock)) return false;
  for (hk_gpu_proxied *f = p->links; f && quiet; f = f->next) quiet = hk_gpu_proxied_quiet(f);
  pthread_mutex_unlock(&p->lock);
  return quiet;
}

/* The watchdog, about every 100 ms without a slot.  Nothing can wait while the thread sleeps until a launch. */
static hk_status proxy_check(void *arg, uint64_t waited_ns) {
  hk_gpu_proxy *p = arg;
  const hk_gpu_proxy_work *work = atomic_load(&p->work);
  (void)waited_ns;
  if (work) HK_OR_RETURN(work->check(work->arg));
  return p->env.check && !p->idle ? p->env.check(p->env.arg) : HK_OK;
}

/* *yes: no work before the next launch. */
static hk_status proxy_find_idle(hk_gpu_proxy *p, uint64_t now, bool *yes) {
  *yes = false;
  if (atomic_load(&p->polls) || now - p->asked_ns < ASK_NS) return HK_OK;
  p->asked_ns = now;
  HK_OR_RETURN(p->env.over(p->env.arg, yes)); /* fails if a kernel has failed */
  *yes = *yes && proxy_all_quiet(p);
  return HK_OK;
}

/* Sleeps until a launch, `ns` at most. */
static hk_status proxy_nap(hk_gpu_proxy *p, hk_waiter *w, uint64_t launches, uint64_t ns) {
  hk_status rc = HK_OK;
  uint64_t count;
  /* Sequentially consistent, as in hk_gpu_proxy_wake: either this thread sees its launch, or it sees that the thread
   * sleeps. */
  atomic_store(&p->asleep, true);
  if (atomic_load(&p->launches) == launches && !atomic_load(&p->stop)) rc = hk_wait_nap(w, p->wake, ns);
  atomic_store(&p->asleep, false);
  if (read(p->wake, &count, sizeof count) == (ssize_t)sizeof count) hk_wait_progress(w);
  return rc;
}

static hk_status proxy_rest(hk_gpu_proxy *p, hk_waiter *w, uint64_t launches) {
  const uint64_t waited = hk_wait_idle_ns(w);
  if (waited < ASK_NS || atomic_load(&p->stop)) return hk_wait_pause(w);
  HK_OR_RETURN(proxy_find_idle(p, w->begin_ns + waited, &p->idle));
  const uint64_t ns = hk_backoff_nap(atomic_load(&p->polls) ? &proxy_replayed : &proxy_launched, waited);
  if (!p->idle) return ns ? proxy_nap(p, w, launches, ns) : hk_wait_pause(w);
  hk_status rc = proxy_nap(p, w, launches, SLEEP_NS); /* then polls the network once: a peer may end a connection */
  p->idle = false;
  return rc;
}

/* True if nothing is left to do before the thread ends. */
static bool proxy_is_over(hk_gpu_proxy *p) {
  const hk_gpu_proxy_work *work = atomic_load(&p->work);
  return atomic_load(&p->stop) && proxy_all_quiet(p) && (!work || work->quiet(work->arg));
}

static void *proxy_main(void *arg) {
  hk_gpu_proxy *p = arg;
  hk_waiter w;
  hk_status rc = HK_OK;
  hk_thread_polls("hocket-proxy");
  hk_wait_begin(&w, &p->wait);
  while (rc == HK_OK && !proxy_is_over(p)) {
    bool moved = false;
    const hk_gpu_proxy_work *work = atomic_load(&p->work);
    uint64_t launches = atomic_load(&p->launches);
    if (!atomic_load(&p->callers)) {
      pthread_mutex_lock(&p->lock);
      rc = proxy_pump(p, &moved);
      pthread_mutex_unlock(&p->lock);
    }
    if (rc == HK_OK && work) rc = work->step(work->arg, &moved);
    if (rc != HK_OK) break;
    if (moved)
      hk_wait_progress(&w);
    else
      rc = proxy_rest(p, &w, launches);
  }
  if (rc != HK_OK) p->env.failed(p->env.arg, rc);
  atomic_store(&p->ended, true);
  return NULL;
}

/* ---- beginning and end ---- */

static hk_status proxy_start_thread(hk_gpu_proxy *p) {
  int error = hk_thread_start(&p->thread, 0, proxy_main, p);
  p->running = error == 0;
  return error ? HK_FAIL(HK_ERR_SYSTEM, "cannot start rank %d's proxy: %s; check the limit of threads (ulimit -u)",
                         p->env.env->rank, strerror(error))
               : HK_OK;
}

hk_status hk_gpu_proxy_new(const hk_gpu_proxy_env *e, hk_gpu_proxy **out) {
  hk_gpu_proxy *p = calloc(1, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for rank %d's proxy", e->env->rank);
  p->env = *e;
  p->wait = (hk_wait_env){
      .failure = e->wait->failure, .spins = e->wait->spins, .check = proxy_check, .arg = p, .awake = true};
  p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (p->wake < 0) {
    free(p);
    return HK_FAIL_ERRNO("cannot make the wake-up of rank %d's proxy; raise the limit of open files (ulimit -n)",
                         e->env->rank);
  }
  pthread_mutex_init(&p->lock, NULL);
  *out = p;
  return HK_OK;
}

hk_status hk_gpu_proxy_serve(hk_gpu_proxy *p, const hk_gpu_proxy_work *work) {
  atomic_store(&p->polls, true);
  atomic_store(&p->work, work);
  hk_gpu_proxy_wake(p, false);
  return p->running ? HK_OK : proxy_start_thread(p);
}

static void proxy_enter(hk_gpu_proxy *p) {
  atomic_fetch_add(&p->callers, 1);
  pthread_mutex_lock(&p->lock);
}
static void proxy_leave(hk_gpu_proxy *p) {
  pthread_mutex_unlock(&p->lock);
  atomic_fetch_sub(&p->callers, 1);
}

/* Takes the lock for a report; false after REPORT_NS. A network plugin may keep the thread in a call, with the lock
 * held. */
static bool proxy_enter_for_report(hk_gpu_proxy *p) {
  const hk_wait_env env = {.spins = 100};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  atomic_fetch_add(&p->callers, 1);
  while (pthread_mutex_trylock(&p->lock)) {
    (void)hk_wait_pause(&w);
    if (w.waited_ns < REPORT_NS) continue;
    atomic_fetch_sub(&p->callers, 1);
    return false;
  }
  return true;
}

/* Releases the lock for calls in which the driver may wait for kernels: those may wait for slots, and the proxy needs
 * the lock to move them. */
hk_status hk_gpu_proxy_add(hk_gpu_proxy *p, hk_transport_state *via, const hk_link_key *key, hk_gpu_link *out) {
  hk_gpu_proxied *f;
  HK_OR_RETURN(hk_gpu_proxied_new(&p->env, via, key, &f));
  proxy_enter(p);
  hk_status rc = hk_gpu_proxied_prepare(f, via, key);
  proxy_leave(p);
  if (rc == HK_OK) rc = hk_gpu_proxied_reserve(f);
  proxy_enter(p);
  if (rc == HK_OK) rc = hk_gpu_proxied_open(f, via, key);
  proxy_leave(p);
  if (rc == HK_OK) rc = hk_gpu_proxied_bind(&p->env, f, out);
  proxy_enter(p);
  if (rc == HK_OK) {
    f->next = p->links;
    p->links = f;
  } else {
    hk_gpu_proxied_free(&p->env, f);
  }
  proxy_leave(p);
  if (rc == HK_OK && !p->running) rc = proxy_start_thread(p);
  hk_gpu_proxy_wake(p, false); /* a connection may have to be answered */
  return rc;
}

static bool proxy_has_grown(hk_gpu_proxy *p, const hk_gpu_proxied *f) {
  proxy_enter(p);
  bool yes = f->data != NULL;
  proxy_leave(p);
  return yes;
}

/* Allocates without the lock, as above. If the proxy has grown the link in the meantime, the memory is not used. */
hk_status hk_gpu_proxy_grow(hk_gpu_proxy *p, const hk_link_key *key, hk_gpu_link *out) {
  hk_status rc = HK_OK;
  hk_memory m;
  char *on_gpu;
  hk_gpu_proxied *f = p->links;
  while (f && !(f->link.peer == key->peer && f->link.kind == key->kind && f->channel == key->channel)) f = f->next;
  if (!f) return HK_FAIL(HK_ERR_INTERNAL, "no link to rank %u on channel %u can grow", key->peer, key->channel);
  if (!proxy_has_grown(p, f)) {
    HK_TRY(f->link.owner->transport->payload->reserve(&f->link, &on_gpu), out);
    if (!on_gpu) HK_TRY(p->env.pinned(p->env.arg, true, hk_gpu_proxied_bytes(p->env.env), &m), out);
    proxy_enter(p);
    if (!f->data) rc = hk_gpu_proxied_grow(f, on_gpu, &m);
    proxy_leave(p);
  }
  if (rc == HK_OK) out->data = f->on_gpu ? f->data : f->payload.base;
out:
  return rc;
}

void hk_gpu_proxy_wake(hk_gpu_proxy *p, bool captured) {
  uint64_t one = 1;
  if (!p) return;
  if (captured) atomic_store(&p->polls, true);
  atomic_fetch_add(&p->launches, 1);
  if (!atomic_load(&p->asleep)) return;
  /* It can fail only if the counter is full, and then the thread is awake already. */
  if (write(p->wake, &one, sizeof one) < 0) return;
}

hk_status hk_gpu_proxy_settle(hk_gpu_proxy *p) {
  hk_waiter w;
  if (!p) return HK_OK;
  hk_gpu_proxy_wake(p, false); /* peers may wait for slots that it has not given back yet */
  hk_wait_begin(&w, p->env.wait);
  while (!proxy_all_quiet(p)) HK_OR_RETURN(hk_wait_pause(&w));
  return HK_OK;
}

static void proxy_set_paused(hk_gpu_proxy *p, bool paused) {
  if (!p) return;
  proxy_enter(p);
  p->paused = paused;
  proxy_leave(p);
  if (!paused) hk_gpu_proxy_wake(p, false);
}
void hk_gpu_proxy_pause(hk_gpu_proxy *p) { proxy_set_paused(p, true); }
void hk_gpu_proxy_go_on(hk_gpu_proxy *p) { proxy_set_paused(p, false); }

hk_status hk_gpu_proxy_rest(hk_gpu_proxy *p, bool rests) {
  for (hk_gpu_proxied *f = hk_gpu_proxy_links(p); f; f = f->next) {
    const hk_transport_payload *t = f->link.owner->transport->payload;
    bool it = rests;
    if (!t || !t->rest || (!rests && !f->rests)) continue;
    if (!rests) hk_gpu_proxied_clear_lines(f);
    HK_OR_RETURN(t->rest(&f->link, &it));
    f->rests = rests && it;
  }
  return HK_OK;
}

void hk_gpu_proxy_payloads(hk_gpu_proxy *p, bool resting, void (*visit)(void *arg, hk_memory *m), void *arg) {
  for (hk_gpu_proxied *f = hk_gpu_proxy_links(p); f; f = f->next) {
    hk_memory *m;
    for (int i = 0; !(resting && !f->rests) && (m = hk_gpu_proxied_payload(f, i)); i++) visit(arg, m);
  }
}

bool hk_gpu_proxy_rests(hk_gpu_proxy *p) {
  bool all = true;
  for (const hk_gpu_proxied *f = hk_gpu_proxy_links(p); f; f = f->next) all = all && f->rests;
  return all;
}

hk_gpu_proxied *hk_gpu_proxy_links(hk_gpu_proxy *p) { return p ? p->links : NULL; }

bool hk_gpu_proxy_has_left(hk_gpu_proxy *p) {
  if (!p || !p->running || atomic_load(&p->ended)) return true;
  hk_gpu_proxy_wake(p, false);
  return false;
}

void hk_gpu_proxy_end(hk_gpu_proxy *p, bool lost) {
  atomic_store(&p->stop, true);
  hk_gpu_proxy_wake(p, false);
  if (p->running) pthread_join(p->thread, NULL);
  if (lost) return;
  while (p->links) {
    hk_gpu_proxied *f = p->links;
    p->links = f->next;
    hk_gpu_proxied_free(&p->env, f);
  }
  close(p->wake);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

/* ---- state ---- */

int hk_gpu_proxy_look(hk_gpu_proxy *p, hk_gpu_proxy_link *out, int capacity) {
  int n = 0;
  if (!p || !proxy_enter_for_report(p)) return 0;
  for (const hk_gpu_proxied *f = p->links; f; f = f->next, n++)
    if (n < capacity) hk_gpu_proxied_look(f, &out[n]);
  proxy_leave(p);
  return n;
}

void hk_gpu_proxy_describe(const hk_gpu_proxy_link *l, char *text, size_t bytes) {
  static const char *const states[] = {"connecting", "ready", "failed"};
  static const char *const waits[2][5] = {
      {"waits for nothing", "waits for the connection", "waits for the kernel to give slots back",
       "waits for the peer's next slot", "has a slot for the kernel"},
      {"waits for nothing", "waits for the connection", "waits for the kernel's next slot",
       "waits for the peer to give slots back", "has a slot for the network"}};
  snprintf(text, bytes, "%s rank %d, channel %u: %s, %llu slots done, head %llu, %u credits, word %u:%08x, note %u, %s",
           l->sends ? "sends to" : "receives from", l->peer, l->channel, states[l->state], (unsigned long long)l->done,
           (unsigned long long)l->head, l->credits, (unsigned)(l->word >> 32), (unsigned)l->word, l->note,
           waits[l->sends][l->waits]);
}

static void proxy_describe_call(hk_gpu_proxy *p, char *text, size_t bytes) {
  /* acquire: the time belongs to this name's call or to a later one */
  const char *inside = atomic_load_explicit(&p->inside, memory_order_acquire);
  const uint64_t since = atomic_load_explicit(&p->inside_since_ns, memory_order_relaxed);
  if (!inside) return;
  snprintf(text, bytes, "; its proxy has been in a call of transport %s for %llu s, which does not return", inside,
           (unsigned long long)(hk_ago_ns(hk_now_ns(), since) / (1000 * MS)));
}

/* Under the lock: hk_gpu_proxy_report's `peers`, each once. */
static void proxy_list_awaited(const hk_gpu_proxy *p, char *text, size_t bytes) {
  size_t used = 0;
  for (hk_gpu_proxied *f = p->links; f && used < bytes; f = f->next) {
    bool seen = hk_link_waits(&f->link) != HK_LINK_WAITS;
    for (hk_gpu_proxied *k = p->links; k != f && !seen; k = k->next)
      seen = k->link.peer == f->link.peer && hk_link_waits(&k->link) == HK_LINK_WAITS;
    if (!seen) used += (size_t)snprintf(text + used, bytes - used, "%s%u", used ? ", " : "", f->link.peer);
  }
}

/* Under the lock: its `links`. */
static void proxy_list_waiting(const hk_gpu_proxy *p, char *text, size_t bytes) {
  size_t used = 0;
  for (const hk_gpu_proxied *f = p->links; f && used < bytes; f = f->next) {
    hk_gpu_proxy_link l;
    char one[200];
    hk_gpu_proxied_look(f, &l);
    if (l.waits != HK_PROXY_WAITS_PEER && l.waits != HK_PROXY_WAITS_CONNECTION) continue;
    hk_gpu_proxy_describe(&l, one, sizeof one);
    used += (size_t)snprintf(text + used, bytes - used, "; it %s", one);
  }
}

void hk_gpu_proxy_report(hk_gpu_proxy *p, char *peers, size_t peers_bytes, char *links, size_t links_bytes) {
  *peers = *links = 0;
  if (!p) return;
  if (!proxy_enter_for_report(p)) return proxy_describe_call(p, links, links_bytes);
  proxy_list_awaited(p, peers, peers_bytes);
  proxy_list_waiting(p, links, links_bytes);
  proxy_leave(p);
}
