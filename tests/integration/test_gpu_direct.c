/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect RDMA: ranks on emulated GPUs that only the verbs provider joins, whose cards, the fake libibverbs.so.1's,
 * read and write the GPUs' memory.  What a card writes there is seen late, if at all, by a GPU that needs a flush.
 * check: notsan */
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/links.h"
#include "../../src/gpu/proxied.h"
#include "../../src/kernels/cuda/work.h"
#include "../support/fake_rdma.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static fake_verbs_state *verbs;
static gpu_ranks all;

static void set(const char *name, const char *value) { setenv(name, value, 1); }

/* Cards that write so that GPUs see it late, and what a GPU's driver does about it. */
static gpu_ranks *begin_with(int ranks, bool late, size_t capacity) {
  set("NCCL_P2P_DISABLE", "1");
  set("NCCL_SHM_DISABLE", "1");
  set("CUDAEMU_RDMA_ORDER", late ? "0" : "100");
  setenv("CUDAEMU_DMABUF", "1", 0);
  gpu_open(&all, ranks, ranks, capacity);
  verbs = rdma_begin(2);
  rdma_param("NCCL_NET", "IB");
  verbs->late = late;
  verbs->gpu = (char *)(uintptr_t)(all.in[0] & ~(CUdeviceptr)0xfffff);
  verbs->gpu_bytes = (uint64_t)1 << 32;
  void *driver = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD);
  void *fakes = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ck_assert(driver && fakes);
  *(void **)dlsym(driver, "cudaemu_rdma_flush") = dlsym(fakes, "fake_verbs_flush");
  *(void **)&verbs->of_host = dlsym(driver, "cudaemu_of_host");
  return &all;
}
static gpu_ranks *begin(int ranks, bool late) { return begin_with(ranks, late, 1 << 18); }
static void end(void) {
  gpu_close(&all);
  rdma_end(verbs);
}

/* Of a count of the cards', while proxies run. */
static uint64_t now(const uint64_t *count) {
  pthread_mutex_lock(&verbs->lock);
  uint64_t n = *count;
  pthread_mutex_unlock(&verbs->lock);
  return n;
}

static const struct {
  const char *name, *value; /* a setting */
  int refusal;              /* of dma-bufs */
  bool module;              /* nvidia-peermem */
  bool late, no_call;       /* the GPU needs flushes; its driver has no call for them */
  bool from, to;            /* cards read from GPUs, write to them */
} ways[] = {
    {NULL, NULL, 0, false, true, false, true, true},
    {NULL, NULL, 0, false, true, true, true, true},
    {NULL, NULL, 0, false, false, false, true, true},
    {"NCCL_NET_GDR_READ", "0", 0, false, true, false, false, true},
    {"CUDAEMU_STRICT", "0", EOPNOTSUPP, true, true, true, true, true}, /* else the fake card's writes were a crash */
    {NULL, NULL, EOPNOTSUPP, false, true, false, false, false},
    {"CUDAEMU_DMABUF", "0", 0, false, true, false, false, false},
    {"NCCL_NET_GDR_LEVEL", "LOC", 0, false, true, false, false, false},
    {"NCCL_IB_CUDA_SUPPORT", "0", 0, true, true, false, false, false},
};

TEST_LOOP(goes_by, HK_ARRAY_LENGTH(ways)) {
  if (ways[_i].name) set(ways[_i].name, ways[_i].value);
  if (ways[_i].no_call) set("CUDAEMU_RDMA_FLUSH", "0");
  gpu_ranks *g = begin(2, ways[_i].late);
  verbs->dmabuf_refusal = ways[_i].refusal;
  verbs->peermem = ways[_i].module;
  gpu_init_all(g);
  gpu_call_all(g);
  ck_assert_int_eq(now(&verbs->from_gpu) > 0, ways[_i].from);
  ck_assert_int_eq(now(&verbs->to_gpu) > 0, ways[_i].to);
  ck_assert_int_eq(now(&verbs->flushes) > 0, ways[_i].to && ways[_i].late);
  ck_assert_int_eq(now(&verbs->reads) > 0, ways[_i].to && ways[_i].no_call);
}

