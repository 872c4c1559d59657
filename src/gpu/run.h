/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_RUN_H
#define HK_GPU_RUN_H
#include "../base/status.h"

struct hk_call;

/* Enqueues calls, all of communicators on GPUs. */
hk_status hk_gpu_run(const struct hk_call *calls, size_t n);
#endif
