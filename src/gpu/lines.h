/* SPDX-License-Identifier: Apache-2.0 */
/* LL lines between a kernel and its proxy, as the CPU reads and writes them: each line has 4 bytes of a slot's data,
 * then 4 bytes of flag (kernels/cuda/work.h). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* The data of a slot's lines. Returns false if not all of them have `flag` yet; `to` has no meaning then. */
bool hk_gpu_lines_take(const void *lines, uint32_t flag, void *to, uint32_t bytes);
/* Writes lines with the data. */
void hk_gpu_lines_give(void *lines, uint32_t flag, const void *from, uint32_t bytes);
/* Writes `flag` to all lines of a slot of at most `most` bytes. */
void hk_gpu_lines_refresh(void *lines, uint32_t flag, uint32_t most);