/* The same without the flush: what came is not what the GPU sees, so the tests above show that flushes are there. */
TEST(is_wrong_without_a_flush) {
  gpu_ranks *g = begin(2, true);
  rdma_param("NCCL_GDR_FLUSH_DISABLE", "1");
  gpu_init_all(g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 300, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(g, &c);
  gpu_group(g, &c);
  gpu_wait(g);
  ck_assert_uint_lt(gpu_count_right(g, &c, 0), c.count);
  ck_assert_uint_eq(now(&verbs->flushes), 0);
}

/* What a failed queue pair has not delivered is sent again from the GPU's memory, over a new one with new flushes. */
TEST_LOOP(recovers, 2) {
  if (_i) set("CUDAEMU_RDMA_FLUSH", "0");
  if (_i) set("NCCL_IB_QPS_PER_CONNECTION", "2");
  gpu_ranks *g = begin(2, true);
  verbs->skip = 30;
  verbs->broken = 2;
  gpu_init_all(g);
  for (int i = 0; i < 3; i++) gpu_call_all(g);
  ck_assert_uint_gt(now(&verbs->flushes), 0);
  ck_assert_int_eq(verbs->broken, 0);
}

TEST(splits) {
  set("HOCKET_SLOT_BYTES", "131072");
  set("NCCL_IB_QPS_PER_CONNECTION", "3");
  set("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  set("NCCL_MAX_NCHANNELS", "1");
  gpu_ranks *g = begin(2, true);
  gpu_init_all(g);
  gpu_call c = {.coll = HK_BROADCAST, .count = 60001, .type = ncclFloat32};
  gpu_try(g, &c);
  ck_assert_uint_gt(now(&verbs->from_gpu), 3);
}

/* Rank 0's card stands still while the kernel fills four slots of 128 KiB: those that the proxy has seen before are one
 * request, and the others are the next. With NCCL's buffer a slot has 512 KiB. */
TEST_LOOP(catches_up, 2) {
  enum { COUNT = 131072 };
  const unsigned slots = _i ? 1 : 4;
  set("HOCKET_SLOT_BYTES", _i ? "" : "131072");
  if (_i) set("NCCL_BUFFSIZE", "4194304");
  set("HOCKET_SLOTS", "8");
  gpu_ranks *g = begin_with(2, true, COUNT * sizeof(float));
  gpu_init_all(g);
  for (unsigned turn = 0; turn < 2; turn++) { /* the first one has one slot, and makes the link */
    gpu_call c = {.coll = HK_BROADCAST, .count = turn ? COUNT : COUNT / 4, .type = ncclFloat32, .shift = turn};
    cudaStream_t q[] = {(cudaStream_t)(void *)g->stream[0], (cudaStream_t)(void *)g->stream[1]};
    gpu_fill(g, &c);
    const uint64_t reads = now(&verbs->from_gpu);
    if (turn) pthread_mutex_lock(&verbs->lock);
    OK_NCCL(ncclGroupStart());
    OK_NCCL(ncclSend((void *)(uintptr_t)g->in[0], c.count, ncclFloat32, 1, g->comm[0], q[0]));
    OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[1], c.count, ncclFloat32, 0, g->comm[1], q[1]));
    OK_NCCL(ncclGroupEnd());
    const hk_gpu_proxied *f = hk_gpu_proxy_links(hk_gpu_of(g->comm[0])->links->proxy);
    ck_assert(f && f->link.kind == HK_LINK_SEND && !f->next);
    const uint64_t *last = (uint64_t *)f->words.host + slots * HK_GPU_WORD_STRIDE;
    while (turn && __atomic_load_n(last, __ATOMIC_ACQUIRE) >> 32 != slots + 1) usleep(100);
    if (turn) pthread_mutex_unlock(&verbs->lock);
    gpu_wait(g);
    gpu_check_some(g, &c, 1, 1);
    if (turn) ck_assert_uint_le(now(&verbs->from_gpu) - reads, _i ? 1 : 2);
  }
}

/* Two cards act as one: both read and write the GPUs' memory, and each flushes what it has written itself. Also if a
 * queue pair fails, or one of the cards takes no more of a GPU's memory after some connections. */
