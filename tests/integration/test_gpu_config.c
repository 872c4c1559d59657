/* SPDX-License-Identifier: Apache-2.0 */
/* Options of communicators and of calls on GPUs, on the driver that runs on the CPU: what they change, and that results
 * stay right.
 * check: timeout=200 notsan */
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/decide/protocol.h"
#include "../../src/gpu/endpoints.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/run.h"
#include "../../src/run/plans.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { N = 4, COUNT = 5000 };
static const gpu_call sums = {.coll = HK_ALLREDUCE, .count = COUNT, .type = ncclFloat32, .op = ncclSum};

static ncclResult_t all_reduce(gpu_ranks *g, const ncclCollConfig_t *k, CUevent *events) {
  ncclCollConfig_t own = *k;
  ncclResult_t rc = ncclSuccess;
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n && rc == ncclSuccess; r++) {
    if (events) own.launchCompletionEvent = (cudaEvent_t)(void *)events[r];
    rc = ncclAllReduceConfig((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)g->out[r], COUNT, ncclFloat32, ncclSum,
                             g->comm[r], (cudaStream_t)(void *)g->stream[r], &own);
  }
  ncclResult_t end = ncclGroupEnd();
  return rc == ncclSuccess ? end : rc;
}

static const hk_choice *chosen(const gpu_ranks *g) { return &g->comm[0]->plans->last[HK_ALLREDUCE]; }

TEST(options_of_a_call) {
  static const struct {
    const char *selection, *algorithm;
    hk_protocol protocol;
    int channels;
  } cases[] = {{"RING_SIMPLE", "ring", HK_PROTO_SIMPLE, 2},
               {"TREE_LL", "tree", HK_PROTO_LL, 1},
               {"RING+^RING_SIMPLE+^RING_LL128", "ring", HK_PROTO_LL, 3},
               {"nvls", "nvls", HK_PROTO_SIMPLE, 1}};
  setenv("NCCL_MAX_NCHANNELS", "0", 1);
  gpu_ranks *g = gpu_begin(N, N, COUNT * 4);
  gpu_fill(g, &sums);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    ncclCollConfig_t k = NCCL_COLLCONFIG_INITIALIZER;
    k.algSelection = cases[i].selection;
    k.minCTAs = k.maxCTAs = k.nvlsCTAs = cases[i].channels;
    k.cgaClusterSize = (int)i;
    k.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
    OK_NCCL(all_reduce(g, &k, NULL));
    gpu_check(g, &sums);
    ck_assert_str_eq(chosen(g)->plan->program->algorithm, cases[i].algorithm);
    ck_assert_int_eq(chosen(g)->launch.protocol, cases[i].protocol);
    ck_assert_uint_eq(chosen(g)->plan->channels, (unsigned)cases[i].channels);
    gpu_group(g, &sums); /* a call without options after it is as ever */
    gpu_check(g, &sums);
  }
  ncclCollConfig_t zero = NCCL_COLLCONFIG_INITIALIZER;
  zero.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  ck_assert_int_eq(all_reduce(g, &zero, NULL), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "NCCL_CTA_POLICY"));
  gpu_group(g, &sums);
  gpu_check(g, &sums);
}

/* The event is complete once the kernel runs; in a captured graph, at each replay. */
TEST(launch_events) {
  CUevent events[N];
  const ncclCollConfig_t k = NCCL_COLLCONFIG_INITIALIZER;
  gpu_ranks *g = gpu_begin(N, N, COUNT * 4);
  gpu_fill(g, &sums);
  for (int r = 0; r < N; r++) {
    emu_use(g->device[r]);
    OK(EventCreate(&events[r], CU_EVENT_DISABLE_TIMING));
  }
  OK_NCCL(all_reduce(g, &k, events));
  for (int r = 0; r < N; r++) OK(EventSynchronize(events[r]));
  gpu_check(g, &sums);
  for (int r = 0; r < N; r++) OK(EventDestroy(events[r]));
}

