/* SPDX-License-Identifier: Apache-2.0 */
/* Network ports from sysfs: RDMA devices if there are any (InfiniBand, RoCE, EFA), else the interfaces that TCP uses.
 * Ports of one card belong to one NIC. A virtual function counts as its card's port, which it shares. The members of a
 * bond are one port. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/sysfs.h"
#include "detect_scan.h"
#include "facts.h"

#define RDMA "/sys/class/infiniband"
#define NET "/sys/class/net"
enum { NET_LIMIT = 512, LOWER_DEPTH = 4 };

static hk_net_seen *detect_net_add_net(hk_detect_scan *s) {
  if (s->nnet >= NET_LIMIT) return NULL;
  if (!HK_RESERVE_NEXT(s->net, s->nnet)) return NULL;
  memset(&s->net[s->nnet], 0, sizeof *s->net);
  return &s->net[s->nnet++];
}

/* ---- RDMA ---- */

/* "0c42:a103:00c4:1d2e" */
static uint64_t detect_net_read_guid(const hk_detect_scan *s, const char *device) {
  char text[64];
  uint64_t guid = 0;
  if (!hk_sysfs_text(s->sys, text, sizeof text, RDMA "/%s/sys_image_guid", device) &&
      !hk_sysfs_text(s->sys, text, sizeof text, RDMA "/%s/node_guid", device))
    return 0;
  for (const char *p = text; *p; p++) {
    if (*p == ':') continue;
    char digit[2] = {*p, 0};
    guid = guid << 4 | strtoul(digit, NULL, 16);
  }
  return guid;
}

/* The card's PCI function; for RDMA in software the card of the interface below it. */
static int detect_net_device_of(const hk_detect_scan *s, const char *device) {
  char path[HK_SYSFS_PATH], parent[64];
  if (hk_sysfs_real(s->sys, path, RDMA "/%s", device)) {
    int at = hk_scan_pci_of_path(s, path);
    if (at >= 0) return at;
  }
  if (hk_sysfs_text(s->sys, parent, sizeof parent, RDMA "/%s/parent", device) &&
      hk_sysfs_real(s->sys, path, NET "/%s", parent))
    return hk_scan_pci_of_path(s, path);
  return -1;
}

/* An active port, or false; ports that are down are counted. */
static bool detect_net_read_port(hk_detect_scan *s, const char *device, const char *port, hk_net_seen *n, int *down) {
  char text[128];
  int state = 0;
  if (hk_sysfs_text(s->sys, text, sizeof text, RDMA "/%s/ports/%s/state", device, port)) state = atoi(text);
  if (state != 4) { /* "4: ACTIVE" */
    ++*down;
    return false;
  }
  n->port = atoi(port);
  n->rdma = true;
  if (hk_sysfs_text(s->sys, text, sizeof text, RDMA "/%s/ports/%s/rate", device, port))
    n->mbps = strtof(text, NULL) * 1000; /* "400 Gb/sec (4X NDR)" */
  if (hk_sysfs_text(s->sys, text, sizeof text, RDMA "/%s/ports/%s/link_layer", device, port))
    n->ethernet = strcmp(text, "Ethernet") == 0;
  return true;
}

static hk_status detect_net_scan_rdma(hk_detect_scan *s) {
  hk_status rc = HK_OK;
  int down = 0;
  char first[HK_NODE_NAME] = "", **ports = NULL, **devices = hk_sysfs_list(s->sys, RDMA);
  if (!(s->flags & HK_DETECT_BY_NAME)) hk_sysfs_sort_by_pci(s->sys, RDMA, devices);
  for (char **device = devices; device && *device; device++) {
    int pci = detect_net_device_of(s, *device);
    uint64_t guid = detect_net_read_guid(s, *device);
    ports = hk_sysfs_list(s->sys, RDMA "/%s/ports", *device);
    for (char **port = ports; port && *port; port++) {
      hk_net_seen seen = {.pci = pci, .guid = guid};
      int before = down;
      bool active = detect_net_read_port(s, *device, *port, &seen, &down);
      if (down > before && !first[0]) snprintf(first, sizeof first, "%.40s:%.4s", *device, *port);
      if (!active) continue;
      hk_net_seen *n = detect_net_add_net(s);
      if (!n) HK_GIVE_UP(HK_FAIL_ERRNO("no room for network port %s", *device), out);
      *n = seen;
      if (ports[1])
        snprintf(n->name, sizeof n->name, "%.40s:%.4s", *device, *port);
      else
        snprintf(n->name, sizeof n->name, "%.47s", *device);
    }
    free(ports);
    ports = NULL;
  }
  if (down == 1)
    HK_TRY(hk_topo_remark(s->t, "network port %s is down and left out", first), out);
  else if (down)
    HK_TRY(hk_topo_remark(s->t, "%d network ports are down and left out: %s and others", down, first), out);
out:
  free(ports);
  free(devices);
  return rc;
}

