/* SPDX-License-Identifier: Apache-2.0 */
/* Reports and events of the RAS server: ras_report.h. The JSON has NCCL's keys; those of ours follow them. */
#include "ras_report.h"
#include <nccl.h>
#include <string.h>
#include <time.h>
#include "../base/json.h"
#include "../program/program.h" /* names of collectives */

typedef enum ras_state { REPORT_RUNS, REPORT_UNRESPONSIVE, REPORT_DEAD } ras_state;

static void ras_report_time(char *text, size_t bytes) {
  const time_t now = time(NULL);
  struct tm local;
  if (!localtime_r(&now, &local) || !strftime(text, bytes, "%F %T", &local)) snprintf(text, bytes, "unknown");
}

/* It is in this communicator, and has answered. */

static ras_state ras_report_state(const hk_ps_rank *r) {
  if (r->presence == HK_PRESENCE_GONE) return REPORT_DEAD;
  return r->presence == HK_PRESENCE_ANSWERS || r->presence == HK_PRESENCE_LEFT ? REPORT_RUNS : REPORT_UNRESPONSIVE;
}

static int ras_report_count(const hk_ps_comm *c, bool (*is)(const hk_ps_rank *r)) {
  int n = 0;
  for (int r = 0; r < c->nranks; r++) n += is(&c->ranks[r]);
  return n;
}

static int ras_report_timeouts(const hk_ps *p) {
  int n = 0;
  for (int i = 0; i < p->ncomms; i++)
    for (int r = 0; r < p->comms[i].nranks; r++) n += ras_report_state(&p->comms[i].ranks[r]) == REPORT_UNRESPONSIVE;
  return n;
}

/* ---- JSON ---- */

static void ras_report_rank_head(hk_json *w, int rank, const hk_ps_rank *r, int device) {
  hk_json_open(w, '{');
  hk_json_put_integer(w, "rank", rank);
  hk_json_put_text(w, "host", r->host[0] ? r->host : "unknown");
  hk_json_put_integer(w, "pid", r->pid ? r->pid : -1);
  hk_json_put_integer(w, "cuda_dev", device);
  hk_json_put_integer(w, "nvml_dev", -1);
  hk_json_begin(w, "status", '{');
}

static void ras_report_rank(hk_json *w, int rank, const hk_ps_rank *r) {
  const hk_activity *a = &r->activity;
  char text[160];
  ras_report_rank_head(w, rank, r, a->device);
  hk_json_put_integer(w, "init_state", a->phase == HK_PHASE_INIT ? ncclInProgress : ncclSuccess);
  hk_json_put_integer(w, "async_error", a->failure);
  hk_json_put_boolean(w, "finalize_called", a->ended & HK_ACTIVITY_FINALIZED);
  hk_json_put_boolean(w, "destroy_flag", a->ended & HK_ACTIVITY_DESTROYED);
  hk_json_put_boolean(w, "abort_flag", a->ended & HK_ACTIVITY_ABORTED);
  hk_json_close(w);
  hk_json_begin(w, "collective_counts", '{');
  for (int k = 0; k < HK_COLL_COUNT; k++) hk_json_put_integer(w, hk_coll_name((hk_coll)k), (long long)a->calls[k]);
  hk_json_close(w);
  hk_json_put_text(w, "operation", hk_ps_does(r, text, sizeof text));
  hk_json_put_boolean(w, "in_operation", a->phase == HK_PHASE_OPERATION);
  hk_json_put_integer(w, "sequence", (long long)a->sequence);
  hk_json_put_integer(w, "for_ms", (long long)a->phase_ms);
  hk_json_put_integer(w, "waits_for", a->waits_for);
  hk_json_put_integer(w, "late_count", (long long)r->late.count);
  hk_json_put_integer(w, "late_us", (long long)(r->late.ns / 1000));
  hk_json_put_boolean(w, "guilty", r->guilty);
  hk_json_close(w);
}

static void ras_report_missing(hk_json *w, int rank, const hk_ps_rank *r) {
  const ras_state s = ras_report_state(r);
  ras_report_rank_head(w, rank, r, -1);
  hk_json_put_boolean(w, "unresponsive", s != REPORT_RUNS);
  hk_json_put_boolean(w, "considered_dead", s == REPORT_DEAD);
  hk_json_close(w);
  hk_json_put_text(w, "state", hk_ps_state(r));
  hk_json_put_boolean(w, "guilty", r->guilty);
  hk_json_close(w);
}

