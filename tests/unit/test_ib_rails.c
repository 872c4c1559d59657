/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* Which RDMA ports of two ranks are paired, by rails and subnets, on invented ports: no device is needed. */
#include "../support/ib.h"
#include "../support/process.h"
#include "../support/suite.h"

TEST(reads_rails) {
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

/* Two ranks that begin with ports of different rails. */
TEST(one_rail_before_two) {
  hk_ib_port a[2] = {invented_port("a0", "1", HK_IBV_LAYER_ETHERNET), invented_port("a1", "2", HK_IBV_LAYER_ETHERNET)};
  hk_ib_port b[2] = {invented_port("b1", "12", HK_IBV_LAYER_ETHERNET),
                     invented_port("b0", "11", HK_IBV_LAYER_ETHERNET)};
  hk_ib_pair x[HK_IB_PAIRS];
  for (int i = 0; i < 2; i++) {
    a[i].position = (uint8_t)i;
    b[i].position = (uint8_t)(1 - i);
    a[i].rail = b[i].rail = -1;
  }
  hk_ib_pairs(hk_settings_now(), a, 2, b, 2, true, 2, x);
  ck_assert(x[0].mine == 0 && x[0].theirs == 1); /* a0 and b0, although b1 is b's first */
  for (int i = 0; i < 2; i++) {                  /* what the user says counts: a0 and b1 are one rail */
    a[i].rail = (int16_t)i;
    b[i].rail = (int16_t)i;
  }
  int n = hk_ib_pairs(hk_settings_now(), a, 2, b, 2, true, 2, x);
  for (int i = 0; i < n; i++) ck_assert_int_eq(x[i].mine == x[i].theirs, i < n / 2);
  set_param("NCCL_CROSS_NIC", "0");
  int isolated = hk_ib_pairs(hk_settings_now(), a, 2, b, 2, true, 2, x);
  ck_assert_int_eq(isolated, n / 2);
  for (int i = 0; i < isolated; i++) ck_assert_int_eq(x[i].mine, x[i].theirs);
  b[0].rail = b[1].rail = 7; /* without a common rail there is nothing better */
  ck_assert_int_gt(hk_ib_pairs(hk_settings_now(), a, 2, b, 2, true, 2, x), 0);
}

/* A GPU's near port is on another rail than the peer's, and rails are not connected: the far port of the same rail. */
TEST(far_port_of_the_rail) {
  hk_ib_port a[2] = {invented_port("a0", "1", HK_IBV_LAYER_ETHERNET), invented_port("a1", "2", HK_IBV_LAYER_ETHERNET)};
  hk_ib_port b[1] = {invented_port("b1", "12", HK_IBV_LAYER_ETHERNET)};
  hk_ib_pair x[HK_IB_PAIRS];
  a[1].far = 1;
  a[1].position = b[0].position = 1;
  for (int i = 0; i < 2; i++) a[i].rail = b[0].rail = -1;
  int n = hk_ib_pairs(hk_settings_now(), a, 2, b, 1, true, 2, x);
  for (int i = 0; i < n; i++) ck_assert_int_eq(x[i].mine, 0);
  set_param("NCCL_CROSS_NIC", "0");
  n = hk_ib_pairs(hk_settings_now(), a, 2, b, 1, true, 2, x);
  for (int i = 0; i < n; i++) ck_assert_int_eq(x[i].mine, 1);
}

static hk_ib_port infiniband(int lid, const char *first, const char *second) {
  hk_ib_port p = {.number = 1, .layer = HK_IBV_LAYER_INFINIBAND, .lid = (uint16_t)lid, .rail = -1};
  p.gids[p.ngids++] = invented_gid(0, HK_IB_GID_IB, first, 64);
  if (second) p.gids[p.ngids++] = invented_gid(1, HK_IB_GID_IB, second, 64);
  return p;
}

TEST(knows_subnets) {
  hk_ib_port a = infiniband(1, "fe80::1", NULL), same = infiniband(2, "fe80::2", NULL);
  hk_ib_port here = infiniband(3, "fec0:0:0:1::3", "fec0:0:30:1::3"),
             there = infiniband(4, "fec0:0:0:2::4", "fec0:0:40:2::4");
  hk_ib_port both[2] = {there, infiniband(5, "fec0:0:0:1::5", NULL)};
  hk_ib_pair x[HK_IB_PAIRS];
  char words[64];
  ck_assert(hk_ib_one_subnet(&a, &same) && !hk_ib_one_subnet(&here, &there) && hk_ib_one_subnet(&here, &both[1]));
  ck_assert_uint_eq(hk_ib_router_lid(&there.gids[1].gid), 0x40);
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), &here, 1, &there, 1, true, 2, x), 1);
  ck_assert(x[0].my_gid == 1 && x[0].their_gid == 1); /* those that routers forward */
  ck_assert_ptr_nonnull(strstr(hk_ib_pair_words(&here, &there, &x[0], words), "two subnets"));
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), &here, 1, both, 2, true, 2, x), 2);
  ck_assert_int_eq(x[0].theirs, 1); /* its own subnet first */
  both[0].ngids = 1;                /* without a GID that routers forward: not at all */
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), &here, 1, both, 2, true, 2, x), 1);
  ck_assert_int_eq(x[0].theirs, 1);
}

