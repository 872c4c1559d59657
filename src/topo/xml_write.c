/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a topology as NCCL's XML. Data that NCCL's attributes cannot express is added as hk_ attributes, if it differs
 * from the value that a reader would conclude. So reading gives the same topology, and NCCL ignores the hk_
 * attributes. */
#include <stdlib.h>
#include <string.h>
#include "facts.h"
#include "xml_build.h"

typedef struct writer {
  const hk_topo *t;
  hk_xml_tree *to;
  bool *done; /* [nnodes] */
  int *host;  /* [nnodes] of CPUs: which of the domain's hosts */
  int nhosts;
  bool cpu_links; /* CPUs are not linked in the usual way */
} writer;

/* Gives hk_bw and hk_us, if they differ from the values that a reader would conclude. */
static void xml_write_put_figures(const writer *w, hk_xml_node *x, const hk_edge *e, float gbps, float us) {
  if (e->gbps != gbps) hk_xml_set_number(w->to, x, "hk_bw", e->gbps);
  if (e->us != us) hk_xml_set_number(w->to, x, "hk_us", e->us);
}

static void xml_write_put_bus(const writer *w, hk_xml_node *x, const char *name, uint64_t id) {
  char bus[24];
  hk_bus_id_format(id, bus);
  hk_xml_set(w->to, x, name, bus);
}

/* The link of one kind between two nodes, or NULL. */
static const hk_edge *xml_write_edge_to(const hk_topo *t, uint32_t from, uint32_t to, hk_edge_kind kind) {
  const hk_node *n = &t->nodes[from];
  const hk_edge *e = hk_topo_edges(t, n);
  for (uint32_t i = 0; i < n->nedges; i++)
    if (e[i].to == to && e[i].kind == kind) return &e[i];
  return NULL;
}

/* --- GPUs and NICs --- */

/* The classes for devices whose class is unknown. */
static const uint32_t usual_class[HK_NODE_KINDS] = {
    [HK_NODE_PCI] = 0x060400, [HK_NODE_GPU] = 0x030200, [HK_NODE_NIC] = 0x020000};

static void xml_write_link(const writer *w, hk_xml_node *gpu, const hk_node *n, const hk_edge *e) {
  const hk_node *peer = &w->t->nodes[e->to];
  if (e->kind == HK_EDGE_NVLINK) {
    hk_xml_node *x = hk_xml_add(w->to, gpu, n->pci.vendor == HK_PCI_AMD ? "xgmi" : "nvlink");
    if (peer->kind == HK_NODE_GPU)
      xml_write_put_bus(w, x, "target", peer->id);
    else
      hk_xml_set(w->to, x, "target", "fffffff:ff:ff.0");
    hk_xml_put(w->to, x, "count=%u tclass=0x%06x", e->count,
               peer->kind == HK_NODE_GPU   ? 0x030200
               : peer->kind == HK_NODE_CPU ? 0x068001
                                           : 0x068000);
    xml_write_put_figures(w, x, e, hk_xml_nvlink_gbps(n->gpu.sm, e->count),
                          peer->kind == HK_NODE_NVS ? HK_SWITCH_LINK_US : hk_link_us(HK_EDGE_NVLINK));
  } else if (e->kind == HK_EDGE_C2C) {
    hk_xml_node *x = hk_xml_add(w->to, gpu, "c2c");
    long bw = (long)(e->gbps * 1000 / (float)e->count + 0.5f);
    hk_xml_put(w->to, x, "bw=%ld count=%u", bw > 0 ? bw : 1, e->count);
    xml_write_put_figures(w, x, e, (float)bw * (float)e->count / 1000, hk_link_us(HK_EDGE_C2C));
  }
}

