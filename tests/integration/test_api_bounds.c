/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of each limit of the API's arguments: what is refused, with the words of its own check, and what is the
 * last value that is not. */
#include <hocket.h>
#include <stddef.h>
#include "../../src/api/device_abi.h"
#include "../../src/core/comm.h"
#include "../../src/failure/failure.h"
#include "../support/golden.h"
#include "../support/leftovers.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { N = 3, OPERATORS = 64, SIGNALS = 1, CONTEXTS = 1, WINDOW = 8192 };

static int gives(ncclResult_t got, ncclResult_t code, const char *text, const char *call, int line) {
  const char *said = ncclGetLastError(NULL);
  if (got == code && (code == ncclSuccess || strstr(said, text))) return 0;
  fprintf(stderr, "line %d: %s gives %d (%s), not %d (...%s...)\n", line, call, got, said, code, text);
  return 1;
}
#define REFUSED(call, text) faults += gives(call, ncclInvalidArgument, text, #call, __LINE__)
#define MISUSED(call, text) faults += gives(call, ncclInvalidUsage, text, #call, __LINE__)
#define TAKEN(call) faults += gives(call, ncclSuccess, "", #call, __LINE__)
#define IS(condition) faults += RANK_IS(condition)

/* Calls that are taken must not run: a group with a wrong call runs none of its calls. */
static int begin_refused_group(ncclComm_t c) {
  int faults = RANK_CHECK(ncclGroupStart());
  REFUSED(ncclBroadcast(NULL, NULL, 1, ncclInt8, -1, c, NULL), "root -1");
  return faults;
}
static int end_refused_group(void) { return gives(ncclGroupEnd(), ncclInvalidArgument, "", "the end", __LINE__); }

static int types_and_counts(ncclComm_t c, int rank, int n, void *arg) {
  const size_t most = (size_t)1 << 62;
  char b[64] = {0};
  const void *own = (const void *)((uintptr_t)b + (size_t)rank * (most / (size_t)n)); /* in place, of the most */
  int faults = begin_refused_group(c);
  (void)arg;
  TAKEN(ncclAllReduce(b, b, 1, (ncclDataType_t)(ncclNumTypes - 1), ncclSum, c, NULL));
  REFUSED(ncclAllReduce(b, b, 1, ncclNumTypes, ncclSum, c, NULL), "data type 12");
  TAKEN(ncclAllReduce(b, b, 1, (ncclDataType_t)0, ncclSum, c, NULL));
  REFUSED(ncclAllReduce(b, b, 1, (ncclDataType_t)-1, ncclSum, c, NULL), "data type -1");
  TAKEN(ncclAllReduce(b, b, most, ncclInt8, ncclSum, c, NULL));
  REFUSED(ncclAllReduce(b, b, most + 1, ncclInt8, ncclSum, c, NULL), "more bytes");
  TAKEN(ncclAllReduce(b, b, most / 8, ncclFloat64, ncclSum, c, NULL));
  REFUSED(ncclAllReduce(b, b, most / 8 + 1, ncclFloat64, ncclSum, c, NULL), "more bytes");
  TAKEN(ncclAllGather(own, b, most / (size_t)n, ncclInt8, c, NULL));
  REFUSED(ncclAllGather(b, b, most / (size_t)n + 1, ncclInt8, c, NULL), "more bytes");
  REFUSED(ncclAllReduce(b, b, SIZE_MAX / 8 + 2, ncclFloat64, ncclSum, c, NULL), "more bytes"); /* it overflows */
  REFUSED(ncclAllGather(b, b, SIZE_MAX / (size_t)n + 1, ncclInt8, c, NULL), "more bytes");
  return faults + end_refused_group() + rank_works(c, n);
}