TEST(options_of_a_communicator) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  gpu_ranks g, plain;
  setenv("NCCL_MAX_NCHANNELS", "0", 1);
  gpu_open(&plain, N, N, COUNT * 4);
  gpu_open(&g, N, N, COUNT * 4);
  gpu_init_all(&plain);
  config.nvlsHostMode = ncclNvlsHostModeDisableTransport;
  config.nChannelsPerNetPeer = 3;
  config.nvlinkCentricSched = 1;
  config.graphStreamOrdering = 0;
  config.graphUsageMode = 1;
  gpu_init_config(&g, &config);
  ck_assert(hk_gpu_of(plain.comm[0])->in_switch && !hk_gpu_of(g.comm[0])->in_switch);
  ck_assert_uint_eq(hk_gpu_of(g.comm[0])->split->net_parts, 3);
  ck_assert(g.comm[1]->options.nvlink_first && g.comm[1]->options.loose_captures);
  gpu_try(&g, &sums);
  gpu_close(&g);
  gpu_close(&plain);
}

/* Links that rank 0 has for sends to rank 1. */
static unsigned ways(const gpu_ranks *g) {
  unsigned n = 0;
  for (const hk_gpu_endpoint *x = hk_gpu_of(g->comm[0])->links->ends[1][1]; x; x = x->next) n++;
  return n;
}

/* Each rank sends to those up to `far` ranks away and receives from those before it. */
static void send_round(const gpu_ranks *g, int far, size_t bytes) {
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
    for (int k = 1; k <= far; k++) {
      const int before = (r + N - k) % N;
      char *in = (void *)(uintptr_t)g->in[r], *out = (void *)(uintptr_t)g->out[r];
      OK_NCCL(ncclSend(in, bytes, ncclInt8, (r + k) % N, g->comm[r], s));
      OK_NCCL(ncclRecv(out + (size_t)(k - 1) * bytes, bytes, ncclInt8, before, g->comm[r], s));
    }
  }
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  char *got = malloc(bytes), *right = malloc(bytes);
  for (int r = 0; r < N; r++)
    for (int k = 1; k <= far; k++) {
      emu_use(g->device[r]);
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)got, g->out[r] + (size_t)(k - 1) * bytes, bytes, g->stream[r]));
      OK(StreamSynchronize(g->stream[r]));
      memset(right, (r + N - k) % N + 1, bytes);
      ck_assert_mem_eq(got, right, bytes);
    }
  free(got);
  free(right);
}

/* With few peers a large send has more links.  It is a promise for speed only: more peers are right, too. */
TEST_LOOP(few_peers, 4) {
  static const struct {
    int peers;      /* rank 0's; the others name one */
    unsigned parts; /* of 16 blocks */
  } cases[] = {{NCCL_CONFIG_UNDEF_INT, 2}, {1, 8}, {2, 4}, {99, 2}};
  enum { BYTES = 1 << 18 };
  gpu_ranks g;
  ncclUniqueId id;
  setenv("NCCL_MAX_NCHANNELS", "16", 1);
  gpu_open(&g, N, N, (size_t)BYTES * (N - 1));
  OK_NCCL(ncclGetUniqueId(&id));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxP2pPeers = r ? 1 : cases[_i].peers;
    emu_use(g.device[r]);
    OK(MemsetD8Async(g.in[r], (unsigned char)(r + 1), BYTES, g.stream[r]));
    OK_NCCL(ncclCommInitRankConfig(&g.comm[r], N, id, r, &config));
  }
  OK_NCCL(ncclGroupEnd());
  ck_assert_uint_eq(hk_gpu_of(g.comm[0])->blocks, 16);
  ck_assert_uint_eq(hk_gpu_of(g.comm[1])->split->parts, cases[_i].parts);
  send_round(&g, 1, BYTES);
  ck_assert_uint_eq(ways(&g), cases[_i].parts);
  send_round(&g, N - 1, BYTES);
  gpu_close(&g);
}

static bool traced(const char *path, const char *text) {
  char line[512];
  bool found = false;
  FILE *f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f)) found = found || strstr(line, text);
  if (f) fclose(f);
  return found;
}

