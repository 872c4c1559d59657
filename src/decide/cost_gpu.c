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

/* If all send to all in each far message of the chain, messages that meet at one port delay others: simulated ports are
 * idle for a sixth to a quarter of the time. */
#define MEET 1.2

#define ROUNDING 1e-6

/* The limit of the phase shift between channels for many waves, and the number of waves after the first that reach half
 * of it. Fitted to simulated times of a DGX-1, 1 to 128 waves. */
#define APART 0.9
#define APART_WAVES 4

/* Growth of the exponent of hk_gpu_spread with a mesh's times, if a fence takes as long as a message. Fitted to
 * simulated times of MI300X, DGX-1 and a mesh of 4 V100, 16 MiB to 1 GiB. */
#define DRIFT 0.3

/* What a price is made of, for one number of channels and one protocol. */
typedef struct wave {
  double block; /* bytes of a block on all channels */
  double waves;
  double message; /* bytes of a message on one channel */
  double pace;    /* a lane's time for a byte */
  double lane_us; /* a lane's time for an instruction, without its bytes */
} wave;

/* Messages and instructions one after another. */
static double cost_gpu_chain_us(const hk_machine *m, const hk_outline *o, const wave *w, hk_chain c) {
  const double alpha = o->traffic.alpha_us > 0 ? o->traffic.alpha_us + HK_GPU_INSTR_US : m->inside.alpha_us;
  return (c.rounds - c.far) * (alpha + m->sync_us) + c.far * (m->between.alpha_us + hk_far_sync_us(m, w->message)) +
         fmax(0, c.instrs - c.rounds) * w->lane_us;
}

/* What one more wave adds. A lane that does not wait for its own messages runs ahead while it has free slots. */
static double cost_gpu_again_us(const hk_machine *m, const hk_outline *o, const wave *w) {
  const hk_summary *s = &o->summary;
  const double held = cost_gpu_chain_us(m, o, w, s->held_again);
  if (s->again.rounds) return fmax(held, cost_gpu_chain_us(m, o, w, s->again));
  const double trip = s->first.far ? m->between.alpha_us + hk_far_sync_us(m, w->message)
                                   : m->inside.alpha_us + m->sync_us;
  /* A slot is free again when its message was written, has come and was read, and the receiver's word is back. */
  const double slot = 2 * (trip + w->lane_us + w->message * w->pace);
  const double credit = (slot + (s->first.far ? w->message * m->between.one_us_per_b : 0)) / m->nslots;
  /* its bytes move while other credits return */
  return fmax(held, fmax((double)s->most.longest * w->lane_us, credit - w->message * w->pace));
}

/* Rounds in which a rank sends to one after another: `turns`, if all channels take the same step at the same time;
 * `once`, if all steps are under way at once. Lanes that share links move apart, also those of one rank that take the
 * same step: hk_gpu_spread. While a lane waits for its fence, others overtake it, so over many times they move further
 * apart. In a pipeline nothing does that: its lanes wait for each other's pieces. */
static double cost_gpu_spread(const hk_machine *m, const hk_outline *o, const wave *w, double turns, double once) {
  const hk_traffic *t = &o->traffic;
  const double orders = t->one_us / t->all_us, lanes = fmax(1, t->step_us / m->inside.one_us_per_b);
  const double sharers = lanes * m->channels / orders;
  if (sharers <= 1 || t->step_us <= 0) return turns;
  const double message_us = w->message * m->wire * t->step_us / lanes * orders;
  const double times = w->waves * t->round_once_us / t->step_us;
  const double us = hk_gpu_spread(sharers, message_us, times, turns, once);
  const double messages = HK_GPU_STAGGER_US / message_us * times; /* by which two channels are apart, at most */
  if (messages <= 1 || hk_depth(o) > 1) return us;
  const double further = HK_GPU_SPREAD * (pow(messages, DRIFT * fmin(1, m->sync_us / message_us)) - 1);
  return once + (us - once) * pow(sharers, -further);
}

/* The factor (at most 1) on the time of a byte if channels run out of phase. One or two channels run in the same round.
 * Further channels are in other rounds and use links that the rest leave idle. Each wave increases the phase shift,
 * because a round with a full link delays its channels. `gain`: time of a byte in rounds, divided by its time if all
 * rounds are under way at once; the effect needs more channels than that. */
