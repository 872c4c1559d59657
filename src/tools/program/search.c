/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program search`: tries variations of the built-in programs on a machine, and keeps the fastest. */
#include "search.h"
#include <stdlib.h>
#include <string.h>
#include "../../base/array.h"
#include "../../base/json.h"
#include "../../collectives/algorithm.h"
#include "../../decide/protocol.h"
#include "../../program/layout.h"
#include "../machine.h"
#include "../proof.h"
#include "program.h"
#include "site.h"

typedef struct options {
  hk_coll coll;
  const char *machine, *xml, *output;
  size_t size;
  int ranks, budget;
  bool json;
} options;

enum { STARTS = 3 /* algorithms that are varied */, SHOWN = 5 };
#define WORTH 0.99 /* a smaller gain is none: the model is not so exact, and of equal candidates the first remains */

typedef struct search {
  const options *o;
  FILE *report; /* the standard output, unless the programs go there */
  hk_site site;
  int nranks;
  hk_sim_result built_in;
  hk_trial *trials;
  int n, capacity, refused;
  int best; /* -1: none is proved */
  hk_status rc;
} search;

/* ---- trials ---- */

static bool search_known(const search *x, const hk_candidate *c) {
  for (int i = 0; i < x->n; i++)
    if (!memcmp(&x->trials[i].what, c, sizeof *c)) return true;
  return false;
}

/* True if the candidate becomes the best. Does nothing if it is known, or if the budget is used up. */
static bool search_try(search *x, const hk_candidate *c) {
  if (x->rc != HK_OK || x->n >= x->o->budget || search_known(x, c)) return false;
  if (!HK_RESERVE(x->trials, x->capacity, x->n + 1)) {
    x->rc = HK_FAIL_ERRNO("no memory for %d candidates", x->n + 1);
    return false;
  }
  hk_trial *t = &x->trials[x->n];
  memset(t, 0, sizeof *t);
  memcpy(&t->what, c, sizeof *c);
  x->rc = hk_trial_run(t, &x->site, x->o->coll, x->o->size, -1);
  if (x->rc != HK_OK || !t->fits) return false;
  x->n++;
  x->refused += !t->proved;
  if (!t->proved || (x->best >= 0 && t->result.us >= x->trials[x->best].result.us * WORTH)) return false;
  x->best = x->n - 1;
  return true;
}

static void search_start(hk_candidate *c, const hk_algorithm *a, int part, int order) {
  c->nparts = part + 1;
  c->parts[part].algorithm = a;
  c->parts[part].order = order;
  c->parts[part].copies = c->parts[part].pieces = 1;
}

/* ---- what is tried, in this order ---- */

static void search_built_in(search *x) {
  for (const hk_algorithm *const *a = hk_algorithms; *a; a++) {
    hk_candidate c;
    if (hk_simulator_cannot(x->site.simulator, *a, x->o->coll)) continue;
    memset(&c, 0, sizeof c);
    search_start(&c, *a, 0, 0);
    search_try(x, &c);
  }
}

static int search_by_time(const void *a, const void *b) {
  const hk_trial *const *x = a, *const *y = b;
  const double d = (*x)->result.us - (*y)->result.us;
  return d < 0 ? -1 : d > 0 ? 1 : (*x > *y) - (*x < *y);
}

/* The fastest trials, at most `most`, the fastest first; returns how many. `best`: they are those after the best, and
 * those that take as long as the one before are left out. */
static int search_fastest(search *x, const hk_trial **out, int most, bool best) {
  int proved = 0, n = 0;
  if (best) out[n++] = &x->trials[x->best];
  const hk_trial **all = malloc(((size_t)x->n + 1) * sizeof *all);
  if (!all) {
    x->rc = HK_FAIL_ERRNO("no memory for %d candidates", x->n);
    return 0;
  }
  for (int i = 0; i < x->n; i++)
    if (x->trials[i].proved) all[proved++] = &x->trials[i];
  qsort(all, (size_t)proved, sizeof *all, search_by_time);
  for (int i = 0; i < proved && n < most; i++)
    if (!best || out[n - 1]->result.us < all[i]->result.us * WORTH) out[n++] = all[i];
  free(all);
  return n;
}

static void search_lanes(search *x, const hk_algorithm *a) {
  static const unsigned forms[][2] = {{2, 1}, {4, 1}, {8, 1}, {1, 2}, {1, 4}, {2, 2}};
  const hk_layout *l = x->site.layout;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(forms); k++) {
    hk_candidate c;
    memset(&c, 0, sizeof c);
    search_start(&c, a, 0, 0);
    c.parts[0].copies = forms[k][0];
    c.parts[0].pieces = forms[k][1];
    search_try(x, &c);
  }
  if (!l || l->nchannels < 2) return;
  hk_candidate c;
  memset(&c, 0, sizeof c);
  for (int k = 0; k < l->nchannels && k < HK_CANDIDATE_PARTS; k++) search_start(&c, a, k, k);
  search_try(x, &c);
}

/* A part of the message by each of two algorithms. */
static void search_pair(search *x, const hk_algorithm *a, const hk_algorithm *b) {
  static const unsigned shares[][2] = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {1, 4}};
  for (size_t k = 0; k < HK_ARRAY_LENGTH(shares); k++) {
    hk_candidate c;
    memset(&c, 0, sizeof c);
    search_start(&c, a, 0, 0);
    search_start(&c, b, 1, 0);
    c.parts[0].pieces = shares[k][0];
    c.parts[1].pieces = shares[k][1];
    search_try(x, &c);
  }
}

/* Twice and half as many copies and pieces of a part of the best; true if one of them is better. */
static bool search_climb(search *x) {
  const hk_candidate from = x->trials[x->best].what;
  bool better = false;
  for (int i = 0; i < from.nparts; i++)
    for (int k = 0; k < 4; k++) {
      hk_candidate c = from;
      unsigned *n = k < 2 ? &c.parts[i].copies : &c.parts[i].pieces;
      if (k % 2 && *n == 1) continue;
      *n = k % 2 ? *n / 2 : *n * 2;
      better = search_try(x, &c) || better;
    }
  return better;
}

/* Lets two ranks that are neighbours by number change places in the best; true if that is better. The root stays. */
static bool search_swap(search *x, int first) {
  hk_candidate c = x->trials[x->best].what;
  for (int r = 0; !c.swaps && r < x->nranks; r++) c.place[r] = (uint16_t)r;
  const uint16_t place = c.place[first];
  c.place[first] = c.place[first + 1];
  c.place[first + 1] = place;
  c.swaps++;
  return search_try(x, &c);
}

static void search_run(search *x) {
  const hk_algorithm *starts[STARTS];
  const hk_trial *fastest[STARTS];
  search_built_in(x);
  const int n = search_fastest(x, fastest, STARTS, false);
  for (int i = 0; i < n; i++) starts[i] = fastest[i]->what.parts[0].algorithm;
  for (int i = 0; i < n; i++) search_lanes(x, starts[i]);
  for (int i = 0; i < n; i++)
    for (int k = i + 1; k < n; k++) search_pair(x, starts[i], starts[k]);
  if (x->best < 0) return;
  while (search_climb(x)) {}
  for (bool better = true; better;) {
    better = false;
    for (int r = hk_coll_has_root(x->o->coll) ? 1 : 0; r + 1 < x->nranks; r++) better = search_swap(x, r) || better;
  }
}

/* ---- the result ---- */

static bool search_found(const search *x) {
  return x->best >= 0 && x->trials[x->best].result.us < x->built_in.us * WORTH;
}

/* What the file holds: the best, or the built-in choice if that is as fast and can be in a file. */
static const hk_trial *search_result(const search *x) {
  for (int i = 0; i < x->n && !search_found(x); i++) {
    const hk_trial *t = &x->trials[i];
    if (t->proved && !strcmp(t->what.parts[0].algorithm->name, x->built_in.algorithm)) return t;
  }
  return x->best >= 0 ? &x->trials[x->best] : NULL;
}

static double search_ratio(const search *x, const hk_sim_result *r) {
  return x->built_in.us > 0 ? r->us / x->built_in.us : 1;
}

static void search_row(const search *x, hk_table *t, const hk_sim_result *r, const char *words) {
  char time[32];
  hk_table_row(t, HK_STYLE_PLAIN, "%s\t%.2f\t%s\t%d\t%s", hk_tool_time(time, r->us), search_ratio(x, r),
               hk_protocols[r->protocol].name, r->channels, words);
}

static void search_table(search *x) {
  char size[32], words[HK_CANDIDATE_WORDS];
  const hk_trial *fastest[SHOWN];
  const int n = search_fastest(x, fastest, SHOWN, true);
  hk_table *t = hk_table_new("rrlrw");
  fprintf(x->report, "%s: %s of %s on %d ranks\n\n", x->site.name, hk_coll_name(x->o->coll),
          hk_tool_bytes(size, x->o->size), x->nranks);
  hk_table_row(t, HK_STYLE_BOLD, "TIME\tRATIO\tPROTOCOL\tCHANNELS\tPROGRAM");
  snprintf(words, sizeof words, "the built-in choice, %s", x->built_in.algorithm);
  search_row(x, t, &x->built_in, words);
  for (int i = 0; i < n; i++)
    search_row(x, t, &fastest[i]->result, hk_candidate_words(words, &fastest[i]->what, x->nranks));
  hk_table_print(t, 2, x->report);
  fprintf(x->report, "\n%d candidates were tried", x->n);
  if (x->refused) fprintf(x->report, "; %d cannot be proved", x->refused);
  fputs(".\n", x->report);
}

/* A protocol that the library does not choose for the program by itself. */
static void search_protocols(const search *x, const hk_trial *best) {
  hk_trial t = *best;
  char time[32];
  for (int p = 0; p < HK_PROTO_COUNT; p++) {
    if (p == best->result.protocol || hk_trial_run(&t, &x->site, x->o->coll, x->o->size, p) != HK_OK || !t.proved)
      continue;
    if (t.result.us < best->result.us * WORTH)
      fprintf(x->report, "With NCCL_PROTO=%s it takes %s.\n", hk_protocols[p].name, hk_tool_time(time, t.result.us));
  }
}

static bool search_is_built_in(const hk_candidate *c) {
  return c->nparts == 1 && c->parts[0].copies == 1 && c->parts[0].pieces == 1 && !c->swaps;
}

static void search_words(const search *x, const hk_trial *best) {
  char words[HK_CANDIDATE_WORDS], time[32], text[HK_CANDIDATE_WORDS + 200];
  hk_candidate_words(words, &best->what, x->nranks);
  if (search_found(x))
    snprintf(text, sizeof text, "The fastest is %s: %s, %.2f times that of the built-in choice.", words,
             hk_tool_time(time, best->result.us), search_ratio(x, &best->result));
  else
    snprintf(text, sizeof text, "Nothing is faster than the built-in choice, %s.", x->built_in.algorithm);
  hk_tool_wrap(x->report, 0, text);
  if (search_found(x)) search_protocols(x, best);
  if (search_found(x) && search_is_built_in(&best->what))
    fprintf(x->report, "NCCL_ALGO=%s selects it without a file.\n", best->what.parts[0].algorithm->name);
  if (x->o->output) {
    snprintf(text, sizeof text, "%.99s has the programs of %s.",
             strcmp(x->o->output, "-") ? x->o->output : "The output", words);
    hk_tool_wrap(x->report, 0, text);
  }
}

static void search_json(const search *x, const hk_trial *best) {
  hk_json j = {.f = x->report};
  char words[HK_CANDIDATE_WORDS];
  hk_json_open(&j, '{');
  hk_json_put_text(&j, "machine", x->site.name);
  hk_json_put_text(&j, "collective", hk_coll_name(x->o->coll));
  hk_json_put_integer(&j, "bytes", (long long)x->o->size);
  hk_json_put_integer(&j, "ranks", x->nranks);
  hk_json_put_integer(&j, "tried", x->n);
  hk_json_put_integer(&j, "refused", x->refused);
  hk_json_put_text(&j, "built_in", x->built_in.algorithm);
  hk_json_put_number(&j, "built_in_us", x->built_in.us);
  hk_json_put_boolean(&j, "faster", search_found(x));
  hk_json_put_text(&j, "program", hk_candidate_words(words, &best->what, x->nranks));
  hk_json_put_text(&j, "protocol", hk_protocols[best->result.protocol].name);
  hk_json_put_integer(&j, "channels", best->result.channels);
  hk_json_put_number(&j, "us", best->result.us);
  hk_json_close(&j);
  fputc('\n', x->report);
}

typedef struct search_file {
  const search *x;
  const hk_trial *t;
  const hk_program_set *set;
} search_file;

static hk_status search_write(FILE *to, const void *what) {
  const search_file *f = what;
  const char *dot = strrchr(f->x->o->output, '.');
  char words[HK_CANDIDATE_WORDS], size[32], time[32];
  if (dot && !strcmp(dot, ".json")) {
    hk_program_set_json(f->set, to);
    return HK_OK;
  }
  fprintf(to, "# %s of %s on %s: %s\n", hk_coll_name(f->x->o->coll), hk_tool_bytes(size, f->x->o->size),
          f->x->site.name, hk_candidate_words(words, &f->t->what, f->x->nranks));
  fprintf(to, "# simulated: %s", hk_tool_time(time, f->t->result.us));
  fprintf(to, "; the built-in choice, %s: %s\n", f->x->built_in.algorithm, hk_tool_time(time, f->x->built_in.us));
  hk_program_set_text(f->set, to);
  return HK_OK;
}

static int search_save(const search *x, const hk_trial *best) {
  struct hk_program **programs;
  const hk_status rc = hk_candidate_build(&programs, &best->what, &x->site, x->o->coll);
  if (rc != HK_OK) return hk_tool_failed(rc);
  const hk_program_set set = {.programs = programs, .nranks = x->nranks, .in_place = true, .out_of_place = true};
  const int code = hk_tool_output(x->o->output, search_write, &(search_file){x, best, &set});
  hk_proof_free(programs, x->nranks);
  return code;
}

static int search_ask(search *x) {
  const options *o = x->o;
  int code = hk_site_open(&x->site, o->machine, o->xml, o->ranks);
  if (code != HK_EXIT_OK) return code;
  x->nranks = hk_simulator_ranks(x->site.simulator);
  if (x->nranks < 2 || x->nranks > HK_CANDIDATE_RANKS)
    return hk_tool_wrong("%s has %d ranks; a search is for 2 to %d: see --ranks", x->site.name, x->nranks,
                         HK_CANDIDATE_RANKS);
  x->rc = hk_site_run_built_in(&x->built_in, &x->site, o->coll, o->size);
  if (x->rc == HK_OK) search_run(x);
  if (x->rc != HK_OK) return hk_tool_failed(x->rc);
  const hk_trial *best = search_result(x);
  if (!best) return hk_tool_wrong("no program of %s can be in a file here", hk_coll_name(o->coll));
  if (o->output) code = search_save(x, best);
  if (code != HK_EXIT_OK) return code;
  if (o->json) {
    search_json(x, best);
  } else {
    search_table(x);
    search_words(x, best);
  }
  return HK_EXIT_OK;
}

static int search_main(void *into, int nargs, char **args) {
  const options *o = into;
  search x = {.o = o, .best = -1, .report = o->output && !strcmp(o->output, "-") ? stderr : stdout};
  (void)nargs, (void)args; /* none */
  if (hk_coll_uneven(o->coll))
    return hk_tool_wrong("programs of %s are those of %s: search for these", hk_coll_name(o->coll),
                         hk_coll_name(hk_coll_plain(o->coll)));
  const int code = search_ask(&x);
  hk_sim_result_clear(&x.built_in);
  free(x.trials);
  hk_site_close(&x.site);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_COLL(coll, "collective", "NAME", "which collective", .letter = 'c', .def = "allreduce"),
    HK_ROW_MACHINE(machine),
    HK_ROW_XML(xml),
    HK_ROW_INT(ranks, "ranks", "N", "ranks; without it one for each GPU, on a machine without GPUs one for each core",
               .letter = 'n', .low = 2, .high = HK_CANDIDATE_RANKS),
    HK_ROW_SIZE(size, "size", "SIZE", "size of the larger of a rank's buffers", .letter = 's', .def = "1M"),
    HK_ROW_INT(budget, "budget", "N", "how many candidates to try, at most", .def = "100", .low = 1, .high = 10000),
    HK_ROW_FILE(
        output, "output", "FILE",
        "where to write the fastest, as JSON if the name ends in .json; -: the standard output, and the report goes "
        "to stderr",
        .letter = 'o'),
    HK_ROW_FLAG(json, "json", "write the result as JSON"),
    {0}};

const hk_tool hk_program_search = {
    .name = "program search",
    .about = "try variations of the built-in programs on a machine, and keep the fastest",
    .text =
        "Tries, in this order: each built-in algorithm; of the three fastest copies in lanes side by side, blocks in "
        "pieces, and one copy on each ring of the machine; a part of the message by each of two of them; more and "
        "fewer copies and pieces of the best; other places of its ranks. Each candidate is proved, and simulated at "
        "--size with the protocol and channels that the library chooses for it. What is not 1% faster counts as equal, "
        "and the first remains. The same search gives the same result. The library uses the file if its folder is "
        "HOCKET_PROGRAMS.",
    .examples =
        "hocket program search -c allgather -m 8xa100:pcie2 -s 4M -o allgather.txt\n  a program for this machine\n"
        "hocket program price allgather.txt -m 8xa100:pcie2\n  and at other sizes",
    .options = rows,
    .bytes = sizeof(options),
    .run = search_main,
};
