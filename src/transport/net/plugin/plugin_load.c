/* SPDX-License-Identifier: Apache-2.0 */
/* Net plugins: finding their libraries, initialising them, and calls whose arguments differ between versions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "../../../base/fork.h"
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "plugin.h"

/* Libraries stay loaded, because their threads may run and, up to v10, init is called once for the process. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(lock);
static hk_net_plugin_lib *loaded;

/* ---- libraries ---- */

/* The name of a call that the plugin must have and lacks; NULL: none. Some plugins (nccl-rdma-sharp-plugins) export
 * only init, which fills in the rest and changes the name. */
static const char *plugin_load_missing_call(const net_plugin_v *c) {
  if (!c->devices) return "devices";
  if (!c->properties) return "getProperties";
  if (!c->listen.v6) return "listen";
  if (!c->connect.v6) return "connect";
  if (!c->accept.v6) return "accept";
  if (!c->reg.v6) return "regMr";
  if (!c->dereg) return "deregMr";
  if (!c->isend.v6) return "isend";
  if (!c->irecv.v6) return "irecv";
  if (!c->test) return "test";
  if (!c->close_send) return "closeSend";
  if (!c->close_recv) return "closeRecv";
  if (!c->close_listen) return "closeListen";
  return NULL;
}

static void plugin_load_take_name(hk_net_plugin_lib *l) {
  snprintf(l->name, sizeof l->name, "%s", l->calls->name ? l->calls->name : "(without a name)");
}

/* Loads a plugin, once; `name` NULL: the default one. Returns NULL with the reason in `why`, which is empty if the
 * default one does not exist. */
static hk_net_plugin_lib *load(int newest, const char *name, char *why, size_t why_bytes) {
  const char *asked = name ? name : "libnccl-net.so";
  hk_plugin plugin;
  for (hk_net_plugin_lib *l = loaded; l; l = l->next)
    if (!strcmp(l->asked, asked)) return l;
  plugin.library = hk_plugin_open("net", name, plugin.file, why, why_bytes);
  if (!plugin.library) {
    if (!name) *why = '\0';
    return NULL;
  }
  if (!hk_plugin_symbol(&plugin, "ncclNetPlugin_v", newest, NET_PLUGIN_OLDEST)) {
    snprintf(why, why_bytes, "%s has none of ncclNetPlugin_v%d to ncclNetPlugin_v%d", plugin.file, NET_PLUGIN_OLDEST,
             newest);
    goto undo;
  }
  if (!((const net_plugin_v *)plugin.symbol)->init.v6) {
    snprintf(why, why_bytes, "ncclNetPlugin_v%d in %s has no init", plugin.version, plugin.file);
    goto undo;
  }
  hk_net_plugin_lib *l = calloc(1, sizeof *l);
  if (!l) {
    snprintf(why, why_bytes, "out of memory");
    goto undo;
  }
  l->calls = plugin.symbol;
  l->version = plugin.version;
  plugin_load_take_name(l);
  snprintf(l->asked, sizeof l->asked, "%s", asked);
  snprintf(l->file, sizeof l->file, "%s", plugin.file);
  l->next = loaded;
  loaded = l;
  HK_INFO(HK_SUB_INIT | HK_SUB_NET, "net plugin %s (v%d) from %s", l->name, l->version, l->file);
  return l;
undo:
  dlclose(plugin.library);
  return NULL;
}

/* ---- devices ---- */

int hk_plugin_properties(int (*call)(int device, void *properties), int version, int i, hk_net_device *d) {
  union {
    net_plugin_properties_v6 v6;
    net_plugin_properties_v7 v7;
    net_plugin_properties_v8 v8;
    net_plugin_properties_v9 v9;
    net_plugin_properties_v11 v11;
    net_plugin_properties_v12 v12;
  } p;
  memset(&p, 0, sizeof p);
  int code = call(i, &p);
  if (code) return code;
  *d = (hk_net_device){.index = i, .max_message = HK_NET_MESSAGE_MAX};
  snprintf(d->name, sizeof d->name, "%s", p.v6.name ? p.v6.name : "?");
  d->memory = p.v6.memory; /* at the same offset in every version, like the path */
  snprintf(d->pci, sizeof d->pci, "%s", p.v6.pci_path ? p.v6.pci_path : "");
  if (version == 6) {
    d->speed = p.v6.speed;
  } else if (version == 7) {
    d->speed = p.v7.base.speed;
    d->gpu_type = p.v7.gpu_type;
  } else if (version == 8) {
    d->speed = p.v8.speed;
    d->gpu_type = p.v8.gpu_type;
  } else {
    d->speed = p.v9.speed;
    d->gpu_type = p.v9.gpu_type;
    d->force_flush = p.v9.force_flush != 0;
    const size_t most = version >= 12 ? p.v12.max_message : p.v9.max_message;
    if (most) d->max_message = most;
    d->max_collective = version >= 12 ? p.v12.max_collective : p.v9.max_collective;
  }
  return 0;
}

