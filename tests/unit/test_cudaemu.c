/* SPDX-License-Identifier: Apache-2.0 */
/* check: waits long=tsan */
/* The emulated CUDA driver: what it is strict about, its faults on demand, and the order of streams. What all calls do
 * when nothing is wrong, the tests of GPUs show. */
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include "../support/gpu.h"
#include "../support/suite.h"

static void nap(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}
/* A host function that waits until the test lets it go. */
typedef struct gate {
  int open, passed;
} gate;
static void pass_gate(void *arg) {
  gate *g = arg;
  while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE)) nap(1);
  __atomic_store_n(&g->passed, 1, __ATOMIC_RELEASE);
}
static void count_up(void *arg) { __atomic_add_fetch((int *)arg, 1, __ATOMIC_ACQ_REL); }
static int value_of(int *x) { return __atomic_load_n(x, __ATOMIC_ACQUIRE); }
static void let_go(gate *g) { __atomic_store_n(&g->open, 1, __ATOMIC_RELEASE); }

START_TEST(memory_and_pointers) {
  emu_start(2);
  char text[1000], back[1000];
  CUdeviceptr p = emu_alloc(1000), base, q;
  size_t bytes, free_before, free_after, total;
  memset(text, 'x', sizeof text);
  OK(MemcpyAsync(p, (CUdeviceptr)(uintptr_t)text, 1000, NULL));
  emu_read(back, p, 1000);
  ck_assert_mem_eq(text, back, 1000);
  OK(MemGetAddressRange(&base, &bytes, p + 999));
  ck_assert(base == p && bytes == 1000);
  FAILS(CUDA_ERROR_INVALID_VALUE, MemcpyAsync(p, p, 1001, NULL));
  int ordinal = -7;
  unsigned type;
  OK(PointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  ck_assert_int_eq(ordinal, 0);
  FAILS(CUDA_ERROR_INVALID_VALUE,
        PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)text));
  int which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void *values[] = {&type};
  OK(PointerGetAttributes(1, which, values, (CUdeviceptr)(uintptr_t)text));
  ck_assert_uint_eq(type, 0);
  OK(MemHostRegister(text, sizeof text, CU_MEMHOSTREGISTER_DEVICEMAP));
  FAILS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, MemHostRegister(text + 10, 10, 0));
  OK(PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)text));
  ck_assert_uint_eq(type, CU_MEMORYTYPE_HOST);
  OK(MemHostUnregister(text));
  OK(MemGetInfo(&free_before, &total));
  OK(MemFree(p));
  OK(MemGetInfo(&free_after, &total));
  ck_assert_uint_gt(free_after, free_before);
  FAILS(CUDA_ERROR_INVALID_VALUE, MemFree(p));
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, MemAlloc(&q, total + 1));
}
END_TEST

/* The legacy stream and blocking streams wait for each other; non-blocking ones for nobody. */
START_TEST(legacy_order) {
  emu_start(1);
  CUstream blocking = emu_new_stream(CU_STREAM_DEFAULT), non = emu_new_stream(CU_STREAM_NON_BLOCKING);
  for (int first = 0; first < 3; first++) {
    CUstream from = first == 0 ? NULL : first == 1 ? blocking : CU_STREAM_PER_THREAD;
    CUstream to = first == 0 ? blocking : NULL;
    gate g = {0, 0};
    int n = 0, free_n = 0;
    OK(LaunchHostFunc(from, pass_gate, &g));
    OK(LaunchHostFunc(to, count_up, &n));
    OK(LaunchHostFunc(non, count_up, &free_n));
    OK(StreamSynchronize(non));
    ck_assert_int_eq(value_of(&free_n), 1);
    FAILS(CUDA_ERROR_NOT_READY, StreamQuery(to));
    ck_assert_int_eq(value_of(&n), 0);
    let_go(&g);
    OK(StreamSynchronize(to));
    ck_assert_int_eq(value_of(&n), 1);
    ck_assert_int_eq(value_of(&g.passed), 1);
  }
}
END_TEST

