/* SPDX-License-Identifier: Apache-2.0 */
/* What a call costs on the host: calls of the driver, launches of a group, bytes of parameters; and that nothing is
 * allocated in a way that waits for kernels.  On the driver that runs on the CPU.
 * check: notsan */
#include <dlfcn.h>
#include "../../src/base/meter.h"
#include "../../src/device/device.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/memory.h"
#include "../../src/gpu/order.h"
#include "../../src/gpu/process_group.h"
#include "../../src/kernels/gpu_image.h"
#include "../../src/run/plans.h"
#include "../support/driver_calls.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static bool counted;
static void count_calls(void) {
  if (!counted && !driver_calls_begin()) printf("SKIP: calls of the driver are not counted on this machine\n");
  counted = true;
}
#define MOST(most)                                                                                                     \
  do {                                                                                                                 \
    char list[400];                                                                                                    \
    const unsigned n = driver_calls_sum(list, sizeof list);                                                            \
    ck_assert_msg(n <= (most), "%u calls of the driver, not %u:%s", n, (unsigned)(most), list);                        \
  } while (0)

/* Two ranks, each on a GPU of its own, that have made the call before. */
static void open_two(gpu_ranks *g, const gpu_call *c) {
  gpu_open(g, 2, 2, 1 << 18);
  gpu_unorder_streams(g);
  gpu_init_all(g);
  gpu_fill(g, c);
  for (int i = 0; i < 2; i++)
    for (int r = 0; r < 2; r++) {
      emu_use(r);
      OK_NCCL(gpu_submit(g, c, r));
    }
  gpu_wait(g);
  count_calls();
}

/* The state of the stream, the launch, the event that the next call or stream waits for; and which stream or context it
 * is: NCCL makes these four, too. */
TEST(plain_collective) {
  gpu_ranks g;
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum};
  open_two(&g, &c);
  for (int i = 0; i < 4; i++)
    for (int r = 0; r < 2; r++) {
      emu_use(r);
      if (i == 2) OK(StreamDestroy(g.stream[r]));
      if (i == 2) g.stream[r] = NULL; /* the legacy stream, whose handle means another stream for each GPU */
      driver_calls_forget();
      OK_NCCL(gpu_submit(&g, &c, r));
      /* 9: the fourth call is timed, and the second one's time is read; 5: the stream is another one than before */
      MOST(i == 1 ? 9 : i == 2 ? 5 : 4);
    }
  gpu_wait(&g);
  gpu_check(&g, &c);
  hk_meter_value counted_as[HK_METER_VALUES];
  ck_assert_int_eq(hk_meter_read(g.comm[0]->order.meter, counted_as), 1);
  ck_assert(counted_as[0].calls == 6 && counted_as[0].ns > 0);
  emu_use(0);
  for (int r = 0; r < 2; r++) g.stream[r] = emu_new_stream(CU_STREAM_NON_BLOCKING);
  gpu_close(&g);
}

/* With another GPU's context, or none, the call works as well, also if the driver takes streams of the current context
 * only. */
TEST_LOOP(other_context, 2) {
  gpu_ranks g;
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum};
  setenv("CUDAEMU_ONE_CONTEXT", _i ? "1" : "0", 1);
  open_two(&g, &c);
  for (int i = 0; i < 3; i++)
    for (int r = 0; r < 2; r++) {
      if (i < 2) emu_use(1 - r);
      if (i == 2) OK(CtxSetCurrent(NULL));
      driver_calls_forget();
      OK_NCCL(gpu_submit(&g, &c, r));
      MOST(30); /* each call of the driver may come twice, with the context asked for, pushed and popped */
      CUcontext now = NULL;
      OK(CtxGetCurrent(&now));
      emu_use(1 - r);
      CUcontext before = NULL;
      OK(CtxGetCurrent(&before));
      ck_assert_ptr_eq(now, i < 2 ? before : NULL);
    }
  for (int r = 0; r < 2; r++) {
    emu_use(r);
    OK(StreamSynchronize(g.stream[r]));
  }
  gpu_check(&g, &c);
  for (int r = 0; r < 2; r++) OK_NCCL(ncclCommDestroy(g.comm[r]));
}

/* A group's collectives of one communicator that have the same plan are one launch on each GPU, whatever their sizes,
 * types and operators; another plan begins another launch. */
