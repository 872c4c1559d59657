/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for ranks on host memory: calls run on the calling thread or on a host stream's thread, over the links of
 * the transports. */
#include "host_backend.h"
#include <stdlib.h>
#include <string.h>
#include "../base/thread.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../device/host.h"
#include "../failure/failure.h"
#include "collnet.h"
#include "run.h"
#include "stream.h"

/* ---- the process ---- */

static int host_backend_devices(void) { return 0; }

static bool host_backend_choose(int *device) {
  *device = -1;
  return true;
}

static hk_status host_backend_alloc(int device, size_t bytes, void **out) {
  (void)device;
  return hk_host_alloc(out, bytes);
}

static bool host_backend_free_memory(void *p, hk_status *rc) {
  *rc = hk_host_free(p);
  return true;
}

/* ---- calls ---- */

/* The check of a transfer's buffer is skipped if the last transfer had the same buffer. Transfers have a fixed plan, so
 * hk_host_bind does not check them. */
static inline const void **host_backend_looked_at(const hk_call *call, const void **buffer) {
  bool in = call->p2p == HK_P2P_SEND || call->p2p == HK_P2P_PUT;
  *buffer = in ? call->in : call->out;
  return &call->comm->order.looked_at[in];
}

static __attribute__((noinline)) hk_status host_backend_check_all(const hk_call *call, const char *who) {
  const void *buffer, **seen = host_backend_looked_at(call, &buffer);
  if (!hk_stream_is_null(call->stream)) HK_OR_RETURN(hk_stream_check(call->stream, who));
  if (call->launched)
    return HK_FAIL(
        HK_ERR_ARGUMENT,
        "%s: launchCompletionEvent is a CUDA event, and this communicator works on host memory: leave it out", who);
  if (!call->p2p) return HK_OK;
  if (buffer != *seen && call->count && call->p2p != HK_P2P_WAIT) {
    HK_OR_RETURN(hk_host_refuse_gpu_memory(call));
    *seen = buffer;
  }
  return HK_OK;
}

static hk_status host_backend_check(const hk_call *call, const char *who) {
  const void *buffer;
  bool usual = hk_stream_is_null(call->stream) && !call->launched;
  if (__builtin_expect(usual && !call->p2p, 1)) return HK_OK;
  if (__builtin_expect(usual && call->root != call->comm->rank && *host_backend_looked_at(call, &buffer) == buffer, 1))
    return HK_OK;
  return host_backend_check_all(call, who);
}

static void host_backend_hold(const hk_call *call, int by) {
  if (!hk_stream_is_null(call->stream)) hk_stream_hold(call->stream, by);
}

/* Waits until the communicator's earlier calls on streams are over. */
static inline hk_status host_backend_wait_turn(ncclComm_t c) {
  /* relaxed: only this thread issues turns for this call; a stream's batch still under way shows as issued != served */
  uint64_t issued = atomic_load_explicit(&c->order.issued, memory_order_relaxed);
  /* acquire: as in hk_turn_wait */
  if (__builtin_expect(issued == atomic_load_explicit(&c->order.served, memory_order_acquire), 1)) return HK_OK;
  return hk_turn_wait(c, issued);
}

static hk_status run_one(const hk_call *call) {
  ncclComm_t c = call->comm;
  if (!hk_stream_is_null(call->stream)) return hk_comm_failed(c, hk_stream_enqueue(call->stream, call, 1));
  hk_status rc = host_backend_wait_turn(c);
  /* A store is enough: one thread at a time may call.  relaxed: an abort from another thread that does not see it yet
   * races with the call itself, which no library can prevent; an abort that begins during the call's waits sees it. */
  atomic_store_explicit(&c->health.calling, true, memory_order_relaxed);
  bool *holds = &hk_cancel_held;
  /* the address of a thread-local variable costs a function call: computed once, not at each use */
  __asm__("" : "+r"(holds));
  bool held = *holds;
  if (rc == HK_OK) rc = hk_run_one(call);
  /* release: a thread that sees false may free what the call used */
  atomic_store_explicit(&c->health.calling, false, memory_order_release);
  if (__builtin_expect(*holds, 0) && !held) hk_cancel_release();
  return rc;
}

