/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl.h
 * The NCCL API, version 2.32.3, as Hocket implements it.  Names, values and layouts match NCCL's; the text is Hocket's.
 * Programs that were compiled with any header since 2.14 work, too: a structure says which version it is of.
 *
 * Works with and without the CUDA headers: <cuda_runtime.h> is included if it can be found (clients of NCCL rely on
 * that), otherwise cudaStream_t is declared here with the same type.  HOCKET_NO_CUDA_HEADERS prevents the include.
 *
 * On a machine without a CUDA driver all buffers are ordinary host memory, and a stream is NULL (the call, or the end
 * of its group, returns when the operation is complete) or a hocketStream_t from hocket.h.
 *
 * What holds for every function, unless its own text says otherwise:
 *
 * Errors.   A call that returns ncclInvalidArgument has done nothing, and the communicator stays usable.
 *           ncclInvalidUsage is a call at the wrong time, or one that differs between ranks.  After any other error of
 *           an operation the communicator is failed: every later operation returns an error.  ncclCommAbort,
 *           ncclCommDestroy, ncclCommShrink and the questions about it are still allowed.  ncclGetLastError gives the
 *           cause in words.
 * Threads.  Different communicators may be used by different threads at the same time.  One communicator is used by one
 *           thread at a time; the calls that any thread may make at any time say so.
 * Groups.   "Group: yes" means that the call is allowed between ncclGroupStart and ncclGroupEnd and takes effect at the
 *           end of the outermost group.  "Group: at once" means that it is allowed there and takes effect immediately.
 * Capture.  "Capture: yes" means that on GPUs the call may be made while its stream is captured into a CUDA graph.
 * Nonblocking.  With blocking = 0 in ncclConfig_t the calls that create or change a communicator may return
 *           ncclInProgress; ncclCommGetAsyncError then reports when they are complete.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h> /* INT_MIN */
#include <stddef.h> /* size_t */
#include <stdint.h> /* int64_t */

#if !defined(HOCKET_NO_CUDA_HEADERS) && defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define NCCL_HAS_CUDA_HEADERS_ 1
#endif
#endif
#ifndef NCCL_HAS_CUDA_HEADERS_
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23203
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#ifdef __cplusplus
#define NCCL_BOOL_ bool
extern "C" {
#else
#define NCCL_BOOL_ _Bool
#endif

/** One rank's handle of a communicator. */
typedef struct ncclComm *ncclComm_t;
/** A registered window: see ncclCommWindowRegister. */
typedef struct ncclWindow_vidmem *ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
/** Names a communicator that is being created; opaque, carries a secret.  Passed by value. */
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES]; /**< addresses of the process that made it, and the secret */
} ncclUniqueId;

/** The result of a call. */
typedef enum {
  ncclSuccess = 0,            /**< done, or enqueued */
  ncclUnhandledCudaError = 1, /**< a CUDA call failed */
  ncclSystemError = 2,        /**< an operating system call failed on this rank */
  ncclInternalError = 3,      /**< a fault of the library itself */
  ncclInvalidArgument = 4,    /**< a wrong argument; nothing was done */
  ncclInvalidUsage = 5,       /**< a call at the wrong time or unlike other ranks', or a feature that is not there */
  ncclRemoteError = 6,        /**< another rank or the network failed */
  ncclInProgress = 7,         /**< nonblocking communicators: not finished yet */
  ncclTimeout = 8,            /**< waits of device code only: no function of this header returns it */
  ncclNumResults = 9
} ncclResult_t;

#define NCCL_API_MAGIC 0xcafebeef /**< magic of the structures below except ncclSimInfo_t */

#define NCCL_CONFIG_UNDEF_INT INT_MIN /**< an int field of ncclConfig_t that is not set */
#define NCCL_CONFIG_UNDEF_PTR NULL    /**< a pointer field of ncclConfig_t that is not set */
#define NCCL_SPLIT_NOCOLOR (-1)       /**< ncclCommSplit: this rank gets no communicator */
#define NCCL_UNDEF_FLOAT (-1.0f)      /**< a float of ncclSimInfo_t that is not set */

#define NCCL_WIN_DEFAULT 0x00            /**< a window of this rank's own memory */
#define NCCL_WIN_COLL_SYMMETRIC 0x01     /**< all ranks register the same size: zero copy between them */
#define NCCL_WIN_STRICT_ORDERING 0x02    /**< writes arrive in order; always so */
#define NCCL_WIN_GIN_ONLY 0x04           /**< for the network of device code alone; not with COLL_SYMMETRIC */
#define NCCL_WIN_CFT_COUNTED 0x08        /**< for counted CFT, which does not exist here: refused */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096 /**< bytes; of a window's address */

#define NCCL_CTA_POLICY_DEFAULT 0x00    /**< as many blocks as speed asks for */
#define NCCL_CTA_POLICY_EFFICIENCY 0x01 /**< fewer blocks if that costs little */
#define NCCL_CTA_POLICY_ZERO 0x02       /**< no blocks if copy engines can do the work */

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /**< end the parent's operations first */

#define NCCL_REVOKE_DEFAULT 0x00

