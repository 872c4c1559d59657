/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on emulated GPUs, of ranks that are threads, processes, or share a GPU, and of ranks whose GPUs
 * do not reach each other (by shared memory, and by messages of TCP; test_gpu_direct: by cards): puts, signals and
 * waits on streams, in groups and in captured graphs; what is wrong to ask; aborts and dead ranks.
 * check: timeout=300 notsan */
#include <pthread.h>
#include <signal.h>
#include "../../src/gpu/rma.h"
#include "../support/gpu.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { WINDOW = 2 << 20, CONTEXTS = 4 };

static char *memory[GPU_RANKS];
static ncclWindow_t windows[GPU_RANKS];

static cudaStream_t stream_of(const gpu_place *p, int r) { return (cudaStream_t)(void *)p->g.stream[r]; }
#define EACH(r, p) for (int r = (p)->first; r < (p)->first + (p)->each; r++)

static void open_windows(const gpu_place *p) {
  EACH(r, p) {
    emu_use(p->g.device[r]);
    OK_NCCL(ncclMemAlloc((void **)&memory[r], WINDOW));
    OK(MemsetD8Async((CUdeviceptr)(uintptr_t)memory[r], 0, WINDOW, p->g.stream[r]));
    OK(StreamSynchronize(p->g.stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  EACH(r, p)
  OK_NCCL(ncclCommWindowRegister(p->g.comm[r], memory[r], WINDOW, &windows[r], NCCL_WIN_COLL_SYMMETRIC));
  OK_NCCL(ncclGroupEnd());
  EACH(r, p) ck_assert_ptr_nonnull(windows[r]);
}
static void close_windows(gpu_place *p) {
  meet_all(p);
  EACH(r, p) {
    OK_NCCL(ncclCommWindowDeregister(p->g.comm[r], windows[r]));
    OK_NCCL(ncclMemFree(memory[r]));
  }
}

static void read_window(const gpu_place *p, int r, size_t at, void *to, size_t bytes) {
  emu_use(p->g.device[r]);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)(memory[r] + at), bytes, p->g.stream[r]));
  OK(StreamSynchronize(p->g.stream[r]));
}
static void set_input(const gpu_place *p, int r, const void *from, size_t bytes) {
  emu_use(p->g.device[r]);
  OK(MemcpyAsync(p->g.in[r], (CUdeviceptr)(uintptr_t)from, bytes, p->g.stream[r]));
  OK(StreamSynchronize(p->g.stream[r]));
}
static ncclResult_t put(const gpu_place *p, int r, size_t from, size_t bytes, int to, size_t at, int ctx) {
  const char *in = (const char *)(uintptr_t)p->g.in[r] + from;
  return ncclPutSignal(in, bytes, ncclInt8, to, windows[r], at, 0, ctx, 0, p->g.comm[r], stream_of(p, r));
}
static ncclResult_t await(const gpu_place *p, int r, int from, int count, int ctx) {
  ncclWaitSignalDesc_t d = {.opCnt = count, .peer = from, .ctx = ctx};
  return ncclWaitSignal(1, &d, p->g.comm[r], stream_of(p, r));
}

/* Processes, ranks of each, GPUs, hosts, and whether GPUs of one host reach each other. */
static const int shapes[][5] = {{1, 2, 8, 1, 1}, {2, 1, 8, 1, 1}, {2, 1, 8, 2, 1}, {2, 2, 8, 1, 1}, {1, 2, 1, 1, 1},
                                {2, 1, 1, 1, 1}, {3, 1, 8, 3, 1}, {2, 2, 8, 2, 1}, {3, 1, 8, 1, 0}, {2, 2, 2, 1, 0}};
enum { THREADS, PROCESSES, HOSTS, SHAPES = sizeof shapes / sizeof *shapes };
static void run(int shape, void (*body)(gpu_place *)) {
  const int *s = shapes[shape];
  setenv("NCCL_NUM_RMA_CTX", "4", 1);
  if (!s[4]) setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(run_processes(s[0], s[1], s[2], s[3], body), 0);
}

