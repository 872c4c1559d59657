/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives and point-to-point calls: arguments are checked here, before anything is enqueued. */
#include <hocket.h>
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"   /* HOCKET_QUANTISED */
#include "../boot/process.h" /* hk_forks */
#include "../comm/group.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../program/quantised.h"
#include "../run/selection.h"
#include "uneven.h"

_Static_assert((int)ncclSuccess == HK_OK && (int)ncclUnhandledCudaError == HK_ERR_CUDA &&
                   (int)ncclSystemError == HK_ERR_SYSTEM && (int)ncclInternalError == HK_ERR_INTERNAL &&
                   (int)ncclInvalidArgument == HK_ERR_ARGUMENT && (int)ncclInvalidUsage == HK_ERR_USAGE &&
                   (int)ncclRemoteError == HK_ERR_REMOTE && (int)ncclInProgress == HK_IN_PROGRESS,
               "hk_status has ncclResult_t's values");
_Static_assert((int)ncclInt8 == HK_I8 && (int)ncclUint8 == HK_U8 && (int)ncclInt32 == HK_I32 &&
                   (int)ncclUint32 == HK_U32 && (int)ncclInt64 == HK_I64 && (int)ncclUint64 == HK_U64 &&
                   (int)ncclFloat16 == HK_F16 && (int)ncclFloat32 == HK_F32 && (int)ncclFloat64 == HK_F64 &&
                   (int)ncclBfloat16 == HK_BF16 && (int)ncclFloat8e4m3 == HK_E4M3 && (int)ncclFloat8e5m2 == HK_E5M2 &&
                   (int)ncclNumTypes == HK_DTYPE_COUNT,
               "hk_dtype has ncclDataType_t's values");
_Static_assert((int)ncclSum == HK_SUM && (int)ncclProd == HK_PROD && (int)ncclMax == HK_MAX && (int)ncclMin == HK_MIN &&
                   (int)ncclAvg == HK_AVG,
               "hk_redop has ncclRedOp_t's values");

static __attribute__((noinline)) hk_status api_coll_check_usable(ncclComm_t c, const char *who) {
  HK_OR_RETURN(hk_comm_check_usable(c, who));
  /* relaxed: suspend and resume are not called at the same time as operations */
  if (!atomic_load_explicit(&c->health.suspended, memory_order_relaxed)) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE, "%s: the communicator (rank %d of %d) is suspended: call ncclCommResume first", who,
                 c->rank, c->nranks);
}

/* Fast check that the communicator is usable; api_coll_check_usable reports the cause if not. */
static inline bool api_coll_usable(ncclComm_t c) {
  /* relaxed, all: as in hk_comm_check_usable and api_coll_check_usable */
  return c && atomic_load_explicit(&c->magic, memory_order_relaxed) == HK_COMM_LIVE && c->forks == hk_forks &&
         atomic_load_explicit(&c->health.failure, memory_order_relaxed) == 0 &&
         atomic_load_explicit(&c->health.progress, memory_order_relaxed) == HK_OK &&
         !atomic_load_explicit(&c->health.finalized, memory_order_relaxed) &&
         !atomic_load_explicit(&c->health.suspended, memory_order_relaxed);
}

static inline hk_status api_coll_check_comm(ncclComm_t c, const char *who) {
  return __builtin_expect(api_coll_usable(c), 1) ? HK_OK : api_coll_check_usable(c, who);
}

static __attribute__((noinline)) hk_status api_coll_type_fits(const char *who, size_t count, ncclDataType_t type,
                                                              size_t blocks) {
  size_t bytes;
  if ((int)type < 0 || type >= ncclNumTypes)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: data type %d is none of ncclDataType_t's (0 to %d)", who, (int)type,
                   ncclNumTypes - 1);
  if (__builtin_mul_overflow(count, hk_dtype_size((hk_dtype)type), &bytes) ||
      __builtin_mul_overflow(bytes, blocks, &bytes) || bytes > (size_t)1 << 62)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: count %zu of %s for %zu ranks is more bytes than memory has addresses", who,
                   count, hk_dtype_name((hk_dtype)type), blocks);
  return HK_OK;
}

