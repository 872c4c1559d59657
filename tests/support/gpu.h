/* SPDX-License-Identifier: Apache-2.0 */
/* For tests on the emulated CUDA driver, which is loaded from its folder in the build after the environment is set: the
 * driver's functions, and ranks on its GPUs. */
#ifndef HK_TESTS_GPU_H
#define HK_TESTS_GPU_H
#include <check.h>
#include <hocket.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../src/base/cuda_abi.h"
#include "../../src/program/program.h"
#include "ranks.h"

/* ---- The emulated driver ---- */

typedef struct hk_vec {
  uint32_t w[4];
} hk_vec;
#include "../cudaemu/held.h"
#include "../cudaemu/test_kernels.h"

extern hk_cuda_calls cu;
#define OK(call) ck_assert_int_eq(cu.call, CUDA_SUCCESS)
#define FAILS(code, call) ck_assert_int_eq(cu.call, code)

/* The path of a file of the emulator; good until the next call. */
const char *emu_file(const char *name);
/* Loads the driver and fills `cu`. */
void emu_load(void);
/* Descriptors of files in memory. */
long emu_memory_files(void);
/* What this process holds of the driver (held.h), and descriptors of memory: others may lend it. */
enum { EMU_FILES = CUDAEMU_HELD, EMU_HELD };
void emu_count_held(long held[EMU_HELD]);
/* Asserts that it holds as much as before. */
void emu_check_held(const long before[EMU_HELD]);
/* With `devices` devices, the first one's context current. */
void emu_start(int devices);
/* Makes the device's context current. */
CUcontext emu_use(int device);
CUdeviceptr emu_alloc(size_t bytes); /* all zeros */
CUstream emu_new_stream(unsigned flags);
/* Tests look at device memory through copies. */
void emu_read(void *to, CUdeviceptr from, size_t bytes);
uint32_t emu_word(CUdeviceptr at);
/* Without a C++ compiler there are none. */
int emu_has_kernels(void);
CUfunction emu_kernel(const char *name); /* of test_kernels.h */
void emu_launch(CUfunction f, unsigned blocks, unsigned threads, void *params, CUstream s);

/* ---- Ranks of this process: their memory, streams and data, and what collectives must give ---- */

enum { GPU_RANKS = 18 };
typedef struct gpu_ranks {
  int n, device[GPU_RANKS];
  ncclComm_t comm[GPU_RANKS];
  CUstream stream[GPU_RANKS];
  CUdeviceptr in[GPU_RANKS], out[GPU_RANKS];
  size_t capacity; /* bytes of each buffer */
} gpu_ranks;

/* A call of a collective. */
typedef struct gpu_call {
  hk_coll coll;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool in_place;
  size_t offset; /* bytes, of both buffers */
  size_t shift;  /* other values: what is left of the call before is wrong */
} gpu_call;

#define OK_NCCL(call) ck_assert_msg((call) == ncclSuccess, "%s: %s", #call, ncclGetLastError(NULL))

/* Before anything looks at the environment. */
void gpu_environment(void);
/* False, and a line that says so: the kernels were not compiled. */
bool gpu_here(void);
/* The main of tests on GPUs, as suite_main: skipped without kernels. */
#define gpu_main(...) (gpu_environment(), gpu_here() ? suite_main(__VA_ARGS__, .teardown = gpu_end) : 77)
CUdeviceptr gpu_alloc(int device, size_t bytes);

/* The n-th launch (or kernel: `which` is CUDAEMU_FAIL_LAUNCH or _KERNEL) of a process fails, after those of init: three
 * for each of its ranks' devices. */
void gpu_fail_nth(const char *which, int n, int devices);

/* Sets of ranks that are open, and what the process held of the driver before the first one. */
extern int gpu_sets;
extern long gpu_held_before[EMU_HELD];

