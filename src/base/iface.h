/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of interfaces, separate from the machine, so that tests can use invented machines. */
#pragma once
#include "addr.h"

typedef struct hk_iface_filter {
  const char *names;    /* NCCL_SOCKET_IFNAME's value, or NULL */
  int family;           /* AF_INET, AF_INET6, or AF_UNSPEC */
  const hk_addr *local; /* the local address from which the route to the destination leaves, or NULL */
  bool remote;          /* the destination is another host, which loopback does not reach */
} hk_iface_filter;

/* Removes from list[0..n) what the settings exclude, sorts the rest, best first, and returns how many are left; -1
 * without memory. */
int hk_iface_order(hk_iface *list, int n, const hk_iface_filter *filter);
/* True if both addresses are in one network of `prefix` bits. Link-local addresses match by network only. */
bool hk_addr_same_net(const hk_addr *a, const hk_addr *b, unsigned prefix);
/* Equal without regard to the port. */
bool hk_addr_same_host(const hk_addr *a, const hk_addr *b);
/* The name of the interface that has this address (whatever its port); "" if none does. */
void hk_iface_name_of(const hk_addr *a, char name[IFNAMSIZ]);
bool hk_addr_is_loopback(const hk_addr *a);
bool hk_addr_is_link_local(const hk_addr *a);
