/* SPDX-License-Identifier: Apache-2.0 */
/* Table and JSON. Both follow nccl-tests exactly, because scripts read the columns and keys. */
#include "report.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../base/json.h"
#include "plot.h"

enum { JSON_VERSION = 3, PROGRESS_AFTER_SECONDS = 2 };
#define TIME_FORMAT "%Y-%m-%d %H:%M:%S"
/* The version of nccl-tests whose output format this is. */
#define FORMAT_VERSION "2.19.6"

extern char **environ;

static struct {
  const perf_options *o;
  hk_json json;
  char row[1024];
  size_t used;
  bool progress; /* a progress line is on the terminal */
  double start;
  pthread_t thread; /* the thread that reports */
} out;

static void report_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void report_add(const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(out.row + out.used, sizeof out.row - out.used, format, args);
  if (n > 0) out.used += (size_t)n < sizeof out.row - out.used ? (size_t)n : sizeof out.row - out.used - 1;
  va_end(args);
}

static void report_clear_progress(void) {
  if (out.progress) fputs("\r\033[K", stderr), fflush(stderr);
  out.progress = false;
}

static void report_now_text(char *text, size_t capacity) {
  time_t t = time(NULL);
  struct tm parts;
  localtime_r(&t, &parts);
  strftime(text, capacity, TIME_FORMAT, &parts);
}

/* An existing file is kept: then the results go to file.json.0, .1 and so on. */
static FILE *report_create_json(const char *path, char *used, size_t capacity) {
  snprintf(used, capacity, "%s", path);
  FILE *f = fopen(used, "wx");
  for (int i = 0; !f && errno == EEXIST; i++) {
    snprintf(used, capacity, "%s.%d", path, i);
    f = fopen(used, "wx");
  }
  return f;
}

void perf_report_open(const perf_options *o, int library_version) {
  out.o = o;
  out.start = perf_now();
  out.thread = pthread_self();
  if (o->plot) perf_plot_check();
  if (!o->json) return;
  char path[4096], text[64];
  hk_json *w = &out.json;
  w->f = report_create_json(o->json, path, sizeof path);
  if (!w->f) perf_fail(PERF_USAGE, "cannot write %s: %s", path, strerror(errno));
  printf("# Writing JSON output to %s\n", path);
  hk_json_open(w, '{');
  hk_json_put_integer(w, "version", JSON_VERSION);
  report_now_text(text, sizeof text);
  hk_json_put_text(w, "start_time", text);
  hk_json_begin(w, "args", '[');
  for (int i = 0; i < o->argc; i++) hk_json_text(w, o->argv[i]);
  hk_json_close(w);
  hk_json_begin(w, "env", '[');
  for (char **e = environ; *e; e++) hk_json_text(w, *e);
  hk_json_close(w);
  hk_json_put_integer(w, "nccl_version", library_version);
}

static void report_json_config(hk_json *w, const perf_options *o) {
  hk_json_begin(w, "config", '{');
  hk_json_put_integer(w, "nthreads", o->threads);
  hk_json_put_integer(w, "ngpus", o->gpus);
  hk_json_put_integer(w, "minimum_bytes", (long long)o->min_bytes);
  hk_json_put_integer(w, "maximum_bytes", (long long)o->max_bytes);
  if (o->step_factor > 1)
    hk_json_put_integer(w, "step_factor", (long long)o->step_factor);
  else
    hk_json_put_integer(w, "step_bytes", (long long)o->step_bytes);
  hk_json_put_integer(w, "warmup_iters", o->warmup);
  hk_json_put_integer(w, "iterations", o->iters);
  hk_json_put_integer(w, "aggregated_iterations", o->agg);
  hk_json_put_integer(w, "validation", o->check);
  hk_json_put_integer(w, "graph", o->graph);
  hk_json_put_text(w, "blocking_collectives", o->blocking ? "true" : "false");
  hk_json_put_text(w, "per_iter_timing", o->per_iter ? "true" : "false");
  hk_json_put_integer(w, "per_iter_skip", o->per_iter_skip);
  if (o->rewrite) hk_json_put_text(w, "rewrite", "true");
  hk_json_put_text(w, "parallel_init", o->parallel_init ? "true" : "false");
  hk_json_begin(w, "devices", '[');
}

