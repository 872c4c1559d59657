/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU executor (src/kernels/cuda/) on POSIX threads: programs of several ranks at once, against the host executor's
 * arithmetic, bit for bit; replays; LL; mismatches; abort.
 * check: fast timeout=300 long=tsan */
#include "../../src/collectives/transfer.h"
#include "../support/gpu_ranks.h"
#include "../support/suite.h"

/* Every algorithm of allreduce that needs no multicast, again and again through the same links, as a captured graph. */
TEST_LOOP(allreduce, 2) {
  static const size_t counts[] = {1, 3, 64, 1000, 5003};
  for (int n = 2; n <= RANKS; n++) {
    for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
      if (!usable(*a, HK_ALLREDUCE, n)) continue;
#ifdef __SANITIZE_THREAD__
      /* A lane writes where the other one has read, once the sum with what it read has come back. Lines order nothing;
       * the values' own way does, which TSan does not see. */
      if (_i && !strcmp((*a)->name, "halving")) continue;
#endif
      job *j = open_job(*a, HK_ALLREDUCE, n, n == 3 ? CHANNELS : 1, 0);
      for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++) {
        set_call(j, counts[i], HK_F32, HK_SUM, _i ? HK_PROTO_LL : HK_PROTO_SIMPLE, i == 3 ? 4 : 0);
        fill_f32(j, counts[i]);
        run_all(j);
        ck_assert_uint_eq(j->state.error, 0);
        check_sum_f32(j, counts[i]);
      }
    }
  }
}

/* All types and operators, with one step for all sources: equal to the host's, bit for bit. */
TEST_LOOP(types, SUITE_FEW(HK_DTYPE_COUNT)) {
  const hk_algorithm *direct = hk_algorithm_by_name("direct");
  const size_t count = 205;
  const int n = 3;
  job *j = open_job(direct, HK_REDUCE_SCATTER, n, 1, 0);
  for (int op = 0; op < HK_REDOP_COUNT; op++) {
    set_call(j, count, (hk_dtype)_i, (hk_redop)op, op & 1 ? HK_PROTO_LL : HK_PROTO_SIMPLE, op == 2 ? unit_of(j) : 0);
    run_all(j);
    check_reduced(j, count, (hk_dtype)_i, (hk_redop)op);
  }
}

/* A NaN of any rank is the result of max and min, wherever it comes in the order. */
TEST_LOOP(nan_stays, 2) {
  enum { COUNT = 64 };
  job *j = open_job(hk_algorithm_by_name("ring"), HK_ALLREDUCE, 3, 1, 0);
  set_call(j, COUNT, HK_F32, _i ? HK_MIN : HK_MAX, HK_PROTO_SIMPLE, 0);
  fill_f32(j, COUNT);
  for (int r = 0; r < 3; r++)
    for (int i = r; i < COUNT; i += 7) ((float *)(void *)(uintptr_t)j->r[r].run.work.in)[i] = hk_bits_f32(0x7fc00000u);
  run_all(j);
  for (int r = 0; r < 3; r++) {
    const float *out = (const float *)(void *)j->r[r].run.work.out;
    suite_all(i, COUNT, (out[i] != out[i]) == (i % 7 < 3));
  }
}

/* The others, with their data's places. */
TEST_LOOP(copies, 5) {
  static const hk_coll colls[] = {HK_BROADCAST, HK_ALLGATHER, HK_ALLTOALL, HK_GATHER, HK_SCATTER};
  const hk_coll coll = colls[_i];
  const hk_algorithm *first = NULL;
  for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
    const int n = 4, root = n - 1;
    if (!usable(*a, coll, n)) continue;
    if (!first) first = *a;
    job *j = open_job(*a, coll, n, 1, 0);
    for (size_t count = 1, i = 0; count < 9000; count = count * 5 + 2, i++) {
      set_call(j, count, HK_U8, HK_SUM, i % 2 ? HK_PROTO_SIMPLE : HK_PROTO_LL, count % 5);
      run_all(j);
      check_copied(j, count, root, (*a)->name);
    }
    for (size_t count = 16; *a == first && count <= 32; count++) { /* every end of a line */
      set_call(j, count, HK_U8, HK_SUM, HK_PROTO_LL, 0);
      run_all(j);
      check_copied(j, count, root, (*a)->name);
    }
  }
}

/* More instructions than a block holds at a time. */
TEST(long_programs) {
  enum { BLOCKS = 40 };
  char text[2][BLOCKS * 96 + 256];
  for (int r = 0; r < 2; r++) {
    int n = sprintf(text[r], "AllReduce long, rank %d of 2, message split into %d, scratch 0, lanes 1\nlane 0\n", r,
                    BLOCKS);
    n += sprintf(text[r] + n, "  links: 0=send(%d) 1=recv(%d)\n", !r, !r);
    for (int b = 0; b < BLOCKS; b++)
      n += sprintf(text[r] + n, "  0: send(%d)[b%d] <- in[b%d]\n  0: out[b%d] <- recv(%d)[b%d] + in[b%d], final\n", !r,
                   b, b, b, !r, b, b);
    program_text[r] = text[r];
  }
  job *j = open_job(NULL, HK_ALLREDUCE, 2, 1, 0);
  for (int i = 0; i < 4; i++) {
    const size_t count = i < 2 ? 8003 : 8002; /* an even one: the program does not fit, see set_call */
    set_call(j, count, HK_F32, HK_SUM, i % 2 ? HK_PROTO_LL : HK_PROTO_SIMPLE, 0);
    fill_f32(j, count);
    run_all(j);
    ck_assert_uint_eq(j->state.error, 0);
    check_sum_f32(j, count);
  }
}

