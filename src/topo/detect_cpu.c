/* SPDX-License-Identifier: Apache-2.0 */
/* CPUs: NUMA nodes, their processors, caches, and the links between sockets, from sysfs and /proc/cpuinfo. */
#include <sched.h> /* sched_getaffinity */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/sysfs.h"
#include "detect_scan.h"
#include "facts.h"

enum { MASK_BITS = HK_CPU_MASK_WORDS * 64 };

static bool detect_cpu_has(const uint64_t *mask, unsigned i) { return mask[i / 64] >> (i % 64) & 1; }
static bool detect_cpu_is_empty(const uint64_t *mask) {
  for (int k = 0; k < HK_CPU_MASK_WORDS; k++)
    if (mask[k]) return false;
  return true;
}

bool hk_cpu_list_parse(const char *text, uint64_t *mask) {
  memset(mask, 0, HK_CPU_MASK_WORDS * sizeof *mask);
  while (*text) {
    char *end;
    unsigned long first = strtoul(text, &end, 10), last = first;
    if (end == text) return false;
    if (*end == '-') {
      text = end + 1;
      last = strtoul(text, &end, 10);
      if (end == text || last < first) return false;
    }
    for (unsigned long i = first; i <= last && i < MASK_BITS; i++) mask[i / 64] |= (uint64_t)1 << (i % 64);
    if (*end != ',' && *end) return false;
    text = *end ? end + 1 : end;
  }
  return true;
}

