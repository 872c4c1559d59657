/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket topo --channels`: the rings, trees and stars that the search finds. */
#include <stdlib.h>
#include "../../topo/paths.h"
#include "../../topo/topo.h"
#include "../../topo/xml.h"
#include "../machine.h"
#include "../tools.h"
#include "view.h"

/* A run of ranks that repeats from channel to channel is written once: equal channels are counted. */
static bool channels_same_channel(const hk_channels *c, int a, int b) {
  if (c->at[a].net_in != c->at[b].net_in || c->at[a].net_out != c->at[b].net_out) return false;
  for (int i = 0; i < c->nranks; i++)
    if (c->at[a].order[i] != c->at[b].order[i]) return false;
  return true;
}

/* "GPU0-7" instead of eight labels, if the parts are numbered consecutively. */
static void channels_print_parts(const hk_topo *t, const uint32_t *nodes, int n, FILE *to) {
  for (int i = 0, run; i < n; i += run) {
    char label[HK_LABEL];
    bool gpu = t->nodes[nodes[i]].kind == HK_NODE_GPU;
    for (run = 1; gpu && i + run < n && nodes[i + run] == nodes[i] + (uint32_t)run &&
                  t->nodes[nodes[i + run]].gpu.dev == t->nodes[nodes[i]].gpu.dev + run;)
      run++;
    if (run < 4) run = 1;
    fprintf(to, "%s%s", i ? " " : "", hk_label(t, nodes[i], label));
    if (run > 1) fprintf(to, "-%d", t->nodes[nodes[i]].gpu.dev + run - 1);
  }
}

static void channels_print_channel(const hk_topo *t, const hk_search *what, const hk_channels *c, int k, int count,
                                   FILE *to) {
  char label[HK_LABEL], *text = NULL;
  size_t bytes;
  FILE *line = open_memstream(&text, &bytes);
  if (!line) return;
  if (count > 1)
    fprintf(line, "%d-%d: ", k, k + count - 1);
  else
    fprintf(line, "%d: ", k);
  if (c->at[k].net_in != UINT32_MAX) fprintf(line, "%s > ", hk_label(t, c->at[k].net_in, label));
  uint32_t nodes[HK_SEARCH_RANKS];
  for (int i = 0; i < c->nranks; i++) nodes[i] = what->nodes[c->at[k].order[i]];
  channels_print_parts(t, nodes, c->nranks, line);
  if (c->at[k].net_out != UINT32_MAX) fprintf(line, " > %s", hk_label(t, c->at[k].net_out, label));
  fclose(line);
  hk_tool_wrap(to, 2, text);
  free(text);
}

static void channels_print_pattern(const hk_paths *p, const hk_search *what, const hk_channels *c, const char *name,
                                   FILE *to) {
  hk_pattern pattern = (hk_pattern)c->pattern;
  char text[300];
  int n = snprintf(text, sizeof text, "%s: ", name);
  if (c->nchannels < 1) {
    snprintf(text + n, sizeof text - (size_t)n, "none, this machine cannot do them");
  } else {
    bool out = what->network && c->inter_gbps > 0;
    double each = (double)(out && c->inter_gbps < c->intra_gbps ? c->inter_gbps : c->intra_gbps);
    n += snprintf(text + n, sizeof text - (size_t)n, "%d channel%s of %.3g GB/s by %s", c->nchannels,
                  c->nchannels == 1 ? "" : "s", (double)c->intra_gbps, hk_path_class_name((hk_path_class)c->intra_cls));
    if (out)
      n += snprintf(text + n, sizeof text - (size_t)n, ", and %.3g GB/s to the network by %s", (double)c->inter_gbps,
                    hk_path_class_name((hk_path_class)c->inter_cls));
    snprintf(text + n, sizeof text - (size_t)n, "; together %.3g GB/s", c->nchannels * each);
  }
  fputs(hk_tool_style(to, HK_STYLE_BOLD), to);
  hk_tool_wrap(to, 0, text);
  fputs(hk_tool_style(to, HK_STYLE_PLAIN), to);
  if (pattern == HK_PATTERN_STAR && c->nchannels > 0) { /* only a star's owner matters, which is the first rank */
    uint32_t owners[HK_CHANNEL_LIMIT];
    for (int k = 0; k < c->nchannels; k++) owners[k] = what->nodes[c->at[k].order[0]];
    fputs("  parts owned by ", to);
    channels_print_parts(p->topo, owners, c->nchannels, to);
    fputc('\n', to);
  }
  for (int k = 0, count; pattern != HK_PATTERN_STAR && k < c->nchannels; k += count) {
    for (count = 1; k + count < c->nchannels && channels_same_channel(c, k, k + count);) count++;
    channels_print_channel(p->topo, what, c, k, count, to);
  }
}

hk_status hk_view_channels(const hk_topo *t, const hk_paths *p, bool network, bool xml, FILE *to) {
  enum { PATTERNS = 3 };
  static const char *const names[PATTERNS] = {"Rings", "Trees", "Stars (a switch that adds up)"};
  hk_status rc = HK_OK;
  hk_channels *found[PATTERNS] = {NULL};
  uint32_t nodes[HK_SEARCH_RANKS];
  hk_search what = {.nodes = nodes, .network = network && hk_topo_count(t, HK_NODE_NET) > 0};
  hk_node_kind kind = hk_topo_count(t, HK_NODE_GPU) ? HK_NODE_GPU : HK_NODE_CPU;
  for (uint32_t i = t->first_of[kind]; i < t->first_of[kind + 1] && what.nranks < HK_SEARCH_RANKS; i++)
    nodes[what.nranks++] = i;
  for (int k = 0; k < PATTERNS; k++) {
    what.pattern = (hk_pattern)k;
    HK_TRY(hk_search_channels(&found[k], p, &what), out);
    if (!xml) channels_print_pattern(p, &what, found[k], names[k], to);
  }
  if (xml) rc = hk_channels_write_xml((const hk_channels *const *)found, PATTERNS, t, &what, to);
out:
  for (int k = 0; k < PATTERNS; k++) hk_channels_free(found[k]);
  return rc;
}
