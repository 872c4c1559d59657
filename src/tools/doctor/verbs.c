/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether the RDMA ports can be used, and with which GIDs. Each device is opened, queried and given memory, as a
 * communicator does it. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include "../../base/param.h"
#include "../../base/sysfs.h"
#include "../../transport/net/ib/ib_port.h"
#include "../../transport/net/ib/ib_verbs.h"
#include "doctor.h"

enum { PINNED = 1 << 20 }; /* bytes that one direction of a connection registers */

/* Registers as much memory as a connection does. */
static bool verbs_try_memory(hk_doctor *d, const hk_ibv *api, hk_ibv_context *context, const char *device) {
  hk_ibv_pd *pd = api->alloc_pd(context);
  void *memory = mmap(NULL, PINNED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  hk_ibv_mr *mr = pd && memory != MAP_FAILED
                      ? api->reg_mr(pd, memory, PINNED, HK_IBV_ACCESS_LOCAL_WRITE | HK_IBV_ACCESS_REMOTE_WRITE)
                      : NULL;
  int err = errno;
  if (!mr)
    hk_doctor_say(d, HK_DOC_PROBLEM, "ulimit -l unlimited; LimitMEMLOCK=infinity; docker run --ulimit memlock=-1",
                  "%s takes no memory: registering 1 MiB fails: %s", device, strerror(err));
  if (mr) api->dereg_mr(mr);
  if (memory != MAP_FAILED) munmap(memory, PINNED);
  if (pd) api->dealloc_pd(pd);
  return mr != NULL;
}

static void verbs_try_port(hk_doctor *d, const hk_ibv *api, hk_ibv_context *context, const hk_ib_port *p) {
  hk_ibv_port_attr attr;
  bool ethernet = p->layer == HK_IBV_LAYER_ETHERNET;
  memset(&attr, 0, sizeof attr);
  if (api->query_port(context, p->number, &attr) != 0 || attr.active_mtu < 1 || attr.active_mtu > 5) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "look at the kernel's log: dmesg", "%s:%d cannot be queried", p->device,
                  p->number);
    return;
  }
  if (!verbs_try_memory(d, api, context, p->device)) return;
  bool small = ethernet && attr.active_mtu < attr.max_mtu && attr.active_mtu < 5;
  hk_doctor_say(d, small ? HK_DOC_NOTE : HK_DOC_OK,
                small ? "ip link set DEVICE mtu 9000, and the switch's ports alike" : NULL,
                "%s:%d opens and takes memory: %s, MTU %d%s", p->device, p->number, ethernet ? "RoCE" : "InfiniBand",
                128 << attr.active_mtu, small ? ", which could be larger" : "");
}

void hk_doctor_verbs(hk_doctor *d) {
  hk_ib_port ports[HK_IB_PORTS];
  char why[160] = "";
  int nnear, n, listed = 0;
  char **devices = d->live ? hk_sysfs_list(hk_ib_root(), "/sys/class/infiniband") : NULL;
  bool any = devices && devices[0];
  free(devices);
  if (!any) return;
  if (d->settings->IB_DISABLE) {
    hk_doctor_say(d, HK_DOC_NOTE, "unset NCCL_IB_DISABLE", "NCCL_IB_DISABLE=1: RDMA ports are not used");
    return;
  }
  n = hk_ib_ports(d->settings, ports, &nnear, NULL, NULL, why, sizeof why);
  if (n == 0) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "ibv_devinfo; look at NCCL_IB_HCA and at the cable", "no RDMA port is used: %s",
                  why);
    return;
  }
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  if (!api) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "apt-get install libibverbs1 ibverbs-providers",
                  "the RDMA ports cannot be used, so TCP is used: %s", why);
    return;
  }
  hk_ibv_device **list = api->get_device_list(&listed);
  for (int i = 0; i < n; i++) {
    hk_ibv_context *context = NULL;
    errno = ENODEV;
    for (int k = 0; k < listed && !context; k++)
      if (strcmp(list[k]->name, ports[i].device) == 0) context = api->open_device(list[k]);
    if (!context) {
      hk_doctor_say(d, HK_DOC_PROBLEM,
                    "ls -l /dev/infiniband; modprobe ib_uverbs; docker run --device /dev/infiniband; apt-get install "
                    "ibverbs-providers",
                    "%s cannot be opened: %s", ports[i].device, strerror(errno));
      continue;
    }
    verbs_try_port(d, api, context, &ports[i]);
    api->close_device(context);
  }
  if (list) api->free_device_list(list);
}

/* ---- GIDs ---- */

