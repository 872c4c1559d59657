/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric windows on emulated GPUs: where each rank maps the others' memory, of threads and of processes, what is no
 * window, and what is wrong to ask.
 * check: timeout=200 notsan long=asan */
#include "../../src/gpu/window.h"
#include "../../src/rma/windows.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { WINDOW = 2 << 20 };

typedef struct region {
  char *memory; /* of ncclMemAlloc */
  size_t bytes;
  ncclWindow_t win;
} region;
static region regions[GPU_RANKS];

static void alloc_all(const gpu_place *p, region *all, size_t bytes) {
  for (int r = p->first; r < p->first + p->each; r++) {
    emu_use(p->g.device[r]);
    OK_NCCL(ncclMemAlloc((void **)&all[r].memory, bytes));
    all[r].bytes = bytes;
  }
}
static void register_all(const gpu_place *p, region *all, size_t from, int flags) {
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++)
    OK_NCCL(ncclCommWindowRegister(p->g.comm[r], all[r].memory + from, all[r].bytes - from, &all[r].win, flags));
  OK_NCCL(ncclGroupEnd());
}
static void deregister_all(const gpu_place *p, region *all, bool free_too) {
  for (int r = p->first; r < p->first + p->each; r++) {
    OK_NCCL(ncclCommWindowDeregister(p->g.comm[r], all[r].win));
    if (free_too) OK_NCCL(ncclMemFree(all[r].memory));
  }
}

static int32_t peek(const gpu_ranks *g, int r, const void *at) {
  int32_t x;
  emu_use(g->device[r]);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)&x, (CUdeviceptr)(uintptr_t)at, sizeof x, g->stream[r]));
  OK(StreamSynchronize(g->stream[r]));
  return x;
}
static void poke(const gpu_ranks *g, int r, void *at, int32_t x) {
  emu_use(g->device[r]);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)at, (CUdeviceptr)(uintptr_t)&x, sizeof x, g->stream[r]));
  OK(StreamSynchronize(g->stream[r]));
}

/* Every rank writes a word of its own into each window, through its own mappings; everything arrives, once. */
static void all_write(const gpu_place *p, const region *all, size_t from) {
  const gpu_ranks *g = &p->g;
  for (int r = p->first; r < p->first + p->each; r++) {
    for (int k = 0; k < g->n; k++) {
      void *at = NULL, *same = NULL;
      OK_NCCL(ncclGetPeerDevicePointer(all[r].win, 4u * (unsigned)r, k, &at));
      OK_NCCL(ncclGetLsaDevicePointer(all[r].win, 4u * (unsigned)r, k, &same));
      ck_assert(at && at == same);
      poke(g, r, at, 1000 + 100 * r + k);
    }
  }
  meet_all((gpu_place *)(uintptr_t)p);
  for (int r = p->first; r < p->first + p->each; r++)
    for (int k = 0; k < g->n; k++) ck_assert_int_eq(peek(g, r, all[r].memory + from + 4 * k), 1000 + 100 * k + r);
  meet_all((gpu_place *)(uintptr_t)p);
}

/* What kernels read agrees with what the host says. */
static void check_image(const gpu_place *p, const region *all) {
  for (int r = p->first; r < p->first + p->each; r++) {
    hk_device_window w;
    void *at = NULL, *user = NULL;
    emu_use(p->g.device[r]);
    emu_read(&w, (CUdeviceptr)(uintptr_t)all[r].win, sizeof w);
    ck_assert_int_eq(w.lsa_rank, r);
    ck_assert_int_eq(w.world_rank, r);
    ck_assert_uint_eq(w.stride_4g, 1);
    ck_assert_uint_eq(w.cft_endpoint, UINT32_MAX);
    for (int k = 0; k < p->g.n; k++) {
      OK_NCCL(ncclGetLsaDevicePointer(all[r].win, 0, k, &at));
      ck_assert_ptr_eq(at, w.flat + ((uint64_t)k << 32));
    }
    OK_NCCL(ncclWinGetUserPtr(p->g.comm[r], all[r].win, &user));
    ck_assert_ptr_eq(user, all[r].memory);
  }
}

