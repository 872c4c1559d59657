/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The backend of a communicator: host memory or GPUs. The runtime contains the code that both share, and calls this
 * table for the rest. A communicator has one backend for its whole life (ncclComm.backend), and a state that only this
 * backend reads (ncclComm.backend_state). All ranks of a communicator have the same backend.
 *
 * A new backend is one file that fills the table, and one line in backends.c.
 *
 * Unless a comment says otherwise: a slot must not be NULL. The thread of the API call calls it, and no two threads
 * call it for one communicator at the same time. It reports a failure with HK_FAIL, and the caller then ends the
 * communicator with that error.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_algorithm;
struct hk_call;
struct hk_constants;
struct hk_facts; /* base/facts.h */
struct hk_host_facts;
struct hk_joined;
struct hk_machine;
struct hk_outlines; /* decide/outlines.h */
struct hk_plan;
struct hk_program;
struct hk_topo;
struct hk_window_ops;
struct ncclComm;

/* Size of the fact in which a rank describes its backend to the other ranks at init. It is part of the wire format. */
enum { HK_BACKEND_FACT_BYTES = 56 };

/* The GPU of a rank, for diagnostics. */
typedef struct hk_backend_device {
  char name[64], driver[32]; /* driver: of NVIDIA; empty: not known */
  int count;                 /* GPUs of the host that this process sees */
  int cuda;                  /* the version that the driver supports, 12080 */
  int links, links_up;       /* NVLinks */
  bool ecc_known;
  uint64_t corrected, uncorrected; /* memory errors since the driver started */
} hk_backend_device;

/* ncclCommSuspend, ncclCommResume, ncclCommMemStats. */
typedef struct hk_suspension_ops {
  /* suspend releases memory, resume allocates it again: by all ranks together, while nothing runs. */
  hk_status (*suspend)(struct ncclComm *c);
  hk_status (*resume)(struct ncclComm *c);
  /* *may: bytes of GPU memory that suspend releases. *stays: bytes that it keeps. */
  void (*held)(struct ncclComm *c, uint64_t *may, uint64_t *stays);
} hk_suspension_ops;

/* Registered memory: from any thread. */
typedef struct hk_memory_ops {
  /* The user registers memory, perhaps as a symmetric window. *handle is NULL on entry. If this function sets it, the
   * caller passes it to `drop`; otherwise `drop` is not called. A failure leaves the communicator as it is. */
  hk_status (*add)(struct ncclComm *c, void *base, size_t bytes, bool symmetric, void **handle);
  /* Ends the registration. No call uses the memory any more. */
  void (*drop)(struct ncclComm *c, void *base, size_t bytes, void *handle);
} hk_memory_ops;

/* For diagnostics (comm/diagnose.h). */
typedef struct hk_diagnosis_ops {
  void (*inspect)(struct ncclComm *c, hk_backend_device *out); /* the rank's GPU */
  /* Between host memory and memory of the backend's `alloc`, after the work of the legacy stream. */
  hk_status (*copy)(struct ncclComm *c, void *to, const void *from, size_t bytes);
} hk_diagnosis_ops;

/* What needs no communicator: from any thread. */
typedef struct hk_process_ops {
  /* The number of devices that communicators can use; 0 if the backend has no devices. */
  int (*devices)(void);
  /* True if a communicator that this thread creates uses this backend. *device: the device's number, or -1 for host
   * memory. */
  bool (*choose)(int *device);
  /* ncclMemAlloc on that device: memory that other ranks' processes can reach. */
  hk_status (*alloc)(int device, size_t bytes, void **out);
  /* ncclMemFree.  False if `p` is not of this backend's alloc; else *rc is the result.  The last backend of the list
   * always returns true, with an error in *rc if no backend has allocated `p`. */
  bool (*free)(void *p, hk_status *rc);
} hk_process_ops;

