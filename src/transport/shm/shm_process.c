/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees the records that the ranks of a process share, one for each communicator, with the socket that
 * answers other processes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "../../base/array.h"
#include "../../base/fork.h"
#include "../../base/service.h"
#include "../peer.h"
#include "shm_socket.h"

/* The records of this process. The table is global because ranks that are threads of a process share nothing else when
 * they attach, and because a record must outlive the rank that leaves first. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(table_lock);
static hk_shm_process *table;

static hk_shm_process *shm_process_find(uint64_t comm_id, uint64_t process) {
  hk_shm_process *p = table;
  while (p && (p->comm_id != comm_id || p->process != process)) p = p->next;
  return p;
}

/* The socket exists before its name is published, so every question finds it. If it cannot be made, the fact carries
 * the reason; that is no error. */
static void shm_process_open_socket(hk_shm_process *p, const hk_shm_state *s) {
  p->socket = -1;
  if (s->fact.flags & HK_SHM_FACT_SHM_OFF)
    snprintf(p->problem, sizeof p->problem, "NCCL_SHM_DISABLE is 1");
  else if ((p->socket = hk_shm_listen(p->name, p->secret)) < 0)
    snprintf(p->problem, sizeof p->problem, "it cannot make a unix socket: %s", strerror(errno));
}

/* Under the table's mutex. */
static void shm_process_close_socket(hk_shm_process *p) {
  if (p->server) hk_service_remove(p->server->base.env->service, p->socket);
  p->server = NULL;
  if (p->socket >= 0) close(p->socket);
  p->socket = -1;
}

/* Lets the first member serve the socket, unless a member does already or there is no socket. */
static hk_status shm_process_choose_server(hk_shm_process *p) {
  if (p->server || p->socket < 0 || !p->members) return HK_OK;
  hk_status rc = hk_service_add(p->members->base.env->service, p->socket, EPOLLIN, hk_shm_serve, p);
  if (rc == HK_OK) p->server = p->members;
  return rc;
}

static hk_shm_process *shm_process_make(const hk_shm_state *s) {
  const hk_transport_env *env = s->base.env;
  hk_shm_process *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->comm_id = env->comm_id;
  p->process = env->peers[env->rank].process;
  p->host.memfd = -1;
  memcpy(p->secret, env->secret, sizeof p->secret);
  shm_process_open_socket(p, s);
  pthread_mutex_init(&p->lock, NULL);
  pthread_mutex_init(&p->imports_lock, NULL);
  hk_cond_init(&p->settled);
  p->next = table;
  table = p;
  return p;
}

static void shm_process_dispose(hk_shm_process *p) {
  HK_LIST_REMOVE(table, p, next);
  shm_process_close_socket(p);
  hk_shm_host_dispose(&p->host);
  hk_shm_arena_unmap(&p->arena);
  hk_shm_regions_dispose(p);
  free(p->index);
  pthread_mutex_destroy(&p->imports_lock);
  pthread_cond_destroy(&p->settled);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

/* Under the table's mutex. */
static void shm_process_leave(hk_shm_state *s) {
  hk_shm_process *p = s->process;
  pthread_mutex_lock(&p->lock); /* after this, no question for the rank is being answered */
  HK_LIST_REMOVE(p->members, s, next_member);
  pthread_mutex_unlock(&p->lock);
  if (p->server == s) {
    hk_service_remove(s->base.env->service, p->socket);
    p->server = NULL;
    /* A failure is logged; references to this process's memory cannot be resolved after it. */
    (void)shm_process_choose_server(p);
  }
  if (!p->members) shm_process_dispose(p);
}

hk_status hk_shm_process_enter(hk_shm_state *s) {
  const hk_transport_env *env = s->base.env;
  hk_status rc = HK_OK;
  pthread_mutex_lock(&table_lock);
  hk_shm_process *p = shm_process_find(env->comm_id, env->peers[env->rank].process);
  if (!p) p = shm_process_make(s);
  if (!p) HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM, "out of memory for the shm transport of rank %d", env->rank), out);
  s->process = p;
  pthread_mutex_lock(&p->lock);
  s->next_member = p->members;
  p->members = s;
  pthread_mutex_unlock(&p->lock);
  memcpy(s->fact.name, p->name, sizeof s->fact.name);
  memcpy(s->fact.problem, p->problem, sizeof s->fact.problem);
  rc = shm_process_choose_server(p);
  if (rc != HK_OK) shm_process_leave(s);
out:
  pthread_mutex_unlock(&table_lock);
  return rc;
}

void hk_shm_process_measured(const hk_shm_process *p, uint32_t *from, uint32_t *time) {
  *time = 0;
  pthread_mutex_lock(&table_lock);
  for (hk_shm_process *q = table; q && !*time; q = q->next) {
    if (q == p) continue;
    pthread_mutex_lock(&q->lock);
    if (q->stage == HK_SHM_SETTLED && q->arena.base) {
      const hk_shm_cma_times *k = hk_shm_arena_cma(&q->arena);
      *time = atomic_load_explicit(&k->time, memory_order_acquire); /* pairs with the release in shm_measure_put */
      *from = atomic_load_explicit(&k->from, memory_order_relaxed); /* ordered by `time` */
    }
    pthread_mutex_unlock(&q->lock);
  }
  pthread_mutex_unlock(&table_lock);
}

void hk_shm_process_leave(hk_shm_state *s) {
  pthread_mutex_lock(&table_lock);
  shm_process_leave(s);
  pthread_mutex_unlock(&table_lock);
}

void hk_shm_process_close_socket(hk_shm_process *p) {
  pthread_mutex_lock(&table_lock);
  shm_process_close_socket(p);
  pthread_mutex_unlock(&table_lock);
}
