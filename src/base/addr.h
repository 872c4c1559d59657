/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses and network interfaces: parsing, printing, choosing, listening. */
#pragma once
#include <net/if.h> /* IFNAMSIZ */
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include "status.h"

struct hk_settings; /* param.h */

typedef union hk_addr {
  struct sockaddr sa;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  unsigned char bytes[28];
} hk_addr;
enum { HK_ADDR_TEXT = 80 };

socklen_t hk_addr_len(const hk_addr *a);
bool hk_addr_equal(const hk_addr *a, const hk_addr *b); /* the port included */
/* "10.0.0.1<4242>", "[fe80::1%eth0]<4242>", as NCCL prints them. Returns `text` (HK_ADDR_TEXT bytes). */
const char *hk_addr_format(const hk_addr *a, char *text);
/* "host:port", "[v6]:port", "[v6%ifname]:port"; names are resolved. */
hk_status hk_addr_parse(const struct hk_settings *settings, hk_addr *a, const char *text);
/* Converts an IPv4 address that a dual-stack socket shows as ::ffff:10.0.0.1 to plain IPv4; others do not change. */
void hk_addr_unmap(hk_addr *a);
unsigned hk_addr_port(const hk_addr *a);
void hk_addr_set_port(hk_addr *a, unsigned port);

typedef enum hk_iface_class { HK_IFACE_PHYSICAL, HK_IFACE_VIRTUAL, HK_IFACE_BRIDGE, HK_IFACE_LOOPBACK } hk_iface_class;
typedef struct hk_iface {
  char name[IFNAMSIZ];
  hk_addr addr;        /* port 0 */
  uint8_t kind;        /* hk_iface_class; bridges are docker0, virbr, cni, veth-fed container bridges, ... */
  uint8_t prefix;      /* network bits */
  uint32_t speed_mbps; /* 0: unknown */
  uint32_t vendor;     /* of the PCI device; 0: none, or unknown */
} hk_iface;

/* The interfaces that are up, best first. NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY filter and order them (NCCL's
 * syntax: prefixes, "=exact", "^excluded"). Otherwise, with `toward` given, the interface whose route reaches it comes
 * first. Container bridges and loopback come last, loopback only if there is nothing else or it was asked for. *n is
 * the room in `out`, then the number found. HK_ERR_USAGE names the filter if it leaves none. */
hk_status hk_ifaces(const struct hk_settings *settings, hk_iface *out, int *n, const hk_addr *toward);
/* The same for control connections: NCCL_OOB_NET_ENABLE. */
hk_status hk_control_ifaces(const struct hk_settings *settings, hk_iface *out, int *n, const hk_addr *toward);

/* A nonblocking, close-on-exec TCP listener on `a` (port 0: HOCKET_PORT_RANGE, else any); the port is stored in *a. */
hk_status hk_listen(const struct hk_settings *settings, hk_addr *a, int backlog, int *fd);
/* A nonblocking TCP socket whose connect has been started. */
hk_status hk_connect_start(const hk_addr *to, int *fd);
/* Before connect(2) or listen(2): the connection's congestion control is reno, which paces nothing, if the system has
 * it. bbr paces: a connection that began with it uses a timer for every few packets until it ends. Inside a host there
 * is no congestion, and pacing takes half of the time of 8 ranks' exchanges. Connections between hosts get the system's
 * choice back when they are made (net/socket/socket.c). */
void hk_tcp_unpaced(int fd);