static inline hk_status api_coll_check_type(const char *who, size_t count, ncclDataType_t type, size_t blocks) {
  /* the usual sizes fit, without multiplications */
  if (__builtin_expect((unsigned)type < ncclNumTypes && (count | blocks) >> 28 == 0, 1)) return HK_OK;
  return api_coll_type_fits(who, count, type, blocks);
}

static hk_status api_coll_check_redop(const char *who, ncclComm_t c, ncclDataType_t type, int op, hk_call *call) {
  if (op >= 0 && op < ncclNumOps) {
    call->redop = (uint8_t)(op | c->numerics.redop_flags);
    return HK_OK;
  }
  int i = op - ncclNumOps;
  if (op < 0 || i >= HK_REDOP_LIMIT || !c->numerics.redops || !c->numerics.redops[i].used)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s: operator %d is neither one of ncclRedOp_t's (0 to %d) nor made by ncclRedOpCreatePreMulSum on "
                   "this communicator",
                   who, op, ncclNumOps - 1);
  if (c->numerics.redops[i].dtype != type)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: operator %d was made for %s, not for %s", who, op,
                   hk_dtype_name((hk_dtype)c->numerics.redops[i].dtype), hk_dtype_name((hk_dtype)type));
  call->redop = (uint8_t)(HK_PREMULSUM | c->numerics.redop_flags);
  call->scalar = c->numerics.redops[i].scalar;
  call->scalar_on_device = c->numerics.redops[i].on_device;
  return HK_OK;
}

hk_status hk_call_may_quantise(ncclComm_t c, const char *who) {
  if (c->device >= 0)
    return HK_FAIL(HK_ERR_USAGE,
                   "%s: quantised sums are for ranks on host memory, and this communicator is on GPU %d: call "
                   "ncclAllReduce, without HOCKET_QUANTISED",
                   who, c->device);
  if (c->numerics.redop_flags & HK_REDOP_INVARIANT)
    return HK_FAIL(HK_ERR_USAGE,
                   "%s: a quantised value depends on its neighbours, so the sum cannot be batch-invariant: switch one "
                   "of the two off (HOCKET_BATCH_INVARIANT, hocketCommSetBatchInvariant)",
                   who);
  return HK_OK;
}

/* The user has asked for it in this call, or for all calls with a type and an operator that have a quantised form. */
static __attribute__((noinline)) hk_status api_coll_quantise(const char *who, hk_call *call, bool asked) {
  const hk_dtype type = (hk_dtype)call->dtype;
  const hk_redop op = hk_call_op(call);
  const bool can = hk_quantised_type(type) && hk_quantised_op(op);
  if (!can && !asked) return HK_OK;
  if (!can)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "%s: %s of %s has no quantised form: it is for sum and avg of float, bfloat16 and half", who,
                   hk_redop_name(op), hk_dtype_name(type));
  HK_OR_RETURN(hk_call_may_quantise(call->comm, who));
  call->redop |= HK_REDOP_QUANTISED;
  return HK_OK;
}

/* True if the user wants the communicator's allreduces quantised. */
static __attribute__((noinline)) bool api_coll_wants_quantised(ncclComm_t c) {
  if (!c->numerics.quantises) c->numerics.quantises = c->settings->QUANTISED ? 2 : 1;
  return c->numerics.quantises > 1;
}
static inline bool api_coll_quantises(ncclComm_t c) {
  return __builtin_expect(c->numerics.quantises != 1, 0) && api_coll_wants_quantised(c);
}

static hk_status api_coll_check_peer(const char *who, const char *what, int peer, ncclComm_t c) {
  if (peer >= 0 && peer < c->nranks) return HK_OK;
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: %s %d is not a rank of this communicator (0 to %d)", who, what, peer,
                 c->nranks - 1);
}

static inline hk_status api_coll_check_buffer(const char *who, const char *what, const void *buffer,
                                              const hk_call *call) {
  if (__builtin_expect(buffer || call->count == 0, 1)) return HK_OK;
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: %s is NULL with count %zu", who, what, call->count);
}

