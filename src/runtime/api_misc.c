/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, errors, memory, registration and operators in the API. */
#include <hocket.h>
#include <stdlib.h>
#include <string.h>
#include "../base/env_plugin.h"
#include "../base/log.h"
#include "../base/thread.h"
#include "../program/operation.h"
#include "api.h"
#include "comm.h"
#include "group.h"
#include "rma.h"

/* nccl4py and other tools search the library's bytes for this. */
__attribute__((used)) static const char version_text[] = "NCCL version 2.32.3+cuda13.4";

_Static_assert(HK_NCCL_MAJOR == NCCL_MAJOR && HK_NCCL_MINOR == NCCL_MINOR && HK_NCCL_PATCH == NCCL_PATCH,
               "plugins get the version that programs see");

HK_EXPORT int hocketVersion(void) { return HOCKET_MAJOR * 10000 + HOCKET_MINOR * 100 + HOCKET_PATCH; }

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
  if (comm && comm->magic == HK_COMM_LIVE && hk_comm_verdict(comm) != HK_OK) return comm->health.text;
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
  const hk_backend *backend = hk_backend_choose(&device); /* of communicators of this thread */
  return (ncclResult_t)backend->alloc(device, size, ptr);
}

HK_API(ncclResult_t, ncclMemFree, (void *ptr)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  for (const hk_backend *const *b = hk_backends; ptr && *b; b++)
    if ((*b)->free(ptr, &rc)) break;
  return (ncclResult_t)rc;
}

/* ---- registration ---- */
struct hk_registration {
  uint32_t magic;
  ncclComm_t comm;
  void *base;
  size_t bytes;
  void *handle;    /* the backend's; NULL: it has none */
  uint64_t window; /* number among the symmetric windows, from 1; 0: it is none */
  hk_registration *next;
};
enum { REGISTRATION_LIVE = 0x72656721 };

static hk_status add_registration(const char *who, ncclComm_t c, void *base, size_t bytes, bool symmetric,
                                  hk_registration **out) {
  hk_status rc = hk_comm_check(c, who);
  if (rc != HK_OK) return rc;
  if (!out || (!base && bytes)) return HK_FAIL(HK_ERR_ARGUMENT, "%s: %zu bytes at %p", who, bytes, base);
  hk_registration *r = malloc(sizeof *r);
  if (!r) return HK_FAIL_ERRNO("no memory for a registration");
  *r = (hk_registration){.magic = REGISTRATION_LIVE, .comm = c, .base = base, .bytes = bytes};
  if ((rc = c->backend->memory_add(c, base, bytes, symmetric, &r->handle)) != HK_OK) {
    free(r);
    return rc;
  }
  if (symmetric && hk_rma_supported(c) && atomic_load(&c->health.progress) == HK_OK) {
    if ((rc = hk_rma_begin(c)) != HK_OK) {
      if (r->handle) c->backend->memory_drop(c, base, bytes, r->handle);
      free(r);
      return rc;
    }
  }
  /* Frameworks register from any thread, while they hold an allocator's locks. */
  pthread_mutex_lock(&c->health.lock);
  if (symmetric) r->window = ++c->windows;
  r->next = c->registrations;
  c->registrations = r;
  pthread_mutex_unlock(&c->health.lock);
  *out = r;
  return HK_OK;
}

static hk_status remove_registration(const char *who, ncclComm_t c, hk_registration *r) {
  hk_status rc = hk_comm_check(c, who);
  if (rc != HK_OK || !r) return rc;
  pthread_mutex_lock(&c->health.lock);
  hk_registration **at = &c->registrations;
  while (*at && *at != r) at = &(*at)->next;
  bool found = *at == r;
  if (found) *at = r->next;
  pthread_mutex_unlock(&c->health.lock);
  if (!found) return HK_FAIL(HK_ERR_ARGUMENT, "%s: %p is not a registration of this communicator", who, (void *)r);
  if (r->window) hk_rma_dropped(c);
  if (r->handle) c->backend->memory_drop(c, r->base, r->bytes, r->handle);
  free(r);
  return HK_OK;
}

