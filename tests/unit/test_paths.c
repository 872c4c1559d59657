/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Paths: their classes, hops and bandwidths on machines whose answers are known. */
#include "../../src/base/param.h"
#include "../../src/transport/net/gdr.h"
#include "../support/suite.h"
#include "../support/topo_checks.h"
#include "../support/topo_machines.h"

static hk_topo *machines[4];
static hk_paths *all[4];

/* They go when the test ends. */
static hk_paths *paths_of(hk_topo *t, const hk_path_rules *rules) {
  int m = 0, k = 0;
  while (machines[m] && machines[m] != t) m++;
  while (all[k]) k++;
  ck_assert(m < 4 && k < 4);
  machines[m] = t;
  ck_assert_msg(hk_paths_new(&all[k], t, rules) == HK_OK, "%s", hk_last_error());
  check_paths(all[k]);
  return all[k];
}
static void forget(void) {
  for (int i = 0; i < 4; i++) {
    hk_paths_free(all[i]);
    hk_topo_free(machines[i]);
  }
}

static uint32_t nth(const hk_topo *t, hk_node_kind kind, int i) {
  for (uint32_t n = t->first_of[kind]; n < t->first_of[kind + 1]; n++)
    if (kind == HK_NODE_GPU ? t->nodes[n].gpu.dev == i : t->nodes[n].id == (uint64_t)i) return n;
  ck_abort_msg("no such node");
  return 0;
}

static const hk_path *way(const hk_paths *p, hk_node_kind a, int i, hk_node_kind b, int k) {
  return hk_path_between(p, nth(p->topo, a, i), nth(p->topo, b, k));
}

static void expect(const hk_paths *p, hk_node_kind a, int i, hk_node_kind b, int k, hk_path_class cls, int nhops,
                   float gbps) {
  const hk_path *path = way(p, a, i, b, k);
  ck_assert_msg(path->cls == cls && path->nhops == nhops && path->gbps > gbps - 0.1f && path->gbps < gbps + 0.1f,
                "%s: %s %d to %s %d is %s, %d hops, %.1f GB/s, not %s, %d, %.1f", p->topo->name, hk_node_kind_name(a),
                i, hk_node_kind_name(b), k, hk_path_class_name(path->cls), path->nhops, (double)path->gbps,
                hk_path_class_name(cls), nhops, (double)gbps);
}

TEST(names) {
  hk_path_class c;
  for (int i = 0; i <= HK_PATH_DIS; i++) {
    ck_assert(hk_path_class_parse(hk_path_class_name((hk_path_class)i), &c));
    ck_assert_int_eq((int)c, i);
  }
  ck_assert(hk_path_class_parse("pxb", &c) && c == HK_PATH_PXB);
  static const hk_path_class numbers[] = {HK_PATH_LOC, HK_PATH_PIX, HK_PATH_PXB, HK_PATH_PHB, HK_PATH_SYS, HK_PATH_SYS};
  for (int i = 0; i < 6; i++) {
    char text[2] = {(char)('0' + i), 0};
    ck_assert(hk_path_class_parse(text, &c) && c == numbers[i]);
  }
  ck_assert(!hk_path_class_parse("6", &c) && !hk_path_class_parse("", &c) && !hk_path_class_parse("PIXX", &c));
  ck_assert(!hk_path_class_parse("11", &c) && !hk_path_class_parse(NULL, &c));
  ck_assert_str_eq(hk_path_class_name((hk_path_class)99), "unknown class");
}

TEST(nvswitch) {
  hk_topo *t = m_dgx_h100(8);
  hk_paths *p = paths_of(t, NULL);
  float nvl = 370.8f, pci = hk_pci_gbps(32, 16);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7, HK_PATH_NVL, 2, nvl);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 0, HK_PATH_PIX, 3, 48);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 1, HK_PATH_PXN, 5, 48);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 7, HK_PATH_PXN, 5, 48);
  expect(p, HK_NODE_GPU, 0, HK_NODE_CPU, 0, HK_PATH_PHB, 2, pci);
  expect(p, HK_NODE_GPU, 0, HK_NODE_CPU, 1, HK_PATH_SYS, 3, 40);
  expect(p, HK_NODE_CPU, 0, HK_NODE_NET, 7, HK_PATH_SYS, 4, 40);
  expect(p, HK_NODE_NET, 0, HK_NODE_NET, 1, HK_PATH_PHB, 6, 48);
  expect(p, HK_NODE_GPU, 3, HK_NODE_GPU, 3, HK_PATH_LOC, 0, 1000);
  p = paths_of(t, &(hk_path_rules){.no_pxn = true});
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 1, HK_PATH_PHB, 5, 48);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 7, HK_PATH_SYS, 6, 40);
  p = paths_of(t, &(hk_path_rules){.no_p2p = true});
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1, HK_PATH_PHB, 4, pci);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7, HK_PATH_SYS, 5, 40);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 1, HK_PATH_PHB, 5, 48);
  ck_assert(way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7)->host);
}

