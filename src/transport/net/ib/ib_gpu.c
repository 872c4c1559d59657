/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads in a GPU's memory (GPUDirect RDMA): which cards register it, and when the GPU sees what they have written.
 *
 * A card's write to the GPU and its completion, which goes to host memory, take different routes, so the completion may
 * arrive first. The word that the proxy then stores for the kernel is in host memory, too. Newer GPUs guarantee that
 * they see the writes that came before the answer to their own read of that word (limits.rdma_ordered). For others a
 * *flush* is done between the completion and the delivery: a read from the GPU's memory completes the writes before it,
 * by PCI's ordering rules. Either the driver does it (limits.rdma_flush), or the card, with a queue pair that is
 * connected to itself. A card's read completes only its own writes, so each card that has written since its last read
 * does one. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "ib.h"
#include "ib_direct.h"
#include "ib_gdr.h"

/* ---- which cards ---- */

/* What was found about a port. */
typedef struct finding {
  hk_ib_port port;
  hk_path_class cls, nearest; /* nearest: of the card's ports */
  bool takes, slow, split;    /* split: hk_gdr_is_split */
} finding;

static int price_of(const finding *f) { return f->port.far * 1000 + f->slow * 100 + (int)f->nearest; }

/* Tries the port's card. If its data-direct function can do it, the distance is that function's. */
static void try_card(hk_ib_ctx *x, finding *f, hk_ib_gpu_memory *m) {
  hk_device *gpu = x->env->gpu;
  hk_ib_device *d;
  char path[HK_SYSFS_PATH];
  hk_path_class beside = f->cls;
  bool far = hk_gdr_too_far(f->cls, m->why, sizeof m->why);
  if (far && !hk_ib_direct_is_possible()) return;
  bool open = hk_ib_device_open(x, f->port.device, &d) == HK_OK;
  if (open && hk_ib_direct_function(d->context, path)) beside = hk_ib_direct_distance(path, gpu, f->cls);
  if (hk_gdr_too_far(beside, m->why, sizeof m->why)) return;
  if (!open || hk_ib_gpu_probe(x->api, d->context, gpu, x->env->gpu_page, m) != HK_OK)
    snprintf(m->why, sizeof m->why, "%.200s", hk_last_error());
  if (m->direct) f->cls = beside;
  if (m->direct || !far) return;
  m->method = HK_GDR_STAGED; /* nothing else than data direct was near enough */
  char why[HK_GDR_WHY];
  if (hk_gdr_too_far(f->cls, why, sizeof why)) hk_gdr_add_cause(m->why, "%s", why);
}

/* A card that cannot be tried counts as one that refuses. */
static void look_at_port(hk_ib_ctx *x, const hk_paths *paths, finding *f) {
  hk_device *gpu = x->env->gpu;
  hk_ib_gpu_memory m = {.method = HK_GDR_STAGED};
  f->cls = hk_gdr_distance(paths, gpu->limits.ordinal, f->port.device, NULL);
  try_card(x, f, &m);
  f->split = hk_gdr_is_split(paths, gpu->limits.ordinal, f->cls);
  f->takes = m.method != HK_GDR_STAGED;
  HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: GPU %d and %s:%d%s%s: %s%s%s%s", x->env->rank, gpu->limits.ordinal,
          f->port.device, f->port.number, f->cls == HK_PATH_DIS ? "" : ", ",
          f->cls == HK_PATH_DIS ? "" : hk_path_class_name(f->cls),
          f->takes ? "GPUDirect RDMA by " : "data passes through ", hk_ib_gpu_words(&m), m.why[0] ? "; " : "", m.why);
}

/* A card is as near as the nearest of its ports, which carry data together. */
static void find_nearest(finding *f, int n) {
  for (int i = 0; i < n; i++) {
    f[i].nearest = f[i].cls;
    for (int j = 0; j < n; j++)
      if (f[j].port.card == f[i].port.card && f[j].cls < f[i].nearest) f[i].nearest = f[j].cls;
  }
}

/* Sorts the ports: those that take the GPU's memory first if there are any, the fast ones first, then by their distance
 * from the GPU, stably, so that the ports of a card stay adjacent; an unknown distance is last. */
static void sort_by_distance(finding *f, int n, bool direct) {
  hk_ib_port all[HK_IB_PORTS];
  for (int i = 0; i < n; i++) {
    all[i] = f[i].port;
    f[i].port.far = direct && !f[i].takes;
    if (f[i].port.far) f[i].port.card = (uint8_t)(f[i].port.card + HK_IB_PORTS); /* apart from those that take it */
  }
  for (int i = 0; i < n; i++) f[i].slow = hk_ib_is_slow(&f[i].port, all, n);
  find_nearest(f, n);
  for (int i = 1; i < n; i++) {
    finding one = f[i];
    int at = i;
    for (; at > 0 && price_of(&f[at - 1]) > price_of(&one); at--) f[at] = f[at - 1];
    f[at] = one;
  }
}