/* Reads a device's properties. Returns false with the reason if it cannot be used. */
static bool plugin_load_describe(const hk_net_plugin_lib *l, int i, size_t slot_bytes, hk_net_device *d, char *why,
                                 size_t why_bytes) {
  int code = hk_plugin_properties(l->calls->properties, l->version, i, d);
  if (code)
    snprintf(why, why_bytes, "getProperties of device %d fails with code %d (%s)", i, code, hk_plugin_result(code));
  else if (d->gpu_type)
    snprintf(why, why_bytes, "device %s needs a kernel of its own on the GPU (type %d), which is not supported",
             d->name, d->gpu_type);
  else if (!(d->memory & NET_PLUGIN_HOST_MEMORY))
    snprintf(why, why_bytes, "device %s cannot send from host memory", d->name);
  else if (d->max_message < slot_bytes || d->max_message < HK_PLUGIN_ENTRY)
    snprintf(why, why_bytes, "device %s takes messages of %zu bytes at most: lower HOCKET_SLOT_BYTES", d->name,
             d->max_message);
  else
    return true;
  return false;
}

/* Keeps the fastest of the devices that can be used. */
static bool plugin_load_find_devices(hk_net_plugin *p, size_t slot_bytes, char *why, size_t why_bytes) {
  int n = 0, fastest = -1, code = p->lib->calls->devices(&n);
  if (code) {
    snprintf(why, why_bytes, "devices fails with code %d (%s)", code, hk_plugin_result(code));
    return false;
  }
  snprintf(why, why_bytes, "it has no device");
  p->ndevices = 0;
  for (int i = 0; i < n; i++) {
    hk_net_device d;
    if (!plugin_load_describe(p->lib, i, slot_bytes, &d, why, why_bytes)) continue;
    if (d.speed > fastest) p->ndevices = 0;
    if (d.speed < fastest || p->ndevices == (int)HK_ARRAY_LENGTH(p->devices)) continue;
    fastest = d.speed;
    p->devices[p->ndevices++] = d;
  }
  return p->ndevices > 0;
}

/* ---- beginning and end ---- */

static int plugin_load_begin_library(hk_net_plugin *p, hk_net_plugin_lib *l, uint64_t comm) {
  int code = 0;
  const net_plugin_v *c = l->calls;
  if (l->version >= 11) return c->init.v11(&p->context, comm, &p->config, hk_plugin_log, p->event);
  if (!l->begun) code = l->version == 10 ? c->init.v10(hk_plugin_log, p->event) : c->init.v6(hk_plugin_log);
  l->begun = code == 0;
  return code;
}

/* Initialises a plugin. Returns false with the reason, which is empty if the plugin's name is not `wanted`. */
static bool plugin_load_begin_one(hk_net_plugin *p, hk_net_plugin_lib *l, const hk_transport_env *env,
                                  const char *wanted, char *why, size_t why_bytes) {
  bool other = wanted && *wanted && strcasecmp(wanted, l->name) != 0;
  why[0] = '\0';
  if (other && !plugin_load_missing_call(l->calls)) return false;
  *p = (hk_net_plugin){
      .lib = l, .config.traffic_class = env->traffic_class, .event = env->net_event, .profiler = env->profiler};
  int code = plugin_load_begin_library(p, l, env->comm_id);
  if (code) {
    snprintf(why, why_bytes, "its init fails with code %d (%s)", code, hk_plugin_result(code));
    return false;
  }
  if (!l->named) plugin_load_take_name(l);
  l->named = true;
  const char *lacks = plugin_load_missing_call(l->calls);
  other = other && strcasecmp(wanted, l->name) != 0;
  if (lacks && !other) snprintf(why, why_bytes, "it has no %s", lacks);
  if (!lacks && !other && plugin_load_find_devices(p, env->slot_bytes, why, why_bytes)) return true;
  hk_net_plugin_end(p);
  return false;
}