static double cost_gpu_apart(const hk_machine *m, double gain, double waves) {
  const double few = fmax(2, gain) / m->channels;
  const double drift = (waves - 1) / (waves - 1 + APART_WAVES);
  return few < 1 ? pow(gain, -(1 - few) * (HK_GPU_SHARED + (APART - HK_GPU_SHARED) * drift)) : 1;
}

/* A block inside the host, for one byte of it, on the fullest link. */
static double cost_gpu_inside_us(const hk_machine *m, const hk_outline *o, const wave *w) {
  const hk_traffic *t = &o->traffic;
  const hk_volume *v = &o->summary.most;
  const double port = fmax((double)v->port_out, (double)v->port_in);
  if (hk_is_switched(m, o)) return port * m->inside.mesh_us_per_b * m->switch_wire;
  if (t->all_us <= 0) return port * (o->orders > 1 ? m->inside.ring_us_per_b : m->inside.mesh_us_per_b);
  double all;
  if (hk_depth(o) > 1) { /* in a pipeline, the rounds of different waves are under way at once */
    all = cost_gpu_spread(m, o, w, t->round_us + t->all_us - t->round_once_us, t->all_us);
  } else {
    all = cost_gpu_spread(m, o, w, t->turns_us, t->once_us);
    if (t->once_us > t->all_us) all *= cost_gpu_apart(m, t->once_us / t->all_us, w->waves);
  }
  all = fmax(all, t->all_us);
  if (t->one_us > all && o->orders > 1) { /* extra channels reuse ring orders */
    const double c = m->channels, orders = t->one_us / all;
    all = t->one_us * ceil(c / orders - ROUNDING) / c;
  }
  return all * m->wire;
}

/* A block between hosts, for one byte of it, on the busiest port. */
static double cost_gpu_between_us(const hk_machine *m, const hk_outline *o) {
  const hk_summary *s = &o->summary;
  const uint64_t others = (uint64_t)m->team.nhosts - 1, each = others * (uint64_t)s->first.far;
  double us = fmax((double)s->leaving, (double)s->entering) * hk_between_us_per_b(m, o);
  const bool all = s->far_fan > 1 && s->far_fan >= others && s->all.carried[HK_BETWEEN] >= (uint64_t)s->nranks * each;
  if (all && s->most.crossing > 0) us *= MEET;
  /* On each channel, another port of a host may be the busiest. */
  int k = 0;
  while (k < HK_TRAFFIC_ORDERS && 3 << k < 2 * m->channels && 2 << k <= o->traffic.ways) k++; /* the nearest 2^k */
  return fmax(us, o->traffic.far[m->channels >= o->traffic.ways ? HK_TRAFFIC_ORDERS : k] * m->between.one_us_per_b);
}

/* The busiest link's or memory's time. */
static double cost_gpu_busiest(const hk_machine *m, const hk_outline *o, const wave *w) {
  const hk_volume *v = &o->summary.most;
  const double memory = (double)v->written * m->copy_us_per_b + (double)v->reduced * m->gamma_us_per_b;
  const double between = o->summary.leaving ? cost_gpu_between_us(m, o) : 0;
  const double inside = cost_gpu_inside_us(m, o, w), most = fmax(inside, between);
  /* In one wave, what only moves inside hosts does not overlap with what moves between them, if all that does so at the
   * same time. */
  const bool apart = o->summary.first.far == 1;
  const double near = apart ? inside * o->traffic.near_alone : 0, far = apart ? between * o->traffic.far_alone : 0;
  const double one = near + far + fmax(inside - near, between - far);
  return w->block * fmax(fmax(memory, o->traffic.joint_us * m->wire), most + (one - most) / w->waves);
}

/* All channels' time for a message each at a port. `bytes_us`: of all channels, in all rounds. Those that have met in
 * the fullest step stay together. */
static double cost_gpu_meeting_us(const hk_machine *m, const hk_outline *o, const wave *w, double bytes_us) {
  const double most_us = o->traffic.joint_step_us * m->wire * w->block;
  return fmax(bytes_us / fmax(1, o->summary.first.rounds), most_us) / w->waves;
}

/* The part of this time that has passed when the first channel is through. If channels begin soon after one another,
 * many are at the port together: all end late, and then the port is idle until they come back. */
static double cost_gpu_bunched(const hk_machine *m, const hk_outline *o, const wave *w, double bytes_us) {
  const double all_us = cost_gpu_meeting_us(m, o, w, bytes_us);
  return all_us > 0 ? fmin(1, hk_gpu_first_us(all_us / m->channels) / all_us) : 1;
}

