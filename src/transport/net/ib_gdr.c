/* SPDX-License-Identifier: Apache-2.0 */
#include "ib_gdr.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../../base/param.h"

enum { PROBE_BYTES = 65536 }; /* a page of a GPU */

const char *hk_ib_gpu_way_name(hk_ib_gpu_way way) {
  static const char *const names[] = {"host memory", "dma-buf", "nvidia-peermem"};
  return names[way];
}

__attribute__((format(printf, 2, 3))) static void add_cause(hk_ib_gpu_memory *m, const char *format, ...) {
  size_t used = strlen(m->why);
  va_list args;
  if (used && used + 2 < sizeof m->why) used += (size_t)snprintf(m->why + used, sizeof m->why - used, "; ");
  va_start(args, format);
  vsnprintf(m->why + used, sizeof m->why - used, format, args);
  va_end(args);
}

static bool relaxed(void) { return hk_param_int(HK_P_IB_PCI_RELAXED_ORDERING) != 0; }

static hk_ibv_mr *by_dmabuf(const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p, size_t bytes,
                            hk_ib_gpu_memory *m) {
  int access = HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE, fd;
  if (!hk_param_int(HK_P_DMABUF_ENABLE)) {
    add_cause(m, "dma-buf: NCCL_DMABUF_ENABLE=0");
    return NULL;
  }
  if (!gpu->limits.dmabuf || !gpu->ops->dmabuf) {
    add_cause(m, "dma-buf: the GPU's driver gives none (it needs the open kernel modules and Linux 5.12)");
    return NULL;
  }
  if (!api->reg_dmabuf_mr) {
    add_cause(m, "dma-buf: libibverbs is too old (rdma-core 34 has it)");
    return NULL;
  }
  if (gpu->ops->dmabuf(gpu, p, bytes, &fd) != HK_OK) {
    add_cause(m, "dma-buf: %.120s", hk_last_error());
    return NULL;
  }
  /* The card's driver keeps its own hold of the buffer. */
  if (relaxed()) access |= HK_IBV_ACCESS_RELAXED_ORDERING;
  hk_ibv_mr *mr = api->reg_dmabuf_mr(pd, 0, bytes, (uint64_t)(uintptr_t)p, fd, access);
  int err = errno;
  close(fd);
  if (!mr)
    add_cause(m, "dma-buf: the card's driver refuses it (%s)",
              err == EOPNOTSUPP || err == EPROTONOSUPPORT ? "it knows no dma-buf" : strerror(err));
  return mr;
}

static hk_ibv_mr *by_peermem(const hk_ibv *api, hk_ibv_pd *pd, void *p, size_t bytes, hk_ib_gpu_memory *m) {
  unsigned access = HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE;
  hk_ibv_mr *mr;
  if (api->reg_mr_iova2 && relaxed())
    mr = api->reg_mr_iova2(pd, p, bytes, (uint64_t)(uintptr_t)p, access | HK_IBV_ACCESS_RELAXED_ORDERING);
  else
    mr = api->reg_mr(pd, p, bytes, (int)access);
  /* Without the module the kernel looks for pages of the process at that address. */
  if (!mr)
    add_cause(m, "nvidia-peermem: %s", errno == EFAULT || errno == EINVAL ? "it is not loaded" : strerror(errno));
  return mr;
}

void hk_ib_gpu_register(const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p, size_t bytes,
                        hk_ib_gpu_memory *out) {
  *out = (hk_ib_gpu_memory){.way = HK_IB_GPU_DMABUF};
  out->mr = by_dmabuf(api, pd, gpu, p, bytes, out);
  if (out->mr) return;
  out->way = HK_IB_GPU_PEERMEM;
  out->mr = by_peermem(api, pd, p, bytes, out);
  if (!out->mr) out->way = HK_IB_GPU_STAGED;
}

hk_status hk_ib_gpu_probe(const hk_ibv *api, hk_ibv_context *card, hk_device *gpu, hk_ib_gpu_memory *out) {
  hk_status rc = HK_OK;
  hk_memory memory = {0};
  hk_ibv_pd *pd = api->alloc_pd(card);
  if (!pd) return HK_FAIL_ERRNO("a protection domain on %s", card->device->name);
  HK_TRY(gpu->ops->alloc(gpu, 2 * PROBE_BYTES, &memory), out);
  uintptr_t page = ((uintptr_t)memory.base + PROBE_BYTES - 1) & ~(uintptr_t)(PROBE_BYTES - 1);
  hk_ib_gpu_register(api, pd, gpu, (void *)page, PROBE_BYTES, out);
  if (out->mr) api->dereg_mr(out->mr);
  out->mr = NULL;
out:
  if (memory.base) (void)gpu->ops->release(gpu, &memory);
  api->dealloc_pd(pd);
  return rc;
}
