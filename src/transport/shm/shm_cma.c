/* SPDX-License-Identifier: Apache-2.0 */
/**
 * References to private memory of another process of the host, read with process_vm_readv(2) (cross memory attach): one
 * copy by the kernel instead of two through a slot, and no cache line that moves between two cores.
 *
 * Whether a rank may read the others' memory depends on user ids, capabilities, seccomp and the ptrace scope, so it is
 * tried: each rank reads a random word of every other process, which published the word's address and value in its
 * facts (a pid of another pid namespace names the wrong process or none). A rank that can read all of them sets its
 * byte in the arena. Senders read these bytes and decide for each slot.
 *
 * One rank measures for the whole host whether that is faster than slots (shm_measure.c), unless HOCKET_CMA decides.
 */
#include <errno.h>
#include <sched.h> /* sched_getcpu */
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h> /* process_vm_readv */
#include "../../base/log.h"
#include "../../base/param.h"
#include "../peer.h"
#include "shm_state.h"

/* Under Yama a process declares its tracers: allows all that the kernel's other rules allow. */
static void cma_allow_tracers(const hk_shm_state *s) {
  if (!s->base.env->settings->PTRACER) return;
  if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0)
    HK_INFO(HK_SUB_SHM, "rank %d: every process of this user may trace this one (HOCKET_PTRACER=1)", s->base.env->rank);
  else
    HK_INFO(HK_SUB_SHM, "rank %d: HOCKET_PTRACER=1 has no effect, because the kernel has no Yama (%s)",
            s->base.env->rank, strerror(errno));
}

void hk_shm_cma_prepare(hk_shm_state *s) {
  cma_allow_tracers(s);
  if (s->base.env->settings->CMA < 0) s->fact.flags |= HK_SHM_FACT_CMA_MEASURED;
  s->fact.cpu = sched_getcpu();
  if (getrandom(s->probe, sizeof s->probe, 0) != (ssize_t)sizeof s->probe) return; /* address 0: no rank will try */
  s->fact.probe_at = (uint64_t)(uintptr_t)s->probe;
  memcpy(s->fact.probe, s->probe, sizeof s->probe);
}

/* As hk_shm_cma_read; *done: the number of bytes read. */
static int shm_cma_read_some(pid_t pid, uint64_t from, void *to, size_t bytes, size_t *done) {
  for (*done = 0; *done < bytes;) {
    struct iovec local = {(char *)to + *done, bytes - *done};
    struct iovec remote = {(void *)(uintptr_t)(from + *done), bytes - *done};
    ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (n < 0) return -1;
    if (n == 0) {
      errno = EFAULT;
      return -1;
    }
    *done += (size_t)n;
  }
  return 0;
}

int hk_shm_cma_read(pid_t pid, uint64_t from, void *to, size_t bytes) {
  size_t done;
  return shm_cma_read_some(pid, from, to, bytes, &done);
}

/* Tries to read the words of all others. */
static bool shm_cma_can_read(const hk_shm_state *s, const hk_facts *facts) {
  const hk_transport_env *env = s->base.env;
  const hk_shm_process *p = s->process;
  for (int r = 0; r < env->nranks; r++) {
    const hk_shm_fact *f = hk_shm_fact_of(facts, r);
    uint8_t seen[sizeof f->probe];
    if (p->index[r] < 0 || env->peers[r].process == env->peers[env->rank].process) continue;
    const char *why = NULL;
    if (!f->probe_at)
      why = "it has published no word to read";
    else if (hk_shm_cma_read(env->peers[r].pid, f->probe_at, seen, sizeof seen) != 0)
      why = strerror(errno);
    else if (memcmp(seen, f->probe, sizeof seen) != 0)
      why = "its pid is another process here (another pid namespace?)";
    if (!why) continue;
    HK_INFO(HK_SUB_SHM, "rank %d cannot read rank %d's memory (%s): data goes through slots", env->rank, r, why);
    return false;
  }
  return true;
}

