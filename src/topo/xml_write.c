/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a topology as NCCL's XML. Data that NCCL's attributes cannot express is added as hk_ attributes, if it differs
 * from the value that a reader would conclude. So reading gives the same topology, and NCCL ignores the hk_
 * attributes. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include "facts.h"
#include "xml_build.h"

typedef struct writer {
  const hk_topo *t;
  FILE *to;
  bool *done; /* [nnodes] */
  int *host;  /* [nnodes] of CPUs: which of the domain's hosts */
  int nhosts;
  bool cpu_links; /* CPUs are not linked in the usual way */
  int depth;
} writer;

static void xml_write_indent(const writer *w) { fprintf(w->to, "%*s", 2 * w->depth, ""); }

static void xml_write_put_text(const writer *w, const char *name, const char *value) {
  fprintf(w->to, " %s=\"", name);
  for (const char *c = value; *c; c++) {
    switch (*c) {
      case '&': fputs("&amp;", w->to); break;
      case '<': fputs("&lt;", w->to); break;
      case '>': fputs("&gt;", w->to); break;
      case '"': fputs("&quot;", w->to); break;
      default: fputc((unsigned char)*c < ' ' || (unsigned char)*c > 0x7e ? '?' : *c, w->to);
    }
  }
  fputc('"', w->to);
}

const char *hk_xml_number(float value, char *text) {
  for (int digits = 6; digits <= 9; digits++) {
    snprintf(text, HK_XML_NUMBER, "%.*g", digits, (double)value);
    if (strtof(text, NULL) == value) break;
  }
  return text;
}

static void xml_write_put_float(const writer *w, const char *name, float value) {
  char text[HK_XML_NUMBER];
  fprintf(w->to, " %s=\"%s\"", name, hk_xml_number(value, text));
}

/* Writes hk_bw and hk_us, if they differ from the values that a reader would conclude. */
static void xml_write_put_figures(const writer *w, const hk_edge *e, float gbps, float us) {
  if (e->gbps != gbps) xml_write_put_float(w, "hk_bw", e->gbps);
  if (e->us != us) xml_write_put_float(w, "hk_us", e->us);
}

/* The link of one kind between two nodes, or NULL. */
static const hk_edge *xml_write_edge_to(const hk_topo *t, uint32_t from, uint32_t to, hk_edge_kind kind) {
  const hk_node *n = &t->nodes[from];
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++)
    if (t->edges[e].to == to && t->edges[e].kind == kind) return &t->edges[e];
  return NULL;
}

/* --- GPUs and NICs --- */

/* The classes for devices whose class is unknown. */
static const uint32_t usual_class[HK_NODE_KINDS] = {
    [HK_NODE_PCI] = 0x060400, [HK_NODE_GPU] = 0x030200, [HK_NODE_NIC] = 0x020000};

static void write_links(const writer *w, const hk_node *n) {
  const hk_topo *t = w->t;
  for (uint32_t i = n->first_edge; i < n->first_edge + n->nedges; i++) {
    const hk_edge *e = &t->edges[i];
    const hk_node *peer = &t->nodes[e->to];
    char bus[24] = "fffffff:ff:ff.0";
    if (e->kind == HK_EDGE_NVLINK) {
      if (peer->kind == HK_NODE_GPU) hk_bus_id_format(peer->id, bus);
      xml_write_indent(w);
      fprintf(w->to, "<%s target=\"%s\" count=\"%u\" tclass=\"0x%06x\"",
              n->pci.vendor == HK_PCI_AMD ? "xgmi" : "nvlink", bus, e->count,
              peer->kind == HK_NODE_GPU   ? 0x030200
              : peer->kind == HK_NODE_CPU ? 0x068001
                                          : 0x068000);
      xml_write_put_figures(w, e, hk_xml_nvlink_gbps(n->gpu.sm, e->count),
                            hk_link_us(HK_EDGE_NVLINK, peer->kind != HK_NODE_NVS));
      fputs("/>\n", w->to);
    } else if (e->kind == HK_EDGE_C2C) {
      long bw = (long)(e->gbps * 1000 / (float)e->count + 0.5f);
      xml_write_indent(w);
      fprintf(w->to, "<c2c bw=\"%ld\" count=\"%u\"", bw > 0 ? bw : 1, e->count);
      xml_write_put_figures(w, e, (float)bw * (float)e->count / 1000, hk_link_us(HK_EDGE_C2C, false));
      fputs("/>\n", w->to);
    }
  }
}