/** Values of ncclConfig_t.hostCftMode. */
typedef enum {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;
/** Bits of ncclConfig_t.nvlsHostMode. */
typedef enum {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

/** Options of one communicator.  Start from NCCL_CONFIG_INITIALIZER; a field left undefined takes its default.  A
 * value out of range makes the call that gets it return ncclInvalidArgument. docs/status.md lists the fields that
 * have no effect yet.
 *
 * splitShare, shrinkShare (0 or 1, default 0): a child uses its parent's service thread, and on GPUs its parent's
 * memory for small structures, so its creation costs less. It has its own links: both communicators may run at the same
 * time, and each may be destroyed, aborted or suspended independently. A child without a configuration inherits both
 * fields. A failed or revoked parent shares nothing.
 *
 * maxP2pPeers (1 or more, default all ranks): a hint.  With few peers, large sends and receives on GPUs use more
 * channels each.  The largest value of all ranks counts.  More peers than that work, and may be slower. */
typedef struct ncclConfig_v23100 {
  size_t size;             /**< set by the initializer: bytes of the structure that the caller was compiled with */
  unsigned int magic;      /**< set by the initializer: 0xcafebeef */
  unsigned int version;    /**< set by the initializer: NCCL_VERSION_CODE of the caller's header */
  int blocking;            /**< 1 (default): calls block; 0: they may return ncclInProgress */
  int cgaClusterSize;      /**< GPU blocks launched as one cluster, 0 (default: none) to 8 */
  int minCTAs;             /**< GPU blocks, or channels on the host, at least; 1 or more */
  int maxCTAs;             /**< GPU blocks, or channels on the host, at most; not below minCTAs */
  const char *netName;     /**< name of the network to use, as NCCL_NET gives it; NULL (default): the best one */
  int splitShare;          /**< 1: children of ncclCommSplit use memory and threads of this one; see above */
  int trafficClass;        /**< traffic class of RDMA packets, 0 to 255; NCCL_IB_TC is stronger */
  const char *commName;    /**< name for logs and reports; copied */
  int collnetEnable;       /**< 0 or 1: reductions in the network, if a plugin has them */
  int CTAPolicy;           /**< NCCL_CTA_POLICY_* */
  int shrinkShare;         /**< 0 or 1: as splitShare, for ncclCommShrink */
  int nvlsCTAs;            /**< GPU blocks for reductions in the NVSwitch, at most */
  int nChannelsPerNetPeer; /**< channels for sends and receives to one peer over the network */
  int nvlinkCentricSched;  /**< 0 or 1: order sends and receives by NVLink first */
  int graphUsageMode;      /**< captured graphs: 0 none, 1 one, 2 (default) several, or mixed with calls; since 2.29 */
  int numRmaCtx;           /**< contexts of one-sided operations, 0 or more; default 1; since 2.29 */
  int maxP2pPeers;         /**< peers of any rank's sends and receives at one time; see above; since 2.30 */
  int graphStreamOrdering; /**< 1 (default): captures keep the order of the communicator's calls; since 2.30.5 */
  int launchOrderImplicit; /**< 1: calls of several communicators run in the order of the calls; since 2.31 */
  int numRmaSig;           /**< signals of one-sided operations, 0 or more; default 1 */
  int rmaEagerInit;        /**< 1: one-sided operations are set up at init, not by the first window */
  int hostCftMode;         /**< ncclHostCftMode_t */
  int nvlsHostMode;        /**< ncclNvlsHostMode_t: what not to do in the NVSwitch */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                        \
  {                                                                                                                    \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,             \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                    \
        NCCL_CONFIG_UNDEF_INT                                                                                          \
  }

/** The answer of ncclGroupSimulateEnd.  Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_v22200 {
  size_t size;          /**< set by the initializer: bytes of the structure */
  unsigned int magic;   /**< set by the initializer */
  unsigned int version; /**< set by the initializer */
  float estimatedTime;  /**< microseconds for all calls of the group */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                                                      \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
/** Reduction operators; docs/numerics.md says how each type rounds. */
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,    /**< NaN if any input is NaN */
  ncclMin = 3,    /**< NaN if any input is NaN */
  ncclAvg = 4,    /**< the sum divided by the number of ranks; integers truncate towards zero */
  ncclNumOps = 5, /**< operators made by ncclRedOpCreatePreMulSum are numbered from here */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * (int)sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

/** Element types. */
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
  ncclFloat8e4m3 = 10, /**< no infinities; results saturate at 448 */
  ncclFloat8e5m2 = 11, /**< results saturate at 57344 */
  ncclNumTypes = 12
} ncclDataType_t;

/** Where the scalar of ncclRedOpCreatePreMulSum lies. */
typedef enum {
  ncclScalarDevice = 0,       /**< in memory that the communicator's device reads when an operation runs */
  ncclScalarHostImmediate = 1 /**< in host memory, read during the call */
} ncclScalarResidence_t;

/* Device API: see below and docs/device-api.md. */

/** A subset of a communicator's ranks: nRanks of them, `stride` apart; this rank is number `rank`. */
typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

/* Every function exists twice: ncclX, weak, for tools to interpose, and pncclX, the same function.  The list below
 * names each once; NCCL_DECLARE_ makes both declarations. */
#define NCCL_DECLARE_(ret, name, params)                                                                               \
  ret name params;                                                                                                     \
  ret p##name params

/* ---- memory ---- */

/** Allocates `size` bytes that peers can reach without a copy through staging buffers: on a GPU memory of the
 * current device, on the host shareable pages.  Aligned to 4096 at least.  A size of 0 gives NULL.  Errors:
 * ncclInvalidArgument (ptr NULL), ncclSystemError or ncclUnhandledCudaError (no memory).  Any thread, any time.
 * Group: at once.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size));
/** Frees memory of ncclMemAlloc; NULL is ignored.  No operation may still use it.  Errors: ncclInvalidArgument (another
 * address).  Any thread, any time.  Group: at once.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclMemFree, (void *ptr));

/* ---- versions and errors ---- */

/** Sets *version to the NCCL_VERSION_CODE of the loaded library.  Errors: ncclInvalidArgument (version NULL).  Any
 * thread. */
NCCL_DECLARE_(ncclResult_t, ncclGetVersion, (int *version));
/** The name of a result code in words; never NULL, not to be freed.  Any thread. */
NCCL_DECLARE_(const char *, ncclGetErrorString, (ncclResult_t result));
/** The text of the newest error: what failed, with whom, the cause, what to do.  With a communicator: the failure
 * that ended it, if there is one; comm may be NULL.  Never NULL; valid until the thread's next error.  Any thread,
 * any time. */
NCCL_DECLARE_(const char *, ncclGetLastError, (ncclComm_t comm));
/** Reads NCCL_DEBUG and its relatives again.  Any thread. */
NCCL_DECLARE_(void, ncclResetDebugInit, (void));

/* ---- communicators ---- */

/** Makes an id for ncclCommInitRank.  One process calls it and gives the id to all ranks; that process must run
 * until all have joined.  An id serves for one communicator.  Errors: ncclInvalidArgument (uniqueId NULL),
 * ncclSystemError (no address to listen on).  Any thread.  Group: at once.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * uniqueId));

/** Creates rank `rank` (0 to nranks - 1) of a communicator of `nranks` ranks, on the current device.  Collective:
 * returns when all ranks have called it with the same id and nranks.  A thread that makes several ranks wraps the
 * calls in a group.  Errors: ncclInvalidArgument (NULL, a rank or number out of range, a damaged id),
 * ncclInvalidUsage (ranks disagree), ncclRemoteError (a rank is missing after HOCKET_BOOTSTRAP_TIMEOUT, or failed),
 * ncclSystemError; on error *comm is NULL.  Group: yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
/** As ncclCommInitRank, with options; config may be NULL.  Group: yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitRankConfig,
              (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config));
/** As ncclCommInitRankConfig with nId ids (1 to nranks), whose processes share the work of a large start.  All ranks
 * give the same ids in the same order.  Group: yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitRankScalable,
              (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config));
/** Creates all `ndev` ranks of a communicator in this process: comms[i] is rank i on device devlist[i], or on device
 * i if devlist is NULL.  Errors: ncclInvalidArgument (a device that is not there).  Group: yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommInitAll, (ncclComm_t * comms, int ndev, const int *devlist));
/** Waits until all operations of this rank are complete; afterwards only ncclCommDestroy, ncclCommAbort and
 * questions are allowed.  Errors: ncclInvalidUsage (the communicator is failed or not ready).  Group: see
 * docs/recovery.md.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommFinalize, (ncclComm_t comm));
/** Waits until the operations of this rank are complete, leaves, and frees.  Not collective; NULL is ignored.  Errors:
 * ncclInvalidArgument (no communicator, or one that is destroyed already).  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommDestroy, (ncclComm_t comm));
/** Ends all operations of the communicator at once, informs the other ranks, and frees.  Not collective; NULL is
 * ignored.  Any thread, any time, also while another thread is in a call with the communicator.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommAbort, (ncclComm_t comm));
/** Ends the operations of the communicator and refuses new ones.  It can still be shrunk, destroyed and aborted:
 * docs/recovery.md.  revokeFlags: NCCL_REVOKE_DEFAULT, else ncclInvalidArgument.  Any thread.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags));
/** Divides a communicator: ranks with the same color (0 or more) form a new one, ordered by (key, old rank).  With
 * NCCL_SPLIT_NOCOLOR a rank takes part and *newcomm is NULL.  Collective over comm; comm stays usable. config NULL:
 * defaults.  Errors: ncclInvalidArgument (NULL, a bad color), ncclInvalidUsage (comm is failed or not ready),
 * ncclRemoteError.  Group: yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommSplit,
              (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config));
/** Makes a communicator of all ranks but the excluded ones, which do not call.  Works after ranks have died.  All
 * callers give the same list. shrinkFlags: NCCL_SHRINK_DEFAULT (comm must be healthy or revoked), NCCL_SHRINK_ABORT
 * (ends its operations first).  Errors: ncclInvalidArgument (a bad list, a rank named twice, the caller itself),
 * ncclInvalidUsage, ncclRemoteError.  Group: yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommShrink,
              (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm, ncclConfig_t *config,
               int shrinkFlags));
/** Makes an id with which new ranks join the ranks of `comm` in ncclCommGrow.  One rank of comm calls it, once for each
 * growth, and gives the id to the new ranks.  Errors: ncclInvalidArgument, ncclInvalidUsage (NCCL_COMM_ID is set; an id
 * of this communicator is not used yet; comm is failed or not ready).  Since 2.29.  Group: at once.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId));
/** Makes a communicator of all ranks of `comm` and new ones, nRanks in all.  A rank of comm gives comm, rank -1, and
 * keeps its number; uniqueId is not needed.  A new rank gives comm NULL, the id of ncclCommGetUniqueId, and its number:
 * from the size of comm to nRanks - 1.  Collective over all nRanks ranks; comm stays usable.  config NULL: a rank of
 * comm takes comm's options, a new rank the defaults.  Errors: ncclInvalidArgument (nRanks not above the size of comm,
 * a bad rank, no id), ncclInvalidUsage (ranks disagree, or no rank made an id), ncclRemoteError.  Since 2.29.  Group:
 * yes.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommGrow,
              (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
               ncclConfig_t *config));
/** Sets *asyncError to ncclInProgress while a nonblocking call is under way, to ncclSuccess, or to the code of the
 * failure that ended the communicator.  Never blocks.  Any thread, any time.  Group: at once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError));
/** Sets *count to the number of ranks.  Errors: ncclInvalidArgument, ncclInvalidUsage (init is not complete).  Any
 * thread.  Group: at once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count));
/** Sets *device to the CUDA device of this rank; 0 on host memory.  Otherwise as ncclCommCount. */
NCCL_DECLARE_(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device));
/** Sets *rank to this rank's number.  Otherwise as ncclCommCount. */
NCCL_DECLARE_(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank));