static const struct {
  bool split, no_call; /* no_call: the GPU's driver has no call for flushes */
  int broken, memories;
} joint[] = {{false, true, 0, -1}, {true, false, 0, -1}, {true, true, 3, -1}, {false, true, 0, 1}, {true, true, 0, 2}};

TEST_LOOP(goes_over_two_cards, HK_ARRAY_LENGTH(joint)) {
  enum { TRIALS = 4 };                /* two ranks and two cards */
  set("HOCKET_SLOT_BYTES", "131072"); /* messages that are split have 64 KiB and more */
  set("NCCL_IB_SPLIT_DATA_ON_QPS", joint[_i].split ? "1" : "0");
  if (joint[_i].no_call) set("CUDAEMU_RDMA_FLUSH", "0");
  gpu_ranks *g = begin(2, true);
  rdma_plenty = true; /* ports are not merged where little memory may be locked */
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  verbs->skip = 30;
  verbs->broken = joint[_i].broken;
  if (joint[_i].memories >= 0) verbs->dmabuf_most = TRIALS + (uint64_t)joint[_i].memories;
  gpu_init_all(g);
  gpu_call_all(g);
  gpu_call c = {.coll = HK_BROADCAST, .count = 60001, .type = ncclFloat32};
  for (int i = 0; i < 3; i++) {
    c.shift = (size_t)i;
    gpu_try(g, &c);
  }
  const bool both = !joint[_i].broken && joint[_i].memories < 0;
  for (int i = 0; i < 2 && both; i++) ck_assert_uint_gt(now(&verbs->device[i].to_gpu), 20);
  ck_assert_int_eq(verbs->broken, 0);
}

/* Cards that take no more of a GPU's memory, once they have been tried or a few connections later: data passes host
 * memory from there on, at each end alone.  The kernels write to and read from the GPU's all the same. */
TEST_LOOP(falls_back, 4) {
  enum { TRIALS = 4 }; /* two ranks and two cards */
  gpu_ranks *g = begin(2, true);
  if (_i % 2) set("NCCL_IB_QPS_PER_CONNECTION", "2");
  verbs->dmabuf_most = TRIALS + (uint64_t)_i;
  gpu_init_all(g);
  gpu_call_all(g);
  ck_assert_uint_eq(now(&verbs->dmabufs), TRIALS + (uint64_t)_i);
  if (!_i) ck_assert_uint_eq(now(&verbs->from_gpu) + now(&verbs->to_gpu), 0);
  if (_i > 1) ck_assert_uint_gt(now(&verbs->from_gpu) + now(&verbs->to_gpu), 0);
}

/* Memory runs out, for GPUs and for the rings: what has been with a GPU goes over sockets, where these are at hand. */
TEST_LOOP(gives_way, 3) {
  gpu_ranks *g = begin(2, true);
  rdma_param("NCCL_NET", "");
  struct rlimit limit; /* a little one: the provider expects refusals */
  ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (limit.rlim_cur > 1 << 20) limit.rlim_cur = 1 << 20;
  ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  verbs->lockable = 140000 + (uint64_t)_i * 90000;
  gpu_init_all(g);
  gpu_call_all(g);
}

/* Suspended: what the cards had of the GPUs' memory is given back, and comes again with new queue pairs. */
TEST_LOOP(suspends, 2) {
  set("CUDAEMU_DMABUF", _i ? "0" : "2"); /* 0: links in host memory */
  set("HOCKET_SLOT_BYTES", "131072");
  gpu_ranks *g = begin(2, true);
  const size_t before = gpu_in_use(2);
  gpu_init_all(g);
  gpu_call_all(g);
  for (int turn = 0; turn < 3; turn++) {
    const size_t active = gpu_in_use(2) - before;
    const uint64_t memories = now(&verbs->registered);
    ck_assert_int_gt(verbs->nmrs, 0);
    for (int suspend = 1; suspend >= 0; suspend--) {
      gpu_suspend_all(g, suspend);
      if (!suspend) break;
      const size_t left = gpu_in_use(2) - before;
      ck_assert_msg(_i || left <= active / 20, "%zu of %zu bytes are left", left, active);
      ck_assert_int_eq(verbs->nmrs, 0);
      ck_assert_int_eq(verbs->nqps, 0);
    }
    gpu_call_all(g);
    ck_assert_uint_gt(now(&verbs->registered), memories);
    ck_assert_uint_eq(gpu_in_use(2) - before, active);
  }
}

