/* SPDX-License-Identifier: Apache-2.0 */
/* The tables and pictures of `hocket sim`. */
#include "sim_view.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/json.h"
#include "../decide/protocol.h"
#include "../topo/topo.h"
#include "machine.h"

hk_sim_row *hk_sim_view_add(hk_sim_view *v) {
  return HK_RESERVE(v->rows, v->capacity, v->nrows + 1) ? &v->rows[v->nrows++] : NULL;
}

void hk_sim_view_clear(hk_sim_view *v) {
  for (int i = 0; i < v->nrows; i++) hk_sim_result_clear(&v->rows[i].result);
  for (int i = 0; i < v->nsites; i++) {
    hk_simulator_free(v->sites[i].simulator);
    hk_cluster_free(v->sites[i].cluster);
  }
  free(v->rows);
  free(v->sites);
}

/* ---- tables ---- */

/* What is said of the constants, for all sizes shown of a machine. */
static const char *sim_view_accuracy(char *text, const hk_sim_view *v, const hk_sim_site *s) {
  size_t first = SIZE_MAX, last = 0;
  for (int k = 0; k < v->nrows; k++) {
    if (v->rows[k].site != s) continue;
    if (v->rows[k].bytes < first) first = v->rows[k].bytes;
    if (v->rows[k].bytes > last) last = v->rows[k].bytes;
  }
  return hk_tool_accuracy(text, s->cluster, first, last, false);
}

void hk_sim_view_table(const hk_sim_view *v, FILE *to) {
  for (int i = 0; i < v->nsites; i++) {
    const hk_sim_site *s = &v->sites[i];
    bool folded = false;
    for (int k = 0; k < v->nrows; k++) folded |= v->rows[k].site == s && v->rows[k].result.folded;
    fprintf(to, "%s%s: %s on %d ranks, %s\n\n", i ? "\n" : "", s->name, hk_coll_name(v->coll),
            hk_simulator_ranks(s->simulator), folded ? "at flow level" : "event by event");
    hk_table *t = hk_table_new("rllrrrr");
    hk_table_row(t, HK_STYLE_BOLD, "SIZE\tALGORITHM\tPROTOCOL\tCHANNELS\tTIME\tALG GB/s\tBUS GB/s");
    for (int k = 0; k < v->nrows; k++) {
      const hk_sim_row *r = &v->rows[k];
      char size[32], time[32];
      if (r->site != s) continue;
      hk_table_row(t, HK_STYLE_PLAIN, "%s\t%s\t%s\t%d\t%s\t%.4g\t%.4g", hk_tool_bytes(size, r->bytes),
                   r->result.algorithm, hk_protocols[r->result.protocol].name, r->result.channels,
                   hk_tool_time(time, r->result.us), r->result.algbw, r->result.busbw);
    }
    hk_table_print(t, 2, to);
    char text[HK_ACCURACY_TEXT];
    fputc('\n', to);
    hk_tool_wrap(to, 0, sim_view_accuracy(text, v, s));
    for (int k = 0; k < s->cluster->nkinds; k++) hk_tool_remarks(s->cluster->kinds[k], to);
  }
}

enum { LINKS = 12 };

void hk_sim_view_links(const hk_sim_view *v, FILE *to) {
  for (int i = 0; i < v->nrows; i++) {
    const hk_sim_row *r = &v->rows[i];
    char size[32];
    if (i + 1 < v->nrows && v->rows[i + 1].series == r->series) continue;
    fprintf(to, "\nBusiest for %s by %s on %s\n\n", hk_tool_bytes(size, r->bytes), r->result.algorithm, r->site->name);
    hk_table *t = hk_table_new("lrr");
    hk_table_row(t, HK_STYLE_BOLD, "LINK\tGB/s\tBUSY");
    for (uint32_t k = 0; k < r->result.nloads && k < LINKS; k++) {
      const hk_sim_load *l = &r->result.loads[k];
      hk_table_row(t, HK_STYLE_PLAIN, "%s\t%.4g\t%.1f%%", l->name, l->gbps, 100 * l->used);
    }
    hk_table_print(t, 2, to);
  }
}

