/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs without a card: reliable queue pairs between the threads of one process.  Here are devices, memory and queues;
 * verbs_requests.c has what goes over them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include "verbs_parts.h"

fake_verbs_state fake_verbs = {.lock = PTHREAD_MUTEX_INITIALIZER};
qp *qps[QPS];
memory *mrs[MRS];
context *contexts;
static int free_qps = 1, free_mrs; /* none below is free */
static device devices[FAKE_VERBS_DEVICES];
static context *last_event;  /* whose asynchronous event was taken last */
static uint32_t generations; /* of keys: one that was given back is not valid again soon */

__attribute__((constructor)) static void begin(void) {
  char text[256];
  const char *names = getenv("HOCKET_TEST_VERBS"), *lockable = getenv("HOCKET_TEST_LOCKABLE");
  if (lockable) fake_verbs.lockable = strtoull(lockable, NULL, 0);
  snprintf(text, sizeof text, "%s", names ? names : "");
  for (char *save = NULL, *name = strtok_r(text, ",", &save); name && fake_verbs.ndevices < FAKE_VERBS_DEVICES;
       name = strtok_r(NULL, ",", &save))
    snprintf(fake_verbs.device[fake_verbs.ndevices++].name, sizeof fake_verbs.device[0].name, "%s", name);
}

/* ---- devices ---- */

EXPORT hk_ibv_device **ibv_get_device_list(int *n);
EXPORT void ibv_free_device_list(hk_ibv_device **list);
EXPORT hk_ibv_context *ibv_open_device(hk_ibv_device *d);
EXPORT int ibv_close_device(hk_ibv_context *c);
EXPORT int ibv_query_device(hk_ibv_context *c, hk_ibv_device_attr *attr);
EXPORT int ibv_query_port(hk_ibv_context *c, uint8_t port, hk_ibv_port_attr *attr);
EXPORT int ibv_query_gid(hk_ibv_context *c, uint8_t port, int index, hk_ibv_gid *gid);
EXPORT int ibv_get_async_event(hk_ibv_context *c, hk_ibv_async_event *e);
EXPORT void ibv_ack_async_event(hk_ibv_async_event *e);
EXPORT hk_ibv_pd *ibv_alloc_pd(hk_ibv_context *c);
EXPORT int ibv_dealloc_pd(hk_ibv_pd *pd);
EXPORT hk_ibv_mr *ibv_reg_mr(hk_ibv_pd *pd, void *addr, size_t bytes, int access);
EXPORT hk_ibv_mr *ibv_reg_mr_iova2(hk_ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access);
EXPORT hk_ibv_mr *ibv_reg_dmabuf_mr(hk_ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access);
EXPORT int ibv_dereg_mr(hk_ibv_mr *mr);
EXPORT hk_ibv_channel *ibv_create_comp_channel(hk_ibv_context *c);
EXPORT int ibv_destroy_comp_channel(hk_ibv_channel *ch);
EXPORT int ibv_get_cq_event(hk_ibv_channel *ch, hk_ibv_cq **cq, void **cq_context);
EXPORT void ibv_ack_cq_events(hk_ibv_cq *cq, unsigned n);
EXPORT hk_ibv_cq *ibv_create_cq(hk_ibv_context *c, int cqe, void *cq_context, hk_ibv_channel *ch, int vector);
EXPORT int ibv_destroy_cq(hk_ibv_cq *cq);
EXPORT hk_ibv_qp *ibv_create_qp(hk_ibv_pd *pd, hk_ibv_qp_init_attr *attr);
EXPORT int ibv_modify_qp(hk_ibv_qp *v, hk_ibv_qp_attr *attr, int mask);
EXPORT int ibv_destroy_qp(hk_ibv_qp *v);
EXPORT int ibv_query_ece(hk_ibv_qp *v, hk_ibv_ece *ece);
EXPORT int ibv_set_ece(hk_ibv_qp *v, hk_ibv_ece *ece);
EXPORT int ibv_fork_init(void);

