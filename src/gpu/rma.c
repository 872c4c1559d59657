/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on GPUs, without a block of threads. A put is a copy to the peer's window; after it the stream
 * writes a word. A wait is a stream wait for that word.  If the GPUs do not reach each other, rma_proxy.c copies and
 * writes instead.
 *
 * The words are in pinned host memory of the waiting rank, for the reason given in copy.c.  Outside a graph a signal is
 * a counter: the sender writes it, and both ranks know its next value.  In a graph, which may be replayed, it is a
 * flag: the receiver resets it, then acknowledges, and the sender's next replay waits for the acknowledgement. A signal
 * has several such flags, which are used in turn: the n-th put of a capture matches the n-th wait of a capture. */
#include "rma.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "../core/call.h"
#include "../rma/windows.h"
#include "../transport/cuda/share.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"
#include "rma_proxy.h"

enum { TURNS = 15, TABLE_MAX = 1 << 28 };

/* One signal of one other rank. */
typedef struct words {
  uint32_t count;        /* number of signals, cyclic; the other rank writes it */
  uint32_t full[TURNS];  /* 1: the other rank's captured signal has arrived */
  uint32_t taken[TURNS]; /* 1: the other rank acknowledges this rank's captured signal */
  uint32_t unused;
} words;
enum { WORDS = sizeof(words) / sizeof(uint32_t) };
_Static_assert(sizeof(words) == 128, "ranks do not share a cache line");

/* Signals that this rank has enqueued, for one signal of one other rank. */
typedef struct counts {
  uint32_t sent, awaited;       /* counts outside graphs */
  uint32_t put_turn, wait_turn; /* turns in the current capture */
} counts;

struct hk_gpu_rma {
  size_t row; /* signals for each other rank */
  hk_shared *opened;
  words **tables; /* [nranks] */
  counts *counts; /* [nranks * row] */
  uint64_t capture;
};

static words *gpu_rma_words_at(ncclComm_t c, int table, int other, uint32_t signal) {
  const struct hk_gpu_rma *r = hk_gpu_of(c)->rma;
  return r->tables[table] + (size_t)other * r->row + signal;
}

/* ---- begin and end ---- */

typedef struct offer {
  uint64_t region, at, signals;
} offer;

static hk_status gpu_rma_open_tables(ncclComm_t c, struct hk_gpu_rma *r, const offer *all) {
  const hk_gpu *g = hk_gpu_of(c);
  for (int i = 0; i < c->nranks; i++) {
    if (all[i].signals != all[c->rank].signals)
      return HK_FAIL(HK_ERR_USAGE,
                     "rank %d has %llu signals (numRmaCtx times numRmaSig) and rank %d has %llu: set them "
                     "(NCCL_NUM_RMA_CTX) equally on all ranks",
                     i, (unsigned long long)all[i].signals, c->rank, (unsigned long long)all[c->rank].signals);
    r->tables[i] = (void *)(uintptr_t)all[i].at; /* right for ranks of this process */
    if (!hk_gpu_is_remote(c, i) || hk_gpu_is_far(c, i)) continue;
    HK_OR_RETURN(hk_share_host_open(g->links->env, i, all[i].region, &r->opened[i]));
    r->tables[i] = r->opened[i].memory.base;
  }
  return HK_OK;
}

static void gpu_rma_end(ncclComm_t c, struct hk_gpu_rma *r) {
  for (int i = 0; r->opened && i < c->nranks; i++) hk_share_drop(hk_gpu_of(c)->device, &r->opened[i]);
  free(r->opened);
  free(r->tables);
  free(r->counts);
  free(r);
}

