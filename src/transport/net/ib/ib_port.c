/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA ports and their GIDs, read from /sys, and pairs of them: see ib_port.h. */
#include "ib_port.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../base/sysfs.h"

#define RDMA "/sys/class/infiniband"

const char *hk_ib_root(void) {
  const char *set = hk_param_str(HK_P_IB_ROOT);
  return set ? set : "";
}

/* ---- NCCL_IB_HCA ---- */

/* Matches one item, "mlx5_0", "mlx5_0:1" or "mlx5_0:1:3:0" (with rail and plane): devices whose name begins so, or
 * (`exact`) is that. A port that is not a number is any. */
static bool ib_port_item_takes(const char *item, size_t n, bool exact, const char *device, int port) {
  const char *colon = memchr(item, ':', n);
  size_t name = colon ? (size_t)(colon - item) : n;
  if (colon && colon[1] >= '0' && colon[1] <= '9' && atoi(colon + 1) != port) return false;
  return strncmp(item, device, name) == 0 && (!exact || device[name] == '\0');
}

/* The first item that names the port; NULL: none. */
static const char *ib_port_item_of(const char *filter, const char *device, int port, bool *exclude) {
  bool exact = false;
  *exclude = false;
  for (; *filter == '^' || *filter == '='; filter++) *(*filter == '^' ? exclude : &exact) = true;
  while (*filter) {
    size_t n = strcspn(filter, ",");
    if (n && ib_port_item_takes(filter, n, exact, device, port)) return filter;
    filter += n + (filter[n] == ',');
  }
  return NULL;
}

bool hk_ib_hca_takes(const char *filter, const char *device, int port) {
  bool exclude;
  if (!filter || !*filter) return true;
  bool listed = ib_port_item_of(filter, device, port, &exclude) != NULL;
  return listed != exclude;
}

int hk_ib_hca_rail(const char *filter, const char *device, int port) {
  bool exclude;
  const char *item = filter ? ib_port_item_of(filter, device, port, &exclude) : NULL;
  if (!item || exclude) return -1;
  for (int colons = 0; colons < 2; item++) { /* after the name and the port */
    if (!*item || *item == ',') return -1;
    colons += *item == ':';
  }
  return *item >= '0' && *item <= '9' ? atoi(item) : -1;
}

/* ---- GIDs ---- */

static bool ib_port_is_mapped(const hk_ibv_gid *g) { /* an IPv4 address */
  static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(g->raw, prefix, sizeof prefix) == 0;
}
static bool ib_port_is_link_local(const hk_ibv_gid *g) { return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80; }
static int ib_port_family_of(const hk_ibv_gid *g) {
  return ib_port_is_mapped(g) ? 0 : ib_port_is_link_local(g) ? 2 : 1;
}

static bool ib_port_same_bits(const uint8_t *a, const uint8_t *b, unsigned bits) {
  unsigned bytes = bits / 8, rest = bits % 8;
  if (memcmp(a, b, bytes) != 0) return false;
  return !rest || ((a[bytes] ^ b[bytes]) >> (8 - rest)) == 0;
}

const char *hk_ib_gid_text(const hk_ibv_gid *gid, char text[48]) {
  if (!inet_ntop(AF_INET6, gid->raw, text, 48)) snprintf(text, 48, "?");
  return text;
}

