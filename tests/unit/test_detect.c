/* SPDX-License-Identifier: Apache-2.0 */
/* Detection on invented machines. */
/* check: timeout=60 notsan */
#include "../../src/base/dl.h"
#include "../../src/base/sysfs.h"
#include "../../src/topo/detect_scan.h"
#include "../support/detect_checks.h"
#include "../support/suite.h"

#define GOLDEN "tests/golden/detected.txt"

/* ---- files ---- */

TEST(root_files) {
  char text[64], path[HK_SYSFS_PATH];
  long long v;
  fm_file("sys/a/word", "  hello \n\n");
  fm_file("sys/a/number", "0x1f\n");
  fm_file("sys/a/n10", "x");
  fm_file("sys/a/n9", "x");
  fm_link("sys/b", "a");
  fm_link("sys/out", "/etc");
  ck_assert(hk_sysfs_text(scratch_folder, text, sizeof text, "/sys/%s/word", "a"));
  ck_assert_str_eq(text, "  hello");
  ck_assert(!hk_sysfs_text(scratch_folder, text, sizeof text, "/sys/none"));
  ck_assert_str_eq(text, "");
  ck_assert(!hk_sysfs_text(scratch_folder, text, sizeof text, "/sys/a")); /* a folder: it opens, but cannot be read */
  ck_assert(hk_sysfs_text(scratch_folder, text, 5, "/sys/a/word"));       /* as much as fits */
  ck_assert_str_eq(text, "  he");
  ck_assert(hk_sysfs_number(scratch_folder, &v, "/sys/a/number"));
  ck_assert_int_eq(v, 31);
  ck_assert(!hk_sysfs_number(scratch_folder, &v, "/sys/a/word"));
  char **list = hk_sysfs_list(scratch_folder, "/sys/a");
  ck_assert_str_eq(list[0], "n9");
  ck_assert_str_eq(list[1], "n10");
  ck_assert_ptr_null(list[4]);
  free(list);
  ck_assert_ptr_null(hk_sysfs_list(scratch_folder, "/sys/none"));
  ck_assert(hk_sysfs_real(scratch_folder, path, "/sys/b/word"));
  ck_assert_str_eq(path, "/sys/a/word");
  ck_assert(!hk_sysfs_real(scratch_folder, path, "/sys/out"));
  ck_assert(hk_sysfs_link(scratch_folder, text, sizeof text, "/sys/b"));
  ck_assert_str_eq(text, "a");
}

TEST(cpu_lists) {
  uint64_t mask[HK_CPU_MASK_WORDS];
  ck_assert(hk_cpu_list_parse("0-3,8,64", mask));
  ck_assert_uint_eq(mask[0], 0x10f);
  ck_assert_uint_eq(mask[1], 1);
  ck_assert(hk_cpu_list_parse("", mask));
  ck_assert_uint_eq(mask[0], 0);
  ck_assert(!hk_cpu_list_parse("3-1", mask));
  ck_assert(!hk_cpu_list_parse("a", mask));
  ck_assert(!hk_cpu_list_parse("1;2", mask));
  ck_assert(hk_cpu_list_parse("5000-6000", mask)); /* beyond what is kept */
}

/* ---- CPUs ---- */

TEST(two_sockets) {
  fm_cpus(FM_INTEL, 2, 8, 2, 1);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 2);
  const hk_node *a = node(t, HK_NODE_CPU, 0), *b = node(t, HK_NODE_CPU, 1);
  ck_assert_str_eq(a->cpu.arch, "x86_64");
  ck_assert_str_eq(a->cpu.vendor, "GenuineIntel");
  ck_assert_int_eq(a->cpu.family, 6);
  ck_assert_int_eq(a->cpu.model, 143);
  ck_assert_int_eq(a->cpu.cores, 4);
  ck_assert_uint_eq(a->cpu.mask[0], 0xff);
  ck_assert_uint_eq(b->cpu.mask[0], 0xff00);
  ck_assert_float_eq(a->cpu.cache_mib, 32);
  ck_assert_float_gt(a->cpu.memory_gbps, 0);
  ck_assert_float_gt(gbps(t, a, b), 0);
  ck_remarked(t, "PCI devices cannot be seen");
  ck_assert_int_eq(remarks(t), 1);
}

