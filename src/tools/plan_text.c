/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of `hocket plan` as text. */
#include <stdlib.h>
#include <string.h>
#include "../collectives/algorithm.h"
#include "../decide/protocol.h"
#include "../topo/topo.h"
#include "inputs.h"
#include "machine.h"
#include "plan.h"
#include "tools.h"

static const char *plan_text_place_of(const hk_inputs *w, char *text, size_t capacity) {
  char summary[256];
  snprintf(text, capacity, "%d rank%s on %d host%s (%s: %s)", w->nranks, w->nranks == 1 ? "" : "s",
           w->machine.team.nhosts, w->machine.team.nhosts == 1 ? "" : "s", w->cluster->name,
           hk_topo_summary(w->cluster->kinds[0], summary));
  return text;
}

static void plan_text_heading(const char *text) {
  printf("\n%s%s%s\n", hk_tool_style(stdout, HK_STYLE_BOLD), text, hk_tool_style(stdout, HK_STYLE_PLAIN));
}

/* The first row of its algorithm: the table has the cheapest first. */
static bool plan_text_best_of_its_kind(const hk_plan_report *r, int at) {
  for (int i = 0; i < at; i++)
    if (!r->rows[i].why && r->rows[i].what.algorithm == r->rows[at].what.algorithm) return false;
  return true;
}

static bool plan_text_alike(const hk_alternative *a, const hk_alternative *b) {
  return a->why && b->why && !strcmp(a->why, b->why);
}

/* True if an earlier row has the same reason, for the same algorithm or for any. */
static bool plan_text_said(const hk_plan_report *r, int at, bool any) {
  for (int k = 0; k < at; k++)
    if (plan_text_alike(&r->rows[k], &r->rows[at]) && (any || r->rows[k].what.algorithm == r->rows[at].what.algorithm))
      return true;
  return false;
}

/* Reasons, each once, with the algorithms that it excludes. */
static void plan_text_print_excluded(const hk_plan_report *r) {
  plan_text_heading("Left out");
  for (int i = 0; i < r->n; i++) {
    const char *why = r->rows[i].why;
    if (!why || plan_text_said(r, i, true)) continue;
    char text[700];
    int n = snprintf(text, sizeof text, "%s: ", why);
    for (int k = i; k < r->n && n < (int)sizeof text - 32; k++)
      if (plan_text_alike(&r->rows[k], &r->rows[i]) && !plan_text_said(r, k, false))
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", k > i ? ", " : "", r->rows[k].what.algorithm->name);
    hk_tool_wrap(stdout, 2, text);
  }
}

static void plan_text_print_table(const hk_plan_report *r, bool all, const struct hk_simulator *x) {
  hk_table *t = hk_table_new(x ? "llrrrrrr" : "llrrrrr");
  bool excluded = false;
  hk_table_row(t, HK_STYLE_BOLD, "ALGORITHM\tPROTOCOL\tCHANNELS\tTIME\tOF IT LATENCY\tBUS GB/s\tCOMPARED\tSIMULATED");
  for (int i = 0; i < r->n; i++) {
    const hk_alternative *a = &r->rows[i];
    char time[32], latency[32], sim[32] = "";
    excluded |= a->why != NULL;
    bool chosen = hk_plan_same(&a->what, &r->chosen);
    if (a->why || !(all || chosen || plan_text_best_of_its_kind(r, i))) continue;
    double us = hk_plan_simulated(x, r, &a->what);
    if (x) us < 0 ? (void)strcpy(sim, "-") : (void)hk_tool_time(sim, us);
    hk_table_row(t, chosen ? HK_STYLE_GREEN : HK_STYLE_PLAIN, "%s\t%s\t%d\t%s\t%s\t%.3g\t%s%.2f\t%s",
                 a->what.algorithm->name, hk_protocols[a->what.protocol].name, a->what.channels,
                 hk_tool_time(time, a->what.us), hk_tool_time(latency, hk_plan_latency(r, &a->what)),
                 hk_plan_busbw(r->coll, r->world->nranks, r->bytes, a->what.us), chosen ? "* " : "",
                 r->chosen.us > 0 ? a->what.us / r->chosen.us : 1, sim);
  }
  hk_table_print(t, 2, stdout);
  if (excluded) plan_text_print_excluded(r);
}

/* "450 GB/s" from the time of a byte. */
static const char *plan_text_rate(char *text, double us_per_b) {
  if (us_per_b > 0)
    snprintf(text, 32, "%.3g GB/s", 1 / us_per_b / 1000);
  else
    snprintf(text, 32, "as memory");
  return text;
}

