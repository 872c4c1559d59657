/* SPDX-License-Identifier: Apache-2.0 */
/* The same loops for AVX2: three times as fast, and filling and checking buffers is much of a run's time. */
#define PERF_REDUCE_PATTERN perf_reduce_pattern_avx2
#include "data_reduce_loops.h"
