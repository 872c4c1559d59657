/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces, and connections to this host and to another. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/iface.h"
#include "../../base/param.h"
#include "../../base/sysfs.h"
#include "../../base/tls.h"
#include "../../base/wait.h"
#include "doctor.h"

enum { IFACES = 32, PATIENCE_MS = 2000, ANSWER = 16384 };
#define PEER_PORT "7461"
#define GREETING "hocket doctor 1\n"

/* Waits until the socket is ready for `events`; false after the deadline. */
static bool net_ready(int fd, short events, uint64_t deadline_ns) {
  for (;;) {
    uint64_t now = hk_now_ns();
    if (now >= deadline_ns) return false;
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, (int)((deadline_ns - now) / 1000000 + 1));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

/* Waits for a connect in progress; returns 0 or errno. */
static int net_connected(int fd, uint64_t deadline_ns) {
  int code = 0;
  socklen_t bytes = sizeof code;
  if (!net_ready(fd, POLLOUT, deadline_ns)) return ETIMEDOUT;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes) == 0 ? code : errno;
}

/* ---- this host ---- */

/* Listens on the address and connects to it, as ranks of one host do over TCP; 0 or errno. */
static int net_reach_self(const hk_settings *settings, const hk_addr *addr) {
  hk_addr at = *addr;
  int listener = -1, out = -1, in = -1, code;
  uint64_t deadline = hk_now_ns() + PATIENCE_MS * UINT64_C(1000000);
  if (hk_listen(settings, &at, 1, &listener) != HK_OK) return errno ? errno : EADDRNOTAVAIL;
  if (hk_connect_start(&at, &out) != HK_OK) {
    code = errno ? errno : ENETUNREACH;
  } else {
    code = net_ready(listener, POLLIN, deadline) ? 0 : ETIMEDOUT;
    if (code == 0 && (in = accept(listener, NULL, NULL)) < 0) code = errno;
    if (code == 0) code = net_connected(out, deadline);
  }
  close(listener);
  if (out >= 0) close(out);
  if (in >= 0) close(in);
  return code;
}

/* The reason why the first interface is used. */
static const char *net_reason(const hk_doctor *d, const hk_iface *list, int n, char *text, size_t bytes) {
  const char *names = d->settings->SOCKET_IFNAME;
  int next = 1; /* the next interface; one may have several addresses */
  while (next < n && strcmp(list[next].name, list[0].name) == 0) next++;
  if (names && *names)
    snprintf(text, bytes, "NCCL_SOCKET_IFNAME=%s", names);
  else if (list[0].kind == HK_IFACE_LOOPBACK)
    snprintf(text, bytes, "nothing else is up");
  else if (next == n)
    snprintf(text, bytes, "the only one that is up");
  else if (list[0].kind == HK_IFACE_PHYSICAL && list[next].kind != HK_IFACE_PHYSICAL)
    snprintf(text, bytes, "the only one with hardware");
  else if (list[0].speed_mbps > list[next].speed_mbps)
    snprintf(text, bytes, "the fastest");
  else
    snprintf(text, bytes, "the first of equal ones; a route to rank 0 goes before");
  return text;
}

void hk_doctor_interfaces(hk_doctor *d) {
  hk_iface list[IFACES];
  int n = IFACES;
  char addr[HK_ADDR_TEXT], why[160];
  if (!d->live) return;
  if (hk_ifaces(d->settings, list, &n, NULL) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "unset NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY; ip -brief address", "%s",
                  hk_last_error());
    return;
  }
  for (int i = 0; i < n; i++) {
    char fix[256], speed[32] = "";
    /* Used only if there is no other address; unusable for a second after the cable was plugged in. */
    if (i > 0 && hk_addr_is_link_local(&list[i].addr)) continue;
    hk_addr_format(&list[i].addr, addr);
    addr[strcspn(addr, "<")] = '\0';
    if (list[i].speed_mbps) snprintf(speed, sizeof speed, ", %g Gb/s", list[i].speed_mbps / 1000.0);
    int code = net_reach_self(d->settings, &list[i].addr);
    if (code)
      hk_doctor_say(
          d, HK_DOC_PROBLEM,
          hk_doctor_fix(fix, "nft list ruleset, iptables -L; or exclude it: NCCL_SOCKET_IFNAME=^%s", list[i].name),
          "%s %s%s: this host cannot connect to itself there: %s", list[i].name, addr, speed, strerror(code));
    else if (i == 0)
      hk_doctor_say(d, HK_DOC_OK, NULL, "%s %s%s is taken: %s", list[i].name, addr, speed,
                    net_reason(d, list, n, why, sizeof why));
    else
      hk_doctor_say(d, HK_DOC_OK, NULL, "%s %s%s works too", list[i].name, addr, speed);
  }
  if (n > 0 && list[0].kind == HK_IFACE_LOOPBACK)
    hk_doctor_say(d, HK_DOC_NOTE, "ip -brief address", "only loopback is up: ranks on other hosts cannot be reached");
}