static void plan_text_print_model(const hk_inputs *w) {
  const hk_machine *m = &w->machine;
  char ring[32], mesh[32];
  plan_text_heading("The machine, as the model sees it");
  hk_table *t = hk_table_new("lrrr");
  hk_table_row(t, HK_STYLE_PLAIN, "\tA MESSAGE\tALONG A RING\tALL TO ALL");
  if (m->team.ranks_per_host > 1)
    hk_table_row(t, HK_STYLE_PLAIN, "inside a host, a rank\t%.2f us\t%s\t%s", m->inside.alpha_us + m->sync_us,
                 plan_text_rate(ring, m->inside.ring_us_per_b), plan_text_rate(mesh, m->inside.mesh_us_per_b));
  if (m->team.nhosts > 1)
    hk_table_row(t, HK_STYLE_PLAIN, "between hosts, a host\t%.2f us\t%s\t%s", m->between.alpha_us + m->far_sync_us,
                 plan_text_rate(ring, m->between.ring_us_per_b), plan_text_rate(mesh, m->between.mesh_us_per_b));
  hk_table_print(t, 2, stdout);
  if (m->cores_per_host > 0)
    hk_tool_wrap(stdout, 2,
                 w->overrides.tuned ? "Costs were measured by hocket tune."
                                    : "Costs are built in; hocket tune measures those of this machine.");
}

/* CPUs have a line of their own in the model's table. */
static void plan_text_print_accuracy(const hk_inputs *w, size_t first, size_t last) {
  char text[HK_ACCURACY_TEXT];
  if (w->nranks < 2 || w->machine.cores_per_host > 0) return;
  putchar('\n');
  hk_tool_wrap(stdout, 0, hk_tool_accuracy(text, w->cluster, first, last, true));
}

static void plan_text_print_remarks(const hk_inputs *w) {
  for (int k = 0; k < w->cluster->nkinds; k++) hk_tool_remarks(w->cluster->kinds[k], stdout);
}

void hk_plan_print_one(const hk_plan_report *r, bool all, const struct hk_simulator *x) {
  const hk_inputs *w = r->world;
  char size[32], place[512], time[32], text[700];
  snprintf(text, sizeof text, "%s of %s, %s", hk_coll_name(r->coll), hk_tool_bytes(size, r->bytes),
           plan_text_place_of(w, place, sizeof place));
  hk_tool_wrap(stdout, 0, text);
  plan_text_heading("Runs");
  printf("  %s%s%s, protocol %s, %d channel%s: %s", hk_tool_style(stdout, HK_STYLE_GREEN), r->chosen.algorithm->name,
         hk_tool_style(stdout, HK_STYLE_PLAIN), hk_protocols[r->chosen.protocol].name, r->chosen.channels,
         r->chosen.channels == 1 ? "" : "s", hk_tool_time(time, r->chosen.us));
  if (r->chosen.us > 0)
    printf("\n  that is %.3g GB/s, and as nccl-tests counts %.3g GB/s of bus bandwidth",
           hk_plan_algbw(r->bytes, r->chosen.us), hk_plan_busbw(r->coll, w->nranks, r->bytes, r->chosen.us));
  putchar('\n');
  plan_text_heading("Why");
  char *why = hk_plan_explain(r);
  hk_tool_wrap(stdout, 2, why ? why : "");
  free(why);
  if (w->nranks < 2) goto out;
  plan_text_heading("Alternatives");
  plan_text_print_table(r, all, x);
  plan_text_print_model(w);
out:
  plan_text_print_accuracy(w, r->bytes, r->bytes);
  plan_text_print_remarks(w);
}

static void plan_text_range_rows(const hk_inputs *w, hk_coll coll, hk_table *t) {
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

void hk_plan_print_ranges(const hk_inputs *w, const hk_coll *only) {
  char place[512];
  hk_tool_wrap(stdout, 0, plan_text_place_of(w, place, sizeof place));
  putchar('\n');
  hk_table *t = hk_table_new("lrrllrrrr");
  hk_table_row(t, HK_STYLE_BOLD, "COLLECTIVE\tFROM\tTO\tALGORITHM\tPROTOCOL\tCHANNELS\tTIME\tTO\tBUS GB/s");
  for (int c = 0; c < HK_COLL_COUNT; c++)
    if (!only || *only == (hk_coll)c) plan_text_range_rows(w, (hk_coll)c, t);
  hk_table_print(t, 0, stdout);
  putchar('\n');
  hk_tool_wrap(stdout, 0,
               "Sizes are those of the larger of a rank's buffers. Channels and bandwidth are those of the "
               "longest message of a row (of the last row: 16 GiB).");
  plan_text_print_accuracy(w, 0, SIZE_MAX);
  plan_text_print_remarks(w);
}

/* The ranges as rules of a tuning file, so that they can be kept, compared and changed. */
void hk_plan_print_rules(const hk_inputs *w, const hk_coll *only) {
  char place[512];
  printf("# %s\n# collective, bytes from, bytes to, ranks, hosts, algorithm, protocol, channels\n",
         plan_text_place_of(w, place, sizeof place));
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
