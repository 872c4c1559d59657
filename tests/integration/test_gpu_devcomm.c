/* SPDX-License-Identifier: Apache-2.0 */
/* Device communicators on emulated GPUs: the layout of every version, kernels that use what is in them as NVIDIA's
 * device code does (tests/suites/nccl_device.sh runs that itself), resources, and what is refused.
 * check: timeout=200 notsan */
#include "../../src/api/device_abi.h"
#include "../../src/core/backend.h"
#include "../../src/rma/windows.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { WINDOW = 2 << 20, BLOCKS = 2, THREADS = 64, SLACK = 64 };

/* The facts, apart from what the library's own table says. */
static const struct version {
  unsigned number, given; /* given: bytes of the requirements */
  size_t bytes, rank, table, resources, flat, stride, multicast, multimem, barrier;
} versions[] = {
    {22809, 56, 200, 0, 24, 32, 48, 64, 68, 112, 120}, {22903, 88, 200, 0, 24, 32, 48, 64, 68, 112, 120},
    {22907, 88, 224, 0, 24, 32, 48, 64, 68, 112, 120}, {23000, 96, 240, 8, 32, 40, 56, 72, 76, 120, 128},
    {23007, 96, 240, 8, 32, 40, 56, 72, 76, 120, 128}, {23100, 120, 248, 8, 32, 40, 48, 56, 60, 72, 80},
    {23203, 120, 248, 8, 32, 40, 48, 56, 60, 72, 80},
};

static hk_requirements fresh(const struct version *v) {
  return (hk_requirements){.size = v->given,
                           .magic = NCCL_API_MAGIC,
                           .version = v->number,
                           .gin_contexts = 4,
                           .gin_traffic_class = INT32_MIN,
                           .gin_strong_signals = true,
                           .gin_va_signals = true,
                           .gin_stride = 1};
}
/* In the memory of a caller of that version, which ends after its fields. */
static ncclResult_t create(ncclComm_t c, const struct version *v, const hk_requirements *r, unsigned char *out) {
  static unsigned char given[GPU_RANKS][120];
  unsigned char *at = given[ncclTeamWorld(c).rank];
  hk_requirements_2_28 old = {.resources = r->resources,
                              .teams = r->teams,
                              .lsa_multimem = r->lsa_multimem,
                              .barriers = r->barriers,
                              .lsa_barriers = r->lsa_barriers,
                              .gin = r->gin,
                              .gin_contexts = 4,
                              .gin_signals = r->gin_signals};
  memset(at, 0x55, sizeof given[0]);
  memcpy(at, v->number < 22900 ? (const void *)&old : r, v->given);
  return ncclDevCommCreate(c, (const ncclDevCommRequirements_t *)(void *)at, (ncclDevComm_t *)(void *)out);
}

#define FIELD(type, place) (*(type *)memcpy(&(type){0}, device + (place), sizeof(type)))

typedef struct rank_state {
  char *in, *out;
  uint32_t *bad;
  ncclWindow_t win_in, win_out;
  unsigned char device[248 + SLACK];
  hk_device_handle extra, lines;
  hk_resource_request list[2];
  hk_team_request team;
  ncclMultimemHandle_t multicast;
} rank_state;
static rank_state all[GPU_RANKS];

static void check_layout(const gpu_place *p, int r, const struct version *v, bool multimem) {
  const unsigned char *device = all[r].device;
  hk_device_window w;
  void *table = NULL;
  const uint32_t n = (uint32_t)p->g.n;
  ck_assert_int_eq(FIELD(int, v->rank), r);
  ck_assert_int_eq(FIELD(int, v->rank + 4), p->g.n);
  ck_assert_uint_eq(FIELD(uint32_t, v->rank + 8), UINT32_MAX / n + (n == 2 || n == 4));
  ck_assert_int_eq(FIELD(int, v->rank + 12), r);
  ck_assert_int_eq(FIELD(int, v->rank + 16), p->g.n);
  ck_assert_int_eq(p->g.comm[r]->backend->windows->table(p->g.comm[r], &table), HK_OK);
  ck_assert_ptr_eq(FIELD(void *, v->table), table);
  emu_use(p->g.device[r]);
  emu_read(&w, (CUdeviceptr)FIELD(uintptr_t, v->resources), sizeof w);
  ck_assert_ptr_eq(FIELD(char *, v->flat), w.flat);
  ck_assert_uint_eq(FIELD(uint32_t, v->stride), w.stride_4g);
  ck_assert_uint_eq(FIELD(uint32_t, v->multicast), w.multicast_4k);
  ck_assert(w.lsa_rank == r && w.stride_4g == 1);
  ck_assert((FIELD(void *, v->multimem) != NULL) == multimem);
  ck_assert_uint_eq(FIELD(uint32_t, v->barrier), 0);
  ck_assert_int_eq(FIELD(int, v->barrier + 4), BLOCKS);
  if (v->rank) {
    ck_assert_uint_eq(FIELD(uint32_t, 0), NCCL_API_MAGIC);
    ck_assert_uint_eq(FIELD(uint32_t, 4), v->number);
  }
  if (v->bytes == 248) ck_assert(FIELD(int, 208) == 1 && FIELD(uint32_t, 224) == UINT32_MAX); /* no CFT */
  for (size_t i = v->bytes; i < sizeof all[r].device; i++) ck_assert_uint_eq(device[i], 0xaa);
  /* 2 barriers of n ranks in n + 3 words each; then what the list asks for, aligned */
  ck_assert_uint_eq(all[r].extra.place, (8 * (n + 3) + 127) / 128);
  ck_assert_uint_eq(all[r].lines.place % 2, 0);
  ck_assert_uint_gt(all[r].lines.place, all[r].extra.place);
}