/* A capture against the promise of graphUsageMode 0 works, and the log says so once for each rank. */
TEST_LOOP(broken_promise, 2) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  char file[64];
  gpu_ranks g;
  gpu_graph x;
  snprintf(file, sizeof file, "/tmp/hocket-promise.%d", (int)getpid());
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
  setenv("NCCL_DEBUG_FILE", file, 1);
  unsetenv("HOCKET_DEVICE"); /* of the runner: parameters are read here, before gpu_open */
  hk_param_reload();
  hk_log_reset();
  config.graphUsageMode = _i;
  gpu_open(&g, 1, 1, COUNT * 4);
  gpu_init_config(&g, &config);
  gpu_capture(&g, &sums, &x);
  gpu_replay(&g, &x);
  gpu_graph_free(&g, &x);
  gpu_close(&g);
  ck_assert(traced(file, "graphUsageMode is 0") == (_i == 0));
  unlink(file);
}

/* Two communicators on the same GPUs, each rank by streams of its own: their calls run in the order of the calls, so
 * the second one reads what the first one has written. */
TEST(launch_order) {
  enum { TURNS = 20 };
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  gpu_ranks g[2];
  static float got[COUNT];
  setenv("CUDAEMU_SLOW_US", "200", 1);
  config.launchOrderImplicit = 1;
  for (int k = 0; k < 2; k++) gpu_open(&g[k], 2, 2, COUNT * 4);
  for (int k = 0; k < 2; k++) gpu_init_config(&g[k], &config);
  gpu_fill(&g[0], &sums);
  gpu_wait(&g[0]);
  for (int t = 0; t < TURNS; t++)
    for (int k = 0; k < 2; k++) {
      OK_NCCL(ncclGroupStart());
      for (int r = 0; r < 2; r++)
        OK_NCCL(ncclAllReduce((void *)(uintptr_t)(k ? g[0].out[r] : g[0].in[r]),
                              (void *)(uintptr_t)(k ? g[1].out[r] : g[0].out[r]), COUNT, ncclFloat32, ncclMax,
                              g[k].comm[r], (cudaStream_t)(void *)g[k].stream[r]));
      OK_NCCL(ncclGroupEnd());
    }
  for (int k = 0; k < 2; k++) gpu_wait(&g[k]);
  for (int r = 0; r < 2; r++) {
    emu_use(r);
    emu_read(got, g[1].out[r], sizeof got);
    for (size_t i = 0; i < COUNT; i++) {
      double a = test_value(0, 2, i, ncclSum), b = test_value(1, 2, i, ncclSum);
      ck_assert_msg(got[i] == (float)(a > b ? a : b), "rank %d, element %zu: %g", r, i, (double)got[i]);
    }
  }
  for (int k = 0; k < 2; k++) gpu_close(&g[k]);
}

/* The example profiler of this version (tests/plugins/profiler.h) writes to `file`. */
static void profile_to(const char *version, char file[96]) {
  char trace[64], plugin[64];
  snprintf(trace, sizeof trace, "/tmp/hocket-profiled.%d", (int)getpid());
  snprintf(file, 96, "%s.%d", trace, (int)getpid());
  snprintf(plugin, sizeof plugin, "../plugins/libnccl-profiler-%s.so", version);
  setenv("NCCL_PROFILER_PLUGIN", emu_file(plugin), 1);
  setenv("HOCKET_TEST_TRACE", trace, 1);
}

/* A profiler gets the operations, with what was chosen, and the launches. */
TEST(profiled) {
  ncclCollConfig_t k = NCCL_COLLCONFIG_INITIALIZER;
  char file[96];
  profile_to("seven", file);
  gpu_ranks *g = gpu_begin(2, 2, COUNT * 4);
  gpu_fill(g, &sums);
  k.algSelection = "RING_LL";
  k.userProfilerTag = 1u << 31;
  OK_NCCL(all_reduce(g, &k, NULL));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++) {
    cudaStream_t q = (cudaStream_t)(void *)g->stream[r];
    OK_NCCL(ncclSend((void *)(uintptr_t)g->in[r], COUNT, ncclFloat32, 1 - r, g->comm[r], q));
    OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[r], COUNT, ncclFloat32, 1 - r, g->comm[r], q));
  }
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  gpu_close(g);
  ck_assert(traced(file, "coll AllReduce sequence 0 count 5000 type ncclFloat32"));
  ck_assert(traced(file, "algorithm ring protocol LL tag 2147483648"));
  ck_assert(traced(file, "launch") && traced(file, "p2p Send count 5000") && traced(file, "p2p Recv count 5000"));
  unlink(file);
}

