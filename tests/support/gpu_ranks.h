/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose GPUs are POSIX threads: programs bound to links and launched, for tests of the GPU executor. */
#ifndef HK_TESTS_GPU_RANKS_H
#define HK_TESTS_GPU_RANKS_H
#include "../../src/collectives/algorithm.h"
#include "../../src/kernels/reduce.h"
#include "../../src/program/builder.h"
#include "suite.h"
#define HK_SHIM "../../../tests/support/gpu_threads.h"
#include "../../src/kernels/cuda/exec.cu"

#define SAME(a, b) ((int)(a) == (int)(b))
_Static_assert(SAME(T_I8, HK_I8) && SAME(T_U64, HK_U64) && SAME(T_F16, HK_F16) && SAME(T_F64, HK_F64), "one numbering");
_Static_assert(SAME(T_BF16, HK_BF16) && SAME(T_E5M2, HK_E5M2), "one numbering");
_Static_assert(SAME(OP_SUM, HK_SUM) && SAME(OP_PROD, HK_PROD) && SAME(OP_MAX, HK_MAX) && SAME(OP_MIN, HK_MIN), "too");

enum { SLOTS = 4, SLOT_BYTES = 4096, WIDE_BYTES = 2560, RANKS = 5, CHANNELS = 2, SIGNATURE = 0x1234 };

/* ---- launches ---- */

typedef struct launch {
  hk_gpu_work work;
  hk_gpu_transfers transfers; /* where work.program is NULL */
  hk_gpu_small_batch *small;  /* not NULL: in place of `work` */
  unsigned blocks;
  gpu_block *block;
  gpu_thread *thread;
  pthread_t *id;
} launch;
typedef struct entry {
  launch *l;
  gpu_thread *t;
} entry;

static void *thread_main(void *arg) {
  entry e = *(entry *)arg;
  free(arg);
  gpu_me = e.t;
  if (e.l->small) {
    hk_run_small(*e.l->small);
  } else if (e.l->work.program) {
    hk_gpu_batch batch = {.works = 1, .end = {e.l->blocks}};
    batch.work[0] = e.l->work;
    hk_run_batch(batch);
  } else {
    hk_run_transfers(e.l->transfers);
  }
  return NULL;
}
/* Where a kernel is meant to hang (gpu_mutations.sh), the test need not wait for long to know it. */
static void expect_end_in_time(void) {
  const char *seconds = getenv("HOCKET_TEST_STUCK");
  if (seconds) alarm((unsigned)atoi(seconds));
}
static void start(launch *l) {
  expect_end_in_time();
  l->block = aligned_alloc(64, l->blocks * sizeof *l->block);
  l->thread = calloc(l->blocks * GPU_THREADS, sizeof *l->thread);
  l->id = calloc(l->blocks * GPU_THREADS, sizeof *l->id);
  for (unsigned b = 0; b < l->blocks; b++) {
    gpu_block *k = &l->block[b];
    memset(k, 0, sizeof *k);
    k->index = b;
    k->blocks = l->blocks;
    pthread_barrier_init(&k->all, NULL, GPU_THREADS);
    for (int w = 0; w < GPU_THREADS / HK_WARP; w++) pthread_barrier_init(&k->warp[w], NULL, HK_WARP);
  }
  for (unsigned i = 0; i < l->blocks * GPU_THREADS; i++) {
    l->thread[i] = (gpu_thread){.block = &l->block[i / GPU_THREADS], .index = i % GPU_THREADS};
    entry *e = malloc(sizeof *e);
    *e = (entry){l, &l->thread[i]};
    ck_assert_int_eq(pthread_create(&l->id[i], NULL, thread_main, e), 0);
  }
}
static void join(launch *l) {
  for (unsigned i = 0; i < l->blocks * GPU_THREADS; i++) pthread_join(l->id[i], NULL);
  free(l->block);
  free(l->thread);
  free(l->id);
}

/* ---- ranks ---- */

