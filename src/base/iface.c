/* SPDX-License-Identifier: Apache-2.0 */
/* Network interfaces: finds them (getifaddrs, sysfs) and chooses which to use. */
#include "iface.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "log.h"
#include "param.h"
#include "sysfs.h"

enum { LOWER_DEPTH = 4 };

#ifndef IFF_LOWER_UP
#define IFF_LOWER_UP 0x10000 /* from linux/if.h, which conflicts with net/if.h */
#endif

bool hk_addr_is_loopback(const hk_addr *a) {
  if (a->sa.sa_family == AF_INET) return (ntohl(a->v4.sin_addr.s_addr) >> 24) == 127;
  return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

bool hk_addr_is_link_local(const hk_addr *a) {
  if (a->sa.sa_family == AF_INET) return (ntohl(a->v4.sin_addr.s_addr) >> 16) == 0xa9fe;
  return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr);
}

static const unsigned char *iface_addr_bits(const hk_addr *a, unsigned *count) {
  if (a->sa.sa_family == AF_INET6) {
    *count = 128;
    return (const unsigned char *)&a->v6.sin6_addr;
  }
  *count = 32;
  return (const unsigned char *)&a->v4.sin_addr;
}

bool hk_addr_same_net(const hk_addr *a, const hk_addr *b, unsigned prefix) {
  if (a->sa.sa_family != b->sa.sa_family) return false;
  unsigned bits;
  const unsigned char *x = iface_addr_bits(a, &bits), *y = iface_addr_bits(b, &bits);
  if (prefix > bits) prefix = bits;
  if (memcmp(x, y, prefix / 8) != 0) return false;
  unsigned rest = prefix % 8;
  return rest == 0 || ((x[prefix / 8] ^ y[prefix / 8]) >> (8 - rest)) == 0;
}

bool hk_addr_same_host(const hk_addr *a, const hk_addr *b) {
  return a->sa.sa_family == b->sa.sa_family && hk_addr_same_net(a, b, 128);
}

/* ---- NCCL_SOCKET_IFNAME ---- */

/* The position in the list of the first pattern that `name` matches, or -1. As in NCCL, '^' (exclude) and '=' (whole
 * names, not prefixes) occur once, before the list. */
static int iface_filter_position(const char *list, bool exact, const char *name) {
  int position = 0;
  for (const char *p = list; *p; position++) {
    size_t n = strcspn(p, ",");
    /* NCCL allows "name:port"; the port has no meaning for interfaces. */
    size_t m = strcspn(p, ",:");
    if (m > 0 && strncmp(p, name, m) == 0 && (!exact || name[m] == '\0')) return position;
    p += n;
    if (*p == ',') p++;
  }
  return -1;
}

/* A value such as "^" or "=," would be taken for no filter, or leave nothing. */
static hk_status iface_check_names(const char *names) {
  if (!names || !*names || names[strspn(names, "^=,")] != '\0') return HK_OK;
  return HK_FAIL(HK_ERR_USAGE,
                 "NCCL_SOCKET_IFNAME='%s' names no interface: write names, as eth0,ib or ^docker or =eth0", names);
}

typedef struct ranked {
  hk_iface iface;
  int filter, index; /* position in the filter; in the machine's own order */
  bool routed, local_family;
} ranked;

static int iface_compare(const void *pa, const void *pb) {
  const ranked *a = pa, *b = pb;
  if (a->filter != b->filter) return a->filter < b->filter ? -1 : 1;
  if (a->routed != b->routed) return a->routed ? -1 : 1;
  if (a->iface.kind != b->iface.kind) return (int)a->iface.kind - (int)b->iface.kind;
  bool la = hk_addr_is_link_local(&a->iface.addr), lb = hk_addr_is_link_local(&b->iface.addr);
  if (la != lb) return la ? 1 : -1;
  if (a->local_family != b->local_family) return a->local_family ? -1 : 1;
  if (a->iface.speed_mbps != b->iface.speed_mbps) return a->iface.speed_mbps > b->iface.speed_mbps ? -1 : 1;
  return a->index - b->index;
}

