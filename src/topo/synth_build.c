/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the topology of a machine string from its specification. Parts are divided evenly and in order: GPU 0 belongs
 * to the first CPU's first switch, the last GPU to the last CPU's last switch. */
#include <stdio.h>
#include <string.h>
#include "synth_spec.h"

typedef struct builder {
  const hk_synth_spec *s;
  hk_topo *t;
  const hk_cpu_part *cpu_part;
  int ncpus, per_tray; /* NUMA nodes */
  int gen;
  uint32_t cpu[HK_SYNTH_GPUS], sw[HK_SYNTH_GPUS], gpu[HK_SYNTH_GPUS];
  uint16_t next_bus[HK_SYNTH_GPUS]; /* next bus of each CPU; each CPU has its own PCI domain */
} builder;

/* The wires of NVIDIA's DGX-1 with V100: two rings of four, joined crosswise; 6 links at every GPU. */
static const hk_synth_wire cube[] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                                     {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                                     {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};

static const hk_cpu_part *synth_build_usual_cpu(int gen, bool c2c) {
  return hk_cpu_part_find(c2c ? "grace" : gen >= 5 ? "sapphirerapids" : gen == 4 ? "rome" : "cascadelake");
}

static int synth_build_count_cpus(const hk_synth_spec *s) {
  int sockets = s->sockets;
  if (!sockets) {
    sockets = 2;
    if (s->gpu && s->gpu->c2c_gbps > 0) sockets = (int)((float)s->ngpus * s->gpu->c2c_gbps / 450 + 0.99f);
  }
  return sockets * s->numa;
}

static hk_status synth_build_add_cpus(builder *b) {
  const hk_cpu_part *part = b->cpu_part;
  int cores = b->s->cores ? b->s->cores : part->cores / b->s->numa;
  if (cores < 1) cores = 1;
  for (int i = 0; i < b->ncpus; i++) {
    HK_OR_RETURN(hk_topo_add(b->t, HK_NODE_CPU, (uint64_t)i, &b->cpu[i]));
    hk_node *n = &b->t->nodes[b->cpu[i]];
    n->numa = (int16_t)i;
    snprintf(n->cpu.arch, sizeof n->cpu.arch, "%s", part->arch);
    snprintf(n->cpu.vendor, sizeof n->cpu.vendor, "%s", part->vendor);
    n->cpu.family = part->family;
    n->cpu.model = part->model;
    n->cpu.cores = cores;
    n->cpu.memory_gbps = part->memory_gbps / (float)b->s->numa;
    for (int c = i % b->per_tray * cores, k = 0; k < cores && c + k < 64 * HK_CPU_MASK_WORDS; k++)
      n->cpu.mask[(c + k) / 64] |= 1ull << ((c + k) % 64);
    /* All CPUs of one tray are linked. */
    for (int j = i / b->per_tray * b->per_tray; j < i; j++)
      HK_OR_RETURN(hk_topo_link_usual(b->t, b->cpu[j], b->cpu[i], HK_EDGE_SYS, 1, hk_cpu_link_gbps(&n->cpu)));
  }
  return HK_OK;
}

/* A PCI function on the next bus of a CPU's domain, linked to `parent`. */
static hk_status synth_build_add_pci(builder *b, hk_node_kind kind, int cpu, uint32_t parent, int gen, int width,
                                     uint32_t *out) {
  if (b->next_bus[cpu] >= 255)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: more than 255 PCI devices at one CPU; give it more CPUs (cpu=)",
                   b->t->name);
  uint64_t id = (uint64_t)cpu << 20 | (uint64_t)++b->next_bus[cpu] << 12;
  HK_OR_RETURN(hk_topo_add(b->t, kind, id, out));
  hk_node *n = &b->t->nodes[*out];
  n->numa = (int16_t)cpu;
  n->pci.class_code = kind == HK_NODE_PCI   ? 0x060400
                      : kind == HK_NODE_GPU ? 0x030200
                      : b->s->ethernet      ? 0x020000
                                            : 0x020700;
  n->pci.gts = n->pci.max_gts = hk_pci_gts(gen);
  n->pci.width = n->pci.max_width = width;
  return hk_topo_link_usual(b->t, parent, *out, HK_EDGE_PCI, 1, hk_pci_gbps(n->pci.gts, width));
}

/* Fills in all fields of a GPU that depend only on the words. */
static void synth_build_describe_gpu(const builder *b, hk_node *n) {
  const hk_gpu_part *part = b->s->gpu;
  n->gpu.sm = b->s->sm ? b->s->sm : part->sm;
  n->gpu.memory_gbps = b->s->memory ? (float)b->s->memory : part->memory_gbps;
  n->gpu.mcast = b->s->join == HK_JOIN_NVSWITCH && n->gpu.sm >= 90;
  n->pci.vendor = n->gpu.sm >= 900 ? 0x1002 : 0x10de;
  snprintf(n->name, sizeof n->name, "%s", part->name);
}

