/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot programs of small messages have a kernel of their own (cuda/small.h): which programs and calls can, and its
 * parameters.  Links, slots and results are those of the interpreter, so each rank decides for itself. */
#ifndef HK_KERNELS_GPU_SMALL_H
#define HK_KERNELS_GPU_SMALL_H
#include "../base/status.h"
#include "cuda/work.h"

struct hk_plan; /* plan.h */

/* *out becomes the plan's channels, with all but what a call adds, for free(); NULL if the interpreter runs the plan.
 * `links`: [channels][nlinks]; `there`: the same in device memory. */
hk_status hk_gpu_small_bind(const struct hk_plan *plan, unsigned nlinks, const hk_gpu_link *links,
                            const hk_gpu_link *there, hk_gpu_small **out);
/* The blocks that the call takes; 0: the interpreter runs it. */
unsigned hk_gpu_small_blocks(const hk_gpu_work *w);
/* These blocks, from *to on; `from`: of the plan. Gives the place after them. */
hk_gpu_small *hk_gpu_small_fill(hk_gpu_small *to, const hk_gpu_small *from, const hk_gpu_work *w);
#endif
