/* SPDX-License-Identifier: Apache-2.0 */
/* Test data whose exact result is known, and the check of every element.
 *
 * A collective describes its input and its result by the same few emitters. The sink decides whether their output is
 * written to memory or compared with it. */
#pragma once
#include "mem.h"
#include "perf.h"

typedef struct perf_data {
  const perf_mem *mem;
  char *base;   /* the address of the emitters' offset 0 */
  bool compare; /* compare with memory instead of writing to it */
  ncclDataType_t type;
  int op; /* an index of perf_op_names */
  int rank, nranks, root;
  uint32_t seed;
  bool in_place;
  perf_sizes n;   /* elements */
  uint64_t wrong; /* elements found different */
} perf_data;

/* The pseudo-random block of `from` for `to` (any two numbers that identify it), at element `at` of the buffer. */
void perf_emit_block(perf_data *d, size_t at, size_t count, unsigned from, unsigned to);
/* This rank's contribution to the reduction of elements first, first + 1, ... of the whole vector. */
void perf_emit_part(perf_data *d, size_t at, size_t count, size_t first);
/* The reduction of these elements over all ranks. */
void perf_emit_result(perf_data *d, size_t at, size_t count, size_t first);
void perf_emit_zero(perf_data *d, size_t at, size_t count);