static void ras_report_comm(hk_json *w, const hk_ps_comm *c) {
  const int present = ras_report_count(c, hk_ps_answers);
  char hash[24];
  snprintf(hash, sizeof hash, "0x%llx", (unsigned long long)c->id);
  hk_json_open(w, '{');
  hk_json_put_text(w, "hash", hash);
  hk_json_put_text(w, "secondary_hash", "0x0:0x0");
  hk_json_put_integer(w, "size", c->nranks);
  hk_json_put_integer(w, "ranks_count", present);
  hk_json_put_integer(w, "missing_ranks_count", c->nranks - present);
  hk_json_begin(w, "ranks", '[');
  for (int r = 0; r < c->nranks; r++)
    if (hk_ps_answers(&c->ranks[r])) ras_report_rank(w, r, &c->ranks[r]);
  hk_json_close(w);
  hk_json_begin(w, "missing_ranks", '[');
  for (int r = 0; r < c->nranks; r++)
    if (!hk_ps_answers(&c->ranks[r])) ras_report_missing(w, r, &c->ranks[r]);
  hk_json_close(w);
  hk_json_put_text(w, "name", c->name[0] ? c->name : NULL);
  hk_json_put_text(w, "verdict", c->verdict[0] ? c->verdict : NULL);
  hk_json_put_text(w, "late", c->late.text[0] ? c->late.text : NULL);
  hk_json_close(w);
}