/* The bits of flags and words come round, LL's 20 and the others' 32; stale lines are not taken for new ones. */
TEST_LOOP(numbers_come_round, 3) {
  static const uint64_t begins[] = {0xffffe, 0x3ffffffe, 0xfffffffe};
  job *j = open_job(hk_algorithm_by_name("ring"), HK_ALLREDUCE, 3, 1, begins[_i]);
  /* A ring's four slots of 600 floats, up to the number that ends in 4: the first ones fill little. */
  age_lines((uint32_t)begins[_i] + 6, 600 * sizeof(float) / 3);
  for (int i = 0; i < 4; i++) {
    size_t count = i ? 600 : 3;
    set_call(j, count, HK_F32, HK_SUM, i == 2 ? HK_PROTO_SIMPLE : HK_PROTO_LL, 0);
    fill_f32(j, count);
    run_all(j);
    ck_assert_uint_eq(j->state.error, 0);
    check_sum_f32(j, count);
  }
}

/* Slots with addresses instead of data.  A lane that ends overwrites its input at once: no lane may still read it; in
 * place, what was sent is soon overwritten. */
TEST_LOOP(references, 2) {
  static const size_t counts[] = {200, 5003};
  refs_from = 512;
  for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
    const int n = 3;
    if (!usable(*a, HK_ALLREDUCE, n)) continue;
    job *j = open_job(*a, HK_ALLREDUCE, n, 1, 0);
    for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++) {
      set_call(j, counts[i], HK_F32, HK_SUM, HK_PROTO_SIMPLE, 0);
      fill_f32(j, counts[i]);
      for (int r = 0; r < n && _i; r++) {
        memcpy(j->r[r].run.work.out, j->r[r].run.work.in, counts[i] * sizeof(float));
        j->r[r].run.work.in = j->r[r].run.work.out;
      }
      for (int r = 0; r < n; r++) start(&j->r[r].run);
      for (int r = 0; r < n; r++) {
        join(&j->r[r].run);
        if (!_i) memset(j->r[r].in, 0xff, j->in_bytes);
      }
      ck_assert_uint_eq(j->state.error, 0);
      check_sum_f32(j, counts[i]);
    }
  }
}

/* A sender's kernel does not end before all that it gave out is back. */
TEST(references_are_awaited) {
  refs_from = 512;
  job *j = open_job(hk_algorithm_by_name("chain"), HK_BROADCAST, 2, 1, 0);
  set_call(j, 2048, HK_U8, HK_SUM, HK_PROTO_SIMPLE, 0);
  start(&j->r[1].run); /* the root: two slots, and there is room for four */
  usleep(30000);
  ck_assert_int_eq(pthread_tryjoin_np(j->r[1].run.id[0], NULL), EBUSY);
  start(&j->r[0].run);
  join(&j->r[0].run);
  join(&j->r[1].run);
  check_copied(j, 2048, 1, "chain");
}

/* The others, premultiplied and divided too. */
TEST(references_of_others) {
  static const hk_coll colls[] = {HK_BROADCAST, HK_ALLGATHER, HK_ALLTOALL, HK_GATHER, HK_SCATTER};
  const int n = 3;
  refs_from = 64;
  for (size_t c = 0; c < HK_ARRAY_LENGTH(colls); c++) {
    for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
      if (!usable(*a, colls[c], n)) continue;
      job *j = open_job(*a, colls[c], n, 1, 0);
      set_call(j, 2501, HK_U8, HK_SUM, HK_PROTO_SIMPLE, c);
      run_all(j);
      check_copied(j, 2501, n - 1, (*a)->name);
    }
  }
  job *j = open_job(hk_algorithm_by_name("direct"), HK_REDUCE_SCATTER, n, 1, 0);
  for (int op = 0; op < HK_REDOP_COUNT; op++) {
    set_call(j, 205, HK_I32, (hk_redop)op, HK_PROTO_SIMPLE, 0);
    run_all(j);
    check_reduced(j, 205, HK_I32, (hk_redop)op);
  }
}

