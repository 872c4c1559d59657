/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The price if links move bytes by themselves and lanes run in parallel (GPUs). Two bounds, as in the simulator's flow
 * level (src/sim/coarse.c):
 *
 *   alone   no contention: messages one after another, and the bytes of the busiest lane at its own speed; or the time
 *           of the busiest link or memory, if that is longer
 *   shared  the messages, and then all bytes at the speed of the busiest link
 *
 * The actual time is nearer to the lower one: HK_GPU_SHARED.
 */
#include <math.h>
#include "cost.h"
#include "gpu.h"

/* Messages in a row, and what one more wave adds. */
typedef struct delay {
  double first, again;
} delay;

static double cost_gpu_or_else(double x, double otherwise) { return x > 0 ? x : otherwise; }

/* `bytes`: of a message; `pace`: a lane's time for a byte. */
static delay cost_gpu_delays(const hk_machine *m, const hk_shape *s, const hk_work *w, double far_part, double bytes,
                             double pace, double *far_chain) {
  double lane_us = HK_GPU_INSTR_US + HK_GPU_SYNC_LANE * m->sync_us;
  double chain = cost_gpu_or_else(w->gpu.chain, w->rounds), turns = cost_gpu_or_else(w->gpu.turns, chain);
  double far = m->nhosts > 1 ? cost_gpu_or_else(w->gpu.far_chain, far_part * chain) : 0;
  double alpha = cost_gpu_or_else(m->traffic[w->gpu.traffic].alpha_us, m->inside.alpha_us);
  double inside = alpha + m->sync_us, between = m->between.alpha_us + hk_far_sync_us(m, bytes);
  double us = (chain - far) * inside + far * between, all = cost_gpu_or_else(w->gpu.all_turns, turns);
  delay d = {.first = us + fmax(0, all - chain) * lane_us};
  /* A lane that does not wait for its own messages runs ahead while it has free slots. */
  double credit = 2 * (far > 0 ? between : inside) / m->nslots;
  /* its bytes move while other credits return */
  if (s->switched) credit = 2 * inside / HK_GPU_SWITCH_SLOTS - bytes * pace;
  double ahead = fmax(turns * lane_us, credit);
  d.again = w->again >= w->rounds ? d.first : ahead;
  *far_chain = far;
  return d;
}

/* If all send to all, messages that meet at one port delay others: simulated ports are idle for a sixth to a quarter of
 * the time. */
#define MEET 1.2

#define ROUNDING 1e-6

/* The limit of the phase shift between channels for many waves, and the number of waves after the first that reach half
 * of it. Fitted to simulated times of a DGX-1, 1 to 128 waves. */
#define APART 0.9
#define APART_WAVES 4

/* The factor (at most 1) on the time of a byte if channels run out of phase. One or two channels run in the same step.
 * Further channels are in other steps and use links that the rest leave idle. Each wave increases the phase shift,
 * because a step with a full link delays its channels. `gain`: time of a byte in steps, divided by its time if all
 * steps are under way at once; the effect needs more channels than that. Data that is handed down from the root of a
 * tree begins in phase: a rank passes a wave on only after it has received it. */
static double cost_gpu_apart(const hk_machine *m, hk_traffic_kind kind, double gain, double waves) {
  const double few = fmax(2, gain) / m->channels, begin = kind == HK_TRAFFIC_HANDOUT ? 0 : HK_GPU_SHARED;
  const double drift = (waves - 1) / (waves - 1 + APART_WAVES);
  return few < 1 ? pow(gain, -(1 - few) * (begin + (APART - begin) * drift)) : 1;
}

/* A byte inside the host, on the fullest link. */
static double cost_gpu_inside_us(const hk_machine *m, const hk_work *w, double waves) {
  const hk_traffic *t = &m->traffic[w->gpu.traffic];
  bool ring = w->spread == HK_SPREAD_RING;
  double scattered = ring ? w->gpu.scattered : 1;
  double plain = (1 - scattered) * m->inside.ring_us_per_b + scattered * m->inside.mesh_us_per_b;
  double all = cost_gpu_or_else(t->us_per_b, plain);
  if (t->apart_us_per_b > 0) all *= cost_gpu_apart(m, w->gpu.traffic, all / t->apart_us_per_b, waves);
  if (all <= 0 || t->one_us_per_b <= all) return all;
  /* Extra channels reuse ring orders. */
  double c = m->channels, orders = t->one_us_per_b / all;
  return t->one_us_per_b * ceil(c / orders - ROUNDING) / c;
}

