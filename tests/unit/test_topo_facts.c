/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Figures of parts and links at their limits, what a topology's hash depends on, how parallel links become one, and
 * what is remarked about machines that lack something. */
#include "../../src/topo/facts.h"
#include "../support/suite.h"
#include "../support/topo_machines.h"

/* ---- links ---- */

/* From each number on a link has this rate, up to the next row. */
static const struct {
  int sm;
  float gbps;
} nvlinks[] = {{-5, 0},  {60, 18},  {70, 21},  {80, 20},  {86, 12},     {90, 20.6f}, {100, 40.1f},
               {120, 0}, {900, 24}, {910, 36}, {940, 48}, {950, 57.6f}, {1000, 0},   {2000, 0}};

TEST(rates) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(nvlinks); i++) {
    ck_assert_float_eq(hk_nvlink_gbps(nvlinks[i].sm), nvlinks[i].gbps);
    if (i) ck_assert_float_eq(hk_nvlink_gbps(nvlinks[i].sm - 1), nvlinks[i - 1].gbps);
  }
  static const float gts[] = {0, 2.5f, 5, 8, 16, 32, 64, 0};
  for (int gen = -1; gen < 8; gen++) ck_assert_float_eq(hk_pci_gts(gen), gen < 0 ? 0 : gts[gen]);
  /* Of 8, 10 and 130 bits: 8 B of a lane, in B/s. */
  static const struct {
    float gts, part;
  } codes[] = {{2.5f, 0.8f},       {7.9f, 0.8f},          {8, 128.0f / 130},
               {32, 128.0f / 130}, {32.1f, 242.0f / 256}, {64, 242.0f / 256}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(codes); i++)
    ck_assert_float_eq_tol(hk_pci_gbps(codes[i].gts, 4), codes[i].gts * 4 / 8 * codes[i].part * 0.82f, 1e-5f);
  ck_assert(hk_pci_gbps(0, 4) == 0 && hk_pci_gbps(-1, 4) == 0 && hk_pci_gbps(8, 0) == 0 && hk_pci_gbps(8, -1) == 0);
  ck_assert_float_eq_tol(hk_port_gbps(400000), 48.75f, 1e-4f);
  ck_assert(hk_link_us(HK_EDGE_NVLINK) > HK_SWITCH_LINK_US);
  for (int kind = HK_EDGE_PCI; kind <= HK_EDGE_PORT; kind++) ck_assert(hk_link_us((hk_edge_kind)kind) > 0);
  ck_assert(hk_link_us((hk_edge_kind)(HK_EDGE_PORT + 1)) == 0);
}

TEST(hexadecimal_digits) {
  uint64_t id;
  char text[] = "0000:00:00.0";
  for (int c = 1; c < 128; c++) {
    const char *digits = "0123456789abcdefABCDEF", *at = strchr(digits, c);
    text[3] = (char)c;
    ck_assert_int_eq(hk_bus_id_parse(text, &id), at != NULL);
    if (at) ck_assert_uint_eq(id >> 20, (uint64_t)(at - digits) - (at - digits > 15 ? 6 : 0));
  }
}

/* ---- parts ---- */

TEST(gpus) {
  static const struct {
    uint16_t vendor, device;
    const char *name;
    int sm;
    const char *part; /* NULL: unknown */
    float memory;
  } rows[] = {{0x10de, 0x20b5, "h100", 90, "a100", 1935},
              {0x10de, 0x20b2, "", 0, "a100", 2039},
              {0x10de, 0x75a3, "", 0, NULL, 0},
              {0x1002, 0x75a3, "", 0, "mi355x", 8000},
              {0x1002, 0x20b2, "T4", 90, "t4", 320},
              {0, 0, "Tesla", 90, "h100", 3350},
              {0, 0, "", 942, "mi300x", 5300},
              {0, 0, "", 91, NULL, 0},
              {0, 0, "", 0, NULL, 0},
              {0x10de, 0x15f9, "", 0, "p100", 732}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    hk_node n = {.kind = HK_NODE_GPU, .pci = {.vendor = rows[i].vendor, .device = rows[i].device}};
    float memory = -1;
    n.gpu.sm = rows[i].sm;
    snprintf(n.name, sizeof n.name, "%s", rows[i].name);
    const hk_gpu_part *p = hk_gpu_part_like(&n, &memory);
    ck_assert_msg(p == (rows[i].part ? hk_gpu_part_find(rows[i].part) : NULL), "row %zu", i);
    ck_assert_float_eq(memory, p ? rows[i].memory : -1);
    ck_assert_ptr_eq(hk_gpu_part_like(&n, NULL), p);
  }
}

