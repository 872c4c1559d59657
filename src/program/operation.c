/* SPDX-License-Identifier: Apache-2.0 */
/* Names of types, operators and calls (operation.h). */
#include "operation.h"
#include <stdio.h>
#include "../base/status.h" /* HK_ARRAY_LENGTH */
#include "program.h"        /* collectives */

static const char *const dtypes[HK_DTYPE_COUNT] = {
    [HK_I8] = "int8",    [HK_U8] = "uint8",      [HK_I32] = "int32",   [HK_U32] = "uint32",
    [HK_I64] = "int64",  [HK_U64] = "uint64",    [HK_F16] = "half",    [HK_F32] = "float",
    [HK_F64] = "double", [HK_BF16] = "bfloat16", [HK_E4M3] = "f8e4m3", [HK_E5M2] = "f8e5m2",
};
static const char *const redops[HK_REDOP_COUNT] = {
    [HK_SUM] = "sum", [HK_PROD] = "prod", [HK_MAX] = "max",
    [HK_MIN] = "min", [HK_AVG] = "avg",   [HK_PREMULSUM] = "premulsum",
};

const char *hk_dtype_name(hk_dtype t) { return (unsigned)t < HK_DTYPE_COUNT ? dtypes[t] : "unknown type"; }
const char *hk_redop_name(hk_redop op) { return (unsigned)op < HK_REDOP_COUNT ? redops[op] : "unknown operator"; }

const char *hk_p2p_name(hk_p2p p) {
  static const char *const names[] = {"none", "Send", "Recv", "PutSignal", "WaitSignal"};
  return (unsigned)p < HK_ARRAY_LENGTH(names) ? names[p] : "unknown";
}

void hk_operation_describe(const hk_operation *o, char *text, size_t bytes) {
  hk_coll coll = (hk_coll)o->coll;
  char op[48] = "", root[24] = "";
  const char *name = hk_coll_name(coll);
  if (coll == HK_SENDRECV && o->p2p == HK_P2P_WAIT) {
    snprintf(text, bytes, "WaitSignal(%llu signals, rank %d)", (unsigned long long)o->count, o->root);
    return;
  }
  if (coll == HK_SENDRECV) {
    name = o->p2p == HK_P2P_SEND ? "Send to" : o->p2p == HK_P2P_PUT ? "PutSignal to" : "Recv from";
    snprintf(root, sizeof root, ", rank %d", o->root);
  }
  if (hk_coll_reduces(coll))
    snprintf(op, sizeof op, ", %s%s%s", hk_redop_name((hk_redop)(o->redop & ~HK_REDOP_FLAGS)),
             o->redop & HK_REDOP_INVARIANT ? ", batch-invariant" : "",
             o->redop & HK_REDOP_QUANTISED ? ", quantised" : "");
  if (hk_coll_has_root(coll)) snprintf(root, sizeof root, ", root %d", o->root);
  if (hk_coll_pairs(coll)) {
    snprintf(text, bytes, "%s(%s)", name, hk_dtype_name((hk_dtype)o->dtype));
    return;
  }
  if (hk_coll_uneven(coll)) snprintf(root, sizeof root, ", counts %08x", (unsigned)o->root);
  snprintf(text, bytes, "%s(%llu x %s%s%s)", name, (unsigned long long)o->count, hk_dtype_name((hk_dtype)o->dtype), op,
           root);
}
