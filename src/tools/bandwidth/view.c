/* SPDX-License-Identifier: Apache-2.0 */
/* The table, JSON and picture of `hocket bandwidth`. */
#include <signal.h>
#include <string.h>
#include "../../base/json.h"
#include "bandwidth.h"

/* A rate, or "-" if it was not measured or is unknown. */
static void view_rate(hk_table *t, hk_style s, double gbps) {
  if (gbps > 0)
    hk_table_cell(t, s, "%.1f", gbps);
  else
    hk_table_cell(t, s, "-");
}

static void view_print_causes(const hk_bw *b) {
  const char *red = hk_tool_style(stdout, HK_STYLE_RED), *plain = hk_tool_style(stdout, HK_STYLE_PLAIN);
  for (int i = 0; i < b->nhosts; i++)
    if (b->host[i].slow)
      printf("%sGPU %d and node %d%s: %s\n", red, b->host[i].gpu, b->host[i].node, plain, b->host[i].cause);
  for (int i = 0; i < b->npairs; i++) {
    const hk_bw_pair *p = &b->pair[i];
    if (p->slow || p->wrong) printf("%sGPU %d to %d%s: %s\n", red, p->from, p->to, plain, p->cause);
  }
}

static const char *const kernels[] = {"copy", "sum_float", "sum_half", "sum_bfloat16"};

static void view_print_kernels(const hk_bw *b) {
  hk_table *t = hk_table_new("rrrrr");
  printf("\nWithin a GPU, by kernels: read and written\n");
  hk_table_row(t, HK_STYLE_BOLD, "GPU\tCOPY\tSUM FLOAT\tHALF\tBFLOAT16");
  for (int g = 0; g < b->ngpus; g++) {
    hk_table_cell(t, HK_STYLE_PLAIN, "%d", g);
    for (int k = 0; k < HK_BW_KERNELS; k++) view_rate(t, HK_STYLE_PLAIN, b->kernel[g][k]);
  }
  hk_table_print(t, 0, stdout);
}

void hk_bw_print(const hk_bw *b) {
  char text[32];
  printf("Copies of %s, GB/s:", hk_tool_bytes(text, b->bytes));
  for (int i = 0; i < b->ngpus; i++) printf("%s GPU %d %s", i ? "," : "", i, b->gpu_name[i]);
  printf("\n\nHost memory (NUMA node) and GPU\n");
  hk_table *t = hk_table_new("rrlrrrrr");
  hk_table_row(t, HK_STYLE_BOLD, "GPU\tNODE\tPATH\tPINNED TO\tFROM\tPAGEABLE TO\tFROM\tNOMINAL");
  for (int i = 0; i < b->nhosts; i++) {
    const hk_bw_host *h = &b->host[i];
    hk_style s = h->slow ? HK_STYLE_RED : HK_STYLE_PLAIN;
    hk_table_cell(t, HK_STYLE_PLAIN, "%d", h->gpu);
    hk_table_cell(t, HK_STYLE_PLAIN, "%d", h->node);
    hk_table_cell(t, HK_STYLE_PLAIN, "%s", h->path);
    view_rate(t, s, h->to[HK_BW_PINNED]);
    view_rate(t, s, h->from[HK_BW_PINNED]);
    view_rate(t, HK_STYLE_PLAIN, h->to[HK_BW_PAGEABLE]);
    view_rate(t, HK_STYLE_PLAIN, h->from[HK_BW_PAGEABLE]);
    view_rate(t, HK_STYLE_PLAIN, h->nominal);
  }
  hk_table_print(t, 0, stdout);
  printf("\nGPU to GPU, with peer access (P2P) and without\n");
  t = hk_table_new("rrlrrrrr");
  hk_table_row(t, HK_STYLE_BOLD, "FROM\tTO\tPATH\tP2P\tBOTH WAYS\tNOMINAL\tWITHOUT\tNOMINAL");
  for (int i = 0; i < b->npairs; i++) {
    const hk_bw_pair *p = &b->pair[i];
    hk_style s = p->slow || p->wrong ? HK_STYLE_RED : HK_STYLE_PLAIN;
    hk_table_cell(t, HK_STYLE_PLAIN, "%d", p->from);
    hk_table_cell(t, HK_STYLE_PLAIN, "%d", p->to);
    hk_table_cell(t, HK_STYLE_PLAIN, "%s", p->path);
    view_rate(t, s, p->direct);
    view_rate(t, HK_STYLE_PLAIN, p->both);
    view_rate(t, HK_STYLE_PLAIN, p->nominal);
    view_rate(t, HK_STYLE_PLAIN, p->staged);
    view_rate(t, HK_STYLE_PLAIN, p->by_host);
  }
  hk_table_print(t, 0, stdout);
  if (b->kernel[0][HK_BW_COPY] > 0) view_print_kernels(b);
  view_print_causes(b);
}

static void view_put_rate(hk_json *w, const char *key, double gbps) {
  hk_json_key(w, key);
  if (gbps > 0)
    hk_json_number(w, gbps);
  else
    hk_json_null(w);
}