static void launch(const gpu_place *p, int r, const struct version *v, const hk_device_handle *barrier, bool multimem) {
  const unsigned char *device = all[r].device;
  hk_device_window in, out;
  emu_use(p->g.device[r]);
  emu_read(&in, (CUdeviceptr)(uintptr_t)all[r].win_in, sizeof in);
  emu_read(&out, (CUdeviceptr)(uintptr_t)all[r].win_out, sizeof out);
  char *every = FIELD(char *, v->multimem);
  lsa_params k = {.in = in.flat,
                  .out = out.flat,
                  .buffer = FIELD(char *, v->flat),
                  .stride_4g = in.stride_4g,
                  .barriers = (uint32_t)barrier->count,
                  .place = barrier->place,
                  .rank = r,
                  .ranks = p->g.n,
                  .count = 700,
                  .rounds = 4,
                  .bad = all[r].bad};
  if (multimem) {
    k.all_in = every + (size_t)in.multicast_4k * 4096;
    k.all_out = every + (size_t)out.multicast_4k * 4096;
    k.all_buffer = every + (size_t)FIELD(uint32_t, v->multicast) * 4096;
  }
  emu_launch(emu_kernel("lsa_allreduce"), BLOCKS, THREADS, &k, p->g.stream[r]);
}

static void run(const gpu_place *p, const struct version *v, bool own_barrier, bool multimem) {
  for (int r = p->first; r < p->first + p->each; r++) {
    const hk_device_handle first = {.count = BLOCKS};
    launch(p, r, v, own_barrier ? &all[r].extra : &first, multimem);
  }
  for (int r = p->first; r < p->first + p->each; r++) {
    uint32_t bad = 0;
    emu_use(p->g.device[r]);
    OK(StreamSynchronize(p->g.stream[r]));
    emu_read(&bad, (CUdeviceptr)(uintptr_t)all[r].bad, sizeof bad);
    ck_assert_msg(!bad, "version %u, rank %d: wrong in round %u", v->number, r, bad);
  }
}

static void open_windows(const gpu_place *p) {
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    rank_state *s = &all[r];
    emu_use(p->g.device[r]);
    OK_NCCL(ncclMemAlloc((void **)&s->in, WINDOW));
    OK_NCCL(ncclMemAlloc((void **)&s->out, WINDOW));
    OK_NCCL(ncclMemAlloc((void **)&s->bad, 4));
    OK_NCCL(ncclCommWindowRegister(p->g.comm[r], s->in, WINDOW, &s->win_in, NCCL_WIN_COLL_SYMMETRIC));
    OK_NCCL(ncclCommWindowRegister(p->g.comm[r], s->out, WINDOW, &s->win_out, NCCL_WIN_COLL_SYMMETRIC));
  }
  OK_NCCL(ncclGroupEnd());
}

