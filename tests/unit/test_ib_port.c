/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Which RDMA ports and GIDs are taken, on invented machines: no device is needed. */
#include <arpa/inet.h>
#include <check.h>
#include <sched.h> /* getcpu */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/base/param.h"
#include "../../src/transport/net/ib_port.h"
#include "../support/fake_machine.h"
#include "../support/suite.h"

START_TEST(takes_what_the_filter_names) {
  ck_assert(hk_ib_hca_takes(NULL, "mlx5_0", 1) && hk_ib_hca_takes("", "mlx5_0", 1));
  ck_assert(hk_ib_hca_takes("mlx5", "mlx5_0", 1) && hk_ib_hca_takes("mlx5_1", "mlx5_10", 1));
  ck_assert(!hk_ib_hca_takes("=mlx5_1", "mlx5_10", 1) && hk_ib_hca_takes("=mlx5_1,mlx5_10", "mlx5_10", 1));
  ck_assert(!hk_ib_hca_takes("^mlx5_1", "mlx5_10", 1) && hk_ib_hca_takes("^=mlx5_1", "mlx5_10", 1));
  ck_assert(hk_ib_hca_takes("mlx5_0:1,mlx5_1:2", "mlx5_1", 2) && !hk_ib_hca_takes("mlx5_0:1,mlx5_1:2", "mlx5_1", 1));
  ck_assert(!hk_ib_hca_takes("^mlx5_0:2", "mlx5_0", 2) && hk_ib_hca_takes("^mlx5_0:2", "mlx5_0", 1));
  ck_assert(!hk_ib_hca_takes("rxe,,", "mlx5_0", 1) && hk_ib_hca_takes(",rxe", "rxe0", 1));
}
END_TEST

static hk_ib_gid gid(int index, hk_ib_gid_kind kind, const char *address, int prefix) {
  hk_ib_gid g = {.index = (uint8_t)index, .kind = (uint8_t)kind, .prefix = (uint8_t)prefix};
  ck_assert_int_eq(inet_pton(AF_INET6, address, g.gid.raw), 1);
  return g;
}

static int table(hk_ib_gid out[6], const char *host) { /* as a mlx5 port has them */
  char v4[48], local[48], global[48];
  snprintf(v4, sizeof v4, "::ffff:10.1.0.%s", host);
  snprintf(local, sizeof local, "fe80::%s", host);
  snprintf(global, sizeof global, "fd00::%s", host);
  out[0] = gid(0, HK_IB_GID_ROCE1, local, 64);
  out[1] = gid(1, HK_IB_GID_ROCE2, local, 64);
  out[2] = gid(2, HK_IB_GID_ROCE1, v4, 24);
  out[3] = gid(3, HK_IB_GID_ROCE2, v4, 24);
  out[4] = gid(4, HK_IB_GID_ROCE1, global, 64);
  out[5] = gid(5, HK_IB_GID_ROCE2, global, 64);
  return 6;
}

START_TEST(orders_gids) {
  static const int expected[] = {3, 5, 1, 2, 4, 0}, old[] = {2, 4, 0, 3, 5, 1};
  hk_ib_gid g[6];
  hk_ib_gid_wish w = {.index = -1, .version = 2, .family = AF_UNSPEC};
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 6);
  for (int i = 0; i < 6; i++) ck_assert_int_eq(g[i].index, expected[i]);
  w.version = 1;
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 6);
  for (int i = 0; i < 6; i++) ck_assert_int_eq(g[i].index, old[i]);
  w = (hk_ib_gid_wish){.index = 4, .version = 2};
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 1);
  ck_assert_int_eq(g[0].index, 4);
  w = (hk_ib_gid_wish){.index = -1, .version = 2, .family = AF_INET6};
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 4);
  ck_assert_int_eq(g[0].index, 5);
  w = (hk_ib_gid_wish){.index = 9, .version = 2};
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 0);
}
END_TEST

/* What is neither InfiniBand nor RoCE is told and left aside, whatever its port looks like. */
START_TEST(leaves_others_aside) {
  static const struct {
    const char *type, *why;
  } kinds[] = {{"1: CA", NULL}, {"4: RNIC", "iWARP"}, {"7: <unknown>", "net plugin"}};
  hk_ib_port ports[HK_IB_PORTS];
  char why[160];
  int near;
  scratch_make();
  fm_file("sys/class/infiniband/x0/ports/1/state", "4: ACTIVE\n");
  fm_file("sys/class/infiniband/x0/ports/1/link_layer", "Ethernet\n");
  fm_file("sys/class/infiniband/x0/ports/1/gids/0", "0200:0000:0001:0000:0000:0000:0000:0001\n");
  setenv("HOCKET_IB_ROOT", scratch_folder, 1);
  hk_param_reload();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(kinds); i++) {
    fm_file("sys/class/infiniband/x0/node_type", "%s\n", kinds[i].type);
    ck_assert_int_eq(hk_ib_ports(ports, &near, NULL, NULL, why, sizeof why), !kinds[i].why);
    if (kinds[i].why) ck_assert_msg(strstr(why, "x0 is ") && strstr(why, kinds[i].why), "%s", why);
  }
  scratch_remove();
}
END_TEST

