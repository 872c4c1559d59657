/* SPDX-License-Identifier: Apache-2.0 */
/* A launch: blocks, warps, their stacks and shared memory. */
#include <stdlib.h>
#include <string.h>
#include "../cudaemu/emu.h"
#include "access.h"

enum { GARBAGE = 0xa5 };

static void begin_block(ptx_grid *g, ptx_block *b, unsigned index, const ptx_code *code, char *memory) {
  const ptx_launch *l = &g->l;
  b->grid = g;
  b->index = index;
  b->at[0] = index % l->grid[0];
  b->at[1] = index / l->grid[0] % l->grid[1];
  b->at[2] = index / l->grid[0] / l->grid[1];
  b->nwarps = (g->threads + LANES - 1) / LANES;
  b->live = g->threads;
  b->shared = memory;
  b->warps = calloc(b->nwarps, sizeof *b->warps);
  if (!b->warps) abort();
  memset(memory, GARBAGE, l->dynamic_shared);
  memset(memory + SHARED_STATIC, GARBAGE, l->kernel->m->shared);
  for (unsigned k = 0; k < b->nwarps; k++) {
    ptx_warp *w = &b->warps[k];
    const unsigned n = g->threads - k * LANES;
    w->block = b;
    w->grid = g;
    w->index = k;
    w->consts = l->kernel->m->consts;
    w->stack = w->fp = memory + SHARED_ROOM + (size_t)k * WARP_STACK;
    w->group[0] = (ptx_group){.pc = code->ins, .lanes = n >= LANES ? ~0u : (1u << n) - 1, .state = ST_READY};
    w->ngroups = 1;
  }
}
ptx_grid *ptx_grid_new(const ptx_launch *l) {
  static unsigned launches;
  const ptx_code *code = ptx_code_of(l->kernel);
  if (!code) return NULL;
  ptx_grid *g = calloc(1, sizeof *g);
  if (!g) abort();
  g->l = *l;
  g->id = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED); /* relaxed: a number, no more */
  g->random = (l->seed + 1) * 2654435761u ^ (g->id * 40503u) ^ 1u << 31;
  g->threads = l->block[0] * l->block[1] * l->block[2];
  g->nblocks = l->grid[0] * l->grid[1] * l->grid[2];
  const size_t each = SHARED_ROOM + (size_t)((g->threads + LANES - 1) / LANES) * WARP_STACK;
  g->bytes = g->nblocks * each;
  g->memory = emu_take_pages(&g->bytes);
  g->blocks = calloc(g->nblocks, sizeof *g->blocks);
  if (!g->memory || !g->blocks) abort();
  for (unsigned k = 0; k < g->nblocks; k++) begin_block(g, &g->blocks[k], k, code, g->memory + k * each);
  if (l->weak) ptx_model_begin(g);
  return g;
}
void ptx_grid_drop(ptx_grid *g) {
  for (unsigned k = 0; k < g->nblocks; k++) {
    if (g->l.weak) ptx_model_end(&g->blocks[k]);
    free(g->blocks[k].kept);
    free(g->blocks[k].warps);
  }
  free(g->blocks);
  emu_give_pages(g->memory, g->bytes);
  free(g);
}
