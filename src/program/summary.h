/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the programs of all ranks do together in one wave, in units that no machine and no message size changes: chains
 * of messages, and blocks by level. A block moved is a chunk of a block of the message; times and bytes follow from it.
 *
 * Path: all lanes run at once, an instruction takes no time, and a message takes one round. A sender never waits for a
 * slot. Of two chains the one with more messages between hosts is the longer one, because these messages take longer.
 *
 * Volume: what a rank's instructions move. A multicast is one message of its sender.
 */
#ifndef HK_PROGRAM_SUMMARY_H
#define HK_PROGRAM_SUMMARY_H
#include "program.h"

/* Inside a host, between hosts, and both together. */
typedef enum hk_reach { HK_INSIDE, HK_BETWEEN, HK_ANYWHERE, HK_REACHES } hk_reach;

/* A chain of messages. */
typedef struct hk_chain {
  int32_t rounds; /* messages one after another */
  int32_t far;    /* those of them that go to another host */
} hk_chain;

/* What a rank does in one wave. */
typedef struct hk_volume {
  uint64_t sent[HK_REACHES], received[HK_REACHES]; /* messages */
  uint64_t carried[HK_REACHES];                    /* messages sent that are not empty: blocks */
  uint64_t written;                                /* blocks, to all destinations */
  uint64_t reduced;                                /* blocks added: all sources but the first of each instruction */
  uint64_t instrs;
  uint64_t longest; /* instructions of the longest lane */
} hk_volume;

/* Messages that ranks send after equal chains. */
typedef enum hk_map_kind {
  HK_MAP_SHIFT, /* each rank r to rank (r + by) modulo the number of ranks */
  HK_MAP_FLIP,  /* each rank r to rank r xor by */
  HK_MAP_PAIR   /* rank `from` to rank `by` */
} hk_map_kind;
typedef struct hk_map {
  hk_chain after;
  uint32_t kind, by; /* hk_map_kind */
  uint32_t from;     /* HK_MAP_PAIR; else 0 */
  uint32_t times;    /* messages of each pair of ranks */
} hk_map;

typedef struct hk_summary {
  int nranks;
  int period;       /* see hk_summarize; a HK_MAP_PAIR of one period stands for one of each period */
  uint32_t blocks;  /* hk_program.blocks */
  hk_chain first;   /* until the first wave is complete */
  hk_chain again;   /* what each further wave adds; 0 if waves follow each other without waiting */
  hk_volume most;   /* each value of the rank with the largest one */
  hk_volume all;    /* of all ranks together; `longest`: the longest of all */
  uint64_t leaving; /* blocks that the busiest host sends to others */
  uint32_t links;   /* the most that a rank has, as the next two */
  uint32_t lanes, scratch;
  uint32_t nmaps;
  hk_map *maps; /* messages between two ranks, in the order of `after`; multicasts and groups are not in it */
} hk_summary;

/* `programs` of one collective by one algorithm, proved (verify.h): those of the first `period` ranks. The program of
 * each other rank is that of the rank `period` below it, shifted (hk_program_is_shifted); `period` divides nranks, and
 * is nranks if there are links of a group. `host` [nranks] (may be NULL: one host) has equal numbers, below nranks, for
 * ranks of one host. HK_ERR_INTERNAL: the programs do not end; HK_ERR_SYSTEM: no memory. */
hk_status hk_summarize(hk_summary *out, const hk_program *const *programs, int nranks, int period,
                       const uint16_t *host);
void hk_summary_clear(hk_summary *s);
#endif
