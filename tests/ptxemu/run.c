/* SPDX-License-Identifier: Apache-2.0 */
/* Runs warps: threads that are at the same place go together.  If they part, the group at the earlier instruction goes
 * first, so that it meets the others at the end of the branch; one that waits gives way, as threads of sm_70 and later
 * do. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "access.h"

/* Instructions of a visit; what a poll costs of them; visits that may compute and nothing else: then it is a loop. */
enum { PATIENCE = 4000, POLL = 400, SILENT = 1000 };

uint32_t ptx_random(ptx_grid *g) { /* xorshift */
  g->random ^= g->random << 13;
  g->random ^= g->random >> 17;
  return g->random ^= g->random << 5;
}
static const char *line_of(const ptx_grid *g, uint32_t line, int *n) {
  const char *at = g->l.kernel->m->text;
  for (uint32_t k = 1; k < line && at; k++) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
  if (!at) at = "";
  at += strspn(at, " \t");
  *n = (int)strcspn(at, "\n");
  return at;
}
void ptx_grid_describe(const ptx_grid *g) {
  static const char *const states[] = {"", "run", "wait at a barrier", "wait for their warp"};
  for (unsigned b = 0, lines = 0; b < g->nblocks; b++)
    for (unsigned k = 0; k < g->blocks[b].nwarps; k++) {
      const ptx_warp *w = &g->blocks[b].warps[k];
      for (unsigned j = 0; j < w->ngroups && lines < 20; j++, lines++) {
        const ptx_group *o = &w->group[j];
        int n;
        const char *text = line_of(g, o->pc->line, &n);
        fprintf(stderr, "ptxemu:   block %u, warp %u: lanes %08x %s at line %u \"%.*s\"; %u and %u stores wait\n", b, k,
                o->lanes, states[o->state], o->pc->line, n, text, w->nstores, g->blocks[b].nstores);
      }
    }
}
void ptx_fail(ptx_warp *w, const ptx_ins *i, const char *what, ...) {
  char text[400];
  va_list list;
  if (w->grid->failed) return;
  va_start(list, what);
  vsnprintf(text, sizeof text, what, list);
  va_end(list);
  int n;
  const char *line = line_of(w->grid, i->line, &n);
  fprintf(stderr, "ptxemu: kernel %s, block %u, warp %u, PTX line %u \"%.*s\": %s\n", w->grid->l.kernel->name,
          w->block->index, w->index, i->line, n, line, text);
  w->grid->failed = true;
}
void ptx_wait(ptx_warp *w) {
  w->polls++;
  w->patience -= POLL;
}

/* ---- groups ---- */

static void drop_group(ptx_warp *w, ptx_group *g) { *g = w->group[--w->ngroups]; }
static ptx_group *add_group(ptx_warp *w, ptx_ins *pc, uint32_t lanes, int32_t fp) {
  ptx_group *g = &w->group[w->ngroups++];
  *g = (ptx_group){.pc = pc, .lanes = lanes, .fp = fp, .state = ST_READY};
  return g;
}
/* Two groups that have met become one. PTX promises that only of those that synchronise. */
static ptx_group *meet(ptx_warp *w, ptx_group *g) {
  const int before = g->pc == g->pc->code->ins ? K_PLAIN : g->pc[-1].kind;
  if (w->grid->l.apart && g->state == ST_READY && before != K_WARP && before != K_BARRIER) return g;
  for (unsigned k = 0; k < w->ngroups; k++) {
    ptx_group *o = &w->group[k];
    if (o == g || o->pc != g->pc || o->fp != g->fp || o->state != g->state) continue;
    g->lanes |= o->lanes;
    ptx_group *last = &w->group[w->ngroups - 1];
    *o = *last;
    w->ngroups--;
    if (g == last) g = o;
    k--;
  }
  return g;
}
static unsigned turn_of(const ptx_warp *w, const ptx_group *g) {
  return ((unsigned)__builtin_ctz(g->lanes) + w->favoured) % LANES;
}
/* Inner calls first, then the earliest instruction: so they meet. If they need not, one goes as far as it can. */
static ptx_group *choose(ptx_warp *w) {
  ptx_group *best = NULL;
  for (unsigned k = 0; k < w->ngroups; k++) {
    ptx_group *g = &w->group[k];
    if (g->state != ST_READY || !(g->lanes & ~w->tired)) continue;
    const bool sooner = best && (g->fp > best->fp || (g->fp == best->fp && g->pc < best->pc));
    const bool ahead = best && turn_of(w, g) < turn_of(w, best);
    if (!best || (w->grid->l.apart ? ahead : sooner)) best = g;
  }
  return best;
}
static uint32_t live_lanes(const ptx_warp *w) {
  uint32_t lanes = 0;
  for (unsigned k = 0; k < w->ngroups; k++) lanes |= w->group[k].lanes;
  return lanes;
}

