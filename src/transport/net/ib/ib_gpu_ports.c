/* SPDX-License-Identifier: Apache-2.0 */
/* Which cards register a GPU's memory (GPUDirect RDMA). */
#include <stdio.h>
#include "../../../base/log.h"
#include "../../../topo/paths.h"
#include "../gdr.h"
#include "ib_context.h"
#include "ib_device.h"
#include "ib_direct.h"
#include "ib_flushing.h"
#include "ib_gdr.h"

/* What was found about a port. */
typedef struct finding {
  hk_ib_port port;
  hk_path_class cls, nearest; /* nearest: of the card's ports */
  bool takes, slow, split;    /* split: hk_gdr_is_split */
} finding;

static int ib_gpu_ports_price_of(const finding *f) { return f->port.far * 1000 + f->slow * 100 + (int)f->nearest; }

/* Tries the port's card. If its data-direct function can do it, the distance is that function's. */
static void ib_gpu_ports_try_card(hk_ib_ctx *x, finding *f, hk_ib_gpu_memory *m) {
  hk_device *gpu = x->env->gpu;
  hk_ib_device *d;
  char path[HK_SYSFS_PATH];
  hk_path_class function_cls = f->cls;
  bool far = hk_gdr_too_far(x->env->settings, f->cls, m->why, sizeof m->why);
  if (far && !hk_ib_direct_is_possible(x->env->settings)) return;
  bool open = hk_ib_device_open(x, f->port.device, &d) == HK_OK;
  if (open && hk_ib_direct_function(x->env->settings, d->context, path))
    function_cls = hk_ib_direct_distance(path, gpu, f->cls);
  if (hk_gdr_too_far(x->env->settings, function_cls, m->why, sizeof m->why)) return;
  if (!open || hk_ib_gpu_probe(x->env->settings, x->api, d->context, gpu, x->env->gpu_page, m) != HK_OK)
    snprintf(m->why, sizeof m->why, "%.200s", hk_last_error());
  if (m->direct) f->cls = function_cls;
  if (m->direct || !far) return;
  m->method = HK_GDR_STAGED; /* nothing else than data direct was near enough */
  char why[HK_GDR_WHY];
  if (hk_gdr_too_far(x->env->settings, f->cls, why, sizeof why)) hk_gdr_add_cause(m->why, "%s", why);
}

/* A card that cannot be tried counts as one that refuses. */
static void ib_gpu_ports_look_at_port(hk_ib_ctx *x, const hk_paths *paths, finding *f) {
  hk_device *gpu = x->env->gpu;
  hk_ib_gpu_memory m = {.method = HK_GDR_STAGED};
  f->cls = hk_gdr_distance(paths, gpu->limits.ordinal, f->port.device, NULL);
  ib_gpu_ports_try_card(x, f, &m);
  f->split = hk_gdr_is_split(paths, gpu->limits.ordinal, f->cls);
  f->takes = m.method != HK_GDR_STAGED;
  HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: GPU %d and %s:%d%s%s: %s%s%s%s", x->env->rank, gpu->limits.ordinal,
          f->port.device, f->port.number, f->cls == HK_PATH_DIS ? "" : ", ",
          f->cls == HK_PATH_DIS ? "" : hk_path_class_name(f->cls),
          f->takes ? "GPUDirect RDMA by " : "data passes through ", hk_ib_gpu_words(&m), m.why[0] ? "; " : "", m.why);
}

/* A card is as near as the nearest of its ports, which carry data together. */
static void ib_gpu_ports_find_nearest(finding *f, int n) {
  for (int i = 0; i < n; i++) {
    f[i].nearest = f[i].cls;
    for (int j = 0; j < n; j++)
      if (f[j].port.card == f[i].port.card && f[j].cls < f[i].nearest) f[i].nearest = f[j].cls;
  }
}

/* Sorts the ports: those that take the GPU's memory first if there are any, the fast ones first, then by their distance
 * from the GPU, stably, so that the ports of a card stay adjacent; an unknown distance is last. */
static void ib_gpu_ports_sort_by_distance(finding *f, int n, bool direct) {
  hk_ib_port all[HK_IB_PORTS];
  for (int i = 0; i < n; i++) {
    all[i] = f[i].port;
    f[i].port.far = direct && !f[i].takes;
    if (f[i].port.far) f[i].port.card = (uint8_t)(f[i].port.card + HK_IB_PORTS); /* apart from those that take it */
  }
  for (int i = 0; i < n; i++) f[i].slow = hk_ib_is_slow(&f[i].port, all, n);
  ib_gpu_ports_find_nearest(f, n);
  for (int i = 1; i < n; i++) {
    finding one = f[i];
    int at = i;
    for (; at > 0 && ib_gpu_ports_price_of(&f[at - 1]) > ib_gpu_ports_price_of(&one); at--) f[at] = f[at - 1];
    f[at] = one;
  }
}

/* Returns true if there are ports that register the GPU's memory of each kind (InfiniBand, Ethernet) that the rank has
 * published. Then all of its connections use only such ports. */
static bool ib_gpu_ports_enough(const finding *f, int n) {
  int all = 0, taken = 0;
  for (int i = 0; i < n; i++) {
    all |= 1 << f[i].port.layer;
    if (f[i].takes) taken |= 1 << f[i].port.layer;
  }
  return n > 0 && all == taken;
}

/* Ports that do not take the GPU's memory stay as the last ones if others do: they may be the only ones on a peer's
 * rail. */
static void ib_gpu_ports_settle_ports(hk_ib_ctx *x, finding *f) {
  int n = x->nports;
  x->gpu.direct = ib_gpu_ports_enough(f, n);
  ib_gpu_ports_sort_by_distance(f, n, x->gpu.direct);
  for (int i = 0; i < n; i++) x->ports[i] = f[i].port;
  if (f[0].cls != HK_PATH_DIS || x->gpu.direct) { /* otherwise those near the CPU stay first */
    x->nnear = 0;
    while (x->nnear < n && ib_gpu_ports_price_of(&f[x->nnear]) == ib_gpu_ports_price_of(&f[0])) x->nnear++;
  }
  bool split = false;
  for (int i = 0; i < n; i++) split = split || (f[i].takes && f[i].split);
  x->gpu.flushing = (uint8_t)hk_ib_flushing_of(x->env->settings, x->env->gpu, split);
  if (x->gpu.direct)
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: GPU %d %s", x->env->rank, x->env->gpu->limits.ordinal,
            hk_ib_flushing_words(x->env->settings, (hk_ib_flushing)x->gpu.flushing));
}

void hk_ib_gpu_find_ports(hk_ib_ctx *x) {
  finding found[HK_IB_PORTS];
  struct hk_topo *t = NULL;
  hk_paths *paths = NULL;
  if (x->gpu.known || !x->env->gpu_page) return;
  x->gpu.known = true;
  hk_gdr_look(x->env->settings, &t, &paths, x->env->rank);
  pthread_mutex_lock(&x->lock);
  for (int i = 0; i < x->nports; i++) {
    found[i] = (finding){.port = x->ports[i]};
    ib_gpu_ports_look_at_port(x, paths, &found[i]);
  }
  if (x->nports) ib_gpu_ports_settle_ports(x, found);
  pthread_mutex_unlock(&x->lock);
  hk_gdr_forget(t, paths);
}
