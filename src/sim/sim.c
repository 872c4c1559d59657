/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's entry: choice of algorithm, protocol, channels and chunk, and the result. */
#include "sim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../decide/cost.h"
#include "../decide/protocol.h"
#include "../decide/select.h"
#include "../program/layout.h"
#include "../topo/paths.h"
#include "../topo/search.h"
#include "model.h"
#include "run.h"

struct hk_simulator {
  const hk_cluster *c;
  hk_placement *placements;
  int nranks;
  hk_paths **paths;    /* [c->nkinds] */
  hk_channels **rings; /* [c->nkinds]; entries may be NULL */
  hk_machine machine;
  hk_layout *layout;
};

/* ---- the cluster ---- */

void hk_simulator_free(hk_simulator *x) {
  if (!x) return;
  for (int k = 0; x->paths && k < x->c->nkinds; k++) hk_paths_free(x->paths[k]);
  for (int k = 0; x->rings && k < x->c->nkinds; k++) hk_channels_free(x->rings[k]);
  hk_outlines_free(x->machine.outlines);
  hk_layout_free(x->layout);
  free(x->paths);
  free(x->rings);
  free(x->placements);
  free(x);
}

/* The channels of one kind of host, if its ranks are on GPUs. */
static hk_status sim_search_rings(hk_simulator *x, int kind, int first, int n) {
  hk_status rc = HK_OK;
  uint32_t *nodes = malloc((size_t)n * sizeof *nodes);
  if (!nodes) return HK_FAIL_ERRNO("no memory for a host's %d ranks", n);
  for (int i = 0; i < n; i++) nodes[i] = x->placements[first + i].node;
  hk_search what = {.pattern = HK_PATTERN_RING, .nodes = nodes, .nranks = n, .network = x->c->nhosts > 1};
  if (n > 1 && n <= HK_SEARCH_RANKS && x->c->kinds[kind]->nodes[nodes[0]].kind == HK_NODE_GPU)
    rc = hk_search_channels(&x->rings[kind], x->paths[kind], &what);
  free(nodes);
  return rc;
}

static hk_status sim_look_at_kinds(hk_simulator *x) {
  for (int first = 0, next; first < x->nranks; first = next) {
    int host = x->placements[first].host, kind = x->c->kind_of ? x->c->kind_of[host] : 0;
    for (next = first; next < x->nranks && x->placements[next].host == host; next++) {}
    if (x->paths[kind]) continue;
    HK_OR_RETURN(hk_paths_new(&x->paths[kind], x->c->kinds[kind], NULL));
    HK_OR_RETURN(sim_search_rings(x, kind, first, next - first));
  }
  return HK_OK;
}

hk_status hk_simulator_new(hk_simulator **out, const hk_cluster *c, int ranks_per_host) {
  return hk_simulator_new_of(out, c, ranks_per_host, 0);
}

hk_status hk_simulator_new_of(hk_simulator **out, const hk_cluster *c, int ranks_per_host, int nranks) {
  hk_status rc = HK_OK;
  hk_simulator *x = *out = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for the simulator");
  x->c = c;
  HK_TRY(hk_cluster_placements(c, ranks_per_host, &x->placements, &x->nranks), out);
  if (nranks && nranks < x->nranks) x->nranks = nranks;
  if (x->nranks > HK_RANKS_MOST) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "%s has %d ranks; programs are for at most %d", c->name, x->nranks, HK_RANKS_MOST);
    goto out;
  }
  x->paths = calloc((size_t)c->nkinds, sizeof *x->paths);
  x->rings = calloc((size_t)c->nkinds, sizeof *x->rings);
  if (!x->paths || !x->rings) {
    rc = HK_FAIL_ERRNO("no memory for %d kinds of hosts", c->nkinds);
    goto out;
  }
  HK_TRY(sim_look_at_kinds(x), out);
  const hk_channels *rings = x->rings[c->kind_of ? c->kind_of[0] : 0];
  HK_TRY(hk_machine_of(&x->machine, c, x->placements, x->nranks, rings, NULL), out);
  HK_TRY(hk_layout_of(&x->layout, c, x->placements, x->nranks, rings), out);
  HK_TRY(hk_outlines_of(&x->machine.outlines, c, x->placements, &x->machine, x->layout, NULL), out);