TEST_LOOP(one_launch, 2) {
  enum { CALLS = 6, ROOM = 30000 };
  gpu_ranks g;
  uint32_t got[ROOM / 4];
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum};
  setenv("NCCL_ALGO", "ring", 1);
  setenv("NCCL_PROTO", _i ? "LL" : "Simple", 1);
  setenv("NCCL_MIN_NCHANNELS", "2", 1);
  setenv("NCCL_MAX_NCHANNELS", "2", 1);
  open_two(&g, &c);
  for (int r = 0; r < 2; r++) OK(MemsetD8Async(g.in[r], (unsigned char)(r + 1), (size_t)CALLS * ROOM, g.stream[r]));
  for (int round = -1; round < 3; round++) { /* in the first one a driver may refuse a launch, and get it again */
    driver_calls_forget();
    OK_NCCL(ncclGroupStart());
    for (int k = 0; k < CALLS; k++)
      for (int r = 0; r < 2; r++) {
        const void *in = (const void *)(uintptr_t)(g.in[r] + (size_t)k * ROOM);
        void *out = (void *)(uintptr_t)(g.out[r] + (size_t)k * ROOM);
        cudaStream_t s = (cudaStream_t)(void *)g.stream[r];
        const size_t n = (size_t)(k + 1) * 1000;
        if (round == 2 && k == 3)
          OK_NCCL(ncclReduceScatter(in, out, n / 2, ncclUint32, ncclSum, g.comm[r], s));
        else
          OK_NCCL(ncclAllReduce(in, out, n, ncclUint32, k == 2 ? ncclMax : ncclSum, g.comm[r], s));
      }
    OK_NCCL(ncclGroupEnd());
    if (round >= 0) ck_assert_uint_eq(driver_launches(), round == 2 ? 6 : 2);
  }
  gpu_wait(&g);
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < CALLS; k++) {
      const size_t n = (size_t)(k + 1) * 1000;
      emu_read(got, g.out[r] + (size_t)k * ROOM, n * 4);
      suite_all(i, n, got[i] == (k == 2 ? 0x02020202u : 0x03030303u));
    }
  gpu_close(&g);
}

/* A kind of call that was made before needs no new choice, whatever came between. */
TEST(choices_are_kept) {
  gpu_ranks g;
  enum { MARK = 12345 };
  const gpu_call a = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum};
  const gpu_call b = {.coll = HK_ALLREDUCE, .count = 4000, .type = ncclFloat32, .op = ncclSum};
  open_two(&g, &a);
  for (int i = 0; i < 2; i++) {
    const gpu_call *c = i ? &a : &b;
    gpu_group(&g, c);
    gpu_wait(&g);
    hk_plans *p = g.comm[0]->plans;
    ck_assert_uint_eq(p->last[HK_ALLREDUCE].count, c->count);
    ck_assert(i ? p->last[HK_ALLREDUCE].launch.move_flags == MARK : p->last[HK_ALLREDUCE].launch.move_flags == 0);
    for (int k = 0; k < HK_CHOICES_KEPT; k++)
      if (p->kept[k].valid && p->kept[k].count == a.count) p->kept[k].launch.move_flags = MARK; /* GPUs ignore it */
  }
  gpu_close(&g);
}

/* Of programs with scratch each call has its own; and ranks that share a GPU may have no more works than fit one
 * launch. */
TEST_LOOP(one_launch_with_scratch, 2) {
  enum { N = 5, CALLS = 8, ROOM = 8000 };
  uint32_t got[ROOM / 4];
  setenv("NCCL_ALGO", _i ? "tree" : "halving,doubling,pat", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  gpu_ranks *g = gpu_begin(N, 1, CALLS * ROOM);
  for (int r = 0; r < N; r++) OK(MemsetD8Async(g->in[r], (unsigned char)(r + 1), CALLS * ROOM, g->stream[r]));
  for (int r = 0; r < N; r++) OK(StreamSynchronize(g->stream[r]));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++)
    for (int k = 0; k < CALLS; k++)
      OK_NCCL(ncclReduce((const void *)(uintptr_t)(g->in[r] + (size_t)k * ROOM),
                         (void *)(uintptr_t)(g->out[r] + (size_t)k * ROOM), (size_t)ROOM / 4 - (size_t)k * 100,
                         ncclUint32, ncclSum, 0, g->comm[r], (cudaStream_t)(void *)g->stream[r]));
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  for (int k = 0; k < CALLS; k++) {
    const size_t n = (size_t)ROOM / 4 - (size_t)k * 100;
    emu_read(got, g->out[0] + (size_t)k * ROOM, n * 4);
    suite_all(i, n, got[i] == 0x0f0f0f0fu);
  }
}

