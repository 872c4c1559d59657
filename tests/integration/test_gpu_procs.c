/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on GPUs whose ranks are processes: one a GPU, several on one, processes with several ranks; a peer that
 * dies; GPUs that do not reach each other's memory.
 * check: timeout=300 notsan */
#include <sys/mman.h>
#include "../../src/gpu/buffer.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/run.h"
#include "../../src/kernels/cuda/work.h"
#include "../../src/transport/device_links.h"
#include "../support/gpu.h"
#include "../support/suite.h"

/* Processes that have made the calls that the first one leaves them alone with: shared by all. */
static _Atomic(int) *alone;
static void share_alone(void) {
  alone = mmap(NULL, sizeof *alone, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(alone != MAP_FAILED);
}
static void leave_alone(const gpu_place *p) {
  while (atomic_load(alone) < p->g.n - 1) usleep(1000);
  _exit(0);
}

static void all_collectives(gpu_place *p) {
  static const size_t counts[] = {3, 1500};
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
    for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
      gpu_call c = {.coll = coll, .count = counts[k], .type = ncclFloat32, .op = ncclSum, .root = 1};
      each_call(p, &c, 5);
    }
  }
  for (int by = 0; by < 2; by++) each_ring(p, by); /* round the ring of ranks, and to oneself */
}

TEST_LOOP(processes, 4) {
  static const int shapes[][3] = {{2, 1, 2}, {2, 1, 1}, {2, 2, 4}, {4, 1, 3}};
  ck_assert_int_eq(run_processes(shapes[_i][0], shapes[_i][1], shapes[_i][2], 1, all_collectives), 0);
}

/* A block of several slots goes in several waves, though processes of a host read each other's host memory. In one wave
 * it would leave the memory of the link. */
enum { LONG_COUNT = 600000 };
static void long_blocks(gpu_place *p) {
  gpu_ranks *g = &p->g;
  g->in[p->first] = gpu_alloc(g->device[p->first], sizeof(float) * LONG_COUNT * (size_t)g->n);
  g->out[p->first] = gpu_alloc(g->device[p->first], sizeof(float) * LONG_COUNT * (size_t)g->n);
  each_call(p, &(gpu_call){.coll = HK_ALLTOALL, .count = LONG_COUNT, .type = ncclFloat32}, 1);
}

TEST(long_messages) {
  setenv("HOCKET_SLOT_BYTES", "65536", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  setenv("NCCL_MAX_NCHANNELS", "1", 1);
  ck_assert_int_eq(run_processes(3, 1, 3, 1, long_blocks), 0);
}

/* Without a PCI tree in sight the emulated GPUs meet at the CPU, which is farther than a switch. */
static void near_enough(gpu_place *p) {
  ck_assert(!hk_gpu_of(p->g.comm[p->first])->links->staged);
  ck_assert_uint_eq(hk_gpu_of(p->g.comm[p->first])->cluster, 2);
  meet_all(p);
}
static void too_far(gpu_place *p) {
  ck_assert(hk_gpu_of(p->g.comm[p->first])->links->staged);
  ck_assert_uint_eq(hk_gpu_of(p->g.comm[p->first])->blocks, 2);
  meet_all(p);
}

TEST_LOOP(levels, 2) {
  setenv("NCCL_P2P_LEVEL", _i ? "PIX" : "SYS", 1);
  setenv("NCCL_CGA_CLUSTER_SIZE", "2", 1);
  setenv("NCCL_MAX_NCHANNELS", "2", 1);
  ck_assert_int_eq(run_processes(_i ? 1 : 2, _i ? 2 : 1, 2, 1, _i ? too_far : near_enough), 0);
}

/* ---- registered memory ---- */

enum { ZERO_COPY_COUNT = 17000 }; /* 68,000 bytes: just more than what goes by reference */

static void big_calls(gpu_place *p) {
  static const hk_coll colls[] = {HK_REDUCE_SCATTER, HK_ALLGATHER, HK_BROADCAST};
  gpu_ranks *g = &p->g;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(colls); i++) {
    gpu_call c = {.coll = colls[i], .count = ZERO_COPY_COUNT, .type = ncclFloat32, .op = ncclSum, .root = 1};
    each_call(p, &c, 1);
  }
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
    OK_NCCL(ncclSend((void *)(uintptr_t)g->in[r], 100000, ncclInt8, (r + 1) % g->n, g->comm[r], s));
    OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[r], 100000, ncclInt8, (r + g->n - 1) % g->n, g->comm[r], s));
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) OK(StreamSynchronize(g->stream[r]));
}

