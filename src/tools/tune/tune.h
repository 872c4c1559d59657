/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket tune`: measuring, and fitting the model's constants to the times. */
#pragma once
#include "../../decide/machine.h"

struct hk_constants; /* decide/constants.h */

enum { HK_TUNE_RANKS = 64 };

/* What to measure: all algorithms of some collectives. The ranks are processes of this host or, if a launcher started
 * this process, processes of several hosts. */
typedef struct hk_tune_setup {
  const char *between; /* several hosts: address:port on which rank 0 listens; else NULL */
  int rank;            /* then: the rank of this process */
  int nranks;
  bool tcp;       /* over sockets, not shared memory */
  unsigned colls; /* bit set of 1u << hk_coll */
  size_t to;      /* the largest message, bytes */
  int step;       /* factor from one size to the next */
  int rounds;     /* each with new processes and the next placement of ranks on cores */
} hk_tune_setup;

typedef struct hk_tune_cell {
  uint8_t coll, algorithm; /* hk_coll; index into hk_algorithms */
  size_t bytes;
  double us; /* of a call on the slowest rank: the best of a round, the geometric mean of the rounds */
} hk_tune_cell;

typedef struct hk_tune_table {
  hk_tune_setup setup;
  hk_machine machine;       /* as the ranks saw it */
  struct hk_layout *layout; /* of ranks that were started host after host; NULL: one host */
  int n;
  hk_tune_cell *at; /* grouped by collective and size */
} hk_tune_table;

/* Between hosts only rank 0's table has meaning. Call hk_tune_table_clear in any case. */
hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *s);
void hk_tune_table_clear(hk_tune_table *t);

/* One collective and size: cells [first, first + n). */
typedef struct hk_tune_group {
  int first, n;
  int best, chosen; /* the fastest cell; the model's choice with these constants */
  double error;     /* the sum of |ln(price / time)| */
  /* Squares of ln(price / time), with less weight for slow algorithms, and the cost of a wrong choice, with more. */
  double misfit, weights; /* their sums */
} hk_tune_group;
/* Iterates over the groups; false after the last. Begin with a zeroed group. */
bool hk_tune_next(const hk_tune_table *t, const struct hk_constants *k, hk_tune_group *g);

/* Fits the constants of one host, or those between hosts, so that the model's prices and choices are nearest to the
 * times. It begins with the built-in ones; all others are those of `others`. */
struct hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const struct hk_constants *others);
