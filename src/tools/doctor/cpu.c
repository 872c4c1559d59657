/* SPDX-License-Identifier: Apache-2.0 */
/* Processors and memory: limits by a container, a job or a launcher, and the clock rate. */
#include <stdlib.h>
#include <string.h>
#include "../../base/sysfs.h"
#include "../../topo/detect_scan.h" /* hk_cpu_list_parse */
#include "doctor.h"

enum { MASK_BITS = HK_CPU_MASK_WORDS * 64 };

static int cpu_count_bits(const uint64_t *mask) {
  int n = 0;
  for (int k = 0; k < HK_CPU_MASK_WORDS; k++) n += __builtin_popcountll(mask[k]);
  return n;
}

/* The list after "Cpus_allowed_list:" or "Mems_allowed_list:" in /proc/self/status. */
static bool cpu_allowed_list(const hk_doctor *d, const char *key, uint64_t *mask) {
  char text[8192], list[512];
  hk_sysfs_text(d->root, text, sizeof text, "/proc/self/status");
  const char *line = strstr(text, key);
  return line && sscanf(line + strlen(key), ": %511s", list) == 1 && hk_cpu_list_parse(list, mask);
}

static int cpu_online(const hk_doctor *d) {
  char text[1024];
  uint64_t mask[HK_CPU_MASK_WORDS];
  if (!hk_sysfs_text(d->root, text, sizeof text, "/sys/devices/system/cpu/online") || !hk_cpu_list_parse(text, mask))
    return 0;
  return cpu_count_bits(mask);
}

/* ---- cgroup ---- */

/* The path of this process's group in the hierarchy that has `controller`; "" names the unified one (version 2). */
static bool cpu_group_of(const hk_doctor *d, const char *controller, char *path, size_t bytes) {
  char text[4096];
  hk_sysfs_text(d->root, text, sizeof text, "/proc/self/cgroup");
  for (char *line = text, *next; line && *line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = '\0';
    char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL;
    if (!where) continue;
    *where++ = '\0';
    names++;
    bool match = !*controller && !*names;
    for (char *save = NULL, *name = strtok_r(names, ",", &save); name && *controller; name = strtok_r(NULL, ",", &save))
      match = match || strcmp(name, controller) == 0;
    if (match) {
      snprintf(path, bytes, "%s", where);
      return true;
    }
  }
  return false;
}

/* The smallest value of the file in the group and the groups above it. Inside a container the group's path is often the
 * host's path, which does not exist there; then the top of the mount is used. */
static double cpu_smallest(const hk_doctor *d, const char *mount, const char *group, const char *file,
                           double (*parse)(const hk_doctor *d, const char *folder, const char *text)) {
  char path[1024], folder[1100], text[128];
  double best = -1;
  snprintf(path, sizeof path, "%s", group);
  for (;;) {
    size_t n = strlen(path);
    while (n && path[n - 1] == '/') path[--n] = '\0';
    snprintf(folder, sizeof folder, "%s%s", mount, path);
    if (hk_sysfs_text(d->root, text, sizeof text, "%s/%s", folder, file)) {
      double v = parse(d, folder, text);
      if (v > 0 && (best < 0 || v < best)) best = v;
    }
    char *slash = strrchr(path, '/');
    if (!slash) return best;
    *slash = '\0';
  }
}

static double cpu_parse_cpu_max(const hk_doctor *d, const char *folder,
                                const char *text) { /* "200000 100000", "max 100000" */
  (void)d, (void)folder;
  double quota, period;
  return sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : -1;
}
static double cpu_parse_cfs(const hk_doctor *d, const char *folder, const char *text) {
  long long period = 0;
  double quota = atof(text);
  hk_sysfs_number(d->root, &period, "%s/cpu.cfs_period_us", folder);
  return quota > 0 && period > 0 ? quota / (double)period : -1;
}
static double cpu_parse_bytes(const hk_doctor *d, const char *folder, const char *text) {
  (void)d, (void)folder;
  double v = atof(text);             /* "max" is 0 */
  return v > 0 && v < 1e18 ? v : -1; /* version 1 writes a huge number for no limit */
}

void hk_doctor_limits(hk_doctor *d) {
  char group[1024], size[32];
  uint64_t mask[HK_CPU_MASK_WORDS];
  double cpus = -1, memory = -1;
  if (cpu_group_of(d, "", group, sizeof group)) {
    cpus = cpu_smallest(d, "/sys/fs/cgroup", group, "cpu.max", cpu_parse_cpu_max);
    memory = cpu_smallest(d, "/sys/fs/cgroup", group, "memory.max", cpu_parse_bytes);
  }
  if (cpus < 0 && cpu_group_of(d, "cpu", group, sizeof group))
    cpus = cpu_smallest(d, "/sys/fs/cgroup/cpu", group, "cpu.cfs_quota_us", cpu_parse_cfs);
  if (memory < 0 && cpu_group_of(d, "memory", group, sizeof group))
    memory = cpu_smallest(d, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", cpu_parse_bytes);
  int have = cpu_allowed_list(d, "Cpus_allowed_list", mask) ? cpu_count_bits(mask) : cpu_online(d);
  if (cpus > 0 && cpus < have)
    hk_doctor_say(
        d, HK_DOC_PROBLEM, "give whole processors instead: docker run --cpuset-cpus, Kubernetes' static CPU policy",
        "there is a quota of %.1f CPUs on %d processors: a process that has used its share is stopped for the "
        "rest of 100 ms, and all ranks wait for it",
        cpus, have);
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "no quota on the time of the processors");
  if (memory > 0 && memory < 1e9)
    hk_doctor_say(d, HK_DOC_NOTE, "docker run --memory=...",
                  "memory is limited to %s; shared memory counts too, and a process that exceeds the limit is killed",
                  hk_tool_bytes(size, (size_t)memory));
  else if (memory > 0)
    hk_doctor_say(d, HK_DOC_OK, NULL, "memory is limited to %s", hk_tool_bytes(size, (size_t)memory));
}

