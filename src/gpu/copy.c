/* SPDX-License-Identifier: Apache-2.0 */
/* The executor that uses copy engines and no block of threads.  It runs every collective that only moves data and has
 * an output on each rank. In its stream, a rank copies the blocks of its input to the output windows of the ranks that
 * hold them, according to hk_coll_source.
 *
 * A rank has two words for each sender: "the sender's own output may be written to" and "the sender has written".  The
 * words lie in pinned host memory: if the communicator fails, the host ends the stream's waits with its own stores.
 * Stores from another stream could be stuck behind the waiting stream in the same hardware queue.  A stream waits until
 * a word is 1 and resets it to 0 at once, so that a captured call can be replayed. The sender writes a word again only
 * after it has received this rank's other word, which this rank's stream writes after the reset. */
#include <stdlib.h>
#include "../base/log.h"
#include "../core/call.h"
#include "../decide/payload.h"
#include "../run/profiler.h"
#include "../run/selection.h"
#include "../transport/cuda/share.h"
#include "buffer.h"
#include "launch.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"
#include "run.h"

enum { WORD_BYTES = 64 };
static size_t copy_word_at(int from, bool done) { return (size_t)(2 * from + done) * WORD_BYTES; }
/* Words of rank `to` that rank `from` writes. */
static void *copy_word(ncclComm_t c, int to, int from, bool done) {
  return hk_gpu_of(c)->copies->words_at[to] + copy_word_at(from, done);
}

/* Each rank sends this to the others, so that they can open its words. */
typedef struct words {
  uint64_t region, at; /* at: address for GPUs of its own process. 0: it has no words */
} words;

/* Opens the words of the other ranks. False if one cannot be opened: the ranks then agree to use no copy engines. */
static bool copy_open_words(ncclComm_t c, const words *all) {
  hk_gpu *g = hk_gpu_of(c);
  for (int r = 0; r < c->nranks; r++) {
    if (!all[r].at) return false;
    g->copies->words_at[r] = (char *)(uintptr_t)all[r].at; /* valid for ranks of this process */
    if (!hk_gpu_is_remote(c, r)) continue;
    if (hk_share_host_open(g->links->env, r, all[r].region, &g->copies->words[r]) != HK_OK) return false;
    g->copies->words_at[r] = g->copies->words[r].memory.base;
  }
  return true;
}

static hk_status copy_make_words(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  size_t n = (size_t)c->nranks;
  words *all = calloc(n, sizeof *all);
  bool *fine = calloc(n, sizeof *fine);
  g->copies->words = calloc(n, sizeof *g->copies->words);
  g->copies->words_at = calloc(n, sizeof *g->copies->words_at);
  if (!all || !fine || !g->copies->words || !g->copies->words_at)
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the words of %d ranks' copy engines", c->nranks), out);
  /* of the process group: ranks of this process may write to it after this rank has left */
  hk_shared *mine = &g->group->words[c->rank];
  if (hk_share_host_make(g->device, copy_word_at(c->nranks, false), mine, &all[c->rank].region) == HK_OK)
    all[c->rank].at = (uintptr_t)mine->memory.base;
  HK_TRY(hk_gpu_exchange(c, all, sizeof *all), out);
  fine[c->rank] = copy_open_words(c, all);
  HK_TRY(hk_gpu_exchange(c, fine, sizeof *fine), out);
  for (int r = 0; r < c->nranks; r++) g->copies->usable = g->copies->usable && fine[r];
  if (!g->copies->usable)
    HK_INFO(HK_SUB_INIT, "rank %d: no copy engines: some process has no pinned memory that others can open", c->rank);
out:
  free(all);
  free(fine);
  return rc;
}

hk_status hk_gpu_copy_choose(ncclComm_t c, bool asked, bool all, bool alone) {
  hk_gpu *g = hk_gpu_of(c);
  const char *why = c->nranks == 1 ? "there is one rank"
                    : !all
                        ? "not all ranks ask for it, or a driver has no stream memory operations that can be captured"
                    : !alone                                ? "ranks share a GPU"
                    : g->links->staged || g->links->proxied ? "some GPUs do not reach each other's memory"
                    : hk_gpu_processes(g->links)            ? hk_wire_no_files(c)
                                                            : NULL;
  g->copies->usable = asked && !why;
  if (asked)
    HK_INFO(HK_SUB_INIT, "rank %d: CTA policy zero: %s%s", c->rank,
            why ? "kernels all the same, as " : "copy engines for windows of NCCL_WIN_COLL_SYMMETRIC", why ? why : "");
  return g->copies->usable ? copy_make_words(c) : HK_OK;
}

/* Does output block `block` of rank `to` hold a block of this rank's input?  Then *part is that block. */
static bool copy_gives(const hk_call *call, int to, int block, int *part) {
  int from;
  hk_coll_source((hk_coll)call->coll, to, call->comm->nranks, call->root, block, &from, part);
  return from == call->comm->rank;
}

/* True if another rank writes to the place of this rank's input block `part`.  Copies of different ranks are not
 * ordered. */
