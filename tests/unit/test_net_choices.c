/* SPDX-License-Identifier: Apache-2.0 */
/* Which ports, GIDs, addresses and sockets the network chooses, on many invented machines: each line of the file is a
 * hash of the choices of some of them. HOCKET_TEST_UPDATE=1 writes it again. A change that is wanted changes it; one
 * that only makes the code shorter does not.
 * check: notsan */
#include "../../src/base/array.h"
#include "../../src/base/iface.h"
#include "../../src/base/param.h"
#include "../../src/transport/net/gdr.h"
#include "../../src/transport/net/ib/ib_direct.h"
#include "../../src/transport/net/ib/ib_timeout.h"
#include "../../src/transport/net/socket/socket.h"
#include "../support/fake_machine.h"
#include "../support/golden.h"
#include "../support/ib.h"
#include "../support/suite.h"

#define FILE_OF_CHOICES "tests/golden/net_choices.txt"

static uint32_t seed;
static uint32_t pick(uint32_t n) { /* 0..n-1 */
  seed = seed * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)(seed >> 8) * n >> 24);
}
static const char *one_of(const char *const *list, uint32_t n) { return list[pick(n)]; }
#define ONE_OF(list) one_of(list, HK_ARRAY_LENGTH(list))

static golden file;
static uint32_t hash;
static void add(const void *data, size_t bytes) { hash = golden_hash(hash, data, bytes); }
static void add_number(long long n) { add(&n, sizeof n); }
static void add_text(const char *text) { add(text, strlen(text) + 1); }
/* The choices since the last call. */
static void check_choices(const char *name, int number) {
  char word[32], member[32];
  snprintf(word, sizeof word, "%08x", hash);
  snprintf(member, sizeof member, "%d", number);
  golden_word(&file, name, member, word, "");
  hash = 2166136261u;
}
static void finish(void) { golden_close(&file); }
static void begin(const char *name) {
  setenv("NCCL_DEBUG", "NONE", 1);
  char what[64];
  hash = 2166136261u;
  seed = 77;
  snprintf(what, sizeof what, "%s|", name);
  file = golden_open(FILE_OF_CHOICES, what);
}
static void set(const char *name, const char *value) {
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
  hk_param_reload();
}

/* ---- ports ---- */

static hk_ib_port any_port(int i, uint32_t kinds) {
  static const uint32_t speeds[] = {0, 100000, 100000, 200000, 400000, 49999, 50000};
  hk_ib_port p = {.position = (uint8_t)i};
  p.number = (uint8_t)(1 + pick(2)); /* one after the other: compilers evaluate initialisers in any order */
  p.mtu = (uint8_t)(1 + pick(5));
  p.lid = (uint16_t)pick(100);
  p.card = (uint8_t)pick(4);
  p.mbps = speeds[pick(HK_ARRAY_LENGTH(speeds))];
  p.rail = (int16_t)(pick(3) ? -1 : (int)pick(3));
  p.far = !pick(5);
  snprintf(p.device, sizeof p.device, "dev%u", pick(6));
  p.layer = kinds == 2 ? (pick(2) ? HK_IBV_LAYER_ETHERNET : HK_IBV_LAYER_INFINIBAND)
            : kinds    ? HK_IBV_LAYER_INFINIBAND
                       : HK_IBV_LAYER_ETHERNET;
  for (p.ngids = 0; p.ngids < pick(HK_IB_GIDS + 1); p.ngids++) {
    hk_ib_gid *g = &p.gids[p.ngids];
    g->index = (uint8_t)pick(8);
    g->kind = p.layer == HK_IBV_LAYER_INFINIBAND ? HK_IB_GID_IB : pick(3) ? HK_IB_GID_ROCE2 : HK_IB_GID_ROCE1;
    const uint32_t family = pick(3);
    g->gid.raw[15] = (uint8_t)pick(3);
    if (p.layer == HK_IBV_LAYER_INFINIBAND || family == 2) {
      g->gid.raw[0] = 0xfe;
      g->gid.raw[1] = 0x80;
      if (p.layer == HK_IBV_LAYER_INFINIBAND)
        g->gid.raw[5] = (uint8_t)(pick(2) ? pick(3) : 0), g->gid.raw[7] = (uint8_t)pick(2);
      g->prefix = 64;
    } else if (family == 1) {
      g->gid.raw[0] = 0xfd;
      g->gid.raw[7] = (uint8_t)pick(2);
      g->prefix = 64;
    } else {
      g->gid.raw[10] = g->gid.raw[11] = 0xff;
      g->gid.raw[12] = 10;
      g->gid.raw[14] = (uint8_t)pick(9);
      g->prefix = (uint8_t)(22 + pick(4));
    }
  }
  return p;
}
static void add_port(const hk_ib_port *p) { add(p, sizeof *p); }