/* Registered memory: each receiver sees the sender's at an address of its own. */
TEST(references_by_table) {
  enum { BYTES = 100000, N = 3 };
  refs_from = 0;
  job *j = open_job(hk_algorithm_by_name("direct"), HK_SCATTER, N, 1, 0);
  j->chunk = BYTES; /* more than a slot holds: nothing may be copied into one */
  set_call(j, BYTES, HK_U8, HK_SUM, HK_PROTO_SIMPLE, 0);
  hk_gpu_work *w = &j->r[N - 1].run.work; /* the root */
  int64_t seen[N] = {0, 0, HK_GPU_UNSEEN};
  char *view[N - 1];
  for (int r = 0; r < N - 1; r++) {
    ck_assert_ptr_nonnull(view[r] = malloc(N * BYTES));
    memset(view[r], 0x55, N * BYTES);
    memcpy(view[r] + r * BYTES, w->in + r * BYTES, BYTES); /* its own part */
    seen[r] = view[r] - w->in;
  }
  memset(j->r[N - 1].in, 0x55, (N - 1) * BYTES);
  w->seen_in = seen;
  run_all(j);
  for (int r = 0; r < N - 1; r++) memcpy(j->r[N - 1].in + r * BYTES, view[r] + r * BYTES, BYTES);
  ck_assert_uint_eq(j->state.error, 0);
  check_copied(j, BYTES, N - 1, "direct");
  for (int r = 0; r < N - 1; r++) free(view[r]);
}

/* Of calls that do not match, by words, by lines, and one by each. */
TEST_LOOP(mismatch_is_reported, 3) {
  job *j = open_job(hk_algorithm_by_name("ring"), HK_ALLREDUCE, 2, 1, 0);
  set_call(j, 100, HK_F32, HK_SUM, _i == 1 ? HK_PROTO_LL : HK_PROTO_SIMPLE, 0);
  if (_i < 2)
    j->r[1].run.work.signature = 0x4321;
  else
    j->r[1].run.work.proto = HK_PROTO_LL; /* so small that it goes in lines, and the other's does not */
  run_all(j);
  ck_assert_uint_eq(j->state.error, HK_GPU_MISMATCH);
}

TEST_LOOP(abort_ends_it_at_once, 2) { check_aborted(_i ? HK_REDUCE : HK_BROADCAST, HK_PROTO_LL); }

TEST_LOOP(transfers, 2) {
  static const size_t sizes[] = {0, 1, 4096, 50001};
  refs_from = _i ? 4096 : 0;
  hk_gpu_state state = {0};
  hk_gpu_link ends[2] = {link_of(fifo_of(0, 1, 0), 1, true), link_of(fifo_of(0, 1, 0), 0, false)};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(sizes); i++) {
    char *buffers[2] = {malloc(sizes[i] + 1), calloc(1, sizes[i] + 1)};
    for (size_t b = 0; b < sizes[i]; b++) buffers[0][b] = (char)(b * 31 + i);
    hk_gpu_work t[2];
    hk_program *program[2];
    launch l[2];
    for (int e = 0; e < 2; e++) {
      bool refers = e == 0 && refs_from && sizes[i] >= refs_from;
      ck_assert_int_eq(hk_transfer_build(e, 2, 1 - e, e == 0, &program[e]), HK_OK);
      t[e] = (hk_gpu_work){.program = program[e],
                           .links = &ends[e],
                           .in = buffers[e],
                           .out = buffers[e],
                           .sizes = hk_sizes_of(HK_PART_WHOLE, sizes[i], sizes[i], refers ? sizes[i] : SLOT_BYTES),
                           .state = &state,
                           .signature = 7,
                           .nlinks = 1,
                           .channels = 1,
                           .orders = 1,
                           .lanes = 1};
      l[e] = (launch){.blocks = 1, .transfers = {.work = &t[e]}};
      start(&l[e]);
      if (e == 0 && refs_from && sizes[i] >= refs_from) {
        usleep(30000);
        ck_assert_int_eq(pthread_tryjoin_np(l[0].id[0], NULL), EBUSY);
      }
    }
    join(&l[0]);
    memset(buffers[0], 0, sizes[i]); /* the sender's kernel has ended: its buffer is the user's */
    join(&l[1]);
    suite_all(b, sizes[i], buffers[1][b] == (char)(b * 31 + i));
    ck_assert_uint_eq(*ends[0].done, *ends[1].done);
    for (int e = 0; e < 2; e++) {
      free(buffers[e]);
      hk_program_free(program[e]);
    }
  }
  drop_fifos();
}

/* Who writes for several waits for the last of them. */
TEST_LOOP(every_receiver_counts, 2) {
  uint64_t heads[3 * HK_GPU_HEAD_STRIDE];
  hk_gpu_state state = {.abort = 1}; /* so that a wait ends */
  hk_gpu_link link = {.head = heads, .nslots = 4, .others = 2, .sends = 1};
  for (int late = 0; late < 4; late++) {
    uint64_t seen = 0;
    for (int i = 0; i < 3; i++) heads[i * HK_GPU_HEAD_STRIDE] = i == late ? 4 : 5;
    ck_assert_int_eq(wait_credit(&link, 8, _i, &state, &seen), late == 3);
  }
}

int main(void) { return suite_main("gpu_exec", .timeout = 200, .teardown = close_job); }