/* One-sided operations: the cards write into the peer's host memory, from which its proxy copies to the GPU.  Also if
 * a queue pair fails. */
TEST_LOOP(one_sided, 2) {
  enum { BYTES = 400000, ROUNDS = 3 };
  char *memory[2];
  static char data[BYTES];
  ncclWindow_t window[2];
  gpu_ranks *g = begin(2, false);
  gpu_held_before[EMU_FILES] += 2; /* signal tables of communicators that ended lately are kept for a while */
  gpu_init_all(g);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++) {
    emu_use(r);
    OK_NCCL(ncclMemAlloc((void **)&memory[r], 1 << 20));
    OK_NCCL(ncclCommWindowRegister(g->comm[r], memory[r], 1 << 20, &window[r], NCCL_WIN_COLL_SYMMETRIC));
  }
  OK_NCCL(ncclGroupEnd());
  const uint64_t before = now(&verbs->writes);
  verbs->passing = 3;
  verbs->severed = _i;
  for (int round = 0; round < ROUNDS; round++) {
    for (int r = 0; r < 2; r++) {
      cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
      for (int i = 0; i < BYTES; i++) data[i] = (char)(r + 7 * round + i + i / 1000);
      emu_use(r);
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)(memory[r] + BYTES), (CUdeviceptr)(uintptr_t)data, BYTES, g->stream[r]));
      OK(StreamSynchronize(g->stream[r]));
      OK_NCCL(ncclPutSignal(memory[r] + BYTES, BYTES, ncclInt8, 1 - r, window[r], 0, 0, 0, 0, g->comm[r], s));
    }
    for (int r = 0; r < 2; r++) {
      ncclWaitSignalDesc_t d = {.opCnt = 1, .peer = 1 - r};
      OK_NCCL(ncclWaitSignal(1, &d, g->comm[r], (cudaStream_t)(void *)g->stream[r]));
      emu_use(r);
      OK(MemcpyAsync((CUdeviceptr)(uintptr_t)data, (CUdeviceptr)(uintptr_t)memory[r], BYTES, g->stream[r]));
      OK(StreamSynchronize(g->stream[r]));
      suite_all(i, BYTES, data[i] == (char)(1 - r + 7 * round + (int)i + (int)i / 1000));
    }
    gpu_wait(g);
  }
  ck_assert_uint_ge(now(&verbs->writes) - before, 2 * 2 * ROUNDS); /* of data and of signals */
  ck_assert_int_eq(verbs->severed, 0);
  for (int r = 0; r < 2; r++) {
    OK_NCCL(ncclCommWindowDeregister(g->comm[r], window[r]));
    OK_NCCL(ncclMemFree(memory[r]));
  }
}

