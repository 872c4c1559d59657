/* SPDX-License-Identifier: Apache-2.0 */
/* --plot: bandwidth and time over size, drawn by gnuplot. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Called before a long run and not after it: fails if gnuplot is missing. */
void perf_plot_check(void);
void perf_plot_row(size_t bytes, const char *type, const char *op, int root);
void perf_plot_half(double usec, double bus_bw, bool in_place);
void perf_plot_draw(const char *path, const char *title);
