/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator takes of a GPU, so that several can overlap; and that they do, on an emulated device with room
 * for so many blocks. */
#include "../../src/gpu/code.h"
#include "../../src/gpu/gpu.h"
#include "../../src/kernels/cuda/work.h"
#include "../support/gpu.h"
#include "../support/leftovers.h"
#include "../support/suite.h"

TEST(known_gpus) {
  static const struct {
    hk_gpu_share_facts capacity;
    unsigned blocks, overlap;
  } cases[] = {
      {{.resident = 132, .ranks = 1, .sm = 90}, 32, 4},  /* H100 */
      {{.resident = 148, .ranks = 1, .sm = 100}, 32, 4}, /* B200 */
      {{.resident = 108, .ranks = 1, .sm = 80}, 24, 4},  /* A100 */
      {{.resident = 142, .ranks = 1, .sm = 89}, 24, 5},  /* L40 */
      {{.resident = 40, .ranks = 1, .sm = 75}, 10, 4},   /* T4 */
      {{.resident = 132, .ranks = 2, .sm = 90}, 16, 4},
      {{.resident = 132, .ranks = 8, .sm = 90}, 4, 4},
      {{.resident = 132, .ranks = 1, .sm = 90, .limit = 8}, 8, 16},  /* maxCTAs */
      {{.resident = 132, .ranks = 1, .sm = 90, .limit = 64}, 32, 4}, /* not more than is good for the others */
      {{.resident = 132, .ranks = 64, .sm = 90, .limit = 8}, 1, 2},  /* too many for four */
      {{.resident = 0, .ranks = 1, .sm = 90}, 1, 0},                 /* the kernel does not fit at all */
  };
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    ck_assert_uint_eq(hk_gpu_share(&cases[i].capacity), cases[i].blocks);
    ck_assert_uint_eq(hk_gpu_overlap(&cases[i].capacity), cases[i].overlap);
  }
}

/* Four communicators fit whatever the GPU and however many ranks share it, if it has a block for each rank. */
TEST(four_fit) {
  for (uint64_t resident = 1; resident <= 600; resident++)
    for (uint64_t ranks = 1; ranks <= 64; ranks++)
      for (uint64_t wished = 0; wished <= 64; wished += 16) {
        const hk_gpu_share_facts capacity = {
            .resident = resident, .ranks = ranks, .limit = wished, .sm = resident % 2 ? 80 : 90};
        const unsigned blocks = hk_gpu_share(&capacity);
        bool fine = blocks >= 1 && blocks <= (capacity.sm < 90 ? 24u : 32u) && (!wished || blocks <= wished);
        if (resident >= 4 * ranks) fine = fine && 4 * ranks * blocks <= resident && hk_gpu_overlap(&capacity) >= 4;
        if (!fine) ck_abort_msg("%u blocks of %u for %u ranks", blocks, (unsigned)resident, (unsigned)ranks);
      }
}

enum { COMMS = 3, RANKS = 4, COUNT = 40000 };

/* Three communicators whose ranks share a device: rank after rank starts a kernel of each, in streams of their own.
 * All twelve are needed before any can end. */
TEST(communicators_overlap) {
  if (!gpu_here()) return;
  gpu_ranks g[COMMS];
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = COUNT, .type = ncclFloat32, .op = ncclSum};
  setenv("CUDAEMU_RESIDENT", "1", 1);
  setenv("CUDAEMU_SMS", "2", 1); /* of 16 blocks with 64 threads each */
  setenv("NCCL_MAX_NCHANNELS", "0", 1);
  setenv("NCCL_MIN_NCHANNELS", "32", 1);
  setenv("NCCL_ALGO", "ring", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  gpu_environment();
  for (int k = 0; k < COMMS; k++) {
    gpu_open(&g[k], RANKS, 1, COUNT * sizeof(float));
    gpu_unorder_streams(&g[k]);
    gpu_init_all(&g[k]);
    ck_assert_uint_eq(hk_gpu_of(g[k].comm[0])->blocks, 32 / 4 / RANKS);
    gpu_group(&g[k], &c); /* links and programs are there before the kernels that overlap */
    gpu_fill(&g[k], &c);
    gpu_wait(&g[k]);
  }
  for (int r = 0; r < RANKS; r++) {
    for (int k = 0; k < COMMS; k++) OK_NCCL(gpu_submit(&g[k], &c, r));
    usleep(20000); /* too many blocks for the device would have no room now, and wait for each other for ever */
  }
  for (int k = 0; k < COMMS; k++) {
    gpu_wait(&g[k]);
    gpu_check(&g[k], &c);
  }
  for (int k = 0; k < COMMS; k++) gpu_close(&g[k]);
}

/* More sends and receives than a rank has blocks for. */
TEST_LOOP(transfers_take_turns, 2) {
  if (!gpu_here()) return;
  enum { N = 8, ELEMENTS = 3000 };
  setenv("CUDAEMU_RESIDENT", "1", 1);
  setenv("CUDAEMU_SMS", _i ? "2" : "32", 1);
  setenv("NCCL_MAX_NCHANNELS", "2", 1);
  gpu_environment();
  gpu_ranks *g = gpu_begin(N, 1, N * ELEMENTS * sizeof(float));
  const gpu_call c = {.coll = HK_ALLTOALL, .count = ELEMENTS, .type = ncclFloat32};
  gpu_fill(g, &c);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++)
    for (int p = 0; p < N; p++) {
      const size_t at = (size_t)p * ELEMENTS * sizeof(float);
      cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
      for (int half = 0; half < 2; half++) { /* two messages over each link */
        const size_t of = at + (size_t)half * (ELEMENTS / 2) * sizeof(float);
        OK_NCCL(ncclSend((const void *)(uintptr_t)(g->in[r] + of), ELEMENTS / 2, ncclFloat32, p, g->comm[r], s));
        OK_NCCL(ncclRecv((void *)(uintptr_t)(g->out[r] + of), ELEMENTS / 2, ncclFloat32, p, g->comm[r], s));
      }
    }
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  gpu_check(g, &c);
}

/* As many ranks of a communicator on one device as a launch has room for, and one more. A second communicator, whose
 * ranks do not fit next to the first one's, gets a launch of its own. */
TEST_LOOP(full_launch, 2) {
  if (!gpu_here()) return;
  enum { MOST = HK_GPU_BATCH + 1, PAIR = 2 };
  const int n = HK_GPU_BATCH + _i;
  ncclComm_t comm[MOST], pair[PAIR];
  int device[MOST] = {0};
  setenv("CUDAEMU_RESIDENT", "1", 1);
  setenv("NCCL_MAX_NCHANNELS", "1", 1);
  gpu_environment();
  emu_start(8);
  CUdeviceptr memory = gpu_alloc(0, (MOST + PAIR) * sizeof(float));
  OK_NCCL(ncclCommInitAll(comm, n, device));
  OK_NCCL(ncclCommInitAll(pair, PAIR, device));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < n + PAIR; r++) {
    float *at = (float *)(uintptr_t)memory + r;
    OK_NCCL(ncclBroadcast(at, at, 1, ncclFloat32, 0, r < n ? comm[r] : pair[r - n], NULL));
  }
  ck_assert_int_eq(ncclGroupEnd(), _i ? ncclInvalidUsage : ncclSuccess);
  if (_i) {
    leftovers_ignore();
    return;
  }
  OK(StreamSynchronize(NULL));
  for (int r = 0; r < n + PAIR; r++) OK_NCCL(ncclCommDestroy(r < n ? comm[r] : pair[r - n]));
}

int main(void) { return suite_main("gpu_share", .teardown = gpu_end, .timeout = 60); }