/* The ranks' offsets are equal: an allreduce shows the largest, and that of the negative the smallest. */
static void check_offsets(const gpu_place *p, const region *all) {
  gpu_ranks *g = (gpu_ranks *)(uintptr_t)&p->g;
  for (int sign = 1; sign >= -1; sign -= 2) {
    for (int r = p->first; r < p->first + p->each; r++) {
      hk_device_window w;
      emu_use(g->device[r]);
      emu_read(&w, (CUdeviceptr)(uintptr_t)all[r].win, sizeof w);
      poke(g, r, (void *)(uintptr_t)g->in[r], sign * (int32_t)w.multicast_4k);
    }
    OK_NCCL(ncclGroupStart());
    for (int r = p->first; r < p->first + p->each; r++)
      OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)g->out[r], 1, ncclInt32, ncclMax,
                            g->comm[r], (cudaStream_t)(void *)g->stream[r]));
    OK_NCCL(ncclGroupEnd());
    for (int r = p->first; r < p->first + p->each; r++)
      ck_assert_int_eq(peek(g, r, (void *)(uintptr_t)g->out[r]), peek(g, r, (void *)(uintptr_t)g->in[r]));
  }
}

static void one_window(gpu_place *p) {
  ncclTeam_t lsa = ncclTeamLsa(p->g.comm[p->first]), rail = ncclTeamRail(p->g.comm[p->first]);
  ck_assert(lsa.nRanks == p->g.n && lsa.rank == p->first && lsa.stride == 1);
  ck_assert(rail.nRanks == 1 && rail.rank == 0 && rail.stride == p->g.n);
  ck_assert_int_eq(ncclTeamRankToLsa(p->g.comm[p->first], lsa, 1), 1);
  alloc_all(p, regions, WINDOW);
  register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
  check_image(p, regions);
  check_offsets(p, regions);
  all_write(p, regions, 0);
  deregister_all(p, regions, true);
}

static const int shapes[][2] = {{1, 2}, {1, 8}, {2, 1}, {2, 2}, {4, 1}};
TEST_LOOP(windows, 5) { ck_assert_int_eq(run_processes(shapes[_i][0], shapes[_i][1], 8, 1, one_window), 0); }

/* Small memory of ncclMemAlloc, as PyTorch gives. */
static void small_window(gpu_place *p) {
  alloc_all(p, regions, 25600);
  register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
  ck_assert_ptr_nonnull(regions[p->first].win);
  all_write(p, regions, 0);
  deregister_all(p, regions, true);
}
TEST(small) { ck_assert_int_eq(run_processes(2, 1, 2, 1, small_window), 0); }

/* A window takes the lowest place that has room, if all of it is needed. */
static size_t offset_of(const gpu_place *p, const region *all) {
  hk_device_window w;
  emu_use(p->g.device[p->first]);
  emu_read(&w, (CUdeviceptr)(uintptr_t)all[p->first].win, sizeof w);
  return (size_t)w.multicast_4k * 4096;
}
static void gaps(gpu_place *p) {
  static region all[4][GPU_RANKS];
  size_t at[4];
  for (int i = 0; i < 3; i++) {
    alloc_all(p, all[i], WINDOW);
    register_all(p, all[i], 0, NCCL_WIN_DEFAULT);
    at[i] = offset_of(p, all[i]);
    ck_assert_uint_eq(at[i], (size_t)i * WINDOW);
  }
  alloc_all(p, all[3], 2 * WINDOW);
  deregister_all(p, all[1], false);
  register_all(p, all[3], 0, NCCL_WIN_DEFAULT);
  ck_assert_uint_eq(offset_of(p, all[3]), (size_t)3 * WINDOW);
  register_all(p, all[1], 0, NCCL_WIN_DEFAULT);
  ck_assert_uint_eq(offset_of(p, all[1]), at[1]);
  for (int i = 0; i < 4; i++) deregister_all(p, all[i], true);
}
TEST(lowest_place) { ck_assert_int_eq(run_processes(1, 2, 2, 1, gaps), 0); }

