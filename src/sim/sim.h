/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The simulator runs all ranks' programs against a cluster's links and gives the time. It reads programs, as the
 * verifier and the executors do, and knows no algorithm by name.
 *
 * Every operand on a link becomes a transfer that starts when its instruction may run. It shares each edge on its path
 * fairly (max-min) with other transfers; copies and reductions use the rank's own memory or core. Up to
 * HK_SIM_EVENT_RANKS ranks and HK_SIM_EVENT_LINKS links between hosts each slot is an event. Above that, ranks with
 * equal surroundings are folded into one and transfers are flows. docs/simulator.md has the model, its constants and
 * its error.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"
#include "../program/operation.h"

struct hk_algorithm; /* collectives/algorithm.h */
struct hk_cluster;   /* topo/topo.h */

enum {
  HK_SIM_EVENT_RANKS = 64,
  HK_SIM_EVENT_LINKS = 8192 /* between hosts, on all channels: takes some seconds if all are used at once */
};

struct hk_filter; /* decide/select.h */

typedef struct hk_sim_options {
  const struct hk_filter *filter; /* the selector's filter, unless the fields below override it; NULL: none */
  const char *algorithm;          /* NULL: the selector's choice */
  int protocol;                   /* hk_protocol; -1: the selector's choice */
  int channels;                   /* 0: the selector's choice */
  size_t chunk;                   /* bytes; 0: as the runtime chooses it */
  bool exact;                     /* event by event, for any size */
  bool folded;                    /* by symmetry, for any size; if not exact, at flow level */
  bool shifted;                   /* folded like machines with too many links to build all programs: see hk_fold */
  bool resident;  /* no more channels than a GPU has blocks of threads for all lanes, as the library has it */
  bool quantised; /* an allreduce of float32 by ranks on CPUs, in quantised form on links */
  bool graph;     /* a replayed graph launches the kernel of a GPU */
  /* Not 0: the kernels are not this library's. A lane has this part of a block of threads, and slots in the switch do
   * not limit the channels. */
  double block_part;
  bool timeline; /* keep the spans if simulated event by event */
  uint64_t seed; /* of the ECMP hash */
} hk_sim_options;

/* One span of the timeline, for Chrome's trace viewer and Perfetto. */
typedef struct hk_sim_span {
  double begin_us, end_us;
  uint32_t rank;
  uint16_t lane;
  uint32_t instr, wave;
} hk_sim_span;
typedef struct hk_sim_load {
  char name[96];     /* "host 0: GPU 3 -> NVS" */
  double gbps, used; /* gbps: capacity; used: the part of the time in which it was busy, 0 to 1 */
} hk_sim_load;

/* Of all ranks together. */
typedef struct hk_sim_counts {
  uint64_t messages[2], bytes[2]; /* inside hosts, between hosts: hk_reach */
  uint64_t written, reduced;      /* bytes */
} hk_sim_counts;

typedef struct hk_sim_result {
  double us;
  double priced_us;    /* by the cost model */
  double algbw, busbw; /* GB/s, by nccl-tests' formulas */
  char algorithm[24];
  int protocol, channels, nranks;
  size_t chunk;
  uint64_t steps;       /* instructions that were run */
  hk_sim_counts counts; /* if simulated event by event */
  bool folded;          /* simulated by symmetry, not event by event */
  uint32_t nloads, nspans;
  hk_sim_load *loads; /* the busiest first */
  hk_sim_span *spans; /* NULL if folded */
} hk_sim_result;

/* A cluster that is ready to be simulated: placements, paths, rings, the cost model's machine. `c` remains the caller's
 * and must outlive it. */
typedef struct hk_simulator hk_simulator;
hk_status hk_simulator_new(hk_simulator **out, const struct hk_cluster *c, int ranks_per_host);
/* The same for the first `nranks` of these ranks; 0: all. */
hk_status hk_simulator_new_of(hk_simulator **out, const struct hk_cluster *c, int ranks_per_host, int nranks);
void hk_simulator_free(hk_simulator *x); /* NULL is fine */
int hk_simulator_ranks(const hk_simulator *x);
/* Why the algorithm cannot run the collective on this cluster, in words that follow its name; NULL if it can. */
const char *hk_simulator_cannot(const hk_simulator *x, const struct hk_algorithm *a, hk_coll coll);

/* Forgets the prices of an algorithm, before it is freed or changed. */
void hk_simulator_forget(hk_simulator *x, const struct hk_algorithm *a);

/* `bytes` as nccl-tests counts: the larger of a rank's buffers.  `options` may be NULL. */
hk_status hk_sim_run(hk_sim_result *out, const hk_simulator *x, hk_coll coll, size_t bytes,
                     const hk_sim_options *options);
void hk_sim_result_clear(hk_sim_result *r);
/* Chrome's JSON trace format. */
hk_status hk_sim_trace(const hk_sim_result *r, FILE *to);
