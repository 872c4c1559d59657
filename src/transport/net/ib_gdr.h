/* SPDX-License-Identifier: Apache-2.0 */
/**
 * GPUDirect RDMA by verbs: a GPU's memory registered with the card.  Whether a GPU and a card can is found by trying.
 */
#ifndef HK_TRANSPORT_NET_IB_GDR_H
#define HK_TRANSPORT_NET_IB_GDR_H
#include "gdr.h"
#include "ib_verbs.h"

typedef struct hk_ib_gpu_memory {
  hk_gdr_method method;
  hk_ibv_mr *mr;        /* NULL: HK_GDR_STAGED */
  char why[HK_GDR_WHY]; /* what was refused before this way was found, each cause in words; may be empty */
} hk_ib_gpu_memory;

/* How a GPU is made to see what a card has written to its memory and reported. */
typedef enum hk_ib_flushing {
  HK_IB_NO_FLUSH,     /* it does so by itself */
  HK_IB_DRIVER_FLUSH, /* by a call to its driver */
  HK_IB_READ_FLUSH    /* the card reads a little from there, behind its writes */
} hk_ib_flushing;

hk_ib_flushing hk_ib_flushing_of(const hk_device *gpu);
const char *hk_ib_flushing_words(hk_ib_flushing f); /* "needs no flush" */

/* Registers whole pages of `gpu`'s memory for remote writes. */
void hk_ib_gpu_register(const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p, size_t bytes, hk_ib_gpu_memory *out);
/* Memory of a GPU that somebody else has named: by his dma-buf, or (fd -1) by its address. */
void hk_ib_gpu_register_as(const hk_ibv *api, hk_ibv_pd *pd, int fd, uint64_t offset, void *p, size_t bytes,
                           hk_ib_gpu_memory *out);
/* Before there is such memory: would all of this process's cards take dma-bufs, and is there a module for addresses? */
void hk_ib_gpu_support(bool *dmabuf, bool *address);
/* Does so with HK_DEVICE_PAGE bytes at `page`, and takes it back: out->mr is NULL, out->method what it was. */
hk_status hk_ib_gpu_probe(const hk_ibv *api, hk_ibv_context *card, hk_device *gpu, void *page, hk_ib_gpu_memory *out);
#endif
