/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's device API: every symbol is there, so that programs load; none of it works yet (docs/status.md). */
#include "../base/status.h"
#include "../base/thread.h"
#include "api.h"

static ncclResult_t unsupported(const char *who) {
  return (ncclResult_t)HK_FAIL(HK_ERR_USAGE, "%s: the device API is not part of this version of Hocket", who);
}

HK_API(ncclResult_t, ncclDevCommCreate, (ncclComm_t c, ncclDevCommRequirements_t const *r, ncclDevComm_t *out)) {
  HK_UNCANCELLED;
  (void)c, (void)r, (void)out;
  return unsupported("ncclDevCommCreate");
}
HK_API(ncclResult_t, ncclDevCommDestroy, (ncclComm_t c, ncclDevComm_t const *d)) {
  HK_UNCANCELLED;
  (void)c, (void)d;
  return unsupported("ncclDevCommDestroy");
}

/* A team cannot report an error: an empty one, and a log line. */
static ncclTeam_t no_team(const char *who) {
  (void)unsupported(who);
  return (ncclTeam_t){0, 0, 0};
}
HK_API(ncclTeam_t, ncclTeamWorld, (ncclComm_t c)) {
  (void)c;
  return no_team("ncclTeamWorld");
}
HK_API(ncclTeam_t, ncclTeamLsa, (ncclComm_t c)) {
  (void)c;
  return no_team("ncclTeamLsa");
}
HK_API(ncclTeam_t, ncclTeamRail, (ncclComm_t c)) {
  (void)c;
  return no_team("ncclTeamRail");
}
HK_API(int, ncclTeamRankToWorld, (ncclComm_t c, ncclTeam_t t, int rank)) {
  (void)c, (void)t, (void)rank;
  (void)unsupported("ncclTeamRankToWorld");
  return -1;
}
HK_API(int, ncclTeamRankToLsa, (ncclComm_t c, ncclTeam_t t, int rank)) {
  (void)c, (void)t, (void)rank;
  (void)unsupported("ncclTeamRankToLsa");
  return -1;
}
HK_API(ncclResult_t, ncclLsaBarrierCreateRequirement,
       (ncclTeam_t t, int n, ncclLsaBarrierHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)t, (void)n, (void)h, (void)r;
  return unsupported("ncclLsaBarrierCreateRequirement");
}
HK_API(ncclResult_t, ncclGinBarrierCreateRequirement,
       (ncclComm_t c, ncclTeam_t t, int n, ncclGinBarrierHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)c, (void)t, (void)n, (void)h, (void)r;
  return unsupported("ncclGinBarrierCreateRequirement");
}
HK_API(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize)) {
  (void)maxElts, (void)maxEltSize;
  (void)unsupported("ncclLLA2ACalcSlots");
  return 0;
}
HK_API(ncclResult_t, ncclLLA2ACreateRequirement,
       (int nBlocks, int nSlots, ncclLLA2AHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)nBlocks, (void)nSlots, (void)h, (void)r;
  return unsupported("ncclLLA2ACreateRequirement");
}