/* All to all, the own rank too, in all contexts: sizes, offsets, nothing but a signal. */
static void everywhere(gpu_place *p) {
  static const size_t sizes[] = {1, 4, 100, 5000, 0};
  const int n = p->g.n;
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  open_windows(p);
  for (int round = 0; round < 10; round++) {
    const size_t bytes = sizes[round % 5];
    EACH(r, p) {
      char data[8192];
      OK_NCCL(ncclCommQueryProperties(p->g.comm[r], &props));
      ck_assert(props.hostRmaSupport);
      for (size_t i = 0; i < bytes; i++) data[i] = (char)(r * 50 + round * 3 + (int)i);
      set_input(p, r, data, bytes + 1);
    }
    EACH(r, p)
    for (int to = 0; to < n; to++)
      OK_NCCL(put(p, r, 0, bytes, (r + to) % n, (size_t)r * 8192 + (unsigned)round, (r + round) % CONTEXTS));
    EACH(r, p) for (int from = 0; from < n; from++) OK_NCCL(await(p, r, from, 1, (from + round) % CONTEXTS));
    EACH(r, p)
    for (int from = 0; from < n; from++) {
      char got[8192];
      read_window(p, r, (size_t)from * 8192 + (unsigned)round, got, bytes + 1);
      suite_all(i, bytes, got[i] == (char)(from * 50 + round * 3 + (int)i));
    }
    meet_all(p); /* all have looked */
  }
  close_windows(p);
}
TEST_LOOP(to_all, SHAPES) { run(_i, everywhere); }

/* A signal says that all earlier puts to the peer in its context are there; signals come before their wait, and
 * count. */
static void in_order(gpu_place *p) {
  enum { PUTS = 60 };
  int32_t values[PUTS];
  open_windows(p);
  for (int round = 0; round < 3; round++) {
    EACH(r, p) {
      for (int i = 0; i < PUTS; i++) values[i] = r * 1000 + round * 100 + i;
      set_input(p, r, values, sizeof values);
    }
    EACH(r, p) {
      for (unsigned i = 0; i < PUTS; i++) OK_NCCL(put(p, r, 4 * i, 4, (r + 1) % p->g.n, 256 * i, 1));
      for (int i = 0; i < 5; i++) OK_NCCL(ncclSignal((r + 1) % p->g.n, 0, 3, 0, p->g.comm[r], stream_of(p, r)));
    }
    EACH(r, p) {
      int before = (r + p->g.n - 1) % p->g.n;
      ncclWaitSignalDesc_t d[] = {{.opCnt = 3, .peer = before, .ctx = 3}, {.opCnt = PUTS, .peer = before, .ctx = 1}};
      OK_NCCL(ncclWaitSignal(2, d, p->g.comm[r], stream_of(p, r)));
      OK_NCCL(await(p, r, before, 2, 3));
    }
    EACH(r, p)
    for (unsigned i = 0; i < PUTS; i++) {
      int32_t got;
      read_window(p, r, 256 * i, &got, sizeof got);
      ck_assert_int_eq(got, (r + p->g.n - 1) % p->g.n * 1000 + round * 100 + (int)i);
    }
    meet_all(p);
  }
  close_windows(p);
}
TEST_LOOP(order, SHAPES) { run(_i, in_order); }

/* Waits before the puts that end them, together with collectives and sends. */
static void in_groups(gpu_place *p) {
  gpu_call sum = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum};
  char *in, *out;
  open_windows(p);
  for (int round = 0; round < 5; round++) {
    gpu_fill_some(&p->g, &sum, p->first, p->each);
    OK_NCCL(ncclGroupStart());
    EACH(r, p) {
      for (int from = 0; from < p->g.n; from++) OK_NCCL(await(p, r, from, 2, round % CONTEXTS));
      in = (char *)(uintptr_t)p->g.in[r], out = (char *)(uintptr_t)p->g.out[r];
      for (int to = 0; to < p->g.n; to++) {
        OK_NCCL(put(p, r, 0, 4000, to, (size_t)r * 4096, round % CONTEXTS));
        OK_NCCL(ncclSignal(to, 0, round % CONTEXTS, 0, p->g.comm[r], stream_of(p, r)));
      }
      OK_NCCL(gpu_submit(&p->g, &sum, r));
      OK_NCCL(ncclSend(in, 4000, ncclInt8, (r + 1) % p->g.n, p->g.comm[r], stream_of(p, r)));
      OK_NCCL(ncclRecv(out + 8192, 4000, ncclInt8, (r + p->g.n - 1) % p->g.n, p->g.comm[r], stream_of(p, r)));
    }
    OK_NCCL(ncclGroupEnd());
    gpu_check_some(&p->g, &sum, p->first, p->each);
    EACH(r, p)
    for (int from = 0; from < p->g.n; from++) {
      float got[1000];
      read_window(p, r, (size_t)from * 4096, got, sizeof got);
      suite_all(i, 1000, (double)got[i] == test_value(from, p->g.n, i, ncclSum));
    }
    meet_all(p);
  }
  close_windows(p);
}
TEST_LOOP(groups, SHAPES) { run(_i, in_groups); }

