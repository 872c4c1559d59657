/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan long=asan */
/* The cursor (src/program/cursor.h) against a naive expansion: random programs are written out instruction after
 * instruction, and which bytes of a block belong to a wave is counted byte by byte. */
#include "../../src/program/cursor.h"
#include "../support/randprog.h"
#include "../support/suite.h"

/* One execution of a MOVE. */
typedef struct visit {
  uint32_t pc, iteration;
  uint64_t wave; /* of the message, whatever the channel */
} visit;

enum { VISITS = 1 << 16 };
typedef struct expansion {
  visit at[VISITS];
  unsigned n;
} expansion;

static void add_visit(expansion *e, uint32_t pc, uint32_t iteration, uint64_t wave) {
  ck_assert_uint_lt(e->n, VISITS);
  e->at[e->n++] = (visit){.pc = pc, .iteration = iteration, .wave = wave};
}

static void expand_wave(expansion *e, const hk_program *p, const hk_lane *lane, uint64_t wave) {
  const hk_instr *all = hk_program_instrs(p);
  for (uint32_t k = lane->first; k < lane->first + lane->count; k++) {
    if (all[k].op != HK_OP_REPEAT) {
      add_visit(e, k, 0, wave);
      continue;
    }
    for (uint32_t j = 0; j < all[k].repeat.count; j++)
      for (uint32_t b = 1; b <= all[k].repeat.body; b++) add_visit(e, k + b, j, wave);
    k += all[k].repeat.body;
  }
}

/* All that the lane of a channel does. */
static void expand(expansion *e, const hk_program *p, const hk_lane *lane, unsigned channel, unsigned channels,
                   const hk_sizes *s) {
  uint64_t waves = (s->longest + s->chunk - 1) / s->chunk;
  e->n = 0;
  if (waves == 0) waves = 1; /* an empty message still synchronises */
  for (uint64_t w = channel; w < waves; w += channels) expand_wave(e, p, lane, w);
}

/* Bytes of a block that the wave moves, counted one by one. */
static uint64_t count_bytes(const hk_program *p, const hk_sizes *s, unsigned block, uint64_t wave) {
  uint64_t n = 0;
  for (uint64_t at = 0; at < s->block_bytes; at++)
    n += at / s->chunk == wave && (p->partition == HK_PART_WHOLE || block * s->block_bytes + at < s->total);
  return n;
}

/* The block of the message that the instruction is about: that of any operand outside scratch. */
static unsigned block_of(const hk_program *p, const hk_instr *i, const hk_operand *o, uint32_t iteration) {
  unsigned n = (unsigned)i->ndst + i->nsrc, k = 0;
  while (k + 1 < n && o[k].space == HK_SCRATCH) k++;
  int blocks = (int)hk_space_blocks(p, (hk_space)o[k].space), b = o[k].block;
  for (uint32_t j = 0; j < iteration; j++) b = (b + o[k].stride + 2 * blocks * 65536) % blocks;
  return (unsigned)b;
}

static void check_bytes(const hk_cursor *c, const hk_program *p, const hk_instr *i, const hk_sizes *s, uint64_t wave) {
  const hk_operand *o = hk_instr_operands(p, i);
  uint64_t bytes = hk_cursor_bytes(c, p, i, o, s), expected = 0;
  unsigned block = block_of(p, i, o, c->iteration);
  if (i->ndst && i->nsrc) expected = count_bytes(p, s, block, wave);
  ck_assert_uint_eq(bytes, expected);
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (o[k].space == HK_LINK) {
      ck_assert_uint_eq(hk_cursor_link(c, &o[k]), o[k].link + (o[k].flags & HK_OPERAND_STEP ? c->iteration : 0));
      continue;
    }
    uint64_t at = hk_cursor_at(c, p, &o[k], s), named = hk_cursor_block(c, p, &o[k]);
    if (o[k].space == HK_SCRATCH)
      ck_assert(at % 64 == 0 && at / 64 == named * ((s->chunk + 63) / 64));
    else
      ck_assert_uint_eq(at, named * s->block_bytes + wave * s->chunk);
  }
}

/* Walks one lane, and finds what the expansion has: no more and no less. */
static void check_lane(const expansion *e, const hk_program *p, const hk_lane *lane, unsigned channel,
                       unsigned channels, const hk_sizes *s) {
  hk_cursor c;
  unsigned n = 0;
  memset(&c, 0xee, sizeof c);
  int more = hk_cursor_begin(&c, lane, channel, s);
  for (; more; n++, more = hk_cursor_next(&c, s, channels)) {
    const hk_instr *i = hk_cursor_move(&c, hk_program_instrs(p));
    ck_assert_uint_lt(n, e->n);
    const visit *v = &e->at[n];
    ck_assert_ptr_eq(i, hk_program_instrs(p) + c.pc);
    ck_assert_uint_eq(c.pc, v->pc);
    ck_assert_uint_eq(c.iteration, v->iteration);
    ck_assert_uint_eq(c.offset, v->wave * s->chunk);
    if (n < 200) check_bytes(&c, p, i, s, v->wave);
  }
  ck_assert_uint_eq(n, e->n);
}

static hk_sizes random_sizes(const hk_program *p, uint64_t *seed) {
  uint64_t unit = 1u << random_below(seed, 4);
  uint64_t total = (random_below(seed, 8) ? random_below(seed, 400) : random_below(seed, 3)) * unit;
  uint64_t block = hk_block_bytes(p, total, unit);
  return hk_sizes_of((hk_partition)p->partition, total, block, (1 + random_below(seed, 300)) * unit);
}

