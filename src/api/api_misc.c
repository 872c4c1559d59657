/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, errors, memory and operators in the API. */
#include <hocket.h>
#include <stdlib.h>
#include <string.h>
#include "../base/env_plugin.h"
#include "../base/log.h"
#include "../base/thread.h"
#include "../comm/group.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../failure/failure.h"
#include "../failure/flight.h"
#include "../program/operation.h"
#include "../run/stream.h"

/* nccl4py and other tools search the library's bytes for this. */
__attribute__((used)) static const char version_text[] = "NCCL version 2.32.3+cuda13.4";

_Static_assert(HK_NCCL_MAJOR == NCCL_MAJOR && HK_NCCL_MINOR == NCCL_MINOR && HK_NCCL_PATCH == NCCL_PATCH,
               "plugins get the version that programs see");

HK_EXPORT int hocketVersion(void) { return HOCKET_MAJOR * 10000 + HOCKET_MINOR * 100 + HOCKET_PATCH; }

HK_EXPORT ncclResult_t hocketStreamDestroy(hocketStream_t stream) {
  HK_UNCANCELLED;
  return (ncclResult_t)hk_group_remember(hk_stream_destroy(stream));
}

HK_EXPORT ncclResult_t hocketFlightDump(ncclComm_t comm, const char *path) {
  HK_UNCANCELLED;
  hk_status rc = hk_comm_check(comm, "hocketFlightDump");
  return (ncclResult_t)(rc == HK_OK ? hk_flight_dump(comm, path) : rc);
}

HK_EXPORT int hocketDeviceCount(void) { return hk_backend_devices(); }

HK_API(ncclResult_t, ncclGetVersion, (int *version)) {
  if (!version) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclGetVersion: version is NULL");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

HK_API(const char *, ncclGetErrorString, (ncclResult_t result)) {
  static const char *const texts[] = {
      [ncclSuccess] = "no error",
      [ncclUnhandledCudaError] = "unhandled cuda error: ncclGetLastError says which",
      [ncclSystemError] = "unhandled system error: ncclGetLastError says which",
      [ncclInternalError] = "internal error: please report it, with what ncclGetLastError says",
      [ncclInvalidArgument] = "invalid argument: ncclGetLastError says which",
      [ncclInvalidUsage] = "invalid usage: ncclGetLastError says what to do instead",
      [ncclRemoteError] = "remote process exited or there was a network error",
      [ncclInProgress] = "operation in progress",
      [ncclTimeout] = "timeout",
  };
  return (unsigned)result < HK_ARRAY_LENGTH(texts) ? texts[result] : "unknown result code";
}

HK_API(const char *, ncclGetLastError, (ncclComm_t comm)) {
  /* A communicator's own failure takes precedence. Its text is written once, when it is settled, so it can be
   * returned. */
  if (comm && atomic_load(&comm->magic) == HK_COMM_LIVE && hk_failure_settled(comm) != HK_OK) return comm->health.text;
  return hk_last_error();
}

HK_EXPORT void ncclResetDebugInitInternal(void);
HK_EXPORT void ncclResetDebugInitInternal(void) { hk_log_reset(); }
HK_API(void, ncclResetDebugInit, (void)) { hk_log_reset(); }

HK_API(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size)) {
  HK_UNCANCELLED;
  if (!ptr) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclMemAlloc: ptr is NULL");
  *ptr = NULL;
  if (size == 0) return ncclSuccess;
  int device;
  const hk_backend *backend = hk_backend_choose(&device); /* the backend of communicators that this thread creates */
  return (ncclResult_t)backend->process->alloc(device, size, ptr);
}

HK_API(ncclResult_t, ncclMemFree, (void *ptr)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  for (const hk_backend *const *b = hk_backends; ptr && *b; b++)
    if ((*b)->process->free(ptr, &rc)) break;
  return (ncclResult_t)rc;
}

/* ---- operators ---- */

HK_API(ncclResult_t, ncclRedOpCreatePreMulSum,
       (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm)) {
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "ncclRedOpCreatePreMulSum"), out);
  if (!op || !scalar || (int)datatype < 0 || datatype >= ncclNumTypes ||
      (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclRedOpCreatePreMulSum: op %p, scalar %p, data type %d, residence %d", (void *)op,
                 scalar, (int)datatype, (int)residence);
    goto out;
  }
  if (!comm->numerics.redops && !(comm->numerics.redops = calloc(HK_REDOP_LIMIT, sizeof *comm->numerics.redops)))
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory for operators"), out);
  for (int i = 0; i < HK_REDOP_LIMIT; i++) {
    if (comm->numerics.redops[i].used) continue;
    comm->numerics.redops[i] = (hk_user_redop){.dtype = (uint8_t)datatype, .used = true};
    if (residence == ncclScalarDevice && comm->backend->late_scalars) {
      comm->numerics.redops[i].scalar = (uintptr_t)scalar;
      comm->numerics.redops[i].on_device = true;
      *op = (ncclRedOp_t)(ncclNumOps + i);
      return ncclSuccess;
    }
    /* On host memory a scalar "on the device" is ordinary memory; it is read now, not at the call. */
    memcpy(&comm->numerics.redops[i].scalar, scalar, hk_dtype_size((hk_dtype)datatype));
    *op = (ncclRedOp_t)(ncclNumOps + i);
    return ncclSuccess;
  }
  rc = HK_FAIL(HK_ERR_USAGE, "ncclRedOpCreatePreMulSum: %d operators exist on this communicator: destroy some",
               HK_REDOP_LIMIT);
out:
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm)) {
  hk_status rc = hk_comm_check(comm, "ncclRedOpDestroy");
  int i = (int)op - ncclNumOps;
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (i < 0 || i >= HK_REDOP_LIMIT || !comm->numerics.redops || !comm->numerics.redops[i].used)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "ncclRedOpDestroy: operator %d was not made by ncclRedOpCreatePreMulSum on this "
                                 "communicator, or is destroyed already",
                                 (int)op);
  comm->numerics.redops[i].used = false; /* calls that are enqueued carry their own copy of the scalar */
  return ncclSuccess;
}

/* `size` says which version's fields exist. The estimate exists since the first version. */
HK_API(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo)) {
  HK_UNCANCELLED;
  static const ncclSimInfo_t fresh = NCCL_SIM_INFO_INITIALIZER;
  double us = 0;
  hk_status rc = HK_OK;
  if (simInfo && (simInfo->magic != fresh.magic ||
                  simInfo->size < offsetof(ncclSimInfo_t, estimatedTime) + sizeof simInfo->estimatedTime))
    rc = hk_group_remember(HK_FAIL(HK_ERR_ARGUMENT,
                                   "ncclGroupSimulateEnd: simInfo has size %zu and magic 0x%x: start from "
                                   "NCCL_SIM_INFO_INITIALIZER",
                                   simInfo->size, simInfo->magic));
  hk_status ended = hk_group_simulate_end(&us);
  if (rc == HK_OK) rc = ended;
  if (rc == HK_OK && simInfo) simInfo->estimatedTime = (float)us;
  return (ncclResult_t)rc;
}