/* From a window, in pieces if it has to be; then by a graph. */
static void in_pieces(gpu_place *p) {
  enum { BYTES = (1 << 20) - 100, FROM = 1 << 20 };
  CUgraphExec exec[GPU_RANKS];
  char *data = malloc(BYTES);
  open_windows(p);
  for (int round = 0; round < 2; round++) {
    EACH(r, p) {
      for (int i = 0; i < BYTES; i++) data[i] = (char)(r * 50 + round * 3 + i + i / 1000);
      emu_use(p->g.device[r]);
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)(memory[r] + FROM), (CUdeviceptr)(uintptr_t)data, BYTES, p->g.stream[r]));
      OK(StreamSynchronize(p->g.stream[r]));
    }
    EACH(r, p) {
      emu_use(p->g.device[r]);
      if (round) OK(StreamBeginCapture(p->g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
      OK_NCCL(ncclPutSignal(memory[r] + FROM, BYTES, ncclInt8, (r + 1) % p->g.n, windows[r], 0, 0, 0, 0, p->g.comm[r],
                            stream_of(p, r)));
      if (round) OK_NCCL(await(p, r, (r + p->g.n - 1) % p->g.n, 1, 0));
      if (!round) continue;
      exec[r] = gpu_end_capture(p->g.stream[r]);
    }
    EACH(r, p) {
      emu_use(p->g.device[r]);
      if (!round) OK_NCCL(await(p, r, (r + p->g.n - 1) % p->g.n, 1, 0));
      if (round) OK(GraphLaunch(exec[r], p->g.stream[r]));
    }
    EACH(r, p) {
      const int from = (r + p->g.n - 1) % p->g.n;
      read_window(p, r, 0, data, BYTES);
      suite_all(i, BYTES, data[i] == (char)(from * 50 + round * 3 + (int)i + (int)i / 1000));
    }
    meet_all(p);
  }
  EACH(r, p) OK(GraphExecDestroy(exec[r]));
  close_windows(p);
  free(data);
}
TEST_RANGE(pieces, PROCESSES, SHAPES) { run(_i, in_pieces); }