static int roots_and_buffers(ncclComm_t c, int rank, int n, void *arg) {
  char b[64] = {0};
  const int other = (rank + 1) % n;
  int faults = begin_refused_group(c);
  (void)arg;
  for (int root = 0; root < n; root++) TAKEN(ncclBroadcast(b, b, 1, ncclInt8, root, c, NULL));
  REFUSED(ncclBroadcast(b, b, 1, ncclInt8, n, c, NULL), "root 3 is not a rank");
  REFUSED(ncclReduce(b, b, 1, ncclInt8, ncclSum, -2, c, NULL), "root -2 is not a rank");
  TAKEN(ncclSend(b, 1, ncclInt8, n - 1 == rank ? 0 : n - 1, c, NULL));
  TAKEN(ncclRecv(b, 1, ncclInt8, rank ? 0 : n - 1, c, NULL));
  REFUSED(ncclSend(b, 1, ncclInt8, n, c, NULL), "peer 3 is not a rank");
  REFUSED(ncclRecv(b, 1, ncclInt8, -1, c, NULL), "peer -1 is not a rank");
  /* Who has no part in it gives no buffer. */
  REFUSED(ncclBroadcast(NULL, b, 1, ncclInt8, rank, c, NULL), "sendbuff is NULL with count 1");
  TAKEN(ncclBroadcast(NULL, b, 1, ncclInt8, other, c, NULL));
  REFUSED(ncclBroadcast(b, NULL, 1, ncclInt8, other, c, NULL), "recvbuff is NULL with count 1");
  REFUSED(ncclReduce(b, NULL, 1, ncclInt8, ncclSum, rank, c, NULL), "recvbuff is NULL with count 1");
  TAKEN(ncclReduce(b, NULL, 1, ncclInt8, ncclSum, other, c, NULL));
  REFUSED(ncclReduce(NULL, b, 1, ncclInt8, ncclSum, other, c, NULL), "sendbuff is NULL with count 1");
  REFUSED(ncclGather(b, NULL, 1, ncclInt8, rank, c, NULL), "recvbuff is NULL with count 1");
  TAKEN(ncclGather(b, NULL, 1, ncclInt8, other, c, NULL));
  REFUSED(ncclScatter(NULL, b, 1, ncclInt8, rank, c, NULL), "sendbuff is NULL with count 1");
  TAKEN(ncclScatter(NULL, b, 1, ncclInt8, other, c, NULL));
  REFUSED(ncclScatter(b, NULL, 1, ncclInt8, other, c, NULL), "recvbuff is NULL with count 1");
  TAKEN(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, c, NULL));
  return faults + end_refused_group() + rank_works(c, n);
}

static int operators(ncclComm_t c, int rank, int n, void *arg) {
  ncclRedOp_t op[OPERATORS + 1];
  float two = 2, x = 1;
  int faults = begin_refused_group(c);
  (void)rank, (void)arg;
  TAKEN(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclAvg, c, NULL));
  REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat32, (ncclRedOp_t)-1, c, NULL), "operator -1 is neither");
  REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclNumOps, c, NULL), "operator 5 is neither"); /* there is none yet */
  REFUSED(ncclRedOpDestroy(ncclNumOps, c), "operator 5 was not made");
#define MAKE(op, scalar, type, residence) ncclRedOpCreatePreMulSum(op, scalar, type, residence, c)
  REFUSED(MAKE(NULL, &two, ncclFloat32, ncclScalarHostImmediate), "op (nil)");
  REFUSED(MAKE(op, NULL, ncclFloat32, ncclScalarHostImmediate), "scalar (nil)");
  REFUSED(MAKE(op, &two, ncclNumTypes, ncclScalarHostImmediate), "data type 12");
  REFUSED(MAKE(op, &two, (ncclDataType_t)-1, ncclScalarHostImmediate), "data type -1");
  REFUSED(MAKE(op, &two, ncclFloat32, (ncclScalarResidence_t)2), "residence 2");
  for (int i = 0; i < OPERATORS; i++) {
    TAKEN(MAKE(&op[i], &two, ncclFloat32, i % 2 ? ncclScalarDevice : ncclScalarHostImmediate));
    IS((int)op[i] == ncclNumOps + i);
  }
  MISUSED(MAKE(&op[OPERATORS], &two, ncclFloat32, ncclScalarDevice), "64 operators exist");
  TAKEN(ncclAllReduce(&x, &x, 1, ncclFloat32, op[OPERATORS - 1], c, NULL));
  REFUSED(ncclAllReduce(&x, &x, 1, ncclInt32, op[0], c, NULL), "was made for float, not for int32");
  REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat32, (ncclRedOp_t)(ncclNumOps + OPERATORS), c, NULL), "operator 69");
  REFUSED(ncclRedOpDestroy((ncclRedOp_t)(ncclNumOps + OPERATORS), c), "operator 69");
  REFUSED(ncclRedOpDestroy(ncclAvg, c), "operator 4");
  for (int i = 0; i < OPERATORS; i++) TAKEN(ncclRedOpDestroy(op[i], c));
  REFUSED(ncclRedOpDestroy(op[3], c), "destroyed already");
  REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat32, op[3], c, NULL), "operator 8 is neither");
  faults += end_refused_group();
  TAKEN(MAKE(&op[0], &two, ncclFloat32, ncclScalarHostImmediate));
  TAKEN(ncclAllReduce(&x, &x, 1, ncclFloat32, op[0], c, NULL));
  return faults + (x != (float)(2 * n)) + rank_works(c, n);
}