void hk_doctor_encryption(hk_doctor *d) {
  char why[256], ways[256], key[HK_TLS_KEY_MOST + 1];
  if (!d->live) return;
  if (hk_tls_key_file(d->settings, key) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "name another file in HOCKET_ENCRYPTION_KEY_FILE, or chmod 600 this one", "%s",
                  hk_last_error());
    return;
  }
  bool wanted = *key;
  explicit_bzero(key, sizeof key);
  const char *version = hk_tls_library(why, sizeof why);
  hk_sysfs_text(d->root, ways, sizeof ways, "/proc/sys/net/ipv4/tcp_available_ulp");
  bool kernel = strstr(ways, "tls") != NULL;
  if (!version)
    hk_doctor_say(d, wanted ? HK_DOC_PROBLEM : HK_DOC_NOTE, "apt install libssl3",
                  "connections cannot be encrypted: %s%s", why,
                  wanted ? ", and HOCKET_ENCRYPTION_KEY_FILE is set" : "");
  else
    hk_doctor_say(d, HK_DOC_OK, kernel || !wanted ? NULL : "modprobe tls", "connections %s: TLS 1.3 by %s%s",
                  wanted ? "are encrypted (HOCKET_ENCRYPTION_KEY_FILE)" : "can be encrypted", version,
                  kernel ? " and the kernel" : "; this kernel has no TLS of its own (module tls)");
}

/* ---- another host ---- */

/* Answers with this host's addresses, one a line, the port, and its RDMA ports. Then waits until the other side
 * closes. */
static void net_serve(const hk_settings *settings, int fd, const hk_addr *listener) {
  hk_iface list[IFACES];
  int n = IFACES;
  char addr[HK_ADDR_TEXT], text[ANSWER] = GREETING;
  size_t used = strlen(text);
  if (hk_ifaces(settings, list, &n, NULL) != HK_OK) n = 0;
  for (int i = 0; i < n; i++) {
    hk_addr_set_port(&list[i].addr, hk_addr_port(listener));
    hk_addr_format(&list[i].addr, addr);
    int w = snprintf(text + used, sizeof text - used, "%s %s\n", list[i].name, addr);
    if (w < 0 || used + (size_t)w >= sizeof text) break;
    used += (size_t)w;
  }
  used += hk_doctor_ports_text(settings, text + used, sizeof text - used);
  if (send(fd, text, used, MSG_NOSIGNAL) == (ssize_t)used) shutdown(fd, SHUT_WR);
  close(fd);
}

int hk_doctor_listen(const hk_settings *settings, int port) {
  hk_addr at;
  int fd;
  char text[HK_ADDR_TEXT];
  memset(&at, 0, sizeof at);
  at.v6.sin6_family = AF_INET6; /* takes IPv4 too */
  hk_addr_set_port(&at, (unsigned)port);
  if (hk_listen(settings, &at, 16, &fd) != HK_OK) {
    memset(&at, 0, sizeof at);
    at.v4.sin_family = AF_INET; /* a host without IPv6 */
    hk_addr_set_port(&at, (unsigned)port);
    hk_status rc = hk_listen(settings, &at, 16, &fd);
    if (rc != HK_OK) return hk_tool_failed(rc);
  }
  printf("listening on port %u; on the other host: hocket doctor peer --peer HOST:%u\n", hk_addr_port(&at),
         hk_addr_port(&at));
  fflush(stdout);
  for (;;) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, -1) < 0 && errno != EINTR) break;
    hk_addr from;
    socklen_t bytes = sizeof from;
    int in = accept(fd, &from.sa, &bytes);
    if (in < 0) continue;
    hk_addr_unmap(&from);
    printf("asked by %s\n", hk_addr_format(&from, text));
    fflush(stdout);
    net_serve(settings, in, &at);
  }
  close(fd);
  return HK_EXIT_TROUBLE;
}

/* Connects from a local address (or any, NULL); the socket, or -1 with errno. */
static int net_dial(const hk_addr *from, const hk_addr *to, double *us) {
  uint64_t begin = hk_now_ns();
  int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), code;
  if (fd < 0) return -1;
  if (from && bind(fd, &from->sa, hk_addr_len(from)) != 0)
    code = errno;
  else if (connect(fd, &to->sa, hk_addr_len(to)) == 0)
    code = 0;
  else
    code = errno == EINPROGRESS ? net_connected(fd, begin + PATIENCE_MS * UINT64_C(1000000)) : errno;
  *us = (double)(hk_now_ns() - begin) / 1e3;
  if (code == 0) return fd;
  close(fd);
  errno = code;
  return -1;
}

