/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of this host's ranks as text: one block for each metric, one line for each rank and, of operations, for
 * each kind and class of sizes. Labels have the names of those of NCCL's Inspector. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/array.h"
#include "../../base/wait.h"
#include "../../boot/status.h"
#include "../../program/operation.h"
#include "metrics.h"

enum { LABEL = 128, PATIENCE_MS = 300, MOST_ENVIRON = 1 << 20 };
/* Another user's process may claim any number of ranks. */
enum { MOST_RANKS = 8192, MOST_OF_A_PROCESS = 1024 };

typedef struct text_rank {
  const hk_status_member *m;
  int hosts;
  char labels[8 * LABEL];
} text_rank;

typedef struct text_host {
  hk_status_process *processes;
  int nprocesses, nranks, left_out;
  text_rank *ranks;
} text_host;

/* ---- labels ---- */

/* Copies what can stand between quotes. Other bytes may be no UTF-8, which a reader would refuse with all the rest. */
static void text_quote(char to[LABEL], const char *from) {
  size_t n = 0;
  for (; *from && n + 2 < LABEL; from++) {
    if (*from == '"' || *from == '\\') to[n++] = '\\';
    to[n++] = (unsigned char)*from < ' ' || (unsigned char)*from > '~' ? '?' : *from;
  }
  to[n] = 0;
}

/* The value of a variable in the environment with which the process was started; "": it has none, or cannot be read. */
static void text_variable(int pid, const char *name, char to[LABEL]) {
  char path[48], *all = NULL;
  size_t n = 0, capacity = 0, length = strlen(name);
  to[0] = 0;
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  FILE *f = pid > 0 ? fopen(path, "re") : NULL;
  while (f && n < MOST_ENVIRON && HK_RESERVE(all, capacity, n + 4097)) {
    const size_t got = fread(all + n, 1, capacity - n - 1, f);
    n += got;
    if (!got) break;
  }
  if (f) fclose(f);
  if (all) all[n] = 0;
  for (char *v = all; v && v < all + n; v += strlen(v) + 1)
    if (!strncmp(v, name, length) && v[length] == '=') text_quote(to, v + length + 1);
  free(all);
}

static int text_compare_hosts(const void *a, const void *b) { return memcmp(a, b, sizeof(hk_addr)); }

/* The hosts of the communicator, by the ranks' first addresses; 0: not known. */
static int text_hosts(const hk_status_member *m) {
  hk_addr *at = m->contacts ? calloc((size_t)m->nranks, sizeof *at) : NULL;
  int n = 0;
  if (!at) return 0;
  for (int r = 0; r < m->nranks; r++) {
    hk_contact c;
    if (!hk_contact_decode(&c, m->contacts + (size_t)r * HK_CONTACT_BYTES)) continue;
    at[r] = c.at[0];
    hk_addr_set_port(&at[r], 0);
  }
  qsort(at, (size_t)m->nranks, sizeof *at, text_compare_hosts);
  for (int r = 0; r < m->nranks; r++) n += r == 0 || memcmp(&at[r], &at[r - 1], sizeof *at) != 0;
  free(at);
  return n;
}

static void text_label(text_rank *r, int pid, const char *job, const char *node) {
  const hk_status_member *m = r->m;
  char name[LABEL], gpu[16] = "none";
  text_quote(name, m->name);
  if (m->activity.device >= 0) snprintf(gpu, sizeof gpu, "GPU%d", m->activity.device);
  snprintf(r->labels, sizeof r->labels,
           "slurm_job_id=\"%s\",node=\"%s\",gpu=\"%s\",comm_name=\"%s\",comm=\"0x%" PRIx64
           "\",n_nodes=\"%d\",nranks=\"%d\",rank=\"%d\",pid=\"%d\"",
           job[0] ? job : "unknown", node, gpu, name[0] ? name : "unknown", m->comm, text_hosts(m), m->nranks, m->rank,
           pid);
}

