/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of GPUs with invented drivers on invented machines. */
/* check: timeout=60 */
#include <dlfcn.h>
#include <libgen.h>
#include "../../src/topo/paths.h"
#include "../../src/topo/search.h"
#include "../fakes/gpus.h"
#include "../support/detect_checks.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/detected_drivers.txt"

/* Loads a fake before the code under test looks for the library: the loader then takes the one that is there. */
static fake_machine *load_fake(const char *name) {
  char self[512], path[600];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  ck_assert_int_gt(n, 0);
  self[n] = '\0';
  snprintf(path, sizeof path, "%s/../fakes/%s", dirname(self), name);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(lib != NULL, "%s", dlerror());
  fake_machine *m = dlsym(lib, "fake_gpus");
  ck_assert_ptr_nonnull(m);
  return m;
}
static void load_fakes(const fake_machine *m) {
  *load_fake("libcuda.so.1") = *m;
  *load_fake("libnvidia-ml.so.1") = *m;
}
/* n GPUs, each on a port of its own; all NVLinks lead to `far`. */
static fake_machine boxes(int n, int sm, int links, const char *far) {
  fake_machine m;
  memset(&m, 0, sizeof m);
  fm_cpus(FM_INTEL, 2, 4, 2, 0);
  m.ngpus = n;
  for (int i = 0; i < n; i++) {
    char path[64];
    fm_pci_info here = gpu;
    here.numa = i * 2 / n;
    snprintf(path, sizeof path, "0000:%02x:01.0", 0x10 * (i + 1));
    fm_pci(path, port);
    snprintf(path, sizeof path, "0000:%02x:01.0/0000:%02x:00.0", 0x10 * (i + 1), 0x10 * (i + 1) + 1);
    fm_pci(path, here);
    snprintf(m.gpu[i].bus, sizeof m.gpu[i].bus, "00000000:%02X:00.0", 0x10 * (i + 1) + 1);
    m.gpu[i].sm = sm;
    m.gpu[i].nlinks = links;
    for (int k = 0; k < links; k++) snprintf(m.gpu[i].far[k], sizeof m.gpu[i].far[k], "%s", far);
  }
  return m;
}

/* A switch that PCI shows, one that a hypervisor hides. */
TEST_LOOP(nvswitch, 2) {
  fake_machine m = boxes(4, 90, 18, _i == 0 ? "switch" : "hidden");
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 4);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NVS), 1);
  for (uint32_t i = 0; i < 4; i++) {
    const hk_node *g = node(t, HK_NODE_GPU, i);
    const hk_edge *e = edge(t, g, node(t, HK_NODE_NVS, 0));
    ck_assert_ptr_nonnull(e);
    ck_assert_int_eq(e->kind, HK_EDGE_NVLINK);
    ck_assert_uint_eq(e->count, 18);
    ck_assert_float_eq(e->gbps, 18 * hk_nvlink_gbps(90));
    ck_assert_int_eq(g->gpu.dev, (int)i);
    ck_assert_int_eq(g->gpu.sm, 90);
    ck_assert(g->gpu.gdr && g->gpu.mcast);
    ck_assert_float_eq_tol(g->gpu.memory_gbps, 3352.3f, 0.1f);
    ck_assert_uint_eq(g->gpu.fabric, 0);
  }
  ck_assert_str_eq(node(t, HK_NODE_GPU, 2)->name, "Fake GPU 2");
  ck_assert_int_eq(remarks(t), 0);
}

/* Without a peer memory module NICs reach the memory of GPUs if it can be a dma-buf. */
TEST_LOOP(dma_bufs, 2) {
  fake_machine m = boxes(2, 90, 0, "");
  m.gpu[1].dmabuf = _i;
  fm_rdma(fm_pci("0000:90:00.0", nic), "mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE", "InfiniBand");
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_assert_int_eq(node(t, HK_NODE_NET, 0)->net.gdr, _i);
  ck_assert_int_eq(remarked(t, "NICs do not reach GPU memory"), !_i);
}