/* Captured once, replayed with other data; what is not captured between the replays counts for itself. */
static void in_graphs(gpu_place *p) {
  enum { PUTS = 3, BYTES = 600 };
  CUgraphExec exec[GPU_RANKS];
  const int n = p->g.n;
  open_windows(p);
  EACH(r, p) {
    emu_use(p->g.device[r]);
    OK(StreamBeginCapture(p->g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
    for (unsigned i = 0; i < PUTS; i++)
      for (int to = 0; to < n; to++) OK_NCCL(put(p, r, BYTES * i, BYTES, to, ((size_t)r * PUTS + i) * 1024, 2));
    for (int from = 0; from < n; from++) OK_NCCL(await(p, r, from, PUTS, 2));
    exec[r] = gpu_end_capture(p->g.stream[r]);
  }
  for (int round = 0; round < 4; round++) {
    EACH(r, p) {
      char data[PUTS * BYTES];
      for (int i = 0; i < PUTS * BYTES; i++) data[i] = (char)(r * 40 + round * 7 + i);
      set_input(p, r, data, sizeof data);
    }
    EACH(r, p) {
      emu_use(p->g.device[r]);
      OK(GraphLaunch(exec[r], p->g.stream[r]));
    }
    EACH(r, p) OK_NCCL(put(p, r, 0, 8, (r + 1) % n, 1 << 20, 2));
    EACH(r, p) OK_NCCL(await(p, r, (r + n - 1) % n, 1, 2));
    EACH(r, p)
    for (int from = 0; from < n; from++)
      for (int i = 0; i < PUTS; i++) {
        char got[BYTES];
        read_window(p, r, ((size_t)from * PUTS + (unsigned)i) * 1024, got, sizeof got);
        suite_all(k, BYTES, got[k] == (char)(from * 40 + round * 7 + i * BYTES + (int)k));
      }
    meet_all(p);
  }
  EACH(r, p) OK(GraphExecDestroy(exec[r]));
  close_windows(p);
}
TEST_LOOP(graphs, SHAPES) { run(_i, in_graphs); }

/* A capture that never runs takes no turns of the next one, and signals of a capture that wait for each other have
 * words of their own: as many as a rank may have under way. */
static void captures(gpu_place *p) {
  enum { SIGNALS = 15 };
  CUgraphExec exec[GPU_RANKS];
  const int n = p->g.n;
  open_windows(p);
  for (int runs = 0; runs < 2; runs++) {
    EACH(r, p) {
      emu_use(p->g.device[r]);
      OK(StreamBeginCapture(p->g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
      for (int i = 0; i < (runs ? SIGNALS : r % 2 + 1); i++)
        OK_NCCL(ncclSignal((r + 1) % n, 0, 0, 0, p->g.comm[r], stream_of(p, r)));
      for (int i = 0; i < (runs ? SIGNALS : 3); i++) OK_NCCL(await(p, r, (r + n - 1) % n, 1, 0));
      exec[r] = gpu_end_capture(p->g.stream[r]);
      if (!runs) OK(GraphExecDestroy(exec[r]));
    }
  }
  for (int round = 0; round < 3; round++) EACH(r, p) {
      emu_use(p->g.device[r]);
      OK(GraphLaunch(exec[r], p->g.stream[r]));
    }
  EACH(r, p) {
    emu_use(p->g.device[r]);
    OK(StreamSynchronize(p->g.stream[r]));
    OK(GraphExecDestroy(exec[r]));
  }
  close_windows(p);
}
TEST_LOOP(each_capture_anew, 2) { run(_i ? HOSTS : PROCESSES, captures); }

/* Replays run ahead of their waits as far as the receiver lets them: nothing is lost. */
static void run_ahead(gpu_place *p) {
  enum { REPLAYS = 20 };
  const int r = p->first;
  open_windows(p);
  emu_use(p->g.device[r]);
  OK(StreamBeginCapture(p->g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
  if (r == 0)
    OK_NCCL(put(p, 0, 0, 64, 1, 0, 0));
  else
    OK_NCCL(await(p, 1, 0, 1, 0));
  const CUgraphExec exec = gpu_end_capture(p->g.stream[r]);
  for (int i = 0; i < REPLAYS; i++) OK(GraphLaunch(exec, p->g.stream[r]));
  OK(StreamSynchronize(p->g.stream[r]));
  OK(GraphExecDestroy(exec));
  close_windows(p);
}
TEST_LOOP(replays_run_ahead, 2) { run(_i ? HOSTS : PROCESSES, run_ahead); }

static void wrong(gpu_place *p) {
  static char host[64];
  const ncclComm_t c = p->g.comm[0];
  const cudaStream_t s = stream_of(p, 0);
  ncclWaitSignalDesc_t d = {.opCnt = 1};
  char *in = (char *)(uintptr_t)p->g.in[0];
  ck_assert_int_eq(ncclSignal(0, 0, 0, 0, c, s), ncclInvalidUsage); /* no window yet */
  ck_assert_int_eq(ncclWaitSignal(1, &d, c, s), ncclInvalidUsage);
  open_windows(p);
#define PUT(from, to, win, at, sig, ctx, flags) ncclPutSignal(from, 16, ncclInt8, to, win, at, sig, ctx, flags, c, s)
  ck_assert_int_eq(PUT(in, 2, windows[0], 0, 0, 0, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, -1, windows[0], 0, 0, 0, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, 1, windows[0], 0, 1, 0, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, 1, windows[0], 0, 0, CONTEXTS, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, 1, windows[0], 0, 0, 0, 1), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, 1, windows[0], WINDOW - 15, 0, 0, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, 1, NULL, 0, 0, 0, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(host, 1, windows[0], 0, 0, 0, 0), ncclInvalidArgument);
  ck_assert_int_eq(PUT(in, 1, windows[1], 0, 0, 0, 0), ncclInvalidArgument); /* another rank's handle */
  d.opCnt = 0;
  ck_assert_int_eq(ncclWaitSignal(1, &d, c, s), ncclInvalidArgument);
  /* What a peer's message says: the last word of the signals, and one that is not there. */
  ck_assert(hk_gpu_rma_come(c, 1, CONTEXTS * 32 - 1) && !hk_gpu_rma_come(c, 1, CONTEXTS * 32));
  OK_NCCL(PUT(in, 1, windows[0], WINDOW - 16, 0, 0, 0));
  OK_NCCL(await(p, 1, 0, 1, 0));
#undef PUT
  close_windows(p);
}
TEST(arguments) { run(THREADS, wrong); }

static void make_pair(ncclComm_t c[2], ncclConfig_t *config) {
  ncclUniqueId id;
  OK_NCCL(ncclGetUniqueId(&id));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++) {
    emu_use(r);
    OK_NCCL(ncclCommInitRankConfig(&c[r], 2, id, r, config));
  }
  OK_NCCL(ncclGroupEnd());
}

/* As the configuration says: signals by their index, without a window; none at all. */
TEST(configured) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclComm_t c[2];
  CUstream s[2];
  emu_start(8);
  config.numRmaCtx = 2;
  config.numRmaSig = 3;
  config.rmaEagerInit = 1;
  for (int some = 1; some >= 0; some--) {
    make_pair(c, &config);
    OK_NCCL(ncclCommQueryProperties(c[0], &props));
    ck_assert_int_eq(props.hostRmaSupport, some);
    for (int r = 0; r < 2 && some; r++) {
      emu_use(r);
      s[r] = emu_new_stream(CU_STREAM_NON_BLOCKING);
      for (int i = 0; i < 6; i++)
        for (int k = 0; k <= i; k++) OK_NCCL(ncclSignal(1 - r, i % 3, i / 3, 0, c[r], (cudaStream_t)(void *)s[r]));
      ck_assert_int_eq(ncclSignal(1 - r, 3, 0, 0, c[r], (cudaStream_t)(void *)s[r]), ncclInvalidArgument);
    }
    for (int r = 0; r < 2 && some; r++) {
      for (int i = 5; i >= 0; i--) {
        ncclWaitSignalDesc_t d = {.opCnt = i + 1, .peer = 1 - r, .sigIdx = i % 3, .ctx = i / 3};
        OK_NCCL(ncclWaitSignal(1, &d, c[r], (cudaStream_t)(void *)s[r]));
      }
      emu_use(r);
      OK(StreamSynchronize(s[r]));
    }
    if (!some) ck_assert_int_eq(ncclSignal(1, 0, 0, 0, c[0], NULL), ncclInvalidArgument);
    for (int r = 0; r < 2; r++) OK_NCCL(ncclCommDestroy(c[r]));
    config.numRmaSig = 0;
  }
}

/* The signals and inboxes of a communicator are memory files: none is open when it has ended. */
TEST(leaves_no_memory) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t c[2];
  int files = 0;
  emu_start(8);
  config.rmaEagerInit = 1;
  for (int life = 0; life < 3; life++) {
    make_pair(c, &config);
    for (int r = 0; r < 2; r++) OK_NCCL(ncclCommDestroy(c[r]));
    if (!life) files = open_fds(); /* what the process keeps, and perhaps a thread that has not ended: never too few */
  }
  for (int ms = 0; open_fds() > files && ms < 5000; ms++) usleep(1000); /* threads end by themselves */
  ck_assert_int_le(open_fds(), files);
}

/* Memory that cannot be a window: there are no one-sided operations, and the calls say so. */
static void apart(gpu_place *p) {
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  OK_NCCL(ncclCommQueryProperties(p->g.comm[p->first], &props));
  ck_assert(!props.hostRmaSupport);
  ck_assert_int_eq(ncclSignal(0, 0, 0, 0, p->g.comm[p->first], stream_of(p, p->first)), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(p->g.comm[p->first]), "cannot be made into windows"));
}
TEST(no_windows) {
  setenv("NCCL_CUMEM_ENABLE", "0", 1);
  run(PROCESSES, apart);
}

/* ---- failures ---- */

/* Streams that wait for signals that never come, captured or not, go on when their communicator is aborted. */
static int captured;
static ncclResult_t signal_to(const gpu_place *p, int r, int to) {
  return to < 0 ? ncclSuccess : ncclSignal(to, 0, 0, 0, p->g.comm[r], stream_of(p, r));
}
/* Before the wait rank `victim` is signalled: when it fails, no call of this rank is still to be made. */
static void enqueue_wait(const gpu_place *p, int r, int from, int victim) {
  emu_use(p->g.device[r]);
  if (captured) {
    OK(StreamBeginCapture(p->g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
    OK_NCCL(await(p, r, from, 2, 1));
    const CUgraphExec exec = gpu_end_capture(p->g.stream[r]);
    OK_NCCL(signal_to(p, r, victim));
    OK(GraphLaunch(exec, p->g.stream[r]));
    return;
  }
  OK_NCCL(ncclGroupStart());
  OK_NCCL(signal_to(p, r, victim));
  OK_NCCL(await(p, r, from, 2, 1));
  OK_NCCL(ncclGroupEnd());
}
static void hear_all(const gpu_place *p, int r) {
  for (int k = 0; k < p->g.n; k++)
    if (k != r) OK_NCCL(await(p, r, k, 1, 0));
  emu_use(p->g.device[r]);
  OK(StreamSynchronize(p->g.stream[r]));
}

static void abort_waits(gpu_place *p) {
  pthread_t id;
  const int r = p->first;
  open_windows(p);
  if (r == 0) {
    hear_all(p, 0);
    enqueue_wait(p, 0, 1, -1);
    ck_assert_int_eq(pthread_create(&id, NULL, gpu_abort, p->g.comm[0]), 0);
    OK(StreamSynchronize(p->g.stream[0]));
    pthread_join(id, NULL);
  } else {
    OK_NCCL(signal_to(p, 1, 0));
    ck_assert_int_eq(wait_for_error(p->g.comm[1]), ncclRemoteError);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(p->g.comm[1]), "rank 0 aborted"));
    OK_NCCL(ncclCommAbort(p->g.comm[1]));
  }
  p->g.comm[r] = NULL;
}
TEST_LOOP(aborted, 4) {
  captured = _i % 2;
  run(_i < 2 ? PROCESSES : HOSTS, abort_waits);
}

/* A rank dies: those that wait for it, or for another one, learn of it, and their streams go on. */
static void die(gpu_place *p) {
  const int r = p->first;
  open_windows(p);
  if (r == 1) {
    hear_all(p, 1);
    kill(getpid(), SIGKILL);
  }
  enqueue_wait(p, r, r == 0 ? 1 : 0, 1);
  ck_assert_int_eq(wait_for_error(p->g.comm[r]), ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(p->g.comm[r]), "rank 1"));
  ck_assert_int_eq(await(p, r, 1, 1, 0), ncclRemoteError);
  OK_NCCL(ncclCommAbort(p->g.comm[r]));
  OK(StreamSynchronize(p->g.stream[r]));
  p->g.comm[r] = NULL;
}
TEST_LOOP(killed, 4) {
  captured = _i % 2;
  setenv("NCCL_NUM_RMA_CTX", "4", 1);
  ck_assert_int_eq(run_processes(3, 1, 8, _i < 2 ? 1 : 3, die), 1); /* the dead one */
}

int main(void) { return gpu_main("gpu_rma", .timeout = 100); }
