/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /dev/kmsg (xid.h): records "priority,number,microseconds,flags;text", the oldest first. */
#include "xid.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/wait.h" /* hk_now_ns */

enum { XID_RECORD = 8192, XID_PATH = 4096 };

/* Xids that NVIDIA's catalogue puts down to the application: page faults, exceptions of the engines, ended channels. */
static bool xid_of_program(int number) {
  static const int numbers[] = {13, 31, 32, 43, 45, 68, 69};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(numbers); i++)
    if (numbers[i] == number) return true;
  return false;
}

/* "... Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus." */
static bool xid_parse(const char *record, hk_xid *x) {
  unsigned long long us;
  int used = 0;
  memset(x, 0, sizeof *x);
  if (sscanf(record, "%*u,%*u,%llu", &us) != 1) return false;
  const char *at = strstr(record, "Xid (PCI:");
  if (!at || sscanf(at, "Xid (PCI:%23[0-9a-fA-F:.]): %d,%n", x->bus, &x->number, &used) != 2 || !used) return false;
  x->nvswitch = at > record && at[-1] == 'S';
  x->program = !x->nvswitch && xid_of_program(x->number);
  x->times = 1;
  x->age_s = (int64_t)(hk_now_ns() / 1000000000u) - (int64_t)(us / 1000000u);
  if (x->age_s < 0) x->age_s = 0;
  at += used + strspn(at + used, " ");
  snprintf(x->text, sizeof x->text, "%.*s", (int)strcspn(at, "\n"), at);
  return true;
}

static int xid_add(hk_xid *out, int n, const hk_xid *x) {
  for (int i = 0; i < n; i++) {
    if (strcmp(out[i].bus, x->bus) || out[i].number != x->number || out[i].nvswitch != x->nvswitch) continue;
    const int times = out[i].times;
    out[i] = *x;
    out[i].times = times + 1;
    return n;
  }
  if (n < HK_XIDS) out[n++] = *x;
  return n;
}

int hk_xid_read(const char *root, hk_xid out[HK_XIDS]) {
  char path[XID_PATH], record[XID_RECORD];
  size_t have = 0;
  int n = 0;
  ssize_t got;
  snprintf(path, sizeof path, "%s/dev/kmsg", root);
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -1;
  /* The device gives one record at a time, a file below another root many. EPIPE: the kernel has replaced some. */
  while ((got = read(fd, record + have, sizeof record - 1 - have)) > 0 || (got < 0 && errno == EPIPE)) {
    char *line = record, *end;
    hk_xid x;
    if (got > 0) have += (size_t)got;
    record[have] = '\0';
    for (; (end = strchr(line, '\n')); line = end + 1) {
      *end = '\0';
      if (xid_parse(line, &x)) n = xid_add(out, n, &x);
    }
    have = (size_t)(record + have - line);
    memmove(record, line, have);
    if (have == sizeof record - 1) have = 0; /* no record is so long */
  }
  close(fd);
  return n;
}