bool hk_net_plugin_begin(hk_net_plugin *p, const hk_transport_env *env, const char *wanted) {
  const char *list = env->settings->NET_PLUGIN;
  char name[HK_PLUGIN_FILE], why[HK_PLUGIN_FILE + 128];
  bool named = list != NULL, found = false;
  pthread_mutex_lock(&lock);
  while (!found && (named ? hk_plugin_next(&list, name) : !list)) {
    list = list ? list : "";
    why[0] = '\0';
    hk_net_plugin_lib *l = load((int)env->settings->NET_PLUGIN_VERSION, named ? name : NULL, why, sizeof why);
    if (!l && *why)
      HK_WARN("net plugin %s cannot be loaded: %s. Going on with the next network", named ? name : "libnccl-net.so",
              why);
    if (!l) continue;
    found = plugin_load_begin_one(p, l, env, wanted, why, sizeof why);
    if (!found && *why)
      HK_WARN("net plugin %s (v%d, %s) is not used: %s. Going on with the next network", l->name, l->version, l->file,
              why);
  }
  pthread_mutex_unlock(&lock);
  return found;
}

void hk_net_plugin_end(hk_net_plugin *p) {
  if (p->lib && p->lib->version >= 11 && p->lib->calls->finalize) p->lib->calls->finalize(p->context);
  p->lib = NULL;
}

/* ---- calls ---- */

int hk_net_plugin_listen(hk_net_plugin *p, int device, void *handle, void **listener) {
  const net_plugin_v *c = p->lib->calls;
  return p->lib->version >= 11 ? c->listen.v11(p->context, device, handle, listener)
                               : c->listen.v6(device, handle, listener);
}

int hk_net_plugin_connect(hk_net_plugin *p, int device, void *handle, void **comm) {
  const net_plugin_v *c = p->lib->calls;
  net_plugin_device_handle *gpu = NULL; /* for plugins that run on the GPU, which are not supported */
  if (p->lib->version >= 11) return c->connect.v11(p->context, device, handle, comm, &gpu);
  if (p->lib->version == 10) return c->connect.v10(device, &p->config, handle, comm, &gpu);
  return p->lib->version >= 7 ? c->connect.v7(device, handle, comm, &gpu) : c->connect.v6(device, handle, comm);
}

int hk_net_plugin_accept(hk_net_plugin *p, void *listener, void **comm) {
  net_plugin_device_handle *gpu = NULL;
  return p->lib->version >= 7 ? p->lib->calls->accept.v7(listener, comm, &gpu)
                              : p->lib->calls->accept.v6(listener, comm);
}

int hk_net_plugin_register(hk_net_plugin *p, void *comm, void *data, size_t bytes, int type, void **registration) {
  const net_plugin_v *c = p->lib->calls;
  return p->lib->version >= 8 ? c->reg.v8(comm, data, bytes, type, registration)
                              : c->reg.v6(comm, data, (int)bytes, type, registration);
}

int hk_net_plugin_send(hk_net_plugin *p, void *comm, void *data, size_t bytes, void *registration, void **request) {
  const net_plugin_v *c = p->lib->calls;
  if (p->lib->version >= 10) return c->isend.v10(comm, data, bytes, 0, registration, p->profiler, request);
  return p->lib->version == 9 ? c->isend.v9(comm, data, bytes, 0, registration, request)
                              : c->isend.v6(comm, data, (int)bytes, 0, registration, request);
}

int hk_net_plugin_receive(hk_net_plugin *p, void *comm, void *data, size_t bytes, void *registration, void **request) {
  const net_plugin_v *c = p->lib->calls;
  int tag = 0, small = (int)bytes;
  void *event = p->profiler;
  if (p->lib->version >= 10) return c->irecv.v10(comm, 1, &data, &bytes, &tag, &registration, &event, request);
  return p->lib->version == 9 ? c->irecv.v9(comm, 1, &data, &bytes, &tag, &registration, request)
                              : c->irecv.v6(comm, 1, &data, &small, &tag, &registration, request);
}
