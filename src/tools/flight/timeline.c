/* SPDX-License-Identifier: Apache-2.0 */
/* Writes flight records as a timeline, for Perfetto and chrome://tracing (flight.h). */
#include <stdlib.h>
#include <string.h>
#include "../../base/json.h"
#include "flight.h"

/* ---- clocks ---- */

static int timeline_compare(const void *a, const void *b) {
  const long long x = *(const long long *)a, y = *(const long long *)b;
  return x < y ? -1 : x > y;
}

/* The median of how much later the ends of common collectives are on `f` than on `first`. */
static long long timeline_shift(const hk_flight_file *first, const hk_flight_file *f) {
  long long *apart = malloc((f->nops + 1) * sizeof *apart), shift = 0;
  size_t n = 0, k = 0;
  for (size_t i = 0; apart && i < f->nops; i++) {
    const hk_flight_op *o = &f->ops[i];
    if (!o->collective || o->rooted || !o->end_ns) continue;
    while (k < first->nops && first->ops[k].collective < o->collective) k++; /* sends and receives have 0 */
    if (k < first->nops && first->ops[k].collective == o->collective && first->ops[k].end_ns)
      apart[n++] = o->end_ns - first->ops[k].end_ns;
  }
  if (n) {
    qsort(apart, n, sizeof *apart, timeline_compare);
    shift = apart[n / 2];
  }
  free(apart);
  return shift;
}

void hk_flight_align(hk_flight_comm *c) {
  for (int i = 1; i < c->nfiles; i++) {
    hk_flight_file *f = c->files[i];
    int same = 0; /* one clock for each host */
    while (strcmp(c->files[same]->host, f->host)) same++;
    f->shift_ns = same < i ? c->files[same]->shift_ns : timeline_shift(c->files[0], f);
  }
}

/* ---- events ---- */

typedef struct timeline_place {
  int process, row;
  long long origin_ns;
} timeline_place;

static double timeline_us(const hk_flight_file *f, const timeline_place *p, long long ns) {
  return (double)(ns - f->shift_ns - p->origin_ns) / 1e3;
}

static void timeline_name(hk_json *w, const timeline_place *p, const char *what, const char *text) {
  hk_json_open(w, '{');
  hk_json_put_text(w, "name", what);
  hk_json_put_text(w, "ph", "M");
  hk_json_put_integer(w, "pid", p->process);
  hk_json_put_integer(w, "tid", p->row);
  hk_json_begin(w, "args", '{');
  hk_json_put_text(w, "name", text);
  hk_json_close(w);
  hk_json_close(w);
  fputc('\n', w->f);
}

/* Where the span of an operation ends: at its end, or when the file was written. An end without a time is at most a
 * microsecond later, and before the next operation of the same row. */
static long long timeline_end(const hk_flight_file *f, size_t i) {
  const hk_flight_op *o = &f->ops[i];
  if (o->end_ns) return o->end_ns;
  if (o->state == HK_FLIGHT_BEGUN || o->state == HK_FLIGHT_FAILED) return f->written_ns;
  const bool next = i + 1 < f->nops && f->ops[i + 1].begin_ns > o->begin_ns;
  return next && f->ops[i + 1].begin_ns - o->begin_ns < 1000 ? f->ops[i + 1].begin_ns : o->begin_ns + 1000;
}

static void timeline_op(hk_json *w, const timeline_place *p, const hk_flight_file *f, size_t i) {
  const hk_flight_op *o = &f->ops[i];
  const double begin = timeline_us(f, p, o->begin_ns), end = timeline_us(f, p, timeline_end(f, i));
  char number[32];
  snprintf(number, sizeof number, "%.3f", begin); /* as text: hk_json_number has ten digits */
  hk_json_open(w, '{');
  hk_json_put_text(w, "name", o->call);
  hk_json_put_text(w, "ph", "X");
  hk_json_key(w, "ts");
  fputs(number, w->f);
  w->after_key = false;
  hk_json_put_number(w, "dur", end > begin ? end - begin : 0);
  hk_json_put_integer(w, "pid", p->process);
  hk_json_put_integer(w, "tid", p->row);
  hk_json_begin(w, "args", '{');
  hk_json_put_text(w, "state", hk_flight_state_name((hk_flight_state)o->state));
  if (o->collective) hk_json_put_integer(w, "operation", o->collective);
  if (o->algorithm[0]) hk_json_put_text(w, "algorithm", o->algorithm);
  hk_json_close(w);
  hk_json_close(w);
  fputc('\n', w->f);
}

static void timeline_file(hk_json *w, timeline_place *p, const hk_flight_file *f) {
  char text[160];
  bool transfers = false;
  for (size_t i = 0; i < f->nops; i++) transfers |= !f->ops[i].collective;
  p->row = 2 * f->rank;
  snprintf(text, sizeof text, "rank %d, %s%s", f->rank, f->host, f->streams ? ", when put on streams" : "");
  timeline_name(w, p, "thread_name", text);
  for (size_t i = 0; i < f->nops; i++)
    if (f->ops[i].collective) timeline_op(w, p, f, i);
  if (!transfers) return;
  p->row++;
  snprintf(text, sizeof text, "rank %d, sends and receives", f->rank);
  timeline_name(w, p, "thread_name", text);
  for (size_t i = 0; i < f->nops; i++)
    if (!f->ops[i].collective) timeline_op(w, p, f, i);
}

void hk_flight_timeline(const hk_flight_comm *comms, int n, FILE *to) {
  hk_json w = {.f = to};
  timeline_place p = {.origin_ns = INT64_MAX};
  char text[128];
  for (int i = 0; i < n; i++)
    for (int k = 0; k < comms[i].nfiles; k++) {
      const hk_flight_file *f = comms[i].files[k];
      if (f->nops && f->ops[0].begin_ns - f->shift_ns < p.origin_ns) p.origin_ns = f->ops[0].begin_ns - f->shift_ns;
    }
  hk_json_open(&w, '{');
  hk_json_put_text(&w, "displayTimeUnit", "ns");
  hk_json_begin(&w, "traceEvents", '[');
  for (int i = 0; i < n; i++) {
    const hk_flight_file *f = comms[i].files[0];
    p.process = i;
    p.row = 0;
    snprintf(text, sizeof text, "communicator 0x%llx %s", (unsigned long long)f->comm, f->name);
    timeline_name(&w, &p, "process_name", text);
    for (int k = 0; k < comms[i].nfiles; k++) timeline_file(&w, &p, comms[i].files[k]);
  }
  hk_json_close(&w);
  hk_json_close(&w);
  fputc('\n', to);
}
