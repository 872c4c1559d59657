/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl.h
 * The NCCL API, version 2.28.9, as Hocket implements it.  Names, values and layouts match NCCL's; the text is Hocket's own.
 *
 * Works with and without the CUDA headers: where <cuda_runtime.h> can be found it is included (clients of NCCL rely on
 * that), otherwise cudaStream_t is declared here with the same type.  Define HOCKET_NO_CUDA_HEADERS to never include it.
 *
 * On a machine without a CUDA driver all buffers are ordinary host memory, and a stream is NULL (the call, or the end of
 * its group, returns when the operation is complete) or a hocketStream_t from hocket.h.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h> /* INT_MIN */
#include <stddef.h> /* size_t */

#if !defined(HOCKET_NO_CUDA_HEADERS) && defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#define NCCL_HAS_CUDA_HEADERS_ 1
#endif
#endif
#ifndef NCCL_HAS_CUDA_HEADERS_
typedef struct CUstream_st *cudaStream_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z)                                                                                          \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
/** Names a communicator that is being created; opaque, carries a secret.  Passed by value. */
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /**< a CUDA call failed */
  ncclSystemError = 2,        /**< an operating system call failed */
  ncclInternalError = 3,      /**< a fault of the library itself */
  ncclInvalidArgument = 4,    /**< a wrong argument; nothing was done */
  ncclInvalidUsage = 5,       /**< a call at the wrong time, or a feature that is not there */
  ncclRemoteError = 6,        /**< a peer or the network failed */
  ncclInProgress = 7,         /**< nonblocking communicators: not finished yet */
  ncclNumResults = 8
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_UNDEF_FLOAT (-1.0f)

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /**< end the parent's operations first */

#define NCCL_REVOKE_DEFAULT 0x00

/** Options of one communicator.  Start from NCCL_CONFIG_INITIALIZER; a field left undefined takes its default. */
typedef struct ncclConfig_v22800 {
  size_t size;          /**< set by the initializer: the size that the caller was compiled with */
  unsigned int magic;   /**< set by the initializer */
  unsigned int version; /**< set by the initializer */
  int blocking;         /**< 1 (default): calls block; 0: they may return ncclInProgress */
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName; /**< name of the network provider to use */
  int splitShare;
  int trafficClass;
  const char *commName; /**< a name for logs */
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                        \
  {                                                                                                                    \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_CONFIG_UNDEF_INT,         \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT                                                                                          \
  }

typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /**< microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                                                      \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_UNDEF_FLOAT }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /**< operators made by ncclRedOpCreatePreMulSum are numbered from here */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * (int)sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

/* Device API: declared so that programs link; see docs/status.md for what works. */
typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

/* Every function exists twice: ncclX, weak, for tools to interpose, and pncclX, the same function.  The list below names
 * each once; NCCL_DECLARE_ makes both declarations. */
#define NCCL_DECLARE_(ret, name, params)                                                                               \
  ret name params;                                                                                                     \
  ret p##name params

/** Memory that peers can reach without copies through staging buffers.  On a CPU: shareable pages, 4096-aligned. */
NCCL_DECLARE_(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size));
NCCL_DECLARE_(ncclResult_t, ncclMemFree, (void *ptr));

/** NCCL_VERSION_CODE of the loaded library. */
NCCL_DECLARE_(ncclResult_t, ncclGetVersion, (int *version));
/** Makes an id for ncclCommInitRank; one process calls it and gives the id to all others. */
NCCL_DECLARE_(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *uniqueId));

/** Creates one rank of a communicator.  Collective over all nranks callers; in one thread, wrap several in a group. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitRank, (ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank));
NCCL_DECLARE_(ncclResult_t, ncclCommInitRankConfig,
              (ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config));
/** As ncclCommInitRankConfig with several ids, whose roots share the work of a large start. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitRankScalable,
              (ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config));
/** All ndev ranks of a communicator in this process; devlist may be NULL. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitAll, (ncclComm_t *comms, int ndev, const int *devlist));
NCCL_DECLARE_(ncclResult_t, ncclCommFinalize, (ncclComm_t comm));
NCCL_DECLARE_(ncclResult_t, ncclCommDestroy, (ncclComm_t comm));
/** Ends all operations of the communicator at once and frees it; may be called from any thread. */
NCCL_DECLARE_(ncclResult_t, ncclCommAbort, (ncclComm_t comm));
NCCL_DECLARE_(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags));
NCCL_DECLARE_(ncclResult_t, ncclCommSplit,
              (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config));