static void xml_write_gpu(const writer *w, hk_xml_node *pci, const hk_node *n) {
  const hk_edge *e = hk_topo_edges(w->t, n);
  hk_xml_node *x = hk_xml_add(w->to, pci, "gpu");
  bool switched = false;
  for (uint32_t i = 0; i < n->nedges; i++) switched |= w->t->nodes[e[i].to].kind == HK_NODE_NVS;
  hk_xml_put(w->to, x, "dev=%d sm=%d rank=%d gdr=%d", n->gpu.dev, n->gpu.sm < 900 ? n->gpu.sm : 0, n->gpu.dev,
             n->gpu.gdr);
  if (n->gpu.sm >= 900) hk_xml_put(w->to, x, "gcn=%d", n->gpu.sm);
  if (n->name[0] || n->pci.device) hk_xml_set(w->to, x, "hk_name", n->name);
  if (n->gpu.memory_gbps > 0 || hk_gpu_part_like(n, NULL)) hk_xml_set_number(w->to, x, "hk_memory", n->gpu.memory_gbps);
  if (n->gpu.mcast != (switched && n->gpu.sm >= 90)) hk_xml_put(w->to, x, "hk_mcast=%d", n->gpu.mcast);
  for (uint32_t i = 0; i < n->nedges; i++) xml_write_link(w, x, n, &e[i]);
}

static void xml_write_net(const writer *w, hk_xml_node *above, const hk_edge *e, const hk_node *nic) {
  const hk_node *n = &w->t->nodes[e->to];
  hk_xml_node *x = hk_xml_add(w->to, above, "net");
  hk_xml_set(w->to, x, "name", n->name);
  hk_xml_put(w->to, x, "dev=%d", n->net.dev);
  hk_xml_set_number(w->to, x, "latency", n->net.latency_us);
  hk_xml_set_number(w->to, x, "speed", n->net.mbps);
  hk_xml_put(w->to, x, "port=%d guid=0x%llx maxconn=131072 gdr=%d", n->net.port, (unsigned long long)n->net.guid,
             n->net.gdr);
  if (n->net.rail != n->net.dev) hk_xml_put(w->to, x, "hk_rail=%d", n->net.rail);
  uint32_t class_code = nic->pci.class_code        ? nic->pci.class_code
                        : nic->id < HK_NIC_VIRTUAL ? usual_class[HK_NODE_NIC]
                                                   : 0;
  if (n->net.ethernet != (class_code >> 8 == 0x0200)) hk_xml_put(w->to, x, "hk_ethernet=%d", n->net.ethernet);
  xml_write_put_figures(w, x, e, hk_port_gbps(n->net.mbps), hk_link_us(HK_EDGE_PORT));
}

/* `above`: the link from the CPU, for NICs that are no PCI devices. */
static void xml_write_nic(writer *w, hk_xml_node *parent, const hk_node *n, const hk_edge *above) {
  const hk_edge *e = hk_topo_edges(w->t, n);
  const hk_node *first = NULL; /* port */
  hk_xml_node *x = hk_xml_add(w->to, parent, "nic");
  for (uint32_t i = 0; i < n->nedges && !first; i++)
    if (w->t->nodes[e[i].to].kind == HK_NODE_NET) first = &w->t->nodes[e[i].to];
  if (above) {
    xml_write_put_bus(w, x, "hk_busid", n->id);
    xml_write_put_figures(w, x, above, HK_NIC_VIRTUAL_GBPS, 0);
  }
  if (strcmp(first ? first->name : "", n->name)) hk_xml_set(w->to, x, "hk_name", n->name);
  for (uint32_t i = 0; i < n->nedges; i++) {
    if (w->t->nodes[e[i].to].kind != HK_NODE_NET || w->done[e[i].to]) continue;
    w->done[e[i].to] = true;
    xml_write_net(w, x, &e[i], n);
  }
}

/* --- PCI --- */

static void xml_write_speed(const writer *w, hk_xml_node *x, const char *name, float gts) {
  char text[HK_XML_NUMBER], speed[HK_XML_NUMBER + 8];
  snprintf(speed, sizeof speed, "%s GT/s", hk_xml_number(gts, text));
  hk_xml_set(w->to, x, name, speed);
}

