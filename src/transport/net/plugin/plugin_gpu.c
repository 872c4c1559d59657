/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads in a GPU's memory, moved by a net plugin: finds the devices that can register it, and flushes so that the
 * GPU sees the devices' writes.
 *
 * A plugin registers memory for a connection, so each device is tried with a connection to itself: NCCL does the same,
 * so plugins support it. A received message becomes visible to the GPU by the plugin's iflush, one message at a time,
 * because a completion does not guarantee that. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../topo/topo.h"
#include "../gdr.h"
#include "plugin.h"

enum { TRIAL_S = 10 };

/* ---- registering ---- */

typedef struct gpu_memory {
  hk_gdr_method method;
  void *registration;
  char why[HK_GDR_WHY]; /* why better methods were refused */
} gpu_memory;

static bool plugin_gpu_by_dmabuf(const hk_settings *set, hk_net_plugin *p, const hk_net_device *d, void *comm,
                                 hk_device *gpu, void *at, size_t bytes, gpu_memory *m) {
  const net_plugin_v *c = p->lib->calls;
  if (!(d->memory & NET_PLUGIN_DMABUF) || !c->reg_dmabuf) {
    hk_gdr_add_cause(m->why, "dma-buf: the plugin takes none");
    return false;
  }
  int fd = hk_gdr_dmabuf(set, gpu, at, bytes, false, m->why);
  if (fd < 0) return false;
  int code = c->reg_dmabuf(comm, at, bytes, NET_PLUGIN_CUDA_MEMORY, 0, fd, &m->registration);
  close(fd); /* the plugin keeps its own reference */
  if (code) hk_gdr_add_cause(m->why, "dma-buf: regMrDmaBuf gives code %d (%s)", code, hk_plugin_result(code));
  return code == 0;
}

static bool plugin_gpu_by_address(hk_net_plugin *p, const hk_net_device *d, void *comm, void *at, size_t bytes,
                                  gpu_memory *m) {
  if (!(d->memory & NET_PLUGIN_CUDA_MEMORY)) {
    hk_gdr_add_cause(m->why, "nvidia-peermem: the plugin takes no addresses of a GPU");
    return false;
  }
  int code = hk_net_plugin_register(p, comm, at, bytes, NET_PLUGIN_CUDA_MEMORY, &m->registration);
  if (code) hk_gdr_add_cause(m->why, "nvidia-peermem: regMr gives code %d (%s)", code, hk_plugin_result(code));
  return code == 0;
}

/* Registers whole pages of the GPU's memory for a connection of the device. */
static void plugin_gpu_register_gpu_memory(const hk_settings *set, hk_net_plugin *p, const hk_net_device *d, void *comm,
                                           hk_device *gpu, void *at, size_t bytes, gpu_memory *out) {
  *out = (gpu_memory){.method = HK_GDR_DMABUF};
  if (plugin_gpu_by_dmabuf(set, p, d, comm, gpu, at, bytes, out)) return;
  out->method = plugin_gpu_by_address(p, d, comm, at, bytes, out) ? HK_GDR_PEERMEM : HK_GDR_STAGED;
}

hk_status hk_plugin_gpu_register(hk_plugin_end *e, hk_plugin_lane *l, bool *taken) {
  gpu_memory m;
  char why[HK_GDR_WHY + 192];
  size_t bytes = hk_round_up(((size_t)e->end->link->mask + 1) * l->entry, HK_DEVICE_PAGE);
  hk_device *gpu = e->end->link->gpu;
  plugin_gpu_register_gpu_memory(e->ctx->env->settings, &e->ctx->plugin, e->device, l->comm, gpu, l->memory, bytes, &m);
  *taken = m.method != HK_GDR_STAGED;
  l->registration = m.registration;
  if (*taken) return HK_OK;
  snprintf(why, sizeof why, "device %s of net plugin %s takes no memory of GPU %d (%s)", e->device->name,
           e->ctx->plugin.lib->name, gpu->limits.ordinal, m.why);
  return hk_net_move_to_host(e->end, why);
}

/* ---- which devices ---- */

/* A connection of a device to itself. */
typedef struct trial {
  _Alignas(16) char handle[NET_PLUGIN_HANDLE];
  void *listener, *comm[2]; /* the sender's and the receiver's */
} trial;

