/* SPDX-License-Identifier: Apache-2.0 */
/* ncclCommSuspend, ncclCommResume and ncclCommMemStats on emulated GPUs: how much memory is given back, and what
 * still works afterwards.  bench/suspend.c measures how long it takes.
 * check: timeout=200 notsan */
#include <sys/mman.h>
#include <sys/stat.h>
#include "../../src/device/host.h"
#include "../../src/gpu/endpoints.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/memory.h"
#include "../../src/gpu/proxied.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static const gpu_call sums = {.coll = HK_ALLREDUCE, .count = 9000, .type = ncclFloat32, .op = ncclSum};

static void each(const gpu_ranks *g, int first, int n, bool suspend) {
  OK_NCCL(ncclGroupStart());
  for (int r = first; r < first + n; r++)
    OK_NCCL(suspend ? ncclCommSuspend(g->comm[r], NCCL_SUSPEND_MEM) : ncclCommResume(g->comm[r]));
  OK_NCCL(ncclGroupEnd());
}

static CUgraphExec capture(const gpu_ranks *g) {
  OK(StreamBeginCapture(g->stream[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  gpu_ranks one = *g;
  for (int r = 0; r < g->n; r++) one.stream[r] = g->stream[0];
  gpu_group(&one, &sums);
  return gpu_end_capture(g->stream[0]);
}

/* All ranks in one thread. */
TEST_LOOP(threads, 3) {
  static const int shapes[][2] = {{8, 8}, {4, 2}, {3, 1}};
  const int n = shapes[_i][0], devices = shapes[_i][1];
  gpu_ranks g;
  CUgraphExec replay = NULL;
  gpu_open(&g, n, devices, 1 << 19);
  size_t before = gpu_in_use(devices);
  gpu_init_all(&g);
  gpu_fill(&g, &sums);
  gpu_group(&g, &sums);
  gpu_wait(&g);
  if (devices == 1) replay = capture(&g);
  size_t active = gpu_in_use(devices) - before;
  for (int turn = 0; turn < 3; turn++) {
    uint64_t total = 0, may = 0;
    for (int r = 0; r < n; r++) {
      total += gpu_held(g.comm[r], ncclStatGpuMemTotal);
      may += gpu_held(g.comm[r], ncclStatGpuMemSuspend);
      ck_assert_uint_eq(gpu_held(g.comm[r], ncclStatGpuMemTotal) - gpu_held(g.comm[r], ncclStatGpuMemSuspend),
                        gpu_held(g.comm[r], ncclStatGpuMemPersist));
      ck_assert_uint_eq(gpu_held(g.comm[r], ncclStatGpuMemSuspended), 0);
    }
    ck_assert_uint_le(may, active);
    ck_assert_uint_ge(total, active / 100 * 99);
    ck_assert_int_eq(ncclCommResume(g.comm[0]), ncclInvalidUsage);
    gpu_suspend_all(&g, true);
    size_t left = gpu_in_use(devices) - before;
    ck_assert_uint_eq(gpu_held(g.comm[0], ncclStatGpuMemSuspended), 1);
    ck_assert_msg(left <= active / 20, "%zu of %zu bytes are left", left, active);
    ck_assert_int_eq(ncclCommSuspend(g.comm[0], NCCL_SUSPEND_MEM), ncclInvalidUsage);
    ck_assert_int_eq(gpu_submit(&g, &sums, 0), ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "ncclCommResume"));
    gpu_suspend_all(&g, false);
    ck_assert_uint_eq(gpu_in_use(devices) - before, active);
    gpu_fill(&g, &sums);
    if (replay)
      OK(GraphLaunch(replay, g.stream[0]));
    else
      gpu_group(&g, &sums);
    gpu_wait(&g);
    gpu_check(&g, &sums);
    gpu_call_all(&g);
    active = gpu_in_use(devices) - before;
  }
  if (replay) OK(GraphExecDestroy(replay));
  gpu_suspend_all(&g, true); /* a suspended communicator can be destroyed */
  gpu_close(&g);
}

/* Links and credits of other processes are opened again at the same addresses. */
static void suspended_twice(gpu_place *p) {
  gpu_call c = sums;
  setenv("NCCL_DEBUG", "WARN", 1);
  for (int turn = 0; turn < 3; turn++) {
    each_call(p, &c, 2);
    each_ring(p, 1);
    if (turn == 2) break;
    size_t active = gpu_in_use(8);
    each(&p->g, p->first, p->each, true);
    ck_assert_uint_lt(gpu_in_use(8), active / 2); /* buffers of this test stay */
    each(&p->g, p->first, p->each, false);
    ck_assert_uint_eq(gpu_in_use(8), active);
  }
}

/* Sums in the switch: memory leaves the multicast object and joins it again. */
TEST(in_switch) {
  gpu_ranks g;
  setenv("NCCL_ALGO", "nvls", 1);
  gpu_open(&g, 8, 8, 1 << 19);
  size_t before = gpu_in_use(8);
  gpu_init_all(&g);
  for (int turn = 0; turn < 3; turn++) {
    for (int r = 0; r < 8; r++) ck_assert(hk_gpu_of(g.comm[r])->in_switch);
    gpu_fill(&g, &sums);
    for (int i = 0; i < 3; i++) gpu_group(&g, &sums); /* the slots' counters go on */
    gpu_wait(&g);
    gpu_check(&g, &sums);
    size_t active = gpu_in_use(8) - before;
    gpu_suspend_all(&g, true);
    size_t left = gpu_in_use(8) - before;
    ck_assert_msg(left <= active / 20, "%zu of %zu bytes are left", left, active);
    if (turn == 2) break; /* and ends so */
    gpu_suspend_all(&g, false);
    ck_assert_uint_eq(gpu_in_use(8) - before, active);
  }
  gpu_close(&g);
}

static void in_switch_twice(gpu_place *p) {
  gpu_call c = sums;
  each_call(p, &c, 2);
  for (int turn = 0; turn < 2; turn++) {
    size_t active = gpu_in_use(8);
    each(&p->g, p->first, p->each, true);
    ck_assert_uint_lt(gpu_in_use(8), active / 2);
    each(&p->g, p->first, p->each, false);
    ck_assert_uint_eq(gpu_in_use(8), active);
    each_call(p, &c, 2);
  }
}

TEST(in_switch_of_processes) {
  setenv("NCCL_ALGO", "nvls", 1);
  ck_assert_int_eq(run_processes(4, 2, 8, 1, in_switch_twice), 0);
}

/* Bytes of the files of the rank's links in pinned memory that processes share. */
static size_t behind_links(ncclComm_t c) {
  size_t sum = 0, bytes;
  struct stat st;
  for (int s = 0; s < 2; s++)
    for (int r = 0; r < c->nranks; r++)
      for (const hk_gpu_endpoint *x = hk_gpu_of(c)->links->ends[s][r]; x; x = x->next) {
        int fd = x->shared.host ? hk_host_export(hk_host_find(x->shared.host).region, &bytes) : -1;
        if (fd >= 0 && fstat(fd, &st) == 0) sum += (size_t)st.st_blocks * 512;
        if (fd >= 0) close(fd);
      }
  return sum;
}

static void staged_twice(gpu_place *p) {
  ncclComm_t comm = p->g.comm[p->first];
  gpu_call c = sums;
  each_call(p, &c, 2);
  for (int turn = 0; turn < 2; turn++) {
    ck_assert_uint_gt(behind_links(comm), 0);
    each(&p->g, p->first, p->each, true);
    ck_assert_uint_eq(behind_links(comm), 0);
    each(&p->g, p->first, p->each, false);
    each_call(p, &c, 2);
    each_ring(p, 1);
  }
}

/* Links through pinned memory of the host, which both processes keep mapped. */
TEST(staged) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(run_processes(3, 1, 3, 1, staged_twice), 0);
}

/* Pages of the rank's network links that are pinned, or are there though they are not. */
static size_t of_network(ncclComm_t c) {
  size_t sum = 0;
  for (int which = 0; which < HK_GPU_PINNED; which++)
    for (const hk_gpu_chunk *k = hk_gpu_of(c)->memory->pinned[which]; k; k = k->next) {
      static unsigned char there[1 << 16];
      const hk_memory *m = &k->memory;
      if (!m->parked) sum += which == HK_GPU_PINNED_STAYS ? k->used : m->bytes;
      if (!m->parked || m->kind == HK_MEMORY_VMM) continue; /* its addresses have no memory */
      ck_assert_int_eq(mincore(m->host, m->bytes, there), 0);
      for (size_t i = 0; i < m->bytes / 4096; i++) sum += there[i] & 1 ? 4096 : 0;
    }
  return sum;
}

static void network_twice(gpu_place *p) {
  ncclComm_t comm = p->g.comm[p->first];
  gpu_call c = sums;
  each_call(p, &c, 2);
  for (int turn = 0; turn < 3; turn++) {
    const size_t active = of_network(comm);
    ck_assert_uint_gt(active, 1 << 20);
    each(&p->g, p->first, p->each, true);
    const size_t left = of_network(comm);
    ck_assert_msg(left <= active / 20, "%zu of %zu bytes are left", left, active);
    if (turn == 2) break; /* and ends so */
    each(&p->g, p->first, p->each, false);
    ck_assert_uint_eq(of_network(comm), active);
    each_call(p, &c, 2);
    each_ring(p, 1);
    each_call(p, &c, 2);
  }
}

/* Links over TCP, also with a driver that has no virtual memory of the host.  test_gpu_direct: by cards. */
TEST_LOOP(hosts, 2) {
  if (_i) setenv("CUDAEMU_HOST_VMM", "0", 1);
  ck_assert_int_eq(run_processes(3, 1, 3, 3, network_twice), 0);
}

TEST_LOOP(processes, 2) {
  static const int shapes[][2] = {{8, 1}, {2, 2}};
  ck_assert_int_eq(run_processes(shapes[_i][0], shapes[_i][1], 8, 1, suspended_twice), 0);
}

int main(void) {
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("HOCKET_SLOTS", "8", 1);
  setenv("CUDAEMU_MULTICAST", "1", 1);
  return gpu_main("gpu_suspend", .timeout = 190);
}
