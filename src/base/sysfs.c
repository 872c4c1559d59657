/* SPDX-License-Identifier: Apache-2.0 */
/* Reads small files of /sys and /proc below a root (sysfs.h). */
#include "sysfs.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert((int)HK_SYSFS_PATH >= PATH_MAX, "realpath writes up to PATH_MAX bytes");

/* A path that is too long becomes "", which leads nowhere. */
static void sysfs_join(char *path, const char *root, const char *format, va_list args) {
  const size_t n = strnlen(root, HK_SYSFS_PATH - 1);
  memcpy(path, root, n);
  if (n + (size_t)vsnprintf(path + n, HK_SYSFS_PATH - n, format, args) >= HK_SYSFS_PATH) path[0] = '\0';
}
#define JOIN(path, root, format)                                                                                       \
  char path[HK_SYSFS_PATH];                                                                                            \
  do {                                                                                                                 \
    va_list args;                                                                                                      \
    va_start(args, format);                                                                                            \
    sysfs_join(path, root, format, args);                                                                              \
    va_end(args);                                                                                                      \
  } while (0)

static bool sysfs_read_text(const char *path, char *out, size_t bytes) {
  out[0] = '\0';
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  size_t used = 0;
  ssize_t n = 0;
  /* Files of /proc are read in pieces; with no room left, a read gives 0. */
  do {
    used += (size_t)n;
    while ((n = read(fd, out + used, bytes - 1 - used)) < 0 && errno == EINTR) continue;
  } while (n > 0);
  close(fd);
  while (used > 0 && isspace((unsigned char)out[used - 1])) used--;
  out[used] = '\0';
  return n >= 0;
}

bool hk_sysfs_text(const char *root, char *out, size_t bytes, const char *format, ...) {
  JOIN(path, root, format);
  return sysfs_read_text(path, out, bytes);
}

bool hk_sysfs_number(const char *root, long long *out, const char *format, ...) {
  JOIN(path, root, format);
  char text[64], *end;
  *out = 0;
  if (!sysfs_read_text(path, text, sizeof text)) return false;
  errno = 0;
  long long v = strtoll(text, &end, 0);
  if (end == text || errno) return false;
  *out = v;
  return true;
}

bool hk_sysfs_has(const char *root, const char *format, ...) {
  JOIN(path, root, format);
  return access(path, F_OK) == 0;
}

static int sysfs_by_name(const void *a, const void *b) { return strverscmp(*(char *const *)a, *(char *const *)b); }

/* The names are in the block, after the pointers to them. */
static char **sysfs_pack(char *names, size_t bytes, size_t count) {
  char **list = malloc((count + 1) * sizeof *list + bytes);
  if (!list) return NULL;
  char *text = (char *)(list + count + 1);
  if (bytes) memcpy(text, names, bytes);
  for (size_t i = 0; i < count; i++) {
    list[i] = text;
    text += strlen(text) + 1;
  }
  list[count] = NULL;
  qsort(list, count, sizeof *list, sysfs_by_name);
  return list;
}

char **hk_sysfs_list(const char *root, const char *format, ...) {
  JOIN(path, root, format);
  DIR *d = opendir(path);
  if (!d) return NULL;
  char *names = NULL;
  size_t used = 0, capacity = 0, count = 0;
  for (struct dirent *e; (e = readdir(d)) != NULL;) {
    if (e->d_name[0] == '.') continue;
    size_t n = strlen(e->d_name) + 1;
    if (used + n > capacity) {
      char *more = realloc(names, capacity = 2 * capacity + 1024); /* a name has 256 bytes at most */
      if (!more) break;
      names = more;
    }
    memcpy(names + used, e->d_name, n);
    used += n;
    count++;
  }
  closedir(d);
  char **list = sysfs_pack(names, used, count);
  free(names);
  return list;
}

bool hk_sysfs_real(const char *root, char *out, const char *format, ...) {
  JOIN(path, root, format);
  char top[HK_SYSFS_PATH];
  if (!realpath(path, out)) return false;
  if (!*root) return true;
  if (!realpath(root, top)) return false;
  size_t n = top[1] ? strlen(top) : 0;                                      /* 0: the root is "/" itself */
  if (strncmp(out, top, n) != 0 || (out[n] != '/' && out[n])) return false; /* a link that leads out of the root */
  memmove(out, out + n, strlen(out + n) + 1);
  return true;
}

#define NO_ADDRESS UINT64_MAX /* sorts last */

/* The address in the last component that is a PCI address:
 * "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.1/infiniband/x". */
static uint64_t sysfs_address_in(const char *path) {
  uint64_t found = NO_ADDRESS;
  for (; (path = strchr(path, '/')); path++) {
    unsigned domain, bus, device, function;
    int n = 0;
    if (sscanf(path, "/%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &n) == 4 && strchr("/", path[n]))
      found = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
  }
  return found;
}

static uint64_t sysfs_address_of(const char *root, const char *folder, const char *device) {
  char path[HK_SYSFS_PATH];
  if (!hk_sysfs_real(root, path, "%s/%s/device", folder, device) && !hk_sysfs_real(root, path, "%s/%s", folder, device))
    return NO_ADDRESS;
  return sysfs_address_in(path);
}

void hk_sysfs_sort_by_pci(const char *root, const char *folder, char **devices) {
  for (size_t i = 1; devices && devices[0] && devices[i]; i++) {
    char *one = devices[i];
    size_t at = i;
    uint64_t address = sysfs_address_of(root, folder, one);
    for (; at > 0 && sysfs_address_of(root, folder, devices[at - 1]) > address; at--) devices[at] = devices[at - 1];
    devices[at] = one;
  }
}

bool hk_sysfs_link(const char *root, char *out, size_t bytes, const char *format, ...) {
  JOIN(path, root, format);
  char target[HK_SYSFS_PATH];
  ssize_t n = readlink(path, target, sizeof target - 1);
  if (n <= 0) return false;
  target[n] = '\0';
  const char *last = strrchr(target, '/');
  snprintf(out, bytes, "%s", last ? last + 1 : target);
  return true;
}
