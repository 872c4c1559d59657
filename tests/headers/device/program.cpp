/* SPDX-License-Identifier: Apache-2.0 */
/* A program compiled with NVIDIA's headers: ranks on emulated GPUs run the kernels of kernels.cu.
 * usage: program KERNELS RANKS PROCESSES */
#include <nccl.h>
#include <nccl_device.h>
#include "../../../src/base/cuda_abi.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "params.h"

#define DECLARE(member, symbol, params) extern "C" CUresult symbol params;
HK_CUDA_CALLS(DECLARE, DECLARE)

#define CHECK(call, good)                                                                                              \
  do {                                                                                                                 \
    int got = (int)(call);                                                                                             \
    if (got != (int)(good)) {                                                                                          \
      printf("%s:%d: %s gives %d: %s\n", __FILE__, __LINE__, #call, got, ncclGetLastError(nullptr));                   \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)
#define OK(call) CHECK(call, 0)

enum { MOST = 8, BYTES = 2 << 20 };
static struct rank {
  ncclComm_t comm;
  CUstream stream;
  CUmodule module;
  void *in, *out;
  uint32_t *bad;
  ncclDevComm device;
  kernel_params params;
  ncclDevResourceRequirements resources[2];
  ncclTeamRequirements teams[1];
} ranks[MOST];
static int n, first, each;

static void use(int r) {
  CUcontext ctx;
  OK(cuDevicePrimaryCtxRetain(&ctx, r));
  OK(cuCtxSetCurrent(ctx));
}

static ncclDevCommRequirements fresh() {
#if NCCL_VERSION_CODE >= 22900
  ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements reqs;
  memset(&reqs, 0, sizeof reqs);
#endif
  return reqs;
}

static void open_rank(int r) {
  rank *k = &ranks[r];
  use(r);
  OK(ncclMemAlloc(&k->in, BYTES));
  OK(ncclMemAlloc(&k->out, BYTES));
  OK(ncclMemAlloc((void **)&k->bad, 4));
  OK(cuStreamCreateWithPriority(&k->stream, CU_STREAM_NON_BLOCKING, 0));
  OK(ncclCommWindowRegister(k->comm, k->in, BYTES, &k->params.in, NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclCommWindowRegister(k->comm, k->out, BYTES, &k->params.out, NCCL_WIN_COLL_SYMMETRIC));
}

static void create_device_comm(int r, bool multimem) {
  rank *k = &ranks[r];
  kernel_params *p = &k->params;
  ncclDevCommRequirements reqs = fresh();
  p->half = ncclTeamInnerFactor(ncclTeamLsa(k->comm), n / 2);
  OK(ncclLsaBarrierCreateRequirement(p->half, BLOCKS, &p->halfBarrier, &k->resources[0]));
  int slots = ncclLLA2ACalcSlots(n * THREADS, sizeof(uint32_t));
  OK(ncclLLA2ACreateRequirement(BLOCKS, slots, &p->exchange, &k->resources[1]));
  k->resources[0].next = &k->resources[1];
  p->halfMultimem.mcBasePtr = nullptr;
  k->teams[0] = ncclTeamRequirements{nullptr, p->half, multimem, &p->halfMultimem};
  reqs.resourceRequirementsList = k->resources;
  reqs.teamRequirementsList = k->teams;
  reqs.lsaBarrierCount = BLOCKS;
  reqs.lsaMultimem = multimem;
  OK(ncclDevCommCreate(k->comm, &reqs, &k->device));
}

static void launch(int r, const char *name) {
  CUfunction f;
  void *args[] = {&ranks[r].params};
  use(r);
  OK(cuModuleGetFunction(&f, ranks[r].module, name));
  OK(cuLaunchKernel(f, BLOCKS, 1, 1, THREADS, 1, 1, 0, ranks[r].stream, args, nullptr));
}

static void run(const char *name, bool multimem) {
  for (int r = first; r < first + each; r++) {
    rank *k = &ranks[r];
    use(r);
    k->params.comm = k->device;
    k->params.input = k->in;
    k->params.multimem = multimem;
    k->params.bad = k->bad;
    launch(r, name);
  }
  for (int r = first; r < first + each; r++) {
    uint32_t bad = 0;
    use(r);
    OK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)&bad, (CUdeviceptr)(uintptr_t)ranks[r].bad, 4, ranks[r].stream));
    OK(cuStreamSynchronize(ranks[r].stream));
    if (bad) {
      printf("%s%s: rank %d of %d finds fault %u\n", name, multimem ? " over multicast memory" : "", r, n, bad);
      exit(1);
    }
  }
}

/* What NCCL refuses, by this version's requirements; on all ranks, as the call is one of all. */
static void refused(int r) {
  ncclComm_t c = ranks[r].comm;
  ncclDevComm d;
  ncclDevCommRequirements reqs = fresh();
  const int gin = NCCL_VERSION_CODE < 22905 ? ncclInvalidUsage : ncclInvalidArgument;
  reqs.ginSignalCount = 1;
  CHECK(ncclDevCommCreate(c, &reqs, &d), gin);
  reqs = fresh();
  reqs.ginForceEnable = true;
  CHECK(ncclDevCommCreate(c, &reqs, &d), gin);
  reqs = fresh();
  reqs.railGinBarrierCount = 2;
  CHECK(ncclDevCommCreate(c, &reqs, &d), gin);
  CHECK(ncclDevCommCreate(c, nullptr, &d), ncclInvalidArgument);
  CHECK(ncclDevCommCreate(c, &reqs, nullptr), ncclInvalidArgument);
#if NCCL_VERSION_CODE >= 22900
  reqs = fresh();
  reqs.magic = 0x12345678;
  reqs.lsaMultimem = true;
  CHECK(ncclDevCommCreate(c, &reqs, &d), ncclInvalidUsage);
  reqs = fresh();
  reqs.version = 22904;
  CHECK(ncclDevCommCreate(c, &reqs, &d), ncclInvalidUsage);
  reqs.version = 23300;
  CHECK(ncclDevCommCreate(c, &reqs, &d), ncclInvalidUsage);
#endif
  memset(&d, 0, sizeof d);
  OK(ncclDevCommDestroy(c, &d));
  d = ranks[r].device;
  d.resourceWindow = ranks[r].params.in;
  CHECK(ncclDevCommDestroy(c, &d), ncclInvalidArgument);
}

static void all(const char *kernels) {
  char image[4200];
  bool multimem = getenv("CUDAEMU_MULTICAST") && atoi(getenv("CUDAEMU_MULTICAST"));
  snprintf(image, sizeof image, "cudaemu:%s", kernels);
  OK(ncclGroupStart());
  for (int r = first; r < first + each; r++) open_rank(r);
  OK(ncclGroupEnd());
  for (int r = first; r < first + each; r++) {
    use(r);
    OK(cuModuleLoadData(&ranks[r].module, image));
  }
  for (int again = 0; again < 2; again++) {
    OK(ncclGroupStart());
    for (int r = first; r < first + each; r++) create_device_comm(r, multimem);
    OK(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
      run("allreduce", false);
      if (multimem) run("allreduce", true);
      run("exchange", false);
    }
    run("look", false);
    for (int r = first; r < first + each; r++) refused(r);
    for (int r = first; r < first + each; r++) {
      OK(ncclDevCommDestroy(ranks[r].comm, &ranks[r].device));
      CHECK(ncclDevCommDestroy(ranks[r].comm, &ranks[r].device), ncclInvalidArgument);
    }
  }
  for (int r = first; r < first + each; r++) {
    OK(ncclCommWindowDeregister(ranks[r].comm, ranks[r].params.in));
    OK(ncclCommDestroy(ranks[r].comm));
  }
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  int processes = atoi(argv[3]), ends[2], bad = 0;
  n = atoi(argv[2]);
  each = n / processes;
  if (n > MOST || pipe(ends)) return 2;
  for (int i = 0; i < processes; i++) {
    fflush(nullptr);
    if (fork()) continue;
    ncclUniqueId id;
    first = i * each;
    OK(cuInit(0));
    for (int r = n - 1; r >= 0; r--) use(r);
    if (i == 0) {
      OK(ncclGetUniqueId(&id));
      for (int k = 1; k < processes; k++)
        if (write(ends[1], &id, sizeof id) != sizeof id) exit(1);
    } else if (read(ends[0], &id, sizeof id) != sizeof id) {
      exit(1);
    }
    OK(ncclGroupStart());
    for (int r = first; r < first + each; r++) {
      use(r);
      OK(ncclCommInitRank(&ranks[r].comm, n, id, r));
    }
    OK(ncclGroupEnd());
    all(argv[1]);
    exit(0);
  }
  for (int i = 0; i < processes; i++) {
    int status;
    if (wait(&status) < 0 || status) printf("a process ended with status 0x%x\n", status), bad = 1;
  }
  return bad;
}