hk_status hk_gpu_rma_begin(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  size_t n = (size_t)c->nranks, row = (size_t)c->options.rma_contexts * (size_t)c->options.rma_signals;
  const bool far = c->lsa.ranks < c->nranks; /* equal on all ranks */
  if (g->rma) return HK_OK;
  struct hk_gpu_rma *r = calloc(1, sizeof *r);
  offer *all = calloc(n, sizeof *all);
  if (r) r->row = row;
  if (r) r->opened = calloc(n, sizeof *r->opened);
  if (r) r->tables = calloc(n, sizeof *r->tables);
  if (r) r->counts = calloc(n * row, sizeof *r->counts);
  if (!r || !all || !r->opened || !r->tables || !r->counts)
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory for %zu signals of %zu ranks", row, n), out);
  if (n * row > TABLE_MAX / sizeof(words))
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%zu signals (numRmaCtx times numRmaSig) of %zu ranks: %zu in all are the most",
                       row, n, TABLE_MAX / sizeof(words)),
               out);
  hk_shared *mine = &g->group->signals[c->rank]; /* others of this process may write to it when this rank has left */
  HK_TRY(hk_share_host_make(g->device, n * row * sizeof(words), mine, &all[c->rank].region), out);
  for (size_t i = 0; i < n * row; i++)
    for (int k = 0; k < TURNS; k++) ((words *)mine->memory.host)[i].taken[k] = 1;
  all[c->rank].at = (uintptr_t)mine->memory.base;
  all[c->rank].signals = row;
  if (far) HK_TRY(hk_gpu_rma_proxy_begin(c), out);
  HK_TRY(hk_gpu_exchange(c, all, sizeof *all), out);
  HK_TRY(gpu_rma_open_tables(c, r, all), out);
  HK_TRY(hk_gpu_exchange(c, NULL, 0), out); /* after all ranks have opened them, a rank may leave */
  g->rma = r;
  if (far) rc = hk_gpu_rma_proxy_start(c);
out:
  if (rc != HK_OK && r && !g->rma) gpu_rma_end(c, r);
  free(all);
  return rc;
}

void hk_gpu_rma_end(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_rma_proxy_end(c);
  if (g->rma) gpu_rma_end(c, g->rma);
}