/* Children: the ranks make the same wrong calls, so all refuse them. */
static int children(ncclComm_t c, int rank, int n, void *arg) {
  const int other = (rank + 1) % n;
  int own[] = {rank}, twice[] = {other, other}, below[] = {-1}, beyond[] = {n}, all[] = {other, (rank + 2) % n, other};
  ncclComm_t child = c;
  ncclUniqueId id;
  int faults = 0;
  (void)arg;
  REFUSED(ncclCommShrink(c, own, 1, NULL, NULL, 0), "newcomm is NULL");
  REFUSED(ncclCommShrink(c, NULL, 1, &child, NULL, 0), "1 ranks to exclude of 3");
  IS(!child);
  REFUSED(ncclCommShrink(c, all, 0, &child, NULL, 0), "0 ranks to exclude of 3");
  REFUSED(ncclCommShrink(c, all, n, &child, NULL, 0), "3 ranks to exclude of 3");
  REFUSED(ncclCommShrink(c, twice, n - 1, &child, NULL, 0), "is named twice");
  REFUSED(ncclCommShrink(c, below, 1, &child, NULL, 0), "-1 is not a rank");
  REFUSED(ncclCommShrink(c, beyond, 1, &child, NULL, 0), "3 is not a rank");
  REFUSED(ncclCommShrink(c, own, 1, &child, NULL, 0), "is to be excluded");
  REFUSED(ncclCommSplit(c, 0, 0, NULL, NULL), "newcomm is NULL");
  child = c;
  REFUSED(ncclCommSplit(c, -2, 0, &child, NULL), "color -2");
  IS(!child);
  REFUSED(ncclCommGetUniqueId(c, NULL), "uniqueId is NULL");
  REFUSED(ncclCommGrow(NULL, n + 1, NULL, n, &child, NULL), "needs the id");
  REFUSED(ncclCommGrow(c, n + 1, NULL, -1, NULL, NULL), "4 ranks: ranks of the communicator");
  REFUSED(ncclCommGrow(c, n, NULL, -1, &child, NULL), "rank -1, 3 ranks");
  REFUSED(ncclCommGrow(c, 524288, NULL, -1, &child, NULL), "rank -1, 524288 ranks");
  REFUSED(ncclCommGrow(c, n + 1, NULL, rank, &child, NULL), "4 ranks: ranks of the communicator");
  REFUSED(ncclCommRevoke(c, 1), "flags 1");
  TAKEN(ncclCommSplit(c, rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &child, NULL));
  IS(!child == (rank == 0));
  if (child) faults += rank_works(child, n - 1) + RANK_CHECK(ncclCommDestroy(child));
  if (rank == 0) {
    TAKEN(ncclCommGetUniqueId(c, &id));
    MISUSED(ncclCommGetUniqueId(c, &id), "one a growth");
  }
  return faults + rank_works(c, n);
}

static int windows(ncclComm_t c, int rank, int n, void *arg) {
  static const char no_window[] = "NULL or not a window";
  ncclWindow_t win = NULL, gin = NULL;
  void *at = NULL, *handle = NULL, *memory = aligned_alloc(4096, WINDOW + 4096);
  int faults = 0;
  (void)arg;
#define WINDOW_OF(at, bytes, win, flags) ncclCommWindowRegister(c, at, bytes, win, flags)
  REFUSED(WINDOW_OF(NULL, WINDOW, &win, NCCL_WIN_DEFAULT), "buff is NULL");
  REFUSED(WINDOW_OF(memory, 0, &win, NCCL_WIN_DEFAULT), "size is 0");
  REFUSED(WINDOW_OF(memory, SIZE_MAX - 4095, &win, NCCL_WIN_DEFAULT), "more than there are addresses");
  REFUSED(WINDOW_OF(memory, WINDOW, NULL, NCCL_WIN_DEFAULT), "win is NULL");
  REFUSED(WINDOW_OF(memory, WINDOW, &win, NCCL_WIN_CFT_COUNTED), "flags 0x8");
  REFUSED(WINDOW_OF(memory, WINDOW, &win, NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_GIN_ONLY), "flags 0x5");
  REFUSED(WINDOW_OF((char *)memory + 2048, WINDOW, &win, NCCL_WIN_DEFAULT), "not aligned to 4096");
  TAKEN(WINDOW_OF(memory, WINDOW, &win, NCCL_WIN_DEFAULT | NCCL_WIN_STRICT_ORDERING));
  TAKEN(WINDOW_OF((char *)memory + 4096, 1, &gin, NCCL_WIN_GIN_ONLY));
  TAKEN(ncclWinGetUserPtr(c, gin, &at));
  IS(at == (char *)memory + 4096);
  REFUSED(ncclWinGetUserPtr(c, win, NULL), no_window);
  REFUSED(ncclWinGetUserPtr(c, NULL, &at), no_window);
  MISUSED(ncclGetLsaDevicePointer(gin, 0, 0, &at), "NCCL_WIN_GIN_ONLY");
  TAKEN(ncclGetLsaDevicePointer(win, WINDOW - 1, 0, &at));
  IS(at == (char *)memory + WINDOW - 1);
  REFUSED(ncclGetLsaDevicePointer(win, WINDOW, 0, &at), "offset 8192 of a window of 8192 bytes");
  REFUSED(ncclGetLsaDevicePointer(win, 0, 1, &at), "rank 1 of an LSA team of 1");
  REFUSED(ncclGetLsaDevicePointer(win, 0, -1, &at), "rank -1 of an LSA team");
  REFUSED(ncclGetLsaDevicePointer(win, 0, 0, NULL), no_window);
  for (int peer = 0; peer < n; peer++) {
    TAKEN(ncclGetPeerDevicePointer(win, 5, peer, &at));
    IS(at == (peer == rank ? (char *)memory + 5 : NULL));
  }
  REFUSED(ncclGetPeerDevicePointer(win, 0, n, &at), "rank 3 of 3");
  REFUSED(ncclGetPeerDevicePointer(win, 0, -1, &at), "rank -1 of 3");
  REFUSED(ncclGetLsaMultimemDevicePointer(win, WINDOW, &at), "offset 8192");
  TAKEN(ncclGetMultimemDevicePointer(win, 0, (ncclMultimemHandle_t){memory}, &at));
  IS(!at);
  REFUSED(ncclGetMultimemDevicePointer(win, 0, (ncclMultimemHandle_t){NULL}, &at), "handle is empty");
  TAKEN(ncclCommWindowDeregister(c, win));
  REFUSED(ncclCommWindowDeregister(c, win), "not a registration");
  REFUSED(ncclGetPeerDevicePointer(win, 0, 0, &at), no_window);
  TAKEN(ncclCommDeregister(c, gin)); /* any handle */
  REFUSED(ncclCommRegister(c, memory, 8, NULL), "handle is NULL");
  REFUSED(ncclCommRegister(c, memory, SIZE_MAX, &handle), "more than there are addresses");
  REFUSED(ncclCommRegister(c, memory, (size_t)1 << 46, &handle), "more than all memory of this host");
  REFUSED(ncclCommRegister(c, NULL, 8, &handle), "buff is NULL, and size is 8");
  TAKEN(ncclCommRegister(c, NULL, 0, &handle));
  TAKEN(ncclCommDeregister(c, handle));
  free(memory);
  return faults + rank_works(c, n);
}

