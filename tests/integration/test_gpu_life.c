/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on GPUs: captured graphs, ranks as threads, children, aborts, failures, ends; the same where only the
 * network joins the GPUs, with the proxy.
 * check: waits timeout=300 */
#include <pthread.h>
#include "../../src/core/call.h"
#include "../../src/failure/mismatch.h"
#include "../../src/failure/watch.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/order.h"
#include "../../src/gpu/proxy.h"
#include "../support/gpu.h"
#include "../support/suite.h"

#define SAYS(text, what) ck_assert_msg(strstr(text, what) != NULL, "%s", text)

/* The second time only the network joins the GPUs. */
static void only_network(int yes) {
  if (!yes) return;
  setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
}

/* Fewer of what is done again and again, where each goes over the network. */
static int times(int n) { return getenv("NCCL_SHM_DISABLE") ? n / 3 : n; }

/* ---- graphs ---- */

enum { COUNT = 3000 };

/* A mix of calls for two ranks that share a device, whose streams join one capture. */
static CUgraphExec capture(gpu_ranks *g) {
  CUevent fork_event, join_event;
  emu_use(0);
  OK(EventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  OK(EventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
  OK(StreamBeginCapture(g->stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(EventRecord(fork_event, g->stream[0]));
  OK(StreamWaitEvent(g->stream[1], fork_event, 0));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++) {
    char *in = (char *)(uintptr_t)g->in[r], *out = (char *)(uintptr_t)g->out[r];
    cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
    OK_NCCL(ncclAllReduce(in, out, COUNT, ncclUint32, ncclSum, g->comm[r], s));
    OK_NCCL(ncclAllGather(in, out + 16384, 100, ncclUint32, g->comm[r], s));
    OK_NCCL(ncclSend(in, COUNT, ncclUint32, 1 - r, g->comm[r], s));
    OK_NCCL(ncclRecv(out + 32768, COUNT, ncclUint32, 1 - r, g->comm[r], s));
  }
  OK_NCCL(ncclGroupEnd());
  OK(EventRecord(join_event, g->stream[1]));
  OK(StreamWaitEvent(g->stream[0], join_event, 0));
  const CUgraphExec exec = gpu_end_capture(g->stream[0]);
  OK(EventDestroy(fork_event));
  OK(EventDestroy(join_event));
  return exec;
}

static void set_words(CUdeviceptr at, unsigned char value, size_t n, CUstream s) {
  OK(MemsetD8Async(at, value, 4 * n, s));
}

TEST_LOOP(graphs, 2) {
  only_network(_i);
  static uint32_t out[12288];
  gpu_ranks *g = gpu_begin(2, 1, 49152);
  CUgraphExec exec = capture(g), again = capture(g);
  for (int i = 1; i <= times(60); i++) {
    for (int r = 0; r < 2; r++) set_words(g->in[r], (unsigned char)(i + 100 * r), COUNT, g->stream[0]);
    OK(GraphLaunch(i % 3 ? exec : again, g->stream[0]));
    for (int r = 0; r < 2; r++) {
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], sizeof out, g->stream[0]));
      OK(StreamSynchronize(g->stream[0]));
      uint32_t value[2] = {0x01010101u * (unsigned)i, 0x01010101u * (unsigned)((i + 100) & 255)};
      suite_all(k, COUNT, out[k] == value[0] + value[1]);
      suite_all(k, 200, out[4096 + k] == value[k / 100]);
      suite_all(k, COUNT, out[8192 + k] == value[1 - r]);
    }
    if (i % 20 == 0) { /* the same links, not captured */
      gpu_call c = {.coll = HK_ALLREDUCE, .count = 700, .type = ncclFloat32, .op = ncclSum};
      gpu_try(g, &c);
    }
  }
  for (int i = 0; i < 5; i++) OK(GraphLaunch(exec, g->stream[0]));
  OK(GraphExecDestroy(exec)); /* while it runs */
  OK(StreamSynchronize(g->stream[0]));
  gpu_close(g);
  OK(GraphExecDestroy(again)); /* after its communicators */
}

/* ---- threads ---- */

typedef struct thread_rank {
  gpu_ranks *g;
  int rank;
  ncclUniqueId id;
} thread_rank;

