/* SPDX-License-Identifier: Apache-2.0 */
/* An algorithm is one file that builds programs plus one line in registry.def. No other code knows it by name. */
#pragma once
#include <stdbool.h>
#include "../base/status.h"
#include "../program/operation.h"
#include "team.h"

struct hk_build; /* program/builder.h */
struct hk_builder;
struct hk_program; /* program/program.h */
struct hk_summary; /* program/summary.h */

/* Programs that were loaded from a file. */
typedef struct hk_loaded {
  struct hk_program *const *programs; /* [nranks], by rank */
  int nranks;
  /* The sizes for which the author meant it, in bytes of the larger of a rank's buffers; most 0: no limit. */
  unsigned long long least, most;
  bool in_place, out_of_place; /* the calls for which the author meant it */
  hk_coll coll;
} hk_loaded;

/* Appends the instructions of one rank; nranks >= 2: with one rank, every algorithm copies input to output. */
typedef void hk_build_rank(struct hk_builder *b, const struct hk_build *what);

typedef struct hk_algorithm {
  const char *name;  /* as NCCL_ALGO spells it, lower case */
  const char *about; /* one line */
  /* Bit set of 1u << hk_coll: sums are made in the fixed order (HK_FIXED_ORDER_SOURCES), whatever the root and the
   * layout. The verifier proves it. */
  unsigned fixed_order;
  unsigned protocols; /* bit set of 1u << hk_protocol that its links may use; 0: all */
  /* Returns why it cannot run here, in words that follow its name ("needs ..."); NULL if it can.  The pointer may be
   * NULL: it runs on any machine with any number of ranks.  The result must not depend on the calling rank. This and
   * `build` get the plain collective instead of an uneven one: programs are the same. */
  const char *(*cannot)(const hk_team *team, hk_coll coll);
  hk_build_rank *build[HK_COLL_COUNT]; /* NULL: it has no programs for this collective */
  const hk_loaded *loaded;             /* not NULL: these are the programs, and there is no `build` */
} hk_algorithm;

/* The registry, ended by NULL. */
extern const hk_algorithm *const hk_algorithms[];
const hk_algorithm *hk_algorithm_by_name(const char *name);
static inline bool hk_algorithm_has(const hk_algorithm *a, hk_coll coll) {
  return (unsigned)coll < HK_COLL_COUNT && (a->loaded ? a->loaded->coll == coll : a->build[coll] != NULL);
}
/* Returns why it cannot run here; NULL if it can. It must have the collective. */
static inline const char *hk_algorithm_cannot(const hk_algorithm *a, const hk_team *team, hk_coll coll) {
  if (a->loaded && a->loaded->nranks != team->nranks) return "is a program for another number of ranks";
  return a->cannot ? a->cannot(team, hk_coll_plain(coll)) : NULL;
}
static inline bool hk_algorithm_supports(const hk_algorithm *a, const hk_team *team, hk_coll coll) {
  return hk_algorithm_has(a, coll) && !hk_algorithm_cannot(a, team, coll);
}
hk_status hk_algorithm_build(const hk_algorithm *a, const struct hk_build *what, struct hk_program **out);
/* The summary of all ranks' programs; `what` is without a rank, `slots` and `one_host` as in hk_summarize. Builds only
 * those that differ by more than a shift. *barred: these have more than `most` links and blocks moved in a wave, or
 * more than the format holds, and *out is empty. */
hk_status hk_algorithm_summarize(struct hk_summary *out, const hk_algorithm *a, const struct hk_build *what,
                                 uint32_t slots, bool one_host, size_t most, bool *barred);