static bool refuses_one(void *arg, const char *device, char *why, size_t why_bytes) {
  snprintf(why, why_bytes, "Operation not permitted");
  return strcmp(device, arg) != 0;
}

static void active_port(const char *name, const char *function, const char *rate) {
  char path[160], target[96];
  snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/state", name);
  fm_file(path, "4: ACTIVE\n");
  snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/rate", name);
  fm_file(path, "%s\n", rate);
  snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/link_layer", name);
  fm_file(path, "InfiniBand\n");
  snprintf(path, sizeof path, "sys/class/infiniband/%s/device", name);
  snprintf(target, sizeof target, "../../../devices/pci0000:00/%s", function);
  fm_link(path, target);
  snprintf(path, sizeof path, "sys/devices/pci0000:00/%s/class", function);
  fm_file(path, "0x020000\n");
}

/* A container sees devices that it may not open: they are left out, and a virtual function is not left out for the sake
 * of a physical one that is. */
START_TEST(leaves_out_what_does_not_open) {
  static const struct {
    const char *refused;
    int n;
    const char *first;
  } cases[] = {{"none", 1, "pf"}, {"pf", 1, "vf"}, {"vf", 1, "pf"}}; /* one of two virtual ones is enough */
  hk_ib_port ports[HK_IB_PORTS];
  char why[160];
  int near;
  scratch_make();
  active_port("pf", "0000:03:00.0", "100 Gb/sec (4X EDR)");
  active_port("vf", "0000:03:00.2", "100 Gb/sec (4X EDR)");
  active_port("vg", "0000:03:00.3", "100 Gb/sec (4X EDR)");
  fm_link("sys/devices/pci0000:00/0000:03:00.2/physfn", "../0000:03:00.0");
  fm_link("sys/devices/pci0000:00/0000:03:00.3/physfn", "../0000:03:00.0");
  setenv("HOCKET_IB_ROOT", scratch_folder, 1);
  hk_param_reload();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    void *refused = (void *)(uintptr_t)cases[i].refused;
    ck_assert_int_eq(hk_ib_ports(ports, &near, refuses_one, refused, why, sizeof why), cases[i].n);
    ck_assert_str_eq(ports[0].device, cases[i].first);
    ck_assert_uint_eq(ports[0].mbps, 100000);
  }
  setenv("NCCL_IB_HCA", "=pf", 1);
  hk_param_reload();
  ck_assert_int_eq(hk_ib_ports(ports, &near, refuses_one, (void *)(uintptr_t) "pf", why, sizeof why), 0);
  ck_assert_msg(strstr(why, "pf cannot be opened: Operation not permitted"), "%s", why);
  scratch_remove();
}
END_TEST

static hk_status wishes(const char *name, const char *value, hk_ib_gid_wish *w) {
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv(name, value, 1);
  hk_param_reload();
  hk_status rc = hk_ib_gid_wishes(w);
  unsetenv(name);
  hk_param_reload();
  return rc;
}

START_TEST(reads_ranges) {
  hk_ib_gid g[6];
  hk_ib_gid_wish w;
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.1.0.0/16", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 2);
  ck_assert_int_eq(g[0].index, 3);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.2.0.0/16", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 0);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "fd00::/8", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/15", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.2.0.0/15", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 0);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.1.0.1/32", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "fd00::1", &w), HK_OK); /* all bits */
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "0.0.0.0/0", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, table(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/-1", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/8x", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/33", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "fd00::/129", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "somewhere", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_FAMILY", "IPX", &w), HK_ERR_USAGE);
}
END_TEST

static hk_ib_port port(const char *name, const char *host, uint8_t layer) {
  hk_ib_port p = {.number = 1, .layer = layer, .mtu = 5, .lid = (uint16_t)atoi(host)};
  snprintf(p.device, sizeof p.device, "%s", name);
  hk_ib_gid_wish w = {.index = -1, .version = 2, .family = AF_UNSPEC};
  p.ngids = (uint8_t)hk_ib_gids_order(p.gids, table(p.gids, host), &w);
  return p;
}

