/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket topo --dot`: the machine as a graph for Graphviz. */
#include <math.h>
#include "../../topo/topo.h"
#include "../machine.h"
#include "view.h"

typedef struct look {
  const char *shape, *fill;
} look;
static const look looks[HK_NODE_KINDS] = {
    [HK_NODE_CPU] = {"box3d", "#dbe7f5"},   [HK_NODE_PCI] = {"box", "#eeeeee"}, [HK_NODE_GPU] = {"box", "#cdeac0"},
    [HK_NODE_NVS] = {"hexagon", "#9fd68a"}, [HK_NODE_NIC] = {"box", "#fbe3c0"}, [HK_NODE_NET] = {"box", "#f7c873"},
};
static const char *const edge_colours[] = {[HK_EDGE_PCI] = "#777777",
                                           [HK_EDGE_NVLINK] = "#3a8f1f",
                                           [HK_EDGE_C2C] = "#7a4fb5",
                                           [HK_EDGE_SYS] = "#2c6fb5",
                                           [HK_EDGE_PORT] = "#d08a1d"};

/* Inside double quotes. */
static void dot_quoted(const char *text, FILE *to) {
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', to);
    if ((unsigned char)*text >= ' ') fputc(*text, to);
  }
}

static void dot_put_node(const hk_topo *t, int kind, uint32_t i, FILE *to) {
  const hk_node *n = &t->nodes[i];
  char text[HK_LABEL];
  const look *l = &looks[n->kind < HK_NODE_KINDS ? n->kind : HK_NODE_PCI];
  fprintf(to, "    n%d_%u [shape=%s fillcolor=\"%s\" label=\"", kind, i, l->shape, l->fill);
  if (n->kind == HK_NODE_PCI || n->kind == HK_NODE_NIC) fputs(n->kind == HK_NODE_NIC ? "NIC\\n" : "PCIe switch\\n", to);
  dot_quoted(hk_label(t, i, text), to);
  if (n->name[0]) {
    fputs("\\n", to);
    dot_quoted(n->name, to);
  }
  if (n->kind == HK_NODE_NET) fprintf(to, "\\n%s", hk_port_label(n->net.mbps, text));
  if (n->kind == HK_NODE_CPU && n->cpu.cores) fprintf(to, "\\n%d cores", n->cpu.cores);
  fputs("\"];\n", to);
}

/* One line for both directions; a faster link is thicker. */
static void dot_put_edge(const hk_topo *t, int kind, const hk_edge *e, FILE *to) {
  double gbps = (double)e->gbps, back = (double)t->edges[e->back].gbps;
  fprintf(to, "    n%d_%u -- n%d_%u [color=\"%s\" penwidth=%.1f label=\"%.0f", kind, e->from, kind, e->to,
          edge_colours[e->kind < HK_ARRAY_LENGTH(edge_colours) ? e->kind : 0], 1 + log2(1 + gbps / 8), gbps);
  if (back < gbps * 0.99 || back > gbps * 1.01) fprintf(to, "/%.0f", back);
  /* CPUs stay side by side, and the NVSwitches below the GPUs. */
  fputs(e->kind == HK_EDGE_SYS ? "\" constraint=false];\n" : "\"];\n", to);
}

/* All nodes of a kind on one line of the picture. */
static void dot_put_rank(const hk_topo *t, int kind, hk_node_kind of, FILE *to) {
  fputs("    {rank=same;", to);
  for (uint32_t i = t->first_of[of]; i < t->first_of[of + 1]; i++) fprintf(to, " n%d_%u;", kind, i);
  fputs("}\n", to);
}

static void dot_put_host(const hk_cluster *c, int kind, FILE *to) {
  const hk_topo *t = c->kinds[kind];
  int hosts = 0;
  for (int h = 0; h < c->nhosts; h++) hosts += hk_cluster_kind(c, h) == kind;
  fprintf(to, "  subgraph cluster_%d {\n    style=rounded; color=\"#999999\"; label=\"", kind);
  dot_quoted(t->name, to);
  if (hosts > 1) fprintf(to, " (%d of them)", hosts);
  fputs("\";\n", to);
  for (uint32_t i = 0; i < t->nnodes; i++) dot_put_node(t, kind, i, to);
  dot_put_rank(t, kind, HK_NODE_CPU, to);
  dot_put_rank(t, kind, HK_NODE_GPU, to);
  dot_put_rank(t, kind, HK_NODE_NET, to);
  for (uint32_t i = 0; i < t->nedges; i++)
    if (t->edges[i].from < t->edges[i].to) dot_put_edge(t, kind, &t->edges[i], to);
  fputs("  }\n", to);
}

void hk_view_dot(const hk_cluster *c, FILE *to) {
  fputs("graph topology {\n  fontname=\"Helvetica\"; overlap=false; ranksep=0.8;\n"
        "  node [style=\"filled\" fontname=\"Helvetica\" fontsize=11];\n"
        "  edge [fontname=\"Helvetica\" fontsize=9];\n",
        to);
  for (int k = 0; k < c->nkinds; k++) dot_put_host(c, k, to);
  if (c->nhosts > 1) {
    fputs("  fabric [shape=doubleoctagon fillcolor=\"#f3d9ef\" label=\"fabric\"];\n", to);
    for (int k = 0; k < c->nkinds; k++) {
      const hk_topo *t = c->kinds[k];
      for (uint32_t i = t->first_of[HK_NODE_NET]; i < t->first_of[HK_NODE_NET + 1]; i++)
        fprintf(to, "  n%d_%u -- fabric [color=\"#d08a1d\"];\n", k, i);
    }
  }
  fputs("  label=\"numbers: GB/s in one direction\"; fontsize=10;\n}\n", to);
}
