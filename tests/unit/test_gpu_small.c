/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of small messages (src/kernels/cuda/small.h) on POSIX threads, compared with the interpreter: equal bits
 * in any order of the ranks, in any number of passes and channels; what it takes and refuses; numbers that wrap, abort.
 * check: timeout=300 long=tsan */
#define GPU_WARP 8
#include "../../src/kernels/gpu_small.h"
#include "../../src/kernels/plan.h"
#include "../support/gpu_ranks.h"
#include "../support/suite.h"

/* What the host makes of rank r's program; NULL: it is not for this kernel. */
static hk_gpu_small *bound(job *j, int r) {
  rank *k = &j->r[r];
  const hk_plan plan = {.program = k->program, .channels = j->channels, .orders = 1};
  hk_gpu_small *small;
  ck_assert_int_eq(hk_gpu_small_bind(&plan, k->program->nlinks, k->links, k->links, &small), HK_OK);
  return small;
}
/* The ranks of the mask run by this kernel, the others by the interpreter. */
static void run_some(job *j, unsigned mask) {
  for (int r = 0; r < j->n; r++) {
    launch *l = &j->r[r].run;
    if (mask >> r & 1) {
      hk_gpu_small *small = bound(j, r);
      ck_assert_ptr_nonnull(small);
      ck_assert_uint_gt(l->blocks = hk_gpu_small_blocks(&l->work), 0);
      l->small = aligned_alloc(64, sizeof *l->small + 64);
      ck_assert_ptr_eq(hk_gpu_small_fill(l->small->block, small, &l->work), l->small->block + l->blocks);
      free(small);
    }
    start(l);
  }
  for (int r = 0; r < j->n; r++) {
    launch *l = &j->r[r].run;
    join(l);
    free(l->small);
    l->small = NULL;
    l->blocks = l->work.channels;
  }
}
static job *open_flat(int n, unsigned channels, uint64_t done) {
  return open_job(hk_algorithm_by_name("flat"), HK_ALLREDUCE, n, channels, done);
}

/* One byte, the ends of a line, and more lines than threads; the next call finds what the last one has left. */
TEST_LOOP(counts, RANKS - 1) {
  static const size_t all[] = {1, 7, 8, 9, 15, 16, 100, 129, 777};
  const int n = _i + 2;
  job *j = open_flat(n, 1, 0);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) {
    set_call(j, all[i], HK_U8, HK_SUM, HK_PROTO_LL, i % 3);
    run_some(j, i % 2 ? ~0u : 1u << i % (size_t)n);
    ck_assert_uint_eq(j->state.error, 0);
    check_ends(j);
    for (int r = 0; r < n; r++)
      for (size_t at = 0; at < all[i]; at++) {
        char sum = 0;
        for (int k = 0; k < n; k++) sum = (char)(sum + j->r[k].run.work.in[at]);
        if (j->r[r].run.work.out[at] != sum) ck_abort_msg("%zu bytes, rank %d: byte %zu", all[i], r, at);
      }
  }
  ck_assert_uint_eq(j->state.begun, 1);
}

