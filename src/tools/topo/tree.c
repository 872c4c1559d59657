/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket topo --tree`: what is below each CPU, and the links across. */
#include <stdlib.h>
#include <string.h>
#include "view.h"

typedef struct walk {
  const hk_topo *t;
  FILE *to;
  bool *seen;
  bool fancy; /* box-drawing characters */
} walk;

static bool utf8(void) {
  static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(names); i++) {
    const char *v = getenv(names[i]);
    if (v && *v) return strstr(v, "UTF-8") || strstr(v, "utf8") || strstr(v, "UTF8");
  }
  return false;
}

/* True if the link leads from a node to one below it. */
static bool downwards(const hk_edge *e) {
  return e->kind == HK_EDGE_PCI || e->kind == HK_EDGE_PORT || e->kind == HK_EDGE_C2C;
}

static void links_of(const hk_topo *t, uint32_t node, FILE *to) {
  const hk_node *n = &t->nodes[node];
  unsigned links = 0, ends = 0;
  double gbps = 0;
  bool sw = false;
  for (uint32_t k = 0; k < n->nedges; k++) {
    const hk_edge *e = &t->edges[n->first_edge + k];
    if (e->kind != HK_EDGE_NVLINK) continue;
    links += e->count;
    gbps += (double)e->gbps;
    ends++;
    sw |= t->nodes[e->to].kind == HK_NODE_NVS;
  }
  if (!ends) return;
  fprintf(to, ", %u NVLink%s ", links, links == 1 ? "" : "s");
  if (sw)
    fputs("to the NVSwitches", to);
  else
    fprintf(to, "to %u other%s", ends, ends == 1 ? "" : "s");
  fprintf(to, " (%.0f GB/s)", gbps);
}

static void describe(const walk *w, uint32_t node) {
  const hk_node *n = &w->t->nodes[node];
  char text[HK_LABEL];
  fprintf(w->to, "%s%s%s", hk_tool_style(w->to, HK_STYLE_BOLD), hk_label(w->t, node, text),
          hk_tool_style(w->to, HK_STYLE_PLAIN));
  switch ((hk_node_kind)n->kind) {
    case HK_NODE_CPU:
      if (n->cpu.cores) fprintf(w->to, ": %d cores", n->cpu.cores);
      if (n->cpu.memory_gbps > 0) fprintf(w->to, ", memory %.0f GB/s", (double)n->cpu.memory_gbps);
      break;
    case HK_NODE_GPU:
      fprintf(w->to, ": %s", n->name[0] ? n->name : "GPU");
      hk_bus_id_format(n->id, text);
      fprintf(w->to, ", %s", text);
      if (hk_pci_label(&n->pci, text)[0]) fprintf(w->to, ", %s", text);
      links_of(w->t, node, w->to);
      break;
    case HK_NODE_NET:
      fprintf(w->to, ": %s%s%s", n->name, n->name[0] ? ", " : "", hk_port_label(n->net.mbps, text));
      if (n->net.rail >= 0) fprintf(w->to, ", rail %d", n->net.rail);
      break;
    default:
      fprintf(w->to, ": %s%s%s", n->kind == HK_NODE_NIC ? "NIC" : "PCIe switch", n->name[0] ? " " : "", n->name);
      if (hk_pci_label(&n->pci, text)[0]) fprintf(w->to, ", %s", text);
      break;
  }
}

/* The children: not visited yet, below it. */
static void below(walk *w, uint32_t node, const char *lead) {
  const hk_node *n = &w->t->nodes[node];
  uint32_t children[256], count = 0;
  double gbps[256];
  for (uint32_t k = 0; k < n->nedges && count < HK_ARRAY_LENGTH(children); k++) {
    const hk_edge *e = &w->t->edges[n->first_edge + k];
    if (!downwards(e) || w->seen[e->to] || w->t->nodes[e->to].kind == HK_NODE_CPU) continue;
    w->seen[e->to] = true;
    gbps[count] = (double)e->gbps;
    children[count++] = e->to;
  }
  for (uint32_t k = 0; k < count; k++) {
    bool last = k + 1 == count;
    char deeper[256];
    fprintf(w->to, "%s%s", lead, w->fancy ? last ? "└─ " : "├─ " : last ? "`- " : "|- ");
    describe(w, children[k]);
    fprintf(w->to, " %s[%.1f GB/s]%s\n", hk_tool_style(w->to, HK_STYLE_DIM), gbps[k],
            hk_tool_style(w->to, HK_STYLE_PLAIN));
    snprintf(deeper, sizeof deeper, "%s%s", lead, last ? "   " : w->fancy ? "│  " : "|  ");
    below(w, children[k], deeper);
  }
}

/* Links that are not part of a tree: between CPUs, and NVLinks from GPU to GPU. */
static void across(const hk_topo *t, FILE *to) {
  bool first = true;
  for (uint32_t i = 0; i < t->nedges; i++) {
    const hk_edge *e = &t->edges[i];
    bool sys = e->kind == HK_EDGE_SYS;
    bool direct = e->kind == HK_EDGE_NVLINK && t->nodes[e->from].kind == HK_NODE_GPU &&
                  t->nodes[e->to].kind == HK_NODE_GPU;
    if ((!sys && !direct) || e->from > e->to) continue;
    char a[HK_LABEL], b[HK_LABEL];
    if (first) fputs("\nAcross:\n", to);
    first = false;
    fprintf(to, "  %s - %s: ", hk_label(t, e->from, a), hk_label(t, e->to, b));
    if (direct) fprintf(to, "%u NVLink%s, ", e->count, e->count == 1 ? "" : "s");
    fprintf(to, "%.1f GB/s a direction\n", (double)e->gbps);
  }
}

void hk_view_tree(const hk_topo *t, FILE *to) {
  walk w = {.t = t, .to = to, .seen = calloc(t->nnodes + 1, 1), .fancy = utf8()};
  if (!w.seen) return;
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++) {
    w.seen[i] = true;
    describe(&w, i);
    fputc('\n', to);
    below(&w, i, "");
  }
  across(t, to);
  free(w.seen);
}
