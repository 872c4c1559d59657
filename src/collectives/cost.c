/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's arithmetic.  Everything here is a function of facts that all ranks share. */
#include "cost.h"
#include <math.h>
#include "algorithm.h"
#include "gpu.h"
#include "protocol.h"

enum {
  WAVE_BYTES = 256 << 10,  /* of a rank in shared slots for one wave: the caches then hold some waves of all ranks */
  READ_BYTES = 16 << 20,   /* of a wave that is read by reference: then ranks wait less for one another, see hk_chunk */
  SCRATCH_BYTES = 8 << 20, /* of one lane */
  LEAST_CHUNK = 8192,      /* below it, the cost of a message exceeds that of its bytes */
  TINY_CHUNK = 512,        /* minimum for any number of links */
  ELEMENTS = 64,           /* every chunk is a multiple of it: whole elements, whole cache lines */
  MANY_LINKS = 64,         /* more links cost extra, see hk_price */
  SPILL_RANKS = 6,         /* the most ranks beyond the first two that count: see SPILL_ROOT */
  AHEAD_WAVES = 8,         /* waves that fit into a link's slots */
  CACHED_BYTES = 256 << 10 /* about this number of the bytes that a rank touches in an operation are in its caches */
};
#define HOT_GAIN 0.8 /* the part of a reduction's time that is a wait for memory */
/* The maximum loss of a lane that only sends and so runs ahead: its data has left the caches when it is read. SPILL is
 * for shared memory, SPILL_SOCKETS for sockets, whose kernel buffers the lane fills. Through sockets the loss depends
 * on the machine's other load (from nothing to twice the time); this is the value without other load. SPILL_ROOT: if
 * all data goes to a root or is sent by one, the lane waits for no answer, and each further socket of the root has its
 * own buffers to fill. Measured up to 8 ranks, with which nothing is left in the caches. */
#define SPILL 0.3
#define SPILL_SOCKETS 0.05
#define SPILL_ROOT 0.12
/* Lockstep penalty of rings, chains and trees inside a host, measured. Each rank waits for one neighbour a step, so
 * they are slower by this factor than other algorithms that move the same bytes. Over sockets, the kernel's time for a
 * byte does not overlap with that of other bytes. In two trees it overlaps partly, with the other tree's bytes, and
 * fully if sums go up in one tree while they go down in the other. The values are for up to two ranks a core; with
 * more, the core is idle less, by the root of their number. Through memory the penalty applies if ranks take turns on
 * the cores. */
#define LOCKSTEP_SOCKETS 1.75
#define LOCKSTEP_TREES 1.4
#define LOCKSTEP_TURNS 1.1
/* The loss of exchanges with one rank after another (cube), over sockets and with many waves: a late rank delays half
 * of the ranks. Measured on 8 ranks; with a few waves there is no loss. */
#define LOCKSTEP_CUBE 0.3
/* Reducing a byte received over loopback TCP costs as much as this number of copies, measured: the kernel's copy into
 * the slot, the read from the slot, and the loss of cached data. */
#define SUMMED_COPIES 3

/* Ranks that share a core, at least 1. */
static double cost_crowd(const hk_machine *m) {
  double k = m->cores_per_host > 0 ? (double)m->ranks_per_host / m->cores_per_host : 1;
  return k > 1 ? k : 1;
}

double hk_far_sync_us(const hk_machine *m, double bytes) {
  return m->far_lines && bytes <= (double)m->far_lines ? bytes * HK_GPU_FAR_LINES_US : m->far_sync_us;
}

/* The time until a message has arrived. */
static double cost_round_us(const hk_machine *m, const hk_level *l) {
  double k = cost_crowd(m);
  return l->alpha_us + m->sync_us + (k > 1 ? ceil(k) * m->switch_us : 0);
}

static int cost_log2_ceil(double x) { return x > 1 ? (int)ceil(log2(x)) : 0; }

hk_split hk_split_work(const hk_machine *m, const hk_work *w) {
  double n = m->nranks, per = m->ranks_per_host, hosts = m->nhosts;
  /* Receiving from memory counts as copying. Receiving from a socket is work like sending, but only of the receiving
   * rank. */
  double received = m->overlap ? w->received : w->received / cost_crowd(m);
  hk_split s = {.near = received > w->sent ? received : w->sent};
  if (w->spread == HK_SPREAD_GIVEN) {
    s.far_rounds = w->far_rounds;
    s.out = w->out;
  } else if (hosts <= 1) {
    return s;
  } else if (w->spread == HK_SPREAD_RING) {
    s.far_rounds = w->far_rounds > 0 ? w->far_rounds : w->rounds;
    s.out = w->sent;
    if (per <= 1) s.near = 0;
  } else if (w->spread == HK_SPREAD_MESH) {
    s.far_rounds = w->rounds;
    s.out = w->sent * per * (n - per) / (n - 1);
    s.near = w->sent * (per - 1) / (n - 1);
  } else {
    double part = cost_log2_ceil(hosts) / (double)cost_log2_ceil(n > 2 ? n : 2);
    if (part > 1) part = 1;
    s.far_rounds = w->rounds * part;
    s.out = w->out > 0 ? w->out : w->sent * per * part;
    s.near = w->sent * (1 - part);
  }
  return s;
}