typedef struct hk_backend {
  /* ---- properties ---- */

  /* Channels may use different ring orders. Init then searches for the orders, and a plan has a program for each
   * order. */
  bool ring_orders;
  /* A scalar of ncclScalarDevice is read when a call runs (hk_call.scalar_on_device), not when the operator is made. */
  bool late_scalars;

  const hk_process_ops *process;

  /* ---- init, in this order; each slot runs once on each rank, on the thread of the init ---- */

  /* Before the ranks exchange facts: creates the state and fills `fact` (HK_BACKEND_FACT_BYTES, zeroed, 8-aligned) for
   * the other ranks. May set wiring.env.gpu for the transports. After a failure the caller calls detach. NULL: nothing
   * to make or to publish. */
  hk_status (*attach)(struct ncclComm *c, void *fact);
  /* After the exchange, and after the transports have joined. Collective: all ranks call it, and it may exchange more.
   * NULL: nothing to do. */
  hk_status (*join)(struct ncclComm *c, const struct hk_facts *facts);
  /* *out: the topology of this host, for the ring search; NULL if it cannot be detected. If it was created for this
   * call, *own is the same topology, and the caller frees it. */
  hk_status (*topology)(struct ncclComm *c, struct hk_topo **own, const struct hk_topo **out);
  /* The node of that topology on which a rank runs, found by the rank's fact and its processors (HK_CPU_WORDS words);
   * UINT32_MAX if the topology does not contain it. */
  uint32_t (*node_of)(const struct hk_topo *t, const void *fact, const uint64_t *cpus);
  /* Fills in the cost model's machine. The result must be equal on all ranks, so it depends only on data that all ranks
   * have. `rings`: the ring orders that the search found; NULL: rings follow the order of ranks. */
  void (*machine)(const struct ncclComm *c, const struct hk_host_facts *hosts, const struct hk_joined *rings,
                  const struct hk_constants *constants, struct hk_machine *out);
  /* Gives the outlines the links between the ranks of a host (hk_outlines_wire), if all ranks know the same. NULL:
   * never. */
  hk_status (*wire)(const struct ncclComm *c, struct hk_outlines *o);

  /* ---- plans: by the thread that runs calls ---- */

  /* The largest number of copies of a program's lanes in one launch. Each copy uses `span` channels. May be 0: then
   * bind fails. */
  unsigned (*most_channels)(const struct ncclComm *c, const struct hk_program *p, unsigned span);
  /* Binds a new plan to links before its first call, `call`. The plan already has its program, channels, orders and
   * room for links. Links to other processes may only be announced here; the first run then opens them. After a failure
   * the caller calls unbind. */
  hk_status (*bind)(struct ncclComm *c, struct hk_plan *plan, unsigned span, const struct hk_call *call);
  /* Frees plan->device, which bind created. No call uses the plan any more. NULL: nothing to free. */
  void (*unbind)(struct ncclComm *c, struct hk_plan *plan);
  /* Bytes of one message in a slot of the program's links. `bytes`: the slot size of the cost model's machine. */
  size_t (*slot_bytes)(const struct ncclComm *c, const struct hk_program *p, size_t bytes);
  /* True if a switch can reduce with the call's type and operator. NULL if `machine` never sets in_switch. */
  bool (*switch_reduces)(const struct hk_call *call);

  /* ---- calls ---- */

  /* Refuses a call for arguments that the API layer cannot check: streams, buffers, a transfer from a rank to itself
   * that would never end. Runs for each call before the call is queued, so it must be cheap. A failure changes nothing.
   * `who`: the API function. */
  hk_status (*check)(const struct hk_call *call, const char *who);
  /* `by` 1: the call now waits in an open group, so its stream and buffers must stay valid. -1: it no longer waits.
   * NULL: they always stay valid. */
  void (*hold)(const struct hk_call *call, int by);
  /* Runs a call outside of a group, or enqueues it on its stream. If this rank fails, the communicator has ended on
   * return. */
  hk_status (*run_one)(const struct hk_call *call);
  /* The same for all calls of a group on this backend, in the order of the calls. They may belong to several
   * communicators, which are already marked as in use (hk_health.inside, calling). If this rank lacks a resource and so
   * begins none of a communicator's calls, the communicator must end (hk_calls_fail), because its other ranks wait. */
  hk_status (*run_group)(const struct hk_call *calls, size_t n);

  /* Prepares one-sided operations, if join has set ncclComm.one_sided. All ranks call it together: for each window, and
   * at the end of init if the user asks for that. NULL: rma/rma.h carries them out. */
  hk_status (*rma_begin)(struct ncclComm *c);

  const hk_diagnosis_ops *diagnosis; /* NULL: there is no GPU, and calls use any memory */

  /* NULL: suspend has nothing to release. */
  const hk_suspension_ops *suspension;

  /* ---- failures and the end ---- */

  /* Checks device work for failures, and warns if it does not end. From any thread. NULL: calls report their own
   * failures. Any thread may set hk_health.failure; if attach has set hk_health.stop_kernels, that word then ends
   * running kernels. */
  hk_status (*poll_health)(struct ncclComm *c);
  /* Waits until all enqueued work has ended. If the communicator has failed, it also stops the work, and gives up after
   * some seconds. NULL: only host streams run work after a call has returned, and the caller waits for those. */
  void (*drain)(struct ncclComm *c);
  /* After a failure, called any number of times: false while a thread of the backend is inside a transport, perhaps in
   * a plugin call that does not return. NULL: there is no such thread. */
  bool (*has_left)(struct ncclComm *c);
  /* After drain: ends the backend's threads. Links, bootstrap and service thread still exist. Also called after an init
   * that failed at any point. */
  void (*stop)(struct ncclComm *c);
  /* After stop, when links, bootstrap, service thread and plans have been freed: frees the state, which may be NULL.
   * Logs failures. NULL: there is no state. */
  void (*detach)(struct ncclComm *c);

  const hk_memory_ops *memory;
  /* Windows that users' kernels can access (windows.h); join has filled ncclComm.lsa. NULL: a window is only registered
   * memory of its own rank. */
  const struct hk_window_ops *windows;
} hk_backend;

extern const hk_backend hk_backend_gpu, hk_backend_host;

/* backends.c: all backends in order of preference, NULL-terminated. A group's calls go to them in this order, so a
 * backend that enqueues precedes one that waits. */
extern const hk_backend *const hk_backends[];
/* Returns the backend, and in *device the device, of a communicator that this thread creates. */
const hk_backend *hk_backend_choose(int *device);
/* The number of devices of all backends together. */
int hk_backend_devices(void);
