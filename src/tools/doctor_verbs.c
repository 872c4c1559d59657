/* SPDX-License-Identifier: Apache-2.0 */
/* Can the RDMA ports be used?  Each device is opened, asked and given memory, as a communicator would do it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../base/param.h"
#include "../base/root.h"
#include "../transport/net/ib_port.h"
#include "../transport/net/ib_verbs.h"
#include "doctor.h"

enum { PINNED = 1 << 20 }; /* what a direction of a connection registers */

/* Registers as much memory as a connection does. */
static bool try_memory(hk_doctor *d, const hk_ibv *api, hk_ibv_context *context, const char *device) {
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

static void try_port(hk_doctor *d, const hk_ibv *api, hk_ibv_context *context, const hk_ib_port *p) {
  hk_ibv_port_attr attr;
  bool ethernet = p->layer == HK_IBV_LAYER_ETHERNET;
  memset(&attr, 0, sizeof attr);
  if (api->query_port(context, p->number, &attr) != 0 || attr.active_mtu < 1 || attr.active_mtu > 5) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "look at the kernel's log: dmesg", "%s:%d cannot be asked", p->device, p->number);
    return;
  }
  if (!try_memory(d, api, context, p->device)) return;
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
  char **devices = d->live ? hk_root_list(d->root, "/sys/class/infiniband") : NULL;
  bool any = devices && devices[0];
  free(devices);
  if (!any) return;
  if (hk_param_int(HK_P_IB_DISABLE)) {
    hk_doctor_say(d, HK_DOC_NOTE, "unset NCCL_IB_DISABLE", "NCCL_IB_DISABLE=1: RDMA ports are not used");
    return;
  }
  n = hk_ib_ports(ports, &nnear, why, sizeof why);
  if (n == 0) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "ibv_devinfo; look at NCCL_IB_HCA and at the cable", "no RDMA port is used: %s",
                  why);
    return;
  }
  const hk_ibv *api = hk_ibv_load(why, sizeof why);
  if (!api) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "apt-get install libibverbs1 ibverbs-providers",
                  "the RDMA ports cannot be used, and TCP takes their place: %s", why);
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
    try_port(d, api, context, &ports[i]);
    api->close_device(context);
  }
  if (list) api->free_device_list(list);
}
