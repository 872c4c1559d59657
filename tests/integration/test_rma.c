/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on host memory: the same bodies for ranks that are threads or processes, over each way into a
 * peer's memory: stores, copies by the kernel, writes by a network card (the fake libibverbs.so.1), messages.
 * check: timeout=300 */
#include <hocket.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include "../support/fake_rdma.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { WINDOW = 1 << 16, RANKS = 3, CONTEXTS = 4 };

#define IS(condition) faults += RANK_IS(condition)

typedef struct window {
  unsigned char *memory;
  size_t bytes;
  ncclWindow_t win;
  int plain;
} window;

static int open_window(ncclComm_t c, size_t bytes, int plain, window *w) {
  *w = (window){.bytes = bytes, .plain = plain};
  int faults = 0;
  if (plain)
    w->memory = aligned_alloc(NCCL_WIN_REQUIRED_ALIGNMENT, bytes);
  else
    faults += RANK_CHECK(ncclMemAlloc((void **)&w->memory, bytes));
  memset(w->memory, 0, bytes);
  return faults + RANK_CHECK(ncclCommWindowRegister(c, w->memory, bytes, &w->win, NCCL_WIN_COLL_SYMMETRIC));
}

/* All puts to it have arrived and no rank will begin another one: the barrier says so. */
static int close_window(ncclComm_t c, window *w) {
  float x = 0;
  int faults = RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL));
  faults += RANK_CHECK(ncclCommWindowDeregister(c, w->win));
  if (w->plain)
    free(w->memory);
  else
    faults += RANK_CHECK(ncclMemFree(w->memory));
  return faults;
}

static int await(ncclComm_t c, int peer, int count, int ctx, cudaStream_t s) {
  ncclWaitSignalDesc_t d = {.opCnt = count, .peer = peer, .sigIdx = 0, .ctx = ctx};
  return RANK_CHECK(ncclWaitSignal(1, &d, c, s));
}

static unsigned char byte_of(int rank, size_t i, int round) {
  return (unsigned char)((size_t)rank * 31 + i * 7 + (size_t)round * 13 + 1);
}

typedef struct setting {
  const char *what, *variable;
  int processes, plain, far; /* far: the memory of a peer cannot be reached, all goes in messages... */
  int cards;                 /* ...or is written by network cards, so many for each rank */
} setting;

