/* SPDX-License-Identifier: Apache-2.0 */
/* The binary interface: every value and layout that programs compiled against NCCL rely on.  It is checked when this
 * file is compiled; the run only shows that it was. */
#include <nccl.h>
#include "../support/suite.h"

#define IS(a, b) _Static_assert((a) == (b), #a " must be " #b)
#define AT(type, field, where) IS(offsetof(type, field), where)

IS(sizeof(size_t), 8);
IS(sizeof(int), 4);

/* Version. */
IS(NCCL_MAJOR, 2);
IS(NCCL_MINOR, 32);
IS(NCCL_PATCH, 3);
IS(NCCL_VERSION_CODE, 23203);
IS(NCCL_VERSION(2, 32, 3), NCCL_VERSION_CODE);
IS(NCCL_VERSION(2, 28, 9), 22809);
IS(NCCL_VERSION(2, 8, 4), 2804); /* the old numbering, up to 2.8 */
IS(NCCL_VERSION(2, 9, 6), 20906);

/* Results. */
IS(sizeof(ncclResult_t), 4);
IS(ncclSuccess, 0);
IS(ncclUnhandledCudaError, 1);
IS(ncclSystemError, 2);
IS(ncclInternalError, 3);
IS(ncclInvalidArgument, 4);
IS(ncclInvalidUsage, 5);
IS(ncclRemoteError, 6);
IS(ncclInProgress, 7);
IS(ncclTimeout, 8);
IS(ncclNumResults, 9);

/* Operators. */
IS(sizeof(ncclRedOp_t), 4);
IS(ncclSum, 0);
IS(ncclProd, 1);
IS(ncclMax, 2);
IS(ncclMin, 3);
IS(ncclAvg, 4);
IS(ncclNumOps, 5);
IS(ncclMaxRedOp, 0x7fffffff);

/* Types. */
IS(sizeof(ncclDataType_t), 4);
IS(ncclInt8, 0);
IS(ncclChar, 0);
IS(ncclUint8, 1);
IS(ncclInt32, 2);
IS(ncclInt, 2);
IS(ncclUint32, 3);
IS(ncclInt64, 4);
IS(ncclUint64, 5);
IS(ncclFloat16, 6);
IS(ncclHalf, 6);
IS(ncclFloat32, 7);
IS(ncclFloat, 7);
IS(ncclFloat64, 8);
IS(ncclDouble, 8);
IS(ncclBfloat16, 9);
IS(ncclFloat8e4m3, 10);
IS(ncclFloat8e5m2, 11);
IS(ncclNumTypes, 12);

IS(sizeof(ncclScalarResidence_t), 4);
IS(ncclScalarDevice, 0);
IS(ncclScalarHostImmediate, 1);

/* The id, passed by value. */
IS(NCCL_UNIQUE_ID_BYTES, 128);
IS(sizeof(ncclUniqueId), 128);
IS(_Alignof(ncclUniqueId), 1);

/* Constants. */
IS(NCCL_CONFIG_UNDEF_INT, INT_MIN);
IS(NCCL_SPLIT_NOCOLOR, -1);
IS(NCCL_WIN_DEFAULT, 0);
IS(NCCL_WIN_COLL_SYMMETRIC, 1);
IS(NCCL_WIN_STRICT_ORDERING, 2);
IS(NCCL_WIN_GIN_ONLY, 4);
IS(NCCL_WIN_CFT_COUNTED, 8);
IS(NCCL_WIN_REQUIRED_ALIGNMENT, 4096);
IS(NCCL_API_MAGIC, 0xcafebeef);
IS(ncclHostCftFallback, 3);
IS(ncclNvlsHostModeDisable, INT_MAX);
IS(NCCL_CTA_POLICY_DEFAULT, 0);
IS(NCCL_CTA_POLICY_EFFICIENCY, 1);
IS(NCCL_CTA_POLICY_ZERO, 2);
IS(NCCL_SHRINK_DEFAULT, 0);
IS(NCCL_SHRINK_ABORT, 1);
IS(NCCL_REVOKE_DEFAULT, 0);

/* The configuration. */
AT(ncclConfig_t, size, 0);
IS(sizeof(((ncclConfig_t *)0)->size), 8);
AT(ncclConfig_t, magic, 8);
AT(ncclConfig_t, version, 12);
AT(ncclConfig_t, blocking, 16);
AT(ncclConfig_t, cgaClusterSize, 20);
AT(ncclConfig_t, minCTAs, 24);
AT(ncclConfig_t, maxCTAs, 28);
AT(ncclConfig_t, netName, 32);
AT(ncclConfig_t, splitShare, 40);
AT(ncclConfig_t, trafficClass, 44);
AT(ncclConfig_t, commName, 48);
AT(ncclConfig_t, collnetEnable, 56);
AT(ncclConfig_t, CTAPolicy, 60);
AT(ncclConfig_t, shrinkShare, 64);
AT(ncclConfig_t, nvlsCTAs, 68);
AT(ncclConfig_t, nChannelsPerNetPeer, 72);
AT(ncclConfig_t, nvlinkCentricSched, 76);
AT(ncclConfig_t, graphUsageMode, 80);
AT(ncclConfig_t, numRmaCtx, 84);
AT(ncclConfig_t, maxP2pPeers, 88);
AT(ncclConfig_t, graphStreamOrdering, 92);
AT(ncclConfig_t, launchOrderImplicit, 96);
AT(ncclConfig_t, numRmaSig, 100);
AT(ncclConfig_t, rmaEagerInit, 104);
AT(ncclConfig_t, hostCftMode, 108);
AT(ncclConfig_t, nvlsHostMode, 112);
IS(sizeof(ncclConfig_t), 120);

