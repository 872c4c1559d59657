/* SPDX-License-Identifier: Apache-2.0 */
/* Finds which RDMA cards can access which GPUs' memory, by registering some memory for each pair. */
#include <string.h>
#include "../../base/param.h"
#include "../../topo/paths.h"
#include "../../transport/net/ib/ib_direct.h"
#include "../../transport/net/ib/ib_flushing.h"
#include "../../transport/net/ib/ib_gdr.h"
#include "../../transport/net/ib/ib_port.h"
#include "doctor.h"

enum { WORDS = 320 };

typedef struct cards {
  const hk_ibv *api;
  hk_ib_port port[HK_IB_PORTS]; /* one of each device */
  hk_ibv_context *context[HK_IB_PORTS];
  int n;
} cards;

static void gdr_open_cards(const hk_doctor *d, cards *c) {
  hk_ib_port ports[HK_IB_PORTS];
  char why[160];
  int nnear, listed = 0,
             n = d->settings->IB_DISABLE ? 0 : hk_ib_ports(d->settings, ports, &nnear, NULL, NULL, why, sizeof why);
  if (n == 0 || !(c->api = hk_ibv_load(why, sizeof why))) return; /* the check verbs reports why */
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

/* `why` may be empty. */
static void gdr_add(char *list, const hk_ib_gpu_memory *m, const char *card, hk_path_class cls, const char *why) {
  bool known = cls != HK_PATH_DIS, more = known || *why;
  size_t used = strlen(list);
  snprintf(list + used, WORDS - used, "%s%s by %s%s%s%s%s%s", used ? ", " : "", card, hk_ib_gpu_words(m),
           more ? " (" : "", known ? hk_path_class_name(cls) : "", known && *why ? "; " : "", why, more ? ")" : "");
}

static void gdr_try_gpu(hk_doctor *d, const cards *c, const hk_paths *paths, hk_device *gpu) {
  char reached[WORDS] = "", staged[WORDS] = "";
  hk_ib_gpu_memory last = {0}, m;
  hk_memory memory;
  if (gpu->ops->memory->alloc(gpu, 2 * HK_DEVICE_PAGE, &memory) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "nvidia-smi", "GPU %d has no memory: %.300s", gpu->limits.ordinal,
                  hk_last_error());
    return;
  }
  uintptr_t page = ((uintptr_t)memory.base + HK_DEVICE_PAGE - 1) & ~(uintptr_t)(HK_DEVICE_PAGE - 1);
  for (int i = 0; i < c->n; i++) {
    const char *card = c->port[i].device;
    char why[96], path[HK_SYSFS_PATH];
    hk_path_class cls = hk_gdr_distance(paths, gpu->limits.ordinal, card, NULL);
    if (hk_ib_gpu_probe(d->settings, c->api, c->context[i], gpu, (void *)page, &m) != HK_OK) {
      snprintf(m.why, sizeof m.why, "%.200s", hk_last_error());
      m.method = HK_GDR_STAGED;
    }
    if (m.direct && hk_ib_direct_function(d->settings, c->context[i], path))
      cls = hk_ib_direct_distance(path, gpu, cls);
    bool far = hk_gdr_too_far(d->settings, cls, why, sizeof why);
    if (m.method == HK_GDR_STAGED) last = m;
    if (far) m.method = HK_GDR_STAGED, m.direct = false;
    gdr_add(m.method == HK_GDR_STAGED ? staged : reached, &m, card, cls, why);
  }
  (void)gpu->ops->memory->release(gpu, &memory);
  if (last.why[0])
    hk_doctor_say(d, HK_DOC_PROBLEM, "modprobe nvidia-peermem, or the driver's open kernel modules with Linux 5.12",
                  "GPU %d: %s%s%s (%s)", gpu->limits.ordinal, staged, *reached ? "; " : "", reached, last.why);
  else
    hk_doctor_say(d, *staged ? HK_DOC_NOTE : HK_DOC_OK,
                  *staged ? "NCCL_NET_GDR_LEVEL=SYS lets pairs that are further apart do it too; measure it" : NULL,
                  "GPU %d: %s%s%s%s%s", gpu->limits.ordinal, reached, *reached && *staged ? "; " : "", staged,
                  *reached ? "; it " : "",
                  *reached ? hk_ib_flushing_words(d->settings, hk_ib_flushing_of(d->settings, gpu, false)) : "");
}

void hk_doctor_gpu_pairs(hk_doctor *d) {
  static const hk_path_rules own_ways = {.no_pxn = true}; /* a card does not reach memory through another GPU */
  cards c = {0};
  int ngpus = 0;
  hk_paths *paths = NULL;
  if (!d->live || !hk_cuda_here(&ngpus)) return;
  gdr_open_cards(d, &c);
  if (c.n && d->topo && hk_paths_new(&paths, d->topo, &own_ways) != HK_OK) paths = NULL;
  for (int i = 0; c.n && i < ngpus; i++) {
    hk_device *gpu;
    if (hk_cuda_open(i, &gpu) != HK_OK) {
      hk_doctor_say(d, HK_DOC_PROBLEM, "nvidia-smi", "GPU %d cannot be opened: %.300s", i, hk_last_error());
      continue;
    }
    gdr_try_gpu(d, &c, paths, gpu);
    gpu->ops->close(gpu);
  }
  hk_paths_free(paths);
  for (int i = 0; i < c.n; i++) c.api->close_device(c.context[i]);
}