TEST(cube_mesh) {
  hk_topo *t = m_dgx1v(4);
  hk_paths *p = paths_of(t, NULL);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1, HK_PATH_NVL, 1, 21);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 3, HK_PATH_NVL, 1, 42);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7, HK_PATH_NVB, 2, 42); /* by 4, with two links on both sides */
  ck_assert_uint_eq(t->edges[p->hops[way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7)->first]].to, nth(t, HK_NODE_GPU, 4));
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 0, HK_PATH_PIX, 3, 12);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 1, HK_PATH_PXN, 4, 12);
  p = paths_of(t, &(hk_path_rules){.no_nvb = true});
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7, HK_PATH_SYS, 5, hk_pci_gbps(8, 16));
  ck_assert(way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7)->host); /* Intel's CPUs do not pass peer traffic on */
  p = paths_of(t, &(hk_path_rules){.no_nvb = true, .p2p_level = HK_PATH_SYS});
  ck_assert(!way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7)->host);
}

TEST(pci_boxes) {
  hk_topo *t = m_pcie_box(2, 4, 8, 4, "GenuineIntel");
  hk_paths *p = paths_of(t, NULL);
  float pci = hk_pci_gbps(16, 16);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1, HK_PATH_PIX, 2, pci);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 2, HK_PATH_PHB, 4, pci);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7, HK_PATH_SYS, 5, 20);
  ck_assert(!way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1)->host && way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 2)->host);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 0, HK_PATH_PIX, 3, 24);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 1, HK_PATH_PHB, 5, 24); /* no NVLink, no PXN */
  p = paths_of(t, &(hk_path_rules){.p2p_level = HK_PATH_PHB});
  ck_assert(!way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 2)->host && way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 7)->host);

  t = m_pcie_box(2, 0, 4, 0, "AuthenticAMD");
  p = paths_of(t, NULL);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1, HK_PATH_PHB, 2, pci);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 3, HK_PATH_SYS, 3, 20);
  ck_assert(!way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 3)->host);
}

TEST(cascaded_switches) {
  hk_topo *t = m_new("cascade");
  uint32_t cpu = m_add(t, HK_NODE_CPU, 0, 0), top = m_add(t, HK_NODE_PCI, m_bus(1), 0), leaf[2];
  m_link(t, cpu, top, HK_EDGE_PCI, 1, 25);
  for (int i = 0; i < 2; i++) {
    leaf[i] = m_add(t, HK_NODE_PCI, m_bus(2 + i), 0);
    m_link(t, top, leaf[i], HK_EDGE_PCI, 1, 25);
    m_link(t, leaf[i], m_gpu(t, i, m_bus(0x10 + i), 0), HK_EDGE_PCI, 1, 25);
  }
  m_nic(t, 0, m_bus(0x20), leaf[0], 25, 100000);
  m_finish(t);
  hk_paths *p = paths_of(t, NULL);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1, HK_PATH_PXB, 4, 25);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 0, HK_PATH_PIX, 3, 12);
  expect(p, HK_NODE_GPU, 1, HK_NODE_NET, 0, HK_PATH_PXB, 5, 12);
  ck_assert(!way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1)->host);
  p = paths_of(t, &(hk_path_rules){.p2p_level = HK_PATH_PIX});
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1, HK_PATH_PHB, 6, 25);
  ck_assert(way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1)->host);
}

/* Two GPUs at the end of a chain of switches: their way through the CPU's memory has 255 hops, which is the most, or
 * 256, and then they have only the direct one. */
TEST(longest_path) {
  for (int more = 0; more < 2; more++) {
    hk_topo *t = m_new("chain");
    uint32_t above = m_add(t, HK_NODE_CPU, 0, 0), last = above, gpu;
    for (int i = 1; i <= 127; i++) {
      uint32_t sw = m_add(t, HK_NODE_PCI, m_bus(i), 0);
      m_link(t, last, sw, HK_EDGE_PCI, 1, 25);
      above = last;
      last = sw;
    }
    gpu = m_gpu(t, 0, m_bus(200), 0);
    m_link(t, last, gpu, HK_EDGE_PCI, 1, 25);
    gpu = m_gpu(t, 1, m_bus(201), 0);
    m_link(t, more ? last : above, gpu, HK_EDGE_PCI, 1, 25);
    m_finish(t);
    hk_paths *p = paths_of(t, &(hk_path_rules){.no_p2p = true});
    const hk_path *path = way(p, HK_NODE_GPU, 0, HK_NODE_GPU, 1);
    ck_assert_msg(path->host == !more && path->nhops == (more ? 2 : 255), "%d hops", path->nhops);
  }
}

