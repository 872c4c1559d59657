/* SPDX-License-Identifier: Apache-2.0 */
/* The PCI tree from sysfs. Only paths to GPUs and network ports are kept, and only bridges at which paths divide: a
 * root port with one device below it is part of the device's link. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/sysfs.h"
#include "detect_scan.h"
#include "facts.h"

#define DEVICES "/sys/bus/pci/devices"
enum { DEEP = 32 };

static int detect_pci_by_id(const void *a, const void *b) {
  const hk_pci_seen *x = a, *y = b;
  return x->id < y->id ? -1 : x->id > y->id;
}

int hk_scan_pci_find(const hk_detect_scan *s, uint64_t id) {
  int low = 0, high = s->npci - s->invented;
  for (int i = high; i < s->npci; i++)
    if (s->pci[i].id == id) return i;
  while (low < high) {
    int middle = (low + high) / 2;
    if (s->pci[middle].id == id) return middle;
    if (s->pci[middle].id < id)
      low = middle + 1;
    else
      high = middle;
  }
  return -1;
}

/* The index of the last PCI address but `skip` in a path, -1 if there is none. */
static int detect_pci_address_in(const hk_detect_scan *s, const char *path, int skip) {
  char text[HK_SYSFS_PATH];
  snprintf(text, sizeof text, "%s", path);
  for (char *slash; (slash = strrchr(text, '/')) != NULL; *slash = '\0') {
    uint64_t id;
    if (hk_bus_id_parse(slash + 1, &id) && skip-- == 0) return hk_scan_pci_find(s, id);
  }
  return -1;
}

int hk_scan_pci_of_path(const hk_detect_scan *s, const char *path) { return detect_pci_address_in(s, path, 0); }

static void detect_pci_read_entry(hk_detect_scan *s, hk_pci_seen *p, const char *name) {
  long long v;
  char link[64];
  p->node = HK_NO_NODE;
  p->parent = -1;
  p->numa = -1;
  if (hk_sysfs_number(s->sys, &v, DEVICES "/%s/class", name)) p->class_code = (uint32_t)v & 0xffffff;
  if (hk_sysfs_number(s->sys, &v, DEVICES "/%s/vendor", name)) p->vendor = (uint32_t)v & 0xffff;
  if (hk_sysfs_number(s->sys, &v, DEVICES "/%s/numa_node", name)) p->numa = (int)v;
  if (hk_sysfs_link(s->sys, link, sizeof link, DEVICES "/%s/physfn", name)) hk_bus_id_parse(link, &p->function);
}

/* A broken recording may have links that form a circle: the walk must not follow them for ever. */
static void detect_pci_cut_circles(hk_detect_scan *s) {
  for (int i = 0; i < s->npci; i++) {
    int steps = 0;
    for (int up = i; up >= 0 && steps <= DEEP; up = s->pci[up].parent) steps++;
    if (steps > DEEP) s->pci[i].parent = -1;
  }
}

hk_status hk_scan_pci(hk_detect_scan *s) {
  hk_status rc = HK_OK;
  char **names = hk_sysfs_list(s->sys, DEVICES);
  int n = 0;
  while (names && names[n]) n++;
  if (n == 0) {
    rc = hk_topo_remark(s->t, "PCI devices cannot be seen (" DEVICES "): which devices share links is not known");
    goto out;
  }
  for (int i = 0; i < n; i++) {
    uint64_t id;
    if (!hk_bus_id_parse(names[i], &id)) continue;
    if (!HK_RESERVE_NEXT(s->pci, s->npci)) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for %d PCI devices", n), out);
    s->pci[s->npci] = (hk_pci_seen){.id = id};
    detect_pci_read_entry(s, &s->pci[s->npci++], names[i]);
  }
  qsort(s->pci, (size_t)s->npci, sizeof *s->pci, detect_pci_by_id);
  for (int i = 0; i < n; i++) {
    uint64_t id;
    char path[HK_SYSFS_PATH];
    if (!hk_bus_id_parse(names[i], &id) || !hk_sysfs_real(s->sys, path, DEVICES "/%s", names[i])) continue;
    hk_pci_seen *p = &s->pci[hk_scan_pci_find(s, id)];
    p->parent = detect_pci_address_in(s, path, 1);
  }
  detect_pci_cut_circles(s);
out:
  free(names);
  return rc;
}

