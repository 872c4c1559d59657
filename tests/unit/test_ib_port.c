/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Which RDMA ports and GIDs are taken, on invented machines: no device is needed. */
#include <sched.h> /* getcpu */
#include <sys/socket.h>
#include "../support/ib.h"
#include "../support/process.h"
#include "../support/suite.h"

TEST(takes_what_the_filter_names) {
  ck_assert(hk_ib_hca_takes(NULL, "mlx5_0", 1) && hk_ib_hca_takes("", "mlx5_0", 1));
  ck_assert(hk_ib_hca_takes("mlx5", "mlx5_0", 1) && hk_ib_hca_takes("mlx5_1", "mlx5_10", 1));
  ck_assert(!hk_ib_hca_takes("=mlx5_1", "mlx5_10", 1) && hk_ib_hca_takes("=mlx5_1,mlx5_10", "mlx5_10", 1));
  ck_assert(!hk_ib_hca_takes("^mlx5_1", "mlx5_10", 1) && hk_ib_hca_takes("^=mlx5_1", "mlx5_10", 1));
  ck_assert(hk_ib_hca_takes("mlx5_0:1,mlx5_1:2", "mlx5_1", 2) && !hk_ib_hca_takes("mlx5_0:1,mlx5_1:2", "mlx5_1", 1));
  ck_assert(!hk_ib_hca_takes("^mlx5_0:2", "mlx5_0", 2) && hk_ib_hca_takes("^mlx5_0:2", "mlx5_0", 1));
  ck_assert(!hk_ib_hca_takes("rxe,,", "mlx5_0", 1) && hk_ib_hca_takes(",rxe", "rxe0", 1));
  ck_assert(hk_ib_hca_takes("mlx5_0:9", "mlx5_0", 9) && !hk_ib_hca_takes("mlx5_0:9", "mlx5_0", 1));
  ck_assert(hk_ib_hca_takes("mlx5_0:0", "mlx5_0", 0) && !hk_ib_hca_takes("mlx5_0:0", "mlx5_0", 1));
  ck_assert(hk_ib_hca_takes("mlx5_0:", "mlx5_0", 1) && hk_ib_hca_takes("mlx5_0:x", "mlx5_0", 1));
}

TEST(orders_gids) {
  static const int expected[] = {3, 5, 1, 2, 4, 0}, old[] = {2, 4, 0, 3, 5, 1};
  hk_ib_gid g[6];
  hk_ib_gid_filter w = {.index = -1, .version = 2, .family = AF_UNSPEC};
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 6);
  for (int i = 0; i < 6; i++) ck_assert_int_eq(g[i].index, expected[i]);
  w.version = 1;
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 6);
  for (int i = 0; i < 6; i++) ck_assert_int_eq(g[i].index, old[i]);
  w = (hk_ib_gid_filter){.index = 4, .version = 2};
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 1);
  ck_assert_int_eq(g[0].index, 4);
  w = (hk_ib_gid_filter){.index = -1, .version = 2, .family = AF_INET6};
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 4);
  ck_assert_int_eq(g[0].index, 5);
  w = (hk_ib_gid_filter){.index = 9, .version = 2};
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 0);
}

/* What is neither InfiniBand nor RoCE is told and left aside, whatever its port looks like. */
TEST(leaves_others_aside) {
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
    ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), !kinds[i].why);
    if (kinds[i].why) ck_assert_msg(strstr(why, "x0 is ") && strstr(why, kinds[i].why), "%s", why);
  }
  scratch_remove();
}

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
TEST(leaves_out_what_does_not_open) {
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
    ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, refuses_one, refused, why, sizeof why), cases[i].n);
    ck_assert_str_eq(ports[0].device, cases[i].first);
    ck_assert_uint_eq(ports[0].mbps, 100000);
  }
  setenv("NCCL_IB_HCA", "=pf", 1);
  hk_param_reload();
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, refuses_one, (void *)(uintptr_t) "pf", why, sizeof why),
                   0);
  ck_assert_msg(strstr(why, "pf cannot be opened: Operation not permitted"), "%s", why);
  scratch_remove();
}

/* A device's name has at most 31 characters: a longer one is left out. The filter gives a port its rail. */
TEST_LOOP(reads_names_and_rails, 2) {
  hk_ib_port ports[HK_IB_PORTS];
  char why[160], name[HK_IB_NAME + 1], filter[64];
  int near;
  memset(name, 'x', sizeof name);
  name[HK_IB_NAME - _i] = '\0';
  scratch_make();
  active_port(name, "0000:03:00.0", "100 Gb/sec (4X EDR)");
  setenv("HOCKET_IB_ROOT", scratch_folder, 1);
  snprintf(filter, sizeof filter, "%s:1:%d", name, 5 * _i);
  setenv("NCCL_IB_HCA", filter, 1);
  hk_param_reload();
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), _i);
  if (_i) ck_assert_str_eq(ports[0].device, name);
  if (_i) ck_assert_int_eq(ports[0].rail, 5);
  scratch_remove();
}