TEST(pairs) {
  static const char *const cross[] = {"0", "1", "2"};
  begin("pairs");
  for (int i = 0; i < 60; i++) {
    for (int k = 0; k < 20; k++) {
      hk_ib_port mine[HK_IB_OFFERED], theirs[HK_IB_OFFERED];
      hk_ib_pair out[HK_IB_PAIRS] = {{0}};
      char text[64];
      const int nmine = (int)pick(HK_IB_OFFERED + 1), ntheirs = (int)pick(HK_IB_OFFERED + 1);
      const uint32_t kinds = pick(3);
      for (int j = 0; j < nmine; j++) mine[j] = any_port(j, kinds);
      for (int j = 0; j < ntheirs; j++) theirs[j] = any_port(j, kinds);
      set("NCCL_CROSS_NIC", ONE_OF(cross));
      const bool caller = pick(2);
      const int n = hk_ib_pairs(hk_settings_now(), mine, nmine, theirs, ntheirs, caller, 1 + (int)pick(2), out);
      add_number(n);
      for (int j = 0; j < n; j++) {
        const hk_ib_pair *p = &out[j];
        const int numbers[] = {p->mine, p->theirs, p->my_gid, p->their_gid, p->cost, p->worked, p->out};
        add(numbers, sizeof numbers);
        add_text(hk_ib_pair_words(mine, theirs, p, text));
        for (int m = 0; m < n && m < 8; m++) add_number(hk_ib_pairs_go_together(mine, theirs, p, &out[m]));
      }
    }
    check_choices("pairs", i);
  }
  finish();
}

TEST(spots) {
  static const char *const cross[] = {"0", "1"};
  begin("spots");
  for (int i = 0; i < 20; i++) {
    for (int k = 0; k < 40; k++) {
      hk_ib_spot a[HK_IB_SPOTS], b[HK_IB_SPOTS];
      char why[160] = "";
      hk_ib_port p[4], q[4];
      const int na = (int)pick(4), nb = (int)pick(4); /* declarators are evaluated in their order */
      const uint32_t kinds = pick(3), others = pick(4) ? kinds : pick(3);
      memset(p, 0, sizeof p);
      memset(q, 0, sizeof q);
      set("NCCL_CROSS_NIC", ONE_OF(cross));
      for (int j = 0; j < na; j++) p[j] = any_port(j, kinds);
      for (int j = 0; j < nb; j++) q[j] = any_port(j, others);
      for (int j = 0; j < na; j++) a[j] = hk_ib_spot_of(&p[j]);
      for (int j = 0; j < nb; j++) b[j] = hk_ib_spot_of(&q[j]);
      for (int j = 0; j < na; j++) add(&a[j], sizeof a[j]);
      const bool meet = hk_ib_spots_meet(hk_settings_now(), a, na, b, nb, why, sizeof why);
      add_number(meet);
      if (!meet) add_text(why);
      for (int j = 0; j < na && j < nb; j++) {
        add_number(hk_ib_one_subnet(&p[j], &q[j]));
        add_number(hk_ib_router_lid(&p[j].gids[0].gid));
        add_number(hk_ib_gid_cost(&p[j].gids[0], 1 + (int)pick(2)));
        add_text(hk_ib_gid_words(&q[j].gids[0], why));
      }
    }
    check_choices("spots", i);
  }
  finish();
}

TEST(offers) {
  begin("offers");
  for (int i = 0; i < 20; i++) {
    for (int k = 0; k < 20; k++) {
      hk_ib_port ports[HK_IB_PORTS], out[HK_IB_OFFERED];
      const int n = (int)pick(12);
      const int near = (int)pick((uint32_t)n + 1);
      for (int j = 0; j < n; j++) ports[j] = any_port(j, 0);
      for (int j = 0; j < n; j++) add_number(hk_ib_is_slow(&ports[j], ports, n));
      add_number(near);
      for (int j = 0; j < n; j++) add_port(&ports[j]);
      for (int turn = 0; turn < 6; turn++) {
        const int offered = hk_ib_offer(ports, n, near, turn, out);
        add_number(offered);
        for (int j = 0; j < offered; j++) add_port(&out[j]);
      }
    }
    check_choices("offers", i);
  }
  finish();
}