int hk_iface_order(hk_iface *list, int n, const hk_iface_filter *w) {
  const char *names = w->names ? w->names : "";
  bool exclude = *names == '^', exact;
  if (exclude) names++;
  exact = *names == '=';
  if (exact) names++;
  bool chosen = *names && !exclude;
  ranked *r = calloc((size_t)n + 1, sizeof(*r));
  if (!r) return -1;
  int kept = 0;
  const char *routed_name = NULL; /* the interface by which the route leaves: its other addresses are as good */
  for (int i = 0; i < n && w->local; i++)
    if (hk_addr_same_host(&list[i].addr, w->local)) routed_name = list[i].name;
  int family = w->local ? w->local->sa.sa_family : AF_INET;
  bool others = false;
  for (int i = 0; i < n; i++) {
    int at = *names ? iface_filter_position(names, exact, list[i].name) : 0;
    if (*names && (exclude ? at >= 0 : at < 0)) continue;
    if (w->family != AF_UNSPEC && list[i].addr.sa.sa_family != w->family) continue;
    bool routed = routed_name && strcmp(routed_name, list[i].name) == 0;
    if (list[i].kind != HK_IFACE_LOOPBACK || routed) others = true;
    r[kept++] = (ranked){.iface = list[i],
                         .filter = chosen ? at : 0,
                         .index = i,
                         .routed = routed,
                         .local_family = list[i].addr.sa.sa_family == family};
  }
  qsort(r, (size_t)kept, sizeof(*r), iface_compare);
  int out = 0;
  for (int i = 0; i < kept; i++) {
    /* Loopback reaches no other host. It is used only if it was asked for, by name or by a root on this host, or if
     * there is no other interface. */
    if (r[i].iface.kind == HK_IFACE_LOOPBACK && !chosen && !r[i].routed && (others || w->remote)) continue;
    list[out++] = r[i].iface;
  }
  free(r);
  return out;
}

/* ---- the interfaces of this machine ---- */

static bool iface_sysfs_exists(const char *name, const char *entry) {
  return hk_sysfs_has("", "/sys/class/net/%s/%s", name, entry);
}

/* True if the interface, or an interface below it, has a device (bond, VLAN, bridge with a real port). */
static bool iface_has_hardware(const char *name, int depth) {
  if (iface_sysfs_exists(name, "device")) return true;
  if (depth == 0) return false;
  char path[128];
  snprintf(path, sizeof(path), "/sys/class/net/%s", name);
  DIR *d = opendir(path);
  if (!d) return false;
  bool found = false;
  for (struct dirent *e; !found && (e = readdir(d)) != NULL;)
    if (strncmp(e->d_name, "lower_", 6) == 0) found = iface_has_hardware(e->d_name + 6, depth - 1);
  closedir(d);
  return found;
}

static hk_iface_class iface_classify(const char *name, unsigned flags) {
  /* Bridges and overlays that container engines and hypervisors make: every host has the same addresses on them. */
  static const char *const container[] = {"docker", "br-",  "virbr",   "cni",  "podman", "lxcbr",        "lxdbr",
                                          "veth",   "vnet", "flannel", "cali", "kube-",  "nodelocaldns", "vmnet"};
  if (flags & IFF_LOOPBACK) return HK_IFACE_LOOPBACK;
  if (iface_has_hardware(name, LOWER_DEPTH)) return HK_IFACE_PHYSICAL;
  if (iface_sysfs_exists(name, "bridge")) return HK_IFACE_BRIDGE;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(container); i++)
    if (strncmp(name, container[i], strlen(container[i])) == 0) return HK_IFACE_BRIDGE;
  return HK_IFACE_VIRTUAL;
}

/* A number that a file of the interface holds: decimal, or hexadecimal after 0x; 0 if there is none. */
static uint32_t iface_sysfs_number(const char *name, const char *entry) {
  long long v; /* `speed` gives EINVAL if the driver does not know it */
  (void)hk_sysfs_number("", &v, "/sys/class/net/%s/%s", name, entry);
  v = v > 0 ? v : 0;
  return (uint32_t)v;
}

