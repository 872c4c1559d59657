/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs without a card: reliable queue pairs between the threads of one process.  A request is carried out when it is posted,
 * or when the receive that it needs is: under one lock, so that nothing is ever on its way. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../src/base/verbs_abi.h"
#include "verbs.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT extern fake_verbs_state fake_verbs;
fake_verbs_state fake_verbs = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum { QPS = 512, MRS = 1024, MAX_WR = 16384, MAX_INLINE = 512, EVENTS = 64, SMALL = 4096 };

typedef struct device {
  hk_ibv_device v; /* first: callers hold pointers to these */
  int index;
} device;
typedef struct context {
  hk_ibv_context v;
  int events[2]; /* a pipe of asynchronous ones */
} context;
typedef struct memory {
  hk_ibv_mr v;
  char *host; /* where address `iova` lies */
  uint64_t iova;
  int access;
  void *map;
} memory;
typedef struct queue {
  hk_ibv_cq v;
  hk_ibv_wc *wc;
  uint32_t head, tail;
  int armed, full;
} queue;
typedef struct channel {
  hk_ibv_channel v;
  queue *fired[EVENTS];
  int nfired;
} channel;
typedef struct request {
  hk_ibv_send_wr wr;
  hk_ibv_sge sge;
  char inlined[MAX_INLINE];
} request;
typedef struct qp {
  hk_ibv_qp v;
  int device, all;
  uint32_t depth, recv_depth, dest, sgid;
  request *send;
  uint64_t *recv;
  uint32_t ece;
  uint32_t first, last, recv_first, recv_last; /* counted from 0 */
} qp;

static device devices[FAKE_VERBS_DEVICES];
static qp *qps[QPS];
static memory *mrs[MRS];

__attribute__((constructor)) static void begin(void) {
  char text[256];
  const char *names = getenv("HOCKET_TEST_VERBS"), *lockable = getenv("HOCKET_TEST_LOCKABLE");
  if (lockable) fake_verbs.lockable = strtoull(lockable, NULL, 0);
  snprintf(text, sizeof text, "%s", names ? names : "");
  for (char *save = NULL, *name = strtok_r(text, ",", &save); name && fake_verbs.ndevices < FAKE_VERBS_DEVICES;
       name = strtok_r(NULL, ",", &save))
    snprintf(fake_verbs.device[fake_verbs.ndevices++].name, sizeof fake_verbs.device[0].name, "%s", name);
}
static void lock(void) { pthread_mutex_lock(&fake_verbs.lock); }
static void unlock(void) { pthread_mutex_unlock(&fake_verbs.lock); }
static int index_of(const hk_ibv_context *c) { return ((device *)(void *)c->device)->index; }

/* ---- completions ---- */

static void tell_event(hk_ibv_context *c, int type, void *object) {
  hk_ibv_async_event e = {.event_type = type};
  e.element.object = object;
  if (write(((context *)c)->events[1], &e, sizeof e) < 0) abort();
}

static void complete(queue *q, hk_ibv_wc wc) {
  if (q->full) return;
  if ((fake_verbs.overrun > 0 && !fake_verbs.skip) || q->tail - q->head == (uint32_t)q->v.cqe) {
    if (fake_verbs.overrun > 0) fake_verbs.overrun--;
    q->full = 1; /* dead from here on, as a card's is */
    tell_event(q->v.context, HK_IBV_EVENT_CQ_ERR, q);
    return;
  }
  q->wc[q->tail++ % (uint32_t)q->v.cqe] = wc;
  channel *ch = (channel *)q->v.channel;
  uint64_t one = 1;
  if (!q->armed || !ch || ch->nfired == EVENTS) return;
  q->armed = 0;
  ch->fired[ch->nfired++] = q;
  if (write(ch->v.fd, &one, sizeof one) < 0) abort();
}

