/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA nodes, caches and the CPU of each PCI device from hwloc, if it is installed: hwloc knows machines whose firmware
 * gives sysfs no values or wrong ones. Building this needs its header, running it only its library. */
#include <string.h>
#include "../base/fork.h"
#include "../base/log.h"
#include "detect_scan.h"

#if defined(__has_include)
#if __has_include(<hwloc.h>)
#define HAVE_HWLOC 1
#endif
#endif

#ifndef HAVE_HWLOC
bool hk_scan_hwloc_cpus(hk_detect_scan *s, hk_status *rc) {
  (void)s, (void)rc;
  return false;
}
int hk_scan_hwloc_numa(hk_detect_scan *s, uint64_t bus_id) {
  (void)s, (void)bus_id;
  return -1;
}
void hk_scan_hwloc_end(hk_detect_scan *s) { (void)s; }
#else
#include <hwloc.h>
#include <pthread.h>
#include "../base/dl.h"

#define HWLOC_CALLS(NEED, MAY)                                                                                         \
  NEED(unsigned, get_api_version, (void), "hwloc_get_api_version")                                                     \
  NEED(int, init, (hwloc_topology_t *), "hwloc_topology_init")                                                         \
  NEED(int, load, (hwloc_topology_t), "hwloc_topology_load")                                                           \
  NEED(void, destroy, (hwloc_topology_t), "hwloc_topology_destroy")                                                    \
  NEED(int, set_flags, (hwloc_topology_t, unsigned long), "hwloc_topology_set_flags")                                  \
  NEED(int, set_io_types_filter, (hwloc_topology_t, enum hwloc_type_filter_e), "hwloc_topology_set_io_types_filter")   \
  NEED(hwloc_obj_t, get_obj_by_depth, (hwloc_topology_t, int, unsigned), "hwloc_get_obj_by_depth")                     \
  NEED(int, bitmap_isset, (hwloc_const_bitmap_t, unsigned), "hwloc_bitmap_isset")                                      \
  NEED(int, bitmap_intersects, (hwloc_const_bitmap_t, hwloc_const_bitmap_t), "hwloc_bitmap_intersects")                \
  NEED(int, bitmap_weight, (hwloc_const_bitmap_t), "hwloc_bitmap_weight")
typedef struct api {
  HWLOC_CALLS(HK_DL_MEMBER, HK_DL_MEMBER)
} api;
static const hk_dl_symbol symbols[] = {HWLOC_CALLS(HK_DL_NEED, HK_DL_MAY)};
/* Global because the loaded library belongs to the process. */
static api hwloc;
static hk_dl library = {.files = {"libhwloc.so.15"},
                        .loss = "CPUs and PCI are looked up in sysfs alone",
                        .symbols = symbols,
                        .nsymbols = HK_ARRAY_LENGTH(symbols),
                        .table = &hwloc,
                        .subs = HK_SUB_GRAPH};

/* hwloc uses libudev, whose global state has no lock: ranks that are threads must do this one after another. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(looking);

void hk_scan_hwloc_end(hk_detect_scan *s) {
  if (s->hwloc) hwloc.destroy(s->hwloc);
  s->hwloc = NULL;
}

/* With `devices` it reads the configuration of each PCI device, which a hypervisor may answer slowly: the first look is
 * without. */
static bool detect_hwloc_open_topology(hk_detect_scan *s, bool devices) {
  hwloc_topology_t t;
  if (!s->live || (s->flags & HK_DETECT_NO_HWLOC) || !hk_dl_load(&library)) return false;
  if (hwloc.get_api_version() >> 16 != HWLOC_API_VERSION >> 16 || hwloc.init(&t) != 0) return false;
  /* The whole machine, because all ranks of a host must get the same result. Which part this process may use is read
   * elsewhere. */
  hwloc.set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (devices) hwloc.set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL);
  pthread_mutex_lock(&looking);
  int failed = hwloc.load(t);
  pthread_mutex_unlock(&looking);
  if (failed) {
    hwloc.destroy(t);
    return false;
  }
  hk_scan_hwloc_end(s);
  s->hwloc = t;
  s->hwloc_devices = devices;
  return true;
}