/* `coll` is the call's, and a constant in each function of the API. */
static inline __attribute__((always_inline)) hk_status api_coll_check_buffers(const char *who, hk_coll coll,
                                                                              const hk_call *call) {
  hk_status rc = HK_OK;
  const hk_blocks *b = call->blocks;
  int rank = call->comm->rank, root = call->root;
  if (b && ((!call->in && b->in_end) || (!call->out && b->out_end)))
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: %s is NULL, and not all of its counts are 0", who,
                   !call->in && b->in_end ? "sendbuff" : "recvbuff");
  if (b) return HK_OK;
  if (hk_coll_has_input(coll, rank, root)) HK_TRY(api_coll_check_buffer(who, "sendbuff", call->in, call), out);
  if (hk_coll_has_output(coll, rank, root)) rc = api_coll_check_buffer(who, "recvbuff", call->out, call);
out:
  return rc;
}

/* `counts` is NULL if blocks are equally long. `must`: as in hk_call_request. `quantised`: it must be. */
static inline __attribute__((always_inline)) hk_status api_coll_call_of(hk_call *call, const hk_counts *counts,
                                                                        ncclDataType_t type, int op, bool must,
                                                                        bool quantised) {
  static const char *const names[] = {
#define HK_COLL(id, name, reduces, root, whole, in, out, in_root, out_root, bus, alias, from, part, plain)             \
  HK_##plain == HK_##id ? "nccl" name : "hocket" name,
#include "../program/coll.def"
  };
  hk_status rc = HK_OK;
  hk_coll coll = (hk_coll)call->coll;
  const char *who = quantised ? "hocketAllReduceQuantised" : names[coll];
  ncclComm_t c = call->comm;
  HK_TRY(api_coll_check_comm(c, who), out);
  HK_TRY(api_coll_check_type(who, call->count, type, hk_coll_partition(coll) == HK_PART_WHOLE ? (size_t)c->nranks : 1),
         out);
  call->dtype = (uint8_t)type;
  if (counts) HK_TRY(hk_call_count(call, counts, who), out);
  if (hk_coll_reduces(coll)) HK_TRY(api_coll_check_redop(who, c, type, op, call), out);
  if (hk_quantised_coll(coll) && (quantised || api_coll_quantises(c)))
    HK_TRY(api_coll_quantise(who, call, quantised), out);
  if (hk_coll_has_root(coll)) HK_TRY(api_coll_check_peer(who, "root", call->root, c), out);
  HK_TRY(api_coll_check_buffers(who, coll, call), out);
  if (__builtin_expect(!hk_call_apart(coll, call), 0)) HK_TRY(hk_call_check_overlap(call, who), out);
  if (__builtin_expect(c->options.by_place, 0)) hk_call_note_inplace(call);
  HK_TRY(c->backend->check(call, who), out);
  if (must) HK_TRY(hk_selection_check(c, call, who), out);
  HK_INFO(HK_SUB_COLL,
          "%s: opCount %llx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d]",
          hk_coll_name(coll), (unsigned long long)c->order.sequence, call->in, call->out, call->count, (int)type, op,
          call->root, (void *)c, c->nranks);
  /* If there is nothing to move, and all ranks know that, the call does nothing. */
  return call->count || hk_coll_pairs(coll) ? hk_group_submit(call) : HK_OK;
out:
  return hk_group_remember(rc);
}

/* In line in each function of the API, where `coll` is a constant: the tests of call_of's sets are folded. */
static inline __attribute__((always_inline)) hk_status api_coll_plain(hk_coll coll, const void *in, void *out,
                                                                      size_t count, ncclDataType_t type, int op,
                                                                      int root, ncclComm_t c, cudaStream_t stream) {
  hk_call call = {
      .comm = c, .in = in, .out = out, .count = count, .coll = (uint8_t)coll, .root = root, .stream = stream};
  return api_coll_call_of(&call, NULL, type, op, false, false);
}

hk_status hk_coll_call(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op, int root,
                       ncclComm_t c, cudaStream_t stream) {
  return api_coll_plain(coll, in, out, count, type, op, root, c, stream);
}

hk_status hk_coll_call_with(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op,
                            int root, ncclComm_t c, cudaStream_t stream, const hk_call_request *w) {
  hk_call call = {.comm = c,
                  .in = in,
                  .out = out,
                  .count = count,
                  .coll = (uint8_t)coll,
                  .root = root,
                  .stream = stream,
                  .options = w->options,
                  .tag = w->tag,
                  .launched = w->launched};
  static const hk_call_options none;
  call.asks = memcmp(&w->options, &none, sizeof none) != 0;
  return api_coll_call_of(&call, NULL, type, op, w->must, false);
}

