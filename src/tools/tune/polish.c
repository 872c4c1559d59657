/* SPDX-License-Identifier: Apache-2.0 */
/* Combines the times of several rounds or runs. */
#include <stdlib.h>
#include <string.h>
#include "tune.h"

enum { SWEEPS = 8 }; /* it settles after two or three */

static int polish_order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of n values, `step` apart; the values are not moved. */
static double polish_median(const double *at, int n, int step) {
  double sorted[HK_TUNE_ROWS];
  for (int i = 0; i < n; i++) sorted[i] = at[i * step];
  qsort(sorted, (size_t)n, sizeof *sorted, polish_order);
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void hk_tune_polish(double *ln, int rows, int columns, double *out) {
  double level = 0, row[HK_TUNE_ROWS] = {0};
  memset(out, 0, (size_t)columns * sizeof *out);
  for (int sweep = 0; sweep < SWEEPS; sweep++) {
    for (int r = 0; r < rows; r++) {
      double m = polish_median(&ln[r * columns], columns, 1);
      for (int c = 0; c < columns; c++) ln[r * columns + c] -= m;
      row[r] += m;
    }
    for (int c = 0; c < columns; c++) {
      double m = polish_median(&ln[c], rows, columns);
      for (int r = 0; r < rows; r++) ln[r * columns + c] -= m;
      out[c] += m;
    }
  }
  level = polish_median(row, rows, 1);
  for (int c = 0; c < columns; c++) out[c] += level;
}