/* The rank that measures: the lowest one of the host. -1: none does. All ranks of the host get the same result. */
static int shm_cma_measurer(const hk_shm_state *s, const hk_facts *facts) {
  const hk_transport_env *env = s->base.env;
  int r = 0;
  while (s->process->index[r] < 0) r++;
  const uint32_t flags = hk_shm_fact_of(facts, r)->flags;
  const bool measures = flags & HK_SHM_FACT_CMA_MEASURED && !(flags & HK_SHM_FACT_P2P_OFF);
  return measures && env->peers[r].device < 0 ? r : -1; /* else its data is in a GPU */
}

/* A rank's byte in the arena. READS_IF_FASTER: reads if the measurement, which another rank may make, finds reading
 * faster. */
enum { READS_NOT, READS, READS_IF_FASTER };

void hk_shm_cma_try(hk_shm_state *s, const hk_facts *facts) {
  const hk_transport_env *env = s->base.env;
  const hk_shm_process *p = s->process;
  int who = -1, peer = 0;
  _Atomic(uint8_t) *mine = p->arena.base ? hk_shm_arena_reads(&p->arena, (uint32_t)p->index[env->rank]) : NULL;
  if (!mine || p->one_process || s->fact.flags & HK_SHM_FACT_P2P_OFF || !s->base.env->settings->CMA) return;
  bool able = shm_cma_can_read(s, facts);
  if (s->fact.flags & HK_SHM_FACT_CMA_MEASURED) who = shm_cma_measurer(s, facts);
  /* relaxed: the byte publishes nothing but itself */
  if (able) atomic_store_explicit(mine, who >= 0 ? READS_IF_FASTER : READS, memory_order_relaxed);
  if (who != env->rank) return;
  while (peer == who || p->index[peer] < 0) peer++; /* not all ranks of the group are of one process */
  hk_shm_cma_measure(s, peer, hk_shm_fact_of(facts, peer)->cpu);
}

/* The least size in bytes from which all ranks with these indices in the group read the memory of others. 0: one of
 * them does not. */
static uint32_t shm_cma_all_from(const hk_shm_process *p, uint32_t first, uint32_t end) {
  /* relaxed, both: as in hk_shm_cma_try and hk_shm_cma_measure */
  const uint32_t measured = atomic_load_explicit(&hk_shm_arena_cma(&p->arena)->from, memory_order_relaxed);
  uint32_t from = HK_SHM_CMA_LEAST_BYTES;
  for (uint32_t i = first; i < end; i++) {
    _Atomic(uint8_t) *reads = hk_shm_arena_reads(&p->arena, i);
    uint8_t how = reads ? atomic_load_explicit(reads, memory_order_relaxed) : READS_NOT;
    uint32_t own = how == READS ? HK_SHM_CMA_MIN_BYTES : how == READS_IF_FASTER ? measured : 0;
    if (!own) return 0;
    if (own > from) from = own;
  }
  return from;
}

uint32_t hk_shm_cma_from(const hk_shm_state *s, const hk_link *link) {
  const hk_shm_process *p = s->process;
  const uint32_t reader = (uint32_t)p->index[link->peer];
  /* with one reader, the group is this rank and the reader */
  if (link->kind == HK_LINK_MCAST_SEND && link->nheads == 1) return shm_cma_all_from(p, 0, p->ngroup);
  return link->kind == HK_LINK_SEND ? shm_cma_all_from(p, reader, reader + 1) : 0;
}

double hk_shm_reads(hk_transport_state *state) {
  const hk_shm_process *p = ((hk_shm_state *)state)->process;
  const hk_transport_env *env = state->env;
  if (!p->arena.base || p->one_process || p->ngroup != (uint32_t)env->nranks) return 0;
  const uint32_t from = shm_cma_all_from(p, 0, p->ngroup);
  if (!from || env->slot_bytes < from) return 0;
  const uint32_t time = atomic_load_explicit(&hk_shm_arena_cma(&p->arena)->time, memory_order_relaxed);
  return time ? time / 1e3 : HK_CMA_COPY;
}

