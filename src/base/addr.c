/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses: parsing, printing, listening, connecting.  Interfaces are in iface.c. */
#include "addr.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "iface.h"
#include "param.h"
#include "wait.h" /* hk_now_ns: spreads the first port tried */

socklen_t hk_addr_len(const hk_addr *a) {
  return a->sa.sa_family == AF_INET6 ? (socklen_t)sizeof(a->v6) : (socklen_t)sizeof(a->v4);
}

bool hk_addr_equal(const hk_addr *a, const hk_addr *b) {
  if (a->sa.sa_family != b->sa.sa_family || hk_addr_port(a) != hk_addr_port(b)) return false;
  if (a->sa.sa_family == AF_INET) return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
  if (a->sa.sa_family != AF_INET6) return true;
  return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0 &&
         a->v6.sin6_scope_id == b->v6.sin6_scope_id;
}

unsigned hk_addr_port(const hk_addr *a) {
  if (a->sa.sa_family == AF_INET) return ntohs(a->v4.sin_port);
  return a->sa.sa_family == AF_INET6 ? ntohs(a->v6.sin6_port) : 0;
}

void hk_addr_set_port(hk_addr *a, unsigned port) {
  if (a->sa.sa_family == AF_INET6)
    a->v6.sin6_port = htons((uint16_t)port);
  else
    a->v4.sin_port = htons((uint16_t)port);
}

void hk_addr_unmap(hk_addr *a) {
  if (a->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr)) return;
  hk_addr v4;
  memset(&v4, 0, sizeof(v4));
  v4.v4.sin_family = AF_INET;
  v4.v4.sin_port = a->v6.sin6_port;
  memcpy(&v4.v4.sin_addr, a->v6.sin6_addr.s6_addr + 12, 4);
  *a = v4;
}

const char *hk_addr_format(const hk_addr *a, char *text) {
  char host[INET6_ADDRSTRLEN], name[IFNAMSIZ];
  if (a->sa.sa_family == AF_INET && inet_ntop(AF_INET, &a->v4.sin_addr, host, sizeof(host))) {
    snprintf(text, HK_ADDR_TEXT, "%s<%u>", host, hk_addr_port(a));
  } else if (a->sa.sa_family == AF_INET6 && inet_ntop(AF_INET6, &a->v6.sin6_addr, host, sizeof(host))) {
    uint32_t scope = a->v6.sin6_scope_id;
    /* A scope from another host may name no interface here: then only the number can be shown. */
    if (scope != 0 && !if_indextoname(scope, name)) snprintf(name, sizeof(name), "%u", scope);
    snprintf(text, HK_ADDR_TEXT, "[%s%s%s]<%u>", host, scope ? "%" : "", scope ? name : "", hk_addr_port(a));
  } else {
    snprintf(text, HK_ADDR_TEXT, "(no address)");
  }
  return text;
}

/* Cuts "host:port", "[v6]:port" or "[v6%ifname]:port" in two. */
static bool addr_split_host_port(const char *text, char *host, size_t host_bytes, unsigned *port) {
  const char *begin = text, *end, *colon;
  if (*text == '[') {
    begin = text + 1;
    end = strchr(begin, ']');
    if (!end || end[1] != ':') return false;
    colon = end + 1;
  } else {
    colon = strrchr(text, ':');
    /* A second colon outside brackets means an IPv6 address: its last part and a port look alike. */
    if (!colon || strchr(text, ':') != colon) return false;
    end = colon;
  }
  size_t n = (size_t)(end - begin);
  if (n == 0 || n >= host_bytes || colon[1] < '0' || colon[1] > '9') return false;
  memcpy(host, begin, n);
  host[n] = '\0';
  char *rest;
  unsigned long p = strtoul(colon + 1, &rest, 10);
  *port = (unsigned)p;
  return *rest == '\0' && p <= 65535;
}

/* Fails with the reason why an address cannot be used. */
static hk_status addr_bad_form(const char *text) {
  const char *colon = strrchr(text, ':');
  if (colon == text)
    return HK_FAIL(HK_ERR_ARGUMENT, "'%s' is not an address: the host before the port is missing", text);
  if (colon && strspn(colon + 1, "0123456789") == strlen(colon + 1) && strtoul(colon + 1, NULL, 10) > 65535)
    return HK_FAIL(HK_ERR_ARGUMENT, "'%s' is not an address: port %.20s is above 65535", text, colon + 1);
  return HK_FAIL(HK_ERR_ARGUMENT, "'%s' is not an address: write host:port, [v6]:port or [v6%%interface]:port", text);
}

static hk_status addr_unresolved(const char *text, const char *host, int err, int system) {
  const char *zone = strchr(host, '%');
  if (zone && if_nametoindex(zone + 1) == 0)
    return HK_FAIL(HK_ERR_ARGUMENT, "'%s' names the interface '%.40s', which this host does not have: ip link", text,
                   zone + 1);
  if (zone)
    return HK_FAIL(HK_ERR_ARGUMENT, "'%s': only a link-local address (fe80::) has an interface; leave out '%.40s'",
                   text, zone);
  return HK_FAIL(HK_ERR_ARGUMENT,
                 "the host of address '%s' cannot be resolved: %s; check the name and /etc/hosts or DNS", text,
                 err == EAI_SYSTEM ? strerror(system) : gai_strerror(err));
}

