/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations between GPUs that do not reach each other: packets and their jobs (rma_proxy.h). */
#include "rma_proxy.h"
#include <stdlib.h>
#include <string.h>
#include "../boot/bootstrap.h"
#include "../core/call.h"
#include "../rma/registration.h"
#include "../rma/rma.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "proxy.h"
#include "rma.h"

#define LAST_NS (2000 * UINT64_C(1000000)) /* the longest wait for its last packets at the end */

enum { SLOTS = 4, PIECE_MIN = 4096, PIECE_MAX = 128 << 10, INBOX_BYTES = 8 << 20, BLOCK_JOBS = 64 };
enum { CAME, GIVEN_BACK }; /* signals between two ranks: packets, slots */
_Static_assert(GIVEN_BACK < (int)HK_RMA_ROW, "both are there");

/* The head of a packet; the data follows at DATA_AT. */
typedef struct head {
  uint64_t window, offset;
  uint32_t bytes, word;
} head;
enum { NO_WORD = UINT32_MAX, DATA_AT = 64 };
_Static_assert(sizeof(head) <= DATA_AT, "the data is aligned");

/* A put in a stream or in a graph.  Its words are in pinned memory: the stream writes `go`, the proxy writes `done`.
 * In a captured put they are flags: 1, then reset. Otherwise they have the value `turn`, which grows with each use of
 * the job. */
typedef struct job {
  _Atomic(bool) armed; /* false: it is free */
  uint32_t turn;
  hk_gpu_rma_proxy_op op;
  uint32_t *go, *done;       /* for the CPU */
  uint32_t *go_at, *done_at; /* for the GPU */
  struct hk_gpu_rma_proxy *far;
  bool running; /* this and `sent` belong to the proxy's thread */
  size_t sent;
} job;

typedef struct block {
  struct block *next;
  bool captured;
  hk_memory words;
  job jobs[BLOCK_JOBS];
} block;

typedef struct other {
  uint64_t sent, taken;   /* packets */
  bool closed_to_signals; /* it accepts no more signals from this rank: it is ending */
} other;

struct hk_gpu_rma_proxy {
  ncclComm_t comm;
  hk_device *device;
  hk_queue queue;
  size_t piece, slot_bytes;
  hk_memory inbox; /* pinned; rma/rma.c owns the memory */
  char *inbox_host;
  size_t inbox_at;
  hk_memory stage;       /* buffer of the packet that is being sent */
  block *_Atomic blocks; /* new blocks are inserted at the head of the list */
  other *others;
  int blocked;      /* the rank whose slots are full; -1: none */
  uint64_t stop_ns; /* when the thread's end was asked for; 0: not yet */
  hk_gpu_proxy_work work;
  _Atomic(int) refs; /* one for the communicator, and one for each captured job, whose graph may live longer */
};

/* ---- packets ---- */

static hk_status rma_proxy_put(struct hk_gpu_rma_proxy *f, int peer, const void *from, size_t bytes, uint64_t offset,
                               uint32_t signal) {
  const hk_call call = {.comm = f->comm,
                        .in = from,
                        .count = bytes,
                        .coll = HK_SENDRECV,
                        .p2p = HK_P2P_PUT,
                        .dtype = HK_U8,
                        .root = peer,
                        .offset = offset,
                        .signal = signal};
  return hk_rma_put(&call);
}

static uint64_t rma_proxy_slot_at(const struct hk_gpu_rma_proxy *f, int from, uint64_t packet) {
  return ((uint64_t)from * SLOTS + packet % SLOTS) * f->slot_bytes;
}

/* Sends the job's next packet; *sent is false if the peer has no slot for it. */
static hk_status rma_proxy_send_packet(struct hk_gpu_rma_proxy *f, job *j, bool *sent) {
  const hk_gpu_rma_proxy_op *op = &j->op;
  other *p = &f->others[op->peer];
  const size_t left = op->bytes - j->sent, bytes = left < f->piece ? left : f->piece;
  *sent = p->sent - hk_rma_count(f->comm, op->peer, GIVEN_BACK) < SLOTS;
  if (!*sent) return HK_OK;
  char *stage = f->stage.host;
  const head h = {op->window, op->offset + j->sent, (uint32_t)bytes, bytes == left ? op->word : NO_WORD};
  memcpy(stage, &h, sizeof h);
  if (bytes) {
    HK_OR_RETURN(
        hk_device_copy(f->device, (char *)f->stage.base + DATA_AT, (const char *)op->from + j->sent, bytes, f->queue));
  }
  HK_OR_RETURN(rma_proxy_put(f, op->peer, stage, DATA_AT + bytes,
                             f->inbox_at + rma_proxy_slot_at(f, f->comm->rank, p->sent), CAME));
  p->sent++;
  j->sent += bytes;
  return HK_OK;
}

