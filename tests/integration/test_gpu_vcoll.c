/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives whose blocks differ in length, on GPUs, on the driver that runs on the CPU: random counts, in groups and
 * alone, captured, and counts that do not match.
 * check: fast timeout=300 notsan long=asan */
#include "../support/gpu.h"
#include "../support/suite.h"

enum { N = 4, ROOM = 1 << 20 };
static size_t counts[N][N]; /* [from][to] */
static uint32_t host[ROOM / 4];

static uint32_t word(int from, int to, size_t k) {
  return (uint32_t)(from * 64 + to) << 24 | (uint32_t)(k * 7 & 0xffffff);
}

static void choose(uint64_t seed, size_t most, bool rows_equal) {
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      uint64_t h = (seed * 31 + (uint64_t)(rows_equal ? 0 : i) * 7 + (uint64_t)j + 1) * 0x9e3779b97f4a7c15u;
      counts[i][j] = (h >> 60) < 4 ? 0 : (h >> 20) % most;
    }
}

static void put(gpu_ranks *g, int r, CUdeviceptr to, size_t n) {
  emu_use(g->device[r]);
  OK(MemcpyAsync(to, (CUdeviceptr)(uintptr_t)host, n * 4 + 4, g->stream[r]));
  OK(StreamSynchronize(g->stream[r]));
}
static void get(gpu_ranks *g, int r) {
  emu_use(g->device[r]);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)host, g->out[r], ROOM, g->stream[r]));
  OK(StreamSynchronize(g->stream[r]));
}

static void *at(CUdeviceptr p) { return (void *)(uintptr_t)p; }
static cudaStream_t stream_of(gpu_ranks *g, int r) { return (cudaStream_t)(void *)g->stream[r]; }

static void fill_pairs(gpu_ranks *g) {
  for (int r = 0; r < N; r++) {
    size_t n = 0;
    for (int j = 0; j < N; j++)
      for (size_t k = 0; k < counts[r][j]; k++) host[n++] = word(r, j, k);
    put(g, r, g->in[r], n);
  }
}
static ncclResult_t call_pairs(gpu_ranks *g, int r) {
  size_t recv[N];
  for (int i = 0; i < N; i++) recv[i] = counts[i][r];
  return hocketAlltoAllv(at(g->in[r]), counts[r], NULL, at(g->out[r]), recv, NULL, ncclUint32, g->comm[r],
                         stream_of(g, r));
}
static void check_pairs(gpu_ranks *g) {
  for (int r = 0; r < N; r++) {
    size_t n = 0;
    get(g, r);
    for (int i = 0; i < N; i++)
      for (size_t k = 0; k < counts[i][r]; k++, n++)
        if (host[n] != word(i, r, k)) ck_abort_msg("rank %d, block %d of %d, element %zu: %x", r, i, N, k, host[n]);
  }
}

static void open_all(gpu_ranks *g, int devices) {
  gpu_open(g, N, devices, ROOM);
  gpu_init_all(g);
}

/* With one wave and with many; on one device by reference too. */
TEST_LOOP(pairs, 3) {
  gpu_ranks g;
  open_all(&g, _i == 0 ? 1 : _i == 1 ? 2 : N);
  for (uint64_t seed = 0; seed < 8; seed++) {
    choose(seed, seed % 2 ? 50 : 30000, false);
    fill_pairs(&g);
    OK_NCCL(ncclGroupStart());
    for (int k = 0; k < 2; k++) /* two tables at the same time */
      for (int r = 0; r < N; r++) OK_NCCL(call_pairs(&g, r));
    OK_NCCL(ncclGroupEnd());
    check_pairs(&g);
  }
  gpu_close(&g);
}

