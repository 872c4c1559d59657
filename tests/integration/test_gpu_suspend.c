/* SPDX-License-Identifier: Apache-2.0 */
/* ncclCommSuspend, ncclCommResume and ncclCommMemStats on emulated GPUs: how much memory is given back, how long it
 * takes to get it again, and what still works afterwards.
 * check: timeout=200 notsan */
#include "../../src/base/wait.h"
#include "../support/gpu_places.h"
#include "../support/suite.h"

static const gpu_call sums = {.coll = HK_ALLREDUCE, .count = 9000, .type = ncclFloat32, .op = ncclSum};

static size_t in_use(int devices) {
  size_t sum = 0;
  for (int d = 0; d < devices; d++) {
    size_t left = 0, all = 0;
    emu_use(d);
    OK(MemGetInfo(&left, &all));
    sum += all - left;
  }
  return sum;
}

static uint64_t stat(ncclComm_t c, ncclCommMemStat_t what) {
  uint64_t value = 0;
  OK_NCCL(ncclCommMemStats(c, what, &value));
  return value;
}

static void each(const gpu_ranks *g, int first, int n, bool suspend) {
  OK_NCCL(ncclGroupStart());
  for (int r = first; r < first + n; r++)
    OK_NCCL(suspend ? ncclCommSuspend(g->comm[r], NCCL_SUSPEND_MEM) : ncclCommResume(g->comm[r]));
  OK_NCCL(ncclGroupEnd());
}

static CUgraphExec capture(const gpu_ranks *g) {
  CUgraph graph;
  CUgraphExec exec;
  OK(StreamBeginCapture(g->stream[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  gpu_ranks one = *g;
  for (int r = 0; r < g->n; r++) one.stream[r] = g->stream[0];
  gpu_group(&one, &sums);
  OK(StreamEndCapture(g->stream[0], &graph));
  OK(GraphInstantiateWithFlags(&exec, graph, 0));
  OK(GraphDestroy(graph));
  return exec;
}

/* All ranks in one thread. */
START_TEST(threads) {
  static const int shapes[][2] = {{8, 8}, {4, 2}, {3, 1}};
  const int n = shapes[_i][0], devices = shapes[_i][1];
  gpu_ranks g;
  CUgraphExec replay = NULL;
  gpu_open(&g, n, devices, 1 << 19);
  size_t before = in_use(devices);
  gpu_init_all(&g);
  gpu_fill(&g, &sums);
  gpu_group(&g, &sums);
  gpu_wait(&g);
  if (devices == 1) replay = capture(&g);
  size_t active = in_use(devices) - before;
  for (int turn = 0; turn < 3; turn++) {
    uint64_t total = 0, may = 0;
    for (int r = 0; r < n; r++) {
      total += stat(g.comm[r], ncclStatGpuMemTotal);
      may += stat(g.comm[r], ncclStatGpuMemSuspend);
      ck_assert_uint_eq(stat(g.comm[r], ncclStatGpuMemTotal) - stat(g.comm[r], ncclStatGpuMemSuspend),
                        stat(g.comm[r], ncclStatGpuMemPersist));
      ck_assert_uint_eq(stat(g.comm[r], ncclStatGpuMemSuspended), 0);
    }
    ck_assert_uint_le(may, active);
    ck_assert_uint_ge(total, active / 100 * 99);
    ck_assert_int_eq(ncclCommResume(g.comm[0]), ncclInvalidUsage);
    each(&g, 0, n, true);
    size_t left = in_use(devices) - before;
    ck_assert_uint_eq(stat(g.comm[0], ncclStatGpuMemSuspended), 1);
    ck_assert_msg(left <= active / 20, "%zu of %zu bytes are left", left, active);
    ck_assert_int_eq(ncclCommSuspend(g.comm[0], NCCL_SUSPEND_MEM), ncclInvalidUsage);
    ck_assert_int_eq(gpu_submit(&g, &sums, 0), ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "ncclCommResume"));
    uint64_t begin = hk_now_ns();
    each(&g, 0, n, false);
    printf("%d ranks, %d devices: %zu of %zu KiB given back, back after %.1f ms\n", n, devices, (active - left) / 1024,
           active / 1024, (double)(hk_now_ns() - begin) / 1e6);
    ck_assert_uint_eq(in_use(devices) - before, active);
    gpu_fill(&g, &sums);
    if (replay)
      OK(GraphLaunch(replay, g.stream[0]));
    else
      gpu_group(&g, &sums);
    gpu_wait(&g);
    gpu_check(&g, &sums);
    gpu_call_all(&g);
    active = in_use(devices) - before;
  }
  if (replay) OK(GraphExecDestroy(replay));
  each(&g, 0, n, true); /* a suspended communicator can be destroyed */
  gpu_close(&g);
}
END_TEST

/* Links and credits of other processes are opened again at the same addresses. */
static void suspended_twice(place *p) {
  gpu_call c = sums;
  setenv("NCCL_DEBUG", "WARN", 1);
  for (int turn = 0; turn < 3; turn++) {
    each_call(p, &c, 2);
    each_ring(p, 1);
    if (turn == 2) break;
    size_t active = in_use(8);
    each(&p->g, p->first, p->each, true);
    ck_assert_uint_lt(in_use(8), active / 2); /* buffers of this test stay */
    uint64_t begin = hk_now_ns();
    each(&p->g, p->first, p->each, false);
    if (p->process == 0) fprintf(stderr, "processes: back after %.1f ms\n", (double)(hk_now_ns() - begin) / 1e6);
    ck_assert_uint_eq(in_use(8), active);
  }
}

START_TEST(processes) {
  static const int shapes[][2] = {{8, 1}, {2, 2}};
  ck_assert_int_eq(run_processes(shapes[_i][0], shapes[_i][1], 8, 1, suspended_twice), 0);
}
END_TEST

int main(void) {
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("HOCKET_SLOTS", "8", 1);
  gpu_environment();
  if (!gpu_here()) return 77;
  TCase *t = tcase_create("suspend");
  tcase_set_timeout(t, 190);
  tcase_add_loop_test(t, threads, 0, 3);
  tcase_add_loop_test(t, processes, 0, 2);
  return suite_run_one("gpu_suspend", t);
}
