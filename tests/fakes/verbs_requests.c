/* SPDX-License-Identifier: Apache-2.0 */
/* The fake verbs' requests.  One is carried out when it is posted, or when the receive that it needs is: under one
 * lock, so that nothing is ever on its way. */
#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "verbs_parts.h"

/* ---- completions ---- */

static void report_event(hk_ibv_context *c, int type, void *object) {
  hk_ibv_async_event e = {.event_type = type};
  e.element.object = object;
  if (write(((context *)c)->events[1], &e, sizeof e) < 0) abort();
}

EXPORT void fake_verbs_port(int number, int up);
void fake_verbs_port(int number, int up) {
  lock();
  fake_verbs.device[number].down = !up;
  for (context *c = contexts; c; c = c->next) {
    hk_ibv_async_event e = {.event_type = up ? HK_IBV_EVENT_PORT_ACTIVE : HK_IBV_EVENT_PORT_ERR};
    e.element.port_num = 1;
    if (index_of(&c->v) == number && write(c->events[1], &e, sizeof e) < 0) abort();
  }
  unlock();
}

static void complete(queue *q, hk_ibv_wc wc, qp *of, uint32_t position, int sent) {
  if (q->full) return;
  if ((fake_verbs.overrun > 0 && !fake_verbs.skip) || q->tail - q->head == (uint32_t)q->v.cqe) {
    if (fake_verbs.overrun > 0) fake_verbs.overrun--;
    q->full = 1; /* dead from here on, as a card's is */
    report_event(q->v.context, HK_IBV_EVENT_CQ_ERR, q);
    return;
  }
  q->entries[q->tail++ % (uint32_t)q->v.cqe] = (entry){wc, of, position, sent};
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
    complete((queue *)p->v.send_cq, wc, p, p->first + 1, 1);
  }
  p->first++;
}

/* Takes a posted receive. */
static void end_receive(qp *p, hk_ibv_wc wc) {
  wc.wr_id = p->recv[p->recv_first++ % p->recv_depth];
  wc.qp_num = p->v.qp_num;
  complete((queue *)p->v.recv_cq, wc, p, p->recv_first, 0);
}

void fail_qp(qp *p) {
  p->v.state = HK_IBV_QPS_ERR;
  while (p->first != p->last) end_request(p, HK_IBV_WC_WR_FLUSH_ERR);
  while (p->recv_first != p->recv_last)
    end_receive(p, (hk_ibv_wc){.status = HK_IBV_WC_WR_FLUSH_ERR, .opcode = HK_IBV_WC_RECV});
}

/* The queue pairs with requests that wait, the oldest first. */
static qp *first_open, **last_open = &first_open;

static void open_later(qp *p) {
  if (p->open) return;
  p->open = 1;
  p->next_open = NULL;
  *last_open = p;
  last_open = &p->next_open;
}
static void drop_open(qp *p) {
  if (!p->open) return;
  qp **at = &first_open;
  while (*at != p) at = &(*at)->next_open;
  *at = p->next_open;
  if (last_open == &p->next_open) last_open = at;
  p->open = 0;
}
static void drop_entries(const hk_ibv_cq *v, const qp *p) {
  const queue *q = (const queue *)v;
  for (uint32_t i = q->head; i != q->tail; i++)
    if (q->entries[i % (uint32_t)v->cqe].of == p) q->entries[i % (uint32_t)v->cqe].of = NULL;
}
void forget_qp(qp *p) {
  drop_open(p);
  drop_entries(p->v.send_cq, p);
  drop_entries(p->v.recv_cq, p);
}

/* ---- writes to GPUs that are not visible yet ---- */

typedef struct late {
  char *to;
  size_t bytes;
  int card; /* the device that wrote */
  struct late *next;
  char data[];
} late;
static late *oldest, **newest = &oldest;