TEST(nodes_of_one_socket) {
  fm_cpus(FM_AMD, 4, 16, 1, 0);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 4);
  ck_assert_int_eq(node(t, HK_NODE_CPU, 3)->cpu.cores, 16);
  /* Inside a chip they are closer than sockets are. */
  ck_assert_float_gt(gbps(t, node(t, HK_NODE_CPU, 0), node(t, HK_NODE_CPU, 1)), 16.5f);
}

TEST(memory_without_processors) {
  fm_cpus(FM_ARM, 1, 4, 1, 0);
  fm_file("sys/devices/system/node/node1/cpulist", "\n");
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_CPU), 1);
  ck_assert_str_eq(node(t, HK_NODE_CPU, 0)->cpu.arch, "arm64");
}

TEST_LOOP(power, 2) {
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_file("proc/cpuinfo", "processor\t: 0\ncpu\t\t: %s (architected), altivec supported\n", _i ? "POWER9" : "other");
  hk_topo *t = detect(0);
  ck_assert_str_eq(node(t, HK_NODE_CPU, 0)->cpu.arch, _i ? "ppc64" : "");
  ck_assert_str_eq(node(t, HK_NODE_CPU, 0)->cpu.vendor, _i ? "IBM" : "");
}

TEST(nothing_visible) {
  fm_folders("sys/x");
  hk_topo *t = detect(0);
  ck_assert_uint_eq(t->nnodes, 1);
  ck_remarked(t, "NUMA nodes cannot be seen");
  ck_remarked(t, "PCI devices cannot be seen");
  ck_assert_int_eq(remarks(t), 2);
}

TEST(no_recorded_machine) {
  hk_topo *t;
  ck_assert_int_eq(hk_topo_detect(&t, 0, "/nowhere"), HK_ERR_ARGUMENT);
  ck_assert_ptr_null(t);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "/nowhere"));
}

/* ---- PCI ---- */

/* Two GPUs and a NIC behind a switch, a GPU on a port of its own, all on a switch of 32 GT/s. */
static void one_switch(fm_pci_info card) {
  fm_cpus(FM_INTEL, 2, 4, 2, 0);
  fm_pci("0000:15:01.0", port);
  fm_pci("0000:15:01.0/0000:16:00.0", port);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:17:00.0", port);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", gpu);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:17:01.0", port);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", gpu);
  fm_pci("0000:15:01.0/0000:16:00.0/0000:17:02.0", port);
  fm_rdma(fm_pci("0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0", card), "mlx5_0", "400 Gb/sec (4X NDR)",
          "4: ACTIVE", "InfiniBand");
  fm_pci_info far = gpu, far_port = port;
  far.numa = far_port.numa = 1;
  far.speed = "2.5 GT/s PCIe"; /* asleep */
  far.max_speed = GEN5;
  fm_pci("0000:80:01.0", far_port);
  fm_pci("0000:80:01.0/0000:81:00.0", far);
}

TEST(switch_and_port) {
  one_switch(nic);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 3);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), 1);
  const hk_node *sw = node(t, HK_NODE_PCI, 0), *net = node(t, HK_NODE_NET, 0), *card = node(t, HK_NODE_NIC, 0);
  uint64_t id;
  ck_assert(hk_bus_id_parse("0000:16:00.0", &id));
  ck_assert_uint_eq(sw->id, id);
  float full = hk_pci_gbps(32, 16);
  ck_assert_float_eq(gbps(t, node(t, HK_NODE_GPU, 0), sw), full);
  ck_assert_float_eq(gbps(t, node(t, HK_NODE_GPU, 1), sw), full);
  ck_assert_float_eq(gbps(t, card, sw), full);
  ck_assert_float_eq(gbps(t, sw, node(t, HK_NODE_CPU, 0)), full);
  ck_assert_float_eq(gbps(t, node(t, HK_NODE_GPU, 2), node(t, HK_NODE_CPU, 1)), full);
  ck_assert_int_eq(node(t, HK_NODE_GPU, 2)->numa, 1);
  ck_assert_int_eq(node(t, HK_NODE_GPU, 2)->gpu.dev, 2);
  ck_assert_str_eq(net->name, "mlx5_0");
  ck_assert_float_eq(net->net.mbps, 400000);
  ck_assert(!net->net.ethernet);
  ck_assert_uint_eq(net->net.guid, 0x0c42a10300c41d2eu);
  ck_assert_ptr_nonnull(edge(t, card, net));
  ck_remarked(t, "NVML");
  ck_remarked(t, "NICs do not reach GPU memory");
  ck_assert_int_eq(remarks(t), 2);
}

