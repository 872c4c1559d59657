/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms, and common parts: programs for one rank. */
#include <string.h>
#include "../program/builder.h"
#include "algorithm.h"

#define HK_ALGORITHM(name) extern const hk_algorithm hk_algorithm_##name;
#include "registry.def"
#undef HK_ALGORITHM

const hk_algorithm *const hk_algorithms[] = {
#define HK_ALGORITHM(name) &hk_algorithm_##name,
#include "registry.def"
#undef HK_ALGORITHM
    NULL};

const hk_algorithm *hk_algorithm_by_name(const char *name) {
  for (const hk_algorithm *const *a = hk_algorithms; *a; a++)
    if (!strcmp((*a)->name, name)) return *a;
  return NULL;
}

/* One rank: for all collectives the output is the input, and a reduction needs nothing else. */
static void registry_build_alone(hk_builder *b, const hk_build *what) {
  hk_build_lane(b);
  hk_build_move(b, hk_coll_reduces(what->coll) ? HK_INSTR_FINAL : 0, (hk_operand[]){hk_out(0, 0)}, 1,
                (hk_operand[]){hk_in(0, 0)}, 1);
}

/* The programs of a file are for one root; for another one, all ranks are turned. */
static hk_status registry_copy(const hk_loaded *l, const hk_build *what, hk_program **out) {
  const int n = l->nranks, by = (what->root - l->programs[0]->root + n) % n;
  return hk_program_turn(l->programs[(what->rank - by + n) % n], by, out);
}

hk_status hk_algorithm_build(const hk_algorithm *a, const hk_build *what, hk_program **out) {
  hk_builder *b;
  hk_build plain = *what;
  plain.coll = hk_coll_plain(what->coll);
  *out = NULL;
  if (!hk_algorithm_has(a, what->coll))
    return HK_FAIL(HK_ERR_INTERNAL, "The algorithm %s has no program for %s", a->name, hk_coll_name(what->coll));
  if (a->loaded) return registry_copy(a->loaded, what, out);
  HK_OR_RETURN(hk_builder_new(&b, what));
  if (what->nranks == 1)
    registry_build_alone(b, what);
  else
    a->build[what->coll](b, &plain);
  return hk_builder_finish(b, a->name, out);
}