/* As allocators' hooks do, on a thread of their own. */
static void *register_again(void *arg) {
  const thread_rank *t = arg;
  void *handle;
  for (int i = 0; i < times(60); i++) {
    OK_NCCL(ncclCommRegister(t->g->comm[t->rank], (void *)(uintptr_t)t->g->in[t->rank], t->g->capacity, &handle));
    OK_NCCL(ncclCommDeregister(t->g->comm[t->rank], handle));
  }
  return NULL;
}

/* Each with a group of its own: many calls without waiting, then the last one's result. */
static void *run_rank(void *arg) {
  thread_rank *t = arg;
  gpu_ranks *g = t->g;
  int r = t->rank;
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 2000, .type = ncclFloat32, .op = ncclSum};
  emu_use(g->device[r]);
  OK_NCCL(ncclCommInitRank(&g->comm[r], g->n, t->id, r));
  pthread_t hook;
  ck_assert_int_eq(pthread_create(&hook, NULL, register_again, t), 0);
  for (int i = 0; i < times(200); i++) OK_NCCL(gpu_submit(g, &c, r));
  OK(StreamSynchronize(g->stream[r]));
  pthread_join(hook, NULL);
  return NULL;
}

TEST_LOOP(threads, 2) {
  only_network(_i);
  gpu_ranks g;
  thread_rank t[GPU_RANKS];
  pthread_t id[GPU_RANKS];
  ncclUniqueId unique;
  gpu_open(&g, 4, 2, 1 << 14);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 2000, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(&g, &c);
  OK_NCCL(ncclGetUniqueId(&unique));
  for (int r = 0; r < g.n; r++) {
    t[r] = (thread_rank){&g, r, unique};
    ck_assert_int_eq(pthread_create(&id[r], NULL, run_rank, &t[r]), 0);
  }
  for (int r = 0; r < g.n; r++) pthread_join(id[r], NULL);
  gpu_check(&g, &c);
  gpu_close(&g);
}

/* ---- children ---- */

TEST(children) {
  gpu_ranks child;
  gpu_ranks *g = gpu_begin(4, 4, 1 << 14);
  child = *g;
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 4; r++)
    OK_NCCL(ncclCommSplit(g->comm[r], r < 3 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &child.comm[r], NULL));
  OK_NCCL(ncclGroupEnd());
  child.n = 3;
  gpu_call c = {.coll = HK_REDUCE_SCATTER, .count = 300, .type = ncclFloat32, .op = ncclAvg};
  for (int i = 0; i < 3; i++) { /* both at once */
    gpu_call d = {.coll = HK_ALLREDUCE, .count = 10, .type = ncclInt32, .op = ncclMax, .offset = 8192};
    gpu_fill(&child, &c);
    gpu_fill(g, &d);
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < 4; r++) OK_NCCL(gpu_submit(g, &d, r));
    for (int r = 0; r < 3; r++) OK_NCCL(gpu_submit(&child, &c, r));
    OK_NCCL(ncclGroupEnd());
    gpu_check(&child, &c);
    gpu_check(g, &d);
  }
  for (int r = 0; r < 3; r++) OK_NCCL(ncclCommDestroy(child.comm[r]));
}

/* ---- failures ---- */

static void *abort_it(void *arg) {
  usleep(20000);
  OK_NCCL(ncclCommAbort((ncclComm_t)arg));
  return NULL;
}

/* Kernels whose peers never come leave: the one whose communicator is aborted by another thread, and the other
 * rank's. */