/* Two ranks on each GPU. */
TEST_LOOP(shared_gpu, 2) { ck_assert_int_eq(run_processes(_i ? 2 : 1, _i ? 2 : 4, 2, 1, one_window), 0); }

/* Many at a time, in one group, that come and go in another order on each rank; the table that kernels search has them,
 * and only them. */
static void many(gpu_place *p) {
  enum { N = 34 };
  static region all[N][GPU_RANKS];
  const gpu_ranks *g = &p->g;
  for (int i = 0; i < N; i++) alloc_all(p, all[i], i % 4 ? WINDOW : 2 * WINDOW);
  OK_NCCL(ncclGroupStart());
  for (int i = 0; i < N; i++) register_all(p, all[i], 0, i % 2 ? NCCL_WIN_DEFAULT : NCCL_WIN_COLL_SYMMETRIC);
  OK_NCCL(ncclGroupEnd());
  for (int i = 0; i < N; i += 17) all_write(p, all[i], 0);
  /* half of them go, the other half stays where it is */
  for (int r = p->first; r < p->first + p->each; r++)
    for (int k = 0; k < N; k += 2) OK_NCCL(ncclCommWindowDeregister(g->comm[r], all[r % 2 ? N - 2 - k : k][r].win));
  for (int i = 0; i < N; i += 2) register_all(p, all[i], 0, NCCL_WIN_COLL_SYMMETRIC);
  for (int i = 0; i < N; i += 11) {
    check_offsets(p, all[i]);
    all_write(p, all[i], 0);
  }
  for (int r = p->first; r < p->first + p->each; r++) {
    void *table = NULL;
    uint64_t entries[97];
    int found = 0;
    ck_assert_int_eq(hk_gpu_window_ops.table(g->comm[r], &table), HK_OK);
    emu_use(g->device[r]);
    while (table) {
      emu_read(entries, (CUdeviceptr)(uintptr_t)table, sizeof entries);
      for (int e = 0; e < 32; e++)
        for (int i = 0; i < N; i++)
          found += entries[3 * e] == (uintptr_t)all[i][r].memory && entries[3 * e + 1] == all[i][r].bytes &&
                   entries[3 * e + 2] == (uintptr_t)all[i][r].win;
      table = (void *)(uintptr_t)entries[96];
    }
    ck_assert_int_eq(found, N);
  }
  for (int i = 0; i < N; i++) deregister_all(p, all[i], true);
}
TEST_LOOP(come_and_go, 2) { ck_assert_int_eq(run_processes(_i ? 2 : 1, _i ? 1 : 3, 8, 1, many), 0); }

/* A part of an allocation, at the same distance from its beginning on all ranks, or a multiple of the driver's page
 * apart; else there is no window. */
static void parts(gpu_place *p) {
  region apart[GPU_RANKS];
  alloc_all(p, regions, 3 * WINDOW);
  register_all(p, regions, 8192, NCCL_WIN_COLL_SYMMETRIC);
  all_write(p, regions, 8192);
  deregister_all(p, regions, false);
  for (int skip = 0; skip < 2; skip++) {
    memcpy(apart, regions, sizeof apart);
    OK_NCCL(ncclGroupStart());
    for (int r = p->first; r < p->first + p->each; r++) {
      apart[r].memory += (size_t)r * (skip ? 4096 : WINDOW);
      OK_NCCL(ncclCommWindowRegister(p->g.comm[r], apart[r].memory, WINDOW, &apart[r].win, NCCL_WIN_COLL_SYMMETRIC));
    }
    OK_NCCL(ncclGroupEnd());
    for (int r = p->first; r < p->first + p->each; r++) ck_assert((apart[r].win == NULL) == (skip == 1));
    if (!skip) all_write(p, apart, 0);
    deregister_all(p, apart, false);
  }
}
TEST_LOOP(inside_allocations, 2) { ck_assert_int_eq(run_processes(_i ? 2 : 1, _i ? 1 : 2, 8, 1, parts), 0); }