/* `devices` of them take turns. */
void gpu_open(gpu_ranks *g, int n, int devices, size_t capacity);
void gpu_init_all(gpu_ranks *g);
/* Both. Tests of gpu_main need not close them. */
gpu_ranks *gpu_begin(int n, int devices, size_t capacity);
void gpu_end(void);
void gpu_init_config(gpu_ranks *g, ncclConfig_t *config);
/* Streams that the legacy stream does not order, in place of those that gpu_open made. */
void gpu_unorder_streams(gpu_ranks *g);
/* Suspends all communicators, or resumes them. */
void gpu_suspend_all(const gpu_ranks *g, bool suspend);
/* A thread's function: ncclCommAbort. */
void *gpu_abort(void *comm);
/* The communicator's failure; ncclSuccess if none comes within ten seconds. */
ncclResult_t wait_for_error(ncclComm_t c);
/* After the last set nothing is held of the driver that was not held before the first one. */
void gpu_close(gpu_ranks *g);
void gpu_wait(const gpu_ranks *g);

/* Where the call's input and output of rank r begin. */
CUdeviceptr gpu_out(const gpu_ranks *g, const gpu_call *c, int r);
CUdeviceptr gpu_in(const gpu_ranks *g, const gpu_call *c, int r);

/* Of ranks [first, first + n): where others are in other processes. */
void gpu_fill_some(const gpu_ranks *g, const gpu_call *c, int first, int ranks);

/* The inputs of all ranks. */
void gpu_fill(const gpu_ranks *g, const gpu_call *c);

/* The call of rank r alone. */
ncclResult_t gpu_submit(const gpu_ranks *g, const gpu_call *c, int r);
/* The calls of all ranks, as a group. */
void gpu_group(const gpu_ranks *g, const gpu_call *c);

/* Element i of rank r's output. */
double gpu_wanted(const gpu_ranks *g, const gpu_call *c, int r, size_t i, double *tolerance);
void gpu_check_some(const gpu_ranks *g, const gpu_call *c, int first, int ranks);
/* The outputs of all ranks are right. */
void gpu_check(const gpu_ranks *g, const gpu_call *c);
/* The number of right elements in rank r's output of floats. */
size_t gpu_count_right(const gpu_ranks *g, const gpu_call *c, int r);
/* Fills the inputs of all ranks, makes the calls as a group, and checks the outputs. */
void gpu_try(const gpu_ranks *g, const gpu_call *c);

/* Ends what the stream captures. */
CUgraphExec gpu_end_capture(CUstream s);
/* A call that is captured on the stream of each rank. */
typedef struct gpu_graph {
  gpu_call call;
  CUgraphExec exec[GPU_RANKS];
} gpu_graph;
void gpu_capture(const gpu_ranks *g, const gpu_call *c, gpu_graph *x);
/* Replays it with other data than before, and checks the outputs. */
void gpu_replay(const gpu_ranks *g, gpu_graph *x);
void gpu_graph_free(const gpu_ranks *g, gpu_graph *x);

/* Messages that fit a slot's header, an entry of a network's rings, a slot, and not. */
void gpu_call_all(gpu_ranks *g);

/* Bytes of memory of devices [0, n) that something has, by the driver's count. */
size_t gpu_in_use(int n);

/* What the communicator says of its memory. */
uint64_t gpu_held(ncclComm_t c, ncclCommMemStat_t what);

/* ---- Ranks that are processes, with one rank or more each, on one host or on pretended ones ---- */

/* A process and its ranks. */
typedef struct gpu_place {
  gpu_ranks g; /* of the whole communicator; only [first, first + each) are this process's */
  int process, first, each;
} gpu_place;

/* Processes [0, n) of `each` ranks, all on devices that take turns, and on pretended hosts that do; `body` runs in
 * each with its ranks' comms open.  Gives how many ended otherwise than well. */
int run_processes(int n, int each, int devices, int hosts, void (*body)(gpu_place *p));

/* This process's part of the world's data. */
void each_call(gpu_place *p, gpu_call *c, int again);

/* All ranks of the communicator have come this far. */
void meet_all(gpu_place *p);

/* Sends and receives `by` ranks round the ring of all. */
void each_ring(gpu_place *p, int by);

/* ---- Machine files ---- */

enum { MACHINE_GPUS = 4 };
/* GPUs at the emulated driver's places, each below its own root port. */
void gpu_machine_write(const char *path, const bool (*joined)[MACHINE_GPUS]);
#endif
