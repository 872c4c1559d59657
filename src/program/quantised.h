/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The quantised form of floats on links: 8 bits a value, and a scale for each 32 values.
 *
 *   n values       signed bytes: the value divided by the scale of its block, rounded to nearest, ties to even. From
 *                  -126 to 126; 127, -127 and -128 mean infinity, -infinity and NaN
 *   n / 32 scales  rounded up, a byte each: the scale is 2 to the power of this byte - 127. It is the smallest power
 *                  of two by which all finite values of the block fit
 *
 * Scales are powers of two, so that a quantised value is exact in float32, bfloat16 and float16, and quantising it
 * again changes nothing. Which programs' links may carry it: hk_summary.quantises.
 */
#pragma once
#include <stddef.h>
#include "operation.h"

enum { HK_QUANTISED_BLOCK = 32, HK_QUANTISED_MOST = 126 };

/* Bytes of n values on a link. */
static inline size_t hk_quantised_bytes(size_t n) { return n + (n + HK_QUANTISED_BLOCK - 1) / HK_QUANTISED_BLOCK; }
/* The most values that fit into so many bytes, as whole blocks. */
static inline size_t hk_quantised_fit(size_t bytes) { return bytes / (HK_QUANTISED_BLOCK + 1) * HK_QUANTISED_BLOCK; }
/* What has a quantised form: the collective, a type and an operator. */
static inline int hk_quantised_coll(hk_coll c) { return c == HK_ALLREDUCE; }
static inline int hk_quantised_type(hk_dtype t) { return t == HK_F32 || t == HK_BF16 || t == HK_F16; }
static inline int hk_quantised_op(hk_redop op) { return op == HK_SUM || op == HK_AVG; }

/* The error of a sum's element is at most this part of the sum of A over all ranks, where A is the largest finite
 * magnitude of the rank's elements at most 31 places away: a value is rounded by less than A / 126, once before it is
 * added and once in the sum. The rounding of ordinary sums, and a few times HK_QUANTISED_LEAST of the type, come in
 * addition. */
#define HK_QUANTISED_ERROR (1.0 / 62)