hk_ibv_device **ibv_get_device_list(int *n) {
  hk_ibv_device **list = calloc(FAKE_VERBS_DEVICES + 1, sizeof *list);
  for (int i = 0; list && i < fake_verbs.ndevices; i++) {
    device *d = &devices[i];
    lock(); /* several ranks ask at once, and then look at what the first one has written */
    if (strcmp(d->v.name, fake_verbs.device[i].name) != 0) {
      d->index = i;
      snprintf(d->v.name, sizeof d->v.name, "%s", fake_verbs.device[i].name);
    }
    unlock();
    list[i] = &d->v;
  }
  *n = fake_verbs.ndevices;
  lock();
  fake_verbs.nlists++;
  unlock();
  return list;
}
void ibv_free_device_list(hk_ibv_device **list) {
  lock();
  fake_verbs.nlists--;
  unlock();
  free(list);
}
int ibv_fork_init(void) {
  lock();
  fake_verbs.forks++;
  unlock();
  return 0;
}
static void add_user(const hk_ibv_context *c, int n) {
  lock();
  ((context *)(uintptr_t)c)->users += n;
  unlock();
}
hk_ibv_context *ibv_open_device(hk_ibv_device *d) {
  const int index = ((device *)d)->index;
  fake_verbs_device *f = &fake_verbs.device[index];
  lock();
  errno = f->dead ? EIO : f->refuses_open;
  if (f->dead && f->returns && !--f->returns) f->dead = 0;
  unlock();
  if (!errno && fake_verbs.closed) errno = fake_verbs.closed(index);
  context *c = errno ? NULL : calloc(1, sizeof *c);
  if (!c || pipe2(c->events, O_CLOEXEC) != 0) {
    free(c);
    return NULL;
  }
  c->v.device = d;
  lock();
  fake_verbs.opened++;
  fake_verbs.ncontexts++;
  c->next = contexts;
  contexts = c;
  unlock();
  set_operations(&c->v);
  c->v.async_fd = c->events[0];
  return &c->v;
}
int ibv_close_device(hk_ibv_context *c) {
  lock();
  must(!((context *)c)->users, "a device is closed that has protection domains, queues or channels");
  must(!((context *)c)->unacked, "a device is closed with an event that was not acknowledged");
  context **at = &contexts;
  while (*at != (context *)c) at = &(*at)->next;
  *at = (*at)->next;
  fake_verbs.ncontexts--;
  unlock();
  close(((context *)c)->events[0]);
  close(((context *)c)->events[1]);
  free(c);
  return 0;
}
int ibv_query_device(hk_ibv_context *c, hk_ibv_device_attr *attr) {
  const fake_verbs_device *d = &fake_verbs.device[index_of(c)];
  *attr = (hk_ibv_device_attr){.max_qp = QPS,
                               .max_qp_wr = d->max_wr ? d->max_wr : MAX_WR,
                               .max_cqe = d->max_cqe ? d->max_cqe : 1 << 20,
                               .phys_port_cnt = 1};
  return 0;
}
static int mtu_of(const hk_ibv_context *c) {
  const int mtu = fake_verbs.device[index_of(c)].mtu;
  return mtu ? mtu : 5;
}
int ibv_query_port(hk_ibv_context *c, uint8_t port, hk_ibv_port_attr *attr) {
  const fake_verbs_device *d = &fake_verbs.device[index_of(c)];
  if (port != 1) return EINVAL;
  if (d->unreadable) return d->unreadable;
  lock();
  *attr = (hk_ibv_port_attr){.state = d->state  ? d->state
                                      : d->down ? HK_IBV_PORT_DOWN
                                                : HK_IBV_PORT_ACTIVE,
                             .max_mtu = 5,
                             .active_mtu = mtu_of(c),
                             .gid_tbl_len = FAKE_VERBS_GIDS,
                             .link_layer = HK_IBV_LAYER_ETHERNET,
                             .flags = (uint8_t)fake_verbs.flags};
  unlock();
  return 0;
}
/* The fake /sys that goes with it has the addresses. */
int ibv_query_gid(hk_ibv_context *c, uint8_t port, int index, hk_ibv_gid *gid) {
  (void)c, (void)port, (void)index;
  memset(gid, 0, sizeof *gid);
  return -1;
}
int ibv_get_async_event(hk_ibv_context *c, hk_ibv_async_event *e) {
  if (read(c->async_fd, e, sizeof *e) != (ssize_t)sizeof *e) return -1;
  lock();
  last_event = (context *)c;
  last_event->unacked++;
  unlock();
  return 0;
}
/* Each event is acknowledged before the next one is taken. */
void ibv_ack_async_event(hk_ibv_async_event *e) {
  (void)e;
  lock();
  must(last_event && last_event->unacked == 1, "an event is acknowledged that was not taken, or was before");
  last_event->unacked = 0;
  last_event = NULL;
  unlock();
}
hk_ibv_pd *ibv_alloc_pd(hk_ibv_context *c) {
  domain *pd = calloc(1, sizeof *pd);
  if (!pd) return NULL;
  pd->v.context = c;
  lock();
  fake_verbs.npds++;
  unlock();
  add_user(c, 1);
  return &pd->v;
}
int ibv_dealloc_pd(hk_ibv_pd *pd) {
  add_user(pd->context, -1);
  lock();
  must(!((domain *)pd)->users, "a protection domain is freed that has memory or queue pairs");
  fake_verbs.npds--;
  unlock();
  free(pd);
  return 0;
}