static hk_status rma_proxy_run_job(struct hk_gpu_rma_proxy *f, job *j, bool captured, bool *moved) {
  /* acquire: pairs with the release in hk_gpu_rma_proxy_enqueue */
  if (!atomic_load_explicit(&j->armed, memory_order_acquire)) return HK_OK;
  if (!j->running) {
    /* acquire: the GPU has written the put's data before the word */
    if (__atomic_load_n(j->go, __ATOMIC_ACQUIRE) != j->turn) return HK_OK;
    if (captured) __atomic_store_n(j->go, 0, __ATOMIC_RELAXED); /* relaxed: the stream waits for `done` first */
    j->running = true;
    j->sent = 0;
  }
  do { /* a word alone is one packet */
    bool sent;
    HK_OR_RETURN(rma_proxy_send_packet(f, j, &sent));
    if (!sent) f->blocked = j->op.peer;
    if (!sent) return HK_OK;
    *moved = true;
  } while (j->sent < j->op.bytes);
  j->running = false;
  const uint32_t turn = j->turn;
  /* release, both: then the stream may change the data, and the next put may reuse the job; neither is read any more.
   * In this order, because a free job may get another turn. */
  __atomic_store_n(j->done, turn, __ATOMIC_RELEASE);
  if (!captured) atomic_store_explicit(&j->armed, false, memory_order_release);
  return HK_OK;
}

static hk_status rma_proxy_send_all(struct hk_gpu_rma_proxy *f, bool *moved) {
  f->blocked = -1;
  for (block *b = atomic_load(&f->blocks); b; b = b->next)
    for (int i = 0; i < BLOCK_JOBS; i++) HK_OR_RETURN(rma_proxy_run_job(f, &b->jobs[i], b->captured, moved));
  return HK_OK;
}

/* Processes a received packet; *done is false if this rank has not registered the window yet. */
static hk_status rma_proxy_carry_out(struct hk_gpu_rma_proxy *f, int from, const head *h, const char *data,
                                     bool *done) {
  hk_status rc = HK_OK;
  ncclComm_t c = f->comm;
  hk_window w = {NULL, 0};
  *done = true;
  if (h->bytes) {
    const hk_window_state state = hk_registration_window(c, h->window, &w);
    *done = state != HK_WINDOW_LATER;
    if (!*done) return HK_OK;
    if (state == HK_WINDOW_GONE || h->offset > w.bytes || h->bytes > w.bytes - h->offset)
      return HK_FAIL(HK_ERR_USAGE,
                     "rank %d puts %u bytes at %llu of window %llu of rank %d, which %s: a window must stay registered "
                     "until all puts to it have arrived",
                     from, h->bytes, (unsigned long long)h->offset, (unsigned long long)h->window, c->rank,
                     state == HK_WINDOW_GONE ? "is deregistered" : "is smaller");
    HK_TRY(hk_device_copy(f->device, w.base + h->offset, data, h->bytes, f->queue), out);
  }
  if (h->word != NO_WORD && !hk_gpu_rma_come(c, from, h->word))
    rc = HK_FAIL(HK_ERR_INTERNAL, "rank %d: a packet of rank %d has a signal that does not exist", c->rank, from);
out:
  return rc;
}

static hk_status rma_proxy_receive(struct hk_gpu_rma_proxy *f, int from, bool *moved) {
  hk_status rc = HK_OK;
  other *p = &f->others[from];
  while (p->taken != hk_rma_count(f->comm, from, CAME)) {
    const uint64_t at = rma_proxy_slot_at(f, from, p->taken);
    bool done;
    head h;
    memcpy(&h, f->inbox_host + at, sizeof h);
    if (h.bytes > f->piece) return HK_FAIL(HK_ERR_INTERNAL, "a packet of rank %d has %u bytes", from, h.bytes);
    HK_TRY(rma_proxy_carry_out(f, from, &h, (char *)f->inbox.base + at + DATA_AT, &done), out);
    if (!done) return HK_OK;
    p->taken++;
    *moved = true;
    if (p->closed_to_signals) continue;
    rc = rma_proxy_put(f, from, NULL, 0, 0, GIVEN_BACK);
    if (rc == HK_OK || atomic_load(&f->comm->health.failure)) continue;
    /* The peer has ended normally and waits for nothing. If it has died, the control connections report that. */
    p->closed_to_signals = true;
    rc = HK_OK;
  }
out:
  return rc;
}