static void keep(char *to, const char *from, size_t bytes, int card) {
  late *l = malloc(sizeof *l + bytes);
  if (!l) abort();
  *l = (late){.to = to, .bytes = bytes, .card = card};
  memcpy(l->data, from, bytes);
  *newest = l;
  newest = &l->next;
}
static void end_late(late **at, int write) {
  late *l = *at;
  if (write) memcpy(l->to, l->data, l->bytes);
  *at = l->next;
  free(l);
}
/* A device's read, or the GPU's driver (`card` -1: all of them), lets arrive what was written before. */
static void flush_late(int card) {
  int any = 0;
  for (late **at = &oldest; *at;) {
    if (card >= 0 && (*at)->card != card) {
      at = &(*at)->next;
      continue;
    }
    any = 1;
    end_late(at, 1);
  }
  fake_verbs.flushes += any;
  newest = &oldest;
  while (*newest) newest = &(*newest)->next;
}
/* Memory that is taken back drops what was on its way there. */
void drop_late(const char *only, size_t bytes) {
  for (late **at = &oldest; *at;)
    if ((*at)->to >= only && (*at)->to < only + bytes)
      end_late(at, 0);
    else
      at = &(*at)->next;
  newest = &oldest;
  while (*newest) newest = &(*newest)->next;
}
EXPORT void fake_verbs_flush(void);
void fake_verbs_flush(void) {
  lock();
  flush_late(-1);
  unlock();
}

/* ---- requests ---- */

static memory *find_memory(const hk_ibv_context *c, uint32_t key, uint64_t at, uint64_t bytes, int access) {
  memory *m = mrs[index_of_key(key)];
  if (!m || m->v.lkey != key || index_of(m->v.context) != index_of(c) || (m->access & access) != access) return NULL;
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
    /* release: a reader that sees a word sees those before it */
    atomic_store_explicit((_Atomic uint64_t *)(void *)to, word, memory_order_release);
  }
  memcpy(to, from, bytes);
}

static int unreachable(const qp *p) {
  const fake_verbs_device *d = &fake_verbs.device[p->device];
  return d->down || (p->sgid < 32 && d->silent >> p->sgid & 1);
}

static int faulty(int *count) { return *count > 0 ? (*count)--, 1 : 0; }

enum { LATER = -1, LOST = -2, UNANSWERED = -3 };
/* What befalls a write with immediate, by the test's will. */
static int fault(qp *p) {
  if (fake_verbs.skip > 0) {
    fake_verbs.skip--;
    return 0;
  }
  if (faulty(&fake_verbs.fatal)) {
    fake_verbs.device[p->device].dead = 1;
    for (context *c = contexts; c; c = c->next)
      if (index_of(&c->v) == p->device) report_event(&c->v, HK_IBV_EVENT_DEVICE_FATAL, NULL);
    return LATER;
  }
  if (faulty(&fake_verbs.broken)) return HK_IBV_WC_RETRY_EXC_ERR;
  if (faulty(&fake_verbs.denied)) return HK_IBV_WC_REM_ACCESS_ERR;
  return faulty(&fake_verbs.lost) ? LOST : 0;
}

static int plain_fault(void) {
  if (fake_verbs.passing > 0) {
    fake_verbs.passing--;
    return 0;
  }
  if (faulty(&fake_verbs.severed)) return HK_IBV_WC_RETRY_EXC_ERR;
  return faulty(&fake_verbs.unanswered) ? UNANSWERED : 0;
}

static void arrive(qp *to, const request *r) {
  if (to->recv_first == to->recv_last) return; /* only a double */
  end_receive(
      to, (hk_ibv_wc){.opcode = HK_IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = r->sge.length, .imm_data = r->wr.imm_data});
}

/* Both ends of a connection describe the same one. */
static int are_joined(const qp *p, const qp *to) {
  if (to->dest != p->v.qp_num || to->rq_psn != p->sq_psn || to->mtu != p->mtu) return 0;
  return !fake_verbs.addressed || p->to_device < 0 || (p->to_device == to->device && p->sgid == to->sgid);
}

