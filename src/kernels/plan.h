/* SPDX-License-Identifier: Apache-2.0 */
/* A plan is a program bound to links; a launch has the parameters of one call. The executors (exec.h, cuda/exec.cu) run
 * them. */
#pragma once
#include <stdbool.h>
#include "reduce.h"

struct hk_extent;                 /* program/cursor.h */
struct hk_link;                   /* transport/link.h */
struct hk_meter_cell;             /* base/meter.h */
struct hk_program;                /* program/program.h */
typedef struct hk_steps hk_steps; /* steps.h */

/* A program bound to links: immutable once made, cached by the communicator. */
typedef struct hk_plan {
  const struct hk_program *program;
  struct hk_link **links;   /* [channels][program->nlinks] */
  unsigned channels;        /* copies of the program's lanes, among which the waves are divided */
  unsigned orders;          /* GPUs: channel c has the program of ring order c % orders: `program`, then `more` */
  struct hk_program **more; /* [orders - 1] */
  unsigned max_operands;    /* of a move; each reader of a multicast counts */
  bool proxied;             /* some links lead over a network */
  bool sums;                /* this rank hands data to a network that adds up */
  bool compared;            /* set by the caller: other ranks have been asked whether they make the same call */
  uint8_t flight_name;  /* the caller's: 1 + the index of the algorithm's name in the flight recorder; 0: none yet */
  hk_steps *steps;      /* steps for short messages on the host; NULL: none */
  void *device;         /* the plan on a GPU (gpu/plan.h); NULL on the host, which has `links` */
  struct hk_plan *next; /* in the cache */
} hk_plan;

/* The parameters of one call, except its buffers. Equal calls have equal launches, so launches are cached too. */
typedef struct hk_launch {
  size_t total;               /* HK_PART_SPLIT: bytes of the message */
  size_t block_bytes;         /* distance between blocks, and the length of all but clipped ones */
  size_t chunk;               /* bytes of a block that one wave moves */
  size_t unit;                /* bytes of an element: 1 for plain copies */
  hk_reducer reducer;         /* valid if the collective reduces */
  uint32_t signature;         /* of the call's arguments; differs between calls that do not match */
  uint32_t move_flags;        /* HK_MOVE_UNCACHED or 0 */
  uint8_t by_cma;             /* HK_CMA_* (program/limits.h) */
  bool quantised;             /* links carry values in quantised form (program/quantised.h) */
  bool places;                /* multicasts go to places that their readers offer (places.h) */
  bool brief;                 /* steps run it (hk_exec_has_steps); on GPUs, the kernel of small messages */
  uint32_t protocol;          /* hk_protocol of GPUs' links; the host has only one */
  struct hk_meter_cell *cell; /* the caller's: where the call is counted, and its bytes */
  uint64_t message;
  /* Of an uneven collective: the blocks of the call, not cached; block_bytes is the longest.  NULL otherwise. */
  const struct hk_extent *table;
} hk_launch;

/* exec.c: true if the launch may run as the plan's steps: one wave moves all blocks, which are not clipped; those of
 * an uneven collective are too short for references. Then hk_exec_init uses only the scratch memory. */
bool hk_exec_has_steps(const hk_plan *plan, const hk_launch *launch);