/* ---- the work of the proxy's thread ---- */

static hk_status rma_proxy_step(void *arg, bool *moved) {
  struct hk_gpu_rma_proxy *f = arg;
  for (int r = 0; r < f->comm->nranks; r++)
    if (hk_gpu_is_far(f->comm, r)) HK_OR_RETURN(rma_proxy_receive(f, r, moved));
  return rma_proxy_send_all(f, moved);
}

static hk_status rma_proxy_check(void *arg) {
  const struct hk_gpu_rma_proxy *f = arg;
  if (f->blocked < 0 || f->stop_ns || !hk_bootstrap_left(f->comm->bootstrap, f->blocked)) return HK_OK;
  return HK_FAIL(HK_ERR_REMOTE,
                 "rank %d has left the communicator (ncclCommDestroy), and rank %d puts to it: wait for the signals of "
                 "all puts before a rank destroys its communicator",
                 f->blocked, f->comm->rank);
}

/* True if the other ranks have taken all packets.  To give slots back they need this rank's memory. */
static bool rma_proxy_quiet(void *arg) {
  struct hk_gpu_rma_proxy *f = arg;
  const uint64_t now = hk_now_ns();
  if (!f->stop_ns) f->stop_ns = now;
  if (now - f->stop_ns > LAST_NS) return true;
  for (int r = 0; r < f->comm->nranks; r++)
    if (f->others[r].sent != hk_rma_count(f->comm, r, GIVEN_BACK) && !hk_bootstrap_left(f->comm->bootstrap, r))
      return false;
  return true;
}

/* ---- begin and end ---- */

static void rma_proxy_drop(struct hk_gpu_rma_proxy *f) {
  if (atomic_fetch_sub(&f->refs, 1) != 1) return;
  for (block *b = atomic_load(&f->blocks), *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(f->others);
  free(f);
}

hk_status hk_gpu_rma_proxy_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_device_ops *ops = g->device->ops;
  struct hk_gpu_rma_proxy *f = calloc(1, sizeof *f);
  if (f) f->others = calloc((size_t)c->nranks, sizeof *f->others);
  if (!f || !f->others) {
    free(f);
    return HK_FAIL_ERRNO("no memory for one-sided operations");
  }
  atomic_store(&f->refs, 1);
  f->comm = c;
  f->device = g->device;
  f->blocked = -1;
  f->work = (hk_gpu_proxy_work){.step = rma_proxy_step, .check = rma_proxy_check, .quiet = rma_proxy_quiet, .arg = f};
  g->far = f;
  f->piece = INBOX_BYTES / SLOTS / (size_t)c->nranks;
  f->piece = f->piece < PIECE_MIN ? PIECE_MIN : f->piece > PIECE_MAX ? PIECE_MAX : f->piece & ~(size_t)(PIECE_MIN - 1);
  f->slot_bytes = DATA_AT + f->piece;
  const size_t bytes = (size_t)c->nranks * SLOTS * f->slot_bytes;
  HK_OR_RETURN(hk_rma_begin_packets(c, bytes, &f->inbox_host, &f->inbox_at));
  HK_OR_RETURN(ops->memory->pin(g->device, f->inbox_host, bytes, &f->inbox));
  HK_OR_RETURN(ops->memory->alloc_host(g->device, f->slot_bytes, &f->stage));
  hk_wire_memory(c, f->stage.host, f->slot_bytes, true); /* a card may send from it, until the transports end */
  return ops->stream->create(g->device, &f->queue);
}

hk_status hk_gpu_rma_proxy_start(ncclComm_t c) { return hk_gpu_proxy_give(c, &hk_gpu_of(c)->far->work); }