static bool plugin_gpu_connect_with_itself(hk_plugin_ctx *x, const hk_net_device *d, trial *t, char why[HK_GDR_WHY]) {
  hk_net_plugin *p = &x->plugin;
  hk_waiter w;
  uint64_t deadline = hk_now_ns() + (uint64_t)TRIAL_S * 1000000000u;
  const char *doing = "listen";
  int code = hk_net_plugin_listen(p, d->index, t->handle, &t->listener);
  hk_wait_begin(&w, x->env->wait);
  while (!code && !(t->comm[0] && t->comm[1])) {
    doing = "connect";
    if (!t->comm[0]) code = hk_net_plugin_connect(p, d->index, t->handle, &t->comm[0]);
    if (!code && !t->comm[1]) {
      doing = "accept";
      code = hk_net_plugin_accept(p, t->listener, &t->comm[1]);
    }
    if (t->comm[0] && t->comm[1]) break;
    if (hk_now_ns() > deadline || hk_wait_pause(&w) != HK_OK) {
      hk_gdr_add_cause(why, "the device does not connect with itself within %d s", TRIAL_S);
      return false;
    }
  }
  if (code) hk_gdr_add_cause(why, "%s in a trial fails with code %d (%s)", doing, code, hk_plugin_result(code));
  return code == 0;
}

static void plugin_gpu_end_trial(const net_plugin_v *c, trial *t) {
  if (t->comm[0]) c->close_send(t->comm[0]);
  if (t->comm[1]) c->close_recv(t->comm[1]);
  if (t->listener) c->close_listen(t->listener);
}

/* Tries to register the GPU's memory for both sides of a connection. m->registration is NULL afterwards. */
static void plugin_gpu_try_device(hk_plugin_ctx *x, const hk_net_device *d, gpu_memory *m) {
  hk_net_plugin *p = &x->plugin;
  trial t = {0};
  *m = (gpu_memory){.method = HK_GDR_STAGED};
  if (plugin_gpu_connect_with_itself(x, d, &t, m->why)) {
    m->method = HK_GDR_DMABUF;
    for (int side = 0; side < 2 && m->method != HK_GDR_STAGED; side++) {
      plugin_gpu_register_gpu_memory(x->env->settings, p, d, t.comm[side], x->env->gpu, x->env->gpu_page,
                                     HK_DEVICE_PAGE, m);
      if (m->method != HK_GDR_STAGED) p->lib->calls->dereg(t.comm[side], m->registration);
    }
  }
  m->registration = NULL;
  plugin_gpu_end_trial(p->lib->calls, &t);
}

typedef struct finding {
  hk_net_device device;
  hk_path_class cls;
  bool takes;
} finding;

/* The PCI address of a device, or NULL if it has none. */
static const char *plugin_gpu_pci_of(const hk_net_device *d, char path[PATH_MAX]) {
  if (!d->pci[0] || !realpath(d->pci, path)) return NULL;
  const char *last = strrchr(path, '/');
  return last ? last + 1 : path;
}

/* Returns true if received data can be made visible to the GPU: by the plugin, or by the GPU's driver. */
static bool plugin_gpu_can_flush(const hk_plugin_ctx *x, const hk_net_device *d) {
  hk_device *gpu = x->env->gpu;
  return x->plugin.lib->calls->iflush || gpu->limits.rdma_flush ||
         !(d->force_flush || hk_gdr_needs_flush(x->env->settings, gpu, false));
}

static void plugin_gpu_look_at_device(hk_plugin_ctx *x, const hk_paths *paths, finding *f) {
  hk_net_device *d = &f->device;
  hk_device *gpu = x->env->gpu;
  gpu_memory m = {.method = HK_GDR_STAGED};
  char path[PATH_MAX];
  f->cls = hk_gdr_distance(paths, gpu->limits.ordinal, d->name, plugin_gpu_pci_of(d, path));
  d->force_flush = d->force_flush || hk_gdr_is_split(paths, gpu->limits.ordinal, f->cls);
  if (!(d->memory & (NET_PLUGIN_CUDA_MEMORY | NET_PLUGIN_DMABUF)))
    snprintf(m.why, sizeof m.why, "it supports no memory of GPUs");
  else if (!plugin_gpu_can_flush(x, d))
    snprintf(m.why, sizeof m.why, "the GPU needs flushes, and neither the plugin nor its driver has a call for them");
  else if (!hk_gdr_too_far(x->env->settings, f->cls, m.why, sizeof m.why))
    plugin_gpu_try_device(x, d, &m);
  f->takes = m.method != HK_GDR_STAGED;
  HK_INFO(HK_SUB_INIT | HK_SUB_NET, "rank %d: GPU %d and %s of net plugin %s%s%s: %s%s%s%s", x->env->rank,
          gpu->limits.ordinal, d->name, x->plugin.lib->name, f->cls == HK_PATH_DIS ? "" : ", ",
          f->cls == HK_PATH_DIS ? "" : hk_path_class_name(f->cls),
          f->takes ? "GPUDirect RDMA by " : "data passes through ", hk_gdr_method_name(m.method), m.why[0] ? "; " : "",
          m.why);
}