AT(ncclSimInfo_t, size, 0);
AT(ncclSimInfo_t, magic, 8);
AT(ncclSimInfo_t, version, 12);
AT(ncclSimInfo_t, estimatedTime, 16);
IS(sizeof(ncclSimInfo_t), 24);

/* Of later versions. */
AT(ncclCollConfig_t, ext, 16);
AT(ncclCollConfig_t, minCTAs, 24);
AT(ncclCollConfig_t, maxCTAs, 28);
AT(ncclCollConfig_t, nvlsCTAs, 32);
AT(ncclCollConfig_t, cgaClusterSize, 36);
AT(ncclCollConfig_t, algSelection, 40);
AT(ncclCollConfig_t, forceAlgSelection, 48);
AT(ncclCollConfig_t, CTAPolicy, 52);
AT(ncclCollConfig_t, userProfilerTag, 56);
AT(ncclCollConfig_t, launchCompletionEvent, 64);
IS(sizeof(ncclCollConfig_t), 72);
AT(ncclCommProperties_t, rank, 16);
AT(ncclCommProperties_t, nRanks, 20);
AT(ncclCommProperties_t, cudaDev, 24);
AT(ncclCommProperties_t, nvmlDev, 28);
AT(ncclCommProperties_t, deviceApiSupport, 32);
AT(ncclCommProperties_t, multimemSupport, 33);
AT(ncclCommProperties_t, ginType, 36);
AT(ncclCommProperties_t, nLsaTeams, 40);
AT(ncclCommProperties_t, hostRmaSupport, 44);
AT(ncclCommProperties_t, railedGinType, 48);
AT(ncclCommProperties_t, commHash, 56);
AT(ncclCommProperties_t, ginMinStride, 64);
AT(ncclCommProperties_t, ginConnectionType, 68);
AT(ncclCommProperties_t, ginSupport, 72);
AT(ncclCommProperties_t, devCommRuntimeVersionSize, 136);
AT(ncclCommProperties_t, cftSupport, 144);
IS(sizeof(ncclCommProperties_t), 152);
AT(ncclEncryptionConfig_t, mode, 16);
AT(ncclEncryptionConfig_t, psk, 24);
IS(sizeof(ncclEncryptionConfig_t), 32);
AT(ncclWaitSignalDesc_t, opCnt, 0);
AT(ncclWaitSignalDesc_t, ctx, 12);
IS(sizeof(ncclWaitSignalDesc_t), 16);
IS(sizeof(ncclMultimemHandle_t), 8);
IS(ncclStatGpuMemTotal, 3);

IS(sizeof(ncclTeam_t), 12);
IS(sizeof(ncclComm_t), 8);
IS(sizeof(ncclWindow_t), 8);
IS(sizeof(cudaStream_t), 8);

TEST(config_initializer) {
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  ck_assert_uint_eq(c.size, 120);
  ck_assert_uint_eq(c.magic, 0xcafebeef);
  ck_assert_uint_eq(c.version, 23203);
  const int fields[] = {c.blocking,
                        c.cgaClusterSize,
                        c.minCTAs,
                        c.maxCTAs,
                        c.splitShare,
                        c.trafficClass,
                        c.collnetEnable,
                        c.CTAPolicy,
                        c.shrinkShare,
                        c.nvlsCTAs,
                        c.nChannelsPerNetPeer,
                        c.nvlinkCentricSched,
                        c.graphUsageMode,
                        c.numRmaCtx,
                        c.maxP2pPeers,
                        c.graphStreamOrdering,
                        c.launchOrderImplicit,
                        c.numRmaSig,
                        c.rmaEagerInit,
                        c.hostCftMode,
                        c.nvlsHostMode};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) ck_assert_int_eq(fields[i], INT_MIN);
  ck_assert_ptr_null(c.netName);
  ck_assert_ptr_null(c.commName);
}

TEST(sim_info_initializer) {
  ncclSimInfo_t s = NCCL_SIM_INFO_INITIALIZER;
  ck_assert_uint_eq(s.size, 24);
  ck_assert_uint_eq(s.magic, 0x74685283);
  ck_assert_uint_eq(s.version, 23203);
  ck_assert(s.estimatedTime == -1.0f);
}

int main(void) { return suite_main("abi"); }
