/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses which of a peer's addresses to connect to, and the number of sockets. No I/O: tests invent the machines. */
#include <string.h>
#include "../../base/iface.h"
#include "../../base/param.h"
#include "socket.h"

/* One core of the sender fills about 25 Gb/s through one socket; more sockets let the receiving side's interrupts and
 * the windows of a long path work side by side. */
static uint8_t sockets_for_speed(uint32_t mbps) { return mbps >= 100000 ? 4 : mbps >= 25000 ? 2 : 1; }

void hk_socket_describe(hk_socket_fact *fact, const hk_iface *ifaces, int n) {
  uint32_t fastest = 0;
  memset(fact, 0, sizeof *fact);
  for (int i = 0; i < n && fact->naddrs < HK_SOCKET_ADDRS; i++) {
    const hk_addr *a = &ifaces[i].addr;
    /* A link-local address means nothing without an interface of the host that dials it. */
    if (hk_addr_is_link_local(a)) continue;
    hk_socket_addr *to = &fact->addrs[fact->naddrs++];
    to->family = a->sa.sa_family == AF_INET6 ? 6 : 4;
    to->kind = ifaces[i].kind;
    to->prefix = ifaces[i].prefix;
    to->speed_mbps = ifaces[i].speed_mbps;
    if (to->family == 6)
      memcpy(to->bytes, &a->v6.sin6_addr, 16);
    else
      memcpy(to->bytes, &a->v4.sin_addr, 4);
    if (ifaces[i].kind == HK_IFACE_PHYSICAL && ifaces[i].speed_mbps > fastest) fastest = ifaces[i].speed_mbps;
  }
  int64_t asked = hk_param_int(HK_P_NSOCKS_PERTHREAD);
  fact->insists = asked > 0;
  fact->nsockets = sockets_for_speed(fastest);
  if (asked > 0) fact->nsockets = (uint8_t)(asked < HK_SOCKETS_MAX ? asked : HK_SOCKETS_MAX);
}

int hk_socket_count(const hk_socket_fact *a, const hk_socket_fact *b, bool same_host) {
  int x = a->nsockets, y = b->nsockets, n;
  if (a->insists != b->insists)
    n = a->insists ? x : y;
  else if (!a->insists && same_host)
    n = 1; /* loopback: one core copies in and one out, whatever the number of sockets */
  else
    n = x < y ? x : y;
  return n < 1 ? 1 : n > HK_SOCKETS_MAX ? HK_SOCKETS_MAX : n;
}

static bool unpack(const hk_socket_addr *from, hk_addr *a) {
  memset(a, 0, sizeof *a);
  if (from->family == 4) {
    a->v4.sin_family = AF_INET;
    memcpy(&a->v4.sin_addr, from->bytes, 4);
  } else if (from->family == 6) {
    a->v6.sin6_family = AF_INET6;
    memcpy(&a->v6.sin6_addr, from->bytes, 16);
  }
  return from->family == 4 || from->family == 6;
}

static bool is_mine(const hk_iface *mine, int n, const hk_addr *a) {
  for (int i = 0; i < n; i++)
    if (hk_addr_same_net(&mine[i].addr, a, 128)) return true;
  return false;
}

/* The index of this rank's interface in the network of the address, or -1. */
static int neighbour(const hk_iface *mine, int n, const hk_addr *a) {
  for (int i = 0; i < n; i++)
    if (mine[i].kind != HK_IFACE_LOOPBACK && mine[i].prefix > 0 && !hk_addr_is_link_local(&mine[i].addr) &&
        hk_addr_same_net(&mine[i].addr, a, mine[i].prefix))
      return i;
  return -1;
}

int hk_socket_routes(const hk_iface *mine, int nmine, const hk_socket_fact *peer, bool named,
                     hk_socket_route out[HK_SOCKET_ADDRS]) {
  int n = 0, total = peer->naddrs < HK_SOCKET_ADDRS ? peer->naddrs : HK_SOCKET_ADDRS;
  uint32_t speeds[HK_SOCKET_ADDRS], slowest = UINT32_MAX, fastest = 0;
  for (int j = 0; j < total; j++) {
    const hk_socket_addr *p = &peer->addrs[j];
    hk_addr a;
    if (!unpack(p, &a) || p->kind == HK_IFACE_LOOPBACK || is_mine(mine, nmine, &a)) continue;
    if (!named && p->kind == HK_IFACE_BRIDGE) continue; /* each host has its own network with this number */
    int i = neighbour(mine, nmine, &a);
    if (i < 0) continue;
    uint32_t speed = p->speed_mbps < mine[i].speed_mbps ? p->speed_mbps : mine[i].speed_mbps;
    if (speed < slowest) slowest = speed;
    if (speed > fastest) fastest = speed;
    speeds[n] = speed;
    out[n++] = (hk_socket_route){.to = a, .iface = i};
  }
  if (named) return n; /* in the order that the user gave */
  /* The bootstrap's address is known to work. Another one is tried first only if it is at least twice as fast as the
   * slowest. */
  int kept = 0;
  for (int k = 0; k < n; k++)
    if (slowest > 0 && fastest / 2 >= slowest && speeds[k] == fastest) out[kept++] = out[k];
  return kept;
}
