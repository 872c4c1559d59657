/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated driver for tests, and ranks on its GPUs. */
#include "gpu.h"
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <signal.h>
#include <sys/wait.h>
#include "suite.h"

hk_cuda_calls cu;
int gpu_sets;
long gpu_held_before[EMU_HELD];

/* ---- The emulated driver ---- */

const char *emu_file(const char *name) {
  static char path[4200];
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  snprintf(path, sizeof path, "%s/../cudaemu/%s", dirname(self), name);
  return path;
}

void emu_load(void) {
  unsetenv("HOCKET_DEVICE"); /* scripts/check.sh sets it */
  void *library = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
#define FIND(member, symbol, params)                                                                                   \
  *(void **)&cu.member = dlsym(library, #symbol);                                                                      \
  ck_assert_msg(cu.member != NULL, "no %s", #symbol);
  HK_CUDA_CALLS(FIND, FIND)
#undef FIND
}

long emu_memory_files(void) {
  char path[300], name[64];
  long n = 0;
  DIR *d = opendir("/proc/self/fd");
  for (const struct dirent *e; d && (e = readdir(d));) {
    snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
    ssize_t length = readlink(path, name, sizeof name);
    n += length > 7 && strncmp(name, "/memfd:", 7) == 0;
  }
  if (d) closedir(d);
  return n;
}

void emu_count_held(long held[EMU_HELD]) {
  void (*count)(long *) = NULL;
  void *library = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD);
  if (library) *(void **)&count = dlsym(library, "cudaemu_held");
  ck_assert_ptr_nonnull(count);
  count(held);
  held[EMU_FILES] = emu_memory_files();
  dlclose(library);
}

void emu_check_held(const long before[EMU_HELD]) {
  static const char *const names[] = {"streams", "events",   "modules",     "physical",   "classic",        "reserved",
                                      "mapped",  "imported", "of the host", "registered", "files of memory"};
  _Static_assert(sizeof names / sizeof *names == EMU_HELD, "a name for each kind");
  long now[EMU_HELD];
  emu_count_held(now);
  for (int i = 0; i < EMU_HELD; i++)
    ck_assert_msg(now[i] == before[i], "%s: %ld are held, %ld before", names[i], now[i], before[i]);
}

void emu_start(int devices) {
  char text[16];
  CUcontext ctx;
  snprintf(text, sizeof text, "%d", devices);
  setenv("CUDAEMU_DEVICES", text, 1);
  emu_load();
  OK(Init(0));
  for (int d = devices - 1; d >= 0; d--) OK(DevicePrimaryCtxRetain(&ctx, d));
  OK(CtxSetCurrent(ctx));
}

CUcontext emu_use(int device) {
  CUcontext ctx;
  OK(DevicePrimaryCtxRetain(&ctx, device));
  OK(CtxSetCurrent(ctx));
  return ctx;
}

CUdeviceptr emu_alloc(size_t bytes) {
  CUdeviceptr p = 0;
  OK(MemAlloc(&p, bytes));
  OK(MemsetD8Async(p, 0, bytes, NULL));
  OK(StreamSynchronize(NULL));
  return p;
}

CUstream emu_new_stream(unsigned flags) {
  CUstream s;
  OK(StreamCreateWithPriority(&s, flags, 0));
  return s;
}

void emu_read(void *to, CUdeviceptr from, size_t bytes) {
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)to, from, bytes, NULL));
  OK(StreamSynchronize(NULL));
}

uint32_t emu_word(CUdeviceptr at) {
  uint32_t x;
  emu_read(&x, at, 4);
  return x;
}

int emu_has_kernels(void) {
  if (access(emu_file("test_kernels.so"), R_OK) == 0) return 1;
  printf("SKIP: kernels on the emulated driver: they were not compiled, which takes g++\n");
  return 0;
}

CUfunction emu_kernel(const char *name) {
  static CUmodule module;
  char image[4300];
  CUfunction f;
  snprintf(image, sizeof image, "cudaemu:%s", emu_file("test_kernels.so"));
  if (!module) OK(ModuleLoadData(&module, image));
  OK(ModuleGetFunction(&f, module, name));
  return f;
}

void emu_launch(CUfunction f, unsigned blocks, unsigned threads, void *params, CUstream s) {
  void *list[] = {params};
  OK(LaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, list, NULL));
}

