/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's device API from the host's side.  Kernels of users cannot communicate yet (docs/status.md): no communicator
 * supports the device API, multimem or CFT, and ncclCommQueryProperties says so.  Load/store
 * (LSA) teams have one rank each.  What needs more is refused with the reason. */
#include <string.h>
#include "../base/status.h"
#include "../base/thread.h"
#include "../base/tls.h"
#include "../boot/bootstrap.h"
#include "api.h"
#include "rma.h"
#include "windows.h"

static ncclResult_t unsupported(const char *who) {
  return (ncclResult_t)HK_FAIL(
      HK_ERR_USAGE,
      "%s: the device API is not part of this version of Hocket (ncclCommQueryProperties gives "
      "deviceApiSupport = false)",
      who);
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

/* ---- properties ---- */

/* The end of the fields that a caller's version knows. */
static size_t known_bytes(unsigned version) {
  if (version < 22905) return offsetof(ncclCommProperties_t, multimemSupport) + 1;
  if (version < 23100) return offsetof(ncclCommProperties_t, commHash);
  if (version < 23200) return offsetof(ncclCommProperties_t, cftSupport);
  return sizeof(ncclCommProperties_t);
}

HK_API(ncclResult_t, ncclCommQueryProperties, (ncclComm_t comm, ncclCommProperties_t *props)) {
  static const ncclCommProperties_t fresh = NCCL_COMM_PROPERTIES_INITIALIZER;
  const size_t first = offsetof(ncclCommProperties_t, rank);
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "ncclCommQueryProperties"), out);
  if (!props) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommQueryProperties: props is NULL");
    goto out;
  }
  if (props->magic != fresh.magic || props->version < 22900 || props->size < first) {
    rc = HK_FAIL(
        HK_ERR_USAGE,
        "ncclCommQueryProperties: size %zu, magic 0x%x, version %u: start from NCCL_COMM_PROPERTIES_INITIALIZER",
        props->size, props->magic, props->version);
    goto out;
  }
  ncclCommProperties_t full = {.rank = comm->rank,
                               .nRanks = comm->nranks,
                               .cudaDev = comm->device < 0 ? 0 : comm->device,
                               .nvmlDev = comm->device < 0 ? 0 : comm->device,
                               .nLsaTeams = comm->nranks / comm->lsa.ranks,
                               .hostRmaSupport = hk_rma_supported(comm),
                               .commHash = hk_bootstrap_comm_id(comm->bootstrap)};
  size_t bytes = known_bytes(props->version);
  if (bytes > props->size) bytes = props->size;
  memcpy((char *)props + first, (const char *)&full + first, bytes - first);
out:
  return (ncclResult_t)rc;
}

/* ---- teams ---- */

/* A team cannot report an error: for a communicator that is none it is empty, and the log says why. */
static bool usable(const char *who, ncclComm_t c) { return hk_comm_check_usable(c, who) == HK_OK; }
static const ncclTeam_t empty = {0, 0, 0}, alone = {1, 0, 1};

HK_API(ncclTeam_t, ncclTeamWorld, (ncclComm_t c)) {
  return usable("ncclTeamWorld", c) ? (ncclTeam_t){c->nranks, c->rank, 1} : empty;
}
HK_API(ncclTeam_t, ncclTeamLsa, (ncclComm_t c)) { return usable("ncclTeamLsa", c) ? hk_lsa_team(c) : empty; }
/* The ranks with the same place in their LSA teams. */
HK_API(ncclTeam_t, ncclTeamRail, (ncclComm_t c)) {
  if (!usable("ncclTeamRail", c)) return empty;
  return (ncclTeam_t){c->nranks / c->lsa.ranks, c->rank / c->lsa.ranks, c->lsa.ranks};
}
HK_API(ncclTeam_t, ncclTeamCft, (ncclComm_t c, ncclCftTeamMode_t mode)) {
  (void)mode;
  return usable("ncclTeamCft", c) ? alone : empty;
}
HK_API(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t c)) { return usable("ncclTeamCftMultimem", c) ? alone : empty; }

HK_API(int, ncclTeamRankToWorld, (ncclComm_t c, ncclTeam_t t, int rank)) {
  if (hk_comm_check_usable(c, "ncclTeamRankToWorld") != HK_OK) return -1;
  return c->rank + (rank - t.rank) * t.stride;
}
HK_API(int, ncclTeamRankToLsa, (ncclComm_t c, ncclTeam_t t, int rank)) {
  if (hk_comm_check_usable(c, "ncclTeamRankToLsa") != HK_OK) return -1;
  return c->rank % c->lsa.ranks + (rank - t.rank) * t.stride;
}

/* ---- what device code would need ---- */

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
HK_API(ncclResult_t, ncclGinOutboxCreateRequirement,
       (int nBlocks, int log2Size, ncclGinOutboxHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)nBlocks, (void)log2Size, (void)h, (void)r;
  return unsupported("ncclGinOutboxCreateRequirement");
}
HK_API(ncclResult_t, ncclGinInboxA2ACreateRequirement,
       (ncclTeam_t peers, int nBlocks, int log2Size, ncclGinInboxA2AHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)peers, (void)nBlocks, (void)log2Size, (void)h, (void)r;
  return unsupported("ncclGinInboxA2ACreateRequirement");
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

/* ---- encryption ---- */

HK_API(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t *config)) {
  static const ncclEncryptionConfig_t fresh = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  if (!config) return (ncclResult_t)hk_bootstrap_encrypt(NULL);
  if (config->magic != fresh.magic || config->size < sizeof fresh || config->mode < NCCL_ENCRYPTION_MODE_NONE ||
      config->mode > NCCL_ENCRYPTION_MODE_PSK)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "ncclSetEncryption: size %zu, magic 0x%x, mode %d: start from "
                                 "NCCL_ENCRYPTION_CONFIG_INITIALIZER",
                                 config->size, config->magic, config->mode);
  if (config->mode == NCCL_ENCRYPTION_MODE_NONE) return (ncclResult_t)hk_bootstrap_encrypt(NULL);
  if (!config->psk || strlen(config->psk) < HK_TLS_KEY_LEAST)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclSetEncryption: the key must be text of at least %d bytes",
                                 HK_TLS_KEY_LEAST);
  return (ncclResult_t)hk_bootstrap_encrypt(config->psk);
}
