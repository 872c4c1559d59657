/* SPDX-License-Identifier: Apache-2.0 */
#include "randprog.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "randprog_emit.h" /* turns the steps written down here into programs */

enum { MAX_ITEMS = 96, NOTHING = -1, IN_OUTPUT = 1000, IN_INPUT = 1001, MAX_SLOTS = 3 };
/* What a slot carries, with the item's number. */
enum { UP, DOWN };

/* One block on its way. */
typedef struct item {
  int label; /* the block that link operands name */
  bool reduces, multicast, empty;
  int top;                   /* the sum is complete here, or the data starts here */
  int in_block[RAND_RANKS];  /* NOTHING where the rank contributes none */
  int out_block[RAND_RANKS]; /* NOTHING where the rank keeps none */
  int up[RAND_RANKS];        /* parents; NOTHING at the top and outside the tree */
  int down[RAND_RANKS];
  int lane[RAND_RANKS];
  /* How far it is. */
  unsigned wait_up[RAND_RANKS], wait_down[RAND_RANKS]; /* children to come, children to go, as bits */
  bool contributes[RAND_RANKS], added[RAND_RANKS], sent[RAND_RANKS], has[RAND_RANKS], kept[RAND_RANKS];
  int sum[RAND_RANKS], held[RAND_RANKS]; /* scratch buffers, IN_OUTPUT, IN_INPUT or NOTHING */
} item;

typedef struct fifo {
  int queue[MAX_SLOTS];
  unsigned head, count;
} fifo;

typedef struct world {
  uint64_t seed;
  hk_coll coll;
  int n, root, lanes, blocks;
  unsigned slots;
  item *items;
  int nitems;
  fifo (*fifos)[RAND_RANKS][RAND_CHANNELS + RAND_LANES]; /* [from][to][channel, then multicast by lane] */
  bool scratch_used[RAND_RANKS][RAND_LANES][RAND_SCRATCH];
  int nscratch;
  rand_emit *emit;
} world;

static unsigned roll(world *w, unsigned n) { return random_below(&w->seed, n); }
static bool coin(world *w) { return roll(w, 2); }

/* ---- what is to be moved ---- */

/* A random tree over the ranks of `members` (n of them, the first being the root): every rank hangs below an
 * earlier. */
static void random_tree(world *w, const int *members, int n, int *parent) {
  bool deep = coin(w);
  for (int k = 1; k < n; k++)
    parent[members[k]] = members[deep ? k - 1 - (int)roll(w, k < 2 ? 1 : 2) : (int)roll(w, (unsigned)k)];
}

static void random_order(world *w, int first, int *members) {
  for (int r = 0; r < w->n; r++) members[r] = r;
  members[0] = first;
  members[first] = 0;
  for (int k = w->n - 1; k > 1; k--) {
    int j = 1 + (int)roll(w, (unsigned)k), swap = members[k];
    members[k] = members[j];
    members[j] = swap;
  }
}

static item *new_item(world *w, int label, int top) {
  item *i = &w->items[w->nitems++];
  memset(i, 0, sizeof *i);
  i->label = label;
  i->top = top;
  int uniform = w->lanes > 2 || coin(w) ? (int)roll(w, (unsigned)w->lanes) : NOTHING;
  for (int r = 0; r < w->n; r++) {
    i->in_block[r] = i->out_block[r] = i->up[r] = i->down[r] = i->sum[r] = i->held[r] = NOTHING;
    i->lane[r] = uniform >= 0 ? uniform : (int)roll(w, (unsigned)w->lanes);
  }
  return i;
}

static void reduce_all(world *w, item *i, const int *in_block) {
  int members[RAND_RANKS];
  random_order(w, i->top, members);
  random_tree(w, members, w->n, i->up);
  i->reduces = true;
  for (int r = 0; r < w->n; r++) {
    i->contributes[r] = true;
    i->in_block[r] = in_block[r];
    if (i->up[r] >= 0) i->wait_up[i->up[r]] |= 1u << r;
  }
}

static void spread(world *w, item *i) {
  int members[RAND_RANKS];
  random_order(w, i->top, members);
  if (w->n > 1 && roll(w, 4) == 0) {
    /* Only the lane distinguishes multicast links. */
    i->multicast = true;
    for (int k = 1; k < w->n; k++) i->down[members[k]] = i->top;
    for (int r = 0; r < w->n; r++) i->lane[r] = i->lane[0];
  } else {
    random_tree(w, members, w->n, i->down);
  }
}

/* From the top to `to`, sometimes by way of others. */
static void route(world *w, item *i, int to) {
  int at = i->top;
  for (int hops = (int)roll(w, 3); hops > 0 && to != i->top; hops--) {
    int via = (int)roll(w, (unsigned)w->n);
    if (via == i->top || via == to || i->down[via] >= 0) continue;
    i->down[via] = at;
    at = via;
  }
  if (to != i->top) i->down[to] = at;
}

