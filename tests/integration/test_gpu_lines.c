/* SPDX-License-Identifier: Apache-2.0 */
/* LL over the network: small slots go between kernels and proxies in lines. Over sockets, RDMA cards and a net plugin,
 * with payloads in the GPUs' memory and in the host's. The loader's lock is not seen by TSan, which takes ranks that
 * open and close a plugin for a race; test_gpu_proxy_lines runs there.
 * check: timeout=300 notsan long=asan */
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/proxy.h"
#include "../support/fake_rdma.h"
#include "../support/gpu.h"
#include "../support/suite.h"

/* Cards with large payloads in the GPUs' memory, and in the host's; sockets; a plugin that has all payloads in the
 * host's memory, or all in the GPUs': then there are no lines. */
typedef enum way { GPUS, HOST, SOCKETS, PLUGIN, PLUGIN_ON_GPUS, WAYS } way;
static bool has_lines(way by) { return by != PLUGIN_ON_GPUS; }
static bool by_plugin(way by) { return by >= PLUGIN; }

static fake_verbs_state *verbs;
static gpu_ranks all;

static gpu_ranks *begin(int ranks, way by, const char *protocol) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("CUDAEMU_DMABUF", "1", 1);
  setenv("NCCL_PROTO", protocol, 1);
  if (by_plugin(by)) {
    setenv("NCCL_NET", "Example", 1);
    setenv("NCCL_NET_PLUGIN", emu_file("../plugins/libnccl-net-eleven.so"), 1);
    setenv("HOCKET_TEST_NET_GPU", by == PLUGIN ? "none" : "dmabuf", 1);
    setenv("CUDAEMU_RDMA_ORDER", "100", 1);
  }
  gpu_open(&all, ranks, ranks, 1 << 18);
  if (!by_plugin(by)) {
    verbs = rdma_begin(2);
    rdma_plenty = true;
    rdma_param("NCCL_NET_GDR_LEVEL", by == GPUS ? "" : "LOC");
    rdma_param("NCCL_NET", by == SOCKETS ? "Socket" : "IB");
  }
  gpu_init_all(&all);
  return &all;
}
static void end(void) {
  gpu_close(&all);
  if (verbs) rdma_end(verbs);
}

/* Slots that the ranks' kernels have sent over the network, and those of them that were in lines. */
typedef struct sent {
  uint64_t all, in_lines;
} sent;
static sent count(const gpu_ranks *g) {
  enum { ROOM = 256 };
  sent n = {0};
  hk_gpu_proxy_link l[ROOM];
  for (int r = 0; r < g->n; r++) {
    const int links = hk_gpu_proxy_look(hk_gpu_of(g->comm[r])->links->proxy, l, ROOM);
    ck_assert_int_le(links, ROOM);
    for (int i = 0; i < links; i++) {
      if (!l[i].sends) continue;
      n.all += l[i].done;
      n.in_lines += l[i].in_lines;
    }
  }
  return n;
}

static void run(gpu_ranks *g, const gpu_call *call, int again) {
  gpu_call c = *call;
  c.shift += 7 * c.count;
  gpu_fill(g, &c);
  for (int k = 0; k < again; k++) gpu_group(g, &c);
  gpu_check(g, &c);
}

/* Every type, lengths that fill no word, no pair of words, no slot; more calls than slots; with several channels. */
TEST_LOOP(types, WAYS + 1) {
  const way by = _i % WAYS;
  setenv("NCCL_MIN_NCHANNELS", _i < WAYS ? "1" : "4", 1);
  setenv("NCCL_MAX_NCHANNELS", _i < WAYS ? "1" : "4", 1);
  gpu_ranks *g = begin(2, by, "LL");
  for (ncclDataType_t type = 0; type < ncclNumTypes; type++) {
    for (size_t n = 4; n < 300; n = n * 3 + 1) {
      gpu_call c = {.coll = HK_ALLREDUCE, .count = n, .type = type, .op = type % 2 ? ncclMax : ncclSum, .offset = 16};
      run(g, &c, n < 10 ? 11 : 2);
    }
  }
  const sent n = count(g);
  ck_assert_uint_gt(n.all, 0);
  ck_assert_uint_eq(n.in_lines, has_lines(by) ? n.all : 0);
}

