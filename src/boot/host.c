/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of this host and process (host.h). */
#include "host.h"
#include <fcntl.h>
#include <sched.h> /* sched_getaffinity */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../base/hash.h"
#include "../base/param.h"
#include "process.h" /* hk_process_nonce */

/* Mixes the content of a small file into h; a file that cannot be read changes nothing. */
static uint64_t host_hash_file(uint64_t h, const char *path) {
  char text[256];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return h;
  ssize_t n = read(fd, text, sizeof text);
  close(fd);
  return n > 0 ? hk_hash(h, text, (size_t)n) : h;
}

uint64_t hk_host_id(const hk_settings *settings) {
  const char *given = settings->HOSTID;
  if (given) return hk_hash(1, given, strlen(given));
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  uint64_t h = host_hash_file(hk_hash(2, name, strlen(name)), "/proc/sys/kernel/random/boot_id");
  struct stat st;
  if (stat("/proc/self/ns/net", &st) == 0) h = hk_hash(h, &st.st_ino, sizeof st.st_ino);
  return h;
}

/* A pid is not enough: two containers may have the same one, and without /proc their namespaces cannot be
 * distinguished. */
uint64_t hk_process_id(void) { return hk_process_nonce(); }

uint32_t hk_process_space(void) {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

void hk_host_cpus(uint64_t mask[HK_CPU_WORDS]) {
  cpu_set_t set;
  memset(mask, 0, HK_CPU_WORDS * sizeof *mask);
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    mask[0] = 1;
    return;
  }
  for (unsigned i = 0; i < HK_CPU_WORDS * 64; i++)
    if (CPU_ISSET(i, &set)) mask[i / 64] |= (uint64_t)1 << (i % 64);
}