void perf_report_header(const perf_options *o, int library_version) {
  printf("# nccl-tests version %s-hocket nccl-headers=%d nccl-library=%d\n", FORMAT_VERSION, NCCL_VERSION_CODE,
         library_version);
  printf("# Collective test starting: %s\n", o->program);
  bool factor = o->step_factor > 1;
  printf("# nThread %d nGpus %d minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d agg iters: %d "
         "validation: %d graph: %d unalign: %d\n",
         o->threads, o->gpus, o->min_bytes, o->max_bytes, factor ? o->step_factor : o->step_bytes,
         factor ? "factor" : "bytes", o->warmup, o->iters, o->agg, o->check, o->graph, o->unalign);
  static const char *const blocking[] = {NULL, "wait and barrier after each inner iteration (-m)",
                                         "wait after each inner iteration (-m), no barrier",
                                         "wait and barrier after each outer iteration (-n); time excludes barrier"};
  if (o->blocking) printf("# Blocking Enabled: %s \n", blocking[o->blocking]);
  if (o->rewrite) printf("# Rewrite: the input is written before each iteration; time excludes that \n");
  if (o->per_iter)
    printf("# Per-Iteration Report: i_* are the slowest process's times; first %d iterations skipped \n",
           o->per_iter_skip);
  if (o->parallel_init) printf("# Parallel Init Enabled: threads call into NcclInitRank concurrently \n");
  printf("#\n# Using devices\n");
  report_json_config(&out.json, o);
}

void perf_report_place(const perf_place *p) {
  printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d %s\n", p->rank, p->group, p->pid, p->host, p->device,
         p->text);
  hk_json *w = &out.json;
  char address[32] = "";
  const char *close = strchr(p->text, ']'), *name = p->text;
  if (p->text[0] == '[' && close) {
    snprintf(address, sizeof address, "%.*s", (int)(close - p->text - 1), p->text + 1);
    name = close + 1 + (close[1] == ' ');
  }
  hk_json_open(w, '{');
  hk_json_put_integer(w, "rank", p->rank);
  hk_json_put_integer(w, "group", p->group);
  hk_json_put_integer(w, "pid", p->pid);
  hk_json_put_text(w, "hostname", p->host);
  hk_json_put_integer(w, "device", p->device);
  hk_json_put_text(w, "device_hex", address);
  hk_json_put_text(w, "device_info", name);
  hk_json_close(w);
}

void perf_report_table(void) {
  const perf_options *o = out.o;
  hk_json_close(&out.json), hk_json_close(&out.json);
  hk_json_begin(&out.json, "results", '[');
  const char *time_name = o->cputime ? "cputime" : "time";
  const char *stamp = o->timestamps ? "timestamp" : "", *stamp_format = o->timestamps ? TIME_FORMAT : "";
  int width = o->timestamps ? 19 : 0;
  const char *iters = o->per_iter ? "    i_min    i_max    i_p99    i_cv%" : "";
  const char *iter_units = o->per_iter ? "     (us)     (us)     (us)      (%)" : "";
  printf("#\n# %10s  %12s  %8s  %6s  %6s", "", "", "", "", "");
  if (o->per_iter)
    printf("              out-of-place (+ per-iteration)                                in-place (+ per-iteration)\n");
  else
    printf("           out-of-place                       in-place          \n");
  printf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
  for (int half = 0; half < 2; half++) printf("  %7s  %6s  %6s  %6s%s", time_name, "algbw", "busbw", "#wrong", iters);
  printf(" %*s\n# %10s  %12s  %8s  %6s  %6s", width, stamp, "(B)", "(elements)", "", "", "");
  for (int half = 0; half < 2; half++) printf("  %7s  %6s  %6s  %6s%s", "(us)", "(GB/s)", "(GB/s)", "", iter_units);
  printf(" %*s\n", width, stamp_format);
  fflush(stdout);
}