/* The FIFO of one connection: what would lie in the two ranks' device memory. */
typedef struct fifo {
  uint64_t head, sent, received;
  uint64_t word[SLOTS * HK_GPU_WORD_STRIDE];
  _Alignas(16) char data[SLOTS * SLOT_BYTES], lines[SLOTS * 2 * HK_GPU_LL_MAX];
  _Alignas(128) char wide[SLOTS * WIDE_BYTES];
} fifo;
/* [from][to][channel] */
static fifo *fifos[RANKS][RANKS][16];

static fifo *fifo_of(unsigned from, unsigned to, unsigned channel) {
  fifo **f = &fifos[from][to][channel];
  if (!*f) {
    ck_assert_ptr_nonnull(*f = aligned_alloc(128, (sizeof **f + 127) / 128 * 128));
    memset(*f, 0, sizeof **f);
  }
  return *f;
}
static void drop_fifos(void) {
  for (int i = 0; i < RANKS * RANKS * 16; i++) {
    free((&fifos[0][0][0])[i]);
    (&fifos[0][0][0])[i] = NULL;
  }
}
static uint32_t refs_from; /* what links say of references */
static hk_gpu_link link_of(fifo *f, unsigned peer, bool sends) {
  return (hk_gpu_link){.done = sends ? &f->sent : &f->received,
                       .head = &f->head,
                       .word = f->word,
                       .data = f->data,
                       .lines = f->lines,
                       .slot_bytes = SLOT_BYTES,
                       .nslots = SLOTS,
                       .wide = f->wide,
                       .wide_bytes = WIDE_BYTES,
                       .refs = sends ? refs_from : 0,
                       .peer = peer,
                       .sends = sends};
}

typedef struct rank {
  hk_program *program;
  hk_gpu_link *links;
  char *in, *out, *scratch;
  launch run;
} rank;
typedef struct job {
  int n;
  unsigned channels;
  hk_coll coll;
  rank r[RANKS];
  size_t in_bytes, out_bytes, chunk;
  hk_reducer reducer;
  hk_gpu_state state;
} job;

static size_t unit_of(const job *j) { return j->reducer.elem_bytes; }

/* Instead of an algorithm's program: text, for each rank. */
static const char *program_text[RANKS];
static job the_job;
static inline void close_job(void) {
  job *j = &the_job;
  for (int r = 0; r < j->n; r++) {
    hk_program_free(j->r[r].program);
    free(j->r[r].links);
    free(j->r[r].in);
    free(j->r[r].out);
    free(j->r[r].scratch);
  }
  drop_fifos();
  j->n = 0;
}
/* It is closed when another one is opened, and after the test. */
static inline job *open_job(const hk_algorithm *a, hk_coll coll, int n, unsigned channels, uint64_t done) {
  job *j = &the_job;
  close_job();
  *j = (job){.n = n, .coll = coll, .channels = channels, .chunk = 1024};
  for (int r = 0; r < n; r++) {
    rank *k = &j->r[r];
    hk_build what = {.coll = coll, .rank = r, .nranks = n, .root = n - 1};
    ck_assert_int_eq(a ? hk_algorithm_build(a, &what, &k->program) : hk_program_parse(program_text[r], &k->program),
                     HK_OK);
    const hk_link_need *needs = hk_program_links(k->program);
    unsigned span = 1;
    for (unsigned i = 0; i < k->program->nlinks; i++)
      if (needs[i].channel >= span) span = needs[i].channel + 1u;
    k->links = calloc(channels * k->program->nlinks + 1, sizeof *k->links);
    for (unsigned i = 0; i < channels * k->program->nlinks; i++) {
      const hk_link_need *need = &needs[i % k->program->nlinks];
      unsigned channel = need->channel + i / k->program->nlinks * span;
      bool sends = need->kind == HK_LINK_SEND;
      ck_assert(channel < 16);
      fifo *f = sends ? fifo_of((unsigned)r, need->peer, channel) : fifo_of(need->peer, (unsigned)r, channel);
      f->head = f->sent = f->received = done;
      if (done) { /* lines that have been in use do not hold the zeros that they begin with */
        memset(f->lines, 0x5a, sizeof f->lines);
        memset(f->wide, 0x5a, sizeof f->wide);
      }
      k->links[i] = link_of(f, need->peer, sends);
    }
  }
  return j;
}

