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
  return list;
}
void ibv_free_device_list(hk_ibv_device **list) { free(list); }
hk_ibv_context *ibv_open_device(hk_ibv_device *d) {
  errno = fake_verbs.device[((device *)d)->index].refuses_open;
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
  (void)c;
  *attr = (hk_ibv_device_attr){.max_qp = QPS, .max_qp_wr = MAX_WR, .max_cqe = 1 << 20, .phys_port_cnt = 1};
  return 0;
}
int ibv_query_port(hk_ibv_context *c, uint8_t port, hk_ibv_port_attr *attr) {
  if (port != 1) return EINVAL;
  lock();
  *attr = (hk_ibv_port_attr){.state = fake_verbs.device[index_of(c)].down ? HK_IBV_PORT_DOWN : HK_IBV_PORT_ACTIVE,
                             .max_mtu = 5,
                             .active_mtu = 5,
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
  return read(c->async_fd, e, sizeof *e) == (ssize_t)sizeof *e ? 0 : -1;
}
void ibv_ack_async_event(hk_ibv_async_event *e) { (void)e; }
hk_ibv_pd *ibv_alloc_pd(hk_ibv_context *c) {
  hk_ibv_pd *pd = calloc(1, sizeof *pd);
  if (pd) pd->context = c;
  return pd;
}
int ibv_dealloc_pd(hk_ibv_pd *pd) {
  free(pd);
  return 0;
}

/* ---- memory ---- */

static hk_ibv_mr *add_memory(hk_ibv_pd *pd, memory want) {
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
  m->v.lkey = m->v.rkey = i << 1 | 1;
  mrs[i] = m;
  fake_verbs.nmrs++;
  fake_verbs.registered++;
  fake_verbs.locked += want.v.length;
  unlock();
  return &m->v;
}
hk_ibv_mr *ibv_reg_mr_iova2(hk_ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access) {
  char *at = addr;
  if (on_gpu(at) && !fake_verbs.peermem) {
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
  mrs[v->lkey >> 1] = NULL;
  if ((int)(v->lkey >> 1) < free_mrs) free_mrs = (int)(v->lkey >> 1);
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
  return ch ? &ch->v : NULL;
}
int ibv_destroy_comp_channel(hk_ibv_channel *ch) {
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
  fake_verbs.heard++;
  memmove(ch->fired, ch->fired + 1, (size_t)--ch->nfired * sizeof ch->fired[0]);
  unlock();
  *cq_context = (*cq)->cq_context;
  return 0;
}
void ibv_ack_cq_events(hk_ibv_cq *cq, unsigned n) { (void)cq, (void)n; }
hk_ibv_cq *ibv_create_cq(hk_ibv_context *c, int cqe, void *cq_context, hk_ibv_channel *ch, int vector) {
  (void)vector;
  queue *q = calloc(1, sizeof *q);
  if (q && !(q->wc = calloc((size_t)cqe, sizeof *q->wc))) {
    free(q);
    q = NULL;
  }
  if (!q) return NULL;
  q->v.context = c;
  q->v.channel = ch;
  q->v.cq_context = cq_context;
  q->v.cqe = cqe;
  lock();
  fake_verbs.ncqs++;
  unlock();
  return &q->v;
}
int ibv_destroy_cq(hk_ibv_cq *v) {
  lock();
  fake_verbs.ncqs--;
  unlock();
  free(((queue *)v)->wc);
  free(v);
  return 0;
}
static void free_qp(qp *p) {
  if (p) free(p->send);
  if (p) free(p->recv);
  free(p);
}
/* A card lets a completion queue overflow. This one ends a program whose queue pairs need more than the queue has. */
static void take_entries(hk_ibv_cq *v, int entries) {
  queue *q = (queue *)v;
  q->taken += entries;
  if (q->taken > v->cqe) abort();
}
hk_ibv_qp *ibv_create_qp(hk_ibv_pd *pd, hk_ibv_qp_init_attr *attr) {
  errno = EINVAL;
  if (attr->cap.max_inline_data > MAX_INLINE || attr->cap.max_send_wr > MAX_WR || attr->cap.max_send_sge > 1)
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
    take_entries(attr->send_cq, (int)p->depth);
    take_entries(attr->recv_cq, (int)p->recv_depth);
  }
  unlock();
  if (i == QPS) {
    free_qp(p);
    errno = ENOMEM;
    return NULL;
  }
  return &p->v;
}
int ibv_modify_qp(hk_ibv_qp *v, hk_ibv_qp_attr *attr, int mask) {
  qp *p = (qp *)v;
  int err = 0;
  lock();
  if (mask & HK_IBV_QP_STATE) {
    int from = attr->qp_state == HK_IBV_QPS_ERR ? p->v.state : attr->qp_state - 1;
    if (p->v.state != from || (attr->qp_state == HK_IBV_QPS_INIT && attr->port_num != 1)) err = EINVAL;
    if (!err) p->v.state = attr->qp_state;
  }
  if (!err && mask & HK_IBV_QP_DEST_QPN) p->dest = attr->dest_qp_num;
  if (!err && mask & HK_IBV_QP_AV) {
    p->sgid = attr->ah_attr.grh.sgid_index;
    fake_verbs.traffic_class = attr->ah_attr.grh.traffic_class;
    fake_verbs.service_level = attr->ah_attr.sl;
    fake_verbs.dlid = attr->ah_attr.dlid;
    fake_verbs.global = attr->ah_attr.is_global;
  }
  if (!err && mask & HK_IBV_QP_STATE && p->v.state == HK_IBV_QPS_RTR) fake_verbs.device[p->device].agreed = p->ece;
  if (!err && mask & HK_IBV_QP_TIMEOUT) fake_verbs.timeout = attr->timeout;
  if (!err && mask & HK_IBV_QP_RETRY_CNT) fake_verbs.retries = attr->retry_cnt;
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
  qps[v->qp_num] = NULL;
  if ((int)v->qp_num < free_qps) free_qps = (int)v->qp_num;
  fake_verbs.nqps--;
  take_entries(p->v.send_cq, -(int)p->depth);
  take_entries(p->v.recv_cq, -(int)p->recv_depth);
  unlock();
  free_qp(p);
  return 0;
}