/* A driver whose allocations wait for all work on the device: the first call of each kind comes while another rank's
 * kernel is on the same GPU and waits for it.  With links in the GPU's memory, in pinned memory, and over the
 * network. */
TEST_LOOP(no_allocation_waits, 3) {
  enum { N = 3 };
  gpu_ranks g;
  setenv("CUDAEMU_SYNC_ALLOC", "1", 1);
  if (_i > 0) setenv("NCCL_P2P_DISABLE", "1", 1);
  if (_i > 1) setenv("NCCL_SHM_DISABLE", "1", 1);
  if (_i == 0) setenv("NCCL_ALGO", "halving,doubling,pat,tree", 1); /* some need scratch */
  gpu_open(&g, N, 1, 1 << 18);
  gpu_unorder_streams(&g);
  gpu_init_all(&g);
  for (int r = 0; r < N; r++)
    hk_gpu_of(g.comm[r])->memory->arena->used = hk_gpu_of(g.comm[r])->memory->arena->bytes; /* more is needed */
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++)
    for (size_t count = 10; count < 10000; count *= 400) {
      const gpu_call c = {.coll = coll, .count = count, .type = ncclFloat32, .op = ncclSum, .root = 1};
      for (int r = 0; r < N; r++) OK_NCCL(gpu_submit(&g, &c, r));
      gpu_wait(&g);
    }
  ck_assert(_i > 0 || hk_gpu_of(g.comm[0])->memory->scratch.base);
  for (int r = 0; r < N; r++) {
    cudaStream_t s = (cudaStream_t)(void *)g.stream[r];
    OK_NCCL(ncclGroupStart());
    for (int p = 0; p < N; p++)
      for (int k = 0; k < 8; k++) {
        const size_t at = (size_t)(8 * p + k) * 1024;
        OK_NCCL(ncclSend((const void *)(uintptr_t)(g.in[r] + at), 256, ncclUint32, p, g.comm[r], s));
        OK_NCCL(ncclRecv((void *)(uintptr_t)(g.out[r] + at), 256, ncclUint32, p, g.comm[r], s));
      }
    OK_NCCL(ncclGroupEnd());
  }
  gpu_wait(&g);
  gpu_close(&g);
}

/* The same driver without virtual memory of the host: there a link's memory waits.  It is made before the first launch
 * of its group, and the proxy moves slots meanwhile, so a rank that has its GPU alone does not wait for itself. */