static void start(world *w, item *i) {
  for (int r = 0; r < w->n; r++)
    if (i->down[r] >= 0) i->wait_down[i->down[r]] |= 1u << r;
  if (i->reduces || i->empty) return;
  i->has[i->top] = true;
  i->held[i->top] = IN_INPUT;
}

/* A message of every rank's block `b`, or its own only one. */
static void add_reduction(world *w, int b, int top, int out_rank, int out_block) {
  item *i = new_item(w, b, top);
  int in[RAND_RANKS];
  for (int r = 0; r < w->n; r++) in[r] = b;
  reduce_all(w, i, in);
  for (int r = 0; r < w->n; r++)
    if (out_rank < 0 || out_rank == r) i->out_block[r] = out_block;
  if (out_rank < 0)
    spread(w, i);
  else
    route(w, i, out_rank);
  start(w, i);
}

static void add_transfer(world *w, int from, int in_block, int to, int out_block) {
  item *i = new_item(w, (int)roll(w, (unsigned)w->blocks), from);
  i->in_block[from] = in_block;
  if (hk_coll_partition(w->coll) == HK_PART_SPLIT) i->label = in_block;
  for (int r = 0; r < w->n; r++)
    if (to < 0 || to == r) i->out_block[r] = out_block;
  if (to < 0)
    spread(w, i);
  else
    route(w, i, to);
  start(w, i);
}

static void add_empty(world *w) {
  int from = (int)roll(w, (unsigned)w->n), to = (int)roll(w, (unsigned)w->n);
  if (from == to) return;
  item *i = new_item(w, (int)roll(w, (unsigned)w->blocks), from);
  i->empty = true;
  i->down[to] = from;
  start(w, i);
}

static void choose_items(world *w) {
  int n = w->n;
  bool split = hk_coll_partition(w->coll) == HK_PART_SPLIT;
  int in = split ? w->blocks : hk_coll_in_blocks(w->coll, n), out = split ? w->blocks : hk_coll_out_blocks(w->coll, n);
  w->blocks = in > out ? in : out;
  for (int b = 0; b < w->blocks; b++) {
    int any = (int)roll(w, (unsigned)n);
    switch (w->coll) {
      case HK_ALLREDUCE: add_reduction(w, b, any, -1, b); break;
      case HK_REDUCE: add_reduction(w, b, any, w->root, b); break;
      case HK_REDUCE_SCATTER: add_reduction(w, b, any, b, 0); break;
      case HK_BROADCAST: add_transfer(w, w->root, b, -1, b); break;
      case HK_ALLGATHER: add_transfer(w, b, 0, -1, b); break;
      case HK_GATHER: add_transfer(w, b, 0, w->root, b); break;
      case HK_SCATTER: add_transfer(w, w->root, b, b, 0); break;
      default:
        for (int to = 0; to < n; to++) add_transfer(w, b, to, to, b);
    }
  }
  for (unsigned k = roll(w, 4); k && w->nitems < MAX_ITEMS; k--) add_empty(w);
}

/* ---- FIFOs of the simulation ---- */

static int channel_of(const world *w, const item *i, int from, int to) {
  return w->lanes > 2 ? i->lane[from] : i->lane[from] * 2 + i->lane[to];
}
static fifo *fifo_of(world *w, const item *i, int from, int to, int phase) {
  bool multicast = i->multicast && phase == DOWN;
  return &w->fifos[from][to][multicast ? RAND_CHANNELS + i->lane[from] : channel_of(w, i, from, to)];
}
static bool has_credit(world *w, const item *i, int from, int to, int phase) {
  return fifo_of(w, i, from, to, phase)->count < w->slots;
}
static void push(world *w, const item *i, int from, int to, int phase) {
  fifo *f = fifo_of(w, i, from, to, phase);
  f->queue[(f->head + f->count++) % MAX_SLOTS] = (int)(i - w->items) * 2 + phase;
}
static bool at_head(world *w, const item *i, int from, int to, int phase) {
  const fifo *f = fifo_of(w, i, from, to, phase);
  return f->count && f->queue[f->head] == (int)(i - w->items) * 2 + phase;
}
static void pop(world *w, const item *i, int from, int to, int phase) {
  fifo *f = fifo_of(w, i, from, to, phase);
  f->head = (f->head + 1) % MAX_SLOTS;
  f->count--;
}

/* ---- operands ---- */

