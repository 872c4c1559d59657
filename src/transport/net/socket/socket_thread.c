/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that copy in addition to the lanes' thread (NCCL_SOCKET_NTHREADS). One core copies some 20 to 40 Gb/s into
 * the kernel; a fast network needs several. The lanes' thread decides everything: it cuts a message into parts, and
 * gives a thread the system calls of one socket's part. These calls never block. It takes the result at a later poll,
 * so only the job itself is shared. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/tcp.h"
#include "../../../base/thread.h"
#include "socket.h"

enum { AWAKE_POLLS = 2000 /* before a thread sleeps: about as long as waking it takes */ };

typedef struct copier {
  pthread_t id;
  pthread_mutex_t lock;
  pthread_cond_t posted;
  hk_socket_job *first, **last; /* under the lock */
  bool stop, asleep;            /* under the lock */
  _Atomic(unsigned) news;       /* jobs that were ever posted */
  const hk_wait_env *wait;
} copier;

struct hk_socket_threads {
  int n; /* that run */
  copier of[];
};

static void socket_thread_run_job(hk_socket_job *j) {
  j->moved = 0;
  j->err = 0;
  while (j->moved < j->bytes) {
    ssize_t got = j->sends ? hk_tcp_sendv(j->fd, j->iov, j->n)
                           : hk_tcp_recv(j->fd, (char *)j->iov[0].iov_base + j->moved, j->bytes - j->moved);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      j->err = got == 0 ? HK_JOB_CLOSED : errno;
      break;
    }
    j->moved += (size_t)got;
    if (j->sends) break; /* less than all: the kernel's buffer is full */
  }
  /* release: the result and the received bytes are visible before the state */
  atomic_store_explicit(&j->state, HK_JOB_DONE, memory_order_release);
}

static void *socket_thread_copier_main(void *arg) {
  copier *t = arg;
  unsigned seen = 0;
  for (;;) {
    /* relaxed: only a reason to take the lock */
    for (uint32_t i = 0; i < AWAKE_POLLS && t->wait->spins; i++, hk_cpu_relax())
      if (atomic_load_explicit(&t->news, memory_order_relaxed) != seen) break;
    pthread_mutex_lock(&t->lock);
    t->asleep = true;
    while (!t->first && !t->stop) pthread_cond_wait(&t->posted, &t->lock);
    t->asleep = false;
    hk_socket_job *j = t->first;
    if (j && !(t->first = j->next)) t->last = &t->first;
    pthread_mutex_unlock(&t->lock);
    if (!j) return NULL;
    seen++;
    socket_thread_run_job(j);
  }
}

hk_socket_threads *hk_socket_threads_begin(const hk_transport_env *env, int n) {
  hk_socket_threads *p = calloc(1, sizeof *p + (size_t)n * sizeof p->of[0]);
  if (!p) return NULL;
  for (int err; p->n < n; p->n++) {
    copier *t = &p->of[p->n];
    *t = (copier){.last = &t->first, .wait = env->wait};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->posted, NULL);
    if ((err = hk_thread_start(&t->id, 0, socket_thread_copier_main, t)) == 0) {
      pthread_setname_np(t->id, "hocket-socket");
      continue;
    }
    HK_INFO(HK_SUB_NET,
            "rank %d: %d of %d threads of NCCL_SOCKET_NTHREADS start (%s); the calling thread does the rest", env->rank,
            p->n + 1, n + 1, strerrorname_np(err));
    pthread_cond_destroy(&t->posted);
    pthread_mutex_destroy(&t->lock);
    break;
  }
  if (p->n) return p;
  free(p);
  return NULL;
}

void hk_socket_threads_end(hk_socket_threads *p) {
  for (int i = 0; p && i < p->n; i++) {
    copier *t = &p->of[i];
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->posted);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->id, NULL);
    pthread_cond_destroy(&t->posted);
    pthread_mutex_destroy(&t->lock);
  }
  free(p);
}

bool hk_socket_threads_have(const hk_socket_threads *p, unsigned s) { return p && s % ((unsigned)p->n + 1) != 0; }

void hk_socket_threads_post(hk_socket_threads *p, unsigned s, hk_socket_job *j) {
  copier *t = &p->of[s % ((unsigned)p->n + 1) - 1];
  j->next = NULL;
  /* relaxed: the lock makes the job visible */
  atomic_store_explicit(&j->state, HK_JOB_ASKED, memory_order_relaxed);
  pthread_mutex_lock(&t->lock);
  *t->last = j;
  t->last = &j->next;
  if (t->asleep) pthread_cond_signal(&t->posted);
  pthread_mutex_unlock(&t->lock);
  atomic_fetch_add_explicit(&t->news, 1, memory_order_relaxed); /* relaxed: as where it is read */
}

void hk_socket_settle(hk_socket_conn *c) {
  static const hk_wait_env always = {
      .spins = 1000}; /* no failure ends this wait: a job never blocks, and it still uses its memory */
  for (unsigned i = 0; c->jobs && i < 2u * c->nsockets; i++) {
    hk_waiter w;
    hk_wait_begin(&w, &always);
    /* acquire: pairs with the end of run_job; the user may free the memory after it */
    while (atomic_load_explicit(&c->jobs[i].state, memory_order_acquire) == HK_JOB_ASKED) (void)hk_wait_pause(&w);
  }
}
