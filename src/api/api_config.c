/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives with options of one call (NCCL 2.31).  A variable is stronger than a call's option, and this is stronger
 * than the communicator's. */
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../comm/group.h"
#include "../core/api.h"
#include "../core/call.h"
#include "../decide/select.h"
#include "../run/selection.h"

_Static_assert((int)HK_CALL_PROTOCOLS == (int)HK_PROTO_COUNT, "a call's options have a bit set for each protocol");

/* As NCCL, a number that makes no sense is ignored. */
static uint8_t api_config_number(int value, int least, int most) {
  return (uint8_t)(value < least || value == NCCL_CONFIG_UNDEF_INT ? 0 : value > most ? most : value);
}

static hk_status api_config_copy_config(const char *who, const ncclCollConfig_t *given, ncclCollConfig_t *c) {
  *c = (ncclCollConfig_t)NCCL_COLLCONFIG_INITIALIZER;
  if (given->magic != c->magic || given->size < offsetof(ncclCollConfig_t, minCTAs))
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: config has size %zu and magic 0x%x: start from NCCL_COLLCONFIG_INITIALIZER",
                   who, given->size, given->magic);
  memcpy(c, given, given->size < sizeof *c ? given->size : sizeof *c);
  if (c->forceAlgSelection != 0 && c->forceAlgSelection != 1 && c->forceAlgSelection != NCCL_CONFIG_UNDEF_INT)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: forceAlgSelection %d: give 0 or 1", who, c->forceAlgSelection);
  if ((c->CTAPolicy < 0 || c->CTAPolicy > 3) && c->CTAPolicy != NCCL_CONFIG_UNDEF_INT)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: CTAPolicy %d: give 0 to 3", who, c->CTAPolicy);
  return HK_OK;
}

static hk_status api_config_read_config(const char *who, ncclComm_t comm, const ncclCollConfig_t *given,
                                        hk_call_request *w) {
  ncclCollConfig_t c;
  char why[160];
  memset(w, 0, sizeof *w);
  if (!given) return HK_OK;
  HK_OR_RETURN(hk_comm_check(comm, who));
  const hk_settings *settings = comm->settings;
  HK_OR_RETURN(api_config_copy_config(who, given, &c));
  hk_call_options *o = &w->options;
  if (settings->MIN_NCHANNELS <= 0) o->min_ctas = api_config_number(c.minCTAs, 1, HK_CALL_CTAS);
  if (settings->MAX_NCHANNELS <= 0) o->max_ctas = api_config_number(c.maxCTAs, 1, HK_CALL_CTAS);
  if (settings->NVLS_NCHANNELS <= 0) o->nvls_ctas = api_config_number(c.nvlsCTAs, 1, HK_CALL_CTAS);
  if (settings->CGA_CLUSTER_SIZE < 0 && c.cgaClusterSize >= 0 && c.cgaClusterSize <= 8)
    o->cluster = (uint8_t)(c.cgaClusterSize + 1);
  if (settings->CTA_POLICY < 0 && c.CTAPolicy >= 0) o->policy = (uint8_t)(c.CTAPolicy + 1);
  w->launched = c.launchCompletionEvent;
  w->tag = c.userProfilerTag;
  if (!c.algSelection || !*c.algSelection) return HK_OK;
  w->must = c.forceAlgSelection != 0;
  if (hk_filter_only(c.algSelection, hk_selection_algorithms(comm), o->only, why, sizeof why)) return HK_OK;
  if (w->must)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: algSelection: %s (forceAlgSelection = 0 makes it a preference)", who, why);
  memset(o->only, 0, sizeof o->only);
  HK_INFO(HK_SUB_TUNING, "%s: algSelection is ignored: %s", who, why);
  return HK_OK;
}

#define WITH_CONFIG(name, coll, params, in, out, count, op, root)                                                      \
  HK_API(ncclResult_t, name##Config, params) {                                                                         \
    hk_call_request w;                                                                                                 \
    hk_status rc = api_config_read_config(#name "Config", comm, config, &w);                                           \
    if (rc != HK_OK) return (ncclResult_t)hk_group_remember(rc);                                                       \
    return (ncclResult_t)hk_coll_call_with(coll, in, out, count, datatype, op, root, comm, stream, &w);                \
  }
WITH_CONFIG(ncclReduce, HK_REDUCE,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
             ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, count, (int)op, root)
WITH_CONFIG(ncclBroadcast, HK_BROADCAST,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, count, -1, root)
WITH_CONFIG(ncclAllReduce, HK_ALLREDUCE,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
             ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, count, (int)op, 0)
WITH_CONFIG(ncclReduceScatter, HK_REDUCE_SCATTER,
            (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
             ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, recvcount, (int)op, 0)
WITH_CONFIG(ncclAllGather, HK_ALLGATHER,
            (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, sendcount, -1, 0)
WITH_CONFIG(ncclAlltoAll, HK_ALLTOALL,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, count, -1, 0)
WITH_CONFIG(ncclGather, HK_GATHER,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, count, -1, root)
WITH_CONFIG(ncclScatter, HK_SCATTER,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
             cudaStream_t stream, const ncclCollConfig_t *config),
            sendbuff, recvbuff, count, -1, root)
