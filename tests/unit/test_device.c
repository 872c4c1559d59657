/* SPDX-License-Identifier: Apache-2.0 */
/* The device of CUDA through the driver that runs on the CPU (tests/cudaemu), with a program of two
 * ranks on one GPU.
 * check: timeout=120 notsan */
#include <dlfcn.h>
#include <libgen.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/device/device.h"
#include "../../src/kernels/cuda/work.h"
#include "../../src/kernels/gpu_image.h"
#include "../../src/program/builder.h"
#include "../fakes/gpus.h"
#include "../support/process.h"
#include "../support/suite.h"

/* The path of a file next to this test's folder. */
static const char *path_near(const char *name) {
  static char path[600];
  char self[512];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  ck_assert_int_gt(n, 0);
  self[n] = '\0';
  snprintf(path, sizeof path, "%s/../%s", dirname(self), name);
  return path;
}

/* Memory of a GPU in a host communicator is an error in words, and the communicator stays usable. */
TEST(gpu_memory_is_refused) {
  void *lib = dlopen(path_near("fakes/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(lib != NULL, "%s", dlerror());
  fake_machine *m = dlsym(lib, "fake_gpus");
  static char gpu[256];
  float mine[4] = {1, 2, 3, 4}, out[4] = {0};
  ncclComm_t c;
  m->memory = gpu;
  m->memory_bytes = sizeof gpu;
  ck_assert_int_eq(ncclCommInitAll(&c, 1, NULL), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(mine, gpu, 4, ncclFloat, ncclSum, c, NULL), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(c), "memory of GPU 1"));
  ck_assert_int_eq(ncclAllReduce(gpu + 8, out, 4, ncclFloat, ncclSum, c, NULL), ncclInvalidUsage);
  ck_assert_int_eq(ncclAllReduce(mine, out, 4, ncclFloat, ncclSum, c, NULL), ncclSuccess);
  ck_assert_float_eq(out[3], 4);
  for (int sends = 0; sends < 2; sends++) {
    ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
    ck_assert_int_eq(ncclSend(sends ? gpu + 4 : (void *)mine, 4, ncclFloat, 0, c, NULL),
                     sends ? ncclInvalidUsage : ncclSuccess);
    ck_assert_int_eq(ncclRecv(sends ? (void *)out : gpu + 4, 4, ncclFloat, 0, c, NULL),
                     sends ? ncclSuccess : ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(ncclGetLastError(c), sends ? "Send: " : "Recv: "));
    ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  }
  ncclCommDestroy(c);
}

/* A file of kernels that cannot be read. One in sysfs is said to have a page, and has less. */
TEST(unread_image) {
  static const char *const files[][2] = {{"/no/such/file", "ENOENT"},
                                         {"/dev/null", " is empty, or no file"},
                                         {"/proc/self", " is empty, or no file"},
                                         {"/sys/devices/system/cpu/online", " ends after "}};
  const void *image;
  size_t bytes;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(files); i++) {
    set_param("HOCKET_CUDA_IMAGE", files[i][0]);
    errno = EXDEV; /* of some call before */
    ck_assert_int_eq(hk_gpu_image(&image, &bytes), HK_ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(hk_last_error(), files[i][0]));
    ck_assert_ptr_nonnull(strstr(hk_last_error(), files[i][1]));
    ck_assert_ptr_null(strstr(hk_last_error(), "EXDEV"));
  }
}

/* ---- CUDA, on the CPU ---- */

/* NULL where the driver is not built: the tests of CUDA then have nothing to look at. */
static hk_device *cuda(void) {
  hk_device *d;
  int devices;
  const char *path = getenv("HK_TEST_CUDAEMU");
  unsetenv("HOCKET_DEVICE"); /* scripts/check.sh sets it */
  if (!path) path = path_near("cudaemu/libcuda.so.1");
  if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
    printf("SKIP: the CUDA device: no %s\n", path);
    return NULL;
  }
  ck_assert_int_eq(hk_cuda_open(hk_cuda_here(&devices) ? hk_cuda_current() : 0, &d), HK_OK);
  return d;
}

