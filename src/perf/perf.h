/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the perf program, which has a name for each operation. It calls the library by the NCCL API
 * alone, so the same program measures any libnccl.so.2.
 *
 *   operations.c  what is measured: a descriptor (perf_coll) for each name
 *   main.c      start to end of one process          options.c  the command line
 *   launch.c    which process am I, of how many; exchange between processes
 *   team.c      barrier and reduction over threads and processes
 *   worker.c    set-up of one thread's ranks         bench.c    the measurement of one size
 *   data.c      test patterns and their check        types.c    data types and operators
 *   mem_*.c     memory and streams                   report.c, json.c, plot.c  results */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes, as nccl-tests numbers them. */
enum {
  PERF_OK = 0,
  PERF_INTERNAL = 1,
  PERF_NCCL = 3,
  PERF_TIMEOUT = 4,
  PERF_UNSUPPORTED = 5,
  PERF_WRONG = 7,
  PERF_USAGE = 255
};

enum { PERF_OP_MULSUM = 5, PERF_NUM_OPS = 6, PERF_ALL = -1 };

/* Which buffers are measured: input and output separate (out of place), or the input in the output (in place). */
enum { PERF_PLACES_BOTH, PERF_PLACES_OUT, PERF_PLACES_IN };

typedef struct perf_options {
  int threads, gpus, procs; /* procs: 0 unless --procs */
  size_t min_bytes, max_bytes, step_bytes, step_factor;
  int iters, warmup, agg, cycles;
  int parallel_init, check, blocking, stream_null, timeout, graph, cputime, timestamps, average, reg, cta_policy,
      memory;
  int unalign, per_iter, per_iter_skip, rewrite;
  int places;
  int op, type, root; /* an index, or PERF_ALL */
  const char *json, *plot, *launcher;
  const struct perf_coll *coll; /* what is measured */
  const char *program;
  char **argv;
  int argc;
} perf_options;

/* options.c. Sets the defaults and reads the command line; exits on --help and on a wrong option. */
void perf_options_parse(perf_options *o, int argc, char **argv);

/* types.c */
extern const char *const perf_type_names[ncclNumTypes];
extern const char *const perf_op_names[PERF_NUM_OPS];
size_t perf_type_size(ncclDataType_t type);
/* One element of `type` with a small integer value: the scalars of mulsum. */
uint64_t perf_type_small(ncclDataType_t type, unsigned value);
/* The number in element i, for comparisons with a tolerance. */
double perf_type_decode(ncclDataType_t type, const void *data, size_t i);

/* Sizes of one rank's buffers for `count` elements of the table's size column; in elements, later in bytes. */
typedef struct perf_sizes {
  size_t send, recv;                   /* the whole of a rank's buffers */
  size_t param;                        /* the count argument of the call */
  size_t send_in_place, recv_in_place; /* offset of the buffer in place, times the rank */
} perf_sizes;

/* The lengths of the blocks of a call whose blocks differ, kept so that the timed calls do not compute them. */
enum { PERF_RAMP_RANKS = 1024 };
typedef struct perf_ramp {
  size_t total;                   /* the count that they are for */
  size_t own;                     /* the first element of the rank's block */
  size_t counts[PERF_RAMP_RANKS]; /* of the ranks */
} perf_ramp;

/* One call of the collective. */
typedef struct perf_call {
  const void *send;
  void *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root, step, rank, nranks;
  ncclWindow_t window; /* the window that contains `recv`, at byte window_at; NULL: none */
  size_t window_at;
  ncclComm_t comm;
  cudaStream_t stream;
  perf_ramp *ramp; /* the rank's */
} perf_call;

struct perf_data;

typedef struct perf_coll {
  const char *program, *name;
  bool has_op, has_root;   /* -o and -r have an effect */
  bool only_pow2;          /* runs only if the number of ranks is a power of two */
  bool windows;            /* buffers must be windows (-R 2): others may write to them at any time */
  bool unchecked_in_place; /* in place has no meaning: timed, not checked */
  const char *no_op;       /* the redop column; NULL: the name of -o's */
  void (*sizes)(size_t count, size_t elem, size_t nranks, perf_sizes *out);
  double (*alg_factor)(int nranks); /* bytes that algbw counts, per byte of the count argument */
  double (*bus_factor)(int nranks); /* busbw / algbw */
  /* NULL: one step. Otherwise `run` is called for each step, after all ranks have ended the step before */
  int (*steps)(int nranks);
  ncclResult_t (*run)(const perf_call *c);
  void (*input)(struct perf_data *d);  /* emits the data that this rank sends */
  void (*expect)(struct perf_data *d); /* emits the data that this rank must have afterwards */
} perf_coll;

/* operations.c. NULL: there is no such program. */
const perf_coll *perf_coll_find(const char *program);
void perf_coll_list(FILE *f); /* the programs' names */

/* Ends this process at once with a message on stderr, because a failed rank cannot take part any more. */
void perf_fail(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Fails with the library's own error text. */
void perf_check_nccl(ncclResult_t r, const char *call);
#define NCCL(call) perf_check_nccl((call), #call)
double perf_now(void);
