/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cost model: alpha (a message) + beta (a byte on a link) + gamma (a byte reduced), as in Thakur, Rabenseifner and
 * Gropp 2005, on two levels of links (inside a host, between hosts), with additions:
 *
 *   - A rank copies data into links' slots and out of them, which takes its core's time.
 *   - If k = ranks / cores > 1 ranks share a core, a message arrives only after its sender had the core: each round of
 *     messages costs k switches between ranks, and work of all ranks takes k times as long.
 *   - Data that a host's ranks send to other hosts shares the host's network ports.
 *   - If links move bytes by themselves (GPUs) there are two bounds: cost_gpu.c.
 */
#ifndef HK_COLLECTIVES_COST_H
#define HK_COLLECTIVES_COST_H
#include "algorithm.h"

/* The part of a round that a further wave costs if a separate lane sends ahead as far as the slots allow. */
#define HK_AHEAD 0.25

/* The cost of a block, in messages, if two ranks exchange blocks one by one on a lane: it is sent, received, and waits
 * for its turn, which was 0.6 of a message on two cores. */
#define HK_EXCHANGE_MESSAGES 2.6

/* What a message of `bytes` to another host takes beyond its link's latency: a fence, or the proxies' work on lines. */
double hk_far_sync_us(const hk_machine *m, double bytes);

/* How an algorithm's messages are divided between the two levels, with ranks numbered host after host. */
typedef enum hk_spread {
  HK_SPREAD_MESH, /* every rank to every other */
  HK_SPREAD_RING, /* to the next rank: one of a host's ranks at a time sends to another host (rings, chains) */
  HK_SPREAD_CUBE, /* to ranks at distances 1, 2, 4, ...: equal bytes at each distance, in log2 n steps */
  HK_SPREAD_GIVEN /* far_rounds and out are set, along rails */
} hk_spread;

typedef struct hk_work {
  double rounds;   /* messages one after another until the first wave is complete */
  double again;    /* rounds that each further wave adds */
  double messages; /* that the busiest rank sends and receives in one wave */
  double sent;     /* bytes that the busiest rank puts on links; with HK_SPREAD_GIVEN, those inside its host */
  double received; /* bytes that links bring the busiest rank; 0: as many as it sends */
  double written;  /* bytes that it writes, to links too: those of all destinations */
  double reduced;  /* bytes that it adds: those of all sources but an instruction's first */
  double share;    /* the average rank's part of the busiest one's work; 0 means 1: all do the same */
  bool one_way;    /* all data goes to a root or comes from one: no rank waits for an answer */
  double links;    /* of the rank with most; 0: the shape's fan */
  hk_spread spread;
  double far_rounds; /* of `rounds`, those between hosts; with HK_SPREAD_RING 0 means all */
  double out;        /* bytes that the busiest host sends to others */
  size_t block;      /* bytes of a block */
  /* GPUs, whose lanes run in parallel. 0 means the value in brackets. */
  struct {
    hk_traffic_kind traffic; /* inside a host [as the spread says] */
    double chain; /* messages one after another, if those of a round are: an exchange goes block by block [rounds] */
    double far_chain; /* of them, those between hosts [as the rounds] */
    double turns;     /* instructions of the lane with most in a wave [chain] */
    double all_turns; /* those of all lanes that a byte passes, until the first wave is complete [turns] */
    double lane;      /* bytes that the busiest lane streams [sent] */
    double lanes;     /* those of all lanes that a byte passes, if one must end before the next begins [lane] */
    double beside;    /* bytes that it streams while no lane of its channel sends [none] */
    double after;     /* bytes that a lane streams after the links have done their part of a wave [lanes - lane] */
    double scattered; /* with HK_SPREAD_RING: the part of the bytes inside that goes to any rank, not the next [none] */
    bool one_shot;    /* hk_program_one_shot */
    double out_one;   /* bytes that the busiest rank sends to other hosts [the host's, divided evenly] */
  } gpu;
} hk_work;

/* An algorithm's work, divided between the two levels. */
typedef struct hk_split {
  double far_rounds, out, near; /* rounds between hosts; bytes that leave a host; bytes inside */
} hk_split;
hk_split hk_split_work(const hk_machine *m, const hk_work *w);
/* The price in microseconds if links move bytes by themselves. */
double hk_price_gpu(const hk_machine *m, const hk_shape *shape, const hk_work *w);

/* The price in microseconds, on any machine. */
double hk_price(const hk_machine *m, const hk_shape *shape, const hk_work *w);
/* Bytes of a block that one wave moves: hk_choose_chunk, before the program exists. */
size_t hk_chunk(const hk_machine *m, const hk_shape *shape, size_t block_bytes);
/* The shape of an algorithm's program for this machine and collective. */
hk_shape hk_algorithm_shape(const hk_algorithm *a, const hk_machine *m, hk_coll coll);
#endif