/* ---- interfaces ---- */

/* The PCI function of an interface, or of the interface below it (bond, VLAN, bridge with a real port); -1: none is
 * visible. *hardware: there is a device, even if it is not a PCI device. */
static int detect_net_function_of(const hk_detect_scan *s, const char *name, int depth, bool *hardware) {
  char path[HK_SYSFS_PATH];
  if (hk_sysfs_has(s->sys, NET "/%s/device", name)) {
    *hardware = true;
    return hk_sysfs_real(s->sys, path, NET "/%s", name) ? hk_scan_pci_of_path(s, path) : -1;
  }
  int found = -1;
  char **names = depth > 0 ? hk_sysfs_list(s->sys, NET "/%s", name) : NULL;
  for (char **n = names; n && *n && found < 0; n++)
    if (strncmp(*n, "lower_", 6) == 0) found = detect_net_function_of(s, *n + 6, depth - 1, hardware);
  free(names);
  return found;
}

static bool detect_net_is_up(const hk_detect_scan *s, const char *name) {
  char state[32] = "";
  long long carrier = 0;
  hk_sysfs_text(s->sys, state, sizeof state, NET "/%s/operstate", name);
  if (strcmp(state, "up") == 0) return true;
  return strcmp(state, "unknown") == 0 && hk_sysfs_number(s->sys, &carrier, NET "/%s/carrier", name) && carrier == 1;
}

/* False for software devices that lead nowhere else: loopback, container bridges, tunnels of the host to itself. */
static bool detect_net_leads_out(const hk_detect_scan *s, const char *name) {
  static const char *const inner[] = {"lo",    "docker",  "br-",  "virbr",        "cni", "podman", "lxcbr",
                                      "lxdbr", "veth",    "vnet", "dummy",        "ifb", "tap",    "tun",
                                      "kube-", "flannel", "cali", "nodelocaldns", "sit", "gre",    "ip6tnl"};
  if (hk_sysfs_has(s->sys, NET "/%s/bridge", name)) return false;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(inner); i++)
    if (strncmp(name, inner[i], strlen(inner[i])) == 0) return false;
  return true;
}

/* The first pass adds the interfaces with hardware. If there are none, the second pass adds those without: a
 * container's eth0. */
static hk_status detect_net_scan_interfaces(hk_detect_scan *s, bool with_hardware, int *unknown) {
  hk_status rc = HK_OK;
  char **names = hk_sysfs_list(s->sys, NET);
  for (char **name = names; name && *name; name++) {
    bool hardware = false;
    long long speed = 0;
    /* A bond's member is a part of the bond. */
    if (hk_sysfs_has(s->sys, NET "/%s/master", *name) && !hk_sysfs_has(s->sys, NET "/%s/master/bridge", *name))
      continue;
    if (!detect_net_is_up(s, *name) || strlen(*name) >= HK_NODE_NAME) continue;
    int pci = detect_net_function_of(s, *name, LOWER_DEPTH, &hardware);
    if (hardware != with_hardware || (!hardware && !detect_net_leads_out(s, *name))) continue;
    /* A VLAN is its interface again, a bridge is its port. */
    if (!hk_sysfs_has(s->sys, NET "/%s/device", *name) && !hk_sysfs_has(s->sys, NET "/%s/bonding", *name) && hardware)
      continue;
    hk_net_seen *n = detect_net_add_net(s);
    if (!n) HK_GIVE_UP(HK_FAIL_ERRNO("no room for network interface %s", *name), out);
    *n = (hk_net_seen){.pci = pci, .port = 1, .ethernet = true};
    snprintf(n->name, sizeof n->name, "%s", *name);
    if (hk_sysfs_number(s->sys, &speed, NET "/%s/speed", *name) && speed > 0)
      n->mbps = (float)speed;
    else
      ++*unknown;
  }
out:
  free(names);
  return rc;
}

/* ---- together ---- */

/* A virtual function's port is its physical function's. If both are visible, or several virtual functions of one card,
 * one is kept. */
static void detect_net_merge_functions(hk_detect_scan *s) {
  int kept = 0;
  for (int i = 0; i < s->nnet; i++) {
    uint64_t of = s->net[i].pci >= 0 ? s->pci[s->net[i].pci].function : 0;
    bool drop = false;
    for (int k = 0; of && k < s->nnet && !drop; k++) {
      const hk_pci_seen *other = k != i && s->net[k].pci >= 0 ? &s->pci[s->net[k].pci] : NULL;
      drop = other && (other->id == of || (k < i && other->function == of));
    }
    if (!drop) s->net[kept++] = s->net[i];
  }
  s->nnet = kept;
}