/* Rank 1 opens its links while rank 0's kernel waits for it already: nothing there may wait for kernels. */
TEST(opens_beside_a_kernel) {
  gpu_ranks *g = begin(2, true);
  gpu_init_all(g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 300, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(g, &c);
  for (int r = 0; r < 2; r++) OK_NCCL(gpu_submit(g, &c, r));
  gpu_check(g, &c);
}

/* ---- distances ---- */

/* Two CPUs, each with a GPU; card fake1 is next to GPU 0, fake0 on the CPU of GPU 1. */
static void write_machine(void) {
  fm_file(
      "machine.xml",
      "<system version=\"1\">\n"
      "<cpu numaid=\"0\" affinity=\"1\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n"
      "<pci busid=\"0000:0f:00.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
      "<pci busid=\"0000:10:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
      "<gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\"/></pci>\n"
      "<pci keep=\"1\" busid=\"0000:20:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
      "<nic>"
      "<net keep=\"1\" name=\"fake1\" dev=\"41\" speed=\"100000\" port=\"1\" guid=\"0x1\" maxconn=\"1024\" gdr=\"1\"/>"
      "</nic></pci>\n"
      "</pci></cpu>\n"
      "<cpu numaid=\"1\" affinity=\"2\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">\n"
      "<pci busid=\"0000:11:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
      "<gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\"/></pci>\n"
      "<pci keep=\"1\" busid=\"0000:21:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
      "<nic>"
      "<net keep=\"1\" name=\"fake0\" dev=\"40\" speed=\"100000\" port=\"1\" guid=\"0x2\" maxconn=\"1024\" gdr=\"1\"/>"
      "</nic></pci>\n"
      "</cpu>\n</system>\n");
  char path[600];
  snprintf(path, sizeof path, "%s/machine.xml", scratch_folder);
  rdma_param("NCCL_TOPO_FILE", path);
}

static const struct {
  const char *level;
  bool direct[2]; /* each rank */
} levels[] = {{"", {true, false}}, {"SYS", {true, true}}, {"PIX", {true, false}}, {"LOC", {false, false}}};

/* Each side decides for itself: rank 0's GPU has a card next to it, rank 1's does not. Also if the cards act as one. */
TEST_LOOP(keeps_to_the_distance, 1 + (int)HK_ARRAY_LENGTH(levels)) {
  const bool merged = _i >= (int)HK_ARRAY_LENGTH(levels);
  if (merged) _i -= (int)HK_ARRAY_LENGTH(levels);
  gpu_ranks *g = begin(2, true);
  write_machine();
  rdma_plenty = merged;
  rdma_param("NCCL_NET_FORCE_MERGE", merged ? "fake0,fake1" : "");
  rdma_param("NCCL_NET_GDR_LEVEL", levels[_i].level);
  gpu_init_all(g);
  for (int from = 0; from < 2; from++) {
    for (size_t bytes = 20; bytes < 60000; bytes *= 40) {
      uint64_t read = now(&verbs->from_gpu), written = now(&verbs->to_gpu);
      gpu_call c = {.coll = HK_BROADCAST, .count = bytes, .type = ncclInt8, .root = from};
      gpu_try(g, &c);
      ck_assert_int_eq(now(&verbs->from_gpu) > read, levels[_i].direct[from]);
      ck_assert_int_eq(now(&verbs->to_gpu) > written, levels[_i].direct[1 - from]);
    }
  }
}

static const struct {
  const char *wanted, *level;
  int refusal;
  bool used, direct; /* the function is tried and takes memory; rank 1's GPU memory is accessed */
} near[] = {{"1", "", 0, true, true},        {"1", "PIX", 0, true, true},       {"0", "", 0, false, false},
            {"1", "", ENOSPC, false, false}, {"1", "SYS", ENOSPC, false, true}, {"1", "LOC", 0, false, false}};

/* Card fake0 is far from GPU 1, but has a data-direct function next to it. */
TEST_LOOP(goes_past_the_cpu, HK_ARRAY_LENGTH(near)) {
  gpu_ranks *g = begin(2, true);
  write_machine();
  fm_file("sys/devices/pci0000:40/0000:40:01.0/0000:11:00.0/vendor", "0x10de\n");
  fm_link("sys/bus/pci/devices/0000:11:00.0", "../../../devices/pci0000:40/0000:40:01.0/0000:11:00.0");
  verbs->device[0].mlx5 = verbs->device[1].mlx5 = 1;
  verbs->device[0].second = "/devices/pci0000:40/0000:40:01.0/0000:12:00.0";
  verbs->device[0].no_direct = near[_i].refusal;
  rdma_param("NCCL_IB_DATA_DIRECT", near[_i].wanted);
  rdma_param("NCCL_NET_GDR_LEVEL", near[_i].level);
  gpu_init_all(g);
  for (int from = 0; from < 2; from++) {
    uint64_t read = now(&verbs->from_gpu), written = now(&verbs->to_gpu);
    gpu_call c = {.coll = HK_BROADCAST, .count = 40000, .type = ncclInt8, .root = from};
    gpu_try(g, &c);
    ck_assert_int_eq((from ? now(&verbs->from_gpu) > read : now(&verbs->to_gpu) > written), near[_i].direct);
  }
  ck_assert_int_eq(verbs->device[0].directs > 0, near[_i].used);
}

int main(void) {
  /* The cards are this CPU, which by nvidia-peermem has the GPU's own addresses: also where no kernel runs. */
  setenv("CUDAEMU_STRICT", "0", 1);
  gpu_environment();
  return gpu_here() ? suite_main("gpu_direct", .timeout = 100, .teardown = end) : 77;
}