/* Memory that others cannot map, on one rank: success, and no window on any. */
static void no_window(gpu_place *p) {
  alloc_all(p, regions, WINDOW);
  for (int r = p->first; r < p->first + p->each; r++) {
    regions[r].win = (ncclWindow_t)(void *)&regions;
    if (r == 0) regions[0].memory = (char *)(uintptr_t)gpu_alloc(p->g.device[0], WINDOW);
  }
  register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
  for (int r = p->first; r < p->first + p->each; r++) ck_assert_ptr_null(regions[r].win);
  deregister_all(p, regions, false);
  meet_all((gpu_place *)(uintptr_t)p);
}
TEST_LOOP(no_windows, 4) {
  if (_i == 2) setenv("NCCL_CUMEM_ENABLE", "0", 1);
  if (_i == 3) setenv("CUDAEMU_IMPORT", "0", 1); /* found out when the first of another process is opened */
  ck_assert_int_eq(run_processes(_i ? 2 : 1, _i ? 1 : 2, 8, 1, no_window), 0);
}

/* GPUs that do not reach each other: each rank is a team. */
static void alone(gpu_place *p) {
  void *at;
  int r = p->first;
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  OK_NCCL(ncclCommQueryProperties(p->g.comm[r], &props));
  ck_assert(!props.deviceApiSupport && props.nLsaTeams == p->g.n);
  alloc_all(p, regions, WINDOW);
  register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
  for (int k = 0; k < p->g.n; k++) {
    OK_NCCL(ncclGetPeerDevicePointer(regions[r].win, 0, k, &at));
    ck_assert((at != NULL) == (k == r));
  }
  ck_assert_int_eq(ncclGetLsaDevicePointer(regions[r].win, 0, 1, &at), ncclInvalidArgument);
  deregister_all(p, regions, true);
}
TEST(no_peers) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(run_processes(2, 1, 8, 1, alone), 0);
}

/* Hosts of two ranks each: two teams. */
static void two_hosts(gpu_place *p) {
  const int first = p->first, other = first ? 0 : 2;
  void *at;
  ncclTeam_t lsa = ncclTeamLsa(p->g.comm[first + 1]), rail = ncclTeamRail(p->g.comm[first + 1]);
  ck_assert(lsa.nRanks == 2 && lsa.rank == 1 && rail.nRanks == 2 && rail.rank == first / 2 && rail.stride == 2);
  alloc_all(p, regions, WINDOW);
  register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
  OK_NCCL(ncclGetPeerDevicePointer(regions[first].win, 0, other, &at));
  ck_assert_ptr_null(at);
  OK_NCCL(ncclGetPeerDevicePointer(regions[first].win, 0, first + 1, &at));
  poke(&p->g, first, at, 77 + first);
  ck_assert_int_eq(peek(&p->g, first + 1, regions[first + 1].memory), 77 + first);
  deregister_all(p, regions, true);
}
TEST(hosts) { ck_assert_int_eq(run_processes(2, 2, 4, 2, two_hosts), 0); }

/* Windows stay when the library's memory is given back, and when the user's address is gone. */
static void kept(gpu_place *p) {
  alloc_all(p, regions, WINDOW);
  register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
  for (int on = 0; on < 2; on++) {
    OK_NCCL(ncclGroupStart());
    for (int r = p->first; r < p->first + p->each; r++)
      OK_NCCL(on ? ncclCommResume(p->g.comm[r]) : ncclCommSuspend(p->g.comm[r], NCCL_SUSPEND_MEM));
    OK_NCCL(ncclGroupEnd());
  }
  all_write(p, regions, 0);
  check_image(p, regions);
  /* the communicator's end does what is left */
}
TEST_LOOP(suspended, 2) { ck_assert_int_eq(run_processes(_i ? 2 : 1, _i ? 1 : 2, 8, 1, kept), 0); }

