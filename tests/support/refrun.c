/* SPDX-License-Identifier: Apache-2.0 */
#include "refrun.h"
#include <stdlib.h>
#include <string.h>
#include "randprog.h" /* random_below */

/* What memory holds: how often each rank's contribution to a block is in it. */
typedef struct cell {
  int block; /* -1: nothing, -2: data of several blocks */
  int finals;
  int count[REFRUN_RANKS];
} cell;

typedef struct slot {
  cell copy;
  const cell *reference; /* or NULL */
  int block;
  bool empty;
  unsigned readers_left;
} slot;

enum { MAX_SLOTS = 8 };
typedef struct pipe {
  slot slots[MAX_SLOTS];
  unsigned sent;
} pipe;

typedef struct lane {
  const hk_program *p;
  const hk_lane *l;
  cell *in, *out, *scratch; /* in and out of one wave */
  pipe **pipes;             /* by link */
  unsigned *taken;          /* by link: slots received */
  const hk_instr *repeat;   /* the one under way, or NULL */
  uint32_t pc, body_end, j;
  unsigned wave;
} lane;

typedef struct run {
  uint64_t seed;
  hk_program *const *programs;
  int n;
  unsigned slots, waves;
  bool in_place;
  lane *lanes;
  unsigned nlanes;
  cell *memory[REFRUN_RANKS]; /* by wave: input, then output */
  const char *trouble;
} run;

static size_t wave_cells(const hk_program *p) { return (size_t)p->in_blocks + p->out_blocks; }
static cell *out_cell(run *x, int rank, unsigned wave, unsigned block) {
  const hk_program *p = x->programs[rank];
  return x->memory[rank] + wave * wave_cells(p) + p->in_blocks + block;
}

/* Where an input block lies: in place, sometimes in the output. */
static cell *in_cell(run *x, int rank, unsigned wave, unsigned block) {
  const hk_program *p = x->programs[rank];
  hk_coll c = (hk_coll)p->coll;
  bool root = !hk_coll_has_root(c) || rank == p->root;
  if (x->in_place && root) {
    if (p->partition == HK_PART_SPLIT) return out_cell(x, rank, wave, block);
    if (c == HK_ALLGATHER || c == HK_GATHER) return out_cell(x, rank, wave, (unsigned)rank);
    if ((c == HK_REDUCE_SCATTER || c == HK_SCATTER) && (int)block == rank) return out_cell(x, rank, wave, 0);
  }
  return x->memory[rank] + wave * wave_cells(p) + block;
}

static pipe *find_pipe(run *x, pipe **made, int from, int to, const hk_link_need *l) {
  bool multicast = l->kind >= HK_LINK_MCAST_SEND;
  pipe **at = &made[((from * (REFRUN_RANKS + 1)) + (multicast ? REFRUN_RANKS : to)) * 256 + l->channel];
  if (!*at) *at = calloc(1, sizeof **at);
  (void)x;
  return *at;
}

static void set_up(run *x, pipe **made) {
  for (int r = 0; r < x->n; r++) {
    const hk_program *p = x->programs[r];
    x->memory[r] = calloc(wave_cells(p) * x->waves, sizeof(cell));
    for (size_t k = 0; k < wave_cells(p) * x->waves; k++) x->memory[r][k].block = -1;
    for (unsigned w = 0; w < x->waves; w++)
      for (unsigned b = 0; b < p->in_blocks && hk_coll_has_input((hk_coll)p->coll, r, p->root); b++) {
        cell *c = in_cell(x, r, w, b);
        c->block = (int)b;
        c->count[r] = 1;
      }
    x->nlanes += p->nlanes;
  }
  x->lanes = calloc(x->nlanes + 1, sizeof *x->lanes);
  lane *l = x->lanes;
  for (int r = 0; r < x->n; r++) {
    const hk_program *p = x->programs[r];
    for (unsigned k = 0; k < p->nlanes; k++, l++) {
      *l = (lane){.p = p, .l = &hk_program_lanes(p)[k], .pc = hk_program_lanes(p)[k].first};
      l->scratch = calloc(p->scratch_blocks + 1u, sizeof *l->scratch);
      for (unsigned s = 0; s < p->scratch_blocks; s++) l->scratch[s].block = -1;
      l->pipes = calloc(p->nlinks + 1, sizeof *l->pipes);
      l->taken = calloc(p->nlinks + 1, sizeof *l->taken);
      for (uint32_t n = 0; n < p->nlinks; n++) {
        const hk_link_need *need = &hk_program_links(p)[n];
        bool sends = hk_link_sends((hk_link_kind)need->kind);
        l->pipes[n] = sends ? find_pipe(x, made, r, need->peer, need) : find_pipe(x, made, need->peer, r, need);
      }
    }
  }
}