static hk_status synth_build_add_gpu(builder *b, int i, int cpu, uint32_t parent) {
  const hk_gpu_part *part = b->s->gpu;
  int gen = part->pci_gen < b->gen ? part->pci_gen : b->gen;
  HK_OR_RETURN(synth_build_add_pci(b, HK_NODE_GPU, cpu, parent, gen, part->pci_width, &b->gpu[i]));
  hk_node *n = &b->t->nodes[b->gpu[i]];
  n->gpu.dev = i;
  n->gpu.gdr = b->s->gdr;
  synth_build_describe_gpu(b, n);
  if (part->c2c_gbps > 0)
    HK_OR_RETURN(hk_topo_link_usual(b->t, b->cpu[cpu], b->gpu[i], HK_EDGE_C2C, 1, part->c2c_gbps));
  return HK_OK;
}

/* Adds a port to an existing NIC. */
static hk_status synth_build_add_port(builder *b, int i, int cpu, uint32_t nic) {
  uint32_t net;
  float mbps = b->s->gbit * 1000;
  int rails = b->s->nnics / b->s->trays > 0 ? b->s->nnics / b->s->trays : 1;
  snprintf(b->t->nodes[nic].name, HK_NODE_NAME, "mlx5_%d", i);
  HK_OR_RETURN(hk_topo_add(b->t, HK_NODE_NET, (uint64_t)i, &net));
  hk_node *n = &b->t->nodes[net];
  n->numa = (int16_t)cpu;
  snprintf(n->name, sizeof n->name, "mlx5_%d", i);
  n->net =
      (hk_net_info){.dev = i, .port = 1, .mbps = mbps, .guid = 0x486f636b65740000u + (uint64_t)i, .rail = i % rails};
  n->net.gdr = b->s->gdr;
  n->net.ethernet = b->s->ethernet;
  return hk_topo_link_usual(b->t, nic, net, HK_EDGE_PORT, 1, hk_port_gbps(mbps));
}

static hk_status synth_build_add_nic(builder *b, int i, int cpu, uint32_t parent) {
  uint32_t nic;
  HK_OR_RETURN(synth_build_add_pci(b, HK_NODE_NIC, cpu, parent, b->gen, 16, &nic));
  return synth_build_add_port(b, i, cpu, nic);
}

/* The parent, 0 to n - 1, of item i of `of`, if each parent gets a run of items. */
static int synth_build_share(int i, int of, int n) { return (int)((long)i * n / of); }

/* Switch by switch, or CPU by CPU: first the GPUs, then the NICs, so that bus ids rise with the numbers. */
static hk_status synth_build_add_devices(builder *b) {
  const hk_synth_spec *s = b->s;
  int parents = s->nswitch > 0 ? s->nswitch : b->ncpus;
  for (int p = 0, g = 0, n = 0; p < parents; p++) {
    int cpu = synth_build_share(p, parents, b->ncpus);
    uint32_t parent = b->cpu[cpu];
    if (s->nswitch > 0) {
      HK_OR_RETURN(synth_build_add_pci(b, HK_NODE_PCI, cpu, parent, b->gen, 16, &b->sw[p]));
      parent = b->sw[p];
    }
    for (; g < s->ngpus && synth_build_share(g, s->ngpus, parents) == p; g++)
      HK_OR_RETURN(synth_build_add_gpu(b, g, cpu, parent));
    for (; n < s->nnics && synth_build_share(n, s->nnics, parents) == p; n++)
      HK_OR_RETURN(synth_build_add_nic(b, n, cpu, parent));
  }
  return HK_OK;
}

static hk_status synth_build_wire(builder *b, uint32_t x, uint32_t y, int count) {
  float each = b->s->link_gbps > 0 ? b->s->link_gbps : hk_nvlink_gbps(b->s->sm ? b->s->sm : b->s->gpu->sm);
  if (!(each > 0)) each = 20; /* as in files */
  return hk_topo_link_usual(b->t, x, y, HK_EDGE_NVLINK, (unsigned)count, (float)count * each);
}

static hk_status synth_build_add_wires(builder *b, const hk_synth_wire *w, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (w[i].a >= b->s->ngpus || w[i].b >= b->s->ngpus)
      return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: link %d-%d, but the GPUs are 0 to %d", b->t->name, w[i].a, w[i].b,
                     b->s->ngpus - 1);
    HK_OR_RETURN(synth_build_wire(b, b->gpu[w[i].a], b->gpu[w[i].b], w[i].count));
  }
  return HK_OK;
}

