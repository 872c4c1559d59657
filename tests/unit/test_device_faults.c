/* SPDX-License-Identifier: Apache-2.0 */
/* The device of CUDA when the driver refuses a call: each call of each operation once. The operation reports it, or
 * does without; what it has made so far is given back, and the thread's context and capture mode are as before.  What
 * the driver refuses to take back would be a leak to ASan.
 * check: timeout=120 notsan noasan */
#include "../../src/device/device.h"
#include "../support/driver_calls.h"
#include "../support/golden.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { SMALL = 5000, LARGE = 3 << 20 };
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    hk_status now = (call);                                                                                            \
    if (rc == HK_OK) rc = now;                                                                                         \
  } while (0)

/* ---- operations: each gives back all that it got, whatever failed ---- */

/* Nothing is under way on the device any more, though a wait was refused. */
static void settle(const hk_device *d) {
  CUcontext its;
  OK(CtxPushCurrent(((const hk_cuda *)d)->context));
  OK(CtxSynchronize());
  OK(CtxPopCurrent(&its));
}
static hk_status use_memory(hk_device *d, hk_status rc, hk_memory *m) {
  char byte = 1;
  if (rc == HK_OK) TRY(d->ops->copy(d, m->base, &byte, 1, NULL));
  if (rc == HK_OK) TRY(d->ops->wait(d, NULL));
  settle(d);
  TRY(d->ops->memory->release(d, m));
  return rc;
}
/* A failed operation leaves nothing to release, whatever was in it. */
static hk_memory *spoilt(hk_memory *m) {
  memset(m, 0x5a, sizeof *m);
  return m;
}
static hk_status allocate(hk_device *d) {
  static const size_t sizes[] = {SMALL, LARGE};
  hk_status rc = HK_OK;
  for (int i = 0; i < 2; i++) {
    hk_memory m = {0};
    rc = use_memory(d, d->ops->memory->alloc(d, sizes[i], spoilt(&m)), &m);
    if (rc != HK_OK) break;
    rc = use_memory(d, d->ops->memory->alloc_open(d, sizes[i], 16, spoilt(&m)), &m);
    if (rc != HK_OK) break;
  }
  return rc;
}
static hk_status share(hk_device *d) {
  hk_memory m = {0}, there = {0};
  hk_memory_share s = {.fd = -1};
  uintptr_t begin;
  hk_status rc = d->ops->memory->alloc_shared(d, LARGE, 1, true, spoilt(&m));
  if (rc == HK_OK) TRY(d->ops->share->offer(d, &m, &s));
  if (rc == HK_OK) TRY(d->ops->share->open(d, &s, spoilt(&there)));
  if (rc == HK_OK) ck_assert_ptr_ne(there.base, m.base);
  TRY(d->ops->memory->release(d, &there));
  if (s.fd >= 0) close(s.fd);
  s.fd = -1;
  if (rc == HK_OK) TRY(d->ops->share->offer_address(d, (char *)m.base + 100, &s, &begin));
  if (rc == HK_OK) ck_assert_uint_eq(begin, (uintptr_t)m.base);
  if (s.fd >= 0) close(s.fd);
  TRY(d->ops->memory->release(d, &m));
  return rc;
}
static hk_status pinned(hk_device *d) {
  static _Alignas(4096) char page[4096];
  hk_memory m = {0};
  hk_status rc = use_memory(d, d->ops->memory->alloc_host(d, SMALL, spoilt(&m)), &m);
  if (rc == HK_OK) rc = use_memory(d, d->ops->memory->alloc_host_late(d, SMALL, spoilt(&m)), &m);
  if (rc == HK_OK) rc = use_memory(d, d->ops->memory->pin(d, page, sizeof page, spoilt(&m)), &m);
  (void)cu.MemHostUnregister(page); /* if it could not be given back: the next run pins it again */
  return rc;
}
static hk_status parked(hk_device *d) {
  hk_status rc = HK_OK;
  for (int i = 0; i < 3 && rc == HK_OK; i++) {
    hk_memory m = {0};
    rc = i == 0   ? d->ops->memory->alloc_shared(d, LARGE, 1, true, spoilt(&m))
         : i == 1 ? d->ops->memory->alloc_host(d, SMALL, spoilt(&m))
                  : d->ops->memory->alloc_host_late(d, SMALL, spoilt(&m));
    if (rc == HK_OK) TRY(d->ops->memory->park(d, &m));
    if (rc == HK_OK) TRY(d->ops->memory->unpark(d, &m, NULL, i ? 0 : 16, NULL));
    settle(d);
    TRY(d->ops->memory->release(d, &m));
  }
  return rc;
}
static hk_status placed(hk_device *d) {
  hk_memory m = {0}, here = {0};
  void *space = NULL;
  hk_status rc = d->ops->memory->alloc_shared(d, LARGE, 0, true, spoilt(&m));
  if (rc == HK_OK) TRY(d->ops->space->create(d, m.bytes, &space));
  if (rc == HK_OK) TRY(d->ops->space->place(d, space, m.bytes, m.base, -1, spoilt(&here)));
  TRY(d->ops->memory->release(d, &here));
  if (space) TRY(d->ops->space->free(d, space, m.bytes));
  TRY(d->ops->memory->release(d, &m));
  return rc;
}
static hk_status multicast(hk_device *d) {
  hk_memory own = {0}, all = {0};
  uint64_t object = 0;
  size_t bytes = LARGE;
  hk_status rc = d->ops->multicast->create(d, 1, &bytes, &object);
  if (rc == HK_OK) ck_assert_uint_eq(bytes % HK_DEVICE_GRANULE, 0);
  if (rc == HK_OK) TRY(d->ops->multicast->add(d, object));
  if (rc == HK_OK) TRY(d->ops->multicast->bind(d, object, bytes, 16, spoilt(&own), spoilt(&all)));
  if (rc == HK_OK) TRY(d->ops->memory->park(d, &all));
  if (rc == HK_OK) TRY(d->ops->memory->park(d, &own));
  if (rc == HK_OK) TRY(d->ops->memory->unpark(d, &own, NULL, 16, NULL));
  if (rc == HK_OK) TRY(d->ops->multicast->again(d, &own, &all));
  settle(d);
  TRY(d->ops->memory->release(d, &all));
  TRY(d->ops->memory->release(d, &own));
  if (object) TRY(d->ops->multicast->free(d, object));
  return rc;
}

