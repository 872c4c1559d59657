/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms in a switch, on emulated GPUs with multicast objects: nvls; sumshot, whose sum each rank loads from the
 * switch; oneshot, which stores lines of LL, or slots, for all ranks at once. The driver's side, collectives of threads
 * and of processes, and what goes by another algorithm. test_gpu_matrix has the types and operators.
 * check: timeout=300 notsan long=asan */
#include <dirent.h>
#include "../../src/base/param.h"
#include "../../src/decide/gpu.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/process_group.h"
#include "../../src/transport/cuda/multicast.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { GRANULE = 2 << 20 };
enum { NVLS, SUMSHOT, LINES, SLOTS, WAYS };
static const struct {
  const char *algorithm, *protocol;
} ways[WAYS] = {{"NVLS", "Simple"}, {"SUMSHOT", "Simple"}, {"ONESHOT", "LL"}, {"ONESHOT", "Simple"}};
static void take(int way) {
  setenv("NCCL_ALGO", ways[way].algorithm, 1);
  setenv("NCCL_PROTO", ways[way].protocol, 1);
}

static CUmemGenericAllocationHandle new_memory(int device) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  CUmemGenericAllocationHandle memory = 0;
  OK(MemCreate(&memory, GRANULE, &prop, 0));
  return memory;
}

