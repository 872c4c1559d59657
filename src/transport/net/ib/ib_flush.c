/* SPDX-License-Identifier: Apache-2.0 */
/* When a GPU sees what cards have written into its memory.
 *
 * A card's write to the GPU and its completion, which goes to host memory, take different routes, so the completion may
 * arrive first. The word that the proxy then stores for the kernel is in host memory, too. Newer GPUs guarantee that
 * they see the writes that came before the answer to their own read of that word (limits.rdma_ordered). For others a
 * *flush* is done between the completion and the delivery: a read from the GPU's memory completes the writes before it,
 * by PCI's ordering rules. Either the driver does it (limits.rdma_flush), or the card, with a queue pair that is
 * connected to itself. A card's read completes only its own writes, so each card that has written since its last read
 * does one. */
#include <stdio.h>
#include <string.h>
#include "../../../base/param.h"
#include "ib_data.h"
#include "ib_flushing.h"
#include "ib_state.h"
#include "ib_verbs.h"

/* A queue pair that is connected to itself reaches the card's own memory regions, by its port's loopback. */
static int flush_join_with_itself(hk_ib_conn *c, uint32_t path, hk_ibv_qp *qp) {
  const hk_ibv *api = c->ctx->api;
  const hk_ib_pair *pair = &c->ports.pairs[c->paths[path].pair];
  const hk_ib_port *port = &c->ports.mine[pair->mine];
  hk_ibv_qp_attr to = {.qp_state = HK_IBV_QPS_INIT,
                       .pkey_index = (uint16_t)c->ctx->env->settings->IB_PKEY,
                       .port_num = port->number,
                       .qp_access_flags = HK_IBV_ACCESS_REMOTE_READ};
  int err = api->modify_qp(qp, &to, HK_IBV_QP_STATE | HK_IBV_QP_PKEY_INDEX | HK_IBV_QP_PORT | HK_IBV_QP_ACCESS_FLAGS);
  if (err) return err;
  to = (hk_ibv_qp_attr){.qp_state = HK_IBV_QPS_RTR,
                        .path_mtu = c->ours.paths[path].mtu,
                        .dest_qp_num = qp->qp_num,
                        .max_dest_rd_atomic = 1,
                        .min_rnr_timer = 12,
                        .ah_attr = {.dlid = port->lid, .port_num = port->number}};
  if (port->layer == HK_IBV_LAYER_ETHERNET) {
    to.ah_attr.is_global = 1;
    to.ah_attr.grh = (hk_ibv_global_route){
        .dgid = port->gids[pair->my_gid].gid, .sgid_index = port->gids[pair->my_gid].index, .hop_limit = 255};
  }
  err = api->modify_qp(qp, &to,
                       HK_IBV_QP_STATE | HK_IBV_QP_AV | HK_IBV_QP_PATH_MTU | HK_IBV_QP_DEST_QPN | HK_IBV_QP_RQ_PSN |
                           HK_IBV_QP_MAX_DEST_RD_ATOMIC | HK_IBV_QP_MIN_RNR_TIMER);
  if (err) return err;
  to = (hk_ibv_qp_attr){.qp_state = HK_IBV_QPS_RTS,
                        .timeout = (uint8_t)c->timeout,
                        .retry_cnt = (uint8_t)c->ctx->env->settings->IB_RETRY_CNT,
                        .rnr_retry = 7,
                        .max_rd_atomic = 1};
  return api->modify_qp(qp, &to,
                        HK_IBV_QP_STATE | HK_IBV_QP_TIMEOUT | HK_IBV_QP_RETRY_CNT | HK_IBV_QP_RNR_RETRY |
                            HK_IBV_QP_SQ_PSN | HK_IBV_QP_MAX_QP_RD_ATOMIC);
}

enum { FLUSH_DEPTH = 2, FLUSH_ENTRIES = FLUSH_DEPTH + 1 };
enum { READ_AT = 96 /* in the arena's first entry, after the credits (ib_place.c uses the rest) */ };

static hk_status flush_make_reader(hk_ib_conn *c, uint32_t path) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_device *d = c->paths[path].device;
  hk_ib_reader *r = &c->gpu.flush.readers[path];
  if (!r->cq) r->cq = hk_ib_cq_take(x, d, FLUSH_ENTRIES);
  if (r->cq) {
    hk_ibv_qp_init_attr attr = {
        .send_cq = r->cq->cq,
        .recv_cq = r->cq->cq,
        .cap = {.max_send_wr = FLUSH_DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = HK_IBV_QPT_RC};
    r->qp = x->api->create_qp(d->pd, &attr);
  }
  if (!r->qp)
    return HK_FAIL_ERRNO("rank %d cannot make a queue pair on RDMA device %s to read from its GPU", x->env->rank,
                         d->name);
  int err = flush_join_with_itself(c, path, r->qp);
  if (!err) return HK_OK;
  hk_ib_flush_drop(c);
  c->paths[path].bad = true;
  char what[160];
  snprintf(what, sizeof what, "a queue pair to read from the GPU cannot be connected to itself on %s port %d: %s",
           d->name, hk_ib_my_port(c, &c->paths[path])->number, strerror(err));
  return hk_ib_lost(c, what, true);
}

