/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives by copy engines, with no block of threads: each rank copies what it has into the others' output windows, in
 * its stream.  Two words for each pair of ranks lie in the receiver's memory: that the sender's own output may be written to,
 * and that the sender has written.  A stream waits for a word to be 1 and sets it back to 0 at once, so that a captured call
 * can be replayed: the other end writes a word again only after the other word of this rank has come, which its
 * stream writes behind the one set back. */
#include "../base/log.h"
#include "gpu_set.h"

/* Words of rank `to` that rank `from` writes. */
static void *word(ncclComm_t c, int to, int from, bool done) { return hk_gpu_copy_word(c, to, from, done); }

void hk_gpu_copy_choose(ncclComm_t c, bool asked, bool all, bool alone) {
  hk_gpu *g = c->gpu;
  bool far = false; /* on all ranks, or on none */
  for (int r = 0; r < c->nranks; r++) far = far || g->direct[r] == HK_GPU_NET;
  const char *why = c->nranks == 1 ? "there is one rank"
                    : !all
                        ? "not all ranks ask for it, or a driver has no stream memory operations that can be captured"
                    : !alone           ? "ranks share a GPU"
                    : g->staged || far ? "some GPUs do not reach each other's memory"
                                       : NULL;
  g->copies = asked && !why;
  if (asked)
    HK_INFO(HK_SUB_INIT, "rank %d: CTA policy zero: %s%s", c->rank,
            why ? "kernels all the same, as " : "copy engines for windows of NCCL_WIN_COLL_SYMMETRIC", why ? why : "");
}

hk_status hk_gpu_copy_window(const hk_call *call, hk_gpu_view **out) {
  ncclComm_t c = call->comm;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  hk_coll coll = (hk_coll)call->coll;
  *out = NULL;
  if (!c->gpu->copies || call->p2p) return HK_OK;
  /* In place an alltoall's output is what others still have to be sent. */
  if (coll != HK_ALLGATHER && coll != HK_BROADCAST && (coll != HK_ALLTOALL || call->in == call->out)) return HK_OK;
  return hk_gpu_view_window(c, call->out, bytes * (size_t)hk_coll_out_blocks(coll, c->nranks), out);
}

/* `done`: the words of the second kind. */
static hk_status meet(ncclComm_t c, bool done, hk_queue q) {
  hk_status rc = HK_OK;
  hk_device *d = c->gpu->device;
  for (int i = 1; i < c->nranks; i++)
    HK_TRY(d->ops->word_write(d, word(c, (c->rank + i) % c->nranks, c->rank, done), 1, q), out);
  for (int r = 0; r < c->nranks; r++) {
    if (r == c->rank) continue;
    HK_TRY(d->ops->word_wait(d, word(c, c->rank, r, done), 1, q), out);
    HK_TRY(d->ops->word_write(d, word(c, c->rank, r, done), 0, q), out);
  }
out:
  return rc;
}

hk_status hk_gpu_copy_run(const hk_gpu_piece *p, hk_queue q) {
  hk_status rc = HK_OK;
  const hk_call *call = p->call;
  ncclComm_t c = call->comm;
  hk_device *d = c->gpu->device;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype), at = (uintptr_t)call->out - p->window->begin;
  atomic_store(&c->gpu->copied, true);
  HK_TRY(meet(c, false, q), out);
  for (int i = 0; i < c->nranks; i++) { /* each begins with another one, so that all links are in use */
    int r = (c->rank + i) % c->nranks;
    char *to = r == c->rank ? call->out : (char *)(uintptr_t)p->window->theirs[r] + at;
    const char *from = call->in;
    if (call->coll == HK_BROADCAST && c->rank != call->root) break;
    if (call->coll == HK_ALLTOALL) from += (size_t)r * bytes;
    if (call->coll != HK_BROADCAST) to += (size_t)c->rank * bytes;
    if (to != from) HK_TRY(d->ops->copy(d, to, from, bytes, q), out);
  }
  rc = meet(c, true, q);
out:
  return rc;
}

void hk_gpu_copy_free(ncclComm_t c) {
  hk_gpu *g = c->gpu;
  hk_device *d = g->device;
  if (!atomic_load(&g->copied)) return;
  for (int r = 0; r < 2 * c->nranks; r++)
    if (d->ops->word_write(d, word(c, c->rank, r / 2, r % 2), 1, g->queue) != HK_OK) return; /* its failure is logged */
  (void)d->ops->wait(d, g->queue);
}
