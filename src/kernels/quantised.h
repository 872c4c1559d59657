/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of a program whose links carry quantised values (program/quantised.h). */
#pragma once
#include <stdbool.h>
#include "reduce.h"

/* An operand of a move. On a link: hk_quantised_bytes(n); else n elements of the type. */
typedef struct hk_quantised_operand {
  void *at;
  bool link;
} hk_quantised_operand;

/* dst[i] = src[0] + src[1] + ..., in fp32 and in that order. Between links one source is copied as it is. If a sum is
 * `final` or goes to a link, it is quantised once, and all destinations get the quantised value. `fresh`: the source
 * that is multiplied by the reducer's scalar if it has `pre`, or -1. A destination may be equal to a source. */
void hk_move_quantised(const hk_reducer *r, const hk_quantised_operand *dst, unsigned ndst,
                       const hk_quantised_operand *src, unsigned nsrc, int fresh, size_t n, bool final);