/* What ranks know of each other's ports: rails, subnets, link layers. */
static bool meet(const hk_ib_port *a, const hk_ib_port *b, int nb, char why[160]) {
  hk_ib_spot here = hk_ib_spot_of(a), there[2];
  for (int i = 0; i < nb; i++) there[i] = hk_ib_spot_of(&b[i]);
  bool met = hk_ib_spots_meet(hk_settings_now(), &here, 1, there, nb, why, 160);
  ck_assert_int_eq(hk_ib_spots_meet(hk_settings_now(), there, nb, &here, 1, why, 160), met);
  (void)hk_ib_spots_meet(hk_settings_now(), &here, 1, there, nb, why, 160);
  return met;
}

TEST(knows_who_meets) {
  hk_ib_port a = invented_port("a0", "1", HK_IBV_LAYER_ETHERNET);
  hk_ib_port b[2] = {invented_port("b0", "11", HK_IBV_LAYER_ETHERNET),
                     invented_port("b1", "12", HK_IBV_LAYER_ETHERNET)};
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

/* More pairs than there is room for: both ends keep the same ones, the best, in the same order. */
TEST(keeps_the_best_pairs) {
  hk_ib_port a[HK_IB_OFFERED], b[HK_IB_OFFERED];
  hk_ib_pair x[HK_IB_PAIRS], y[HK_IB_PAIRS];
  for (int i = 0; i < HK_IB_OFFERED; i++) {
    char host[16];
    snprintf(host, sizeof host, "%d", 1 + i);
    a[i] = invented_port("a", host, HK_IBV_LAYER_ETHERNET);
    snprintf(host, sizeof host, "%d", 11 + i);
    b[i] = invented_port("b", host, HK_IBV_LAYER_ETHERNET);
    a[i].rail = b[i].rail = -1;
    a[i].position = (uint8_t)i;
    b[i].position = (uint8_t)(i ^ 1);
  }
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), a, 8, b, 8, true, 2, x), HK_IB_PAIRS);
  ck_assert_int_eq(hk_ib_pairs(hk_settings_now(), b, 8, a, 8, false, 2, y), HK_IB_PAIRS);
  for (int i = 0; i < HK_IB_PAIRS; i++) {
    ck_assert(x[i].mine == y[i].theirs && x[i].theirs == y[i].mine && x[i].cost == y[i].cost);
    ck_assert(x[i].my_gid == 0 && x[i].their_gid == 0); /* the 64 pairs of ports by the best GIDs */
    if (i) ck_assert(x[i - 1].cost <= x[i].cost);
    for (int k = 0; k < i; k++) ck_assert(x[k].mine != x[i].mine || x[k].theirs != x[i].theirs);
  }
  ck_assert(x[0].mine == 0 && x[0].theirs == 1); /* one position: its cost is that of the places in the lists alone */
  ck_assert_uint_eq(x[0].cost, 1);
}

TEST(pairs_go_together) {
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

int main(void) { return suite_main("ib_rails"); }