/* Both ends must have the same order, told from their own side. */
START_TEST(both_ends_pair_alike) {
  hk_ib_port a[] = {port("a0", "1", HK_IBV_LAYER_ETHERNET), port("a1", "2", HK_IBV_LAYER_ETHERNET),
                    port("a2", "3", HK_IBV_LAYER_INFINIBAND)};
  hk_ib_port b[] = {port("b0", "11", HK_IBV_LAYER_ETHERNET), port("b1", "12", HK_IBV_LAYER_INFINIBAND)};
  hk_ib_pair x[HK_IB_PAIRS], y[HK_IB_PAIRS];
  char words[64];
  b[0].gids[0] = gid(3, HK_IB_GID_ROCE2, "::ffff:10.9.0.11", 24); /* another network than a's */
  int n = hk_ib_pairs(a, 3, b, 2, true, 2, x);
  ck_assert_int_eq(n, 13);
  ck_assert_int_eq(hk_ib_pairs(b, 2, a, 3, false, 2, y), n);
  for (int i = 0; i < n; i++) {
    ck_assert(x[i].mine == y[i].theirs && x[i].theirs == y[i].mine);
    ck_assert(x[i].my_gid == y[i].their_gid && x[i].their_gid == y[i].my_gid);
  }
  ck_assert_int_eq(x[0].mine, 2); /* InfiniBand finds its way by itself */
  ck_assert_ptr_nonnull(strstr(hk_ib_pair_words(a, b, &x[0], words), "LID 3 to 12"));
  ck_assert_str_eq(hk_ib_pair_words(a, b, &x[1], words), "RoCE v2, IPv4, two networks");
  ck_assert_int_eq(x[1].mine, 0);
  ck_assert_str_eq(hk_ib_pair_words(a, b, &x[3], words), "RoCE v2, IPv6, one network");
  ck_assert_str_eq(hk_ib_pair_words(a, b, &x[n - 1], words), "RoCE v1, link-local IPv6, one network");
  a[0].ngids = 0;
  ck_assert_int_eq(hk_ib_pairs(a, 1, b, 2, true, 2, x), 0);
  ck_assert_int_eq(hk_ib_pairs(b, 2, a, 1, false, 2, x), 0);
  ck_assert_int_eq(hk_ib_pairs(a + 2, 1, b, 1, true, 2, x), 0);
}
END_TEST

/* ---- cards ---- */

/* Two functions of a card; a card on the same switch; one behind another root port; one of the other host bridge; a
 * virtual function of the first card's second port; a device of software; a card on a switch below the first one. */
static const char *const plugs[] = {"0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
                                    "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1",
                                    "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
                                    "0000:00:02.0/0000:05:00.0",
                                    "0001:00:01.0/0001:01:00.0",
                                    "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:01.2",
                                    NULL,
                                    "0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:06:00.0/0000:07:00.0"};
enum { PLUGS = 8, VIRTUAL = 5 };

static void plug_in(void) {
  char path[256], target[256];
  scratch_make();
  for (int i = 0; i < PLUGS; i++) {
    if (!plugs[i]) continue;
    fm_pci(plugs[i], (fm_pci_info){.class_code = 0x020000, .vendor = 0x15b3});
    snprintf(path, sizeof path, "sys/class/infiniband/mlx%d/device", i);
    snprintf(target, sizeof target, "../../../devices/pci%.7s/%s", plugs[i], plugs[i]);
    fm_link(path, target);
  }
  snprintf(path, sizeof path, "sys/devices/pci%.7s/%s/physfn", plugs[VIRTUAL], plugs[VIRTUAL]);
  fm_link(path, "../0000:03:00.1");
}

static const struct {
  const char *name, *value;
  int n;
  const char *cards; /* the cards' members, in the order in which they are offered */
} merges[] = {{"NCCL_NET_MERGE_LEVEL", "PORT", 7, "01,2,3,4,6,7"},
              {"NCCL_NET_MERGE_LEVEL", "", 7, "01,2,3,4,6,7"},
              {"NCCL_NET_MERGE_LEVEL", "LOC", 7, "0,1,2,3,4,6,7"},
              {"NCCL_IB_MERGE_NICS", "0", 7, "0,1,2,3,4,6,7"},
              {"NCCL_NET_MERGE_LEVEL", "PIX", 7, "012,3,4,6,7"},
              {"NCCL_NET_MERGE_LEVEL", "phb", 7, "01237,4,6"},
              {"NCCL_NET_MERGE_LEVEL", "PXB", 7, "0127,3,4,6"},
              {"NCCL_NET_MERGE_LEVEL", "SYS", 7, "0123467"},
              {"NCCL_IB_MERGE_VFS", "0", 8, "01,2,3,4,5,6,7"},
              {"NCCL_NET_FORCE_MERGE", "mlx0,mlx3;mlx6,mlx2", 7, "03,1,26,4,7"}};

START_TEST(merges_ports) {
  hk_ib_port ports[PLUGS];
  char text[64] = "";
  int n = PLUGS, near = 0;
  plug_in();
  for (int i = 0; i < PLUGS; i++) {
    ports[i] = (hk_ib_port){.number = 1, .layer = HK_IBV_LAYER_ETHERNET};
    snprintf(ports[i].device, sizeof ports[i].device, "mlx%d", i);
  }
  setenv(merges[_i].name, merges[_i].value, 1);
  hk_param_reload();
  ck_assert_int_eq(hk_ib_merge(scratch_folder, ports, &n, &near), HK_OK);
  ck_assert_int_eq(n, merges[_i].n);
  for (int i = 0; i < n; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s",
             i && ports[i].card != ports[i - 1].card ? "," : "", ports[i].device + 3);
  ck_assert_str_eq(text, merges[_i].cards);
  scratch_remove();
}
END_TEST

