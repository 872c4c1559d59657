/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's entry: programs, channels and chunk of one collective, and its run. */
#include "sim.h"
#include <stdlib.h>
#include <string.h>
#include "../decide/select.h"
#include "../program/layout.h"
#include "../program/quantised.h"
#include "run.h"
#include "simulator.h"

/* A switch has slots for a few channels, and a launch a few blocks of threads. */
static hk_status sim_limit_channels(hk_sim *s, const hk_simulator *x) {
  const hk_program *p;
  if (s->options->block_part > 0) return HK_OK;
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
  hk_sim_take_constants(s, x, d->protocol);
  /* No more channels than chunks. */
  size_t chunks = (s->sizes.longest + s->sizes.chunk - 1) / s->sizes.chunk;
  if (chunks < 1) chunks = 1;
  if ((size_t)s->channels > chunks) s->channels = (int)chunks;
  s->all_channels = s->channels;
  s->alike = 1;
  double far_links;
  HK_OR_RETURN(sim_count_far_links(s, &far_links));
  s->coarse = !o->exact && (o->folded || x->nranks > HK_SIM_EVENT_RANKS || far_links > HK_SIM_EVENT_LINKS);
  if (s->coarse) HK_OR_RETURN(sim_fold_channels(s));
  if (x->c->nhosts > 1 && (s->coarse || o->folded)) HK_OR_RETURN(hk_fold(&s->cluster, &s->programs, o->shifted));
  s->timeline.kept = o->timeline && !s->coarse;
  HK_OR_RETURN(hk_sim_cluster_furnish(&s->cluster));
  return hk_sim_wire(s);
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
    if (!hk_quantised_coll(coll) || x->machine.team.overlap)
      return HK_FAIL(HK_ERR_ARGUMENT, "%s of %s: only an allreduce of ranks on CPUs can be quantised",
                     hk_coll_name(coll), x->c->name);
    quantised = *x;
    hk_machine_quantise(&quantised.machine, sizeof(float));
    x = &quantised;
  }
  HK_TRY(hk_sim_choose(x, coll, bytes, o, &d), out);
  HK_TRY(sim_prepare(&s, x, &d, coll, bytes, o), out);
  HK_TRY(s.coarse ? hk_sim_coarse(&s) : hk_sim_loop(&s), out);
  rc = hk_sim_report(&s, x, &d, bytes, o->graph, out);
out:
  hk_sim_clear(&s);
  if (rc != HK_OK) hk_sim_result_clear(out);
  return rc;
}