static const setting settings[] = {
    {"threads", NULL, 0, 0, 0, 0},
    {"threads, plain memory", NULL, 0, 1, 0, 0},
    {"processes", NULL, 1, 0, 0, 0},
    {"processes, plain memory, copied by the kernel", NULL, 1, 1, 0, 0},
    {"processes, plain memory, messages and stored signals", "HOCKET_CMA=0", 1, 1, 0, 0},
    {"processes without shared memory: messages", "NCCL_SHM_DISABLE=1", 1, 0, 1, 0},
    {"threads without access to each other: messages", "NCCL_P2P_DISABLE=1", 0, 1, 1, 0},
    {"threads without access to each other: a card", "NCCL_P2P_DISABLE=1", 0, 0, 1, 1},
    {"threads without access to each other: cards", "NCCL_P2P_DISABLE=1", 0, 1, 1, 2},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static fake_verbs_state *verbs;

static void run(int i, rank_body body) {
  const setting *s = &settings[i];
  char variable[64];
  setenv("NCCL_NUM_RMA_CTX", "4", 1);
  if (s->variable) {
    snprintf(variable, sizeof variable, "%s", s->variable);
    *strchr(variable, '=') = 0;
    setenv(variable, strchr(s->variable, '=') + 1, 1);
  }
  if (s->cards) {
    rdma_plenty = true;
    verbs = rdma_begin(s->cards);
    rdma_param("NCCL_NET", "IB");
    rdma_param("NCCL_SHM_DISABLE", "1");
    rdma_param("NCCL_NET_FORCE_MERGE", s->cards > 1 ? "fake0,fake1" : "");
    rdma_param("NCCL_IB_QPS_PER_CONNECTION", s->cards > 1 ? "2" : "1");
  }
  int faults = s->processes ? ranks_as_processes(RANKS, body, (void *)(uintptr_t)s)
                            : ranks_as_threads(RANKS, body, (void *)(uintptr_t)s);
  ck_assert_msg(faults == 0, "%s: %d faults", s->what, faults);
  if (s->cards) rdma_end(verbs);
}

/* Each rank puts to the next one: sizes and offsets around cache lines and pages, each in a context of its own turn. */
static int places(ncclComm_t c, int rank, int n, void *arg) {
  static const size_t sizes[] = {1, 3, 8, 63, 64, 65, 4095, 4097, 20000}, at[] = {0, 1, 7, 64, 4093, 40000};
  const setting *s = arg;
  window w;
  int faults = open_window(c, WINDOW, s->plain, &w), next = (rank + 1) % n, before = (rank + n - 1) % n, round = 0;
  unsigned char *data = malloc(WINDOW);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (size_t k = 0; k < sizeof at / sizeof *at; k++, round++) {
      int ctx = round % CONTEXTS;
      for (size_t b = 0; b < sizes[i]; b++) data[b] = byte_of(rank, b, round);
      faults += RANK_CHECK(ncclPutSignal(data, sizes[i], ncclUint8, next, w.win, at[k], 0, ctx, 0, c, NULL));
      memset(data, 0, sizes[i]); /* the call has returned: the buffer is free */
      faults += await(c, before, 1, ctx, NULL);
      size_t wrong = 0;
      for (size_t b = 0; b < sizes[i]; b++) wrong += w.memory[at[k] + b] != byte_of(before, b, round);
      IS(wrong == 0);
      IS(at[k] == 0 || w.memory[at[k] - 1] == 0);
      IS(w.memory[at[k] + sizes[i]] == 0);
      memset(w.memory, 0, WINDOW);
      /* The window is cleared: only now may the rank before write to it again. */
      faults += RANK_CHECK(ncclSignal(before, 0, ctx, 0, c, NULL)) + await(c, next, 1, ctx, NULL);
    }
  free(data);
  return faults + close_window(c, &w);
}

/* A signal says that all earlier puts to the peer in its context are there: the last of many is awaited alone. */
static int order(ncclComm_t c, int rank, int n, void *arg) {
  enum { PUTS = 200, STRIDE = 256 };
  const setting *s = arg;
  window w;
  int faults = open_window(c, WINDOW, s->plain, &w), next = (rank + 1) % n, before = (rank + n - 1) % n;
  for (int round = 1; round <= 3; round++) {
    for (uint64_t i = 0; i < PUTS; i++) {
      uint64_t value = i * 1000 + (uint64_t)round;
      faults += RANK_CHECK(ncclPutSignal(&value, 1, ncclUint64, next, w.win, i * STRIDE, 0, 1, 0, c, NULL));
    }
    faults += await(c, before, PUTS, 1, NULL);
    for (uint64_t i = 0; i < PUTS; i++) IS(*(uint64_t *)(void *)(w.memory + i * STRIDE) == i * 1000 + (uint64_t)round);
    faults += RANK_CHECK(ncclSignal(before, 0, 2, 0, c, NULL)) + await(c, next, 1, 2, NULL);
  }
  return faults + close_window(c, &w);
}

/* Contexts count for themselves, and waits for several signals end whatever their order. */
static int counts(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  window w;
  ncclWaitSignalDesc_t d[RANKS * CONTEXTS];
  int faults = open_window(c, WINDOW, s->plain, &w), k = 0;
  for (int ctx = CONTEXTS - 1; ctx >= 0; ctx--)
    for (int to = 0; to < n; to++) /* this rank too */
      for (int i = 0; i <= ctx; i++) faults += RANK_CHECK(ncclSignal(to, 0, ctx, 0, c, NULL));
  for (int ctx = 0; ctx < CONTEXTS; ctx++)
    for (int from = 0; from < n; from++) d[k++] = (ncclWaitSignalDesc_t){.opCnt = ctx + 1, .peer = from, .ctx = ctx};
  faults += RANK_CHECK(ncclWaitSignal(k, d, c, NULL));
  faults += RANK_CHECK(ncclPutSignal(&rank, 1, ncclInt, rank, w.win, 512, 0, 0, 0, c, NULL)) +
            await(c, rank, 1, 0, NULL);
  IS(*(int *)(void *)(w.memory + 512) == rank);
  return faults + close_window(c, &w);
}

/* In one group: waits before the puts that end them, together with collectives and sends. */
static int groups(ncclComm_t c, int rank, int n, void *arg) {
  enum { COUNT = 5000 };
  const setting *s = arg;
  window w;
  int faults = open_window(c, WINDOW, s->plain, &w);
  int *data = malloc(COUNT * sizeof *data);
  for (int round = 0; round < 10; round++) {
    float sum = 1;
    int got[RANKS] = {0};
    for (int i = 0; i < COUNT; i++) data[i] = rank * COUNT + i + round;
    faults += RANK_CHECK(ncclGroupStart());
    for (int r = 0; r < n; r++) faults += await(c, r, 2, round % CONTEXTS, NULL);
    for (int r = 0; r < n; r++) {
      size_t at = (size_t)rank * COUNT * sizeof *data;
      faults += RANK_CHECK(ncclPutSignal(data, COUNT, ncclInt, r, w.win, at, 0, round % CONTEXTS, 0, c, NULL));
      faults += RANK_CHECK(ncclSignal(r, 0, round % CONTEXTS, 0, c, NULL));
      faults += RANK_CHECK(ncclSend(&data[r], 1, ncclInt, r, c, NULL));
      faults += RANK_CHECK(ncclRecv(&got[r], 1, ncclInt, r, c, NULL));
    }
    faults += RANK_CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat, ncclSum, c, NULL));
    faults += RANK_CHECK(ncclGroupEnd());
    IS(sum == (float)n);
    for (int r = 0; r < n; r++) {
      size_t wrong = 0;
      for (int i = 0; i < COUNT; i++) wrong += ((int *)(void *)w.memory)[r * COUNT + i] != r * COUNT + i + round;
      IS(wrong == 0);
      IS(got[r] == r * COUNT + rank + round);
    }
    faults += RANK_CHECK(ncclAllReduce(&sum, &sum, 1, ncclFloat, ncclSum, c, NULL)); /* all have looked */
  }
  free(data);
  return faults + close_window(c, &w);
}