/* An object takes its devices, then memory of theirs, each once. */
TEST(objects) {
  CUmulticastObjectProp prop = {.numDevices = 2, .size = GRANULE};
  CUmemGenericAllocationHandle object, memory[3];
  size_t granule;
  int has = 0;
  emu_start(3);
  OK(DeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
  ck_assert_int_eq(has, 1);
  OK(MulticastGetGranularity(&granule, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
  OK(MulticastCreate(&object, &prop));
  for (int d = 0; d < 3; d++) memory[d] = new_memory(d);
  OK(MulticastAddDevice(object, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastAddDevice(object, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastBindMem(object, 0, memory[0], 0, GRANULE, 0)); /* one is missing */
  OK(MulticastAddDevice(object, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastAddDevice(object, 2));
  OK(MulticastBindMem(object, 0, memory[0], 0, GRANULE, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastBindMem(object, 0, memory[0], 0, GRANULE, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastBindMem(object, 0, memory[2], 0, GRANULE, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastBindMem(object, 0, memory[1], 0, GRANULE / 2, 0));
  OK(MulticastBindMem(object, 0, memory[1], 0, GRANULE, 0));
  OK(MulticastUnbind(object, 0, 0, GRANULE));
  FAILS(CUDA_ERROR_INVALID_VALUE, MulticastUnbind(object, 0, 0, GRANULE));
  OK(MemRelease(object));
  for (int d = 0; d < 3; d++) OK(MemRelease(memory[d]));
}

/* ---- collectives ---- */

/* What the processes of a test log, a file each. */
static char log_dir[64];
static void log_to_files(void) {
  char pattern[80];
  snprintf(log_dir, sizeof log_dir, "/tmp/hocket-nvls-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(log_dir));
  snprintf(pattern, sizeof pattern, "%s/%%p", log_dir);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "NVLS,TUNING", 1);
  setenv("NCCL_DEBUG_FILE", pattern, 1);
}
/* Looks for text in all of them; NULL: removes them. */
static bool logged(const char *text) {
  char path[400], line[1024];
  bool found = false;
  DIR *d = opendir(log_dir);
  ck_assert_ptr_nonnull(d);
  for (const struct dirent *e; (e = readdir(d));) {
    snprintf(path, sizeof path, "%s/%s", log_dir, e->d_name);
    FILE *f = text ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof line, f)) found = found || strstr(line, text);
    if (f) fclose(f);
    if (!text) unlink(path);
  }
  closedir(d);
  if (!text) rmdir(log_dir);
  return found;
}

static void run_and_check(const gpu_ranks *g, const gpu_call *c) { gpu_try(g, c); }

/* From one element to many waves, aligned and not, in place and not. */
static gpu_call call_of(hk_coll coll, size_t k, int ranks) {
  static const size_t counts[] = {1, 7, 333, 4096, 30001};
  return (gpu_call){
      .coll = coll,
      .count = coll == HK_ALLGATHER || coll == HK_REDUCE_SCATTER ? counts[k] / (size_t)ranks + 1 : counts[k],
      .type = k == 1   ? ncclBfloat16
              : k == 2 ? ncclFloat16
                       : ncclFloat32,
      .op = k == 3 ? ncclAvg : ncclSum,
      .root = ranks - 1,
      .in_place = k % 2,
      .offset = k == 2 ? 2 : 0};
}
enum { CALLS = 5 };

TEST_LOOP(sizes_by_nvls, 4) {
  static const int ranks[] = {2, 3, 5, 8};
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_REDUCE_SCATTER, HK_ALLGATHER};
  static const char *const granules[] = {"2", "8", "512", "2"}; /* MB that the driver recommends */
  setenv("NCCL_ALGO", "NVLS", 1);
  setenv("CUDAEMU_MULTICAST_MB", granules[_i], 1);
  log_to_files();
  gpu_ranks *g = gpu_begin(ranks[_i], 8, 1 << 18);
  for (size_t i = 0; i < 3 * CALLS; i++) {
    const gpu_call c = call_of(colls[i % 3], i / 3, g->n);
    run_and_check(g, &c);
  }
  gpu_close(g);
  ck_assert(logged("AllReduce by nvls") && logged("ReduceScatter by nvls") && logged("AllGather by nvls"));
  ck_assert(!logged("choosing from all"));
  logged(NULL);
}

/* On one channel, and on more than have lines. */
TEST_RANGE(sizes, SUMSHOT, 2 * WAYS) {
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_BROADCAST, HK_ALLGATHER};
  const int way = _i % WAYS, n = _i < WAYS ? 3 : 8;
  const size_t slot = _i < WAYS ? 8192 : 128 << 10;
  char text[8];
  if (way == NVLS) return;
  take(way);
  snprintf(text, sizeof text, "%d", _i < WAYS ? 1 : 6);
  setenv("NCCL_MIN_NCHANNELS", text, 1);
  setenv("NCCL_MAX_NCHANNELS", text, 1);
  setenv("HOCKET_SLOT_BYTES", _i < WAYS ? "8192" : "131072", 1);
  gpu_ranks *g = gpu_begin(n, 8, 1 << 19);
  for (int r = 0; r < n; r++)
    ck_assert_uint_ge(
        hk_gpu_of(g->comm[r])->group->multicast->slot_bytes,
        hk_gpu_switch_slot(slot, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS, n)); /* chunks count on it */
  for (size_t i = 0; i < (way == SUMSHOT ? 1 : 3) * CALLS; i++) {
    const gpu_call c = call_of(colls[i / CALLS], i % CALLS, n);
    for (int again = 0; again < 3; again++) run_and_check(g, &c); /* slots come round */
  }
}

/* Operators that are more than a sum; what the switch does not know goes another way, whatever NCCL_ALGO says. */
TEST(operators) {
  static const struct {
    ncclDataType_t type;
    ncclRedOp_t op;
  } rows[] = {{ncclInt32, ncclAvg}, {ncclInt64, ncclMax}, {ncclBfloat16, ncclMin}, {ncclFloat32, ncclProd}};
  setenv("NCCL_ALGO", "NVLS", 1);
  gpu_ranks *g = gpu_begin(3, 8, 1 << 14);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    const gpu_call c = {.coll = HK_ALLREDUCE, .count = 301, .type = rows[i].type, .op = rows[i].op};
    run_and_check(g, &c);
  }
  const gpu_call bytes = {.coll = HK_ALLGATHER, .count = 77, .type = ncclFloat8e5m2, .offset = 1};
  const gpu_call other = {.coll = HK_BROADCAST, .count = 77, .type = ncclFloat8e5m2, .offset = 1};
  run_and_check(g, &bytes);
  run_and_check(g, &other);
}

/* Each rank's own scalar, multiplied in before the switch adds up. */
TEST_LOOP(premultiplied, WAYS) {
  enum { COUNT = 100 };
  ncclRedOp_t op[3];
  int values[COUNT], out[COUNT];
  take(_i);
  gpu_ranks *g = gpu_begin(3, 8, 4096);
  for (int i = 0; i < COUNT; i++) values[i] = i - 50;
  for (int r = 0; r < 3; r++) {
    int factor = r + 2;
    OK_NCCL(ncclRedOpCreatePreMulSum(&op[r], &factor, ncclInt32, ncclScalarHostImmediate, g->comm[r]));
    emu_use(r);
    OK(MemcpyAsync(g->in[r], (CUdeviceptr)(uintptr_t)values, sizeof values, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; r++)
    OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)g->out[r], COUNT, ncclInt32, op[r],
                          g->comm[r], (cudaStream_t)(void *)g->stream[r]));
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  for (int r = 0; r < 3; r++) {
    emu_read(out, g->out[r], sizeof out);
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(out[i], 9 * values[i]);
  }
}

/* Registered memory, which goes by reference elsewhere: a switch adds up what lies in slots. */
TEST(registered) {
  enum { BYTES = 1 << 20 };
  void *handle[3][2];
  setenv("NCCL_ALGO", "NVLS", 1);
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  gpu_ranks *g = gpu_begin(3, 8, BYTES);
  for (int r = 0; r < 3; r++) {
    OK_NCCL(ncclCommRegister(g->comm[r], (void *)(uintptr_t)g->in[r], BYTES, &handle[r][0]));
    OK_NCCL(ncclCommRegister(g->comm[r], (void *)(uintptr_t)g->out[r], BYTES, &handle[r][1]));
  }
  for (int i = 0; i < 2; i++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = 150000, .type = ncclFloat32, .op = ncclSum, .in_place = i == 1};
    run_and_check(g, &c);
  }
  for (int r = 0; r < 3; r++)
    for (int i = 0; i < 2; i++) OK_NCCL(ncclCommDeregister(g->comm[r], handle[r][i]));
}

/* A captured call, replayed with other data and with others between. */
TEST_LOOP(replayed, WAYS) {
  gpu_graph x;
  take(_i);
  gpu_ranks *g = gpu_begin(2, 8, 1 << 16);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = _i == NVLS ? 9000 : 900, .type = ncclInt32, .op = ncclMax};
  run_and_check(g, &c); /* links are there */
  gpu_capture(g, &c, &x);
  c.op = ncclSum;
  for (int i = 0; i < 4; i++) {
    gpu_replay(g, &x);
    run_and_check(g, &c);
  }
  gpu_graph_free(g, &x);
}

/* Counters go on where they were; lines begin with zeros again. */
TEST_RANGE(suspended, SUMSHOT, WAYS) {
  take(_i);
  gpu_ranks *g = gpu_begin(3, 8, 1 << 14);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 700, .type = ncclFloat32, .op = ncclSum};
  for (int i = 0; i < 3; i++) {
    for (int again = 0; again < 3; again++) run_and_check(g, &c);
    for (int suspend = 1; suspend >= 0; suspend--) gpu_suspend_all(g, suspend);
  }
  run_and_check(g, &c);
}