TEST(cpus) {
  static const struct {
    const char *arch, *vendor;
    int family, model;
    const char *part; /* NULL: unknown */
    float gbps;
  } rows[] = {{"x86_64", "GenuineIntel", 6, 78, NULL, 10},
              {"x86_64", "GenuineIntel", 6, 79, "broadwell", 6},
              {"x86_64", "GenuineIntel", 6, 84, "broadwell", 6},
              {"x86_64", "GenuineIntel", 6, 85, "cascadelake", 10},
              {"x86_64", "GenuineIntel", 6, 250, "emeraldrapids", 40},
              {"x86_64", "GenuineIntel", 7, 0, "emeraldrapids", 40},
              {"x86_64", "GenuineIntel", 5, 200, NULL, 10},
              {"x86_64", "AuthenticAMD", 24, 99, "rome", 16},
              {"x86_64", "AuthenticAMD", 25, 0, "rome", 16},
              {"x86_64", "AuthenticAMD", 25, 16, "milan", 24},
              {"x86_64", "AuthenticAMD", 26, 1, "genoa", 24},
              {"x86_64", "AuthenticAMD", 27, 0, "turin", 46},
              {"arm64", "ARM", 0, 0, "grace", 80},
              {"arm64", "GenuineIntel", 6, 85, NULL, 10},
              {"x86_64", "Other", 6, 85, NULL, 10},
              {"ppc64", "IBM", 0, 0, NULL, 32}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    hk_cpu_info cpu = {.family = rows[i].family, .model = rows[i].model};
    snprintf(cpu.arch, sizeof cpu.arch, "%s", rows[i].arch);
    snprintf(cpu.vendor, sizeof cpu.vendor, "%s", rows[i].vendor);
    const hk_cpu_part *p = hk_cpu_part_like(&cpu);
    ck_assert_msg(p == (rows[i].part ? hk_cpu_part_find(rows[i].part) : NULL), "row %zu: %s", i, p ? p->name : "-");
    ck_assert_float_eq(hk_cpu_link_gbps(&cpu), rows[i].gbps);
  }
}

/* ---- the hash ---- */