/* Gather, then reduce; in place. */
TEST_LOOP(gather_and_reduce, 9) {
  static const char *const algorithms[] = {"ring", "direct", "pat"}, *const protocols[] = {"Simple", "LL", "LL128"};
  gpu_ranks g;
  setenv("NCCL_ALGO", algorithms[_i / 3], 1);
  setenv("NCCL_PROTO", protocols[_i % 3], 1);
  open_all(&g, N);
  for (uint64_t seed = 0; seed < 6; seed++) {
    size_t begin[N + 1] = {0};
    choose(seed, seed % 2 ? 50 : 30000, true);
    for (int i = 0; i < N; i++) begin[i + 1] = begin[i] + counts[0][i];
    for (int r = 0; r < N; r++) {
      for (size_t k = 0; k < counts[0][r]; k++) host[k] = word(r, 0, k);
      put(&g, r, g.out[r] + 4 * begin[r], counts[0][r]);
    }
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < N; r++)
      OK_NCCL(hocketAllGatherv(at(g.out[r] + 4 * begin[r]), at(g.out[r]), counts[0], NULL, ncclUint32, g.comm[r],
                               stream_of(&g, r)));
    for (int r = 0; r < N; r++)
      OK_NCCL(hocketReduceScatterv(at(g.out[r]), at(g.in[r]), counts[0], NULL, ncclUint32, ncclSum, g.comm[r],
                                   stream_of(&g, r)));
    OK_NCCL(ncclGroupEnd());
    for (int r = 0; r < N; r++) {
      get(&g, r);
      for (int i = 0; i < N; i++)
        for (size_t k = 0; k < counts[0][i]; k++)
          if (host[begin[i] + k] != word(i, 0, k)) ck_abort_msg("rank %d, block %d, element %zu", r, i, k);
      emu_use(g.device[r]);
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)host, g.in[r], counts[0][r] * 4 + 4, g.stream[r]));
      OK(StreamSynchronize(g.stream[r]));
      for (size_t k = 0; k < counts[0][r]; k++)
        if (host[k] != N * word(r, 0, k)) ck_abort_msg("the sum on rank %d, element %zu: %x", r, k, host[k]);
    }
  }
  gpu_close(&g);
}

/* A captured call keeps its counts; other calls between the replays use tables of their own. */
TEST(captured) {
  gpu_ranks g;
  CUgraphExec exec[N];
  static size_t kept[N][N];
  open_all(&g, N);
  choose(3, 20000, false);
  memcpy(kept, counts, sizeof kept);
  for (int r = 0; r < N; r++) {
    emu_use(g.device[r]);
    OK(StreamBeginCapture(g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++) OK_NCCL(call_pairs(&g, r));
  OK_NCCL(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    emu_use(g.device[r]);
    exec[r] = gpu_end_capture(g.stream[r]);
  }
  for (uint64_t seed = 4; seed < 8; seed++) {
    choose(seed, 20000, false);
    fill_pairs(&g);
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < N; r++) OK_NCCL(call_pairs(&g, r));
    OK_NCCL(ncclGroupEnd());
    check_pairs(&g);
    memcpy(counts, kept, sizeof kept);
    fill_pairs(&g);
    for (int r = 0; r < N; r++) {
      emu_use(g.device[r]);
      OK(GraphLaunch(exec[r], g.stream[r]));
    }
    gpu_wait(&g);
    check_pairs(&g);
  }
  for (int r = 0; r < N; r++) OK(GraphExecDestroy(exec[r]));
  gpu_close(&g);
}

/* Rank 2 sends rank 1 less than rank 1 expects: nothing, or all but one element. */
TEST_LOOP(mismatch, 2) {
  gpu_ranks g;
  ncclResult_t state = ncclSuccess;
  open_all(&g, N);
  choose(1, 3000, false);
  counts[2][1] = _i ? 20000 : 0;
  fill_pairs(&g);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    counts[2][1] += r == 1;
    OK_NCCL(call_pairs(&g, r));
    counts[2][1] -= r == 1;
  }
  OK_NCCL(ncclGroupEnd());
  while (state == ncclSuccess) OK_NCCL(ncclCommGetAsyncError(g.comm[1], &state));
  ck_assert_int_eq(state, ncclInvalidUsage);
  for (int r = 0; r < N; r++) OK_NCCL(ncclCommAbort(g.comm[r])), g.comm[r] = NULL;
  gpu_close(&g);
}

int main(void) {
  if (!gpu_here()) return 77;
  gpu_environment();
  return suite_main("gpu_vcoll", .timeout = 120);
}