static int carry_out(qp *p, request *r) {
  qp *to = p->dest < QPS ? qps[p->dest] : NULL;
  int imm = r->wr.opcode == HK_IBV_WR_RDMA_WRITE_WITH_IMM, read = r->wr.opcode == HK_IBV_WR_RDMA_READ;
  uint32_t n = r->wr.num_sge ? r->sge.length : 0;
  char *local = r->inlined;
  int from_gpu = 0;
  if (!to || to->v.state < HK_IBV_QPS_RTR || to->v.state == HK_IBV_QPS_ERR || unreachable(p) || unreachable(to) ||
      !are_joined(p, to))
    return HK_IBV_WC_RETRY_EXC_ERR;
  if (fake_verbs.device[p->device].rail != fake_verbs.device[to->device].rail) {
    fake_verbs.crossed++;
    return HK_IBV_WC_RETRY_EXC_ERR;
  }
  if (imm && to->recv_first == to->recv_last) {
    fake_verbs.starved++;
    return LATER;
  }
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
  if (read && (!p->reads_out || !to->reads_in)) return HK_IBV_WC_REM_INV_REQ_ERR;
  if (n && !(to->access & (read ? HK_IBV_ACCESS_REMOTE_READ : HK_IBV_ACCESS_REMOTE_WRITE)))
    return HK_IBV_WC_REM_ACCESS_ERR;
  int status = imm ? fault(p) : read || !n ? 0 : plain_fault();
  if (status && status != UNANSWERED) return status;
  char *remote = n ? far->host + (r->wr.wr.rdma.remote_addr - far->iova) : NULL;
  ++*(read ? &fake_verbs.reads : &fake_verbs.writes);
  fake_verbs.device[p->device].writes += !read;
  fake_verbs.by_class[p->traffic_class] += !read;
  int to_gpu = far && (far->map || on_gpu(far->host));
  fake_verbs.from_gpu += !read && from_gpu;
  fake_verbs.to_gpu += !read && to_gpu;
  fake_verbs.device[to->device].to_gpu += !read && to_gpu;
  if (read && to_gpu) flush_late(to->device);
  if (!read && to_gpu && fake_verbs.late)
    keep(remote, local, n, to->device);
  else if (n)
    move(read ? local : remote, read ? remote : local, n);
  if (!read && n && remote >= fake_verbs.watched && remote < fake_verbs.watched + fake_verbs.watched_bytes)
    fake_verbs.landed++;
  if (imm) arrive(to, r);
  if (imm && !fake_verbs.skip && faulty(&fake_verbs.doubled)) arrive(to, r);
  return status ? HK_IBV_WC_RETRY_EXC_ERR : 0;
}

/* Carries out the next request. Returns false if there is none that can be. */
static int advance(qp *p) {
  if (p->v.state != HK_IBV_QPS_RTS || p->first == p->last) return 0;
  int status = carry_out(p, &p->send[p->first % p->depth]);
  if (status == LATER) return 0;
  if (status == LOST) status = 0;
  end_request(p, status);
  if (status) fail_qp(p);
  return 1;
}
static void pump(qp *p) {
  if (fake_verbs.lazy && p->first != p->last)
    open_later(p);
  else
    while (advance(p)) continue;
}
static void advance_one(void) {
  qp *p = first_open;
  if (!p || !fake_verbs.lazy || ++fake_verbs.polls % fake_verbs.lazy) return;
  drop_open(p);
  if (advance(p) && p->first != p->last) open_later(p);
}

/* Queue pairs and memory have the lowest numbers that are free, and requests no addresses but those in memory. */
static void trace_request(const qp *p, const hk_ibv_send_wr *wr) {
  static const char *const kinds[] = {
      [HK_IBV_WR_RDMA_WRITE] = "write", [HK_IBV_WR_RDMA_WRITE_WITH_IMM] = "signal", [HK_IBV_WR_RDMA_READ] = "read"};
  const uint32_t n = wr->num_sge ? wr->sg_list->length : 0;
  const memory *far = mrs[index_of_key(wr->wr.rdma.rkey)], *near = n ? mrs[index_of_key(wr->sg_list->lkey)] : NULL;
  const int inlined = !!(wr->send_flags & HK_IBV_SEND_INLINE);
  char call[160], from[32] = "", to[32] = "nowhere", imm[16] = "";
  if (n && !inlined) snprintf(from, sizeof from, "bad key");
  if (n && !inlined && near && near->v.lkey == wr->sg_list->lkey)
    snprintf(from, sizeof from, "%u+%llu", index_of_key(wr->sg_list->lkey),
             (unsigned long long)(wr->sg_list->addr - near->iova));
  if (far && far->v.rkey == wr->wr.rdma.rkey)
    snprintf(to, sizeof to, "%u+%llu", index_of_key(wr->wr.rdma.rkey),
             (unsigned long long)(wr->wr.rdma.remote_addr - far->iova));
  if (wr->opcode == HK_IBV_WR_RDMA_WRITE_WITH_IMM) snprintf(imm, sizeof imm, " %08x", be32toh(wr->imm_data));
  snprintf(call, sizeof call, "qp %u: %s %u %s -> %s%s%s%s", p->v.qp_num, kinds[wr->opcode], n,
           inlined ? "inline" : from, to, imm, wr->send_flags & HK_IBV_SEND_SIGNALED ? ", reports" : "",
           wr->wr_id & 3 ? "" : ", no id");
  const char *data = n && wr->opcode != HK_IBV_WR_RDMA_READ ? (const char *)(uintptr_t)wr->sg_list->addr : NULL;
  if (data && (on_gpu(data) || (near && near->map))) data = NULL;
  fake_verbs.trace(call, data, data ? n : 0);
}