/* Returns true if there are ports that register the GPU's memory of each kind (InfiniBand, Ethernet) that the rank has
 * published. Then all of its connections use only such ports. */
static bool enough(const finding *f, int n) {
  int all = 0, taken = 0;
  for (int i = 0; i < n; i++) {
    all |= 1 << f[i].port.layer;
    if (f[i].takes) taken |= 1 << f[i].port.layer;
  }
  return n > 0 && all == taken;
}

/* Ports that do not take the GPU's memory stay as the last ones if others do: they may be the only ones on a peer's
 * rail. */
static void settle_ports(hk_ib_ctx *x, finding *f) {
  int n = x->nports;
  x->gpu.direct = enough(f, n);
  sort_by_distance(f, n, x->gpu.direct);
  for (int i = 0; i < n; i++) x->ports[i] = f[i].port;
  if (f[0].cls != HK_PATH_DIS || x->gpu.direct) { /* otherwise those near the CPU stay first */
    x->nnear = 0;
    while (x->nnear < n && price_of(&f[x->nnear]) == price_of(&f[0])) x->nnear++;
  }
  bool split = false;
  for (int i = 0; i < n; i++) split = split || (f[i].takes && f[i].split);
  x->gpu.flushing = (uint8_t)hk_ib_flushing_of(x->env->gpu, split);
  if (x->gpu.direct)
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: GPU %d %s", x->env->rank, x->env->gpu->limits.ordinal,
            hk_ib_flushing_words((hk_ib_flushing)x->gpu.flushing));
}

void hk_ib_gpu_find_ports(hk_ib_ctx *x) {
  finding found[HK_IB_PORTS];
  hk_topo *t = NULL;
  hk_paths *paths = NULL;
  if (x->gpu.known || !x->env->gpu_page) return;
  x->gpu.known = true;
  hk_gdr_look(&t, &paths, x->env->rank);
  pthread_mutex_lock(&x->lock);
  for (int i = 0; i < x->nports; i++) {
    found[i] = (finding){.port = x->ports[i]};
    look_at_port(x, paths, &found[i]);
  }
  if (x->nports) settle_ports(x, found);
  pthread_mutex_unlock(&x->lock);
  hk_paths_free(paths);
  hk_topo_free(t);
}

bool hk_ib_takes_gpu(void *ctx, const hk_net_end *e) {
  hk_ib_ctx *x = ctx;
  bool ceded = false;
  hk_ib_gpu_find_ports(x);
  if (!x->gpu.direct) return false;
  pthread_mutex_lock(&x->lock); /* another network may carry it already */
  for (uint32_t i = 0; i < x->room && !ceded; i++) {
    const hk_ib_conn *c = x->conns[i];
    ceded = c && c->peer == e->key.peer && c->channel == e->key.channel &&
            c->ceded & hk_ib_direction(c, e->key.kind == HK_LINK_SEND);
  }
  pthread_mutex_unlock(&x->lock);
  return !ceded;
}

static uint8_t direction_of(const hk_ib_conn *c, const hk_net_end *e) { return hk_ib_direction(c, e == c->send); }

static bool is_unsettled(const hk_ib_conn *c, const hk_net_end *e) {
  return e && e->link->gpu && e->link->payload && !(c->on_cards & direction_of(c, e));
}
bool hk_ib_gpu_unsettled(const hk_ib_conn *c) { return is_unsettled(c, c->send) || is_unsettled(c, c->recv); }

hk_ibv_mr *hk_ib_gpu_mr(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, char why[160]) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_gpu_memory m = {.why = "it is on another rail's port"};
  size_t bytes = hk_round_up(hk_ib_ring_bytes(c), HK_DEVICE_PAGE);
  if (!hk_ib_my_port(c, w)->far) hk_ib_gpu_register(x->api, w->device->pd, e->link->gpu, e->link->payload, bytes, &m);
  if (m.mr) {
    hk_ib_count_pinned(x, m.mr);
    c->on_cards |= direction_of(c, e);
    return m.mr;
  }
  snprintf(why, 160, "%.20s takes no memory of GPU %d: %.100s", w->device->name, e->link->gpu->limits.ordinal, m.why);
  if (is_unsettled(c, e) && hk_net_move_to_host(e, why) != HK_OK) snprintf(why, 160, "%.159s", hk_last_error());
  return NULL;
}

/* ---- flushes ---- */

