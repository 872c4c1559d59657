/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* How the interfaces of a machine are found (src/base/iface.c), on an invented one: this test gives the library the
 * list of interfaces, and the files of /sys/class/net below a folder of its own. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "../../src/base/iface.h"
#include "../../src/base/param.h"
#include "../../src/base/status.h"
#include "../support/fake_machine.h"
#include "../support/suite.h"

/* ---- the machine ---- */

enum { ROOM = 140, RUNS = IFF_UP | IFF_RUNNING };
static struct ifaddrs list[ROOM];
static hk_addr addresses[ROOM], masks[ROOM];
static int count, given, freed;

int getifaddrs(struct ifaddrs **out) {
  for (int i = 0; i < count; i++) list[i].ifa_next = i + 1 < count ? &list[i + 1] : NULL;
  *out = count ? list : NULL;
  given++;
  return 0;
}
void freeifaddrs(struct ifaddrs *all) {
  ck_assert_ptr_eq(all, count ? list : NULL);
  freed++;
}

static const char *moved(const char *path, char *text, size_t bytes) {
  if (strncmp(path, "/sys/class/net/", 15) != 0) return path;
  snprintf(text, bytes, "%s%s", scratch_folder, path);
  return text;
}
int access(const char *path, int mode) {
  char text[256];
  return faccessat(AT_FDCWD, moved(path, text, sizeof text), mode, 0);
}
int open(const char *path, int flags, ...) {
  char text[256];
  va_list args;
  va_start(args, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
  va_end(args);
  return openat(AT_FDCWD, moved(path, text, sizeof text), flags, mode);
}
DIR *opendir(const char *path) {
  char text[256];
  int fd = openat(AT_FDCWD, moved(path, text, sizeof text), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? NULL : fdopendir(fd);
}

static hk_addr address(const char *text) {
  hk_addr a;
  memset(&a, 0, sizeof a);
  a.sa.sa_family = strchr(text, ':') ? AF_INET6 : AF_INET;
  void *at = a.sa.sa_family == AF_INET6 ? (void *)&a.v6.sin6_addr : (void *)&a.v4.sin_addr;
  ck_assert_int_eq(inet_pton(a.sa.sa_family, text, at), 1);
  return a;
}
/* Adds an interface; mask may be NULL. */
static void add(const char *name, const char *addr, const char *mask, unsigned flags) {
  struct ifaddrs *i = &list[count];
  addresses[count] = address(addr);
  if (mask) masks[count] = address(mask);
  if (mask && masks[count].sa.sa_family == AF_INET) memset(masks[count].v4.sin_zero, 0xff, 8); /* is no part of it */
  if (mask && masks[count].sa.sa_family == AF_INET6) masks[count].v6.sin6_scope_id = UINT32_MAX;
  *i = (struct ifaddrs){.ifa_name = (char *)(uintptr_t)name,
                        .ifa_flags = flags,
                        .ifa_addr = &addresses[count].sa,
                        .ifa_netmask = mask ? &masks[count].sa : NULL};
  count++;
}

static hk_iface found[ROOM];
static int nfound;
static hk_status scan(void) {
  nfound = ROOM;
  given = freed = 0;
  hk_status rc = hk_ifaces(hk_settings_now(), found, &nfound, NULL);
  ck_assert_int_eq(given, freed);
  return rc;
}
static const hk_iface *named(const char *name) {
  for (int i = 0; i < nfound; i++)
    if (strcmp(found[i].name, name) == 0) return &found[i];
  ck_abort_msg("%s is not found", name);
}

static void setup(void) { scratch_make(); }

/* ---- tests ---- */

TEST(kinds) {
  static const struct {
    const char *name, *entries[3]; /* below the interface's folder */
    hk_iface_class kind;
  } rows[] = {
      {"eth0", {"device/vendor"}, HK_IFACE_PHYSICAL},
      {"one", {"lower_eth0/x"}, HK_IFACE_PHYSICAL},
      {"two", {"lower_one/x"}, HK_IFACE_PHYSICAL},
      {"three", {"lower_two/x"}, HK_IFACE_PHYSICAL},
      {"four", {"lower_three/x"}, HK_IFACE_PHYSICAL},
      {"five", {"lower_four/x"}, HK_IFACE_VIRTUAL}, /* not looked at so far down */
      {"many", {"lower_tun0/x", "lower_eth0/x", "lower_gone/x"}, HK_IFACE_PHYSICAL},
      {"upper", {"upper_eth0/x"}, HK_IFACE_VIRTUAL},
      {"br0", {"bridge/x", "lower_eth0/x"}, HK_IFACE_PHYSICAL},
      {"odd0", {"bridge/x", "lower_tun0/x"}, HK_IFACE_BRIDGE},
      {"tun0", {"tun_flags"}, HK_IFACE_VIRTUAL},
      {"bare", {NULL}, HK_IFACE_VIRTUAL},
      {"docker0", {"x"}, HK_IFACE_BRIDGE},
      {"br-4a6f", {"x"}, HK_IFACE_BRIDGE},
      {"virbr0", {"x"}, HK_IFACE_BRIDGE},
      {"cni0", {"x"}, HK_IFACE_BRIDGE},
      {"podman1", {"x"}, HK_IFACE_BRIDGE},
      {"veth12ab", {"x"}, HK_IFACE_BRIDGE},
      {"vnet3", {"x"}, HK_IFACE_BRIDGE},
      {"flannel.1", {"x"}, HK_IFACE_BRIDGE},
      {"cali77", {"x"}, HK_IFACE_BRIDGE},
      {"vmnet8", {"x"}, HK_IFACE_BRIDGE},
      {"vmware", {"x"}, HK_IFACE_VIRTUAL},
  };
  char addr[32], path[128];
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    snprintf(addr, sizeof addr, "10.0.%zu.1", i);
    add(rows[i].name, addr, "255.255.255.0", RUNS);
    for (int k = 0; k < 3 && rows[i].entries[k]; k++) {
      snprintf(path, sizeof path, "sys/class/net/%s/%s", rows[i].name, rows[i].entries[k]);
      fm_file(path, "1\n");
    }
  }
  add("lo", "127.0.0.1", "255.0.0.0", RUNS | IFF_LOOPBACK);
  setenv("NCCL_SOCKET_IFNAME", "^nothing", 1);
  hk_param_reload();
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert_int_eq(nfound, (int)HK_ARRAY_LENGTH(rows)); /* loopback is left out */
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++)
    ck_assert_msg(named(rows[i].name)->kind == rows[i].kind, "%s: %d", rows[i].name, named(rows[i].name)->kind);
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  hk_param_reload();
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert(nfound == 1 && found[0].kind == HK_IFACE_LOOPBACK);
}