hk_status hk_ib_gid_filter_of(const hk_settings *set, hk_ib_gid_filter *w) {
  const char *family = set->IB_ADDR_FAMILY, *range = set->IB_ADDR_RANGE;
  *w = (hk_ib_gid_filter){
      .index = (int)set->IB_GID_INDEX, .version = (int)set->IB_ROCE_VERSION_NUM, .family = AF_UNSPEC};
  if (family && strcmp(family, "AF_INET") == 0)
    w->family = AF_INET;
  else if (family && strcmp(family, "AF_INET6") == 0)
    w->family = AF_INET6;
  else if (family && *family)
    return HK_FAIL(HK_ERR_USAGE, "NCCL_IB_ADDR_FAMILY='%s': AF_INET or AF_INET6", family);
  if (range && *range) {
    char text[64], v6[72];
    snprintf(text, sizeof text, "%s", range);
    char *slash = strchr(text, '/');
    int most = strchr(text, ':') ? 128 : 32;
    char *end = text;
    long bits = slash ? strtol(slash + 1, &end, 10) : most;
    if (slash && (end == slash + 1 || *end)) bits = -1; /* no number */
    if (slash) *slash = '\0';
    snprintf(v6, sizeof v6, "%s%s", most == 32 ? "::ffff:" : "", text);
    if (inet_pton(AF_INET6, v6, w->range) != 1 || bits < 0 || bits > most)
      return HK_FAIL(HK_ERR_USAGE, "NCCL_IB_ADDR_RANGE='%s' is no network such as 10.0.0.0/8 or fd00::/16", range);
    w->ranged = true;
    w->bits = (uint8_t)(bits + 128 - most);
  }
  return HK_OK;
}

int hk_ib_gid_cost(const hk_ib_gid *g, int version) {
  int other = g->kind != HK_IB_GID_IB && g->kind != (version == 1 ? HK_IB_GID_ROCE1 : HK_IB_GID_ROCE2);
  return other * 4 + ib_port_family_of(&g->gid);
}

const char *hk_ib_gid_words(const hk_ib_gid *g, char text[40]) {
  static const char *const families[] = {"IPv4", "IPv6", "link-local IPv6"};
  snprintf(text, 40, "RoCE v%d, %s", g->kind == HK_IB_GID_ROCE2 ? 2 : 1, families[ib_port_family_of(&g->gid)]);
  return text;
}

int hk_ib_gids_order(hk_ib_gid *gids, int n, const hk_ib_gid_filter *w) {
  int kept = 0;
  for (int i = 0; i < n; i++) {
    hk_ib_gid g = gids[i];
    if (w->index >= 0 && g.index != w->index) continue;
    if (g.kind != HK_IB_GID_IB && w->index < 0) {
      if (w->family == AF_INET && !ib_port_is_mapped(&g.gid)) continue;
      if (w->family == AF_INET6 && ib_port_is_mapped(&g.gid)) continue;
      if (w->ranged && !ib_port_same_bits(g.gid.raw, w->range, w->bits)) continue;
    }
    int at = kept++;
    for (; at > 0 && hk_ib_gid_cost(&gids[at - 1], w->version) > hk_ib_gid_cost(&g, w->version); at--)
      gids[at] = gids[at - 1];
    gids[at] = g;
  }
  return kept;
}

/* The length in bits of the prefix of an IPv4 address's network on this machine. */
static uint8_t ib_port_prefix_of(const struct ifaddrs *all, const hk_ibv_gid *g) {
  if (!ib_port_is_mapped(g)) return 64;
  for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
    if (!a->ifa_addr || !a->ifa_netmask || a->ifa_addr->sa_family != AF_INET) continue;
    if (memcmp(&((struct sockaddr_in *)(void *)a->ifa_addr)->sin_addr, g->raw + 12, 4) != 0) continue;
    return (uint8_t)__builtin_popcount(((struct sockaddr_in *)(void *)a->ifa_netmask)->sin_addr.s_addr);
  }
  return 32;
}