static int signals(ncclComm_t c, int rank, int n, void *arg) {
  void *memory = NULL;
  char x[16] = {0};
  ncclWindow_t win = NULL;
  int faults = RANK_CHECK(ncclMemAlloc(&memory, WINDOW)), next = (rank + 1) % n, last = (rank + n - 1) % n;
  ncclWaitSignalDesc_t d[2] = {{.opCnt = 1, .peer = last}, {.opCnt = 1, .peer = last}};
  (void)arg;
  TAKEN(ncclCommWindowRegister(c, memory, WINDOW, &win, NCCL_WIN_COLL_SYMMETRIC));
#define PUT(from, type, to, at, sig, ctx) ncclPutSignal(from, 16, type, to, win, at, sig, ctx, 0, c, NULL)
  REFUSED(PUT(x, ncclInt8, n, 0, 0, 0), "peer 3 is not a rank");
  REFUSED(PUT(x, ncclInt8, -1, 0, 0, 0), "peer -1 is not a rank");
  REFUSED(PUT(x, ncclInt8, next, 0, SIGNALS, 0), "signal 1 of context 0");
  REFUSED(PUT(x, ncclInt8, next, 0, -1, 0), "signal -1 of context 0");
  REFUSED(PUT(x, ncclInt8, next, 0, 0, CONTEXTS), "signal 0 of context 1");
  REFUSED(PUT(x, ncclInt8, next, 0, 0, -1), "signal 0 of context -1");
  REFUSED(PUT(x, ncclNumTypes, next, 0, 0, 0), "data type 12");
  REFUSED(PUT(x, (ncclDataType_t)-1, next, 0, 0, 0), "data type -1");
  REFUSED(PUT(NULL, ncclInt8, next, 0, 0, 0), "localbuff is NULL with count 16");
  REFUSED(PUT(x, ncclInt8, next, WINDOW - 15, 0, 0), "not inside of the window's 8192 bytes");
  REFUSED(PUT(x, ncclFloat64, next, WINDOW - 127, 0, 0), "not inside of the window's 8192 bytes");
  REFUSED(PUT(x, ncclInt8, next, SIZE_MAX - 7, 0, 0), "not inside of the window's 8192 bytes");
  REFUSED(ncclSignal(next, 0, 0, 1, c, NULL), "flags 0x1");
  REFUSED(ncclWaitSignal(0, d, c, NULL), "0 descriptors at");
  REFUSED(ncclWaitSignal(-1, d, c, NULL), "-1 descriptors at");
  REFUSED(ncclWaitSignal(1, NULL, c, NULL), "1 descriptors at (nil)");
  d[1].opCnt = 0;
  REFUSED(ncclWaitSignal(2, d, c, NULL), "opCnt 0 of descriptor 1");
  d[1] = (ncclWaitSignalDesc_t){.opCnt = 1, .peer = n};
  REFUSED(ncclWaitSignal(2, d, c, NULL), "peer 3 is not a rank");
  TAKEN(PUT(x, ncclInt8, next, WINDOW - 16, 0, 0)); /* the last place */
  TAKEN(ncclWaitSignal(1, d, c, NULL));
  faults += rank_works(c, n);
  TAKEN(ncclCommWindowDeregister(c, win));
  TAKEN(ncclMemFree(memory));
  return faults;
}

