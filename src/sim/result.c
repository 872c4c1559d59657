/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulation gives: times, the busiest links, the timeline. */
#include <stdlib.h>
#include <string.h>
#include "../collectives/algorithm.h"
#include "../decide/gpu.h"
#include "../decide/select.h"
#include "run.h"
#include "simulator.h"

static int result_by_use(const void *a, const void *b) {
  const hk_sim_load *x = a, *y = b;
  return x->used != y->used ? (x->used < y->used) - (x->used > y->used) : strcmp(x->name, y->name);
}

enum { LOADS = 32 };

/* The busiest resources. Names are made only for these. */
static hk_status result_report_loads(const hk_sim *s, hk_sim_result *out) {
  const hk_net *net = &s->cluster.net;
  uint32_t best[LOADS], n = 0;
  double used[LOADS];
  for (uint32_t i = 0; i < net->nresources; i++) {
    double x = net->resources[i].carried / net->resources[i].capacity;
    if (x <= 0 || (n == LOADS && x <= used[n - 1])) continue;
    uint32_t at = n < LOADS ? n++ : LOADS - 1;
    for (; at && used[at - 1] < x; at--) {
      used[at] = used[at - 1];
      best[at] = best[at - 1];
    }
    used[at] = x;
    best[at] = i;
  }
  out->loads = calloc(n, sizeof *out->loads);
  if (!out->loads) return HK_FAIL_ERRNO("no memory for the table of links");
  for (uint32_t i = 0; i < n; i++) {
    hk_sim_load *l = &out->loads[i];
    hk_sim_cluster_name(&s->cluster, best[i], l->name, sizeof l->name);
    l->gbps = net->resources[best[i]].capacity / 1000;
    l->used = s->finished > 0 ? used[i] / s->finished : 0;
  }
  qsort(out->loads, n, sizeof *out->loads, result_by_use);
  out->nloads = n;
  return HK_OK;
}

/* True if the kernel of small messages runs it. */
static bool result_is_small(hk_sim *s, const hk_simulator *x, const hk_decision *d) {
  const hk_program *p;
  const size_t total = s->sizes.longest, chunk = s->sizes.chunk;
  return s->gpu && d->protocol == HK_PROTO_LL && x->nranks <= HK_GPU_SMALL_SOURCES && x->machine.team.nhosts <= 1 &&
         (total < chunk ? total : chunk) <= HK_GPU_LL_MAX && total <= chunk * (size_t)s->all_channels &&
         hk_programs_get(&s->programs, 0, 0, &p) == HK_OK && p->traits.one_shot;
}

hk_status hk_sim_report(hk_sim *s, const hk_simulator *x, const hk_decision *d, size_t bytes, bool graph,
                        hk_sim_result *out) {
  out->us = s->finished + (s->gpu ? x->machine.launch_us + HK_GPU_CHANNEL_US * (s->all_channels - 1) : 0);
  if (result_is_small(s, x, d)) out->us -= HK_GPU_SMALL_SAVES_US;
  if (s->gpu && graph) out->us -= HK_GPU_GRAPH_SAVES_US;
  out->priced_us = d->us;
  out->algbw = out->us > 0 ? (double)bytes / out->us / 1000 : 0;
  out->busbw = out->algbw * hk_coll_bus_factor(s->coll, x->nranks);
  strcpy(out->algorithm, "");
  strncat(out->algorithm, d->algorithm->name, sizeof out->algorithm - 1);
  out->protocol = (int)d->protocol;
  out->channels = s->all_channels;
  out->chunk = s->sizes.chunk;
  out->nranks = x->nranks;
  out->steps = s->steps;
  out->counts = s->counts;
  out->folded = s->coarse;
  out->spans = s->timeline.spans;
  out->nspans = s->timeline.n;
  s->timeline.spans = NULL;
  return result_report_loads(s, out);
}

void hk_sim_result_clear(hk_sim_result *r) {
  free(r->loads);
  free(r->spans);
  memset(r, 0, sizeof *r);
}

hk_status hk_sim_trace(const hk_sim_result *r, FILE *to) {
  fprintf(to, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
  for (uint32_t i = 0; i < r->nspans; i++) {
    const hk_sim_span *x = &r->spans[i];
    fprintf(to, "{\"name\":\"instr %u wave %u\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%u,\"tid\":%u}%s\n",
            x->instr, x->wave, x->begin_us, x->end_us - x->begin_us, x->rank, x->lane, i + 1 < r->nspans ? "," : "");
  }
  fprintf(to, "]}\n");
  return ferror(to) ? HK_FAIL_ERRNO("cannot write the timeline") : HK_OK;
}