/* ---- memory ---- */

static int is_fixed(const char *at, size_t bytes) {
  return at < fake_verbs.fixed + fake_verbs.fixed_bytes && at + bytes > fake_verbs.fixed;
}

static hk_ibv_mr *add_memory(hk_ibv_pd *pd, memory want) {
  const int remote = HK_IBV_ACCESS_REMOTE_WRITE, local = HK_IBV_ACCESS_LOCAL_WRITE;
  must(!(want.access & remote) || want.access & local, "memory that others may write must be writable here");
  must(fake_verbs.forks, "memory is registered before ibv_fork_init: a fork would take its pages away");
  memory *m = calloc(1, sizeof *m);
  lock();
  uint32_t i = (uint32_t)free_mrs;
  while (i < MRS && mrs[i]) i++;
  free_mrs = (int)i;
  if (!m || i == MRS || fake_verbs.device[index_of(pd->context)].full ||
      (fake_verbs.lockable && fake_verbs.locked + want.v.length > fake_verbs.lockable)) {
    unlock();
    free(m);
    errno = ENOMEM;
    return NULL;
  }
  *m = want;
  m->v.context = pd->context;
  m->v.pd = pd;
  m->v.lkey = m->v.rkey = ++generations << 17 | i << 1 | 1;
  mrs[i] = m;
  ((domain *)pd)->users++;
  if (m->access & HK_IBV_ACCESS_RELAXED_ORDERING) fake_verbs.relaxed += want.v.length;
  fake_verbs.nmrs++;
  fake_verbs.registered++;
  fake_verbs.locked += want.v.length;
  TRACE("memory %u: %zu bytes on device %d, access %#x", i, want.v.length, index_of(pd->context),
        (unsigned)want.access);
  unlock();
  return &m->v;
}
hk_ibv_mr *ibv_reg_mr_iova2(hk_ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access) {
  char *at = addr;
  if ((on_gpu(at) && !fake_verbs.peermem) || (access & HK_IBV_ACCESS_LOCAL_WRITE && is_fixed(at, bytes))) {
    errno = EFAULT;
    return NULL;
  }
  return add_memory(pd,
                    (memory){.v = {.addr = addr, .length = bytes}, .host = at, .iova = iova, .access = (int)access});
}
hk_ibv_mr *ibv_reg_mr(hk_ibv_pd *pd, void *addr, size_t bytes, int access) {
  return ibv_reg_mr_iova2(pd, addr, bytes, (uint64_t)(uintptr_t)addr, (unsigned)access);
}
hk_ibv_mr *ibv_reg_dmabuf_mr(hk_ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) {
  errno = fake_verbs.dmabuf_refusal;
  lock();
  if (!errno && fake_verbs.dmabuf_most && fake_verbs.dmabufs >= fake_verbs.dmabuf_most) errno = ENOSPC;
  fake_verbs.dmabufs += !errno; /* at once: others may ask meanwhile */
  unlock();
  if (errno) return NULL;
  off_t begin = lseek(fd, 0, SEEK_CUR); /* the emulated CUDA driver's buffers begin at their file's position */
  void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin + (off_t)offset);
  hk_ibv_mr *mr = map == MAP_FAILED ? NULL
                                    : add_memory(pd, (memory){.v = {.addr = (void *)(uintptr_t)offset, .length = bytes},
                                                              .host = map,
                                                              .iova = iova,
                                                              .access = access,
                                                              .map = map});
  if (mr) return mr;
  int err = errno;
  if (map != MAP_FAILED) munmap(map, bytes);
  lock();
  fake_verbs.dmabufs--;
  unlock();
  errno = err;
  return NULL;
}
int ibv_dereg_mr(hk_ibv_mr *v) {
  memory *m = (memory *)v;
  lock();
  if (!m->map && !on_gpu(m->host)) (void)*(volatile char *)m->host; /* memory must exist until it is deregistered */
  const uint32_t i = index_of_key(v->lkey);
  must(mrs[i] == m, "memory is deregistered that is not registered");
  TRACE("memory %u: given back", i);
  mrs[i] = NULL;
  if ((int)i < free_mrs) free_mrs = (int)i;
  ((domain *)v->pd)->users--;
  if (m->access & HK_IBV_ACCESS_RELAXED_ORDERING) fake_verbs.relaxed -= v->length;
  fake_verbs.nmrs--;
  fake_verbs.locked -= v->length;
  if (m->map || on_gpu(m->host)) drop_late(m->host, v->length);
  unlock();
  if (m->map) munmap(m->map, v->length);
  free(m);
  return 0;
}