/* On host streams the calls return at once and run in order; several windows. */
static int streams(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  window w[2];
  hocketStream_t stream;
  int faults = RANK_CHECK(hocketStreamCreate(&stream)), next = (rank + 1) % n, before = (rank + n - 1) % n;
  cudaStream_t on = hocketStreamAsCuda(stream);
  for (int i = 0; i < 2; i++) faults += open_window(c, WINDOW, s->plain, &w[i]);
  uint64_t value[100], sum = 0;
  for (uint64_t i = 0; i < 100; i++) value[i] = i + 1;
  for (size_t i = 0; i < 100; i++) {
    faults += RANK_CHECK(ncclPutSignal(&value[i], 1, ncclUint64, next, w[i % 2].win, 8 * i, 0, 0, 0, c, on));
    faults += await(c, before, 1, 0, on);
  }
  faults += RANK_CHECK(hocketStreamSynchronize(stream));
  for (size_t i = 0; i < 100; i++) sum += ((uint64_t *)(void *)w[i % 2].memory)[i];
  IS(sum == 5050);
  faults += RANK_CHECK(hocketStreamDestroy(stream));
  for (int i = 0; i < 2; i++) faults += close_window(c, &w[i]);
  return faults;
}

/* A window that is refused on one rank alone: the others hear of it when they register theirs or put to it, and the
 * next window has the same number on all ranks. */
