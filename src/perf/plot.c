/* SPDX-License-Identifier: Apache-2.0 */
/* --plot: writes the points of all rows as a gnuplot script and runs gnuplot. */
#include "plot.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "perf.h"

typedef struct point {
  size_t bytes;
  int series;
  double usec[2], bus_bw[2];
} point;

static struct {
  point *points;
  size_t count, capacity;
  char (*series)[48]; /* "float sum 0" */
  int nseries;
} plot;

void perf_plot_check(void) {
  const char *path = getenv("PATH");
  char file[4096];
  while (path && *path) {
    size_t n = strcspn(path, ":");
    snprintf(file, sizeof file, "%.*s/gnuplot", (int)n, path);
    if (!access(file, X_OK)) return;
    path += n + (path[n] == ':');
  }
  perf_fail(PERF_USAGE, "--plot needs gnuplot, which is not in PATH (Debian: apt-get install gnuplot-nox)");
}

static int plot_series_of(const char *type, const char *op, int root) {
  char name[sizeof *plot.series], where[24] = "";
  if (root >= 0) snprintf(where, sizeof where, " root %d", root);
  snprintf(name, sizeof name, "%s%s%s%s", type, strcmp(op, "none") && *op ? " " : "", strcmp(op, "none") ? op : "",
           where);
  for (int i = 0; i < plot.nseries; i++)
    if (!strcmp(plot.series[i], name)) return i;
  void *grown = realloc(plot.series, sizeof *plot.series * (size_t)(plot.nseries + 1));
  if (!grown) perf_fail(PERF_INTERNAL, "out of memory");
  plot.series = grown;
  strcpy(plot.series[plot.nseries], name);
  return plot.nseries++;
}

void perf_plot_row(size_t bytes, const char *type, const char *op, int root) {
  if (plot.count == plot.capacity) {
    plot.capacity = plot.capacity ? 2 * plot.capacity : 64;
    point *grown = realloc(plot.points, sizeof *grown * plot.capacity);
    if (!grown) perf_fail(PERF_INTERNAL, "out of memory");
    plot.points = grown;
  }
  plot.points[plot.count++] = (point){.bytes = bytes, .series = plot_series_of(type, op, root)};
}

void perf_plot_half(double usec, double bus_bw, bool in_place) {
  point *p = &plot.points[plot.count - 1];
  p->usec[in_place] = usec, p->bus_bw[in_place] = bus_bw;
}

static void plot_panel(FILE *g, const char *title, const char *unit, int column) {
  fprintf(g, "set ylabel '%s'\nset title '%s'\nplot ", unit, title);
  for (int s = 0; s < plot.nseries; s++)
    for (int half = 0; half < 2; half++)
      fprintf(g, "%s$series%d using 1:%d with linespoints pt 7 ps 0.4 dt %d lc %d title '%s %s'", s || half ? ", " : "",
              s, column + half, half + 1, s + 1, plot.series[s], half ? "in place" : "out of place");
  fputs("\n", g);
}

void perf_plot_draw(const char *path, const char *title) {
  if (strchr(path, '\'')) perf_fail(PERF_USAGE, "--plot: a file name with a quote is not possible");
  struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
  sigaction(SIGPIPE, &ignore, &before); /* if gnuplot fails, its exit status shows it */
  FILE *g = popen("gnuplot", "w");
  if (!g) perf_fail(PERF_INTERNAL, "cannot start gnuplot");
  size_t n = strlen(path);
  fprintf(g, "set terminal %s size 1200,500\nset output '%s'\n", strcmp(path + n - 3, "svg") ? "png" : "svg", path);
  for (int s = 0; s < plot.nseries; s++) {
    fprintf(g, "$series%d << END\n", s);
    for (size_t i = 0; i < plot.count; i++) {
      const point *p = &plot.points[i];
      if (p->series == s && p->bytes) /* a logarithmic axis has no 0 */
        fprintf(g, "%zu %g %g %g %g\n", p->bytes, p->bus_bw[0], p->bus_bw[1], p->usec[0], p->usec[1]);
    }
    fputs("END\n", g);
  }
  fprintf(g, "set multiplot layout 1,2\nset logscale x 2\nset format x '%%.0b%%B'\nset xlabel 'bytes'\nset grid\n"
             "set key top left noenhanced\nset title noenhanced\n");
  char text[256];
  snprintf(text, sizeof text, "%s: bus bandwidth", title);
  plot_panel(g, text, "GB/s", 2);
  snprintf(text, sizeof text, "%s: time", title);
  fputs("set logscale y\n", g);
  plot_panel(g, text, "us", 4);
  int status = pclose(g);
  sigaction(SIGPIPE, &before, NULL);
  if (status) perf_fail(PERF_INTERNAL, "gnuplot could not draw %s", path);
}