static void end_request(qp *p, int status) {
  request *r = &p->send[p->first % p->depth];
  static const int opcodes[] = {[HK_IBV_WR_RDMA_WRITE] = 1, [HK_IBV_WR_RDMA_WRITE_WITH_IMM] = 1};
  hk_ibv_wc wc = {.wr_id = r->wr.wr_id, .status = status, .qp_num = p->v.qp_num};
  wc.opcode = r->wr.opcode <= HK_IBV_WR_RDMA_WRITE_WITH_IMM ? opcodes[r->wr.opcode] : 2;
  if (status || p->all || r->wr.send_flags & HK_IBV_SEND_SIGNALED) {
    fake_verbs.reports++;
    complete((queue *)p->v.send_cq, wc);
  }
  p->first++;
}

static void fail_qp(qp *p) {
  p->v.state = HK_IBV_QPS_ERR;
  while (p->first != p->last) end_request(p, HK_IBV_WC_WR_FLUSH_ERR);
  for (; p->recv_first != p->recv_last; p->recv_first++)
    complete((queue *)p->v.recv_cq, (hk_ibv_wc){.wr_id = p->recv[p->recv_first % p->recv_depth],
                                                .status = HK_IBV_WC_WR_FLUSH_ERR,
                                                .opcode = HK_IBV_WC_RECV,
                                                .qp_num = p->v.qp_num});
}

/* ---- writes to GPUs that nobody sees yet ---- */

typedef struct late {
  char *to;
  size_t bytes;
  struct late *next;
  char data[];
} late;
static late *oldest, **newest = &oldest;

static int on_gpu(const char *at) { return at >= fake_verbs.gpu && at < fake_verbs.gpu + fake_verbs.gpu_bytes; }
static void keep(char *to, const char *from, size_t bytes) {
  late *l = malloc(sizeof *l + bytes);
  if (!l) abort();
  *l = (late){.to = to, .bytes = bytes};
  memcpy(l->data, from, bytes);
  *newest = l;
  newest = &l->next;
}
/* Memory that is taken back drops what was on its way there. */
static void end_late(const char *only, size_t bytes, int write) {
  fake_verbs.flushes += write && oldest;
  for (late **at = &oldest; *at;) {
    late *l = *at;
    if (only && !(l->to >= only && l->to < only + bytes)) {
      at = &l->next;
      continue;
    }
    if (write) memcpy(l->to, l->data, l->bytes);
    *at = l->next;
    free(l);
  }
  newest = &oldest;
  while (*newest) newest = &(*newest)->next;
}
EXPORT void fake_verbs_flush(void);
void fake_verbs_flush(void) {
  lock();
  end_late(NULL, 0, 1);
  unlock();
}

/* ---- requests ---- */

static memory *find_memory(const hk_ibv_context *c, uint32_t key, uint64_t at, uint64_t bytes, int access) {
  memory *m = key & 1 && key >> 1 < MRS ? mrs[key >> 1] : NULL;
  if (!m || index_of(m->v.context) != index_of(c) || (m->access & access) != access) return NULL;
  return at >= m->iova && at + bytes >= at && at + bytes <= m->iova + m->v.length ? m : NULL;
}

/* What a card writes is seen in whole words, and small messages may be looked for in memory. */
static void move(char *to, const char *from, size_t bytes) {
  if (((uintptr_t)to & 7) != 0 || bytes > SMALL) {
    memcpy(to, from, bytes);
    return;
  }
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) {
    uint64_t word;
    memcpy(&word, from, 8);
    /* release: whoever sees a word sees those before it */
    atomic_store_explicit((_Atomic uint64_t *)(void *)to, word, memory_order_release);
  }
  memcpy(to, from, bytes);
}

static int unreachable(const qp *p) {
  const fake_verbs_device *d = &fake_verbs.device[p->device];
  return d->down || (p->sgid < 32 && d->silent >> p->sgid & 1);
}

static int faulty(int *count) { return *count > 0 ? (*count)--, 1 : 0; }

