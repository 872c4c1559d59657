/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NCCL profiler plugins and reports events to them (profiler.h). */
#include "profiler.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../base/wait.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../program/limits.h" /* HK_CHANNELS */
#include "../transport/transport.h"
#include "profiler_abi.h"

struct hk_profiler {
  ncclComm_t comm;
  hk_plugin plugin;
  void *context;
  uint64_t id; /* of the communicator */
  int mask;
  bool begun;
  void *group, *coll; /* open events of what runs now */
  void *kernels[HK_CHANNELS];
  unsigned nkernels;
  uint64_t began, computed; /* of the collective that runs now; when its last instruction ended, 0: not yet */
  uint64_t waited;          /* for other ranks in it, if that was long */
  uint64_t sequence;
  uint32_t copies; /* collectives by copy engines so far */
};

static const profiler_v *profiler_calls_of(const hk_profiler *p) { return p->plugin.symbol; }
static const char *profiler_name_of(const hk_profiler *p) {
  return profiler_calls_of(p)->name ? profiler_calls_of(p)->name : "(without a name)";
}

/* ---- loading ---- */

hk_status hk_profiler_load(ncclComm_t c) {
  const char *name = c->settings->PROFILER_PLUGIN;
  char why[256];
  hk_plugin plugin;
  if (name && (!*name || !strcmp(name, "none"))) return HK_OK;
  const hk_plugin_request request = {"profiler", name, c->settings->NET_PLUGIN, "ncclProfiler_v", 7, 2};
  if (!hk_plugin_find(&request, &plugin, why, sizeof why)) {
    if (name) HK_WARN("NCCL_PROFILER_PLUGIN is %s, which cannot be loaded: %s. Going on without it", name, why);
    if (!name && *why) HK_WARN("the profiler plugin %s. Going on without it", why);
    return HK_OK;
  }
  const profiler_v *v = plugin.symbol;
  if (!v->init.v2 || !v->start || !v->stop || !v->record || !v->finalize) {
    HK_WARN(
        "ncclProfiler_v%d in %s lacks one of init, startEvent, stopEvent, recordEventState, finalize. Going on without "
        "it",
        plugin.version, plugin.file);
    dlclose(plugin.library);
    return HK_OK;
  }
  hk_profiler *p = calloc(1, sizeof *p);
  if (!p) {
    dlclose(plugin.library);
    return HK_FAIL_ERRNO("no memory for a profiler plugin");
  }
  p->comm = c;
  p->plugin = plugin;
  c->profiler = p;
  hk_wire_env(c)->net_event = hk_profile_net_event;
  HK_INFO(HK_SUB_INIT, "profiler plugin %s (v%d) from %s", profiler_name_of(p), plugin.version, plugin.file);
  return HK_OK;
}

void hk_profiler_begin(ncclComm_t c, uint64_t id, int hosts) {
  hk_profiler *p = c->profiler;
  const profiler_v *v = profiler_calls_of(p);
  const char *name = c->options.name[0] ? c->options.name : NULL;
  ncclResult_t rc;
  p->id = id;
  if (p->plugin.version >= 5)
    rc = v->init.v5(&p->context, id, &p->mask, name, hosts, c->nranks, c->rank, hk_plugin_log);
  else if (p->plugin.version == 4)
    rc = v->init.v4(&p->context, &p->mask, name, id, hosts, c->nranks, c->rank, hk_plugin_log);
  else
    rc = v->init.v2(&p->context, &p->mask);
  if (p->plugin.version < 3) p->mask &= PROFILE_KERNEL_CHANNEL - 1;
  if (p->plugin.version < 5) p->mask &= PROFILE_GROUP_API - 1;
  if (p->plugin.version < 6) p->mask &= PROFILE_COPY_COLL - 1;
  if (p->plugin.version < 7) p->mask &= PROFILE_KERNEL_PHASE - 1;
  if (p->mask & PROFILE_KERNEL_PHASE) p->mask |= PROFILE_KERNEL_CHANNEL; /* phases are parts of it */
  p->begun = rc == ncclSuccess &&
             p->context; /* NCCL does not finalize what has no context, and Inspector would crash */
  if (rc == ncclSuccess) return;
  HK_WARN("the profiler plugin %s refuses its init with code %d (%s). Going on without it", profiler_name_of(p),
          (int)rc, hk_plugin_result((int)rc));
  p->mask = 0; /* network plugins may already hold the profiler, so it stays, but without events */
}

void hk_profiler_free(ncclComm_t c) {
  hk_profiler *p = c->profiler;
  if (!p) return;
  if (p->begun) profiler_calls_of(p)->finalize(p->context);
  dlclose(p->plugin.library);
  free(p);
  c->profiler = NULL;
}

