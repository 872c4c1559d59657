/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of an execution, for exec.c. */
#pragma once
#include "../program/cursor.h"
#include "exec.h"

typedef struct hk_lane_run {
  const hk_instr *instrs; /* of the program */
  hk_cursor at;
  uint32_t ready; /* number of the current instruction's first operands that are known to be ready */
  bool done, draining, must_drain;
  struct hk_link **links;
  char *scratch;
} hk_lane_run;
