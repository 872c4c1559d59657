/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a topology from a tree of NCCL's topology XML. Each error is reported with its place. If there was an error,
 * the result is freed at the end. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "facts.h"
#include "xml_build.h"

typedef hk_xml_reader reader;

/* Copies a name. People see it, also on terminals, so control characters are replaced. */
static void xml_read_take_text(char *out, size_t size, const char *text) {
  size_t n = 0;
  for (; text[n] && n + 1 < size; n++) out[n] = text[n] < ' ' || text[n] > '~' ? '?' : text[n];
  out[n] = 0;
}

/* A node of the topology for `xml`; reports a second one with the same id. UINT32_MAX: none. */
static uint32_t xml_read_add(reader *b, const hk_xml_node *xml, hk_node_kind kind, uint64_t id) {
  uint32_t index = UINT32_MAX;
  bool bus = kind == HK_NODE_PCI || kind == HK_NODE_GPU || kind == HK_NODE_NIC;
  for (uint32_t i = 0; i < b->t->nnodes; i++) {
    const hk_node *n = &b->t->nodes[i];
    bool same = bus ? n->kind == HK_NODE_PCI || n->kind == HK_NODE_GPU || n->kind == HK_NODE_NIC : n->kind == kind;
    if (!same || n->id != id) continue;
    hk_xml_say(xml, true, "a second <%s> with the same %s; each needs its own", xml->name,
               bus                   ? "busid"
               : kind == HK_NODE_CPU ? "numaid"
                                     : "dev");
    return UINT32_MAX;
  }
  if (b->t->nnodes >= HK_TOPO_NODES) {
    if (b->rc == HK_OK) hk_xml_say(xml, true, "more than %d devices, which is too many for one machine", HK_TOPO_NODES);
    b->rc = HK_ERR_ARGUMENT;
    return UINT32_MAX;
  }
  hk_status rc = hk_topo_add(b->t, kind, id, &index);
  if (rc != HK_OK) b->rc = rc, index = UINT32_MAX;
  return index;
}

void hk_xml_join(reader *b, uint32_t x, uint32_t y, hk_edge_kind kind, unsigned count, float gbps, float us) {
  if (b->rc == HK_OK) b->rc = hk_topo_link(b->t, x, y, kind, count, gbps, us);
}

void hk_xml_own_figures(const hk_xml_node *xml, float *gbps, float *us) {
  hk_xml_float(xml, "hk_bw", false, 1e-6f, 1e6f, gbps);
  hk_xml_float(xml, "hk_us", false, 0, 1e6f, us);
}

/* Links the element's node to the one above it, with these figures if the element has none of its own. */
static void xml_read_join(reader *b, const hk_xml_node *xml, uint32_t above, uint32_t node, hk_edge_kind kind,
                          float gbps, float us) {
  hk_xml_own_figures(xml, &gbps, &us);
  hk_xml_join(b, above, node, kind, 1, gbps, us);
}

/* ---- Hosts ----
 * For a rack NCCL writes the files of its hosts into one file: NUMA ids, bus ids and device numbers are unique in a
 * host only. The numbers of the second and later hosts are then moved up. */

static void xml_read_largest(const hk_xml_node *n, hk_xml_host *most) {
  bool gpu = !strcmp(n->name, "gpu"), net = !strcmp(n->name, "net");
  long dev = gpu || net ? strtol(hk_xml_text(n, "dev"), NULL, 0) : -1;
  if (gpu && dev >= most->dev && dev < 65536) most->dev = (int)dev + 1;
  if (net && dev >= most->net && dev < 65536) most->net = (int)dev + 1;
  for (const hk_xml_node *c = n->first; c; c = c->next) xml_read_largest(c, most);
}

static int xml_read_host_of(reader *b, const hk_xml_node *cpu) {
  const char *hash = hk_xml_text(cpu, "host_hash");
  for (int i = 0; i < b->nhosts; i++)
    if (!strcmp(b->hosts[i], hash)) return i;
  if (b->nhosts == HK_XML_CPUS) return 0;
  b->hosts[b->nhosts] = hash;
  return b->nhosts++;
}