static float detect_hwloc_cache_of(hwloc_topology_t t, hwloc_const_cpuset_t set, int depth) {
  float mib = 0;
  hwloc_obj_t cache;
  for (unsigned i = 0; (cache = hwloc.get_obj_by_depth(t, depth, i)) != NULL; i++)
    if (cache->cpuset && hwloc.bitmap_intersects(cache->cpuset, set))
      mib += (float)((double)cache->attr->cache.size / (1 << 20));
  return mib;
}

/* The depth of the last-level cache, searched from the top; -1: there is none. */
static int detect_hwloc_cache_depth(hwloc_topology_t t) {
  hwloc_obj_t o;
  for (int depth = 0; (o = hwloc.get_obj_by_depth(t, depth, 0)) != NULL; depth++)
    if (o->type >= HWLOC_OBJ_L2CACHE && o->type <= HWLOC_OBJ_L5CACHE) return depth;
  return -1;
}

bool hk_scan_hwloc_cpus(hk_detect_scan *s, hk_status *rc) {
  hwloc_obj_t numa;
  uint32_t at;
  *rc = HK_OK;
  if (!detect_hwloc_open_topology(s, false)) return false;
  hwloc_topology_t t = s->hwloc;
  int cache = detect_hwloc_cache_depth(t);
  for (unsigned i = 0; (numa = hwloc.get_obj_by_depth(t, HWLOC_TYPE_DEPTH_NUMANODE, i)) != NULL; i++) {
    /* Nodes without processors are memory alone, of expanders or of GPUs. */
    if (!numa->cpuset || hwloc.bitmap_weight(numa->cpuset) <= 0 || numa->os_index > INT16_MAX) continue;
    bool twice = false; /* fast and slow memory of the same processors: only the first node counts */
    for (uint32_t k = 0; k < s->t->nnodes && !twice; k++)
      for (unsigned b = 0; b < HK_CPU_MASK_WORDS * 64 && !twice; b++)
        twice = (s->t->nodes[k].cpu.mask[b / 64] >> (b % 64) & 1) && hwloc.bitmap_isset(numa->cpuset, b);
    if (twice) continue;
    if ((*rc = hk_topo_add(s->t, HK_NODE_CPU, numa->os_index, &at)) != HK_OK) return true;
    hk_node *n = &s->t->nodes[at];
    n->numa = (int16_t)numa->os_index;
    for (unsigned b = 0; b < HK_CPU_MASK_WORDS * 64; b++)
      if (hwloc.bitmap_isset(numa->cpuset, b)) n->cpu.mask[b / 64] |= (uint64_t)1 << (b % 64);
    if (cache >= 0) n->cpu.cache_mib = detect_hwloc_cache_of(t, numa->cpuset, cache);
  }
  return s->t->nnodes > 0;
}

int hk_scan_hwloc_numa(hk_detect_scan *s, uint64_t id) {
  hwloc_obj_t o;
  if (!s->hwloc || (!s->hwloc_devices && !detect_hwloc_open_topology(s, true))) return -1;
  for (unsigned i = 0; (o = hwloc.get_obj_by_depth(s->hwloc, HWLOC_TYPE_DEPTH_PCI_DEVICE, i)) != NULL; i++) {
    const struct hwloc_pcidev_attr_s *p = &o->attr->pcidev;
    uint64_t here = (uint64_t)p->domain << 20 | (uint64_t)p->bus << 12 | (uint64_t)p->dev << 4 |
                    (uint64_t)(p->func & 0xf);
    if (here != id) continue;
    while (o && !o->cpuset) o = o->parent; /* up to an object that has processors */
    for (uint32_t k = 0; o && k < s->t->nnodes; k++) {
      const hk_node *n = &s->t->nodes[k];
      /* The CPU is known only if all processors of the object belong to one CPU. */
      int inside = 0;
      for (unsigned b = 0; b < HK_CPU_MASK_WORDS * 64; b++)
        inside += (n->cpu.mask[b / 64] >> (b % 64) & 1) && hwloc.bitmap_isset(o->cpuset, b);
      if (n->kind == HK_NODE_CPU && inside > 0 && inside == hwloc.bitmap_weight(o->cpuset)) return n->numa;
    }
    return -1;
  }
  return -1;
}
#endif
