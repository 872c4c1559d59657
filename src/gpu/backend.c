/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for ranks on GPUs: calls become kernels, or copies, on the user's streams. */
#include "../core/backend.h"
#include "buffer.h"
#include "code.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "multicast.h"
#include "peers.h"
#include "plan.h"
#include "rma.h"
#include "run.h"
#include "window.h"

_Static_assert(sizeof(hk_gpu_fact) <= HK_BACKEND_FACT_BYTES, "a fact has its place in what ranks exchange");

static const hk_memory_ops backend_memory = {.add = hk_gpu_buffer_add, .drop = hk_gpu_buffer_drop};
static const hk_diagnosis_ops backend_diagnosis = {.inspect = hk_gpu_inspect, .copy = hk_gpu_copy};
static const hk_process_ops backend_process = {
    .devices = hk_gpu_count, .choose = hk_gpu_choose, .alloc = hk_gpu_mem_alloc, .free = hk_gpu_mem_free};

const hk_backend hk_backend_gpu = {
    .ring_orders = true,
    .late_scalars = true,
    .process = &backend_process,
    .attach = hk_gpu_attach,
    .join = hk_gpu_join,
    .topology = hk_gpu_machine_topology,
    .wire = hk_gpu_topology_wire,
    .node_of = hk_gpu_machine_node,
    .machine = hk_gpu_machine,
    .most_channels = hk_gpu_most_channels,
    .bind = hk_gpu_bind,
    .unbind = hk_gpu_plan_free,
    .slot_bytes = hk_gpu_slot_bytes,
    .switch_reduces = hk_gpu_switch_reduces,
    .check = hk_gpu_check_options,
    .diagnosis = &backend_diagnosis,
    .suspension = &hk_gpu_suspension,
    .run_one = hk_gpu_run_one,
    .run_group = hk_gpu_run,
    .poll_health = hk_gpu_poll_health,
    .drain = hk_gpu_drain,
    .has_left = hk_gpu_proxy_left,
    .stop = hk_gpu_proxy_stop,
    .detach = hk_gpu_detach,
    .rma_begin = hk_gpu_rma_begin,
    .memory = &backend_memory,
    .windows = &hk_gpu_window_ops,
};
