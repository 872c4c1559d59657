/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A tuning file: rules that choose an algorithm, protocol and channels for certain calls, one on each line. The first
 * rule that matches is used.
 *
 *   # collective, bytes from, bytes to, ranks, hosts, algorithm, protocol, channels
 *   allreduce, 0, 64K, 8, 1, tree, *, *
 *   *, 1M, *, *, *, ring, Simple, 4
 *
 * A * means "any", or "the cheapest by the model". Sizes are those of the larger of a rank's buffers; K, M and G are
 * powers of 1024; `to` is included. A rule whose algorithm cannot run, or is excluded by NCCL_ALGO, is skipped.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../program/operation.h"

struct hk_algorithm; /* collectives/algorithm.h */
struct hk_machine;   /* machine.h */

typedef struct hk_rule {
  int coll; /* hk_coll; -1: any */
  size_t from, to;
  int nranks, nhosts; /* 0: any */
  int algorithm;      /* index into the algorithms; -1: free */
  int protocol;       /* hk_protocol; -1: free */
  int channels;       /* 0: free */
} hk_rule;

typedef struct hk_rules {
  int n;
  hk_rule *at;
} hk_rules;

/* Parses a file or a text, which names some of `algorithms` (ended by NULL). HK_ERR_ARGUMENT with file, line and the
 * reason. */
hk_status hk_rules_read(hk_rules **out, const char *path, const struct hk_algorithm *const *algorithms);
hk_status hk_rules_parse(hk_rules **out, const char *name, const char *text,
                         const struct hk_algorithm *const *algorithms);
uint64_t hk_rules_hash(const hk_rules *r); /* equal rules have equal hashes on all ranks */
void hk_rules_free(hk_rules *r);           /* r may be NULL */
/* Returns true if the rule applies to this call on this machine. */
bool hk_rule_fits(const hk_rule *r, const struct hk_machine *m, hk_coll coll, size_t bytes);
