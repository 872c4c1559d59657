/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The executor on CPU threads: runs one rank's program as resumable lanes. A step runs every lane until it must wait.
 * It never waits itself, so one thread can run many ranks, and the caller decides how to pause (base/wait.h).
 */
#pragma once
#include <stdbool.h>
#include "../program/program.h"
#include "plan.h"

struct hk_link; /* transport/link.h */
struct hk_slot; /* the same */

enum { HK_STEP_LANES = 4 }; /* the most lanes of a program that runs as steps */

typedef struct hk_exec {
  const hk_plan *plan;
  const hk_launch *launch;
  const char *in;
  char *out;
  /* signature in slots: the launch's, unless the caller replaces it by one that differs from call to call */
  uint32_t signature;
  unsigned nlanes, live;
  /* the launch's; it runs as the plan's steps: of the fields below only at, bases and bad_* are set */
  bool brief;
  uint16_t at[HK_STEP_LANES]; /* `brief`: the next step of each lane */
  char *bases[HK_LINK];       /* `brief`: addresses of the buffers, by hk_space */
  bool pairs;                 /* hk_coll_pairs: a slot's signature contains the length of its block */
  bool offers;                /* places for multicasts (places.h) have not been offered yet */
  bool whole;                 /* each block has sizes.longest bytes, and the first wave moves all of them */
  hk_sizes sizes;             /* of the launch */
  const void **pointers;      /* [2 * max_operands], for the current move */
  struct hk_lane_run *lanes;  /* exec_lanes.h */
  /* [nlanes] the instructions up to which each lane's places were offered (exec_look_ahead); NULL: no proxied link */
  struct hk_lane_run *ahead;
  /* Set with HK_ERR_USAGE: the peer with the wrong slot, and the content of the slot. */
  int bad_peer;
  uint32_t bad_bytes, expected_bytes, bad_signature;
  uint64_t expected_length; /* of the block, if `pairs` */
} hk_exec;

/* Bytes that hk_exec_init needs at `memory`, in addition to the scratch. */
size_t hk_exec_bytes(const hk_plan *plan);
size_t hk_exec_scratch_bytes(const hk_plan *plan, size_t chunk);
/* memory: hk_exec_bytes, 16-aligned; scratch: hk_exec_scratch_bytes, 64-aligned. The caller keeps both and the launch
 * until the execution is done. */
void hk_exec_init(hk_exec *x, const hk_plan *plan, const hk_launch *launch, const void *in, void *out, void *memory,
                  void *scratch);
/* Runs all instructions that can run, and sets *moved if one did. HK_OK: call again unless hk_exec_done; HK_ERR_USAGE:
 * a peer's slot does not fit this call (mismatched arguments), see bad_*; HK_ERR_REMOTE: a link failed. */
hk_status hk_exec_step_lanes(hk_exec *x, bool *moved);
/* steps.c */
hk_status hk_steps_run(hk_exec *x, bool *moved);
hk_status hk_steps_run_uneven(hk_exec *x, bool *moved);
static inline hk_status hk_exec_step(hk_exec *x, bool *moved) {
  if (__builtin_expect(!x->brief, 0)) return hk_exec_step_lanes(x, moved);
  return __builtin_expect(x->launch->table != NULL, 0) ? hk_steps_run_uneven(x, moved) : hk_steps_run(x, moved);
}
static inline bool hk_exec_done(const hk_exec *x) { return x->live == 0; }
/* True if all instructions have run.  Readers may still use the data that this rank sent. */
bool hk_exec_computed(const hk_exec *x);
/* For the watchdog: the peers for which lanes wait, each once; returns their number, at most `capacity`.  A multicast
 * sender waits for the readers that have not given back the slots that it needs. */
int hk_exec_waits_for(const hk_exec *x, int *peers, int capacity);

/* For steps.c. The slot does not fit the call: sets bad_*, and returns HK_ERR_USAGE. */
hk_status hk_exec_bad_slot(hk_exec *x, const struct hk_link *link, const struct hk_slot *s, size_t expected);
/* Adds the peers for which a link waits that is not ready for `bytes`, each once. */
void hk_exec_add_awaited(const struct hk_link *link, size_t bytes, int *peers, int *n, int capacity);
