/* SPDX-License-Identifier: Apache-2.0 */
/**
 * References to memory of ncclMemAlloc: {region, offset}. The receiver maps a region of another process when the first
 * reference to it arrives: it asks that process's service thread for the file, and keeps the mapping. Regions that
 * their owner has freed are unmapped at the next such request; their pages were released when they were freed.
 *
 * An id is never used twice, and a sender refers only to regions that exist. So a mapping found by the id of a
 * reference is always the right one, and the receiver need not compare generations.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../base/array.h"
#include "../../base/thread.h"
#include "../../device/host.h"
#include "../peer.h"
#include "shm_socket.h"

typedef struct hk_shm_import {
  uint64_t process, region;
  char *base;
  size_t bytes;
} hk_shm_import;

/* A link's cache of its last reference, so that the next one needs no lookup. */
typedef struct hk_shm_memo {
  uint64_t generation; /* sender: of `span` */
  hk_host_span span;
  hk_shm_import seen;      /* receiver: the region of the last reference */
  hk_shm_import *borrowed; /* sender of a multicast: [nheads] the regions that the readers lent last */
  /* sender: the least size in bytes from which the readers read any memory of this process; 0: not known */
  uint32_t cma_from;
  char *bounce; /* receiver: a copy of private memory that a reference named */
  size_t bounce_bytes;
} hk_shm_memo;

hk_status hk_shm_region_open(hk_link *link) {
  link->priv = calloc(1, sizeof(hk_shm_memo));
  return link->priv ? HK_OK : HK_FAIL_ERRNO("no memory for a link to rank %u", link->peer);
}

void hk_shm_region_close(hk_link *link) {
  hk_shm_memo *memo = link->priv;
  if (memo) {
    free(memo->bounce);
    free(memo->borrowed);
  }
  free(memo);
  link->priv = NULL;
}

/* Sets memo->span to the span of the address. */
static inline void shm_region_find_span(hk_shm_memo *memo, uintptr_t at) {
  /* acquire: pairs with the release in the code that changes the table of regions */
  uint64_t generation = atomic_load_explicit(&hk_host_generation, memory_order_acquire);
  if (__builtin_expect(memo->generation == generation && at >= memo->span.begin && at < memo->span.end, 1)) return;
  memo->span = hk_host_find((const void *)at);
  memo->generation = generation; /* read before the lookup: a change since then causes another lookup */
}

bool hk_shm_refer(hk_transport_state *state, hk_link *link, const void *data, size_t bytes, hk_ref *out) {
  uintptr_t at = (uintptr_t)data;
  if (link->by_ref == 2) {
    *out = (hk_ref){0, at};
    return true;
  }
  hk_shm_memo *memo = link->priv;
  if (!link->by_ref || !memo) return false;
  shm_region_find_span(memo, at);
  if (!memo->span.region || bytes > memo->span.end - at) {
    if (bytes < HK_SHM_CMA_LEAST_BYTES) return false;
    if (!memo->cma_from) memo->cma_from = hk_shm_cma_from((hk_shm_state *)state, link);
    if (!memo->cma_from || bytes < memo->cma_from) return false;
    *out = (hk_ref){HK_REGION_PRIVATE, at};
    return true;
  }
  *out = (hk_ref){memo->span.region, at - memo->span.begin};
  return true;
}

/* ---- receiver ---- */

static bool shm_region_lookup(hk_shm_process *p, uint64_t process, uint64_t region, hk_shm_import *out) {
  bool found = false;
  pthread_mutex_lock(&p->imports_lock);
  for (size_t i = 0; i < p->nimports && !found; i++) {
    if (p->imports[i].region != region || p->imports[i].process != process) continue;
    *out = p->imports[i];
    found = true;
  }
  pthread_mutex_unlock(&p->imports_lock);
  return found;
}

/* Lists some of the owner's regions that are mapped here, so that the owner can report which are freed. The next call
 * continues with others. */
static void shm_region_list_known(hk_shm_process *p, uint64_t owner, hk_shm_message *m) {
  pthread_mutex_lock(&p->imports_lock);
  for (size_t i = 0; i < p->nimports && m->nregions < HK_SHM_FREED_MAX; i++) {
    const hk_shm_import *it = &p->imports[(i + p->next_listed) % p->nimports];
    if (it->process == owner) m->regions[m->nregions++] = it->region;
  }
  p->next_listed += HK_SHM_FREED_MAX;
  pthread_mutex_unlock(&p->imports_lock);
}

