/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to a RAS service (ras_client.h). */
#include "ras_client.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "../base/param.h"
#include "tools.h"

enum { CONNECT_S = 5 };

bool hk_ras_split(const char *address, char *host, size_t host_bytes, char *port, size_t port_bytes) {
  const char *own = hk_tool_settings()->RAS_ADDR, *own_port = strrchr(own, ':');
  if (!own_port) {
    hk_tool_wrong("NCCL_RAS_ADDR is '%s', not host:port", own);
    return false;
  }
  const char *from = address ? address : own, *colon = strrchr(from, ':');
  if (colon && (strchr(from, ':') != colon) && !(from[0] == '[' && colon[-1] == ']')) colon = NULL; /* IPv6 alone */
  const size_t n = colon ? (size_t)(colon - from) : strlen(from);
  const bool bracket = n > 1 && from[0] == '[' && from[n - 1] == ']';
  snprintf(host, host_bytes, "%.*s", (int)n - 2 * bracket, from + bracket);
  snprintf(port, port_bytes, "%s", colon ? colon + 1 : own_port + 1);
  return true;
}

void hk_ras_set_patience(int fd, int seconds) {
  const struct timeval t = {.tv_sec = seconds};
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t); /* connect, too */
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

int hk_ras_connect(const char *host, const char *port) {
  const struct addrinfo hint = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  int fd = -1, why = 0;
  const int error = getaddrinfo(host, port, &hint, &found);
  if (error) {
    hk_tool_wrong("the host %s is not known: %s", host, gai_strerror(error));
    return -1;
  }
  for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    hk_ras_set_patience(fd, CONNECT_S);
    if (!connect(fd, a->ai_addr, a->ai_addrlen)) break;
    why = errno;
    close(fd);
    fd = -1;
  }
  freeaddrinfo(found);
  if (fd < 0)
    hk_tool_wrong(
        "no RAS service at %s, port %s (%s): is a job running on that host, with NCCL_RAS_ENABLE not 0 and this "
        "address in NCCL_RAS_ADDR?",
        host, port, strerror(why));
  return fd;
}

bool hk_ras_send(int fd, const char *line) {
  const size_t n = strlen(line);
  return send(fd, line, n, MSG_NOSIGNAL) == (ssize_t)n;
}

bool hk_ras_ask(int fd, const char *line, const char *expected) {
  char answer[512];
  size_t n = 0;
  bool sent = hk_ras_send(fd, line);
  while (sent && n < sizeof answer - 1 && recv(fd, answer + n, 1, 0) == 1 && answer[n] != '\n') n++;
  answer[n] = 0;
  if (!strncasecmp(answer, expected, strlen(expected))) return true;
  hk_tool_wrong("the service answers '%s' to %.*s", n ? answer : "nothing", (int)strcspn(line, "\n"), line);
  return false;
}
