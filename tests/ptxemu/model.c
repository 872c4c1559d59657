/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as weak as PTX lets it be.
 *
 * A store waits in a list: of its warp; from a barrier of the block on, of its block; from a release or a fence of GPU
 * scope on, of its device.  A release or fence of system scope lets all arrive that the thread's own stores, and
 * barriers, have put before it.  Strong stores arrive in time by themselves, in pieces that nothing orders; weak ones
 * need not.  Who shares the list sees the store: a load lets what overlaps it arrive first.
 *
 * With `aliases` no release puts multicast stores before anything: an alias fence does.
 *
 * A weak load gets the oldest value that it may: what the place held before all stores of others that are later than
 * what the thread has acquired (history.c).  Loads of a narrow scope are as weak, but to what is in their scope. */
#include <stdlib.h>
#include <string.h>
#include "../cudaemu/emu.h"
#include "history.h"

enum { WARP_STORES = 8, BLOCK_STORES = 64 };
typedef struct ptx_store {
  struct ptx_store *next;
  ptx_access a;
  uint32_t lanes, joined; /* with pieces left; joined: a warp's barrier has put them before other lanes' stores */
  uint8_t left[LANES];    /* pieces */
  uint8_t piece;          /* bytes */
  ptx_warp *warp;         /* whose it was */
  uint64_t released;      /* to its device; 0: not so far */
} ptx_store;