#define NCCL_SUSPEND_MEM 0x01 /**< ncclCommSuspend: release memory */
/** Releases memory until ncclCommResume: on GPUs the memory of links and scratch space. Its addresses stay reserved, so
 * captured graphs and windows stay valid. On host memory it releases nothing. Collective; no operation may be under
 * way, and until ncclCommResume operations return ncclInvalidUsage. flags: NCCL_SUSPEND_MEM; others are ignored.
 * Errors: ncclInvalidArgument, ncclInvalidUsage (suspended already), ncclRemoteError. Since 2.29.7. Group: yes.
 * Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags));
/** Allocates the memory of a suspended communicator again. Collective. Errors: as ncclCommSuspend, ncclInvalidUsage
 * (not suspended), ncclUnhandledCudaError (no memory: the communicator is failed). Since 2.29.7. Group: yes. Capture:
 * no. */
NCCL_DECLARE_(ncclResult_t, ncclCommResume, (ncclComm_t comm));
/** What ncclCommMemStats counts. */
typedef enum {
  ncclStatGpuMemSuspend = 0,   /**< bytes of GPU memory that ncclCommSuspend would release */
  ncclStatGpuMemSuspended = 1, /**< 1: the communicator is suspended */
  ncclStatGpuMemPersist = 2,   /**< bytes of GPU memory that ncclCommSuspend keeps */
  ncclStatGpuMemTotal = 3      /**< bytes of GPU memory in all */
} ncclCommMemStat_t;
/** Sets *value to a statistic of this rank's communicator; on host memory there is no GPU memory.  Errors:
 * ncclInvalidArgument.  Since 2.29.7.  Group: at once. */