/* What a rank still has open of others' memory: closed on a service thread. */
static bool imports_leave(const hk_gpu *gpu) {
  for (int i = 0; i < 20000 && *(hk_gpu_import *const volatile *)&gpu->buffers->imports; i++) usleep(1000);
  return !gpu->buffers->imports;
}

/* Classic memory and virtual memory, read by the other GPUs for themselves; what goes is closed. */
static void registered(gpu_place *p) {
  gpu_ranks *g = &p->g;
  void *handle[GPU_RANKS][2];
  size_t capacity = (size_t)g->n * ZERO_COPY_COUNT * 4;
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    void *out;
    emu_use(g->device[r]);
    g->in[r] = gpu_alloc(g->device[r], capacity);
    OK_NCCL(ncclMemAlloc(&out, capacity < (2 << 20) ? 2 << 20 : capacity));
    g->out[r] = (CUdeviceptr)(uintptr_t)out;
    OK_NCCL(ncclCommRegister(g->comm[r], (void *)(uintptr_t)g->in[r], capacity, &handle[r][0]));
    OK_NCCL(ncclCommWindowRegister(g->comm[r], out, capacity, (ncclWindow_t *)(void *)&handle[r][1], 0));
  }
  OK_NCCL(ncclGroupEnd());
  big_calls(p);
  for (int r = p->first; r < p->first + p->each; r++) {
    int views = 0;
    for (const hk_gpu_buffer *v = hk_gpu_of(g->comm[r])->buffers->first; v; v = v->next, views++) {
      ck_assert(v->made && !v->unusable);
      for (int k = 0; k < g->n; k++)
        ck_assert_msg(k == r || v->seen[k] != HK_GPU_UNSEEN, "rank %d does not see %d's", k, r);
    }
    ck_assert_int_eq(views, 2);
  }
  meet_all(p);
  for (int r = p->first; r < p->first + p->each; r++) {
    OK_NCCL(ncclCommDeregister(g->comm[r], handle[r][0]));
    /* too early: there is a warning, and no process has it open any more */
    OK_NCCL(ncclMemFree((void *)(uintptr_t)g->out[r]));
    ck_assert(hk_gpu_of(g->comm[r])->buffers->first->unusable);
    OK_NCCL(ncclCommDeregister(g->comm[r], handle[r][1]));
    ck_assert_int_eq(ncclCommDeregister(g->comm[r], handle[r][1]), ncclInvalidArgument);
    g->out[r] = gpu_alloc(g->device[r], capacity);
  }
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(imports_leave(hk_gpu_of(g->comm[r])));
  each_call(p, &(gpu_call){.coll = HK_ALLGATHER, .count = ZERO_COPY_COUNT, .type = ncclFloat32}, 1);
}

TEST_LOOP(zero_copy, 3) {
  static const int shapes[][3] = {{1, 2, 2}, {2, 1, 2}, {2, 1, 1}};
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  setenv("NCCL_MAX_NCHANNELS", "1", 1);
  ck_assert_int_eq(run_processes(shapes[_i][0], shapes[_i][1], shapes[_i][2], 1, registered), 0);
}

/* A rank gives its memory up when the other has ended, in good order: nothing is wrong, so no error is reported. */
static void outlive(gpu_place *p) {
  gpu_ranks *g = &p->g;
  void *handle;
  char before[HK_ERROR_TEXT];
  size_t capacity = (size_t)g->n * ZERO_COPY_COUNT * 4;
  int r = p->first;
  g->in[r] = gpu_alloc(g->device[r], capacity);
  g->out[r] = gpu_alloc(g->device[r], capacity);
  OK_NCCL(ncclCommRegister(g->comm[r], (void *)(uintptr_t)g->in[r], capacity, &handle));
  each_call(p, &(gpu_call){.coll = HK_ALLGATHER, .count = ZERO_COPY_COUNT, .type = ncclFloat32}, 1);
  ck_assert(hk_gpu_of(g->comm[r])->buffers->first->made);
  meet_all(p);
  if (r == 0) {
    OK_NCCL(ncclCommDestroy(g->comm[r]));
    g->comm[r] = NULL;
    atomic_fetch_add(alone, 1);
    return;
  }
  while (!atomic_load(alone)) usleep(1000);
  snprintf(before, sizeof before, "%s", ncclGetLastError(NULL));
  OK_NCCL(ncclCommDeregister(g->comm[r], handle));
  ck_assert_str_eq(ncclGetLastError(NULL), before);
}