/* Both ranks make the call: it counts on all ranks, right or wrong. */
#define BOTH_REFUSE(at, bytes, win, flags)                                                                             \
  for (int r = 0; r < 2; r++)                                                                                          \
  ck_assert_int_eq(ncclCommWindowRegister(p->g.comm[r], at, bytes, win, flags), ncclInvalidArgument)
static void wrong(gpu_place *p) {
  ncclComm_t c = p->g.comm[0];
  ncclWindow_t win = (ncclWindow_t)(void *)p;
  void *at;
  char other;
  alloc_all(p, regions, WINDOW);
  BOTH_REFUSE(NULL, WINDOW, &win, 0);
  ck_assert_ptr_null(win);
  BOTH_REFUSE(regions[0].memory, 0, &win, 0);
  BOTH_REFUSE(regions[0].memory + 1, 8, &win, 0);
  BOTH_REFUSE(regions[0].memory, 8, NULL, 0);
  BOTH_REFUSE(regions[0].memory, 8, &win, 5);
  BOTH_REFUSE(regions[0].memory, 8, &win, NCCL_WIN_CFT_COUNTED);
  /* none of a group runs if one of its calls is wrong */
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; r++)
    OK_NCCL(ncclCommWindowRegister(p->g.comm[r], regions[r].memory, WINDOW, &regions[r].win, 0));
  BOTH_REFUSE(NULL, 8, &win, 0);
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
  ck_assert(!win && !regions[0].win && !regions[1].win);

  register_all(p, regions, 0, NCCL_WIN_GIN_ONLY);
  ck_assert_int_eq(ncclGetLsaDevicePointer(regions[0].win, 0, 0, &at), ncclInvalidUsage);
  OK_NCCL(ncclWinGetUserPtr(c, regions[0].win, &at));
  deregister_all(p, regions, false);

  register_all(p, regions, 0, 0);
  win = regions[0].win;
  OK_NCCL(ncclGetLsaDevicePointer(win, WINDOW - 1, 1, &at));
  ck_assert_int_eq(ncclGetLsaDevicePointer(win, WINDOW, 1, &at), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetLsaDevicePointer(win, 0, 2, &at), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetLsaDevicePointer(win, 0, -1, &at), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetLsaDevicePointer(win, 0, 0, NULL), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetLsaDevicePointer(NULL, 0, 0, &at), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetPeerDevicePointer(win, 0, 2, &at), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetPeerDevicePointer((ncclWindow_t)(void *)&other, 0, 0, &at), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetMultimemDevicePointer(win, 0, (ncclMultimemHandle_t){NULL}, &at), ncclInvalidArgument);
  OK_NCCL(ncclGetMultimemDevicePointer(win, 0, (ncclMultimemHandle_t){regions}, &at)); /* there is no multicast */
  ck_assert_ptr_null(at);
  OK_NCCL(ncclGetLsaMultimemDevicePointer(win, 8, &at));
  ck_assert_ptr_null(at);
  OK_NCCL(ncclCommDeregister(c, win)); /* as PyTorch does */
  ck_assert_int_eq(ncclCommWindowDeregister(c, win), ncclInvalidArgument);
  ck_assert_int_eq(ncclGetLsaDevicePointer(win, 0, 0, &at), ncclInvalidArgument);
  OK_NCCL(ncclCommWindowDeregister(c, NULL));
}
/* A window that is refused on one rank, alone and in a group: the others get the cause, and the next one is right. */
static void refused_on_one(gpu_place *p) {
  ncclComm_t c = p->g.comm[p->first];
  const int r = p->first;
  ncclWindow_t win[2];
  alloc_all(p, regions, WINDOW);
  for (int i = 0; i < 4; i++) {
    const size_t bytes = r == 1 ? 0 : WINDOW;
    if (i % 2) {
      OK_NCCL(ncclGroupStart());
      OK_NCCL(ncclCommWindowRegister(c, regions[r].memory, WINDOW, &win[0], NCCL_WIN_COLL_SYMMETRIC));
    }
    ncclResult_t rc = ncclCommWindowRegister(c, regions[r].memory, bytes, &win[1], NCCL_WIN_COLL_SYMMETRIC);
    if (i % 2) rc = ncclGroupEnd();
    ck_assert_int_eq(rc, r == 1 ? ncclInvalidArgument : ncclRemoteError);
    ck_assert_msg(
        strstr(ncclGetLastError(NULL), r == 1 ? "size is 0" : "rank 1 failed: ncclCommWindowRegister: size is 0"), "%s",
        ncclGetLastError(NULL));
    ck_assert(!win[1] && !(i % 2 && win[0]));
    register_all(p, regions, 0, NCCL_WIN_COLL_SYMMETRIC);
    all_write(p, regions, 0);
    deregister_all(p, regions, false);
  }
}
TEST(refused) { ck_assert_int_eq(run_processes(3, 1, 8, 1, refused_on_one), 0); }
TEST(arguments) { ck_assert_int_eq(run_processes(1, 2, 8, 1, wrong), 0); }

