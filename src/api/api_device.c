/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of NCCL's device API: properties, teams, and requirements for ncclDevCommCreate (device_comm.c).
 * Kernels can load, store and use multicast memory. They cannot use a network (GIN) or CFT. */
#include <string.h>
#include "../base/status.h"
#include "../base/tls.h"
#include "../boot/bootstrap.h"
#include "../core/api.h"
#include "../rma/rma.h"
#include "../rma/windows.h"
#include "device_abi.h"

/* ---- properties ---- */

/* The end of the fields that a caller's version knows. */
static size_t api_device_known_bytes(unsigned version) {
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
  if (!props) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclCommQueryProperties: props is NULL"), out);
  if (props->magic != fresh.magic || props->version < 22900 || props->size < first)
    HK_GIVE_UP(
        HK_FAIL(
            HK_ERR_USAGE,
            "ncclCommQueryProperties: size %zu, magic 0x%x, version %u: start from NCCL_COMM_PROPERTIES_INITIALIZER",
            props->size, props->magic, props->version),
        out);
  ncclCommProperties_t full = {.rank = comm->rank,
                               .nRanks = comm->nranks,
                               .cudaDev = comm->device < 0 ? 0 : comm->device,
                               .nvmlDev = comm->device < 0 ? 0 : comm->device,
                               .deviceApiSupport = comm->lsa.kernels,
                               .multimemSupport = comm->lsa.multimem,
                               .nLsaTeams = comm->nranks / comm->lsa.ranks,
                               .hostRmaSupport = hk_rma_supported(comm),
                               .commHash = hk_bootstrap_comm_id(comm->bootstrap),
                               .devCommRuntimeVersionSize = hk_device_comm_bytes()};
  size_t bytes = api_device_known_bytes(props->version);
  if (bytes > props->size) bytes = props->size;
  memcpy((char *)props + first, (const char *)&full + first, bytes - first);
out:
  return (ncclResult_t)rc;
}

/* ---- teams ---- */

/* Functions that return a team cannot return an error: for an invalid communicator the team is empty, and the log says
 * why. */
static bool api_device_usable(const char *who, ncclComm_t c) { return hk_comm_check_usable(c, who) == HK_OK; }
static const ncclTeam_t empty = {0, 0, 0}, alone = {1, 0, 1};

HK_API(ncclTeam_t, ncclTeamWorld, (ncclComm_t c)) {
  return api_device_usable("ncclTeamWorld", c) ? (ncclTeam_t){c->nranks, c->rank, 1} : empty;
}
HK_API(ncclTeam_t, ncclTeamLsa, (ncclComm_t c)) { return api_device_usable("ncclTeamLsa", c) ? hk_lsa_team(c) : empty; }
/* The ranks with the same number in their LSA teams. */
HK_API(ncclTeam_t, ncclTeamRail, (ncclComm_t c)) {
  if (!api_device_usable("ncclTeamRail", c)) return empty;
  return (ncclTeam_t){c->nranks / c->lsa.ranks, c->rank / c->lsa.ranks, c->lsa.ranks};
}
HK_API(ncclTeam_t, ncclTeamCft, (ncclComm_t c, ncclCftTeamMode_t mode)) {
  (void)mode;
  return api_device_usable("ncclTeamCft", c) ? alone : empty;
}
HK_API(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t c)) {
  return api_device_usable("ncclTeamCftMultimem", c) ? alone : empty;
}

HK_API(int, ncclTeamRankToWorld, (ncclComm_t c, ncclTeam_t t, int rank)) {
  if (hk_comm_check_usable(c, "ncclTeamRankToWorld") != HK_OK) return -1;
  return c->rank + (rank - t.rank) * t.stride;
}
HK_API(int, ncclTeamRankToLsa, (ncclComm_t c, ncclTeam_t t, int rank)) {
  if (hk_comm_check_usable(c, "ncclTeamRankToLsa") != HK_OK) return -1;
  return c->rank % c->lsa.ranks + (rank - t.rank) * t.stride;
}

/* ---- resources of device code: a description for the list that ncclDevCommCreate gets ---- */