static int refused_window(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  int faults = 0;
  for (int i = 0; i < 4; i++) {
    const char *cause = i % 2 ? "buff is NULL" : "size is 0";
    const int right = (rank + 1) % n, left = (rank + n - 1) % n;
    char *memory = aligned_alloc(4096, 4096), x[16] = {0};
    ncclWindow_t win = NULL;
    window w;
    if (i >= 2 && rank == 0) usleep(100 * 1000); /* the others have registered theirs, or have heard */
    if (i >= 2 && rank == 1) usleep(50 * 1000);
    ncclResult_t rc = ncclCommWindowRegister(c, rank == 1 && i % 2 ? NULL : memory, rank == 1 && !(i % 2) ? 0 : 4096,
                                             &win, NCCL_WIN_COLL_SYMMETRIC);
    if (rank == 1) IS(rc == ncclInvalidArgument && strstr(ncclGetLastError(NULL), cause));
    if (rank != 1 && rc == ncclSuccess) rc = ncclPutSignal(x, 16, ncclInt8, 1, win, 0, 0, 0, 0, c, NULL);
    if (rank != 1) IS(rc == ncclRemoteError || rc == ncclInvalidUsage);
    if (rank != 1) IS(strstr(ncclGetLastError(NULL), "rank 1 failed: ncclCommWindowRegister: ") != NULL);
    if (rank != 1) IS(strstr(ncclGetLastError(NULL), cause) != NULL);
    faults += open_window(c, WINDOW, s->plain, &w);
    faults += RANK_CHECK(ncclPutSignal(x, 16, ncclInt8, right, w.win, 0, 0, 0, 0, c, NULL)) +
              await(c, left, 1, 0, NULL);
    faults += RANK_CHECK(ncclAllReduce(x, x, 1, ncclInt8, ncclMax, c, NULL));
    faults += close_window(c, &w);
    if (win) faults += RANK_CHECK(ncclCommWindowDeregister(c, win));
    free(memory);
  }
  return faults;
}

/* A wrong call changes nothing. */
static int bad_arguments(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = rank};
  ncclWindow_t other = NULL;
  ncclCommProperties_t p = NCCL_COMM_PROPERTIES_INITIALIZER;
  void *memory = aligned_alloc(4096, 4096);
  char x[16] = {0};
  window w;
  int faults = RANK_CHECK(ncclCommQueryProperties(c, &p));
  IS(p.hostRmaSupport);
  IS(ncclSignal(0, 0, 0, 0, c, NULL) == ncclInvalidUsage); /* no window yet */
  IS(ncclWaitSignal(1, &d, c, NULL) == ncclInvalidUsage);
  faults += RANK_CHECK(ncclCommWindowRegister(c, memory, 4096, &other, NCCL_WIN_DEFAULT));
  faults += open_window(c, WINDOW, s->plain, &w);