static void xml_read_find_hosts(reader *b, const hk_xml_node *system) {
  int owner[HK_XML_CPUS];
  for (int i = 0; i < HK_XML_CPUS; i++) owner[i] = -1;
  for (const hk_xml_node *x = hk_xml_child(system, "cpu"); x; x = hk_xml_next(x)) {
    long numa = strtol(hk_xml_text(x, "numaid"), NULL, 0);
    if (numa >= b->no_numa && numa < HK_XML_CPUS - 1) b->no_numa = (int)numa + 1;
  }
  for (const hk_xml_node *x = hk_xml_child(system, "cpu"); x; x = hk_xml_next(x)) {
    long numa = strtol(hk_xml_text(x, "numaid"), NULL, 0);
    int host = xml_read_host_of(b, x);
    if (numa < 0) numa = b->no_numa;
    if (numa >= HK_XML_CPUS) continue;
    if (owner[numa] >= 0 && owner[numa] != host) b->several = true;
    owner[numa] = host;
    if (numa >= b->step.numa) b->step.numa = (int)numa + 1;
  }
  if (b->several) xml_read_largest(system, &b->step);
}

static int xml_read_host_at(const reader *b, int numa) {
  for (uint32_t i = 0; i < b->ncpus; i++)
    if (b->t->nodes[b->cpu[i].node].numa == numa) return b->cpu[i].host;
  return -1;
}

/* Sets the offsets before the elements of one of the host's CPUs are read. */
static void xml_read_enter_host(reader *b, int host) {
  if (b->several)
    b->add = (hk_xml_host){host * b->step.numa, host * b->step.dev, host * b->step.net, (uint64_t)host << 36};
}

/* --- CPUs --- */