enum { LATER = -1, LOST = -2 };
/* What befalls a write with immediate, by the test's will. */
static int fault(qp *p) {
  if (fake_verbs.skip > 0) {
    fake_verbs.skip--;
    return 0;
  }
  if (faulty(&fake_verbs.fatal)) {
    fake_verbs.device[p->device].dead = 1;
    tell_event(p->v.context, HK_IBV_EVENT_DEVICE_FATAL, NULL);
    return LATER;
  }
  if (faulty(&fake_verbs.broken)) return HK_IBV_WC_RETRY_EXC_ERR;
  if (faulty(&fake_verbs.denied)) return HK_IBV_WC_REM_ACCESS_ERR;
  return faulty(&fake_verbs.lost) ? LOST : 0;
}

static void arrive(qp *to, const request *r) {
  if (to->recv_first == to->recv_last) return; /* only a double */
  complete((queue *)to->v.recv_cq, (hk_ibv_wc){.wr_id = to->recv[to->recv_first++ % to->recv_depth],
                                               .opcode = HK_IBV_WC_RECV_RDMA_WITH_IMM,
                                               .byte_len = r->sge.length,
                                               .imm_data = r->wr.imm_data,
                                               .qp_num = to->v.qp_num});
}

static int carry_out(qp *p, request *r) {
  qp *to = p->dest < QPS ? qps[p->dest] : NULL;
  int imm = r->wr.opcode == HK_IBV_WR_RDMA_WRITE_WITH_IMM, read = r->wr.opcode == HK_IBV_WR_RDMA_READ;
  uint32_t n = r->wr.num_sge ? r->sge.length : 0;
  char *local = r->inlined;
  int from_gpu = 0;
  if (!to || to->v.state < HK_IBV_QPS_RTR || to->v.state == HK_IBV_QPS_ERR || unreachable(p) || unreachable(to))
    return HK_IBV_WC_RETRY_EXC_ERR;
  if (imm && to->recv_first == to->recv_last) return LATER;
  if (fake_verbs.device[p->device].dead || fake_verbs.device[to->device].dead) return LATER;
  if (n && !(r->wr.send_flags & HK_IBV_SEND_INLINE)) {
    memory *m = find_memory(p->v.context, r->sge.lkey, r->sge.addr, n, read ? HK_IBV_ACCESS_LOCAL_WRITE : 0);
    if (!m) return HK_IBV_WC_LOC_PROT_ERR;
    local = m->host + (r->sge.addr - m->iova);
    from_gpu = m->map || on_gpu(m->host);
  }
  memory *far = n ? find_memory(to->v.context, r->wr.wr.rdma.rkey, r->wr.wr.rdma.remote_addr, n,
                                read ? HK_IBV_ACCESS_REMOTE_READ : HK_IBV_ACCESS_REMOTE_WRITE)
                  : NULL;
  if (n && !far) return HK_IBV_WC_REM_ACCESS_ERR;
  int status = imm ? fault(p) : 0;
  if (status) return status;
  char *remote = n ? far->host + (r->wr.wr.rdma.remote_addr - far->iova) : NULL;
  ++*(read ? &fake_verbs.reads : &fake_verbs.writes);
  fake_verbs.device[p->device].writes += !read;
  int to_gpu = far && (far->map || on_gpu(far->host));
  fake_verbs.from_gpu += !read && from_gpu;
  fake_verbs.to_gpu += !read && to_gpu;
  if (read && to_gpu) end_late(NULL, 0, 1);
  if (!read && to_gpu && fake_verbs.late)
    keep(remote, local, n);
  else if (n)
    move(read ? local : remote, read ? remote : local, n);
  if (!read && n && remote >= fake_verbs.watched && remote < fake_verbs.watched + fake_verbs.watched_bytes)
    fake_verbs.landed++;
  if (imm) arrive(to, r);
  if (imm && !fake_verbs.skip && faulty(&fake_verbs.doubled)) arrive(to, r);
  return 0;
}

static void pump(qp *p) {
  while (p->v.state == HK_IBV_QPS_RTS && p->first != p->last) {
    int status = carry_out(p, &p->send[p->first % p->depth]);
    if (status == LATER) return;
    if (status == LOST) status = 0;
    end_request(p, status);
    if (status) fail_qp(p);
  }
}