void hk_gpu_rma_proxy_end(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  struct hk_gpu_rma_proxy *f = g->far;
  if (!f) return;
  const hk_device_ops *ops = g->device->ops;
  for (block *b = atomic_load(&f->blocks); b; b = b->next) (void)ops->memory->release(g->device, &b->words);
  (void)ops->memory->release(g->device, &f->stage);
  (void)ops->memory->release(g->device, &f->inbox);
  (void)ops->stream->free(g->device, f->queue);
  rma_proxy_drop(f);
}

/* ---- calls ---- */

static hk_status rma_proxy_new_block(struct hk_gpu_rma_proxy *f, bool captured, block **out) {
  block *b = calloc(1, sizeof *b);
  if (!b) return HK_FAIL_ERRNO("no memory for one-sided operations");
  hk_status rc =
      hk_gpu_pinned_get(hk_gpu_of(f->comm)->memory, HK_GPU_PINNED_STAYS, BLOCK_JOBS * 2 * sizeof(uint32_t), &b->words);
  if (rc != HK_OK) {
    free(b);
    return rc;
  }
  for (size_t i = 0; i < BLOCK_JOBS; i++) {
    job *j = &b->jobs[i];
    j->far = f;
    j->go = (uint32_t *)b->words.host + 2 * i;
    j->done = j->go + 1;
    j->go_at = (uint32_t *)b->words.base + 2 * i;
    j->done_at = j->go_at + 1;
  }
  b->captured = captured;
  b->next = atomic_load(&f->blocks);
  atomic_store(&f->blocks, b);
  *out = b;
  return HK_OK;
}

static hk_status rma_proxy_free_job(struct hk_gpu_rma_proxy *f, bool captured, job **out) {
  hk_status rc = HK_OK;
  block *b;
  for (b = atomic_load(&f->blocks); b; b = b->next)
    for (int i = 0; b->captured == captured && i < BLOCK_JOBS; i++) {
      *out = &b->jobs[i];
      /* acquire: the thread that has freed it no longer uses it */
      if (!atomic_load_explicit(&b->jobs[i].armed, memory_order_acquire)) return HK_OK;
    }
  rc = rma_proxy_new_block(f, captured, &b);
  if (rc == HK_OK) *out = &b->jobs[0];
  return rc;
}

/* Called on a thread of the driver, which may not call CUDA. */
static void rma_proxy_graph_gone(void *arg) {
  job *j = arg;
  struct hk_gpu_rma_proxy *f = j->far;
  atomic_store_explicit(&j->armed, false, memory_order_release); /* release: no replay uses it */
  rma_proxy_drop(f);
}

hk_status hk_gpu_rma_proxy_enqueue(ncclComm_t c, const hk_gpu_rma_proxy_op *op, hk_queue q, const hk_queue_state *s) {
  struct hk_gpu_rma_proxy *f = hk_gpu_of(c)->far;
  hk_device *d = f->device;
  const hk_device_ops *ops = d->ops;
  job *j;
  HK_OR_RETURN(rma_proxy_free_job(f, s->capturing, &j));
  j->op = *op;
  j->turn = s->capturing ? 1 : j->turn + 1;
  atomic_store_explicit(&j->armed, true, memory_order_release); /* release: the proxy reads the rest */
  if (s->capturing) {
    atomic_fetch_add(&f->refs, 1);
    HK_OR_RETURN(ops->graph->keep(d, s, rma_proxy_graph_gone, j));
  }
  HK_OR_RETURN(ops->word->write(d, j->go_at, j->turn, q));
  if (!s->capturing) return ops->word->reach(d, j->done_at, j->turn, q);
  HK_OR_RETURN(ops->word->wait(d, j->done_at, 1, q));
  return ops->word->write(d, j->done_at, 0, q);
}

bool hk_gpu_rma_proxy_free(ncclComm_t c) {
  struct hk_gpu_rma_proxy *f = hk_gpu_of(c)->far;
  bool any = false;
  for (block *b = f ? atomic_load(&f->blocks) : NULL; b; b = b->next)
    for (int i = 0; i < BLOCK_JOBS; i++) { /* relaxed, both: no data depends on it */
      job *j = &b->jobs[i];
      if (!atomic_load(&j->armed)) continue;
      any = (__atomic_exchange_n(j->done, j->turn, __ATOMIC_RELAXED) != j->turn && b->captured) || any;
    }
  return any;
}