#define PUT(to, win, at, sig, ctx, flags) ncclPutSignal(x, 16, ncclInt8, to, win, at, sig, ctx, flags, c, NULL)
  IS(PUT(-1, w.win, 0, 0, 0, 0) == ncclInvalidArgument);
  IS(PUT(n, w.win, 0, 0, 0, 0) == ncclInvalidArgument);
  IS(PUT(0, w.win, 0, 1, 0, 0) == ncclInvalidArgument && strstr(ncclGetLastError(NULL), "numRmaSig"));
  IS(PUT(0, w.win, 0, 0, CONTEXTS, 0) == ncclInvalidArgument);
  IS(PUT(0, w.win, 0, 0, 0, 1) == ncclInvalidArgument);
  IS(PUT(0, w.win, WINDOW - 15, 0, 0, 0) == ncclInvalidArgument);
  IS(PUT(0, w.win, SIZE_MAX - 3, 0, 0, 0) == ncclInvalidArgument);
  IS(PUT(0, NULL, 0, 0, 0, 0) == ncclInvalidArgument);
  IS(PUT(0, other, 0, 0, 0, 0) == ncclInvalidArgument && strstr(ncclGetLastError(NULL), "SYMMETRIC"));
  IS(PUT(0, (ncclWindow_t)(void *)x, 0, 0, 0, 0) == ncclInvalidArgument);
  IS(ncclPutSignal(NULL, 1, ncclInt8, 0, w.win, 0, 0, 0, 0, c, NULL) == ncclInvalidArgument);
  IS(ncclPutSignal(x, 1, (ncclDataType_t)99, 0, w.win, 0, 0, 0, 0, c, NULL) == ncclInvalidArgument);
  IS(ncclWaitSignal(0, &d, c, NULL) == ncclInvalidArgument);
  IS(ncclWaitSignal(1, NULL, c, NULL) == ncclInvalidArgument);
  d.opCnt = 0;
  IS(ncclWaitSignal(1, &d, c, NULL) == ncclInvalidArgument);
  d = (ncclWaitSignalDesc_t){.opCnt = 1, .peer = rank, .ctx = CONTEXTS};
  IS(ncclWaitSignal(1, &d, c, NULL) == ncclInvalidArgument);
  IS(ncclSignal(rank, 0, 0, 0, c, (cudaStream_t)(void *)x) == ncclInvalidArgument);
  faults += RANK_CHECK(PUT((rank + 1) % n, w.win, WINDOW - 16, 0, 0, 0)) + await(c, (rank + n - 1) % n, 1, 0, NULL);
#undef PUT
  faults += RANK_CHECK(ncclCommWindowDeregister(c, other));
  free(memory);
  return faults + close_window(c, &w);
}

/* Signals by index, and without a window, as the configuration says. */
TEST(configured) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclComm_t c;
  int faults = 0;
  config.numRmaCtx = 2;
  config.numRmaSig = 5;
  config.rmaEagerInit = 1;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRankConfig(&c, 1, id, 0, &config), ncclSuccess);
  for (int i = 0; i < 10; i++) IS(ncclSignal(0, i % 5, i / 5, 0, c, NULL) == ncclSuccess);
  IS(ncclSignal(0, 5, 0, 0, c, NULL) == ncclInvalidArgument);
  IS(ncclSignal(0, 0, 2, 0, c, NULL) == ncclInvalidArgument);
  for (int i = 9; i >= 0; i--) {
    ncclWaitSignalDesc_t d = {.opCnt = 1, .sigIdx = i % 5, .ctx = i / 5};
    IS(ncclWaitSignal(1, &d, c, NULL) == ncclSuccess);
  }
  IS(ncclCommDestroy(c) == ncclSuccess);
  config.numRmaSig = 0;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRankConfig(&c, 1, id, 0, &config), ncclSuccess);
  ncclCommProperties_t p = NCCL_COMM_PROPERTIES_INITIALIZER;
  IS(ncclCommQueryProperties(c, &p) == ncclSuccess && !p.hostRmaSupport);
  IS(ncclSignal(0, 0, 0, 0, c, NULL) == ncclInvalidArgument);
  IS(ncclCommDestroy(c) == ncclSuccess);
  ck_assert_int_eq(faults, 0);
}

static const rank_body bodies[] = {places, order, counts, groups, streams, bad_arguments, refused_window};
enum { BODIES = sizeof bodies / sizeof *bodies };

TEST_LOOP(works, SETTINGS *BODIES) { run(_i / BODIES, bodies[_i % BODIES]); }

/* ---- faults ---- */

