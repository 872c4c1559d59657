/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts of `hocket tune`: measuring, and fitting the model's constants to what was measured. */
#ifndef HK_TOOLS_TUNE_H
#define HK_TOOLS_TUNE_H
#include <stdio.h> /* FILE */
#include "../collectives/machine.h"
#include "../collectives/rules.h"

/* Ways in which ranks that outnumber cores may be placed on them: tune_measure.c. */
enum { HK_TUNE_RANKS = 64, HK_TUNE_PLACES = 3, HK_TUNE_ROWS = 256, HK_TUNE_RUNS = 32 };

/* One collective and size, by some of the algorithms. */
typedef struct hk_tune_point {
  hk_coll coll;
  size_t bytes;
  unsigned algorithms; /* bit set of 1u << index into hk_algorithms */
} hk_tune_point;

/* What to measure: all algorithms of some collectives, on ranks that are processes of this host; or, started by a launcher,
 * on ranks of several hosts of which this process is one. */
typedef struct hk_tune_setup {
  const char *between; /* several hosts: address:port where rank 0 listens; else NULL */
  int rank;            /* then: which this is */
  int nranks;
  bool tcp;        /* over sockets instead of shared memory */
  unsigned colls;  /* bit set of 1u << hk_coll */
  size_t from, to; /* bytes, in steps of `step` */
  int step;
  const hk_tune_point *points; /* instead of all of colls, from, to, step; NULL: those */
  int npoints;
  int rounds;      /* with new processes, each with the next placement of ranks on cores */
  int repeats;     /* in a round, batches of each algorithm, by turns; the fastest counts */
  double batch_us; /* about how long a batch is */
  double rest;     /* sleeps so many times as long as it measured */
} hk_tune_setup;

typedef struct hk_tune_cell {
  uint8_t coll, algorithm; /* hk_coll; index into hk_algorithms */
  bool rough;              /* so slow that it was measured once only */
  bool again, drawn;       /* of a group's first cell: to be measured again; drawn by lot for it (tune_look.c) */
  int looks;               /* times that it was measured again: then `us` rests on these alone */
  size_t bytes;
  double us;    /* what counts: the average of all placements, and what this run has in common with earlier ones */
  double swept; /* what it was before it was measured again */
  double now;   /* where there are earlier runs: this run's alone */
  const struct hk_tune_time *past; /* earlier runs' that count too; else NULL */
} hk_tune_cell;

typedef struct hk_tune_table {
  hk_tune_setup setup;
  hk_machine machine; /* as the ranks saw it */
  int n;
  hk_tune_cell *at; /* grouped by collective and size */
} hk_tune_table;

/* `tell` (may be NULL) is called as sizes are done.  Between hosts the table is rank 0's only. */
hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *s, void (*tell)(hk_coll coll, size_t bytes));
typedef hk_status hk_tune_measurer(hk_tune_table *out, const hk_tune_setup *s, void (*tell)(hk_coll, size_t));
void hk_tune_table_clear(hk_tune_table *t);

/* What rows of measurements of the same things have in common: a row has its own level (an hour's, a round's), and single values
 * are far off at times.  ln: rows x columns logarithms, used up; rows at most HK_TUNE_ROWS.  out: one for each column, at the
 * middle row's level.  By medians (J. W. Tukey, Exploratory Data Analysis, 1977: median polish), so that what is far off
 * counts no more than what is a little off. */
void hk_tune_polish(double *ln, int rows, int columns, double *out);

/* One collective and size: cells [first, first + n). */
typedef struct hk_tune_group {
  int first, n;
  int best;   /* the fastest cell */
  int chosen; /* what the model takes with these constants */
} hk_tune_group;
/* Walks the groups; false behind the last. Begin with a zeroed group.  `choices` may be NULL. */
bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, const hk_rules *choices, hk_tune_group *g);

/* Whose choices are looked at, and how many times the best's time one may take. */
#define HK_TUNE_LIMIT_BUILT_IN 1.25
#define HK_TUNE_LIMIT_MEASURED 1.10
typedef struct hk_tune_judge {
  const hk_constants *constants;
  const hk_rules *choices; /* may be NULL */
  double limit;
} hk_tune_judge;

/* Whom and how a second look asks. */
typedef struct hk_tune_look {
  const hk_tune_judge *judges; /* a choice that misses the limit of any is measured again */
  int njudges;
  int draw; /* at least so many that miss no limit too, and as many as do; 0: none */
  hk_tune_measurer *measure;
  void (*tell)(hk_coll, size_t);
} hk_tune_look;
/* One pass: measures choices again, by new processes, and puts these times in the place of the sweep's. */
hk_status hk_tune_look_again(hk_tune_table *tables, int n, const hk_tune_look *look);

typedef struct hk_tune_tally {
  int choices, missed; /* the judge's limit */
  int missed_at_first; /* by the sweep's times */
  int drawn, drawn_missed;
} hk_tune_tally;
hk_tune_tally hk_tune_count(const hk_tune_table *tables, int n, const hk_tune_judge *judge);

/* Constants with which the model is nearest to what was measured, in prices and in choices: those of one host, or those
 * between hosts; all others are `first`'s. */
hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *first);
/* Rules for what the model gets wrong by more than some percent; *out is NULL where there is nothing. */
hk_status hk_tune_choices(const hk_tune_table *tables, int n, const hk_constants *k, hk_rules **out);
/* The average of |ln(price / measured)|: 0.1 is 10% off. */
double hk_tune_error(const hk_tune_table *tables, int n, const hk_constants *k);

/* ---- times of earlier runs: tune_times.c ---- */

/* One algorithm's in the latest runs, the last one last. */
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

/* A file that is not there has none. */
hk_status hk_tune_times_read(hk_tune_times *times, const char *path);
hk_status hk_tune_times_write(const hk_tune_times *times, FILE *f);
/* The times of a table count for one run beside those of earlier runs from now on, for as long as these are there. */
void hk_tune_times_use(const hk_tune_times *times, hk_tune_table *t);
/* Takes this run's times; the tables are done with. */
hk_status hk_tune_times_take(hk_tune_times *times, const hk_tune_table *tables, int n);
void hk_tune_times_clear(hk_tune_times *times);
void hk_tune_weigh(hk_tune_table *t); /* `us` anew from `now` and `past` */

/* ---- what came out: tune_view.c, to stdout; choices may be NULL ---- */

void hk_tune_print_score(const char *what, const hk_tune_table *t, int n, const hk_constants *k,
                         const hk_rules *choices);
void hk_tune_print_tally(const hk_tune_table *t, int n, const hk_tune_judge *j); /* what the second look changed */
void hk_tune_print_choices(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices, bool all);
void hk_tune_print_json(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices);
/* How many times the best's time the worst choice takes. */
double hk_tune_worst(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices);

/* ---- where it goes: tune_save.c; path "-" is stdout, NULL where every init looks ---- */

/* Asked before measuring takes its time; false with the complaint made. */
bool hk_tune_can_save(const char *path);
int hk_tune_save(const char *path, const hk_constants *k, const hk_rules *choices); /* gives an exit code */
int hk_tune_save_times(const char *path, const hk_tune_times *times);

/* Which of how many ranks the launcher says this process is; false where nobody says. */
bool hk_tune_launched(int *rank, int *nranks);
#endif