/* The buffers begin `offset` bytes after a multiple of 16. */
static inline void set_call(job *j, size_t count, hk_dtype type, hk_redop op, uint32_t proto, size_t offset) {
  uint64_t scalar = type == HK_F32 ? 0x40200000u : type == HK_F16 ? 0x4100u : 3;
  ck_assert_int_eq(hk_reducer_init(&j->reducer, type, op, j->n, op == HK_PREMULSUM ? &scalar : NULL), HK_OK);
  memset(&j->state, 0, sizeof j->state);
  size_t bytes = count * unit_of(j);
  j->in_bytes = bytes * (size_t)hk_coll_in_blocks(j->coll, j->n);
  j->out_bytes = bytes * (size_t)hk_coll_out_blocks(j->coll, j->n);
  for (int r = 0; r < j->n; r++) {
    rank *k = &j->r[r];
    const hk_program *p = k->program;
    free(k->in);
    free(k->out);
    free(k->scratch);
    k->in = calloc(1, j->in_bytes + 32);
    k->out = calloc(1, j->out_bytes + 32);
    for (size_t i = 0; i < j->in_bytes + 32; i++) k->in[i] = (char)((i * 7 + (size_t)r * 13 + i / 251) & 0x3f);
    size_t block = bytes;
    if (p->partition == HK_PART_SPLIT) block = (count + p->blocks - 1) / p->blocks * unit_of(j);
    size_t chunk = j->chunk, scratch = p->scratch_blocks * chunk;
    k->scratch = aligned_alloc(64, scratch * p->nlanes * j->channels + 64);
    k->run.blocks = p->nlanes * j->channels;
    k->run.work = (hk_gpu_work){.program = p,
                                .links = k->links,
                                .in = k->in + offset,
                                .out = k->out + offset,
                                .scratch = k->scratch,
                                .scratch_bytes = scratch,
                                .sizes = hk_sizes_of((hk_partition)p->partition, bytes, block, chunk),
                                .state = &j->state,
                                .reducer = {.dtype = j->reducer.dtype,
                                            .op = j->reducer.op,
                                            .elem_bytes = j->reducer.elem_bytes,
                                            .pre = j->reducer.pre,
                                            .post = j->reducer.post,
                                            .reduces = (uint8_t)hk_coll_reduces(j->coll),
                                            .divisor = j->reducer.divisor,
                                            .scalar = j->reducer.scalar.bits},
                                .signature = SIGNATURE,
                                .program_bytes = count % 2 ? (uint32_t)p->bytes : 0, /* in shared memory, or not */
                                .nlinks = count % 3 == 1 && j->channels == 1 ? HK_GPU_LINKS + 1 : p->nlinks,
                                .channels = (uint16_t)j->channels,
                                .orders = 1,
                                .lanes = (uint16_t)p->nlanes,
                                .proto = (uint8_t)proto};
  }
}
static inline void run_all(job *j) {
  for (int r = 0; r < j->n; r++) start(&j->r[r].run);
  for (int r = 0; r < j->n; r++) join(&j->r[r].run);
}

/* Lines that were written 2^32 slots ago, for slots of `bytes`: their flags are those of the slots from number `first`
 * on. */
static inline void age_lines(uint32_t first, uint64_t bytes) {
  const uint32_t tag = tag_of(SIGNATURE, bytes);
  for (int i = 0; i < RANKS * RANKS * 16; i++) {
    fifo *f = (&fifos[0][0][0])[i];
    for (uint32_t n = first; f && n < first + SLOTS; n++) {
      const hk_vec old = {{7, hk_gpu_line_flag(n, tag), 7, hk_gpu_line_flag(n, tag)}}, last = {{7, 7, n, tag}};
      char *lines = f->lines + (size_t)((n - 1) % SLOTS) * 2 * HK_GPU_LL_MAX;
      char *wide = f->wide + (size_t)((n - 1) % SLOTS) * WIDE_BYTES;
      for (size_t k = 0; k < 2 * (size_t)HK_GPU_LL_MAX; k += 16) memcpy(lines + k, &old, sizeof old);
      if (first % 0x40000000 >= 64) continue; /* LL128's numbers do not come round here */
      for (size_t k = 112; k < WIDE_BYTES; k += 128) memcpy(wide + k, &last, sizeof last);
    }
  }
}