bool hk_gpu_rma_come(ncclComm_t c, int from, uint32_t word) {
  const hk_gpu *g = hk_gpu_of(c);
  uint32_t *at = (uint32_t *)(void *)((words *)g->group->signals[c->rank].memory.host + (size_t)from * g->rma->row) +
                 word;
  if (word / WORDS >= g->rma->row) return false;
  /* relaxed: only rma_proxy.c's thread increments it.  release: a reader that sees the value also sees the data */
  const uint32_t value = word % WORDS ? 1 : __atomic_load_n(at, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
  return true;
}

/* Sets the word to 1; false: it was 1 already. */
static bool gpu_rma_set(uint32_t *word) { return __atomic_exchange_n(word, 1, __ATOMIC_RELAXED) != 1; }

bool hk_gpu_rma_free(ncclComm_t c) {
  const hk_gpu *g = hk_gpu_of(c);
  bool any = hk_gpu_rma_proxy_free(c);
  if (!g->rma) return any;
  words *mine = g->group->signals[c->rank].memory.host;
  for (size_t i = 0; i < (size_t)c->nranks * g->rma->row; i++) { /* relaxed, all: no data depends on it */
    __atomic_store_n(&mine[i].count, __atomic_load_n(&g->rma->counts[i].awaited, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    for (int k = 0; k < TURNS; k++) {
      any |= gpu_rma_set(&mine[i].full[k]);
      any |= gpu_rma_set(&mine[i].taken[k]);
    }
  }
  return any;
}

void hk_gpu_rma_free_replays(ncclComm_t c) {
  enum { QUIET_MS = 50, PATIENCE_MS = 3000 };
  const hk_wait_env env = {.spins = 100};
  hk_waiter w;
  if (!hk_gpu_of(c)->rma || !hk_gpu_of(c)->rma->capture) return;
  const uint64_t begin = hk_now_ns(), ms = 1000000;
  uint64_t taken = begin;
  hk_wait_begin(&w, &env);
  do {
    if (hk_gpu_rma_free(c)) taken = hk_now_ns();
    (void)hk_wait_pause(&w);
  } while (hk_now_ns() < taken + QUIET_MS * ms && hk_now_ns() < begin + PATIENCE_MS * ms);
}

/* ---- calls ---- */

/* Waits until the word is 1 and resets it to 0. */
static hk_status gpu_rma_take(hk_device *d, uint32_t *word, hk_queue q) {
  hk_status rc = d->ops->word->wait(d, word, 1, q);
  return rc == HK_OK ? d->ops->word->write(d, word, 0, q) : rc;
}

/* Copies the data, if there is any, then writes the word of the peer's signal. */
static hk_status gpu_rma_send(const hk_call *call, size_t offset, uint32_t value, size_t bytes,
                              const hk_queue_state *s) {
  ncclComm_t c = call->comm;
  hk_device *d = hk_gpu_of(c)->device;
  hk_symmetric *w = bytes ? hk_symmetric_window(c, call->window) : NULL;
  if (bytes && !w)
    return HK_FAIL(HK_ERR_USAGE,
                   "rank %d puts to window %llu, which it has deregistered: a window must stay registered until all "
                   "puts to it have arrived",
                   c->rank, (unsigned long long)call->window);
  if (hk_gpu_is_far(c, call->root)) {
    const hk_gpu_rma_proxy_op op = {.peer = call->root,
                                    .word = call->signal * WORDS + (uint32_t)(offset / sizeof(uint32_t)),
                                    .from = call->in,
                                    .bytes = bytes,
                                    .window = call->window,
                                    .offset = call->offset};
    return hk_gpu_rma_proxy_enqueue(c, &op, call->stream, s);
  }
  if (bytes) {
    char *to = hk_symmetric_at(w, hk_lsa_rank(c, call->root)) + call->offset;
    HK_OR_RETURN(d->ops->copy(d, to, call->in, bytes, call->stream));
  }
  return d->ops->word->write(d, (char *)gpu_rma_words_at(c, call->root, c->rank, call->signal) + offset, value,
                             call->stream);
}

static hk_status gpu_rma_put(const hk_call *call, const hk_queue_state *s, counts *n) {
  ncclComm_t c = call->comm;
  hk_device *d = hk_gpu_of(c)->device;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  if (s->capturing) {
    uint32_t turn = n->put_turn++ % TURNS;
    HK_OR_RETURN(gpu_rma_take(d, &gpu_rma_words_at(c, c->rank, call->root, call->signal)->taken[turn], call->stream));
    return gpu_rma_send(call, offsetof(words, full) + turn * sizeof(uint32_t), 1, bytes, s);
  }
  HK_OR_RETURN(gpu_rma_send(call, offsetof(words, count), n->sent + 1, bytes, s));
  n->sent++;
  return HK_OK;
}

static hk_status gpu_rma_await(const hk_call *call, const hk_queue_state *s, counts *n) {
  ncclComm_t c = call->comm;
  hk_device *d = hk_gpu_of(c)->device;
  words *here = gpu_rma_words_at(c, c->rank, call->root, call->signal);
  if (!s->capturing) {
    uint32_t to = n->awaited + (uint32_t)call->count;
    /* relaxed: hk_gpu_rma_free reads it in any thread */
    __atomic_store_n(&n->awaited, to, __ATOMIC_RELAXED);
    return d->ops->word->reach(d, &here->count, to, call->stream);
  }
  for (size_t i = 0; i < call->count; i++) {
    uint32_t turn = n->wait_turn++ % TURNS;
    HK_OR_RETURN(gpu_rma_take(d, &here->full[turn], call->stream));
    HK_OR_RETURN(gpu_rma_send(call, offsetof(words, taken) + turn * sizeof(uint32_t), 1, 0, s));
  }
  return HK_OK;
}

hk_status hk_gpu_rma_enqueue(const hk_call *call, const hk_queue_state *s) {
  struct hk_gpu_rma *r = hk_gpu_of(call->comm)->rma;
  counts *n = &r->counts[(size_t)call->root * r->row + call->signal];
  if (s->capturing && s->capture != r->capture) {
    r->capture = s->capture;
    for (size_t i = 0; i < (size_t)call->comm->nranks * r->row; i++) r->counts[i].put_turn = r->counts[i].wait_turn = 0;
  }
  return (call->p2p == HK_P2P_PUT ? gpu_rma_put : gpu_rma_await)(call, s, n);
}