/* Eight GPUs, each with a NIC behind one PCI switch, NVSwitches: what rings and rails need must come out. */
TEST(box_with_rails) {
  fake_machine m;
  memset(&m, 0, sizeof m);
  fm_cpus(FM_INTEL, 2, 8, 2, 0);
  m.ngpus = 8;
  for (int i = 0; i < 8; i++) {
    char top[32], path[160], name[32];
    fm_pci_info p = port, g = gpu, n = nic;
    int bus = 0x10 * (i + 1);
    p.numa = g.numa = n.numa = i / 4;
    snprintf(top, sizeof top, "0000:%02x:01.0", bus);
    fm_pci(top, p);
    snprintf(path, sizeof path, "%s/0000:%02x:00.0", top, bus + 1);
    fm_pci(path, p);
    snprintf(path, sizeof path, "%s/0000:%02x:00.0/0000:%02x:00.0", top, bus + 1, bus + 2);
    fm_pci(path, p);
    snprintf(path, sizeof path, "%s/0000:%02x:00.0/0000:%02x:00.0/0000:%02x:00.0", top, bus + 1, bus + 2, bus + 3);
    fm_pci(path, g);
    snprintf(path, sizeof path, "%s/0000:%02x:00.0/0000:%02x:01.0", top, bus + 1, bus + 2);
    fm_pci(path, p);
    snprintf(path, sizeof path, "%s/0000:%02x:00.0/0000:%02x:01.0/0000:%02x:00.0", top, bus + 1, bus + 2, bus + 4);
    snprintf(name, sizeof name, "mlx5_%d", i);
    fm_rdma(fm_pci(path, n), name, "400 Gb/sec (4X NDR)", "4: ACTIVE", "InfiniBand");
    snprintf(m.gpu[i].bus, sizeof m.gpu[i].bus, "00000000:%02X:00.0", bus + 3);
    m.gpu[i].sm = 90;
    m.gpu[i].nlinks = 18;
    for (int k = 0; k < 18; k++) snprintf(m.gpu[i].far[k], sizeof m.gpu[i].far[k], "switch");
  }
  fm_file("sys/module/nvidia_peermem/version", "1\n");
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_assert_int_eq(remarks(t), 0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), 8);
  hk_paths *paths;
  ck_assert_int_eq(hk_paths_new(&paths, t, NULL), HK_OK);
  uint32_t nodes[8], net;
  for (uint32_t i = 0; i < 8; i++) {
    nodes[i] = t->first_of[HK_NODE_GPU] + i;
    ck_assert_uint_eq(hk_paths_nets(paths, nodes[i], &net, 1), 1);
    ck_assert_int_eq(t->nodes[net].net.dev, (int)i);
    ck_assert_int_eq(t->nodes[net].net.rail, (int)i);
    ck_assert_int_eq(hk_path_between(paths, nodes[i], net)->cls, HK_PATH_PIX);
    if (i) ck_assert_int_eq(hk_path_between(paths, nodes[0], nodes[i])->cls, HK_PATH_NVL);
  }
  hk_channels *rings;
  hk_search what = {.pattern = HK_PATTERN_RING, .nodes = nodes, .nranks = 8, .network = true};
  ck_assert_int_eq(hk_search_channels(&rings, paths, &what), HK_OK);
  ck_assert_float_gt((float)rings->nchannels * rings->inter_gbps, 300);
  hk_channels_free(rings);
  hk_paths_free(paths);
}

TEST(direct_links) {
  fake_machine m = boxes(2, 70, 6, "");
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 6; k++) memcpy(m.gpu[i].far[k], m.gpu[1 - i].bus, sizeof m.gpu[i].bus);
  m.gpu[1].down = 0;
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  const hk_edge *e = edge(t, node(t, HK_NODE_GPU, 0), node(t, HK_NODE_GPU, 1));
  ck_assert_uint_eq(e->count, 6);
  ck_assert_float_eq(e->gbps, 6 * hk_nvlink_gbps(70));
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NVS), 0);
}

TEST(links_down_and_no_peers) {
  fake_machine m = boxes(2, 90, 18, "switch");
  m.gpu[1].down = 3;
  m.no_peers = 1;
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_remarked(t, "GPU 1 has 15 links to others up, others here have 18: see nvidia-smi");
  ck_remarked(t, "the chipset does not support it");
  ck_assert_int_eq(remarks(t), 2);
}

TEST(grace_and_fabric) {
  fake_machine m = boxes(2, 100, 18, "hidden");
  for (int i = 0; i < 2; i++) {
    m.gpu[i].c2c_links = 5;
    m.gpu[i].c2c_mbps = 45000;
    m.gpu[i].cluster[3] = 7;
    m.gpu[i].clique = 5;
  }
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  const hk_node *g = node(t, HK_NODE_GPU, 1);
  ck_assert_uint_ne(g->gpu.fabric, 0);
  ck_assert_uint_eq(g->gpu.fabric, node(t, HK_NODE_GPU, 0)->gpu.fabric);
  bool c2c = false;
  for (uint32_t e = g->first_edge; e < g->first_edge + g->nedges; e++)
    if (t->edges[e].kind == HK_EDGE_C2C) {
      c2c = true;
      ck_assert_float_eq(t->edges[e].gbps, 225);
      ck_assert_ptr_eq(&t->nodes[t->edges[e].to], node(t, HK_NODE_CPU, 1));
    }
  ck_assert(c2c);
}

TEST(hidden_gpus) {
  fake_machine m = boxes(4, 90, 18, "switch");
  m.gpu[0].hidden = m.gpu[2].hidden = 1;
  /* One that sysfs does not show. */
  snprintf(m.gpu[4].bus, sizeof m.gpu[4].bus, "00000000:05:00.0");
  m.gpu[4].sm = 90;
  m.ngpus = 5;
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 3);
  ck_remarked(t, "2 more GPUs are not visible to CUDA");
  ck_remarked(t, "1 GPU is shown by the driver but not by sysfs");
}

