/* SPDX-License-Identifier: Apache-2.0 */
/* Which programs and calls the kernel of small messages runs, and its parameters (gpu_small.h). */
#include "gpu_small.h"
#include <stdbool.h>
#include <stdlib.h>
#include "../program/program.h"
#include "plan.h"

/* True if the program is a one-shot program: checks its operands. */
static bool gpu_small_fits(const hk_program *p) {
  const hk_instr *send = hk_program_instrs(p), *sum = send + 1;
  return send->ndst <= HK_GPU_SMALL_SENDS && sum->nsrc <= HK_GPU_SMALL_SOURCES;
}

/* Puts the link at a place of `w`; false if the link does not go in lines from one GPU to another. */
static bool gpu_small_put_end(hk_gpu_small *w, unsigned place, const hk_gpu_link *link) {
  if (!link->lines || !link->head || link->proxied || link->multi || link->others || link->own) return false;
  if (w->ends && w->nslots != link->nslots) return false;
  w->nslots = link->nslots;
  w->end[place] = (hk_gpu_small_end){.done = link->done, .head = link->head, .lines = link->lines};
  w->ends |= 1u << place;
  return true;
}
static bool gpu_small_put_ends(hk_gpu_small *w, const hk_program *p, const hk_gpu_link *links) {
  const hk_instr *send = hk_program_instrs(p), *sum = send + 1;
  const hk_operand *to = hk_instr_operands(p, send), *from = hk_instr_operands(p, sum) + 1;
  w->sources = (uint8_t)sum->nsrc;
  for (unsigned k = 0; k < sum->nsrc; k++) {
    if (from[k].space != HK_LINK) continue;
    if (!gpu_small_put_end(w, k, &links[from[k].link])) return false;
    w->peer[k] = links[from[k].link].peer;
  }
  for (unsigned k = 0; k < send->ndst; k++) {
    if (!gpu_small_put_end(w, HK_GPU_SMALL_SOURCES + k, &links[to[k].link])) return false;
    w->link[k] = (uint16_t)to[k].link;
  }
  return true;
}

hk_status hk_gpu_small_bind(const hk_plan *plan, unsigned nlinks, const hk_gpu_link *links, const hk_gpu_link *there,
                            hk_gpu_small **out) {
  *out = NULL;
  if (plan->orders != 1 || !plan->program->traits.one_shot || !gpu_small_fits(plan->program)) return HK_OK;
  hk_gpu_small *w = calloc(plan->channels, sizeof *w);
  if (!w) return HK_FAIL_ERRNO("no memory for a plan");
  for (unsigned c = 0; c < plan->channels; c++) {
    w[c].links = there + c * nlinks;
    w[c].first = c == 0;
    if (gpu_small_put_ends(&w[c], plan->program, links + c * nlinks)) continue;
    free(w);
    return HK_OK;
  }
  *out = w;
  return HK_OK;
}

/* Checks: one wave that fits the lines, and everything about the operator is known. */
unsigned hk_gpu_small_blocks(const hk_gpu_work *w) {
  const uint64_t total = w->sizes.total, chunk = w->sizes.chunk, least = total < chunk ? total : chunk;
  if (w->proto != HK_PROTO_LL || w->reducer.by_address || !total || least > HK_GPU_LL_MAX) return 0;
  const uint64_t blocks = (total + chunk - 1) / chunk;
  return blocks <= w->channels ? (unsigned)blocks : 0;
}

hk_gpu_small *hk_gpu_small_fill(hk_gpu_small *to, const hk_gpu_small *from, const hk_gpu_work *w) {
  for (uint64_t offset = 0; offset < w->sizes.total; offset += w->sizes.chunk, to++) {
    const uint64_t left = w->sizes.total - offset;
    *to = *from++;
    to->in = w->in + offset;
    to->out = w->out + offset;
    to->state = w->state;
    to->reducer = w->reducer;
    to->bytes = (uint32_t)(left < w->sizes.chunk ? left : w->sizes.chunk);
    to->signature = w->signature;
  }
  return to;
}
