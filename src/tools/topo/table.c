/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of `hocket topo`. */
#include <stdlib.h>
#include <string.h>
#include "../../topo/paths.h"
#include "../../topo/topo.h"
#include "../machine.h"
#include "../tools.h"
#include "view.h"

static uint8_t table_kind_of(const hk_paths *p, uint32_t end) { return p->topo->nodes[p->ends[end]].kind; }
static const hk_path *table_path_at(const hk_paths *p, uint32_t from, uint32_t to) {
  return &p->at[(size_t)from * p->n + to];
}

/* "NV18": the fewest links of an edge on the path; else the class. */
static const char *table_class_label(const hk_paths *p, const hk_path *path, char *text) {
  unsigned links = 0;
  for (uint32_t h = 0; h < path->nhops; h++) {
    const hk_edge *e = &p->topo->edges[p->hops[path->first + h]];
    if (e->kind == HK_EDGE_NVLINK && (!links || e->count < links)) links = e->count;
  }
  if (path->cls == HK_PATH_NVL && links)
    snprintf(text, HK_LABEL, "NV%u", links);
  else
    snprintf(text, HK_LABEL, "%s", hk_path_class_name((hk_path_class)path->cls));
  return text;
}

/* Sorts the ends: GPUs, NETs, CPUs. The nodes have another order. */
static uint32_t table_order_ends(const hk_paths *p, uint32_t *order) {
  static const hk_node_kind kinds[] = {HK_NODE_GPU, HK_NODE_NET, HK_NODE_CPU};
  uint32_t n = 0;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(kinds); k++)
    for (uint32_t i = 0; i < p->n; i++)
      if (table_kind_of(p, i) == kinds[k]) order[n++] = i;
  return n;
}

void hk_view_matrix(const hk_topo *t, const hk_paths *p, bool gbps, FILE *to) {
  enum { MOST = 32 };
  uint32_t *order = malloc((p->n + 1) * sizeof *order);
  if (!order) return;
  uint32_t n = table_order_ends(p, order);
  char text[HK_LABEL];
  size_t wide = 4;
  for (uint32_t i = 0; i < n; i++)
    if (strlen(hk_label(t, p->ends[i], text)) > wide) wide = strlen(text);
  uint32_t block = (uint32_t)((HK_TOOL_WIDTH - wide) / (wide + 1)); /* columns that fit the width */
  if (block > MOST) block = MOST;
  for (uint32_t from = 0; from < n; from += block) {
    uint32_t end = from + block < n ? from + block : n;
    char columns[MOST + 2] = "l";
    for (uint32_t c = from; c < end; c++) strcat(columns, "r");
    hk_table *table = hk_table_new(columns);
    hk_table_narrow(table);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", "");
    for (uint32_t c = from; c < end; c++)
      hk_table_cell(table, HK_STYLE_BOLD, "%s", hk_label(t, p->ends[order[c]], text));
    for (uint32_t r = 0; r < n; r++) {
      hk_table_cell(table, HK_STYLE_BOLD, "%s", hk_label(t, p->ends[order[r]], text));
      for (uint32_t c = from; c < end; c++) {
        const hk_path *path = table_path_at(p, order[r], order[c]);
        if (r == c)
          hk_table_cell(table, HK_STYLE_DIM, "X");
        else if (gbps)
          hk_table_cell(table, HK_STYLE_PLAIN, path->gbps < 9.95f ? "%.1f" : "%.0f", (double)path->gbps);
        else
          hk_table_cell(table, path->cls <= HK_PATH_NVB ? HK_STYLE_GREEN : HK_STYLE_PLAIN, "%s",
                        table_class_label(p, path, text));
      }
    }
    if (from) fputc('\n', to);
    hk_table_print(table, 0, to);
  }
  free(order);
}