hk_status hk_coll_call_uneven(hk_coll coll, const void *in, void *out, const hk_counts *counts, ncclDataType_t type,
                              int op, ncclComm_t c, cudaStream_t stream) {
  hk_call call = {.comm = c, .in = in, .out = out, .coll = (uint8_t)coll, .stream = stream};
  hk_status rc = api_coll_call_of(&call, counts, type, op, false, false);
  hk_call_hold(&call, -1);
  return rc;
}

/* The operator of a collective without one. */
enum { NO_OP = -1 };

HK_API(ncclResult_t, ncclAllReduce,
       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_ALLREDUCE, sendbuff, recvbuff, count, datatype, (int)op, 0, comm, stream);
}

HK_EXPORT ncclResult_t hocketAllReduceQuantised(const void *sendbuff, void *recvbuff, size_t count,
                                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                                cudaStream_t stream) {
  hk_call call = {
      .comm = comm, .in = sendbuff, .out = recvbuff, .count = count, .coll = HK_ALLREDUCE, .stream = stream};
  return (ncclResult_t)api_coll_call_of(&call, NULL, datatype, (int)op, false, true);
}

HK_API(ncclResult_t, ncclBroadcast,
       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_BROADCAST, sendbuff, recvbuff, count, datatype, NO_OP, root, comm, stream);
}

HK_API(ncclResult_t, ncclBcast,
       (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)) {
  return pncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

HK_API(ncclResult_t, ncclReduce,
       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
        ncclComm_t comm, cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_REDUCE, sendbuff, recvbuff, count, datatype, (int)op, root, comm, stream);
}

HK_API(ncclResult_t, ncclReduceScatter,
       (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
        ncclComm_t comm, cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype, (int)op, 0, comm,
                                      stream);
}

HK_API(ncclResult_t, ncclAllGather,
       (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_ALLGATHER, sendbuff, recvbuff, sendcount, datatype, NO_OP, 0, comm, stream);
}

HK_API(ncclResult_t, ncclAlltoAll,
       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_ALLTOALL, sendbuff, recvbuff, count, datatype, NO_OP, 0, comm, stream);
}

HK_API(ncclResult_t, ncclGather,
       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_GATHER, sendbuff, recvbuff, count, datatype, NO_OP, root, comm, stream);
}

HK_API(ncclResult_t, ncclScatter,
       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
        cudaStream_t stream)) {
  return (ncclResult_t)api_coll_plain(HK_SCATTER, sendbuff, recvbuff, count, datatype, NO_OP, root, comm, stream);
}

static ncclResult_t api_coll_transfer(const char *who, hk_call *call, ncclDataType_t type) {
  hk_status rc = HK_OK;
  bool sends = call->p2p == HK_P2P_SEND;
  HK_TRY(api_coll_check_comm(call->comm, who), out);
  HK_TRY(api_coll_check_type(who, call->count, type, 1), out);
  call->dtype = (uint8_t)type;
  HK_TRY(api_coll_check_peer(who, "peer", call->root, call->comm), out);
  HK_TRY(api_coll_check_buffer(who, sends ? "sendbuff" : "recvbuff", sends ? call->in : call->out, call), out);
  HK_TRY(call->comm->backend->check(call, who), out);
  HK_TRY(hk_group_check_self(call, who), out);
  return (ncclResult_t)hk_group_submit(call);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclSend,
       (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)) {
  hk_call call = {.comm = comm,
                  .in = sendbuff,
                  .count = count,
                  .coll = HK_SENDRECV,
                  .p2p = HK_P2P_SEND,
                  .root = peer,
                  .stream = stream};
  return api_coll_transfer("ncclSend", &call, datatype);
}

HK_API(ncclResult_t, ncclRecv,
       (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)) {
  hk_call call = {.comm = comm,
                  .out = recvbuff,
                  .count = count,
                  .coll = HK_SENDRECV,
                  .p2p = HK_P2P_RECV,
                  .root = peer,
                  .stream = stream};
  return api_coll_transfer("ncclRecv", &call, datatype);
}

HK_API(ncclResult_t, ncclGroupStart, (void)) { return (ncclResult_t)hk_group_start(); }
HK_API(ncclResult_t, ncclGroupEnd, (void)) { return (ncclResult_t)hk_group_end(); }
