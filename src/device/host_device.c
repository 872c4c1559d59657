/* SPDX-License-Identifier: Apache-2.0 */
/* The host as a device: the least that an implementation has, and the template of the next one. */
#include <string.h>
#include <sys/mman.h>
#include "device.h"
#include "host.h"

static void close_host(hk_device *d) { (void)d; }

static hk_status alloc(hk_device *d, size_t bytes, hk_memory *out) {
  hk_status rc = HK_OK;
  void *p = NULL;
  (void)d;
  memset(out, 0, sizeof *out);
  HK_TRY(hk_host_alloc(&p, bytes), out);
  hk_host_span span = hk_host_find(p);
  *out = (hk_memory){
      .base = p, .host = p, .bytes = span.end - span.begin, .handle = span.region, .kind = HK_MEMORY_CLASSIC};
out:
  return rc;
}

static hk_status release(hk_device *d, hk_memory *m) {
  hk_status rc = HK_OK;
  (void)d;
  if (!m->base) return HK_OK;
  if (m->kind != HK_MEMORY_MAPPED)
    rc = hk_host_free(m->base);
  else if (munmap(m->base, m->bytes))
    rc = HK_FAIL_ERRNO("unmapping %zu bytes", m->bytes);
  memset(m, 0, sizeof *m);
  return rc;
}

static hk_status share(hk_device *d, const hk_memory *m, hk_memory_share *out) {
  (void)d;
  size_t bytes = 0;
  memset(out, 0, sizeof *out);
  int fd = m->handle ? hk_host_export(m->handle, &bytes) : -1;
  if (fd < 0) return HK_FAIL(HK_ERR_SYSTEM, "%zu bytes at %p cannot be shared with other processes", m->bytes, m->base);
  *out = (hk_memory_share){.bytes = bytes, .kind = HK_MEMORY_CLASSIC, .fd = fd};
  return HK_OK;
}

static hk_status open_share(hk_device *d, const hk_memory_share *s, hk_memory *out) {
  (void)d;
  memset(out, 0, sizeof *out);
  void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
  if (p == MAP_FAILED) return HK_FAIL_ERRNO("mapping %llu bytes of a peer", (unsigned long long)s->bytes);
  *out = (hk_memory){.base = p, .host = p, .bytes = s->bytes, .kind = HK_MEMORY_MAPPED};
  return HK_OK;
}

static hk_status peer(hk_device *d, int other, char *why, size_t why_bytes) {
  (void)d;
  (void)other;
  if (why_bytes) why[0] = 0;
  return HK_OK;
}

static hk_status pointer(hk_device *d, const void *p, hk_pointer *out) {
  (void)d;
  hk_host_span span = hk_host_find(p);
  *out = (hk_pointer){.kind = HK_POINTER_HOST, .device = -1};
  if (!span.region) return HK_OK;
  out->base = span.begin;
  out->bytes = span.end - span.begin;
  return HK_OK;
}

static hk_status copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q) {
  (void)d;
  (void)q;
  memmove(to, from, bytes);
  return HK_OK;
}
static hk_status wait_for(hk_device *d, hk_queue q) {
  (void)d;
  (void)q;
  return HK_OK;
}

static const hk_device_ops ops = {.name = "host",
                                  .close = close_host,
                                  .alloc = alloc,
                                  .alloc_host = alloc,
                                  .release = release,
                                  .share = share,
                                  .open = open_share,
                                  .peer = peer,
                                  .pointer = pointer,
                                  .copy = copy,
                                  .wait = wait_for};
static hk_device host = {.ops = &ops, .limits = {.ordinal = -1, .host_numa = -1, .name = "host"}}; /* never written */

hk_device *hk_device_host(void) { return &host; }
