/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an ncclConfig_t of any version. */
#include <limits.h> /* INT_MAX */
#include <stdio.h>
#include <string.h>
#include "../base/param.h"
#include "../core/comm.h"

static int config_or_default(int value, int fallback) { return value == NCCL_CONFIG_UNDEF_INT ? fallback : value; }

/* Size of the structure in the versions that had fewer fields. */
static size_t config_known_bytes(unsigned version) {
  static const struct {
    unsigned version;
    size_t bytes;
  } table[] = {{23100, 120}, {23005, 96}, {23000, 92}, {22900, 88}, {22800, 80},
               {22700, 72},  {21800, 48}, {21700, 40}, {21400, 24}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(table); i++)
    if (version >= table[i].version) return table[i].bytes;
  return offsetof(ncclConfig_t, cgaClusterSize);
}

/* The values that a field may have, if it is set. */
static const struct range {
  const char *field;
  size_t at;
  int low, high;
} ranges[] = {
#define RANGE(field, low, high)                                                                                        \
  { #field, offsetof(ncclConfig_t, field), low, high }
    RANGE(blocking, 0, 1),
    RANGE(cgaClusterSize, 0, 8),
    RANGE(minCTAs, 1, INT_MAX),
    RANGE(maxCTAs, 1, INT_MAX),
    RANGE(splitShare, 0, 1),
    RANGE(collnetEnable, 0, 1),
    RANGE(CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO),
    RANGE(shrinkShare, 0, 1),
    RANGE(nvlsCTAs, 1, INT_MAX),
    RANGE(nChannelsPerNetPeer, 1, 64),
    RANGE(nvlinkCentricSched, 0, 1),
    RANGE(graphUsageMode, 0, 2),
    RANGE(numRmaCtx, 0, INT_MAX),
    RANGE(maxP2pPeers, 1, INT_MAX),
    RANGE(graphStreamOrdering, 0, 1),
    RANGE(launchOrderImplicit, 0, 1),
    RANGE(numRmaSig, 0, INT_MAX),
    RANGE(rmaEagerInit, 0, 1),
    RANGE(hostCftMode, 1, 3),
    RANGE(nvlsHostMode, 0, INT_MAX),
#undef RANGE
};

static hk_status config_check_ranges(const ncclConfig_t *c) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(ranges); i++) {
    const struct range *r = &ranges[i];
    int value;
    memcpy(&value, (const char *)c + r->at, sizeof value);
    if (value != NCCL_CONFIG_UNDEF_INT && (value < r->low || value > r->high))
      return HK_FAIL(HK_ERR_ARGUMENT, "ncclConfig_t: %s is %d; it must be %d to %d, or NCCL_CONFIG_UNDEF_INT", r->field,
                     value, r->low, r->high);
  }
  if (c->nvlsHostMode > 3 && c->nvlsHostMode != INT_MAX)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclConfig_t: nvlsHostMode is %d; it must be 0 to 3, or INT_MAX", c->nvlsHostMode);
  if (c->minCTAs != NCCL_CONFIG_UNDEF_INT && c->maxCTAs != NCCL_CONFIG_UNDEF_INT && c->minCTAs > c->maxCTAs)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclConfig_t: minCTAs %d is more than maxCTAs %d", c->minCTAs, c->maxCTAs);
  return HK_OK;
}

hk_status hk_config_read(const ncclConfig_t *given, ncclConfig_t *full) {
  *full = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  if (!given) return HK_OK;
  if (given->magic != full->magic)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "ncclConfig_t: magic is 0x%x, not 0x%x: start from NCCL_CONFIG_INITIALIZER and set fields after it",
                   given->magic, full->magic);
  /* A compiler makes no struct whose size is not a multiple of its alignment; such a size would cut a field in two. */
  if (given->size < offsetof(ncclConfig_t, cgaClusterSize) || given->size > 65536 ||
      given->size % _Alignof(ncclConfig_t))
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclConfig_t: size is %zu: start from NCCL_CONFIG_INITIALIZER", given->size);
  /* The fields of the caller's header: up to its own size, and no more than its version had. */
  size_t bytes = given->size < sizeof(*full) ? given->size : sizeof(*full);
  size_t known = config_known_bytes(given->version);
  if (known < bytes) bytes = known;
  memcpy(full, given, bytes);
  full->size = sizeof(*full);
  return config_check_ranges(full);
}

/* A variable of at least `least` is stronger than the field. */
static int config_set_or(int64_t variable, int64_t least, int field, int fallback) {
  return variable >= least ? (int)variable : config_or_default(field, fallback);
}

hk_status hk_options_read(const hk_settings *s, const ncclConfig_t *given, hk_comm_options *o) {
  ncclConfig_t full, *f = &full;
  hk_status rc = hk_config_read(given, f);
  if (rc != HK_OK) return rc;
  o->blocking = config_set_or(s->COMM_BLOCKING, 0, f->blocking, 1) != 0;
  o->cluster = config_set_or(s->CGA_CLUSTER_SIZE, 0, f->cgaClusterSize, 0);
  o->policy = config_set_or(s->CTA_POLICY, 0, f->CTAPolicy, NCCL_CTA_POLICY_DEFAULT);
  o->nvls_mode = config_or_default(f->nvlsHostMode, ncclNvlsHostModeEnable);
  o->nvls_ctas = config_set_or(s->NVLS_NCHANNELS, 1, f->nvlsCTAs, 0);
  o->net_channels = config_set_or(s->NCHANNELS_PER_NET_PEER, 1, f->nChannelsPerNetPeer, 0);
  o->nvlink_first = config_set_or(s->NVLINK_CENTRIC, 0, f->nvlinkCentricSched, 0) != 0;
  o->in_launch_order = config_set_or(s->LAUNCH_ORDER_IMPLICIT, 0, f->launchOrderImplicit, 0) != 0;
  o->loose_captures = config_set_or(s->GRAPH_STREAM_ORDERING, 0, f->graphStreamOrdering, 1) == 0;
  o->no_captures = f->graphUsageMode == 0;
  o->mixes_graphs = s->GRAPH_MIXING >= 0 ? s->GRAPH_MIXING != 0 : config_or_default(f->graphUsageMode, 2) == 2;
  o->collnet = config_set_or(s->COLLNET_ENABLE, 0, f->collnetEnable, 0) != 0;
  o->min_ctas = config_set_or(s->MIN_CTAS, 1, f->minCTAs, 0);
  o->max_ctas = config_set_or(s->MAX_CTAS, 1, f->maxCTAs, 0);
  o->traffic_class = config_or_default(f->trafficClass, -1);
  o->batch_invariant = -1;
  o->rma_contexts = s->RMA_DISABLE ? 0 : config_set_or(s->NUM_RMA_CTX, 0, f->numRmaCtx, 1);
  o->rma_signals = config_or_default(f->numRmaSig, 1);
  o->rma_eager = config_set_or(s->RMA_EAGER_INIT, 0, f->rmaEagerInit, 0) != 0;
  o->split_share = config_set_or(s->SPLIT_SHARE, 0, f->splitShare, 0) != 0;
  o->shrink_share = config_set_or(s->SHRINK_SHARE, 0, f->shrinkShare, 0) != 0;
  o->p2p_peers = config_set_or(s->MAX_P2P_PEERS, 1, f->maxP2pPeers, 0);
  if (f->commName) snprintf(o->name, sizeof o->name, "%s", f->commName);
  if (f->netName) snprintf(o->net_name, sizeof o->net_name, "%s", f->netName);
  return HK_OK;
}
