/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of a call alone (call.h): its signature, how its buffers overlap. */
#include "call.h"
#include <string.h>

uint32_t hk_call_signature(const hk_call *op) {
  uint64_t h = op->count * 0x9e3779b97f4a7c15u;
  h ^= ((uint64_t)op->coll << 48 | (uint64_t)op->dtype << 40 | (uint64_t)op->redop << 32 | (uint32_t)op->root) *
       0xc2b2ae3d27d4eb4fu;
  uint32_t words[sizeof op->options / 4];
  memcpy(words, &op->options, sizeof words); /* 0 in most calls */
  for (size_t i = 0; i < HK_ARRAY_LENGTH(words); i++) h ^= words[i] * (0x9e3779b97f4a7c15u + 2 * i);
  uint32_t signature = (uint32_t)(h >> 32) ^ (uint32_t)h;
  return signature ? signature : 1;
}

static bool call_apart(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes) {
  return a_bytes == 0 || b_bytes == 0 || a + a_bytes <= b || b + b_bytes <= a;
}

/* True if the buffers overlap exactly "in place": the input block begins where its block of the output does, or the
 * other way round. coll.def says which block. */
static bool call_in_place(const hk_call *call, uintptr_t from, uintptr_t to) {
  const hk_coll coll = (hk_coll)call->coll;
  const int n = call->comm->nranks, rank = call->comm->rank;
  const size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  const int block = hk_coll_in_blocks(coll, n) == 1 ? 0 : rank;
  const int same = hk_coll_alias(coll, rank, n, call->root, block);
  return same >= 0 && from + (size_t)block * bytes == to + (size_t)same * bytes;
}

void hk_call_note_inplace(hk_call *call) {
  const hk_coll coll = (hk_coll)call->coll;
  if (hk_coll_has_root(coll) || call->blocks) return;
  const bool in_place = hk_call_copies_input(call) || call_in_place(call, (uintptr_t)call->in, (uintptr_t)call->out);
  call->options.inplace = in_place ? HK_INPLACE_YES : HK_INPLACE_NO;
  call->asks = true;
}

/* For an uneven collective: the gaps between blocks may hold the other buffer, and this rank's own block may be in
 * place. */
static bool call_blocks_apart(const hk_call *call, uintptr_t from, uintptr_t to) {
  const hk_coll coll = (hk_coll)call->coll;
  const int n = call->comm->nranks, nin = hk_coll_in_blocks(coll, n), nout = hk_coll_out_blocks(coll, n);
  const hk_extent *in = call->blocks->table, *out = in + nin;
  for (int i = 0; i < nin; i++) {
    const int same = hk_coll_alias(coll, call->comm->rank, n, call->root, nin == 1 ? 0 : i);
    for (int k = 0; k < nout; k++) {
      if (k == same && from + in[i].at == to + out[k].at) continue;
      if (!call_apart(from + in[i].at, in[i].bytes, to + out[k].at, out[k].bytes)) return false;
    }
  }
  return true;
}

hk_status hk_call_check_overlap(const hk_call *call, const char *who) {
  const hk_coll coll = (hk_coll)call->coll;
  const uintptr_t from = (uintptr_t)call->in, to = (uintptr_t)call->out;
  const size_t in = hk_call_in_bytes(call), out = hk_call_out_bytes(call);
  if (!hk_coll_has_input(coll, call->comm->rank, call->root) ||
      !hk_coll_has_output(coll, call->comm->rank, call->root) || call_apart(from, in, to, out))
    return HK_OK;
  if (hk_coll_exchanges(coll) && from == to) return HK_OK;
  if (call->blocks ? call_blocks_apart(call, from, to) : call_in_place(call, from, to)) return HK_OK;
  return HK_FAIL(HK_ERR_ARGUMENT,
                 "%s: sendbuff (%zu bytes at %p) and recvbuff (%zu bytes at %p) overlap, and not as \"in place\" in "
                 "the header says: the result would be wrong; use two buffers, or the place that the header names",
                 who, in, call->in, out, call->out);
}
