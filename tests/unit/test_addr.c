/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and the choice of interfaces. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include "../../src/base/addr.h"
#include "../../src/base/iface.h"
#include "../support/process.h"
#include "../support/suite.h"

static hk_addr addr(const char *host, unsigned port) {
  hk_addr a;
  memset(&a, 0, sizeof(a));
  if (strchr(host, ':')) {
    a.v6.sin6_family = AF_INET6;
    ck_assert_int_eq(inet_pton(AF_INET6, host, &a.v6.sin6_addr), 1);
  } else {
    a.v4.sin_family = AF_INET;
    ck_assert_int_eq(inet_pton(AF_INET, host, &a.v4.sin_addr), 1);
  }
  hk_addr_set_port(&a, port);
  return a;
}

static void expect_parse(const char *text, const char *host, unsigned port) {
  hk_addr a, want = addr(host, port);
  ck_assert_msg(hk_addr_parse(hk_settings_now(), &a, text) == HK_OK, "%s: %s", text, hk_last_error());
  ck_assert_msg(hk_addr_equal(&a, &want), "%s", text);
}

TEST(parses_addresses) {
  expect_parse("10.0.0.1:4242", "10.0.0.1", 4242);
  expect_parse("127.0.0.1:0", "127.0.0.1", 0);
  expect_parse("10.0.0.1:9", "10.0.0.1", 9);
  expect_parse("[::1]:80", "::1", 80);
  expect_parse("[fd00::2]:65535", "fd00::2", 65535);
  hk_addr a;
  struct addrinfo *known;
  if (getaddrinfo("localhost", NULL, NULL, &known) == 0) {
    freeaddrinfo(known);
    ck_assert_int_eq(hk_addr_parse(hk_settings_now(), &a, "localhost:77"), HK_OK);
    ck_assert_uint_eq(hk_addr_port(&a), 77);
    ck_assert(hk_addr_is_loopback(&a));
  } else {
    printf("SKIP: names of hosts: this machine does not know even localhost\n");
  }
  ck_assert_int_eq(hk_addr_parse(hk_settings_now(), &a, "[fe80::1%lo]:5"), HK_OK);
  ck_assert_uint_eq(a.v6.sin6_scope_id, if_nametoindex("lo"));
  ck_assert(hk_addr_is_link_local(&a));
}

TEST(refuses_what_is_no_address) {
  static const char *const bad[] = {"",
                                    "10.0.0.1",
                                    ":80",
                                    "10.0.0.1:",
                                    "10.0.0.1:65536",
                                    "10.0.0.1:-1",
                                    "::1:80",
                                    "[::1]",
                                    "[::1:80",
                                    "[::1]80",
                                    "10.0.0.1: 80",
                                    "10.0.0.1:80x",
                                    "1.2.3.4.5.6:1",
                                    "[]:1",
                                    "a b:1",
                                    "10.0.0.1:999999999999999999999"};
  hk_addr a;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(bad); i++) {
    const bool name = strstr(bad[i], ".6:") || strchr(bad[i], 'a'); /* it has the form of an address */
    ck_assert_msg(hk_addr_parse(hk_settings_now(), &a, bad[i]) == HK_ERR_ARGUMENT, "'%s' was taken", bad[i]);
    ck_assert_msg(strstr(hk_last_error(), bad[i]) != NULL, "'%s' is not named in: %s", bad[i], hk_last_error());
    ck_assert_int_eq(strstr(hk_last_error(), name ? "cannot be resolved" : "is not an address") != NULL, true);
  }
  static const char *const causes[][2] = {{":80", "the host before the port is missing"},
                                          {"10.0.0.1:99999", "port 99999 is above 65535"},
                                          {"[fe80::1%nosuch0]:1", "the interface 'nosuch0', which this host does not"},
                                          {"[::1%lo]:1", "only a link-local address (fe80::) has an interface"}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(causes); i++) {
    ck_assert_int_eq(hk_addr_parse(hk_settings_now(), &a, causes[i][0]), HK_ERR_ARGUMENT);
    ck_assert_msg(strstr(hk_last_error(), causes[i][1]) != NULL, "%s", hk_last_error());
  }
  for (size_t n = NI_MAXHOST - 1; n <= NI_MAXHOST + 1; n++) { /* a host that is too long */
    char text[NI_MAXHOST + 8];
    memset(text, 'x', n);
    memcpy(text + n, ":1", 3);
    ck_assert_int_eq(hk_addr_parse(hk_settings_now(), &a, text), HK_ERR_ARGUMENT);
    ck_assert_int_eq(strstr(hk_last_error(), "cannot be resolved") != NULL, n < NI_MAXHOST);
  }
}