/* Receives the whole answer of a listening doctor. */
static bool net_hear(int fd, char *text, size_t bytes) {
  size_t used = 0;
  uint64_t deadline = hk_now_ns() + PATIENCE_MS * UINT64_C(1000000);
  while (used < bytes - 1 && net_ready(fd, POLLIN, deadline)) {
    ssize_t n = recv(fd, text + used, bytes - 1 - used, 0);
    if (n <= 0) break;
    used += (size_t)n;
  }
  text[used] = '\0';
  return strncmp(text, GREETING, strlen(GREETING)) == 0;
}

/* Connects from each local interface to one address of the other host. */
static void net_try_pairs(hk_doctor *d, const hk_iface *mine, int n, const char *name, const hk_addr *to) {
  char here[HK_ADDR_TEXT], there[HK_ADDR_TEXT], fix[256], time[32];
  hk_addr_format(to, there);
  there[strcspn(there, "<")] = '\0';
  for (int i = 0; i < n; i++) {
    double us;
    if (mine[i].addr.sa.sa_family != to->sa.sa_family || mine[i].kind == HK_IFACE_LOOPBACK ||
        hk_addr_is_link_local(&mine[i].addr))
      continue;
    hk_addr from = mine[i].addr;
    hk_addr_set_port(&from, 0);
    hk_addr_format(&from, here);
    here[strcspn(here, "<")] = '\0';
    int fd = net_dial(&from, to, &us);
    if (fd >= 0) {
      close(fd);
      hk_doctor_say(d, HK_DOC_OK, NULL, "%s (%s) here reaches %s (%s) there in %s", mine[i].name, here, name, there,
                    hk_tool_time(time, us));
    } else {
      /* A separate network for each interface is no fault, except for the interface that is used. */
      hk_doctor_say(d, i == 0 ? HK_DOC_PROBLEM : HK_DOC_NOTE,
                    hk_doctor_fix(fix, "ip route get %s; nft list ruleset on both; or NCCL_SOCKET_IFNAME=^%s", there,
                                  mine[i].name),
                    "%s (%s) here does not reach %s (%s) there: %s", mine[i].name, here, name, there, strerror(errno));
    }
  }
}

void hk_doctor_peer(hk_doctor *d) {
  hk_addr to;
  char text[ANSWER], fix[256], spelled[512];
  hk_iface mine[IFACES];
  hk_ib_port ports[HK_IB_PORTS];
  int n = IFACES, nports = 0;
  double us;
  if (!d->peer) return;
  bool port = strchr(d->peer, ']') ? strstr(d->peer, "]:") != NULL : strchr(d->peer, ':') != NULL;
  snprintf(spelled, sizeof spelled, "%.400s%s", d->peer, port ? "" : ":" PEER_PORT);
  if (hk_addr_parse(d->settings, &to, spelled) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "give --peer HOST:PORT; getent hosts HOST", "%s", hk_last_error());
    return;
  }
  int fd = net_dial(NULL, &to, &us);
  if (fd < 0) {
    hk_doctor_say(d, HK_DOC_PROBLEM,
                  hk_doctor_fix(fix, "run there: hocket doctor --listen %u; look at firewalls: nft list ruleset",
                                hk_addr_port(&to)),
                  "%s cannot be reached: %s", spelled, strerror(errno));
    return;
  }
  bool doctor = net_hear(fd, text, sizeof text);
  close(fd);
  if (!doctor) {
    hk_doctor_say(d, HK_DOC_PROBLEM, hk_doctor_fix(fix, "run there: hocket doctor --listen %u", hk_addr_port(&to)),
                  "%s is not a listening doctor", spelled);
    return;
  }
  if (hk_ifaces(d->settings, mine, &n, &to) != HK_OK) return; /* the check interfaces reports why */
  for (char *save = NULL, *line = strtok_r(text + strlen(GREETING), "\n", &save); line;
       line = strtok_r(NULL, "\n", &save)) {
    char name[32], where[HK_ADDR_TEXT], address[HK_ADDR_TEXT + 16];
    unsigned at;
    if (hk_doctor_ports_hear(line, ports, &nports)) continue;
    /* "eth0 10.0.0.1<7461>": the peer is not trusted, so the lengths are limited. */
    if (sscanf(line, "%31s %79[^<]<%u>", name, where, &at) != 3) continue;
    snprintf(address, sizeof address, where[0] != '[' && strchr(where, ':') ? "[%s]:%u" : "%s:%u", where, at);
    if (hk_addr_parse(d->settings, &to, address) == HK_OK && !hk_addr_is_link_local(&to))
      net_try_pairs(d, mine, n, name, &to);
  }
  hk_doctor_routes(d, ports, nports);
}