/* A card writes to the GPU by PCI, and its completions reach it by C2C: the GPU's order of writes says nothing. */
TEST(split_ways) {
  hk_topo *grace = m_nvl(1), *plain = m_xgmi(1);
  hk_paths *c2c = paths_of(grace, NULL), *pci = paths_of(plain, NULL);
  hk_device gpu = {.limits.rdma_ordered = true};
  for (int cls = HK_PATH_LOC; cls <= HK_PATH_DIS; cls++) {
    ck_assert_int_eq(hk_gdr_is_split(c2c, 0, (hk_path_class)cls), cls <= HK_PATH_PXB);
    ck_assert(!hk_gdr_is_split(pci, 0, (hk_path_class)cls));
  }
  ck_assert(!hk_gdr_is_split(c2c, 999, HK_PATH_PIX) && !hk_gdr_is_split(NULL, 0, HK_PATH_PIX));
  ck_assert(hk_gdr_needs_flush(hk_settings_now(), &gpu, true) && !hk_gdr_needs_flush(hk_settings_now(), &gpu, false));
  setenv("NCCL_NET_FORCE_FLUSH", "1", 1);
  hk_param_reload();
  ck_assert(hk_gdr_needs_flush(hk_settings_now(), &gpu, false));
  setenv("NCCL_GDR_FLUSH_DISABLE", "1", 1);
  hk_param_reload();
  ck_assert(!hk_gdr_needs_flush(hk_settings_now(), &gpu, true));
}

TEST(chip_to_chip) {
  hk_topo *t = m_nvl(18);
  hk_paths *p = paths_of(t, NULL);
  float nvl = 18 * hk_nvlink_gbps(100);
  expect(p, HK_NODE_GPU, 0, HK_NODE_GPU, 71, HK_PATH_NVL, 2, nvl);
  expect(p, HK_NODE_GPU, 0, HK_NODE_CPU, 0, HK_PATH_C2C, 1, 180);
  expect(p, HK_NODE_GPU, 0, HK_NODE_CPU, 1, HK_PATH_SYS, 2, 80);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 0, HK_PATH_P2C, 3, 48);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 1, HK_PATH_P2C, 3, 48);
  expect(p, HK_NODE_GPU, 0, HK_NODE_NET, 71, HK_PATH_PXN, 5, 48);
  ck_assert_int_eq(way(p, HK_NODE_CPU, 0, HK_NODE_CPU, 35)->cls, HK_PATH_DIS); /* another tray, for CPUs another host */
  uint32_t nets[3];
  for (int g = 0; g < 72; g++) {
    ck_assert_uint_eq(hk_paths_nets(p, nth(t, HK_NODE_GPU, g), nets, 3), 3);
    ck_assert_uint_eq(nets[0], nth(t, HK_NODE_NET, g));
    ck_assert_uint_eq(nets[1], nth(t, HK_NODE_NET, g ^ 1));
  }
}

TEST(nearest_nets) {
  uint32_t nets[16];
  hk_topo *t = m_dgx_h100(8);
  hk_paths *p = paths_of(t, NULL);
  for (int g = 0; g < 8; g++) {
    ck_assert_uint_eq(hk_paths_nets(p, nth(t, HK_NODE_GPU, g), nets, 16), 8);
    ck_assert_uint_eq(nets[0], nth(t, HK_NODE_NET, g));
    for (int a = 0; a < 8; a++)
      for (int b = 0; b < a; b++) ck_assert_uint_ne(nets[a], nets[b]);
  }
  ck_assert_uint_eq(hk_paths_nets(p, 0, nets, 3), 3); /* a CPU: its own first */
  for (int i = 0; i < 3; i++) ck_assert_uint_eq(nets[i], nth(t, HK_NODE_NET, i));
  ck_assert_uint_eq(hk_paths_nets(p, 0, nets, 0), 0);
  /* Two GPUs and two NICs on each switch: one each. */
  t = m_pcie_box(2, 4, 8, 8, "GenuineIntel");
  p = paths_of(t, NULL);
  for (int g = 0; g < 8; g++) {
    ck_assert_uint_eq(hk_paths_nets(p, nth(t, HK_NODE_GPU, g), nets, 2), 2);
    ck_assert_uint_eq(nets[0], nth(t, HK_NODE_NET, g));
    ck_assert_uint_eq(nets[1], nth(t, HK_NODE_NET, g ^ 1));
    ck_assert_uint_eq(hk_paths_near_nets(p, nth(t, HK_NODE_GPU, g), nets, 8), 2);
  }
  t = m_cpu_host(2, 0);
  p = paths_of(t, NULL);
  ck_assert_uint_eq(hk_paths_nets(p, 0, nets, 16), 0);
}

TEST(mesh) {
  hk_topo *t = m_xgmi(8);
  hk_paths *p = paths_of(t, NULL);
  for (int a = 0; a < 8; a++)
    for (int b = 0; b < a; b++) expect(p, HK_NODE_GPU, a, HK_NODE_GPU, b, HK_PATH_NVL, 1, 48);
}

int main(void) { return suite_main("paths", .teardown = forget); }