/* Nothing is written after the outputs, which were zeros. */
static inline void check_ends(const job *j) {
  static const char zeros[32];
  for (int r = 0; r < j->n; r++) {
    size_t after = 32 - (size_t)(j->r[r].run.work.out - j->r[r].out);
    ck_assert_mem_eq(j->r[r].run.work.out + j->out_bytes, zeros, after);
  }
}

/* Allreduce of small whole numbers has one right answer however it is summed up. */
static inline void check_sum_f32(job *j, size_t count) {
  check_ends(j);
  for (int r = 0; r < j->n; r++) {
    float *out = (float *)(void *)j->r[r].run.work.out;
    for (size_t i = 0; i < count; i++)
      if (out[i] != (float)(i % 97 * (unsigned)j->n)) /* an assertion that holds costs a system call */
        ck_abort_msg("rank %d: element %zu is %g", r, i, (double)out[i]);
  }
}
static inline void fill_f32(job *j, size_t count) {
  for (int r = 0; r < j->n; r++)
    for (size_t i = 0; i < count; i++)
      ((float *)(void *)(uintptr_t)j->r[r].run.work.in)[i] =
          (float)(i % 97) + (r == 0 ? (float)j->n - 1 : -1.0f); /* the ranks' extras cancel out */
}

/* A chain of ranks in which a part of the second slot never comes: the host aborts while its receiver waits for it.
 * Nothing that depends on the missing bytes is stored, the slot is not given back, and the threads look no longer at
 * anything. */
static inline void check_aborted(hk_coll coll, uint32_t proto) {
  enum { N = 3, COUNT = 4096, SLOT = 1024, BEGIN = 8, OLD = 0x5a };
  enum { MISSING = 480 }; /* of the second slot: lines of LL and LL128 begin there */
  job *j = open_job(hk_algorithm_by_name("chain"), coll, N, 1, BEGIN);
  set_call(j, COUNT, HK_U8, HK_SUM, proto, 0);
  for (int r = 0; r < N; r++) memset(j->r[r].out, 0xee, j->out_bytes + 32);
  /* The first rank of the chain sends all its four slots, for which there is room. */
  int first = 0, middle = 0, last = 0;
  for (int r = 0; r < N; r++) {
    bool gets = false, gives = false;
    for (int p = 0; p < N; p++) gets |= fifos[p][r][0] != NULL, gives |= fifos[r][p][0] != NULL;
    if (!gets) first = r;
    if (!gives) last = r;
  }
  middle = N - first - last;
  start(&j->r[first].run);
  join(&j->r[first].run);
  fifo *in = fifos[first][middle][0], *out = fifos[middle][last][0];
  char *lines = in->lines + 2 * HK_GPU_LL_MAX, *wide = in->wide + WIDE_BYTES;
  memset(lines + 2 * MISSING, OLD, 2 * HK_GPU_LL_MAX - 2 * MISSING);
  memset(wide + MISSING / 240 * 256, OLD, WIDE_BYTES - MISSING / 240 * 256);
  const unsigned long before = atomic_load(&gpu_polls);
  start(&j->r[middle].run);
  while (atomic_load(&gpu_polls) < before + 4 * GPU_THREADS) sched_yield(); /* it waits */
  const unsigned long then = atomic_load(&gpu_polls);
  hk_store_relaxed(&j->state.abort, 1);
  join(&j->r[middle].run);
  ck_assert_uint_le(atomic_load(&gpu_polls) - then, 2 * POLLS_BETWEEN_LOOKS * GPU_THREADS);
  ck_assert_uint_eq(in->head, BEGIN + 1);
  const char *mine = j->r[middle].run.work.in, *sent = j->r[first].run.work.in;
  for (int i = 0; coll == HK_BROADCAST && i < COUNT; i++) {
    char is = j->r[middle].run.work.out[i];
    if (i < SLOT ? is == sent[i] : is == (char)0xee || (is == sent[i] && i < SLOT + MISSING)) continue;
    ck_abort_msg("byte %d is %d", i, is);
  }
  /* Nor is anything sent on: what the next rank gets is the first slot. */
  const size_t ll = (size_t)2 * HK_GPU_LL_MAX, from = 2 * MISSING, wide_from = MISSING / 240 * 256;
  for (size_t i = from; i < ll; i++)
    if (out->lines[ll + i] != OLD) ck_abort_msg("byte %zu of the next rank's lines is stored", i);
  for (size_t i = wide_from; i < WIDE_BYTES; i++)
    if (out->wide[WIDE_BYTES + i] != OLD) ck_abort_msg("byte %zu of the next rank's lines is stored", i);
  if (proto == HK_PROTO_LL) {
    const uint32_t got = (uint32_t)(unsigned char)out->lines[0];
    ck_assert_uint_eq(got, (unsigned char)(coll == HK_REDUCE ? mine[0] + sent[0] : sent[0]));
  }
}