TEST_LOOP(older_driver, 2) {
  enum { N = 2 };
  setenv("CUDAEMU_SYNC_ALLOC", "1", 1);
  setenv("CUDAEMU_HOST_VMM", "0", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  if (_i) setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("CUDAEMU_SLOW_US", "5000", 1); /* what is asked for next finds kernels that have not ended */
  gpu_ranks *g = gpu_begin(N, N, 1 << 18);
  const gpu_call sum = {.coll = HK_ALLREDUCE, .count = 50000, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(g, &sum);
  for (int from = 0; from < N; from++) { /* each time over a new link, whose memory is not there yet */
    for (int r = 0; r < N; r++)
      for (int i = 0; i < HK_GPU_PINNED; i++) {
        hk_gpu_chunk *k = hk_gpu_of(g->comm[r])->memory->pinned[i];
        if (k) k->used = k->bytes;
      }
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
      OK_NCCL(gpu_submit(g, &sum, r));
      if (r == from)
        OK_NCCL(ncclSend((const void *)(uintptr_t)g->in[r], 300, ncclUint32, 1 - r, g->comm[r], s));
      else
        OK_NCCL(ncclRecv((void *)(uintptr_t)(g->out[r] + 240000), 300, ncclUint32, from, g->comm[r], s));
    }
    OK_NCCL(ncclGroupEnd());
  }
  gpu_check(g, &sum);
}

/* A handle that means another stream than before: its work is not ordered by itself. */
static unsigned long long id;
static CUresult get_id(CUstream q, unsigned long long *out) {
  (void)q;
  *out = id;
  return CUDA_SUCCESS;
}
TEST_LOOP(handle_again, 2) {
  hk_device *d;
  hk_queue q;
  hk_queue_state s;
  hk_queue_order o = {0};
  gpu_environment();
  emu_start(1);
  ck_assert_int_eq(hk_cuda_open(0, &d), HK_OK);
  count_calls();
  if (_i) hk_cu.StreamGetId = NULL; /* an older driver: nothing is known */
  if (!_i) hk_cu.StreamGetId = get_id;
  ck_assert_int_eq(d->ops->stream->create(d, &q), HK_OK);
  for (id = 7; id < 9; id++)
    for (int k = 0; k < 2; k++) {
      driver_calls_forget();
      ck_assert_int_eq(d->ops->stream->state(d, q, &s), HK_OK);
      ck_assert_uint_eq(s.id, _i ? 0 : id);
      ck_assert_int_eq(d->ops->order->begin(d, &o, q, &s), HK_OK);
      ck_assert_uint_eq(driver_calls[CALL_StreamWaitEvent], (_i && o.used) || (id == 8 && k == 0));
      ck_assert_int_eq(d->ops->order->end(d, &o, q, &s), HK_OK);
    }
  ck_assert_int_eq(d->ops->order->free(d, &o), HK_OK);
  ck_assert_int_eq(d->ops->stream->free(d, q), HK_OK);
  d->ops->close(d);
}

/* GPUs run code of their own generation, made for them or for an earlier one of it. */
TEST(generations) {
  ck_assert(hk_gpu_archs_fit("75 80 86", 86) && hk_gpu_archs_fit("75 80", 87) && hk_gpu_archs_fit("100 103", 101));
  ck_assert(!hk_gpu_archs_fit("75 80 90 100 103 120", 110) && !hk_gpu_archs_fit("86", 80) && !hk_gpu_archs_fit("", 90));
}

/* Slices of a GPU are GPUs of their own. */
TEST(slices) {
  hk_device *d[2];
  setenv("CUDAEMU_MIG", "1", 1);
  gpu_environment();
  emu_start(2);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(hk_cuda_open(i, &d[i]), HK_OK);
  CUuuid uuid[2];
  for (int i = 0; i < 2; i++) OK(DeviceGetUuid(&uuid[i], i));
  ck_assert_mem_eq(&uuid[0], &uuid[1], sizeof uuid[0]);
  ck_assert_mem_ne(d[0]->limits.uuid, d[1]->limits.uuid, sizeof d[0]->limits.uuid);
  for (int i = 0; i < 2; i++) d[i]->ops->close(d[i]);
}

/* The first launch of a kernel that needs more local memory than the context has waits for all work on the device: none
 * of ours is a first one when a rank's kernel waits for another rank. */
TEST(first_launches) {
  gpu_ranks g, others;
  setenv("CUDAEMU_LOCAL_BYTES", "1100", 1);
  gpu_open(&g, 2, 1, 1 << 18);
  gpu_unorder_streams(&g);
  gpu_open(&others, 2, 1, 1 << 18);
  CUstream own[2] = {others.stream[0], others.stream[1]};
  others.stream[0] = others.stream[1] = g.stream[1];
  gpu_init_all(&g);
  gpu_init_all(&others);
  const gpu_call small = {.coll = HK_ALLREDUCE, .count = 2, .type = ncclFloat32, .op = ncclSum},
                 large = {.coll = HK_ALLREDUCE, .count = 10000, .type = ncclFloat32, .op = ncclSum},
                 sends = {.coll = HK_ALLTOALL, .count = 100, .type = ncclFloat32};
  gpu_fill(&g, &small);
  OK_NCCL(gpu_submit(&g, &small, 0));
  gpu_group(&others, &large);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++) {
    const cudaStream_t s = (cudaStream_t)(void *)g.stream[1];
    OK_NCCL(ncclSend((const void *)(uintptr_t)others.in[r], sends.count, ncclFloat32, 1 - r, others.comm[r], s));
    OK_NCCL(ncclRecv((void *)(uintptr_t)others.out[r], sends.count, ncclFloat32, 1 - r, others.comm[r], s));
  }
  OK_NCCL(ncclGroupEnd());
  OK_NCCL(gpu_submit(&g, &small, 1));
  gpu_wait(&g);
  gpu_check(&g, &small);
  memcpy(others.stream, own, sizeof own);
  gpu_close(&others);
  gpu_close(&g);
}

/* A rank whose calls come long before another rank's, in the same process and on the same GPU: it does not fill the
 * driver's queue, in which a call that waits would hold up the other rank's launches. */