/* Fills *r with a request for `bytes` of the buffer; *h will get their offset. */
static ncclResult_t api_device_describe(const char *who, bool fine, hk_device_handle *h, hk_resource_request *r,
                                        int count, size_t bytes, size_t align) {
  if (!fine || !h || !r)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "%s: a number is out of range, or handle %p or requirement %p is NULL", who, (void *)h,
                                 (void *)r);
  *h = (hk_device_handle){.count = count};
  *r = (hk_resource_request){.bytes = bytes, .align = align, .handle = &h->place};
  return ncclSuccess;
}

static bool api_device_in_range(int64_t count) { return count >= 0 && count <= 1 << 24; }

HK_API(ncclResult_t, ncclLsaBarrierCreateRequirement,
       (ncclTeam_t t, int n, ncclLsaBarrierHandle_t *h, ncclDevResourceRequirements_t *r)) {
  bool fine = api_device_in_range(n) && t.nRanks > 0;
  return api_device_describe("ncclLsaBarrierCreateRequirement", fine, (hk_device_handle *)h, (hk_resource_request *)r,
                             n, fine ? hk_barrier_bytes(n, t.nRanks) : 0, sizeof(uint32_t));
}

/* Signals need a network for kernels, which is not supported: ncclDevCommCreate refuses them. */
HK_API(ncclResult_t, ncclGinBarrierCreateRequirement,
       (ncclComm_t c, ncclTeam_t t, int n, ncclGinBarrierHandle_t *h, ncclDevResourceRequirements_t *r)) {
  hk_resource_request *w = (hk_resource_request *)r;
  hk_status rc = hk_comm_check_usable(c, "ncclGinBarrierCreateRequirement");
  bool fine = t.nRanks > 0 && api_device_in_range(n) && api_device_in_range((int64_t)n * t.nRanks);
  if (rc == HK_OK)
    rc = (hk_status)api_device_describe("ncclGinBarrierCreateRequirement", fine, (hk_device_handle *)h, w, 0, 0, 0);
  if (rc != HK_OK) return (ncclResult_t)rc;
  w->gin_signals = n * t.nRanks;
  w->first_signal = w->handle;
  w->handle = NULL;
  return ncclSuccess;
}

static ncclResult_t api_device_no_network(const char *who) {
  return (ncclResult_t)HK_FAIL(HK_ERR_USAGE,
                               "%s: there is no GIN (ncclCommQueryProperties gives ginType = NCCL_GIN_TYPE_NONE)", who);
}
HK_API(ncclResult_t, ncclGinOutboxCreateRequirement,
       (int nBlocks, int log2Size, ncclGinOutboxHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)nBlocks, (void)log2Size, (void)h, (void)r;
  return api_device_no_network("ncclGinOutboxCreateRequirement");
}
HK_API(ncclResult_t, ncclGinInboxA2ACreateRequirement,
       (ncclTeam_t peers, int nBlocks, int log2Size, ncclGinInboxA2AHandle_t *h, ncclDevResourceRequirements_t *r)) {
  (void)peers, (void)nBlocks, (void)log2Size, (void)h, (void)r;
  return api_device_no_network("ncclGinInboxA2ACreateRequirement");
}

/* A slot of 16 bytes carries 8, between two epochs. */
HK_API(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize)) {
  return maxElts < 0 || maxEltSize < 0 ? 0 : maxElts * (int)(((unsigned)maxEltSize + 7) / 8);
}
HK_API(ncclResult_t, ncclLLA2ACreateRequirement,
       (int nBlocks, int nSlots, ncclLLA2AHandle_t *h, ncclDevResourceRequirements_t *r)) {
  bool fine = api_device_in_range(nBlocks) && api_device_in_range(nSlots);
  size_t bytes = fine ? (size_t)16 * (size_t)nBlocks * (1 + 2 * (size_t)nSlots) : 0;
  return api_device_describe("ncclLLA2ACreateRequirement", fine, (hk_device_handle *)h, (hk_resource_request *)r,
                             nSlots, bytes, 16);
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