/* ---- names, whose addresses are invented ---- */

static int asked, freed;
static bool invents;
static struct addrinfo answer;
static hk_addr answered;
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hint, struct addrinfo **out) {
  static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  if (!invents) {
    void *found = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &found, sizeof real);
    return real(name, service, hint, out);
  }
  const bool v4 = strcmp(name, "none") && strcmp(name, "six") && hint->ai_family != AF_INET6;
  const bool v6 = strcmp(name, "none") && strcmp(name, "four") && hint->ai_family != AF_INET;
  ck_assert_int_eq(hint->ai_socktype, SOCK_STREAM);
  asked++;
  if (!v4 && !v6) return EAI_NONAME;
  answered = addr(v6 ? "fd00::1" : "10.0.0.1", 0);
  answer = (struct addrinfo){.ai_addr = &answered.sa, .ai_addrlen = hk_addr_len(&answered)};
  *out = &answer;
  return 0;
}
void freeaddrinfo(struct addrinfo *all) {
  static void (*real)(struct addrinfo *);
  void *found = dlsym(RTLD_NEXT, "freeaddrinfo");
  memcpy(&real, &found, sizeof real);
  freed++;
  if (all != &answer) real(all);
}

/* NCCL_SOCKET_FAMILY chooses among the addresses of a name, if it has one of that family. */
TEST(resolves_names) {
  static const struct {
    const char *text, *family, *host; /* host: NULL: not found */
    int asked;
  } rows[] = {
      {"both:7", NULL, "fd00::1", 1},  {"both:7", "AF_INET", "10.0.0.1", 1},  {"both:7", "AF_INET6", "fd00::1", 1},
      {"four:7", NULL, "10.0.0.1", 1}, {"four:7", "AF_INET6", "10.0.0.1", 2}, {"six:7", "AF_INET", "fd00::1", 2},
      {"none:7", NULL, NULL, 1},       {"none:7", "AF_INET6", NULL, 2}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    hk_addr a, want = addr(rows[i].host ? rows[i].host : "::", 7);
    unsetenv("NCCL_SOCKET_FAMILY");
    if (rows[i].family) setenv("NCCL_SOCKET_FAMILY", rows[i].family, 1);
    hk_param_reload();
    memset(&a, 0xff, sizeof a);
    asked = freed = 0;
    invents = true;
    const hk_status rc = hk_addr_parse(hk_settings_now(), &a, rows[i].text);
    invents = false;
    ck_assert_msg(rc == (rows[i].host ? HK_OK : HK_ERR_ARGUMENT), "%s for %s", rows[i].text, rows[i].family);
    ck_assert(asked == rows[i].asked && freed == (rows[i].host != NULL));
    if (rows[i].host) ck_assert_mem_eq(&a, &want, sizeof a);
    if (!rows[i].host) ck_assert_ptr_nonnull(strstr(hk_last_error(), "'none:7' cannot be resolved"));
  }
}

/* An IPv4 address that a socket for both shows as IPv6. */
TEST(unmaps) {
  static const char *const hosts[][2] = {
      {"::ffff:10.0.0.7", "10.0.0.7"}, {"fd00::7", "fd00::7"}, {"::10.0.0.7", "::10.0.0.7"}, {"10.0.0.7", "10.0.0.7"}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(hosts); i++) {
    hk_addr a = addr(hosts[i][0], 99), want = addr(hosts[i][1], 99);
    hk_addr_unmap(&a);
    ck_assert_mem_eq(&a, &want, sizeof a);
  }
}