static hk_status synth_build_add_nvswitch(builder *b, int links) {
  uint32_t nvs;
  HK_OR_RETURN(hk_topo_add(b->t, HK_NODE_NVS, 0, &nvs));
  if (b->s->chips) snprintf(b->t->nodes[nvs].name, HK_NODE_NAME, "%d NVSwitches", b->s->chips);
  for (int g = 0; g < b->s->ngpus; g++) HK_OR_RETURN(synth_build_wire(b, b->gpu[g], nvs, links));
  return HK_OK;
}

static hk_status synth_build_add_mesh(builder *b, int links) {
  int n = b->s->ngpus;
  if (n > 1 && links < n - 1)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "machine %s: a mesh of %d GPUs needs %d links at each; a %s has %d (nvlink= changes it)", b->t->name,
                   n, n - 1, b->s->gpu->name, links);
  /* AMD's boards are wired for all their GPUs: fewer in a machine get no more links to each other. */
  const int each = n > 1 && (b->s->gpu->kind != HK_GPU_AMD || b->s->nvlink >= 0) ? links / (n - 1) : 1;
  for (int i = 0; i < n; i++)
    for (int k = i + 1; k < n; k++) HK_OR_RETURN(synth_build_wire(b, b->gpu[i], b->gpu[k], each));
  return HK_OK;
}

static int synth_build_links_of(const hk_synth_spec *s) {
  return !s->gpu ? 0 : s->nvlink >= 0 ? s->nvlink : s->gpu->links;
}

static hk_status synth_build_join_gpus(builder *b) {
  const hk_synth_spec *s = b->s;
  int links = synth_build_links_of(s);
  if (s->join == HK_JOIN_PCIE || !s->ngpus) return HK_OK;
  if (links < 1)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: no NVLinks at %s; say :pcie, or how many with nvlink=", b->t->name,
                   s->gpu->name);
  switch (s->join) {
    case HK_JOIN_NVSWITCH: return synth_build_add_nvswitch(b, links);
    case HK_JOIN_MESH: return synth_build_add_mesh(b, links);
    case HK_JOIN_WIRES: return synth_build_add_wires(b, s->wires, s->nwires);
    case HK_JOIN_CUBE:
      if (s->ngpus == 8) return synth_build_add_wires(b, cube, HK_ARRAY_LENGTH(cube));
      return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: a hybrid cube mesh has 8 GPUs, not %d", b->t->name, s->ngpus);
    case HK_JOIN_PAIRS:
      for (int i = 0; i + 1 < s->ngpus; i += 2) HK_OR_RETURN(synth_build_wire(b, b->gpu[i], b->gpu[i + 1], links));
  }
  return HK_OK;
}

/* --- A file, with parts in words --- */

/* Copies the file's machine without links between GPUs. PCI links without a speed get the usual speed for the GPU. */
static hk_status synth_build_copy_file(builder *b, const hk_topo *file) {
  uint32_t at, gpus = 0;
  for (uint32_t i = 0; i < file->nnodes; i++) { /* NVSwitches are in the middle, so later nodes move up */
    const hk_node *n = &file->nodes[i];
    if (n->kind == HK_NODE_NVS) continue;
    HK_OR_RETURN(hk_topo_add(b->t, (hk_node_kind)n->kind, n->id, &at));
    hk_node *copy = &b->t->nodes[at];
    *copy = *n;
    copy->first_edge = copy->nedges = 0;
    if (n->kind != HK_NODE_GPU) continue;
    if (n->gpu.dev < 0 || n->gpu.dev >= b->s->ngpus || gpus++ >= (uint32_t)b->s->ngpus) break;
    b->gpu[n->gpu.dev] = at;
    synth_build_describe_gpu(b, copy);
  }
  if (gpus != (uint32_t)b->s->ngpus || hk_topo_count(file, HK_NODE_GPU) != gpus)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s has %u GPUs, but %d were named for it", file->name,
                   hk_topo_count(file, HK_NODE_GPU), b->s->ngpus);
  uint32_t gone = hk_topo_count(file, HK_NODE_NVS), nvs = file->first_of[HK_NODE_NVS];
  for (uint32_t i = 0; i < file->nedges; i++) {
    const hk_edge *e = &file->edges[i];
    const hk_pci_info *p = &file->nodes[e->to].pci;
    if (e->from > e->to || e->kind == HK_EDGE_NVLINK) continue;
    bool guessed = e->kind == HK_EDGE_PCI && file->nodes[e->to].id < HK_NIC_VIRTUAL && !(p->gts > 0);
    HK_OR_RETURN(hk_topo_link(b->t, e->from - (e->from > nvs ? gone : 0), e->to - (e->to > nvs ? gone : 0),
                              (hk_edge_kind)e->kind, e->count, guessed ? hk_pci_gbps(hk_pci_gts(b->gen), 16) : e->gbps,
                              e->us));
  }
  return HK_OK;
}