START_TEST(barriers_and_warps) {
  setenv("CUDAEMU_SEED", _i ? "17" : "0", 1);
  emu_start(1);
  enum { THREADS = 96, BLOCKS = 3, ROUNDS = 5 };
  uint32_t out[BLOCKS * THREADS], expected = 0;
  CUdeviceptr p = emu_alloc(3 * sizeof out);
  CUstream s = emu_new_stream(CU_STREAM_NON_BLOCKING);
  barriers_params b = {(uint32_t *)(uintptr_t)p, ROUNDS};
  emu_launch(emu_kernel("barriers"), BLOCKS, THREADS, &b, s);
  OK(StreamSynchronize(s));
  emu_read(out, p, sizeof out);
  for (uint32_t r = 0; r < ROUNDS; r++)
    for (uint32_t i = 0; i < THREADS; i++) expected += i + r;
  for (int i = 0; i < BLOCKS * THREADS; i++) ck_assert_uint_eq(out[i], i % THREADS < THREADS / 2 ? 0 : expected + 1);
  warps_params w = {(uint32_t *)(uintptr_t)p};
  emu_launch(emu_kernel("warps"), 1, THREADS, &w, s);
  OK(StreamSynchronize(s));
  emu_read(out, p, 3 * THREADS * 4);
  for (unsigned i = 0; i < THREADS; i++) {
    ck_assert_uint_eq(out[3 * i], i ^ 1);
    ck_assert_uint_eq(out[3 * i + 1], 0xaaaaaaaau);
    ck_assert_uint_eq(out[3 * i + 2], 1);
  }
}
END_TEST

/* Stores that nothing orders are seen late: a missing fence shows. */
START_TEST(a_missing_fence_shows) {
  setenv("CUDAEMU_WEAK", "1", 1);
  emu_start(1);
  CUdeviceptr memory = emu_alloc(65536);
  uint32_t stale[2] = {0, 0};
  CUstream s[2] = {emu_new_stream(CU_STREAM_NON_BLOCKING), emu_new_stream(CU_STREAM_NON_BLOCKING)};
  for (uint32_t round = 1; round <= 20; round++) {
    publish_params p = {(hk_vec *)(uintptr_t)(memory + 4096),
                        (uint32_t *)(uintptr_t)memory,
                        (uint32_t *)(uintptr_t)(memory + 64),
                        100,
                        round,
                        round % 2};
    emu_launch(emu_kernel("observe"), 1, 1, &p, s[0]);
    emu_launch(emu_kernel("publish"), 1, 32, &p, s[1]);
    OK(StreamSynchronize(s[0]));
    OK(StreamSynchronize(s[1]));
    stale[round % 2] += emu_word(memory + 64);
  }
  ck_assert_uint_gt(stale[0], 0);
  ck_assert_uint_eq(stale[1], 0);
}
END_TEST

START_TEST(halves_convert_back) {
  emu_start(1);
  static uint16_t back[65536];
  CUdeviceptr p = emu_alloc(sizeof back);
  halves_params h = {(uint16_t *)(uintptr_t)p};
  emu_launch(emu_kernel("halves"), 1, 64, &h, NULL);
  emu_read(back, p, sizeof back);
  suite_all(i, 65536, back[i] == ((i & 0x7c00) == 0x7c00 && (i & 0x3ff) ? 0x7fff : i));
}
END_TEST

START_TEST(a_stuck_kernel_fails) {
  emu_start(1);
  barriers_params b = {NULL, 0};
  CUstream s = emu_new_stream(CU_STREAM_NON_BLOCKING);
  emu_launch(emu_kernel("stuck"), 1, 64, &b, s);
  OK(StreamQuery(CU_STREAM_PER_THREAD)); /* no error before it has happened */
  FAILS(CUDA_ERROR_LAUNCH_FAILED, StreamSynchronize(s));
  CUdeviceptr p;
  FAILS(CUDA_ERROR_LAUNCH_FAILED, MemAlloc(&p, 8)); /* the context is lost */
}
END_TEST