TEST_LOOP(abort_frees_kernels, 2) {
  only_network(_i);
  pthread_t id;
  gpu_ranks *g = gpu_begin(3, 3, 4096);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(g, &c);
  for (int r = 0; r < 2; r++) {
    emu_use(r);
    OK(MemsetD8Async(g->out[r], 0xee, 400, g->stream[r]));
  }
  OK_NCCL(gpu_submit(g, &c, 0));
  OK_NCCL(gpu_submit(g, &c, 1));
  ck_assert_int_eq(pthread_create(&id, NULL, abort_it, g->comm[0]), 0);
  emu_use(0);
  OK(StreamSynchronize(g->stream[0]));
  pthread_join(id, NULL);
  g->comm[0] = NULL;
  emu_use(1);
  OK(StreamSynchronize(g->stream[1]));
  for (int r = 1; r < 3; r++) {
    ck_assert_int_eq(wait_for_error(g->comm[r]), ncclRemoteError);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(g->comm[r]), "rank 0 aborted"));
    ck_assert_int_eq(gpu_submit(g, &c, r), ncclRemoteError);
  }
  for (int r = 0; r < 2; r++) { /* every sum lacks rank 2's part: none is stored */
    unsigned char out[400];
    emu_use(r);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], sizeof out, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    suite_all(i, sizeof out, out[i] == 0xee);
  }
}

/* The aborted communicator's kernel is queued after another communicator's, which is not aborted yet. */
TEST(abort_behind_others) {
  gpu_ranks a, b;
  gpu_open(&a, 2, 2, 4096);
  gpu_sets++; /* a's GPU, whose kernel has not ended at the abort, is lost */
  gpu_init_all(&a);
  b = a;
  gpu_init_all(&b);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  OK_NCCL(gpu_submit(&b, &c, 0));
  OK_NCCL(gpu_submit(&a, &c, 0));
  OK_NCCL(ncclCommAbort(a.comm[0]));
  OK_NCCL(ncclCommAbort(b.comm[0]));
  emu_use(0);
  OK(StreamSynchronize(a.stream[0]));
  OK_NCCL(ncclCommAbort(b.comm[1]));
  a.comm[0] = NULL;
  gpu_close(&a);
}

/* Calls that do not match: all ranks report it, with the same words. */
TEST(mismatch) {
  setenv("NCCL_PROTO", "Simple", 1); /* LL's lines do not say what they are of */
  gpu_ranks *g = gpu_begin(2, 2, 8192);
  gpu_call same = {.coll = HK_ALLREDUCE, .count = 1500, .type = ncclFloat32, .op = ncclSum};
  for (int i = 0; i < 2; i++) gpu_group(g, &same);
  for (int r = 0; r < 2; r++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = 1500 + 100 * (size_t)r, .type = ncclFloat32, .op = ncclSum};
    OK_NCCL(gpu_submit(g, &c, r));
  }
  ncclResult_t code[2] = {ncclSuccess, ncclSuccess};
  for (int i = 0; i < 5000 && (!code[0] || !code[1]); i++) {
    for (int r = 0; r < 2; r++) OK_NCCL(ncclCommGetAsyncError(g->comm[r], &code[r]));
    usleep(1000);
  }
  ck_assert(code[0] == ncclInvalidUsage && code[1] == ncclInvalidUsage);
  ck_assert_str_eq(ncclGetLastError(g->comm[0]), ncclGetLastError(g->comm[1]));
  SAYS(ncclGetLastError(g->comm[0]), "operation 3: rank 1 called AllReduce(1600 x float, sum), but rank 0 called "
                                     "AllReduce(1500 x float, sum)");
  gpu_wait(g);
}

/* Over protocols whose messages say nothing, and of an operation that is over on one rank: the watchdog compares the
 * calls. */
TEST(mismatch_unseen) {
  setenv("NCCL_PROTO", "LL", 1);
  setenv("HOCKET_WATCHDOG", "1", 1);
  gpu_ranks *g = gpu_begin(3, 3, 8192);
  gpu_call c = {.coll = HK_BROADCAST, .count = 64, .type = ncclFloat32};
  gpu_group(g, &c);
  for (int r = 0; r < 3; r++) {
    c = (gpu_call){.coll = HK_ALLREDUCE, .count = r == 2 ? 100 : 1000, .type = ncclFloat32, .op = ncclSum};
    OK_NCCL(gpu_submit(g, &c, r));
  }
  for (int r = 0; r < 3; r++) {
    ck_assert_int_eq(wait_for_error(g->comm[r]), ncclInvalidUsage);
    SAYS(ncclGetLastError(g->comm[r]), "operation 2: rank 2 called AllReduce(100 x float, sum), but ranks 0 and 1 "
                                       "called AllReduce(1000 x float, sum)");
  }
  gpu_wait(g);
}