static void detect_pci_read_link(hk_detect_scan *s, const char *name, const char *which, float *gts, int *width) {
  char text[64];
  long long lanes;
  *gts = 0;
  *width = 0;
  /* "16.0 GT/s PCIe"; "Unknown" if a hypervisor hides it. 0 and 255 lanes mean unknown too. */
  if (hk_sysfs_text(s->sys, text, sizeof text, DEVICES "/%s/%s_link_speed", name, which)) *gts = strtof(text, NULL);
  if (hk_sysfs_number(s->sys, &lanes, DEVICES "/%s/%s_link_width", name, which) && lanes > 0 && lanes <= 32)
    *width = (int)lanes;
  if (!(*gts > 0 && *gts < 1000)) *gts = 0;
}

static void detect_pci_read(hk_detect_scan *s, int i) {
  hk_pci_seen *p = &s->pci[i];
  char name[24];
  long long v;
  if (p->read || p->made_up) return;
  p->read = true;
  hk_bus_id_format(p->id, name);
  p->info.class_code = p->class_code;
  p->info.vendor = (uint16_t)p->vendor;
  if (hk_sysfs_number(s->sys, &v, DEVICES "/%s/device", name)) p->info.device = (uint16_t)v;
  if (hk_sysfs_number(s->sys, &v, DEVICES "/%s/subsystem_vendor", name)) p->info.subvendor = (uint16_t)v;
  if (hk_sysfs_number(s->sys, &v, DEVICES "/%s/subsystem_device", name)) p->info.subdevice = (uint16_t)v;
  detect_pci_read_link(s, name, "current", &p->info.gts, &p->info.width);
  detect_pci_read_link(s, name, "max", &p->info.max_gts, &p->info.max_width);
  /* The other end of the link may be slower: then the link is not downgraded. */
  if (p->parent >= 0) {
    float gts;
    int width;
    hk_bus_id_format(s->pci[p->parent].id, name);
    detect_pci_read_link(s, name, "max", &gts, &width);
    if (gts > 0 && gts < p->info.max_gts) p->info.max_gts = gts;
    if (width > 0 && width < p->info.max_width) p->info.max_width = width;
  }
}

hk_status hk_scan_pci_invent(hk_detect_scan *s, uint64_t id, uint32_t class_code, int *out) {
  if (!HK_RESERVE_NEXT(s->pci, s->npci)) return HK_FAIL_ERRNO("no memory for a PCI device");
  /* Appended out of order, because other tables hold indices. */
  s->pci[s->npci] = (hk_pci_seen){.id = id,
                                  .parent = -1,
                                  .numa = -1,
                                  .class_code = class_code,
                                  .info = {.class_code = class_code},
                                  .read = true,
                                  .made_up = true,
                                  .node = HK_NO_NODE};
  *out = s->npci++;
  s->invented++;
  return HK_OK;
}

void hk_scan_pci_keep(hk_detect_scan *s, int i) {
  if (s->pci[i].kept) return;
  s->pci[i].kept = true;
  for (int up = s->pci[i].parent, depth = 0; up >= 0 && depth < DEEP; up = s->pci[up].parent, depth++) {
    /* Above the first bridge that already leads to another device, there is no new branch. */
    if (s->pci[up].branches++ > 0) break;
  }
}

/* GPUs slow their link down while idle and speed it up with the first copy, so the best speed counts. Missing lanes
 * stay missing. */
static bool detect_pci_sleeps(const hk_pci_seen *p) {
  return p->class_code >> 16 == 0x03 || p->class_code >> 16 == 0x12;
}