NCCL_DECLARE_(ncclResult_t, ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value));

/** The mode of ncclSetEncryption. */
typedef enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;
/** The argument of ncclSetEncryption.  Start from NCCL_ENCRYPTION_CONFIG_INITIALIZER. */
typedef struct ncclEncryptionConfig_v23200 {
  size_t size;          /**< set by the initializer */
  unsigned int magic;   /**< set by the initializer */
  unsigned int version; /**< set by the initializer */
  int mode;             /**< ncclEncryptionMode_t */
  const char *psk;      /**< the key that all processes share, 32 characters or more */
} ncclEncryptionConfig_t;
#define NCCL_ENCRYPTION_CONFIG_INITIALIZER                                                                             \
  { sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, NULL }
/** Sets the process's encryption of connections between ranks (docs/encryption.md), before its first unique id.  config
 * NULL or NCCL_ENCRYPTION_MODE_NONE: none, the default.  NCCL_ENCRYPTION_MODE_PSK: TLS with the key psk.  Errors:
 * ncclInvalidArgument, ncclInvalidUsage (communicators or unique ids use another key).  Since 2.32. */
NCCL_DECLARE_(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t *config));

/* ---- registered memory ---- */

/** Registers [buff, buff + size) of this rank, so that operations may move it without a copy.  Not collective.
 * *handle is for ncclCommDeregister.  Errors: ncclInvalidArgument.  Any thread.  Group: at once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle));
/** Ends a registration; takes handles of windows too; NULL is ignored.  No operation may still use the memory.  Errors:
 * ncclInvalidArgument (an unknown handle).  Any thread.  Group: at once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle));
/** Registers memory of all ranks as a window.  Collective over comm.  With NCCL_WIN_COLL_SYMMETRIC all ranks give
 * the same size, and buff lies on a multiple of NCCL_WIN_REQUIRED_ALIGNMENT.  On GPUs *win is for kernels, too, and
 * NULL if some rank's memory is not of ncclMemAlloc or cuMemCreate.  Errors: ncclInvalidArgument.  Group: *win is set
 * at its end.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommWindowRegister,
              (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags));
/** Sets *outUserPtr to the address with which this rank registered the window.  Errors: ncclInvalidArgument.  Since
 * 2.29.  Any thread.  Group: at once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr));
/** Ends a window of this rank; NULL is ignored.  No operation may still use the memory.  Errors: ncclInvalidArgument
 * (an unknown window).  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));

/* ---- operators ---- */