/* ---- Ranks of this process: their memory, streams and data, and what collectives must give ---- */

void gpu_environment(void) {
  setenv("CUDAEMU_DEVICES", "8", 0);
  setenv("CUDAEMU_THREADS", "64", 0);
  setenv("CUDAEMU_STRICT", "1", 0);
  setenv("CUDAEMU_WEAK", "1", 0);
  setenv("HOCKET_CUDA_IMAGE", emu_file("kernels.so"), 0);
  setenv("HOCKET_SLOT_BYTES", "8192", 0);
  setenv("HOCKET_SLOTS", "4", 0);
  setenv("NCCL_MAX_NCHANNELS", "4", 0);
}

bool gpu_here(void) {
  if (access(emu_file("kernels.so"), R_OK) == 0) return true;
  printf("SKIP: GPUs on the emulated driver: its kernels were not compiled, which takes g++\n");
  return false;
}

CUdeviceptr gpu_alloc(int device, size_t bytes) {
  CUdeviceptr p = 0;
  emu_use(device);
  OK(MemAlloc(&p, bytes));
  return p;
}

void gpu_fail_nth(const char *which, int n, int devices) {
  char text[16];
  snprintf(text, sizeof text, "%d", 3 * devices + n);
  setenv(which, text, 1);
}

void gpu_open(gpu_ranks *g, int n, int devices, size_t capacity) {
  memset(g, 0, sizeof *g);
  g->n = n;
  g->capacity = capacity;
  emu_start(8);
  if (gpu_sets++ == 0) emu_count_held(gpu_held_before);
  for (int r = 0; r < n; r++) {
    g->device[r] = r % devices;
    g->in[r] = gpu_alloc(g->device[r], capacity);
    g->out[r] = gpu_alloc(g->device[r], capacity);
    g->stream[r] = emu_new_stream(r % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  }
}

void gpu_init_all(gpu_ranks *g) { OK_NCCL(ncclCommInitAll(g->comm, g->n, g->device)); }

static gpu_ranks begun;
static bool is_begun;

gpu_ranks *gpu_begin(int n, int devices, size_t capacity) {
  gpu_open(&begun, n, devices, capacity);
  gpu_init_all(&begun);
  is_begun = true;
  return &begun;
}

void gpu_end(void) {
  if (is_begun) gpu_close(&begun);
}

void gpu_init_config(gpu_ranks *g, ncclConfig_t *config) {
  ncclUniqueId id;
  OK_NCCL(ncclGetUniqueId(&id));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK_NCCL(ncclCommInitRankConfig(&g->comm[r], g->n, id, r, config));
  }
  OK_NCCL(ncclGroupEnd());
}

void gpu_unorder_streams(gpu_ranks *g) {
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(StreamDestroy(g->stream[r]));
    g->stream[r] = emu_new_stream(CU_STREAM_NON_BLOCKING);
  }
}

void gpu_suspend_all(const gpu_ranks *g, bool suspend) {
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++)
    OK_NCCL(suspend ? ncclCommSuspend(g->comm[r], NCCL_SUSPEND_MEM) : ncclCommResume(g->comm[r]));
  OK_NCCL(ncclGroupEnd());
}

void *gpu_abort(void *comm) {
  OK_NCCL(ncclCommAbort((ncclComm_t)comm));
  return NULL;
}

ncclResult_t wait_for_error(ncclComm_t c) {
  ncclResult_t code = ncclSuccess;
  for (int i = 0; i < 10000 && code == ncclSuccess; i++) {
    OK_NCCL(ncclCommGetAsyncError(c, &code));
    usleep(1000);
  }
  return code;
}

void gpu_close(gpu_ranks *g) {
  if (g == &begun) is_begun = false;
  for (int r = 0; r < g->n; r++)
    if (g->comm[r]) ck_assert_int_eq(rank_left_work(g->comm[r]), 0);
  for (int r = 0; r < g->n; r++)
    if (g->comm[r]) OK_NCCL(ncclCommDestroy(g->comm[r]));
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(StreamDestroy(g->stream[r]));
    OK(MemFree(g->in[r]));
    OK(MemFree(g->out[r]));
  }
  if (--gpu_sets == 0) emu_check_held(gpu_held_before);
}

void gpu_wait(const gpu_ranks *g) {
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(StreamSynchronize(g->stream[r]));
  }
}

