/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's arithmetic.  Everything here is a function of facts that all ranks share. */
#include "cost.h"
#include <math.h>
#include "../collectives/algorithm.h"
#include "gpu.h"
#include "protocol.h"

enum {
  WAVE_BYTES = 256 << 10,  /* of a rank in shared slots for one wave: the caches then hold some waves of all ranks */
  SCRATCH_BYTES = 8 << 20, /* of one lane */
  LEAST_CHUNK = 8192,      /* below it, the cost of a message exceeds that of its bytes */
  TINY_CHUNK = 512,        /* minimum for any number of links */
  ELEMENTS = 64,           /* every chunk is a multiple of it: whole elements, whole cache lines */
  MANY_LINKS = 64,         /* more links cost extra, see cost_price */
  FEW_FAR_LINKS = 4 /* with at most so many links to other hosts, a rank's partners are neighbours: rings, trees */
};
/* The cost of a further wave, in rounds, if no rank waits for an answer: a lane sends ahead while it has free slots. */
#define AHEAD 0.25
/* The numbers from here on are fitted to sweeps of `hocket tune` on 2, 4 and 8 ranks of two cores. */
/* The most that a lane loses through memory if it sends ahead: its data has left the caches when it is read. It does
 * not run ahead if ranks take turns on the cores. AHEAD_WAVES: waves that fit into a link's slots. */
#define SPILL 0.3
#define AHEAD_WAVES 8
/* Adding a byte that arrived through a socket costs as much as this number of copies more: the kernel's copy has taken
 * the caches. */
#define SUMMED_COPIES 1
/* The kernel hands the core to a rank that waits in a socket; ranks that share memory do it themselves. */
#define SOCKET_SWITCHES 4
/* How much of the other ranks' work counts on the busiest rank's core. With 1 no rank would move to a core that has
 * less to do. The kernel moves the ranks that wait in sockets. */
#define STAYING 0.25
/* Of nearly equal prices, that of the program with fewer rounds is the lowest. If cores have no cache in common, each
 * round takes longer than the model says. */
#define ROUND_PART 0.002

double hk_far_sync_us(const hk_machine *m, double bytes) {
  return m->far_lines && bytes <= (double)m->far_lines ? bytes * HK_GPU_FAR_LINES_US : m->far_sync_us;
}

/* Data of the level goes through sockets. */
static bool cost_has_sockets(const hk_machine *m, const hk_level *l) {
  return !m->team.overlap && l->ring_us_per_b > 0;
}

/* The time until a message has arrived. */
static double cost_round_us(const hk_machine *m, const hk_level *l) {
  double k = hk_machine_crowd(m), switches = k > 1 ? ceil(k) * (cost_has_sockets(m, l) ? SOCKET_SWITCHES : 1) : 0;
  return l->alpha_us + m->sync_us + switches * m->switch_us;
}

bool hk_is_switched(const hk_machine *m, const hk_outline *o) { return m->team.overlap && o->summary.switch_span; }

/* In a pipeline a rank has few instructions in a wave, and the chain goes on over many ranks. Or messages inside hosts
 * and between them follow each other, and those of different waves overlap. */
double hk_depth(const hk_outline *o) {
  const hk_summary *s = &o->summary;
  const double rounds = s->first.rounds, longest = (double)s->most.longest;
  if (s->again.rounds || s->nranks < 3) return 1;
  if (s->first.far > 0 && s->first.far < s->first.rounds) return rounds;
  return rounds >= 2 * longest ? rounds / longest : 1;
}

double hk_between_us_per_b(const hk_machine *m, const hk_outline *o) {
  const bool scattered = o->summary.far_fan > FEW_FAR_LINKS && o->summary.most.crossing > 0;
  const double ring = m->between.ring_us_per_b;
  if (scattered || !m->team.overlap) return scattered ? m->between.mesh_us_per_b : ring;
  /* The paths of ring orders to their own ports carry these messages only, while all ports are busy with the rest. */
  return fmax(o->traffic.on_rings * ring, m->ports_us_per_b);
}

