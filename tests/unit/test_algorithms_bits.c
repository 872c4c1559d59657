/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Allreduce gives all ranks the same bits.
 *
 * Floating-point sums depend on the order.  So all ranks' programs are run with numbers in place of data: a number for
 * every input, and for every sum a hash of its parts in order.  Equal hashes are equal expressions, so equal bits. */
#include "../../src/program/cursor.h"
#include "../support/prove_algorithms.h"
#include "../support/suite.h"

typedef struct formula_lane {
  const hk_program *p;
  uint64_t *out, scratch; /* one scratch block is all that allreduces have */
  hk_cursor at;
  unsigned rank;
  bool done;
} formula_lane;

typedef struct formula_slot {
  uint64_t link; /* sender, receiver (or n: all), channel, and the slot's number */
  uint64_t value;
} formula_slot;
enum { FORMULA_SLOTS = 1 << 16 };
static formula_slot formula_slots[FORMULA_SLOTS]; /* a hash table that only grows */
static uint32_t formula_sent[2][64][65][8], formula_got[64][64][8][2];

static formula_slot *formula_find(uint64_t link) {
  uint64_t h = link * 0x9e3779b97f4a7c15u >> 48;
  while (formula_slots[h].link && formula_slots[h].link != link) h = (h + 1) % FORMULA_SLOTS;
  return &formula_slots[h];
}
static uint64_t formula_key(unsigned from, unsigned to, unsigned channel, unsigned number) {
  return 1ull << 63 | (uint64_t)number << 32 | from << 16 | to << 8 | channel;
}

static uint64_t formula_mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0xc2b2ae3d27d4eb4fu;
  return h ^ h >> 29;
}

/* False where a slot has not come yet. */
static bool formula_read(formula_lane *l, const hk_operand *o, bool take, uint64_t *value) {
  unsigned block = hk_cursor_block(&l->at, l->p, o);
  if (o->space == HK_IN) *value = formula_mix(block + 1, l->rank);
  if (o->space == HK_OUT) *value = l->out[block];
  if (o->space == HK_SCRATCH) *value = l->scratch;
  if (o->space != HK_LINK) return true;
  const hk_link_need *n = &hk_program_links(l->p)[hk_cursor_link(&l->at, o)];
  bool multicast = n->kind == HK_LINK_MCAST_RECV;
  uint32_t *got = &formula_got[n->peer][l->rank][n->channel][multicast];
  formula_slot *s = formula_find(formula_key(n->peer, multicast ? (unsigned)l->p->nranks : l->rank, n->channel, *got));
  if (!s->link) return false;
  *value = s->value;
  *got += take;
  return true;
}

static void formula_write(formula_lane *l, const hk_operand *o, uint64_t value) {
  unsigned block = hk_cursor_block(&l->at, l->p, o);
  if (o->space == HK_OUT) l->out[block] = value;
  if (o->space == HK_SCRATCH) l->scratch = value;
  if (o->space != HK_LINK) return;
  const hk_link_need *n = &hk_program_links(l->p)[hk_cursor_link(&l->at, o)];
  bool multicast = n->kind == HK_LINK_MCAST_SEND;
  unsigned to = multicast ? l->p->nranks : n->peer;
  uint64_t key = formula_key(l->rank, to, n->channel, formula_sent[multicast][l->rank][to][n->channel]++);
  *formula_find(key) = (formula_slot){key, value};
}

static bool formula_move(formula_lane *l, const hk_instr *i) {
  const hk_operand *dst = hk_instr_operands(l->p, i), *src = dst + i->ndst;
  uint64_t value = 0, x = 0;
  for (unsigned k = 0; k < i->nsrc; k++)
    if (!formula_read(l, &src[k], false, &x)) return false;
  for (unsigned k = 0; k < i->nsrc; k++) {
    formula_read(l, &src[k], true, &x);
    value = k ? formula_mix(value, x) : i->nsrc > 1 ? formula_mix(i->nsrc, x) : x;
  }
  for (unsigned k = 0; k < i->ndst; k++) formula_write(l, &dst[k], value);
  return true;
}

static const hk_sizes formula_wave = {.longest = 1, .chunk = 1}; /* one wave */

static bool formula_run(formula_lane *l) {
  bool moved = false;
  while (!l->done) {
    if (!formula_move(l, hk_cursor_move(&l->at, hk_program_instrs(l->p)))) break;
    l->done = !hk_cursor_next(&l->at, &formula_wave, 1);
    moved = true;
  }
  return moved;
}

static void formula_check(const hk_algorithm *a, int n) {
  static formula_lane lanes[64 * 4];
  static uint64_t out[64][64];
  unsigned nlanes = 0;
  memset(formula_slots, 0, sizeof formula_slots);
  memset(formula_sent, 0, sizeof formula_sent);
  memset(formula_got, 0, sizeof formula_got);
  memset(out, 0, sizeof out);
  hk_program **p = prove_build(a, HK_ALLREDUCE, n, 0);
  for (int r = 0; r < n; r++)
    for (unsigned k = 0; k < p[r]->nlanes; k++) {
      formula_lane *l = &lanes[nlanes++];
      *l = (formula_lane){.p = p[r], .out = out[r], .rank = (unsigned)r};
      l->done = !hk_cursor_begin(&l->at, &hk_program_lanes(p[r])[k], 0, &formula_wave);
    }
  for (bool moved = true; moved;) {
    moved = false;
    for (unsigned k = 0; k < nlanes; k++) moved |= formula_run(&lanes[k]);
  }
  for (unsigned k = 0; k < nlanes; k++) ck_assert(lanes[k].done);
  for (int r = 0; r < n; r++)
    for (unsigned block = 0; block < p[0]->blocks; block++)
      ck_assert_msg(out[r][block] && out[r][block] == out[0][block],
                    "%s, %d ranks: block %u is summed up differently on ranks 0 and %d", a->name, n, block, r);
  prove_free(p, n);
}

TEST_LOOP(allreduce_gives_equal_bits, prove_count()) {
  hk_machine m = prove_machine(2);
  if (!hk_algorithm_supports(hk_algorithms[_i], &m.team, HK_ALLREDUCE)) return;
  for (int n = 1; n <= 40; n++) formula_check(hk_algorithms[_i], n);
}

int main(void) { return suite_main("equal bits", .timeout = 300); }
