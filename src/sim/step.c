/* SPDX-License-Identifier: Apache-2.0 */
/* One instruction as one flow. Its sources and destinations are streamed through the lane together, so the slowest of
 * them sets the pace: a byte of payload is a use of every link and memory that it touches.
 *
 * GPU: data for a GPU of the host is stored into that GPU's memory, over the links of the path. Data for another host
 * is put into a slot here, and a flow of its own (hk_sim_queue) sends it later. CPU: the core's time is the limit. A
 * rank's reads of another NUMA node's memory cross the links between the nodes. */
#include "model.h"
#include "run.h"

/* CPU: true if the instruction sends references on links inside the host. */
static bool step_refers(const hk_sim *s, const hk_lane_state *t, size_t bytes) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *o = hk_lane_operands(t);
  if (s->gpu || bytes < HK_REF_MIN_BYTES || s->options->quantised || i->flags & HK_INSTR_COPY || !i->nsrc) return false;
  for (unsigned k = 0; k < i->ndst; k++)
    if (o[k].space == HK_OUT) return true;
  const hk_operand *source = &o[i->ndst];
  return i->nsrc == 1 && (source->space == HK_IN || source->space == HK_OUT);
}

typedef struct work {
  hk_sim *s;
  hk_lane_state *t;
  hk_flow *f;
  bool fused; /* the switch adds the data from the others' memories */
} work;

static hk_status step_use(const work *w, uint32_t resource, double weight) {
  if (resource == HK_SIM_NONE) return HK_OK;
  return hk_flow_use(&w->s->cluster.net, w->f, resource, weight);
}

static hk_side *step_side_of(const work *w, const hk_operand *o) { return hk_lane_side(w->s, w->t, o); }

static hk_status step_use_route(const work *w, const hk_side *e, double weight) {
  for (uint32_t i = 0; i < e->nuses; i++) {
    const hk_use *u = &w->s->uses[e->first_use + i];
    HK_OR_RETURN(step_use(w, u->resource, u->weight * weight));
  }
  return HK_OK;
}

/* ---- GPUs ---- */

static hk_status step_use_switch(const work *w, int rank, bool down) {
  const hk_sim_cluster *cluster = &w->s->cluster;
  const double part = hk_gpu_in_switch(hk_sim_cluster_node(cluster, rank)->gpu.sm);
  return step_use(w, hk_sim_cluster_switch_edge(cluster, rank, down), w->s->wire / part);
}

/* A store that the switch copies to all. */
static hk_status step_multicast(const work *w, const hk_side *e) {
  const hk_sim_cluster *cluster = &w->s->cluster;
  HK_OR_RETURN(step_use_switch(w, w->t->rank, false));
  HK_OR_RETURN(step_use_switch(w, w->t->rank, true));
  for (uint32_t i = 0; i < e->ntargets; i++) {
    int rank = w->s->threads[w->s->sides[w->s->targets[e->first_target + i]].thread].rank;
    HK_OR_RETURN(step_use_switch(w, rank, true));
    HK_OR_RETURN(step_use(w, hk_sim_cluster_memory(cluster, rank), w->s->wire));
  }
  return HK_OK;
}

/* A sum that the switch makes for this rank, of the data in all ranks' memories. */
static hk_status step_load_sum(const work *w) {
  const hk_sim_cluster *cluster = &w->s->cluster;
  for (int rank = 0; rank < cluster->nranks; rank++) {
    HK_OR_RETURN(step_use_switch(w, rank, false));
    HK_OR_RETURN(step_use(w, hk_sim_cluster_memory(cluster, rank), 1));
  }
  return step_use_switch(w, w->t->rank, true);
}

static hk_status step_gpu_source(const work *w, const hk_operand *o) {
  const hk_sim_cluster *cluster = &w->s->cluster;
  uint32_t memory = hk_sim_cluster_memory(cluster, w->t->rank);
  if (o->space != HK_LINK) {
    if (w->fused) HK_OR_RETURN(step_use_switch(w, w->t->rank, false));
    return step_use(w, memory, 1);
  }
  const hk_side *e = step_side_of(w, o);
  if (e->summed) return step_load_sum(w);
  if (!w->fused || e->multicast || !e->switched) return step_use(w, memory, w->s->wire);
  HK_OR_RETURN(step_use(w, hk_sim_cluster_memory(cluster, e->peer), 1));
  return step_use_switch(w, e->peer, false);
}