/* The functions of a card share its link: the lowest function represents all of them. */
static int detect_net_card_of(const hk_detect_scan *s, int pci) {
  uint64_t id = s->pci[pci].function && hk_scan_pci_find(s, s->pci[pci].function) >= 0 ? s->pci[pci].function
                                                                                       : s->pci[pci].id;
  for (uint64_t f = id & ~(uint64_t)0xf; f < id; f++) {
    int at = hk_scan_pci_find(s, f);
    if (at >= 0 && s->pci[at].class_code >> 16 == 0x02) return at;
  }
  int at = hk_scan_pci_find(s, id);
  return at >= 0 ? at : pci;
}

hk_status hk_scan_nets(hk_detect_scan *s) {
  int unknown = 0;
  HK_OR_RETURN(detect_net_scan_rdma(s));
  if (s->nnet == 0) HK_OR_RETURN(detect_net_scan_interfaces(s, true, &unknown));
  if (s->nnet == 0) HK_OR_RETURN(detect_net_scan_interfaces(s, false, &unknown));
  detect_net_merge_functions(s);
  for (int i = 0; i < s->nnet; i++) {
    hk_net_seen *n = &s->net[i];
    if (n->pci >= 0) hk_scan_pci_keep(s, n->pci = detect_net_card_of(s, n->pci));
    if (!(n->mbps > 0 && n->mbps < 1e8f)) n->mbps = 10000;
  }
  if (unknown)
    HK_OR_RETURN(
        hk_topo_remark(s->t, "%s's speed is not known (a virtual interface): 10 Gb/s is assumed", s->net[0].name));
  return HK_OK;
}

/* A port whose device is not visible is attached to the first CPU, as a device with an address that no bus has. */
static hk_status detect_net_place_bare(hk_detect_scan *s, int i, uint32_t *nic) {
  HK_OR_RETURN(hk_topo_add(s->t, HK_NODE_NIC, (uint64_t)0xffffff << 20 | (uint64_t)i << 4, nic));
  s->t->nodes[*nic].numa = s->t->nodes[0].numa;
  HK_OR_RETURN(hk_topo_link_usual(s->t, *nic, 0, HK_EDGE_PCI, 1, hk_pci_gbps(hk_pci_gts(3), 16)));
  return hk_topo_remark(s->t, "the place of network port %s in the PCI tree is not known: its device cannot be seen",
                        s->net[i].name);
}

/* True if NICs can access GPU memory, through the peer memory module or dma-bufs. */
static bool detect_net_peer_memory(const hk_detect_scan *s) {
  static const char *const modules[] = {"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem",
                                        "/sys/kernel/mm/memory_peers"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(modules); i++)
    if (hk_sysfs_has(s->sys, "%s", modules[i])) return true;
  return false;
}

hk_status hk_scan_net_place(hk_detect_scan *s) {
  bool gdr = detect_net_peer_memory(s), rdma = false;
  for (int i = 0; i < s->ngpu; i++) gdr = gdr || s->gpu[i].dmabuf;
  for (int i = 0; i < s->nnet; i++) {
    const hk_net_seen *seen = &s->net[i];
    uint32_t nic, net;
    if (seen->pci >= 0)
      HK_OR_RETURN(hk_scan_pci_place(s, seen->pci, HK_NODE_NIC, &nic));
    else
      HK_OR_RETURN(detect_net_place_bare(s, i, &nic));
    if (!s->t->nodes[nic].name[0]) memcpy(s->t->nodes[nic].name, seen->name, sizeof seen->name);
    HK_OR_RETURN(hk_topo_add(s->t, HK_NODE_NET, (uint64_t)i, &net));
    hk_node *n = &s->t->nodes[net];
    n->numa = s->t->nodes[nic].numa;
    memcpy(n->name, seen->name, sizeof n->name);
    n->net = (hk_net_info){.dev = i, .port = seen->port, .mbps = seen->mbps, .guid = seen->guid, .rail = i};
    n->net.gdr = seen->rdma && gdr && s->ngpu > 0;
    n->net.ethernet = seen->ethernet;
    rdma = rdma || seen->rdma;
    HK_OR_RETURN(hk_topo_link_usual(s->t, nic, net, HK_EDGE_PORT, 1, hk_port_gbps(seen->mbps)));
  }
  if (rdma && s->ngpu > 0 && !gdr)
    HK_OR_RETURN(hk_topo_remark(s->t, "NICs do not reach GPU memory: no peer memory module and no dma-buf; modprobe "
                                      "nvidia-peermem"));
  return HK_OK;
}
