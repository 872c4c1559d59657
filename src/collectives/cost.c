/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's arithmetic.  Everything here is a function of facts that all ranks share. */
#include "cost.h"
#include <math.h>
#include "algorithm.h"
#include "gpu.h"

enum {
  WAVE_BYTES = 256 << 10,  /* that a rank has in shared slots for one wave: the caches still hold some waves of all */
  READ_BYTES = 16 << 20,   /* of a wave that is read where it is: ranks need not wait for one another, see hk_chunk */
  SCRATCH_BYTES = 8 << 20, /* of one lane */
  LEAST_CHUNK = 8192,      /* below, a message's own cost outweighs its bytes' */
  TINY_CHUNK = 512,        /* however many links */
  ELEMENTS = 64,           /* every chunk is a multiple: whole elements, whole cache lines */
  MANY_LINKS = 64,         /* beyond, see hk_price */
  SPILL_RANKS = 6,         /* beyond the first two, see SPILL_ROOT */
  AHEAD_WAVES = 8,         /* that the slots of a link take */
  CACHED_BYTES = 256 << 10 /* of what a rank touches in an operation: about so much is found in its caches */
};
#define HOT_GAIN 0.8 /* the part of a reduction's time that is waiting for memory */
/* The most that a lane which only sends may lose by running ahead, because the caches no longer hold what it sent when
 * that is read: through memory, and through sockets, whose kernel buffers it fills. Through sockets the loss depends on
 * what else the machine does (from nothing to twice the time); this is the value if nothing else runs. If all data goes
 * to a root or comes from one, the lane waits for no answer, and every socket of the root beyond the first has buffers
 * of its own to fill; measured up to 8 ranks, with which nothing is left in the caches. */
#define SPILL 0.3
#define SPILL_SOCKETS 0.05
#define SPILL_ROOT 0.12
/* Rings, chains and trees inside a host, against algorithms with as many bytes, whose ranks do not all wait for a
 * neighbour at each step; measured. Over sockets the time of a byte in the kernel does not overlap with that of others.
 * In two trees at once it does in part, with the other tree's bytes, and wholly if sums go up one while they come down
 * the other. That is with up to two ranks on a core; more ranks leave it idle less, by the root of their number.
 * Through memory it counts if ranks take turns on the cores. */
#define LOCKSTEP_SOCKETS 1.75
#define LOCKSTEP_TREES 1.4
#define LOCKSTEP_TURNS 1.1
/* Exchanges with one rank after another, in which a rank that is late delays its half of the ranks: what they lose over
 * sockets if waves follow one another; measured on 8 ranks. Up to a few waves they lose nothing. */
#define LOCKSTEP_CUBE 0.3
/* A byte that is added came, over a socket of a host, by the kernel's copy into a slot, and is read from there again;
 * what that takes from the caches counts too. In all it costs as much as this number of copies, measured. */
#define SUMMED_COPIES 3

/* Ranks that share a core, at least 1. */
static double crowd(const hk_machine *m) {
  double k = m->cores_per_host > 0 ? (double)m->ranks_per_host / m->cores_per_host : 1;
  return k > 1 ? k : 1;
}

double hk_far_sync_us(const hk_machine *m, double bytes) {
  return m->far_lines && bytes <= (double)m->far_lines ? bytes * HK_GPU_FAR_LINES_US : m->far_sync_us;
}

/* A message, until it is there. */
static double round_us(const hk_machine *m, const hk_level *l) {
  double k = crowd(m);
  return l->alpha_us + m->sync_us + (k > 1 ? ceil(k) * m->switch_us : 0);
}

static int log2_ceil(double x) { return x > 1 ? (int)ceil(log2(x)) : 0; }

hk_split hk_split_work(const hk_machine *m, const hk_work *w) {
  double n = m->nranks, per = m->ranks_per_host, hosts = m->nhosts;
  /* A core's receiving counts as copying; from a socket it is work as sending is, of the one rank that receives. */
  double received = m->overlap ? w->received : w->received / crowd(m);
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
    double part = log2_ceil(hosts) / (double)log2_ceil(n > 2 ? n : 2);
    if (part > 1) part = 1;
    s.far_rounds = w->rounds * part;
    s.out = w->out > 0 ? w->out : w->sent * per * part;
    s.near = w->sent * (1 - part);
  }
  return s;
}