static const char *verbs_below(const hk_doctor *d) { return d->live ? hk_ib_root() : d->root; }

#define GIVE_ADDRESS "give its interface an IPv4 address: ip address add ..."

/* The provider's own choice, with the user's settings and without them. */
static void verbs_check_gids(hk_doctor *d, const char *device, int port) {
  static const hk_ib_gid_filter any = {.index = -1, .version = 2, .family = AF_UNSPEC};
  hk_ib_gid_filter filter = any;
  hk_ib_gid best[HK_IB_GIDS], mine[HK_IB_GIDS];
  char fix[256], now[40], without[40];
  if (d->live && hk_ib_gid_filter_of(d->settings, &filter) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "unset NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE", "%s", hk_last_error());
    return;
  }
  int nbest = hk_ib_gids(verbs_below(d), device, port, &any, best),
      n = hk_ib_gids(verbs_below(d), device, port, &filter, mine);
  if (!nbest || best[0].kind != HK_IB_GID_ROCE2) {
    hk_doctor_say(d, HK_DOC_PROBLEM, GIVE_ADDRESS "; ls /sys/class/infiniband/*/ports/1/gids",
                  "%s:%d has no GID of RoCE v2", device, port);
    return;
  }
  hk_ib_gid_words(&best[0], without);
  if (!n) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "unset NCCL_IB_GID_INDEX NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE",
                  "NCCL_IB_GID_INDEX, _ADDR_FAMILY and _ADDR_RANGE leave no GID of %s:%d; without them it is %d (%s)",
                  device, port, best[0].index, without);
    return;
  }
  hk_ib_gid_words(&mine[0], now);
  bool worse = hk_ib_gid_cost(&mine[0], any.version) > hk_ib_gid_cost(&best[0], any.version);
  bool local = IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)(const void *)mine[0].gid.raw);
  if (worse && filter.index >= 0)
    hk_doctor_say(d, HK_DOC_PROBLEM,
                  hk_doctor_fix(fix, "unset NCCL_IB_GID_INDEX, or export NCCL_IB_GID_INDEX=%d", best[0].index),
                  "NCCL_IB_GID_INDEX=%d is %s on %s:%d; index %d is better: %s", filter.index, now, device, port,
                  best[0].index, without);
  else if (worse)
    hk_doctor_say(
        d, local || mine[0].kind != HK_IB_GID_ROCE2 ? HK_DOC_NOTE : HK_DOC_OK,
        "unset NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_ROCE_VERSION_NUM",
        "%s:%d uses GID %d (%s), as NCCL_IB_ADDR_FAMILY, _ADDR_RANGE and _ROCE_VERSION_NUM want it; without them "
        "it is %d (%s)",
        device, port, mine[0].index, now, best[0].index, without);
  else
    hk_doctor_say(d, local ? HK_DOC_NOTE : HK_DOC_OK, local ? GIVE_ADDRESS : NULL, "%s:%d uses GID %d (%s)%s", device,
                  port, mine[0].index, now, local ? ", which reaches no other subnet" : "");
}

static void verbs_check_port(hk_doctor *d, const char *device, int port) {
  char layer[32] = "", why[160];
  long long state = 0;
  hk_sysfs_number(verbs_below(d), &state, "/sys/class/infiniband/%s/ports/%d/state", device, port);
  hk_sysfs_text(verbs_below(d), layer, sizeof layer, "/sys/class/infiniband/%s/ports/%d/link_layer", device, port);
  if (!hk_ib_serves(verbs_below(d), device, why, sizeof why))
    hk_doctor_say(d, HK_DOC_NOTE, NULL, "%s:%d is not used: %s", device, port, why);
  else if (state != 4)
    hk_doctor_say(d, HK_DOC_NOTE, "ibstat; look at the cable and the switch's port; ip link set ... up",
                  "%s:%d is down", device, port);
  else if (strcmp(layer, "Ethernet") == 0)
    verbs_check_gids(d, device, port);
  else
    hk_doctor_say(d, HK_DOC_OK, NULL, "%s:%d is InfiniBand and uses GID 0", device, port);
}

void hk_doctor_gids(hk_doctor *d) {
  char **devices = hk_sysfs_list(verbs_below(d), "/sys/class/infiniband");
  for (char **device = devices; device && *device; device++) {
    char **ports = hk_sysfs_list(verbs_below(d), "/sys/class/infiniband/%s/ports", *device);
    for (char **port = ports; port && *port; port++) verbs_check_port(d, *device, atoi(*port));
    free(ports);
  }
  free(devices);
}