static void write_gpu(writer *w, const hk_node *n) {
  const hk_topo *t = w->t;
  bool inner = false, switched = false;
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++) {
    inner |= t->edges[e].kind == HK_EDGE_NVLINK || t->edges[e].kind == HK_EDGE_C2C;
    switched |= t->nodes[t->edges[e].to].kind == HK_NODE_NVS;
  }
  xml_write_indent(w);
  fprintf(w->to, "<gpu dev=\"%d\" sm=\"%d\" rank=\"%d\" gdr=\"%d\"", n->gpu.dev, n->gpu.sm < 900 ? n->gpu.sm : 0,
          n->gpu.dev, n->gpu.gdr);
  if (n->gpu.sm >= 900) fprintf(w->to, " gcn=\"%d\"", n->gpu.sm);
  if (n->name[0] || n->pci.device) xml_write_put_text(w, "hk_name", n->name);
  if (n->gpu.memory_gbps > 0 || hk_gpu_part_like(n, NULL)) xml_write_put_float(w, "hk_memory", n->gpu.memory_gbps);
  if (n->gpu.mcast != (switched && n->gpu.sm >= 90)) fprintf(w->to, " hk_mcast=\"%d\"", n->gpu.mcast);
  fputs(inner ? ">\n" : "/>\n", w->to);
  if (!inner) return;
  w->depth++;
  write_links(w, n);
  w->depth--;
  xml_write_indent(w);
  fputs("</gpu>\n", w->to);
}

static void write_net(const writer *w, const hk_edge *e, const hk_node *nic) {
  const hk_node *n = &w->t->nodes[e->to];
  xml_write_indent(w);
  fputs("<net", w->to);
  xml_write_put_text(w, "name", n->name);
  fprintf(w->to, " dev=\"%d\"", n->net.dev);
  xml_write_put_float(w, "latency", n->net.latency_us);
  xml_write_put_float(w, "speed", n->net.mbps);
  fprintf(w->to, " port=\"%d\" guid=\"0x%llx\" maxconn=\"131072\" gdr=\"%d\"", n->net.port,
          (unsigned long long)n->net.guid, n->net.gdr);
  if (n->net.rail != n->net.dev) fprintf(w->to, " hk_rail=\"%d\"", n->net.rail);
  uint32_t class_code = nic->pci.class_code        ? nic->pci.class_code
                        : nic->id < HK_NIC_VIRTUAL ? usual_class[HK_NODE_NIC]
                                                   : 0;
  if (n->net.ethernet != (class_code >> 8 == 0x0200)) fprintf(w->to, " hk_ethernet=\"%d\"", n->net.ethernet);
  xml_write_put_figures(w, e, hk_port_gbps(n->net.mbps), hk_link_us(HK_EDGE_PORT, false));
  fputs("/>\n", w->to);
}

/* `above`: the link from the CPU, for NICs that are no PCI devices. */
static void write_nic(writer *w, const hk_node *n, const hk_edge *above) {
  const hk_topo *t = w->t;
  const char *first = "";
  for (uint32_t e = n->nedges; e-- > 0;)
    if (t->nodes[t->edges[n->first_edge + e].to].kind == HK_NODE_NET)
      first = t->nodes[t->edges[n->first_edge + e].to].name;
  xml_write_indent(w);
  fputs("<nic", w->to);
  if (above) {
    char bus[24];
    hk_bus_id_format(n->id, bus);
    fprintf(w->to, " hk_busid=\"%s\"", bus);
    xml_write_put_figures(w, above, HK_NIC_VIRTUAL_GBPS, 0);
  }
  if (strcmp(first, n->name)) xml_write_put_text(w, "hk_name", n->name);
  fputs(">\n", w->to);
  w->depth++;
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++) {
    uint32_t to = t->edges[e].to;
    if (t->nodes[to].kind != HK_NODE_NET || w->done[to]) continue;
    w->done[to] = true;
    write_net(w, &t->edges[e], n);
  }
  w->depth--;
  xml_write_indent(w);
  fputs("</nic>\n", w->to);
}