static hk_status text_collect(text_host *h) {
  char host[64] = "", node[LABEL], job[LABEL];
  HK_OR_RETURN(hk_status_list(&h->processes, &h->nprocesses, (uint64_t)PATIENCE_MS * 1000000u, NULL));
  (void)gethostname(host, sizeof host - 1);
  text_quote(node, host);
  for (int i = 0; i < h->nprocesses; i++) {
    const hk_status_process *p = &h->processes[i];
    if (p->nmembers) text_variable(p->pid, "SLURM_JOB_ID", job);
    for (int k = 0; k < p->nmembers; k++) {
      if (k >= MOST_OF_A_PROCESS || h->nranks >= MOST_RANKS) {
        h->left_out++;
        continue;
      }
      if (!HK_RESERVE_NEXT(h->ranks, h->nranks))
        return HK_FAIL_ERRNO("no memory for the metrics of %d ranks", h->nranks);
      text_rank *r = &h->ranks[h->nranks++];
      *r = (text_rank){.m = &p->members[k]};
      text_label(r, p->pid, job, node);
    }
  }
  return HK_OK;
}

/* ---- metrics ---- */

static void text_head(FILE *f, const char *name, const char *type, const char *help) {
  fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static const char *text_class(unsigned k, char text[48]) {
  char low[32], high[32];
  const size_t least = (size_t)16 << 2 * k,
               most = (size_t)64 << 2 * k; /* in words: without spaces, as Inspector has it */
  hk_tool_bytes(low, k ? least : 0);
  hk_tool_bytes(high, most);
  snprintf(text, 48, k + 1 < HK_METER_CLASSES ? "%s-%s" : "%s-", low, high);
  for (char *from = text, *to = text;; from++)
    if (*from != ' ' && !(*to++ = *from)) break;
  return text;
}

typedef double text_value(const hk_status_member *m, const hk_meter_value *v); /* NAN: no line */

static double text_calls(const hk_status_member *m, const hk_meter_value *v) { return (void)m, (double)v->calls; }
static double text_bytes(const hk_status_member *m, const hk_meter_value *v) { return (void)m, (double)v->bytes; }
static double text_seconds(const hk_status_member *m, const hk_meter_value *v) {
  return (void)m, v->ns ? 1e-9 * (double)v->ns : NAN;
}
static double text_bus_bytes(const hk_status_member *m, const hk_meter_value *v) {
  return (double)v->bytes * hk_coll_bus_factor((hk_coll)v->kind, m->nranks);
}
static double text_bandwidth(const hk_status_member *m, const hk_meter_value *v) {
  return v->ns ? text_bus_bytes(m, v) / (double)v->ns : NAN;
}

/* Of all ranks' collectives, or of their sends and receives. */
static void text_operations(FILE *f, const text_host *h, bool collectives, const char *name, const char *type,
                            text_value *value, const char *help) {
  char size[48];
  text_head(f, name, type, help);
  for (int i = 0; i < h->nranks; i++) {
    const text_rank *r = &h->ranks[i];
    hk_meter_value v;
    for (uint32_t k = 0; k < r->m->ncounters; k++) {
      if (!hk_status_counter(r->m, k, &v) || v.kind >= HK_COLL_COUNT + HK_P2P_WAIT) continue;
      if ((v.kind < HK_COLL_COUNT) != collectives) continue;
      const double x = value(r->m, &v);
      if (isnan(x)) continue;
      fprintf(f, "%s{%s,%s=\"%s\",message_size=\"%s\"} %.*g\n", name, r->labels,
              collectives ? "collective" : "operation",
              collectives ? hk_coll_name((hk_coll)v.kind) : hk_p2p_name((hk_p2p)(v.kind - HK_COLL_COUNT + 1)),
              text_class(v.size_class, size), value == text_bandwidth ? 6 : 15, x);
    }
  }
}

static double text_idle(const hk_status_member *m) {
  return m->idle_ns == UINT64_MAX ? NAN : 1e-9 * (double)m->idle_ns;
}
static double text_wait(const hk_status_member *m) {
  return m->activity.phase == HK_PHASE_OPERATION ? 1e-3 * (double)m->activity.phase_ms : 0;
}
static double text_long_waits(const hk_status_member *m) { return (double)m->activity.long_waits; }
static double text_long_wait(const hk_status_member *m) { return 1e-9 * (double)m->activity.long_wait_ns; }
static double text_awaited(const hk_status_member *m) { return m->activity.waits_for; }
static double text_failed(const hk_status_member *m) { return m->activity.failure != 0; }
static double text_retries(const hk_status_member *m) { return (double)m->repairs; }
static double text_failovers(const hk_status_member *m) { return (double)m->failovers; }

/* One value of each rank. */
static const struct {
  const char *name, *type;
  double (*value)(const hk_status_member *m); /* NAN: no line */
  const char *help;
} text_of_ranks[] = {
    {"hocket_last_event_seconds", "gauge", text_idle,
     "Time since the rank began or ended an operation; exact to the time between two scrapes."},
    {"hocket_wait_seconds", "gauge", text_wait,
     "Time for which the rank has waited in its operation; 0: it does not wait."},
    {"hocket_waits_for_rank", "gauge", text_awaited, "The rank that this rank waits for; -1: none."},
    {"hocket_long_waits_total", "counter", text_long_waits,
     "Collectives in which the rank waited for others for 50 us or more; ranks on host memory only."},
    {"hocket_long_wait_seconds_total", "counter", text_long_wait,
     "Time of these waits. A rank is late by the most that a rank of its communicator waits, less its own waits."},
    {"hocket_failed", "gauge", text_failed, "1: the communicator has ended with an error on this rank."},
    {"hocket_network_retries_total", "counter", text_retries,
     "Network connections that failed and send again over new queue pairs."},
    {"hocket_network_failovers_total", "counter", text_failovers,
     "Paths of network connections that were left for others."}};

static void text_ranks(FILE *f, const text_host *h) {
  for (size_t k = 0; k < HK_ARRAY_LENGTH(text_of_ranks); k++) {
    text_head(f, text_of_ranks[k].name, text_of_ranks[k].type, text_of_ranks[k].help);
    for (int i = 0; i < h->nranks; i++) {
      const double x = text_of_ranks[k].value(h->ranks[i].m);
      if (!isnan(x)) fprintf(f, "%s{%s} %.15g\n", text_of_ranks[k].name, h->ranks[i].labels, x);
    }
  }
}

static void text_processes(FILE *f, const text_host *h) {
  static const char *const states[] = {"answers", "stopped", "silent", "of_other_users"};
  int n[HK_ARRAY_LENGTH(states)] = {0};
  for (int i = 0; i < h->nprocesses; i++) {
    const hk_status_process *p = &h->processes[i];
    bool again = false; /* a process has a socket for each copy of the library that is linked into it */
    for (int k = 0; k < i; k++) again |= h->processes[k].pid == p->pid;
    if (again) continue;
    n[p->answers ? 0 : p->refused ? 3 : p->stopped ? 1 : 2]++;
  }
  text_head(f, "hocket_processes", "gauge", "Processes of this host that use the library, by whether they answer.");
  for (size_t i = 0; i < HK_ARRAY_LENGTH(states); i++)
    fprintf(f, "hocket_processes{state=\"%s\"} %d\n", states[i], n[i]);
  text_head(f, "hocket_ranks_left_out", "gauge", "Ranks without metrics: a process or this host has too many.");
  fprintf(f, "hocket_ranks_left_out %d\n", h->left_out);
}

hk_status hk_metrics_write(FILE *to, const void *none) {
  text_host h = {.nranks = 0};
  (void)none;
  const hk_status rc = text_collect(&h);
  if (rc == HK_OK) {
    text_operations(to, &h, true, "hocket_collective_calls_total", "counter", text_calls, "Collectives begun.");
    text_operations(to, &h, true, "hocket_collective_bytes_total", "counter", text_bytes,
                    "Bytes of their messages, as nccl-tests gives sizes.");
    text_operations(to, &h, true, "hocket_collective_bus_bytes_total", "counter", text_bus_bytes,
                    "The same times the factor of the bus bandwidth.");
    text_operations(to, &h, true, "hocket_collective_seconds_total", "counter", text_seconds,
                    "Time in them, estimated from samples; ranks on host memory only.");
    text_operations(to, &h, true, "hocket_bus_bandwidth_gbs", "gauge", text_bandwidth,
                    "Bus bandwidth since the communicator began, GB/s.");
    text_operations(to, &h, false, "hocket_p2p_calls_total", "counter", text_calls, "Sends, receives and puts begun.");
    text_operations(to, &h, false, "hocket_p2p_bytes_total", "counter", text_bytes, "Bytes of their messages.");
    text_ranks(to, &h);
    text_processes(to, &h);
  }
  hk_status_list_free(h.processes, h.nprocesses);
  free(h.ranks);
  return rc;
}