/* A lane that sends inside its host and between hosts, and waits for messages of its own, does one after the other. If
 * no other lane sends between hosts, and all channels do the same at the same time, links inside hosts are idle while
 * ports are busy, and the reverse, until channels have moved apart. The most that this adds to the busiest link's time,
 * `need`. */
static double cost_gpu_turns_us(const hk_machine *m, const hk_outline *o, const wave *w, double need) {
  const hk_summary *s = &o->summary;
  if (!s->again.rounds || !s->all.by_turns || !s->leaving) return 0;
  const double part = (double)s->all.by_turns / (double)s->all.carried[HK_INSIDE];
  const double inside = w->block * cost_gpu_inside_us(m, o, w), between = w->block * cost_gpu_between_us(m, o);
  const double more = fmin(part * fmin(inside, between), fmax(0, inside + between - need));
  return more * cost_gpu_bunched(m, o, w, need);
}

/* In a pipeline: the bytes of the first piece on the fullest link of each round of its chain, in turn, without the part
 * of `need`, which is the fullest link's time. Waves are pieces, and so are messages one after another on a link.
 * Nothing moves channels apart: their last pieces are through the fullest link together, and meet on each one after it,
 * unless each is through before the next one begins. */
static double cost_gpu_fill_us(const hk_machine *m, const hk_outline *o, const wave *w, double need) {
  const hk_traffic *t = &o->traffic;
  const hk_summary *s = &o->summary;
  const bool known = t->all_us > 0 && !hk_is_switched(m, o);
  const double near = known ? s->first.rounds - s->first.far : 1;
  const double inside = near * w->block * cost_gpu_inside_us(m, o, w) * (known ? t->near_once : 1);
  const double between = s->leaving ? s->first.far * w->block * cost_gpu_between_us(m, o) * t->far_once : 0;
  const double pieces = w->waves * (s->far_fan ? fmax(1, (double)s->most.carried[HK_BETWEEN] / s->far_fan) : 1);
  const double own_us = cost_gpu_meeting_us(m, o, w, inside + between) / m->channels;
  const double last = fmax(0, 1 - HK_GPU_STAGGER_US / own_us) * (inside * t->near_after + between * t->far_after);
  const double first = cost_gpu_bunched(m, o, w, inside + between) * (inside + between - need);
  return fmax(near * w->message * w->pace, fmax(first, last) / pieces);
}

/* The busiest link's time and that in which a pipeline fills, `fill`. If one link inside the host is the fullest in all
 * rounds, it has other pieces to move while the first one is elsewhere. Then only ports wait for the pipeline. */
static double cost_gpu_filled_us(const hk_machine *m, const hk_outline *o, const wave *w, double need, double fill) {
  const hk_traffic *t = &o->traffic;
  if (hk_is_switched(m, o) || t->all_us <= 0 || t->once_us > t->all_us * (1 + ROUNDING)) return need + fill;
  const double far = o->summary.leaving ? w->block * cost_gpu_between_us(m, o) : 0;
  return fmax(need, far + cost_gpu_fill_us(m, o, w, far));
}

/* The time of the busiest link with the times at which it is idle. A pipeline fills first: before the link's first
 * message are no more instructions than before the first one between hosts, and what a port carries before its last
 * round is under way during the chain up to there. A lane that waits for its own messages does so while the link is
 * idle, if the other lanes do the same at the same time. Else the last message is on its way afterwards. */
static double cost_gpu_idle_us(const hk_machine *m, const hk_outline *o, const wave *w, double need, double latency,
                               double fill) {
  const hk_summary *s = &o->summary;
  if (hk_depth(o) > 1) {
    const hk_traffic *t = &o->traffic;
    const double early = s->leaving ? w->block * cost_gpu_between_us(m, o) * t->far_early : 0;
    hk_chain way = s->first;
    if (way.instrs > way.rounds + t->head.instrs) way.instrs = way.rounds + t->head.instrs;
    return cost_gpu_chain_us(m, o, w, way) + cost_gpu_filled_us(m, o, w, need, fill) -
           fmin(early, cost_gpu_chain_us(m, o, w, t->early));
  }
  const double way = cost_gpu_chain_us(m, o, w, (hk_chain){.rounds = 1});
  if (!s->again.rounds) return need + way;
  /* While a message waits, the link moves others: those of other waves, and those of the same round. */
  const bool far = s->leaving && s->first.far;
  const double rounds = far ? s->first.far : s->first.rounds, again = far ? s->again.far : s->again.rounds;
  const double all = w->waves * (far ? fmax(rounds, (double)s->most.carried[HK_BETWEEN]) : rounds);
  const double overlaps = fmax(0, 1 - (rounds + (w->waves - 1) * again) / all);
  return need + fmax(way, (latency - need * overlaps) * cost_gpu_bunched(m, o, w, need));
}