TEST(numbers) {
  static const struct {
    const char *name, *speed, *vendor; /* NULL: no such file */
    uint32_t mbps, id;
  } rows[] = {{"a", "100000\n", "0x15b3\n", 100000, 0x15b3},
              {"b", "-1\n", "0x8086\n", 0, 0x8086},
              {"c", "", NULL, 0, 0},
              {"d", NULL, "0x0\n", 0, 0},
              {"e", "1", "7", 1, 7}};
  char addr[32], path[128];
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    snprintf(addr, sizeof addr, "10.0.%zu.1", i);
    add(rows[i].name, addr, NULL, RUNS);
    snprintf(path, sizeof path, "sys/class/net/%s/speed", rows[i].name);
    if (rows[i].speed) fm_file(path, "%s", rows[i].speed);
    snprintf(path, sizeof path, "sys/class/net/%s/device/vendor", rows[i].name);
    if (rows[i].vendor) fm_file(path, "%s", rows[i].vendor);
  }
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert_int_eq(nfound, (int)HK_ARRAY_LENGTH(rows));
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    ck_assert_uint_eq(named(rows[i].name)->speed_mbps, rows[i].mbps);
    ck_assert_uint_eq(named(rows[i].name)->vendor, rows[i].id);
    ck_assert_uint_eq(named(rows[i].name)->prefix, 0);
  }
}