void perf_report_row(size_t bytes, size_t count, const char *type, const char *op, int root) {
  out.used = 0;
  char root_text[16];
  snprintf(root_text, sizeof root_text, "%6i", root);
  report_add("%12zu  %12zu  %8s  %6s  %6s", bytes, count, type, op, root_text);
  hk_json *w = &out.json;
  hk_json_open(w, '{');
  hk_json_put_integer(w, "size", (long long)bytes);
  hk_json_put_integer(w, "count", (long long)count);
  hk_json_put_text(w, "type", type);
  hk_json_put_text(w, "redop", op);
  hk_json_put_text(w, "root", root_text);
  if (out.o->plot) perf_plot_row(bytes, type, op, root);
}

/* As many decimals as fit into the column: 2, 1, 0, then an exponent. */
static void report_add_fitted(double v, int width) {
  char text[400];
  for (int decimals = 2; decimals >= 0; decimals--)
    if (snprintf(text, sizeof text, "%*.*f", width, decimals, v) <= width) {
      report_add("  %s", text);
      return;
    }
  snprintf(text, sizeof text, "%*.*e", width, width >= 7 ? 1 : 0, v);
  report_add("  %s", text);
}

static void report_stats_half(const perf_iter_stats *s, bool in_place) {
  double variation = s->average > 0 ? 100 * s->deviation / s->average : 0;
  report_add_fitted(s->min, 7), report_add_fitted(s->max, 7), report_add_fitted(s->p99, 7),
      report_add_fitted(variation, 7);
  hk_json *w = &out.json;
  hk_json_begin(w, in_place ? "in_place_per_iter" : "out_of_place_per_iter", '{');
  hk_json_put_integer(w, "skipped_iterations", s->skipped);
  hk_json_put_number(w, "min_us", s->min);
  hk_json_put_number(w, "max_us", s->max);
  hk_json_put_number(w, "avg_us", s->average);
  hk_json_put_number(w, "p50_us", s->p50);
  hk_json_put_number(w, "p95_us", s->p95);
  hk_json_put_number(w, "p99_us", s->p99);
  hk_json_put_number(w, "stdev_us", s->deviation);
  hk_json_put_number(w, "cv_pct", variation);
  hk_json_begin(w, "times_us", '[');
  for (int i = 0; i < s->count; i++) hk_json_number(w, s->times[i]);
  hk_json_close(w);
  if (s->processes > 1) {
    hk_json_begin(w, "per_process_max_times_us", '[');
    for (int p = 0; p < s->processes; p++) {
      hk_json_open(w, '[');
      for (int i = 0; i < s->count; i++) hk_json_number(w, s->by_process[(size_t)p * (size_t)s->count + (size_t)i]);
      hk_json_close(w);
    }
    hk_json_close(w);
  }
  hk_json_close(w);
}

static void report_add_timestamp(void) {
  char text[64];
  report_now_text(text, sizeof text);
  report_add("%21s", text);
}