/* One stream, another one, and that again: it keeps its own order. */
static hk_status in_order(hk_device *d) {
  hk_queue q[2] = {NULL, NULL};
  hk_queue_order order = {0};
  bool done = false;
  hk_status rc = HK_OK;
  for (int i = 0; i < 3 && rc == HK_OK; i++) {
    hk_queue *at = &q[i > 0];
    hk_queue_state s;
    if (i < 2) TRY(d->ops->stream->create(d, at));
    if (rc == HK_OK) TRY(d->ops->stream->state(d, *at, &s));
    if (rc == HK_OK) TRY(d->ops->order->begin(d, &order, *at, &s));
    if (rc == HK_OK) TRY(d->ops->order->end(d, &order, *at, &s));
    if (rc == HK_OK) TRY(d->ops->wait(d, *at));
  }
  if (rc == HK_OK) TRY(d->ops->order->done(d, &order, &done));
  if (rc == HK_OK) ck_assert(done);
  TRY(d->ops->order->free(d, &order));
  for (int i = 0; i < 2; i++) TRY(d->ops->stream->free(d, q[i]));
  return rc;
}

/* The time of nothing, twice: the marks are used again. */
static hk_status timed(hk_device *d) {
  hk_queue q = NULL;
  hk_queue_state s;
  void *begin = NULL, *end = NULL;
  bool done = true;
  uint64_t ns = 0;
  hk_status rc = d->ops->stream->create(d, &q);
  if (rc == HK_OK) TRY(d->ops->stream->state(d, q, &s));
  for (int i = 0; i < 2 && rc == HK_OK; i++) {
    TRY(d->ops->time->mark(d, &begin, q, &s));
    if (rc == HK_OK) TRY(d->ops->time->mark(d, &end, q, &s));
    if (rc == HK_OK) TRY(d->ops->wait(d, q));
    if (rc == HK_OK) TRY(d->ops->time->between(d, begin, end, &done, &ns));
    ck_assert(rc != HK_OK || (done && ns < 1000000000));
  }
  TRY(d->ops->time->free(d, begin));
  TRY(d->ops->time->free(d, end));
  TRY(d->ops->stream->free(d, q));
  return rc;
}

