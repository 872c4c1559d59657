/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives with options of one call (NCCL 2.31).  The options that change only how NCCL's own kernels run are not
 * part of this version: a call that sets one is refused with its name, as a call whose result would not be what was
 * asked for. */
#include <stdbool.h>
#include <string.h>
#include "../base/status.h"
#include "api.h"

static const ncclCollConfig_t defaults = NCCL_COLLCONFIG_INITIALIZER;

static ncclResult_t check(const char *who, const ncclCollConfig_t *given) {
  ncclCollConfig_t c = defaults;
  if (!given) return ncclSuccess;
  if (given->magic != defaults.magic || given->size < offsetof(ncclCollConfig_t, minCTAs))
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "%s: config has size %zu and magic 0x%x: start from NCCL_COLLCONFIG_INITIALIZER", who,
                                 given->size, given->magic);
  memcpy(&c, given, given->size < sizeof c ? given->size : sizeof c);
  if (c.forceAlgSelection != 0 && c.forceAlgSelection != 1 && c.forceAlgSelection != NCCL_CONFIG_UNDEF_INT)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "%s: forceAlgSelection %d: give 0 or 1", who, c.forceAlgSelection);
  if ((c.CTAPolicy < 0 || c.CTAPolicy > 3) && c.CTAPolicy != NCCL_CONFIG_UNDEF_INT)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "%s: CTAPolicy %d: give 0 to 3", who, c.CTAPolicy);
  bool selects = c.algSelection && *c.algSelection && c.forceAlgSelection != 0;
  const char *set = c.minCTAs != NCCL_CONFIG_UNDEF_INT          ? "minCTAs"
                    : c.maxCTAs != NCCL_CONFIG_UNDEF_INT        ? "maxCTAs"
                    : c.nvlsCTAs != NCCL_CONFIG_UNDEF_INT       ? "nvlsCTAs"
                    : c.cgaClusterSize != NCCL_CONFIG_UNDEF_INT ? "cgaClusterSize"
                    : c.CTAPolicy != NCCL_CONFIG_UNDEF_INT      ? "CTAPolicy"
                    : selects                                   ? "algSelection"
                    : c.launchCompletionEvent                   ? "launchCompletionEvent"
                                                                : NULL;
  if (!set) return ncclSuccess; /* userProfilerTag is a hint */
  return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                               "%s: %s of one call is not part of this version of Hocket: set it for the communicator "
                               "(ncclConfig_t, NCCL_ALGO), or leave it out",
                               who, set);
}

#define WITH_CONFIG(name, params, call)                                                                                \
  HK_API(ncclResult_t, name##Config, params) {                                                                         \
    ncclResult_t rc = check(#name "Config", config);                                                                   \
    return rc == ncclSuccess ? p##name call : rc;                                                                      \
  }
WITH_CONFIG(ncclReduce,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
             ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, count, datatype, op, root, comm, stream))
WITH_CONFIG(ncclBroadcast,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, count, datatype, root, comm, stream))
WITH_CONFIG(ncclAllReduce,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
             ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, count, datatype, op, comm, stream))
WITH_CONFIG(ncclReduceScatter,
            (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
             ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, recvcount, datatype, op, comm, stream))
WITH_CONFIG(ncclAllGather,
            (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, sendcount, datatype, comm, stream))
WITH_CONFIG(ncclAlltoAll,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, count, datatype, comm, stream))
WITH_CONFIG(ncclGather,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, count, datatype, root, comm, stream))
WITH_CONFIG(ncclScatter,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            (sendbuff, recvbuff, count, datatype, root, comm, stream))