/* Slow ports come after fast ones, even if they are near, and are not merged with them. */
START_TEST(slow_ports_stand_by) {
  static const struct {
    int near, fast_near; /* ports that are near; of these, those that take turns afterwards */
    uint32_t mbps[4];
    const char *order, *cards;
  } cases[] = {{2, 4, {0, 0, 0, 0}, "0123", "0000"},
               {2, 2, {25000, 400000, 400000, 25000}, "1203", "0022"},
               {1, 3, {25000, 400000, 400000, 400000}, "1230", "0003"},
               {0, 3, {25000, 400000, 400000, 400000}, "1230", "0003"},
               {4, 4, {200000, 400000, 400000, 400000}, "0123", "0111"}};
  setenv("NCCL_NET_MERGE_LEVEL", "SYS", 1);
  hk_param_reload();
  for (size_t k = 0; k < HK_ARRAY_LENGTH(cases); k++) {
    hk_ib_port ports[4];
    int n = 4, near = cases[k].near;
    for (int i = 0; i < n; i++) ports[i] = (hk_ib_port){.number = (uint8_t)i, .mbps = cases[k].mbps[i]};
    ck_assert_int_eq(hk_ib_merge("/nowhere", ports, &n, &near), HK_OK);
    ck_assert_int_eq(near, cases[k].fast_near);
    for (int i = 0; i < n; i++) {
      ck_assert_int_eq(ports[i].number, cases[k].order[i] - '0');
      ck_assert_int_eq(ports[i].card, cases[k].cards[i] - '0');
    }
  }
}
END_TEST

/* ---- rails and subnets ---- */

static void set_param(const char *name, const char *value) {
  setenv(name, value, 1);
  hk_param_reload();
}

START_TEST(reads_rails) {
  ck_assert_int_eq(hk_ib_hca_rail("mlx5_0:1:3:0,mlx5_1:1:4", "mlx5_0", 1), 3);
  ck_assert_int_eq(hk_ib_hca_rail("=mlx5_0:1:3:0,mlx5_1::4", "mlx5_1", 1), 4);
  ck_assert_int_eq(hk_ib_hca_rail("mlx5_0:1,mlx5_1", "mlx5_1", 1), -1);
  ck_assert_int_eq(hk_ib_hca_rail("mlx5_0:1,mlx5_1:1:2", "mlx5_0", 1), -1);
  ck_assert_int_eq(hk_ib_hca_rail("^mlx5_0:1:2", "mlx5_1", 1), -1);
  ck_assert_int_eq(hk_ib_hca_rail(NULL, "mlx5_0", 1), -1);
  for (const char *c = "/:x,"; *c; c++) { /* no number */
    char item[32];
    snprintf(item, sizeof item, "mlx5_0:1:%c", *c);
    ck_assert_int_eq(hk_ib_hca_rail(item, "mlx5_0", 1), -1);
  }
  ck_assert(hk_ib_hca_rail("mlx5_0:1:0", "mlx5_0", 1) == 0 && hk_ib_hca_rail("mlx5_0:1:9", "mlx5_0", 1) == 9);
  ck_assert(hk_ib_hca_takes("mlx5_0:1:3:0", "mlx5_0", 1) && !hk_ib_hca_takes("mlx5_0:1:3:0", "mlx5_0", 2));
}
END_TEST

/* Two ranks that begin with ports of different rails. */
START_TEST(one_rail_before_two) {
  hk_ib_port a[2] = {port("a0", "1", HK_IBV_LAYER_ETHERNET), port("a1", "2", HK_IBV_LAYER_ETHERNET)};
  hk_ib_port b[2] = {port("b1", "12", HK_IBV_LAYER_ETHERNET), port("b0", "11", HK_IBV_LAYER_ETHERNET)};
  hk_ib_pair x[HK_IB_PAIRS];
  for (int i = 0; i < 2; i++) {
    a[i].position = (uint8_t)i;
    b[i].position = (uint8_t)(1 - i);
    a[i].rail = b[i].rail = -1;
  }
  hk_ib_pairs(a, 2, b, 2, true, 2, x);
  ck_assert(x[0].mine == 0 && x[0].theirs == 1); /* a0 and b0, although b1 is b's first */
  for (int i = 0; i < 2; i++) {                  /* what the user says counts: a0 and b1 are one rail */
    a[i].rail = (int16_t)i;
    b[i].rail = (int16_t)i;
  }
  int n = hk_ib_pairs(a, 2, b, 2, true, 2, x);
  for (int i = 0; i < n; i++) ck_assert_int_eq(x[i].mine == x[i].theirs, i < n / 2);
  set_param("NCCL_CROSS_NIC", "0");
  int isolated = hk_ib_pairs(a, 2, b, 2, true, 2, x);
  ck_assert_int_eq(isolated, n / 2);
  for (int i = 0; i < isolated; i++) ck_assert_int_eq(x[i].mine, x[i].theirs);
  b[0].rail = b[1].rail = 7; /* without a common rail there is nothing better */
  ck_assert_int_gt(hk_ib_pairs(a, 2, b, 2, true, 2, x), 0);
}
END_TEST