static void shm_region_forget(hk_shm_process *p, uint64_t owner, uint64_t region) {
  pthread_mutex_lock(&p->imports_lock);
  for (size_t i = 0; i < p->nimports; i++) {
    if (p->imports[i].region != region || p->imports[i].process != owner) continue;
    munmap(p->imports[i].base, p->imports[i].bytes);
    p->imports[i] = p->imports[--p->nimports];
    break;
  }
  pthread_mutex_unlock(&p->imports_lock);
}

/* Keeps the mapping, unless another rank of the process mapped the region first: then *it becomes that mapping. */
static bool shm_region_remember(hk_shm_process *p, hk_shm_import *it) {
  bool kept = false;
  pthread_mutex_lock(&p->imports_lock);
  for (size_t i = 0; i < p->nimports && !kept; i++) {
    if (p->imports[i].region != it->region || p->imports[i].process != it->process) continue;
    munmap(it->base, it->bytes);
    *it = p->imports[i];
    kept = true;
  }
  if (!kept && HK_RESERVE_NEXT(p->imports, p->nimports)) {
    p->imports[p->nimports++] = *it;
    kept = true;
  }
  pthread_mutex_unlock(&p->imports_lock);
  return kept;
}

static hk_status shm_region_map_region(hk_shm_state *s, int peer, int fd, hk_shm_import *it) {
  void *m = mmap(NULL, it->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m == MAP_FAILED)
    return HK_FAIL_ERRNO("rank %d cannot map %zu bytes of rank %d's memory", s->base.env->rank, it->bytes, peer);
  it->base = m;
  if (shm_region_remember(s->process, it)) return HK_OK;
  munmap(m, it->bytes);
  return HK_FAIL_ERRNO("rank %d has no memory to keep a mapping of rank %d's", s->base.env->rank, peer);
}

/* Asks the owner's service thread: one round trip, which does not depend on the owner's ranks. */
static hk_status shm_region_ask(hk_shm_state *s, const hk_wait_env *wait, int peer, hk_shm_message *m, int *fd) {
  hk_transport_env own = *s->base.env, *env = &own;
  hk_shm_process *p = s->process;
  hk_status rc = HK_OK;
  hk_cancel_hold();
  *fd = -1;
  if (wait) own.wait = wait;
  m->verb = HK_SHM_ASK_REGION;
  memcpy(m->secret, env->secret, sizeof m->secret);
  int socket = hk_shm_dial(p->names[peer]);
  if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
    return HK_FAIL_ERRNO("rank %d cannot make a socket to ask rank %d's process for its memory", env->rank, peer);
  if (socket < 0)
    return HK_FAIL(HK_ERR_REMOTE, "rank %d cannot ask rank %d's process for its memory (%s); it has probably ended",
                   env->rank, peer, strerror(errno));
  HK_TRY(hk_shm_send_wait(socket, env->wait, m, -1), out);
  HK_TRY(hk_shm_receive_wait(socket, env, peer, NULL, NULL, m, fd), out);
out:
  close(socket);
  return rc;
}

static hk_status shm_region_import(hk_shm_state *s, int peer, hk_shm_import *it) {
  hk_shm_process *p = s->process;
  hk_status rc;
  int fd = -1;
  hk_shm_message m = {.region = it->region};
  shm_region_list_known(p, it->process, &m);
  HK_TRY(shm_region_ask(s, NULL, peer, &m, &fd), out);
  for (uint32_t i = 0; i < HK_SHM_FREED_MAX; i++) shm_region_forget(p, it->process, m.regions[i]);
  if (m.verb == HK_SHM_REGION && fd < 0) {
    rc = HK_FAIL(
        HK_ERR_SYSTEM,
        "rank %d has no file descriptor left for the memory of rank %d; raise its limit of open files (ulimit -n)",
        s->base.env->rank, peer);
    goto out;
  }
  if (m.verb != HK_SHM_REGION)
    HK_GIVE_UP(HK_FAIL(HK_ERR_REMOTE,
                       "rank %d uses memory that it no longer has (region %llu): it must not be freed before "
                       "the operation is complete",
                       peer, (unsigned long long)it->region),
               out);
  it->bytes = m.bytes;
  rc = shm_region_map_region(s, peer, fd, it);
out:
  if (fd >= 0) close(fd);
  return rc;
}

const char *hk_shm_no_files(const hk_transport_state *state) {
  const hk_shm_process *p = ((const hk_shm_state *)state)->process;
  if (p && p->names) return NULL;
  return p && p->reason[0] ? p->reason : "NCCL_SHM_DISABLE, or different containers";
}

