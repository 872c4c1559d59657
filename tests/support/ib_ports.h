/* SPDX-License-Identifier: Apache-2.0 */
/* For test_ib_port.c and test_ib_rails.c: invented ports with the GIDs of a card. */
#ifndef HK_TESTS_IB_PORTS_H
#define HK_TESTS_IB_PORTS_H
#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include "../../src/transport/net/ib/ib_port.h"

static inline hk_ib_gid invented_gid(int index, hk_ib_gid_kind kind, const char *address, int prefix) {
  hk_ib_gid g = {.index = (uint8_t)index, .kind = (uint8_t)kind, .prefix = (uint8_t)prefix};
  ck_assert_int_eq(inet_pton(AF_INET6, address, g.gid.raw), 1);
  return g;
}

static inline int invented_gids(hk_ib_gid out[6], const char *host) { /* as a mlx5 port has them */
  char v4[48], local[48], global[48];
  snprintf(v4, sizeof v4, "::ffff:10.1.0.%s", host);
  snprintf(local, sizeof local, "fe80::%s", host);
  snprintf(global, sizeof global, "fd00::%s", host);
  out[0] = invented_gid(0, HK_IB_GID_ROCE1, local, 64);
  out[1] = invented_gid(1, HK_IB_GID_ROCE2, local, 64);
  out[2] = invented_gid(2, HK_IB_GID_ROCE1, v4, 24);
  out[3] = invented_gid(3, HK_IB_GID_ROCE2, v4, 24);
  out[4] = invented_gid(4, HK_IB_GID_ROCE1, global, 64);
  out[5] = invented_gid(5, HK_IB_GID_ROCE2, global, 64);
  return 6;
}

static inline hk_ib_port invented_port(const char *name, const char *host, uint8_t layer) {
  hk_ib_port p = {.number = 1, .layer = layer, .mtu = 5, .lid = (uint16_t)atoi(host)};
  snprintf(p.device, sizeof p.device, "%s", name);
  hk_ib_gid_wish w = {.index = -1, .version = 2, .family = AF_UNSPEC};
  p.ngids = (uint8_t)hk_ib_gids_order(p.gids, invented_gids(p.gids, host), &w);
  return p;
}
#endif
