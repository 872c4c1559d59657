/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The agreement of a host's processes on an arena.
 *
 * The ranks of a host are a group; its lowest rank's process leads. In each process the lowest rank acts for all. It
 * asks the leader's socket for the arena's file (the leader asks itself), maps it, reports that, and waits for the
 * verdict: ON when every process has reported success, OFF as soon as one reports a failure. So all processes get the
 * same verdict. A process that cannot reach the leader's socket (another network namespace) reports that over a TCP
 * connection.
 *
 * After OFF each process keeps the reason and makes a group of its own ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/log.h"
#include "../../base/tcp.h"
#include "../../device/host.h" /* hk_host_memfd */
#include "../peer.h"
#include "shm_socket.h"

/* The tag of the TCP connection by which a process reports that it cannot reach the leader's socket. */
enum { FAILURE_TAG = 0x73686d };

/* Returns true if the rank is the lowest of its process. */
static bool shm_join_acts_for_process(const hk_transport_env *env, int rank) {
  for (int r = 0; r < rank; r++)
    if (env->peers[r].process == env->peers[rank].process) return false;
  return true;
}

/* Numbers the ranks of the group: those of this process, or of this host. */
static void shm_join_number(hk_shm_process *p, const hk_transport_env *env, bool one_process) {
  const hk_peer *me = &env->peers[env->rank];
  p->ngroup = 0;
  p->one_process = true;
  for (int r = 0; r < env->nranks; r++) {
    const hk_peer *it = &env->peers[r];
    bool in = one_process ? it->process == me->process : it->host == me->host;
    p->index[r] = in ? (int32_t)p->ngroup++ : -1;
    if (in && it->process != me->process) p->one_process = false;
  }
}

/* A kernel that does not overcommit (vm.overcommit_memory=2) refuses the private mapping, but grants a sparse file. */
static bool shm_join_map_private(hk_shm_arena *a) {
  if (hk_shm_arena_map(a, -1)) return true;
  int fd = hk_host_memfd("hocket-arena", a->bytes);
  if (fd < 0) return false;
  bool mapped = hk_shm_arena_map(a, fd);
  close(fd);
  return mapped;
}

/* The ranks of this process alone: they need no agreement, and private memory is enough. */
static hk_status shm_join_settle_alone(hk_shm_process *p, const hk_transport_env *env, const hk_shm_fact *mine) {
  enum { BOTH = HK_SHM_FACT_SHM_OFF | HK_SHM_FACT_P2P_OFF };
  shm_join_number(p, env, true);
  if ((mine->flags & BOTH) == BOTH) {
    snprintf(p->reason, sizeof p->reason, "NCCL_SHM_DISABLE and NCCL_P2P_DISABLE are both 1");
    return HK_OK;
  }
  if (p->ngroup == 1) return HK_OK;
  hk_shm_arena_layout(&p->arena, &(hk_shm_shape){p->ngroup, mine->nslots, mine->slot_bytes});
  if (shm_join_map_private(&p->arena)) return HK_OK;
  snprintf(p->reason, sizeof p->reason, "cannot map %zu bytes of address space for %u ranks: %s", p->arena.bytes,
           p->ngroup, strerror(errno));
  return HK_OK;
}

/* Returns true, with the reason, if the facts rule out an arena of the whole host. Every rank of the host gets the same
 * reason. */
static bool shm_join_facts_forbid(const hk_shm_process *p, const hk_transport_env *env, const hk_facts *facts,
                                  char *reason) {
  const hk_shm_fact *mine = hk_shm_fact_of(facts, env->rank);
  for (int r = 0; r < env->nranks; r++) {
    const hk_shm_fact *it = hk_shm_fact_of(facts, r);
    if (p->index[r] < 0) continue;
    if (!it->name[0]) {
      snprintf(reason, HK_SHM_REASON, "rank %d shares none between processes: %s", r, it->problem);
      return true;
    }
    if (it->nslots == mine->nslots && it->slot_bytes == mine->slot_bytes) continue;
    snprintf(reason, HK_SHM_REASON, "HOCKET_SLOTS or HOCKET_SLOT_BYTES differ between its ranks");
    return true;
  }
  return false;
}