/* Pinned memory prefers the GPU's node, where the kernel lets a process say so. */
static void check_placed(const void *p, int node) {
  enum { PREFERRED = 1, F_ADDR = 2, NODES = 1024 };
  unsigned long mask[NODES / 64] = {1};
  int mode = -1;
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool allowed = syscall(SYS_mbind, page, 4096ul, PREFERRED, mask, NODES + 1ul, 0) == 0 &&
                 syscall(SYS_get_mempolicy, &mode, mask, NODES + 0ul, page, F_ADDR) == 0;
  munmap(page, 4096);
  if (!allowed) return;
  ck_assert_int_eq(node, 0); /* the emulated driver's */
  ck_assert_int_eq(syscall(SYS_get_mempolicy, &mode, mask, NODES + 0ul, p, F_ADDR), 0);
  ck_assert_int_eq(mode, PREFERRED);
  ck_assert_uint_eq(mask[0], 1);
}

/* Pinned memory that may be allocated while kernels run: the host and the device reach it, and it can be given back. */
static void check_late(hk_device *d, size_t bytes) {
  hk_memory m;
  hk_pointer p;
  char back[2] = {1, 1};
  ck_assert_int_eq(d->ops->memory->alloc_host_late(d, bytes, &m), HK_OK);
  ck_assert_uint_ge(m.bytes, bytes);
  ck_assert(m.kind == (d->limits.late_host ? HK_MEMORY_VMM : HK_MEMORY_PINNED));
  ck_assert_int_eq(d->ops->memory->pointer(d, m.host, &p), HK_OK);
  ck_assert_int_eq(p.kind, HK_POINTER_PINNED);
  for (int again = 0; again < 2; again++) {
    char *end = (char *)m.host + bytes - 1;
    if (!again) ck_assert_int_eq(*end, 0);
    *end = 7;
    ck_assert_int_eq(d->ops->copy(d, back, (char *)m.base + bytes - 1, 1, NULL), HK_OK);
    ck_assert_int_eq(d->ops->wait(d, NULL), HK_OK);
    ck_assert_int_eq(back[0], 7);
    if (again) break;
    ck_assert_int_eq(d->ops->memory->park(d, &m), HK_OK);
    ck_assert_int_eq(d->ops->memory->unpark(d, &m, NULL, 0, NULL), HK_OK);
  }
  ck_assert_int_eq(d->ops->memory->release(d, &m), HK_OK);
}

TEST_LOOP(cuda_memory, 2) {
  if (_i) setenv("NCCL_CUMEM_HOST_ENABLE", "0", 1);
  hk_device *d = cuda();
  static const size_t sizes[] = {1, 5000, 3 << 20};
  char back[64];
  if (!d) return;
  ck_assert_int_ge(d->limits.sm, 70);
  ck_assert_int_eq(d->limits.fd_handles, d->limits.vmm);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(sizes); i++) {
    hk_memory m, pinned;
    hk_pointer p;
    ck_assert_int_eq(d->ops->memory->alloc(d, sizes[i], &m), HK_OK);
    ck_assert_uint_ge(m.bytes, sizes[i]);
    ck_assert_int_eq(d->ops->memory->pointer(d, m.base, &p), HK_OK);
    ck_assert_int_eq(p.kind, HK_POINTER_DEVICE);
    ck_assert_int_eq(p.device, d->limits.ordinal);
    memset(back, 1, sizeof back);
    size_t n = sizes[i] < sizeof back ? sizes[i] : sizeof back;
    ck_assert_int_eq(d->ops->copy(d, back, m.base, n, NULL), HK_OK);
    ck_assert_int_eq(d->ops->wait(d, NULL), HK_OK);
    for (size_t k = 0; k < n; k++) ck_assert_int_eq(back[k], 0);
    ck_assert_int_eq(d->ops->memory->release(d, &m), HK_OK);
    ck_assert_int_eq(d->ops->memory->alloc_host(d, sizes[i], &pinned), HK_OK);
    ck_assert_int_eq(d->ops->memory->pointer(d, pinned.host, &p), HK_OK);
    ck_assert_int_eq(p.kind, HK_POINTER_PINNED);
    ck_assert_int_eq(*(char *)pinned.host, 0);
    check_placed(pinned.host, d->limits.host_numa);
    ck_assert_int_eq(d->ops->memory->release(d, &pinned), HK_OK);
    check_late(d, sizes[i]);
  }
  ck_assert_int_eq(d->ops->memory->pointer(d, back, &(hk_pointer){0}), HK_OK);
  d->ops->close(d);
}