TEST(formats_addresses) {
  char text[HK_ADDR_TEXT];
  hk_addr a = addr("10.0.0.1", 4242);
  ck_assert_str_eq(hk_addr_format(&a, text), "10.0.0.1<4242>");
  a = addr("fe80::1", 1);
  a.v6.sin6_scope_id = if_nametoindex("lo");
  ck_assert_str_eq(hk_addr_format(&a, text), "[fe80::1%lo]<1>");
  a.v6.sin6_scope_id = 123456;
  ck_assert_str_eq(hk_addr_format(&a, text), "[fe80::1%123456]<1>");
  memset(&a, 0, sizeof(a));
  ck_assert_str_eq(hk_addr_format(&a, text), "(no address)");
  a = addr("::ffff:10.1.2.3", 7);
  hk_addr_unmap(&a);
  ck_assert_str_eq(hk_addr_format(&a, text), "10.1.2.3<7>");
  hk_addr_unmap(&a);
  ck_assert_int_eq(a.sa.sa_family, AF_INET);
}

TEST(compares_networks) {
  hk_addr a = addr("10.1.2.3", 1), b = addr("10.1.3.3", 2), c = addr("fd00::1", 0), d = addr("fd00::ffff", 0);
  ck_assert(hk_addr_same_net(&a, &b, 16));
  ck_assert(hk_addr_same_net(&a, &b, 23));
  ck_assert(!hk_addr_same_net(&a, &b, 24));
  ck_assert(hk_addr_same_net(&a, &b, 0));
  ck_assert(!hk_addr_same_net(&a, &b, 200));
  ck_assert(!hk_addr_same_net(&a, &c, 0));
  ck_assert(hk_addr_same_net(&c, &d, 64));
  ck_assert(!hk_addr_equal(&a, &b));
  hk_addr e = a;
  ck_assert(hk_addr_equal(&a, &e));
  hk_addr_set_port(&e, 9);
  ck_assert(!hk_addr_equal(&a, &e));
}

TEST(kinds_of_addresses) {
  static const struct {
    const char *host;
    bool loopback, link_local;
  } rows[] = {{"127.0.0.1", true, false},        {"127.255.1.2", true, false}, {"126.0.0.1", false, false},
              {"128.0.0.1", false, false},       {"169.254.3.4", false, true}, {"169.253.3.4", false, false},
              {"169.255.3.4", false, false},     {"::1", true, false},         {"::2", false, false},
              {"fe80::1", false, true},          {"febf::1", false, true},     {"fec0::1", false, false},
              {"::ffff:127.0.0.1", false, false}};
  hk_addr none = {.bytes = {0}}, a, b;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    a = addr(rows[i].host, 7);
    ck_assert_msg(hk_addr_is_loopback(&a) == rows[i].loopback, "%s", rows[i].host);
    ck_assert_msg(hk_addr_is_link_local(&a) == rows[i].link_local, "%s", rows[i].host);
    for (size_t k = 0; k < HK_ARRAY_LENGTH(rows); k++) {
      b = addr(rows[k].host, 9);
      ck_assert_int_eq(hk_addr_same_host(&a, &b), i == k);
      hk_addr_set_port(&b, 7);
      ck_assert_int_eq(hk_addr_equal(&a, &b), i == k);
    }
  }
  ck_assert(!hk_addr_is_loopback(&none) && !hk_addr_is_link_local(&none) && !hk_addr_port(&none));
  none.sa.sa_family = AF_UNIX;
  memset(&none.v6.sin6_addr, 0, 16);
  none.v6.sin6_addr.s6_addr[15] = 1; /* of another family */
  ck_assert(!hk_addr_is_loopback(&none) && !hk_addr_is_link_local(&none) && !hk_addr_port(&none));
  b = none;
  ck_assert(hk_addr_equal(&none, &b));
  a = b = addr("fe80::1", 7);
  b.v6.sin6_scope_id = 1;
  ck_assert(!hk_addr_equal(&a, &b) && hk_addr_same_host(&a, &b));
  ck_assert(hk_addr_len(&a) == sizeof(struct sockaddr_in6));
  a = addr("10.0.0.1", 7);
  ck_assert(hk_addr_len(&a) == sizeof(struct sockaddr_in));
}