/* Calls outside of a group. */
static int calls_alone(ncclComm_t c, int rank, int n, void *arg) {
  float b[4] = {0};
  int faults = 0;
  (void)arg;
  MISUSED(ncclSend(b, 1, ncclFloat32, rank, c, NULL), "itself");
  MISUSED(ncclGroupEnd(), "no group is open");
  REFUSED(ncclAllReduce(b, b, 1, ncclFloat32, ncclSum, NULL, NULL), "communicator is NULL");
  REFUSED(ncclAllReduce(b, b, 1, ncclFloat32, ncclSum, c, (cudaStream_t)(void *)b), "stream");
  REFUSED(ncclCommCount(c, NULL), "NULL");
  REFUSED(ncclCommGetAsyncError(c, NULL), "NULL");
  REFUSED(ncclCommDeregister(c, b), "registration");
  REFUSED(ncclMemFree(b), "");
  return faults + rank_works(c, n);
}

static const rank_body bodies[] = {types_and_counts, roots_and_buffers, operators,  children,
                                   windows,          signals,           calls_alone};

TEST_LOOP(of_a_communicator, sizeof bodies / sizeof *bodies) {
  ck_assert_int_eq(ranks_as_threads(N, bodies[_i], NULL), 0);
}

TEST(of_an_init) {
  ncclUniqueId id[2];
  ncclComm_t c = NULL;
  int faults = 0;
  TAKEN(ncclGetUniqueId(&id[0]));
  id[1] = id[0];
  REFUSED(ncclGetUniqueId(NULL), "uniqueId is NULL");
  REFUSED(ncclCommInitRank(NULL, 1, id[0], 0), "comm is NULL");
  REFUSED(ncclCommInitRank(&c, 0, id[0], 0), "rank 0 of 0 ranks");
  REFUSED(ncclCommInitRank(&c, 524288, id[0], 0), "rank 0 of 524288 ranks");
  REFUSED(ncclCommInitRank(&c, 1, id[0], 1), "rank 1 of 1 ranks");
  REFUSED(ncclCommInitRank(&c, 1, id[0], -1), "rank -1 of 1 ranks");
  REFUSED(ncclCommInitRankScalable(&c, 1, 0, 0, id, NULL), "0 ids for 1 ranks");
  REFUSED(ncclCommInitRankScalable(&c, 1, 0, 2, id, NULL), "2 ids for 1 ranks");
  REFUSED(ncclCommInitRankScalable(&c, 1, 0, 1, NULL, NULL), "1 ids for 1 ranks");
  REFUSED(ncclCommInitAll(NULL, 1, NULL), "1 devices into (nil)");
  REFUSED(ncclCommInitAll(&c, 0, NULL), "0 devices into");
  REFUSED(ncclCommInitAll(&c, 1, (int[]){-1}), "device -1 at place 0");
  TAKEN(ncclCommInitRankScalable(&c, 1, 0, 1, id, NULL));
  REFUSED(hocketCommSetBatchInvariant(c, 2), "2: give 1");
  REFUSED(hocketCommSetBatchInvariant(c, -1), "-1: give 1");
  TAKEN(hocketCommSetBatchInvariant(c, 1));
  TAKEN(hocketCommSetBatchInvariant(c, 0));
  TAKEN(ncclCommDestroy(c));
  memset(&id[0], 0x5a, sizeof id[0]);
  REFUSED(ncclCommInitRank(&c, 2, id[0], 0), "was not made by this library");
  ck_assert_int_eq(faults, 0);
}

TEST(of_an_estimate) {
  const size_t least = offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float);
  int faults = 0;
  for (int i = 0; i < 4; i++) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    info.estimatedTime = -1;
    if (i == 1) info.size = least;
    if (i == 2) info.size = least - 1;
    if (i == 3) info.magic++;
    TAKEN(ncclGroupStart());
    if (i < 2) {
      TAKEN(ncclGroupSimulateEnd(&info));
    } else {
      REFUSED(ncclGroupSimulateEnd(&info), "simInfo has size");
    }
    IS(info.estimatedTime == (i < 2 ? 0 : -1));
  }
  TAKEN(ncclGroupStart());
  TAKEN(ncclGroupSimulateEnd(NULL));
  MISUSED(ncclGroupEnd(), "no group is open");
  ck_assert_int_eq(faults, 0);
}

