/* SPDX-License-Identifier: Apache-2.0 */
/* What a warp's threads do together, and the choice of what runs an instruction. */
#include <string.h>
#include "access.h"

static void vote(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint32_t p = (*ROW(uint32_t, i->a) ^ (i->negate ? ~0u : 0)) & lanes;
  if (i->type == T_PRED) {
    const bool yes = i->op == 0 ? p == lanes : i->op == 1 ? p != 0 : p == 0 || p == lanes;
    uint32_t *d = ROW(uint32_t, i->d);
    *d = (*d & ~lanes) | (yes ? lanes : 0);
  } else {
    uint32_t *d = ROW(uint32_t, i->d);
    EACH_LANE(d[l] = p;);
  }
}
static void activemask(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  EACH_LANE(d[l] = lanes;);
}
static void elect(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint32_t first = (uint32_t)__builtin_ctz(lanes);
  if (i->d != NOWHERE) {
    uint32_t *d = ROW(uint32_t, i->d);
    EACH_LANE(d[l] = first;);
  }
  uint32_t *p = ROW(uint32_t, i->e);
  *p = (*p & ~lanes) | 1u << first;
}
/* d|p, a, b (lane or distance), c (clamp and segments) */
static void shuffle(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d), from[LANES], valid = 0;
  const uint32_t *b = ROW(uint32_t, i->b), *c = ROW(uint32_t, i->c);
  memcpy(from, ROW(uint32_t, i->a), sizeof from);
  EACH_LANE(const unsigned clamp = c[l] & 31, segment = c[l] >> 8 & 31, n = b[l] & 31;
            const unsigned top = (l & segment) | (clamp & ~segment), low = l & segment; unsigned j = l; bool ok;
            if (i->op == 0) j = low | (n & ~segment), ok = j <= top; /* idx */
            else if (i->op == 1) j = l - n, ok = (int)j >= (int)top; /* up */
            else if (i->op == 2) j = l + n, ok = j <= top;           /* down */
            else j = l ^ n, ok = j <= top;                           /* bfly */
            if (!ok) j = l; valid |= (uint32_t)ok << l; d[l] = from[j % LANES];);
  if (i->e != NOWHERE) *ROW(uint32_t, i->e) = (*ROW(uint32_t, i->e) & ~lanes) | valid;
}
static void match_any(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d), same[LANES] = {0};
  EACH_LANE(for (uint32_t k = lanes; k; k &= k - 1) {
    const unsigned j = (unsigned)__builtin_ctz(k);
    const bool equal = i->size == 8 ? ROW(uint64_t, i->a)[l] == ROW(uint64_t, i->a)[j]
                                    : ROW(uint32_t, i->a)[l] == ROW(uint32_t, i->a)[j];
    if (equal) same[l] |= 1u << j;
  });
  EACH_LANE(d[l] = i->op == 0 || same[l] == lanes ? same[l] : 0;);
  if (i->e != NOWHERE) {
    uint32_t *p = ROW(uint32_t, i->e), all = same[__builtin_ctz(lanes)] == lanes ? lanes : 0;
    *p = (*p & ~lanes) | all;
  }
}
static void reduce(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d), x = 0;
  const uint32_t *a = ROW(uint32_t, i->a);
  bool first = true;
  EACH_LANE(const uint32_t y = a[l]; const bool less = i->type == T_S32 ? (int32_t)y < (int32_t)x : y < x;
            x = first        ? y
                : i->op == 0 ? x + y
                : i->op == 1 ? (less ? y : x)
                : i->op == 2 ? (less ? x : y)
                : i->op == 3 ? x & y
                : i->op == 4 ? x | y
                             : x ^ y;
            first = false;);
  EACH_LANE(d[l] = x;);
}
static void warp_barrier(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  (void)i;
  if (w->grid->l.weak) ptx_model_warp_barrier(w, lanes);
}
static void trap(ptx_warp *w, const ptx_ins *i, uint32_t lanes) { ptx_fail(w, i, "trap, lanes %#x", lanes); }
static void pause_warp(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  (void)i, (void)lanes;
  ptx_wait(w);
}

