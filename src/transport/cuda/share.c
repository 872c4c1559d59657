/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing memory between the ranks of two processes: share.h. */
#include "share.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../base/tcp.h"
#include "../../device/host.h"
#include "../device_links.h"
#include "../transport.h"

/* ---- GPU memory ---- */

hk_status hk_share_make(const hk_device_env *e, size_t bytes, size_t zeroed, hk_memory *out) {
  size_t whole = (bytes + HK_DEVICE_GRANULE - 1) / HK_DEVICE_GRANULE * HK_DEVICE_GRANULE;
  return e->device->ops->memory->alloc_shared(e->device, whole, zeroed, e->by_file, out);
}

hk_status hk_share_offer_memory(const hk_device_env *e, const hk_memory *m, bool first, hk_share_offer *o) {
  hk_status rc = HK_OK;
  memset(o, 0, sizeof *o);
  HK_TRY(e->device->ops->share->offer(e->device, m, &o->share), fail);
  if (o->share.fd >= 0) HK_TRY(hk_host_lend(o->share.fd, m->bytes, first, &o->region), fail);
  o->share.fd = -1; /* the number is valid in this process only */
  return HK_OK;
fail:
  o->share.kind = HK_MEMORY_NONE;
  return rc;
}

hk_status hk_share_open(const hk_device_env *e, int peer, const hk_share_offer *o, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_memory_share share = o->share;
  size_t bytes;
  if (o->region) HK_OR_RETURN(e->file(e->arg, peer, o->region, &share.fd, &bytes));
  rc = e->device->ops->share->open(e->device, &share, out);
  if (o->region) close(share.fd);
  return rc;
}

hk_status hk_share_reopen(const hk_device_env *e, int peer, const hk_share_offer *o, hk_memory *m) {
  hk_status rc = HK_OK;
  hk_memory_share share = o->share;
  size_t bytes;
  HK_TRY(e->file(e->arg, peer, o->region, &share.fd, &bytes), out);
  rc = e->device->ops->memory->unpark(e->device, m, &share, 0, NULL);
  close(share.fd);
out:
  return rc;
}

/* ---- pinned host memory: pages of memory files, which both processes map and pin ---- */

hk_status hk_share_host_make(hk_device *d, size_t bytes, hk_shared *out, uint64_t *region) {
  bytes = (bytes + 4095) & ~(size_t)4095;
  HK_OR_RETURN(hk_host_alloc(&out->host, bytes));
  hk_host_place(out->host, bytes, d->limits.host_numa);
  *region = hk_host_find(out->host).region;
  return d->ops->memory->pin(d, out->host, bytes, &out->memory);
}

hk_status hk_share_host_open(const hk_device_env *e, int peer, uint64_t region, hk_shared *out) {
  hk_status rc = HK_OK;
  int fd = -1;
  size_t bytes;
  HK_TRY(e->file(e->arg, peer, region, &fd, &bytes), out);
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    HK_GIVE_UP(HK_FAIL_ERRNO("rank %d cannot map %zu bytes of rank %d's memory", e->env->rank, bytes, peer), out);
  out->host = at;
  out->mapped = bytes;
  HK_TRY(e->device->ops->memory->pin(e->device, at, bytes, &out->memory), out);
out:
  if (fd >= 0) close(fd);
  return rc;
}

void hk_share_withdraw(uint64_t region) { hk_host_take_back(region); }

void hk_share_drop(hk_device *d, hk_shared *s) {
  hk_share_withdraw(s->region);
  (void)d->ops->memory->release(d, &s->memory); /* a failure is logged; nothing else can be done about it */
  if (s->mapped)
    munmap(s->host, s->mapped);
  else if (s->host)
    (void)hk_host_free(s->host);
  memset(s, 0, sizeof *s);
}

/* ---- the offer of a link's memory ---- */

static uint64_t share_tag_of(unsigned channel) { return UINT64_C(0x6770750000000000) | channel; }

hk_status hk_share_send(const hk_device_env *e, int peer, unsigned channel, const hk_share_offer *o) {
  hk_status rc = HK_OK;
  int fd = -1;
  HK_TRY(e->env->dial(e->env->arg, peer, NULL, share_tag_of(channel), &fd), out);
  /* The send buffer of a new connection has room for these few bytes. */
  if (hk_tcp_send(fd, o, sizeof *o) != (ssize_t)sizeof *o)
    rc = HK_FAIL_ERRNO("sending the offer of a link's memory to rank %d", peer);
out:
  if (fd >= 0) hk_tcp_close(fd);
  return rc;
}

hk_status hk_share_receive(const hk_device_env *e, int peer, unsigned channel, hk_share_offer *o) {
  hk_status rc = HK_OK;
  hk_waiter w;
  int fd = -1;
  hk_wait_begin(&w, e->env->wait);
  while ((fd = e->env->take(e->env->arg, peer, share_tag_of(channel))) < 0) HK_TRY(hk_wait_pause(&w), out);
  rc = hk_wait_recv(e->env->wait, fd, o, sizeof *o, "a link's memory");
  if (rc == HK_IN_PROGRESS)
    rc = HK_FAIL(HK_ERR_REMOTE, "rank %d closed a connection before it offered a link's memory", peer);
out:
  if (fd >= 0) hk_tcp_close(fd);
  return rc;
}
