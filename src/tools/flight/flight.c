/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket flight`: reads the flight records of ranks, names what went wrong, and draws a timeline. */
#include "flight.h"
#include <stdlib.h>
#include <string.h>
#include "../../base/json.h"
#include "../../boot/inquiry.h" /* ranks in words */
#include "../tools.h"

typedef struct options {
  const char *timeline;
  bool json;
} options;

enum { ROWS = 64 };

typedef struct flight_set {
  hk_flight_file *files;
  hk_flight_file **order; /* by communicator and rank, each once */
  hk_flight_comm *comms;
  int nfiles, nkept, ncomms, dropped;
} flight_set;

static int flight_compare(const void *a, const void *b) {
  const hk_flight_file *x = *(hk_flight_file *const *)a, *y = *(hk_flight_file *const *)b;
  if (x->comm != y->comm) return x->comm < y->comm ? -1 : 1;
  if (x->nranks != y->nranks) return x->nranks < y->nranks ? -1 : 1;
  if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
  return x->written_ns > y->written_ns ? -1 : x->written_ns < y->written_ns; /* the newest first */
}

static bool flight_together(const hk_flight_file *x, const hk_flight_file *y) {
  return x->comm == y->comm && x->nranks == y->nranks;
}

static hk_status flight_sort(flight_set *s) {
  for (int i = 0; i < s->nfiles; i++) s->order[i] = &s->files[i];
  qsort(s->order, (size_t)s->nfiles, sizeof(hk_flight_file *), flight_compare);
  for (int i = 0; i < s->nfiles; i++) {
    hk_flight_file *f = s->order[i], *last = s->nkept ? s->order[s->nkept - 1] : NULL;
    if (last && flight_together(last, f) && last->rank == f->rank) {
      s->dropped++;
      continue;
    }
    s->order[s->nkept] = f;
    if (!last || !flight_together(last, f)) s->comms[s->ncomms++] = (hk_flight_comm){.files = &s->order[s->nkept]};
    s->comms[s->ncomms - 1].nfiles++;
    s->nkept++;
  }
  for (int i = 0; i < s->ncomms; i++) {
    HK_OR_RETURN(hk_flight_judge(&s->comms[i]));
    hk_flight_align(&s->comms[i]);
  }
  return HK_OK;
}

static hk_status flight_load(flight_set *s, int n, char **paths) {
  s->files = calloc((size_t)n, sizeof *s->files);
  s->order = calloc((size_t)n, sizeof(hk_flight_file *));
  s->comms = calloc((size_t)n, sizeof *s->comms);
  if (!s->files || !s->order || !s->comms) return HK_FAIL_ERRNO("no memory for %d files", n);
  for (int i = 0; i < n; i++) {
    s->nfiles = i + 1;
    HK_OR_RETURN(hk_flight_read(paths[i], &s->files[i]));
  }
  return flight_sort(s);
}

static void flight_free(flight_set *s) {
  for (int i = 0; i < s->ncomms; i++) free(s->comms[i].missing);
  for (int i = 0; i < s->nfiles; i++) hk_flight_file_free(&s->files[i]);
  free(s->comms);
  free(s->order);
  free(s->files);
}

/* ---- output ---- */

/* The operation that a row shows: the newest collective, else the newest send or receive. */
static const hk_flight_op *flight_newest(const hk_flight_file *f) {
  const hk_flight_op *o = f->begun ? hk_flight_collective(f, f->begun) : NULL;
  return o || !f->nops ? o : &f->ops[f->nops - 1];
}

static bool flight_guilty(const hk_flight_comm *c, const hk_flight_file *f) {
  if (f->late || f->rank == c->blamed) return true;
  const hk_flight_op *o = c->differs ? hk_flight_collective(f, c->differs) : NULL;
  return o && strcmp(o->call, c->usual);
}

static void flight_print_ranks(const hk_flight_comm *c) {
  hk_table *t = hk_table_new("rlrrrll");
  int hidden = 0;
  hk_table_row(t, HK_STYLE_BOLD, "RANK\tHOST\tPID\tENDED\tBEGUN\tSTATE\tCALL");
  for (int i = 0; i < c->nfiles; i++) {
    const hk_flight_file *f = c->files[i];
    const hk_flight_op *o = flight_newest(f);
    const bool guilty = flight_guilty(c, f);
    const hk_style s = guilty ? HK_STYLE_RED : HK_STYLE_PLAIN;
    if (i >= ROWS && !guilty) {
      hidden++;
      continue;
    }
    hk_table_cell(t, s, "%d", f->rank);
    hk_table_cell(t, s, "%s", f->host);
    hk_table_cell(t, s, "%d", f->pid);
    hk_table_cell(t, s, "%lld", f->ended);
    hk_table_cell(t, s, "%lld", f->begun);
    hk_table_cell(t, s, "%s", o ? hk_flight_state_name((hk_flight_state)o->state) : "");
    hk_table_cell(t, s, "%s", o ? o->call : "no operation");
  }
  hk_table_print(t, 2, stdout);
  if (hidden) printf("  %d more ranks; --json has them\n", hidden);
}

static void flight_print(const hk_flight_comm *c) {
  const hk_flight_file *f = c->files[0];
  char ranks[120];
  printf("%sCommunicator 0x%llx%s%s%s, %d rank%s, %d file%s%s\n", hk_tool_style(stdout, HK_STYLE_BOLD),
         (unsigned long long)f->comm, f->name[0] ? " \"" : "", f->name, f->name[0] ? "\"" : "", c->nranks,
         c->nranks == 1 ? "" : "s", c->nfiles, c->nfiles == 1 ? "" : "s", hk_tool_style(stdout, HK_STYLE_PLAIN));
  if (c->verdict[0]) {
    fputs(hk_tool_style(stdout, HK_STYLE_RED), stdout);
    hk_tool_wrap(stdout, 2, c->verdict);
    fputs(hk_tool_style(stdout, HK_STYLE_PLAIN), stdout);
  } else if (c->nmissing) {
    hk_ranks_describe(c->missing, c->nmissing, ranks, sizeof ranks);
    printf("  no file of %s\n", ranks);
  }
  printf("  %s operation up to %lld%s; the newest that a rank has begun is %lld\n",
         f->streams ? "All ranks have put every" : "All ranks have ended every", c->ended,
         f->streams ? " on a stream" : "", c->newest);
  flight_print_ranks(c);
  putchar('\n');
}

static void flight_json_file(hk_json *w, const hk_flight_comm *c, const hk_flight_file *f) {
  const hk_flight_op *o = flight_newest(f);
  hk_json_open(w, '{');
  hk_json_put_integer(w, "rank", f->rank);
  hk_json_put_text(w, "host", f->host);
  hk_json_put_integer(w, "pid", f->pid);
  hk_json_put_text(w, "file", f->path);
  hk_json_put_integer(w, "ended", f->ended);
  hk_json_put_integer(w, "begun", f->begun);
  if (o) hk_json_put_text(w, "call", o->call);
  if (o) hk_json_put_text(w, "state", hk_flight_state_name((hk_flight_state)o->state));
  hk_json_put_text(w, "does", f->does);
  if (f->text) hk_json_put_text(w, "failure", f->text);
  if (f->blamed >= 0) hk_json_put_integer(w, "failure_names", f->blamed);
  hk_json_put_integer(w, "clock_ahead_ns", f->shift_ns);
  hk_json_put_boolean(w, "guilty", flight_guilty(c, f));
  hk_json_close(w);
}

static void flight_json_comm(hk_json *w, const hk_flight_comm *c) {
  char id[24];
  snprintf(id, sizeof id, "0x%llx", (unsigned long long)c->files[0]->comm);
  hk_json_open(w, '{');
  hk_json_put_text(w, "id", id);
  if (c->files[0]->name[0]) hk_json_put_text(w, "name", c->files[0]->name);
  hk_json_put_integer(w, "ranks_count", c->nranks);
  if (c->verdict[0]) hk_json_put_text(w, "verdict", c->verdict);
  hk_json_put_integer(w, "ended_by_all", c->ended);
  hk_json_put_integer(w, "newest", c->newest);
  if (c->differs) {
    hk_json_begin(w, "differing", '{');
    hk_json_put_integer(w, "operation", c->differs);
    hk_json_put_text(w, "usual", c->usual);
    hk_json_put_text(w, "other", c->other);
    hk_json_close(w);
  }
  if (c->blamed >= 0) hk_json_put_integer(w, "named_by_failures", c->blamed);
  hk_json_begin(w, "missing", '[');
  for (int i = 0; i < c->nmissing; i++) hk_json_integer(w, c->missing[i]);
  hk_json_close(w);
  hk_json_begin(w, "ranks", '[');
  for (int i = 0; i < c->nfiles; i++) flight_json_file(w, c, c->files[i]);
  hk_json_close(w);
  hk_json_close(w);
}

static void flight_json(const flight_set *s) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '{');
  hk_json_begin(&w, "communicators", '[');
  for (int i = 0; i < s->ncomms; i++) flight_json_comm(&w, &s->comms[i]);
  hk_json_close(&w);
  hk_json_close(&w);
  putchar('\n');
}

static hk_status flight_draw(FILE *to, const void *what) {
  const flight_set *s = what;
  hk_flight_timeline(s->comms, s->ncomms, to);
  return HK_OK;
}

/* How much the clocks of other hosts are ahead, if the timeline corrects it. */
static void flight_print_clocks(const hk_flight_comm *c) {
  char time[32];
  for (int i = 1; i < c->nfiles; i++) {
    const hk_flight_file *f = c->files[i];
    const long long s = f->shift_ns;
    if (s && strcmp(f->host, c->files[i - 1]->host))
      printf("In the timeline the clock of %s is set %s by %s, an estimate from the ends of common collectives.\n",
             f->host, s > 0 ? "back" : "forward", hk_tool_time(time, (double)(s > 0 ? s : -s) / 1e3));
  }
}

static int flight_run(void *into, int nargs, char **args) {
  const options *o = into;
  flight_set s = {.nfiles = 0};
  int code = HK_EXIT_OK;
  const hk_status rc = flight_load(&s, nargs, args);
  if (rc != HK_OK) {
    code = hk_tool_failed(rc);
    goto out;
  }
  if (o->timeline) code = hk_tool_output(o->timeline, flight_draw, &s);
  if (code != HK_EXIT_OK) goto out;
  const bool quiet = o->timeline && !strcmp(o->timeline, "-");
  if (o->json && !quiet) flight_json(&s);
  for (int i = 0; i < s.ncomms; i++) {
    if (s.comms[i].verdict[0]) code = HK_EXIT_FINDING;
    if (!o->json && !quiet) flight_print(&s.comms[i]);
    if (!o->json && !quiet && o->timeline) flight_print_clocks(&s.comms[i]);
  }
  if (s.dropped && !o->json && !quiet)
    printf("%d file%s left out: there is a newer one of the same rank.\n", s.dropped, s.dropped == 1 ? " is" : "s are");
out:
  flight_free(&s);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_FILE(timeline, "timeline", "FILE", "write a timeline, for Perfetto or chrome://tracing", .letter = 't'),
    HK_ROW_FLAG(json, "json", "write JSON"),
    {0}};

const hk_tool hk_tool_flight = {
    .name = "flight",
    .about = "what the flight records of a job's ranks show: which rank went wrong",
    .usage = "FILE...",
    .text =
        "Reads the files that ranks write when a communicator fails (HOCKET_FLIGHT_DIR), on a signal "
        "(HOCKET_FLIGHT_SIGNAL) or on request (hocketFlightDump). Give the files of all ranks that have one. For each "
        "communicator it shows calls that differ, the rank that most failures name, ranks that had not begun an "
        "operation a second after another rank, and ranks without a file.\n\n"
        "In the timeline each rank has a row. The clocks of hosts are aligned by the ends of the collectives that they "
        "have in common, which are at most one latency apart. This is an estimate. An operation without a time of its "
        "end was short, and is drawn with a length of at most one microsecond.",
    .findings = "the files show a failure, calls that differ, or a rank that others wait for",
    .examples = "hocket flight hocket-flight-*.json\n  which rank went wrong\n"
                "hocket flight --timeline job.json hocket-flight-*.json\n  then open job.json in ui.perfetto.dev",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = -1,
    .run = flight_run};