hk_status hk_shm_region_file(hk_transport_state *state, const hk_wait_env *wait, int peer, uint64_t region, int *fd,
                             size_t *bytes) {
  hk_status rc = HK_OK;
  hk_shm_state *s = (hk_shm_state *)state;
  hk_shm_message m = {.region = region};
  *fd = -1;
  if (!s->process || !s->process->names)
    return HK_FAIL(HK_ERR_SYSTEM, "rank %d shares no memory with rank %d (%s)", state->env->rank, peer,
                   hk_shm_no_files(state));
  HK_OR_RETURN(shm_region_ask(s, wait, peer, &m, fd));
  *bytes = m.bytes;
  if (m.verb != HK_SHM_REGION || *fd < 0)
    rc = HK_FAIL(HK_ERR_REMOTE, "rank %d has no memory region %llu any more", peer, (unsigned long long)region);
  return rc;
}

static hk_status shm_region_ask_here(hk_shm_state *s, int peer, int fd, void *payload) {
  hk_shm_process *p = s->process;
  char reason[HK_SHM_REASON] = "the rank has left";
  pthread_mutex_lock(&p->lock);
  hk_shm_state *to = p->members;
  while (to && to->base.env->rank != peer) to = to->next_member;
  bool good = to && to->answer && to->answer(to->answer_arg, payload, fd, reason);
  pthread_mutex_unlock(&p->lock);
  if (good) return HK_OK;
  return HK_FAIL(HK_ERR_REMOTE, "rank %d refuses what rank %d asks for: %s", peer, s->base.env->rank, reason);
}

static hk_status shm_region_ask_rank(hk_shm_state *s, int peer, int fd, void *payload, bool answered) {
  const hk_transport_env *env = s->base.env;
  hk_status rc = HK_OK;
  hk_shm_message m = {.verb = HK_SHM_ASK_RANK, .processes = (uint32_t)peer};
  if (env->peers[peer].process == env->peers[env->rank].process) return shm_region_ask_here(s, peer, fd, payload);
  int none = -1, socket = s->process && s->process->names ? hk_shm_dial(s->process->names[peer]) : -1;
  if (socket < 0 && !answered) return HK_OK;
  if (socket < 0)
    return HK_FAIL(HK_ERR_REMOTE, "rank %d cannot ask rank %d (%s)", env->rank, peer,
                   s->process && s->process->names ? "its process has probably ended" : hk_shm_no_files(&s->base));
  memcpy(m.secret, env->secret, sizeof m.secret);
  memcpy(m.payload, payload, sizeof m.payload);
  HK_TRY(hk_shm_send_wait(socket, env->wait, &m, fd), out);
  if (!answered) goto out;
  HK_TRY(hk_shm_receive_wait(socket, env, peer, NULL, NULL, &m, &none), out);
  if (none >= 0) close(none);
  if (m.verb == HK_SHM_RANK)
    memcpy(payload, m.payload, sizeof m.payload);
  else
    rc = HK_FAIL(HK_ERR_REMOTE, "rank %d refuses what rank %d asks for: %s", peer, env->rank, m.reason);
out:
  close(socket);
  return rc;
}

hk_status hk_shm_question(hk_transport_state *s, int peer, int fd, void *payload) {
  return shm_region_ask_rank((hk_shm_state *)s, peer, fd, payload, true);
}

hk_status hk_shm_notice(hk_transport_state *s, int peer, int fd, void *payload) {
  return shm_region_ask_rank((hk_shm_state *)s, peer, fd, payload, false);
}

void hk_shm_answer_with(hk_transport_state *state, hk_answer *answer, void *arg) {
  hk_shm_state *s = (hk_shm_state *)state;
  if (!s->process) return;
  pthread_mutex_lock(&s->process->lock);
  s->answer = answer;
  s->answer_arg = arg;
  pthread_mutex_unlock(&s->process->lock);
}

/* Off the fast path: finds or maps the region of rank `peer`. */
static hk_status shm_region_look_up(hk_shm_state *s, int peer, uint64_t region, hk_shm_import *out) {
  const hk_peer *peers = s->base.env->peers;
  hk_shm_import it = {.process = peers[peer].process, .region = region};
  hk_status rc = HK_OK;
  if (it.process == peers[s->base.env->rank].process) { /* a multicast that other processes take part in, too */
    if (!hk_host_locate(region, &it.base, &it.bytes))
      rc = HK_FAIL(HK_ERR_USAGE, "rank %d uses memory that has been freed", peer);
  } else if (!shm_region_lookup(s->process, it.process, it.region, &it)) {
    rc = shm_region_import(s, peer, &it);
  }
  if (rc == HK_OK) *out = it;
  return rc;
}

