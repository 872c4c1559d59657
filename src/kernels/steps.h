/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The steps of a plan: its instructions made ready for short messages. A message of one wave that is too short for
 * references needs no cursor, no places offered ahead, and no final wait for readers. So the plan keeps each
 * instruction with its links and with repeats unrolled, and the executor runs the same moves in the same order with
 * fewer decisions. In an uneven collective each block has its own length, and a block is known by its entry in the
 * call's table.
 */
#pragma once
#include <stdbool.h>
#include <string.h>
#include "exec.h"

struct hk_link; /* transport/link.h */

typedef struct hk_step_operand {
  struct hk_link *link;  /* NULL: memory */
  uint32_t space, block; /* block: uneven, and not in scratch: its entry in the table */
} hk_step_operand;

typedef struct hk_step {
  const hk_step_operand *operands; /* destinations, then sources */
  uint8_t ndst, nsrc;
  uint8_t flags; /* HK_MOVE_FINAL or 0 */
  int8_t fresh;  /* the index of the user's input among the sources; -1: none */
  bool moves;    /* it has sources and destinations; if not, its slots are empty */
  /* One source goes unchanged to at most one link and at most one buffer. The operands; NULL: none. */
  bool copies;
  bool skips_empty; /* hk_cursor_skips_empty */
  uint32_t length;  /* uneven: the entry in the table whose length it moves */
  const hk_step_operand *from, *to_link, *to_memory;
} hk_step;

struct hk_steps {
  bool reduces;
  bool lags;            /* the rank sends nothing, so that the others may be some calls ahead of it */
  bool runs_ahead;      /* the rank receives nothing, so that it may be some calls ahead of the others */
  uint8_t nlanes, live; /* live: not empty */
  uint16_t begin[HK_STEP_LANES], end[HK_STEP_LANES]; /* of each lane */
  hk_step step[];                                    /* then the operands */
};

/* The steps of a plan with its links; NULL if it is too large for them, if its links are proxied, or without memory.
 * The caller frees them with free(). */
hk_steps *hk_steps_make(const hk_plan *plan);
/* Begins the plan's steps again for the next call. hk_exec_init has set the rest of `x` for this plan and launch. */
static inline void hk_steps_again(hk_exec *x, const void *in, void *out) {
  const hk_steps *s = x->plan->steps;
  x->in = in;
  x->out = out;
  x->live = s->live;
  x->bases[HK_IN] = (char *)(uintptr_t)in;
  x->bases[HK_OUT] = out;
  memcpy(x->at, s->begin, sizeof x->at);
}
/* hk_exec_waits_for */
int hk_steps_wait_for(const hk_exec *x, int *peers, int capacity);