TEST(prefixes) {
  static const struct {
    const char *name, *addr, *mask;
    unsigned prefix;
  } rows[] = {{"a", "10.0.0.1", "0.0.0.0", 0},
              {"b", "10.0.0.1", "128.0.0.0", 1},
              {"c", "10.0.0.1", "255.255.240.0", 20},
              {"d", "10.0.0.1", "255.255.255.254", 31},
              {"e", "10.0.0.1", "255.255.255.255", 32},
              {"f", "10.0.0.1", "255.0.255.0", 8},
              {"g", "fd00::1", "ffff:ffff:ffff:ffff::", 64},
              {"h", "fd00::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 128},
              {"i", "fd00::1", "fe00::", 7}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) add(rows[i].name, rows[i].addr, rows[i].mask, RUNS);
  ck_assert_int_eq(scan(), HK_OK);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    const hk_addr want = address(rows[i].addr);
    const hk_iface *f = named(rows[i].name);
    ck_assert_msg(f->prefix == rows[i].prefix, "%s: %u", rows[i].mask, f->prefix);
    ck_assert(f->addr.sa.sa_family == want.sa.sa_family && hk_addr_same_host(&f->addr, &want));
  }
}

/* What is down, has no cable or no IP address, is left out; an alias has the name of its interface. */
TEST(which_count) {
  static struct sockaddr packet = {.sa_family = AF_PACKET};
  add("down", "10.0.0.1", NULL, IFF_RUNNING);
  add("unplugged", "10.0.0.2", NULL, IFF_UP);
  add("packet", "10.0.0.3", NULL, RUNS);
  list[count - 1].ifa_addr = &packet;
  add("none", "10.0.0.4", NULL, RUNS);
  list[count - 1].ifa_addr = NULL;
  add("eth0:1", "10.0.0.5", NULL, RUNS);
  add("eth1", "fe80::1", NULL, RUNS);
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert_int_eq(nfound, 2);
  ck_assert(named("eth0")->addr.sa.sa_family == AF_INET && named("eth1")->addr.sa.sa_family == AF_INET6);

  char name[IFNAMSIZ];
  const hk_addr here = address("10.0.0.5"), there = address("10.0.0.6"), down = address("10.0.0.1"),
                link = address("fe80::1");
  hk_iface_name_of(&here, name);
  ck_assert_str_eq(name, "eth0:1");
  hk_iface_name_of(&down, name);
  ck_assert_str_eq(name, "down");
  hk_iface_name_of(&there, name);
  ck_assert_str_eq(name, "");
  hk_iface_name_of(&link, name);
  ck_assert_str_eq(name, "eth1");
  ck_assert_int_eq(given, freed);
}

TEST(many) {
  static char names[ROOM][8];
  for (int i = 0; i < ROOM; i++) {
    snprintf(names[i], sizeof names[i], "e%u", (unsigned)i % 1000u);
    add(names[i], "10.0.0.1", NULL, RUNS);
  }
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert_int_eq(nfound, ROOM);
  for (int i = 0; i < nfound; i++) ck_assert_str_eq(found[i].name, names[i]); /* equal ones stay in order */
  setenv("NCCL_SOCKET_IFNAME", names[ROOM - 1], 1);                           /* however many are before it */
  hk_param_reload();
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert_int_eq(nfound, 1);
  ck_assert_str_eq(found[0].name, names[ROOM - 1]);
}

/* The route to the root decides; without one, IPv4 comes first. */
static int no_sockets;
int socket(int family, int type, int protocol) {
  if (!no_sockets) return (int)syscall(SYS_socket, family, type, protocol);
  errno = EAFNOSUPPORT;
  return -1;
}
TEST(routes) {
  const hk_addr here = address("127.0.0.1");
  add("eth1", "fd00::1", NULL, RUNS);
  add("eth0", "10.0.0.1", NULL, RUNS);
  add("eth2", "127.0.0.1", NULL, RUNS);
  static const char *const first[] = {"eth2", "eth0"};
  for (no_sockets = 0; no_sockets < 2; no_sockets++) {
    nfound = ROOM;
    ck_assert_int_eq(hk_ifaces(hk_settings_now(), found, &nfound, &here), HK_OK);
    ck_assert_int_eq(nfound, 3);
    ck_assert_str_eq(found[0].name, first[no_sockets]);
    ck_assert_str_eq(found[2].name, "eth1");
  }
}

