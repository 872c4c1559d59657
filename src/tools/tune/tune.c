/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket tune`: measures this machine, fits the cost model's constants and writes them to a file; or checks the
 * choices. */
#include "tune.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/param.h"
#include "../../boot/meet.h"
#include "../tools.h"

enum { TABLES = 16, LEAST_DRAWN = 20 };
/* A choice that takes longer than this times the best is replaced by a written one. */
#define LIMIT_WRITTEN 1.04

typedef struct options {
  const char *ranks, *transports, *colls, *out, *constants, *between, *times;
  size_t from, to;
  int step, rounds, repeats, looks;
  double milliseconds, rest;
  bool check, json, quick, all;
} options;

static const char *tune_transport_word(int i) {
  static const char *const words[] = {"shm", "tcp"};
  return i >= 0 && i < 2 ? words[i] : NULL;
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(ranks, "ranks", "LIST", "numbers of ranks to measure, as 2,4,8", .letter = 'n', .def = "2,4,8"),
    HK_ROW_TEXT(transports, "transports", "LIST", "shm (shared memory), tcp (sockets)", .letter = 't', .def = "shm,tcp",
                .words = tune_transport_word),
    HK_ROW_TEXT(colls, "collectives", "LIST", "collectives to measure; all by default", .letter = 'c',
                .words = hk_tool_coll_word),
    HK_ROW_SIZE(from, "from", "SIZE", "the smallest message", .def = "8"),
    HK_ROW_SIZE(to, "to", "SIZE", "the largest message", .def = "128M"),
    HK_ROW_INT(step, "step", "FACTOR", "from one size to the next", .def = "2", .low = 2, .high = 1024),
    HK_ROW_INT(rounds, "rounds", "N",
               "rounds with new processes, each with the next of three placements of ranks on cores", .def = "3",
               .low = 1, .high = 100),
    HK_ROW_INT(repeats, "repeats", "N", "batches of each algorithm in a round, by turns; the fastest counts",
               .def = "2", .low = 1, .high = 1000),
    HK_ROW_INT(looks, "looks", "N", "times that what a sweep calls wrong is measured again; these times count then",
               .def = "2", .high = 100),
    HK_ROW_NUMBER(milliseconds, "milliseconds", "MS", "about how long a batch is", .def = "1"),
    HK_ROW_NUMBER(rest, "rest", "TIMES", "sleep this many times as long as it measures, for a machine that others use",
                  .def = "0"),
    HK_ROW_TEXT(between, "between", "ADDRESS:PORT",
                "measure between hosts, on the ranks that a launcher started; rank 0 listens there"),
    HK_ROW_FLAG(quick, "quick", "few sizes and collectives: some seconds, rougher constants", .letter = 'q'),
    HK_ROW_FILE(out, "out", "FILE",
                "file for the constants, - for stdout; without it the file that every init reads "
                "(~/.config/hocket/tune.conf)",
                .letter = 'o'),
    HK_ROW_FILE(times, "times", "FILE",
                "file with times of earlier runs, which count as much as this run's; this run's are added to it"),
    HK_ROW_FLAG(check, "check", "write no constants: report how good the choices are with those in force"),
    HK_ROW_FILE(constants, "constants", "FILE", "with --check: the constants to judge; none: the built-in ones"),
    HK_ROW_FLAG(all, "all", "with --check: show right choices too", .letter = 'a'),
    HK_ROW_FLAG(json, "json", "write the measurements as JSON to stdout; constants are then written only with --out"),
    {0}};

/* ---- what to measure ---- */

static bool tune_read_ranks(const char *text, int *out, int *n) {
  while (*text && *n < TABLES) {
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || (*end && *end != ',') || v < 2 || v > HK_TUNE_RANKS) return false;
    out[(*n)++] = (int)v;
    text = end + (*end == ',');
  }
  return *n > 0 && !*text;
}

static bool tune_read_words(const char *text, bool (*take)(const char *word, void *to), void *to) {
  char copy[256];
  if (strlen(text) >= sizeof copy) return false;
  strcpy(copy, text);
  for (char *save, *word = strtok_r(copy, ", ", &save); word; word = strtok_r(NULL, ", ", &save))
    if (!take(word, to)) return false;
  return true;
}
static bool tune_take_coll(const char *word, void *to) {
  hk_coll c;
  if (!hk_tool_coll(word, &c)) return false;
  *(unsigned *)to |= 1u << c;
  return true;
}
static bool tune_take_transport(const char *word, void *to) {
  for (int i = 0; tune_transport_word(i); i++) {
    if (strcmp(word, tune_transport_word(i))) continue;
    *(unsigned *)to |= 1u << i;
    return true;
  }
  hk_tool_wrong_word("--transports", word, tune_transport_word);
  return false;
}

/* Fills the common fields of all setups; prints an error and returns false if an option is wrong. */
static bool tune_plan_all(const options *o, hk_tune_setup *s) {
  unsigned colls = 0;
  if (o->colls && !tune_read_words(o->colls, tune_take_coll, &colls)) return false;
  if (o->from < 1 || o->to < o->from || o->to > (size_t)1 << 34)
    return hk_tool_wrong("--from and --to: sizes from 1 to 16G, the first no larger than the second"), false;
  if (!(o->milliseconds > 0 && o->milliseconds < 1e5)) return hk_tool_wrong("--milliseconds: 0.001 to 100000"), false;
  if (!(o->rest >= 0 && o->rest <= 100)) return hk_tool_wrong("--rest: 0 to 100"), false;
  *s = (hk_tune_setup){.from = o->from,
                       .to = o->to,
                       .step = o->step,
                       .rounds = o->rounds,
                       .repeats = o->repeats,
                       .batch_us = o->milliseconds * 1000,
                       .rest = o->rest};
  if (o->out && o->check) return hk_tool_wrong("--out: --check writes no constants"), false;
  if (o->times && (o->between || !strcmp(o->times, "-")))
    return hk_tool_wrong("--times: a file, and of times that were measured on one host"), false;
  if (o->out && o->json && !strcmp(o->out, "-"))
    return hk_tool_wrong("--out - and --json: both would go to stdout; give a file for the constants"), false;
  s->colls = (colls ? colls : (1u << HK_COLL_COUNT) - 1) &
             ~(unsigned)HK_COLLS_UNEVEN; /* they use the plain collectives' choices */
  if (!o->quick && !o->between) return true;
  if (!colls) s->colls = 1u << HK_ALLREDUCE | 1u << HK_ALLGATHER | 1u << HK_BROADCAST;
  s->step = o->quick ? 32 : 8;
  s->rounds = 1;
  if (s->to > 4 << 20) s->to = 4 << 20;
  return true;
}

/* Returns the number of setups, 0 after printing an error. */
static int tune_plan_setups(const options *o, hk_tune_setup out[TABLES]) {
  int ranks[TABLES], nranks = 0, n = 0;
  unsigned transports = 0;
  hk_tune_setup s;
  if (!tune_plan_all(o, &s)) return 0;
  if (o->between) {
    s.between = o->between;
    s.rest = 0;
    hk_launched place;
    if (hk_launched_find(&place, NULL) != HK_OK || place.nranks < 2)
      return hk_tool_wrong("--between: start it on two or more hosts by mpirun, srun or torchrun, or with RANK and "
                           "WORLD_SIZE set"),
             0;
    s.rank = place.rank, s.nranks = place.nranks;
    out[0] = s;
    return 1;
  }
  if (!tune_read_ranks(o->ranks, ranks, &nranks))
    return hk_tool_wrong("--ranks: '%s' is no list of numbers from 2 to %d", o->ranks, HK_TUNE_RANKS), 0;
  if (!tune_read_words(o->transports, tune_take_transport, &transports)) return 0;
  for (int t = 0; t < 2; t++)
    for (int i = 0; i < nranks && n < TABLES; i++) {
      if (!(transports >> t & 1u)) continue;
      out[n] = s;
      out[n].tcp = t == 1;
      out[n++].nranks = ranks[i];
    }
  return n;
}

static void tune_show_progress(hk_coll coll, size_t bytes) {
  char text[32];
  if (!isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r\033[K%s %s", hk_coll_name(coll), hk_tool_bytes(text, bytes));
  fflush(stderr);
}

static void tune_announce(const hk_tune_setup *s) {
  if (s->rank) return;
  fprintf(stderr, "%d ranks over %s", s->nranks, s->between ? "the network" : s->tcp ? "sockets" : "shared memory");
  if (s->points) fprintf(stderr, ", %d sizes again", s->npoints);
  fputs(" ...\n", stderr);
}

static hk_status tune_measure_one(hk_tune_table *t, const hk_tune_setup *s, void (*progress)(hk_coll, size_t)) {
  tune_announce(s);
  hk_status rc = hk_tune_measure(t, s, progress);
  if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
  return rc;
}

static hk_status tune_measure(const hk_tune_setup *s, hk_tune_table *t, int n) {
  for (int i = 0; i < n; i++) HK_OR_RETURN(tune_measure_one(&t[i], &s[i], tune_show_progress));
  return HK_OK;
}

typedef struct in_force {
  hk_constants k;
  hk_rules *choices;
  bool measured; /* they are from a file */
} in_force;

/* The constants of --constants, or those that an init on this machine uses. */
static hk_status tune_constants_in_force(const options *o, in_force *now) {
  char usual[4096];
  const char *path = o->constants ? o->constants : hk_settings_now()->TUNE_FILE;
  now->k = hk_constants_default;
  if (!path && hk_constants_path(usual, sizeof usual) && access(usual, R_OK) == 0) path = usual;
  now->measured = path && strcmp(path, "none") != 0;
  return now->measured ? hk_constants_read(&now->k, &now->choices, path) : HK_OK;
}

/* The number of passes of a second look. 0 with --quick, and between hosts, because only rank 0 would know the points
 * to measure. */
static int tune_passes(const options *o) { return o->quick || o->between ? 0 : o->looks; }

/* Fits, then measures again the points at which the model is wrong with these constants. */
static hk_status tune_fit_again(const options *o, hk_tune_table *tables, int n, const hk_constants *first,
                                hk_constants *out) {
  *out = hk_tune_fit(tables, n, first);
  for (int pass = 0; pass < tune_passes(o); pass++) {
    hk_tune_judge j = {.constants = out, .limit = LIMIT_WRITTEN};
    hk_tune_look look = {.judges = &j, .njudges = 1, .measure = tune_measure_one, .progress = tune_show_progress};
    HK_OR_RETURN(hk_tune_look_again(tables, n, &look));
    *out = hk_tune_fit(tables, n, first);
  }
  return HK_OK;
}

/* Fits the constants of one host and its choices; those between hosts do not change. */
static int tune_fit(const options *o, hk_tune_table *tables, int n, const hk_constants *before) {
  hk_constants first = hk_constants_default, fitted;
  first.net_alpha_us = before->net_alpha_us;
  first.net_message_us = before->net_message_us;
  first.net_us_per_b = before->net_us_per_b;
  hk_rules *choices = NULL;
  hk_status rc = tune_fit_again(o, tables, n, &first, &fitted);
  if (rc == HK_OK) rc = hk_tune_choices(tables, n, &fitted, &choices);
  if (rc != HK_OK) {
    hk_rules_free(choices);
    return hk_tool_failed(rc);
  }
  if (o->json) {
    hk_tune_print_json(tables, n, &fitted, choices);
  } else if (!o->out || strcmp(o->out, "-") != 0) {
    hk_tune_print_score("With the built-in constants", tables, n, &hk_constants_default, NULL);
    hk_tune_print_score("With the measured ones", tables, n, &fitted, NULL);
    hk_tune_print_score("... and choices for what they get wrong", tables, n, &fitted, choices);
  }
  int code = hk_tune_save(o->out, &fitted, choices);
  hk_rules_free(choices);
  return code;
}

/* Fits the constants between hosts; those of one host, and its choices, do not change. */
static int tune_fit_between(const options *o, const hk_tune_table *table, const hk_constants *before,
                            const hk_rules *choices) {
  if (table->machine.team.nhosts < 2)
    return hk_tool_wrong("--between: all %d ranks are on one host: start them on several", table->machine.team.nranks);
  hk_constants fitted = hk_tune_fit(table, 1, before);
  if (o->json) {
    hk_tune_print_json(table, 1, &fitted, choices);
  } else if (!o->out || strcmp(o->out, "-") != 0) {
    hk_tune_print_score("With the constants in force", table, 1, before, NULL);
    hk_tune_print_score("With the measured ones", table, 1, &fitted, NULL);
  }
  return hk_tune_save(o->out, &fitted, choices);
}

/* Judges the current choices by the measured times. With measured constants it also judges the choices of the built-in
 * constants. */
static int tune_check(const options *o, hk_tune_table *tables, int n, const in_force *now) {
  hk_tune_judge judges[] = {{.constants = &now->k,
                             .choices = now->choices,
                             .limit = now->measured ? HK_TUNE_LIMIT_MEASURED : HK_TUNE_LIMIT_BUILT_IN},
                            {.constants = &hk_constants_default, .limit = HK_TUNE_LIMIT_BUILT_IN}};
  hk_tune_look look = {
      .judges = judges, .njudges = now->measured ? 2 : 1, .measure = tune_measure_one, .progress = tune_show_progress};
  for (int pass = 0; pass < tune_passes(o); pass++) {
    look.draw = pass ? 0 : LEAST_DRAWN;
    hk_status rc = hk_tune_look_again(tables, n, &look);
    if (rc != HK_OK) return hk_tool_failed(rc);
  }
  if (o->json) {
    hk_tune_print_json(tables, n, &now->k, now->choices);
    return HK_EXIT_OK;
  }
  hk_tune_print_choices(tables, n, &now->k, now->choices, o->all);
  hk_tune_print_score("With the constants in force", tables, n, &now->k, now->choices);
  if (tune_passes(o)) hk_tune_print_tally(tables, n, &judges[0]);
  if (now->measured) hk_tune_print_score("With the built-in ones", tables, n, &hk_constants_default, NULL);
  if (now->measured && tune_passes(o)) hk_tune_print_tally(tables, n, &judges[1]);
  return hk_tune_worst(tables, n, &now->k, now->choices) > HK_TUNE_LIMIT_BUILT_IN ? HK_EXIT_FINDING : HK_EXIT_OK;
}

/* True if this process writes files: with several hosts, only rank 0. */
static bool tune_writes(const options *o, int rank) { return !o->check && !(o->json && !o->out) && !rank; }

static int tune_use(const options *o, hk_tune_table *tables, int n, const in_force *now) {
  if (tables[0].setup.rank) return HK_EXIT_OK; /* between hosts only rank 0 has the table */
  if (o->check) return tune_check(o, tables, n, now);
  if (!tune_writes(o, 0)) {
    hk_tune_print_json(tables, n, &now->k, now->choices);
    return HK_EXIT_OK;
  }
  return o->between ? tune_fit_between(o, tables, &now->k, now->choices) : tune_fit(o, tables, n, &now->k);
}

static bool tune_can_save(const options *o, int rank) {
  return (!tune_writes(o, rank) || hk_tune_can_save(o->out)) && (!o->times || hk_tune_can_save(o->times));
}

/* Measures, and uses the times together with those of earlier runs. This run's times are added to the file. */
static int tune_measure_and_use(const options *o, const hk_tune_setup *setups, int n, hk_tune_times *times,
                                const in_force *now) {
  hk_status rc = HK_OK;
  hk_tune_table tables[TABLES] = {{.n = 0}};
  int code = HK_EXIT_TROUBLE;
  HK_TRY(tune_measure(setups, tables, n), out);
  for (int i = 0; i < n && o->times; i++) hk_tune_times_use(times, &tables[i]);
  code = tune_use(o, tables, n, now);
  if (!o->times || code == HK_EXIT_TROUBLE) goto out;
  HK_TRY(hk_tune_times_take(times, tables, n), out);
  if (hk_tune_save_times(o->times, times) != HK_EXIT_OK) code = HK_EXIT_TROUBLE;
out:
  for (int i = 0; i < n; i++) hk_tune_table_clear(&tables[i]);
  return rc == HK_OK ? code : hk_tool_failed(rc);
}

static int tune_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_tune_setup setups[TABLES];
  hk_tune_times times = {.n = 0};
  in_force now = {.choices = NULL};
  (void)nargs, (void)args;
  hk_status rc = tune_constants_in_force(o, &now);
  if (rc != HK_OK && (o->check || o->json || o->between))
    return hk_tool_failed(rc); /* else everything is measured anew, without the earlier constants */
  int code = HK_EXIT_TROUBLE, n = tune_plan_setups(o, setups);
  if (!n || !tune_can_save(o, setups[0].rank)) goto out;
  rc = o->times ? hk_tune_times_read(&times, o->times) : HK_OK;
  code = rc == HK_OK ? tune_measure_and_use(o, setups, n, &times, &now) : hk_tool_failed(rc);
out:
  hk_tune_times_clear(&times);
  hk_rules_free(now.choices);
  return code;
}

const hk_tool hk_tool_tune = {
    .name = "tune",
    .about = "measure this machine and fit the constants that choices depend on",
    .text =
        "Runs every algorithm between processes of this host, fits the constants of the cost model to their times, and "
        "writes them to a small file that every init reads. Hocket works without it, with built-in constants. It takes "
        "about a quarter of an hour, with --quick some seconds. Other programs on the machine disturb it.\n"
        "\n"
        "With --check nothing is written: the choices are compared with the fastest algorithms. Choices that seem "
        "wrong are measured again, by new processes, and these times count; so are as many choices that seem right.\n"
        "\n"
        "With --times the runs of several hours are combined, for a machine whose speed changes with its neighbours' "
        "load; give --check a file of its own.\n"
        "\n"
        "With --between a launcher starts it once on each of several hosts: it measures between them, and rank 0 adds "
        "the cost of a message and of a byte between hosts to its host's file.",
    .findings = "with --check, a choice takes more than 1.25 times as long as the best algorithm.",
    .examples = "hocket tune\n  measure and write ~/.config/hocket/tune.conf\n"
                "hocket tune --quick --out -\n  takes some seconds and only prints\n"
                "hocket tune --check -n 2,4,8 --step 2\n  every choice against an exhaustive sweep\n"
                "hocket tune --times tune.times\n  one of several runs, at different hours\n"
                "mpirun -H a,b hocket tune --between a:29500\n  between two hosts; one process on each host is enough",
    .options = rows,
    .bytes = sizeof(options),
    .run = tune_run,
};