/* --- PCI --- */

static void write_pci_attrs(const writer *w, const hk_node *n, const hk_edge *above) {
  const hk_pci_info *p = &n->pci;
  char bus[24], text[HK_XML_NUMBER];
  hk_bus_id_format(n->id, bus);
  fprintf(w->to, "<pci busid=\"%s\"", bus);
  /* A leaf of unknown class must not get a bridge's class. */
  if (p->class_code || n->kind != HK_NODE_PCI)
    fprintf(w->to, " class=\"0x%06x\"", p->class_code ? p->class_code : usual_class[n->kind]);
  if (p->vendor) fprintf(w->to, " vendor=\"0x%04x\"", p->vendor);
  if (p->device) fprintf(w->to, " device=\"0x%04x\"", p->device);
  if (p->subvendor) fprintf(w->to, " subsystem_vendor=\"0x%04x\"", p->subvendor);
  if (p->subdevice) fprintf(w->to, " subsystem_device=\"0x%04x\"", p->subdevice);
  if (p->gts > 0) fprintf(w->to, " link_speed=\"%s GT/s\"", hk_xml_number(p->gts, text));
  if (p->width > 0) fprintf(w->to, " link_width=\"%d\"", p->width);
  if (p->max_gts != p->gts) fprintf(w->to, " hk_max_speed=\"%s GT/s\"", hk_xml_number(p->max_gts, text));
  if (p->max_width != p->width) fprintf(w->to, " hk_max_width=\"%d\"", p->max_width);
  xml_write_put_figures(w, above, hk_xml_pci_gbps(p), hk_link_us(HK_EDGE_PCI, false));
}

static void write_children(writer *w, uint32_t parent);

static void write_device(writer *w, const hk_edge *above) {
  const hk_node *n = &w->t->nodes[above->to];
  w->done[above->to] = true;
  if (n->kind == HK_NODE_NIC && n->id >= HK_NIC_VIRTUAL) {
    write_nic(w, n, above);
    return;
  }
  xml_write_indent(w);
  write_pci_attrs(w, n, above);
  fputs(">\n", w->to);
  w->depth++;
  if (n->kind == HK_NODE_GPU) write_gpu(w, n);
  if (n->kind == HK_NODE_NIC) write_nic(w, n, NULL);
  if (n->kind == HK_NODE_PCI) write_children(w, above->to);
  w->depth--;
  xml_write_indent(w);
  fputs("</pci>\n", w->to);
}

static void write_children(writer *w, uint32_t parent) {
  const hk_node *n = &w->t->nodes[parent];
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++) {
    const hk_edge *edge = &w->t->edges[e];
    uint8_t kind = w->t->nodes[edge->to].kind;
    if (edge->kind != HK_EDGE_PCI || w->done[edge->to]) continue;
    if (kind == HK_NODE_PCI || kind == HK_NODE_GPU || kind == HK_NODE_NIC) write_device(w, edge);
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
        for (uint32_t e = t->nodes[k].first_edge;
             w->host[k] == w->nhosts && e < t->nodes[k].first_edge + t->nodes[k].nedges; e++)
          if (t->edges[e].kind == HK_EDGE_SYS && !w->host[t->edges[e].to])
            w->host[t->edges[e].to] = w->nhosts, more = true;
    }
  }
  for (uint32_t i = first; i < end; i++)
    for (uint32_t k = first; k < i; k++) {
      const hk_edge *e = xml_write_edge_to(t, k, i, HK_EDGE_SYS);
      if (w->host[i] != w->host[k]) continue;
      if (!e || e->gbps != hk_cpu_link_gbps(&t->nodes[k].cpu) || e->us != hk_link_us(HK_EDGE_SYS, false))
        w->cpu_links = true;
    }
}

/* NCCL reads no value of more than 254 characters: 28 words. */
static void xml_write_put_affinity(const writer *w, const hk_cpu_info *cpu) {
  int word = 2 * HK_CPU_MASK_WORDS < 28 ? 2 * HK_CPU_MASK_WORDS - 1 : 27;
  while (word > 0 && !(uint32_t)(cpu->mask[word / 2] >> word % 2 * 32)) word--;
  fputs(" affinity=\"", w->to);
  for (; word >= 0; word--)
    fprintf(w->to, "%08x%s", (unsigned)(uint32_t)(cpu->mask[word / 2] >> word % 2 * 32), word ? "," : "\"");
}

