/* SPDX-License-Identifier: Apache-2.0 */
/* Plans in device memory (kernels/plan.h), and the arguments of a kernel for a call. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

struct hk_call;
struct hk_gpu_link;  /* kernels/cuda/work.h */
struct hk_gpu_small; /* the same */
struct hk_gpu_work;  /* the same */
struct hk_plan;
struct hk_program;

/* A plan's data in device memory. */
typedef struct hk_gpu_plan {
  char *image;               /* the programs, then their links; NULL: not uploaded yet */
  struct hk_gpu_link *links; /* used by new launches: in `image`, or a newer copy with memory for large slots */
  bool grown;                /* the links take messages of all sizes */
  size_t program_bytes;
  unsigned span, lanes, nlinks,
      scratch_blocks;         /* the maximum over the programs, except span: channels of one copy of the lanes */
  bool in_switch;             /* hk_gpu_uses_switch */
  uint8_t partition;          /* hk_partition of a wave's sizes (hk_sizes_of) */
  bool many;                  /* hk_gpu_work.many */
  struct hk_gpu_small *small; /* [channels]: the links of a one-shot program; NULL: the interpreter runs the plan */
} hk_gpu_plan;

/* `span`: channels of one copy of the lanes.  Offers the plan's links to the peers; hk_gpu_work_of gets them. */
hk_status hk_gpu_bind(ncclComm_t c, struct hk_plan *plan, unsigned span, const struct hk_call *call);
void hk_gpu_plan_free(ncclComm_t c, struct hk_plan *plan);
/* Copies the plan to the device, and makes its links large enough for `message`, unless that is done. Getting the links
 * may wait for other processes. */
hk_status hk_gpu_plan_upload(ncclComm_t c, const struct hk_plan *plan, uint64_t message);

/* ---- plan_links.c ---- */
const struct hk_program *hk_gpu_plan_program(const struct hk_plan *plan, unsigned order);
/* Offers the links of all copies of the lanes if `links` is NULL; else fills `links`, for messages of `bytes`. */
hk_status hk_gpu_plan_links(ncclComm_t c, const struct hk_plan *plan, uint64_t bytes, struct hk_gpu_link *links);

/* ---- work.c ---- */
/* The kernel's arguments for the call. *small: the plan's arguments for the kernel of small messages
 * (kernels/gpu_small.h); NULL: the interpreter runs the call. */
hk_status hk_gpu_work_of(ncclComm_t c, const struct hk_call *call, struct hk_gpu_work *work,
                         const struct hk_gpu_small **small);
