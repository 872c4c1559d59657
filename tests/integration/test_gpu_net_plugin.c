/* SPDX-License-Identifier: Apache-2.0 */
/* Net plugins that take GPUs' memory: ranks on emulated GPUs that only the example plugin joins.  It has the memory by
 * dma-bufs or, as with a peer memory module, by its address, and shows a GPU what came there only after iflush.
 * check: notsan */
#include <dlfcn.h>
#include <stdatomic.h>
#include <time.h>
#include "../../src/base/param.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/memory.h"
#include "../support/gpu.h"
#include "../support/leftovers.h"
#include "../support/suite.h"

/* As tests/plugins/net.h has it. */
typedef struct net_example_state {
  _Atomic(int) dmabufs, addresses, most, from_gpu, to_gpu, flushes;
} net_example_state;

static net_example_state *plugin;
static _Atomic(int) driver_flushes;
static void count_flush(void) { atomic_fetch_add(&driver_flushes, 1); }

enum { TRIALS = 8 /* two ranks, two devices, a connection's two sides */ };

static gpu_ranks all;
static void end(void) { gpu_close(&all); }

/* `ordered`: the GPUs see by themselves what cards have written. */
static gpu_ranks *begin(const char *name, const char *modes, bool ordered) {
  char path[4300], file[64];
  snprintf(file, sizeof file, "../plugins/libnccl-net-%s.so", name);
  snprintf(path, sizeof path, "%s", emu_file(file));
  setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_NET", "Example", 1);
  setenv("NCCL_NET_PLUGIN", path, 1);
  setenv("HOCKET_TEST_NET_GPU", modes, 1);
  setenv("CUDAEMU_DMABUF", "1", 1);
  setenv("CUDAEMU_RDMA_ORDER", ordered ? "100" : "0", 1);
  gpu_open(&all, 2, 2, 1 << 18);
  hk_param_reload();
  void *driver = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD), *lib = dlopen(path, RTLD_NOW);
  ck_assert_msg(driver && lib, "%s", dlerror());
  plugin = dlsym(lib, "net_example");
  ck_assert_ptr_nonnull(plugin);
  *(void (**)(void))dlsym(driver, "cudaemu_rdma_flush") = count_flush;
  return &all;
}

static const struct {
  const char *plugin, *modes, *name, *value; /* a setting */
  bool ordered, from, to;                    /* devices read from GPUs, write to them */
  bool by_address, flushed;
} ways[] = {
    {"six", "address late", NULL, NULL, false, true, true, true, true},
    {"seven", "dmabuf late", NULL, NULL, false, true, true, false, true},
    {"eight", "dmabuf address late", NULL, NULL, false, true, true, false, true},
    {"nine", "address late", NULL, NULL, false, true, true, true, true},
    {"ten", "dmabuf late", "NCCL_NET_GDR_READ", "0", false, false, true, false, true},
    {"eleven", "dmabuf late", NULL, NULL, false, true, true, false, true},
    {"nine", "dmabuf late force", NULL, NULL, true, true, true, false, true},
    {"eleven", "dmabuf", NULL, NULL, true, true, true, false, false},
    {"unflushed", "dmabuf", NULL, NULL, false, true, true, false, false},
    {"eight", "dmabuf late", "NCCL_DMABUF_ENABLE", "0", false, false, false, false, false},
    {"eleven", "dmabuf late", "NCCL_NET_GDR_LEVEL", "LOC", false, false, false, false, false},
    {"ten", "none", NULL, NULL, false, false, false, false, false},
};

TEST_LOOP(goes_by, HK_ARRAY_LENGTH(ways)) {
  if (ways[_i].name) setenv(ways[_i].name, ways[_i].value, 1);
  gpu_ranks *g = begin(ways[_i].plugin, ways[_i].modes, ways[_i].ordered);
  gpu_init_all(g);
  gpu_call_all(g);
  ck_assert_int_eq(plugin->from_gpu > 0, ways[_i].from);
  ck_assert_int_eq(plugin->to_gpu > 0, ways[_i].to);
  ck_assert_int_eq(plugin->flushes > 0, ways[_i].flushed);
  ck_assert_int_eq(plugin->addresses > 0, ways[_i].by_address);
  ck_assert_int_eq(plugin->dmabufs > 0, ways[_i].to && !ways[_i].by_address);
  ck_assert_int_eq(driver_flushes > 0, strcmp(ways[_i].plugin, "unflushed") == 0);
}

/* A ring over fewer elements than ranks has slots without data. */
TEST(sends_nothing) {
  setenv("NCCL_ALGO", "ring", 1);
  gpu_ranks *g = begin("nine", "dmabuf late", false);
  gpu_init_all(g);
  for (size_t count = 1; count < 4; count++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = count, .type = ncclInt8, .op = ncclSum};
    gpu_try(g, &c);
  }
}