static void write_cpu(writer *w, uint32_t index) {
  const hk_node *n = &w->t->nodes[index];
  const hk_cpu_info *cpu = &n->cpu;
  int cores = 0;
  for (int i = 0; i < HK_CPU_MASK_WORDS; i++) cores += __builtin_popcountll(cpu->mask[i]);
  xml_write_indent(w);
  fputs("<cpu", w->to);
  if (w->nhosts > 1) fprintf(w->to, " host_hash=\"0x%x\"", (unsigned)w->host[index]);
  fprintf(w->to, " numaid=\"%llu\"", (unsigned long long)n->id);
  if (cores) xml_write_put_affinity(w, cpu);
  if (cpu->arch[0]) xml_write_put_text(w, "arch", cpu->arch);
  if (cpu->vendor[0]) xml_write_put_text(w, "vendor", cpu->vendor);
  bool extended = !strcmp(cpu->vendor, HK_CPU_AMD) && cpu->family > 15; /* NCCL adds the parts of CPUID otherwise */
  fprintf(w->to, " familyid=\"%d\" modelid=\"%d\"", extended ? 15 | (cpu->family - 15) << 4 : cpu->family, cpu->model);
  if (cpu->cores != cores) fprintf(w->to, " hk_cores=\"%d\"", cpu->cores);
  if (cpu->memory_gbps > 0 || hk_cpu_part_like(cpu)) xml_write_put_float(w, "hk_memory", cpu->memory_gbps);
  fputs(">\n", w->to);
  w->depth++;
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges && w->cpu_links; e++) {
    const hk_edge *edge = &w->t->edges[e];
    if (edge->kind != HK_EDGE_SYS || edge->to < index) continue;
    xml_write_indent(w);
    fprintf(w->to, "<hk_link numaid=\"%llu\"", (unsigned long long)w->t->nodes[edge->to].id);
    xml_write_put_float(w, "hk_bw", edge->gbps);
    xml_write_put_float(w, "hk_us", edge->us);
    fputs("/>\n", w->to);
  }
  write_children(w, index);
  w->depth--;
  xml_write_indent(w);
  fputs("</cpu>\n", w->to);
}

static void write_system(writer *w) {
  const hk_topo *t = w->t;
  xml_write_find_hosts(w);
  fputs("<system version=\"1\"", w->to);
  if (t->name[0]) xml_write_put_text(w, "name", t->name);
  if (w->cpu_links) fputs(" hk_cpu_links=\"1\"", w->to);
  fputs(">\n", w->to);
  w->depth++;
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++) write_cpu(w, i);
  fputs("</system>\n", w->to);
}

hk_status hk_topo_write_xml(const hk_topo *t, FILE *to) {
  writer w = {.t = t, .to = to};
  hk_status rc = HK_OK;
  /* Numbers in files have decimal points, whatever the user's locale. */
  locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), had = plain ? uselocale(plain) : (locale_t)0;
  w.done = calloc(t->nnodes, sizeof *w.done);
  w.host = calloc(t->nnodes, sizeof *w.host);
  if (!w.done || !w.host) {
    rc = HK_FAIL_ERRNO("no memory to write a topology");
    goto out;
  }
  write_system(&w);
  for (uint32_t i = 0; i < t->nnodes && rc == HK_OK; i++) {
    char label[HK_NODE_LABEL];
    uint8_t kind = t->nodes[i].kind;
    if (kind == HK_NODE_CPU || kind == HK_NODE_NVS || w.done[i]) continue;
    hk_node_label(&t->nodes[i], label);
    rc = HK_FAIL(HK_ERR_ARGUMENT, "topology %s: %s belongs to no CPU by PCI, which NCCL's XML cannot express", t->name,
                 label);
  }
  if (rc == HK_OK && (fflush(to) || ferror(to))) rc = HK_FAIL_ERRNO("cannot write the topology %s", t->name);
out:
  if (plain) uselocale(had), freelocale(plain);
  free(w.done);
  free(w.host);
  return rc;
}