static bool copy_is_overwritten(const hk_call *call, int part, size_t bytes) {
  uintptr_t in = (uintptr_t)call->in + (size_t)part * bytes, out = (uintptr_t)call->out;
  int own, blocks = hk_coll_out_blocks((hk_coll)call->coll, call->comm->nranks);
  for (int b = 0; b < blocks; b++, out += bytes)
    if (in < out + bytes && out < in + bytes && !copy_gives(call, call->comm->rank, b, &own)) return true;
  return false;
}

/* True if all ranks may write at the same time, which an alltoall in place forbids. */
static bool copy_has_no_order(const hk_call *call, size_t bytes) {
  ncclComm_t c = call->comm;
  int part, blocks = hk_coll_out_blocks((hk_coll)call->coll, c->nranks);
  uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
  size_t in_bytes = bytes * (size_t)hk_coll_in_blocks((hk_coll)call->coll, c->nranks);
  if (in + in_bytes <= out || out + bytes * (size_t)blocks <= in) return true;
  for (int r = 0; r < c->nranks; r++)
    for (int b = 0; b < blocks && r != c->rank; b++)
      if (copy_gives(call, r, b, &part) && copy_is_overwritten(call, part, bytes)) return false;
  return true;
}

hk_status hk_gpu_copy_window(const hk_call *call, hk_gpu_buffer **out) {
  ncclComm_t c = call->comm;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  hk_coll coll = (hk_coll)call->coll;
  *out = NULL;
  if (call->options.policy && !((call->options.policy - 1) & NCCL_CTA_POLICY_ZERO)) return HK_OK;
  if (call->p2p || !hk_decide_engines(hk_selection_machine(c), coll) || !copy_has_no_order(call, bytes)) return HK_OK;
  return hk_gpu_buffer_window(c, call->out, bytes * (size_t)hk_coll_out_blocks(coll, c->nranks), out);
}

/* Exchanges words with all ranks. `done`: "has written"; else "may be written to". */
static hk_status copy_meet(ncclComm_t c, bool done, hk_queue q) {
  hk_device *d = hk_gpu_of(c)->device;
  for (int i = 1; i < c->nranks; i++)
    HK_OR_RETURN(d->ops->word->write(d, copy_word(c, (c->rank + i) % c->nranks, c->rank, done), 1, q));
  for (int r = 0; r < c->nranks; r++) {
    if (r == c->rank) continue;
    HK_OR_RETURN(d->ops->word->wait(d, copy_word(c, c->rank, r, done), 1, q));
    HK_OR_RETURN(d->ops->word->write(d, copy_word(c, c->rank, r, done), 0, q));
  }
  return HK_OK;
}

static hk_status copy_run(const hk_gpu_launch_item *p, hk_queue q) {
  const hk_call *call = p->call;
  ncclComm_t c = call->comm;
  hk_device *d = hk_gpu_of(c)->device;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype), at = (uintptr_t)call->out - p->window->begin;
  int blocks = hk_coll_out_blocks((hk_coll)call->coll, c->nranks), copies = 0;
  atomic_store(&hk_gpu_of(c)->copies->used, true);
  if (c->profiler) hk_profile_copy_sync(c->profiler, p->event, false);
  HK_OR_RETURN(copy_meet(c, false, q));
  for (int i = 0; i < c->nranks; i++) { /* each rank begins with another peer, so that all links are in use */
    int r = (c->rank + i) % c->nranks, part;
    char *to = r == c->rank ? call->out : (char *)(uintptr_t)p->window->theirs[r] + at;
    for (int b = 0; b < blocks; b++, to += bytes) {
      if (!copy_gives(call, r, b, &part)) continue;
      const char *from = (const char *)call->in + (size_t)part * bytes;
      if (to == from) continue;
      HK_OR_RETURN(d->ops->copy(d, to, from, bytes, q));
      copies++;
    }
  }
  if (c->profiler) {
    hk_profile_copy_batch(c->profiler, p->event, copies, bytes * (size_t)copies);
    hk_profile_copy_sync(c->profiler, p->event, true);
  }
  return copy_meet(c, true, q);
}

static hk_status copy_arguments(hk_gpu_launch_item *p) { return hk_gpu_buffer_meet(p->call->comm, p->window); }

static hk_status copy_launch(const hk_gpu_launch_batch *s, hk_gpu_launch_item **at, size_t n) {
  hk_gpu_launch_sort(at, n);
  for (size_t i = 0; i < n; i++) {
    HK_OR_RETURN(hk_gpu_launch_record(at[i], s->queue));
    HK_OR_RETURN(copy_run(at[i], s->queue));
  }
  return HK_OK;
}

const hk_gpu_executor hk_gpu_by_copies = {.arguments = copy_arguments, .launch = copy_launch};

void hk_gpu_copy_free(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  if (!atomic_load(&g->copies->used)) return;
  char *mine = g->group->words[c->rank].host;
  for (int r = 0; r < 2 * c->nranks; r++) /* relaxed: no data depends on it */
    __atomic_store_n((uint32_t *)(void *)(mine + copy_word_at(r / 2, r % 2)), 1, __ATOMIC_RELAXED);
}

void hk_gpu_copy_end(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  for (int r = 0; g->copies->words && r < c->nranks; r++) hk_share_drop(g->device, &g->copies->words[r]);
  free(g->copies->words);
  free(g->copies->words_at);
}