static int graphs_ended;
static void graph_ends(void *arg) {
  (void)arg;
  __atomic_add_fetch(&graphs_ended, 1, __ATOMIC_SEQ_CST);
}
static void nothing(void *arg) { (void)arg; }
/* Three pieces of a graph in one stream, and one in another stream of the same capture. */
static hk_status pieces(hk_device *d, hk_queue q[2], hk_queue_order *replay, hk_queue_order *order) {
  hk_status rc = HK_OK;
  hk_queue_state s = {0};
  for (int piece = 0; piece < 4 && rc == HK_OK; piece++) {
    hk_queue at = q[piece == 3];
    if (piece % 3 == 0) TRY(d->ops->stream->state(d, at, &s));
    if (rc == HK_OK) TRY(d->ops->graph->begin(d, replay, at, &s));
    if (rc == HK_OK) TRY(d->ops->order->begin(d, order, at, &s));
    OK(LaunchHostFunc(at, nothing, NULL));
    if (rc == HK_OK) TRY(d->ops->order->end(d, order, at, &s));
    if (rc == HK_OK) TRY(d->ops->graph->end(d, replay, at, &s));
  }
  if (rc == HK_OK) ck_assert(s.capturing && s.graph);
  return rc;
}
static hk_status captured(hk_device *d) {
  hk_queue q[2] = {NULL, NULL};
  hk_queue_order replay = {0}, order = {0};
  hk_queue_state s = {0};
  CUgraph graph = NULL;
  CUevent fork;
  bool kept = false;
  const int ended = graphs_ended;
  hk_status rc = HK_OK;
  for (int i = 0; i < 2; i++) TRY(d->ops->stream->create(d, &q[i]));
  OK(EventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  if (rc == HK_OK && cu.StreamBeginCapture(q[0], CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS) {
    OK(EventRecord(fork, q[0]));
    OK(StreamWaitEvent(q[1], fork, 0));
    rc = pieces(d, q, &replay, &order);
    if (rc == HK_OK) TRY(d->ops->stream->state(d, q[0], &s));
    if (rc == HK_OK) {
      kept = true;
      TRY(d->ops->graph->keep(d, &s, graph_ends, NULL));
    }
    OK(EventRecord(fork, q[1]));
    OK(StreamWaitEvent(q[0], fork, 0));
    OK(StreamEndCapture(q[0], &graph));
    OK(GraphDestroy(graph));
    if (kept) ck_assert(graphs_ended == ended + 1 || rc != HK_OK);
    if (rc == HK_OK) TRY(d->ops->stream->state(d, q[1], &s));
    if (rc == HK_OK) TRY(d->ops->order->begin(d, &order, q[1], &s)); /* the graph keeps its own order */
  }
  OK(EventDestroy(fork));
  TRY(d->ops->order->free(d, &replay));
  TRY(d->ops->order->free(d, &order));
  for (int i = 0; i < 2; i++) TRY(d->ops->stream->free(d, q[i]));
  return rc;
}
static hk_status words(hk_device *d) {
  hk_memory m = {0};
  hk_queue q = NULL;
  hk_status rc = d->ops->memory->alloc(d, SMALL, &m);
  if (rc == HK_OK) TRY(d->ops->stream->create(d, &q));
  if (rc == HK_OK) TRY(d->ops->word->check(d, m.base, q));
  if (rc == HK_OK) TRY(d->ops->word->write(d, m.base, 7, q));
  if (rc == HK_OK) TRY(d->ops->word->wait(d, m.base, 7, q));
  if (rc == HK_OK) TRY(d->ops->word->reach(d, m.base, 6, q));
  if (rc == HK_OK) TRY(d->ops->wait(d, q));
  settle(d);
  TRY(d->ops->stream->free(d, q));
  TRY(d->ops->memory->release(d, &m));
  return rc;
}
static hk_status cards(hk_device *d) {
  hk_memory m = {0};
  hk_pointer whose;
  int fd = -1;
  hk_status rc = d->ops->memory->alloc_shared(d, LARGE, 0, true, &m);
  if (rc == HK_OK) TRY(d->ops->memory->pointer(d, m.base, &whose));
  if (rc == HK_OK) TRY(d->ops->card->dmabuf(d, m.base, 4096, false, &fd));
  if (fd >= 0) close(fd);
  if (rc == HK_OK) TRY(d->ops->card->flush(d));
  if (rc == HK_OK) TRY(d->ops->finish(d));
  TRY(d->ops->memory->release(d, &m));
  return rc;
}
static hk_status kernels(hk_device *d) {
  char image[4300];
  void *module = NULL, *kernel = NULL;
  unsigned blocks = 0;
  if (!emu_has_kernels()) return HK_OK;
  snprintf(image, sizeof image, "cudaemu:%s", emu_file("test_kernels.so"));
  hk_status rc = d->ops->kernel->load(d, image, &module);
  if (rc == HK_OK) TRY(d->ops->kernel->function(d, module, "barriers", &kernel));
  if (rc == HK_OK) TRY(d->ops->kernel->resident(d, kernel, 32, 0, &blocks));
  if (rc == HK_OK) TRY(d->ops->kernel->block_threads(d, kernel, &blocks));
  TRY(d->ops->kernel->unload(d, module));
  return rc;
}
static hk_status begin_and_end(hk_device *d) {
  hk_device *other = NULL;
  hk_status rc = hk_cuda_open(d->limits.ordinal, &other);
  if (rc == HK_OK) other->ops->close(other);
  return rc;
}

static const struct {
  const char *name;
  hk_status (*run)(hk_device *d);
} operations[] = {{"allocate", allocate}, {"share", share},         {"pinned", pinned},     {"parked", parked},
                  {"placed", placed},     {"multicast", multicast}, {"in_order", in_order}, {"captured", captured},
                  {"words", words},       {"cards", cards},         {"kernels", kernels},   {"open", begin_and_end},
                  {"timed", timed}};

/* ---- */

/* Calls that give something back, or come before those: if the driver refuses, it keeps it, and that is all. */
static bool gives_back(int call) {
  static const int calls[] = {CALL_MemFree,
                              CALL_MemUnmap,
                              CALL_MemAddressFree,
                              CALL_MemRelease,
                              CALL_StreamDestroy,
                              CALL_EventDestroy,
                              CALL_ModuleUnload,
                              CALL_MemHostUnregister,
                              CALL_CtxPopCurrent,
                              CALL_MulticastUnbind,
                              CALL_DevicePrimaryCtxRelease,
                              CALL_GraphDestroy,
                              CALL_ThreadExchangeStreamCaptureMode,
                              CALL_CtxPushCurrent};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(calls); i++)
    if (call == calls[i]) return true;
  return false;
}
/* Calls whose answer only says what the driver can do, or what something is called. */
static bool may_be_lacking(int call) {
  static const int calls[] = {CALL_DriverGetVersion,    CALL_GetErrorName,       CALL_GetErrorString,
                              CALL_DeviceGetName,       CALL_DeviceGetUuid,      CALL_DeviceGetUuidOfSlice,
                              CALL_DeviceGetAttribute,  CALL_DeviceGetPCIBusId,  CALL_DeviceTotalMem,
                              CALL_CtxGetCurrent,       CALL_StreamGetId,        CALL_MemGetAllocationGranularity,
                              CALL_PointerGetAttribute, CALL_DeviceCanAccessPeer};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(calls); i++)
    if (call == calls[i]) return true;
  return false;
}

