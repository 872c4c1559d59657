/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a job in which a fault happens: what its parts share.  It uses the public API only. */
#ifndef HK_TESTS_FAULTS_RANK_H
#define HK_TESTS_FAULTS_RANK_H
#include <hocket.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAULT(name, kind, outcome, seconds, what) FAULT_##name,
typedef enum fault {
#include "faults.def"
  FAULTS
} fault;
#undef FAULT
#define OPERATION(name, repeats, what) OP_##name,
typedef enum operation {
#include "operations.def"
  OPERATIONS
} operation;
#undef OPERATION

enum { RANKS = 4, NO_CODE = -1, LARGE = 3 << 20, QUIET = 1 << 30 };

/* Memory that all ranks of the job and the driver share: what they must know of each other without the library. */
typedef struct board {
  _Atomic(uint8_t) gone[16];  /* by rank: the process has ended; written by the driver too, at this place of the file */
  _Atomic(uint32_t) here[16]; /* a bit for each rank that has reached a meeting */
  _Atomic(int) started;       /* the newest repetition that rank 0 has begun, plus one */
  _Atomic(int) last;          /* the number of repetitions once rank 0 has decided it, else 0 */
  _Atomic(uint32_t) failed;   /* a bit for each rank whose operation has ended with an error; or QUIET: none has */
  _Atomic(uint32_t) ended;    /* a bit for each rank that is through with its calls */
  _Atomic(int) hold;          /* the last rank waits a moment before its next call, so that the others wait in theirs */
  _Atomic(int64_t) struck;    /* when the fault happened, in ns; 0: not yet */
  _Atomic(int) over;          /* the fault has done what it does */
} board;

/* A call with all that ranks must agree on; the victim's may differ. */
typedef struct call {
  size_t count; /* of 4-byte elements, or of 8-byte ones for small operations */
  ncclDataType_t type;
  ncclRedOp_t operator;
  int root, peer;
  bool swapped; /* a group: the calls in another order */
  int exclude;
  const void *in;
  void *out;
} call;

typedef struct counts {
  int fds, sockets, threads, maps, shared;
  long kb;
} counts;

typedef struct run {
  int rank, n, victim; /* n: ranks that are still there */
  fault fault;
  operation op;
  const char *folder;
  board *board;
  ncclComm_t comm;
  char *in, *out;    /* 12 MB and a page each */
  char *bad;         /* memory without any right, or to be read only */
  int port;          /* NCCL_COMM_ID's, for two jobs */
  int code;          /* ncclResult_t of the first call that failed; NO_CODE: it made none */
  char text[1024];   /* its text */
  const char *where; /* which call failed */
  int64_t called;    /* when the last call began, in ns */
  int64_t ended;     /* when, in ns */
  long wrong;        /* elements that are not what they must be */
  int hits, calls;   /* calls of the system that were made to fail; calls of the operation */
  pthread_t caller;
  unsigned char sockets_before[1024], sockets_control[1024]; /* descriptors in use, by number */
} run;

static inline bool is_victim(const run *w) { return w->rank == w->victim; }

/* ops.c: the operation once.  Checks the data, and counts in w->wrong what is wrong. */
call op_call(const run *w, int repetition);
ncclResult_t op_run(run *w, ncclComm_t c, const call *k, int repetition);
ncclResult_t op_next(run *w, ncclComm_t c); /* the call that follows in every job: an allreduce of five numbers */
ncclResult_t op_all(run *w, ncclComm_t c, int rank, int n); /* a small and a large one with all n ranks, checked */
void op_failed(run *w, ncclComm_t c, ncclResult_t code, const char *where);

/* meet.c: ranks without the library. */
board *board_open(const char *folder);
void meet(run *w, int number); /* waits for all ranks whose process lives; ends the process if that takes too long */
int64_t now_ns(void);
void pause_ms(int ms);
double slack(void); /* HOCKET_TEST_SLACK: what times are multiplied with on a slow machine */
void id_publish(run *w, const char *name, const ncclUniqueId *id);
void id_fetch(run *w, const char *name, ncclUniqueId *id);
int ranks_left(const run *w, int *mine); /* how many processes live, and which of them this one is */

/* inject.c: what happens. */
void inject_before(run *w); /* for FAULT_stop: a process that will continue this one */
void inject_warm(void);
void inject_sockets(run *w, int stage); /* 0: before the communicator; 1: there is one; 2: it has moved data */
void *inject_thread(void *arg);         /* faults of kind ASYNC; arg: the run */
void inject_spoil(run *w, call *k);     /* faults of kind CALL: the victim's call */
void inject_undo(run *w);

/* perform.c: the operation with the fault in it. */
void perform(run *w);
ncclResult_t init_comm(run *w, const char *name, int rank, int n, ncclComm_t *c);

/* measure.c */
counts measure(void);
counts measure_settled(const counts *aim, int ms); /* once nothing is above the aim, or after so long */
#endif
