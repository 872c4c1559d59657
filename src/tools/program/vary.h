/* SPDX-License-Identifier: Apache-2.0 */
/* Variations of programs: copies, pieces, other ranks, and several programs for parts of a message. */
#pragma once
#include "../../program/program.h"

/* Programs of all ranks, varied. */
typedef struct hk_variation {
  hk_program *const *programs; /* [nranks] */
  unsigned copies;             /* lanes: each copy moves its own part of every block */
  unsigned pieces;             /* each lane moves its part of a block in so many pieces, one after another */
  /* [nranks]: the rank that does what rank r does in `programs`, a permutation. A root remains the root. NULL: r. */
  const uint16_t *place;
} hk_variation;

/* The programs of all ranks that do all variations side by side, each for its part of the message: every block of every
 * program, copy and piece becomes a block of the same size. The programs are of one collective. HK_ERR_ARGUMENT: there
 * would be too many blocks or channels. Free `out` with hk_proof_free. */
hk_status hk_vary(hk_program ***out, const char *name, const hk_variation *parts, int nparts);