/* The most that a wave may move of a block. */
static size_t cost_largest_chunk(const hk_machine *m, const hk_outline *o) {
  const size_t links = o->summary.most.links ? o->summary.most.links : 1, scratch = o->summary.scratch;
  size_t most = hk_is_switched(m, o) ? hk_gpu_switch_slot(m->slot_bytes, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS,
                                                          m->team.ranks_per_host)
                                     : m->slot_bytes;
  if (m->team.multicast && !m->team.overlap && !m->long_waves) {
    size_t wave = WAVE_BYTES / links, least = 2 * wave < LEAST_CHUNK ? 2 * wave : LEAST_CHUNK;
    most = wave > least ? wave : least;
  }
  if (scratch && most > SCRATCH_BYTES / scratch) most = SCRATCH_BYTES / scratch;
  if (most < TINY_CHUNK) most = TINY_CHUNK;
  if (most > m->slot_bytes) most = m->slot_bytes;
  return most < ELEMENTS ? ELEMENTS : most / ELEMENTS * ELEMENTS;
}

/* A pipeline of d ranks takes (d - 1 + block / c) steps of (a + c t): the best c is sqrt(block a / ((d - 1) t)). */
static double cost_pipelined_chunk(const hk_machine *m, const hk_outline *o, double depth, double block) {
  const bool far = o->summary.first.far > 0;
  const hk_level *l = far ? &m->between : &m->inside;
  /* Ranks of a host that send to other hosts at the same time share its ports. */
  const double sharers = far ? (double)o->summary.leaving / (double)o->summary.most.carried[HK_BETWEEN]
                             : hk_machine_crowd(m);
  double byte_us = ((m->team.overlap ? 0 : 2 * m->copy_us_per_b * hk_machine_crowd(m)) + l->ring_us_per_b * sharers) *
                   m->channels;
  if (byte_us < m->channel_us_per_b) byte_us = m->channel_us_per_b;
  double c = sqrt(block * cost_round_us(m, l) / ((depth - 1) * (byte_us > 0 ? byte_us : 1e-6)));
  return c > LEAST_CHUNK ? c : LEAST_CHUNK;
}

size_t hk_chunk_within(const hk_machine *m, const hk_outline *o, size_t block, size_t most) {
  const double depth = hk_depth(o);
  if (depth > 1) {
    double c = cost_pipelined_chunk(m, o, depth, (double)block);
    if (c < (double)most) most = hk_round_up((size_t)c, ELEMENTS);
  }
  if (block <= most) return block ? hk_round_up(block, ELEMENTS) : ELEMENTS;
  size_t waves = (block + most - 1) / most; /* all of nearly equal size, instead of a short one at the end */
  return hk_round_up((block + waves - 1) / waves, ELEMENTS);
}

size_t hk_chunk(const hk_machine *m, const hk_outline *o, size_t block) {
  return hk_chunk_within(m, o, block, cost_largest_chunk(m, o));
}

static double cost_waves(const hk_machine *m, const hk_outline *o, double block) {
  const double own = ceil(block / m->channels);
  return fmax(1, ceil(own / (double)hk_chunk(m, o, (size_t)own)));
}

/* The extra time of bytes because ranks wait for one another, or do not wait, as a factor. */
static double cost_waiting(const hk_machine *m, const hk_outline *o, double waves) {
  const bool ahead = !cost_has_sockets(m, &m->inside) && hk_machine_crowd(m) <= 1 && o->summary.again.rounds == 0 &&
                     !o->summary.one_way;
  return ahead ? 1 + SPILL * (waves - 1) / (waves - 1 + AHEAD_WAVES) : 1;
}

/* The work of a rank's core in one operation. */
static double cost_work(const hk_machine *m, const hk_outline *o, const hk_volume *v, double block, double waves) {
  const double near = (double)(v->sent[HK_INSIDE] + v->received[HK_INSIDE]);
  const double gamma = m->gamma_us_per_b + (cost_has_sockets(m, &m->inside) ? SUMMED_COPIES * m->copy_us_per_b : 0);
  const double moved = (double)(v->carried[HK_INSIDE] + v->taken[HK_INSIDE]);
  const double byte_us = (double)v->written * m->copy_us_per_b + (double)v->reduced * gamma +
                         moved / 2 * m->inside.mesh_us_per_b;
  /* A socket takes successive messages by one system call. */
  const double calls = cost_has_sockets(m, &m->inside) ? (double)v->bursts[HK_INSIDE] : near;
  const double messages_us = calls * m->inside.message_us + (double)v->bursts[HK_BETWEEN] * m->between.message_us;
  const double links_us = (double)v->links * m->inside.link_us;
  return links_us + waves * messages_us + block * byte_us * cost_waiting(m, o, waves);
}