hk_status hk_addr_parse(const hk_settings *settings, hk_addr *a, const char *text) {
  char host[NI_MAXHOST];
  unsigned port;
  if (!addr_split_host_port(text, host, sizeof(host), &port)) return addr_bad_form(text);

  struct addrinfo hint = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
  const char *family = settings->SOCKET_FAMILY;
  /* The requested family selects only among the addresses of a name: a numeric address is used as it is. */
  if (family && strcmp(family, "AF_INET") == 0) hint.ai_family = AF_INET;
  if (family && strcmp(family, "AF_INET6") == 0) hint.ai_family = AF_INET6;
  int err = getaddrinfo(host, NULL, &hint, &found);
  if (err != 0 && hint.ai_family != AF_UNSPEC) {
    hint.ai_family = AF_UNSPEC;
    err = getaddrinfo(host, NULL, &hint, &found);
  }
  if (err != 0) return addr_unresolved(text, host, err, errno);
  memset(a, 0, sizeof(*a));
  memcpy(a, found->ai_addr, found->ai_addrlen < sizeof(*a) ? found->ai_addrlen : sizeof(*a));
  freeaddrinfo(found);
  hk_addr_set_port(a, port);
  return HK_OK;
}

/* HOCKET_PORT_RANGE: "first-last" or one port. */
static hk_status addr_port_range(const char *text, unsigned *first, unsigned *last) {
  *first = *last = 0;
  if (!text || !*text) return HK_OK;
  char extra;
  int n = sscanf(text, "%5u-%5u%c", first, last, &extra);
  if (n == 1 && strspn(text, "0123456789") == strlen(text)) {
    *last = *first;
    n = 2;
  }
  if (n != 2 || *first == 0 || *last > 65535 || *first > *last)
    return HK_FAIL(HK_ERR_USAGE, "HOCKET_PORT_RANGE='%s' is not a range of ports: write first-last, as 40000-40100",
                   text);
  return HK_OK;
}

void hk_tcp_unpaced(int fd) { (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", sizeof "reno" - 1); }

/* One attempt on one port; false with errno set. */
static bool addr_try_listen(hk_addr *a, int backlog, int *out) {
  int one = 1, fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  /* Without it a port of the range stays unusable for a minute after each run (TIME_WAIT). */
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (a->sa.sa_family == AF_INET6) {
    /* All addresses means IPv4 too, whatever net.ipv6.bindv6only says: contacts may list both. */
    int no = 0;
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    /* An address of this host is refused in the first second or two while the kernel looks for a duplicate of it. */
    char name[IFNAMSIZ];
    hk_iface_name_of(a, name);
    if (*name) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &one, sizeof(one));
  }
  hk_addr bound;
  socklen_t len = sizeof(bound);
  if (bind(fd, &a->sa, hk_addr_len(a)) == 0 && listen(fd, backlog) == 0 && getsockname(fd, &bound.sa, &len) == 0) {
    hk_addr_set_port(a, hk_addr_port(&bound));
    *out = fd;
    return true;
  }
  int err = errno;
  close(fd);
  errno = err;
  return false;
}

hk_status hk_listen(const hk_settings *settings, hk_addr *a, int backlog, int *fd) {
  unsigned first = 0, last = 0;
  char text[HK_ADDR_TEXT];
  *fd = -1;
  if (hk_addr_port(a) == 0) HK_OR_RETURN(addr_port_range(settings->PORT_RANGE, &first, &last));
  if (first == 0)
    return addr_try_listen(a, backlog, fd)
               ? HK_OK
               : HK_FAIL_ERRNO("cannot listen on %s; %s", hk_addr_format(a, text),
                               errno == EMFILE ? "raise the limit of open files (ulimit -n)"
                                               : "check that the address is this host's and the port is free");
  /* The ranks of a host begin at different ports of the range, so that they do not all try the same ones. */
  unsigned count = last - first + 1, start = (unsigned)((hk_now_ns() >> 10) ^ (uint64_t)getpid() * 7919u) % count;
  for (unsigned i = 0; i < count; i++) {
    hk_addr_set_port(a, first + (start + i) % count);
    if (addr_try_listen(a, backlog, fd)) return HK_OK;
    if (errno != EADDRINUSE && errno != EACCES) return HK_FAIL_ERRNO("cannot listen on %s", hk_addr_format(a, text));
  }
  hk_addr_set_port(a, 0);
  return HK_FAIL(HK_ERR_SYSTEM,
                 "no port of HOCKET_PORT_RANGE=%u-%u is free on %s; widen the range (each rank takes one port "
                 "for a communicator)",
                 first, last, hk_addr_format(a, text));
}

hk_status hk_connect_start(const hk_addr *to, int *out) {
  char text[HK_ADDR_TEXT];
  int one = 1, fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  *out = -1;
  if (fd < 0) return HK_FAIL_ERRNO("cannot make a socket to connect to %s", hk_addr_format(to, text));
  /* Messages are written whole, so to wait for more data would only delay them. */
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (connect(fd, &to->sa, hk_addr_len(to)) != 0 && errno != EINPROGRESS && errno != EINTR) {
    hk_status rc =
        HK_FAIL_ERRNO("cannot connect to %s; check the route to it and any firewall", hk_addr_format(to, text));
    close(fd);
    return rc;
  }
  *out = fd;
  return HK_OK;
}