TEST(downgraded_link) {
  fm_pci_info slow = nic;
  slow.speed = GEN4;
  slow.width = 8;
  slow.max_speed = GEN5;
  slow.max_width = 16;
  one_switch(slow);
  fm_file("sys/module/nvidia_peermem/version", "1\n");
  hk_topo *t = detect(0);
  ck_remarked(t, "0000:1a:00.0 runs at 16 GT/s x8, below its best of 32 GT/s x16");
  ck_assert_int_eq(remarks(t), 2);
  const hk_node *card = node(t, HK_NODE_NIC, 0);
  ck_assert_float_eq(gbps(t, card, node(t, HK_NODE_PCI, 0)), hk_pci_gbps(16, 8));
  ck_assert(node(t, HK_NODE_NET, 0)->net.gdr);
}

TEST(slot_of_an_older_generation_is_no_fault) {
  fm_pci_info old = port, card = nic;
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  old.speed = GEN4;
  card.speed = GEN4;
  card.max_speed = GEN5;
  fm_pci("0000:15:01.0", old);
  fm_rdma(fm_pci("0000:15:01.0/0000:16:00.0", card), "mlx5_0", "200 Gb/sec (4X HDR)", "4: ACTIVE", "InfiniBand");
  hk_topo *t = detect(0);
  ck_assert_int_eq(remarks(t), 0);
}

TEST(virtual_machine) {
  fm_pci_info bare = {.class_code = 0x030200, .vendor = NVIDIA, .numa = -1};
  fm_cpus(FM_INTEL, 2, 4, 2, 0);
  fm_file("sys/hypervisor/type", "xen\n");
  fm_pci("0000:00:1e.0", bare);
  fm_pci("0000:00:1f.0", bare);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 2);
  ck_remarked(t, "2 PCI devices show no link speed");
  ck_remarked(t, "this is a virtual machine");
  ck_remarked(t, "2 PCI devices have no NUMA node");
  ck_assert_int_eq(remarks(t), 3);
}

/* ---- network ---- */

TEST(two_ports_of_a_card) {
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", port);
  const char *folder = fm_pci("0000:15:01.0/0000:16:00.0", nic);
  fm_rdma(folder, "mlx5_0", "200 Gb/sec (4X HDR)", "4: ACTIVE", "Ethernet");
  folder = fm_pci("0000:15:01.0/0000:16:00.1", nic);
  fm_rdma(folder, "mlx5_1", "200 Gb/sec (4X HDR)", "4: ACTIVE", "Ethernet");
  folder = fm_pci("0000:15:01.0/0000:16:00.2", nic);
  fm_rdma(folder, "mlx5_2", "10 Gb/sec (1X QDR)", "1: DOWN", "Ethernet");
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NIC), 1);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), 0);
  ck_assert(node(t, HK_NODE_NET, 1)->net.ethernet);
  ck_remarked(t, "network port mlx5_2:1 is down and left out");
}

/* A card with its physical function and two virtual ones; then only the virtual ones can be seen, as in a container. */
static void functions(bool physical) {
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", port);
  const char *folder = fm_pci("0000:15:01.0/0000:16:00.0", nic);
  if (physical) fm_rdma(folder, "mlx5_0", "200 Gb/sec (4X HDR)", "4: ACTIVE", "InfiniBand");
  folder = fm_pci("0000:15:01.0/0000:16:01.1", nic);
  fm_rdma(folder, "mlx5_7", "200 Gb/sec (4X HDR)", "4: ACTIVE", "InfiniBand");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:01.1/physfn", "../0000:16:00.0");
  folder = fm_pci("0000:15:01.0/0000:16:01.2", nic);
  fm_rdma(folder, "mlx5_8", "200 Gb/sec (4X HDR)", "4: ACTIVE", "InfiniBand");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:01.2/physfn", "../0000:16:00.0");
}

