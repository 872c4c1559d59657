/* SPDX-License-Identifier: Apache-2.0 */
/* All that communicators on GPUs put on streams, and all that is in their kernels' parameters, is as in
 * tests/golden/gpu_launches.txt (gpu_trace.h).  Other tests show that results are right: they do not see that a launch
 * has fewer threads, a message fewer parts, or a call one copy too many.  After a change that is meant to do so,
 * HOCKET_TEST_UPDATE=1 writes the file again; HOCKET_TEST_TRACE shows what was changed.
 * check: timeout=200 notsan */
#include "../../src/topo/detect_scan.h"
#include "../../src/transport/cuda/share.h"
#include "../support/gpu_trace.h"
#include "../support/scratch.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/gpu_launches.txt"
enum { SCENE_RANKS = 4, SCENE_ROOM = 8 << 20 };

/* In place of the library's: choices must not depend on the network of the machine that runs this. */
hk_status hk_scan_nets(hk_detect_scan *s) { return (void)s, HK_OK; }
hk_status hk_scan_net_place(hk_detect_scan *s) { return (void)s, HK_OK; }

static cudaStream_t stream_of(const gpu_ranks *g, int r) { return (cudaStream_t)(void *)g->stream[r]; }
static void *in_of(const gpu_ranks *g, int r, size_t at) { return (void *)(uintptr_t)(g->in[r] + at); }
static void *out_of(const gpu_ranks *g, int r, size_t at) { return (void *)(uintptr_t)(g->out[r] + at); }

/* Four ranks on so many GPUs with NVLinks between all. */
static void open_scene(gpu_ranks *g, int devices, ncclConfig_t *config) {
  static const bool joined[MACHINE_GPUS][MACHINE_GPUS] = {{0, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}};
  ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
  scratch_make();
  gpu_machine_write(scratch_path("machine.xml"), joined);
  setenv("HOCKET_TUNE_FILE", "none", 1);
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("CUDAEMU_THREADS", "512", 1);
  gpu_open(g, SCENE_RANKS, devices, SCENE_ROOM);
  gpu_init_config(g, config ? config : &plain);
  trace_begin(g);
}
static void close_scene(gpu_ranks *g, const char *name) {
  gpu_wait(g);
  trace_stop();
  trace_compare(GOLDEN, name);
  gpu_close(g);
  scratch_remove();
}

static void collectives(const char *name, int devices, ncclConfig_t *config) {
  static const size_t counts[] = {5, 3000, 120000};
  gpu_ranks g;
  open_scene(&g, devices, config);
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++)
    for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++) {
      const gpu_call c = {.coll = coll, .count = counts[i], .type = ncclFloat32, .op = ncclAvg, .root = 1};
      gpu_group(&g, &c);
      gpu_wait(&g);
      trace_step(hk_coll_name(coll), counts[i]);
    }
  close_scene(&g, name);
}

/* Calls of a group: chained ones, others between them, sends and receives of all sizes, to itself too. */
static void groups(const char *name, int transfers) {
  static const size_t bytes[] = {0, 100, 70000, 1 << 20};
  gpu_ranks g;
  open_scene(&g, SCENE_RANKS, NULL);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g.n; r++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat16, .op = ncclSum};
    for (int k = 0; k < 3; k++, c.offset += 1 << 20, c.count *= 2) OK_NCCL(gpu_submit(&g, &c, r));
    c = (gpu_call){.coll = HK_BROADCAST, .count = 10, .type = ncclInt8, .root = 2};
    OK_NCCL(gpu_submit(&g, &c, r));
    for (int k = 0; k < transfers; k++)
      for (int by = 0; by < g.n; by++) {
        const int to = (r + by) % g.n, from = (r + g.n - by) % g.n;
        const size_t n = bytes[(k + by) % 4];
        OK_NCCL(ncclSend(in_of(&g, r, (size_t)by << 20), n, ncclInt8, to, g.comm[r], stream_of(&g, r)));
        OK_NCCL(ncclRecv(out_of(&g, r, (size_t)by << 20), n, ncclInt8, from, g.comm[r], stream_of(&g, r)));
      }
  }
  OK_NCCL(ncclGroupEnd());
  close_scene(&g, name);
}

