/* SPDX-License-Identifier: Apache-2.0 */
/* Checks calls on GPUs, and shows them to the other ranks. */
#include "../base/log.h"
#include "../core/call.h"
#include "../failure/watch.h"
#include "launch.h"
#include "memory.h"
#include "order.h"
#include "run.h"

hk_status hk_gpu_check_options(const hk_call *call, const char *who) {
  if (call->options.policy && ((call->options.policy - 1) & ~call->comm->options.policy & NCCL_CTA_POLICY_ZERO))
    return HK_FAIL(
        HK_ERR_ARGUMENT,
        "%s: CTAPolicy of one call has NCCL_CTA_POLICY_ZERO, and the communicator's has not: copy engines are "
        "set up at init, so give it to the communicator, too (ncclConfig_t, or NCCL_CTA_POLICY=2)",
        who);
  return HK_OK;
}

static hk_status check_buffers(const hk_call *call) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  bool in = call->p2p ? call->p2p == HK_P2P_SEND || call->p2p == HK_P2P_PUT
                      : hk_coll_has_input((hk_coll)call->coll, c->rank, call->root);
  bool out = call->p2p ? call->p2p == HK_P2P_RECV : hk_coll_has_output((hk_coll)call->coll, c->rank, call->root);
  size_t in_bytes = call->p2p ? bytes : hk_call_in_bytes(call), out_bytes = call->p2p ? bytes : hk_call_out_bytes(call);
  if (in && in_bytes) HK_TRY(hk_gpu_check_pointer(c, "sendbuff", call->in, in_bytes), out);
  if (out && out_bytes) HK_TRY(hk_gpu_check_pointer(c, "recvbuff", call->out, out_bytes), out);
  if (bytes == 0) return HK_OK;
  if (hk_call_op(call) == HK_PREMULSUM && call->scalar_on_device)
    rc = hk_gpu_check_pointer(c, "the operator's scalar", (void *)(uintptr_t)call->scalar, 1);
out:
  return rc;
}

hk_status hk_gpu_check_call(const hk_call *call) {
  hk_status rc = hk_gpu_check_kernels(call->comm);
  if (rc != HK_OK) return hk_comm_failed(call->comm, rc);
  return check_buffers(call);
}

void hk_gpu_post(const hk_call *call, const hk_queue_state *s, bool alone) {
  hk_gpu *g = hk_gpu_of(call->comm);
  bool captures = atomic_load(&g->order->captures);
  if (s->capturing && !captures && call->comm->options.no_captures)
    HK_INFO(HK_SUB_COLL,
            "rank %d of %d: a call is captured, and graphUsageMode is 0: this is right here, but another NCCL may hang",
            call->comm->rank, call->comm->nranks);
  captures = captures || s->capturing;
  atomic_store(&g->order->captures, captures);
  g->order->timer.wanted = hk_watch_enqueued(call->comm, call, !captures);
  if (!alone) g->order->timer.wanted = NULL;
}