static rand_operand link_to(world *w, const item *i, int from, int to, int phase) {
  push(w, i, from, to, phase);
  return (rand_operand){
      .space = HK_LINK, .kind = HK_LINK_SEND, .peer = to, .channel = channel_of(w, i, from, to), .block = i->label};
}
static rand_operand link_from(world *w, const item *i, int from, int to, int phase) {
  bool multicast = i->multicast && phase == DOWN;
  pop(w, i, from, to, phase);
  return (rand_operand){.space = HK_LINK,
                        .kind = multicast ? HK_LINK_MCAST_RECV : HK_LINK_RECV,
                        .peer = from,
                        .channel = multicast ? i->lane[from] : channel_of(w, i, from, to),
                        .block = i->label};
}
static rand_operand place(const item *i, int r, int where) {
  if (where == IN_INPUT) return (rand_operand){.space = HK_IN, .block = i->in_block[r]};
  if (where == IN_OUTPUT) return (rand_operand){.space = HK_OUT, .block = i->out_block[r]};
  return (rand_operand){.space = HK_SCRATCH, .block = where};
}
static int take_scratch(world *w, const item *i, int r) {
  bool *used = w->scratch_used[r][i->lane[r]];
  int k = 0;
  while (used[k]) k++;
  if (k == RAND_SCRATCH) abort();
  used[k] = true;
  if (k >= w->nscratch) w->nscratch = k + 1;
  return k;
}
static void drop_scratch(world *w, const item *i, int r, int where) {
  if (where >= 0 && where < IN_OUTPUT) w->scratch_used[r][i->lane[r]][where] = false;
}

static void add_dst(rand_step *s, rand_operand o) { s->dst[s->ndst++] = o; }
static void add_src(rand_step *s, rand_operand o) { s->src[s->nsrc++] = o; }
static void shuffle(world *w, rand_operand *o, int n) {
  for (int k = n - 1; k > 0; k--) {
    int j = (int)roll(w, (unsigned)k + 1);
    rand_operand swap = o[k];
    o[k] = o[j];
    o[j] = swap;
  }
}
static void write_down(world *w, const item *i, int r, rand_step *s) {
  shuffle(w, s->dst, s->ndst);
  shuffle(w, s->src, s->nsrc);
  if (roll(w, 6) == 0) s->flags |= HK_INSTR_COPY;
  rand_emit_step(w->emit, r, i->lane[r], s);
}

/* ---- the steps a rank can take with an item; each gives false where it cannot ---- */

/* Some of the children that a slot can go to now; all of them for a multicast.  Adds the operands and the slots. */
static bool send_down(world *w, item *i, int r, rand_step *s) {
  bool any = false, all_free = true;
  for (int c = 0; c < w->n; c++)
    if (i->wait_down[r] >> c & 1 && !has_credit(w, i, r, c, DOWN)) all_free = false;
  if (i->multicast) {
    if (!all_free || !i->wait_down[r]) return false;
    for (int c = 0; c < w->n; c++)
      if (i->wait_down[r] >> c & 1) push(w, i, r, c, DOWN);
    i->wait_down[r] = 0;
    add_dst(s, (rand_operand){
                   .space = HK_LINK, .kind = HK_LINK_MCAST_SEND, .peer = r, .channel = i->lane[r], .block = i->label});
    return true;
  }
  for (int c = 0; c < w->n; c++) {
    if (!(i->wait_down[r] >> c & 1) || !has_credit(w, i, r, c, DOWN) || coin(w)) continue;
    add_dst(s, link_to(w, i, r, c, DOWN));
    i->wait_down[r] &= ~(1u << c);
    any = true;
  }
  return any;
}

/* Where arriving or finished data stays: in the output, in scratch where others still want it, or nowhere. */
static void keep(world *w, item *i, int r, rand_step *s) {
  i->has[r] = true;
  if (i->out_block[r] >= 0) {
    i->held[r] = IN_OUTPUT;
    i->kept[r] = true;
  } else if (i->wait_down[r]) {
    i->held[r] = take_scratch(w, i, r);
  } else {
    return;
  }
  add_dst(s, place(i, r, i->held[r]));
}

/* Adds up some of: what is there, the input, what children sent. */
static bool collect(world *w, item *i, int r) {
  if (!i->reduces || i->sent[r] || i->has[r]) return false;
  unsigned chosen = 0;
  for (int c = 0; c < w->n; c++)
    if (i->wait_up[r] >> c & 1 && at_head(w, i, c, r, UP) && roll(w, 3)) chosen |= 1u << c;
  bool add_input = !i->added[r] && coin(w), complete = chosen == i->wait_up[r] && (add_input || i->added[r]);
  if (complete && i->up[r] >= 0 && !has_credit(w, i, r, i->up[r], UP)) complete = false;
  if (!chosen && !add_input && !complete) return false;
  rand_step s = {0};
  if (i->sum[r] != NOTHING) add_src(&s, place(i, r, i->sum[r]));
  if (add_input) add_src(&s, place(i, r, IN_INPUT));
  for (int c = 0; c < w->n; c++)
    if (chosen >> c & 1) add_src(&s, link_from(w, i, c, r, UP));
  i->added[r] = i->added[r] || add_input;
  i->wait_up[r] &= ~chosen;
  int before = i->sum[r];
  if (!complete) {
    /* In place, the input is gone once the output is written. */
    if (before == NOTHING)
      i->sum[r] = i->out_block[r] >= 0 && i->added[r] && coin(w) ? IN_OUTPUT : take_scratch(w, i, r);
    add_dst(&s, place(i, r, i->sum[r]));
  } else if (i->up[r] >= 0) {
    add_dst(&s, link_to(w, i, r, i->up[r], UP));
    i->sent[r] = true;
  } else {
    s.flags |= HK_INSTR_FINAL;
    send_down(w, i, r, &s);
    keep(w, i, r, &s);
  }
  if (complete) drop_scratch(w, i, r, before);
  write_down(w, i, r, &s);
  return true;
}