static void one_version(const gpu_place *p, const struct version *asked, bool multimem) {
  /* for kernels that are compiled at run time all but 2.28 get the newest */
  const struct version *v = getenv("NCCL_DEV_API_JIT") && asked != versions ? &versions[6] : asked;
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    rank_state *s = &all[r];
    hk_requirements q = fresh(asked);
    ncclComm_t c = p->g.comm[r];
    OK_NCCL(ncclLsaBarrierCreateRequirement(ncclTeamLsa(c), BLOCKS, (ncclLsaBarrierHandle_t *)(void *)&s->extra,
                                            (ncclDevResourceRequirements_t *)(void *)&s->list[0]));
    OK_NCCL(ncclLLA2ACreateRequirement(3, ncclLLA2ACalcSlots(10, 12), (ncclLLA2AHandle_t *)(void *)&s->lines,
                                       (ncclDevResourceRequirements_t *)(void *)&s->list[1]));
    ck_assert(s->list[0].bytes == 4u * BLOCKS * (3 + (unsigned)p->g.n) && s->list[1].bytes == 16 * 3 * 41);
    s->list[0].next = &s->list[1];
    s->list[1].align = 256;
    s->team = (hk_team_request){.team = ncclTeamLsa(c), .multimem = multimem, .handle = &s->multicast};
    q.lsa_barriers = BLOCKS;
    q.lsa_multimem = multimem;
    q.resources = &s->list[0];
    q.teams = &s->team;
    memset(s->device, 0xaa, sizeof s->device);
    OK_NCCL(create(c, asked, &q, s->device));
    /* the call has copied them */
    memset(s->list, 0x55, sizeof s->list);
    memset(&s->team, 0x55, sizeof s->team);
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) {
    const unsigned char *device = all[r].device;
    check_layout(p, r, v, multimem);
    if (multimem) ck_assert_ptr_eq(all[r].multicast.mcBasePtr, FIELD(void *, v->multimem));
  }
  for (int i = 0; i < 3; i++) run(p, v, i == 1, multimem && i == 2);
  for (int r = p->first; r < p->first + p->each; r++) {
    const ncclDevComm_t *d = (const ncclDevComm_t *)(void *)all[r].device;
    OK_NCCL(ncclDevCommDestroy(p->g.comm[r], d));
    ck_assert_int_eq(ncclDevCommDestroy(p->g.comm[r], d), ncclInvalidArgument);
  }
}

static void every_version(gpu_place *p) {
  const bool multimem = getenv("CUDAEMU_MULTICAST") != NULL;
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  OK_NCCL(ncclCommQueryProperties(p->g.comm[p->first], &props));
  ck_assert(props.deviceApiSupport && props.multimemSupport == multimem && props.nLsaTeams == 1);
  ck_assert_uint_eq(props.devCommRuntimeVersionSize, 248);
  open_windows(p);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(versions); i++) one_version(p, &versions[i], multimem);
}

static const int shapes[][2] = {{1, 2}, {2, 2}, {3, 1}};
TEST_LOOP(layouts, 7) {
  if (_i >= 3) setenv("CUDAEMU_MULTICAST", "1", 1);
  if (_i == 6) setenv("NCCL_DEV_API_JIT", "1", 1);
  if (!emu_has_kernels()) return;
  ck_assert_int_eq(run_processes(shapes[_i % 3][0], shapes[_i % 3][1], 8, 1, every_version), 0);
}

/* Multicast addresses of windows, before and after they are registered. */
static void addresses(gpu_place *p) {
  const struct version *v = &versions[6];
  void *at = NULL, *same = NULL;
  hk_device_window w;
  int r = p->first;
  hk_requirements q = fresh(v);
  open_windows(p);
  /* The first call is collective: a rank with a wrong offset takes part, then is refused.  So the next call of all
   * ranks finds the other rank there, too. */
  const ncclResult_t first = ncclGetLsaMultimemDevicePointer(all[r].win_in, r == 0 ? WINDOW : 0, &at);
  ck_assert_int_eq(first, r == 0 ? ncclInvalidArgument : ncclSuccess);
  OK_NCCL(ncclCommWindowDeregister(p->g.comm[r], all[r].win_out));
  OK_NCCL(ncclCommWindowRegister(p->g.comm[r], all[r].out, WINDOW, &all[r].win_out, NCCL_WIN_COLL_SYMMETRIC));
  OK_NCCL(ncclGetLsaMultimemDevicePointer(all[r].win_in, 64, &at));
  q.lsa_multimem = true;
  OK_NCCL(create(p->g.comm[r], v, &q, all[r].device));
  const unsigned char *device = all[r].device;
  ck_assert_ptr_null(FIELD(void *, v->resources)); /* no barrier and no resource */
  emu_read(&w, (CUdeviceptr)(uintptr_t)all[r].win_in, sizeof w);
  ck_assert_ptr_eq(at, FIELD(char *, v->multimem) + (size_t)w.multicast_4k * 4096 + 64);
  OK_NCCL(ncclGetMultimemDevicePointer(all[r].win_in, 64, FIELD(ncclMultimemHandle_t, v->multimem), &same));
  ck_assert_ptr_eq(at, same);
  OK_NCCL(ncclDevCommDestroy(p->g.comm[r], (const ncclDevComm_t *)(void *)all[r].device));
  OK_NCCL(ncclCommWindowDeregister(p->g.comm[r], all[r].win_in));
  OK_NCCL(ncclCommWindowRegister(p->g.comm[r], all[r].in, WINDOW, &all[r].win_in, 0));
  OK_NCCL(ncclGetLsaMultimemDevicePointer(all[r].win_in, 64, &same));
  ck_assert_ptr_eq(at, same);
  emu_read(&w, (CUdeviceptr)(uintptr_t)all[r].win_out, sizeof w); /* it does not begin the memory */
  OK_NCCL(ncclGetLsaMultimemDevicePointer(all[r].win_out, 8, &same));
  ck_assert_ptr_eq(same, FIELD(char *, v->multimem) + (size_t)w.multicast_4k * 4096 + 8);
  ck_assert_ptr_ne((char *)same - 8, (char *)at - 64);
}
TEST(multicast_addresses) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  ck_assert_int_eq(run_processes(2, 1, 8, 1, addresses), 0);
}

