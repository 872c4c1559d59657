/* SPDX-License-Identifier: Apache-2.0 */
/**
 * GPUDirect RDMA with verbs: registers a GPU's memory with a card. Whether a GPU and a card support it is found by a
 * trial.
 */
#pragma once
#include "../gdr.h"
#include "ib_verbs.h"

struct hk_settings; /* base/param.h */

typedef struct hk_ib_gpu_memory {
  hk_gdr_method method;
  bool direct;          /* the card's data-direct function accesses it: ib_direct.h */
  hk_ibv_mr *mr;        /* NULL: HK_GDR_STAGED */
  char why[HK_GDR_WHY]; /* the causes why better methods were refused, as text; may be empty */
} hk_ib_gpu_memory;

/* Registers whole pages of `gpu`'s memory for remote writes. Failure is HK_GDR_STAGED. */
void hk_ib_gpu_register(const struct hk_settings *set, const hk_ibv *api, hk_ibv_pd *pd, hk_device *gpu, void *p,
                        size_t bytes, hk_ib_gpu_memory *out);
/* "dma-buf, data direct" */
const char *hk_ib_gpu_words(const hk_ib_gpu_memory *m);
/* A trial: registers HK_DEVICE_PAGE bytes at `page` and deregisters them. out->mr is NULL, out->method is the
 * result. */
hk_status hk_ib_gpu_probe(const struct hk_settings *set, const hk_ibv *api, hk_ibv_context *card, hk_device *gpu,
                          void *page, hk_ib_gpu_memory *out);