static size_t round_down(size_t bytes, size_t to) { return bytes / to * to; }
/* The most that a wave may move of a block. */
static size_t largest_chunk(const hk_machine *m, const hk_shape *s) {
  size_t most = s->switched && m->overlap ? hk_gpu_switch_slot(m->slot_bytes, m->nranks) : m->slot_bytes;
  if (m->multicast && !m->overlap && !m->uncached) {
    size_t wave = WAVE_BYTES / s->fan, least = 2 * wave < LEAST_CHUNK ? 2 * wave : LEAST_CHUNK;
    most = wave > least ? wave : least;
  }
  if (s->scratch && most > SCRATCH_BYTES / s->scratch) most = SCRATCH_BYTES / s->scratch;
  if (most < TINY_CHUNK) most = TINY_CHUNK;
  if (most > m->slot_bytes) most = m->slot_bytes;
  most = round_down(most, ELEMENTS);
  return most ? most : ELEMENTS;
}

/* A pipeline of d ranks takes (d - 1 + block / c) steps of (a + c t): the best c is sqrt(block a / ((d - 1) t)). */
static double pipelined_chunk(const hk_machine *m, const hk_shape *s, double block) {
  const hk_level *l = m->nhosts > 1 ? &m->between : &m->inside;
  double link_us = m->nhosts > 1 ? l->ring_us_per_b * (s->rails ? s->rails : 1) : l->ring_us_per_b * crowd(m);
  double byte_us = ((m->overlap ? 0 : 2 * m->copy_us_per_b * crowd(m)) + link_us) * m->channels;
  if (byte_us < m->channel_us_per_b) byte_us = m->channel_us_per_b;
  double c = sqrt(block * round_us(m, l) / ((s->depth - 1) * (byte_us > 0 ? byte_us : 1e-6)));
  return c > LEAST_CHUNK ? c : LEAST_CHUNK;
}

static size_t chunk_within(const hk_machine *m, const hk_shape *s, size_t block_bytes, size_t most) {
  if (s->depth > 1) {
    double c = pipelined_chunk(m, s, (double)block_bytes);
    if (c < (double)most) most = hk_round_up((size_t)c, ELEMENTS);
  }
  if (block_bytes <= most) return block_bytes ? hk_round_up(block_bytes, ELEMENTS) : ELEMENTS;
  size_t waves = (block_bytes + most - 1) / most; /* all of nearly equal size, instead of a short one at the end */
  return hk_round_up((block_bytes + waves - 1) / waves, ELEMENTS);
}

/* References take no room in slots, so their waves may be longer. That matters: a rank runs ahead of its peers by as
 * many waves as a link has slots, and waits for the slower one of two ranks after each. */
size_t hk_chunk(const hk_machine *m, const hk_shape *s, size_t block_bytes) {
  return chunk_within(m, s, block_bytes, s->refers && m->reads ? READ_BYTES : largest_chunk(m, s));
}

static double lockstep(const hk_machine *m, const hk_shape *s, const hk_work *w, bool sockets) {
  if (m->nhosts > 1 || w->spread != HK_SPREAD_RING || w->rounds <= 1) return 1;
  if (!sockets) return crowd(m) > 1 && w->again >= w->rounds ? LOCKSTEP_TURNS : 1;
  bool trees = s->fan > 1;
  if (m->nranks <= 2 || (trees && w->reduced > 0 && !w->one_way)) return 1;
  return 1 + ((trees ? LOCKSTEP_TREES : LOCKSTEP_SOCKETS) - 1) * fmin(1, sqrt(2 / crowd(m)));
}

/* The part more that bytes cost through sockets in many waves: which a lane sends ahead, or for which ranks wait. */
static double spill_sockets(const hk_machine *m, const hk_work *w, double ahead) {
  if (m->nranks <= 2) return 0;
  if (w->spread == HK_SPREAD_CUBE && w->again >= w->rounds) return LOCKSTEP_CUBE * ahead * ahead;
  return ahead * (w->one_way ? SPILL_ROOT * fmin(m->nranks - 2, SPILL_RANKS) : SPILL_SOCKETS);
}