static void ras_report_json(FILE *f, const hk_ps *p, double seconds) {
  hk_json w = {.f = f};
  char text[64];
  hk_json_open(&w, '{');
  snprintf(text, sizeof text, "%d.%d.%d", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  hk_json_put_text(&w, "nccl_version", text);
  hk_json_put_integer(&w, "cuda_runtime_version", -1);
  hk_json_put_integer(&w, "cuda_driver_version", -1);
  ras_report_time(text, sizeof text);
  hk_json_put_text(&w, "timestamp", text);
  hk_json_put_integer(&w, "communicators_count", p->ncomms);
  hk_json_begin(&w, "communicators", '[');
  for (int i = 0; i < p->ncomms; i++) ras_report_comm(&w, &p->comms[i]);
  hk_json_close(&w);
  hk_json_begin(&w, "ras", '{');
  hk_json_put_number(&w, "collection_time_sec", seconds);
  hk_json_put_integer(&w, "timeouts_count", ras_report_timeouts(p));
  hk_json_close(&w);
  hk_json_close(&w);
  fputc('\n', f);
}

/* ---- text ---- */

static bool ras_report_initialises(const hk_ps_rank *r) {
  return hk_ps_answers(r) && r->activity.phase == HK_PHASE_INIT;
}
static bool ras_report_finalises(const hk_ps_rank *r) {
  return hk_ps_answers(r) && r->activity.ended & (HK_ACTIVITY_FINALIZED | HK_ACTIVITY_DESTROYED);
}
static bool ras_report_aborted(const hk_ps_rank *r) {
  return hk_ps_answers(r) && r->activity.ended & HK_ACTIVITY_ABORTED;
}
static bool ras_report_failed(const hk_ps_rank *r) { return hk_ps_answers(r) && r->activity.failure; }

/* The most ranks that the report names, unless it is verbose. */
enum { REPORT_NAMED = 10 };

static void ras_report_name_ranks(FILE *f, const hk_ps_comm *c, bool (*is)(const hk_ps_rank *r), bool verbose) {
  int named = 0;
  char text[160];
  for (int r = 0; r < c->nranks; r++) {
    const hk_ps_rank *x = &c->ranks[r];
    if (!is(x)) continue;
    if (named++ == REPORT_NAMED && !verbose) {
      fprintf(f, "  ... and %d more\n", ras_report_count(c, is) - REPORT_NAMED);
      return;
    }
    fprintf(f, "  Rank %d -- process %d on node %s: %s\n", r, x->pid ? x->pid : -1, x->host[0] ? x->host : "unknown",
            hk_ps_does(x, text, sizeof text));
  }
}

static bool ras_report_absent(const hk_ps_rank *r) { return !hk_ps_answers(r); }

static void ras_report_text_comm(FILE *f, int i, const hk_ps_comm *c) {
  const int present = ras_report_count(c, hk_ps_answers);
  const char *status = ras_report_count(c, ras_report_initialises) ? "INIT"
                       : ras_report_count(c, ras_report_aborted)   ? "ABORT"
                       : ras_report_count(c, ras_report_finalises) ? "FINALIZE"
                                                                   : "RUNNING";
  const char *errors = present < c->nranks                      ? "INCOMPLETE"
                       : ras_report_count(c, ras_report_failed) ? "ERROR"
                       : c->verdict[0]                          ? "WAITS"
                                                                : "OK";
  fprintf(f, "%12d  %16llx  %5d  %9d  %11llu  %8s  %10s  %s\n", i, (unsigned long long)c->id, c->nranks, present,
          (unsigned long long)c->newest, status, errors, c->name);
}

static void ras_report_trouble(FILE *f, int i, const hk_ps_comm *c, bool verbose) {
  const int missing = ras_report_count(c, ras_report_absent), failed = ras_report_count(c, ras_report_failed);
  if (!missing && !failed && !c->verdict[0]) return;
  fprintf(f, "\n#%d (%llx)\n", i, (unsigned long long)c->id);
  if (c->verdict[0]) fprintf(f, "  %s\n", c->verdict);
  if (missing) fprintf(f, "  Missing communicator data from %d rank%s\n", missing, missing > 1 ? "s" : "");
  ras_report_name_ranks(f, c, ras_report_absent, verbose);
  if (failed) fprintf(f, "  %d rank%s failed\n", failed, failed > 1 ? "s have" : " has");
  ras_report_name_ranks(f, c, ras_report_failed, verbose);
}

/* All ranks with what they do. */
static void ras_report_details(FILE *f, int i, const hk_ps_comm *c) {
  char text[160];
  fprintf(f, "\n#%d (%llx)%s%s\n", i, (unsigned long long)c->id, c->name[0] ? " " : "", c->name);
  for (int r = 0; r < c->nranks; r++) {
    const hk_ps_rank *x = &c->ranks[r];
    const hk_activity *a = &x->activity;
    fprintf(f, "  Rank %d -- process %d on node %s: %s", r, x->pid ? x->pid : -1, x->host[0] ? x->host : "unknown",
            hk_ps_does(x, text, sizeof text));
    if (hk_ps_answers(x)) {
      fprintf(f, ", operation %llu", (unsigned long long)a->sequence);
      if (a->phase_ms) fprintf(f, ", for %.1f s", (double)a->phase_ms * 1e-3);
      if (a->waits_for >= 0) fprintf(f, ", waits for rank %d", a->waits_for);
      for (int k = 0; k < HK_COLL_COUNT; k++)
        if (a->calls[k]) fprintf(f, "; %s %llu", hk_coll_name((hk_coll)k), (unsigned long long)a->calls[k]);
    }
    fputc('\n', f);
  }
}

static void ras_report_text(FILE *f, const hk_ps *p, bool verbose, double seconds) {
  int trouble = 0;
  fprintf(f, "NCCL version %d.%d.%d (Hocket)\n\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  fprintf(f, "Communicators... (%.2fs)\n=============\n\n", seconds);
  fputs("Communicator              Hash  Ranks  Answering       Newest    Status      Errors  Name\n"
        "           #                                        operation\n",
        f);
  for (int i = 0; i < p->ncomms; i++) ras_report_text_comm(f, i, &p->comms[i]);
  for (int i = 0; i < p->ncomms; i++)
    trouble += p->comms[i].verdict[0] || ras_report_count(&p->comms[i], ras_report_absent) ||
               ras_report_count(&p->comms[i], ras_report_failed);
  if (trouble) fputs("\nErrors\n======\n", f);
  for (int i = 0; i < p->ncomms; i++) ras_report_trouble(f, i, &p->comms[i], verbose);
  if (verbose) fputs("\nRanks\n=====\n", f);
  for (int i = 0; i < p->ncomms && verbose; i++) ras_report_details(f, i, &p->comms[i]);
  if (p->silent)
    fprintf(f, "\nWarnings\n========\n\n%d process%s of this host did not answer: stopped, or without CPU time\n",
            p->silent, p->silent > 1 ? "es" : "");
}

void hk_ras_report(FILE *f, const hk_ps *p, const hk_ras_format *how, double seconds) {
  if (how->json)
    ras_report_json(f, p, seconds);
  else
    ras_report_text(f, p, how->verbose, seconds);
}

/* ---- events ---- */

static const hk_ps_comm *ras_report_find(const hk_ps *p, uint64_t id) {
  for (int i = 0; i < p->ncomms; i++)
    if (p->comms[i].id == id) return &p->comms[i];
  return NULL;
}

static void ras_report_event(FILE *f, bool json, const char *group, const char *event, const hk_ps_rank *peer,
                             const char *details) {
  char now[64];
  ras_report_time(now, sizeof now);
  if (!json) {
    fprintf(f, "[%s] %s: ", now, event);
    if (peer) fprintf(f, "Process %d on node %s, ", peer->pid ? peer->pid : -1, peer->host);
    fprintf(f, "%s\n", details);
    return;
  }
  hk_json w = {.f = f};
  hk_json_open(&w, '{');
  hk_json_put_text(&w, "timestamp", now);
  hk_json_put_text(&w, "group", group);
  hk_json_put_text(&w, "event", event);
  if (peer) {
    hk_json_begin(&w, "peer", '{');
    hk_json_put_text(&w, "host", peer->host);
    hk_json_put_integer(&w, "pid", peer->pid ? peer->pid : -1);
    hk_json_begin(&w, "cuda_devs", '[');
    hk_json_close(&w);
    hk_json_begin(&w, "nvml_devs", '[');
    hk_json_close(&w);
    hk_json_close(&w);
  }
  hk_json_put_text(&w, "details", details);
  hk_json_close(&w);
  fputc('\n', f);
}

/* The event of the rank's process; NULL: nothing has changed. */
static const char *ras_report_change(const hk_ps_comm *before, const hk_ps_comm *now, int rank) {
  static const char *const names[] = {
      [REPORT_RUNS] = "PEER_RECOVERED", [REPORT_UNRESPONSIVE] = "PEER_UNRESPONSIVE", [REPORT_DEAD] = "PEER_DEAD"};
  const ras_state then = before && rank < before->nranks ? ras_report_state(&before->ranks[rank]) : REPORT_RUNS;
  const ras_state s = ras_report_state(&now->ranks[rank]);
  return s == then ? NULL : names[s];
}

/* A process is reported once, though it may have ranks in several communicators. */
static bool ras_report_is_known(const hk_ps *before, const hk_ps *now, int comm, int rank) {
  const hk_ps_rank *r = &now->comms[comm].ranks[rank];
  for (int i = 0; i <= comm; i++) {
    const hk_ps_comm *old = ras_report_find(before, now->comms[i].id);
    for (int k = 0; k < (i < comm ? now->comms[i].nranks : rank); k++) {
      const hk_ps_rank *other = &now->comms[i].ranks[k];
      if (r->pid && other->pid == r->pid && !strcmp(other->host, r->host) && ras_report_change(old, &now->comms[i], k))
        return true;
    }
  }
  return false;
}

void hk_ras_events(FILE *f, const hk_ps *before, const hk_ps *now, const hk_ras_format *how) {
  char details[480];
  for (int i = 0; i < now->ncomms; i++) {
    const hk_ps_comm *c = &now->comms[i], *old = ras_report_find(before, c->id);
    for (int r = 0; r < c->nranks && how->groups & HK_RAS_LIFECYCLE; r++) {
      const char *event = ras_report_change(old, c, r);
      if (!event || ras_report_is_known(before, now, i, r)) continue;
      snprintf(details, sizeof details, "rank %d of communicator 0x%llx", r, (unsigned long long)c->id);
      ras_report_event(f, how->json, "LIFECYCLE", event, &c->ranks[r], details);
    }
    if (!(how->groups & HK_RAS_TRACE) || !c->verdict[0] == !(old && old->verdict[0])) continue;
    snprintf(details, sizeof details, "communicator 0x%llx: %s", (unsigned long long)c->id,
             c->verdict[0] ? c->verdict : "no rank keeps others waiting");
    ras_report_event(f, how->json, "TRACE", c->verdict[0] ? "COMM_WAITS" : "COMM_GOES_ON", NULL, details);
  }
}