TEST(of_device_resources) {
  enum { MOST = 1 << 24 };
  static const int slots[][3] = {{3, 8, 3}, {3, 9, 6}, {3, 16, 6}, {3, 1, 3},
                                 {3, 0, 0}, {0, 8, 0}, {-1, 8, 0}, {3, -1, 0}};
  ncclTeam_t team = {.nRanks = 2, .rank = 0, .stride = 1}, none = {.nRanks = 0, .stride = 1};
  ncclLsaBarrierHandle_t *barrier = calloc(1, 256);
  ncclLLA2AHandle_t *ll = calloc(1, 256);
  ncclDevResourceRequirements_t *r = calloc(1, 256);
  int faults = 0;
  TAKEN(ncclLsaBarrierCreateRequirement(team, 0, barrier, r));
  TAKEN(ncclLsaBarrierCreateRequirement(team, MOST, barrier, r));
  REFUSED(ncclLsaBarrierCreateRequirement(team, MOST + 1, barrier, r), "out of range");
  REFUSED(ncclLsaBarrierCreateRequirement(team, -1, barrier, r), "out of range");
  REFUSED(ncclLsaBarrierCreateRequirement(none, 1, barrier, r), "out of range");
  REFUSED(ncclLsaBarrierCreateRequirement(team, 1, NULL, r), "handle (nil)");
  REFUSED(ncclLsaBarrierCreateRequirement(team, 1, barrier, NULL), "requirement (nil)");
  TAKEN(ncclLLA2ACreateRequirement(MOST, MOST, ll, r));
  REFUSED(ncclLLA2ACreateRequirement(MOST + 1, 1, ll, r), "out of range");
  REFUSED(ncclLLA2ACreateRequirement(1, MOST + 1, ll, r), "out of range");
  REFUSED(ncclLLA2ACreateRequirement(-1, 1, ll, r), "out of range");
  REFUSED(ncclLLA2ACreateRequirement(1, -1, ll, r), "out of range");
  for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
    IS(ncclLLA2ACalcSlots(slots[i][0], slots[i][1]) == slots[i][2]);
  free(barrier);
  free(ll);
  free(r);
  ck_assert_int_eq(faults, 0);
}

/* ---- communicators that cannot take the call ---- */

static char b[64];
static int count;
static void *place;
static uint64_t bytes;
static ncclComm_t child;
static ncclUniqueId id;
static ncclResult_t async;
static ncclWindow_t win;
static ncclRedOp_t op;
static ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
static size_t one[] = {1};
static const ncclTeam_t alone = {.nRanks = 1, .rank = 0, .stride = 1};
#define EACH_CALL(CALL)                                                                                                \
  CALL(ncclAllReduce, (b, b, 1, ncclInt8, ncclSum, c, NULL))                                                           \
  CALL(ncclBroadcast, (b, b, 1, ncclInt8, 0, c, NULL))                                                                 \
  CALL(ncclBcast, (b, 1, ncclInt8, 0, c, NULL))                                                                        \
  CALL(ncclReduce, (b, b, 1, ncclInt8, ncclSum, 0, c, NULL))                                                           \
  CALL(ncclReduceScatter, (b, b, 1, ncclInt8, ncclSum, c, NULL))                                                       \
  CALL(ncclAllGather, (b, b, 1, ncclInt8, c, NULL))                                                                    \
  CALL(ncclAlltoAll, (b, b + 8, 1, ncclInt8, c, NULL))                                                                 \
  CALL(ncclGather, (b, b, 1, ncclInt8, 0, c, NULL))                                                                    \
  CALL(ncclScatter, (b, b, 1, ncclInt8, 0, c, NULL))                                                                   \
  CALL(ncclAllReduceConfig, (b, b, 1, ncclInt8, ncclSum, c, NULL, NULL))                                               \
  CALL(hocketAlltoAllv, (b, one, NULL, b + 8, one, NULL, ncclInt8, c, NULL))                                           \
  CALL(hocketAllGatherv, (b, b, one, NULL, ncclInt8, c, NULL))                                                         \
  CALL(hocketReduceScatterv, (b, b, one, NULL, ncclInt8, ncclSum, c, NULL))                                            \
  CALL(hocketCommProbe, (c, 0, &count))                                                                                \
  CALL(hocketCommSetBatchInvariant, (c, 0))                                                                            \
  CALL(hocketCommSetQuantised, (c, 0))                                                                                 \
  CALL(hocketAllReduceQuantised, (b, b, 1, ncclFloat32, ncclSum, c, NULL))                                             \
  CALL(ncclSend, (b, 1, ncclInt8, 0, c, NULL))                                                                         \
  CALL(ncclRecv, (b, 1, ncclInt8, 0, c, NULL))                                                                         \
  CALL(ncclSignal, (0, 0, 0, 0, c, NULL))                                                                              \
  CALL(ncclPutSignal, (b, 1, ncclInt8, 0, win, 0, 0, 0, 0, c, NULL))                                                   \
  CALL(ncclWaitSignal, (0, NULL, c, NULL))                                                                             \
  CALL(ncclRedOpCreatePreMulSum, (&op, b, ncclInt8, ncclScalarHostImmediate, c))                                       \
  CALL(ncclRedOpDestroy, (ncclNumOps, c))                                                                              \
  CALL(ncclCommCount, (c, &count))                                                                                     \
  CALL(ncclCommUserRank, (c, &count))                                                                                  \
  CALL(ncclCommCuDevice, (c, &count))                                                                                  \
  CALL(ncclCommGetAsyncError, (c, &async))                                                                             \
  CALL(ncclCommMemStats, (c, (ncclCommMemStat_t)0, &bytes))                                                            \
  CALL(ncclCommQueryProperties, (c, &properties))                                                                      \
  CALL(ncclCommGetUniqueId, (c, &id))                                                                                  \
  CALL(ncclCommSplit, (c, 0, 0, &child, NULL))                                                                         \
  CALL(ncclCommShrink, (c, NULL, 0, &child, NULL, 0))                                                                  \
  CALL(ncclCommGrow, (c, 1, NULL, -1, &child, NULL))                                                                   \
  CALL(ncclCommSuspend, (c, NCCL_SUSPEND_MEM))                                                                         \
  CALL(ncclCommResume, (c))                                                                                            \
  CALL(ncclCommRegister, (c, b, 64, &place))                                                                           \
  CALL(ncclCommDeregister, (c, b))                                                                                     \
  CALL(ncclCommWindowRegister, (c, b, 64, &win, 0))                                                                    \
  CALL(ncclCommWindowDeregister, (c, (ncclWindow_t)(void *)b))                                                         \
  CALL(ncclWinGetUserPtr, (c, (ncclWindow_t)(void *)b, &place))                                                        \
  CALL(ncclDevCommCreate, (c, NULL, NULL))                                                                             \
  CALL(ncclDevCommDestroy, (c, NULL))                                                                                  \
  CALL(ncclTeamRankToWorld, (c, alone, 0))                                                                             \
  CALL(ncclTeamRankToLsa, (c, alone, 0))                                                                               \
  CALL(ncclCommRevoke, (c, 0))                                                                                         \
  CALL(ncclCommFinalize, (c))                                                                                          \
  CALL(ncclCommDestroy, (c))                                                                                           \
  CALL(ncclCommAbort, (c))
