/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `hocket tune`: measuring, and fitting the model's constants to what was measured. */
#ifndef HK_TOOLS_TUNE_H
#define HK_TOOLS_TUNE_H
#include <stdio.h> /* FILE */
#include "../../collectives/machine.h"
#include "../../collectives/rules.h"

/* How ranks that outnumber cores may be placed on them: measure.c. */
enum { HK_TUNE_RANKS = 64, HK_TUNE_PLACES = 3, HK_TUNE_ROWS = 256, HK_TUNE_RUNS = 32 };

/* One collective and size, for some of the algorithms. */
typedef struct hk_tune_point {
  hk_coll coll;
  size_t bytes;
  unsigned algorithms; /* bit set of 1u << index into hk_algorithms */
} hk_tune_point;

/* What to measure: all algorithms of some collectives, on ranks that are processes of this host; or, if a launcher
 * started it, on ranks of several hosts of which this process is one. */
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
  bool rough;              /* so slow that it was measured only once */
  bool again, drawn;       /* of a group's first cell: to be measured again; drawn at random for it (look.c) */
  int looks;               /* times that it was measured again: then `us` depends on these times alone */
  size_t bytes;
  double us;                       /* the result: the average of all placements, combined with earlier runs */
  double swept;                    /* the result before it was measured again */
  double now;                      /* if there are earlier runs: this run's time alone */
  const struct hk_tune_time *past; /* the times of earlier runs that count too; else NULL */
} hk_tune_cell;

typedef struct hk_tune_table {
  hk_tune_setup setup;
  hk_machine machine; /* as the ranks saw it */
  int n;
  hk_tune_cell *at; /* grouped by collective and size */
} hk_tune_table;

/* `progress` (may be NULL) is called as sizes are done. Between hosts only rank 0 gets the table. */
hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *s, void (*progress)(hk_coll coll, size_t bytes));
typedef hk_status hk_tune_measurer(hk_tune_table *out, const hk_tune_setup *s, void (*progress)(hk_coll, size_t));
void hk_tune_table_clear(hk_tune_table *t);

/* What rows of measurements of the same things have in common: a row has its own level (an hour's, a round's), and some
 * single values are outliers. ln: rows x columns logarithms, overwritten; rows at most HK_TUNE_ROWS. out: one for each
 * column, at the middle row's level. By medians (J. W. Tukey, Exploratory Data Analysis, 1977: median polish), so that
 * a large outlier has no more weight than a small one. */
void hk_tune_polish(double *ln, int rows, int columns, double *out);

/* One collective and size: cells [first, first + n). */
typedef struct hk_tune_group {
  int first, n;
  int best;   /* the fastest cell */
  int chosen; /* the model's choice with these constants */
} hk_tune_group;
/* Iterates over the groups; false after the last. Begin with a zeroed group. `choices` may be NULL. */
bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, const hk_rules *choices, hk_tune_group *g);

/* The limit of a choice: how many times the best's time it may take. */
#define HK_TUNE_LIMIT_BUILT_IN 1.25
#define HK_TUNE_LIMIT_MEASURED 1.10
typedef struct hk_tune_judge {
  const hk_constants *constants;
  const hk_rules *choices; /* may be NULL */
  double limit;
} hk_tune_judge;

/* What a second look measures, and how. */
typedef struct hk_tune_look {
  const hk_tune_judge *judges; /* a choice that misses the limit of any judge is measured again */
  int njudges;
  int draw; /* at least this number that miss no limit too, and as many as do; 0: none */
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

/* Constants with which the model is nearest to what was measured, in prices and in choices: those of one host, or those
 * between hosts. All others are `first`'s. */
hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *first);
/* Rules for the cases that the model gets wrong by more than some percent; *out is NULL if there are none. */
hk_status hk_tune_choices(const hk_tune_table *tables, int n, const hk_constants *k, hk_rules **out);
/* The average of |ln(price / measured)|: 0.1 is 10% off. */
double hk_tune_error(const hk_tune_table *tables, int n, const hk_constants *k);

/* ---- times of earlier runs: times.c ---- */

/* The times of one algorithm in the latest runs, the last one last. */
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
/* From now on a table's times count as one run beside those of earlier runs, which must outlive the table. */
void hk_tune_times_use(const hk_tune_times *times, hk_tune_table *t);
/* Takes this run's times; the tables are not needed any more. */
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

/* ---- writing: save.c; path "-" is stdout, NULL the file that every init reads ---- */

/* Checked before the measurement, which takes long; prints an error and returns false if it cannot be written. */
bool hk_tune_can_save(const char *path);
int hk_tune_save(const char *path, const hk_constants *k, const hk_rules *choices); /* returns an exit code */
int hk_tune_save_times(const char *path, const hk_tune_times *times);

/* The rank and number of ranks that the launcher gave to this process; false if there is no launcher. */
bool hk_tune_launched(int *rank, int *nranks);
#endif