/* A GPU's near port is on another rail than the peer's, and rails are not connected: the far port of the same rail. */
START_TEST(far_port_of_the_rail) {
  hk_ib_port a[2] = {port("a0", "1", HK_IBV_LAYER_ETHERNET), port("a1", "2", HK_IBV_LAYER_ETHERNET)};
  hk_ib_port b[1] = {port("b1", "12", HK_IBV_LAYER_ETHERNET)};
  hk_ib_pair x[HK_IB_PAIRS];
  a[1].far = 1;
  a[1].position = b[0].position = 1;
  for (int i = 0; i < 2; i++) a[i].rail = b[0].rail = -1;
  int n = hk_ib_pairs(a, 2, b, 1, true, 2, x);
  for (int i = 0; i < n; i++) ck_assert_int_eq(x[i].mine, 0);
  set_param("NCCL_CROSS_NIC", "0");
  n = hk_ib_pairs(a, 2, b, 1, true, 2, x);
  for (int i = 0; i < n; i++) ck_assert_int_eq(x[i].mine, 1);
}
END_TEST

static hk_ib_port infiniband(int lid, const char *first, const char *second) {
  hk_ib_port p = {.number = 1, .layer = HK_IBV_LAYER_INFINIBAND, .lid = (uint16_t)lid, .rail = -1};
  p.gids[p.ngids++] = gid(0, HK_IB_GID_IB, first, 64);
  if (second) p.gids[p.ngids++] = gid(1, HK_IB_GID_IB, second, 64);
  return p;
}

START_TEST(knows_subnets) {
  hk_ib_port a = infiniband(1, "fe80::1", NULL), same = infiniband(2, "fe80::2", NULL);
  hk_ib_port here = infiniband(3, "fec0:0:0:1::3", "fec0:0:30:1::3"),
             there = infiniband(4, "fec0:0:0:2::4", "fec0:0:40:2::4");
  hk_ib_port both[2] = {there, infiniband(5, "fec0:0:0:1::5", NULL)};
  hk_ib_pair x[HK_IB_PAIRS];
  char words[64];
  ck_assert(hk_ib_one_subnet(&a, &same) && !hk_ib_one_subnet(&here, &there) && hk_ib_one_subnet(&here, &both[1]));
  ck_assert_uint_eq(hk_ib_router_lid(&there.gids[1].gid), 0x40);
  ck_assert_int_eq(hk_ib_pairs(&here, 1, &there, 1, true, 2, x), 1);
  ck_assert(x[0].my_gid == 1 && x[0].their_gid == 1); /* those that routers forward */
  ck_assert_ptr_nonnull(strstr(hk_ib_pair_words(&here, &there, &x[0], words), "two subnets"));
  ck_assert_int_eq(hk_ib_pairs(&here, 1, both, 2, true, 2, x), 2);
  ck_assert_int_eq(x[0].theirs, 1); /* its own subnet first */
  both[0].ngids = 1;                /* without a GID that routers forward: not at all */
  ck_assert_int_eq(hk_ib_pairs(&here, 1, both, 2, true, 2, x), 1);
  ck_assert_int_eq(x[0].theirs, 1);
}
END_TEST

/* What ranks know of each other's ports: rails, subnets, link layers. */
static bool meet(const hk_ib_port *a, const hk_ib_port *b, int nb, char why[160]) {
  hk_ib_spot here = hk_ib_spot_of(a), there[2];
  for (int i = 0; i < nb; i++) there[i] = hk_ib_spot_of(&b[i]);
  bool met = hk_ib_spots_meet(&here, 1, there, nb, why, 160);
  ck_assert_int_eq(hk_ib_spots_meet(there, nb, &here, 1, why, 160), met);
  (void)hk_ib_spots_meet(&here, 1, there, nb, why, 160);
  return met;
}