/* ---- events ---- */

static void profiler_check(hk_profiler *p, const char *what, ncclResult_t rc) {
  if (rc == ncclSuccess) return;
  HK_WARN_ONCE("the profiler plugin %s fails in %s with code %d (%s): its events are not complete", profiler_name_of(p),
               what, (int)rc, hk_plugin_result((int)rc));
}

/* Before v5 a collective or transfer belongs to its group. */
static void *profiler_parent_before_v5(const profile_event *e) {
  return e->type == PROFILE_COLL ? e->coll.group : e->type == PROFILE_P2P ? e->p2p.group : e->parent;
}

static void profiler_as_v2(const hk_profiler *p, const profile_event *e, profile_event_v2 *to) {
  const char *name = p->comm->options.name;
  *to = (profile_event_v2){.type = (uint8_t)e->type, .parent = profiler_parent_before_v5(e), .rank = e->rank};
  if (e->type == PROFILE_COLL) {
    const profile_coll *c = &e->coll;
    to->coll.call = (profile_coll_v2){name, p->id, c->sequence, c->function, c->in, c->out, c->count, c->root, c->type};
    to->coll.choice = (profile_choice_v2){c->channels, c->warps, c->algorithm, c->protocol};
  } else if (e->type == PROFILE_P2P) {
    to->p2p = (profile_p2p_v2){name, p->id, e->p2p.function, e->p2p.buffer, e->p2p.type, e->p2p.count, e->p2p.peer};
  }
}

static void profiler_as_v3(const hk_profiler *p, const profile_event *e, profile_event_v3 *to) {
  profile_event_v2 two;
  profiler_as_v2(p, e, &two);
  *to = (profile_event_v3){.type = two.type, .parent = two.parent, .rank = two.rank};
  if (e->type == PROFILE_COLL) {
    to->coll.call = two.coll.call;
    to->coll.choice = two.coll.choice;
  } else if (e->type == PROFILE_P2P) {
    to->p2p = two.p2p;
  } else if (e->type == PROFILE_KERNEL_CHANNEL) {
    to->kernel.channel = e->kernel.channel;
  } else if (e->type == PROFILE_NET_PLUGIN) {
    to->net = e->net;
  }
}

/* NULL if the plugin does not want such events. */
static void *profiler_start(hk_profiler *p, profile_event *e) {
  void *event = NULL;
  union {
    profile_event_v2 v2;
    profile_event_v3 v3;
  } old;
  void *description = e;
  if (!(p->mask & (int)e->type)) return NULL;
  e->rank = p->comm->rank;
  if (p->plugin.version == 2) {
    profiler_as_v2(p, e, &old.v2);
    description = &old;
  } else if (p->plugin.version == 3) {
    profiler_as_v3(p, e, &old.v3);
    description = &old;
  } else if (p->plugin.version == 4) {
    e->parent =
        profiler_parent_before_v5(e); /* little endian: the one byte of the type is the first byte of this field */
  }
  profiler_check(p, "startEvent", profiler_calls_of(p)->start(p->context, &event, description));
  return event;
}

void hk_profile_over(hk_profiler *p, void *event) {
  if (event) profiler_check(p, "stopEvent", profiler_calls_of(p)->stop(event));
}

static void profiler_record(hk_profiler *p, void *event, int state, profile_state arguments) {
  if (event && p->plugin.version >= 4)
    profiler_check(p, "recordEventState", profiler_calls_of(p)->record(event, state, &arguments));
}