TEST_LOOP(virtual_functions, 2) {
  functions(_i == 0);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NIC), 1);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 1);
  ck_assert_str_eq(node(t, HK_NODE_NET, 0)->name, _i == 0 ? "mlx5_0" : "mlx5_7");
}

TEST(bond_and_its_members) {
  fm_pci_info ethernet = nic;
  ethernet.class_code = 0x020000;
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", port);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.0", ethernet), "eno1", "up", 100000);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.1", ethernet), "eno2", "up", 100000);
  fm_iface(NULL, "bond0", "up", 200000);
  fm_file("sys/devices/virtual/net/bond0/bonding/slaves", "eno1 eno2\n");
  fm_link("sys/devices/virtual/net/bond0/lower_eno1", "../../../pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1/master", "../../../../../virtual/net/bond0");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.1/net/eno2/master", "../../../../../virtual/net/bond0");
  fm_iface(NULL, "lo", "unknown", 0);
  fm_iface(NULL, "docker0", "up", 10000);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 1);
  ck_assert_str_eq(node(t, HK_NODE_NET, 0)->name, "bond0");
  ck_assert_float_eq(node(t, HK_NODE_NET, 0)->net.mbps, 200000);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NIC), 1);
  ck_assert_int_eq(remarks(t), 0);
}

TEST(interface_of_a_container) {
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", port);
  fm_iface(NULL, "lo", "unknown", 0);
  fm_iface(NULL, "eth0", "up", 10000);
  fm_iface(NULL, "eth1", "down", 10000);
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 1);
  ck_assert_str_eq(node(t, HK_NODE_NET, 0)->name, "eth0");
  ck_remarked(t, "the place of network port eth0 in the PCI tree is not known");
  ck_assert_int_eq(remarks(t), 1);
}

/* Four of AMD's GPUs, each joined to all others. */
TEST(mesh_of_amd) {
  fm_pci_info card = gpu;
  char path[128];
  card.vendor = 0x1002;
  card.class_code = 0x120000;
  fm_cpus(FM_AMD, 1, 4, 1, 0);
  fm_file("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 4\nlocation_id 0\n");
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "0000:%02x:00.0", 0x10 * (i + 1));
    fm_pci(path, card);
    snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/properties", i + 1);
    fm_file(path, "cpu_cores_count 0\nvendor_id 4098\nlocation_id %d\ndomain 0\n", 0x10 * (i + 1) << 8);
    snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/name", i + 1);
    fm_file(path, "gfx942\n");
    for (int k = 0; k < 4; k++) { /* the link to itself stands for the one to the CPU */
      snprintf(path, sizeof path, "sys/class/kfd/kfd/topology/nodes/%d/io_links/%d/properties", i + 1, k);
      fm_file(path, "type %d\nnode_from %d\nnode_to %d\nmax_bandwidth 64000\n", k == i ? 2 : 11, i + 1,
              k == i ? 0 : k + 1);
    }
  }
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_GPU), 4);
  for (uint32_t i = 0; i < 4; i++)
    for (uint32_t k = 0; k < 4; k++) {
      const hk_edge *e = edge(t, node(t, HK_NODE_GPU, i), node(t, HK_NODE_GPU, k));
      if (i == k) continue;
      ck_assert_ptr_nonnull(e);
      ck_assert_float_eq_tol(e->gbps, 48, 0.1f);
    }
  ck_assert_str_eq(node(t, HK_NODE_GPU, 3)->name, "gfx942");
  ck_assert_int_eq(remarks(t), 0);
}

/* ---- odd machines ---- */

/* The first device of the PCI list is a bridge with two devices below it, or the card itself, with two functions and a
 * virtual one. */
