/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses which of a peer's addresses to connect to, and the number of sockets. No I/O: tests invent the machines. */
#include <string.h>
#include "../../../base/iface.h"
#include "../../../base/param.h"
#include "socket.h"

enum { AMAZON = 0x1d0f, GOOGLE = 0x1ae0 }; /* PCI vendors of the clouds' network cards */

typedef struct socket_plan {
  int threads, each; /* sockets of a thread */
} socket_plan;

/* One core of the sender fills about 25 Gb/s through one socket. With more sockets the receiver's interrupts and the
 * windows of a long path work in parallel. The clouds limit the speed of a single socket: NCCL's numbers. */
static socket_plan socket_route_plan_for(const hk_iface *i) {
  if (i && i->vendor == AMAZON) return (socket_plan){2, 8};
  if (i && i->vendor == GOOGLE) return (socket_plan){4, 1};
  uint32_t mbps = i ? i->speed_mbps : 0;
  return (socket_plan){1, mbps >= 100000 ? 4 : mbps >= 25000 ? 2 : 1};
}

/* NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD: the product counts. */
static void socket_route_count_sockets(const hk_settings *set, hk_socket_fact *fact, const hk_iface *fastest) {
  int64_t threads = set->SOCKET_NTHREADS, each = set->NSOCKS_PERTHREAD;
  socket_plan p = socket_route_plan_for(fastest);
  fact->insists = threads > 0 || each > 0;
  if (threads > 0) p.threads = (int)threads;
  if (each > 0) p.each = (int)each;
  if (threads > 0 && each <= 0 && !(fastest && fastest->vendor == AMAZON)) p.each = 1; /* as in NCCL */
  /* As in NCCL, threads are kept if the product is too large. */
  if (p.threads * p.each > HK_SOCKETS_MAX) p.each = HK_SOCKETS_MAX / p.threads;
  fact->nsockets = (uint8_t)(p.threads * p.each);
}

void hk_socket_describe(const hk_settings *set, hk_socket_fact *fact, const hk_iface *ifaces, int n) {
  const hk_iface *fastest = NULL;
  int first[HK_SOCKET_ADDRS]; /* interfaces of the addresses */
  memset(fact, 0, sizeof *fact);
  for (int i = 0; i < n && fact->naddrs < HK_SOCKET_ADDRS; i++) {
    const hk_addr *a = &ifaces[i].addr;
    /* A link-local address means nothing without an interface of the host that dials it. */
    if (hk_addr_is_link_local(a)) continue;
    uint8_t same = 0;
    while (same < fact->naddrs && strcmp(ifaces[first[same]].name, ifaces[i].name) != 0) same++;
    first[fact->naddrs] = i;
    hk_socket_addr *to = &fact->addrs[fact->naddrs++];
    to->iface = same;
    to->family = a->sa.sa_family == AF_INET6 ? 6 : 4;
    to->kind = ifaces[i].kind;
    to->prefix = ifaces[i].prefix;
    to->speed_mbps = ifaces[i].speed_mbps;
    if (to->family == 6)
      memcpy(to->bytes, &a->v6.sin6_addr, 16);
    else
      memcpy(to->bytes, &a->v4.sin_addr, 4);
    if (ifaces[i].kind == HK_IFACE_PHYSICAL && (!fastest || ifaces[i].speed_mbps > fastest->speed_mbps))
      fastest = &ifaces[i];
  }
  socket_route_count_sockets(set, fact, fastest);
}

