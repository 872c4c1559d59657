/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket plan`: the choice for a call, its reasons, and the prices of the alternatives. */
#include "plan.h"
#include <stdlib.h>
#include <string.h>
#include "../base/json.h"
#include "../base/param.h" /* HOCKET_QUANTISED */
#include "../collectives/algorithm.h"
#include "../decide/cost.h"
#include "../decide/protocol.h"
#include "../program/builder.h"
#include "../program/quantised.h"
#include "../sim/sim.h"
#include "../topo/topo.h"
#include "inputs.h"
#include "machine.h"
#include "proof.h"
#include "tools.h"

typedef struct options {
  const char *machine, *file;
  int ranks, root, rank, channel;
  bool program, json, all, simulate, rules, quantised;
} options;

enum { ALL_RANKS = -1 };

/* ---- the question ---- */

hk_status hk_plan_ask(hk_plan_report *r, const hk_inputs *w, hk_coll coll, size_t bytes) {
  *r = (hk_plan_report){.world = w, .coll = coll, .bytes = bytes};
  HK_OR_RETURN(hk_inputs_choose(w, coll, bytes, &r->chosen));
  hk_machine as = hk_machine_as(&w->machine, r->chosen.protocol, r->chosen.channels);
  const hk_request request = {.coll = coll, .bytes = bytes, .unit = 1};
  HK_OR_RETURN(hk_decide_execution(&as, &request, &r->chosen));
  return hk_select_all(&w->machine, &w->filter, coll, bytes, r->rows, &r->n);
}

double hk_plan_latency(const hk_plan_report *r, const hk_decision *d) {
  if (r->world->nranks < 2) return 0;
  hk_machine as = hk_machine_as(&r->world->machine, d->protocol, d->channels);
  double us;
  if (hk_algorithm_price(&as, d->algorithm, r->coll, 8, &us) != HK_OK) return d->us;
  return us < d->us ? us : d->us;
}

double hk_plan_algbw(size_t bytes, double us) { return us > 0 ? (double)bytes / us / 1000 : 0; }

double hk_plan_busbw(hk_coll coll, int nranks, size_t bytes, double us) {
  return hk_coll_bus_factor(coll, nranks) * hk_plan_algbw(bytes, us);
}

static bool plan_same_plan(const hk_decision *a, const hk_decision *b) {
  return a->algorithm == b->algorithm && a->protocol == b->protocol;
}

int hk_plan_ranges(const hk_inputs *w, hk_coll coll, hk_plan_range out[HK_PLAN_RANGES]) {
  int n = 0;
  for (size_t bytes = 8; bytes <= (size_t)1 << 34; bytes *= 2) {
    hk_decision d;
    if (hk_inputs_choose(w, coll, bytes, &d) != HK_OK) return n;
    if (n && plan_same_plan(&out[n - 1].chosen, &d)) {
      out[n - 1].last = bytes;
      out[n - 1].chosen = d;
    } else if (n < HK_PLAN_RANGES) {
      out[n++] = (hk_plan_range){bytes, bytes, d, d.us};
    }
  }
  return n;
}

/* ---- text ---- */

static const char *plan_place_of(const hk_inputs *w, char *text, size_t room) {
  char summary[256];
  snprintf(text, room, "%d rank%s on %d host%s (%s: %s)", w->nranks, w->nranks == 1 ? "" : "s", w->machine.team.nhosts,
           w->machine.team.nhosts == 1 ? "" : "s", w->cluster->name, hk_topo_summary(w->cluster->kinds[0], summary));
  return text;
}

static void plan_heading(const char *text) {
  printf("\n%s%s%s\n", hk_tool_style(stdout, HK_STYLE_BOLD), text, hk_tool_style(stdout, HK_STYLE_PLAIN));
}

/* The first row of its algorithm: the table has the cheapest first. */
static bool plan_best_of_its_kind(const hk_plan_report *r, int at) {
  for (int i = 0; i < at; i++)
    if (!r->rows[i].why[0] && r->rows[i].what.algorithm == r->rows[at].what.algorithm) return false;
  return true;
}

/* Reasons, each once, with the algorithms that it excludes. */
static void plan_print_excluded(const hk_plan_report *r) {
  plan_heading("Not possible here");
  for (int i = 0; i < r->n; i++) {
    const char *why = r->rows[i].why;
    bool known = !why[0];
    for (int k = 0; k < i && !known; k++) known = !strcmp(r->rows[k].why, why);
    if (known) continue;
    char text[700];
    int n = snprintf(text, sizeof text, "%s: ", why);
    for (int k = i; k < r->n && n < (int)sizeof text - 32; k++)
      if (!strcmp(r->rows[k].why, why))
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", k > i ? ", " : "", r->rows[k].what.algorithm->name);
    hk_tool_wrap(stdout, 2, text);
  }
}

/* The simulator's time for an alternative. Below 0 if it cannot be simulated, or if its price is very high, because the
 * slowest programs take longest to simulate. */
static double plan_simulated(const hk_simulator *x, const hk_plan_report *r, const hk_decision *d) {
  hk_sim_options o = {.algorithm = d->algorithm->name,
                      .protocol = (int)d->protocol,
                      .channels = d->channels,
                      .quantised = r->world->machine.quantised};
  hk_sim_result result;
  if (!x || d->us > 4 * r->chosen.us || hk_sim_run(&result, x, r->coll, r->bytes, &o) != HK_OK) return -1;
  double us = result.us;
  hk_sim_result_clear(&result);
  return us;
}

static void plan_print_table(const hk_plan_report *r, bool all, const hk_simulator *x) {
  hk_table *t = hk_table_new(x ? "llrrrrrr" : "llrrrrr");
  bool excluded = false;
  hk_table_row(t, HK_STYLE_BOLD, "ALGORITHM\tPROTOCOL\tCHANNELS\tTIME\tOF IT LATENCY\tBUS GB/s\tCOMPARED\tSIMULATED");
  for (int i = 0; i < r->n; i++) {
    const hk_alternative *a = &r->rows[i];
    char time[32], latency[32], sim[32] = "";
    excluded |= a->why[0] != 0;
    bool chosen = plan_same_plan(&a->what, &r->chosen);
    if (a->why[0] || !(all || chosen || plan_best_of_its_kind(r, i))) continue;
    double us = plan_simulated(x, r, &a->what);
    if (x) us < 0 ? (void)strcpy(sim, "-") : (void)hk_tool_time(sim, us);
    hk_table_row(t, chosen ? HK_STYLE_GREEN : HK_STYLE_PLAIN, "%s\t%s\t%d\t%s\t%s\t%.3g\t%s%.2f\t%s",
                 a->what.algorithm->name, hk_protocols[a->what.protocol].name, a->what.channels,
                 hk_tool_time(time, a->what.us), hk_tool_time(latency, hk_plan_latency(r, &a->what)),
                 hk_plan_busbw(r->coll, r->world->nranks, r->bytes, a->what.us), chosen ? "* " : "",
                 r->chosen.us > 0 ? a->what.us / r->chosen.us : 1, sim);
  }
  hk_table_print(t, 2, stdout);
  if (excluded) plan_print_excluded(r);
}

/* "450 GB/s" from the time of a byte. */
static const char *plan_rate(char *text, double us_per_b) {
  if (us_per_b > 0)
    snprintf(text, 32, "%.3g GB/s", 1 / us_per_b / 1000);
  else
    snprintf(text, 32, "as memory");
  return text;
}

static void plan_print_model(const hk_inputs *w) {
  const hk_machine *m = &w->machine;
  char ring[32], mesh[32];
  plan_heading("The machine, as the model sees it");
  hk_table *t = hk_table_new("lrrr");
  hk_table_row(t, HK_STYLE_PLAIN, "\tA MESSAGE\tALONG A RING\tALL TO ALL");
  if (m->team.ranks_per_host > 1)
    hk_table_row(t, HK_STYLE_PLAIN, "inside a host, a rank\t%.2f us\t%s\t%s", m->inside.alpha_us + m->sync_us,
                 plan_rate(ring, m->inside.ring_us_per_b), plan_rate(mesh, m->inside.mesh_us_per_b));
  if (m->team.nhosts > 1)
    hk_table_row(t, HK_STYLE_PLAIN, "between hosts, a host\t%.2f us\t%s\t%s", m->between.alpha_us + m->far_sync_us,
                 plan_rate(ring, m->between.ring_us_per_b), plan_rate(mesh, m->between.mesh_us_per_b));
  hk_table_print(t, 2, stdout);
  if (m->cores_per_host > 0)
    hk_tool_wrap(stdout, 2,
                 w->overrides.tuned ? "Costs were measured by hocket tune."
                                    : "Costs are built in; hocket tune measures those of this machine.");
}

/* CPUs have a line of their own in the model's table. */
static void plan_print_accuracy(const hk_inputs *w, size_t first, size_t last) {
  char text[HK_ACCURACY_TEXT];
  if (w->nranks < 2 || w->machine.cores_per_host > 0) return;
  putchar('\n');
  hk_tool_wrap(stdout, 0, hk_tool_accuracy(text, w->cluster, first, last, true));
}

static void plan_print_remarks(const hk_inputs *w) {
  for (int k = 0; k < w->cluster->nkinds; k++) hk_tool_remarks(w->cluster->kinds[k], stdout);
}

static void plan_print_one(const hk_plan_report *r, const options *o, const hk_simulator *x) {
  const hk_inputs *w = r->world;
  char size[32], place[512], time[32], text[700];
  snprintf(text, sizeof text, "%s of %s, %s", hk_coll_name(r->coll), hk_tool_bytes(size, r->bytes),
           plan_place_of(w, place, sizeof place));
  hk_tool_wrap(stdout, 0, text);
  plan_heading("Runs");
  printf("  %s%s%s, protocol %s, %d channel%s: %s", hk_tool_style(stdout, HK_STYLE_GREEN), r->chosen.algorithm->name,
         hk_tool_style(stdout, HK_STYLE_PLAIN), hk_protocols[r->chosen.protocol].name, r->chosen.channels,
         r->chosen.channels == 1 ? "" : "s", hk_tool_time(time, r->chosen.us));
  if (r->chosen.us > 0)
    printf("\n  that is %.3g GB/s, and as nccl-tests counts %.3g GB/s of bus bandwidth",
           hk_plan_algbw(r->bytes, r->chosen.us), hk_plan_busbw(r->coll, w->nranks, r->bytes, r->chosen.us));
  putchar('\n');
  plan_heading("Why");
  char *why = hk_plan_explain(r);
  hk_tool_wrap(stdout, 2, why ? why : "");
  free(why);
  if (w->nranks < 2) goto out;
  plan_heading("Alternatives");
  plan_print_table(r, o->all, x);
  plan_print_model(w);
out:
  plan_print_accuracy(w, r->bytes, r->bytes);
  plan_print_remarks(w);
}

static void plan_range_rows(const hk_inputs *w, hk_coll coll, hk_table *t) {
  hk_plan_range ranges[HK_PLAN_RANGES];
  int n = hk_plan_ranges(w, coll, ranges);
  for (int i = 0; i < n; i++) {
    const hk_plan_range *g = &ranges[i];
    char first[32], last[32], time[32], until[32];
    hk_tool_bytes(first, g->first);
    hk_tool_bytes(last, g->last);
    hk_table_row(t, HK_STYLE_PLAIN, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%.3g", i ? "" : hk_coll_name(coll), first,
                 i + 1 == n ? "up" : last, g->chosen.algorithm->name, hk_protocols[g->chosen.protocol].name,
                 g->chosen.channels, hk_tool_time(time, g->first_us),
                 i + 1 == n ? "" : hk_tool_time(until, g->chosen.us),
                 hk_plan_busbw(coll, w->nranks, g->last, g->chosen.us));
  }
}

static void plan_print_ranges(const hk_inputs *w, const hk_coll *only) {
  char place[512];
  hk_tool_wrap(stdout, 0, plan_place_of(w, place, sizeof place));
  putchar('\n');
  hk_table *t = hk_table_new("lrrllrrrr");
  hk_table_row(t, HK_STYLE_BOLD, "COLLECTIVE\tFROM\tTO\tALGORITHM\tPROTOCOL\tCHANNELS\tTIME\tTO\tBUS GB/s");
  for (int c = 0; c < HK_COLL_COUNT; c++)
    if (!only || *only == (hk_coll)c) plan_range_rows(w, (hk_coll)c, t);
  hk_table_print(t, 0, stdout);
  putchar('\n');
  hk_tool_wrap(stdout, 0,
               "Sizes are those of the larger of a rank's buffers. Channels and bandwidth are those of the "
               "longest message of a row (of the last row: 16 GiB).");
  plan_print_accuracy(w, 0, SIZE_MAX);
  plan_print_remarks(w);
}

/* The ranges as rules of a tuning file, so that they can be kept, compared and changed. */
static void plan_print_rules(const hk_inputs *w, const hk_coll *only) {
  char place[512];
  printf("# %s\n# collective, bytes from, bytes to, ranks, hosts, algorithm, protocol, channels\n",
         plan_place_of(w, place, sizeof place));
  for (int c = 0; c < HK_COLL_COUNT; c++) {
    hk_plan_range ranges[HK_PLAN_RANGES];
    const int n = only && *only != (hk_coll)c ? 0 : hk_plan_ranges(w, (hk_coll)c, ranges);
    for (int i = 0; i < n; i++) {
      char last[32];
      snprintf(last, sizeof last, "%zu", ranges[i].last);
      printf("%s, %zu, %s, %d, %d, %s, %s, *\n", hk_coll_name((hk_coll)c), i ? ranges[i - 1].last + 1 : 0,
             i + 1 == n ? "*" : last, w->nranks, w->machine.team.nhosts, ranges[i].chosen.algorithm->name,
             hk_protocols[ranges[i].chosen.protocol].name);
    }
  }
}

/* ---- programs ---- */

static int plan_print_program(const hk_inputs *w, hk_coll coll, size_t bytes, const options *o) {
  hk_plan_report *r = malloc(sizeof *r);
  if (!r) return hk_tool_wrong("out of memory");
  hk_status rc = hk_plan_ask(r, w, coll, bytes);
  const hk_algorithm *a = r->chosen.algorithm;
  int channels = r->chosen.channels;
  free(r);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (o->rank >= w->nranks) return hk_tool_wrong("--rank %d, but there are %d ranks", o->rank, w->nranks);
  if (o->channel >= channels) return hk_tool_wrong("--channel %d, but there are %d channels", o->channel, channels);
  hk_build what = {.coll = coll,
                   .rank = o->rank > 0 ? o->rank : 0,
                   .nranks = w->nranks,
                   .root = hk_coll_has_root(coll) ? o->root : 0,
                   .layout = w->layout,
                   .channel = o->channel};
  if (what.root >= w->nranks) return hk_tool_wrong("--root %d, but there are %d ranks", what.root, w->nranks);
  if (channels > 1)
    printf("# channel %d of %d; each moves its part of the message in the same way\n", o->channel, channels);
  for (; what.rank < w->nranks; what.rank++) {
    hk_program *p;
    rc = hk_algorithm_build(a, &what, &p);
    if (rc != HK_OK) return hk_tool_failed(rc);
    if (o->json)
      hk_program_json(p, stdout);
    else
      hk_program_dump(p, stdout);
    hk_program_free(p);
    if (o->rank != ALL_RANKS) break;
  }
  return HK_EXIT_OK;
}

/* ---- JSON ---- */

static void plan_put_decision(const hk_plan_report *r, const hk_decision *d, hk_json *w) {
  hk_json_put_text(w, "algorithm", d->algorithm->name);
  hk_json_put_text(w, "protocol", hk_protocols[d->protocol].name);
  hk_json_put_integer(w, "channels", d->channels);
  hk_json_put_boolean(w, "batch_invariant", hk_select_invariant(d->algorithm, r->coll));
  hk_json_put_number(w, "us", d->us);
  hk_json_put_number(w, "latency_us", hk_plan_latency(r, d));
  hk_json_put_number(w, "algbw_gbps", hk_plan_algbw(r->bytes, d->us));
  hk_json_put_number(w, "busbw_gbps", hk_plan_busbw(r->coll, r->world->nranks, r->bytes, d->us));
}

/* A list of paragraphs. */
static void plan_put_why(const hk_plan_report *r, hk_json *w) {
  char *why = hk_plan_explain(r), *line = why;
  hk_json_begin(w, "why", '[');
  while (line && *line) {
    char *end = strchr(line, '\n');
    if (end) *end = 0;
    hk_json_text(w, line);
    line = end ? end + 1 : NULL;
  }
  hk_json_close(w);
  free(why);
}

static void plan_put_report(const hk_plan_report *r, const hk_simulator *x, hk_json *w) {
  hk_json_open(w, '{');
  hk_json_put_text(w, "collective", hk_coll_name(r->coll));
  hk_json_put_integer(w, "bytes", (long long)r->bytes);
  hk_json_begin(w, "chosen", '{');
  plan_put_decision(r, &r->chosen, w);
  if (r->chosen.note) hk_json_put_text(w, "note", r->chosen.note);
  hk_json_close(w);
  if (r->world->machine.quantised) hk_json_put_number(w, "error_bound", HK_QUANTISED_ERROR);
  plan_put_why(r, w);
  hk_json_begin(w, "alternatives", '[');
  for (int i = 0; i < r->n; i++) {
    hk_json_open(w, '{');
    if (r->rows[i].why[0]) {
      hk_json_put_text(w, "algorithm", r->rows[i].what.algorithm->name);
      hk_json_put_text(w, "excluded", r->rows[i].why);
    } else {
      double us = plan_simulated(x, r, &r->rows[i].what);
      plan_put_decision(r, &r->rows[i].what, w);
      if (us >= 0) hk_json_put_number(w, "simulated_us", us);
    }
    hk_json_close(w);
  }
  hk_json_close(w);
  hk_json_close(w);
}

static int plan_print_json(const hk_inputs *w, const hk_coll *only, const size_t *bytes, const hk_simulator *x) {
  hk_json j = {.f = stdout};
  char text[HK_ACCURACY_TEXT];
  hk_plan_report *r = malloc(sizeof *r);
  hk_status rc = HK_OK;
  if (!r) return hk_tool_wrong("out of memory");
  hk_json_open(&j, '{');
  hk_json_put_text(&j, "machine", w->cluster->name);
  hk_json_put_integer(&j, "ranks", w->nranks);
  hk_json_put_integer(&j, "hosts", w->machine.team.nhosts);
  hk_json_put_text(&j, "remarks", w->cluster->kinds[0]->remarks);
  if (w->machine.cores_per_host <= 0)
    hk_json_put_text(&j, "accuracy",
                     hk_tool_accuracy(text, w->cluster, bytes ? *bytes : 0, bytes ? *bytes : SIZE_MAX, true));
  hk_json_begin(&j, "plans", '[');
  for (int c = 0; c < HK_COLL_COUNT; c++) {
    if (only && *only != (hk_coll)c) continue;
    for (size_t b = bytes ? *bytes : 8; b <= (bytes ? *bytes : (size_t)1 << 34); b = bytes ? b + 1 : 2 * b) {
      if ((rc = hk_plan_ask(r, w, (hk_coll)c, b)) != HK_OK) break;
      plan_put_report(r, x, &j);
    }
  }
  hk_json_close(&j);
  hk_json_close(&j);
  putchar('\n');
  free(r);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

/* --quantised and HOCKET_QUANTISED; the variable changes only what it changes in a communicator. */
static int plan_quantise(hk_inputs *w, const options *o, bool allreduce) {
  const bool can = allreduce && !w->machine.team.overlap;
  if (o->quantised && !can)
    return hk_tool_wrong("--quantised is for an allreduce of ranks on CPUs: hocket plan allreduce SIZE --quantised");
  if (can && (o->quantised || w->overrides.settings->QUANTISED)) hk_machine_quantise(&w->machine, sizeof(float));
  return HK_EXIT_OK;
}

static int plan_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_coll coll = HK_ALLREDUCE;
  size_t bytes = 0;
  if (nargs > 0 && !hk_tool_coll(args[0], &coll)) return HK_EXIT_TROUBLE;
  if (nargs > 1 && !hk_tool_size("SIZE", args[1], &bytes)) return HK_EXIT_TROUBLE;
  if ((o->program || o->simulate) && nargs < 2)
    return hk_tool_wrong("--%s needs COLLECTIVE and SIZE", o->program ? "program" : "simulate");
  if (o->rules && nargs > 1) return hk_tool_wrong("--rules are for all sizes: leave SIZE out");
  hk_inputs w;
  hk_simulator *x = NULL;
  int code = hk_inputs_open(&w, o->machine, o->file, o->ranks);
  if (code == HK_EXIT_OK) code = plan_quantise(&w, o, nargs > 0 && coll == HK_ALLREDUCE);
  if (code == HK_EXIT_OK && o->simulate) code = hk_inputs_simulator(&x, &w);
  if (code != HK_EXIT_OK) goto out;
  if (o->program) {
    code = plan_print_program(&w, coll, bytes, o);
  } else if (o->json) {
    code = plan_print_json(&w, nargs > 0 ? &coll : NULL, nargs > 1 ? &bytes : NULL, x);
  } else if (o->rules) {
    plan_print_rules(&w, nargs > 0 ? &coll : NULL);
  } else if (nargs < 2) {
    plan_print_ranges(&w, nargs > 0 ? &coll : NULL);
  } else {
    hk_plan_report *r = malloc(sizeof *r);
    const hk_status rc = r ? hk_plan_ask(r, &w, coll, bytes) : HK_FAIL(HK_ERR_SYSTEM, "out of memory");
    if (rc == HK_OK)
      plan_print_one(r, o, x);
    else
      code = hk_tool_failed(rc);
    free(r);
  }
out:
  hk_simulator_free(x);
  hk_inputs_close(&w);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_MACHINE(machine),
    HK_ROW_XML(file),
    HK_ROW_INT(ranks, "ranks", "N", "ranks; without it one for each GPU, on a machine without GPUs one for each core",
               .letter = 'n', .low = 1, .high = HK_RANKS_MOST),
    HK_ROW_INT(root, "root", "RANK", "the root, if the collective has one", .letter = 'r', .def = "0",
               .high = HK_RANKS_MOST),
    HK_ROW_FLAG(program, "program", "write what each rank would do, as text that hocket program reads", .letter = 'p'),
    HK_ROW_INT(rank, "rank", "RANK", "with --program: only this rank's", .def = "-1", .low = -1, .high = HK_RANKS_MOST),
    HK_ROW_INT(channel, "channel", "N", "with --program: the program of this channel", .def = "0", .high = 255),
    HK_ROW_FLAG(all, "all", "alternatives by every protocol, not only each algorithm's best", .letter = 'a'),
    HK_ROW_FLAG(simulate, "simulate",
                "also run the alternatives on the simulator, and show its times next to the prices", .letter = 's'),
    HK_ROW_FLAG(quantised, "quantised", "an allreduce of float32 with 8 bits a value on links, and its error bound",
                .letter = 'q'),
    HK_ROW_FLAG(rules, "rules", "write what runs from which size on as a tuning file (HOCKET_TUNING_FILE)"),
    HK_ROW_FLAG(json, "json", "write JSON"),
    {0}};

const hk_tool hk_tool_plan = {
    .name = "plan",
    .about = "show what runs for a collective, and why",
    .usage = "[COLLECTIVE [SIZE]]",
    .text =
        "With COLLECTIVE and SIZE: the algorithm, protocol and number of channels that a communicator there chooses, "
        "the reasons in words, and the price of each alternative. Without SIZE: what runs from which size on. SIZE "
        "is that of the larger of a rank's buffers, in bytes; K, M and G mean 2^10, 2^20 and 2^30.\n"
        "\n"
        "The parameters that change the choice (NCCL_ALGO, NCCL_PROTO and others) have their effect here too. Prices "
        "come from the model that docs/tuning.md describes; hocket sim runs the programs link by link.",
    .examples =
        "hocket plan allreduce 1G --machine dgx-h100\n  one large allreduce on a DGX H100\n"
        "hocket plan --machine 'nodes=16 of dgx-a100'\n  what runs for which size, of every collective\n"
        "hocket plan --rules >mine.conf\n  the choices as a file, to be changed and used as HOCKET_TUNING_FILE\n"
        "NCCL_ALGO=^ring hocket plan allreduce 64M --ranks 4\n  what runs if the ring is not allowed\n"
        "hocket plan allreduce 1M --ranks 4 --program --rank 1\n  what rank 1 does",
    .options = rows,
    .bytes = sizeof(options),
    .most = 2,
    .run = plan_run,
};
