/* SPDX-License-Identifier: Apache-2.0 */
/* Results: the table on stdout, JSON, a plot.  Only the main thread of process 0 reports. */
#pragma once
#include "perf.h"

/* Where one rank runs. */
typedef struct perf_place {
  int rank, group, pid, device;
  char host[64], text[160]; /* text: "[0000:00:00] name" */
} perf_place;

typedef struct perf_iter_stats {
  double min, max, average, p50, p95, p99, deviation; /* microseconds */
  const double *times, *by_process;                   /* all iterations; by process, if there are several */
  int count, skipped, processes;
} perf_iter_stats;

/* One half of a row. */
typedef struct perf_result {
  double usec, alg_bw, bus_bw;
  bool checked;
  uint64_t wrong;
  bool has_stats;
  perf_iter_stats stats;
} perf_result;

void perf_report_open(const perf_options *o, int library_version);
/* Lines about the set-up of the run, then one for each call of perf_report_place, then the table's head. */
void perf_report_header(const perf_options *o, int library_version);
void perf_report_place(const perf_place *p);
void perf_report_table(void);
/* A row: its left part, its two halves, its end. Nothing is printed before the end. */
void perf_report_row(size_t bytes, size_t count, const char *type, const char *op, int root);
/* NULL: this half was not measured. */
void perf_report_half(const perf_result *r, bool in_place);
void perf_report_row_end(void);
void perf_report_footer(long errors, double bandwidth, double wanted, const char *program);
void perf_report_memory(const char *title, double init, double buffers, double collective);
void perf_report_init(double seconds);
void perf_report_close(const char *error);
/* After a failure: closes the JSON text written so far, if the calling thread writes it. */
void perf_report_abandon(void);
/* On stderr, if that is a terminal: `done` of `total` steps, now at `what`. */
void perf_report_progress(size_t done, size_t total, const char *what, size_t bytes);