/* ---- asking the leader ---- */

typedef struct question {
  const hk_transport_env *env;
  hk_shm_process *process;
  int socket, leader;
  bool leading;
} question;

/* Leader: takes reports over TCP of processes that cannot reach its socket. */
static void shm_join_take_failure_reports(void *arg) {
  const question *q = arg;
  const hk_transport_env *env = q->env;
  for (int r = 0; env->take && r < env->nranks; r++) {
    if (q->process->index[r] < 0 || r == env->rank || !shm_join_acts_for_process(env, r)) continue;
    int fd = env->take(env->arg, r, FAILURE_TAG);
    if (fd < 0) continue;
    char reason[HK_SHM_REASON + 1] = "it cannot reach the others' sockets";
    ssize_t n = hk_tcp_recv(fd, reason, sizeof reason - 1);
    if (n > 0) reason[n] = 0;
    hk_tcp_close(fd);
    pthread_mutex_lock(&q->process->lock);
    hk_shm_refuse_all(q->process, reason);
    pthread_mutex_unlock(&q->process->lock);
  }
}

static hk_status shm_join_report_unreachable(const question *q, const char *reason) {
  const hk_transport_env *env = q->env;
  int fd;
  if (!env->dial && !q->leading) return HK_OK;
  if (q->leading) { /* no rank takes the leader's own report; its socket still answers the others */
    pthread_mutex_lock(&q->process->lock);
    hk_shm_refuse_all(q->process, reason);
    pthread_mutex_unlock(&q->process->lock);
    return HK_OK;
  }
  hk_status rc = env->dial(env->arg, q->leader, NULL, FAILURE_TAG, &fd);
  if (rc != HK_OK) return rc;
  /* Best effort: the connection alone is the report. */
  if (hk_tcp_send(fd, reason, strlen(reason)) < 0) HK_INFO(HK_SUB_SHM, "cannot send the reason: %s", reason);
  hk_tcp_close(fd);
  return HK_OK;
}

static void shm_join_fill(const question *q, hk_shm_message *m, hk_shm_verb verb) {
  *m = (hk_shm_message){.verb = verb, .shape = q->process->arena.shape};
  memcpy(m->secret, q->env->secret, sizeof m->secret);
}

/* Maps the arena's file and reports the result to the leader. */
static hk_status shm_join_map_and_report(const question *q, int fd) {
  hk_shm_message m;
  shm_join_fill(q, &m, HK_SHM_MAPPED);
  if (!hk_shm_arena_map(&q->process->arena, fd)) {
    m.verb = HK_SHM_FAILED;
    snprintf(m.reason, sizeof m.reason, "rank %d cannot map %zu bytes of shared memory: %s", q->env->rank,
             q->process->arena.bytes, strerror(errno));
  }
  close(fd);
  return hk_shm_send_wait(q->socket, q->env->wait, &m, -1);
}

/* The kernel could not pass the arena's file. Without this report the leader would wait for this process. */
static hk_status shm_join_report_no_descriptor(const question *q) {
  hk_shm_message m;
  shm_join_fill(q, &m, HK_SHM_FAILED);
  snprintf(m.reason, sizeof m.reason, "rank %d has no descriptor left for shared memory (ulimit -n)", q->env->rank);
  return hk_shm_send_wait(q->socket, q->env->wait, &m, -1);
}

/* Asks for the arena and waits for the verdict. `reason` stays empty if it is ON. */
static hk_status shm_join_agree(question *q, uint32_t processes, char *reason) {
  hk_shm_message m;
  int fd;
  shm_join_fill(q, &m, HK_SHM_ASK_ARENA);
  m.processes = processes;
  HK_OR_RETURN(hk_shm_send_wait(q->socket, q->env->wait, &m, -1));
  for (;;) {
    HK_OR_RETURN(hk_shm_receive_wait(q->socket, q->env, q->leader, q->leading ? shm_join_take_failure_reports : NULL, q,
                                     &m, &fd));
    if (m.verb == HK_SHM_ON) break;
    if (m.verb == HK_SHM_GRANT) {
      HK_OR_RETURN(fd >= 0 ? shm_join_map_and_report(q, fd) : shm_join_report_no_descriptor(q));
      continue;
    }
    if (fd >= 0) close(fd);
    snprintf(reason, HK_SHM_REASON, "%s", m.reason[0] ? m.reason : "no reason was given");
    break;
  }
  return HK_OK;
}

