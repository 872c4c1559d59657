/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives whose blocks differ in length (hocket.h): the API functions, and the tables of blocks made from the
 * counts. */
#include "uneven.h"
#include <hocket.h>
#include "../core/api.h"
#include "../core/comm.h"
#include "../failure/failure.h"

/* One buffer: the names of its arrays, for messages, and the arrays. */
typedef struct side {
  const char *what;
  const size_t *counts, *at;
  size_t n;
} side;

/* Fills the table for one buffer; returns the end of its last block that is not empty. */
static hk_status uneven_fill(hk_extent *table, const side *s, const hk_call *call, const char *who, uint64_t *end) {
  const size_t unit = hk_dtype_size((hk_dtype)call->dtype), most = ((size_t)1 << 62) / unit;
  size_t next = 0;
  *end = 0;
  if (!s->counts) return HK_FAIL(HK_ERR_ARGUMENT, "%s: %scounts is NULL", who, s->what);
  for (size_t i = 0; i < s->n; i++) {
    size_t at = s->at ? s->at[i] : next;
    if (at > most || s->counts[i] > most - at)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s: %scounts[%zu] is %zu, from element %zu on: more than memory has addresses",
                     who, s->what, i, s->counts[i], at);
    next = at + s->counts[i];
    table[i] = (hk_extent){at * unit, s->counts[i] * unit};
    if (table[i].bytes && next * unit > *end) *end = next * unit;
    if (table[i].bytes > call->blocks->longest) call->blocks->longest = table[i].bytes;
  }
  return HK_OK;
}

/* Sets the values that must be equal on all ranks: the total number of elements, and a hash of the counts. */
static void uneven_summarize(hk_call *call, const size_t *counts) {
  uint64_t h = 0;
  for (int i = 0; i < call->comm->nranks; i++) {
    call->count += counts[i];
    h = (h ^ counts[i]) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  call->root = (int)(h >> 33);
}

hk_status hk_call_count(hk_call *call, const hk_counts *counts, const char *who) {
  hk_status rc = HK_OK;
  const hk_coll coll = (hk_coll)call->coll;
  const size_t n = (size_t)call->comm->nranks, rank = (size_t)call->comm->rank;
  const size_t *all = counts->in ? counts->in : counts->out, zero = 0;
  side in = {"send", counts->in, counts->in_at, (size_t)hk_coll_in_blocks(coll, (int)n)};
  side out = {"recv", counts->out, counts->out_at, (size_t)hk_coll_out_blocks(coll, (int)n)};
  if (in.n == 1 && !in.counts) in.counts = all ? &all[rank] : NULL, in.at = &zero;
  if (out.n == 1 && !out.counts) out.counts = all ? &all[rank] : NULL, out.at = &zero;
  call->blocks = malloc(sizeof *call->blocks + (in.n + out.n) * sizeof(hk_extent)); /* uneven_fill fills it */
  if (!call->blocks) {
    rc = HK_FAIL_ERRNO("no memory for the counts of %zu ranks", n);
    return hk_comm_failed(call->comm, rc); /* the other ranks wait for this call */
  }
  atomic_init(&call->blocks->refs, 1);
  call->blocks->longest = 0;
  HK_TRY(uneven_fill(call->blocks->table, &in, call, who, &call->blocks->in_end), out);
  HK_TRY(uneven_fill(call->blocks->table + in.n, &out, call, who, &call->blocks->out_end), out);
  if (!hk_coll_pairs(coll))
    uneven_summarize(call, all);
  else if (in.counts[rank] != out.counts[rank])
    rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: rank %zu sends itself %zu elements, and receives %zu", who, rank,
                 in.counts[rank], out.counts[rank]);
out:
  return rc;
}

enum { NO_OP = -1 };

HK_EXPORT ncclResult_t hocketAlltoAllv(const void *sendbuff, const size_t *sendcounts, const size_t *sdispls,
                                       void *recvbuff, const size_t *recvcounts, const size_t *rdispls,
                                       ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  hk_counts c = {.in = sendcounts, .in_at = sdispls, .out = recvcounts, .out_at = rdispls};
  return (ncclResult_t)hk_coll_call_uneven(HK_ALLTOALLV, sendbuff, recvbuff, &c, datatype, NO_OP, comm, stream);
}

HK_EXPORT ncclResult_t hocketAllGatherv(const void *sendbuff, void *recvbuff, const size_t *recvcounts,
                                        const size_t *rdispls, ncclDataType_t datatype, ncclComm_t comm,
                                        cudaStream_t stream) {
  hk_counts c = {.out = recvcounts, .out_at = rdispls};
  return (ncclResult_t)hk_coll_call_uneven(HK_ALLGATHERV, sendbuff, recvbuff, &c, datatype, NO_OP, comm, stream);
}

HK_EXPORT ncclResult_t hocketReduceScatterv(const void *sendbuff, void *recvbuff, const size_t *sendcounts,
                                            const size_t *sdispls, ncclDataType_t datatype, ncclRedOp_t op,
                                            ncclComm_t comm, cudaStream_t stream) {
  hk_counts c = {.in = sendcounts, .in_at = sdispls};
  return (ncclResult_t)hk_coll_call_uneven(HK_REDUCE_SCATTERV, sendbuff, recvbuff, &c, datatype, (int)op, comm, stream);
}