/* A machine with a node of each kind, in which one thing is changed. */
static hk_topo *changed(int what) {
  hk_topo *t = m_new("t");
  uint32_t cpu = m_add(t, HK_NODE_CPU, 0, 0), pci = m_add(t, HK_NODE_PCI, m_bus(1), 0), gpu = m_gpu(t, 2, m_bus(2), 0);
  uint32_t nvs = m_add(t, HK_NODE_NVS, 0, -1), nic = m_add(t, HK_NODE_NIC, m_bus(3), 0);
  uint32_t net = m_add(t, HK_NODE_NET, 0, 0);
  hk_cpu_info *c = &t->nodes[cpu].cpu;
  hk_gpu_info *g = &t->nodes[gpu].gpu;
  hk_net_info *n = &t->nodes[net].net;
  *c = (hk_cpu_info){.arch = "ab", .vendor = "cd", .family = 6, .model = 7, .memory_gbps = 64};
  *g = (hk_gpu_info){.dev = 2, .sm = 90, .memory_gbps = 512};
  *n = (hk_net_info){.dev = 3, .port = 1, .mbps = 1024, .latency_us = 0.5f, .rail = 4};
  switch (what) {
    case 1: t->nodes[pci].numa = 1; break;
    case 2: t->nodes[nic].id = m_bus(4); break;
    case 3: memcpy(c->arch, "ac", 2); break;
    case 4: memcpy(c->vendor, "ce", 2); break;
    case 5: memcpy(c->arch, "a", 2), memcpy(c->vendor, "bcd", 3); break;
    case 6: c->family = -6; break;
    case 7: c->model++; break;
    case 8: c->memory_gbps = 65; break;
    case 9: g->dev = 1; break;
    case 10: g->sm = 80; break;
    case 11: g->memory_gbps = 0; break;
    case 12: g->gdr = true; break;
    case 13: g->mcast = true; break;
    case 14: g->gdr = g->mcast = true; break;
    case 15: n->dev++; break;
    case 16: n->port++; break;
    case 17: n->rail = -1; break;
    case 18: n->mbps++; break;
    case 19: n->latency_us = 0; break;
    case 20: n->gdr = true; break;
    case 21: n->ethernet = true; break;
    case 22: n->gdr = n->ethernet = true; break;
    default: break;
  }
  ck_assert_int_eq(hk_topo_link(t, cpu, pci, HK_EDGE_PCI, 1, what == 23 ? 13 : 12, what == 24 ? 0 : 0.25f), HK_OK);
  ck_assert_int_eq(hk_topo_link(t, pci, gpu, HK_EDGE_PCI, 1, 12, 0.25f), HK_OK);
  ck_assert_int_eq(hk_topo_link(t, gpu, nvs, HK_EDGE_NVLINK, what == 25 ? 3 : 2, 40, 0.5f), HK_OK);
  ck_assert_int_eq(hk_topo_link(t, what == 26 ? cpu : pci, nic, HK_EDGE_PCI, 1, 12, 0.25f), HK_OK);
  ck_assert_int_eq(hk_topo_link(t, nic, net, what == 27 ? HK_EDGE_PCI : HK_EDGE_PORT, 1, 8, 0.125f), HK_OK);
  if (what == 28) ck_assert_int_eq(hk_topo_link(t, nvs, m_gpu(t, 3, m_bus(9), 0), HK_EDGE_NVLINK, 2, 40, 0.5f), HK_OK);
  /* These are not a part of it. */
  c->cores = what;
  c->mask[0] = (uint64_t)what;
  t->nodes[gpu].pci.device = (uint16_t)what;
  n->guid = (uint64_t)what;
  t->nodes[nic].name[0] = (char)('a' + what);
  return m_finish(t);
}

/* The number is the same on all machines: ranks compare it. */
TEST(hash) {
  uint64_t seen[29];
  for (int i = 0; i < 29; i++) {
    hk_topo *t = changed(i);
    seen[i] = t->hash;
    for (int k = 0; k < i; k++) ck_assert_msg(seen[k] != seen[i], "%d and %d", k, i);
    hk_topo_free(t);
  }
  ck_assert_msg(seen[0] == 0x8b8ac58cc385bfe7u, "%016llx", (unsigned long long)seen[0]);
}