START_TEST(faults_on_demand) {
  setenv("CUDAEMU_FAIL_ALLOC", "3", 1);
  setenv("CUDAEMU_FAIL_LAUNCH", "2", 1);
  setenv("CUDAEMU_PEER", "010,100,001", 1);
  emu_start(3);
  CUdeviceptr p = emu_alloc(64), q = emu_alloc(64), r;
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, MemAlloc(&r, 64));
  OK(MemAlloc(&r, 64));
  ck_assert(p != q && q != r);
  int can;
  OK(DeviceCanAccessPeer(&can, 0, 1));
  ck_assert_int_eq(can, 1);
  OK(DeviceCanAccessPeer(&can, 0, 2));
  ck_assert_int_eq(can, 0);
  CUcontext two = emu_use(2);
  emu_use(0);
  FAILS(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CtxEnablePeerAccess(two, 0));
  warps_params w = {(uint32_t *)(uintptr_t)emu_alloc(4096)};
  void *params[] = {&w};
  emu_launch(emu_kernel("warps"), 1, 32, &w, NULL);
  FAILS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        LaunchKernel(emu_kernel("warps"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
  OK(StreamSynchronize(NULL));
}
END_TEST

/* A process that does what it must not ends by a signal (or by a sanitizer's exit code). */
static int fate(void (*act)(void)) {
  int status;
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    fclose(stderr);
    act();
    _exit(0);
  }
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  return status;
}
static void touch_from_host(void) {
  emu_start(1);
  *(volatile char *)(uintptr_t)emu_alloc(100) = 1;
}
static void touch_from_device(void) {
  emu_start(1);
  warps_params w = {(uint32_t *)(uintptr_t)emu_alloc(3 * 32 * 4)};
  emu_launch(emu_kernel("warps"), 1, 32, &w, NULL);
  OK(StreamSynchronize(NULL));
}
static void overrun_on_device(void) {
  emu_start(1);
  warps_params w = {(uint32_t *)(uintptr_t)emu_alloc(256)};
  emu_launch(emu_kernel("warps"), 1, 32, &w, NULL);
  OK(StreamSynchronize(NULL));
}
START_TEST(strictly_the_host_keeps_off) {
  setenv("CUDAEMU_STRICT", "1", 1);
  ck_assert_int_ne(fate(touch_from_host), 0);
  ck_assert_int_eq(fate(touch_from_device), 0);
  ck_assert_int_ne(fate(overrun_on_device), 0);
}
END_TEST

/* Two streams of one hardware queue: what stands behind a wait there begins when the wait is over, of whichever stream
 * it is. */