/* Operators with scalars of the host and of the device, and other types, each call for itself; then two streams. */
static void scalars(const char *name) {
  gpu_ranks g;
  open_scene(&g, SCENE_RANKS, NULL);
  for (int k = 0; k < 4; k++)
    for (int r = 0; r < g.n; r++) {
      ncclRedOp_t op = ncclMin;
      uint64_t scalar = 0x3f00;
      const ncclDataType_t type = k < 2 ? ncclBfloat16 : ncclUint64;
      emu_use(g.device[r]);
      if (k % 2 == 0)
        OK_NCCL(ncclRedOpCreatePreMulSum(&op, k ? in_of(&g, r, 64) : &scalar, type,
                                         k ? ncclScalarDevice : ncclScalarHostImmediate, g.comm[r]));
      OK_NCCL(ncclAllReduce(in_of(&g, r, 256), out_of(&g, r, 0), 50, type, op, g.comm[r], stream_of(&g, r)));
      if (k % 2 == 0) OK_NCCL(ncclRedOpDestroy(op, g.comm[r]));
      trace_step("scalar", (size_t)k);
    }
  for (int r = 0; r < g.n; r++) {
    emu_use(g.device[r]);
    CUstream other = emu_new_stream(CU_STREAM_NON_BLOCKING);
    OK_NCCL(ncclGroupStart());
    for (int k = 0; k < 2; k++)
      OK_NCCL(ncclAllGather(in_of(&g, r, 0), out_of(&g, r, 0), 50, ncclInt8, g.comm[r],
                            k ? stream_of(&g, r) : (cudaStream_t)(void *)other));
    OK_NCCL(ncclGroupEnd());
    OK(StreamSynchronize(other));
    OK(StreamDestroy(other));
  }
  close_scene(&g, name);
}