/* What came is not what the GPU sees, so the tests above show that flushes are there, and in time. */
TEST(is_wrong_without_a_flush) {
  setenv("NCCL_GDR_FLUSH_DISABLE", "1", 1);
  gpu_ranks *g = begin("eleven", "dmabuf late", false);
  gpu_init_all(g);
  gpu_call c = {.coll = HK_BROADCAST, .count = 300, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(g, &c);
  gpu_group(g, &c);
  gpu_wait(g);
  ck_assert_uint_lt(gpu_count_right(g, &c, 1), c.count);
  ck_assert_int_eq(plugin->flushes, 0);
}

/* Devices that take no more once they have been tried, or a few connections later. */
TEST_LOOP(falls_back, 4) {
  gpu_ranks *g = begin(_i % 2 ? "seven" : "eleven", "dmabuf late", false);
  plugin->most = TRIALS + _i;
  gpu_init_all(g);
  gpu_call_all(g);
  ck_assert_int_eq(plugin->dmabufs, TRIALS + _i);
  ck_assert_int_eq(plugin->from_gpu + plugin->to_gpu > 0, _i > 0);
}

/* Memory that the plugin has registered stays where it is while the communicator is suspended. */
TEST(is_suspended) {
  size_t chunks = 0;
  gpu_ranks *g = begin("eleven", "none", false);
  gpu_init_all(g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 30000, .type = ncclFloat32, .op = ncclSum};
  gpu_try(g, &c);
  gpu_suspend_all(g, true);
  for (int r = 0; r < 2; r++)
    for (const hk_gpu_chunk *k = hk_gpu_of(g->comm[r])->memory->pinned[HK_GPU_PINNED_PAYLOADS]; k; k = k->next) {
      ck_assert(!k->memory.parked);
      chunks++;
    }
  ck_assert_uint_gt(chunks, 0);
  gpu_suspend_all(g, false);
  gpu_try(g, &c);
}

/* The ranks' proxies are in calls of the plugin that do not return: the watchdog names the call, and an abort leaves
 * them there, and says so. */
TEST_LOOP(aborts_while_a_call_blocks, 2) {
  if (_i) {
    setenv("HOCKET_WATCHDOG", "2", 1);
    setenv("HOCKET_WATCHDOG_ABORT", "1", 1);
  }
  leftovers_ignore(); /* the threads in the plugin stay, with what they use */
  setenv("HOCKET_TEST_NET", "blocks in isend", 1);
  setenv("HOCKET_LEAVE_TIMEOUT", "1", 1);
  gpu_ranks *g = begin("eleven", "dmabuf", true);
  void *lib = dlopen(getenv("NCCL_NET_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
  _Atomic(int) *released = dlsym(lib, "net_released"), *blocked = dlsym(lib, "net_blocked");
  ck_assert(released && blocked);
  atomic_store(released, 1);
  gpu_init_all(g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 3000, .type = ncclFloat32, .op = ncclSum};
  gpu_try(g, &c);
  atomic_store(released, 0);
  gpu_group(g, &c);
  for (int i = 0; i < 20000 && atomic_load(blocked) < 2; i++) usleep(1000);
  ck_assert_int_eq(atomic_load(blocked), 2);
  time_t begun = time(NULL);
  for (ncclResult_t error = ncclSuccess; _i && error == ncclSuccess; usleep(1000)) {
    OK_NCCL(ncclCommGetAsyncError(g->comm[0], &error));
    ck_assert_int_lt(time(NULL) - begun, 15);
    if (error == ncclSuccess) continue;
    ck_assert_int_eq(error, ncclRemoteError);
    ck_assert_msg(strstr(ncclGetLastError(g->comm[0]), "; its proxy has been in a call of transport net for "), "%s",
                  ncclGetLastError(g->comm[0]));
  }
  begun = time(NULL);
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(ncclCommAbort(g->comm[r]), ncclSystemError);
    ck_assert_msg(strstr(ncclGetLastError(NULL), "HOCKET_LEAVE_TIMEOUT"), "%s", ncclGetLastError(NULL));
    g->comm[r] = NULL;
  }
  ck_assert_int_lt(time(NULL) - begun, 15);
  gpu_wait(g); /* the kernels have ended */
  gpu_sets++;  /* what the threads in the plugin use stays */
}

int main(void) {
  setenv("CUDAEMU_STRICT", "0", 1); /* a device that has memory by its address is this CPU */
  gpu_environment();
  return gpu_here() ? suite_main("gpu_net_plugin", .timeout = 100, .teardown = end) : 77;
}
