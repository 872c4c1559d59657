/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of NCCL 2.29 to 2.32: what they answer, what they refuse, and structures of older callers.
 * check: notsan */
#include "../support/ranks.h"
#include "../support/suite.h"

#define IS(condition) faults += RANK_IS(condition)

static int properties(ncclComm_t c, int rank, int n, void *arg) {
  ncclCommProperties_t p = NCCL_COMM_PROPERTIES_INITIALIZER;
  struct {
    ncclCommProperties_t p;
    char beyond;
  } old;
  int faults = 0;
  (void)arg;
  IS(ncclCommQueryProperties(c, &p) == ncclSuccess);
  IS(p.rank == rank && p.nRanks == n && p.nLsaTeams == n && p.cudaDev == 0);
  IS(!p.deviceApiSupport && p.hostRmaSupport && !p.multimemSupport && p.ginType == NCCL_GIN_TYPE_NONE);
  IS(p.size == sizeof p && p.magic == 0xcafebeef);
  /* A caller of 2.29.2 has 40 bytes: nothing is written after the fields that it knows. */
  memset(&old, 0x55, sizeof old);
  old.p.size = 40;
  old.p.magic = 0xcafebeef;
  old.p.version = 22902;
  IS(ncclCommQueryProperties(c, &old.p) == ncclSuccess);
  IS(old.p.rank == rank && !old.p.multimemSupport);
  for (size_t i = 34; i < sizeof old; i++) IS(((unsigned char *)&old)[i] == 0x55);
  IS(ncclCommQueryProperties(c, NULL) == ncclInvalidArgument);
  p.magic = 1;
  IS(ncclCommQueryProperties(c, &p) == ncclInvalidUsage);
  return faults;
}

static int teams_and_windows(ncclComm_t c, int rank, int n, void *arg) {
  ncclTeam_t world = ncclTeamWorld(c), lsa = ncclTeamLsa(c), rail = ncclTeamRail(c), cft = ncclTeamCftMultimem(c);
  ncclWindow_t win = NULL;
  ncclMultimemHandle_t none = {NULL};
  void *at = NULL, *memory = NULL;
  int faults = RANK_CHECK(ncclMemAlloc(&memory, 8192));
  (void)arg;
  IS(world.nRanks == n && world.rank == rank && world.stride == 1);
  IS(lsa.nRanks == 1 && lsa.rank == 0 && cft.nRanks == 1 && rail.nRanks == n);
  for (int r = 0; r < n; r++) {
    IS(ncclTeamRankToWorld(c, world, r) == r);
    IS(ncclTeamRankToLsa(c, world, r) == r - rank);
  }
  IS(ncclTeamWorld(NULL).nRanks == 0);
  faults += RANK_CHECK(ncclCommWindowRegister(c, memory, 8192, &win, NCCL_WIN_COLL_SYMMETRIC));
  IS(ncclWinGetUserPtr(c, win, &at) == ncclSuccess && at == memory);
  IS(ncclGetLsaDevicePointer(win, 100, 0, &at) == ncclSuccess && at == (char *)memory + 100);
  IS(ncclGetLsaDevicePointer(win, 100, 1, &at) == ncclInvalidArgument);
  IS(ncclGetLsaDevicePointer(win, 8192, 0, &at) == ncclInvalidArgument);
  IS(ncclGetPeerDevicePointer(win, 0, rank, &at) == ncclSuccess && at == memory);
  IS(ncclGetPeerDevicePointer(win, 0, (rank + 1) % n, &at) == ncclSuccess && !at);
  IS(ncclGetPeerDevicePointer(NULL, 0, 0, &at) == ncclInvalidArgument);
  at = memory;
  IS(ncclGetLsaMultimemDevicePointer(win, 0, &at) == ncclSuccess && !at);
  IS(ncclGetMultimemDevicePointer(win, 0, none, &at) == ncclInvalidArgument);
  faults += RANK_CHECK(ncclCommWindowDeregister(c, win)) + RANK_CHECK(ncclMemFree(memory));
  return faults;
}

