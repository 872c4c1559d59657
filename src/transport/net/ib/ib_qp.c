/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: making them on the chosen ports, connecting them to the peer's, and their timeouts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "ib_data.h"
#include "ib_device.h"
#include "ib_state.h"
#include "ib_verbs.h"

static hk_status ib_qp_make_qp(hk_ib_conn *c, hk_ib_qp *q, hk_ib_path *path) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_device *device = path->device;
  const hk_ib_port *port = hk_ib_my_port(c, path);
  uint32_t n = x->env->nslots;
  q->path = path;
  /* A slot takes two requests, a credit one. A receiver gets a slot's header and at most one part on each queue
   * pair. */
  q->depth = 4 * n + 16;
  q->recv_depth = 2 * n + 16;
  if (q->depth > device->max_wr) q->depth = device->max_wr;
  q->signals = calloc(q->depth + 1, sizeof *q->signals);
  q->cq = hk_ib_cq_take(x, device, q->depth + q->recv_depth);
  if (!q->signals || !q->cq)
    return HK_FAIL_ERRNO("rank %d cannot make a completion queue on RDMA device %s", x->env->rank, device->name);
  hk_ibv_qp_init_attr attr = {
      .send_cq = q->cq->cq,
      .recv_cq = q->cq->cq,
      .cap = {.max_send_wr = q->depth,
              .max_recv_wr = q->recv_depth,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = c->ctx->env->settings->IB_USE_INLINE ? HK_IB_INLINE : HK_IB_HEADER},
      .qp_type = HK_IBV_QPT_RC};
  q->qp = x->api->create_qp(device->pd, &attr);
  if (!q->qp) { /* less inline data is better than none */
    attr.cap = (hk_ibv_qp_cap){q->depth, q->recv_depth, 1, 1, HK_IB_HEADER};
    q->qp = x->api->create_qp(device->pd, &attr);
  }
  if (!q->qp)
    return HK_FAIL_ERRNO("rank %d cannot make a queue pair on RDMA device %s for rank %d (too many of them? fewer with "
                         "NCCL_IB_QPS_PER_CONNECTION=1, NCCL_MAX_NCHANNELS=1)",
                         x->env->rank, device->name, c->peer);
  q->inline_bytes = attr.cap.max_inline_data;
  if (!c->ctx->env->settings->IB_USE_INLINE && q->inline_bytes > HK_IB_HEADER) q->inline_bytes = HK_IB_HEADER;
  hk_ibv_qp_attr to = {.qp_state = HK_IBV_QPS_INIT,
                       .pkey_index = (uint16_t)c->ctx->env->settings->IB_PKEY,
                       .port_num = port->number,
                       .qp_access_flags = HK_IBV_ACCESS_REMOTE_WRITE};
  int err =
      x->api->modify_qp(q->qp, &to, HK_IBV_QP_STATE | HK_IBV_QP_PKEY_INDEX | HK_IBV_QP_PORT | HK_IBV_QP_ACCESS_FLAGS);
  if (err) {
    errno = err;
    return HK_FAIL_ERRNO("rank %d cannot set up a queue pair on port %d of RDMA device %s (partition key index %d)",
                         x->env->rank, port->number, device->name, to.pkey_index);
  }
  return HK_OK;
}

hk_status hk_ib_make_qps(hk_ib_conn *c, uint32_t n) {
  c->qps = calloc(n, sizeof *c->qps);
  if (!c->qps) return HK_FAIL_ERRNO("no memory for %u queue pairs of rank %d", n, c->ctx->env->rank);
  for (c->nqps = 0; c->nqps < n;) {
    uint32_t i = c->nqps++;
    HK_OR_RETURN(ib_qp_make_qp(c, &c->qps[i], &c->paths[c->apart && i == n - 1 ? 0 : i % c->npaths]));
    HK_OR_RETURN(hk_ib_post_recv(c, i, c->qps[i].recv_depth));
  }
  return HK_OK;
}

/* The environment beats the configuration, as in NCCL. */
static uint8_t ib_qp_traffic_class(const hk_transport_env *env) {
  int64_t set = env->settings->IB_TC;
  if (set < 0) set = env->traffic_class;
  return set < 0 ? 0 : (uint8_t)set;
}

/* InfiniBand needs a global header between subnets, or if the subnet manager says that the port does. */
static bool ib_qp_is_global(const hk_ib_conn *c, const hk_ib_path *path, bool one_subnet) {
  const hk_ib_port *mine = hk_ib_my_port(c, path);
  hk_ibv_port_attr attr;
  memset(&attr, 0, sizeof attr);
  if (mine->layer == HK_IBV_LAYER_ETHERNET || !one_subnet) return true;
  return mine->ngids && hk_ib_their_port(c, path)->ngids &&
         c->ctx->api->query_port(path->device->context, mine->number, &attr) == 0 &&
         attr.flags & HK_IBV_PORT_GRH_REQUIRED;
}

bool hk_ib_wants_apart(const hk_ib_conn *c) {
  bool ethernet = false;
  for (int i = 0; i < c->ports.nmine; i++) ethernet = ethernet || c->ports.mine[i].layer == HK_IBV_LAYER_ETHERNET;
  return ethernet && !c->remote.n && c->ctx->fifo_class >= 0;
}

/* Of queue pair i. */
static uint8_t ib_qp_class_of(const hk_ib_conn *c, uint32_t i) {
  const int set = c->ctx->fifo_class;
  const bool ethernet = hk_ib_my_port(c, c->qps[i].path)->layer == HK_IBV_LAYER_ETHERNET;
  return i >= hk_ib_data_qps(c) && ethernet && set >= 0 ? (uint8_t)set : ib_qp_traffic_class(c->ctx->env);
}