void hk_view_classes(const hk_topo *t, const hk_paths *p, FILE *to) {
  static const hk_node_kind kinds[] = {HK_NODE_GPU, HK_NODE_NET, HK_NODE_CPU};
  (void)t;
  hk_table *table = hk_table_new("llrrr");
  hk_table_row(table, HK_STYLE_BOLD, "BETWEEN\tPATH\tPAIRS\tGB/s\tus");
  for (size_t a = 0; a < HK_ARRAY_LENGTH(kinds); a++)
    for (size_t b = a; b < HK_ARRAY_LENGTH(kinds); b++)
      for (int cls = HK_PATH_NVL; cls <= HK_PATH_DIS; cls++) {
        uint32_t pairs = 0;
        const hk_path *worst = NULL;
        for (uint32_t i = 0; i < p->n; i++)
          for (uint32_t j = 0; j < p->n; j++) {
            if (table_kind_of(p, i) != kinds[a] || table_kind_of(p, j) != kinds[b] || i == j || (a == b && j < i))
              continue;
            const hk_path *path = table_path_at(p, i, j);
            if (path->cls != cls) continue;
            pairs++;
            if (!worst || path->gbps < worst->gbps) worst = path;
          }
        if (!pairs) continue;
        char text[HK_LABEL];
        hk_table_row(table, HK_STYLE_PLAIN, "%s - %s\t%s\t%u\t%.1f\t%.2f", hk_node_kind_name(kinds[a]),
                     hk_node_kind_name(kinds[b]), table_class_label(p, worst, text), pairs, (double)worst->gbps,
                     (double)worst->us);
      }
  hk_table_print(table, 0, to);
}

/* "0-7,16-23" */
static const char *table_mask_label(const hk_cpu_info *cpu, char *text, size_t capacity) {
  size_t n = 0;
  text[0] = 0;
  for (int i = 0; i < HK_CPU_MASK_WORDS * 64; i++) {
    int first = i;
    while (i < HK_CPU_MASK_WORDS * 64 && (cpu->mask[i / 64] >> (i % 64) & 1)) i++;
    if (i == first) continue;
    if (n + 16 > capacity) break;
    n += (size_t)snprintf(text + n, capacity - n, i - 1 > first ? "%s%d-%d" : "%s%d", n ? "," : "", first, i - 1);
  }
  return text;
}

/* The best ends of a kind seen from a node: "NET0 (PIX)", all of the same class and bandwidth, at most four. */
static const char *table_nearest(const hk_paths *p, uint32_t node, hk_node_kind kind, char *text, size_t capacity) {
  const hk_path *best = NULL;
  uint32_t from = p->index[node], found = 0;
  size_t n = 0;
  char label[HK_LABEL];
  text[0] = 0;
  for (uint32_t i = 0; i < p->n; i++) {
    const hk_path *path = table_path_at(p, from, i);
    if (table_kind_of(p, i) != kind || i == from || path->cls >= HK_PATH_DIS) continue;
    if (!best || path->cls < best->cls || (path->cls == best->cls && path->gbps > best->gbps)) best = path;
  }
  for (uint32_t i = 0; best && i < p->n; i++) {
    const hk_path *path = table_path_at(p, from, i);
    if (table_kind_of(p, i) != kind || i == from || path->cls != best->cls || path->gbps < best->gbps) continue;
    if (++found > 4) continue;
    n += (size_t)snprintf(text + n, capacity - n, "%s%s", n ? " " : "", hk_label(p->topo, p->ends[i], label));
  }
  if (found > 4) n += (size_t)snprintf(text + n, capacity - n, " and %u more", found - 4);
  if (best) snprintf(text + n, capacity - n, " (%s, %.3g GB/s)", table_class_label(p, best, label), (double)best->gbps);
  return text;
}

static void table_gpu_parts(const hk_topo *t, const hk_paths *p, FILE *to) {
  hk_table *table = hk_table_new("llllrll");
  hk_table_row(table, HK_STYLE_BOLD, "\tMODEL\tBUS ID\tPCI\tNUMA\tGDR\tNEAREST NETWORK PORTS");
  for (uint32_t i = t->first_of[HK_NODE_GPU]; i < t->first_of[HK_NODE_GPU + 1]; i++) {
    const hk_node *n = &t->nodes[i];
    char label[HK_LABEL], bus[HK_LABEL], pci[HK_LABEL], near[160];
    hk_bus_id_format(n->id, bus);
    hk_table_cell(table, HK_STYLE_BOLD, "%s", hk_label(t, i, label));
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", n->name);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", bus);
    hk_table_cell(table, hk_pci_downgraded(&n->pci) ? HK_STYLE_YELLOW : HK_STYLE_PLAIN, "%s",
                  hk_pci_label(&n->pci, pci));
    hk_table_cell(table, HK_STYLE_PLAIN, n->numa >= 0 ? "%d" : "?", n->numa);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", n->gpu.gdr ? "yes" : "no");
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", table_nearest(p, i, HK_NODE_NET, near, sizeof near));
  }
  hk_table_print(table, 0, to);
}

