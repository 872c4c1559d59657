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

/* The cost of a further wave, as a part of a round, if a separate lane sends ahead while it has free slots. */
#define HK_AHEAD 0.25

/* The cost of a block, in messages, if two ranks exchange blocks one by one on a lane: one for sending, one for
 * receiving, and 0.6 for waiting, as measured on two cores. */
#define HK_EXCHANGE_MESSAGES 2.6

/* The time of a message of `bytes` to another host in addition to its link's latency: a fence, or the proxies' work on
 * lines. */
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
  double messages; /* messages that the busiest rank sends and receives in one wave */
  double sent;     /* bytes that the busiest rank puts on links; with HK_SPREAD_GIVEN, those inside its host */
  double received; /* bytes that the busiest rank receives over links; 0: as many as it sends */
  double written;  /* bytes that it writes to all destinations, links included */
  double reduced;  /* bytes that it adds: all sources except the first of each instruction */
  double share;    /* the average rank's part of the busiest one's work; 0 means 1: all do the same */
  bool one_way;    /* all data goes to a root or is sent by one: no rank waits for an answer */
  double links;    /* the most links of any rank; 0: the shape's fan */
  hk_spread spread;
  double far_rounds; /* the rounds between hosts, included in `rounds`; with HK_SPREAD_RING 0 means all */
  double out;        /* bytes that the busiest host sends to others */
  size_t block;      /* bytes of a block */
  /* GPUs, whose lanes run in parallel. 0 means the value in brackets. */
  struct {
    hk_traffic_kind traffic; /* the pattern inside a host [by the spread] */
    double chain; /* messages one after another, if a round has several (an exchange goes block by block) [rounds] */
    double far_chain; /* the messages between hosts in the chain [in proportion to far_rounds] */
    double turns;     /* the most instructions of a lane in a wave [chain] */
    double all_turns; /* instructions of all lanes that a byte passes, until the first wave is complete [turns] */
    double lane;      /* bytes that the busiest lane streams [sent] */
    double lanes;     /* bytes of all lanes that a byte passes, if one lane must end before the next begins [lane] */
    double unsent;    /* bytes that it streams while no lane of its channel sends [none] */
    double after;     /* bytes that a lane streams after the links have moved a wave [lanes - lane] */
    /* with HK_SPREAD_RING: the part of the bytes inside a host that goes to arbitrary ranks, not to the next [none] */
    double scattered;
    bool one_shot;  /* hk_traits.one_shot */
    double out_one; /* bytes that the busiest rank sends to other hosts [the host's, divided evenly] */
  } gpu;
} hk_work;

/* An algorithm's work, divided between the two levels of links. */
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
