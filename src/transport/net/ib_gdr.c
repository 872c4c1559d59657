/* SPDX-License-Identifier: Apache-2.0 */
#include "ib_gdr.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../../base/param.h"

/* Reads are the flushes'. */
enum { ACCESS = HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE | HK_IBV_ACCESS_REMOTE_READ };

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

hk_path_class hk_ib_gpu_distance(const hk_paths *paths, int gpu, const char *card) {
  uint32_t from = UINT32_MAX, to = UINT32_MAX;
  for (uint32_t i = 0; paths && i < paths->topo->nnodes; i++) {
    const hk_node *n = &paths->topo->nodes[i];
    if (n->kind == HK_NODE_GPU && n->gpu.dev == gpu) from = i;
    if (n->kind == HK_NODE_NET && strcmp(n->name, card) == 0) to = i;
  }
  if (from == UINT32_MAX || to == UINT32_MAX) return HK_PATH_DIS;
  return (hk_path_class)hk_path_between(paths, from, to)->cls;
}

bool hk_ib_gpu_too_far(hk_path_class cls, char *why, size_t why_bytes) {
  const char *set = hk_param_str(HK_P_NET_GDR_LEVEL);
  hk_path_class most = HK_PATH_PXB;
  int64_t old = hk_param_int(HK_P_IB_CUDA_SUPPORT);
  if (set && *set) (void)hk_path_class_parse(set, &most); /* nonsense was refused when the communicator began */
  *why = 0;
  if (old == 0)
    snprintf(why, why_bytes, "NCCL_IB_CUDA_SUPPORT is 0");
  else if (set && *set && most == HK_PATH_LOC)
    snprintf(why, why_bytes, "NCCL_NET_GDR_LEVEL is LOC");
  else if (!(old == 1 && !(set && *set)) && cls != HK_PATH_DIS && cls > most)
    snprintf(why, why_bytes, "too far: NCCL_NET_GDR_LEVEL is %s", hk_path_class_name(most));
  return *why != 0;
}

hk_ib_flushing hk_ib_flushing_of(const hk_device *gpu) {
  if (gpu->limits.rdma_ordered || hk_param_int(HK_P_GDR_FLUSH_DISABLE)) return HK_IB_NO_FLUSH;
  return gpu->limits.rdma_flush ? HK_IB_DRIVER_FLUSH : HK_IB_READ_FLUSH;
}

const char *hk_ib_flushing_words(hk_ib_flushing f) {
  static const char *const words[] = {"needs no flush", "is flushed by its driver", "is flushed by reads of the card"};
  return f == HK_IB_NO_FLUSH && hk_param_int(HK_P_GDR_FLUSH_DISABLE) ? "is not flushed: NCCL_GDR_FLUSH_DISABLE is 1"
                                                                     : words[f];
}

static bool relaxed(void) { return hk_param_int(HK_P_IB_PCI_RELAXED_ORDERING) != 0; }

static hk_ibv_mr *by_dmabuf(const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p, size_t bytes,
                            hk_ib_gpu_memory *m) {
  int access = ACCESS, fd;
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
  unsigned access = ACCESS;
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

hk_status hk_ib_gpu_probe(const hk_ibv *api, hk_ibv_context *card, hk_device *gpu, void *page, hk_ib_gpu_memory *out) {
  hk_ibv_pd *pd = api->alloc_pd(card);
  if (!pd) return HK_FAIL_ERRNO("a protection domain on %s", card->device->name);
  hk_ib_gpu_register(api, pd, gpu, page, HK_DEVICE_PAGE, out);
  if (out->mr) api->dereg_mr(out->mr);
  out->mr = NULL;
  api->dealloc_pd(pd);
  return HK_OK;
}