/* Instructions of a rank after its last message. If all messages go to few ranks, they arrive together, and the lane
 * has all of its instructions to do afterwards. A rank that sends as many sends one after another. */
static double cost_gpu_after_us(const hk_outline *o, const wave *w, double slice) {
  const hk_volume *most = &o->summary.most;
  const double together = 1 - fmin(1, (double)most->sent[HK_ANYWHERE] / fmax(1, (double)most->received[HK_ANYWHERE]));
  return o->summary.tail * (slice / w->waves + together * w->lane_us);
}

/* The time that the busiest port is idle because senders wait for slots. At the first wait all messages that have slots
 * have passed: it lasts for a message's trip. Later waits overlap with the bytes that the slots then hold. */
static double cost_gpu_held_us(const hk_machine *m, const hk_outline *o, const wave *w) {
  const hk_summary *s = &o->summary;
  const double waits = fmax(0, cost_gpu_chain_us(m, o, w, s->held) - cost_gpu_chain_us(m, o, w, s->first));
  const double trip = cost_gpu_chain_us(m, o, w, (hk_chain){.rounds = 1, .far = 1});
  const double slots = m->nslots * w->message * m->channels * m->between.one_us_per_b;
  return fmin(waits, trip) + fmax(0, waits - trip) * fmax(0, 1 - slots / trip);
}

/* Until the last message over the busiest port has arrived, if all go between hosts at the same time. Before the first
 * one are the messages inside hosts and the lane's instructions that precede it, with their bytes of one wave. */
static double cost_gpu_ports_us(const hk_machine *m, const hk_outline *o, const wave *w) {
  const hk_chain head = o->traffic.head, way = {.rounds = 1, .far = 1};
  if (o->summary.first.far < 1) return 0;
  const double before = fmax(cost_gpu_inside_us(m, o, w) * o->traffic.near_alone, head.instrs * w->pace / m->channels);
  return cost_gpu_chain_us(m, o, w, head) + w->block * (before / w->waves + cost_gpu_between_us(m, o)) +
         cost_gpu_chain_us(m, o, w, way) + cost_gpu_held_us(m, o, w);
}

/* When the last channel begins, others move bytes. If the first messages of all channels share a link, those of the
 * last channel are through when all are: later than at a lane's own speed. `slice`: a lane's time for a block. */
static double cost_gpu_last_us(const hk_machine *m, const hk_outline *o, const wave *w, double slice) {
  const double shared = w->block * o->traffic.first_step_us * m->wire;
  return fmax((m->channels - 1) * HK_GPU_STAGGER_US, (shared - slice) / w->waves);
}

/* sync_us is 0 only with LL. */
bool hk_gpu_is_small(const hk_machine *m, const hk_outline *o, size_t block) {
  const size_t own = hk_channel_block(m, block);
  return o->summary.one_shot && m->team.nranks <= HK_GPU_SMALL_SOURCES && m->team.nhosts <= 1 && m->sync_us <= 0 &&
         own <= hk_chunk(m, o, own) && own <= HK_GPU_LL_MAX;
}

/* A lane's time for a byte. */
static double cost_gpu_pace(const hk_machine *m) { return fmax(m->channel_us_per_b, m->inside.one_us_per_b); }
/* A lane's time for an instruction, without its bytes. */
static double cost_gpu_instr_us(const hk_machine *m) { return HK_GPU_INSTR_US + HK_GPU_SYNC_LANE * m->sync_us; }

/* The time of a lane of so many instructions, each of a block, if it never waits. */
static double cost_gpu_lane_us(const hk_machine *m, double instrs, double block) {
  return instrs * (cost_gpu_instr_us(m) + block / m->channels * cost_gpu_pace(m));
}

