/* SPDX-License-Identifier: Apache-2.0 */
/* Open devices: their completion queues, and registrations of memory. */
#include "ib_device.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "../../../base/param.h"
#include "ib_context.h"
#include "ib_verbs.h"

/* Keeps errno. */
static void device_free_context(hk_ib_ctx *x, hk_ib_device *d) {
  const int err = errno;
  if (d->pd) x->api->dealloc_pd(d->pd);
  if (d->context) x->api->close_device(d->context);
  d->pd = NULL;
  d->context = NULL;
  errno = err;
}

bool hk_ib_device_open_named(hk_ib_ctx *x, hk_ib_device *d) {
  int flags, n = 0;
  hk_ibv_device_attr attr;
  hk_ibv_device **list = x->api->get_device_list(&n);
  errno = ENODEV; /* for a device that is not in the list */
  for (int i = 0; i < n && !d->context; i++)
    if (strcmp(list[i]->name, d->name) == 0) d->context = x->api->open_device(list[i]);
  if (d->context) d->pd = x->api->alloc_pd(d->context);
  const bool open = d->pd && x->api->query_device(d->context, &attr) == 0;
  if (!open) device_free_context(x, d);
  /* Events are polled, never waited for. */
  if (open && (flags = fcntl(d->context->async_fd, F_GETFL)) >= 0)
    (void)fcntl(d->context->async_fd, F_SETFL, flags | O_NONBLOCK);
  if (list) x->api->free_device_list(list);
  if (!open) return false;
  d->max_wr = attr.max_qp_wr > 0 ? (uint32_t)attr.max_qp_wr : 128;
  d->max_cqe = attr.max_cqe > 0 ? (uint32_t)attr.max_cqe : HK_IB_CQ_DEPTH;
  d->channel = x->api->create_comp_channel(d->context); /* without one, waiting threads poll */
  if (d->channel && (flags = fcntl(d->channel->fd, F_GETFL)) >= 0)
    (void)fcntl(d->channel->fd, F_SETFL, flags | O_NONBLOCK);
  return true;
}

hk_status hk_ib_device_open(hk_ib_ctx *x, const char *name, hk_ib_device **out) {
  for (int i = 0; i < x->ndevices; i++) {
    if (strcmp(x->devices[i].name, name) != 0) continue;
    *out = &x->devices[i];
    return HK_OK;
  }
  hk_ib_device *d = &x->devices[x->ndevices];
  memset(d, 0, sizeof *d);
  memcpy(d->name, name, strnlen(name, sizeof d->name - 1));
  if (!hk_ib_device_open_named(x, d))
    return HK_FAIL_ERRNO("rank %d cannot open RDMA device %s: is /dev/infiniband there, and may this user write to it",
                         x->env->rank, name);
  x->ndevices++;
  *out = d;
  return HK_OK;
}

void hk_ib_device_close(hk_ib_ctx *x, hk_ib_device *d) {
  for (int i = 0; i < d->ncqs; i++) x->api->destroy_cq(d->cqs[i].cq);
  if (d->channel) x->api->destroy_comp_channel(d->channel);
  device_free_context(x, d);
  d->ncqs = 0;
  d->channel = NULL;
}

static hk_ib_cq *ib_device_cq_with_room(hk_ib_ctx *x, hk_ib_device *d, uint32_t entries) {
  for (int i = 0; i < d->ncqs; i++)
    if (d->cqs[i].used + entries <= d->cqs[i].capacity) return &d->cqs[i];
  if (d->ncqs == HK_IB_CQS) {
    errno = ENOSPC;
    return NULL;
  }
  hk_ib_cq *q = &d->cqs[d->ncqs];
  /* Each holds as much as all before it, so that a few are enough for any number of peers. */
  uint32_t depth = HK_IB_CQ_DEPTH / 4;
  for (int i = 0; i < d->ncqs; i++) depth += d->cqs[i].capacity;
  if (depth > d->max_cqe) depth = d->max_cqe;
  if (depth < entries) depth = entries;
  *q = (hk_ib_cq){.cq = x->api->create_cq(d->context, (int)depth, NULL, d->channel, 0), .capacity = depth};
  if (!q->cq) return NULL;
  d->ncqs++;
  return q;
}

/* A completion queue must never overflow: each has room for all requests of its queue pairs. */
hk_ib_cq *hk_ib_cq_take(hk_ib_ctx *x, hk_ib_device *d, uint32_t entries) {
  hk_ib_cq *q = ib_device_cq_with_room(x, d, entries);
  if (q) q->used += entries;
  return q;
}

void hk_ib_cq_give(hk_ib_cq **q, uint32_t entries) {
  if (*q) (*q)->used -= entries;
  *q = NULL;
}