void hk_sim_view_json(const hk_sim_view *v, FILE *to) {
  hk_json j = {.f = to};
  hk_json_open(&j, '{');
  hk_json_put_text(&j, "collective", hk_coll_name(v->coll));
  hk_json_begin(&j, "results", '[');
  for (int i = 0; i < v->nrows; i++) {
    const hk_sim_row *r = &v->rows[i];
    char text[HK_ACCURACY_TEXT];
    hk_json_open(&j, '{');
    hk_json_put_text(&j, "machine", r->site->name);
    hk_json_put_text(&j, "remarks", r->site->cluster->kinds[0]->remarks);
    hk_json_put_text(&j, "accuracy", hk_tool_accuracy(text, r->site->cluster, r->bytes, r->bytes, false));
    hk_json_put_integer(&j, "ranks", r->result.nranks);
    hk_json_put_integer(&j, "bytes", (long long)r->bytes);
    hk_json_put_text(&j, "algorithm", r->result.algorithm);
    hk_json_put_text(&j, "protocol", hk_protocols[r->result.protocol].name);
    hk_json_put_integer(&j, "channels", r->result.channels);
    hk_json_put_integer(&j, "chunk", (long long)r->result.chunk);
    hk_json_put_boolean(&j, "flow_level", r->result.folded);
    hk_json_put_number(&j, "us", r->result.us);
    hk_json_put_number(&j, "algbw_gbps", r->result.algbw);
    hk_json_put_number(&j, "busbw_gbps", r->result.busbw);
    hk_json_begin(&j, "links", '[');
    for (uint32_t k = 0; k < r->result.nloads && k < LINKS; k++) {
      hk_json_open(&j, '{');
      hk_json_put_text(&j, "name", r->result.loads[k].name);
      hk_json_put_number(&j, "gbps", r->result.loads[k].gbps);
      hk_json_put_number(&j, "busy", r->result.loads[k].used);
      hk_json_close(&j);
    }
    hk_json_close(&j);
    hk_json_close(&j);
  }
  hk_json_close(&j);
  hk_json_close(&j);
  fputc('\n', to);
}

/* ---- pictures ---- */

int hk_sim_view_can_plot(const char *file) {
  const char *path = getenv("PATH");
  char tool[4096];
  if (strchr(file, '\'')) return hk_tool_wrong("--plot: a file name with a quote is not possible");
  while (path && *path) {
    size_t n = strcspn(path, ":");
    snprintf(tool, sizeof tool, "%.*s/gnuplot", (int)n, path);
    if (!access(tool, X_OK)) return HK_EXIT_OK;
    path += n + (path[n] == ':');
  }
  return hk_tool_wrong("--plot needs gnuplot, which is not in PATH (Debian: apt-get install gnuplot-nox)");
}

static void sim_view_panel(const hk_sim_view *v, FILE *g, const char *title, const char *unit, int column) {
  fprintf(g, "set ylabel '%s'\nset title '%s of %s'\nplot ", unit, title, hk_coll_name(v->coll));
  int last = -1;
  for (int i = 0; i < v->nrows; i++) {
    const hk_sim_row *r = &v->rows[i];
    if (r->series == last) continue;
    fprintf(g, "%s$series%d using 1:%d with linespoints pt 7 ps 0.4 lw 1.5 title \"%s%s%s\"", last < 0 ? "" : ", ",
            r->series, column, v->nsites > 1 || !r->wanted ? r->site->name : "", v->nsites > 1 && r->wanted ? " " : "",
            r->wanted ? r->wanted : "");
    last = r->series;
  }
  fputs("\n", g);
}

int hk_sim_view_plot(const hk_sim_view *v, const char *file) {
  struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
  sigaction(SIGPIPE, &ignore, &before); /* if gnuplot fails, its exit status shows it */
  FILE *g = popen("gnuplot", "w");
  if (!g) return hk_tool_wrong("--plot: cannot start gnuplot");
  size_t n = strlen(file);
  fprintf(g, "set terminal %s size 1000,420\nset output '%s'\n", n > 3 && !strcmp(file + n - 3, "svg") ? "svg" : "png",
          file);
  for (int i = 0, open = -1; i < v->nrows; i++) {
    const hk_sim_row *r = &v->rows[i];
    if (r->series != open) fprintf(g, "$series%d << END\n", r->series);
    open = r->series;
    fprintf(g, "%zu %g %g\n", r->bytes, r->result.busbw, r->result.us);
    if (i + 1 == v->nrows || v->rows[i + 1].series != open) fputs("END\n", g);
  }
  fprintf(g, "set multiplot layout 1,2\nset logscale x 2\nset format x '%%.0b%%B'\nset xlabel 'bytes'\nset grid\n"
             "set key top left noenhanced\nset title noenhanced\n");
  sim_view_panel(v, g, "bus bandwidth", "GB/s", 2);
  fputs("set logscale y\n", g);
  sim_view_panel(v, g, "time", "us", 3);
  int status = pclose(g);
  sigaction(SIGPIPE, &before, NULL);
  return status ? hk_tool_wrong("--plot: gnuplot could not draw %s", file) : HK_EXIT_OK;
}