CUdeviceptr gpu_out(const gpu_ranks *g, const gpu_call *c, int r) {
  size_t bytes = c->count * test_type_bytes(c->type);
  hk_coll coll = hk_coll_plain(c->coll);
  if (c->in_place && (coll == HK_REDUCE_SCATTER || coll == HK_SCATTER))
    return g->out[r] + c->offset + (size_t)r * bytes;
  return g->out[r] + c->offset;
}

CUdeviceptr gpu_in(const gpu_ranks *g, const gpu_call *c, int r) {
  size_t bytes = c->count * test_type_bytes(c->type);
  if (!c->in_place) return g->in[r] + c->offset;
  hk_coll coll = hk_coll_plain(c->coll);
  if (coll == HK_ALLGATHER || coll == HK_GATHER) return g->out[r] + c->offset + (size_t)r * bytes;
  return g->out[r] + c->offset;
}

void gpu_fill_some(const gpu_ranks *g, const gpu_call *c, int first, int ranks) {
  size_t unit = test_type_bytes(c->type);
  size_t n = c->count * (size_t)hk_coll_in_blocks(c->coll, g->n);
  char *host = malloc(n * unit + 1);
  for (int r = first; r < first + ranks; r++) {
    if (!hk_coll_has_input(c->coll, r, c->root)) continue;
    for (size_t i = 0; i < n; i++) test_store(c->type, host, i, test_value(r, g->n, c->shift + i, c->op));
    emu_use(g->device[r]);
    OK(MemcpyAsync(gpu_in(g, c, r), (CUdeviceptr)(uintptr_t)host, n * unit, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
  }
  free(host);
}

void gpu_fill(const gpu_ranks *g, const gpu_call *c) { gpu_fill_some(g, c, 0, g->n); }

ncclResult_t gpu_submit(const gpu_ranks *g, const gpu_call *c, int r) {
  const void *in = (const void *)(uintptr_t)gpu_in(g, c, r);
  void *out = (void *)(uintptr_t)gpu_out(g, c, r);
  cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
  size_t n[GPU_RANKS]; /* of an uneven collective */
  for (int i = 0; i < g->n; i++) n[i] = c->count;
  switch (c->coll) {
    case HK_ALLREDUCE: return ncclAllReduce(in, out, c->count, c->type, c->op, g->comm[r], s);
    case HK_BROADCAST: return ncclBroadcast(in, out, c->count, c->type, c->root, g->comm[r], s);
    case HK_REDUCE: return ncclReduce(in, out, c->count, c->type, c->op, c->root, g->comm[r], s);
    case HK_ALLGATHER: return ncclAllGather(in, out, c->count, c->type, g->comm[r], s);
    case HK_REDUCE_SCATTER: return ncclReduceScatter(in, out, c->count, c->type, c->op, g->comm[r], s);
    case HK_ALLTOALL: return ncclAlltoAll(in, out, c->count, c->type, g->comm[r], s);
    case HK_GATHER: return ncclGather(in, out, c->count, c->type, c->root, g->comm[r], s);
    case HK_SCATTER: return ncclScatter(in, out, c->count, c->type, c->root, g->comm[r], s);
    case HK_ALLGATHERV: return hocketAllGatherv(in, out, n, NULL, c->type, g->comm[r], s);
    case HK_REDUCE_SCATTERV: return hocketReduceScatterv(in, out, n, NULL, c->type, c->op, g->comm[r], s);
    case HK_ALLTOALLV: return hocketAlltoAllv(in, n, NULL, out, n, NULL, c->type, g->comm[r], s);
    default: return ncclInternalError;
  }
}

void gpu_group(const gpu_ranks *g, const gpu_call *c) {
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++) OK_NCCL(gpu_submit(g, c, r));
  OK_NCCL(ncclGroupEnd());
}

double gpu_wanted(const gpu_ranks *g, const gpu_call *c, int r, size_t i, double *tolerance) {
  size_t block = i / c->count, at = c->shift + i % c->count, all = c->shift + i;
  *tolerance = 0;
  switch (hk_coll_plain(c->coll)) {
    case HK_ALLREDUCE:
    case HK_REDUCE: return test_reduced(c->type, g->n, all, c->op, tolerance);
    case HK_REDUCE_SCATTER: return test_reduced(c->type, g->n, (size_t)r * c->count + all, c->op, tolerance);
    case HK_BROADCAST: return test_value(c->root, g->n, all, c->op);
    case HK_ALLTOALL: return test_value((int)block, g->n, (size_t)r * c->count + at, c->op);
    case HK_SCATTER: return test_value(c->root, g->n, (size_t)r * c->count + at, c->op);
    default: return test_value((int)block, g->n, at, c->op);
  }
}

void gpu_check_some(const gpu_ranks *g, const gpu_call *c, int first, int ranks) {
  size_t unit = test_type_bytes(c->type), n = c->count * (size_t)hk_coll_out_blocks(c->coll, g->n);
  char *host = malloc(n * unit + 1);
  for (int r = first; r < first + ranks; r++) {
    if (!hk_coll_has_output(c->coll, r, c->root)) continue;
    emu_use(g->device[r]);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)host, gpu_out(g, c, r), n * unit, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    for (size_t i = 0; i < n; i++) {
      double tolerance, want = gpu_wanted(g, c, r, i, &tolerance), got = test_load(c->type, host, i);
      double off = got > want ? got - want : want - got, size = want < 0 ? -want : want;
      if (off <= tolerance * size) continue; /* an assertion that holds costs a system call */
      ck_abort_msg("%s, %zu of type %d, op %d: rank %d of %d, element %zu is %g, not %g", hk_coll_name(c->coll),
                   c->count, c->type, c->op, r, g->n, i, got, want);
    }
  }
  free(host);
}

