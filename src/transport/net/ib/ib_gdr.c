/* SPDX-License-Identifier: Apache-2.0 */
/* Registering a GPU's memory with verbs, by dma-buf or by address: see ib_gdr.h. */
#include "ib_gdr.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "../../../base/param.h"
#include "../../../base/sysfs.h"
#include "ib_direct.h"
#include "ib_flushing.h"

/* Reads are for flushes. */
enum { ACCESS = HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE | HK_IBV_ACCESS_REMOTE_READ };

hk_ib_flushing hk_ib_flushing_of(const hk_settings *set, const hk_device *gpu, bool split) {
  if (!hk_gdr_needs_flush(set, gpu, split)) return HK_IB_NO_FLUSH;
  return gpu->limits.rdma_flush && !gpu->limits.rdma_ordered ? HK_IB_DRIVER_FLUSH : HK_IB_READ_FLUSH;
}

const char *hk_ib_flushing_words(const hk_settings *set, hk_ib_flushing f) {
  static const char *const words[] = {"needs no flush", "is flushed by its driver", "is flushed by reads of the card"};
  return f == HK_IB_NO_FLUSH && set->GDR_FLUSH_DISABLE ? "is not flushed: NCCL_GDR_FLUSH_DISABLE is 1" : words[f];
}

static bool ib_gdr_relaxed(const hk_settings *set) { return set->IB_PCI_RELAXED_ORDERING != 0; }

/* The card's driver keeps its own reference to the buffer. */
static hk_ibv_mr *ib_gdr_by_fd(const hk_settings *set, const hk_ibv *api, hk_ibv_pd *pd, int fd, void *p, size_t bytes,
                               hk_ib_gpu_memory *m) {
  int access = ACCESS | (ib_gdr_relaxed(set) ? HK_IBV_ACCESS_RELAXED_ORDERING : 0);
  hk_ibv_mr *mr = api->reg_dmabuf_mr(pd, 0, bytes, (uint64_t)(uintptr_t)p, fd, access);
  if (!mr)
    hk_gdr_add_cause(m->why, "dma-buf: the card's driver refuses it (%s)",
                     errno == EOPNOTSUPP || errno == EPROTONOSUPPORT ? "it knows no dma-buf" : strerror(errno));
  return mr;
}

static bool ib_gdr_has_direct(const hk_settings *set, hk_ibv_pd *pd) {
  char path[HK_SYSFS_PATH];
  return hk_ib_direct_function(set, pd->context, path);
}

static hk_ibv_mr *ib_gdr_direct_by_fd(const hk_settings *set, hk_ibv_pd *pd, int fd, void *p, size_t bytes,
                                      hk_ib_gpu_memory *m) {
  int access = ACCESS | (ib_gdr_relaxed(set) ? HK_IBV_ACCESS_RELAXED_ORDERING : 0);
  hk_ibv_mr *mr = hk_ib_direct_register(pd, bytes, (uint64_t)(uintptr_t)p, fd, access);
  if (!mr) hk_gdr_add_cause(m->why, "data direct: the card's driver refuses it (%s)", strerror(errno));
  m->direct = mr != NULL;
  return mr;
}

static bool ib_gdr_knows_dmabuf(const hk_ibv *api, hk_ib_gpu_memory *m) {
  if (!api->reg_dmabuf_mr) hk_gdr_add_cause(m->why, "dma-buf: libibverbs is too old (rdma-core 34 has it)");
  return api->reg_dmabuf_mr != NULL;
}

static hk_ibv_mr *ib_gdr_by_dmabuf(const hk_settings *set, const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p,
                                   size_t bytes, hk_ib_gpu_memory *m) {
  const bool direct = ib_gdr_has_direct(set, pd);
  int fd = ib_gdr_knows_dmabuf(api, m) ? hk_gdr_dmabuf(set, gpu, p, bytes, direct, m->why) : -1;
  if (fd < 0) return NULL;
  if (direct) {
    hk_ibv_mr *mr = ib_gdr_direct_by_fd(set, pd, fd, p, bytes, m);
    close(fd);
    if (mr) return mr;
    fd = hk_gdr_dmabuf(set, gpu, p, bytes, false, m->why);
    if (fd < 0) return NULL;
  }
  hk_ibv_mr *mr = ib_gdr_by_fd(set, api, pd, fd, p, bytes, m);
  close(fd);
  return mr;
}

static hk_ibv_mr *ib_gdr_by_peermem(const hk_settings *set, const hk_ibv *api, hk_ibv_pd *pd, void *p, size_t bytes,
                                    hk_ib_gpu_memory *m) {
  unsigned access = ACCESS;
  hk_ibv_mr *mr;
  if (api->reg_mr_iova2 && ib_gdr_relaxed(set))
    mr = api->reg_mr_iova2(pd, p, bytes, (uint64_t)(uintptr_t)p, access | HK_IBV_ACCESS_RELAXED_ORDERING);
  else
    mr = api->reg_mr(pd, p, bytes, (int)access);
  /* Without the module the kernel looks for pages of the process at that address, and finds none. */
  if (!mr)
    hk_gdr_add_cause(m->why, "nvidia-peermem: %s",
                     errno == EFAULT || errno == EINVAL ? "it is not loaded" : strerror(errno));
  return mr;
}

void hk_ib_gpu_register(const hk_settings *set, const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p, size_t bytes,
                        hk_ib_gpu_memory *out) {
  *out = (hk_ib_gpu_memory){.method = HK_GDR_DMABUF};
  out->mr = ib_gdr_by_dmabuf(set, api, pd, gpu, p, bytes, out);
  if (out->mr) return;
  out->method = HK_GDR_PEERMEM;
  out->mr = ib_gdr_by_peermem(set, api, pd, p, bytes, out);
  if (!out->mr) out->method = HK_GDR_STAGED;
}

const char *hk_ib_gpu_words(const hk_ib_gpu_memory *m) {
  return m->direct ? "dma-buf, data direct" : hk_gdr_method_name(m->method);
}

hk_status hk_ib_gpu_probe(const hk_settings *set, const hk_ibv *api, hk_ibv_context *card, hk_device *gpu, void *page,
                          hk_ib_gpu_memory *out) {
  hk_ibv_pd *pd = api->alloc_pd(card);
  if (!pd) return HK_FAIL_ERRNO("a protection domain on %s", card->device->name);
  hk_ib_gpu_register(set, api, pd, gpu, page, HK_DEVICE_PAGE, out);
  if (out->mr) api->dereg_mr(out->mr);
  out->mr = NULL;
  api->dealloc_pd(pd);
  return HK_OK;
}
