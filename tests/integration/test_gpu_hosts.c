/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on GPUs of several pretended hosts, which reach each other over the network only: every collective,
 * all types, sends and receives, replayed graphs, a peer that dies, an abort; by sockets and by a net plugin.  What
 * there is for sanitizers in a link over the network, test_gpu_life shows them.
 * check: timeout=300 notsan noasan */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/proxy.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static void collectives(gpu_place *p) {
  static const size_t counts[] = {3, 1500};
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
    for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
      gpu_call c = {.coll = coll, .count = counts[k], .type = k ? ncclFloat32 : ncclBfloat16, .op = ncclSum};
      c.root = p->g.n - 1;
      c.in_place = k == 0;
      each_call(p, &c, c.in_place ? 1 : 2); /* in place a second call would reduce the first one's result */
    }
  }
  for (int by = 1; by < 3; by++) each_ring(p, by);
}

/* Without a wish for a protocol short messages go over the network in LL lines. */
static void collectives_in_lines(gpu_place *p) {
  enum { ROOM = 256 };
  hk_gpu_proxy_link l[ROOM];
  uint64_t in_lines = 0;
  collectives(p);
  for (int r = p->first; r < p->first + p->each; r++)
    for (int i = hk_gpu_proxy_look(hk_gpu_of(p->g.comm[r])->links->proxy, l, ROOM); i-- > 0;) in_lines += l[i].in_lines;
  ck_assert_uint_gt(in_lines, 0);
}

/* {processes, ranks of each, devices, hosts} */
TEST_LOOP(hosts, 3) {
  static const int shapes[][4] = {{2, 1, 1, 2}, {3, 2, 6, 3}, {4, 2, 4, 4}};
  const int *s = shapes[_i];
  ck_assert_int_eq(run_processes(s[0], s[1], s[2], s[3], collectives_in_lines), 0);
}

/* LL, between the hosts for small slots only; the algorithms that know of hosts. */
TEST_LOOP(algorithms, 2) {
  static const char *const names[] = {"hier", "rail"};
  setenv("NCCL_ALGO", names[_i], 1);
  setenv("NCCL_PROTO", _i ? "Simple" : "LL", 1);
  ck_assert_int_eq(run_processes(4, 1, 2, 2, collectives), 0);
}

TEST(plugin) {
  setenv("NCCL_NET_PLUGIN", emu_file("../plugins/libnccl-net-nine.so"), 1);
  ck_assert_int_eq(run_processes(2, 1, 2, 2, collectives), 0);
}

static void types(gpu_place *p) {
  for (ncclDataType_t type = 0; type < ncclNumTypes; type++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = 301, .type = type, .op = type % 2 ? ncclMax : ncclAvg};
    each_call(p, &c, 1);
  }
}

TEST(all_types) { ck_assert_int_eq(run_processes(3, 1, 3, 3, types), 0); }

/* ---- graphs ---- */

static uint32_t word_of(uint32_t i, int rank) { return 0x01010101u * ((i + 50u * (uint32_t)rank) & 255); }

/* A collective and a ring of sends, captured once and replayed with other data; now and then after a pause, and beside
 * work that is not captured. */
