/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket topo --json`: the machine's nodes, links and paths as JSON. */
#include "../../base/json.h"
#include "../../topo/paths.h"
#include "../../topo/topo.h"
#include "../machine.h"
#include "view.h"

static void json_put_pci(const hk_pci_info *p, hk_json *w) {
  if (p->gts <= 0) return;
  hk_json_put_number(w, "gts", (double)p->gts);
  hk_json_put_integer(w, "width", p->width);
  hk_json_put_boolean(w, "downgraded", hk_pci_downgraded(p));
}

static void json_put_node(const hk_topo *t, uint32_t i, hk_json *w) {
  const hk_node *n = &t->nodes[i];
  char text[HK_LABEL];
  hk_json_open(w, '{');
  hk_json_put_text(w, "kind", hk_node_kind_name((hk_node_kind)n->kind));
  hk_json_put_text(w, "label", hk_label(t, i, text));
  if (n->name[0]) hk_json_put_text(w, "name", n->name);
  if (n->kind == HK_NODE_GPU || n->kind == HK_NODE_PCI || n->kind == HK_NODE_NIC) {
    hk_bus_id_format(n->id, text);
    hk_json_put_text(w, "bus_id", text);
    json_put_pci(&n->pci, w);
  }
  if (n->numa >= 0) hk_json_put_integer(w, "numa", n->numa);
  if (n->kind == HK_NODE_CPU) {
    hk_json_put_text(w, "arch", n->cpu.arch);
    hk_json_put_text(w, "vendor", n->cpu.vendor);
    hk_json_put_integer(w, "cores", n->cpu.cores);
    hk_json_put_number(w, "memory_gbps", (double)n->cpu.memory_gbps);
  } else if (n->kind == HK_NODE_GPU) {
    hk_json_put_integer(w, "dev", n->gpu.dev);
    hk_json_put_integer(w, "sm", n->gpu.sm);
    hk_json_put_number(w, "memory_gbps", (double)n->gpu.memory_gbps);
    hk_json_put_boolean(w, "gdr", n->gpu.gdr);
    hk_json_put_boolean(w, "mcast", n->gpu.mcast);
  } else if (n->kind == HK_NODE_NET) {
    hk_json_put_integer(w, "dev", n->net.dev);
    hk_json_put_integer(w, "port", n->net.port);
    hk_json_put_number(w, "mbps", (double)n->net.mbps);
    hk_json_put_integer(w, "rail", n->net.rail);
    hk_json_put_boolean(w, "gdr", n->net.gdr);
    hk_json_put_boolean(w, "ethernet", n->net.ethernet);
  }
  hk_json_close(w);
}

static void json_put_edges(const hk_topo *t, hk_json *w) {
  static const char *const kinds[] = {[HK_EDGE_PCI] = "PCI",
                                      [HK_EDGE_NVLINK] = "NVLINK",
                                      [HK_EDGE_C2C] = "C2C",
                                      [HK_EDGE_SYS] = "SYS",
                                      [HK_EDGE_PORT] = "PORT"};
  hk_json_begin(w, "edges", '[');
  for (uint32_t i = 0; i < t->nedges; i++) {
    const hk_edge *e = &t->edges[i];
    hk_json_open(w, '{');
    hk_json_put_integer(w, "from", e->from);
    hk_json_put_integer(w, "to", e->to);
    hk_json_put_text(w, "kind", kinds[e->kind]);
    hk_json_put_integer(w, "count", e->count);
    hk_json_put_number(w, "gbps", (double)e->gbps);
    hk_json_put_number(w, "us", (double)e->us);
    hk_json_close(w);
  }
  hk_json_close(w);
}

static void json_put_paths(const hk_paths *p, hk_json *w) {
  hk_json_begin(w, "paths", '[');
  for (uint32_t i = 0; i < p->n; i++)
    for (uint32_t j = 0; j < p->n; j++) {
      const hk_path *path = &p->at[(size_t)i * p->n + j];
      if (i == j) continue;
      hk_json_open(w, '{');
      hk_json_put_integer(w, "from", p->ends[i]);
      hk_json_put_integer(w, "to", p->ends[j]);
      hk_json_put_text(w, "class", hk_path_class_name((hk_path_class)path->cls));
      hk_json_put_number(w, "gbps", (double)path->gbps);
      hk_json_put_number(w, "us", (double)path->us);
      hk_json_put_integer(w, "hops", path->nhops);
      hk_json_close(w);
    }
  hk_json_close(w);
}

static void json_put_topology(const hk_topo *t, hk_json *w) {
  char hash[24];
  hk_json_open(w, '{');
  hk_json_put_text(w, "name", t->name);
  snprintf(hash, sizeof hash, "%016llx", (unsigned long long)t->hash);
  hk_json_put_text(w, "hash", hash);
  hk_json_begin(w, "nodes", '[');
  for (uint32_t i = 0; i < t->nnodes; i++) json_put_node(t, i, w);
  hk_json_close(w);
  json_put_edges(t, w);
  hk_paths *p;
  if (hk_paths_new(&p, t, NULL) == HK_OK) {
    json_put_paths(p, w);
    hk_paths_free(p);
  }
  hk_json_put_text(w, "remarks", t->remarks);
  hk_json_close(w);
}

void hk_view_json(const hk_cluster *c, hk_json *w) {
  hk_json_open(w, '{');
  hk_json_put_text(w, "name", c->name);
  hk_json_put_integer(w, "hosts", c->nhosts);
  if (c->nhosts > 1) {
    hk_json_begin(w, "fabric", '{');
    hk_json_put_boolean(w, "rail", c->fabric.rail);
    hk_json_put_integer(w, "hosts_per_leaf", c->fabric.hosts_per_leaf);
    hk_json_put_integer(w, "spines", c->fabric.spines);
    hk_json_put_boolean(w, "adaptive", c->fabric.adaptive);
    hk_json_put_number(w, "oversub", (double)c->fabric.oversub);
    hk_json_put_number(w, "hop_us", (double)c->fabric.hop_us);
    hk_json_put_number(w, "base_us", (double)c->fabric.base_us);
    hk_json_close(w);
    hk_json_begin(w, "kind_of_host", '[');
    for (int h = 0; h < c->nhosts; h++) hk_json_integer(w, hk_cluster_kind(c, h));
    hk_json_close(w);
  }
  hk_json_begin(w, "topologies", '[');
  for (int k = 0; k < c->nkinds; k++) json_put_topology(c->kinds[k], w);
  hk_json_close(w);
  hk_json_close(w);
}