static void *upload(hk_device *d, const void *from, size_t bytes, hk_memory *m) {
  ck_assert_int_eq(d->ops->memory->alloc(d, bytes, m), HK_OK);
  if (from) ck_assert_int_eq(d->ops->copy(d, m->base, from, bytes, NULL), HK_OK);
  ck_assert_int_eq(d->ops->wait(d, NULL), HK_OK);
  return m->base;
}

/* What two ranks of one process on one GPU will do: a program each, FIFOs in device memory, a launch on a stream of
 * each. */
TEST(cuda_allreduce) {
  enum { N = 2, COUNT = 3000, SLOTS = 4, SLOT_BYTES = 4096, THREADS = 64, WIDE = 2560 };
  enum { FIFO = 256 + SLOTS * (SLOT_BYTES + WIDE) };
  hk_device *d = cuda();
  const void *image;
  size_t image_bytes;
  void *module, *kernel;
  float in[N][COUNT], out[COUNT];
  hk_memory fifo[N], state, program[N], links[N], user[N], result[N];
  hk_queue q[N];
  if (!d) return;
  if (hk_gpu_image(&image, &image_bytes) != HK_OK) {
    image = "cudaemu:";
    if (access(path_near("cudaemu/kernels.so"), R_OK)) {
      printf("SKIP: kernels on the emulated driver: they were not compiled, which takes g++\n");
      d->ops->close(d);
      return;
    }
  }
  ck_assert_int_eq(d->ops->kernel->load(d, image, &module), HK_OK);
  ck_assert_int_eq(d->ops->kernel->function(d, module, HK_GPU_RUN_BATCH, &kernel), HK_OK);
  ck_assert_int_eq(d->ops->memory->alloc_host(d, sizeof(hk_gpu_state), &state), HK_OK);
  for (int r = 0; r < N; r++) upload(d, NULL, FIFO, &fifo[r]); /* from rank r to the other */
  hk_gpu_work work[N];
  for (int r = 0; r < N; r++) {
    hk_program *p;
    hk_build what = {.coll = HK_ALLREDUCE, .rank = r, .nranks = N};
    ck_assert_int_eq(hk_algorithm_build(hk_algorithm_by_name("ring"), &what, &p), HK_OK);
    hk_gpu_link *l = calloc(p->nlinks, sizeof *l);
    for (unsigned i = 0; i < p->nlinks; i++) {
      const hk_link_need *need = &hk_program_links(p)[i];
      bool sends = need->kind == HK_LINK_SEND;
      char *at = fifo[sends ? r : need->peer].base;
      l[i] = (hk_gpu_link){.done = (uint64_t *)(void *)(at + 128) + sends,
                           .head = (uint64_t *)(void *)at,
                           .word = (uint64_t *)(void *)(at + 64),
                           .data = at + 256,
                           .slot_bytes = SLOT_BYTES,
                           .nslots = SLOTS,
                           .peer = need->peer,
                           .sends = sends,
                           .wide = at + 256 + SLOTS * SLOT_BYTES,
                           .wide_bytes = WIDE};
    }
    for (int i = 0; i < COUNT; i++) in[r][i] = (float)(i + r);
    size_t block = (COUNT + p->blocks - 1u) / p->blocks * sizeof(float);
    work[r] = (hk_gpu_work){.program = upload(d, p, p->bytes, &program[r]),
                            .links = upload(d, l, p->nlinks * sizeof *l, &links[r]),
                            .in = upload(d, in[r], sizeof in[r], &user[r]),
                            .out = upload(d, NULL, sizeof out, &result[r]),
                            .sizes = hk_sizes_of(HK_PART_SPLIT, sizeof out, block, 2048),
                            .state = state.base,
                            .reducer = {.dtype = 7 /* float */, .elem_bytes = 4, .reduces = 1},
                            .signature = 5,
                            .nlinks = p->nlinks,
                            .channels = 1,
                            .orders = 1,
                            .lanes = 1};
    ck_assert_uint_eq(p->nlanes, 1);
    ck_assert_int_eq(d->ops->stream->create(d, &q[r]), HK_OK);
    free(l);
    hk_program_free(p);
  }
  hk_queue_order order[N] = {{0}};
  for (int again = 0; again < 3; again++) {
    for (int r = 0; r < N; r++) {
      work[r].proto = again & 1 ? HK_PROTO_LL128 : HK_PROTO_SIMPLE;
      hk_gpu_batch batch = {.works = 1, .end = {1}, .work = {work[r]}};
      hk_kernel_launch launch = {.function = kernel, .blocks = 1, .threads = THREADS, .param = &batch};
      hk_queue_state state_of;
      ck_assert_int_eq(d->ops->stream->state(d, q[r], &state_of), HK_OK);
      ck_assert_int_eq(d->ops->order->begin(d, &order[r], q[r], &state_of), HK_OK);
      ck_assert_int_eq(d->ops->kernel->launch(d, &launch, q[r]), HK_OK);
      ck_assert_int_eq(d->ops->order->end(d, &order[r], q[r], &state_of), HK_OK);
    }
    for (int r = 0; r < N; r++) {
      ck_assert_int_eq(d->ops->copy(d, out, result[r].base, sizeof out, q[r]), HK_OK);
      ck_assert_int_eq(d->ops->wait(d, q[r]), HK_OK);
      suite_all(i, COUNT, out[i] == (float)(2 * i + 1));
    }
  }
  for (int r = 0; r < N; r++) {
    hk_memory *all[] = {&fifo[r], &program[r], &links[r], &user[r], &result[r]};
    for (size_t i = 0; i < HK_ARRAY_LENGTH(all); i++) ck_assert_int_eq(d->ops->memory->release(d, all[i]), HK_OK);
    ck_assert_int_eq(d->ops->order->free(d, &order[r]), HK_OK);
    ck_assert(!order[r].event && !order[r].used);
    ck_assert_int_eq(d->ops->stream->free(d, q[r]), HK_OK);
  }
  ck_assert_int_eq(d->ops->memory->release(d, &state), HK_OK);
  ck_assert_int_eq(d->ops->kernel->unload(d, module), HK_OK);
  d->ops->close(d);
}

/* All kinds of streams, told apart. */
TEST(cuda_streams) {
  hk_device *d = cuda();
  hk_queue_state s;
  hk_queue q;
  if (!d) return;
  ck_assert_int_eq(d->ops->stream->state(d, NULL, &s), HK_OK);
  const uint64_t legacy = s.id;
  ck_assert(!s.capturing);
  ck_assert_int_eq(d->ops->stream->state(d, (hk_queue)(uintptr_t)2, &s), HK_OK);
  ck_assert_uint_eq(s.id, 0); /* each thread's is another one */
  ck_assert_int_eq(d->ops->stream->state(d, (hk_queue)(uintptr_t)1, &s), HK_OK);
  ck_assert_uint_eq(s.id, legacy);
  ck_assert_int_eq(d->ops->stream->create(d, &q), HK_OK);
  ck_assert_int_eq(d->ops->stream->state(d, q, &s), HK_OK);
  ck_assert(s.id != 0 && s.id != legacy);
  ck_assert_int_eq(d->ops->stream->free(d, q), HK_OK);
  d->ops->close(d);
}

int main(void) { return suite_main("device", .timeout = 60); }