/* Replays of a graph are not counted, so the numbers of operations say nothing: no rank is accused by them. */
TEST(mismatch_after_graph) {
  gpu_ranks *g = gpu_begin(2, 2, 8192);
  for (int captures = 1; captures >= 0; captures--) {
    hk_gpu_of(g->comm[0])->order->captures = captures;
    hk_watch_enqueued(g->comm[0], &(hk_call){.coll = HK_BROADCAST, .count = 5}, !captures);
    for (int i = 0; i < 2; i++) {
      gpu_call c = {.coll = i ? HK_ALLREDUCE : HK_BROADCAST, .count = 100, .type = ncclFloat32, .op = ncclSum};
      gpu_group(g, &c);
      gpu_wait(g);
    }
    ck_assert((hk_mismatch_look_back(g->comm[1]) == HK_ERR_USAGE) == !captures);
  }
  ck_assert_int_eq(wait_for_error(g->comm[0]), ncclInvalidUsage);
}

/* A launch that is refused is an error of the call, and the other rank's kernel does not wait for ever. */
TEST(launch_fails) {
  gpu_fail_nth("CUDAEMU_FAIL_LAUNCH", 2, 2);
  gpu_ranks *g = gpu_begin(2, 2, 8192);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  OK_NCCL(gpu_submit(g, &c, 0));
  ck_assert_int_eq(gpu_submit(g, &c, 1), ncclUnhandledCudaError);
  ck_assert_int_eq(wait_for_error(g->comm[0]), ncclRemoteError);
  gpu_wait(g);
}

/* A kernel that dies: the device is lost, which its rank finds at the next query; the others are notified. */
TEST_LOOP(kernel_fails, 2) {
  only_network(_i);
  gpu_fail_nth("CUDAEMU_FAIL_KERNEL", 1, 2);
  gpu_ranks g; /* whose first device is lost */
  gpu_open(&g, 2, 2, 8192);
  gpu_init_all(&g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  ncclResult_t rc = gpu_submit(&g, &c, 0);
  ck_assert(rc == ncclSuccess || rc == ncclUnhandledCudaError); /* the kernel may die before its call has returned */
  ck_assert_int_eq(wait_for_error(g.comm[0]), ncclUnhandledCudaError);
  (void)gpu_submit(&g, &c, 1); /* before or after the news */
  ck_assert_int_eq(wait_for_error(g.comm[1]), ncclRemoteError);
  emu_use(1);
  OK(StreamSynchronize(g.stream[1]));
  for (int r = 0; r < 2; r++) OK_NCCL(ncclCommAbort(g.comm[r]));
}

/* Work whose peer never comes is reported, and is an error if the parameter says so. */
TEST_LOOP(watchdog, 2) {
  only_network(_i);
  setenv("HOCKET_WATCHDOG", "1", 1);
  setenv("HOCKET_WATCHDOG_ABORT", "1", 1);
  gpu_ranks *g = gpu_begin(2, 2, 8192);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  OK_NCCL(gpu_submit(g, &c, 0));
  char links[8];
  for (char who[8] = ""; getenv("NCCL_SHM_DISABLE") && !who[0]; usleep(1000)) /* until the kernel stands still */
    hk_gpu_proxy_report(hk_gpu_of(g->comm[0])->links->proxy, who, sizeof who, links, sizeof links);
  ck_assert_int_eq(wait_for_error(g->comm[0]), ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(g->comm[0]), "has not ended for 1 s"));
  if (getenv("NCCL_SHM_DISABLE"))
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(g->comm[0]), "waits for data over the network from rank 1"));
  gpu_wait(g);
}

/* Destroys with work still queued, in any order. */
TEST_LOOP(ends, 2) {
  only_network(_i);
  for (int order = 0; order < 3; order++) {
    gpu_ranks *g = gpu_begin(2, 1 + order % 2, 1 << 16);
    gpu_call c = {.coll = HK_ALLGATHER, .count = 4000, .type = ncclFloat32};
    gpu_fill(g, &c);
    for (int i = 0; i < 3; i++) gpu_group(g, &c);
    if (order == 1)
      for (int r = 0; r < 2; r++) OK_NCCL(ncclCommFinalize(g->comm[r]));
    for (int r = 0; r < 2; r++) {
      int which = order == 2 ? 1 - r : r;
      OK_NCCL(ncclCommDestroy(g->comm[which]));
      g->comm[which] = NULL;
    }
    gpu_check(g, &c);
    gpu_close(g);
  }
}

