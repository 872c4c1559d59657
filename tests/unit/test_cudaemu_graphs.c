/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated CUDA driver: captures, graphs, and memory of other processes. */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "../support/gpu.h"
#include "../support/suite.h"

static void count_up(void *arg) { __atomic_add_fetch((int *)arg, 1, __ATOMIC_ACQ_REL); }
static int value_of(int *x) { return __atomic_load_n(x, __ATOMIC_ACQUIRE); }

/* Branches over two streams, replayed with other data each time, destroyed while they run. */
START_TEST(capture_and_replay) {
  emu_start(1);
  CUstream a = emu_new_stream(CU_STREAM_NON_BLOCKING), b = emu_new_stream(CU_STREAM_DEFAULT);
  CUdeviceptr in = emu_alloc(64), left = emu_alloc(64), right = emu_alloc(64), out = emu_alloc(128);
  CUevent fork_event, join_event;
  CUgraph graph;
  CUgraphExec exec;
  int calls = 0, gone = 0, status;
  CUuserObject object;
  OK(EventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  OK(EventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
  OK(StreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(MemcpyAsync(left, in, 64, a));
  OK(EventRecord(fork_event, a));
  OK(StreamWaitEvent(b, fork_event, 0));
  OK(StreamGetCaptureInfo(b, &status, NULL, NULL, NULL, NULL));
  ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(MemcpyAsync(right, left, 64, b));
  OK(LaunchHostFunc(b, count_up, &calls));
  OK(MemcpyAsync(out, left, 64, a));
  OK(EventRecord(join_event, b));
  OK(StreamWaitEvent(a, join_event, 0));
  OK(MemcpyAsync(out + 64, right, 64, a));
  OK(StreamEndCapture(a, &graph));
  OK(UserObjectCreate(&object, &gone, count_up, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(GraphInstantiateWithFlags(&exec, graph, 0));
  OK(GraphDestroy(graph));
  ck_assert_int_eq(value_of(&calls), 0);
  for (int i = 1; i <= 500; i++) {
    unsigned char got[128], want[128];
    memset(want, i & 255, sizeof want);
    OK(MemsetD8Async(in, (unsigned char)(i & 255), 64, a));
    OK(GraphLaunch(exec, a));
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)got, out, 128, a));
    OK(StreamSynchronize(a));
    ck_assert_mem_eq(got, want, 128);
  }
  for (int i = 0; i < 20; i++) OK(GraphLaunch(exec, i % 2 ? a : b));
  OK(GraphExecDestroy(exec));
  OK(StreamSynchronize(a));
  OK(StreamSynchronize(b));
  ck_assert_int_eq(value_of(&calls), 520);
  for (int i = 0; i < 1000 && !value_of(&gone); i++) usleep(1000);
  ck_assert_int_eq(value_of(&gone), 1);
  OK(EventDestroy(fork_event));
  OK(EventDestroy(join_event));
}
END_TEST

START_TEST(captured_kernels) {
  emu_start(1);
  CUstream s = emu_new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr p = emu_alloc(4096);
  CUgraph graph;
  CUgraphExec exec;
  uint32_t out[96];
  warps_params w = {(uint32_t *)(uintptr_t)p};
  CUfunction f = emu_kernel("warps");
  OK(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  emu_launch(f, 1, 32, &w, s);
  w.out = NULL; /* taken at the call */
  OK(StreamEndCapture(s, &graph));
  OK(GraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 50; i++) {
    OK(MemsetD8Async(p, 0, 4096, s));
    OK(GraphLaunch(exec, s));
  }
  OK(StreamSynchronize(s));
  emu_read(out, p, sizeof out);
  for (unsigned i = 0; i < 32; i++) ck_assert_uint_eq(out[3 * i], i ^ 1);
  OK(GraphExecDestroy(exec));
  OK(GraphDestroy(graph));
}
END_TEST

START_TEST(what_captures_forbid) {
  emu_start(1);
  CUstream s = emu_new_stream(CU_STREAM_DEFAULT), other = emu_new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  CUdeviceptr p;
  CUevent e;
  int n = 0, mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(EventCreate(&e, 0));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, StreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, LaunchHostFunc(NULL, count_up, &n));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, LaunchHostFunc(s, count_up, &n));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));
  OK(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(ThreadExchangeStreamCaptureMode(&mode));
  OK(MemAlloc(&p, 64)); /* the thread says that it knows what it does */
  OK(ThreadExchangeStreamCaptureMode(&mode));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, MemAlloc(&p, 64));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));
  OK(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(EventRecord(e, s));
  OK(StreamWaitEvent(other, e, 0));
  OK(LaunchHostFunc(other, count_up, &n));
  FAILS(904, StreamEndCapture(s, &graph)); /* nobody joined the other stream's work */
  OK(LaunchHostFunc(other, count_up, &n));
  OK(StreamSynchronize(other));
  ck_assert_int_eq(value_of(&n), 1);
  OK(EventDestroy(e));
}
END_TEST