void gpu_check(const gpu_ranks *g, const gpu_call *c) { gpu_check_some(g, c, 0, g->n); }

size_t gpu_count_right(const gpu_ranks *g, const gpu_call *c, int r) {
  size_t right = 0;
  float *out = calloc(c->count, sizeof *out);
  emu_use(g->device[r]);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], c->count * sizeof *out, g->stream[r]));
  OK(StreamSynchronize(g->stream[r]));
  for (size_t i = 0; i < c->count; i++) {
    double tolerance;
    right += out[i] == (float)gpu_wanted(g, c, r, i, &tolerance);
  }
  free(out);
  return right;
}

void gpu_try(const gpu_ranks *g, const gpu_call *c) {
  gpu_fill(g, c);
  gpu_group(g, c);
  gpu_check(g, c);
}

CUgraphExec gpu_end_capture(CUstream s) {
  CUgraph graph;
  CUgraphExec exec;
  OK(StreamEndCapture(s, &graph));
  OK(GraphInstantiateWithFlags(&exec, graph, 0));
  OK(GraphDestroy(graph));
  return exec;
}

void gpu_capture(const gpu_ranks *g, const gpu_call *c, gpu_graph *x) {
  x->call = *c;
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(StreamBeginCapture(g->stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  gpu_group(g, c);
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    x->exec[r] = gpu_end_capture(g->stream[r]);
  }
}

void gpu_replay(const gpu_ranks *g, gpu_graph *x) {
  x->call.shift += 7919;
  gpu_fill(g, &x->call);
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(GraphLaunch(x->exec[r], g->stream[r]));
  }
  gpu_check(g, &x->call);
}

void gpu_graph_free(const gpu_ranks *g, gpu_graph *x) {
  for (int r = 0; r < g->n; r++) OK(GraphExecDestroy(x->exec[r]));
}

void gpu_call_all(gpu_ranks *g) {
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_BROADCAST, HK_ALLTOALL};
  for (size_t i = 0; i < sizeof colls / sizeof *colls; i++) {
    for (size_t count = 7; count < 10000; count *= 36) {
      gpu_call c = {.coll = colls[i], .count = count, .type = ncclFloat32, .op = ncclSum, .root = 1};
      gpu_fill(g, &c);
      for (int k = 0; k < 2; k++) gpu_group(g, &c);
      gpu_check(g, &c);
    }
  }
}

size_t gpu_in_use(int n) {
  size_t sum = 0;
  for (int d = 0; d < n; d++) {
    size_t left = 0, all = 0;
    emu_use(d);
    OK(MemGetInfo(&left, &all));
    sum += all - left;
  }
  return sum;
}

uint64_t gpu_held(ncclComm_t c, ncclCommMemStat_t what) {
  uint64_t value = 0;
  OK_NCCL(ncclCommMemStats(c, what, &value));
  return value;
}