TEST(names) {
  static const char *const filters[] = {NULL,
                                        "",
                                        "mlx5_1",
                                        "=mlx5_1",
                                        "^mlx5_1",
                                        "^=mlx5_1",
                                        "=^mlx5_1",
                                        "mlx5_1:1",
                                        "mlx5_1:2",
                                        "mlx5:1",
                                        "=mlx5",
                                        "mlx5_0,mlx5_1",
                                        ",,mlx5_1",
                                        "mlx5_1:1:3",
                                        "mlx5_1:1:3:0",
                                        "mlx5_1::2",
                                        "^mlx5_1:1:4",
                                        "mlx5_1:x:5",
                                        "mlx5_10:2:7,mlx5_1:1:9",
                                        "a,b,=mlx5_1"};
  static const char *const devices[] = {"mlx5_0", "mlx5_1", "mlx5_10", "mlx5", "a", ""};
  begin("names");
  for (size_t i = 0; i < HK_ARRAY_LENGTH(filters); i++) {
    for (size_t k = 0; k < HK_ARRAY_LENGTH(devices); k++)
      for (int port = 0; port < 3; port++) {
        add_number(hk_ib_hca_takes(filters[i], devices[k], port));
        add_number(hk_ib_hca_rail(filters[i], devices[k], port));
      }
    check_choices("names", (int)i);
  }
  finish();
}

TEST(gids) {
  static const char *const families[] = {NULL, "", "AF_INET", "AF_INET6", "AF_UNIX"},
                           *const ranges[] = {
                               NULL,        "",          "10.0.0.0/8", "10.0.0.0/24", "fd00::/16", "10.0.0.0/33",
                               "fd00::1",   "10.0.0.1",  "fd00::/129", "10.0.0.0/",   "x/8",       "10.0.4.0/22",
                               "0.0.0.0/0", "fe80::/10", "::/0",       "10.0.0.0/8x", "/8"};
  begin("gids");
  for (size_t i = 0; i < HK_ARRAY_LENGTH(families) * HK_ARRAY_LENGTH(ranges); i++) {
    hk_ib_gid_filter w;
    char text[48];
    memset(&w, 0, sizeof w);
    set("NCCL_IB_ADDR_FAMILY", families[i % HK_ARRAY_LENGTH(families)]);
    set("NCCL_IB_ADDR_RANGE", ranges[i / HK_ARRAY_LENGTH(families)]);
    const hk_status rc = hk_ib_gid_filter_of(hk_settings_now(), &w);
    add_number(rc);
    if (rc == HK_OK) add(w.range, w.ranged ? sizeof w.range : 0);
    for (int k = 0; k < 40 && rc == HK_OK; k++) {
      hk_ib_port p = any_port(0, 0);
      w.index = pick(4) ? -1 : (int)pick(8);
      w.version = 1 + (int)pick(2);
      const int n = hk_ib_gids_order(p.gids, p.ngids, &w);
      add_number(n);
      for (int j = 0; j < n; j++) {
        add_number(p.gids[j].index * 1000 + p.gids[j].kind);
        add_text(hk_ib_gid_text(&p.gids[j].gid, text));
      }
    }
    check_choices("gids", (int)i);
  }
  finish();
}

/* ---- cards ---- */

static const char *const functions[] = {"0000:00:01.0/0000:09:00.0",
                                        "0000:00:01.0/0000:09:00.1",
                                        "0000:00:01.0/0000:09:01.0",
                                        "0000:00:02.0/0000:0a:00.0/0000:0b:00.0",
                                        "0000:00:02.0/0000:0a:00.0/0000:0c:00.0",
                                        "0000:00:02.0/0000:0a:01.0/0000:0d:00.0",
                                        "0001:00:01.0/0001:03:00.0",
                                        "0000:00:03.0"};
