/* SPDX-License-Identifier: Apache-2.0 */
#include "accuracy.h"

const hk_accuracy hk_accuracies[HK_ACCURACIES] = {
    {"below 1 MiB", 1 << 20, 40, 29, 1, 0.85, 1.5},
    {"from 1 to 64 MiB", 64 << 20, 30, 44, 2, 0.8, 1.3},
    {"from 64 MiB on", UINT64_MAX, 15, 79, 5, 0.9, 1.15},
};

int hk_accuracy_class(uint64_t bytes) {
  int k = 0;
  while (k + 1 < HK_ACCURACIES && bytes >= hk_accuracies[k].below) k++;
  return k;
}