/* Gives each stream its calls as one batch. Changes the order of the calls; `capacity` is for 2 * n more. */
static hk_status host_backend_enqueue_calls(hk_call *calls, size_t n, hk_call *capacity) {
  hk_status rc = HK_OK;
  hk_call *batch = capacity, *rest = capacity + n;
  while (n) {
    size_t m = 0, kept = 0;
    for (size_t i = 0; i < n; i++)
      if (calls[i].stream == calls[0].stream)
        batch[m++] = calls[i];
      else
        rest[kept++] = calls[i];
    HK_TRY(hk_stream_enqueue(batch[0].stream, batch, m), out);
    memcpy(calls, rest, kept * sizeof *calls);
    n = kept;
  }
out:
  if (rc != HK_OK) hk_calls_fail(calls, n, rc);
  return rc;
}

/* Runs calls without a stream in this thread. */
static hk_status run_here(const hk_call *calls, size_t n) {
  for (size_t i = 0; i < n; i++) {
    ncclComm_t c = calls[i].comm;
    if (i && c == calls[i - 1].comm) continue;
    hk_status rc = host_backend_wait_turn(c);
    if (rc == HK_OK) continue;
    hk_calls_fail(calls, n, rc);
    return rc;
  }
  return n == 1 ? hk_run_one(calls) : hk_run_group(calls, n);
}

/* Calls without a stream run in this thread, after those for streams were enqueued. */
static hk_status run_group(const hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  size_t nhere = 0, nstreams = 0;
  while (nhere < n && hk_stream_is_null(calls[nhere].stream)) nhere++;
  if (nhere == n) return run_here(calls, n);
  hk_call *here = malloc(4 * n * sizeof *here), *streams = here + n;
  if (!here) {
    rc = HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
    hk_calls_fail(calls, n, rc);
    return rc;
  }
  nhere = 0;
  for (size_t i = 0; i < n; i++)
    if (hk_stream_is_null(calls[i].stream))
      here[nhere++] = calls[i];
    else
      streams[nstreams++] = calls[i];
  rc = host_backend_enqueue_calls(streams, nstreams, streams + n);
  if (rc != HK_OK)
    hk_calls_fail(here, nhere, rc);
  else if (nhere)
    rc = run_here(here, nhere);
  free(here);
  return rc;
}

/* ---- registered memory ----
 * Addresses in one process, and memory of ncclMemAlloc between processes, are shared without a registration. A
 * network card can send from registered memory without a copy. */

static hk_status host_backend_memory_add(ncclComm_t c, void *base, size_t bytes, bool symmetric, void **handle) {
  (void)symmetric;
  /* acquire: pairs with the end of init, which made the transports; before that there are none to notify */
  if (!bytes || atomic_load_explicit(&c->health.progress, memory_order_acquire) != HK_OK) return HK_OK;
  hk_wire_memory(c, base, bytes, true);
  *handle = base;
  return HK_OK;
}

static void host_backend_memory_drop(ncclComm_t c, void *base, size_t bytes, void *handle) {
  (void)handle;
  hk_wire_memory(c, base, bytes, false);
}

static const hk_memory_ops host_backend_memory = {.add = host_backend_memory_add, .drop = host_backend_memory_drop};

static const hk_process_ops host_backend_process = {.devices = host_backend_devices,
                                                    .choose = host_backend_choose,
                                                    .alloc = host_backend_alloc,
                                                    .free = host_backend_free_memory};

const hk_backend hk_backend_host = {
    .process = &host_backend_process,
    .topology = hk_host_topology,
    .node_of = hk_host_node_of,
    .machine = hk_host_machine,
    .most_channels = hk_host_most_channels,
    .slot_bytes = hk_collnet_slot_bytes,
    .bind = hk_host_bind,
    .check = host_backend_check,
    .hold = host_backend_hold,
    .run_one = run_one,
    .run_group = run_group,
    .stop = hk_wire_report_undelivered,
    .memory = &host_backend_memory,
};