TEST_LOOP(first_of_the_list, 2) {
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  if (_i == 0) fm_pci("0000:00:01.0", port);
  const char *folder = fm_pci(_i ? "0000:00:01.0" : "0000:00:01.0/0000:01:00.0", nic);
  fm_rdma(folder, "mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE", "InfiniBand");
  folder = fm_pci(_i ? "0000:00:01.1" : "0000:00:01.0/0000:02:00.0", nic);
  fm_rdma(folder, "mlx5_1", "100 Gb/sec (4X EDR)", "4: ACTIVE", "Ethernet");
  if (_i) {
    fm_rdma(fm_pci("0000:00:02.0", nic), "mlx5_2", "100 Gb/sec (4X EDR)", "4: ACTIVE", "Ethernet");
    fm_link("sys/devices/pci0000:00/0000:00:02.0/physfn", "../0000:00:01.0");
  }
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_PCI), _i ? 0 : 1);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NIC), _i ? 1 : 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 2);
  ck_assert_float_eq(node(t, HK_NODE_NET, 1)->net.mbps, 100000);
}

/* A device that shows no speed, on a port that shows one; and a port that is slower than its device. */
TEST_LOOP(rates_of_the_way, 2) {
  fm_pci_info half = port, bare = nic;
  half.speed = GEN4;
  half.width = 8;
  if (_i == 0) bare.speed = NULL;
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", half);
  fm_rdma(fm_pci("0000:15:01.0/0000:16:00.0", bare), "mlx5_0", "200 Gb/sec (4X HDR)", "4: ACTIVE", "InfiniBand");
  hk_topo *t = detect(0);
  ck_assert_float_eq(gbps(t, node(t, HK_NODE_NIC, 0), node(t, HK_NODE_CPU, 0)), hk_pci_gbps(16, 8));
}

/* Only the processor says that this is a virtual machine. */
TEST_LOOP(hidden_hypervisor, 2) {
  fm_pci_info bare = {.class_code = 0x030200, .vendor = NVIDIA, .numa = -1};
  fm_cpus(FM_INTEL, 2, 4, 2, 0);
  if (_i) fm_file("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu hypervisor vme\n");
  fm_pci("0000:00:1e.0", bare);
  hk_topo *t = detect(0);
  ck_assert_int_eq(remarked(t, "this is a virtual machine"), _i);
}

/* RDMA in software is on the card of the interface below it; a second port of a device has a name of its own; ports
 * that are down are named if there is one, else counted. */
TEST_LOOP(ports_of_all_kinds, 3) {
  fm_pci_info ethernet = nic;
  ethernet.class_code = 0x020000;
  fm_cpus(FM_AMD, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", port);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.0", ethernet), "eno1", "up", 25000);
  fm_file("sys/class/infiniband/rxe0/parent", "eno1\n");
  fm_file("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  fm_file("sys/class/infiniband/rxe0/ports/1/rate", "25 Gb/sec\n");
  fm_file("sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n");
  fm_pci("0000:20:01.0", port);
  const char *folder = fm_pci("0000:20:01.0/0000:21:00.0", nic);
  fm_rdma(folder, "mlx5_0", "200 Gb/sec (4X HDR)", "4: ACTIVE", "InfiniBand");
  fm_file("sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
  fm_file("sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/infiniband/mlx5_0/sys_image_guid", "0001:0002:0003:000f\n");
  for (int i = 0; i < _i; i++) {
    char name[20];
    snprintf(name, sizeof name, "mlx5_%d", i + 1);
    fm_rdma(folder, name, "10 Gb/sec (1X QDR)", "2: INIT", "InfiniBand");
  }
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NIC), 2);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 3);
  ck_assert_str_eq(node(t, HK_NODE_NET, 1)->name, "mlx5_0:2");
  ck_assert_float_eq(node(t, HK_NODE_NET, 1)->net.mbps, 10000); /* unknown */
  ck_assert_uint_eq(node(t, HK_NODE_NET, 0)->net.guid, 0x000100020003000fu);
  ck_assert_int_eq(remarked(t, "network port mlx5_1:1 is down"), _i == 1);
  ck_assert_int_eq(remarked(t, "2 network ports are down and left out: mlx5_1:1 and others"), _i == 2);
}