/* Memory that nothing touches: its pages are not there. */
static void alloc_untouched(const gpu_place *p, region *all, size_t bytes) {
  for (int r = p->first; r < p->first + p->each; r++) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, p->g.device[r]}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    emu_use(p->g.device[r]);
    OK(MemCreate(&handle, bytes, &prop, 0));
    OK(MemAddressReserve(&at, bytes, 0, 0, 0));
    OK(MemMap(at, bytes, 0, handle, 0));
    OK(MemSetAccess(at, bytes, &access, 1));
    all[r] = (region){(char *)(uintptr_t)at, bytes, NULL};
  }
}
static bool fits(const gpu_place *p, region *all) {
  register_all(p, all, 0, NCCL_WIN_COLL_SYMMETRIC);
  for (int r = p->first; r < p->first + p->each; r++) ck_assert((all[r].win == NULL) == (all[p->first].win == NULL));
  return all[p->first].win != NULL;
}

/* A rank has 4 GiB of addresses for windows: all of them, and no byte more.  Of four that fill them one may be replaced
 * by one of its size, and what does not fit is refused on all ranks. */
static void no_room(gpu_place *p) {
  static region all[7][GPU_RANKS];
  const size_t most = (size_t)4 << 30;
  alloc_untouched(p, all[0], most);
  alloc_untouched(p, all[1], most + WINDOW);
  alloc_untouched(p, all[2], WINDOW);
  ck_assert(!fits(p, all[1]));
  ck_assert(fits(p, all[0]));
  check_offsets(p, all[0]);
  ck_assert(!fits(p, all[2]));
  deregister_all(p, all[0], false);
  for (int i = 3; i < 7; i++) {
    alloc_untouched(p, all[i], most / 4);
    ck_assert(fits(p, all[i]));
  }
  ck_assert(!fits(p, all[2]));
  deregister_all(p, all[5], false);
  ck_assert(fits(p, all[5]));
  ck_assert(!fits(p, all[2]));
  check_offsets(p, all[5]);
  for (int i = 3; i < 7; i++) deregister_all(p, all[i], false);
}
TEST(full) {
  setenv("CUDAEMU_MEMORY_MB", "32768", 1);
  setenv("NCCL_WIN_STRIDE", "4294967296", 1);
  ck_assert_int_eq(run_processes(2, 1, 8, 1, no_room), 0);
}

int main(void) { return gpu_main("gpu_window", .timeout = 100); }