/* All collectives; messages around the most that lines carry, in turn with larger ones, and where some are empty. */
TEST_LOOP(collectives, WAYS) {
  static const size_t counts[] = {1, 500, 767, 768, 769, 1016, 9000, 5};
  gpu_ranks *g = begin(3, (way)_i, "LL");
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
    for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
      gpu_call c = {.coll = coll, .count = counts[k], .type = ncclFloat32, .op = ncclSum, .root = 1};
      c.offset = 4 * (k % 4); /* bytes */
      run(g, &c, 2);
    }
  }
  const sent n = count(g);
  ck_assert_int_eq(n.in_lines > 0, has_lines((way)_i));
  ck_assert_uint_lt(n.in_lines, n.all);
}

TEST(simple_has_none) {
  gpu_ranks *g = begin(2, GPUS, "Simple");
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  run(g, &c, 3);
  ck_assert(count(g).all > 0 && count(g).in_lines == 0);
}

TEST_LOOP(graphs, PLUGIN) {
  gpu_graph x;
  gpu_ranks *g = begin(2, (way)_i, "LL");
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 301, .type = ncclInt32, .op = ncclSum};
  gpu_capture(g, &c, &x);
  for (int k = 0; k < 20; k++) gpu_replay(g, &x);
  const sent n = count(g);
  ck_assert_uint_eq(n.in_lines, n.all);
  gpu_graph_free(g, &x);
}

/* What lines hold after a suspension means nothing to those who wait for them. */
TEST_LOOP(suspended, PLUGIN) {
  gpu_ranks *g = begin(2, (way)_i, "LL");
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 700, .type = ncclFloat32, .op = ncclSum};
  for (int k = 0; k < 3; k++) {
    run(g, &c, 5);
    gpu_suspend_all(g, true);
    gpu_suspend_all(g, false);
  }
  run(g, &c, 5);
  const sent n = count(g);
  ck_assert_uint_eq(n.in_lines, n.all);
}

/* Calls that do not match: other lines, a slot that has none, lines where a slot is due. */
TEST_LOOP(mismatch, 8) {
  static const size_t counts[][2] = {{100, 90}, {100, 20000}, {20000, 100}, {700, 900}};
  gpu_ranks *g = begin(2, _i % 2 ? SOCKETS : GPUS, "LL");
  gpu_call before = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  run(g, &before, 2);
  for (int r = 0; r < 2; r++) {
    gpu_call c = {.coll = HK_BROADCAST, .count = counts[_i / 2][r], .type = ncclFloat32};
    (void)gpu_submit(g, &c, r);
  }
  for (int r = 1; r >= 0; r--) ck_assert_int_eq(wait_for_error(g->comm[r]), ncclInvalidUsage);
  gpu_wait(g);
}

/* A kernel that polls lines which do not come ends with an abort. */
TEST(aborted) {
  pthread_t id;
  gpu_ranks *g = begin(2, SOCKETS, "LL");
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  run(g, &c, 2);
  OK_NCCL(gpu_submit(g, &c, 0));
  ck_assert_int_eq(pthread_create(&id, NULL, gpu_abort, g->comm[0]), 0);
  emu_use(g->device[0]);
  OK(StreamSynchronize(g->stream[0]));
  pthread_join(id, NULL);
  g->comm[0] = NULL;
  ck_assert_int_eq(wait_for_error(g->comm[1]), ncclRemoteError);
  OK_NCCL(ncclCommAbort(g->comm[1]));
  g->comm[1] = NULL;
}

int main(void) {
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("HOCKET_SLOTS", "8", 1);
  gpu_environment();
  return gpu_here() ? suite_main("gpu_lines", .timeout = 200, .teardown = end) : 77;
}