static size_t cost_round_down(size_t bytes, size_t to) { return bytes / to * to; }
/* The most that a wave may move of a block. */
static size_t cost_largest_chunk(const hk_machine *m, const hk_shape *s) {
  size_t most = s->switched && m->overlap
                    ? hk_gpu_switch_slot(m->slot_bytes, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS, m->nranks)
                    : m->slot_bytes;
  if (m->multicast && !m->overlap && !m->uncached) {
    size_t wave = WAVE_BYTES / s->fan, least = 2 * wave < LEAST_CHUNK ? 2 * wave : LEAST_CHUNK;
    most = wave > least ? wave : least;
  }
  if (s->scratch && most > SCRATCH_BYTES / s->scratch) most = SCRATCH_BYTES / s->scratch;
  if (most < TINY_CHUNK) most = TINY_CHUNK;
  if (most > m->slot_bytes) most = m->slot_bytes;
  most = cost_round_down(most, ELEMENTS);
  return most ? most : ELEMENTS;
}

/* A pipeline of d ranks takes (d - 1 + block / c) steps of (a + c t): the best c is sqrt(block a / ((d - 1) t)). */
static double cost_pipelined_chunk(const hk_machine *m, const hk_shape *s, double block) {
  const hk_level *l = m->nhosts > 1 ? &m->between : &m->inside;
  double link_us = m->nhosts > 1 ? l->ring_us_per_b * (s->rails ? s->rails : 1) : l->ring_us_per_b * cost_crowd(m);
  double byte_us = ((m->overlap ? 0 : 2 * m->copy_us_per_b * cost_crowd(m)) + link_us) * m->channels;
  if (byte_us < m->channel_us_per_b) byte_us = m->channel_us_per_b;
  double c = sqrt(block * cost_round_us(m, l) / ((s->depth - 1) * (byte_us > 0 ? byte_us : 1e-6)));
  return c > LEAST_CHUNK ? c : LEAST_CHUNK;
}

static size_t cost_chunk_within(const hk_machine *m, const hk_shape *s, size_t block_bytes, size_t most) {
  if (s->depth > 1) {
    double c = cost_pipelined_chunk(m, s, (double)block_bytes);
    if (c < (double)most) most = hk_round_up((size_t)c, ELEMENTS);
  }
  if (block_bytes <= most) return block_bytes ? hk_round_up(block_bytes, ELEMENTS) : ELEMENTS;
  size_t waves = (block_bytes + most - 1) / most; /* all of nearly equal size, instead of a short one at the end */
  return hk_round_up((block_bytes + waves - 1) / waves, ELEMENTS);
}

/* References take no room in slots, so their waves may be longer. Longer waves are better: a rank can be ahead of its
 * peers only by as many waves as a link has slots, and after each wave it waits for the slower of two ranks. */
size_t hk_chunk(const hk_machine *m, const hk_shape *s, size_t block_bytes) {
  return cost_chunk_within(m, s, block_bytes, s->refers && m->reads ? READ_BYTES : cost_largest_chunk(m, s));
}

static double cost_lockstep(const hk_machine *m, const hk_shape *s, const hk_work *w, bool sockets) {
  if (m->nhosts > 1 || w->spread != HK_SPREAD_RING || w->rounds <= 1) return 1;
  if (!sockets) return cost_crowd(m) > 1 && w->again >= w->rounds ? LOCKSTEP_TURNS : 1;
  bool trees = s->fan > 1;
  if (m->nranks <= 2 || (trees && w->reduced > 0 && !w->one_way)) return 1;
  return 1 + ((trees ? LOCKSTEP_TREES : LOCKSTEP_SOCKETS) - 1) * fmin(1, sqrt(2 / cost_crowd(m)));
}

/* The relative extra cost of bytes through sockets in many waves, because a lane sends ahead or because ranks wait. */
static double cost_spill_sockets(const hk_machine *m, const hk_work *w, double ahead) {
  if (m->nranks <= 2) return 0;
  if (w->spread == HK_SPREAD_CUBE && w->again >= w->rounds) return LOCKSTEP_CUBE * ahead * ahead;
  return ahead * (w->one_way ? SPILL_ROOT * fmin(m->nranks - 2, SPILL_RANKS) : SPILL_SOCKETS);
}