START_TEST(knows_who_meets) {
  hk_ib_port a = port("a0", "1", HK_IBV_LAYER_ETHERNET);
  hk_ib_port b[2] = {port("b0", "11", HK_IBV_LAYER_ETHERNET), port("b1", "12", HK_IBV_LAYER_ETHERNET)};
  char why[160];
  a.rail = b[0].rail = b[1].rail = -1;
  b[0].position = 2;
  b[1].position = 1;
  ck_assert(meet(&a, b, 2, why));
  set_param("NCCL_CROSS_NIC", "0");
  ck_assert(!meet(&a, b, 2, why));
  ck_assert_str_eq(why, "rail 0 and rails 2 and 1, which NCCL_CROSS_NIC=0 says are not connected");
  a.position = 1;
  ck_assert(meet(&a, b, 2, why));
  a.rail = 1; /* one side alone has numbers: positions decide */
  ck_assert(meet(&a, b, 2, why));
  b[0].rail = 5;
  b[1].rail = 6;
  ck_assert(!meet(&a, b, 2, why));
  ck_assert_ptr_nonnull(strstr(why, "rail 1 and rails 5 and 6"));
  b[0].rail = 1;
  ck_assert(meet(&a, b, 2, why) && meet(&a, b, 1, why) && !meet(&a, b + 1, 1, why));
  set_param("NCCL_CROSS_NIC", "2");
  hk_ib_port plain = infiniband(1, "fe80::1", NULL), here = infiniband(3, "fec0:0:0:1::3", "fec0:0:30:1::3"),
             there = infiniband(4, "fec0:0:0:2::4", "fec0:0:40:2::4"), bare = infiniband(5, "fec0:0:0:2::5", NULL),
             unknown = {.layer = HK_IBV_LAYER_INFINIBAND, .rail = -1};
  ck_assert(!meet(&a, &plain, 1, why));
  ck_assert_str_eq(why, "one has RoCE ports only and the other InfiniBand");
  ck_assert(meet(&here, &there, 1, why) && meet(&there, &bare, 1, why) && meet(&unknown, &bare, 1, why));
  ck_assert(!meet(&here, &bare, 1, why) && !meet(&here, &plain, 1, why));
  ck_assert_ptr_nonnull(strstr(why, "two InfiniBand subnets without a router"));
}
END_TEST

/* More pairs than there is room for: both ends keep the same ones, the best, in the same order. */
START_TEST(keeps_the_best_pairs) {
  hk_ib_port a[HK_IB_OFFERED], b[HK_IB_OFFERED];
  hk_ib_pair x[HK_IB_PAIRS], y[HK_IB_PAIRS];
  for (int i = 0; i < HK_IB_OFFERED; i++) {
    char host[16];
    snprintf(host, sizeof host, "%d", 1 + i);
    a[i] = port("a", host, HK_IBV_LAYER_ETHERNET);
    snprintf(host, sizeof host, "%d", 11 + i);
    b[i] = port("b", host, HK_IBV_LAYER_ETHERNET);
    a[i].rail = b[i].rail = -1;
    a[i].position = (uint8_t)i;
    b[i].position = (uint8_t)(i ^ 1);
  }
  ck_assert_int_eq(hk_ib_pairs(a, 8, b, 8, true, 2, x), HK_IB_PAIRS);
  ck_assert_int_eq(hk_ib_pairs(b, 8, a, 8, false, 2, y), HK_IB_PAIRS);
  for (int i = 0; i < HK_IB_PAIRS; i++) {
    ck_assert(x[i].mine == y[i].theirs && x[i].theirs == y[i].mine && x[i].cost == y[i].cost);
    ck_assert(x[i].my_gid == 0 && x[i].their_gid == 0); /* the 64 pairs of ports by the best GIDs */
    if (i) ck_assert(x[i - 1].cost <= x[i].cost);
    for (int k = 0; k < i; k++) ck_assert(x[k].mine != x[i].mine || x[k].theirs != x[i].theirs);
  }
  ck_assert(x[0].mine == 0 && x[0].theirs == 1); /* one position: its cost is that of the places in the lists alone */
  ck_assert_uint_eq(x[0].cost, 1);
}
END_TEST

START_TEST(pairs_go_together) {
  const hk_ib_port cards[3] = {{.card = 0}, {.card = 0}, {.card = 2}};
  static const struct {
    uint8_t mine[2], theirs[2];
    uint16_t cost[2];
    bool yes;
  } cases[] = {{{0, 1}, {0, 1}, {0, 31}, true}, {{0, 1}, {1, 0}, {32, 63}, true}, {{0, 1}, {0, 1}, {31, 32}, false},
               {{0, 0}, {0, 1}, {0, 0}, false}, {{0, 1}, {1, 1}, {0, 0}, false},  {{0, 2}, {0, 1}, {0, 0}, false},
               {{0, 1}, {0, 2}, {0, 0}, false}};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(cases); k++) {
    hk_ib_pair p[2];
    for (int i = 0; i < 2; i++)
      p[i] = (hk_ib_pair){.mine = cases[k].mine[i], .theirs = cases[k].theirs[i], .cost = cases[k].cost[i]};
    ck_assert_int_eq(hk_ib_pairs_go_together(cards, cards, &p[0], &p[1]), cases[k].yes);
  }
}
END_TEST

