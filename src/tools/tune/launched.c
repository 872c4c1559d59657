/* SPDX-License-Identifier: Apache-2.0 */
/* The rank that a launcher gave to this process. */
#include <stdlib.h>
#include "tune.h"

static const struct {
  const char *rank, *size, *other_size;
} launchers[] = {
#define HK_LAUNCHER(name, rank, size, other_size, local_size) {rank, size, other_size},
#include "../../base/launchers.def" /* the rows */
};

static bool number_of(const char *variable, int *out) {
  const char *text = getenv(variable);
  char *end;
  if (!text || !*text) return false;
  long v = strtol(text, &end, 10);
  *out = (int)v;
  return !*end && v >= 0 && v <= 1 << 16;
}

bool hk_tune_launched(int *rank, int *nranks) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(launchers); i++)
    if (number_of(launchers[i].rank, rank) &&
        (number_of(launchers[i].size, nranks) || number_of(launchers[i].other_size, nranks)) && *rank < *nranks)
      return true;
  return false;
}