enum {
#define CALL(name, args) CALL_##name,
  EACH_CALL(CALL)
#undef CALL
      CALLS,
  LAST_ONES = CALL_ncclCommRevoke /* from here on they change it */
};
static const char *const names[] = {
#define CALL(name, args) #name,
    EACH_CALL(CALL)
#undef CALL
};
static int call(int which, ncclComm_t c) {
  switch (which) {
#define CALL(name, args)                                                                                               \
  case CALL_##name: return (int)name args;
    EACH_CALL(CALL)
#undef CALL
  }
  return -1;
}

/* Addresses are not the same in each run. */
static const char *without_addresses(const char *from) {
  static char text[1024];
  size_t n = 0;
  while (*from && n < sizeof text - 2) {
    text[n++] = *from++;
    if (n < 2 || text[n - 1] != 'x' || text[n - 2] != '0') continue;
    from += strspn(from, "0123456789abcdef");
    text[n++] = '*';
  }
  text[n] = 0;
  return text;
}

static void no_communicator(ncclComm_t *c) { *c = NULL; }
static void other_memory(ncclComm_t *c) {
  static struct ncclComm zeros;
  if (*c && *c != &zeros) ck_assert_int_eq(ncclCommDestroy(*c), ncclSuccess);
  *c = &zeros;
}
static void freed(ncclComm_t *c) { ck_assert_int_eq(ncclCommDestroy(*c), ncclSuccess); }
static void forked(ncclComm_t *c) { (*c)->forks++; }
static void in_its_init(ncclComm_t *c) { atomic_store(&(*c)->health.progress, HK_IN_PROGRESS); }
static void finalized(ncclComm_t *c) { ck_assert_int_eq(ncclCommFinalize(*c), ncclSuccess); }
static void failed(ncclComm_t *c) { hk_comm_fail(*c, HK_ERR_REMOTE, "the test says so"); }
static void revoked(ncclComm_t *c) { ck_assert_int_eq(ncclCommRevoke(*c, 0), ncclSuccess); }
static void closing(ncclComm_t *c) { atomic_store(&(*c)->health.closing, HK_CLOSING_DESTROY); }
static void in_another_group(ncclComm_t *c) { atomic_store(&(*c)->health.queued, 1); }
static void in_this_group(ncclComm_t *c) {
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(b, b, 1, ncclInt8, ncclSum, *c, NULL), ncclSuccess);
}
static ncclComm_t born; /* by the group */
static void child_in_this_group(ncclComm_t *c) {
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclCommSplit(*c, 0, 0, &born, NULL), ncclSuccess);
}
static void init_in_this_group(ncclComm_t *c) {
  ck_assert_int_eq(ncclCommDestroy(*c), ncclSuccess);
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRank(&born, 1, id, 0), ncclSuccess);
  *c = born;
}
static const struct {
  const char *name;
  void (*enter)(ncclComm_t *c);
  int first, end; /* calls: the others wait or run in this state */
} states[] = {
    {"no communicator", no_communicator, 0, CALLS},
    {"other memory", other_memory, 0, CALLS},
    {"freed", freed, 0, CALLS},
    {"forked", forked, 0, CALLS},
    {"in its init", in_its_init, 0, LAST_ONES},
    {"finalized", finalized, 0, CALLS},
    {"failed", failed, 0, CALLS},
    {"revoked", revoked, 0, CALLS},
    {"closing", closing, CALL_ncclCommFinalize, CALLS},
    {"in another group", in_another_group, LAST_ONES, CALL_ncclCommAbort},
    {"in this group", in_this_group, LAST_ONES, CALLS},
    {"child in this group", child_in_this_group, LAST_ONES, CALLS},
    {"init in this group", init_in_this_group, LAST_ONES, CALLS},
};
#define STATES_FILE "tests/golden/api_states.txt"