static int ib_port_list_gids(const char *below, const char *device, int port, bool ethernet, const struct ifaddrs *all,
                             const hk_ib_gid_filter *w, hk_ib_gid out[HK_IB_GIDS]) {
  hk_ib_gid found[256];
  int n = 0;
  char **indexes = hk_sysfs_list(below, RDMA "/%s/ports/%d/gids", device, port);
  for (char **i = indexes; i && *i && n < 256; i++) {
    char text[64];
    hk_ib_gid g = {.index = (uint8_t)atoi(*i)};
    static const hk_ibv_gid none;
    if (!hk_sysfs_text(below, text, sizeof text, RDMA "/%s/ports/%d/gids/%s", device, port, *i) ||
        inet_pton(AF_INET6, text, g.gid.raw) != 1 || memcmp(&g.gid, &none, sizeof none) == 0 || g.gid.words[1] == 0)
      continue;
    g.kind = ethernet ? HK_IB_GID_ROCE1 : HK_IB_GID_IB;
    if (ethernet && hk_sysfs_text(below, text, sizeof text, RDMA "/%s/ports/%d/gid_attrs/types/%s", device, port, *i) &&
        strstr(text, "v2"))
      g.kind = HK_IB_GID_ROCE2;
    g.prefix = ib_port_prefix_of(all, &g.gid);
    found[n++] = g;
  }
  free(indexes);
  n = hk_ib_gids_order(found, n, w);
  if (n > HK_IB_GIDS) n = HK_IB_GIDS;
  memcpy(out, found, (size_t)n * sizeof *out);
  return n;
}

int hk_ib_gids(const char *below, const char *device, int port, const hk_ib_gid_filter *w, hk_ib_gid out[HK_IB_GIDS]) {
  return ib_port_list_gids(below, device, port, true, NULL, w, out);
}

/* ---- ports ---- */

static uint8_t ib_port_mtu_of(const char *device, int port) {
  char path[512], text[64];
  long long bytes = 0;
  /* RoCE's MTU follows from its interface's: the largest that fits with its headers. */
  snprintf(path, sizeof path, RDMA "/%.64s/ports/%d/gid_attrs/ndevs/0", device, port);
  if (hk_sysfs_text(hk_ib_root(), text, sizeof text, "%s", path))
    hk_sysfs_number(hk_ib_root(), &bytes, "/sys/class/net/%s/mtu", text);
  uint8_t mtu = 5;
  while (bytes > 0 && mtu > 1 && (128 << mtu) + 64 > bytes) mtu--;
  return mtu;
}

bool hk_ib_serves(const char *below, const char *device, char *why, size_t why_bytes) {
  enum { CHANNEL_ADAPTER = 1, IWARP = 4 };
  char type[64];
  if (!hk_sysfs_text(below, type, sizeof type, RDMA "/%s/node_type", device) || atoi(type) == CHANNEL_ADAPTER)
    return true;
  if (atoi(type) == IWARP)
    snprintf(why, why_bytes, "%.31s is an iWARP device, which has no RDMA write with immediate data", device);
  else
    snprintf(why, why_bytes, "%.31s is neither InfiniBand nor RoCE (node type %.32s); a net plugin may know it", device,
             type);
  return false;
}

static bool ib_port_read_port(const char *device, int number, const struct ifaddrs *all, const hk_ib_gid_filter *w,
                              hk_ib_port *p, char *why, size_t why_bytes) {
  char text[64];
  long long lid = 0;
  if (!hk_ib_serves(hk_ib_root(), device, why, why_bytes)) {
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "RDMA port %d of %s is left out: %s", number, device, why);
    return false;
  }
  if (!hk_sysfs_text(hk_ib_root(), text, sizeof text, RDMA "/%s/ports/%d/state", device, number) || atoi(text) != 4) {
    snprintf(why, why_bytes, "port %d of %.31s is %.32s", number, device,
             text[0] ? text : "in a state that cannot be read");
    return false;
  }
  hk_sysfs_text(hk_ib_root(), text, sizeof text, RDMA "/%s/ports/%d/link_layer", device, number);
  bool ethernet = strcmp(text, "Ethernet") == 0;
  hk_sysfs_number(hk_ib_root(), &lid, RDMA "/%s/ports/%d/lid", device, number);
  if (!hk_sysfs_text(hk_ib_root(), text, sizeof text, RDMA "/%s/ports/%d/rate", device, number)) text[0] = '\0';
  *p = (hk_ib_port){.lid = (uint16_t)lid,
                    .mbps = (uint32_t)(strtod(text, NULL) * 1000), /* "100 Gb/sec (4X EDR)" */
                    .number = (uint8_t)number,
                    .layer = ethernet ? HK_IBV_LAYER_ETHERNET : HK_IBV_LAYER_INFINIBAND,
                    .mtu = ethernet ? ib_port_mtu_of(device, number) : 5};
  snprintf(p->device, sizeof p->device, "%.31s", device);
  p->ngids = (uint8_t)ib_port_list_gids(hk_ib_root(), device, number, ethernet, all, w, p->gids);
  if (!p->ngids && ethernet) {
    snprintf(why, why_bytes, "port %d of %.31s has no GID that NCCL_IB_GID_INDEX, _ADDR_FAMILY and _ADDR_RANGE take",
             number, device);
    return false;
  }
  return true;
}