/* ---- processes ---- */

static bool maps(const char *text) {
  char line[1024];
  bool found = false;
  FILE *f = fopen("/proc/self/maps", "r");
  ck_assert_ptr_nonnull(f);
  while (fgets(line, sizeof line, f)) found = found || strstr(line, text);
  fclose(f);
  return found;
}

static void in_switch(gpu_place *p) {
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_REDUCE_SCATTER, HK_ALLGATHER};
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(hk_gpu_of(p->g.comm[r])->in_switch);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(colls); i++) {
    gpu_call c = {.coll = colls[i], .count = 1500, .type = ncclFloat32, .op = ncclSum};
    each_call(p, &c, 3);
  }
  ck_assert(logged("AllReduce by nvls") && logged("AllGather by nvls") && !logged("choosing from all"));
  ck_assert(maps("hocket-left"));
  for (int r = p->first; r < p->first + p->each; r++) {
    OK_NCCL(ncclCommDestroy(p->g.comm[r]));
    p->g.comm[r] = NULL;
  }
  ck_assert(!maps("hocket-left"));
}

/* One object for all, with a page that shows when its last user is gone. */
TEST_LOOP(processes, 2) {
  setenv("NCCL_ALGO", "NVLS", 1);
  log_to_files();
  ck_assert_int_eq(run_processes(_i ? 2 : 3, _i ? 2 : 1, 8, 1, in_switch), 0);
  ck_assert(!logged("stay bound"));
  logged(NULL);
}

static void without_switch(gpu_place *p) {
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(!hk_gpu_of(p->g.comm[r])->in_switch);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
}

