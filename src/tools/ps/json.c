/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket ps --json`. */
#include "../../base/json.h"
#include <string.h>
#include "ps.h"

static void ps_json_late(hk_json *w, const char *key, const hk_ps_late *l) {
  hk_json_begin(w, key, '{');
  hk_json_put_integer(w, "count", (long long)l->count);
  hk_json_put_number(w, "ms", (double)l->ns * 1e-6);
  hk_json_close(w);
}

static void ps_json_rank(hk_json *w, int rank, const hk_ps_rank *x) {
  const hk_activity *a = &x->activity;
  char text[160];
  hk_json_open(w, '{');
  hk_json_put_integer(w, "rank", rank);
  if (x->host[0]) hk_json_put_text(w, "host", x->host);
  if (x->pid) hk_json_put_integer(w, "pid", x->pid);
  hk_json_put_text(w, "state", hk_ps_state(x));
  if (hk_ps_answers(x)) {
    hk_json_put_text(w, "does", hk_ps_does(x, text, sizeof text));
    hk_json_put_boolean(w, "in_operation", a->phase == HK_PHASE_OPERATION);
    hk_json_put_integer(w, "operation", (long long)a->sequence);
    if (a->phase_ms) hk_json_put_integer(w, "for_ms", (long long)a->phase_ms);
    if (a->waits_for >= 0) hk_json_put_integer(w, "waits_for", a->waits_for);
    ps_json_late(w, "late", &x->late);
    ps_json_late(w, "late_recently", &x->recent);
  }
  hk_json_put_boolean(w, "guilty", x->guilty);
  hk_json_close(w);
}

static void ps_json_comm(hk_json *w, const hk_ps_comm *c) {
  char id[24];
  snprintf(id, sizeof id, "0x%llx", (unsigned long long)c->id);
  hk_json_open(w, '{');
  hk_json_put_text(w, "id", id);
  if (c->name[0]) hk_json_put_text(w, "name", c->name);
  hk_json_begin(w, "jobs", '[');
  for (const char *line = c->job ? c->job : ""; *line;) {
    const size_t n = strcspn(line, "\n");
    char name[HK_JOB_NAMES];
    snprintf(name, sizeof name, "%.*s", (int)n, line);
    hk_json_text(w, name);
    line += n + (line[n] == '\n');
  }
  hk_json_close(w);
  hk_json_put_integer(w, "ranks_count", c->nranks);
  hk_json_put_integer(w, "newest_operation", (long long)c->newest);
  hk_json_put_integer(w, "waited_ms", (long long)c->waited_ms);
  if (c->verdict[0]) hk_json_put_text(w, "verdict", c->verdict);
  if (c->late.text[0]) hk_json_put_text(w, "late", c->late.text);
  hk_json_begin(w, "ranks", '[');
  for (int r = 0; r < c->nranks; r++) ps_json_rank(w, r, &c->ranks[r]);
  hk_json_close(w);
  hk_json_close(w);
}

void hk_ps_print_json(const hk_ps *p, const hk_ps_options *o) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '{');
  hk_json_put_integer(&w, "processes", p->nprocesses);
  hk_json_put_integer(&w, "of_other_users", p->refused);
  hk_json_put_integer(&w, "without_answer", p->silent);
  hk_json_put_integer(&w, "of_another_version", p->strange);
  hk_json_begin(&w, "communicators", '[');
  for (int i = 0; i < p->ncomms; i++)
    if (hk_ps_is_wanted(&p->comms[i], o)) ps_json_comm(&w, &p->comms[i]);
  hk_json_close(&w);
  hk_json_close(&w);
  putchar('\n');
}