static const char *profiler_type_name(uint8_t dtype) {
  static const char *const names[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                      "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                      "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  return dtype < HK_ARRAY_LENGTH(names) ? names[dtype] : "unknown";
}

static const char *profiler_function_of(const hk_call *call) {
  if (call->p2p != HK_P2P_NONE) return hk_p2p_name((hk_p2p)call->p2p);
  return hk_coll_name((hk_coll)call->coll);
}

/* ---- calls of the API ---- */

void *hk_profile_group_open(hk_profiler *p, int depth) {
  profile_event e = {.type = PROFILE_GROUP_API, .group_api.depth = depth};
  void *event = profiler_start(p, &e);
  profiler_record(p, event, PROFILE_GROUP_START_OVER, (profile_state){0});
  return event;
}

void hk_profile_group_runs(hk_profiler *p, void *group) {
  profiler_record(p, group, PROFILE_GROUP_END_BEGINS, (profile_state){0});
}

void hk_profile_call(hk_profiler *p, hk_call *call, void *group) {
  profile_event e = {.parent = group};
  const char *type = profiler_type_name(call->dtype);
  if (call->coll == HK_SENDRECV) {
    e.type = PROFILE_P2P_API;
    e.p2p_api.function = profiler_function_of(call);
    e.p2p_api.count = call->count;
    e.p2p_api.type = type;
    e.p2p_api.stream = call->stream;
    e.p2p_api.tag = call->tag;
  } else {
    e.type = PROFILE_COLL_API;
    e.coll_api.function = profiler_function_of(call);
    e.coll_api.count = call->count;
    e.coll_api.type = type;
    e.coll_api.root = call->root;
    e.coll_api.stream = call->stream;
    e.coll_api.tag = call->tag;
  }
  call->group_event = group;
  call->event = profiler_start(p, &e);
}

/* ---- operations ---- */

static void *profiler_group_of(hk_profiler *p) {
  if (!p->group) {
    profile_event e = {.type = PROFILE_GROUP};
    p->group = profiler_start(p, &e);
  }
  return p->group;
}

/* Starts the event of a collective, and reports its kernel launch. */
static void *profiler_begin_collective(hk_profiler *p, const hk_call *call, const char *algorithm, const char *protocol,
                                       unsigned channels) {
  profile_event launch = {.type = PROFILE_KERNEL_LAUNCH, .parent = call->group_event};
  profile_event e = {.type = PROFILE_COLL, .parent = call->event};
  e.coll = (profile_coll){.sequence = p->sequence++,
                          .function = profiler_function_of(call),
                          .in = call->in,
                          .out = call->out,
                          .count = call->count,
                          .root = call->root,
                          .type = profiler_type_name(call->dtype),
                          .channels = (uint8_t)channels,
                          .warps = 1,
                          .algorithm = algorithm,
                          .protocol = protocol,
                          .group = profiler_group_of(p),
                          .tag = call->tag};
  void *event = profiler_start(p, &e);
  launch.launch.stream = call->stream;
  hk_profile_over(p, profiler_start(p, &launch));
  return event;
}

void hk_profile_collective(hk_profiler *p, const hk_call *call, const char *algorithm, unsigned channels) {
  if (channels > HK_CHANNELS) channels = HK_CHANNELS;
  p->coll = profiler_begin_collective(p, call, algorithm, "SIMPLE", channels);
  if (!(p->mask & PROFILE_KERNEL_CHANNEL)) return;
  p->began = hk_now_ns();
  p->computed = p->waited = 0;
  for (p->nkernels = 0; p->nkernels < channels; p->nkernels++) {
    profile_event k = {.type = PROFILE_KERNEL_CHANNEL, .parent = p->coll};
    k.kernel = (profile_kernel_v4){.channel = (uint8_t)p->nkernels, .timer = p->began};
    p->kernels[p->nkernels] = profiler_start(p, &k);
  }
}

void *hk_profile_enqueued(hk_profiler *p, const hk_call *call, const char *algorithm, const char *protocol,
                          unsigned channels) {
  /* A plugin may keep the operation's record until as many channels have ended, and those of GPUs are not reported. */
  if (p->mask & PROFILE_KERNEL_CHANNEL) channels = 0;
  return profiler_begin_collective(p, call, algorithm, protocol, channels < UINT8_MAX ? channels : UINT8_MAX);
}

void *hk_profile_copies(hk_profiler *p, const hk_call *call) {
  profile_event e = {.type = PROFILE_COPY_COLL, .parent = call->event};
  e.copy_coll = (profile_copy_coll){.sequence = p->sequence++,
                                    .function = profiler_function_of(call),
                                    .in = call->in,
                                    .out = call->out,
                                    .count = call->count,
                                    .root = call->root,
                                    .type = profiler_type_name(call->dtype),
                                    .sync = "UC",
                                    .batch = (uint32_t)p->comm->nranks,
                                    .batches = 1,
                                    .number = p->copies++,
                                    .stream = call->stream,
                                    .tag = call->tag};
  return profiler_start(p, &e);
}

void hk_profile_copy_sync(hk_profiler *p, void *parent, bool complete) {
  profile_event e = {.type = PROFILE_COPY_SYNC, .parent = parent};
  e.copy_sync.complete = complete;
  e.copy_sync.ranks = p->comm->nranks;
  hk_profile_over(p, profiler_start(p, &e));
}

void hk_profile_copy_batch(hk_profiler *p, void *parent, int operations, size_t bytes) {
  profile_event e = {.type = PROFILE_COPY_BATCH, .parent = parent};
  e.copy_batch.operations = operations;
  e.copy_batch.bytes = bytes;
  hk_profile_over(p, profiler_start(p, &e));
}

void hk_profile_computed(hk_profiler *p) {
  if (p->mask & PROFILE_KERNEL_PHASE && !p->computed) p->computed = hk_now_ns();
}

void hk_profile_waited(hk_profiler *p, uint64_t ns) { p->waited = ns; }

/* The parts of a channel's time. Programs begin without a barrier. Phase 0 is as long as this rank's long waits for
 * other ranks: the rank that came last has none, or the shortest. A phase without length is not reported, as in
 * NCCL. */
static void profiler_phases(hk_profiler *p, unsigned channel, uint64_t end) {
  static const char *const names[] = {"initial_sync", "compute", "final_sync"};
  const uint64_t computed = p->computed ? p->computed : end, synced = p->began + p->waited;
  const uint64_t times[] = {p->began, synced < computed ? synced : computed, computed, end};
  for (uint8_t i = 0; i < HK_ARRAY_LENGTH(names); i++) {
    profile_event e = {.type = PROFILE_KERNEL_PHASE, .parent = p->kernels[channel]};
    if (times[i] == times[i + 1]) continue;
    e.kernel_phase.channel = (uint8_t)channel;
    e.kernel_phase.phase = i;
    e.kernel_phase.name = names[i];
    e.kernel_phase.timer = times[i];
    void *event = profiler_start(p, &e);
    profiler_record(p, event, PROFILE_KERNEL_PHASE_STOP, (profile_state){.timer = times[i + 1]});
    hk_profile_over(p, event);
  }
}

void hk_profile_collective_over(hk_profiler *p) {
  uint64_t end = hk_now_ns();
  for (unsigned i = 0; i < p->nkernels; i++) {
    profiler_phases(p, i, end);
    profiler_record(p, p->kernels[i], PROFILE_KERNEL_CHANNEL_STOP, (profile_state){.timer = end});
    hk_profile_over(p, p->kernels[i]);
  }
  p->nkernels = 0;
  hk_profile_over(p, p->coll);
  p->coll = NULL;
}

void *hk_profile_transfer(hk_profiler *p, const hk_call *call, void **kernel) {
  profile_event e = {.type = PROFILE_P2P, .parent = call->event};
  profile_event k = {.type = PROFILE_KERNEL_CHANNEL};
  if (kernel) *kernel = NULL;
  e.p2p = (profile_p2p){.function = profiler_function_of(call),
                        .buffer = call->p2p == HK_P2P_SEND ? (void *)(uintptr_t)call->in : call->out,
                        .type = profiler_type_name(call->dtype),
                        .count = call->count,
                        .peer = call->root,
                        .channels = kernel || !(p->mask & PROFILE_KERNEL_CHANNEL),
                        .group = profiler_group_of(p),
                        .tag = call->tag};
  k.parent = profiler_start(p, &e);
  k.kernel = (profile_kernel_v4){.timer = hk_now_ns()};
  if (kernel && k.parent && (p->mask & PROFILE_KERNEL_CHANNEL)) *kernel = profiler_start(p, &k);
  return k.parent;
}

void hk_profile_transfer_over(hk_profiler *p, void *transfer, void *kernel) {
  const uint64_t end = kernel ? hk_now_ns() : 0;
  profiler_record(p, kernel, PROFILE_KERNEL_CHANNEL_STOP, (profile_state){.timer = end});
  hk_profile_over(p, kernel);
  hk_profile_over(p, transfer);
}

void hk_profile_run_over(hk_profiler *p) {
  hk_profile_collective_over(p);
  hk_profile_over(p, p->group);
  p->group = NULL;
}

/* ---- network plugins ---- */

/* The handle that a network plugin gets: the plugin does not pass the profiler when it stops an event */
typedef struct net_event {
  hk_profiler *profiler;
  void *event;
} net_event;

int hk_profile_net_event(void **event, int type, void *profiler, int64_t id, void *data) {
  enum { START, STOP, UPDATE, UPDATE_AND_STOP };
  hk_profiler *p = profiler;
  if (type == START) {
    profile_event e = {.type = PROFILE_NET_PLUGIN, .net = {id, data}};
    *event = NULL;
    if (!p || !(p->mask & PROFILE_NET_PLUGIN)) return ncclSuccess;
    e.parent = p->coll;
    net_event *n = malloc(sizeof *n);
    if (!n) return ncclSystemError;
    *n = (net_event){p, profiler_start(p, &e)};
    *event = n;
    return ncclSuccess;
  }
  net_event *n = *event;
  if (!n) return ncclSuccess;
  if (type >= UPDATE) profiler_record(n->profiler, n->event, PROFILE_NET_PLUGIN_UPDATE, (profile_state){.data = data});
  if (type == UPDATE) return ncclSuccess;
  hk_profile_over(n->profiler, n->event);
  free(n);
  *event = NULL;
  return ncclSuccess;
}
