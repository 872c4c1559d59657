/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of one-sided operations on host memory: rma.c has this rank's windows, target.c those of other
 * ranks, put.c the operations, gone.c the causes why a window is not there. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "rma.h"

struct hk_call;
struct hk_messages; /* transport/messages.h */
struct hk_remote;   /* transport/remote.h */

/* LINE: bytes, two cache lines. NAP_NS: of a wait for another rank. */
enum { HK_RMA_LINE = 128, HK_RMA_NAP_NS = 200 * 1000 };

/* The signal table, in memory that other processes can map. The counters of each rank have cache lines of their own. */
typedef struct hk_rma_table {
  _Alignas(
      /* number of windows deregistered: when it changes, other ranks' data about windows is out of date */
      HK_RMA_LINE) _Atomic uint64_t dropped;
  _Alignas(HK_RMA_LINE) _Atomic uint64_t counters[];
} hk_rma_table;

_Static_assert(HK_RMA_LINE / sizeof(uint64_t) == HK_RMA_ROW, "a row is whole lines");

typedef enum hk_rma_way { HK_RMA_BY_STORES, HK_RMA_BY_COPY, HK_RMA_BY_CARD, HK_RMA_BY_MESSAGES } hk_rma_way;

/* A window of another rank. */
typedef struct hk_rma_target {
  bool known;
  hk_rma_way way;
  char *base;       /* HK_RMA_BY_STORES: its address in this process */
  uint64_t address; /* its address in the process of the peer */
  size_t bytes;
} hk_rma_target;

typedef struct hk_rma_peer {
  uint64_t dropped;       /* the peer's `dropped` when the windows below were looked up */
  hk_rma_target *windows; /* by number; the table first */
  size_t n;
  const struct hk_remote *remote; /* functions of the network that reaches it; NULL: not looked up, or none */
  void *network;
} hk_rma_peer;

struct hk_rma {
  hk_rma_table *table;
  size_t table_bytes, row; /* row: counters of one rank in the table */
  size_t inbox_at;         /* offset in the table of the inbox for a backend's packets; 0: none */
  uint64_t *consumed;      /* indexed as the table's counters */
  struct hk_messages *messages;
  hk_rma_peer *peers; /* [nranks] */
};

static inline void hk_rma_count_up(_Atomic uint64_t *counter) {
  /* relaxed: only this rank increments it. release: a reader that sees the signal sees the data of this and all earlier
   * puts */
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_release);
}

/* A peer refuses this rank's operations: ends the communicator. `arg`: the communicator. */
void hk_rma_on_refusal(void *arg, int from, const char *text);
/* The window of the call's peer with that number, looked up at first use; the peer's signal table. */
hk_status hk_rma_find_target(const struct hk_call *call, uint64_t number, hk_rma_target **out);
hk_status hk_rma_find_table(const struct hk_call *call, hk_rma_target *out);
/* The peer has no such window: fails with the cause. */
hk_status hk_rma_is_gone(const struct hk_call *call, uint64_t number);