/* The time of a lane that takes `us` if it never waits. Lanes write over the links inside their host. The fullest of
 * these is idle at some of the times at which the lane does something else, and the lane waits for it at others: the
 * more, the longer the link is full. `need`: the busiest link's time, in which the lane's waits are if it does not take
 * longer itself. */
static double cost_gpu_waits_us(const hk_machine *m, const hk_outline *o, const wave *w, double us, double need) {
  const double inside = w->block * cost_gpu_inside_us(m, o, w);
  const double leg = need > 0 ? inside * inside / fmax(need, us) : 0;
  return sqrt(us * us + leg * leg); /* hypot would need glibc 2.35 */
}

double hk_price_gpu_least(const hk_machine *m, const hk_load *l, double block) {
  const double out = fmin(m->ports_us_per_b, fmin(m->between.ring_us_per_b, m->between.mesh_us_per_b));
  const double us = fmax(cost_gpu_lane_us(m, (double)l->longest, block), (double)l->far * block * out);
  return m->launch_us + us - (m->team.nranks <= HK_GPU_SMALL_SOURCES ? HK_GPU_SMALL_SAVES_US : 0);
}

double hk_price_gpu(const hk_machine *m, const hk_outline *o, double block) {
  hk_machine fewer; /* a switch has slots for this number of channels: more channels change nothing */
  const int most = hk_is_switched(m, o) ? HK_GPU_SWITCH_CHANNELS / (int)o->summary.switch_span : m->channels;
  if (m->channels > most) {
    fewer = *m;
    fewer.channels = most > 1 ? most : 1;
    m = &fewer;
  }
  hk_outline one;
  if (m->channels == 1) { /* it has the programs of the first ring order */
    one = *o;
    one.summary.first = o->first;
    one.summary.held = o->held;
    o = &one;
  }
  const hk_summary *s = &o->summary;
  const double channels = m->channels, own = ceil(block / channels);
  const double chunk = (double)hk_chunk(m, o, (size_t)own);
  const wave w = {.block = block,
                  .waves = fmax(1, ceil(own / chunk)),
                  .message = fmin(chunk, own),
                  .pace = cost_gpu_pace(m),
                  .lane_us = cost_gpu_instr_us(m)};
  const double first = cost_gpu_chain_us(m, o, &w, s->first);
  const double latency = fmax(first, cost_gpu_chain_us(m, o, &w, s->held)) +
                         (w.waves - 1) * cost_gpu_again_us(m, o, &w);
  /* Lanes: each wave takes the longest lane's time, and the first one that of the whole chain. */
  const double slice = block / channels * w.pace; /* a block on one lane */
  const double longest = (double)s->most.longest, more = fmax(0, s->first.instrs - longest) / w.waves;
  const double lanes = s->again.rounds ? fmax(longest, s->first.instrs) : longest + more;
  /* Data for another host is first put into a slot and sent from there. */
  const double hop = w.message * m->between.one_us_per_b * s->first.far;
  const double alone = slice * lanes + (s->again.rounds ? w.waves * hop : hop);
  const double need = cost_gpu_busiest(m, o, &w), after = cost_gpu_after_us(o, &w, slice);
  const double fill = hk_depth(o) > 1 ? cost_gpu_fill_us(m, o, &w, need) : 0;
  const double idle = cost_gpu_idle_us(m, o, &w, need, latency, fill);
  const double last = cost_gpu_last_us(m, o, &w, slice);
  const double links = fmax(idle, cost_gpu_ports_us(m, o, &w)) + after;
  double lane = cost_gpu_lane_us(m, longest, block), path = last + latency + alone;
  if (hk_depth(o) > 1) lane = cost_gpu_waits_us(m, o, &w, lane, need);
  /* Lanes that wait for one another: in the first wave their instructions add up. */
  lane += fmax(0, s->busy - longest) * (w.lane_us + slice / w.waves);
  if (s->leaving && hk_is_switched(m, o)) path = cost_gpu_waits_us(m, o, &w, path, need);
  const double low = fmax(fmax(lane, path), links);
  const double turns = cost_gpu_turns_us(m, o, &w, need);
  const double high = latency + fmax(last + alone, need + turns + fill + after);
  double us = pow(low, 1 - HK_GPU_SHARED) * pow(fmax(low, high), HK_GPU_SHARED);
  if (hk_gpu_is_small(m, o, (size_t)block)) us -= HK_GPU_SMALL_SAVES_US;
  return m->launch_us + (channels - 1) * m->channel_us + us;
}
