/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket tune`: measuring, and fitting the model's constants to the measurements. */
#ifndef HK_TOOLS_TUNE_H
#define HK_TOOLS_TUNE_H
#include <stdio.h> /* FILE */
#include "../../decide/machine.h"
#include "../../decide/rules.h"

/* HK_TUNE_PLACES: placements of ranks that outnumber cores (measure.c). */
enum { HK_TUNE_RANKS = 64, HK_TUNE_PLACES = 3, HK_TUNE_ROWS = 256, HK_TUNE_RUNS = 32 };

/* One collective and size, for some of the algorithms. */
typedef struct hk_tune_point {
  hk_coll coll;
  size_t bytes;
  unsigned algorithms; /* bit set of 1u << index into hk_algorithms */
} hk_tune_point;

/* What to measure: all algorithms of some collectives. The ranks are processes of this host or, if a launcher started
 * this process, processes of several hosts. */
typedef struct hk_tune_setup {
  const char *between; /* several hosts: address:port on which rank 0 listens; else NULL */
  int rank;            /* then: the rank of this process */
  int nranks;
  bool tcp;        /* over sockets, not shared memory */
  unsigned colls;  /* bit set of 1u << hk_coll */
  size_t from, to; /* bytes, in steps of `step` */
  int step;
  const hk_tune_point *points; /* if not NULL, these are measured, not all of colls, from, to, step */
  int npoints;
  int rounds;      /* each with new processes and the next placement of ranks on cores */
  int repeats;     /* in a round, batches of each algorithm, by turns; the fastest counts */
  double batch_us; /* approximate duration of a batch */
  double rest;     /* sleeps this many times as long as it measured */
} hk_tune_setup;

typedef struct hk_tune_cell {
  uint8_t coll, algorithm; /* hk_coll; index into hk_algorithms */
  bool rough;              /* measured only once, because it is slow */
  bool again, drawn;       /* in a group's first cell: to be measured again; drawn at random for that (look.c) */
  int looks;               /* how often it was measured again; if not 0, `us` depends on these times alone */
  size_t bytes;
  double us;                       /* the result: the average of all placements, combined with earlier runs */
  double swept;                    /* the result before it was measured again */
  double now;                      /* if there are earlier runs: this run's time alone */
  const struct hk_tune_time *past; /* times of earlier runs, which also count; NULL: none */
} hk_tune_cell;

typedef struct hk_tune_table {
  hk_tune_setup setup;
  hk_machine machine;       /* as the ranks saw it */
  struct hk_layout *layout; /* of ranks that were started host after host; NULL: one host */
  int n;
  hk_tune_cell *at; /* grouped by collective and size */
} hk_tune_table;

/* `progress` (may be NULL) is called as sizes are done. Between hosts only rank 0 gets the table. */
hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *s, void (*progress)(hk_coll coll, size_t bytes));
typedef hk_status hk_tune_measurer(hk_tune_table *out, const hk_tune_setup *s, void (*progress)(hk_coll, size_t));
void hk_tune_table_clear(hk_tune_table *t);

/* Combines rows of measurements of the same things. Each row has its own level (of an hour, of a round), and some
 * single values are outliers. ln: rows x columns logarithms, overwritten; rows at most HK_TUNE_ROWS. out: one value for
 * each column, at the middle row's level. By medians (J. W. Tukey, Exploratory Data Analysis, 1977: median polish), so
 * that a large outlier has no more weight than a small one. */
void hk_tune_polish(double *ln, int rows, int columns, double *out);

/* One collective and size: cells [first, first + n). */
typedef struct hk_tune_group {
  int first, n;
  int best;   /* the fastest cell */
  int chosen; /* the model's choice with these constants */
} hk_tune_group;
/* Iterates over the groups; false after the last. Begin with a zeroed group. `choices` may be NULL. */
bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, const hk_rules *choices, hk_tune_group *g);

/* The limit of a choice's time, as a multiple of the best's time. */
#define HK_TUNE_LIMIT_BUILT_IN 1.25
#define HK_TUNE_LIMIT_MEASURED 1.10
typedef struct hk_tune_judge {
  const hk_constants *constants;
  const hk_rules *choices; /* may be NULL */
  double limit;
} hk_tune_judge;

/* Parameters of a second look. */
typedef struct hk_tune_look {
  const hk_tune_judge *judges; /* a choice that misses the limit of any judge is measured again */
  int njudges;
  int draw; /* also measures choices within all limits: as many as those that miss one, at least this number; 0: none */
  hk_tune_measurer *measure;
  void (*progress)(hk_coll, size_t);
} hk_tune_look;
/* One pass: measures choices again, in new processes; these times replace the sweep's. */
hk_status hk_tune_look_again(hk_tune_table *tables, int n, const hk_tune_look *look);

typedef struct hk_tune_tally {
  int choices, missed; /* by the judge's limit */
  int missed_at_first; /* by the sweep's times */
  int drawn, drawn_missed;
} hk_tune_tally;
hk_tune_tally hk_tune_count(const hk_tune_table *tables, int n, const hk_tune_judge *judge);

/* Fits the constants of one host, or those between hosts, so that the model's prices and choices are nearest to the
 * measurements. All others are those of `first`. */
hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *first);
/* Rules for the cases in which the model is wrong by more than some percent; *out is NULL if there are none. */
hk_status hk_tune_choices(const hk_tune_table *tables, int n, const hk_constants *k, hk_rules **out);
/* The average of |ln(price / measured)|: 0.1 is 10% off. */
double hk_tune_error(const hk_tune_table *tables, int n, const hk_constants *k);

/* ---- times of earlier runs: times.c ---- */

/* The times of one algorithm in the latest runs, the newest last. */
typedef struct hk_tune_time {
  bool tcp;
  int nranks, coll, algorithm, runs;
  size_t bytes;
  double us[HK_TUNE_RUNS];
} hk_tune_time;

typedef struct hk_tune_times {
  int n, room, cores; /* cores of the host where they were measured */
  hk_tune_time *at;   /* sorted */
} hk_tune_times;

/* A file that does not exist has none. */
hk_status hk_tune_times_read(hk_tune_times *times, const char *path);
hk_status hk_tune_times_write(const hk_tune_times *times, FILE *f);
/* From now on a table's times count as one more run after the earlier runs in `times`, which must outlive the table. */
void hk_tune_times_use(const hk_tune_times *times, hk_tune_table *t);
/* Adds this run's times; afterwards the tables are not needed any more. */
hk_status hk_tune_times_take(hk_tune_times *times, const hk_tune_table *tables, int n);
void hk_tune_times_clear(hk_tune_times *times);
void hk_tune_weigh(hk_tune_table *t); /* computes `us` from `now` and `past` */

/* ---- results: view.c, to stdout; choices may be NULL ---- */

void hk_tune_print_score(const char *what, const hk_tune_table *t, int n, const hk_constants *k,
                         const hk_rules *choices);
void hk_tune_print_tally(const hk_tune_table *t, int n, const hk_tune_judge *j); /* what the second look changed */
void hk_tune_print_choices(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices, bool all);
void hk_tune_print_json(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices);
/* The time of the worst choice divided by the best's. */
double hk_tune_worst(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices);

/* ---- writing: save.c; path "-": stdout; NULL: the file that every init reads ---- */

/* Checked before the measurement, which takes long; prints an error and returns false if it cannot be written. */
bool hk_tune_can_save(const char *path);
int hk_tune_save(const char *path, const hk_constants *k, const hk_rules *choices); /* returns an exit code */
int hk_tune_save_times(const char *path, const hk_tune_times *times);
#endif