/* "000000ff,ffff0000": 32 bits a word, the highest first. */
static void xml_read_affinity(const hk_xml_node *xml, hk_cpu_info *cpu) {
  const char *text = hk_xml_get(xml, "affinity");
  uint64_t digit_at = 0;
  if (!text) return;
  for (size_t i = strlen(text), in_word = 0; i-- > 0;) {
    char c = (char)tolower((unsigned char)text[i]);
    if (c == ',') { /* the words before it begin at a multiple of 8 digits */
      digit_at = (digit_at + 7) / 8 * 8;
      in_word = 0;
      continue;
    }
    if (!isxdigit((unsigned char)c) || ++in_word > 8) {
      hk_xml_say(xml, true, "affinity=\"%.60s\" is not a mask: 8 hexadecimal digits a word, commas between them", text);
      return;
    }
    uint64_t v = (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    uint64_t bit = digit_at++ * 4;
    if (v && bit / 64 >= HK_CPU_MASK_WORDS) {
      hk_xml_say(xml, false, "affinity names CPUs beyond number %d, which are ignored", HK_CPU_MASK_WORDS * 64 - 1);
      return;
    }
    if (!v) continue;
    cpu->mask[bit / 64] |= v << bit % 64;
    cpu->cores += __builtin_popcountll(v);
  }
}

static uint32_t xml_read_cpu(reader *b, const hk_xml_node *xml) {
  long numa, v;
  if (!hk_xml_int(xml, "numaid", true, -1, HK_XML_CPUS - 1, &numa)) return UINT32_MAX;
  const int host = xml_read_host_of(b, xml);
  xml_read_enter_host(b, host);
  numa = (numa < 0 ? b->no_numa : numa) + b->add.numa;
  uint32_t index = numa < INT16_MAX ? xml_read_add(b, xml, HK_NODE_CPU, (uint64_t)numa) : UINT32_MAX;
  if (index == UINT32_MAX) return index;
  if (b->ncpus == HK_XML_CPUS) {
    hk_xml_say(xml, true, "more than %d NUMA nodes, which is too many for one machine", HK_XML_CPUS);
    return UINT32_MAX;
  }
  b->cpu[b->ncpus++] = (hk_xml_cpu){xml, index, host};
  hk_node *n = &b->t->nodes[index];
  n->numa = (int16_t)numa;
  xml_read_take_text(n->cpu.arch, sizeof n->cpu.arch, hk_xml_text(xml, "arch"));
  xml_read_take_text(n->cpu.vendor, sizeof n->cpu.vendor, hk_xml_text(xml, "vendor"));
  if (hk_xml_int(xml, "familyid", false, -1, 65535, &v)) n->cpu.family = (int)v;
  if (!strcmp(n->cpu.vendor, HK_CPU_AMD) && n->cpu.family >= 0x80) n->cpu.family = 15 + (n->cpu.family >> 4);
  if (hk_xml_int(xml, "modelid", false, -1, 65535, &v)) n->cpu.model = (int)v;
  xml_read_affinity(xml, &n->cpu);
  if (hk_xml_int(xml, "hk_cores", false, 0, 65536, &v)) n->cpu.cores = (int)v;
  hk_xml_float(xml, "hk_memory", false, 0, 1e6f, &n->cpu.memory_gbps);
  return index;
}

/* A link that is named, for machines whose CPUs are not linked in the usual way. */
static void xml_read_cpu_link(reader *b, const hk_xml_node *xml, uint32_t cpu) {
  float gbps, us = hk_link_us(HK_EDGE_SYS);
  long v;
  if (!hk_xml_int(xml, "numaid", true, 0, HK_XML_CPUS - 1, &v)) return;
  if (!hk_xml_float(xml, "hk_bw", true, 1e-6f, 1e6f, &gbps)) return;
  hk_xml_float(xml, "hk_us", false, 0, 1e6f, &us);
  uint32_t other = hk_topo_find(b->t, HK_NODE_CPU, (uint64_t)v);
  if (other == UINT32_MAX || other == cpu)
    hk_xml_say(xml, true, "<hk_link> to numaid %ld, which is no other CPU of this file", v);
  else
    hk_xml_join(b, cpu, other, HK_EDGE_SYS, 1, gbps, us);
}

/* Fills in a memory rate that the file does not give: the part's, divided among the NUMA nodes of two sockets. */
static void xml_read_know_cpu(const reader *b, const hk_xml_cpu *c) {
  hk_cpu_info *cpu = &b->t->nodes[c->node].cpu;
  const hk_cpu_part *part = hk_cpu_part_like(cpu);
  uint32_t nodes = 0;
  if (hk_xml_get(c->xml, "hk_memory") || !part) return;
  for (uint32_t i = 0; i < b->ncpus; i++) nodes += b->cpu[i].host == c->host;
  cpu->memory_gbps = part->memory_gbps / (float)(nodes > 1 ? nodes / 2 : 1);
}

/* Two CPUs of one host. */
static void xml_read_join_pair(reader *b, const hk_xml_cpu *x, const hk_xml_cpu *y, bool link) {
  const hk_node *from = &b->t->nodes[x->node], *to = &b->t->nodes[y->node];
  bool common = false;
  for (int i = 0; i < HK_CPU_MASK_WORDS; i++) common |= (from->cpu.mask[i] & to->cpu.mask[i]) != 0;
  if (common) hk_xml_say(y->xml, false, "CPUs %d and %d list the same cores, which count twice", from->numa, to->numa);
  if (link) hk_xml_join(b, x->node, y->node, HK_EDGE_SYS, 1, hk_cpu_link_gbps(&from->cpu), hk_link_us(HK_EDGE_SYS));
}

/* Links between CPUs: the named ones, or links among all of a host. */
static void xml_read_join_cpus(reader *b, const hk_xml_node *system) {
  const bool named = !strcmp(hk_xml_text(system, "hk_cpu_links"), "1");
  for (uint32_t i = 0; i < b->ncpus; i++) {
    const hk_xml_cpu *cpu = &b->cpu[i];
    xml_read_know_cpu(b, cpu);
    for (uint32_t k = 0; k < i; k++)
      if (b->cpu[k].host == cpu->host) xml_read_join_pair(b, &b->cpu[k], cpu, !named);
    for (const hk_xml_node *c = named ? hk_xml_child(cpu->xml, "hk_link") : NULL; c; c = hk_xml_next(c))
      xml_read_cpu_link(b, c, cpu->node);
  }
}

/* --- PCI devices --- */

/* "16 GT/s", "16.0 GT/s PCIe"; "" and "Unknown" are sysfs' texts for an unknown speed. */
static float xml_read_speed_of(const hk_xml_node *xml, const char *name) {
  const char *text = hk_xml_text(xml, name);
  char *end;
  if (!*text || !strncmp(text, "Unknown", 7) || !strncmp(text, "unknown", 7)) return 0;
  float v = hk_xml_strtof(text, &end);
  if (end != text && (!*end || !strncmp(end, " GT/s", 5)) && v > 0 && v <= 1024) return v;
  hk_xml_say(xml, true, "%s=\"%.40s\" is not a link speed such as \"16 GT/s\"", name, text);
  return 0;
}

static int xml_read_width_of(const hk_xml_node *xml, const char *name) {
  long v = 0;
  if (*hk_xml_text(xml, name)) hk_xml_int(xml, name, false, 0, 64, &v);
  return v == 63 ? 0 : (int)v; /* 63: unknown in sysfs */
}

static void xml_read_pci_info(const hk_xml_node *xml, hk_pci_info *p) {
  uint64_t v;
  if (hk_xml_hex(xml, "class", 0xffffff, &v)) p->class_code = (uint32_t)v;
  if (hk_xml_hex(xml, "vendor", 0xffff, &v)) p->vendor = (uint16_t)v;
  if (hk_xml_hex(xml, "device", 0xffff, &v)) p->device = (uint16_t)v;
  if (hk_xml_hex(xml, "subsystem_vendor", 0xffff, &v)) p->subvendor = (uint16_t)v;
  if (hk_xml_hex(xml, "subsystem_device", 0xffff, &v)) p->subdevice = (uint16_t)v;
  p->gts = xml_read_speed_of(xml, "link_speed");
  p->width = xml_read_width_of(xml, "link_width");
  p->max_gts = hk_xml_get(xml, "hk_max_speed") ? xml_read_speed_of(xml, "hk_max_speed") : p->gts;
  p->max_width = hk_xml_get(xml, "hk_max_width") ? xml_read_width_of(xml, "hk_max_width") : p->width;
}

static hk_node_kind xml_read_kind_of(const hk_xml_node *xml, uint32_t class_code) {
  if (hk_xml_child(xml, "gpu")) return HK_NODE_GPU;
  if (hk_xml_child(xml, "nic")) return HK_NODE_NIC;
  if (class_code >> 8 == 0x1200) return HK_NODE_GPU; /* AMD's accelerators */
  return class_code >> 16 == 0x03 ? HK_NODE_GPU : class_code >> 16 == 0x02 ? HK_NODE_NIC : HK_NODE_PCI;
}

enum { OTHER_GFX = 942 }; /* used for an unknown number */

/* RCCL's gcn: "942", "gfx942:sramecc+:xnack-", "gfx90a" (as a number 910). Its sm counts compute units. */
static int xml_read_gfx_of(const hk_xml_node *xml) {
  const char *text = hk_xml_text(xml, "gcn");
  char *end;
  if (!*text) return 0;
  if (!strncmp(text, "gfx", 3)) text += 3;
  long v = strtol(text, &end, 10);
  if (v == 90 && *end == 'a') v = 910, end++;
  if (v >= 900 && v < 2000 && (!*end || *end == ':')) return (int)v;
  if (v <= 0) {
    hk_xml_say(xml, true, "gcn=\"%.40s\" is not one of AMD's GPUs, such as gfx942", hk_xml_text(xml, "gcn"));
    return 0;
  }
  hk_xml_say(xml, false, "gcn=\"%.40s\" is no GPU of AMD that is known, such as gfx942: it counts as that one",
             hk_xml_text(xml, "gcn"));
  return OTHER_GFX;
}

/* Fills in values that follow from the PCI device and sm, if the file does not give them. */
static void xml_read_know_gpu(hk_node *n, bool nameless) {
  const hk_gpu_part *part = hk_gpu_part_like(n, &n->gpu.memory_gbps);
  if (!part) return;
  if (!n->gpu.sm) n->gpu.sm = part->sm;
  if (nameless && n->pci.device) snprintf(n->name, sizeof n->name, "%s", part->name);
}

static void xml_read_gpu(reader *b, const hk_xml_node *pci, uint32_t index, uint32_t cpu) {
  const hk_xml_node *xml = hk_xml_child(pci, "gpu");
  hk_gpu_info *g = &b->t->nodes[index].gpu;
  long v;
  *g = (hk_gpu_info){.dev = -1, .gdr = true};
  if (!xml) { /* a file for NCCL_TOPO_FILE, which leaves this to detection */
    hk_xml_say(pci, false, "a GPU without <gpu>: its number, sm and NVLinks are left to detection");
    xml_read_know_gpu(&b->t->nodes[index], true);
    return;
  }
  int others = 0; /* slices of a GPU, as NCCL writes them since 2.29 */
  for (const hk_xml_node *c = hk_xml_next(xml); c; c = hk_xml_next(c)) others++;
  if (others)
    hk_xml_say(xml, false, "%d more <gpu> in this <pci> (slices of the GPU) are ignored: the first one counts", others);
  if (hk_xml_int(xml, "dev", true, -1, 65535, &v)) g->dev = (int)v + (v < 0 ? 0 : b->add.dev);
  if (hk_xml_int(xml, "sm", false, 0, 9999, &v)) g->sm = (int)v;
  if (b->t->nodes[index].pci.vendor == HK_PCI_AMD || hk_xml_get(xml, "gcn")) g->sm = xml_read_gfx_of(xml);
  g->gdr = hk_xml_int(xml, "gdr", false, 0, 1, &v) && v;
  xml_read_take_text(b->t->nodes[index].name, HK_NODE_NAME, hk_xml_text(xml, "hk_name"));
  xml_read_know_gpu(&b->t->nodes[index], !hk_xml_get(xml, "hk_name"));
  hk_xml_float(xml, "hk_memory", false, 0, 1e6f, &g->memory_gbps);
  b->mcast_given[index] = hk_xml_int(xml, "hk_mcast", false, 0, 1, &v);
  if (b->mcast_given[index]) g->mcast = v;
  for (uint32_t i = 0; i < b->t->nnodes && g->dev >= 0; i++)
    if (i != index && b->t->nodes[i].kind == HK_NODE_GPU && b->t->nodes[i].gpu.dev == g->dev)
      hk_xml_say(xml, true, "a second GPU with dev=\"%d\"; each needs its own", g->dev);
  for (const hk_xml_node *c = xml->first; c; c = c->next)
    if (!strcmp(c->name, "nvlink") || !strcmp(c->name, "xgmi") || !strcmp(c->name, "c2c"))
      hk_xml_take_link(b, c, index, cpu);
}

static void xml_read_net(reader *b, const hk_xml_node *xml, uint32_t nic) {
  long v;
  uint64_t guid;
  if (hk_xml_get(xml, "net") && hk_xml_int(xml, "net", false, 0, 1, &v) && !v) return; /* of another plugin's kind */
  if (!hk_xml_int(xml, "dev", true, 0, 65535, &v)) return;
  v += b->add.net;
  uint32_t index = xml_read_add(b, xml, HK_NODE_NET, (uint64_t)v);
  if (index == UINT32_MAX) return;
  hk_node *n = &b->t->nodes[index];
  n->numa = b->t->nodes[nic].numa;
  xml_read_take_text(n->name, sizeof n->name, hk_xml_text(xml, "name"));
  n->net = (hk_net_info){.dev = (int)v, .rail = (int)v - b->add.net};
  n->net.ethernet = b->t->nodes[nic].pci.class_code >> 8 == 0x0200;
  hk_xml_float(xml, "speed", false, 0, 1e9f, &n->net.mbps);
  if (!(n->net.mbps > 0)) {
    hk_xml_say(xml, false, "<net> without a speed counts as 10000 Mb/s, as in NCCL");
    n->net.mbps = 10000;
  }
  if (hk_xml_int(xml, "port", false, 0, 65535, &v)) n->net.port = (int)v;
  hk_xml_float(xml, "latency", false, 0, 1e6f, &n->net.latency_us);
  if (hk_xml_hex(xml, "guid", UINT64_MAX, &guid)) n->net.guid = guid;
  n->net.gdr = hk_xml_int(xml, "gdr", false, 0, 1, &v) && v;
  if (hk_xml_int(xml, "rail", false, -1, 65535, &v) && v >= 0) n->net.rail = (int)v;
  if (hk_xml_int(xml, "hk_rail", false, -1, 65535, &v)) n->net.rail = (int)v;
  if (hk_xml_int(xml, "hk_ethernet", false, 0, 1, &v)) n->net.ethernet = v;
  xml_read_join(b, xml, nic, index, HK_EDGE_PORT, hk_port_gbps(n->net.mbps), hk_link_us(HK_EDGE_PORT));
}

static void xml_read_nic(reader *b, const hk_xml_node *xml, uint32_t nic) {
  const char *name = hk_xml_get(xml, "hk_name");
  const hk_xml_node *first = hk_xml_child(xml, "net");
  if (!name) name = first ? hk_xml_text(first, "name") : "";
  xml_read_take_text(b->t->nodes[nic].name, HK_NODE_NAME, name);
  for (const hk_xml_node *c = hk_xml_child(xml, "net"); c; c = hk_xml_next(c)) xml_read_net(b, c, nic);
}

/* A NIC that is no PCI device is directly below its CPU. */
static void xml_read_virtual_nic(reader *b, const hk_xml_node *xml, uint32_t cpu) {
  uint64_t id = HK_NIC_VIRTUAL + (b->next_virtual++ << 12);
  if (hk_xml_get(xml, "hk_busid") && !hk_bus_id_parse(hk_xml_text(xml, "hk_busid"), &id))
    hk_xml_say(xml, true, "hk_busid=\"%.40s\" is not a PCI address", hk_xml_text(xml, "hk_busid"));
  uint32_t index = xml_read_add(b, xml, HK_NODE_NIC, id);
  if (index == UINT32_MAX) return;
  b->t->nodes[index].numa = b->t->nodes[cpu].numa;
  xml_read_join(b, xml, cpu, index, HK_EDGE_PCI, HK_NIC_VIRTUAL_GBPS, 0);
  xml_read_nic(b, xml, index);
}

static void xml_read_pci(reader *b, const hk_xml_node *xml, uint32_t cpu, uint32_t parent) {
  const char *bus = hk_xml_get(xml, "busid");
  hk_pci_info info = {0};
  uint64_t id;
  if (!bus || !hk_bus_id_parse(bus, &id)) {
    if (bus)
      hk_xml_say(xml, true, "busid=\"%.40s\" is not a PCI address such as 0000:1b:00.0", bus);
    else
      hk_xml_say(xml, true, "<pci> needs the attribute busid");
    return;
  }
  xml_read_pci_info(xml, &info);
  hk_node_kind kind = xml_read_kind_of(xml, info.class_code);
  uint32_t index = xml_read_add(b, xml, kind, id + b->add.bus);
  if (index == UINT32_MAX) return;
  b->t->nodes[index].numa = b->t->nodes[cpu].numa;
  b->t->nodes[index].pci = info;
  if ((!(info.gts > 0) || !info.width) && !hk_xml_get(xml, "hk_bw"))
    hk_xml_say(xml, false, "<pci> %s without %s counts as %s", bus,
               info.gts > 0 ? "link_width"
               : info.width ? "link_speed"
                            : "link_speed and link_width",
               info.gts > 0 ? "16 lanes"
               : info.width ? "8 GT/s"
                            : "8 GT/s with 16 lanes");
  xml_read_join(b, xml, parent, index, HK_EDGE_PCI, hk_xml_pci_gbps(&info), hk_link_us(HK_EDGE_PCI));
  if (kind == HK_NODE_GPU) xml_read_gpu(b, xml, index, cpu);
  if (kind == HK_NODE_NIC && !hk_xml_child(xml, "nic"))
    hk_xml_say(xml, false, "a NIC without <nic>: its ports are left to detection");
  for (const hk_xml_node *c = xml->first; c; c = c->next) {
    if (!strcmp(c->name, "nic") && kind == HK_NODE_NIC) xml_read_nic(b, c, index);
    if (strcmp(c->name, "pci")) continue;
    if (kind == HK_NODE_PCI)
      xml_read_pci(b, c, cpu, index);
    else
      hk_xml_say(c, true, "<pci> inside %s, which is no bridge", bus);
  }
}

/* The default if the file has no value, as in NCCL: 16 lanes of the third generation. */
float hk_xml_pci_gbps(const hk_pci_info *p) {
  return hk_pci_gbps(p->gts > 0 ? p->gts : 8, p->width > 0 ? p->width : 16);
}

float hk_xml_nvlink_gbps(int sm, unsigned count) {
  float each = hk_nvlink_gbps(sm);
  return (float)count * (each > 0 ? each : 20);
}

/* NVLS needs a switch and Hopper; a file may override this. */
static void xml_read_set_multicast(reader *b) {
  for (uint32_t i = 0; i < b->t->nedges; i++) {
    const hk_edge *e = &b->t->edges[i];
    hk_node *from = &b->t->nodes[e->from];
    if (from->kind == HK_NODE_GPU && b->t->nodes[e->to].kind == HK_NODE_NVS && !b->mcast_given[e->from])
      from->gpu.mcast = from->gpu.sm >= 90;
  }
}

/* Gives GPUs without a number the lowest free numbers, by bus id. */
static void xml_read_number_gpus(reader *b) {
  for (int dev = 0;; dev++) {
    hk_node *lowest = NULL;
    bool taken = false;
    for (uint32_t i = 0; i < b->t->nnodes; i++) {
      hk_node *n = &b->t->nodes[i];
      if (n->kind != HK_NODE_GPU) continue;
      taken |= n->gpu.dev == dev;
      if (n->gpu.dev < 0 && (!lowest || n->id < lowest->id)) lowest = n;
    }
    if (!lowest) return;
    if (!taken) lowest->gpu.dev = dev;
  }
}

/* Each port has its own GUID. Equal ones show that the file contains one host twice, to describe two hosts. */
static void xml_read_check_hosts(reader *b, const hk_xml_node *system) {
  for (uint32_t i = 0; i < b->t->nnodes && b->nhosts > 1; i++)
    for (uint32_t k = 0; k < i; k++) {
      const hk_node *x = &b->t->nodes[i], *y = &b->t->nodes[k];
      if (x->kind != HK_NODE_NET || y->kind != HK_NODE_NET || !x->net.guid || x->net.guid != y->net.guid) continue;
      if (xml_read_host_at(b, x->numa) == xml_read_host_at(b, y->numa)) continue;
      hk_xml_say(
          system, true,
          "the same host twice: %.30s and %.30s have one guid; hosts in one file share NVLinks, as in a rack; name "
          "hosts that share a network 'nodes=2 of FILE'",
          y->name, x->name);
      return;
    }
}

static void xml_read_system(reader *b, const hk_xml_node *system) {
  const hk_xml_node *first = hk_xml_child(system, "cpu");
  xml_read_find_hosts(b, system);
  for (const hk_xml_node *x = first; x; x = hk_xml_next(x)) {
    uint32_t cpu = xml_read_cpu(b, x);
    for (const hk_xml_node *c = cpu == UINT32_MAX ? NULL : x->first; c; c = c->next) {
      if (!strcmp(c->name, "pci")) xml_read_pci(b, c, cpu, cpu);
      if (!strcmp(c->name, "nic")) xml_read_virtual_nic(b, c, cpu);
    }
  }
  if (!first) hk_xml_say(system, true, "<system> without a <cpu>; every device belongs to one");
  xml_read_check_hosts(b, system);
  xml_read_join_cpus(b, system);
  hk_xml_join_links(b);
  xml_read_set_multicast(b);
  xml_read_number_gpus(b);
}

static bool xml_read_check_root(const hk_xml_node *root) {
  long version;
  if (!strcmp(root->name, "graphs")) {
    hk_xml_say(root, true, "this is a file of channels, for NCCL_GRAPH_FILE; a topology begins with <system>");
    return false;
  }
  if (strcmp(root->name, "system")) {
    hk_xml_say(root, true, "a topology begins with <system>, not <%.40s>", root->name);
    return false;
  }
  if (hk_xml_int(root, "version", true, 0, 1000000, &version) && version != 1 && version != 2)
    hk_xml_say(root, true, "version %ld of the topology XML; only NCCL's 1 and RCCL's 2 are known", version);
  return true;
}

hk_status hk_xml_build(hk_topo **out, const char *name, const hk_xml_tree *tree) {
  hk_xml_report *r = tree->report;
  reader b = {.r = r, .nvs = UINT32_MAX};
  hk_status rc;
  *out = NULL;
  if (tree->incomplete) return HK_FAIL(HK_ERR_SYSTEM, "no memory for XML");
  HK_TRY(hk_topo_new(&b.t, name), out);
  if (xml_read_check_root(tree->root)) {
    const char *own = hk_xml_get(tree->root, "name");
    if (own) xml_read_take_text(b.t->name, sizeof b.t->name, own);
    hk_xml_check_names(tree->root);
    xml_read_system(&b, tree->root);
  }
  HK_TRY(hk_xml_status(r), out);
  HK_TRY(b.rc, out);
  HK_TRY(hk_topo_finish(b.t), out);
  HK_TRY(hk_topo_remark_guesses(b.t, true), out);
  *out = b.t;
  b.t = NULL;
out:
  /* An error of the whole file is reported at its beginning. */
  if (rc != HK_OK && !r->errors) hk_xml_say(tree->root, true, "%s", hk_last_error());
  hk_topo_free(b.t);
  free(b.rows);
  return rc;
}
