/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket ras`, which is also `ncclras`: a client of the RAS protocol, of this library's server and of NCCL's. */
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "../base/param.h"
#include "tools.h"

typedef struct options {
  const char *host;
  int format, port, timeout;
  bool verbose, monitor;
} options;
enum { RAS_TEXT, RAS_JSON };
enum { CONNECT_S = 5, EXTRA_S = 6 /* what an answer takes beyond the timeout of a collection */ };

static const char *ras_format_word(int i) {
  static const char *const words[] = {[RAS_TEXT] = "text", [RAS_JSON] = "json", NULL};
  return words[i];
}

/* Each send and recv of the socket takes at most this long; 0: any time. */
static void ras_set_patience(int fd, int seconds) {
  const struct timeval t = {.tv_sec = seconds};
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t); /* connect, too */
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

/* -1: none of the host's addresses, of which there may be several, accepts the connection; it is reported. */
static int ras_connect(const char *host, const char *port) {
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
    ras_set_patience(fd, CONNECT_S);
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

static bool ras_send(int fd, const char *line) {
  const size_t n = strlen(line);
  return send(fd, line, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Sends a line, and reads the line that answers it. False: it does not begin with `expected`, which is reported. */
static bool ras_ask(int fd, const char *line, const char *expected) {
  char answer[512];
  size_t n = 0;
  bool sent = ras_send(fd, line);
  while (sent && n < sizeof answer - 1 && recv(fd, answer + n, 1, 0) == 1 && answer[n] != '\n') n++;
  answer[n] = 0;
  if (!strncasecmp(answer, expected, strlen(expected))) return true;
  hk_tool_wrong("the service answers '%s' to %.*s", n ? answer : "nothing", (int)strcspn(line, "\n"), line);
  return false;
}

/* Until the service closes the connection. */
static int ras_copy(int fd) {
  char bytes[4096];
  ssize_t n;
  while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
    fwrite(bytes, 1, (size_t)n, stdout);
    fflush(stdout);
  }
  return n ? hk_tool_wrong("the answer breaks off: %s", strerror(errno)) : HK_EXIT_OK;
}

static int ras_talk(int fd, const options *o, const char *groups) {
  char line[128];
  if (!ras_ask(fd, "CLIENT PROTOCOL 2\n", "SERVER PROTOCOL ")) return HK_EXIT_TROUBLE;
  snprintf(line, sizeof line, "TIMEOUT %d\n", o->timeout);
  if (!ras_ask(fd, line, "OK")) return HK_EXIT_TROUBLE;
  snprintf(line, sizeof line, "SET FORMAT %s\n", ras_format_word(o->format));
  if (o->format != RAS_TEXT && !ras_ask(fd, line, "OK")) return HK_EXIT_TROUBLE;
  ras_set_patience(fd, o->timeout && !o->monitor ? o->timeout + EXTRA_S : 0);
  if (!o->monitor) return ras_send(fd, o->verbose ? "VERBOSE STATUS\n" : "STATUS\n") ? ras_copy(fd) : HK_EXIT_TROUBLE;
  snprintf(line, sizeof line, "MONITOR%s%.64s\n", groups ? " " : "", groups ? groups : "");
  if (!ras_ask(fd, line, "OK")) return HK_EXIT_TROUBLE;
  fprintf(stderr, "Events are shown from here on, until the job ends or you interrupt this.\n");
  return ras_copy(fd);
}

static int ras_run(void *into, int nargs, char **args) {
  const options *o = into;
  const char *address = hk_settings_now()->RAS_ADDR, *colon = strrchr(address, ':');
  char host[256], port[16];
  if (nargs && !o->monitor) return hk_tool_wrong("'%s' names events, which only --monitor shows", args[0]);
  if (!colon) return hk_tool_wrong("NCCL_RAS_ADDR is '%s', not host:port", address);
  const bool bracket = address[0] == '[' && colon[-1] == ']';
  snprintf(host, sizeof host, "%.*s", (int)(colon - address) - 2 * bracket, address + bracket);
  snprintf(port, sizeof port, "%s", colon + 1);
  if (o->host) snprintf(host, sizeof host, "%s", o->host);
  if (o->port) snprintf(port, sizeof port, "%d", o->port);
  const int fd = ras_connect(host, port);
  if (fd < 0) return HK_EXIT_TROUBLE;
  const int code = ras_talk(fd, o, nargs ? args[0] : NULL);
  close(fd);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_WORD(format, "format", "FORMAT", "what the report is", .letter = 'f', .def = "text",
                .words = ras_format_word),
    HK_ROW_TEXT(host, "host", "HOST", "the service's host; by default NCCL_RAS_ADDR's, else localhost", .letter = 'h'),
    HK_ROW_INT(port, "port", "PORT", "its port; by default NCCL_RAS_ADDR's, else 28028", .letter = 'p', .low = 1,
               .high = 65535),
    HK_ROW_INT(timeout, "timeout", "SECONDS", "how long the service may wait for ranks; 0: as long as it wants",
               .letter = 't', .def = "5", .low = 0, .high = 86400),
    HK_ROW_FLAG(verbose, "verbose", "in a text, all ranks", .letter = 'v'),
    HK_ROW_FLAG(monitor, "monitor", "show events as they come: lifecycle (by default), trace, all", .letter = 'm'),
    {0}};

const hk_tool hk_tool_ras = {
    .name = "ras",
    .about = "ask a job by NCCL's RAS protocol; the same as ncclras",
    .usage = "[EVENTS]",
    .text = "Prints what the RAS service of a job reports: Hocket's, which tells what `hocket ps` shows, or NCCL's. "
            "Each host with ranks has a service at NCCL_RAS_ADDR, by default only for clients on that host. The "
            "installed `ncclras` is this command with NCCL's options, for tools that call it.",
    .examples = "hocket ras\n  a summary\n"
                "ncclras -f json\n  for a program\n"
                "hocket ras --monitor all\n  events: processes that die or do not answer, ranks that others wait for",
    .options = rows,
    .bytes = sizeof(options),
    .most = 1,
    .run = ras_run};