/* Interfaces that are another one again, or lead nowhere, and one whose state is known by its carrier alone. */
TEST(interfaces_of_all_kinds) {
  fm_pci_info ethernet = nic;
  ethernet.class_code = 0x020000;
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  fm_pci("0000:15:01.0", port);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.0", ethernet), "eno1", "up", 100000);
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.1", ethernet), "eno2", "unknown", -1);
  fm_file("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.1/net/eno2/carrier", "1\n");
  fm_iface(fm_pci("0000:15:01.0/0000:16:00.2", ethernet), "eno3", "unknown", 100000);
  fm_file("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.2/net/eno3/carrier", "0\n");
  fm_iface(NULL, "vlan7", "up", 100000);
  fm_link("sys/devices/virtual/net/vlan7/lower_eno1", "../../../pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1");
  fm_iface(NULL, "br0", "up", 100000);
  fm_file("sys/devices/virtual/net/br0/bridge/stp_state", "0\n");
  fm_link("sys/devices/virtual/net/br0/lower_eno1", "../../../pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1");
  fm_link("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/net/eno1/master", "../../../../../virtual/net/br0");
  hk_topo *t = detect(0);
  ck_assert_uint_eq(hk_topo_count(t, HK_NODE_NET), 2);
  ck_assert_str_eq(node(t, HK_NODE_NET, 0)->name, "eno1"); /* a bridge's port counts itself */
  ck_assert_str_eq(node(t, HK_NODE_NET, 1)->name, "eno2");
  ck_remarked(t, "speed is not known");
}

/* ---- this machine ---- */

TEST(this_machine) {
  hk_topo *with, *without;
  ck_assert_int_eq(hk_topo_detect(&with, 0, ""), HK_OK);
  ck_assert_int_eq(hk_topo_detect(&without, HK_DETECT_NO_HWLOC, NULL), HK_OK);
  ck_assert_uint_ge(hk_topo_count(with, HK_NODE_CPU), 1);
  ck_assert_uint_eq(hk_topo_count(with, HK_NODE_CPU), hk_topo_count(without, HK_NODE_CPU));
  for (uint32_t i = 0; i < hk_topo_count(with, HK_NODE_CPU); i++) {
    const hk_node *a = node(with, HK_NODE_CPU, i), *b = node(without, HK_NODE_CPU, i);
    ck_assert_uint_eq(a->id, b->id);
    ck_assert_int_eq(a->cpu.cores, b->cpu.cores);
    ck_assert_mem_eq(a->cpu.mask, b->cpu.mask, sizeof a->cpu.mask);
  }
  hk_topo_free(with);
  hk_topo_free(without);
}

typedef struct table {
  int (*there)(void), (*newer)(void), (*not_there)(void);
} table;
TEST(optional_symbols) {
  static table found;
  static const hk_dl_symbol symbols[] = {HK_DL_SYMBOL(table, there, "getpid"),
                                         HK_DL_SYMBOL(table, newer, "getpid_v9", "getppid"),
                                         HK_DL_OPTIONAL(table, not_there, "hocket_none")};
  static const hk_dl_symbol needed[] = {HK_DL_SYMBOL(table, there, "getpid"),
                                        HK_DL_SYMBOL(table, not_there, "hocket_none")};
  hk_dl lib = {.files = {"no-such-library.so", "libc.so.6"}, .loss = "nothing", .symbols = symbols, .nsymbols = 3};
  lib.table = &found;
  ck_assert(hk_dl_load(&lib));
  ck_assert_int_eq(found.there(), getpid());
  ck_assert_int_eq(found.newer(), getppid());
  ck_assert(!found.not_there);
  hk_dl old = {.files = {"libc.so.6"}, .loss = "nothing", .symbols = needed, .nsymbols = 2, .table = &found};
  ck_assert(!hk_dl_load(&old));
  ck_assert(!found.there);
  ck_assert_ptr_nonnull(strstr(old.why, "hocket_none"));
  hk_dl gone = {.files = {"no-such-library.so"}, .loss = "nothing", .symbols = needed, .nsymbols = 2, .table = &found};
  ck_assert(!hk_dl_load(&gone));
  ck_assert(!hk_dl_load(&gone));
}

int main(void) {
  golden_clear(GOLDEN);
  return suite_main("detect", .setup = scratch_make, .teardown = end);
}