/* Sends on, or keeps, what is there. */
static bool forward(world *w, item *i, int r) {
  if (i->empty ? r != i->top || !i->wait_down[r] : !i->has[r]) return false;
  rand_step s = {0};
  bool keeps = !i->empty && i->out_block[r] >= 0 && !i->kept[r] && coin(w), sends = send_down(w, i, r, &s);
  if (!keeps && !sends) return false;
  if (keeps) add_dst(&s, (rand_operand){.space = HK_OUT, .block = i->out_block[r]});
  i->kept[r] = i->kept[r] || keeps;
  if (!i->empty) add_src(&s, place(i, r, i->held[r]));
  if (!i->wait_down[r]) drop_scratch(w, i, r, i->held[r]);
  write_down(w, i, r, &s);
  return true;
}

static bool receive(world *w, item *i, int r) {
  if (i->down[r] < 0 || !at_head(w, i, i->down[r], r, DOWN)) return false;
  rand_step s = {0};
  add_src(&s, link_from(w, i, i->down[r], r, DOWN));
  if (i->empty) {
    i->has[r] = true;
  } else {
    if (coin(w)) send_down(w, i, r, &s);
    keep(w, i, r, &s);
  }
  write_down(w, i, r, &s);
  return true;
}

static bool is_done(const world *w, const item *i) {
  for (int r = 0; r < w->n; r++) {
    bool owes = i->wait_up[r] || i->wait_down[r] || (i->out_block[r] >= 0 && !i->kept[r]) ||
                (i->down[r] >= 0 && !i->has[r]);
    if (owes || (i->contributes[r] && (!i->added[r] || (i->up[r] >= 0 && !i->sent[r])))) return false;
  }
  return true;
}

static void simulate(world *w) {
  int left = w->nitems;
  for (unsigned idle = 0; left; idle++) {
    if (idle > 1000000) abort(); /* the generator itself is wrong */
    item *i = &w->items[roll(w, (unsigned)w->nitems)];
    if (is_done(w, i)) continue;
    int r = (int)roll(w, (unsigned)w->n);
    if (!collect(w, i, r) && !receive(w, i, r) && !forward(w, i, r)) continue;
    idle = 0;
    if (is_done(w, i)) left--;
  }
}

void randprog_make(randprog *out, uint64_t seed, int nranks, int coll) {
  world *w = calloc(1, sizeof *w);
  w->seed = seed * 2 + 1;
  w->n = nranks ? nranks : 1 + (int)roll(w, RAND_RANKS);
  w->coll = coll >= 0 ? (hk_coll)coll : hk_coll_plain((hk_coll)roll(w, HK_COLL_COUNT));
  w->root = hk_coll_has_root(w->coll) ? (int)roll(w, (unsigned)w->n) : 0;
  w->lanes = 1 + (int)roll(w, RAND_LANES);
  w->blocks = 1 + (int)roll(w, 9);
  w->slots = 1 + roll(w, MAX_SLOTS);
  w->items = calloc(MAX_ITEMS, sizeof *w->items);
  w->fifos = calloc((size_t)w->n, sizeof *w->fifos);
  w->emit = rand_emit_new(w->n, w->lanes);
  choose_items(w);
  simulate(w);
  *out = (randprog){.nranks = w->n, .root = w->root, .coll = w->coll, .slots = w->slots};
  for (int k = 0; k < w->nitems; k++) out->has_multicast |= w->items[k].multicast;
  unsigned split = hk_coll_partition(w->coll) == HK_PART_SPLIT ? (unsigned)w->blocks : 0;
  out->programs = rand_emit_finish(w->emit, w->coll, w->root, split, (unsigned)w->nscratch, random_next(&w->seed));
  free(w->items);
  free(w->fifos);
  free(w);
}

void randprog_free(randprog *p) {
  for (int r = 0; r < p->nranks; r++) hk_program_free(p->programs[r]);
  free(p->programs);
}