static hk_xml_node *xml_write_pci(const writer *w, hk_xml_node *parent, const hk_node *n, const hk_edge *above) {
  hk_xml_node *x = hk_xml_add(w->to, parent, "pci");
  const hk_pci_info *p = &n->pci;
  xml_write_put_bus(w, x, "busid", n->id);
  /* A leaf of unknown class must not get a bridge's class. */
  if (p->class_code || n->kind != HK_NODE_PCI)
    hk_xml_put(w->to, x, "class=0x%06x", p->class_code ? p->class_code : usual_class[n->kind]);
  if (p->vendor) hk_xml_put(w->to, x, "vendor=0x%04x", p->vendor);
  if (p->device) hk_xml_put(w->to, x, "device=0x%04x", p->device);
  if (p->subvendor) hk_xml_put(w->to, x, "subsystem_vendor=0x%04x", p->subvendor);
  if (p->subdevice) hk_xml_put(w->to, x, "subsystem_device=0x%04x", p->subdevice);
  if (p->gts > 0) xml_write_speed(w, x, "link_speed", p->gts);
  if (p->width > 0) hk_xml_put(w->to, x, "link_width=%d", p->width);
  if (p->max_gts != p->gts) xml_write_speed(w, x, "hk_max_speed", p->max_gts);
  if (p->max_width != p->width) hk_xml_put(w->to, x, "hk_max_width=%d", p->max_width);
  xml_write_put_figures(w, x, above, hk_xml_pci_gbps(p), hk_link_us(HK_EDGE_PCI));
  return x;
}

static void xml_write_children(writer *w, hk_xml_node *x, uint32_t parent) {
  const hk_node *above = &w->t->nodes[parent];
  const hk_edge *edge = hk_topo_edges(w->t, above);
  for (uint32_t i = 0; i < above->nedges; i++, edge++) {
    const hk_node *n = &w->t->nodes[edge->to];
    if (edge->kind != HK_EDGE_PCI || w->done[edge->to]) continue;
    if (n->kind != HK_NODE_PCI && n->kind != HK_NODE_GPU && n->kind != HK_NODE_NIC) continue;
    w->done[edge->to] = true;
    if (n->kind == HK_NODE_NIC && n->id >= HK_NIC_VIRTUAL) {
      xml_write_nic(w, x, n, edge);
      continue;
    }
    hk_xml_node *pci = xml_write_pci(w, x, n, edge);
    if (n->kind == HK_NODE_GPU) xml_write_gpu(w, pci, n);
    if (n->kind == HK_NODE_NIC) xml_write_nic(w, pci, n, NULL);
    if (n->kind == HK_NODE_PCI) xml_write_children(w, pci, edge->to);
  }
}

/* --- CPUs --- */

/* Finds the hosts of the domain: CPUs that are linked. Then checks whether each CPU is linked to all others of its host
 * in the usual way. */
static void xml_write_find_hosts(writer *w) {
  const hk_topo *t = w->t;
  uint32_t first = t->first_of[HK_NODE_CPU], end = t->first_of[HK_NODE_CPU + 1];
  for (uint32_t i = first; i < end; i++) {
    if (w->host[i]) continue;
    w->host[i] = ++w->nhosts;
    for (bool more = true; more;) {
      more = false;
      for (uint32_t k = first; k < end; k++)
        for (uint32_t j = 0; j < t->nodes[k].nedges && w->host[k] == w->nhosts; j++) {
          const hk_edge *e = &hk_topo_edges(t, &t->nodes[k])[j];
          if (e->kind == HK_EDGE_SYS && !w->host[e->to]) w->host[e->to] = w->nhosts, more = true;
        }
    }
  }
  for (uint32_t i = first; i < end; i++)
    for (uint32_t k = first; k < i; k++) {
      const hk_edge *e = xml_write_edge_to(t, k, i, HK_EDGE_SYS);
      if (w->host[i] != w->host[k]) continue;
      if (!e || e->gbps != hk_cpu_link_gbps(&t->nodes[k].cpu) || e->us != hk_link_us(HK_EDGE_SYS)) w->cpu_links = true;
    }
}

/* NCCL reads no value of more than 254 characters: 28 words. */
static void xml_write_affinity(const writer *w, hk_xml_node *x, const hk_cpu_info *cpu) {
  int word = 2 * HK_CPU_MASK_WORDS < 28 ? 2 * HK_CPU_MASK_WORDS - 1 : 27, n = 0;
  char text[28 * 9 + 1];
  while (word > 0 && !(uint32_t)(cpu->mask[word / 2] >> word % 2 * 32)) word--;
  for (; word >= 0; word--)
    n += snprintf(text + n, sizeof text - (size_t)n, "%08x%s", (uint32_t)(cpu->mask[word / 2] >> word % 2 * 32),
                  word ? "," : "");
  hk_xml_set(w->to, x, "affinity", text);
}

