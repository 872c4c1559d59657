/* SPDX-License-Identifier: Apache-2.0 */
/* The words by which ranks order their copy engines (copy.c), and whether copy engines are used. */
#include <stdlib.h>
#include "../base/log.h"
#include "../core/comm.h"
#include "../transport/cuda/share.h"
#include "gpu.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"
#include "run.h"

enum { WORD_BYTES = 64 };
static size_t copy_words_at(int from, bool done) { return (size_t)(2 * from + done) * WORD_BYTES; }
/* Each rank sends this to the others, so that they can open its words. */
typedef struct words {
  uint64_t region, at; /* at: address for GPUs of its own process. 0: it has no words */
} words;

/* Opens the words of the other ranks. False if one cannot be opened: the ranks then agree to use no copy engines. */
static bool copy_words_open(ncclComm_t c, const words *all) {
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

static hk_status copy_words_make(ncclComm_t c) {
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
  if (hk_share_host_make(g->device, copy_words_at(c->nranks, false), mine, &all[c->rank].region) == HK_OK)
    all[c->rank].at = (uintptr_t)mine->memory.base;
  HK_TRY(hk_gpu_exchange(c, all, sizeof *all), out);
  fine[c->rank] = copy_words_open(c, all);
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
  return g->copies->usable ? copy_words_make(c) : HK_OK;
}

void *hk_gpu_copy_word(ncclComm_t c, int to, int from, bool done) {
  return hk_gpu_of(c)->copies->words_at[to] + copy_words_at(from, done);
}

void hk_gpu_copy_free(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  if (!atomic_load(&g->copies->used)) return;
  char *mine = g->group->words[c->rank].host;
  for (int r = 0; r < 2 * c->nranks; r++) /* relaxed: no data depends on it */
    __atomic_store_n((uint32_t *)(void *)(mine + copy_words_at(r / 2, r % 2)), 1, __ATOMIC_RELAXED);
}

void hk_gpu_copy_end(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  for (int r = 0; g->copies->words && r < c->nranks; r++) hk_share_drop(g->device, &g->copies->words[r]);
  free(g->copies->words);
  free(g->copies->words_at);
}
