/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cost model: alpha (a message) + beta (a byte on a link) + gamma (a byte reduced), as in Thakur, Rabenseifner and
 * Gropp 2005, on two levels of links (inside a host, between hosts), with additions:
 *
 *   - A rank copies what it puts into links' slots and takes out of them, and that is its core's time.
 *   - Where k = ranks / cores > 1 ranks share a core, a message arrives only when its sender had the core: each round of
 *     messages costs k hand-overs, and what all ranks do takes k times as long.
 *   - What a host's ranks send to other hosts shares the host's way out.
 *   - Where links move bytes by themselves (GPUs) there are two bounds: cost_gpu.c.
 */
#ifndef HK_COLLECTIVES_COST_H
#define HK_COLLECTIVES_COST_H
#include "algorithm.h"

/* The part of a round that a further wave costs where a lane of its own sends ahead as far as the slots allow. */
#define HK_AHEAD 0.25

/* Messages that a block costs where two ranks exchange blocks one by one on a lane: it is sent, it is received, and it waits for
 * its turn, which on two cores came to 0.6 of a message. */
#define HK_EXCHANGE_MESSAGES 2.6

/* How an algorithm's messages fall on the two levels, where ranks are numbered host after host. */
typedef enum hk_spread {
  HK_SPREAD_MESH, /* everybody to everybody */
  HK_SPREAD_RING, /* to the next one: of a host's ranks one sends to another host at a time (rings, chains) */
  HK_SPREAD_CUBE, /* to ranks at distances 1, 2, 4, ...: as many bytes near as far, one step of log2 n after the other */
  HK_SPREAD_GIVEN /* far_rounds and out are set, along rails */
} hk_spread;

typedef struct hk_work {
  double rounds;   /* messages one behind another until the first wave is through */
  double again;    /* rounds that each further wave adds */
  double messages; /* that the busiest rank sends and receives in one wave */
  double sent;     /* bytes that the busiest rank puts on links; with HK_SPREAD_GIVEN, those inside its host */
  double received; /* bytes that links bring the busiest rank; 0 stands for as many as it sends */
  double written;  /* bytes that it writes, to links too: those of all destinations */
  double reduced;  /* bytes that it adds: those of all sources but an instruction's first */
  double share;    /* the average rank's part of the busiest one's work; 0 stands for 1: all do the same */
  bool one_way;    /* all goes to a root or comes from one: nobody waits for what others answer */
  double links;    /* of the rank with most; 0 stands for the shape's fan */
  hk_spread spread;
  double far_rounds; /* of `rounds`, those between hosts; with HK_SPREAD_RING 0 stands for all */
  double out;        /* bytes that the busiest host sends to others */
  size_t block;      /* bytes of a block */
  /* GPUs, whose lanes run side by side.  0 stands for what is in brackets. */
  struct {
    hk_traffic_kind traffic; /* inside a host [as the spread says] */
    double
        chain; /* messages one behind another, where those of a round are: an exchange goes block by block [rounds] */
    double far_chain; /* of them, those between hosts [as the rounds] */
    double turns;     /* instructions of the lane with most in a wave [chain] */
    double all_turns; /* those of all lanes that a byte passes, until the first wave is through [turns] */
    double lane;      /* bytes that the busiest lane streams [sent] */
    double lanes;     /* those of all lanes that a byte passes, where one must end before the next begins [lane] */
    double beside;    /* bytes that it streams while it sends nothing, nor another lane of its channel [none] */
    double after;     /* bytes that a lane streams when the links have done their part of a wave [lanes - lane] */
    double scattered; /* with HK_SPREAD_RING: the part of the bytes inside that goes to any rank, not the next [none] */
    double out_one;   /* bytes that the busiest rank sends to other hosts [the host's, shared out evenly] */
  } gpu;
} hk_work;

/* What goes where. */
typedef struct hk_split {
  double far_rounds, out, near; /* rounds between hosts; bytes that leave a host; bytes inside */
} hk_split;
hk_split hk_split_work(const hk_machine *m, const hk_work *w);
/* Microseconds where links move bytes by themselves. */
double hk_price_gpu(const hk_machine *m, const hk_shape *shape, const hk_work *w);

/* Microseconds. */
double hk_price(const hk_machine *m, const hk_shape *shape, const hk_work *w);
/* Bytes of a block that one wave moves: hk_choose_chunk, before there is a program. */
size_t hk_chunk(const hk_machine *m, const hk_shape *shape, size_t block_bytes);
hk_shape hk_algorithm_shape(const hk_algorithm *a, const hk_machine *m, hk_coll coll);
#endif