/* The interpreter's results, bit for bit, of values that round; in place, and with both kernels at once. */
TEST_LOOP(types, HK_DTYPE_COUNT) {
  enum { N = 3, COUNT = 37 };
  job *j = open_flat(N, 2, 0);
  for (int op = 0; op < HK_REDOP_COUNT; op++) {
    char want[N][COUNT * 8];
    j->chunk = 2 * (COUNT / 4) * (size_t)hk_dtype_size((hk_dtype)_i) + hk_dtype_size((hk_dtype)_i); /* two waves */
    for (unsigned turn = 0; turn < 3; turn++) {
      set_call(j, COUNT, (hk_dtype)_i, (hk_redop)op, HK_PROTO_LL, op % 2 * unit_of(j));
      j->r[0].run.work.sizes.chunk = j->r[1].run.work.sizes.chunk = j->r[2].run.work.sizes.chunk = 20 * unit_of(j);
      for (int r = 0; r < N; r++) {
        for (size_t k = 0; k < COUNT; k++) /* of both signs, and some that no sum has exactly */
          ((char *)(uintptr_t)j->r[r].run.work.in)[k * unit_of(j)] ^= (char)(0x80 >> (k + (size_t)r) % 8);
        if (turn != 1) continue;
        memcpy(j->r[r].run.work.out, j->r[r].run.work.in, j->in_bytes);
        j->r[r].run.work.in = j->r[r].run.work.out;
      }
      run_some(j, turn == 0 ? 0 : turn == 1 ? ~0u : 5);
      ck_assert_uint_eq(j->state.error, 0);
      for (int r = 0; r < N; r++) {
        if (turn == 0) memcpy(want[r], j->r[r].run.work.out, j->out_bytes);
        ck_assert_msg(memcmp(want[r], j->r[r].run.work.out, j->out_bytes) == 0,
                      "type %s, operator %s, rank %d, turn %u", hk_dtype_name((hk_dtype)_i),
                      hk_redop_name((hk_redop)op), r, turn);
      }
    }
  }
}

/* Stale lines are not taken for new ones: LL's 20 bits of flags, and what LL128 will want to be fresh. */
TEST_LOOP(numbers_come_round, 3) {
  static const uint64_t begins[] = {0xffffe, 0x3ffffffe, 0xfffffffe};
  job *j = open_flat(3, 1, begins[_i]);
  /* Up to the number that ends in 4: the calls before it, each of a slot, fill little. */
  age_lines((uint32_t)begins[_i] + 6, 200 * sizeof(float));
  for (int i = 0; i < 6; i++) {
    const size_t count = i < 5 ? 3 : 200;
    set_call(j, count, HK_F32, HK_SUM, HK_PROTO_LL, 0);
    fill_f32(j, count);
    run_some(j, ~0u);
    ck_assert_uint_eq(j->state.error, 0);
    check_sum_f32(j, count);
  }
  const uint32_t *wide = (const uint32_t *)(const void *)(fifos[1][0][0]->wide + 3 * WIDE_BYTES + 112);
  /* It was what the next call in LL128 would wait for. */
  if (_i) ck_assert_uint_eq(wide[2], (uint32_t)begins[_i] + 1);
}

/* More calls than a link has slots: a sender waits for the slowest reader, which began late. */
TEST(credits) {
  job *j = open_flat(2, 1, 0);
  for (int i = 0; i < 3 * SLOTS; i++) {
    set_call(j, 50, HK_F32, HK_SUM, HK_PROTO_LL, 0);
    fill_f32(j, 50);
    run_some(j, ~0u);
    check_sum_f32(j, 50);
  }
  /* The reader has not given slots back: nothing is written over. */
  fifo *f = fifos[0][1][0];
  ck_assert_uint_eq(f->head, 3 * SLOTS);
  f->head -= SLOTS;
  char before[64];
  memcpy(before, f->lines, sizeof before);
  hk_gpu_small *small = bound(j, 0);
  hk_gpu_small_batch batch;
  set_call(j, 50, HK_F32, HK_SUM, HK_PROTO_LL, 0);
  hk_gpu_small_fill(batch.block, small, &j->r[0].run.work);
  j->r[0].run.small = &batch;
  const unsigned long polls = atomic_load(&gpu_polls);
  start(&j->r[0].run);
  while (atomic_load(&gpu_polls) < polls + 100) sched_yield();
  ck_assert_mem_eq(f->lines, before, sizeof before);
  hk_store_relaxed(&j->state.abort, 1);
  join(&j->r[0].run);
  ck_assert_mem_eq(f->lines, before, sizeof before);
  ck_assert_uint_eq(f->sent, 3 * SLOTS);
  free(small);
}

/* A part of one rank's message, halves of lines, never comes: the host aborts.  Nothing of it is stored, and no slot is
 * given back. */