static void report_no_half(void) {
  report_add("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
  for (int i = 0; i < 4 && out.o->per_iter; i++) report_add("  %7s", "N/A");
}

static void report_half_as_json(const perf_result *r, bool in_place) {
  hk_json *w = &out.json;
  hk_json_begin(w, in_place ? "in_place" : "out_of_place", '{');
  hk_json_put_number(w, out.o->cputime ? "cpu_time" : "time", r->usec);
  hk_json_put_number(w, "alg_bw", r->alg_bw);
  hk_json_put_number(w, "bus_bw", r->bus_bw);
  hk_json_key(w, "nwrong");
  if (r->checked)
    hk_json_number(w, (double)r->wrong);
  else
    hk_json_null(w);
  hk_json_close(w);
}

void perf_report_half(const perf_result *r, bool in_place) {
  if (r) {
    report_add_fitted(r->usec, 7), report_add_fitted(r->alg_bw, 6), report_add_fitted(r->bus_bw, 6);
    if (r->checked)
      report_add("  %6g", (double)r->wrong);
    else
      report_add("    N/A");
    report_half_as_json(r, in_place);
    if (r->has_stats) report_stats_half(&r->stats, in_place);
    if (out.o->plot) perf_plot_half(r->usec, r->bus_bw, in_place);
  } else {
    report_no_half();
  }
  if (in_place && out.o->timestamps) report_add_timestamp();
}

void perf_report_row_end(void) {
  report_clear_progress();
  printf("%s\n", out.row);
  fflush(stdout);
  hk_json_put_integer(&out.json, "actual_iterations", out.o->iters);
  hk_json_put_text(&out.json, "experiment_name", "");
  hk_json_close(&out.json);
}

void perf_report_footer(long errors, double bandwidth, double wanted, const char *program) {
  report_clear_progress();
  bool checked = wanted != -1, enough = bandwidth >= wanted * 0.9;
  printf("# %-20s : %ld %s\n", "Out of bounds values", errors, errors ? "FAILED" : "OK");
  printf("# %-20s : %g %s\n", "Avg bus bandwidth", bandwidth, !checked ? "" : enough ? "OK" : "FAILED");
  printf("#\n# Collective test concluded: %s\n", program);
  hk_json *w = &out.json;
  hk_json_close(w);
  hk_json_begin(w, "out_of_bounds", '{');
  hk_json_put_integer(w, "count", errors);
  hk_json_put_text(w, "okay", errors ? "false" : "true");
  hk_json_close(w);
  hk_json_begin(w, "average_bus_bandwidth", '{');
  hk_json_put_number(w, "bandwidth", bandwidth);
  hk_json_put_text(w, "okay", !checked ? "unchecked" : enough ? "true" : "false");
  hk_json_close(w);
}

static void report_amount(char *text, size_t capacity, double bytes) {
  static const char *const units[] = {"B", "KB", "MB", "GB"};
  int unit = 0;
  double size = bytes < 0 ? -bytes : bytes;
  for (; size >= 1024 && unit < 3; unit++) size /= 1024, bytes /= 1024;
  snprintf(text, capacity, "%.*f %s", size < 10 ? 2 : size < 100 ? 1 : 0, bytes, units[unit]);
}

void perf_report_memory(const char *title, double init, double buffers, double collective) {
  char a[32], b[32], c[32], all[32];
  report_amount(a, sizeof a, init), report_amount(b, sizeof b, buffers), report_amount(c, sizeof c, collective);
  report_amount(all, sizeof all, init + buffers + collective);
  printf("# %-20s : Initialization %s | User-Allocated %s | Collective %s | Total  %s\n", title, a, b, c, all);
}

void perf_report_init(double seconds) { printf("# %-20s : %.1f ms\n", "Initialization time", 1e3 * seconds); }

void perf_report_close(const char *error) {
  bool any = error && *error;
  printf("#\n");
  if (any)
    printf("# error: %s\n", error);
  else
    printf("\n");
  fflush(stdout);
  if (out.o->plot) perf_plot_draw(out.o->plot, out.o->program);
  hk_json *w = &out.json;
  if (!w->f) return;
  char text[64];
  hk_json_begin(w, "errors", '[');
  if (error) hk_json_text(w, error);
  hk_json_close(w);
  report_now_text(text, sizeof text);
  hk_json_put_text(w, "end_time", text);
  while (w->depth) hk_json_close(w);
  fclose(w->f);
  w->f = NULL;
}

void perf_report_abandon(void) {
  if (!out.json.f || !pthread_equal(out.thread, pthread_self())) return;
  while (out.json.depth) hk_json_close(&out.json);
  fclose(out.json.f);
  out.json.f = NULL;
}

void perf_report_progress(size_t done, size_t total, const char *what, size_t bytes) {
  static int terminal = -1;
  if (terminal < 0) terminal = isatty(2);
  double spent = perf_now() - out.start;
  if (!terminal || spent < PROGRESS_AFTER_SECONDS) return;
  char size[32];
  report_amount(size, sizeof size, (double)bytes);
  if (total)
    fprintf(stderr, "\r\033[K# %zu of %zu, %s %s, %.0f s", done, total, size, what, spent);
  else
    fprintf(stderr, "\r\033[K# %zu, %s %s, %.0f s", done, size, what, spent);
  fflush(stderr);
  out.progress = true;
}