/* ---- barriers of the block ---- */

static void open_barrier(ptx_block *b, unsigned id) {
  const bool any = b->barrier[id].any != 0, all = b->barrier[id].all == 0;
  const uint32_t count = b->barrier[id].count;
  for (unsigned k = 0; k < b->nwarps; k++) {
    ptx_warp *w = &b->warps[k];
    for (unsigned j = 0; j < w->ngroups; j++) {
      ptx_group *g = &w->group[j];
      if (g->state != ST_BARRIER || g->members != id) continue;
      const ptx_ins *i = g->pc++;
      char *fp = w->stack + g->fp;
      if (i->op == 4) {
        for (unsigned l = 0; l < LANES; l++)
          if (g->lanes >> l & 1) ((uint32_t *)(void *)(fp + i->d))[l] = count;
      } else if (i->op >= 2) {
        uint32_t *d = (uint32_t *)(void *)(fp + i->d);
        *d = (*d & ~g->lanes) | ((i->op == 2 ? all : any) ? g->lanes : 0);
      }
      g->state = ST_READY;
      if (b->grid->l.weak) ptx_model_leave(w, g->lanes);
    }
  }
  memset(&b->barrier[id], 0, sizeof b->barrier[id]);
  b->grid->progress = true;
}
static bool barrier_full(const ptx_block *b, unsigned id) {
  const unsigned wanted = b->barrier[id].wanted ? b->barrier[id].wanted : b->live;
  return b->barrier[id].arrived && b->barrier[id].arrived >= wanted;
}
static void at_barrier(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  const ptx_ins *i = g->pc;
  ptx_block *b = w->block;
  const unsigned first = (unsigned)__builtin_ctz(lanes), id = ROW(uint32_t, i->v[0])[first] % 16;
  const uint32_t p = i->op >= 2 ? (*ROW(uint32_t, i->e) ^ (i->negate ? ~0u : 0)) & lanes : 0;
  if (i->c != NOWHERE) b->barrier[id].wanted = ROW(uint32_t, i->c)[first];
  b->barrier[id].arrived += (unsigned)__builtin_popcount(lanes);
  b->barrier[id].any |= p;
  b->barrier[id].all |= ~p & lanes;
  b->barrier[id].count += (unsigned)__builtin_popcount(p);
  if (w->grid->l.weak) ptx_model_arrive(w, lanes);
  if (i->op == 1) {
    g->pc++;
  } else {
    g->state = ST_BARRIER;
    g->members = id;
  }
  if (barrier_full(b, id)) open_barrier(b, id);
}

/* ---- the warp's own meetings ---- */

static bool is_shuffle(const ptx_ins *i) { return i->v[0] != NOWHERE; }
/* All members at one instruction run it together; members of a warp's barrier may be at several. */
static void open_warp(ptx_warp *w) {
  const uint32_t live = live_lanes(w);
  for (unsigned k = 0; k < w->ngroups; k++) {
    ptx_group *g = &w->group[k];
    uint32_t here = 0;
    if (g->state != ST_WARP) continue;
    const bool barrier = g->pc->d == NOWHERE && g->pc->e == NOWHERE;
    for (unsigned j = 0; j < w->ngroups; j++) {
      const ptx_group *o = &w->group[j];
      if (o->state == ST_WARP && (o->pc == g->pc || (barrier && o->pc->d == NOWHERE && o->pc->e == NOWHERE)))
        here |= o->lanes;
    }
    if ((g->members & live) & ~here) continue;
    const uint32_t members = g->members;
    if (!barrier) g = meet(w, g);
    w->fp = w->stack + g->fp;
    g->pc->run(w, g->pc, barrier ? members & here : g->lanes);
    if (!barrier) {
      g->state = ST_READY;
      g->pc++;
    } else {
      for (unsigned j = 0; j < w->ngroups; j++) {
        ptx_group *o = &w->group[j];
        if (o->state != ST_WARP || !(o->lanes & members) || o->pc->d != NOWHERE || o->pc->e != NOWHERE) continue;
        o->state = ST_READY;
        o->pc++;
      }
    }
    k = ~0u; /* groups have changed places */
  }
}
static void at_warp(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  const ptx_ins *i = g->pc;
  const int32_t row = is_shuffle(i) ? i->v[0] : i->b;
  g->members = row == NOWHERE ? ~0u : ROW(uint32_t, row)[__builtin_ctz(lanes)];
  if (lanes & ~g->members) {
    ptx_fail(w, i, "lanes %08x are not among its members, %08x", lanes & ~g->members, g->members);
    return;
  }
  if (g->members == g->lanes) { /* as nearly always */
    i->run(w, i, lanes);
    g->pc++;
    return;
  }
  g->state = ST_WARP;
  open_warp(w);
}