out:
  if (rc != HK_OK) {
    hk_simulator_free(x);
    *out = NULL;
  }
  return rc;
}

int hk_simulator_ranks(const hk_simulator *x) { return x->nranks; }

void hk_simulator_forget(hk_simulator *x, const hk_algorithm *a) { hk_outlines_forget(x->machine.outlines, a); }

const char *hk_simulator_cannot(const hk_simulator *x, const hk_algorithm *a, hk_coll coll) {
  if (!(a->colls >> coll & 1u)) return "does not do this collective";
  return hk_algorithm_cannot(a, &x->machine.team, coll);
}

hk_status hk_simulator_summarize(hk_summary *out, const hk_simulator *x, const hk_algorithm *a, hk_coll coll) {
  bool barred;
  return hk_algorithm_summarize(out, a, &(hk_build){.coll = coll, .nranks = x->nranks, .layout = x->layout},
                                x->machine.nslots, SIZE_MAX, &barred);
}

/* ---- what runs ---- */

static hk_status sim_filter_algorithm(hk_filter *w, const hk_simulator *x, hk_coll coll, const char *name) {
  const hk_algorithm *const *all = hk_filter_algorithms(w), *a = NULL;
  for (int i = 0; all[i] && !a; i++)
    if (!strcmp(all[i]->name, name)) a = all[i];
  if (!a) return HK_FAIL(HK_ERR_ARGUMENT, "there is no algorithm '%s'", name);
  const char *cannot = hk_simulator_cannot(x, a, coll);
  if (cannot) return HK_FAIL(HK_ERR_ARGUMENT, "%s of %s by %s: it %s", hk_coll_name(coll), x->c->name, name, cannot);
  w->barred[coll] = 0;
  for (int i = 0; all[i]; i++)
    if (all[i] != a) w->barred[coll] |= 1u << i;
  return HK_OK;
}

static hk_status sim_decide(const hk_simulator *x, hk_coll coll, size_t bytes, const hk_sim_options *o,
                            hk_decision *out) {
  hk_filter filter = o->filter ? *o->filter : (hk_filter){.min_channels = 0};
  if (o->channels) filter.min_channels = filter.max_channels = o->channels;
  if (o->algorithm) HK_OR_RETURN(sim_filter_algorithm(&filter, x, coll, o->algorithm));
  if (o->protocol >= 0) {
    if (!(x->machine.protocols >> o->protocol & 1u)) {
      return HK_FAIL(HK_ERR_ARGUMENT, "%s is not spoken on %s", hk_protocols[o->protocol].name, x->c->name);
    }
    filter.barred_protocols[coll] = (uint8_t) ~(1u << o->protocol);
  }
  return hk_select(&x->machine, &filter, coll, bytes, out);
}

/* ---- what it costs ---- */

/* A switch has slots for a few channels, and a launch a few blocks of threads. */
static hk_status sim_limit_channels(hk_sim *s, const hk_simulator *x) {
  const hk_program *p;
  HK_OR_RETURN(hk_programs_get(&s->programs, 0, 0, &p));
  int most = p->traits.switch_span ? HK_GPU_SWITCH_CHANNELS / p->traits.switch_span : s->channels;
  const int blocks = x->machine.max_channels / (p->nlanes > p->traits.span ? p->nlanes : p->traits.span);
  if (s->options->resident && most > blocks) most = blocks;
  if (s->channels > most && hk_sim_cluster_gpu(&s->cluster, 0)) s->channels = most > 1 ? most : 1;
  return HK_OK;
}

/* The message as the executor gets it. */
static hk_status sim_launch(hk_sim *s, const hk_simulator *x, const hk_decision *d, size_t bytes) {
  const hk_program *p;
  HK_OR_RETURN(hk_programs_get(&s->programs, 0, 0, &p));
  size_t total = p->partition == HK_PART_WHOLE ? bytes / (size_t)x->nranks : bytes, block = hk_block_bytes(p, total, 1);
  hk_machine as = hk_machine_as(&x->machine, d->protocol, s->channels);
  s->nslots = x->machine.nslots;
  size_t chunk = s->options->chunk;
  if (!chunk) HK_OR_RETURN(hk_choose_chunk(&as, d->algorithm, s->coll, block, &chunk));
  s->sizes = hk_sizes_for(p, total, block, chunk ? chunk : 1);
  return HK_OK;
}