/* No more ports are taken than there is room for, and those of other states are not. */
TEST(reads_many_devices) {
  hk_ib_port p[HK_IB_PORTS + 1];
  char why[160], path[96];
  int near;
  scratch_make();
  setenv("HOCKET_IB_ROOT", scratch_folder, 1);
  setenv("NCCL_IB_MERGE_NICS", "0", 1);
  hk_param_reload();
  memset(&p[HK_IB_PORTS], 7, sizeof *p);
  for (int i = 0; i < HK_IB_PORTS + 2; i++) {
    snprintf(path, sizeof path, "sys/class/infiniband/x%d/ports/1/state", i);
    fm_file(path, i ? "4: ACTIVE\n" : "5: ACTIVE_DEFER\n");
  }
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), p, &near, NULL, NULL, why, sizeof why), HK_IB_PORTS);
  ck_assert_str_ne(p[0].device, "x0");
  ck_assert_int_eq(p[HK_IB_PORTS].number, 7);
  scratch_remove();
}

static hk_status wishes(const char *name, const char *value, hk_ib_gid_filter *w) {
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv(name, value, 1);
  hk_param_reload();
  hk_status rc = hk_ib_gid_filter_of(hk_settings_now(), w);
  unsetenv(name);
  hk_param_reload();
  return rc;
}

TEST(reads_ranges) {
  hk_ib_gid g[6];
  hk_ib_gid_filter w;
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.1.0.0/16", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 2);
  ck_assert_int_eq(g[0].index, 3);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.2.0.0/16", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 0);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "fd00::/8", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/15", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.2.0.0/15", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 0);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.1.0.1/32", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "fd00::1", &w), HK_OK); /* all bits */
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "0.0.0.0/0", &w), HK_OK);
  ck_assert_int_eq(hk_ib_gids_order(g, invented_gids(g, "1"), &w), 2);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/-1", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/8x", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "10.0.0.0/33", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "fd00::/129", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_RANGE", "somewhere", &w), HK_ERR_USAGE);
  ck_assert_int_eq(wishes("NCCL_IB_ADDR_FAMILY", "IPX", &w), HK_ERR_USAGE);
  ck_assert(wishes("NCCL_IB_ADDR_FAMILY", "AF_INET", &w) == HK_OK && w.family == AF_INET);
  ck_assert(wishes("NCCL_IB_ADDR_FAMILY", "AF_INET6", &w) == HK_OK && w.family == AF_INET6);
  ck_assert(wishes("NCCL_IB_ADDR_FAMILY", "", &w) == HK_OK && w.family == AF_UNSPEC);
}

/* Both ends must have the same order, told from their own side. */
TEST(both_ends_pair_alike) {
  hk_ib_port a[] = {invented_port("a0", "1", HK_IBV_LAYER_ETHERNET), invented_port("a1", "2", HK_IBV_LAYER_ETHERNET),
                    invented_port("a2", "3", HK_IBV_LAYER_INFINIBAND)};
  hk_ib_port b[] = {invented_port("b0", "11", HK_IBV_LAYER_ETHERNET),
                    invented_port("b1", "12", HK_IBV_LAYER_INFINIBAND)};
  hk_ib_pair x[HK_IB_PAIRS], y[HK_IB_PAIRS];
  char words[64];
  b[0].gids[0] = invented_gid(3, HK_IB_GID_ROCE2, "::ffff:10.9.0.11", 24); /* another network than a's */
  int n = hk_ib_pairs(hk_settings_now(), a, 3, b, 2, true, 2, x);
  ck_assert_int_eq(n, 13);
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), b, 2, a, 3, false, 2, y), n);
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
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), a, 1, b, 2, true, 2, x), 0);
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), b, 2, a, 1, false, 2, x), 0);
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), a + 2, 1, b, 1, true, 2, x), 0);
}