double hk_price(const hk_machine *m, const hk_shape *s, const hk_work *w) {
  if (m->overlap) return hk_price_gpu(m, s, w);
  size_t channels = (size_t)m->channels, block = (w->block + channels - 1) / channels;
  size_t chunk = chunk_within(m, s, block, largest_chunk(m, s)) * channels;
  double waves = w->block > chunk ? (double)((w->block + chunk - 1) / chunk) : 1;
  double share = w->share > 0 ? w->share : 1, links = w->links > 0 ? w->links : s->fan;
  double work = crowd(m) * share > 1 ? crowd(m) * share : 1; /* all ranks' work on their cores, or the busiest rank's */
  double part = s->depth > 1 ? (waves + s->depth - 1) / waves : 1; /* a byte waits for those before it on its way */
  hk_split at = hk_split_work(m, w);
  double far = w->rounds > 0 ? at.far_rounds / w->rounds : 0;
  double round = far * round_us(m, &m->between) + (1 - far) * round_us(m, &m->inside);
  bool sockets = m->inside.ring_us_per_b > 0, ring = w->spread == HK_SPREAD_RING,
       rail = ring || w->spread == HK_SPREAD_GIVEN;
  double hot = 1 / (1 + (w->written + w->reduced) / CACHED_BYTES);
  double gamma = m->gamma_us_per_b * (1 - HOT_GAIN * hot);
  if (sockets && m->nhosts <= 1) gamma += SUMMED_COPIES * m->copy_us_per_b;
  double copying = part * work * (w->written * m->copy_us_per_b + w->reduced * gamma);
  /* A lane that only sends runs ahead: it fills slots with more than the caches hold before that is read.  Where one
   * root sends or receives, all algorithms are like that. */
  double ahead = (waves - 1) / (waves - 1 + AHEAD_WAVES);
  if (!sockets && w->share == 0 && w->again < w->rounds && w->rounds <= 1 && crowd(m) <= 1)
    copying *= 1 + SPILL * ahead;
  double inside = part * at.near * work * (ring ? m->inside.ring_us_per_b : m->inside.mesh_us_per_b);
  double between = part * at.out * (rail ? m->between.ring_us_per_b : m->between.mesh_us_per_b);
  double moved = lockstep(m, s, w, sockets);
  if (m->nhosts <= 1 && sockets && s->depth <= 1 && (w->again <= HK_AHEAD * w->rounds || w->spread == HK_SPREAD_CUBE))
    moved *= 1 + spill_sockets(m, w, ahead);
  copying *= moved;
  inside *= moved;
  /* Calls follow one another. If no rank waits for an answer, those of one host run ahead: a call is like a further
   * wave of the one before, and ranks hand over their core only when they have done much. Then only work counts: that
   * of the busiest rank's core, on which others run beside it. */
  double again = w->again, rounds = w->rounds, busy = work;
  if (w->one_way && m->nhosts <= 1) {
    rounds *= HK_AHEAD;
    if (again > HK_AHEAD) again = HK_AHEAD;
    round = m->inside.alpha_us;
    if (!sockets && m->nranks > 1) busy = fmax(busy, 1 + (crowd(m) - 1) * (m->nranks * share - 1) / (m->nranks - 1));
  }
  double us = m->launch_us + m->channels * m->channel_us + (rounds + (waves - 1) * again) * round;
  /* A message is also work: on a link between hosts most of alpha is. */
  us += waves * busy * w->messages * (far * m->between.message_us + (1 - far) * m->inside.message_us);
  us += work * links * (far * m->between.link_us + (1 - far) * m->inside.link_us);
  us += copying + inside + between;
  /* Every link has its slots, and between hosts its connections.  So many must be well worth it. */
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
  as.far_lines = m->overlap && protocol == HK_PROTO_LL ? HK_GPU_LL_FAR_BYTES : 0;
  if (m->overlap) as.slot_bytes = hk_gpu_slot_carries(m->slot_bytes, protocol);
  return as;
}