static int options_of_a_call(ncclComm_t c, int rank, int n, void *arg) {
  ncclCollConfig_t k = NCCL_COLLCONFIG_INITIALIZER;
  float in[4] = {1, 1, 1, 1}, out[4] = {0};
  int faults = 0;
  (void)rank, (void)arg;
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, NULL) == ncclSuccess && out[3] == (float)n);
  k.userProfilerTag = 7;
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k) == ncclSuccess && out[0] == (float)n);
  IS(ncclBroadcastConfig(in, out, 4, ncclFloat, 0, c, NULL, &k) == ncclSuccess && out[0] == 1);
  k.minCTAs = 2;
  k.maxCTAs = 4;
  k.nvlsCTAs = 1;
  k.cgaClusterSize = 2;
  k.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k) == ncclSuccess && out[1] == (float)n);
  k.minCTAs = -3; /* ignored, as a number that makes no sense */
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k) == ncclSuccess && out[2] == (float)n);
  k.CTAPolicy = 4;
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k) == ncclInvalidArgument);
  k.CTAPolicy = NCCL_CONFIG_UNDEF_INT;
  k.launchCompletionEvent = (cudaEvent_t)(void *)&k;
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k) == ncclInvalidArgument);
  IS(strstr(ncclGetLastError(NULL), "launchCompletionEvent") != NULL);
  k.launchCompletionEvent = NULL;
  /* The host has one protocol; `,` is or, `+` and, `^` not. */
  static const struct {
    const char *selection;
    int works;
  } selections[] = {{"ring", 1},          {"RING_SIMPLE", 1},   {"tree , pat", 1}, {"^ring", 1},   {"Ring+^RING_LL", 1},
                    {"RING_LL", 0},       {"NVLS", 0},          {"COLLNET", 0},    {"no such", 0}, {"RING+TREE", 0},
                    {"RING_LL,twosh", 1}, {"SYMK_anything", 0}, {"ring,,tree", 0}, {"", 1}};
  for (size_t i = 0; i < sizeof selections / sizeof *selections; i++) {
    k.algSelection = selections[i].selection;
    for (k.forceAlgSelection = 0; k.forceAlgSelection < 2; k.forceAlgSelection++) {
      ncclResult_t rc = ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k);
      int works = selections[i].works || !k.forceAlgSelection;
      if (rc != (works ? ncclSuccess : ncclInvalidArgument))
        faults += rank_is_at(0, selections[i].selection, __FILE__, __LINE__);
    }
  }
  k.algSelection = "RING";
  k.forceAlgSelection = 1;
  IS(ncclBroadcastConfig(in, out, 4, ncclFloat, 0, c, NULL, &k) == ncclSuccess && out[0] == 1);
  IS(ncclAlltoAllConfig(in, out, 1, ncclFloat, c, NULL, &k) == ncclInvalidArgument);
  k.magic = 0;
  IS(ncclAllReduceConfig(in, out, 4, ncclFloat, ncclSum, c, NULL, &k) == ncclInvalidArgument);
  return faults;
}

/* What is not there or not allowed says so, and leaves the communicator as it is. */
static int refusals(ncclComm_t c, int rank, int n, void *arg) {
  uint64_t bytes = 1;
  float x = 1;
  int faults = 0;
  (void)arg;
  IS(ncclCommResume(c) == ncclInvalidUsage);
  IS(ncclCommSuspend(c, NCCL_SUSPEND_MEM) == ncclSuccess);
  IS(ncclCommSuspend(c, NCCL_SUSPEND_MEM) == ncclInvalidUsage);
  IS(ncclCommMemStats(c, ncclStatGpuMemSuspended, &bytes) == ncclSuccess && bytes == 1);
  IS(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL) == ncclInvalidUsage);
  IS(ncclSend(&x, 1, ncclFloat, (rank + 1) % n, c, NULL) == ncclInvalidUsage);
  IS(ncclCommResume(c) == ncclSuccess);
  IS(ncclCommMemStats(c, ncclStatGpuMemTotal, &bytes) == ncclSuccess && bytes == 0);
  IS(ncclCommMemStats(c, (ncclCommMemStat_t)4, &bytes) == ncclInvalidArgument);
  IS(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, c, NULL) == ncclSuccess && x == (float)n);
  return faults;
}

static const rank_body bodies[] = {properties, teams_and_windows, options_of_a_call, refusals};

TEST_LOOP(calls, 4) { ck_assert_int_eq(ranks_as_threads(3, bodies[_i], NULL), 0); }

TEST(encryption) {
  ncclEncryptionConfig_t e = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  ck_assert_int_eq(ncclSetEncryption(NULL), ncclSuccess);
  ck_assert_int_eq(ncclSetEncryption(&e), ncclSuccess);
  e.mode = NCCL_ENCRYPTION_MODE_PSK;
  e.psk = "0123456789abcdef0123456789abcdef";
  ck_assert_int_eq(ncclSetEncryption(&e), ncclSuccess); /* test_encryption has the rest */
  e.mode = 2;
  ck_assert_int_eq(ncclSetEncryption(&e), ncclInvalidArgument);
}

int main(void) { return suite_main("api_later"); }
