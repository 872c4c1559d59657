/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket tune`: measuring, fitting the model's constants to the times, and writing them. */
#pragma once
#include "../../decide/machine.h"

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

/* `progress` is called as sizes are done. Between hosts only rank 0's table has meaning. Call hk_tune_table_clear in
 * any case. */
hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *s, void (*progress)(hk_coll coll, size_t bytes));
void hk_tune_table_clear(hk_tune_table *t);

/* One collective and size: cells [first, first + n). */
typedef struct hk_tune_group {
  int first, n;
  int best;   /* the fastest cell */
  int chosen; /* the model's choice with these constants */
} hk_tune_group;
/* Iterates over the groups; false after the last. Begin with a zeroed group. */
bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, hk_tune_group *g);

/* Fits the constants of one host, or those between hosts, so that the model's prices and choices are nearest to the
 * times. All others are those of `first`. */
hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *first);
/* The average of |ln(price / time)|: 0.1 is 10% off. */
double hk_tune_error(const hk_tune_table *tables, int n, const hk_constants *k);

/* True if `path` can be written; else prints the error. "-": stdout; NULL: the file that every init reads. Called
 * before the measurement, which takes long. */
bool hk_tune_can_save(const char *path);
int hk_tune_save(const char *path, const hk_constants *k); /* returns an exit code */