/* ---- control flow ---- */

static void end_lanes(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  ptx_block *b = w->block;
  g->lanes &= ~lanes;
  b->live -= (unsigned)__builtin_popcount(lanes);
  w->grid->progress = true;
  if (!g->lanes) drop_group(w, g);
  for (unsigned id = 0; id < 16 && b->live; id++)
    if (barrier_full(b, id)) open_barrier(b, id);
  open_warp(w);
}
static void branch(ptx_warp *w, ptx_group *g, uint32_t lanes, ptx_ins *target) {
  if (lanes == g->lanes) {
    g->pc = target;
  } else {
    g->lanes &= ~lanes;
    g->pc++;
    add_group(w, target, lanes, g->fp);
  }
}
static void branch_table(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  const ptx_ins *i = g->pc;
  const uint32_t *index = ROW(uint32_t, i->a);
  ptx_group own = *g;
  own.lanes &= ~lanes;
  own.pc++;
  g->lanes = 0;
  while (lanes) {
    const uint32_t k = index[__builtin_ctz(lanes)];
    uint32_t same = 0;
    EACH_LANE(same |= (uint32_t)(index[l] == k) << l;);
    lanes &= ~same;
    if (k >= i->ntargets) {
      ptx_fail(w, i, "a table of %u has no place %u", i->ntargets, k);
      return;
    }
    if (!g->lanes)
      g->lanes = same, g->pc = i->targets[k];
    else
      add_group(w, i->targets[k], same, own.fp);
  }
  if (own.lanes) add_group(w, own.pc, own.lanes, own.fp);
}
static void copy_params(const ptx_pass *list, unsigned n, uint32_t lanes, char *to, const char *from) {
  for (unsigned k = 0; k < n; k++) {
    const ptx_pass *p = &list[k];
    const uint32_t bytes = p->from_bytes < p->to_bytes ? p->from_bytes : p->to_bytes;
    EACH_LANE(memcpy(to + p->to + (size_t)l * p->to_bytes, from + p->from + (size_t)l * p->from_bytes, bytes););
  }
}
/* Where the frame of a call lies: after the caller's.  Threads that have parted may be there in another function, whose
 * rows lie otherwise: then after all that is in use. */
static int32_t frame_for(const ptx_warp *w, const ptx_group *g, const ptx_code *code) {
  const int32_t fp = g->fp + g->pc->code->frame;
  int32_t end = fp;
  bool free_there = true;
  for (unsigned k = 0; k < w->ngroups; k++) {
    const ptx_group *o = &w->group[k];
    const int32_t theirs = o->fp + o->pc->code->frame;
    if (o == g || theirs <= fp || (o->fp == fp && o->pc->code == code)) continue;
    free_there = false;
    if (theirs > end) end = theirs;
  }
  for (unsigned k = 0; k < w->ngroups && !free_there; k++)
    if (&w->group[k] != g && w->group[k].fp + w->group[k].pc->code->frame > end)
      end = w->group[k].fp + w->group[k].pc->code->frame;
  return end;
}
/* Each lane's way back lies at the head of its frame. */
static void call(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  ptx_ins *i = g->pc;
  const ptx_code *code = ptx_code_of(i->callee);
  const int32_t fp = code ? frame_for(w, g, code) : 0;
  if (!code || fp + code->frame > WARP_STACK) {
    ptx_fail(w, i, code ? "no room on the stack" : "the function called has what is not known here");
    return;
  }
  copy_params(i->pass, i->npass, lanes, w->stack + fp, w->fp);
  ptx_ins **back = (ptx_ins **)(void *)(w->stack + fp);
  int32_t *back_fp = (int32_t *)(void *)(w->stack + fp + 256);
  EACH_LANE(back[l] = i + 1; back_fp[l] = g->fp;);
  if (lanes != g->lanes) {
    g->lanes &= ~lanes;
    g->pc += 2; /* past the return, too */
    g = add_group(w, code->ins, lanes, fp);
  }
  g->pc = code->ins;
  g->fp = fp;
}
static void come_back(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  ptx_ins **back = (ptx_ins **)(void *)w->fp;
  const int32_t *back_fp = (const int32_t *)(const void *)(w->fp + 256);
  g->lanes &= ~lanes;
  g->pc++;
  while (lanes) {
    const unsigned first = (unsigned)__builtin_ctz(lanes);
    ptx_ins *to = back[first];
    const int32_t fp = back_fp[first];
    uint32_t same = 0;
    EACH_LANE(same |= (uint32_t)(back[l] == to && back_fp[l] == fp) << l;);
    lanes &= ~same;
    copy_params(to->back, to->nback, same, w->stack + fp, w->fp);
    if (!g->lanes)
      *g = (ptx_group){.pc = to, .fp = fp, .lanes = same, .state = ST_READY};
    else
      add_group(w, to, same, fp);
  }
}
/* An instruction that is not just data; the caller looks for the group anew. */
static void control(ptx_warp *w, ptx_group *g, uint32_t lanes) {
  const ptx_ins *i = g->pc;
  switch (i->kind) {
    case K_BRA: branch(w, g, lanes, i->target); break;
    case K_BRX: branch_table(w, g, lanes); break;
    case K_CALL: call(w, g, lanes); break;
    case K_RET:
      if (g->fp)
        come_back(w, g, lanes);
      else
        g->pc += lanes != g->lanes, end_lanes(w, g, lanes);
      break;
    case K_EXIT:
      g->pc += lanes != g->lanes;
      end_lanes(w, g, lanes);
      break;
    case K_BARRIER:
    case K_WARP:
      if (lanes != g->lanes) { /* the others go on */
        add_group(w, g->pc + 1, g->lanes & ~lanes, g->fp);
        g->lanes = lanes;
      }
      if (i->kind == K_BARRIER)
        at_barrier(w, g, lanes);
      else
        at_warp(w, g, lanes);
      break;
    default: g->pc++; break; /* K_RETURNED: all is there */
  }
}