static unsigned iface_prefix_bits(const struct sockaddr *mask) {
  hk_addr m;
  if (!mask) return 0;
  memcpy(&m, mask, mask->sa_family == AF_INET6 ? sizeof(m.v6) : sizeof(m.v4));
  unsigned bits, n = 0;
  const unsigned char *b = iface_addr_bits(&m, &bits);
  while (n < bits && (b[n / 8] & (0x80u >> (n % 8)))) n++;
  return n;
}

/* True if the interface can be used. RUNNING: the cable is plugged in; otherwise nothing would arrive. LOWER_UP means
 * the same, and the kernel sets it up to a second earlier. The address from which the route to the root leaves is
 * always usable. */
static bool iface_usable(const struct ifaddrs *i, const hk_addr *local) {
  hk_addr a;
  if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) return false;
  if (i->ifa_flags & IFF_UP && i->ifa_flags & (IFF_RUNNING | IFF_LOWER_UP)) return true;
  if (!local || local->sa.sa_family != i->ifa_addr->sa_family) return false;
  memcpy(&a, i->ifa_addr, hk_addr_len(local));
  return hk_addr_same_host(&a, local);
}

/* The list is the caller's to free. */
static hk_status iface_scan(hk_iface **list, int *n, const hk_addr *local) {
  struct ifaddrs *all;
  int most = 0;
  if (getifaddrs(&all) != 0) return HK_FAIL_ERRNO("cannot list this host's network interfaces");
  for (struct ifaddrs *i = all; i; i = i->ifa_next) most++;
  *n = 0;
  *list = calloc((size_t)most + 1, sizeof **list);
  if (!*list) {
    freeifaddrs(all);
    return HK_FAIL(HK_ERR_SYSTEM, "out of memory listing %d interfaces", most);
  }
  for (struct ifaddrs *i = all; i; i = i->ifa_next) {
    if (!iface_usable(i, local)) continue;
    hk_iface *f = &(*list)[(*n)++];
    snprintf(f->name, sizeof(f->name), "%s", i->ifa_name);
    f->name[strcspn(f->name, ":")] = '\0'; /* an alias "eth0:1" is eth0 */
    memcpy(&f->addr, i->ifa_addr, i->ifa_addr->sa_family == AF_INET6 ? sizeof(f->addr.v6) : sizeof(f->addr.v4));
    f->kind = (uint8_t)iface_classify(f->name, i->ifa_flags);
    f->prefix = (uint8_t)iface_prefix_bits(i->ifa_netmask);
    f->speed_mbps = iface_sysfs_number(f->name, "speed");
    f->vendor = iface_sysfs_number(f->name, "device/vendor");
  }
  freeifaddrs(all);
  return HK_OK;
}

void hk_iface_name_of(const hk_addr *a, char name[IFNAMSIZ]) {
  struct ifaddrs *all;
  name[0] = '\0';
  if (getifaddrs(&all) != 0) return;
  for (struct ifaddrs *i = all; i && !name[0]; i = i->ifa_next) {
    hk_addr other;
    if (!i->ifa_addr || i->ifa_addr->sa_family != a->sa.sa_family) continue;
    memcpy(&other, i->ifa_addr, hk_addr_len(a));
    if (hk_addr_same_host(&other, a)) snprintf(name, IFNAMSIZ, "%s", i->ifa_name);
  }
  freeifaddrs(all);
}

/* The local address from which packets to `to` leave: connecting a datagram socket looks up the route and sends
 * nothing. */