START_TEST(hardware_queues) {
  setenv("CUDAEMU_CONNECTIONS", "8", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", _i ? "32" : "1", 1);
  emu_start(1);
  CUdeviceptr words = emu_alloc(8);
  CUstream first = emu_new_stream(CU_STREAM_NON_BLOCKING), second = emu_new_stream(CU_STREAM_NON_BLOCKING);
  OK(StreamWaitValue32(first, words, 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(StreamWriteValue32(second, words + 4, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  if (_i) {
    OK(StreamSynchronize(second));
  } else {
    usleep(20000); /* it cannot be done, however long this takes */
    FAILS(CUDA_ERROR_NOT_READY, StreamQuery(second));
  }
  FAILS(CUDA_ERROR_NOT_READY, StreamQuery(first));
  __atomic_store_n((uint32_t *)(uintptr_t)words, 1, __ATOMIC_RELEASE);
  OK(StreamSynchronize(first));
  OK(StreamSynchronize(second));
  OK(StreamDestroy(first));
  OK(StreamDestroy(second));
  OK(MemFree(words));
}
END_TEST

/* A call that has to wait inside of the context (for a place in a stream's queue, or for local memory) holds up another
 * thread's, also in another stream. */
enum { LAUNCHES = 8, MANY = 100000 };
typedef struct caller {
  CUcontext ctx;
  CUstream stream;
  CUfunction kernel;
  void *params;
  int launches, done;
} caller;
static void *launch_all(void *arg) {
  caller *c = arg;
  OK(CtxSetCurrent(c->ctx));
  for (int i = 0; i < __atomic_load_n(&c->launches, __ATOMIC_RELAXED); i++) {
    emu_launch(c->kernel, 1, 32, c->params, c->stream);
    __atomic_add_fetch(&c->done, 1, __ATOMIC_ACQ_REL);
  }
  return NULL;
}
enum { FULL_QUEUE, LOCAL_MEMORY };
START_TEST(calls_wait_inside) {
  gate g = {0, 0};
  pthread_t first, second;
  setenv("CUDAEMU_QUEUE", _i == FULL_QUEUE ? "4" : "1000", 1);
  setenv("CUDAEMU_LOCAL_BYTES", _i == LOCAL_MEMORY ? "1100" : "0", 1);
  emu_start(1);
  warps_params w = {(uint32_t *)(uintptr_t)emu_alloc(4096)};
  CUfunction small = emu_kernel("warps"), large = emu_kernel("warps"); /* the later one needs more */
  int bytes = 0, before = -1;
  OK(FuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, large));
  ck_assert_int_eq(bytes, _i == LOCAL_MEMORY ? 1116 : 0);
  CUstream a = emu_new_stream(CU_STREAM_NON_BLOCKING), b = emu_new_stream(CU_STREAM_NON_BLOCKING);
  caller x = {emu_use(0), a, large, &w, LAUNCHES, 0}, y = {emu_use(0), b, small, &w, MANY, 0};
  emu_launch(small, 1, 32, &w, a);
  OK(StreamSynchronize(a));
  OK(LaunchHostFunc(a, pass_gate, &g));
  ck_assert_int_eq(pthread_create(&first, NULL, launch_all, &x), 0);
  ck_assert_int_eq(pthread_create(&second, NULL, launch_all, &y), 0);
  for (int now; (now = value_of(&y.done)) != before && now < MANY; before = now) nap(100);
  ck_assert_int_eq(value_of(&x.done), _i == FULL_QUEUE ? 3 : 0);
  ck_assert_int_lt(value_of(&y.done), MANY);
  let_go(&g);
  pthread_join(first, NULL);
  __atomic_store_n(&y.launches, 0, __ATOMIC_RELAXED);
  pthread_join(second, NULL);
  ck_assert_int_eq(value_of(&x.done), LAUNCHES);
  OK(StreamSynchronize(a));
  OK(StreamSynchronize(b));
  OK(StreamDestroy(a));
  OK(StreamDestroy(b));
}
END_TEST

/* ---- graphs ---- */

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

int main(void) {
  TCase *t = tcase_create("driver");
  tcase_add_test(t, memory_and_pointers);
  tcase_add_test(t, legacy_order);
  tcase_add_loop_test(t, hardware_queues, 0, 2);
  tcase_add_test(t, what_captures_forbid);
  tcase_add_test(t, existing_edges);
  if (emu_has_kernels()) {
    tcase_add_loop_test(t, barriers_and_warps, 0, 2);
    tcase_add_test(t, a_missing_fence_shows);
    tcase_add_test(t, halves_convert_back);
    tcase_add_test(t, a_stuck_kernel_fails);
    tcase_add_test(t, faults_on_demand);
    tcase_add_test(t, strictly_the_host_keeps_off);
    tcase_add_loop_test(t, calls_wait_inside, FULL_QUEUE, LOCAL_MEMORY + 1);
  }
  return suite_run_one("cudaemu", t);
}
