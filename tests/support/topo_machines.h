/* SPDX-License-Identifier: Apache-2.0 */
/* Machines built by hand, link by link, for the tests of topologies, paths and the search. */
#ifndef HK_TEST_TOPO_MACHINES_H
#define HK_TEST_TOPO_MACHINES_H
#include "../../src/topo/topo.h"
#include "suite.h"

static inline uint32_t m_add(hk_topo *t, hk_node_kind kind, uint64_t id, int numa) {
  uint32_t node;
  ck_assert_msg(hk_topo_add(t, kind, id, &node) == HK_OK, "%s", hk_last_error());
  t->nodes[node].numa = (int16_t)numa;
  return node;
}

static inline uint32_t m_gpu(hk_topo *t, int dev, uint64_t bus, int numa) {
  uint32_t node = m_add(t, HK_NODE_GPU, bus, numa);
  t->nodes[node].gpu.dev = dev;
  t->nodes[node].gpu.gdr = true;
  return node;
}

static inline void m_link(hk_topo *t, uint32_t a, uint32_t b, hk_edge_kind kind, unsigned count, float gbps) {
  float us = kind == HK_EDGE_SYS ? 0.5f : kind == HK_EDGE_PCI ? 0.3f : 0.2f;
  ck_assert_msg(hk_topo_link(t, a, b, kind, count, gbps, us) == HK_OK, "%s", hk_last_error());
}

/* A NIC with one port below `parent`. */
static inline void m_nic(hk_topo *t, int dev, uint64_t bus, uint32_t parent, float pci_gbps, float mbps) {
  int numa = t->nodes[parent].numa;
  uint32_t nic = m_add(t, HK_NODE_NIC, bus, numa), net = m_add(t, HK_NODE_NET, (uint64_t)dev, numa);
  t->nodes[net].net.dev = dev;
  t->nodes[net].net.rail = dev;
  t->nodes[net].net.mbps = mbps;
  m_link(t, parent, nic, HK_EDGE_PCI, 1, pci_gbps);
  m_link(t, nic, net, HK_EDGE_PORT, 1, mbps / 8000 * 0.96f);
}

static inline uint64_t m_bus(int bus) { return (uint64_t)bus << 12; }

static inline hk_topo *m_new(const char *name) {
  hk_topo *t;
  ck_assert_int_eq(hk_topo_new(&t, name), HK_OK);
  return t;
}

static inline hk_topo *m_finish(hk_topo *t) {
  ck_assert_msg(hk_topo_finish(t) == HK_OK, "%s", hk_last_error());
  return t;
}

/* `ncpus` sockets, all linked with each other. */
static inline void m_cpus(hk_topo *t, int ncpus, float sys_gbps, const char *vendor, uint32_t *cpus) {
  for (int i = 0; i < ncpus; i++) {
    cpus[i] = m_add(t, HK_NODE_CPU, (uint64_t)i, i);
    snprintf(t->nodes[cpus[i]].cpu.vendor, sizeof t->nodes[cpus[i]].cpu.vendor, "%s", vendor);
    snprintf(t->nodes[cpus[i]].cpu.arch, sizeof t->nodes[cpus[i]].cpu.arch, "x86_64");
    t->nodes[cpus[i]].cpu.cores = 32;
    for (int k = 0; k < i; k++) m_link(t, cpus[k], cpus[i], HK_EDGE_SYS, 1, sys_gbps);
  }
}

/* Two sockets, 8 GPUs with 18 links each into NVSwitches, and a PCI switch for each pair of a GPU and a NIC. */
static inline hk_topo *m_dgx_h100(int nics) {
  hk_topo *t = m_new("dgx-h100");
  uint32_t cpus[2];
  m_cpus(t, 2, 40, "GenuineIntel", cpus);
  uint32_t nvs = m_add(t, HK_NODE_NVS, 0, -1);
  for (int i = 0; i < 8; i++) {
    uint32_t pci = m_add(t, HK_NODE_PCI, m_bus(0x10 + 16 * i), i / 4);
    uint32_t gpu = m_gpu(t, i, m_bus(0x11 + 16 * i), i / 4);
    t->nodes[gpu].gpu.sm = 90;
    t->nodes[gpu].gpu.mcast = true;
    m_link(t, cpus[i / 4], pci, HK_EDGE_PCI, 1, hk_pci_gbps(32, 16));
    m_link(t, pci, gpu, HK_EDGE_PCI, 1, hk_pci_gbps(32, 16));
    m_link(t, gpu, nvs, HK_EDGE_NVLINK, 18, 18 * hk_nvlink_gbps(90));
    if (i < nics) m_nic(t, i, m_bus(0x12 + 16 * i), pci, hk_pci_gbps(32, 16), 400000);
  }
  return m_finish(t);
}