static bool iface_route_source(const hk_addr *to, hk_addr *local) {
  int fd = socket(to->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  socklen_t len = sizeof(*local);
  bool ok = connect(fd, &to->sa, hk_addr_len(to)) == 0 && getsockname(fd, &local->sa, &len) == 0;
  close(fd);
  return ok;
}

static hk_status iface_wanted_family(const char *text, int *family) {
  *family = AF_UNSPEC;
  if (!text || !*text) return HK_OK;
  if (strcmp(text, "AF_INET") == 0)
    *family = AF_INET;
  else if (strcmp(text, "AF_INET6") == 0)
    *family = AF_INET6;
  else
    return HK_FAIL(HK_ERR_USAGE, "NCCL_SOCKET_FAMILY='%s' is not a family: write AF_INET or AF_INET6", text);
  return HK_OK;
}

static void iface_list_names(const hk_iface *list, int n, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < n; i++) {
    int same = 0; /* an interface with several addresses of a family is named once */
    while (strcmp(list[same].name, list[i].name) || list[same].addr.sa.sa_family != list[i].addr.sa.sa_family) same++;
    if (same < i) continue;
    char one[IFNAMSIZ + 16];
    size_t w = (size_t)snprintf(one, sizeof(one), "%s%s (%s)", i ? ", " : "", list[i].name,
                                list[i].addr.sa.sa_family == AF_INET6 ? "IPv6" : "IPv4");
    if (used + w >= bytes) return;
    memcpy(text + used, one, w + 1);
    used += w;
  }
}

/* Some interface that is up has one of these names. They may be RDMA devices': NCCL takes those, too. */
static bool iface_any_named(const char *names) {
  hk_iface *all = NULL;
  int n = 0;
  const hk_iface_filter filter = {.names = names};
  const bool any = iface_scan(&all, &n, NULL) == HK_OK && hk_iface_order(all, n, &filter) > 0;
  free(all);
  return any;
}

hk_status hk_control_ifaces(const hk_settings *settings, hk_iface *out, int *n, const hk_addr *toward) {
  const char *names = settings->OOB_NET_IFNAME;
  hk_settings own = *settings;
  if (!settings->OOB_NET_ENABLE || !names || !*names) return hk_ifaces(settings, out, n, toward);
  if (iface_any_named(names))
    own.SOCKET_IFNAME = names;
  else
    HK_INFO(HK_SUB_INIT | HK_SUB_NET,
            "NCCL_OOB_NET_IFNAME='%s' names no interface of this host: control connections "
            "use those of NCCL_SOCKET_IFNAME",
            names);
  return hk_ifaces(&own, out, n, toward);
}

hk_status hk_ifaces(const hk_settings *settings, hk_iface *out, int *n, const hk_addr *toward) {
  hk_status rc;
  hk_iface *all = NULL;
  hk_addr local;
  hk_iface_filter filter = {.names = settings->SOCKET_IFNAME};
  int capacity = *n, count = 0;
  *n = 0;
  HK_TRY(iface_wanted_family(settings->SOCKET_FAMILY, &filter.family), out);
  HK_TRY(iface_check_names(filter.names), out);
  if (toward && iface_route_source(toward, &local)) {
    filter.local = &local;
    filter.remote = !hk_addr_is_loopback(&local) && !hk_addr_same_host(&local, toward);
  }
  HK_TRY(iface_scan(&all, &count, filter.local), out);
  char names[256];
  iface_list_names(all, count, names, sizeof(names));
  int left = hk_iface_order(all, count, &filter);
  if (left < 0) HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM, "out of memory choosing an interface"), out);
  if (left == 0 && filter.remote && !(filter.names && *filter.names) && filter.family == AF_UNSPEC)
    HK_GIVE_UP(
        HK_FAIL(HK_ERR_SYSTEM,
                "no network interface of this host but loopback is up, and the root is on another host: ip -br addr"),
        out);
  if (left == 0 && count == 0)
    HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM,
                       "no network interface of this host is up, not even loopback: ranks meet over one, also on "
                       "one host (ip link set lo up)"),
               out);
  if (left == 0) {
    rc = HK_FAIL(HK_ERR_USAGE,
                 "no network interface is left by NCCL_SOCKET_IFNAME='%s' and NCCL_SOCKET_FAMILY='%s'; up on "
                 "this host: %s",
                 filter.names ? filter.names : "", settings->SOCKET_FAMILY ? settings->SOCKET_FAMILY : "", names);
    goto out;
  }
  *n = left < capacity ? left : capacity;
  memcpy(out, all, (size_t)*n * sizeof(*out));
out:
  free(all);
  return rc;
}
