/* SPDX-License-Identifier: Apache-2.0 */
/* One thread and its ranks. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "data.h"
#include "launch.h"
#include "mem.h"
#include "perf.h"
#include "team.h"

/* One rank. */
typedef struct perf_rank {
  int rank, device;
  ncclComm_t comm;
  cudaStream_t stream;
  char *send, *recv;             /* the start of the data, after the offset of -u */
  void *send_block, *recv_block; /* the allocated block */
  void *send_handle, *recv_handle;
  ncclRedOp_t mulsum;
  void *fence; /* a float for the sums between iterations with --rewrite */
  perf_ramp ramp;
} perf_rank;

/* What all threads of a process share. */
typedef struct perf_job {
  const perf_options *o;
  const perf_mem *mem;
  perf_team team;
  int nprocs, proc, nranks; /* of this group: all processes, unless NCCL_TESTS_SPLIT divides them */
  int oob_procs;
  ncclUniqueId id;
  size_t max_bytes;
  size_t steps; /* the number of measurements of the whole run, for the progress line; 0: endless */
} perf_job;

typedef struct perf_worker {
  perf_job *job;
  int thread;
  bool main; /* this thread reports */
  perf_rank *ranks;
  int nranks;
  pthread_t handle;
  /* the size that is being measured */
  perf_sizes n;               /* elements */
  size_t row_bytes, room_for; /* the size column, and the number of operations of this size that fit into the buffers */
  size_t elem;
  ncclDataType_t type;
  int op, root;
  uint32_t seed;
  /* the outcome */
  long errors;
  double bandwidth;
  long measured;
  size_t steps_done;
  double init_bytes, buffer_bytes, run_bytes, init_seconds;
  _Atomic(long long) waiting_since; /* milliseconds, 0 while not waiting; for -T */
} perf_worker;

long long perf_now_ms(void);
/* worker.c.  Gives every rank of the worker its communicator, by one group. */
void perf_worker_connect(perf_worker *w);
/* Buffers, registration, and all measurements. */
void perf_worker_run(perf_worker *w);
void perf_worker_free(perf_worker *w);
/* All measurements that -d, -o, -r, the sizes and -N ask for. */
size_t perf_count_steps(const perf_job *job);
/* bench.c: one row half. */
void perf_bench(perf_worker *w, bool in_place);
/* Untimed iterations of the current size. */
void perf_warm_up(perf_worker *w);