TEST(aborted) {
  enum { N = 3, COUNT = 400, OLD = 0x5a };
  job *j = open_flat(N, 1, 4);
  set_call(j, COUNT, HK_U8, HK_SUM, HK_PROTO_LL, 0);
  for (int r = 1; r < N; r++) { /* these two send, and are not waited for: rank 0 sends nothing yet */
    memset(j->r[r].out, 0xee, COUNT + 32);
    start(&j->r[r].run);
  }
  fifo *in = fifos[2][0][0];
  for (volatile uint32_t *last = (uint32_t *)(void *)(in->lines + 2 * COUNT - 4);
       __atomic_load_n(last, __ATOMIC_RELAXED) == OLD * 0x01010101u;)
    sched_yield();
  hk_store_relaxed(&j->state.abort, 1);
  for (int r = 1; r < N; r++) join(&j->r[r].run);
  j->state.begun = 0;
  for (size_t i = 2 * COUNT - 64; i < 2 * COUNT; i++) /* of four lines a half each */
    if ((i / 8 ^ i / 16) % 2) in->lines[i] = OLD;
  j->state.abort = 0;
  memset(j->r[0].out, 0xee, COUNT + 32);
  hk_gpu_small *small = bound(j, 0);
  hk_gpu_small_batch batch;
  hk_gpu_small_fill(batch.block, small, &j->r[0].run.work);
  j->r[0].run.small = &batch;
  const unsigned long before = atomic_load(&gpu_polls);
  start(&j->r[0].run);
  while (atomic_load(&gpu_polls) < before + 4 * GPU_THREADS) sched_yield(); /* it waits */
  const unsigned long then = atomic_load(&gpu_polls);
  hk_store_relaxed(&j->state.abort, 1);
  join(&j->r[0].run);
  ck_assert_uint_le(atomic_load(&gpu_polls) - then, 2 * POLLS_BETWEEN_LOOKS * GPU_THREADS);
  for (int i = 0; i < 32; i++) ck_assert_int_eq((unsigned char)j->r[0].run.work.out[COUNT - 32 + i], 0xee);
  ck_assert_uint_eq(in->head, 4);
  ck_assert_uint_eq(in->received, 4);
  ck_assert_uint_eq(j->state.begun, 1);
  free(small);
}

/* Programs of another shape, links of other kinds, calls of more than a wave: the interpreter runs them. */
TEST(what_it_takes) {
  for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
    if (!usable(*a, HK_ALLREDUCE, 4)) continue;
    job *j = open_job(*a, HK_ALLREDUCE, 4, 1, 0);
    hk_gpu_small *small = bound(j, 1);
    ck_assert_msg(!small == (strcmp((*a)->name, "flat") != 0), "%s", (*a)->name);
    free(small);
  }
  job *j = open_flat(3, 2, 0);
  for (int i = 0; i < 5; i++) {
    hk_gpu_link *link = &j->r[1].links[i], was = *link;
    if (i == 0) link->lines = NULL;
    if (i == 1) link->proxied = 1;
    if (i == 2) link->multi = HK_GPU_MULTI_SIGNAL;
    if (i == 3) link->nslots *= 2;
    if (i == 4) link->others = 1;
    ck_assert_ptr_null(bound(j, 1));
    *link = was;
  }
  set_call(j, 100, HK_F32, HK_SUM, HK_PROTO_LL, 0);
  hk_gpu_work w = j->r[1].run.work;
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 1);
  w.sizes.chunk = 200;
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 2);
  w.sizes.chunk = 199;
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 0);
  w.sizes = hk_sizes_of(HK_PART_SPLIT, HK_GPU_LL_MAX + 1, HK_GPU_LL_MAX + 1, 2 * HK_GPU_LL_MAX);
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 0);
  w = j->r[1].run.work;
  w.proto = HK_PROTO_LL128;
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 0);
  w = j->r[1].run.work;
  w.reducer.by_address = 1;
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 0);
  w = j->r[1].run.work;
  w.sizes.total = 0;
  ck_assert_uint_eq(hk_gpu_small_blocks(&w), 0);
}

int main(void) { return suite_main("gpu_small", .timeout = 120, .teardown = close_job); }