/* The kernel asks for the capability in the first user namespace: in another one it has no effect. */
static bool ib_device_may_lock_all(void) {
  enum { IPC_LOCK = 14 };
  unsigned long long caps = 0;
  unsigned from = 1, to = 1, count = 0;
  char line[256];
  FILE *f = fopen("/proc/self/uid_map", "re");
  bool first = f && fscanf(f, "%u %u %u", &from, &to, &count) == 3 && !from && !to && count == UINT32_MAX;
  if (f) fclose(f);
  f = first ? fopen("/proc/self/status", "re") : NULL;
  while (f && fgets(line, sizeof line, f))
    if (strncmp(line, "CapEff:", 7) == 0) caps = strtoull(line + 7, NULL, 16);
  if (f) fclose(f);
  return caps >> IPC_LOCK & 1;
}

bool hk_ib_memory_is_scarce(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && !ib_device_may_lock_all();
}

hk_ibv_mr *hk_ib_try_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, char why[160]) {
  unsigned access = HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE;
  struct rlimit limit;
  hk_ibv_mr *mr;
  /* Payloads may be written in any order; headers and credits, which the CPU polls, must not. Unknown flags of the
   * optional range are ignored, but only by the newer call. */
  if (data && x->api->reg_mr_iova2 && x->env->settings->IB_PCI_RELAXED_ORDERING != 0)
    mr = x->api->reg_mr_iova2(d->pd, addr, bytes, (uint64_t)(uintptr_t)addr, access | HK_IBV_ACCESS_RELAXED_ORDERING);
  else
    mr = x->api->reg_mr(d->pd, addr, bytes, (int)access);
  if (mr) {
    hk_ib_count_pinned(x, mr);
    return mr;
  }
  int err = errno;
  char locked[32] = "unlimited";
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    snprintf(locked, sizeof locked, "%llu KiB", (unsigned long long)limit.rlim_cur / 1024);
  snprintf(why, 160, "registering %zu bytes with RDMA device %s fails (%s); this process may lock %s of memory", bytes,
           d->name, strerror(err), locked);
  errno = err;
  return NULL;
}

void hk_ib_count_pinned(hk_ib_ctx *x, const hk_ibv_mr *mr) {
  x->counts.pinned += mr->length;
  if (x->counts.pinned > x->counts.pinned_most) x->counts.pinned_most = x->counts.pinned;
}

void hk_ib_unregister(hk_ib_ctx *x, hk_ibv_mr **mr) {
  if (!*mr) return;
  x->counts.pinned -= (*mr)->length;
  x->api->dereg_mr(*mr);
  *mr = NULL;
}

hk_status hk_ib_register(hk_ib_ctx *x, hk_ib_device *d, void *addr, size_t bytes, bool data, hk_ibv_mr **out) {
  char why[160];
  *out = hk_ib_try_register(x, d, addr, bytes, data, why);
  if (*out) return HK_OK;
  return HK_FAIL(HK_ERR_SYSTEM, "rank %d: %s: if that is too little, " HK_IB_MORE_MEMORY ", or NCCL_IB_DISABLE=1",
                 x->env->rank, why);
}

const char *hk_ib_port_state(hk_ib_ctx *x, const hk_ib_device *d, int port) {
  static const char *const names[] = {"in no state", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  hk_ibv_port_attr attr;
  memset(&attr, 0, sizeof attr);
  if (d->gone) return "gone with its device";
  if (x->api->query_port(d->context, (uint8_t)port, &attr) != 0) return "in a state that cannot be read";
  return (unsigned)attr.state <= 5 ? names[attr.state] : "in an unknown state";
}

bool hk_ib_arm(hk_ib_ctx *x, struct pollfd fds[HK_IB_PORTS]) {
  for (int i = 0; i < x->ndevices; i++) {
    hk_ib_device *d = &x->devices[i];
    fds[i] = (struct pollfd){.fd = -1};
    if (!d->context) continue;
    if (!d->channel) return false;
    fds[i] = (struct pollfd){.fd = d->channel->fd, .events = POLLIN};
    for (int k = 0; k < d->ncqs; k++) {
      hk_ib_cq *q = &d->cqs[k];
      if (!q->armed && q->cq->context->ops.req_notify_cq(q->cq, 0) != 0) return false;
      q->armed = true;
    }
  }
  return x->ndevices > 0;
}

void hk_ib_read_notifications(hk_ib_ctx *x, const struct pollfd fds[HK_IB_PORTS]) {
  hk_ibv_cq *cq;
  void *arg;
  for (int i = 0; i < x->ndevices; i++) {
    hk_ib_device *d = &x->devices[i];
    if (!(fds[i].revents & POLLIN)) continue;
    while (x->api->get_cq_event(d->channel, &cq, &arg) == 0) {
      x->api->ack_cq_events(cq, 1); /* a queue with unacknowledged events cannot be destroyed */
      for (int k = 0; k < d->ncqs; k++)
        if (d->cqs[k].cq == cq) d->cqs[k].armed = false;
    }
  }
}
