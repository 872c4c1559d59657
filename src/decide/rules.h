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
#ifndef HK_DECIDE_RULES_H
#define HK_DECIDE_RULES_H
#include "select.h"

typedef enum hk_via {
  HK_VIA_ANY,
  HK_VIA_MEMORY,
  HK_VIA_SOCKETS
} hk_via; /* how the ranks of one host, on CPUs, reach each other */

typedef struct hk_rule {
  int coll; /* hk_coll; -1: any */
  size_t from, to;
  int nranks, nhosts; /* 0: any */
  int algorithm;      /* index into hk_algorithms; -1: free */
  int protocol;       /* hk_protocol; -1: free */
  int channels;       /* 0: free */
  int line;           /* of the file */
  hk_via via;
} hk_rule;

typedef struct hk_rules {
  int n;
  hk_rule *at;
} hk_rules;

/* Parses a file or a text. HK_ERR_ARGUMENT with file, line and the reason. */
hk_status hk_rules_read(hk_rules **out, const char *path);
hk_status hk_rules_parse(hk_rules **out, const char *name, const char *text);
hk_status hk_rules_add(hk_rules **to, const hk_rule *r); /* appends; makes *to if it is NULL */
uint64_t hk_rules_hash(const hk_rules *r);               /* equal rules have equal hashes on all ranks */
void hk_rules_free(hk_rules *r);                         /* r may be NULL */
/* Returns true if the rule applies to this call on this machine. */
static inline bool hk_rule_fits(const hk_rule *r, const hk_machine *m, hk_coll coll, size_t bytes) {
  return (r->coll < 0 || r->coll == (int)coll) && bytes >= r->from && bytes <= r->to &&
         (r->via == HK_VIA_ANY ||
          (m->cores_per_host > 0 && (r->via == HK_VIA_MEMORY) == (m->inside.ring_us_per_b == 0))) &&
         (!r->nranks || r->nranks == m->team.nranks) && (!r->nhosts || r->nhosts == m->team.nhosts);
}
#endif
