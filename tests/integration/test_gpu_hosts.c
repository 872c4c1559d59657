/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on GPUs of several pretended hosts, which reach each other over the network only: every collective,
 * sends and receives, a peer that dies; by sockets and by a net plugin. Graphs, aborts and what there is for
 * sanitizers in a link over the network: test_gpu_life.
 * check: timeout=300 notsan noasan */
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
TEST_LOOP(algorithms, 3) {
  static const char *const names[] = {"hier", "rail", "halving"}; /* halving: a rank sends to itself */
  setenv("NCCL_ALGO", names[_i], 1);
  setenv("NCCL_PROTO", _i == 1 ? "Simple" : "LL", 1);
  ck_assert_int_eq(run_processes(4, 1, 2, 2, collectives), 0);
}

TEST(plugin) {
  setenv("NCCL_NET_PLUGIN", emu_file("../plugins/libnccl-net-nine.so"), 1);
  ck_assert_int_eq(run_processes(2, 1, 2, 2, collectives), 0);
}

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

int main(void) { return gpu_main("gpu_hosts", .timeout = 100); }
