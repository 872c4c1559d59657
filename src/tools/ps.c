/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket ps`: what the ranks of running jobs do, and which of them keeps the others waiting. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/json.h"
#include "../base/wait.h"
#include "../ops/collect.h"
#include "tools.h"

typedef struct options {
  const char *comm;
  int late_ms;
  double watch;
  bool all, json;
} options;

static bool ps_is_wanted(const hk_ps_comm *c, const options *o) {
  return !o->comm || c->id == strtoull(o->comm, NULL, 16) || !strcmp(c->name, o->comm);
}

/* Of many ranks only those that are guilty or differ, unless all are wanted. */
enum { ROWS = 64 };

static void ps_print_ranks(const hk_ps_comm *c, bool all) {
  hk_table *t = hk_table_new("rlrlrrr");
  int hidden = 0;
  hk_table_row(t, HK_STYLE_BOLD, "RANK\tHOST\tPID\tDOES\tNUMBER\tFOR\tWAITS FOR");
  for (int r = 0; r < c->nranks; r++) {
    const hk_ps_rank *x = &c->ranks[r];
    const hk_activity *a = &x->activity;
    const bool answers = x->presence == HK_PRESENCE_ANSWERS && !x->joins;
    char text[160], time[32] = "", number[24] = "", peer[16] = "", pid[16] = "";
    if (!all && r >= ROWS && !x->guilty) {
      hidden++;
      continue;
    }
    if (answers && a->sequence) snprintf(number, sizeof number, "%llu", (unsigned long long)a->sequence);
    if (answers && a->phase_ms) hk_tool_time(time, (double)a->phase_ms * 1e3);
    if (answers && a->waits_for >= 0) snprintf(peer, sizeof peer, "%d", a->waits_for);
    if (x->pid) snprintf(pid, sizeof pid, "%d", x->pid);
    const hk_style s = x->guilty ? HK_STYLE_RED : HK_STYLE_PLAIN;
    hk_table_cell(t, s, "%d", r);
    hk_table_cell(t, s, "%s", x->host);
    hk_table_cell(t, s, "%s", pid);
    hk_table_cell(t, s, "%s", hk_ps_does(x, text, sizeof text));
    hk_table_cell(t, s, "%s", number);
    hk_table_cell(t, s, "%s", time);
    hk_table_cell(t, s, "%s", peer);
  }
  hk_table_print(t, 2, stdout);
  if (hidden) printf("  %d more ranks; --all shows them\n", hidden);
}

static void ps_print_comm(const hk_ps_comm *c, const options *o) {
  printf("%sCommunicator 0x%llx%s%s%s, %d ranks%s\n", hk_tool_style(stdout, HK_STYLE_BOLD), (unsigned long long)c->id,
         c->name[0] ? " \"" : "", c->name, c->name[0] ? "\"" : "", c->nranks, hk_tool_style(stdout, HK_STYLE_PLAIN));
  ps_print_ranks(c, o->all);
  if (c->verdict[0]) {
    fputs(hk_tool_style(stdout, HK_STYLE_RED), stdout);
    hk_tool_wrap(stdout, 2, c->verdict);
    fputs(hk_tool_style(stdout, HK_STYLE_PLAIN), stdout);
  }
  putchar('\n');
}

static void ps_json_rank(hk_json *w, int rank, const hk_ps_rank *x) {
  const hk_activity *a = &x->activity;
  char text[160];
  hk_json_open(w, '{');
  hk_json_put_integer(w, "rank", rank);
  if (x->host[0]) hk_json_put_text(w, "host", x->host);
  if (x->pid) hk_json_put_integer(w, "pid", x->pid);
  hk_json_put_text(w, "state", hk_ps_state(x));
  if (x->presence == HK_PRESENCE_ANSWERS && !x->joins) {
    hk_json_put_text(w, "does", hk_ps_does(x, text, sizeof text));
    hk_json_put_boolean(w, "in_operation", a->phase == HK_PHASE_OPERATION);
    hk_json_put_integer(w, "operation", (long long)a->sequence);
    if (a->phase_ms) hk_json_put_integer(w, "for_ms", (long long)a->phase_ms);
    if (a->waits_for >= 0) hk_json_put_integer(w, "waits_for", a->waits_for);
  }
  hk_json_put_boolean(w, "guilty", x->guilty);
  hk_json_close(w);
}

static void ps_print_json(const hk_ps *p, const options *o) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '{');
  hk_json_put_integer(&w, "processes", p->nprocesses);
  hk_json_put_integer(&w, "of_other_users", p->refused);
  hk_json_put_integer(&w, "without_answer", p->silent);
  hk_json_begin(&w, "communicators", '[');
  for (int i = 0; i < p->ncomms; i++) {
    const hk_ps_comm *c = &p->comms[i];
    char id[24];
    if (!ps_is_wanted(c, o)) continue;
    snprintf(id, sizeof id, "0x%llx", (unsigned long long)c->id);
    hk_json_open(&w, '{');
    hk_json_put_text(&w, "id", id);
    if (c->name[0]) hk_json_put_text(&w, "name", c->name);
    hk_json_put_integer(&w, "ranks_count", c->nranks);
    hk_json_put_integer(&w, "newest_operation", (long long)c->newest);
    hk_json_put_integer(&w, "waited_ms", (long long)c->waited_ms);
    if (c->verdict[0]) hk_json_put_text(&w, "verdict", c->verdict);
    hk_json_begin(&w, "ranks", '[');
    for (int r = 0; r < c->nranks; r++) ps_json_rank(&w, r, &c->ranks[r]);
    hk_json_close(&w);
    hk_json_close(&w);
  }
  hk_json_close(&w);
  hk_json_close(&w);
  putchar('\n');
}

static int ps_once(const options *o) {
  hk_ps p;
  int shown = 0, code = HK_EXIT_OK;
  const hk_status rc = hk_ps_collect(&p, (unsigned)o->late_ms, NULL);
  if (o->watch > 0 && !o->json) fputs("\033[H\033[2J", stdout); /* home, clear */
  for (int i = 0; i < p.ncomms && rc == HK_OK; i++) {
    if (!ps_is_wanted(&p.comms[i], o)) continue;
    if (!o->json) ps_print_comm(&p.comms[i], o);
    if (p.comms[i].verdict[0]) code = HK_EXIT_FINDING;
    shown++;
  }
  if (rc != HK_OK)
    code = hk_tool_failed(rc);
  else if (o->json)
    ps_print_json(&p, o);
  else if (!shown)
    printf("No %s of yours has ranks on this host%s.\n", o->comm ? "such communicator" : "communicator",
           p.refused ? " (processes of other users have)" : "");
  if (rc == HK_OK && !o->json && p.silent)
    printf("%d process%s of this host %s not answer: stopped, or without CPU time.\n", p.silent,
           p.silent > 1 ? "es" : "", p.silent > 1 ? "do" : "does");
  fflush(stdout);
  hk_ps_free(&p);
  return code;
}

static int ps_run(void *into, int nargs, char **args) {
  const options *o = into;
  const hk_wait_env env = {.spins = 0};
  hk_waiter w;
  (void)nargs, (void)args;
  int code = ps_once(o);
  hk_wait_begin(&w, &env);
  while (o->watch > 0 && code != HK_EXIT_TROUBLE) { /* until the user interrupts it */
    (void)hk_wait_nap(&w, -1, (uint64_t)(o->watch * 1e9));
    code = ps_once(o);
  }
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(comm, "comm", "ID", "only this communicator, by its number (0x...) or its name", .letter = 'c'),
    HK_ROW_INT(late_ms, "late", "MS", "report waits from this length on, milliseconds", .letter = 'l', .def = "1000",
               .low = 0, .high = 1000000000),
    HK_ROW_NUMBER(watch, "watch", "SECONDS", "show it again and again, after a pause of this length", .letter = 'w'),
    HK_ROW_FLAG(all, "all", "all ranks of large communicators", .letter = 'a'),
    HK_ROW_FLAG(json, "json", "write JSON"),
    {0}};

const hk_tool hk_tool_ps = {
    .name = "ps",
    .about = "what the ranks of running jobs do, and who keeps the others waiting",
    .text = "Asks the processes of this host that use the library, and by what they know also the ranks of "
            "their communicators on other hosts. For each rank: its call, the number of its operation, since when it "
            "waits and for whom. Of ranks that wait, it names the one that they wait for: a process that is stopped, "
            "gone or cannot be reached, a rank that has not begun the operation, or one in another call.\n\n"
            "Processes of other users are not shown, except to root. A process with HOCKET_STATUS=0 does not answer. "
            "In containers, run it in the container (the network namespace) of a rank. Ranks that encrypt their "
            "connections are asked with the same key: set what the job has set.",
    .findings = "a rank keeps others waiting, or does not answer",
    .examples = "hocket ps\n  all communicators with ranks on this host\n"
                "hocket ps --json --late 200\n  for a program; waits of 0.2 s already count\n"
                "hocket ps --watch 2\n  live in a terminal",
    .options = rows,
    .bytes = sizeof(options),
    .run = ps_run};