static void replays(gpu_place *p) {
  enum { COUNT = 3000 };
  gpu_ranks *g = &p->g;
  int r = p->first, from = (r + g->n - 1) % g->n;
  static uint32_t got[2 * COUNT];
  char *in = (char *)(uintptr_t)g->in[r], *out = (char *)(uintptr_t)g->out[r];
  cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
  OK(StreamBeginCapture(g->stream[r], CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK_NCCL(ncclAllReduce(in, out, COUNT, ncclUint32, ncclSum, g->comm[r], s));
  OK_NCCL(ncclGroupStart());
  OK_NCCL(ncclSend(in, COUNT, ncclUint32, (r + 1) % g->n, g->comm[r], s));
  OK_NCCL(ncclRecv(out + 4 * COUNT, COUNT, ncclUint32, from, g->comm[r], s));
  OK_NCCL(ncclGroupEnd());
  const CUgraphExec exec = gpu_end_capture(g->stream[r]);
  for (uint32_t i = 1; i <= 20; i++) {
    uint32_t sum = 0;
    for (int k = 0; k < g->n; k++) sum += word_of(i, k);
    OK(MemsetD8Async(g->in[r], (unsigned char)word_of(i, r), 4 * COUNT, g->stream[r]));
    OK(GraphLaunch(exec, g->stream[r]));
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)got, g->out[r], sizeof got, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    suite_all(k, COUNT, got[k] == sum);
    suite_all(k, COUNT, got[COUNT + k] == word_of(i, from));
    if (i % 10 == 0) {
      gpu_call c = {.coll = HK_ALLGATHER, .count = 700, .type = ncclFloat32};
      each_call(p, &c, 2);
      usleep(20000); /* the proxy goes to sleep, or does not: both must do */
    }
  }
  OK(GraphExecDestroy(exec));
}

TEST(graphs) { ck_assert_int_eq(run_processes(3, 1, 3, 3, replays), 0); }

/* ---- failures ---- */

/* In memory that all processes share: what fails must not begin while others still need it, and who has heard of it
 * must not abort, which is news too, before the others have. */
static _Atomic(int) *arrived;

static void meet(int so_far) {
  atomic_fetch_add(arrived, 1);
  while (atomic_load(arrived) < so_far) usleep(1000);
}
static int run_failing(void (*body)(gpu_place *p)) {
  arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne((void *)arrived, MAP_FAILED);
  return run_processes(3, 1, 3, 3, body);
}

/* Waits until the rank's communicator has failed for the reason given; the kernel must have left. */
static void expect_failure(gpu_place *p, const char *why) {
  gpu_ranks *g = &p->g;
  int r = p->first;
  ncclResult_t code = ncclSuccess;
  OK(StreamSynchronize(g->stream[r]));
  for (int i = 0; i < 20000 && code == ncclSuccess; i++) {
    OK_NCCL(ncclCommGetAsyncError(g->comm[r], &code));
    usleep(1000);
  }
  ck_assert_int_eq(code, ncclRemoteError);
  ck_assert_msg(strstr(ncclGetLastError(g->comm[r]), why) != NULL, "'%s' is not in: %s", why,
                ncclGetLastError(g->comm[r]));
  meet(2 * g->n - 1);
  OK_NCCL(ncclCommAbort(g->comm[r]));
  g->comm[r] = NULL;
}

/* Rank 0's process dies while the others' kernels wait for it, or begin to. */
static void die(gpu_place *p) {
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
  meet(p->g.n);
  if (p->process == 0) _exit(0);
  if (gpu_submit(&p->g, &c, p->first) != ncclSuccess) OK(StreamSynchronize(p->g.stream[p->first]));
  expect_failure(p, "rank 0");
}

static void wish_protocol(int i) { setenv("NCCL_PROTO", i ? "LL" : "Simple", 1); }

TEST_LOOP(dead_peer, 2) {
  wish_protocol(_i);
  ck_assert_int_eq(run_failing(die), 0);
}

/* Rank 0's kernel waits for a rank that is not coming, until another thread aborts it. */
static void abort_one(gpu_place *p) {
  gpu_ranks *g = &p->g;
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  pthread_t id;
  each_call(p, &c, 1);
  meet(p->g.n);
  if (p->process == 2) return expect_failure(p, "rank 0");
  if (p->process == 1) {
    (void)gpu_submit(g, &c, 1); /* before or after the news */
    return expect_failure(p, "rank 0");
  }
  OK_NCCL(gpu_submit(g, &c, 0));
  ck_assert_int_eq(pthread_create(&id, NULL, gpu_abort, g->comm[0]), 0);
  OK(StreamSynchronize(g->stream[0]));
  pthread_join(id, NULL);
  g->comm[0] = NULL;
}

TEST_LOOP(abort_from_thread, 2) {
  wish_protocol(_i);
  ck_assert_int_eq(run_failing(abort_one), 0);
}

int main(void) {
  gpu_environment();
  if (!gpu_here()) return 77;
  return suite_main("gpu_hosts", .timeout = 100);
}