/* The busiest link's or memory's time. */
static double cost_gpu_busiest(const hk_machine *m, const hk_work *w, const hk_split *at, double waves) {
  bool ring = w->spread == HK_SPREAD_RING, rail = ring || w->spread == HK_SPREAD_GIVEN;
  double memory = w->written * m->copy_us_per_b + w->reduced * m->gamma_us_per_b;
  double inside = at->near * cost_gpu_inside_us(m, w, waves);
  double between = at->out * (rail ? m->between.ring_us_per_b : m->between.mesh_us_per_b);
  if (w->spread == HK_SPREAD_MESH) between *= MEET;
  /* On each channel, a ring leaves its host at one rank. */
  double even = at->out / (ring ? m->channels : m->ranks_per_host), one = cost_gpu_or_else(w->gpu.out_one, even);
  if (m->nhosts > 1) between = fmax(between, one * m->between.one_us_per_b);
  return fmax(fmax(memory, inside), between);
}

/* True if the kernel of small messages runs it. sync_us is 0 only with LL. */
static bool cost_gpu_is_small(const hk_machine *m, const hk_work *w, size_t own, double waves) {
  return w->gpu.one_shot && m->nranks <= HK_GPU_SMALL_SOURCES && m->nhosts <= 1 && m->sync_us <= 0 && waves <= 1 &&
         own <= HK_GPU_LL_MAX;
}

double hk_price_gpu(const hk_machine *m, const hk_shape *s, const hk_work *w) {
  hk_machine fewer; /* a switch has slots for this number of channels: more channels change nothing */
  if (s->switched && m->channels > HK_GPU_SWITCH_CHANNELS) {
    fewer = *m;
    fewer.channels = HK_GPU_SWITCH_CHANNELS;
    m = &fewer;
  }
  double channels = m->channels;
  size_t own = (w->block + (size_t)m->channels - 1) / (size_t)m->channels, chunk = hk_chunk(m, s, own);
  double waves = own > chunk ? (double)((own + chunk - 1) / chunk) : 1, far_chain;
  hk_split at = hk_split_work(m, w);
  const double pace = fmax(m->channel_us_per_b, m->inside.one_us_per_b), message = fmin((double)chunk, (double)own);
  delay d = cost_gpu_delays(m, s, w, w->rounds > 0 ? at.far_rounds / w->rounds : 0, message, pace, &far_chain);
  double latency = d.first + (waves - 1) * d.again;
  double part = s->depth > 1 ? (waves + s->depth - 1) / waves : 1; /* a byte waits for those before it on its way */
  double lane = cost_gpu_or_else(w->gpu.lane, w->sent);
  double more = fmax(0, cost_gpu_or_else(w->gpu.lanes, lane) - lane), fill = more / waves / channels * pace;
  double after = cost_gpu_or_else(w->gpu.after, more) / waves / channels * pace;
  /* Data for another host is first put into a slot and sent from there. */
  double part_us = message * m->between.one_us_per_b;
  /* If a lane has only one message, all channels use a port at the same time, except for the shift of their
   * beginnings. */
  if (w->spread == HK_SPREAD_CUBE && w->gpu.chain <= 0)
    part_us = fmax(part_us, channels * part_us - HK_GPU_STAGGER_US * (channels - 1));
  double hop = far_chain * part_us;
  double alone = lane / channels * pace * part + fill + (w->again >= w->rounds ? waves * hop : hop);
  double need = cost_gpu_busiest(m, w, &at, waves), unsent = w->gpu.unsent / channels * pace;
  double tail = s->depth > 1 && m->nhosts <= 1 ? d.first : 0; /* the last byte also passes all ranks */
  double low = fmax(latency + alone, need + tail + after), high = latency + fmax(alone, need * part + unsent + after);
  double us = pow(low, 1 - HK_GPU_SHARED) * pow(fmax(low, high), HK_GPU_SHARED);
  if (cost_gpu_is_small(m, w, own, waves)) us -= HK_GPU_SMALL_SAVES_US;
  return m->launch_us + (channels - 1) * m->channel_us + us;
}