TEST(last_to_leave) {
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  share_alone();
  ck_assert_int_eq(run_processes(2, 1, 2, 1, outlive), 0);
}

/* The first process dies while the others' kernels wait for it. */
static void die(gpu_place *p) {
  gpu_ranks *g = &p->g;
  int r = p->first;
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
  if (p->process == 0) leave_alone(p);
  OK_NCCL(gpu_submit(g, &c, r));
  atomic_fetch_add(alone, 1);
  OK(StreamSynchronize(g->stream[r]));
  ncclResult_t code = ncclSuccess;
  for (int i = 0; i < 5000 && code == ncclSuccess; i++) {
    OK_NCCL(ncclCommGetAsyncError(g->comm[r], &code));
    usleep(1000);
  }
  ck_assert_int_eq(code, ncclRemoteError);
  OK_NCCL(ncclCommAbort(g->comm[r]));
  g->comm[r] = NULL;
}

/* ---- copy engines ---- */

static void open_windows(gpu_place *p, size_t capacity) {
  gpu_ranks *g = &p->g;
  static ncclWindow_t window[GPU_RANKS];
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    void *out;
    emu_use(g->device[r]);
    g->in[r] = gpu_alloc(g->device[r], capacity);
    OK_NCCL(ncclMemAlloc(&out, capacity));
    g->out[r] = (CUdeviceptr)(uintptr_t)out;
    OK_NCCL(ncclCommWindowRegister(g->comm[r], out, capacity, &window[r], NCCL_WIN_COLL_SYMMETRIC));
    ck_assert(hk_gpu_of(g->comm[r])->copies->usable);
  }
  OK_NCCL(ncclGroupEnd());
}

/* Captured once, replayed with other data. */
static void replay(gpu_place *p) {
  gpu_ranks *g = &p->g;
  int r = p->first;
  static uint32_t out[3 * 1000];
  gpu_call c = {.coll = HK_ALLGATHER, .count = 1000, .type = ncclUint32};
  OK(StreamBeginCapture(g->stream[r], CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 2; i++) OK_NCCL(gpu_submit(g, &c, r));
  const CUgraphExec exec = gpu_end_capture(g->stream[r]);
  for (int i = 1; i <= 10; i++) {
    OK(MemsetD8Async(g->in[r], (unsigned char)(i + 50 * r), 4000, g->stream[r]));
    OK(GraphLaunch(exec, g->stream[r]));
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], sizeof out, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    suite_all(k, 3000, out[k] == 0x01010101u * ((unsigned)i + 50 * ((unsigned)k / 1000)));
  }
  OK(GraphExecDestroy(exec));
}

/* No kernel is launched: the first launch would fail. */
static void by_copies(gpu_place *p) {
  static const hk_coll colls[] = {HK_ALLGATHER, HK_BROADCAST, HK_ALLTOALL, HK_SCATTER};
  static const size_t counts[] = {3, 1000};
  open_windows(p, 2 << 20);
  for (int i = 0; i < 16; i++) {
    hk_coll coll = colls[i % 4];
    gpu_call c = {.coll = coll,
                  .count = counts[i / 4 % 2],
                  .type = ncclFloat32,
                  .root = 1,
                  .in_place = i >= 8 && (coll == HK_ALLGATHER || coll == HK_BROADCAST),
                  .offset = (size_t)i * 64};
    each_call(p, &c, c.in_place ? 1 : 3);
  }
  if (p->each == 1) replay(p);
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(hk_gpu_of(p->g.comm[r])->copies->used);
}

TEST_LOOP(copy_engines, 2) {
  setenv("NCCL_CTA_POLICY", "2", 1);
  gpu_fail_nth("CUDAEMU_FAIL_LAUNCH", 1, _i ? 1 : 3);
  ck_assert_int_eq(_i ? run_processes(3, 1, 3, 1, by_copies) : run_processes(1, 3, 3, 1, by_copies), 0);
}

