/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of `hocket plan` as JSON. */
#include <stdlib.h>
#include <string.h>
#include "../base/json.h"
#include "../decide/protocol.h"
#include "../topo/topo.h"
#include "inputs.h"
#include "machine.h"
#include "plan.h"
#include "tools.h"

static void plan_json_put_decision(const hk_plan_report *r, const hk_decision *d, hk_json *w) {
  hk_json_put_text(w, "algorithm", hk_decision_algorithm(d));
  hk_json_put_text(w, "protocol", hk_protocols[d->protocol].name);
  hk_json_put_integer(w, "channels", d->channels);
  hk_json_put_boolean(w, "batch_invariant", hk_select_invariant(d->algorithm, r->coll));
  hk_json_put_number(w, "us", d->us);
  hk_json_put_number(w, "latency_us", hk_plan_latency(r, d));
  hk_json_put_number(w, "algbw_gbps", hk_plan_algbw(r->bytes, d->us));
  hk_json_put_number(w, "busbw_gbps", hk_plan_busbw(r->coll, r->world->nranks, r->bytes, d->us));
}

/* A list of paragraphs. */
static void plan_json_put_why(const hk_plan_report *r, hk_json *w) {
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

static void plan_json_put_report(const hk_plan_report *r, const struct hk_simulator *x, hk_json *w) {
  hk_json_open(w, '{');
  hk_json_put_text(w, "collective", hk_coll_name(r->coll));
  hk_json_put_integer(w, "bytes", (long long)r->bytes);
  hk_json_begin(w, "chosen", '{');
  plan_json_put_decision(r, &r->chosen, w);
  if (r->chosen.note) hk_json_put_text(w, "note", r->chosen.note);
  hk_json_close(w);
  if (hk_plan_error_bound(r) > 0) hk_json_put_number(w, "error_bound", hk_plan_error_bound(r));
  plan_json_put_why(r, w);
  hk_json_begin(w, "alternatives", '[');
  for (int i = 0; i < r->n; i++) {
    hk_json_open(w, '{');
    if (r->rows[i].why) {
      hk_json_put_text(w, "algorithm", hk_decision_algorithm(&r->rows[i].what));
      hk_json_put_text(w, "excluded", r->rows[i].why);
    } else {
      double us = hk_plan_simulated(x, r, &r->rows[i].what);
      plan_json_put_decision(r, &r->rows[i].what, w);
      if (us >= 0) hk_json_put_number(w, "simulated_us", us);
    }
    hk_json_close(w);
  }
  hk_json_close(w);
  hk_json_close(w);
}

int hk_plan_print_json(const hk_inputs *w, const hk_coll *only, const size_t *bytes, const struct hk_simulator *x) {
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
      plan_json_put_report(r, x, &j);
    }
  }
  hk_json_close(&j);
  hk_json_close(&j);
  putchar('\n');
  free(r);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}