/* ---- what is refused, before anything is done ---- */

static void wrong(gpu_place *p) {
  const struct version *newest = &versions[6], *oldest = &versions[1], *before = &versions[0];
  ncclComm_t c = p->g.comm[0];
  unsigned char *out = all[0].device;
  hk_device_handle h;
  hk_resource_request w;
  ncclTeam_t lsa = ncclTeamLsa(c);
  struct {
    hk_requirements r;
    ncclResult_t want;
  } cases[] = {{.want = ncclInvalidUsage},    {.want = ncclInvalidUsage},    {.want = ncclInvalidArgument},
               {.want = ncclInvalidArgument}, {.want = ncclInvalidArgument}, {.want = ncclInvalidArgument},
               {.want = ncclInvalidArgument}, {.want = ncclInvalidArgument}, {.want = ncclInvalidArgument},
               {.want = ncclInvalidArgument}};
  hk_team_request outside = {.team = {3, 0, 1}};
  hk_resource_request odd = {.bytes = 4, .align = 24};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) cases[i].r = fresh(newest);
  cases[0].r.magic = 1;
  cases[1].r.version = 22904;
  cases[2].r.barriers = 1;
  cases[3].r.gin = true;
  cases[4].r.gin_connection = 1;
  cases[5].r.cft_caps = 1;
  cases[6].r.lsa_multimem = true;
  cases[7].r.lsa_barriers = -1;
  cases[8].r.teams = &outside;
  cases[9].r.resources = &odd;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++)
    ck_assert_msg(create(c, newest, &cases[i].r, out) == cases[i].want, "case %zu", i);
  /* Teams that are no part of the LSA team, and resources beyond what a number may be: each limit alone. */
  const int n = lsa.nRanks, me = lsa.rank;
  const ncclTeam_t teams[] = {{0, 0, 1},   {n, -1, 1},          {n, n, 1},      {1, me, 0},
                              {1, me, -1}, {me + 2, me + 1, 1}, {n + 1, me, 1}, {2, 0, n - me}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(teams); i++) {
    hk_team_request wish = {.team = teams[i]};
    hk_requirements one = fresh(newest);
    one.teams = &wish;
    ck_assert_msg(create(c, newest, &one, out) == ncclInvalidArgument, "team %zu", i);
  }
  const hk_resource_request beyond[] = {
      {.bytes = ((size_t)1 << 46) + 1}, {.bytes = 4, .align = (size_t)1 << 31}, {.bytes = 4, .align = 3}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(beyond); i++) {
    hk_resource_request wish = beyond[i];
    hk_requirements one = fresh(newest);
    one.resources = &wish;
    ck_assert_msg(create(c, newest, &one, out) == ncclInvalidArgument, "resource %zu", i);
  }
  hk_requirements r = fresh(oldest);
  r.gin_signals = 1;
  ck_assert_int_eq(create(c, oldest, &r, out), ncclInvalidUsage);
  ck_assert_int_eq(create(c, before, &r, out), ncclInvalidUsage);
  ck_assert_int_eq(ncclDevCommCreate(c, NULL, (ncclDevComm_t *)(void *)out), ncclInvalidArgument);
  ck_assert_int_eq(ncclDevCommDestroy(c, NULL), ncclInvalidArgument);
  memset(out, 0, 248);
  OK_NCCL(ncclDevCommDestroy(c, (ncclDevComm_t *)(void *)out));

  ncclDevResourceRequirements_t *q = (ncclDevResourceRequirements_t *)(void *)&w;
  ncclLsaBarrierHandle_t *lsa_handle = (ncclLsaBarrierHandle_t *)(void *)&h;
  ck_assert_int_eq(ncclLsaBarrierCreateRequirement(lsa, -1, lsa_handle, q), ncclInvalidArgument);
  ck_assert_int_eq(ncclLsaBarrierCreateRequirement(lsa, 1, NULL, q), ncclInvalidArgument);
  ck_assert_int_eq(ncclLsaBarrierCreateRequirement(lsa, 1, lsa_handle, NULL), ncclInvalidArgument);
  ck_assert_int_eq(ncclLLA2ACreateRequirement(-1, 1, (ncclLLA2AHandle_t *)(void *)&h, q), ncclInvalidArgument);
  OK_NCCL(ncclGinBarrierCreateRequirement(c, lsa, 3, (ncclGinBarrierHandle_t *)(void *)&h, q));
  ck_assert(w.gin_signals == 3 * lsa.nRanks && w.first_signal == &h.place && !w.bytes && !w.handle);
  r = fresh(newest);
  r.resources = &w; /* and that is GIN */
  ck_assert_int_eq(create(c, newest, &r, out), ncclInvalidArgument);
  ck_assert_int_eq(ncclGinOutboxCreateRequirement(1, 1, NULL, q), ncclInvalidUsage);
  ck_assert_int_eq(ncclLLA2ACalcSlots(10, 8), 10);
  ck_assert_int_eq(ncclLLA2ACalcSlots(10, 9), 20);
}
TEST(arguments) { ck_assert_int_eq(run_processes(1, 2, 8, 1, wrong), 0); }