static inline bool usable(const hk_algorithm *a, hk_coll coll, int n) {
  const hk_team team = {.nranks = n, .nhosts = 1, .ranks_per_host = n, .least_per_host = n};
  return hk_algorithm_supports(a, &team, coll);
}

/* Reduce-scatter with one step for all sources: equal to the host's, bit for bit. */
static inline void check_reduced(job *j, size_t count, hk_dtype type, hk_redop op) {
  size_t bytes = count * unit_of(j);
  for (int r = 0; r < j->n; r++) {
    /* What the program does: whose input comes first is its to say, so any order may be the right one. */
    bool equal = false;
    for (int turn = 0; turn < 2 * j->n && !equal; turn++) {
      char *want = malloc(bytes), *scaled[RANKS];
      const void *src[RANKS];
      void *dst = want;
      for (int k = 0; k < j->n; k++) {
        int from = turn < j->n ? (turn + k) % j->n : (turn - k + j->n) % j->n;
        scaled[k] = malloc(bytes);
        void *to = scaled[k];
        const void *mine = j->r[from].run.work.in + (size_t)r * bytes;
        hk_move(&j->reducer, &to, 1, &mine, 1, 0, bytes, 0);
        src[k] = scaled[k];
      }
      hk_move(&j->reducer, &dst, 1, src, (unsigned)j->n, -1, bytes, HK_MOVE_FINAL);
      equal = memcmp(want, j->r[r].run.work.out, bytes) == 0;
      for (int k = 0; k < j->n; k++) free(scaled[k]);
      free(want);
    }
    ck_assert_msg(equal, "type %s, operator %s, rank %d", hk_dtype_name(type), hk_redop_name(op), r);
  }
}

/* Collectives that move bytes as they are: every block is the one that it should be. */
static inline void check_copied(job *j, size_t count, int root, const char *name) {
  const hk_coll coll = j->coll;
  check_ends(j);
  for (int r = 0; r < j->n; r++) {
    if (!hk_coll_has_output(coll, r, root)) continue;
    int blocks = hk_coll_out_blocks(coll, j->n);
    for (int b = 0; b < blocks; b++) {
      int from = coll == HK_BROADCAST || coll == HK_SCATTER ? root : b;
      int part = coll == HK_ALLTOALL || coll == HK_SCATTER ? r : 0;
      ck_assert_msg(
          memcmp(j->r[r].run.work.out + (size_t)b * count, j->r[from].run.work.in + (size_t)part * count, count) == 0,
          "%s %s of %zu bytes, rank %d, block %d", name, hk_coll_name(coll), count, r, b);
    }
  }
}
#endif
