/* SPDX-License-Identifier: Apache-2.0 */
/* How near simulated times and prices are to published times of collectives on GPUs, by size.
 * tests/unit/test_sim_published.c asserts these figures, so that the output of tools says what the test found. */
#pragma once
#include <stdint.h>

/* Prices differ from simulated times by at most so many percent (tests/unit/test_model.c). */
enum { HK_PRICE_PERCENT = 40 };

typedef struct hk_accuracy {
  const char *sizes; /* in words */
  uint64_t below;    /* its sizes are less than this */
  int percent;       /* the bar: how far a simulated figure may be from a published one */
  int rows, known;   /* published figures; of these, the ones that miss the bar for a known reason */
  double low, high;  /* of ten published times, eight lie between these multiples of the simulated ones */
} hk_accuracy;

enum { HK_ACCURACIES = 3 };
extern const hk_accuracy hk_accuracies[HK_ACCURACIES];
int hk_accuracy_class(uint64_t bytes);
