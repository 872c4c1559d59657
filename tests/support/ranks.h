/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests: threads of this process, or processes of their own. */
#ifndef HK_TESTS_RANKS_H
#define HK_TESTS_RANKS_H
#include <nccl.h>
#include <stdint.h>

/* One rank's part of a test.  Gives 0, or the number of faults it printed. */
typedef int (*rank_body)(ncclComm_t comm, int rank, int nranks, void *arg);

/* Each makes a communicator of n ranks, runs the body on all of them, destroys it; gives the number of faults. */
int ranks_as_threads(int n, rank_body body, void *arg);
int ranks_as_processes(int n, rank_body body, void *arg);
/* `processes` processes with `threads` ranks each. */
int ranks_mixed(int processes, int threads, rank_body body, void *arg);

/* For tests that fork themselves: in process p of n, after the fork, the id that process 0 makes.  The parent only
 * opens `ends` (pipe(2)) before: a process with threads, which an id starts, must not fork under the address
 * sanitizer, whose allocator does not survive it. */
int ranks_share_id(const int ends[2], int p, int n, ncclUniqueId *id);

/* Prints file, line and the last error, and counts a fault, where the call does not give ncclSuccess. */
#define RANK_CHECK(call) rank_check_at((call), #call, __FILE__, __LINE__)
int rank_check_at(ncclResult_t result, const char *call, const char *file, int line);
/* The same if the condition does not hold. */
#define RANK_IS(condition) rank_is_at(condition, #condition, __FILE__, __LINE__)
int rank_is_at(int fine, const char *what, const char *file, int line);
/* Does a communicator of n ranks still work?  An allreduce of ones; gives its faults. */
int rank_works(ncclComm_t c, int n);
/* The same for one whose ranks are all in this thread. */
int ranks_work(const ncclComm_t *c, int n);
/* 1 or more, printed, if a communicator whose calls are over is still in one; 0 if it has failed.  It is looked at
 * before each rank of the functions below destroys its communicator. */
int rank_left_work(ncclComm_t c);
/* Communicators made from here on reach other ranks by "direct" (reads of their memory), "shm" or "net". */
void ranks_reach_by(const char *how);

/* ---- data whose results are known exactly ---- */
/* Elements repeat after a prime number of them: so a buffer's are computed once, and no block looks like its
 * neighbour. */
enum { TEST_PERIOD = 1021, TEST_REDUCED = -1 };
typedef struct test_block {
  ncclDataType_t type;
  ncclRedOp_t op;
  int rank; /* whose input it is; TEST_REDUCED: the reduction over all ranks' */
  int nranks;
  uint64_t first; /* the number of its first element in that rank's input */
  size_t count;
} test_block;
void test_fill(const test_block *b, void *at);
/* The first element at `at` that is wrong, and what it is and should be; b->count: none. */
size_t test_wrong(const test_block *b, const void *at, double *got, double *want);

/* One element of them. */
double test_value(int rank, int nranks, uint64_t element, ncclRedOp_t op);
void test_store(ncclDataType_t type, void *at, uint64_t index, double value);
double test_load(ncclDataType_t type, const void *at, uint64_t index);
uint64_t test_type_bytes(ncclDataType_t type);
/* What the reduction over all ranks of test_value gives; *tolerance is relative. */
double test_reduced(ncclDataType_t type, int nranks, uint64_t element, ncclRedOp_t op, double *tolerance);
#endif