/* The provider's user wants one port: its card comes first and takes the turns, and rails no longer count. */
START_TEST(prefers_a_port) {
  static const struct {
    const char *device;
    int number, near;
    const char *order;
  } cases[] = {{"d0", 1, 1, "012345"}, {"d0", 2, 1, "102345"}, {"d1", 2, 2, "230145"},
               {"d2", 1, 2, "450123"}, {"d2", 3, 3, NULL},     {"d9", 1, 3, NULL}};
  static const uint8_t cards[] = {0, 1, 2, 2, 4, 4};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(cases); k++) {
    hk_ib_port p[6];
    const char *order = cases[k].order ? cases[k].order : "012345";
    int near = 3;
    for (int i = 0; i < 6; i++) {
      p[i] = (hk_ib_port){.lid = (uint16_t)i, .card = cards[i], .number = (uint8_t)(1 + i % 2), .rail = 5};
      p[i].position = 7;
      snprintf(p[i].device, sizeof p[i].device, "d%d", i / 2);
    }
    hk_ib_prefer(p, 6, &near, cases[k].device, cases[k].number);
    ck_assert_int_eq(near, cases[k].near);
    for (int i = 0; i < 6; i++) {
      ck_assert_int_eq(p[i].lid, order[i] - '0');
      ck_assert_int_eq(p[i].rail, cases[k].order ? -1 : 5);
      ck_assert_int_eq(p[i].position, cases[k].order ? i : 7);
    }
  }
}
END_TEST

