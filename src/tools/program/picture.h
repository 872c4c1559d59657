/* SPDX-License-Identifier: Apache-2.0 */
/* A picture of the programs of all ranks over time, as SVG. */
#pragma once
#include <stddef.h>
#include <stdio.h>
#include "../../base/status.h"

struct hk_program_set; /* formats/file.h */
struct hk_sim_result;  /* sim/sim.h */

enum { HK_PICTURE_SPANS = 10000 }; /* the most instructions that a picture can show */

typedef struct hk_picture {
  const struct hk_program_set *set;
  const struct hk_sim_result *result; /* with spans, at most HK_PICTURE_SPANS */
  const char *machine;
  size_t bytes;
} hk_picture;

/* A row for each lane, a box for each instruction, a line for each message from one rank to another. */
hk_status hk_picture_write(FILE *to, const hk_picture *p);
