/* SPDX-License-Identifier: Apache-2.0 */
/* Compares names of variables with the known ones (param_names.h). */
#include "param_names.h"
#include <string.h>

enum { LONGEST = 96 }; /* longer than any name that could be meant */

static const struct {
  const char *name, *why;
} inert[] = {
#define HK_INERT(name, why) {name, why},
#include "params_inert.def"
#undef HK_INERT
};

const char *hk_param_inert(const char *name) {
  for (size_t i = 0; i < sizeof inert / sizeof inert[0]; i++) {
    size_t n = strcspn(inert[i].name, "*"); /* NCCL_ROOT* is NCCL_ROOT, too, although that is near to NCCL_PROTO */
    if (!strncmp(name, inert[i].name, n) && !name[n]) return inert[i].why;
  }
  return NULL;
}

const char *hk_param_inert_family(const char *name) {
  for (size_t i = 0; i < sizeof inert / sizeof inert[0]; i++) {
    size_t n = strlen(inert[i].name);
    if (inert[i].name[n - 1] == '*' && !strncmp(name, inert[i].name, n - 1)) return inert[i].why;
  }
  return NULL;
}

static unsigned param_names_min3(unsigned a, unsigned b, unsigned c) {
  unsigned m = a < b ? a : b;
  return m < c ? m : c;
}

/* Optimal string alignment; only three rows of the table are kept at a time. */
static unsigned param_names_edit_distance(const char *a, size_t na, const char *b, size_t nb) {
  unsigned rows[3][LONGEST + 1];
  for (size_t j = 0; j <= nb; j++) rows[0][j] = (unsigned)j;
  for (size_t i = 1; i <= na; i++) {
    unsigned *row = rows[i % 3], *up = rows[(i + 2) % 3], *upup = rows[(i + 1) % 3];
    row[0] = (unsigned)i;
    for (size_t j = 1; j <= nb; j++) {
      row[j] = param_names_min3(up[j] + 1, row[j - 1] + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && upup[j - 2] + 1 < row[j])
        row[j] = upup[j - 2] + 1;
    }
  }
  return rows[na % 3][nb];
}

const char *hk_param_nearest(const char *name, const char *const *names, size_t n, unsigned *distance) {
  const char *best = NULL;
  size_t length = strlen(name);
  *distance = ~0u;
  if (length > LONGEST) return NULL;
  for (size_t i = 0; i < n; i++) {
    size_t other = strlen(names[i]);
    if (other > LONGEST) continue;
    unsigned d = param_names_edit_distance(name, length, names[i], other);
    if (d < *distance) *distance = d, best = names[i];
  }
  return best;
}

enum { SHORTEST_PART = 4 }; /* of what follows NCCL_: in shorter words one letter says too little */
const char *hk_param_begins_like(const char *name, const char *const *names, size_t n) {
  const size_t length = strlen(name);
  if (length > LONGEST) return NULL;
  for (size_t i = 0; i < n; i++) {
    const char *prefix = strchr(names[i], '_');
    for (const char *cut = prefix ? strchr(prefix + 1, '_') : NULL; cut; cut = strchr(cut + 1, '_')) {
      const size_t part = (size_t)(cut - names[i]);
      if (cut - prefix > SHORTEST_PART && part <= LONGEST &&
          param_names_edit_distance(name, length, names[i], part) <= 1)
        return names[i];
    }
  }
  return NULL;
}

bool hk_param_misspelt(const char *name, unsigned distance) {
  const char *stem = strchr(name, '_');
  size_t length = stem ? strlen(stem + 1) : strlen(name);
  return distance <= (length < 5 ? 1 : length < 7 ? 2 : 3);
}