static void sim_take_constants(hk_sim *s, const hk_simulator *x, const hk_decision *d) {
  const hk_protocol_info *proto = &hk_protocols[d->protocol];
  s->gpu = hk_sim_cluster_gpu(&s->cluster, 0);
  s->wire = x->machine.wire;
  if (s->gpu) {
    s->wire = 1 / proto->efficiency;
    s->sync_us = HK_GPU_SYNC_US * proto->sync;
    s->lane_us = HK_GPU_INSTR_US + s->sync_us * HK_GPU_SYNC_LANE;
    const hk_machine as = hk_machine_as(&x->machine, d->protocol, s->channels);
    s->far_sync_us = hk_far_sync_us(&as, fmin((double)s->sizes.chunk, (double)s->sizes.longest));
    s->lane_rate = hk_gpu_lane_gbps(hk_sim_cluster_node(&s->cluster, 0)->gpu.sm) * 1000 * proto->copy;
    return;
  }
  s->lane_us = HK_SIM_CORE_US;
  s->core_copy = x->machine.copy_us_per_b;
  s->core_add = x->machine.gamma_us_per_b;
  s->cached = 2.0 * (double)s->sizes.total * x->machine.team.ranks_per_host < HK_SIM_CACHE;
  int cores = x->machine.cores_per_host;
  if (cores > 0 && x->machine.team.ranks_per_host > cores)
    s->wake_us = x->machine.switch_us * ceil((double)x->machine.team.ranks_per_host / cores);
}

/* Channels with the same programs and the same NETs do the same at flow level: one represents all. */
static hk_status sim_fold_channels(hk_sim *s) {
  const hk_program *a, *b;
  bool same = true;
  for (int k = 1; k < s->programs.norders && same; k++) {
    HK_OR_RETURN(hk_programs_get(&s->programs, 0, 0, &a));
    HK_OR_RETURN(hk_programs_get(&s->programs, 0, k, &b));
    const hk_link_need *x = hk_program_links(a), *y = hk_program_links(b);
    same = a->nlinks == b->nlinks;
    for (uint32_t i = 0; i < a->nlinks && same; i++) same = x[i].peer == y[i].peer;
  }
  int orders = same ? 1 : s->programs.norders;
  if (s->cluster.c->nhosts > 1) orders = hk_sim_cluster_turns(&s->cluster, orders);
  if (s->channels > orders) s->channels = orders;
  s->alike = (double)s->all_channels / s->channels;
  return HK_OK;
}

/* All ranks have as many links to other hosts as the first rank. */
static hk_status sim_count_far_links(hk_sim *s, double *out) {
  const hk_program *p;
  hk_status rc = hk_programs_get(&s->programs, 0, 0, &p);
  *out = 0;
  for (uint32_t i = 0; rc == HK_OK && i < p->nlinks; i++) {
    const hk_link_need *l = &hk_program_links(p)[i];
    *out += hk_link_sends((hk_link_kind)l->kind) &&
            s->cluster.placements[l->peer].host != s->cluster.placements[0].host;
  }
  *out *= (double)s->cluster.nranks * s->channels;
  return rc;
}