/* Posts a read of one byte of a GPU's memory by the path's device. *posted is false if the connection gets new queue
 * pairs instead. */
static hk_status flush_read_back(hk_ib_conn *c, uint32_t path, const void *at, uint32_t rkey, bool *posted) {
  hk_ib_reader *r = &c->gpu.flush.readers[path];
  hk_ibv_send_wr *bad;
  *posted = false;
  if (!r->qp) HK_OR_RETURN(flush_make_reader(c, path));
  if (!r->qp) return HK_OK;
  hk_ibv_sge to = {(uint64_t)(uintptr_t)c->arena + READ_AT, 1, c->paths[path].arena_mr->lkey};
  hk_ibv_send_wr wr = {.wr_id = hk_ib_request_id(c, path, HK_IB_FLUSHED),
                       .sg_list = &to,
                       .num_sge = 1,
                       .opcode = HK_IBV_WR_RDMA_READ,
                       .send_flags = HK_IBV_SEND_SIGNALED};
  wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)at;
  wr.wr.rdma.rkey = rkey;
  int err = r->qp->context->ops.post_send(r->qp, &wr, &bad);
  if (err) {
    char what[120];
    snprintf(what, sizeof what, "cannot post a read from the GPU: %s", strerror(err));
    c->paths[path].bad = true;
    return hk_ib_lost(c, what, true);
  }
  r->dirty = false;
  r->reading = *posted = true;
  return HK_OK;
}

/* Begins to make everything visible that has arrived, by reads of `at`, which is in the FIFO. */
static hk_status flush_read_all(hk_ib_conn *c, const void *at) {
  hk_ib_flush *f = &c->gpu.flush;
  uint64_t arrived = hk_ib_arrived_to(c);
  bool posted = true, any = false;
  for (uint32_t i = 0; i < c->npaths && posted; i++) {
    if (!f->readers[i].dirty) continue;
    HK_OR_RETURN(flush_read_back(c, i, at, c->paths[i].recv_mr->rkey, &posted));
    any = true;
  }
  if (!posted) return HK_OK; /* what has arrived is read again over the new paths */
  *(any ? &f->asked : &f->seen) = arrived;
  return HK_OK;
}

/* One flush makes everything visible that has arrived before it. */
hk_status hk_ib_flush_visible(hk_ib_conn *c, uint64_t k, bool *yes) {
  hk_status rc = HK_OK;
  hk_ib_flush *f = &c->gpu.flush;
  hk_device *gpu = c->recv->link->gpu;
  if (c->ctx->gpu.flushing == HK_IB_NO_FLUSH || k < f->seen) {
    *yes = true;
    return HK_OK;
  }
  if (c->ctx->gpu.flushing == HK_IB_DRIVER_FLUSH) {
    uint64_t arrived = hk_ib_arrived_to(c);
    HK_TRY(gpu->ops->card->flush(gpu), out);
    f->seen = arrived;
  } else if (!f->asked) {
    HK_TRY(flush_read_all(c, hk_net_payload(c->recv, k)), out);
  }
out:
  *yes = k < f->seen;
  return rc;
}

hk_status hk_ib_flush_done(hk_ib_conn *c, uint32_t path, const hk_ibv_wc *wc) {
  hk_ib_flush *f = &c->gpu.flush;
  if (wc->status != HK_IBV_WC_SUCCESS &&
      c->recv) { /* an end that was closed meanwhile has no memory any more: no error */
    hk_ib_flush_drop(c);
    return hk_ib_broken(c, path, wc, "reading from the GPU");
  }
  f->readers[path].reading = false;
  f->reads++;
  for (uint32_t i = 0; i < c->npaths; i++)
    if (f->readers[i].reading) return HK_OK;
  if (f->asked > f->seen) f->seen = f->asked;
  f->asked = 0;
  return HK_OK;
}

/* What a device has written that is left now reaches the GPU without a read: new queue pairs take a round trip over
 * TCP, and the PCI bus delivers within microseconds. A device that stays reads again. */
void hk_ib_flush_drop(hk_ib_conn *c) {
  hk_ib_flush *f = &c->gpu.flush;
  f->asked = 0;
  for (hk_ib_reader *r = f->readers; r < f->readers + HK_IB_PATHS; r++) {
    if (r->qp) c->ctx->api->destroy_qp(r->qp);
    hk_ib_cq_give(&r->cq, FLUSH_ENTRIES);
    *r = (hk_ib_reader){.dirty = true};
  }
}
