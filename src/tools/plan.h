/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts of `hocket plan`: the question, and its answers. */
#ifndef HK_TOOLS_PLAN_H
#define HK_TOOLS_PLAN_H
#include "../base/json.h"
#include "machine.h"

typedef struct hk_plan_report {
  const hk_world *world;
  hk_coll coll;
  size_t bytes;
  hk_decision chosen;
  int n;
  hk_alternative rows[HK_ALTERNATIVES]; /* the cheapest first; the chosen one need not be, where the user has wishes */
} hk_plan_report;
void hk_plan_ask(hk_plan_report *r, const hk_world *w, hk_coll coll, size_t bytes);

/* What it costs however short the message is, and what moving the bytes adds. */
double hk_plan_latency(const hk_plan_report *r, const hk_decision *d);
/* GB/s by nccl-tests' formulas. */
double hk_plan_algbw(size_t bytes, double us);
double hk_plan_busbw(hk_coll coll, int nranks, size_t bytes, double us);

/* The sizes between which the same thing runs: [first, last], powers of two. */
typedef struct hk_plan_range {
  size_t first, last;
  hk_decision chosen; /* for `last` */
  double first_us;
} hk_plan_range;
enum { HK_PLAN_RANGES = 40 };
int hk_plan_ranges(const hk_world *w, hk_coll coll, hk_plan_range out[HK_PLAN_RANGES]);

/* "Why" in words that need no knowledge of the model, a line a paragraph; free() it.  NULL: out of memory. */
char *hk_plan_explain(const hk_plan_report *r);
#endif