/* Links between the same two nodes are one, in whatever order they came; those of another kind are not. */
TEST(parallel_links) {
  static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  static const float gbps[] = {1e8f, 3, 3.5f}, us[] = {0.5f, 0.25f, 0.75f};
  for (int i = 0; i < 6; i++) {
    hk_topo *t = m_new("t");
    uint32_t a = m_gpu(t, 0, m_bus(1), 0), b = m_gpu(t, 1, m_bus(2), 0);
    for (int k = 0; k < 3; k++) {
      int at = orders[i][k];
      ck_assert_int_eq(
          hk_topo_link(t, k % 2 ? b : a, k % 2 ? a : b, HK_EDGE_NVLINK, (unsigned)at + 2, gbps[at], us[at]), HK_OK);
    }
    m_link(t, a, b, HK_EDGE_PCI, 1, 12);
    m_finish(t);
    ck_assert_uint_eq(t->nedges, 4);
    const hk_edge *e = &t->edges[1];
    ck_assert(t->edges[0].kind == HK_EDGE_PCI && e->kind == HK_EDGE_NVLINK && e->back == 3 && e[2].back == 1);
    ck_assert(e->count == 9 && e->us == 0.25f && e[2].count == 9 && e[2].us == 0.25f);
    ck_assert(e->gbps == (3 + 3.5f) + 1e8f && e[2].gbps == e->gbps);
    ck_assert(t->nodes[0].first_edge == 0 && t->nodes[0].nedges == 2 && t->nodes[1].first_edge == 2);
    hk_topo_free(t);
  }
  hk_topo *t = m_new("t");
  uint32_t a = m_gpu(t, 0, m_bus(1), 0), b = m_gpu(t, 1, m_bus(2), 0), c = m_gpu(t, 2, m_bus(3), 0);
  m_link(t, a, b, HK_EDGE_NVLINK, 65534, 12);
  m_link(t, a, b, HK_EDGE_NVLINK, 2, 12);
  m_link(t, a, c, HK_EDGE_NVLINK, 65536, 12);
  m_link(t, b, c, HK_EDGE_NVLINK, 65533, 12);
  m_link(t, b, c, HK_EDGE_NVLINK, 1, 12);
  m_finish(t);
  ck_assert(t->edges[0].count == 65535 && t->edges[1].count == 65535 && t->edges[3].count == 65534);
  hk_topo_free(t);
}

TEST(limits) {
  static const float wrong[] = {-0.1f, 1.0f / 0.0f, 0.0f / 0.0f};
  for (int i = 0; i < 5; i++) {
    hk_topo *t = m_new("t");
    uint32_t cpu = m_add(t, HK_NODE_CPU, 0, 0), gpu = m_gpu(t, 0, m_bus(1), 0);
    ck_assert_int_eq(
        hk_topo_link(t, cpu, gpu, i == 3 ? (hk_edge_kind)(HK_EDGE_PORT + 1) : HK_EDGE_PCI, 1, 12, i < 3 ? wrong[i] : 0),
        HK_OK);
    ck_assert_int_eq(hk_topo_finish(t), i < 4 ? HK_ERR_ARGUMENT : HK_OK);
    if (i < 4)
      ck_assert_ptr_nonnull(
          strstr(hk_last_error(), i < 3 ? "CPU 0 to GPU 0000:01:00.0 has a latency" : "of unknown kind 5"));
    hk_topo_free(t);
  }
  hk_topo *t = m_new("t");
  m_add(t, HK_NODE_CPU, 0, 0);
  m_add(t, HK_NODE_CPU, 1, 0);
  ck_assert_int_eq(hk_topo_link(t, 0, 2, HK_EDGE_SYS, 1, 1, 0), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_topo_link(t, 2, 0, HK_EDGE_SYS, 1, 1, 0), HK_ERR_ARGUMENT);
  for (int i = 0; i < HK_TOPO_LINKS; i++) ck_assert_int_eq(hk_topo_link(t, 0, 1, HK_EDGE_SYS, 1, 1, 0), HK_OK);
  ck_assert_int_eq(hk_topo_link(t, 0, 1, HK_EDGE_SYS, 1, 1, 0), HK_ERR_ARGUMENT);
  hk_topo_free(t);
}

TEST(found_by_id) {
  for (int n = 1; n <= 9; n++) {
    hk_topo *t = m_new("t");
    uint32_t cpu = m_add(t, HK_NODE_CPU, 0, 0);
    for (int i = n; i >= 1; i--) m_link(t, cpu, m_gpu(t, i, m_bus(2 * i), 0), HK_EDGE_PCI, 1, 12);
    m_finish(t);
    for (int id = 0; id <= 2 * n + 2; id++)
      ck_assert_uint_eq(hk_topo_find(t, HK_NODE_GPU, m_bus(id)),
                        id % 2 || !id || id > 2 * n ? UINT32_MAX : (uint32_t)id / 2);
    hk_topo_free(t);
  }
}

/* ---- remarks ---- */