/* ---- queues ---- */

hk_ibv_channel *ibv_create_comp_channel(hk_ibv_context *c) {
  channel *ch = fake_verbs.without_channels ? NULL : calloc(1, sizeof *ch);
  if (ch) ch->v = (hk_ibv_channel){.context = c, .fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)};
  lock();
  fake_verbs.nchannels += ch != NULL;
  unlock();
  if (ch) add_user(c, 1);
  return ch ? &ch->v : NULL;
}
int ibv_destroy_comp_channel(hk_ibv_channel *ch) {
  must(!((channel *)ch)->users, "a completion channel is destroyed that has queues");
  add_user(ch->context, -1);
  lock();
  fake_verbs.nchannels--;
  unlock();
  close(ch->fd);
  free(ch);
  return 0;
}
int ibv_get_cq_event(hk_ibv_channel *v, hk_ibv_cq **cq, void **cq_context) {
  channel *ch = (channel *)v;
  uint64_t one;
  if (read(v->fd, &one, sizeof one) < 0) return -1;
  lock();
  *cq = &ch->fired[0]->v;
  ch->fired[0]->unacked++;
  fake_verbs.heard++;
  memmove(ch->fired, ch->fired + 1, (size_t)--ch->nfired * sizeof ch->fired[0]);
  unlock();
  *cq_context = (*cq)->cq_context;
  return 0;
}
void ibv_ack_cq_events(hk_ibv_cq *cq, unsigned n) {
  lock();
  ((queue *)cq)->unacked -= (int)n;
  unlock();
}
hk_ibv_cq *ibv_create_cq(hk_ibv_context *c, int cqe, void *cq_context, hk_ibv_channel *ch, int vector) {
  (void)vector;
  queue *q = calloc(1, sizeof *q);
  if (q && !(q->entries = calloc((size_t)cqe, sizeof *q->entries))) {
    free(q);
    q = NULL;
  }
  if (!q) return NULL;
  q->v.context = c;
  q->v.channel = ch;
  q->v.cq_context = cq_context;
  q->v.cqe = cqe;
  add_user(c, 1);
  lock();
  if (ch) ((channel *)ch)->users++;
  TRACE("cq of device %d: %d entries%s", index_of(c), cqe, ch ? ", reports" : "");
  fake_verbs.ncqs++;
  unlock();
  return &q->v;
}
int ibv_destroy_cq(hk_ibv_cq *v) {
  const queue *q = (queue *)v;
  add_user(v->context, -1);
  lock();
  must(!q->taken, "a completion queue is destroyed that has queue pairs");
  must(!q->unacked, "a completion queue is destroyed with events that were not acknowledged: that waits for ever");
  if (v->channel) ((channel *)v->channel)->users--;
  fake_verbs.ncqs--;
  unlock();
  free(q->entries);
  free(v);
  return 0;
}
static void free_qp(qp *p) {
  if (p) free(p->send);
  if (p) free(p->recv);
  free(p);
}
/* A card lets a completion queue overflow. */
static void take_entries(hk_ibv_cq *v, int entries) {
  queue *q = (queue *)v;
  q->taken += entries;
  must(q->taken <= v->cqe, "queue pairs need more entries than their completion queue has");
}
hk_ibv_qp *ibv_create_qp(hk_ibv_pd *pd, hk_ibv_qp_init_attr *attr) {
  errno = EINVAL;
  const uint32_t most = fake_verbs.device[index_of(pd->context)].inline_most;
  if (attr->cap.max_inline_data > (most ? most : MAX_INLINE) || attr->cap.max_send_wr > MAX_WR ||
      attr->cap.max_send_sge > 1)
    return NULL;
  qp *p = calloc(1, sizeof *p);
  if (!p || !(p->send = calloc(attr->cap.max_send_wr, sizeof *p->send)) ||
      !(p->recv = calloc(attr->cap.max_recv_wr, sizeof *p->recv))) {
    free_qp(p);
    return NULL;
  }
  p->v.context = pd->context;
  p->v.pd = pd;
  p->v.send_cq = attr->send_cq;
  p->v.recv_cq = attr->recv_cq;
  p->device = index_of(pd->context);
  p->to_device = -1;
  p->inline_most = attr->cap.max_inline_data;
  p->depth = attr->cap.max_send_wr;
  p->recv_depth = attr->cap.max_recv_wr;
  p->all = attr->sq_sig_all;
  p->ece = fake_verbs.device[p->device].ece;
  lock();
  uint32_t i = (uint32_t)free_qps; /* no queue pair has number 0 */
  while (i < QPS && qps[i]) i++;
  free_qps = (int)i;
  if (i < QPS) {
    qps[i] = p;
    p->v.qp_num = i;
    fake_verbs.nqps++;
    ((domain *)pd)->users++;
    take_entries(attr->send_cq, (int)p->depth);
    take_entries(attr->recv_cq, (int)p->recv_depth);
    TRACE("qp %u: made on device %d, %u sends, %u receives, %u inline bytes%s", i, p->device, p->depth, p->recv_depth,
          p->inline_most, p->all ? ", all report" : "");
  }
  unlock();
  if (i == QPS) {
    free_qp(p);
    errno = ENOMEM;
    return NULL;
  }
  return &p->v;
}
/* What a reliable queue pair needs for each state: ibv_modify_qp(3). */
static int is_complete(int state, int mask) {
  static const int needed[] = {[HK_IBV_QPS_INIT] = HK_IBV_QP_PKEY_INDEX | HK_IBV_QP_PORT | HK_IBV_QP_ACCESS_FLAGS,
                               [HK_IBV_QPS_RTR] = HK_IBV_QP_AV | HK_IBV_QP_PATH_MTU | HK_IBV_QP_DEST_QPN |
                                                  HK_IBV_QP_RQ_PSN | HK_IBV_QP_MAX_DEST_RD_ATOMIC |
                                                  HK_IBV_QP_MIN_RNR_TIMER,
                               [HK_IBV_QPS_RTS] = HK_IBV_QP_TIMEOUT | HK_IBV_QP_RETRY_CNT | HK_IBV_QP_RNR_RETRY |
                                                  HK_IBV_QP_SQ_PSN | HK_IBV_QP_MAX_QP_RD_ATOMIC,
                               [HK_IBV_QPS_ERR] = 0};
  return (mask & needed[state]) == needed[state];
}
static int is_possible(const qp *p, const hk_ibv_qp_attr *a, int mask) {
  const int from = a->qp_state == HK_IBV_QPS_ERR ? p->v.state : a->qp_state - 1;
  if (p->v.state != from || !is_complete(a->qp_state, mask)) return 0;
  if (a->qp_state == HK_IBV_QPS_INIT) return a->port_num == 1;
  if (a->qp_state == HK_IBV_QPS_RTR)
    return a->ah_attr.port_num == 1 && a->path_mtu >= 1 && a->path_mtu <= mtu_of(p->v.context);
  return a->qp_state != HK_IBV_QPS_RTS || (a->timeout < 32 && a->retry_cnt < 8 && a->rnr_retry < 8);
}
static void set_route(qp *p, const hk_ibv_qp_attr *a) {
  const hk_ibv_ah_attr *to = &a->ah_attr;
  p->dest = a->dest_qp_num;
  p->mtu = (uint32_t)a->path_mtu;
  p->rq_psn = a->rq_psn;
  p->reads_in = a->max_dest_rd_atomic;
  p->sgid = to->grh.sgid_index;
  p->to_device = to->is_global ? to->grh.dgid.raw[15] - 1 : -1;
  fake_verbs.traffic_class = p->traffic_class = to->grh.traffic_class;
  fake_verbs.service_level = to->sl;
  fake_verbs.dlid = to->dlid;
  fake_verbs.global = to->is_global;
  fake_verbs.device[p->device].agreed = p->ece;
}
int ibv_modify_qp(hk_ibv_qp *v, hk_ibv_qp_attr *attr, int mask) {
  qp *p = (qp *)v;
  lock();
  const int err = mask & HK_IBV_QP_STATE && is_possible(p, attr, mask) ? 0 : EINVAL;
  if (!err) p->v.state = attr->qp_state;
  if (!err && attr->qp_state == HK_IBV_QPS_INIT) p->access = attr->qp_access_flags;
  if (!err && attr->qp_state == HK_IBV_QPS_RTR) set_route(p, attr);
  if (!err && attr->qp_state == HK_IBV_QPS_RTS) {
    p->sq_psn = attr->sq_psn;
    p->reads_out = attr->max_rd_atomic;
    fake_verbs.timeout = attr->timeout;
    fake_verbs.retries = attr->retry_cnt;
  }
  if (attr->qp_state == HK_IBV_QPS_INIT)
    TRACE("qp %u: begins, access %#x, partition %d%s", v->qp_num, attr->qp_access_flags, attr->pkey_index,
          err ? " (refused)" : "");
  else if (attr->qp_state == HK_IBV_QPS_RTR)
    TRACE("qp %u: to %u, first packet %u, MTU %d, GID %u %d to %d, class %u, hops %u, level %u, reads %u, timer %u%s",
          v->qp_num, attr->dest_qp_num, attr->rq_psn, attr->path_mtu, attr->ah_attr.grh.sgid_index,
          attr->ah_attr.is_global, attr->ah_attr.grh.dgid.raw[15], attr->ah_attr.grh.traffic_class,
          attr->ah_attr.grh.hop_limit, attr->ah_attr.sl, attr->max_dest_rd_atomic, attr->min_rnr_timer,
          err ? " (refused)" : "");
  else if (attr->qp_state == HK_IBV_QPS_RTS)
    TRACE("qp %u: sends, first packet %u, timeout %u, %u tries, %u if not ready, reads %u%s", v->qp_num, attr->sq_psn,
          attr->timeout, attr->retry_cnt, attr->rnr_retry, attr->max_rd_atomic, err ? " (refused)" : "");
  else
    TRACE("qp %u: stops", v->qp_num);
  if (!err && p->v.state == HK_IBV_QPS_ERR) fail_qp(p);
  unlock();
  return err;
}
int ibv_query_ece(hk_ibv_qp *v, hk_ibv_ece *ece) {
  qp *p = (qp *)v;
  if (!fake_verbs.device[p->device].ece) return EOPNOTSUPP;
  *ece = (hk_ibv_ece){.vendor_id = 0x15b3, .options = p->ece};
  return 0;
}
/* A card takes of what it is given what it knows. */
int ibv_set_ece(hk_ibv_qp *v, hk_ibv_ece *ece) {
  qp *p = (qp *)v;
  if (!fake_verbs.device[p->device].ece) return EOPNOTSUPP;
  if (ece->vendor_id != 0x15b3 || p->v.state >= HK_IBV_QPS_RTR) return EINVAL;
  p->ece &= ece->options;
  return 0;
}
int ibv_destroy_qp(hk_ibv_qp *v) {
  qp *p = (qp *)v;
  lock();
  TRACE("qp %u: ends", v->qp_num);
  qps[v->qp_num] = NULL;
  if ((int)v->qp_num < free_qps) free_qps = (int)v->qp_num;
  fake_verbs.nqps--;
  ((domain *)v->pd)->users--;
  forget_qp(p);
  take_entries(p->v.send_cq, -(int)p->depth);
  take_entries(p->v.recv_cq, -(int)p->recv_depth);
  unlock();
  free_qp(p);
  return 0;
}