/* The window's owner deregisters it, or registered a smaller one: the put says so, and nothing is overwritten. */
static int early(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  window small, w;
  char x[64];
  int faults = open_window(c, rank == 1 ? 4096 : 8192, s->plain, &small) + open_window(c, WINDOW, s->plain, &w);
  memset(x, 1, sizeof x);
  (void)n;
  if (rank == 0) {
    faults += RANK_CHECK(ncclPutSignal(x, 64, ncclInt8, 1, w.win, 0, 0, 0, 0, c, NULL));
    faults += await(c, 1, 1, 0, NULL); /* it has deregistered the window */
    ncclResult_t rc = ncclPutSignal(x, 64, ncclInt8, 1, small.win, 5000, 0, 0, 0, c, NULL);
    IS(rc == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "window 1 of rank 1"));
    rc = ncclPutSignal(x, 64, ncclInt8, 1, w.win, 0, 0, 0, 0, c, NULL);
    if (s->far) { /* a message: the owner reports it, and all ranks end with that */
      ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = 1};
      if (rc == ncclSuccess) rc = ncclWaitSignal(1, &d, c, NULL);
    }
    IS(rc == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "must stay registered"));
  } else if (rank == 1) {
    faults += await(c, 0, 1, 0, NULL);
    memset(w.memory, 0, 64);
    faults += RANK_CHECK(ncclCommWindowDeregister(c, w.win)) + RANK_CHECK(ncclSignal(0, 0, 0, 0, c, NULL));
  }
  float y = 0;
  IS(ncclAllReduce(&y, &y, 1, ncclFloat, ncclSum, c, NULL) == (s->far ? ncclInvalidUsage : ncclSuccess));
  IS(rank != 1 || w.memory[0] == 0);
  if (s->plain) free(w.memory), free(small.memory); /* no put is under way */
  return faults;
}

TEST_LOOP(windows_that_are_gone, SETTINGS) { run(_i, early); }

#ifndef __SANITIZE_THREAD__ /* allows no threads after a fork */
/* A rank dies: a wait for it ends with its name, also if another one waits for a living rank. */
static int survive(ncclComm_t c, int rank, int n, const setting *s) {
  window w;
  int faults = open_window(c, WINDOW, s->plain, &w), x = rank;
  float y = 0;
  (void)n;
  faults += RANK_CHECK(ncclPutSignal(&x, 1, ncclInt, (rank + 1) % n, w.win, 0, 0, 0, 0, c, NULL));
  faults += await(c, (rank + n - 1) % n, 1, 0, NULL);
  faults += RANK_CHECK(ncclAllReduce(&y, &y, 1, ncclFloat, ncclSum, c, NULL));
  fflush(NULL);
  if (rank == 1) kill(getpid(), SIGKILL);
  ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = rank == 0 ? 1 : 0, .ctx = 3};
  IS(ncclWaitSignal(1, &d, c, NULL) == ncclRemoteError);
  IS(strstr(ncclGetLastError(c), "rank 1") != NULL);
  ncclResult_t rc = ncclSuccess;
  for (int i = 0; i < 100 && rc == ncclSuccess; i++) rc = ncclPutSignal(&x, 1, ncclInt, 1, w.win, 0, 0, 0, 0, c, NULL);
  IS(rc == ncclRemoteError);
  faults += RANK_CHECK(ncclCommAbort(c));
  fflush(NULL);
  return faults;
}

TEST_LOOP(killed, 2) {
  const setting *s = &settings[_i ? 5 : 2];
  ncclUniqueId id;
  pid_t pids[RANKS];
  int ends[2];
  setenv("NCCL_NUM_RMA_CTX", "4", 1);
  if (_i) setenv("NCCL_SHM_DISABLE", "1", 1);
  ck_assert_int_eq(pipe(ends), 0);
  for (int r = 0; r < RANKS; r++) {
    pids[r] = fork();
    if (pids[r]) continue;
    ncclComm_t c;
    if (ranks_share_id(ends, r, RANKS, &id) || RANK_CHECK(ncclCommInitRank(&c, RANKS, id, r))) _exit(1);
    _exit(survive(c, r, RANKS, s));
  }
  for (int r = 0; r < RANKS; r++) {
    int status;
    waitpid(pids[r], &status, 0);
    if (r == 1)
      ck_assert(WIFSIGNALED(status));
    else
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status 0x%x", r, status);
  }
  close(ends[0]);
  close(ends[1]);
}
#endif