enum { CALLS_AHEAD = HK_GPU_AHEAD, CALLS = 2 * CALLS_AHEAD }; /* of two entries */
static void *call_all(void *arg) {
  const gpu_ranks *g = arg;
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 2, .type = ncclFloat32, .op = ncclSum};
  emu_use(0);
  for (int i = 0; i < CALLS; i++) OK_NCCL(gpu_submit(g, &c, 0));
  return NULL;
}
static uint64_t launches_of(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  pthread_mutex_lock(&g->order->lock);
  const uint64_t n = g->order->launches;
  pthread_mutex_unlock(&g->order->lock);
  return n;
}
TEST(calls_far_ahead) {
  gpu_ranks g;
  pthread_t thread;
  char entries[16];
  snprintf(entries, sizeof entries, "%d", 5 * HK_GPU_AHEAD / 2);
  setenv("CUDAEMU_QUEUE", entries, 1);
  gpu_open(&g, 2, 1, 4096);
  gpu_unorder_streams(&g);
  gpu_init_all(&g);
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 2, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(&g, &c);
  ck_assert_int_eq(pthread_create(&thread, NULL, call_all, &g), 0);
  while (launches_of(g.comm[0]) < CALLS_AHEAD) usleep(1000);
  for (int i = 0; i < 20; i++, usleep(1000)) ck_assert_uint_eq(launches_of(g.comm[0]), CALLS_AHEAD);
  for (int i = 0; i < CALLS; i++) OK_NCCL(gpu_submit(&g, &c, 1));
  pthread_join(thread, NULL);
  gpu_wait(&g);
  gpu_check(&g, &c);
  gpu_close(&g);
}

/* A driver that is older than the kernels: what it needs, and how to build for it. */
TEST(older_than_kernels) {
  char text[320];
  hk_gpu_image_advice("13.0", 12080, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "driver for CUDA 13.0 or newer, and this one is for 12.8"));
  ck_assert_ptr_nonnull(strstr(text, "make NVCC=/usr/local/cuda-12.8/bin/nvcc"));
  hk_gpu_image_advice("12.8", 13000, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "GPU_ARCHS="));
  gpu_ranks *g = gpu_begin(1, 1, 4096);
  OK_NCCL(ncclCommDestroy(g->comm[0])); /* the kernels are unloaded with the last communicator */
  count_calls();
  driver_refuses[CALL_ModuleLoadData] = 1;
  if (counted) ck_assert_int_eq(ncclCommInitAll(g->comm, 1, g->device), ncclUnhandledCudaError);
  if (counted) ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "CUDA 12.8 or older"));
  g->comm[0] = NULL;
}

/* Devices on which the process has no rank, one of which another process has for itself: memory is mapped for the
 * ranks' devices alone, also what was there before the second rank's device was opened. */
static bool lets_in(int device, const void *at) {
  static CUresult (*get)(unsigned long long *, const CUmemLocation *, CUdeviceptr);
  const CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = 0;
  void *driver = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD);
  *(void **)&get = dlsym(driver, "cuMemGetAccess");
  ck_assert_int_eq(get(&flags, &l, (CUdeviceptr)(uintptr_t)at), CUDA_SUCCESS);
  dlclose(driver);
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}
TEST_LOOP(other_devices, 2) {
  gpu_ranks g;
  void *early, *late;
  setenv("CUDAEMU_BUSY", "5", 1);
  if (_i) setenv("NCCL_P2P_DISABLE", "1", 1); /* through the host's memory */
  gpu_open(&g, 2, 2, 1 << 20);
  emu_use(0);
  OK_NCCL(ncclMemAlloc(&early, 1 << 22));
  ck_assert(lets_in(0, early) && !lets_in(1, early));
  gpu_init_all(&g);
  gpu_call_all(&g);
  emu_use(1);
  OK_NCCL(ncclMemAlloc(&late, 1 << 22));
  const void *const credits[2] = {hk_gpu_of(g.comm[0])->group->credits[0].base,
                                  hk_gpu_of(g.comm[0])->group->credits[1].base};
  for (int d = 0; d < 8; d++) {
    ck_assert_int_eq(lets_in(d, early), d < 2);
    ck_assert_int_eq(lets_in(d, late), d < 2);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(lets_in(d, credits[r]), d < 2);
  }
  OK_NCCL(ncclMemFree(early));
  OK_NCCL(ncclMemFree(late));
  gpu_close(&g);
}

int main(void) { return gpu_main("gpu_calls", .timeout = 60); }