/* Up, and not yet RUNNING: the kernel says so up to a second later. */
TEST(just_up) {
  const hk_addr here = address("127.0.0.1");
  enum { LOWER_UP = 0x10000 };
  add("cable", "10.0.0.1", NULL, IFF_UP | LOWER_UP);
  add("none", "10.0.0.2", NULL, IFF_UP);
  add("route", "127.0.0.1", NULL, IFF_UP); /* the root is reached from here */
  add("down", "10.0.0.3", NULL, IFF_RUNNING);
  ck_assert_int_eq(scan(), HK_OK);
  ck_assert_int_eq(nfound, 1);
  named("cable");
  nfound = ROOM;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), found, &nfound, &here), HK_OK);
  ck_assert_int_eq(nfound, 2);
  ck_assert_str_eq(found[0].name, "route");
}

TEST_LOOP(no_names, 7) {
  static const char *const values[] = {"^", "=", ",", "=,", "^,", "^=", ",,"};
  add("eth0", "10.0.0.1", NULL, RUNS);
  setenv("NCCL_SOCKET_IFNAME", values[_i], 1);
  hk_param_reload();
  ck_assert_int_eq(scan(), HK_ERR_USAGE);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "names no interface"));
}

/* Other interfaces for control connections; a name of an RDMA device leaves the usual ones. */
TEST_LOOP(of_control, 3) {
  static const char *const names[] = {"=eth1", "mlx5_0", ""};
  add("eth0", "10.0.0.1", NULL, RUNS);
  add("eth1", "10.1.0.1", NULL, RUNS);
  setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
  setenv("NCCL_OOB_NET_IFNAME", names[_i], 1);
  for (int on = 0; on < 2; on++) {
    setenv("NCCL_OOB_NET_ENABLE", on ? "1" : "0", 1);
    hk_param_reload();
    nfound = ROOM;
    ck_assert_int_eq(hk_control_ifaces(hk_settings_now(), found, &nfound, NULL), HK_OK);
    ck_assert_int_eq(nfound, 1);
    ck_assert_str_eq(found[0].name, on && _i == 0 ? "eth1" : "eth0");
  }
}

TEST(refused) {
  ck_assert_int_eq(scan(), HK_ERR_SYSTEM);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "no network interface of this host is up"));
  add("eth0", "10.0.0.1", NULL, RUNS);
  add("eth1", "fd00::1", NULL, RUNS);
  setenv("NCCL_SOCKET_IFNAME", "=eth1", 1);
  setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
  hk_param_reload();
  ck_assert_int_eq(scan(), HK_ERR_USAGE);
  static const char list_of[] = "NCCL_SOCKET_IFNAME='=eth1' and NCCL_SOCKET_FAMILY='AF_INET'; up on this host: ";
  const char *names = strstr(hk_last_error(), list_of);
  ck_assert_ptr_nonnull(names);
  ck_assert_str_eq(names + sizeof list_of - 1, "eth0 (IPv4), eth1 (IPv6)");
  /* Names that do not fit are left out: the last one and its end would need 257 bytes. */
  static char fifteen[9][16];
  for (int i = 0; i < 9; i++) {
    snprintf(fifteen[i], sizeof fifteen[i], "interface-of-%u", 10 + (unsigned)i % 10u);
    add(fifteen[i], "10.0.0.1", NULL, RUNS);
    add(fifteen[i], "10.0.0.2", NULL, RUNS); /* is named once */
  }
  add("exact-7", "10.0.0.1", NULL, RUNS);
  ck_assert_int_eq(scan(), HK_ERR_USAGE);
  names = strstr(hk_last_error(), list_of) + sizeof list_of - 1;
  ck_assert_uint_eq(strlen(names), 240);
  ck_assert_str_eq(names + 240 - 22, "interface-of-18 (IPv4)");
}

int main(void) { return suite_main("iface", .setup = setup, .teardown = scratch_remove); }