/** Makes an operator that multiplies each rank's input by its scalar, then sums. `scalar` points to one element of
 * `datatype`; each rank may give another value.  For this communicator and type only; at most 64 at a time.  Errors:
 * ncclInvalidArgument, ncclInvalidUsage (no operator left).  Group: at once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclRedOpCreatePreMulSum,
              (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
               ncclComm_t comm));
/** Ends an operator; operations that were enqueued with it still complete.  Errors: ncclInvalidArgument.  Group: at
 * once.  Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* ---- collectives ---- All ranks make the same call with the same count, datatype, op and root; ranks that differ
 * are named and all get ncclInvalidUsage.  Counts are elements of `datatype`.  A count of 0 is a call without
 * effect.  Buffers that share memory, of n ranks with `count` elements a block:
 *
 *     AllReduce, Broadcast, Reduce   in place: sendbuff == recvbuff
 *     AllGather, Gather              in place: sendbuff == recvbuff + rank * count
 *     ReduceScatter, Scatter         in place: recvbuff == sendbuff + rank * count
 *     AlltoAll                       in place: sendbuff == recvbuff; the input is copied first (n * count elements)
 *     any other overlap              ncclInvalidArgument: the result would depend on time
 *
 * A rank that is not the root of Reduce, Broadcast, Gather or Scatter uses one buffer, and the other one is ignored.
 * Buffers need no alignment beyond their type's. Errors: ncclInvalidArgument (NULL with a count, a bad type, operator
 * or root), ncclInvalidUsage (ranks disagree; memory of the wrong device), ncclRemoteError, ncclSystemError,
 * ncclUnhandledCudaError. Group: yes. Capture: yes. */

/** Reduces `count` elements of all ranks into recvbuff on `root`; recvbuff is not used elsewhere.  In place:
 * sendbuff == recvbuff on root. */
NCCL_DECLARE_(ncclResult_t, ncclReduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
               ncclComm_t comm, cudaStream_t stream));
/** Broadcast in place: buff is the input on `root` and the output on every other rank. */
NCCL_DECLARE_(ncclResult_t, ncclBcast,
              (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream));
/** Copies `count` elements of sendbuff on `root` to recvbuff on all ranks; sendbuff is not used elsewhere.  In
 * place: sendbuff == recvbuff. */
NCCL_DECLARE_(ncclResult_t, ncclBroadcast,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
/** Reduces `count` elements of all ranks into recvbuff on all ranks; all get the same bits.  In place: sendbuff ==
 * recvbuff. */
NCCL_DECLARE_(ncclResult_t, ncclAllReduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream));
/** Reduces nranks * recvcount elements of all ranks; block r of the result (recvcount elements) goes to rank r.  In
 * place: recvbuff == sendbuff + rank * recvcount. */
NCCL_DECLARE_(ncclResult_t, ncclReduceScatter,
              (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream));
/** Concatenates sendcount elements of each rank, in rank order, in recvbuff (nranks * sendcount elements) on all
 * ranks.  In place: sendbuff == recvbuff + rank * sendcount. */
NCCL_DECLARE_(ncclResult_t, ncclAllGather,
              (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream));
/** nranks * count elements in and out: block p of rank r (count elements) becomes block r of rank p.  In place:
 * sendbuff == recvbuff; the library then copies the input, and keeps the memory for that with the communicator. */
NCCL_DECLARE_(ncclResult_t, ncclAlltoAll,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream));
/** Concatenates `count` elements of each rank, in rank order, in recvbuff (nranks * count elements) on `root`;
 * recvbuff is not used elsewhere.  In place: sendbuff == recvbuff + rank * count on root. */
NCCL_DECLARE_(ncclResult_t, ncclGather,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
/** Copies block r (`count` elements) of sendbuff on `root` to recvbuff on rank r; sendbuff is not used elsewhere.
 * In place: recvbuff == sendbuff + rank * count on root. */
NCCL_DECLARE_(ncclResult_t, ncclScatter,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));

/* ---- collectives with options of one call ---- (since 2.31)
 * As the call without Config; config NULL or untouched gives exactly that call.  All ranks give the same options.  An
 * environment variable is stronger than an option, and an option is stronger than the communicator's.  Errors also:
 * ncclInvalidArgument (config without its initializer, a value out of range, only algorithms that cannot run). */

/** An option that is not in ncclCollConfig_t; ignored. */
typedef struct ncclConfigExt {
  struct ncclConfigExt *next; /**< the next option, or NULL */
  struct {
    int vendorId, optionId;
  } key; /**< names the option */
  union {
    int i;
    const char *s;
    void *raw;
  } val; /**< its value */
} ncclConfigExt_t;