static void table_net_parts(const hk_topo *t, const hk_paths *p, FILE *to) {
  bool gpus = hk_topo_count(t, HK_NODE_GPU) > 0;
  hk_table *table = hk_table_new("lllrrl");
  hk_table_row(table, HK_STYLE_BOLD, "\tNAME\tSPEED\tNUMA\tRAIL\tNEAREST %s", gpus ? "GPUS" : "CPUS");
  for (uint32_t i = t->first_of[HK_NODE_NET]; i < t->first_of[HK_NODE_NET + 1]; i++) {
    const hk_node *n = &t->nodes[i];
    char label[HK_LABEL], speed[HK_LABEL], near[160];
    hk_table_cell(table, HK_STYLE_BOLD, "%s", hk_label(t, i, label));
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", n->name);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s%s", hk_port_label(n->net.mbps, speed), n->net.ethernet ? " Ethernet" : "");
    hk_table_cell(table, HK_STYLE_PLAIN, n->numa >= 0 ? "%d" : "?", n->numa);
    hk_table_cell(table, HK_STYLE_PLAIN, n->net.rail >= 0 ? "%d" : "?", n->net.rail);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s",
                  table_nearest(p, i, gpus ? HK_NODE_GPU : HK_NODE_CPU, near, sizeof near));
  }
  hk_table_print(table, 0, to);
}

static void table_cpu_parts(const hk_topo *t, FILE *to) {
  hk_table *table = hk_table_new("llrlr");
  hk_table_row(table, HK_STYLE_BOLD, "\tMAKER\tCORES\tCPU NUMBERS\tMEMORY");
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++) {
    const hk_node *n = &t->nodes[i];
    char label[HK_LABEL], mask[64];
    hk_table_cell(table, HK_STYLE_BOLD, "%s", hk_label(t, i, label));
    hk_table_cell(table, HK_STYLE_PLAIN, "%s %s", n->cpu.vendor, n->cpu.arch);
    hk_table_cell(table, HK_STYLE_PLAIN, n->cpu.cores ? "%d" : "?", n->cpu.cores);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", table_mask_label(&n->cpu, mask, sizeof mask));
    hk_table_cell(table, HK_STYLE_PLAIN, n->cpu.memory_gbps > 0 ? "%.0f GB/s" : "?", (double)n->cpu.memory_gbps);
  }
  hk_table_print(table, 0, to);
}

void hk_view_parts(const hk_topo *t, const hk_paths *p, FILE *to) {
  if (hk_topo_count(t, HK_NODE_GPU)) table_gpu_parts(t, p, to), fputc('\n', to);
  if (hk_topo_count(t, HK_NODE_NET)) table_net_parts(t, p, to), fputc('\n', to);
  table_cpu_parts(t, to);
}

void hk_view_legend(const hk_paths *p, FILE *to) {
  static const char *const meaning[] = {
      [HK_PATH_LOC] = "the same device",
      [HK_PATH_NVL] = "NVLink, directly or through an NVSwitch; n links",
      [HK_PATH_NVB] = "NVLink, through another GPU",
      [HK_PATH_C2C] = "the link between a CPU and its GPU on one board",
      [HK_PATH_PIX] = "at most one PCIe switch",
      [HK_PATH_PXB] = "several PCIe switches, but not the CPU",
      [HK_PATH_PXN] = "NVLink to a GPU near the NIC, then PCIe from there",
      [HK_PATH_PHB] = "PCIe and the CPU's host bridge",
      [HK_PATH_SYS] = "the link between CPUs (or NUMA nodes)",
      [HK_PATH_NET] = "the network",
      [HK_PATH_DIS] = "no way at all",
  };
  bool seen[HK_ARRAY_LENGTH(meaning)] = {false};
  for (size_t i = 0; i < (size_t)p->n * p->n; i++)
    if (p->at[i].cls < HK_ARRAY_LENGTH(meaning)) seen[p->at[i].cls] = true;
  hk_table *table = hk_table_new("ll");
  hk_table_row(table, HK_STYLE_DIM, "X\t%s", meaning[HK_PATH_LOC]);
  for (int c = HK_PATH_NVL; c <= HK_PATH_DIS; c++)
    if (seen[c])
      hk_table_row(table, HK_STYLE_DIM, "%s\t%s", c == HK_PATH_NVL ? "NVn" : hk_path_class_name((hk_path_class)c),
                   meaning[c]);
  hk_table_print(table, 2, to);
}