static bool is_ready(const run *x, const lane *l, const hk_instr *i, const hk_operand *o) {
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (o[k].space != HK_LINK) continue;
    unsigned link = hk_operand_link(&o[k], l->j);
    const pipe *p = l->pipes[link];
    if (k < i->ndst ? p->slots[p->sent % x->slots].readers_left != 0 : p->sent == l->taken[link]) return false;
  }
  return true;
}

static cell read_operand(run *x, lane *l, const hk_operand *o, bool *empty) {
  int rank = l->p->rank;
  unsigned block = hk_operand_block(l->p, o, l->j);
  if (o->space == HK_IN) return *in_cell(x, rank, l->wave, block);
  if (o->space == HK_OUT) return *out_cell(x, rank, l->wave, block);
  if (o->space == HK_SCRATCH) return l->scratch[block];
  unsigned link = hk_operand_link(o, l->j);
  slot *s = &l->pipes[link]->slots[l->taken[link]++ % x->slots];
  s->readers_left--;
  if (s->block != (int)block) x->trouble = "the ends of a link name different blocks";
  *empty = *empty || s->empty;
  return s->reference ? *s->reference : s->copy;
}

static void add(cell *sum, const cell *c) {
  if (sum->block != c->block) sum->block = -2;
  sum->finals += c->finals + (c->finals || sum->finals ? 100 : 0); /* nothing is added to a final value */
  for (int r = 0; r < REFRUN_RANKS; r++) sum->count[r] += c->count[r];
}

/* What a slot of this instruction may refer to: its only source, or an output that it writes. */
static const cell *referable(run *x, lane *l, const hk_instr *i, const hk_operand *o) {
  if (i->flags & HK_INSTR_COPY || random_below(&x->seed, 4) == 0) return NULL;
  unsigned first = random_below(&x->seed, (unsigned)i->ndst + 1);
  for (unsigned k = 0; k <= i->ndst; k++) {
    unsigned at = (first + k) % (i->ndst + 1u);
    if (at == i->ndst && i->nsrc != 1) continue;
    const hk_operand *p = &o[at];
    if (p->space == HK_OUT) return out_cell(x, l->p->rank, l->wave, hk_operand_block(l->p, p, l->j));
    if (p->space == HK_IN && at == i->ndst) return in_cell(x, l->p->rank, l->wave, hk_operand_block(l->p, p, l->j));
  }
  return NULL;
}

/* The lane's next MOVE, or NULL at its end. */
static const hk_instr *next(const run *x, lane *l) {
  const hk_instr *all = hk_program_instrs(l->p);
  while (l->wave < x->waves) {
    if (l->repeat && l->pc == l->body_end) {
      if (++l->j < l->repeat->repeat.count) {
        l->pc = l->body_end - l->repeat->repeat.body;
        continue;
      }
      l->repeat = NULL;
      l->j = 0;
    } else if (l->pc == l->l->first + l->l->count) {
      l->pc = l->l->first;
      l->wave++;
      if (!l->l->count) l->wave = x->waves;
    } else if (all[l->pc].op == HK_OP_REPEAT) {
      l->repeat = &all[l->pc++];
      l->body_end = l->pc + l->repeat->repeat.body;
    } else {
      return &all[l->pc];
    }
  }
  return NULL;
}

/* Who writes straight into the receiver's memory may do so as soon as he sends: what a lane will receive into one
 * output as it is stands there from now on. */
static void land(run *x, const pipe *p, const cell *c) {
  for (unsigned k = 0; k < x->nlanes; k++) {
    lane ahead = x->lanes[k];
    const hk_link_need *needs = hk_program_links(ahead.p);
    uint32_t n = 0;
    while (n < ahead.p->nlinks && (ahead.pipes[n] != p || needs[n].kind != HK_LINK_RECV ||
                                   &hk_program_lanes(ahead.p)[needs[n].lane] != ahead.l))
      n++;
    if (n == ahead.p->nlinks) continue;
    unsigned left = p->sent - ahead.taken[n];
    for (const hk_instr *i = next(x, &ahead); i; ahead.pc++, i = next(x, &ahead)) {
      const hk_operand *o = hk_instr_operands(ahead.p, i);
      for (unsigned s = i->ndst; s < (unsigned)i->ndst + i->nsrc; s++)
        left -= o[s].space == HK_LINK && hk_operand_link(&o[s], ahead.j) == n;
      if (left) continue;
      if (!hk_instr_lands(i, o)) return;
      while (o->space != HK_OUT) o++;
      cell *at = out_cell(x, ahead.p->rank, ahead.wave, hk_operand_block(ahead.p, o, ahead.j));
      *at = *c;
      at->finals += i->flags & HK_INSTR_FINAL ? 1 : 0;
      return;
    }
  }
}