/* Keeps the devices that can register the GPU's memory, if there are any, and of these the nearest. */
static void plugin_gpu_settle_devices(hk_plugin_ctx *x, const finding *f, int n) {
  hk_net_plugin *p = &x->plugin;
  hk_path_class best = HK_PATH_DIS;
  for (int i = 0; i < n; i++) x->gpu_direct = x->gpu_direct || f[i].takes;
  for (int i = 0; i < n; i++)
    if ((f[i].takes || !x->gpu_direct) && f[i].cls < best) best = f[i].cls;
  p->ndevices = 0;
  for (int i = 0; i < n; i++)
    if ((f[i].takes || !x->gpu_direct) && f[i].cls == best) p->devices[p->ndevices++] = f[i].device;
}

void hk_plugin_gpu_find_devices(hk_plugin_ctx *x) {
  finding found[HK_ARRAY_LENGTH(x->plugin.devices)];
  hk_topo *t = NULL;
  hk_paths *paths = NULL;
  int n = x->plugin.ndevices;
  if (x->gpu_known || !x->env->gpu_page) return;
  x->gpu_known = true;
  hk_gdr_look(x->env->settings, &t, &paths, x->env->rank);
  for (int i = 0; i < n; i++) {
    found[i] = (finding){.device = x->plugin.devices[i]};
    plugin_gpu_look_at_device(x, paths, &found[i]);
  }
  plugin_gpu_settle_devices(x, found, n);
  hk_paths_free(paths);
  hk_topo_free(t);
}

bool hk_plugin_takes_gpu(void *ctx, const hk_net_end *end) {
  hk_plugin_ctx *x = ctx;
  (void)end;
  hk_plugin_gpu_find_devices(x);
  return x->gpu_direct;
}

/* ---- flushes ---- */

/* Requests the flush of one message; the plugin may have nothing to do for it. */
static hk_status plugin_gpu_request_flush(hk_plugin_end *e, hk_plugin_lane *l) {
  hk_plugin_flush *f = &e->flush;
  void *at = l->memory + (size_t)((uint32_t)f->asked & e->end->link->mask) * l->entry;
  int bytes = l->sizes[f->asked % HK_PLUGIN_WINDOW];
  void **request = &f->requests[f->asked % HK_PLUGIN_WINDOW];
  *request = NULL;
  int code = e->ctx->plugin.lib->calls->iflush(l->comm, 1, &at, &bytes, &l->registration, request);
  if (code) return hk_plugin_failed(e, "iflush", code);
  f->asked++;
  return HK_OK;
}

hk_status hk_plugin_gpu_flush(hk_plugin_end *e, hk_plugin_lane *l, bool *moved) {
  hk_plugin_flush *f = &e->flush;
  hk_device *gpu = e->end->link->gpu;
  const net_plugin_v *c = e->ctx->plugin.lib->calls;
  const hk_settings *set = e->ctx->env->settings;
  uint64_t before = f->seen;
  if (!(e->device->force_flush && !set->GDR_FLUSH_DISABLE) && !hk_gdr_needs_flush(set, gpu, false)) {
    f->seen = l->done;
  } else if (!c->iflush) {
    if (f->seen < l->done) HK_OR_RETURN(gpu->ops->card->flush(gpu)); /* covers all messages that have arrived so far */
    f->seen = l->done;
  } else {
    while (f->asked < l->done) HK_OR_RETURN(plugin_gpu_request_flush(e, l));
    for (; f->seen < f->asked; f->seen++) {
      void *request = f->requests[f->seen % HK_PLUGIN_WINDOW];
      int done = !request, sizes[HK_PLUGIN_WINDOW] = {0}, code = request ? c->test(request, &done, sizes) : 0;
      if (code) return hk_plugin_failed(e, "test of a flush", code);
      if (!done) break;
    }
  }
  *moved = *moved || f->seen != before;
  return HK_OK;
}