/** Options of one call.  Start from NCCL_COLLCONFIG_INITIALIZER. */
typedef struct ncclCollConfig_v23200 {
  size_t size;                       /**< set by the initializer */
  unsigned int magic;                /**< set by the initializer */
  unsigned int version;              /**< set by the initializer */
  ncclConfigExt_t *ext;              /**< further options; ignored */
  int minCTAs;                       /**< GPU blocks at least */
  int maxCTAs;                       /**< GPU blocks at most */
  int nvlsCTAs;                      /**< GPU blocks for reductions in the NVSwitch, at most */
  int cgaClusterSize;                /**< GPU blocks launched as one cluster */
  const char *algSelection;          /**< as "RING_LL,TREE": `,` or, `+` and, `^` not, or beginnings; NULL: any */
  int forceAlgSelection;             /**< 1 (default): a selection that cannot be met is an error; 0: optional */
  int CTAPolicy;                     /**< NCCL_CTA_POLICY_* */
  uint64_t userProfilerTag;          /**< for the profiler plugin */
  cudaEvent_t launchCompletionEvent; /**< the user's event, recorded right before the kernel; NULL: none */
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                                                    \
  {                                                                                                                    \
    sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NULL, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,   \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NULL, 1, NCCL_CONFIG_UNDEF_INT, 0, NULL                          \
  }

/** ncclReduce with options. */
NCCL_DECLARE_(ncclResult_t, ncclReduceConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclBroadcast with options. */
NCCL_DECLARE_(ncclResult_t, ncclBroadcastConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclAllReduce with options. */
NCCL_DECLARE_(ncclResult_t, ncclAllReduceConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclReduceScatter with options. */
NCCL_DECLARE_(ncclResult_t, ncclReduceScatterConfig,
              (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclAllGather with options. */
NCCL_DECLARE_(ncclResult_t, ncclAllGatherConfig,
              (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclAlltoAll with options. */
NCCL_DECLARE_(ncclResult_t, ncclAlltoAllConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclGather with options. */
NCCL_DECLARE_(ncclResult_t, ncclGatherConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config));
/** ncclScatter with options. */
NCCL_DECLARE_(ncclResult_t, ncclScatterConfig,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream, const ncclCollConfig_t *config));

/* ---- one-sided operations ---- (since 2.29; on host memory: docs/rma.md)
 * A rank writes into another rank's window and signals that rank, which makes no call for the write.  Puts and signals
 * to one peer in one context arrive in the order of their calls: once a wait for a signal has ended, the data of its
 * put and of all earlier puts has arrived.  All ranks have registered the window with NCCL_WIN_COLL_SYMMETRIC, and
 * ncclConfig_t's numRmaCtx and numRmaSig are 1 (the default) or more.  Errors: ncclInvalidArgument, also if
 * ncclCommQueryProperties gives hostRmaSupport = false; ncclInvalidUsage (no window yet; the peer's window was
 * deregistered or is smaller); ncclRemoteError.  Group: yes; the order of a group's puts and waits does not matter. */

/** Signals to wait for: opCnt of them from rank `peer`, with index sigIdx, in context ctx. */
typedef struct {
  int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
/** Writes `count` elements to byte peerWinOffset of rank peer's window, then signals it. peerWin is this rank's handle
 * of the window. localbuff may be any memory; it may be reused when the stream has passed the call (stream NULL: when
 * the call returns). A count of 0 only signals. flags is 0. */
NCCL_DECLARE_(ncclResult_t, ncclPutSignal,
              (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
               size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
/** Signals a peer, after all earlier puts to it in that context.  flags is 0. */
NCCL_DECLARE_(ncclResult_t, ncclSignal,
              (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
/** Waits until the signals of all descriptors have arrived, and consumes them: the next call waits for later ones. */
NCCL_DECLARE_(ncclResult_t, ncclWaitSignal,
              (int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream));

/* ---- point to point ----
 * Errors, Group and Capture as for collectives.  Sends and receives that must progress together belong in one group. */

/** Sends `count` elements to rank `peer`, which makes the matching ncclRecv with the same count and type.  Messages
 * between two ranks match in order.  A count of 0 must still be received. */
NCCL_DECLARE_(ncclResult_t, ncclSend,
              (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
               cudaStream_t stream));
/** Receives `count` elements from rank `peer`: see ncclSend. */
NCCL_DECLARE_(ncclResult_t, ncclRecv,
              (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream));

/* ---- groups ---- */

/** Opens a group in this thread; groups nest. */
NCCL_DECLARE_(ncclResult_t, ncclGroupStart, (void));
/** Ends a group; the end of the outermost one runs or enqueues its calls, all at the same time. If one of them was
 * refused, none runs and its error is returned. Errors: ncclInvalidUsage (no group is open in this thread), and the
 * calls' errors. Capture: yes. */
NCCL_DECLARE_(ncclResult_t, ncclGroupEnd, (void));
/** Ends the outermost group without running its calls, and estimates their time by the library's cost model; simInfo
 * may be NULL. Errors: ncclInvalidUsage (no group, or an inner one), ncclInvalidArgument (simInfo without its
 * initializer). Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo));

/* ---- parameters ---- (since 2.30)
 * The environment variables that the library knows (man hocket-parameters), with the value in force.  Any thread, any
 * time, without a GPU.  Errors: ncclInvalidArgument (NULL, an unknown key, not a handle, another type). */

/** Names a parameter; valid until the process ends. */
typedef struct ncclParamHandle *ncclParamHandle_t;
/** Sets *out to the handle of the parameter `key`, as "NCCL_DEBUG"; NULL if there is none. */
NCCL_DECLARE_(ncclResult_t, ncclParamBind, (ncclParamHandle_t * out, const char *key));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that int8_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t h, int8_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that int16_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t h, int16_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that int32_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t h, int32_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that int64_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t h, int64_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that uint8_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t h, uint8_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that uint16_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t h, uint16_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that uint32_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t h, uint32_t *out));
/** Sets *out to the value of a parameter that is a number.  Errors also: a value that uint64_t cannot hold. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t h, uint64_t *out));
/** Sets *out to the value of a parameter that is text; "" if it is not set.  Valid until the process ends. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t h, const char **out));
/** Copies a value: a number as int64_t, text with its final zero byte.  *len: bytes copied, 0 if maxLen is too
 * small. */
NCCL_DECLARE_(ncclResult_t, ncclParamGet, (ncclParamHandle_t h, void *out, int maxLen, int *len));
/** Sets *value to the value of `key` as text, valid until the thread's next call, and *valueLen to its length. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetParameter, (const char *key, const char **value, int *valueLen));
/** Sets *table to the keys of all parameters, and *tableLen to their number.  The table is the library's. */
NCCL_DECLARE_(ncclResult_t, ncclParamGetAllParameterKeys, (const char ***table, int *tableLen));
/** Prints all parameters with their values to stdout. */
NCCL_DECLARE_(void, ncclParamDumpAll, (void));

/* ---- device API ---- Users' kernels load from and store to other GPUs' memory: docs/device-api.md. NVIDIA's
 * nccl_device.h defines the structures that are only declared here. */

/** Kinds of network for kernels; none is supported. */
typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5
} ncclGinType_t;
/** Which ranks such a network joins. */
typedef enum {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;
/** Kinds of CFT teams. */
typedef enum { NCCL_CFT_TEAM_FLAT = 0, NCCL_CFT_TEAM_HIER_MULTIMEM = 1, NCCL_CFT_TEAM_HIER_LSA = 2 } ncclCftTeamMode_t;
typedef uint32_t ncclCftLeId;
/** A multicast address; empty: there is none. */
typedef struct ncclMultimemHandle {
  void *mcBasePtr; /**< where it begins */
} ncclMultimemHandle_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;

/** What a communicator supports.  Start from NCCL_COMM_PROPERTIES_INITIALIZER. */
typedef struct ncclCommProperties {
  size_t size;                               /**< set by the initializer */
  unsigned int magic;                        /**< set by the initializer */
  unsigned int version;                      /**< set by the initializer: the fields that are filled */
  int rank;                                  /**< this rank */
  int nRanks;                                /**< ranks */
  int cudaDev;                               /**< CUDA device; 0 on host memory */
  int nvmlDev;                               /**< the same device for NVML */
  NCCL_BOOL_ deviceApiSupport;               /**< kernels may communicate: on GPUs that all reach each other */
  NCCL_BOOL_ multimemSupport;                /**< multicast memory for kernels: NVLS */
  ncclGinType_t ginType;                     /**< network for kernels: NCCL_GIN_TYPE_NONE */
  int nLsaTeams;                             /**< LSA teams; on host memory each rank is one */
  NCCL_BOOL_ hostRmaSupport;                 /**< one-sided operations: on host memory */
  ncclGinType_t railedGinType;               /**< as ginType, within rails */
  uint64_t commHash;                         /**< equal on all ranks, differs between communicators */
  int ginMinStride;                          /**< 0 */
  ncclGinConnectionType_t ginConnectionType; /**< NCCL_GIN_CONNECTION_NONE */
  NCCL_BOOL_ ginSupport[64];                 /**< by ncclGinType_t: all false */
  size_t devCommRuntimeVersionSize;          /**< bytes of the library's own ncclDevComm_t */
  NCCL_BOOL_ cftSupport;                     /**< false */
  NCCL_BOOL_ cftMulticastSupport;            /**< false */
  NCCL_BOOL_ cftCountedSupport;              /**< false */
} ncclCommProperties_t;
#ifdef __cplusplus
#define NCCL_COMM_PROPERTIES_INITIALIZER                                                                               \
  { sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE }
#else
#define NCCL_COMM_PROPERTIES_INITIALIZER                                                                               \
  { .size = sizeof(ncclCommProperties_t), .magic = NCCL_API_MAGIC, .version = NCCL_VERSION_CODE }
#endif
/** Fills *props.  Errors: ncclInvalidArgument, ncclInvalidUsage (props without its initializer).  Since 2.29.  Any
 * thread. */
NCCL_DECLARE_(ncclResult_t, ncclCommQueryProperties, (ncclComm_t comm, ncclCommProperties_t *props));
/** The address at which this rank's device code reaches `offset` bytes into the window of rank `lsaRank` of the LSA
 * team. Valid until the window is deregistered.  Errors: ncclInvalidArgument (no window, offset past its end, no such
 * rank), ncclInvalidUsage (a window for the network alone).  Any thread. */
NCCL_DECLARE_(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t win, size_t offset, int lsaRank, void **outPtr));
/** The same for a rank of the communicator; NULL if it is not in the LSA team. */
NCCL_DECLARE_(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t win, size_t offset, int peer, void **outPtr));
/** The multicast address of the LSA team; NULL without NVLS.  The first call on a communicator is collective, also on a
 * rank that is refused.  Errors: as ncclGetLsaDevicePointer. */
NCCL_DECLARE_(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t win, size_t offset, void **outPtr));
/** The multicast address of a team, whose handle ncclDevCommCreate gave; NULL without NVLS. */
NCCL_DECLARE_(ncclResult_t, ncclGetMultimemDevicePointer,
              (ncclWindow_t win, size_t offset, ncclMultimemHandle_t multimem, void **outPtr));
/** There is no CFT and no GIN: returns ncclInvalidUsage. */
NCCL_DECLARE_(ncclResult_t, ncclGetMultimemDeviceLeInfo,
              (ncclWindow_t win, size_t offset, ncclCftLeId *leId, size_t *leOffset));
/** There is no CFT and no GIN: returns ncclInvalidUsage. */
NCCL_DECLARE_(ncclResult_t, ncclGetPeerDeviceLeInfo,
              (ncclWindow_t win, size_t offset, int peerWorld, ncclCftLeId *leId, size_t *leOffset));
/** There is no CFT and no GIN: returns ncclInvalidUsage. */
NCCL_DECLARE_(ncclResult_t, ncclGetCftDeviceLeInfo,
              (ncclWindow_t win, size_t offset, int peerCft, ncclTeam_t cftTeam, ncclCftLeId *leId, size_t *leOffset));
/** Ranks joined by CFT: this rank alone. */
NCCL_DECLARE_(ncclTeam_t, ncclTeamCft, (ncclComm_t, ncclCftTeamMode_t mode));
/** Ranks joined by CFT with multicast: this rank alone. */
NCCL_DECLARE_(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t));
/** There is no CFT and no GIN: returns ncclInvalidUsage. */
NCCL_DECLARE_(ncclResult_t, ncclGinOutboxCreateRequirement,
              (int nBlocks, int log2Size, ncclGinOutboxHandle_t *, ncclDevResourceRequirements_t *));
/** There is no CFT and no GIN: returns ncclInvalidUsage. */
NCCL_DECLARE_(ncclResult_t, ncclGinInboxA2ACreateRequirement,
              (ncclTeam_t peers, int nBlocks, int log2Size, ncclGinInboxA2AHandle_t *,
               ncclDevResourceRequirements_t *));

/** Fills *out, by the version in the requirements, for kernels of this rank; all ranks give the same requirements.
 * Errors: ncclInvalidArgument (also: GIN or CFT is asked for, multicast memory without NVLS), ncclInvalidUsage (no
 * deviceApiSupport; requirements without their initializer).  Group: *out is filled at its end.  Capture: no. */
NCCL_DECLARE_(ncclResult_t, ncclDevCommCreate, (ncclComm_t, ncclDevCommRequirements_t const *, ncclDevComm_t *));
/** Ends a device communicator on this rank; no kernel may still use it. A zeroed one is ignored. Errors:
 * ncclInvalidArgument. */
NCCL_DECLARE_(ncclResult_t, ncclDevCommDestroy, (ncclComm_t, ncclDevComm_t const *));
/** All ranks.  An unusable communicator gives an empty team, here and below, with a line in the log. */
NCCL_DECLARE_(ncclTeam_t, ncclTeamWorld, (ncclComm_t));
/** The ranks whose memory this rank's device code can load from and store to: on GPUs consecutive ranks of a host. */
NCCL_DECLARE_(ncclTeam_t, ncclTeamLsa, (ncclComm_t));
/** The ranks with the same place in their LSA teams. */
NCCL_DECLARE_(ncclTeam_t, ncclTeamRail, (ncclComm_t));
/** The number in the communicator of the team's rank `rank`. */
NCCL_DECLARE_(int, ncclTeamRankToWorld, (ncclComm_t, ncclTeam_t, int rank));
/** The number in the LSA team of the team's rank `rank`. */
NCCL_DECLARE_(int, ncclTeamRankToLsa, (ncclComm_t, ncclTeam_t, int rank));
/** Describes nBarriers barriers of a part of the LSA team, for the list that ncclDevCommCreate gets.  Errors:
 * ncclInvalidArgument. */
NCCL_DECLARE_(ncclResult_t, ncclLsaBarrierCreateRequirement,
              (ncclTeam_t, int nBarriers, ncclLsaBarrierHandle_t *, ncclDevResourceRequirements_t *));
/** Describes barriers over the network, which ncclDevCommCreate refuses.  Errors: ncclInvalidArgument. */
NCCL_DECLARE_(ncclResult_t, ncclGinBarrierCreateRequirement,
              (ncclComm_t, ncclTeam_t, int nBarriers, ncclGinBarrierHandle_t *, ncclDevResourceRequirements_t *));
/** Slots for an exchange of maxElts elements of maxEltSize bytes. */
NCCL_DECLARE_(int, ncclLLA2ACalcSlots, (int maxElts, int maxEltSize));
/** Describes the memory of exchanges by LL lines, as ncclLsaBarrierCreateRequirement does.  Errors:
 * ncclInvalidArgument. */
NCCL_DECLARE_(ncclResult_t, ncclLLA2ACreateRequirement,
              (int nBlocks, int nSlots, ncclLLA2AHandle_t *, ncclDevResourceRequirements_t *));

#undef NCCL_DECLARE_
#undef NCCL_BOOL_

#ifdef __cplusplus
}
#endif
#endif /* NCCL_H_ */
