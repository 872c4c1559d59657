/* SPDX-License-Identifier: Apache-2.0 */
/**
 * References to private memory of another process of the host, read with process_vm_readv(2) (cross memory attach): one
 * copy by the kernel instead of two through a slot, and no cache line that moves between two cores.
 *
 * Whether a rank may read the others' memory depends on user ids, capabilities, seccomp and the ptrace scope, so
 * it is tried: each rank reads a random word of every other process, which published the word's address and value in
 * its facts (a pid of another pid namespace names the wrong process or none). A rank that can read all of them sets its
 * byte in the arena. Senders read these bytes and decide alone, for each slot.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h> /* process_vm_readv */
#include "../base/log.h"
#include "../base/param.h"
#include "shm_state.h"

/* If ranks outnumber cores, slots are faster: the sender fills them while it has the core anyway, many readers of
 * one slot find it in the cache, and no rank spends its time slice in the kernel on pinning pages. */
static bool crowded(const hk_shm_state *s) {
  const hk_transport_env *env = s->base.env;
  int ranks = 0;
  for (int r = 0; r < env->nranks; r++) ranks += env->peers[r].host == env->peers[env->rank].host;
  return ranks > env->peers[env->rank].cores;
}

void hk_shm_cma_prepare(hk_shm_state *s) {
  if (getrandom(s->probe, sizeof s->probe, 0) != (ssize_t)sizeof s->probe) return; /* address 0: no rank will try */
  s->fact.probe_at = (uint64_t)(uintptr_t)s->probe;
  memcpy(s->fact.probe, s->probe, sizeof s->probe);
}

/* Reads all of [from, from + bytes) of the process. Returns 0, or -1 with errno. */
static int read_all(pid_t pid, uint64_t from, void *to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    struct iovec local = {(char *)to + done, bytes - done};
    struct iovec remote = {(void *)(uintptr_t)(from + done), bytes - done};
    ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (n < 0) return -1;
    if (n == 0) {
      errno = EFAULT;
      return -1;
    }
    done += (size_t)n;
  }
  return 0;
}

void hk_shm_cma_try(hk_shm_state *s, const void *facts) {
  const hk_transport_env *env = s->base.env;
  const hk_shm_process *p = s->process;
  _Atomic(uint8_t) *mine = p->arena.base ? hk_shm_arena_reads(&p->arena, (uint32_t)p->index[env->rank]) : NULL;
  if (!mine || p->one_process || s->fact.flags & HK_SHM_FACT_P2P_OFF || !hk_param_int(HK_P_CMA) || crowded(s)) return;
  for (int r = 0; r < env->nranks; r++) {
    const hk_shm_fact *f = hk_shm_fact_of(facts, r);
    uint8_t seen[sizeof f->probe];
    if (p->index[r] < 0 || env->peers[r].process == env->peers[env->rank].process) continue;
    const char *why = NULL;
    if (!f->probe_at)
      why = "it has published no word to read";
    else if (read_all(env->peers[r].pid, f->probe_at, seen, sizeof seen) != 0)
      why = strerror(errno);
    else if (memcmp(seen, f->probe, sizeof seen) != 0)
      why = "its pid is another process here (another pid namespace?)";
    if (why) {
      HK_INFO(HK_SUB_SHM, "rank %d cannot read rank %d's memory (%s): data goes through slots", env->rank, r, why);
      return;
    }
  }
  /* relaxed: the byte publishes nothing but itself */
  atomic_store_explicit(mine, 1, memory_order_relaxed);
}

bool hk_shm_cma_allowed(const hk_shm_state *s, const hk_link *link) {
  const hk_shm_process *p = s->process;
  if (link->kind == HK_LINK_SEND) {
    _Atomic(uint8_t) *reads = hk_shm_arena_reads(&p->arena, (uint32_t)p->index[link->peer]);
    return reads && atomic_load_explicit(reads, memory_order_relaxed); /* relaxed: as in hk_shm_cma_try */
  }
  for (uint32_t i = 0; i < p->ngroup; i++) {
    _Atomic(uint8_t) *reads = hk_shm_arena_reads(&p->arena, i);
    if (i != (uint32_t)p->index[s->base.env->rank] && !(reads && atomic_load_explicit(reads, memory_order_relaxed)))
      return false;
  }
  return true;
}

bool hk_shm_writable(hk_transport_state *state, int peer, uint64_t at, const void *expected, size_t bytes) {
  const hk_transport_env *env = state->env;
  unsigned char seen[64];
  const hk_shm_state *s = (const hk_shm_state *)state;
  return !(s->fact.flags & HK_SHM_FACT_P2P_OFF) && hk_param_int(HK_P_CMA) && bytes <= sizeof seen &&
         read_all(env->peers[peer].pid, at, seen, bytes) == 0 && memcmp(seen, expected, bytes) == 0;
}

hk_status hk_shm_write(hk_transport_state *state, int peer, uint64_t at, const void *from, size_t bytes) {
  const hk_transport_env *env = state->env;
  for (size_t done = 0; done < bytes;) {
    struct iovec local = {(void *)((uintptr_t)from + done), bytes - done};
    struct iovec remote = {(void *)(uintptr_t)(at + done), bytes - done};
    ssize_t n = process_vm_writev(env->peers[peer].pid, &local, 1, &remote, 1, 0);
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
  if (read_all(peer->pid, ref->offset, to, bytes) == 0) return HK_OK;
  if (errno == EFAULT)
    return HK_FAIL(
        HK_ERR_REMOTE,
        "rank %d cannot copy %zu bytes at %#llx of rank %u's memory to %p (EFAULT): one of the two buffers is not all "
        "memory of its process: is it as large as the call's count says, was it freed before the operation was "
        "complete?",
        env->rank, bytes, (unsigned long long)ref->offset, link->peer, to);
  return HK_FAIL(HK_ERR_REMOTE, "rank %d cannot read %zu bytes of rank %u's memory (%s): has its process ended?",
                 env->rank, bytes, link->peer, strerror(errno));
}