/* Returns true if the device is on the NUMA node of the CPU that this thread runs on. */
static bool ib_port_is_near(const char *device) {
  long long node = -1;
  unsigned cpu, here = 0;
  if (!hk_sysfs_number(hk_ib_root(), &node, RDMA "/%s/device/numa_node", device) || node < 0) return false;
  return getcpu(&cpu, &here) == 0 && (long long)here == node;
}

/* A search for ports. */
typedef struct search {
  const char *filter; /* NCCL_IB_HCA */
  hk_ib_gid_filter gid_filter;
  struct ifaddrs *all;
  hk_ib_opens *opens;
  void *arg;
  hk_ib_port *out;
  int n, seen, near;
  bool named, others; /* by NCCL_IB_HCA */
  char *why;
  size_t why_bytes;
} search;

/* A port whose device cannot be opened is left out before ports are compared, so that no other one is left out because
 * of it. */
static bool ib_port_can_open(search *s, const char *device) {
  char cause[160];
  if (!s->opens || s->opens(s->arg, device, cause, sizeof cause)) return true;
  snprintf(s->why, s->why_bytes, "RDMA device %.31s cannot be opened: %s", device, cause);
  HK_INFO(HK_SUB_INIT | HK_SUB_NET, "%s", s->why);
  return false;
}

static void ib_port_read_device(search *s, const char *device) {
  bool tried = false, opens = false;
  char **ports = hk_sysfs_list(hk_ib_root(), RDMA "/%s/ports", device);
  for (char **p = ports; p && *p && s->n < HK_IB_PORTS; p++, s->seen++) {
    hk_ib_port port;
    if (!hk_ib_hca_takes(s->filter, device, atoi(*p))) {
      s->others = true;
      if (!s->n && !s->seen)
        snprintf(s->why, s->why_bytes, "NCCL_IB_HCA=%.60s names none of the RDMA devices here", s->filter);
      continue;
    }
    s->named = true;
    if (!ib_port_read_port(device, atoi(*p), s->all, &s->gid_filter, &port, s->why, s->why_bytes)) continue;
    if (!tried) opens = ib_port_can_open(s, device);
    tried = true;
    if (!opens) continue;
    port.rail = (int16_t)hk_ib_hca_rail(s->filter, device, atoi(*p));
    port.position = (uint8_t)s->n;
    int at = s->n++;
    if (ib_port_is_near(device)) {
      at = s->near++;
      memmove(&s->out[at + 1], &s->out[at], (size_t)(s->n - 1 - at) * sizeof *s->out);
    }
    s->out[at] = port;
  }
  free(ports);
}