static bool socket_route_unpack(const hk_socket_addr *from, hk_addr *a) {
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

/* The index of this rank's address in the network of `a`, or -1; -2 if `a` is an address of this rank, too. */
static int socket_route_neighbour(const hk_socket_fact *mine, uint32_t dropped, const hk_addr *a) {
  int found = -1;
  for (int i = 0; i < mine->naddrs && i < HK_SOCKET_ADDRS; i++) {
    const hk_socket_addr *m = &mine->addrs[i];
    hk_addr own;
    if (!socket_route_unpack(m, &own)) continue;
    if (hk_addr_same_host(&own, a)) return -2;
    if (found < 0 && m->kind != HK_IFACE_LOOPBACK && m->prefix > 0 && !(dropped >> m->iface & 1) &&
        hk_addr_same_net(&own, a, m->prefix))
      found = i;
  }
  return found;
}

/* A stripe has equal parts, so unequal interfaces help only if the slower one has more than half of the speed. An
 * unknown speed is only like another one. */
static bool socket_route_alike(uint32_t a, uint32_t b) { return a == b || (a > b ? a / 2 < b : b / 2 < a); }

/* All pairs of interfaces in one network, one address for each. */
static int socket_route_pairs_of(const hk_socket_fact *mine, const hk_socket_fact *peer, uint32_t dropped,
                                 hk_socket_route out[HK_SOCKET_ADDRS]) {
  int n = 0;
  uint32_t my_used = 0, peer_used = 0;
  for (int j = 0; j < peer->naddrs && j < HK_SOCKET_ADDRS; j++) {
    const hk_socket_addr *p = &peer->addrs[j];
    hk_addr a;
    if (!socket_route_unpack(p, &a) || p->kind == HK_IFACE_LOOPBACK) continue;
    if (!mine->named && p->kind == HK_IFACE_BRIDGE) continue; /* each host has its own network with this number */
    int i = socket_route_neighbour(mine, dropped, &a);
    if (i < 0) continue;
    const hk_socket_addr *m = &mine->addrs[i];
    if ((my_used >> m->iface & 1) || (peer_used >> p->iface & 1)) continue;
    my_used |= 1u << m->iface;
    peer_used |= 1u << p->iface;
    out[n++] = (hk_socket_route){.to = a,
                                 .speed_mbps = p->speed_mbps < m->speed_mbps ? p->speed_mbps : m->speed_mbps,
                                 .iface = m->iface,
                                 .kind = p->kind > m->kind ? p->kind : m->kind};
  }
  return n;
}

int hk_socket_routes(const hk_socket_fact *dialing, const hk_socket_fact *accepting, uint32_t dropped,
                     hk_socket_route out[HK_SOCKET_ADDRS]) {
  int n = socket_route_pairs_of(dialing, accepting, dropped, out), kept = 0, first = 0;
  uint32_t slowest = UINT32_MAX, fastest = 0;
  if (n == 0) return 0;
  for (int k = 0; k < n; k++) {
    if (out[k].speed_mbps < slowest) slowest = out[k].speed_mbps;
    if (out[k].speed_mbps > fastest) fastest = out[k].speed_mbps;
  }
  if (dialing->named) { /* the first one that the user named, and those like it */
    for (int k = 0; k < n; k++)
      if (socket_route_alike(out[k].speed_mbps, out[0].speed_mbps)) out[kept++] = out[k];
    return kept;
  }
  /* Without a setting only hardware counts as several interfaces: virtual ones mostly share a card. */
  while (out[first].speed_mbps != fastest) first++;
  hk_socket_route best = out[first];
  for (int k = 0; k < n; k++)
    if (out[k].kind == HK_IFACE_PHYSICAL && socket_route_alike(out[k].speed_mbps, fastest)) out[kept++] = out[k];
  if (kept > 1) return kept;
  /* The bootstrap's address is known to work. Another one is tried first only if it is at least twice as fast as the
   * slowest. */
  out[0] = best;
  return slowest > 0 && fastest / 2 >= slowest;
}

int hk_socket_count(const hk_socket_fact *dialing, const hk_socket_fact *accepting, bool same_host, int nranks) {
  const hk_socket_fact *a = dialing, *b = accepting;
  hk_socket_route routes[HK_SOCKET_ADDRS];
  int x = a->nsockets, y = b->nsockets, n;
  if (a->insists != b->insists) {
    n = a->insists ? x : y;
  } else if (a->insists) {
    n = x < y ? x : y;
  } else if (same_host) {
    n = 1; /* loopback: one core copies in and one out, whatever the number of sockets */
  } else {
    int pairs = hk_socket_routes(dialing, accepting, 0, routes), most = HK_SOCKETS_OF_ALL / nranks;
    n = (x < y ? x : y) * (pairs > 1 ? pairs : 1);
    if (n > most) n = most > pairs ? most : pairs;
  }
  return n < 1 ? 1 : n > HK_SOCKETS_MAX ? HK_SOCKETS_MAX : n;
}