/* DGX-1V: the hybrid cube mesh.  Links of GPU i within its quad and to the other one. */
static inline hk_topo *m_dgx1v(int nics) {
  static const int mesh[][3] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2},
                                {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
  hk_topo *t = m_new("dgx-1v");
  uint32_t cpus[2], gpus[8], pci[4];
  m_cpus(t, 2, 19, "GenuineIntel", cpus);
  for (int i = 0; i < 4; i++) {
    pci[i] = m_add(t, HK_NODE_PCI, m_bus(0x10 + 16 * i), i / 2);
    m_link(t, cpus[i / 2], pci[i], HK_EDGE_PCI, 1, hk_pci_gbps(8, 16));
  }
  for (int i = 0; i < 8; i++) {
    gpus[i] = m_gpu(t, i, m_bus(0x11 + 16 * (i / 2) + i % 2), i / 4);
    t->nodes[gpus[i]].gpu.sm = 70;
    m_link(t, pci[i / 2], gpus[i], HK_EDGE_PCI, 1, hk_pci_gbps(8, 16));
  }
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(mesh); i++)
    m_link(t, gpus[mesh[i][0]], gpus[mesh[i][1]], HK_EDGE_NVLINK, (unsigned)mesh[i][2],
           (float)mesh[i][2] * hk_nvlink_gbps(70));
  for (int i = 0; i < nics; i++) m_nic(t, i, m_bus(0x14 + 16 * i), pci[i], hk_pci_gbps(8, 16), 100000);
  return m_finish(t);
}

/* Without NVLink: GPUs dealt out over the PCI switches, those over the sockets; 0 switches: GPUs at the sockets
 * themselves. */
static inline hk_topo *m_pcie_box(int sockets, int switches, int ngpus, int nics, const char *vendor) {
  hk_topo *t = m_new("pcie-box");
  uint32_t cpus[2], pci[8];
  m_cpus(t, sockets, 20, vendor, cpus);
  for (int i = 0; i < switches; i++) {
    int socket = i * sockets / switches;
    pci[i] = m_add(t, HK_NODE_PCI, m_bus(0x10 + 16 * i), socket);
    m_link(t, cpus[socket], pci[i], HK_EDGE_PCI, 1, hk_pci_gbps(16, 16));
  }
  for (int i = 0; i < ngpus; i++) {
    uint32_t parent = switches ? pci[i * switches / ngpus] : cpus[i * sockets / ngpus];
    m_link(t, parent, m_gpu(t, i, m_bus(0x81 + i), t->nodes[parent].numa), HK_EDGE_PCI, 1, hk_pci_gbps(16, 16));
  }
  for (int i = 0; i < nics; i++) {
    uint32_t parent = switches ? pci[i * switches / nics] : cpus[i * sockets / nics];
    m_nic(t, i, m_bus(0xa1 + i), parent, hk_pci_gbps(16, 16), 200000);
  }
  return m_finish(t);
}

/* Eight GPUs, a link between any two. */
static inline hk_topo *m_xgmi(int nics) {
  hk_topo *t = m_new("8xmi300x");
  uint32_t cpus[2], gpus[8], pci[8];
  m_cpus(t, 2, 40, "AuthenticAMD", cpus);
  for (int i = 0; i < 8; i++) {
    pci[i] = m_add(t, HK_NODE_PCI, m_bus(0x10 + 16 * i), i / 4);
    gpus[i] = m_gpu(t, i, m_bus(0x11 + 16 * i), i / 4);
    m_link(t, cpus[i / 4], pci[i], HK_EDGE_PCI, 1, hk_pci_gbps(32, 16));
    m_link(t, pci[i], gpus[i], HK_EDGE_PCI, 1, hk_pci_gbps(32, 16));
    for (int k = 0; k < i; k++) m_link(t, gpus[k], gpus[i], HK_EDGE_NVLINK, 1, 48);
    if (i < nics) m_nic(t, i, m_bus(0x12 + 16 * i), pci[i], hk_pci_gbps(32, 16), 400000);
  }
  return m_finish(t);
}

static inline hk_topo *m_cpu_host(int sockets, int nics) {
  hk_topo *t = m_new("cpu-host");
  uint32_t cpus[8];
  m_cpus(t, sockets, 30, "AuthenticAMD", cpus);
  for (int i = 0; i < nics; i++) m_nic(t, i, m_bus(0x10 + i), cpus[i * sockets / nics], hk_pci_gbps(16, 16), 100000);
  return m_finish(t);
}

/* A rack: `trays` of 2 Grace CPUs with 2 GPUs each, all GPUs on one NVSwitch domain, a NIC for each GPU at its CPU. */
static inline hk_topo *m_nvl(int trays) {
  hk_topo *t = m_new("nvl");
  uint32_t nvs = m_add(t, HK_NODE_NVS, 0, -1), last = 0;
  for (int i = 0; i < trays * 2; i++) {
    uint32_t cpu = m_add(t, HK_NODE_CPU, (uint64_t)i, i);
    snprintf(t->nodes[cpu].cpu.arch, sizeof t->nodes[cpu].cpu.arch, "arm64");
    if (i % 2) m_link(t, last, cpu, HK_EDGE_SYS, 1, 80);
    last = cpu;
    for (int k = 0; k < 2; k++) {
      uint64_t domain = (uint64_t)i << 20;
      uint32_t gpu = m_gpu(t, 2 * i + k, domain | m_bus(1 + 16 * k), i);
      t->nodes[gpu].gpu.sm = 100;
      t->nodes[gpu].gpu.mcast = true;
      m_link(t, cpu, gpu, HK_EDGE_C2C, 1, 180);
      m_link(t, gpu, nvs, HK_EDGE_NVLINK, 18, 18 * hk_nvlink_gbps(100));
    }
    for (int k = 0; k < 2; k++) m_nic(t, 2 * i + k, (uint64_t)i << 20 | m_bus(2 + 16 * k), cpu, 52, 400000);
  }
  return m_finish(t);
}
#endif