static hk_status sim_prepare(hk_sim *s, const hk_simulator *x, const hk_decision *d, hk_coll coll, size_t bytes,
                             const hk_sim_options *o) {
  hk_build what = {.coll = coll, .nranks = x->nranks, .layout = x->layout};
  *s = (hk_sim){.options = o, .coll = coll, .channels = d->channels};
  HK_OR_RETURN(hk_sim_cluster_init(&s->cluster, x->c, x->placements, x->nranks, x->paths, x->rings, o->seed));
  HK_OR_RETURN(hk_programs_init(&s->programs, d->algorithm, &what, x->layout ? x->layout->nchannels : 1));
  HK_OR_RETURN(sim_limit_channels(s, x));
  HK_OR_RETURN(sim_launch(s, x, d, bytes));
  sim_take_constants(s, x, d);
  /* No more channels than chunks. */
  size_t chunks = (s->sizes.longest + s->sizes.chunk - 1) / s->sizes.chunk;
  if (chunks < 1) chunks = 1;
  if ((size_t)s->channels > chunks) s->channels = (int)chunks;
  s->all_channels = s->channels;
  s->alike = 1;
  double far_links;
  HK_OR_RETURN(sim_count_far_links(s, &far_links));
  s->coarse = !o->exact && (o->folded || x->nranks > HK_SIM_EVENT_RANKS || far_links > HK_SIM_EVENT_LINKS);
  if (s->coarse) {
    HK_OR_RETURN(sim_fold_channels(s));
    if (x->c->nhosts > 1) HK_OR_RETURN(hk_fold(&s->cluster, &s->programs, o->shifted));
  }
  s->timeline.kept = o->timeline && !s->coarse;
  HK_OR_RETURN(hk_sim_cluster_furnish(&s->cluster));
  return hk_sim_wire(s);
}

/* ---- the result ---- */

static int sim_by_use(const void *a, const void *b) {
  const hk_sim_load *x = a, *y = b;
  return x->used != y->used ? (x->used < y->used) - (x->used > y->used) : strcmp(x->name, y->name);
}

enum { LOADS = 32 };

/* The busiest resources. Names are made only for these. */
static hk_status sim_report_loads(const hk_sim *s, hk_sim_result *out) {
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
  qsort(out->loads, n, sizeof *out->loads, sim_by_use);
  out->nloads = n;
  return HK_OK;
}

/* True if the kernel of small messages runs it. */
static bool sim_is_small(hk_sim *s, const hk_simulator *x, const hk_decision *d) {
  const hk_program *p;
  const size_t total = s->sizes.longest, chunk = s->sizes.chunk;
  return s->gpu && d->protocol == HK_PROTO_LL && x->nranks <= HK_GPU_SMALL_SOURCES && x->machine.team.nhosts <= 1 &&
         (total < chunk ? total : chunk) <= HK_GPU_LL_MAX && total <= chunk * (size_t)s->all_channels &&
         hk_programs_get(&s->programs, 0, 0, &p) == HK_OK && p->traits.one_shot;
}

static hk_status sim_report(hk_sim *s, const hk_simulator *x, const hk_decision *d, size_t bytes, bool graph,
                            hk_sim_result *out) {
  out->us = s->finished + (s->gpu ? x->machine.launch_us + HK_GPU_CHANNEL_US * (s->all_channels - 1) : 0);
  if (sim_is_small(s, x, d)) out->us -= HK_GPU_SMALL_SAVES_US;
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
  return sim_report_loads(s, out);
}

hk_status hk_sim_run(hk_sim_result *out, const hk_simulator *x, hk_coll coll, size_t bytes,
                     const hk_sim_options *options) {
  static const hk_sim_options defaults = {.protocol = -1};
  const hk_sim_options *o = options ? options : &defaults;
  hk_status rc = HK_OK;
  hk_sim s = {.nthreads = 0};
  hk_decision d = {.channels = 1};
  hk_simulator quantised;
  memset(out, 0, sizeof *out);
  if (o->quantised) {
    if (coll != HK_ALLREDUCE || x->machine.team.overlap)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s of %s: only an allreduce of ranks on CPUs can be quantised",
                     hk_coll_name(coll), x->c->name);
    quantised = *x;
    hk_machine_quantise(&quantised.machine, sizeof(float));
    x = &quantised;
  }
  HK_TRY(sim_decide(x, coll, bytes, o, &d), out);
  HK_TRY(sim_prepare(&s, x, &d, coll, bytes, o), out);
  HK_TRY(s.coarse ? hk_sim_coarse(&s) : hk_sim_loop(&s), out);
  rc = sim_report(&s, x, &d, bytes, o->graph, out);
out:
  hk_sim_clear(&s);
  if (rc != HK_OK) hk_sim_result_clear(out);
  return rc;
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