/* A switch inside each host, and a ring or trees over the network between them. */
static void in_switches(gpu_place *p) {
  static const size_t counts[] = {1, 333, 16001};
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(hk_gpu_of(p->g.comm[r])->in_switch);
  for (size_t i = 0; i < 2 * HK_ARRAY_LENGTH(counts); i++) {
    gpu_call c = {.coll = HK_ALLREDUCE,
                  .count = counts[i / 2],
                  .type = i % 2 ? ncclBfloat16 : ncclFloat32,
                  .op = i < 2 ? ncclAvg : ncclSum,
                  .in_place = i == 3};
    each_call(p, &c, c.in_place ? 1 : 3);
  }
}
TEST_LOOP(hosts, 4) {
  static const int shapes[][4] = {{2, 3, 8, 2}, {6, 1, 8, 3}}; /* processes, ranks of each, devices, hosts */
  const int *s = shapes[_i / 2];
  setenv("NCCL_ALGO", _i % 2 ? "NVLSTree" : "NVLS", 1);
  setenv("HOCKET_SLOT_BYTES", "8192", 1);
  log_to_files();
  ck_assert_int_eq(run_processes(s[0], s[1], s[2], s[3], in_switches), 0);
  ck_assert(logged(_i % 2 ? "AllReduce by nvlstree" : "AllReduce by nvls:") && !logged("choosing from all"));
  logged(NULL);
}
TEST(unequal_hosts) {
  setenv("NCCL_ALGO", "NVLS", 1);
  log_to_files();
  ck_assert_int_eq(run_processes(3, 1, 8, 2, without_switch), 0);
  ck_assert(logged("not equally many"));
  logged(NULL);
}

/* What one process cannot do, none does: pass descriptors, open the object, bind memory. */
TEST_LOOP(processes_without, 2) {
  static const char *const reasons[] = {"file descriptors of GPU memory", "multicast object"};
  log_to_files();
  setenv(_i ? "CUDAEMU_FAIL_MULTICAST" : "NCCL_CUMEM_ENABLE", _i ? "2" : "0", 1);
  ck_assert_int_eq(run_processes(2, _i ? 2 : 1, 8, 1, without_switch), 0);
  ck_assert(logged(reasons[_i]));
  logged(NULL);
}

static void several(gpu_place *p) {
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(hk_gpu_of(p->g.comm[r])->in_switch);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 1500, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 8);
}
TEST_RANGE(processes_one_shot, SUMSHOT, WAYS) {
  take(_i);
  ck_assert_int_eq(run_processes(3, 1, 8, 1, several), 0);
}

/* Ranks that make different calls get an error: the words' tags differ. */
static void differ(gpu_place *p) {
  int r = p->first;
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
  c.count += r == 0;
  OK_NCCL(gpu_submit(&p->g, &c, r));
  ck_assert_int_ne(wait_for_error(p->g.comm[r]), ncclSuccess);
  OK_NCCL(ncclCommAbort(p->g.comm[r]));
  p->g.comm[r] = NULL;
}
TEST_RANGE(mismatched, SUMSHOT, WAYS) {
  take(_i);
  ck_assert_int_eq(run_processes(2, 1, 8, 1, differ), 0);
}

/* A process that dies does not delay the others for long, and what it has bound stays. */
static void die(gpu_place *p) {
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  int r = p->first;
  each_call(p, &c, 1);
  if (p->process == 0) _exit(0);
  ck_assert_int_eq(wait_for_error(p->g.comm[r]), ncclRemoteError);
  OK_NCCL(ncclCommAbort(p->g.comm[r]));
  p->g.comm[r] = NULL;
}

TEST(dead_process) {
  setenv("NCCL_ALGO", "NVLS", 1);
  log_to_files();
  ck_assert_int_eq(run_processes(3, 1, 8, 1, die), 0);
  ck_assert(logged("stay bound"));
  logged(NULL);
}

/* No multicast: asked for, on a GPU that two share, and where the driver fails half way. */
TEST_LOOP(without, 3) {
  static const char *const reasons[] = {
      "no sums in the switch (NVLS): the GPU of rank 0 has no multicast, or NCCL_NVLS_ENABLE",
      "no sums in the switch (NVLS): ranks 0 and 2 share a GPU",
      "no sums in the switch (NVLS), although the GPUs have them"};
  log_to_files();
  if (_i == 0) setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (_i == 2) setenv("CUDAEMU_FAIL_MULTICAST", "1", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,TUNING", 1);
  gpu_ranks *g = gpu_begin(3, _i == 1 ? 2 : 8, 4096);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 500, .type = ncclFloat32, .op = ncclSum};
  run_and_check(g, &c);
  gpu_close(g);
  ck_assert(logged(reasons[_i]));
  ck_assert(logged("NVLinks cannot be seen without NVML")); /* nor is it here */
  ck_assert(!logged("by nvls"));
  logged(NULL);
}

int main(void) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  return gpu_main("gpu_multicast", .timeout = 100);
}