/* Every length of a prefix, against two addresses that differ in one bit. */
TEST(prefixes) {
  static const char *const hosts[] = {"10.1.2.3", "fd00:1:2:3:4:5:6:7"};
  for (int family = 0; family < 2; family++)
    for (unsigned bit = 0, bits = family ? 128 : 32; bit < bits; bit++) {
      hk_addr a = addr(hosts[family], 0), b = a;
      unsigned char *at = family ? b.v6.sin6_addr.s6_addr : (unsigned char *)&b.v4.sin_addr;
      at[bit / 8] ^= (unsigned char)(0x80 >> bit % 8);
      for (unsigned n = 0; n <= bits + 1; n++) ck_assert_int_eq(hk_addr_same_net(&a, &b, n), n <= bit);
    }
}

TEST(names_of_interfaces) {
  char name[IFNAMSIZ];
  hk_addr a = addr("127.0.0.1", 5);
  hk_iface_name_of(&a, name);
  ck_assert_str_eq(name, "lo");
  a = addr("192.0.2.77", 5); /* for documentation: no host has it */
  hk_iface_name_of(&a, name);
  ck_assert_str_eq(name, "");
}

/* A machine of the cluster kind: two fast cards, a container bridge, a VLAN without hardware, loopback. */
static int machine(hk_iface *m) {
  static const struct {
    const char *name, *addr;
    int kind;
    unsigned speed;
  } rows[] = {{"lo", "127.0.0.1", HK_IFACE_LOOPBACK, 0},
              {"docker0", "172.17.0.1", HK_IFACE_BRIDGE, 10000},
              {"eth0", "192.168.0.5", HK_IFACE_PHYSICAL, 1000},
              {"ib0", "10.10.0.5", HK_IFACE_PHYSICAL, 100000},
              {"ib1", "10.11.0.5", HK_IFACE_PHYSICAL, 100000},
              {"tail0", "100.64.0.5", HK_IFACE_VIRTUAL, 0},
              {"eth0", "fd00::5", HK_IFACE_PHYSICAL, 1000},
              {"eth0", "fe80::5", HK_IFACE_PHYSICAL, 1000},
              {"lo", "::1", HK_IFACE_LOOPBACK, 0}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    memset(&m[i], 0, sizeof(m[i]));
    snprintf(m[i].name, sizeof(m[i].name), "%s", rows[i].name);
    m[i].addr = addr(rows[i].addr, 0);
    m[i].kind = (uint8_t)rows[i].kind;
    m[i].speed_mbps = rows[i].speed;
  }
  return (int)HK_ARRAY_LENGTH(rows);
}

static bool remote; /* the destination is another host */
/* Orders the machine's interfaces and writes them as "name4 name6 ...". */
static const char *order(const char *names, int family, const char *local) {
  static char text[256];
  hk_iface m[16];
  hk_addr from;
  if (local) from = addr(local, 0);
  hk_iface_filter w = {.names = names, .family = family, .local = local ? &from : NULL, .remote = remote};
  const int all = machine(m);
  m[all] = m[all - 1]; /* is not in the list */
  snprintf(m[all].name, sizeof m[all].name, "tail0");
  if (local) m[all].addr = from;
  int n = hk_iface_order(m, all, &w);
  text[0] = '\0';
  for (int i = 0; i < n; i++) {
    if (i) strcat(text, " ");
    strcat(text, m[i].name);
    strcat(text, m[i].addr.sa.sa_family == AF_INET6 ? "/6" : "/4");
  }
  return text;
}

TEST(orders_interfaces) {
  ck_assert_str_eq(order(NULL, AF_UNSPEC, NULL), "ib0/4 ib1/4 eth0/4 eth0/6 eth0/6 tail0/4 docker0/4");
  ck_assert_str_eq(order("", AF_INET, NULL), "ib0/4 ib1/4 eth0/4 tail0/4 docker0/4");
  /* The route decides before the speed. */
  ck_assert_str_eq(order(NULL, AF_INET, "192.168.0.5"), "eth0/4 ib0/4 ib1/4 tail0/4 docker0/4");
  ck_assert_str_eq(order(NULL, AF_UNSPEC, "fd00::5"), "eth0/6 eth0/4 eth0/6 ib0/4 ib1/4 tail0/4 docker0/4");
  ck_assert_str_eq(order(NULL, AF_INET, "172.17.0.1"), "docker0/4 ib0/4 ib1/4 eth0/4 tail0/4");
  /* A root on this host's loopback asks for loopback. */
  ck_assert_str_eq(order(NULL, AF_INET, "127.0.0.1"), "lo/4 ib0/4 ib1/4 eth0/4 tail0/4 docker0/4");
}

