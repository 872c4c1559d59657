/* SPDX-License-Identifier: Apache-2.0 */
/* The table of algorithms, and common parts: programs for one rank. */
#include <stdlib.h>
#include <string.h>
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

static hk_status registry_copy(const hk_program *p, hk_program **out) {
  *out = malloc(p->bytes);
  if (!*out) return HK_FAIL(HK_ERR_SYSTEM, "Out of memory for a program of %zu bytes", p->bytes);
  memcpy(*out, p, p->bytes);
  return HK_OK;
}

hk_status hk_algorithm_build(const hk_algorithm *a, const hk_build *what, hk_program **out) {
  hk_builder *b;
  hk_build plain = *what;
  plain.coll = hk_coll_plain(what->coll);
  *out = NULL;
  if (!(a->colls >> what->coll & 1u))
    return HK_FAIL(HK_ERR_INTERNAL, "The algorithm %s has no program for %s", a->name, hk_coll_name(what->coll));
  if (a->loaded) return registry_copy(a->loaded->programs[what->rank], out);
  HK_OR_RETURN(hk_builder_new(&b, what));
  if (what->nranks == 1)
    registry_build_alone(b, what);
  else
    a->build(b, &plain);
  return hk_builder_finish(b, a->name, out);
}
