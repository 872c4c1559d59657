/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of GPUs, opened for the ranks that read it directly. For a rank of this process this file opens it.
 * For a rank of another process it sends the memory to that process's service thread, which opens it on the rank's GPU
 * and returns the address. So no rank waits for another rank's call. */
#include "buffer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/fork.h"
#include "../base/log.h"
#include "../core/call.h"
#include "../program/limits.h"
#include "../transport/transport.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "order.h"
#include "process_group.h"

/* Global: allocations are found by address, for all communicators with which they are registered. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static hk_gpu_buffers *all;

typedef struct question {
  enum { OPEN, CLOSE } verb;
  int32_t from;
  uint64_t key, address; /* in the answer: where the shared allocation begins on that GPU */
  uint64_t skip, bytes;  /* bytes of the allocation before the registered part; bytes of that part */
  hk_memory_share share;
} question;
_Static_assert(sizeof(question) <= HK_QUESTION_BYTES, "a question is one message");

#define WINDOW_KEY (UINT64_C(1) << 63)

/* ---- memory of other ranks ---- */

static bool buffer_open_import(hk_gpu_buffers *b, question *q, int fd, char *reason) {
  hk_gpu_import *import = calloc(1, sizeof *import);
  if (!import) return false;
  *import = (hk_gpu_import){.from = q->from, .key = q->key};
  q->share.fd = fd;
  if (b->device->ops->share->open(b->device, &q->share, &import->memory) != HK_OK) {
    snprintf(reason, HK_REASON_BYTES, "%s", hk_last_error());
    free(import);
    return false;
  }
  q->address = (uint64_t)(uintptr_t)import->memory.base;
  import->begin = q->address + q->skip;
  import->bytes = q->bytes;
  pthread_mutex_lock(&b->imports_lock);
  import->next = b->imports;
  b->imports = import;
  pthread_mutex_unlock(&b->imports_lock);
  return true;
}

static void buffer_close_import(hk_gpu_buffers *b, const question *q) {
  hk_gpu_import **at = &b->imports;
  pthread_mutex_lock(&b->imports_lock);
  while (*at && ((*at)->from != q->from || (*at)->key != q->key)) at = &(*at)->next;
  hk_gpu_import *import = *at;
  if (import) *at = import->next;
  pthread_mutex_unlock(&b->imports_lock);
  /* A failure is logged; nothing else can be done. */
  if (import) (void)b->device->ops->memory->release(b->device, &import->memory);
  free(import);
}

/* On a service thread. */
static bool buffer_answer(void *arg, void *payload, int fd, char *reason) {
  question q;
  memcpy(&q, payload, sizeof q);
  bool good = q.verb != OPEN || buffer_open_import(arg, &q, fd, reason);
  if (q.verb != OPEN) buffer_close_import(arg, &q);
  memcpy(payload, &q, sizeof q);
  return good;
}

void hk_gpu_buffers_begin(ncclComm_t c) {
  const hk_gpu_links *l = hk_gpu_of(c)->links;
  hk_gpu_buffers *b = hk_gpu_of(c)->buffers;
  for (int r = 0; r < c->nranks; r++)
    b->apart = b->apart || (hk_gpu_can_read(l, r) && (!hk_gpu_is_local(l, r) || hk_gpu_is_remote(c, r)));
  if (!b->apart) return;
  hk_wire_answer_with(c, buffer_answer, b);
  pthread_mutex_lock(&lock);
  b->next = all;
  all = b;
  pthread_mutex_unlock(&lock);
}

/* ---- memory of this rank ---- */

/* Makes the allocation at `base` visible to rank r. If r cannot map it, r gets copies. */
static void buffer_show(ncclComm_t c, hk_gpu_buffer *v, int r, const hk_memory_share *share, uintptr_t base) {
  hk_gpu *g = hk_gpu_of(c);
  bool remote = hk_gpu_is_remote(c, r);
  uint64_t there = base;
  if (r == c->rank || !hk_gpu_can_read(g->links, r) || (remote && hk_wire_no_files(c))) return;
  if (remote) {
    unsigned char payload[HK_QUESTION_BYTES] = {0};
    question q = {.verb = OPEN,
                  .from = c->rank,
                  .key = v->key,
                  .skip = v->begin - base,
                  .bytes = v->end - v->begin,
                  .share = *share};
    memcpy(payload, &q, sizeof q);
    if (hk_wire_ask(c, r, share->fd, payload) != HK_OK) return;
    memcpy(&q, payload, sizeof q);
    there = q.address;
  } else if (!hk_gpu_is_local(g->links, r) && share->kind == HK_MEMORY_VMM) {
    /* A mapping may grant access to its own device only; classic memory has one address for all contexts with peer
     * access. */
    hk_device *d = g->group->devices[r];
    if (d->ops->share->open(d, share, &v->opened[r]) != HK_OK) return;
    there = (uint64_t)(uintptr_t)v->opened[r].base;
  }
  v->seen[r] = (int64_t)(there - base);
}

