/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the programs of all ranks do together in one wave, in units that no machine and no message size changes: chains
 * of messages, and blocks by level. A block moved is a chunk of a block of the message; times and bytes follow from it.
 *
 * Path: all lanes run at once, and a sender never waits for a slot, except in `held`. Of two chains the one with more
 * messages between hosts is the longer one, because these messages take longest; then the one with more messages; then
 * the one with more instructions.
 *
 * Volume: what a rank's instructions move. A multicast is one message of its sender.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_program; /* program.h */

/* Inside a host, between hosts, and both together. */
typedef enum hk_reach { HK_INSIDE, HK_BETWEEN, HK_ANYWHERE, HK_REACHES } hk_reach;

/* A chain of messages. */
typedef struct hk_chain {
  int32_t rounds; /* messages one after another */
  int32_t far;    /* those of them that go to another host */
  int32_t instrs; /* instructions one after another, on all lanes of the chain; of equal chains the most */
} hk_chain;
static inline bool hk_chain_is_longer(const hk_chain *a, const hk_chain *b) {
  if (a->far != b->far) return a->far > b->far;
  return a->rounds != b->rounds ? a->rounds > b->rounds : a->instrs > b->instrs;
}

/* What a rank does in one wave. */
typedef struct hk_volume {
  uint64_t sent[HK_REACHES], received[HK_REACHES]; /* messages */
  uint64_t carried[HK_REACHES], taken[HK_REACHES]; /* those that are not empty: blocks */
  /* Messages between ranks, sent and received; successive ones of a lane on a link count as one. */
  uint64_t bursts[HK_REACHES];
  uint64_t by_turns; /* blocks sent inside the host by the lane that sends all of those between hosts */
  uint64_t crossing; /* blocks to a rank of another host that has another local number there: off the rail */
  /* Blocks over the rank's port inside its host, with what a switch copies and fetches: the sender of a multicast also
   * receives it, and a switch that adds fetches the adding rank's own part, and the parts of a sum for each rank. */
  uint64_t port_out, port_in;
  uint64_t moved;   /* blocks sent and received */
  uint64_t kept;    /* blocks written to memory */
  uint64_t written; /* blocks, to all destinations: to memory and to links */
  uint64_t reduced; /* blocks added: all sources but the first of each instruction */
  uint64_t links;   /* to other ranks, on which it sends */
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
  hk_chain after;    /* the chain before the message, and the instructions up to it */
  uint32_t kind, by; /* hk_map_kind */
  uint32_t from;     /* HK_MAP_PAIR; else 0 */
  uint32_t times;    /* messages of each pair of ranks */
} hk_map;

/* What a lane of rank `from` does, in this order: it begins an instruction (`slot` is `lane`), takes a slot that has
 * come to its rank (`to` is `from`), sends a slot to another rank. */
typedef struct hk_summary_event {
  uint32_t lane, slot; /* numbers of all ranks' lanes, and from there on of their slots */
  uint32_t from, to;
} hk_summary_event;

typedef struct hk_summary {
  int nranks;
  int order;       /* hk_algorithm_summarize: the ring order of the programs, hk_build.channel */
  int period;      /* see hk_summarize; a HK_MAP_PAIR of one period stands for one of each period */
  uint32_t blocks; /* hk_program.blocks */
  hk_chain first;  /* until the first wave is complete */
  hk_chain again;  /* what each further wave adds; 0 rounds if waves follow each other without waiting */
  /* The same with the slots of links: a sender that is ahead by so many waits until one is free, for one round. Equal
   * to the above if none is. */
  hk_chain held, held_again;
  uint32_t tail;              /* instructions of the first wave's chain after its last message */
  uint32_t busy;              /* instructions one after another in the first wave, on whatever chain has most */
  hk_volume most;             /* each value of the rank with the largest one */
  hk_volume all;              /* of all ranks together; `longest`: the longest of all */
  uint64_t leaving, entering; /* blocks that the busiest host sends to others; that one receives */
  /* The most that a rank has. far_fan: links to other hosts, on which it sends; scratch: blocks. */
  uint32_t far_fan, scratch;
  uint32_t switch_span; /* hk_traits, the largest */
  bool one_shot;        /* likewise, of any rank */
  bool refers, places;  /* likewise, of all ranks */
  /* An allreduce's links may carry rounded values (quantised.h): each value is rounded at most once before it is added,
   * and each sum once, by one rank, from which all get it. So the error does not grow with the number of ranks, and all
   * ranks get the same bits. */
  bool quantises;
  bool one_way; /* some rank receives nothing: it waits for no answer, and runs ahead of the others */
  uint32_t nmaps;
  hk_map *maps; /* messages between two ranks, in the order of `after`; multicasts and groups are not in it */
  /* Of the first wave, in the order of time; only of collectives with a root; not of groups. */
  size_t nevents;
  hk_summary_event *events;
} hk_summary;

/* What some ranks of a host do in a wave. */
typedef struct hk_load {
  uint32_t blocks;  /* hk_program.blocks */
  uint64_t longest; /* instructions of the longest lane */
  uint64_t far;     /* blocks sent to other hosts */
  uint64_t work;    /* links and blocks moved, of the rank that has most */
  size_t program;   /* bytes of the largest program */
} hk_load;
/* Adds a rank's program. `host` as in hk_summarize. */
void hk_load_add(hk_load *load, const struct hk_program *p, const int32_t *host);

/* `programs` of one collective by one algorithm, proved (verify.h): those of the first `period` ranks. The next ranks'
 * are the same with all ranks' numbers raised by a multiple of `period`, modulo nranks (`kind` HK_MAP_SHIFT), or with
 * its bits changed (HK_MAP_FLIP: both are powers of two); `period` divides nranks, and is nranks if there are links of
 * a group. `host` [nranks] (may be NULL: one host) has equal numbers, below nranks, for ranks of one host. `slots`: of
 * each link (HOCKET_SLOTS); 0: of CPUs, where nothing is held, and the lanes of a rank share a core, so that what they
 * tell each other is no round. `one_host`: of messages inside hosts, the maps have only those of host 0.
 * HK_ERR_INTERNAL: the programs do not end; HK_ERR_SYSTEM: no memory. */
hk_status hk_summarize(hk_summary *out, const struct hk_program *const *programs, int nranks, int period,
                       hk_map_kind kind, const int32_t *host, uint32_t slots, bool one_host);
/* *out: `first`, if ranks are on other hosts, as its events show. */
hk_status hk_summary_first_on(hk_chain *out, const hk_summary *s, const int32_t *host);
void hk_summary_shrink(hk_summary *s); /* drops maps and events */
void hk_summary_clear(hk_summary *s);