/* InfiniBand ports are in one subnet if two of their GIDs have its prefix, or if one has none to compare. */
TEST(knows_subnets) {
  hk_ib_port a = invented_port("a", "1", HK_IBV_LAYER_INFINIBAND), b = invented_port("b", "2", HK_IBV_LAYER_INFINIBAND);
  ck_assert(hk_ib_one_subnet(&a, &b));
  a.ngids = b.ngids = 1;
  memset(a.gids[0].gid.raw, 1, 16);
  memset(b.gids[0].gid.raw, 1, 16);
  for (int i = 0; i < 16; i++) { /* two bytes are a router's LID, the last eight the port's */
    b.gids[0].gid.raw[i] = 2;
    ck_assert_int_eq(hk_ib_one_subnet(&a, &b), (i > 3 && i < 6) || i > 7);
    b.gids[0].gid.raw[i] = 1;
  }
  b.gids[0].gid.raw[0] = 2;
  a.gids[1] = b.gids[0]; /* beyond their number: they do not count */
  b.gids[1] = a.gids[0];
  ck_assert(!hk_ib_one_subnet(&a, &b));
  a.ngids = 0;
  ck_assert(hk_ib_one_subnet(&a, &b) && hk_ib_one_subnet(&b, &a));
}

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
              {"NCCL_NET_FORCE_MERGE", "mlx0,mlx3;mlx6,mlx2", 7, "03,1,26,4,7"},
              {"NCCL_NET_FORCE_MERGE", "xmlx0,mlx3;mlx1x,mlx4", 7, "01,2,3,4,6,7"}};

TEST_LOOP(merges_ports, HK_ARRAY_LENGTH(merges)) {
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
  ck_assert_int_eq(hk_ib_merge(hk_settings_now(), scratch_folder, ports, &n, &near), HK_OK);
  ck_assert_int_eq(n, merges[_i].n);
  for (int i = 0; i < n; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s",
             i && ports[i].card != ports[i - 1].card ? "," : "", ports[i].device + 3);
  ck_assert_str_eq(text, merges[_i].cards);
  scratch_remove();
}

/* Slow ports come after fast ones, even if they are near, and are not merged with them. */
TEST(slow_ports_stand_by) {
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
    ck_assert_int_eq(hk_ib_merge(hk_settings_now(), "/nowhere", ports, &n, &near), HK_OK);
    ck_assert_int_eq(near, cases[k].fast_near);
    for (int i = 0; i < n; i++) {
      ck_assert_int_eq(ports[i].number, cases[k].order[i] - '0');
      ck_assert_int_eq(ports[i].card, cases[k].cards[i] - '0');
    }
  }
}

/* What is read about a port: its MTU from its interface's, its LID, whether it is near the CPU. */
TEST(reads_ports) {
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
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), 4);
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
    ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), 1);
    ck_assert_int_eq(ports[0].mtu, mtus[k].mtu);
  }
  ck_assert_int_eq(ports[0].ngids, 2);
  ck_assert_int_eq(ports[0].gids[0].prefix, 8); /* this machine's loopback */
  ck_assert_int_eq(ports[0].gids[1].prefix, 32);
  hk_ib_gid gids[HK_IB_GIDS];
  const hk_ib_gid_filter wish = {.index = -1, .version = 2, .family = AF_UNSPEC};
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
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), 0);
  ck_assert_msg(strstr(why, "port 1 of p1 has no GID"), "%s", why);
  unsetenv("NCCL_IB_ADDR_FAMILY");
  set_param("NCCL_IB_HCA", "p3:2");
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), 0);
  ck_assert_msg(strstr(why, "port 2 of p3 is 1: DOWN"), "%s", why);
  set_param("NCCL_IB_HCA", "nothing");
  ck_assert_int_eq(hk_ib_ports(hk_settings_now(), ports, &near, NULL, NULL, why, sizeof why), 0);
  ck_assert_msg(strstr(why, "NCCL_IB_HCA=nothing names none"), "%s", why);
  scratch_remove();
}

TEST(refuses_an_unknown_level) {
  hk_ib_port port = {.number = 1};
  int n = 1, near = 0;
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("NCCL_NET_MERGE_LEVEL", "CLOSE", 1);
  hk_param_reload();
  ck_assert_int_eq(hk_ib_merge(hk_settings_now(), "", &port, &n, &near), HK_ERR_USAGE);
}

/* Turns begin with another card, then with another of its ports; what is far comes last. */
TEST(offers_whole_cards) {
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

TEST(cards_of_a_rank) {
  static const struct {
    const char *text;
    int most; /* -1: refused */
  } rows[] = {{"", 0},       {"AUTO", 0},  {"all", 0},     {"MAX:2", 2}, {"max:1", 1},
              {"MAX:0", -1}, {"MAX:", -1}, {"MAX:2x", -1}, {"TWO", -1}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    int most;
    setenv("NCCL_NETDEVS_POLICY", rows[i].text, 1);
    hk_param_reload();
    ck_assert_int_eq(hk_ib_cards_of(hk_settings_now(), &most), rows[i].most < 0 ? HK_ERR_USAGE : HK_OK);
    if (rows[i].most >= 0) ck_assert_int_eq(most, rows[i].most);
  }
}

int main(void) { return suite_main("ib_port"); }
