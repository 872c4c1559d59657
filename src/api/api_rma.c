/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations: the arguments are checked here, before anything is enqueued. */
#include "../comm/group.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../rma/registration.h"
#include "../rma/rma.h"

static hk_status api_rma_check_place(const char *who, ncclComm_t c, int peer, int sig, int ctx) {
  if (peer < 0 || peer >= c->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: peer %d is not a rank of this communicator (0 to %d)", who, peer,
                   c->nranks - 1);
  if (sig < 0 || sig >= c->options.rma_signals || ctx < 0 || ctx >= c->options.rma_contexts)
    return HK_FAIL(
        HK_ERR_ARGUMENT,
        "%s: signal %d of context %d: the communicator has %d signals (ncclConfig_t: numRmaSig) in each of %d "
        "contexts (numRmaCtx)",
        who, sig, ctx, c->options.rma_signals, c->options.rma_contexts);
  return HK_OK;
}

static hk_status api_rma_check_comm(const char *who, ncclComm_t c) {
  hk_status rc = hk_comm_check_usable(c, who);
  if (rc != HK_OK) return rc;
  if (!hk_rma_supported(c))
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s: this communicator has no one-sided operations (ncclCommQueryProperties gives hostRmaSupport = "
                   "false: %s): use ncclSend and ncclRecv",
                   who,
                   c->one_sided ? "numRmaCtx or numRmaSig is 0"
                                : "its GPUs' memory cannot be made into windows (NCCL_CUMEM_ENABLE=0, or a driver "
                                  "without virtual memory or stream memory operations)");
  if (!c->windows && !c->options.rma_eager)
    return HK_FAIL(HK_ERR_USAGE,
                   "%s: no window has been registered on this communicator: all ranks call ncclCommWindowRegister with "
                   "NCCL_WIN_COLL_SYMMETRIC first",
                   who);
  return c->backend->rma_begin ? HK_OK : hk_rma_begin(c);
}

static hk_status api_rma_check_flags(const char *who, unsigned flags) {
  return flags ? HK_FAIL(HK_ERR_ARGUMENT, "%s: flags 0x%x: none are defined, give 0", who, flags) : HK_OK;
}

static uint32_t api_rma_signal_number(ncclComm_t c, int sig, int ctx) {
  return (uint32_t)ctx * (uint32_t)c->options.rma_signals + (uint32_t)sig;
}

/* Checks the data of a put and its destination. Windows have equal sizes on all ranks, so the check uses this rank's
 * window; the peer's window is checked when the put runs. */
static hk_status api_rma_check_data(hk_call *call, ncclDataType_t type, ncclWindow_t win) {
  size_t bytes, end, capacity;
  if ((int)type < 0 || type >= ncclNumTypes)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclPutSignal: data type %d is none of ncclDataType_t's (0 to %d)", (int)type,
                   ncclNumTypes - 1);
  call->dtype = (uint8_t)type;
  if (call->count == 0) return HK_OK; /* a signal alone */
  if (!call->in) return HK_FAIL(HK_ERR_ARGUMENT, "ncclPutSignal: localbuff is NULL with count %zu", call->count);
  call->window = hk_registration_number(call->comm, win, &capacity);
  if (!call->window)
    return HK_FAIL(
        HK_ERR_ARGUMENT,
        "ncclPutSignal: peerWin %p is not this rank's handle of a window that ncclCommWindowRegister made on "
        "this communicator with NCCL_WIN_COLL_SYMMETRIC",
        (void *)win);
  if (__builtin_mul_overflow(call->count, hk_dtype_size((hk_dtype)type), &bytes) ||
      __builtin_add_overflow(bytes, call->offset, &end) || end > capacity)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclPutSignal: %zu x %s at byte %llu are not inside of the window's %zu bytes",
                   call->count, hk_dtype_name((hk_dtype)type), (unsigned long long)call->offset, capacity);
  return HK_OK;
}

static hk_status api_rma_put(const char *who, hk_call *call, ncclDataType_t type, ncclWindow_t win, int sig, int ctx,
                             unsigned flags) {
  hk_status rc = HK_OK;
  HK_TRY(api_rma_check_comm(who, call->comm), out);
  HK_TRY(api_rma_check_flags(who, flags), out);
  HK_TRY(api_rma_check_place(who, call->comm, call->root, sig, ctx), out);
  HK_TRY(api_rma_check_data(call, type, win), out);
  call->signal = api_rma_signal_number(call->comm, sig, ctx);
  HK_TRY(call->comm->backend->check(call, who), out);
  return hk_group_submit(call);
out:
  return hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclPutSignal,
       (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
        size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream)) {
  hk_call call = {.comm = comm,
                  .in = localbuff,
                  .count = count,
                  .coll = HK_SENDRECV,
                  .p2p = HK_P2P_PUT,
                  .root = peer,
                  .offset = peerWinOffset,
                  .stream = stream};
  return (ncclResult_t)api_rma_put("ncclPutSignal", &call, datatype, peerWin, sigIdx, ctx, flags);
}

HK_API(ncclResult_t, ncclSignal,
       (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream)) {
  hk_call call = {.comm = comm, .coll = HK_SENDRECV, .p2p = HK_P2P_PUT, .root = peer, .stream = stream};
  return (ncclResult_t)api_rma_put("ncclSignal", &call, ncclInt8, NULL, sigIdx, ctx, flags);
}

static hk_status api_rma_check_waits(int n, const ncclWaitSignalDesc_t *d, hk_call *call) {
  static const char who[] = "ncclWaitSignal";
  HK_OR_RETURN(api_rma_check_comm(who, call->comm));
  if (n <= 0 || !d) return HK_FAIL(HK_ERR_ARGUMENT, "%s: %d descriptors at %p", who, n, (const void *)d);
  for (int i = 0; i < n; i++) {
    HK_OR_RETURN(api_rma_check_place(who, call->comm, d[i].peer, d[i].sigIdx, d[i].ctx));
    if (d[i].opCnt <= 0)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s: opCnt %d of descriptor %d: 1 or more", who, d[i].opCnt, i);
  }
  return call->comm->backend->check(call, who);
}

/* One wait for each descriptor; they may end in any order. */
HK_API(ncclResult_t, ncclWaitSignal,
       (int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream)) {
  hk_call call = {.comm = comm, .coll = HK_SENDRECV, .p2p = HK_P2P_WAIT, .stream = stream};
  hk_status rc = api_rma_check_waits(nDesc, signalDescs, &call), ended;
  if (rc != HK_OK) return (ncclResult_t)hk_group_remember(rc);
  if (nDesc > 1) hk_group_start();
  for (int i = 0; i < nDesc && rc == HK_OK; i++) {
    const ncclWaitSignalDesc_t *d = &signalDescs[i];
    call.root = d->peer;
    call.count = (size_t)d->opCnt;
    call.signal = api_rma_signal_number(comm, d->sigIdx, d->ctx);
    rc = hk_group_submit(&call);
  }
  if (nDesc > 1 && (ended = hk_group_end()) != HK_OK) rc = ended;
  return (ncclResult_t)rc;
}