static void write_operand(run *x, lane *l, const hk_instr *i, const hk_operand *all, const hk_operand *o,
                          const cell *c) {
  unsigned block = hk_operand_block(l->p, o, l->j);
  if (o->space == HK_OUT) *out_cell(x, l->p->rank, l->wave, block) = *c;
  if (o->space == HK_SCRATCH) l->scratch[block] = *c;
  if (o->space != HK_LINK) return;
  unsigned link = hk_operand_link(o, l->j);
  bool multicast = hk_program_links(l->p)[link].kind == HK_LINK_MCAST_SEND;
  slot *s = &l->pipes[link]->slots[l->pipes[link]->sent++ % x->slots];
  *s = (slot){
      .copy = *c, .block = (int)block, .empty = i->nsrc == 0, .readers_left = multicast ? (unsigned)x->n - 1 : 1};
  if (i->nsrc) s->reference = referable(x, l, i, all);
  if (i->nsrc && !multicast && random_below(&x->seed, 2)) land(x, l->pipes[link], c);
}

static void step(run *x, lane *l, const hk_instr *i, const hk_operand *o) {
  cell sum = {.block = -1};
  bool empty = false;
  for (unsigned k = 0; k < i->nsrc; k++) {
    cell c = read_operand(x, l, &o[i->ndst + k], &empty);
    if (k)
      add(&sum, &c);
    else
      sum = c;
  }
  if (i->nsrc && empty != (i->ndst == 0)) x->trouble = "data and empty slots are mixed up";
  if (i->flags & HK_INSTR_FINAL) sum.finals++;
  for (unsigned k = 0; k < i->ndst; k++)
    if (o[k].space != HK_LINK) write_operand(x, l, i, o, &o[k], &sum);
  for (unsigned k = 0; k < i->ndst; k++)
    if (o[k].space == HK_LINK) write_operand(x, l, i, o, &o[k], &sum);
}

static void run_all(run *x) {
  for (unsigned idle = 0, left = x->nlanes; left;) {
    lane *l = &x->lanes[random_below(&x->seed, x->nlanes)];
    left = 0;
    const hk_instr *i = next(x, l);
    /* Some lanes run on for long, others hardly: races need that. */
    for (unsigned steps = 1u << random_below(&x->seed, 6); i && steps && is_ready(x, l, i, hk_instr_operands(l->p, i));
         steps--) {
      step(x, l, i, hk_instr_operands(l->p, i));
      l->pc++;
      i = next(x, l);
      idle = 0;
    }
    for (unsigned k = 0; k < x->nlanes; k++) left += next(x, &x->lanes[k]) != NULL;
    if (idle++ > 100 * x->nlanes) {
      x->trouble = "nothing moves any more";
      return;
    }
  }
}

static bool is_right(const run *x, const hk_program *p, const cell *c, unsigned block) {
  hk_coll coll = (hk_coll)p->coll;
  int want = p->partition == HK_PART_SPLIT ? (int)block : coll == HK_ALLGATHER || coll == HK_GATHER ? 0 : p->rank;
  int source = coll == HK_BROADCAST || coll == HK_SCATTER ? p->root : (int)block;
  if (c->block != want || c->finals != hk_coll_reduces(coll)) return false;
  for (int r = 0; r < x->n; r++)
    if (c->count[r] != (hk_coll_reduces(coll) || r == source)) return false;
  return true;
}

static void check(run *x, pipe **made) {
  for (int r = 0; r < x->n && !x->trouble; r++) {
    const hk_program *p = x->programs[r];
    if (!hk_coll_has_output((hk_coll)p->coll, r, p->root)) continue;
    for (unsigned w = 0; w < x->waves; w++)
      for (unsigned b = 0; b < p->out_blocks; b++)
        if (!is_right(x, p, out_cell(x, r, w, b), b)) x->trouble = "an output is wrong";
  }
  for (size_t k = 0; k < REFRUN_RANKS * (REFRUN_RANKS + 1) * 256; k++)
    for (unsigned s = 0; made[k] && s < x->slots; s++)
      if (made[k]->slots[s].readers_left && !x->trouble) x->trouble = "a slot is left over";
}

const char *refrun(hk_program *const *programs, int nranks, unsigned slots, unsigned waves, bool in_place,
                   uint64_t seed) {
  run x = {.seed = seed, .programs = programs, .n = nranks, .slots = slots, .waves = waves, .in_place = in_place};
  if (nranks > REFRUN_RANKS || slots > MAX_SLOTS) abort();
  pipe **made = calloc(REFRUN_RANKS * (REFRUN_RANKS + 1) * 256, sizeof *made);
  set_up(&x, made);
  run_all(&x);
  check(&x, made);
  for (unsigned k = 0; k < x.nlanes; k++) {
    free(x.lanes[k].scratch);
    free(x.lanes[k].pipes);
    free(x.lanes[k].taken);
  }
  for (size_t k = 0; k < REFRUN_RANKS * (REFRUN_RANKS + 1) * 256; k++) free(made[k]);
  for (int r = 0; r < nranks; r++) free(x.memory[r]);
  free(x.lanes);
  free(made);
  return x.trouble;
}