/* Until it parts, meets, waits or has had its time. */
static void run_group(ptx_warp *w, ptx_group *g) {
  ptx_ins *stop = NULL; /* where others of this frame are, ahead */
  for (unsigned k = 0; k < w->ngroups; k++) {
    ptx_ins *pc = w->group[k].pc;
    if (&w->group[k] != g && w->group[k].fp == g->fp && pc > g->pc && (!stop || pc < stop)) stop = pc;
  }
  const uint32_t mask = g->lanes;
  ptx_ins *i = g->pc;
  w->ran |= mask;
  w->fp = w->stack + g->fp;
  do {
    uint32_t lanes = mask;
    w->patience--;
    if (i->guard >= 0) {
      const uint32_t p = *ROW(uint32_t, i->guard);
      lanes &= i->guard_not ? ~p : p;
      if (!lanes) {
        i += i->kind == K_CALL ? 2 : 1;
        continue;
      }
    }
    if (i->kind != K_PLAIN) {
      if (i->kind == K_BRA && lanes == mask && w->ngroups == 1) { /* the common case, quickly */
        i = i->target;
        continue;
      }
      g->pc = i;
      control(w, g, lanes);
      return;
    }
    if (i->run) i->run(w, i, lanes);
    i++;
  } while (i != stop && w->patience > 0 && !w->grid->failed);
  g->pc = i;
}

static void visit_warp(ptx_warp *w, ptx_visit *v) {
  ptx_grid *g = w->grid;
  const bool others = g->progress;
  g->progress = false;
  w->polls = 0;
  w->favoured = g->l.apart ? ptx_random(g) : 0;
  w->tired = 0;
  for (ptx_group *next; (next = choose(w)) && !g->failed;) { /* each turn tires a lane at least: it ends */
    v->ready = true;
    w->ran = 0;
    w->patience = g->l.seed ? 1 + (int)(ptx_random(g) % PATIENCE) : PATIENCE;
    for (; next && w->patience > 0 && !g->failed; next = choose(w)) run_group(w, meet(w, next));
    w->tired |= w->ran;
  }
  w->silent = g->progress ? 0 : w->silent + 1;
  g->progress = g->progress || others || (!w->polls && v->ready && w->silent < SILENT);
}

void ptx_grid_visit(ptx_grid *g, unsigned block, ptx_visit *v) {
  ptx_block *b = &g->blocks[block];
  const unsigned first = g->l.seed ? ptx_random(g) % b->nwarps : 0;
  *v = (ptx_visit){.live = b->live};
  g->progress = false;
  for (unsigned k = 0; k < b->nwarps && b->live && !g->failed; k++) {
    ptx_visit one = {0};
    ptx_warp *w = &b->warps[(first + k) % b->nwarps];
    if (w->ngroups) visit_warp(w, &one);
    if (g->l.weak) ptx_model_step(w);
    v->ready = v->ready || one.ready;
  }
  if (!b->live && g->l.weak) ptx_model_end(b);
  for (unsigned k = 0; k < b->nwarps; k++)
    for (unsigned j = 0; j < b->warps[k].ngroups; j++) {
      const ptx_group *o = &b->warps[k].group[j];
      v->at_barrier += o->state == ST_BARRIER ? (unsigned)__builtin_popcount(o->lanes) : 0;
      v->at_warp += o->state == ST_WARP ? (unsigned)__builtin_popcount(o->lanes) : 0;
    }
  v->live = b->live;
  v->progress = g->progress;
  v->failed = g->failed;
}