typedef struct list {
  ptx_store **first;
  unsigned *n;
  uint64_t *filter;
} list;
static struct {
  pthread_mutex_t lock;
  ptx_store *first;
  unsigned n;
  uint64_t filter, released; /* released: the latest that its threads had seen of others when they released */
} devices[16] = {[0 ... 15] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static list of_warp(ptx_warp *w) { return (list){&w->first, &w->nstores, &w->pending}; }
static list of_block(ptx_block *b) { return (list){&b->first, &b->nstores, &b->pending}; }
static list of_device(int d) { return (list){&devices[d].first, &devices[d].n, &devices[d].filter}; }
static uint64_t bit_of(uint64_t at) { return 1ull << (at >> 7 & 63); }

static void append(list l, ptx_store *s) {
  ptx_store **at = l.first;
  while (*at) at = &(*at)->next;
  *at = s;
  s->next = NULL;
  ++*l.n;
  for (uint32_t left = s->lanes; left; left &= left - 1) *l.filter |= bit_of(s->a.at[__builtin_ctz(left)]);
}
static void unlink_store(list l, ptx_store *s) {
  ptx_store **at = l.first;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  if (!--*l.n) *l.filter = 0;
}

/* ---- arrival ---- */

static void arrive_piece(ptx_store *s, unsigned l, unsigned k) {
  const unsigned at = k * s->piece;
  s->left[l] &= (uint8_t) ~(1u << k);
  ptx_history_store(s->warp, s->a.at[l] + at, s->a.data[l] + at, s->piece, s->a.strong, s->released);
}
static void arrive_lane(ptx_store *s, unsigned l) {
  const unsigned pieces = s->a.bytes / s->piece;
  if (s->a.bytes <= 16 && s->left[l] == (1u << pieces) - 1) { /* as nearly always: at once */
    ptx_history_store(s->warp, s->a.at[l], s->a.data[l], s->a.bytes, s->a.strong, s->released);
    s->left[l] = 0;
    return;
  }
  for (unsigned k = 0; k < pieces; k++)
    if (s->left[l] >> k & 1) arrive_piece(s, l, k);
}
static void arrive_everywhere(ptx_store *s, unsigned l) {
  char *views[EMU_DEVICES];
  const unsigned n = emu_multicast_views((const void *)(uintptr_t)s->a.at[l], s->a.bytes, views);
  for (unsigned d = 0; d < n; d++)
    ptx_history_store(s->warp, (uint64_t)(uintptr_t)views[d], s->a.data[l], s->a.bytes, true, s->released);
}
/* All of these lanes' pieces; true: nothing is left. */
static bool arrive(ptx_store *s, uint32_t lanes) {
  lanes &= s->lanes;
  for (uint32_t left = lanes; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    if (s->a.multi)
      arrive_everywhere(s, l);
    else
      arrive_lane(s, l);
  }
  s->lanes &= ~lanes;
  return s->lanes == 0;
}
/* Eight neighbours whose pieces are an aligned line of 128 bytes: one instruction keeps it whole. */
static bool is_line(const ptx_store *s, unsigned first) {
  if (!s->a.strong || s->a.bytes != 16 || s->a.at[first] & 127 || (s->lanes >> first & 255) != 255) return false;
  for (unsigned k = 1; k < 8; k++)
    if (s->a.at[first + k] != s->a.at[first] + 16 * k) return false;
  return true;
}
/* Some of it, in any order.  True: nothing is left. */
static bool arrive_some(ptx_grid *g, ptx_store *s) {
  const uint32_t some = ptx_random(g) | ptx_random(g);
  if (s->a.multi) return arrive(s, some);
  for (unsigned first = 0; first < LANES; first += 8) {
    if (is_line(s, first)) {
      if (some >> first & 1) arrive(s, 255u << first);
      continue;
    }
    for (unsigned l = first; l < first + 8; l++) {
      if (!(s->lanes >> l & 1)) continue;
      for (unsigned k = 8; k-- > 0;)
        if ((s->left[l] >> k & 1) && (ptx_random(g) & 1)) arrive_piece(s, l, k);
      if (!s->left[l]) s->lanes &= ~(1u << l);
    }
  }
  return s->lanes == 0;
}
/* All that `lanes` have in the list; multi: multicast stores, too. */
static void flush(list l, uint32_t lanes, bool joined, bool multi) {
  for (ptx_store *s = *l.first, *next; s; s = next) {
    next = s->next;
    if (s->a.multi && !multi) continue;
    if (!arrive(s, lanes | (joined ? s->joined : 0))) continue;
    unlink_store(l, s);
    free(s);
  }
}
static bool overlaps(const ptx_store *s, uint32_t owners, uint64_t at, unsigned bytes) {
  for (uint32_t left = s->lanes & (owners | s->joined); left; left &= left - 1) {
    const uint64_t from = s->a.at[__builtin_ctz(left)];
    if (from < at + bytes && at < from + s->a.bytes) return true;
  }
  return false;
}
static void flush_over(list l, uint32_t owners, uint64_t at, unsigned bytes, bool multi) {
  for (ptx_store *s = *l.first, *next; s; s = next) {
    next = s->next;
    if (s->a.multi != multi || !overlaps(s, owners, at, bytes) || !arrive(s, owners | s->joined)) continue;
    unlink_store(l, s);
    free(s);
  }
}
/* What these lanes may not overlook: earlier stores by the same address. */
static void flush_under(ptx_warp *w, const ptx_access *a) {
  const int d = w->grid->l.device;
  uint64_t bits = 0;
  for (uint32_t left = a->global; left; left &= left - 1) bits |= bit_of(a->at[__builtin_ctz(left)]);
  const bool own = w->pending & bits, block = w->block->pending & bits;
  const bool device = __atomic_load_n(&devices[d].n, __ATOMIC_ACQUIRE) != 0; /* acquire: the list, under its lock */
  if (!own && !block && !device) return;
  if (device) pthread_mutex_lock(&devices[d].lock);
  for (uint32_t left = a->global; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    if (own) flush_over(of_warp(w), 1u << l, a->at[l], a->bytes, a->multi);
    if (block) flush_over(of_block(w->block), ~0u, a->at[l], a->bytes, a->multi);
    if (device) flush_over(of_device(d), ~0u, a->at[l], a->bytes, a->multi);
  }
  if (device) pthread_mutex_unlock(&devices[d].lock);
}

/* ---- accesses ---- */

void ptx_model_load(ptx_warp *w, ptx_access *a) {
  flush_under(w, a);
  ptx_read_now(a, a->global);
  if (a->strong && a->scope == SCOPE_SYS) return;
  for (uint32_t left = a->global; left; left &= left - 1) {
    const unsigned l = (unsigned)__builtin_ctz(left);
    /* A strong load sees all within its scope. */
    const uint64_t gpu = a->strong && a->scope == SCOPE_GPU ? ~0ull : w->seen[SEEN_GPU][l];
    const bool host = !emu_memory_is_device(a->at[l]);
    for (unsigned at = 0; at < a->bytes; at += 16) {
      const unsigned n = a->bytes - at < 16 ? a->bytes - at : 16;
      ptx_history_load(w, a->at[l] + at, a->data[l] + at, n, gpu, w->seen[SEEN_SYS][l]);
      if (host) ptx_history_load_host(w->block, a->at[l] + at, a->data[l] + at, n);
    }
  }
}
static void forget_host(ptx_warp *w, const ptx_access *a) {
  if (!w->block->kept) return;
  for (uint32_t left = a->global; left; left &= left - 1) {
    const uint64_t at = a->at[__builtin_ctz(left)];
    ptx_history_store_host(w->block, at);
    ptx_history_store_host(w->block, at + a->bytes - 1);
  }
}
void ptx_model_touch(ptx_warp *w, const ptx_access *a) {
  flush_under(w, a);
  forget_host(w, a);
}

static ptx_store *store_of(ptx_warp *w, const ptx_access *a) {
  ptx_store *s = malloc(sizeof *s);
  if (!s) abort();
  s->a = *a;
  s->lanes = a->global;
  s->joined = 0;
  s->released = 0;
  s->warp = w;
  s->piece = (uint8_t)(a->strong && a->bytes >= 8 ? 8 : a->size);
  const unsigned pieces = a->bytes / s->piece;
  memset(s->left, (int)((1u << pieces) - 1), sizeof s->left);
  return s;
}
static void to_device(int d, ptx_store *s) {
  s->released = ptx_history_tick();
  pthread_mutex_lock(&devices[d].lock);
  append(of_device(d), s);
  pthread_mutex_unlock(&devices[d].lock);
}
void ptx_model_store(ptx_warp *w, const ptx_access *a) {
  ptx_model_touch(w, a);
  ptx_store *s = store_of(w, a);
  if (a->strong && a->scope == SCOPE_CTA) {
    append(of_block(w->block), s);
  } else if (a->strong && a->scope == SCOPE_GPU) {
    to_device(w->grid->l.device, s);
  } else if (a->release) {
    arrive(s, s->lanes);
    free(s);
  } else {
    append(of_warp(w), s);
  }
  while (w->nstores > WARP_STORES) { /* there is no room: one arrives, whichever */
    ptx_store *one = w->first;
    for (unsigned k = ptx_random(w->grid) % w->nstores; k; k--) one = one->next;
    if (!arrive_some(w->grid, one)) continue;
    unlink_store(of_warp(w), one);
    free(one);
  }
}

/* ---- order ---- */

static void raise(uint64_t *x, uint64_t to) {
  if (*x < to) *x = to;
}
static void flush_device(int d) {
  if (!__atomic_load_n(&devices[d].n, __ATOMIC_ACQUIRE)) return; /* acquire: as above */
  pthread_mutex_lock(&devices[d].lock);
  flush(of_device(d), ~0u, false, true);
  pthread_mutex_unlock(&devices[d].lock);
}
/* From one list to another, as far as these lanes go.  A release says nothing of multicast stores. */
static void move(list from, uint32_t lanes, ptx_block *to_block, int to_dev) {
  for (ptx_store *s = *from.first, *next; s; s = next) {
    next = s->next;
    if (!(s->lanes & (lanes | s->joined)) || (s->a.multi && !to_block)) continue;
    unlink_store(from, s);
    if (s->lanes & ~(lanes | s->joined)) { /* the part that stays */
      ptx_store *rest = malloc(sizeof *rest);
      if (!rest) abort();
      *rest = *s;
      rest->lanes &= ~(lanes | s->joined);
      s->lanes &= lanes | s->joined;
      append(from, rest);
    }
    if (to_block)
      append(of_block(to_block), s);
    else
      to_device(to_dev, s);
  }
}
void ptx_model_release(ptx_warp *w, uint32_t lanes, ptx_scope scope) {
  const int d = w->grid->l.device;
  uint64_t seen = 0;
  for (uint32_t left = lanes; left; left &= left - 1) raise(&seen, w->seen[SEEN_SYS][__builtin_ctz(left)]);
  if (scope == SCOPE_SYS) {
    flush(of_warp(w), lanes, true, !w->grid->l.aliases);
    flush(of_block(w->block), ~0u, false, !w->grid->l.aliases);
    flush_device(d);
  } else {
    move(of_warp(w), lanes, scope == SCOPE_CTA ? w->block : NULL, d);
    if (scope == SCOPE_GPU) move(of_block(w->block), ~0u, NULL, d);
  }
  if (scope == SCOPE_CTA) {
    raise(&w->block->seen[SEEN_SYS], seen);
    raise(&w->block->seen[SEEN_GPU], seen);
  } else {
    pthread_mutex_lock(&devices[d].lock);
    raise(&devices[d].released, seen);
    pthread_mutex_unlock(&devices[d].lock);
  }
}
void ptx_model_acquire(ptx_warp *w, uint32_t lanes, ptx_scope scope) {
  const int d = w->grid->l.device;
  const uint64_t now = ptx_history_now();
  uint64_t gpu = scope == SCOPE_CTA ? w->block->seen[SEEN_GPU] : now;
  uint64_t sys = scope == SCOPE_SYS ? now : w->block->seen[SEEN_SYS];
  if (scope != SCOPE_CTA) w->block->age++;
  if (scope == SCOPE_GPU) {
    pthread_mutex_lock(&devices[d].lock);
    raise(&sys, devices[d].released);
    pthread_mutex_unlock(&devices[d].lock);
  }
  EACH_LANE(raise(&w->seen[SEEN_GPU][l], gpu); raise(&w->seen[SEEN_SYS][l], sys););
}
/* Own addresses and multicast ones mean the same from here on. */
void ptx_model_alias(ptx_warp *w, uint32_t lanes) {
  flush(of_warp(w), lanes, true, true);
  flush(of_block(w->block), ~0u, false, true);
}
void ptx_model_warp_barrier(ptx_warp *w, uint32_t lanes) {
  uint64_t gpu = 0, sys = 0;
  EACH_LANE(raise(&gpu, w->seen[SEEN_GPU][l]); raise(&sys, w->seen[SEEN_SYS][l]););
  EACH_LANE(raise(&w->seen[SEEN_GPU][l], gpu); raise(&w->seen[SEEN_SYS][l], sys););
  for (ptx_store *s = w->first; s; s = s->next) s->joined |= s->lanes & lanes;
}
void ptx_model_arrive(ptx_warp *w, uint32_t lanes) {
  ptx_block *b = w->block;
  EACH_LANE(raise(&b->seen[SEEN_GPU], w->seen[SEEN_GPU][l]); raise(&b->seen[SEEN_SYS], w->seen[SEEN_SYS][l]););
  move(of_warp(w), lanes, b, 0);
  while (b->nstores > BLOCK_STORES) {
    ptx_store *one = b->first;
    for (unsigned k = ptx_random(w->grid) % b->nstores; k; k--) one = one->next;
    arrive(one, ~0u);
    unlink_store(of_block(b), one);
    free(one);
  }
}
void ptx_model_leave(ptx_warp *w, uint32_t lanes) {
  const ptx_block *b = w->block;
  EACH_LANE(raise(&w->seen[SEEN_GPU][l], b->seen[SEEN_GPU]); raise(&w->seen[SEEN_SYS][l], b->seen[SEEN_SYS]););
}

enum { EVERYWHERE_SELDOM = 7 };
/* Strong stores of system scope arrive by themselves; nothing says when.  Multicast ones late, or what should not have
 * overtaken them has no time to. */
static void step(ptx_grid *g, list l) {
  for (ptx_store *s = *l.first, *next; s; s = next) {
    next = s->next;
    if (!s->a.strong || s->a.scope != SCOPE_SYS) continue;
    if ((ptx_random(g) & (s->a.multi ? EVERYWHERE_SELDOM : 1)) || !arrive_some(g, s)) continue;
    unlink_store(l, s);
    free(s);
  }
}
void ptx_model_step(ptx_warp *w) {
  if (w->nstores) step(w->grid, of_warp(w));
  if (w->block->nstores && w->index == 0) step(w->grid, of_block(w->block));
}
void ptx_model_begin(ptx_grid *g) {
  static uint32_t blocks;
  ptx_history_begin();
  const uint64_t now = ptx_history_now();
  for (unsigned k = 0; k < g->nblocks; k++) {
    ptx_block *b = &g->blocks[k];
    b->id = __atomic_add_fetch(&blocks, 1, __ATOMIC_RELAXED); /* relaxed: a number, no more */
    b->seen[SEEN_GPU] = b->seen[SEEN_SYS] = now;
    for (unsigned i = 0; i < b->nwarps; i++)
      for (unsigned l = 0; l < LANES; l++) b->warps[i].seen[SEEN_GPU][l] = b->warps[i].seen[SEEN_SYS][l] = now;
  }
}
void ptx_model_end(ptx_block *b) {
  for (unsigned k = 0; k < b->nwarps; k++) flush(of_warp(&b->warps[k]), ~0u, true, true);
  flush(of_block(b), ~0u, false, true);
  flush_device(b->grid->l.device);
}