/* One-sided operations, also after the communicator was suspended: by the proxies, where only the network joins the
 * GPUs. */
TEST_LOOP(one_sided, 2) {
  only_network(_i);
  enum { RANKS = 3, BYTES = 140000 };
  gpu_ranks g;
  char *memory[RANKS];
  static char data[BYTES];
  ncclWindow_t window[RANKS];
  gpu_open(&g, RANKS, RANKS, 1 << 18);
  /* Signal tables of communicators that ended lately are kept for a while. */
  if (getenv("NCCL_SHM_DISABLE")) gpu_held_before[EMU_FILES] += RANKS;
  gpu_init_all(&g);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    emu_use(r);
    OK_NCCL(ncclMemAlloc((void **)&memory[r], 1 << 18));
    OK_NCCL(ncclCommWindowRegister(g.comm[r], memory[r], 1 << 18, &window[r], NCCL_WIN_COLL_SYMMETRIC));
  }
  OK_NCCL(ncclGroupEnd());
  for (int round = 0; round < 4; round++) {
    for (int r = 0; r < RANKS; r++) {
      cudaStream_t s = (cudaStream_t)(void *)g.stream[r];
      ncclWaitSignalDesc_t d = {.opCnt = 2, .peer = (r + RANKS - 1) % RANKS};
      emu_use(r);
      OK(MemsetD8Async(g.in[r], (unsigned char)(10 * round + r), BYTES, g.stream[r]));
      OK_NCCL(ncclGroupStart());
      OK_NCCL(ncclWaitSignal(1, &d, g.comm[r], s));
      OK_NCCL(ncclPutSignal((void *)(uintptr_t)g.in[r], BYTES, ncclInt8, (r + 1) % RANKS, window[r], 100, 0, 0, 0,
                            g.comm[r], s));
      OK_NCCL(ncclSignal((r + 1) % RANKS, 0, 0, 0, g.comm[r], s));
      OK_NCCL(ncclGroupEnd());
    }
    gpu_wait(&g);
    for (int r = 0; r < RANKS; r++) {
      emu_use(r);
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)data, (CUdeviceptr)(uintptr_t)memory[r] + 100, BYTES, g.stream[r]));
      OK(StreamSynchronize(g.stream[r]));
      suite_all(i, BYTES, data[i] == 10 * round + (r + RANKS - 1) % RANKS);
    }
    for (int suspend = 1; suspend >= 0 && round == 1; suspend--) gpu_suspend_all(&g, suspend);
    gpu_call c = {.coll = HK_ALLREDUCE, .count = 300, .type = ncclFloat32, .op = ncclSum};
    gpu_try(&g, &c);
  }
  for (int r = 0; r < RANKS; r++) {
    OK_NCCL(ncclCommWindowDeregister(g.comm[r], window[r]));
    OK_NCCL(ncclMemFree(memory[r]));
  }
  gpu_close(&g);
}

/* No memory on the device at any step of init: an error in words, and nothing is left. */
TEST_LOOP(no_memory, 4) {
  gpu_ranks g;
  char text[16];
  snprintf(text, sizeof text, "%d", _i + 5); /* four buffers are the test's */
  setenv("CUDAEMU_FAIL_ALLOC", text, 1);
  gpu_open(&g, 2, 2, 8192);
  ncclResult_t rc = ncclCommInitAll(g.comm, 2, g.device);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  if (rc == ncclSuccess) {
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; r++) OK_NCCL(gpu_submit(&g, &c, r));
    rc = ncclGroupEnd();
    gpu_wait(&g);
  } else {
    g.comm[0] = g.comm[1] = NULL;
  }
  ck_assert_int_eq(rc == ncclUnhandledCudaError || rc == ncclRemoteError, 1);
  gpu_close(&g);
}

int main(void) { return gpu_main("gpu_life", .timeout = 100); }
