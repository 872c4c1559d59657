/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket tune`: what to measure, and what is made of the times. */
#include "tune.h"
#include <limits.h> /* PATH_MAX */
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include "../../boot/meet.h"
#include "../../collectives/algorithm.h"
#include "../../decide/overrides.h"
#include "../inputs.h"
#include "../machine.h"
#include "../tools.h"

enum { TABLES = 2 * HK_TUNE_RANKS };
/* The limits of a choice's time, as a multiple of the best algorithm's. */
#define WITHIN 1.10
#define LIMIT 1.25

typedef struct options {
  const char *ranks, *colls, *out, *between;
  size_t to;
  int transport, step, rounds;
  bool check;
} options;

enum { BOTH, MEMORY, SOCKETS };
static const char *tune_transport_word(int i) {
  static const char *const words[] = {"both", "shm", "tcp"};
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
                "(~/.config/hocket/tune.conf). With --check: file for the rules",
                .letter = 'o'),
    HK_ROW_FLAG(check, "check",
                "compare the choices with the fastest algorithms, and write a rule for each that takes 10% longer"),
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

/* Returns the number of setups, 0 after printing an error. */
static int tune_plan(const options *o, hk_tune_setup all[TABLES]) {
  char list[256];
  int n = 0;
  hk_launched place;
  hk_tune_setup s = {.rounds = o->rounds, .colls = ((1u << HK_COLL_COUNT) - 1) & ~(unsigned)HK_COLLS_UNEVEN};
  s.to = o->to ? o->to : o->check ? 128 << 20 : 8 << 20;
  s.step = o->step ? o->step : o->check ? 4 : 16;
  if (s.to > (size_t)1 << 34 || s.to < 8) return hk_tool_wrong("--to: a size from 8 to 16G"), 0;
  if (o->out && o->check && o->transport == BOTH)
    return hk_tool_wrong("--check --out: a rule holds for every transport, so give --transport shm or tcp"), 0;
  snprintf(list, sizeof list, "%s", o->colls ? o->colls : "allreduce,allgather,broadcast");
  if ((o->colls || !o->check) && !(s.colls = tune_read_colls(list))) return 0;
  if (!o->between && !hk_tool_check_list("--ranks", o->ranks, 2, HK_TUNE_RANKS)) return 0;
  for (s.nranks = 2; !o->between && s.nranks <= HK_TUNE_RANKS; s.nranks++)
    for (int t = MEMORY; t <= SOCKETS; t++) {
      s.tcp = t == SOCKETS;
      if (hk_tool_in_list(o->ranks, s.nranks) && (o->transport == BOTH || o->transport == t)) all[n++] = s;
    }
  if (!o->between) return n;
  if (hk_launched_find(&place, NULL) != HK_OK || place.nranks < 2)
    return hk_tool_wrong("--between: start it on two or more hosts by mpirun, srun or torchrun, or with RANK and "
                         "WORLD_SIZE set"),
           0;
  s.between = o->between;
  s.rank = place.rank, s.nranks = place.nranks, s.rounds = 1, s.tcp = false;
  all[0] = s;
  return 1;
}

static const char *tune_via(const hk_tune_setup *s) {
  return s->between ? "the network" : s->tcp ? "sockets" : "shared memory";
}

/* ---- results ---- */

typedef struct judgement {
  const hk_tune_table *t;
  int n;
  const hk_constants *k;
  const char *what; /* the constants */
  bool rules;       /* wanted */
  double *worst;    /* the time of the worst choice as a multiple of the best */
} judgement;

/* A rule of a tuning file for each choice that takes more than WITHIN times the best, and how good the choices are. */
static hk_status tune_judge(FILE *to, const void *what) {
  const judgement *j = what;
  int count = 0, good = 0, fair = 0, prices = 0;
  double sum = 0, error = 0;
  *j->worst = 1;
  for (const hk_tune_table *t = j->t; t < j->t + j->n; t++) {
    for (hk_tune_group g = {.n = 0}; hk_tune_next(t, j->k, &g); count++) {
      const hk_tune_cell *chosen = &t->at[g.chosen], *best = &t->at[g.best];
      const double ratio = chosen->us / best->us, half = sqrt(t->setup.step), bytes = (double)best->bytes;
      char a[32], b[32];
      sum += ratio, error += g.error, prices += g.n;
      good += ratio <= WITHIN, fair += ratio <= LIMIT;
      *j->worst = fmax(*j->worst, ratio);
      if (!j->rules || ratio <= WITHIN) continue;
      fprintf(to, "%s, %.0f, %.0f, %d, %d, %s, *, * # %s, over %s; by %s %s, %.2f times as long\n",
              hk_coll_name((hk_coll)best->coll), floor(bytes / half) + 1, floor(bytes * half), t->setup.nranks,
              t->machine.team.nhosts, hk_algorithms[best->algorithm]->name, hk_tool_time(a, best->us),
              tune_via(&t->setup), hk_algorithms[chosen->algorithm]->name, hk_tool_time(b, chosen->us), ratio);
    }
  }
  fprintf(
      to,
      "# With the %s: of %d choices %d are within 10%% of the best, %d within 25%%; on average %.3f times the best, "
      "the worst %.2f times; prices are %.0f%% off\n",
      j->what, count, good, fair, count ? sum / count : 1, *j->worst, 100 * (exp(error / fmax(1, prices)) - 1));
  return HK_OK;
}

static int tune_check(const options *o, const hk_tune_table *t, int n, const hk_overrides *now) {
  double worst, other;
  int code =
      hk_tool_output(o->out, tune_judge, &(judgement){t, n, &now->constants, "constants in force", true, &worst});
  if (code == HK_EXIT_OK && now->tuned)
    code = hk_tool_output(NULL, tune_judge, &(judgement){t, n, &hk_constants_default, "built-in ones", false, &other});
  return code == HK_EXIT_OK && worst > LIMIT ? HK_EXIT_FINDING : code;
}

static hk_status tune_write(FILE *to, const void *constants) { return hk_constants_write(constants, to); }

/* Fits the constants between hosts, or those of one host; the others stay as they are. */
static int tune_fit(const options *o, const char *path, const hk_tune_table *t, int n, const hk_constants *now) {
  double worst;
  if (o->between && t->machine.team.nhosts < 2)
    return hk_tool_wrong("--between: all %d ranks are on one host: start them on several", t->machine.team.nranks);
  const hk_constants fitted = hk_tune_fit(t, n, now);
  (void)tune_judge(stdout, &(judgement){t, n, &hk_constants_default, "built-in constants", false, &worst});
  (void)tune_judge(stdout, &(judgement){t, n, &fitted, "measured ones", false, &worst});
  const int code = hk_tool_output(path, tune_write, &fitted);
  if (code == HK_EXIT_OK && strcmp(path, "-") != 0)
    fprintf(stderr, "written to %s%s\n", path,
            o->out ? "; HOCKET_TUNE_FILE=<that file> makes an init read it" : ", which every init reads");
  return code;
}

/* The file to write: --out's, or the one that every init reads, in folders that it makes. NULL after an error. */
static const char *tune_find_place(const options *o, char usual[PATH_MAX]) {
  const char *place = o->out ? o->out : usual;
  if (!o->out && !hk_constants_path(usual, PATH_MAX)) return hk_tool_wrong("no HOME is set: give --out"), NULL;
  for (char *p = o->out ? NULL : usual; p && (p = strchr(p + 1, '/')); *p = '/') {
    *p = 0;
    (void)mkdir(usual, 0777); /* an error is found when the file is opened */
  }
  return hk_tool_can_output(place) ? place : NULL;
}

static int tune_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_tune_setup s[TABLES];
  hk_tune_table t[TABLES] = {{.n = 0}};
  hk_overrides now;
  char usual[PATH_MAX];
  const char *place = NULL;
  (void)nargs, (void)args;
  hk_status rc = hk_tool_overrides(&now);
  int code = HK_EXIT_TROUBLE, n = 0;
  /* If everything is measured anew, a wrong file of earlier constants does not matter. */
  if (rc != HK_OK && (o->check || o->between)) goto out;
  rc = HK_OK;
  n = tune_plan(o, s);
  if (!n || (!s->rank && (o->out || !o->check) && !(place = tune_find_place(o, usual)))) goto out;
  for (int i = 0; i < n; i++) {
    if (!s->rank) fprintf(stderr, "%d ranks over %s ...\n", s[i].nranks, tune_via(&s[i]));
    HK_TRY(hk_tune_measure(&t[i], &s[i]), out);
  }
  code = s->rank    ? HK_EXIT_OK /* between hosts only rank 0 has the times */
         : o->check ? tune_check(o, t, n, &now)
                    : tune_fit(o, place, t, n, &now.constants);
out:
  for (int i = 0; i < n; i++) hk_tune_table_clear(&t[i]);
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
        "HOCKET_TUNE_FILE=none judges the built-in constants. HOCKET_TUNING_FILE takes the rules that it writes.\n"
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