static void ib_qp_route_to(const hk_ib_conn *c, uint32_t i, hk_ibv_ah_attr *ah) {
  const hk_ib_path *path = c->qps[i].path;
  const hk_ib_pair *pair = &c->ports.pairs[path->pair];
  const hk_ib_port *mine = hk_ib_my_port(c, path), *their = hk_ib_their_port(c, path);
  const hk_ibv_gid *to = &their->gids[pair->their_gid].gid;
  bool one_subnet = mine->layer == HK_IBV_LAYER_ETHERNET || hk_ib_one_subnet(mine, their);
  *ah = (hk_ibv_ah_attr){.dlid = their->lid, .sl = (uint8_t)c->ctx->env->settings->IB_SL, .port_num = mine->number};
  if (!ib_qp_is_global(c, path, one_subnet)) return;
  if (!one_subnet && hk_ib_router_lid(to)) ah->dlid = hk_ib_router_lid(to);
  ah->is_global = 1;
  ah->grh = (hk_ibv_global_route){.dgid = *to,
                                  .sgid_index = mine->gids[pair->my_gid].index,
                                  .hop_limit = 255,
                                  .traffic_class = ib_qp_class_of(c, i)};
}

/* ---- enhanced connection establishment, ibv_set_ece(3) ---- Cards of one vendor agree on options beyond the
 * specification, above all congestion control. The rank that begins an epoch sends the options of its card, the other
 * card takes those that it supports, and the first card takes the result. */

static bool ib_qp_ece_is_possible(const hk_ib_conn *c) {
  return c->ctx->api->query_ece && c->ctx->api->set_ece && c->ctx->env->settings->IB_ECE_ENABLE;
}

void hk_ib_fill_ece(hk_ib_conn *c) {
  for (uint32_t i = 0; i < c->nqps && ib_qp_ece_is_possible(c); i++)
    if (c->ctx->api->query_ece(c->qps[i].qp, &c->ours.ece[i])) c->ours.ece[i] = (hk_ibv_ece){0};
}

/* A card that refuses works without the options. */
static void ib_qp_take_ece(hk_ib_conn *c, uint32_t i, hk_ibv_ece ece) {
  if (!ece.vendor_id || !ib_qp_ece_is_possible(c)) return;
  int err = c->ctx->api->set_ece(c->qps[i].qp, &ece);
  if (err)
    HK_INFO(HK_SUB_NET, "rank %d: RDMA device %s does not take rank %d's options of connections (vendor %#x, %#x): %s",
            c->ctx->env->rank, c->qps[i].path->device->name, c->peer, ece.vendor_id, ece.options, strerror(err));
}

static hk_status ib_qp_join_qp(hk_ib_conn *c, uint32_t i, const hk_ib_epoch *theirs) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_qp *q = &c->qps[i];
  const size_t path = (size_t)(q->path - c->paths);
  uint8_t mtu = c->ours.paths[path].mtu, their_mtu = theirs->paths[path].mtu;
  hk_ibv_qp_attr to = {.qp_state = HK_IBV_QPS_RTR,
                       .path_mtu = their_mtu < mtu ? their_mtu : mtu,
                       .dest_qp_num = theirs->qp[i],
                       .rq_psn = theirs->psn,
                       .max_dest_rd_atomic = 1,
                       .min_rnr_timer = 12};
  ib_qp_route_to(c, i, &to.ah_attr);
  ib_qp_take_ece(c, i, theirs->ece[i]);
  int err = x->api->modify_qp(q->qp, &to,
                              HK_IBV_QP_STATE | HK_IBV_QP_AV | HK_IBV_QP_PATH_MTU | HK_IBV_QP_DEST_QPN |
                                  HK_IBV_QP_RQ_PSN | HK_IBV_QP_MAX_DEST_RD_ATOMIC | HK_IBV_QP_MIN_RNR_TIMER);
  if (!err) {
    to = (hk_ibv_qp_attr){.qp_state = HK_IBV_QPS_RTS,
                          .timeout = (uint8_t)c->timeout,
                          .retry_cnt = (uint8_t)c->ctx->env->settings->IB_RETRY_CNT,
                          .rnr_retry = 7,
                          .sq_psn = c->ours.psn,
                          .max_rd_atomic = 1};
    err = x->api->modify_qp(q->qp, &to,
                            HK_IBV_QP_STATE | HK_IBV_QP_TIMEOUT | HK_IBV_QP_RETRY_CNT | HK_IBV_QP_RNR_RETRY |
                                HK_IBV_QP_SQ_PSN | HK_IBV_QP_MAX_QP_RD_ATOMIC);
  }
  errno = err;
  q->path->bad = q->path->bad || err;
  return err ? HK_ERR_SYSTEM : HK_OK; /* no error text: the caller knows whether there is another path to try */
}

hk_status hk_ib_join_qps(hk_ib_conn *c, const hk_ib_epoch *theirs) {
  for (uint32_t i = 0; i < c->nqps; i++) HK_OR_RETURN(ib_qp_join_qp(c, i, theirs));
  return HK_OK;
}

void hk_ib_drop_qps(hk_ib_conn *c) {
  const hk_ibv *api = c->ctx->api;
  hk_ib_flush_drop(c);
  for (uint32_t i = 0; i < c->nqps; i++) {
    hk_ib_qp *q = &c->qps[i];
    if (q->qp) api->destroy_qp(q->qp);
    hk_ib_cq_give(&q->cq, q->depth + q->recv_depth);
    free(q->signals);
  }
  free(c->qps);
  c->qps = NULL;
  c->nqps = 0;
}