void hk_bw_json(const hk_bw *b) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '{');
  hk_json_put_integer(&w, "bytes", (long long)b->bytes);
  hk_json_begin(&w, "gpus", '[');
  for (int i = 0; i < b->ngpus; i++) hk_json_text(&w, b->gpu_name[i]);
  hk_json_close(&w);
  hk_json_begin(&w, "host", '[');
  for (int i = 0; i < b->nhosts; i++) {
    const hk_bw_host *h = &b->host[i];
    hk_json_open(&w, '{');
    hk_json_put_integer(&w, "gpu", h->gpu);
    hk_json_put_integer(&w, "node", h->node);
    hk_json_put_text(&w, "path", h->path);
    view_put_rate(&w, "pinned_to_gpu", h->to[HK_BW_PINNED]);
    view_put_rate(&w, "pinned_from_gpu", h->from[HK_BW_PINNED]);
    view_put_rate(&w, "pageable_to_gpu", h->to[HK_BW_PAGEABLE]);
    view_put_rate(&w, "pageable_from_gpu", h->from[HK_BW_PAGEABLE]);
    view_put_rate(&w, "nominal", h->nominal);
    hk_json_put_boolean(&w, "slow", h->slow);
    hk_json_put_text(&w, "cause", h->cause[0] ? h->cause : NULL);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_begin(&w, "pairs", '[');
  for (int i = 0; i < b->npairs; i++) {
    const hk_bw_pair *p = &b->pair[i];
    hk_json_open(&w, '{');
    hk_json_put_integer(&w, "from", p->from);
    hk_json_put_integer(&w, "to", p->to);
    hk_json_put_text(&w, "path", p->path);
    hk_json_put_boolean(&w, "peer", p->peer);
    view_put_rate(&w, "direct", p->direct);
    view_put_rate(&w, "both_ways", p->both);
    view_put_rate(&w, "nominal", p->nominal);
    view_put_rate(&w, "without_peer", p->staged);
    view_put_rate(&w, "nominal_without", p->by_host);
    hk_json_put_boolean(&w, "wrong_data", p->wrong);
    hk_json_put_boolean(&w, "slow", p->slow);
    hk_json_put_text(&w, "cause", p->cause[0] ? p->cause : NULL);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_begin(&w, "kernels", '[');
  for (int g = 0; g < b->ngpus; g++) {
    hk_json_open(&w, '{');
    hk_json_put_integer(&w, "gpu", g);
    for (int k = 0; k < HK_BW_KERNELS; k++) view_put_rate(&w, kernels[k], b->kernel[g][k]);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_close(&w);
  fputc('\n', stdout);
}

/* Two panels of bars: host and GPU, GPU and GPU. */
int hk_bw_plot(const hk_bw *b, const char *file) {
  struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
  sigaction(SIGPIPE, &ignore, &before); /* if gnuplot fails, its exit status shows it */
  FILE *g = popen("gnuplot", "w");
  if (!g) return hk_tool_wrong("--plot: cannot start gnuplot");
  size_t n = strlen(file);
  fprintf(g, "set terminal %s size 1100,450\nset output '%s'\n$host << END\n",
          n > 3 && !strcmp(file + n - 3, "svg") ? "svg" : "png", file);
  for (int i = 0; i < b->nhosts; i++) {
    const hk_bw_host *h = &b->host[i];
    fprintf(g, "\"GPU %d, node %d\" %g %g %g %g %g\n", h->gpu, h->node, h->to[0], h->from[0], h->to[1], h->from[1],
            h->nominal);
  }
  fputs("END\n$pairs << END\n", g);
  for (int i = 0; i < b->npairs; i++) {
    const hk_bw_pair *p = &b->pair[i];
    fprintf(g, "\"%d to %d\" %g %g %g %g\n", p->from, p->to, p->direct > 0 ? p->direct : 0, p->both > 0 ? p->both : 0,
            p->staged > 0 ? p->staged : 0, p->nominal);
  }
  fputs(
      "END\nset multiplot layout 1,2\nset style data histograms\nset style fill solid 0.7\nset grid y\n"
      "set ylabel 'GB/s'\nset yrange [0:*]\nset xtics rotate by -45\nset key top left\n"
      "set title 'host memory and GPU'\n"
      "plot $host using 2:xtic(1) title 'pinned, to', '' using 3 title 'pinned, from', '' using 4 title 'pageable, to',"
      " '' using 5 title 'pageable, from', '' using 6 title 'nominal'\n"
      "set title 'GPU to GPU'\n"
      "plot $pairs using 2:xtic(1) title 'P2P', '' using 3 title 'P2P, both ways', '' using 4 title 'without',"
      " '' using 5 title 'nominal'\n",
      g);
  int status = pclose(g);
  sigaction(SIGPIPE, &before, NULL);
  return status ? hk_tool_wrong("--plot: gnuplot could not draw %s", file) : HK_EXIT_OK;
}