/* A rank leaves without the signal that another one waits for. */
static int leave_early(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  window w;
  int faults = open_window(c, WINDOW, s->plain, &w);
  ncclWaitSignalDesc_t d = {.opCnt = 2, .peer = 1, .ctx = 2};
  (void)n;
  faults += RANK_CHECK(ncclSignal(0, 0, 2, 0, c, NULL));
  if (s->plain) free(w.memory); /* no put comes */
  if (rank) return faults;      /* and destroys its communicator */
  ncclResult_t rc = ncclWaitSignal(1, &d, c, NULL);
  IS(rc == ncclRemoteError && strstr(ncclGetLastError(c), "rank 1 has left") &&
     strstr(ncclGetLastError(c), "WaitSignal(2 signals, rank 1) with signal 0 of context 2"));
  return faults;
}

TEST_LOOP(left, 3) { run(_i, leave_early); }

/* Rank 0 puts, alone or in a group, to a window that rank 1 never registers: the watchdog names put and rank. */
static int never_registered(ncclComm_t c, int rank, int n, void *arg) {
  const setting *s = arg;
  window first, second;
  int faults = open_window(c, WINDOW, s->plain, &first), grouped = getenv("GROUPED") != NULL;
  (void)n;
  if (rank == 0) {
    ncclResult_t rc = ncclSuccess;
    faults += open_window(c, WINDOW, s->plain, &second);
    if (grouped) faults += RANK_CHECK(ncclGroupStart());
    rc = ncclPutSignal(&faults, 1, ncclInt, 1, second.win, 0, 0, 1, 0, c, NULL);
    if (grouped) {
      IS(rc == ncclSuccess);
      faults += RANK_CHECK(ncclSignal(0, 0, 0, 0, c, NULL)); /* one call alone would not be run as a group */
      rc = ncclGroupEnd();
    }
    IS(rc == ncclRemoteError);
    if (s->plain) free(second.memory);
  } else {
    ncclResult_t rc = ncclSuccess;
    while (!RANK_CHECK(ncclCommGetAsyncError(c, &rc)) && rc == ncclSuccess) usleep(1000);
    IS(rc == ncclRemoteError);
  }
  IS(strstr(ncclGetLastError(c), "PutSignal to(1 x int32, rank 1) with signal 0 of context 1") != NULL);
  IS(strstr(ncclGetLastError(c), "for rank 1") != NULL);
  if (s->plain) free(first.memory);
  return faults;
}

TEST_LOOP(watched, 4) {
  setenv("HOCKET_WATCHDOG", "1", 1);
  setenv("HOCKET_WATCHDOG_ABORT", "1", 1);
  if (_i >= 2) setenv("GROUPED", "1", 1);
  run(_i % 2 ? 5 : 0, never_registered);
}

static void *abort_it(void *c) {
  sched_yield();
  ncclCommAbort(c); /* it may come before, in or after the wait: each is right */
  return NULL;
}

/* Another thread aborts the communicator while rank 0 waits for a signal that never comes. */
TEST_LOOP(aborted, 2) {
  ncclComm_t c[2];
  ncclWindow_t win;
  ncclUniqueId id;
  pthread_t thread;
  void *memory = aligned_alloc(4096, WINDOW);
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ncclGroupStart();
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommInitRank(&c[r], 2, id, r), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  for (int r = 0; r < 2; r++)
    ck_assert_int_eq(ncclCommWindowRegister(c[r], memory, WINDOW, &win, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
  ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = 1};
  if (_i) ncclGroupStart();
  ncclResult_t rc = ncclSuccess;
  if (_i) rc = ncclWaitSignal(1, &d, c[0], NULL);
  pthread_create(&thread, NULL, abort_it, c[0]);
  rc = _i ? ncclGroupEnd() : ncclWaitSignal(1, &d, c[0], NULL);
  ck_assert_int_ne(rc, ncclSuccess);
  pthread_join(thread, NULL);
  d.peer = 0;
  ck_assert_int_eq(ncclWaitSignal(1, &d, c[1], NULL), ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(c[1]), "rank 0 aborted"));
  ck_assert_int_eq(ncclCommAbort(c[1]), ncclSuccess);
  free(memory);
}

int main(void) { return suite_main("rma"); }
