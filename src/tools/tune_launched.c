/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank a launcher made of this process. */
#include <stdlib.h>
#include "tune.h"

/* In this order: what is started by mpirun inside a Slurm allocation belongs to mpirun. */
static const char *const names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                       {"PMI_RANK", "PMI_SIZE"},
                                       {"RANK", "WORLD_SIZE"},
                                       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

static bool number_of(const char *variable, int *out) {
  const char *text = getenv(variable);
  char *end;
  if (!text || !*text) return false;
  long v = strtol(text, &end, 10);
  *out = (int)v;
  return !*end && v >= 0 && v <= 1 << 16;
}

bool hk_tune_launched(int *rank, int *nranks) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(names); i++)
    if (number_of(names[i][0], rank) && number_of(names[i][1], nranks) && *rank < *nranks) return true;
  return false;
}