hk_window_state hk_registration_window(ncclComm_t c, uint64_t number, hk_window *out) {
  pthread_mutex_lock(&c->health.lock);
  const hk_registration *r = c->registrations;
  while (r && r->window != number) r = r->next;
  if (r) *out = (hk_window){r->base, r->bytes};
  hk_window_state state = r ? HK_WINDOW_OPEN : number > c->windows ? HK_WINDOW_LATER : HK_WINDOW_GONE;
  pthread_mutex_unlock(&c->health.lock);
  return state;
}

uint64_t hk_registration_number(ncclComm_t c, ncclWindow_t win, size_t *bytes) {
  pthread_mutex_lock(&c->health.lock);
  const hk_registration *r = c->registrations;
  while (r && (const void *)r != (const void *)win) r = r->next;
  uint64_t number = r ? r->window : 0;
  *bytes = r ? r->bytes : 0;
  pthread_mutex_unlock(&c->health.lock);
  return number;
}

void hk_registrations_free(ncclComm_t c) {
  while (c->registrations) {
    hk_registration *r = c->registrations;
    c->registrations = r->next;
    free(r);
  }
}

HK_API(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle)) {
  HK_UNCANCELLED;
  return (ncclResult_t)add_registration("ncclCommRegister", comm, buff, size, false, (hk_registration **)handle);
}

/* Also accepts windows: PyTorch passes every handle here. */
HK_API(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle)) {
  HK_UNCANCELLED;
  return (ncclResult_t)remove_registration("ncclCommDeregister", comm, handle);
}

HK_API(ncclResult_t, ncclCommWindowRegister,
       (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)) {
  HK_UNCANCELLED;
  const int known = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | NCCL_WIN_GIN_ONLY; /* there is no CFT */
  if (winFlags & ~known || (winFlags & NCCL_WIN_COLL_SYMMETRIC && winFlags & NCCL_WIN_GIN_ONLY))
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "ncclCommWindowRegister: flags 0x%x: give NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC "
                                 "or NCCL_WIN_GIN_ONLY, perhaps with NCCL_WIN_STRICT_ORDERING",
                                 (unsigned)winFlags);
  if ((uintptr_t)buff % NCCL_WIN_REQUIRED_ALIGNMENT)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclCommWindowRegister: %p is not aligned to %d bytes", buff,
                                 NCCL_WIN_REQUIRED_ALIGNMENT);
  return (ncclResult_t)add_registration("ncclCommWindowRegister", comm, buff, size,
                                        (winFlags & NCCL_WIN_COLL_SYMMETRIC) != 0, (hk_registration **)(void *)win);
}

HK_API(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win)) {
  HK_UNCANCELLED;
  return (ncclResult_t)remove_registration("ncclCommWindowDeregister", comm, (hk_registration *)(void *)win);
}

/* ---- addresses in windows ----
 * For loads and stores of device code.  No communicator supports that yet (api_device.c): a rank gets the addresses of
 * its own memory; those of other ranks are NULL, as with NCCL for a rank that loads and stores do not reach. */

static hk_status check_window(const char *who, ncclWindow_t win, const void *out, hk_registration **found) {
  *found = (hk_registration *)(void *)win;
  if (!win || !out || (*found)->magic != REGISTRATION_LIVE)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: window %p is NULL or not a window, or the place for the answer is NULL", who,
                   (void *)win);
  return HK_OK;
}

HK_API(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr)) {
  hk_registration *r = NULL;
  hk_status rc = hk_comm_check(comm, "ncclWinGetUserPtr");
  if (rc == HK_OK) rc = check_window("ncclWinGetUserPtr", win, outUserPtr, &r);
  if (rc == HK_OK) *outUserPtr = r->base;
  return (ncclResult_t)rc;
}