static hk_status shm_join_ask_leader(hk_shm_state *s, const hk_facts *facts, char *reason) {
  const hk_transport_env *env = s->base.env;
  hk_status rc = HK_OK;
  uint32_t processes = 0;
  question q = {.env = env, .process = s->process, .leader = -1};
  for (int r = 0; r < env->nranks; r++) {
    if (s->process->index[r] < 0) continue;
    if (q.leader < 0) q.leader = r;
    processes += shm_join_acts_for_process(env, r);
  }
  q.leading = q.leader == env->rank;
  q.socket = hk_shm_dial(hk_shm_fact_of(facts, q.leader)->name);
  if (q.socket < 0) {
    snprintf(reason, HK_SHM_REASON,
             "rank %d cannot reach rank %d's unix socket (%s): is it in another network namespace?", env->rank,
             q.leader, strerror(errno));
    return shm_join_report_unreachable(&q, reason);
  }
  hk_shm_arena_layout(&s->process->arena, &(hk_shm_shape){s->process->ngroup, env->nslots, env->slot_bytes});
  rc = shm_join_agree(&q, processes, reason);
  if (rc != HK_OK || reason[0]) hk_shm_arena_unmap(&s->process->arena);
  close(q.socket);
  return rc;
}

/* Keeps the names of the sockets that answer questions for regions. */
static hk_status shm_join_remember_names(hk_shm_process *p, const hk_transport_env *env, const hk_facts *facts) {
  p->names = malloc((size_t)env->nranks * sizeof *p->names);
  if (!p->names) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the shm transport of rank %d", env->rank);
  for (int r = 0; r < env->nranks; r++) memcpy(p->names[r], hk_shm_fact_of(facts, r)->name, HK_SHM_NAME);
  return HK_OK;
}

static hk_status shm_join_settle(hk_shm_state *s, const hk_facts *facts) {
  const hk_transport_env *env = s->base.env;
  hk_shm_process *p = s->process;
  p->index = malloc((size_t)env->nranks * sizeof *p->index);
  if (!p->index) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the shm transport of rank %d", env->rank);
  shm_join_number(p, env, false);
  if (p->one_process || shm_join_facts_forbid(p, env, facts, p->reason)) {
    hk_shm_process_close_socket(p);
  } else {
    HK_OR_RETURN(shm_join_ask_leader(s, facts, p->reason));
    if (!p->reason[0]) return shm_join_remember_names(p, env, facts);
    HK_INFO(HK_SUB_INIT | HK_SUB_SHM, "no shared memory between the processes of this host: %s", p->reason);
  }
  return shm_join_settle_alone(p, env, hk_shm_fact_of(facts, env->rank));
}

/* The other ranks of the process sleep until its lowest rank is done. */
static hk_status shm_join_await_lowest(hk_shm_process *p, const hk_transport_env *env) {
  hk_waiter w;
  hk_status rc = HK_OK;
  hk_wait_begin(&w, env->wait);
  pthread_mutex_lock(&p->lock);
  while (rc == HK_OK && p->stage != HK_SHM_SETTLED) rc = hk_wait_cond(&w, &p->settled, &p->lock);
  if (rc == HK_OK) rc = p->rc;
  pthread_mutex_unlock(&p->lock);
  return rc;
}

hk_status hk_shm_join(hk_transport_state *state, const hk_facts *facts) {
  hk_shm_state *s = (hk_shm_state *)state;
  hk_shm_process *p = s->process;
  if (!shm_join_acts_for_process(state->env, state->env->rank)) return shm_join_await_lowest(p, state->env);
  hk_status rc = shm_join_settle(s, facts);
  pthread_mutex_lock(&p->lock);
  p->rc = rc;
  p->stage = HK_SHM_SETTLED;
  pthread_cond_broadcast(&p->settled);
  pthread_mutex_unlock(&p->lock);
  return rc;
}