NCCL_DECLARE_(ncclResult_t, ncclCommShrink,
              (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm, ncclConfig_t *config,
               int shrinkFlags));
NCCL_DECLARE_(const char *, ncclGetErrorString, (ncclResult_t result));
/** The text of the last error: cause, peer, place, what to do.  comm may be NULL. */
NCCL_DECLARE_(const char *, ncclGetLastError, (ncclComm_t comm));
NCCL_DECLARE_(void, ncclResetDebugInit, (void));
NCCL_DECLARE_(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError));
NCCL_DECLARE_(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count));
NCCL_DECLARE_(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device));
NCCL_DECLARE_(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank));
NCCL_DECLARE_(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle));
NCCL_DECLARE_(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle));
NCCL_DECLARE_(ncclResult_t, ncclCommWindowRegister,
              (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags));
NCCL_DECLARE_(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));

/** An operator that multiplies each rank's input by scalar, then sums. */
NCCL_DECLARE_(ncclResult_t, ncclRedOpCreatePreMulSum,
              (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
               ncclComm_t comm));
NCCL_DECLARE_(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* Collectives.  Counts are elements.  count elements in, count out on root. */
NCCL_DECLARE_(ncclResult_t, ncclReduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
               ncclComm_t comm, cudaStream_t stream));
/** Broadcast in place: buff is root's input and everybody's output. */
NCCL_DECLARE_(ncclResult_t, ncclBcast,
              (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream));
NCCL_DECLARE_(ncclResult_t, ncclBroadcast,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
NCCL_DECLARE_(ncclResult_t, ncclAllReduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream));
/** nranks * recvcount elements in, recvcount out: block r of the reduction goes to rank r. */
NCCL_DECLARE_(ncclResult_t, ncclReduceScatter,
              (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream));
/** sendcount elements in, nranks * sendcount out, in rank order. */
NCCL_DECLARE_(ncclResult_t, ncclAllGather,
              (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream));
/** nranks * count elements in and out: block p of rank r becomes block r of rank p. */
NCCL_DECLARE_(ncclResult_t, ncclAlltoAll,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream));
NCCL_DECLARE_(ncclResult_t, ncclGather,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
NCCL_DECLARE_(ncclResult_t, ncclScatter,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
/** Point to point.  Sends and receives that must progress together belong in one group. */
NCCL_DECLARE_(ncclResult_t, ncclSend,
              (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
               cudaStream_t stream));
NCCL_DECLARE_(ncclResult_t, ncclRecv,
              (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream));

NCCL_DECLARE_(ncclResult_t, ncclGroupStart, (void));
NCCL_DECLARE_(ncclResult_t, ncclGroupEnd, (void));
NCCL_DECLARE_(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo));

/* Device API. */
NCCL_DECLARE_(ncclResult_t, ncclDevCommCreate, (ncclComm_t, ncclDevCommRequirements_t const *, ncclDevComm_t *));
NCCL_DECLARE_(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, ncclDevComm_t const *));
NCCL_DECLARE_(ncclTeam_t, ncclTeamWorld, (ncclComm_t));
NCCL_DECLARE_(ncclTeam_t, ncclTeamLsa, (ncclComm_t));
NCCL_DECLARE_(ncclTeam_t, ncclTeamRail, (ncclComm_t));
NCCL_DECLARE_(int, ncclTeamRankToWorld, (ncclComm_t, ncclTeam_t, int rank));
NCCL_DECLARE_(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t, int rank));
NCCL_DECLARE_(ncclResult_t, ncclLsaBarrierCreateRequirement,
              (ncclTeam_t, int nBarriers, ncclLsaBarrierHandle_t *, ncclDevResourceRequirements_t *));
NCCL_DECLARE_(ncclResult_t, ncclGinBarrierCreateRequirement,
              (ncclComm_t, ncclTeam_t, int nBarriers, ncclGinBarrierHandle_t *, ncclDevResourceRequirements_t *));
NCCL_DECLARE_(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize));
NCCL_DECLARE_(ncclResult_t, ncclLLA2ACreateRequirement,
              (int nBlocks, int nSlots, ncclLLA2AHandle_t *, ncclDevResourceRequirements_t *));

#undef NCCL_DECLARE_

#ifdef __cplusplus
}
#endif
#endif /* NCCL_H_ */
