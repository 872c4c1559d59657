/* SPDX-License-Identifier: Apache-2.0 */
/* What the user allows the selector to choose. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../program/limits.h"
#include "../program/operation.h"

struct hk_algorithm; /* collectives/algorithm.h */
struct hk_rules;     /* rules.h: a tuning file */

enum { HK_ALGORITHM_LIMIT = 32 }; /* algorithms: filters have a bit for each */

/* NCCL's algorithms, by its numbers. */
enum { HK_NCCL_ALGORITHMS = 7 };
typedef struct hk_nccl_algorithm {
  const char *selection, *name; /* as algSelection and NCCL_ALGO spell it */
  const char *ours[2];          /* the names of those here that do the same; the second may be NULL */
  bool simple;                  /* only with protocol Simple */
} hk_nccl_algorithm;
extern const hk_nccl_algorithm hk_nccl_algorithms[HK_NCCL_ALGORITHMS];

/* The user's restrictions.  All zero: none. */
typedef struct hk_filter {
  const struct hk_algorithm *const *algorithms; /* ended by NULL; NULL: hk_algorithms, the built-in ones */
  uint32_t barred[HK_COLL_COUNT];               /* bit i: not the i-th of the algorithms */
  uint8_t barred_protocols[HK_COLL_COUNT];      /* bit p: not protocol p */
  uint32_t only[HK_PROTO_COUNT];  /* bit i: the i-th algorithm by this protocol may be used; all 0: any may */
  int min_channels, max_channels; /* 0: no restriction */
  bool any_size;      /* programs of files for other sizes or places, too; hk_select needs this only for itself */
  hk_inplace inplace; /* of the call */
  bool efficient;     /* more channels only for a larger gain: NCCL_CTA_POLICY_EFFICIENCY */
  const struct hk_rules *rules; /* of a tuning file; may be NULL */
  /* Sums in the fixed order only (hk_algorithm.fixed_order): HOCKET_BATCH_INVARIANT. It has priority over all other
   * restrictions. */
  bool batch_invariant;
} hk_filter;
/* The stricter of two upper limits; 0: no limit. */
static inline int hk_filter_stricter(int a, int b) { return !a ? b : !b ? a : a < b ? a : b; }
const struct hk_algorithm *const *hk_filter_algorithms(const hk_filter *w); /* w may be NULL */
/* Parses NCCL_ALGO and NCCL_PROTO (either may be NULL): "ring,tree", "^tree", "allreduce:tree;broadcast:^ring"; a part
 * without a colon is for all other collectives. HK_ERR_ARGUMENT quotes the unknown word, and lists the known ones. */
hk_status hk_filter_parse(hk_filter *w, const char *algo, const char *proto);
/* Parses ncclCollConfig_t's algSelection to hk_filter.only. A word is an algorithm and protocol such as "RING_LL", in
 * any case, or the beginning of such a name; `,` or, `+` and, `^` not.  NCCL's names have priority over this library's
 * own. False, with the reason in `why`, if a word is unknown or nothing is left. */
bool hk_filter_only(const char *selection, const struct hk_algorithm *const *algorithms, uint32_t only[HK_PROTO_COUNT],
                    char *why, size_t why_bytes);