int hk_ib_ports(const hk_settings *set, hk_ib_port out[HK_IB_PORTS], int *nnear, hk_ib_opens *opens, void *arg,
                char *why, size_t why_bytes) {
  search s = {.filter = set->IB_HCA, .opens = opens, .arg = arg, .out = out};
  *nnear = 0;
  s.why = why;
  s.why_bytes = why_bytes;
  if (hk_ib_gid_filter_of(set, &s.gid_filter) != HK_OK) {
    snprintf(why, why_bytes, "%s", hk_last_error());
    return 0;
  }
  char **devices = hk_sysfs_list(hk_ib_root(), RDMA);
  if (set->IB_DEVICE_PCI_ORDER) hk_sysfs_sort_by_pci(hk_ib_root(), RDMA, devices);
  snprintf(why, why_bytes, "this machine has no RDMA device (" RDMA " is empty)");
  if (devices && getifaddrs(&s.all) != 0) s.all = NULL;
  for (char **d = devices; d && *d; d++)
    if (strlen(*d) < HK_IB_NAME) ib_port_read_device(&s, *d);
  if (s.all) freeifaddrs(s.all);
  free(devices);
  if (s.filter && *s.filter && s.others && !s.named)
    HK_WARN_ONCE("NCCL_IB_HCA=%.100s names none of the RDMA devices here: RDMA is not used", s.filter);
  *nnear = s.near;
  if (hk_ib_merge(set, hk_ib_root(), out, &s.n, nnear) != HK_OK) {
    snprintf(why, why_bytes, "%s", hk_last_error());
    return 0;
  }
  return s.n;
}

/* ---- pairs ---- */

/* The cost of a pair of GIDs, or -1 if they cannot communicate. */
static int ib_port_gid_pair_cost(const hk_ib_gid *a, const hk_ib_gid *b, int version) {
  if (a->kind != b->kind || ib_port_family_of(&a->gid) != ib_port_family_of(&b->gid)) return -1;
  unsigned offset = ib_port_is_mapped(&a->gid) ? 96 : 0, bits = a->prefix < b->prefix ? a->prefix : b->prefix;
  return hk_ib_gid_cost(a, version) * 2 + !ib_port_same_bits(a->gid.raw, b->gid.raw, offset + bits);
}

/* A pair's cost has these parts, the first one in its highest bits: no way leads from one port to the other; a port is
 * far from its rank's GPU; two rails by NCCL_IB_HCA; the GIDs; and within a CLASS the positions. */
enum { CLASS = 32, RAILS = CLASS << 5, FAR = RAILS << 1, ISOLATED = FAR << 1, OTHER_POSITION = 3 };
_Static_assert(2 * (HK_IB_OFFERED - 1) + OTHER_POSITION < CLASS, "positions do not change the class");
_Static_assert(2 * ISOLATED <= 1 << 16, "a cost has 16 bits");

/* Of more pairs than there is room for, the best are kept. */
static void ib_port_add_pair(hk_ib_pair *out, int *n, hk_ib_pair p, bool caller) {
#define KEY(x)                                                                                                         \
  ((uint32_t)(x).cost << 16 | (uint32_t)(caller ? (x).mine : (x).theirs) << 12 |                                       \
   (uint32_t)(caller ? (x).theirs : (x).mine) << 8 | (uint32_t)(caller ? (x).my_gid : (x).their_gid) << 4 |            \
   (uint32_t)(caller ? (x).their_gid : (x).my_gid))
  if (*n == HK_IB_PAIRS && KEY(out[*n - 1]) < KEY(p)) return;
  int at = *n < HK_IB_PAIRS ? (*n)++ : *n - 1;
  for (; at > 0 && KEY(out[at - 1]) > KEY(p); at--) out[at] = out[at - 1];
#undef KEY
  out[at] = p;
}

/* A GID that routers between InfiniBand subnets forward has their LID in these two bytes; the two after them number the
 * subnet. */
uint16_t hk_ib_router_lid(const hk_ibv_gid *g) { return (uint16_t)(g->raw[4] << 8 | g->raw[5]); }

static uint8_t ib_port_routed_gid(const hk_ib_port *p) {
  uint8_t i = 0;
  while (i < p->ngids && !hk_ib_router_lid(&p->gids[i].gid)) i++;
  return i < p->ngids ? i : 0;
}
static bool ib_port_is_routed(const hk_ib_port *p) {
  return p->ngids && hk_ib_router_lid(&p->gids[ib_port_routed_gid(p)].gid);
}

