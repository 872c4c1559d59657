/* SPDX-License-Identifier: Apache-2.0 */
/* This process's rank by the variables that launchers set (meet.h). */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "meet.h"

static const struct launched_row {
  const char *name, *rank, *size, *other_size, *local_size; /* "": there is no such variable */
} launchers[] = {
#define HK_LAUNCHER(name, rank, size, other_size, local_size) {name, rank, size, other_size, local_size},
#include "../base/launchers.def" /* the rows */
};

/* -1 if it is not set. */
static hk_status launched_number(const char *variable, int *out) {
  const char *text = *variable ? getenv(variable) : NULL;
  char *end;
  *out = -1;
  if (!text || !*text) return HK_OK;
  long v = strtol(text, &end, 10);
  if (*end || v < 0 || v > 1 << 24)
    return HK_FAIL(HK_ERR_USAGE, "the environment's %s=%s is not a rank or count", variable, text);
  *out = (int)v;
  return HK_OK;
}

/* A size of Slurm alone is that of an allocation, in which a program may run by itself. */
static void launched_report_part(const struct launched_row *l, int rank, int size) {
  if (rank < 0 && (size < 0 || !strcmp(l->name, "slurm"))) return;
  HK_WARN("%s=%d is set but %s is not: without another launcher's variables this process is a job of one rank",
          rank < 0 ? l->size : l->rank, rank < 0 ? size : rank, rank < 0 ? l->rank : l->size);
}

hk_status hk_launched_find(hk_launched *out, const char *wanted) {
  bool known = !wanted;
  *out = (hk_launched){.launcher = "none", .nranks = 1, .local = 1};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(launchers); i++) {
    const struct launched_row *l = &launchers[i];
    int rank, size, local;
    if (wanted && strcmp(wanted, l->name)) continue;
    known = true;
    HK_OR_RETURN(launched_number(l->rank, &rank));
    HK_OR_RETURN(launched_number(l->size, &size));
    if (size < 0) HK_OR_RETURN(launched_number(l->other_size, &size));
    if (rank >= 0 && size >= 0) {
      if (rank >= size) return HK_FAIL(HK_ERR_USAGE, "%s=%d is not below %s=%d", l->rank, rank, l->size, size);
      HK_OR_RETURN(launched_number(l->local_size, &local));
      *out = (hk_launched){.launcher = l->name, .rank = rank, .nranks = size, .local = local > 0 ? local : 0};
      return HK_OK;
    }
    if (wanted) return HK_FAIL(HK_ERR_USAGE, "launcher %s: %s or %s is not set", wanted, l->rank, l->size);
    launched_report_part(l, rank, size);
  }
  return known ? HK_OK : HK_FAIL(HK_ERR_USAGE, "the launcher has the unknown name '%s'", wanted);
}