typedef struct machine {
  int gpus, sm;
  float memory;
  bool known, linked, nic, port, leaf, cpu_memory, file;
  const char *remarks[3]; /* NULL: no more */
} machine;
static const machine machines[] = {
    {2, 90, 3000, true, true, true, true, false, true, true, {NULL}},
    {0, 0, 0, false, false, true, true, false, true, true, {NULL}},
    {2, 0, 3000, false, true, false, false, false, true, true, {"2 of 2 GPUs are of an unknown kind"}},
    {3, 90, 0, true, true, false, false, false, true, true, {"memory of 3 of 3 GPUs counts as "}},
    {2,
     90,
     3350,
     false,
     true,
     false,
     false,
     false,
     true,
     true,
     {"2 of 2 GPUs are a model that is not known: their memory counts as that of h100"}},
    {2, 90, 3350, true, true, false, false, false, true, true, {NULL}},
    {2, 90, 3351, false, true, false, false, false, true, true, {NULL}},
    {2,
     90,
     3000,
     true,
     false,
     false,
     false,
     false,
     true,
     true,
     {"no links between the 2 GPUs are described", "as 2xh100:nvswitch'"}},
    {2, 90, 3000, true, false, false, false, false, true, false, {NULL}},
    {1, 90, 3000, true, false, false, false, false, true, true, {NULL}},
    {2, 89, 300, true, false, false, false, false, true, true, {NULL}}, /* such GPUs have none */
    {2, 0, 300, false, false, false, false, false, true, true, {"unknown kind", "as 2xa100:nvswitch'"}},
    {2, 90, 3000, true, true, true, false, false, true, true, {"NICs without ports: 1. "}},
    {0, 0, 0, false, false, false, false, true, true, true, {"no GPU is described, but 1 PCI addresses"}},
    {1, 90, 3000, true, false, false, false, true, true, true, {NULL}},
    {1, 90, 3000, true, false, false, false, false, false, true, {"the memory of 1 NUMA nodes counts as "}},
};

TEST_LOOP(remarks, HK_ARRAY_LENGTH(machines)) {
  const machine *m = &machines[_i];
  hk_topo *t = m_new("t");
  uint32_t cpu = m_add(t, HK_NODE_CPU, 0, 0), nvs = m->linked ? m_add(t, HK_NODE_NVS, 0, -1) : 0;
  int lines = 0;
  t->nodes[cpu].cpu.memory_gbps = m->cpu_memory ? 100 : 0;
  for (int i = 0; i < m->gpus; i++) {
    uint32_t gpu = m_gpu(t, i, m_bus(1 + i), 0);
    t->nodes[gpu].gpu.sm = m->sm;
    t->nodes[gpu].gpu.memory_gbps = m->memory;
    if (m->known) snprintf(t->nodes[gpu].name, HK_NODE_NAME, "a name");
    m_link(t, cpu, gpu, HK_EDGE_PCI, 1, 12);
    if (m->linked) m_link(t, gpu, nvs, HK_EDGE_NVLINK, 1, 12);
  }
  if (m->nic) {
    uint32_t nic = m_add(t, HK_NODE_NIC, m_bus(20), 0);
    m_link(t, cpu, nic, HK_EDGE_PCI, 1, 12);
    if (m->port) m_link(t, nic, m_add(t, HK_NODE_NET, 0, 0), HK_EDGE_PORT, 1, 12);
  }
  if (m->leaf) m_link(t, cpu, m_add(t, HK_NODE_PCI, m_bus(30), 0), HK_EDGE_PCI, 1, 12);
  m_finish(t);
  ck_assert_int_eq(hk_topo_remark_guesses(t, m->file), HK_OK);
  const char *text = t->remarks ? t->remarks : "";
  for (const char *p = text; *p; p++) lines += *p == '\n';
  bool one_line = m->remarks[1] && !m->sm ? false : true;
  ck_assert_msg(lines == (m->remarks[0] ? one_line ? 1 : 2 : 0), "%s", text);
  for (int i = 0; i < 3 && m->remarks[i]; i++) ck_assert_msg(strstr(text, m->remarks[i]), "%s", text);
  hk_topo_free(t);
}

int main(void) { return suite_main("facts of topologies"); }