/* What is read about a port: its MTU from its interface's, its LID, whether it is near the CPU. */
START_TEST(reads_ports) {
  static const struct {
    int interface, mtu;
  } mtus[] = {{1500, 3}, {1088, 3}, {1087, 2}, {4160, 5}, {4159, 4}, {9000, 5}, {320, 1}, {100, 1}, {0, 5}};
  hk_ib_port ports[HK_IB_PORTS];
  char why[160];
  unsigned cpu, node;
  int near;
  scratch_make();
  ck_assert_int_eq(getcpu(&cpu, &node), 0);
  setenv("HOCKET_IB_ROOT", scratch_folder, 1);
  for (int i = 0; i < 4; i++) { /* in the order of their names: the second and the last are near */
    char name[16], function[32], path[160];
    snprintf(name, sizeof name, "p%d", i);
    snprintf(function, sizeof function, "0000:0%d:00.0", i);
    active_port(name, function, i ? "200 Gb/sec (4X HDR)" : "something");
    snprintf(path, sizeof path, "sys/class/infiniband/p%d/ports/1/lid", i);
    fm_file(path, "0x%x\n", 0x1230 + i);
    snprintf(path, sizeof path, "sys/devices/pci0000:00/%s/numa_node", function);
    if (i) fm_file(path, "%d\n", i == 2 ? (int)node + 1 : (int)node);
  }
  fm_file("sys/class/infiniband/p3/ports/2/state", "1: DOWN\n");
  hk_param_reload();
  ck_assert_int_eq(hk_ib_ports(ports, &near, NULL, NULL, why, sizeof why), 4);
  ck_assert_int_eq(near, 2);
  for (int i = 0; i < 4; i++) {
    static const int order[] = {1, 3, 0, 2}; /* the near ones come first */
    ck_assert_int_eq(ports[i].device[1] - '0', order[i]);
    ck_assert_uint_eq(ports[i].lid, 0x1230 + order[i]);
    ck_assert_uint_eq(ports[i].mbps, order[i] ? 200000 : 0);
    ck_assert_uint_eq(ports[i].mtu, 5);
    ck_assert_uint_eq(ports[i].position, order[i]);
  }
  fm_file("sys/class/infiniband/p1/ports/1/link_layer", "Ethernet\n");
  fm_file("sys/class/infiniband/p1/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
  fm_file("sys/class/infiniband/p1/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:7f09:0909\n");
  fm_file("sys/class/infiniband/p1/ports/1/gids/2", "fe80:0000:0000:0000:0000:0000:0000:0000\n"); /* none */
  fm_file("sys/class/infiniband/p1/ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  fm_file("sys/class/infiniband/p1/ports/1/gid_attrs/ndevs/0", "eth7\n");
  set_param("NCCL_IB_HCA", "=p1");
  for (size_t k = 0; k < HK_ARRAY_LENGTH(mtus); k++) {
    fm_file("sys/class/net/eth7/mtu", "%d\n", mtus[k].interface);
    ck_assert_int_eq(hk_ib_ports(ports, &near, NULL, NULL, why, sizeof why), 1);
    ck_assert_int_eq(ports[0].mtu, mtus[k].mtu);
  }
  ck_assert_int_eq(ports[0].ngids, 2);
  ck_assert_int_eq(ports[0].gids[0].prefix, 8); /* this machine's loopback */
  ck_assert_int_eq(ports[0].gids[1].prefix, 32);
  hk_ib_gid gids[HK_IB_GIDS];
  const hk_ib_gid_wish wish = {.index = -1, .version = 2, .family = AF_UNSPEC};
  fm_file("sys/class/infiniband/p1/ports/1/gid_attrs/types/1", "RoCE v2\n");
  ck_assert_int_eq(hk_ib_gids(scratch_folder, "p1", 1, &wish, gids), 2);
  ck_assert(gids[0].index == 1 && gids[0].kind == HK_IB_GID_ROCE2 && gids[1].kind == HK_IB_GID_ROCE1);
  for (int i = 4; i < 260; i++) { /* more than a card has */
    char path[160];
    snprintf(path, sizeof path, "sys/class/infiniband/p1/ports/1/gids/%d", i);
    fm_file(path, "fd00:0000:0000:0000:0000:0000:0000:%04x\n", i);
  }
  ck_assert_int_eq(hk_ib_gids(scratch_folder, "p1", 1, &wish, gids), HK_IB_GIDS);
  set_param("NCCL_IB_ADDR_FAMILY", "AF_INET6");
  for (int i = 4; i < 260; i++) {
    char path[300];
    snprintf(path, sizeof path, "%s/sys/class/infiniband/p1/ports/1/gids/%d", scratch_folder, i);
    ck_assert_int_eq(remove(path), 0);
  }
  ck_assert_int_eq(hk_ib_ports(ports, &near, NULL, NULL, why, sizeof why), 0);
  ck_assert_msg(strstr(why, "port 1 of p1 has no GID"), "%s", why);
  unsetenv("NCCL_IB_ADDR_FAMILY");
  set_param("NCCL_IB_HCA", "p3:2");
  ck_assert_int_eq(hk_ib_ports(ports, &near, NULL, NULL, why, sizeof why), 0);
  ck_assert_msg(strstr(why, "port 2 of p3 is 1: DOWN"), "%s", why);
  set_param("NCCL_IB_HCA", "nothing");
  ck_assert_int_eq(hk_ib_ports(ports, &near, NULL, NULL, why, sizeof why), 0);
  ck_assert_msg(strstr(why, "NCCL_IB_HCA=nothing names none"), "%s", why);
  scratch_remove();
}
END_TEST

START_TEST(refuses_an_unknown_level) {
  hk_ib_port port = {.number = 1};
  int n = 1, near = 0;
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("NCCL_NET_MERGE_LEVEL", "CLOSE", 1);
  hk_param_reload();
  ck_assert_int_eq(hk_ib_merge("", &port, &n, &near), HK_ERR_USAGE);
}
END_TEST

/* Turns begin with another card, then with another of its ports; what is far comes last. */
START_TEST(offers_whole_cards) {
  static const struct {
    int turn, near;
    const char *offered;
  } offers[] = {{0, 0, "0123"}, {1, 0, "2301"}, {2, 0, "1032"}, {0, 2, "0123"}, {1, 2, "1032"}, {2, 4, "1032"}};
  hk_ib_port ports[5] = {{.card = 0, .mtu = 0},
                         {.card = 0, .mtu = 1},
                         {.card = 2, .mtu = 2},
                         {.card = 2, .mtu = 3},
                         {.card = 4, .mtu = 4}};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(offers); k++) {
    hk_ib_port out[HK_IB_OFFERED];
    ck_assert_int_eq(hk_ib_offer(ports, 4, offers[k].near, offers[k].turn, out), 4);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(out[i].mtu, offers[k].offered[i] - '0');
  }
  hk_ib_port out[HK_IB_OFFERED];
  ck_assert_int_eq(hk_ib_offer(ports, 5, 0, 2, out), 5);
  ck_assert_int_eq(out[0].mtu, 4);
  ck_assert_int_eq(hk_ib_offer(ports, 0, 0, 2, out), 0);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("ib_port");
  tcase_add_test(t, takes_what_the_filter_names);
  tcase_add_test(t, orders_gids);
  tcase_add_test(t, leaves_others_aside);
  tcase_add_test(t, reads_ranges);
  tcase_add_test(t, both_ends_pair_alike);
  tcase_add_loop_test(t, merges_ports, 0, (int)HK_ARRAY_LENGTH(merges));
  tcase_add_test(t, refuses_an_unknown_level);
  tcase_add_test(t, offers_whole_cards);
  tcase_add_test(t, leaves_out_what_does_not_open);
  tcase_add_test(t, slow_ports_stand_by);
  tcase_add_test(t, reads_rails);
  tcase_add_test(t, one_rail_before_two);
  tcase_add_test(t, far_port_of_the_rail);
  tcase_add_test(t, knows_subnets);
  tcase_add_test(t, knows_who_meets);
  tcase_add_test(t, keeps_the_best_pairs);
  tcase_add_test(t, pairs_go_together);
  tcase_add_test(t, prefers_a_port);
  tcase_add_test(t, reads_ports);
  return suite_run_one("ib_port", t);
}