hk_status hk_shm_region_map(hk_transport_state *s, int peer, uint64_t region, char **base) {
  hk_shm_import it;
  hk_status rc = shm_region_look_up((hk_shm_state *)s, peer, region, &it);
  if (rc == HK_OK) *base = it.base;
  return rc;
}

/* HK_OK if the reference is inside the region. */
static hk_status shm_region_check_extent(int peer, const hk_shm_import *it, const hk_ref *ref, size_t bytes) {
  if (__builtin_expect(ref->offset <= it->bytes && bytes <= it->bytes - ref->offset, 1)) return HK_OK;
  return HK_FAIL(HK_ERR_INTERNAL, "rank %d refers to %zu bytes at %llu of a region of %zu bytes", peer, bytes,
                 (unsigned long long)ref->offset, it->bytes);
}

bool hk_shm_export_target(hk_transport_state *state, hk_link *link, const void *data, size_t bytes, hk_ref *out) {
  hk_shm_memo *memo = link->priv;
  (void)state;
  if (link->by_ref != 1 || !memo) return false;
  shm_region_find_span(memo, (uintptr_t)data);
  if (!memo->span.region || bytes > memo->span.end - (uintptr_t)data) return false;
  *out = (hk_ref){memo->span.region, (uintptr_t)data - memo->span.begin};
  return true;
}

hk_status hk_shm_map_target(hk_transport_state *state, hk_link *link, unsigned reader, const hk_ref *ref, size_t bytes,
                            char **at) {
  hk_shm_memo *memo = link->priv;
  /* heads are in the order of the ranks, without this one */
  const int peer = (int)reader + ((int)reader >= link->peer);
  if (!memo->borrowed && !(memo->borrowed = calloc(link->nheads, sizeof *memo->borrowed)))
    return HK_FAIL_ERRNO("no memory for the places of %u ranks", link->nheads);
  hk_shm_import *it = &memo->borrowed[reader];
  if (__builtin_expect(it->region != ref->region, 0))
    HK_OR_RETURN(shm_region_look_up((hk_shm_state *)state, peer, ref->region, it));
  HK_OR_RETURN(shm_region_check_extent(peer, it, ref, bytes));
  *at = it->base + ref->offset;
  return HK_OK;
}

/* A copy of the sender's private memory, for data that cannot be copied straight to its place. */
static const void *shm_region_bounce(hk_transport_state *state, hk_link *link, const hk_ref *ref, size_t bytes) {
  hk_shm_memo *memo = link->priv;
  if (memo->bounce_bytes < bytes) {
    free(memo->bounce);
    memo->bounce_bytes = 0;
    memo->bounce = aligned_alloc(4096, hk_round_up(bytes, 4096));
    if (!memo->bounce) {
      HK_FAIL(HK_ERR_SYSTEM, "out of memory for %zu bytes from rank %u", bytes, link->peer);
      return NULL;
    }
    memo->bounce_bytes = bytes;
  }
  return hk_shm_fetch(state, link, ref, memo->bounce, bytes) == HK_OK ? memo->bounce : NULL;
}

const void *hk_shm_resolve(hk_transport_state *state, hk_link *link, const hk_ref *ref, size_t bytes) {
  hk_shm_memo *memo = link->priv;
  if (ref->region == 0) return (const void *)(uintptr_t)ref->offset;
  if (!memo) {
    HK_FAIL(HK_ERR_INTERNAL, "rank %u sent a reference over a link of one process", link->peer);
    return NULL;
  }
  if (ref->region == HK_REGION_PRIVATE) return shm_region_bounce(state, link, ref, bytes);
  if (__builtin_expect(memo->seen.region != ref->region, 0) &&
      shm_region_look_up((hk_shm_state *)state, link->peer, ref->region, &memo->seen) != HK_OK)
    return NULL;
  if (shm_region_check_extent(link->peer, &memo->seen, ref, bytes) != HK_OK) return NULL;
  return memo->seen.base + ref->offset;
}

void hk_shm_regions_dispose(hk_shm_process *p) {
  for (size_t i = 0; i < p->nimports; i++) munmap(p->imports[i].base, p->imports[i].bytes);
  free(p->imports);
  free(p->names);
}