static hk_status detect_pci_remark_slow(hk_detect_scan *s, const hk_pci_seen *p) {
  char name[24];
  const hk_pci_info *i = &p->info;
  bool slow = i->gts > 0 && i->max_gts > i->gts && !detect_pci_sleeps(p),
       narrow = i->width > 0 && i->max_width > i->width;
  if (!slow && !narrow) return HK_OK;
  hk_bus_id_format(p->id, name);
  return hk_topo_remark(s->t,
                        "the link of %s runs at %g GT/s x%d, below its best of %g GT/s x%d: reseat the card, look at "
                        "its slot and riser and at the firmware's settings",
                        name, (double)i->gts, i->width, (double)i->max_gts, i->max_width);
}

/* GB/s of the link above a device; 0: unknown. */
static float detect_pci_link_rate(hk_detect_scan *s, int i) {
  detect_pci_read(s, i);
  const hk_pci_seen *p = &s->pci[i];
  float gts = detect_pci_sleeps(p) && p->info.max_gts > 0 ? p->info.max_gts : p->info.gts;
  return hk_pci_gbps(gts, p->info.width > 0 ? p->info.width : p->info.max_width);
}

/* Goes up from a device to the next device that has a node, or past the root (-1). *rate: the slowest link on the
 * way. */
static int detect_pci_climb(hk_detect_scan *s, int i, float *rate) {
  *rate = detect_pci_link_rate(s, i);
  int up = s->pci[i].parent;
  for (int depth = 0; up >= 0 && s->pci[up].branches < 2 && depth < DEEP; up = s->pci[up].parent, depth++) {
    float here = detect_pci_link_rate(s, up);
    if (here > 0 && (*rate <= 0 || here < *rate)) *rate = here;
  }
  return up;
}

static int detect_pci_numa_of(hk_detect_scan *s, int i) {
  int at = i;
  for (int depth = 0; at >= 0 && depth < DEEP; at = s->pci[at].parent, depth++)
    if (s->pci[at].numa >= 0) return s->pci[at].numa;
  /* hwloc takes milliseconds. So it is not asked if there is only one CPU, nor for devices that sysfs does not show,
   * because hwloc uses sysfs, too. */
  return s->pci[i].made_up || hk_scan_cpu_count(s) == 1 ? -1 : hk_scan_hwloc_numa(s, s->pci[i].id);
}

/* A virtual machine shows no speeds. No machine in use today has less than the third generation. */
static float detect_pci_assumed_rate(const hk_detect_scan *s, const hk_pci_seen *p) {
  int gen = 3;
  for (int i = 0; i < s->ngpu; i++)
    if (&s->pci[s->gpu[i].pci] == p)
      for (unsigned k = 0; k < hk_gpu_part_count; k++)
        if (hk_gpu_parts[k].sm == s->gpu[i].sm && s->gpu[i].sm > 0) {
          gen = hk_gpu_parts[k].pci_gen;
          break;
        }
  return hk_pci_gbps(hk_pci_gts(gen), 16);
}

hk_status hk_scan_pci_place(hk_detect_scan *s, int i, hk_node_kind kind, uint32_t *node) {
  float rate;
  uint32_t above;
  *node = s->pci[i].node;
  if (*node != HK_NO_NODE) return HK_OK;
  int up = detect_pci_climb(s, i, &rate), numa = detect_pci_numa_of(s, i);
  hk_pci_seen *p = &s->pci[i];
  if (up >= 0)
    HK_OR_RETURN(hk_scan_pci_place(s, up, HK_NODE_PCI, &above));
  else
    above = hk_scan_cpu_of(s, numa), s->no_numa += numa < 0;
  HK_OR_RETURN(hk_topo_add(s->t, kind, p->id, node));
  s->t->nodes[*node].numa = (int16_t)(numa >= 0 ? numa : s->t->nodes[above].numa);
  s->t->nodes[*node].pci = p->info;
  p->node = *node;
  if (rate <= 0) {
    rate = detect_pci_assumed_rate(s, p);
    if (!p->made_up) s->no_link_speed++;
  }
  HK_OR_RETURN(detect_pci_remark_slow(s, p));
  return hk_topo_link_usual(s->t, *node, above, HK_EDGE_PCI, 1, rate);
}
