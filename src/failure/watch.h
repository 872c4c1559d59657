/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: what this rank shows to other ranks, what they answer, and reports of waits that are too long. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../boot/activity.h"
#include "../core/comm.h"

struct hk_call;
struct hk_status_page; /* transport/status_page.h */
struct hk_status_page_op;

/* ---- shown.c: what this rank does ---- */
hk_status hk_watch_new(ncclComm_t c); /* c->order.page, c->order.meter */
/* Publishes the next operation, which this rank has put on a stream. `traceable`: the operation has the same number on
 * all ranks. False after the capture of a graph, because replays are not counted.  Returns as hk_watch_count. */
struct hk_meter_cell *hk_watch_enqueued(ncclComm_t c, const struct hk_call *call, bool traceable);
/* Publishes the send or receive, or the one-sided operation, in which this rank waits; NULL: none. */
void hk_watch_transfer(ncclComm_t c, const struct hk_call *call);
/* The same, as the current operation, unless this rank is in another one. */
static inline void hk_watch_transfer_waits(ncclComm_t c, const struct hk_call *call) {
  if (c->order.current) return;
  c->order.current = call;
  hk_watch_transfer(c, call);
}
/* It is complete; others may still be under way. */
static inline void hk_watch_transfer_over(ncclComm_t c, const struct hk_call *call) {
  if (c->order.current == call) c->order.current = NULL;
}
/* No send, receive or one-sided operation is under way any more. */
static inline void hk_watch_transfers_over(ncclComm_t c) {
  c->order.current = NULL;
  hk_watch_transfer(c, NULL);
}
void hk_watch_all_over(ncclComm_t c);               /* nor a collective */
void hk_watch_report(void *comm, hk_activity *out); /* hk_bootstrap_options.report */
void hk_watch_describe(const struct hk_call *call, char *text, size_t bytes);
/* Shows the awaited peer (-1: not known), and since when this rank waits. */
void hk_watch_show_wait(ncclComm_t c, int peer, uint64_t waited_ns);
void hk_watch_show_end(ncclComm_t c); /* the communicator is being freed */
/* What a page shows; of one operation. */
void hk_watch_read_page(const struct hk_status_page *b, hk_activity *out);
void hk_watch_read_operation(hk_activity *out, const struct hk_status_page_op *o);

/* ---- ask.c: what other ranks do ---- */
/* The peers that the current operation waits for, each once. Returns their number, at most `capacity`. */
int hk_watch_awaited(ncclComm_t c, int *peers, int capacity);
uint32_t hk_watch_own_signature(ncclComm_t c); /* of the collective that runs; 0: none does */
/* Gets the activity of a rank. Blocks for at most about patience_ns. */
hk_presence hk_watch_ask(ncclComm_t c, int rank, uint64_t patience_ns, hk_activity *out);
/* As hk_watch_ask, but reads the activity as of call number `operation` from the rank's status page, if this process
 * has that page, as it has its own. False: unknown. */
bool hk_watch_call_of(ncclComm_t c, int rank, uint64_t operation, uint64_t patience_ns, hk_activity *out);
/* The signature of the rank's call number `operation`; 0: the rank has not begun it, or it is too old to be known. */
uint32_t hk_watch_signature(const hk_activity *a, uint64_t operation);
/* The rank's newest call. */
struct hk_call hk_watch_call(const hk_activity *a);
/* True if the rank has left the communicator: this rank has then raised that as its verdict. */
bool hk_watch_left(ncclComm_t c, const struct hk_call *call, int rank);

/* ---- watch.c: waits that are too long ---- */
/* The hk_wait_env.check of this communicator's waits. */
hk_status hk_watch(void *comm, uint64_t waited_ns);
/* A launch on the GPU that does not end. */
typedef struct hk_long_launch {
  uint64_t waited_ns;
  bool captured;   /* or it is a replay of a graph */
  char peers[96];  /* the ranks whose data it awaits over the network, "1, 3"; empty: none */
  char links[480]; /* the states of its links, from "; " on. Both are from hk_gpu_proxy_report (gpu/proxy.h) */
} hk_long_launch;
/* Reports it, with the ranks that have begun more or fewer operations; an error if HOCKET_WATCHDOG_ABORT is set. From
 * any thread; takes about a second at most. */
hk_status hk_watch_launch(ncclComm_t c, const hk_long_launch *l);
/* Called before the communicator's parts are freed: shows other ranks that this one ends. After it returns no inquiry
 * is under way. */
void hk_watch_end(ncclComm_t c);