TEST(filters_interfaces_as_nccl_does) {
  ck_assert_str_eq(order("eth", AF_INET, NULL), "eth0/4");
  ck_assert_str_eq(order("eth0,ib", AF_INET, NULL), "eth0/4 ib0/4 ib1/4");
  ck_assert_str_eq(order("=ib1,ib0", AF_INET, NULL), "ib1/4 ib0/4");
  ck_assert_str_eq(order("ib1,,eth0", AF_INET, NULL), "ib1/4 eth0/4");
  ck_assert_str_eq(order("=ib", AF_INET, NULL), "");
  ck_assert_str_eq(order("^ib,docker", AF_INET, NULL), "eth0/4 tail0/4");
  ck_assert_str_eq(order("^=ib0", AF_INET, NULL), "ib1/4 eth0/4 tail0/4 docker0/4");
  ck_assert_str_eq(order("^=ib", AF_INET, NULL), "ib0/4 ib1/4 eth0/4 tail0/4 docker0/4");
  ck_assert_str_eq(order("ib1:4000", AF_INET, NULL), "ib1/4");
  ck_assert_str_eq(order("lo", AF_INET, NULL), "lo/4");
  ck_assert_str_eq(order("nothing", AF_UNSPEC, NULL), "");
  ck_assert_str_eq(order(NULL, AF_INET6, NULL), "eth0/6 eth0/6");
  ck_assert_str_eq(order("^eth,ib,docker,tail", AF_UNSPEC, NULL), "lo/4 lo/6");
  remote = true;
  ck_assert_str_eq(order("^eth,ib,docker,tail", AF_UNSPEC, NULL), "");
  ck_assert_str_eq(order("lo", AF_INET, NULL), "lo/4");
  remote = false;
  /* The order of the list beats the route. */
  ck_assert_str_eq(order("ib1,eth0", AF_INET, "192.168.0.5"), "ib1/4 eth0/4");
}

TEST(finds_this_machines_interfaces) {
  hk_iface list[32];
  int n = 32;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, NULL), HK_OK);
  ck_assert_int_ge(n, 1);
  hk_addr loop = addr("127.0.0.1", 1234);
  n = 32;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, &loop), HK_OK);
  ck_assert_int_ge(n, 1);
  ck_assert_int_eq(list[0].kind, HK_IFACE_LOOPBACK);
  ck_assert(hk_addr_is_loopback(&list[0].addr));
  ck_assert_uint_eq(list[0].prefix, 8);

  set_param("NCCL_SOCKET_IFNAME", "=lo");
  set_param("NCCL_SOCKET_FAMILY", "AF_INET");
  n = 1;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, NULL), HK_OK);
  ck_assert_int_eq(n, 1);
  ck_assert_str_eq(list[0].name, "lo");
  ck_assert_int_eq(list[0].addr.sa.sa_family, AF_INET);
  n = 0;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, NULL), HK_OK);
  ck_assert_int_eq(n, 0);

  set_param("NCCL_SOCKET_IFNAME", "nosuch");
  n = 32;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, NULL), HK_ERR_USAGE);
  ck_assert_int_eq(n, 0);
  ck_assert(strstr(hk_last_error(), "nosuch") && strstr(hk_last_error(), "lo (IPv4)"));

  set_param("NCCL_SOCKET_FAMILY", "inet");
  n = 32;
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, NULL), HK_ERR_USAGE);
  ck_assert(strstr(hk_last_error(), "AF_INET6"));
}

TEST(listens_and_connects) {
  hk_addr a = addr("127.0.0.1", 0);
  int listener, client;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &a, 4, &listener), HK_OK);
  ck_assert_uint_ne(hk_addr_port(&a), 0);
  ck_assert_int_eq(hk_connect_start(&a, &client), HK_OK);
  struct pollfd p = {.fd = listener, .events = POLLIN};
  ck_assert_int_eq(poll(&p, 1, 2000), 1);
  int served = accept(listener, NULL, NULL);
  ck_assert_int_ge(served, 0);
  int second;
  hk_addr taken = a;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &taken, 4, &second), HK_ERR_SYSTEM);
  ck_assert_int_eq(second, -1);
  ck_assert(strstr(hk_last_error(), "127.0.0.1<") != NULL);
  close(served);
  close(client);
  close(listener);
}

