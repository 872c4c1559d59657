/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket ras`, which is also `ncclras`: a client of the RAS protocol, of this library's server and of NCCL's. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "ras_client.h"
#include "tools.h"

typedef struct options {
  const char *host;
  int format, port, timeout;
  bool verbose, monitor;
} options;
enum { RAS_TEXT, RAS_JSON };
enum { EXTRA_S = 6 /* what an answer takes beyond the timeout of a collection */ };

static const char *ras_format_word(int i) {
  static const char *const words[] = {[RAS_TEXT] = "text", [RAS_JSON] = "json", NULL};
  return words[i];
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
  if (!hk_ras_ask(fd, "CLIENT PROTOCOL 2\n", "SERVER PROTOCOL ")) return HK_EXIT_TROUBLE;
  snprintf(line, sizeof line, "TIMEOUT %d\n", o->timeout);
  if (!hk_ras_ask(fd, line, "OK")) return HK_EXIT_TROUBLE;
  snprintf(line, sizeof line, "SET FORMAT %s\n", ras_format_word(o->format));
  if (o->format != RAS_TEXT && !hk_ras_ask(fd, line, "OK")) return HK_EXIT_TROUBLE;
  hk_ras_set_patience(fd, o->timeout && !o->monitor ? o->timeout + EXTRA_S : 0);
  if (!o->monitor)
    return hk_ras_send(fd, o->verbose ? "VERBOSE STATUS\n" : "STATUS\n") ? ras_copy(fd) : HK_EXIT_TROUBLE;
  snprintf(line, sizeof line, "MONITOR%s%.64s\n", groups ? " " : "", groups ? groups : "");
  if (!hk_ras_ask(fd, line, "OK")) return HK_EXIT_TROUBLE;
  fprintf(stderr, "Events are shown from here on, until the job ends or you interrupt this.\n");
  return ras_copy(fd);
}

static int ras_run(void *into, int nargs, char **args) {
  const options *o = into;
  char host[256], port[16];
  if (nargs && !o->monitor) return hk_tool_wrong("'%s' names events, which only --monitor shows", args[0]);
  if (!hk_ras_split(NULL, host, sizeof host, port, sizeof port)) return HK_EXIT_TROUBLE;
  if (o->host) snprintf(host, sizeof host, "%s", o->host);
  if (o->port) snprintf(port, sizeof port, "%d", o->port);
  const int fd = hk_ras_connect(host, port);
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