/* The n-th call of this function is refused. Does the operation do without it? */
static bool refuse(hk_device *d, int i, int call, int nth) {
  long before[EMU_HELD];
  CUcontext mine = NULL, now = NULL;
  int mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  OK(CtxGetCurrent(&mine));
  emu_count_held(before);
  driver_refuses[call] = nth;
  hk_status rc = operations[i].run(d);
  driver_refuses[call] = 0;
  bool lacks = may_be_lacking(call) || (gives_back(call) && call != CALL_MemFree);
  bool does_without = call == CALL_MemCreate; /* or the host's memory is pinned in another way */
  if (operations[i].run == pinned || operations[i].run == parked)
    does_without |= call == CALL_MemAddressReserve || call == CALL_MemMap || call == CALL_MemSetAccess;
  if (operations[i].run == multicast) does_without |= call == CALL_MulticastGetGranularity && nth == 2;
  ck_assert_msg(rc == HK_ERR_CUDA || (rc == HK_OK && (lacks || does_without)), "%s, call %d of %s: %d",
                operations[i].name, nth, driver_names[call], rc);
  if (rc != HK_OK)
    ck_assert_msg(strstr(hk_last_error(), "device ") || strstr(hk_last_error(), "bytes"), "%s", hk_last_error());
  OK(CtxGetCurrent(&now));
  OK(ThreadExchangeStreamCaptureMode(&mode));
  if (call == CALL_CtxPopCurrent && now != mine) OK(CtxPopCurrent(&now));
  if (call == CALL_ThreadExchangeStreamCaptureMode) return rc == HK_OK;
  ck_assert_msg(call == CALL_CtxPopCurrent || now == mine, "%s, call %d of %s: another context", operations[i].name,
                nth, driver_names[call]);
  ck_assert_int_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  if (!gives_back(call)) emu_check_held(before);
  return rc == HK_OK;
}