/* The value after "key : " in /proc/cpuinfo; false if no line has the key. */
static bool detect_cpu_info(const char *text, const char *key, char *value, size_t bytes) {
  size_t n = strlen(key);
  for (const char *p = text; p; p = strchr(p, '\n')) {
    if (*p == '\n') p++;
    if (strncmp(p, key, n) != 0 || !strchr("\t :", p[n])) continue;
    const char *colon = strchr(p, ':');
    if (!colon) return false;
    colon += strspn(colon, ": \t");
    snprintf(value, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
    return true;
  }
  return false;
}

/* NCCL's spelling of architecture and vendor. */
static void detect_cpu_identify(const hk_detect_scan *s, hk_cpu_info *cpu, bool *is_virtual) {
  char text[8192], value[2048];
  hk_sysfs_text(s->sys, text, sizeof text, "/proc/cpuinfo");
  *is_virtual = hk_sysfs_has(s->sys, "/sys/hypervisor/type");
  if (detect_cpu_info(text, "vendor_id", value, sizeof value)) {
    snprintf(cpu->arch, sizeof cpu->arch, "x86_64");
    snprintf(cpu->vendor, sizeof cpu->vendor, "%.23s", value);
    if (detect_cpu_info(text, "cpu family", value, sizeof value)) cpu->family = atoi(value);
    if (detect_cpu_info(text, "model", value, sizeof value)) cpu->model = atoi(value);
    if (detect_cpu_info(text, "flags", value, sizeof value) && strstr(value, " hypervisor")) *is_virtual = true;
  } else if (detect_cpu_info(text, "CPU implementer", value, sizeof value)) {
    snprintf(cpu->arch, sizeof cpu->arch, "arm64");
    snprintf(cpu->vendor, sizeof cpu->vendor, "ARM");
  } else if (detect_cpu_info(text, "cpu", value, sizeof value) && strncmp(value, "POWER", 5) == 0) {
    snprintf(cpu->arch, sizeof cpu->arch, "ppc64");
    snprintf(cpu->vendor, sizeof cpu->vendor, "IBM");
  }
}

/* The processors that this process may use; all of them for a recorded machine. */
static void detect_cpu_allowed(const hk_detect_scan *s, uint64_t *mask) {
  memset(mask, 0xff, HK_CPU_MASK_WORDS * sizeof *mask);
  cpu_set_t set;
  if (!s->live || sched_getaffinity(0, sizeof set, &set) != 0) return;
  for (unsigned i = 0; i < MASK_BITS && i < CPU_SETSIZE; i++)
    if (!CPU_ISSET(i, &set)) mask[i / 64] &= ~((uint64_t)1 << (i % 64));
}

static unsigned detect_cpu_first_of(const uint64_t *mask) {
  for (int k = 0; k < HK_CPU_MASK_WORDS; k++)
    if (mask[k]) return (unsigned)k * 64 + (unsigned)__builtin_ctzll(mask[k]);
  return MASK_BITS;
}

/* Cores, not hardware threads: of the threads that share a core only the first one counts. */
static int detect_cpu_count_cores(const hk_detect_scan *s, const uint64_t *mask, const uint64_t *may) {
  int cores = 0;
  for (unsigned i = 0; i < MASK_BITS; i++) {
    if (!detect_cpu_has(mask, i) || !detect_cpu_has(may, i)) continue;
    char text[256];
    uint64_t siblings[HK_CPU_MASK_WORDS];
    if (hk_sysfs_text(s->sys, text, sizeof text, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", i) &&
        hk_cpu_list_parse(text, siblings)) {
      for (int k = 0; k < HK_CPU_MASK_WORDS; k++) siblings[k] &= may[k];
      if (detect_cpu_first_of(siblings) != i) continue;
    }
    cores++;
  }
  return cores;
}

/* The last-level caches whose first processor is in the mask. */
static float detect_cpu_count_cache(const hk_detect_scan *s, const uint64_t *mask) {
  double kib = 0;
  for (unsigned i = 0; i < MASK_BITS; i++) {
    if (!detect_cpu_has(mask, i)) continue;
    char text[256], size[32] = "", shared[256] = "";
    uint64_t sharers[HK_CPU_MASK_WORDS];
    for (int index = 3; index >= 2 && !size[0]; index--) {
      const char *at = "/sys/devices/system/cpu/cpu%u/cache/index%d/%s";
      if (!hk_sysfs_text(s->sys, text, sizeof text, at, i, index, "type") || strcmp(text, "Unified") != 0) continue;
      hk_sysfs_text(s->sys, size, sizeof size, at, i, index, "size");
      hk_sysfs_text(s->sys, shared, sizeof shared, at, i, index, "shared_cpu_list");
    }
    if (!size[0] || !hk_cpu_list_parse(shared, sharers) || detect_cpu_first_of(sharers) != i) continue;
    char *unit;
    double v = strtod(size, &unit);
    kib += *unit == 'M' ? v * 1024 : v;
  }
  return (float)(kib / 1024);
}

/* The part's figures from the table, scaled to the number of cores: a virtual machine has a part of a socket. */
static float detect_cpu_memory_rate(const hk_cpu_info *cpu, int cores, int nodes_of_socket) {
  const hk_cpu_part *best = hk_cpu_part_like(cpu);
  if (!best) return 0;
  float socket = best->memory_gbps / (float)(nodes_of_socket > 0 ? nodes_of_socket : 1);
  float movers = 12.0f * (float)cores; /* the most that one core can move */
  return cores > 0 && movers < socket ? movers : socket;
}

/* -1: unknown. */
static int detect_cpu_package_of(const hk_detect_scan *s, const uint64_t *mask) {
  long long package = -1;
  unsigned cpu = detect_cpu_first_of(mask);
  if (cpu < MASK_BITS)
    hk_sysfs_number(s->sys, &package, "/sys/devices/system/cpu/cpu%u/topology/physical_package_id", cpu);
  return (int)package;
}

static hk_status detect_cpu_add_cpu(hk_detect_scan *s, int numa, const uint64_t *mask, const hk_cpu_info *like) {
  uint32_t at;
  hk_status rc = hk_topo_add(s->t, HK_NODE_CPU, (uint64_t)(numa < 0 ? 0 : numa), &at);
  if (rc != HK_OK) return rc;
  hk_node *n = &s->t->nodes[at];
  n->numa = (int16_t)(numa < 0 ? 0 : numa);
  n->cpu = *like;
  memcpy(n->cpu.mask, mask, sizeof n->cpu.mask);
  return HK_OK;
}

static hk_status detect_cpu_nodes_of_sysfs(hk_detect_scan *s, const hk_cpu_info *like) {
  hk_status rc = HK_OK;
  char text[4096];
  uint64_t mask[HK_CPU_MASK_WORDS];
  char **names = hk_sysfs_list(s->sys, "/sys/devices/system/node");
  for (char **name = names; name && *name; name++) {
    int id;
    char rest;
    if (sscanf(*name, "node%d%c", &id, &rest) != 1) continue;
    /* Nodes without processors are memory alone, of expanders or of GPUs. */
    if (!hk_sysfs_text(s->sys, text, sizeof text, "/sys/devices/system/node/%s/cpulist", *name)) continue;
    if (!hk_cpu_list_parse(text, mask) || detect_cpu_is_empty(mask)) continue;
    HK_TRY(detect_cpu_add_cpu(s, id, mask, like), out);
  }
out:
  free(names);
  return rc;
}

static hk_status detect_cpu_one_node(hk_detect_scan *s, const hk_cpu_info *like) {
  char text[4096];
  uint64_t mask[HK_CPU_MASK_WORDS];
  if (!hk_sysfs_text(s->sys, text, sizeof text, "/sys/devices/system/cpu/online") || !hk_cpu_list_parse(text, mask) ||
      detect_cpu_is_empty(mask)) {
    detect_cpu_allowed(s, mask);
    if (!s->live) memset(mask, 0, sizeof mask), mask[0] = 1;
  }
  hk_status rc = detect_cpu_add_cpu(s, 0, mask, like);
  return rc == HK_OK
             ? hk_topo_remark(s->t, "NUMA nodes cannot be seen (/sys/devices/system/node): all processors count "
                                    "as one CPU")
             : rc;
}

/* Two NUMA nodes of one socket are linked inside the chip, as fast as the memory that they share. */
static hk_status detect_cpu_link_cpus(hk_detect_scan *s) {
  for (uint32_t a = 0; a < s->t->nnodes; a++)
    for (uint32_t b = a + 1; b < s->t->nnodes; b++) {
      const hk_cpu_info *x = &s->t->nodes[a].cpu, *y = &s->t->nodes[b].cpu;
      int package = detect_cpu_package_of(s, x->mask);
      float gbps = hk_cpu_link_gbps(x);
      if (package >= 0 && package == detect_cpu_package_of(s, y->mask) && x->memory_gbps / 2 > gbps)
        gbps = x->memory_gbps / 2;
      HK_OR_RETURN(hk_topo_link_usual(s->t, a, b, HK_EDGE_SYS, 1, gbps));
    }
  return HK_OK;
}

hk_status hk_scan_cpus(hk_detect_scan *s) {
  hk_status rc = HK_OK;
  hk_cpu_info like;
  uint64_t may[HK_CPU_MASK_WORDS];
  memset(&like, 0, sizeof like);
  detect_cpu_identify(s, &like, &s->machine);
  if (!hk_scan_hwloc_cpus(s, &rc)) HK_OR_RETURN(detect_cpu_nodes_of_sysfs(s, &like));
  HK_OR_RETURN(rc);
  if (s->t->nnodes == 0) HK_OR_RETURN(detect_cpu_one_node(s, &like));
  detect_cpu_allowed(s, may);
  for (uint32_t i = 0; i < s->t->nnodes; i++) {
    hk_cpu_info *cpu = &s->t->nodes[i].cpu;
    float cache = cpu->cache_mib; /* hwloc's value */
    uint64_t mask[HK_CPU_MASK_WORDS];
    memcpy(mask, cpu->mask, sizeof mask);
    *cpu = like;
    memcpy(cpu->mask, mask, sizeof mask);
    cpu->cores = detect_cpu_count_cores(s, mask, may);
    cpu->cache_mib = cache > 0 ? cache : detect_cpu_count_cache(s, mask);
  }
  for (uint32_t i = 0; i < s->t->nnodes; i++) {
    hk_cpu_info *cpu = &s->t->nodes[i].cpu;
    int mine = detect_cpu_package_of(s, cpu->mask), sharers = 0;
    for (uint32_t k = 0; k < s->t->nnodes; k++)
      if (mine < 0 ? k == i : detect_cpu_package_of(s, s->t->nodes[k].cpu.mask) == mine) sharers++;
    /* All cores, whatever this process may use: all processes of a host must get the same result. */
    cpu->memory_gbps = detect_cpu_memory_rate(cpu, detect_cpu_count_cores(s, cpu->mask, cpu->mask), sharers);
  }
  HK_OR_RETURN(detect_cpu_link_cpus(s));
  return rc;
}

uint32_t hk_scan_cpu_of(const hk_detect_scan *s, int numa) {
  for (uint32_t i = 0; i < s->t->nnodes; i++)
    if (s->t->nodes[i].kind == HK_NODE_CPU && s->t->nodes[i].numa == numa) return i;
  return 0; /* CPUs were added first */
}

int hk_scan_cpu_count(const hk_detect_scan *s) {
  int n = 0;
  while ((uint32_t)n < s->t->nnodes && s->t->nodes[n].kind == HK_NODE_CPU) n++;
  return n;
}