/* Returns memory for a table: that of a dropped registration if no launch can use it any more, else new memory. */
static hk_status buffer_get_table(ncclComm_t c, int64_t **out) {
  hk_gpu *g = hk_gpu_of(c);
  bool done = false;
  hk_gpu_buffer *old = g->buffers->dropped;
  if (old && hk_gpu_order_over(g->order, &done) == HK_OK && done) {
    *out = old->table;
    g->buffers->dropped = old->next;
    free(old);
    return HK_OK;
  }
  return hk_gpu_arena_get(g->memory, (size_t)c->nranks * sizeof(int64_t), (void **)out);
}

static hk_status buffer_fill_table(ncclComm_t c, hk_gpu_buffer *v) {
  const hk_gpu *g = hk_gpu_of(c);
  if (!v->table) HK_OR_RETURN(buffer_get_table(c, &v->table));
  return hk_device_copy(g->device, v->table, v->seen, (size_t)c->nranks * sizeof *v->seen, g->queue);
}

static hk_status buffer_make(ncclComm_t c, hk_gpu_buffer *v) {
  hk_gpu *g = hk_gpu_of(c);
  hk_memory_share share;
  hk_pointer whose;
  uintptr_t base = 0;
  const char *why = NULL;
  HK_OR_RETURN(g->device->ops->memory->pointer(g->device, (const void *)v->begin, &whose));
  v->id = whose.id;
  if (whose.kind != HK_POINTER_DEVICE || whose.device != g->device->limits.ordinal)
    why = "it is not memory of the communicator's GPU";
  else if (g->device->ops->share->offer_address(g->device, (const void *)v->begin, &share, &base) != HK_OK)
    why = hk_last_error();
  else if (v->end > base + share.bytes)
    why = "it lies in several allocations";
  if (why) {
    HK_INFO(HK_SUB_REG, "rank %d: no zero copy from registered memory %p: %s", c->rank, (void *)v->begin, why);
    v->unusable = true;
    if (base && share.fd >= 0) close(share.fd);
    return HK_OK;
  }
  v->shareable = share.kind == HK_MEMORY_VMM;
  for (int r = 0; r < c->nranks; r++) buffer_show(c, v, r, &share, base);
  if (share.fd >= 0) close(share.fd);
  v->made = true;
  return buffer_fill_table(c, v);
}

/* Ends the registration. `notify`: the ranks of other processes still exist, and are notified. */
static void buffer_unmake(ncclComm_t c, hk_gpu_buffer *v, bool notify) {
  hk_gpu *g = hk_gpu_of(c);
  for (int r = 0; r < c->nranks; r++) {
    if (v->opened[r].base) (void)g->group->devices[r]->ops->memory->release(g->group->devices[r], &v->opened[r]);
    if (notify && v->seen[r] != HK_GPU_UNSEEN && r != c->rank && hk_gpu_is_remote(c, r)) {
      unsigned char payload[HK_QUESTION_BYTES] = {0};
      question q = {.verb = CLOSE, .from = c->rank, .key = v->key};
      memcpy(payload, &q, sizeof q);
      (void)hk_wire_notify(c, r, -1, payload); /* if it fails, that rank has ended */
    }
    v->seen[r] = HK_GPU_UNSEEN;
  }
  v->made = false;
}

static void buffer_free_lists(hk_gpu_buffer *v) {
  free(v->seen);
  free(v->opened);
  free(v->theirs);
  v->seen = NULL;
  v->opened = NULL;
  v->theirs = NULL;
}

static void buffer_free_view(hk_gpu_buffer *v) {
  buffer_free_lists(v);
  free(v);
}

hk_status hk_gpu_buffer_add(ncclComm_t c, void *base, size_t bytes, bool symmetric, void **handle) {
  hk_gpu_buffers *b = hk_gpu_of(c)->buffers;
  size_t n = (size_t)c->nranks;
  if (!b->apart || bytes == 0) return HK_OK;
  hk_gpu_buffer *v = calloc(1, sizeof *v);
  if (v) v->seen = malloc(n * sizeof *v->seen);
  if (v) v->opened = calloc(n, sizeof *v->opened);
  if (v) v->theirs = calloc(n, sizeof *v->theirs);
  if (!v || !v->seen || !v->opened || !v->theirs) {
    if (v) buffer_free_view(v);
    return HK_FAIL_ERRNO("no memory for a registration");
  }
  v->begin = (uintptr_t)base;
  v->end = v->begin + bytes;
  for (size_t r = 0; r < n; r++) v->seen[r] = HK_GPU_UNSEEN;
  pthread_mutex_lock(&lock);
  v->symmetric = symmetric;
  v->key = symmetric ? WINDOW_KEY | ++b->last_window : ++b->last_buffer;
  v->next = b->first;
  b->first = v;
  pthread_mutex_unlock(&lock);
  *handle = v;
  return HK_OK;
}