/* Which of the driver's calls an operation makes: one more costs time, one less is a context or a capture mode that is
 * wrong for others. And those of which a refusal is no failure. */
static const char golden_path[] = "tests/golden/driver_calls.txt";
static void check_calls(const char *name, const char *what, const uint64_t calls[DRIVER_CALLS]) {
  char list[2000], line[40];
  memcpy(driver_calls, calls, sizeof driver_calls);
  driver_calls_sum(list, sizeof list);
  snprintf(line, sizeof line, "%s, %s", name, what);
  golden g = golden_open(golden_path, line);
  golden_words(&g, line, list);
  golden_close(&g);
}

TEST_LOOP(refused, HK_ARRAY_LENGTH(operations)) {
  hk_device *d;
  uint64_t calls[DRIVER_CALLS], without[DRIVER_CALLS] = {0};
  long before[EMU_HELD];
  setenv("CUDAEMU_MULTICAST", "1", 1);
  setenv("CUDAEMU_DMABUF", "2", 1);
  emu_start(2);
  emu_use(1); /* not the device's context */
  ck_assert_int_eq(hk_cuda_open(0, &d), HK_OK);
  if (!driver_calls_begin()) {
    printf("SKIP: calls of the driver are not refused on this machine\n");
    return;
  }
  emu_count_held(before);
  driver_calls_forget();
  ck_assert_msg(operations[_i].run(d) == HK_OK, "%s: %s", operations[_i].name, hk_last_error());
  memcpy(calls, driver_calls, sizeof calls);
  check_calls(operations[_i].name, "calls", calls);
  emu_check_held(before);
  calls[CALL_StreamSynchronize] = 0; /* what the stream still does would meet memory that is gone */
  for (int call = 0; call < DRIVER_CALLS; call++)
    for (int nth = 1; nth <= (int)calls[call]; nth++) without[call] += refuse(d, _i, call, nth);
  check_calls(operations[_i].name, "does without", without);
  d->ops->close(d);
}

/* The driver lacks a function: the operation does without it, or reports that. */
static const struct {
  size_t function;
  hk_status (*run)(hk_device *d);
  bool fails;
} lacks[] = {
#define LACKS(member) offsetof(hk_cuda_calls, member)
    {LACKS(GraphAddEventRecordNode), captured, false},
    {LACKS(GraphAddDependencies), captured, false},
    {LACKS(UserObjectCreate), captured, true},
    {LACKS(UserObjectRelease), captured, true},
    {LACKS(GraphRetainUserObject), captured, true},
    {LACKS(StreamGetId), captured, false},
    {LACKS(StreamGetId), in_order, false},
    {LACKS(DeviceGetUuidOfSlice), begin_and_end, false},
    {LACKS(MemRetainAllocationHandle), share, true},
    {LACKS(MemGetHandleForAddressRange), cards, true},
    {LACKS(FlushGPUDirectRDMAWrites), cards, true},
    {LACKS(MulticastCreate), placed, false},
    {LACKS(MemCreate), allocate, false},
    {LACKS(MemCreate), pinned, false},
#undef LACKS
};
TEST(lacking) {
  hk_device *d;
  long before[EMU_HELD];
  setenv("CUDAEMU_MULTICAST", "1", 1);
  setenv("CUDAEMU_DMABUF", "2", 1);
  emu_start(2);
  emu_use(1);
  ck_assert_int_eq(hk_cuda_open(0, &d), HK_OK);
  d->ops->close(d);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(lacks); i++) {
    const hk_cuda_calls whole = hk_cu;
    memset((char *)&hk_cu + lacks[i].function, 0, sizeof(void *));
    ck_assert_int_eq(hk_cuda_open(0, &d), HK_OK);
    emu_count_held(before);
    hk_status rc = lacks[i].run(d);
    ck_assert_msg(rc == (lacks[i].fails ? HK_ERR_CUDA : HK_OK), "row %zu: %d, %s", i, rc, hk_last_error());
    if (rc != HK_OK) ck_assert_ptr_nonnull(strstr(hk_last_error(), "device 0"));
    emu_check_held(before);
    d->ops->close(d);
    hk_cu = whole;
  }
}

int main(void) {
  golden_clear(golden_path);
  return suite_main("device_faults", .timeout = 60);
}