/* ---- NUMA ---- */

/* The number of CPU nodes with processors in the mask; *first is the lowest node's NUMA number. */
static int cpu_nodes_touched(const hk_topo *t, const uint64_t *mask, int *first) {
  int n = 0;
  for (uint32_t i = 0; i < t->first_of[HK_NODE_CPU + 1]; i++) {
    bool here = false;
    for (int k = 0; k < HK_CPU_MASK_WORDS; k++) here = here || (t->nodes[i].cpu.mask[k] & mask[k]);
    if (here && n++ == 0) *first = t->nodes[i].numa;
  }
  return n;
}

/* Reports if the process is bound to node `here` and no device of this kind is on it. */
static void cpu_check_near(hk_doctor *d, hk_node_kind kind, const char *what, int here) {
  const hk_topo *t = d->topo;
  char fix[256];
  int node = -1;
  for (uint32_t i = t->first_of[kind]; i < t->first_of[kind + 1]; i++) {
    if (t->nodes[i].numa < 0 || t->nodes[i].numa == here) return;
    if (node < 0) node = t->nodes[i].numa;
  }
  if (node >= 0)
    hk_doctor_say(d, HK_DOC_PROBLEM,
                  hk_doctor_fix(fix, "numactl --cpunodebind=%d --membind=%d, mpirun --bind-to numa", node, node),
                  "this process runs on NUMA node %d, and every %s that it sees is on another (node %d): all traffic "
                  "between them crosses the link between CPUs",
                  here, what, node);
}

void hk_doctor_numa(hk_doctor *d) {
  uint64_t cpus[HK_CPU_MASK_WORDS], memory[HK_CPU_MASK_WORDS];
  char fix[256];
  int first = 0, total = cpu_online(d);
  if (!d->topo || !cpu_allowed_list(d, "Cpus_allowed_list", cpus)) return;
  int mine = cpu_count_bits(cpus), all = (int)hk_topo_count(d->topo, HK_NODE_CPU),
      nodes = cpu_nodes_touched(d->topo, cpus, &first);
  if (mine == 1 && total > 1)
    hk_doctor_say(d, HK_DOC_NOTE, "mpirun --bind-to none (or --map-by slot:PE=2); srun --cpus-per-task=2",
                  "this process is bound to 1 of %d processors: helper threads share it with the rank", total);
  else if (mine < total)
    hk_doctor_say(d, HK_DOC_OK, NULL, "this process is bound to %d of %d processors, on %d of %d NUMA nodes", mine,
                  total, nodes, all);
  else
    hk_doctor_say(d, all > 1 ? HK_DOC_NOTE : HK_DOC_OK,
                  all > 1 ? "numactl --cpunodebind=N --membind=N, mpirun --bind-to numa" : NULL,
                  "this process may run on all %d processors%s", total,
                  all > 1 ? ": the kernel may move it away from its memory, its GPU and its NIC" : "");
  if (nodes == 1 && all > 1) {
    cpu_check_near(d, HK_NODE_GPU, "GPU", first);
    cpu_check_near(d, HK_NODE_NET, "network port", first);
  }
  long long balancing = 0;
  if (all > 1 && hk_sysfs_number(d->root, &balancing, "/proc/sys/kernel/numa_balancing") && balancing)
    hk_doctor_say(d, HK_DOC_NOTE, "sysctl -w kernel.numa_balancing=0",
                  "the kernel moves memory between NUMA nodes, and every move stops the process that uses it");
  /* Memory is allowed on none of the nodes whose processors are allowed. */
  if (nodes == 1 && all > 1 && cpu_allowed_list(d, "Mems_allowed_list", memory) && first < MASK_BITS &&
      !(memory[first / 64] >> (first % 64) & 1))
    hk_doctor_say(d, HK_DOC_PROBLEM, hk_doctor_fix(fix, "numactl --cpunodebind=%d --membind=%d", first, first),
                  "this process runs on NUMA node %d, but may take memory from other nodes only", first);
}

void hk_doctor_governor(hk_doctor *d) {
  int slow = 0, known = 0;
  char name[64] = "", first[64] = "";
  char **cpus = hk_sysfs_list(d->root, "/sys/devices/system/cpu");
  for (char **cpu = cpus; cpu && *cpu; cpu++) {
    if (!hk_sysfs_text(d->root, name, sizeof name, "/sys/devices/system/cpu/%s/cpufreq/scaling_governor", *cpu))
      continue;
    known++;
    if (strcmp(name, "performance") == 0) continue;
    if (slow++ == 0) snprintf(first, sizeof first, "%s", name);
  }
  free(cpus);
  if (!known) return; /* a virtual machine: the host decides */
  if (slow)
    hk_doctor_say(d, HK_DOC_NOTE, "cpupower frequency-set -g performance",
                  "%d of %d processors use the governor '%s': they speed up only after a time of load, and small "
                  "messages are too short for that",
                  slow, known, first);
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "processors run at full speed (governor performance)");
}