/* What cannot be captured is not begun: graphs would need kernels, and all ranks must do the same. */
static void by_kernels(gpu_place *p) {
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(!hk_gpu_of(p->g.comm[r])->copies->usable);
  meet_all(p);
}

TEST(copy_engines_refused) {
  setenv("NCCL_CTA_POLICY", "2", 1);
  setenv("CUDAEMU_CAPTURED_WORDS", "0", 1);
  ck_assert_int_eq(run_processes(1, 2, 2, 1, by_kernels), 0);
}

/* The first process dies while the others' streams wait for its words. */
static void die_by_copies(gpu_place *p) {
  gpu_ranks *g = &p->g;
  int r = p->first;
  gpu_call c = {.coll = HK_ALLGATHER, .count = 100, .type = ncclFloat32};
  open_windows(p, 2 << 20);
  each_call(p, &c, 1);
  if (p->process == 0) leave_alone(p);
  for (int i = 0; i < 2; i++) OK_NCCL(gpu_submit(g, &c, r));
  atomic_fetch_add(alone, 1);
  ncclResult_t code = ncclSuccess;
  for (int i = 0; i < 20000 && code == ncclSuccess; i++) {
    OK_NCCL(ncclCommGetAsyncError(g->comm[r], &code));
    usleep(1000);
  }
  ck_assert_int_eq(code, ncclRemoteError);
  OK_NCCL(ncclCommAbort(g->comm[r]));
  OK(StreamSynchronize(g->stream[r]));
  g->comm[r] = NULL;
}

TEST(copy_engines_abort) {
  share_alone();
  setenv("NCCL_CTA_POLICY", "2", 1);
  setenv("CUDAEMU_CONNECTIONS", "1", 1); /* no other stream of the process can do anything while one waits */
  ck_assert_int_eq(run_processes(3, 1, 3, 1, die_by_copies), 0);
}

TEST(dead_peer) {
  share_alone();
  ck_assert_int_eq(run_processes(3, 1, 3, 1, die), 0);
}

/* Where GPUs do not reach each other's memory data goes through the host's: by wish, as the driver says, because IPC is
 * forbidden, and where the driver says yes and the bus delivers something else. */
static const char *const obstacles[][2] = {
    {"NCCL_P2P_DISABLE", "1"}, {"CUDAEMU_PEER", "0"}, {"CUDAEMU_CORRUPT_PEER", "1"}, {"CUDAEMU_IPC", "0"}};
static const struct {
  const char *name, *value;
  bool by_fd;
} sharing[] = {{"CUDAEMU_IPC", "0", true},
               {"CUDAEMU_IMPORT", "0", false},
               {"NCCL_CUMEM_ENABLE", "0", false},
               {"NCCL_SHM_DISABLE", "1", false}};
static int sharing_at;

static void shared_somehow(gpu_place *p) {
  const hk_gpu *gpu = hk_gpu_of(p->g.comm[p->first]);
  ck_assert_int_eq(gpu->links->env->by_file, sharing[sharing_at].by_fd);
  ck_assert(!gpu->links->staged);
  gpu_call c = {.coll = HK_ALLGATHER, .count = 1500, .type = ncclFloat32};
  each_call(p, &c, 2);
}

/* Between processes memory goes by descriptor, and by handle where that is refused, forbidden or cannot be passed. */
TEST_LOOP(descriptors, HK_ARRAY_LENGTH(sharing)) {
  sharing_at = _i;
  setenv(sharing[_i].name, sharing[_i].value, 1);
  ck_assert_int_eq(run_processes(2, _i == 1 ? 2 : 1, 3, 1, shared_somehow), 0);
}

TEST_LOOP(staged, 3) {
  setenv(obstacles[_i][0], obstacles[_i][1], 1);
  setenv("HOCKET_SLOT_BYTES", "4096", 1);
  ck_assert_int_eq(run_processes(_i == 0 ? 2 : 1, _i == 0 ? 2 : 3, 3, 1, all_collectives), 0);
}

TEST_RANGE(staged_processes, 2, 4) {
  if (_i == 3) setenv("NCCL_CUMEM_ENABLE", "0", 1);
  setenv(obstacles[_i][0], obstacles[_i][1], 1);
  setenv("HOCKET_SLOT_BYTES", "4096", 1);
  ck_assert_int_eq(run_processes(3, 1, 3, 1, all_collectives), 0);
}

int main(void) { return gpu_main("gpu_procs", .timeout = 100); }