bool hk_ib_one_subnet(const hk_ib_port *a, const hk_ib_port *b) {
  if (!a->ngids || !b->ngids) return true;
  for (int i = 0; i < a->ngids; i++)
    for (int j = 0; j < b->ngids; j++) {
      const uint8_t *p = a->gids[i].gid.raw, *q = b->gids[j].gid.raw;
      if (memcmp(p, q, 4) == 0 && memcmp(p + 6, q + 6, 2) == 0) return true;
    }
  return false;
}

/* ---- which ranks reach each other ---- */

hk_ib_spot hk_ib_spot_of(const hk_ib_port *p) {
  hk_ib_spot s = {.rail = p->rail, .position = p->position, .layer = p->layer, .routed = ib_port_is_routed(p)};
  if (p->layer == HK_IBV_LAYER_INFINIBAND && p->ngids) {
    memcpy(&s.subnet, p->gids[0].gid.raw, sizeof s.subnet);
    memset((char *)&s.subnet + 4, 0, 2); /* hk_ib_router_lid; what is left is what hk_ib_one_subnet compares */
  }
  return s;
}

static bool ib_port_one_rail(int rail_a, int position_a, int rail_b, int position_b) {
  return rail_a >= 0 && rail_b >= 0 ? rail_a == rail_b : position_a == position_b;
}

/* As ib_port_cost and ib_port_add_infiniband: no pair of isolated ports. */
static bool ib_port_spots_meet(const hk_settings *set, const hk_ib_spot *a, const hk_ib_spot *b) {
  bool subnets = a->subnet && b->subnet && a->subnet != b->subnet;
  return a->layer == b->layer && !(subnets && !(a->routed && b->routed)) &&
         (set->CROSS_NIC != 0 || ib_port_one_rail(a->rail, a->position, b->rail, b->position));
}

/* "rail 0", "rails 0 and 2" */
static void ib_port_rails_as_text(const hk_ib_spot *s, int n, char *text, size_t bytes) {
  size_t used = (size_t)snprintf(text, bytes, n > 1 ? "rails" : "rail");
  for (int i = 0; i < n && used < bytes; i++)
    used += (size_t)snprintf(text + used, bytes - used, "%s%d", i ? i + 1 < n ? ", " : " and " : " ",
                             s[i].rail >= 0 ? s[i].rail : s[i].position);
}

bool hk_ib_spots_meet(const hk_settings *set, const hk_ib_spot *a, int na, const hk_ib_spot *b, int nb, char *why,
                      size_t why_bytes) {
  bool layers = false;
  char here[40], there[40];
  for (int i = 0; i < na; i++)
    for (int j = 0; j < nb; j++) {
      if (ib_port_spots_meet(set, &a[i], &b[j])) return true;
      layers = layers || a[i].layer == b[j].layer;
    }
  ib_port_rails_as_text(a, na, here, sizeof here);
  ib_port_rails_as_text(b, nb, there, sizeof there);
  if (!layers)
    snprintf(why, why_bytes, "one has %s ports only and the other %s",
             na && a->layer == HK_IBV_LAYER_ETHERNET ? "RoCE" : "InfiniBand",
             nb && b->layer == HK_IBV_LAYER_ETHERNET ? "RoCE" : "InfiniBand");
  else if (set->CROSS_NIC == 0)
    snprintf(why, why_bytes, "%s and %s, which NCCL_CROSS_NIC=0 says are not connected", here, there);
  else
    snprintf(why, why_bytes, "%s and %s: two InfiniBand subnets without a router", here, there);
  return false;
}

/* The part of the cost that depends on the ports alone. NCCL_CROSS_NIC=0 says that rails are not connected. */
static int port_cost(const hk_settings *set, const hk_ib_port *a, const hk_ib_port *b) {
  bool given = a->rail >= 0 && b->rail >= 0;
  int cost = a->far || b->far ? FAR : 0;
  if (ib_port_one_rail(a->rail, a->position, b->rail, b->position)) return cost;
  return cost + (set->CROSS_NIC == 0 ? ISOLATED : given ? RAILS : OTHER_POSITION);
}