static hk_status step_gpu_destination(const work *w, const hk_operand *o) {
  const hk_sim_cluster *cluster = &w->s->cluster;
  if (o->space != HK_LINK) return step_use(w, hk_sim_cluster_memory(cluster, w->t->rank), 1);
  const hk_side *e = step_side_of(w, o);
  if (e->multicast) return step_multicast(w, e);
  if (e->summed || e->switched) return step_use(w, hk_sim_cluster_memory(cluster, w->t->rank), 1);
  if (e->queue) return step_use(w, hk_sim_cluster_memory(cluster, w->t->rank), w->s->wire);
  hk_status rc = step_use_route(w, e, w->s->wire);
  return rc == HK_OK ? step_use(w, hk_sim_cluster_memory(cluster, e->peer), w->s->wire) : rc;
}

static hk_status step_gpu_uses(work *w, const hk_instr *i, const hk_operand *o) {
  unsigned links = 0;
  for (unsigned k = i->ndst; k < (unsigned)i->ndst + i->nsrc; k++)
    links += o[k].space == HK_LINK && step_side_of(w, &o[k])->switched && !step_side_of(w, &o[k])->multicast &&
             !step_side_of(w, &o[k])->summed;
  w->fused = i->flags & HK_INSTR_IN_SWITCH && links;
  for (unsigned k = 0; k < i->ndst; k++) HK_OR_RETURN(step_gpu_destination(w, &o[k]));
  for (unsigned k = 0; k < i->nsrc; k++) HK_OR_RETURN(step_gpu_source(w, &o[i->ndst + k]));
  if (w->fused) HK_OR_RETURN(step_use_switch(w, w->t->rank, true));
  return HK_OK;
}

/* ---- CPUs ---- */

static hk_status step_cpu_uses(const work *w, const hk_instr *i, const hk_operand *o, bool refers, double *limit) {
  const hk_sim_cluster *cluster = &w->s->cluster;
  unsigned written = 0;
  for (unsigned k = 0; k < i->ndst; k++) written += o[k].space != HK_LINK || !refers || step_side_of(w, &o[k])->queue;
  double us = written ? written * w->s->core_copy + (i->nsrc - 1) * w->s->core_add : 0;
  if (us <= 0) {
    *limit = 0;
    return HK_OK;
  }
  *limit = 1 / us;
  HK_OR_RETURN(step_use(w, hk_sim_cluster_cores(cluster, w->t->rank), us));
  if (w->s->cached) return HK_OK;
  HK_OR_RETURN(step_use(w, hk_sim_cluster_memory(cluster, w->t->rank), written));
  for (unsigned k = i->ndst; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (o[k].space == HK_LINK) HK_OR_RETURN(step_use_route(w, step_side_of(w, &o[k]), w->s->wire));
    HK_OR_RETURN(step_use(
        w, hk_sim_cluster_memory(cluster, o[k].space == HK_LINK ? step_side_of(w, &o[k])->peer : w->t->rank), 1));
  }
  return HK_OK;
}

double hk_step_us(const hk_sim *s, const hk_lane_state *t) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *source = hk_lane_operands(t) + i->ndst;
  const bool sum = i->nsrc && source->space == HK_LINK && hk_lane_side(s, t, source)->summed;
  return s->lane_us + (sum ? HK_GPU_SWITCH_LOAD_US : 0);
}

hk_status hk_step_uses(hk_sim *s, hk_lane_state *t, size_t bytes, double *limit) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *o = hk_lane_operands(t);
  work w = {.s = s, .t = t, .f = &t->flow};
  hk_flow_reset(&t->flow);
  t->refers = step_refers(s, t, bytes);
  if (!s->gpu) return step_cpu_uses(&w, i, o, t->refers, limit);
  *limit = s->lane_rate;
  hk_status rc = step_gpu_uses(&w, i, o);
  if (t->flow.n == 0) *limit = 0;
  return rc;
}