/* ---- Ranks that are processes, with one rank or more each, on one host or on pretended ones ---- */

static void open_place(gpu_place *p, const ncclUniqueId *id, int devices) {
  gpu_ranks *g = &p->g;
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    emu_use(g->device[r] = r % devices);
    OK_NCCL(ncclCommInitRank(&g->comm[r], g->n, *id, r));
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) {
    g->in[r] = gpu_alloc(g->device[r], g->capacity);
    g->out[r] = gpu_alloc(g->device[r], g->capacity);
    g->stream[r] = emu_new_stream(CU_STREAM_NON_BLOCKING);
  }
}

int run_processes(int n, int each, int devices, int hosts, void (*body)(gpu_place *p)) {
  static const char *const names[] = {"north", "east", "south", "west"};
  int ends[2], bad = 0;
  pid_t pids[GPU_RANKS];
  ck_assert_int_eq(pipe(ends), 0);
  fflush(NULL);
  for (int i = 0; i < n; i++) {
    pids[i] = fork();
    if (pids[i]) continue;
    ncclUniqueId id;
    gpu_place p = {.process = i, .first = i * each, .each = each};
    p.g.n = n * each;
    p.g.capacity = 1 << 16;
    if (hosts > 1) setenv("NCCL_HOSTID", names[i % hosts], 1);
    emu_start(8);
    if (ranks_share_id(ends, i, n, &id)) _exit(2);
    open_place(&p, &id, devices);
    body(&p);
    for (int r = p.first; r < p.first + each; r++)
      if (p.g.comm[r]) OK_NCCL(ncclCommDestroy(p.g.comm[r]));
    _exit(0);
  }
  close(ends[0]);
  close(ends[1]);
  for (int i = 0; i < n; i++) {
    int status;
    waitpid(pids[i], &status, 0);
    bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  return bad;
}

void each_call(gpu_place *p, gpu_call *c, int again) {
  gpu_fill_some(&p->g, c, p->first, p->each);
  for (int i = 0; i < again; i++) {
    OK_NCCL(ncclGroupStart());
    for (int r = p->first; r < p->first + p->each; r++) OK_NCCL(gpu_submit(&p->g, c, r));
    OK_NCCL(ncclGroupEnd());
  }
  gpu_check_some(&p->g, c, p->first, p->each);
}

void meet_all(gpu_place *p) {
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 1, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
}

void each_ring(gpu_place *p, int by) {
  enum { BYTES = 50000 };
  gpu_ranks *g = &p->g;
  for (int r = p->first; r < p->first + p->each; r++) {
    emu_use(g->device[r]);
    OK(MemsetD8Async(g->in[r], (unsigned char)(r + 10), BYTES, g->stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
    OK_NCCL(ncclSend((void *)(uintptr_t)g->in[r], BYTES, ncclInt8, (r + by) % g->n, g->comm[r], s));
    OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[r], BYTES, ncclInt8, (r + g->n - by) % g->n, g->comm[r], s));
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) {
    static char out[BYTES];
    emu_use(g->device[r]);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], sizeof out, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    suite_all(i, sizeof out, out[i] == (r + g->n - by) % g->n + 10);
  }
}

/* ---- Machine files ---- */

void gpu_machine_write(const char *path, const bool (*joined)[MACHINE_GPUS]) {
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fputs("<system version=\"1\"><cpu numaid=\"0\" affinity=\"0000ffff\" arch=\"x86_64\" vendor=\"GenuineIntel\" "
        "familyid=\"6\" modelid=\"143\">\n",
        f);
  for (int g = 0; g < MACHINE_GPUS; g++) {
    fprintf(f,
            "<pci busid=\"0000:%x:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"><gpu "
            "dev=\"%d\" sm=\"90\" rank=\"%d\" gdr=\"1\">",
            0x10 + g, g, g);
    for (int k = 0; k < MACHINE_GPUS; k++)
      if (joined[g][k]) fprintf(f, "<nvlink target=\"0000:%x:00.0\" count=\"6\" tclass=\"0x030200\"/>", 0x10 + k);
    fputs("</gpu></pci>\n", f);
  }
  fputs("</cpu></system>\n", f);
  ck_assert_int_eq(fclose(f), 0);
  setenv("NCCL_TOPO_FILE", path, 1);
}
