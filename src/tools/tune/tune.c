/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket tune`: measures this machine, fits the cost model's constants and writes them to a file; or compares the
 * choices with an exhaustive sweep. */
#include "tune.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/json.h"
#include "../../boot/meet.h"
#include "../../decide/overrides.h"
#include "../machine.h"
#include "../tools.h"

enum { TABLES = 16 };
/* The limits of a choice's time, as a multiple of the best algorithm's. */
#define WITHIN 1.10
#define LIMIT 1.25

typedef struct options {
  const char *ranks, *colls, *out, *between;
  size_t to;
  int transport, step, rounds;
  bool check, json;
} options;

enum { BOTH, MEMORY, SOCKETS };
static const char *tune_transport_word(int i) {
  static const char *const words[] = {[BOTH] = "both", [MEMORY] = "shm", [SOCKETS] = "tcp"};
  return i >= 0 && i <= SOCKETS ? words[i] : NULL;
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(ranks, "ranks", "LIST", "numbers of ranks to measure, as 2,4,8", .letter = 'n', .def = "2,4,8"),
    HK_ROW_WORD(transport, "transport", "NAME", "shm (shared memory), tcp (sockets), or both", .letter = 't',
                .def = "both", .words = tune_transport_word),
    HK_ROW_TEXT(colls, "collectives", "LIST",
                "collectives to measure; by default allreduce, allgather and broadcast, with --check all",
                .letter = 'c', .words = hk_tool_coll_word),
    HK_ROW_SIZE(to, "to", "SIZE", "the largest message; by default 8M, with --check 128M"),
    HK_ROW_INT(step, "step", "FACTOR", "from one size to the next; by default 16, with --check 4", .low = 2,
               .high = 1024),
    HK_ROW_INT(rounds, "rounds", "N",
               "rounds with new processes, each with the next of three placements of ranks on cores", .def = "3",
               .low = 1, .high = 100),
    HK_ROW_TEXT(between, "between", "ADDRESS:PORT",
                "measure between hosts, on the ranks that a launcher started; rank 0 listens there"),
    HK_ROW_FILE(out, "out", "FILE",
                "file for the constants, - for stdout; without it the file that every init reads "
                "(~/.config/hocket/tune.conf). With --check: a tuning file with a rule for each choice beyond 10%",
                .letter = 'o'),
    HK_ROW_FLAG(check, "check", "write no constants: compare the choices with the fastest algorithms"),
    HK_ROW_FLAG(json, "json", "with --check: all times as JSON"),
    {0}};

/* ---- what to measure ---- */

/* Reads --collectives to a bit set; prints an error and returns 0 if it is wrong. */
static unsigned tune_read_colls(char *list) {
  unsigned colls = 0;
  for (char *save, *word = strtok_r(list, ", ", &save); word; word = strtok_r(NULL, ", ", &save)) {
    hk_coll c;
    if (!hk_tool_coll(word, &c)) return 0;
    colls |= 1u << c;
  }
  return colls & ~(unsigned)HK_COLLS_UNEVEN; /* they use the plain collectives' choices */
}

/* Adds a setup for each number of ranks and transport; returns how many there are, 0 after printing an error. */
static int tune_add_ranks(const options *o, const hk_tune_setup *common, char *list, hk_tune_setup all[TABLES]) {
  int n = 0;
  for (char *save, *word = strtok_r(list, ", ", &save); word; word = strtok_r(NULL, ", ", &save)) {
    char *end;
    const long ranks = strtol(word, &end, 10);
    if (*end || ranks < 2 || ranks > HK_TUNE_RANKS || n + 2 > TABLES)
      return hk_tool_wrong("--ranks: '%s' is not one of at most %d numbers from 2 to %d", word, TABLES / 2,
                           HK_TUNE_RANKS),
             0;
    for (int t = MEMORY; t <= SOCKETS; t++) {
      if (o->transport != BOTH && o->transport != t) continue;
      all[n] = *common;
      all[n].nranks = (int)ranks;
      all[n++].tcp = t == SOCKETS;
    }
  }
  return n;
}

/* Takes the rank that a launcher gave to this process. */
static int tune_plan_between(const options *o, hk_tune_setup *s) {
  hk_launched place;
  if (hk_launched_find(&place, NULL) != HK_OK || place.nranks < 2)
    return hk_tool_wrong("--between: start it on two or more hosts by mpirun, srun or torchrun, or with RANK and "
                         "WORLD_SIZE set"),
           0;
  s->between = o->between;
  s->rank = place.rank, s->nranks = place.nranks;
  s->rounds = 1;
  return 1;
}

/* Returns the number of setups, 0 after printing an error. */
static int tune_plan(const options *o, hk_tune_setup all[TABLES]) {
  static const char few[] = "allreduce,allgather,broadcast";
  char list[256];
  hk_tune_setup s = {.rounds = o->rounds, .colls = ((1u << HK_COLL_COUNT) - 1) & ~(unsigned)HK_COLLS_UNEVEN};
  s.to = o->to ? o->to : o->check ? 128 << 20 : 8 << 20;
  s.step = o->step ? o->step : o->check ? 4 : 16;
  if (s.to > (size_t)1 << 34 || s.to < 8) return hk_tool_wrong("--to: a size from 8 to 16G"), 0;
  if (o->json && !o->check) return hk_tool_wrong("--json goes with --check"), 0;
  if (o->out && o->check && o->transport == BOTH)
    return hk_tool_wrong("--check --out: a rule holds for every transport, so give --transport shm or tcp"), 0;
  snprintf(list, sizeof list, "%s", o->colls ? o->colls : few);
  if ((o->colls || !o->check) && !(s.colls = tune_read_colls(list))) return 0;
  if (o->between) return all[0] = s, tune_plan_between(o, all);
  snprintf(list, sizeof list, "%s", o->ranks);
  return tune_add_ranks(o, &s, list, all);
}

/* ---- measuring ---- */

static void tune_show_progress(hk_coll coll, size_t bytes) {
  char text[32];
  if (!isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r\033[K%s %s", hk_coll_name(coll), hk_tool_bytes(text, bytes));
  fflush(stderr);
}

static hk_status tune_measure(const hk_tune_setup *s, hk_tune_table *t, int n) {
  hk_status rc = HK_OK;
  for (int i = 0; i < n && rc == HK_OK; i++) {
    if (!s[i].rank)
      fprintf(stderr, "%d ranks over %s ...\n", s[i].nranks,
              s[i].between ? "the network"
              : s[i].tcp   ? "sockets"
                           : "shared memory");
    rc = hk_tune_measure(&t[i], &s[i], tune_show_progress);
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
  }
  return rc;
}

/* ---- results ---- */

static const char *tune_via(const hk_tune_setup *s) { return s->between ? "net" : s->tcp ? "tcp" : "shm"; }

/* Prints how good the choices are; returns the time of the worst as a multiple of the best. */
static double tune_print_score(const char *what, const hk_tune_table *t, int n, const hk_constants *k) {
  int count = 0, good = 0, fair = 0;
  double worst = 1, sum = 0;
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0};
    for (; hk_tune_next(&t[i], k, &g); count++) {
      const double ratio = t[i].at[g.chosen].us / t[i].at[g.best].us;
      sum += ratio;
      good += ratio <= WITHIN;
      fair += ratio <= LIMIT;
      if (ratio > worst) worst = ratio;
    }
  }
  printf(
      "With the %s: of %d choices %d are within 10%% of the best, %d within 25%%; on average %.3f times the best, the "
      "worst %.2f times; prices are %.0f%% off\n",
      what, count, good, fair, count ? sum / count : 1, worst, 100 * (exp(hk_tune_error(t, n, k)) - 1));
  return worst;
}

/* The choices that take more than WITHIN times the best; also, if `rules` is not NULL, as rules of a tuning file. */
static void tune_print_choices(const hk_tune_table *t, int n, const hk_constants *k, FILE *rules) {
  hk_table *out = hk_table_new("lllrlrlrr");
  hk_table_row(out, HK_STYLE_BOLD, "VIA\tRANKS\tCOLLECTIVE\tBYTES\tCHOSEN\tTIME\tBEST\tTIME\tRATIO");
  if (rules) fputs("# Where the model errs: hocket tune --check\n", rules);
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0};
    while (hk_tune_next(&t[i], k, &g)) {
      const hk_tune_setup *s = &t[i].setup;
      const hk_tune_cell *chosen = &t[i].at[g.chosen], *best = &t[i].at[g.best];
      const char *name = hk_algorithms[best->algorithm]->name, *coll = hk_coll_name((hk_coll)best->coll);
      char bytes[32], a[32], b[32];
      const double ratio = chosen->us / best->us, half = sqrt(s->step); /* half a step, as a factor */
      if (ratio <= WITHIN) continue;
      hk_table_row(out, ratio > LIMIT ? HK_STYLE_RED : HK_STYLE_YELLOW, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f",
                   tune_via(s), s->nranks, coll, hk_tool_bytes(bytes, chosen->bytes),
                   hk_algorithms[chosen->algorithm]->name, hk_tool_time(a, chosen->us), name, hk_tool_time(b, best->us),
                   ratio);
      if (rules)
        fprintf(rules, "%s, %.0f, %.0f, %d, %d, %s, *, *\n", coll, floor((double)best->bytes / half) + 1,
                floor((double)best->bytes * half), s->nranks, t[i].machine.team.nhosts, name);
    }
  }
  hk_table_print(out, 0, stdout);
}

static void tune_print_json(const hk_tune_table *t, int n, const hk_constants *k) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '[');
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0};
    while (hk_tune_next(&t[i], k, &g)) {
      const hk_tune_cell *at = t[i].at;
      hk_json_open(&w, '{');
      hk_json_put_text(&w, "transport", tune_via(&t[i].setup));
      hk_json_put_integer(&w, "ranks", t[i].setup.nranks);
      hk_json_put_text(&w, "collective", hk_coll_name((hk_coll)at[g.first].coll));
      hk_json_put_integer(&w, "bytes", (long long)at[g.first].bytes);
      hk_json_put_text(&w, "chosen", hk_algorithms[at[g.chosen].algorithm]->name);
      hk_json_put_text(&w, "best", hk_algorithms[at[g.best].algorithm]->name);
      hk_json_put_number(&w, "ratio", at[g.chosen].us / at[g.best].us);
      hk_json_begin(&w, "us", '{');
      for (int c = g.first; c < g.first + g.n; c++)
        hk_json_put_number(&w, hk_algorithms[at[c].algorithm]->name, at[c].us);
      hk_json_close(&w);
      hk_json_close(&w);
    }
  }
  hk_json_close(&w);
  putchar('\n');
}

static int tune_check(const options *o, const hk_tune_table *t, int n, const hk_overrides *now) {
  if (o->json) return tune_print_json(t, n, &now->constants), HK_EXIT_OK;
  FILE *rules = o->out ? fopen(o->out, "we") : NULL;
  if (o->out && !rules) return hk_tool_wrong("%s cannot be written: %s", o->out, strerror(errno));
  tune_print_choices(t, n, &now->constants, rules);
  if (rules && fclose(rules)) return hk_tool_wrong("%s cannot be written: %s", o->out, strerror(errno));
  const double worst = tune_print_score("constants in force", t, n, &now->constants);
  if (now->tuned) (void)tune_print_score("built-in ones", t, n, &hk_constants_default);
  return worst > LIMIT ? HK_EXIT_FINDING : HK_EXIT_OK;
}

/* Fits the constants between hosts, or those of one host, from the built-in ones on; the others stay as they are. */
static int tune_fit(const options *o, const hk_tune_table *t, int n, const hk_constants *now) {
  const hk_constants usual = hk_constants_default, *net = o->between ? &usual : now;
  hk_constants first = o->between ? *now : usual;
  if (o->between && t->machine.team.nhosts < 2)
    return hk_tool_wrong("--between: all %d ranks are on one host: start them on several", t->machine.team.nranks);
  first.net_alpha_us = net->net_alpha_us;
  first.net_message_us = net->net_message_us;
  first.net_us_per_b = net->net_us_per_b;
  const hk_constants fitted = hk_tune_fit(t, n, &first);
  if (!o->out || strcmp(o->out, "-") != 0) {
    (void)tune_print_score("built-in constants", t, n, &usual);
    (void)tune_print_score("measured ones", t, n, &fitted);
  }
  return hk_tune_save(o->out, &fitted);
}

static int tune_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_status rc = HK_OK;
  hk_tune_setup setups[TABLES];
  hk_tune_table tables[TABLES] = {{.n = 0}};
  hk_overrides now;
  (void)nargs, (void)args;
  rc = hk_tool_overrides(&now);
  int code = HK_EXIT_TROUBLE, n = 0;
  /* If everything is measured anew, a wrong file of earlier constants does not matter. */
  if (rc != HK_OK && (o->check || o->between)) goto out;
  rc = HK_OK;
  n = tune_plan(o, setups);
  if (!n || (!setups[0].rank && (!o->check || o->out) && !hk_tune_can_save(o->out))) goto out;
  HK_TRY(tune_measure(setups, tables, n), out);
  if (setups[0].rank) /* between hosts only rank 0 has the times */
    code = HK_EXIT_OK;
  else
    code = o->check ? tune_check(o, tables, n, &now) : tune_fit(o, tables, n, &now.constants);
out:
  for (int i = 0; i < n; i++) hk_tune_table_clear(&tables[i]);
  hk_overrides_clear(&now);
  return rc == HK_OK ? code : hk_tool_failed(rc);
}

const hk_tool hk_tool_tune = {
    .name = "tune",
    .about = "measure this machine and fit the constants that choices depend on",
    .text =
        "Runs every algorithm between processes of this host, fits the constants of the cost model to their times, and "
        "writes them to a small file that every init reads. Hocket works without it, with built-in constants. It takes "
        "one or two minutes. Other programs on the machine disturb it.\n"
        "\n"
        "With --check an exhaustive sweep compares each choice with the fastest algorithm. It takes about ten minutes. "
        "HOCKET_TUNE_FILE=none judges the built-in constants. With --out it writes rules for HOCKET_TUNING_FILE.\n"
        "\n"
        "With --between a launcher starts it once on each of several hosts: it measures between them, and rank 0 adds "
        "the cost of a message and of a byte between hosts to its host's file.",
    .findings = "with --check, a choice takes more than 1.25 times as long as the best algorithm.",
    .examples = "hocket tune\n  measure and write ~/.config/hocket/tune.conf\n"
                "hocket tune --check -n 2,4 --to 1M\n  every choice against an exhaustive sweep\n"
                "mpirun -H a,b hocket tune --between a:29500\n  between two hosts; one process on each host is enough",
    .options = rows,
    .bytes = sizeof(options),
    .run = tune_run,
};