void hk_gpu_buffer_drop(ncclComm_t c, void *base, size_t bytes, void *handle) {
  hk_gpu_buffer *v = handle;
  hk_gpu_buffers *b = hk_gpu_of(c)->buffers;
  (void)base, (void)bytes;
  pthread_mutex_lock(&lock);
  HK_LIST_REMOVE(b->first, v, next);
  buffer_unmake(c, v, !atomic_load(&c->health.failure));
  buffer_free_lists(v);
  if (v->table) { /* freeing device memory would wait for all its work, and some of that may wait for this thread */
    v->next = b->dropped;
    b->dropped = v;
  } else {
    free(v);
  }
  pthread_mutex_unlock(&lock);
}

void hk_gpu_buffers_forget(const void *base, size_t bytes) {
  uintptr_t begin = (uintptr_t)base, end = begin + bytes;
  pthread_mutex_lock(&lock);
  for (hk_gpu_buffers *b = all; b; b = b->next)
    for (hk_gpu_buffer *v = b->first; v; v = v->next) {
      if (v->end <= begin || v->begin >= end || v->unusable) continue;
      HK_WARN("ncclMemFree: %p is still registered with communicator %p: call ncclCommDeregister or "
              "ncclCommWindowDeregister first; the registration has no effect any more",
              base, (void *)b->comm);
      buffer_unmake(b->comm, v, !atomic_load(&b->comm->health.failure));
      v->unusable = true;
    }
  pthread_mutex_unlock(&lock);
}

void hk_gpu_buffers_free_late(hk_gpu_process_group *w) {
  while (w->late) {
    hk_gpu_buffer *v = w->late;
    w->late = v->next;
    for (int r = 0; r < w->nranks; r++)
      if (v->opened[r].base) (void)w->devices[r]->ops->memory->release(w->devices[r], &v->opened[r]);
    buffer_free_view(v);
  }
}

void hk_gpu_buffers_end(ncclComm_t c) {
  const hk_gpu *g = hk_gpu_of(c);
  hk_gpu_buffers *b = g->buffers;
  pthread_mutex_lock(&lock);
  HK_LIST_REMOVE(all, b, next);
  pthread_mutex_unlock(&lock);
  if (g->lost) return;
  while (b->first) {
    hk_gpu_buffer *v = b->first;
    b->first = v->next;
    /* Ranks of other processes close what they have opened when they end. Ranks of this process may leave later, and
     * only then let their streams go on. */
    pthread_mutex_lock(&g->group->lock);
    v->next = g->group->late;
    g->group->late = v;
    pthread_mutex_unlock(&g->group->lock);
  }
  while (b->dropped) {
    hk_gpu_buffer *v = b->dropped;
    b->dropped = v->next;
    buffer_free_view(v);
  }
  while (b->imports) buffer_close_import(b, &(question){.from = b->imports->from, .key = b->imports->key});
}

/* ---- calls ---- */

/* Under the lock. Detects memory that was freed without a notice and whose address is another allocation now. */
static hk_status buffer_check_same(ncclComm_t c, hk_gpu_buffer *v) {
  hk_pointer whose;
  if (!v->made || !v->id) return HK_OK;
  HK_OR_RETURN(hk_gpu_of(c)->device->ops->memory->pointer(hk_gpu_of(c)->device, (const void *)v->begin, &whose));
  if (whose.id == v->id) return HK_OK;
  HK_WARN("rank %d: the memory registered at %p was freed and allocated anew without ncclCommDeregister: it is opened "
          "again for its peers",
          c->rank, (void *)v->begin);
  buffer_unmake(c, v, true);
  return HK_OK;
}

static hk_status buffer_find(ncclComm_t c, const void *p, size_t bytes, bool symmetric, hk_gpu_buffer **out) {
  hk_status rc = HK_OK;
  uintptr_t begin = (uintptr_t)p;
  *out = NULL;
  if (!hk_gpu_of(c)->buffers->apart || (!symmetric && bytes < HK_GPU_REF_MIN)) return HK_OK;
  pthread_mutex_lock(&lock);
  for (hk_gpu_buffer *v = hk_gpu_of(c)->buffers->first; v && !*out; v = v->next) {
    if (begin < v->begin || begin + bytes > v->end || v->unusable || (symmetric && !v->symmetric)) continue;
    HK_TRY(buffer_check_same(c, v), out);
    if (!v->made) HK_TRY(buffer_make(c, v), out);
    if (v->made) *out = v;
  }
out:
  pthread_mutex_unlock(&lock);
  return rc;
}