TEST(drivers_that_fail) {
  fake_machine m = boxes(2, 90, 18, "switch");
  m.fails = 999;
  load_fakes(&m);
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NVS), 0);
  ck_remarked(t, "NVLinks cannot be seen");
  t = detect(HK_DETECT_NO_GPU);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 0);
}

/* Without CUDA, NVML shows the GPUs and tells their generation. */
TEST(nvml_alone) {
  fake_machine m = boxes(2, 90, 18, "switch"), none;
  memset(&none, 0, sizeof none);
  none.fails = 100;
  *load_fake("libcuda.so.1") = none;
  *load_fake("libnvidia-ml.so.1") = m;
  hk_topo *t = detect(HK_DETECT_DRIVERS);
  ck_assert_int_eq(node(t, HK_NODE_GPU, 1)->gpu.sm, 90);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NVS), 1);
}

TEST(equal_machines_hash_equally) {
  fake_machine m = boxes(4, 90, 18, "switch");
  load_fakes(&m);
  hk_topo *a = detect(HK_DETECT_DRIVERS), *b = detect(HK_DETECT_DRIVERS);
  ck_assert_uint_eq(a->hash, b->hash);
}

/* A cloud's machine: the hypervisor shows a flat PCI tree without speeds, the cloud's file says which devices share a
 * switch, and the drivers know the NVLinks. */
TEST(virtual_machine_with_a_file) {
  static const char *const bus[] = {"10:1c.0", "10:1d.0", "90:1c.0", "90:1d.0"};
  fm_pci_info bare = {.class_code = 0x030200, .vendor = NVIDIA, .numa = -1}, port_bare = bare;
  fake_machine m;
  char path[64];
  memset(&m, 0, sizeof m);
  fm_cpus(FM_INTEL, 2, 4, 2, 0);
  m.ngpus = 4;
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "0000:%s", bus[i]);
    fm_pci(path, bare);
    snprintf(m.gpu[i].bus, sizeof m.gpu[i].bus, "00000000:%s", bus[i]);
    m.gpu[i].sm = 80;
    m.gpu[i].nlinks = 12;
    for (int k = 0; k < 12; k++) snprintf(m.gpu[i].far[k], sizeof m.gpu[i].far[k], "hidden");
  }
  port_bare.class_code = 0x020000;
  port_bare.vendor = 0x1d0f;
  fm_rdma(fm_pci("0000:90:1b.0", port_bare), "rdmap0", "100 Gb/sec (4X EDR)", "4: ACTIVE", "Unspecified");
  load_fakes(&m);
  hk_topo *seen = detect(HK_DETECT_DRIVERS), *t;
  ck_remarked(seen, "5 PCI devices show no link speed");
  fm_file("file.xml",
          "<system version=\"1\">\n"
          "  <cpu numaid=\"0\" affinity=\"0000000f\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" "
          "modelid=\"85\">\n"
          "    <pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">\n"
          "      <pci busid=\"0000:10:1c.0\" class=\"0x030200\" link_speed=\"8 GT/s\" link_width=\"16\"/>\n"
          "      <pci busid=\"0000:10:1d.0\" class=\"0x030200\" link_speed=\"8 GT/s\" link_width=\"16\"/>\n"
          "    </pci>\n"
          "  </cpu>\n"
          "  <cpu numaid=\"1\" affinity=\"000000f0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" "
          "modelid=\"85\">\n"
          "    <pci busid=\"ffff:ff:02.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"16\">\n"
          "      <pci busid=\"0000:90:1c.0\" class=\"0x030200\" link_speed=\"8 GT/s\" link_width=\"16\"/>\n"
          "      <pci busid=\"0000:90:1d.0\" class=\"0x030200\" link_speed=\"8 GT/s\" link_width=\"16\"/>\n"
          "      <pci busid=\"0000:90:1b.0\" class=\"0x020000\" link_speed=\"8 GT/s\" link_width=\"16\"/>\n"
          "    </pci>\n"
          "  </cpu>\n"
          "</system>\n");
  ck_assert_msg(hk_topo_read_xml_over(&t, scratch_path("file.xml"), seen, NULL, NULL) == HK_OK, "%s", hk_last_error());
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 4);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NVS), 1);
  hk_paths *paths;
  ck_assert_int_eq(hk_paths_new(&paths, t, NULL), HK_OK);
  uint32_t g = t->first_of[HK_NODE_GPU], net = t->first_of[HK_NODE_NET];
  ck_assert_int_eq(hk_path_between(paths, g, g + 3)->cls, HK_PATH_NVL);
  ck_assert_int_eq(hk_path_between(paths, g + 3, net)->cls, HK_PATH_PIX);
  ck_assert_float_eq(t->nodes[net].net.mbps, 100000);
  ck_assert_int_eq(t->nodes[g].gpu.sm, 80);
  hk_paths_free(paths);
  hk_topo_free(t);
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("detect drivers", .setup = scratch_make, .teardown = end);
}
