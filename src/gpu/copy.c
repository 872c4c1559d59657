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
#include "../core/call.h"
#include "../decide/payload.h"
#include "../run/profiler.h"
#include "../run/selection.h"
#include "buffer.h"
#include "launch.h"
#include "run.h"

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
    HK_OR_RETURN(d->ops->word->write(d, hk_gpu_copy_word(c, (c->rank + i) % c->nranks, c->rank, done), 1, q));
  for (int r = 0; r < c->nranks; r++) {
    if (r == c->rank) continue;
    HK_OR_RETURN(d->ops->word->wait(d, hk_gpu_copy_word(c, c->rank, r, done), 1, q));
    HK_OR_RETURN(d->ops->word->write(d, hk_gpu_copy_word(c, c->rank, r, done), 0, q));
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