/* NICs without a port, as in files that leave ports to detection, get one. */
static hk_status synth_build_complete_nics(builder *b, const hk_topo *file) {
  uint32_t gone = hk_topo_count(file, HK_NODE_NVS), first = file->first_of[HK_NODE_NIC];
  if (hk_topo_count(file, HK_NODE_NET) || !b->s->nnics) return HK_OK;
  if (hk_topo_count(file, HK_NODE_NIC) != (uint32_t)b->s->nnics)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s has %u NICs, but %d were named for it (nic=)", file->name,
                   hk_topo_count(file, HK_NODE_NIC), b->s->nnics);
  for (int i = 0; i < b->s->nnics; i++)
    HK_OR_RETURN(synth_build_add_port(b, i, file->nodes[first + (uint32_t)i].numa, first + (uint32_t)i - gone));
  return HK_OK;
}

static void synth_build_choose_join(hk_synth_spec *s) {
  if (s->join == HK_JOIN_DEFAULT && s->gpu)
    s->join = !synth_build_links_of(s) || s->ngpus == 1 ? HK_JOIN_PCIE
              : s->gpu->kind == HK_GPU_AMD              ? HK_JOIN_MESH
                                                        : HK_JOIN_NVSWITCH;
}

/* Adds remarks about words that are valid but perhaps not meant. */
static hk_status synth_build_remark_words(builder *b) {
  const hk_synth_spec *s = b->s;
  int parents = s->nswitch > 0 ? s->nswitch : b->ncpus;
  if (parents && s->ngpus % parents && s->ngpus > 1)
    HK_OR_RETURN(hk_topo_remark(b->t, "%d GPUs are divided unevenly among %d %s", s->ngpus, parents,
                                s->nswitch > 0 ? "PCIe switches" : "CPUs"));
  if (s->ngpus == 1 && s->gpu->links)
    HK_OR_RETURN(hk_topo_remark(b->t, "one GPU alone: its %d NVLinks lead nowhere", s->gpu->links));
  return HK_OK;
}

static hk_status synth_build_finish(builder *b) {
  HK_OR_RETURN(synth_build_join_gpus(b));
  HK_OR_RETURN(hk_topo_finish(b->t));
  HK_OR_RETURN(hk_topo_remark_guesses(b->t, false));
  return synth_build_remark_words(b);
}

hk_status hk_synth_complete(hk_topo **out, const hk_topo *file, const hk_synth_spec *spec) {
  hk_synth_spec s = *spec;
  builder b = {.s = &s};
  hk_status rc;
  *out = NULL;
  if (!s.gpu || s.trays > 1)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: \"%s\" has no GPUs of one host, which is what a file can be given",
                   file->name, s.name);
  synth_build_choose_join(&s);
  b.gen = s.pci ? s.pci : s.gpu->pci_gen;
  HK_TRY(hk_topo_new(&b.t, file->name), out);
  HK_TRY(synth_build_copy_file(&b, file), out);
  HK_TRY(synth_build_complete_nics(&b, file), out);
  HK_TRY(synth_build_finish(&b), out);
  *out = b.t;
  b.t = NULL;
out:
  hk_topo_free(b.t);
  return rc;
}

hk_status hk_synth_build(hk_topo **out, const hk_synth_spec *spec) {
  hk_synth_spec s = *spec;
  builder b = {.s = &s};
  bool c2c = s.gpu && s.gpu->c2c_gbps > 0;
  hk_status rc;
  *out = NULL;
  synth_build_choose_join(&s);
  b.gen = s.pci ? s.pci : s.gpu ? s.gpu->pci_gen : 5;
  b.cpu_part = s.cpu ? s.cpu : synth_build_usual_cpu(b.gen, c2c);
  b.ncpus = synth_build_count_cpus(&s);
  if (b.ncpus > HK_SYNTH_GPUS)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: %d NUMA nodes; at most %d are possible", s.name, b.ncpus,
                   HK_SYNTH_GPUS);
  if (b.ncpus % s.trays)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: %d NUMA nodes cannot be dealt out to trays=%d evenly", s.name, b.ncpus,
                   s.trays);
  if (s.trays > 1 && s.join != HK_JOIN_NVSWITCH)
    return HK_FAIL(HK_ERR_ARGUMENT, "machine %s: trays=%d are joined by NVSwitches only; say :nvswitch, or nodes=%d of",
                   s.name, s.trays, s.trays);
  b.per_tray = b.ncpus / s.trays;
  HK_TRY(hk_topo_new(&b.t, s.name), out);
  HK_TRY(synth_build_add_cpus(&b), out);
  HK_TRY(synth_build_add_devices(&b), out);
  HK_TRY(synth_build_finish(&b), out);
  *out = b.t;
  b.t = NULL;
out:
  hk_topo_free(b.t);
  return rc;
}