hk_status hk_gpu_buffers_of(ncclComm_t c, const hk_call *call, const int64_t **in, const int64_t **out) {
  hk_coll coll = (hk_coll)call->coll;
  hk_gpu_buffer *v;
  if (hk_coll_has_input(coll, c->rank, call->root)) {
    HK_OR_RETURN(buffer_find(c, call->in, hk_call_in_bytes(call), false, &v));
    *in = v ? v->table : NULL;
  }
  if (hk_coll_has_output(coll, c->rank, call->root)) {
    HK_OR_RETURN(buffer_find(c, call->out, hk_call_out_bytes(call), false, &v));
    *out = v ? v->table : NULL;
  }
  return HK_OK;
}

hk_status hk_gpu_buffer_for(ncclComm_t c, int peer, const void *p, size_t bytes, bool *reads, const int64_t **table) {
  hk_gpu_buffer *v;
  *table = NULL;
  *reads = hk_gpu_is_local(hk_gpu_of(c)->links, peer) && !hk_gpu_is_remote(c, peer);
  if (!hk_gpu_can_read(hk_gpu_of(c)->links, peer) || *reads) return HK_OK;
  HK_OR_RETURN(buffer_find(c, p, bytes, false, &v));
  *reads = v && v->seen[peer] != HK_GPU_UNSEEN;
  if (*reads) *table = v->table;
  return HK_OK;
}

/* ---- symmetric windows ---- */

hk_status hk_gpu_buffer_window(ncclComm_t c, const void *p, size_t bytes, hk_gpu_buffer **out) {
  hk_gpu_buffer *v;
  *out = NULL;
  HK_OR_RETURN(buffer_find(c, p, bytes, true, &v));
  if (!v || !v->shareable) return HK_OK;
  for (int r = 0; r < c->nranks; r++)
    if (r != c->rank && v->seen[r] == HK_GPU_UNSEEN)
      return HK_FAIL(HK_ERR_REMOTE,
                     "rank %d cannot open rank %d's window at %p (its log says why), and others may not know: set "
                     "NCCL_CTA_POLICY=0 to go without copy engines",
                     r, c->rank, (void *)v->begin);
  *out = v;
  return HK_OK;
}

/* Returns the address of rank r's window with the same key, and its length in *bytes; 0: it is not open yet. */
static uint64_t buffer_look(ncclComm_t c, int r, uint64_t key, uint64_t *bytes) {
  uint64_t at = 0;
  if (hk_gpu_is_remote(c, r)) {
    hk_gpu_buffers *b = hk_gpu_of(c)->buffers;
    pthread_mutex_lock(&b->imports_lock);
    for (const hk_gpu_import *i = b->imports; i && !at; i = i->next) {
      if (i->from != r || i->key != key) continue;
      at = i->begin;
      *bytes = i->bytes;
    }
    pthread_mutex_unlock(&b->imports_lock);
    return at;
  }
  pthread_mutex_lock(&lock);
  for (const hk_gpu_buffers *b = all; b; b = b->next) {
    if (hk_gpu_of(b->comm)->group != hk_gpu_of(c)->group || b->comm->rank != r) continue;
    for (const hk_gpu_buffer *v = b->first; v && !at; v = v->next) {
      if (v->key != key || !v->made || v->seen[c->rank] == HK_GPU_UNSEEN) continue;
      at = v->begin + (uint64_t)v->seen[c->rank];
      *bytes = v->end - v->begin;
    }
  }
  pthread_mutex_unlock(&lock);
  return at;
}

hk_status hk_gpu_buffer_meet(ncclComm_t c, hk_gpu_buffer *v) {
  hk_waiter w;
  uint64_t bytes = 0;
  hk_wait_begin(&w, &c->wait);
  for (int r = 0; r < c->nranks; r++) {
    if (r == c->rank || v->theirs[r]) continue;
    while (!(v->theirs[r] = buffer_look(c, r, v->key, &bytes))) HK_OR_RETURN(hk_wait_pause(&w));
    if (bytes != v->end - v->begin)
      return HK_FAIL(HK_ERR_USAGE,
                     "a symmetric window has %zu bytes on rank %d and %zu on rank %d: register windows in the same "
                     "order and size on all ranks",
                     (size_t)(v->end - v->begin), c->rank, (size_t)bytes, r);
  }
  return HK_OK;
}
