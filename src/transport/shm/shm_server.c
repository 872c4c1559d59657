/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a process: it answers the other processes of its host, on a service thread, and in the leading process
 * it decides whether the arena is used. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/log.h"
#include "../../device/host.h"
#include "shm_socket.h"

static void shm_server_answer(hk_shm_process *p, const hk_shm_address *to, hk_shm_verb verb, const char *reason,
                              int fd) {
  hk_shm_message m = {.verb = verb};
  memcpy(m.secret, p->secret, sizeof m.secret);
  if (reason) snprintf(m.reason, sizeof m.reason, "%s", reason);
  /* A process gets two answers at most, so its queue has room. If it has ended, its death is detected elsewhere. */
  if (!hk_shm_send(p->socket, to, &m, fd)) HK_INFO(HK_SUB_SHM, "cannot answer a local process: %s", strerror(errno));
}

static void shm_server_decide(hk_shm_process *p, bool on, const char *reason) {
  hk_shm_host *h = &p->host;
  h->verdict = on ? HK_SHM_DECIDED_ON : HK_SHM_DECIDED_OFF;
  for (uint32_t i = 0; i < h->naskers; i++)
    shm_server_answer(p, &h->askers[i], on ? HK_SHM_ON : HK_SHM_OFF, reason, -1);
  hk_shm_host_dispose(h); /* processes that have mapped the arena no longer need its file */
}

void hk_shm_refuse_all(hk_shm_process *p, const char *reason) {
  if (p->host.verdict != HK_SHM_UNDECIDED) return;
  snprintf(p->host.reason, sizeof p->host.reason, "%s", reason);
  shm_server_decide(p, false, p->host.reason);
}

void hk_shm_host_dispose(hk_shm_host *h) {
  if (h->askers && h->memfd >= 0) close(h->memfd);
  free(h->askers);
  h->askers = NULL;
  h->naskers = 0;
  h->memfd = -1;
}

/* Makes the arena's file when the first process asks. Returns false with the reason if that fails. */
static bool shm_server_prepare(hk_shm_host *h, const hk_shm_message *m, char *reason) {
  hk_shm_arena a;
  if (h->askers) {
    if (h->processes == m->processes && !memcmp(&h->shape, &m->shape, sizeof h->shape)) return true;
    snprintf(reason, HK_SHM_REASON, "processes of the host disagree about the arena's size");
    return false;
  }
  hk_shm_arena_layout(&a, &m->shape);
  h->processes = m->processes;
  h->shape = m->shape;
  h->askers = calloc(m->processes, sizeof *h->askers);
  h->memfd = h->askers ? hk_host_memfd("hocket-arena", a.bytes) : -1;
  if (h->memfd >= 0) return true;
  snprintf(reason, HK_SHM_REASON, "cannot make %zu bytes of shared memory (memfd_create: %s)", a.bytes,
           strerror(errno));
  return false;
}

static void shm_server_on_ask_arena(hk_shm_process *p, const hk_shm_message *m, const hk_shm_address *from) {
  hk_shm_host *h = &p->host;
  char reason[HK_SHM_REASON] = "one process asked twice";
  if (h->verdict == HK_SHM_UNDECIDED && (!shm_server_prepare(h, m, reason) || h->naskers == h->processes))
    hk_shm_refuse_all(p, reason);
  if (h->verdict != HK_SHM_UNDECIDED) {
    shm_server_answer(p, from, HK_SHM_REFUSE, h->reason, -1);
    return;
  }
  h->askers[h->naskers++] = *from;
  shm_server_answer(p, from, HK_SHM_GRANT, NULL, h->memfd);
}

/* Sends a duplicate of the region's file to the process that asks. */
static void shm_server_on_ask_region(hk_shm_process *p, const hk_shm_message *m, const hk_shm_address *from) {
  size_t bytes = 0;
  hk_shm_message reply = {.verb = HK_SHM_GONE, .region = m->region};
  int fd = hk_host_export(m->region, &bytes);
  if (fd >= 0) {
    reply.verb = HK_SHM_REGION;
    reply.bytes = bytes;
  }
  for (uint32_t i = 0; i < m->nregions && i < HK_SHM_FREED_MAX; i++) {
    char *base;
    if (!hk_host_locate(m->regions[i], &base, &bytes)) reply.regions[reply.nregions++] = m->regions[i];
  }
  memcpy(reply.secret, p->secret, sizeof reply.secret);
  if (!hk_shm_send(p->socket, from, &reply, fd))
    HK_INFO(HK_SUB_SHM, "cannot answer a local process: %s", strerror(errno));
  if (fd >= 0) close(fd);
}

static void shm_server_on_ask_rank(hk_shm_process *p, const hk_shm_message *m, const hk_shm_address *from, int fd) {
  hk_shm_message reply = {.verb = HK_SHM_RANK};
  hk_shm_state *s = p->members;
  while (s && s->base.env->rank != (int)m->processes) s = s->next_member;
  memcpy(reply.secret, p->secret, sizeof reply.secret);
  memcpy(reply.payload, m->payload, sizeof reply.payload);
  snprintf(reply.reason, sizeof reply.reason, "the rank has left");
  if (!s || !s->answer || !s->answer(s->answer_arg, reply.payload, fd, reply.reason)) reply.verb = HK_SHM_REFUSE;
  if (!hk_shm_send(p->socket, from, &reply, -1) &&
      errno != ECONNREFUSED) /* refused: a notice, which waits for no answer */
    HK_INFO(HK_SUB_SHM, "cannot answer a local process: %s", strerror(errno));
}

static void shm_server_on_message(hk_shm_process *p, const hk_shm_message *m, const hk_shm_address *from, int fd) {
  switch ((hk_shm_verb)m->verb) {
    case HK_SHM_ASK_ARENA: shm_server_on_ask_arena(p, m, from); break;
    case HK_SHM_MAPPED:
      if (p->host.verdict == HK_SHM_UNDECIDED && ++p->host.mapped == p->host.processes)
        shm_server_decide(p, true, NULL);
      break;
    case HK_SHM_FAILED: hk_shm_refuse_all(p, m->reason); break;
    case HK_SHM_ASK_REGION: shm_server_on_ask_region(p, m, from); break;
    case HK_SHM_ASK_RANK: shm_server_on_ask_rank(p, m, from, fd); break;
    case HK_SHM_OTHER_USER:
      hk_shm_refuse_all(p, "its processes run as different users, or in different user namespaces");
      shm_server_answer(p, from, HK_SHM_REFUSE, p->host.reason, -1);
      break;
    default: break; /* a ping, or an invalid message */
  }
}

void hk_shm_serve(void *arg, int socket, uint32_t events) {
  enum { AT_ONCE = 32 }; /* messages in one call, so that other users of this service get their turn */
  hk_shm_process *p = arg;
  (void)events;
  for (int i = 0; i < AT_ONCE; i++) {
    hk_shm_message m;
    hk_shm_address from;
    int fd;
    if (!hk_shm_receive(socket, p->secret, &m, &from, &fd)) {
      if (errno == EPROTO) continue;
      break;
    }
    pthread_mutex_lock(&p->lock);
    shm_server_on_message(p, &m, &from, fd);
    pthread_mutex_unlock(&p->lock);
    if (fd >= 0) close(fd);
  }
}
