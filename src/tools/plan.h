/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket plan`: the question, and its answers. */
#pragma once
#include "../decide/select.h"

struct hk_inputs;    /* inputs.h */
struct hk_simulator; /* sim/sim.h */

typedef struct hk_plan_report {
  const struct hk_inputs *world;
  hk_coll coll;
  size_t bytes;
  hk_decision chosen;
  int n;
  /* the cheapest first; with the user's restrictions, `chosen` may be another row */
  hk_alternative rows[HK_ALTERNATIVES];
} hk_plan_report;
hk_status hk_plan_ask(hk_plan_report *r, const struct hk_inputs *w, hk_coll coll, size_t bytes);

/* The part of the time, in microseconds, that does not depend on the message's length; the rest moves the bytes. */
double hk_plan_latency(const hk_plan_report *r, const hk_decision *d);
/* GB/s by nccl-tests' formulas. */
double hk_plan_algbw(size_t bytes, double us);
double hk_plan_busbw(hk_coll coll, int nranks, size_t bytes, double us);

/* Choices are looked at for powers of two. */
#define HK_PLAN_LEAST ((size_t)8)
#define HK_PLAN_MOST ((size_t)1 << 34)
/* The next power of two above `bytes` (or below) at which something else is chosen than `here`: *other; 0: none. */
size_t hk_plan_change(const struct hk_inputs *w, hk_coll coll, size_t bytes, const hk_decision *here, bool up,
                      hk_decision *other);

/* The sizes at which the choice is the same: [first, last], powers of two. */
typedef struct hk_plan_range {
  size_t first, last;
  hk_decision chosen; /* for `last` */
  double first_us;
} hk_plan_range;
enum { HK_PLAN_RANGES = 40 };
int hk_plan_ranges(const struct hk_inputs *w, hk_coll coll, hk_plan_range out[HK_PLAN_RANGES]);

/* "Why" in words that need no knowledge of the model, a line for each paragraph; free() it. NULL: out of memory. */
char *hk_plan_explain(const hk_plan_report *r);
/* The simulated time of a decision; below 0: not known. `x` may be NULL. */
double hk_plan_simulated(const struct hk_simulator *x, const hk_plan_report *r, const hk_decision *d);

/* True if both are by one algorithm and protocol. */
bool hk_plan_same(const hk_decision *a, const hk_decision *b);
double hk_plan_error_bound(const hk_plan_report *r); /* 0: links carry values unchanged */

/* ---- output ---- */
/* `all`: by every protocol; `x`: with simulated times, may be NULL. `only`, `bytes`: NULL for all. */
void hk_plan_print_one(const hk_plan_report *r, bool all, const struct hk_simulator *x);
void hk_plan_print_ranges(const struct hk_inputs *w, const hk_coll *only);
/* The ranges as rules of a tuning file, so that they can be kept, compared and changed. */
void hk_plan_print_rules(const struct hk_inputs *w, const hk_coll *only);
/* Both return an exit code, after printing the error. */
int hk_plan_print_json(const struct hk_inputs *w, const hk_coll *only, const size_t *bytes,
                       const struct hk_simulator *x);
typedef struct hk_plan_program {
  int rank; /* -1: all */
  int root, channel;
  bool json;
} hk_plan_program;
int hk_plan_print_program(const struct hk_inputs *w, hk_coll coll, size_t bytes, const hk_plan_program *which);