/* A queue pair that is connected to itself reaches the card's own memory regions, by its port's loopback. */
static int join_with_itself(hk_ib_conn *c, uint32_t path, hk_ibv_qp *qp) {
  const hk_ibv *api = c->ctx->api;
  const hk_ib_pair *pair = &c->pairs[c->paths[path].pair];
  const hk_ib_port *port = &c->mine[pair->mine];
  hk_ibv_qp_attr to = {.qp_state = HK_IBV_QPS_INIT,
                       .pkey_index = (uint16_t)hk_param_int(HK_P_IB_PKEY),
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
                        .retry_cnt = (uint8_t)hk_param_int(HK_P_IB_RETRY_CNT),
                        .rnr_retry = 7,
                        .max_rd_atomic = 1};
  return api->modify_qp(qp, &to,
                        HK_IBV_QP_STATE | HK_IBV_QP_TIMEOUT | HK_IBV_QP_RETRY_CNT | HK_IBV_QP_RNR_RETRY |
                            HK_IBV_QP_SQ_PSN | HK_IBV_QP_MAX_QP_RD_ATOMIC);
}

enum { FLUSH_DEPTH = 2, FLUSH_ENTRIES = FLUSH_DEPTH + 1 };
enum { READ_AT = 96 /* in the arena's first entry, after the credits (ib_place.c uses the rest) */ };

static hk_status make_reader(hk_ib_conn *c, uint32_t path) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_device *d = c->paths[path].device;
  hk_ib_reader *r = &c->flush.readers[path];
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
  int err = join_with_itself(c, path, r->qp);
  if (!err) return HK_OK;
  hk_ib_gpu_drop(c);
  c->paths[path].bad = true;
  char what[160];
  snprintf(what, sizeof what, "a queue pair to read from the GPU cannot be connected to itself on %s port %d: %s",
           d->name, hk_ib_my_port(c, &c->paths[path])->number, strerror(err));
  return hk_ib_lost(c, what, true);
}

/* Posts a read of one byte of a GPU's memory by the path's device. *posted is false if the connection gets new queue
 * pairs instead. */
static hk_status read_back(hk_ib_conn *c, uint32_t path, const void *at, uint32_t rkey, bool *posted) {
  hk_ib_reader *r = &c->flush.readers[path];
  hk_ibv_send_wr *bad;
  *posted = false;
  if (!r->qp) HK_OR_RETURN(make_reader(c, path));
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
static hk_status read_all(hk_ib_conn *c, const void *at) {
  hk_ib_flush *f = &c->flush;
  uint64_t arrived = hk_ib_arrived_to(c);
  bool posted = true, any = false;
  for (uint32_t i = 0; i < c->npaths && posted; i++) {
    if (!f->readers[i].dirty) continue;
    HK_OR_RETURN(read_back(c, i, at, c->paths[i].recv_mr->rkey, &posted));
    any = true;
  }
  if (!posted) return HK_OK; /* what has arrived is read again over the new paths */
  *(any ? &f->asked : &f->seen) = arrived;
  return HK_OK;
}

/* One flush makes everything visible that has arrived before it. */
hk_status hk_ib_gpu_visible(hk_ib_conn *c, uint64_t k, bool *yes) {
  hk_status rc = HK_OK;
  hk_ib_flush *f = &c->flush;
  hk_device *gpu = c->recv->link->gpu;
  if (c->ctx->gpu.flushing == HK_IB_NO_FLUSH || k < f->seen) {
    *yes = true;
    return HK_OK;
  }
  if (c->ctx->gpu.flushing == HK_IB_DRIVER_FLUSH) {
    uint64_t arrived = hk_ib_arrived_to(c);
    HK_TRY(gpu->ops->rdma_flush(gpu), out);
    f->seen = arrived;
  } else if (!f->asked) {
    HK_TRY(read_all(c, hk_net_payload(c->recv, k)), out);
  }
out:
  *yes = k < f->seen;
  return rc;
}

hk_status hk_ib_gpu_flushed(hk_ib_conn *c, uint32_t path, const hk_ibv_wc *wc) {
  hk_ib_flush *f = &c->flush;
  if (wc->status != HK_IBV_WC_SUCCESS &&
      c->recv) { /* an end that was closed meanwhile has no memory any more: no error */
    hk_ib_gpu_drop(c);
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
void hk_ib_gpu_drop(hk_ib_conn *c) {
  hk_ib_flush *f = &c->flush;
  f->asked = 0;
  for (hk_ib_reader *r = f->readers; r < f->readers + HK_IB_PATHS; r++) {
    if (r->qp) c->ctx->api->destroy_qp(r->qp);
    hk_ib_cq_give(&r->cq, FLUSH_ENTRIES);
    *r = (hk_ib_reader){.dirty = true};
  }
}