double hk_price(const hk_machine *m, const hk_shape *s, const hk_work *w) {
  if (m->overlap) return hk_price_gpu(m, s, w);
  size_t channels = (size_t)m->channels, block = (w->block + channels - 1) / channels;
  size_t chunk = cost_chunk_within(m, s, block, cost_largest_chunk(m, s)) * channels;
  double waves = w->block > chunk ? (double)((w->block + chunk - 1) / chunk) : 1;
  double share = w->share > 0 ? w->share : 1, links = w->links > 0 ? w->links : s->fan;
  double work = cost_crowd(m) * share > 1 ? cost_crowd(m) * share
                                          : 1; /* all ranks' work on their cores, or the busiest rank's */
  double part = s->depth > 1 ? (waves + s->depth - 1) / waves : 1; /* a byte waits for the bytes before it */
  hk_split at = hk_split_work(m, w);
  double far = w->rounds > 0 ? at.far_rounds / w->rounds : 0;
  double round = far * cost_round_us(m, &m->between) + (1 - far) * cost_round_us(m, &m->inside);
  bool sockets = m->inside.ring_us_per_b > 0, ring = w->spread == HK_SPREAD_RING,
       rail = ring || w->spread == HK_SPREAD_GIVEN;
  double hot = 1 / (1 + (w->written + w->reduced) / CACHED_BYTES);
  double gamma = m->gamma_us_per_b * (1 - HOT_GAIN * hot);
  if (sockets && m->nhosts <= 1) gamma += SUMMED_COPIES * m->copy_us_per_b;
  double copying = part * work * (w->written * m->copy_us_per_b + w->reduced * gamma);
  /* A lane that only sends runs ahead: it fills slots with more data than the caches hold before the data is read.  If
   * one root sends or receives, this is true for all algorithms, so it is not counted. */
  double ahead = (waves - 1) / (waves - 1 + AHEAD_WAVES);
  if (!sockets && w->share == 0 && w->again < w->rounds && w->rounds <= 1 && cost_crowd(m) <= 1)
    copying *= 1 + SPILL * ahead;
  double inside = part * at.near * work * (ring ? m->inside.ring_us_per_b : m->inside.mesh_us_per_b);
  double between = part * at.out * (rail ? m->between.ring_us_per_b : m->between.mesh_us_per_b);
  double moved = cost_lockstep(m, s, w, sockets);
  if (m->nhosts <= 1 && sockets && s->depth <= 1 && (w->again <= HK_AHEAD * w->rounds || w->spread == HK_SPREAD_CUBE))
    moved *= 1 + cost_spill_sockets(m, w, ahead);
  copying *= moved;
  inside *= moved;
  /* Calls follow one another. If no rank waits for an answer, the ranks of a host run ahead: a call is like a further
   * wave of the previous one, and ranks hand over their core only after much work. Then only work counts: that of the
   * busiest rank's core, including the other ranks on it. */
  double again = w->again, rounds = w->rounds, busy = work;
  if (w->one_way && m->nhosts <= 1) {
    rounds *= HK_AHEAD;
    if (again > HK_AHEAD) again = HK_AHEAD;
    round = m->inside.alpha_us;
    if (!sockets && m->nranks > 1)
      busy = fmax(busy, 1 + (cost_crowd(m) - 1) * (m->nranks * share - 1) / (m->nranks - 1));
  }
  double us = m->launch_us + m->channels * m->channel_us + (rounds + (waves - 1) * again) * round;
  /* A message is also work; between hosts, work is most of alpha. */
  us += waves * busy * w->messages * (far * m->between.message_us + (1 - far) * m->inside.message_us);
  us += work * links * (far * m->between.link_us + (1 - far) * m->inside.link_us);
  us += copying + inside + between;
  /* Every link needs memory for slots, and between hosts a connection. So many links are chosen only for a clear
   * gain. */
  if (links > MANY_LINKS) us += (links - MANY_LINKS) * 2 * (far > 0 ? m->between.alpha_us : m->inside.alpha_us);
  return us;
}

size_t hk_choose_chunk(const hk_machine *m, const hk_algorithm *a, const hk_program *p, size_t block_bytes) {
  hk_shape s = hk_algorithm_shape(a, m, (hk_coll)p->coll);
  return hk_chunk(m, &s, (block_bytes + (size_t)m->channels - 1) / (size_t)m->channels);
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
  for (int k = 0; k < HK_TRAFFICS; k++) {
    as.traffic[k].us_per_b /= p->efficiency;
    as.traffic[k].one_us_per_b /= p->efficiency;
    as.traffic[k].apart_us_per_b /= p->efficiency;
  }
  as.sync_us *= p->sync;
  as.copy_us_per_b /= p->copy;
  as.gamma_us_per_b /= p->copy;
  as.channel_us_per_b /= p->copy;
  as.channels = channels;
  as.far_lines = m->overlap && protocol == HK_PROTO_LL ? HK_GPU_LL_NET_MAX : 0;
  if (m->overlap) as.slot_bytes = hk_gpu_slot_carries(m->slot_bytes, protocol);
  return as;
}