TEST(cards) {
  static const char *const levels[] = {NULL, "LOC", "PORT", "PIX", "PXB", "PHB", "SYS", "port", "X"};
  static const char *const sets[] = {NULL, "dev0,dev3", "dev0,dev1;dev2,dev4", ";dev5,dev6;", "dev", "dev1"};
  static const char *const on[] = {"0", "1"};
  char path[256], target[256];
  scratch_make();
  for (int i = 0; i < 8; i++) {
    fm_pci(functions[i], (fm_pci_info){.class_code = 0x020000, .vendor = 0x15b3});
    snprintf(path, sizeof path, "sys/class/infiniband/dev%d/device", i);
    snprintf(target, sizeof target, "../../../devices/pci%.7s/%s", functions[i], functions[i]);
    if (i < 7) fm_link(path, target);
  }
  /* dev2 is a virtual function of dev0's, and dev1, too */
  for (int i = 1; i < 3; i++) {
    snprintf(path, sizeof path, "sys/devices/pci%.7s/%s/physfn", functions[i], functions[i]);
    fm_link(path, "../0000:09:00.0");
  }
  begin("cards");
  for (int i = 0; i < 60; i++) {
    set("NCCL_NET_MERGE_LEVEL", levels[i % 9]);
    for (int k = 0; k < 20; k++) {
      hk_ib_port ports[HK_IB_PORTS];
      int n = (int)pick(9), near = (int)pick((uint32_t)n + 1);
      set("NCCL_NET_FORCE_MERGE", pick(2) ? ONE_OF(sets) : NULL);
      set("NCCL_IB_MERGE_VFS", ONE_OF(on));
      set("NCCL_IB_MERGE_NICS", pick(5) ? "1" : "0");
      for (int j = 0; j < n; j++) {
        ports[j] = any_port(j, pick(6) ? 0 : 2);
        if (pick(4)) ports[j].mbps = 100000;
        snprintf(ports[j].device, sizeof ports[j].device, "dev%d", j < 4 ? j : (int)pick(9));
      }
      add_number(hk_ib_merge(hk_settings_now(), scratch_folder, ports, &n, &near));
      add_number(n);
      add_number(near);
      for (int j = 0; j < n; j++) add_port(&ports[j]);
    }
    check_choices("cards", i);
  }
  for (int i = 0; i < 8; i++) {
    for (int k = 0; k < 8; k++) {
      snprintf(path, sizeof path, "/sys/devices/pci%.7s/%s", functions[i], functions[i]);
      snprintf(target, sizeof target, "/sys/devices/pci%.7s/%s", functions[k], functions[k]);
      add_number(hk_ib_pci_class(path, target));
      add_number(hk_ib_pci_class(path, ""));
      add_number(hk_ib_pci_class("", target));
      add_number(hk_ib_pci_class("/sys/devices/virtual/x", target));
    }
    check_choices("distances", i);
  }
  scratch_remove();
  finish();
}

/* ---- times, words, settings of GPUs ---- */

TEST(times) {
  begin("times");
  for (int i = 0; i < 8; i++) {
    for (uint32_t rtt = 0; rtt < 40; rtt++)
      for (uint64_t bound = 1; bound < 40; bound += 3)
        add_number(hk_ib_timeout_for(rtt * rtt * rtt * 7, (unsigned)i, bound * 5000000000u));
    for (unsigned t = 0; t < 32; t++) add_number((long long)hk_ib_gives_up_ns(t, (unsigned)i));
    check_choices("times", i);
  }
  for (int i = -2; i < 30; i++) add_text(hk_ibv_status_words(i));
  check_choices("words", 0);
  finish();
}

TEST(gpus) {
  static const char *const levels[] = {NULL, "", "LOC", "PIX", "PXB", "PHB", "SYS", "NVL"};
  static const char *const old[] = {NULL, "-1", "0", "1"}, *const on[] = {NULL, "0", "1"};
  hk_device gpu = {0};
  begin("gpus");
  for (size_t i = 0; i < HK_ARRAY_LENGTH(levels) * HK_ARRAY_LENGTH(old); i++) {
    set("NCCL_NET_GDR_LEVEL", levels[i % HK_ARRAY_LENGTH(levels)]);
    set("NCCL_IB_CUDA_SUPPORT", old[i / HK_ARRAY_LENGTH(levels)]);
    for (int cls = 0; cls <= HK_PATH_DIS; cls++) {
      char why[HK_GDR_WHY] = "";
      add_number(hk_gdr_too_far(hk_settings_now(), (hk_path_class)cls, why, sizeof why));
      add_text(why);
    }
    check_choices("gpus", (int)i);
  }
  for (int i = 0; i < 18; i++) {
    set("NCCL_GDR_FLUSH_DISABLE", on[i % 3]);
    set("NCCL_NET_FORCE_FLUSH", on[i / 3 % 3]);
    gpu.limits.rdma_ordered = i / 9;
    add_number(hk_gdr_needs_flush(hk_settings_now(), &gpu, false));
    add_number(hk_gdr_needs_flush(hk_settings_now(), &gpu, true));
  }
  check_choices("flushes", 0);
  char why[HK_GDR_WHY] = "";
  for (int i = 0; i < 30; i++) {
    hk_gdr_add_cause(why, "cause %d of some", i);
    add_text(why);
  }
  check_choices("causes", 0);
  finish();
}