static unsigned which(const ptx_mods *m, const char *const *names, unsigned n) {
  for (unsigned k = 0; k < n; k++)
    if (ptx_has(m, names[k])) return k;
  return n;
}
static bool select_barrier(const ptx_mods *m, ptx_ins *i) {
  static const char *const ops[] = {"sync", "arrive", "and", "or", "popc"};
  if (ptx_has(m, "warp")) {
    i->kind = K_WARP;
    i->run = warp_barrier;
    i->b = i->d; /* who comes */
    i->d = NOWHERE;
    return true;
  }
  if (ptx_has(m, "cluster")) return false;
  i->kind = K_BARRIER;
  i->op = (uint8_t)(ptx_has(m, "red") ? which(m, ops, 5) : ptx_has(m, "arrive") ? 1 : 0);
  if (ptx_has(m, "red")) { /* d, id [, count], p */
    const bool counted = i->c != NOWHERE;
    i->e = counted ? i->c : i->b;
    i->c = counted ? i->b : NOWHERE;
    i->v[0] = i->a;
    return i->op >= 2 && i->op <= 4;
  }
  i->v[0] = i->d; /* id [, count] */
  i->c = i->a;
  i->d = NOWHERE;
  return true;
}
static bool select_warp(const ptx_mods *m, ptx_ins *i) {
  static const char *const votes[] = {"all", "any", "uni", "ballot"}, *const shuffles[] = {"idx", "up", "down", "bfly"},
                           *const reduces[] = {"add", "min", "max", "and", "or", "xor"};
  i->kind = K_WARP;
  if (!ptx_has(m, "sync")) return false; /* what sm_70 has no longer */
  if (strcmp(m->op, "vote") == 0) {
    i->op = (uint8_t)which(m, votes, 4);
    i->run = vote;
    return i->op < 4;
  }
  if (strcmp(m->op, "shfl") == 0) {
    i->op = (uint8_t)which(m, shuffles, 4);
    i->run = shuffle;
    const int32_t members = i->v[0]; /* where all others have it: in b, c is the clamp */
    i->v[0] = members;
    return i->op < 4;
  }
  if (strcmp(m->op, "match") == 0) {
    i->op = ptx_has(m, "all");
    i->size = (uint8_t)ptx_type_bytes((ptx_type)i->type);
    i->run = match_any;
    return true;
  }
  if (strcmp(m->op, "redux") == 0) {
    i->op = (uint8_t)which(m, reduces, 6);
    i->run = reduce;
    return i->op < 6 && (i->type == T_U32 || i->type == T_S32 || i->type == T_B32);
  }
  i->b = i->a; /* elect */
  i->run = elect;
  return i->e != NOWHERE;
}
bool ptx_select(const ptx_mods *m, ptx_ins *i) {
  static const struct {
    const char *op;
    bool (*select)(const ptx_mods *, ptx_ins *);
  } others[] = {{"cvt", ptx_select_cvt},     {"cvta", ptx_select_cvta},    {"isspacep", ptx_select_isspacep},
                {"fence", ptx_select_fence}, {"membar", ptx_select_fence}, {"bar", select_barrier},
                {"barrier", select_barrier}, {"vote", select_warp},        {"shfl", select_warp},
                {"match", select_warp},      {"redux", select_warp},       {"elect", select_warp}};
  for (size_t k = 0; k < sizeof others / sizeof *others; k++)
    if (strcmp(m->op, others[k].op) == 0) return others[k].select(m, i);
  if (strcmp(m->op, "ret") == 0)
    i->kind = K_RET;
  else if (strcmp(m->op, "exit") == 0)
    i->kind = K_EXIT;
  else if (strcmp(m->op, "trap") == 0 || strcmp(m->op, "brkpt") == 0)
    i->run = trap;
  else if (strcmp(m->op, "activemask") == 0)
    i->run = activemask;
  else if (strcmp(m->op, "nanosleep") == 0)
    i->run = pause_warp;
  else if (strcmp(m->op, "griddepcontrol") == 0 || strcmp(m->op, "setmaxnreg") == 0)
    i->run = NULL;
  else
    return ptx_select_alu(m, i);
  return true;
}