/* The last error of a call, without its name. */
static void add_result(golden_bins *bins, const char *call, int result, const char *more) {
  const char *error = without_addresses(ncclGetLastError(NULL));
  const size_t n = strlen(call);
  char text[600];
  const bool named = !strncmp(error, call, n);
  snprintf(text, sizeof text, "%d%s %s%.500s", result, more, named ? "it" : "", error + (named ? n : 0));
  golden_bin(bins, text, call);
}

/* What each call gives in a state, and why: a line of the file has the calls that give the same. */
TEST_LOOP(in_a_state, sizeof states / sizeof *states) {
  golden g = golden_open(STATES_FILE, states[_i].name);
  golden_bins results = {.n = 0}, groups = {.n = 0};
  ncclComm_t c = NULL;
  setenv("NCCL_DEBUG", "NONE", 1);
  for (int k = states[_i].first; k < states[_i].end; k++) {
    child = NULL;
    if (!c || k >= LAST_ONES) {
      ck_assert_int_eq(ncclCommInitAll(&c, 1, NULL), ncclSuccess);
      states[_i].enter(&c);
    }
    (void)hk_error_adopt("-");
    add_result(&results, names[k], call(k, c), "");
    if (child) ck_assert_int_eq(ncclCommDestroy(child), ncclSuccess);
    if (!strstr(states[_i].name, "in this group")) continue;
    const int ended = (int)ncclGroupEnd();
    add_result(&groups, names[k], ended, born ? ", born," : "");
    born = NULL;
  }
  golden_bins_end(&g, &results, states[_i].name);
  char group[80];
  snprintf(group, sizeof group, "%s, the group", states[_i].name);
  golden_bins_end(&g, &groups, group);
  leftovers_ignore(); /* the communicators */
  golden_close(&g);
}

/* What a device communicator may ask for, by its version and each number alone. The calls are in a group that has a
 * wrong call, so that none of them is carried out. */
#define REQUIREMENTS_FILE "tests/golden/requirements.txt"
TEST(requirements) {
  static const unsigned versions[] = {0,     22901, 22902, 22903, 22904, 22905, 22907,
                                      22908, 23000, 23007, 23100, 23203, 23204};
  static const struct {
    const char *name;
    size_t at;
    int bytes;
  } fields[] = {
#define FIELD(name, bytes) {#name, offsetof(hk_requirements, name), bytes}
      FIELD(barriers, 4),       FIELD(lsa_barriers, 4), FIELD(rail_gin_barriers, 4),  FIELD(ll_blocks, 4),
      FIELD(ll_slots, 4),       FIELD(gin, 1),          FIELD(gin_signals, 4),        FIELD(gin_counters, 4),
      FIELD(gin_connection, 4), FIELD(gin_type, 4),     FIELD(world_gin_barriers, 4), FIELD(cft_caps, 4),
      FIELD(cft_barriers, 4),   FIELD(lsa_multimem, 1),
#undef FIELD
  };
  static const int32_t values[] = {-1, 0, 1, 1 << 24, (1 << 24) + 1};
  golden g = golden_open(REQUIREMENTS_FILE, "");
  ncclComm_t c;
  char device[256];
  setenv("NCCL_DEBUG", "NONE", 1);
  ck_assert_int_eq(ncclCommInitAll(&c, 1, NULL), ncclSuccess);
  c->lsa.kernels = true;
  ck_assert_int_eq(begin_refused_group(c), 0);
  for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
    golden_bins same = {.n = 0};
    char version[20];
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
      char codes[80] = "";
      for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        hk_requirements r = {.size = sizeof r, .magic = 0xcafebeef, .version = versions[v]};
        const int32_t value = fields[f].bytes == 1 ? values[i] & 1 : values[i];
        memcpy((char *)&r + fields[f].at, &value, (size_t)fields[f].bytes);
        const ncclResult_t rc =
            ncclDevCommCreate(c, (const ncclDevCommRequirements_t *)(void *)&r, (ncclDevComm_t *)(void *)device);
        snprintf(codes + strlen(codes), sizeof codes - strlen(codes), "%s%d", i ? " " : "", (int)rc);
      }
      golden_bin(&same, codes, fields[f].name);
    }
    snprintf(version, sizeof version, "%u", versions[v]);
    golden_bins_end(&g, &same, version);
  }
  ck_assert_int_eq(end_refused_group(), 0);
  ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
  golden_close(&g);
}

int main(void) {
  setenv("NCCL_NUM_RMA_CTX", "1", 1);
  golden_clear(STATES_FILE);
  golden_clear(REQUIREMENTS_FILE);
  return suite_main("api_bounds", .timeout = 60);
}