/* `rank` is of the LSA team (`lsa`), or of the communicator. */
static ncclResult_t pointer(const char *who, ncclWindow_t win, size_t offset, int rank, bool lsa, void **out) {
  hk_registration *r = NULL;
  hk_status rc = check_window(who, win, out, &r);
  if (rc != HK_OK) return (ncclResult_t)rc;
  int nranks = lsa ? 1 : r->comm->nranks, own = lsa ? 0 : r->comm->rank;
  if (offset >= r->bytes || rank < 0 || rank >= nranks)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "%s: offset %zu of %zu bytes, rank %d of %d", who, offset, r->bytes,
                                 rank, nranks);
  *out = rank == own ? (char *)r->base + offset : NULL;
  return ncclSuccess;
}
HK_API(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t win, size_t offset, int lsaRank, void **outPtr)) {
  return pointer("ncclGetLsaDevicePointer", win, offset, lsaRank, true, outPtr);
}
HK_API(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t win, size_t offset, int peer, void **outPtr)) {
  return pointer("ncclGetPeerDevicePointer", win, offset, peer, false, outPtr);
}
/* There is no multicast memory that device code reaches: as NCCL without NVLS. */
static ncclResult_t no_multimem(const char *who, ncclWindow_t win, size_t offset, void **out) {
  hk_registration *r = NULL;
  hk_status rc = check_window(who, win, out, &r);
  if (rc == HK_OK && offset >= r->bytes)
    rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: offset %zu of %zu bytes", who, offset, r->bytes);
  if (rc == HK_OK) *out = NULL;
  return (ncclResult_t)rc;
}
HK_API(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t win, size_t offset, void **outPtr)) {
  return no_multimem("ncclGetLsaMultimemDevicePointer", win, offset, outPtr);
}
HK_API(ncclResult_t, ncclGetMultimemDevicePointer,
       (ncclWindow_t win, size_t offset, ncclMultimemHandle_t multimem, void **outPtr)) {
  if (!multimem.mcBasePtr)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclGetMultimemDevicePointer: the multimem handle is empty");
  return no_multimem("ncclGetMultimemDevicePointer", win, offset, outPtr);
}

static ncclResult_t no_cft(const char *who) {
  return (ncclResult_t)HK_FAIL(HK_ERR_USAGE, "%s: CFT needs a Blackwell GPU and is not part of this version of Hocket",
                               who);
}
HK_API(ncclResult_t, ncclGetMultimemDeviceLeInfo,
       (ncclWindow_t win, size_t offset, ncclCftLeId *leId, size_t *leOffset)) {
  (void)win, (void)offset, (void)leId, (void)leOffset;
  return no_cft("ncclGetMultimemDeviceLeInfo");
}
HK_API(ncclResult_t, ncclGetPeerDeviceLeInfo,
       (ncclWindow_t win, size_t offset, int peerWorld, ncclCftLeId *leId, size_t *leOffset)) {
  (void)win, (void)offset, (void)peerWorld, (void)leId, (void)leOffset;
  return no_cft("ncclGetPeerDeviceLeInfo");
}
HK_API(ncclResult_t, ncclGetCftDeviceLeInfo,
       (ncclWindow_t win, size_t offset, int peerCft, ncclTeam_t cftTeam, ncclCftLeId *leId, size_t *leOffset)) {
  (void)win, (void)offset, (void)peerCft, (void)cftTeam, (void)leId, (void)leOffset;
  return no_cft("ncclGetCftDeviceLeInfo");
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
  if (!comm->redops && !(comm->redops = calloc(HK_REDOP_LIMIT, sizeof *comm->redops))) {
    rc = HK_FAIL_ERRNO("no memory for operators");
    goto out;
  }
  for (int i = 0; i < HK_REDOP_LIMIT; i++) {
    if (comm->redops[i].used) continue;
    comm->redops[i] = (hk_user_redop){.dtype = (uint8_t)datatype, .used = true};
    if (residence == ncclScalarDevice && comm->backend->late_scalars) {
      comm->redops[i].scalar = (uintptr_t)scalar;
      comm->redops[i].on_device = true;
      *op = (ncclRedOp_t)(ncclNumOps + i);
      return ncclSuccess;
    }
    /* On host memory a scalar "on the device" is ordinary memory; it is read now, not at the call. */
    memcpy(&comm->redops[i].scalar, scalar, hk_dtype_size((hk_dtype)datatype));
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
  if (i < 0 || i >= HK_REDOP_LIMIT || !comm->redops || !comm->redops[i].used)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                                 "ncclRedOpDestroy: operator %d was not made by ncclRedOpCreatePreMulSum on this "
                                 "communicator, or is destroyed already",
                                 (int)op);
  comm->redops[i].used = false; /* calls that are enqueued carry their own copy of the scalar */
  return ncclSuccess;
}

/* The version that has `size` bytes decides which fields exist: the estimate exists since the first one. */
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
