/* SPDX-License-Identifier: Apache-2.0 */
/* Machines for tests: small /sys and /proc trees below a scratch folder.  Calls build up one machine; paths of PCI
 * devices are written as in /sys/devices, "0000:00:01.0/0000:01:00.0" for a device below a root port. */
#ifndef HK_TEST_FAKE_MACHINE_H
#define HK_TEST_FAKE_MACHINE_H
#include <stdarg.h>
#include <sys/stat.h>
#include "scratch.h"

static inline void fm_folders(const char *path) {
  char part[1024];
  for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
    snprintf(part, sizeof part, "%s/%.*s", scratch_folder, (int)(slash - path), path);
    mkdir(part, 0755);
  }
}
/* Writes a file, with the folders above it; `path` has no slash at its beginning. */
__attribute__((format(printf, 2, 3))) static inline void fm_file(const char *path, const char *format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fm_folders(path);
  scratch_write(path, text);
}
static inline void fm_link(const char *path, const char *target) {
  char full[1024];
  fm_folders(path);
  snprintf(full, sizeof full, "%s/%s", scratch_folder, path);
  ck_assert_int_eq(symlink(target, full), 0);
}

typedef enum fm_cpu_kind { FM_INTEL, FM_AMD, FM_ARM } fm_cpu_kind;
/* `nodes` NUMA nodes with `cpus` processors each, of `sockets` sockets; two hardware threads a core with `smt`. */
static inline void fm_cpus(fm_cpu_kind kind, int nodes, int cpus, int sockets, int smt) {
  char path[256];
  const char *text = kind == FM_ARM ? "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
                     : kind == FM_AMD
                         ? "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu vme\n"
                         : "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: X\n"
                           "flags\t\t: fpu vme\n";
  fm_file("proc/cpuinfo", "%s", text);
  fm_file("sys/devices/system/cpu/online", "0-%d\n", nodes * cpus - 1);
  for (int n = 0; n < nodes; n++) {
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/cpulist", n);
    fm_file(path, "%d-%d\n", n * cpus, (n + 1) * cpus - 1);
  }
  for (int i = 0; i < nodes * cpus; i++) {
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/physical_package_id", i);
    fm_file(path, "%d\n", i / cpus * sockets / nodes);
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
    if (smt)
      fm_file(path, "%d-%d\n", i & ~1, i | 1);
    else
      fm_file(path, "%d\n", i);
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/cache/index3/type", i);
    fm_file(path, "Unified\n");
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/cache/index3/size", i);
    fm_file(path, "32768K\n");
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", i);
    fm_file(path, "%d-%d\n", i / cpus * cpus, (i / cpus + 1) * cpus - 1);
  }
}

typedef struct fm_pci_info {
  unsigned class_code, vendor;
  int numa;          /* -1 is written as such */
  const char *speed; /* "32.0 GT/s PCIe"; NULL: no link files */
  int width;
  const char *max_speed; /* NULL: as speed */
  int max_width;         /* 0: as width */
} fm_pci_info;
/* Gives the device's folder, below the root. */
static inline const char *fm_pci(const char *path, fm_pci_info p) {
  static char folder[512];
  char file[600], target[600];
  const char *last = strrchr(path, '/');
  const char *name = last ? last + 1 : path;
  snprintf(folder, sizeof folder, "sys/devices/pci%.7s/%s", path, path);
#define FM_ENTRY(entry, ...)                                                                                           \
  do {                                                                                                                 \
    snprintf(file, sizeof file, "%s/" entry, folder);                                                                  \
    fm_file(file, __VA_ARGS__);                                                                                        \
  } while (0)
  FM_ENTRY("class", "0x%06x\n", p.class_code);
  FM_ENTRY("vendor", "0x%04x\n", p.vendor);
  FM_ENTRY("device", "0x1234\n");
  FM_ENTRY("numa_node", "%d\n", p.numa);
  if (p.speed) {
    FM_ENTRY("current_link_speed", "%s\n", p.speed);
    FM_ENTRY("current_link_width", "%d\n", p.width);
    FM_ENTRY("max_link_speed", "%s\n", p.max_speed ? p.max_speed : p.speed);
    FM_ENTRY("max_link_width", "%d\n", p.max_width ? p.max_width : p.width);
  }
#undef FM_ENTRY
  snprintf(file, sizeof file, "sys/bus/pci/devices/%s", name);
  snprintf(target, sizeof target, "../../../devices/pci%.7s/%s", path, path);
  fm_link(file, target);
  return folder;
}

/* An RDMA device with one port on the PCI device in `folder`, which fm_pci gave. */
static inline void fm_rdma(const char *folder, const char *name, const char *rate, const char *state,
                           const char *layer) {
  char file[600], target[600];
#define FM_ENTRY(entry, ...)                                                                                           \
  do {                                                                                                                 \
    snprintf(file, sizeof file, "%s/infiniband/%s/" entry, folder, name);                                              \
    fm_file(file, __VA_ARGS__);                                                                                        \
  } while (0)
  FM_ENTRY("node_guid", "0c42:a103:00c4:1d2e\n");
  FM_ENTRY("ports/1/state", "%s\n", state);
  FM_ENTRY("ports/1/rate", "%s\n", rate);
  FM_ENTRY("ports/1/link_layer", "%s\n", layer);
#undef FM_ENTRY
  snprintf(file, sizeof file, "sys/class/infiniband/%s", name);
  snprintf(target, sizeof target, "../../../%s/infiniband/%s", folder, name);
  fm_link(file, target);
}

/* A network interface; folder NULL: one without a device. */
static inline void fm_iface(const char *folder, const char *name, const char *state, int speed) {
  char file[700], target[700], base[600];
  if (folder)
    snprintf(base, sizeof base, "%s/net/%s", folder, name);
  else
    snprintf(base, sizeof base, "sys/devices/virtual/net/%s", name);
  snprintf(file, sizeof file, "%s/operstate", base);
  fm_file(file, "%s\n", state);
  snprintf(file, sizeof file, "%s/speed", base);
  fm_file(file, "%d\n", speed);
  if (folder) {
    snprintf(file, sizeof file, "%s/device", base);
    fm_link(file, "../..");
  }
  snprintf(file, sizeof file, "sys/class/net/%s", name);
  snprintf(target, sizeof target, "../../../%s", base);
  fm_link(file, target);
}
#endif