static void xml_write_cpu(writer *w, uint32_t index) {
  const hk_node *n = &w->t->nodes[index];
  const hk_cpu_info *cpu = &n->cpu;
  hk_xml_node *x = hk_xml_add(w->to, w->to->root, "cpu");
  int cores = 0;
  for (int i = 0; i < HK_CPU_MASK_WORDS; i++) cores += __builtin_popcountll(cpu->mask[i]);
  if (w->nhosts > 1) hk_xml_put(w->to, x, "host_hash=0x%x", (unsigned)w->host[index]);
  hk_xml_put(w->to, x, "numaid=%llu", (unsigned long long)n->id);
  if (cores) xml_write_affinity(w, x, cpu);
  if (cpu->arch[0]) hk_xml_set(w->to, x, "arch", cpu->arch);
  if (cpu->vendor[0]) hk_xml_set(w->to, x, "vendor", cpu->vendor);
  bool extended = !strcmp(cpu->vendor, HK_CPU_AMD) && cpu->family > 15; /* NCCL adds the parts of CPUID otherwise */
  hk_xml_put(w->to, x, "familyid=%d modelid=%d", extended ? 15 | (cpu->family - 15) << 4 : cpu->family, cpu->model);
  if (cpu->cores != cores) hk_xml_put(w->to, x, "hk_cores=%d", cpu->cores);
  if (cpu->memory_gbps > 0 || hk_cpu_part_like(cpu)) hk_xml_set_number(w->to, x, "hk_memory", cpu->memory_gbps);
  const hk_edge *edge = hk_topo_edges(w->t, n);
  for (uint32_t i = 0; i < n->nedges && w->cpu_links; i++, edge++) {
    if (edge->kind != HK_EDGE_SYS || edge->to < index) continue;
    hk_xml_node *link = hk_xml_add(w->to, x, "hk_link");
    hk_xml_put(w->to, link, "numaid=%llu", (unsigned long long)w->t->nodes[edge->to].id);
    hk_xml_set_number(w->to, link, "hk_bw", edge->gbps);
    hk_xml_set_number(w->to, link, "hk_us", edge->us);
  }
  xml_write_children(w, x, index);
}

hk_status hk_xml_of_topo(hk_xml_tree **out, const hk_topo *t) {
  writer w = {.t = t};
  hk_status rc;
  *out = NULL;
  w.done = calloc(t->nnodes, sizeof *w.done);
  w.host = calloc(t->nnodes, sizeof *w.host);
  if (!w.done || !w.host) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to write a topology"), out);
  HK_TRY(hk_xml_new(&w.to), out);
  hk_xml_node *system = hk_xml_add(w.to, NULL, "system");
  xml_write_find_hosts(&w);
  hk_xml_set(w.to, system, "version", "1");
  if (t->name[0]) hk_xml_set(w.to, system, "name", t->name);
  if (w.cpu_links) hk_xml_set(w.to, system, "hk_cpu_links", "1");
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++) xml_write_cpu(&w, i);
  for (uint32_t i = 0; i < t->nnodes && rc == HK_OK; i++) {
    char label[HK_NODE_LABEL];
    uint8_t kind = t->nodes[i].kind;
    if (kind == HK_NODE_CPU || kind == HK_NODE_NVS || w.done[i]) continue;
    hk_node_label(&t->nodes[i], label);
    rc = HK_FAIL(HK_ERR_ARGUMENT, "topology %s: %s belongs to no CPU by PCI, which NCCL's XML cannot express", t->name,
                 label);
  }
  if (rc == HK_OK) *out = w.to, w.to = NULL;
out:
  hk_xml_free(w.to);
  free(w.done);
  free(w.host);
  return rc;
}

hk_status hk_topo_write_xml(const hk_topo *t, FILE *to) {
  hk_xml_tree *tree;
  HK_OR_RETURN(hk_xml_of_topo(&tree, t));
  hk_status rc = hk_xml_print(tree, to);
  hk_xml_free(tree);
  return rc;
}