/* The work of the core that has most. */
static double cost_busiest(const hk_machine *m, const hk_outline *o, double block, double waves) {
  const double crowd = hk_machine_crowd(m), n = o->summary.nranks;
  const double most = cost_work(m, o, &o->summary.most, block, waves);
  const double all = cost_work(m, o, &o->summary.all, block, waves);
  const double even = fmax(most, crowd * all / n);
  if (crowd <= 1 || cost_has_sockets(m, &m->inside)) return even;
  return even + STAYING * (most + (crowd - 1) * fmax(0, all - most) / (n - 1) - even);
}

/* The time of a chain of messages. */
static double cost_chain_us(const hk_machine *m, hk_chain c) {
  return (c.rounds - c.far) * cost_round_us(m, &m->inside) + c.far * cost_round_us(m, &m->between);
}

static double cost_price(const hk_machine *m, const hk_outline *o, double block) {
  if (m->team.overlap) return hk_price_gpu(m, o, block);
  const hk_summary *s = &o->summary;
  /* Calls follow one another. If no rank waits for an answer, the ranks of a host run ahead: a call is like a further
   * wave of the previous one, which adds no wait, a pipeline stays full, and ranks hand over their core only after much
   * work. */
  const bool ahead = s->one_way && m->team.nhosts <= 1;
  const double waves = cost_waves(m, o, block);
  const double part = ahead ? 1 : (waves + hk_depth(o) - 1) / waves;
  const double work = cost_busiest(m, o, block, waves);
  const double rounds = fmax(1, s->first.rounds);
  double first = cost_chain_us(m, s->first), again = cost_chain_us(m, s->again);
  if (!s->again.rounds) again = first / rounds * fmin(1, AHEAD * rounds);
  if (ahead) {
    first = s->first.rounds * m->inside.alpha_us;
    again = 0;
  }
  double us = m->launch_us + first + (waves - 1) * again + part * work;
  us += part * (double)s->leaving * block * hk_between_us_per_b(m, o);
  us *= 1 + ROUND_PART * s->first.rounds;
  /* Every link needs memory for slots, and between hosts a connection. So many links are chosen only for a clear
   * gain. */
  if (s->most.links > MANY_LINKS)
    us += (double)(s->most.links - MANY_LINKS) * 2 * (s->first.far ? m->between.alpha_us : m->inside.alpha_us);
  return us;
}

hk_status hk_algorithm_price(const hk_machine *m, const hk_algorithm *a, hk_coll coll, size_t bytes, double *us) {
  const hk_outline *o;
  HK_OR_RETURN(hk_outlines_get(m->outlines, a, coll, &o));
  const bool can = o && (!m->quantised || o->summary.quantises);
  *us = can ? cost_price(m, o, (double)bytes / fmax(1, o->summary.blocks)) : INFINITY;
  return HK_OK;
}

hk_status hk_algorithm_least(const hk_machine *m, const hk_algorithm *a, hk_coll coll, size_t bytes, double *us,
                             uint64_t *work) {
  const hk_load *l;
  *us = 0;
  *work = 0;
  if (!m->team.overlap || m->team.nranks < 2) return HK_OK;
  HK_OR_RETURN(hk_outlines_load(m->outlines, a, coll, &l));
  if (!l->blocks) return HK_OK;
  *us = hk_price_gpu_least(m, l, (double)bytes / l->blocks);
  *work = l->work * (uint64_t)m->team.nranks;
  return HK_OK;
}

hk_machine hk_machine_as(const hk_machine *m, hk_protocol protocol, int channels) {
  const hk_protocol_info *p = &hk_protocols[protocol];
  hk_machine as = *m;
  hk_level *levels[2] = {&as.inside, &as.between};
  for (int i = 0; i < 2; i++) {
    hk_level *l = levels[i];
    l->ring_us_per_b /= p->efficiency;
    l->mesh_us_per_b /= p->efficiency;
    l->one_us_per_b /= p->efficiency;
  }
  as.wire = m->wire / p->efficiency;
  as.ports_us_per_b /= p->efficiency;
  as.sync_us *= p->sync;
  as.copy_us_per_b /= p->efficiency;
  as.gamma_us_per_b /= p->efficiency;
  as.channel_us_per_b /= p->copy;
  as.channels = channels;
  as.far_lines = m->team.overlap && protocol == HK_PROTO_LL ? HK_GPU_LL_NET_MAX : 0;
  if (m->team.overlap) as.slot_bytes = hk_gpu_slot_carries(m->slot_bytes, protocol);
  return as;
}