bool hk_shm_writable(hk_transport_state *state, int peer, uint64_t at, const void *expected, size_t bytes) {
  const hk_transport_env *env = state->env;
  unsigned char seen[64];
  const hk_shm_state *s = (const hk_shm_state *)state;
  return !(s->fact.flags & HK_SHM_FACT_P2P_OFF) && s->base.env->settings->CMA && bytes <= sizeof seen &&
         hk_shm_cma_read(env->peers[peer].pid, at, seen, bytes) == 0 && memcmp(seen, expected, bytes) == 0;
}

/* The kernel now refuses a read that it allowed at init. */
static hk_status shm_cma_forbidden(int rank, int peer) {
  return HK_FAIL(
      HK_ERR_SYSTEM,
      "rank %d may not use rank %d's memory any more (EPERM): one of the two processes has changed its user, "
      "its capabilities or its dumpable flag since the init; do that before the init, or start all ranks with "
      "HOCKET_CMA=0",
      rank, peer);
}

hk_status hk_shm_write(hk_transport_state *state, int peer, uint64_t at, const void *from, size_t bytes) {
  const hk_transport_env *env = state->env;
  for (size_t done = 0; done < bytes;) {
    struct iovec local = {(void *)((uintptr_t)from + done), bytes - done};
    struct iovec remote = {(void *)(uintptr_t)(at + done), bytes - done};
    ssize_t n = process_vm_writev(env->peers[peer].pid, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EPERM) return shm_cma_forbidden(env->rank, peer);
    if (n <= 0)
      return HK_FAIL(
          HK_ERR_REMOTE,
          "rank %d cannot write %zu bytes to rank %d's memory (%s): has its process ended, or were the buffer "
          "or the window freed?",
          env->rank, bytes, peer, n ? strerror(errno) : "nothing was written");
    done += (size_t)n;
  }
  return HK_OK;
}

hk_status hk_shm_fetch(hk_transport_state *state, hk_link *link, const hk_ref *ref, void *to, size_t bytes) {
  const hk_transport_env *env = state->env;
  const hk_peer *peer = &env->peers[link->peer];
  if (peer->process == env->peers[env->rank].process) { /* a multicast that other processes read, too */
    memcpy(to, (const void *)(uintptr_t)ref->offset, bytes);
    return HK_OK;
  }
  size_t done;
  unsigned char seen;
  if (shm_cma_read_some(peer->pid, ref->offset, to, bytes, &done) == 0) return HK_OK;
  if (errno == EPERM) return shm_cma_forbidden(env->rank, (int)link->peer);
  /* The kernel does not say which of the two buffers is no memory: if the peer's can be read, it is this rank's. */
  if (errno == EFAULT && hk_shm_cma_read(peer->pid, ref->offset + done, &seen, 1) == 0)
    return HK_FAIL(
        HK_ERR_ARGUMENT,
        "rank %d gave a bad buffer: %zu bytes at %p, to be received from rank %u, are not all memory that this process "
        "may write (EFAULT); is the buffer as large as the call's count says, was it freed, and is it memory of the "
        "host?",
        env->rank, bytes, to, link->peer);
  if (errno == EFAULT)
    return HK_FAIL(
        HK_ERR_REMOTE,
        "rank %u gave a bad buffer: %zu bytes at %#llx, which rank %d copies, are not all memory of rank %u's process "
        "(EFAULT); is the buffer as large as the call's count says, was it freed before the operation was complete?",
        link->peer, bytes, (unsigned long long)ref->offset, env->rank, link->peer);
  return HK_FAIL(HK_ERR_REMOTE, "rank %d cannot read %zu bytes of rank %u's memory (%s): has its process ended?",
                 env->rank, bytes, link->peer, strerror(errno));
}
