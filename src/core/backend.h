/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What ranks work on: host memory or GPUs.  The runtime does what is the same for both, and calls this table for the
 * rest. A communicator has one backend for its whole life (ncclComm.backend), and a state that only this backend reads
 * (ncclComm.backend_state).  All ranks of a communicator have the same backend.
 *
 * A new backend is one file that fills the table, and one line in backends.c.
 *
 * If the text does not say otherwise: a slot must not be NULL; it is called by the thread that makes the API call, and
 * by one thread at a time for a communicator; a failure is reported with HK_FAIL, and the caller ends the communicator
 * with it.
 */
#ifndef HK_CORE_BACKEND_H
#define HK_CORE_BACKEND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_algorithm;
struct hk_call;
struct hk_constants;
struct hk_host_facts;
struct hk_joined;
struct hk_machine;
struct hk_plan;
struct hk_program;
struct hk_topo;
struct hk_window_ops;
struct ncclComm;

/* What a rank publishes of what it works on.  Part of what ranks exchange at init: its size is part of the format. */
enum { HK_BACKEND_FACT_BYTES = 56 };

typedef struct hk_backend {
  /* ---- properties ---- */

  /* Channels may go in different ring orders.  So init searches for these orders, and a plan has a program for each. */
  bool ring_orders;
  /* A scalar of ncclScalarDevice is read when a call runs (hk_call.scalar_on_device), not when the operator is made. */
  bool late_scalars;

  /* ---- the process: from any thread ---- */

  /* How many devices communicators can use; 0 if there is no such thing as a device. */
  int (*devices)(void);
  /* True if a communicator that this thread makes works here.  Sets *device: its number, or -1 for host memory. */
  bool (*choose)(int *device);
  /* ncclMemAlloc on that device: memory that other ranks' processes can reach. */
  hk_status (*alloc)(int device, size_t bytes, void **out);
  /* ncclMemFree.  False if `p` is not of this backend's alloc; else *rc is the result.  The last backend of the list
   * always returns true, with an error in *rc if no backend has allocated `p`. */
  bool (*free)(void *p, hk_status *rc);

  /* ---- init, in this order; each slot runs once on each rank, on the thread of the init ---- */

  /* Before the ranks' exchange: makes the state, and fills `fact` (HK_BACKEND_FACT_BYTES, zeros, 8-aligned) with what
   * the other ranks must know.  May set wiring.env.gpu, which transports see from then on.  After a failure detach is
   * called. NULL: nothing to make or to publish. */
  hk_status (*attach)(struct ncclComm *c, void *fact);
  /* After the exchange, and after the transports have joined; rank r's fact is `stride` bytes after rank r - 1's.
   * Collective: all ranks call it, and it may exchange more.  NULL: nothing to do. */
  hk_status (*join)(struct ncclComm *c, const void *facts, size_t stride);
  /* The machine in which ranks have their seats, to search for rings: *out, NULL if it cannot be seen.  If it was made
   * for this call it is *own too, which the caller frees. */
  hk_status (*topology)(struct ncclComm *c, struct hk_topo **own, const struct hk_topo **out);
  /* The node of that machine on which a rank works, by the rank's fact and its processors (HK_CPU_WORDS words);
   * UINT32_MAX if it is not there. */
  uint32_t (*seat)(const struct hk_topo *t, const void *fact, const uint64_t *cpus);
  /* The machine as the cost model knows it.  Must be equal on all ranks, so it follows from what all ranks know.
   * `rings`: the ring orders that were found; NULL: the order of ranks. */
  void (*machine)(const struct ncclComm *c, const struct hk_host_facts *hosts, const struct hk_joined *rings,
                  const struct hk_constants *constants, struct hk_machine *out);

  /* ---- plans: by the thread that runs calls ---- */

  /* How many copies of a program's lanes, each of which uses `span` channels, a launch may have.  May be 0: then bind
   * fails. */
  unsigned (*most_channels)(const struct ncclComm *c, const struct hk_program *p, unsigned span);
  /* Binds a new plan (program, channels, orders and room for links are there) to links, before its first call, which is
   * `call`. Links to other processes may be announced only, and be opened by the first run.  After a failure unbind is
   * called. */
  hk_status (*bind)(struct ncclComm *c, struct hk_plan *plan, unsigned span, const struct hk_call *call);
  /* Frees what bind has made (plan->device); no call uses the plan any more.  NULL: nothing to free. */
  void (*unbind)(struct ncclComm *c, struct hk_plan *plan);
  /* Bytes of a message in a slot of the links that the program uses; `bytes`: what the model's machine has. */
  size_t (*slot_bytes)(const struct ncclComm *c, const struct hk_program *p, size_t bytes);
  /* Can a switch reduce with the call's type and operator?  NULL if `machine` never has in_switch. */
  bool (*switch_reduces)(const struct hk_call *call);

  /* ---- calls ---- */

  /* Refuses a call for arguments that the API itself cannot judge: streams, buffers, a transfer to the own rank that
   * never ends. Runs at each call, before it is queued, so it must be cheap.  A failure changes nothing.  `who` is the
   * API function. */
  hk_status (*check)(const struct hk_call *call, const char *who);
  /* The call waits in an open group (by 1), or does not any more (by -1): what it names must stay until then.  NULL: it
   * does. */
  void (*hold)(const struct hk_call *call, int by);
  /* Runs a call outside of a group, or enqueues it on its stream.  On a failure that is this rank's, the communicator
   * has ended. */
  hk_status (*run_one)(const struct hk_call *call);
  /* The same for all calls of a group that are of this backend, of one or more communicators, in the order of the
   * calls.  Their communicators know that they are inside (hk_health.inside, calling).  If nothing of its calls was
   * begun because of what this rank lacks, the communicator must end (hk_calls_fail): its other ranks wait. */
  hk_status (*run_group)(const struct hk_call *calls, size_t n);

  /* What one-sided operations need, if ncclComm.one_sided, which join has filled.  By all ranks: with each window,
   * and at the end of init if the user asks for that.  NULL: rma/rma.h does them. */
  hk_status (*rma_begin)(struct ncclComm *c);

  /* ---- memory that is given back: by all ranks together, while nothing runs ---- */

  /* Gives memory back, and gets it again.  NULL together: there is nothing to give back. */
  hk_status (*suspend)(struct ncclComm *c);
  hk_status (*resume)(struct ncclComm *c);
  /* Bytes of GPU memory that suspend gives back, and that stay.  NULL: there is none. */
  void (*memory_held)(struct ncclComm *c, uint64_t *may, uint64_t *stays);

  /* ---- failures and the end ---- */

  /* Looks for failures of what runs on a device, and warns of what does not end.  From any thread.  NULL: calls report
   * their own. A failure sets hk_health.failure from any thread; if attach has set hk_health.stop_kernels, that word
   * ends what runs. */
  hk_status (*look)(struct ncclComm *c);
  /* Waits until all that was enqueued is over.  If the communicator has failed, this ends work too, and gives up after
   * some seconds.  NULL: nothing runs after a call has returned, but for streams, which the caller waits for. */
  void (*drain)(struct ncclComm *c);
  /* After a failure, any number of times: false while a thread of the backend is in a transport, perhaps in a call of a
   * plugin that does not return.  NULL: there is no such thread. */
  bool (*has_left)(struct ncclComm *c);
  /* After drain: ends the backend's threads.  Links, bootstrap and service thread are there still.  Also after an init
   * that failed at any point. */
  void (*stop)(struct ncclComm *c);
  /* After stop, when links, bootstrap, service thread and plans are gone: frees the state, which may be NULL.  Failures
   * are logged. NULL: there is no state. */
  void (*detach)(struct ncclComm *c);

  /* ---- registered memory: from any thread ---- */

  /* The user registers memory, as a symmetric window or not.  *handle (NULL on entry) is for memory_drop; if it stays
   * NULL, that is not called.  A failure leaves the communicator as it is. */
  hk_status (*memory_add)(struct ncclComm *c, void *base, size_t bytes, bool symmetric, void **handle);
  /* Takes that back; no call uses the memory any more. */
  void (*memory_drop)(struct ncclComm *c, void *base, size_t bytes, void *handle);
  /* Windows that kernels of users reach (windows.h); join has filled ncclComm.lsa.  NULL: a window is only registered
   * memory, each rank's own. */
  const struct hk_window_ops *windows;
} hk_backend;

extern const hk_backend hk_backend_gpu, hk_backend_host;

/* backends.c: all backends, ended by NULL, in order of preference.  A group's calls are given to them in this order, so
 * one that enqueues comes before one that waits. */
extern const hk_backend *const hk_backends[];
/* The backend of a communicator that this thread makes, and its device. */
const hk_backend *hk_backend_choose(int *device);
/* Devices of all backends. */
int hk_backend_devices(void);
#endif