static int post_send(hk_ibv_qp *v, hk_ibv_send_wr *wr, hk_ibv_send_wr **bad) {
  qp *p = (qp *)v;
  int err = 0;
  lock();
  for (; wr && !err; wr = wr->next) {
    *bad = wr;
    if (p->v.state != HK_IBV_QPS_RTS && p->v.state != HK_IBV_QPS_ERR) err = EINVAL;
    if (p->last - p->first == p->depth) err = ENOMEM;
    if (err) break;
    request *r = &p->send[p->last++ % p->depth];
    r->wr = *wr;
    r->sge = wr->num_sge ? *wr->sg_list : (hk_ibv_sge){0};
    if (wr->send_flags & HK_IBV_SEND_INLINE && r->sge.length <= MAX_INLINE)
      memcpy(r->inlined, (const void *)(uintptr_t)r->sge.addr, r->sge.length);
    if (p->v.state == HK_IBV_QPS_ERR) end_request(p, HK_IBV_WC_WR_FLUSH_ERR);
  }
  pump(p);
  unlock();
  return err;
}

static int post_recv(hk_ibv_qp *v, hk_ibv_recv_wr *wr, hk_ibv_recv_wr **bad) {
  qp *p = (qp *)v;
  int err = 0;
  lock();
  for (; wr; wr = wr->next) {
    *bad = wr;
    if (p->recv_last - p->recv_first == p->recv_depth) {
      err = ENOMEM;
      break;
    }
    p->recv[p->recv_last++ % p->recv_depth] = wr->wr_id;
  }
  if (p->v.state == HK_IBV_QPS_ERR) fail_qp(p);
  for (int i = 0; i < QPS; i++)
    if (qps[i] && qps[i]->dest == p->v.qp_num) pump(qps[i]);
  unlock();
  return err;
}

static int poll_cq(hk_ibv_cq *v, int n, hk_ibv_wc *wc) {
  queue *q = (queue *)v;
  int got = 0;
  lock();
  while (got < n && q->head != q->tail) wc[got++] = q->wc[q->head++ % (uint32_t)q->v.cqe];
  unlock();
  return got;
}

static int req_notify_cq(hk_ibv_cq *v, int solicited_only) {
  (void)solicited_only;
  lock();
  ((queue *)v)->armed = 1;
  unlock();
  return 0;
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
  c->v.ops.poll_cq = poll_cq;
  c->v.ops.req_notify_cq = req_notify_cq;
  c->v.ops.post_send = post_send;
  c->v.ops.post_recv = post_recv;
  c->v.async_fd = c->events[0];
  return &c->v;
}
int ibv_close_device(hk_ibv_context *c) {
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
                             .link_layer = HK_IBV_LAYER_ETHERNET};
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
  uint32_t i = 0;
  lock();
  while (i < MRS && mrs[i]) i++;
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
  hk_ibv_mr *mr = map == MAP_FAILED ? NULL : add_memory(pd, (memory){.v = {.addr = (void *)(uintptr_t)offset, .length = bytes},
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
  mrs[v->lkey >> 1] = NULL;
  fake_verbs.nmrs--;
  fake_verbs.locked -= v->length;
  if (m->map || on_gpu(m->host)) end_late(m->host, v->length, 0);
  unlock();
  if (m->map) munmap(m->map, v->length);
  free(m);
  return 0;
}

/* ---- queues ---- */

hk_ibv_channel *ibv_create_comp_channel(hk_ibv_context *c) {
  channel *ch = calloc(1, sizeof *ch);
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
  uint32_t i = 1; /* no queue pair has number 0 */
  while (i < QPS && qps[i]) i++;
  if (i < QPS) {
    qps[i] = p;
    p->v.qp_num = i;
    fake_verbs.nqps++;
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
  fake_verbs.nqps--;
  unlock();
  free_qp(p);
  return 0;
}
