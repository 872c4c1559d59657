/* SPDX-License-Identifier: Apache-2.0 */
/* The order of RDMA devices: by their PCI addresses, for the ports of a rank and for the topology. So ranks of a host
 * agree, and so do hosts of one kind whose devices have other names. */
#include "../../src/base/param.h"
#include "../../src/base/sysfs.h"
#include "../../src/topo/detect.h"
#include "../../src/topo/topo.h"
#include "../../src/transport/net/ib/ib_port.h"
#include "../support/fake_machine.h"
#include "../support/suite.h"

/* Two hosts with the same cards; the drivers were loaded in another order on the second one. The last device of each
 * is no PCI device. */
static const struct {
  const char *name, *function;
} hosts[2][5] = {{{"mlx5_0", "0000:00:01.0/0000:09:00.0"},
                  {"mlx5_1", "0000:00:01.0/0000:09:00.1"},
                  {"mlx5_2", "0000:00:02.0/0000:1a:00.0"},
                  {"mlx5_10", "0001:00:01.0/0001:03:00.0"},
                  {"rxe0", NULL}},
                 {{"ibp9s0f0", "0000:00:01.0/0000:09:00.0"},
                  {"ibp9s0f1", "0000:00:01.0/0000:09:00.1"},
                  {"bond", "0000:00:02.0/0000:1a:00.0"},
                  {"another", "0001:00:01.0/0001:03:00.0"},
                  {"a", NULL}}};
enum { DEVICES = 5 };

static void make(int host) {
  char path[256], target[256];
  scratch_make();
  fm_cpus(FM_INTEL, 1, 4, 1, 0);
  for (int i = 0; i < DEVICES; i++) {
    const char *name = hosts[host][i].name, *function = hosts[host][i].function;
    snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/state", name);
    fm_file(path, "4: ACTIVE\n");
    snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/link_layer", name);
    fm_file(path, "InfiniBand\n");
    if (!function) continue;
    fm_pci(function, (fm_pci_info){.class_code = 0x020000, .vendor = 0x15b3});
    snprintf(path, sizeof path, "sys/class/infiniband/%s/device", name);
    snprintf(target, sizeof target, "../../../devices/pci%.7s/%s", function, function);
    fm_link(path, target);
  }
  setenv("HOCKET_IB_ROOT", scratch_folder, 1);
  hk_param_reload();
}

TEST_LOOP(follows_pci_addresses, 2) {
  hk_ib_port ports[HK_IB_PORTS];
  char why[160];
  int near;
  make(_i);
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), DEVICES);
  for (int i = 0; i < DEVICES; i++) {
    ck_assert_str_eq(ports[i].device, hosts[_i][i].name);
    ck_assert_int_eq(ports[i].position, i);
  }
  hk_topo *t;
  int nets = 0;
  ck_assert_int_eq(hk_topo_detect(&t, HK_DETECT_NO_HWLOC, scratch_folder), HK_OK);
  for (uint32_t i = 0; i < t->nnodes; i++) {
    const hk_node *n = &t->nodes[i];
    if (n->kind != HK_NODE_NET) continue;
    ck_assert_str_eq(n->name, hosts[_i][n->net.rail].name);
    ck_assert_int_eq(n->net.dev, n->net.rail);
    nets++;
  }
  ck_assert_int_eq(nets, DEVICES);
  hk_topo_free(t);
  setenv("NCCL_IB_DEVICE_PCI_ORDER", "0", 1);
  hk_param_reload();
  static const int by_name[2][DEVICES] = {{0, 1, 2, 3, 4}, {4, 3, 2, 0, 1}};
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), DEVICES);
  for (int i = 0; i < DEVICES; i++) /* what is near the CPU comes first, whatever its position */
    ck_assert_str_eq(ports[i].device, hosts[_i][by_name[_i][ports[i].position]].name);
  scratch_remove();
}

/* A device is below its PCI function, and what looks like an address in its name is none. */
TEST(sorts_entries) {
  const char *functions[] = {"10000:00:00.0", "0000:00:1f.7", "0000:00:1f.6", "0000:ff:00.0"};
  static const int sorted[] = {2, 1, 3, 0};
  char path[256], target[256], names[6][32];
  char *list[7] = {0};
  scratch_make();
  for (int i = 0; i < 6; i++) {
    snprintf(names[i], sizeof names[i], i < 5 ? "n%d" : "0000:00:00.0x", i);
    list[i] = names[i];
    snprintf(path, sizeof path, "sys/class/infiniband/%s", names[i]);
    snprintf(target, sizeof target, "../../devices/pci0/%s/infiniband/%s", i < 4 ? functions[i] : "virtual", names[i]);
    fm_link(path, target);
    snprintf(path, sizeof path, "sys/devices/pci0/%s/infiniband/%s/x", i < 4 ? functions[i] : "virtual", names[i]);
    fm_file(path, "\n");
  }
  hk_sysfs_sort_by_pci(scratch_folder, "/sys/class/infiniband", list);
  for (int i = 0; i < 4; i++) ck_assert_ptr_eq(list[i], names[sorted[i]]);
  ck_assert_ptr_eq(list[4], names[4]);
  ck_assert_ptr_eq(list[5], names[5]);
  hk_sysfs_sort_by_pci(scratch_folder, "/sys/class/infiniband", NULL);
  list[0] = NULL;
  hk_sysfs_sort_by_pci(scratch_folder, "/sys/class/infiniband", list);
  scratch_remove();
}

int main(void) { return suite_main("ib_order"); }
