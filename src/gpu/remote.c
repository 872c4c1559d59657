/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of links between processes.  The receiver makes it, and opens a connection to tell the sender where it is. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../device/host.h"
#include "gpu.h"

static uint64_t tag_of(unsigned channel) { return UINT64_C(0x6770750000000000) | channel; }

static hk_status tell(ncclComm_t c, int peer, unsigned channel, const hk_gpu_offer *o) {
  hk_status rc = HK_OK;
  const hk_transport_env *e = &c->wiring.env;
  int fd = -1;
  HK_TRY(e->dial(e->arg, peer, NULL, tag_of(channel), &fd), out);
  /* A new connection takes so few bytes at once. */
  if (send(fd, o, sizeof *o, MSG_NOSIGNAL) != (ssize_t)sizeof *o)
    rc = HK_FAIL_ERRNO("telling rank %d of a link's memory", peer);
out:
  if (fd >= 0) close(fd);
  return rc;
}

static hk_status hear(ncclComm_t c, int peer, unsigned channel, hk_gpu_offer *o) {
  hk_status rc = HK_OK;
  const hk_transport_env *e = &c->wiring.env;
  hk_waiter w;
  int fd = -1;
  size_t got = 0;
  hk_wait_begin(&w, e->wait);
  while ((fd = e->take(e->arg, peer, tag_of(channel))) < 0) HK_TRY(hk_wait_pause(&w), out);
  while (got < sizeof *o) {
    ssize_t n = recv(fd, (char *)o + got, sizeof *o - got, MSG_DONTWAIT);
    if (n > 0) {
      got += (size_t)n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      rc = HK_FAIL(HK_ERR_REMOTE, "rank %d closed a connection before it told of a link's memory", peer);
      goto out;
    } else {
      HK_TRY(hk_wait_fd(e->wait, fd, POLLIN, "a link's memory"), out);
    }
  }
out:
  if (fd >= 0) close(fd);
  return rc;
}

hk_status hk_gpu_offer_memory(ncclComm_t c, const hk_memory *m, bool first, hk_gpu_offer *o) {
  hk_status rc = HK_OK;
  hk_device *d = hk_gpu_of(c)->device;
  memset(o, 0, sizeof *o);
  HK_TRY(d->ops->share(d, m, &o->share), fail);
  if (o->share.fd >= 0) HK_TRY(hk_host_lend(o->share.fd, m->bytes, first, &o->region), fail);
  o->share.fd = -1; /* the asker's is another number */
  return HK_OK;
fail:
  o->share.kind = HK_MEMORY_NONE;
  return rc;
}

hk_status hk_gpu_open_offer(ncclComm_t c, int peer, const hk_gpu_offer *o, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_device *d = hk_gpu_of(c)->device;
  hk_memory_share share = o->share;
  size_t bytes;
  if (o->region) HK_TRY(hk_wire_file(c, peer, o->region, &share.fd, &bytes), out);
  rc = d->ops->open(d, &share, out);
  if (o->region) close(share.fd);
out:
  return rc;
}

void hk_gpu_remote_free(ncclComm_t c, hk_gpu_remote *r) { hk_gpu_remote_drop(hk_gpu_of(c)->device, r); }

void hk_gpu_remote_drop(hk_device *d, hk_gpu_remote *r) {
  hk_host_take_back(r->lent);
  (void)d->ops->release(d, &r->memory); /* a failure is logged, and there is nothing else to do */
  if (r->mapped)
    munmap(r->host, r->mapped);
  else if (r->host)
    (void)hk_host_free(r->host);
  memset(r, 0, sizeof *r);
}

/* Pages of memory files, which the sender maps too, pinned by both. */
hk_status hk_gpu_host_make(hk_device *d, size_t bytes, hk_gpu_remote *out, uint64_t *region) {
  hk_status rc = HK_OK;
  bytes = (bytes + 4095) & ~(size_t)4095;
  HK_TRY(hk_host_alloc(&out->host, bytes), out);
  hk_host_place(out->host, bytes, d->limits.host_numa);
  *region = hk_host_find(out->host).region;
  HK_TRY(d->ops->pin(d, out->host, bytes, &out->memory), out);
out:
  return rc;
}

hk_status hk_gpu_remote_make(ncclComm_t c, int peer, unsigned channel, size_t bytes, size_t zeroed,
                             hk_gpu_remote *out) {
  hk_status rc = HK_OK;
  hk_device *d = hk_gpu_of(c)->device;
  hk_gpu_offer o = {.region = 0};
  memset(out, 0, sizeof *out);
  if (hk_gpu_of(c)->direct[peer] != HK_GPU_STAGED) {
    size_t whole = (bytes + HK_GPU_SHARED_GRANULE - 1) / HK_GPU_SHARED_GRANULE * HK_GPU_SHARED_GRANULE;
    HK_TRY(d->ops->alloc_shared(d, whole, zeroed, hk_gpu_of(c)->by_fd, &out->memory), undo);
    HK_TRY(hk_gpu_offer_memory(c, &out->memory, true, &o), undo);
    out->lent = o.region;
  } else {
    HK_TRY(hk_gpu_host_make(d, bytes, out, &o.region), undo);
  }
  HK_TRY(tell(c, peer, channel, &o), undo);
  return HK_OK;
undo:
  hk_gpu_remote_free(c, out);
  return rc;
}

hk_status hk_gpu_host_open(ncclComm_t c, int peer, uint64_t region, hk_gpu_remote *out) {
  hk_status rc = HK_OK;
  hk_device *d = hk_gpu_of(c)->device;
  int fd = -1;
  size_t bytes;
  HK_TRY(hk_wire_file(c, peer, region, &fd, &bytes), out);
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    rc = HK_FAIL_ERRNO("rank %d cannot map %zu bytes of rank %d's memory", c->rank, bytes, peer);
    goto out;
  }
  out->host = at;
  out->mapped = bytes;
  HK_TRY(d->ops->pin(d, at, bytes, &out->memory), out);
out:
  if (fd >= 0) close(fd);
  return rc;
}

hk_status hk_gpu_remote_open(ncclComm_t c, int peer, unsigned channel, hk_gpu_remote *out) {
  hk_status rc = HK_OK;
  hk_gpu_offer o;
  memset(out, 0, sizeof *out);
  HK_TRY(hear(c, peer, channel, &o), out);
  rc = o.share.kind == HK_MEMORY_NONE ? hk_gpu_host_open(c, peer, o.region, out)
                                      : hk_gpu_open_offer(c, peer, &o, &out->memory);
  if (rc != HK_OK) hk_gpu_remote_free(c, out);
out:
  return rc;
}