/* Lines of a trace about an event of rank 0, in order. */
static int lines_of(const char *path, const char *begin, char lines[][160], int capacity) {
  char line[512];
  int n = 0;
  FILE *f = fopen(path, "r");
  while (f && n < capacity && fgets(line, sizeof line, f)) {
    const char *at = strstr(line, " rank 0 ");
    if (at && strstr(at, begin)) snprintf(lines[n++], 160, "%.*s", (int)strcspn(line, "\n"), line);
  }
  if (f) fclose(f);
  return n;
}

/* Collectives by copy engines: each has two meetings of the ranks and a batch of copies. */
TEST_LOOP(copies_profiled, 2) {
  enum { CALLS = 3, ROOM = 2 << 20 };
  static const char *const tags[] = {"", " tag 5"};
  ncclCollConfig_t k = NCCL_COLLCONFIG_INITIALIZER;
  char file[96], copies[CALLS + 1][160], parts[3 * CALLS + 1][160], want[200];
  void *memory[2];
  ncclWindow_t windows[2];
  k.userProfilerTag = 5;
  setenv("NCCL_CTA_POLICY", "2", 1);
  profile_to(_i ? "seven" : "six", file);
  gpu_ranks *g = gpu_begin(2, 2, COUNT * 4);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++) {
    emu_use(g->device[r]);
    OK_NCCL(ncclMemAlloc(&memory[r], ROOM));
    OK_NCCL(ncclCommWindowRegister(g->comm[r], memory[r], ROOM, &windows[r], NCCL_WIN_COLL_SYMMETRIC));
  }
  OK_NCCL(ncclGroupEnd());
  for (int i = 0; i < CALLS; i++) { /* the last one in place: a rank has its own part already */
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; r++) {
      void *in = i == 2 ? (char *)memory[r] + r * COUNT * 4 : (void *)(uintptr_t)g->in[r];
      OK_NCCL(
          ncclAllGatherConfig(in, memory[r], COUNT, ncclFloat32, g->comm[r], (cudaStream_t)(void *)g->stream[r], &k));
    }
    OK_NCCL(ncclGroupEnd());
  }
  gpu_wait(g);
  for (int r = 0; r < 2; r++) {
    OK_NCCL(ncclCommWindowDeregister(g->comm[r], windows[r]));
    OK_NCCL(ncclMemFree(memory[r]));
  }
  gpu_close(g);
  ck_assert_int_eq(lines_of(file, "copies ", copies, CALLS + 1), CALLS);
  ck_assert_int_eq(lines_of(file, " copy", parts, 3 * CALLS + 1), 3 * CALLS);
  for (int i = 0; i < CALLS; i++) {
    long id = atol(copies[i] + strlen("start ")), parent;
    snprintf(
        want, sizeof want,
        "copies AllGather sequence %d count 5000 root 0 type ncclFloat32 sync UC batch 2 in 1 number %d stream %p%s", i,
        i, (void *)g->stream[0], tags[_i]);
    const char *at = strstr(copies[i], "copies ");
    ck_assert_str_eq(at, want);
    static const char *const what[] = {"copysync begin ranks 2", NULL, "copysync end ranks 2"};
    for (int part = 0; part < 3; part++) {
      char batch[64];
      int sent = i == 2 ? 1 : 2;
      snprintf(batch, sizeof batch, "copybatch of %d, %d bytes", sent, sent * COUNT * 4);
      ck_assert_int_eq(sscanf(parts[3 * i + part], "start %*d parent %ld", &parent), 1);
      ck_assert_int_eq(parent, id);
      ck_assert_str_eq(strstr(parts[3 * i + part], "copy"), what[part] ? what[part] : batch);
    }
  }
  unlink(file);
}

int main(void) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  return gpu_main("gpu_config", .timeout = 190);
}