/* ---- sockets ---- */

TEST(sockets) {
  static const uint32_t speeds[] = {0, 10000, 24999, 25000, 50000, 99999, 100000, 200000};
  static const uint16_t vendors[] = {0, 0x15b3, 0x1d0f, 0x1ae0};
  static const char *const threads[] = {NULL, "0", "1", "2", "16"}, *const each[] = {NULL, "0", "1", "4", "64"};
  begin("sockets");
  for (int i = 0; i < 50; i++) {
    set("NCCL_SOCKET_NTHREADS", threads[i % 5]);
    set("NCCL_NSOCKS_PERTHREAD", each[i / 5 % 5]);
    for (int k = 0; k < 40; k++) {
      hk_socket_fact facts[2];
      hk_socket_route routes[HK_SOCKET_ADDRS];
      for (int f = 0; f < 2; f++) {
        hk_iface ifaces[12];
        const int n = (int)pick(12);
        memset(ifaces, 0, sizeof ifaces);
        for (int j = 0; j < n; j++) {
          hk_iface *x = &ifaces[j];
          char text[64];
          snprintf(x->name, sizeof x->name, "eth%u", pick(6));
          x->kind = (uint8_t)pick(HK_IFACE_LOOPBACK + 1);
          x->speed_mbps = speeds[pick(HK_ARRAY_LENGTH(speeds))];
          x->vendor = vendors[pick(HK_ARRAY_LENGTH(vendors))];
          if (pick(3)) {
            x->addr.v4.sin_family = AF_INET;
            const uint32_t second = pick(2), third = pick(4), last = 1 + pick(20);
            snprintf(text, sizeof text, "10.%u.%u.%u", second, third, last);
            ck_assert_int_eq(inet_pton(AF_INET, text, &x->addr.v4.sin_addr), 1);
            x->prefix = (uint8_t)(pick(8) ? 22 + pick(4) : 0);
          } else {
            x->addr.v6.sin6_family = AF_INET6;
            const uint32_t first = pick(3), third = pick(2), last = 1 + pick(20);
            snprintf(text, sizeof text, "%s::%u:%u", first ? "fd00" : "fe80", third, last);
            ck_assert_int_eq(inet_pton(AF_INET6, text, &x->addr.v6.sin6_addr), 1);
            x->prefix = 112;
          }
        }
        hk_socket_describe(hk_settings_now(), &facts[f], ifaces, n);
        facts[f].named = !pick(3);
        if (pick(3)) facts[f].insists = false;
        add(&facts[f], sizeof facts[f]);
      }
      const uint32_t dropped = pick(3) ? 0 : pick(64);
      const int n = hk_socket_routes(&facts[0], &facts[1], dropped, routes);
      add_number(n);
      for (int j = 0; j < n; j++) {
        char text[HK_ADDR_TEXT];
        add_text(hk_addr_format(&routes[j].to, text));
        add_number(routes[j].speed_mbps);
        add_number(routes[j].iface * 1000 + routes[j].peer_iface * 10 + routes[j].kind);
      }
      const bool near = !pick(5);
      add_number(hk_socket_count(&facts[0], &facts[1], near, 2 + (int)pick(600)));
    }
    check_choices("sockets", i);
  }
  for (long l2 = -1; l2 < 4000000; l2 = l2 * 5 / 4 + 1) add_number(hk_socket_lead_of(l2));
  check_choices("leads", 0);
  finish();
}

int main(void) {
  golden_clear(FILE_OF_CHOICES);
  return suite_main("net_choices");
}
