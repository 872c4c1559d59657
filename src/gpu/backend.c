/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for ranks on GPUs: calls become kernels, or copies, on the user's streams. */
#include "../core/backend.h"
#include "../base/thread.h"
#include "../core/call.h"
#include "../decide/constants.h"
#include "../decide/machine.h"
#include "../topo/detect.h"
#include "../topo/join.h"
#include "../topo/topo.h"
#include "../transport/cuda/multicast.h"
#include "buffer.h"
#include "code.h"
#include "endpoints.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "multicast.h"
#include "peers.h"
#include "plan.h"
#include "process_group.h"
#include "rma.h"
#include "run.h"
#include "window.h"

_Static_assert(sizeof(hk_gpu_fact) <= HK_BACKEND_FACT_BYTES, "a fact has its place in what ranks exchange");
static bool backend_choose(int *device) {
  *device = hk_gpu_choose();
  return *device >= 0;
}

/* ---- init ---- */

static hk_status backend_attach(ncclComm_t c, void *fact) { return hk_gpu_attach(c, fact); }
static hk_status backend_topology(ncclComm_t c, hk_topo **own, const hk_topo **out) {
  const hk_gpu_process_group *w = hk_gpu_of(c)->group;
  (void)own; /* the ranks of the process share what they see */
  *out = w->machine ? w->machine->kinds[0] : NULL;
  return HK_OK;
}

static uint32_t backend_node_of(const hk_topo *t, const void *fact, const uint64_t *cpus) {
  (void)cpus;
  return hk_topo_find(t, HK_NODE_GPU, ((const hk_gpu_fact *)fact)->bus);
}

static void backend_machine(const struct ncclComm *c, const hk_host_facts *hosts, const hk_joined *rings,
                            const hk_constants *constants, hk_machine *out) {
  const hk_gpu *g = hk_gpu_of(c);
  hk_gpu_facts f = {.nranks = c->nranks,
                    .nhosts = hosts->nhosts,
                    .ranks_per_host = hosts->ranks_per_host,
                    .least_per_host = hosts->least_per_host,
                    .ranks_per_gpu = g->sharers,
                    .max_channels = (int)g->blocks,
                    .sm = g->sm,
                    .wide = g->links->wide,
                    .staged = g->links->staged,
                    .in_switch = g->in_switch,
                    .slot_bytes = hosts->slot_bytes,
                    .nslots = hosts->nslots,
                    .prices = *g->topology->prices};
  if (rings && rings->intra_gbps > 0)
    f.prices.inside.ring_us_per_b = 1e-3 / (rings->nchannels * (double)rings->intra_gbps);
  *out = hk_machine_of_gpus(&f, constants);
  out->engines = g->copies->usable;
  if (rings) out->rings = rings->nchannels;
}

/* ---- plans ---- */

static size_t backend_slot_bytes(const struct ncclComm *c, const struct hk_program *p, size_t bytes) {
  return hk_gpu_uses_switch(p) ? hk_gpu_of(c)->group->multicast->slot_bytes : bytes;
}

/* ---- calls ---- */

/* Checks the call's options. Its buffers are checked when the call runs. */
static hk_status backend_check(const hk_call *call, const char *who) {
  if (call->options.policy && ((call->options.policy - 1) & ~call->comm->options.policy & NCCL_CTA_POLICY_ZERO))
    return HK_FAIL(
        HK_ERR_ARGUMENT,
        "%s: CTAPolicy of one call has NCCL_CTA_POLICY_ZERO, and the communicator's has not: copy engines are "
        "set up at init, so give it to the communicator, too (ncclConfig_t, or NCCL_CTA_POLICY=2)",
        who);
  return HK_OK;
}

static hk_status backend_run_one(const hk_call *call) {
  HK_UNCANCELLED;
  hk_health *h = &call->comm->health;
  /* A store is enough: one thread at a time may call.  relaxed: as in host_backend.c */
  atomic_store_explicit(&h->calling, true, memory_order_relaxed);
  hk_status rc = hk_gpu_run(call, 1);
  atomic_store_explicit(&h->calling, false, memory_order_release); /* a thread that sees false may free what we used */
  return rc;
}

/* ---- diagnostics ---- */

static void backend_inspect(ncclComm_t c, hk_backend_device *out) {
  const hk_device_limits *l = &hk_gpu_of(c)->device->limits;
  hk_nvml_gpu seen;
  snprintf(out->name, sizeof out->name, "%s", l->name);
  out->count = hk_gpu_count();
  out->cuda = l->driver;
  if (!hk_nvml_look(l->bus_id, &seen)) return;
  snprintf(out->driver, sizeof out->driver, "%s", seen.driver);
  out->links = seen.links;
  out->links_up = seen.links_up;
  out->ecc_known = seen.ecc_known;
  out->corrected = seen.corrected;
  out->uncorrected = seen.uncorrected;
}

static hk_status backend_copy(ncclComm_t c, void *to, const void *from, size_t bytes) {
  hk_device *d = hk_gpu_of(c)->device;
  HK_OR_RETURN(d->ops->copy(d, to, from, bytes, NULL));
  return d->ops->wait(d, NULL);
}

static hk_status backend_look(ncclComm_t c) { return hk_gpu_poll_health(c, true); }

/* ---- registered memory ---- */

static hk_status backend_memory_add(ncclComm_t c, void *base, size_t bytes, bool symmetric, void **handle) {
  hk_gpu_buffer *view;
  hk_status rc = hk_gpu_buffer_add(c, base, bytes, symmetric, &view);
  *handle = view;
  return rc;
}

static void backend_memory_drop(ncclComm_t c, void *base, size_t bytes, void *handle) {
  (void)base;
  (void)bytes;
  hk_gpu_buffer_drop(c, handle);
}

static const hk_memory_ops backend_memory = {.add = backend_memory_add, .drop = backend_memory_drop};

static const hk_diagnosis_ops backend_diagnosis = {.inspect = backend_inspect, .copy = backend_copy};

static const hk_process_ops backend_process = {
    .devices = hk_gpu_count, .choose = backend_choose, .alloc = hk_gpu_mem_alloc, .free = hk_gpu_mem_free};

const hk_backend hk_backend_gpu = {
    .ring_orders = true,
    .late_scalars = true,
    .process = &backend_process,
    .attach = backend_attach,
    .join = hk_gpu_join,
    .topology = backend_topology,
    .wire = hk_gpu_topology_wire,
    .node_of = backend_node_of,
    .machine = backend_machine,
    .most_channels = hk_gpu_most_channels,
    .bind = hk_gpu_bind,
    .unbind = hk_gpu_plan_free,
    .slot_bytes = backend_slot_bytes,
    .switch_reduces = hk_gpu_switch_reduces,
    .check = backend_check,
    .diagnosis = &backend_diagnosis,
    .suspension = &hk_gpu_suspension,
    .run_one = backend_run_one,
    .run_group = hk_gpu_run,
    .look = backend_look,
    .drain = hk_gpu_drain,
    .has_left = hk_gpu_proxy_left,
    .stop = hk_gpu_proxy_stop,
    .detach = hk_gpu_detach,
    .rma_begin = hk_gpu_rma_begin,
    .memory = &backend_memory,
    .windows = &hk_gpu_window_ops,
};
