/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs' memory which RDMA cards reach: found by registering some of it, pair by pair. */
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../topo/paths.h"
#include "../transport/net/ib_gdr.h"
#include "../transport/net/ib_port.h"
#include "doctor.h"

enum { WORDS = 320 };

typedef struct cards {
  const hk_ibv *api;
  hk_ib_port port[HK_IB_PORTS]; /* one of each device */
  hk_ibv_context *context[HK_IB_PORTS];
  int n;
} cards;

static void open_cards(cards *c) {
  hk_ib_port ports[HK_IB_PORTS];
  char why[160];
  int nnear, listed = 0, n = hk_param_int(HK_P_IB_DISABLE) ? 0 : hk_ib_ports(ports, &nnear, why, sizeof why);
  if (n == 0 || !(c->api = hk_ibv_load(why, sizeof why))) return; /* the check verbs says why */
  hk_ibv_device **list = c->api->get_device_list(&listed);
  for (int i = 0; i < n; i++) {
    bool seen = false;
    for (int k = 0; k < c->n; k++) seen = seen || strcmp(c->port[k].device, ports[i].device) == 0;
    for (int k = 0; k < listed && !seen; k++) {
      if (strcmp(list[k]->name, ports[i].device) != 0) continue;
      c->port[c->n] = ports[i];
      c->context[c->n] = c->api->open_device(list[k]);
      if (c->context[c->n]) c->n++;
      break;
    }
  }
  if (list) c->api->free_device_list(list);
}

/* The class of the path between a GPU and a card, HK_PATH_DIS where the topology does not know them both. */
static hk_path_class distance(const hk_paths *paths, int gpu, const char *card) {
  uint32_t from = UINT32_MAX, to = UINT32_MAX;
  for (uint32_t i = 0; paths && i < paths->topo->nnodes; i++) {
    const hk_node *n = &paths->topo->nodes[i];
    if (n->kind == HK_NODE_GPU && n->gpu.dev == gpu) from = i;
    if (n->kind == HK_NODE_NET && strcmp(n->name, card) == 0) to = i;
  }
  if (from == UINT32_MAX || to == UINT32_MAX) return HK_PATH_DIS;
  return (hk_path_class)hk_path_between(paths, from, to)->cls;
}

static void add(char *list, const char *way, const char *card, hk_path_class cls) {
  size_t used = strlen(list);
  snprintf(list + used, WORDS - used, "%s%s by %s%s%s%s", used ? ", " : "", card, way, cls == HK_PATH_DIS ? "" : " (",
           cls == HK_PATH_DIS ? "" : hk_path_class_name(cls), cls == HK_PATH_DIS ? "" : ")");
}

static void try_gpu(hk_doctor *d, const cards *c, const hk_paths *paths, hk_device *gpu) {
  char reached[WORDS] = "", staged[WORDS] = "";
  hk_ib_gpu_memory last = {0}, m;
  const char *set = hk_param_str(HK_P_NET_GDR_LEVEL);
  hk_path_class most = HK_PATH_PXB;
  if (set && *set) (void)hk_path_class_parse(set, &most); /* the check variables tells of nonsense */
  for (int i = 0; i < c->n; i++) {
    const char *card = c->port[i].device;
    hk_path_class cls = distance(paths, gpu->limits.ordinal, card);
    if (hk_ib_gpu_probe(c->api, c->context[i], gpu, &m) != HK_OK) {
      snprintf(m.why, sizeof m.why, "%.200s", hk_last_error());
      m.way = HK_IB_GPU_STAGED;
    }
    bool far = cls != HK_PATH_DIS && cls != HK_PATH_PXN && cls > most;
    add(m.way == HK_IB_GPU_STAGED || far ? staged : reached, far ? "host memory, too far," : hk_ib_gpu_way_name(m.way),
        card, cls);
    if (m.way == HK_IB_GPU_STAGED) last = m;
  }
  if (last.why[0])
    hk_doctor_say(d, HK_DOC_PROBLEM, "modprobe nvidia-peermem, or the driver's open kernel modules with Linux 5.12",
                  "GPU %d: %s%s%s (%s)", gpu->limits.ordinal, staged, *reached ? "; " : "", reached, last.why);
  else
    hk_doctor_say(d, *staged ? HK_DOC_NOTE : HK_DOC_OK,
                  *staged ? "NCCL_NET_GDR_LEVEL=SYS lets pairs that are further apart do it too; measure it" : NULL,
                  "GPU %d: %s%s%s", gpu->limits.ordinal, reached, *reached && *staged ? "; " : "", staged);
}

void hk_doctor_gpu_pairs(hk_doctor *d) {
  cards c = {0};
  int ngpus = 0;
  hk_paths *paths = NULL;
  if (!d->live || !hk_cuda_here(&ngpus)) return;
  open_cards(&c);
  if (c.n && d->topo && hk_paths_new(&paths, d->topo, NULL) != HK_OK) paths = NULL;
  for (int i = 0; c.n && i < ngpus; i++) {
    hk_device *gpu;
    if (hk_cuda_open(i, &gpu) != HK_OK) {
      hk_doctor_say(d, HK_DOC_PROBLEM, "nvidia-smi", "GPU %d cannot be opened: %.300s", i, hk_last_error());
      continue;
    }
    try_gpu(d, &c, paths, gpu);
    gpu->ops->close(gpu);
  }
  hk_paths_free(paths);
  for (int i = 0; i < c.n; i++) c.api->close_device(c.context[i]);
}