/* No device API: GPUs of two hosts, GPUs without P2P, host memory. */
static void none(gpu_place *p) {
  hk_requirements r = fresh(&versions[6]);
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  OK_NCCL(ncclCommQueryProperties(p->g.comm[p->first], &props));
  ck_assert(!props.deviceApiSupport && !props.multimemSupport);
  ck_assert_int_eq(create(p->g.comm[p->first], &versions[6], &r, all[0].device), ncclInvalidUsage);
}
TEST_LOOP(not_there, 2) {
  if (_i == 1) setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(run_processes(2, 1, 8, _i ? 1 : 2, none), 0);
}

/* A rank without memory for the buffer: all ranks get an error, and the communicator lives. */
static void lacks(gpu_place *p) {
  const struct version *v = &versions[6];
  int r = p->first;
  hk_requirements q = fresh(v);
  hk_resource_request big = {.bytes = (size_t)5 << 30}; /* more than the device has */
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 10, .type = ncclFloat32, .op = ncclSum};
  q.resources = &big;
  ck_assert_int_eq(create(p->g.comm[r], v, &q, all[r].device), ncclUnhandledCudaError);
  each_call(p, &c, 1);
  big.bytes = 1000;
  /* The smallest team and the largest. */
  const ncclTeam_t lsa = ncclTeamLsa(p->g.comm[r]);
  hk_team_request whole = {.team = lsa}, alone = {.next = &whole, .team = {1, 0, 1}};
  q.teams = &alone;
  OK_NCCL(create(p->g.comm[r], v, &q, all[r].device));
}
TEST(no_memory) { ck_assert_int_eq(run_processes(2, 1, 8, 1, lacks), 0); }

/* A rank fails after the buffer is there on all: the others wait for it, so the communicator ends. */
static hk_status no_table(ncclComm_t c, void **out) {
  (void)c, (void)out;
  return HK_FAIL(HK_ERR_CUDA, "no room for the table");
}
static void fails(gpu_place *p) {
  const struct version *v = &versions[6];
  ncclComm_t c = p->g.comm[p->first];
  hk_requirements q = fresh(v);
  hk_window_ops windows = *c->backend->windows;
  hk_backend backend = *c->backend;
  q.lsa_barriers = 1;
  windows.table = no_table;
  backend.windows = &windows;
  if (p->first == 0) c->backend = &backend;
  ck_assert_int_ne(create(c, v, &q, all[p->first].device), ncclSuccess);
  ncclResult_t end = ncclSuccess;
  ncclCommGetAsyncError(c, &end);
  ck_assert_int_ne(end, ncclSuccess);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(c), "no room for the table"));
  OK_NCCL(ncclCommAbort(c));
  p->g.comm[p->first] = NULL;
}
TEST(no_table_here) { ck_assert_int_eq(run_processes(2, 1, 8, 1, fails), 0); }

int main(void) { return gpu_main("gpu_devcomm", .timeout = 100); }