TEST_LOOP(walks_like_the_expansion, 120) {
  static expansion e;
  uint64_t seed = (uint64_t)_i * 7919 + 1;
  randprog r;
  randprog_make(&r, (uint64_t)_i, 0, -1);
  unsigned channels = 1 + random_below(&seed, 4);
  for (int k = 0; k < r.nranks; k++) {
    const hk_program *p = r.programs[k];
    hk_sizes s = random_sizes(p, &seed);
    for (unsigned lane = 0; lane < p->nlanes; lane++)
      for (unsigned channel = 0; channel < channels; channel++) {
        const hk_lane *l = &hk_program_lanes(p)[lane];
        expand(&e, p, l, channel, channels, &s);
        check_lane(&e, p, l, channel, channels, &s);
      }
  }
  randprog_free(&r);
}

/* Every MOVE once, with the number of times that it stands in an expanded wave. */
TEST_LOOP(scans_like_the_expansion, 60) {
  static expansion e;
  randprog r;
  randprog_make(&r, (uint64_t)_i, 0, -1);
  for (int k = 0; k < r.nranks; k++) {
    const hk_program *p = r.programs[k];
    hk_scan s = {.end = p->ninstrs};
    unsigned found = 0, moves = 0;
    e.n = 0;
    for (unsigned lane = 0; lane < p->nlanes; lane++) expand_wave(&e, p, &hk_program_lanes(p)[lane], 0);
    for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p))); found++) {
      unsigned times = 0;
      for (unsigned n = 0; n < e.n; n++) times += e.at[n].pc == s.at;
      ck_assert_ptr_eq(i, hk_program_instrs(p) + s.at);
      ck_assert_uint_eq(s.times, times);
    }
    for (uint32_t n = 0; n < p->ninstrs; n++) moves += hk_program_instrs(p)[n].op == HK_OP_MOVE;
    ck_assert_uint_eq(found, moves);
  }
  randprog_free(&r);
}

TEST(sizes_of_a_split_message) {
  hk_program p = {.partition = HK_PART_SPLIT, .blocks = 3};
  ck_assert_uint_eq(hk_block_bytes(&p, 40, 4), 16);                   /* 10 elements in 3 blocks: 4 each */
  ck_assert_uint_eq(hk_block_bytes(&p, 3 * 1020, 4), 1020);           /* below 1 KiB as it comes out */
  ck_assert_uint_eq(hk_block_bytes(&p, 3 * 1028, 4), 1024 + 64);      /* whole cache lines */
  ck_assert_uint_eq(hk_sizes_of(HK_PART_SPLIT, 5, 16, 8).longest, 5); /* shorter than a block */
  ck_assert_uint_eq(hk_sizes_of(HK_PART_SPLIT, 40, 16, 8).longest, 16);
  ck_assert_uint_eq(hk_sizes_of(HK_PART_WHOLE, 40, 40, 8).longest, 40);
  p.partition = HK_PART_WHOLE;
  ck_assert_uint_eq(hk_block_bytes(&p, 3 * 1028, 4), 3 * 1028);
}

TEST(uneven_blocks) {
  static const hk_extent table[] = {{0, 10}, {10, 0}, {16, 25}, {40, 5}}; /* three of the input, one of the output */
  const hk_program p = {
      .coll = HK_REDUCE_SCATTERV, .partition = HK_PART_WHOLE, .in_blocks = 3, .out_blocks = 1, .blocks = 3};
  const hk_program pairs = {.coll = HK_ALLTOALLV};
  const hk_instr i = {.ndst = 1, .nsrc = 1}, notice = {.ndst = 1};
  hk_operand o[2] = {{.space = HK_LINK}, {.space = HK_IN, .block = 2}};
  hk_sizes s = hk_sizes_of(HK_PART_WHOLE, 25, 25, 8);
  hk_cursor c = {.offset = 8};
  s.table = table;
  ck_assert_uint_eq(hk_cursor_bytes(&c, &p, &i, o, &s), 8); /* the input's block, whatever the link's is called */
  ck_assert_uint_eq(hk_cursor_at(&c, &p, &o[1], &s), 24);
  o[1].block = 0;
  ck_assert_uint_eq(hk_cursor_bytes(&c, &p, &i, o, &s), 2);
  o[1].block = 1;
  ck_assert_uint_eq(hk_cursor_bytes(&c, &p, &i, o, &s), 0);
  ck_assert(hk_cursor_skips(&c, &p, &i, &s, 0));
  ck_assert(hk_cursor_skips(&c, &p, &notice, &s, 0));
  c.offset = 0;
  ck_assert(hk_cursor_skips(&c, &p, &i, &s, 0));
  ck_assert(!hk_cursor_skips(&c, &p, &notice, &s, 0)); /* it synchronises */
  ck_assert(!hk_cursor_skips(&c, &pairs, &i, &s, 0));  /* it shows a mismatch */
  o[1] = (hk_operand){.space = HK_SCRATCH};            /* the link's block, of the side with more */
  ck_assert_uint_eq(hk_cursor_length(&c, &p, &i, o, &s), 10);
  ck_assert_uint_eq(hk_length_of_mark(hk_length_mark(123456789)), 123456789);
}

int main(void) { return suite_main("cursor", .timeout = 120); }
