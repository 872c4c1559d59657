/* SPDX-License-Identifier: Apache-2.0 */
/* The separate kernel for one-shot programs of small messages (cuda/small.h): the programs and calls that it can run,
 * and its parameters.  It uses the interpreter's links and slots and gives the same results, so each rank decides for
 * itself. */
#pragma once
#include "../base/status.h"
#include "cuda/work.h"

struct hk_plan; /* plan.h */

/* *out: one entry for each channel of the plan, complete except for the fields of a call; the caller frees it with
 * free(). NULL if the interpreter runs the plan. `links`: [channels][nlinks]; `there`: the same in device memory. */
hk_status hk_gpu_small_bind(const struct hk_plan *plan, unsigned nlinks, const hk_gpu_link *links,
                            const hk_gpu_link *there, hk_gpu_small **out);
/* The number of blocks for the call; 0: the interpreter runs it. */
unsigned hk_gpu_small_blocks(const hk_gpu_work *w);
/* Fills these blocks from *to on; `from`: the plan's entries. Returns the place after them. */
hk_gpu_small *hk_gpu_small_fill(hk_gpu_small *to, const hk_gpu_small *from, const hk_gpu_work *w);
