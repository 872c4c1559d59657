/* SPDX-License-Identifier: Apache-2.0 */
/* What `hocket ps` and `hocket watch` print. */
#include <stdlib.h>
#include <string.h>
#include "../../base/status.h"
#include "ps.h"

bool hk_ps_is_wanted(const hk_ps_comm *c, const hk_ps_options *o) {
  if (o->job && !(c->job && hk_boot_job_is(c->job, o->job))) return false;
  return !o->comm || c->id == strtoull(o->comm, NULL, 16) || !strcmp(c->name, o->comm);
}

/* Of many ranks only those that are guilty or differ, unless all are wanted. */
enum { ROWS = 64, LATE_PART = 20 /* of the latest rank's lateness; less is not shown */ };

static uint64_t show_most_late(const hk_ps_comm *c) {
  uint64_t most = 0;
  for (int r = 0; r < c->nranks; r++)
    if (c->ranks[r].late.ns > most) most = c->ranks[r].late.ns;
  return most;
}

static void show_rank(hk_table *t, int rank, const hk_ps_rank *x, uint64_t most_late) {
  const hk_activity *a = &x->activity;
  const bool answers = hk_ps_answers(x);
  char text[160], time[32] = "", number[24] = "", peer[16] = "", pid[16] = "", late[24] = "", by[32] = "";
  if (answers && a->sequence) snprintf(number, sizeof number, "%llu", (unsigned long long)a->sequence);
  if (answers && a->phase_ms) hk_tool_time(time, (double)a->phase_ms * 1e3);
  if (answers && a->waits_for >= 0) snprintf(peer, sizeof peer, "%d", a->waits_for);
  if (x->late.count && x->late.ns * LATE_PART >= most_late) {
    snprintf(late, sizeof late, "%llu", (unsigned long long)x->late.count);
    hk_tool_time(by, (double)x->late.ns * 1e-3);
  }
  if (x->pid) snprintf(pid, sizeof pid, "%d", x->pid);
  const hk_style s = x->guilty ? HK_STYLE_RED : HK_STYLE_PLAIN;
  hk_table_cell(t, s, "%d", rank);
  hk_table_cell(t, s, "%s", x->host);
  hk_table_cell(t, s, "%s", pid);
  hk_table_cell(t, s, "%s", hk_ps_does(x, text, sizeof text));
  hk_table_cell(t, s, "%s", number);
  hk_table_cell(t, s, "%s", time);
  hk_table_cell(t, s, "%s", peer);
  hk_table_cell(t, s, "%s", late);
  hk_table_cell(t, s, "%s", by);
}

static void show_ranks(const hk_ps_comm *c, bool all) {
  hk_table *t = hk_table_new("rlrlrrrrr");
  int hidden = 0;
  hk_table_row(t, HK_STYLE_BOLD, "RANK\tHOST\tPID\tDOES\tNUMBER\tFOR\tWAITS FOR\tLATE\tBY");
  for (int r = 0; r < c->nranks; r++) {
    if (all || r < ROWS || c->ranks[r].guilty)
      show_rank(t, r, &c->ranks[r], show_most_late(c));
    else
      hidden++;
  }
  hk_table_print(t, 2, stdout);
  if (hidden) printf("  %d more ranks; --all shows them\n", hidden);
}

static void show_sentence(hk_style s, const char *text) {
  if (!*text) return;
  fputs(hk_tool_style(stdout, s), stdout);
  hk_tool_wrap(stdout, 2, text);
  fputs(hk_tool_style(stdout, HK_STYLE_PLAIN), stdout);
}

static void show_comm(const hk_ps_comm *c, bool all) {
  printf("%sCommunicator 0x%llx%s%s%s, %d ranks%s", hk_tool_style(stdout, HK_STYLE_BOLD), (unsigned long long)c->id,
         c->name[0] ? " \"" : "", c->name, c->name[0] ? "\"" : "", c->nranks, hk_tool_style(stdout, HK_STYLE_PLAIN));
  if (c->job && *c->job) printf(", %.*s", (int)strcspn(c->job, "\n"), c->job);
  putchar('\n');
  show_ranks(c, all);
  show_sentence(HK_STYLE_RED, c->verdict);
  show_sentence(HK_STYLE_YELLOW, c->late.text);
  putchar('\n');
}

static void show_text(const hk_ps *p, const hk_ps_options *o) {
  int shown = 0;
  for (int i = 0; i < p->ncomms; i++) {
    if (!hk_ps_is_wanted(&p->comms[i], o)) continue;
    show_comm(&p->comms[i], o->all);
    shown++;
  }
  if (!shown)
    printf("No %s %s has ranks %s%s.\n", o->comm || o->job ? "such communicator" : "communicator",
           o->address ? "that this service knows" : "of yours", o->address ? "now" : "on this host",
           p->refused ? " (processes of other users have)" : "");
  if (p->silent)
    printf("%d process%s of this host %s not answer: stopped, or without CPU time.\n", p->silent,
           p->silent > 1 ? "es" : "", p->silent > 1 ? "do" : "does");
  if (p->strange)
    printf("%d process%s of this host use%s another version of Hocket: ask with the `hocket` of that version.\n",
           p->strange, p->strange > 1 ? "es" : "", p->strange > 1 ? "" : "s");
}

int hk_ps_show(const hk_ps_options *o, const char *before) {
  hk_ps p = {.ncomms = 0};
  int code = HK_EXIT_OK;
  if (o->address && o->job)
    return hk_tool_wrong("--job is for the processes of this host: a RAS service does not tell the names of jobs");
  if (o->address && !hk_ps_read_remote(&p, o->address))
    code = HK_EXIT_TROUBLE;
  else if (!o->address && hk_ps_collect(&p, (unsigned)o->late_ms, NULL) != HK_OK)
    code = hk_tool_failed(HK_ERR_SYSTEM);
  for (int i = 0; i < p.ncomms && code == HK_EXIT_OK; i++)
    if (hk_ps_is_wanted(&p.comms[i], o) && p.comms[i].verdict[0]) code = HK_EXIT_FINDING;
  fputs(before, stdout);
  if (code != HK_EXIT_TROUBLE) {
    if (o->json)
      hk_ps_print_json(&p, o);
    else
      show_text(&p, o);
  }
  fflush(stdout);
  hk_ps_free(&p);
  return code;
}