/* An edge that is there cannot be added again. */
START_TEST(existing_edges) {
  emu_start(1);
  CUstream s = emu_new_stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph;
  CUevent e;
  CUgraphNode node;
  const CUgraphNode *ends;
  size_t n;
  int status;
  OK(EventCreate(&e, 0));
  OK(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(LaunchHostFunc(s, count_up, &status));
  OK(StreamGetCaptureInfo(s, &status, NULL, &graph, &ends, &n));
  OK(GraphAddEventRecordNode(&node, graph, ends, n, e));
  FAILS(CUDA_ERROR_INVALID_VALUE, GraphAddDependencies(graph, ends, &node, 1));
  OK(LaunchHostFunc(s, count_up, &status));
  OK(StreamGetCaptureInfo(s, &status, NULL, &graph, &ends, &n));
  OK(GraphAddDependencies(graph, ends, &node, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, GraphAddDependencies(graph, ends, &node, 1));
  OK(StreamEndCapture(s, &graph));
  OK(GraphDestroy(graph));
  OK(EventDestroy(e));
}
END_TEST

/* ---- other processes ---- */

static void send_fd(int to, int fd, const void *data, size_t bytes) {
  char control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {(void *)(uintptr_t)data, bytes};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  ck_assert_int_eq(sendmsg(to, &m, 0), (ssize_t)bytes);
}
static int receive_fd(int from, void *data, size_t bytes) {
  char control[CMSG_SPACE(sizeof(int))];
  struct iovec v = {data, bytes};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  int fd = -1;
  ck_assert_int_eq(recvmsg(from, &m, 0), (ssize_t)bytes);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}
enum { GRANULE = 2 << 20 };
static const CUmemAllocationProp exportable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUdeviceptr map(CUmemGenericAllocationHandle h) {
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at;
  OK(MemAddressReserve(&at, GRANULE, 0, 0, 0));
  OK(MemMap(at, GRANULE, 0, h, 0));
  OK(MemSetAccess(at, GRANULE, &access, 1));
  return at;
}

/* Two processes' kernels hand a number on through memory of one of them. */
static void rank(unsigned me, int peer) {
  CUmemGenericAllocationHandle h;
  CUipcMemHandle ipc;
  CUdeviceptr flags, counts;
  uint64_t one = 1;
  int fd;
  emu_start(1);
  if (me == 0) {
    counts = emu_alloc(4096);
    OK(IpcGetMemHandle(&ipc, counts));
    OK(MemCreate(&h, GRANULE, &exportable, 0));
    OK(MemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_fd(peer, fd, &ipc, sizeof ipc);
  } else {
    fd = receive_fd(peer, &ipc, sizeof ipc);
    OK(MemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(IpcOpenMemHandle(&counts, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }
  flags = map(h);
  if (me == 0) OK(MemcpyAsync(flags, (CUdeviceptr)(uintptr_t)&one, 8, NULL));
  pass_on_params p = {(uint64_t *)(uintptr_t)flags,
                      (uint64_t *)(uintptr_t)counts,
                      (uint32_t *)(uintptr_t)(flags + 4096),
                      100,
                      2 * me,
                      4};
  emu_launch(emu_kernel("pass_on"), 2, 32, &p, NULL);
  OK(StreamSynchronize(NULL));
  char done = 'd';
  ck_assert_int_eq(write(peer, &done, 1), 1);
  ck_assert_int_eq(read(peer, &done, 1), 1);
  for (unsigned i = 0; i < 4; i++) ck_assert_uint_eq(emu_word(counts + 8 * i), 100);
  if (me == 1) OK(IpcCloseMemHandle(counts));
  ck_assert_int_eq(write(peer, &done, 1), 1); /* nobody leaves while the other looks */
  ck_assert_int_eq(read(peer, &done, 1), 1);
}
START_TEST(two_processes) {
  int pair[2], status;
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    rank(1, pair[1]);
    _exit(0);
  }
  rank(0, pair[0]);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  close(pair[0]);
  close(pair[1]);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("graphs");
  tcase_add_test(t, capture_and_replay);
  if (emu_has_kernels()) {
    tcase_add_test(t, captured_kernels);
    tcase_add_test(t, two_processes);
  }
  tcase_add_test(t, what_captures_forbid);
  tcase_add_test(t, existing_edges);
  return suite_run_one("cudaemu_graphs", t);
}