/* Symmetric windows, one-sided operations in all contexts, and copies in place of kernels. */
static ncclWindow_t windows[SCENE_RANKS];
static void *window_memory[SCENE_RANKS];
static void open_windows(gpu_ranks *g) {
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK_NCCL(ncclMemAlloc(&window_memory[r], 4 << 20));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++)
    OK_NCCL(ncclCommWindowRegister(g->comm[r], window_memory[r], 4 << 20, &windows[r], NCCL_WIN_COLL_SYMMETRIC));
  OK_NCCL(ncclGroupEnd());
  for (int r = 0; r < g->n; r++) {
    trace_place("window", r, window_memory[r], 4 << 20);
    for (int k = 0; k < g->n; k++) {
      void *at = NULL;
      OK_NCCL(ncclGetPeerDevicePointer(windows[r], 0, k, &at));
      trace_place("map", 10 * r + k, at, 4 << 20);
    }
    const hk_gpu_process_group *w = hk_gpu_of(g->comm[r])->group;
    if (w->signals[r].memory.base) trace_place("signals", r, w->signals[r].memory.base, w->signals[r].memory.bytes);
    if (w->words[r].memory.base) trace_place("words", r, w->words[r].memory.base, w->words[r].memory.bytes);
  }
  trace_step("windows", 0);
}
static void close_windows(gpu_ranks *g, const char *name) {
  gpu_wait(g);
  for (int r = 0; r < g->n; r++) {
    OK_NCCL(ncclCommWindowDeregister(g->comm[r], windows[r]));
    OK_NCCL(ncclMemFree(window_memory[r]));
  }
  close_scene(g, name);
}
static void one_sided(const char *name) {
  gpu_ranks g;
  CUgraph graph;
  setenv("NCCL_NUM_RMA_CTX", "4", 1);
  open_scene(&g, SCENE_RANKS, NULL);
  open_windows(&g);
  for (int captured = 0; captured < 3; captured++) {
    for (int r = 0; r < g.n; r++) {
      const int to = (r + 1) % g.n, from = (r + g.n - 1) % g.n;
      const ncclComm_t c = g.comm[r];
      cudaStream_t s = stream_of(&g, r);
      emu_use(g.device[r]);
      CUstream other = emu_new_stream(CU_STREAM_NON_BLOCKING);
      if (captured) OK(StreamBeginCapture(g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
      for (int k = 0; k < 18; k++)
        OK_NCCL(ncclPutSignal(in_of(&g, r, 8), 100, ncclFloat16, to, windows[r], (size_t)k << 10, 0, k % 4, 0, c, s));
      /* What is not captured takes no turn of the capture. */
      if (captured) OK_NCCL(ncclSignal(to, 0, 1, 0, c, (cudaStream_t)(void *)other));
      for (int k = 0; k < 4; k++) OK_NCCL(ncclSignal((r + k) % g.n, 0, k, 0, c, s));
      ncclWaitSignalDesc_t d[] = {{.opCnt = 3, .peer = from, .ctx = 1}, {.opCnt = 1, .peer = r, .ctx = 0}};
      OK_NCCL(ncclWaitSignal(2, d, c, s));
      if (captured) OK(StreamEndCapture(g.stream[r], &graph));
      if (captured) OK(GraphDestroy(graph));
      OK(StreamSynchronize(other));
      OK(StreamDestroy(other));
    }
    trace_step("puts", (size_t)captured);
  }
  close_windows(&g, name);
}
static void copies(const char *name) {
  gpu_ranks g;
  setenv("NCCL_CTA_POLICY", "2", 1);
  open_scene(&g, SCENE_RANKS, NULL);
  open_windows(&g);
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++)
    for (int where = 0; where < 3; where++) { /* in the window, in place, outside */
      gpu_ranks in = g;
      const gpu_call c = {.coll = coll, .count = 30000, .type = ncclFloat32, .op = ncclMax, .in_place = where == 1};
      for (int r = 0; where < 2 && r < g.n; r++) in.out[r] = (CUdeviceptr)(uintptr_t)window_memory[r] + 4096;
      gpu_group(&in, &c);
      gpu_wait(&g);
      trace_step(hk_coll_name(coll), (size_t)where);
    }
  close_windows(&g, name);
}

/* Captured calls, and others before and after them. */
static void captured(const char *name) {
  const gpu_call calls[] = {{.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum},
                            {.coll = HK_ALLTOALLV, .count = 20000, .type = ncclInt8}};
  gpu_ranks g;
  open_scene(&g, SCENE_RANKS, NULL);
  for (int k = 0; k < 5; k++) {
    CUgraph graph;
    for (int r = 0; r < g.n && k % 2; r++) {
      emu_use(g.device[r]);
      OK(StreamBeginCapture(g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
    }
    for (int i = 0; i < 3; i++) gpu_group(&g, &calls[i % 2]);
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < g.n; r++) {
      OK_NCCL(ncclSend(in_of(&g, r, 0), 5000, ncclInt8, (r + 1) % g.n, g.comm[r], stream_of(&g, r)));
      OK_NCCL(ncclRecv(out_of(&g, r, 0), 5000, ncclInt8, (r + 3) % g.n, g.comm[r], stream_of(&g, r)));
    }
    OK_NCCL(ncclGroupEnd());
    for (int r = 0; r < g.n && k % 2; r++) {
      emu_use(g.device[r]);
      OK(StreamEndCapture(g.stream[r], &graph));
      OK(GraphDestroy(graph));
    }
    trace_step("turn", (size_t)k);
  }
  close_scene(&g, name);
}

/* Registered memory, which the others read. */
static void registered(const char *name) {
  gpu_ranks g;
  void *memory[SCENE_RANKS], *handle[SCENE_RANKS];
  setenv("NCCL_PROTO", "Simple", 1);
  setenv("NCCL_ALGO", "ring,chain,pairwise", 1);
  open_scene(&g, SCENE_RANKS, NULL);
  gpu_ranks own = g;
  for (int r = 0; r < g.n; r++) {
    emu_use(g.device[r]);
    OK_NCCL(ncclMemAlloc(&memory[r], SCENE_ROOM));
    OK_NCCL(ncclCommRegister(g.comm[r], memory[r], SCENE_ROOM, &handle[r]));
    trace_place("memory", r, memory[r], SCENE_ROOM);
    own.in[r] = (CUdeviceptr)(uintptr_t)memory[r];
    own.out[r] = own.in[r] + SCENE_ROOM / 2;
  }
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
    const gpu_call c = {.coll = coll, .count = 200000, .type = ncclFloat32, .op = ncclProd, .root = 3};
    gpu_group(&own, &c);
    gpu_wait(&g);
    trace_step(hk_coll_name(coll), 0);
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g.n; r++) {
    OK_NCCL(ncclSend(memory[r], 1 << 20, ncclInt8, (r + 1) % g.n, g.comm[r], stream_of(&g, r)));
    OK_NCCL(ncclRecv(out_of(&g, r, 0), 1 << 20, ncclInt8, (r + 3) % g.n, g.comm[r], stream_of(&g, r)));
  }
  OK_NCCL(ncclGroupEnd());
  gpu_wait(&g);
  for (int r = 0; r < g.n; r++) {
    OK_NCCL(ncclCommDeregister(g.comm[r], handle[r]));
    OK_NCCL(ncclMemFree(memory[r]));
  }
  close_scene(&g, name);
}

/* One process after the other: an update appends their lines. */
static void end_traces(gpu_place *p) {
  char name[40];
  snprintf(name, sizeof name, "%s %d", getenv("SCENE"), p->process);
  trace_stop();
  for (int first = 0; first < p->g.n; first += p->each) {
    if (first == p->first) trace_compare(GOLDEN, name);
    meet_all(p);
  }
}

/* Ranks of two processes, each on a host of its own or both on one: each process has its own lines. */
static void near_and_far(gpu_place *p) {
  static const size_t counts[] = {5, 3000, 16000};
  gpu_ranks *g = &p->g;
  trace_begin(g);
  trace_step("files of memory that are open", (size_t)emu_memory_files());
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++)
    for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++) {
      const gpu_call c = {.coll = coll, .count = counts[i], .type = ncclInt8, .op = ncclMax, .root = 1};
      OK_NCCL(ncclGroupStart());
      for (int r = p->first; r < p->first + p->each; r++) {
        if (i != 1) OK_NCCL(gpu_submit(g, &c, r));
        if (i != 1) continue;
        OK_NCCL(ncclSend(in_of(g, r, 0), 30000, ncclInt8, (r + coll) % g->n, g->comm[r], stream_of(g, r)));
        OK_NCCL(ncclRecv(out_of(g, r, 0), 30000, ncclInt8, (r + 16 - coll) % g->n, g->comm[r], stream_of(g, r)));
      }
      OK_NCCL(ncclGroupEnd());
      trace_step(hk_coll_name(coll), counts[i]);
    }
  end_traces(p);
}
/* A rank in each of two processes gives its memory back and gets it again. */
static void back_and_again(gpu_place *p) {
  gpu_ranks *g = &p->g;
  trace_begin(g);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 3; i++) {
      const gpu_call c = {.coll = i ? HK_ALLTOALL : HK_ALLREDUCE, .count = i < 2 ? 4000 : 5, .type = ncclFloat16};
      OK_NCCL(gpu_submit(g, &c, p->first));
    }
    trace_step("calls", (size_t)round);
    OK_NCCL(ncclCommSuspend(g->comm[p->first], NCCL_SUSPEND_MEM));
    trace_step("suspended", (size_t)round);
    OK_NCCL(ncclCommResume(g->comm[p->first]));
    trace_step("resumed", (size_t)round);
  }
  end_traces(p);
}
/* One-sided operations between hosts and inside of them, outside of graphs and in them. */
static void puts_to_all(gpu_place *p) {
  gpu_ranks *g = &p->g;
  CUgraph graph;
  for (int r = p->first; r < p->first + p->each; r++) {
    emu_use(g->device[r]);
    OK_NCCL(ncclMemAlloc(&window_memory[r], 1 << 20));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++)
    OK_NCCL(ncclCommWindowRegister(g->comm[r], window_memory[r], 1 << 20, &windows[r], NCCL_WIN_COLL_SYMMETRIC));
  OK_NCCL(ncclGroupEnd());
  trace_begin(g);
  for (int turn = 0; turn < 4; turn++)
    for (int r = p->first; r < p->first + p->each; r++) {
      const ncclComm_t c = g->comm[r];
      emu_use(g->device[r]);
      if (turn % 2) OK(StreamBeginCapture(g->stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
      for (int to = 0; to < g->n; to++) {
        ncclWaitSignalDesc_t d = {.opCnt = 2, .peer = to, .ctx = turn};
        OK_NCCL(ncclPutSignal(in_of(g, r, 8), 100, ncclInt8, to, windows[r], (size_t)r << 10, 0, turn, 0, c,
                              stream_of(g, r)));
        OK_NCCL(ncclSignal(to, 0, turn, 0, c, stream_of(g, r)));
        OK_NCCL(ncclWaitSignal(1, &d, c, stream_of(g, r)));
      }
      if (turn % 2) OK(StreamEndCapture(g->stream[r], &graph));
      if (turn % 2) OK(GraphDestroy(graph));
      trace_step("rank", (size_t)r);
    }
  end_traces(p);
  for (int r = p->first; r < p->first + p->each; r++) {
    OK_NCCL(ncclCommWindowDeregister(g->comm[r], windows[r]));
    OK_NCCL(ncclMemFree(window_memory[r]));
  }
}
static void puts_scene(const char *name) {
  setenv("NCCL_NUM_RMA_CTX", "4", 1);
  setenv("SCENE", name, 1);
  ck_assert_int_eq(run_processes(2, 2, 4, 2, puts_to_all), 0);
}

static void suspended_scene(const char *name) {
  setenv("HOCKET_TUNE_FILE", "none", 1);
  setenv("SCENE", name, 1);
  ck_assert_int_eq(run_processes(2, 1, 2, 1, back_and_again), 0);
}

static void processes(int hosts, const char *name) {
  setenv("HOCKET_TUNE_FILE", "none", 1);
  setenv("SCENE", name, 1);
  ck_assert_int_eq(run_processes(2, 2, 4, hosts, near_and_far), 0);
}
static void near_scene(const char *name) { processes(1, name); }
static void far_scene(const char *name) { processes(2, name); }

static void staged_scene(const char *name) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  collectives(name, SCENE_RANKS, NULL);
}
static void switch_scene(const char *name) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  setenv("NCCL_ALGO", "nvls,sumshot", 1);
  collectives(name, SCENE_RANKS, NULL);
}
static void plain_scene(const char *name) { collectives(name, SCENE_RANKS, NULL); }
static void shared_scene(const char *name) { collectives(name, 2, NULL); }
static void configured_scene(const char *name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.cgaClusterSize = 2;
  config.minCTAs = 3;
  config.maxCTAs = 6;
  config.nvlinkCentricSched = 1;
  config.launchOrderImplicit = 1;
  collectives(name, SCENE_RANKS, &config);
}
static void group_scene(const char *name) { groups(name, 2); }
static void large_group_scene(const char *name) { groups(name, 9); }

static const struct {
  const char *name;
  void (*run)(const char *name);
} scenes[] = {{"plain", plain_scene},
              {"shared", shared_scene},
              {"configured", configured_scene},
              {"group", group_scene},
              {"large group", large_group_scene},
              {"scalars", scalars},
              {"one-sided", one_sided},
              {"copies", copies},
              {"captured", captured},
              {"registered", registered},
              {"staged", staged_scene},
              {"switch", switch_scene},
              {"near", near_scene},
              {"far", far_scene},
              {"suspended", suspended_scene},
              {"puts", puts_scene}};
TEST_LOOP(as_before, HK_ARRAY_LENGTH(scenes)) { scenes[_i].run(scenes[_i].name); }

int main(void) {
  unsetenv("CUDAEMU_PTX"); /* other kernels' blocks have other limits */
  gpu_environment();
  if (!gpu_here()) return 77;
  golden_clear(GOLDEN);
  return suite_main("gpu_scenes", .timeout = 60);
}
