/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_SMALL_H
#define HK_GPU_SMALL_H
#include "launch.h"

/* Launches the items if all are for the kernel of small messages; else *done is false. */
hk_status hk_gpu_small_launch(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q, bool *done);
#endif