/* A connection that fails at once leaves no descriptor, nor does a look at the interfaces. */
TEST(leaves_no_descriptor) {
  hk_addr nowhere = addr("255.255.255.255", 9), loop = addr("127.0.0.1", 9);
  hk_iface list[32];
  int fd = 5, fds = open_fds(), n = 32;
  ck_assert_int_eq(hk_connect_start(&nowhere, &fd), HK_ERR_SYSTEM);
  ck_assert_int_eq(fd, -1);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "255.255.255.255<9>"));
  nowhere.sa.sa_family = AF_MAX;
  ck_assert_int_eq(hk_connect_start(&nowhere, &fd), HK_ERR_SYSTEM);
  ck_assert_int_eq(hk_ifaces(hk_settings_now(), list, &n, &loop), HK_OK);
  ck_assert_int_eq(open_fds(), fds);
}

TEST(keeps_to_the_port_range) {
  /* Three ports next to one that the kernel found free. */
  hk_addr probe = addr("127.0.0.1", 0);
  int fd, fds[4];
  ck_assert_int_eq(hk_listen(hk_settings_now(), &probe, 1, &fd), HK_OK);
  close(fd);
  unsigned first = hk_addr_port(&probe) < 65000 ? hk_addr_port(&probe) : 65000;
  char range[32];
  snprintf(range, sizeof(range), "%u-%u", first, first + 2);
  set_param("HOCKET_PORT_RANGE", range);
  int got = 0;
  for (;;) {
    hk_addr a = addr("127.0.0.1", 0);
    if (hk_listen(hk_settings_now(), &a, 1, &fds[got]) != HK_OK) break;
    ck_assert_uint_ge(hk_addr_port(&a), first);
    ck_assert_uint_le(hk_addr_port(&a), first + 2);
    ck_assert_int_lt(++got, 4);
  }
  ck_assert_int_ge(got, 1);
  ck_assert(strstr(hk_last_error(), "HOCKET_PORT_RANGE") != NULL);
  for (unsigned port = first; port <= first + 2;
       port++) { /* each of them is taken, by this test or by another process */
    hk_addr a = addr("127.0.0.1", port);
    ck_assert_int_eq(hk_listen(hk_settings_now(), &a, 1, &fd), HK_ERR_SYSTEM);
  }
  hk_addr none = addr("127.0.0.1", 0);
  ck_assert_int_eq(hk_listen(hk_settings_now(), &none, 1, &fd), HK_ERR_SYSTEM);
  ck_assert_uint_eq(hk_addr_port(&none), 0);
  while (got > 0) close(fds[--got]);

  static const char *const bad[] = {"abc", "5-", "-5", "0-10", "20-10", "1-70000", "1-2-3", "4 5"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(bad); i++) {
    hk_addr a = addr("127.0.0.1", 0);
    set_param("HOCKET_PORT_RANGE", bad[i]);
    ck_assert_msg(hk_listen(hk_settings_now(), &a, 1, &fd) == HK_ERR_USAGE, "'%s' was taken", bad[i]);
  }
  /* One port, and the last one, which others may have. */
  static const char *const one[] = {"%u", "%u-%u"};
  for (int i = 0; i < 3; i++) {
    const unsigned port = i < 2 ? first : 65535;
    hk_addr a = addr("127.0.0.1", 0);
    snprintf(range, sizeof(range), one[i % 2], port, port);
    set_param("HOCKET_PORT_RANGE", range);
    const hk_status rc = hk_listen(hk_settings_now(), &a, 1, &fd);
    ck_assert_msg(rc == HK_OK ? hk_addr_port(&a) == port : rc == HK_ERR_SYSTEM, "%s: %d", range, rc);
    if (rc == HK_OK) close(fd);
  }
  set_param("HOCKET_PORT_RANGE", "");
  hk_addr odd = addr("127.0.0.1", 0);
  odd.sa.sa_family = AF_MAX;
  ck_assert_int_eq(hk_listen(hk_settings_now(), &odd, 1, &fd), HK_ERR_SYSTEM);
  ck_assert_int_eq(fd, -1);
}

int main(void) { return suite_main("addr"); }