static int post_send(hk_ibv_qp *v, hk_ibv_send_wr *wr, hk_ibv_send_wr **bad) {
  qp *p = (qp *)v;
  int err = 0;
  lock();
  for (; wr && !err; wr = wr->next) {
    *bad = wr;
    const uint32_t n = wr->num_sge ? wr->sg_list->length : 0;
    if (p->v.state != HK_IBV_QPS_RTS && p->v.state != HK_IBV_QPS_ERR) err = EINVAL;
    if (wr->num_sge > 1 || (wr->send_flags & HK_IBV_SEND_INLINE && n > p->inline_most)) err = EINVAL;
    /* A request's room is free again when its completion, or that of a later one, has been polled. */
    if (p->last - p->reaped == p->depth) err = ENOMEM;
    if (err) break;
    if (fake_verbs.trace) trace_request(p, wr);
    request *r = &p->send[p->last++ % p->depth];
    r->wr = *wr;
    r->sge = wr->num_sge ? *wr->sg_list : (hk_ibv_sge){0};
    must(!(wr->send_flags & HK_IBV_SEND_INLINE && n && on_gpu((const char *)(uintptr_t)r->sge.addr)),
         "the CPU reads inline data, and cannot read a GPU's memory");
    if (wr->send_flags & HK_IBV_SEND_INLINE && n)
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
  const uint32_t before = p->recv_last;
  for (; wr; wr = wr->next) {
    *bad = wr;
    if (p->recv_last - p->recv_reaped == p->recv_depth) {
      err = ENOMEM;
      break;
    }
    p->recv[p->recv_last++ % p->recv_depth] = wr->wr_id;
  }
  TRACE("qp %u: %u receives", v->qp_num, p->recv_last - before);
  if (p->v.state == HK_IBV_QPS_ERR) fail_qp(p);
  qp *from = p->dest < QPS ? qps[p->dest] : NULL; /* reliable queue pairs are joined in pairs */
  if (from && from->dest == p->v.qp_num) pump(from);
  unlock();
  return err;
}

static int poll_cq(hk_ibv_cq *v, int n, hk_ibv_wc *wc) {
  queue *q = (queue *)v;
  int got = 0;
  lock();
  advance_one();
  for (; got < n && q->head != q->tail; q->head++) {
    const entry *e = &q->entries[q->head % (uint32_t)q->v.cqe];
    wc[got++] = e->wc;
    if (e->of) *(e->sent ? &e->of->reaped : &e->of->recv_reaped) = e->position;
  }
  unlock();
  return got;
}

static int req_notify_cq(hk_ibv_cq *v, int solicited_only) {
  (void)solicited_only;
  lock();
  TRACE("cq of device %d: armed", index_of(v->context));
  ((queue *)v)->armed = 1;
  unlock();
  return 0;
}

void set_operations(hk_ibv_context *c) {
  c->ops.poll_cq = poll_cq;
  c->ops.req_notify_cq = req_notify_cq;
  c->ops.post_send = post_send;
  c->ops.post_recv = post_recv;
}
