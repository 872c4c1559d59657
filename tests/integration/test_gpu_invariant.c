/* SPDX-License-Identifier: Apache-2.0 */
/* Batch invariance on GPUs, on the driver that runs on the CPU: sums in the order of ranks at any count and place, by
 * any protocol and number of channels; the same bits as on host memory.
 * check: timeout=300 notsan long=asan */
#include "../support/gpu.h"
#include "../support/invariant_data.h"
#include "../support/suite.h"

enum { BASE = 6000 };

static void fill(const gpu_ranks *g) {
  float *host = malloc(BASE * sizeof *host);
  for (int r = 0; r < g->n; r++) {
    invariant_fill(ncclFloat32, r, host, BASE);
    emu_use(g->device[r]);
    OK(MemcpyAsync(g->in[r], (CUdeviceptr)(uintptr_t)host, BASE * sizeof *host, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
  }
  free(host);
}

/* How many elements of all outputs are not the sum in the order of ranks. */
static int run_call(const gpu_ranks *g, hk_coll coll, size_t count, size_t offset, int root) {
  static float got[BASE];
  gpu_call c = {
      .coll = coll, .count = count, .type = ncclFloat32, .op = ncclSum, .root = root, .offset = offset * sizeof(float)};
  int differ = 0;
  gpu_group(g, &c);
  gpu_wait(g);
  for (int r = 0; r < g->n; r++) {
    if (!hk_coll_has_output(coll, r, root)) continue;
    emu_use(g->device[r]);
    emu_read(got, gpu_out(g, &c, r), count * sizeof(float));
    size_t from = offset + (coll == HK_REDUCE_SCATTER ? (size_t)r * count : 0);
    for (size_t i = 0; i < count; i++) differ += got[i] != invariant_sum_f32(g->n, from + i);
  }
  return differ;
}

static int run_all(const gpu_ranks *g) {
  static const size_t places[][2] = {{1, 17}, {77, 3}, {1000, 0}, {2000, 1}, {5900, 92}};
  int differ = 0;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(places); k++) {
    size_t count = places[k][0], offset = places[k][1];
    differ += run_call(g, HK_ALLREDUCE, count, offset, 0);
    differ += run_call(g, HK_REDUCE, count, offset, (int)k % g->n);
    differ += run_call(g, HK_REDUCE_SCATTER, count / (size_t)g->n + 1, offset, 0);
  }
  return differ;
}

static void open_ranks(gpu_ranks *g, int n, int devices, bool on) {
  gpu_open(g, n, devices, (BASE + 100) * sizeof(float));
  gpu_init_all(g);
  fill(g);
  for (int r = 0; r < n && on; r++) OK_NCCL(hocketCommSetBatchInvariant(g->comm[r], 1));
}

/* Quantised sums are for host memory. */
TEST(quantised_sums_are_refused) {
  gpu_ranks g;
  setenv("NCCL_DEBUG", "NONE", 1);
  open_ranks(&g, 2, 2, false);
  ck_assert_int_eq(hocketCommSetQuantised(g.comm[0], 1), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(g.comm[0]), "this communicator is on GPU 0"));
  ck_assert_int_eq(hocketAllReduceQuantised(NULL, NULL, 0, ncclFloat32, ncclSum, g.comm[0], NULL), ncclInvalidUsage);
  gpu_close(&g);
}

TEST_LOOP(sums_in_the_order_of_ranks, 6) {
  static const struct {
    int ranks, devices;
    const char *channels, *protocol, *algorithm;
  } cases[] = {{2, 2, "1", "Simple", NULL},    {3, 1, "2", "LL128", NULL}, {5, 5, "3", "LL", NULL},
               {8, 8, "4", "Simple,LL", NULL}, {4, 4, "4", NULL, "ring"},  {4, 4, "2", NULL, "NVLS"}};
  gpu_ranks g;
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("NCCL_MIN_NCHANNELS", cases[_i].channels, 1);
  if (cases[_i].protocol) setenv("NCCL_PROTO", cases[_i].protocol, 1);
  if (cases[_i].algorithm) setenv("NCCL_ALGO", cases[_i].algorithm, 1);
  open_ranks(&g, cases[_i].ranks, cases[_i].devices, true);
  ck_assert_int_eq(run_all(&g), 0);
  gpu_close(&g);
}

/* So that the numbers above show what they should. */
TEST(a_ring_has_another_order) {
  gpu_ranks g;
  setenv("NCCL_ALGO", "ring", 1);
  open_ranks(&g, 4, 4, false);
  ck_assert_int_gt(run_call(&g, HK_ALLREDUCE, 2000, 0, 0), 100);
  gpu_close(&g);
}

int main(void) { return gpu_main("gpu invariant", .timeout = 300); }