static void ib_port_add_infiniband(const hk_ib_port *mine, const hk_ib_port *theirs, hk_ib_pair p, bool caller,
                                   hk_ib_pair *out, int *n) {
  if (!hk_ib_one_subnet(mine, theirs)) {
    p.my_gid = ib_port_routed_gid(mine);
    p.their_gid = ib_port_routed_gid(theirs);
    p.cost = (uint16_t)((p.cost + CLASS) | (ib_port_is_routed(mine) && ib_port_is_routed(theirs) ? 0 : ISOLATED));
  }
  ib_port_add_pair(out, n, p, caller);
}

static void ib_port_add_ethernet(const hk_ib_port *mine, const hk_ib_port *theirs, hk_ib_pair p, bool caller,
                                 int version, hk_ib_pair *out, int *n) {
  for (int a = 0; a < mine->ngids && a < HK_IB_GIDS; a++) {
    for (int b = 0; b < theirs->ngids && b < HK_IB_GIDS; b++) {
      hk_ib_pair one = p;
      int cost = ib_port_gid_pair_cost(&mine->gids[a], &theirs->gids[b], version);
      if (cost < 0) continue;
      one.my_gid = (uint8_t)a;
      one.their_gid = (uint8_t)b;
      one.cost = (uint16_t)(p.cost + cost * CLASS);
      ib_port_add_pair(out, n, one, caller);
    }
  }
}

int hk_ib_pairs(const hk_settings *set, const hk_ib_port *mine, int nmine, const hk_ib_port *theirs, int ntheirs,
                bool caller, int version, hk_ib_pair out[HK_IB_PAIRS]) {
  int n = 0;
  for (int i = 0; i < nmine; i++) {
    for (int j = 0; j < ntheirs; j++) {
      const hk_ib_port *a = &mine[i], *b = &theirs[j];
      hk_ib_pair p = {.mine = (uint8_t)i, .theirs = (uint8_t)j, .cost = (uint16_t)(port_cost(set, a, b) + i + j)};
      if (a->layer != b->layer) continue;
      if (a->layer == HK_IBV_LAYER_INFINIBAND)
        ib_port_add_infiniband(a, b, p, caller, out, &n);
      else
        ib_port_add_ethernet(a, b, p, caller, version, out, &n);
    }
  }
  for (int worst = FAR; worst <= ISOLATED; worst *= 2)
    while (n > 0 && out[0].cost < worst && out[n - 1].cost >= worst) n--;
  return n;
}

/* Costs of pairs of one class differ only in their positions. */
bool hk_ib_pairs_go_together(const hk_ib_port *mine, const hk_ib_port *theirs, const hk_ib_pair *first,
                             const hk_ib_pair *second) {
  return first->mine != second->mine && first->theirs != second->theirs &&
         mine[first->mine].card == mine[second->mine].card &&
         theirs[first->theirs].card == theirs[second->theirs].card && first->cost / CLASS == second->cost / CLASS;
}

const char *hk_ib_pair_words(const hk_ib_port *mine, const hk_ib_port *theirs, const hk_ib_pair *pair, char text[64]) {
  char kind[40];
  const hk_ib_port *p = &mine[pair->mine], *q = &theirs[pair->theirs];
  if (p->layer == HK_IBV_LAYER_INFINIBAND) {
    snprintf(text, 64, "InfiniBand, LID %u to %u%s", p->lid, q->lid, hk_ib_one_subnet(p, q) ? "" : ", two subnets");
    return text;
  }
  const hk_ib_gid *a = &p->gids[pair->my_gid], *b = &q->gids[pair->their_gid];
  snprintf(text, 64, "%s, %s", hk_ib_gid_words(a, kind),
           ib_port_gid_pair_cost(a, b, 2) & 1 ? "two networks" : "one network");
  return text;
}
