/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin's devices. Finding them opens all RDMA devices, and NCCL asks often, so it is done once in a process. The
 * answer is the same for all its communicators. So are the open devices. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/fork.h"
#include "../base/param.h"
#include "../base/root.h"
#include "../transport/net/ib_card.h"
#include "../transport/net/ib_gdr.h"
#include "netplugin.h"

enum { SPEED_MBPS = 10000 }; /* of a device that does not report it */

static struct {
  int n;
  pair_device all[HK_IB_PORTS];
  const hk_ibv *api; /* NULL: no RDMA */
  int nports;
  char ports[HK_IB_PORTS][HK_IB_NAME]; /* the RDMA device of each port */
} found;
static pthread_once_t looked = PTHREAD_ONCE_INIT;
static struct {
  pthread_mutex_t lock;
  int users;
  hk_ib_card *all[HK_IB_PORTS]; /* one for each port; NULL: it cannot be opened */
} held = {.lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(held.lock);

/* `below` is a folder of /sys/class. */
static void set_pci(pair_device *d, const char *root, const char *below, const char *name) {
  char path[HK_ROOT_PATH];
  if (!hk_root_real(root, path, "/sys/class/%s/%s/device", below, name)) return;
  size_t n = strlen(path);
  if (n < sizeof d->pci) memcpy(d->pci, path, n + 1);
}

/* Without RDMA: the first interface of this host. */
static void add_interface(int memory) {
  hk_iface ifaces[32];
  int n = (int)HK_ARRAY_LENGTH(ifaces);
  pair_device *d = &found.all[found.n++];
  bool known = hk_ifaces(ifaces, &n, NULL) == HK_OK && n > 0;
  *d = (pair_device){.name = "hocket0", .guid = 1, .memory = memory, .speed = SPEED_MBPS, .rail = -1};
  if (known && ifaces[0].speed_mbps) d->speed = (int)ifaces[0].speed_mbps;
  if (known) set_pci(d, "", "net", ifaces[0].name);
}

/* "0c42:a103:0066:f0d4" */
static uint64_t guid_of(const char *device) {
  char text[32];
  uint64_t guid = 0;
  if (!hk_root_text(hk_ib_root(), text, sizeof text, "/sys/class/infiniband/%s/sys_image_guid", device)) return 0;
  for (char *at = text; *at; at += *at == ':') guid = guid << 16 | strtoul(at, &at, 16);
  return guid;
}

/* Ports of one card are adjacent, and together one device. */
static void add_port(const hk_ib_port *p, bool same_card, int memory) {
  pair_device *d = &found.all[found.n - same_card];
  if (same_card) {
    size_t used = strlen(d->name);
    snprintf(d->name + used, sizeof d->name - used, "+%.*s", HK_IB_NAME - 1, p->device);
    d->speed += (int)p->mbps;
    return;
  }
  *d = (pair_device){.port = p->number, .guid = guid_of(p->device), .memory = memory, .rail = p->rail};
  d->speed = (int)p->mbps;
  snprintf(d->name, sizeof d->name, "%.*s", HK_IB_NAME - 1, p->device);
  memcpy(d->device, p->device, sizeof d->device);
  set_pci(d, hk_ib_root(), "infiniband", p->device);
  found.n++;
}

static void look(void) {
  hk_ib_port ports[HK_IB_PORTS];
  bool dmabuf, address;
  char why[160];
  int near, n = 0;
  hk_ib_gpu_support(&dmabuf, &address); /* GPUs' memory is used over RDMA only, by the ways that its cards have */
  int memory = NET_PLUGIN_HOST_MEMORY | (address ? NET_PLUGIN_CUDA_MEMORY : 0) | (dmabuf ? NET_PLUGIN_DMABUF : 0);
  const hk_ibv *api = hk_param_int(HK_P_IB_DISABLE) ? NULL : hk_ibv_load(why, sizeof why);
  if (api) n = hk_ib_ports(ports, &near, hk_ibv_opens, (void *)(uintptr_t)api, why, sizeof why);
  found.api = api;
  found.nports = n;
  for (int i = 0; i < n; i++) {
    add_port(&ports[i], i > 0 && ports[i].card == ports[i - 1].card, memory);
    memcpy(found.ports[i], ports[i].device, HK_IB_NAME);
  }
  for (int i = 0; i < found.n; i++)
    if (!found.all[i].speed) found.all[i].speed = SPEED_MBPS;
  if (!n) add_interface(memory);
}

int pair_devices(void) {
  pthread_once(&looked, look);
  return found.n;
}

pair_device *pair_device_at(int i) {
  int n = pair_devices();
  return &found.all[i >= 0 && i < n ? i : 0];
}

void pair_cards_hold(void) {
  uint64_t heard;
  pair_devices();
  pthread_mutex_lock(&held.lock);
  for (int i = 0; i < found.nports && !held.users; i++)
    held.all[i] = hk_ib_card_open(found.api, found.ports[i], true, &heard);
  held.users++;
  pthread_mutex_unlock(&held.lock);
}

void pair_cards_release(void) {
  pthread_mutex_lock(&held.lock);
  held.users--;
  for (int i = 0; i < found.nports && !held.users; i++) hk_ib_card_close(found.api, held.all[i]);
  pthread_mutex_unlock(&held.lock);
}
